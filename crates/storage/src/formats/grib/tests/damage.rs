//! Files cut and changed at many places.

use super::*;
use crate::formats::probe;
use crate::source::tests::Random;
use std::time::{Duration, Instant};

/// Each message of a file, alone.
fn messages(name: &str) -> Vec<Vec<u8>> {
    let file = bytes(name);
    let found = crate::formats::grib::walk::messages(&crate::formats::view::View::whole(&file));
    found.unwrap().iter().map(|m| file[m.start as usize..m.end as usize + 4].to_vec()).collect()
}

#[test]
fn damaged_files_are_errors() {
    let mut samples: Vec<Vec<u8>> =
        ["packings1.grib", "packings2.grib", "grids2.grib", "gaussian1.grib", "gaussian2.grib"]
            .into_iter()
            .flat_map(messages)
            .collect();
    samples.push(bytes("odd.grib"));
    samples.push(bytes("cube2.grib"));
    let mut random = Random(0x5eed);
    let mut slowest = Duration::ZERO;
    let mut tried = 0;
    for sample in &samples {
        assert!(probe(sample).is_ok_and(|arrays| arrays > 0));
        for turn in 0..40 {
            let mut bad = sample.clone();
            match turn % 4 {
                // The end is missing.
                0 => bad.truncate(random.below(bad.len())),
                // A few bytes differ: most of them in the headers, where they are lengths and codes.
                1 | 2 => {
                    let part = if turn % 8 < 5 { 200.min(bad.len()) } else { bad.len() };
                    for _ in 0..1 + random.below(4) {
                        let at = random.below(part);
                        bad[at] = [0, 1, 0x7f, 0x80, 0xff, random.next() as u8][random.below(6)];
                    }
                }
                // Some are missing or twice.
                _ => {
                    let (a, b) = (random.below(bad.len()), random.below(bad.len()));
                    let part = bad[a.min(b)..a.max(b).min(a.min(b) + 64)].to_vec();
                    if turn % 8 < 4 {
                        bad.splice(a..a, part);
                    } else {
                        bad.drain(a.min(b)..a.min(b) + part.len());
                    }
                }
            }
            let start = Instant::now();
            let _either = probe(&bad);
            slowest = slowest.max(start.elapsed());
            tried += 1;
        }
    }
    assert!(tried > 3000, "{tried}");
    // Generous: the machine may do other work.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
}
