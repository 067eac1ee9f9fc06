//! Damaged and crafted files: each is an error, or is read, in bounded time.

use super::{SAMPLES, bytes, group};
use crate::formats::hdf5::file::lenient;
use crate::formats::probe;
use crate::formats::view::Fault;
use crate::source::tests::Random;
use std::time::{Duration, Instant};

/// Damages each sample `cases` times. Metadata are near signatures more often than elsewhere.
fn damage(cases: usize) {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let marks: [&[u8]; 14] = [
        b"OHDR", b"OCHK", b"TREE", b"SNOD", b"HEAP", b"GCOL", b"FRHP", b"FHDB", b"FHIB", b"BTHD",
        b"BTLF", b"FADB", b"EAIB", b"\x89HDF",
    ];
    for name in SAMPLES {
        let sample = bytes(name);
        let places: Vec<usize> = (0..sample.len())
            .filter(|i| marks.iter().any(|m| sample[*i..].starts_with(m)))
            .collect();
        for case in 0..cases {
            let mut damaged = sample.clone();
            if case % 8 == 0 {
                damaged.truncate(random.below(sample.len()));
            }
            for _ in 0..=random.below(4) {
                let at = match random.below(4) {
                    0 => random.below(sample.len()),
                    _ => places[random.below(places.len())] + random.below(400),
                };
                let value = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
                let n = 1 + random.below(2) * random.below(8);
                for b in damaged.iter_mut().skip(at).take(n) {
                    *b = value;
                }
            }
            let start = Instant::now();
            let _either = probe(&damaged);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(2), "{name} {case} took {took:?}");
        }
    }
}

#[test]
fn damaged_samples_are_errors() {
    damage(40);
}

#[test]
fn damaged_samples_with_right_checksums_are_errors() {
    lenient(|| damage(80));
}

/// A file with a root group of version 0, made of parts at given addresses.
struct Crafted(Vec<u8>);

impl Crafted {
    fn new() -> Crafted {
        let mut out = Crafted(Vec::new());
        out.put(0, b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0\x04\0\x10\0");
        for (i, v) in [0, u64::MAX, 1 << 16, u64::MAX, 0, 96].into_iter().enumerate() {
            out.put(24 + 8 * i, &v.to_le_bytes());
        }
        out.put((1 << 16) - 1, &[0]);
        // The header of the root: one message, its table of symbols at 400 with names at 800.
        out.header(96, &[(17, &[400u64, 800].map(u64::to_le_bytes).concat())]);
        out.put(800, b"HEAP\0\0\0\0");
        for (i, v) in [64u64, 1, 840].into_iter().enumerate() {
            out.put(808 + 8 * i, &v.to_le_bytes());
        }
        out.put(848, b"x\0");
        out
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.0.len() < at + bytes.len() {
            self.0.resize(at + bytes.len(), 0);
        }
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A header of version 1.
    fn header(&mut self, at: usize, messages: &[(u16, &[u8])]) {
        let all: usize = messages.iter().map(|(_, m)| 8 + m.len()).sum();
        self.put(at, &[1, 0, messages.len() as u8, 0, 1, 0, 0, 0]);
        self.put(at + 8, &(all as u32).to_le_bytes());
        let mut at = at + 16;
        for (kind, m) in messages {
            self.put(at, &kind.to_le_bytes());
            self.put(at + 2, &(m.len() as u16).to_le_bytes());
            self.put(at + 8, m);
            at += 8 + m.len();
        }
    }

    /// A node of a tree of symbols.
    fn node(&mut self, at: usize, level: u8, children: &[u64]) {
        self.put(at, b"TREE\0");
        self.put(at + 5, &[level, children.len() as u8, 0]);
        self.put(at + 8, &[0xff; 16]);
        for (i, child) in children.iter().enumerate() {
            self.put(at + 32 + 16 * i, &child.to_le_bytes());
        }
    }

    fn error(&self) -> String {
        match group(&self.0, "") {
            Err(Fault::Bad { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn trees_that_lead_back_are_errors() {
    let mut ring = Crafted::new();
    ring.node(400, 1, &[400]);
    assert_eq!(ring.error(), "a node of kind 0 at level 1");
    // Every node has the next one twice: 2^30 paths.
    let mut dag = Crafted::new();
    dag.node(400, 30, &[1000, 1000]);
    for level in (1..30).rev() {
        let at = 1000 + 100 * (29 - level) as usize;
        dag.node(at, level, &[at as u64 + 100; 2]);
    }
    assert_eq!(dag.error(), "a node is twice in a B-tree");
    let mut deep = Crafted::new();
    deep.node(400, 200, &[1000]);
    assert_eq!(deep.error(), "a node of kind 0 at level 200");
}

#[test]
fn headers_that_lead_back_are_errors() {
    let block = |at: u64, bytes: u64| [at, bytes].map(u64::to_le_bytes).concat();
    let mut ring = Crafted::new();
    ring.header(96, &[(16, &block(112, 24))]);
    assert_eq!(ring.error(), "the blocks of a header form a ring");
    let mut pair = Crafted::new();
    pair.header(96, &[(16, &block(2000, 24)), (16, &block(2000, 24))]);
    assert_eq!(pair.error(), "the blocks of a header form a ring");
    let mut large = Crafted::new();
    large.header(96, &[(16, &block(2000, u64::MAX))]);
    assert!(large.error().contains("are more than it has"), "{}", large.error());
}

#[test]
fn counts_beyond_the_file_are_errors() {
    let mut node = Crafted::new();
    node.node(400, 0, &[]);
    node.put(406, &[0xff, 0xff]);
    assert!(node.error().contains("bytes are expected, the file ends"), "{}", node.error());
    let mut symbols = Crafted::new();
    symbols.node(400, 0, &[3000]);
    symbols.put(3000, b"SNOD\x01\0\xff\xff");
    assert!(symbols.error().contains("bytes are expected, the file ends"), "{}", symbols.error());
    // A group that holds itself is a group.
    let mut own = Crafted::new();
    own.node(400, 0, &[3000]);
    own.put(3000, b"SNOD\x01\0\x01\0");
    own.put(3008, &[8u64, 96].map(u64::to_le_bytes).concat());
    assert_eq!(group(&own.0, "").unwrap().unwrap().groups, ["x"]);
    assert_eq!(group(&own.0, "x/x/x").unwrap().unwrap().groups, ["x"]);
    assert!(probe(&own.0).is_ok());
}

#[test]
fn a_group_without_a_name_is_not_a_group_in_itself() {
    let ring = bytes("ring.h5");
    let found = group(&ring, "").unwrap().unwrap();
    assert!(found.groups.iter().all(|name| !name.is_empty()), "{:?}", found.groups);
    assert!(found.arrays.contains_key("x"));
    let start = Instant::now();
    probe(&ring).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
}
