//! Window functions along one dimension.
//!
//! ```text
//! sum(t) OVER (PARTITION BY lat ORDER BY time ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)
//!   the other axes are partitions, the line is time: Window(sum, before 2, after 0) along it
//! lag(t, 1)            positions -1 0 1 2 … of the line, masked before its start
//! sum(t), no frame     a running sum: Scan
//! no ORDER BY          a reduction of the partition, broadcast over it
//! ```
//! The line's labels differ, so it has no peers: RANGE and GROUPS frames to the current row are frames of rows. Where
//! PARTITION BY groups positions of the line (`month(time)`), each group is a line of its own. [`kept`] handles WHERE
//! on values.

mod frame;
mod kept;
mod line;

use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, NullTreatment, WindowFunction,
    WindowFunctionDefinition,
};
use datafusion::logical_expr::{Expr, Window};
use tessera_planner::build::Builder;
use tessera_planner::dtype::DType;
use tessera_planner::ir::{ConstArray, MapOp, NodeId, ScanKind};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::super::lower::{Reason, refused};
use super::super::markers::FRAME;
use super::super::relation::{Column, Relation};
use super::super::table::dtype_of;
use super::aggregate::{Fate, Reduction, lengths};
use super::{Dense, flags, gather};
use frame::Span;
use line::{Line, Parts, RowPosition};

impl Dense<'_> {
    pub(super) fn window(&mut self, window: &Window) -> Result<Relation, Reason> {
        let input = self.relation(&window.input)?;
        input.check_rows()?;
        let mut columns = input.columns.clone();
        for (i, expr) in window.window_expr.iter().enumerate() {
            let mut expr = expr;
            while let Expr::Alias(alias) = expr {
                expr = &alias.expr;
            }
            let Expr::WindowFunction(function) = expr else {
                return Err(format!("`{expr}` is not a plain window function"));
            };
            let result = window.schema.field(input.columns.len() + i).data_type().clone();
            let result = dtype_of(&result)
                .ok_or_else(|| format!("`{expr}` is {result}, which tensors cannot contain"))?;
            let node = self.over(&input, function, result)?;
            columns.push(Column::Cells(node));
        }
        Ok(Relation { columns, schema: window.schema.clone(), ..input })
    }

    fn over(
        &mut self,
        input: &Relation,
        function: &WindowFunction,
        result: DType,
    ) -> Result<NodeId, Reason> {
        let params = &function.params;
        let name = function.fun.name().to_string();
        if name == FRAME {
            return Err(
                "OVER with EXCLUDE, or an order of arguments, has no dense form".to_string()
            );
        }
        if params.null_treatment == Some(NullTreatment::IgnoreNulls) || params.distinct {
            return Err(format!("{name} OVER with DISTINCT or IGNORE NULLS has no dense form"));
        }
        let parts = line::parts(input, &params.partition_by, self.state)?;
        let span = Span::of(&params.window_frame, !params.order_by.is_empty())?;
        let is_aggregate = matches!(function.fun, WindowFunctionDefinition::AggregateUDF(_));
        if is_aggregate && span == Span::Whole {
            return self.whole_partition(input, function, &parts, result);
        }
        let line = line::line(input, &parts, &params.order_by, self.state)?;
        let node = match (name.as_str(), input.keep) {
            ("row_number" | "rank" | "dense_rank" | "percent_rank" | "cume_dist", None) => {
                self.numbered(input, &line, &name)?
            }
            ("row_number" | "rank" | "dense_rank" | "percent_rank" | "cume_dist", Some(keep)) => {
                self.numbered_of(input, &line, &name, keep)?
            }
            ("lag" | "lead", None) => self.shifted(input, &line, &name, &params.args)?,
            ("lag" | "lead", Some(keep)) => {
                self.shifted_of(input, &line, &name, &params.args, keep)?
            }
            ("first_value" | "last_value" | "nth_value", None) => {
                self.nth(input, &line, span, &name, &params.args)?
            }
            ("first_value" | "last_value" | "nth_value", Some(keep)) => {
                self.nth_of(input, &line, span, &name, &params.args, keep)?
            }
            ("count" | "sum" | "avg" | "min" | "max", _) => {
                self.framed(input, &line, span, function, result)?
            }
            _ => return Err(format!("{name} OVER has no dense form")),
        };
        self.lower(input).cast(node, result)
    }

    fn whole_partition(
        &mut self,
        input: &Relation,
        function: &WindowFunction,
        parts: &Parts,
        result: DType,
    ) -> Result<NodeId, Reason> {
        let WindowFunctionDefinition::AggregateUDF(func) = &function.fun else {
            return Err(format!("{} OVER has no dense form", function.fun.name()));
        };
        let params = AggregateFunctionParams {
            args: function.params.args.clone(),
            distinct: false,
            filter: function.params.filter.clone(),
            order_by: vec![],
            null_treatment: None,
        };
        let call = AggregateFunction { func: func.clone(), params };
        let shape = input.shape();
        let fates: Vec<Fate> = (0..shape.len())
            .map(|a| match parts.groups.get(&a) {
                Some(factors) => Fate::Group(factors.clone()),
                None if parts.whole.contains(&a) => Fate::Keep,
                None => Fate::All,
            })
            .collect();
        let out = lengths(&shape, &fates);
        let lower = self.lower(input);
        let mut reduction = Reduction { lower, shape, fates, out, keep: input.keep, split: None };
        let mut node = reduction.aggregate(&call, &tessera_exec::chunk::arrow_type(result))?;
        // Broadcasts each group's value to its rows.
        for (&axis, factors) in &parts.groups {
            if self.b.node(node).shape[axis] > 1 {
                let codes: Vec<Option<u64>> =
                    factors.codes.iter().map(|&c| Some(u64::from(c))).collect();
                node = gather(&mut self.b, node, axis, &codes)?;
            }
        }
        Ok(node)
    }

    /// Broadcasts the node to its whole length along the line.
    fn along(&mut self, input: &Relation, line: &Line, node: NodeId) -> Result<NodeId, Reason> {
        let mut shape = self.b.shape(node).to_vec();
        shape[line.axis] = input.kept[line.axis].len();
        self.b.broadcast_to(node, &shape).map_err(refused)
    }

    fn argument(&mut self, input: &Relation, line: &Line, arg: &Expr) -> Result<NodeId, Reason> {
        let node = self.lower(input).expr(arg)?;
        self.along(input, line, node)
    }

    fn numbered(&mut self, input: &Relation, line: &Line, name: &str) -> Result<NodeId, Reason> {
        let values: Vec<Option<Scalar>> = line
            .places()
            .into_iter()
            .map(|RowPosition { number: k, rows: n, .. }| {
                Some(match name {
                    "percent_rank" if n == 1 => Scalar::f64(0.0),
                    "percent_rank" => Scalar::f64(k as f64 / (n - 1) as f64),
                    "cume_dist" => Scalar::f64((k + 1) as f64 / n as f64),
                    _ => Scalar::i64(k + 1).cast(DType::UInt64),
                })
            })
            .collect();
        let dtype = if matches!(name, "percent_rank" | "cume_dist") {
            DType::Float64
        } else {
            DType::UInt64
        };
        let mut shape = vec![1; input.kept.len()];
        shape[line.axis] = values.len() as u64;
        self.b.array(ConstArray::new(dtype, &shape, &values)).map_err(refused)
    }

    /// The value a number of rows before or after (`lag`, `lead`).
    fn shifted(
        &mut self,
        input: &Relation,
        line: &Line,
        name: &str,
        args: &[Expr],
    ) -> Result<NodeId, Reason> {
        let Some(arg) = args.first() else { return Err(format!("{name} of nothing")) };
        let by = steps(name, args)?;
        let node = self.argument(input, line, arg)?;
        let from = line.gathered(|place| place.number.checked_add(by));
        let out = gather(&mut self.b, node, line.axis, &from)?;
        let Some(default) = args.get(2).filter(|d| !is_null(d)) else { return Ok(out) };
        let default = self.lower(input).expr(default)?;
        if self.b.dtype(default) != self.b.dtype(out) {
            return Err(format!("the default of {name} has another type"));
        }
        let rank = input.kept.len();
        let inside = flags(&mut self.b, line.axis, rank, from.iter().map(Option::is_some))?;
        self.b.map(ScalarOp::Where, &[inside, out, default]).map_err(refused)
    }

    /// The n-th value of the frame.
    fn nth(
        &mut self,
        input: &Relation,
        line: &Line,
        span: Span,
        name: &str,
        args: &[Expr],
    ) -> Result<NodeId, Reason> {
        let Some(arg) = args.first() else { return Err(format!("{name} of nothing")) };
        let n = which(name, args)?;
        let node = self.argument(input, line, arg)?;
        let from = line.gathered(|place| {
            let (low, high) = span.of_row(place.number, place.rows)?;
            let at = if name == "last_value" { high } else { low.checked_add(n - 1)? };
            (at <= high).then_some(at)
        });
        gather(&mut self.b, node, line.axis, &from)
    }

    fn framed(
        &mut self,
        input: &Relation,
        line: &Line,
        span: Span,
        function: &WindowFunction,
        result: DType,
    ) -> Result<NodeId, Reason> {
        let name = function.fun.name();
        let [arg] = function.params.args.as_slice() else {
            return Err(format!("{name} of several arguments has no dense form"));
        };
        if input.keep.is_some() && span != Span::Running {
            return Err(kept::between());
        }
        let mut lower = self.lower(input);
        let mut node = match (name, arg) {
            ("count", Expr::Literal(value, _)) if !value.is_null() => {
                lower.constant(Scalar::i64(1))?
            }
            _ => lower.expr(arg)?,
        };
        if let Some(filter) = &function.params.filter {
            let met = lower.is_true(filter)?;
            node = lower.map_op(MapOp::Mask, &[node, met])?;
        }
        if let Some(keep) = input.keep {
            node = lower.map_op(MapOp::Mask, &[node, keep])?;
        }
        let dtype = lower.b.dtype(node);
        if name == "avg" && dtype.is_datetime() {
            return Err("avg of times has no dense form".to_string());
        }
        node = match name {
            "avg" => lower.cast(node, DType::Float64)?,
            "sum" => lower.cast(node, result)?,
            _ => node,
        };
        let node = self.along(input, line, node)?;
        let axis = line.axis;
        let is_total = dtype.is_float() || dtype == DType::Bool;
        line.each(&mut self.b, &[node], |b, nodes| {
            let node = nodes[0];
            match (name, span) {
                ("count", Span::Running) => running_count(b, node, axis),
                ("sum", Span::Running) => Ok(running_sum(b, node, axis)?.0),
                ("avg", Span::Running) => {
                    let (sum, count) = running_sum(b, node, axis)?;
                    let count = b.cast(count, DType::Float64).map_err(refused)?;
                    b.map(ScalarOp::Div, &[sum, count]).map_err(refused)
                }
                _ => {
                    let (kind, least) = match name {
                        "count" => (ReduceKind::Count, 0),
                        "sum" => (ReduceKind::Sum, 1),
                        "avg" => (ReduceKind::Mean, 1),
                        "min" if is_total => (ReduceKind::MinTotal, 1),
                        "max" if is_total => (ReduceKind::MaxTotal, 1),
                        "min" => (ReduceKind::Min, 1),
                        _ => (ReduceKind::Max, 1),
                    };
                    let out = b.window(node, axis, span.frame(), kind, least).map_err(refused)?;
                    if !dtype.is_float() || !matches!(name, "min" | "max") {
                        return Ok(out);
                    }
                    // The reduction may return -0.0 or 0.0; the row path has only 0.0.
                    let zero = b.constant(Scalar::zero(dtype)).map_err(refused)?;
                    b.map(ScalarOp::Add, &[out, zero]).map_err(refused)
                }
            }
        })
    }
}

/// The row offset of lag and lead.
fn steps(name: &str, args: &[Expr]) -> Result<i64, Reason> {
    let by = match args.get(1) {
        None => 1,
        Some(by) => frame::whole_number(by)
            .ok_or_else(|| format!("{name} by `{by}`, which is not a whole number"))?,
    };
    Ok(if name == "lag" { -by } else { by })
}

/// The row of the frame that first_value and nth_value return.
fn which(name: &str, args: &[Expr]) -> Result<i64, Reason> {
    match (name, args.get(1)) {
        ("nth_value", Some(n)) => frame::whole_number(n)
            .filter(|n| *n > 0)
            .ok_or_else(|| format!("nth_value by `{n}`, which is not a positive number")),
        _ => Ok(1),
    }
}

/// Running count of unmasked cells.
fn running_count(b: &mut Builder, node: NodeId, axis: usize) -> Result<NodeId, Reason> {
    let valid = b.map_op(MapOp::IsValid, &[node]).map_err(refused)?;
    let ones = b.cast(valid, DType::Int64).map_err(refused)?;
    b.scan(ones, ScanKind::Sum, axis).map_err(refused)
}

/// Running sum, masked before the first value, and the running count.
fn running_sum(b: &mut Builder, node: NodeId, axis: usize) -> Result<(NodeId, NodeId), Reason> {
    let count = running_count(b, node, axis)?;
    if !b.node(node).nullable {
        let sum = b.scan(node, ScanKind::Sum, axis).map_err(refused)?;
        return Ok((sum, count));
    }
    let zero = b.constant(Scalar::zero(b.dtype(node))).map_err(refused)?;
    let filled = b.map_op(MapOp::Coalesce, &[node, zero]).map_err(refused)?;
    let sum = b.scan(filled, ScanKind::Sum, axis).map_err(refused)?;
    let none = b.constant(Scalar::i64(0)).map_err(refused)?;
    let any = b.map(ScalarOp::Gt, &[count, none]).map_err(refused)?;
    let sum = b.map_op(MapOp::Mask, &[sum, any]).map_err(refused)?;
    Ok((sum, count))
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.is_null())
}
