//! Checks whether a plan can be sent, and compares its decoded form.

use super::{PLAN_BYTES_MAX, RowsCodec, scans, short};
use crate::rows::concat::ConcatExec;
use crate::rows::per_value::PerValueExpr;
use crate::rows::splits::{FirstExec, GatherExec, Keys, KeysExec, PartsExec};
use crate::walk::Walk;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, DynamicFilterPhysicalExpr, InListExpr, IsNotNullExpr,
    IsNullExpr, LikeExpr, Literal, NegativeExpr, NotExpr, TryCastExpr, lit,
};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion_proto::physical_plan::to_proto::serialize_physical_expr_with_converter;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalPlanNodeExt,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf;
use std::sync::Arc;

/// The reason why a plan stays on the server: its first operator that is not sent.
pub(super) fn stays(template: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let mut reason = None;
    let visited = template.each(|node| {
        reason = of_node(node);
        Ok(match reason {
            Some(_) => TreeNodeRecursion::Stop,
            None => TreeNodeRecursion::Continue,
        })
    });
    match visited {
        Ok(_) => reason,
        Err(e) => Some(short(&e.strip_backtrace())),
    }
}

fn of_node(node: &Arc<dyn ExecutionPlan>) -> Option<String> {
    if let Some(scan) = node.downcast_ref::<DataSourceExec>() {
        return scans::stays(scan, PLAN_BYTES_MAX);
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let is_sent = matches!(aggregate.mode(), AggregateMode::Partial | AggregateMode::Single);
        return (!is_sent).then(|| format!("AggregateExec: {:?}", aggregate.mode()));
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        let is_sent = *join.partition_mode() == PartitionMode::CollectLeft;
        return (!is_sent).then(|| format!("HashJoinExec: {:?}", join.partition_mode()));
    }
    let is_sent = node.is::<FilterExec>()
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.is::<CoalescePartitionsExec>()
        || node.is::<GlobalLimitExec>()
        || node.is::<LocalLimitExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
        || node.is::<GatherExec>()
        || node.is::<ConcatExec>()
        || node.is::<FirstExec>()
        || node.is::<KeysExec>()
        || node.is::<PartsExec>();
    (!is_sent).then(|| node.name().to_string())
}

/// A difference between an encoded plan and its decoded form; `None` if they are the same.
pub(super) fn difference(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let text = |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
    let (of_a, of_b) = (text(a), text(b));
    let mut lines = of_a.lines().zip(of_b.lines());
    if let Some((a, b)) = lines.find(|(a, b)| a != b) {
        return Some(short(&parted(a.trim_start(), b.trim_start())));
    }
    if of_a != of_b {
        return Some("operators".into());
    }
    of_nodes(a, b)
}

/// The ends of two lines, from some characters before they differ.
fn parted(a: &str, b: &str) -> String {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let end = |line: &str| line.chars().skip(same.saturating_sub(20)).take(100).collect::<String>();
    format!("`{}` became `{}`", end(a), end(b))
}

/// As [`difference`], of plans with the same text.
fn of_nodes(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let of = |what: &str| Some(format!("{what} of {}", a.name()));
    if a.name() != b.name() {
        return of("the operator in place");
    }
    if a.schema() != b.schema() {
        return of("the columns");
    }
    let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.output_partitioning().partition_count();
    if partitions(a) != partitions(b) || a.output_ordering() != b.output_ordering() {
        return of("the partitions or their order");
    }
    match (expressions(a), expressions(b)) {
        (Ok(a), Ok(b)) if a == b => {}
        _ => return of("the expressions"),
    }
    if let (Some(a), Some(b)) =
        (a.downcast_ref::<DataSourceExec>(), b.downcast_ref::<DataSourceExec>())
        && let Some(what) = scans::difference(a, b)
    {
        return Some(what.into());
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<KeysExec>(), b.downcast_ref::<KeysExec>())
        && !is_same_filter(a.keys(), b.keys())
    {
        return of("the filter");
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<PartsExec>(), b.downcast_ref::<PartsExec>())
        && !a.has_windows_of(b)
    {
        return of("the windows");
    }
    let (of_a, of_b) = (a.children(), b.children());
    if of_a.len() != of_b.len() {
        return of("the inputs");
    }
    of_a.into_iter().zip(of_b).find_map(|(a, b)| of_nodes(a, b))
}

/// The texts of an operator's expressions, and the numbers of the filters that it fills while it runs.
fn expressions(plan: &Arc<dyn ExecutionPlan>) -> Result<(Vec<String>, Vec<Option<u64>>)> {
    let mut texts = Vec::new();
    plan.apply_expressions(&mut |expr| {
        texts.push(expr.to_string());
        Ok(TreeNodeRecursion::Continue)
    })?;
    let filters = plan.dynamic_expressions_produced();
    Ok((texts, filters.iter().map(|filter| filter.expression_id()).collect()))
}

fn is_same_filter(a: &Keys, b: &Keys) -> bool {
    let texts = |keys: &Keys| keys.probe.iter().map(ToString::to_string).collect::<Vec<_>>();
    texts(a) == texts(b)
        && a.schema == b.schema
        && a.filter.expression_id() == b.filter.expression_id()
        && a.is_null_equal == b.is_null_equal
        && a.rare_max == b.rare_max
}

/// Encodes as `DeduplicatingProtoConverter` does, and refuses expressions that would change.
pub(super) struct Strict<'a>(pub(super) &'a RowsCodec);

impl PhysicalProtoConverterExtension for Strict<'_> {
    fn proto_to_execution_plan(
        &self,
        _: &protobuf::PhysicalPlanNode,
        _: &PhysicalPlanDecodeContext<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        internal_err!("this converter encodes")
    }

    fn execution_plan_to_proto(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        codec: &dyn PhysicalExtensionCodec,
    ) -> Result<protobuf::PhysicalPlanNode> {
        let plan = plan.clone();
        protobuf::PhysicalPlanNode::try_from_physical_plan_with_converter(plan, codec, self)
    }

    fn proto_to_physical_expr(
        &self,
        _: &protobuf::PhysicalExprNode,
        _: &Schema,
        _: &PhysicalPlanDecodeContext<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        internal_err!("this converter encodes")
    }

    fn physical_expr_to_proto(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
        codec: &dyn PhysicalExtensionCodec,
    ) -> Result<protobuf::PhysicalExprNode> {
        match of_expression(expr) {
            Some(reason) => Err(self.0.refuse(reason)),
            None => serialize_physical_expr_with_converter(expr, codec, self),
        }
    }
}

/// The reason why an expression is not sent; its inputs are checked separately.
fn of_expression(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let lost =
        |what: &str| Some(short(&format!("{what} of the expression `{expr}` is not encoded")));
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return checks_overflow(binary).then(|| lost("the check")).flatten();
    }
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let usual = CastExpr::new(lit(true), cast.cast_type().clone(), None);
        let is_usual = !cast.has_explicit_metadata()
            && !cast.has_explicit_nullability()
            && cast.cast_options() == usual.cast_options();
        return if is_usual { None } else { lost("the target") };
    }
    if let Some(cast) = expr.downcast_ref::<TryCastExpr>() {
        return if cast.target_metadata().is_none() { None } else { lost("the target") };
    }
    if let Some(function) = expr.downcast_ref::<ScalarFunctionExpr>() {
        if function.name() != function.fun().name() {
            return lost("the name");
        }
        return if has_plain_field(expr) { None } else { lost("the metadata") };
    }
    if expr.is::<Literal>() {
        return if has_plain_field(expr) { None } else { lost("the metadata") };
    }
    let is_sent = expr.is::<Column>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<NotExpr>()
        || expr.is::<NegativeExpr>()
        || expr.is::<InListExpr>()
        || expr.is::<CaseExpr>()
        || expr.is::<LikeExpr>()
        || expr.is::<DynamicFilterPhysicalExpr>()
        || expr.is::<PerValueExpr>();
    (!is_sent).then(|| short(&format!("the expression `{expr}`")))
}

/// True if the result of an expression that does not depend on columns has no metadata.
fn has_plain_field(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.return_field(&Schema::empty()).is_ok_and(|field| field.metadata().is_empty())
}

/// True if one of a chain of operations of one kind, which is encoded as a list, reports overflows.
fn checks_overflow(binary: &BinaryExpr) -> bool {
    let mut next = Some(binary);
    while let Some(one) = next.filter(|one| one.op() == binary.op()) {
        let plain: Arc<dyn PhysicalExpr> =
            Arc::new(BinaryExpr::new(lit(true), *one.op(), lit(true)));
        let same = Arc::new(one.clone()).with_new_children(vec![lit(true), lit(true)]);
        if !same.is_ok_and(|same| same == plain) {
            return true;
        }
        next = one.left().downcast_ref::<BinaryExpr>();
    }
    false
}
