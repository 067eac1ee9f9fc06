//! Sort keys that compare fast.
//!
//! ```text
//! ORDER BY a DESC, b      a: int32, nullable    b: float64
//!                         │ 1 bit │ 32 bits     │ 64 bits │     ⇒ a number of 97 bits
//! ```
//! Integers have their sign turned, floats have IEEE 754's total order as in DataFusion's sorts, descending keys are
//! inverted. Keys of more than 128 bits, and texts, are [bytes](encoding), which are sorted by [numbers of some of
//! them](prefixes).

mod encoding;
mod numbers;
mod prefixes;

use super::radix;
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalSortExpr;
use encoding::Encoding;
use numbers::{Number, append, bits};
use prefixes::ByteRun;
use std::cmp::Ordering;

pub(in crate::rows) use encoding::ByteKeys;
pub(in crate::rows) use prefixes::first_bytes;
pub(super) use prefixes::shared;

/// The batch and the row of a key.
pub(super) type Entry = (usize, usize);

/// Where a key's row is: batch and row.
type Place = (u32, u32);

pub(in crate::rows) struct Keys {
    keys: Vec<PhysicalSortExpr>,
    kind: Kind,
}

enum Kind {
    /// Numbers of 64 bits: the bits of each key, and whether it has one more for NULL.
    Narrow(Vec<(u32, bool)>),
    /// The same with 128 bits.
    Wide(Vec<(u32, bool)>),
    Bytes(Encoding),
}

/// The keys of a batch's rows, in the order of the rows.
pub(in crate::rows) enum RowKeys {
    Narrow(Vec<u64>),
    Wide(Vec<u128>),
    Bytes(ByteKeys),
}

/// Sorted keys of some batches.
pub(super) enum Run {
    Narrow(Vec<(u64, Place)>),
    Wide(Vec<(u128, Place)>),
    Bytes(ByteRun),
}

impl Run {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Run::Narrow(sorted) => size_of_val(sorted.as_slice()),
            Run::Wide(sorted) => size_of_val(sorted.as_slice()),
            Run::Bytes(run) => run.bytes(),
        }
    }

    /// Numbers the run's batches from `first`.
    pub(super) fn number(&mut self, first: usize) {
        let by = first as u32;
        match self {
            Run::Narrow(sorted) => sorted.iter_mut().for_each(|(_, place)| place.0 += by),
            Run::Wide(sorted) => sorted.iter_mut().for_each(|(_, place)| place.0 += by),
            Run::Bytes(run) => run.number(by),
        }
    }

    /// A key without its last bits; all keys that are bytes are equal.
    fn first(&self, at: usize, behind: u32) -> u128 {
        match self {
            Run::Narrow(sorted) => u128::from(sorted[at].0) >> behind,
            Run::Wide(sorted) => sorted[at].0 >> behind,
            Run::Bytes(_) => 0,
        }
    }

    fn len(&self) -> usize {
        match self {
            Run::Narrow(sorted) => sorted.len(),
            Run::Wide(sorted) => sorted.len(),
            Run::Bytes(run) => run.len(),
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
            _ => Kind::Bytes(Encoding::new(&keys, schema)?),
        };
        Ok(Keys { keys, kind })
    }

    pub(in crate::rows) fn of_rows(&self, batch: &RecordBatch) -> Result<RowKeys> {
        let columns = self.columns(batch, self.keys.len())?;
        Ok(match &self.kind {
            Kind::Narrow(widths) => RowKeys::Narrow(self.row_numbers(&columns, widths)?),
            Kind::Wide(widths) => RowKeys::Wide(self.row_numbers(&columns, widths)?),
            Kind::Bytes(encoding) => RowKeys::Bytes(encoding.keys(&columns)?),
        })
    }

    fn columns(&self, batch: &RecordBatch, count: usize) -> Result<Vec<ArrayRef>> {
        let column =
            |key: &PhysicalSortExpr| key.expr.evaluate(batch)?.into_array(batch.num_rows());
        self.keys.iter().take(count).map(column).collect()
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

    /// As [`Keys::of_rows`]. If `whole` is not 0, only the first `whole` keys count: the bits of the others are 0, and
    /// their bytes are left out.
    pub(super) fn first_of_rows(&self, batch: &RecordBatch, whole: usize) -> Result<RowKeys> {
        if let Kind::Bytes(encoding) = &self.kind
            && whole > 0
        {
            return Ok(RowKeys::Bytes(encoding.keys(&self.columns(batch, whole)?)?));
        }
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
        let all = batches.iter().map(|batch| self.columns(batch, self.keys.len()));
        let all = all.collect::<Result<Vec<_>>>()?;
        Ok(match &self.kind {
            Kind::Narrow(widths) => Run::Narrow(self.numbers(&all, widths)?),
            Kind::Wide(widths) => Run::Wide(self.numbers(&all, widths)?),
            Kind::Bytes(encoding) => {
                let keys = all.iter().map(|columns| encoding.keys(columns));
                Run::Bytes(ByteRun::new(keys.collect::<Result<_>>()?, encoding.end()))
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
        // Entries are in the order of their places.
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
        let has_columns = match &self.kind {
            Kind::Narrow(_) | Kind::Wide(_) => true,
            Kind::Bytes(encoding) => encoding.has_columns(),
        };
        keys > 0 && keys <= self.keys.len() && has_columns
    }

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
        let mut chosen: Vec<(usize, usize)> = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            let step = run.len().div_ceil(samples).max(1);
            chosen.extend((step / 2..run.len()).step_by(step).map(|at| (i, at)));
        }
        chosen.sort_unstable_by(|a, b| compare(runs, *a, *b));
        let mut cuts = vec![vec![0; runs.len()]];
        for part in 1..parts {
            let Some(&bound) = chosen.get(part * chosen.len() / parts) else { break };
            let cut = runs.iter().enumerate().map(|(i, run)| match (run, &runs[bound.0]) {
                (Run::Bytes(run), Run::Bytes(of)) => self.before(run, of, bound.1, whole),
                _ => self.before_number(runs, i, bound, whole),
            });
            let cut = cut.collect();
            if cuts.last() != Some(&cut) {
                cuts.push(cut);
            }
        }
        cuts.push(runs.iter().map(Run::len).collect());
        cuts
    }

    /// The entries of a run before an entry of another one, or before all rows with its first `whole` keys.
    fn before(&self, run: &ByteRun, of: &ByteRun, at: usize, whole: usize) -> usize {
        let place = of.place(at);
        let key = of.key(place);
        match &self.kind {
            Kind::Bytes(encoding) if whole > 0 => run.before(encoding.first(key, whole), (0, 0)),
            _ => run.before(key, place),
        }
    }

    /// As [`Keys::before`], for keys that are numbers.
    fn before_number(
        &self,
        runs: &[Run],
        run: usize,
        bound: (usize, usize),
        whole: usize,
    ) -> usize {
        let behind = self.bits_behind(whole);
        let (mut low, mut high) = (0, runs[run].len());
        while low < high {
            let middle = (low + high) / 2;
            let order = match whole {
                0 => compare(runs, (run, middle), bound),
                _ => runs[run].first(middle, behind).cmp(&runs[bound.0].first(bound.1, behind)),
            };
            match order {
                Ordering::Less => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// The places of the entries between two cuts, sorted.
    pub(super) fn merged(&self, runs: &[Run], from: &[usize], to: &[usize]) -> Vec<Entry> {
        let (mut narrow, mut wide, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for ((run, &from), &to) in runs.iter().zip(from).zip(to) {
            match run {
                Run::Narrow(sorted) => narrow.extend_from_slice(&sorted[from..to]),
                Run::Wide(sorted) => wide.extend_from_slice(&sorted[from..to]),
                Run::Bytes(run) => bytes.push(run),
            }
        }
        // Runs are in the order of their batches. The stable sorts find them and may merge them.
        radix::sort(&mut narrow);
        radix::sort(&mut wide);
        if let Kind::Bytes(encoding) = &self.kind {
            wide = prefixes::merged(&bytes, from, to, encoding.end());
        }
        let places = narrow.into_iter().map(|(_, place)| place);
        let places = places.chain(wide.into_iter().map(|(_, place)| place));
        places.map(|(batch, row)| (batch as usize, row as usize)).collect()
    }
}

/// The bits of some keys.
fn total(widths: &[(u32, bool)]) -> u32 {
    widths.iter().map(|(bits, is_nullable)| bits + u32::from(*is_nullable)).sum()
}

fn compare(runs: &[Run], a: (usize, usize), b: (usize, usize)) -> Ordering {
    match (&runs[a.0], &runs[b.0]) {
        (Run::Narrow(left), Run::Narrow(right)) => left[a.1].cmp(&right[b.1]),
        (Run::Wide(left), Run::Wide(right)) => left[a.1].cmp(&right[b.1]),
        (Run::Bytes(left), Run::Bytes(right)) => {
            let (x, y) = (left.place(a.1), right.place(b.1));
            left.key(x).cmp(right.key(y)).then(x.cmp(&y))
        }
        // All runs of a sort are of one kind.
        _ => a.cmp(&b),
    }
}

#[cfg(test)]
mod tests;
