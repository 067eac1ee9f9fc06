//! A sink that keeps the cells of one result for which another result is true.
//!
//! ```text
//! result 0   x     │ 5 1 │ 7 2 │ 0 │      both 1-d, on one grid
//! result 1   keep  │ 1 0 │ 1 1 │ 0 │
//! parts            │ 5   │ 7 2 │   │      a chunk shrinks as soon as both of its halves are there
//! finish           │ 5 7 │ 2 │            and the parts become regular chunks
//! ```
//! What a chunk keeps takes over a part of the chunk's own charge, so the quota never has to find room for it while
//! the plan runs.

use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::pool::Pool;
use crate::quota::Quota;
use crate::schedule::Sink;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::region::Region;

/// Keeps the cells of result 0 where result 1 (`bool`) is true and not masked, in their order.
#[derive(Debug)]
pub struct Select {
    grid: Grid,
    slots: Mutex<BTreeMap<u64, Slot>>,
}

/// What there is of one chunk.
#[derive(Debug)]
enum Slot {
    Half([Option<Arc<Chunk>>; 2]),
    Kept(Arc<Chunk>),
}

impl Select {
    /// For two results on this 1-d grid.
    pub fn new(grid: Grid) -> Self {
        Select { grid, slots: Mutex::default() }
    }

    /// The kept cells in chunks of `chunk` cells, the last one shorter; none if nothing was kept.
    ///
    /// # Errors
    /// [`Error::ResultTooLarge`] if the quota has no room for one chunk beside what was kept; a chunk that never came is
    /// a fault of ours.
    pub fn finish(
        &self,
        chunk: u64,
        pool: &Arc<Pool>,
        quota: &Arc<Quota>,
    ) -> Result<Vec<Arc<Chunk>>, Error> {
        let slots = std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
        if slots.len() as u64 != self.grid.count() {
            return Err(Error::Broken { what: "a chunk of a selection is missing".into() });
        }
        let parts = slots
            .into_values()
            .map(|slot| match slot {
                Slot::Kept(part) => Ok(part),
                Slot::Half(_) => {
                    Err(Error::Broken { what: "half a chunk of a selection is missing".into() })
                }
            })
            .collect::<Result<Vec<_>, _>>()?;
        regular(parts, chunk.max(1), pool, quota)
    }
}

impl Sink for Select {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        _region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let number = self.grid.ravel(&index);
        let both = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            let slot = slots.entry(number).or_insert(Slot::Half([None, None]));
            let Slot::Half(halves) = slot else {
                return Err(Error::Broken { what: "a chunk of a selection came twice".into() });
            };
            halves[result] = Some(chunk);
            match halves {
                [Some(_), Some(_)] => std::mem::take(halves),
                _ => return Ok(()),
            }
        };
        let [Some(x), Some(keep)] = both else { return Ok(()) };
        let kept = Arc::new(kept(x, &keep)?);
        drop(keep);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.insert(number, Slot::Kept(kept));
        Ok(())
    }

    fn waits(&self) -> bool {
        false
    }
}

/// The cells that `keep` keeps, with as much of the charge of `x` as they need.
fn kept(x: Arc<Chunk>, keep: &Chunk) -> Result<Chunk, Error> {
    let flags = keep.field(0)?.values::<u8>()?;
    let valid = keep.fields().get(1).map(|f| f.values::<u8>()).transpose()?;
    let chosen = |i: usize| flags[i] != 0 && valid.is_none_or(|v| v[i] != 0);
    let places: Vec<u32> = (0..flags.len()).filter(|&i| chosen(i)).map(|i| i as u32).collect();
    let fields = x.fields().iter().map(|f| picked(f, &places)).collect::<Result<Vec<_>, _>>()?;
    let mut out = Chunk::new(&[places.len() as u64], fields)?;
    // A chunk that somebody else holds too stays charged to them; what is kept of it was copied.
    if let Ok(mut x) = Arc::try_unwrap(x)
        && let Some(mut charge) = x.take_charge()
    {
        charge.shrink(out.bytes());
        out.charge(charge);
    }
    Ok(out)
}

/// Some values of a field.
fn picked(field: &Field, places: &[u32]) -> Result<Field, Error> {
    fn copy<const N: usize>(from: &[u8], places: &[u32]) -> Vec<u8> {
        let mut out = Vec::with_capacity(places.len() * N);
        for &p in places {
            out.extend_from_slice(&from[p as usize * N..(p as usize + 1) * N]);
        }
        out
    }
    let from = field.buffer().as_slice();
    let bytes = match field.dtype().size() {
        1 => copy::<1>(from, places),
        2 => copy::<2>(from, places),
        4 => copy::<4>(from, places),
        _ => copy::<8>(from, places),
    };
    Field::new(field.dtype(), arrow::buffer::Buffer::from_slice_ref(&bytes))
}

/// 1-d parts, one after the other, in chunks of equal length; each part is let go once it is copied.
pub(crate) fn regular(
    parts: Vec<Arc<Chunk>>,
    chunk: u64,
    pool: &Arc<Pool>,
    quota: &Arc<Quota>,
) -> Result<Vec<Arc<Chunk>>, Error> {
    let total: u64 = parts.iter().map(|p| p.cells()).sum();
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let dtypes: Vec<_> = first.fields().iter().map(Field::dtype).collect();
    let account = quota.account();
    let mut out = Vec::with_capacity(total.div_ceil(chunk) as usize);
    let mut parts = parts.into_iter();
    let (mut part, mut used) = (parts.next(), 0u64);
    let mut done = 0u64;
    while done < total {
        let len = chunk.min(total - done);
        let bytes: u64 = dtypes.iter().map(|d| d.size() as u64 * len).sum();
        let charge = account.try_reserve(bytes).ok_or(Error::ResultTooLarge {
            result_bytes: quota.used().saturating_add(bytes),
            limit_bytes: quota.limit(),
        })?;
        let mut buffers: Vec<_> =
            dtypes.iter().map(|d| pool.take(len as usize * d.size())).collect();
        let mut at = 0u64;
        while at < len {
            let Some(from) = &part else {
                return Err(Error::Broken { what: "parts of a selection ran out".into() });
            };
            let n = (len - at).min(from.cells() - used);
            for (buffer, field) in buffers.iter_mut().zip(from.fields()) {
                let size = field.dtype().size();
                let to = at as usize * size..(at + n) as usize * size;
                let source = used as usize * size..(used + n) as usize * size;
                buffer.as_mut_slice()[to].copy_from_slice(&field.buffer().as_slice()[source]);
            }
            at += n;
            used += n;
            if used == from.cells() {
                (part, used) = (parts.next(), 0);
            }
        }
        let fields = dtypes.iter().zip(buffers).map(|(&d, b)| Field::from_pooled(d, b));
        let mut whole = Chunk::new(&[len], fields.collect::<Result<Vec<_>, _>>()?)?;
        whole.charge(charge);
        out.push(Arc::new(whole));
        done += len;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::dtype::DType;

    fn region(start: u64, len: u64) -> Region {
        Region::at(&[start], &[len])
    }

    #[test]
    fn what_is_kept_stays_in_order_and_in_the_quota() {
        let quota = Quota::new(1 << 20);
        let pool = Pool::new(quota.clone(), 1 << 20);
        let grid = Grid::regular(&[5], &[2]);
        let sink = Select::new(grid.clone());
        let x = [vec![5i32, 1], vec![7, 2], vec![9]];
        let keep = [vec![1u8, 0], vec![1, 1], vec![1]];
        // The last chunk is masked where its flag is true.
        for k in [2usize, 0, 1] {
            let len = x[k].len() as u64;
            let mut values = Chunk::from_vec(&[len], x[k].clone()).unwrap();
            values.charge(quota.account().try_reserve(values.bytes()).unwrap());
            let flags = Field::from_vec(DType::Bool, keep[k].clone()).unwrap();
            let valid = Field::from_vec(DType::Bool, vec![u8::from(k < 2); x[k].len()]).unwrap();
            let flags = Chunk::new(&[len], [flags, valid]).unwrap();
            let index: ChunkIndex = [k as u64].as_slice().into();
            sink.chunk(1, index.clone(), region(0, len), Arc::new(flags)).unwrap();
            sink.chunk(0, index, region(0, len), Arc::new(values)).unwrap();
        }
        assert_eq!(quota.used(), 3 * 4, "only what is kept is charged");
        let chunks = sink.finish(2, &pool, &quota).unwrap();
        let cells: Vec<Vec<i32>> =
            chunks.iter().map(|c| c.field(0).unwrap().values::<i32>().unwrap().to_vec()).collect();
        assert_eq!(cells, [vec![5, 7], vec![2]]);
        assert_eq!(quota.used(), 3 * 4);
        drop(chunks);
        assert_eq!((quota.used(), quota.overrun()), (0, 0));
    }

    #[test]
    fn a_chunk_that_never_came_is_told() {
        let quota = Quota::new(1 << 20);
        let pool = Pool::new(quota.clone(), 0);
        let sink = Select::new(Grid::regular(&[4], &[2]));
        let x = Arc::new(Chunk::from_vec(&[2], vec![1i64, 2]).unwrap());
        sink.chunk(0, [0].as_slice().into(), region(0, 2), x).unwrap();
        assert_eq!(sink.finish(8, &pool, &quota).unwrap_err().code(), "internal");
    }
}
