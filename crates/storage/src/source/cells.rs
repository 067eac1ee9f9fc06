//! Cell types of files, and their conversion to Tessera's types.

use crate::source::texts::padded;
use std::borrow::Cow;
use std::sync::Arc;
use tessera_planner::dtype::{Calendar, DType};

/// A cell type in a file, after its codecs: native-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Raw {
    /// A type of Tessera.
    Plain(DType),
    /// IEEE 754 binary16, widened exactly to `float32`.
    Half,
    /// `bfloat16`, widened exactly to `float32`.
    Brain,
    /// 8-bit floats with 4 bits of exponent and no infinities, widened exactly to `float32`.
    E4M3,
    /// 8-bit floats with 5 bits of exponent, widened exactly to `float32`.
    E5M2,
    /// `numpy.datetime64`: `cell * multiply / divide` microseconds since 1970; `NaT` is `i64::MIN` on both sides.
    /// [`crate::source::moments`] converts to microseconds.
    Time { multiply: i64, divide: i64 },
    /// `numpy.datetime64` of `count` months: microseconds of the first day; `NaT` as for `Time`.
    Months { count: i64 },
    /// `numpy.timedelta64`: counts of `count` units; `NaT` is `i64::MIN`.
    Span { unit: &'static str, count: i64 },
    /// Texts of a fixed number of UTF-32 characters. All of them are read at bind.
    Utf32 { chars: u64 },
    /// Texts of any length. All of them are read at bind.
    Utf8,
    /// Texts of a fixed number of bytes, padded with zeros. All of them are read at bind.
    Bytes { len: u64 },
    /// Texts as numbers: 1 is the first label, and a number without a label is an empty text. All of them are read at
    /// bind.
    Codes { code: DType, labels: Arc<[String]> },
}

impl Raw {
    /// The type that readers return; texts have none.
    pub(crate) fn dtype(&self) -> Option<DType> {
        match self {
            Raw::Plain(d) => Some(*d),
            Raw::Half | Raw::Brain | Raw::E4M3 | Raw::E5M2 => Some(DType::Float32),
            Raw::Time { .. } | Raw::Months { .. } => Some(DType::Datetime(Calendar::Standard)),
            Raw::Span { .. } => Some(DType::Int64),
            Raw::Utf32 { .. } | Raw::Utf8 | Raw::Bytes { .. } | Raw::Codes { .. } => None,
        }
    }

    /// Bytes of a cell in a file; texts of any length count as a pointer and a length.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Raw::Plain(d) | Raw::Codes { code: d, .. } => d.size() as u64,
            Raw::Half | Raw::Brain => 2,
            Raw::E4M3 | Raw::E5M2 => 1,
            Raw::Time { .. } | Raw::Months { .. } | Raw::Span { .. } => 8,
            Raw::Bytes { len } => *len,
            Raw::Utf32 { chars } => chars.saturating_mul(4),
            Raw::Utf8 => 16,
        }
    }

    /// Parses a NumPy type name (`<f8`, `|b1`, `>M8[ns]`, `<U5`): the type, and true if it is big-endian.
    ///
    /// # Source
    /// Zarr v2 specification, "Data type encoding"; NumPy's array interface protocol.
    pub(crate) fn parse_numpy(name: &str) -> Option<(Raw, bool)> {
        let order = *name.as_bytes().first()?;
        let big = match order {
            b'>' => true,
            b'<' | b'|' | b'=' => false,
            _ => return None,
        };
        let kind = name.get(1..2)?;
        let rest = name.get(2..)?;
        if kind == "M" || kind == "m" {
            let unit = rest.strip_prefix("8[")?.strip_suffix(']')?;
            let digits = unit.bytes().take_while(u8::is_ascii_digit).count();
            let count = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
            let of = if kind == "M" { Raw::time } else { Raw::span };
            return Some((of(&unit[digits..], count)?, big));
        }
        let size: u64 = rest.parse().ok()?;
        use DType::*;
        let raw = match (kind, size) {
            ("b", 1) => Raw::Plain(Bool),
            ("i", 1) => Raw::Plain(Int8),
            ("i", 2) => Raw::Plain(Int16),
            ("i", 4) => Raw::Plain(Int32),
            ("i", 8) => Raw::Plain(Int64),
            ("u", 1) => Raw::Plain(UInt8),
            ("u", 2) => Raw::Plain(UInt16),
            ("u", 4) => Raw::Plain(UInt32),
            ("u", 8) => Raw::Plain(UInt64),
            ("f", 2) => Raw::Half,
            ("f", 4) => Raw::Plain(Float32),
            ("f", 8) => Raw::Plain(Float64),
            ("U", 1..) => Raw::Utf32 { chars: size },
            ("S", 1..0x10_0000) => return Some((Raw::Bytes { len: size }, false)),
            _ => return None,
        };
        // Types of more than one byte need a byte order.
        (order != b'|' || raw.size() == 1).then_some((raw, big))
    }

    /// NumPy's name of a number's type, in the machine's byte order; empty for others.
    pub(crate) fn numpy_name(&self) -> String {
        let kind = match self {
            Raw::Half => return "<f2".into(),
            Raw::Plain(DType::Bool) => "b",
            Raw::Plain(d) if d.is_float() => "f",
            Raw::Plain(DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64) => "u",
            Raw::Plain(d) if d.is_numeric() => "i",
            _ => return String::new(),
        };
        let order = if self.size() == 1 { '|' } else { '<' };
        format!("{order}{kind}{}", self.size())
    }

    /// `datetime64` of `count` units; `None` for units that are not a whole fraction or multiple of a microsecond.
    pub(crate) fn time(unit: &str, count: i64) -> Option<Raw> {
        let (multiply, divide): (i64, i64) = match unit {
            "W" => (7 * 86_400_000_000, 1),
            "D" => (86_400_000_000, 1),
            "h" => (3_600_000_000, 1),
            "m" => (60_000_000, 1),
            "s" => (1_000_000, 1),
            "ms" => (1000, 1),
            "us" | "μs" => (1, 1),
            "ns" => (1, 1000),
            "M" | "Y" if count > 0 => {
                let months = if unit == "M" { 1 } else { 12 };
                return count.checked_mul(months).map(|count| Raw::Months { count });
            }
            _ => return None,
        };
        let multiply = multiply.checked_mul(count)?;
        (count > 0).then_some(Raw::Time { multiply, divide })
    }

    /// `timedelta64` of `count` units; `None` for units that NumPy does not have.
    pub(crate) fn span(unit: &str, count: i64) -> Option<Raw> {
        let unit = match unit {
            "W" => "weeks",
            "D" => "days",
            "h" => "hours",
            "m" => "minutes",
            "s" => "seconds",
            "ms" => "milliseconds",
            "us" | "μs" => "microseconds",
            "ns" => "nanoseconds",
            _ => return None,
        };
        (count > 0).then_some(Raw::Span { unit, count })
    }

    /// Running sums of the cells, in their type: integers wrap around, as NumPy's `cumsum` into the same type.
    pub(crate) fn sum_up<'a>(&self, cells: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        let mut cells = cells.into_owned();
        macro_rules! sum {
            ($t:ty, $add:expr) => {{
                let mut total: $t = Default::default();
                for c in cells.as_chunks_mut::<{ size_of::<$t>() }>().0 {
                    total = $add(total, <$t>::from_ne_bytes(*c));
                    *c = total.to_ne_bytes();
                }
            }};
        }
        match self.dtype() {
            Some(DType::Float32) => sum!(f32, |a: f32, b: f32| a + b),
            Some(DType::Float64) => sum!(f64, |a: f64, b: f64| a + b),
            // Two's complement adds signed and unsigned integers alike.
            _ => match self.size() {
                1 => sum!(u8, u8::wrapping_add),
                2 => sum!(u16, u16::wrapping_add),
                4 => sum!(u32, u32::wrapping_add),
                _ => sum!(u64, u64::wrapping_add),
            },
        }
        Cow::Owned(cells)
    }

    /// The texts of cells of [`Raw::Bytes`].
    pub(crate) fn texts(&self, cells: &[u8]) -> Result<Vec<String>, String> {
        cells.chunks_exact(self.size().max(1) as usize).map(padded).collect()
    }

    /// True if [`Raw::convert`] returns every cell unchanged.
    pub(crate) fn is_verbatim(&self) -> bool {
        match self {
            Raw::Plain(dtype) => *dtype != DType::Bool,
            Raw::Time { .. } | Raw::Months { .. } | Raw::Span { .. } => true,
            _ => false,
        }
    }

    /// Converts cells to the type of [`Raw::dtype`]; texts and datetime counts are unchanged.
    pub(crate) fn convert<'a>(&self, cells: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        match self {
            Raw::Plain(DType::Bool) if cells.iter().any(|&b| b > 1) => {
                Cow::Owned(cells.iter().map(|&b| u8::from(b != 0)).collect())
            }
            Raw::Half => {
                let mut out = Vec::with_capacity(cells.len() * 2);
                for c in cells.as_chunks::<2>().0 {
                    out.extend_from_slice(&half::f16::from_ne_bytes(*c).to_f32().to_ne_bytes());
                }
                Cow::Owned(out)
            }
            Raw::Brain => {
                let wide = |c: &[u8; 2]| u32::from(u16::from_ne_bytes(*c)) << 16;
                let cells = cells.as_chunks::<2>().0;
                Cow::Owned(cells.iter().flat_map(|c| wide(c).to_ne_bytes()).collect())
            }
            Raw::E4M3 => Cow::Owned(cells.iter().flat_map(|&c| e4m3(c).to_ne_bytes()).collect()),
            // The upper byte of a binary16.
            Raw::E5M2 => {
                let wide = |c: u8| half::f16::from_bits(u16::from(c) << 8).to_f32();
                Cow::Owned(cells.iter().flat_map(|&c| wide(c).to_ne_bytes()).collect())
            }
            _ => cells,
        }
    }
}

/// # Source
/// Micikevicius et al. (2022), "FP8 formats for deep learning", table 1.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 0xf), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (0xf, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// Reverses the bytes of each cell of `size` bytes.
pub fn swap_bytes(cells: &mut [u8], size: usize) {
    match size {
        2 => cells.as_chunks_mut::<2>().0.iter_mut().for_each(|c| c.reverse()),
        4 => cells.as_chunks_mut::<4>().0.iter_mut().for_each(|c| c.reverse()),
        8 => cells.as_chunks_mut::<8>().0.iter_mut().for_each(|c| c.reverse()),
        _ => {}
    }
}
