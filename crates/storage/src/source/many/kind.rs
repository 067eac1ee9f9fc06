//! The type and the decoding of cells that several files have.

use tessera_planner::catalog::{Decode, NAT, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// The cells of a joined variable.
pub(super) struct Kind {
    pub(super) dtype: DType,
    pub(super) decode: Decode,
    /// True if the cells of all files are of this type and have this decoding; otherwise each file is decoded by its own
    /// attributes first.
    pub(super) is_same: bool,
    /// The cell of a file that lacks the variable.
    pub(super) absent: Scalar,
}

impl Kind {
    /// The cells of `all` (`None`: a file lacks the variable), of which `first` is one.
    pub(super) fn of(all: &[Option<Variable>], first: &Variable) -> Kind {
        let is_whole = all.iter().all(Option::is_some);
        let plain = |d: &Decode| Decode { valid: None, ..d.clone() };
        let is_same = |v: &Variable| {
            v.source.dtype == first.source.dtype && plain(&v.decode) == plain(&first.decode)
        };
        // A file without the variable needs a value that marks its cells as missing.
        let marker = first.decode.missing.first().copied();
        let is_float = first.source.dtype.is_float() && first.decode.unpack.is_none();
        if all.iter().flatten().all(is_same) && (is_whole || marker.is_some() || is_float) {
            let (dtype, mut decode) = (first.source.dtype, plain(&first.decode));
            let absent = marker.unwrap_or_else(|| missing(dtype));
            if !is_whole && marker.is_none() {
                decode.missing.push(absent);
            }
            return Kind { dtype, decode, is_same: true, absent };
        }
        if let Some(dtype) = integer(all) {
            let absent = Scalar::zero(dtype);
            return Kind { dtype, decode: Decode::default(), is_same: false, absent };
        }
        let dtype = match first.dtype() {
            time if time.is_datetime() => time,
            _ => float(all),
        };
        let absent = missing(dtype);
        let decode = Decode { missing: vec![absent], ..Decode::default() };
        Kind { dtype, decode, is_same: false, absent }
    }
}

/// NaN, or NaT of datetimes.
fn missing(dtype: DType) -> Scalar {
    match dtype.is_datetime() {
        true => Scalar::from_le_bytes(dtype, &NAT.to_le_bytes()),
        false => Scalar::from_f64(dtype, f64::NAN),
    }
}

/// The integer type that has the values of all files; `None` if a file has other cells than plain integers, or lacks
/// the variable, or if no type has all values.
fn integer(all: &[Option<Variable>]) -> Option<DType> {
    let plain = |v: &Option<Variable>| {
        v.as_ref().filter(|v| v.decode.is_identity()).map(|v| v.source.dtype)
    };
    let mut types = all.iter().map(plain);
    let first = types.next()??;
    types.try_fold(first, |a, b| a.promote(b?)).filter(|d| d.is_integer())
}

/// The type of decoded cells: that of xarray.
fn float(all: &[Option<Variable>]) -> DType {
    let is_narrow = |v: &Variable| match v.decode.unpack {
        Some(u) => u.dtype == DType::Float32,
        None => v.source.dtype == DType::Float32 || v.source.dtype.size() <= 2,
    };
    if all.iter().flatten().all(is_narrow) { DType::Float32 } else { DType::Float64 }
}
