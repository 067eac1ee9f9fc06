//! The expected and the measured cost of a plan: the end of its explanation.
//!
//! ```text
//! expected: peak 48.5 MiB, 512.0 MiB read in 64 requests, nothing spilled
//! measured: peak 40.3 MiB, 512.0 MiB read in 64 requests, nothing spilled
//! ```

use crate::session::Session;
use serde_json::{Value, json};
use tessera_exec::durable::Did;
use tessera_exec::schedule::Stats;
use tessera_exec::task::{Sources, is_remote, requests};
use tessera_planner::cost::threads_for;
use tessera_planner::estimate::{Estimate, Machine, estimate};
use tessera_planner::explain;
use tessera_planner::tile::Tiling;

/// The expected cost of a plan that runs alone on the machine.
pub(super) struct Expected {
    estimate: Estimate,
    /// Requests to storage, if nothing is read twice.
    requests: u64,
    /// Threads that compute.
    threads: u64,
}

impl Session {
    /// Estimates the cost of a plan.
    pub(super) fn expected(&self, tiling: &Tiling, sources: &Sources) -> Expected {
        let runtime = &self.host.runtime;
        let (settings, limit_bytes) = (self.settings(), runtime.quota().limit());
        let most = runtime.config().threads;
        let threads = settings.threads.unwrap_or_else(|| threads_for(tiling, most)) as u64;
        let machine = Machine {
            limit_bytes: settings.query_memory_bytes.map_or(limit_bytes, |b| b.min(limit_bytes)),
            threads,
            spills: runtime.store().is_on(),
            remote: is_remote(tiling, sources),
        };
        Expected {
            estimate: estimate(tiling, &machine),
            requests: requests(tiling, sources),
            threads,
        }
    }
}

impl Expected {
    pub(super) fn text(&self) -> String {
        let Estimate { peak_bytes, bytes_read, bytes_spilled } = self.estimate;
        let threads = match self.threads {
            1 => "threads: 1\n".to_string(),
            n => format!("threads: up to {n}\n"),
        };
        threads + &line("expected", [peak_bytes, bytes_read, self.requests, bytes_spilled])
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "threads": self.threads,
            "peak_bytes": self.estimate.peak_bytes,
            "bytes_read": self.estimate.bytes_read,
            "requests": self.requests,
            "bytes_spilled": self.estimate.bytes_spilled,
        })
    }
}

/// Peak, bytes read, requests, bytes spilled.
fn line(what: &str, [peak, read, requests, spilled]: [u64; 4]) -> String {
    let spilled = match spilled {
        0 => "nothing".into(),
        n => explain::bytes(n),
    };
    format!(
        "{what}: peak {}, {} read in {requests} request{}, {spilled} spilled\n",
        explain::bytes(peak),
        explain::bytes(read),
        if requests == 1 { "" } else { "s" },
    )
}

/// The expected work of workers, as the next line.
pub(super) fn workers(e: &tessera_cluster::Expected, writes: bool) -> String {
    format!(
        "   workers: {}, {} orders in {} steps; {} moved between them{}\n",
        e.workers,
        e.orders,
        e.steps,
        explain::bytes(e.bytes_moved),
        if writes { "; they write the output" } else { "" }
    )
}

/// The expected work of workers as JSON.
pub(super) fn workers_json(e: &tessera_cluster::Expected, writes: bool) -> Value {
    json!({
        "workers": e.workers,
        "orders": e.orders,
        "steps": e.steps,
        "bytes_moved": e.bytes_moved,
        "write_output": writes,
    })
}

/// The measurements of a run, below the plan.
pub(in crate::session) fn measurements(m: &Stats) -> String {
    let mut text = line("measured", [m.peak_bytes, m.bytes_read, m.requests, m.bytes_spilled]);
    text.push_str(&format!(
        "   {} loads of {} in storage, {} evicted, {} run again\n",
        m.reads,
        explain::bytes(m.bytes_fetched),
        m.evictions,
        m.reruns
    ));
    if m.spills > 0 {
        text.push_str(&format!(
            "   {} chunks spilled, {} read back\n",
            m.spills,
            explain::bytes(m.bytes_read_back)
        ));
    }
    let d = &m.durable;
    if *d != Did::default() {
        text.push_str(&format!(
            "   durable: {} operands ({}) written, {} ({}) used again, {} corrupt\n",
            d.written,
            explain::bytes(d.bytes_written),
            d.reused,
            explain::bytes(d.bytes_reused),
            d.corrupt
        ));
    }
    if let Some(t) = &m.elsewhere {
        text.push_str(&format!(
            "   workers: {}, {} orders; moved {} between them ({} expected); {} lost, {} operands assigned again, {} orders copied\n",
            t.workers,
            t.orders,
            explain::bytes(t.bytes_moved),
            explain::bytes(t.bytes_expected),
            t.lost,
            t.again,
            t.copies
        ));
        if t.objects_written > 0 {
            text.push_str(&format!(
                "   workers wrote {} in {} objects; {} fetched by the server\n",
                explain::bytes(t.bytes_written),
                t.objects_written,
                explain::bytes(t.bytes_home)
            ));
        }
        if t.retained > 0 {
            text.push_str(&format!(
                "   {} operands used again: workers had retained their chunks\n",
                t.retained
            ));
        }
        if t.handed_over > 0 {
            text.push_str(&format!(
                "   {} operands' chunks handed over by workers that left\n",
                t.handed_over
            ));
        }
        if t.bytes_relayed > 0 {
            text.push_str(&format!(
                "   {} passed on by the server: workers do not reach each other (SHOW WORKERS)\n",
                explain::bytes(t.bytes_relayed)
            ));
        }
        for (worker, of) in &t.each {
            text.push_str(&format!(
                "   worker {worker}: {} orders, {} operands, {:.6} s, peak {}, {} fetched\n",
                of.orders,
                of.operands,
                of.seconds,
                explain::bytes(of.peak_bytes),
                explain::bytes(of.bytes_moved)
            ));
        }
    }
    for (i, s) in m.stages.iter().enumerate() {
        text.push_str(&format!(
            "   #{i} {}: {} operands, {:.6} s\n",
            s.name, s.operands, s.seconds
        ));
    }
    text
}

/// The measurements as JSON; the first four names are those of the expected cost.
pub(crate) fn measured(m: &Stats) -> Value {
    json!({
        "peak_bytes": m.peak_bytes,
        "bytes_read": m.bytes_read,
        "requests": m.requests,
        "bytes_spilled": m.bytes_spilled,
        "bytes_fetched": m.bytes_fetched,
        "reads": m.reads,
        "reruns": m.reruns,
        "evictions": m.evictions,
        "spills": m.spills,
        "bytes_read_back": m.bytes_read_back,
        "durable": durable(&m.durable),
        "cluster": m.elsewhere.as_ref().map(|t| json!({
            "workers": t.workers,
            "orders": t.orders,
            "bytes_moved": t.bytes_moved,
            "bytes_relayed": t.bytes_relayed,
            "bytes_home": t.bytes_home,
            "objects_written": t.objects_written,
            "bytes_written": t.bytes_written,
            "no_output": t.no_output,
            "bytes_expected": t.bytes_expected,
            "lost": t.lost,
            "operands_again": t.again,
            "operands_handed_over": t.handed_over,
            "copies": t.copies,
            "operands_retained": t.retained,
            "each": t.each.iter().map(|(worker, of)| json!({
                "worker": worker,
                "orders": of.orders,
                "operands": of.operands,
                "seconds": of.seconds,
                "peak_bytes": of.peak_bytes,
                "bytes_moved": of.bytes_moved,
            })).collect::<Vec<_>>(),
        })),
        "stages": m.stages.iter().map(|s| json!({
            "name": s.name, "operands": s.operands, "seconds": s.seconds,
        })).collect::<Vec<_>>(),
    })
}

/// Durable chunks that were written and reused, as servers report them in answers.
pub fn durable(did: &Did) -> Value {
    json!({
        "written": did.written,
        "bytes_written": did.bytes_written,
        "skipped": did.skipped,
        "failed": did.failed,
        "reused": did.reused,
        "bytes_reused": did.bytes_reused,
        "seconds_reused": did.seconds_reused,
        "corrupt": did.corrupt,
    })
}
