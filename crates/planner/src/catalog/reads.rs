//! How a box of cells is read from a stored chunk that has them in their form in memory.
//!
//! ```text
//!   chunk    . # # # . .      read at once, with the small gaps      # # # . . . # # # . . . # # #
//!            . # # # . .      copied to its target                   # # #   # # #   # # #
//!            . # # # . .
//! ```

use crate::region::Dims;

/// Reads of a box: one for each position along the axes before `apart` and each `step` positions along that axis, with
/// all cells of the box along the axes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reads {
    /// Number of leading axes along which each position is read by itself.
    pub apart: usize,
    /// Positions along the next axis that are read at once.
    pub step: u64,
    /// Bytes from the first cell of a read to its last one.
    pub bytes: u64,
    /// True if the bytes of a read lie together at their target, too; else they are copied there.
    pub is_direct: bool,
}

impl Reads {
    /// Memory that each operand has for reads besides the memory that is planned for them ([`SourceRef::window`]).
    ///
    /// [`SourceRef::window`]: super::SourceRef::window
    pub const SCRATCH_BYTES: u64 = 256 << 10;

    /// Largest gap that is read with the cells on both sides. A disk delivers no less than a page.
    pub const GAP_BYTES: u64 = 4 << 10;

    /// Upper bound on the bytes that are read at once and copied to their target. Larger reads are hardly faster, and
    /// the bytes would leave the processor's cache before they are copied.
    pub const WINDOW_BYTES: u64 = 1 << 20;

    /// Cells that lie together in the chunk and at their target are read straight to it from this length on: a read
    /// costs less than a copy of so many bytes.
    pub const DIRECT_BYTES: u64 = 16 << 10;

    /// The reads of a box of `len` cells in a chunk of `chunk` cells, which is part of a dense row-major array of
    /// `target` cells. Cells have `size` bytes. What is copied has at most `most` bytes, no less than
    /// [`Reads::DIRECT_BYTES`].
    pub fn new(chunk: &[u64], len: &[u64], target: &[u64], size: u64, most: u64) -> Reads {
        let rank = len.len();
        let mut pitch: Dims = Dims::from_elem(size, rank);
        for a in (0..rank.saturating_sub(1)).rev() {
            pitch[a] = pitch[a + 1].saturating_mul(chunk[a + 1]);
        }
        let more = |a: usize| len[a].saturating_sub(1).saturating_mul(pitch[a]);
        let (mut placed, mut inner) = (size, rank);
        while inner > 0 {
            inner -= 1;
            placed = placed.saturating_mul(len[inner]);
            if len[inner] != chunk[inner] || len[inner] != target[inner] {
                break;
            }
        }
        let (mut bytes, mut apart) = (placed, inner);
        while apart > 0 {
            let a = apart - 1;
            if len[a] > 1 && pitch[a].saturating_sub(bytes) > Self::GAP_BYTES {
                break;
            }
            bytes = bytes.saturating_add(more(a));
            apart = a;
        }
        let step = |a: usize| len.get(a).copied().unwrap_or(1).max(1);
        if bytes == placed || placed >= Self::DIRECT_BYTES {
            return Reads { apart: inner, step: step(inner), bytes: placed, is_direct: true };
        }
        while bytes > most && apart < inner {
            let row = bytes - more(apart);
            if row <= most {
                let step = 1 + (most - row) / pitch[apart].max(1);
                let bytes = row + (step - 1) * pitch[apart];
                return Reads { apart, step, bytes, is_direct: false };
            }
            (bytes, apart) = (row, apart + 1);
        }
        Reads { apart, step: step(apart), bytes, is_direct: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(chunk: &[u64], len: &[u64], target: &[u64], size: u64) -> (usize, u64, u64, bool) {
        let reads = Reads::new(chunk, len, target, size, Reads::WINDOW_BYTES);
        let Reads { apart, step, bytes, is_direct } = reads;
        (apart, step, bytes, is_direct)
    }

    #[test]
    fn lines_that_lie_close_are_one_read() {
        // A whole chunk, whose lines of 164 bytes are parts of longer ones.
        let chunk = [100, 25, 41];
        assert_eq!(of(&chunk, &chunk, &[100, 50, 360], 4), (0, 100, 410_000, false));
        // The same as all of the target, and as rows of it: straight to their place.
        assert_eq!(of(&chunk, &chunk, &chunk, 4), (0, 100, 410_000, true));
        assert_eq!(of(&chunk, &[30, 25, 41], &[200, 25, 41], 4), (0, 30, 123_000, true));
        // Rows of a chunk in each of 100 planes that lie 4,100 bytes apart.
        let lines = 99 * 4_100 + 20 * 164;
        assert_eq!(of(&chunk, &[100, 20, 41], &[100, 20, 360], 4), (0, 100, lines, false));
    }

    #[test]
    fn lines_that_lie_far_apart_are_read_one_by_one() {
        // 4,000 of 100,000 bytes.
        assert_eq!(of(&[400, 25_000], &[400, 1_000], &[400, 1_000], 4), (1, 1_000, 4_000, true));
        // Groups of 20 lines with gaps of 1,600 bytes; 81,600 bytes are between the groups.
        let (chunk, len) = ([4, 40, 1_000], [4, 20, 600]);
        assert_eq!(of(&chunk, &len, &[6, 20, 600], 4), (1, 20, 19 * 4_000 + 2_400, false));
        // Long lines are not copied, although the gaps are small.
        assert_eq!(of(&[100, 5_000], &[100, 4_900], &[100, 4_900], 4), (1, 4_900, 19_600, true));
        assert_eq!(of(&[], &[], &[], 8), (0, 1, 8, true));
    }

    #[test]
    fn large_chunks_are_read_in_parts() {
        // 2,000 lines of 4,000 bytes: 262 lines are 1,048,000 bytes.
        let chunk = [2_000, 1_000];
        assert_eq!(of(&chunk, &chunk, &[2_000, 3_000], 4), (0, 262, 1_048_000, false));
        // Planes of 2 MB, each in two parts.
        let chunk = [10, 500, 500];
        let all = of(&chunk, &chunk, &[10, 500, 1_000], 8);
        assert_eq!(all, (1, 262, 1_048_000, false));
        // With less memory, in smaller ones.
        let chunk = [2_000, 1_000];
        let reads = Reads::new(&chunk, &chunk, &[2_000, 3_000], 4, Reads::SCRATCH_BYTES);
        assert_eq!((reads.apart, reads.step, reads.bytes), (0, 65, 260_000));
    }
}
