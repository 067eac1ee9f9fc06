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
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tessera_cluster::Waiting;
use tessera_cluster::registry::Member;
use tessera_engine::session::Host;
use tessera_storage::lock;

/// Upper bounds of the histogram's buckets, in seconds.
const BUCKETS: [f64; 9] = [0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0];

/// A metric of each worker: name, help, and value.
type OfWorker = (&'static str, &'static str, fn(&Member) -> u64);

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
        let mut requests = lock(&self.requests);
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
    /// A metric without labels.
    fn one(&mut self, name: &str, help: &str, value: u64) {
        self.each(name, help, [(String::new(), value as f64)]);
    }

    /// A metric with a value for each set of labels. The names of counters, and only these, end in `_total`.
    fn each(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (String, f64)>) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing into memory cannot fail.
        let _ = writeln!(self.0, "# HELP tessera_{name} {help}\n# TYPE tessera_{name} {kind}");
        for (labels, v) in values {
            let _ = writeln!(self.0, "tessera_{name}{labels} {v}");
        }
    }
}

fn labelled(label: &str, of: impl Display, value: u64) -> (String, f64) {
    (format!("{{{label}=\"{of}\"}}"), value as f64)
}

fn text(shared: &Shared) -> String {
    let mut out = Exposition::default();
    let is_live = u64::from(shared.role.reason().is_none());
    out.one("live", "1 for a live server, 0 for a standby and a fenced one.", is_live);
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
    let metrics = &shared.metrics;
    let sent = metrics.bytes_sent.load(Relaxed);
    out.one("sent_bytes_total", "Bytes of results sent to clients.", sent);
    out.one("received_bytes_total", "Bytes of uploads.", metrics.bytes_received.load(Relaxed));
    durations(shared, &mut out.0);
    out.0
}

/// Statements, sessions and results in transfer.
fn statements(shared: &Shared, out: &mut Exposition) {
    let statements = &shared.statements;
    let (live, waiting) = statements.live();
    let ends = ENDS.iter().zip(&statements.ends);
    let ends = ends.map(|(state, n)| labelled("state", state, n.load(Relaxed)));
    out.each("statements_total", "Statements that came to an end, by state.", ends);
    out.one("statements_queued", "Statements that wait for a place.", waiting as u64);
    let running = live.saturating_sub(waiting) as u64;
    out.one("statements_running", "Statements that are planned or run.", running);
    let (memory, disk) = statements.kept_bytes();
    let kept = [("memory", memory), ("disk", disk)].map(|(place, n)| labelled("place", place, n));
    out.each("result_bytes", "Bytes of retained results, by place.", kept);
    if let Some(host) = shared.backend.host() {
        let help = "Statements that were refused memory while others ran, and ran again alone.";
        out.one("statements_run_alone_total", help, host.ran_alone());
    }
    out.one("sessions", "Sessions.", shared.sessions.count() as u64);
    let most = super::stream::streams_max(shared.config.memory_limit_bytes);
    let streams = most - shared.streams.available_permits();
    out.one("streams", "Results on their way.", streams as u64);
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
    let running = running.into_iter().map(|(state, n)| labelled("state", state, n));
    out.each("operands", "Operands of statements that run, by state.", running);
    out.one("operands_run_total", "Operands that threads ran.", host.runtime().operands());
    out.one("quota_limit_bytes", "The memory limit.", quota.limit());
    out.one("quota_used_bytes", "Bytes reserved or charged.", quota.used());
    out.one("quota_peak_bytes", "The most bytes ever in use.", quota.peak());
    out.one("pool_cached_bytes", "Bytes of free buffers.", quota.cached());
}

fn spill(host: &Host, out: &mut Exposition) {
    let store = host.runtime().store();
    let spilled = store.figures();
    out.one("spill_files", "Files of spilled chunks.", spilled.files);
    out.one("spill_used_bytes", "Bytes of scratch set aside.", spilled.bytes);
    out.one("spill_limit_bytes", "The limit of scratch.", store.limit());
    out.one("spilled_files_total", "Chunks spilled.", spilled.spilled_files);
    out.one("spilled_bytes_total", "Bytes spilled.", spilled.spilled_bytes);
    let corrupt = "Reads of spilled chunks that were not what had been written.";
    out.one("spill_corrupt_total", corrupt, spilled.corrupt);
    let read_back = "Bytes of spilled chunks that were read again.";
    out.one("spill_read_bytes_total", read_back, spilled.read_back_bytes);
}

/// Reads from storage, and results on disk.
fn storage(host: &Host, out: &mut Exposition) {
    let (requests, bytes, _) = host.counters().snapshot();
    out.one("storage_requests_total", "Requests to storage.", requests);
    out.one("storage_read_bytes_total", "Bytes read from storage.", bytes);
    let (used, written) = (host.scratch().used(), host.scratch().written());
    out.one("scratch_used_bytes", "Bytes of results on disk.", used);
    out.one("scratch_written_bytes_total", "Bytes of results that went to disk.", written);
}

fn durable(host: &Host, out: &mut Exposition) {
    let (durable, did) = (host.durable(), host.durable().did());
    out.one("durable_limit_bytes", "Upper bound on the bytes of durable chunks.", durable.limit());
    out.one("durable_used_bytes", "Known bytes of durable chunks.", durable.bytes());
    out.one("durable_written_total", "Operands whose chunks were stored.", did.written);
    out.one("durable_written_bytes_total", "Bytes of them.", did.bytes_written);
    out.one("durable_reused_total", "Operands whose stored chunks were used.", did.reused);
    out.one("durable_reused_bytes_total", "Bytes of them.", did.bytes_reused);
    let seconds = "Seconds of threads that computing them had taken.";
    out.each("durable_reused_seconds_total", seconds, [(String::new(), did.seconds_reused)]);
    let corrupt = "Stored chunks that were missing or differed from what was written.";
    out.one("durable_corrupt_total", corrupt, did.corrupt);
    out.one("durable_skipped_total", "Operands not stored for lack of space.", did.skipped);
    out.one("durable_failed_total", "Writes of durable chunks that failed.", did.failed);
    out.one("durable_removed_total", "Statements whose stored chunks were evicted.", did.removed);
}

fn workers(members: &[Member], out: &mut Exposition) {
    let all: [OfWorker; 17] = [
        ("up", "1 for a worker that responds.", |m| u64::from(m.state.is_here())),
        ("threads", "Threads that compute.", |m| u64::from(m.hello.threads)),
        ("memory_limit_bytes", "The memory limit.", |m| m.hello.memory_bytes),
        ("memory_used_bytes", "Bytes in use.", |m| m.load.used_bytes),
        ("orders", "Orders that run.", |m| m.load.orders),
        ("operands_total", "Operands that ran.", |m| m.load.operands),
        ("chunks", "Chunks retained for other workers.", |m| m.load.chunks),
        ("chunk_bytes", "Their bytes.", |m| m.load.chunk_bytes),
        ("retained", "Operands of finished plans whose chunks are retained.", |m| m.load.retained),
        ("retained_bytes", "Bytes of these chunks.", |m| m.load.retained_bytes),
        ("reused_total", "Operands whose retained chunks were used again.", |m| m.load.reused),
        ("fetched_bytes_total", "Bytes of chunks fetched from others.", |m| m.load.fetched_bytes),
        ("served_bytes_total", "Bytes of chunks given to others.", |m| m.load.served_bytes),
        ("written_bytes_total", "Bytes of outputs written.", |m| m.load.written_bytes),
        ("row_tasks_total", "Tasks of rows that ended well.", |m| m.load.row_tasks_done),
        ("rows_total", "Rows that tasks sent.", |m| m.load.rows_sent),
        ("row_bytes_total", "Bytes of these rows.", |m| m.load.row_bytes),
    ];
    for (name, help, f) in all {
        let values = members.iter().map(|m| labelled("worker", m.number, f(m)));
        out.each(&format!("worker_{name}"), help, values);
    }
}

fn waiting(waiting: &Waiting, out: &mut Exposition) {
    let all = [
        (
            "operands",
            "Operands, and tasks of rows, of running statements that no thread of a worker runs yet.",
            waiting.operands as f64,
        ),
        (
            "seconds",
            "Seconds that one thread needs for the waiting operands, approximately.",
            waiting.seconds,
        ),
        (
            "operand_seconds_total",
            "Waiting operands times the seconds that they waited.",
            waiting.operand_seconds,
        ),
    ];
    for (name, help, value) in all {
        out.each(&format!("cluster_waiting_{name}"), help, [(String::new(), value)]);
    }
}

fn durations(shared: &Shared, out: &mut String) {
    let requests = lock(&shared.metrics.requests).clone();
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
