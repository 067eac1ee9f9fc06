//! The life of an operand.
//!
//! ```text
//!   UNSCHEDULED ─▶ READY ─▶ RUNNING ─▶ FINISHED ─▶ FREED
//!        │    ◀─────┘ │        │ │ └▶ FATAL ─▶ (successors) FATAL
//!        │            │        │ └──▶ READY   (retried)
//!        └────────────┴─▶ CANCELLING ─▶ CANCELLED
//! ```
//! An operand that never ran can be forgotten (`UNSCHEDULED → FREED`): it is enumerated again when it is needed.

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OperandState {
    /// Known, and waits for inputs.
    Unscheduled,
    /// All inputs are in memory.
    Ready,
    /// Admitted: it has its memory and is fetching, queued for a thread or computing.
    Running,
    /// Its outputs are in memory.
    Finished,
    /// Its outputs are released.
    Freed,
    /// Failed, or cannot run because one of its inputs failed.
    Fatal,
    /// Runs, and was asked to stop.
    Cancelling,
    /// Stopped, or was never started, because its plan was cancelled.
    Cancelled,
}

impl OperandState {
    /// All states.
    pub const ALL: [OperandState; 8] = [
        OperandState::Unscheduled,
        OperandState::Ready,
        OperandState::Running,
        OperandState::Finished,
        OperandState::Freed,
        OperandState::Fatal,
        OperandState::Cancelling,
        OperandState::Cancelled,
    ];

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            OperandState::Unscheduled => "UNSCHEDULED",
            OperandState::Ready => "READY",
            OperandState::Running => "RUNNING",
            OperandState::Finished => "FINISHED",
            OperandState::Freed => "FREED",
            OperandState::Fatal => "FATAL",
            OperandState::Cancelling => "CANCELLING",
            OperandState::Cancelled => "CANCELLED",
        }
    }

    /// The transition table.
    pub const fn may_become(self, next: OperandState) -> bool {
        use OperandState::*;
        matches!(
            (self, next),
            (Unscheduled, Ready | Freed | Fatal | Cancelling)
                | (Ready, Running | Unscheduled | Cancelling)
                | (Running, Finished | Ready | Fatal | Cancelling)
                | (Finished, Freed)
                | (Cancelling, Cancelled)
        )
    }
}

impl fmt::Display for OperandState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Operands of a plan by state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateCounts {
    now: [u64; 8],
    entered: [u64; 8],
}

impl StateCounts {
    /// Operands in a state now. `Freed`, `Fatal` and `Cancelled` are final: they count all operands that ever entered
    /// them.
    pub fn now(&self, state: OperandState) -> u64 {
        self.now[state as usize]
    }

    /// Number of times a state was entered.
    pub fn entered(&self, state: OperandState) -> u64 {
        self.entered[state as usize]
    }

    /// Operands that hold memory or wait: zero when a plan is over.
    pub fn live(&self) -> u64 {
        use OperandState::*;
        [Unscheduled, Ready, Running, Finished, Cancelling].iter().map(|&s| self.now(s)).sum()
    }

    /// Adds the counts of another plan.
    pub fn add(&mut self, other: &StateCounts) {
        let add = |to: &mut [u64; 8], from: &[u64; 8]| {
            to.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        };
        add(&mut self.now, &other.now);
        add(&mut self.entered, &other.entered);
    }

    pub(crate) fn enter(&mut self, state: OperandState) {
        self.now[state as usize] += 1;
        self.entered[state as usize] += 1;
    }

    pub(crate) fn leave(&mut self, state: OperandState) {
        self.now[state as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::OperandState::{self, *};

    #[test]
    fn the_table_is_the_seeds() {
        let allowed = |from: OperandState| {
            OperandState::ALL.into_iter().filter(|&to| from.may_become(to)).collect::<Vec<_>>()
        };
        assert_eq!(allowed(Unscheduled), [Ready, Freed, Fatal, Cancelling]);
        assert_eq!(allowed(Ready), [Unscheduled, Running, Cancelling]);
        assert_eq!(allowed(Running), [Ready, Finished, Fatal, Cancelling]);
        assert_eq!(allowed(Finished), [Freed]);
        assert_eq!(allowed(Cancelling), [Cancelled]);
        for end in [Freed, Fatal, Cancelled] {
            assert_eq!(allowed(end), []);
        }
    }
}
