//! Cooperative stop of planning, for a cancelled or timed-out statement.
//!
//! Planning runs on one thread and never blocks, so it has to poll. It calls [`check`] at each step that can be slow:
//! each expression that is lowered, each block and relation that is prepared, each node that a rule of an optimiser
//! visits, each block of labels, each stage that is built.

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::Error;

type Stop = Rc<dyn Fn() -> bool>;

thread_local! {
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

/// Runs `work`, which ends with [`Error::Stopped`] soon after `is_stopped` returns true. A nested call replaces the
/// outer `is_stopped`.
pub fn interruptible<T>(is_stopped: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    let before = STOP.replace(Some(Rc::new(is_stopped)));
    let _restore = Restore(before);
    work()
}

struct Restore(Option<Stop>);

impl Drop for Restore {
    fn drop(&mut self) {
        STOP.set(self.0.take());
    }
}

/// Checks that planning was not stopped.
///
/// # Errors
/// [`Error::Stopped`] if it was.
pub fn check() -> Result<(), Error> {
    let stop = STOP.with_borrow(Clone::clone);
    if stop.is_some_and(|is_stopped| is_stopped()) { Err(Error::Stopped) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn work_is_stopped_inside_and_not_after() {
        let asked = Rc::new(Cell::new(0));
        let counted = asked.clone();
        let is_stopped = move || counted.replace(counted.get() + 1) == 2;
        let done = interruptible(is_stopped, || (0..9).take_while(|_| check().is_ok()).count());
        assert_eq!((done, asked.get()), (2, 3));
        assert_eq!(check(), Ok(()));
    }
}
