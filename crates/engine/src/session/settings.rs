//! `SET tessera.…`: the settings of a session.

use crate::config::{Config, MEMORY_LEAST};
use crate::error::Error;
use crate::session::failure::Failure;
use crate::session::spread::Spread;
use std::collections::BTreeMap;
use tessera_cells::lift::Density;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::durable::Durability;

/// Smallest and largest chunk target: one cell, and a size whose operands fit into small machines.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 8..=(1 << 30);

/// Upper bound on the cells of small chunks that one operand combines.
const BATCH_CELLS_MAX: u64 = 1 << 30;

/// The value of a setting that is chosen by the cost of each plan.
const AUTO: &str = "auto";
/// The value of a setting that is off.
const NONE: &str = "none";

#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    /// Settings of the planner.
    pub(super) plan: PlanConfig,
    /// Do cell blocks stay dense?
    pub(super) lift: Density,
    /// Selects the chunks that are stored for a run after a failure.
    pub(super) durability: Durability,
    /// Threads that compute a statement's chunks; `None` chooses by the cost of the plan.
    pub(super) threads: Option<usize>,
    /// Time limit of each statement in seconds; `None` leaves only the server's limit.
    pub(super) query_timeout_s: Option<u64>,
    /// Memory limit of each statement in bytes; `None` allows all of the server's memory.
    pub(super) query_memory_bytes: Option<u64>,
    /// Selects the plans that run on the workers of a cluster.
    pub(super) spread: Spread,
    /// Do plans use chunks that workers retain of other statements, and leave theirs?
    pub(super) reuse: bool,
    threads_max: usize,
    /// The values that were SET, as written, by name without the prefix.
    given: BTreeMap<String, String>,
}

impl Settings {
    pub(super) fn new(config: &Config) -> Self {
        let Config { lift, durability, threads, cached_bytes, memory_limit_bytes, .. } = *config;
        let list_bytes_max = memory_limit_bytes / 4;
        let plan = PlanConfig { cached_bytes, list_bytes_max, ..PlanConfig::default() };
        Settings {
            plan,
            lift,
            durability,
            reuse: true,
            threads_max: threads,
            ..Settings::default()
        }
    }

    /// Sets `tessera.chunk_bytes_target` and the other settings; the prefix is optional.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let fail = |reason: String| Error::stage(Failure::Setting { name: name.into(), reason });
        let bare = name.strip_prefix("tessera.").unwrap_or(name);
        match bare {
            "chunk_bytes_target" => {
                let bytes = crate::config::parse_bytes(value).map_err(|e| fail(e.to_string()))?;
                if !CHUNK_BYTES.contains(&bytes) {
                    return Err(fail(format!(
                        "{bytes} is not from {} to {}",
                        CHUNK_BYTES.start(),
                        CHUNK_BYTES.end()
                    )));
                }
                self.plan.chunk_bytes_target = bytes;
            }
            "batch_cells" => {
                let cells = value.trim().replace('_', "").parse::<u64>().ok();
                let cells = cells.filter(|n| *n <= BATCH_CELLS_MAX);
                if cells.is_none() && value.trim() != AUTO {
                    return Err(fail(format!(
                        "`{value}` is neither '{AUTO}' nor a number of cells from 0 to {BATCH_CELLS_MAX}"
                    )));
                }
                self.plan.batch_cells = cells;
            }
            "threads" if value.trim() == AUTO => self.threads = None,
            "threads" => {
                let threads = value.trim().parse::<usize>().ok();
                let Some(threads) = threads.filter(|n| *n > 0) else {
                    return Err(fail(format!(
                        "`{value}` is neither '{AUTO}' nor a number of threads from 1"
                    )));
                };
                // A statement may be recovered by a process that has fewer threads.
                self.threads = Some(threads.min(self.threads_max));
            }
            "query_timeout" => {
                let seconds = value.trim().parse::<u64>().ok();
                let Some(seconds) = seconds.filter(|n| *n > 0) else {
                    return Err(fail(format!("`{value}` is not a whole number of seconds from 1")));
                };
                self.query_timeout_s = Some(seconds);
            }
            "query_memory_limit" => {
                let bytes = crate::config::parse_bytes(value).map_err(|e| fail(e.to_string()))?;
                if bytes < MEMORY_LEAST {
                    return Err(fail("the minimum is 16MiB".into()));
                }
                self.query_memory_bytes = Some(bytes);
            }
            "lift" => self.lift = value.parse().map_err(fail)?,
            "durability" => self.durability = value.parse().map_err(fail)?,
            "spread" => self.spread = value.parse().map_err(fail)?,
            "reuse" => {
                self.reuse = match value.trim().to_ascii_lowercase().as_str() {
                    AUTO => true,
                    NONE => false,
                    _ => return Err(fail(format!("`{value}` is neither '{AUTO}' nor '{NONE}'"))),
                };
            }
            _ => return Err(fail("unknown setting".into())),
        }
        self.given.insert(bare.into(), value.into());
        Ok(())
    }

    /// The values that were SET: a session that assumes them has the same settings.
    pub(super) fn given(&self) -> &BTreeMap<String, String> {
        &self.given
    }

    pub(super) fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "tessera.chunk_bytes_target",
                crate::config::format_bytes(self.plan.chunk_bytes_target),
            ),
            ("tessera.batch_cells", self.plan.batch_cells.map_or(AUTO.into(), |n| n.to_string())),
            ("tessera.threads", self.threads.map_or(AUTO.into(), |n| n.to_string())),
            (
                "tessera.query_timeout",
                self.query_timeout_s.map_or("none".into(), |seconds| seconds.to_string()),
            ),
            (
                "tessera.query_memory_limit",
                self.query_memory_bytes.map_or("none".into(), crate::config::format_bytes),
            ),
            ("tessera.lift", self.lift.to_string()),
            ("tessera.durability", self.durability.to_string()),
            ("tessera.spread", self.spread.name().into()),
            ("tessera.reuse", if self.reuse { AUTO } else { NONE }.into()),
        ]
    }
}
