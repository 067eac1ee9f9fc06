//! Which version of each object a statement has read: all that it reads of an object is of one version, or it fails.
//!
//! ```text
//!   first read    its version is noted: the etag of an object; inode, size and time of a file; that nothing is there
//!   later reads   ask for that version (`If-Match`), and what came is compared: another one is `source_changed`
//! ```
//! An object is a hash of its URL and a version is a hash too, so that an object takes 16 bytes here. A statement that
//! is run again goes on with what it had noted ([`Versions::expect`]): what it reads again is what it read before.
//!
//! Invariants: nothing is asked of a storage for this; what is kept is bounded, and whoever relies on all of it asks
//! [`Versions::is_whole`].

use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::Metadata;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Objects of one statement whose versions are kept: some 18 MB of them. This many just fit a table of 2^20 places.
const OBJECTS_MAX: usize = (1 << 20) / 8 * 7;
/// Bytes of etags that are kept to be asked for; what is read again of other objects is only compared.
const TAG_BYTES_MAX: usize = 16 << 20;
/// Objects that a [`Read`] lists.
const LISTED_MAX: usize = 512;
/// Where FNV-1a begins.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// The version of nothing.
pub(crate) const ABSENT: u64 = 1;

/// An object and its version, as numbers.
pub type Noted = (u64, u64);

/// What one statement has read, and in which versions. Shared by all that read for it.
#[derive(Debug, Default)]
pub struct Versions {
    state: Mutex<VersionLog>,
}

#[derive(Debug, Default)]
struct VersionLog {
    of: HashMap<u64, u64, BuildHasherDefault<Plain>>,
    tags: HashMap<u64, Box<str>, BuildHasherDefault<Plain>>,
    tag_bytes: usize,
    /// What all come to, in whatever order.
    digest: u128,
    /// The first of them.
    first: Vec<Noted>,
    /// What nobody has taken yet, if somebody is to.
    new: Option<Vec<Noted>>,
    /// There were more than can be kept.
    is_cut: bool,
}

/// What a statement has read, to be written down: a list if it is short, else what it comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// How many objects.
    objects: u64,
    /// A hash of all of them and their versions, hexadecimal.
    digest: String,
    /// Objects and versions, hexadecimal, one after the other; empty if they are too many.
    list: String,
}

impl Versions {
    /// Nothing was read yet. With `takes`, [`Versions::take`] gives what is.
    pub fn new(takes: bool) -> Arc<Self> {
        let new = takes.then(Vec::new);
        Arc::new(Versions { state: Mutex::new(VersionLog { new, ..VersionLog::default() }) })
    }

    fn lock(&self) -> MutexGuard<'_, VersionLog> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object was read and had that version; false if it was another one before.
    #[must_use]
    pub(crate) fn met(&self, object: u64, version: u64, tag: Option<&str>) -> bool {
        let state = &mut *self.lock();
        match state.of.get(&object) {
            Some(known) if *known != version => return false,
            Some(_) => {}
            None if state.of.len() >= OBJECTS_MAX => {
                state.is_cut = true;
                return true;
            }
            None => {
                state.add(object, version);
                if let Some(new) = &mut state.new {
                    new.push((object, version));
                }
            }
        }
        if let Some(tag) = tag
            && state.tag_bytes + tag.len() <= TAG_BYTES_MAX
            && let Entry::Vacant(place) = state.tags.entry(object)
        {
            state.tag_bytes += tag.len();
            place.insert(tag.into());
        }
        true
    }

    /// The etag to ask an object for; `None` if it was not read yet, or has none that can be asked for.
    pub(crate) fn tag(&self, object: u64) -> Option<String> {
        self.lock().tags.get(&object).map(|tag| tag.to_string())
    }

    /// All of these are what was read; false if one of them was another one before.
    #[must_use]
    pub fn met_all(&self, noted: &[Noted]) -> bool {
        noted.iter().all(|&(object, version)| self.met(object, version, None))
    }

    /// These had been read in a run before: they count as read, and have to be as they were.
    pub fn expect(&self, noted: &[Noted]) {
        let state = &mut *self.lock();
        for &(object, version) in noted {
            if state.of.len() >= OBJECTS_MAX {
                state.is_cut = true;
                return;
            }
            if !state.of.contains_key(&object) {
                state.add(object, version);
            }
        }
    }

    /// False if more was read than can be kept.
    pub fn is_whole(&self) -> bool {
        !self.lock().is_cut
    }

    /// What was read since the last call.
    pub fn take(&self) -> Vec<Noted> {
        self.lock().new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What was taken and could not be used.
    pub fn give_back(&self, noted: Vec<Noted>) {
        if let Some(new) = &mut self.lock().new {
            new.extend(noted);
        }
    }

    /// What was read until now; `None` if nothing was.
    pub fn read(&self) -> Option<Read> {
        let state = self.lock();
        let objects = state.of.len();
        let listed = if state.first.len() == objects { &state.first[..] } else { &[] };
        (objects > 0).then(|| Read {
            objects: objects as u64,
            digest: format!("{:032x}", state.digest),
            list: listed.iter().map(|(o, v)| format!("{o:016x}{v:016x}")).collect(),
        })
    }
}

impl VersionLog {
    fn add(&mut self, object: u64, version: u64) {
        self.of.insert(object, version);
        let (high, low) = (mixed(object ^ version), mixed(object.wrapping_add(mixed(version))));
        self.digest = self.digest.wrapping_add(u128::from(high) << 64 | u128::from(low));
        if self.first.len() < LISTED_MAX {
            self.first.push((object, version));
        }
    }
}

impl Read {
    /// True if there are more objects than a list has.
    pub fn is_long(&self) -> bool {
        self.list.is_empty()
    }

    /// The list; empty if it is too long.
    pub fn list(&self) -> Vec<Noted> {
        let pair = |pair: &[u8]| {
            let number = |hex: &[u8]| u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok();
            Some((number(pair.get(..16)?)?, number(pair.get(16..)?)?))
        };
        self.list.as_bytes().chunks(32).filter_map(pair).collect()
    }
}

/// A hash that is one already.
#[derive(Debug, Default)]
struct Plain(u64);

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |h, &b| mixed(h ^ u64::from(b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

/// The number of an object: of what stands where the same URL means the same, the place, and the key below it.
pub(crate) fn object(origin: u64, place: &str, key: &str) -> u64 {
    let slash = if key.is_empty() { "" } else { "/" };
    mixed([place, slash, key].into_iter().fold(origin ^ BASIS, texts))
}

/// The hash of a text behind what was hashed before.
///
/// # Source
/// FNV-1a of 64 bits, RFC 9923.
fn texts(before: u64, text: &str) -> u64 {
    text.bytes().fold(before, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The version of a file: its inode, size and time of change in nanoseconds.
pub(crate) fn of_file(meta: &Metadata) -> u64 {
    let parts = [meta.ino(), meta.len(), meta.mtime() as u64, meta.mtime_nsec() as u64];
    above_absent(parts.iter().fold(0, |h, part| mixed(h ^ part)))
}

/// The version of an object in a store, and the etag that it can be asked for.
pub(crate) fn of_object(meta: &ObjectMeta) -> (u64, Option<&str>) {
    match &meta.e_tag {
        // `If-Match` compares strongly, so that a weak etag never matches.
        Some(tag) => (of_tag(tag), (!tag.starts_with("W/")).then_some(tag)),
        None => {
            let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
            (above_absent(mixed(mixed(meta.size) ^ nanos as u64)), None)
        }
    }
}

/// What tells an object from others that had its key, also from one with the same contents where the storage says when
/// it was written.
pub(crate) fn stamp_of(meta: &ObjectMeta) -> u64 {
    let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    let tag = meta.e_tag.as_deref().map_or(0, of_text);
    above_absent(mixed(mixed(mixed(meta.size) ^ nanos as u64) ^ tag))
}

/// The version of an object with that etag.
pub(crate) fn of_tag(tag: &str) -> u64 {
    above_absent(of_text(tag))
}

/// A number for a text.
pub(crate) fn of_text(text: &str) -> u64 {
    mixed(texts(BASIS, text))
}

fn above_absent(version: u64) -> u64 {
    version.max(ABSENT + 1)
}

/// Every bit of a number in every bit of another one.
///
/// # Source
/// G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number generators, OOPSLA 2014; the constants are Stafford's
/// variant 13.
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_one_version() {
        let versions = Versions::new(true);
        assert!(versions.read().is_none());
        assert!(versions.met(7, 40, Some("a")) && versions.met(7, 40, Some("a")));
        assert!(!versions.met(7, 41, None) && !versions.met(7, ABSENT, None));
        assert!(versions.met(8, ABSENT, None) && !versions.met(8, 40, None));
        assert_eq!((versions.tag(7), versions.tag(8)), (Some("a".into()), None));
        assert_eq!(versions.take(), [(7, 40), (8, ABSENT)]);
        assert!(versions.take().is_empty());
        let read = versions.read().unwrap();
        let list = vec![(7, 40), (8, ABSENT)];
        assert_eq!((read.objects, read.list(), read.is_long()), (2, list, false));
    }

    #[test]
    fn what_was_read_before_is_expected() {
        let (first, again) = (Versions::new(true), Versions::new(true));
        assert!(first.met(1, 10, None) && first.met(2, 20, None));
        again.expect(&first.read().unwrap().list());
        assert!(again.take().is_empty(), "it is written down already");
        assert!(!again.met(2, 22, None));
        assert!(again.met(2, 20, Some("b")) && again.met(1, 10, None));
        assert_eq!(again.tag(2), Some("b".into()));
        assert_eq!(again.read(), first.read());
        assert!(again.met(3, 30, None));
        assert_eq!(again.take(), [(3, 30)]);
        assert_ne!(again.read().unwrap().digest, first.read().unwrap().digest);
    }

    #[test]
    fn what_was_read_comes_to_the_same_in_any_order() {
        let (up, down, other) = (Versions::new(false), Versions::new(false), Versions::new(false));
        for n in 0..2000 {
            assert!(up.met(n, n + 40, None) && down.met(1999 - n, 2039 - n, None));
            assert!(other.met(n, n + 40 + u64::from(n == 1000), None));
        }
        assert!(up.read().unwrap().is_long());
        assert_eq!(up.read(), down.read());
        assert_ne!(up.read(), other.read());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let versions = Versions::new(false);
        for object in 0..=OBJECTS_MAX as u64 {
            assert!(versions.is_whole());
            assert!(versions.met(object, 40, None));
        }
        assert!(!versions.is_whole());
        assert!(!versions.met(0, 50, None), "what is kept is still compared");
        let read = versions.read().unwrap();
        assert!(read.is_long() && read.list().is_empty());
        let (table, places) = (versions.lock().of.capacity(), 1 << 20);
        assert!(table <= places, "{table}");
    }

    #[test]
    fn etags_are_kept_up_to_a_bound() {
        let (versions, tag) = (Versions::new(false), "t".repeat(1 << 20));
        for object in 0..20 {
            assert!(versions.met(object, 40, Some(&tag)));
        }
        assert!(versions.tag(15).is_some() && versions.tag(16).is_none());
    }

    #[test]
    fn places_and_keys_are_told_apart() {
        let all = [(0, "a", "b"), (0, "a/b", "c"), (0, "a", "c"), (1, "a", "b"), (0, "ab", "")];
        let numbers = all.map(|(origin, place, key)| object(origin, place, key));
        let distinct: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(object(0, "a", "b/c"), object(0, "a/b", "c"));
        assert_eq!(object(0, "a", "b"), object(0, "a/b", ""));
    }
}
