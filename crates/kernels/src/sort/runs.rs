//! Runs: sorted parts of lines that are merged later.
//!
//! ```text
//!   run     keys       3 5 5 9 MAX . .    of the unmasked cells; MAX is NaN
//!           positions  7 1 4 0 5   2 6    from the first cell of the part; the masked cells' come last
//!   index   5 4 3 5 MAX                   unmasked cells, numbers, every second key
//! ```
//! Equal keys retain the order of their positions, and so do the keys of zeros, which the index does not tell apart.

use super::LinesIn;
use super::key::{Key, Keyed, by_cell, nan_key, ordered, other_size};
use super::order::{Wanted, arrange, first_sorted, place};
use super::zeros::same;
use crate::KernelError;
use tessera_planner::runs::INDEX_HEAD;
use tessera_planner::sort::SortOrder;

/// Mutable keys, by key size.
#[derive(Debug)]
pub enum KeysMut<'a> {
    /// Of 8 bits.
    U8(&'a mut [u8]),
    /// Of 16 bits.
    U16(&'a mut [u16]),
    /// Of 32 bits.
    U32(&'a mut [u32]),
    /// Of 64 bits.
    U64(&'a mut [u64]),
}

/// Destination of runs, line after line.
#[derive(Debug)]
pub struct RunsOut<'a> {
    /// Cells of each run: the length of a line, or fewer.
    pub kept: u64,
    /// Keys; those of masked cells are 0.
    pub keys: KeysMut<'a>,
    /// Positions, if requested.
    pub positions: Option<&'a mut [u32]>,
    /// Distance between the cells in the index.
    pub every: u64,
    /// True to sort only the cells in the index, with the others between them.
    pub marked: bool,
    /// Indices of the runs.
    pub index: &'a mut [u64],
}

/// Numbers of cells that a run retains.
struct KeptCells {
    /// Number of unmasked cells, and of those that are not NaN.
    keyed: usize,
    numbers: usize,
}

/// Sorts each line. With positions, -0.0 and 0.0 are equal.
///
/// # Errors
/// [`KernelError::Cancelled`], [`KernelError::Buffer`] for buffers that do not fit.
pub fn runs(
    lines: LinesIn<'_>,
    order: SortOrder,
    out: RunsOut<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    macro_rules! run {
        ($t:ident, $width:ident) => {
            match out.keys {
                KeysMut::$width(keys) => {
                    let rest = Rest {
                        kept: out.kept as usize,
                        positions: out.positions,
                        every: out.every.max(1) as usize,
                        marked: out.marked,
                        index: out.index,
                    };
                    each::<$t>(lines, order, keys, rest, cancelled)
                }
                _ => Err(other_size(lines.dtype)),
            }
        };
    }
    by_cell!(lines.dtype, run)
}

/// [`RunsOut`] without keys.
struct Rest<'a> {
    kept: usize,
    positions: Option<&'a mut [u32]>,
    every: usize,
    marked: bool,
    index: &'a mut [u64],
}

fn each<T: Keyed>(
    lines: LinesIn<'_>,
    order: SortOrder,
    keys: &mut [T::Key],
    mut out: Rest<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    lines.check()?;
    let (count, kept) = (lines.count() as usize, out.kept);
    let wide = kept.div_ceil(out.every) + INDEX_HEAD as usize;
    let expect = |what, got: usize, expected: usize| match got < expected {
        true => Err(KernelError::Buffer { what, got: got as u64, expected: expected as u64 }),
        false => Ok(()),
    };
    expect("keys of runs", keys.len(), count * kept)?;
    expect("index of runs", out.index.len(), count * wide)?;
    if let Some(p) = &out.positions {
        expect("positions of runs", p.len(), count * kept)?;
        expect("range of positions", u32::MAX as usize, lines.shape[lines.axis] as usize)?;
    }
    let mut pairs = Vec::new();
    for line in 0..count {
        if cancelled() {
            return Err(KernelError::Cancelled);
        }
        let from = lines.start(line as u64);
        let keys = &mut keys[line * kept..][..kept];
        let made = match out.positions.as_deref_mut() {
            Some(positions) => {
                let positions = &mut positions[line * kept..][..kept];
                with_positions::<T>(lines, from, order, keys, positions, &mut pairs)
            }
            None => {
                let wanted = if out.marked { Wanted::Multiples(out.every) } else { Wanted::All };
                values::<T>(lines, from, order, keys, wanted)
            }
        };
        let index = &mut out.index[line * wide..][..wide];
        let (head, samples) = index.split_at_mut(INDEX_HEAD as usize);
        head.copy_from_slice(&[made.keyed as u64, made.numbers as u64]);
        // Runs of which only the keys in the index are in order have -0.0 before 0.0.
        let zeros = T::ZEROS.filter(|_| !out.marked);
        for (sample, key) in samples.iter_mut().zip(keys.iter().step_by(out.every)) {
            *sample = same(zeros, *key).wide();
        }
    }
    Ok(())
}

/// Numbers of retained cells: unmasked ones, and numbers.
fn keep(kept: usize, (numbers, nan, masked): (usize, usize, usize), order: SortOrder) -> KeptCells {
    let keyed = if order.masked_first { kept.saturating_sub(masked) } else { kept };
    let keyed = keyed.min(numbers + nan);
    let numbers = if order.nan_first { keyed.saturating_sub(nan) } else { numbers.min(keyed) };
    KeptCells { keyed, numbers }
}

/// Calls `f` with the keys of a line's unmasked cells.
#[inline(always)]
fn each_key<T: Keyed>(lines: LinesIn<'_>, from: i64, order: SortOrder, mut f: impl FnMut(T::Key)) {
    lines.cells::<T>(from, |_, cell| {
        if let Some(cell) = cell {
            f(ordered(cell.key(), order));
        }
    });
}

/// Writes the zeros of a line into sorted keys in the order of the cells.
fn zeros_in_order<T: Keyed>(
    lines: LinesIn<'_>,
    from: i64,
    order: SortOrder,
    keys: &mut [T::Key],
    sorted: usize,
) {
    if let Some(zeros) = T::ZEROS
        && let Some(places) = zeros.mixed(keys, sorted)
    {
        let mut to = keys[places].iter_mut();
        each_key::<T>(lines, from, order, |key| {
            if zeros.has(key)
                && let Some(to) = to.next()
            {
                *to = key;
            }
        });
    }
}

/// Writes a run without positions.
fn values<T: Keyed>(
    lines: LinesIn<'_>,
    from: i64,
    order: SortOrder,
    keys: &mut [T::Key],
    wanted: Wanted<'_>,
) -> KeptCells {
    let len = lines.shape[lines.axis] as usize;
    if keys.len() < len {
        let mut all = Vec::with_capacity(len);
        each_key::<T>(lines, from, order, |key| all.push(key));
        let nan = nan::<T>(&all, order);
        let made = keep(keys.len(), (all.len() - nan, nan, len - all.len()), order);
        place(&mut all, Wanted::First(made.keyed));
        zeros_in_order::<T>(lines, from, order, &mut all, made.keyed);
        keys[..made.keyed].copy_from_slice(&all[..made.keyed]);
        keys[made.keyed..].fill(T::Key::default());
        return made;
    }
    let mut keyed = 0;
    if let Some(dense) = lines.dense::<T>(from) {
        for (key, cell) in keys.iter_mut().zip(dense.chunks_exact(size_of::<T>())) {
            *key = ordered(T::read(cell, 0).key(), order);
        }
        keyed = len;
    } else {
        each_key::<T>(lines, from, order, |key| {
            keys[keyed] = key;
            keyed += 1;
        });
    }
    let (keys, masked) = keys.split_at_mut(keyed);
    masked.fill(T::Key::default());
    let nan = nan::<T>(keys, order);
    arrange(keys, wanted);
    if matches!(wanted, Wanted::All) {
        zeros_in_order::<T>(lines, from, order, keys, keyed);
    }
    keep(len, (keyed - nan, nan, masked.len()), order)
}

/// Number of keys that are NaN's.
fn nan<T: Keyed>(keys: &[T::Key], order: SortOrder) -> usize {
    if !T::HAS_NAN {
        return 0;
    }
    keys.iter().filter(|&&key| key == nan_key(order)).count()
}

/// Writes a run with the positions of its cells.
fn with_positions<T: Keyed>(
    lines: LinesIn<'_>,
    from: i64,
    order: SortOrder,
    keys: &mut [T::Key],
    positions: &mut [u32],
    scratch: &mut Vec<(T::Key, u32)>,
) -> KeptCells {
    let (mut nan, mut masked) = (0, 0);
    scratch.clear();
    scratch.reserve_exact(lines.shape[lines.axis] as usize);
    lines.cells::<T>(from, |i, cell| match cell.map(T::equal_key) {
        Some(key) => {
            nan += usize::from(key.is_none());
            scratch.push((ordered(key, order), i as u32));
        }
        None => masked += 1,
    });
    let made = keep(keys.len(), (scratch.len() - nan, nan, masked), order);
    // Positions break ties, which makes the sort stable.
    first_sorted(scratch, made.keyed);
    for ((k, p), &(key, position)) in keys.iter_mut().zip(positions.iter_mut()).zip(&*scratch) {
        (*k, *p) = (key, position);
    }
    keys[made.keyed..].fill(T::Key::default());
    let mut at = made.keyed;
    if at < positions.len() {
        lines.cells::<T>(from, |i, cell| {
            if cell.is_none() && at < positions.len() {
                positions[at] = i as u32;
                at += 1;
            }
        });
    }
    made
}
