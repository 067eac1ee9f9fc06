#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::answer::Tensor;
use crate::format::tests::{dim, tensor};
use std::sync::Arc;
use tessera_frontend::labels::DatasetLabels;
use tessera_planner::catalog::{NAT, TextColumn};
use tessera_planner::dtype::Calendar;
use tessera_planner::time::DAY_US;

/// Files of netCDF4 1.7.5 (netCDF-C 4.10.1) with the same dimensions, attributes and values, without prefill.
const CDF2: &str = "\
43444602000000000000000a000000020000000474696d6500000002000000036c617400000000030000000c00000001\
0000000b436f6e76656e74696f6e7300000000020000000743462d312e3131000000000b000000060000000474696d65\
00000001000000000000000c000000020000000863616c656e646172000000020000001370726f6c65707469635f6772\
65676f7269616e0000000005756e697473000000000000020000001e646179732073696e636520313937302d30312d30\
312030303a30303a3030000000000004000000080000000000000264000000036c617400000000010000000100000000\
00000000000000050000000c000000000000026c0000000374326d000000000200000000000000010000000c00000004\
0000000a5f46696c6c56616c7565000000000005000000017cf00000000000056c6576656c0000000000000400000001\
00000002000000057363616c6500000000000006000000023fe00000000000003ff000000000000000000005756e6974\
7300000000000002000000014b0000000000000500000018000000000000027800000003686f74000000000100000001\
0000000c000000010000000564747970650000000000000200000004626f6f6c00000001000000040000000000000290\
000000016e00000000000001000000010000000c000000020000000a5f46696c6c56616c756500000000000100000001\
ff000000000000095f556e7369676e656400000000000002000000047472756500000001000000040000000000000294\
000000046d65616e00000000000000000000000000000006000000080000000000000298000000000000000142480000\
42506666425c00003dcccccd7fc000007f800000bf8000007cf00000501502f90100010001fffe004004000000000000";
const CDF5: &str = "\
4344460500000000000000000000000a000000000000000300000000000000046e616d65000000000000000200000000\
000000017800000000000000000000030000000000000007737472696e67350000000000000000050000000c00000000\
00000001000000000000000b436f6e76656e74696f6e730000000002000000000000000743462d312e3131000000000b\
000000000000000400000000000000046e616d650000000000000002000000000000000000000000000000020000000c\
000000000000000100000000000000095f456e636f64696e670000000000000200000000000000057574662d38000000\
00000002000000000000000c00000000000001ec0000000000000005636f756e74000000000000000000000200000000\
0000000000000000000000010000000c0000000000000001000000000000000a5f46696c6c56616c756500000000000a\
000000000000000180000000000000020000000a000000000000003000000000000001f8000000000000000175000000\
000000000000000100000000000000010000000000000000000000000000000800000000000000080000000000000228\
000000000000000162000000000000000000000100000000000000010000000000000000000000000000000700000000\
0000000400000000000002305ac3bc72694265726e000000000000000000000100000000000000020000000000000003\
8000000000000002000000000000000500000100000000000001ffff0003000001ff0300";
/// Of `t` without records beside `lat`.
const EMPTY: &str = "\
43444602000000000000000a00000002000000017400000000000000000000036c617400000000030000000c00000001\
0000000b436f6e76656e74696f6e7300000000020000000743462d312e3131000000000b000000040000000174000000\
0000000100000000000000000000000000000003000000040000000000000108000000036c6174000000000100000001\
0000000000000000000000050000000c00000000000000fc000000017600000000000002000000000000000100000000\
000000000000000100000004000000000000010c00000001770000000000000100000000000000000000000000000006\
0000000800000000000001104248000042506666425c0000";

fn written(tensors: &[&Tensor]) -> Result<Vec<u8>, Error> {
    let tensors: Vec<&dyn Windows> = tensors.iter().map(|t| *t as &dyn Windows).collect();
    let mut out = Vec::new();
    write(&tensors, &mut out)?;
    Ok(out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn lat() -> DimLabel {
    dim("lat", Some(CoordValues::Float(DType::Float32, [50.0, 52.1f32.into(), 55.0].into())))
}

/// A tensor with attributes.
fn with(t: Tensor, attrs: &[(&str, serde_json::Value)]) -> Tensor {
    let attrs = attrs.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
    let (data, valid) = (t.data().clone(), t.valid().cloned());
    let (dims, grid) = (t.dims().to_vec(), t.grid().clone());
    Tensor::new(t.name(), t.dtype(), dims, grid, data, valid, attrs).unwrap()
}

#[test]
fn cdf_2_has_netcdfs_bytes() {
    let time = CoordValues::Time(Calendar::Standard, [0, DAY_US].into());
    let cells = vec![0.1f32, f32::NAN, f32::INFINITY, -1.0, 7.0, 1e10];
    let valid = Some(vec![1, 1, 1, 1, 0, 1]);
    let t2m = tensor(
        "t2m",
        DType::Float32,
        vec![dim("time", Some(time.clone())), lat()],
        &[2, 3],
        cells,
        valid,
    );
    let t2m = with(
        t2m,
        &[
            ("units", "K".into()),
            ("level", 2.into()),
            ("scale", json!([0.5, 1.0])),
            // These attributes describe how the source stored its cells.
            ("scale_factor", 2.into()),
            ("_FillValue", 7.into()),
        ],
    );
    let hot = tensor("hot", DType::Bool, vec![lat()], &[3], vec![1u8, 0, 1], None);
    let n = tensor("n", DType::UInt8, vec![lat()], &[3], vec![1u8, 7, 254], Some(vec![1, 0, 1]));
    let mean = tensor("mean", DType::Float64, vec![], &[], vec![2.5f64], None);
    // Labels of another item are no variable of their own.
    let labels = vec![0, DAY_US];
    let own = vec![dim("time", Some(time))];
    let own = tensor("time", DType::Datetime(Calendar::Standard), own, &[2], labels, None);
    let got = written(&[&own, &t2m, &hot, &n, &mean]).unwrap();
    assert_eq!(hex(&got), CDF2);
}

#[test]
fn wide_types_and_texts_are_cdf_5() {
    let name = dim("name", Some(CoordValues::Text(["Züri".to_string(), "Bern".into()].into())));
    let cells = vec![1i64, 2, 3, 4, 5, 1 << 40];
    let valid = Some(vec![1, 1, 1, 0, 1, 1]);
    let count = tensor("count", DType::Int64, vec![name, dim("x", None)], &[2, 3], cells, valid);
    let u = tensor("u", DType::UInt16, vec![dim("x", None)], &[3], vec![1u16, 65535, 3], None);
    let b = tensor("b", DType::UInt8, vec![dim("x", None)], &[3], vec![1u8, 255, 3], None);
    assert_eq!(hex(&written(&[&count, &u, &b]).unwrap()), CDF5);
}

/// The bytes of the header that a name is followed by.
fn after<'a>(file: &'a [u8], name: &str) -> &'a [u8] {
    let at = file.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
    &file[at + name.len().next_multiple_of(4)..]
}

#[test]
fn datetimes_masks_and_names_are_as_readers_take_them() {
    let cells = vec![DAY_US / 2, 7, NAT, DAY_US];
    let x = || vec![dim("x", None)];
    let t = DType::Datetime(Calendar::Day360);
    let times = tensor("t", t, x(), &[4], cells, Some(vec![1, 0, 1, 1]));
    let times = with(times, &[("units", "days since 1850-01-01".into()), ("axis", "T".into())]);
    let file = written(&[&times]).unwrap();
    assert_eq!(file[3], 2);
    let text = String::from_utf8_lossy(&file).into_owned();
    assert!(text.contains("hours since 1970-01-01") && text.contains("360_day"), "{text}");
    assert!(!text.contains("1850") && text.contains("axis"), "{text}");
    let want: Vec<u8> = [12, -2_147_483_647, -2_147_483_647, 24i32].map(i32::to_be_bytes).concat();
    assert!(file.ends_with(&want), "{file:?}");
    // Masked truth values are numbers.
    let b = tensor("b", DType::Bool, x(), &[4], vec![1u8, 0, 1, 0], Some(vec![1, 1, 0, 1]));
    let file = written(&[&b]).unwrap();
    assert!(!String::from_utf8_lossy(&file).contains("dtype"));
    assert_eq!(after(&file, "_FillValue")[..12], [0, 0, 0, 1, 0, 0, 0, 1, 0x81, 0, 0, 0]);
    assert!(file.ends_with(&[1, 0, 0x81, 0]));
    // A mask that masks nothing is not declared.
    let b = tensor("b", DType::Int8, x(), &[4], vec![1i8, -127, 1, 0], Some(vec![1; 4]));
    assert!(!String::from_utf8_lossy(&written(&[&b]).unwrap()).contains("_FillValue"));
    // Dimensions without a name.
    let bare = vec![DimLabel::default(), dim("x", None)];
    let bare = tensor("m", DType::Int8, bare, &[2, 4], vec![0i8; 8], None);
    let file = written(&[&bare]).unwrap();
    let list = after(&file, cf::UNNAMED_KEY);
    assert!(String::from_utf8_lossy(&file).contains("dim_0"));
    assert_eq!(list[..12], [0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn results_that_cannot_be_one_dataset_are_refused() {
    let x =
        |n: usize| tensor("a", DType::Int8, vec![dim("x", None)], &[n as u64], vec![0i8; n], None);
    let e = written(&[&x(2), &x(3).renamed("b")]).unwrap_err();
    assert_eq!(e.code(), "name_conflict");
    let e = written(&[&x(2), &x(2)]).unwrap_err();
    assert!(e.to_string().contains("two results are called `a`"), "{e}");
    // No cells: the record dimension, of no records.
    let empty = written(&[&x(0)]).unwrap();
    assert_eq!(empty[..28], *b"CDF\x02\0\0\0\0\0\0\0\x0a\0\0\0\x01\0\0\0\x01x\0\0\0\0\0\0\0");
    let t = || dim("t", Some(CoordValues::Int(DType::Int16, [].into())));
    let v = tensor("v", DType::Int8, vec![t(), lat()], &[0, 3], Vec::<i8>::new(), None);
    let w = tensor("w", DType::Float64, vec![t()], &[0], Vec::<f64>::new(), None);
    assert_eq!(hex(&written(&[&v, &w]).unwrap()), EMPTY);
    let dims = vec![dim("y", None), dim("x", None)];
    let last = tensor("a", DType::Int8, dims, &[2, 0], Vec::<i8>::new(), None);
    let e = written(&[&last]).unwrap_err();
    assert_eq!((e.code(), e.hint().as_deref()), ("format", Some("write ZARR")), "{e}");
}

#[test]
fn attributes_have_the_narrowest_type() {
    let attrs: Attrs = [
        ("a/b", json!([1, 2])),
        ("big", json!(1i64 << 40)),
        ("list", json!(["x", 1])),
        ("mixed", json!([1, 2.5])),
        ("none", json!(null)),
        ("yes", json!(true)),
    ]
    .map(|(k, v)| (k.to_string(), v))
    .into();
    let narrow = attributes::of(&attrs, false);
    assert_eq!(narrow["a_b"], Attribute::Numbers(Kind::Int, vec![0, 0, 0, 1, 0, 0, 0, 2]));
    let float = |v: f64| v.to_be_bytes().to_vec();
    assert_eq!(narrow["big"], Attribute::Numbers(Kind::Double, float((1u64 << 40) as f64)));
    assert_eq!(narrow["list"], Attribute::Text("[\"x\",1]".into()));
    assert_eq!(
        narrow["mixed"],
        Attribute::Numbers(Kind::Double, [float(1.0), float(2.5)].concat())
    );
    assert_eq!(narrow["yes"], Attribute::Numbers(Kind::Byte, vec![1]));
    assert_eq!(narrow.len(), 5);
    let wide = attributes::of(&attrs, true);
    assert_eq!(wide["big"], Attribute::Numbers(Kind::Int64, (1i64 << 40).to_be_bytes().to_vec()));
}

#[test]
fn a_copy_has_the_attributes_and_the_coordinates_of_its_dataset() {
    let of: Attrs = [("Conventions", "CF-1.6"), ("title", "t"), ("coordinates", "gone")]
        .map(|(key, value)| (key.to_string(), json!(value)))
        .into();
    let of = DatasetLabels::of_tensors(of);
    let plane = || vec![dim("y", None), dim("x", None)];
    let t = tensor("t", DType::Int8, plane(), &[1, 2], vec![1i8, 2], None);
    let lat = tensor("lat", DType::Int8, plane(), &[1, 2], vec![3i8, 4], None);
    let (t, lat) = (t.in_dataset(of.clone(), false), lat.in_dataset(of, true));
    let tensors: [&dyn Windows; 2] = [&t, &lat];
    let file = File::new(&tensors, &mut Vec::new()).unwrap();
    let attrs: Vec<_> = file.attrs.iter().map(|(key, v)| (key.as_str(), v.as_str())).collect();
    assert_eq!(attrs, [("Conventions", Some("CF-1.6")), ("title", Some("t"))]);
    let named: Vec<_> = file.variables.iter().map(|v| v.attrs.get(cf::COORDINATES_KEY)).collect();
    assert_eq!(named, [Some(&json!("lat")), None]);
    let alone = File::new(&tensors[1..], &mut Vec::new()).unwrap();
    assert!(alone.variables[0].attrs.is_empty() && !alone.attrs.contains_key("coordinates"));
}

#[test]
fn names_that_the_library_refuses_are_errors() {
    let refused = |name: &str, along: &str| {
        let t = tensor(name, DType::Int8, vec![dim(along, None)], &[1], vec![1i8], None);
        written(&[&t]).map(|_| String::new()).unwrap_or_else(|e| e.to_string())
    };
    // netCDF4 1.7.5 refuses to create these, and creates those below.
    for (name, along) in [("-x", "d"), ("(a)", "d"), (" a", "d"), ("x ", "d"), ("x", "+d")] {
        let e = refused(name, along);
        assert!(e.contains("cannot be a name"), "{name} {along}: {e}");
    }
    for name in ["2x", "_x", "é", "a b", "a-b"] {
        assert_eq!(refused(name, "d"), "", "{name}");
    }
}

#[test]
fn texts_are_padded_to_the_longest_one_that_is_stored() {
    let column = |name: &str, dim: &str, texts: Texts| TextColumn {
        coord: Arc::new(Coord {
            name: name.into(),
            dim: dim.into(),
            values: CoordValues::Text(texts),
            attrs: Attrs::new(),
        }),
        is_along: name != dim,
        is_coordinate: false,
    };
    let rows = |all: [Option<&str>; 2]| -> Texts {
        all.map(|text| text.map(String::from)).into_iter().collect()
    };
    let long = "é".repeat(WINDOW_CELLS as usize);
    let texts = vec![
        column("a", "x", rows([None, Some("b")])),
        column("long", "x", rows([Some(&long), Some("c")])),
        column("alone", "alone", ["é".to_string()].into()),
    ];
    let of = Arc::new(DatasetLabels { attrs: Arc::default(), texts });
    // Labels have no text that marks others as missing.
    let x = vec![dim("x", Some(CoordValues::Text(rows([Some("AB"), None]))))];
    let t = tensor("t", DType::Int8, x, &[2], vec![1i8, 2], None).in_dataset(of, false);
    let tensors: [&dyn Windows; 1] = [&t];
    let file = File::new(&tensors, &mut Vec::new()).unwrap();
    let dims: Vec<(&str, u64)> = file.dims.iter().map(|d| (d.name.as_str(), d.len)).collect();
    let width = 2 * WINDOW_CELLS;
    let letters = format!("string{width}");
    assert_eq!(dims, [("x", 2), ("string2", 2), ("string4", 4), (letters.as_str(), width)]);
    let bytes = |at: usize| {
        let (v, mut out) = (&file.variables[at], Vec::new());
        v.write(&mut out).unwrap();
        assert_eq!(out.len() as u64, v.bytes, "{}", v.name);
        out
    };
    assert_eq!(bytes(0), b"AB\0\0");
    assert_eq!(bytes(1), [1, 2]);
    assert_eq!(bytes(2), b"NULLb\0\0\0");
    let mut padded = long.into_bytes();
    padded.push(b'c');
    padded.resize(2 * width as usize, 0);
    assert!(bytes(3) == padded);
    assert_eq!(bytes(4), "é".as_bytes());
    let marks: Vec<_> = file.variables.iter().map(|v| v.attrs.get(cf::MISSING_KEY)).collect();
    assert_eq!(marks, [None, None, Some(&json!("NULL")), None, None]);
}
