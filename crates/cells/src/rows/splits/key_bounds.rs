//! Bounds between rows in the order of a sort.
//!
//! ```text
//! keys      … 3 3 4 │ 4 4 5 │ 7 …       equal keys may be on both sides of a bound: those of the earlier splits before it
//! splits        0 1 │ 2 5 0 │
//! ```

use super::keys::{Keys, RowKeys, first_bytes, shared};
use datafusion::common::{Result, internal_err};
use std::cmp::Ordering;

/// A key as bytes that compare as keys do, and a split.
pub(super) type Bound = (Vec<u8>, u32);

/// Bounds, in their order.
pub(super) enum KeyBounds {
    Narrow(Vec<(u64, u32)>),
    Wide(Vec<(u128, u32)>),
    Bytes(ByteBounds),
}

pub(super) struct ByteBounds {
    /// The common prefix of all bounds.
    prefix: Vec<u8>,
    /// The bounds, each with the number of its bytes behind the prefix.
    bounds: Vec<(u128, Bound)>,
}

impl ByteBounds {
    fn new(bounds: &[Bound]) -> Self {
        let first: &[u8] = match bounds.first() {
            Some((key, _)) => key.as_slice(),
            None => &[],
        };
        let length = |length: usize, (key, _): &Bound| shared(&first[..length], key);
        let prefix = first[..bounds.iter().fold(first.len(), length)].to_vec();
        let numbered = |bound: &Bound| (first_bytes(&bound.0[prefix.len()..]), bound.clone());
        let bounds = bounds.iter().map(numbered).collect();
        ByteBounds { prefix, bounds }
    }

    /// The number of bounds that are not behind a key.
    fn place(&self, key: &[u8], split: u32) -> usize {
        let Some(rest) = key.strip_prefix(self.prefix.as_slice()) else {
            return if key < self.prefix.as_slice() { 0 } else { self.bounds.len() };
        };
        let number = first_bytes(rest);
        self.bounds.partition_point(|(own, (bound, of))| {
            let rest = || bound.as_slice().cmp(key).then(of.cmp(&split));
            own.cmp(&number).then_with(rest) != Ordering::Greater
        })
    }
}

impl RowKeys {
    /// The key of a row as bytes, which compare as the keys do.
    pub(super) fn bytes(&self, row: usize) -> Vec<u8> {
        match self {
            RowKeys::Narrow(keys) => keys[row].to_be_bytes().to_vec(),
            RowKeys::Wide(keys) => keys[row].to_be_bytes().to_vec(),
            RowKeys::Bytes(rows) => rows.row(row).to_vec(),
        }
    }
}

impl KeyBounds {
    /// Bounds for keys of that kind.
    pub(super) fn new(keys: &Keys, bounds: &[Bound]) -> Result<Self> {
        if !bounds.is_sorted() {
            return internal_err!("the bounds of {} parts are not in order", bounds.len() + 1);
        }
        let bounds = match keys.number_bytes() {
            Some(8) => numbers(bounds, u64::from_be_bytes).map(KeyBounds::Narrow),
            Some(16) => numbers(bounds, u128::from_be_bytes).map(KeyBounds::Wide),
            _ => Some(KeyBounds::Bytes(ByteBounds::new(bounds))),
        };
        match bounds {
            Some(bounds) => Ok(bounds),
            None => internal_err!("the bounds of parts are of other keys"),
        }
    }

    /// The part of each row of a split: the number of bounds that are not behind it.
    pub(super) fn parts_of(&self, keys: &RowKeys, split: u32) -> Result<Vec<u32>> {
        Ok(match (self, keys) {
            (KeyBounds::Narrow(bounds), RowKeys::Narrow(keys)) => places(bounds, keys, split),
            (KeyBounds::Wide(bounds), RowKeys::Wide(keys)) => places(bounds, keys, split),
            (KeyBounds::Bytes(bounds), RowKeys::Bytes(rows)) => {
                let place = |row: usize| bounds.place(rows.row(row), split) as u32;
                (0..rows.len()).map(place).collect()
            }
            _ => return internal_err!("the keys of rows are not those of the bounds"),
        })
    }
}

fn numbers<K, const N: usize>(bounds: &[Bound], of: fn([u8; N]) -> K) -> Option<Vec<(K, u32)>> {
    let number = |(key, split): &Bound| Some((of(key.as_slice().try_into().ok()?), *split));
    bounds.iter().map(number).collect()
}

fn places<K: Ord + Copy>(bounds: &[(K, u32)], keys: &[K], split: u32) -> Vec<u32> {
    let place = |key: &K| bounds.partition_point(|bound| *bound <= (*key, split)) as u32;
    keys.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use datafusion::arrow::compute::SortOptions;
    use datafusion::physical_expr::PhysicalSortExpr;
    use datafusion::physical_expr::expressions::col;
    use std::sync::Arc;

    fn rows() -> RecordBatch {
        let a: ArrayRef = Arc::new(Int64Array::from(vec![-3, 4, 4, 9]));
        let b: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 2, 3]));
        let s: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "b", "c"]));
        let columns = [("a", a), ("b", b), ("s", s)].map(|(name, column)| (name, column, false));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    }

    /// The parts of the rows of a split, if the second row of split 2 is a bound.
    fn parts(columns: &[&str], whole: usize, split: u32) -> Vec<u32> {
        let rows = rows();
        let options = SortOptions::default();
        let key = |name: &&str| PhysicalSortExpr::new(col(name, &rows.schema()).unwrap(), options);
        let sort: Vec<_> = columns.iter().map(key).collect();
        let keys = Keys::new(&sort, &rows.schema()).unwrap();
        let of_rows = keys.first_of_rows(&rows, whole).unwrap();
        let bound = (of_rows.bytes(1), if whole > 0 { 0 } else { 2 });
        let bounds = KeyBounds::new(&keys, std::slice::from_ref(&bound)).unwrap();
        let lower = (of_rows.bytes(0), 0);
        assert!(KeyBounds::new(&keys, &[bound, lower]).is_err());
        bounds.parts_of(&of_rows, split).unwrap()
    }

    #[test]
    fn equal_keys_of_earlier_splits_are_before_a_bound() {
        for columns in [&["a"][..], &["s"]] {
            assert_eq!(parts(columns, 0, 1), [0, 0, 0, 1], "{columns:?}");
            assert_eq!(parts(columns, 0, 2), [0, 1, 1, 1], "{columns:?}");
            assert_eq!(parts(columns, 0, 3), [0, 1, 1, 1], "{columns:?}");
        }
        assert_eq!(parts(&["a", "b"], 0, 1), [0, 0, 1, 1]);
    }

    #[test]
    fn rows_with_the_same_first_keys_are_in_one_part() {
        for split in 0..4 {
            for columns in [["a", "b"], ["s", "b"]] {
                assert_eq!(parts(&columns, 1, split), [0, 1, 1, 1], "{columns:?} {split}");
            }
        }
    }

    #[test]
    fn keys_are_placed_whether_or_not_they_begin_as_the_bounds_do() {
        let keys: Vec<Vec<u8>> = ["", "cust", "cust_", "cust_0", "cust_01", "cust_1", "cusu", "d"]
            .iter()
            .flat_map(|head| {
                ["", "\0", "a long end of a key", "a long end of a kez"].map(|end| (head, end))
            })
            .map(|(head, end)| format!("{head}{end}").into_bytes())
            .collect();
        let bounds = |some: &[&str]| -> Vec<Bound> {
            let bound = |key: &&str| [(key.as_bytes().to_vec(), 1), (key.as_bytes().to_vec(), 3)];
            some.iter().flat_map(bound).collect()
        };
        let long = "cust_0a long end of a key";
        for bounds in [bounds(&[]), bounds(&["cust_0"]), bounds(&["cust_0", long, "cust_1"])] {
            let placed = ByteBounds::new(&bounds);
            for key in &keys {
                for split in 0..5 {
                    let own = (key.clone(), split);
                    let expected = bounds.iter().filter(|bound| **bound <= own).count();
                    assert_eq!(placed.place(key, split), expected, "{key:?} {split} {bounds:?}");
                }
            }
        }
    }
}
