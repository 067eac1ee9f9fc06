//! Cells that a join compares with the rows of a small table: each row is a box along some axes of the cells.
//!
//! ```text
//! FROM e JOIN r ON e.lat BETWEEN r.lat0 AND r.lat1 AND e.lon >= r.lon0
//! ```
//! The box of a row has the positions of `lat` for which the first condition is true, and those of `lon` for which the
//! second one is. A cell is joined with a row if its position along each of these axes is inside.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, UInt64Array};
use arrow::datatypes::UInt64Type;
use datafusion::common::Result;

use super::labels::{Factors, Kept};

#[derive(Debug, Clone)]
pub(crate) struct Boxes {
    /// The axis of the table's rows: each of its kept positions is a box.
    pub(crate) axis: usize,
    /// For each axis that has conditions, and for each box, which of the kept positions are inside.
    pub(crate) inside: BTreeMap<usize, Vec<BooleanArray>>,
}

impl Boxes {
    /// Keeps some positions of an axis, or some boxes.
    pub(crate) fn narrow(&mut self, axis: usize, after: &Kept) -> Result<()> {
        if axis == self.axis {
            for boxes in self.inside.values_mut() {
                let all: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..boxes.len() as u64));
                let kept = after.apply(&all)?;
                let kept = kept.as_primitive::<UInt64Type>().values();
                *boxes = kept.iter().map(|&n| boxes[n as usize].clone()).collect();
            }
        }
        for positions in self.inside.get_mut(&axis).into_iter().flatten() {
            let all: ArrayRef = Arc::new(positions.clone());
            *positions = after.apply(&all)?.as_boolean().clone();
        }
        Ok(())
    }

    /// The boxes that have a position along each axis.
    pub(crate) fn with_cells(&self) -> Kept {
        let count = self.inside.values().next().map_or(0, Vec::len);
        let has_cells = |n: &usize| self.inside.values().all(|boxes| boxes[*n].true_count() > 0);
        let boxes: Vec<u64> = (0..count).filter(has_cells).map(|n| n as u64).collect();
        Kept::of(&boxes)
    }

    /// The positions of an axis that are inside of a box.
    pub(crate) fn covered(&self, axis: usize) -> Kept {
        let Some(boxes) = self.inside.get(&axis) else { return Kept::of(&[]) };
        let len = boxes.first().map_or(0, |positions| positions.len());
        let is_covered = |p: &usize| boxes.iter().any(|positions| positions.value(*p));
        let positions: Vec<u64> = (0..len).filter(is_covered).map(|p| p as u64).collect();
        Kept::of(&positions)
    }

    /// Number of rows of the join for each position of the other axes.
    pub(crate) fn joined(&self) -> f64 {
        let count = self.inside.values().next().map_or(0, Vec::len);
        let cells = |n: usize| self.inside.values().map(move |boxes| boxes[n].true_count() as f64);
        (0..count).map(|n| cells(n).product::<f64>()).sum()
    }

    /// The positions of an axis by their group and by the boxes that contain them.
    pub(crate) fn classes(&self, axis: usize, groups: Vec<u32>) -> Factors {
        let mut codes = groups;
        let mut count = codes.iter().max().map_or(0, |&code| code as usize + 1);
        for positions in self.inside.get(&axis).into_iter().flatten() {
            let mut new: Vec<Option<u32>> = vec![None; 2 * count];
            count = 0;
            for (code, is_inside) in codes.iter_mut().zip(positions.values()) {
                let class = &mut new[2 * (*code as usize) + usize::from(is_inside)];
                *code = *class.get_or_insert(count as u32);
                count = count.max(*code as usize + 1);
            }
        }
        let mut first = vec![0; count];
        for (position, &code) in codes.iter().enumerate().rev() {
            first[code as usize] = position as u64;
        }
        Factors { codes, first }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn boxes() -> Boxes {
        let inside = [
            vec![false, true, true, false, false, true],
            vec![false, false, true, true, false, true],
            vec![false; 6],
        ];
        let inside: Vec<BooleanArray> = inside.into_iter().map(BooleanArray::from).collect();
        Boxes { axis: 1, inside: BTreeMap::from([(0, inside)]) }
    }

    #[test]
    fn positions_in_the_same_boxes_are_one_class() {
        let classes = boxes().classes(0, vec![0; 6]);
        assert_eq!(classes.codes, [0, 1, 2, 3, 0, 2]);
        assert_eq!(classes.first, [0, 1, 2, 3]);
        // The last position is in another group.
        let classes = boxes().classes(0, vec![1, 1, 1, 1, 1, 0]);
        assert_eq!(classes.codes, [0, 1, 2, 3, 0, 4]);
    }

    #[test]
    fn boxes_and_positions_are_dropped() {
        let mut boxes = boxes();
        assert_eq!(boxes.joined(), 6.0);
        assert_eq!(boxes.with_cells(), Kept::Range { start: 0, len: 2 });
        assert_eq!(boxes.covered(0), Kept::Take([1, 2, 3, 5].into()));
        boxes.narrow(1, &Kept::Range { start: 1, len: 1 }).unwrap();
        boxes.narrow(0, &Kept::Take([1, 2, 5].into())).unwrap();
        let kept: Vec<Vec<bool>> =
            boxes.inside[&0].iter().map(|p| p.values().iter().collect()).collect();
        assert_eq!(kept, [[false, true, true]]);
    }
}
