//! The operators of a physical plan, as EXPLAIN shows them.

use super::measured::OperatorRan;
use super::remote::RemoteExec;
use super::run::PhysicalRows;
use super::splits::name_of;
use super::stop::{counts, unchecked};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use std::sync::Arc;
use tessera_planner::explain;

/// An operator of rows and what it reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operator {
    /// Name of the physical operator; for a part that workers compute, `rows on workers` with the bytes of its files.
    pub name: String,
    /// The splits in which its rows are computed; each of them by one thread.
    pub splits: usize,
    /// The operators whose rows it reads.
    pub inputs: Vec<Operator>,
    /// What it did, if that is measured: nothing is known of the operators that workers compute.
    pub ran: Option<OperatorRan>,
}

impl Operator {
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let (counts, plan) = (counts(plan), unchecked(plan));
        let ran = counts.map(|counts| counts.ran(plan));
        if let Some(remote) = plan.downcast_ref::<RemoteExec>() {
            let template = Operator::of(remote.template());
            let name = format!("rows on workers, {}", explain::bytes(remote.bytes()));
            return Operator { name, splits: template.splits, inputs: vec![template], ran };
        }
        Operator {
            name: name_of(plan).to_string(),
            splits: plan.output_partitioning().partition_count(),
            inputs: plan.children().into_iter().map(Operator::of).collect(),
            ran,
        }
    }

    /// True if some operator has several splits.
    pub fn is_split(&self) -> bool {
        self.splits > 1 || self.inputs.iter().any(Operator::is_split)
    }
}

impl PhysicalRows {
    /// The operators of all its plans; the last one is that of the answer.
    pub fn operators(&self) -> Vec<Operator> {
        self.plans().map(Operator::of).collect()
    }
}
