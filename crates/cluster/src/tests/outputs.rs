//! Outputs that workers write.

use super::{Bench, loads, numbers, plan, stores};
use crate::wire::Load;
use std::sync::Arc;
use std::time::Duration;
use tessera_exec::cancel::CancelToken;
use tessera_exec::order::Shelved;
use tessera_exec::run::How;
use tessera_exec::schedule;
use tessera_exec::task::{PlanRunner, Sources};
use tessera_planner::catalog::{Attrs, DimLabel};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ScanKind;
use tessera_planner::plan::OutputRef;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::tile::Tiling;
use tessera_storage::sink::{self, Item, Layout, Target, Written, ZarrWriter};
use tessera_storage::source::Options;

/// A writer of a plan's results to a new store.
async fn writer(bench: &Bench, t: &Tiling, name: &str) -> Arc<ZarrWriter> {
    let host = sink::Host {
        stores: Arc::new(stores()),
        quota: bench.own.quota().clone(),
        io: tokio::runtime::Handle::current(),
        threads: 2,
        store: bench.own.store().clone(),
    };
    let item = |(n, of): (usize, &OutputRef)| {
        let (grid, name) = (t.plan().output(*of).grid.clone(), format!("r{n}"));
        let shape = grid.shape();
        let layout = Layout::default();
        Item {
            chunks: layout.fit(&name, &shape, DType::Float64, &grid).unwrap(),
            dims: vec![DimLabel { name: None, coord: None }; shape.len()],
            attrs: Attrs::new(),
            is_coordinate: false,
            dtype: DType::Float64,
            nullable: false,
            name,
            shape,
            texts: None,
        }
    };
    let items = t.plan().results.iter().enumerate().map(item).collect();
    let url = bench.files.path().join(name).display().to_string();
    let target = Target::parse(&url, &Options::default(), &host.stores).unwrap();
    let how = (false, false, false);
    ZarrWriter::create(&target, items, Attrs::new(), Layout::default(), how, &host).await.unwrap()
}

/// Runs `rest` of a plan with a store as its sink. Returns the number of operands that ran, and the written store.
async fn write(
    bench: &Bench,
    t: &Arc<Tiling>,
    writer: &Arc<ZarrWriter>,
    rest: Arc<dyn schedule::Tiling>,
    shelved: Option<Shelved>,
) -> (u64, Written) {
    let runner = Arc::new(PlanRunner::new(t.clone(), &Sources::default()).unwrap());
    let how = How { shelved, ..How::default() };
    let running =
        bench.own.start_as(rest, runner, writer.clone(), &CancelToken::new(), how).unwrap();
    let outcome = running.outcome().await;
    outcome.result.unwrap();
    let ran: u64 = outcome.stats.stages.iter().map(|s| s.operands).sum();
    (ran, writer.finish().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_that_workers_wrote_are_neither_fetched_nor_recomputed() {
    let mut bench = Bench::with_timeout(2, Duration::from_millis(1500)).await;
    // One result is read by the stages of the other; its chunks are retained until the statement ends.
    let t = plan(4096, |b| {
        let x = numbers(b, &[96, 70], &[16, 70]);
        let y = b.scan(x, ScanKind::Sum, 1).unwrap();
        let mean = b.reduce_axes(y, ReduceKind::Mean, &[0]).unwrap();
        let d = b.map(ScalarOp::Sub, &[y, mean]).unwrap();
        vec![y, b.rechunk(d, &[12, 70]).unwrap()]
    });
    let sources = Sources::default();
    let alone = writer(&bench, &t, "alone.zarr").await;
    let (_, want) = write(&bench, &t, &alone, t.clone(), None).await;
    let spread = writer(&bench, &t, "spread.zarr").await;
    let shared = spread.share().await.unwrap().unwrap();
    let drive = bench.drive_to(&t, &sources, Some((spread.clone(), shared)));
    let shelved = drive.prepare(&t).await.unwrap();
    // Nobody is left to load anything from.
    for (_, task) in &bench.workers {
        task.abort();
    }
    let rest = drive.rest_for_server(&t).await.unwrap().unwrap();
    assert_eq!((rest.operands(), rest.loads().count()), (0, 0));
    let (ran, written) = write(&bench, &t, &spread, Arc::new(rest), Some(shelved)).await;
    assert_eq!((ran, written), (0, want));
    let totals = drive.totals();
    assert_eq!((totals.objects_written, totals.bytes_home, totals.no_output), (14, 0, 0));
    bench.workers.clear();
    for name in ["r0/c/0/0", "r0/c/5/0", "r1/c/0/0", "r1/c/7/0", "zarr.json"] {
        let read = |store: &str| std::fs::read(bench.files.path().join(store).join(name)).unwrap();
        assert!(read("alone.zarr") == read("spread.zarr"), "{name}");
    }
    assert!(!bench.files.path().join("spread.zarr/__parts").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_write_results_that_they_retain_of_an_earlier_plan() {
    let bench = Bench::new(2).await;
    let t = plan(4096, |b| {
        let x = numbers(b, &[96, 70], &[16, 70]);
        vec![b.scan(x, ScanKind::Sum, 1).unwrap()]
    });
    let sources = Sources::default();
    bench.both(&t, &sources).await;
    let has_forgotten = |loads: &[Load]| {
        loads.iter().all(|l| l.chunks == 0) && loads.iter().map(|l| l.retained).sum::<u64>() >= 6
    };
    loads(&bench, "the first plan", has_forgotten).await;
    let alone = writer(&bench, &t, "alone.zarr").await;
    let (_, want) = write(&bench, &t, &alone, t.clone(), None).await;
    let spread = writer(&bench, &t, "spread.zarr").await;
    let shared = spread.share().await.unwrap().unwrap();
    let drive = bench.drive_to(&t, &sources, Some((spread.clone(), shared)));
    let shelved = drive.prepare(&t).await.unwrap();
    let rest = drive.rest_for_server(&t).await.unwrap().unwrap();
    let (ran, written) = write(&bench, &t, &spread, Arc::new(rest), Some(shelved)).await;
    assert_eq!((ran, written), (0, want));
    let totals = drive.totals();
    let operands: u64 = totals.stages.iter().map(|(operands, _)| operands).sum();
    assert_eq!((totals.retained, operands), (6, 0), "{totals:?}");
    assert_eq!((totals.objects_written, totals.bytes_home), (6, 0), "{totals:?}");
    for n in 0..6 {
        let read = |store: &str| {
            std::fs::read(bench.files.path().join(store).join(format!("r0/c/{n}/0"))).unwrap()
        };
        assert!(read("alone.zarr") == read("spread.zarr"), "{n}");
    }
}
