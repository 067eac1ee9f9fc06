//! Versions of the objects that a statement has read: it reads one version of each object, or it fails.
//!
//! ```text
//!   first read    its version is noted: the etag of an object; inode, size and time of a file; its absence
//!   later reads   request that version (`If-Match`), and the response is compared: another one is `source_changed`
//! ```
//! An object is a hash of its URL and a version is a hash too, so that an object takes 16 bytes here. A statement that
//! is run again starts with its earlier notes ([`Versions::expect`]), so it reads the same versions again.
//!
//! Invariants: no extra requests to storage are made for this; the notes are bounded, and a caller that relies on
//! their completeness checks [`Versions::is_whole`].

use crate::lock;
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::Metadata;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Upper bound on the noted objects of one statement: some 18 MB of them. This many just fit a table of 2^20 places.
const OBJECTS_MAX: usize = (1 << 20) / 8 * 7;
/// Upper bound on the bytes of etags retained for requests; versions of other objects are only compared.
const TAG_BYTES_MAX: usize = 16 << 20;
/// Upper bound on the objects that a [`Read`] lists.
const LISTED_MAX: usize = 512;
/// A file that changed so recently may change again with the same time stamp: clocks of file systems tick slowly.
pub(crate) const SETTLED: Duration = Duration::from_secs(2);
/// Initial value of FNV-1a.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
pub(crate) const ABSENT: u64 = 1;

/// An object and its version, as hashes.
pub type Noted = (u64, u64);

/// The objects that one statement has read, with their versions. Shared by all its readers.
#[derive(Debug, Default)]
pub struct Versions {
    state: Mutex<VersionLog>,
}

#[derive(Debug, Default)]
struct VersionLog {
    of: HashMap<u64, u64, BuildHasherDefault<Plain>>,
    tags: HashMap<u64, Box<str>, BuildHasherDefault<Plain>>,
    tag_bytes: usize,
    /// Hash of all objects and versions, independent of their order.
    digest: u128,
    /// The first of them, up to [`LISTED_MAX`].
    first: Vec<Noted>,
    /// Notes not yet taken; `None` if they are never taken.
    new: Option<Vec<Noted>>,
    /// True if there were more objects than the limit.
    is_cut: bool,
}

/// The reads of a statement in a form to be recorded: a list if it is short, else only a hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    objects: u64,
    /// A hash of all objects and their versions, hexadecimal.
    digest: String,
    /// Objects and versions, hexadecimal, concatenated; empty if they are too many.
    list: String,
}

impl Versions {
    /// Creates empty notes. With `takes`, [`Versions::take`] returns new ones.
    pub fn new(takes: bool) -> Arc<Self> {
        let new = takes.then(Vec::new);
        Arc::new(Versions { state: Mutex::new(VersionLog { new, ..VersionLog::default() }) })
    }

    /// Records the version of an object that was read; false if another version was recorded before.
    #[must_use]
    pub(crate) fn met(&self, object: u64, version: u64, tag: Option<&str>) -> bool {
        let state = &mut *lock(&self.state);
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

    /// The etag for requests of an object; `None` if it was not read yet, or has no usable etag.
    pub(crate) fn tag(&self, object: u64) -> Option<String> {
        lock(&self.state).tags.get(&object).map(|tag| tag.to_string())
    }

    /// The version of an object, if it is recorded.
    pub(crate) fn version(&self, object: u64) -> Option<u64> {
        lock(&self.state).of.get(&object).copied()
    }

    /// Records versions of objects; false if another version of one of them was recorded before.
    #[must_use]
    pub fn met_all(&self, noted: &[Noted]) -> bool {
        noted.iter().all(|&(object, version)| self.met(object, version, None))
    }

    /// Adds the reads of an earlier run, whose versions are required from now on.
    pub fn expect(&self, noted: &[Noted]) {
        let state = &mut *lock(&self.state);
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

    /// All recorded versions.
    pub fn all(&self) -> Vec<Noted> {
        let mut all: Vec<Noted> = lock(&self.state).of.iter().map(|(o, v)| (*o, *v)).collect();
        all.sort_unstable();
        all
    }

    /// False if more objects were read than the limit.
    pub fn is_whole(&self) -> bool {
        !lock(&self.state).is_cut
    }

    /// Returns the reads since the last call.
    pub fn take(&self) -> Vec<Noted> {
        lock(&self.state).new.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Puts back reads that were taken and could not be used.
    pub fn give_back(&self, noted: Vec<Noted>) {
        if let Some(new) = &mut lock(&self.state).new {
            new.extend(noted);
        }
    }

    /// Returns the reads so far; `None` if nothing was read.
    pub fn read(&self) -> Option<Read> {
        let state = lock(&self.state);
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

    /// The list; empty if there are too many objects.
    pub fn list(&self) -> Vec<Noted> {
        let pair = |pair: &[u8]| {
            let number = |hex: &[u8]| u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok();
            Some((number(pair.get(..16)?)?, number(pair.get(16..)?)?))
        };
        self.list.as_bytes().chunks(32).filter_map(pair).collect()
    }
}

/// Identity hash, for keys that are hashes already.
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

/// The hash of an object: of its origin (within which equal URLs mean equal objects), its location, and the key below
/// it.
pub(crate) fn object(origin: u64, place: &str, key: &str) -> u64 {
    let slash = if key.is_empty() { "" } else { "/" };
    let parts = [place, slash, key].into_iter();
    mixed(parts.fold(origin ^ BASIS, |hash, text| fnv(hash, text.as_bytes())))
}

/// Continues a hash with bytes.
///
/// # Source
/// FNV-1a of 64 bits, RFC 9923.
fn fnv(before: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(before, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A digest that is the same in every process, hexadecimal.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("{:016x}", fnv(BASIS, bytes))
}

/// The version of a file: its inode, size and time of change in nanoseconds.
pub(crate) fn of_file(meta: &Metadata) -> u64 {
    let parts = [meta.ino(), meta.len(), meta.mtime() as u64, meta.mtime_nsec() as u64];
    above_absent(parts.iter().fold(0, |h, part| mixed(h ^ part)))
}

/// The version of an object in a store, and its etag for `If-Match`.
pub(crate) fn of_object(meta: &ObjectMeta) -> (u64, Option<&str>) {
    match &meta.e_tag {
        // `If-Match` compares strongly, so that a weak etag never matches.
        Some(tag) => (above_absent(of_text(tag)), (!tag.starts_with("W/")).then_some(tag)),
        None => {
            let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
            (above_absent(mixed(mixed(meta.size) ^ nanos as u64)), None)
        }
    }
}

/// True if the etag of a file identifies this version of it. Weak etags promise no equal bytes. A file that changed
/// just now may change again at the same time, and local files and some servers derive the etag from the time.
pub fn is_told(meta: &ObjectMeta) -> bool {
    let is_strong = meta.e_tag.as_deref().is_some_and(|tag| !tag.starts_with("W/"));
    let age = SystemTime::now().duration_since(meta.last_modified.into());
    is_strong && age.is_ok_and(|age| age > SETTLED)
}

/// A number by which an object differs from earlier and later ones of its key, even with the same contents if the
/// storage reports the time of the write.
pub(crate) fn stamp_of(meta: &ObjectMeta) -> u64 {
    let nanos = meta.last_modified.timestamp_nanos_opt().unwrap_or_default();
    let tag = meta.e_tag.as_deref().map_or(0, of_text);
    above_absent(mixed(mixed(mixed(meta.size) ^ nanos as u64) ^ tag))
}

pub(crate) fn of_text(text: &str) -> u64 {
    mixed(fnv(BASIS, text.as_bytes()))
}

fn above_absent(version: u64) -> u64 {
    version.max(ABSENT + 1)
}

/// Mixes the bits of a number: each depends on all bits of the input.
///
/// # Source
/// G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number generators, OOPSLA 2014; the constants are
/// Stafford's variant 13.
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
    fn versions_of_an_earlier_run_are_expected() {
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
    fn digests_of_reads_do_not_depend_on_their_order() {
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
    fn recorded_versions_are_bounded() {
        let versions = Versions::new(false);
        for object in 0..=OBJECTS_MAX as u64 {
            assert!(versions.is_whole());
            assert!(versions.met(object, 40, None));
        }
        assert!(!versions.is_whole());
        assert!(!versions.met(0, 50, None), "what is kept is still compared");
        let read = versions.read().unwrap();
        assert!(read.is_long() && read.list().is_empty());
        let (table, places) = (lock(&versions.state).of.capacity(), 1 << 20);
        assert!(table <= places, "{table}");
    }

    #[test]
    fn etags_are_stored_up_to_a_bound() {
        let (versions, tag) = (Versions::new(false), "t".repeat(1 << 20));
        for object in 0..20 {
            assert!(versions.met(object, 40, Some(&tag)));
        }
        assert!(versions.tag(15).is_some() && versions.tag(16).is_none());
    }

    #[test]
    fn objects_have_distinct_numbers() {
        let all = [(0, "a", "b"), (0, "a/b", "c"), (0, "a", "c"), (1, "a", "b"), (0, "ab", "")];
        let numbers = all.map(|(origin, place, key)| object(origin, place, key));
        let distinct: std::collections::BTreeSet<u64> = numbers.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(object(0, "a", "b/c"), object(0, "a/b", "c"));
        assert_eq!(object(0, "a", "b"), object(0, "a/b", ""));
    }
}
