//! The chunks of a worker, listed for any client of Flight.

use super::WorkerCalls;
use crate::shelf::written;
use crate::wire::ChunkTicket;
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use tessera_exec::chunk::ipc;
use tessera_exec::store::FinishedChunk;
use tessera_planner::plan::StageId;
use tessera_planner::region::cells;
use tessera_storage::lock;

impl WorkerCalls {
    /// Each chunk on the shelves with its schema, rows, bytes and ticket. The path of its descriptor is the plan, the
    /// stage, the operand and the output. A chunk may be gone when its ticket is used.
    pub(super) fn chunks(&self) -> impl Iterator<Item = FlightInfo> + Send + use<> {
        let plans: Vec<_> = {
            let plans = lock(&self.0.plans);
            plans.known.iter().map(|(id, known)| (id.clone(), known.kept.clone())).collect()
        };
        plans.into_iter().flat_map(|(plan, kept)| {
            kept.operands().into_iter().flat_map(move |(stage, numbers)| {
                let (plan, kept) = (plan.clone(), kept.clone());
                let numbers: Vec<u64> = numbers.iter().collect();
                numbers.into_iter().flat_map(move |number| {
                    let held = kept.held(stage, number).unwrap_or_default();
                    let plan = plan.clone();
                    let outputs = held.into_iter().zip(0..);
                    outputs.filter_map(move |(chunk, output)| {
                        listed(&plan, (stage, number, output), &chunk)
                    })
                })
            })
        })
    }
}

fn listed(
    plan: &str,
    (stage, number, output): (StageId, u64, u32),
    chunk: &FinishedChunk,
) -> Option<FlightInfo> {
    let path = [plan.to_owned(), stage.0.to_string(), number.to_string(), output.to_string()];
    let ticket = ChunkTicket { plan: plan.into(), stage, number, output: Some(output), at: None };
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(written(&ticket)));
    let (shape, dtypes) = match chunk {
        FinishedChunk::Memory(chunk) => {
            (chunk.shape().to_vec(), chunk.fields().iter().map(|f| f.dtype()).collect())
        }
        FinishedChunk::File(file) => (file.shape().to_vec(), file.fields().to_vec()),
    };
    let info = FlightInfo::new().try_with_schema(&ipc::schema(&dtypes, [].into())).ok()?;
    Some(
        info.with_descriptor(FlightDescriptor::new_path(path.into()))
            .with_endpoint(endpoint)
            .with_total_records(cells(&shape)?.try_into().ok()?)
            .with_total_bytes(chunk.bytes().try_into().ok()?),
    )
}
