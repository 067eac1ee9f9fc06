//! The last partition of a plan, which ends behind all others.

use super::through::through;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use std::sync::Arc;
use tokio::sync::watch;

/// The partitions before the last one that have not ended.
#[derive(Debug, Clone)]
pub(super) struct Others(watch::Sender<usize>);

impl Others {
    pub(super) fn of(partitions: usize) -> Self {
        Others(watch::Sender::new(partitions.saturating_sub(1)))
    }

    /// The rows of a partition that is not the last one. It has ended when its stream is dropped.
    pub(super) fn counted<T: Send + 'static>(
        &self,
        rows: BoxStream<'static, T>,
    ) -> BoxStream<'static, T> {
        let end = End(self.0.clone());
        let counted = move |row| {
            let _ = &end;
            row
        };
        rows.map(counted).boxed()
    }

    async fn ended(&self) {
        // The sender is here, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|left| *left == 0).await;
    }
}

struct End(watch::Sender<usize>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.send_modify(|left| *left = left.saturating_sub(1));
    }
}

/// The input; its last partition ends when the others have ended.
pub(super) fn ending_last(
    input: Arc<dyn ExecutionPlan>,
    others: &Others,
) -> Arc<dyn ExecutionPlan> {
    let partitions = input.output_partitioning().partition_count();
    let (properties, others) = (input.properties().clone(), others.clone());
    through(input, properties, move |partition, rows| {
        if partition + 1 < partitions {
            return rows;
        }
        let others = others.clone();
        let end = async move { others.ended().await }.into_stream();
        rows.chain(end.filter_map(|()| async { None })).boxed()
    })
}
