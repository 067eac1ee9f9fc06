//! Slices of large chunks, of which only a part is read or decoded.

use super::*;
use tessera_planner::region::Dims;
use zarrs::array::codec::bytes_to_bytes::blosc::{
    BloscCompressor, BloscShuffleMode, blosc_compress_bytes,
};

const SHAPE: [u64; 3] = [7, 300, 310];
const UNIT: [u64; 3] = [3, 200, 310];

fn cell(t: u64, y: u64, x: u64) -> f32 {
    ((t * 300 + y) * 310 + x) as f32 / 8.0
}

/// The bytes of a chunk, cells beyond the edge included.
fn chunk(at: [u64; 2]) -> Vec<u8> {
    let [t0, y0] = [at[0] * UNIT[0], at[1] * UNIT[1]];
    let mut out = Vec::new();
    for t in t0..t0 + UNIT[0] {
        for y in y0..y0 + UNIT[1] {
            (0..UNIT[2]).for_each(|x| out.extend(cell(t, y, x).to_le_bytes()));
        }
    }
    out
}

fn store(codec: &str, encode: impl Fn(&[u8]) -> Vec<u8>) -> (tempfile::TempDir, Opened) {
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path();
    let document = format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":{SHAPE:?},"data_type":"float32","chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":{UNIT:?}}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":0,"codecs":[{{"name":"bytes","configuration":{{"endian":"little"}}}}{codec}]}}"#
    );
    std::fs::write(top.join("zarr.json"), document).unwrap();
    for t in 0..3 {
        for y in 0..2 {
            let to = top.join(format!("c/{t}/{y}"));
            std::fs::create_dir_all(&to).unwrap();
            std::fs::write(to.join("0"), encode(&chunk([t, y]))).unwrap();
        }
    }
    let opened = open_local(top.to_str().unwrap()).unwrap();
    (directory, opened)
}

fn check(opened: &Opened) {
    let regions: [([u64; 3], [u64; 3]); 6] = [
        ([0, 7, 11], [7, 8, 12]),
        ([1, 0, 0], [2, 1, 310]),
        ([2, 190, 5], [6, 210, 300]),
        ([0, 299, 309], [7, 300, 310]),
        ([5, 0, 0], [7, 300, 310]),
        ([0, 0, 0], [7, 300, 310]),
    ];
    for (start, end) in regions {
        let region = Region { start: Dims::from_slice(&start), end: Dims::from_slice(&end) };
        let cells = read(&opened.readers[0], &region).unwrap();
        let mut got = cells.as_chunks::<4>().0.iter().map(|c| f32::from_ne_bytes(*c));
        for t in start[0]..end[0] {
            for y in start[1]..end[1] {
                for x in start[2]..end[2] {
                    assert_eq!(got.next(), Some(cell(t, y, x)), "{region} {t} {y} {x}");
                }
            }
        }
    }
}

#[test]
fn thin_slices_are_slices() {
    let (_raw, opened) = store("", <[u8]>::to_vec);
    check(&opened);
    let zstd = r#",{"name":"zstd","configuration":{"level":1,"checksum":false}}"#;
    let (_zstd, opened) = store(zstd, |b| zstd::bulk::compress(b, 1).unwrap());
    check(&opened);
    let blosc = r#",{"name":"blosc","configuration":{"cname":"zstd","clevel":1,"shuffle":"shuffle","typesize":4,"blocksize":0}}"#;
    for compressor in [BloscCompressor::Zstd, BloscCompressor::LZ4] {
        let (_blosc, opened) = store(blosc, |b| {
            let level = 1u8.try_into().unwrap();
            blosc_compress_bytes(b, level, BloscShuffleMode::Shuffle, 4, compressor, 0, 1).unwrap()
        });
        check(&opened);
    }
}

#[test]
fn raw_chunks_are_read_no_further_than_is_wanted() {
    let (directory, _) = store("", <[u8]>::to_vec);
    let stores = stores();
    let url = directory.path().to_str().unwrap();
    let opened = run(open(url, &Options::default(), &stores)).unwrap();
    let (_, before, _) = stores.counters().snapshot();
    let region =
        Region { start: Dims::from_slice(&[0, 7, 11]), end: Dims::from_slice(&[7, 8, 12]) };
    read(&opened.readers[0], &region).unwrap();
    assert_eq!(stores.counters().snapshot().1 - before, 7 * 4);
}

#[test]
fn chunks_that_end_far_beyond_the_array_are_decoded_to_its_last_cell() {
    const LONG: usize = 1 << 18;
    let zstd = r#"{"id":"zstd","level":1}"#;
    let gzip = r#"{"id":"gzip","level":1}"#;
    // Bytes up to the last cell of 10 in one row, and in two; of the whole chunk for other codecs, and near its end.
    for (codec, shape, unit, bytes) in [
        (zstd, [1, 10], [1, LONG], 40),
        (zstd, [2, 10], [4, LONG], (LONG + 10) * 4),
        (zstd, [1, LONG - 1], [1, LONG], LONG * 4),
        (gzip, [1, 10], [1, LONG], LONG * 4),
        ("null", [1, 10], [1, LONG], 0),
    ] {
        let cells: Vec<u8> =
            (0..unit[0] * unit[1]).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let packed = match codec {
            c if c == zstd => zstd::bulk::compress(&cells, 1).unwrap(),
            c if c == gzip => {
                let mut to = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
                std::io::Write::write_all(&mut to, &cells).unwrap();
                to.finish().unwrap()
            }
            _ => cells,
        };
        let directory = tempfile::tempdir().unwrap();
        let document = format!(
            r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{unit:?},"dtype":"<f4","compressor":{codec},"filters":null,"fill_value":0,"order":"C"}}"#
        );
        std::fs::write(directory.path().join(".zarray"), document).unwrap();
        std::fs::write(directory.path().join("0.0"), packed).unwrap();
        let opened = open_local(directory.path().to_str().unwrap()).unwrap();
        let reader = &opened.readers[0];
        assert_eq!(reader.unit_bytes(), bytes as u64, "{codec} {shape:?}");
        let read = read(reader, &Region::whole(&shape.map(|n| n as u64))).unwrap();
        let want = (0..shape[0]).flat_map(|y| (0..shape[1]).map(move |x| (y * LONG + x) as f32));
        assert!(read == want.flat_map(f32::to_ne_bytes).collect::<Vec<u8>>(), "{codec} {shape:?}");
    }
}
