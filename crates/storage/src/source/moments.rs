//! Datetimes: conversion of a file's numbers to times, and detection of invalid numbers.
//!
//! The plan applies CF's units; NumPy's `datetime64` is converted here. Either way an invalid number is detected when
//! it is read, where the array and the value are known: it never becomes a wrong or a missing date.

use crate::source::coords::{is_missing, scalars, unpacked};
use tessera_planner::catalog::{Decode, TimeUnits};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::{DateTime, REFORM_US, format_micros, join};

use crate::source::cells::Raw;

/// Time units of an array's cells.
#[derive(Debug, Clone)]
pub(crate) enum Moments {
    /// `numpy.datetime64`: `cell * multiply / divide` microseconds since 1970.
    Native { multiply: i64, divide: i64 },
    /// `numpy.datetime64` of months: `cell * count` months since January 1970.
    Months { count: i64 },
    /// CF's units, which the plan applies.
    Cf(Box<CfTimes>),
}

/// A time axis of CF.
#[derive(Debug, Clone)]
pub(crate) struct CfTimes {
    pub(crate) decode: Decode,
    pub(crate) units: TimeUnits,
    /// The units as written in the file.
    pub(crate) text: String,
    /// True if dates before the reform of 1582 are Julian ones, which the calendar of `units` does not have.
    pub(crate) is_mixed: bool,
}

impl Moments {
    /// The conversion of a NumPy type; `None` if it is not a datetime, or if its numbers are already microseconds.
    pub(crate) fn native(raw: &Raw) -> Option<Moments> {
        match *raw {
            Raw::Time { multiply: 1, divide: 1 } => None,
            Raw::Time { multiply, divide } => Some(Moments::Native { multiply, divide }),
            Raw::Months { count } => Some(Moments::Months { count }),
            _ => None,
        }
    }

    /// Converts NumPy's datetimes to microseconds and checks CF's; the error names the first invalid value.
    pub(crate) fn finish(&self, dtype: DType, cells: &mut [u8]) -> Result<(), String> {
        match self {
            Moments::Native { multiply, divide } => {
                for cell in cells.as_chunks_mut::<8>().0 {
                    let us = native_us(i64::from_ne_bytes(*cell), *multiply, *divide)?;
                    *cell = us.to_ne_bytes();
                }
                Ok(())
            }
            Moments::Months { count } => {
                for cell in cells.as_chunks_mut::<8>().0 {
                    *cell = month_us(i64::from_ne_bytes(*cell), *count)?.to_ne_bytes();
                }
                Ok(())
            }
            Moments::Cf(times) => scalars(cells, dtype).try_for_each(|s| {
                let Some(us) = times.micros(&s)? else { return Ok(()) };
                if times.is_mixed && us < REFORM_US {
                    return Err(format!(
                        "the value {s} ({}) is {} of the proleptic Gregorian calendar; before 1582-10-15 the calendar \
                         `standard` is Julian, which only coordinates can be",
                        times.text,
                        format_micros(us, times.units.calendar)
                    ));
                }
                Ok(())
            }),
        }
    }
}

/// Microseconds since 1970 of a `datetime64`; NaT is `i64::MIN`.
fn native_us(v: i64, multiply: i64, divide: i64) -> Result<i64, String> {
    if v == i64::MIN {
        return Ok(v);
    }
    let wide = i128::from(v) * i128::from(multiply);
    let unit = if divide == 1 { "microseconds" } else { "nanoseconds" };
    if wide % i128::from(divide) != 0 {
        return Err(format!(
            "the value {wide} {unit} since 1970-01-01 is not a whole number of microseconds"
        ));
    }
    i64::try_from(wide / i128::from(divide)).ok().filter(|&us| us != i64::MIN).ok_or_else(|| {
        format!("the value {wide} {unit} since 1970-01-01 is beyond the years -290308 to 294247")
    })
}

/// Microseconds since 1970 of the first day of `v * count` months since January 1970; NaT is `i64::MIN`.
fn month_us(v: i64, count: i64) -> Result<i64, String> {
    if v == i64::MIN {
        return Ok(v);
    }
    let months = i128::from(v) * i128::from(count);
    let year = i64::try_from(months.div_euclid(12)).ok().and_then(|years| years.checked_add(1970));
    let month = months.rem_euclid(12) as u32 + 1;
    year.and_then(|year| join(DateTime { year, month, day: 1, micros: 0 }, Calendar::Standard))
        .ok_or_else(|| {
            format!("the value {months} months since 1970-01 is beyond the years ±290,000")
        })
}

impl CfTimes {
    /// Microseconds since 1970 of a raw cell; `None` where it is missing.
    pub(crate) fn micros(&self, s: &Scalar) -> Result<Option<i64>, String> {
        if is_missing(s, &self.decode) {
            return Ok(None);
        }
        let TimeUnits { unit_ns, origin_us, .. } = self.units;
        let beyond =
            || format!("the value {s} ({}) is beyond the years -290308 to 294247", self.text);
        let since = if s.dtype().is_float() || self.decode.unpack.is_some() {
            let us = (unpacked(s, &self.decode) * (unit_ns as f64 / 1000.0)).round_ties_even();
            // NaN and infinities are invalid too.
            if us.is_nan() || us.abs() > 9.2e18 {
                return Err(beyond());
            }
            i128::from(us as i64)
        } else {
            let ns = s.as_i128() * i128::from(unit_ns);
            if ns % 1000 != 0 {
                return Err(format!(
                    "the value {s} ({}) is not a whole number of microseconds",
                    self.text
                ));
            }
            ns / 1000
        };
        let us = i64::try_from(since + i128::from(origin_us)).ok().filter(|&us| us != i64::MIN);
        us.filter(|_| i64::try_from(since).is_ok()).map(Some).ok_or_else(beyond)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn months_are_their_first_days() {
        // np.array([-1, 0, 1, 601, -1201, NaT], "M8[M]").astype("M8[us]").astype("i8"), and of M8[Y].
        let months: [(i64, i64); 6] = [
            (-1, -2_678_400_000_000),
            (0, 0),
            (1, 2_678_400_000_000),
            (601, 1_580_515_200_000_000),
            (-1201, -3_158_352_000_000_000),
            (i64::MIN, i64::MIN),
        ];
        for (v, us) in months {
            assert_eq!(month_us(v, 1).unwrap(), us, "{v}");
        }
        assert_eq!(month_us(-1, 12).unwrap(), -31_536_000_000_000);
        assert_eq!(month_us(50, 12).unwrap(), 1_577_836_800_000_000);
        for v in [i64::MAX, i64::MIN + 1, 12 * 290_000, -12 * 300_000] {
            assert!(month_us(v, 12).unwrap_err().contains("beyond the years"), "{v}");
        }
        assert!(month_us(i64::MAX, i64::MAX).is_err());
    }

    #[test]
    fn types_of_months_are_known() {
        assert_eq!(Raw::parse_numpy("<M8[M]"), Some((Raw::Months { count: 1 }, false)));
        assert_eq!(Raw::parse_numpy(">M8[3M]"), Some((Raw::Months { count: 3 }, true)));
        assert_eq!(Raw::parse_numpy("<M8[2Y]"), Some((Raw::Months { count: 24 }, false)));
        assert_eq!(Raw::parse_numpy("<m8[Y]"), None);
        assert_eq!(Raw::time("Y", i64::MAX), None);
        assert_eq!(Raw::time("M", 0), None);
    }
}
