#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A plan as a list: the outputs of each stage and the reads of each operand.
#[derive(Debug, Clone)]
struct Listed {
    outputs: Vec<u32>,
    reads: Vec<Vec<Vec<(OutputRef, u64)>>>,
    results: Vec<OutputRef>,
}

impl Lineage for Listed {
    fn stages(&self) -> usize {
        self.reads.len()
    }

    fn results(&self) -> &[OutputRef] {
        &self.results
    }

    fn outputs(&self, stage: StageId) -> u32 {
        self.outputs[stage.0 as usize]
    }

    fn reads(&self, stage: StageId, number: u64, f: &mut dyn FnMut(OutputRef, u64)) {
        for &(from, n) in &self.reads[stage.0 as usize][number as usize] {
            f(from, n);
        }
    }

    fn readers(&self, of: OutputRef, number: u64) -> u64 {
        self.reads.iter().flatten().flatten().filter(|r| **r == (of, number)).count() as u64
    }
}

type Operand = (u32, u64);

impl Listed {
    fn operands(&self) -> impl Iterator<Item = Operand> + '_ {
        (0u32..).zip(&self.reads).flat_map(|(s, all)| (0..all.len() as u64).map(move |n| (s, n)))
    }

    /// Operands that a result needs, where `there` need not be computed: the definition.
    fn reached(&self, there: &dyn Fn(Operand) -> bool) -> BTreeSet<Operand> {
        let roots = self.results.iter().flat_map(|r| {
            let s = r.stage.0;
            (0..self.reads[s as usize].len() as u64).map(move |n| (s, n))
        });
        let (mut found, mut next) = (BTreeSet::new(), roots.collect::<Vec<_>>());
        while let Some((s, n)) = next.pop() {
            if found.insert((s, n)) && !there((s, n)) {
                let reads = &self.reads[s as usize][n as usize];
                next.extend(reads.iter().map(|(from, n)| (from.stage.0, *n)));
            }
        }
        found
    }
}

/// Stages with the given numbers of operands and outputs; a number determines the reads of each operand. With `live`,
/// only operands that a result needs remain.
fn listed(shape: &[(u64, u32, u64)], results: u64, live: bool) -> Listed {
    let mut plan = Listed { outputs: vec![], reads: vec![], results: vec![] };
    for (s, &(count, outputs, bits)) in shape.iter().enumerate() {
        let reads = (0..count).map(|n| {
            let mut reads: Vec<(OutputRef, u64)> = Vec::new();
            for i in 0..if s == 0 { 0 } else { bits % 5 } {
                let h = (bits ^ (n * 31 + i)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 17;
                let from = (h % s as u64) as usize;
                let output = (h >> 40) as u32 % plan.outputs[from];
                let of = OutputRef { stage: StageId(from as u32), output };
                let read = (of, (h >> 8) % plan.reads[from].len() as u64);
                if !reads.contains(&read) {
                    reads.push(read);
                }
            }
            // Some stages have a carry from chunk to chunk.
            if bits % 3 == 0 && n > 0 {
                reads.push((OutputRef { stage: StageId(s as u32), output: 0 }, n - 1));
            }
            reads
        });
        let reads = reads.collect();
        plan.reads.push(reads);
        plan.outputs.push(outputs);
    }
    let last = shape.len() as u32 - 1;
    let is_result = |s: u32| s == last || results >> s & 1 == 1;
    let all = (0..=last).filter(|&s| is_result(s));
    plan.results = all.map(|s| OutputRef { stage: StageId(s), output: 0 }).collect();
    if live {
        let needed = plan.reached(&|_| false);
        for (s, all) in (0..).zip(&mut plan.reads) {
            for (n, reads) in (0..).zip(all) {
                if !needed.contains(&(s, n)) {
                    reads.clear();
                }
            }
        }
    }
    plan
}

fn available(plan: &Listed, seed: u64) -> Vec<Bitmap> {
    let one = |s: u64, n: u64| {
        let h = (seed ^ (s * 1_000_003 + n)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        h % 8 < seed % 9
    };
    let of = |(s, all): (u64, &Vec<_>)| (0..all.len() as u64).filter(|&n| one(s, n)).collect();
    (0..).zip(&plan.reads).map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn recovery_equals_reachability(
        shape in prop::collection::vec((1u64..12, 1u32..3, any::<u64>()), 1..7),
        results in any::<u64>(),
        seed in any::<u64>(),
        live in any::<bool>(),
    ) {
        let plan = listed(&shape, results, live);
        let there = available(&plan, seed);
        let is_there = |(s, n): Operand| there[s as usize].contains(n);
        let recovery = recover(&plan, &there);
        let (before, after) = (plan.reached(&|_| false), plan.reached(&is_there));
        for (s, n) in plan.operands() {
            let (stage, found) = (StageId(s), after.contains(&(s, n)));
            let (loads, runs) = (recovery.loads(stage, n), recovery.runs(stage, n));
            prop_assert!(!(loads && runs));
            // An available operand never runs, needed or not.
            prop_assert!(!(runs && is_there((s, n))));
            prop_assert!(!loads || is_there((s, n)));
            if found {
                // A needed operand is loaded or runs.
                prop_assert_eq!(loads, is_there((s, n)));
                prop_assert_eq!(runs, !is_there((s, n)));
                for output in 0..plan.outputs(stage) {
                    let of = OutputRef { stage, output };
                    // An operand that no result ever needed still counts as a reader, as it does without a recovery.
                    let reads = |o: &Operand| {
                        let reads = &plan.reads[o.0 as usize][o.1 as usize];
                        reads.contains(&(of, n)) && !is_there(*o)
                    };
                    let runs = plan.operands().filter(reads).filter(|o| after.contains(o)).count();
                    let left = plan.readers(of, n) - recovery.absent(of, n);
                    prop_assert!(left >= runs as u64);
                    if live {
                        prop_assert_eq!(left, runs as u64, "readers of {:?} {}", of, n);
                    }
                }
            } else if live && before.contains(&(s, n)) {
                prop_assert!(!loads && !runs, "{:?} is not asked for any more", (s, n));
            }
        }
    }

    #[test]
    fn more_available_chunks_never_mean_more_work(
        shape in prop::collection::vec((1u64..12, 1u32..3, any::<u64>()), 1..7),
        seed in any::<u64>(),
        more in any::<u64>(),
    ) {
        let plan = listed(&shape, 0, true);
        let few = available(&plan, seed);
        let more = available(&plan, more);
        let both: Vec<Bitmap> =
            few.iter().zip(&more).map(|(a, b)| a.iter().chain(b.iter()).collect()).collect();
        let (few, both) = (recover(&plan, &few), recover(&plan, &both));
        for (s, n) in plan.operands() {
            prop_assert!(!both.runs(StageId(s), n) || few.runs(StageId(s), n));
        }
    }

    #[test]
    fn a_bitmap_is_a_set(
        ops in prop::collection::vec((any::<u8>(), 0u64..300, 0u64..150), 0..60),
    ) {
        let (mut a, mut b) = (Bitmap::default(), BTreeSet::new());
        for (what, n, more) in ops {
            match what % 4 {
                0 => prop_assert_eq!(a.remove(n), b.remove(&n)),
                1 => {
                    a.insert_range(n, n + more);
                    b.extend(n..n + more);
                }
                _ => prop_assert_eq!(a.insert(n), b.insert(n)),
            }
            prop_assert_eq!(a.contains(n), b.contains(&n));
        }
        prop_assert_eq!(a.iter().collect::<Vec<_>>(), b.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(a.len(), b.len() as u64);
        prop_assert_eq!(a.is_empty(), b.is_empty());
        let runs: Vec<(u64, u64)> = a.runs().collect();
        prop_assert!(runs.windows(2).all(|w| w[0].1 < w[1].0), "runs are the longest: {:?}", runs);
        for n in 0..450 {
            prop_assert_eq!(a.first_from(n), b.range(n..).next().copied());
        }
        let written = serde_json::to_string(&a).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Bitmap>(&written).unwrap(), &a, "{}", written);
        // Equal sets are equal, however they were made.
        prop_assert_eq!(a, b.into_iter().collect::<Bitmap>());
    }

    #[test]
    fn a_written_bitmap_is_a_set_or_refused(
        combs in prop::collection::vec((0u64..90, 0u64..70, 0u64..90, 0u64..5), 0..6),
        huge in 0usize..40,
        number in any::<u64>(),
    ) {
        let mut all: Vec<u64> = combs.iter().flat_map(|c| [c.0, c.1, c.2, c.3]).collect();
        if let Some(n) = all.get_mut(huge) {
            *n = number;
        }
        let combs: Vec<&[u64]> = all.chunks(4).collect();
        let read = serde_json::from_str::<Bitmap>(&serde_json::to_string(&combs).unwrap());
        if let Ok(read) = read {
            prop_assert!(read.len() <= 1 << 24);
            let sizes = combs.iter().map(|c| c[1] * c[3]);
            prop_assert!(read.len() <= sizes.sum::<u64>());
        }
    }
}

#[test]
fn a_box_of_operands_is_written_as_a_few_numbers() {
    let written = |set: &Bitmap| serde_json::to_value(set).unwrap().as_array().unwrap().len();
    let whole: Bitmap = (0..1_000_000).collect();
    assert_eq!(written(&whole), 1);
    // Five columns of a grid, and rows with a part of the row before and after.
    let columns = (0..1_000).flat_map(|row| row * 1_000 + 35..row * 1_000 + 40).collect();
    assert_eq!(written(&columns), 1);
    assert_eq!(written(&(5_317..11_042).collect()), 1);
    // A box of a grid of three axes.
    let numbers = (0..10u64).flat_map(|i| {
        (0..20).flat_map(move |j| {
            let row = (i * 100 + j) * 50;
            row + 7..row + 11
        })
    });
    assert!(written(&numbers.collect()) <= 20);
    assert_eq!(written(&Bitmap::default()), 0);
}

#[test]
fn one_that_is_lost_after_all_runs() {
    let stage = |s| OutputRef { stage: StageId(s), output: 0 };
    let plan = Listed {
        outputs: vec![1, 1],
        reads: vec![vec![vec![]; 2], vec![vec![(stage(0), 0)], vec![(stage(0), 1)]]],
        results: vec![stage(1)],
    };
    let there = [Bitmap::default(), [1].into_iter().collect()];
    let mut recovery = recover(&plan, &there);
    assert!(recovery.loads(StageId(1), 1) && recovery.runs(StageId(1), 0));
    assert!(recovery.runs(StageId(0), 0) && !recovery.runs(StageId(0), 1));
    recovery.lose(StageId(1), 1);
    assert!(recovery.runs(StageId(1), 1) && !recovery.loads(StageId(1), 1));
    assert!(recovery.runs(StageId(0), 1), "what it reads may be asked for again");
    // Its available input is loaded, though it was not needed before.
    let there = [[1].into_iter().collect(), [1].into_iter().collect()];
    let mut recovery = recover(&plan, &there);
    assert!(!recovery.loads(StageId(0), 1) && !recovery.runs(StageId(0), 1));
    recovery.lose(StageId(1), 1);
    assert!(recovery.loads(StageId(0), 1) && !recovery.runs(StageId(0), 1));
}
