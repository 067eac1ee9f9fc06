//! The first and the last row of each frame.
//!
//! ```text
//! RANGE BETWEEN 7 PRECEDING AND CURRENT ROW, keys 1 3 9 9 12
//!   targets: keys - 7 = -6 -4 2 2 5      starts: 0 0 1 1 2      ends, of the peers: 1 2 4 4 5
//! ```
//! The targets of a distance are computed for all rows at once. They grow along the rows, and so do the bounds, so two
//! cursors that move forward find all frames. Only at the end of a month do targets fall: a month before March 30,
//! 05:00, is February 28, 05:00, and a month before March 31, 01:00, is February 28, 01:00. There the cursors move
//! back.

use super::kernels::CHECKED;
use crate::clock::nanoseconds;
use crate::rows::go_on;
use datafusion::arrow::array::{Array, ArrayRef, DynComparator, make_comparator};
use datafusion::arrow::compute::kernels::numeric;
use datafusion::arrow::compute::{SortOptions, cast, concat};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::{WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalSortExpr;
use std::ops::Range;

/// The bounds of the frames of a call.
#[derive(Debug)]
pub(super) struct Frames {
    start: Bound,
    end: Bound,
}

#[derive(Debug)]
enum Bound {
    /// The edge of the partition.
    Unbounded,
    /// So many rows before or after the current one.
    Rows { count: usize, is_before: bool },
    /// So many groups of peers before or after the current one; none for the current row of RANGE.
    Groups { count: usize, is_before: bool },
    /// The distance from the key of the current row.
    Distance { by: ScalarValue, is_before: bool, options: SortOptions },
}

impl Frames {
    /// `None` for frames that are left to DataFusion.
    pub(super) fn of(
        frame: &WindowFrame,
        order: &[PhysicalSortExpr],
        input: &Schema,
    ) -> Result<Option<Self>> {
        let start = bound(frame, &frame.start_bound, true, order, input)?;
        let end = bound(frame, &frame.end_bound, false, order, input)?;
        Ok(start.zip(end).map(|(start, end)| Frames { start, end }))
    }

    /// True if each frame of a partition has all rows of those before it.
    pub(super) fn is_growing(&self) -> bool {
        matches!(self.start, Bound::Unbounded)
    }

    /// True if the values of the key are needed.
    pub(super) fn has_distance(&self) -> bool {
        [&self.start, &self.end].into_iter().any(|bound| matches!(bound, Bound::Distance { .. }))
    }

    /// True if the peers are needed.
    pub(super) fn has_groups(&self) -> bool {
        [&self.start, &self.end].into_iter().any(|bound| matches!(bound, Bound::Groups { .. }))
    }
}

/// The bound of a frame; `None` for bounds that are left to DataFusion.
fn bound(
    frame: &WindowFrame,
    bound: &WindowFrameBound,
    is_start: bool,
    order: &[PhysicalSortExpr],
    input: &Schema,
) -> Result<Option<Bound>> {
    let (value, is_before) = match bound {
        WindowFrameBound::Preceding(value) => (value, true),
        WindowFrameBound::Following(value) => (value, false),
        WindowFrameBound::CurrentRow => {
            return Ok(Some(match frame.units {
                WindowFrameUnits::Rows => Bound::Rows { count: 0, is_before: true },
                _ => Bound::Groups { count: 0, is_before: true },
            }));
        }
    };
    if value.is_null() {
        return Ok((is_before == is_start).then_some(Bound::Unbounded));
    }
    let count = match value {
        ScalarValue::UInt64(Some(count)) => usize::try_from(*count).ok(),
        _ => None,
    };
    Ok(match (frame.units, order) {
        (WindowFrameUnits::Rows, _) => count.map(|count| Bound::Rows { count, is_before }),
        (WindowFrameUnits::Groups, _) => count.map(|count| Bound::Groups { count, is_before }),
        (WindowFrameUnits::Range, [key]) => {
            let of = key.expr.data_type(input)?;
            let (by, options) = (value.clone(), key.options);
            is_distance(&of, &by.data_type()).then_some(Bound::Distance { by, is_before, options })
        }
        _ => None,
    })
}

/// True if a key plus or minus a distance is a key.
fn is_distance(key: &DataType, by: &DataType) -> bool {
    match key {
        DataType::Float32 | DataType::Float64 => by == key,
        DataType::Date32 | DataType::Timestamp(..) => matches!(by, DataType::Interval(_)),
        key => key.is_integer() && by == key,
    }
}

/// The frames of sorted rows of whole partitions.
pub(super) struct Spans<'a> {
    partitions: &'a [Range<usize>],
    /// The rows with equal keys in each partition; empty if they are not needed.
    peers: &'a [Range<usize>],
    start: Edge<'a>,
    end: Edge<'a>,
}

/// A bound, with the data of the rows that it needs.
enum Edge<'a> {
    Simple(&'a Bound),
    Distance { targets: Targets, is_before: bool },
}

impl<'a> Spans<'a> {
    /// `key` has the key of each row if a bound is a distance, `peers` the groups if one counts them.
    pub(super) fn new(
        frames: &'a Frames,
        partitions: &'a [Range<usize>],
        peers: &'a [Range<usize>],
        key: Option<&ArrayRef>,
    ) -> Result<Self> {
        let edge = |bound: &'a Bound| -> Result<Edge<'a>> {
            match (bound, key) {
                (Bound::Distance { by, is_before, options }, Some(key)) => {
                    let targets = Targets::new(key, by, *is_before, *options)?;
                    Ok(Edge::Distance { targets, is_before: *is_before })
                }
                (Bound::Distance { .. }, None) => internal_err!("a frame of RANGE without its key"),
                (bound, _) => Ok(Edge::Simple(bound)),
            }
        };
        Ok(Spans { partitions, peers, start: edge(&frames.start)?, end: edge(&frames.end)? })
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        self.partitions.last().map_or(0, |last| last.end)
    }

    /// For each partition its rows, and the start and the end of the frame of each of these.
    pub(super) fn each(
        &self,
        mut each: impl FnMut(Range<usize>, &[usize], &[usize]) -> Result<()>,
    ) -> Result<()> {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        let mut peers = self.peers;
        for rows in self.partitions {
            let (own, rest) = peers.split_at(peers.partition_point(|p| p.start < rows.end));
            peers = rest;
            self.start.fill(true, rows, own, &mut starts);
            self.end.fill(false, rows, own, &mut ends);
            each(rows.clone(), &starts, &ends)?;
        }
        Ok(())
    }
}

impl Edge<'_> {
    /// The bound of the frame of each row of a partition.
    fn fill(
        &self,
        is_start: bool,
        rows: &Range<usize>,
        peers: &[Range<usize>],
        out: &mut Vec<usize>,
    ) {
        out.clear();
        match self {
            Edge::Simple(Bound::Unbounded) => {
                out.resize(rows.len(), if is_start { rows.start } else { rows.end });
            }
            Edge::Simple(Bound::Rows { count, is_before }) => {
                let past = usize::from(!is_start);
                out.extend(rows.clone().map(|row| match is_before {
                    true => (row + past).saturating_sub(*count).max(rows.start),
                    false => row.saturating_add(*count).saturating_add(past).min(rows.end),
                }));
            }
            Edge::Simple(Bound::Groups { count, is_before }) => {
                for (nth, own) in peers.iter().enumerate() {
                    let group = match is_before {
                        true => nth.checked_sub(*count),
                        false => nth.checked_add(*count),
                    };
                    let at = match (is_start, group.and_then(|group| peers.get(group))) {
                        (true, Some(group)) => group.start,
                        (false, Some(group)) => group.end,
                        (_, None) if *is_before => rows.start,
                        (_, None) => rows.end,
                    };
                    out.resize(own.end - rows.start, at);
                }
            }
            // It is an edge of another kind.
            Edge::Simple(Bound::Distance { .. }) => {}
            Edge::Distance { targets, is_before } => {
                let mut at = rows.start;
                for row in rows.clone() {
                    let is_beyond = targets.is_beyond(row);
                    if is_beyond && !is_before {
                        // NULLs may precede the row.
                        at = at.max(row);
                    }
                    while !is_beyond && at > rows.start && !targets.is_after(row, at - 1, is_start)
                    {
                        at -= 1;
                    }
                    while at < rows.end
                        && match is_beyond {
                            true => targets.keys.is_null(at) == *is_before,
                            false => targets.is_after(row, at, is_start),
                        }
                    {
                        at += 1;
                    }
                    out.push(at);
                }
            }
        }
    }
}

/// The keys of all rows, and the values at a distance from them.
struct Targets {
    keys: ArrayRef,
    /// Compares the key of a row with the target of another one.
    compare: DynComparator,
    /// Rows whose target is beyond all values of the type: the bound is the first key that is not NULL, or the last one.
    beyond: Vec<bool>,
}

impl Targets {
    fn new(
        keys: &ArrayRef,
        by: &ScalarValue,
        is_before: bool,
        options: SortOptions,
    ) -> Result<Self> {
        let whole = in_units(keys, by)?;
        let (keys, by) = match &whole {
            Some((keys, by)) => (keys, by.to_scalar()?),
            None => (keys, by.to_scalar()?),
        };
        let is_sum = is_before == options.descending;
        let step = |keys: &ArrayRef| match is_sum {
            true => numeric::add(keys, &by),
            false => numeric::sub(keys, &by),
        };
        let (targets, beyond) = match step(keys) {
            Ok(targets) => (targets, Vec::new()),
            Err(_) => one_by_one(keys, step)?,
        };
        if targets.data_type() != keys.data_type() {
            return internal_err!("{} at a distance of {}", targets.data_type(), keys.data_type());
        }
        let compare = make_comparator(keys, &targets, options)?;
        Ok(Targets { keys: keys.clone(), compare, beyond })
    }

    fn is_beyond(&self, row: usize) -> bool {
        self.beyond.get(row).is_some_and(|is_beyond| *is_beyond)
    }

    /// True if the target of a row, as the start or the end of its frame, is behind another row.
    fn is_after(&self, row: usize, other: usize, is_start: bool) -> bool {
        let order = (self.compare)(other, row);
        if is_start { order.is_lt() } else { order.is_le() }
    }
}

/// Times and a distance between them as integers. A distance without months needs no calendar: a day has 24 hours,
/// without daylight saving time. `None` for others.
fn in_units(keys: &ArrayRef, by: &ScalarValue) -> Result<Option<(ArrayRef, ScalarValue)>> {
    const DAY: i128 = 86_400_000_000_000;
    let (DataType::Timestamp(unit, zone), ScalarValue::IntervalMonthDayNano(Some(by))) =
        (keys.data_type(), by)
    else {
        return Ok(None);
    };
    let nanoseconds = nanoseconds(*unit);
    let all = i128::from(by.days) * DAY + i128::from(by.nanoseconds);
    let has_days = matches!(zone.as_deref(), None | Some("UTC" | "+00:00"));
    if by.months != 0 || !has_days || all % nanoseconds != 0 {
        return Ok(None);
    }
    let Ok(by) = i64::try_from(all / nanoseconds) else { return Ok(None) };
    Ok(Some((cast(keys, &DataType::Int64)?, ScalarValue::Int64(Some(by)))))
}

/// The targets, and which of them are beyond the values of their type.
fn one_by_one(
    keys: &ArrayRef,
    step: impl Fn(&ArrayRef) -> std::result::Result<ArrayRef, ArrowError>,
) -> Result<(ArrayRef, Vec<bool>)> {
    let mut targets = Vec::with_capacity(keys.len());
    let mut beyond = vec![false; keys.len()];
    for (row, is_beyond) in beyond.iter_mut().enumerate() {
        if row % CHECKED == CHECKED - 1 {
            go_on()?;
        }
        let key = keys.slice(row, 1);
        targets.push(match step(&key) {
            Ok(target) => target,
            Err(_) => {
                *is_beyond = true;
                key
            }
        });
    }
    let targets: Vec<&dyn Array> = targets.iter().map(|target| target.as_ref()).collect();
    Ok((concat(&targets)?, beyond))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{Int8Array, TimestampMicrosecondArray, UInt8Array};
    use datafusion::arrow::compute::partition;
    use datafusion::arrow::datatypes::{Field, IntervalMonthDayNano};
    use datafusion::physical_expr::expressions::Column;
    use std::sync::Arc;

    /// The frames of rows of one partition.
    fn spans(keys: &ArrayRef, options: SortOptions, frame: WindowFrame) -> Vec<Range<usize>> {
        let schema = Schema::new(vec![Field::new("k", keys.data_type().clone(), true)]);
        let order = [PhysicalSortExpr::new(Arc::new(Column::new("k", 0)), options)];
        let frames = Frames::of(&frame, &order, &schema).unwrap().unwrap();
        let peers = partition(std::slice::from_ref(keys)).unwrap().ranges();
        let all: Vec<Range<usize>> = std::iter::once(0..keys.len()).collect();
        let spans = Spans::new(&frames, &all, &peers, Some(keys)).unwrap();
        let mut found = Vec::new();
        let each = |_: Range<usize>, starts: &[usize], ends: &[usize]| {
            found.extend(starts.iter().zip(ends).map(|(&start, &end)| start..end));
            Ok(())
        };
        spans.each(each).unwrap();
        found
    }

    fn frame(
        units: WindowFrameUnits,
        start: WindowFrameBound,
        end: WindowFrameBound,
    ) -> WindowFrame {
        WindowFrame::new_bounds(units, start, end)
    }

    #[test]
    fn distances_end_where_the_type_does() {
        use WindowFrameBound::{CurrentRow, Following, Preceding};
        let ascending = SortOptions { descending: false, nulls_first: true };
        let signed: ArrayRef = Arc::new(Int8Array::from(vec![None, Some(-127), Some(0), Some(3)]));
        let by = |by| ScalarValue::Int8(Some(by));
        let range = |start, end| frame(WindowFrameUnits::Range, start, end);
        let frames = spans(&signed, ascending, range(Preceding(by(3)), CurrentRow));
        assert_eq!(frames, [0..1, 1..2, 2..3, 2..4]);
        let frames = spans(&signed, ascending, range(CurrentRow, Following(by(127))));
        assert_eq!(frames, [0..1, 1..3, 2..4, 3..4]);
        let unsigned: ArrayRef = Arc::new(UInt8Array::from(vec![None, Some(1), Some(4), Some(4)]));
        let by = |by| ScalarValue::UInt8(Some(by));
        let frames = spans(&unsigned, ascending, range(Preceding(by(3)), Preceding(by(2))));
        assert_eq!(frames, [0..1, 1..1, 1..2, 1..2]);
        let small: ArrayRef = Arc::new(UInt8Array::from(vec![Some(0), Some(1), Some(2), Some(3)]));
        let first = Preceding(ScalarValue::UInt8(None));
        let frames = spans(&small, ascending, range(first, Preceding(by(2))));
        assert_eq!(frames, [0..0, 0..0, 0..1, 0..2]);
        let descending = SortOptions { descending: true, nulls_first: false };
        let keys: ArrayRef = Arc::new(UInt8Array::from(vec![Some(9), Some(5), Some(5), None]));
        let frames = spans(&keys, descending, range(Preceding(by(4)), Following(by(4))));
        assert_eq!(frames, [0..3, 0..3, 0..3, 3..4]);
    }

    #[test]
    fn times_have_the_frames_that_calendars_give_them() {
        use WindowFrameBound::{CurrentRow, Preceding};
        let ascending = SortOptions { descending: false, nulls_first: false };
        let hours = [0, 1, 23, 24, 25, 49, 744, 745];
        let micros = hours.map(|hour| Some(hour * 3_600_000_000_i64)).into_iter().chain([None]);
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter(micros));
        let frames = |months, days, nanoseconds| {
            let by = IntervalMonthDayNano::new(months, days, nanoseconds);
            let by = Preceding(ScalarValue::IntervalMonthDayNano(Some(by)));
            spans(&times, ascending, frame(WindowFrameUnits::Range, by, CurrentRow))
        };
        let day = [0..1, 0..2, 0..3, 0..4, 1..5, 4..6, 6..7, 6..8, 8..9];
        assert_eq!(frames(0, 1, 0), day);
        assert_eq!(frames(0, 0, 86_400_000_000_000), day);
        // Not a whole number of microseconds.
        assert_eq!(frames(0, 1, 1), day);
        // January 1970 has 31 days.
        assert_eq!(frames(1, 0, 0)[6..], [0..7, 1..8, 8..9]);
    }

    #[test]
    fn frames_go_back_at_the_end_of_a_month() {
        use WindowFrameBound::{CurrentRow, Preceding};
        let ascending = SortOptions { descending: false, nulls_first: false };
        // 1970: February 28 at 2 and 4 hours, March 29 at 5, March 30 at 3, March 31 at 1 and at 6.
        let hours = [58 * 24 + 2, 58 * 24 + 4, 87 * 24 + 5, 88 * 24 + 3, 89 * 24 + 1, 89 * 24 + 6];
        let micros = hours.map(|hour| Some(hour * 3_600_000_000_i64));
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter(micros));
        let month = IntervalMonthDayNano::new(1, 0, 0);
        let by = Preceding(ScalarValue::IntervalMonthDayNano(Some(month)));
        let frames = spans(&times, ascending, frame(WindowFrameUnits::Range, by, CurrentRow));
        assert_eq!(frames, [0..1, 0..2, 2..3, 1..4, 0..5, 2..6]);
    }

    #[test]
    fn frames_of_rows_and_of_groups_end_with_the_partition() {
        use WindowFrameBound::{Following, Preceding};
        let ascending = SortOptions { descending: false, nulls_first: false };
        let keys: ArrayRef = Arc::new(Int8Array::from(vec![Some(1), Some(1), Some(2), None]));
        let by = |by| ScalarValue::UInt64(Some(by));
        let rows = |start, end| frame(WindowFrameUnits::Rows, start, end);
        let frames = spans(&keys, ascending, rows(Preceding(by(2)), Preceding(by(1))));
        assert_eq!(frames, [0..0, 0..1, 0..2, 1..3]);
        let frames = spans(&keys, ascending, rows(Following(by(2)), Following(by(u64::MAX))));
        assert_eq!(frames, [2..4, 3..4, 4..4, 4..4]);
        let groups = |start, end| frame(WindowFrameUnits::Groups, start, end);
        let frames = spans(&keys, ascending, groups(Preceding(by(1)), Preceding(by(1))));
        assert_eq!(frames, [0..0, 0..0, 0..2, 2..3]);
        let frames = spans(&keys, ascending, groups(Following(by(1)), Following(by(9))));
        assert_eq!(frames, [2..4, 2..4, 3..4, 4..4]);
    }
}
