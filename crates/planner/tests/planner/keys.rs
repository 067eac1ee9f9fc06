//! Keys of chunks, and the remaining work of real plans.

use super::*;
use tessera_planner::key::{Keys, StageKey};
use tessera_planner::plan::{Access, Plan};
use tessera_planner::recover::{Bitmap, recover};

/// The same plan with versions for its sources.
fn versioned(t: &Tiling, version: impl Fn(&str) -> Option<String>) -> Tiling {
    let mut plan = Plan::clone(t.plan());
    for stage in &mut plan.stages {
        if let Task::Load { source, .. } = &mut stage.task {
            let version = version(&source.url);
            *source = Arc::new(SourceRef { version, ..SourceRef::clone(source) });
        }
    }
    Tiling::new(Arc::new(plan))
}

fn first(_: &str) -> Option<String> {
    Some("1".into())
}

fn keys(t: &Tiling) -> Keys {
    Keys::of(t.plan())
}

fn result(t: &Tiling) -> StageKey {
    keys(&versioned(t, first)).result(0).unwrap()
}

/// Do two stages compute the same? The definition.
fn is_same(p: &Plan, s: StageId, q: &Plan, t: StageId) -> bool {
    let (a, b) = (p.stage(s), q.stage(t));
    a.task == b.task
        && a.grid == b.grid
        && a.outputs == b.outputs
        && a.inputs.len() == b.inputs.len()
        && a.inputs.iter().zip(&b.inputs).all(|(i, j)| {
            let same = i.access == j.access && i.from.output == j.from.output;
            let carry = |access: &Access| matches!(access, Access::Previous { .. });
            same && (carry(&i.access) || is_same(p, i.from.stage, q, j.from.stage))
        })
}

fn small(choices: &[u8], a: u64, c: u64) -> Option<Tiling> {
    let mut b = Builder::new(tiny());
    let root = expression(&mut b, choices, (a, c));
    (b.shape(root).iter().product::<u64>() < 400).then(|| versioned(&plan(b, &[root]), first))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn stages_have_the_same_key_if_they_compute_the_same(
        one in proptest::collection::vec(any::<u8>(), 1..5),
        other in proptest::collection::vec(any::<u8>(), 1..5),
        shared in 0usize..4,
        a in 1u64..8,
        c in 1u64..10,
    ) {
        // Two expressions that begin alike, so that some stages are the same under other numbers.
        let shared = &one[..shared.min(one.len())];
        let other: Vec<u8> = shared.iter().chain(&other).copied().collect();
        let (Some(p), Some(q)) = (small(&one, a, c), small(&other, a, c)) else { return Ok(()) };
        let (ps, qs) = (keys(&p), keys(&q));
        for s in (0..p.plan().stages.len() as u32).map(StageId) {
            for t in (0..q.plan().stages.len() as u32).map(StageId) {
                let same = is_same(p.plan(), s, q.plan(), t);
                prop_assert_eq!(ps.stage(s).unwrap() == qs.stage(t).unwrap(), same);
            }
        }
    }

    #[test]
    fn any_other_version_is_another_key(
        choices in proptest::collection::vec(any::<u8>(), 1..5),
        a in 1u64..8,
        c in 1u64..10,
    ) {
        let Some(t) = small(&choices, a, c) else { return Ok(()) };
        let newer = versioned(&t, |url| Some(if url == "x" { "2".into() } else { "1".into() }));
        let unknown = versioned(&t, |url| (url != "x").then(|| "1".into()));
        let (before, after, none) = (keys(&t), keys(&newer), keys(&unknown));
        // Every result reads x in the end.
        prop_assert!(before.result(0).is_some());
        prop_assert_ne!(before.result(0), after.result(0));
        prop_assert_eq!(none.result(0), None);
    }

    #[test]
    fn recovery_of_real_plans_runs_only_needed_operands(
        choices in proptest::collection::vec(any::<u8>(), 1..5),
        a in 1u64..8,
        c in 1u64..10,
        seed in any::<u64>(),
    ) {
        let Some(t) = small(&choices, a, c) else { return Ok(()) };
        let stages = &t.plan().stages;
        let is_there = |s: u32, n: u64| {
            let h = (seed ^ (u64::from(s) * 1_000_003 + n)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            h % 8 < seed % 9 && !matches!(stages[s as usize].task, Task::Load { .. })
        };
        let there: Vec<Bitmap> = (0..)
            .zip(stages)
            .map(|(s, stage)| (0..stage.grid.count()).filter(|&n| is_there(s, n)).collect())
            .collect();
        let recovery = recover(&t, &there);
        // By definition: the operands that a result needs, without the inputs of available ones.
        let mut next: Vec<(StageId, u64)> = Vec::new();
        for r in &t.plan().results {
            next.extend((0..t.plan().stage(r.stage).grid.count()).map(|n| (r.stage, n)));
        }
        let mut read: BTreeMap<(OutputRef, u64), u64> = BTreeMap::new();
        let mut found = std::collections::BTreeSet::new();
        while let Some((s, n)) = next.pop() {
            if !found.insert((s, n)) {
                continue;
            }
            prop_assert_eq!(recovery.loads(s, n), is_there(s.0, n));
            prop_assert_eq!(recovery.runs(s, n), !is_there(s.0, n));
            if !is_there(s.0, n) {
                let index = t.plan().stage(s).grid.unravel(n);
                t.reads(s, &index, &mut |from, at| {
                    let n = t.plan().stage(from.stage).grid.ravel(&at);
                    *read.entry((from, n)).or_default() += 1;
                    next.push((from.stage, n));
                });
            }
        }
        for (&(of, n), &times) in &read {
            let index = t.plan().stage(of.stage).grid.unravel(n);
            let left = t.readers(of, &index) - recovery.absent(of, n);
            prop_assert!(left >= times, "{:?} {}: {} of {}", of, n, left, times);
        }
    }
}

#[test]
fn a_plan_without_available_chunks_runs_whole() {
    let mut b = Builder::new(Config::default());
    let x = b.load(source("x", &[1_000_000_000 * 1024, 1024], &[1024, 1024])).unwrap();
    let m = b.reduce_axes(x, ReduceKind::Mean, &[0, 1]).unwrap();
    let t = plan(b, &[m]);
    // A billion operands, one of them available: the plan lists only the operands that it makes unnecessary.
    assert_eq!(recover(&t, &[]), Default::default());
    let last = t.plan().stages.len() - 3;
    let mut there = vec![Bitmap::default(); t.plan().stages.len()];
    there[2].insert(7);
    let recovery = recover(&t, &there);
    assert!(recovery.loads(StageId(2), 7) && recovery.runs(StageId(2), 8));
    let skipped = (0..2000).filter(|&n| !recovery.runs(StageId(1), n)).collect::<Vec<_>>();
    assert_eq!(skipped, (112..128).collect::<Vec<_>>(), "its sixteen inputs");
    assert!(!recovery.runs(StageId(0), 113) && recovery.runs(StageId(last as u32), 0));
}

#[test]
fn any_other_query_is_another_key() {
    let of = |version: &str, chunk: u64, f: &dyn Fn(&mut Builder, NodeId) -> NodeId| {
        let mut b = Builder::new(Config::default());
        let x = b.load(source("x", &[100, 10], &[chunk, 10])).unwrap();
        let root = f(&mut b, x);
        let t = versioned(&plan(b, &[root]), |_| Some(version.into()));
        keys(&t).result(0).unwrap()
    };
    let times = |factor: f64| {
        move |b: &mut Builder, x: NodeId| {
            let c = b.constant(Scalar::f64(factor)).unwrap();
            b.map(ScalarOp::Mul, &[x, c]).unwrap()
        }
    };
    let random = |seed: u64| {
        move |b: &mut Builder, x: NodeId| {
            let i = b.iota(&[1000], None).unwrap();
            let r = b.map(ScalarOp::RandomUniform { seed }, &[i]).unwrap();
            let r = b.reshape(r, &[100, 10]).unwrap();
            b.map(ScalarOp::Add, &[x, r]).unwrap()
        }
    };
    let mean = |axis: usize| {
        move |b: &mut Builder, x: NodeId| b.reduce_axes(x, ReduceKind::Mean, &[axis]).unwrap()
    };
    let take = |axis: usize, positions: [u64; 4]| {
        move |b: &mut Builder, x: NodeId| b.take(x, axis, positions.into()).unwrap()
    };
    let all = [
        of("1", 50, &times(2.0)),
        of("2", 50, &times(2.0)),
        of("1", 20, &times(2.0)),
        of("1", 50, &times(3.0)),
        of("1", 50, &times(f64::NAN)),
        of("1", 50, &random(1)),
        of("1", 50, &random(2)),
        of("1", 50, &mean(0)),
        of("1", 50, &mean(1)),
        of("1", 50, &take(0, [0, 1, 2, 9])),
        of("1", 50, &take(0, [0, 2, 1, 9])),
        of("1", 50, &take(1, [0, 1, 2, 9])),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b), "{i}");
    }
    assert_eq!(of("1", 50, &times(f64::NAN)), all[4]);
    assert_eq!(of("1", 50, &random(2)), all[6]);
    assert_eq!(of("1", 50, &take(0, [0, 2, 1, 9])), all[10]);
}

#[test]
fn arrays_in_memory_go_by_their_version() {
    let of = |url: &str, version: Option<&str>| {
        let mut b = Builder::new(Config::default());
        let x = SourceRef {
            version: version.map(Into::into),
            plain: false,
            ..SourceRef::clone(&source(url, &[9], &[3]))
        };
        let x = b.load(Arc::new(x)).unwrap();
        let y = b.map(ScalarOp::Exp, &[x]).unwrap();
        keys(&plan(b, &[y])).result(0)
    };
    assert_eq!(of("temp:a@1", None), None);
    assert!(of("temp:a@1", Some("k")).is_some());
    assert_eq!(of("temp:a@1", Some("k")), of("temp:b@7", Some("k")));
    assert_ne!(of("temp:a@1", Some("k")), of("temp:a@1", Some("l")));
    assert_ne!(of("temp:a@1", Some("k")), of("a", Some("k")));
    assert_ne!(of("a", Some("k")), of("b", Some("k")));
}

#[test]
fn a_part_of_another_plan_has_its_key() {
    let mut alone = Builder::new(Config::default());
    let x = alone.load(source("x", &[100, 10], &[10, 10])).unwrap();
    let root = alone.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
    let alone = plan(alone, &[root]);
    let mut both = Builder::new(Config::default());
    let y = both.load(source("y", &[40], &[10])).unwrap();
    let y = both.scan(y, ScanKind::Sum, 0).unwrap();
    let x = both.load(source("x", &[100, 10], &[10, 10])).unwrap();
    let root = both.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
    let both = versioned(&plan(both, &[y, root]), first);
    assert_eq!(keys(&both).result(1), Some(result(&alone)));
    assert_ne!(keys(&both).result(0), Some(result(&alone)));
}
