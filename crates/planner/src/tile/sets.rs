//! Sets of operands: their inputs together and the bytes of their chunks, computed with boxes.

use super::Tiling;
use super::boxes::{cut, for_each_index, joins};
use crate::plan::{Access, StageId};
use crate::recover::Bitmap;
use crate::region::{Dims, Region};

impl Tiling {
    /// The operands whose chunks a set of operands reads through an input. Time grows with the boxes of the set; a
    /// reshape is visited operand by operand.
    pub(crate) fn read_by(&self, stage: StageId, input: usize, operands: &Bitmap) -> Bitmap {
        let s = self.plan.stage(stage);
        let from = self.plan.stage(s.inputs[input].from.stage).grid.counts();
        let mut read = Bitmap::default();
        for part in boxes_of(&s.grid.counts(), operands) {
            if !matches!(s.inputs[input].access, Access::Reshape(_)) {
                let boxes = self.reads_of(stage, &part, input);
                boxes.iter().for_each(|b| insert_box(&from, b, &mut read));
            } else {
                let ones = Dims::from_elem(1, part.rank());
                for_each_index(&part, &mut |index| {
                    let boxes = self.reads_of(stage, &Region::at(index, &ones), input);
                    boxes.iter().for_each(|b| insert_box(&from, b, &mut read));
                });
            }
        }
        read
    }

    /// Bytes of all chunks of a set of operands.
    pub fn bytes_of(&self, stage: StageId, operands: &Bitmap) -> u64 {
        let s = self.plan.stage(stage);
        let boxes = boxes_of(&s.grid.counts(), operands);
        let bytes = s.outputs.iter().flat_map(|output| {
            let cells = boxes.iter().map(|b| output.grid.cells(b).cells());
            cells.map(|cells| cells.saturating_mul(output.cell_bytes() as u64))
        });
        bytes.fold(0, u64::saturating_add)
    }
}

/// A set of operands of a grid as disjoint boxes.
pub(crate) fn boxes_of(counts: &[u64], operands: &Bitmap) -> Vec<Region> {
    let axes: Vec<usize> = (0..counts.len()).collect();
    let whole = Region::whole(counts);
    let mut boxes: Vec<Region> = Vec::new();
    for (start, end) in operands.runs() {
        let mut parts = Vec::new();
        cut(&axes, &whole, start, end, &mut parts);
        parts.into_iter().for_each(|part| join(&mut boxes, part));
    }
    // Rows became boxes; boxes may become larger ones.
    for _ in 2..counts.len() {
        let before = boxes.len();
        let parts = std::mem::take(&mut boxes);
        parts.into_iter().for_each(|part| join(&mut boxes, part));
        if boxes.len() == before {
            break;
        }
    }
    boxes
}

/// Adds a box, as a part of the last one if they have a side in common.
fn join(boxes: &mut Vec<Region>, part: Region) {
    match boxes.last_mut() {
        Some(last) if joins(last, &part) => {
            let both = last.end.iter_mut().zip(&part.end);
            both.for_each(|(last, part)| *last = (*last).max(*part));
        }
        _ => boxes.push(part),
    }
}

/// Adds the operands of a box of a grid to a set.
pub fn insert_box(counts: &[u64], operands: &Region, set: &mut Bitmap) {
    if operands.is_empty() {
        return;
    }
    // The last axes of which the box has everything are one run.
    let is_cut = |a: &usize| operands.len(*a) < counts[*a];
    let Some(axis) = (0..counts.len()).rfind(is_cut) else {
        set.insert_range(0, counts.iter().product());
        return;
    };
    let inner: u64 = counts[axis + 1..].iter().product();
    let (first, last) = (operands.start[axis], operands.end[axis]);
    let outer = Region { start: operands.start[..axis].into(), end: operands.end[..axis].into() };
    for_each_index(&outer, &mut |index| {
        let row = index.iter().zip(counts).fold(0, |n, (i, count)| n * count + i) * counts[axis];
        set.insert_range((row + first) * inner, (row + last) * inner);
    });
}
