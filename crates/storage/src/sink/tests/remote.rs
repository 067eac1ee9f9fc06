//! Outputs in a bucket whose requests each fail once: they are whole, and reported as written.

use super::parts::{Who, contents, write};
use super::*;
use crate::served::{Fault, KEY, S3, SECRET};
use std::collections::BTreeSet;
use std::sync::Mutex;

#[test]
fn outputs_are_whole_whatever_happens_to_the_answers() {
    let plain = bench(None);
    let expected = plain.directory.path().join("out.zarr");
    plain.zarr(&expected.display().to_string(), false).unwrap();
    for fault in Fault::ALL {
        let seen = Mutex::new(BTreeSet::new());
        let server = S3::failing(move |_, line| {
            seen.lock().unwrap().insert(line.to_string()).then_some(fault)
        });
        let mut b = bench(None);
        let environment = server.environment(Some((KEY, SECRET)));
        b.host.stores = Arc::new(Stores::with_environment(Duration::from_secs(30), environment));
        b.zarr("s3://bkt/out.zarr", false).unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        for name in ["zarr.json", "x/zarr.json", "x/c/0/0", "x/c/2/3"] {
            let at = server.path("out.zarr").join(name);
            assert_eq!(fs::read(at).unwrap(), fs::read(expected.join(name)).unwrap(), "{fault:?}");
        }
        // One request; and an upload in parts, the last request of which completes it.
        for (bytes, name) in [(1000, "small.npy"), (20 << 20, "large.npy")] {
            let url = format!("s3://bkt/{name}");
            let written = b.object(&url, bytes, false);
            let written = written.unwrap_or_else(|e| panic!("{fault:?}: {name}: {e}"));
            assert_eq!(written.bytes, bytes as u64);
            assert!(fs::read(server.path(name)).unwrap() == vec![7; bytes], "{fault:?}: {name}");
        }
        // An existing object of another writer stays.
        let taken = b.object("s3://bkt/small.npy", 1000, false).unwrap_err();
        assert_eq!(taken.code(), "already_exists", "{fault:?}");
        assert!(server.faults() > 15, "{fault:?}: {}", server.faults());
    }
}

#[test]
fn parts_of_another_process_are_whole_whatever_happens_to_the_answers() {
    let layout = Layout::default();
    let how = (&layout, (false, false, false), true);
    let plain = bench(None);
    let expected = plain.directory.path().join("out.zarr");
    let target = plain.target(&expected.display().to_string());
    write(&plain, &plain, &target, how, &|_| Who::Owner).unwrap();
    for fault in [Fault::Broken, Fault::LostAnswer, Fault::Truncated] {
        let seen = Mutex::new(BTreeSet::new());
        let server = S3::failing(move |_, line| {
            seen.lock().unwrap().insert(line.to_string()).then_some(fault)
        });
        let [mut own, mut other] = [bench(None), bench(None)];
        for b in [&mut own, &mut other] {
            let environment = server.environment(Some((KEY, SECRET)));
            let stores = Stores::with_environment(Duration::from_secs(30), environment);
            b.host.stores = Arc::new(stores);
        }
        let target = own.target("s3://bkt/out.zarr");
        let written = write(&own, &other, &target, how, &|_| Who::Other);
        written.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        let files = |at: &std::path::Path| contents(&own, None, &at.display().to_string());
        let (found, want) = (files(&server.path("out.zarr")), files(&expected));
        assert!(found.keys().eq(want.keys()), "{fault:?}: {:?}", found.keys());
        assert!(found == want && found.contains_key("y_valid/c/2/3"), "{fault:?}");
        assert!(server.faults() > 60, "{fault:?}: {}", server.faults());
    }
}
