//! The workers of a cluster, as they are shown.

use crate::config::format_bytes;
use serde_json::{Value, json};
use std::time::Instant;
use tessera_cluster::Cluster;
use tessera_cluster::registry::Member;

/// Events that `GET /v1/cluster` tells.
const EVENTS: usize = 100;

/// The columns of `SHOW WORKERS`.
pub(crate) const COLUMNS: [&str; 12] = [
    "worker", "name", "address", "state", "threads", "memory", "limit", "orders", "operands",
    "chunks", "heard", "why",
];

/// A row of `SHOW WORKERS`.
pub(crate) fn row(m: &Member) -> [String; 12] {
    [
        m.number.to_string(),
        m.hello.name.clone(),
        m.hello.address.clone(),
        m.state.name().into(),
        m.hello.threads.to_string(),
        format_bytes(m.load.used_bytes),
        format_bytes(m.hello.memory_bytes),
        m.load.orders.to_string(),
        m.load.operands.to_string(),
        format!("{} ({})", m.load.chunks, format_bytes(m.load.chunk_bytes)),
        format!("{:.1} s ago", heard_s(m)),
        m.lacks().unwrap_or_default(),
    ]
}

/// Seconds since it was heard of last.
pub(crate) fn heard_s(m: &Member) -> f64 {
    Instant::now().saturating_duration_since(m.heard).as_secs_f64()
}

/// The answer of `GET /v1/cluster`.
pub(crate) fn told(cluster: Option<&Cluster>) -> Value {
    let Some(cluster) = cluster else {
        return json!({ "cluster": false, "workers": [], "events": [] });
    };
    let workers: Vec<Value> = cluster
        .registry()
        .all()
        .iter()
        .map(|m| {
            json!({
                "worker": m.number,
                "name": m.hello.name,
                "address": m.hello.address,
                "state": m.state.name(),
                "since_ms": m.since_ms,
                "threads": m.hello.threads,
                "pid": m.hello.pid,
                "memory_limit_bytes": m.hello.memory_bytes,
                "memory_used_bytes": m.load.used_bytes,
                "orders": m.load.orders,
                "operands": m.load.operands,
                "chunks": m.load.chunks,
                "chunk_bytes": m.load.chunk_bytes,
                "spilled_bytes": m.load.spilled_bytes,
                "fetched_bytes": m.load.fetched_bytes,
                "served_bytes": m.load.served_bytes,
                "heard_s": heard_s(m),
                "apart": m.apart,
                "why": m.why,
            })
        })
        .collect();
    let events = cluster.registry().events();
    let events = &events[events.len().saturating_sub(EVENTS)..];
    json!({
        "cluster": true,
        "listen": cluster.address().to_string(),
        "workers": workers,
        "events": events,
    })
}
