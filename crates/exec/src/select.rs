//! A sink that selects the cells of one result where another result is true.
//!
//! ```text
//! result 0   x     │ 5 1 │ 7 2 │ 0 │      both 1-d, on one grid
//! result 1   keep  │ 1 0 │ 1 1 │ 0 │
//! parts            │ 5   │ 7 2 │   │      a chunk shrinks as soon as both of its halves have arrived
//! finish           │ 5 7 │ 2 │            and the parts become regular chunks
//! ```
//! The selected cells of a chunk take over a part of the chunk's own charge, or are charged beyond the limit for a
//! moment, so the plan never waits for them. When memory is short they are spilled, so a selection may be larger than
//! memory.

use crate::chunk::{Chunk, Field};
use crate::error::Error;
use crate::pool::Pool;
use crate::quota::{Account, Charge, Quota};
use crate::schedule::Sink;
use crate::store::{FinishedChunk, Resident, Store};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tessera_planner::grid::{ChunkIndex, Grid};
use tessera_planner::region::Region;
use tessera_storage::lock;

/// Selects the cells of result 0 where result 1 (`bool`) is true and not masked, in their order.
#[derive(Debug)]
pub struct Select {
    grid: Grid,
    slots: Mutex<BTreeMap<u64, Slot>>,
    room: Room,
}

/// Memory and scratch space for selected cells.
#[derive(Debug, Clone)]
pub struct Room {
    /// The budget.
    pub quota: Arc<Quota>,
    /// The buffer pool.
    pub pool: Arc<Pool>,
    /// The spill store.
    pub store: Arc<Store>,
    /// The account of memory taken here.
    account: Arc<Account>,
}

impl Room {
    /// Creates the room of one part of a statement.
    pub fn new(quota: Arc<Quota>, pool: Arc<Pool>, store: Arc<Store>) -> Self {
        Room { account: quota.account(), quota, pool, store }
    }

    /// Reserves `bytes` bytes of memory.
    ///
    /// # Errors
    /// Errors of [`Account::reserve`].
    pub fn reserve(&self, bytes: u64) -> Result<Charge, Error> {
        self.account.reserve(bytes)
    }

    /// Creates an array whose chunks may be spilled as soon as they are stored.
    ///
    /// # Errors
    /// Errors of [`Resident::charged`].
    pub fn array(&self, grid: Grid) -> Result<Arc<Resident>, Error> {
        let array = Resident::charged(grid, &self.account)?;
        self.store.adopt(&array);
        Ok(array)
    }

    /// Stores a chunk of an array in memory or in a file.
    pub fn put(&self, array: &Resident, number: u64, chunk: Arc<Chunk>) -> Result<(), Error> {
        array.put_held(number, self.store.settle(chunk, &self.quota)?);
        Ok(())
    }

    fn bring(&self, held: FinishedChunk) -> Result<Arc<Chunk>, Error> {
        match held {
            FinishedChunk::Memory(chunk) => Ok(chunk),
            FinishedChunk::File(file) => {
                let charge = self.reserve(file.bytes())?;
                let mut chunk = file.load(&self.pool, &AtomicU64::new(0))?;
                chunk.charge(charge);
                Ok(Arc::new(chunk))
            }
        }
    }
}

#[derive(Debug)]
enum Slot {
    Half([Option<Arc<Chunk>>; 2]),
    Kept(FinishedChunk),
}

impl Select {
    /// Creates a sink for two results on this 1-d grid.
    pub fn new(grid: Grid, room: Room) -> Self {
        Select { grid, slots: Mutex::default(), room }
    }

    /// Returns the selected cells in chunks of `chunk` cells, the last one shorter; no cell if none was selected.
    ///
    /// # Errors
    /// [`Error::ResultTooLarge`] if the quota has no room for a chunk or two; [`Error::Cancelled`]; a missing chunk is
    /// an internal error.
    pub fn finish(&self, chunk: u64, cancelled: &dyn Fn() -> bool) -> Result<Arc<Resident>, Error> {
        let slots = std::mem::take(&mut *lock(&self.slots));
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
        regular(parts, chunk.max(1), &self.room, cancelled)
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
            let mut slots = lock(&self.slots);
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
        let kept = Arc::new(kept(x, &keep, &self.room)?);
        drop(keep);
        let kept = self.room.store.settle(kept, &self.room.quota)?;
        let mut slots = lock(&self.slots);
        slots.insert(number, Slot::Kept(kept));
        Ok(())
    }

    fn waits(&self) -> bool {
        false
    }
}

/// Copies the selected cells of `x` and takes over as much of its charge as they need. If `x` has other holders, its
/// charge stays with them, and the cells are charged beyond the limit if need be: the store then spills them at once.
fn kept(x: Arc<Chunk>, keep: &Chunk, room: &Room) -> Result<Chunk, Error> {
    let flags = keep.field(0)?.values::<u8>()?;
    let valid = keep.fields().get(1).map(|f| f.values::<u8>()).transpose()?;
    let places = SelectedCells { flags, valid };
    let count = places.count();
    let field = |f: &Field| {
        let mut to = room.pool.take(count * f.dtype().size());
        let from = f.buffer().as_slice();
        match f.dtype().size() {
            1 => places.pick::<1>(from, to.as_mut_slice()),
            2 => places.pick::<2>(from, to.as_mut_slice()),
            4 => places.pick::<4>(from, to.as_mut_slice()),
            _ => places.pick::<8>(from, to.as_mut_slice()),
        }
        Field::from_pooled(f.dtype(), to)
    };
    let fields = x.fields().iter().map(field).collect::<Result<Vec<_>, _>>()?;
    let mut out = Chunk::new(&[count as u64], fields)?;
    let own = Arc::try_unwrap(x).ok().and_then(|mut x| x.take_charge());
    let mut charge = own.unwrap_or_else(|| room.quota.account().nothing());
    charge.extend(out.bytes().saturating_sub(charge.bytes()));
    charge.shrink(out.bytes());
    out.charge(charge);
    Ok(out)
}

/// Cells of a block: their numbers fit the first-level cache.
const BLOCK: usize = 1 << 12;

/// The selected cells: flag true and not masked.
struct SelectedCells<'a> {
    flags: &'a [u8],
    valid: Option<&'a [u8]>,
}

impl SelectedCells<'_> {
    /// Calls `f` with the first cell of each block and the flags of its cells, 0 or 1.
    fn blocks(&self, mut f: impl FnMut(usize, &[u8])) {
        let mut both = [0u8; BLOCK];
        for (k, flags) in self.flags.chunks(BLOCK).enumerate() {
            let Some(valid) = self.valid else {
                f(k * BLOCK, flags);
                continue;
            };
            let both = &mut both[..flags.len()];
            let valid = &valid[k * BLOCK..][..flags.len()];
            both.iter_mut().zip(flags).zip(valid).for_each(|((b, f), v)| *b = f & v);
            f(k * BLOCK, both);
        }
    }

    fn count(&self) -> usize {
        let mut count = 0;
        self.blocks(|_, flags| count += flags.iter().map(|f| usize::from(*f)).sum::<usize>());
        count
    }

    /// Copies the selected cells of `N` bytes each, densely.
    fn pick<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
        let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
        let mut numbers = [0u16; BLOCK];
        let mut done = 0;
        self.blocks(|first, flags| {
            // Every number is written, and overwritten if its cell is not selected: no branch to predict.
            let mut many = 0;
            for (i, f) in flags.iter().enumerate() {
                numbers[many] = i as u16;
                many += usize::from(*f);
            }
            let cells = &from[first..first + flags.len()];
            for (to, i) in to[done..done + many].iter_mut().zip(&numbers[..many]) {
                *to = cells[usize::from(*i)];
            }
            done += many;
        });
    }
}

/// Copies 1-d parts, in order, into chunks of equal length; each part is dropped once it is copied.
fn regular(
    parts: Vec<FinishedChunk>,
    chunk: u64,
    room: &Room,
    cancelled: &dyn Fn() -> bool,
) -> Result<Arc<Resident>, Error> {
    let total: u64 = parts.iter().map(FinishedChunk::cells).sum();
    let array = room.array(Grid::regular(&[total], &[chunk.min(total.max(1))]))?;
    // Parts without cells have no dtypes.
    let mut parts = parts.into_iter().filter(|p| p.cells() > 0);
    let mut part = parts.next().map(|p| room.bring(p)).transpose()?;
    let dtypes: Vec<_> = part.iter().flat_map(|p| p.fields().iter().map(Field::dtype)).collect();
    let (mut used, mut done, mut number) = (0u64, 0u64, 0u64);
    while done < total {
        if cancelled() {
            return Err(Error::Cancelled);
        }
        let len = chunk.min(total - done);
        let bytes: u64 = dtypes.iter().map(|d| d.size() as u64 * len).sum();
        let charge = room.reserve(bytes)?;
        let mut buffers: Vec<_> =
            dtypes.iter().map(|d| room.pool.take(len as usize * d.size())).collect();
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
                drop(part.take());
                (part, used) = (parts.next().map(|p| room.bring(p)).transpose()?, 0);
            }
        }
        let fields = dtypes.iter().zip(buffers).map(|(&d, b)| Field::from_pooled(d, b));
        let mut whole = Chunk::new(&[len], fields.collect::<Result<Vec<_>, _>>()?)?;
        whole.charge(charge);
        room.put(&array, number, Arc::new(whole))?;
        done += len;
        number += 1;
    }
    Ok(array)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::dtype::DType;

    fn region(start: u64, len: u64) -> Region {
        Region::at(&[start], &[len])
    }

    fn room(limit: u64, spill: u64, dir: &std::path::Path) -> Room {
        let quota = Quota::new(limit);
        Room::new(quota.clone(), Pool::new(quota, limit), Store::open(dir, spill))
    }

    /// Sends `chunks` chunks of `len` consecutive numbers to a sink, and selects the numbers that 3 does not divide.
    fn fill(sink: &Select, room: &Room, chunks: u64, len: u64) {
        for k in (0..chunks).rev() {
            let numbers: Vec<i64> = ((k * len) as i64..((k + 1) * len) as i64).collect();
            let keep: Vec<u8> = numbers.iter().map(|n| u8::from(n % 3 != 0)).collect();
            let charged = |mut chunk: Chunk| {
                chunk.charge(room.quota.account().try_reserve(chunk.bytes()).unwrap());
                Arc::new(chunk)
            };
            let keep = Field::from_vec(DType::Bool, keep).unwrap();
            let keep = charged(Chunk::new(&[len], [keep]).unwrap());
            let values = charged(Chunk::from_vec(&[len], numbers).unwrap());
            let index: ChunkIndex = [k].as_slice().into();
            sink.chunk(1, index.clone(), region(k * len, len), keep).unwrap();
            sink.chunk(0, index, region(k * len, len), values).unwrap();
        }
    }

    fn cells(array: &Resident, room: &Room) -> Vec<i64> {
        let chunk = |n| room.bring(array.held(n).unwrap()).unwrap();
        (0..array.grid.count())
            .flat_map(|n| chunk(n).field(0).unwrap().values::<i64>().unwrap().to_vec())
            .collect()
    }

    #[test]
    fn selections_larger_than_memory_go_to_files() {
        let dir = tempfile::tempdir().unwrap();
        // 160 KB are selected; memory is 64 KB.
        let r = room(64 << 10, 1 << 20, dir.path());
        let sink = Select::new(Grid::regular(&[30_000], &[1000]), r.clone());
        fill(&sink, &r, 30, 1000);
        assert!(r.store.figures().files > 10 && r.quota.used() <= 64 << 10);
        let array = sink.finish(700, &|| false).unwrap();
        let want: Vec<i64> = (0..30_000).filter(|n| n % 3 != 0).collect();
        assert_eq!(cells(&array, &r), want);
        let (memory, files) = array.places();
        assert_eq!((memory + files, files > 100_000), (160_000, true));
        drop((array, sink));
        assert_eq!((r.quota.used(), r.store.figures().bytes, r.quota.overrun()), (0, 0, 0));
        // A run cancelled halfway leaves nothing either.
        let sink = Select::new(Grid::regular(&[30_000], &[1000]), r.clone());
        fill(&sink, &r, 30, 1000);
        let asked = AtomicU64::new(0);
        let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 5;
        assert_eq!(sink.finish(700, &stop).unwrap_err().code(), "cancelled");
        drop(sink);
        assert_eq!((r.quota.used(), r.store.figures().bytes), (0, 0));
    }

    #[test]
    fn selected_cells_stay_ordered_and_within_the_quota() {
        let dir = tempfile::tempdir().unwrap();
        let r = room(1 << 20, 0, dir.path());
        let quota = r.quota.clone();
        let sink = Select::new(Grid::regular(&[5], &[2]), r.clone());
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
        let array = sink.finish(2, &|| false).unwrap();
        let chunk = |n| r.bring(array.held(n).unwrap()).unwrap();
        let cells = [0, 1].map(|n| chunk(n).field(0).unwrap().values::<i32>().unwrap().to_vec());
        assert_eq!(cells, [vec![5, 7], vec![2]]);
        assert_eq!(quota.used(), 3 * 4);
        drop(array);
        assert_eq!((quota.used(), quota.overrun()), (0, 0));
    }

    #[test]
    fn a_missing_chunk_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let sink = Select::new(Grid::regular(&[4], &[2]), room(1 << 20, 0, dir.path()));
        let x = Arc::new(Chunk::from_vec(&[2], vec![1i64, 2]).unwrap());
        sink.chunk(0, [0].as_slice().into(), region(0, 2), x).unwrap();
        assert_eq!(sink.finish(8, &|| false).unwrap_err().code(), "internal");
    }
}
