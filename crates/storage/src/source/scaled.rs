//! numcodecs' `fixedscaleoffset`: numbers stored as others, `stored / scale + offset`.
//!
//! zarrs computes in `float32` with a factor of `float32`; numcodecs in NumPy's types: integers are divided in
//! `float64`, floats in their own type, and the result is cast. So the codec is removed from the metadata and decoded
//! here.
//!
//! # Source
//! numcodecs 0.16, `numcodecs.fixedscaleoffset.FixedScaleOffset.decode`; NumPy 2's promotion.

use crate::source::cells::Raw;
use crate::source::coords::{native_bytes, scalars};
use crate::source::steps::numpy_type;
use half::f16;
use serde_json::{Map, Value};
use std::borrow::Cow;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// Conversion of stored numbers to those of the array.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaled {
    pub(crate) stored: Raw,
    /// NumPy's name of the stored type, with the byte order.
    pub(crate) name: String,
    pub(crate) dtype: DType,
    scale: f64,
    offset: f64,
    /// True if the cells of the array are `float16`, which is `float32` in memory.
    is_half: bool,
}

impl Scaled {
    /// Parses the codec's configuration, for cells of `dtype`; the error is the reason why it is invalid.
    pub(crate) fn parse(config: &Map<String, Value>, dtype: DType) -> Result<Self, String> {
        let number = |key: &str| {
            config
                .get(key)
                .and_then(Value::as_f64)
                .ok_or(format!("`{key}` is missing or not a number"))
        };
        let of = |key: &str| numpy_type(config.get(key)?.as_str()?);
        let is_number = |raw: &Raw| match raw {
            Raw::Plain(d) => d.is_numeric(),
            Raw::Half => true,
            _ => false,
        };
        let Some((own, own_name)) = of("dtype").filter(|(raw, _)| raw.dtype() == Some(dtype))
        else {
            return Err(format!("its `dtype` is not {dtype}"));
        };
        let is_half = own == Raw::Half;
        let (stored, name) = match config.get("astype") {
            None | Some(Value::Null) => (own, own_name),
            Some(_) => of("astype").ok_or("its `astype` is not a supported type")?,
        };
        if !is_number(&stored) || !dtype.is_numeric() {
            return Err(format!("it stores {dtype} as {name}"));
        }
        let (scale, offset) = (number("scale")?, number("offset")?);
        Ok(Scaled { stored, name, dtype, scale, offset, is_half })
    }

    /// Decodes stored cells in native byte order, `float16` as `float32`, to cells of the array.
    pub(crate) fn undo(&self, stored: &[u8]) -> Cow<'static, [u8]> {
        let mut out = Vec::with_capacity(stored.len() / self.stored.size() as usize * 8);
        let mut put = |v: f64| match self.dtype {
            DType::Float64 => out.extend_from_slice(&v.to_ne_bytes()),
            DType::Float32 if self.is_half => {
                out.extend_from_slice(&f16::from_f64(v).to_f32().to_ne_bytes());
            }
            DType::Float32 => out.extend_from_slice(&(v as f32).to_ne_bytes()),
            // Towards zero, as NumPy casts.
            d => out.extend_from_slice(&native_bytes(Scalar::from_f64(d, v.trunc()))[..d.size()]),
        };
        match &self.stored {
            Raw::Half => {
                let (scale, offset) = (f16::from_f64(self.scale), f16::from_f64(self.offset));
                for c in stored.as_chunks::<4>().0 {
                    // Each step is rounded once: float32 has more than twice the digits.
                    let q = f16::from_f32(f32::from_ne_bytes(*c) / scale.to_f32());
                    put(f16::from_f32(q.to_f32() + offset.to_f32()).to_f64());
                }
            }
            Raw::Plain(DType::Float32) => {
                let (scale, offset) = (self.scale as f32, self.offset as f32);
                for c in stored.as_chunks::<4>().0 {
                    put(f64::from(f32::from_ne_bytes(*c) / scale + offset));
                }
            }
            Raw::Plain(dtype) => {
                scalars(stored, *dtype).for_each(|s| put(s.as_f64() / self.scale + self.offset));
            }
            _ => {}
        }
        Cow::Owned(out)
    }
}
