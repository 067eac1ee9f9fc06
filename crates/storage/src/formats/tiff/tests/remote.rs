//! Files on an object store: requests are counted.

use super::*;
use crate::served::{KEY, S3, SECRET};

/// Tiles along the axes.
const ACROSS: u32 = 1000;
const DOWN: u32 = 400;

/// A file of [`DOWN`] x [`ACROSS`] tiles of 16 x 16 bytes, of which only the one at `(200, 500)` is stored.
fn large() -> Vec<u8> {
    let count = ACROSS * DOWN;
    let (tags, lists) = (10, 8 + 2 + 12 * 10 + 4);
    let (lengths, tile) = (lists + 4 * count, lists + 8 * count);
    let mut out = b"II*\0\x08\0\0\0".to_vec();
    out.extend((tags as u16).to_le_bytes());
    for (tag, value) in [
        (256, ACROSS * 16 - 3),
        (257, DOWN * 16 - 5),
        (258, 8),
        (259, 1),
        (262, 1),
        (277, 1),
        (322, 16),
        (323, 16),
        (324, lists),
        (325, lengths),
    ] {
        out.extend([tag as u16, 4].map(u16::to_le_bytes).concat());
        let n = if tag == 324 || tag == 325 { count } else { 1 };
        out.extend([n, value].map(u32::to_le_bytes).concat());
    }
    out.extend([0; 4]);
    for value in [tile, 256] {
        let mut list = vec![0; 4 * count as usize];
        let at = 4 * (200 * ACROSS as usize + 500);
        list[at..at + 4].copy_from_slice(&value.to_le_bytes());
        out.extend(list);
    }
    out.extend(0..=255u8);
    out
}

#[test]
fn a_window_reads_the_parts_of_the_lists_that_it_needs() {
    let server = S3::start();
    let bytes = large();
    std::fs::create_dir_all(server.path("")).unwrap();
    std::fs::write(server.path("large.tif"), &bytes).unwrap();
    let environment = server.environment(Some((KEY, SECRET)));
    let stores = Stores::with_environment(Duration::from_secs(30), environment);
    let opened = run(open("s3://bkt/large.tif", &Options::default(), &stores)).unwrap();
    let (requests, fetched, _) = stores.counters().snapshot();
    assert!(requests <= 2, "{requests} requests to open");
    assert!(fetched < 300_000, "{fetched} bytes to open");
    let data = reader(&opened, "band_data");
    let start = Dims::from_slice(&[0, 200 * 16 - 4, 500 * 16 - 4]);
    let region = Region { end: start.iter().zip([1, 8, 8]).map(|(s, n)| s + n).collect(), start };
    let cells = read(&data, &region);
    let wanted: Vec<u8> = (0..64)
        .map(|i| (i / 8, i % 8))
        .map(|(y, x)| if y < 4 || x < 4 { 0 } else { (y - 4) * 16 + x - 4 })
        .collect();
    assert_eq!(cells, wanted);
    let (after, all, _) = stores.counters().snapshot();
    assert!(after - requests <= 3, "{} requests for a window", after - requests);
    assert!(all - fetched < 300_000, "{} bytes for a window", all - fetched);
    // The lists are not fetched again.
    assert_eq!(read(&data, &region), wanted);
    assert_eq!(stores.counters().snapshot().0 - after, 1);
}
