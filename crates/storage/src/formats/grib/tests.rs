//! Files of `tests/data/formats/grib` against the cells that eccodes reads, and damaged ones.
#![allow(clippy::unwrap_used, reason = "tests")]

mod damage;
mod headers;
mod messages;
mod remote;
mod shapes;

use crate::source::Options;
use crate::source::error::SourceError;
use crate::source::many::list_of;
use crate::source::tests::{read, run, stores};
use crate::source::{Opened, open};
use tessera_planner::catalog::{CoordValues, Variable};
use tessera_planner::region::{Dims, Region};

fn path(name: &str) -> String {
    format!("{}/../../tests/data/formats/grib/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

fn opened(path: &str) -> Result<Opened, SourceError> {
    run(open(path, &Options::default(), &stores()))
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

#[test]
fn files_of_one_time_each_are_joined_along_it() {
    let all = bytes("cube1.grib");
    let mut messages = Vec::new();
    let mut rest = &all[..];
    while rest.len() > 8 {
        let len = usize::from(rest[4]) << 16 | usize::from(rest[5]) << 8 | usize::from(rest[6]);
        let (message, after) = rest.split_at(len);
        messages.push(message);
        rest = after;
    }
    let dir = tempfile::tempdir().unwrap();
    // The fields differ only in their time: 2024-01-01, 12:00 and 00:00.
    let files = [6, 0].map(|i| {
        let file = dir.path().join(format!("{i}.grib"));
        std::fs::write(&file, messages[i]).unwrap();
        file.to_str().unwrap().to_string()
    });
    let stores = stores();
    for (combine, want) in [
        ("nested", [1_704_110_400.0, 1_704_067_200.0]),
        ("by_coords", [1_704_067_200.0, 1_704_110_400.0]),
    ] {
        let options = Options::parse([("concat", "time"), ("combine", combine)]).unwrap();
        let opened = run(open(&list_of(&files), &options, &stores)).unwrap();
        assert_eq!(labels(&opened, "time").unwrap(), want);
        let t = variable(&opened, "t");
        assert_eq!(dims(t), ["time", "latitude", "longitude"]);
        assert!(!t.attrs.contains_key("time"));
    }
}

fn dims(v: &Variable) -> Vec<&str> {
    v.dims.iter().map(|d| d.as_deref().unwrap()).collect()
}

fn at(start: &[u64], len: &[u64]) -> Region {
    Region::at(&Dims::from_slice(start), &Dims::from_slice(len))
}
