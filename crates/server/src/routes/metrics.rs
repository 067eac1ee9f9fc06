//! `/metrics`: counters for Prometheus.
//!
//! # Source
//! Prometheus text exposition format, version 0.0.4.

use super::Shared;
use super::reply;
use super::statements::ENDS;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tessera_cluster::Waiting;
use tessera_cluster::registry::Member;
use tessera_engine::session::Host;

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 9] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

/// A metric of each worker: name, type, help, and value.
type OfWorker = (&'static str, &'static str, &'static str, fn(&Member) -> f64);

/// Counters of requests.
#[derive(Default)]
pub(super) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), Durations>>,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

#[derive(Default, Clone)]
struct Durations {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum_s: f64,
}

impl Metrics {
    /// Counts bytes of results sent to clients.
    pub(super) fn sent(&self, bytes: usize) {
        self.bytes_sent.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts bytes of uploads.
    pub(super) fn received(&self, bytes: usize) {
        self.bytes_received.fetch_add(bytes as u64, Relaxed);
    }

    fn answered(&self, route: &'static str, method: &'static str, status: u16, seconds: f64) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let d = requests.entry((route, method, status)).or_default();
        for (n, bound) in d.buckets.iter_mut().zip(BUCKETS) {
            *n += u64::from(seconds <= bound);
        }
        d.count += 1;
        d.sum_s += seconds;
    }
}

/// Counts each request and the time until its response begins.
pub(super) async fn count(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let route = route(request.uri().path());
    // Only known methods: clients must not create labels.
    let method = match request.method().as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        _ => "other",
    };
    let response = next.run(request).await;
    let seconds = started.elapsed().as_secs_f64();
    shared.metrics.answered(route, method, response.status().as_u16(), seconds);
    response
}

/// The route of a path, without client-chosen parts.
fn route(path: &str) -> &'static str {
    let mut parts = path.trim_matches('/').split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("v1"), Some("query"), None, ..) => "/v1/query",
        (Some("v1"), Some("statements"), None, ..) => "/v1/statements",
        (Some("v1"), Some("statements"), Some(_), None, _) => "/v1/statements/{id}",
        (Some("v1"), Some("statements"), Some(_), Some("result"), None) => {
            "/v1/statements/{id}/result"
        }
        (Some("v1"), Some("statements"), Some(_), Some("plan"), None) => "/v1/statements/{id}/plan",
        (Some("v1"), Some("statements"), Some(_), Some("events"), None) => {
            "/v1/statements/{id}/events"
        }
        (Some("v1"), Some("sessions"), None, ..) => "/v1/sessions",
        (Some("v1"), Some("sessions"), Some(_), None, _) => "/v1/sessions/{id}",
        (Some("v1"), Some("tensors"), None, ..) => "/v1/tensors",
        (Some("v1"), Some("tensors"), Some(_), None, _) => "/v1/tensors/{name}",
        (Some("v1"), Some("cluster"), None, ..) => "/v1/cluster",
        (Some("v1"), Some("cluster"), Some("restart"), None, _) => "/v1/cluster/restart",
        (Some("healthz"), None, ..) => "/healthz",
        (Some("readyz"), None, ..) => "/readyz",
        (Some("metrics"), None, ..) => "/metrics",
        (Some("openapi.json"), None, ..) => "/openapi.json",
        _ => "other",
    }
}

/// `GET /metrics`
pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Response {
    reply::text(StatusCode::OK, "text/plain; version=0.0.4", text(&shared))
}

/// The text of the exposition format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// A metric with its values, each with its labels.
    fn one(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        // Writing into memory cannot fail.
        let _ = writeln!(self.0, "# HELP tessera_{name} {help}\n# TYPE tessera_{name} {kind}");
        for (labels, v) in values {
            let _ = writeln!(self.0, "tessera_{name}{labels} {v}");
        }
    }
}

/// One value without labels.
fn plain(v: u64) -> Vec<(String, f64)> {
    vec![(String::new(), v as f64)]
}

fn text(shared: &Shared) -> String {
    let mut out = Exposition::default();
    statements(shared, &mut out);
    let host = shared.backend.host();
    if let Some(host) = host {
        runtime(host, &mut out);
        spill(host, &mut out);
        storage(host, &mut out);
        durable(host, &mut out);
    }
    if let Some(cluster) = host.and_then(|h| h.cluster()) {
        workers(&cluster.registry().all(), &mut out);
        waiting(&cluster.waiting(), &mut out);
    }
    out.one(
        "sent_bytes_total",
        "counter",
        "Bytes of results sent to clients.",
        &plain(shared.metrics.bytes_sent.load(Relaxed)),
    );
    out.one(
        "received_bytes_total",
        "counter",
        "Bytes of uploads.",
        &plain(shared.metrics.bytes_received.load(Relaxed)),
    );
    durations(shared, &mut out.0);
    out.0
}

/// Statements, sessions and results in transfer.
fn statements(shared: &Shared, out: &mut Exposition) {
    let statements = &shared.statements;
    let (live, waiting) = statements.live();
    let ends: Vec<_> = ENDS
        .iter()
        .zip(&statements.ends)
        .map(|(s, n)| (format!("{{state=\"{s}\"}}"), n.load(Relaxed) as f64))
        .collect();
    out.one("statements_total", "counter", "Statements that came to an end, by state.", &ends);
    out.one(
        "statements_queued",
        "gauge",
        "Statements that wait for a place.",
        &plain(waiting as u64),
    );
    out.one(
        "statements_running",
        "gauge",
        "Statements that are planned or run.",
        &plain(live.saturating_sub(waiting) as u64),
    );
    let (memory, disk) = statements.kept_bytes();
    let kept = [("memory", memory), ("disk", disk)]
        .map(|(place, n)| (format!("{{place=\"{place}\"}}"), n as f64));
    out.one("result_bytes", "gauge", "Bytes of retained results, by place.", &kept);
    if let Some(host) = shared.backend.host() {
        out.one(
            "statements_run_alone_total",
            "counter",
            "Statements that were refused memory while others ran, and ran again alone.",
            &plain(host.ran_alone()),
        );
    }
    out.one("sessions", "gauge", "Sessions.", &plain(shared.sessions.count() as u64));
    let most = super::stream::streams_max(shared.config.memory_limit_bytes);
    let streams = most - shared.streams.available_permits();
    out.one("streams", "gauge", "Results on their way.", &plain(streams as u64));
}

/// Operands and memory of the process.
fn runtime(host: &Host, out: &mut Exposition) {
    let quota = host.runtime().quota();
    let running: BTreeMap<&str, u64> =
        host.queries().list().iter().map(|h| h.progress()).fold(BTreeMap::new(), |mut sum, p| {
            for (s, n) in tessera_exec::operand::OperandState::ALL.iter().zip(p.operands) {
                *sum.entry(s.name()).or_default() += n;
            }
            sum
        });
    let running: Vec<_> =
        running.iter().map(|(s, n)| (format!("{{state=\"{s}\"}}"), *n as f64)).collect();
    out.one("operands", "gauge", "Operands of statements that run, by state.", &running);
    out.one(
        "operands_run_total",
        "counter",
        "Operands that threads ran.",
        &plain(host.runtime().operands()),
    );
    out.one("quota_limit_bytes", "gauge", "The memory limit.", &plain(quota.limit()));
    out.one("quota_used_bytes", "gauge", "Bytes reserved or charged.", &plain(quota.used()));
    out.one("quota_peak_bytes", "gauge", "The most bytes ever in use.", &plain(quota.peak()));
    out.one("pool_cached_bytes", "gauge", "Bytes of free buffers.", &plain(quota.cached()));
}

fn spill(host: &Host, out: &mut Exposition) {
    let store = host.runtime().store();
    let spilled = store.figures();
    out.one("spill_files", "gauge", "Files of spilled chunks.", &plain(spilled.files));
    out.one("spill_used_bytes", "gauge", "Bytes of scratch set aside.", &plain(spilled.bytes));
    out.one("spill_limit_bytes", "gauge", "The limit of scratch.", &plain(store.limit()));
    out.one("spilled_files_total", "counter", "Chunks spilled.", &plain(spilled.spilled_files));
    out.one("spilled_bytes_total", "counter", "Bytes spilled.", &plain(spilled.spilled_bytes));
    out.one(
        "spill_corrupt_total",
        "counter",
        "Reads of spilled chunks that were not what had been written.",
        &plain(spilled.corrupt),
    );
    out.one(
        "spill_read_bytes_total",
        "counter",
        "Bytes of spilled chunks that were read again.",
        &plain(spilled.read_back_bytes),
    );
}

/// Reads from storage, and results on disk.
fn storage(host: &Host, out: &mut Exposition) {
    let (requests, bytes, _) = host.counters().snapshot();
    out.one("storage_requests_total", "counter", "Requests to storage.", &plain(requests));
    out.one("storage_read_bytes_total", "counter", "Bytes read from storage.", &plain(bytes));
    let scratch = host.scratch();
    out.one("scratch_used_bytes", "gauge", "Bytes of results on disk.", &plain(scratch.used()));
    out.one(
        "scratch_written_bytes_total",
        "counter",
        "Bytes of results that went to disk.",
        &plain(scratch.written()),
    );
}

fn durable(host: &Host, out: &mut Exposition) {
    let (durable, did) = (host.durable(), host.durable().did());
    let all: [(&str, &str, &str, f64); 11] = [
        ("limit_bytes", "gauge", "Bytes that kept chunks may have.", durable.limit() as f64),
        ("used_bytes", "gauge", "Bytes of kept chunks that are known.", durable.bytes() as f64),
        ("written_total", "counter", "Operands whose chunks were kept.", did.written as f64),
        ("written_bytes_total", "counter", "Bytes of them.", did.bytes_written as f64),
        ("reused_total", "counter", "Operands whose kept chunks were used.", did.reused as f64),
        ("reused_bytes_total", "counter", "Bytes of them.", did.bytes_reused as f64),
        (
            "reused_seconds_total",
            "counter",
            "Seconds of threads that computing them had taken.",
            did.seconds_reused,
        ),
        (
            "corrupt_total",
            "counter",
            "Kept chunks that were missing or not what had been written.",
            did.corrupt as f64,
        ),
        ("skipped_total", "counter", "Operands not kept for want of room.", did.skipped as f64),
        ("failed_total", "counter", "Writes of kept chunks that failed.", did.failed as f64),
        ("removed_total", "counter", "Statements whose kept chunks gave way.", did.removed as f64),
    ];
    for (name, kind, help, value) in all {
        out.one(&format!("durable_{name}"), kind, help, &[(String::new(), value)]);
    }
}

fn workers(members: &[Member], out: &mut Exposition) {
    let of = |f: fn(&Member) -> f64| -> Vec<(String, f64)> {
        members.iter().map(|m| (format!("{{worker=\"{}\"}}", m.number), f(m))).collect()
    };
    let all: [OfWorker; 13] = [
        ("up", "gauge", "1 for a worker that answers.", |m| f64::from(m.state.is_here())),
        ("threads", "gauge", "Threads that compute.", |m| f64::from(m.hello.threads)),
        ("memory_limit_bytes", "gauge", "The memory limit.", |m| m.hello.memory_bytes as f64),
        ("memory_used_bytes", "gauge", "Bytes in use.", |m| m.load.used_bytes as f64),
        ("orders", "gauge", "Orders that run.", |m| m.load.orders as f64),
        ("operands_total", "counter", "Operands that ran.", |m| m.load.operands as f64),
        ("chunks", "gauge", "Chunks kept for others.", |m| m.load.chunks as f64),
        ("chunk_bytes", "gauge", "Their bytes.", |m| m.load.chunk_bytes as f64),
        ("retained", "gauge", "Operands of finished plans whose chunks are retained.", |m| {
            m.load.retained as f64
        }),
        ("retained_bytes", "gauge", "Bytes of these chunks.", |m| m.load.retained_bytes as f64),
        ("reused_total", "counter", "Operands whose retained chunks were used again.", |m| {
            m.load.reused as f64
        }),
        ("fetched_bytes_total", "counter", "Bytes of chunks fetched from others.", |m| {
            m.load.fetched_bytes as f64
        }),
        ("served_bytes_total", "counter", "Bytes of chunks given to others.", |m| {
            m.load.served_bytes as f64
        }),
    ];
    for (name, kind, help, f) in all {
        out.one(&format!("worker_{name}"), kind, help, &of(f));
    }
}

/// The work that waits for workers.
fn waiting(waiting: &Waiting, out: &mut Exposition) {
    let all: [(&str, &str, &str, f64); 3] = [
        (
            "operands",
            "gauge",
            "Operands of running statements that no thread of a worker runs yet.",
            waiting.operands as f64,
        ),
        (
            "seconds",
            "gauge",
            "Seconds that one thread needs for the waiting operands, approximately.",
            waiting.seconds,
        ),
        (
            "operand_seconds_total",
            "counter",
            "Waiting operands times the seconds that they waited.",
            waiting.operand_seconds,
        ),
    ];
    for (name, kind, help, value) in all {
        out.one(&format!("cluster_waiting_{name}"), kind, help, &[(String::new(), value)]);
    }
}

fn durations(shared: &Shared, out: &mut String) {
    let requests = shared.metrics.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let name = "tessera_http_request_duration_seconds";
    let _ = writeln!(out, "# HELP {name} Time until an answer begins.\n# TYPE {name} histogram");
    for ((route, method, status), d) in requests {
        let labels = format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"");
        for (bound, n) in BUCKETS.iter().zip(d.buckets) {
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {n}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", d.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", d.sum_s);
        let _ = writeln!(out, "{name}_count{{{labels}}} {}", d.count);
    }
}
