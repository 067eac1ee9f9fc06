//! The groups of several sets of keys: `ROLLUP`, `CUBE` and `GROUPING SETS`.
//!
//! ```text
//! ROLLUP (a, b)     keys of a row ──▶ group of (a, b) ──▶ group of (a)
//!                                                     └─▶ group of ()
//! ```
//! A set is finest if no other set has all of its keys. The keys of rows are numbered for the finest sets alone. All rows
//! of a group there share a group in a coarser set, which is looked up once, when the finer group is new. So the states of
//! a coarser set are merged from those of the finest one, in the order of its groups ([`Merged`]). Groups of all sets have
//! one order, that of DataFusion: by batches, of a batch by sets, of a set by rows.

use super::numbers::{Numbers, check};
use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, UInt32Array, UInt64Array, new_null_array,
};
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::compute::{cast, concat, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::hash_utils::RandomState;
use datafusion::error::Result;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::mem;

/// The keys of groups of all sets, numbered.
pub(super) struct Sets {
    types: Vec<DataType>,
    finest: Vec<Finest>,
    sets: Vec<Set>,
    /// The set of each group, and the first of its groups in the finest set.
    groups: Vec<(u32, u32)>,
    /// The type of `__grouping_id`, which is a further key, if there is one.
    id: Option<DataType>,
}

/// A set that no other one has all keys of, and the rows of a batch in it.
struct Finest {
    keys: Vec<usize>,
    numbers: Numbers,
    rows: Vec<usize>,
    /// The numbers of the values of new groups, for each key.
    new: Vec<Vec<u32>>,
}

struct Set {
    /// True for each key that is NULL in this set.
    nulls: Vec<bool>,
    /// The value of `__grouping_id`.
    id: u64,
    /// The finest set that has all of its keys.
    finest: usize,
    /// `None` if it has all keys of the finest set.
    coarser: Option<Coarser>,
    /// The set whose states become those of this one; `None` if they are those of rows.
    from: Option<usize>,
    /// For each group of the finest set the group here, as it is numbered among those of all sets.
    of_finest: Vec<u32>,
}

/// Groups of coarser sets, for each group of the finest set of each.
pub(super) struct Merged {
    finer: UInt32Array,
    own: Vec<usize>,
    /// For each group of all sets, whether its states are merged.
    is_merged: BooleanArray,
}

impl Merged {
    /// The states of all groups by the states of those in sets with rows. The accumulator is a new one.
    pub(super) fn states(
        &self,
        states: Vec<ArrayRef>,
        mut of: Box<dyn GroupsAccumulator>,
    ) -> Result<Vec<ArrayRef>> {
        let finer = states.iter().map(|state| Ok(take(state, &self.finer, None)?));
        let finer = finer.collect::<Result<Vec<ArrayRef>>>()?;
        // All at once: some states take a group that is not among these for one of rows without NULL.
        of.merge_batch(&finer, &self.own, self.is_merged.len())?;
        let merged = of.state(EmitTo::All)?;
        let all = states.iter().zip(&merged);
        all.map(|(own, merged)| Ok(zip(&self.is_merged, merged, own)?)).collect()
    }
}

/// Some keys of a finest set.
struct Coarser {
    /// Their positions in the finest set.
    keys: Vec<usize>,
    /// The groups by the numbers of the values of the keys.
    known: HashMap<Box<[u32]>, u32, RandomState>,
}

impl Sets {
    /// True if groups of sets of `keys` keys can be numbered. A set has true for each key that is NULL in it.
    pub(super) fn has(keys: usize, nulls: &[Vec<bool>]) -> bool {
        // Bits of `__grouping_id`: the keys, and how often a set came before.
        let bits = keys + (usize::BITS - nulls.len().leading_zeros()) as usize;
        bits <= u64::BITS as usize && nulls.iter().any(|set| set.contains(&false))
    }

    pub(super) fn new(types: Vec<DataType>, nulls: &[Vec<bool>], id: Option<DataType>) -> Self {
        let mut by_size: Vec<usize> = (0..nulls.len()).collect();
        by_size.sort_by_key(|at| Reverse(keys_of(&nulls[*at]).len()));
        let (mut finest, mut of) = (Vec::<Finest>::new(), vec![0; nulls.len()]);
        for at in by_size {
            let keys = keys_of(&nulls[at]);
            let has_all = |f: &Finest| keys.iter().all(|key| f.keys.contains(key));
            of[at] = finest.iter().position(has_all).unwrap_or(finest.len());
            if of[at] == finest.len() {
                finest.push(Finest::new(keys, &types));
            }
        }
        let mut before: HashMap<&[bool], u64> = HashMap::new();
        let sets = nulls.iter().zip(of).map(|(set, of)| {
            let before = before.entry(set).or_default();
            let id = id_of(set, *before);
            *before += 1;
            let coarser = Coarser::of(&keys_of(set), &finest[of].keys);
            let of_finest = Vec::new();
            Set { nulls: set.clone(), id, finest: of, coarser, from: None, of_finest }
        });
        let mut sets: Vec<Set> = sets.collect();
        // The first set that has all keys of the finest one.
        let first =
            |of: usize| sets.iter().position(|set| set.finest == of && set.coarser.is_none());
        let from: Vec<Option<usize>> = (0..)
            .zip(&sets)
            .map(|(at, set)| first(set.finest).filter(|first| *first != at))
            .collect();
        sets.iter_mut().zip(from).for_each(|(set, from)| set.from = from);
        Sets { types, finest, sets, groups: Vec::new(), id }
    }

    /// The sets.
    pub(super) fn count(&self) -> usize {
        self.sets.len()
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Numbers the rows of a batch. Their groups are added afterwards, one set after the other.
    pub(super) fn number(&mut self, keys: &[ArrayRef]) -> Result<()> {
        self.finest.iter_mut().try_for_each(|finest| finest.number(keys))
    }

    /// Adds the new groups of a set.
    pub(super) fn add(&mut self, at: usize) -> Result<()> {
        let set = &mut self.sets[at];
        let finest = &self.finest[set.finest];
        set.add(at, finest, &mut self.groups)
    }

    /// True if the states of a set are those of rows.
    pub(super) fn has_rows(&self, at: usize) -> bool {
        self.sets[at].from.is_none()
    }

    /// The group of each row in a set, whose groups have been added.
    pub(super) fn groups_of(&mut self, at: usize, groups: &mut Vec<usize>) {
        let set = &self.sets[at];
        let finest = &mut self.finest[set.finest];
        if self.sets.len() == 1 {
            // Its groups are those of all sets.
            mem::swap(groups, &mut finest.rows);
            return;
        }
        groups.clear();
        groups.extend(finest.rows.iter().map(|group| set.of_finest[*group] as usize));
    }

    /// The groups whose states are merged; `None` if there are none, or no rows.
    pub(super) fn merged(&self) -> Option<Merged> {
        let (mut finer, mut own) = (Vec::new(), Vec::new());
        for set in &self.sets {
            let Some(from) = set.from else { continue };
            finer.extend_from_slice(&self.sets[from].of_finest);
            own.extend(set.of_finest.iter().map(|group| *group as usize));
        }
        if own.is_empty() {
            return None;
        }
        let is_merged = self.groups.iter().map(|(set, _)| !self.has_rows(*set as usize));
        let is_merged = BooleanArray::from(is_merged.collect::<Vec<bool>>());
        Some(Merged { finer: UInt32Array::from(finer), own, is_merged })
    }

    /// Adds the group of each set without keys, which has one even if there are no rows.
    pub(super) fn add_totals(&mut self) {
        for (at, set) in (0..).zip(&self.sets) {
            if keys_of(&set.nulls).is_empty() {
                self.groups.push((at, 0));
            }
        }
    }

    pub(super) fn size(&self) -> usize {
        let finest: usize = self.finest.iter().map(Finest::size).sum();
        let sets: usize = self.sets.iter().map(Set::size).sum();
        finest + sets + self.groups.capacity() * size_of::<(u32, u32)>()
    }

    /// Removes and returns the keys of all groups, in their order.
    pub(super) fn take(&mut self) -> Result<Vec<ArrayRef>> {
        let groups = mem::take(&mut self.groups);
        let taken = self.finest.iter_mut().map(Finest::take);
        let taken = taken.collect::<Result<Vec<Vec<ArrayRef>>>>()?;
        let mut columns = Vec::with_capacity(self.types.len() + 1);
        for (key, kind) in self.types.iter().enumerate() {
            // The values of all finest sets that have the key, and where those of each set begin.
            let (mut parts, mut starts, mut len) = (Vec::<&dyn Array>::new(), Vec::new(), 0);
            for (finest, taken) in self.finest.iter().zip(&taken) {
                starts.push(len);
                if let Some(at) = finest.keys.iter().position(|other| *other == key) {
                    parts.push(&taken[at]);
                    len += taken[at].len() as u32;
                }
            }
            if len == 0 {
                columns.push(new_null_array(kind, groups.len()));
                continue;
            }
            let values = groups.iter().map(|(set, first)| {
                let set = &self.sets[*set as usize];
                (!set.nulls[key]).then(|| starts[set.finest] + first)
            });
            columns.push(take(&concat(&parts)?, &values.collect::<UInt32Array>(), None)?);
        }
        if let Some(kind) = &self.id {
            let ids = groups.iter().map(|(set, _)| self.sets[*set as usize].id);
            columns.push(cast(&UInt64Array::from_iter_values(ids), kind)?);
        }
        self.sets.iter_mut().for_each(Set::clear);
        Ok(columns)
    }
}

/// The keys of a set.
fn keys_of(nulls: &[bool]) -> Vec<usize> {
    nulls.iter().enumerate().filter(|(_, is_null)| !**is_null).map(|(key, _)| key).collect()
}

/// The value of `__grouping_id`: a bit for each key that is NULL, that of the last key lowest, and above them the number of
/// the same sets before.
fn id_of(set: &[bool], before: u64) -> u64 {
    set.iter().fold(before, |id, is_null| (id << 1) | u64::from(*is_null))
}

impl Finest {
    fn new(keys: Vec<usize>, types: &[DataType]) -> Self {
        let types: Vec<DataType> = keys.iter().map(|key| types[*key].clone()).collect();
        Finest { keys, numbers: Numbers::new(&types), rows: Vec::new(), new: Vec::new() }
    }

    fn number(&mut self, keys: &[ArrayRef]) -> Result<()> {
        let keys: Vec<ArrayRef> = self.keys.iter().map(|key| keys[*key].clone()).collect();
        let before = self.numbers.len() as u32;
        self.numbers.number(&keys, &mut self.rows)?;
        self.new = self.numbers.values_of((before..self.numbers.len() as u32).collect());
        Ok(())
    }

    fn size(&self) -> usize {
        let new: usize = self.new.iter().map(|new| new.capacity() * size_of::<u32>()).sum();
        self.numbers.size() + new + self.rows.capacity() * size_of::<usize>()
    }

    fn take(&mut self) -> Result<Vec<ArrayRef>> {
        (self.rows, self.new) = (Vec::new(), Vec::new());
        self.numbers.take()
    }
}

impl Set {
    fn add(&mut self, at: usize, finest: &Finest, groups: &mut Vec<(u32, u32)>) -> Result<()> {
        let new = self.of_finest.len()..finest.numbers.len();
        self.of_finest.reserve(new.len());
        for (row, finer) in new.enumerate() {
            let next = groups.len() as u32;
            let group = match &mut self.coarser {
                Some(coarser) => coarser.group(&finest.new, row, next),
                None => next,
            };
            if group == next {
                groups.push((at as u32, finer as u32));
            }
            self.of_finest.push(group);
        }
        check(groups.len())
    }

    fn size(&self) -> usize {
        let coarser = self.coarser.as_ref().map_or(0, Coarser::size);
        coarser + self.of_finest.capacity() * size_of::<u32>()
    }

    fn clear(&mut self) {
        self.of_finest = Vec::new();
        if let Some(coarser) = &mut self.coarser {
            coarser.known = HashMap::default();
        }
    }
}

impl Coarser {
    /// `None` if the finest set has no other keys.
    fn of(keys: &[usize], finest: &[usize]) -> Option<Self> {
        let at = (0..finest.len()).filter(|at| keys.contains(&finest[*at]));
        let known = HashMap::default();
        (keys.len() < finest.len()).then(|| Coarser { keys: at.collect(), known })
    }

    /// The group of a row of keys of the finest set: `next` if it is new.
    fn group(&mut self, keys: &[Vec<u32>], row: usize, next: u32) -> u32 {
        let values: Box<[u32]> = self.keys.iter().map(|key| keys[*key][row]).collect();
        *self.known.entry(values).or_insert(next)
    }

    fn size(&self) -> usize {
        let keys = self.known.len() * self.keys.len() * size_of::<u32>();
        keys + self.known.capacity() * size_of::<(Box<[u32]>, u32)>()
    }
}

#[cfg(test)]
mod tests;
