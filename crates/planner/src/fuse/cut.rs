//! Cuts a load into the chunks that its reader requests instead of the stored ones, if reading a box of cells costs no
//! more than its bytes.
//!
//! ```text
//!   stored in rows      needed in columns        Load of rows, retained until all columns are computed:  all of it
//!   ────────────        │  │  │  │  │           Load of columns, each from lines of all rows:          one column
//!   ────────────   ─▶   │  │  │  │  │
//!   ────────────        │  │  │  │  │
//! ```
//! This holds for local files without codecs ([`SourceRef::plain`]), if lines are long enough to be read one by one,
//! and if either the operating system caches the file from the second column on, or lines are so long that a disk reads
//! them as fast as the whole file. The logical grid is the same, so no bit changes.

use crate::catalog::SourceRef;
use crate::config::Config;
use crate::grid::Grid;
use crate::ir::{Graph, Op};
use crate::optimize::Rooted;
use crate::region::{Dims, Region};
use std::borrow::Cow;

/// Returns the graph in which such loads have the requested grid.
pub(super) fn cut<'a>(rooted: &'a Rooted, config: &Config) -> Cow<'a, Rooted> {
    let graph = &rooted.graph;
    let uses = super::uses(rooted);
    let load = |id: crate::ir::NodeId| match &graph.node(id).op {
        Op::Load { source, region } if uses[id.0 as usize] == 1 => Some((source, region)),
        _ => None,
    };
    let is_cut = |op: &Op, input: Option<&crate::ir::NodeId>, grid: &Grid| match (op, input) {
        (Op::Rechunk, Some(&input)) => {
            load(input).filter(|(source, region)| is_worth_it(source, region, grid, config))
        }
        _ => None,
    };
    if !graph.nodes().any(|(_, n)| is_cut(&n.op, n.inputs.first(), &n.grid).is_some()) {
        return Cow::Borrowed(rooted);
    }
    let mut new = Graph::new();
    for (_, node) in graph.nodes() {
        let mut node = node.clone();
        if let Some((source, region)) = is_cut(&node.op, node.inputs.first(), &node.grid) {
            node.op = Op::Load { source: source.clone(), region: region.clone() };
            node.inputs.clear();
        }
        new.push(node);
    }
    Cow::Owned(Rooted { graph: new, roots: rooted.roots.clone() })
}

fn is_worth_it(source: &SourceRef, region: &Region, wanted: &Grid, config: &Config) -> bool {
    let chunk: Dims = wanted.axes.iter().map(|a| a.chunk).collect();
    let lines = source.lines(&chunk);
    let bytes = region.cells().saturating_mul(source.dtype.size() as u64);
    let is_kept = bytes <= config.cached_bytes && (lines.gap == 0 || lines.is_ahead());
    source.plain && lines.is_alone() && (is_kept || lines.is_long())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::catalog::Lines;
    use crate::compile;
    use crate::dtype::DType;
    use crate::plan::{Plan, Task};
    use std::sync::Arc;

    fn rows(plain: bool) -> SourceRef {
        SourceRef {
            url: "rows".into(),
            path: String::new(),
            dtype: DType::Float64,
            shape: Dims::from_slice(&[20_000, 25_000]),
            grid: Grid::regular(&[20_000, 25_000], &[400, 25_000]),
            nullable: false,
            version: None,
            plain,
        }
    }

    /// Chunks of each load of `rechunk(x, chunks)`, and of `x` itself if `beside`.
    fn loads(source: SourceRef, chunks: &[u64], config: &Config, beside: bool) -> Vec<Dims> {
        let mut b = Builder::new(config.clone());
        let x = b.load(Arc::new(source)).unwrap();
        let wanted = b.rechunk(x, chunks).unwrap();
        let roots = if beside { vec![wanted, x] } else { vec![wanted] };
        let rooted = Rooted { graph: b.graph, roots };
        let tiling = compile(rooted, config, &mut |_, _| {}).unwrap();
        let plan: &Plan = tiling.plan();
        let loads = plan.stages.iter().filter(|s| matches!(s.task, Task::Load { .. }));
        loads.map(|s| s.grid.axes.iter().map(|a| a.chunk).collect()).collect()
    }

    #[test]
    fn plain_rows_are_read_as_columns() {
        let config = Config { cached_bytes: 4 << 30, ..Config::default() };
        let (stored, columns) = ([Dims::from_slice(&[400, 25_000])], [20_000, 500]);
        let wanted = Dims::from_slice(&columns);
        assert_eq!(loads(rows(true), &columns, &config, false), [wanted]);
        // With codecs, with another reader, or without room in the cache, the stored chunks remain.
        assert_eq!(loads(rows(false), &columns, &config, false), stored);
        assert_eq!(loads(rows(true), &columns, &config, true), stored);
        let small = Config { cached_bytes: 1 << 30, ..config.clone() };
        assert_eq!(loads(rows(true), &columns, &small, false), stored);
        // Lines of 80 bytes do not pay off; lines of 256 KiB do on any disk.
        assert_eq!(loads(rows(true), &[20_000, 10], &config, false), stored);
        let mut wide = rows(true);
        wide.shape[1] = 250_000;
        wide.grid = Grid::regular(&wide.shape, &[400, 250_000]);
        let long = Dims::from_slice(&[20_000, 32_768]);
        assert_eq!(loads(wide, &long, &small, false), [long]);
    }

    #[test]
    fn lines_are_contiguous_cells() {
        let lines = |len: &[u64]| {
            let Lines { bytes, gap } = rows(true).lines(len);
            (bytes, gap)
        };
        assert_eq!(lines(&[20_000, 500]), (4_000, 196_000));
        assert_eq!(lines(&[1, 500]), (4_000, 0));
        assert_eq!(lines(&[100, 25_000]), (20_000_000, 0));
        assert_eq!(lines(&[800, 30_000]), (80_000_000, 0));
    }
}
