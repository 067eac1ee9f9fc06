//! Stopping planning from outside: a statement that was cancelled, or has taken its time.
//!
//! Planning runs on one thread and waits for nothing, so nobody can stop it from outside. It asks instead, wherever a
//! statement can make it take long: at each expression that is lowered, each block and relation that is prepared, each
//! node that a rule of an optimiser visits, each block of labels, each stage that is made.

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::Error;

type Stop = Rc<dyn Fn() -> bool>;

thread_local! {
    static STOP: RefCell<Option<Stop>> = const { RefCell::new(None) };
}

/// Runs `work`, which ends with [`Error::Stopped`] soon after `is_stopped` is true. One inside another asks the inner.
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

/// Is planning to go on?
///
/// # Errors
/// [`Error::Stopped`] if it is not.
pub fn check() -> Result<(), Error> {
    let stop = STOP.with_borrow(Clone::clone);
    match stop.is_some_and(|is_stopped| is_stopped()) {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
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
