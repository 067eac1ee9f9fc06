#![allow(clippy::unwrap_used, reason = "tests")]
use super::Strategy;
use super::*;
use crate::build::Builder;
use crate::catalog::SourceRef;
use crate::config::Config;
use crate::dtype::DType;
use crate::grid::Grid;
use crate::optimize::Rooted;
use crate::program::ScalarOp;
use crate::recover::Bitmap;
use crate::reduce::ReduceKind;
use crate::region::Region;
use proptest::prelude::*;

proptest! {
    #[test]
    fn runs_of_an_order_are_its_places(
        counts in prop::collection::vec(1u64..6, 0..4),
        axes in any::<u64>(),
        panels in 1u64..7,
        cuts in prop::collection::vec(any::<u64>(), 0..5),
    ) {
        let rank = counts.len();
        let mut first: Vec<usize> = (0..rank).collect();
        first.rotate_left(if rank > 0 { axes as usize % rank } else { 0 });
        first.truncate(axes as usize / 7 % (rank + 1));
        let order = Order::by(rank, &first, panels);
        let total: u64 = counts.iter().product();
        let mut ends: Vec<u64> = cuts.iter().map(|c| c % (total + 1)).collect();
        ends.push(total);
        ends.sort_unstable();
        // Traversed run by run, box by box, each operand comes at its place.
        let (mut begin, mut place) = (0, 0);
        let layout = Layout::new(order.clone(), ends.iter().enumerate().map(|(w, &end)| {
            let part = (w as u32, end - begin);
            begin = end;
            part
        }));
        let mut seen = std::collections::BTreeSet::new();
        layout.each(&counts, &mut |index, worker| {
            assert_eq!(order.position(&counts, index), place);
            assert_eq!(layout.worker(&counts, index), worker);
            let before = if worker == 0 { 0 } else { ends[worker as usize - 1] };
            assert!(before <= place && place < ends[worker as usize]);
            assert!(seen.insert(index.to_vec()));
            place += 1;
        });
        prop_assert_eq!(place, total);
        // A run is a few boxes, whatever its length.
        for boxes in layout.boxes(&counts, ends.len()) {
            prop_assert!(boxes.len() as u64 <= (2 * rank as u64).max(1) * order.panels);
        }
    }
}

fn load(b: &mut Builder, shape: &[u64], chunk: &[u64]) -> crate::ir::NodeId {
    let source = SourceRef {
        url: "x".into(),
        path: String::new(),
        dtype: DType::Float64,
        shape: shape.into(),
        grid: Grid::regular(shape, chunk),
        nullable: false,
        version: None,
        plain: false,
    };
    b.load(Arc::new(source)).unwrap()
}

fn compiled(f: impl Fn(&mut Builder) -> crate::ir::NodeId) -> Tiling {
    let config = Config { chunk_bytes_target: 8 * 16, batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let root = f(&mut b);
    crate::compile(Rooted { graph: b.graph, roots: vec![root] }, &config, &mut |_, _| {}).unwrap()
}

/// The squares of numbers minus the mean of each row, added to their transpose.
fn crossed(rows: u64) -> Tiling {
    compiled(|b| {
        let x = load(b, &[rows, rows], &[4, 4]);
        let mean = b.reduce_axes(x, ReduceKind::Mean, &[1]).unwrap();
        let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
        let d = b.rechunk(d, &[3, 5]).unwrap();
        let t = b.transpose(d, &[1, 0]).unwrap();
        b.map(ScalarOp::Add, &[d, t]).unwrap()
    })
}

#[test]
fn boxes_and_lists_count_the_same() {
    let t = crossed(40);
    let workers: Vec<Worker> = [2, 1, 3, 2]
        .iter()
        .map(|&threads| Worker { threads, memory_bytes: 1 << 30, ..Worker::default() })
        .collect();
    let mut moved = 0;
    for strategy in
        [Strategy::Split, Strategy::Seeds(Search::Depth), Strategy::Seeds(Search::Breadth)]
    {
        let mut p = place(&t, &workers, &Rates::default(), strategy).unwrap();
        for again in [false, true] {
            p.again[0] = again;
            let boxes: Vec<Arc<traffic::Boxes>> = t
                .plan()
                .stages
                .iter()
                .zip(&p.layouts)
                .map(|(s, l)| Arc::new(l.boxes(&s.grid.counts(), workers.len())))
                .collect();
            let listed = traffic::listed(&t, &p.layouts, &p.again, workers.len());
            for of in outputs(&t) {
                let again = p.again[of.stage.0 as usize];
                let found = traffic::moves(&t, of, again, &|s| boxes[s.0 as usize].clone());
                assert_eq!(found, listed[&of], "{of:?} {strategy:?}");
                moved += found.flows.len();
            }
        }
    }
    assert!(moved > 20, "{moved}");
}

#[test]
fn a_phase_ends_where_workers_meet() {
    let t = crossed(40);
    let workers = vec![Worker { threads: 2, memory_bytes: 1 << 30, ..Worker::default() }; 4];
    let rates = Rates::default();
    let p = place(&t, &workers, &rates, Strategy::Split).unwrap();
    let m = p.model(&t, &rates);
    // A single worker exchanges nothing.
    let one = place(&t, &workers[..1], &rates, Strategy::Split).unwrap().model(&t, &rates);
    assert_eq!((one.phases.len(), one.bytes_moved), (1, 0));
    assert!(m.phases.len() > 1 && m.bytes_moved > 0, "{m:?}");
    for edge in &m.edges {
        let (from, to) = (m.phase[edge.from.stage.0 as usize], m.phase[edge.to.0 as usize]);
        assert!(from <= to);
    }
}

#[test]
fn lost_operands_go_to_neighbours() {
    let t = compiled(|b| load(b, &[16 * 30], &[16]));
    let worker = |threads| Worker { threads, memory_bytes: 1 << 30, ..Worker::default() };
    let workers: Vec<Worker> = [1, 1, 1].map(worker).into();
    let p = place(&t, &workers, &Rates::default(), Strategy::Split).unwrap();
    let runs =
        |p: &Placement| p.layouts[0].runs.iter().map(|r| (r.end, r.worker)).collect::<Vec<_>>();
    let n = t.plan().stages[0].grid.count();
    assert_eq!(runs(&p), [(n / 3, 0), (2 * n / 3, 1), (n, 2)]);
    let after = p.without(&t, &[1], None).unwrap();
    assert_eq!(runs(&after), [(n / 2, 0), (n, 2)]);
    // A full box of operands is complete.
    let boxes = after.layouts[0].boxes(&[n], 3);
    assert_eq!(boxes[0], [Region::at(&[0], &[n / 2])]);
}

#[test]
fn a_worker_that_joins_gets_a_share_of_the_rest() {
    let t = compiled(|b| load(b, &[16 * 30], &[16]));
    let worker = |threads| Worker { threads, memory_bytes: 1 << 30, ..Worker::default() };
    let p = place(&t, &[worker(1), worker(1)], &Rates::default(), Strategy::Split).unwrap();
    let n = t.plan().stages[0].grid.count();
    // The first ten chunks exist; one of the two workers is lost, two are added.
    let there: Bitmap = (0..10).collect();
    let runs = |_: StageId, n: u64| !there.contains(n);
    let left = n - 10;
    let now = vec![worker(0), worker(1), worker(2), worker(1)];
    let after = p.among(&t, now, &runs).unwrap();
    let got: Vec<_> = after.layouts[0].runs.iter().map(|r| (r.end, r.worker)).collect();
    assert_eq!(got, [(10 + left / 4, 1), (10 + left * 3 / 4, 2), (n, 3)]);
    assert!(p.among(&t, vec![worker(0)], &runs).is_err());
}
