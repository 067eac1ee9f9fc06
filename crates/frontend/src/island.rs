//! Islands: the parts of a statement that must run before the rest can be bound.
//!
//! The IR has no shapes that become known only when a query runs. A statement that needs one is lowered in steps:
//!
//! ```text
//! SELECT t2m[t2m > 300] - 300 FROM era5
//!   lower ─▶ Error::Waiting, Islands::wanted = compress([t2m, t2m > 300])
//!   the caller runs it, stores its cells in memory and calls Islands::finish
//!   lower ─▶ Load(temp:…) - 300
//! ```
//!
//! 1. Lowering asks [`Islands`] for a computation. If it has run, its result replaces the expression.
//! 2. If not, it becomes [`Islands::wanted`] and lowering stops with [`Error::Waiting`].
//! 3. The caller runs it, passes its result to [`Islands::finish`], and lowers again.
//!
//! A computation is identified by its structure (its graph, or the site of a cell block), so equal computations run
//! once. This is sound because everything that could differ between lowerings, seeds and `now()`, is fixed
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

/// Maximum islands per statement: each one costs a run and a lowering.
pub const ISLANDS_MAX: usize = 256;

/// Maximum cells of a result that binding needs to know, such as positions: some million fit.
pub const VALUES_MAX: u64 = 8 << 20;

/// A part of a statement that has to run first.
#[derive(Debug, Clone)]
pub struct Island {
    /// The source text of the expression or block, for EXPLAIN.
    pub title: String,
    /// Its position in the script.
    pub position: Option<Position>,
    /// The work to run.
    pub work: Work,
    /// Numbers of the islands whose results it reads.
    pub waits_for: Vec<usize>,
    /// Numbers of other islands whose values (positions, keys) were known when this one was lowered: its plan may
    /// depend on them.
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

/// How an island is run, and the kind of its result.
#[derive(Debug, Clone)]
pub enum Work {
    /// One root of any shape, whose cells binding needs: [`Done::Values`].
    Values(Rooted),
    /// Roots `x` and `keep` (`bool`), both 1-d on one grid. Yields the cells of `x` where `keep` is true and not
    /// masked, in order, as [`Done::Arrays`] of one 1-d array.
    Compress(Rooted),
    /// One 1-d root. Yields its distinct cells in ascending order (NaN once and last, masked cells skipped) and the
    /// count of each (`int64`), as [`Done::Arrays`] of two 1-d arrays.
    Distinct(Rooted),
    /// A cell block whose rows become labelled tensors: [`Done::Dataset`].
    Rows(Box<RowsToTensor>),
}

/// How the rows of a cell block become tensors.
#[derive(Debug, Clone)]
pub struct RowsToTensor {
    /// The block.
    pub plan: Arc<dyn RowsPlan>,
    /// The role of each column.
    pub columns: Vec<RowsColumn>,
    /// The site of the block. `site` and `query` together identify the island.
    pub site: Site,
    /// The block with the CTEs that it sees.
    pub query: Arc<Query>,
}

/// The role of a column of rows in a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowsColumn {
    /// The labels of the dimension of this name.
    Key(Arc<str>),
    /// The cells of the variable of this name.
    Value(Arc<str>),
}

/// The location of a block: a text (0 is the statement, others are views) and a range in it.
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
    /// Islands whose values this lowering has read.
    values: BTreeSet<usize>,
    /// Tensor blocks that cell blocks read, and cell blocks that yield tensors. Each is planned once for the
    /// statement, as a block at one site always means the same.
    pub(crate) inside: Planned<Lowered>,
    pub(crate) labelled: Planned<Labelled>,
}

/// Plans by the site of a query and the query with the CTEs that it sees. The site alone does not distinguish texts
/// that were assembled from several; the query alone does not distinguish two calls of a random function.
#[derive(Debug)]
pub(crate) struct Planned<T>(BTreeMap<Site, Vec<(Query, Arc<T>)>>);

impl<T> Default for Planned<T> {
    fn default() -> Self {
        Planned(BTreeMap::new())
    }
}

impl<T> Planned<T> {
    /// The plan of the query at `site`, if it was planned.
    pub(crate) fn get(&self, site: Option<Site>, query: &Query) -> Option<Arc<T>> {
        let known = self.0.get(&site?)?;
        known.iter().find(|(of, _)| of == query).map(|(_, planned)| planned.clone())
    }

    /// Stores a plan. A query without a site is planned each time.
    pub(crate) fn insert(&mut self, site: Option<Site>, query: &Query, planned: Arc<T>) {
        if let Some(site) = site {
            self.0.entry(site).or_default().push((query.clone(), planned));
        }
    }
}

impl Islands {
    /// No islands.
    pub fn new() -> Self {
        Islands::default()
    }

    /// Takes the island that lowering stopped for.
    pub fn wanted(&mut self) -> Option<Island> {
        self.values.clear();
        self.wanted.take()
    }

    /// Stops lowering for an island that was deferred when lowering reached it.
    pub(crate) fn want(&mut self, island: Island) -> Error {
        self.wanted = Some(island);
        Error::Waiting
    }

    /// Stores the result of an island for the next lowering.
    pub fn finish(&mut self, island: Island, done: Done) {
        self.done.push((island, done));
    }

    /// The islands that have run, in order.
    pub fn finished(&self) -> impl Iterator<Item = &Island> {
        self.done.iter().map(|(island, _)| island)
    }

    /// Returns the result of `work`, or [`Error::Waiting`] if it has not run.
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
