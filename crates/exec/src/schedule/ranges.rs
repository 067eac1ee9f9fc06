//! A set of numbers, most of them in runs.

use std::collections::BTreeMap;

/// A set of numbers, stored as runs: chunks arrive in nearly row-major order, so that a set of millions is a few runs.
#[derive(Debug, Default, Clone)]
pub(crate) struct RangeSet {
    /// First number of a run → one past its last.
    runs: BTreeMap<u64, u64>,
}

impl RangeSet {
    fn run_of(&self, n: u64) -> Option<(u64, u64)> {
        self.runs.range(..=n).next_back().map(|(&s, &e)| (s, e)).filter(|&(_, e)| n < e)
    }

    /// Adds a number; false if it was already in the set.
    pub(crate) fn insert(&mut self, n: u64) -> bool {
        if self.run_of(n).is_some() {
            return false;
        }
        let start = match self.runs.range(..n).next_back() {
            Some((&s, &e)) if e == n => s,
            _ => n,
        };
        let end = self.runs.remove(&(n + 1)).unwrap_or(n + 1);
        self.runs.insert(start, end);
        true
    }

    /// Removes a number; false if it was not in the set.
    pub(crate) fn remove(&mut self, n: u64) -> bool {
        let Some((start, end)) = self.run_of(n) else { return false };
        self.runs.remove(&start);
        if start < n {
            self.runs.insert(start, n);
        }
        if n + 1 < end {
            self.runs.insert(n + 1, end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::RangeSet;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_behave_like_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..40), 0..200)) {
            let (mut a, mut b) = (RangeSet::default(), BTreeSet::new());
            for (add, n) in ops {
                if add {
                    prop_assert_eq!(a.insert(n), b.insert(n));
                } else {
                    prop_assert_eq!(a.remove(n), b.remove(&n));
                }
                let listed: Vec<u64> = a.runs.iter().flat_map(|(&s, &e)| s..e).collect();
                prop_assert_eq!(listed, b.iter().copied().collect::<Vec<_>>());
                let apart = a.runs.iter().zip(a.runs.iter().skip(1)).all(|(x, y)| x.1 < y.0);
                prop_assert!(apart, "runs are joined");
            }
        }
    }
}
