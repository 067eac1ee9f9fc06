//! Converts decoded cells to stored cells: applies packing, time units and missing values.

use crate::source::coords::{native_bytes, scalars};
use tessera_planner::catalog::{Coord, CoordValues, Decode, NAT, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// How an array stores its cells.
#[derive(Debug)]
pub(super) struct Encoding {
    stored: DType,
    /// The type of decoded cells.
    decoded: DType,
    decode: Decode,
}

impl Encoding {
    /// The encoding of cells of type `decoded`.
    pub(super) fn of(v: &Variable, decoded: DType) -> Result<Encoding, String> {
        if v.decode.valid.is_some() {
            return Err(format!("`{}` has a mask of its own in the store", v.name));
        }
        Ok(Encoding { stored: v.source.dtype, decoded, decode: v.decode.clone() })
    }

    /// The encoding of labels, whose cells are `stored` in the store.
    pub(super) fn of_labels(
        coord: &Coord,
        stored: DType,
        decode: &Decode,
    ) -> Result<Encoding, String> {
        let decoded = match &coord.values {
            CoordValues::Text(_) | CoordValues::Unreadable(_) => {
                return Err(format!(
                    "the labels of `{}` are texts, which are not appended",
                    coord.name
                ));
            }
            CoordValues::Time(calendar, _) => DType::Datetime(*calendar),
            CoordValues::Int(..) => DType::Int64,
            CoordValues::Float(..) => DType::Float64,
        };
        Ok(Encoding { stored, decoded, decode: decode.clone() })
    }

    pub(super) fn stored(&self) -> DType {
        self.stored
    }

    /// Stored cells, native-endian.
    pub(super) fn store(&self, cells: &[u8], valid: Option<&[u8]>) -> Result<Vec<u8>, String> {
        let is_same = self.decode.unpack.is_none() && self.decode.time.is_none();
        if is_same && self.stored == self.decoded && valid.is_none_or(|v| !v.contains(&0)) {
            return Ok(cells.to_vec());
        }
        let mut out = Vec::with_capacity(cells.len() / self.decoded.size() * self.stored.size());
        for (i, cell) in scalars(cells, self.decoded).enumerate() {
            let is_valid = valid.is_none_or(|v| v.get(i) != Some(&0));
            self.push(&mut out, if is_valid { Some(cell) } else { None })?;
        }
        Ok(out)
    }

    /// Stored labels, native-endian.
    pub(super) fn labels(&self, values: &CoordValues) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        match values {
            CoordValues::Int(d, v) => {
                let wide = if *d == DType::UInt64 { DType::UInt64 } else { DType::Int64 };
                let label = |x: i64| Scalar::from_i128(wide, CoordValues::integer(*d, x));
                v.iter().try_for_each(|&x| self.push(&mut out, label(x)))?;
            }
            CoordValues::Float(_, v) => v.iter().try_for_each(|&x| {
                self.push(&mut out, Some(Scalar::from_f64(DType::Float64, x)))
            })?,
            CoordValues::Time(_, v) => v
                .iter()
                .try_for_each(|&us| self.push(&mut out, (us != NAT).then(|| Scalar::i64(us))))?,
            CoordValues::Text(_) | CoordValues::Unreadable(_) => {
                return Err("texts are not appended".into());
            }
        }
        Ok(out)
    }

    fn push(&self, out: &mut Vec<u8>, cell: Option<Scalar>) -> Result<(), String> {
        let stored = match cell {
            Some(cell) => self.stored_value(cell)?,
            None => self.missing()?,
        };
        out.extend_from_slice(&native_bytes(stored)[..self.stored.size()]);
        Ok(())
    }

    /// The stored value of a masked cell.
    fn missing(&self) -> Result<Scalar, String> {
        match self.decode.missing.first() {
            Some(missing) => Ok(*missing),
            None if self.stored.is_float() => Ok(Scalar::from_f64(self.stored, f64::NAN)),
            None => Err("a cell is masked, and the array has no `_FillValue`".into()),
        }
    }

    fn stored_value(&self, cell: Scalar) -> Result<Scalar, String> {
        let beyond = |what: String| format!("{what} is beyond {}", self.stored.name());
        let stored = if let Some(time) = &self.decode.time {
            let us = i128::from(cell.bits() as i64) - i128::from(time.origin_us);
            let ns = us * 1000;
            match self.stored.is_float() {
                true => Scalar::from_f64(self.stored, ns as f64 / time.unit_ns as f64),
                false if ns % i128::from(time.unit_ns) != 0 => {
                    return Err(format!(
                        "a time is not a whole number of the units of the array ({} ns)",
                        time.unit_ns
                    ));
                }
                false => Scalar::from_i128(self.stored, ns / i128::from(time.unit_ns))
                    .ok_or_else(|| beyond("a time".into()))?,
            }
        } else if let Some(unpack) = &self.decode.unpack {
            let v = cell.as_f64();
            if v.is_nan() {
                return self.missing();
            }
            let packed = (v - unpack.offset) / unpack.scale;
            match self.stored.is_float() {
                true => Scalar::from_f64(self.stored, packed),
                false => {
                    let whole = packed.round_ties_even();
                    let fits = whole.abs() < 1e30;
                    let packed = fits.then(|| Scalar::from_i128(self.stored, whole as i128));
                    packed.flatten().ok_or_else(|| {
                        beyond(format!(
                            "{v}, which `scale_factor` and `add_offset` pack to {whole},"
                        ))
                    })?
                }
            }
        } else if self.stored.is_float() {
            // Labels, and cells of a type that fits: `float32` was widened exactly.
            Scalar::from_f64(self.stored, cell.as_f64())
        } else {
            match cell.dtype().is_float() {
                true => {
                    let v = cell.as_f64();
                    let whole = (v.fract() == 0.0 && v.abs() < 1e30).then_some(v as i128);
                    whole
                        .and_then(|v| Scalar::from_i128(self.stored, v))
                        .ok_or_else(|| beyond(v.to_string()))?
                }
                false => Scalar::from_i128(self.stored, cell.as_i128())
                    .ok_or_else(|| beyond(cell.to_string()))?,
            }
        };
        // A valid cell that is stored as a missing one would be lost.
        let is_nan = stored.dtype().is_float() && stored.as_f64().is_nan();
        if !is_nan && self.decode.missing.contains(&stored) {
            return Err(format!("the value {stored} marks missing cells in the array"));
        }
        Ok(stored)
    }
}
