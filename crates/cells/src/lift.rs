//! The lift: converts SQL over cells to tensor plans and a relational plan above them.
//!
//! The life of `SELECT lat, avg(t2m) FROM era5 WHERE time >= '2020' GROUP BY lat ORDER BY lat`:
//!
//! 1. `names` replaces `era5` by a table over the dimensions that the block's names choose (`table`): its columns are
//!    labels, known at bind, and variables. `using` expands the merged columns of joins and `COLUMNS(…)`, and numbers columns
//!    of one name, `row_values` expands comparisons of rows. CTEs that make a query too large are planned separately, once (`shared`);
//!    `wide` plans `SELECT *` of very many columns, which needs none of the steps below.
//! 2. DataFusion plans the statement with `context` as its provider; `time` turns `'2020'` into its first instant,
//!    `mixed` casts decimals beside floats; DataFusion's analyser coerces types; `rounded` rounds what casts of decimals
//!    would cut, `nested` orders lists and structs. `asof`, `counted` and `dependent` build joins that DataFusion lacks.
//! 3. `dense` takes the largest parts of the plan that have a dense form (groups, joins on labels, windows over
//!    filters and projections) and replaces each by a scan of its rows: `time >= …` is evaluated over the labels and is
//!    a slice, `GROUP BY lat` keeps an axis, `avg` is `Reduce(mean)`. Where the result is tensors (`[lat]`), the items of
//!    the outermost `SELECT` are part of it. `lower` lowers arguments to IR with DataFusion's semantics, or refuses them.
//! 4. `order` adds the sorts that dimension order needs; `maybe` makes subqueries without rows NULL; `nan` clears the
//!    sign of NaN in computed rows; `membership` rewrites the forms of IN in which a NULL counts, `marks` subqueries
//!    outside of conditions; `guards` guards what can fail; `uneven` marks casts that do not keep the order; DataFusion
//!    optimises the rest. A remaining table of cells becomes `rows`: a scan that streams one row for each cell, sliced by
//!    the filters that were pushed into it.
//! 5. The [`CellPlan`] holds the relational plan over named placeholders (`ScanSource`) and a [`TensorScan`] for each.
//! 6. If it fails, `error` says why in the words of this project, and `blame` finds the expression at fault.
//!
//! Invariant: planning reads no data. Labels and the rows of small tables are known at bind.

pub(crate) mod all_of;
mod along;
pub(crate) mod always;
mod asof;
mod attempts;
mod balanced;
mod blame;
mod boxes;
mod calendars;
mod casts;
mod clocks;
mod context;
mod counted;
mod cube;
mod decimals;
mod dense;
mod density;
mod dependent;
mod elements;
mod error;
mod escape;
mod expansion;
mod faster;
mod float32;
mod frame_bounds;
pub(crate) mod functions;
mod grouping;
pub(crate) mod guards;
mod join_keys;
mod kept;
mod labelled;
mod labels;
mod like;
mod listed;
mod local_time;
mod lower;
mod markers;
mod marks;
mod maybe;
mod membership;
mod misplaced;
mod mixed;
mod names;
mod nan;
mod negated;
mod nested;
mod numbered;
mod operators;
mod optimizer;
mod order;
mod parts;
mod planner;
mod relation;
mod relations;
mod rounded;
mod row_values;
mod rows;
mod scan;
mod series;
mod shared;
mod shifts;
mod singular;
mod sites;
mod table;
mod time;
mod uneven;
mod unnamed;
mod unnested;
mod unreadable;
mod unsigned;
mod using;
mod wide;
mod widen;
mod window_keys;
mod zones;

#[cfg(test)]
pub(crate) mod tests;

use crate::walk::{Walk, WalkPlan};
use arrow::datatypes::SchemaRef;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Distinct, Expr, Filter, Limit, LogicalPlan, Projection, Sort, TableScan, TableScanBuilder,
    TableSource,
};
use datafusion::sql::planner::{ParserOptions, SqlToRel};
use sqlparser::ast::Query;
use std::collections::BTreeSet;
use std::sync::Arc;
use tessera_planner::config::Config;

pub(crate) use cube::{Cells, Cube, CubeVariable};
pub use density::Density;
pub(crate) use density::Form;
pub(crate) use functions::{MovingSum, OPAQUE, session_state, uuid_text};
pub(crate) use labelled::{coordinate, origins};
pub use listed::RowsFunction;
pub use planner::Planner;
pub use scan::{ScanColumn, TensorScan, Top};
pub(crate) use shared::SharedRows;
use shared::{SharedSource, Taken, Which};
pub use sites::Sites;
pub(crate) use table::dtype_of_field;
pub use table::{ColumnOrigin, calendar, dtype_of, field};
pub(crate) use unnamed::Unnamed;
#[cfg(test)]
pub(crate) use unnamed::ranked;

use table::CellSource;
use tessera_frontend::ast::Relation;
use tessera_frontend::error::Error;
use tessera_frontend::scope::Scope;
use using::Stars;

#[derive(Clone)]
pub(crate) enum CellRelation {
    /// A tensor or a dataset.
    Cube(Arc<Cube>),
    /// A table of rows, and the qualifier of its columns without an alias.
    Rows {
        source: Arc<dyn TableSource>,
        name: String,
        /// Pairs of an alternative name and the column.
        also: Vec<(Arc<str>, Arc<str>)>,
    },
    /// A view of cells. Its query replaces the reference.
    Query {
        /// The query, which does not see the scope of the reference.
        query: Box<Query>,
        /// Its text: see [`tessera_frontend::bind::View::text`].
        text: u64,
    },
    /// A subquery or CTE of rows, which stays unchanged.
    Sql,
}

/// Resolves the relations of cell blocks. Never called for CTEs of rows by name.
pub(crate) trait CellTables {
    /// Resolves a relation. A subquery (or the query of a CTE) is either a tensor block, which yields
    /// a cube, or cells, which are [`CellRelation::Sql`]. `scope` has the CTEs that the relation sees.
    fn relation(&self, relation: &Relation<'_>, scope: &Scope) -> Result<CellRelation, Error>;

    /// The value of `now()`: microseconds since 1970.
    fn now_us(&self) -> i64;
}

/// A planned cell block.
#[derive(Debug, Clone)]
pub struct CellPlan {
    /// The optimised relational plan; its table scans are named placeholders or the caller's own sources.
    pub(crate) logical: LogicalPlan,
    /// Shared rows that the plan reads by table name and that are computed once; each reads only those before it.
    pub(crate) shared: Vec<SharedRows>,
    /// The scans behind the placeholders of all these plans.
    pub scans: Vec<TensorScan>,
    /// The parts that stay dense, and the clause that forces rows: sentences for EXPLAIN.
    pub notes: Vec<String>,
    /// The origin of each column that is an unchanged column of a source.
    pub orders: Vec<Option<ColumnOrigin>>,
    /// The expressions that can fail while rows are computed.
    pub sites: Sites,
}

impl CellPlan {
    /// Names and types of the columns.
    pub fn schema(&self) -> SchemaRef {
        self.logical.schema().inner().clone()
    }

    /// The relational plan of the query as a graph in the language of Graphviz.
    pub fn graphviz(&self) -> String {
        // Without DataFusion's comments.
        let text = self.logical.display_graphviz().to_string();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// The relational plans for EXPLAIN: those of shared rows, then the query's.
    pub fn logical_text(&self) -> String {
        let shared = self.shared.iter().map(|SharedRows { name, logical }| {
            let plan = logical.display_indent().to_string();
            plan.lines().fold(format!("{name}:\n"), |text, line| text + "  " + line + "\n")
        });
        shared.collect::<String>() + &self.logical.display_indent().to_string()
    }
}

/// Plans a cell block of the text `text`. `because` is the clause that made it a cell block, for errors (`WHERE`,
/// `GROUP BY`, …).
///
/// # Errors
/// `unknown_name`, `ambiguous_name`, `ambiguous_dims`, `not_grouped`, `type_error`, `wrong_surface`, `unsupported`
/// and `plan_error`, with the position of the expression at fault, if it is found.
pub(crate) fn plan(
    query: &Query,
    text: u64,
    tables: &dyn CellTables,
    state: &SessionState,
    config: &Config,
    because: &str,
    form: Form,
) -> Result<CellPlan, Error> {
    tessera_frontend::limits::with_stack(|| {
        let density = form.density;
        let (mut query, mut prepared) = names::prepare(query, tables, because, density, text)?;
        let mut lift = Lift::new(state, config, form);
        lift.sites = Sites::of(&query);
        let taken = match expansion::check(&query) {
            Ok(()) if prepared.reads_only_files() => shared::take_out(&mut query, Which::Grouped),
            Ok(()) => Vec::new(),
            Err(_) => shared::take_out(&mut query, Which::All),
        };
        if density == Density::Off {
            lift.notes.push("rows: all cells, because tessera.lift is off".to_string());
        }
        let mut shared = Vec::new();
        for Taken { table: name, cte, uses, query } in taken {
            go_on().map_err(error::plan)?;
            let (logical, _) = lift.planned(query, &prepared, because, false)?;
            lift.notes.push(format!("once: {cte}, which is named {uses} times"));
            let source = SharedSource(logical.schema().inner().clone());
            prepared.tables.insert(name.clone(), Arc::new(source));
            shared.push(SharedRows { name, logical });
        }
        let (logical, orders) = lift.planned(query, &prepared, because, form.as_tensors)?;
        let Lift { scans, notes, sites, .. } = lift;
        Ok(CellPlan { logical, shared, scans, notes, orders, sites })
    })
}

/// The analysed plan of a prepared query.
fn logical(
    query: Query,
    prepared: &names::Prepared,
    state: &SessionState,
) -> datafusion::error::Result<LogicalPlan> {
    let context = context::Context::new(state, &prepared.tables, &prepared.texts);
    let options = ParserOptions::from(&state.config_options().sql_parser);
    let planner = SqlToRel::new_with_options(&context, options);
    let plan = wide::totals::planned(query, &planner, state)?;
    misplaced::check(&plan)?;
    let plan = time::rewrite(grouping::rewrite(unnested::rewrite(plan)?)?, &prepared.texts, state)?;
    let plan = nested::keys(window_keys::correlated(mixed::rewrite(plan)?)?)?;
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?;
    let plan = widen::rewrite(rounded::rewrite(time::as_texts(plan)?, state)?)?;
    let plan = singular::rewrite(nested::comparisons(plan, state)?, state)?;
    let plan = counted::rewrite(asof::rewrite(plan, state)?, state)?;
    dependent::rewrite(elements::rewrite(functions::excluding::rewrite(plan)?, state)?, state)
}

/// See [`CellPlan::orders`].
type Orders = Vec<Option<ColumnOrigin>>;

struct Lift<'a> {
    state: &'a SessionState,
    config: &'a Config,
    form: Form,
    scans: Vec<TensorScan>,
    notes: Vec<String>,
    sites: Sites,
}

/// The plan of a query, and its orders.
type Planned = (LogicalPlan, Orders);

impl Lift<'_> {
    /// The plan of a prepared query. `as_tensors`: see [`Form`].
    fn attempt(
        &mut self,
        query: Query,
        prepared: &names::Prepared,
        because: &str,
        as_tensors: bool,
        stars: Stars,
    ) -> Result<Planned, Error> {
        expansion::check(&query)?;
        if let Some(wide) = wide::wide(&query, prepared)
            && let Some(planned) = self.all_of(wide, prepared, because)?
        {
            return Ok(planned);
        }
        let (logical, orders) = self.optimized(query, prepared, because, as_tensors, stars)?;
        let logical = join_keys::rewrite(logical).and_then(faster::rewrite);
        let logical = logical.and_then(|plan| self.rows(plan));
        let logical = if as_tensors { logical } else { logical.and_then(using::numbered) };
        Ok((logical.map_err(|e| attempts::told(e, prepared, self.state))?, orders))
    }

    /// As [`Self::attempt`], up to the end of DataFusion's optimiser.
    fn optimized(
        &mut self,
        mut query: Query,
        prepared: &names::Prepared,
        because: &str,
        as_tensors: bool,
        stars: Stars,
    ) -> Result<Planned, Error> {
        let state = self.state;
        using::rewrite(&mut query, prepared, state, stars, as_tensors)?;
        let logical = match logical(query, prepared, state) {
            Ok(logical) => logical,
            Err(e) => {
                // A column that cannot be read has no type, so its own error takes precedence over a type error.
                return Err(match unreadable::named(&prepared.tables) {
                    Some(error) => Error::Bind { error, position: None },
                    None => {
                        let call = error::name_in(&e);
                        let error = error::of_surface(error::plan(e), because);
                        let error = error::of_text(error, &prepared.texts);
                        let error = error::placed(error, call.as_deref(), &prepared.calls, state);
                        let error = error::of_alias(error, &prepared.aliases);
                        error::near(error, &prepared.variables)
                    }
                });
            }
        };
        self.sites.add_casts(&logical);
        let told = |e: DataFusionError| attempts::told(e, prepared, state);
        if let Some(error) = unreadable::used(&logical, &prepared.tables).map_err(told)? {
            return Err(Error::Bind { error, position: None });
        }
        expansion::check_expressions(&logical)?;
        let orders = order::sources(&logical);
        let logical = match self.form.density {
            Density::Auto if as_tensors => {
                self.dense_items(logical).and_then(|plan| self.dense(plan)).map_err(told)?
            }
            Density::Auto => self.dense(logical).map_err(told)?,
            Density::Off => logical,
        };
        let logical = order::ordered(logical, state).map_err(told)?;
        let logical = maybe::rewrite(logical).and_then(nan::rewrite);
        let logical = logical.and_then(|p| window_keys::rewrite(membership::rewrite(p, state)?));
        let logical = logical.and_then(|p| marks::rewrite(p, state)).and_then(guards::rewrite);
        let logical = logical.and_then(uneven::rewrite).map_err(told)?;
        let logical = state.optimize(&logical).map_err(|e| match error::correlated(&logical) {
            Err(refused) if error::is_of_names(&e) => refused,
            _ => told(e),
        })?;
        error::remaining(&logical)?;
        Ok((logical, orders))
    }

    /// Replaces a plan whose outermost items compute something by a scan of its rows, if all of it has a dense form.
    fn dense_items(&mut self, plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
        match plan {
            // The order of labels does not depend on the order of rows.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                let input = Arc::new(self.dense_items(Arc::unwrap_or_clone(sort.input))?);
                Ok(LogicalPlan::Sort(Sort { input, ..sort }))
            }
            LogicalPlan::Projection(items) => {
                let only_selects = items.expr.iter().all(is_column);
                let plan = LogicalPlan::Projection(items);
                if only_selects || !reads_cells(&plan) {
                    return Ok(plan);
                }
                let Some(dense) = self.replaced(&plan, &|_| true)? else { return Ok(plan) };
                plan.inputs().into_iter().for_each(|input| self.tell_below(input));
                Ok(dense)
            }
            other => Ok(other),
        }
    }

    /// Replaces each part that has a dense form by a scan of its rows.
    fn dense(&mut self, plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
        let used = used_columns(&plan)?;
        plan.map_all_down(|node| {
            go_on()?;
            if let LogicalPlan::Limit(limit) = &node
                && let Some(sort) = dense::sort_below(limit)
                && reads_cells(&sort.input)
            {
                return self.top(&node, limit, sort);
            }
            let is_tried = matches!(
                node,
                LogicalPlan::Aggregate(_)
                    | LogicalPlan::Distinct(Distinct::All(_))
                    | LogicalPlan::Window(_)
                    | LogicalPlan::Join(_)
            ) || matches!(&node, LogicalPlan::Filter(f) if matches!(&*f.input, LogicalPlan::Join(_)) || reads_values(f));
            if !is_tried || !reads_cells(&node) {
                return Ok(Transformed::no(node));
            }
            Ok(match self.replaced(&node, &|name| used.contains(name))? {
                Some(plan) => Transformed::yes(plan),
                None => Transformed::no(node),
            })
        })
        .map(|t| t.data)
    }

    /// A scan of the rows of a plan that has a dense form; `None`, and a note with the reason, if it has none.
    fn replaced(
        &mut self,
        plan: &LogicalPlan,
        is_used: &dyn Fn(&str) -> bool,
    ) -> datafusion::error::Result<Option<LogicalPlan>> {
        let name = format!("groups_{}", self.scans.len());
        match dense::dense(plan, self.state, self.config, name, is_used) {
            Ok(scan) => {
                self.notes.push(format!("dense: {}", plan.display()));
                let dense = replacement(&scan, plan.schema())?;
                self.scans.push(scan);
                Ok(Some(dense))
            }
            Err(reason) => {
                self.notes.push(format!("rows: {}, because {reason}", plan.display()));
                Ok(None)
            }
        }
    }

    /// `ORDER BY … LIMIT k` over a plan with a dense form: the sort reads only the rows that can be among the first.
    fn top(
        &mut self,
        node: &LogicalPlan,
        limit: &Limit,
        sort: &Sort,
    ) -> datafusion::error::Result<Transformed<LogicalPlan>> {
        let name = format!("groups_{}", self.scans.len());
        let shown = format!("{}, {}", node.display(), LogicalPlan::Sort(sort.clone()).display());
        match dense::top(limit, sort, self.state, self.config, name) {
            Ok(scan) => {
                self.notes.push(format!("dense: {shown}"));
                self.tell_below(&sort.input);
                let input = Arc::new(replacement(&scan, sort.input.schema())?);
                self.scans.push(scan);
                let plan = node.clone().map_down(|plan| match plan {
                    LogicalPlan::Sort(sort) => {
                        let sort = LogicalPlan::Sort(Sort { input: input.clone(), ..sort });
                        Ok(Transformed::new(sort, true, TreeNodeRecursion::Stop))
                    }
                    other => Ok(Transformed::no(other)),
                })?;
                // Nothing below remains to be replaced.
                Ok(Transformed::new(plan.data, true, TreeNodeRecursion::Jump))
            }
            Err(reason) => {
                self.notes.push(format!("rows: {shown}, because {reason}"));
                Ok(Transformed::no(node.clone()))
            }
        }
    }

    /// Adds notes for the operators that stayed dense below another one.
    fn tell_below(&mut self, plan: &LogicalPlan) {
        if matches!(
            plan,
            LogicalPlan::Aggregate(_)
                | LogicalPlan::Distinct(_)
                | LogicalPlan::Window(_)
                | LogicalPlan::Join(_)
        ) {
            self.notes.push(format!("dense: {}", plan.display()));
        }
        plan.inputs().into_iter().for_each(|input| self.tell_below(input));
    }

    /// Replaces the remaining tables of cells by scans of their rows.
    fn rows(&mut self, plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
        plan.replace_all_up(|node| {
            let LogicalPlan::TableScan(scan) = node else { return Ok(None) };
            let rows = self.rows_of(scan)?;
            rows.map(|rows| rename(rows, &scan.projected_schema)).transpose()
        })
    }

    /// A scan of the rows of a table of cells, under its own name; `None` for another table.
    fn rows_of(&mut self, scan: &TableScan) -> datafusion::error::Result<Option<LogicalPlan>> {
        let Some(source) = scan.source.downcast_ref::<CellSource>() else { return Ok(None) };
        let name = format!("rows_{}", self.scans.len());
        let new = rows::rows(scan, source, self.state, self.config, name.clone())
            .map_err(|e| DataFusionError::External(Box::new(e)))?;
        let shown = LogicalPlan::TableScan(scan.clone());
        self.notes.push(format!("rows: {} of shape {:?}", shown.display(), new.shape));
        let rows = TableScanBuilder::new(name, new.source()).with_fetch(scan.fetch).build()?;
        self.scans.push(new);
        Ok(Some(LogicalPlan::TableScan(rows)))
    }
}

/// Fails if planning was cancelled.
fn go_on() -> datafusion::error::Result<()> {
    tessera_frontend::interrupt::check().map_err(|e| DataFusionError::External(Box::new(e)))
}

/// Rewrites each part of a node's expressions, operands first; the columns keep their names.
fn map_parts(
    node: LogicalPlan,
    mut one: impl FnMut(Expr) -> datafusion::error::Result<Transformed<Expr>>,
) -> datafusion::error::Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    node.map_exprs(|expr| {
        let name = names.save(&expr);
        let new = expr.map_up(&mut one)?;
        Ok(new.update_data(|expr| name.restore(expr)))
    })
}

/// The names of the columns in a plan's expressions, without qualifiers: qualifiers differ in a subquery.
fn used_columns(plan: &LogicalPlan) -> datafusion::error::Result<BTreeSet<String>> {
    let mut used = BTreeSet::new();
    plan.each_of_all(|node| {
        node.each_expr(|expr| {
            used.extend(expr.column_refs().into_iter().map(|column| column.name.clone()));
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(used)
}

/// True if a plan reads a table of cells, so that a note why it is not dense is useful.
fn reads_cells(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => scan.source.is::<CellSource>(),
        other => other.inputs().iter().any(|input| reads_cells(input)),
    }
}

/// True if a filter is on values of cells, not on labels alone.
fn reads_values(filter: &Filter) -> bool {
    let mut plan = &*filter.input;
    while let LogicalPlan::SubqueryAlias(alias) = plan {
        plan = &alias.input;
    }
    let LogicalPlan::TableScan(scan) = plan else { return false };
    let Some(source) = scan.source.downcast_ref::<CellSource>() else { return false };
    source.table.dependence(&filter.predicate).is_some_and(|on| on.cells)
}

/// True if an item is a column, with or without an alias.
fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_column(&alias.expr),
        other => matches!(other, Expr::Column(_)),
    }
}

/// The scan of a dense aggregate under the aggregate's own column names.
fn replacement(scan: &TensorScan, schema: &DFSchema) -> datafusion::error::Result<LogicalPlan> {
    let table = TableScanBuilder::new(scan.name.clone(), scan.source()).build()?;
    rename(LogicalPlan::TableScan(table), schema)
}

/// The plan's columns, one by one, under the names of `schema`.
fn rename(plan: LogicalPlan, schema: &DFSchema) -> datafusion::error::Result<LogicalPlan> {
    let columns = plan.schema().columns();
    if columns.is_empty() {
        return Ok(plan);
    }
    let exprs = columns
        .into_iter()
        .zip(schema.iter())
        .map(|(column, (relation, field))| {
            Expr::Column(column).alias_qualified(relation.cloned(), field.name())
        })
        .collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}
