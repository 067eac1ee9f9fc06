//! The progress of a statement, from the scheduler's own counts.

use super::StatementState;
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tessera_exec::operand::OperandState;
use tessera_exec::run::Watch;
use tessera_exec::schedule::Stats;

/// Upper bound on the remembered stages of finished plans.
const STAGES_MAX: usize = 1000;

/// The progress of a statement. All numbers are counts except [`Progress::eta_s`].
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The state of the statement.
    pub state: StatementState,
    /// The running statement of the script, from 1.
    pub statement: usize,
    /// Number of statements in the script.
    pub statements: usize,
    /// Operands of the plans that began. It may grow, because later plans are not included.
    pub operands_total: u64,
    /// Operands that are done.
    pub operands_done: u64,
    /// Operands known to the scheduler, by state, in the order of [`OperandState::ALL`].
    pub operands: [u64; 8],
    /// Bytes of the chunks that loads made.
    pub bytes_read: u64,
    /// Bytes written to the scratch directory.
    pub bytes_spilled: u64,
    /// Operands that ran again, because their chunk had been dropped or an attempt had failed.
    pub recomputed: u64,
    /// Seconds from the request to the end, or until now.
    pub elapsed_s: f64,
    /// Estimated seconds left of the running plans, from the time that operands of the same stage took; `None` before
    /// there is a basis for it.
    pub eta_s: Option<f64>,
}

impl Progress {
    pub(super) fn new(state: StatementState) -> Self {
        Progress {
            state,
            statement: 1,
            statements: 1,
            operands_total: 0,
            operands_done: 0,
            operands: [0; 8],
            bytes_read: 0,
            bytes_spilled: 0,
            recomputed: 0,
            elapsed_s: 0.0,
            eta_s: None,
        }
    }

    /// The part that is done, from 0 to 1; `None` while the total is unknown.
    pub fn fraction(&self) -> Option<f64> {
        match self.state {
            StatementState::Finished => Some(1.0),
            _ if self.operands_total == 0 => None,
            _ => Some((self.operands_done as f64 / self.operands_total as f64).min(1.0)),
        }
    }

    /// Operands that fetch or compute now: a cancelled statement still waits for these.
    pub fn running(&self) -> u64 {
        self.operands[OperandState::Running as usize]
            + self.operands[OperandState::Cancelling as usize]
    }

    /// The `progress` object of HTTP responses.
    pub fn to_json(&self) -> Value {
        let by_state: Map<String, Value> = OperandState::ALL
            .iter()
            .zip(self.operands)
            .map(|(s, n)| (s.name().to_string(), n.into()))
            .collect();
        json!({
            "statement": self.statement,
            "statements": self.statements,
            "operands": {"total": self.operands_total, "done": self.operands_done, "states": by_state},
            "bytes_read": self.bytes_read,
            "bytes_spilled": self.bytes_spilled,
            "recomputed": self.recomputed,
            "elapsed_s": self.elapsed_s,
            "eta_s": self.eta_s,
        })
    }

    /// Reads the output of [`Progress::to_json`]; missing fields are zero.
    pub fn from_json(state: StatementState, value: &Value) -> Self {
        let number = |v: &Value| v.as_u64().unwrap_or(0);
        let operands = &value["operands"];
        let mut progress = Progress {
            statement: number(&value["statement"]).max(1) as usize,
            statements: number(&value["statements"]).max(1) as usize,
            operands_total: number(&operands["total"]),
            operands_done: number(&operands["done"]),
            bytes_read: number(&value["bytes_read"]),
            bytes_spilled: number(&value["bytes_spilled"]),
            recomputed: number(&value["recomputed"]),
            elapsed_s: value["elapsed_s"].as_f64().unwrap_or(0.0),
            eta_s: value["eta_s"].as_f64(),
            ..Progress::new(state)
        };
        for (n, s) in progress.operands.iter_mut().zip(OperandState::ALL) {
            *n = number(&operands["states"][s.name()]);
        }
        progress
    }

    fn count(&mut self, stats: &Stats) {
        for (n, s) in self.operands.iter_mut().zip(OperandState::ALL) {
            *n += stats.states.now(s);
        }
        self.bytes_read += stats.bytes_read;
        self.bytes_spilled += stats.bytes_spilled;
        self.recomputed += stats.reruns + stats.retries;
    }
}

/// Sums of a statement's finished plans.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    operands: u64,
    /// Operands that ran, of these.
    done: u64,
    stats: Vec<Stats>,
}

impl Totals {
    pub(super) fn add(&mut self, plan: &Plan, stats: &Stats) {
        self.done = self.done.saturating_add(plan.total());
        self.count(plan, stats);
    }

    /// Adds a plan that was dropped, with the counts that were last read.
    pub(super) fn add_cut(&mut self, plan: &Plan) {
        let last = plan.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stats) = last {
            self.done = self.done.saturating_add(plan.done(&stats));
            self.count(plan, &stats);
        }
    }

    fn count(&mut self, plan: &Plan, stats: &Stats) {
        self.operands = self.operands.saturating_add(plan.total());
        // Only one sum is stored: a statement may have any number of plans.
        match self.stats.first_mut() {
            None => self.stats.push(stats.clone()),
            Some(sum) => {
                sum.peak_bytes = sum.peak_bytes.max(stats.peak_bytes);
                sum.reads += stats.reads;
                sum.bytes_read += stats.bytes_read;
                sum.requests += stats.requests;
                sum.bytes_fetched += stats.bytes_fetched;
                sum.reruns += stats.reruns;
                sum.evictions += stats.evictions;
                sum.retries += stats.retries;
                sum.spills += stats.spills;
                sum.bytes_spilled += stats.bytes_spilled;
                sum.bytes_read_back += stats.bytes_read_back;
                // Stored chunks are counted for the whole statement, so the last plan has the total.
                sum.durable = stats.durable;
                sum.states.add(&stats.states);
                let room = STAGES_MAX.saturating_sub(sum.stages.len());
                sum.stages.extend(stats.stages.iter().take(room).cloned());
            }
        }
    }

    /// The sums of the plans, and the highest peak.
    pub(super) fn stats(self) -> Stats {
        self.stats.into_iter().next().unwrap_or_default()
    }

    pub(super) fn progress(&self, state: StatementState) -> Progress {
        let mut progress = Progress {
            operands_total: self.operands,
            operands_done: self.done,
            ..Progress::new(state)
        };
        self.stats.iter().for_each(|s| progress.count(s));
        progress
    }
}

/// Something that runs a plan.
pub trait Watched: Send + Sync + std::fmt::Debug {
    /// The counts so far; `None` once it is over.
    fn stats(&self) -> Option<Stats>;
}

impl Watched for Watch {
    fn stats(&self) -> Option<Stats> {
        Watch::stats(self)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) number: u64,
    watch: Arc<dyn Watched>,
    stages: Vec<u64>,
    started: Instant,
    /// The counts that were last read; clones share them.
    last: Arc<Mutex<Option<Stats>>>,
}

impl Plan {
    pub(super) fn new(number: u64, watch: Arc<dyn Watched>, stages: Vec<u64>) -> Self {
        Plan { number, watch, stages, started: Instant::now(), last: Arc::default() }
    }

    /// The counts so far; `None` once it is over.
    pub(super) fn stats(&self) -> Option<Stats> {
        let stats = self.watch.stats()?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(stats.clone());
        Some(stats)
    }

    fn done(&self, stats: &Stats) -> u64 {
        stats.stages.iter().zip(&self.stages).map(|(s, total)| s.operands.min(*total)).sum()
    }

    fn total(&self) -> u64 {
        self.stages.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub(super) fn add_to(&self, progress: &mut Progress) {
        let total = self.total();
        progress.operands_total = progress.operands_total.saturating_add(total);
        // A plan that just ended counts as done; its end is about to be reported.
        let Some(stats) = self.stats() else {
            progress.operands_done = progress.operands_done.saturating_add(total);
            return;
        };
        progress.count(&stats);
        let ran: Vec<(u64, f64)> = stats.stages.iter().map(|s| (s.operands, s.seconds)).collect();
        progress.operands_done = progress.operands_done.saturating_add(self.done(&stats));
        if let Some(eta) = eta(&self.stages, &ran, self.started.elapsed().as_secs_f64()) {
            progress.eta_s = Some(progress.eta_s.unwrap_or(0.0) + eta);
        }
    }
}

/// Seconds left of a plan with `totals` operands for each stage. Of each stage, `ran` has the operands that ran and the
/// thread seconds they took, in `elapsed_s` seconds.
///
/// An operand that has not run is estimated by the average of its stage, or of all others; threads are assumed to work
/// at the same rate as until now.
pub(super) fn eta(totals: &[u64], ran: &[(u64, f64)], elapsed_s: f64) -> Option<f64> {
    let (operands, busy) = ran.iter().fold((0, 0.0), |(n, s), (m, t)| (n + m, s + t));
    if operands == 0 || busy <= 0.0 || elapsed_s <= 0.0 {
        return None;
    }
    let average = busy / operands as f64;
    let work: f64 = totals
        .iter()
        .zip(ran)
        .map(|(&total, &(n, seconds))| {
            let each = if n > 0 { seconds / n as f64 } else { average };
            total.saturating_sub(n) as f64 * each
        })
        .sum();
    Some(work * elapsed_s / busy)
}
