//! The values of each group, one or two of which are its result.
//!
//! Rows come with their groups and are sorted by group once, in linear time. Lists of partial results stay where they are;
//! the values of a group are copied for its result.

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, PrimitiveArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::{Value, neighbours, place_of, values_of};
use crate::lift::functions::holds;
use crate::rows::go_on;

/// Values are charged with the copies that their results and states need.
const COPIES: usize = 2;

/// Lists that have fewer values on average become rows.
const SHORT_LISTS: usize = 3;

/// Values by group.
#[derive(Debug)]
pub(super) struct Collected<V: Value> {
    at: f64,
    /// The value between two neighbours, by its part of their distance.
    between: fn(V, V, f64) -> V,
    result: DataType,
    groups: usize,
    /// Values of rows, and the group of each.
    rows: Vec<V>,
    of_rows: Vec<u32>,
    lists: Vec<Lists<V>>,
    list_bytes: usize,
}

/// Values of partial results.
#[derive(Debug)]
struct Lists<V: Value> {
    values: ScalarBuffer<V>,
    spans: Vec<Span>,
}

/// The values of a group in one list.
#[derive(Debug, Clone, Copy)]
struct Span {
    group: u32,
    start: u32,
    len: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

impl<V: Value> Collected<V> {
    pub(super) fn new(at: f64, between: fn(V, V, f64) -> V, result: DataType) -> Self {
        let (rows, of_rows, lists) = (Vec::new(), Vec::new(), Vec::new());
        Self { at, between, result, groups: 0, rows, of_rows, lists, list_bytes: 0 }
    }

    fn grow(&mut self, total: usize) -> Result<()> {
        if u32::try_from(total).is_err() {
            return exec_err!("too many groups of a percentile (limit {})", u32::MAX);
        }
        self.groups = total;
        Ok(())
    }

    fn push(&mut self, list: Lists<V>) {
        let values: usize = list.spans.iter().map(|span| span.len as usize).sum();
        self.list_bytes +=
            COPIES * values * size_of::<V>() + list.spans.capacity() * size_of::<Span>();
        self.lists.push(list);
    }

    /// Removes and returns the values of all groups, or of the first ones.
    fn leaving(&mut self, emit: EmitTo) -> ByGroup<V> {
        let (rows, of_rows, lists) =
            (take(&mut self.rows), take(&mut self.of_rows), take(&mut self.lists));
        self.list_bytes = 0;
        let EmitTo::First(count) = emit else {
            return ByGroup::new(take(&mut self.groups), &rows, &of_rows, lists);
        };
        self.groups = self.groups.saturating_sub(count);
        let (mut first, mut of_first) = (Vec::new(), Vec::new());
        for (value, group) in rows.into_iter().zip(of_rows) {
            match group.checked_sub(count as u32) {
                None => {
                    first.push(value);
                    of_first.push(group);
                }
                Some(group) => {
                    self.rows.push(value);
                    self.of_rows.push(group);
                }
            }
        }
        let mut first_lists = Vec::new();
        for Lists { values, spans } in lists {
            let (spans, mut rest): (Vec<Span>, Vec<Span>) =
                spans.into_iter().partition(|span| (span.group as usize) < count);
            rest.iter_mut().for_each(|span| span.group -= count as u32);
            if !rest.is_empty() {
                self.push(Lists { values: values.clone(), spans: rest });
            }
            first_lists.push(Lists { values, spans });
        }
        ByGroup::new(count, &first, &of_first, first_lists)
    }

    fn list_of(&self, values: Vec<V>, offsets: OffsetBuffer<i32>) -> Result<ArrayRef> {
        let values: ArrayRef = Arc::new(PrimitiveArray::<V::Arrow>::new(values.into(), None));
        self.lists_of(cast(&values, &self.result)?, offsets, None)
    }

    fn lists_of(
        &self,
        values: ArrayRef,
        offsets: OffsetBuffer<i32>,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let field = Arc::new(Field::new_list_field(self.result.clone(), true));
        Ok(Arc::new(ListArray::try_new(field, offsets, values, nulls)?))
    }
}

impl<V: Value> GroupsAccumulator for Collected<V> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        total: usize,
    ) -> Result<()> {
        self.grow(total)?;
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = values_of::<V>(values)?;
        if values.null_count() == 0 && filter.is_none() {
            self.rows.extend_from_slice(values.values());
            self.of_rows.extend(groups.iter().map(|&group| group as u32));
            return Ok(());
        }
        for (row, &group) in groups.iter().enumerate() {
            if values.is_valid(row) && holds(filter, row) {
                self.rows.push(values.value(row));
                self.of_rows.push(group as u32);
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.grow(total)?;
        let Some(lists) = states.first().and_then(|lists| lists.as_list_opt::<i32>()) else {
            return internal_err!("percentile: a broken state");
        };
        let values = values_of::<V>(lists.values())?;
        if values.null_count() > 0 {
            return internal_err!("percentile: a state with NULL");
        }
        let mut spans = Vec::with_capacity(groups.len());
        let mut count = 0;
        for (row, (&group, ends)) in groups.iter().zip(lists.value_offsets().windows(2)).enumerate()
        {
            let (start, len) = (ends[0] as u32, (ends[1] - ends[0]) as u32);
            if len > 0 && lists.is_valid(row) {
                count += len as usize;
                spans.push(Span { group: group as u32, start, len });
            }
        }
        let values = values.values();
        if count < spans.len() * SHORT_LISTS {
            for span in spans {
                self.rows.extend_from_slice(&values[span.range()]);
                self.of_rows.extend(std::iter::repeat_n(span.group, span.len as usize));
            }
        } else if count > 0 {
            self.push(Lists { values: values.clone(), spans });
        }
        Ok(())
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let of = self.leaving(emit);
        let (mut results, mut values) = (Vec::with_capacity(of.count()), Vec::new());
        for group in 0..of.count() {
            go_on()?;
            values.clear();
            of.parts(group).into_iter().for_each(|part| values.extend_from_slice(part));
            let Some((low, weight)) = place_of(values.len(), self.at) else {
                results.push(None);
                continue;
            };
            let (lower, upper) = neighbours(&mut values, low);
            results.push(Some(match upper {
                Some(upper) if weight > 0.0 => (self.between)(lower, upper, weight),
                _ => lower,
            }));
        }
        let results: PrimitiveArray<V::Arrow> = results.into_iter().collect();
        Ok(cast(&results, &self.result)?)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let of = self.leaving(emit);
        let mut ends = Vec::with_capacity(of.count() + 1);
        let mut end = 0;
        ends.push(0);
        for group in 0..of.count() {
            end += of.parts(group).iter().map(|part| part.len()).sum::<usize>();
            let Ok(end) = i32::try_from(end) else {
                return exec_err!("groups have {end} values, and at most {}", i32::MAX);
            };
            ends.push(end);
        }
        let values = match of.lists.is_empty() {
            true => of.rows,
            false => {
                let mut values = Vec::with_capacity(end);
                for group in 0..of.count() {
                    of.parts(group).into_iter().for_each(|part| values.extend_from_slice(part));
                }
                values
            }
        };
        Ok(vec![self.list_of(values, OffsetBuffer::new(ends.into()))?])
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(values) = values.first() else { return internal_err!("percentile of nothing") };
        let values = values_of::<V>(values)?;
        let valid = (0..values.len()).map(|row| values.is_valid(row) && holds(filter, row));
        let valid: Vec<bool> = valid.collect();
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(1, values.len()));
        let all: ArrayRef =
            Arc::new(PrimitiveArray::<V::Arrow>::new(values.values().clone(), None));
        let all = cast(&all, &self.result)?;
        Ok(vec![self.lists_of(all, offsets, Some(NullBuffer::from(valid)))?])
    }

    fn size(&self) -> usize {
        size_of_val(self)
            + COPIES * self.rows.capacity() * size_of::<V>()
            + self.of_rows.capacity() * size_of::<u32>()
            + self.list_bytes
    }
}

/// The values of rows sorted by group, and lists with their spans sorted by group.
struct ByGroup<V: Value> {
    rows: Vec<V>,
    /// Where the rows of each group begin, and their end.
    starts: Vec<usize>,
    lists: Vec<ScalarBuffer<V>>,
    /// Spans and the list of each.
    spans: Vec<(u32, Span)>,
    span_starts: Vec<usize>,
}

/// Where each group begins in the order of the groups, and the end, by the group of each item.
fn starts_of(groups: impl Iterator<Item = u32>, count: usize) -> Vec<usize> {
    let mut starts = vec![0; count + 1];
    groups.for_each(|group| starts[group as usize + 1] += 1);
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    starts
}

impl<V: Value> ByGroup<V> {
    fn new(count: usize, rows: &[V], of_rows: &[u32], lists: Vec<Lists<V>>) -> Self {
        let starts = starts_of(of_rows.iter().copied(), count);
        let (mut next, mut sorted) = (starts.clone(), vec![V::default(); rows.len()]);
        for (&value, &group) in rows.iter().zip(of_rows) {
            let place = &mut next[group as usize];
            sorted[*place] = value;
            *place += 1;
        }
        let spans = lists.iter().flat_map(|list| &list.spans);
        let span_starts = starts_of(spans.map(|span| span.group), count);
        let mut next = span_starts.clone();
        let none = (0, Span { group: 0, start: 0, len: 0 });
        let mut spans = vec![none; span_starts.last().copied().unwrap_or(0)];
        for (list, Lists { spans: of_list, .. }) in (0..).zip(&lists) {
            for &span in of_list {
                let place = &mut next[span.group as usize];
                spans[*place] = (list, span);
                *place += 1;
            }
        }
        let lists = lists.into_iter().map(|list| list.values).collect();
        ByGroup { rows: sorted, starts, lists, spans, span_starts }
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The values of a group.
    fn parts(&self, group: usize) -> Vec<&[V]> {
        let rows = &self.rows[self.starts[group]..self.starts[group + 1]];
        let spans = &self.spans[self.span_starts[group]..self.span_starts[group + 1]];
        let lists = spans.iter().map(|&(list, span)| &self.lists[list as usize][span.range()]);
        std::iter::once(rows).filter(|rows| !rows.is_empty()).chain(lists).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::between;
    use super::*;
    use arrow::array::{Float64Array, TimestampMicrosecondArray};
    use arrow::datatypes::TimeUnit;

    fn floats(values: &[Option<f64>]) -> [ArrayRef; 1] {
        [Arc::new(Float64Array::from(values.to_vec()))]
    }

    fn collected(at: f64) -> Collected<f64> {
        Collected::new(at, between, DataType::Float64)
    }

    /// Expected values from DuckDB 2.0: `quantile_cont(x, 0.25)`.
    #[test]
    fn groups_leave_in_parts_and_are_merged() {
        let rows =
            floats(&[Some(4.0), Some(1.0), None, Some(3.0), Some(7.0), Some(2.0), Some(8.0)]);
        let holds = BooleanArray::from(vec![
            Some(true),
            Some(true),
            Some(true),
            Some(true),
            None,
            Some(true),
            Some(true),
        ]);
        let mut part = collected(0.25);
        part.update_batch(&rows, &[0, 0, 1, 0, 2, 0, 0], Some(&holds), 3).unwrap();
        part.update_batch(&floats(&[Some(-0.5)]), &[2], None, 3).unwrap();
        let lists = part.state(EmitTo::All).unwrap();
        assert_eq!(lists[0].as_list::<i32>().value_offsets(), [0, 5, 5, 6]);
        let singles = part.convert_to_state(&rows, Some(&holds)).unwrap();
        let mut all = collected(0.25);
        all.merge_batch(&lists, &[1, 0, 3], 4).unwrap();
        all.merge_batch(&singles, &[3, 3, 3, 3, 3, 3, 2], 4).unwrap();
        all.update_batch(&floats(&[Some(9.0)]), &[0], None, 4).unwrap();
        let first = all.evaluate(EmitTo::First(2)).unwrap();
        assert_eq!(&first, &floats(&[Some(9.0), Some(2.0)])[0]);
        let state = all.state(EmitTo::First(1)).unwrap();
        assert_eq!(state[0].as_list::<i32>().value_offsets(), [0, 1]);
        // quantile_cont of -0.5, 4, 1, 3 and 2.
        assert_eq!(&all.evaluate(EmitTo::All).unwrap(), &floats(&[Some(1.0)])[0]);
        assert_eq!(all.evaluate(EmitTo::All).unwrap().len(), 0);
    }

    /// Expected values from DuckDB 2.0.
    #[test]
    fn times_keep_their_type() {
        let of = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let times = TimestampMicrosecondArray::from(vec![25, 0, 7]).with_timezone("UTC");
        let times: [ArrayRef; 1] = [Arc::new(times)];
        let mut part = Collected::<i64>::new(0.1, between, of.clone());
        part.update_batch(&times, &[0, 0, 1], None, 2).unwrap();
        let state = part.state(EmitTo::All).unwrap();
        let mut all = Collected::<i64>::new(0.1, between, of);
        all.merge_batch(&state, &[1, 0], 2).unwrap();
        let want = TimestampMicrosecondArray::from(vec![7, 3]).with_timezone("UTC");
        assert_eq!(all.evaluate(EmitTo::All).unwrap().as_ref(), &want as &dyn Array);
    }
}
