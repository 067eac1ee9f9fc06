//! `resample`: reductions over periods of a time coordinate.

use std::sync::Arc;

use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::dtype::Calendar;
use tessera_planner::ir::{AxisReduce, Groups, MapOp};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::{DAY_US, DateTime, join, split};

use super::{Bound, Function, Open, reduce, row};
use crate::error::Error;
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, span_of};

pub(super) const ROWS: &[Function] = &[row(
    "resample",
    "resample(x, op, time => '1 day', ddof => 0, skipna => false)",
    &["x", "op", "ddof", "skipna"],
    2,
    Open::Dims,
    resample,
    "A reduction of the cells of each period of a time coordinate: '6 hours', '1 day', '1 week', '1 month', '1 quarter', '1 year' (or 'h', 'D', 'MS', 'QS', 'YS'). Hours and days are counted from the first day on, months and years from the first one; the new labels are the starts.",
    "as the reduction",
    "as the reduction; a period without cells is NULL",
    "SELECT resample(t2m, 'mean', time => '1 day') FROM era5",
    "xarray.DataArray.resample",
)];

/// The most periods: a state of the reduction has a cell for each.
const PERIODS_MAX: i64 = 1 << 24;

/// The length of a period.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Period {
    Micros(i64),
    Months(i64),
}

/// `'6 hours'`, `'D'`, `'2 MS'`.
fn period(text: &str) -> Option<Period> {
    let text = text.trim();
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let n: i64 = if digits == 0 { 1 } else { text[..digits].parse().ok()? };
    let unit = text[digits..].trim();
    let long = unit.to_ascii_lowercase();
    let long = long.strip_suffix('s').unwrap_or(&long);
    let (micros, months) = match (unit, long) {
        ("s", _) | (_, "second") => (1_000_000, 0),
        ("min", _) | (_, "minute") => (60_000_000, 0),
        ("h" | "H", _) | (_, "hour") => (3_600_000_000, 0),
        ("D", _) | (_, "day") => (DAY_US, 0),
        (_, "week") => (7 * DAY_US, 0),
        ("MS", _) | (_, "month") => (0, 1),
        ("QS", _) | (_, "quarter") => (0, 3),
        ("YS", _) | (_, "year") => (0, 12),
        _ => return None,
    };
    (1..=1 << 32).contains(&n).then_some(())?;
    Some(match months {
        0 => Period::Micros(n.checked_mul(micros)?),
        m => Period::Months(n.checked_mul(m)?),
    })
}

/// The period of each moment, counted from the first one, and where each period starts; `None` if there are too many.
fn periods(times: &[i64], calendar: Calendar, period: Period) -> Option<(Vec<u32>, Vec<i64>)> {
    let (Some(&first), Some(&last)) = (times.iter().min(), times.iter().max()) else {
        return Some((Vec::new(), Vec::new()));
    };
    let month = |t: i64| {
        let d = split(t, calendar);
        d.year * 12 + i64::from(d.month) - 1
    };
    type Starts<'a> = Box<dyn Fn(i64) -> Option<i64> + 'a>;
    let (of, start): (Box<dyn Fn(i64) -> i64>, Starts<'_>) = match period {
        Period::Micros(n) => {
            let origin = first.div_euclid(DAY_US) * DAY_US;
            let skip = (first - origin).div_euclid(n);
            let origin = origin + skip * n;
            (Box::new(move |t| (t - origin).div_euclid(n)), Box::new(move |i| Some(origin + i * n)))
        }
        Period::Months(n) => {
            // Quarters and years start where the calendar's do.
            let origin = if n % 12 == 0 || n == 3 {
                month(first).div_euclid(n.min(12)) * n.min(12)
            } else {
                month(first)
            };
            let start = move |i: i64| {
                let m = origin + i * n;
                let (year, month) = (m.div_euclid(12), (m.rem_euclid(12) + 1) as u32);
                join(DateTime { year, month, day: 1, micros: 0 }, calendar)
            };
            (Box::new(move |t| (month(t) - origin).div_euclid(n)), Box::new(start))
        }
    };
    let count = of(last) + 1;
    if !(1..=PERIODS_MAX).contains(&count) {
        return None;
    }
    let starts: Option<Vec<i64>> = (0..count).map(&start).collect();
    Some((times.iter().map(|&t| of(t) as u32).collect(), starts?))
}

fn resample(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    let ddof = reduce::ddof(l, a)?;
    let op = a.text(l, "op")?.unwrap_or_default().to_ascii_lowercase();
    let kind = reduce::kind(&op, ddof)
        .filter(|kind| !matches!(kind, reduce::Kind::ArgMin | reduce::Kind::ArgMax));
    let Some(kind) = kind else {
        let reason = format!("is '{op}'; it must be the name of a reduction");
        return fail(a.invalid("`op`", reason), a.place("op"));
    };
    let skipna = a.flag(l, "skipna")?;
    let [(name, expr)] = a.dims[..] else {
        return fail(a.invalid("one dimension", "must be given, as in `time => '1 day'`"), a.span);
    };
    let place = span_of(expr);
    let axis = l.named_axis(&t, name)?;
    let argument = format!("`{}`", name.value);
    let text = match l.expr(expr)? {
        Value::Str(text) => text,
        other => {
            let reason = format!("must be a text such as '1 day', not {}", other.kind());
            return fail(a.invalid(&argument, reason), place);
        }
    };
    let Some(length) = period(&text) else {
        let reason =
            format!("is '{text}'; it must be a number and hours, days, weeks, months or years");
        return fail(a.invalid(&argument, reason), place);
    };
    let Some(coord) = t.dims[axis].coord.clone() else {
        return fail(a.invalid(&argument, "has no coordinate of times"), place);
    };
    let CoordValues::Time(calendar, times) = &coord.values else {
        return fail(a.invalid(&argument, "has a coordinate that is not of times"), place);
    };
    let Some((codes, starts)) = periods(times, *calendar, length) else {
        let reason = format!("is '{text}', which makes more than {PERIODS_MAX} periods");
        return fail(a.invalid(&argument, reason), place);
    };
    let mut filled = vec![false; starts.len()];
    codes.iter().for_each(|&c| filled[c as usize] = true);
    if filled.contains(&false) && !l.b.node(t.node).nullable {
        // What has no cells is NULL: the cells could be masked, though none is.
        let yes = l.b.constant(Scalar::bool(true)).at(a.span)?;
        t.node = l.b.map_op(MapOp::Mask, &[t.node, yes]).at(a.span)?;
    }
    let mut how = vec![AxisReduce::Keep; t.dims.len()];
    how[axis] = AxisReduce::Group(Groups { codes: codes.into(), count: starts.len() as u32 });
    let node = reduce::reduce(l, &t, kind, &how, None, skipna, a.span)?;
    let coord = Coord { values: CoordValues::Time(*calendar, starts.into()), ..(*coord).clone() };
    let mut dims = t.dims.clone();
    dims[axis] = Dim { coord: Some(Arc::new(coord)), ..t.dims[axis].bare() };
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn periods_are_read_and_counted() {
        assert_eq!(period("6 hours"), Some(Period::Micros(6 * 3_600_000_000)));
        assert_eq!(period("D"), Some(Period::Micros(DAY_US)));
        assert_eq!(period("2MS"), Some(Period::Months(2)));
        assert_eq!((period("0 days"), period("fortnight"), period("")), (None, None, None));
        let day = |d: i64| d * DAY_US;
        // 1970-01-31, 02-01, 04-30: months start with January.
        let times = [day(30), day(31), day(119)];
        let (codes, starts) = periods(&times, Calendar::Standard, Period::Months(1)).unwrap();
        assert_eq!(codes, [0, 1, 3]);
        assert_eq!(starts, [0, day(31), day(59), day(90)]);
        let (codes, starts) = periods(&times, Calendar::Day360, Period::Months(12)).unwrap();
        assert_eq!((codes, starts), (vec![0, 0, 0], vec![0]));
    }
}
