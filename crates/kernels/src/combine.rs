#![expect(unsafe_code, reason = "loops are compiled for each level of instructions")]
//! Merging the states of reductions, and finishing them into values.
//!
//! States are dense arrays of the fields of [`ReduceKind::state`]. All have one shape, so every operation here is
//! elementwise: cell `i` of each part is merged into cell `i` of the result.

mod merged;

pub use merged::{Merged, Part, merged};

use super::elem::{self, Elem, MachineType};
use super::level::leveled;
use super::partial::{self, all, chan};
use super::{KernelError, Level, unsupported};
use smallvec::SmallVec;
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;

/// A cell of a field, in bytes: `read` and `write` need no alignment.
pub(super) trait Cell: Copy {
    fn read(bytes: &[u8], i: usize) -> Self;
    fn write(self, bytes: &mut [u8], i: usize);
}
macro_rules! cells {
    ($($t:ident)*) => { $(
        impl Cell for $t {
            #[inline(always)]
            fn read(bytes: &[u8], i: usize) -> $t {
                const S: usize = size_of::<$t>();
                let mut b = [0; S];
                b.copy_from_slice(&bytes[i * S..(i + 1) * S]);
                $t::from_ne_bytes(b)
            }
            #[inline(always)]
            fn write(self, bytes: &mut [u8], i: usize) {
                const S: usize = size_of::<$t>();
                bytes[i * S..(i + 1) * S].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )* };
}
cells! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

/// The fields of a state, all with the same number of cells.
pub type State<'a> = [&'a [u8]];

/// Merges the states `parts` (in row-major order of the fan) into `out`.
///
/// `dtype` and `nullable` are those of the reduced cells. The merge is a left fold in the order of the parts, cell by
/// cell: sums add, variances merge by Chan's formula, extremes compare, and of equal extremes the one at the lower
/// position wins. A part without cells changes nothing. `out` is overwritten.
///
/// # Errors
/// [`KernelError::Buffer`] if a field is missing or shorter than the first field of `out`, and
/// [`KernelError::Unsupported`] for a kind that is not defined for the type.
pub fn combine(
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    parts: &[&State<'_>],
    out: &mut [&mut [u8]],
) -> Result<(), KernelError> {
    let state = check(kind, dtype, nullable)?;
    let n = cells(out.first().map_or(0, |f| f.len()), state[0]);
    fields(&state, out.iter().map(|f| f.len()), out.len(), n)?;
    for p in parts {
        fields(&state, p.iter().map(|f| f.len()), p.len(), n)?;
    }
    let Some((first, rest)) = parts.split_first() else {
        return Err(KernelError::Buffer { what: "states to combine", got: 0, expected: 1 });
    };
    // Block by block through all parts, so that the running states stay in the first-level cache.
    for from in (0..n).step_by(BLOCK) {
        let cells = BLOCK.min(n - from);
        let within = |d: DType| from * d.size()..(from + cells) * d.size();
        let mut block: SmallVec<[&mut [u8]; 4]> =
            out.iter_mut().zip(&state).map(|(o, d)| &mut o[within(*d)]).collect();
        for (o, (f, d)) in block.iter_mut().zip(first.iter().zip(&state)) {
            o.copy_from_slice(&f[within(*d)]);
        }
        for p in rest {
            let p: SmallVec<[&[u8]; 4]> =
                p.iter().zip(&state).map(|(f, d)| &f[within(*d)]).collect();
            merge(kind, dtype, &state, &p, &mut block, cells);
        }
    }
    Ok(())
}

/// Cells that are merged at a time.
const BLOCK: usize = 1024;

fn check(kind: ReduceKind, dtype: DType, nullable: bool) -> Result<Vec<DType>, KernelError> {
    if kind.result(dtype).is_none() || matches!(kind, ReduceKind::Quantile(_)) {
        return Err(unsupported(kind.name(), dtype));
    }
    Ok(kind.state(dtype, nullable).to_vec())
}

fn cells(bytes: usize, dtype: DType) -> usize {
    bytes / dtype.size()
}

fn fields(
    state: &[DType],
    lens: impl Iterator<Item = usize>,
    count: usize,
    n: usize,
) -> Result<(), KernelError> {
    if count != state.len() {
        return Err(KernelError::Buffer {
            what: "fields of a state",
            got: count as u64,
            expected: state.len() as u64,
        });
    }
    for (len, d) in lens.zip(state) {
        if len < n * d.size() {
            return Err(KernelError::Buffer {
                what: "bytes of a state's field",
                got: len as u64,
                expected: (n * d.size()) as u64,
            });
        }
    }
    Ok(())
}

/// Writes `f(out, part)` to every cell of a field. Splitting the field into whole cells removes bounds checks from the
/// loop, which vectorises.
fn zip<T: Cell, F: Fn(T, T) -> T>(out: &mut [u8], part: &[u8], n: usize, f: F) {
    let zip = pick_zip::<T, F>(Level::detect());
    // SAFETY: `Level::detect` returns a level that this machine has.
    unsafe { zip(out, part, n, &f) }
}

type ZipFn<F> = unsafe fn(&mut [u8], &[u8], usize, &F);

leveled!(pick_zip, zip_body<T: Cell, F: Fn(T, T) -> T>(out: &mut [u8], part: &[u8], n: usize, f: &F) as ZipFn<F>);

/// # Safety
/// The machine has the instructions that the body is compiled for.
#[inline(always)]
unsafe fn zip_body<T: Cell, F: Fn(T, T) -> T>(out: &mut [u8], part: &[u8], n: usize, f: &F) {
    let size = size_of::<T>();
    let cells = out[..n * size].chunks_exact_mut(size).zip(part[..n * size].chunks_exact(size));
    for (o, p) in cells {
        f(T::read(o, 0), T::read(p, 0)).write(o, 0);
    }
}

fn merge(
    kind: ReduceKind,
    dtype: DType,
    state: &[DType],
    part: &State<'_>,
    out: &mut [&mut [u8]],
    n: usize,
) {
    use ReduceKind::*;
    let k = MachineType::of(dtype);
    let mut own = 1;
    match kind {
        Sum if !dtype.is_float() => {
            own = 2;
            for i in 0..n {
                let s = wide(out[0], out[1], i).wrapping_add(wide(part[0], part[1], i));
                (s as u64).write(out[0], i);
                ((s >> 64) as i64).write(out[1], i);
            }
        }
        Sum | Mean | MeanOf(_) => zip(out[0], part[0], n, |a: f64, b| a + b),
        Prod if dtype.is_float() => zip(out[0], part[0], n, |a: f64, b| a * b),
        Prod => zip(out[0], part[0], n, |a: u64, b| a.wrapping_mul(b)),
        Var { .. } => {
            own = 4;
            for i in 0..n {
                let float = |f: &[u8]| f64::read(f, i);
                let a = (i64::read(out[0], i), float(out[1]), float(out[2]), float(out[3]));
                let b = (i64::read(part[0], i), float(part[1]), float(part[2]), float(part[3]));
                let (count, point, away, m2) = chan(a, b);
                count.write(out[0], i);
                point.write(out[1], i);
                away.write(out[2], i);
                m2.write(out[3], i);
            }
        }
        MinTotal if k == MachineType::F64 => zip(out[0], part[0], n, elem::fmin::<f64>),
        MinTotal if k == MachineType::F32 => zip(out[0], part[0], n, elem::fmin::<f32>),
        Min | MinTotal => all!(k, T => zip(out[0], part[0], n, elem::minimum::<T>)),
        Max | MaxTotal => all!(k, T => zip(out[0], part[0], n, elem::maximum::<T>)),
        Add => all!(k, T => zip(out[0], part[0], n, |a: T, b: T| Elem::add(a, b))),
        Any => zip(out[0], part[0], n, |a: u8, b| a | b),
        All => zip(out[0], part[0], n, |a: u8, b| a & b),
        Count => zip(out[0], part[0], n, |a: i64, b| a.wrapping_add(b)),
        ArgMin => {
            own = 2;
            all!(k, T => arg::<partial::Lowest, T>(out, part, n));
        }
        ArgMax => {
            own = 2;
            all!(k, T => arg::<partial::Highest, T>(out, part, n));
        }
        // `check` refuses it.
        Quantile(_) => {}
    }
    match state.get(own) {
        Some(DType::Bool) => zip(out[own], part[own], n, |a: u8, b| a | b),
        Some(_) => zip(out[own], part[own], n, |a: i64, b| a.wrapping_add(b)),
        None => {}
    }
}

fn arg<B: partial::Best, T: Elem + Cell>(out: &mut [&mut [u8]], part: &State<'_>, n: usize) {
    for i in 0..n {
        let (a, at) = (T::read(out[0], i), i64::read(out[1], i));
        let (b, bt) = (T::read(part[0], i), i64::read(part[1], i));
        if bt < 0 {
            continue;
        }
        let tie = !B::beats(b, a) && !B::beats(a, b);
        if at < 0 || B::beats(b, a) || (tie && bt < at) {
            b.write(out[0], i);
            bt.write(out[1], i);
        }
    }
}

fn wide(lo: &[u8], hi: &[u8], i: usize) -> i128 {
    i128::from(i64::read(hi, i)) << 64 | i128::from(u64::read(lo, i))
}

/// Finishes states: `value` gets cells of `kind.result(dtype)`; `valid` (present if the result is nullable) gets one
/// byte per cell.
///
/// A cell is masked if a nullable reduction had no valid cell. A mean of nothing is NaN. A variance whose count is not
/// above `ddof` is NaN for 0/0 and infinite or NaN as NumPy divides (the divisor is not negative). Sums and products of
/// `float32` are rounded once from `float64`.
///
/// # Errors
/// [`KernelError::Overflow`] for an integer total beyond its 64-bit type, [`KernelError::Buffer`] for fields that do
/// not fit, [`KernelError::Unsupported`] for a kind that is not defined for the type.
pub fn finish(
    kind: ReduceKind,
    dtype: DType,
    nullable: bool,
    state: &State<'_>,
    value: &mut [u8],
    valid: Option<&mut [u8]>,
) -> Result<(), KernelError> {
    use ReduceKind::*;
    let types = check(kind, dtype, nullable)?;
    let result = kind.result(dtype).ok_or_else(|| unsupported(kind.name(), dtype))?;
    let n = cells(value.len(), result);
    fields(&types, state.iter().map(|f| f.len()), state.len(), n)?;
    let masks = kind.nullable(nullable);
    match &valid {
        Some(v) if v.len() < n => {
            return Err(KernelError::Buffer {
                what: "bytes of validity",
                got: v.len() as u64,
                expected: n as u64,
            });
        }
        None if masks => {
            return Err(KernelError::Buffer { what: "validity", got: 0, expected: n as u64 });
        }
        _ => {}
    }
    let f = |x: f64, value: &mut [u8], i: usize| {
        if result == DType::Float32 { (x as f32).write(value, i) } else { x.write(value, i) }
    };
    match kind {
        Sum if !dtype.is_float() => {
            for i in 0..n {
                let s = wide(state[0], state[1], i);
                let bits = if result == DType::UInt64 {
                    u64::try_from(s).ok()
                } else {
                    i64::try_from(s).ok().map(|v| v as u64)
                };
                bits.ok_or_else(|| KernelError::Overflow {
                    operation: "sum".into(),
                    dtype: result,
                })?
                .write(value, i);
            }
        }
        Sum => (0..n).for_each(|i| f(f64::read(state[0], i), value, i)),
        Prod if dtype.is_float() => (0..n).for_each(|i| f(f64::read(state[0], i), value, i)),
        Mean => {
            for i in 0..n {
                let c = i64::read(state[1], i) as f64;
                f(f64::read(state[0], i) / c, value, i);
            }
        }
        MeanOf(cells) => {
            (0..n).for_each(|i| f(f64::read(state[0], i) / cells as f64, value, i));
        }
        Var { ddof } => {
            for i in 0..n {
                // NumPy clamps the divisor at 0.
                let c = (i64::read(state[0], i) - i64::from(ddof)).max(0) as f64;
                // With an infinity the mean is infinite and deviations are undefined.
                let is_finite = [state[1], state[2]].iter().all(|f| f64::read(f, i).is_finite());
                let is_none = i64::read(state[0], i) == 0 || !is_finite;
                let x = if is_none { f64::NAN } else { f64::read(state[3], i) / c };
                f(x, value, i);
            }
        }
        ArgMin | ArgMax => (0..n).for_each(|i| i64::read(state[1], i).write(value, i)),
        _ => {
            let bytes = n * result.size();
            value[..bytes].copy_from_slice(&state[0][..bytes]);
        }
    }
    let Some(valid) = valid else { return Ok(()) };
    let met = |i: usize| match kind {
        Any | All | Count => true,
        Var { .. } => i64::read(state[0], i) > 0,
        ArgMin | ArgMax => i64::read(state[1], i) >= 0,
        Sum | Mean | MeanOf(_) => state.last().is_none_or(|count| i64::read(count, i) > 0),
        _ => state.last().is_none_or(|met| met[i] > 0),
    };
    for (i, v) in valid.iter_mut().enumerate().take(n) {
        *v = 1;
        if masks && !met(i) {
            *v = 0;
            // Masked cells are zero, so that equal results are equal bytes.
            let s = result.size();
            value[i * s..(i + 1) * s].fill(0);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn f(v: &[f64]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }
    fn i(v: &[i64]) -> Vec<u8> {
        v.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }
    /// Combines states given as fields, then finishes; `Err` from either.
    fn both(
        kind: ReduceKind,
        dtype: DType,
        nullable: bool,
        parts: &[Vec<Vec<u8>>],
    ) -> Result<(Vec<u8>, Vec<u8>), KernelError> {
        let views: Vec<Vec<&[u8]>> =
            parts.iter().map(|p| p.iter().map(|f| &f[..]).collect()).collect();
        let refs: Vec<&State<'_>> = views.iter().map(|v| &v[..]).collect();
        let mut out = parts[0].clone();
        out.iter_mut().for_each(|f| f.fill(0xaa));
        let mut fields: Vec<&mut [u8]> = out.iter_mut().map(|f| &mut f[..]).collect();
        combine(kind, dtype, nullable, &refs, &mut fields)?;
        let state: Vec<&[u8]> = out.iter().map(|f| &f[..]).collect();
        let n = out[0].len() / kind.state(dtype, nullable)[0].size();
        let mut value = vec![0; n * kind.result(dtype).unwrap().size()];
        let mut valid = vec![9; n];
        let masks = kind.nullable(nullable).then_some(&mut valid[..]);
        finish(kind, dtype, nullable, &state, &mut value, masks)?;
        Ok((value, valid))
    }

    #[test]
    fn variances_merge_to_that_of_all_cells() {
        // np.var([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], ddof=1) is 9.166666666666666, from three parts.
        let part = |v: &[f64]| {
            let n = v.len() as f64;
            let mean = v.iter().sum::<f64>() / n;
            let m2 = v.iter().map(|x| (x - mean).powi(2)).sum();
            vec![i(&[v.len() as i64]), f(&[v[0]]), f(&[mean - v[0]]), f(&[m2])]
        };
        let parts = [
            part(&[1., 2., 3.]),
            vec![i(&[0]), f(&[0.]), f(&[0.]), f(&[0.])],
            part(&[4., 5., 6., 7., 8., 9., 10.]),
        ];
        let kind = ReduceKind::Var { ddof: 1 };
        let (v, _) = both(kind, DType::Float64, false, &parts).unwrap();
        let got = f64::read(&v, 0);
        assert!((got - 9.166666666666666).abs() < 4e-15, "{got}");
        // np.var of one cell with ddof=1 is nan, as is that of none; with a mask both are masked.
        let (v, ok) = both(kind, DType::Float64, true, &parts[1..2]).unwrap();
        assert_eq!((f64::read(&v, 0), ok[0]), (0.0, 0));
        let (v, ok) = both(kind, DType::Float64, true, &[part(&[3.0])]).unwrap();
        assert!(f64::read(&v, 0).is_nan() && ok[0] == 1);
    }

    #[test]
    fn integer_sums_are_exact_until_they_do_not_fit() {
        let s = |v: i128| vec![(v as u64).to_ne_bytes().to_vec(), i(&[(v >> 64) as i64])];
        let max = i128::from(i64::MAX);
        let (k, d) = (ReduceKind::Sum, DType::Int32);
        // Intermediate totals may exceed 64 bits.
        let (v, _) = both(k, d, false, &[s(max), s(max), s(-max - 5)]).unwrap();
        assert_eq!(i64::read(&v, 0), i64::MAX - 5);
        let e = both(k, d, false, &[s(max), s(1)]);
        assert!(matches!(e, Err(KernelError::Overflow { .. })));
        assert!(both(k, DType::UInt8, false, &[s(max), s(1)]).is_ok());
        assert!(both(k, DType::UInt8, false, &[s(-1)]).is_err());
    }

    #[test]
    fn extremes_take_the_first_position_and_nan() {
        let s = |v: f64, at: i64| vec![f(&[v]), i(&[at])];
        let (k, d) = (ReduceKind::ArgMax, DType::Float64);
        let parts = [s(f64::NEG_INFINITY, -1), s(5.0, 9), s(5.0, 4), s(3.0, 1)];
        let (v, ok) = both(k, d, true, &parts).unwrap();
        assert_eq!((i64::read(&v, 0), ok[0]), (4, 1));
        let (v, _) = both(k, d, true, &[s(5.0, 9), s(f64::NAN, 30), s(f64::NAN, 20)]).unwrap();
        assert_eq!(i64::read(&v, 0), 20);
        assert_eq!(both(k, d, true, &parts[..1]).unwrap().1, [0]);
    }

    #[test]
    fn means_divide_and_round_once() {
        // np.float32(1 / 3) from a float64 sum.
        let (v, _) =
            both(ReduceKind::Mean, DType::Float32, false, &[vec![f(&[1.0, 0.0]), i(&[3, 0])]])
                .unwrap();
        assert_eq!(f32::read(&v, 0), 0.33333334);
        assert!(f32::read(&v, 1).is_nan());
        // A mean of a known number of cells, without a count.
        let known = |n| both(ReduceKind::MeanOf(n), DType::Float32, false, &[vec![f(&[1.0, 0.0])]]);
        assert_eq!(known(3).unwrap().0[..4], v[..4]);
        assert!(f32::read(&known(0).unwrap().0, 1).is_nan());
    }

    #[test]
    fn states_that_are_too_short_are_refused() {
        let e = both(ReduceKind::Sum, DType::Float64, true, &[vec![f(&[1.0])]]);
        assert!(matches!(e, Err(KernelError::Buffer { .. })));
        let e = both(ReduceKind::Any, DType::Float64, false, &[vec![f(&[1.0])]]);
        assert!(matches!(e, Err(KernelError::Unsupported { .. })));
    }
}
