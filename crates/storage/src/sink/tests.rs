//! Writers against failing stores: their errors, and that nothing is left. Their output is read back by our own
//! reader in `tests/keep.rs`, and by `xarray` and `zarr-python` in `sql/goldens/keep_check.py`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod clouds;
mod faulty;
mod parts;
mod process;
mod remote;
mod texts;

use super::*;
use crate::source::Options;
use faulty::{Fault, Faulty};
use process::{Budget, Scratch};
use std::fs;
use std::io;
use std::io::Write as _;
use std::time::{Duration, SystemTime};
use tessera_planner::catalog::{Attrs, DimLabel};
use tessera_planner::dtype::DType;
use tessera_planner::error::Class;
use tessera_planner::grid::Grid;

const FAULTS: [Fault; 4] = [Fault::NoSpace, Fault::Unavailable, Fault::Silence, Fault::LostAnswer];

/// A host with the client of the bucket `bkt`, and a directory for its scratch.
struct Bench {
    host: Host,
    scratch: Arc<Scratch>,
    directory: tempfile::TempDir,
    _io: tokio::runtime::Runtime,
}

fn bench(client: Option<Arc<Faulty>>) -> Bench {
    let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let io = io.unwrap();
    let directory = tempfile::tempdir().unwrap();
    // Time-out of a store that does not respond.
    let stores = Stores::new(Duration::from_millis(100));
    if let Some(client) = client {
        stores.serve("bkt", client);
    }
    let scratch = Arc::new(Scratch::default());
    let host = Host {
        stores: Arc::new(stores),
        quota: Arc::new(Budget::new(256 << 20)),
        io: io.handle().clone(),
        threads: 2,
        store: scratch.clone(),
    };
    Bench { host, scratch, directory, _io: io }
}

impl Bench {
    fn target(&self, url: &str) -> Target {
        Target::parse(url, &Options::default(), &self.host.stores).unwrap()
    }

    /// Writes 12 chunks of `int64` numbers to a store, and aborts after an error.
    fn zarr(&self, url: &str, overwrite: bool) -> Result<Written, SinkError> {
        let (shape, grid) = ([30, 40], Grid::regular(&[30, 40], &[10, 10]));
        let layout = Layout::default();
        let chunks = layout.fit("x", &shape, DType::Int64, &grid).unwrap();
        let none = DimLabel { name: None, coord: None };
        let item = Item {
            name: "x".into(),
            dtype: DType::Int64,
            nullable: false,
            dims: vec![none.clone(), none],
            shape: shape.as_slice().into(),
            attrs: Attrs::new(),
            is_coordinate: false,
            chunks,
            texts: None,
        };
        let io = &self.host.io;
        let how = (overwrite, false, false);
        let target = self.target(url);
        let create = ZarrWriter::create(&target, vec![item], Attrs::new(), layout, how, &self.host);
        let writer = io.block_on(create)?;
        let write = || {
            for n in 0..grid.count() {
                let (index, region) = (grid.unravel(n), grid.region(&grid.unravel(n)));
                let cells = (0..100).map(|i| n as i64 * 100 + i + 1);
                let cells: Vec<u8> = cells.flat_map(i64::to_ne_bytes).collect();
                let encoded = writer.encode(0, &index, &region, &region.shape(), &[&cells])?;
                drop(cells);
                writer.put(encoded.unwrap())?;
            }
            io.block_on(writer.finish())
        };
        let written = write();
        if written.is_err() {
            io.block_on(writer.abort()).unwrap();
        }
        written
    }

    /// Writes `bytes` bytes as one file or object.
    fn object(&self, url: &str, bytes: usize, overwrite: bool) -> Result<Written, SinkError> {
        let mut writer = ObjectWriter::create(&self.target(url), overwrite, &self.host)?;
        let failure = writer.failure();
        for piece in vec![7u8; bytes].chunks(1 << 20) {
            if writer.write_all(piece).is_err() {
                return Err(failure.lock().unwrap().take().unwrap());
            }
        }
        writer.finish(&|| false)
    }

    /// Checks that no memory is held and no object is left; background work has some time.
    fn is_quiet(&self, bucket: Option<&Faulty>) {
        let start = std::time::Instant::now();
        loop {
            let keys = bucket.map_or_else(Vec::new, |b| self.host.io.block_on(b.keys()));
            if keys.is_empty() && self.host.quota.used() == 0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{keys:?} {:?}", self.host.quota);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn is_told(error: &SinkError, fault: Fault) {
    let text = error.to_string();
    match fault {
        Fault::NoSpace => {
            assert_eq!((error.code(), error.class()), ("no_space", Class::Limit), "{text}");
            assert!(text.contains("(after ") && text.contains(" bytes)"), "{text}");
            assert!(error.hint().is_some());
        }
        Fault::Silence => assert_eq!(error.code(), "storage_timeout", "{text}"),
        Fault::Unavailable => {
            assert_eq!((error.code(), error.class()), ("storage_error", Class::Retry), "{text}");
        }
        Fault::LostAnswer => {
            assert_eq!((error.code(), error.class()), ("unreachable", Class::Retry), "{text}");
        }
    }
    assert!(text.contains("s3://bkt/out"), "{text}");
}

#[test]
fn a_bucket_that_fails_at_any_write_of_a_store_is_left_empty() {
    let sound = Faulty::new(Fault::NoSpace, u64::MAX);
    let b = bench(Some(sound.clone()));
    let written = b.zarr("s3://bkt/out.zarr", false).unwrap();
    assert_eq!((written.objects, sound.writes()), (14, 14));
    for fault in FAULTS {
        for at in 0..written.objects {
            if fault == Fault::Silence && at % 5 != 0 {
                continue;
            }
            let bucket = Faulty::new(fault, at);
            let b = bench(Some(bucket.clone()));
            let error = b.zarr("s3://bkt/out.zarr", false).unwrap_err();
            is_told(&error, fault);
            b.is_quiet(Some(&bucket));
        }
    }
}

#[test]
fn a_bucket_that_fails_at_any_write_of_an_object_is_left_empty() {
    // One request; and an upload in three parts: starting it, the parts, completing it.
    for (bytes, writes) in [(1000, 1), (40 << 20, 5)] {
        let sound = Faulty::new(Fault::NoSpace, u64::MAX);
        bench(Some(sound.clone())).object("s3://bkt/out.npy", bytes, false).unwrap();
        assert_eq!(sound.writes(), writes);
        for fault in FAULTS {
            for at in 0..writes {
                let bucket = Faulty::new(fault, at);
                let b = bench(Some(bucket.clone()));
                let error = b.object("s3://bkt/out.npy", bytes, false).unwrap_err();
                is_told(&error, fault);
                // If the response was lost, the store has the object: a later read finds it, whole.
                match fault == Fault::LostAnswer && at + 1 == writes {
                    true => assert_eq!(b.host.io.block_on(bucket.keys()), ["out.npy"]),
                    false => b.is_quiet(Some(&bucket)),
                }
            }
        }
    }
}

#[test]
fn local_outputs_appear_whole_and_leave_nothing_behind() {
    let b = bench(None);
    let at = |name: &str| b.directory.path().join("out").join(name);
    let url = |name: &str| at(name).display().to_string();
    let names = || -> Vec<String> {
        let list = fs::read_dir(b.directory.path().join("out")).unwrap();
        list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    fs::create_dir(b.directory.path().join("out")).unwrap();
    b.zarr(&url("x.zarr"), false).unwrap();
    let taken = b.zarr(&url("x.zarr"), false).unwrap_err();
    assert_eq!(taken.code(), "already_exists");
    b.zarr(&url("x.zarr"), true).unwrap();
    assert_eq!(names(), ["x.zarr"]);
    fs::remove_dir_all(at("x.zarr")).unwrap();
    b.object(&url("x.npy"), 3 << 20, false).unwrap();
    assert_eq!(b.object(&url("x.npy"), 10, false).unwrap_err().code(), "already_exists");
    b.object(&url("x.npy"), 10, true).unwrap();
    assert_eq!((names(), fs::metadata(at("x.npy")).unwrap().len()), (vec!["x.npy".into()], 10));
    // A writer that is dropped halfway, and its record until then.
    let told = || fs::read_dir(b.scratch.path()).unwrap().count();
    let mut writer = ObjectWriter::create(&b.target(&url("y.npy")), false, &b.host).unwrap();
    writer.write_all(&[1; 1 << 20]).unwrap();
    assert_eq!((names().len(), told()), (2, 1));
    drop(writer);
    assert_eq!((names(), told()), (vec!["x.npy".into()], 0));
    // A writer that is cancelled while its last bytes are stored.
    let mut writer = ObjectWriter::create(&b.target(&url("y.npy")), false, &b.host).unwrap();
    writer.write_all(&[1; 1 << 20]).unwrap();
    assert_eq!(writer.finish(&|| true), Err(SinkError::Cancelled));
    assert_eq!((names(), told()), (vec!["x.npy".into()], 0));
    let missing = b.object(&url("no/where.npy"), 10, false).unwrap_err();
    assert_eq!(missing.code(), "not_found");
    b.is_quiet(None);
}

#[test]
fn system_errors_are_reported_with_their_numbers() {
    for (kind, code) in [
        (io::ErrorKind::StorageFull, "no_space"),
        (io::ErrorKind::QuotaExceeded, "no_space"),
        (io::ErrorKind::FileTooLarge, "no_space"),
        (io::ErrorKind::PermissionDenied, "permission_denied"),
        (io::ErrorKind::ReadOnlyFilesystem, "permission_denied"),
        (io::ErrorKind::TimedOut, "storage_error"),
    ] {
        let error = SinkError::io("/out/x.npy", &io::Error::from(kind)).after(4096);
        assert_eq!(error.code(), code);
        assert!(error.to_string().contains("/out/x.npy"), "{error}");
        assert_eq!(code == "no_space", error.to_string().contains("after 4096 bytes"), "{error}");
    }
}

#[test]
fn leftovers_are_outputs_without_a_live_writer() {
    let b = bench(None);
    let root = b.directory.path().join("wh");
    let folder = Folder::open(&root.display().to_string(), &Options::default(), &b.host.stores);
    let folder = folder.unwrap();
    let day = Duration::from_secs(24 * 3600);
    let left = |age: Duration| -> Vec<Leftover> {
        b.host.io.block_on(folder.leftovers("data", age)).unwrap()
    };
    assert!(left(day).is_empty(), "there is no folder yet");
    let make = |name: &str| fs::create_dir_all(root.join("data").join(name).join("x/c")).unwrap();
    // Live: its lock is held.
    let claim = folder.claim("data/live.zarr").unwrap().unwrap();
    make("live.zarr");
    assert_eq!(folder.claim("data/live.zarr").unwrap_err().code(), "already_exists");
    // Dead: the lock exists and is free; also without a store.
    for name in ["dead", "early"] {
        fs::write(root.join("data").join(format!("{name}.lock")), "").unwrap();
    }
    make("dead.zarr");
    // Without a lock: complete, or written by a process without locks.
    make("old.zarr");
    let keys = |all: &[Leftover]| all.iter().map(|l| l.key.clone()).collect::<Vec<_>>();
    let found = left(day);
    assert_eq!(keys(&found), ["data/dead.zarr", "data/early.zarr"]);
    // While one process holds leftovers no other gets them.
    assert!(left(day).is_empty());
    for one in found {
        b.host.io.block_on(folder.remove_all(&one.key)).unwrap();
        one.settled();
    }
    let mut names: Vec<String> = fs::read_dir(root.join("data"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["live.lock", "live.zarr", "old.zarr"]);
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    fs::File::open(root.join("data/old.zarr")).unwrap().set_modified(hour_ago).unwrap();
    assert_eq!(keys(&left(Duration::from_secs(60))), ["data/old.zarr"]);
    drop(claim);
    assert!(!root.join("data/live.lock").exists());
}

#[test]
fn parts_of_documents_go_once_their_maker_is_dead() {
    let b = bench(None);
    let root = b.directory.path().join("wh");
    let folder = Folder::open(&root.display().to_string(), &Options::default(), &b.host.stores);
    let folder = folder.unwrap();
    let put = folder.put("catalog/x.json", b"{}".to_vec(), Mode::Create);
    b.host.io.block_on(put).unwrap();
    let at = |name: &str| root.join("catalog").join(name);
    fs::write(at(".y.json.0.part"), "half").unwrap();
    let living = fs::File::create(at(".z.json.0.part")).unwrap();
    living.lock().unwrap();
    folder.remove_parts("catalog");
    let names = || {
        let all = fs::read_dir(root.join("catalog")).unwrap();
        let mut all: Vec<_> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    };
    assert_eq!(names(), [".z.json.0.part", "x.json"]);
    drop(living);
    folder.remove_parts("catalog");
    assert_eq!(names(), ["x.json"]);
}

#[test]
fn leftovers_in_a_bucket_are_recognised_by_their_age() {
    let bucket = Faulty::new(Fault::NoSpace, u64::MAX);
    let b = bench(Some(bucket));
    let folder = Folder::open("s3://bkt/wh", &Options::default(), &b.host.stores).unwrap();
    assert!(folder.claim("data/a.zarr").unwrap().is_none());
    b.zarr("s3://bkt/wh/data/a.zarr", false).unwrap();
    b.zarr("s3://bkt/wh/data/b.zarr", false).unwrap();
    let left = |age| b.host.io.block_on(folder.leftovers("data", age)).unwrap();
    assert!(left(Duration::from_secs(60)).is_empty());
    std::thread::sleep(Duration::from_millis(10));
    let keys: Vec<String> =
        left(Duration::from_millis(1)).into_iter().map(|l| l.key.clone()).collect();
    assert_eq!(keys, ["data/a.zarr", "data/b.zarr"]);
    b.host.io.block_on(folder.remove_all("data/a.zarr")).unwrap();
    assert_eq!(left(Duration::from_millis(1)).len(), 1);
}

#[test]
fn a_lock_is_shared_or_held_alone() {
    let b = bench(None);
    let root = b.directory.path().join("folder").display().to_string();
    let folder = Folder::open(&root, &Options::default(), &b.host.stores).unwrap();
    let hold = |alone| b.host.io.block_on(folder.hold("epochs/lock", alone)).unwrap().unwrap();
    let (one, other) = (hold(false), hold(false));
    let (free, is_free) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let held = hold(true);
            free.send(()).unwrap();
            drop(held);
        });
        drop(one);
        let waits = is_free.recv_timeout(Duration::from_millis(50));
        assert!(waits.is_err(), "one of two still has it");
        drop(other);
        is_free.recv_timeout(Duration::from_secs(5)).unwrap();
    });
}
