//! Many workers that compute nothing, and the load of workers that do.

#[path = "../../benches/simulated/fake.rs"]
mod fake;
#[path = "../../benches/simulated/plans.rs"]
mod many;

use super::{Bench, numbers, plan};
use fake::Fake;
use many::Simulated;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tessera_exec::order::Totals;
use tessera_exec::task::Sources;
use tessera_planner::plan::Task;
use tessera_planner::tile::Tiling;

/// Drives a plan on the fakes of a bench. Returns the totals and the bytes of the orders.
async fn driven(bench: &Bench, plan: &Simulated) -> (Totals, u64) {
    let t = &plan.tiling;
    let drive = plan.drive(&bench.cluster).unwrap().unwrap();
    let expected = drive.expected().unwrap().unwrap();
    drive.prepare(t).await.unwrap();
    let totals = drive.totals();
    assert_eq!(totals.orders, expected.orders as u64, "{}", plan.name);
    // Each operand ran once; arrays may be read by each worker that needs them.
    for (stage, (ran, _)) in t.plan().stages.iter().zip(&totals.stages) {
        match stage.task {
            Task::Load { .. } => assert!(*ran >= stage.grid.count(), "{}", plan.name),
            _ => assert_eq!(*ran, stage.grid.count(), "{}: {stage:?}", plan.name),
        }
    }
    (totals, drive.order_bytes())
}

async fn with_fakes(count: usize, forgets: u64) -> (Bench, Vec<(Arc<Fake>, impl Sized)>) {
    // None may be lost, however busy the machine is.
    let bench = Bench::with_timeout(0, Duration::from_secs(60)).await;
    let scheduler = bench.cluster.address().to_string();
    let mut fakes = Vec::new();
    for _ in 0..count {
        let fake = Fake::new(4, Duration::ZERO, forgets);
        let joined = fake.join(&scheduler, &bench.credentials, "1").await.unwrap();
        fakes.push((fake, joined));
    }
    bench.wait_for(count).await;
    (bench, fakes)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_grow_with_workers_and_not_with_operands() {
    let (bench, fakes) = with_fakes(24, 0).await;
    let (few, many) = (many::plans(4_000).unwrap(), many::plans(60_000).unwrap());
    for (few, many) in few.iter().zip(&many) {
        let (_, bytes_few) = driven(&bench, few).await;
        let (totals, bytes) = driven(&bench, many).await;
        let name = many.name;
        assert!(many.operands() > 10 * few.operands(), "{name}: {}", many.operands());
        assert!(totals.workers > 20 && totals.orders < 400, "{name}: {totals:?}");
        assert!(bytes < 4 * bytes_few + (64 << 10), "{name}: {bytes_few} and {bytes} bytes");
        // An order has its operands, and the log entries since the previous order.
        assert!(bytes / totals.orders < 16 << 10, "{name}: {bytes} bytes, {totals:?}");
    }
    // An order that overtakes the previous one lacks its news; this is rare.
    let count = |of: fn(&Fake) -> u64| fakes.iter().map(|(fake, _)| of(fake)).sum::<u64>();
    let (behind, orders) = (count(|f| f.behind.load(Relaxed)), count(|f| f.orders.load(Relaxed)));
    assert!(behind * 20 < orders, "{behind} of {orders}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_forget_get_the_whole_log() {
    let (bench, fakes) = with_fakes(6, 2).await;
    for plan in many::plans(3_000).unwrap() {
        driven(&bench, &plan).await;
    }
    let behind: u64 = fakes.iter().map(|(fake, _)| fake.behind.load(Relaxed)).sum();
    assert!(behind > 0, "nobody forgot anything");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_plan_goes_to_an_idle_worker() {
    let bench = Bench::new(3).await;
    let workers: Vec<u32> = bench.cluster.registry().alive().iter().map(|m| m.number).collect();
    let posts = bench.cluster.posts();
    // Arrays of one chunk, each with places of its own among idle workers.
    let t: Vec<_> = (60..72).map(|n| plan(1 << 20, |b| vec![numbers(b, &[n], &[n])])).collect();
    let mut seen = BTreeSet::new();
    for t in &t {
        let (first, again) = (places(&bench, t).await, places(&bench, t).await);
        assert_eq!((first.len(), &first), (1, &again), "idle workers");
        seen.extend(first);
        for idle in &workers {
            let mut busy = Vec::new();
            for worker in workers.iter().filter(|worker| *worker != idle) {
                busy.push(posts.enter(*worker, "another plan", false).await);
            }
            assert_eq!(places(&bench, t).await, [*idle]);
        }
    }
    assert_eq!(seen.len(), 3, "other plans have other places");
}

/// The workers that get orders of a plan, none of which uses chunks of another one.
async fn places(bench: &Bench, tiling: &Arc<Tiling>) -> Vec<u32> {
    let (tiling, sources) = (tiling.clone(), Sources::default());
    let plan = Simulated { name: "one operand", tiling, sources };
    let drive = plan.drive(&bench.cluster).unwrap().unwrap();
    drive.prepare(&plan.tiling).await.unwrap();
    drive.totals().each.into_keys().collect()
}
