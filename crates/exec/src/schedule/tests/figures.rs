//! Figures, not checks: `cargo test --release -p tessera-exec figures -- --ignored --nocapture`.
#![allow(clippy::print_stderr, reason = "figures are printed")]

use super::*;

#[test]
#[ignore = "prints times"]
fn figures_of_operand_overhead() {
    for threads in [1, 2] {
        let b = bench(threads, 1 << 30);
        let mut toy = Toy::default();
        let load = toy.load(50_000, 100);
        toy.stage(50_000, 100, Box::new(move |n| vec![(load, n)]));
        toy.stages[1].depth = 1;
        toy.stages[1].readers = Box::new(|_, _| 0);
        toy.results = vec![out(1, 0)];
        for (name, plan) in [("map over loads", Arc::new(toy)), ("binary tree", tree(16, 100))] {
            let operands: u64 = plan.stages.iter().map(|s| s.count).sum();
            for fetch in [false, true] {
                let runner = Arc::new(ToyRunner {
                    fetch: fetch.then(|| Arc::new(|_| Ok(())) as _),
                    ..ToyRunner::new(&plan)
                });
                let started = std::time::Instant::now();
                let stats = b.run(&plan, runner, &Arc::new(Collect::default())).stats;
                let time = started.elapsed();
                eprintln!(
                    "{name}, {threads} threads, fetch {fetch}: {operands} operands in {time:?}, {:.2} us each, {} live operands, {} live chunks",
                    time.as_secs_f64() * 1e6 / operands as f64,
                    stats.max_live_operands,
                    stats.max_live_chunks,
                );
            }
        }
    }
}
