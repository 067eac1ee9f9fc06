//! Labels along a dimension: values, or the positions of a dimension without a coordinate, which are materialized
//! only on use.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::execution::context::SessionConfig;

use super::labels::{BLOCK, Kept};
use tessera_frontend::error::Error;

#[derive(Debug, Clone)]
pub(crate) enum Along {
    /// One value per position.
    Values(ArrayRef),
    /// `start`, `start + 1`, … (`int64`).
    Positions { start: u64, len: u64 },
}

impl From<ArrayRef> for Along {
    fn from(values: ArrayRef) -> Self {
        Along::Values(values)
    }
}

impl Along {
    pub(crate) fn data_type(&self) -> &DataType {
        match self {
            Along::Values(values) => values.data_type(),
            Along::Positions { .. } => &DataType::Int64,
        }
    }

    pub(crate) fn has_nulls(&self) -> bool {
        matches!(self, Along::Values(values) if values.null_count() > 0)
    }

    /// True if both can be labels of one dimension.
    pub(crate) fn goes_with(&self, other: &Along) -> bool {
        match (self, other) {
            (Along::Values(own), Along::Values(other)) => own.len() == other.len(),
            _ => true,
        }
    }

    pub(crate) fn slice(&self, from: u64, len: u64) -> Along {
        match self {
            Along::Values(values) => Along::Values(values.slice(from as usize, len as usize)),
            Along::Positions { start, .. } => Along::Positions { start: start + from, len },
        }
    }

    pub(crate) fn kept(&self, kept: &Kept) -> Result<Along> {
        Ok(match (self, kept) {
            (_, Kept::Range { start, len }) => self.slice(*start, *len),
            (Along::Values(values), Kept::Take(_)) => Along::Values(kept.apply(values)?),
            (Along::Positions { start, .. }, Kept::Take(p)) => {
                let labels = p.iter().map(|&p| (start + p) as i64);
                Along::Values(Arc::new(Int64Array::from_iter_values(labels)))
            }
        })
    }

    /// Materializes the values.
    ///
    /// # Errors
    /// `memory_exceeded` for more positions than the session's limit.
    pub(crate) fn array(&self, state: &SessionState) -> Result<ArrayRef> {
        match self {
            Along::Values(values) => Ok(values.clone()),
            Along::Positions { start, len } => {
                let limit = positions_max(state);
                if *len > limit {
                    return Err(DataFusionError::External(Box::new(too_many(*len, limit))));
                }
                let labels = (*start..start + len).map(|p| p as i64);
                Ok(Arc::new(Int64Array::from_iter_values(labels)))
            }
        }
    }
}

/// Checks the number of positions that a condition keeps.
///
/// # Errors
/// `memory_exceeded`, beyond the session's limit.
pub(super) fn check_kept(kept: u64, state: &SessionState) -> Result<()> {
    // Each position is one number.
    let limit = positions_max(state) * (BYTES_EACH / 8);
    match kept > limit {
        true => Err(DataFusionError::External(Box::new(too_many(kept, limit)))),
        false => Ok(()),
    }
}

fn too_many(len: u64, limit: u64) -> Error {
    Error::Cells {
        code: "memory_exceeded",
        message: format!(
            "planning takes {len} positions of a dimension that has no labels, and the memory limit allows {limit}"
        ),
        position: None,
        hint: Some(
            "slice the array first, as in `FROM (SELECT x[0:1000] AS x FROM …)`, or raise `memory-limit`".to_string(),
        ),
    }
}

/// The session's limit of positions, as an extension of its configuration.
#[derive(Debug)]
struct PositionsMax(u64);

/// Maximum bytes per position when groups or joins of positions are planned.
const BYTES_EACH: u64 = 128;

/// The session with a limit on positions that planning materializes: a quarter of `memory`.
pub(super) fn bounded(config: SessionConfig, memory: u64) -> SessionConfig {
    let most = (memory / 4 / BYTES_EACH).clamp(BLOCK, 1 << 31);
    config.with_extension(Arc::new(PositionsMax(most)))
}

fn positions_max(state: &SessionState) -> u64 {
    state.config().get_extension::<PositionsMax>().map_or(0, |max| max.0)
}
