//! Whole samples, and details of some.

use super::{SAMPLES, bytes, group, open_raw, path, run, stores};
use crate::formats::hdf5::Hdf5;
use crate::formats::view::{PAGE, View, in_turns};
use crate::formats::{Cells, Format, Group, Why};
use crate::source::{Opened, Options, open};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use tessera_planner::catalog::{CoordValues, parse_json};
use tessera_planner::region::{Dims, Region};

/// An array as `make.py` describes it, as far as its type has a form here.
fn read(opened: &Opened, name: &str) -> Map<String, Value> {
    let mut out = Map::new();
    let d = &opened.dataset;
    if let Some(v) = d.variables.iter().chain(&d.auxiliary).find(|v| &*v.name == name) {
        let region = Region::whole(&v.source.shape);
        let mut cells = vec![0xA5; region.cells() as usize * v.source.dtype.size()];
        let reader = opened.reader(&v.source).unwrap();
        reader.decode(run(reader.fetch(&region)).unwrap(), &region, &mut cells).unwrap();
        out.insert("dtype".into(), v.source.dtype.to_string().into());
        out.insert("crc32".into(), crc32fast::hash(&cells).into());
        return out;
    }
    let Some(coord) = d.coords.iter().find(|c| &*c.name == name) else { return out };
    match &coord.values {
        CoordValues::Text(texts) => {
            out.insert("texts".into(), json!(texts[..]));
        }
        CoordValues::Int(dtype, v) => {
            out.insert("dtype".into(), dtype.to_string().into());
            out.insert("first".into(), json!(v.first()));
            out.insert("last".into(), json!(v.last()));
        }
        CoordValues::Float(dtype, v) => {
            out.insert("dtype".into(), dtype.to_string().into());
            out.insert("first".into(), json!(v.first()));
            out.insert("last".into(), json!(v.last()));
        }
        _ => {}
    }
    out
}

fn dims(found: &Group, name: &str) -> Option<Vec<Option<String>>> {
    let array = found.arrays.get(name)?.as_ref().ok()?;
    Some(array.dims.iter().map(|d| d.as_deref().map(str::to_string)).collect())
}

/// Compares an array with its description; returns false if it cannot be read.
fn same(at: &str, name: &str, want: &Value, found: &Group, opened: &Opened) -> bool {
    let at = format!("{at} {name}");
    let Some(array) = found.arrays.get(name) else { panic!("{at} is not found") };
    let Ok(array) = array else { return false };
    assert_eq!(json!(array.shape.to_vec()), want["shape"], "{at}");
    let mut attrs = array.attrs.clone();
    for key in ["flag_values", "flag_meanings"] {
        attrs.remove(key);
    }
    assert_eq!(json!(attrs), want["attrs"], "{at}");
    if let Some(names) = want.get("dims") {
        assert_eq!(json!(dims(found, name)), *names, "{at}");
    }
    let read = read(opened, name);
    for (key, value) in &read {
        assert_eq!(value, want.get(key).unwrap_or(&Value::Null), "{at}: {key}");
    }
    !read.is_empty()
}

/// Arrays of a sample that cannot be read.
fn unread(name: &str) -> Vec<String> {
    let all: Value = parse_json(&bytes("expected.json")).unwrap();
    let mut out = Vec::new();
    for (at, want) in all[name].as_object().unwrap() {
        let found = group(&bytes(name), at).unwrap().unwrap();
        let opened = open_raw(&path(name), at).unwrap();
        let (mut groups, at) = (found.groups.clone(), format!("{name}#{at}"));
        groups.sort();
        assert_eq!(json!(groups), want["groups"], "{at}");
        assert_eq!(json!(found.attrs), want["attrs"], "{at}");
        let want = want["arrays"].as_object().unwrap();
        assert!(found.arrays.keys().eq(want.keys()), "{at}: {:?}", found.arrays.keys());
        for (array, want) in want {
            if want.is_null() || !same(&at, array, want, &found, &opened) {
                out.push(array.clone());
            }
        }
    }
    out
}

#[test]
fn samples_are_read_as_their_libraries_read_them() {
    let want: [&[&str]; 10] = [
        &[],
        &[],
        &["blosc2", "zfp"],
        &["elsewhere", "external", "nowhere", "ring", "virtual"],
        &["external", "nowhere", "ring"],
        &["pairs", "ragged"],
        &[],
        &[],
        &["complex", "compound", "lists", "null", "opaque", "reference"],
        &["complex", "compound", "lists", "null", "opaque", "reference"],
    ];
    for (name, want) in SAMPLES.iter().zip(want) {
        assert_eq!(unread(name), want, "{name}");
    }
}

#[test]
fn shuffled_floats_are_looked_at_while_they_are_decoded() {
    // Years of 10, 9 and 7 days in chunks of 4.
    for (file, array, is_known) in
        [("year*.nc", "v", true), ("year1.nc", "v", true), ("year*.nc", "big", false)]
    {
        let url = path(&format!("../shuffled/{file}"));
        let opened = run(open(&url, &Options::default(), &stores())).unwrap();
        let all = &opened.dataset.variables;
        let source = &all.iter().find(|v| &*v.name == array).unwrap().source;
        let reader = opened.reader(source).unwrap();
        let whole = Region::whole(&source.shape);
        for region in [whole.clone(), Region::at(&[3, 1, 2], &[5, 3, 4]).intersect(&whole).unwrap()]
        {
            let mut cells = vec![0xA5; region.cells() as usize * 4];
            let fetched = run(reader.fetch(&region)).unwrap();
            let seen = reader.decode_and_look(fetched, &region, &mut cells).unwrap();
            assert_eq!(seen, is_known, "{file} {array} {region}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let why = |name: &str, array: &str| {
        let found = group(&bytes(name), "").unwrap().unwrap();
        match &found.arrays[array] {
            Err(e) => match &e.why {
                Why::DType(of) => format!("type {of}"),
                Why::Unsupported(what) => what.clone(),
                Why::Bad(reason) => format!("bad: {reason}"),
            },
            Ok(array) => format!("{array:?}"),
        }
    };
    let of_types = |array: &str| why("types_new.h5", array);
    assert_eq!(of_types("complex"), "type compound {r: float64, i: float64}");
    assert_eq!(of_types("compound"), "type compound {a: int32, b: array [2] of float64}");
    assert_eq!(of_types("lists"), "type list of int32 of any length");
    assert_eq!(of_types("reference"), "type reference");
    assert_eq!(of_types("null"), "an array without cells (null dataspace)");
    assert_eq!(why("filters.h5", "blosc2"), "HDF5 filter `Blosc2` (32026)");
    assert_eq!(why("filters.h5", "zfp"), "HDF5 filter `ZFP` (32013)");
    let of_groups = |array: &str| why("groups_new.h5", array);
    assert_eq!(of_groups("external"), "a link to another file (other.h5:/x)");
    assert_eq!(of_groups("nowhere"), "bad: it is a link to a path that does not exist");
    assert_eq!(of_groups("ring"), "more than 16 links to links");
    assert_eq!(of_groups("virtual"), "HDF5 virtual dataset");
    assert_eq!(of_groups("elsewhere"), "HDF5 cells in external files");
}

#[test]
fn groups_of_matlab_are_not_listed() {
    let file = bytes("matlab.mat");
    let root = group(&file, "").unwrap().unwrap();
    assert_eq!(root.groups, ["s"]);
    assert!(root.arrays.keys().eq(["cell", "x"]), "{:?}", root.arrays.keys());
    assert!(root.arrays["x"].is_ok() && root.arrays["cell"].is_err());
    let refs = group(&file, "#refs#").unwrap().unwrap();
    assert!(refs.arrays.keys().eq(["a", "b"]), "{:?}", refs.arrays.keys());
}

#[test]
fn names_of_an_enumeration_are_flags() {
    let found = group(&bytes("types_new.h5"), "").unwrap().unwrap();
    let attrs = &found.arrays["enum"].as_ref().unwrap().attrs;
    let mut pairs: Vec<(i64, &str)> = attrs["flag_values"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_i64().unwrap())
        .zip(attrs["flag_meanings"].as_str().unwrap().split(' '))
        .collect();
    pairs.sort_unstable();
    assert_eq!(pairs, [(0, "RED"), (1, "PALE_GREEN"), (42, "BLUE")]);
    assert_eq!(found.arrays["scalar"].as_ref().unwrap().narrow, ["none", "narrow", "floats"]);
}

#[test]
fn siblings_are_fetched_together() {
    let all = Bytes::from(bytes("chunks_new.h5"));
    let (found, took) = in_turns(&all, (PAGE, &[]), |view| Hdf5.read(view, ""));
    assert!(took.turns <= 3, "{took:?}");
    let found = found.unwrap().unwrap();
    for (name, array) in &found.arrays {
        let array = array.as_ref().unwrap();
        let Cells::Chunks(chunks) = &array.cells else { panic!("{name}") };
        let axes = array.shape.iter().zip(&chunks.unit);
        let last: Dims = axes.map(|(n, u)| (n - 1) / u).collect();
        let units =
            [last.clone(), last.iter().map(|i| i / 2).collect(), last.iter().map(|_| 0).collect()];
        let find = |view: &View<'_>| chunks.index.find(view, &units);
        let (places, took) = in_turns(&all, (PAGE, &[]), find);
        let places = places.unwrap();
        assert!(took.turns <= 2, "{name}: {took:?}");
        // Units are found in any order.
        let mut backwards = units.clone();
        backwards.reverse();
        let again = chunks.index.find(&View::whole(&all), &backwards).unwrap();
        assert!(places.iter().eq(again.iter().rev()), "{name}");
    }
}

#[test]
fn arrays_that_end_before_their_dimension_go_on_with_the_fill_value() {
    let opened = open_raw(&path("short.nc"), "").unwrap();
    let cells = |name: &str| {
        let v = opened.dataset.variables.iter().find(|v| &*v.name == name).unwrap();
        let reader = opened.reader(&v.source).unwrap();
        run(reader.read(&Region::whole(&v.source.shape))).unwrap()
    };
    // netCDF4 reads the same: two of three rows, no row, and one row of three cells.
    assert_eq!(cells("v"), [1f32, 2.0, 3.0, 4.0, -9.0, -9.0].map(f32::to_ne_bytes).concat());
    assert_eq!(cells("w"), [-32767i16; 6].map(i16::to_ne_bytes).concat());
    let fill = 9.969209968386869e36;
    assert_eq!(cells("k"), [5.0, fill, fill].map(f64::to_ne_bytes).concat());
}

#[test]
fn netcdf_is_decoded_by_cf() {
    let opened = run(open(&path("netcdf4.nc"), &Options::default(), &stores())).unwrap();
    let d = &opened.dataset;
    let t2m = d.variables.iter().find(|v| &*v.name == "t2m").unwrap();
    let dims: Vec<_> = t2m.dims.iter().flatten().map(|d| &**d).collect();
    assert_eq!(dims, ["time", "lat", "lon"]);
    assert_eq!(t2m.decode.unpack.unwrap().offset, 1.5);
    let day = 86_400_000_000i64;
    match &d.index_coord("time").unwrap().values {
        CoordValues::Time(_, us) => {
            assert_eq!(**us, [10957 * day, 10958 * day, 10959 * day, 10960 * day]);
        }
        other => panic!("{other:?}"),
    }
    let texts = |name: &str| match &d.coords.iter().find(|c| &*c.name == name).unwrap().values {
        CoordValues::Text(texts) => texts.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(texts("lon"), ["a", "b", "c", "d", "e", "f", "g"]);
    assert_eq!(texts("names"), ["ab", "cdefgh", "x", "", "y"]);
    assert_eq!(texts("growing_names"), ["ab", "cdefgh", "x", ""]);
    assert_eq!(texts("label"), ["ab", "cdefgh", "x"]);
    assert_eq!(opened.groups, ["model"]);
    let nested = open_raw(&path("netcdf4.nc"), "model/run").unwrap();
    let w = nested.dataset.variables.iter().find(|v| &*v.name == "w").unwrap();
    let dims: Vec<_> = w.dims.iter().flatten().map(|d| &**d).collect();
    assert_eq!(dims, ["time", "z", "lat"]);
    // np.linspace(-80, 80, 5) of the root, as `xr.open_datatree(…)["model/run"].lat` has it.
    match &nested.dataset.index_coord("lat").unwrap().values {
        CoordValues::Float(_, v) => assert_eq!(**v, [-80.0, -40.0, 0.0, 40.0, 80.0]),
        other => panic!("{other:?}"),
    }
    let missing = open_raw(&path("netcdf4.nc"), "model/none").unwrap_err();
    assert!(missing.to_string().contains("model/none"), "{missing}");
}
