//! Cell blocks that return labelled tensors: decides which columns are dimensions, and whether rows are needed.
//!
//! ```text
//! SELECT [lat], avg(t2m) AS m … GROUP BY lat
//!   the same block with `lat` for `[lat]` is planned
//!   its plan is columns of one scan of groups:  dense, the scan's tensors are the result
//!   anything else:                              rows, which an island assembles
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{
    DataType, Float64Type, Int64Type, TimeUnit, TimestampMicrosecondType, UInt64Type,
};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan};
use sqlparser::ast::{Expr, GroupByExpr, Query, Select, SelectItem, Spanned, Value};
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::{Calendar, DType};

use super::along::Along;
use super::labels::Factors;
use super::names::name_of;
use super::relations::plan_cells_in;
use super::scan::ScanSource;
use super::table::{ColumnOrigin, calendar, dtype_of};
use super::{CellPlan, Density, Planner, ScanColumn, TensorScan, error, order};
use tessera_frontend::ast;
use tessera_frontend::bind::Context;
use tessera_frontend::cells::{Dense, DenseKey, Labelled};
use tessera_frontend::error::{BindError, Error, Position};
use tessera_frontend::island::{RowsColumn, RowsToTensor, Site};
use tessera_frontend::scope;

/// Plans a cell block as tensors. `because` is the clause that made it a cell block.
///
/// Dimensions are the items `[dim]`; without any, the items that are keys of GROUP BY; without these, the columns that
/// are labels, one for each dimension of a tensor. A block of one item and no keys yields its rows as one unnamed
/// dimension.
pub(crate) fn labelled(
    query: &Query,
    text: u64,
    context: &mut Context<'_>,
    planner: &Planner<'_>,
    because: &str,
) -> Result<Labelled, Error> {
    let mut plain = query.clone();
    let written = columns(&mut plain)?;
    let plan = plan_cells_in(&plain, text, context, planner, because, true)?;
    let position = Position::of_span(query.span());
    let (columns, names) = match written {
        Some(written) => written,
        None => by_labels(&plain, &plan, planner.rows.get()?)?,
    };
    if plan.logical.schema().fields().len() != columns.len() {
        return Err(Error::Cells {
            code: "ambiguous_dims",
            message: format!(
                "the block has {} columns, but names {}",
                plan.logical.schema().fields().len(),
                columns.len()
            ),
            position,
            hint: Some("write each column, dimensions in brackets".to_string()),
        });
    }
    let dense = match planner.density {
        Density::Auto => dense(&plan, &columns),
        Density::Off => None,
    };
    let nowhere = Site { text, start: (0, 0), end: (0, 0) };
    let site = scope::site(text, query).unwrap_or(nowhere);
    let rows = RowsToTensor { plan: Arc::new(plan), columns, site, query: Arc::new(query.clone()) };
    Ok(Labelled { rows, dense, names })
}

/// The names of values; `None` for unnamed ones.
type Names = Vec<Option<Arc<str>>>;

/// The roles of a block's columns, and the names of its values.
type Columns = (Vec<RowsColumn>, Names);

/// The error for dimensions that are ambiguous or that the block cannot have.
fn unclear(message: String, position: Option<Position>) -> Error {
    Error::cells("ambiguous_dims", message, position)
        .with_hint("write dimensions in brackets, as in `SELECT [lat], avg(v) …`")
}

/// The columns by the plan: labels of a dimension are a dimension, all others are values.
fn by_labels(query: &Query, plan: &CellPlan, state: &SessionState) -> Result<Columns, Error> {
    let position = Position::of_span(query.span());
    let fields = plan.logical.schema().fields();
    let mut own: Names = fields.iter().map(|f| Some(f.name().as_str().into())).collect();
    let mut texts: Names = vec![None; own.len()];
    if let Some(block) = scope::innermost(query)
        && block.projection.len() == own.len()
    {
        texts = block.projection.iter().map(text_of).collect();
        // Expressions have no name of their own, although DataFusion assigns one.
        own = block
            .projection
            .iter()
            .zip(own)
            .map(|(item, name)| {
                own_name(item).or(match item {
                    SelectItem::UnnamedExpr(_) => None,
                    _ => name,
                })
            })
            .collect();
    }
    if own.len() == 1 {
        // The rows become one dimension.
        let shown = own[0].clone().or(texts.remove(0)).unwrap_or_else(|| "v0".into());
        return Ok((vec![RowsColumn::Value(shown)], own));
    }
    let labels = order::labels(&plan.logical, state).map_err(error::plan)?;
    let (mut columns, mut names, mut axes) = (Vec::new(), Names::new(), BTreeSet::new());
    for (at, (name, label)) in own.into_iter().zip(labels).enumerate() {
        let is_key = label.is_some_and(|(axis, values)| {
            let is_unique = match values {
                Along::Positions { .. } => true,
                Along::Values(values) => Factors::of(&[values]).is_ok_and(|f| f.is_identity()),
            };
            is_unique && axes.insert(axis)
        });
        if is_key {
            let name = name.unwrap_or_else(|| format!("dim_{at}").into());
            columns.push(RowsColumn::Key(name));
        } else {
            let shown = name.clone().or(texts[at].take());
            let shown = shown.unwrap_or_else(|| format!("v{}", names.len()).into());
            columns.push(RowsColumn::Value(shown));
            names.push(name);
        }
    }
    let keys = columns.iter().filter(|c| matches!(c, RowsColumn::Key(_))).count();
    if keys == 0 && columns.len() > 1 {
        return Err(unclear("no column is marked as a dimension".into(), position));
    }
    if keys == columns.len() {
        return Err(unclear("the block has no item besides its dimensions".into(), position));
    }
    Ok((columns, names))
}

fn own_name(item: &SelectItem) -> Option<Arc<str>> {
    Some(name_of(item)?.value.as_str().into())
}

fn text_of(item: &SelectItem) -> Option<Arc<str>> {
    match item {
        SelectItem::UnnamedExpr(expr) => ast::text(expr).map(Arc::from),
        _ => None,
    }
}

/// For each column of a plan the distinct labels that it can have, if it derives from labels.
pub(crate) fn origins(plan: &CellPlan, state: &SessionState) -> Option<Vec<Option<ArrayRef>>> {
    let labels = order::labels(&plan.logical, state).ok()?;
    let different = |values: Along| {
        let values = values.array(state).ok()?;
        let factors = Factors::of(std::slice::from_ref(&values)).ok()?;
        take(&values, &UInt64Array::from(factors.first), None).ok()
    };
    Some(labels.into_iter().map(|known| known.and_then(|(_, v)| different(v))).collect())
}

/// The role of each item of the block, whose brackets are removed; `None` if only the plan decides.
fn columns(query: &mut Query) -> Result<Option<Columns>, Error> {
    let position = Position::of_span(query.span());
    let Some(block) = scope::innermost_mut(query) else { return Ok(None) };
    let bracketed = block.projection.iter().any(|item| ast::bracket_dim(item).is_some());
    let keys: Vec<bool> = if bracketed {
        block.projection.iter().map(|item| ast::bracket_dim(item).is_some()).collect()
    } else {
        let grouped = grouped(block);
        block.projection.iter().enumerate().map(|(at, item)| grouped(at, item)).collect()
    };
    if !keys.contains(&true) {
        return Ok(None);
    }
    if !keys.contains(&false) {
        return Err(unclear("the block has no item besides its dimensions".into(), position));
    }
    let (mut columns, mut names) = (Vec::new(), Names::new());
    let mut given = BTreeSet::new();
    for (item, is_key) in block.projection.iter_mut().zip(keys) {
        if let Some((dim, alias)) = ast::bracket_dim(item) {
            let expr = Expr::Identifier(dim.clone());
            let alias = alias.cloned();
            *item = match alias {
                Some(alias) => SelectItem::ExprWithAlias { expr, alias },
                None => SelectItem::UnnamedExpr(expr),
            };
        }
        if !matches!(item, SelectItem::ExprWithAlias { .. } | SelectItem::UnnamedExpr(_)) {
            return Err(unclear(
                format!("`{item}` does not mark which columns are dimensions"),
                Position::of_span(item.span()),
            ));
        }
        let own = own_name(item);
        // GROUP BY would not distinguish a dimension from a result of the same name.
        if let Some(name) = &own
            && bracketed
            && !given.insert(name.clone())
        {
            return Err(Error::Bind {
                error: BindError::DuplicateName { kind: "item", name: name.to_string() },
                position: Position::of_span(item.span()),
            });
        }
        if is_key {
            let name = own.unwrap_or_else(|| format!("dim_{}", columns.len()).into());
            if columns.contains(&RowsColumn::Key(name.clone())) {
                return Err(unclear(format!("the dimension `{name}` is given twice"), position));
            }
            columns.push(RowsColumn::Key(name));
        } else {
            let name = own.clone().or(text_of(item));
            let name = name.unwrap_or_else(|| format!("v{}", names.len()).into());
            columns.push(RowsColumn::Value(name));
            names.push(own);
        }
    }
    Ok(Some((columns, names)))
}

/// True if an item is a key of GROUP BY: the same expression, its alias, or its number.
fn grouped(block: &Select) -> impl Fn(usize, &SelectItem) -> bool + use<> {
    let keys: Vec<Expr> = match &block.group_by {
        GroupByExpr::Expressions(keys, _) => keys.clone(),
        GroupByExpr::All(_) => Vec::new(),
    };
    move |at, item| {
        let Some((expr, alias)) = ast::expr_of(item) else { return false };
        let last = |e: &Expr| match e {
            Expr::Identifier(name) => Some(name.value.to_lowercase()),
            Expr::CompoundIdentifier(parts) => parts.last().map(|p| p.value.to_lowercase()),
            _ => None,
        };
        keys.iter().any(|key| {
            let is_number = matches!(key, Expr::Value(v)
                if matches!(&v.value, Value::Number(n, _) if *n == (at + 1).to_string()));
            let is_alias = alias.is_some_and(|a| last(key) == Some(a.value.to_lowercase()));
            let is_name = last(key).is_some() && last(key) == last(expr);
            key == expr || is_number || is_alias || is_name
        })
    }
}

/// The block as tensors, if its plan only selects columns of one scan.
fn dense(plan: &CellPlan, columns: &[RowsColumn]) -> Option<Dense> {
    let (scan, fields) = source(&plan.logical, &plan.scans).filter(|(s, _)| s.top.is_none())?;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (at, (column, field)) in columns.iter().zip(&fields).enumerate() {
        let origin = plan.orders.get(at).and_then(Option::as_ref);
        match (column, scan.columns.get(*field)?) {
            (RowsColumn::Key(_), ScanColumn::Label { axis, values }) => {
                if keys.iter().any(|known: &DenseKey| known.axis == *axis) {
                    return None;
                }
                let calendar = calendar(scan.schema.field(*field));
                keys.push(DenseKey {
                    axis: *axis,
                    labels: coordinate(values, calendar)?,
                    is_source: origin.is_some_and(|of| of.labels.is_some()),
                    attrs: origin.map(ColumnOrigin::label_attrs).unwrap_or_default(),
                });
            }
            (RowsColumn::Key(_), ScanColumn::Position { axis, start }) => {
                if keys.iter().any(|known: &DenseKey| known.axis == *axis) {
                    return None;
                }
                let (start, len) = (*start as i64, *scan.shape.get(*axis)? as i64);
                keys.push(DenseKey {
                    axis: *axis,
                    labels: CoordValues::Int(DType::Int64, (start..start + len).collect()),
                    is_source: origin.is_some_and(|of| of.labels.is_some()),
                    attrs: origin.map(ColumnOrigin::label_attrs).unwrap_or_default(),
                });
            }
            (RowsColumn::Value(_), ScanColumn::Cells(root)) => values.push(*root),
            _ => return None,
        }
    }
    // An axis without a key must have one position, or rows would collide: assembly reports which.
    let is_covered = |axis: usize| scan.shape[axis] == 1 || keys.iter().any(|k| k.axis == axis);
    if !(0..scan.shape.len()).all(is_covered) || keys.iter().any(|key| repeats(&key.labels)) {
        return None;
    }
    // A 0-d tensor cannot represent one row that may be absent.
    if keys.is_empty() {
        return None;
    }
    Some(Dense {
        rooted: scan.rooted.clone(),
        shape: scan.shape.clone(),
        presence: scan.presence,
        keys,
        values,
    })
}

/// The scan below a plan that only selects columns, and the scan's field of each column.
fn source<'s>(plan: &LogicalPlan, scans: &'s [TensorScan]) -> Option<(&'s TensorScan, Vec<usize>)> {
    match plan {
        LogicalPlan::Projection(p) => {
            let (scan, fields) = source(&p.input, scans)?;
            let places = p
                .expr
                .iter()
                .map(|e| {
                    let mut e = e;
                    while let PlanExpr::Alias(alias) = e {
                        e = &alias.expr;
                    }
                    let PlanExpr::Column(column) = e else { return None };
                    let at = p.input.schema().index_of_column(column).ok()?;
                    fields.get(at).copied()
                })
                .collect::<Option<Vec<_>>>()?;
            Some((scan, places))
        }
        LogicalPlan::SubqueryAlias(alias) => source(&alias.input, scans),
        // Labels have an order of their own, independent of that of the rows.
        LogicalPlan::Sort(sort) if sort.fetch.is_none() => source(&sort.input, scans),
        LogicalPlan::TableScan(table)
            if table.source.is::<ScanSource>()
                && table.filters.is_empty()
                && table.fetch.is_none() =>
        {
            let name = table.table_name.table();
            let scan = scans.iter().find(|scan| scan.name == name)?;
            let fields = match &table.projection {
                Some(fields) => fields.clone(),
                None => (0..scan.columns.len()).collect(),
            };
            Some((scan, fields))
        }
        _ => None,
    }
}

/// Labels as a coordinate; `None` for types that coordinates do not support, and for NULLs.
pub(crate) fn coordinate(array: &ArrayRef, calendar: Option<Calendar>) -> Option<CoordValues> {
    if array.null_count() > 0 {
        return None;
    }
    if let Some(calendar) = calendar
        && calendar != Calendar::Standard
    {
        return Some(CoordValues::Time(
            calendar,
            array.as_primitive::<Int64Type>().values()[..].into(),
        ));
    }
    Some(match array.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let texts = cast(array, &DataType::Utf8).ok()?;
            CoordValues::Text(texts.as_string::<i32>().iter().flatten().map(String::from).collect())
        }
        DataType::Timestamp(_, None) => {
            let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
            let times = cast(array, &micros).ok()?;
            let times = times.as_primitive::<TimestampMicrosecondType>();
            CoordValues::Time(Calendar::Standard, times.values()[..].into())
        }
        DataType::UInt64 => {
            let values = array.as_primitive::<UInt64Type>();
            // The bits of an unsigned 64-bit label are stored in an `i64`.
            CoordValues::Int(DType::UInt64, values.values().iter().map(|&v| v as i64).collect())
        }
        other => match dtype_of(other)? {
            d if d.is_integer() => {
                let wide = cast(array, &DataType::Int64).ok()?;
                CoordValues::Int(d, wide.as_primitive::<Int64Type>().values()[..].into())
            }
            d if d.is_float() => {
                let wide = cast(array, &DataType::Float64).ok()?;
                CoordValues::Float(d, wide.as_primitive::<Float64Type>().values()[..].into())
            }
            _ => return None,
        },
    })
}

/// True if two labels are equal.
fn repeats(labels: &CoordValues) -> bool {
    let twice = |mut keys: Vec<i64>| {
        keys.sort_unstable();
        keys.windows(2).any(|w| w[0] == w[1])
    };
    match labels {
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => twice(v.to_vec()),
        CoordValues::Float(_, v) => twice(
            // Canonical zero and NaN.
            v.iter()
                .map(|&x| if x.is_nan() { i64::MAX } else { (x + 0.0).to_bits() as i64 })
                .collect(),
        ),
        CoordValues::Unreadable(_) => false,
        CoordValues::Text(v) => {
            let mut texts: Vec<&String> = v.iter().collect();
            texts.sort_unstable();
            texts.windows(2).any(|w| w[0] == w[1])
        }
    }
}
