//! The operators of a physical plan, as EXPLAIN shows them.

use super::measured::{Counts, OperatorRan};
use super::remote::RemoteExec;
use super::run::PhysicalRows;
use super::splits::{holds_first, name_of};
use super::stop::{counts, unchecked};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::sync::Arc;
use tessera_planner::explain;

/// An operator of rows and its inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Name of the physical operator; for a part that workers compute, `rows on workers` with the bytes of its files.
    pub name: String,
    /// The splits in which its rows are computed; each of them by one thread.
    pub splits: usize,
    /// The operators whose rows it reads.
    pub inputs: Vec<Operator>,
    /// Its measurements, if it is measured: operators on workers are not.
    pub ran: Option<OperatorRan>,
}

impl Operator {
    /// True if some operator has several splits.
    pub fn is_split(&self) -> bool {
        self.splits > 1 || self.inputs.iter().any(Operator::is_split)
    }
}

/// An operator of a plan and its counters. It retains nothing of the plan, so the table of a join is dropped once its
/// rows have been read, as in statements that are not measured.
#[derive(Debug)]
pub(super) struct Watched {
    name: String,
    splits: usize,
    inputs: Vec<Watched>,
    /// `None` if it is not measured.
    counts: Option<Arc<Counts>>,
    /// True for joins that hold the rows of their first input.
    holds_first: bool,
    /// DataFusion's metrics of a scan.
    scan: Option<ExecutionPlanMetricsSet>,
}

impl Watched {
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let (counts, plan) = (counts(plan).cloned(), unchecked(plan));
        let (name, splits, inputs) = match plan.downcast_ref::<RemoteExec>() {
            Some(remote) => {
                let template = Watched::of(remote.template());
                let name = format!("rows on workers, {}", explain::bytes(remote.bytes()));
                (name, template.splits, vec![template])
            }
            None => (
                name_of(plan).to_string(),
                plan.output_partitioning().partition_count(),
                plan.children().into_iter().map(Watched::of).collect(),
            ),
        };
        let scan = plan.downcast_ref::<DataSourceExec>().map(|scan| scan.data_source().metrics());
        Watched { name, splits, inputs, counts, holds_first: holds_first(plan), scan }
    }

    /// The operator, with its measurements so far.
    pub(super) fn operator(&self) -> Operator {
        let inputs: Vec<Operator> = self.inputs.iter().map(Watched::operator).collect();
        let ran = self.counts.as_ref().map(|counts| {
            let first = inputs.first().filter(|_| self.holds_first).and_then(|first| first.ran);
            let table_rows = first.map(|first| first.rows);
            OperatorRan { table_rows, ..counts.ran(self.scan.as_ref()) }
        });
        Operator { name: self.name.clone(), splits: self.splits, inputs, ran }
    }
}

impl PhysicalRows {
    /// The operators of all its plans; the last one returns the result.
    pub fn operators(&self) -> Vec<Operator> {
        self.plans().map(|plan| Watched::of(plan).operator()).collect()
    }
}
