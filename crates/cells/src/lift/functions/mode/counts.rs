//! How often each value occurs, in all rows or in each group, by a hash table of DataFusion's. Integers that lie close
//! together are counted in another one first ([`Near`]).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, UInt64Array, make_comparator,
    new_empty_array, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{SortOptions, and, cast, filter, is_not_null, not, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::NAME;
use super::near::{Counted, Near};
use crate::lift::functions::discrete::list_of;
use crate::lift::functions::holds;
use crate::lift::labels::canonical;

/// The type in which values are stored: texts as views, which may have more than 2 GiB.
pub(super) fn kept_as(of: &DataType) -> DataType {
    match of {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        _ => of.clone(),
    }
}

fn kept(values: &ArrayRef) -> Result<ArrayRef> {
    let to = kept_as(values.data_type());
    if to == *values.data_type() { Ok(canonical(values)) } else { Ok(cast(values, &to)?) }
}

/// The rows that have a value and for which the filter holds; `None` if these are all rows.
fn counted(values: &ArrayRef, holds: Option<&BooleanArray>) -> Result<Option<BooleanArray>> {
    let is_valid = match values.logical_null_count() {
        0 => None,
        _ => Some(is_not_null(values)?),
    };
    Ok(match (is_valid, holds) {
        (Some(is_valid), Some(holds)) => Some(and(&is_valid, holds)?),
        (is_valid, holds) => is_valid.or_else(|| holds.cloned()),
    })
}

/// The rows of a mask, or all.
fn filtered(values: &ArrayRef, mask: Option<&BooleanArray>) -> Result<ArrayRef> {
    match mask {
        Some(mask) => Ok(filter(values, mask)?),
        None => Ok(values.clone()),
    }
}

/// Counts of values, or of pairs of a group and a value.
struct Counts {
    schema: SchemaRef,
    /// Assigns a number to each value. The mutex is never locked: it makes the table `Sync`, as accumulators must be.
    table: Mutex<Box<dyn GroupValues>>,
    table_bytes: usize,
    /// The count of each value, by its number.
    times: Vec<u64>,
    /// The numbers of the values that were added last.
    numbers: Vec<usize>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").field("values", &self.times.len()).finish_non_exhaustive()
    }
}

impl Counts {
    fn new(types: Vec<DataType>) -> Result<Self> {
        let fields: Vec<Field> = types.into_iter().map(|of| Field::new("", of, false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let table = new_group_values(schema.clone(), &GroupOrdering::None)?;
        let table_bytes = table.size();
        let table = Mutex::new(table);
        Ok(Counts { schema, table, table_bytes, times: Vec::new(), numbers: Vec::new() })
    }

    /// Adds values, each as many times as `more` says, or once.
    fn add(&mut self, columns: &[ArrayRef], more: Option<&UInt64Array>) -> Result<()> {
        if columns.iter().any(|column| column.is_empty()) {
            self.numbers.clear();
            return Ok(());
        }
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        table.intern(columns, &mut self.numbers)?;
        self.times.resize(table.len(), 0);
        self.table_bytes = table.size();
        match more {
            None => self.numbers.iter().for_each(|&number| self.times[number] += 1),
            Some(more) => {
                for (&number, &more) in self.numbers.iter().zip(more.values()) {
                    self.times[number] += more;
                }
            }
        }
        Ok(())
    }

    /// Removes and returns all columns and the counts of their rows.
    fn take(&mut self) -> Result<(Vec<ArrayRef>, Vec<u64>)> {
        let times = std::mem::take(&mut self.times);
        if times.is_empty() {
            // Some tables panic in `emit` if they are empty.
            let fields = self.schema.fields().iter();
            return Ok((fields.map(|field| new_empty_array(field.data_type())).collect(), times));
        }
        let table = self.table.get_mut().unwrap_or_else(PoisonError::into_inner);
        let columns = table.emit(EmitTo::All)?;
        // A table of several columns would still know the removed values.
        table.clear_shrink(0);
        self.table_bytes = table.size();
        Ok((columns, times))
    }

    fn size(&self) -> usize {
        self.table_bytes
            + self.times.capacity() * size_of::<u64>()
            + self.numbers.capacity() * size_of::<usize>()
    }
}

/// The most frequent one of all values.
#[derive(Debug)]
pub(super) struct Whole {
    of: DataType,
    order: SortOptions,
    counts: Counts,
    /// The most frequent value so far and its count: windows evaluate it after each row.
    best: Option<(u64, ScalarValue)>,
}

impl Whole {
    pub(super) fn new(of: DataType, order: SortOptions) -> Result<Self> {
        let counts = Counts::new(vec![kept_as(&of)])?;
        Ok(Whole { of, order, counts, best: None })
    }

    /// Adds values without NULL. Only these can become more frequent than the best one.
    fn add(&mut self, values: &ArrayRef, more: Option<&UInt64Array>) -> Result<()> {
        self.counts.add(std::slice::from_ref(values), more)?;
        let compare = make_comparator(values, values, self.order)?;
        let least = self.best.as_ref().map_or(0, |(most, _)| *most);
        let mut best: Option<(usize, u64)> = None;
        for (row, &number) in self.counts.numbers.iter().enumerate() {
            let times = self.counts.times[number];
            let is_better = times >= least
                && best.is_none_or(|(first, most)| {
                    times > most || (times == most && compare(row, first).is_lt())
                });
            if is_better {
                best = Some((row, times));
            }
        }
        let Some((row, times)) = best else { return Ok(()) };
        let is_better = match &self.best {
            Some((most, value)) if *most == times => {
                make_comparator(values, &value.to_array()?, self.order)?(row, 0).is_lt()
            }
            _ => true,
        };
        if is_better {
            self.best = Some((times, ScalarValue::try_from_array(values, row)?.compacted()));
        }
        Ok(())
    }
}

impl Accumulator for Whole {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        let values = filtered(values, counted(values, None)?.as_ref())?;
        self.add(&kept(&values)?, None)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match &self.best {
            Some((_, value)) => value.cast_to(&self.of),
            None => ScalarValue::try_from(&self.of),
        }
    }

    fn size(&self) -> usize {
        let best = self.best.as_ref().map_or(0, |(_, value)| value.size());
        size_of_val(self) + self.counts.size() + best
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let (mut columns, times) = self.counts.take()?;
        let Some(values) = columns.pop() else { return internal_err!("`{NAME}` has no table") };
        Ok(vec![list_of(values)?, list_of(Arc::new(UInt64Array::from(times)))?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, times] = states else { return internal_err!("`{NAME}`: a broken state") };
        let (values, times) = (values.as_list::<i32>(), times.as_list::<i32>());
        for (values, times) in values.iter().zip(times.iter()) {
            let (Some(values), Some(times)) = (values, times) else { continue };
            self.add(&values, Some(times.as_primitive::<UInt64Type>()))?;
        }
        Ok(())
    }
}

/// The most frequent value of each group.
#[derive(Debug)]
pub(super) struct Groups {
    of: DataType,
    order: SortOptions,
    counts: Counts,
    /// Counts that are not in the other table; `None` if values lie too far apart, or are no integers.
    near: Option<Near>,
    groups: usize,
}

/// The values of some groups, each once.
struct Pairs {
    groups: UInt64Array,
    values: ArrayRef,
    times: UInt64Array,
    /// The number of groups, some of which may have no value.
    count: usize,
}

/// Splits the values into lists of these lengths.
fn lists(values: ArrayRef, lengths: &[usize]) -> Result<ArrayRef> {
    if i32::try_from(values.len()).is_err() {
        return exec_err!(
            "the groups of `{NAME}` have {} values, and at most {}",
            values.len(),
            i32::MAX
        );
    }
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    Ok(Arc::new(ListArray::try_new(field, offsets, values, None)?))
}

fn flat(lists: &ListArray) -> ArrayRef {
    let offsets = lists.value_offsets();
    let end_of = |offset: Option<&i32>| offset.map_or(0, |&offset| offset as usize);
    let (start, end) = (end_of(offsets.first()), end_of(offsets.last()));
    lists.values().slice(start, end - start)
}

impl Groups {
    pub(super) fn new(of: DataType, order: SortOptions) -> Result<Self> {
        let counts = Counts::new(vec![DataType::UInt64, kept_as(&of)])?;
        let near = Near::takes(&of).then(Near::default);
        Ok(Groups { of, order, counts, near, groups: 0 })
    }

    /// Moves the counts of integers that lie close together to the table of all.
    fn move_near(&mut self) -> Result<()> {
        let Some(near) = &mut self.near else { return Ok(()) };
        let Counted { groups, values, times } = near.take(&self.of)?;
        self.counts.add(&[Arc::new(groups), values], Some(&times))
    }

    /// Removes and returns the values of all groups, or of the first ones.
    fn leaving(&mut self, emit_to: EmitTo) -> Result<Pairs> {
        self.move_near()?;
        let (columns, times) = self.counts.take()?;
        let [groups, values] = columns.as_slice() else {
            return internal_err!("`{NAME}` has no table");
        };
        let count = match emit_to {
            EmitTo::All => self.groups,
            EmitTo::First(count) => count,
        };
        self.groups -= count;
        let times: ArrayRef = Arc::new(UInt64Array::from(times));
        let is_first =
            BooleanArray::from_unary(groups.as_primitive::<UInt64Type>(), |g| g < count as u64);
        let pairs = |mask: &BooleanArray| -> Result<Pairs> {
            Ok(Pairs {
                groups: filter(groups, mask)?.as_primitive::<UInt64Type>().clone(),
                values: filter(values, mask)?,
                times: filter(&times, mask)?.as_primitive::<UInt64Type>().clone(),
                count,
            })
        };
        if is_first.true_count() < is_first.len() {
            let rest = pairs(&not(&is_first)?)?;
            let groups = rest.groups.unary::<_, UInt64Type>(|group| group - count as u64);
            self.counts.add(&[Arc::new(groups), rest.values], Some(&rest.times))?;
        }
        pairs(&is_first)
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups = total_num_groups;
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        let mask = counted(values, opt_filter)?;
        if let Some(near) = &mut self.near {
            if near.add(values, group_indices, mask.as_ref(), total_num_groups)? {
                return Ok(());
            }
            self.move_near()?;
            self.near = None;
        }
        let groups = group_indices.iter().map(|&group| group as u64);
        let groups: ArrayRef = Arc::new(UInt64Array::from_iter_values(groups));
        let values = kept(&filtered(values, mask.as_ref())?)?;
        self.counts.add(&[filtered(&groups, mask.as_ref())?, values], None)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let Pairs { groups, values, times, count } = self.leaving(emit_to)?;
        if values.is_empty() {
            return Ok(new_null_array(&self.of, count));
        }
        let compare = make_comparator(&values, &values, self.order)?;
        let mut best: Vec<Option<u64>> = vec![None; count];
        for (pair, &group) in groups.values().iter().enumerate() {
            let best = &mut best[group as usize];
            let is_better = best.is_none_or(|first| {
                let (times, most) = (times.value(pair), times.value(first as usize));
                times > most || (times == most && compare(pair, first as usize).is_lt())
            });
            if is_better {
                *best = Some(pair as u64);
            }
        }
        let best = take(&values, &UInt64Array::from(best), None)?;
        Ok(cast(&best, &self.of)?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let Pairs { groups, values, times, count } = self.leaving(emit_to)?;
        let mut lengths = vec![0; count];
        for &group in groups.values() {
            lengths[group as usize] += 1;
        }
        let mut ends = lengths.clone();
        let mut end = 0;
        for length in &mut ends {
            end += *length;
            *length = end;
        }
        let mut by_group = vec![0; values.len()];
        for (pair, &group) in groups.values().iter().enumerate() {
            let end = &mut ends[group as usize];
            *end -= 1;
            by_group[*end] = pair as u64;
        }
        let by_group = UInt64Array::from(by_group);
        Ok(vec![
            lists(take(&values, &by_group, None)?, &lengths)?,
            lists(take(&times, &by_group, None)?, &lengths)?,
        ])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> Result<()> {
        self.groups = total_num_groups;
        let [values, times] = values else { return internal_err!("`{NAME}`: a broken state") };
        let (lists, times) = (values.as_list::<i32>(), flat(times.as_list::<i32>()));
        let lengths = lists.offsets().lengths();
        let groups = group_indices.iter().zip(lengths);
        let groups: UInt64Array =
            groups.flat_map(|(&group, length)| std::iter::repeat_n(group as u64, length)).collect();
        let values = flat(lists);
        if groups.len() != values.len() || times.len() != values.len() {
            let (groups, values, times) = (groups.len(), values.len(), times.len());
            return internal_err!("`{NAME}`: {values} values, {times} counts, {groups} groups");
        }
        let times = times.as_primitive::<UInt64Type>();
        self.counts.add(&[Arc::new(groups), values], Some(times))
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        let Some(values) = values.first() else { return internal_err!("`{NAME}` of nothing") };
        let mask = counted(values, opt_filter)?;
        let is_counted = |row| holds(mask.as_ref(), row);
        let lengths: Vec<usize> = (0..values.len()).map(|row| is_counted(row).into()).collect();
        let values = kept(&filtered(values, mask.as_ref())?)?;
        let once = UInt64Array::from(vec![1; values.len()]);
        Ok(vec![lists(values, &lengths)?, lists(Arc::new(once), &lengths)?])
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.size() + self.near.as_ref().map_or(0, Near::size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Float64Array, Int64Array, StringArray};

    fn texts(values: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    #[test]
    fn the_most_frequent_value_is_known_after_each_batch() {
        let long = "a text of more than twelve bytes";
        let mut all = Whole::new(DataType::Utf8, SortOptions::default()).unwrap();
        assert_eq!(all.evaluate().unwrap(), ScalarValue::Utf8(None));
        for (batch, best) in [
            (texts(&[None, Some("b")]), "b"),
            (texts(&[Some(long), None]), long),
            (texts(&[Some("b"), Some("c")]), "b"),
            (texts(&[Some(long)]), long),
            (texts(&[Some("c"), Some("c")]), "c"),
        ] {
            all.update_batch(&[batch]).unwrap();
            assert_eq!(all.evaluate().unwrap(), ScalarValue::from(best));
        }
        let state: Vec<ArrayRef> =
            all.state().unwrap().iter().map(|column| column.to_array().unwrap()).collect();
        let mut merged = Whole::new(DataType::Utf8, SortOptions::default()).unwrap();
        merged.update_batch(&[texts(&[Some("b")])]).unwrap();
        merged.merge_batch(&state).unwrap();
        assert_eq!(merged.evaluate().unwrap(), ScalarValue::from("b"));
    }

    #[test]
    fn zeros_are_one_value_and_so_are_nans() {
        let values = Float64Array::from(vec![-0.0, f64::NAN, 0.0, -f64::NAN, 1.0, 1.0]);
        let values: [ArrayRef; 1] = [Arc::new(values)];
        for (descending, best) in [(false, 0.0), (true, f64::NAN)] {
            let order = SortOptions { descending, nulls_first: false };
            let mut all = Whole::new(DataType::Float64, order).unwrap();
            all.update_batch(&values).unwrap();
            assert_eq!(all.evaluate().unwrap(), ScalarValue::from(best));
        }
    }

    #[test]
    fn groups_leave_in_parts_and_are_merged() {
        let order = SortOptions::default();
        let mut groups = Groups::new(DataType::Utf8, order).unwrap();
        let values = [texts(&[Some("x"), Some("y"), Some("y"), None, Some("z"), Some("z")])];
        let holds = BooleanArray::from(vec![true, true, true, true, true, false]);
        groups.update_batch(&values, &[0, 0, 0, 1, 2, 2], Some(&holds), 4).unwrap();
        let rows = groups.convert_to_state(&values, Some(&holds)).unwrap();
        groups.merge_batch(&rows, &[3, 2, 3, 3, 3, 3], 4).unwrap();
        let first = groups.evaluate(EmitTo::First(1)).unwrap();
        assert_eq!(&first, &texts(&[Some("y")]));
        // Group 2 has y and z once, group 3 has x, y and z once.
        let state = groups.state(EmitTo::All).unwrap();
        assert_eq!(state[0].as_list::<i32>().offsets().lengths().collect::<Vec<_>>(), [0, 2, 3]);
        let mut merged = Groups::new(DataType::Utf8, order).unwrap();
        merged.merge_batch(&state, &[2, 1, 0], 3).unwrap();
        merged.update_batch(&[texts(&[Some("z")])], &[1], None, 3).unwrap();
        let all = merged.evaluate(EmitTo::All).unwrap();
        assert_eq!(&all, &texts(&[Some("x"), Some("z"), None]));
        assert_eq!(merged.evaluate(EmitTo::All).unwrap().len(), 0);
    }

    /// Expected values from DuckDB 2.0: the values of each group by `UNION ALL`, then `mode(x)`.
    #[test]
    fn integers_far_from_others_are_counted_with_them() {
        let ints =
            |values: &[Option<i64>]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
        let mut groups = Groups::new(DataType::Int64, SortOptions::default()).unwrap();
        groups
            .update_batch(&[ints(&[Some(3), None, Some(3), Some(8)])], &[0, 0, 1, 1], None, 2)
            .unwrap();
        assert!(groups.near.is_some());
        let mut merged = Groups::new(DataType::Int64, SortOptions::default()).unwrap();
        merged.update_batch(&[ints(&[Some(-4), Some(8)])], &[1, 0], None, 2).unwrap();
        merged.merge_batch(&groups.state(EmitTo::All).unwrap(), &[0, 1], 2).unwrap();
        let far = ints(&[Some(i64::MAX), Some(i64::MIN), Some(i64::MAX), Some(3)]);
        merged.update_batch(&[far], &[0, 1, 0, 1], None, 2).unwrap();
        assert!(merged.near.is_none());
        let modes = merged.evaluate(EmitTo::All).unwrap();
        assert_eq!(&modes, &ints(&[Some(i64::MAX), Some(3)]));
    }
}
