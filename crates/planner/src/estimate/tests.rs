//! Estimates compared with arithmetic by hand.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::build::Builder;
use crate::catalog::SourceRef;
use crate::compile;
use crate::config::Config;
use crate::dtype::DType;
use crate::grid::Grid;
use crate::ir::NodeId;
use crate::optimize::Rooted;
use crate::program::ScalarOp;
use crate::reduce::ReduceKind;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Bytes that an operand uses besides chunks.
const SCRATCH: u64 = 256 << 10;

fn source(shape: &[u64], chunk: &[u64]) -> Arc<SourceRef> {
    Arc::new(SourceRef {
        url: "x".into(),
        path: String::new(),
        dtype: DType::Float64,
        shape: shape.into(),
        grid: Grid::regular(shape, chunk),
        nullable: false,
        version: None,
        plain: false,
    })
}

fn plan(b: Builder, root: NodeId) -> Tiling {
    let config = b.config.clone();
    compile(Rooted { graph: b.graph, roots: vec![root] }, &config, &mut |_, _| {}).unwrap()
}

fn machine(limit_mib: u64, threads: u64) -> Machine {
    Machine { limit_bytes: limit_mib * MIB, threads, spills: true, remote: false }
}

/// 64 chunks of 8 MiB.
fn chunks() -> (Builder, NodeId) {
    let mut b = Builder::new(Config::default());
    let x = b.load(source(&[64 * MIB], &[MIB])).unwrap();
    (b, x)
}

#[test]
fn a_sum_holds_its_inputs() {
    let (mut b, x) = chunks();
    let sum = b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
    let plan = plan(b, sum);
    // A load has its chunk, the same again for encoded bytes, and again for one decoded chunk. Sums are small.
    let load = 3 * 8 * MIB + SCRATCH;
    for threads in [1, 2, 4] {
        let e = estimate(&plan, &machine(1024, threads));
        assert!((load * threads..load * threads + 4096).contains(&e.peak_bytes), "{e:?}");
        assert_eq!((e.bytes_read, e.bytes_spilled), (64 * 8 * MIB, 0));
    }
    // The estimate never exceeds the limit; remote loads are prefetched.
    assert_eq!(estimate(&plan, &machine(30, 4)).peak_bytes, 30 * MIB);
    let remote = Machine { remote: true, ..machine(1024, 1) };
    let e = estimate(&plan, &remote);
    assert!((load + 512 * MIB..load + 512 * MIB + 4096).contains(&e.peak_bytes), "{e:?}");
}

#[test]
fn inputs_needed_twice_are_held_or_read_again() {
    let (mut b, x) = chunks();
    let mean = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
    let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
    let sum = b.reduce_axes(d, ReduceKind::Sum, &[0]).unwrap();
    let plan = plan(b, sum);
    // The last load begins when the 63 others are held.
    let all = 63 * 8 * MIB + 3 * 8 * MIB + SCRATCH;
    let e = estimate(&plan, &machine(1024, 1));
    assert!((all..all + 4096).contains(&e.peak_bytes), "{e:?}");
    assert_eq!((e.bytes_read, e.bytes_spilled), (512 * MIB, 0));
    // In less memory the oldest are dropped: each is read twice, except for the few held at the end of the first pass.
    let e = estimate(&plan, &machine(100, 1));
    assert!((92 * MIB..=100 * MIB).contains(&e.peak_bytes) && e.bytes_spilled == 0, "{e:?}");
    assert!((900 * MIB..=1024 * MIB).contains(&e.bytes_read), "{e:?}");
}

#[test]
fn a_transposition_spills_chunks_that_do_not_fit() {
    // Rows become columns: every column reads a part of every row.
    let mut b = Builder::new(Config::default());
    let x = b.load(source(&[4096, 4096], &[64, 4096])).unwrap();
    let y = b.rechunk(x, &[4096, 64]).unwrap();
    let plan = plan(b, y);
    let e = estimate(&plan, &machine(1024, 1));
    assert_eq!((e.bytes_read, e.bytes_spilled), (128 * MIB, 0));
    assert!((128 * MIB..140 * MIB).contains(&e.peak_bytes), "{e:?}");
    let e = estimate(&plan, &machine(32, 1));
    assert_eq!(e.bytes_read, 128 * MIB, "each row is read once: {e:?}");
    assert!((96 * MIB..=128 * MIB).contains(&e.bytes_spilled), "{e:?}");
    // Without files nothing is spilled.
    let e = estimate(&plan, &Machine { spills: false, ..machine(32, 1) });
    assert_eq!((e.peak_bytes, e.bytes_spilled), (32 * MIB, 0));
}

#[test]
fn a_plan_too_large_to_simulate_is_estimated_from_its_first_part() {
    // 10^9 chunks that a sum releases, and 2^20 that a transposition retains.
    let mut b = Builder::new(Config { batch_cells: Some(0), ..Config::default() });
    let x = b.load(source(&[1_000_000_000 * 1024], &[1024])).unwrap();
    let sum = b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
    let e = estimate(&plan(b, sum), &machine(1024, 1));
    assert!(e.peak_bytes < 20 * MIB, "{e:?}");
    assert_eq!((e.bytes_read, e.bytes_spilled), (8 * 1024 * 1_000_000_000, 0));

    let mut b = Builder::new(Config::default());
    let x = b.load(source(&[1 << 20, 1 << 12], &[1, 1 << 12])).unwrap();
    let y = b.rechunk(x, &[1 << 20, 1]).unwrap();
    let e = estimate(&plan(b, y), &machine(1024, 1));
    assert_eq!(e.peak_bytes, 1024 * MIB);
    // 32 GiB are retained, of which one fits in memory.
    assert!((31 * 1024 * MIB..33 * 1024 * MIB).contains(&e.bytes_spilled), "{e:?}");
}
