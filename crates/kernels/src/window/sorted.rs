//! Quantiles over windows: the cells of a window stay sorted while it moves.
//!
//! ```text
//!   row 0     ▁ ▂ ▁ ▃ ▁ ▂ ▂ ▁      the least cell of each of 8 lines' windows
//!   row 1     ▃ ▃ ▂ ▅ ▃ ▃ ▂ ▄
//!   row 2     ▅ ▇ ▄ ▆ ▇ ▅ ▅ ▆      the greatest
//! ```
//! A step replaces, in each line, the cell that leaves by the one that enters: what is above the first moves one row
//! down, what is above the second one row up again. One pass over the rows does both, for all lines at once, without a
//! branch. In long windows a step is a search and a move in each line.
//!
//! Cells are keys. A missing cell (beyond the axis, masked, NaN) is the greatest key, which no number has, so every
//! window has as many keys as it is wide. The keys are the same as those of sorted lines, so results have the same
//! bits.

use super::{Job, Windows};
use crate::KernelError;
use crate::level::leveled;
use crate::sort::{Key, Keyed};
use smallvec::SmallVec;
use tessera_planner::region::strides;
use tessera_planner::sort::QuantileMethod;

/// Lines that move together: a cache line of 8-byte cells.
const LINES: usize = 8;

/// Longest window whose rows are passed through, if there are [`LINES`] lines; for fewer lines it is shorter.
const PASSED: usize = 256;

/// Positions between two checks for cancellation.
const CANCEL: i64 = 256;

/// Windows of a few lines.
struct Group<'s, 'a, T: Keyed> {
    job: &'s mut Job<'a>,
    q: f64,
    /// Elements from a part's first cell to the first cell of each line.
    from: &'s [i64],
    /// Start of each line's results.
    to: &'s [usize],
    /// Cells between consecutive results of a line.
    to_step: usize,
    /// The sorted keys: row after row of all lines if `passed`, else line after line.
    keys: &'s mut [T::Key],
    passed: bool,
    /// Keys of a window.
    width: usize,
    cancelled: bool,
}

/// The cells of the lines at one position.
struct Cells<K> {
    keys: [K; LINES],
    numbers: [u64; LINES],
    nan: [u64; LINES],
}

#[inline(always)]
fn missing<K: Key>() -> K {
    !K::default()
}

/// Writes the quantile `q` of the windows of all lines.
pub(super) fn quantiles<T: Keyed>(mut job: Job<'_>, q: f64) -> Result<(), KernelError> {
    let Windows { shape, axis, frame, level, .. } = job.w;
    if shape.contains(&0) {
        return Ok(());
    }
    let dense = strides(shape);
    let others: SmallVec<[usize; 6]> = (0..shape.len()).filter(|&a| a != axis).collect();
    let lines: u64 = others.iter().map(|&a| shape[a]).product();
    let place = |mut line: u64, steps: &[i64]| {
        let mut at = 0;
        for &a in others.iter().rev() {
            at += (line % shape[a]) as i64 * steps[a];
            line /= shape[a];
        }
        at
    };
    let width = frame.width().max(1) as usize;
    let widest = LINES.min(lines as usize);
    let passed = width <= PASSED / LINES * widest;
    let mut keys = vec![missing::<T::Key>(); width * if passed { LINES } else { widest }];
    for first in (0..lines).step_by(LINES) {
        let some = first..lines.min(first + LINES as u64);
        let from: SmallVec<[i64; LINES]> =
            some.clone().map(|l| place(l, job.input.strides)).collect();
        let to: SmallVec<[usize; LINES]> = some.map(|l| place(l, &dense) as usize).collect();
        keys.fill(missing());
        let mut these = Group::<T> {
            job: &mut job,
            q,
            from: &from,
            to: &to,
            to_step: dense[axis] as usize,
            keys: &mut keys,
            passed,
            width,
            cancelled: false,
        };
        // SAFETY: `supported` returns a level that this machine has.
        unsafe { pick_group::<T>(level.supported())(&mut these) };
        if these.cancelled {
            return Err(KernelError::Cancelled);
        }
    }
    Ok(())
}

type GroupFn<T> = unsafe fn(&mut Group<'_, '_, T>);
leveled!(pick_group, group<T: Keyed>(g: &mut Group<'_, '_, T>) as GroupFn<T>);

/// # Safety
/// The machine has the instructions that the body is compiled for.
#[inline(always)]
unsafe fn group<T: Keyed>(g: &mut Group<'_, '_, T>) {
    let Windows { shape, axis, frame, len, first, .. } = g.job.w;
    let (start, end) = (first as i64, (first + shape[axis]) as i64);
    let (mut numbers, mut nan) = ([0u64; LINES], [0u64; LINES]);
    // The window of the first cell without its last position, which the first step adds.
    for p in start - frame.before..start + frame.after {
        if (0..len as i64).contains(&p) {
            let (before, now) = (g.cells(None), g.cells(Some(p)));
            g.replace(&before.keys, &now.keys);
            add(&mut numbers, &now.numbers, &before.numbers);
            add(&mut nan, &now.nan, &before.nan);
        }
    }
    for i in start..end {
        if (i - start) % CANCEL == 0 && (g.job.cancelled)() {
            g.cancelled = true;
            return;
        }
        let leaves = g.cells((i > start).then_some(i - 1 - frame.before));
        let enters = g.cells(Some(i + frame.after));
        g.replace(&leaves.keys, &enters.keys);
        add(&mut numbers, &enters.numbers, &leaves.numbers);
        add(&mut nan, &enters.nan, &leaves.nan);
        g.write((i - start) as usize, &numbers, &nan);
    }
}

/// Adds the counts of entering cells to the counts of all lines, and subtracts those of leaving cells.
#[inline(always)]
fn add(counts: &mut [u64; LINES], enters: &[u64; LINES], leaves: &[u64; LINES]) {
    for ((count, enters), leaves) in counts.iter_mut().zip(enters).zip(leaves) {
        *count = count.wrapping_add(*enters).wrapping_sub(*leaves);
    }
}

impl<T: Keyed> Group<'_, '_, T> {
    /// The cells at a position; all are missing if `p` is `None` or beyond the axis.
    #[inline(always)]
    fn cells(&self, p: Option<i64>) -> Cells<T::Key> {
        let mut cells = Cells { keys: [missing(); LINES], numbers: [0; LINES], nan: [0; LINES] };
        let Some(p) = p.filter(|p| (0..self.job.w.len as i64).contains(p)) else { return cells };
        let (part, moved) = self.job.part(p);
        let counts = cells.numbers.iter_mut().zip(&mut cells.nan);
        for ((key, (number, nan)), from) in cells.keys.iter_mut().zip(counts).zip(self.from) {
            let at = (from + moved) as usize;
            if part.valid.is_none_or(|v| v[at] != 0) {
                let cell = T::read(part.bytes, at).key();
                *key = cell.unwrap_or(missing());
                *number = u64::from(cell.is_some());
                *nan = u64::from(cell.is_none());
            }
        }
        cells
    }

    /// Replaces a key of each line by another one.
    #[inline(always)]
    fn replace(&mut self, leaves: &[T::Key; LINES], enters: &[T::Key; LINES]) {
        if self.passed {
            pass(self.keys.as_chunks_mut::<LINES>().0, leaves, enters);
            return;
        }
        let lines = self.keys.chunks_exact_mut(self.width);
        for ((line, leaves), enters) in lines.zip(leaves).zip(enters) {
            search(line, *leaves, *enters);
        }
    }

    /// Writes the results of all lines at a position of the output.
    #[inline(always)]
    fn write(&mut self, position: usize, numbers: &[u64; LINES], nan: &[u64; LINES]) {
        let least = self.job.w.min_count.max(1);
        let (line, row) = if self.passed { (1, LINES) } else { (self.width, 1) };
        // Most windows have the same number of cells.
        let mut known = (0, (0, 0.0));
        for (l, ((to, &n), &nan)) in self.to.iter().zip(numbers).zip(nan).enumerate() {
            let to = to + position * self.to_step;
            let result = if n + nan < least {
                None
            } else if nan > 0 {
                Some(T::nan())
            } else {
                if known.0 != n {
                    known = (n, QuantileMethod::Linear.place(n, self.q));
                }
                let (low, t) = known.1;
                let at = l * line + low as usize * row;
                let a = T::of(self.keys[at]);
                let b = if t > 0.0 { T::of(self.keys[at + row]) } else { a };
                Some(T::between(a, b, t))
            };
            if let Some(valid) = self.job.out_valid.as_deref_mut() {
                valid[to] = u8::from(result.is_some());
            }
            result.unwrap_or_default().write(self.job.out, to);
        }
    }
}

/// Replaces a key of each column of sorted rows by another one.
#[inline(always)]
fn pass<K: Key>(rows: &mut [[K; LINES]], leaves: &[K; LINES], enters: &[K; LINES]) {
    // Without the leaving key, the row before.
    let mut below = [K::default(); LINES];
    let mut k = 0;
    while k < rows.len() {
        let above = rows.get(k + 1).copied().unwrap_or([missing(); LINES]);
        let keys = rows[k].iter_mut().zip(&mut below).zip(&above);
        for (((key, below), above), (leaves, enters)) in keys.zip(leaves.iter().zip(enters)) {
            let stays = if *key >= *leaves { *above } else { *key };
            *key = (*below).max(stays.min(*enters));
            *below = stays;
        }
        k += 1;
    }
}

/// Replaces a key of a sorted line by another one.
#[inline(always)]
fn search<K: Key>(line: &mut [K], leaves: K, enters: K) {
    if leaves == enters {
        return;
    }
    let from = line.partition_point(|k| *k < leaves);
    let to = line.partition_point(|k| *k < enters);
    if leaves < enters {
        line.copy_within(from + 1..to, from);
        line[to - 1] = enters;
    } else {
        line.copy_within(to..from, to + 1);
        line[to] = enters;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::{Input, Part, window};
    use super::*;
    use crate::Level;
    use crate::combine::Cell;
    use proptest::prelude::*;
    use tessera_planner::dtype::DType;
    use tessera_planner::reduce::ReduceKind;
    use tessera_planner::window::Frame;

    /// The definition: NumPy's linear quantile of the sorted cells of the window.
    fn defined(cells: &[Option<f64>], q: f64, least: u64) -> Option<f64> {
        let mut known: Vec<f64> = cells.iter().flatten().copied().collect();
        if (known.len() as u64) < least.max(1) {
            return None;
        }
        if known.iter().any(|x| x.is_nan()) {
            return Some(f64::NAN);
        }
        known.sort_by(f64::total_cmp);
        let (low, t) = QuantileMethod::Linear.place(known.len() as u64, q);
        let a = known[low as usize];
        Some(if t > 0.0 { f64::between(a, known[low as usize + 1], t) } else { a })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        #[test]
        fn quantiles_are_those_of_each_sorted_window(
            seed in any::<u64>(), n in 1u64..60, lines in 1u64..20, last in any::<bool>(),
            before in -4i64..50, width in 1i64..400, least in 0u64..4, values in 2u64..200,
            q in prop_oneof![Just(0.0f64), Just(0.5), Just(0.9), Just(1.0)],
        ) {
            // Wide windows beyond the axis are passed or searched as the others are.
            let frame = Frame { before, after: width - 1 - before };
            let mut state = seed;
            let cells: Vec<Option<f64>> = (0..n * lines)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    match (state >> 33) % 17 {
                        0 => None,
                        1 if values % 3 == 0 => Some(f64::NAN),
                        2 => Some(-0.0),
                        3 => Some(f64::INFINITY),
                        4 => Some(f64::NEG_INFINITY),
                        _ => Some(((state >> 40) % values) as f64 - 20.0),
                    }
                })
                .collect();
            let bytes: Vec<u8> =
                cells.iter().flat_map(|x| x.unwrap_or(7.5).to_ne_bytes()).collect();
            let valid: Vec<u8> = cells.iter().map(|x| u8::from(x.is_some())).collect();
            let (shape, axis, steps) = if last {
                ([lines, n], 1, [n as i64, 1])
            } else {
                ([n, lines], 0, [lines as i64, 1])
            };
            for level in Level::available() {
                let w = Windows { shape: &shape, axis, frame, min_count: least, len: n, first: 0, level };
                let cut = n / 3;
                let part = |first: u64| Part {
                    first,
                    bytes: &bytes,
                    valid: Some(&valid[..]),
                    offset: first as i64 * steps[axis],
                };
                let parts = [part(0), part(cut)];
                let input = Input { parts: &parts[..if cut > 0 { 2 } else { 1 }], strides: &steps };
                let (mut out, mut ok) = (vec![1; bytes.len()], vec![7; valid.len()]);
                let kind = ReduceKind::Quantile(q.to_bits());
                window(kind, DType::Float64, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
                for line in 0..lines {
                    let at = |p: u64| (if last { line * n + p } else { p * lines + line }) as usize;
                    for i in 0..n {
                        let (lo, hi) = frame.reads(i, i + 1, n);
                        let seen: Vec<Option<f64>> = (lo..hi).map(|p| cells[at(p)]).collect();
                        let got = (ok[at(i)] == 1).then(|| f64::read(&out, at(i)).to_bits());
                        let want = defined(&seen, q, least).map(f64::to_bits);
                        prop_assert_eq!(got, want, "{:?} {:?} line {} at {}", level, frame, line, i);
                    }
                }
            }
        }
    }

    #[test]
    fn medians_of_long_windows_are_those_of_numpy() {
        // np.median(x[k - 599 : k + 1]) of x = (np.arange(2000) * 7919) % 1009, for k = 599, 1000 and 1999.
        let cells: Vec<f32> = (0..2000u32).map(|i| ((i * 7919) % 1009) as f32).collect();
        let bytes: Vec<u8> = cells.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let frame = Frame { before: 599, after: 0 };
        let level = Level::detect();
        let w =
            Windows { shape: &[2000], axis: 0, frame, min_count: 600, len: 2000, first: 0, level };
        let part = Part { first: 0, bytes: &bytes, valid: None, offset: 0 };
        let input = Input { parts: &[part], strides: &[1] };
        let (mut out, mut ok) = (vec![0; 8000], vec![7; 2000]);
        let kind = ReduceKind::Quantile(0.5f64.to_bits());
        window(kind, DType::Float32, w, input, &mut out, Some(&mut ok), &|| false).unwrap();
        let got = [599, 1000, 1999].map(|k| f32::read(&out, k));
        assert_eq!(got, [505.5, 503.5, 502.5]);
        assert_eq!((ok[598], ok[599]), (0, 1));
        let stopped = window(kind, DType::Float32, w, input, &mut out, Some(&mut ok), &|| true);
        assert!(matches!(stopped, Err(KernelError::Cancelled)));
    }
}
