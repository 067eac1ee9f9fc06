//! Files of tables that change while a statement reads them.

use super::*;
use crate::source::versions::Versions;
use crate::source::{Client, Listing, TableStore, passing};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;

fn is_changed<T: std::fmt::Debug>(result: object_store::Result<T>, what: &str) {
    let e = result.unwrap_err();
    let told = passing(&e).unwrap();
    assert_eq!(told.code(), "source_changed", "{e}");
    assert!(told.to_string().contains(what), "{told}");
}

/// Files in a directory, and objects in a bucket.
struct TestStore {
    directory: Option<tempfile::TempDir>,
    store: Arc<dyn ObjectStore>,
    root: String,
}

fn places() -> [TestStore; 2] {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap().trim_start_matches('/').to_string();
    [
        TestStore { directory: Some(directory), store: Arc::new(LocalFileSystem::new()), root },
        TestStore { directory: None, store: Arc::new(InMemory::new()), root: "t".into() },
    ]
}

impl TestStore {
    fn key(&self, name: &str) -> Key {
        Key::parse(format!("{}/{name}", self.root)).unwrap()
    }

    fn put(&self, name: &str, bytes: &[u8], second: u64) {
        match &self.directory {
            Some(directory) => write(&directory.path().join(name), bytes, second),
            None => drop(run(self.store.put(&self.key(name), bytes.to_vec().into())).unwrap()),
        }
    }

    /// The store as a statement sees it.
    fn seen(&self, versions: &Arc<Versions>) -> TableStore {
        self.seen_of(versions, Listing::All)
    }

    fn seen_of(&self, versions: &Arc<Versions>, files: Listing) -> TableStore {
        let client =
            Client { store: self.store.clone(), key: self.root.clone(), root: String::new() };
        let reached = Reached { place: Ok(client.clone()), fence: None };
        let all = match &self.directory {
            Some(_) => TableStore::local(&reached, self.store.clone(), versions),
            None => TableStore::remote(&reached, &client, "s3://b", &Options::default(), versions),
        };
        all.with_files(files)
    }

    fn names(&self, seen: &TableStore) -> Vec<String> {
        let all = run(seen.list(Some(&Key::parse(&self.root).unwrap())).try_collect::<Vec<_>>());
        let mut names: Vec<String> =
            all.unwrap().iter().map(|m| m.location.filename().unwrap().into()).collect();
        names.sort();
        names
    }
}

fn write(path: &Path, bytes: &[u8], second: u64) {
    fs::write(path, bytes).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
}

fn all_of(seen: &TableStore, key: &Key) -> object_store::Result<Vec<u8>> {
    run(async { Ok(seen.get(key).await?.bytes().await?.to_vec()) })
}

#[test]
fn a_file_is_of_the_version_that_was_found() {
    for place in places() {
        place.put("a.csv", b"0123456789", 5);
        let (key, versions) = (place.key("a.csv"), Versions::new(false));
        let seen = place.seen(&versions);
        assert_eq!(run(seen.head(&key)).unwrap().size, 10);
        assert_eq!(all_of(&seen, &key).unwrap(), b"0123456789");
        assert_eq!(run(seen.get_range(&key, 2..5)).unwrap(), "234");
        let parts = run(seen.get_ranges(&key, &[0..1, 8..10, 3..5])).unwrap();
        assert_eq!(parts, ["0", "89", "34"]);
        let tail = GetOptions { range: Some(GetRange::Suffix(3)), ..GetOptions::default() };
        let got = run(async { seen.get_opts(&key, tail).await?.bytes().await }).unwrap();
        assert_eq!(got, "789");
        place.put("a.csv", b"0123456780", 6);
        is_changed(all_of(&seen, &key), "a.csv");
        is_changed(run(seen.get_range(&key, 2..5)), "a.csv");
        is_changed(run(seen.get_ranges(&key, &[0..1, 2..3])), "a.csv");
        is_changed(run(seen.head(&key)), "a.csv");
        // The same statement through another store, and another statement.
        is_changed(all_of(&place.seen(&versions), &key), "a.csv");
        let other = place.seen(&Versions::new(false));
        assert_eq!(all_of(&other, &key).unwrap(), b"0123456780");
        run(place.store.delete(&key)).unwrap();
        is_changed(all_of(&other, &key), "a.csv");
    }
}

#[test]
fn another_process_reads_the_versions_that_were_noted() {
    for place in places() {
        place.put("a.csv", b"1", 5);
        place.put("b.csv", b"1", 5);
        let seen = place.seen(&Versions::new(false));
        let (a, b) = (place.key("a.csv"), place.key("b.csv"));
        assert_eq!(seen.noted([&a]), None, "it was not found yet");
        run(seen.head(&a)).unwrap();
        assert_eq!(seen.noted([&a, &b]), None, "only one of them was found");
        run(seen.head(&b)).unwrap();
        let noted = seen.noted([&a, &b, &a]).unwrap();
        assert_eq!(noted.len(), 2);
        let there = Versions::new(false);
        there.expect(&noted);
        let there = place.seen(&there);
        assert_eq!(all_of(&there, &a).unwrap(), b"1");
        place.put("b.csv", b"2", 6);
        is_changed(all_of(&there, &b), "b.csv");
        assert_eq!(all_of(&there, &a).unwrap(), b"1");
    }
}

#[test]
fn a_listing_does_not_change_within_a_statement() {
    for place in places() {
        place.put("a.csv", b"1", 5);
        place.put("b.txt", b"1", 5);
        let files: Arc<BTreeSet<Key>> = Arc::new(["a.csv", "c.csv"].map(|n| place.key(n)).into());
        let seen_of = |files: &Arc<BTreeSet<Key>>| {
            place.seen_of(&Versions::new(false), Listing::Only(files.clone()))
        };
        let seen = seen_of(&files);
        assert_eq!(place.names(&seen), ["a.csv"]);
        let version = seen.version();
        assert!(version.starts_with("1 files "), "{version}");
        place.put("b.txt", b"2", 6);
        place.put("c.csv", b"2", 6);
        assert_eq!(place.names(&seen), ["a.csv"]);
        assert_eq!(seen.version(), version);
        let later = seen_of(&files);
        assert_eq!(place.names(&later), ["a.csv", "c.csv"]);
        assert_ne!(later.version(), version);
        let each = place.seen_of(&Versions::new(false), Listing::Each(files));
        assert_eq!(place.names(&each), ["a.csv", "c.csv"]);
        assert_eq!(each.version(), later.version());
        assert_eq!(place.names(&place.seen(&Versions::new(false))), ["a.csv", "b.txt", "c.csv"]);
        // A change between the listing and the first read is detected.
        place.put("a.csv", b"2", 6);
        is_changed(all_of(&seen, &place.key("a.csv")), "a.csv");
        // A file that does not belong to the table may change.
        assert_eq!(all_of(&seen, &place.key("b.txt")).unwrap(), b"2");
        let absent = run(seen.head(&place.key("nothing.csv"))).unwrap_err();
        assert!(matches!(absent, object_store::Error::NotFound { .. }), "{absent}");
    }
}

#[test]
fn a_local_file_that_changes_while_it_is_read_is_noticed() {
    let [place, _] = places();
    let cells = vec![b'1'; 3 << 20];
    place.put("a.csv", &cells, 5);
    let key = place.key("a.csv");
    let seen = place.seen(&Versions::new(false));
    let begin = || {
        let mut stream = run(seen.get(&key)).unwrap().into_stream();
        assert_eq!(run(stream.try_next()).unwrap().unwrap().len(), 1 << 20);
        stream
    };
    let rest: Vec<_> = run(begin().try_collect()).unwrap();
    assert_eq!(rest.len(), 2);
    for change in [vec![b'2'; 3 << 20], vec![b'1'; 1 << 20]] {
        place.put("a.csv", &cells, 5);
        let stream = begin();
        place.put("a.csv", &change, 6);
        is_changed(run(stream.try_collect::<Vec<_>>()), "a.csv");
    }
}

#[test]
fn the_time_of_a_file_identifies_its_version() {
    let [local, memory] = places();
    let time = |place: &TestStore, key: &Key| {
        run(place.seen(&Versions::new(false)).head(key)).unwrap().last_modified
    };
    local.put("a.parquet", b"1", 5);
    let key = local.key("a.parquet");
    let first = time(&local, &key);
    assert_eq!((time(&local, &key), first.timestamp()), (first, 5));
    // Another file of the same path, size and time.
    local.put("b.parquet", b"2", 5);
    let directory = local.directory.as_ref().unwrap().path();
    fs::rename(directory.join("b.parquet"), directory.join("a.parquet")).unwrap();
    assert_ne!(time(&local, &key), first);
    // A file that changed just now may change again; a statement reads one version.
    memory.put("a.parquet", b"1", 5);
    let key = memory.key("a.parquet");
    assert_ne!(time(&memory, &key), time(&memory, &key));
    let seen = memory.seen(&Versions::new(false));
    let listed = run(seen.list(None).try_collect::<Vec<_>>()).unwrap();
    assert_eq!(listed[0].last_modified, run(seen.head(&key)).unwrap().last_modified);
}
