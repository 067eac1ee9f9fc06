//! Datetimes as counts of a unit since 1970.

use crate::answer::{Windows, windows};
use crate::error::Error;
use crate::format::fill::WINDOW_CELLS;
use crate::format::writer::output;
use serde_json::Value;
use std::io::Write;
use tessera_planner::catalog::NAT;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;
use tessera_storage::sink::cf::{self, UNITS};

/// So many of the coarsest [`UNITS`] may be stored as whole numbers of 32 bits.
const NARROW_UNITS: usize = 4;

/// Microseconds of 1/64 second: a whole number of them is exact as a binary fraction of seconds.
const BINARY_US: i64 = 15_625;

/// Properties of datetimes that decide how they are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    /// True if all are whole in the unit.
    whole: [bool; UNITS.len()],
    is_binary: bool,
    least: i64,
    most: i64,
    has_missing: bool,
}

/// How datetimes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code {
    calendar: Calendar,
    unit: &'static str,
    us: i64,
    stored: DType,
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            whole: [true; UNITS.len()],
            is_binary: true,
            least: i64::MAX,
            most: i64::MIN,
            has_missing: false,
        }
    }
}

impl Facts {
    /// Collects the facts of all cells of a tensor. `out` is only flushed: flushing fails once the output is cancelled.
    pub(super) fn of(tensor: &dyn Windows, out: &mut dyn Write) -> Result<Self, Error> {
        let mut facts = Facts::default();
        for window in windows(&tensor.head().shape(), WINDOW_CELLS) {
            let cells = tensor.window(&window)?;
            moments(&cells.data, cells.valid.as_deref()).for_each(|t| facts.see(t));
            out.flush().map_err(output)?;
        }
        Ok(facts)
    }

    /// Takes one datetime, or [`NAT`].
    pub(super) fn see(&mut self, t: i64) {
        if t == NAT {
            self.has_missing = true;
            return;
        }
        self.whole.iter_mut().zip(UNITS).for_each(|(whole, (_, us))| *whole &= t % us == 0);
        self.is_binary &= t % BINARY_US == 0;
        self.least = self.least.min(t);
        self.most = self.most.max(t);
    }

    pub(super) fn has_missing(&self) -> bool {
        self.has_missing
    }

    pub(super) fn code(&self, calendar: Calendar) -> Code {
        let at = self.whole.iter().position(|whole| *whole).unwrap_or(UNITS.len() - 1);
        let (unit, us) = UNITS[at];
        // The least number is reserved for missing datetimes.
        let fits = |count: i64| i32::try_from(count).is_ok_and(|n| n > i32::MIN + 1);
        let is_empty = self.least > self.most;
        if at < NARROW_UNITS && (is_empty || fits(self.least / us) && fits(self.most / us)) {
            return Code { calendar, unit, us, stored: DType::Int32 };
        }
        let is_exact = |t: i64| (t / BINARY_US).unsigned_abs() < 1 << 53;
        if self.is_binary && is_exact(self.least) && is_exact(self.most) {
            return Code { calendar, unit: "seconds", us: 1_000_000, stored: DType::Float64 };
        }
        Code { calendar, unit, us, stored: DType::Int64 }
    }
}

impl Code {
    /// Type of the counts.
    pub(super) fn stored(&self) -> DType {
        self.stored
    }

    /// `units` and `calendar`.
    pub(super) fn attrs(&self) -> [(String, Value); 2] {
        cf::time_attrs(self.calendar, self.unit)
    }

    /// The count that marks missing datetimes.
    pub(super) fn fill(&self) -> Scalar {
        let missing = cf::fill_value(self.stored).filter(|_| self.stored != DType::Int64);
        missing.unwrap_or(Scalar::i64(NAT))
    }

    /// The counts of cells, big-endian.
    pub(super) fn cells(&self, data: &[u8], valid: Option<&[u8]>) -> Vec<u8> {
        let mut out = Vec::with_capacity(data.len());
        moments(data, valid).for_each(|t| self.put(t, &mut out));
        out
    }

    /// Appends the count of a datetime, big-endian.
    pub(super) fn put(&self, t: i64, out: &mut Vec<u8>) {
        let count = if t == NAT { self.fill().as_i128() as i64 } else { t / self.us };
        match self.stored {
            DType::Int32 => out.extend((count as i32).to_be_bytes()),
            DType::Float64 if t == NAT => out.extend(f64::NAN.to_be_bytes()),
            DType::Float64 => out.extend(((t / BINARY_US) as f64 / 64.0).to_be_bytes()),
            _ => out.extend(count.to_be_bytes()),
        }
    }
}

/// Datetimes of cells; [`NAT`] where masked.
fn moments<'a>(data: &'a [u8], valid: Option<&'a [u8]>) -> impl Iterator<Item = i64> + 'a {
    let is_valid = move |i: usize| valid.is_none_or(|v| v[i] != 0);
    let all = data.as_chunks().0.iter().map(|c| i64::from_le_bytes(*c));
    all.enumerate().map(move |(i, t)| if is_valid(i) { t } else { NAT })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::time::DAY_US;

    #[test]
    fn times_have_the_narrowest_exact_form() {
        let code = |times: &[i64]| {
            let mut facts = Facts::default();
            times.iter().for_each(|t| facts.see(*t));
            let code = facts.code(Calendar::Standard);
            (code.unit, code.stored)
        };
        let s = 1_000_000;
        assert_eq!(code(&[]), ("days", DType::Int32));
        assert_eq!(code(&[0, DAY_US, NAT]), ("days", DType::Int32));
        assert_eq!(code(&[-DAY_US / 4]), ("hours", DType::Int32));
        assert_eq!(code(&[90 * s]), ("seconds", DType::Int32));
        // Beyond 2038.
        assert_eq!(code(&[(1 << 31) * s + s]), ("seconds", DType::Float64));
        assert_eq!(code(&[s / 2, s / 64]), ("seconds", DType::Float64));
        assert_eq!(code(&[s / 10]), ("milliseconds", DType::Int64));
        assert_eq!(code(&[i64::MAX]), ("microseconds", DType::Int64));
        // −2147483647 marks missing datetimes.
        assert_eq!(code(&[-2_147_483_647 * s]), ("seconds", DType::Float64));
        assert_eq!(code(&[-2_147_483_646 * s]), ("seconds", DType::Int32));
        let mut facts = Facts::default();
        [s / 4, NAT].iter().for_each(|t| facts.see(*t));
        let mut out = Vec::new();
        let code = facts.code(Calendar::NoLeap);
        code.put(-s / 4, &mut out);
        assert_eq!(out, (-0.25f64).to_be_bytes());
        assert!(code.fill().as_f64().is_nan());
    }
}
