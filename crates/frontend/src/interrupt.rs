//! External cancellation of planning, in this crate's errors.

use crate::error::Error;

/// Checks for cancellation of planning.
///
/// # Errors
/// [`Error::Stopped`] if planning was cancelled.
pub fn check() -> Result<(), Error> {
    tessera_planner::interrupt::check().map_err(|_| Error::Stopped)
}
