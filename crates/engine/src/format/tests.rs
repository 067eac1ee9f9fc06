#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::answer::{Answer, Reply, RowsHeld, Surface, Tensor};
use arrow::array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray};
use arrow::buffer::Buffer;
use std::sync::Arc;
use tessera_planner::catalog::{Coord, CoordValues, DimLabel};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;

pub(super) fn dim(name: &str, values: Option<CoordValues>) -> DimLabel {
    let name: Arc<str> = name.into();
    let coord = values.map(|values| {
        Arc::new(Coord { name: name.clone(), dim: name.clone(), values, attrs: Default::default() })
    });
    DimLabel { name: Some(name), coord }
}

pub(super) fn tensor<T: arrow::datatypes::ArrowNativeType>(
    name: &str,
    dtype: DType,
    dims: Vec<DimLabel>,
    shape: &[u64],
    cells: Vec<T>,
    valid: Option<Vec<u8>>,
) -> Tensor {
    let valid = valid.map(Buffer::from_vec);
    let grid = Grid::regular(shape, &vec![2; shape.len()]);
    Tensor::new(name, dtype, dims, grid, Buffer::from_vec(cells), valid, Default::default())
        .unwrap()
}

/// `[time: 2, lat: 3]` of float32, a NaN, a masked cell.
fn t2m() -> Tensor {
    let time = CoordValues::Time(Calendar::Standard, vec![0, 86_400_000_000].into());
    let lat = CoordValues::Float(DType::Float32, vec![50.0, f64::from(52.1f32), 55.0].into());
    tensor(
        "t2m",
        DType::Float32,
        vec![dim("time", Some(time)), dim("lat", Some(lat))],
        &[2, 3],
        vec![0.1f32, f32::NAN, f32::INFINITY, -1.0, 7.0, 1e10],
        Some(vec![1, 1, 1, 1, 0, 1]),
    )
}

fn write(format: Format, answers: Vec<Answer>) -> Result<Vec<u8>, Error> {
    let mut w = Writer::new(format, Options::default(), Vec::new())?;
    for a in answers {
        w.push(Reply { surface: Some(Surface::Tensor), ..a.into() })?;
    }
    w.finish()
}

fn text(format: Format, answers: Vec<Answer>) -> String {
    String::from_utf8(write(format, answers).unwrap()).unwrap()
}

fn rows() -> Answer {
    let lat: ArrayRef = Arc::new(Float64Array::from(vec![75.0, 72.5]));
    let name: ArrayRef = Arc::new(StringArray::from(vec![Some("a,\"b\""), None]));
    let n: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), Some(-20)]));
    let batch = RecordBatch::try_from_iter([("lat", lat), ("name", name), ("n", n)]).unwrap();
    Answer::Rows { schema: batch.schema(), batches: vec![batch], held: RowsHeld::default() }
}

#[test]
fn json_of_tensors_follows_the_interface() {
    assert_eq!(
        text(Format::Json, vec![Answer::Tensors(vec![t2m()])]),
        "{\"tensors\":[{\"name\":\"t2m\",\"dtype\":\"float32\",\"dims\":[\"time\",\"lat\"],\"shape\":[2,3],\
         \"coords\":{\"time\":[\"1970-01-01T00:00:00\",\"1970-01-02T00:00:00\"],\"lat\":[50.0,52.1,55.0]},\
         \"data\":[[0.1,\"NaN\",\"Infinity\"],[-1.0,null,10000000000.0]]}],\"surface\":\"tensor\"}\n"
    );
    let scalar = tensor("n", DType::Int64, vec![], &[], vec![5i64], None);
    let empty = tensor(
        "e",
        DType::Bool,
        vec![dim("x", None), DimLabel::default()],
        &[2, 0],
        Vec::<u8>::new(),
        None,
    );
    assert_eq!(
        text(Format::Json, vec![Answer::Tensors(vec![scalar, empty]), Answer::Done("x".into())]),
        "{\"tensors\":[{\"name\":\"n\",\"dtype\":\"int64\",\"dims\":[],\"shape\":[],\"coords\":{},\"data\":5},\
         {\"name\":\"e\",\"dtype\":\"bool\",\"dims\":[\"x\",\"dim_1\"],\"shape\":[2,0],\"coords\":{},\"data\":[[],[]]}],\
         \"surface\":\"tensor\"}\n{\"ok\":\"x\"}\n"
    );
}

#[test]
fn rows_have_columns_in_every_text_format() {
    assert_eq!(
        text(Format::Json, vec![rows()]),
        "{\"columns\":[{\"name\":\"lat\",\"type\":\"float64\"},{\"name\":\"name\",\"type\":\"string\"},\
         {\"name\":\"n\",\"type\":\"int32\"}],\"rows\":[[75.0,\"a,\\\"b\\\"\",1],[72.5,null,-20]],\
         \"surface\":\"tensor\"}\n"
    );
    assert_eq!(
        text(Format::Ndjson, vec![rows()]),
        "{\"lat\":75.0,\"name\":\"a,\\\"b\\\"\",\"n\":1}\n{\"lat\":72.5,\"name\":null,\"n\":-20}\n"
    );
    assert_eq!(text(Format::Csv, vec![rows()]), "lat,name,n\n75.0,\"a,\"\"b\"\"\",1\n72.5,,-20\n");
    assert_eq!(
        text(Format::Table, vec![rows()]),
        "\
┌──────┬───────┬─────┐
│  lat │ name  │   n │
├──────┼───────┼─────┤
│ 75.0 │ a,\"b\" │   1 │
│ 72.5 │ NULL  │ -20 │
└──────┴───────┴─────┘
(2 rows)
"
    );
}

#[test]
fn a_long_box_shows_its_ends() {
    let n: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1000));
    let batch = RecordBatch::try_from_iter([("n", n)]).unwrap();
    // Batches of any size give the same box.
    for size in [1000, 333, 30, 7] {
        let batches = (0..1000).step_by(size).map(|i| batch.slice(i, size.min(1000 - i))).collect();
        let out = text(
            Format::Table,
            vec![Answer::Rows { schema: batch.schema(), batches, held: RowsHeld::default() }],
        );
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3 + 41 + 2, "{out}");
        assert_eq!((lines[3], lines[22]), ("│   0 │", "│  19 │"));
        assert_eq!((lines[23], lines[24], lines[43]), ("│   … │", "│ 980 │", "│ 999 │"));
        assert_eq!(lines[45], "(1000 rows, 40 shown)");
    }
}

#[test]
fn a_tensor_is_long_in_csv() {
    let hot =
        tensor("hot", DType::Bool, t2m().dims().to_vec(), &[2, 3], vec![1u8, 0, 1, 0, 1, 0], None);
    let other =
        tensor("time", DType::Int8, vec![dim("time", None)], &[2], vec![-1i8, 2], Some(vec![0, 1]));
    assert_eq!(
        text(Format::Csv, vec![Answer::Tensors(vec![t2m(), other, hot])]),
        "\
time,lat,t2m,hot
1970-01-01T00:00:00,50.0,0.1,true
1970-01-01T00:00:00,52.1,NaN,false
1970-01-01T00:00:00,55.0,Infinity,true
1970-01-02T00:00:00,50.0,-1.0,false
1970-01-02T00:00:00,52.1,,true
1970-01-02T00:00:00,55.0,10000000000.0,false

time,time_1
0,
1,2
"
    );
}

#[test]
fn a_table_has_a_header_and_numpys_values() {
    // The values are str(np.ma.array([[0.1, nan, inf], [-1, 7, 1e10]], mask=…)).
    assert_eq!(
        text(Format::Table, vec![Answer::Tensors(vec![t2m()])]),
        "\
t2m  float32 [time: 2, lat: 3]
  time    1970-01-01T00:00:00 … 1970-01-02T00:00:00
  lat     50.0 … 55.0
  chunks  2 × 2 (1 × 2)
[[0.1 nan inf]
 [-1.0 -- 10000000000.0]]
"
    );
    let scalar = tensor("mean", DType::Float64, vec![], &[], vec![0.1f64 + 0.2], None);
    assert_eq!(
        text(Format::Table, vec![Answer::Tensors(vec![scalar])]),
        "mean  float64 []\n0.30000000000000004\n"
    );
}

#[test]
fn npy_has_numpys_bytes() {
    // np.save of np.arange(6, dtype='<i2').reshape(2, 3), NumPy 2.4.6.
    let t =
        tensor("x", DType::Int16, vec![DimLabel::default(); 2], &[2, 3], (0..6i16).collect(), None);
    let mut want =
        b"\x93NUMPY\x01\x00v\x00{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }"
            .to_vec();
    want.resize(127, b' ');
    want.extend_from_slice(b"\n\x00\x00\x01\x00\x02\x00\x03\x00\x04\x00\x05\x00");
    assert_eq!(write(Format::Npy, vec![Answer::Tensors(vec![t.clone()])]).unwrap(), want);
    // Headers of one axis and of none, as NumPy writes them.
    let header = |shape: &[u64]| {
        let h = npy::header(DType::Float64, shape).unwrap();
        String::from_utf8(h[10..].to_vec()).unwrap()
    };
    assert_eq!(
        header(&[3]).trim_end(),
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }"
    );
    assert_eq!(header(&[]).trim_end(), "{'descr': '<f8', 'fortran_order': False, 'shape': (), }");
    assert_eq!((header(&[3]).len(), header(&[]).len()), (118, 118));
}

#[test]
fn masked_floats_are_nan_and_datetimes_nat_in_npy_and_others_are_refused() {
    let bytes = write(Format::Npy, vec![Answer::Tensors(vec![t2m()])]).unwrap();
    let cells: Vec<f32> =
        bytes[128..].chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    assert!(cells[4].is_nan() && cells[5] == 1e10 && cells[0] == 0.1, "{cells:?}");
    let standard = DType::Datetime(Calendar::Standard);
    let days = vec![86_400_000_000i64, 5, -1];
    let times = tensor("t", standard, vec![DimLabel::default()], &[3], days, Some(vec![1, 0, 1]));
    let bytes = write(Format::Npy, vec![Answer::Tensors(vec![times])]).unwrap();
    let cells: Vec<i64> =
        bytes[128..].chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap())).collect();
    // numpy.datetime64('NaT') is the least integer.
    assert_eq!(cells, [86_400_000_000, i64::MIN, -1]);
    let masked =
        tensor("n", DType::Int8, vec![DimLabel::default()], &[2], vec![1i8, 2], Some(vec![1, 0]));
    let e = write(Format::Npy, vec![Answer::Tensors(vec![masked])]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "npy cannot hold this result: NumPy cannot store masked int8, and 1 cells are masked"
    );
    let whole =
        tensor("n", DType::Int8, vec![DimLabel::default()], &[2], vec![1i8, 2], Some(vec![1, 1]));
    assert!(write(Format::Npy, vec![Answer::Tensors(vec![whole])]).is_ok());
    let noleap = tensor("t", DType::Datetime(Calendar::NoLeap), vec![], &[], vec![0i64], None);
    let e = write(Format::Npz, vec![Answer::Tensors(vec![noleap])]).unwrap_err();
    assert!(e.to_string().contains("calendar `noleap`"), "{e}");
}

#[test]
fn formats_of_one_result_want_one() {
    let t = || Answer::Tensors(vec![t2m()]);
    let done = || Answer::Done("created".into());
    let refused = |f, a| write(f, a).unwrap_err().to_string();
    assert!(write(Format::Npy, vec![done(), t(), done()]).is_ok());
    assert!(refused(Format::Npy, vec![t(), t()]).contains("several statements"));
    // Statements without a result are not an error, and nothing is written.
    assert!(write(Format::Npy, vec![done(), done()]).unwrap().is_empty());
    for format in [Format::NetCdf, Format::Tiff, Format::Safetensors] {
        assert!(refused(format, vec![rows()]).contains("it is rows"), "{format:?}");
    }
    assert!(
        refused(Format::Npy, vec![Answer::Tensors(vec![t2m(), t2m()])])
            .contains("exactly one tensor")
    );
    assert!(refused(Format::Npz, vec![rows()]).contains("rows"));
    assert!(refused(Format::Arrow, vec![Answer::Text("plan".into())]).contains("text"));
    let x = tensor("x", DType::Int8, vec![], &[], vec![1i8], None);
    assert!(refused(Format::Arrow, vec![Answer::Tensors(vec![t2m(), x])]).contains("(t2m, x)"));
    assert!(refused(Format::Parquet, vec![]).contains("the statements return no result"));
}

#[test]
fn parquet_reads_back() {
    use ::arrow::array::RecordBatchReader;
    use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    let read = |answer: Answer| {
        let bytes = bytes::Bytes::from(write(Format::Parquet, vec![answer]).unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).unwrap().build().unwrap();
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().unwrap();
        Answer::Rows { schema, batches, held: RowsHeld::default() }
    };
    // The long form, cell by cell, with its NaN and its mask.
    let t = Answer::Tensors(vec![t2m()]);
    assert_eq!(text(Format::Csv, vec![read(t.clone())]), text(Format::Csv, vec![t]));
    assert_eq!(text(Format::Csv, vec![read(rows())]), text(Format::Csv, vec![rows()]));
}

#[test]
fn arrow_reads_back() {
    use arrow::ipc::reader::{FileReader, StreamReader};
    let bytes = write(Format::Arrow, vec![Answer::Tensors(vec![t2m()])]).unwrap();
    let mut reader = StreamReader::try_new(&bytes[..], None).unwrap();
    assert_eq!(reader.schema().metadata()[SURFACE_KEY], "tensor");
    let batch = reader.next().unwrap().unwrap();
    let csv = text(
        Format::Csv,
        vec![Answer::Rows {
            schema: batch.schema(),
            batches: vec![batch],
            held: RowsHeld::default(),
        }],
    );
    assert_eq!(csv, text(Format::Csv, vec![Answer::Tensors(vec![t2m()])]));

    let options = Options { arrow_file: true, ..Options::default() };
    let mut w = Writer::new(Format::Arrow, options, Vec::new()).unwrap();
    w.push(rows().into()).unwrap();
    let file = std::io::Cursor::new(w.finish().unwrap());
    let batch = FileReader::try_new(file, None).unwrap().next().unwrap().unwrap();
    let Answer::Rows { batches, .. } = rows() else { return };
    assert_eq!(batch, batches[0]);
}

#[test]
fn formats_are_found_by_name_file_and_accept() {
    use std::path::Path;
    assert_eq!(Format::from_path(Path::new("a/b.NPZ")).unwrap(), Format::Npz);
    assert_eq!(Format::from_path(Path::new("x.nc")).unwrap(), Format::NetCdf);
    assert_eq!(Format::from_path(Path::new("x.TIF")).unwrap(), Format::Tiff);
    assert_eq!(Format::from_path(Path::new("x.zarr")).unwrap_err().code(), "usage");
    assert_eq!(Format::from_path(Path::new("x")).unwrap_err().exit_status(), 2);
    let e = Format::parse("xml").unwrap_err();
    assert!(e.hint().unwrap().contains("ndjson, csv"));
    for (accept, want) in [
        ("", None),
        ("*/*", None),
        ("application/x-npy", Some(Format::Npy)),
        ("text/html, application/vnd.apache.arrow.stream;q=0.5", Some(Format::Arrow)),
        ("text/csv;q=0.1, application/json;q=0.9", Some(Format::Json)),
    ] {
        assert_eq!(Format::from_accept(accept).unwrap(), want, "{accept}");
    }
    assert_eq!(Format::from_accept("image/png").unwrap_err().status(), 406);
}

#[test]
fn data_cannot_move_the_cursor() {
    let name: ArrayRef = Arc::new(StringArray::from(vec!["a\u{1b}[31m\nb"]));
    let batch = RecordBatch::try_from_iter([("x", name)]).unwrap();
    let out = text(
        Format::Table,
        vec![Answer::Rows {
            schema: batch.schema(),
            batches: vec![batch],
            held: RowsHeld::default(),
        }],
    );
    assert!(out.contains("│ a [31m b │"), "{out}");
}

#[test]
fn npz_is_a_zip_archive() {
    let a = tensor("a", DType::UInt8, vec![DimLabel::default()], &[3], vec![1u8, 2, 3], None);
    let b = tensor("a_1", DType::Float64, vec![], &[], vec![2.5f64], None);
    let bytes = write(Format::Npz, vec![Answer::Tensors(vec![a, b])]).unwrap();
    if let Ok(path) = std::env::var("TESSERA_KEEP_NPZ") {
        std::fs::write(path, &bytes).unwrap();
    }
    // Offsets, sums and lengths of a file that np.load of NumPy 2.4.6 and Info-ZIP's `unzip -t` accept.
    let u64_at = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap());
    let end = bytes.len() - 22;
    assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
    let end64 = u64_at(end - 20 + 8) as usize;
    assert_eq!(&bytes[end64..end64 + 4], b"PK\x06\x06");
    assert_eq!((u64_at(end64 + 24), u64_at(end64 + 32)), (2, 2));
    let directory = u64_at(end64 + 48) as usize;
    assert_eq!(directory as u64 + u64_at(end64 + 40), end64 as u64);
    assert_eq!(&bytes[directory..directory + 4], b"PK\x01\x02");
    assert_eq!(&bytes[directory + 46..directory + 51], b"a.npy");
    let second = directory + 46 + 5 + 28;
    assert_eq!(&bytes[second + 46..second + 53], b"a_1.npy");
    let crc = u32::from_le_bytes(bytes[directory + 16..directory + 20].try_into().unwrap());
    let start = 30 + 5 + 20;
    assert_eq!(u64_at(directory + 51 + 4), 131);
    assert_eq!(crc, crc32fast::hash(&bytes[start..start + 131]));
}

#[test]
fn names_in_an_npz_equal_numpys_or_are_refused() {
    let of = |name: &str| tensor(name, DType::UInt8, vec![], &[], vec![1u8], None);
    // np.savez(f, **{"a/b": 1}) has a member of that name.
    let bytes = write(Format::Npz, vec![Answer::Tensors(vec![of("a/b")])]).unwrap();
    assert_eq!(&bytes[30..37], b"a/b.npy");
    for (name, why) in [
        ("", "not a path"),
        ("/a", "not a path"),
        ("a//b", "not a path"),
        ("a/../../b", "not a path"),
        ("a\\b", "a backslash"),
        ("a\nb", "a control character"),
    ] {
        let e = write(Format::Npz, vec![Answer::Tensors(vec![of(name)])]).unwrap_err();
        assert!(e.to_string().contains(why) && e.code() == "format", "{name:?}: {e}");
    }
    let e = write(Format::Npz, vec![Answer::Tensors(vec![of("a"), of("a")])]).unwrap_err();
    assert!(e.to_string().contains("two tensors are called `a`"), "{e}");
}

#[test]
fn safetensors_has_the_references_bytes() {
    // safetensors.numpy.save of the same arrays, with metadata={"format": "pt"}, safetensors 0.8.0.
    let header = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},"i":{"dtype":"I16","shape":[2],"data_offsets":[32,36]},"u":{"dtype":"U8","shape":[0,2],"data_offsets":[36,36]}}     "#;
    let x = |shape: &[u64]| vec![DimLabel::default(); shape.len()];
    let cells = vec![0.5f32, 1.0, 2.0, 3.0, 1.003_906_3, -0.0];
    let a = tensor("a", DType::Float32, x(&[2, 3]), &[2, 3], cells, Some(vec![1, 1, 1, 0, 1, 1]));
    let b = tensor("b", DType::Float64, x(&[]), &[], vec![2.5f64], None);
    let i = tensor("i", DType::Int16, x(&[2]), &[2], vec![1i16, -2], None);
    let u = tensor("u", DType::UInt8, x(&[0, 2]), &[0, 2], Vec::<u8>::new(), None);
    let all = || vec![Answer::Tensors(vec![u.clone(), a.clone(), i.clone(), b.clone()])];
    let saved = |o: Options| {
        let mut w = Writer::new(Format::Safetensors, o, Vec::new()).unwrap();
        all().into_iter().for_each(|answer| w.push(answer.into()).unwrap());
        w.finish().unwrap()
    };
    let metadata = [("format".to_string(), "pt".to_string())].into();
    let got = saved(Options { metadata, ..Options::default() });
    let mut want = (header.len() as u64).to_le_bytes().to_vec();
    want.extend_from_slice(header.as_bytes());
    want.extend_from_slice(&2.5f64.to_le_bytes());
    for v in [0.5, 1.0, 2.0, f32::NAN, 1.003_906_3, -0.0] {
        want.extend_from_slice(&v.to_le_bytes());
    }
    want.extend_from_slice(&[1, 0, 0xfe, 0xff]);
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(&want));
    assert_eq!(got, want);
    // Floats rounded, ties to even: 1 + 2^-8 is between 1 and 1 + 2^-7.
    let got = saved(Options { narrow: Narrow::parse("bf16"), ..Options::default() });
    let cells = &got[got.len() - 4 - 14..got.len() - 4];
    let (cells, _) = cells.as_chunks::<2>();
    let bits: Vec<u16> = cells.iter().map(|c| u16::from_le_bytes(*c)).collect();
    assert_eq!(bits, [0x3f00, 0x3f80, 0x4000, 0x7fc0, 0x3f80, 0x8000, 0x4020]);
    let got = saved(Options { narrow: Narrow::parse("F16"), ..Options::default() });
    assert!(String::from_utf8_lossy(&got).contains("\"F16\""));
    for (t, part) in [
        (a.clone().renamed("__metadata__"), "cannot be the name"),
        (
            tensor("t", DType::Datetime(Calendar::Standard), vec![], &[], vec![0i64], None),
            "datetime",
        ),
        (
            tensor("m", DType::Int8, x(&[1]), &[1], vec![1i8], Some(vec![0])),
            "cannot store masked int8",
        ),
    ] {
        let e = write(Format::Safetensors, vec![Answer::Tensors(vec![t])]).unwrap_err();
        assert!(e.code() == "format" && e.to_string().contains(part), "{e}");
    }
    let e = write(Format::Safetensors, vec![Answer::Tensors(vec![a.clone(), a])]).unwrap_err();
    assert!(e.to_string().contains("two tensors are called `a`"), "{e}");
}

/// The same tensor with its chunks in a file.
fn in_a_file(t: &Tensor, dir: &std::path::Path) -> Answer {
    use crate::answer::{Chunked, Chunks, Windows};
    let store = tessera_exec::store::Store::open(dir, 1 << 20);
    let file = Arc::new(crate::answer::scratch::Scratch::new(store).file().unwrap());
    let starts = (0..t.grid().count())
        .map(|n| {
            // Cell by cell: a chunk is not a window.
            let region = t.grid().region(&t.grid().unravel(n));
            let (mut data, mut valid) = (Vec::new(), Vec::new());
            for cell in crate::answer::windows(&t.shape(), 1).filter(|c| region.contains(c)) {
                let cell = t.window(&cell).unwrap();
                data.extend_from_slice(&cell.data);
                valid.extend_from_slice(&cell.valid.unwrap());
            }
            file.append(&[&data, &valid]).unwrap()
        })
        .collect();
    let pool = tessera_exec::pool::Pool::new(tessera_exec::quota::Quota::new(1 << 20), 0);
    Answer::Chunked(vec![Chunked {
        labels: tessera_frontend::Labels {
            name: t.name().into(),
            named: true,
            dims: t.dims().to_vec(),
            shape: t.shape().to_vec(),
            dtype: t.dtype(),
            nullable: true,
            attrs: t.attrs().clone(),
            is_coordinate: false,
            dataset: Default::default(),
        },
        grid: t.grid().clone(),
        chunks: Chunks::File(file, starts),
        pool,
    }])
}

#[test]
fn a_tensor_in_a_file_is_written_as_one_in_memory() {
    use Format::*;
    let dir = tempfile::tempdir().unwrap();
    for format in [Table, Json, Ndjson, Csv, Arrow, Npy, Npz, NetCdf, Tiff, Safetensors] {
        let want = write(format, vec![Answer::Tensors(vec![t2m()])]).unwrap();
        assert_eq!(write(format, vec![in_a_file(&t2m(), dir.path())]).unwrap(), want, "{format:?}");
    }
}
