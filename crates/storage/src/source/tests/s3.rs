//! A real S3 server over HTTP: signatures, refusals, ranges, time-outs.

use super::*;
use crate::served::{Fault, KEY, S3, SECRET};
use crate::sink::{Folder, Mode, Version};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tessera_planner::error::Class;

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// A server whose bucket `bkt` holds the colpex cube and the Zarr v3 zoo.
fn server() -> S3 {
    filled(S3::start())
}

fn filled(server: S3) -> S3 {
    for name in ["colpex.v2.zarr", "zarr_zoo/v3.zarr", "npy", "bad"] {
        copy(Path::new(&data(name)), &server.path(name));
    }
    server
}

fn stores_of(server: &S3, key: Option<(&str, &str)>) -> Stores {
    Stores::with_environment(Duration::from_secs(30), server.environment(key))
}

fn open_at(url: &str, options: &[(&str, &str)], stores: &Stores) -> Result<Opened, SourceError> {
    let options = Options::parse(options.iter().copied()).unwrap();
    run(open(url, &options, stores))
}

#[test]
fn signed_reads_give_the_local_cells() {
    let server = server();
    let stores = stores_of(&server, Some((KEY, SECRET)));
    let remote = open_at("s3://bkt/colpex.v2.zarr", &[], &stores).unwrap();
    let local = open_local(&data("colpex.v2.zarr")).unwrap();
    assert_eq!(remote.dataset.coords, local.dataset.coords);
    assert!(remote.readers[0].source().url.starts_with("s3://bkt/colpex"));
    let region = Region::at(&[1, 3, 35, 0], &[3, 4, 20, 83]);
    assert_eq!(
        read(&remote.readers[0], &region).unwrap(),
        read(&local.readers[0], &region).unwrap()
    );
    // Credentials of the table override those of the environment.
    let wrong = stores_of(&server, Some((KEY, "wrong")));
    let options = [("aws.access_key_id", KEY), ("aws.secret_access_key", SECRET)];
    assert!(open_at("s3://bkt/colpex.v2.zarr", &options, &wrong).is_ok());
    // Without consolidated metadata the prefix is listed; a key may be in a group.
    let zoo = open_at("s3://bkt/zarr_zoo/v3.zarr", &[], &stores).unwrap();
    assert!(zoo.dataset.variables.len() > 40);
    let one = open_at("s3://bkt/zarr_zoo/v3.zarr#crc32c", &[], &stores).unwrap();
    let here = open_local(&data("zarr_zoo/v3.zarr#crc32c")).unwrap();
    assert_eq!(whole(&one.readers[0]), whole(&here.readers[0]));
    for name in ["i4.npy", "be_f8.npy", "fortran.npy", "two.npz"] {
        let remote = open_at(&format!("s3://bkt/npy/{name}"), &[], &stores).unwrap();
        let local = open_local(&data(&format!("npy/{name}"))).unwrap();
        for (r, l) in remote.readers.iter().zip(&local.readers) {
            assert_eq!(whole(r), whole(l), "{name}");
        }
    }
}

#[test]
fn shards_are_read_by_range() {
    let server = server();
    let stores = stores_of(&server, Some((KEY, SECRET)));
    let opened = open_at("s3://bkt/zarr_zoo/v3.zarr#sharded", &[], &stores).unwrap();
    let (r0, b0, _) = stores.counters().snapshot();
    // np.arange(90).reshape(9, 10)[4:6, 6:8]
    let cells = read(&opened.readers[0], &Region::at(&[4, 6], &[2, 2])).unwrap();
    let got: Vec<i32> = cells.as_chunks().0.iter().map(|c| i32::from_le_bytes(*c)).collect();
    assert_eq!(got, [46, 47, 56, 57]);
    let (r1, b1, _) = stores.counters().snapshot();
    // The index of 100 bytes, then one inner chunk of 16 cells' bytes in zstd.
    assert_eq!(r1 - r0, 2);
    assert!(b1 - b0 > 100 && b1 - b0 < 200, "{}", b1 - b0);
}

#[test]
fn refusals_name_what_is_missing_and_hide_secrets() {
    let server = server();
    let good = Some((KEY, SECRET));
    let cases = [
        ("s3://bkt/colpex.v2.zarr", Some((KEY, "not-the-secret")), "permission_denied"),
        ("s3://bkt/colpex.v2.zarr", Some(("AKIANOBODY", SECRET)), "permission_denied"),
        ("s3://bkt/colpex.v2.zarr", None, "permission_denied"),
        ("s3://elsewhere/colpex.v2.zarr", good, "not_found"),
        ("s3://bkt/nothing.zarr", good, "not_found"),
        ("s3://bkt/nothing.npy", good, "not_found"),
        ("s3://bkt/colpex.v2.zarr#inner", good, "not_found"),
        ("s3://bkt/npy", good, "not_an_array"),
        ("s3://bkt/bad/a_file.zarr", good, "not_an_array"),
        ("s3://bkt/bad/npy_nothing.npy", good, "invalid_metadata"),
    ];
    for (url, key, code) in cases {
        let begin = Instant::now();
        let e = open_at(url, &[], &stores_of(&server, key)).unwrap_err();
        assert_eq!(e.code(), code, "{url}: {e}");
        let text = format!("{e} {e:?} {:?}", e.hint());
        let place = url.split('#').next().unwrap();
        assert!(text.contains(place), "{text}");
        for secret in [SECRET, "not-the-secret", KEY, "AKIANOBODY"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let stores = stores_of(&server, Some((KEY, SECRET)));
    assert!(!format!("{stores:?}").contains(SECRET));
}

#[test]
fn an_unreachable_endpoint_is_reported_within_the_time_out() {
    // A port that was free a moment ago, and a server that accepts and never responds.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap();
    for (address, codes) in
        [(free, ["unreachable", "unreachable"]), (silent_at, ["storage_timeout", "unreachable"])]
    {
        let stores = Stores::with_environment(Duration::from_secs(3), []);
        let endpoint = format!("http://{address}");
        let options = [
            ("aws.endpoint", endpoint.as_str()),
            ("aws.allow_http", "true"),
            ("aws.anonymous", "true"),
        ];
        let begin = Instant::now();
        let e = open_at("s3://bkt/x.zarr", &options, &stores).unwrap_err();
        assert!(codes.contains(&e.code()), "{} {e}", e.code());
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    }
    // Plain http must be allowed.
    let endpoint = format!("http://{free}");
    let e = open_at("s3://bkt/x.zarr", &[("aws.endpoint", &endpoint)], &stores()).unwrap_err();
    assert_eq!(e.code(), "unreachable", "{e}");
}

/// Each request fails the first time that it is made.
fn failing_once(fault: Fault) -> S3 {
    let seen = Mutex::new(BTreeSet::new());
    S3::failing(move |_, line| seen.lock().unwrap().insert(line.to_string()).then_some(fault))
}

#[test]
fn reads_that_fail_by_chance_are_made_again() {
    let local = open_local(&data("colpex.v2.zarr")).unwrap();
    let region = Region::at(&[1, 3, 35, 0], &[3, 4, 20, 83]);
    let cells = read(&local.readers[0], &region).unwrap();
    let sharded = whole(&open_local(&data("zarr_zoo/v3.zarr#sharded")).unwrap().readers[0]);
    for fault in Fault::ALL {
        let server = filled(failing_once(fault));
        let stores = stores_of(&server, Some((KEY, SECRET)));
        let remote = open_at("s3://bkt/colpex.v2.zarr", &[], &stores).unwrap();
        assert_eq!(remote.dataset.coords, local.dataset.coords, "{fault:?}");
        assert_eq!(read(&remote.readers[0], &region).unwrap(), cells, "{fault:?}");
        let zoo = open_at("s3://bkt/zarr_zoo/v3.zarr", &[], &stores).unwrap();
        assert!(zoo.dataset.variables.len() > 40, "{fault:?}");
        let one = open_at("s3://bkt/zarr_zoo/v3.zarr#sharded", &[], &stores).unwrap();
        assert_eq!(whole(&one.readers[0]), sharded, "{fault:?}");
        let none = open_at("s3://bkt/nothing.zarr", &[], &stores).unwrap_err();
        assert_eq!(none.code(), "not_found", "{fault:?}: {none}");
        assert!(server.faults() > 50, "{fault:?}: {}", server.faults());
    }
}

#[test]
fn documents_are_put_once_whatever_happens_to_the_answer() {
    for fault in Fault::ALL {
        let server = failing_once(fault);
        let stores = stores_of(&server, Some((KEY, SECRET)));
        let folder = Folder::open("s3://bkt/wh", &Options::default(), &stores).unwrap();
        let put =
            |text: &str, mode| run(folder.put("catalog/a.json", text.as_bytes().to_vec(), mode));
        put("1", Mode::Create).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        // The same document by another writer is not ours.
        assert_eq!(put("1", Mode::Create).unwrap_err().code(), "already_exists", "{fault:?}");
        put("22", Mode::Replace).unwrap();
        assert_eq!(run(folder.get("catalog/a.json")).unwrap().unwrap(), "22", "{fault:?}");
        assert_eq!(run(folder.names("catalog")).unwrap(), ["a.json"], "{fault:?}");
        assert!(run(folder.remove("catalog/a.json")).unwrap(), "{fault:?}");
        assert!(run(folder.get("catalog/a.json")).unwrap().is_none(), "{fault:?}");
        assert!(run(folder.names("catalog")).unwrap().is_empty(), "{fault:?}");
        // A document removed with its folder is reported missing by a later removal.
        put("3", Mode::Create).unwrap();
        run(folder.remove_all("catalog")).unwrap();
        assert!(!run(folder.remove("catalog/a.json")).unwrap(), "{fault:?}");
        assert!(server.faults() >= 4, "{fault:?}: {}", server.faults());
    }
}

#[test]
fn a_version_is_replaced_once_whatever_happens_to_the_answer() {
    for fault in Fault::ALL {
        // For each request, either the first response or the second one is correct.
        let server = S3::failing(move |n, _| (n % 2 == 1).then_some(fault));
        let stores = stores_of(&server, Some((KEY, SECRET)));
        let folder = Folder::open("s3://bkt/wh", &Options::default(), &stores).unwrap();
        let put = |text: &str, mode| run(folder.put("a.json", text.as_bytes().to_vec(), mode));
        let there = || run(folder.get_version("a.json")).unwrap();
        assert_eq!(there(), None, "{fault:?}");
        let first = put("1", Mode::Create).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(there(), Some(("1".into(), first.clone())), "{fault:?}");
        let update = |text: &str, from: &Version| put(text, Mode::Update(from.clone()));
        let second = update("2", &first).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(there(), Some(("2".into(), second.clone())), "{fault:?}");
        // A replaced version; also with the stored bytes, which another writer put.
        for text in ["3", "2"] {
            let late = update(text, &first).unwrap_err();
            assert_eq!(
                (late.code(), late.class()),
                ("document_changed", Class::Retry),
                "{fault:?}"
            );
        }
        assert_eq!(there(), Some(("2".into(), second.clone())), "{fault:?}");
        assert!(run(folder.remove("a.json")).unwrap(), "{fault:?}");
        assert_eq!(update("4", &second).unwrap_err().code(), "document_changed", "{fault:?}");
        assert_eq!(there(), None, "{fault:?}");
        assert!(server.faults() >= 5, "{fault:?}: {}", server.faults());
    }
}

#[test]
fn lasting_faults_are_reported_at_once_and_passing_ones_retried() {
    let asked = |fault: Option<Fault>, secret: &'static str| {
        let count = Arc::new(Mutex::new(0));
        let counted = count.clone();
        let server = S3::failing(move |_, _| {
            *counted.lock().unwrap() += 1;
            fault
        });
        let environment = server.environment(Some((KEY, secret)));
        let stores = Stores::with_environment(Duration::from_secs(4), environment);
        let folder = Folder::open("s3://bkt/wh", &Options::default(), &stores).unwrap();
        let e = run(folder.put("catalog/a.json", b"1".to_vec(), Mode::Create)).unwrap_err();
        let n = *count.lock().unwrap();
        (n, e.code(), e.class())
    };
    assert_eq!(asked(None, "not-the-secret"), (1, "permission_denied", Class::User));
    for (fault, code) in [
        (Fault::Broken, "storage_error"),
        (Fault::SlowDown, "storage_error"),
        (Fault::Reset, "unreachable"),
        (Fault::Closed, "unreachable"),
    ] {
        let (n, told, class) = asked(Some(fault), SECRET);
        assert_eq!((told, class), (code, Class::Retry), "{fault:?}");
        assert!((3..50).contains(&n), "{fault:?}: {n}");
    }
}
