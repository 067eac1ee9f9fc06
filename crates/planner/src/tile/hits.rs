//! Chunks along axes that hold the cells of a box.

use super::boxes::for_each_index;
use crate::grid::{ChunkIndex, Grid};
use crate::plan::{Access, Plan, StageId};
use crate::region::{Dims, Region};
use crate::view::View;
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Chunks along one axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hits {
    Run(u64, u64),
    List(Arc<[u64]>),
}

impl Hits {
    pub(super) fn count(&self) -> u64 {
        match self {
            Hits::Run(lo, hi) => hi - lo,
            Hits::List(v) => v.len() as u64,
        }
    }

    fn get(&self, i: u64) -> u64 {
        match self {
            Hits::Run(lo, _) => lo + i,
            Hits::List(v) => v[i as usize],
        }
    }

    pub(super) fn contains(&self, chunk: u64) -> bool {
        match self {
            Hits::Run(lo, hi) => (*lo..*hi).contains(&chunk),
            Hits::List(v) => v.binary_search(&chunk).is_ok(),
        }
    }
}

/// Chunks along each axis.
pub(super) type Touched = SmallVec<[Hits; 6]>;

/// For each input of a take and each chunk of its stage along the axis, the chunks that hold the taken positions: in
/// all at most as many numbers as there are positions.
pub(super) type Taken = BTreeMap<(StageId, usize), Vec<Arc<[u64]>>>;

/// Chunks that a view reads for an output region; `None` if it reads nothing.
pub(super) fn view_hits(view: &View, region: &Region, grid: &Grid) -> Option<Touched> {
    if region.is_empty() {
        return None;
    }
    let image = view.image(region);
    let mut hits = box_hits(grid, &image, None)?;
    for (d, a) in view.axes.iter().enumerate() {
        // A step longer than a chunk skips some chunks.
        if let Some(o) = a.axis
            && a.step.unsigned_abs() > grid.axes[d].chunk.min(grid.axes[d].first)
        {
            let mut list: Vec<u64> = (region.start[o]..region.end[o])
                .map(|p| grid.axes[d].find((a.start + a.step * p as i64) as u64))
                .collect();
            list.sort_unstable();
            list.dedup();
            hits[d] = Hits::List(list.into());
        }
    }
    Some(hits)
}

/// Chunks that hold cells of a box, as runs; the caller fills in the axis `except`.
pub(super) fn box_hits(grid: &Grid, region: &Region, except: Option<usize>) -> Option<Touched> {
    let mut hits: Touched = smallvec![];
    for (a, g) in grid.axes.iter().enumerate() {
        if except == Some(a) {
            hits.push(Hits::Run(0, 0));
            continue;
        }
        let (lo, hi) = g.overlapping(region.start[a], region.end[a]);
        if lo == hi {
            return None;
        }
        hits.push(Hits::Run(lo, hi));
    }
    Some(hits)
}

/// The chunks that the takes of a plan read.
pub(super) fn taken(plan: &Plan) -> Taken {
    let mut all = Taken::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        for (k, input) in stage.inputs.iter().enumerate() {
            let Access::Take { axis, positions } = &input.access else { continue };
            let (from, to) = (&plan.output(input.from).grid.axes[*axis], &stage.grid.axes[*axis]);
            let mut seen = vec![false; from.count() as usize];
            let lists = (0..to.count()).map(|chunk| {
                let (lo, hi) = to.interval(chunk);
                let mut list: Vec<u64> = Vec::new();
                for &p in &positions[lo as usize..hi as usize] {
                    let here = from.find(p);
                    if !std::mem::replace(&mut seen[here as usize], true) {
                        list.push(here);
                    }
                }
                list.sort_unstable();
                list.iter().for_each(|&chunk| seen[chunk as usize] = false);
                list.into()
            });
            all.insert((StageId(i as u32), k), lists.collect());
        }
    }
    all
}

/// Calls `f` with each index of the product of the hits, row-major.
pub(super) fn each(hits: &Touched, f: &mut dyn FnMut(ChunkIndex)) {
    let counts = Region::whole(&hits.iter().map(Hits::count).collect::<Dims>());
    for_each_index(&counts, &mut |i| f(hits.iter().zip(i).map(|(h, &i)| h.get(i)).collect()));
}

/// Boxes of chunks from the chunks along each axis.
pub(super) fn hit_boxes(hits: &Touched) -> Vec<Region> {
    let mut boxes = vec![Region { start: Dims::new(), end: Dims::new() }];
    for h in hits {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        match h {
            Hits::Run(lo, hi) => runs.push((*lo, *hi)),
            Hits::List(list) => {
                for &c in list.iter() {
                    match runs.last_mut() {
                        Some((_, end)) if *end == c => *end += 1,
                        _ => runs.push((c, c + 1)),
                    }
                }
            }
        }
        boxes = boxes
            .iter()
            .flat_map(|b| {
                runs.iter().map(|&(lo, hi)| {
                    let mut b = b.clone();
                    b.start.push(lo);
                    b.end.push(hi);
                    b
                })
            })
            .collect();
    }
    boxes
}
