//! Sources that are changed while a statement reads them.

use super::*;
use crate::served::{KEY, S3, SECRET};
use crate::source::versions::{ABSENT, Versions};
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;
use tessera_planner::error::Class;

/// Four cells in two chunks that have no codecs.
const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},"chunk_key_encoding":{"name":"default"},"fill_value":9,"codecs":[{"name":"bytes"}]}"#;

/// The same as two chunks of one shard, whose index of two pairs of `u64` is at the start.
const SHARDED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int8","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},"chunk_key_encoding":{"name":"default"},"fill_value":9,"codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":[{"name":"bytes"}],"index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}],"index_location":"start"}}]}"#;

fn shard(cells: [u8; 4]) -> Vec<u8> {
    let index = [32u64, 2, 34, 2].into_iter().flat_map(u64::to_le_bytes);
    index.chain(cells).collect()
}

fn region(from: u64, len: u64) -> Region {
    Region::at(&[from], &[len])
}

/// Writes a file and sets its time to `second` seconds after 1970.
fn write(path: &Path, bytes: &[u8], second: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    set_time(path, Duration::from_secs(second));
}

fn set_time(path: &Path, since: Duration) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + since).unwrap();
}

struct Local {
    directory: tempfile::TempDir,
    stores: Stores,
}

impl Local {
    fn new(metadata: &str) -> Local {
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("a.zarr/zarr.json"), metadata.as_bytes(), 1);
        Local { directory, stores: stores() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self, versions: &Arc<Versions>, name: &str) -> Result<Opened, SourceError> {
        let path = self.path(name);
        let (url, options) = (path.to_str().unwrap(), Options::default());
        run(open_for(versions, url, &options, &self.stores))
    }
}

fn is_changed<T: std::fmt::Debug>(result: Result<T, SourceError>, what: &str) {
    let e = result.unwrap_err();
    assert_eq!((e.code(), e.class()), ("source_changed", Class::Retry), "{e}");
    assert!(e.to_string().contains(what), "{e}");
    assert_eq!(e.hint().unwrap(), "run the statement again");
}

#[test]
fn a_chunk_is_of_one_version_within_a_statement() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 6] = [
        ("written in place, as long as before", |p| write(p, &[7, 7], 6)),
        ("another length at the same moment", |p| write(p, &[7, 7, 7], 5)),
        ("a later nanosecond", |p| set_time(p, Duration::new(5, 1))),
        ("another file of that name, with its time", |p| {
            let other = p.with_extension("new");
            write(&other, &[7, 7], 5);
            fs::rename(other, p).unwrap();
        }),
        ("removed", |p| fs::remove_file(p).unwrap()),
        ("a directory in its place", |p| {
            fs::remove_file(p).unwrap();
            fs::create_dir(p).unwrap();
        }),
    ];
    for (what, change) in changes {
        let place = Local::new(ARRAY);
        let (chunk, versions) = (place.path("a.zarr/c/0"), Versions::new(false));
        write(&chunk, &[1, 2], 5);
        let opened = place.open(&versions, "a.zarr").unwrap();
        for _ in 0..3 {
            assert_eq!(whole(&opened.readers[0]), [1, 2, 9, 9], "{what}");
        }
        change(&chunk);
        is_changed(read(&opened.readers[0], &region(0, 1)), "a.zarr/c/0");
        is_changed(read(&opened.readers[0], &region(0, 4)), "a.zarr/c/0");
        assert_eq!(read(&opened.readers[0], &region(2, 2)).unwrap(), [9, 9], "{what}");
        // Another opening for the same statement fails too; another statement does not.
        let again = place.open(&versions, "a.zarr").unwrap();
        is_changed(read(&again.readers[0], &region(0, 1)), "a.zarr/c/0");
        let other = place.open(&Versions::new(false), "a.zarr").unwrap();
        if what != "another length at the same moment" {
            read(&other.readers[0], &region(0, 4)).unwrap();
        }
        // A reader without versions detects no change.
        let path = place.path("a.zarr");
        let open = run(open(path.to_str().unwrap(), &Options::default(), &place.stores)).unwrap();
        write(&place.path("a.zarr/c/1"), &[3, 4], 5);
        assert_eq!(read(&open.readers[0], &region(2, 2)).unwrap(), [3, 4]);
        write(&place.path("a.zarr/c/1"), &[5, 6], 6);
        assert_eq!(read(&open.readers[0], &region(2, 2)).unwrap(), [5, 6]);
    }
}

#[test]
fn a_chunk_that_is_absent_stays_absent_within_a_statement() {
    let place = Local::new(ARRAY);
    let opened = place.open(&Versions::new(false), "a.zarr").unwrap();
    assert_eq!(whole(&opened.readers[0]), [9; 4]);
    write(&place.path("a.zarr/c/1"), &[3, 4], 5);
    is_changed(read(&opened.readers[0], &region(0, 4)), "a.zarr/c/1");
    assert_eq!(read(&opened.readers[0], &region(0, 2)).unwrap(), [9; 2]);
}

#[test]
fn all_of_a_shard_is_of_one_version() {
    let place = Local::new(SHARDED);
    let file = place.path("a.zarr/c/0");
    write(&file, &shard([1, 2, 3, 4]), 5);
    let opened = place.open(&Versions::new(false), "a.zarr").unwrap();
    assert_eq!(read(&opened.readers[0], &region(0, 2)).unwrap(), [1, 2]);
    // The replaced bytes are ones that were not read yet.
    write(&file, &shard([1, 2, 7, 8]), 6);
    is_changed(read(&opened.readers[0], &region(2, 2)), "a.zarr/c/0");
}

#[test]
fn cells_belong_to_the_version_of_their_header() {
    for (name, cells) in [("i4.npy", 48), ("two.npz", 0)] {
        let place = Local::new(ARRAY);
        let bytes = fs::read(data(&format!("npy/{name}"))).unwrap();
        write(&place.path(name), &bytes, 5);
        let versions = Versions::new(false);
        let opened = place.open(&versions, name).unwrap();
        let before = whole(&opened.readers[0]);
        assert!(before.len() >= cells);
        let again = place.open(&versions, name).unwrap();
        write(&place.path(name), &bytes, 6);
        is_changed(read(&again.readers[0], &Region::whole(&again.readers[0].source().shape)), name);
        is_changed(place.open(&versions, name), name);
        let other = place.open(&Versions::new(false), name).unwrap();
        assert_eq!(whole(&other.readers[0]), before);
    }
}

#[test]
fn labels_are_of_the_version_that_a_statement_read_before() {
    let group = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;
    let place = Local::new(group);
    let named = ARRAY.replace("\"codecs\"", "\"dimension_names\":[\"x\"],\"codecs\"");
    for array in ["v", "x"] {
        write(&place.path(&format!("a.zarr/{array}/zarr.json")), named.as_bytes(), 1);
        write(&place.path(&format!("a.zarr/{array}/c/0")), &[1, 2], 5);
    }
    let versions = Versions::new(false);
    assert_eq!(place.open(&versions, "a.zarr").unwrap().dataset.coords.len(), 1);
    assert!(place.open(&versions, "a.zarr").is_ok());
    write(&place.path("a.zarr/x/c/0"), &[1, 3], 6);
    is_changed(place.open(&versions, "a.zarr"), "a.zarr");
    assert!(place.open(&Versions::new(false), "a.zarr").is_ok());
    // A cached dataset is not read again, and its labels count as read.
    let bucket = Arc::new(InMemory::new());
    put(&*bucket, "a/zarr.json", group.as_bytes());
    for array in ["v", "x"] {
        put(&*bucket, &format!("a/{array}/zarr.json"), named.as_bytes());
        put(&*bucket, &format!("a/{array}/c/0"), &[1, 2]);
    }
    let stores = stores();
    stores.serve("b", bucket.clone());
    let open = |versions| run(open_for(versions, "s3://b/a", &Options::default(), &stores));
    let (first, second) = (Versions::new(false), Versions::new(false));
    assert!(open(&first).is_ok());
    let bytes = stores.counters().snapshot().1;
    assert!(open(&second).is_ok());
    assert_eq!(stores.counters().snapshot().1, bytes);
    assert!(second.read().is_some() && second.read() == first.read());
    put(&*bucket, "a/x/c/0", &[1, 3]);
    is_changed(open(&second), "s3://b/a");
}

#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let place = Local::new(ARRAY);
    let chunk = place.path("a.zarr/c/0");
    write(&chunk, &[1, 2], 5);
    let location = Location::parse(place.path("a.zarr").to_str().unwrap()).unwrap();
    let store = place.stores.at(&location, &Options::default(), Access::Read).unwrap();
    let watched = store.read_for(&Versions::new(false));
    let mut out = [0; 2];
    for (store, is_watched) in [(&store, false), (&watched, true)] {
        write(&chunk, &[1, 2], 5);
        let file = store.local_file("c/0").unwrap().unwrap();
        write(&chunk, &[7, 7], 6);
        store.read_exact_at(&file, &mut out, 0).unwrap();
        assert_eq!(store.check_same(&file).is_err(), is_watched);
    }
    // A truncated file is reported as changed, not as too short.
    write(&chunk, &[1, 2], 5);
    let file = watched.local_file("c/0").unwrap().unwrap();
    write(&chunk, &[7], 6);
    is_changed(watched.read_exact_at(&file, &mut out, 0), "a.zarr/c/0");
}

#[test]
fn immutable_objects_are_not_asked_for_their_version() {
    let place = Local::new(ARRAY);
    write(&place.path("a.zarr/c/0"), &[1, 2], 5);
    let (path, versions) = (place.path("a.zarr"), Versions::new(false));
    let options = Options::warehouse(None);
    let opened = run(open_for(&versions, path.to_str().unwrap(), &options, &place.stores));
    assert_eq!(whole(&opened.unwrap().readers[0]), [1, 2, 9, 9]);
    assert!(versions.read().is_none());
}

fn put(bucket: &dyn ObjectStore, key: &str, bytes: &[u8]) {
    run(bucket.put(&Key::from(key), bytes.to_vec().into())).unwrap();
}

#[test]
fn objects_are_asked_for_in_the_version_that_was_read() {
    for (metadata, before, after) in
        [(ARRAY, vec![1, 2], vec![7, 7]), (SHARDED, shard([1, 2, 9, 9]), shard([1, 2, 7, 8]))]
    {
        let bucket = Arc::new(InMemory::new());
        put(&*bucket, "a/zarr.json", metadata.as_bytes());
        put(&*bucket, "a/c/0", &before);
        let stores = stores();
        stores.serve("b", bucket.clone());
        let opened = |versions: &Arc<Versions>| {
            run(open_for(versions, "s3://b/a", &Options::default(), &stores)).unwrap()
        };
        let versions = Versions::new(false);
        let first = opened(&versions);
        let reader = &first.readers[0];
        let requests = || stores.counters().snapshot().0;
        let bytes = || stores.counters().snapshot().1;
        let start = requests();
        assert_eq!(read(reader, &region(0, 4)).unwrap(), [1, 2, 9, 9]);
        let once = requests() - start;
        assert_eq!(once, 2, "two chunks, or an index and all of the cells");
        read(reader, &region(0, 2)).unwrap();
        assert_eq!(requests() - start, once + 1);
        put(&*bucket, "a/c/0", &after);
        let (asked, came) = (requests(), bytes());
        is_changed(read(reader, &region(0, 2)), "s3://b/a/c/0");
        assert_eq!((requests() - asked, bytes() - came), (1, 0), "the bucket refused to give it");
        assert!(read(&opened(&Versions::new(false)).readers[0], &region(0, 2)).is_ok());
        // A response that the bucket does not refuse is compared.
        let other = Versions::new(false);
        let listed = versions.read().unwrap().list();
        other.expect(&listed);
        is_changed(read(&opened(&other).readers[0], &region(0, 2)), "s3://b/a/c/0");
        assert!(bytes() > came);
        run(bucket.delete(&Key::from("a/c/0"))).unwrap();
        is_changed(read(&opened(&versions).readers[0], &region(0, 2)), "s3://b/a/c/0");
    }
}

#[test]
fn objects_that_are_absent_stay_absent() {
    let bucket = Arc::new(InMemory::new());
    put(&*bucket, "a/zarr.json", ARRAY.as_bytes());
    let stores = stores();
    stores.serve("b", bucket.clone());
    let versions = Versions::new(true);
    let opened = run(open_for(&versions, "s3://b/a", &Options::default(), &stores)).unwrap();
    assert_eq!(read(&opened.readers[0], &region(0, 2)).unwrap(), [9, 9]);
    assert!(versions.take().iter().any(|(_, version)| *version == ABSENT));
    put(&*bucket, "a/c/0", &[1, 2]);
    is_changed(read(&opened.readers[0], &region(0, 2)), "s3://b/a/c/0");
}

#[test]
fn a_real_bucket_is_asked_for_the_version_that_was_read() {
    let server = S3::failing(|_, _| None);
    let key = "a.zarr/c/0";
    write(&server.path("a.zarr/zarr.json"), ARRAY.as_bytes(), 1);
    write(&server.path(key), &[1, 2], 5);
    let environment = server.environment(Some((KEY, SECRET)));
    let stores = Stores::with_environment(Duration::from_secs(30), environment);
    let versions = Versions::new(false);
    let open = |versions: &Arc<Versions>| {
        run(open_for(versions, "s3://bkt/a.zarr", &Options::default(), &stores)).unwrap()
    };
    let opened = open(&versions);
    for _ in 0..3 {
        assert_eq!(whole(&opened.readers[0]), [1, 2, 9, 9]);
    }
    assert_eq!(server.refused(), 0);
    write(&server.path(key), &[7, 7], 5);
    is_changed(read(&opened.readers[0], &region(0, 4)), "s3://bkt/a.zarr/c/0");
    assert_eq!(server.refused(), 1, "it was asked for once, and not again");
    assert_eq!(whole(&open(&Versions::new(false)).readers[0]), [7, 7, 9, 9]);
}
