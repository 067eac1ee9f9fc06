//! Parts of groups, and of sorted rows with the windows over them, as bytes.
//!
//! The splits are the input of the operator. What is computed over them is encoded over an input without rows.

use super::{Kind, RowsCodec, broken};
use crate::rows::splits::{PARTS, PartsExec, WindowsExec, aggregate_over};
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_proto::physical_plan::to_proto::serialize_physical_sort_exprs;
use datafusion_proto::physical_plan::{PhysicalPlanDecodeContext, PhysicalProtoConverterExtension};
use datafusion_proto::protobuf;
use prost::Message;
use std::sync::Arc;

#[derive(Clone, PartialEq, Message)]
pub(super) struct GroupParts {
    /// The aggregate over no rows.
    #[prost(message, optional, tag = "1")]
    aggregate: Option<protobuf::PhysicalPlanNode>,
    #[prost(uint64, tag = "2")]
    parts: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SortedParts {
    #[prost(message, repeated, tag = "1")]
    order: Vec<protobuf::PhysicalSortExprNode>,
    #[prost(uint64, tag = "2")]
    whole: u64,
    #[prost(uint64, tag = "3")]
    parts: u64,
    #[prost(message, optional, tag = "4")]
    windows: Option<Windows>,
}

#[derive(Clone, PartialEq, Message)]
struct Windows {
    /// All keys of the sort. The order of the parts leaves out keys at the end by which splits are already ordered.
    #[prost(message, repeated, tag = "1")]
    order: Vec<protobuf::PhysicalSortExprNode>,
    /// The operators over no rows.
    #[prost(message, optional, tag = "2")]
    operators: Option<protobuf::PhysicalPlanNode>,
}

fn count(parts: u64) -> Result<usize> {
    let parts = usize::try_from(parts).ok().filter(|parts| PARTS.contains(parts));
    parts.ok_or_else(|| broken("parts"))
}

impl RowsCodec {
    pub(super) fn parts(
        &self,
        parts: &PartsExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Kind> {
        let count = parts.parts() as u64;
        if let Some((order, whole)) = parts.order() {
            let order = serialize_physical_sort_exprs(order.iter().cloned(), self, converter)?;
            let windows = parts.windows().map(|windows| self.windows(windows, converter));
            let (whole, windows) = (whole as u64, windows.transpose()?);
            let sent = SortedParts { order, whole, parts: count, windows };
            return Ok(Kind::SortedParts(Box::new(sent)));
        }
        let aggregate =
            parts.aggregate().ok_or_else(|| self.refuse("parts without groups".into()))?;
        let none = Arc::new(EmptyExec::new(aggregate.input().schema()));
        let aggregate: Arc<dyn ExecutionPlan> = Arc::new(aggregate_over(aggregate, none)?);
        let aggregate = Some(converter.execution_plan_to_proto(&aggregate, self)?);
        Ok(Kind::Parts(Box::new(GroupParts { aggregate, parts: count })))
    }

    fn windows(
        &self,
        windows: &WindowsExec,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Windows> {
        if let Some(reason) = windows.unsent() {
            return Err(self.refuse(reason));
        }
        let order = windows.order()?.iter().cloned();
        let order = serialize_physical_sort_exprs(order, self, converter)?;
        let operators = converter.execution_plan_to_proto(&windows.operators()?, self)?;
        Ok(Windows { order, operators: Some(operators) })
    }

    pub(super) fn sorted_parts_of(
        &self,
        sent: &SortedParts,
        input: Arc<dyn ExecutionPlan>,
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let order = self.order_of(&sent.order, &input, session, converter)?;
        let whole = usize::try_from(sent.whole).map_err(|_| broken("parts"))?;
        let parts = PartsExec::sorted(input.clone(), order, whole, count(sent.parts)?)?;
        let Some(Windows { order, operators }) = &sent.windows else { return Ok(Arc::new(parts)) };
        let order = self.order_of(order, &input, session, converter)?;
        let context = PhysicalPlanDecodeContext::new(session, self);
        let operators = operators.as_ref().ok_or_else(|| broken("windows"))?;
        let operators = converter.proto_to_execution_plan(operators, &context)?;
        let windows = WindowsExec::of_operators(&operators, input, order)?;
        Ok(Arc::new(parts.with_windows(windows)?))
    }

    pub(super) fn parts_of(
        &self,
        sent: &GroupParts,
        input: Arc<dyn ExecutionPlan>,
        session: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let context = PhysicalPlanDecodeContext::new(session, self);
        let aggregate = sent.aggregate.as_ref().ok_or_else(|| broken("groups"))?;
        let aggregate = converter.proto_to_execution_plan(aggregate, &context)?;
        let aggregate =
            aggregate.downcast_ref::<AggregateExec>().ok_or_else(|| broken("groups"))?;
        Ok(Arc::new(PartsExec::new(aggregate_over(aggregate, input)?, count(sent.parts)?)))
    }
}
