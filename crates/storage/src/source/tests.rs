//! The fixtures in `tests/data`, read as zarr-python, NumPy and xarray read them (`tests/make_expected.py`).
#![allow(clippy::unwrap_used, reason = "tests")]

mod archives;
mod bad;
mod changed;
pub(crate) mod cloud;
mod clouds;
mod fixtures;
mod hand_made;
mod kept;
mod requests;
mod s3;
mod table_store;
mod texts;
mod thin;
mod web;

use super::*;
use std::time::Duration;
use tessera_planner::region::Region;

/// A path below `tests/data` of the repository.
fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Stores of a process without an environment.
pub(crate) fn stores() -> Stores {
    Stores::with_environment(Duration::from_secs(30), [])
}

pub(crate) fn run<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

/// Pseudo-random numbers of a seed (xorshift64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn open_local(path: &str) -> Result<Opened, SourceError> {
    run(open(path, &Options::default(), &stores()))
}

/// Reads the cells of a region in one step.
pub(crate) fn read(reader: &ArrayReader, region: &Region) -> Result<Vec<u8>, SourceError> {
    let fetched = run(reader.fetch(region))?;
    let mut out = vec![0xA5; region.cells() as usize * reader.source().dtype.size()];
    reader.decode(fetched, region, &mut out)?;
    Ok(out)
}

fn whole(reader: &ArrayReader) -> Vec<u8> {
    read(reader, &Region::whole(&reader.source().shape)).unwrap()
}
