//! The nodes of a part that runs elsewhere.
//!
//! ```text
//! GatherExec                     the gather reads K splits, as without workers
//!   RemoteExec                   looks like the part that it replaces: K partitions, the same order
//!     NetworkCoalesceExec K→1    once the plan runs; calls the channel for each partition
//!       TaskExec                 a leaf with one partition: split i of the template in task i
//! ```
//! The template is inside of these nodes, not below them, so nothing rewrites it after it was encoded: neither our
//! passes, which run on the server alone, nor the distributed planner, which cuts the files of each scan that it sees
//! between tasks.

use super::message::broken;
use super::{Part, RowsPeers};
use crate::rows::single::{self, shown, usual};
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};
use datafusion_distributed::{DistributedTaskContext, NetworkCoalesceExec};
use std::fmt;
use std::sync::{Arc, Weak};

/// A task: one partition, which is one of the template's.
#[derive(Debug)]
pub(super) struct TaskExec {
    run: TaskPlace,
    properties: Arc<PlanProperties>,
}

enum TaskPlace {
    /// Elsewhere: the channel looks at the part, and nothing executes this node.
    Elsewhere(Arc<Part>),
    /// On this worker, in the context of the stage. The stage owns both: `Worker` may keep a plan for some time after its
    /// task has ended, and with it the memory of the stage.
    Here { template: Weak<dyn ExecutionPlan>, context: Weak<TaskContext> },
}

impl TaskExec {
    /// The task that represents a part on the server.
    pub(super) fn elsewhere(part: Arc<Part>) -> Self {
        let properties = single::properties(part.template.schema());
        TaskExec { run: TaskPlace::Elsewhere(part), properties }
    }

    /// The task of a stage on a worker. All tasks of the stage share the template and with it the build sides of joins.
    pub(super) fn here(template: &Arc<dyn ExecutionPlan>, context: &Arc<TaskContext>) -> Self {
        let properties = single::properties(template.schema());
        let (template, context) = (Arc::downgrade(template), Arc::downgrade(context));
        TaskExec { run: TaskPlace::Here { template, context }, properties }
    }

    /// The part that it represents.
    pub(super) fn part(&self) -> Option<&Arc<Part>> {
        match &self.run {
            TaskPlace::Elsewhere(part) => Some(part),
            TaskPlace::Here { .. } => None,
        }
    }
}

impl fmt::Debug for TaskPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TaskPlace::Elsewhere(part) => part.fmt(f),
            TaskPlace::Here { .. } => f.write_str("Here"),
        }
    }
}

shown!(TaskExec, |node, f| {
    match &node.run {
        TaskPlace::Elsewhere(part) => write!(f, "TaskExec: stage {}", part.number),
        TaskPlace::Here { .. } => f.write_str("TaskExec"),
    }
});

impl ExecutionPlan for TaskExec {
    usual!(name, properties, no_inputs, no_expressions);

    /// The rows of the split that has the number of the task. Of `context` only that number is taken.
    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        single::check(self.name(), partition)?;
        let TaskPlace::Here { template, context: own } = &self.run else {
            return internal_err!("a task of a worker is executed by the server's plan");
        };
        let (Some(template), Some(own)) = (template.upgrade(), own.upgrade()) else {
            return internal_err!("the stage of a task has ended");
        };
        let task = DistributedTaskContext::from_ctx(&context);
        let splits = template.properties().output_partitioning().partition_count();
        if task.task_count != splits || task.task_index >= splits {
            let (index, count) = (task.task_index, task.task_count);
            return Err(broken(format!("task {index} of {count} of a stage of {splits} splits")));
        }
        template.execute(task.task_index, own)
    }
}

/// A part of the plan that runs elsewhere, in the place of the part.
#[derive(Debug)]
pub(in crate::rows) struct RemoteExec {
    part: Arc<Part>,
    /// True below an operator that has the rows of the part as another input, too.
    is_second: bool,
    /// The boundary between server and workers, once the plan runs. A plan without it has a leaf here.
    boundary: Option<Arc<dyn ExecutionPlan>>,
}

impl RemoteExec {
    pub(super) fn new(part: Arc<Part>, is_second: bool) -> Self {
        RemoteExec { part, is_second, boundary: None }
    }

    /// The node with the boundary below it.
    pub(super) fn with_boundary(&self) -> Result<Self> {
        let task = Arc::new(TaskExec::elsewhere(self.part.clone()));
        let boundary = NetworkCoalesceExec::try_new(task, self.part.tasks, 1)?;
        Ok(RemoteExec {
            part: self.part.clone(),
            is_second: self.is_second,
            boundary: Some(Arc::new(boundary)),
        })
    }

    /// The plan that runs elsewhere.
    pub(in crate::rows) fn template(&self) -> &Arc<dyn ExecutionPlan> {
        &self.part.template
    }

    /// True if the operator above has the operators of the part below another input.
    pub(in crate::rows) fn is_second(&self) -> bool {
        self.is_second
    }

    pub(in crate::rows) fn bytes(&self) -> u64 {
        self.part.bytes
    }

    pub(in crate::rows) fn peers(&self) -> &Arc<dyn RowsPeers> {
        &self.part.peers
    }
}

shown!(RemoteExec, |node, f| {
    let Part { number, tasks, kept, .. } = &*node.part;
    match kept {
        0 => write!(f, "RemoteExec: stage {number}, {tasks} splits"),
        kept => write!(f, "RemoteExec: stage {number}, {tasks} parts of {kept} splits"),
    }
});

impl ExecutionPlan for RemoteExec {
    // Those of the template are visited by whom they concern.
    usual!(name, no_expressions);

    fn properties(&self) -> &Arc<PlanProperties> {
        self.part.template.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.boundary.iter().collect()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true; self.children().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.children().len()]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() > 1 {
            return internal_err!("RemoteExec has {} inputs", children.len());
        }
        let boundary = children.into_iter().next();
        Ok(Arc::new(RemoteExec { part: self.part.clone(), is_second: self.is_second, boundary }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let boundary = self.boundary.as_ref();
        let boundary = boundary
            .and_then(|node| node.downcast_ref::<NetworkCoalesceExec>())
            .ok_or_else(|| internal_datafusion_err!("RemoteExec runs without its boundary"))?;
        // A boundary permits one read of a partition, but splits are read again if memory is short. A copy can be read
        // again.
        boundary.clone().execute(partition, context)
    }
}
