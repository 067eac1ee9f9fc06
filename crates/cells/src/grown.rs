//! Bounds the size of conditions that the optimiser pushes below projections.
//!
//! A condition that is pushed below a projection contains the expressions of the columns that it names:
//!
//! ```text
//! c1 AS (SELECT v + 1 AS v FROM c0 WHERE v > 1), c2 AS (SELECT v + 2 AS v FROM c1 WHERE v > 2), …
//!   v > 50 of the last block is v + 49 > 50 one block below, v + 48 + 49 > 50 two blocks below, …
//! ```
//! Each rule of an optimiser copies, names and types the whole condition at each block. 50 blocks had 50 conditions of
//! up to 50 sums, which took seconds of planning. So a condition that would become deep or large stays above the
//! projection.

/// Maximum parts of a condition that is pushed below a projection.
const PARTS_MAX: usize = 256;

/// Maximum depth of such a condition.
const DEPTH_MAX: usize = 16;

/// Parts of a condition that may go below any projection once: a comparison of a long CASE, say.
const SMALL_MAX: usize = 8;

/// The size of an expression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Columns, operators and functions. Literals do not count: a list of many of them is not copied for each other.
    pub(crate) parts: usize,
    /// Operators and functions inside one another. AND, OR and NOT do not count: chains of them do not grow.
    pub(crate) depth: usize,
}

impl Size {
    pub(crate) const COLUMN: Self = Self { parts: 1, depth: 0 };

    pub(crate) fn beside(self, other: Self) -> Self {
        Self { parts: self.parts.saturating_add(other.parts), depth: self.depth.max(other.depth) }
    }

    /// The size of AND, OR or NOT of operands of this size.
    pub(crate) fn in_logic(self) -> Self {
        Self { parts: self.parts.saturating_add(1), ..self }
    }

    /// The size of another operator or function of operands of this size.
    pub(crate) fn in_operator(self) -> Self {
        Self { parts: self.parts.saturating_add(1), depth: self.depth.saturating_add(1) }
    }

    /// True if a condition of this size may have to stay above a projection.
    pub(crate) fn may_stay(self) -> bool {
        self.parts > PARTS_MAX / 8 || (self.parts > SMALL_MAX && self.depth > DEPTH_MAX / 2)
    }

    /// True if a condition of this size stays above a projection, below which it would have the size `below`.
    pub(crate) fn stays_above(self, below: Self) -> bool {
        let is_large = below.parts > PARTS_MAX || below.depth > DEPTH_MAX;
        is_large && below.parts > self.parts && self.parts > SMALL_MAX
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Maximum depth of a condition that is not small.
    pub(crate) const DEPTH: usize = DEPTH_MAX;

    fn size(parts: usize, depth: usize) -> Size {
        Size { parts, depth }
    }

    #[test]
    fn deep_or_large_conditions_stay_above_a_projection() {
        // A comparison of a column with a literal, below any projection.
        assert!(!size(2, 1).stays_above(size(10_000, 100)));
        // Columns renamed.
        assert!(!size(10_000, 100).stays_above(size(10_000, 100)));
        assert!(!size(SMALL_MAX + 1, 3).stays_above(size(PARTS_MAX, DEPTH_MAX)));
        assert!(size(SMALL_MAX + 1, 3).stays_above(size(PARTS_MAX + 1, 4)));
        assert!(size(SMALL_MAX + 1, 3).stays_above(size(20, DEPTH_MAX + 1)));
        assert!(size(PARTS_MAX, 2).may_stay() && size(SMALL_MAX + 1, DEPTH_MAX).may_stay());
        assert!(!size(2, 1).may_stay() && !size(20, 3).may_stay());
    }

    #[test]
    fn a_chain_of_comparisons_is_large_and_not_deep() {
        let one = Size::COLUMN.in_operator();
        let all = (1..300).fold(one, |all, _| all.beside(one).in_logic());
        assert_eq!(all, size(899, 1));
    }
}
