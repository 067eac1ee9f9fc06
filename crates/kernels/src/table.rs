//! Looking cells up in sorted tables, and accumulating cells by code.

mod histogram;

pub use histogram::histogram;

use super::combine::Cell;
use super::copy::Strided;
use super::elem::{Elem, MachineType};
use super::{KernelError, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::lookup::LookupKind;

/// A box of cells with validity of the same layout.
#[derive(Debug, Clone, Copy)]
pub struct Cells<'a> {
    /// The cells.
    pub value: Strided<'a>,
    /// Validity, if the cells can be masked.
    pub valid: Option<&'a [u8]>,
}

/// A sorted table; masked cells come last.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// Dense cells.
    pub value: &'a [u8],
    /// Validity, if the cells can be masked.
    pub valid: Option<&'a [u8]>,
}

/// Looks up the cells of a box of shape `shape`; `out` is dense, of the result's type. Masked cells are looked up too,
/// but raise no error.
///
/// # Errors
/// [`KernelError::Domain`] for edges of bins that are not finite or that decrease, [`KernelError::Cancelled`],
/// [`KernelError::Buffer`] for buffers that do not fit.
pub fn lookup(
    kind: LookupKind,
    dtype: DType,
    shape: &[u64],
    cells: Cells<'_>,
    tables: &[Table<'_>],
    out: &mut [u8],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let job = Lookup { kind, dtype, shape, cells, tables, cancelled };
    job.check(out)?;
    macro_rules! run {
        ($t:ident) => {
            job.run::<$t>(out, |v| v as f64, |v| (v as f64).is_finite())
        };
    }
    match MachineType::of(dtype) {
        MachineType::Bool | MachineType::U8 => run!(u8),
        MachineType::I8 => run!(i8),
        MachineType::I16 => run!(i16),
        MachineType::I32 => run!(i32),
        MachineType::I64 => run!(i64),
        MachineType::U16 => run!(u16),
        MachineType::U32 => run!(u32),
        MachineType::U64 => run!(u64),
        MachineType::F32 => run!(f32),
        MachineType::F64 if kind == LookupKind::Interpolate => job.interpolate(out),
        MachineType::F64 => run!(f64),
    }
}

struct Lookup<'a> {
    kind: LookupKind,
    dtype: DType,
    shape: &'a [u64],
    cells: Cells<'a>,
    tables: &'a [Table<'a>],
    cancelled: &'a dyn Fn() -> bool,
}

/// NumPy's order: NaN is greater than all numbers.
#[inline(always)]
fn less<T: Elem>(a: T, b: T) -> bool {
    a < b || (b.is_nan() && !a.is_nan())
}

impl Lookup<'_> {
    fn check(&self, out: &[u8]) -> Result<(), KernelError> {
        let result = self.kind.result(self.dtype);
        let result = result.ok_or_else(|| unsupported(self.kind.name(), self.dtype))?;
        let n: u64 = self.shape.iter().product();
        if ((out.len() / result.size()) as u64) < n {
            let got = (out.len() / result.size()) as u64;
            return Err(KernelError::Buffer { what: "cells of a lookup", got, expected: n });
        }
        if self.tables.len() != self.kind.tables() {
            let expected = self.kind.tables() as u64;
            let got = self.tables.len() as u64;
            return Err(KernelError::Buffer { what: "tables of a lookup", got, expected });
        }
        held(self.shape, self.cells, self.dtype)
    }

    fn table<T: Cell>(&self, i: usize) -> Vec<T> {
        let t = &self.tables[i];
        let n = t.value.len() / size_of::<T>();
        let n = t.valid.map_or(n, |v| v.iter().take(n).take_while(|v| **v != 0).count());
        (0..n).map(|i| T::read(t.value, i)).collect()
    }

    fn run<T: Cell + Elem>(
        &self,
        out: &mut [u8],
        wide: impl Fn(T) -> f64,
        finite: impl Fn(T) -> bool,
    ) -> Result<(), KernelError> {
        let table = self.table::<T>(0);
        let n = table.len();
        let left = |x: T| table.partition_point(|&t| less(t, x));
        let right = |x: T| table.partition_point(|&t| !less(x, t));
        match self.kind {
            LookupKind::Left => self.each(out, |x| left(x) as i64),
            LookupKind::Right => self.each(out, |x| right(x) as i64),
            LookupKind::Contains => self.each(out, |x| {
                let at = left(x);
                u8::from(at < n && table[at] == x)
            }),
            LookupKind::Interpolate => Err(unsupported(self.kind.name(), self.dtype)),
            LookupKind::Bins => {
                let edges = Edges::new(self.dtype, table, wide, finite)?;
                self.each(out, |x| edges.bin(x))
            }
        }
    }

    /// Writes `f` of each cell to the result.
    #[inline]
    fn each<T: Cell, R: Cell>(
        &self,
        out: &mut [u8],
        f: impl Fn(T) -> R,
    ) -> Result<(), KernelError> {
        let (value, from, to) = (self.cells.value, size_of::<T>(), size_of::<R>());
        rows(self.shape, &[value], self.cancelled, |first, at, steps, len| {
            let out = out[first * to..(first + len) * to].chunks_exact_mut(to);
            if steps[0] == 1 {
                let at = at[0] as usize * from;
                let cells = value.bytes[at..at + len * from].chunks_exact(from);
                out.zip(cells).for_each(|(o, c)| f(T::read(c, 0)).write(o, 0));
            } else {
                for (i, o) in out.enumerate() {
                    f(T::read(value.bytes, (at[0] + i as i64 * steps[0]) as usize)).write(o, 0);
                }
            }
            Ok(())
        })
    }

    /// Linear interpolation, with the formula of `numpy.interp`.
    fn interpolate(&self, out: &mut [u8]) -> Result<(), KernelError> {
        let (xs, ys) = (self.table::<f64>(0), self.table::<f64>(1));
        let n = xs.len().min(ys.len());
        let value = self.cells.value;
        rows(self.shape, &[value], self.cancelled, |to, at, steps, len| {
            for i in 0..len {
                let x = f64::read(value.bytes, (at[0] + i as i64 * steps[0]) as usize);
                let j = xs[..n].partition_point(|&t| t <= x);
                let y = if x.is_nan() || n == 0 {
                    f64::NAN
                } else if j == 0 {
                    ys[0]
                } else if j == n {
                    ys[n - 1]
                } else {
                    let slope = (ys[j] - ys[j - 1]) / (xs[j] - xs[j - 1]);
                    let y = slope * (x - xs[j - 1]) + ys[j - 1];
                    // From the other side if one end is infinite.
                    let y = if y.is_nan() { slope * (x - xs[j]) + ys[j] } else { y };
                    if y.is_nan() && ys[j] == ys[j - 1] { ys[j] } else { y }
                };
                y.write(out, to + i);
            }
            Ok(())
        })
    }
}

/// Edges of bins, finite and nondecreasing.
struct Edges<T, W> {
    edges: Vec<T>,
    wide: W,
    /// The first edge, and the number of bins per unit.
    first: f64,
    scale: f64,
}

impl<T: Elem, W: Fn(T) -> f64> Edges<T, W> {
    fn new(
        dtype: DType,
        edges: Vec<T>,
        wide: W,
        finite: impl Fn(T) -> bool,
    ) -> Result<Self, KernelError> {
        let domain = |reason| {
            let operation = LookupKind::Bins.name().into();
            Err(KernelError::Domain { operation, dtype, reason })
        };
        let (Some(&first), Some(&last), true) =
            (edges.first(), edges.get(1..).and_then(<[T]>::last), edges.iter().all(|&t| finite(t)))
        else {
            return domain("edges of bins must be finite; give `range`");
        };
        if edges.windows(2).any(|w| w[1] < w[0]) {
            return domain("edges of bins must not fall");
        }
        let (first, last) = (wide(first), wide(last));
        let scale = (edges.len() - 1) as f64 / (last - first);
        Ok(Edges { edges, wide, first, scale })
    }

    /// Fractional bin number of a cell, if the edges are evenly spaced.
    #[inline(always)]
    fn place(&self, x: T) -> f64 {
        ((self.wide)(x) - self.first) * self.scale
    }

    /// The bin of a cell, or -1.
    #[inline(always)]
    fn bin(&self, x: T) -> i64 {
        let (edges, n) = (&self.edges, self.edges.len());
        if !(x >= edges[0] && x <= edges[n - 1]) {
            return -1;
        }
        if x == edges[n - 1] {
            // The last bin takes cells of empty bins at the end.
            return n as i64 - 2;
        }
        // Edges are mostly evenly spaced: the bin is guessed, and searched for only if the guess is wrong.
        let guess = (self.place(x) as usize).min(n - 2);
        if edges[guess] <= x && x < edges[guess + 1] {
            return guess as i64;
        }
        edges.partition_point(|&t| t <= x) as i64 - 1
    }
}

/// Counts codes (`int64`) from 0 on into `out`, or accumulates their weights (`float64`); `out` is overwritten. The
/// order of additions is row-major.
///
/// # Errors
/// [`KernelError::Domain`] for a code out of range if `strict`; else it is skipped. [`KernelError::Cancelled`],
/// [`KernelError::Buffer`] for buffers that do not fit.
pub fn bin(
    shape: &[u64],
    codes: Cells<'_>,
    weights: Option<Cells<'_>>,
    strict: bool,
    out: &mut [u8],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    held(shape, codes, DType::Int64)?;
    let mut inputs = vec![codes.value];
    if let Some(w) = weights {
        held(shape, w, DType::Float64)?;
        inputs.push(w.value);
    }
    out.fill(0);
    let count = out.len() / 8;
    if let (None, None) = (weights, codes.valid)
        && (1..=SPREAD_BINS).contains(&count)
    {
        return spread(shape, codes.value, strict, out, cancelled);
    }
    rows(shape, &inputs, cancelled, |_, at, steps, len| {
        for i in 0..len as i64 {
            let place = |k: usize| (at[k] + i * steps[k]) as usize;
            let here = place(0);
            if codes.valid.is_some_and(|v| v[here] == 0) {
                continue;
            }
            let code = i64::read(codes.value.bytes, here);
            let Some(code) = usize::try_from(code).ok().filter(|c| *c < count) else {
                if strict {
                    return Err(out_of_range());
                }
                continue;
            };
            match weights {
                None => (i64::read(out, code) + 1).write(out, code),
                Some(w) => {
                    let there = place(1);
                    if w.valid.is_none_or(|v| v[there] != 0) {
                        (f64::read(out, code) + f64::read(w.value.bytes, there)).write(out, code);
                    }
                }
            }
        }
        Ok(())
    })
}

/// Upper bound on the bins that are counted in several copies.
const SPREAD_BINS: usize = 4096;
/// Number of copies.
const SPREAD: usize = 4;

/// Counts of few codes: adjacent cells count in different copies, so that equal ones do not wait for each other.
fn spread(
    shape: &[u64],
    codes: Strided<'_>,
    strict: bool,
    out: &mut [u8],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let count = out.len() / 8;
    // One extra bin takes the codes that are out of range.
    let mut places = vec![[0i64; SPREAD]; count + 1];
    rows(shape, &[codes], cancelled, |_, at, steps, len| {
        for i in 0..len {
            let code = i64::read(codes.bytes, (at[0] + i as i64 * steps[0]) as usize);
            // A negative code becomes a large one.
            let bin = usize::try_from(code as u64).unwrap_or(count).min(count);
            places[bin][i % SPREAD] += 1;
        }
        Ok(())
    })?;
    if strict && places[count].iter().any(|n| *n > 0) {
        return Err(out_of_range());
    }
    for (i, place) in places[..count].iter().enumerate() {
        place.iter().sum::<i64>().write(out, i);
    }
    Ok(())
}

fn out_of_range() -> KernelError {
    let reason = "a value is negative";
    KernelError::Domain { operation: "bincount".into(), dtype: DType::Int64, reason }
}

/// Rejects a box that exceeds its memory.
fn held(shape: &[u64], cells: Cells<'_>, dtype: DType) -> Result<(), KernelError> {
    if shape.contains(&0) {
        return Ok(());
    }
    let (mut low, mut high) = (i128::from(cells.value.offset), i128::from(cells.value.offset));
    for (&n, &s) in shape.iter().zip(cells.value.strides) {
        let reach = (i128::from(n) - 1) * i128::from(s);
        if reach < 0 { low += reach } else { high += reach }
    }
    let there = cells.value.bytes.len() / dtype.size();
    let there = cells.valid.map_or(there, |v| there.min(v.len()));
    if low < 0 || high >= there as i128 || cells.value.strides.len() != shape.len() {
        return Err(KernelError::Buffer {
            what: "cells of a box",
            got: there as u64,
            expected: high.max(0) as u64 + 1,
        });
    }
    Ok(())
}

/// Calls `f` for each run along the last axis, row-major. Arguments: the number of its first cell, the offset of that
/// cell in each input, the steps to the next cell, and the length of the run.
fn rows(
    shape: &[u64],
    inputs: &[Strided<'_>],
    cancelled: &dyn Fn() -> bool,
    mut f: impl FnMut(usize, &[i64], &[i64], usize) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    if shape.contains(&0) {
        return Ok(());
    }
    let (outer, len) = match shape.split_last() {
        Some((&n, outer)) => (outer, n as usize),
        None => (shape, 1),
    };
    let steps: Vec<i64> = inputs.iter().map(|s| s.strides.last().copied().unwrap_or(0)).collect();
    let lines: u64 = outer.iter().product();
    let mut at = vec![0i64; inputs.len()];
    for line in 0..lines {
        if cancelled() {
            return Err(KernelError::Cancelled);
        }
        for (at, input) in at.iter_mut().zip(inputs) {
            let mut rest = line;
            *at = input.offset;
            for (&n, &s) in outer.iter().zip(input.strides).rev() {
                *at += (rest % n) as i64 * s;
                rest /= n;
            }
        }
        f(line as usize * len, &at, &steps, len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn bytes(v: &[f64]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    fn cells<'a>(value: &'a [u8], valid: Option<&'a [u8]>) -> Cells<'a> {
        Cells { value: Strided { bytes: value, offset: 0, strides: &[1] }, valid }
    }

    fn find(kind: LookupKind, x: &[f64], table: &[f64]) -> Result<Vec<i64>, KernelError> {
        let (x, t) = (bytes(x), bytes(table));
        let n = x.len() / 8;
        let mut out = vec![0; x.len()];
        let tables = [Table { value: &t, valid: None }];
        lookup(kind, DType::Float64, &[n as u64], cells(&x, None), &tables, &mut out, &|| false)?;
        Ok((0..n).map(|i| i64::read(&out, i)).collect())
    }

    #[test]
    fn places_are_numpys() {
        let table = [1.0, 2.0, 2.0, 5.0];
        let x = [0.0, 1.0, 2.0, 4.9, 5.0, 9.0, f64::NAN];
        assert_eq!(find(LookupKind::Left, &x, &table).unwrap(), [0, 0, 1, 3, 3, 4, 4]);
        assert_eq!(find(LookupKind::Right, &x, &table).unwrap(), [0, 1, 3, 3, 4, 4, 4]);
        // np.histogram's rule; the bin from 2 to 2 is empty.
        assert_eq!(find(LookupKind::Bins, &x, &table).unwrap(), [-1, 0, 2, 2, 2, -1, -1]);
        let odd = [0.0, f64::NAN];
        assert!(matches!(find(LookupKind::Bins, &x, &odd), Err(KernelError::Domain { .. })));
        let falls = [2.0, 1.0];
        assert!(matches!(find(LookupKind::Bins, &x, &falls), Err(KernelError::Domain { .. })));
    }

    #[test]
    fn codes_are_counted_and_weighed() {
        let codes: Vec<u8> = [2i64, 0, -1, 2, 7, 1].iter().flat_map(|c| c.to_ne_bytes()).collect();
        let valid = [1, 1, 1, 1, 1, 0];
        let mut out = vec![9; 24];
        bin(&[6], cells(&codes, None), None, false, &mut out, &|| false).unwrap();
        assert_eq!((0..3).map(|i| i64::read(&out, i)).collect::<Vec<_>>(), [1, 1, 2]);
        let e = bin(&[6], cells(&codes, None), None, true, &mut out, &|| false);
        assert!(matches!(e, Err(KernelError::Domain { .. })));
        bin(&[6], cells(&codes, Some(&valid)), None, false, &mut out, &|| false).unwrap();
        assert_eq!((0..3).map(|i| i64::read(&out, i)).collect::<Vec<_>>(), [1, 0, 2]);
        let w = bytes(&[0.5, 2.0, 9.0, 0.25, 9.0, 9.0]);
        let weights = Some(cells(&w, None));
        bin(&[6], cells(&codes, Some(&valid)), weights, false, &mut out, &|| false).unwrap();
        assert_eq!((0..3).map(|i| f64::read(&out, i)).collect::<Vec<_>>(), [2.0, 0.0, 0.75]);
        let e = bin(&[6], cells(&codes, Some(&valid)), None, true, &mut out, &|| false);
        assert!(matches!(e, Err(KernelError::Domain { .. })));
    }

    #[test]
    fn interpolation_is_numpys() {
        let (x, p, v) =
            (bytes(&[-1.0, 0.5, 2.0, 9.0]), bytes(&[0.0, 1.0, 3.0]), bytes(&[1.0, 3.0, 7.0]));
        let mut out = vec![0; 32];
        let tables = [Table { value: &p, valid: None }, Table { value: &v, valid: None }];
        let kind = LookupKind::Interpolate;
        lookup(kind, DType::Float64, &[4], cells(&x, None), &tables, &mut out, &|| false).unwrap();
        assert_eq!((0..4).map(|i| f64::read(&out, i)).collect::<Vec<_>>(), [1.0, 2.0, 5.0, 7.0]);
    }
}
