//! Boxes of cells copied between dense buffers.

use smallvec::SmallVec;
use tessera_kernels::copy::{self, Strided};
use tessera_planner::grid::Grid;
use tessera_planner::region::{Dims, Region};

/// The shape of a dense row-major buffer and a cell in it.
pub(crate) type Place<'a> = (&'a [u64], &'a [u64]);

/// Copies the box of `len` cells at `from` of a dense row-major buffer of shape `src_shape` to `to` of one of shape
/// `dst_shape`. Cells have `size` bytes.
///
/// ```text
///   src . . . . .      dst . . . .
///       . # # . .  ─▶      # # . .
///       . # # . .          # # . .
/// ```
/// Both boxes lie inside their shapes and both buffers hold their shapes: callers check it, and a violation is a
/// slice out of range.
pub(crate) fn copy_box(
    src: &[u8],
    (src_shape, from): Place<'_>,
    dst: &mut [u8],
    (dst_shape, to): Place<'_>,
    len: &[u64],
    size: usize,
) {
    walk((src_shape, from), (dst_shape, to), len, size, |s, d, n| {
        dst[d..d + n].copy_from_slice(&src[s..s + n]);
    });
}

/// Fills a box of a dense row-major buffer with one cell's bytes.
pub(crate) fn fill_box(dst: &mut [u8], at: Place<'_>, len: &[u64], cell: &[u8]) {
    let size = cell.len();
    let same = cell.iter().all(|&b| b == cell[0]);
    walk(at, at, len, size, |_, d, n| {
        let run = &mut dst[d..d + n];
        if same {
            run.fill(cell[0]);
        } else {
            run.chunks_exact_mut(size).for_each(|c| c.copy_from_slice(cell));
        }
    });
}

/// Calls `run(source byte, destination byte, bytes)` for each stretch that is contiguous on both sides.
pub(crate) fn walk(
    (src_shape, from): Place<'_>,
    (dst_shape, to): Place<'_>,
    len: &[u64],
    size: usize,
    mut run: impl FnMut(usize, usize, usize),
) {
    if len.contains(&0) {
        return;
    }
    let rank = len.len();
    // Trailing axes that the box covers on both sides join into one stretch.
    let mut inner = rank;
    let mut stretch = size;
    while inner > 0 {
        inner -= 1;
        stretch *= len[inner] as usize;
        if len[inner] != src_shape[inner] || len[inner] != dst_shape[inner] {
            break;
        }
    }
    let (ss, ds) = (byte_strides(src_shape, size), byte_strides(dst_shape, size));
    let start = |at: &[u64], strides: &[usize]| -> usize {
        at.iter().zip(strides).map(|(&p, s)| p as usize * s).sum()
    };
    let (mut s, mut d) = (start(from, &ss), start(to, &ds));
    let mut index: Dims = SmallVec::from_elem(0, inner);
    loop {
        run(s, d, stretch);
        let mut axis = inner;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            s += ss[axis];
            d += ds[axis];
            if index[axis] < len[axis] {
                break;
            }
            s -= ss[axis] * len[axis] as usize;
            d -= ds[axis] * len[axis] as usize;
            index[axis] = 0;
        }
    }
}

/// Copies a box of `len` cells of `size` bytes between two buffers, which both begin with its first cell. Strides are in
/// cells.
///
/// # Errors
/// A buffer that does not hold the box.
pub(crate) fn copy_strided(
    (src, src_strides): (&[u8], &[i64]),
    (dst, dst_strides): (&mut [u8], &[i64]),
    len: &[u64],
    size: usize,
) -> Result<(), String> {
    if matches!(size, 1 | 2 | 4 | 8) {
        let from = Strided { bytes: src, offset: 0, strides: src_strides };
        let done = copy::copy_box(size, len, from, dst, 0, dst_strides);
        return done.map_err(|e| e.to_string());
    }
    // The bytes of a text are an axis.
    let in_bytes = |strides: &[i64]| -> Vec<i64> {
        strides.iter().map(|s| s * size as i64).chain([1]).collect()
    };
    let len: Dims = len.iter().copied().chain([size as u64]).collect();
    copy_strided((src, &in_bytes(src_strides)), (dst, &in_bytes(dst_strides)), &len, 1)
}

/// Bytes between two cells along each axis of a dense row-major buffer.
pub(crate) fn byte_strides(shape: &[u64], size: usize) -> SmallVec<[usize; 6]> {
    let mut out: SmallVec<[usize; 6]> = SmallVec::from_elem(size, shape.len());
    for a in (0..shape.len().saturating_sub(1)).rev() {
        out[a] = out[a + 1] * shape[a + 1].max(1) as usize;
    }
    out
}

/// The box of a typical chunk of a grid that begins at `origin`: not the first one, which may be shorter.
pub(crate) fn typical_box(grid: &Grid, origin: &[u64]) -> Region {
    let at: Dims = grid.axes.iter().map(|g| u64::from(g.count() > 2)).collect();
    grid.region(&at).moved_by(origin)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn axes_change_their_order() {
        let src: Vec<u8> = (0..24).collect();
        let mut dst = vec![0; 24];
        // np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[1] is [[1, 5, 9], [13, 17, 21]].
        copy_strided((&src, &[1, 12, 4]), (&mut dst, &[6, 3, 1]), &[4, 2, 3], 1).unwrap();
        assert_eq!(dst[6..12], [1, 5, 9, 13, 17, 21]);
        // np.arange(24, dtype="u1").view("S3").reshape(2, 4).T
        copy_strided((&src, &[1, 4]), (&mut dst, &[2, 1]), &[4, 2], 3).unwrap();
        assert_eq!(dst[..9], [0, 1, 2, 12, 13, 14, 3, 4, 5]);
        copy_strided((&src[..1], &[]), (&mut dst[..1], &[]), &[], 1).unwrap();
        copy_strided((&[], &[4, 1]), (&mut [], &[1, 1]), &[0, 4], 1).unwrap();
        assert_eq!(dst[0], 0);
        assert!(copy_strided((&src, &[1]), (&mut dst, &[1]), &[25], 1).is_err());
    }

    #[test]
    fn a_box_of_each_rank_arrives() {
        // 0-d, and a 3-d box against the plain triple loop.
        let mut one = [0u8; 2];
        copy_box(&[7, 8], (&[], &[]), &mut one, (&[], &[]), &[], 2);
        assert_eq!(one, [7, 8]);
        let src: Vec<u8> = (0..60).collect();
        for (from, len) in [([0, 0, 0], [3, 4, 5]), ([1, 1, 2], [2, 2, 3]), ([0, 2, 0], [3, 2, 5])]
        {
            let mut dst = vec![255u8; 4 * 5 * 6];
            copy_box(&src, (&[3, 4, 5], &from), &mut dst, (&[4, 5, 6], &[1, 1, 1]), &len, 1);
            for z in 0..4u64 {
                for y in 0..5u64 {
                    for x in 0..6u64 {
                        let at = [z, y, x];
                        let inside = (0..3).all(|a| at[a] >= 1 && at[a] < 1 + len[a]);
                        let p: Vec<u64> =
                            (0..3).map(|a| (from[a] + at[a]).wrapping_sub(1)).collect();
                        let want = if inside { (p[0] * 20 + p[1] * 5 + p[2]) as u8 } else { 255 };
                        assert_eq!(dst[(z * 30 + y * 6 + x) as usize], want, "{at:?}");
                    }
                }
            }
        }
    }
}
