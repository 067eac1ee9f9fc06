//! The values of each group, one or two of which are its result.
//!
//! Rows come with their groups. If groups are few, the values of each are collected in chunks of its own; otherwise rows
//! are sorted by group once, in linear time. Lists of partial results stay where they are. A result is selected among the
//! parts of its group ([`Selected`]).

use std::mem::{replace, take};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, PrimitiveArray};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::selected::Selected;
use super::{Value, at_weight, place_of, values_of};
use crate::lift::functions::holds;
use crate::rows::go_on;

/// Values are charged with the copies that their results and states need.
const COPIES: usize = 2;

/// Lists that have fewer values on average become rows.
const SHORT_LISTS: usize = 3;

/// Up to so many groups collect their values apart.
const FEW_GROUPS: usize = 64;

/// Values of the first chunk of a group. Each further chunk has twice as many, at most [`CHUNK_MAX`].
const CHUNK_MIN: usize = 1 << 6;
const CHUNK_MAX: usize = 1 << 13;

/// Values by group.
#[derive(Debug)]
pub(super) struct Collected<V: Value> {
    at: f64,
    /// The value between two neighbours, by its part of their distance.
    between: fn(V, V, f64) -> V,
    result: DataType,
    groups: usize,
    /// The values of rows that came while groups were few, for each group.
    few: Vec<Chunks<V>>,
    /// Values of other rows, and the group of each.
    rows: Vec<V>,
    of_rows: Vec<u32>,
    lists: Vec<Lists<V>>,
    list_bytes: usize,
}

/// The values of a group in chunks, which are not moved when more values come.
#[derive(Debug, Default)]
pub(super) struct Chunks<V> {
    full: Vec<Vec<V>>,
    last: Vec<V>,
    /// Values for which there is memory.
    pub(super) room: usize,
}

impl<V: Value> Chunks<V> {
    fn push(&mut self, value: V) {
        if self.last.len() == self.last.capacity() {
            self.begin();
        }
        self.last.push(value);
    }

    pub(super) fn extend(&mut self, mut values: &[V]) {
        while !values.is_empty() {
            if self.last.len() == self.last.capacity() {
                self.begin();
            }
            let room = self.last.capacity() - self.last.len();
            let (now, rest) = values.split_at(room.min(values.len()));
            self.last.extend_from_slice(now);
            values = rest;
        }
    }

    /// Begins the next chunk.
    #[cold]
    fn begin(&mut self) {
        let room = (2 * self.last.capacity()).clamp(CHUNK_MIN, CHUNK_MAX);
        let full = replace(&mut self.last, Vec::with_capacity(room));
        self.room += self.last.capacity();
        if !full.is_empty() {
            self.full.push(full);
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &[V]> {
        let parts = self.full.iter().chain([&self.last]).map(Vec::as_slice);
        parts.filter(|part| !part.is_empty())
    }
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
        let (few, rows, of_rows, lists) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { at, between, result, groups: 0, few, rows, of_rows, lists, list_bytes: 0 }
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
            let few = take(&mut self.few);
            return ByGroup::new(take(&mut self.groups), few, &rows, &of_rows, lists);
        };
        self.groups = self.groups.saturating_sub(count);
        let few = self.few.drain(..count.min(self.few.len())).collect();
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
        ByGroup::new(count, few, &first, &of_first, first_lists)
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
        let has_all = values.null_count() == 0 && filter.is_none();
        let is_few = total <= FEW_GROUPS;
        if is_few && self.few.len() < total {
            self.few.resize_with(total, Chunks::default);
        }
        match (is_few, has_all) {
            (true, true) => match self.few.as_mut_slice() {
                [only] => only.extend(values.values()),
                few => {
                    for (&value, &group) in values.values().iter().zip(groups) {
                        few[group].push(value);
                    }
                }
            },
            (false, true) => {
                self.rows.extend_from_slice(values.values());
                self.of_rows.extend(groups.iter().map(|&group| group as u32));
            }
            (_, false) => {
                for (row, &group) in groups.iter().enumerate() {
                    if values.is_null(row) || !holds(filter, row) {
                        continue;
                    }
                    if is_few {
                        self.few[group].push(values.value(row));
                    } else {
                        self.rows.push(values.value(row));
                        self.of_rows.push(group as u32);
                    }
                }
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
        let (mut results, mut selected) = (Vec::with_capacity(of.count()), Selected::default());
        let mut parts = Vec::new();
        for group in 0..of.count() {
            go_on()?;
            of.parts(group, &mut parts);
            let count: usize = parts.iter().map(|part| part.len()).sum();
            let Some((low, weight)) = place_of(count, self.at) else {
                results.push(None);
                continue;
            };
            let found = selected.at(&parts, low)?;
            results.push(Some(at_weight(found, weight, self.between)));
        }
        let results: PrimitiveArray<V::Arrow> = results.into_iter().collect();
        Ok(cast(&results, &self.result)?)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let (values, ends) = self.leaving(emit).all()?;
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
        let few: usize = self.few.iter().map(|chunks| chunks.room).sum();
        size_of_val(self)
            + self.few.capacity() * size_of::<Chunks<V>>()
            + COPIES * (few + self.rows.capacity()) * size_of::<V>()
            + self.of_rows.capacity() * size_of::<u32>()
            + self.list_bytes
    }
}

/// The values of each of the first groups, those of rows sorted by group, and lists with their spans sorted by group.
struct ByGroup<V: Value> {
    few: Vec<Chunks<V>>,
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
    fn new(
        count: usize,
        few: Vec<Chunks<V>>,
        rows: &[V],
        of_rows: &[u32],
        lists: Vec<Lists<V>>,
    ) -> Self {
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
        ByGroup { few, rows: sorted, starts, lists, spans, span_starts }
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Replaces `parts` with the values of a group.
    fn parts<'a>(&'a self, group: usize, parts: &mut Vec<&'a [V]>) {
        parts.clear();
        parts.extend(self.few.get(group).into_iter().flat_map(Chunks::parts));
        let rows = &self.rows[self.starts[group]..self.starts[group + 1]];
        if !rows.is_empty() {
            parts.push(rows);
        }
        let spans = &self.spans[self.span_starts[group]..self.span_starts[group + 1]];
        parts.extend(spans.iter().map(|&(list, span)| &self.lists[list as usize][span.range()]));
    }

    /// The values of all groups, one group after the other, and where they begin and end.
    fn all(self) -> Result<(Vec<V>, Vec<i32>)> {
        let mut ends = Vec::with_capacity(self.count() + 1);
        let mut end = 0;
        ends.push(0);
        let mut parts = Vec::new();
        for group in 0..self.count() {
            self.parts(group, &mut parts);
            end += parts.iter().map(|part| part.len()).sum::<usize>();
            let Ok(end) = i32::try_from(end) else {
                return exec_err!("groups have {end} values, and at most {}", i32::MAX);
            };
            ends.push(end);
        }
        drop(parts);
        if self.few.is_empty() && self.lists.is_empty() {
            return Ok((self.rows, ends));
        }
        let (mut values, mut parts) = (Vec::with_capacity(end), Vec::new());
        for group in 0..self.count() {
            self.parts(group, &mut parts);
            parts.iter().for_each(|part| values.extend_from_slice(part));
        }
        Ok((values, ends))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::between;
    use super::*;
    use arrow::array::{Float64Array, TimestampMicrosecondArray};
    use arrow::datatypes::{Float64Type, TimeUnit};

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

    fn is_close(found: &ArrayRef, want: &[f64]) -> bool {
        let found = found.as_primitive::<Float64Type>();
        let close = |(found, &want): (Option<f64>, &f64)| match found {
            Some(found) if want.is_nan() => found.is_nan(),
            Some(found) => found == want || (found - want).abs() <= 1e-9 * want.abs(),
            None => false,
        };
        found.len() == want.len() && found.iter().zip(want).all(close)
    }

    /// Expected values from DuckDB 2.0: `quantile_cont(v, at) FILTER (WHERE i % 5 <> 0)` of the rows without `i % 11 = 0`.
    /// The groups have some 100,000 values: numbers; infinities, NaN and others; equal ones.
    #[test]
    fn large_groups_are_selected_from_parts() {
        let other = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.25, 0.5, 1.5, 1.5];
        let value = |i: usize| match i % 3 {
            0 => (i * 7919 % 100_003) as f64 / 8.0 - 5000.0,
            1 => other[i / 3 % 7],
            _ => 2.5,
        };
        let rows: Vec<usize> = (0..420_000).collect();
        for (at, want) in [
            (0.0, [-5000.0, f64::NEG_INFINITY, 2.5]),
            (0.25, [-1874.6875, -0.25, 2.5]),
            (0.5, [1250.4375, 1.5, 2.5]),
            (0.9, [6250.2875, f64::NAN, 2.5]),
            (1.0, [7500.25, f64::NAN, 2.5]),
        ] {
            let (mut all, mut single) = (collected(at), collected(at));
            for split in rows.chunks(140_000) {
                let mut part = collected(at);
                for batch in split.chunks(8192) {
                    let values: Vec<_> =
                        batch.iter().map(|i| (i % 11 != 0).then(|| value(*i))).collect();
                    let groups: Vec<usize> = batch.iter().map(|i| i % 3).collect();
                    let holds: BooleanArray = batch.iter().map(|i| Some(i % 5 != 0)).collect();
                    part.update_batch(&floats(&values), &groups, Some(&holds), 3).unwrap();
                    single.update_batch(&floats(&values), &groups, Some(&holds), 3).unwrap();
                }
                all.merge_batch(&part.state(EmitTo::All).unwrap(), &[0, 1, 2], 3).unwrap();
            }
            for mut of in [all, single] {
                let found = of.evaluate(EmitTo::All).unwrap();
                assert!(is_close(&found, &want), "{at}: {found:?}");
            }
        }
    }

    /// numpy.median of the values of each group.
    #[test]
    fn few_groups_may_become_many() {
        let mut all = collected(0.5);
        all.update_batch(&floats(&[Some(1.0), Some(5.0), None]), &[0, 1, 1], None, 2).unwrap();
        let many: Vec<Option<f64>> = (0..100).map(|i| Some(f64::from(i))).collect();
        let groups: Vec<usize> = (0..100).collect();
        all.update_batch(&floats(&many), &groups, None, 100).unwrap();
        assert_eq!(&all.evaluate(EmitTo::First(1)).unwrap(), &floats(&[Some(0.5)])[0]);
        let state = all.state(EmitTo::First(2)).unwrap();
        assert_eq!(state[0].as_list::<i32>().value_offsets(), [0, 2, 3]);
        assert_eq!(&all.evaluate(EmitTo::First(67)).unwrap(), &floats(&many[3..70])[0]);
        // Thirty groups are left.
        all.update_batch(&floats(&[Some(80.0), Some(1.5)]), &[0, 30], None, 31).unwrap();
        let mut want = many[70..].to_vec();
        want[0] = Some(75.0);
        want.push(Some(1.5));
        assert_eq!(&all.evaluate(EmitTo::All).unwrap(), &floats(&want)[0]);
    }

    #[test]
    fn one_group_fills_its_chunks() {
        let mut part = collected(0.5);
        for batch in 0..7 {
            let values: Vec<_> =
                (0..5000).map(|i| Some(f64::from((batch * 5000 + i) * 7 % 35_001))).collect();
            part.update_batch(&floats(&values), &[0; 5000], None, 1).unwrap();
        }
        let state = part.state(EmitTo::All).unwrap();
        assert_eq!(state[0].as_list::<i32>().value_offsets(), [0, 35_000]);
        let mut all = collected(0.5);
        all.merge_batch(&state, &[0], 1).unwrap();
        // numpy.median
        assert!(is_close(&all.evaluate(EmitTo::All).unwrap(), &[17499.5]));
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
