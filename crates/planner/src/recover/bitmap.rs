//! Sets of operands.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Upper bound on the members of a set that is read from another process: an order has no more operands.
const READ_MAX: u64 = 1 << 24;
/// Upper bound on the numbers in such a set.
const NUMBER_MAX: u64 = 1 << 56;

/// A set of operands of one stage: a bitmap without the words that are zero.
///
/// Its serialised form is a list of combs. A box of operands is one comb if it is cut along one axis:
///
/// ```text
///   . . # # . . . . # # . . . . # # .       gap 2, length 2, step 6, count 3
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap {
    words: BTreeMap<u64, u64>,
}

/// Runs of equal length at equal distances: the numbers between it and the comb before, the length of a run, the
/// distance of the first numbers of two runs (0 if there is one run), and the number of runs.
type Comb = (u64, u64, u64, u64);

impl Bitmap {
    /// Adds a number; returns false if the set contained it.
    pub fn insert(&mut self, n: u64) -> bool {
        let word = self.words.entry(n / 64).or_default();
        let before = *word;
        *word |= 1 << (n % 64);
        *word != before
    }

    /// Adds the numbers `[start, end)`.
    pub fn insert_range(&mut self, start: u64, end: u64) {
        let mut n = start;
        while n < end {
            let stop = end.min((n / 64 + 1) * 64);
            let ones = u64::MAX >> (64 - (stop - n));
            *self.words.entry(n / 64).or_default() |= ones << (n % 64);
            n = stop;
        }
    }

    /// Removes a number; returns false if the set did not contain it.
    pub fn remove(&mut self, n: u64) -> bool {
        let Some(word) = self.words.get_mut(&(n / 64)) else { return false };
        let before = *word;
        *word &= !(1 << (n % 64));
        let was = *word != before;
        if *word == 0 {
            self.words.remove(&(n / 64));
        }
        was
    }

    /// True if the set contains `n`.
    pub fn contains(&self, n: u64) -> bool {
        self.words.get(&(n / 64)).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Returns the first member that is not below `n`.
    pub fn first_from(&self, n: u64) -> Option<u64> {
        let (&at, &word) = self.words.range(n / 64..).find(|&(&at, &word)| {
            let below = if at == n / 64 { n % 64 } else { 0 };
            word >> below != 0
        })?;
        let below = if at == n / 64 { n % 64 } else { 0 };
        Some(at * 64 + below + u64::from((word >> below).trailing_zeros()))
    }

    /// Adds all members of another set.
    pub fn extend(&mut self, other: &Bitmap) {
        for (&at, &word) in &other.words {
            *self.words.entry(at).or_default() |= word;
        }
    }

    /// Removes all members of another set.
    pub fn remove_all(&mut self, other: &Bitmap) {
        if self.words.len() <= other.words.len() {
            self.words.retain(|at, word| {
                *word &= !other.words.get(at).copied().unwrap_or(0);
                *word != 0
            });
            return;
        }
        for (at, without) in &other.words {
            if let Some(word) = self.words.get_mut(at) {
                *word &= !without;
                if *word == 0 {
                    self.words.remove(at);
                }
            }
        }
    }

    /// The members of both sets.
    pub fn and(&self, other: &Bitmap) -> Bitmap {
        let (few, many) = match self.words.len() <= other.words.len() {
            true => (self, other),
            false => (other, self),
        };
        let both = few.words.iter().filter_map(|(&at, word)| {
            let both = word & many.words.get(&at)?;
            (both != 0).then_some((at, both))
        });
        Bitmap { words: both.collect() }
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        self.words.values().map(|w| u64::from(w.count_ones())).sum()
    }

    /// True if there are no members.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs().flat_map(|(start, end)| start..end)
    }

    /// The longest runs `[start, end)` of members, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut words = self.words.iter().map(|(&at, &word)| (at, word));
        // The word that the next run begins in, without the bits of runs before.
        let mut open = words.next();
        std::iter::from_fn(move || {
            let (mut at, word) = open?;
            let first = word.trailing_zeros();
            let start = at * 64 + u64::from(first);
            let (mut rest, mut ones) = (word, first + (word >> first).trailing_ones());
            loop {
                if ones < 64 {
                    rest = rest >> ones << ones;
                    open = if rest == 0 { words.next() } else { Some((at, rest)) };
                    return Some((start, at * 64 + u64::from(ones)));
                }
                match words.next() {
                    Some((next, word)) if next == at + 1 && word & 1 == 1 => {
                        (at, rest, ones) = (next, word, word.trailing_ones());
                    }
                    next => {
                        open = next;
                        return Some((start, (at + 1) * 64));
                    }
                }
            }
        })
    }

    fn combs(&self) -> Vec<Comb> {
        let mut combs: Vec<Comb> = Vec::new();
        // First number of the last comb, and the end of its last run.
        let (mut first, mut last) = (0, 0);
        for (start, end) in self.runs() {
            match combs.last_mut() {
                Some((_, len, step, count)) if *len == end - start && *count == 1 => {
                    (*step, *count) = (start - first, 2);
                }
                Some((_, len, step, count))
                    if *len == end - start && start == first + *step * *count =>
                {
                    *count += 1;
                }
                _ => {
                    combs.push((start - last, end - start, 0, 1));
                    first = start;
                }
            }
            last = end;
        }
        combs
    }

    fn from_combs(combs: &[Comb]) -> Option<Self> {
        let (mut all, mut members, mut end) = (Bitmap::default(), 0u64, 0u64);
        for &(gap, len, step, count) in combs {
            let is_sound = len > 0 && count > 0 && (count == 1 || step > len);
            members = members.checked_add(len.checked_mul(count)?)?;
            let first = end.checked_add(gap)?;
            end = first.checked_add(step.checked_mul(count - u64::from(is_sound))?)?;
            end = end.checked_add(len)?;
            if !is_sound || members > READ_MAX || end > NUMBER_MAX {
                return None;
            }
            (0..count)
                .for_each(|run| all.insert_range(first + run * step, first + run * step + len));
        }
        Some(all)
    }
}

impl Serialize for Bitmap {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.combs().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Bitmap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let combs = Vec::<Comb>::deserialize(from)?;
        Bitmap::from_combs(&combs).ok_or_else(|| {
            D::Error::custom(format!("no set of at most {READ_MAX} numbers below {NUMBER_MAX}"))
        })
    }
}

impl FromIterator<u64> for Bitmap {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut all = Bitmap::default();
        numbers.into_iter().for_each(|n| {
            all.insert(n);
        });
        all
    }
}
