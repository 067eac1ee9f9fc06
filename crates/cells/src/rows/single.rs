//! Shared code of this crate's physical nodes, most of which have one partition: rows in arrival order.

use arrow::datatypes::SchemaRef;
use datafusion::common::internal_datafusion_err;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{ExecutionPlan, Partitioning, PlanProperties};
use std::sync::Arc;

/// Methods of an `ExecutionPlan` that many nodes have in common.
///
/// | word | the node |
/// |---|---|
/// | `name` | is named by its type |
/// | `properties`, `properties of f` | has properties of its own, or those of its field `f` |
/// | `input`, `children of f`, `no_inputs` | reads its field `input`, what its field `f` reads, nothing |
/// | `in_order` | returns rows in the order of its input |
/// | `statistics_of_input` | has the statistics of its input |
/// | `rows_of_input` | returns the rows of its input as they are, and has its statistics |
/// | `expressions of f`, `no_expressions` | has the expressions of its field `f`, none |
///
/// `no_inputs` has `with_new_children` too; with inputs each node writes its own.
macro_rules! usual {
    ($($what:ident $(of $field:ident)?),+ $(,)?) => { $(usual!(@ $what $($field)?);)+ };
    (@ name) => {
        fn name(&self) -> &str {
            <Self as ::datafusion::physical_plan::ExecutionPlan>::static_name()
        }
    };
    (@ properties) => {
        fn properties(&self) -> &::std::sync::Arc<::datafusion::physical_plan::PlanProperties> {
            &self.properties
        }
    };
    (@ properties $of:ident) => {
        fn properties(&self) -> &::std::sync::Arc<::datafusion::physical_plan::PlanProperties> {
            self.$of.properties()
        }
    };
    (@ input) => {
        fn children(
            &self,
        ) -> Vec<&::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
            vec![&self.input]
        }
    };
    (@ children $of:ident) => {
        fn children(
            &self,
        ) -> Vec<&::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
            self.$of.children()
        }
    };
    (@ no_inputs) => {
        fn children(
            &self,
        ) -> Vec<&::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>> {
            vec![]
        }

        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            _: Vec<::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>>,
        ) -> ::datafusion::error::Result<
            ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
        > {
            Ok(self)
        }
    };
    (@ in_order) => {
        fn maintains_input_order(&self) -> Vec<bool> {
            vec![true]
        }
    };
    (@ statistics_of_input) => {
        fn child_stats_requests(
            &self,
            partition: Option<usize>,
        ) -> Vec<::datafusion::physical_plan::statistics::ChildStats> {
            vec![::datafusion::physical_plan::statistics::ChildStats::At(partition)]
        }

        fn statistics_from_inputs(
            &self,
            inputs: &[::std::sync::Arc<::datafusion::common::Statistics>],
            _: &::datafusion::physical_plan::statistics::StatisticsArgs,
        ) -> ::datafusion::error::Result<::std::sync::Arc<::datafusion::common::Statistics>> {
            let unknown = || {
                let schema = ::datafusion::physical_plan::ExecutionPlan::schema(self);
                ::std::sync::Arc::new(::datafusion::common::Statistics::new_unknown(&schema))
            };
            Ok(inputs.first().cloned().unwrap_or_else(unknown))
        }
    };
    (@ rows_of_input) => {
        usual!(@ statistics_of_input);

        fn execute(
            &self,
            partition: usize,
            context: ::std::sync::Arc<::datafusion::execution::TaskContext>,
        ) -> ::datafusion::error::Result<::datafusion::execution::SendableRecordBatchStream> {
            self.input.execute(partition, context)
        }
    };
    (@ expressions $of:ident) => {
        fn apply_expressions(
            &self,
            visit: &mut dyn FnMut(
                &::std::sync::Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
            ) -> ::datafusion::error::Result<
                ::datafusion::common::tree_node::TreeNodeRecursion,
            >,
        ) -> ::datafusion::error::Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            self.$of.apply_expressions(visit)
        }
    };
    (@ no_expressions) => {
        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(
                &::std::sync::Arc<dyn ::datafusion::physical_expr::PhysicalExpr>,
            ) -> ::datafusion::error::Result<
                ::datafusion::common::tree_node::TreeNodeRecursion,
            >,
        ) -> ::datafusion::error::Result<::datafusion::common::tree_node::TreeNodeRecursion> {
            Ok(::datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
    };
}

/// `with_new_children` of a node with one input: the expression is the node over another input.
macro_rules! over {
    (|$node:pat_param, $input:ident| $new:expr) => {
        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            children: Vec<::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>>,
        ) -> ::datafusion::error::Result<
            ::std::sync::Arc<dyn ::datafusion::physical_plan::ExecutionPlan>,
        > {
            let $node = &*self;
            let name = <Self as ::datafusion::physical_plan::ExecutionPlan>::static_name();
            let $input = $crate::rows::single::only_input(name, children)?;
            Ok(::std::sync::Arc::new($new))
        }
    };
}

/// Shows nodes by their names alone.
macro_rules! shown_by_name {
    ($node:ident) => {
        impl ::datafusion::physical_plan::DisplayAs for $node {
            fn fmt_as(
                &self,
                _: ::datafusion::physical_plan::DisplayFormatType,
                f: &mut ::std::fmt::Formatter<'_>,
            ) -> ::std::fmt::Result {
                f.write_str(<$node as ::datafusion::physical_plan::ExecutionPlan>::static_name())
            }
        }
    };
}

/// Shows nodes by what is written for one.
macro_rules! shown {
    ($type:ident, |$node:ident, $f:ident| $written:expr) => {
        impl ::datafusion::physical_plan::DisplayAs for $type {
            fn fmt_as(
                &self,
                _: ::datafusion::physical_plan::DisplayFormatType,
                $f: &mut ::std::fmt::Formatter<'_>,
            ) -> ::std::fmt::Result {
                let $node = self;
                $written
            }
        }
    };
}

pub(super) use over;
pub(super) use shown;
pub(super) use shown_by_name;
pub(super) use usual;

/// The input of a node that has one, among its new children.
pub(super) fn only_input(
    node: &str,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let [input] = <[_; 1]>::try_from(children)
        .map_err(|all| internal_datafusion_err!("{node} has {} inputs", all.len()))?;
    Ok(input)
}

/// The properties of a node with one partition that emits batches incrementally.
pub(super) fn properties(schema: SchemaRef) -> Arc<PlanProperties> {
    properties_of(schema, 1)
}

/// As [`properties`], with `partitions` partitions.
pub(super) fn properties_of(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    with_partitions(EquivalenceProperties::new(schema), partitions)
}

/// As [`properties`], with the key by which the rows are ordered.
pub(super) fn properties_in_order(
    schema: SchemaRef,
    key: Option<PhysicalSortExpr>,
) -> Arc<PlanProperties> {
    let orders = key.map(|key| [key]);
    with_partitions(EquivalenceProperties::new_with_orderings(schema, orders), 1)
}

/// The properties of a node with `partitions` partitions that emits batches incrementally.
pub(super) fn with_partitions(
    equivalence: EquivalenceProperties,
    partitions: usize,
) -> Arc<PlanProperties> {
    bounded(equivalence, partitions, EmissionType::Incremental)
}

/// As [`with_partitions`], of a node that emits nothing before it has read its input.
pub(super) fn after_input(
    equivalence: EquivalenceProperties,
    partitions: usize,
) -> Arc<PlanProperties> {
    bounded(equivalence, partitions, EmissionType::Final)
}

fn bounded(
    equivalence: EquivalenceProperties,
    partitions: usize,
    emission: EmissionType,
) -> Arc<PlanProperties> {
    let partitions = Partitioning::UnknownPartitioning(partitions);
    Arc::new(PlanProperties::new(equivalence, partitions, emission, Boundedness::Bounded))
}

/// Fails unless the partition is the first one.
pub(super) fn check(node: &str, partition: usize) -> Result<()> {
    if partition == 0 {
        return Ok(());
    }
    let what = format!("{node} has one partition, not {partition}");
    Err(DataFusionError::Internal(what))
}
