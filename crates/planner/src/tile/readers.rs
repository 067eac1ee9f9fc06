//! Readers of a chunk.

use super::Tiling;
use super::boxes::{add_disjoint, for_each_index, preimage, reshaped};
use crate::plan::{Access, OutputRef, Stage, StageId};
use crate::region::{Dims, Region};
use smallvec::SmallVec;

impl Tiling {
    /// Number of operands that read a chunk, over all stages; saturates.
    pub fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        let mut total = 0u64;
        let users = &self.users[of.stage.0 as usize][of.output as usize];
        for (i, (stage, _)) in users.iter().enumerate() {
            if users[..i].iter().any(|(s, _)| s == stage) {
                continue;
            }
            let inputs: SmallVec<[usize; 3]> =
                users.iter().filter(|(s, _)| s == stage).map(|(_, k)| *k).collect();
            let s = self.plan.stage(*stage);
            if let [k] = inputs[..] {
                total = total.saturating_add(self.readers_by(*stage, k, of, index));
                continue;
            }
            // An operand that reads the chunk through several inputs is one reader.
            let mut boxes: Vec<Region> = Vec::new();
            for &k in &inputs {
                if let Some(b) = self.reader_box(s, k, of, index) {
                    add_disjoint(&mut boxes, b);
                }
            }
            total = boxes.iter().fold(total, |n, b| n.saturating_add(b.cells()));
        }
        total
    }

    fn readers_by(&self, stage: StageId, k: usize, of: OutputRef, index: &[u64]) -> u64 {
        let s = self.plan.stage(stage);
        let Some(candidates) = self.reader_box(s, k, of, index) else { return 0 };
        match &s.inputs[k].access {
            // For a take not every operand of the box reads the chunk.
            Access::Take { axis, .. } => {
                let lists = self.taken.get(&(stage, k)).map_or(&[][..], |l| l.as_slice());
                let along = candidates.start[*axis]..candidates.end[*axis];
                let reads = |op: &u64| {
                    lists.get(*op as usize).is_some_and(|l| l.binary_search(&index[*axis]).is_ok())
                };
                let beside = candidates.cells() / candidates.len(*axis).max(1);
                beside.saturating_mul(along.filter(reads).count() as u64)
            }
            Access::Reshape(_) => {
                let mut n = 0;
                for_each_index(&candidates, &mut |op| {
                    let reads = self.touched(stage, op, k);
                    let hit =
                        reads.is_some_and(|h| h.iter().zip(index).all(|(h, &c)| h.contains(c)));
                    n += u64::from(hit);
                });
                n
            }
            _ => candidates.cells(),
        }
    }

    /// The box of operands of a stage that may read a chunk through an input; exact except for takes and reshapes.
    fn reader_box(&self, s: &Stage, k: usize, of: OutputRef, index: &[u64]) -> Option<Region> {
        let grid = &self.plan.output(of).grid;
        let cells = grid.region(index);
        let shape = s.grid.shape();
        let operands = |region: &Region| {
            let b = s.grid.overlapping(region);
            (!region.is_empty() && !b.is_empty()).then_some(b)
        };
        match &s.inputs[k].access {
            Access::View(view) => operands(&preimage(view, &cells, &shape)?),
            Access::Fan(fan) => {
                let at: Dims = index.iter().zip(fan).map(|(i, f)| i / f).collect();
                Some(Region::at(&at, &Dims::from_elem(1, at.len())))
            }
            Access::Part { part, view } => {
                let region = preimage(view, &cells, &part.shape())?;
                operands(&region.moved_by(&part.start))
            }
            Access::Take { axis, positions } => {
                let inside = |p: &u64| (cells.start[*axis]..cells.end[*axis]).contains(p);
                let first = positions.iter().position(inside)? as u64;
                let last = positions.iter().rposition(inside)? as u64;
                let mut region = cells;
                region.start[*axis] = first;
                region.end[*axis] = last + 1;
                operands(&region)
            }
            Access::Reshape(from) => {
                // A run of cells that ends within a row reads a box of whole rows, so a reader of a row may read every
                // chunk of the row.
                let mut rows = cells;
                for a in 1..rows.rank() {
                    (rows.start[a], rows.end[a]) = (0, from[a]);
                }
                operands(&reshaped(&rows, from, &shape)?)
            }
            Access::Window { axis, frame, view } => {
                let mut region = preimage(view, &cells, &shape)?;
                let seen = (region.start[*axis], region.end[*axis]);
                (region.start[*axis], region.end[*axis]) =
                    frame.readers(seen.0, seen.1, shape[*axis]);
                operands(&region)
            }
            Access::Runs { axis } => {
                let mut readers = Region::whole(&s.grid.counts());
                for (place, a) in (0..readers.rank()).filter(|a| a != axis).enumerate() {
                    (readers.start[a], readers.end[a]) =
                        s.grid.axes[a].overlapping(cells.start[place], cells.end[place]);
                }
                Some(readers)
            }
            Access::Previous { axis } => {
                let mut next: Dims = index.into();
                next[*axis] += 1;
                (next[*axis] < s.grid.axes[*axis].count())
                    .then(|| Region::at(&next, &Dims::from_elem(1, next.len())))
            }
        }
    }
}
