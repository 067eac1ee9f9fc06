//! The order in which ready operands are taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A ready operand. The least comes first: older root, then deeper, then smaller output, then found earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ready {
    pub(crate) root: u64,
    pub(crate) depth: Reverse<u32>,
    pub(crate) output_bytes: u64,
    pub(crate) found: u64,
    pub(crate) slot: u32,
}

/// A queue of ready operands, in order of urgency.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    heap: BinaryHeap<Reverse<Ready>>,
}

impl ReadyQueue {
    pub(crate) fn push(&mut self, ready: Ready) {
        self.heap.push(Reverse(ready));
    }

    pub(crate) fn pop(&mut self) -> Option<Ready> {
        self.heap.pop().map(|r| r.0)
    }

    pub(crate) fn peek(&self) -> Option<&Ready> {
        self.heap.peek().map(|r| &r.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
    }

    /// Removes an operand if it is in the queue.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.heap.retain(|r| r.0.slot != slot);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Ready> {
        self.heap.iter().map(|r| &r.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_then_deeper_then_smaller() {
        let r = |root, depth, output_bytes, found| Ready {
            root,
            depth: Reverse(depth),
            output_bytes,
            found,
            slot: 0,
        };
        let order = [r(0, 3, 9, 9), r(0, 1, 2, 8), r(0, 1, 5, 3), r(0, 1, 5, 4), r(1, 7, 0, 0)];
        let mut queue = ReadyQueue::default();
        for i in [3, 0, 4, 2, 1] {
            queue.push(order[i]);
        }
        let popped: Vec<Ready> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, order);
    }
}
