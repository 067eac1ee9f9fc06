//! The operators of a subquery over the elements of lists, for all outer rows at the same time.
//!
//! Each row of an operator has the number of its outer row. The numbers are ascending.

use std::collections::HashMap;
use std::sync::Arc;

use crate::walk::Walk;
use arrow::array::{
    ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array, new_empty_array,
};
use arrow::compute::{cast, filter, take};
use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef, UInt32Type};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, NullHandling, Result, ScalarValue, exec_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Unnest};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};

use crate::lift::labels::physical;
use crate::lift::nan;

/// The operators, in the order in which they run.
#[derive(Debug)]
pub(super) struct Steps {
    steps: Vec<(Inputs, Step)>,
    /// True if each outer row has exactly one row of the result.
    pub(super) has_each_row: bool,
}

/// The columns from which an operator's expressions are computed.
#[derive(Debug)]
struct Inputs {
    schema: SchemaRef,
    /// The outer columns that the expressions use. Others, above all the lists themselves, are not repeated for each
    /// row.
    outside: Vec<usize>,
}

/// An operator.
#[derive(Debug)]
enum Step {
    Project(Vec<Arc<dyn PhysicalExpr>>),
    Filter(Arc<dyn PhysicalExpr>),
    /// UNNEST of the columns `lists`. `from` has the column of the input for each column of the result.
    Unnest {
        lists: Vec<usize>,
        from: Vec<usize>,
    },
    Aggregate(Vec<Call>),
}

/// A call of an aggregate.
#[derive(Debug)]
struct Call {
    function: AggregateFunctionExpr,
    filter: Option<Arc<dyn PhysicalExpr>>,
}

pub(super) struct Rows {
    pub(super) columns: Vec<ArrayRef>,
    /// The number of the outer row of each row.
    pub(super) outside: UInt32Array,
}

impl Steps {
    /// The operators of a subquery; `outside` are the outer columns, with their fields. `None` if an operator is not
    /// supported.
    pub(super) fn of(
        body: &LogicalPlan,
        outside: &[Column],
        fields: &[FieldRef],
        state: &SessionState,
    ) -> Result<Option<Steps>> {
        let mut plan = Planner { outside, fields, state, steps: Vec::new(), has_each_row: true };
        let is_known = plan.add(&nan::rewrite(body.clone())?)?;
        let Planner { steps, has_each_row, .. } = plan;
        Ok(is_known.then_some(Steps { steps, has_each_row }))
    }

    /// The rows of the subquery for `count` outer rows.
    pub(super) fn run(&self, outside: &[ArrayRef], count: usize) -> Result<Rows> {
        let numbers = UInt32Array::from_iter_values(0..count as u32);
        let mut rows = Rows { columns: Vec::new(), outside: numbers };
        for (inputs, step) in &self.steps {
            rows = match step {
                Step::Project(items) => {
                    let batch = rows.batch(inputs, outside)?;
                    Rows { columns: evaluated(items, &batch)?, outside: rows.outside }
                }
                Step::Filter(condition) => {
                    let batch = rows.batch(inputs, outside)?;
                    let kept = met(condition, &batch)?;
                    let columns = rows.columns.iter().map(|column| filter(column, &kept));
                    let columns = columns.collect::<std::result::Result<_, _>>()?;
                    let numbers = filter(&rows.outside, &kept)?;
                    Rows { columns, outside: numbers.as_primitive::<UInt32Type>().clone() }
                }
                Step::Unnest { lists, from } => rows.unnested(lists, from)?,
                Step::Aggregate(calls) => {
                    let batch = rows.batch(inputs, outside)?;
                    aggregated(calls, &batch, &rows.outside, count)?
                }
            };
        }
        Ok(rows)
    }
}

struct Planner<'a> {
    outside: &'a [Column],
    fields: &'a [FieldRef],
    state: &'a SessionState,
    steps: Vec<(Inputs, Step)>,
    has_each_row: bool,
}

impl Planner<'_> {
    /// Adds the operators of a plan; false if there is one of another kind.
    fn add(&mut self, plan: &LogicalPlan) -> Result<bool> {
        let step = match plan {
            LogicalPlan::EmptyRelation(one) => return Ok(one.produce_one_row),
            LogicalPlan::Subquery(inner) => return self.add(&inner.subquery),
            LogicalPlan::SubqueryAlias(alias) => return self.add(&alias.input),
            LogicalPlan::Projection(items) => {
                if !self.add(&items.input)? {
                    return Ok(false);
                }
                let (schema, used) = self.schema(items.input.schema(), &items.expr)?;
                self.all(&items.expr, &schema)?.map(|items| (schema, used, Step::Project(items)))
            }
            LogicalPlan::Filter(filter) => {
                if !self.add(&filter.input)? {
                    return Ok(false);
                }
                self.has_each_row = false;
                let condition = &filter.predicate;
                let (schema, used) =
                    self.schema(filter.input.schema(), std::slice::from_ref(condition))?;
                self.one(condition, &schema)?.map(|on| (schema, used, Step::Filter(on)))
            }
            LogicalPlan::Unnest(unnest) => {
                if !self.add(&unnest.input)? {
                    return Ok(false);
                }
                self.has_each_row = false;
                let (schema, used) = self.schema(unnest.input.schema(), &[])?;
                unnested(unnest).map(|step| (schema, used, step))
            }
            LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
                if !self.add(&aggregate.input)? {
                    return Ok(false);
                }
                self.has_each_row = true;
                let (schema, used) = self.schema(aggregate.input.schema(), &aggregate.aggr_expr)?;
                self.calls(aggregate, &schema)?.map(|calls| (schema, used, Step::Aggregate(calls)))
            }
            _ => None,
        };
        let Some((schema, outside, step)) = step else { return Ok(false) };
        self.steps.push((Inputs { schema: schema.inner().clone(), outside }, step));
        Ok(true)
    }

    /// The columns of an operator, then the outer columns that its expressions use, with their numbers; all may be
    /// NULL.
    fn schema(&self, own: &DFSchema, exprs: &[Expr]) -> Result<(DFSchema, Vec<usize>)> {
        let nullable = |field: &FieldRef| Field::clone(field).with_nullable(true);
        let own =
            own.iter().map(|(relation, field)| (relation.cloned(), Arc::new(nullable(field))));
        let (mut fields, mut used): (Vec<_>, Vec<usize>) = (own.collect(), Vec::new());
        for (at, (column, field)) in self.outside.iter().zip(self.fields).enumerate() {
            let is_it =
                |e: &Expr| matches!(e, Expr::OuterReferenceColumn(_, known) if known == column);
            for expr in exprs {
                if expr.any(|e| Ok(is_it(e)))? {
                    fields.push((None, Arc::new(nullable(field).with_name(named(at)))));
                    used.push(at);
                    break;
                }
            }
        }
        Ok((DFSchema::new_with_metadata(fields, HashMap::new())?, used))
    }

    /// An expression over these columns; `None` if it has a subquery, or is volatile.
    fn one(&self, expr: &Expr, schema: &DFSchema) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let mut is_known = !expr.is_volatile();
        let inside = expr.clone().map_up(|e| {
            Ok(match &e {
                Expr::OuterReferenceColumn(_, column) => {
                    match self.outside.iter().position(|known| known == column) {
                        Some(at) => {
                            let column = Column::new_unqualified(named(at));
                            Transformed::yes(Expr::Column(column))
                        }
                        None => {
                            is_known = false;
                            Transformed::no(e)
                        }
                    }
                }
                Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_) => {
                    is_known = false;
                    Transformed::no(e)
                }
                _ => Transformed::no(e),
            })
        })?;
        if !is_known {
            return Ok(None);
        }
        physical(self.state, inside.data.unalias_nested().data, schema).map(Some)
    }

    fn all(&self, exprs: &[Expr], schema: &DFSchema) -> Result<Option<Vec<Arc<dyn PhysicalExpr>>>> {
        exprs.iter().map(|expr| self.one(expr, schema)).collect()
    }

    /// The aggregates; `None` if one needs ordered values.
    fn calls(&self, aggregate: &Aggregate, schema: &DFSchema) -> Result<Option<Vec<Call>>> {
        let mut calls = Vec::with_capacity(aggregate.aggr_expr.len());
        for expr in &aggregate.aggr_expr {
            let Expr::AggregateFunction(AggregateFunction { func, params }) =
                expr.clone().unalias_nested().data
            else {
                return Ok(None);
            };
            if !params.order_by.is_empty() || params.null_treatment.is_some() {
                return Ok(None);
            }
            let Some(args) = self.all(&params.args, schema)? else { return Ok(None) };
            let filter = match &params.filter {
                Some(filter) => match self.one(filter, schema)? {
                    Some(filter) => Some(filter),
                    None => return Ok(None),
                },
                None => None,
            };
            let function = AggregateExprBuilder::new(func, args)
                .schema(schema.inner().clone())
                .alias("value")
                .with_distinct(params.distinct)
                .build()?;
            calls.push(Call { function, filter });
        }
        Ok(Some(calls))
    }
}

/// The name of an outer column, which no text can produce.
fn named(at: usize) -> String {
    format!("[outside {at}]")
}

/// UNNEST of lists; `None` for structs, for lists of lists at once, and if rows without elements stay.
fn unnested(unnest: &Unnest) -> Option<Step> {
    let is_list = |at: usize| {
        let field = unnest.input.schema().field(at);
        matches!(
            field.data_type(),
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
        )
    };
    let is_known = unnest.struct_type_columns.is_empty()
        && unnest.options.null_handling == NullHandling::Drop
        && unnest.list_type_columns.iter().all(|(at, list)| list.depth == 1 && is_list(*at));
    is_known.then(|| Step::Unnest {
        lists: unnest.list_type_columns.iter().map(|(at, _)| *at).collect(),
        from: unnest.dependency_indices.clone(),
    })
}

fn evaluated(exprs: &[Arc<dyn PhysicalExpr>], batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
    exprs.iter().map(|expr| expr.evaluate(batch)?.into_array(batch.num_rows())).collect()
}

fn met(condition: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> Result<BooleanArray> {
    let met = condition.evaluate(batch)?.into_array(batch.num_rows())?;
    // FILTER (WHERE NULL) has no type.
    Ok(cast(&met, &DataType::Boolean)?.as_boolean().clone())
}

impl Rows {
    /// The input's columns, and the outer columns repeated for each row.
    fn batch(&self, inputs: &Inputs, outside: &[ArrayRef]) -> Result<RecordBatch> {
        let mut columns = self.columns.clone();
        for &at in &inputs.outside {
            columns.push(take(&outside[at], &self.outside, None)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.outside.len()));
        Ok(RecordBatch::try_new_with_options(inputs.schema.clone(), columns, &options)?)
    }

    /// A row for each element of the longest of a row's lists.
    fn unnested(&self, lists: &[usize], from: &[usize]) -> Result<Rows> {
        let mut found: Vec<(usize, List)> = Vec::with_capacity(lists.len());
        for &at in lists {
            found.push((at, List::of(&self.columns[at])?));
        }
        let lists = found;
        let mut rows: Vec<u32> = Vec::new();
        let mut places: Vec<Vec<Option<u32>>> = vec![Vec::new(); lists.len()];
        for row in 0..self.outside.len() {
            let longest = lists.iter().map(|(_, list)| list.parts[row].1).max().unwrap_or(0);
            rows.extend((0..longest).map(|_| row as u32));
            for ((_, list), places) in lists.iter().zip(&mut places) {
                let (start, length) = list.parts[row];
                let place = |at: u32| (at < length).then_some(start + at);
                places.extend((0..longest).map(place));
            }
        }
        let rows = UInt32Array::from(rows);
        let places: Vec<UInt32Array> = places.into_iter().map(UInt32Array::from).collect();
        let column = |&input: &usize| match lists.iter().position(|(at, _)| *at == input) {
            Some(number) => take(&lists[number].1.values, &places[number], None),
            None => take(&self.columns[input], &rows, None),
        };
        let columns = from.iter().map(column).collect::<std::result::Result<_, _>>()?;
        let outside = take(&self.outside, &rows, None)?;
        Ok(Rows { columns, outside: outside.as_primitive::<UInt32Type>().clone() })
    }
}

/// The elements of a column of lists.
struct List {
    values: ArrayRef,
    /// The first element and the number of elements of each row.
    parts: Vec<(u32, u32)>,
}

impl List {
    fn of(column: &ArrayRef) -> Result<Self> {
        let (DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)) = column.data_type()
        else {
            return exec_err!("`unnest` of {}", crate::type_name(column.data_type()));
        };
        let lists = cast(column, &DataType::LargeList(Arc::clone(field)))?;
        let lists = lists.as_list::<i64>();
        let values = Arc::clone(lists.values());
        if values.len() > u32::MAX as usize {
            return exec_err!("a batch of rows has {} elements of lists", values.len());
        }
        let pairs = lists.value_offsets().windows(2).enumerate();
        let parts = pairs.map(|(row, ends)| match column.is_null(row) {
            true => (0, 0),
            false => (ends[0] as u32, (ends[1] - ends[0]) as u32),
        });
        Ok(List { values, parts: parts.collect() })
    }
}

/// The aggregates of the rows that belong to each outer row.
fn aggregated(
    calls: &[Call],
    batch: &RecordBatch,
    outside: &UInt32Array,
    count: usize,
) -> Result<Rows> {
    let numbers = outside.values();
    let mut columns = Vec::with_capacity(calls.len());
    for Call { function, filter: condition } in calls {
        let args = evaluated(&function.expressions(), batch)?;
        let kept = condition.as_ref().map(|condition| met(condition, batch)).transpose()?;
        let (mut values, mut start) = (Vec::with_capacity(count), 0);
        for row in 0..count as u32 {
            let end = start + numbers[start..].iter().take_while(|&&number| number == row).count();
            let mut part: Vec<ArrayRef> =
                args.iter().map(|arg| arg.slice(start, end - start)).collect();
            if let Some(kept) = &kept {
                let kept = kept.slice(start, end - start);
                for arg in &mut part {
                    *arg = filter(arg, &kept)?;
                }
            }
            let mut accumulator = function.create_accumulator()?;
            accumulator.update_batch(&part)?;
            values.push(accumulator.evaluate()?);
            start = end;
        }
        columns.push(match values.is_empty() {
            true => new_empty_array(function.field().data_type()),
            false => ScalarValue::iter_to_array(values)?,
        });
    }
    Ok(Rows { columns, outside: UInt32Array::from_iter_values(0..count as u32) })
}
