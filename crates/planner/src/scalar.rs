//! One typed value, stored as its bit pattern so that plans can be compared and hashed.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One element: a type and its bits (integers sign-extended to 64 bits, `float32` in the low half).
///
/// Two NaNs with the same bits are equal, so that equal plans compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// Converts a float to `dtype`: rounded for `float32`, truncated toward zero and saturated for integers; as `bool`,
    /// any nonzero value is `true`.
    pub fn from_f64(dtype: DType, v: f64) -> Self {
        use DType::*;
        let bits = match dtype {
            Bool => u64::from(v != 0.0),
            Int8 => (v as i8) as i64 as u64,
            Int16 => (v as i16) as i64 as u64,
            Int32 => (v as i32) as i64 as u64,
            Int64 | Datetime(_) => (v as i64) as u64,
            UInt8 => u64::from(v as u8),
            UInt16 => u64::from(v as u16),
            UInt32 => u64::from(v as u32),
            UInt64 => v as u64,
            Float32 => u64::from((v as f32).to_bits()),
            Float64 => v.to_bits(),
        };
        Scalar { dtype, bits }
    }

    /// Converts an integer to `dtype`; `None` if it is out of range for an integer type.
    pub fn from_i128(dtype: DType, v: i128) -> Option<Self> {
        use DType::*;
        let bits = match dtype {
            Bool => u64::from(v != 0),
            Int8 => i64::from(i8::try_from(v).ok()?) as u64,
            Int16 => i64::from(i16::try_from(v).ok()?) as u64,
            Int32 => i64::from(i32::try_from(v).ok()?) as u64,
            Int64 | Datetime(_) => i64::try_from(v).ok()? as u64,
            UInt8 => u64::from(u8::try_from(v).ok()?),
            UInt16 => u64::from(u16::try_from(v).ok()?),
            UInt32 => u64::from(u32::try_from(v).ok()?),
            UInt64 => u64::try_from(v).ok()?,
            Float32 => u64::from((v as f32).to_bits()),
            Float64 => (v as f64).to_bits(),
        };
        Some(Scalar { dtype, bits })
    }

    /// A `bool`.
    pub fn bool(v: bool) -> Self {
        Scalar { dtype: DType::Bool, bits: u64::from(v) }
    }

    /// An `int64`.
    pub fn i64(v: i64) -> Self {
        Scalar { dtype: DType::Int64, bits: v as u64 }
    }

    /// A `float64`.
    pub fn f64(v: f64) -> Self {
        Scalar { dtype: DType::Float64, bits: v.to_bits() }
    }

    /// Zero (or `false`, or 1970-01-01) of a type.
    pub fn zero(dtype: DType) -> Self {
        Scalar { dtype, bits: 0 }
    }

    /// Reads a value from its little-endian bytes in memory; `bytes` has exactly `dtype.size()` of them.
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Self {
        let mut b = [0u8; 8];
        let n = dtype.size().min(bytes.len());
        b[..n].copy_from_slice(&bytes[..n]);
        let raw = u64::from_le_bytes(b);
        let bits = match dtype {
            DType::Int8 => (raw as u8 as i8) as i64 as u64,
            DType::Int16 => (raw as u16 as i16) as i64 as u64,
            DType::Int32 => (raw as u32 as i32) as i64 as u64,
            _ => raw,
        };
        Scalar { dtype, bits }
    }

    /// Returns the little-endian bytes in memory, in the first `dtype.size()` places.
    pub fn to_le_bytes(self) -> [u8; 8] {
        self.bits.to_le_bytes()
    }

    /// Type of the value.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// Bit pattern of the value, as described at [`Scalar`].
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// The value as a float; 64-bit integers round.
    pub fn as_f64(self) -> f64 {
        match self.dtype {
            DType::Float64 => f64::from_bits(self.bits),
            DType::Float32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::UInt64 => self.bits as f64,
            _ => self.bits as i64 as f64,
        }
    }

    /// The value as an integer: exact for integers, `bool` and datetimes, truncated for floats.
    pub fn as_i128(self) -> i128 {
        match self.dtype {
            DType::Float64 | DType::Float32 => self.as_f64() as i128,
            DType::UInt64 => i128::from(self.bits),
            _ => i128::from(self.bits as i64),
        }
    }

    /// Converts the value to another type, as NumPy's `astype` where that is defined.
    pub fn cast(self, to: DType) -> Self {
        if to == self.dtype {
            return self;
        }
        if self.dtype.is_float() {
            return Scalar::from_f64(to, self.as_f64());
        }
        // Integers wrap into the narrower type as two's complement.
        let v = self.as_i128();
        match to {
            DType::Float64 => Scalar::f64(v as f64),
            DType::Float32 => Scalar { dtype: to, bits: u64::from((v as f32).to_bits()) },
            DType::Bool => Scalar::bool(v != 0),
            _ => Scalar::from_le_bytes(to, &(v as u64).to_le_bytes()),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            DType::Bool => write!(f, "{}", self.bits != 0),
            DType::Float32 => write!(f, "{:?}", f32::from_bits(self.bits as u32)),
            DType::Float64 => write!(f, "{:?}", f64::from_bits(self.bits)),
            DType::Datetime(c) => f.write_str(&crate::time::format_micros(self.bits as i64, c)),
            _ => write!(f, "{}", self.as_i128()),
        }
    }
}
