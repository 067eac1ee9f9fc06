//! Element types and NumPy's promotion between them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The calendar of a datetime.
///
/// Every datetime is an `i64` of microseconds since 1970-01-01T00:00:00 *of its own calendar*, so comparison and
/// differences are integer operations; only the split into year, month and day depends on the calendar.
///
/// # Source
/// CF Conventions 1.11, section 4.4.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Calendar {
    /// Proleptic Gregorian; CF's `standard` and `gregorian` from 1582-10-15 on. Same as an Arrow timestamp.
    Standard,
    /// 365 days in every year.
    NoLeap,
    /// 366 days in every year.
    AllLeap,
    /// Twelve months of 30 days.
    Day360,
    /// A leap year every fourth year.
    Julian,
    /// CF's `standard` for times before 1582-10-15: Julian until 1582-10-04, Gregorian from the next day, 1582-10-15.
    Mixed,
}

impl Calendar {
    /// The name of the calendar in CF.
    pub fn name(self) -> &'static str {
        match self {
            Calendar::Standard => "standard",
            Calendar::NoLeap => "noleap",
            Calendar::AllLeap => "all_leap",
            Calendar::Day360 => "360_day",
            Calendar::Julian => "julian",
            Calendar::Mixed => "gregorian",
        }
    }

    /// All calendars.
    pub const ALL: [Calendar; 6] = [
        Calendar::Standard,
        Calendar::NoLeap,
        Calendar::AllLeap,
        Calendar::Day360,
        Calendar::Julian,
        Calendar::Mixed,
    ];
}

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed 8-bit integer.
    Int8,
    /// Signed 16-bit integer.
    Int16,
    /// Signed 32-bit integer.
    Int32,
    /// Signed 64-bit integer.
    Int64,
    /// Unsigned 8-bit integer.
    UInt8,
    /// Unsigned 16-bit integer.
    UInt16,
    /// Unsigned 32-bit integer.
    UInt32,
    /// Unsigned 64-bit integer.
    UInt64,
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary64.
    Float64,
    /// Microseconds since 1970-01-01 in a calendar.
    Datetime(Calendar),
}

impl DType {
    /// Bytes of one element in memory.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::Int8 | DType::UInt8 => 1,
            DType::Int16 | DType::UInt16 => 2,
            DType::Int32 | DType::UInt32 | DType::Float32 => 4,
            DType::Int64 | DType::UInt64 | DType::Float64 | DType::Datetime(_) => 8,
        }
    }

    /// True for `float32` and `float64`.
    pub fn is_float(self) -> bool {
        matches!(self, DType::Float32 | DType::Float64)
    }

    /// True for the eight integer types; `bool` and datetimes are not integers.
    pub fn is_integer(self) -> bool {
        self.is_signed() || self.is_unsigned()
    }

    /// True for `int8` to `int64`.
    pub fn is_signed(self) -> bool {
        matches!(self, DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64)
    }

    /// True for `uint8` to `uint64`.
    pub fn is_unsigned(self) -> bool {
        matches!(self, DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64)
    }

    /// True for integers and floats.
    pub fn is_numeric(self) -> bool {
        self.is_integer() || self.is_float()
    }

    /// True for a datetime of any calendar.
    pub fn is_datetime(self) -> bool {
        matches!(self, DType::Datetime(_))
    }

    /// Common type of two arrays, as `numpy.result_type(a, b)`. Returns `None` where NumPy or Tessera defines none: a
    /// datetime promotes only with its own type.
    pub fn promote(self, other: DType) -> Option<DType> {
        use DType::*;
        if self == other {
            return Some(self);
        }
        let (a, b) = if self <= other { (self, other) } else { (other, self) };
        if b.is_datetime() {
            return None;
        }
        if a == Bool {
            return Some(b);
        }
        Some(match (a, b) {
            (_, Float64) => Float64,
            (Int8 | Int16 | UInt8 | UInt16, Float32) => Float32,
            (_, Float32) => Float64,
            _ if a.is_signed() == b.is_signed() => {
                if a.size() >= b.size() {
                    a
                } else {
                    b
                }
            }
            // A signed type that holds every value of the unsigned one has twice its size.
            _ => {
                let (signed, unsigned) = if a.is_signed() { (a, b) } else { (b, a) };
                match signed.size().max(unsigned.size() * 2) {
                    2 => Int16,
                    4 => Int32,
                    8 => Int64,
                    _ => Float64,
                }
            }
        })
    }

    /// True if `other` has every value of this type, so that a cast to it changes none: `int16` fits `float32`, `int64`
    /// does not fit `float64`. `bool` and datetimes fit only themselves.
    pub fn fits(self, other: DType) -> bool {
        let is_rounded = self.is_integer() && self.size() == 8 && other.is_float();
        self == other || self.is_numeric() && self.promote(other) == Some(other) && !is_rounded
    }

    /// The floating type in which a function such as `sqrt` computes: `float32` for types that it represents exactly
    /// (8- and 16-bit integers and `bool`, where NumPy would take `float16` for 8 bits), else `float64`.
    pub fn to_float(self) -> DType {
        use DType::*;
        match self {
            Float32 | Int16 | UInt16 => Float32,
            _ => Float64,
        }
    }

    /// The type's name as NumPy writes it.
    pub fn name(self) -> String {
        match self {
            DType::Bool => "bool".into(),
            DType::Int8 => "int8".into(),
            DType::Int16 => "int16".into(),
            DType::Int32 => "int32".into(),
            DType::Int64 => "int64".into(),
            DType::UInt8 => "uint8".into(),
            DType::UInt16 => "uint16".into(),
            DType::UInt32 => "uint32".into(),
            DType::UInt64 => "uint64".into(),
            DType::Float32 => "float32".into(),
            DType::Float64 => "float64".into(),
            DType::Datetime(Calendar::Standard) => "datetime64[us]".into(),
            DType::Datetime(c) => format!("datetime64[us, {}]", c.name()),
        }
    }

    /// Parses a type name: NumPy's or SQL's (`double`, `real`, `bigint`, …), case-insensitive.
    pub fn parse(name: &str) -> Option<DType> {
        let name = name.to_ascii_lowercase();
        if let Some(calendar) =
            name.strip_prefix("datetime64[us, ").and_then(|n| n.strip_suffix(']'))
        {
            return Calendar::ALL.into_iter().find(|c| c.name() == calendar).map(DType::Datetime);
        }
        Some(match name.as_str() {
            "bool" | "boolean" => DType::Bool,
            "int8" | "i1" | "tinyint" => DType::Int8,
            "int16" | "i2" | "smallint" => DType::Int16,
            "int32" | "i4" | "int" | "integer" => DType::Int32,
            "int64" | "i8" | "bigint" => DType::Int64,
            "uint8" | "u1" | "utinyint" => DType::UInt8,
            "uint16" | "u2" | "usmallint" => DType::UInt16,
            "uint32" | "u4" | "uint" | "uinteger" => DType::UInt32,
            "uint64" | "u8" | "ubigint" => DType::UInt64,
            "float32" | "f4" | "real" | "float4" => DType::Float32,
            "float64" | "f8" | "float" | "double" | "float8" => DType::Float64,
            "datetime" | "timestamp" | "datetime64" | "datetime64[us]" => {
                DType::Datetime(Calendar::Standard)
            }
            _ => return None,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::DType::{self, *};

    #[test]
    fn promotion_is_numpys() {
        // Rows of numpy.promote_types, printed by NumPy 2.
        let cases = [
            (Bool, UInt8, UInt8),
            (Int8, UInt8, Int16),
            (Int8, UInt16, Int32),
            (Int16, UInt8, Int16),
            (Int32, UInt32, Int64),
            (Int64, UInt64, Float64),
            (Int8, UInt64, Float64),
            (Int16, Float32, Float32),
            (UInt16, Float32, Float32),
            (Int32, Float32, Float64),
            (UInt32, Float32, Float64),
            (Int64, Float32, Float64),
            (Float32, Float64, Float64),
            (Int8, Int64, Int64),
            (UInt8, UInt32, UInt32),
        ];
        for (a, b, want) in cases {
            assert_eq!(a.promote(b), Some(want), "{a} {b}");
            assert_eq!(b.promote(a), Some(want), "{b} {a}");
        }
        assert_eq!(DType::parse("datetime").and_then(|d| d.promote(Int64)), None);
    }

    #[test]
    fn a_type_fits_one_that_has_its_values() {
        for (a, fitting) in [
            (Bool, vec![]),
            (Int8, vec![Int16, Int32, Int64, Float32, Float64]),
            (UInt16, vec![Int32, Int64, UInt32, UInt64, Float32, Float64]),
            (Int32, vec![Int64, Float64]),
            (Int64, vec![]),
            (UInt64, vec![]),
            (Float32, vec![Float64]),
            (Float64, vec![]),
        ] {
            let all =
                [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64];
            let found: Vec<DType> = all.into_iter().filter(|&b| a != b && a.fits(b)).collect();
            assert_eq!(found, fitting, "{a}");
            assert!(a.fits(a));
        }
    }
}
