//! Every array of the fixtures against digests from NumPy, zarr-python and xarray.

use super::*;
use tessera_planner::catalog::{CoordValues, Decode};
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

struct Expected {
    kind: &'static str,
    path: &'static str,
    name: &'static str,
    dtype: &'static str,
    shape: Vec<u64>,
    digest: &'static str,
}

fn expected(kind: &str) -> Vec<Expected> {
    let all = include_str!("expected.txt").lines().map(|line| {
        let f: Vec<&str> = line.split(' ').collect();
        let shape = if f[4] == "-" {
            vec![]
        } else {
            f[4].split('x').map(|n| n.parse().unwrap()).collect()
        };
        Expected { kind: f[0], path: f[1], name: f[2], dtype: f[3], shape, digest: f[5] }
    });
    all.filter(|e| e.kind == kind).collect()
}

fn fnv(bytes: &[u8]) -> String {
    let h = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    format!("{h:016x}")
}

fn scalars(cells: &[u8], dtype: DType) -> Vec<Scalar> {
    cells.chunks_exact(dtype.size()).map(|c| Scalar::from_le_bytes(dtype, c)).collect()
}

/// Cells with all NaNs replaced by one NaN.
fn canonical(cells: &[u8], dtype: DType) -> Vec<u8> {
    let nan = Scalar::from_f64(dtype, f64::NAN);
    let mut out = Vec::new();
    for s in scalars(cells, dtype) {
        let s = if dtype.is_float() && s.as_f64().is_nan() { nan } else { s };
        out.extend_from_slice(&s.to_le_bytes()[..dtype.size()]);
    }
    out
}

/// `DType::name`, but datetimes are compared as their numbers.
fn name_of(dtype: DType) -> String {
    if dtype.is_datetime() { "int64".into() } else { dtype.name() }
}

fn raw_options() -> Options {
    Options::parse([("decode_cf", "false")]).unwrap()
}

fn reader_of<'a>(opened: &'a Opened, name: &str) -> Option<&'a Arc<ArrayReader>> {
    let d = &opened.dataset;
    let mut all = d.variables.iter().chain(&d.auxiliary);
    match name {
        "-" => opened.reader(&d.variables[0].source),
        _ => opened.reader(&all.find(|v| &*v.name == name)?.source),
    }
}

#[test]
fn raw_cells_are_numpys() {
    let mut seen = 0;
    let mut failures = Vec::new();
    let table = expected("raw");
    for e in &table {
        let opened = run(open(&data(e.path), &raw_options(), &stores())).unwrap();
        let Some(reader) = reader_of(&opened, e.name) else {
            // Labels are read at bind and have no reader.
            let coord = opened.dataset.coords.iter().find(|c| &*c.name == e.name);
            match coord.map(|c| c.values.len() as u64) {
                Some(n) if vec![n] == e.shape => seen += 1,
                _ => failures.push(format!(
                    "{} {}: {:?}",
                    e.path,
                    e.name,
                    opened.unsupported.get(e.name)
                )),
            }
            continue;
        };
        let source = reader.source();
        assert_eq!(
            (name_of(source.dtype), source.shape.to_vec()),
            (e.dtype.to_string(), e.shape.clone())
        );
        if fnv(&canonical(&whole(reader), source.dtype)) != e.digest {
            failures.push(format!("{} {}: other cells", e.path, e.name));
        }
        seen += 1;
    }
    assert_eq!(failures, Vec::<String>::new());
    assert_eq!(seen, table.len());
    assert!(seen > 130, "{seen}");
}

#[test]
fn any_region_is_the_slice_of_the_whole() {
    for e in expected("raw")
        .iter()
        .filter(|e| e.path.starts_with("zarr_zoo") || e.path.starts_with("npy"))
    {
        let opened = run(open(&data(e.path), &raw_options(), &stores())).unwrap();
        let Some(reader) = reader_of(&opened, e.name) else { continue };
        let shape = reader.source().shape.clone();
        let size = reader.source().dtype.size();
        let all = whole(reader);
        let mut state = 17u64;
        let mut random = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..12 {
            let mut region = Region::whole(&shape);
            for a in 0..shape.len() {
                let (p, q) = (random(shape[a] + 1), random(shape[a] + 1));
                (region.start[a], region.end[a]) = (p.min(q), p.max(q));
            }
            let mut want = vec![0; region.cells() as usize * size];
            if !region.is_empty() {
                boxes::copy_box(
                    &all,
                    (&shape, &region.start),
                    &mut want,
                    (&region.shape(), &vec![0; shape.len()]),
                    &region.shape(),
                    size,
                );
            }
            assert_eq!(read(reader, &region).unwrap(), want, "{} {} {region}", e.path, e.name);
        }
    }
}

#[test]
fn cf_values_are_xarrays() {
    let table = expected("cf");
    assert!(table.len() > 20);
    for e in &table {
        let opened = open_local(&data(e.path)).unwrap();
        let values: Vec<f64> = match reader_of(&opened, e.name) {
            Some(reader) => {
                let d = &opened.dataset;
                let v = d.variables.iter().find(|v| &*v.name == e.name).unwrap();
                scalars(&whole(reader), v.source.dtype)
                    .iter()
                    .map(|s| decoded(*s, &v.decode))
                    .collect()
            }
            None => {
                let c = opened.dataset.index_coord(e.name).unwrap();
                match &c.values {
                    CoordValues::Float(_, v) => v.to_vec(),
                    CoordValues::Int(_, v) => v.iter().map(|&v| v as f64).collect(),
                    other => panic!("{other:?}"),
                }
            }
        };
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(fnv(&canonical(&bytes, DType::Float64)), e.digest, "{} {}", e.path, e.name);
    }
}

#[test]
fn times_are_xarrays() {
    let table = expected("time");
    assert_eq!(table.len(), 8);
    for e in &table {
        let opened = open_local(&data(e.path)).unwrap();
        let c = opened.dataset.index_coord(e.name).unwrap();
        let CoordValues::Time(_, us) = &c.values else { panic!("{c:?}") };
        let bytes: Vec<u8> = us.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(fnv(&bytes), e.digest, "{} {}", e.path, e.name);
        assert!(!c.attrs.contains_key("units") && !c.attrs.contains_key("calendar"));
    }
}

/// The definition of `Decode`, cell by cell, NaN where missing.
fn decoded(raw: Scalar, d: &Decode) -> f64 {
    let v = raw.as_f64();
    let missing = d.missing.iter().any(|m| v == m.as_f64() || (v.is_nan() && m.as_f64().is_nan()))
        || d.valid_min.is_some_and(|m| v < m.as_f64())
        || d.valid_max.is_some_and(|m| v > m.as_f64());
    if missing {
        return f64::NAN;
    }
    d.unpack.map_or(v, |u| v * u.scale + u.offset)
}

#[test]
fn a_dataset_has_data_labels_and_companions() {
    for path in ["colpex.v2.zarr", "colpex.v3.zarr"] {
        let opened = open_local(&data(path)).unwrap();
        let d = &opened.dataset;
        let names: Vec<&str> = d.variables.iter().map(|v| &*v.name).collect();
        assert_eq!(names, ["air_potential_temperature"], "{path}");
        let v = &d.variables[0];
        let dims: Vec<&str> = v.dims.iter().flatten().map(|d| &**d).collect();
        assert_eq!(dims, ["time", "model_level_number", "grid_latitude", "grid_longitude"]);
        assert_eq!(v.source.grid.to_string(), "[6/2, 10/5, 83/40, 83/40]");
        assert_eq!(v.source.dtype, DType::Float32);
        // v2's fill value, and the attribute `_FillValue` of v3.
        assert_eq!(v.decode.missing.len(), 1, "{path}");
        assert!(!v.attrs.contains_key("coordinates"));
        let coords: Vec<(&str, &str)> = d.coords.iter().map(|c| (&*c.name, &*c.dim)).collect();
        assert_eq!(
            coords,
            [
                ("grid_latitude", "grid_latitude"),
                ("grid_longitude", "grid_longitude"),
                ("level_height", "model_level_number"),
                ("model_level_number", "model_level_number"),
                ("sigma", "model_level_number"),
                ("time", "time"),
            ]
        );
        let time = d.index_coord("time").unwrap();
        // xarray: 2009-09-09T22:10 and so on, every ten minutes.
        let shown: Vec<String> = (0..6).map(|i| time.values.display(i)).collect();
        assert_eq!(
            (shown[0].as_str(), shown[5].as_str()),
            ("2009-09-09T22:10:00", "2009-09-09T23:00:00")
        );
    }
}

#[test]
fn nested_and_consolidated_groups_open() {
    for path in [
        "zarr_zoo/v2_consolidated.zarr",
        "zarr_zoo/v3_consolidated.zarr",
        "zarr_zoo/v2_nested.zarr#outer/inner",
        "zarr_zoo/v3_nested.zarr#outer/inner/",
    ] {
        let d = open_local(&data(path)).unwrap().dataset;
        assert_eq!(d.variables.len(), 1, "{path}");
        // np.arange(5) * 10 and np.arange(7)[::-1] / 2
        assert_eq!(
            d.index_coord("y").unwrap().values,
            CoordValues::Int(DType::Int32, [0, 10, 20, 30, 40].into())
        );
        assert_eq!(
            d.index_coord("x").unwrap().values,
            CoordValues::Float(DType::Float64, [3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.0].into())
        );
    }
    let root = open_local(&data("zarr_zoo/v3_nested.zarr")).unwrap();
    assert_eq!((root.dataset.variables.len(), root.groups), (0, vec!["outer".to_string()]));
    // One array of a group is a dataset too.
    let v = open_local(&data("zarr_zoo/v2_consolidated.zarr#v")).unwrap();
    assert_eq!(v.dataset.variables[0].name, "v".into());
    let e = open_local(&data("zarr_zoo/v3_nested.zarr#outer/nowhere")).unwrap_err();
    assert_eq!(e.code(), "not_found");
}

#[test]
fn only_touched_chunks_are_read() {
    let stores = stores();
    let path = data("colpex.v3.zarr");
    let opened = run(open(&path, &Options::default(), &stores)).unwrap();
    let reader = &opened.readers[0];
    let chunk = |k: &str| {
        std::fs::metadata(format!("{path}/air_potential_temperature/c/{k}")).unwrap().len()
    };
    let before = stores.counters().snapshot();
    // Time 3 is in chunk 1, level 6 in chunk 1; rows 39:41 touch chunks 0 and 1, column 82 chunk 2.
    read(reader, &Region::at(&[3, 6, 39, 82], &[1, 1, 2, 1])).unwrap();
    let after = stores.counters().snapshot();
    assert_eq!(after.0 - before.0, 2);
    assert_eq!(after.1 - before.1, chunk("1/1/0/2") + chunk("1/1/1/2"));
    assert_eq!(after.2 - before.2, 2);
}

#[test]
fn inner_chunks_of_shards_are_read_alone() {
    let stores = stores();
    let opened = run(open(&data("zarr_zoo/v3.zarr"), &raw_options(), &stores)).unwrap();
    for name in ["sharded", "sharded_start", "sharded_missing"] {
        let reader = reader_of(&opened, name).unwrap();
        let want = if name == "sharded_start" { "[9/2, 10/3]" } else { "[9/2, 10/2]" };
        assert_eq!(reader.source().grid.to_string(), want, "{name}");
    }
    let reader = reader_of(&opened, "sharded").unwrap();
    let (r0, b0, c0) = stores.counters().snapshot();
    read(reader, &Region::at(&[0, 0], &[2, 2])).unwrap();
    let (r1, b1, c1) = stores.counters().snapshot();
    // The index (6 entries and a checksum: 100 bytes), then one inner chunk.
    assert_eq!((r1 - r0, c1 - c0), (2, 1));
    let inner = b1 - b0 - 100;
    assert!(inner > 0 && inner < 100, "{inner}");
    read(reader, &Region::at(&[0, 0], &[2, 2])).unwrap();
    let (r2, b2, _) = stores.counters().snapshot();
    // The index is cached.
    assert_eq!((r2 - r1, b2 - b1), (1, inner));
}

#[test]
fn fill_values_mask_in_xarrays_v2_alone() {
    let v2 = open_local(&data("zarr_zoo/v2.zarr")).unwrap().dataset;
    let v3 = open_local(&data("zarr_zoo/v3.zarr")).unwrap().dataset;
    let missing = |d: &Dataset, n: &str| {
        let v = d.variables.iter().find(|v| &*v.name == n).unwrap();
        v.decode.missing.iter().map(|s| s.to_string()).collect::<Vec<_>>()
    };
    // These have no `_ARRAY_DIMENSIONS`: zarr-python reads their fill values as numbers.
    for name in ["fill_0", "fill_9999", "fill_nan", "fill_inf", "fill_neg_inf", "fill_all", "f8"] {
        assert_eq!(missing(&v2, name), Vec::<String>::new(), "{name}");
        assert_eq!(missing(&v3, name), Vec::<String>::new(), "{name}");
    }
    let xarrays = open_local(&data("colpex.v2.zarr")).unwrap().dataset;
    assert_eq!(missing(&xarrays, "air_potential_temperature").len(), 1);
    // F8[1, 1] of the fixtures is round(sin(8) * 100, 2).
    assert_eq!(missing(&v3, "masked_attr"), ["98.94"]);
    assert_eq!(missing(&v3, "masked_nan_attr"), ["NaN"]);
    assert_eq!(missing(&v2, "dt64"), ["-290308-12-21T19:59:05.224192"]);
}
