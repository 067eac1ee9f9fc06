//! Estimated requests against those counted when every box is read.

use super::*;
use crate::served::{KEY, S3, SECRET};
use std::path::Path;
use tessera_planner::grid::Grid;

/// Requests for reading each box of a grid, with a fresh reader: estimated, and counted.
fn both(reader: &ArrayReader, stores: &Stores, grid: &Grid, origin: &[u64]) -> (u64, u64) {
    let reader = reader.fresh();
    let (before, _, _) = stores.counters().snapshot();
    for number in 0..grid.count() {
        let mut region = grid.region(&grid.unravel(number));
        for (a, o) in origin.iter().enumerate() {
            region.start[a] += o;
            region.end[a] += o;
        }
        read(&reader, &region).unwrap();
    }
    (reader.requests(grid, origin), stores.counters().snapshot().0 - before)
}

/// The grids to try on an array: its own, a grid of larger boxes, a grid that cuts chunks, a part that begins inside a
/// chunk.
fn grids(reader: &ArrayReader) -> Vec<(Grid, Vec<u64>)> {
    let source = reader.source();
    let shape = &source.shape;
    let chunk = |f: &dyn Fn(u64) -> u64| -> Vec<u64> {
        source.grid.axes.iter().map(|a| f(a.chunk).max(1)).collect()
    };
    let zero = vec![0; shape.len()];
    let part: Vec<u64> = shape.iter().map(|n| n - n.min(&1)).collect();
    let one: Vec<u64> = shape.iter().map(|n| u64::from(*n > 1)).collect();
    vec![
        (source.grid.clone(), zero.clone()),
        (Grid::regular(shape, &chunk(&|c| 2 * c)), zero.clone()),
        (Grid::regular(shape, &chunk(&|c| c.div_ceil(2))), zero),
        (Grid::regular(&part, &chunk(&|c| c)), one),
    ]
}

#[test]
fn chunks_of_files_and_objects_are_counted_before_they_are_read() {
    let local = stores();
    let server = S3::start();
    for name in ["colpex.v2.zarr", "zarr_zoo/v3.zarr", "npy"] {
        s3::copy(Path::new(&data(name)), &server.path(name));
    }
    let environment = server.environment(Some((KEY, SECRET)));
    let remote = Stores::with_environment(Duration::from_secs(30), environment);
    let mut seen = 0;
    for (stores, at) in [(&local, data("")), (&remote, "s3://bkt/".to_string())] {
        let arrays = [
            ("colpex.v2.zarr", false),
            ("zarr_zoo/v3.zarr#sharded", false),
            ("zarr_zoo/v3.zarr#sharded_start", false),
            // An absent unit is in the index, which is not known in advance.
            ("zarr_zoo/v3.zarr#sharded_missing", true),
            ("npy/i4.npy", false),
        ];
        for (name, absent) in arrays {
            let opened = run(open(&format!("{at}{name}"), &Options::default(), stores)).unwrap();
            let reader = &opened.readers[0];
            for (grid, origin) in grids(reader) {
                let (expected, counted) = both(reader, stores, &grid, &origin);
                let what = format!("{at}{name}: {grid} from {origin:?}");
                assert!(counted > 0 || name.ends_with("i4.npy"), "{what}");
                match absent {
                    true => assert!(counted <= expected, "{what}: {counted} of {expected}"),
                    false => assert_eq!(counted, expected, "{what}"),
                }
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2 * 5 * 4);
}

#[test]
fn a_plan_of_many_chunks_is_counted_at_once() {
    // 10^9 chunks of one cell: they are not enumerated.
    let opened = open_local(&data("colpex.v2.zarr")).unwrap();
    let reader = &opened.readers[0];
    let rank = reader.source().shape.len();
    let (mut shape, mut chunk) = (vec![1; rank], vec![1; rank]);
    (shape[0], chunk[0]) = (4_000_000_000, 4);
    let unit = reader.source().grid.axes[0].chunk;
    let requests = reader.requests(&Grid::regular(&shape, &chunk), &vec![0; rank]);
    let least = 4_000_000_000 / unit.max(4);
    assert!((least..=2 * least.max(1_000_000_000)).contains(&requests), "{requests}, {unit}");
}

/// A chunk grid of 2 by 2 chunks without codecs, the second ones partial.
fn plain_store() -> (tempfile::TempDir, impl Fn(u64, u64, u64) -> f32) {
    let directory = tempfile::tempdir().unwrap();
    let cell = |t: u64, y: u64, x: u64| ((t * 40 + y) * 1500 + x) as f32;
    let document = r#"{"zarr_format":3,"node_type":"array","shape":[6,40,1500],"data_type":"float32","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,40,1000]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}"#;
    std::fs::write(directory.path().join("zarr.json"), document).unwrap();
    for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut bytes = Vec::new();
        for t in a * 4..a * 4 + 4 {
            for y in 0..40 {
                (b * 1000..b * 1000 + 1000).for_each(|x| bytes.extend(cell(t, y, x).to_le_bytes()));
            }
        }
        let to = directory.path().join(format!("c/{a}/0"));
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join(b.to_string()), bytes).unwrap();
    }
    (directory, cell)
}

#[test]
fn boxes_of_plain_chunks_are_read_by_their_lines() {
    let (directory, cell) = plain_store();
    let stores = stores();
    let url = directory.path().to_str().unwrap().to_string();
    let opened = run(open(&url, &Options::default(), &stores)).unwrap();
    let reader = &opened.readers[0];
    assert!(reader.source().plain);
    let zero = vec![0; 3];
    // Lines of 2,400 bytes with gaps of 1,600, 20 of them at once in each of 6 planes; columns from 600 on lie in two
    // chunks. Whole rows of chunks; whole chunks.
    for (chunk, reads) in
        [([6, 20, 600], 6 * 2 * 4), ([6, 20, 1000], 6 * 2 * 2), ([4, 40, 1000], 4)]
    {
        let grid = Grid::regular(&[6, 40, 1500], &chunk);
        assert_eq!(both(reader, &stores, &grid, &zero), (reads, reads), "{grid}");
        for number in 0..grid.count() {
            let region = grid.region(&grid.unravel(number));
            assert!(reader.estimate(&region) <= 4 * 40 * 1000 * 4 * 3 + 64);
            let cells = read(reader, &region).unwrap();
            let mut got = cells.as_chunks::<4>().0.iter().map(|c| f32::from_ne_bytes(*c));
            for t in region.start[0]..region.end[0] {
                for y in region.start[1]..region.end[1] {
                    for x in region.start[2]..region.end[2] {
                        assert_eq!(got.next(), Some(cell(t, y, x)), "{region} {t} {y} {x}");
                    }
                }
            }
        }
    }
    let columns =
        Region { start: [0, 0, 0].into_iter().collect(), end: [6, 40, 600].into_iter().collect() };
    assert_eq!(reader.estimate(&columns), 4 * 40 * 1000 * 4, "lines of a chunk are read at once");
    let rows =
        Region { start: [0, 0, 0].into_iter().collect(), end: [6, 7, 1500].into_iter().collect() };
    assert_eq!(reader.estimate(&rows), 4 * 40 * 1000 * 4);
    // A truncated chunk is an error.
    let chunk = directory.path().join("c/1/0/0");
    std::fs::OpenOptions::new().write(true).open(&chunk).unwrap().set_len(1000).unwrap();
    let error = read(&reader.fresh(), &columns).unwrap_err().to_string();
    assert!(error.contains("1000 bytes, expected 640000"), "{error}");
}

/// A Zarr store of float32 without compression; cells of its last chunks beyond the array are -1.
fn plain(
    shape: [u64; 3],
    chunk: [u64; 3],
    cell: impl Fn(u64, u64, u64) -> f32,
) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let document = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{shape:?},"data_type":"float32","chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{chunk:?}}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":0,"codecs":[{{"name":"bytes","configuration":{{"endian":"little"}}}}]}}"#
    );
    std::fs::write(directory.path().join("zarr.json"), document).unwrap();
    let counts: Vec<u64> = shape.iter().zip(chunk).map(|(&n, of)| n.div_ceil(of)).collect();
    for n in 0..counts.iter().product() {
        let at = [n / counts[2] / counts[1], n / counts[2] % counts[1], n % counts[2]];
        let axis = |i: usize| at[i] * chunk[i]..(at[i] + 1) * chunk[i];
        let mut bytes = Vec::new();
        for t in axis(0) {
            for y in axis(1) {
                for x in axis(2) {
                    let is_in = t < shape[0] && y < shape[1] && x < shape[2];
                    bytes.extend(if is_in { cell(t, y, x) } else { -1.0 }.to_le_bytes());
                }
            }
        }
        let to = directory.path().join(format!("c/{}/{}", at[0], at[1]));
        std::fs::create_dir_all(&to).unwrap();
        std::fs::write(to.join(at[2].to_string()), bytes).unwrap();
    }
    directory
}

#[test]
fn chunks_with_short_lines_are_read_at_once() {
    let cell = |t: u64, y: u64, x: u64| ((t * 50 + y) * 123 + x) as f32;
    let directory = plain([20, 50, 123], [10, 25, 41], cell);
    let stores = stores();
    let url = directory.path().to_str().unwrap().to_string();
    let opened = run(open(&url, &Options::default(), &stores)).unwrap();
    let reader = &opened.readers[0];
    // Operands of many chunks, of one chunk, of lines of all chunks; 164 bytes of a chunk lie together in each of them.
    for (chunk, reads) in [([10, 50, 123], 12), ([10, 25, 41], 12), ([20, 5, 123], 2 * 3 * 10)] {
        let grid = Grid::regular(&[20, 50, 123], &chunk);
        let (expected, counted) = both(reader, &stores, &grid, &[0; 3]);
        assert_eq!(counted, reads, "{grid}");
        assert_eq!(expected, reads, "{grid}");
        for number in 0..grid.count() {
            let region = grid.region(&grid.unravel(number));
            let cells = read(reader, &region).unwrap();
            let mut got = cells.as_chunks::<4>().0.iter().map(|c| f32::from_ne_bytes(*c));
            for t in region.start[0]..region.end[0] {
                for y in region.start[1]..region.end[1] {
                    for x in region.start[2]..region.end[2] {
                        assert_eq!(got.next(), Some(cell(t, y, x)), "{region} {t} {y} {x}");
                    }
                }
            }
        }
    }
}

#[test]
fn chunks_longer_than_their_array_are_read_within_the_scratch() {
    // Chunks of 100 × 40 × 100 cells of an array of 30 × 90 cells in each plane: the grid of the plan has no more.
    let cell = |t: u64, y: u64, x: u64| ((t * 30 + y) * 90 + x) as f32;
    let directory = plain([200, 30, 90], [100, 40, 100], cell);
    let stores = stores();
    let url = directory.path().to_str().unwrap().to_string();
    let opened = run(open(&url, &Options::default(), &stores)).unwrap();
    let reader = &opened.readers[0];
    let shape = [100, 30, 90];
    assert_eq!(reader.source().window(&shape), 0);
    let reads = reader.source().reads(&[100, 40, 100], &shape, &shape);
    assert!(!reads.is_direct && reads.bytes <= 256 << 10, "{reads:?}");
    // 16 planes of 16,000 bytes, of which the last one has 11,960, are one read.
    let grid = Grid::regular(&[200, 30, 90], &shape);
    assert_eq!(both(reader, &stores, &grid, &[0; 3]), (2 * 7, 2 * 7));
    for number in 0..grid.count() {
        let cells = read(reader, &grid.region(&grid.unravel(number))).unwrap();
        let got = cells.as_chunks::<4>().0.iter().map(|c| f32::from_ne_bytes(*c));
        let first = number * 100 * 30 * 90;
        assert!(got.eq((first..first + 100 * 30 * 90).map(|n| n as f32)), "{number}");
    }
}

/// A file of NetCDF's classic format with the record variables `a(time, x) = 3 time + x` of `float32` and
/// `b(time) = time / 2` of `float64`, of 20 bytes together.
fn records(count: u32) -> Vec<u8> {
    let number = |n: u32| n.to_be_bytes();
    let name = |c: u8| [number(1), [c, 0, 0, 0]].concat();
    let mut out = [*b"CDF\x01", number(count), number(0xa), number(2)].concat();
    out.extend([name(b't'), number(0).to_vec(), name(b'x'), number(3).to_vec()].concat());
    // No attributes; two variables.
    out.extend([number(0), number(0), number(0xb), number(2)].concat());
    let begin = out.len() as u32 + 40 + 36;
    out.extend(name(b'a'));
    out.extend([2, 0, 1, 0, 0, 5, 12, begin].map(number).concat());
    out.extend(name(b'b'));
    out.extend([1, 0, 0, 0, 6, 8, begin + 12].map(number).concat());
    assert_eq!(out.len(), begin as usize);
    for t in 0..count {
        (0..3).for_each(|x| out.extend(((3 * t + x) as f32).to_be_bytes()));
        out.extend((f64::from(t) / 2.0).to_be_bytes());
    }
    out
}

#[test]
fn records_of_files_are_read_many_at_once() {
    let server = S3::start();
    std::fs::create_dir_all(server.path("")).unwrap();
    std::fs::write(server.path("r.nc"), records(100_000)).unwrap();
    let environment = server.environment(Some((KEY, SECRET)));
    let remote = Stores::with_environment(Duration::from_secs(30), environment);
    let local = stores();
    let file = server.path("r.nc").to_str().unwrap().to_string();
    // 13,107 records are 256 KiB. In a bucket, cells that are read at once take one request.
    for (stores, url, requests) in [(&local, file, 2 * 4), (&remote, "s3://bkt/r.nc".into(), 2)] {
        let opened = run(open(&url, &Options::default(), stores)).unwrap();
        for v in &opened.dataset.variables {
            let reader = opened.reader(&v.source).unwrap();
            let shape = &v.source.shape;
            let mut chunk = shape.to_vec();
            chunk[0] = 50_000;
            let grid = Grid::regular(shape, &chunk);
            let zero = vec![0; shape.len()];
            let found = both(reader, stores, &grid, &zero);
            assert_eq!(found, (requests, requests), "{url} {}", v.name);
            let cells = read(reader, &grid.region(&zero)).unwrap();
            match shape.len() {
                2 => {
                    let got = cells.as_chunks().0.iter().map(|c| f32::from_ne_bytes(*c));
                    assert!(got.eq((0..150_000).map(|n| n as f32)), "{url}");
                }
                _ => {
                    let got = cells.as_chunks().0.iter().map(|c| f64::from_ne_bytes(*c));
                    assert!(got.eq((0..50_000).map(|n| f64::from(n) / 2.0)), "{url}");
                }
            }
        }
        assert_eq!(opened.dataset.variables.len(), 2);
    }
}

#[test]
fn a_box_of_a_record_reads_its_own_bytes() {
    // One variable `v(t, y, x) = 10,000 t + 100 y + x` of `int32`, 3 records of 80 by 100 cells.
    let number = |n: u32| n.to_be_bytes();
    let name = |c: u8| [number(1), [c, 0, 0, 0]].concat();
    let mut file = [*b"CDF\x01", number(3), number(0xa), number(3)].concat();
    for (c, n) in [(b't', 0), (b'y', 80), (b'x', 100)] {
        file.extend(name(c));
        file.extend(number(n));
    }
    file.extend([number(0), number(0), number(0xb), number(1)].concat());
    let begin = file.len() as u32 + 44;
    file.extend(name(b'v'));
    file.extend([3, 0, 1, 2, 0, 0, 4, 32_000, begin].map(number).concat());
    assert_eq!(file.len(), begin as usize);
    let cell = |t: u32, y: u32, x: u32| 10_000 * t + 100 * y + x;
    (0..3 * 8_000).for_each(|i| {
        file.extend(number(cell(i / 8_000, i / 100 % 80, i % 100)));
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("v.nc");
    std::fs::write(&path, file).unwrap();
    let stores = stores();
    let opened = run(open(path.to_str().unwrap(), &Options::default(), &stores)).unwrap();
    let reader = &opened.readers[0];
    // From the first wanted cell of a record to the last one; all of it if that is most of it.
    for (start, len, bytes) in [
        ([0, 7, 9], [3, 1, 1], 3 * 4),
        ([1, 10, 20], [2, 3, 5], 2 * (2 * 100 + 5) * 4),
        ([0, 1, 0], [1, 79, 100], 32_000),
    ] {
        let (before, read_before, _) = stores.counters().snapshot();
        let cells = read(reader, &Region::at(&start, &len)).unwrap();
        let (after, read_after, _) = stores.counters().snapshot();
        assert_eq!((after - before, read_after - read_before), (len[0], bytes), "{start:?}");
        let mut got = cells.as_chunks::<4>().0.iter().map(|c| u32::from_ne_bytes(*c));
        for t in start[0]..start[0] + len[0] {
            for y in start[1]..start[1] + len[1] {
                for x in start[2]..start[2] + len[2] {
                    assert_eq!(got.next(), Some(cell(t as u32, y as u32, x as u32)), "{t} {y} {x}");
                }
            }
        }
    }
}
