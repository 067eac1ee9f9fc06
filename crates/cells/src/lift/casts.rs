//! Casts: the names of types, and names of arguments that differ only by a cast.
//!
//! DataFusion knows SQL's names of types; NumPy's and DuckDB's are added, and `int8` has 8 bits, as in tensor expressions.
//! `timestamptz` is an instant, so it has a zone: UTC.
//!
//! DataFusion gives `sum(v::double)` and `sum(v)` one name, as its names omit casts, and rejects a block with both.
//! Here an argument with a cast, and a key of OVER, gets an alias that shows it: `sum("CAST(v AS Float64)")`.

use crate::walk::Walk;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef, TimeUnit};
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawWindowExpr, TypePlanner,
};
use sqlparser::ast;
use std::sync::Arc;

/// NumPy's names of types, and DuckDB's of integers.
#[derive(Debug)]
pub(super) struct NumpyTypes;

impl TypePlanner for NumpyTypes {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> Result<Option<FieldRef>> {
        let found = match sql_type {
            ast::DataType::Int8(None) => DataType::Int8,
            ast::DataType::Int16 => DataType::Int16,
            ast::DataType::Int32 => DataType::Int32,
            ast::DataType::Int64 => DataType::Int64,
            ast::DataType::UInt8 | ast::DataType::UTinyInt => DataType::UInt8,
            ast::DataType::UInt16 | ast::DataType::USmallInt => DataType::UInt16,
            ast::DataType::UInt32 => DataType::UInt32,
            ast::DataType::UInt64 | ast::DataType::UBigInt => DataType::UInt64,
            ast::DataType::HugeInt => DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
            ast::DataType::Custom(name, of)
                if of.is_empty() && name.to_string().eq_ignore_ascii_case("uinteger") =>
            {
                DataType::UInt32
            }
            ast::DataType::Float32 => DataType::Float32,
            ast::DataType::Float64 => DataType::Float64,
            ast::DataType::Timestamp(
                precision,
                ast::TimezoneInfo::Tz | ast::TimezoneInfo::WithTimeZone,
            ) => {
                let unit = match precision {
                    Some(0) => TimeUnit::Second,
                    Some(3) => TimeUnit::Millisecond,
                    Some(6) => TimeUnit::Microsecond,
                    None | Some(9) => TimeUnit::Nanosecond,
                    Some(_) => return Ok(None),
                };
                DataType::Timestamp(unit, Some("UTC".into()))
            }
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(Field::new("", found, true))))
    }
}

/// Aliases the arguments of aggregates and window functions, and the keys of windows.
#[derive(Debug)]
pub(super) struct Casts;

impl ExprPlanner for Casts {
    fn plan_aggregate(
        &self,
        mut call: RawAggregateExpr,
    ) -> Result<PlannerResult<RawAggregateExpr>> {
        super::go_on()?;
        call.args = call.args.into_iter().map(named).collect::<Result<_>>()?;
        if let Some(filter) = call.filter {
            call.filter = Some(Box::new(named(*filter)?));
        }
        Ok(PlannerResult::Original(call))
    }

    fn plan_window(&self, mut call: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        call.args = call.args.into_iter().map(named).collect::<Result<_>>()?;
        call.partition_by = call.partition_by.into_iter().map(named).collect::<Result<_>>()?;
        for key in &mut call.order_by {
            key.expr = named(std::mem::take(&mut key.expr))?;
        }
        if let Some(filter) = call.filter {
            call.filter = Some(Box::new(named(*filter)?));
        }
        Ok(PlannerResult::Original(call))
    }
}

/// Aliases the expression if it contains a cast of a column.
fn named(expr: Expr) -> Result<Expr> {
    let has_cast = expr.any(|e| Ok(matches!(e, Expr::Cast(_) | Expr::TryCast(_))))?;
    if !has_cast || expr.column_refs().is_empty() {
        return Ok(expr);
    }
    let name = expr.to_string();
    Ok(expr.alias(name))
}

pub(super) fn bare(mut expr: &Expr) -> &Expr {
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    expr
}
