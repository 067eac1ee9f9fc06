//! Sort keys that compare fast.
//!
//! ```text
//! ORDER BY a DESC, b      a: int32, nullable    b: float64
//!                         │ 1 bit │ 32 bits     │ 64 bits │     ⇒ a number of 97 bits
//! ```
//! Integers have their sign turned, floats have IEEE 754's total order as in DataFusion's sorts, descending keys are
//! inverted. Keys of more than 128 bits, and texts, are Arrow's row format, of which the first bytes are compared first.

use super::radix::{self, Radix};
use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, RecordBatch};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{self as t, DataType, Schema, TimeUnit};
use datafusion::arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalSortExpr;
use std::cmp::Ordering;

/// The batch and the row of a key.
pub(super) type Entry = (usize, usize);

/// Where a key's row is: batch and row.
type Place = (u32, u32);

/// The keys of a sort.
pub(in crate::rows) struct Keys {
    keys: Vec<PhysicalSortExpr>,
    kind: Kind,
}

enum Kind {
    /// Numbers of 64 bits: the bits of each key, and whether it has one more for NULL.
    Narrow(Vec<(u32, bool)>),
    /// The same with 128 bits.
    Wide(Vec<(u32, bool)>),
    Bytes(RowConverter),
}

/// The keys of a batch's rows, in the order of the rows.
pub(in crate::rows) enum RowKeys {
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
    Bytes(Rows),
}

/// Sorted keys of some batches.
pub(super) enum Run {
    Narrow(Vec<(u64, Place)>),
    Wide(Vec<(u128, Place)>),
    /// The first bytes of each key, and the keys of each batch.
    Bytes {
        sorted: Vec<(u64, Place)>,
        rows: Vec<Rows>,
        first: u32,
    },
}

impl Run {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Run::Narrow(sorted) => size_of_val(sorted.as_slice()),
            Run::Wide(sorted) => size_of_val(sorted.as_slice()),
            Run::Bytes { sorted, rows, .. } => {
                size_of_val(sorted.as_slice()) + rows.iter().map(Rows::size).sum::<usize>()
            }
        }
    }

    /// Numbers the run's batches from `first`.
    pub(super) fn number(&mut self, first: usize) {
        let by = first as u32;
        match self {
            Run::Narrow(sorted) => sorted.iter_mut().for_each(|(_, place)| place.0 += by),
            Run::Wide(sorted) => sorted.iter_mut().for_each(|(_, place)| place.0 += by),
            Run::Bytes { sorted, first, .. } => {
                sorted.iter_mut().for_each(|(_, place)| place.0 += by);
                *first += by;
            }
        }
    }

    /// A key without its last bits; all keys that are bytes are equal.
    fn first(&self, at: usize, behind: u32) -> u128 {
        match self {
            Run::Narrow(sorted) => u128::from(sorted[at].0) >> behind,
            Run::Wide(sorted) => sorted[at].0 >> behind,
            Run::Bytes { .. } => 0,
        }
    }

    fn rows(&self) -> &[Rows] {
        match self {
            Run::Bytes { rows, .. } => rows,
            _ => &[],
        }
    }

    /// The key of a row, as bytes.
    fn data(&self, (batch, row): Place) -> &[u8] {
        match self {
            Run::Bytes { rows, first, .. } => {
                rows[(batch - first) as usize].row(row as usize).data()
            }
            _ => &[],
        }
    }

    fn len(&self) -> usize {
        match self {
            Run::Narrow(sorted) => sorted.len(),
            Run::Wide(sorted) => sorted.len(),
            Run::Bytes { sorted, .. } => sorted.len(),
        }
    }
}

impl Keys {
    /// The keys of rows of that schema.
    ///
    /// # Errors
    /// A key has a type that has no order.
    pub(in crate::rows) fn new<'a>(
        keys: impl IntoIterator<Item = &'a PhysicalSortExpr>,
        schema: &Schema,
    ) -> Result<Self> {
        let keys: Vec<_> = keys.into_iter().cloned().collect();
        let widths = keys.iter().map(|key| {
            let is_nullable = key.expr.nullable(schema)?;
            Ok(bits(&key.expr.data_type(schema)?).map(|n| (n, is_nullable)))
        });
        let widths: Option<Vec<_>> = widths.collect::<Result<Option<Vec<_>>>>()?;
        let kind = match widths {
            Some(widths) if total(&widths) <= 64 => Kind::Narrow(widths),
            Some(widths) if total(&widths) <= 128 => Kind::Wide(widths),
            _ => {
                let field = |key: &PhysicalSortExpr| {
                    Ok(SortField::new_with_options(key.expr.data_type(schema)?, key.options))
                };
                let fields = keys.iter().map(field).collect::<Result<Vec<_>>>()?;
                if !RowConverter::supports_fields(&fields) {
                    return internal_err!("keys without an order");
                }
                Kind::Bytes(RowConverter::new(fields)?)
            }
        };
        Ok(Keys { keys, kind })
    }

    /// The keys of a batch's rows.
    pub(in crate::rows) fn of_rows(&self, batch: &RecordBatch) -> Result<RowKeys> {
        let column =
            |key: &PhysicalSortExpr| key.expr.evaluate(batch)?.into_array(batch.num_rows());
        let columns = self.keys.iter().map(column).collect::<Result<Vec<ArrayRef>>>()?;
        Ok(match &self.kind {
            Kind::Narrow(widths) => RowKeys::Narrow(self.row_numbers(&columns, widths)?),
            Kind::Wide(widths) => RowKeys::Wide(self.row_numbers(&columns, widths)?),
            Kind::Bytes(converter) => RowKeys::Bytes(converter.convert_columns(&columns)?),
        })
    }

    fn row_numbers<K: Number>(
        &self,
        columns: &[ArrayRef],
        widths: &[(u32, bool)],
    ) -> Result<Vec<K>> {
        let mut numbers = vec![K::default(); columns.first().map_or(0, |c| c.len())];
        for ((column, key), &(bits, is_nullable)) in columns.iter().zip(&self.keys).zip(widths) {
            append(&mut numbers, column, key.options, bits, is_nullable)?;
        }
        Ok(numbers)
    }

    /// As [`Keys::of_rows`]. If `whole` is not 0, only the first `whole` keys count: the bits of the others are 0.
    pub(super) fn first_of_rows(&self, batch: &RecordBatch, whole: usize) -> Result<RowKeys> {
        let behind = self.bits_behind(whole);
        Ok(match self.of_rows(batch)? {
            RowKeys::Narrow(mut keys) => {
                keys.iter_mut().for_each(|key| *key = *key >> behind << behind);
                RowKeys::Narrow(keys)
            }
            RowKeys::Wide(mut keys) => {
                keys.iter_mut().for_each(|key| *key = *key >> behind << behind);
                RowKeys::Wide(keys)
            }
            bytes @ RowKeys::Bytes(_) => bytes,
        })
    }

    /// Sorts the keys of some batches, numbered from 0.
    pub(super) fn run(&self, batches: &[RecordBatch]) -> Result<Run> {
        let columns = |batch: &RecordBatch| {
            let column =
                |key: &PhysicalSortExpr| key.expr.evaluate(batch)?.into_array(batch.num_rows());
            self.keys.iter().map(column).collect::<Result<Vec<ArrayRef>>>()
        };
        let all = batches.iter().map(columns).collect::<Result<Vec<_>>>()?;
        Ok(match &self.kind {
            Kind::Narrow(widths) => Run::Narrow(self.numbers(&all, widths)?),
            Kind::Wide(widths) => Run::Wide(self.numbers(&all, widths)?),
            Kind::Bytes(converter) => {
                let rows = all.iter().map(|columns| Ok(converter.convert_columns(columns)?));
                let rows = rows.collect::<Result<Vec<Rows>>>()?;
                let mut sorted = Vec::with_capacity(rows.iter().map(Rows::num_rows).sum());
                for (batch, rows) in rows.iter().enumerate() {
                    let key = |row: usize| {
                        (first_bytes(rows.row(row).data()), (batch as u32, row as u32))
                    };
                    sorted.extend((0..rows.num_rows()).map(key));
                }
                let batches: Vec<&Rows> = rows.iter().collect();
                sorted.sort_unstable_by(|a, b| by_bytes(a, b, |place| data(&batches, place)));
                Run::Bytes { sorted, rows, first: 0 }
            }
        })
    }

    fn numbers<K: Number>(
        &self,
        all: &[Vec<ArrayRef>],
        widths: &[(u32, bool)],
    ) -> Result<Vec<(K, Place)>> {
        let count = |columns: &Vec<ArrayRef>| columns.first().map_or(0, |c| c.len());
        let mut sorted = Vec::with_capacity(all.iter().map(count).sum());
        for (batch, columns) in all.iter().enumerate() {
            let numbers: Vec<K> = self.row_numbers(columns, widths)?;
            let place = |(row, key): (usize, K)| (key, (batch as u32, row as u32));
            sorted.extend(numbers.into_iter().enumerate().map(place));
        }
        // Entries come in the order of their places.
        radix::sort(&mut sorted);
        Ok(sorted)
    }

    /// The bytes of a key that is a number.
    pub(super) fn number_bytes(&self) -> Option<usize> {
        match self.kind {
            Kind::Narrow(_) => Some(8),
            Kind::Wide(_) => Some(16),
            Kind::Bytes(_) => None,
        }
    }

    /// True if runs can be cut where the first `keys` keys change.
    pub(super) fn can_cut(&self, keys: usize) -> bool {
        keys > 0 && keys <= self.keys.len() && !matches!(self.kind, Kind::Bytes(_))
    }

    /// The bits behind the first `keys` keys.
    fn bits_behind(&self, keys: usize) -> u32 {
        match &self.kind {
            Kind::Narrow(widths) | Kind::Wide(widths) if keys > 0 => total(&widths[keys..]),
            _ => 0,
        }
    }

    /// Cuts the runs at the same keys into about `parts` parts: for each bound, the first entry of each run that is not
    /// before it. Rows with the same first `whole` keys are in one part.
    pub(super) fn cuts(
        &self,
        runs: &[Run],
        parts: usize,
        samples: usize,
        whole: usize,
    ) -> Vec<Vec<usize>> {
        let behind = self.bits_behind(whole);
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            let step = run.len().div_ceil(samples).max(1);
            chosen.extend((step / 2..run.len()).step_by(step).map(|at| (i, at)));
        }
        chosen.sort_unstable_by(|a, b| compare(runs, *a, *b));
        let mut cuts = vec![vec![0; runs.len()]];
        for part in 1..parts {
            let Some(&bound) = chosen.get(part * chosen.len() / parts) else { break };
            let cut = (0..runs.len()).map(|i| {
                let (mut low, mut high) = (0, runs[i].len());
                while low < high {
                    let middle = (low + high) / 2;
                    let order = match whole {
                        0 => compare(runs, (i, middle), bound),
                        _ => {
                            runs[i].first(middle, behind).cmp(&runs[bound.0].first(bound.1, behind))
                        }
                    };
                    match order {
                        Ordering::Less => low = middle + 1,
                        _ => high = middle,
                    }
                }
                low
            });
            let cut = cut.collect();
            if cuts.last() != Some(&cut) {
                cuts.push(cut);
            }
        }
        cuts.push(runs.iter().map(Run::len).collect());
        cuts
    }

    /// The places of the entries between two cuts, sorted.
    pub(super) fn merged(&self, runs: &[Run], from: &[usize], to: &[usize]) -> Vec<Entry> {
        let (mut narrow, mut wide, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for ((run, &from), &to) in runs.iter().zip(from).zip(to) {
            match run {
                Run::Narrow(sorted) => narrow.extend_from_slice(&sorted[from..to]),
                Run::Wide(sorted) => wide.extend_from_slice(&sorted[from..to]),
                Run::Bytes { sorted, .. } => bytes.extend_from_slice(&sorted[from..to]),
            }
        }
        // Runs come in the order of their batches. The stable sorts find them and may merge them.
        radix::sort(&mut narrow);
        radix::sort(&mut wide);
        let batches: Vec<&Rows> = runs.iter().flat_map(Run::rows).collect();
        bytes.sort_by(|a, b| by_bytes(a, b, |place| data(&batches, place)));
        let places = narrow.into_iter().map(|(_, place)| place);
        let places = places.chain(wide.into_iter().map(|(_, place)| place));
        let places = places.chain(bytes.into_iter().map(|(_, place)| place));
        places.map(|(batch, row)| (batch as usize, row as usize)).collect()
    }
}

/// The bits of some keys.
fn total(widths: &[(u32, bool)]) -> u32 {
    widths.iter().map(|(bits, is_nullable)| bits + u32::from(*is_nullable)).sum()
}

/// The key of a row, as bytes.
fn data<'a>(batches: &[&'a Rows], (batch, row): Place) -> &'a [u8] {
    batches[batch as usize].row(row as usize).data()
}

/// The first bytes of a key as a number that compares as they do.
pub(in crate::rows) fn first_bytes(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let n = key.len().min(8);
    first[..n].copy_from_slice(&key[..n]);
    u64::from_be_bytes(first)
}

fn by_bytes<'a>(a: &(u64, Place), b: &(u64, Place), data: impl Fn(Place) -> &'a [u8]) -> Ordering {
    let rest = || data(a.1).cmp(data(b.1)).then(a.1.cmp(&b.1));
    a.0.cmp(&b.0).then_with(rest)
}

/// Compares two entries of runs.
fn compare(runs: &[Run], a: (usize, usize), b: (usize, usize)) -> Ordering {
    match (&runs[a.0], &runs[b.0]) {
        (Run::Narrow(left), Run::Narrow(right)) => left[a.1].cmp(&right[b.1]),
        (Run::Wide(left), Run::Wide(right)) => left[a.1].cmp(&right[b.1]),
        (left @ Run::Bytes { sorted, .. }, right @ Run::Bytes { sorted: others, .. }) => {
            let (x, y) = (&sorted[a.1], &others[b.1]);
            let rest = || left.data(x.1).cmp(right.data(y.1)).then(x.1.cmp(&y.1));
            x.0.cmp(&y.0).then_with(rest)
        }
        // All runs of a sort are of one kind.
        _ => a.cmp(&b),
    }
}

/// A number that keys are appended to.
trait Number: Radix {
    /// Appends the lower `bits` bits of a value.
    fn append(&mut self, bits: u32, value: u64);
}

impl Number for u64 {
    fn append(&mut self, bits: u32, value: u64) {
        *self = self.checked_shl(bits).unwrap_or(0) | value;
    }
}

impl Number for u128 {
    fn append(&mut self, bits: u32, value: u64) {
        *self = (*self << bits) | u128::from(value);
    }
}

/// Bits of a key without the one for NULL; `None` if it is not a number.
fn bits(data_type: &DataType) -> Option<u32> {
    Some(match data_type {
        DataType::Boolean => 1,
        DataType::Int8 | DataType::UInt8 => 8,
        DataType::Int16 | DataType::UInt16 => 16,
        DataType::Int32 | DataType::UInt32 | DataType::Float32 | DataType::Date32 => 32,
        DataType::Int64 | DataType::UInt64 | DataType::Float64 | DataType::Date64 => 64,
        DataType::Timestamp(..) => 64,
        _ => return None,
    })
}

/// Appends a key's column to the numbers of its rows.
fn append<K: Number>(
    numbers: &mut [K],
    column: &ArrayRef,
    options: SortOptions,
    bits: u32,
    is_nullable: bool,
) -> Result<()> {
    if !is_nullable && column.null_count() > 0 {
        return internal_err!("a sort key without NULLs has {}", column.null_count());
    }
    let signed32 = |v: i32| u64::from(v as u32 ^ 1 << 31);
    let signed64 = |v: i64| v as u64 ^ 1 << 63;
    let mut with = Appended { numbers, column, options, bits, is_nullable };
    match column.data_type() {
        DataType::Boolean => {
            let values = column.as_boolean().clone();
            with.all(|i| u64::from(values.value(i)));
        }
        DataType::Int8 => with.of::<t::Int8Type>(|v| u64::from(v as u8 ^ 1 << 7)),
        DataType::UInt8 => with.of::<t::UInt8Type>(u64::from),
        DataType::Int16 => with.of::<t::Int16Type>(|v| u64::from(v as u16 ^ 1 << 15)),
        DataType::UInt16 => with.of::<t::UInt16Type>(u64::from),
        DataType::Int32 => with.of::<t::Int32Type>(signed32),
        DataType::Date32 => with.of::<t::Date32Type>(signed32),
        DataType::UInt32 => with.of::<t::UInt32Type>(u64::from),
        DataType::Float32 => with.of::<t::Float32Type>(|v| {
            let bits = v.to_bits();
            u64::from(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
        }),
        DataType::Int64 => with.of::<t::Int64Type>(signed64),
        DataType::Date64 => with.of::<t::Date64Type>(signed64),
        DataType::UInt64 => with.of::<t::UInt64Type>(|v| v),
        DataType::Float64 => with.of::<t::Float64Type>(|v| {
            let bits = v.to_bits();
            if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
        }),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => with.of::<t::TimestampSecondType>(signed64),
            TimeUnit::Millisecond => with.of::<t::TimestampMillisecondType>(signed64),
            TimeUnit::Microsecond => with.of::<t::TimestampMicrosecondType>(signed64),
            TimeUnit::Nanosecond => with.of::<t::TimestampNanosecondType>(signed64),
        },
        other => return internal_err!("{other} is not a number of a sort"),
    }
    Ok(())
}

struct Appended<'a, K> {
    numbers: &'a mut [K],
    column: &'a ArrayRef,
    options: SortOptions,
    bits: u32,
    is_nullable: bool,
}

impl<K: Number> Appended<'_, K> {
    fn of<T: ArrowPrimitiveType>(&mut self, number: impl Fn(T::Native) -> u64) {
        let values = self.column.as_primitive::<T>().values().clone();
        self.all(|i| number(values[i]));
    }

    fn all(&mut self, value: impl Fn(usize) -> u64) {
        let SortOptions { descending, nulls_first } = self.options;
        let turned = if descending { u64::MAX >> (64 - self.bits) } else { 0 };
        let nulls = self.column.nulls();
        for (i, number) in self.numbers.iter_mut().enumerate() {
            let is_null = nulls.is_some_and(|nulls| nulls.is_null(i));
            if self.is_nullable {
                number.append(1, u64::from(is_null != nulls_first));
            }
            number.append(self.bits, if is_null { 0 } else { value(i) ^ turned });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{
        BooleanArray, Float64Array, Int8Array, StringArray, UInt64Array,
    };
    use datafusion::arrow::compute::{SortColumn, lexsort_to_indices};
    use datafusion::arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::col;
    use std::sync::Arc;

    /// Values of several types, with extremes and NULLs, in an order that depends on `seed`.
    fn rows(seed: u64, n: usize) -> RecordBatch {
        let mut state = seed;
        let mut random = move |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        let floats = [0.0, -0.0, 1.5, -1.5, f64::NAN, -f64::NAN, f64::INFINITY, f64::MIN, 5e-324];
        let texts = ["", "a", "a long text about", "a long text abovE", "zz", "\u{e9}"];
        let mut some = |n: usize| Some(random(n)).filter(|&i| i > 0).map(|i| i - 1);
        let f: Float64Array = (0..n).map(|_| some(10).map(|i| floats[i])).collect();
        let b: Int8Array =
            (0..n).map(|_| some(6).map(|i| [i8::MIN, -1, 0, 1, i8::MAX][i])).collect();
        let u: UInt64Array = (0..n).map(|_| Some([0, 1, u64::MAX][some(4).unwrap_or(0)])).collect();
        let o: BooleanArray = (0..n).map(|_| some(3).map(|i| i == 0)).collect();
        let s: StringArray = (0..n).map(|_| some(7).map(|i| texts[i])).collect();
        let field = |name, kind, null| Field::new(name, kind, null);
        let schema = Schema::new(vec![
            field("f", DataType::Float64, true),
            field("b", DataType::Int8, true),
            field("u", DataType::UInt64, false),
            field("o", DataType::Boolean, true),
            field("s", DataType::Utf8, true),
        ]);
        let columns: Vec<ArrayRef> =
            vec![Arc::new(f), Arc::new(b), Arc::new(u), Arc::new(o), Arc::new(s)];
        RecordBatch::try_new(Arc::new(schema), columns).unwrap()
    }

    #[test]
    fn keys_sort_as_arrows_do_and_keep_the_order_of_equal_ones() {
        let batches: Vec<_> =
            (1..40).map(|seed| rows(seed, 1 + (seed as usize * 37) % 90)).collect();
        let schema = batches[0].schema();
        let all = datafusion::arrow::compute::concat_batches(&schema, &batches).unwrap();
        let columns = ["b", "u", "f", "b,o", "o,f", "b,u", "f,u", "s", "o,s,f", "f,b,u,o"];
        for (at, columns) in columns.iter().enumerate() {
            for options in 0..4 {
                let options =
                    SortOptions { descending: options & 1 == 1, nulls_first: options & 2 == 2 };
                let key = |name| PhysicalSortExpr::new(col(name, &schema).unwrap(), options);
                let sort: Vec<_> = columns.split(',').map(key).collect();
                let keys = Keys::new(&sort, &schema).unwrap();
                let mut runs = Vec::new();
                let mut first = 0;
                for some in batches.chunks(1 + at % 4) {
                    let mut run = keys.run(some).unwrap();
                    run.number(first);
                    first += some.len();
                    runs.push(run);
                }
                let cuts = keys.cuts(&runs, 7, 5, 0);
                let merged = cuts.windows(2).flat_map(|cut| keys.merged(&runs, &cut[0], &cut[1]));
                let starts: Vec<usize> = batches
                    .iter()
                    .scan(0, |at, b| Some(std::mem::replace(at, *at + b.num_rows())))
                    .collect();
                let merged: Vec<u64> =
                    merged.map(|(batch, row)| (starts[batch] + row) as u64).collect();
                // Arrow's sort, with the number of the row as the last key.
                let column = |key: &PhysicalSortExpr| SortColumn {
                    values: key.expr.evaluate(&all).unwrap().into_array(all.num_rows()).unwrap(),
                    options: Some(key.options),
                };
                let number: UInt64Array = (0..all.num_rows() as u64).collect();
                let number = SortColumn { values: Arc::new(number), options: None };
                let expected: Vec<_> = sort.iter().map(column).chain([number]).collect();
                let expected = lexsort_to_indices(&expected, None).unwrap();
                let expected: Vec<u64> = expected.values().iter().map(|&i| i.into()).collect();
                assert_eq!(merged, expected, "{columns} {options:?}");
            }
        }
    }
}
