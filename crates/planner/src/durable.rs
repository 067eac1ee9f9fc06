//! Selects the chunks that are worth storing beyond the life of the process: those that are expensive to recompute.
//!
//! A stored chunk costs time and space now; a chunk that is not stored costs time after a failure. A chunk is worth
//! storing if recomputing it from the stored chunks below it takes several times as long as writing it:
//!
//! ```text
//!   load ──▶ fused (partial sums) ──▶ combine ──▶ combine, finish ──▶ result
//!            6 ms for 3 KiB           16 × that   …
//!            not worth a file         worth it    from sixteen files it takes 8 ms: not worth it
//! ```
//! A smaller factor is enough where the plan spreads (a chunk has several readers, goes to a product, a factorisation
//! or a merge, or is a result). A chunk that is computed cell by cell for a single reader is never stored.

use crate::cost::{chunk_bytes, chunk_ns, work_us};
use crate::plan::{FusedOutput, OutputRef, Stage, StageId, Task};
use crate::tile::Tiling;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Policy for storing chunks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// No chunk is stored.
    None,
    /// Chunks that are expensive to recompute are stored.
    #[default]
    Auto,
    /// All computed chunks are stored; chunks that are only read remain in their source.
    All,
}

impl Durability {
    /// Name of the setting.
    pub fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Auto => "auto",
            Durability::All => "all",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Durability::None, Durability::Auto, Durability::All];
        let found = all.into_iter().find(|d| d.name().eq_ignore_ascii_case(text.trim()));
        found.ok_or_else(|| format!("`{text}` is not one of auto, all, none"))
    }
}

/// A plan of less work than this, in microseconds, is cheap to run again.
const WORK_US_MIN: u64 = 1_000_000;
/// Fixed cost of a file or an object in nanoseconds: a name, a wait for the disk or a request.
const KEEP_NS: f64 = 5e6;
/// Nanoseconds for each byte that is written.
const KEEP_BYTE_NS: f64 = 2.0;
/// Nanoseconds for loading a stored chunk, and for each of its bytes.
const LOAD_NS: f64 = 5e5;
const LOAD_BYTE_NS: f64 = 1.0;
/// Recomputing a chunk must take this many times as long as storing it.
const WORTH: f64 = 8.0;
/// [`WORTH`] where the plan spreads.
const WORTH_WIDE: f64 = 2.0;

/// Returns for each stage of a plan whether its chunks are stored.
pub fn picks(tiling: &Tiling, durability: Durability) -> Vec<bool> {
    let stages = &tiling.plan().stages;
    let makes = |s: &Stage| !matches!(s.task, Task::Load { .. } | Task::Const(_));
    match durability {
        Durability::None => vec![false; stages.len()],
        Durability::All => stages.iter().map(makes).collect(),
        Durability::Auto if work_us(tiling) < WORK_US_MIN => vec![false; stages.len()],
        Durability::Auto => {
            let mut picked: Vec<bool> = Vec::with_capacity(stages.len());
            // Cost of obtaining one chunk of each stage again.
            let mut again: Vec<f64> = Vec::with_capacity(stages.len());
            for (i, stage) in stages.iter().enumerate() {
                let made = chunk_ns(tiling, stage) + below(stage, i, stages, &again);
                let bytes = chunk_bytes(stage);
                let (keep, load) = (KEEP_NS + KEEP_BYTE_NS * bytes, LOAD_NS + LOAD_BYTE_NS * bytes);
                let wide = is_wide(tiling, StageId(i as u32));
                let worth = if wide { WORTH_WIDE } else { WORTH };
                let pick = makes(stage) && (wide || !is_elementwise(stage)) && made > worth * keep;
                picked.push(pick);
                again.push(if pick { load } else { made });
            }
            picked
        }
    }
}

/// Nanoseconds for the inputs of an operand. A scan's carry needs all chunks before it, on average half of them. Of
/// other inputs, an operand reads as many chunks as the input has for each operand, at least one.
fn below(stage: &Stage, number: usize, stages: &[Stage], again: &[f64]) -> f64 {
    let count = stage.grid.count().max(1) as f64;
    let of = |from: usize| {
        let chunks = stages[from].grid.count() as f64 / count;
        again[from] * chunks.max(1.0)
    };
    let mut seen: Vec<usize> = Vec::new();
    let mut ns = 0.0;
    for input in &stage.inputs {
        let from = input.from.stage.0 as usize;
        if from != number && !seen.contains(&from) {
            seen.push(from);
            ns += of(from);
        }
    }
    match stage.task {
        Task::Scan { axis, .. } => ns * (1.0 + stage.grid.axes[axis].count() as f64 / 2.0),
        _ => ns,
    }
}

/// True if the output of a stage spreads: it is a result, several operands read a chunk of it, or it is exchanged.
fn is_wide(tiling: &Tiling, id: StageId) -> bool {
    let plan = tiling.plan();
    let exchanges = |s: &Stage| {
        let inputs = &s.inputs;
        let exchange =
            matches!(s.task, Task::Contract { .. } | Task::Factor { .. } | Task::Merge { .. });
        exchange && inputs.iter().any(|i| i.from.stage == id)
    };
    if plan.results.iter().any(|r| r.stage == id) || plan.stages.iter().any(exchanges) {
        return true;
    }
    let stage = plan.stage(id);
    // A chunk from the middle represents all chunks.
    let index: Vec<u64> = stage.grid.axes.iter().map(|a| a.count() / 2).collect();
    (0..stage.outputs.len() as u32)
        .any(|output| tiling.readers(OutputRef { stage: id, output }, &index) > 1)
}

/// True if a stage computes its cells one by one, or only moves them.
fn is_elementwise(stage: &Stage) -> bool {
    match &stage.task {
        Task::Fused(f) => {
            let stores = |o: &FusedOutput| !matches!(o, FusedOutput::Reduce { .. });
            f.outputs.iter().all(stores)
        }
        Task::Copy => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::build::Builder;
    use crate::catalog::SourceRef;
    use crate::compile;
    use crate::config::Config;
    use crate::dtype::DType;
    use crate::grid::Grid;
    use crate::ir::NodeId;
    use crate::optimize::Rooted;
    use crate::program::ScalarOp;
    use crate::reduce::ReduceKind;
    use std::sync::Arc;

    fn plan(rows: u64, f: impl Fn(&mut Builder, NodeId) -> NodeId) -> Tiling {
        let config = Config::default();
        let mut b = Builder::new(config.clone());
        let (shape, chunk) = ([rows, 1024], [1024, 1024]);
        let source = SourceRef {
            url: "x".into(),
            path: String::new(),
            dtype: DType::Float64,
            shape: shape.as_slice().into(),
            grid: Grid::regular(&shape, &chunk),
            nullable: false,
            version: None,
            plain: false,
        };
        let x = b.load(Arc::new(source)).unwrap();
        let root = f(&mut b, x);
        compile(Rooted { graph: b.graph, roots: vec![root] }, &config, &mut |_, _| {}).unwrap()
    }

    fn picked(t: &Tiling, durability: Durability) -> Vec<usize> {
        let all = picks(t, durability);
        (0..all.len()).filter(|&i| all[i]).collect()
    }

    #[test]
    fn sums_of_many_chunks_are_stored_once_for_each_branch_of_the_tree() {
        let mean = |b: &mut Builder, x| b.reduce_axes(x, ReduceKind::Mean, &[0, 1]).unwrap();
        let t = plan(1 << 30, mean);
        // load, partial sums, then combining by sixteens: a chunk takes some 7 ms, and sixteen of them are worth a
        // file. The next level is not, until enough of those files have been combined.
        let kept = picked(&t, Durability::Auto);
        assert_eq!(kept[..2], [2, 4], "{kept:?}");
        assert_eq!(picked(&t, Durability::All), (1..t.plan().stages.len()).collect::<Vec<_>>());
        assert_eq!(picked(&t, Durability::None), Vec::<usize>::new());
        // A short plan is run again.
        assert_eq!(picked(&plan(1 << 10, mean), Durability::Auto), Vec::<usize>::new());
    }

    #[test]
    fn intermediate_steps_are_not_stored() {
        // The exponentials pass through memory, each chunk for a single reader; the sorted lines are expensive.
        let t = plan(1 << 20, |b, x| {
            let y = b.map(ScalarOp::Exp, &[x]).unwrap();
            let y = b.rechunk(y, &[512, 1024]).unwrap();
            b.reduce_axes(y, ReduceKind::Mean, &[0, 1]).unwrap()
        });
        let kept = picked(&t, Durability::Auto);
        for (i, stage) in t.plan().stages.iter().enumerate() {
            let single = !is_wide(&t, StageId(i as u32));
            assert!(!(kept.contains(&i) && single && is_elementwise(stage)), "{i} of {kept:?}");
        }
        assert!(!kept.is_empty());
    }

    #[test]
    fn durability_is_set_by_name() {
        for d in [Durability::None, Durability::Auto, Durability::All] {
            assert_eq!(d.to_string().to_uppercase().parse(), Ok(d));
        }
        assert_eq!(
            "some".parse::<Durability>().unwrap_err(),
            "`some` is not one of auto, all, none"
        );
    }
}
