//! Stable sorts of keys that are bytes.
//!
//! ```text
//! keys of a run      cust_000123 7      all begin with "cust_0"
//!                    cust_000124 3
//!                          ───── ─      the 16 bytes behind that are a number
//! ```
//! A run is sorted by these numbers, without access to the keys. For equal numbers, the common prefix of their keys is
//! found, and the 16 bytes behind it are the next numbers. A merge takes the numbers behind the common prefix of all
//! its runs, which follow from the numbers of each run.

use super::super::radix;
use super::Place;
use super::encoding::ByteKeys;
use std::cmp::Ordering;

/// A number and the place of its key.
pub(super) type Numbered = (u128, Place);

/// Bytes of a key that are its number.
const BYTES: usize = size_of::<u128>();

/// Up to this many keys with equal numbers are compared directly.
const FEW: usize = 3;

/// The first bytes of a key as a number that compares as they do.
pub(in crate::rows) fn first_bytes(key: &[u8]) -> u128 {
    if let Some(first) = key.first_chunk::<BYTES>() {
        return u128::from_be_bytes(*first);
    }
    let mut first = [0; BYTES];
    first[..key.len()].copy_from_slice(key);
    u128::from_be_bytes(first)
}

/// The number of first bytes that two keys share.
pub(in crate::rows::splits) fn shared(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = size_of::<u64>();
    let mut at = 0;
    while let (Some(x), Some(y)) = (a[at..].first_chunk::<STEP>(), b[at..].first_chunk::<STEP>()) {
        let differing = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differing != 0 {
            return at + differing.trailing_zeros() as usize / 8;
        }
        at += STEP;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

fn behind(key: &[u8], from: usize) -> &[u8] {
    key.get(from..).unwrap_or_default()
}

/// The number of bytes behind `from` that all keys share; `None` if the keys are equal.
fn shared_by_all<'k>(
    entries: &[Numbered],
    from: usize,
    key: &impl Fn(Place) -> &'k [u8],
) -> Option<usize> {
    let (first, others) = entries.split_first()?;
    let first = behind(key(first.1), from);
    let (mut common, mut is_equal) = (first.len(), true);
    for other in others {
        let other = behind(key(other.1), from);
        common = shared(&first[..common], other);
        is_equal &= common == first.len() && common == other.len();
        if common == 0 && !is_equal {
            break;
        }
    }
    (!is_equal).then_some(common)
}

/// Sorts entries by their numbers, which begin at byte `from` of their keys, and then by the bytes behind. Equal keys keep
/// their order. No key is longer than `longest`; `end` is the last byte of each key and nowhere within it.
///
/// No key begins with another one, so keys of which no byte is behind their numbers are equal if these are.
fn sort<'k>(
    entries: &mut Vec<Numbered>,
    (from, longest): (usize, usize),
    end: Option<u8>,
    key: impl Fn(Place) -> &'k [u8],
) {
    radix::sort(entries);
    if longest <= from + BYTES {
        return;
    }
    for equal in entries.chunk_by_mut(|a, b| a.0 == b.0) {
        let number = equal[0].0.to_be_bytes();
        if equal.len() > 1 && !end.is_some_and(|end| number.contains(&end)) {
            by_rest(equal, from, &key);
        }
    }
}

/// Sorts entries with equal numbers by their keys.
fn by_rest<'k>(entries: &mut [Numbered], from: usize, key: &impl Fn(Place) -> &'k [u8]) {
    let compare = |a: &Numbered, b: &Numbered, from: usize| {
        behind(key(a.1), from).cmp(behind(key(b.1), from))
    };
    if entries.len() <= FEW {
        entries.sort_by(|a, b| compare(a, b, from));
        return;
    }
    let number = entries[0].0;
    // Entries whose keys share the bytes before `from`.
    let mut open = vec![(0, entries.len(), from)];
    let mut next: Vec<Numbered> = Vec::new();
    while let Some((start, end, from)) = open.pop() {
        let some = &mut entries[start..end];
        if some.len() <= FEW {
            some.sort_by(|a, b| compare(a, b, from));
            continue;
        }
        let Some(common) = shared_by_all(some, from, key) else { continue };
        let from = from + common;
        next.clear();
        next.extend(some.iter().map(|&(_, place)| (first_bytes(behind(key(place), from)), place)));
        radix::sort(&mut next);
        some.copy_from_slice(&next);
        let mut at = start;
        for equal in next.chunk_by(|a, b| a.0 == b.0) {
            match equal.len() {
                1 => {}
                // Keys that end here, and bytes 0 behind others.
                all if all == end - start => {
                    entries[start..end].sort_by(|a, b| compare(a, b, from));
                }
                count => open.push((at, at + count, from)),
            }
            at += equal.len();
        }
    }
    entries.iter_mut().for_each(|entry| entry.0 = number);
}

/// Sorted keys of some batches.
pub(in crate::rows::splits) struct ByteRun {
    /// The numbers of the keys, which begin behind the bytes that all of them share.
    sorted: Vec<Numbered>,
    batches: Vec<ByteKeys>,
    /// The number of the first batch.
    first: u32,
    /// The number of first bytes that all keys share.
    skipped: usize,
    /// The length of the longest key.
    longest: usize,
}

impl ByteRun {
    /// Sorts the keys of some batches, numbered from 0. `end` is the last byte of each key and nowhere within it.
    pub(super) fn new(batches: Vec<ByteKeys>, end: Option<u8>) -> Self {
        let mut keys = batches.iter().flat_map(ByteKeys::iter);
        let first = keys.next().unwrap_or_default();
        let (mut skipped, mut longest) = (first.len(), first.len());
        for key in keys {
            skipped = shared(&first[..skipped], key);
            longest = longest.max(key.len());
        }
        let mut sorted = Vec::with_capacity(batches.iter().map(ByteKeys::len).sum());
        for (batch, keys) in batches.iter().enumerate() {
            let numbered = |(row, key): (usize, &[u8])| {
                (first_bytes(behind(key, skipped)), (batch as u32, row as u32))
            };
            sorted.extend(keys.iter().enumerate().map(numbered));
        }
        sort(&mut sorted, (skipped, longest), end, |(batch, row)| {
            batches[batch as usize].row(row as usize)
        });
        ByteRun { sorted, batches, first: 0, skipped, longest }
    }

    pub(super) fn bytes(&self) -> usize {
        let keys: usize = self.batches.iter().map(ByteKeys::size).sum();
        size_of_val(self.sorted.as_slice()) + keys
    }

    /// Numbers the batches from `by` on.
    pub(super) fn number(&mut self, by: u32) {
        self.sorted.iter_mut().for_each(|(_, place)| place.0 += by);
        self.first += by;
    }

    pub(super) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(super) fn batches(&self) -> &[ByteKeys] {
        &self.batches
    }

    pub(super) fn place(&self, at: usize) -> Place {
        self.sorted[at].1
    }

    pub(super) fn key(&self, (batch, row): Place) -> &[u8] {
        self.batches[(batch - self.first) as usize].row(row as usize)
    }

    /// The bytes that all keys begin with.
    fn prefix(&self) -> &[u8] {
        match self.sorted.first() {
            Some(&(_, place)) => &self.key(place)[..self.skipped],
            None => &[],
        }
    }

    /// The number of entries before a key at that place. The key may be the first bytes of others.
    pub(super) fn before(&self, key: &[u8], place: Place) -> usize {
        let prefix = self.prefix();
        let Some(rest) = key.strip_prefix(prefix) else {
            return if key < prefix { 0 } else { self.len() };
        };
        let number = first_bytes(rest);
        self.sorted.partition_point(|&(own, at)| {
            let rest = || self.key(at).cmp(key).then(at.cmp(&place));
            own.cmp(&number).then_with(rest) == Ordering::Less
        })
    }
}

/// The entries of some runs between two cuts, sorted. The runs are all of a sort, in the order of their batches.
pub(super) fn merged(
    runs: &[&ByteRun],
    from: &[usize],
    to: &[usize],
    end: Option<u8>,
) -> Vec<Numbered> {
    let slices = runs.iter().zip(from.iter().zip(to));
    let slices = slices.map(|(&run, (&from, &to))| (run, &run.sorted[from..to]));
    let slices: Vec<_> = slices.filter(|(_, slice)| !slice.is_empty()).collect();
    let Some(&(first, _)) = slices.first() else { return Vec::new() };
    let (mut common, mut longest) = (first.skipped, 0);
    for (run, _) in &slices {
        common = shared(&first.prefix()[..common], run.prefix());
        longest = longest.max(run.longest);
    }
    let mut entries = Vec::with_capacity(slices.iter().map(|(_, slice)| slice.len()).sum());
    for (run, slice) in &slices {
        // The bytes that the run's own numbers leave out.
        let left_out = behind(run.prefix(), common);
        let head = first_bytes(left_out);
        let number = |number: u128| match left_out.len() {
            0 => number,
            more @ 1..BYTES => head | number >> (8 * more),
            _ => head,
        };
        entries.extend(slice.iter().map(|&(own, place)| (number(own), place)));
    }
    let batches: Vec<&ByteKeys> = runs.iter().flat_map(|run| run.batches()).collect();
    sort(&mut entries, (common, longest), end, |(batch, row)| {
        batches[batch as usize].row(row as usize)
    });
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_share_their_first_bytes() {
        let shared = |a: &str, b: &str| shared(a.as_bytes(), b.as_bytes());
        assert_eq!(shared("", "a"), 0);
        assert_eq!(shared("abc", "abd"), 2);
        assert_eq!(shared("abcdefgh", "abcdefgh"), 8);
        assert_eq!(shared("abcdefghi", "abcdefgh"), 8);
        assert_eq!(shared("0123456789abcdef!", "0123456789abcdeX!"), 15);
        assert_eq!(shared("0123456X", "0123456Y"), 7);
    }

    /// Bytes of any kind, also some that others begin with.
    #[test]
    fn equal_numbers_are_sorted_by_the_bytes_behind() {
        let head = b"0123456789abcdef".repeat(3);
        let tails: [&[u8]; 8] = [b"", b"\0", b"\0\0", b"\0\x01", b"\x01", b"a", b"a\0", b"b"];
        let key = |i: u32| {
            let (cut, tail) = ((i * 7 % 49) as usize, (i * 31 % 8) as usize);
            [&head[..cut], tails[tail]].concat()
        };
        for n in [0, 1, 2, 3, 4, 60, 900] {
            for common in [0, 1] {
                let keys: Vec<Vec<u8>> =
                    (0..n).map(|i| [vec![7; common], key(i)].concat()).collect();
                let numbered = |(row, key): (usize, &Vec<u8>)| {
                    (first_bytes(behind(key, common)), (0, row as u32))
                };
                let mut entries: Vec<Numbered> = keys.iter().enumerate().map(numbered).collect();
                let mut expected = entries.clone();
                expected.sort_by_key(|&(_, (_, row))| &keys[row as usize]);
                sort(&mut entries, (common, 100), None, |(_, row)| &keys[row as usize]);
                assert_eq!(entries, expected, "{n} {common}");
            }
        }
    }
}
