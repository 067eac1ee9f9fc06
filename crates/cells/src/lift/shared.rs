//! CTEs that are planned and run once, however often they are referenced.
//!
//! DataFusion inlines a CTE at every reference, which is best for most queries: each use is filtered and projected
//! separately. CTEs with more than one reference are extracted if the query becomes too large otherwise (see
//! [`expansion`](super::expansion)), or if they group rows of tables: groups take long, and are few.
//! ```text
//! WITH a AS (SELECT l.x FROM t l, t r), b AS (SELECT l.x FROM a l, a r) SELECT sum(x) FROM b, b c
//!   ⇒  shared_0: WITH a AS (SELECT l.x FROM t l, t r) SELECT * FROM a
//!      shared_1: WITH a AS (SELECT * FROM shared_0), b AS (SELECT l.x FROM a l, a r) SELECT * FROM b
//!      WITH a AS (SELECT * FROM shared_0), b AS (SELECT * FROM shared_1) SELECT sum(x) FROM b, b c
//! ```
//! Planning is linear in the size of the text. The rows are in scratch space until the statement ends, and filters of
//! their readers are not pushed into them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::{LogicalPlan, TableSource};
use sqlparser::ast::{
    Cte, Expr, GroupByExpr, Ident, ObjectName, Query, SelectItem, TableFactor, Visitor, With,
};

use super::expansion::{Size, name_of, size_beside};
use tessera_frontend::functions::is_aggregate;
use tessera_frontend::scope;
use tessera_frontend::surface::walk::find;
use tessera_frontend::walk::walk;

/// Rows of a query that its parts read as a table.
#[derive(Debug, Clone)]
pub(crate) struct SharedRows {
    /// The table's name in the plans that read it.
    pub(crate) name: String,
    /// The optimised plan; the shared rows that it reads come before it.
    pub(crate) logical: LogicalPlan,
}

/// The placeholder for [`SharedRows`] in a logical plan.
#[derive(Debug)]
pub(crate) struct SharedSource(pub(crate) SchemaRef);

impl TableSource for SharedSource {
    fn schema(&self) -> SchemaRef {
        self.0.clone()
    }
}

/// A CTE that was extracted from its query.
pub(super) struct Taken {
    /// The table that replaces it.
    pub(super) table: String,
    /// Its original name.
    pub(super) cte: String,
    pub(super) uses: usize,
    pub(super) query: Query,
}

/// Selects the CTEs to extract among those with more than one reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// CTEs that do more than read one table.
    All,
    /// CTEs that group rows.
    Grouped,
}

/// Extracts CTEs from a prepared query. Each reads only those before it.
pub(super) fn take_out(query: &mut Query, which: Which) -> Vec<Taken> {
    let Some(with) = query.with.take_if(|with| !with.recursive) else { return Vec::new() };
    let With { with_token, recursive, cte_tables: mut ctes } = with;
    let with_of = |cte_tables| Some(With { with_token: with_token.clone(), recursive, cte_tables });
    let mut named: Vec<BTreeMap<String, usize>> =
        ctes.iter().map(|cte| names_in(&cte.query)).collect();
    let mut uses: BTreeMap<String, usize> = BTreeMap::new();
    for (name, n) in named.iter().chain([&names_in(query)]).flatten() {
        *uses.entry(name.clone()).or_default() += n;
    }
    let (mut sizes, mut taken) = (BTreeMap::new(), Vec::new());
    for at in 0..ctes.len() {
        let name = ctes[at].alias.name.value.clone();
        let size = size_beside(&ctes[at].query, &mut sizes);
        let uses = uses.get(&name).copied().unwrap_or(0);
        let reads_one_table = size.relations <= 1
            && size.walked <= 1
            && named[at].keys().all(|name| !sizes.contains_key(name));
        let is_worth = match which {
            Which::All => !reads_one_table,
            Which::Grouped => groups(&ctes[at].query),
        };
        let is_taken = uses > 1 && is_worth;
        let mut table = format!("shared_{}", taken.len());
        while ctes.iter().any(|cte| cte.alias.name.value.eq_ignore_ascii_case(&table)) {
            table.push('_');
        }
        let (true, Some(mut own), Some(rest)) = (is_taken, rows_of(&name), rows_of(&table)) else {
            sizes.insert(name, size);
            continue;
        };
        own.with = with_of(with_what_it_reads(at, &ctes, &named));
        *ctes[at].query = rest;
        ctes[at].alias.columns.clear();
        named[at] = BTreeMap::from([(table.clone(), 1)]);
        sizes.insert(name.clone(), Size::RELATION);
        taken.push(Taken { table, cte: name, uses, query: own });
    }
    query.with = with_of(ctes);
    taken
}

/// True for a query whose rows are groups.
fn groups(query: &Query) -> bool {
    scope::innermost(query).is_some_and(|select| {
        let groups = match &select.group_by {
            GroupByExpr::All(_) => true,
            GroupByExpr::Expressions(keys, _) => !keys.is_empty(),
        };
        groups || select.projection.iter().any(aggregates)
    })
}

fn aggregates(item: &SelectItem) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return false;
    };
    let is_one = |e: &Expr| match e {
        Expr::Function(f) => (f.over.is_none() && is_aggregate(&f.name.to_string())).then_some(()),
        _ => None,
    };
    find(expr, &is_one).is_some()
}

/// A CTE and the CTEs that it reads, in order, itself last.
fn with_what_it_reads(at: usize, ctes: &[Cte], named: &[BTreeMap<String, usize>]) -> Vec<Cte> {
    let mut wanted: BTreeSet<&str> = BTreeSet::from([ctes[at].alias.name.value.as_str()]);
    let mut out = Vec::new();
    for (cte, named) in ctes[..=at].iter().zip(named).rev() {
        if wanted.contains(cte.alias.name.value.as_str()) {
            wanted.extend(named.keys().map(String::as_str));
            out.push(cte.clone());
        }
    }
    out.reverse();
    out
}

/// `SELECT * FROM name`.
fn rows_of(name: &str) -> Option<Query> {
    let mut query = tessera_frontend::query_of("SELECT * FROM x").ok()??;
    let from = scope::innermost_mut(&mut query)?.from.first_mut()?;
    let TableFactor::Table { name: of, .. } = &mut from.relation else { return None };
    *of = ObjectName::from(vec![Ident::new(name)]);
    Some(*query)
}

/// The number of references to each relation in a query.
fn names_in(query: &Query) -> BTreeMap<String, usize> {
    struct Names(BTreeMap<String, usize>);
    impl Visitor for Names {
        type Break = ();

        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
            if let TableFactor::Table { name, .. } = factor
                && let Some(name) = name_of(name)
            {
                *self.0.entry(name).or_default() += 1;
            }
            ControlFlow::Continue(())
        }
    }
    let mut names = Names(BTreeMap::new());
    let _ = walk(query, &mut names);
    names.0
}
