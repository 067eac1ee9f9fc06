//! `/v1/cluster`: the workers.

use super::Shared;
use super::reply::{self, Failure};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tessera_cluster::Cluster;
use tessera_engine::error::{Error, Report};

/// Upper bound on events in the response of `GET /v1/cluster`: the most recent ones.
const EVENTS: usize = 100;

/// `GET /v1/cluster`: the role of the server, the workers and their recent events.
pub(super) async fn get(State(shared): State<Arc<Shared>>) -> Response {
    let cluster = shared.backend.host().and_then(|h| h.cluster());
    let mut told = described(cluster.map(|c| &**c));
    told["role"] = shared.role.name().into();
    // The live server, if it is another one.
    told["server"] = shared.role.reason().as_ref().and_then(Report::server).into();
    reply::json(StatusCode::OK, &told)
}

/// `POST /v1/cluster/restart`: restarts each worker; the supervisor ends one that does not respond.
pub(super) async fn restart(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    let cluster = shared.backend.host().and_then(|h| h.cluster());
    let cluster = cluster.ok_or_else(|| Error::Unsupported {
        construct: "a restart of workers by a server that accepts none".into(),
        hint: Some("start it with `--cluster`".into()),
    })?;
    Ok(reply::json(
        StatusCode::OK,
        &json!({ "restarted": cluster.registry().restart(Instant::now()) }),
    ))
}

/// The response of `GET /v1/cluster`; without a cluster it has neither workers nor events.
fn described(cluster: Option<&Cluster>) -> Value {
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
                "version": m.hello.version.program,
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
                "retained": m.load.retained,
                "retained_bytes": m.load.retained_bytes,
                "reused": m.load.reused,
                "fetched_bytes": m.load.fetched_bytes,
                "served_bytes": m.load.served_bytes,
                "written_bytes": m.load.written_bytes,
                "row_tasks": m.load.row_tasks,
                "row_tasks_done": m.load.row_tasks_done,
                "rows_sent": m.load.rows_sent,
                "row_bytes": m.load.row_bytes,
                "heard_s": m.heard_s(),
                "apart": m.apart,
                "why": m.why,
            })
        })
        .collect();
    let events = cluster.registry().events();
    let events = &events[events.len().saturating_sub(EVENTS)..];
    let waiting = cluster.waiting();
    json!({
        "cluster": true,
        "listen": cluster.address().to_string(),
        "waiting_operands": waiting.operands,
        "waiting_seconds": waiting.seconds,
        "workers": workers,
        "events": events,
    })
}
