#![expect(unsafe_code, reason = "views are followed by pointer; bounds are checked first")]
//! Moving cells between strided views.

use super::KernelError;

/// A strided view of bytes: cell `p` of a box is at element `offset + Σ strides[a] * p[a]`.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// Element of the box's first cell.
    pub offset: i64,
    /// Elements from one position to the next, one for each axis; a source's may be 0 (repeated).
    pub strides: &'a [i64],
}

impl Layout<'_> {
    /// Refuses a layout that leaves memory of `cells` elements.
    fn check(&self, what: &'static str, shape: &[u64], cells: usize) -> Result<(), KernelError> {
        let (mut low, mut high) = (i128::from(self.offset), i128::from(self.offset));
        for (s, n) in self.strides.iter().zip(shape) {
            let reach = i128::from(*s) * (i128::from(*n) - 1);
            if reach < 0 { low += reach } else { high += reach }
        }
        if self.strides.len() != shape.len() || low < 0 || high >= cells as i128 {
            return Err(KernelError::Buffer {
                what,
                got: cells as u64,
                expected: u64::try_from(high.max(0) + 1).unwrap_or(u64::MAX),
            });
        }
        Ok(())
    }
}

/// Copies the cells of a box of `shape` from one layout to another. `size` is 1, 2, 4 or 8 bytes a cell.
///
/// Rows that lie together are copied as such; where the axes turn, blocks of 32 × 32 cells keep both sides in the cache.
/// The destination's cells must be distinct, or which of them wins is not defined.
///
/// # Errors
/// [`KernelError::Buffer`] where a layout leaves its memory.
pub fn copy_box(
    size: usize,
    shape: &[u64],
    source: &[u8],
    from: Layout<'_>,
    target: &mut [u8],
    to: Layout<'_>,
) -> Result<(), KernelError> {
    if !matches!(size, 1 | 2 | 4 | 8) {
        return Err(KernelError::Buffer { what: "bytes of a cell", got: size as u64, expected: 8 });
    }
    if shape.contains(&0) {
        return Ok(());
    }
    from.check("cells of a copy's source", shape, source.len() / size)?;
    to.check("cells of a copy's target", shape, target.len() / size)?;
    // SAFETY: both layouts stay within their memory.
    unsafe {
        let s = source.as_ptr().offset((from.offset * size as i64) as isize);
        let t = target.as_mut_ptr().offset((to.offset * size as i64) as isize);
        let axes = merge(shape, from.strides, to.strides);
        match size {
            1 => walk::<1>(&axes, s, t),
            2 => walk::<2>(&axes, s, t),
            4 => walk::<4>(&axes, s, t),
            _ => walk::<8>(&axes, s, t),
        }
    }
    Ok(())
}

/// Length, and steps of source and target in elements.
#[derive(Debug, Clone, Copy)]
struct Axis(usize, isize, isize);

/// Axes in the order of the target's strides, the finest last; those that step evenly on both sides made one.
fn merge(shape: &[u64], from: &[i64], to: &[i64]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = shape
        .iter()
        .zip(from.iter().zip(to))
        .filter(|(n, _)| **n != 1)
        .map(|(n, (f, t))| Axis(*n as usize, *f as isize, *t as isize))
        .collect();
    axes.sort_by_key(|a| std::cmp::Reverse(a.2.unsigned_abs()));
    let mut out: Vec<Axis> = Vec::new();
    for a in axes {
        match out.last_mut() {
            Some(l) if l.1 == a.1 * a.0 as isize && l.2 == a.2 * a.0 as isize => {
                *l = Axis(l.0 * a.0, a.1, a.2);
            }
            _ => out.push(a),
        }
    }
    if out.is_empty() {
        out.push(Axis(1, 1, 1));
    }
    out
}

/// # Safety
/// All cells of the axes are within the memory of `s` and `t`.
unsafe fn walk<const S: usize>(axes: &[Axis], s: *const u8, t: *mut u8) {
    // SAFETY: the caller's promise, here and below.
    unsafe {
        let size = S as isize;
        match axes {
            [Axis(n, 1, 1)] => std::ptr::copy_nonoverlapping(s, t, n * S),
            [Axis(n, f, g)] => row::<S>(*n, *f * size, *g * size, s, t),
            [Axis(m, fm, gm), Axis(n, fn_, 1)]
                if *fn_ != 1 && fm.unsigned_abs() < fn_.unsigned_abs() =>
            {
                // A transpose: the source is fine along the outer axis. Blocks use every line that is fetched.
                const B: usize = 32;
                for i0 in (0..*m).step_by(B) {
                    for j0 in (0..*n).step_by(B) {
                        for i in i0..(i0 + B).min(*m) {
                            let (i, j) = (i as isize, j0 as isize);
                            row::<S>(
                                B.min(*n - j0),
                                *fn_ * size,
                                size,
                                s.offset((i * fm + j * fn_) * size),
                                t.offset((i * gm + j) * size),
                            );
                        }
                    }
                }
            }
            [Axis(n, f, g), rest @ ..] => {
                // The axis along which the source is finest belongs beside the innermost one.
                let best = (0..axes.len() - 1).min_by_key(|a| match axes[*a].1.unsigned_abs() {
                    0 => usize::MAX,
                    x => x,
                });
                if let Some(b) = best
                    && b + 2 < axes.len()
                    && axes[b].1 != 0
                    && axes[b].1.unsigned_abs() < axes[axes.len() - 1].1.unsigned_abs()
                {
                    let mut turned = axes.to_vec();
                    let x = turned.remove(b);
                    turned.insert(axes.len() - 2, x);
                    return walk::<S>(&turned, s, t);
                }
                for i in 0..*n as isize {
                    walk::<S>(rest, s.offset(i * f * size), t.offset(i * g * size));
                }
            }
            [] => {}
        }
    }
}

/// # Safety
/// `n` cells are readable at steps `f` (bytes) from `s` and writable at steps `g` from `t`.
#[inline(always)]
unsafe fn row<const S: usize>(n: usize, f: isize, g: isize, s: *const u8, t: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        if f == S as isize && g == f {
            return std::ptr::copy_nonoverlapping(s, t, n * S);
        }
        for i in 0..n as isize {
            *t.offset(i * g).cast::<[u8; S]>() = *s.offset(i * f).cast::<[u8; S]>();
        }
    }
}

/// Copies cells whose positions along `axis` are looked up: cell `p` of the box of `shape` comes from the source cell
/// whose position on that axis is `positions[p[axis]] - base`.
///
/// # Errors
/// [`KernelError::Buffer`] where a position or a layout leaves the memory, or there are too few positions.
#[expect(clippy::too_many_arguments, reason = "two views, a list and a shape are what a take is")]
pub fn take(
    size: usize,
    shape: &[u64],
    axis: usize,
    positions: &[u64],
    base: u64,
    source: &[u8],
    from: Layout<'_>,
    target: &mut [u8],
    to: Layout<'_>,
) -> Result<(), KernelError> {
    let len = shape.get(axis).copied().unwrap_or(u64::MAX);
    if (positions.len() as u64) < len || from.strides.len() <= axis || to.strides.len() <= axis {
        return Err(KernelError::Buffer {
            what: "positions of a take",
            got: positions.len() as u64,
            expected: len,
        });
    }
    let mut one: Vec<u64> = shape.to_vec();
    let mut i = 0;
    while i < len as usize {
        // Neighbouring positions move together.
        let mut n = 1;
        while i + n < len as usize && positions[i + n] == positions[i] + n as u64 {
            n += 1;
        }
        let Some(p) = positions[i].checked_sub(base) else {
            return Err(KernelError::Buffer {
                what: "position of a take",
                got: positions[i],
                expected: base,
            });
        };
        one[axis] = n as u64;
        let offset = from.offset.saturating_add(from.strides[axis].saturating_mul(p as i64));
        let f = Layout { offset, strides: from.strides };
        let t = Layout { offset: to.offset + to.strides[axis] * i as i64, strides: to.strides };
        copy_box(size, &one, source, f, target, t)?;
        i += n;
    }
    Ok(())
}

/// Boxes that cover the row-major cells `start .. start + count` of a tensor of `shape`, as (first cell's position,
/// lengths): what a reshape has to read for a run of its output. At most `2 * rank - 1` boxes, in order.
///
/// ```text
///   shape [3, 4], cells 2 .. 9:     . . a a      box a at [0, 2] of [1, 2]
///                                   b b b b      box b at [1, 0] of [1, 4]
///                                   c . . .      box c at [2, 0] of [1, 1]
/// ```
pub fn run_boxes(shape: &[u64], start: u64, count: u64) -> Vec<(Vec<u64>, Vec<u64>)> {
    let rank = shape.len();
    let cells: u64 = shape.iter().product();
    let (mut at, end) = (start, start.saturating_add(count).min(cells));
    let mut out = Vec::new();
    if rank == 0 {
        return if at < end { vec![(Vec::new(), Vec::new())] } else { out };
    }
    // Cells of one position of each axis.
    let mut under = vec![1u64; rank];
    for a in (0..rank.saturating_sub(1)).rev() {
        under[a] = under[a + 1] * shape[a + 1];
    }
    while at < end {
        let mut position = vec![0; rank];
        let mut rest = at;
        for a in 0..rank {
            position[a] = rest / under[a];
            rest %= under[a];
        }
        // The outermost axis that the run can follow from here: all finer positions are 0 and a whole step fits.
        let mut axis = rank.saturating_sub(1);
        while axis > 0 && position[axis] == 0 && end - at >= under[axis - 1] {
            axis -= 1;
        }
        let mut lengths = vec![1; rank];
        lengths[axis + 1..].copy_from_slice(&shape[axis + 1..]);
        let n = ((end - at) / under[axis]).min(shape[axis] - position[axis]);
        lengths[axis] = n;
        at += n * under[axis];
        out.push((position, lengths));
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use proptest::prelude::*;
    use tessera_planner::region::strides;

    /// Row-major positions of a shape.
    fn positions(shape: &[u64]) -> Vec<Vec<u64>> {
        let n: u64 = shape.iter().product();
        (0..n)
            .map(|mut i| {
                let mut p = vec![0; shape.len()];
                for a in (0..shape.len()).rev() {
                    p[a] = i % shape[a];
                    i /= shape[a];
                }
                p
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_permuted_and_flipped_box_arrives(
            shape in prop::collection::vec(1u64..40, 1..4),
            order in any::<u64>(),
            flips in any::<u8>(),
            size in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let rank = shape.len();
            let mut axes: Vec<usize> = (0..rank).collect();
            axes.sort_by_key(|a| order.rotate_left(*a as u32 * 7) & 0xff);
            // The source is stored in the order of `axes`, some of them backward.
            let (mut from, mut step, mut offset) = (vec![0i64; rank], 1i64, 0i64);
            for a in axes {
                from[a] = step;
                if flips >> a & 1 == 1 {
                    offset += step * (shape[a] as i64 - 1);
                    from[a] = -step;
                }
                step *= shape[a] as i64;
            }
            let source: Vec<u8> = (0..step as usize * size).map(|i| (i * 31 % 251) as u8).collect();
            let to = strides(&shape);
            let mut target = vec![0u8; source.len()];
            let l = Layout { offset, strides: &from };
            copy_box(size, &shape, &source, l, &mut target, Layout { offset: 0, strides: &to }).unwrap();
            for (i, p) in positions(&shape).iter().enumerate() {
                let s = offset + p.iter().zip(&from).map(|(p, s)| *p as i64 * s).sum::<i64>();
                let s = s as usize * size;
                prop_assert_eq!(&target[i * size..(i + 1) * size], &source[s..s + size]);
            }
        }

        #[test]
        fn runs_are_covered_in_order(shape in prop::collection::vec(1u64..5, 0..5), a in 0u64..700, n in 0u64..700) {
            let cells: u64 = shape.iter().product();
            let (start, count) = (a % (cells + 1), n % (cells + 1));
            let want: Vec<_> = positions(&shape).into_iter().skip(start as usize).take(count as usize).collect();
            let boxes = run_boxes(&shape, start, count);
            prop_assert!(boxes.len() < (2 * shape.len()).max(2));
            let got: Vec<Vec<u64>> = boxes
                .iter()
                .flat_map(|(at, len)| {
                    positions(len).into_iter().map(move |p| p.iter().zip(at).map(|(p, a)| p + a).collect())
                })
                .collect();
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn takes_look_up_positions() {
        // numpy.take([[0, 1, 2, 3], [4, 5, 6, 7]], [3, 0, 1, 1], axis=1)
        let x: Vec<u8> = (0..8).collect();
        let mut out = [9u8; 8];
        let l = Layout { offset: 0, strides: &[4, 1] };
        take(1, &[2, 4], 1, &[3, 0, 1, 1], 0, &x, l, &mut out, l).unwrap();
        assert_eq!(out, [3, 0, 1, 1, 7, 4, 5, 5]);
        assert!(take(1, &[2, 4], 1, &[3, 0, 1, 6], 0, &x, l, &mut out, l).is_err());
    }
}
