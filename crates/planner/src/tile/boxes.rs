//! Boxes of cells: images of boxes under an access, and unions of disjoint boxes.

use crate::region::{Dims, Region};
use crate::view::View;
use crate::window::Frame;
use smallvec::SmallVec;

/// The box of cells within the frames of the cells of `region`; empty if there are none.
pub fn window_region(region: &Region, axis: usize, frame: Frame, shape: &[u64]) -> Region {
    let mut wide = region.clone();
    (wide.start[axis], wide.end[axis]) =
        frame.reads(region.start[axis], region.end[axis], shape[axis]);
    wide
}

/// The intersection of `region` with `part`, relative to the part's origin; `None` if it is empty.
pub fn part_region(region: &Region, part: &Region) -> Option<Region> {
    Some(region.intersect(part)?.relative_to(&part.start))
}

/// The output positions that read `cells`, or `None`.
pub(super) fn preimage(view: &View, cells: &Region, shape: &[u64]) -> Option<Region> {
    let r = view.preimage(cells, shape);
    (!r.is_empty()).then_some(r)
}

/// The bounding box, in shape `to`, of the cells of `region` (of shape `from`) in row-major order. Exact if `region` is
/// a row-major run that fills whole rows of `to`.
pub fn reshaped(region: &Region, from: &[u64], to: &[u64]) -> Option<Region> {
    if region.is_empty() {
        return None;
    }
    let ravel =
        |p: &mut dyn Iterator<Item = u64>| from.iter().zip(p).fold(0u64, |n, (&d, p)| n * d + p);
    let first = ravel(&mut region.start.iter().copied());
    let last = ravel(&mut region.end.iter().map(|e| e - 1));
    let unravel = |mut n: u64| {
        let mut p: Dims = SmallVec::from_elem(0, to.len());
        for a in (0..to.len()).rev() {
            p[a] = n % to[a];
            n /= to[a];
        }
        p
    };
    let (lo, hi) = (unravel(first), unravel(last));
    let mut out = Region::whole(to);
    for a in 0..to.len() {
        out.start[a] = lo[a];
        out.end[a] = hi[a] + 1;
        if lo[a] != hi[a] {
            // From here on the run covers whole rows.
            break;
        }
    }
    Some(out)
}

/// Calls `f` with each position of a box, row-major.
pub fn for_each_index(region: &Region, f: &mut dyn FnMut(&[u64])) {
    if region.is_empty() {
        return;
    }
    let mut at = region.start.clone();
    loop {
        f(&at);
        let mut a = at.len();
        loop {
            if a == 0 {
                return;
            }
            a -= 1;
            at[a] += 1;
            if at[a] < region.end[a] {
                break;
            }
            at[a] = region.start[a];
        }
    }
}

/// Appends the places `[start, end)` of a box, in the order of its `axes`, as boxes.
pub(crate) fn cut(axes: &[usize], whole: &Region, start: u64, end: u64, out: &mut Vec<Region>) {
    if start >= end {
        return;
    }
    let Some((&axis, rest)) = axes.split_first() else {
        out.push(whole.clone());
        return;
    };
    let row: u64 = rest.iter().map(|&a| whole.len(a)).product();
    let part = |lo: u64, hi: u64| {
        let mut part = whole.clone();
        part.end[axis] = part.start[axis] + hi;
        part.start[axis] += lo;
        part
    };
    let (first, last) = (start / row, end / row);
    if first == last {
        return cut(rest, &part(first, first + 1), start - first * row, end - first * row, out);
    }
    let mut full = first;
    if start > first * row {
        cut(rest, &part(first, first + 1), start - first * row, row, out);
        full += 1;
    }
    if full < last {
        out.push(part(full, last));
    }
    cut(rest, &part(last, last + 1), 0, end - last * row, out);
}

/// True if `next` begins where `last` ends along one axis and equals it along the others.
pub(super) fn joins(last: &Region, next: &Region) -> bool {
    let same = |a: &usize| last.start[*a] == next.start[*a] && last.end[*a] == next.end[*a];
    let mut others = (0..last.rank()).filter(|a| !same(a));
    match (others.next(), others.next()) {
        (Some(a), None) => last.start[a] <= next.start[a] && next.start[a] <= last.end[a],
        _ => false,
    }
}

/// Adds the part of `new` that lies outside of the boxes, so that the boxes stay disjoint.
pub(crate) fn add_disjoint(boxes: &mut Vec<Region>, new: Region) {
    let mut rest = vec![new];
    for b in boxes.iter() {
        rest = rest.iter().flat_map(|r| subtract(r, b)).collect();
    }
    boxes.extend(rest);
}

/// Returns `r` without `b` as disjoint boxes.
fn subtract(r: &Region, b: &Region) -> Vec<Region> {
    let Some(common) = r.intersect(b) else { return vec![r.clone()] };
    let mut out = Vec::new();
    let mut left = r.clone();
    for a in 0..r.rank() {
        if left.start[a] < common.start[a] {
            let mut low = left.clone();
            low.end[a] = common.start[a];
            out.push(low);
            left.start[a] = common.start[a];
        }
        if common.end[a] < left.end[a] {
            let mut high = left.clone();
            high.start[a] = common.end[a];
            out.push(high);
            left.end[a] = common.end[a];
        }
    }
    out
}
