//! Stopping planning from outside, in this crate's errors.

use crate::error::Error;

/// Is planning to go on?
///
/// # Errors
/// [`Error::Stopped`] if it is not.
pub(crate) fn check() -> Result<(), Error> {
    tessera_planner::interrupt::check().map_err(|_| Error::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::interrupt::interruptible;

    #[test]
    fn the_optimiser_is_stopped() {
        let plan = |is_stopped| {
            interruptible(
                move || is_stopped,
                || crate::lift::tests::planned("SELECT x FROM t WHERE x > 0"),
            )
        };
        assert!(matches!(plan(true), Err(Error::Stopped)));
    }
}
