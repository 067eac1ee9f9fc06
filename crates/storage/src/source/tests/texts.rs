//! `tests/data/texts`: texts that are no labels, as xarray reads them (`tests/data/make_texts.py`).

use super::*;
use std::fs;
use tessera_planner::catalog::{Coord, CoordValues, Dataset};

fn opened(name: &str) -> Opened {
    open_local(&data(&format!("texts/{name}"))).unwrap()
}

/// The texts of that name, and the dimension of each.
fn texts<'a>(dataset: &'a Dataset, name: &str) -> (Option<&'a str>, Vec<Option<&'a str>>) {
    let find = |all: &'a [Arc<Coord>]| all.iter().find(|c| &*c.name == name);
    let (dim, coord) = match (find(&dataset.coords), find(&dataset.scalars)) {
        (Some(coord), None) => (Some(&*coord.dim), coord),
        (None, Some(scalar)) => (None, scalar),
        other => panic!("{name}: {other:?}"),
    };
    match &coord.values {
        CoordValues::Text(texts) => (dim, texts.options().collect()),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn texts_beside_the_labels_of_a_dimension_are_coordinates() {
    for name in ["classic.nc", "netcdf4.nc", "zarr2.zarr", "zarr3.zarr"] {
        let opened = opened(name);
        let dataset = &opened.dataset;
        let station = Some("station");
        let names = vec![Some("Oslo"), Some("Köln"), None, Some("Oslo"), Some("")];
        assert_eq!(texts(dataset, "station_name"), (station, names), "{name}");
        let networks = ["A", "B", "A", "A", "B"].map(Some).to_vec();
        assert_eq!(texts(dataset, "network"), (station, networks), "{name}");
        assert_eq!(texts(dataset, "centre"), (None, vec![Some("Zürich")]), "{name}");
        let variables: Vec<&str> = dataset.variables.iter().map(|v| &*v.name).collect();
        assert_eq!(variables, ["height", "t"], "{name}");
        // Texts of two dimensions have no form.
        let unread: Vec<&str> = opened.unsupported.keys().map(String::as_str).collect();
        assert_eq!(unread, if name.ends_with("zarr") { vec!["pairs"] } else { vec![] }, "{name}");
    }
}

#[test]
fn without_decoding_a_marker_is_a_text() {
    let options = Options { decode_cf: false, ..Options::default() };
    for name in ["classic.nc", "netcdf4.nc", "zarr2.zarr", "zarr3.zarr"] {
        let opened = run(open(&data(&format!("texts/{name}")), &options, &stores())).unwrap();
        assert_eq!(texts(&opened.dataset, "station_name").1[2], Some("NA"), "{name}");
    }
}

#[test]
fn cells_of_chunks_that_are_not_stored_are_in_their_places() {
    let (two, three) = (opened("zarr2.zarr"), opened("zarr3.zarr"));
    let absent = vec![Some("a"), Some("b"), Some("c"), Some("d"), None];
    assert_eq!(texts(&two.dataset, "alias").1, absent);
    let sharded = vec![Some("a"), Some(""), Some("c"), Some(""), Some("e")];
    assert_eq!(texts(&three.dataset, "alias").1, sharded);
    let bytes = vec![Some("o1"), Some("k"), Some("x9"), Some("o2"), Some("")];
    assert_eq!(texts(&two.dataset, "code").1, bytes);
    assert_eq!(texts(&three.dataset, "code").1, bytes);
}

#[test]
fn a_single_array_may_be_texts() {
    let opened = opened("zarr3.zarr/network");
    let networks = ["A", "B", "A", "A", "B"].map(Some).to_vec();
    assert_eq!(texts(&opened.dataset, "network"), (Some("station"), networks));
    let error = open_local(&data("texts/zarr3.zarr/pairs")).unwrap_err();
    assert_eq!(error.code(), "unsupported_dtype", "{error}");
}

#[test]
fn damaged_texts_disturb_no_other_array() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("latin1.nc");
    let all = fs::read(data("texts/classic.nc")).unwrap();
    // Köln in Latin-1.
    let mut damaged = all.clone();
    let at = all.windows(5).position(|w| w == "Köln".as_bytes()).unwrap();
    damaged[at..at + 5].copy_from_slice(b"K\xf6ln\0");
    fs::write(&file, damaged).unwrap();
    let opened = open_local(file.to_str().unwrap()).unwrap();
    let why = opened.unsupported["station_name"].to_string();
    assert!(why.contains("UTF-8"), "{why}");
    assert_eq!(opened.dataset.unreadable[0].dims, [(Some(Arc::from("station")), 5)]);
    assert_eq!(texts(&opened.dataset, "network").0, Some("station"));
    assert_eq!(opened.dataset.variables.len(), 2);
}

#[test]
fn texts_of_several_files_are_those_of_all() {
    let several = |pattern: &str, concat: Option<&str>| {
        let options = Options { concat: concat.map(String::from), ..Options::default() };
        run(open(&data(&format!("texts/{pattern}")), &options, &stores())).unwrap()
    };
    let same = several("day*.nc", None);
    assert_eq!(texts(&same.dataset, "station_name").1.len(), 5);
    assert_eq!(texts(&same.dataset, "centre"), (None, vec![Some("Zürich")]));
    assert!(same.dataset.unreadable.is_empty());
    let moved = several("moved*.nc", None);
    let [unread] = moved.dataset.unreadable.as_slice() else { panic!() };
    assert_eq!((&*unread.name, unread.code), ("station_name", "no_labels"));
    let (here, there) = ("moved0.nc` are not those of `", "moved1.nc`");
    assert!(unread.reason.contains(here) && unread.reason.contains(there), "{}", unread.reason);
    // Each file is a station, as xarray's `concat` has it.
    let sites = several("site*.nc", Some("station"));
    let names = vec![Some("Oslo"), Some("Köln")];
    assert_eq!(texts(&sites.dataset, "station_name"), (Some("station"), names));
    // The labels of a dimension with their name are sorted.
    let named = several("site*.nc", Some("station_name"));
    let names = vec![Some("Köln"), Some("Oslo")];
    assert_eq!(texts(&named.dataset, "station_name"), (Some("station_name"), names));
    assert!(named.dataset.scalars.is_empty());
}
