//! A sink that collects the distinct values of a result and their counts.
//!
//! A cell becomes a 64-bit key that is ordered as NumPy sorts: numbers ascending, NaN last, both zeros equal. A chunk
//! is sorted and counted, and runs of about equal length are merged as in a merge sort, so a value is handled
//! `log(chunks)` times. Which runs are merged depends on the order of arrival; the result does not.

use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::quota::{Account, Charge, Quota};
use crate::schedule::Sink;
use std::sync::{Arc, Mutex};
use tessera_kernels::sort;
use tessera_planner::dtype::DType;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::region::Region;
use tessera_storage::lock;

/// Collects the distinct values of result 0; masked cells are skipped.
#[derive(Debug)]
pub struct Distinct {
    dtype: DType,
    account: Arc<Account>,
    runs: Mutex<Vec<SortedKeys>>,
}

/// Distinct keys in ascending order, with their counts.
#[derive(Debug)]
struct SortedKeys {
    keys: Vec<u64>,
    counts: Vec<i64>,
    charge: Option<Charge>,
}

impl SortedKeys {
    fn bytes(&self) -> u64 {
        16 * self.keys.len() as u64
    }
}

impl Distinct {
    /// Creates a sink for a result of type `dtype`.
    pub fn new(dtype: DType, quota: &Arc<Quota>) -> Self {
        Distinct { dtype, account: quota.account(), runs: Mutex::default() }
    }

    /// Returns the values and the counts (`int64`), both 1-d, each in chunks of `chunk` cells.
    ///
    /// # Errors
    /// [`Error::ResultTooLarge`] if the quota has no room for them, [`Error::MemoryTaken`] if others hold it.
    pub fn finish(&self, chunk: u64) -> Result<[Vec<Arc<Chunk>>; 2], Error> {
        let mut runs = std::mem::take(&mut *lock(&self.runs));
        let mut all =
            runs.pop().unwrap_or(SortedKeys { keys: vec![], counts: vec![], charge: None });
        while let Some(run) = runs.pop() {
            all = self.merge(all, run)?;
        }
        let chunk = chunk.max(1) as usize;
        let (mut values, mut counts) = (Vec::new(), Vec::new());
        for (keys, number) in all.keys.chunks(chunk).zip(all.counts.chunks(chunk)) {
            let shape = [keys.len() as u64];
            let field = Field::new(self.dtype, self.cells(keys))?;
            values.push(Arc::new(self.charged(Chunk::new(&shape, [field])?)?));
            let numbers = Chunk::from_vec(&shape, number.to_vec())?;
            counts.push(Arc::new(self.charged(numbers)?));
        }
        Ok([values, counts])
    }

    fn charged(&self, mut chunk: Chunk) -> Result<Chunk, Error> {
        chunk.charge(self.account.reserve(chunk.bytes())?);
        Ok(chunk)
    }

    /// Reserves memory for a run while the plan runs. Other work may hold the whole quota for a moment, so the
    /// missing bytes are counted beyond the limit as long as the runs alone stay below it.
    fn room(&self, bytes: u64) -> Result<Charge, Error> {
        match self.account.reserve(bytes) {
            Err(Error::MemoryTaken { .. }) => {
                let mut charge = self.account.nothing();
                charge.extend(bytes);
                Ok(charge)
            }
            result => result,
        }
    }

    fn merge(&self, a: SortedKeys, b: SortedKeys) -> Result<SortedKeys, Error> {
        let charge = self.room(a.bytes() + b.bytes())?;
        let (mut keys, mut counts) = (Vec::new(), Vec::new());
        keys.reserve(a.keys.len() + b.keys.len());
        counts.reserve(a.keys.len() + b.keys.len());
        let (mut i, mut j) = (0, 0);
        while i < a.keys.len() || j < b.keys.len() {
            let x = a.keys.get(i).copied();
            let y = b.keys.get(j).copied();
            let from_a = x.is_some_and(|x| y.is_none_or(|y| x <= y));
            let from_b = y.is_some_and(|y| x.is_none_or(|x| y <= x));
            let key = if from_a { x } else { y };
            let Some(key) = key else { break };
            let mut count = 0;
            if from_a {
                count += a.counts[i];
                i += 1;
            }
            if from_b {
                count += b.counts[j];
                j += 1;
            }
            keys.push(key);
            counts.push(count);
        }
        keys.shrink_to_fit();
        counts.shrink_to_fit();
        let mut run = SortedKeys { keys, counts, charge: None };
        let mut charge = charge;
        charge.shrink(run.bytes());
        run.charge = Some(charge);
        Ok(run)
    }

    /// Converts keys back to cells.
    fn cells(&self, keys: &[u64]) -> arrow::buffer::Buffer {
        let mut bytes = Vec::with_capacity(keys.len() * self.dtype.size());
        for &key in keys {
            match self.dtype {
                DType::Float32 => {
                    bytes.extend_from_slice(&(unorder(key) as f32).to_le_bytes());
                }
                DType::Float64 => bytes.extend_from_slice(&unorder(key).to_le_bytes()),
                d if d.is_unsigned() || d == DType::Bool => {
                    bytes.extend_from_slice(&key.to_le_bytes()[..d.size()]);
                }
                d => bytes.extend_from_slice(&(key ^ SIGN).to_le_bytes()[..d.size()]),
            }
        }
        arrow::buffer::Buffer::from_slice_ref(&bytes)
    }

    /// Returns the keys of the cells that are not masked.
    fn keys(&self, chunk: &Chunk) -> Result<Vec<u64>, Error> {
        let field = chunk.field(0)?;
        let valid = chunk.fields().get(1).map(|f| f.values::<u8>()).transpose()?;
        let is_valid = |i: usize| valid.is_none_or(|v| v[i] != 0);
        macro_rules! keys {
            ($t:ty, $key:expr) => {
                field
                    .values::<$t>()?
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| is_valid(*i))
                    .map(|(_, &v)| $key(v))
                    .collect()
            };
        }
        let signed = |v: i64| v as u64 ^ SIGN;
        Ok(match self.dtype {
            DType::Bool | DType::UInt8 => keys!(u8, u64::from),
            DType::UInt16 => keys!(u16, u64::from),
            DType::UInt32 => keys!(u32, u64::from),
            DType::UInt64 => keys!(u64, |v| v),
            DType::Int8 => keys!(i8, |v| signed(i64::from(v))),
            DType::Int16 => keys!(i16, |v| signed(i64::from(v))),
            DType::Int32 => keys!(i32, |v| signed(i64::from(v))),
            DType::Int64 | DType::Datetime(_) => keys!(i64, signed),
            DType::Float32 => keys!(f32, |v| order(f64::from(v))),
            DType::Float64 => keys!(f64, order),
        })
    }
}

const SIGN: u64 = 1 << 63;

/// Returns a key in the order of floats: negative ones with all bits flipped, others above them, any NaN above all.
pub fn order(v: f64) -> u64 {
    if v.is_nan() {
        return u64::MAX;
    }
    // Adding 0 turns -0 into 0.
    let bits = (v + 0.0).to_bits();
    if bits & SIGN != 0 { !bits } else { bits | SIGN }
}

/// Inverse of [`order`].
pub fn unorder(key: u64) -> f64 {
    if key == u64::MAX {
        return f64::NAN;
    }
    f64::from_bits(if key & SIGN != 0 { key & !SIGN } else { !key })
}

impl Sink for Distinct {
    fn chunk(
        &self,
        _result: usize,
        _index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let mut keys = self.keys(&chunk)?;
        drop(chunk);
        sort::sort_keys(&mut keys);
        let mut counts: Vec<i64> = Vec::new();
        let mut last = None;
        keys.retain(|&key| {
            let is_new = last != Some(key);
            last = Some(key);
            match counts.last_mut() {
                Some(count) if !is_new => *count += 1,
                _ => counts.push(1),
            }
            is_new
        });
        keys.shrink_to_fit();
        counts.shrink_to_fit();
        let mut run = SortedKeys { keys, counts, charge: None };
        run.charge = Some(self.room(run.bytes())?);
        // Merging happens outside the lock: a run that is removed from the list belongs to this thread.
        loop {
            let partner = {
                let mut runs = lock(&self.runs);
                match runs.iter().position(|r| r.keys.len() <= 2 * run.keys.len()) {
                    Some(at) => runs.swap_remove(at),
                    None => {
                        runs.push(run);
                        return Ok(());
                    }
                }
            };
            run = self.merge(run, partner)?;
        }
    }

    fn waits(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn send(sink: &Distinct, fields: Vec<Field>) {
        let n = fields[0].len() as u64;
        let chunk = Arc::new(Chunk::new(&[n], fields).unwrap());
        sink.chunk(0, [0].as_slice().into(), Region::at(&[0], &[n]), chunk).unwrap();
    }

    #[test]
    fn floats_are_sorted_as_numpy_does() {
        let quota = Quota::new(1 << 20);
        let sink = Distinct::new(DType::Float64, &quota);
        let nan = f64::NAN;
        for values in [vec![2.0, nan, -0.0, -1.5], vec![0.0, -nan, f64::INFINITY, 2.0]] {
            send(&sink, vec![Field::from_vec(DType::Float64, values).unwrap()]);
        }
        let [values, counts] = sink.finish(4).unwrap();
        let values: Vec<f64> = values
            .iter()
            .flat_map(|c| c.field(0).unwrap().values::<f64>().unwrap().to_vec())
            .collect();
        let counts: Vec<i64> = counts
            .iter()
            .flat_map(|c| c.field(0).unwrap().values::<i64>().unwrap().to_vec())
            .collect();
        assert_eq!(values[..4], [-1.5, 0.0, 2.0, f64::INFINITY]);
        assert!(values[4].is_nan() && values.len() == 5);
        assert!(values[1].is_sign_positive());
        assert_eq!(counts, [1, 2, 2, 1, 2]);
        drop(sink);
    }

    #[test]
    fn integers_keep_their_signs_and_masks_are_skipped() {
        let quota = Quota::new(1 << 20);
        let sink = Distinct::new(DType::Int16, &quota);
        let values = Field::from_vec(DType::Int16, vec![3i16, -7, 3, i16::MIN, 9]).unwrap();
        let valid = Field::from_vec(DType::Bool, vec![1u8, 1, 1, 1, 0]).unwrap();
        send(&sink, vec![values, valid]);
        let [values, counts] = sink.finish(100).unwrap();
        assert_eq!(values[0].field(0).unwrap().values::<i16>().unwrap(), [i16::MIN, -7, 3]);
        assert_eq!(counts[0].field(0).unwrap().values::<i64>().unwrap(), [1, 1, 2]);
        drop((values, counts, sink));
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn more_values_than_the_limit_are_reported() {
        let quota = Quota::new(1 << 10);
        let sink = Distinct::new(DType::Int64, &quota);
        let field = Field::from_vec(DType::Int64, (0..1000i64).collect()).unwrap();
        let chunk = Arc::new(Chunk::new(&[1000], [field]).unwrap());
        let region = Region::at(&[0], &[1000]);
        let error = sink.chunk(0, [0].as_slice().into(), region, chunk).unwrap_err();
        assert_eq!(error.code(), "memory_exceeded");
    }
}
