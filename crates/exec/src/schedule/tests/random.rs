//! Random plans against direct evaluation.

use super::toy::Reads;
use super::*;
use proptest::prelude::*;

/// Stages as count, outputs, is-load, and a number that decides what each operand reads.
pub(super) fn plan(shape: &[(u64, u32, bool, u64)], results: u64) -> Arc<Toy> {
    let mut toy = Toy::default();
    for (s, &(count, outputs, load, bits)) in shape.iter().enumerate() {
        let below: Vec<u64> = toy.stages.iter().map(|t| t.count).collect();
        let load = load || s == 0;
        let reads: Reads = Box::new(move |n| {
            let mut reads = Vec::new();
            if load {
                return reads;
            }
            for i in 0..=(bits % 4) {
                let h = (bits ^ (n * 31 + i)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 17;
                let from = (h % below.len() as u64) as usize;
                let read = (from as u32, (h >> 8) % below[from]);
                if !reads.contains(&read) {
                    reads.push(read);
                }
            }
            // Some stages carry a value from chunk to chunk.
            if bits % 3 == 0 && n > 0 {
                reads.push((s as u32, n - 1));
            }
            reads
        });
        let at = toy.stage(count, 10, reads) as usize;
        toy.stages[at].outputs = outputs;
        toy.stages[at].load = load;
    }
    let last = shape.len() as u32 - 1;
    toy.results = vec![out(last, 0)];
    for s in 0..last {
        if results >> s & 1 == 1 {
            toy.results.push(out(s, 0));
        }
    }
    toy.count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_plan_returns_the_values_of_direct_evaluation(
        shape in prop::collection::vec((1u64..12, 1u32..3, any::<bool>(), any::<u64>()), 1..7),
        results in any::<u64>(),
        threads in 1usize..4,
        fetch in any::<bool>(),
        room in 0u64..120,
    ) {
        let plan = plan(&shape, results);
        let all: u64 = plan.stages.iter().map(|s| s.count * s.cells * 8 * u64::from(s.outputs)).sum();
        for quota in [1 << 20, all + 160, 160 + room * 80] {
            let b = bench(threads, quota);
            let runner = Arc::new(ToyRunner {
                fetch: fetch.then(|| Arc::new(|_| Ok(())) as _),
                ..ToyRunner::new(&plan)
            });
            let sink = Arc::new(Collect::default());
            let outcome = b.run(&plan, runner, &sink);
            prop_assert!(outcome.stats.peak_bytes <= quota);
            prop_assert_eq!(outcome.stats.states.live(), 0);
            match outcome.result {
                Ok(()) => check(&plan, &sink),
                // A plan may fail only if it does not fit when it is held all at once.
                Err(e) => {
                    prop_assert_eq!(e.code(), "memory_exceeded");
                    prop_assert!(quota < all + 160);
                }
            }
            b.is_empty();
            prop_assert_eq!(b.quota().overrun(), 0);
        }
    }

    /// A plan that one thread can run, several can, with the same values.
    #[test]
    fn the_number_of_threads_does_not_decide_if_a_plan_fits(
        shape in prop::collection::vec((1u64..8, 1u32..3, any::<bool>(), any::<u64>()), 2..6),
        room in 0u64..30,
    ) {
        let plan = plan(&shape, 0);
        let fits = |threads: usize| {
            let b = bench(threads, 160 + room * 80);
            let sink = Arc::new(Collect::default());
            let outcome = b.run(&plan, Arc::new(ToyRunner::new(&plan)), &sink);
            b.is_empty();
            outcome.result.is_ok()
        };
        if fits(1) {
            prop_assert!(fits(3));
        }
    }
}
