//! Small stores written by hand: cases that the fixtures do not have.

use super::*;
use std::fs;
use std::path::Path;
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::{Calendar, DType};

fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let at = root.join(path);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, content).unwrap();
}

fn zarray(shape: &str, dtype: &str, fill: &str) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":{shape},"chunks":{shape},"dtype":"{dtype}","compressor":null,
            "fill_value":{fill},"order":"C","filters":null}}"#
    )
}

#[test]
fn texts_label_a_dimension() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".zgroup", r#"{"zarr_format":2}"#);
    put(root, "site/.zarray", zarray("[2]", "<U3", "null"));
    put(root, "site/.zattrs", r#"{"_ARRAY_DIMENSIONS":["site"]}"#);
    // np.array(["ab", "xyz"], "<U3").tobytes()
    let text: Vec<u8> = "ab\0xyz".chars().flat_map(|c| (c as u32).to_le_bytes()).collect();
    put(root, "site/0", text);
    put(root, "v/.zarray", zarray("[2]", "<i2", "null"));
    put(root, "v/.zattrs", r#"{"_ARRAY_DIMENSIONS":["site"]}"#);
    put(root, "v/0", [1, 0, 2, 0]);
    let d = open_local(root.to_str().unwrap()).unwrap().dataset;
    let want = CoordValues::Text(["ab".to_string(), "xyz".to_string()].into());
    assert_eq!(d.index_coord("site").unwrap().values, want);
    assert_eq!(d.variables.len(), 1);
}

#[test]
fn labels_of_uint64_may_be_beyond_int64() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".zgroup", r#"{"zarr_format":2}"#);
    // np.array([3, 2**63 + 5, 2**64 - 1], "u8").tobytes()
    let labels = [3u64, 0x8000_0000_0000_0005, u64::MAX].map(u64::to_le_bytes).concat();
    for name in ["k", "v"] {
        put(root, &format!("{name}/.zarray"), zarray("[3]", "<u8", "null"));
        put(root, &format!("{name}/.zattrs"), r#"{"_ARRAY_DIMENSIONS":["k"]}"#);
        put(root, &format!("{name}/0"), &labels);
    }
    let dataset = open_local(root.to_str().unwrap()).unwrap().dataset;
    let k = &dataset.index_coord("k").unwrap().values;
    assert_eq!(k.dtype(), Some(DType::UInt64));
    let told: Vec<String> = (0..3).map(|i| k.display(i)).collect();
    assert_eq!(told, ["3", "9223372036854775813", "18446744073709551615"]);
}

#[test]
fn groups_have_the_coordinates_of_their_parents() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let put_x = |at: &str, x: &[i8]| {
        put(root, &format!("{at}.zarray"), zarray(&format!("[{}]", x.len()), "|i1", "null"));
        put(root, &format!("{at}.zattrs"), r#"{"_ARRAY_DIMENSIONS":["x"]}"#);
        put(root, &format!("{at}0"), x.iter().map(|v| v.cast_unsigned()).collect::<Vec<_>>());
    };
    for group in ["", "a/", "a/b/", "a/b/c/", "a/d/"] {
        put(root, &format!("{group}.zgroup"), r#"{"zarr_format":2}"#);
    }
    put_x("x/", &[1, 0]);
    put_x("a/v/", &[5, 6]);
    put_x("a/b/x/", &[10, 20]);
    put_x("a/b/c/v/", &[7, 8]);
    put_x("a/d/v/", &[7, 8, 9]);
    let x = |group: &str| {
        let opened = open_local(&format!("{}#{group}", root.display())).unwrap();
        assert_eq!(opened.dataset.variables.len(), 1, "{group}");
        opened.dataset.index_coord("x").map(|c| c.values.clone())
    };
    let labels = |v: &[i64]| Some(CoordValues::Int(DType::Int8, v.into()));
    // xr.open_datatree(root)["a"].x and ["a/b/c"].x.
    assert_eq!((x("a"), x("a/b/c")), (labels(&[1, 0]), labels(&[10, 20])));
    // An axis of another length is another dimension.
    assert_eq!(x("a/d"), None);
}

#[test]
fn companions_are_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".zgroup", r#"{"zarr_format":2}"#);
    put(root, "x/.zarray", zarray("[2]", "<f8", "null"));
    put(root, "x/.zattrs", r#"{"_ARRAY_DIMENSIONS":["x"],"bounds":"x_bnds","units":"m"}"#);
    put(root, "x/0", [1.5f64, -2.5].map(f64::to_le_bytes).concat());
    put(root, "x_bnds/.zarray", zarray("[2,2]", "<f8", "null"));
    put(root, "x_bnds/.zattrs", r#"{"_ARRAY_DIMENSIONS":["x","nv"]}"#);
    put(root, "height/.zarray", zarray("[]", "<f8", "null"));
    put(root, "height/.zattrs", r#"{"_ARRAY_DIMENSIONS":[]}"#);
    put(root, "v/.zarray", zarray("[2]", "|i1", "null"));
    put(
        root,
        "v/.zattrs",
        r#"{"_ARRAY_DIMENSIONS":["x"],"coordinates":"height","_Unsigned":"true","_FillValue":-1,
        "scale_factor":0.5}"#,
    );
    put(root, "v/0", [0xFFu8, 0xFE]);
    let url = format!("file://{}", root.display());
    let d = open_local(&url).unwrap().dataset;
    let names = |v: &[tessera_planner::catalog::Variable]| {
        v.iter().map(|v| v.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&d.variables), ["v"]);
    assert_eq!(names(&d.auxiliary), ["height", "x_bnds"]);
    // xarray reads the bytes as uint8, the fill value as 255 and unpacks to float64: [nan, 127.0].
    let v = &d.variables[0];
    assert_eq!(v.source.dtype, DType::UInt8);
    assert_eq!(v.decode.missing[0].to_string(), "255");
    let unpack = v.decode.unpack.unwrap();
    assert_eq!((unpack.dtype, unpack.scale, unpack.offset), (DType::Float64, 0.5, 0.0));
    // Without CF the numbers and the attributes are unchanged.
    let raw = Options::parse([("decode_cf", "false")]).unwrap();
    let d = run(open(&url, &raw, &stores())).unwrap().dataset;
    assert_eq!(d.variables.len(), 3);
    assert!(d.variables.iter().all(|v| v.decode.is_identity()));
}

#[test]
fn bytes_marked_as_bool_are_truth_values() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".zgroup", r#"{"zarr_format":2}"#);
    for (name, attrs) in [("m", ""), ("n", r#","_FillValue":-1"#)] {
        put(root, &format!("{name}/.zarray"), zarray("[3]", "|i1", "null"));
        let attrs = format!(r#"{{"_ARRAY_DIMENSIONS":["x"],"dtype":"bool"{attrs}}}"#);
        put(root, &format!("{name}/.zattrs"), attrs);
        put(root, &format!("{name}/0"), [0u8, 1, 254]);
    }
    let url = root.to_str().unwrap();
    let opened = open_local(url).unwrap();
    let [m, n] = &opened.dataset.variables[..] else { panic!("{:?}", opened.dataset) };
    // xarray: [False, True, True].
    assert_eq!((m.source.dtype, m.attrs.len()), (DType::Bool, 0));
    assert_eq!(whole(opened.reader(&m.source).unwrap()), [0, 1, 1]);
    // A missing truth value stays a number.
    assert_eq!((n.source.dtype, n.attrs.len()), (DType::Int8, 1));
    let raw = Options::parse([("decode_cf", "false")]).unwrap();
    let opened = run(open(url, &raw, &stores())).unwrap();
    assert_eq!(whole(opened.reader(&opened.dataset.variables[0].source).unwrap()), [0, 1, 254]);
}

#[test]
fn scalars_label_a_new_dimension() {
    let dir = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    for (name, day) in [("a", 10u8), ("b", 3)] {
        let root = dir.path().join(name);
        put(&root, ".zgroup", r#"{"zarr_format":2}"#);
        put(&root, "time/.zarray", zarray("[]", "<i2", "null"));
        let units = r#"{"_ARRAY_DIMENSIONS":[],"units":"days since 2000-01-01"}"#;
        put(&root, "time/.zattrs", units);
        put(&root, "time/0", [day, 0]);
        put(&root, "run/.zarray", zarray("[]", "<U1", "null"));
        put(&root, "run/.zattrs", r#"{"_ARRAY_DIMENSIONS":[]}"#);
        put(&root, "run/0", u32::from(name.as_bytes()[0]).to_le_bytes());
        put(&root, "v/.zarray", zarray("[2]", "|u1", "null"));
        put(&root, "v/.zattrs", r#"{"_ARRAY_DIMENSIONS":["x"],"coordinates":"time"}"#);
        put(&root, "v/0", [day, day + 1]);
        urls.push(root.to_str().unwrap().to_string());
    }
    let opened = |dim: &str, combine: &str| {
        let options = Options::parse([("concat", dim), ("combine", combine)]).unwrap();
        let opened = run(open(&many::list_of(&urls), &options, &stores())).unwrap();
        let labels = opened.dataset.index_coord(dim).unwrap();
        let labels: Vec<String> =
            (0..labels.values.len()).map(|i| labels.values.display(i)).collect();
        let v = opened.dataset.variables.iter().find(|v| &*v.name == "v").unwrap();
        let dims: Vec<&str> = v.dims.iter().flatten().map(|d| &**d).collect();
        assert_eq!(dims, [dim, "x"]);
        (labels, whole(opened.reader(&v.source).unwrap()))
    };
    // xr.open_mfdataset(…, combine="nested", concat_dim="time"): 2000-01-11 and 2000-01-04.
    let days = ["2000-01-11T00:00:00", "2000-01-04T00:00:00"].map(String::from);
    let nested = opened("time", "nested");
    assert_eq!((nested.0.as_slice(), nested.1), (&days[..], vec![10, 11, 3, 4]));
    let (labels, cells) = opened("time", "by_coords");
    assert_eq!((&labels[0], &labels[1], cells), (&days[1], &days[0], vec![3, 4, 10, 11]));
    let (labels, _) = opened("run", "nested");
    assert_eq!(labels, ["a", "b"]);
}

#[test]
fn times_and_integers_of_several_files_are_joined() {
    let dir = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    let files = [
        ("a", 0u8, "<i4", 4, "days since 2000-01-01", -7i64),
        ("b", 1, "<i8", 8, "hours since 2000-01-03", (1 << 53) + 1),
    ];
    for (name, day, dtype, size, units, n) in files {
        let root = dir.path().join(name);
        put(&root, ".zgroup", r#"{"zarr_format":2}"#);
        put(&root, "day/.zarray", zarray("[1]", "|u1", "null"));
        put(&root, "day/.zattrs", r#"{"_ARRAY_DIMENSIONS":["day"]}"#);
        put(&root, "day/0", [day]);
        put(&root, "at/.zarray", zarray("[1]", dtype, "null"));
        let attrs = format!(r#"{{"_ARRAY_DIMENSIONS":["day"],"units":"{units}"}}"#);
        put(&root, "at/.zattrs", attrs);
        put(&root, "at/0", &1i64.to_le_bytes()[..size]);
        put(&root, "n/.zarray", zarray("[1]", dtype, "null"));
        put(&root, "n/.zattrs", r#"{"_ARRAY_DIMENSIONS":["day"]}"#);
        put(&root, "n/0", &n.to_le_bytes()[..size]);
        urls.push(root.to_str().unwrap().to_string());
    }
    let opened = run(open(&many::list_of(&urls), &Options::default(), &stores())).unwrap();
    let cells = |name: &str| {
        let v = opened.dataset.variables.iter().find(|v| &*v.name == name).unwrap();
        (v.dtype(), whole(opened.reader(&v.source).unwrap()))
    };
    // xr.open_mfdataset: 2000-01-02T00:00 and 2000-01-03T01:00; int64.
    let micros = [946_771_200_000_000i64, 946_861_200_000_000].map(i64::to_ne_bytes).concat();
    assert_eq!(cells("at"), (DType::Datetime(Calendar::Standard), micros));
    let n = [-7i64, (1 << 53) + 1].map(i64::to_ne_bytes).concat();
    assert_eq!(cells("n"), (DType::Int64, n));
}

#[test]
fn durations_in_other_units_are_no_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    for (name, units, step) in [("a", "hours", 6u8), ("b", "days", 1)] {
        let root = dir.path().join(name);
        put(&root, ".zgroup", r#"{"zarr_format":2}"#);
        put(&root, "step/.zarray", zarray("[1]", "|u1", "null"));
        let attrs = format!(
            r#"{{"_ARRAY_DIMENSIONS":["step"],"dtype":"timedelta64[ns]","units":"{units}"}}"#
        );
        put(&root, "step/.zattrs", attrs);
        put(&root, "step/0", [step]);
        put(&root, "v/.zarray", zarray("[1]", "|u1", "null"));
        put(&root, "v/.zattrs", r#"{"_ARRAY_DIMENSIONS":["step"]}"#);
        put(&root, "v/0", [step]);
        urls.push(root.to_str().unwrap().to_string());
    }
    let told = run(open(&many::list_of(&urls), &Options::default(), &stores())).err().unwrap();
    let told = told.to_string();
    assert!(told.contains("`step` is in hours in") && told.contains("and in days in"), "{told}");
}

#[test]
fn bounds_of_unsigned_bytes_are_unsigned() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    put(root, ".zgroup", r#"{"zarr_format":2}"#);
    put(root, "v/.zarray", zarray("[3]", "|i1", "null"));
    let attrs = r#"{"_ARRAY_DIMENSIONS":["x"],"_Unsigned":"true","valid_range":[0,-2]}"#;
    put(root, "v/.zattrs", attrs);
    put(root, "v/0", [255u8, 254, 3]);
    let d = open_local(root.to_str().unwrap()).unwrap().dataset;
    // netCDF4 reads [--, 254, 3].
    let decode = &d.variables[0].decode;
    let bounds = [decode.valid_min, decode.valid_max].map(|b| b.unwrap().to_string());
    assert_eq!(bounds, ["0", "254"]);
}

#[test]
fn nothing_outside_the_store_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("s.zarr");
    put(dir.path(), "secret/0", [7u8]);
    let meta = format!(
        r#"{{"zarr_consolidated_format":1,"metadata":{{".zgroup":{{"zarr_format":2}},"../secret/.zarray":{a},"a/../../secret/.zarray":{a},"ok/.zarray":{a}}}}}"#,
        a = zarray("[1]", "|u1", "null")
    );
    put(&root, ".zmetadata", meta);
    let opened = open_local(root.to_str().unwrap()).unwrap();
    let names: Vec<&str> = opened.dataset.variables.iter().map(|v| &*v.name).collect();
    assert_eq!(names, ["ok"]);
    let e = open_local(&format!("{}#../secret", root.display())).unwrap_err();
    assert_eq!(e.code(), "bad_url");
}

#[test]
fn large_npy_files_are_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("big.npy");
    // np.save of np.arange(3_000_000, dtype='<i4').reshape(3000, 1000), and the same in Fortran order.
    for fortran in [false, true] {
        let text = format!(
            "{{'descr': '<i4', 'fortran_order': {}, 'shape': (3000, 1000), }}",
            if fortran { "True" } else { "False" }
        );
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend_from_slice(&(text.len() as u16).to_le_bytes());
        file.extend_from_slice(text.as_bytes());
        for i in 0..3_000_000i32 {
            let v = if fortran { i % 3000 * 1000 + i / 3000 } else { i };
            file.extend_from_slice(&v.to_le_bytes());
        }
        fs::write(&path, &file).unwrap();
        let stores = stores();
        let opened = run(open(path.to_str().unwrap(), &Options::default(), &stores)).unwrap();
        let reader = &opened.readers[0];
        let want = if fortran { "[3000/3000, 1000/699]" } else { "[3000/2097, 1000/1000]" };
        assert_eq!(reader.source().grid.to_string(), want);
        for region in [
            Region::at(&[7, 3], &[2500, 2]),
            Region::at(&[7, 3], &[2, 900]),
            Region::at(&[1000, 0], &[1000, 1000]),
            Region::at(&[0, 500], &[3000, 100]),
        ] {
            let before = stores.counters().snapshot().1;
            let cells = read(reader, &region).unwrap();
            let got: Vec<i32> =
                cells.as_chunks().0.iter().map(|c| i32::from_le_bytes(*c)).collect();
            let rows = region.start[0]..region.end[0];
            let want: Vec<i32> = rows
                .flat_map(|r| (region.start[1]..region.end[1]).map(move |c| (r * 1000 + c) as i32))
                .collect();
            assert!(got == want, "{region} fortran {fortran}");
            let read = stores.counters().snapshot().1 - before;
            let along = (region.len(0) == 1000) != fortran;
            if region.len(1) == 1000 && !fortran || region.len(0) == 3000 && fortran {
                assert_eq!(read, region.cells() * 4, "{along}");
            }
            assert!(read <= 12_000_000);
        }
    }
}

/// `np.save` of an array of `<i2`.
fn npy(shape: &str, cells: impl Iterator<Item = i16>) -> Vec<u8> {
    let text = format!("{{'descr': '<i2', 'fortran_order': False, 'shape': {shape}, }}");
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend_from_slice(&(text.len() as u16).to_le_bytes());
    npy.extend_from_slice(text.as_bytes());
    cells.for_each(|v| npy.extend_from_slice(&v.to_le_bytes()));
    npy
}

/// An archive of one member `a.npy`, and the offset of its directory.
fn archive(method: u8, packed: &[u8], npy: &[u8]) -> (Vec<u8>, usize) {
    let crc = crc32fast::hash(npy).to_le_bytes();
    let sizes = [(packed.len() as u32).to_le_bytes(), (npy.len() as u32).to_le_bytes()].concat();
    let mut zip = [&b"PK\x03\x04\x14\0\0\0"[..], &[method, 0, 0, 0, 0, 0]].concat();
    zip.extend([&crc[..], &sizes, b"\x05\0\0\0a.npy", packed].concat());
    let at = zip.len();
    let mut entry = [&b"PK\x01\x02\x14\0\x14\0\0\0"[..], &[method, 0, 0, 0, 0, 0]].concat();
    entry.extend([&crc[..], &sizes, b"\x05\0", &[0; 16], b"a.npy"].concat());
    zip.extend(&entry);
    zip.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    zip.extend([(entry.len() as u32).to_le_bytes(), (at as u32).to_le_bytes()].concat());
    zip.extend([0, 0]);
    (zip, at)
}

#[test]
fn compressed_archives_are_unpacked() {
    // np.savez_compressed(f, a=np.arange(6, dtype="<i2").reshape(2, 3)), built here byte by byte.
    let npy = npy("(2, 3)", 0..6);
    let mut packed = Vec::new();
    let mut encoder = flate2::read::DeflateEncoder::new(&*npy, flate2::Compression::best());
    std::io::copy(&mut encoder, &mut packed).unwrap();
    let (zip, at) = archive(8, &packed, &npy);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    fs::write(&path, zip).unwrap();
    let opened = open_local(path.to_str().unwrap()).unwrap();
    assert!(opened.unsupported.is_empty(), "{:?}", opened.unsupported);
    let want: Vec<u8> = (0..6i16).flat_map(i16::to_le_bytes).collect();
    assert_eq!(whole(&opened.readers[0]), want);
    // Changes a byte of the directory's checksum.
    let mut damaged = fs::read(&path).unwrap();
    damaged[at + 16] ^= 1;
    fs::write(&path, damaged).unwrap();
    let opened = open_local(path.to_str().unwrap()).unwrap();
    let error = opened.unsupported.get("a").unwrap().to_string();
    assert!(error.contains("checksum is wrong"), "{error}");
}

#[test]
fn stored_archives_are_checked_once_all_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npz");
    let npy = npy("(200, 200)", (0..200 * 200).map(|v: i32| v as i16));
    let (mut zip, at) = archive(0, &npy, &npy);
    let all = Region::whole(&[200, 200]);
    fs::write(&path, &zip).unwrap();
    let opened = open_local(path.to_str().unwrap()).unwrap();
    assert_eq!(whole(&opened.readers[0]), npy[npy.len() - 80_000..]);
    // A bit of the last cell, as numpy.load finds it: Bad CRC-32 for file 'a.npy'.
    zip[at - 1] ^= 1;
    fs::write(&path, &zip).unwrap();
    for boxes in [
        vec![all.clone()],
        vec![Region::at(&[90, 0], &[110, 200]), Region::at(&[0, 0], &[90, 200])],
    ] {
        let opened = open_local(path.to_str().unwrap()).unwrap();
        let reader = opened.readers[0].fresh();
        let (last, before) = boxes.split_last().unwrap();
        before.iter().for_each(|part| drop(read(&reader, part).unwrap()));
        let error = read(&reader, last).unwrap_err();
        assert_eq!(error.code(), "corrupt_chunk", "{error}");
        // A part alone has no checksum.
        assert!(read(&opened.readers[0].fresh(), &Region::at(&[199, 0], &[1, 200])).is_ok());
    }
}
