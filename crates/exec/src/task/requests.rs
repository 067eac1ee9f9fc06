//! Storage requests of a plan, computed before it runs.

use super::{Origin, Sources};
use tessera_planner::plan::Task;
use tessera_planner::tile::Tiling;

/// Number of requests to storage by the loads of a plan, each of them run once: [`ArrayReader::requests`]. Arrays
/// outside of the plan take none.
///
/// [`ArrayReader::requests`]: tessera_storage::source::ArrayReader::requests
pub fn requests(tiling: &Tiling, sources: &Sources) -> u64 {
    let stages = tiling.plan().stages.iter();
    stages.fold(0, |sum, stage| match &stage.task {
        Task::Load { source, origin, .. } => match sources.get(source) {
            Ok(Origin::Stored(reader)) => sum.saturating_add(reader.requests(&stage.grid, origin)),
            _ => sum,
        },
        _ => sum,
    })
}

/// True if an array of the plan is read over a network.
pub fn is_remote(tiling: &Tiling, sources: &Sources) -> bool {
    tiling.plan().stages.iter().any(|stage| match &stage.task {
        Task::Load { source, .. } => {
            matches!(sources.get(source), Ok(Origin::Stored(reader)) if !reader.is_local())
        }
        _ => false,
    })
}
