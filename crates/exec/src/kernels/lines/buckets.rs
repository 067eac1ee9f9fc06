//! Buckets: the keys of a line cut into ranges, with bounds from a sample.
//!
//! # Source
//! P. Sanders and S. Winkel, "Super Scalar Sample Sort", 2004, for the search without branches.

use super::key::Key;

/// Number of buckets.
pub(super) const BUCKETS: usize = 256;
const LEVELS: u32 = BUCKETS.ilog2();
/// Most keys of the sample for each bucket.
const SAMPLES: usize = 16;
/// Keys that are searched at once: none of them has to wait for another.
const LANES: usize = 8;

/// Keys that can be read again where they come from.
pub(super) trait Source<K> {
    /// Calls `f` with each key.
    fn each(&self, f: impl FnMut(K));
}

/// A search tree of the bounds between buckets: node `i` has the children `2 i` and `2 i + 1`.
struct Tree<K>([K; BUCKETS]);

impl<K: Key> Tree<K> {
    fn new(keys: &[K]) -> Self {
        let each = (keys.len() / (8 * BUCKETS)).clamp(1, SAMPLES);
        let step = (keys.len() / (BUCKETS * each)).max(1);
        // Not at even distances, at which what repeats along a line would be met at the same place again and again.
        let within = |i: usize| (i as u32).wrapping_mul(0x9E37_79B1) as usize % step;
        let at = |i: usize| (i * step + within(i)) % keys.len();
        let mut sample: Vec<K> = (0..BUCKETS * each).map(|i| keys[at(i)]).collect();
        sample.sort_unstable();
        let mut tree = [K::default(); BUCKETS];
        for (i, node) in tree.iter_mut().enumerate().skip(1) {
            let level = i.ilog2();
            let within = 2 * (i - (1 << level)) + 1;
            *node = sample[(BUCKETS >> (level + 1)) * within * each];
        }
        Tree(tree)
    }

    /// The buckets of some keys.
    #[inline(always)]
    fn find<const N: usize>(&self, keys: &[K; N]) -> [u8; N] {
        let mut nodes = [1usize; N];
        for _ in 0..LEVELS {
            for (node, key) in nodes.iter_mut().zip(keys) {
                *node = 2 * *node + usize::from(self.0[*node % BUCKETS] <= *key);
            }
        }
        nodes.map(|node| (node % BUCKETS) as u8)
    }
}

/// Puts keys, which are those of `source`, in the order of their buckets, and gives the end of each. `numbers` is room
/// for a number a key.
pub(super) fn spread<K: Key>(
    keys: &mut [K],
    source: &impl Source<K>,
    numbers: &mut [u8],
) -> [usize; BUCKETS] {
    let tree = Tree::new(keys);
    let (whole, rest) = keys.as_chunks::<LANES>();
    let (numbers_whole, numbers_rest) = numbers.as_chunks_mut::<LANES>();
    for (numbers, keys) in numbers_whole.iter_mut().zip(whole) {
        *numbers = tree.find(keys);
    }
    for (number, key) in numbers_rest.iter_mut().zip(rest) {
        [*number] = tree.find(&[*key]);
    }
    let mut places = [0usize; BUCKETS];
    for number in &*numbers {
        places[usize::from(*number)] += 1;
    }
    let mut first = 0;
    for p in &mut places {
        (*p, first) = (first, first + *p);
    }
    let mut numbers = numbers.iter();
    source.each(|key| {
        if let Some(number) = numbers.next() {
            let place = &mut places[usize::from(*number)];
            keys[*place] = key;
            *place += 1;
        }
    });
    places
}
