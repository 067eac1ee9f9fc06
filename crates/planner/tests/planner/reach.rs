//! Sets of operands against operands one by one.

use super::*;
use std::collections::BTreeSet;
use tessera_planner::recover::{Bitmap, reached};
use tessera_planner::tile::insert_box;

type Operands = BTreeSet<(StageId, u64)>;

fn listed(sets: &[Bitmap]) -> Operands {
    let sets = (0..).map(StageId).zip(sets);
    sets.flat_map(|(stage, set)| set.iter().map(move |n| (stage, n))).collect()
}

/// The operands that run and the operands that are loaded, by definition.
fn one_by_one(
    t: &Tiling,
    assigned: &Operands,
    is_there: impl Fn(StageId, u64) -> bool,
) -> [Operands; 2] {
    let (mut reads, mut runs): (Operands, Operands) =
        assigned.iter().partition(|(stage, number)| is_there(*stage, *number));
    let mut open: Vec<(StageId, u64)> = runs.iter().copied().collect();
    while let Some((stage, number)) = open.pop() {
        let index = t.plan().stage(stage).grid.unravel(number);
        t.reads(stage, &index, &mut |from, at| {
            let operand = (from.stage, t.plan().stage(from.stage).grid.ravel(&at));
            reads.insert(operand);
            if !is_there(operand.0, operand.1) && runs.insert(operand) {
                open.push(operand);
            }
        });
    }
    let loads = reads.difference(&runs).copied().collect();
    [runs, loads]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn reached_operands_equal_a_search_one_by_one(
        choices in proptest::collection::vec(any::<u8>(), 1..5),
        a in 1u64..8, c in 1u64..10,
        seed in any::<u64>(),
        (assigned, first, second) in (0u64..9, 0u64..5, 0u64..5),
    ) {
        let mut b = Builder::new(Config { batch_cells: Some(0), ..tiny() });
        let root = expression(&mut b, &choices, (a, c));
        prop_assume!(b.shape(root).iter().product::<u64>() < 400);
        let t = plan(b, &[root]);
        let some = |salt: u64, of_8: u64| -> Vec<Bitmap> {
            let is_in = |s: u64, n: &u64| {
                let hash = seed ^ salt.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ (s * 1_000_003 + n);
                hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 61 < of_8
            };
            let stages = (0..).zip(&t.plan().stages);
            stages.map(|(s, stage)| (0..stage.grid.count()).filter(|n| is_in(s, n)).collect()).collect()
        };
        // The results alone, or operands anywhere.
        let assigned = match assigned {
            8 => {
                let result = t.plan().results[0].stage.0 as usize;
                let mut all = vec![Bitmap::default(); t.plan().stages.len()];
                all[result].insert_range(0, t.plan().stages[result].grid.count());
                all
            }
            n => some(1, n),
        };
        let (one, other) = (some(2, first), some(3, second));
        let told: Vec<(StageId, Bitmap)> =
            (0..).map(StageId).zip(assigned.iter().cloned()).collect();
        let found = reached(&t, &told, &[&one, &other]);
        let is_there = |s: StageId, n| {
            one[s.0 as usize].contains(n) || other[s.0 as usize].contains(n)
        };
        let [runs, loads] = one_by_one(&t, &listed(&assigned), is_there);
        prop_assert_eq!(listed(&found.runs), runs, "{}", explain::plan(&t));
        prop_assert_eq!(listed(&found.loads), loads);
        for (s, set) in (0..).map(StageId).zip(&found.runs) {
            let grid = &t.plan().stage(s).grid;
            let bytes: u64 = set.iter().map(|n| t.output_bytes(s, &grid.unravel(n))).sum();
            prop_assert_eq!(t.bytes_of(s, set), bytes);
        }
    }

    #[test]
    fn a_box_is_its_operands(
        sides in proptest::collection::vec((1u64..6, 0u64..6, 0u64..6), 0..5),
    ) {
        let counts: Vec<u64> = sides.iter().map(|s| s.0).collect();
        let ends = sides.iter().map(|s| ((s.1 % s.0), (s.1 % s.0 + s.2).min(s.0)));
        let (start, end) = ends.unzip();
        let part = Region { start, end };
        let grid = Grid::regular(&counts, &vec![1; counts.len()]);
        let (mut set, mut expected) = (Bitmap::default(), Bitmap::default());
        insert_box(&counts, &part, &mut set);
        for_each_index(&part, &mut |index| {
            expected.insert(grid.ravel(index));
        });
        prop_assert_eq!(set, expected);
    }
}
