#![expect(unsafe_code, reason = "bodies of vector levels are unsafe; calls say why they are sound")]
//! Unshuffling: joining the bytes of items again.

use crate::Level;
use crate::level::leveled;
use std::ops::Range;
use std::sync::OnceLock;

/// Bytes of items that are put together while they are in the innermost cache.
const BLOCK_BYTES: usize = 16 << 10;

/// Writes the bytes `wanted` of a shuffled block: whole items, except the bytes after the last item, which are not
/// shuffled.
pub fn unshuffle(block: &[u8], item: usize, wanted: Range<usize>, out: &mut [u8]) {
    join(block, item, wanted, out, false);
}

/// Like [`unshuffle`], with the bytes of each item in reverse order.
pub fn unshuffle_reversed(block: &[u8], item: usize, wanted: Range<usize>, out: &mut [u8]) {
    join(block, item, wanted, out, true);
}

fn join(block: &[u8], item: usize, wanted: Range<usize>, out: &mut [u8], is_reversed: bool) {
    let n = block.len() / item;
    let items = wanted.start / item..(wanted.end / item).min(n).max(wanted.start / item);
    let (cells, rest) = out.split_at_mut(items.len() * item);
    // The bytes at one place of all items.
    let plane = |at: usize| {
        let k = if is_reversed { item - 1 - at } else { at };
        &block[k * n + items.start..k * n + items.end]
    };
    let level = level();
    match item {
        1 => cells.copy_from_slice(plane(0)),
        2 => together::<2>(level, plane, cells),
        4 => together::<4>(level, plane, cells),
        8 => together::<8>(level, plane, cells),
        _ => in_blocks(item, plane, cells),
    }
    let from = wanted.end - rest.len();
    rest.copy_from_slice(&block[from..wanted.end]);
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(Level::detect)
}

/// Joins the bytes of items at a level. Arguments: planes, one per byte of an item, and the items.
type JoinFn = unsafe fn(&[&[u8]], &mut [u8]);

fn together<'a, const N: usize>(level: Level, plane: impl Fn(usize) -> &'a [u8], cells: &mut [u8]) {
    let planes: [&[u8]; N] = std::array::from_fn(plane);
    let join = match N {
        2 => pick2(level),
        4 => pick4(level),
        _ => pick8(level),
    };
    // SAFETY: the level is one of this machine.
    unsafe { join(&planes, cells) }
}

/// Joins items of any size: those of a block are written four places at a time.
fn in_blocks<'a>(item: usize, plane: impl Fn(usize) -> &'a [u8], cells: &mut [u8]) {
    let step = (BLOCK_BYTES / item).max(1);
    for (b, cells) in cells.chunks_mut(step * item).enumerate() {
        let items = b * step..b * step + cells.len() / item;
        let whole = item - item % 4;
        for at in (0..whole).step_by(4) {
            let [p, q, r, s]: [&[u8]; 4] = std::array::from_fn(|i| &plane(at + i)[items.clone()]);
            let bytes = p.iter().zip(q).zip(r).zip(s);
            for (cell, (((p, q), r), s)) in cells.chunks_exact_mut(item).zip(bytes) {
                cell[at..at + 4].copy_from_slice(&[*p, *q, *r, *s]);
            }
        }
        for at in whole..item {
            let bytes = &plane(at)[items.clone()];
            cells.chunks_exact_mut(item).zip(bytes).for_each(|(cell, byte)| cell[at] = *byte);
        }
    }
}

/// # Safety
/// No requirements: only the copies compiled for a level have some.
#[inline(always)]
unsafe fn body2(planes: &[&[u8]], cells: &mut [u8]) {
    let [a, b] = planes else { return };
    let cells = cells.as_chunks_mut::<2>().0;
    for ((cell, a), b) in cells.iter_mut().zip(*a).zip(*b) {
        *cell = (u16::from(*a) | u16::from(*b) << 8).to_le_bytes();
    }
}

/// # Safety
/// The contract of [`body2`].
#[inline(always)]
unsafe fn body4(planes: &[&[u8]], cells: &mut [u8]) {
    let [a, b, c, d] = planes else { return };
    let cells = cells.as_chunks_mut::<4>().0;
    for ((((cell, a), b), c), d) in cells.iter_mut().zip(*a).zip(*b).zip(*c).zip(*d) {
        let (a, b, c, d) = (u32::from(*a), u32::from(*b), u32::from(*c), u32::from(*d));
        *cell = (a | b << 8 | c << 16 | d << 24).to_le_bytes();
    }
}

/// # Safety
/// The contract of [`body2`].
#[inline(always)]
unsafe fn body8(planes: &[&[u8]], cells: &mut [u8]) {
    let [a, b, c, d, e, f, g, h] = planes else { return };
    let cells = cells.as_chunks_mut::<8>().0;
    let low = a.iter().zip(*b).zip(*c).zip(*d);
    let high = e.iter().zip(*f).zip(*g).zip(*h);
    for ((cell, (((a, b), c), d)), (((e, f), g), h)) in cells.iter_mut().zip(low).zip(high) {
        let wide = |x: &u8| u64::from(*x);
        let low = wide(a) | wide(b) << 8 | wide(c) << 16 | wide(d) << 24;
        let high = wide(e) << 32 | wide(f) << 40 | wide(g) << 48 | wide(h) << 56;
        *cell = (low | high).to_le_bytes();
    }
}

leveled!(pick2, body2<>(planes: &[&[u8]], cells: &mut [u8]) as JoinFn);
leveled!(pick4, body4<>(planes: &[&[u8]], cells: &mut [u8]) as JoinFn);
leveled!(pick8, body8<>(planes: &[&[u8]], cells: &mut [u8]) as JoinFn);

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a shuffled block, one by one.
    fn plain(block: &[u8], item: usize, is_reversed: bool) -> Vec<u8> {
        let n = block.len() / item;
        let place = |k: usize| if is_reversed { item - 1 - k } else { k };
        let joined = (0..n * item).map(|i| block[place(i % item) * n + i / item]);
        joined.chain(block[n * item..].iter().copied()).collect()
    }

    #[test]
    fn items_of_any_size_and_number_come_together() {
        for item in [1, 2, 3, 4, 7, 8, 12, 16, 20, 40_000] {
            for len in [0, 1, item - 1, item, item + 1, 31 * item + item / 2, 1_003 * item + 1] {
                // 1,003 items of 40,000 bytes are more than the test needs.
                let len = len.min(1 << 17);
                let block: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
                for is_reversed in [false, true] {
                    let want = plain(&block, item, is_reversed);
                    let last = len / item * item;
                    let some = last / item / 3 * item..last / item / 2 * item;
                    for wanted in [0..len, some.clone(), 0..last, some.start..len] {
                        let mut out = vec![0; wanted.len()];
                        join(&block, item, wanted.clone(), &mut out, is_reversed);
                        assert!(out == want[wanted.clone()], "{item} of {len}: {wanted:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_are_reversed_within_items() {
        // np.arange(6, dtype='>u2') as bytes, shuffled: the high bytes, then the low ones.
        let block = [0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5];
        let mut out = [0; 12];
        unshuffle_reversed(&block, 2, 0..12, &mut out);
        assert_eq!(out, [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
        unshuffle(&block, 2, 0..12, &mut out);
        assert_eq!(out, [0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5]);
    }

    #[test]
    fn items_come_together_at_every_level() {
        for item in [2, 3, 4, 8, 16] {
            for rest in [0, 1] {
                let n = 1003;
                let cells: Vec<u8> =
                    (0..n * item + rest).map(|i| (i * 7 + i / 251) as u8).collect();
                let mut block = cells.clone();
                for i in 0..n {
                    for k in 0..item {
                        block[k * n + i] = cells[i * item + k];
                    }
                }
                for wanted in [0..cells.len(), 0..item, 5 * item..700 * item, item..cells.len()] {
                    let mut out = vec![0; wanted.len()];
                    unshuffle(&block, item, wanted.clone(), &mut out);
                    assert!(out == cells[wanted.clone()], "{item} {wanted:?}");
                }
                for level in Level::available() {
                    let mut out = vec![0; n * item];
                    let plane = |k: usize| &block[k * n..(k + 1) * n];
                    match item {
                        2 => together::<2>(level, plane, &mut out),
                        4 => together::<4>(level, plane, &mut out),
                        8 => together::<8>(level, plane, &mut out),
                        _ => continue,
                    }
                    assert!(out == cells[..n * item], "{item} {level:?}");
                }
            }
        }
    }
}
