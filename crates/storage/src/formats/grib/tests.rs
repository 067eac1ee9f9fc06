//! Files of `tests/data/formats/grib` against what eccodes reads in them, and damaged ones.
#![allow(clippy::unwrap_used, reason = "tests")]

mod damage;
mod headers;
mod messages;
mod remote;
mod shapes;

use crate::source::Options;
use crate::source::error::SourceError;

use crate::source::{ArrayReader, Opened, Stores, open};
use std::time::Duration;
use tessera_planner::catalog::{CoordValues, Variable};
use tessera_planner::region::{Dims, Region};

fn path(name: &str) -> String {
    format!("{}/../../tests/data/formats/grib/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn run<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

fn opened(path: &str) -> Result<Opened, SourceError> {
    let stores = Stores::with_environment(Duration::from_secs(30), []);
    run(open(path, &Options::default(), &stores))
}

/// Opens bytes as a file.
fn opened_bytes(bytes: &[u8]) -> Result<Opened, SourceError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, bytes).unwrap();
    let out = opened(file.to_str().unwrap());
    // Cells are read later.
    std::mem::forget(dir);
    out
}

fn read(reader: &ArrayReader, region: &Region) -> Result<Vec<u8>, SourceError> {
    let fetched = run(reader.fetch(region))?;
    let mut out = vec![0xA5; region.cells() as usize * reader.source().dtype.size()];
    reader.decode(fetched, region, &mut out)?;
    Ok(out)
}

fn variable<'a>(opened: &'a Opened, name: &str) -> &'a Variable {
    let d = &opened.dataset;
    let mut all = d.variables.iter().chain(&d.auxiliary);
    all.find(|v| &*v.name == name).unwrap_or_else(|| {
        let names: Vec<&str> = d.variables.iter().map(|v| &*v.name).collect();
        panic!("no {name} among {names:?}, {:?}", opened.unsupported)
    })
}

/// The cells of an array, whole.
fn cells(opened: &Opened, name: &str) -> Result<Vec<u8>, SourceError> {
    let v = variable(opened, name);
    read(opened.reader(&v.source).unwrap(), &Region::whole(&v.source.shape))
}

fn floats(cells: &[u8]) -> Vec<f32> {
    cells.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn doubles(cells: &[u8]) -> Vec<f64> {
    cells.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
}

/// The labels of a dimension as numbers; times are seconds since 1970.
fn labels(opened: &Opened, dim: &str) -> Option<Vec<f64>> {
    let coord = opened.dataset.coords.iter().find(|c| &*c.name == dim && *c.dim == *dim)?;
    Some(match &coord.values {
        CoordValues::Int(_, v) => v.iter().map(|v| *v as f64).collect(),
        CoordValues::Float(_, v) => v.to_vec(),
        CoordValues::Time(_, v) => v.iter().map(|us| *us as f64 / 1e6).collect(),
        other => panic!("{dim}: {other:?}"),
    })
}

fn dims(v: &Variable) -> Vec<&str> {
    v.dims.iter().map(|d| d.as_deref().unwrap()).collect()
}

fn at(start: &[u64], len: &[u64]) -> Region {
    Region::at(&Dims::from_slice(start), &Dims::from_slice(len))
}
