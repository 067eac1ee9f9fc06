//! Truncated and mutated samples.

use super::*;
use crate::formats::probe;
use crate::source::tests::Random;
use std::time::Instant;

fn samples() -> Vec<(String, Vec<u8>)> {
    let mut out: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "tif"))
        .map(|p| {
            (p.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&p).unwrap())
        })
        .collect();
    out.sort();
    out
}

#[test]
fn truncated_and_mutated_files_are_errors_or_arrays() {
    let start = Instant::now();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (name, bytes) in samples() {
        assert!(probe(&bytes).is_ok(), "{name}");
        for i in 0..8 {
            let _ = probe(&bytes[..bytes.len() * i / 8 + random.below(bytes.len() / 8)]);
        }
        for _ in 0..30 {
            let mut copy = bytes.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(copy.len());
                // Directories are at the beginning of most files.
                let at = if random.below(2) == 0 { at } else { at % 512.min(copy.len()) };
                copy[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => copy[at].wrapping_add(1),
                    _ => random.below(256) as u8,
                };
            }
            let before = Instant::now();
            let _ = probe(&copy);
            assert!(before.elapsed() < Duration::from_secs(2), "{name}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

/// Directories that are cut off are errors that say where.
#[test]
fn an_error_has_the_offset() {
    let bytes = std::fs::read(folder().join("cog.tif")).unwrap();
    let e = probe(&bytes[..400]).unwrap_err().unwrap();
    assert!(e.contains("Bad { at: ") && e.contains("the file ends at byte 400"), "{e}");
    let mut copy = bytes.clone();
    copy[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(probe(&copy).unwrap_err().unwrap().contains("at: 4294967295"));
    // A chain that bites its tail.
    let first = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let count = usize::from(u16::from_le_bytes([bytes[first], bytes[first + 1]]));
    let next = first + 2 + 12 * count;
    let mut copy = bytes.clone();
    copy.copy_within(4..8, next);
    assert!(probe(&copy).unwrap_err().unwrap().contains("two links lead to this directory"));
}

/// The lengths of a small image are large numbers: nothing of that size is allocated.
#[test]
fn large_numbers_in_a_small_file() {
    for (name, tag, size) in [("utm.tif", 256, 2), ("utm.tif", 257, 2), ("nan.tif", 256, 2)] {
        let mut bytes = patch(name, tag, u16::MAX);
        // The value has 4 bytes if its type is LONG; the type is before the count.
        let at = bytes.windows(2).position(|w| w == tag.to_le_bytes()).unwrap();
        bytes[at + size..at + 4].copy_from_slice(&4u16.to_le_bytes());
        bytes[at + 8..at + 12].copy_from_slice(&u32::MAX.to_le_bytes());
        let _ = probe(&bytes);
    }
}
