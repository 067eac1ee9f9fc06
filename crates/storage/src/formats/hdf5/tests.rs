//! The samples in `tests/data/formats/hdf5`, read as h5py and netCDF4 read them (`make.py` there).
#![allow(clippy::unwrap_used, reason = "tests")]

mod damaged;
mod samples;

use crate::formats::hdf5::Hdf5;
use crate::formats::view::{Fault, View};
use crate::formats::{Format, Group};
use crate::source::tests::{run, stores};
use crate::source::{Opened, Options, SourceError, open};

/// The samples.
const SAMPLES: [&str; 10] = [
    "chunks_new.h5",
    "chunks_old.h5",
    "filters.h5",
    "groups_new.h5",
    "groups_old.h5",
    "netcdf4.nc",
    "netcdf4_classic.nc",
    "scales.h5",
    "types_new.h5",
    "types_old.h5",
];

fn path(name: &str) -> String {
    format!("{}/../../tests/data/formats/hdf5/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

/// Opens a group of a file, without CF's decoding.
fn open_raw(path: &str, group: &str) -> Result<Opened, SourceError> {
    let options = Options { decode_cf: false, ..Options::default() };
    run(open(&format!("{path}#{group}"), &options, &stores()))
}

fn group(bytes: &[u8], group: &str) -> Result<Option<Group>, Fault> {
    let view = View::whole(bytes);
    Hdf5.read(&view, group)
}
