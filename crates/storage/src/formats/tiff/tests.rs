//! The samples in `tests/data/formats/tiff`, read as GDAL (rasterio, rioxarray) and tifffile read them (`make.py`).
#![allow(clippy::unwrap_used, reason = "tests")]

mod damaged;
mod remote;

use crate::source::tests::{run, stores};
use crate::source::{ArrayReader, Opened, Options, SourceError, Stores, open};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tessera_planner::catalog::{Attrs, CoordValues, parse_json};
use tessera_planner::region::{Dims, Region};

/// The folder of the samples.
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/formats/tiff")
}

/// The expected samples, by file and group.
fn expected() -> BTreeMap<String, Value> {
    let text = std::fs::read(folder().join("expected.json")).unwrap();
    parse_json(&text).and_then(serde_json::from_value).unwrap()
}

fn open_sample(name: &str, cf: bool) -> Result<Opened, SourceError> {
    let options = Options::parse([("decode_cf", if cf { "true" } else { "false" })]).unwrap();
    run(open(&format!("{}/{name}", folder().display()), &options, &stores()))
}

/// The reader of an array.
fn reader(opened: &Opened, name: &str) -> Arc<ArrayReader> {
    opened.readers.iter().find(|r| r.name == name).unwrap().clone()
}

fn attrs<'a>(opened: &'a Opened, name: &str) -> &'a Attrs {
    &opened.dataset.variables.iter().find(|v| &*v.name == name).unwrap().attrs
}

fn read(reader: &ArrayReader, region: &Region) -> Vec<u8> {
    let fetched = run(reader.fetch(region)).unwrap();
    let mut out = vec![0xA5; region.cells() as usize * reader.source().dtype.size()];
    reader.decode(fetched, region, &mut out).unwrap();
    out
}

fn list(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect()
}

/// Compares the cells of an array, whole and in windows.
fn check_cells(of: &str, reader: &ArrayReader, want: &Value) {
    let source = reader.source();
    assert_eq!(source.shape.to_vec(), list(&want["shape"]), "{of}");
    assert_eq!(source.dtype.to_string(), want["dtype"].as_str().unwrap(), "{of}");
    let whole = Region::whole(&source.shape);
    let crc = |region: &Region| u64::from(crc32fast::hash(&read(reader, region)));
    assert_eq!(crc(&whole), want["crc"].as_u64().unwrap(), "{of}");
    for window in want["windows"].as_array().unwrap() {
        let [y0, y1, x0, x1, wanted] = list(window)[..] else { panic!("{of}") };
        let (mut region, n) = (whole.clone(), source.shape.len());
        (region.start[n - 2], region.end[n - 2]) = (y0, y1);
        (region.start[n - 1], region.end[n - 1]) = (x0, x1);
        assert_eq!(crc(&region), wanted, "{of} {region}");
    }
}

/// Compares labels to the last bit.
fn check_labels(of: &str, opened: &Opened, want: &Value) {
    for dim in ["x", "y"] {
        let coord = opened.dataset.index_coord(dim);
        let Some(wanted) = want[dim].as_object() else {
            assert!(coord.is_none(), "{of}: {dim}");
            continue;
        };
        let CoordValues::Float(_, labels) = &coord.unwrap().values else { panic!("{of}: {dim}") };
        let bytes: Vec<u8> = labels.iter().flat_map(|v| v.to_le_bytes()).collect();
        let ends = (labels.first().unwrap(), labels.last().unwrap());
        assert_eq!(u64::from(crc32fast::hash(&bytes)), wanted["crc"], "{of}: {dim} {ends:?}");
    }
    let band = &opened.dataset.index_coord("band").unwrap().values;
    let CoordValues::Int(_, labels) = band else { panic!("{of}: band") };
    let labels: Vec<u64> = labels.iter().map(|v| *v as u64).collect();
    assert_eq!(labels, list(&want["band"]), "{of}");
}

/// Compares attributes with those of rioxarray.
fn check_attrs(of: &str, got: &Attrs, want: &Value) {
    let other =
        ["TIFFTAG_XRESOLUTION", "TIFFTAG_YRESOLUTION", "TIFFTAG_RESOLUTIONUNIT", "RESAMPLING"];
    let number = |v: &Value| v.as_f64();
    for (key, wanted) in want["attrs"].as_object().unwrap() {
        // GDAL takes the units of heights from the name of their reference system.
        if other.contains(&key.as_str()) || of == "compound.tif" && key == "units" {
            continue;
        }
        let wanted = match wanted.as_array() {
            Some(all) if key == "units" && all.iter().all(|v| *v == all[0]) => &all[0],
            _ => wanted,
        };
        let got = got.get(key).unwrap_or_else(|| panic!("{of}: {key} is missing, {wanted}"));
        assert!(
            got == wanted || number(got).is_some() && number(got) == number(wanted),
            "{of}: {key} {got} {wanted}"
        );
    }
    if let Some(wanted) = want["crs"].as_str() {
        assert_eq!(got["crs"], wanted, "{of}");
    }
    if !got.contains_key("transform") {
        assert_eq!(of, "control_points.tif");
    } else {
        assert_eq!(got["transform"], want["transform"], "{of}");
    }
}

#[test]
fn samples_equal_gdal_and_tifffile() {
    let all = expected();
    assert!(all.len() > 120, "{} samples", all.len());
    for (of, want) in &all {
        if of == "pages.tif#pages" {
            continue;
        }
        let opened = open_sample(of, false).unwrap_or_else(|e| panic!("{of}: {e}"));
        check_cells(of, &reader(&opened, "band_data"), want);
        // Files without these were compared with tifffile.
        if want.get("attrs").is_some() {
            check_labels(of, &opened, want);
            check_attrs(of, attrs(&opened, "band_data"), want);
        }
        if let Some(wanted) = want.get("mask") {
            let mask = reader(&opened, "band_data_mask");
            let whole = Region::whole(&mask.source().shape);
            assert_eq!(u64::from(crc32fast::hash(&read(&mask, &whole))), *wanted, "{of}");
        }
    }
}

#[test]
fn images_of_a_file_are_groups() {
    let groups = |name: &str| open_sample(name, true).unwrap().groups;
    assert_eq!(groups("cog.tif"), ["overview_1", "overview_2"]);
    assert_eq!(groups("pages.tif"), ["page_2", "page_3"]);
    assert_eq!(groups("mixed.tif"), ["overview_1", "overview_2", "page_2"]);
    assert_eq!(groups("mixed.tif#page_2"), [""; 0]);
    for none in ["#overview_3", "#overview_0", "#overview_01", "#page_1", "#sub_1", "#x"] {
        let e = open_sample(&format!("cog.tif{none}"), true).unwrap_err();
        assert!(matches!(e, SourceError::NoGroup { .. }), "{none}: {e}");
        assert_eq!(e.hint().unwrap(), "it has `overview_1`, `overview_2`");
    }
}

#[test]
fn pages_of_one_shape_are_an_array() {
    let opened = open_sample("pages.tif", true).unwrap();
    let names: Vec<_> = opened.dataset.variables.iter().map(|v| v.name.to_string()).collect();
    assert_eq!(names, ["band_data", "pages"]);
    let dims = opened.dataset.variables[1].dims.iter().flatten().map(|d| d.to_string());
    assert_eq!(dims.collect::<Vec<_>>(), ["page", "band", "y", "x"]);
    check_cells("pages", &reader(&opened, "pages"), &expected()["pages.tif#pages"]);
    let mixed = open_sample("mixed.tif", true).unwrap();
    assert_eq!(mixed.dataset.variables.len(), 1);
}

#[test]
fn a_mask_and_nodata_are_missing_cells() {
    let opened = open_sample("cog.tif", true).unwrap();
    let [data] = &opened.dataset.variables[..] else { panic!() };
    assert_eq!(data.decode.missing[0].to_string(), "-9999");
    assert_eq!(data.decode.valid.as_ref().unwrap().path, "band_data_mask");
    assert_eq!(data.source.grid.axes[1].chunk, 32);
    let opened = open_sample("utm.tif", true).unwrap();
    let unpack = opened.dataset.variables[0].decode.unpack.unwrap();
    assert_eq!((unpack.scale, unpack.offset), (0.1, -3.5));
    let x = opened.dataset.index_coord("x").unwrap();
    assert_eq!(x.attrs["standard_name"], "projection_x_coordinate");
}

#[test]
fn the_crs_is_a_code_or_a_name() {
    for (name, wanted) in [
        ("utm.tif", "EPSG:32633"),
        ("south_up.tif", "EPSG:3857"),
        ("compound.tif", "EPSG:32633+5773"),
        ("custom.tif", "Here & there"),
    ] {
        let opened = open_sample(name, true).unwrap();
        assert_eq!(attrs(&opened, "band_data")["crs"], wanted, "{name}");
    }
}

#[test]
fn unsupported_features_are_refused_by_name() {
    for (name, wanted) in [
        ("refused_complex.tif", "complex float of 64 bits"),
        ("refused_lzma.tif", "compression LZMA"),
        ("refused_lerc.tif", "compression LERC"),
        ("refused_webp.tif", "compression WebP"),
        ("refused_ccittfax4.tif", "compression CCITT T.6"),
    ] {
        let opened = open_sample(name, true).unwrap();
        let e = opened.unsupported["band_data"].to_string();
        assert!(e.contains(wanted), "{name}: {e}");
    }
}

/// The frame of a JPEG stream is in its chunk.
#[test]
fn progressive_jpeg_is_an_error_of_the_chunk() {
    let opened = open_sample("jpeg_progressive.tif", true).unwrap();
    let data = reader(&opened, "band_data");
    let whole = Region::whole(&data.source().shape);
    let fetched = run(data.fetch(&whole)).unwrap();
    let mut out = vec![0; whole.cells() as usize];
    let e = data.decode(fetched, &whole, &mut out).unwrap_err().to_string();
    assert!(e.contains("progressive JPEG is not supported"), "{e}");
}

/// `tifffile.imwrite(f, np.arange(24, dtype="<u2").reshape(4, 2, 3), imagej=True, truncate=True)`, but for its strips of
/// one row, and a tag beside those.
fn imagej(images: u32, tag: u16, count: u32) -> Vec<u8> {
    let text = format!("ImageJ=1.11a\nimages={images}\nslices={images}\n\0");
    let (offsets_at, cells_at) = (400u32, 416u32);
    let entries: [(u16, u16, u32, u32); 11] = [
        (256, 3, 1, 3),
        (257, 3, 1, 2),
        (258, 3, 1, 16),
        (259, 3, 1, 1),
        (262, 3, 1, 1),
        (270, 2, text.len() as u32, 300),
        (273, 4, 2, offsets_at),
        (277, 3, 1, 1),
        (278, 3, 1, 1),
        (279, 4, 2, offsets_at + 8),
        (tag, 4, count, if count == 1 { 4 } else { 300 }),
    ];
    let mut out = b"II*\0\x08\0\0\0\x0b\0".to_vec();
    for (tag, kind, count, value) in entries {
        out.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
        out.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
    }
    out.resize(300, 0);
    out.extend(text.as_bytes());
    out.resize(offsets_at as usize, 0);
    out.extend([cells_at, cells_at + 6, 6, 6].map(u32::to_le_bytes).concat());
    out.extend((0..24u16).flat_map(u16::to_le_bytes));
    out
}

#[test]
fn stacks_of_one_directory_are_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tif");
    let open = |bytes: Vec<u8>| {
        std::fs::write(&path, bytes).unwrap();
        run(open(path.to_str().unwrap(), &Options::default(), &stores())).unwrap()
    };
    let opened = open(imagej(4, 65000, 1));
    let pages = reader(&opened, "pages");
    assert_eq!(pages.source().shape.to_vec(), [4, 1, 2, 3]);
    let want: Vec<u8> = (0..24u16).flat_map(u16::to_ne_bytes).collect();
    assert_eq!(read(&pages, &Region::whole(&[4, 1, 2, 3])), want);
    for (bytes, array, wanted) in [
        (imagej(5, 65000, 1), "pages", "has 5 images of 12 bytes from byte 416 on"),
        (imagej(4, 32997, 1), "band_data", "a volume of 4 planes"),
        (imagej(4, 33629, 4), "band_data", "a MetaMorph stack of 4 planes"),
    ] {
        let opened = open(bytes);
        let e = opened.unsupported.get(array).map(ToString::to_string);
        assert!(e.as_ref().is_some_and(|e| e.contains(wanted)), "{wanted}: {e:?}");
    }
}

/// Sets the first value of a tag of a classic little-endian file.
fn patch(name: &str, tag: u16, value: u16) -> Vec<u8> {
    let mut bytes = std::fs::read(folder().join(name)).unwrap();
    let at = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let entry = (0..count).map(|i| at + 2 + 12 * i).find(|e| bytes[*e..e + 2] == tag.to_le_bytes());
    let entry = entry.unwrap();
    bytes[entry + 8..entry + 10].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn codes_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (name, tag, value, wanted) in [
        ("utm.tif", 259, 6, "compression old-style JPEG"),
        ("utm.tif", 259, 34712, "compression JPEG 2000"),
        ("utm.tif", 259, 999, "compression 999"),
        ("nan.tif", 258, 24, "float of 24 bits"),
        ("nan.tif", 317, 5, "predictor 5"),
        ("nan.tif", 339, 1, "a predictor for floats of integers"),
        ("utm.tif", 262, 6, "YCbCr without JPEG"),
        ("utm.tif", 278, 0, "its strips have no rows"),
        ("utm.tif", 278, 1, "it has 1 offsets of tiles or strips, expected 19"),
        ("utm.tif", 256, 0, "width is 0"),
    ] {
        let path = dir.path().join("x.tif");
        let bytes = patch(name, tag, value);
        std::fs::write(&path, bytes).unwrap();
        let opened = run(open(path.to_str().unwrap(), &Options::default(), &stores())).unwrap();
        let e = opened.unsupported.get("band_data").map(ToString::to_string);
        assert!(e.as_ref().is_some_and(|e| e.contains(wanted)), "{name} {tag} {value}: {e:?}");
    }
}
