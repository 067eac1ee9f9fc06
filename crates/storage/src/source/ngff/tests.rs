//! The images of `tests/data/formats/ome_zarr`, on a disk and on a web server, which has no listing.

use crate::clouds::web::{Manners, Web};
use crate::source::tests::{run, stores};
use crate::source::{Opened, Options, SourceError, Stores, open};
use serde_json::Value;
use std::path::Path;
use tessera_planner::catalog::{Coord, CoordValues};
use tessera_planner::dtype::DType;
use tessera_planner::region::Region;

fn root() -> String {
    format!("{}/../../tests/data/formats/ome_zarr", env!("CARGO_MANIFEST_DIR"))
}

fn try_open(url: &str, stores: &Stores) -> Result<Opened, SourceError> {
    run(open(url, &Options::default(), stores))
}

fn local(name: &str) -> Opened {
    try_open(&format!("{}/{name}", root()), &stores()).unwrap()
}

fn expected() -> serde_json::Map<String, Value> {
    let text = std::fs::read(format!("{}/expected.json", root())).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn floats(coord: &Coord) -> Vec<f64> {
    match &coord.values {
        CoordValues::Float(_, values) => values.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Checks the cells and the labels of the one variable of a dataset.
fn check(url: &str, opened: &Opened, want: &Value) {
    let [v] = &opened.dataset.variables[..] else { panic!("{url}: {:?}", opened.dataset) };
    let is_mask = url.contains("labels");
    assert_eq!(&*v.name, if is_mask { "labels" } else { "image" }, "{url}");
    let shape: Vec<u64> = serde_json::from_value(want["shape"].clone()).unwrap();
    assert_eq!(v.source.shape.to_vec(), shape, "{url}");
    // Zeros are pixels.
    assert!(v.decode.missing.is_empty(), "{url}");
    let reader = opened.reader(&v.source).unwrap();
    let cells = run(reader.read(&Region::whole(&v.source.shape))).unwrap();
    let cells: Vec<u64> = match v.source.dtype {
        DType::UInt8 => cells.iter().map(|c| u64::from(*c)).collect(),
        _ => cells.as_chunks().0.iter().map(|c| u64::from(u16::from_ne_bytes(*c))).collect(),
    };
    assert_eq!(Some(cells.iter().sum()), want["sum"].as_u64(), "{url}");
    assert_eq!(cells.last().copied(), want["last"].as_u64(), "{url}");
    let labels = want["labels"].as_object().unwrap();
    let coords = &opened.dataset.coords;
    let names: Vec<_> = coords.iter().map(|c| c.name.to_string()).collect();
    let mut wanted: Vec<_> = labels.keys().cloned().collect();
    wanted.sort();
    assert_eq!(names, wanted, "{url}");
    for coord in coords {
        let want: Vec<f64> = serde_json::from_value(labels[&*coord.name].clone()).unwrap();
        assert_eq!(floats(coord), want, "{url} {}", coord.name);
    }
}

#[test]
fn levels_have_their_cells_and_labels() {
    let expected = expected();
    assert!(expected.len() > 15);
    for (url, want) in &expected {
        check(url, &local(url), want);
    }
}

fn put(web: &Web, at: &Path) {
    for entry in std::fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => put(web, &path),
            false => {
                let key = path.strip_prefix(root()).unwrap().to_str().unwrap();
                web.put(key, &std::fs::read(&path).unwrap());
            }
        }
    }
}

#[test]
fn levels_are_the_same_on_a_web_server() {
    let (web, stores) = (Web::start(Manners::default()), stores());
    put(&web, Path::new(&root()));
    for (url, want) in &expected() {
        // Groups of one level are listed.
        if !url.contains("#0/scale") || url.ends_with("/image") {
            check(url, &try_open(&web.url(url), &stores).unwrap(), want);
        }
    }
    for name in ["v04.zarr", "v05.zarr"] {
        let opened = try_open(&web.url(name), &stores).unwrap();
        assert_eq!(opened.groups, local(name).groups, "{name}");
        let labels = try_open(&web.url(&format!("{name}#labels")), &stores).unwrap();
        assert_eq!(labels.groups, ["cells"], "{name}");
    }
}

#[test]
fn axes_have_names_and_units() {
    for name in ["v04.zarr", "v05.zarr", "v04.zarr#s2", "v05.zarr#s2"] {
        let opened = local(name);
        let dims: Vec<_> = opened.dataset.variables[0].dims.iter().flatten().cloned().collect();
        assert_eq!(dims.iter().map(|d| &**d).collect::<Vec<_>>(), ["t", "c", "y", "x"], "{name}");
        for (axis, unit) in [("t", "second"), ("y", "micrometer"), ("x", "micrometer")] {
            let coord = opened.dataset.coords.iter().find(|c| *c.name == *axis).unwrap();
            assert_eq!(coord.attrs["units"], unit, "{name} {axis}");
        }
    }
}

#[test]
fn other_levels_and_labels_are_groups() {
    for (name, groups) in [
        ("v04.zarr", &["labels", "s1", "s2"][..]),
        ("v05.zarr", &["labels", "s1", "s2"]),
        ("v04.zarr#s1", &[]),
        ("v05.zarr#labels", &["cells"]),
        ("v04.zarr#labels/cells", &["s1"]),
        ("series.zarr", &["0", "1"]),
        ("series.zarr#0", &["scale0", "scale1", "scale2"]),
        ("series.zarr#1", &["1"]),
    ] {
        assert_eq!(local(name).groups, groups, "{name}");
    }
}

#[test]
fn faulty_transformations_leave_the_cells() {
    let opened = local("series.zarr#1/1");
    assert_eq!(opened.dataset.variables[0].source.shape.to_vec(), [6, 10]);
    let x = opened.dataset.coords.iter().find(|c| &*c.name == "x").unwrap();
    let CoordValues::Unreadable(why) = &x.values else { panic!("{x:?}") };
    assert!(format!("{why:?}").contains("has 1 numbers for 2 axes"), "{why:?}");
}

/// Opens an image whose `.zattrs` is `attrs`, with one array of 3 by 4 cells at `0`.
fn made(attrs: &str) -> (tempfile::TempDir, Opened) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    std::fs::write(at.join(".zgroup"), r#"{"zarr_format":2}"#).unwrap();
    std::fs::write(at.join(".zattrs"), attrs).unwrap();
    std::fs::create_dir(at.join("0")).unwrap();
    let array = r#"{"zarr_format":2,"shape":[3,4],"chunks":[3,4],"dtype":"|u1","compressor":null,"filters":null,"order":"C","fill_value":7}"#;
    std::fs::write(at.join("0/.zarray"), array).unwrap();
    let opened = try_open(at.to_str().unwrap(), &stores()).unwrap();
    (directory, opened)
}

#[test]
fn odd_metadata_are_no_images_or_errors() {
    // No image: a group of arrays, as before.
    for attrs in [
        "{}",
        r#"{"multiscales":[]}"#,
        r#"{"multiscales":7}"#,
        r#"{"multiscales":[{"axes":["y","x"]}]}"#,
        r#"{"multiscales":[{"axes":7,"datasets":[{"path":"0"}]}]}"#,
        r#"{"multiscales":[{"axes":["y","x"],"datasets":[{"path":"../0"}]}]}"#,
    ] {
        let (_directory, opened) = made(attrs);
        assert_eq!(&*opened.dataset.variables[0].name, "0", "{attrs}");
    }
    let of = |axes: &str, path: &str| {
        let image = format!(r#"{{"axes":{axes},"datasets":[{{"path":"{path}"}}]}}"#);
        made(&format!(r#"{{"multiscales":[{image}]}}"#))
    };
    // Absent chunks are the fill value; names of axes that occur twice are dropped.
    let (_directory, opened) = of(r#"["y","y"]"#, "0");
    let reader = &opened.readers[0];
    assert_eq!(run(reader.read(&Region::whole(&[3, 4]))).unwrap(), [7; 12]);
    assert_eq!(opened.dataset.variables[0].dims, [None, None]);
    let (_, many) = of(r#"["z","y","x"]"#, "0");
    let e = many.unsupported["image"].to_string();
    assert!(e.contains("3 axes, the array 2"), "{e}");
    let (_, absent) = of(r#"["y","x"]"#, "1");
    assert_eq!(absent.unsupported["image"].code(), "not_found");
    // A unit that CF would take for one of dates.
    let axes = r#"[{"name":"t","type":"time","unit":"days since 2000-01-01"},{"name":"x"}]"#;
    let scale = r#"[{"type":"scale","scale":[2,3]}]"#;
    let level = format!(r#"{{"path":"0","coordinateTransformations":{scale}}}"#);
    let (_, opened) =
        made(&format!(r#"{{"multiscales":[{{"axes":{axes},"datasets":[{level}]}}]}}"#));
    let t = opened.dataset.coords.iter().find(|c| &*c.name == "t").unwrap().clone();
    assert_eq!(
        (floats(&t), &t.attrs["unit"]),
        (vec![0.0, 2.0, 4.0], &"days since 2000-01-01".into())
    );
}
