//! `resample`: reductions over periods of a time coordinate.

use std::sync::Arc;

use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::ir::{ConstArray, Groups, MapOp};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::{DAY_US, DateTime, first_weekday, join, split};

use super::grouping::{self, Operation};
use super::reduce::Reduction;
use super::{Bound, Open, Row, row};
use crate::error::{BindError, Error};
use crate::lower::value::{Dim, Tensor, Value};
use crate::lower::{At, Lowerer, fail, span_of};

pub(super) const ROWS: &[Row] = &[row(
    "resample(x, op, time => '1 day', q => NULL, ddof => 0, skipna => false)",
    resample,
    "A reduction ('sum', 'mean', 'min', 'max', 'var', 'std', 'count', 'prod', 'any', \
         'all', 'median', 'quantile' with `q`, 'first', 'last') of the cells of each period of a time \
         coordinate: '6 hours', '1 day', '1 week', '1 month', '1 quarter', '1 year', or 'h', \
         'D', 'W', 'MS', 'ME', 'QS', 'QE', 'YS', 'YE', with an anchor as in 'QS-DEC', 'YE-SEP' \
         and 'W-WED'. Hours and days are counted from the first day on, weeks from Monday, months, \
         quarters and years from that of the first cell. The new labels are the starts; those of \
         'W', 'ME', 'QE' and 'YE' are the last days, as pandas'.",
)
.takes(&["x", "op", "q", "ddof", "skipna"], 2, Open::Dims)
.dtypes("as the reduction")
.missing("as the reduction; a period without cells is NULL")
.example("SELECT resample(t2m, 'mean', time => '1 day') FROM era5")
.numpy("xarray.DataArray.resample")];

/// Maximum periods: a state of the reduction has a cell for each.
const PERIODS_MAX: i64 = 1 << 24;

/// The length of a period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Period {
    /// Microseconds, counted from the first day on.
    Micros(i64),
    /// Weeks that begin on Monday, labelled by their starts.
    Weeks(i64),
    /// Weeks that end with a given day (Monday is 0), labelled by it.
    WeeksTo(i64, i64),
    /// `count` units of `unit` months (one, three or twelve), which begin with the month `anchor` (January is 0). With
    /// `ends` their last days label them, and the first period ends with the unit of the first time.
    Months { count: i64, unit: i64, anchor: i64, ends: bool },
}

const DAYS: [&str; 7] = ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"];
const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// Parses `'6 hours'`, `'D'`, `'2 MS'`, `'QS-DEC'`.
pub(super) fn period(text: &str) -> Option<Period> {
    let text = text.trim();
    let digits = text.chars().take_while(char::is_ascii_digit).count();
    let n: i64 = if digits == 0 { 1 } else { text[..digits].parse().ok()? };
    (1..=1 << 32).contains(&n).then_some(())?;
    let unit = text[digits..].trim();
    let place = |names: &[&str], name: &str| {
        names.iter().position(|known| known.eq_ignore_ascii_case(name)).map(|at| at as i64)
    };
    // Quarters from December on are the same as those from March on.
    let months = |unit, start: i64, ends| {
        Some(Period::Months { count: n, unit, anchor: start % unit, ends })
    };
    if let Some((unit, anchor)) = unit.split_once('-') {
        return match unit {
            "W" => Some(Period::WeeksTo(n, place(&DAYS, anchor)?)),
            "QS" => months(3, place(&MONTHS, anchor)?, false),
            "YS" => months(12, place(&MONTHS, anchor)?, false),
            // A period that ends with a month begins with the next one.
            "QE" => months(3, place(&MONTHS, anchor)? + 1, true),
            "YE" => months(12, place(&MONTHS, anchor)? + 1, true),
            _ => None,
        };
    }
    let long = unit.to_ascii_lowercase();
    let micros = match (unit, long.strip_suffix('s').unwrap_or(&long)) {
        ("s", _) | (_, "second") => 1_000_000,
        ("min", _) | (_, "minute") => 60_000_000,
        ("h" | "H", _) | (_, "hour") => 3_600_000_000,
        ("D", _) | (_, "day") => DAY_US,
        ("W", _) => return Some(Period::WeeksTo(n, 6)),
        (_, "week") => return Some(Period::Weeks(n)),
        ("MS", _) | (_, "month") => return months(1, 0, false),
        ("QS", _) | (_, "quarter") => return months(3, 0, false),
        ("YS", _) | (_, "year") => return months(12, 0, false),
        ("ME", _) => return months(1, 0, true),
        ("QE", _) => return months(3, 0, true),
        ("YE", _) => return months(12, 0, true),
        _ => return None,
    };
    Some(Period::Micros(n.checked_mul(micros)?))
}

impl Period {
    /// The length in microseconds, if it is constant.
    pub(super) fn micros(self) -> Option<i64> {
        match self {
            Period::Micros(n) => Some(n),
            Period::Weeks(n) | Period::WeeksTo(n, _) => n.checked_mul(7 * DAY_US),
            Period::Months { .. } => None,
        }
    }
}

/// The period of each time, counted from the first one, and each period's label; `None` if there are too many.
fn periods(times: &[i64], calendar: Calendar, period: Period) -> Option<(Vec<u32>, Vec<i64>)> {
    let (Some(&first), Some(&last)) = (times.iter().min(), times.iter().max()) else {
        return Some((Vec::new(), Vec::new()));
    };
    let month = |t: i64| {
        let d = split(t, calendar);
        d.year * 12 + i64::from(d.month) - 1
    };
    // For periods of constant length: the first start, the length, and the offset of labels from starts.
    let even = match period {
        Period::Micros(n) => {
            let origin = first.div_euclid(DAY_US) * DAY_US;
            Some((origin + (first - origin).div_euclid(n) * n, n, 0))
        }
        Period::Weeks(n) => Some((week(first, 6, calendar), n.checked_mul(7 * DAY_US)?, 0)),
        // The first period ends with the week of the first time.
        Period::WeeksTo(n, end) => {
            let n = n.checked_mul(7 * DAY_US)?;
            Some((week(first, end, calendar) + 7 * DAY_US - n, n, n - DAY_US))
        }
        Period::Months { .. } => None,
    };
    type Labels<'a> = Box<dyn Fn(i64) -> Option<i64> + 'a>;
    let (of, label): (Box<dyn Fn(i64) -> i64>, Labels<'_>) = match (even, period) {
        (Some((origin, n, shift)), _) => (
            Box::new(move |t| (t - origin).div_euclid(n)),
            Box::new(move |i| origin.checked_add(i.checked_mul(n)?)?.checked_add(shift)),
        ),
        (None, Period::Months { count, unit, anchor, ends }) => {
            let n = count.checked_mul(unit)?;
            let begin = (month(first) - anchor).div_euclid(unit) * unit + anchor;
            let origin = if ends { begin + unit - n } else { begin };
            let label = move |i: i64| {
                let m = origin + (i + i64::from(ends)) * n;
                let (year, month) = (m.div_euclid(12), (m.rem_euclid(12) + 1) as u32);
                let start = join(DateTime { year, month, day: 1, micros: 0 }, calendar)?;
                start.checked_sub(if ends { DAY_US } else { 0 })
            };
            (Box::new(move |t| (month(t) - origin).div_euclid(n)), Box::new(label))
        }
        _ => return None,
    };
    let count = of(last) + 1;
    if !(1..=PERIODS_MAX).contains(&count) {
        return None;
    }
    let labels: Option<Vec<i64>> = (0..count).map(&label).collect();
    Some((times.iter().map(|&t| of(t) as u32).collect(), labels?))
}

/// Midnight of the first day of the week of `t`; the week ends with the day `end`, Monday being 0.
fn week(t: i64, end: i64, calendar: Calendar) -> i64 {
    let day = t.div_euclid(DAY_US);
    let weekday = (day + first_weekday(calendar)).rem_euclid(7);
    (day - (weekday - end - 1).rem_euclid(7)) * DAY_US
}

fn resample(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let mut t = a.tensor(l, "x")?;
    grouping::check_dimensions(a, &t)?;
    let how = grouping::operation(l, a, &t, grouping::OPERATIONS)?;
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
        return fail(a.invalid(&argument, not_a_period(&text)), place);
    };
    let Some(coord) = t.dims[axis].coord.clone() else {
        return fail(a.invalid(&argument, "has no coordinate of times"), place);
    };
    if let Some(error) = BindError::no_labels(&coord) {
        return fail(error, place);
    }
    if (0..coord.values.len()).any(|i| coord.values.is_missing(i)) {
        return fail(
            a.invalid(&argument, "has a label that is missing, which is in no period"),
            place,
        );
    }
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
        // A period without cells is NULL: this makes the cells nullable, though none is masked.
        let yes = l.b.constant(Scalar::bool(true)).at(a.span)?;
        t.node = l.b.map_op(MapOp::Mask, &[t.node, yes]).at(a.span)?;
    }
    let groups = Groups { codes: codes.into(), count: starts.len() as u32 };
    let mut node = grouping::of_groups(l, &t, how, axis, groups, None, skipna, a.span)?;
    if matches!(how, Operation::Reduce(Reduction::Any | Reduction::All)) && filled.contains(&false)
    {
        // `any` and `all` over no cells are not NULL.
        let mut shape = vec![1; t.dims.len()];
        shape[axis] = filled.len() as u64;
        let filled: Vec<Option<Scalar>> = filled.iter().map(|&f| Some(Scalar::bool(f))).collect();
        let filled = l.b.array(ConstArray::new(DType::Bool, &shape, &filled)).at(a.span)?;
        node = l.b.map_op(MapOp::Mask, &[node, filled]).at(a.span)?;
    }
    let coord = Coord { values: CoordValues::Time(*calendar, starts.into()), ..(*coord).clone() };
    let mut dims = t.dims.clone();
    dims[axis] = Dim { coord: Some(Arc::new(coord)), ..t.dims[axis].bare() };
    Ok(Value::Tensor(Tensor::new(node, dims)))
}

/// The message for a text that is not a period.
fn not_a_period(text: &str) -> String {
    let rest = text.trim().trim_start_matches(|c: char| c.is_ascii_digit());
    match rest.contains(|c: char| c.is_ascii_digit()) {
        true => format!(
            "is '{text}'; it must be a whole number of one unit: give it in a smaller unit, as 1.5 days are '36 hours'"
        ),
        false => format!(
            "is '{text}'; it must be a number and hours, days, weeks, months, quarters or years, or a unit such as \
             'D', 'W', 'MS' (months labelled by their starts), 'ME' (by their ends), 'QS-DEC'"
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn periods_are_read_and_counted() {
        assert_eq!(period("6 hours"), Some(Period::Micros(6 * 3_600_000_000)));
        assert_eq!(period("D"), Some(Period::Micros(DAY_US)));
        let months =
            |count, unit, anchor| Some(Period::Months { count, unit, anchor, ends: false });
        assert_eq!(period("2MS"), months(2, 1, 0));
        assert_eq!((period("QS-DEC"), period("2YS-oct")), (months(1, 3, 2), months(2, 12, 9)));
        assert_eq!(
            (period("W"), period("1 week")),
            (Some(Period::WeeksTo(1, 6)), Some(Period::Weeks(1)))
        );
        assert_eq!((period("QS-XYZ"), period("D-MON")), (None, None));
        assert_eq!((period("0 days"), period("fortnight"), period("")), (None, None, None));
        let day = |d: i64| d * DAY_US;
        // 1970-01-31, 02-01, 04-30: months start with January.
        let times = [day(30), day(31), day(119)];
        let (codes, starts) =
            periods(&times, Calendar::Standard, months(1, 1, 0).unwrap()).unwrap();
        assert_eq!(codes, [0, 1, 3]);
        assert_eq!(starts, [0, day(31), day(59), day(90)]);
        // As pandas has them: two months to January's end, then two more.
        let (codes, ends) = periods(&times, Calendar::Standard, period("2ME").unwrap()).unwrap();
        assert_eq!((codes, ends), (vec![0, 1, 2], vec![day(30), day(89), day(150)]));
        let quarters = periods(&times, Calendar::Standard, period("QE-NOV").unwrap()).unwrap();
        assert_eq!(quarters, (vec![0, 0, 1], vec![day(58), day(150)]));
        let (codes, starts) = periods(&times, Calendar::Day360, months(1, 12, 0).unwrap()).unwrap();
        assert_eq!((codes, starts), (vec![0, 0, 0], vec![0]));
        // 2001-01-01, -03 and -04 of 360_day: cftime's `dayofwk` is 4, 6 and 0.
        let times = [day(11_160), day(11_162), day(11_163)];
        let (codes, ends) = periods(&times, Calendar::Day360, Period::WeeksTo(1, 6)).unwrap();
        assert_eq!((codes, ends), (vec![0, 0, 1], vec![day(11_162), day(11_169)]));
    }
}
