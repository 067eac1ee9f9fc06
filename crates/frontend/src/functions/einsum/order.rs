//! Searches for the cheapest order of pairwise products.

use super::Label;
use super::sum::{Sum, Term};

/// Maximum operands of the exact search; more are ordered greedily by the cost of the next pair.
const EXACT: usize = 8;

impl Sum<'_> {
    /// The pairs to multiply, by number; the product of a pair gets the next number.
    pub(super) fn order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let n = terms.len();
        if n < 2 {
            return Vec::new();
        }
        if n <= EXACT { self.exact_order(terms, output) } else { self.greedy_order(terms, output) }
    }

    pub(super) fn size(&self, labels: impl IntoIterator<Item = Label>) -> u128 {
        labels.into_iter().fold(1, |n, label| n.saturating_mul(u128::from(self.len(label)).max(1)))
    }

    /// The remaining labels of a set of terms: those that other terms or the result need.
    fn left_of(terms: &[Term], set: usize, output: &[Label]) -> Vec<Label> {
        let mut inside: Vec<Label> = Vec::new();
        for (at, term) in terms.iter().enumerate() {
            if set & (1 << at) != 0 {
                inside
                    .extend(term.labels.iter().filter(|l| !inside.contains(l)).collect::<Vec<_>>());
            }
        }
        let outside = |label: &Label| {
            output.contains(label)
                || terms
                    .iter()
                    .enumerate()
                    .any(|(at, t)| set & (1 << at) == 0 && t.labels.contains(label))
        };
        inside.retain(outside);
        inside
    }

    /// The cost of a product of two terms: multiplications plus cells of the result.
    fn cost(&self, x: &[Label], y: &[Label], result: &[Label]) -> u128 {
        let both = x.iter().chain(y.iter().filter(|label| !x.contains(label))).copied();
        self.size(both).saturating_add(self.size(result.iter().copied()))
    }

    /// The cheapest tree of pairs, by dynamic programming over subsets.
    fn exact_order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let n = terms.len();
        let all = (1usize << n) - 1;
        let left: Vec<Vec<Label>> =
            (0..=all).map(|set| Self::left_of(terms, set, output)).collect();
        // For each subset its cost and one half of its last pair.
        let mut best: Vec<(u128, usize)> = vec![(0, 0); all + 1];
        for set in 1..=all {
            if set.count_ones() < 2 {
                continue;
            }
            let mut found: Option<(u128, usize)> = None;
            let mut half = (set - 1) & set;
            while half > 0 {
                let rest = set & !half;
                // Each split once: `half` has the first term.
                if half & (set & set.wrapping_neg()) != 0 {
                    let cost = best[half].0.saturating_add(best[rest].0).saturating_add(self.cost(
                        &left[half],
                        &left[rest],
                        &left[set],
                    ));
                    if found.is_none_or(|(known, _)| cost <= known) {
                        found = Some((cost, half));
                    }
                }
                half = (half - 1) & set;
            }
            best[set] = found.unwrap_or((0, 0));
        }
        let mut order = Vec::with_capacity(n - 1);
        tree(all, &best, n, &mut order);
        order
    }

    /// Takes the cheapest remaining pair repeatedly.
    fn greedy_order(&self, terms: &[Term], output: &[Label]) -> Vec<(usize, usize)> {
        let mut live: Vec<(usize, Vec<Label>)> =
            terms.iter().enumerate().map(|(at, t)| (at, t.labels.clone())).collect();
        let mut order = Vec::with_capacity(terms.len());
        let mut next = terms.len();
        while live.len() > 1 {
            let mut found: Option<(u128, usize, usize, Vec<Label>)> = None;
            for i in 0..live.len() {
                for j in i + 1..live.len() {
                    let (x, y) = (&live[i].1, &live[j].1);
                    let mut result: Vec<Label> = x
                        .iter()
                        .chain(y.iter().filter(|label| !x.contains(label)))
                        .copied()
                        .collect();
                    let others = |label: &Label| {
                        output.contains(label)
                            || live
                                .iter()
                                .enumerate()
                                .any(|(at, (_, other))| at != i && at != j && other.contains(label))
                    };
                    result.retain(others);
                    let cost = self.cost(x, y, &result);
                    if found.as_ref().is_none_or(|(known, ..)| cost < *known) {
                        found = Some((cost, i, j, result));
                    }
                }
            }
            let Some((_, i, j, result)) = found else { break };
            let (second, first) = (live.remove(j), live.remove(i));
            order.push((first.0, second.0));
            live.push((next, result));
            next += 1;
        }
        order
    }
}

/// The pairs of the best tree of a set, innermost first. Returns the number of its product.
fn tree(
    set: usize,
    best: &[(u128, usize)],
    terms: usize,
    order: &mut Vec<(usize, usize)>,
) -> usize {
    if set.count_ones() == 1 {
        return set.trailing_zeros() as usize;
    }
    let half = best[set].1;
    let x = tree(half, best, terms, order);
    let y = tree(set & !half, best, terms, order);
    order.push((x, y));
    terms + order.len() - 1
}
