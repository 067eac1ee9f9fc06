//! Islands: the parts of a statement that must run before the rest can be bound.
//!
//! The IR has no shapes that are known only when a query runs. A statement that needs one is lowered in steps:
//!
//! ```text
//! SELECT t2m[t2m > 300] - 300 FROM era5
//!   lower ─▶ Error::Waiting, Islands::wanted = compress([t2m, t2m > 300])
//!   the caller runs it, keeps its cells in memory and calls Islands::finish
//!   lower ─▶ Load(temp:…) - 300
//! ```
//!
//! 1. Lowering asks [`Islands`] for a computation. If it has run, its result takes the place of the expression.
//! 2. If not, it becomes [`Islands::wanted`] and lowering stops with [`Error::Waiting`].
//! 3. Whoever lowers runs it, hands its result in with [`Islands::finish`], and lowers again.
//!
//! A computation is found by its structure (the graph that it needs, or the place of a cell block), so the same one is
//! run once. This holds as everything that could differ from one lowering to the next, seeds and `now()`, is fixed
//! in [`crate::Context`] for the statement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sqlparser::ast::Query;
use tessera_planner::catalog::{Dataset, SourceRef};
use tessera_planner::ir::ConstArray;
use tessera_planner::optimize::Rooted;

use crate::cells::{Labelled, RowsPlan};
use crate::error::{Error, Position};
use crate::lower::Lowered;
use crate::surface::Surface;

/// The most islands of one statement: each of them is a run of its own, and a lowering.
pub const ISLANDS_MAX: usize = 256;

/// The most cells of a result that binding needs to know, such as positions: some million fit.
pub const VALUES_MAX: u64 = 8 << 20;

/// A part of a statement that has to run first.
#[derive(Debug, Clone)]
pub struct Island {
    /// The expression or block in the user's words, for EXPLAIN.
    pub title: String,
    /// Where it is.
    pub position: Option<Position>,
    /// What is to be run.
    pub work: Work,
    /// Numbers of the islands whose results it reads.
    pub waits_for: Vec<usize>,
    /// Numbers of other islands whose values (positions, keys) were known when it was lowered: its plan may follow
    /// from them.
    pub may_wait_for: Vec<usize>,
}

impl Island {
    /// The surface of the part.
    pub fn surface(&self) -> Surface {
        match self.work {
            Work::Rows(_) => Surface::Cell,
            _ => Surface::Tensor,
        }
    }
}

/// How an island is run, and what its result is.
#[derive(Debug, Clone)]
pub enum Work {
    /// One root of any shape; its cells are wanted themselves: [`Done::Values`].
    Values(Rooted),
    /// Roots `x` and `keep` (`bool`), both 1-d on one grid: the cells of `x` where `keep` is true and not masked, in
    /// their order, as [`Done::Arrays`] of one 1-d array.
    Compress(Rooted),
    /// One 1-d root: its different cells in ascending order, NaN once and last, masked cells skipped, and how often
    /// each occurs (`int64`), as [`Done::Arrays`] of two 1-d arrays.
    Distinct(Rooted),
    /// A cell block whose rows become labelled tensors: [`Done::Dataset`].
    Rows(Box<RowsToTensor>),
}

/// How the rows of a cell block become tensors.
#[derive(Debug, Clone)]
pub struct RowsToTensor {
    /// The block.
    pub plan: Arc<dyn RowsPlan>,
    /// What each column is.
    pub columns: Vec<RowsColumn>,
    /// The place of the block and the block itself with the CTEs that it sees: they tell the island from others.
    pub site: Site,
    /// See `site`.
    pub query: Arc<Query>,
}

/// What a column of rows is in a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsColumn {
    /// The labels of the dimension of that name.
    Key(Arc<str>),
    /// The cells of the variable of that name.
    Value(Arc<str>),
}

/// Where a block stands: a text (0 is the statement, others are views) and a place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The text: see [`crate::Catalog::view`].
    pub text: u64,
    /// Line and column of the first character.
    pub start: (u64, u64),
    /// Line and column after the last one.
    pub end: (u64, u64),
}

/// The result of an island.
#[derive(Debug, Clone)]
pub enum Done {
    /// The cells.
    Values(ConstArray),
    /// Arrays in memory that plans can load.
    Arrays(Vec<Arc<SourceRef>>),
    /// Labelled arrays in memory.
    Dataset(Arc<Dataset>),
}

/// The islands of one statement.
#[derive(Debug, Default)]
pub struct Islands {
    done: Vec<(Island, Done)>,
    wanted: Option<Island>,
    /// Islands whose values this lowering has asked for.
    values: BTreeSet<usize>,
    /// Tensor blocks that cell blocks read, and cell blocks that give tensors: planned once for the statement, as a
    /// block at one place always means the same.
    pub(crate) inside: Planned<Lowered>,
    pub(crate) labelled: Planned<Labelled>,
}

/// What was planned, by the place of its query and the query with the CTEs that it sees: the place alone would not tell
/// texts apart that were put together from several, the query alone not two calls of a random function.
#[derive(Debug)]
pub(crate) struct Planned<T>(BTreeMap<Site, Vec<(Query, Arc<T>)>>);

impl<T> Default for Planned<T> {
    fn default() -> Self {
        Planned(BTreeMap::new())
    }
}

impl<T> Planned<T> {
    /// What was planned for the query at that place.
    pub(crate) fn get(&self, site: Option<Site>, query: &Query) -> Option<Arc<T>> {
        let known = self.0.get(&site?)?;
        known.iter().find(|(of, _)| of == query).map(|(_, planned)| planned.clone())
    }

    /// Keeps it; what has no place is planned each time.
    pub(crate) fn insert(&mut self, site: Option<Site>, query: &Query, planned: Arc<T>) {
        if let Some(site) = site {
            self.0.entry(site).or_default().push((query.clone(), planned));
        }
    }
}

impl Islands {
    /// None yet.
    pub fn new() -> Self {
        Islands::default()
    }

    /// The island that lowering stopped for.
    pub fn wanted(&mut self) -> Option<Island> {
        self.values.clear();
        self.wanted.take()
    }

    /// Stops lowering for an island that it did not stop for when it came to it.
    pub(crate) fn want(&mut self, island: Island) -> Error {
        self.wanted = Some(island);
        Error::Waiting
    }

    /// Hands in what an island gave; the next lowering finds it.
    pub fn finish(&mut self, island: Island, done: Done) {
        self.done.push((island, done));
    }

    /// Those that have run, in their order.
    pub fn finished(&self) -> impl Iterator<Item = &Island> {
        self.done.iter().map(|(island, _)| island)
    }

    /// The result of that work, or the error that lowering has to wait for it.
    pub(crate) fn get(
        &mut self,
        work: Work,
        title: impl FnOnce() -> String,
        position: Option<Position>,
    ) -> Result<Done, Error> {
        let known = self.done.iter().position(|(island, _)| same(&island.work, &work));
        if let Some(number) = known {
            let done = self.done[number].1.clone();
            if matches!(done, Done::Values(_)) {
                self.values.insert(number);
            }
            return Ok(done);
        }
        if self.done.len() >= ISLANDS_MAX {
            return Err(Error::TooManyIslands { limit: ISLANDS_MAX, position });
        }
        let waits_for = self.read_by(&work);
        let may_wait_for = self.values.iter().copied().filter(|n| !waits_for.contains(n)).collect();
        self.wanted = Some(Island { title: title(), position, work, waits_for, may_wait_for });
        Err(Error::Waiting)
    }

    /// The islands whose arrays a computation loads.
    fn read_by_graphs<'a>(&self, graphs: impl Iterator<Item = &'a Rooted>) -> Vec<usize> {
        let mut found = std::collections::BTreeSet::new();
        for rooted in graphs {
            for (_, node) in rooted.graph.nodes() {
                let tessera_planner::ir::Op::Load { source, .. } = &node.op else { continue };
                let of = |done: &Done| match done {
                    Done::Values(_) => false,
                    Done::Arrays(arrays) => arrays.contains(source),
                    Done::Dataset(dataset) => {
                        dataset.variables.iter().any(|v| v.source == **source)
                    }
                };
                found.extend((0..self.done.len()).filter(|&i| of(&self.done[i].1)));
            }
        }
        found.into_iter().collect()
    }

    fn read_by(&self, work: &Work) -> Vec<usize> {
        match work {
            Work::Values(r) | Work::Compress(r) | Work::Distinct(r) => {
                self.read_by_graphs(std::iter::once(r))
            }
            Work::Rows(rows) => self.read_by_graphs(rows.plan.graphs().into_iter()),
        }
    }
}

fn same(a: &Work, b: &Work) -> bool {
    match (a, b) {
        (Work::Values(a), Work::Values(b))
        | (Work::Compress(a), Work::Compress(b))
        | (Work::Distinct(a), Work::Distinct(b)) => a == b,
        (Work::Rows(a), Work::Rows(b)) => a.site == b.site && a.query == b.query,
        _ => false,
    }
}
