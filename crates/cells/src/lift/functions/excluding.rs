//! Frames with EXCLUDE, and aggregates over frames whose arguments have an order. DataFusion has neither.
//!
//! ```text
//! list(x ORDER BY y) OVER (PARTITION BY k ORDER BY i ROWS 2 PRECEDING EXCLUDE TIES)
//!   names    ⇒  list(x) OVER (PARTITION BY k, tessera_frame('TIES', 'a', y) ORDER BY i ROWS 2 PRECEDING)
//!   rewrite  ⇒  tessera_frame(x, y) OVER (PARTITION BY k ORDER BY i ROWS 2 PRECEDING)
//! ```
//! A window function sees whole partitions and the frame of each row. It recomputes the aggregate of the remaining rows
//! of the frame for each row, with an accumulator of the aggregate, and [`Blocks`] of many rows.

mod blocks;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, partition, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use arrow::row::Rows;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err};
use datafusion::logical_expr::expr::WindowFunctionDefinition;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{
    Expr, LogicalPlan, PartitionEvaluator, Signature, Volatility, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::{Column, Literal};

use blocks::Blocks;

use super::super::casts::bare;
use super::super::labels::{canonical, row_converter};
use super::super::map_parts;
use super::super::markers::FRAME;
use super::inner::holds;
use crate::rows::go_on;
use crate::walk::WalkPlan;

/// Window functions that read a frame.
const OF_FRAMES: [&str; 3] = ["first_value", "last_value", "nth_value"];

/// The letter for the direction of a key: upper case if it descends, the last of the alphabet if NULLs are first.
pub(in crate::lift) fn option(is_ascending: bool, is_null_first: bool) -> char {
    match (is_ascending, is_null_first) {
        (true, false) => 'a',
        (true, true) => 'z',
        (false, false) => 'A',
        (false, true) => 'Z',
    }
}

/// Replaces the calls whose windows have a marker. Runs once types are coerced.
pub(in crate::lift) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.map_all_up(|node| match node {
        LogicalPlan::Window(_) => map_parts(node, call),
        other => Ok(Transformed::no(other)),
    })
    .map(|t| t.data)
}

/// True for a marker. One with a cast in it has an alias (see [`bare`]).
fn is_marker(key: &Expr) -> bool {
    matches!(bare(key), Expr::ScalarFunction(call) if call.name() == FRAME)
}

fn call(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::WindowFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
    let params = &mut call.params;
    let Some(at) = params.partition_by.iter().position(is_marker) else {
        return Ok(Transformed::no(Expr::WindowFunction(call)));
    };
    let Expr::ScalarFunction(marker) = params.partition_by.remove(at).unalias() else {
        return internal_err!("a frame without its marker");
    };
    let text = |arg: Option<&Expr>| match arg {
        Some(Expr::Literal(text, _)) => text.try_as_str().flatten().map(String::from),
        _ => None,
    };
    let (Some(excluded), Some(options)) = (text(marker.args.first()), text(marker.args.get(1)))
    else {
        return internal_err!("a frame whose marker has no texts");
    };
    if let WindowFunctionDefinition::WindowUDF(function) = &call.fun
        && options.is_empty()
        && !OF_FRAMES.contains(&function.name())
    {
        // The function has no frame.
        return Ok(Transformed::yes(Expr::WindowFunction(call)));
    }
    let option = |letter: char| SortOptions {
        descending: letter.is_uppercase(),
        nulls_first: letter.eq_ignore_ascii_case(&'z'),
    };
    let function = FramedCall {
        function: call.fun.clone(),
        excluded: Excluded::of(&excluded)?,
        arguments: params.args.len(),
        has_filter: params.filter.is_some(),
        is_distinct: std::mem::take(&mut params.distinct),
        order: options.chars().map(option).collect(),
        keys: params.order_by.len(),
        signature: Signature::variadic_any(Volatility::Immutable),
    };
    params.args.extend(params.filter.take().map(|filter| *filter));
    params.args.extend(marker.args.into_iter().skip(2));
    call.fun = WindowFunctionDefinition::WindowUDF(Arc::new(WindowUDF::new_from_impl(function)));
    Ok(Transformed::yes(Expr::WindowFunction(call)))
}

/// The name of the function that a call computes, also over such a frame.
pub(in crate::lift) fn name_of(function: &WindowFunctionDefinition) -> &str {
    let framed = match function {
        WindowFunctionDefinition::WindowUDF(window) => window.inner().downcast_ref::<FramedCall>(),
        WindowFunctionDefinition::AggregateUDF(_) => None,
    };
    framed.map_or(function, |framed| &framed.function).name()
}

/// The rows that EXCLUDE removes from a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Excluded {
    Nothing,
    CurrentRow,
    /// The current row and its peers.
    Group,
    /// The peers of the current row.
    Ties,
}

impl Excluded {
    fn of(text: &str) -> Result<Self> {
        Ok(match text {
            "" => Self::Nothing,
            "CURRENT ROW" => Self::CurrentRow,
            "GROUP" => Self::Group,
            "TIES" => Self::Ties,
            other => return internal_err!("a frame excludes {other}"),
        })
    }

    /// The remaining rows of a frame, in order.
    fn rest(self, frame: &Range<usize>, row: usize, peers: &Range<usize>) -> [Range<usize>; 3] {
        let nothing = || frame.end..frame.end;
        let gone = match self {
            Self::Nothing => return [frame.clone(), nothing(), nothing()],
            Self::CurrentRow => row..row + 1,
            Self::Group | Self::Ties => peers.clone(),
        };
        let own = if self == Self::Ties && frame.contains(&row) { row..row + 1 } else { nothing() };
        let before = frame.start..gone.start.clamp(frame.start, frame.end.max(frame.start));
        let after = gone.end.max(frame.start)..frame.end;
        [before, own, after]
    }
}

/// A call over such frames. Its arguments are those of the function, the condition of FILTER, and the keys of their
/// order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FramedCall {
    function: WindowFunctionDefinition,
    excluded: Excluded,
    arguments: usize,
    has_filter: bool,
    is_distinct: bool,
    /// The direction of each key.
    order: Vec<SortOptions>,
    /// The number of keys of the window by which rows are peers. More may follow, which order these.
    keys: usize,
    signature: Signature,
}

impl FramedCall {
    fn count(&self) -> usize {
        self.arguments + usize::from(self.has_filter) + self.order.len()
    }
}

impl WindowUDFImpl for FramedCall {
    fn name(&self) -> &str {
        FRAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn field(&self, args: WindowUDFFieldArgs) -> Result<FieldRef> {
        let own = args.input_fields().get(..self.arguments).unwrap_or_default();
        let field = match &self.function {
            WindowFunctionDefinition::AggregateUDF(function) => function.return_field(own)?,
            WindowFunctionDefinition::WindowUDF(function) => {
                function.field(WindowUDFFieldArgs::new(own, args.name()))?
            }
        };
        Ok(Arc::new(Field::clone(&field).with_name(args.name())))
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        let what = match &self.function {
            WindowFunctionDefinition::AggregateUDF(function) => {
                let (exprs, schema) = columns(&args, self.arguments);
                let aggregate = AggregateExprBuilder::new(Arc::clone(function), exprs)
                    .schema(Arc::new(schema))
                    .alias(function.name())
                    .with_ignore_nulls(args.ignore_nulls())
                    .build()?;
                // Rejects arguments of a wrong value before rows are read.
                aggregate.create_accumulator()?;
                What::Aggregate(Box::new(aggregate))
            }
            WindowFunctionDefinition::WindowUDF(function) => {
                let nth = match (function.name(), args.input_exprs().get(1).and_then(number)) {
                    ("first_value", _) => 1,
                    ("last_value", _) => -1,
                    // No row has a negative number, but -1 is that of the last one here.
                    ("nth_value", Some(nth)) => nth.max(0),
                    (name, _) => {
                        return not_impl_err!("EXCLUDE, or an order of the arguments, of `{name}`");
                    }
                };
                What::Nth { nth, ignores_nulls: args.ignore_nulls() }
            }
        };
        Ok(Box::new(Evaluator { call: self.clone(), what, partition: None, next: 0 }))
    }
}

/// The value of an integer constant; 0, which is no row's number, for NULL.
fn number(expr: &Arc<dyn PhysicalExpr>) -> Option<i64> {
    let constant = expr.downcast_ref::<Literal>()?;
    match constant.value().cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(number)) => Some(number.unwrap_or(0)),
        _ => None,
    }
}

/// The first arguments as columns of their own; constants remain what they are, as some functions read them.
fn columns(args: &PartitionEvaluatorArgs, count: usize) -> (Vec<Arc<dyn PhysicalExpr>>, Schema) {
    let exprs = args.input_exprs().iter().zip(args.input_fields()).take(count).enumerate();
    let (mut own, mut fields) = (Vec::new(), Vec::new());
    for (i, (expr, field)) in exprs {
        let name = format!("argument_{i}");
        own.push(match expr.is::<Literal>() {
            true => Arc::clone(expr),
            false => Arc::new(Column::new(&name, i)) as Arc<dyn PhysicalExpr>,
        });
        fields.push(Field::clone(field).with_name(name));
    }
    (own, Schema::new(fields))
}

#[derive(Debug)]
enum What {
    Aggregate(Box<AggregateFunctionExpr>),
    /// A row of the frame, from 1 on, or from the end if it is negative.
    Nth {
        nth: i64,
        ignores_nulls: bool,
    },
}

#[derive(Debug)]
struct Evaluator {
    call: FramedCall,
    what: What,
    partition: Option<Partition>,
    next: usize,
}

/// The precomputed data of a partition.
#[derive(Debug)]
struct Partition {
    peers: Vec<Range<usize>>,
    /// The peers of the next row.
    own: usize,
    /// The place of each row in the order of the arguments; empty without one.
    places: Vec<u32>,
    /// The arguments of each row, of which equal ones count once; `None` if all count.
    keys: Option<Rows>,
    /// The blocks of an aggregate over all remaining rows.
    blocks: Option<Blocks>,
}

impl Partition {
    fn new(call: &FramedCall, what: &What, values: &[ArrayRef]) -> Result<Self> {
        let (own, window) = values.split_at(call.count().min(values.len()));
        let rows = own.first().map_or(0, |values| values.len());
        let peers = match &window[..call.keys.min(window.len())] {
            [] => std::iter::once(0..rows).collect(),
            keys => partition(keys)?.ranges(),
        };
        let keys = &own[own.len().saturating_sub(call.order.len())..];
        let places = if keys.is_empty() { Vec::new() } else { places(keys, &call.order, rows)? };
        let keys = if call.is_distinct {
            let arguments: Vec<ArrayRef> = own[..call.arguments].iter().map(canonical).collect();
            Some(row_converter(&arguments)?.convert_columns(&arguments)?)
        } else {
            None
        };
        let is_plain = !call.has_filter && places.is_empty() && keys.is_none();
        let blocks = match what {
            What::Aggregate(aggregate) if is_plain => {
                Some(Blocks::new(aggregate, &own[..call.arguments.min(own.len())])?)
            }
            _ => None,
        };
        Ok(Self { peers, own: 0, places, keys, blocks })
    }

    /// The peers of a row; rows are asked for in their order.
    fn peers_of(&mut self, row: usize) -> Range<usize> {
        while self.peers.get(self.own).is_some_and(|peers| peers.end <= row) {
            self.own += 1;
        }
        self.peers.get(self.own).cloned().unwrap_or(row..row + 1)
    }

    /// The rows that count, in the order of the arguments.
    fn chosen(&self, rest: &[Range<usize>; 3], condition: Option<&ArrayRef>) -> Vec<u32> {
        let condition = condition.and_then(|condition| condition.as_boolean_opt());
        let counts = |row: &u32| holds(condition, *row as usize);
        let rows = rest.iter().flat_map(|rows| rows.start as u32..rows.end.max(rows.start) as u32);
        let mut rows: Vec<u32> = rows.filter(counts).collect();
        if !self.places.is_empty() {
            rows.sort_unstable_by_key(|row| self.places[*row as usize]);
        }
        if let Some(keys) = &self.keys {
            // Of equal rows the first one stays.
            let mut nth: Vec<usize> = (0..rows.len()).collect();
            let key = |nth: usize| keys.row(rows[nth] as usize);
            nth.sort_unstable_by(|&a, &b| key(a).cmp(&key(b)).then(a.cmp(&b)));
            nth.dedup_by(|later, first| key(*later) == key(*first));
            nth.sort_unstable();
            return nth.into_iter().map(|nth| rows[nth]).collect();
        }
        rows
    }
}

/// The place of each row in the order of its keys. Rows with equal keys keep their order.
fn places(keys: &[ArrayRef], options: &[SortOptions], rows: usize) -> Result<Vec<u32>> {
    let compare = keys.iter().map(canonical).zip(options);
    let compare = compare.map(|(key, options)| make_comparator(&key, &key, *options));
    let compare = compare.collect::<std::result::Result<Vec<_>, _>>()?;
    let mut order: Vec<u32> = (0..rows as u32).collect();
    order.sort_by(|&a, &b| {
        let orders = compare.iter().map(|compare| compare(a as usize, b as usize));
        orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    let mut places = vec![0; rows];
    for (place, &row) in order.iter().enumerate() {
        places[row as usize] = place as u32;
    }
    Ok(places)
}

impl PartitionEvaluator for Evaluator {
    fn evaluate(&mut self, values: &[ArrayRef], frame: &Range<usize>) -> Result<ScalarValue> {
        go_on()?;
        let call = &self.call;
        let partition = match &mut self.partition {
            Some(partition) => partition,
            none => none.insert(Partition::new(call, &self.what, values)?),
        };
        let row = self.next;
        self.next += 1;
        let peers = partition.peers_of(row);
        let rest = call.excluded.rest(frame, row, &peers);
        let condition = values.get(call.arguments).filter(|_| call.has_filter);
        let Some(arguments) = values.get(..call.arguments) else {
            return internal_err!("a call lacks arguments");
        };
        match &self.what {
            What::Aggregate(aggregate) => {
                let mut accumulator = aggregate.create_accumulator()?;
                let mut is_empty = true;
                if let Some(blocks) = &partition.blocks {
                    for rows in rest.into_iter().filter(|rows| !rows.is_empty()) {
                        is_empty = false;
                        blocks.add(accumulator.as_mut(), arguments, rows)?;
                    }
                } else {
                    let rows = UInt32Array::from(partition.chosen(&rest, condition));
                    if !rows.is_empty() {
                        is_empty = false;
                        let taken = arguments.iter().map(|all| take(all, &rows, None));
                        let taken = taken.collect::<std::result::Result<Vec<_>, _>>()?;
                        accumulator.update_batch(&taken)?;
                    }
                }
                match is_empty {
                    true => aggregate.default_value(aggregate.field().data_type()),
                    false => accumulator.evaluate(),
                }
            }
            What::Nth { nth, ignores_nulls } => {
                let Some(values) = arguments.first() else {
                    return internal_err!("a value of nothing");
                };
                let mut rows = partition.chosen(&rest, condition);
                if *ignores_nulls {
                    rows.retain(|row| values.is_valid(*row as usize));
                }
                let place = match usize::try_from(nth.unsigned_abs()) {
                    Ok(0) | Err(_) => None,
                    Ok(nth_from_start) if *nth > 0 => Some(nth_from_start - 1),
                    Ok(nth_from_end) => rows.len().checked_sub(nth_from_end),
                };
                match place.and_then(|place| rows.get(place)) {
                    Some(row) => ScalarValue::try_from_array(values, *row as usize),
                    None => ScalarValue::try_from(values.data_type()),
                }
            }
        }
    }

    fn uses_window_frame(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_rows_of_a_frame() {
        let rest = |excluded: Excluded, frame: Range<usize>, row, peers: Range<usize>| {
            excluded.rest(&frame, row, &peers).into_iter().flatten().collect::<Vec<usize>>()
        };
        assert_eq!(rest(Excluded::Nothing, 2..5, 3, 3..4), [2, 3, 4]);
        assert_eq!(rest(Excluded::CurrentRow, 2..5, 3, 3..4), [2, 4]);
        assert_eq!(rest(Excluded::CurrentRow, 2..5, 7, 7..8), [2, 3, 4]);
        assert_eq!(rest(Excluded::CurrentRow, 2..5, 0, 0..1), [2, 3, 4]);
        assert_eq!(rest(Excluded::Group, 2..6, 3, 3..5), [2, 5]);
        assert_eq!(rest(Excluded::Group, 2..4, 3, 1..9), [0_usize; 0]);
        assert_eq!(rest(Excluded::Ties, 2..6, 3, 3..5), [2, 3, 5]);
        assert_eq!(rest(Excluded::Ties, 4..6, 3, 3..5), [5]);
        assert_eq!(rest(Excluded::Ties, 3..3, 3, 1..5), [0_usize; 0]);
    }
}
