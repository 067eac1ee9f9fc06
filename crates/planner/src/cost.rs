//! The cost of a plan: operands, bytes and approximate time. EXPLAIN reports it. It also decides the number of threads
//! of a plan, whether the calling thread runs the plan, and the number of small chunks per operand. All of these change
//! only how fast the result arrives, never its bits.
//!
//! Times are for one thread at the rates of the benchmarks on two cores of an AMD EPYC (Zen 4, AVX-512; see
//! `docs/performance.md`). Another machine is faster or slower by a factor, so times are reported as "about" and are
//! only compared with each other.

use crate::dtype::DType;
use crate::factor::Factor;
use crate::plan::{Fused, FusedInput, FusedOutput, Output, Stage, StageId, Task};
use crate::program::{Program, ScalarOp};
use crate::reduce::ReduceKind;
use crate::region::cells;
use crate::sort::SortWhat;
use crate::tile::Tiling;

/// Cost of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Operands over all stages; saturates.
    pub operands: u64,
    /// Bytes of array cells read from sources (decoded).
    pub bytes_loaded: u64,
    /// Peak bytes of the most demanding operand, without the chunks it reads.
    pub operand_bytes_max: u64,
    /// Bytes of the results.
    pub result_bytes: u64,
    /// Approximate time of one thread for the plan, in microseconds.
    pub work_us: u64,
    /// True if the calling thread runs the plan ([`is_small`]).
    pub here: bool,
}

/// Returns the cost of running a plan once.
pub fn cost(tiling: &Tiling) -> Cost {
    let plan = tiling.plan();
    let mut cost = Cost { work_us: work_us(tiling), here: is_small(tiling), ..Cost::default() };
    for (i, stage) in plan.stages.iter().enumerate() {
        let id = StageId(i as u32);
        cost.operands = cost.operands.saturating_add(stage.grid.count());
        if let Task::Load { source, .. } = &stage.task {
            let n = cells(&stage.grid.shape()).unwrap_or(u64::MAX);
            cost.bytes_loaded =
                cost.bytes_loaded.saturating_add(n.saturating_mul(source.dtype.size() as u64));
        }
        cost.operand_bytes_max = cost.operand_bytes_max.max(peak_max(tiling, id));
    }
    for r in &plan.results {
        let o = plan.output(*r);
        let n = cells(&o.grid.shape()).unwrap_or(u64::MAX);
        cost.result_bytes =
            cost.result_bytes.saturating_add(n.saturating_mul(o.cell_bytes() as u64));
    }
    cost
}

/// Peak bytes of a stage's most demanding operand. This is the operand of the first full chunk; another one exceeds it
/// by at most the bytes of its assembled partial chunks.
pub(crate) fn peak_max(tiling: &Tiling, stage: StageId) -> u64 {
    let grid = &tiling.plan().stage(stage).grid;
    let full: Vec<u64> =
        grid.axes.iter().map(|a| u64::from(a.first < a.chunk && a.count() > 1)).collect();
    tiling.peak(stage, &full)
}

/// Work up to which the calling thread runs a plan: waking another thread takes some ten microseconds, and the other
/// thread could take over only half of the work.
const HERE_US: u64 = 200;
/// [`HERE_US`] in nanoseconds: an operand that takes no longer is not worth cutting.
pub(crate) const HERE_NS: f64 = (HERE_US * 1000) as f64;
/// Upper bound on the operands of a plan that the calling thread runs: it schedules them itself.
const HERE_OPERANDS_MAX: u64 = 64;

/// Number of threads, at most `most`, that are worth waking for a plan: each gets at least half of [`HERE_US`] of work.
/// A plan that waits for storage gets `most`.
pub fn threads_for(tiling: &Tiling, most: usize) -> usize {
    if is_small(tiling) {
        return 1;
    }
    match tiling.plan().stages.iter().any(waits) {
        true => most,
        false => {
            usize::try_from(work_us(tiling) / (HERE_US / 2)).unwrap_or(most).clamp(1, most.max(1))
        }
    }
}

/// True if a stage waits for storage.
fn waits(stage: &Stage) -> bool {
    matches!(&stage.task, Task::Load { source, .. } if !source.is_resident())
}

/// True if a plan takes little longer than waking a thread, and does not wait for storage.
pub fn is_small(tiling: &Tiling) -> bool {
    let stages = &tiling.plan().stages;
    let operands = stages.iter().fold(0u64, |n, s| n.saturating_add(s.grid.count()));
    operands <= HERE_OPERANDS_MAX && !stages.iter().any(waits) && work_us(tiling) <= HERE_US
}

/// A plan within both limits, work and bytes read from arrays, does not queue behind other plans.
const QUICK_US: u64 = 20_000;
const QUICK_BYTES: u64 = 8 << 20;

/// True if a plan is so short that it runs at once, however many others are running.
pub fn is_quick(tiling: &Tiling) -> bool {
    let bytes = |s: &Stage| match &s.task {
        Task::Load { source, .. } if !source.is_resident() => {
            let n = cells(&s.grid.shape()).unwrap_or(u64::MAX);
            n.saturating_mul(source.dtype.size() as u64)
        }
        _ => 0,
    };
    let read = tiling.plan().stages.iter().fold(0u64, |n, s| n.saturating_add(bytes(s)));
    read <= QUICK_BYTES && work_us(tiling) <= QUICK_US
}

/// Approximate time of one thread for a plan, in microseconds; saturates.
pub fn work_us(tiling: &Tiling) -> u64 {
    let stages = tiling.plan().stages.iter();
    let ns: f64 = stages.map(|s| s.grid.count() as f64 * OPERAND_NS + stage_ns(tiling, s)).sum();
    (ns / 1000.0) as u64
}

/// Nanoseconds of one thread for each operand.
pub(crate) const OPERAND_NS: f64 = 1600.0;
/// Nanoseconds for each chunk, if an operand processes several.
const CHUNK_NS: f64 = 800.0;
/// Nanoseconds for each byte that is read from or written to memory.
const BYTE_NS: f64 = 0.04;
/// Nanoseconds for each decoded byte of a stored chunk: zstd, and the copy out of the page cache.
const STORED_BYTE_NS: f64 = 0.8;
/// Nanoseconds for each byte of a chunk without codecs: the copy out of the page cache.
const PLAIN_BYTE_NS: f64 = 0.15;
/// Nanoseconds for each read of a file.
const READ_NS: f64 = 500.0;
/// Nanoseconds for each multiply-add of a product, per byte of a cell.
const PRODUCT_BYTE_NS: f64 = 0.0047;

/// Approximate seconds of one thread for an average operand of a stage.
pub fn operand_s(tiling: &Tiling, stage: StageId) -> f64 {
    chunk_ns(tiling, tiling.plan().stage(stage)) / 1e9
}

/// Average nanoseconds of one thread for an operand of a stage.
pub(crate) fn chunk_ns(tiling: &Tiling, stage: &Stage) -> f64 {
    OPERAND_NS + stage_ns(tiling, stage) / stage.grid.count().max(1) as f64
}

/// Average bytes of the outputs of an operand of a stage.
pub(crate) fn chunk_bytes(stage: &Stage) -> f64 {
    let of = |o: &Output| {
        let cells: f64 = o.grid.shape().iter().map(|&d| d as f64).product();
        cells * o.cell_bytes() as f64
    };
    stage.outputs.iter().map(of).sum::<f64>() / stage.grid.count().max(1) as f64
}

/// Nanoseconds of one thread for all operands of a stage.
fn stage_ns(tiling: &Tiling, stage: &Stage) -> f64 {
    let shape = stage.grid.shape();
    let n: f64 = shape.iter().map(|&d| d as f64).product();
    let line = |axis: usize| (shape[axis].max(2) as f64).log2();
    let chunk_line = |axis: usize| (stage.grid.axes[axis].chunk.max(2) as f64).log2();
    let out_bytes: usize = stage.outputs.iter().map(|o| o.cell_bytes()).sum();
    match &stage.task {
        Task::Load { source, .. } if source.is_resident() => 0.0,
        Task::Load { source, .. } if source.plain => {
            let chunk: crate::region::Dims = stage.grid.axes.iter().map(|a| a.chunk).collect();
            let line = source.lines(&chunk).bytes.max(1) as f64;
            n * source.dtype.size() as f64 * (PLAIN_BYTE_NS + READ_NS / line)
        }
        Task::Load { source, .. } => n * source.dtype.size() as f64 * STORED_BYTE_NS,
        Task::Const(_) => 0.0,
        Task::Fused(fused) => {
            let chunks = fused.batch.as_ref().map_or(0, |b| b.grid.count());
            n * fused_ns(fused) + chunks as f64 * CHUNK_NS
        }
        Task::Combine { .. } => n * 3.0,
        Task::Scan { .. } => n * 1.2,
        // A step passes through the sorted cells of its window.
        Task::Window { frame, kind: ReduceKind::Quantile(_), .. } => {
            n * (4.0 + frame.width() as f64 / 8.0)
        }
        Task::Window { .. } => n * 2.5,
        Task::Sort { axis, what, .. } => n * line(*axis) * sort_ns(*what),
        Task::Runs { runs, .. } => {
            n * chunk_line(stage.grid.axes.len().saturating_sub(1)) * sort_ns(runs.what)
        }
        Task::Merge { .. } => n * 8.0,
        Task::Quantile { .. } => n * 6.0,
        Task::Select { .. } => n * 0.5,
        Task::Lookup { .. } => {
            let table = stage.inputs.get(1).map_or(2, |t| {
                cells(&tiling.plan().output(t.from).grid.shape()).unwrap_or(u64::MAX)
            });
            n * (table.max(2) as f64).log2() * 1.5
        }
        Task::Bin { .. } => n * 1.2,
        Task::Contract { dtype, .. } => {
            // Each side is read at least once; a product with a vector does no more than that.
            let sides = stage.inputs.iter().map(|i| {
                let cells = tiling.plan().output(i.from).grid.shape();
                cells.iter().map(|&d| d as f64).product::<f64>() * BYTE_NS
            });
            (n * PRODUCT_BYTE_NS + sides.sum::<f64>()) * dtype.size() as f64
        }
        Task::Factor { kind, .. } => n * factor_ns(*kind, &shape),
        Task::Copy => n * 2.0 * out_bytes as f64 * BYTE_NS,
    }
}

/// Nanoseconds for a chunk of `cells`, one of several in an operand.
pub(crate) fn batched_ns(fused: &Fused, cells: u64) -> f64 {
    CHUNK_NS + cells as f64 * fused_ns(fused)
}

/// Nanoseconds for each cell of a fused stage: its bytes, instructions and reductions.
fn fused_ns(fused: &Fused) -> f64 {
    let field = |(k, input): (usize, &FusedInput)| match input {
        FusedInput::Field { .. } => fused.program.inputs[k].size() as f64 * BYTE_NS,
        FusedInput::Index { .. } => 0.1,
    };
    let read: f64 = fused.inputs.iter().enumerate().map(field).sum();
    let kept = |o: &FusedOutput| match o {
        FusedOutput::Store { value, .. } | FusedOutput::Certain { value, .. } => {
            fused.program.dtype(*value).size() as f64 * BYTE_NS
        }
        FusedOutput::Reduce { kind: ReduceKind::Var { .. }, .. } => 0.8,
        FusedOutput::Reduce { .. } => 0.15,
    };
    read + program_ns(&fused.program) + fused.outputs.iter().map(kept).sum::<f64>()
}

fn program_ns(program: &Program) -> f64 {
    program.insts.iter().map(|i| op_ns(i.op, i.dtype) * i.dtype.size() as f64 / 8.0).sum()
}

/// Nanoseconds for each cell of eight bytes.
fn op_ns(op: ScalarOp, dtype: DType) -> f64 {
    use ScalarOp::*;
    match op {
        Div | Sqrt => 0.6,
        Exp | Exp2 | Expm1 | Log | Log2 | Log10 | Log1p | Sin | Cos | RandomUniform { .. } => 1.5,
        Tan | Arctan | Arctan2 | Sinh | Cosh | Tanh | Pow | Erf | Erfc => 4.0,
        Cbrt | Arcsin | Arccos | Hypot => 4.0,
        FloorDiv | Rem | Fmod if dtype.is_float() => 1.0,
        FloorDiv | Rem | Fmod | TruncDiv | TruncRem | DatePart(_) => 4.0,
        RandomNormal { .. } => 8.0,
        Arcsinh | Arccosh | Arctanh | Nextafter | Logaddexp => 15.0,
        _ => 0.15,
    }
}

fn sort_ns(what: SortWhat) -> f64 {
    match what {
        SortWhat::Values => 1.5,
        SortWhat::Positions => 3.0,
    }
}

/// Nanoseconds for each cell of a matrix; the number of operations grows with its side.
fn factor_ns(kind: Factor, shape: &[u64]) -> f64 {
    let side = shape.iter().rev().take(2).min().copied().unwrap_or(1).max(1) as f64;
    match kind {
        Factor::Svd | Factor::Eigh { .. } => 20.0 + 0.3 * side,
        _ => 10.0 + 0.1 * side,
    }
}

/// Formats a time for EXPLAIN: `12 µs`, `3.4 ms`, `1.2 s`.
pub(crate) fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::compile;
    use crate::config::Config;
    use crate::optimize::Rooted;

    /// The sum of `n` generated squares.
    fn squares(n: u64) -> Tiling {
        let config = Config::default();
        let mut b = Builder::new(config.clone());
        let i = b.iota(&[n], None).unwrap();
        let x = b.cast(i, DType::Float64).unwrap();
        let x = b.map(ScalarOp::Mul, &[x, x]).unwrap();
        let sum = b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
        compile(Rooted { graph: b.graph, roots: vec![sum] }, &config, &mut |_, _| {}).unwrap()
    }

    #[test]
    fn work_grows_with_the_cells_and_small_plans_stay_here() {
        let (small, large) = (cost(&squares(1000)), cost(&squares(1_000_000_000)));
        assert!(small.here && small.work_us < 20, "{small:?}");
        assert_eq!(
            [threads_for(&squares(1000), 8), threads_for(&squares(1_000_000_000), 8)],
            [1, 8]
        );
        // Half a millisecond keeps a few threads busy, not all of a large machine.
        assert!(
            (2..10).contains(&threads_for(&squares(1_000_000), 64)),
            "{:?}",
            cost(&squares(1_000_000))
        );
        assert!(!large.here && (200_000..2_000_000).contains(&large.work_us), "{large:?}");
        // A plan too large for any machine still has a cost.
        assert!(cost(&squares(1 << 60)).work_us > large.work_us);
    }

    #[test]
    fn times_are_shown_in_a_suitable_unit() {
        assert_eq!([7, 3_400, 1_200_000].map(time), ["7 µs", "3.4 ms", "1.2 s"]);
    }
}
