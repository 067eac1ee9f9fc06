//! Views: the input cell that each output cell reads.

use crate::grid::{AxisGrid, Grid};
use crate::region::{Dims, Region};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// Position on one axis of the input as a function of the output position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AxisView {
    /// Output axis that moves along this input axis, or `None` if the position is fixed.
    pub axis: Option<usize>,
    /// Position read by output position 0 (or the fixed position).
    pub start: i64,
    /// Change of the position per output step; may be negative, never 0 if `axis` is set.
    pub step: i64,
}

/// An affine map from output cells to input cells: `in[d] = start[d] + step[d] * out[axis[d]]`.
///
/// Slices, flips, transposes, broadcasts, new and dropped axes are all views. Views compose into views, so a chain of
/// them costs nothing and can be pushed into the read of a source.
/// ```text
///   x[::-1, 3]  of x[4, 5]:   out [4]     in[0] = 3 - 1 * out[0],   in[1] = 3
///   broadcast of [3] to [2, 3]:           in[0] = 0 + 1 * out[1]    (no input axis reads output axis 0)
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    /// One entry per input axis. Each output axis occurs at most once.
    pub axes: SmallVec<[AxisView; 6]>,
}

impl View {
    /// The view in which every cell reads its own position.
    pub fn identity(rank: usize) -> Self {
        View { axes: (0..rank).map(|a| AxisView { axis: Some(a), start: 0, step: 1 }).collect() }
    }

    /// The view that broadcasts an input shape to `out`: trailing axes are aligned; axes of length 1 and missing axes
    /// repeat. The shapes are broadcastable.
    pub fn broadcast(input: &[u64], out: &[u64]) -> Self {
        let lead = out.len() - input.len();
        View {
            axes: input
                .iter()
                .enumerate()
                .map(|(d, &n)| {
                    let repeat = n == 1 && out[lead + d] != 1;
                    AxisView { axis: (!repeat).then_some(lead + d), start: 0, step: 1 }
                })
                .collect(),
        }
    }

    /// True if the output reads the same positions on the same axes.
    pub fn is_identity(&self) -> bool {
        self.axes
            .iter()
            .enumerate()
            .all(|(d, a)| *a == AxisView { axis: Some(d), start: 0, step: 1 })
    }

    /// Composes two views: out → (self) → middle → (inner) → in.
    pub fn then(&self, inner: &View) -> View {
        View {
            axes: inner
                .axes
                .iter()
                .map(|i| match i.axis {
                    None => *i,
                    Some(m) => {
                        let o = self.axes[m];
                        AxisView {
                            axis: o.axis,
                            start: i.start + i.step * o.start,
                            step: if o.axis.is_some() { i.step * o.step } else { 1 },
                        }
                    }
                })
                .collect(),
        }
    }

    /// The bounding box of the input cells that `out` reads. Empty if `out` is.
    pub fn image(&self, out: &Region) -> Region {
        let (mut start, mut end) = (Dims::new(), Dims::new());
        for a in &self.axes {
            let (lo, hi) = match a.axis {
                None => (a.start, a.start + 1),
                Some(o) if out.end[o] == out.start[o] => (0, 0),
                Some(o) => {
                    let (p, q) = (
                        a.start + a.step * out.start[o] as i64,
                        a.start + a.step * (out.end[o] as i64 - 1),
                    );
                    (p.min(q), p.max(q) + 1)
                }
            };
            start.push(lo as u64);
            end.push(hi as u64);
        }
        Region { start, end }
    }

    /// The box of output positions (within `shape`) that read a cell of `input`; empty if there are none.
    pub fn preimage(&self, input: &Region, shape: &[u64]) -> Region {
        let mut out = Region::whole(shape);
        for (d, a) in self.axes.iter().enumerate() {
            let (lo, hi) = (input.start[d] as i64, input.end[d] as i64);
            match a.axis {
                None => {
                    if a.start < lo || a.start >= hi {
                        return Region::at(
                            &Dims::from_elem(0, shape.len()),
                            &Dims::from_elem(0, shape.len()),
                        );
                    }
                }
                Some(o) => {
                    // start + step * t in [lo, hi)
                    let (first, last) = if a.step > 0 {
                        (ceil_div(lo - a.start, a.step), floor_div(hi - 1 - a.start, a.step))
                    } else {
                        (ceil_div(hi - 1 - a.start, a.step), floor_div(lo - a.start, a.step))
                    };
                    let first = first.max(0) as u64;
                    let end = (last + 1).max(0) as u64;
                    out.start[o] = out.start[o].max(first);
                    out.end[o] = out.end[o].min(end);
                }
            }
        }
        for (a, &n) in shape.iter().enumerate() {
            if out.end[a] <= out.start[a] {
                out.start[a] = out.start[a].min(n);
                out.end[a] = out.start[a];
            }
        }
        out
    }

    /// The grid of the output that follows the cuts of the input: the same cuts along each moved axis (mirrored for a
    /// negative step, thinned for a long one), `None` for output axes that read no input axis.
    pub fn grid(&self, input: &Grid, shape: &[u64]) -> SmallVec<[Option<AxisGrid>; 6]> {
        let mut out: SmallVec<[Option<AxisGrid>; 6]> = SmallVec::from_elem(None, shape.len());
        for (d, a) in self.axes.iter().enumerate() {
            let Some(o) = a.axis else { continue };
            let (len, g) = (shape[o], input.axes[d]);
            if len == 0 || g.len == 0 {
                out[o] = Some(AxisGrid::regular(len, g.chunk));
                continue;
            }
            let chunk = (g.chunk / a.step.unsigned_abs()).max(1);
            // Output cells before the first cut of the input.
            let (lo, hi) = g.interval(g.find(a.start as u64));
            let room = if a.step > 0 { hi - 1 - a.start as u64 } else { a.start as u64 - lo };
            let first = (room / a.step.unsigned_abs() + 1).min(chunk).min(len);
            out[o] = Some(if first >= len {
                AxisGrid::regular(len, len)
            } else {
                AxisGrid { len, first, chunk: chunk.min(len) }
            });
        }
        out
    }
}

fn floor_div(a: i64, b: i64) -> i64 {
    let q = a / b;
    if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    let q = a / b;
    if a % b != 0 && (a < 0) == (b < 0) { q + 1 } else { q }
}

impl fmt::Display for View {
    /// `[i0, 5-2*i1, 3]`: the position read on each input axis.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (d, a) in self.axes.iter().enumerate() {
            if d > 0 {
                f.write_str(", ")?;
            }
            match a.axis {
                None => write!(f, "{}", a.start)?,
                Some(o) => match (a.start, a.step) {
                    (0, 1) => write!(f, "i{o}")?,
                    (0, s) => write!(f, "{s}*i{o}")?,
                    (b, 1) => write!(f, "{b}+i{o}")?,
                    (b, s) if s < 0 => write!(f, "{b}-{}*i{o}", s.unsigned_abs())?,
                    (b, s) => write!(f, "{b}+{s}*i{o}")?,
                },
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn view(axes: &[(Option<usize>, i64, i64)]) -> View {
        View {
            axes: axes.iter().map(|&(axis, start, step)| AxisView { axis, start, step }).collect(),
        }
    }

    #[test]
    fn views_compose() {
        let flip = view(&[(Some(0), 9, -1)]);
        let skip = view(&[(Some(0), 1, 3)]);
        assert_eq!(skip.then(&flip), view(&[(Some(0), 8, -3)]));
        let pick = view(&[(None, 2, 1)]);
        assert_eq!(pick.then(&flip), view(&[(None, 7, 1)]));
    }

    /// A view of one axis and the length of the axis that it reads.
    fn strided() -> impl Strategy<Value = (View, u64, u64)> {
        (1u64..12, 1i64..4, any::<bool>(), 0u64..5, 0u64..5).prop_map(
            |(n, step, back, before, after)| {
                let span = step * (n as i64 - 1);
                let len = before + span as u64 + 1 + after;
                let (start, step) =
                    if back { (before as i64 + span, -step) } else { (before as i64, step) };
                (view(&[(Some(0), start, step)]), n, len)
            },
        )
    }

    proptest! {
        #[test]
        fn preimage_is_the_set_of_readers((v, n, len) in strided(), lo in 0u64..20, size in 1u64..6) {
            let lo = lo.min(len - 1);
            let input = Region::at(&[lo], &[size.min(len - lo)]);
            let got = v.preimage(&input, &[n]);
            for t in 0..n {
                let p = (v.axes[0].start + v.axes[0].step * t as i64) as u64;
                let reads = p >= lo && p < input.end[0];
                prop_assert_eq!(reads, got.start[0] <= t && t < got.end[0]);
            }
        }

        #[test]
        fn grids_of_views_are_sound((v, n, len) in strided(), chunk in 1u64..9) {
            let g = v.grid(&Grid::regular(&[len], &[chunk]), &[n])[0].unwrap_or(AxisGrid::regular(1, 1));
            prop_assert_eq!(g.len, n);
            let mut at = 0;
            for i in 0..g.count() {
                let (s, e) = g.interval(i);
                prop_assert_eq!(s, at);
                prop_assert!(e > s);
                for p in s..e {
                    prop_assert_eq!(g.find(p), i);
                }
                at = e;
            }
            prop_assert_eq!(at, n);
        }
    }
}
