//! Stopping planning from outside, in this crate's errors.

use crate::error::Error;

/// Is planning to go on?
///
/// # Errors
/// [`Error::Stopped`] if it is not.
pub fn check() -> Result<(), Error> {
    tessera_planner::interrupt::check().map_err(|_| Error::Stopped)
}
