#![expect(unsafe_code, reason = "bodies of vector levels are unsafe; calls say why they are sound")]
//! Unshuffling: joining the bytes of items again.

use crate::Level;
use crate::level::leveled;
use std::ops::Range;
use std::sync::OnceLock;

/// Writes the bytes `wanted` of a shuffled block: whole items, except the bytes after the last item, which are not
/// shuffled.
pub fn unshuffle(block: &[u8], item: usize, wanted: Range<usize>, out: &mut [u8]) {
    let n = block.len() / item;
    let items = wanted.start / item..(wanted.end / item).min(n).max(wanted.start / item);
    let (cells, rest) = out.split_at_mut(items.len() * item);
    let level = level();
    match item {
        2 => together::<2>(level, block, n, &items, cells),
        4 => together::<4>(level, block, n, &items, cells),
        8 => together::<8>(level, block, n, &items, cells),
        _ => {
            for (i, cell) in items.clone().zip(cells.chunks_exact_mut(item)) {
                for (k, byte) in cell.iter_mut().enumerate() {
                    *byte = block[k * n + i];
                }
            }
        }
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

fn together<const N: usize>(
    level: Level,
    block: &[u8],
    n: usize,
    items: &Range<usize>,
    cells: &mut [u8],
) {
    let planes: [&[u8]; N] =
        std::array::from_fn(|k| &block[k * n + items.start..k * n + items.end]);
    let join = match N {
        2 => pick2(level),
        4 => pick4(level),
        _ => pick8(level),
    };
    // SAFETY: the level is one of this machine.
    unsafe { join(&planes, cells) }
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
/// As [`body2`].
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
/// As [`body2`].
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
                    match item {
                        2 => together::<2>(level, &block, n, &(0..n), &mut out),
                        4 => together::<4>(level, &block, n, &(0..n), &mut out),
                        8 => together::<8>(level, &block, n, &(0..n), &mut out),
                        _ => continue,
                    }
                    assert!(out == cells[..n * item], "{item} {level:?}");
                }
            }
        }
    }
}
