//! The split: one run of an order per worker, and the search for the best order.
//!
//! ```text
//!   stages      x [t, y] ── partial sums [t, y] ── tree [1, y] ── mean [1, y] ── x - mean [t, y]
//!   classes     t: x, sums, difference          y: all five          one group: they go along the same axes
//!   candidates  by t: means cross all workers   by y: nothing moves
//! ```
//! 1. Axes along which a stage reads another one in step are of one class; stages that share a class are a group.
//! 2. All stages of a group are split by the same class, or by two classes in panels, so that a stage's output is read
//!    by the next where it was computed. Candidates are all classes of the group, pairs of them, and rows.
//! 3. Each candidate is modelled and the best one chosen, group by group until nothing improves. In the same way each
//!    load and each stage without inputs is set to move its chunks or to be repeated on each worker.
//! 4. The workers that get one operand more than others of a stage are chosen stage by stage, where it makes the plan
//!    faster. If no worker's share of a stage exceeds one, its operands go one by one to where they finish first.

use super::model::{Facts, model};
use super::order::{Layout, Order};
use super::traffic::{self, Boxes, Moves, bytes_of, is_everywhere};
use super::{Placement, Rates, Rounding, Worker, eligible, outputs, parts};
use crate::plan::{Access, OutputRef, Stage, StageId, Task};
use crate::region::{Dims, Region};
use crate::tile::Tiling;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Upper bound on rounds through all groups.
const SWEEPS_MAX: usize = 4;

/// Upper bound on the classes of a group that are tried in pairs.
const PAIRED_MAX: usize = 4;

/// Split of the stages of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Choice {
    /// By row-major number.
    Rows,
    /// By the axes of a class.
    Class(usize),
    /// By the axes of two classes, in panels of the first.
    Panels(usize, usize, u64),
}

pub(super) fn place(tiling: &Tiling, workers: &[Worker], rates: &Rates) -> Placement {
    let mut search = Searching::new(tiling, workers, rates);
    search.descend();
    search.level(search.small())
}

/// Classes of axes, and groups of stages.
struct Axes {
    /// Class of each axis of each stage.
    class: Vec<Vec<usize>>,
    group: Vec<usize>,
}

struct Searching<'a> {
    tiling: &'a Tiling,
    workers: &'a [Worker],
    rates: &'a Rates,
    facts: Facts,
    axes: Axes,
    eligible: Vec<Vec<u32>>,
    /// By group.
    choices: Vec<Choice>,
    /// By stage.
    again: Vec<bool>,
    boxes: BTreeMap<(StageId, Choice), Arc<Boxes>>,
    moves: BTreeMap<(OutputRef, bool, Vec<Choice>), Arc<Moves>>,
}

impl<'a> Searching<'a> {
    fn new(tiling: &'a Tiling, workers: &'a [Worker], rates: &'a Rates) -> Self {
        let stages = tiling.plan().stages.len();
        let axes = Axes::of(tiling);
        Searching {
            tiling,
            workers,
            rates,
            facts: Facts::of(tiling),
            eligible: (0..stages as u32).map(|s| eligible(tiling, StageId(s), workers)).collect(),
            choices: vec![Choice::Rows; stages],
            again: vec![false; stages],
            axes,
            boxes: BTreeMap::new(),
            moves: BTreeMap::new(),
        }
    }

    fn choice(&self, stage: StageId) -> Choice {
        self.choices[self.axes.group[stage.0 as usize]]
    }

    fn layout(&self, stage: StageId) -> Layout {
        let s = self.tiling.plan().stage(stage);
        let order = self.axes.order(stage, &s.grid.counts(), self.choice(stage));
        let among = &self.eligible[stage.0 as usize];
        Layout::new(order, parts(s.grid.count(), among, self.workers, Rounding::Half))
    }

    fn placement(&self) -> Placement {
        let stages = 0..self.tiling.plan().stages.len() as u32;
        let layouts = stages.map(|s| self.layout(StageId(s))).collect();
        Placement { workers: self.workers.to_vec(), layouts, again: self.again.clone() }
    }

    /// Models the current choices. The movement of an output is computed once for each choice of its producer and
    /// readers.
    fn cost(&mut self) -> (u64, u64, u64) {
        let workers = self.workers.len();
        let mut moves = BTreeMap::new();
        let stages = 0..self.tiling.plan().stages.len() as u32;
        let layouts: Vec<Layout> = stages.map(|s| self.layout(StageId(s))).collect();
        for of in outputs(self.tiling) {
            if is_everywhere(self.tiling, of.stage) {
                continue;
            }
            let again = self.again[of.stage.0 as usize];
            let mut involved = vec![of.stage];
            involved.extend(traffic::readers(self.tiling, of));
            for &s in &involved {
                let counts = self.tiling.plan().stage(s).grid.counts();
                let layout = &layouts[s.0 as usize];
                let choice = self.choice(s);
                let boxes = || Arc::new(layout.boxes(&counts, workers));
                self.boxes.entry((s, choice)).or_insert_with(boxes);
            }
            let name = (of, again, involved.iter().map(|&s| self.choice(s)).collect());
            let found = match self.moves.get(&name) {
                Some(found) => found.clone(),
                None => {
                    let empty = Arc::new(vec![Vec::new(); workers]);
                    let boxes =
                        |s: StageId| self.boxes.get(&(s, self.choice(s))).unwrap_or(&empty).clone();
                    let found = Arc::new(traffic::moves(self.tiling, of, again, &boxes));
                    self.moves.insert(name, found.clone());
                    found
                }
            };
            moves.insert(of, found);
        }
        let counts: Vec<Vec<u64>> = layouts.iter().map(|l| l.counts(workers)).collect();
        model(self.tiling, &self.facts, self.workers, self.rates, &counts, &moves).key()
    }

    /// Tries choices that make the plan faster, group by group, the group with most work first.
    fn descend(&mut self) {
        let stages = &self.tiling.plan().stages;
        let mut work: BTreeMap<usize, f64> = BTreeMap::new();
        for (i, stage) in stages.iter().enumerate() {
            let ns = self.facts.operand_ns[i] * stage.grid.count() as f64;
            *work.entry(self.axes.group[i]).or_default() += ns;
        }
        let mut groups: Vec<(usize, f64)> = work.into_iter().collect();
        groups.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        // A load may be read by every worker that needs it. The same holds for stages without inputs, except results,
        // which one worker computes for the server.
        let results = &self.tiling.plan().results;
        let is_result = |i: usize| results.iter().any(|of| of.stage.0 as usize == i);
        let is_anywhere = |i: usize| match &stages[i].task {
            Task::Load { source, .. } => !source.is_resident(),
            Task::Fused(_) => stages[i].inputs.is_empty() && !is_result(i),
            _ => false,
        };
        let leaves: Vec<usize> = (0..stages.len()).filter(|&i| is_anywhere(i)).collect();
        let mut best = self.cost();
        for _ in 0..SWEEPS_MAX {
            let before = best;
            for &(group, _) in &groups {
                let mut kept = self.choices[group];
                for choice in self.candidates(group) {
                    self.choices[group] = choice;
                    let cost = self.cost();
                    if cost < best {
                        (best, kept) = (cost, choice);
                    }
                }
                self.choices[group] = kept;
            }
            for &leaf in &leaves {
                self.again[leaf] ^= true;
                let cost = self.cost();
                if cost < best {
                    best = cost;
                } else {
                    self.again[leaf] ^= true;
                }
            }
            if best == before {
                break;
            }
        }
    }

    fn candidates(&self, group: usize) -> Vec<Choice> {
        let stages = &self.tiling.plan().stages;
        // Classes with more than one chunk to split, those with the most operands first.
        let mut weight: BTreeMap<usize, u64> = BTreeMap::new();
        for (i, stage) in stages.iter().enumerate().filter(|(i, _)| self.axes.group[*i] == group) {
            for (a, &n) in stage.grid.counts().iter().enumerate().filter(|(_, n)| **n > 1) {
                let most = weight.entry(self.axes.class[i][a]).or_default();
                *most = (*most).max(n);
            }
        }
        let mut classes: Vec<(usize, u64)> = weight.into_iter().collect();
        classes.sort_by_key(|&(class, n)| (std::cmp::Reverse(n), class));
        let mut all = vec![Choice::Rows];
        all.extend(classes.iter().map(|&(c, _)| Choice::Class(c)));
        let workers = self.workers.iter().filter(|w| w.threads > 0).count() as u64;
        let panels: Vec<u64> = (2..=workers / 2).filter(|p| workers.is_multiple_of(*p)).collect();
        let near = |p: &u64| p.pow(2).abs_diff(workers);
        let panels = match panels.iter().min_by_key(|p| near(p)) {
            Some(&p) => vec![p, workers / p],
            None => vec![workers.isqrt()],
        };
        for &(a, _) in classes.iter().take(PAIRED_MAX) {
            for &(b, _) in classes.iter().take(PAIRED_MAX).filter(|(b, _)| *b != a) {
                let panels = panels.iter().filter(|p| **p > 1);
                all.extend(panels.map(|&p| Choice::Panels(a, b, p)));
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the placement with the operands of small stages where they finish first.
    fn small(&self) -> Placement {
        let even = self.placement();
        let mut placed = even.clone();
        let stages = &self.tiling.plan().stages;
        let mut busy = vec![0.0f64; self.workers.len()];
        for (i, stage) in stages.iter().enumerate() {
            let id = StageId(i as u32);
            let n = stage.grid.count();
            let among = &self.eligible[i];
            let threads = |w: u32| f64::from(self.workers[w as usize].threads.max(1));
            let most = among.iter().map(|&w| threads(w)).fold(0.0, f64::max);
            let all: f64 = among.iter().map(|&w| threads(w)).sum();
            if n as f64 * most <= all && !is_everywhere(self.tiling, id) {
                let mut free = among.clone();
                let mut runs: Vec<(u32, u64)> = Vec::new();
                for number in 0..n {
                    let index = stage.grid.unravel(number);
                    let here = self.held(&placed, id, &index);
                    let all: u64 = here.iter().sum();
                    let done = |w: u32| {
                        let missing = (all - here[w as usize]) as f64;
                        let wire = missing * 1e9 / self.rates.bytes_per_s.max(1) as f64;
                        busy[w as usize].max(wire) + self.facts.operand_ns[i] / threads(w)
                    };
                    let order = |a: &(usize, u32), b: &(usize, u32)| {
                        done(a.1).total_cmp(&done(b.1)).then(a.1.cmp(&b.1))
                    };
                    let first = free.iter().copied().enumerate().min_by(order);
                    let Some((place, worker)) = first else { continue };
                    free.remove(place);
                    runs.push((worker, 1));
                }
                placed.layouts[i] = Layout::new(Order::row_major(stage.grid.rank()), runs);
            }
            for (w, n) in placed.layouts[i].counts(self.workers.len()).into_iter().enumerate() {
                busy[w] += n as f64 * self.facts.operand_ns[i] / threads(w as u32);
            }
        }
        if placed == even {
            return even;
        }
        let key = |p: &Placement| self.key(p, &p.moves(self.tiling));
        if key(&placed) < key(&even) { placed } else { even }
    }

    /// Returns the placement with the remainders of stages where they make the plan faster.
    fn level(&self, mut placed: Placement) -> Placement {
        let tiling = self.tiling;
        let boxes_of = |stage: usize, layout: &Layout| {
            let counts = tiling.plan().stages[stage].grid.counts();
            Arc::new(layout.boxes(&counts, self.workers.len()))
        };
        let mut boxes: Vec<Arc<Boxes>> =
            placed.layouts.iter().enumerate().map(|(i, layout)| boxes_of(i, layout)).collect();
        let mut moves = placed.moves(tiling);
        let mut best = self.key(&placed, &moves);
        for (i, stage) in tiling.plan().stages.iter().enumerate() {
            let is_involved = |of: &OutputRef| {
                of.stage.0 as usize == i || tiling.users(*of).iter().any(|(s, _)| s.0 as usize == i)
            };
            let involved: Vec<OutputRef> = outputs(tiling).filter(is_involved).collect();
            for rounding in [Rounding::Down, Rounding::Up] {
                let shares = parts(stage.grid.count(), &self.eligible[i], self.workers, rounding);
                let new = Layout::new(placed.layouts[i].order.clone(), shares);
                if new == placed.layouts[i] {
                    continue;
                }
                let old_boxes = std::mem::replace(&mut boxes[i], boxes_of(i, &new));
                let old = std::mem::replace(&mut placed.layouts[i], new);
                let mut changed = moves.clone();
                for &of in &involved {
                    let again = placed.again[of.stage.0 as usize];
                    let of_stage = |s: StageId| boxes[s.0 as usize].clone();
                    changed.insert(of, Arc::new(traffic::moves(tiling, of, again, &of_stage)));
                }
                let now = self.key(&placed, &changed);
                if now < best {
                    (best, moves) = (now, changed);
                } else {
                    (boxes[i], placed.layouts[i]) = (old_boxes, old);
                }
            }
        }
        placed
    }

    /// The modelled cost of a placement, given the movement of its chunks.
    fn key(&self, placed: &Placement, moves: &BTreeMap<OutputRef, Arc<Moves>>) -> (u64, u64, u64) {
        let workers = self.workers.len();
        let counts: Vec<Vec<u64>> = placed.layouts.iter().map(|l| l.counts(workers)).collect();
        model(self.tiling, &self.facts, self.workers, self.rates, &counts, moves).key()
    }

    /// Bytes of an operand's inputs on each worker.
    fn held(&self, placed: &Placement, stage: StageId, index: &[u64]) -> Vec<u64> {
        let mut held = vec![0; self.workers.len()];
        let one = [Region::at(index, &Dims::from_elem(1, index.len()))];
        let mut seen: Vec<OutputRef> = Vec::new();
        for input in &self.tiling.plan().stage(stage).inputs {
            let of = input.from;
            if of.stage == stage || seen.contains(&of) || is_everywhere(self.tiling, of.stage) {
                continue;
            }
            seen.push(of);
            let counts = self.tiling.plan().stage(of.stage).grid.counts();
            let homes = placed.layouts[of.stage.0 as usize].boxes(&counts, self.workers.len());
            for read in traffic::read_by(self.tiling, of, stage, &one) {
                for (w, home) in homes.iter().enumerate() {
                    let parts = home.iter().filter_map(|h| h.intersect(&read));
                    held[w] += parts.map(|p| bytes_of(self.tiling, of, &p)).sum::<u64>();
                }
            }
        }
        held
    }
}

impl Axes {
    fn of(tiling: &Tiling) -> Self {
        let stages = &tiling.plan().stages;
        // Number of each stage's first axis, and the stage of each axis number.
        let mut first = Vec::with_capacity(stages.len());
        let mut stage_of: Vec<usize> = Vec::new();
        for (i, s) in stages.iter().enumerate() {
            first.push(stage_of.len());
            stage_of.extend(std::iter::repeat_n(i, s.grid.rank()));
        }
        let mut class = Sets::new(stage_of.len());
        let mut group = Sets::new(stages.len());
        // Edges with most bytes are joined first.
        let mut edges: Vec<(u64, usize, usize)> = Vec::new();
        for (i, s) in stages.iter().enumerate() {
            for (k, input) in s.inputs.iter().enumerate() {
                let from = input.from.stage;
                if from.0 as usize != i && !is_everywhere(tiling, from) {
                    let output = tiling.plan().output(input.from);
                    let cells = crate::region::cells(&output.grid.shape()).unwrap_or(u64::MAX);
                    edges.push((cells.saturating_mul(output.cell_bytes() as u64), i, k));
                }
            }
        }
        edges.sort_by_key(|&(bytes, i, k)| (std::cmp::Reverse(bytes), i, k));
        for in_place in [true, false] {
            for &(_, i, k) in &edges {
                let from = stages[i].inputs[k].from.stage.0 as usize;
                let (to_counts, from_counts) =
                    (stages[i].grid.counts(), stages[from].grid.counts());
                for (o, d) in in_step(&stages[i], k, &from_counts) {
                    if (o == d) != in_place || to_counts[o] < 2 || from_counts[d] < 2 {
                        continue;
                    }
                    let (a, b) = (class.find(first[i] + o), class.find(first[from] + d));
                    // Two axes of one stage are never of one class.
                    let of = |class: &mut Sets, root: usize| -> Vec<usize> {
                        (0..stage_of.len())
                            .filter(|&x| class.find(x) == root)
                            .map(|x| stage_of[x])
                            .collect()
                    };
                    let (left, right) = (of(&mut class, a), of(&mut class, b));
                    if a != b && !left.iter().any(|s| right.contains(s)) {
                        class.join(a, b);
                    }
                    if class.find(a) == class.find(b) {
                        group.join(i, from);
                    }
                }
            }
        }
        let numbers = |i: usize| first[i]..first[i] + stages[i].grid.rank();
        Axes {
            class: (0..stages.len()).map(|i| numbers(i).map(|x| class.find(x)).collect()).collect(),
            group: (0..stages.len()).map(|i| group.find(i)).collect(),
        }
    }

    fn order(&self, stage: StageId, counts: &[u64], choice: Choice) -> Order {
        let classes = &self.class[stage.0 as usize];
        let axis = |c: usize| (0..classes.len()).find(|&a| classes[a] == c && counts[a] > 1);
        let rank = classes.len();
        match choice {
            Choice::Rows => Order::row_major(rank),
            Choice::Class(c) => Order::by(rank, axis(c).as_slice(), 1),
            Choice::Panels(a, b, panels) => match (axis(a), axis(b)) {
                (Some(a), Some(b)) => Order::by(rank, &[a, b], panels),
                (one, other) => Order::by(rank, one.or(other).as_slice(), 1),
            },
        }
    }
}

/// Axes along which a stage and one of its inputs go in step: a part of one reads the corresponding part of the other.
fn in_step(stage: &Stage, number: usize, from: &[u64]) -> Vec<(usize, usize)> {
    match &stage.inputs[number].access {
        Access::View(view) | Access::Part { view, .. } | Access::Window { view, .. } => {
            let axes = view.axes.iter().enumerate();
            axes.filter(|(_, a)| a.step > 0).filter_map(|(d, a)| Some((a.axis?, d))).collect()
        }
        Access::Fan(_) => (0..from.len()).map(|a| (a, a)).collect(),
        Access::Take { axis, .. } => {
            (0..from.len()).filter(|a| a != axis).map(|a| (a, a)).collect()
        }
        Access::Reshape(_) => {
            // The slowest axes that are cut: both traverse the same cells.
            let cut = |n: &u64| *n > 1;
            let to = stage.grid.counts().iter().position(cut);
            to.zip(from.iter().position(cut)).into_iter().collect()
        }
        Access::Runs { axis } => {
            let others = (0..stage.grid.rank()).filter(|a| a != axis);
            others.enumerate().map(|(place, a)| (a, place)).collect()
        }
        Access::Previous { .. } => Vec::new(),
    }
}

/// Disjoint sets of numbers; the smallest member represents a set.
struct Sets(Vec<usize>);

impl Sets {
    fn new(n: usize) -> Self {
        Sets((0..n).collect())
    }

    fn find(&mut self, mut x: usize) -> usize {
        while self.0[x] != x {
            self.0[x] = self.0[self.0[x]];
            x = self.0[x];
        }
        x
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}
