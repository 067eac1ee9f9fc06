#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::answer::Tensor;
use crate::answer::scratch::Scratch;
use crate::format::tests::{dim, tensor};
use std::collections::BTreeMap;
use std::io::Read;
use tessera_planner::catalog::{CoordValues, DimLabel};
use tessera_planner::dtype::Calendar;

fn written(tensors: &[&Tensor], o: &Options) -> Result<Vec<u8>, Error> {
    let tensors: Vec<&dyn Windows> = tensors.iter().map(|t| *t as &dyn Windows).collect();
    let mut out = Vec::new();
    write(&tensors, o, &mut out)?;
    Ok(out)
}

fn float_dim(name: &str, labels: &[f64]) -> DimLabel {
    dim(name, Some(CoordValues::Float(DType::Float64, labels.into())))
}

/// The entries of an IFD: bytes of values by tag.
type Ifd = BTreeMap<u16, Vec<u8>>;

fn number(bytes: &[u8]) -> usize {
    bytes.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))
}

/// All IFDs of a classic TIFF, with the offset of the end of the last one.
fn ifds(file: &[u8]) -> Vec<Ifd> {
    assert_eq!(&file[..4], b"II*\0");
    let (mut out, mut at) = (Vec::new(), number(&file[4..8]));
    while at != 0 {
        assert_eq!(at % 2, 0);
        let count = number(&file[at..at + 2]);
        let mut ifd = Ifd::new();
        for entry in file[at + 2..][..12 * count].chunks_exact(12) {
            let size = match number(&entry[2..4]) {
                2 => 1,
                3 => 2,
                4 => 4,
                _ => 8,
            };
            let bytes = size * number(&entry[4..8]);
            let value = if bytes <= 4 { &entry[8..] } else { &file[number(&entry[8..])..] };
            let before = ifd.last_key_value().map_or(0, |(tag, _)| *tag);
            assert!(number(&entry[..2]) > usize::from(before), "ascending tags");
            ifd.insert(number(&entry[..2]) as u16, value[..bytes].to_vec());
        }
        out.push(ifd);
        at = number(&file[at + 2 + 12 * count..][..4]);
    }
    out
}

/// The cells of a tile of bands of one plane each, without the predictor.
fn tile(file: &[u8], ifd: &Ifd, n: usize) -> Vec<u8> {
    let long = |tag: u16, i: usize| number(&ifd[&tag][4 * i..4 * i + 4]);
    let (at, bytes) = (long(324, n), long(325, n));
    // Its size before, its last bytes again behind.
    assert_eq!(number(&file[at - 4..at]), bytes);
    assert_eq!(file[at + bytes - 4..at + bytes], file[at + bytes..at + bytes + 4]);
    let mut cells = Vec::new();
    flate2::read::ZlibDecoder::new(&file[at..at + bytes]).read_to_end(&mut cells).unwrap();
    let (width, size) = (long(322, 0), number(&ifd[&258][..2]) / 8);
    assert_eq!(cells.len(), width * long(323, 0) * size);
    for row in cells.chunks_exact_mut(width * size) {
        if number(&ifd[&317]) == 3 {
            (1..row.len()).for_each(|i| row[i] = row[i].wrapping_add(row[i - 1]));
            let planes = row.to_vec();
            for (i, byte) in row.iter_mut().enumerate() {
                *byte = planes[(size - 1 - i % size) * width + i / size];
            }
        } else {
            for i in size..row.len() {
                if i % size == 0 {
                    let sum = number(&row[i - size..i]).wrapping_add(number(&row[i..i + size]));
                    row[i..i + size].copy_from_slice(&sum.to_le_bytes()[..size]);
                }
            }
        }
    }
    cells
}

fn doubles(ifd: &Ifd, tag: u16) -> Vec<f64> {
    ifd[&tag].as_chunks().0.iter().map(|c| f64::from_le_bytes(*c)).collect()
}

fn shorts(ifd: &Ifd, tag: u16) -> Vec<u16> {
    ifd[&tag].as_chunks().0.iter().map(|c| u16::from_le_bytes(*c)).collect()
}

fn text(ifd: &Ifd, tag: u16) -> String {
    String::from_utf8(ifd[&tag].clone()).unwrap()
}

#[test]
fn a_small_raster_is_one_tile_with_its_place() {
    let (lat, lon) = (float_dim("lat", &[55.0, 54.5]), float_dim("lon", &[10.0, 10.25, 10.5]));
    let cells = vec![0.1f32, f32::INFINITY, -1.0, 7.0, 1e10, 2.0];
    let dims = vec![lat.clone(), lon.clone()];
    let t = tensor("t2m", DType::Float32, dims, &[2, 3], cells, Some(vec![1, 1, 1, 0, 1, 1]));
    let o = Options { crs: Crs::parse("EPSG:4326"), ..Options::default() };
    let file = written(&[&t], &o).unwrap();
    let all = ifds(&file);
    let [ifd] = &all[..] else { unreachable!("{all:?}") };
    let long = |tag| number(&ifd[&tag]);
    assert_eq!([256, 257, 322, 323].map(long), [3, 2, 16, 16]);
    assert_eq!([254, 258, 259, 262, 277, 284, 317, 339].map(long), [0, 32, 8, 1, 1, 1, 3, 3]);
    assert_eq!(doubles(ifd, 33550), [0.25, 0.5, 0.0]);
    assert_eq!(doubles(ifd, 33922), [0.0, 0.0, 0.0, 9.875, 55.25, 0.0]);
    assert_eq!(shorts(ifd, 34735), [1, 1, 0, 3, 1024, 0, 1, 2, 1025, 0, 1, 1, 2048, 0, 1, 4326]);
    assert_eq!(text(ifd, 42113), "nan\0");
    assert!(text(ifd, 42112).contains("role=\"description\">t2m</Item>"));
    let cells: Vec<f32> =
        tile(&file, ifd, 0).as_chunks().0.iter().map(|c| f32::from_le_bytes(*c)).collect();
    assert_eq!(cells[..3], [0.1, f32::INFINITY, -1.0]);
    assert!(cells[16].is_nan() && cells[17] == 1e10 && cells[18] == 2.0);
    // Rows from south to north keep their order.
    let south = float_dim("y", &[0.0, 30.0]);
    let dims = vec![south, float_dim("x", &[0.0, 30.0, 60.0])];
    let t = tensor("t", DType::UInt8, dims, &[2, 3], vec![1u8, 2, 3, 4, 5, 6], None);
    let o = Options { crs: Crs::parse("32632"), ..Options::default() };
    let all = ifds(&written(&[&t], &o).unwrap());
    let matrix = doubles(&all[0], 34264);
    assert_eq!(matrix[..8], [30.0, 0.0, 0.0, -15.0, 0.0, 30.0, 0.0, -15.0]);
    assert_eq!(shorts(&all[0], 34735)[4..8], [1024, 0, 1, 1]);
    assert!(!all[0].contains_key(&42113) && !all[0].contains_key(&33550));
}

#[test]
fn overviews_are_means_of_floats_without_missing_cells() {
    let (h, w) = (700u64, 1100u64);
    let cells: Vec<f32> = (0..h * w).map(|i| (i % w) as f32 * 10.0 + (i / w) as f32).collect();
    let mut valid = vec![1u8; cells.len()];
    // The first four cells are masked, then one of four.
    for i in [0, 1, w as usize, w as usize + 1, 2] {
        valid[i] = 0;
    }
    let dims = vec![dim("y", None), dim("x", None)];
    let t = tensor("t", DType::Float32, dims, &[h, w], cells.clone(), Some(valid));
    let dir = tempfile::tempdir().unwrap();
    let scratch = Scratch::new(tessera_exec::store::Store::open(dir.path(), 64 << 20));
    let o = Options { scratch: Some(scratch.clone()), ..Options::default() };
    let file = written(&[&t], &o).unwrap();
    // The same without a directory; nothing is left in it.
    assert!(written(&[&t], &Options::default()).unwrap() == file);
    assert_eq!(scratch.used(), 0);
    let all = ifds(&file);
    let shape = |ifd: &Ifd| [256, 257].map(|tag| number(&ifd[&tag]));
    assert_eq!(all.iter().map(shape).collect::<Vec<_>>(), [[1100, 700], [550, 350], [275, 175]]);
    assert_eq!(all.iter().map(|i| number(&i[&254])).collect::<Vec<_>>(), [0, 1, 1]);
    let floats = |ifd: &Ifd, n| -> Vec<f32> {
        tile(&file, ifd, n).as_chunks().0.iter().map(|c| f32::from_le_bytes(*c)).collect()
    };
    // Cell [y, x] is 10 x + y: the mean of four is that of the middle.
    let one = floats(&all[1], 0);
    assert!(one[0].is_nan());
    assert_eq!(one[1], (30.0 + 21.0 + 31.0) / 3.0);
    assert_eq!(one[2], 45.5);
    assert_eq!(one[100 * 512 + 300], 6005.0 + 200.5);
    assert_eq!(floats(&all[2], 0)[150 * 512 + 270], 10.0 * 1081.5 + 601.5);
    // The third tile of the first row, and the corner of the raster.
    assert_eq!(floats(&all[0], 2)[5], cells[1024 + 5]);
    assert_eq!(floats(&all[0], 5)[187 * 512 + 75], *cells.last().unwrap());
    // The smallest overview comes first, and tiles of a level are in order.
    let begins: Vec<usize> = all
        .iter()
        .rev()
        .flat_map(|ifd| ifd[&324].chunks_exact(4).map(number).collect::<Vec<_>>())
        .collect();
    assert!(begins.is_sorted() && begins.len() == 6 + 2 + 1, "{begins:?}");
}

#[test]
fn bands_are_items_or_positions() {
    let axes = || [dim("y", None), dim("x", None)];
    let time = CoordValues::Time(Calendar::Standard, [0, 86_400_000_000].into());
    let dims = [vec![dim("time", Some(time))], axes().to_vec()].concat();
    let cells: Vec<i16> = (0..2 * 520 * 3).map(|i| i as i16).collect();
    let t = tensor("t<2", DType::Int16, dims, &[2, 520, 3], cells, None);
    let file = written(&[&t], &Options::default()).unwrap();
    let all = ifds(&file);
    let name = "sample=\"1\" role=\"description\">t&lt;2 time=1970-01-02T00:00:00</Item>";
    assert!(text(&all[0], 42112).contains(name), "{}", text(&all[0], 42112));
    assert!(file[8..200].windows(16).any(|w| w == b"INTERLEAVE=BAND\n"));
    assert_eq!([277, 284, 338].map(|tag| number(&all[0][&tag])), [2, 2, 0]);
    assert_eq!((shorts(&all[0], 258), shorts(&all[0], 339)), (vec![16, 16], vec![2, 2]));
    // Two tiles of each band; the second level takes the first of four cells.
    let cell = |ifd: &Ifd, n: usize, at: usize| {
        i16::from_le_bytes(*tile(&file, ifd, n)[2 * at..].first_chunk().unwrap())
    };
    assert_eq!(cell(&all[0], 3, 7 * 16 + 2), 1560 + 519 * 3 + 2);
    assert_eq!(cell(&all[1], 1, 259 * 16 + 1), 1560 + 518 * 3 + 2);
    let one =
        |name: &str, v: u8| tensor(name, DType::Bool, axes().to_vec(), &[1, 2], vec![v, 1], None);
    let file = written(&[&one("a", 0), &one("b", 1)], &Options::default()).unwrap();
    let all = ifds(&file);
    assert_eq!(
        (tile(&file, &all[0], 0)[..2].to_vec(), tile(&file, &all[0], 1)[0]),
        (vec![0, 1], 1)
    );
    assert!(text(&all[0], 42112).contains("sample=\"1\" role=\"description\">b</Item>"));
}

#[test]
fn results_that_are_no_raster_are_refused() {
    let axes = |names: [&str; 2]| names.map(|n| dim(n, None)).to_vec();
    let t = |d: DType| tensor("t", d, axes(["y", "x"]), &[1, 1], vec![0u64; 1], None);
    let line = tensor("t", DType::Int8, vec![dim("x", None)], &[2], vec![0i8; 2], None);
    let turned = tensor("t", DType::Int8, axes(["lon", "lat"]), &[1, 1], vec![0i8], None);
    let none = tensor("t", DType::Int8, axes(["y", "x"]), &[0, 1], Vec::<i8>::new(), None);
    let other = tensor("u", DType::UInt64, axes(["y", "z"]), &[1, 1], vec![0u64], None);
    let time = t(DType::Datetime(Calendar::Standard));
    let (wide, long) = (t(DType::UInt64), t(DType::Int64).renamed("u"));
    for (tensors, part) in [
        (&[&line][..], "has 1 dimensions"),
        (&[&turned], "rows would run along `lat`"),
        (&[&none], "axis of length 0"),
        (&[&wide, &other], "different grids"),
        (&[&wide, &long], "`t` is uint64, `u` is int64"),
        (&[&time], "datetime"),
        (&[], "no tensor"),
    ] {
        let e = written(tensors, &Options::default()).unwrap_err();
        assert_eq!((e.code(), e.to_string().contains(part)), ("format", true), "{e}");
    }
    let mut attrs = tessera_planner::catalog::Attrs::new();
    attrs.insert("crs".into(), "somewhere".into());
    let grid = wide.grid().clone();
    let lost =
        Tensor::new("t", DType::UInt64, axes(["y", "x"]), grid, wide.data().clone(), None, attrs);
    let lost = lost.unwrap();
    let e = written(&[&lost], &Options::default()).unwrap_err();
    assert!(e.hint().unwrap().contains("crs 'none'"), "{e}");
    let o = Options { crs: Crs::parse("none"), ..Options::default() };
    assert!(written(&[&lost], &o).is_ok());
}
