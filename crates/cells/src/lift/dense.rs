//! Plans over tensors as dense relations, where all operators have a dense form.
//!
//! | operator | dense form |
//! |---|---|
//! | a filter on one dimension | a slice, or a list of positions |
//! | a filter on values | a condition on the relation; groups without rows are dropped by it |
//! | GROUP BY, DISTINCT | a reduction that keeps or groups axes |
//! | an equi-join on labels | alignment: matching positions of both sides along one axis |
//! | groups of a join on ranges with a small table | a reduction of the cells that every row of the table treats alike, then of the boxes of each group |
//! | `sum(a * b)` over a join | a contraction |
//! | OVER (PARTITION BY dims ORDER BY dim) | a shift, a scan, a window along one axis |
//! | ORDER BY value LIMIT k | only the rows that can be among the first k |
//!
//! Every operator either yields exactly SQL's rows or is refused with a reason; then its input is tried on its own.

mod aggregate;
mod boxes;
mod finite;
mod functions;
mod join;
mod product;
mod top;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema};
use datafusion::common::{DFSchemaRef, JoinType};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, LogicalPlan, TableScan};
use tessera_frontend::flatten;
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::ir::NodeId;
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;

use super::along::Along;
use super::labels::Kept;
use super::lower::{Lower, Reason, place, refused};
use super::relation::{Column, Relation};
use super::scan::{ROW, ScanColumn, TensorScan, Top, row_field};
use super::table::{self, CellSource, dtype_of};
use crate::tables::rows_in_memory;
use crate::type_name;

/// The dense form of a plan as a scan of that name, or the reason why it has none. A column that is not used needs no
/// dense form.
pub(crate) fn dense(
    plan: &LogicalPlan,
    state: &SessionState,
    config: &Config,
    name: String,
    is_used: &dyn Fn(&str) -> bool,
) -> Result<TensorScan, Reason> {
    let mut dense = Dense { b: Builder::new(config.clone()), state, is_used };
    let relation = dense.relation(plan)?;
    dense.scan(relation, name, None)
}

pub(crate) use finite::bound;
pub(crate) use top::{sort_below, top};

struct Dense<'a> {
    b: Builder,
    state: &'a SessionState,
    is_used: &'a dyn Fn(&str) -> bool,
}

impl Dense<'_> {
    fn lower<'b>(&'b mut self, relation: &'b Relation) -> Lower<'b> {
        Lower { b: &mut self.b, relation, state: self.state }
    }

    fn relation(&mut self, plan: &LogicalPlan) -> Result<Relation, Reason> {
        match plan {
            LogicalPlan::TableScan(scan) => self.table(scan),
            LogicalPlan::SubqueryAlias(alias) => {
                let inner = self.relation(&alias.input)?;
                Ok(Relation { schema: alias.schema.clone(), ..inner })
            }
            LogicalPlan::Projection(projection) => {
                let input = self.relation(&projection.input)?;
                let columns = projection.expr.iter().map(|e| self.column(&input, e)).collect();
                Ok(Relation { columns, schema: projection.schema.clone(), ..input })
            }
            LogicalPlan::Filter(filter) => {
                // An equality in WHERE over a cross product is a join too.
                if let LogicalPlan::Join(join) = &*filter.input
                    && join.join_type == JoinType::Inner
                {
                    let conditions = split_conjunction(&filter.predicate);
                    return self.join(join, conditions.into_iter().cloned().collect());
                }
                let input = self.relation(&filter.input)?;
                self.filter(input, &filter.predicate)
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let keys = input.schema().columns().into_iter().map(Expr::Column).collect();
                let aggregate = Aggregate::try_new(input.clone(), keys, vec![])
                    .map_err(|e| e.strip_backtrace())?;
                self.aggregate(&aggregate)
            }
            LogicalPlan::Join(join) => self.join(join, Vec::new()),
            LogicalPlan::Window(window) => self.window(window),
            other => {
                let text = other.display().to_string();
                let name = text.split(':').next().unwrap_or_default().trim();
                Err(format!("{name} is between it and the tensor"))
            }
        }
    }

    fn table(&mut self, scan: &TableScan) -> Result<Relation, Reason> {
        let is_plain = scan.projection.is_none() && scan.filters.is_empty() && scan.fetch.is_none();
        if is_plain && let Some(rows) = rows_in_memory(&*scan.source) {
            return Ok(table_of_rows(&rows, scan.projected_schema.clone()));
        }
        let source = scan.source.downcast_ref::<CellSource>().filter(|_| is_plain);
        let source = source.ok_or_else(|| format!("{} is a table of rows", scan.table_name))?;
        let table = &source.table;
        let kept: Vec<Kept> =
            table.axes.iter().map(|a| Kept::Range { start: 0, len: a.len }).collect();
        let mut columns = Vec::with_capacity(table.columns.len());
        for (i, column) in table.columns.iter().enumerate() {
            columns.push(match column {
                table::Column::Label { axis, values } => Column::Label {
                    axis: *axis,
                    values: values.clone(),
                    partial: false,
                    by_value: false,
                    origin: None,
                },
                table::Column::Unreadable(error) => Column::Refused(error.to_string()),
                table::Column::Cells { variable, axes } => {
                    let node = variable.build(&mut self.b).map_err(refused)?;
                    let node = place(&mut self.b, node, axes, &kept).map_err(refused)?;
                    let dtype = self.b.dtype(node);
                    // Other calendars are `int64` in SQL.
                    let sql = dtype_of(table.schema.field(i).data_type()).unwrap_or(dtype);
                    Column::Cells(self.b.cast(node, sql).map_err(refused)?)
                }
            });
        }
        let schema = scan.projected_schema.clone();
        let whole = table.axes.iter().map(|a| a.len).collect();
        Ok(Relation { whole, kept, columns, schema, keep: None, boxes: None, is_table: false })
    }

    /// A projected expression as a column.
    fn column(&mut self, input: &Relation, expr: &Expr) -> Column {
        let mut expr = expr;
        while let Expr::Alias(alias) = expr {
            expr = &alias.expr;
        }
        if let Expr::Column(c) = expr
            && let Some(column) = input.column(c)
        {
            return column.clone();
        }
        if let Some(axis) = input.axis(expr) {
            let labels = input
                .evaluate_whole(expr, axis, self.state)
                .and_then(|values| Ok((values, input.evaluate_origin(expr, axis, self.state)?)));
            return match labels {
                Ok((values, origin)) => {
                    let (partial, by_value) = (input.is_partial(expr), input.is_by_value(expr));
                    Column::Label { axis, values: values.into(), partial, by_value, origin }
                }
                Err(e) => Column::Refused(e.strip_backtrace()),
            };
        }
        match self.lower(input).expr(expr) {
            Ok(node) => Column::Cells(node),
            Err(reason) => Column::Refused(reason),
        }
    }

    fn filter(&mut self, mut relation: Relation, predicate: &Expr) -> Result<Relation, Reason> {
        let mut conditions = Vec::new();
        for filter in split_conjunction(predicate) {
            match relation.axis(filter) {
                Some(axis) => relation.filter(&mut self.b, filter, axis, self.state)?,
                None => conditions.push(filter),
            }
        }
        if relation.shape().contains(&0) {
            return Err("no cell is left".to_string());
        }
        for condition in conditions {
            let mut lower = self.lower(&relation);
            let met = lower.is_true(condition)?;
            relation.keep = Some(match relation.keep {
                None => met,
                Some(keep) => lower.map(ScalarOp::And, &[keep, met])?,
            });
        }
        Ok(relation)
    }

    /// The relation's rows as a scan, optionally only those that can be among the first.
    fn scan(
        mut self,
        relation: Relation,
        name: String,
        first: Option<top::First>,
    ) -> Result<TensorScan, Reason> {
        relation.check_rows()?;
        let shape = relation.shape();
        let (mut columns, mut nodes) = (Vec::new(), Vec::new());
        let mut origins = BTreeMap::new();
        for (column, field) in relation.columns.iter().zip(relation.schema.fields()) {
            columns.push(match column {
                Column::Label { axis, values, by_value, origin, .. } => {
                    let origin = origin.clone().map_or_else(|| values.clone(), Along::from);
                    origins.insert(columns.len(), (!by_value).then_some((*axis, origin)));
                    let values = values.kept(&relation.kept[*axis]);
                    ScanColumn::label(*axis, values.map_err(|e| e.strip_backtrace())?)
                }
                Column::Cells(node) => {
                    nodes.push(self.of_type(*node, field)?);
                    ScanColumn::Cells(nodes.len() - 1)
                }
                Column::Met { axis, values, met } => {
                    origins.insert(columns.len(), Some((*axis, values.clone().into())));
                    let node = self.lower(&relation).met(field.name(), *axis, values, *met)?;
                    nodes.push(self.of_type(node, field)?);
                    ScanColumn::Cells(nodes.len() - 1)
                }
                Column::Refused(_) if !shape.is_empty() && !(self.is_used)(field.name()) => {
                    let nothing = new_null_array(field.data_type(), shape[0] as usize);
                    ScanColumn::Label { axis: 0, values: nothing }
                }
                Column::Refused(reason) => return Err(reason.clone()),
            });
        }
        columns.push(ScanColumn::Row);
        let presence = relation.keep.map(|keep| {
            nodes.push(keep);
            nodes.len() - 1
        });
        let top = first.map(|first| {
            let known = nodes.iter().position(|node| *node == first.key);
            let root = known.unwrap_or_else(|| {
                nodes.push(first.key);
                nodes.len() - 1
            });
            Top { root, ..first.top }
        });
        let mut fields = fields(&relation.schema);
        fields.push(row_field(ROW));
        let roots = flatten(&mut self.b, &nodes, &shape).map_err(refused)?;
        Ok(TensorScan {
            name,
            schema: Arc::new(Schema::new(fields)),
            shape,
            columns,
            origins,
            presence,
            top,
            rooted: Rooted { graph: self.b.graph, roots },
            exploded: false,
        })
    }
}

impl Dense<'_> {
    /// The node, if its type is that of a field.
    fn of_type(&self, node: NodeId, field: &Field) -> Result<NodeId, Reason> {
        let dtype = self.b.dtype(node);
        if dtype_of(field.data_type()) == Some(dtype) {
            return Ok(node);
        }
        Err(format!("{} is {}, and {dtype} here", field.name(), type_name(field.data_type())))
    }
}

/// The fields of a plan, under distinct names.
fn fields(schema: &DFSchemaRef) -> Vec<Field> {
    let mut out: Vec<Field> = Vec::new();
    for field in schema.fields() {
        let mut name = field.name().clone();
        while out.iter().any(|f| *f.name() == name) {
            name.push('\'');
        }
        out.push(field.as_ref().clone().with_name(name));
    }
    out
}

/// A table of rows in memory: each column labels the axis of the rows.
fn table_of_rows(rows: &RecordBatch, schema: DFSchemaRef) -> Relation {
    let len = rows.num_rows() as u64;
    let label = |values: &ArrayRef| Column::Label {
        axis: 0,
        values: values.clone().into(),
        partial: false,
        by_value: true,
        origin: None,
    };
    Relation {
        whole: vec![len],
        kept: vec![Kept::Range { start: 0, len }],
        columns: rows.columns().iter().map(label).collect(),
        schema,
        keep: None,
        boxes: None,
        is_table: true,
    }
}

/// The labels at some positions; NULL for a missing position.
fn gathered(values: &ArrayRef, positions: &[Option<u64>]) -> Result<ArrayRef, Reason> {
    take(values, &UInt64Array::from(positions.to_vec()), None).map_err(|e| e.to_string())
}

/// A node at positions of an axis in any order; masked for a missing position.
fn gather(
    b: &mut Builder,
    node: NodeId,
    axis: usize,
    positions: &[Option<u64>],
) -> Result<NodeId, Reason> {
    let places: Arc<[u64]> = positions.iter().map(|p| p.unwrap_or(0)).collect();
    let (count, len) = (places.len() as u64, b.node(node).shape[axis]);
    let is_run = places.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    let taken = match places.first().copied() {
        Some(0) if is_run && count == len => Ok(node),
        // Consecutive cells are read in place.
        Some(first) if is_run && first + count <= len => {
            b.slice(node, axis, first as i64, 1, count)
        }
        _ => b.take(node, axis, places),
    };
    let taken = taken.map_err(refused)?;
    if positions.iter().all(Option::is_some) {
        return Ok(taken);
    }
    let rank = b.node(node).shape.len();
    let there = flags(b, axis, rank, positions.iter().map(Option::is_some))?;
    b.map_op(tessera_planner::ir::MapOp::Mask, &[taken, there]).map_err(refused)
}

/// A `bool` array along one axis.
fn flags(
    b: &mut Builder,
    axis: usize,
    rank: usize,
    values: impl Iterator<Item = bool>,
) -> Result<NodeId, Reason> {
    use tessera_planner::{dtype::DType, ir::ConstArray, scalar::Scalar};
    let values: Vec<Option<Scalar>> = values.map(|v| Some(Scalar::bool(v))).collect();
    let mut shape = vec![1; rank];
    shape[axis] = values.len() as u64;
    b.array(ConstArray::new(DType::Bool, &shape, &values)).map_err(refused)
}
