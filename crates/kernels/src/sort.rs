//! Sorting whole lines: sorted cells, their positions, and order statistics.
//!
//! A line's cells become keys, integers in the order of the cells. Keys are sorted with vectors if the machine has them
//! for the key's size, else by the standard library. In lines that fit in a chunk, NaN and masked cells are set aside
//! first: only numbers have keys. Longer lines are cut into runs; each run is sorted, then the runs are merged. -0.0
//! and 0.0 are equal and keep their order.

mod blocks;
mod key;
mod merge;
mod order;
mod runs;
#[cfg(target_arch = "x86_64")]
mod vector;
mod zeros;

pub use blocks::{Pieces, merge_cells};
pub use key::Key;
pub(crate) use key::Keyed;
pub use merge::{Line, Parts, between, merge, neighbours};
pub use order::Wanted;
pub use runs::{KeysMut, RunsOut, runs};

use super::KernelError;
use super::combine::Cell;
use super::copy::Strided;
use super::elem::MachineType;
use super::partial::all;
use order::{first_sorted, place};
use tessera_planner::dtype::DType;
use tessera_planner::sort::{Quantiles, SortOrder, SortWhat};

/// Cells between two checks for cancellation, unless a line is longer.
const CANCEL_CELLS: usize = 1 << 14;

/// The lines of a box of cells along an axis, with validity.
#[derive(Debug, Clone, Copy)]
pub struct LinesIn<'a> {
    /// Shape of the box.
    pub shape: &'a [u64],
    /// Axis of the lines.
    pub axis: usize,
    /// Type of the cells.
    pub dtype: DType,
    /// The cells.
    pub value: Strided<'a>,
    /// Validity with the layout of the cells.
    pub valid: Option<&'a [u8]>,
}

impl LinesIn<'_> {
    /// Number of lines.
    fn count(&self) -> u64 {
        (0..self.shape.len()).filter(|&a| a != self.axis).map(|a| self.shape[a]).product()
    }

    /// Rejects lines that exceed their memory.
    fn check(&self) -> Result<(), KernelError> {
        let steps = self.value.strides;
        if steps.len() < self.shape.len() {
            let (got, expected) = (steps.len() as u64, self.shape.len() as u64);
            return Err(KernelError::Buffer { what: "axes of lines", got, expected });
        }
        if self.shape.contains(&0) {
            return Ok(());
        }
        let (mut low, mut high) = (i128::from(self.value.offset), i128::from(self.value.offset));
        for (&n, &s) in self.shape.iter().zip(steps) {
            let reach = (i128::from(n) - 1) * i128::from(s);
            if reach < 0 { low += reach } else { high += reach }
        }
        let held = self.value.bytes.len() / self.dtype.size();
        let held = self.valid.map_or(held, |v| held.min(v.len()));
        if low < 0 || high >= held as i128 {
            let (got, expected) = (held as u64, high.max(0) as u64 + 1);
            return Err(KernelError::Buffer { what: "cells of lines", got, expected });
        }
        Ok(())
    }

    /// Element index of a line's first cell.
    fn start(&self, mut line: u64) -> i64 {
        let mut from = self.value.offset;
        for a in (0..self.shape.len()).rev().filter(|&a| a != self.axis) {
            from += (line % self.shape[a]) as i64 * self.value.strides[a];
            line /= self.shape[a];
        }
        from
    }

    /// Returns the bytes of the line that starts at `from` if its cells are contiguous and cannot be masked.
    fn dense<T: Cell>(&self, from: i64) -> Option<&[u8]> {
        let alone = self.valid.is_none() && self.value.strides[self.axis] == 1;
        let (from, len) = (from as usize, self.shape[self.axis] as usize);
        alone.then(|| &self.value.bytes[from * size_of::<T>()..(from + len) * size_of::<T>()])
    }

    /// Calls `f` with every cell of the line that starts at `from`, and its position; `None` for a masked cell.
    #[inline(always)]
    fn cells<T: Cell>(&self, from: i64, mut f: impl FnMut(usize, Option<T>)) {
        if let Some(dense) = self.dense::<T>(from) {
            for (i, cell) in dense.chunks_exact(size_of::<T>()).enumerate() {
                f(i, Some(T::read(cell, 0)));
            }
            return;
        }
        let step = self.value.strides[self.axis];
        for i in 0..self.shape[self.axis] as usize {
            let at = (from + i as i64 * step) as usize;
            let masked = self.valid.is_some_and(|v| v[at] == 0);
            f(i, (!masked).then(|| T::read(self.value.bytes, at)));
        }
    }
}

/// Destination of the result: dense, with `kept` cells along the axis.
#[derive(Debug)]
pub struct LinesOut<'a> {
    /// Number of cells per line.
    pub kept: u64,
    /// The cells.
    pub value: &'a mut [u8],
    /// Validity, if the cells can be masked.
    pub valid: Option<&'a mut [u8]>,
}

/// Writes the first cells of each line in sorted order, or their positions along it (`int64`).
///
/// # Errors
/// [`KernelError::Cancelled`], [`KernelError::Buffer`] for buffers that do not fit.
pub fn sort(
    lines: LinesIn<'_>,
    what: SortWhat,
    order: SortOrder,
    out: LinesOut<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let k = MachineType::of(lines.dtype);
    match what {
        SortWhat::Values => {
            let walk = Walk::new(lines, out, lines.dtype, cancelled)?;
            all!(k, T => walk.sort::<T>(order))
        }
        SortWhat::Positions => {
            let walk = Walk::new(lines, out, DType::Int64, cancelled)?;
            all!(k, T => walk.argsort::<T>(order))
        }
    }
}

/// Writes the order statistics of each line.
///
/// # Errors
/// The errors of [`sort`].
pub fn quantile(
    lines: LinesIn<'_>,
    quantiles: &Quantiles,
    out: LinesOut<'_>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let walk = Walk::new(lines, out, lines.dtype, cancelled)?;
    all!(MachineType::of(lines.dtype), T => walk.quantile::<T>(quantiles))
}

/// Sorts keys.
pub fn sort_keys<K: Key>(keys: &mut [K]) {
    place(keys, Wanted::All);
}

/// The state of a pass over lines.
struct Walk<'a> {
    input: LinesIn<'a>,
    out: LinesOut<'a>,
    cancelled: &'a dyn Fn() -> bool,
    /// Number of lines, cells of each, and the step to the next cell in the output.
    lines: usize,
    len: usize,
    steps: usize,
}

/// Content of a line: keys of its numbers, and counts of the other cells.
struct Content<'k, K> {
    keys: &'k mut Vec<K>,
    nan: usize,
    masked: usize,
}

impl<'a> Walk<'a> {
    fn new(
        input: LinesIn<'a>,
        out: LinesOut<'a>,
        result: DType,
        cancelled: &'a dyn Fn() -> bool,
    ) -> Result<Self, KernelError> {
        let (shape, axis) = (input.shape, input.axis);
        let lines = input.count();
        let expect = |what, got: usize, expected: u64| match (got as u64) < expected {
            true => Err(KernelError::Buffer { what, got: got as u64, expected }),
            false => Ok(()),
        };
        expect("cells of sorted lines", out.value.len() / result.size(), lines * out.kept)?;
        if let Some(v) = &out.valid {
            expect("validity of sorted lines", v.len(), lines * out.kept)?;
        }
        input.check()?;
        let inner: u64 = shape[axis + 1..].iter().product();
        Ok(Walk {
            input,
            out,
            cancelled,
            lines: lines as usize,
            len: shape[axis] as usize,
            steps: inner as usize,
        })
    }

    /// Start of a line in the input and in the output.
    fn start(&self, line: usize) -> (i64, usize) {
        let inner = self.steps.max(1);
        let to = line / inner * inner * self.out.kept as usize + line % inner;
        (self.input.start(line as u64), to)
    }

    fn line<'k, T: Keyed>(&self, from: i64, keys: &'k mut Vec<T::Key>) -> Content<'k, T::Key> {
        let (mut nan, mut masked) = (0, 0);
        keys.clear();
        if let Some(dense) = self.input.dense::<T>(from) {
            // All cells as if they were numbers, which needs no branch; mostly they are.
            keys.extend(dense.chunks_exact(size_of::<T>()).map(|cell| {
                let key = T::read(cell, 0).key();
                nan += usize::from(key.is_none());
                key.unwrap_or_default()
            }));
            if nan == 0 {
                return Content { keys, nan, masked };
            }
            keys.clear();
            nan = 0;
        }
        self.input.cells::<T>(from, |_, cell| match cell.map(T::key) {
            Some(Some(key)) => keys.push(key),
            Some(None) => nan += 1,
            None => masked += 1,
        });
        Content { keys, nan, masked }
    }

    /// Writes the cells `[at, at + n)` of a line, as far as `kept` allows.
    fn write<T: Cell>(&mut self, to: usize, at: usize, cells: impl Iterator<Item = (T, bool)>) {
        if self.steps == 1 && self.out.valid.is_none() {
            let size = size_of::<T>();
            let (from, end) = ((to + at) * size, (to + self.out.kept as usize) * size);
            // More parts may follow than the result keeps.
            let places = self.out.value[from.min(end)..end].chunks_exact_mut(size);
            places.zip(cells).for_each(|(place, (cell, _))| cell.write(place, 0));
            return;
        }
        for (i, (cell, valid)) in (at..self.out.kept as usize).zip(cells) {
            let place = to + i * self.steps;
            cell.write(self.out.value, place);
            if let Some(v) = self.out.valid.as_deref_mut() {
                v[place] = u8::from(valid);
            }
        }
    }

    fn sort<T: Keyed>(mut self, order: SortOrder) -> Result<(), KernelError> {
        let mut keys: Vec<T::Key> = Vec::with_capacity(self.len);
        let mut unchecked = CANCEL_CELLS;
        for l in 0..self.lines {
            self.check(&mut unchecked)?;
            let (from, to) = self.start(l);
            let Content { keys, nan, masked } = self.line::<T>(from, &mut keys);
            let kept = (self.out.kept as usize).min(keys.len());
            if order.descending {
                // The complement of a key has its place in the opposite order.
                keys.iter_mut().for_each(|k| *k = !*k);
            }
            place(keys, Wanted::First(kept));
            if let Some(zeros) = T::ZEROS
                && let Some(places) = zeros.mixed(keys, kept)
            {
                let mut to = keys[places].iter_mut();
                self.input.cells::<T>(from, |_, cell| {
                    let key = cell.and_then(T::key).map(|k| if order.descending { !k } else { k });
                    if let Some(key) = key.filter(|k| zeros.has(*k))
                        && let Some(to) = to.next()
                    {
                        *to = key;
                    }
                });
            }
            let back = |k: &T::Key| (T::of(if order.descending { !*k } else { *k }), true);
            let mut at = 0;
            for part in parts(order) {
                let n = match part {
                    CellKind::Numbers => {
                        self.write(to, at, keys.iter().map(back));
                        keys.len()
                    }
                    CellKind::Nan => {
                        self.write(to, at, std::iter::repeat_n((T::nan(), true), nan));
                        nan
                    }
                    CellKind::Masked => {
                        self.write(to, at, std::iter::repeat_n((T::default(), false), masked));
                        masked
                    }
                };
                at += n;
            }
        }
        Ok(())
    }

    fn argsort<T: Keyed>(self, order: SortOrder) -> Result<(), KernelError> {
        if size_of::<T>() <= 4 && u32::try_from(self.len).is_ok() {
            let pair = |k: T::Key, i: usize| (k.wide() << 32) | i as u64;
            return self.positions::<T, u64>(
                order,
                pair,
                |pair| *pair as u32 as i64,
                |pairs, n| place(pairs, Wanted::First(n)),
            );
        }
        self.positions::<T, (T::Key, u64)>(
            order,
            |k, i| (k, i as u64),
            |(_, i)| *i as i64,
            first_sorted,
        )
    }

    /// Sorts pairs of keys and positions with `sort`, which sorts as many pairs as it is asked to. Positions break
    /// ties, which makes the sort stable.
    fn positions<T: Keyed, P>(
        mut self,
        order: SortOrder,
        pair: impl Fn(T::Key, usize) -> P,
        position: impl Fn(&P) -> i64,
        sort: impl Fn(&mut [P], usize),
    ) -> Result<(), KernelError> {
        let mut pairs: Vec<P> = Vec::with_capacity(self.len);
        let mut unchecked = CANCEL_CELLS;
        for l in 0..self.lines {
            self.check(&mut unchecked)?;
            let (from, to) = self.start(l);
            let mut at = 0;
            for part in parts(order) {
                // Positions of one part at a time: memory for one pair per cell is enough.
                pairs.clear();
                self.input.cells::<T>(from, |i, cell| {
                    let key = cell.map(T::equal_key);
                    let here = match (part, key) {
                        (CellKind::Numbers, Some(Some(k))) => {
                            Some(if order.descending { !k } else { k })
                        }
                        // Cells without a key retain their order: any equal key will do.
                        (CellKind::Nan, Some(None)) | (CellKind::Masked, None) => {
                            T::default().key()
                        }
                        _ => None,
                    };
                    pairs.extend(here.map(|k| pair(k, i)));
                });
                sort(&mut pairs, (self.out.kept as usize).saturating_sub(at));
                self.write(to, at, pairs.iter().map(|p| (position(p), true)));
                at += pairs.len();
                if at == self.len {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Polls for cancellation if as many cells were sorted since the last time.
    fn check(&self, unchecked: &mut usize) -> Result<(), KernelError> {
        if *unchecked >= CANCEL_CELLS {
            *unchecked = 0;
            if (self.cancelled)() {
                return Err(KernelError::Cancelled);
            }
        }
        *unchecked += self.len;
        Ok(())
    }

    fn quantile<T: Keyed>(mut self, quantiles: &Quantiles) -> Result<(), KernelError> {
        let mut keys: Vec<T::Key> = Vec::with_capacity(self.len);
        let mut ranks: Vec<usize> = Vec::new();
        let mut unchecked = CANCEL_CELLS;
        for l in 0..self.lines {
            self.check(&mut unchecked)?;
            let (from, to) = self.start(l);
            let Content { keys, nan, .. } = self.line::<T>(from, &mut keys);
            let n = keys.len();
            if n == 0 || nan > 0 {
                let cell = if nan == 0 && self.out.valid.is_some() {
                    (T::default(), false)
                } else {
                    (T::nan(), true)
                };
                self.write(to, 0, std::iter::repeat(cell));
                continue;
            }
            let places = || quantiles.probabilities().map(|q| quantiles.method.place(n as u64, q));
            ranks.clear();
            ranks.extend(places().flat_map(|(low, t)| {
                let low = low as usize;
                [low, if t > 0.0 { low + 1 } else { low }]
            }));
            ranks.sort_unstable();
            ranks.dedup();
            place(keys, Wanted::Places(&ranks));
            let keys = &*keys;
            let cells = places().map(|(low, t)| {
                let low = low as usize;
                let a = T::of(keys[low]);
                let b = if t > 0.0 { T::of(keys[low + 1]) } else { a };
                (T::between(a, b, t), true)
            });
            self.write(to, 0, cells);
        }
        Ok(())
    }
}

/// Parts of a sorted line.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CellKind {
    Numbers,
    Nan,
    Masked,
}

fn parts(order: SortOrder) -> [CellKind; 3] {
    match (order.masked_first, order.nan_first) {
        (false, false) => [CellKind::Numbers, CellKind::Nan, CellKind::Masked],
        (false, true) => [CellKind::Nan, CellKind::Numbers, CellKind::Masked],
        (true, false) => [CellKind::Masked, CellKind::Numbers, CellKind::Nan],
        (true, true) => [CellKind::Masked, CellKind::Nan, CellKind::Numbers],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::sort::QuantileMethod;

    fn bytes(v: &[f64]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    fn input<'a>(value: &'a [u8], valid: Option<&'a [u8]>, shape: &'a [u64]) -> LinesIn<'a> {
        let strides: &[i64] = if shape.len() == 1 { &[1] } else { &[1, 2] };
        let value = Strided { bytes: value, offset: 0, strides };
        LinesIn { shape, axis: shape.len() - 1, dtype: DType::Float64, value, valid }
    }

    #[test]
    fn numbers_then_nan_then_masked() {
        let v = bytes(&[3.0, f64::NAN, -1.0, 0.0, 9.0, -0.0, f64::NEG_INFINITY]);
        let valid = [1, 1, 1, 1, 0, 1, 1];
        let lines = input(&v, Some(&valid), &[7]);
        let (mut value, mut ok) = (vec![0; 56], vec![0; 7]);
        let mut values = |order, kept: u64| {
            let out = LinesOut { kept, value: &mut value, valid: Some(&mut ok) };
            sort(lines, SortWhat::Values, order, out, &|| false).unwrap();
            let n = kept as usize;
            (0..n)
                .map(|i| (ok[i] == 1).then(|| format!("{}", f64::read(&value, i))))
                .collect::<Vec<_>>()
        };
        let s = |v: &[&str]| {
            v.iter().map(|x| (*x != "NULL").then(|| x.to_string())).collect::<Vec<_>>()
        };
        let order = SortOrder::default();
        assert_eq!(values(order, 7), s(&["-inf", "-1", "0", "-0", "3", "NaN", "NULL"]));
        assert_eq!(values(order, 2), s(&["-inf", "-1"]));
        let down = SortOrder { descending: true, ..order };
        assert_eq!(values(down, 7), s(&["3", "0", "-0", "-1", "-inf", "NaN", "NULL"]));
        let sql = SortOrder { descending: true, nan_first: true, masked_first: true };
        assert_eq!(values(sql, 3), s(&["NULL", "NaN", "3"]));
        // The first zeros in the order of the line, also if others are not written.
        assert_eq!(values(order, 3), s(&["-inf", "-1", "0"]));
        assert_eq!(values(down, 2), s(&["3", "0"]));

        let positions = |order, kept: u64| {
            let mut at = vec![0; 56];
            let out = LinesOut { kept, value: &mut at, valid: None };
            sort(lines, SortWhat::Positions, order, out, &|| false).unwrap();
            (0..kept as usize).map(|i| i64::read(&at, i)).collect::<Vec<_>>()
        };
        // Equal zeros retain their order, in both directions.
        assert_eq!(positions(order, 7), [6, 2, 3, 5, 0, 1, 4]);
        assert_eq!(positions(down, 7), [0, 3, 5, 2, 6, 1, 4]);
        assert_eq!(positions(sql, 4), [4, 1, 0, 3]);
    }

    /// Positions of lines of `n` cells, some of them masked, against those of a stable sort of the standard library.
    fn are_stable<T: Copy + PartialOrd, const N: usize>(
        (dtype, n): (DType, usize),
        cells: &[T],
        bytes: fn(T) -> [u8; N],
    ) {
        let bytes: Vec<u8> = cells.iter().flat_map(|x| bytes(*x)).collect();
        let masks: Vec<u8> = (0..cells.len()).map(|i| u8::from(i % 11 != 4)).collect();
        let (shape, strides) = ([(cells.len() / n) as u64, n as u64], [n as i64, 1]);
        let some = [(false, n), (true, n), (false, n.div_ceil(3)), (true, n.div_ceil(3))];
        let cases = some.iter().flat_map(|c| [None, Some(&masks[..])].map(|valid| (c, valid)));
        for (&(descending, kept), valid) in cases {
            let value = Strided { bytes: &bytes, offset: 0, strides: &strides };
            let lines = LinesIn { shape: &shape, axis: 1, dtype, value, valid };
            let mut at = vec![0; cells.len() / n * kept * 8];
            let out = LinesOut { kept: kept as u64, value: &mut at, valid: None };
            let order = SortOrder { descending, ..SortOrder::default() };
            sort(lines, SortWhat::Positions, order, out, &|| false).unwrap();
            for (l, line) in cells.chunks(n).enumerate() {
                // Numbers, then NaN, then masked cells.
                let class = |i: usize| match valid.is_some_and(|v| v[l * n + i] == 0) {
                    true => 2,
                    false => u8::from(line[i].partial_cmp(&line[i]).is_none()),
                };
                let mut want: Vec<usize> = (0..n).collect();
                want.sort_by(|&i, &j| {
                    let (x, y) = if descending { (j, i) } else { (i, j) };
                    let numbers = line[x].partial_cmp(&line[y]).filter(|_| class(i) == 0);
                    class(i).cmp(&class(j)).then(numbers.unwrap_or(std::cmp::Ordering::Equal))
                });
                let got: Vec<usize> =
                    (0..kept).map(|i| i64::read(&at, l * kept + i) as usize).collect();
                assert_eq!(got[..], want[..kept], "{dtype} {n} {descending} {kept} {l}");
            }
        }
    }

    #[test]
    fn positions_of_narrow_cells_are_those_of_a_stable_sort() {
        // Lengths around those of a vector, of a network, and of lines that are partitioned through a buffer.
        for n in [1, 7, 33, 70, 1500] {
            let mut random = crate::noise(n as u64 + 1);
            let wide: Vec<u64> = (0..3 * n).map(|_| random() >> 20).collect();
            let float = |x: &u64| [f32::NAN, -0.0, 0.0, f32::INFINITY, -2.5][(*x % 5) as usize];
            are_stable(
                (DType::Float32, n),
                &wide.iter().map(float).collect::<Vec<_>>(),
                f32::to_ne_bytes,
            );
            let narrow = |x: &u64| (*x % 200) as i16 - 100;
            are_stable(
                (DType::Int16, n),
                &wide.iter().map(narrow).collect::<Vec<_>>(),
                i16::to_ne_bytes,
            );
            let whole = |x: &u64| *x as u32 | 0xffff_fff0;
            are_stable(
                (DType::UInt32, n),
                &wide.iter().map(whole).collect::<Vec<_>>(),
                u32::to_ne_bytes,
            );
        }
    }

    #[test]
    fn quantiles_of_strided_lines() {
        // Lines [1, 3, 5, 7] and [2, NaN, 6, 8], column by column.
        let v = bytes(&[1.0, 2.0, 3.0, f64::NAN, 5.0, 6.0, 7.0, 8.0]);
        let q = Quantiles::new(&[0.0, 0.25, 1.0], QuantileMethod::Linear);
        let mut value = vec![0; 48];
        let out = LinesOut { kept: 3, value: &mut value, valid: None };
        quantile(input(&v, None, &[2, 4]), &q, out, &|| false).unwrap();
        let got: Vec<f64> = (0..6).map(|i| f64::read(&value, i)).collect();
        assert_eq!(got[..3], [1.0, 2.5, 7.0]);
        assert!(got[3..].iter().all(|x| x.is_nan()));
        // With the NaN masked: np.quantile([2, 6, 8], [0, .25, 1]).
        let valid = [1, 1, 1, 0, 1, 1, 1, 1];
        let mut ok = vec![0; 6];
        let out = LinesOut { kept: 3, value: &mut value, valid: Some(&mut ok) };
        quantile(input(&v, Some(&valid), &[2, 4]), &q, out, &|| false).unwrap();
        let got: Vec<f64> = (3..6).map(|i| f64::read(&value, i)).collect();
        assert_eq!(got, [2.0, 4.0, 8.0]);
    }

    #[test]
    fn buffers_that_do_not_fit_are_refused() {
        let v = bytes(&[1.0; 6]);
        let mut value = vec![0; 8];
        let out = LinesOut { kept: 4, value: &mut value, valid: None };
        let e = sort(input(&v, None, &[4]), SortWhat::Values, SortOrder::default(), out, &|| false);
        assert!(matches!(e, Err(KernelError::Buffer { .. })));
    }
}
