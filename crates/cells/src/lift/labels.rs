//! Evaluates expressions of one dimension once over its coordinate, with DataFusion.

use std::sync::Arc;

use crate::walk::Walk;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array,
};
use arrow::compute::{SortOptions, take};
use arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{Between, BinaryExpr, Expr, Operator};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::PhysicalExpr;
use tessera_planner::dtype::DType;
use tessera_planner::ir::ConstArray;
use tessera_planner::scalar::Scalar;

use super::along::{self, Along};
use super::table::{CellTable, Column, dtype_of};

/// The positions of an axis that a filter keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Consecutive positions.
    Range { start: u64, len: u64 },
    /// Any positions, ascending.
    Take(Arc<[u64]>),
}

impl Kept {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Kept::Range { len, .. } => *len,
            Kept::Take(p) => p.len() as u64,
        }
    }

    /// From ascending positions.
    pub(crate) fn of(positions: &[u64]) -> Kept {
        match (positions.first(), positions.last()) {
            (Some(&first), Some(&last)) if last - first + 1 == positions.len() as u64 => {
                Kept::Range { start: first, len: positions.len() as u64 }
            }
            (None, _) => Kept::Range { start: 0, len: 0 },
            _ => Kept::Take(positions.into()),
        }
    }

    pub(crate) fn within(&self, inner: &Kept) -> Kept {
        match (self, inner) {
            (Kept::Range { start, .. }, Kept::Range { start: s, len }) => {
                Kept::Range { start: start + s, len: *len }
            }
            (Kept::Range { start, .. }, Kept::Take(p)) => {
                Kept::Take(p.iter().map(|p| start + p).collect())
            }
            (Kept::Take(all), Kept::Range { start, len }) => {
                Kept::of(&all[*start as usize..(start + len) as usize])
            }
            (Kept::Take(all), Kept::Take(p)) => {
                Kept::of(&p.iter().map(|&p| all[p as usize]).collect::<Vec<_>>())
            }
        }
    }

    /// The entries of a label array at the kept positions.
    pub(crate) fn apply(&self, labels: &ArrayRef) -> Result<ArrayRef> {
        match self {
            Kept::Range { start, len } => Ok(labels.slice(*start as usize, *len as usize)),
            Kept::Take(p) => Ok(take(labels, &UInt64Array::from(p.to_vec()), None)?),
        }
    }
}

/// Plans an expression for evaluation: some functions (`coalesce`, `now`) must be simplified first.
pub(crate) fn physical(
    state: &SessionState,
    expr: Expr,
    schema: &DFSchema,
) -> Result<Arc<dyn PhysicalExpr>> {
    let expr = super::nan::expression(expr, schema)?;
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(schema.clone()))
        .with_config_options(Arc::clone(state.config_options()))
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let expr = ExprSimplifier::new(context).simplify(expr)?;
    state.create_physical_expr(expr, schema)
}

/// The labels of a table under filters on its dimensions.
#[derive(Debug, Clone)]
pub(crate) struct Labels<'a> {
    pub(crate) table: &'a CellTable,
    pub(crate) state: &'a SessionState,
    /// One entry per axis.
    pub(crate) kept: Vec<Kept>,
}

impl<'a> Labels<'a> {
    pub(crate) fn new(table: &'a CellTable, state: &'a SessionState) -> Self {
        let kept = table.axes.iter().map(|a| Kept::Range { start: 0, len: a.len }).collect();
        Self { table, state, kept }
    }

    /// Lengths of the axes after the filters.
    pub(crate) fn shape(&self) -> Vec<u64> {
        self.kept.iter().map(Kept::len).collect()
    }

    /// Evaluates an expression of labels of one axis (or of none: one value) over the kept positions.
    pub(crate) fn evaluate(&self, expr: &Expr, axis: Option<usize>) -> Result<ArrayRef> {
        let all = axis.map_or(1, |a| self.kept[a].len());
        self.evaluate_part(expr, axis, 0, all)
    }

    /// As [`Self::evaluate`], over some of the kept positions.
    fn evaluate_part(
        &self,
        expr: &Expr,
        axis: Option<usize>,
        from: u64,
        rows: u64,
    ) -> Result<ArrayRef> {
        let named = expr.column_refs();
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (i, column) in self.table.columns.iter().enumerate() {
            let field = self.table.schema.field(i);
            if let Column::Label { axis: a, values } = column
                && Some(*a) == axis
                && named.iter().any(|c| c.name == *field.name())
            {
                let part = self.kept[*a].within(&Kept::Range { start: from, len: rows });
                fields.push(field.clone());
                arrays.push(values.kept(&part)?.array(self.state)?);
            }
        }
        let rows = rows as usize;
        let schema = Arc::new(Schema::new(fields));
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema.clone(), arrays, &options)?;
        let bare = expr
            .clone()
            .map_up(|e| match e {
                Expr::Column(mut c) => {
                    c.relation = None;
                    Ok(Transformed::yes(Expr::Column(c)))
                }
                e => Ok(Transformed::no(e)),
            })?
            .data;
        let schema = DFSchema::try_from(schema.as_ref().clone())?;
        let physical = physical(self.state, bare, &schema)?;
        physical.evaluate(&batch)?.into_array(rows)
    }

    /// Narrows an axis to the positions for which the filter is true.
    pub(crate) fn filter(&mut self, filter: &Expr, axis: usize) -> Result<()> {
        let is_position = |column: &Expr| {
            let Some(Column::Label { values, .. }) = self.table.column(column) else {
                return false;
            };
            matches!(values, Along::Positions { .. })
        };
        for part in parts(filter, &is_position) {
            let all = self.kept[axis].len();
            let kept = select(all, part.is_monotone, self.state, |from, rows| {
                self.evaluate_part(&part.condition, Some(axis), from, rows)
            })?;
            self.kept[axis] = self.kept[axis].within(&kept);
        }
        Ok(())
    }
}

pub(crate) struct Part {
    pub(crate) condition: Expr,
    /// True if the condition compares a position with a constant, so that it changes at most once along the dimension.
    pub(crate) is_monotone: bool,
}

pub(crate) fn parts(condition: &Expr, is_position: &dyn Fn(&Expr) -> bool) -> Vec<Part> {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq};
    let is_fixed = |e: &Expr| e.column_refs().is_empty() && !e.is_volatile();
    let compares = |left: &Expr, right: &Expr| {
        is_position(left) && is_fixed(right) || is_fixed(left) && is_position(right)
    };
    let whole = |is_monotone| vec![Part { condition: condition.clone(), is_monotone }];
    let both = |low: Expr, high: Expr| {
        [low, high].map(|condition| Part { condition, is_monotone: true }).into()
    };
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Lt | LtEq | Gt | GtEq, right }) => {
            whole(compares(left, right))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Eq, right }) if compares(left, right) => {
            let (left, right) = (&**left, &**right);
            both(left.clone().gt_eq(right.clone()), left.clone().lt_eq(right.clone()))
        }
        Expr::Between(Between { expr, negated: false, low, high })
            if is_position(expr) && is_fixed(low) && is_fixed(high) =>
        {
            let (expr, low, high) = (&**expr, &**low, &**high);
            both(expr.clone().gt_eq(low.clone()), expr.clone().lt_eq(high.clone()))
        }
        _ => whole(false),
    }
}

/// The positions, out of `all`, for which a condition is true; `met` evaluates it over a range.
pub(crate) fn select(
    all: u64,
    is_monotone: bool,
    state: &SessionState,
    met: impl Fn(u64, u64) -> Result<ArrayRef>,
) -> Result<Kept> {
    if !is_monotone || all <= BLOCK {
        let mut selection = Selection::default();
        // The condition is evaluated for no positions too, so that errors are reported alike.
        for block in 0..all.div_ceil(BLOCK).max(1) {
            super::go_on()?;
            let from = block * BLOCK;
            selection.add(met(from, BLOCK.min(all - from))?.as_boolean());
            along::check_kept(selection.positions.len() as u64, state)?;
        }
        return Ok(selection.kept());
    }
    let is_met = |at: u64| {
        let met = met(at, 1)?;
        let met = met.as_boolean();
        Ok::<_, DataFusionError>(met.is_valid(0) && met.value(0))
    };
    let first = is_met(0)?;
    if first == is_met(all - 1)? {
        return Ok(Kept::Range { start: 0, len: if first { all } else { 0 } });
    }
    // Bisects between the last position that is like the first, and the first of the others.
    let (mut like, mut other) = (0, all - 1);
    while other - like > 1 {
        let middle = like + (other - like) / 2;
        if is_met(middle)? == first { like = middle } else { other = middle }
    }
    Ok(match first {
        true => Kept::Range { start: 0, len: other },
        false => Kept::Range { start: other, len: all - other },
    })
}

/// Positions per evaluation of a condition.
pub(super) const BLOCK: u64 = 1 << 18;

/// Accumulates the positions for which a condition is true.
#[derive(Debug, Default)]
struct Selection {
    seen: u64,
    /// The range, while the positions are consecutive.
    first: u64,
    len: u64,
    /// All positions, once they are not consecutive.
    positions: Vec<u64>,
}

impl Selection {
    /// Adds the results for the next positions; NULL is not true.
    fn add(&mut self, met: &BooleanArray) {
        for i in (0..met.len()).filter(|&i| met.is_valid(i) && met.value(i)) {
            let position = self.seen + i as u64;
            if self.len == 0 {
                self.first = position;
            }
            if self.positions.is_empty() && position == self.first + self.len {
                self.len += 1;
                continue;
            }
            if self.positions.is_empty() {
                self.positions.extend(self.first..self.first + self.len);
            }
            self.positions.push(position);
            self.len += 1;
        }
        self.seen += met.len() as u64;
    }

    fn kept(self) -> Kept {
        match self.positions.is_empty() {
            true => Kept::Range { start: self.first, len: self.len },
            false => Kept::Take(self.positions.into()),
        }
    }
}

/// Labels with canonical zero and NaN, as keys in SQL: -0.0 equals 0.0, and all NaNs are equal.
pub(crate) fn canonical(labels: &ArrayRef) -> ArrayRef {
    match labels.data_type() {
        DataType::Float32 => {
            let one = |v: f32| if v.is_nan() { f32::NAN } else { v + 0.0 };
            Arc::new(labels.as_primitive::<Float32Type>().unary::<_, Float32Type>(one))
        }
        DataType::Float64 => {
            let one = |v: f64| if v.is_nan() { f64::NAN } else { v + 0.0 };
            Arc::new(labels.as_primitive::<Float64Type>().unary::<_, Float64Type>(one))
        }
        _ => labels.clone(),
    }
}

/// A converter of [`canonical`] columns to rows that compare as in `ORDER BY`: ascending, NULL last.
pub(crate) fn row_converter(columns: &[ArrayRef]) -> Result<RowConverter> {
    let options = SortOptions { descending: false, nulls_first: false };
    let field = |c: &ArrayRef| SortField::new_with_options(c.data_type().clone(), options);
    Ok(RowConverter::new(columns.iter().map(field).collect())?)
}

/// Positions of one axis, grouped by equal keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Factors {
    /// The group of each position; groups are numbered by their first positions.
    pub(crate) codes: Vec<u32>,
    /// The first position of each group.
    pub(crate) first: Vec<u64>,
}

impl Factors {
    /// Groups the rows of columns of one length, as SQL's GROUP BY does: NULLs are one group, NaNs another, and
    /// the two zeros a third.
    pub(crate) fn of(columns: &[ArrayRef]) -> Result<Self> {
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        let rows = row_converter(&columns)?.convert_columns(&columns)?;
        let mut groups = std::collections::BTreeMap::new();
        let mut out = Self { codes: Vec::with_capacity(rows.num_rows()), first: Vec::new() };
        for (i, row) in rows.iter().enumerate() {
            let next = out.first.len() as u32;
            let code = *groups.entry(row.owned()).or_insert(next);
            if code == next {
                out.first.push(i as u64);
            }
            out.codes.push(code);
        }
        Ok(out)
    }

    /// Reorders the groups of these columns by the first occurrence of their keys in `origin`, which has them all;
    /// groups with a NULL in their keys come last, by their keys.
    pub(crate) fn ordered(mut self, columns: &[ArrayRef], origin: &[ArrayRef]) -> Result<Self> {
        let has_null = |&p: &u64| columns.iter().any(|c| c.is_null(p as usize));
        let is_own = columns.iter().zip(origin).all(|(own, origin)| Arc::ptr_eq(own, origin));
        if is_own && !self.first.iter().any(has_null) {
            return Ok(self);
        }
        let converter = row_converter(columns)?;
        let rows = |columns: &[ArrayRef]| {
            converter.convert_columns(&columns.iter().map(canonical).collect::<Vec<_>>())
        };
        let keys = rows(columns)?;
        let mut places = std::collections::BTreeMap::new();
        for (place, row) in rows(origin)?.iter().enumerate() {
            places.entry(row.owned()).or_insert(place);
        }
        let mut order: Vec<usize> = (0..self.first.len()).collect();
        order.sort_by_key(|&code| {
            let first = self.first[code];
            let key = keys.row(first as usize).owned();
            match has_null(&first) {
                true => (true, 0, Some(key)),
                false => (false, places.get(&key).copied().unwrap_or(usize::MAX), None),
            }
        });
        self.permute(&order);
        Ok(self)
    }

    /// Reorders the groups of these columns by their keys: ascending, NULL last.
    pub(crate) fn sorted(mut self, columns: &[ArrayRef]) -> Result<Self> {
        let columns: Vec<ArrayRef> = columns.iter().map(canonical).collect();
        let keys = row_converter(&columns)?.convert_columns(&columns)?;
        let mut order: Vec<usize> = (0..self.first.len()).collect();
        order.sort_by_key(|&code| keys.row(self.first[code] as usize));
        self.permute(&order);
        Ok(self)
    }

    fn permute(&mut self, order: &[usize]) {
        let mut new = vec![0; order.len()];
        for (place, &code) in order.iter().enumerate() {
            new[code] = place as u32;
        }
        self.first = order.iter().map(|&code| self.first[code]).collect();
        self.codes.iter_mut().for_each(|code| *code = new[*code as usize]);
    }

    /// The groups restricted to the kept positions of their axis, in the same order.
    pub(crate) fn kept(&self, kept: &Kept) -> Self {
        let codes: Vec<u32> = match kept {
            Kept::Range { start, len } => {
                self.codes[*start as usize..(start + len) as usize].to_vec()
            }
            Kept::Take(p) => p.iter().map(|&p| self.codes[p as usize]).collect(),
        };
        let mut first = std::collections::BTreeMap::new();
        for (i, &code) in codes.iter().enumerate() {
            first.entry(code).or_insert(i as u64);
        }
        let new: std::collections::BTreeMap<u32, u32> =
            first.keys().zip(0..).map(|(&old, new)| (old, new)).collect();
        Self {
            codes: codes.iter().map(|old| new[old]).collect(),
            first: first.into_values().collect(),
        }
    }

    /// True if every position is its own group, in the order of the positions.
    pub(crate) fn is_identity(&self) -> bool {
        self.codes.iter().enumerate().all(|(i, &code)| code as usize == i)
    }

    /// Number of positions in each group.
    pub(crate) fn sizes(&self) -> Vec<i64> {
        let mut sizes = vec![0; self.first.len()];
        for &c in &self.codes {
            sizes[c as usize] += 1;
        }
        sizes
    }
}

/// An Arrow array as a constant of that shape in the plan; `None` for types that the IR does not support.
pub(crate) fn constant(array: &ArrayRef, shape: &[u64]) -> Option<ConstArray> {
    let dtype = dtype_of(array.data_type())?;
    let int = |v: i128| Scalar::from_i128(dtype, v);
    let values: Vec<Option<Scalar>> = (0..array.len())
        .map(|i| {
            if array.is_null(i) {
                return Some(None);
            }
            let value = match dtype {
                DType::Bool => Some(Scalar::bool(array.as_boolean().value(i))),
                DType::Int8 => int(array.as_primitive::<Int8Type>().value(i).into()),
                DType::Int16 => int(array.as_primitive::<Int16Type>().value(i).into()),
                DType::Int32 => int(array.as_primitive::<Int32Type>().value(i).into()),
                DType::Int64 => int(array.as_primitive::<Int64Type>().value(i).into()),
                DType::UInt8 => int(array.as_primitive::<UInt8Type>().value(i).into()),
                DType::UInt16 => int(array.as_primitive::<UInt16Type>().value(i).into()),
                DType::UInt32 => int(array.as_primitive::<UInt32Type>().value(i).into()),
                DType::UInt64 => int(array.as_primitive::<UInt64Type>().value(i).into()),
                DType::Float32 => {
                    let v = array.as_primitive::<Float32Type>().value(i);
                    Some(Scalar::from_le_bytes(dtype, &v.to_le_bytes()))
                }
                DType::Float64 => Some(Scalar::f64(array.as_primitive::<Float64Type>().value(i))),
                DType::Datetime(_) => {
                    int(array.as_primitive::<TimestampMicrosecondType>().value(i).into())
                }
            };
            value.map(Some)
        })
        .collect::<Option<_>>()?;
    Some(ConstArray::new(dtype, shape, &values))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::cell::Cell;

    fn state(memory: u64) -> SessionState {
        crate::lift::session_state(memory).unwrap()
    }

    #[test]
    fn positions_that_are_kept_are_bounded() {
        let met = |from, rows| {
            let met: BooleanArray = (from..from + rows).map(|p: u64| Some(p & 1 == 0)).collect();
            Ok(Arc::new(met) as ArrayRef)
        };
        let kept = select(1 << 40, false, &state(0), met);
        let error = crate::lift::error::plan(kept.unwrap_err());
        assert_eq!(error.code(), "memory_exceeded", "{error}");
    }

    #[test]
    fn monotone_conditions_take_few_evaluations() {
        let all = 4_000_000_000_u64;
        let kept = |is_met: &dyn Fn(u64) -> bool| {
            let steps = Cell::new(0);
            let kept = select(all, true, &state(1 << 30), |from, rows| {
                steps.set(steps.get() + 1);
                let met: BooleanArray = (from..from + rows).map(|p| Some(is_met(p))).collect();
                Ok(Arc::new(met) as ArrayRef)
            });
            assert!(steps.get() < 40, "{}", steps.get());
            kept.unwrap()
        };
        let range = |start, len| Kept::Range { start, len };
        assert_eq!(kept(&|p| p < 17), range(0, 17));
        assert_eq!(kept(&|p| p >= 17), range(17, all - 17));
        assert_eq!(kept(&|p| p == all - 1), range(all - 1, 1));
        assert_eq!(kept(&|_| true), range(0, all));
        assert_eq!(kept(&|_| false), range(0, 0));
    }

    #[test]
    fn results_of_blocks_are_joined() {
        let all = 3 * BLOCK + 5;
        let kept = |is_met: &dyn Fn(u64) -> Option<bool>| {
            let met = |from, rows| {
                let met: BooleanArray = (from..from + rows).map(is_met).collect();
                Ok(Arc::new(met) as ArrayRef)
            };
            select(all, false, &state(1 << 30), met).unwrap()
        };
        let last = all - 2;
        assert_eq!(kept(&|p| Some(p >= last)), Kept::Range { start: last, len: 2 });
        assert_eq!(
            kept(&|p| (p % BLOCK == 1).then_some(true)),
            Kept::Take([1, BLOCK + 1, 2 * BLOCK + 1, 3 * BLOCK + 1].into())
        );
        assert_eq!(kept(&|_| None), Kept::Range { start: 0, len: 0 });
    }
}
