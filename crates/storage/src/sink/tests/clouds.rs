//! Outputs in Google's and Azure's stores, and in memory.

use super::parts::{Who, contents, write};
use super::*;
use crate::clouds::Trouble;
use crate::source::tests::cloud::Cloud;
use tessera_planner::region::Region;

fn bench_of(cloud: &Cloud) -> Bench {
    let mut b = bench(None);
    b.host.stores = Arc::new(cloud.stores());
    b
}

#[test]
fn outputs_are_whole_whatever_happens_to_the_answers() {
    let plain = bench(None);
    let expected = plain.directory.path().join("out.zarr");
    plain.zarr(&expected.display().to_string(), false).unwrap();
    for cloud in Cloud::all() {
        for trouble in [None].into_iter().chain(Trouble::PASSING.map(Some)) {
            if let (Some(server), Some(trouble)) = (cloud.server(), trouble) {
                server.trouble_once(trouble);
            }
            let b = bench_of(&cloud);
            let what = format!("{} {trouble:?}", cloud.url(""));
            for overwrite in [false, true] {
                let written = b.zarr(&cloud.url("out.zarr"), overwrite);
                written.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            let again = b.target(&cloud.url("out.zarr"));
            assert_eq!(
                b.host.io.block_on(again.check(false, false)).unwrap_err().code(),
                "already_exists"
            );
            for name in ["zarr.json", "x/zarr.json", "x/c/0/0", "x/c/2/3"] {
                let there = cloud.get(&format!("out.zarr/{name}"));
                assert_eq!(there, Some(fs::read(expected.join(name)).unwrap()), "{what}");
            }
            // One request; and an upload in parts.
            for (bytes, name) in [(1000, "small.npy"), (20 << 20, "large.npy")] {
                let written = b.object(&cloud.url(name), bytes, false);
                let written = written.unwrap_or_else(|e| panic!("{what}: {name}: {e}"));
                assert_eq!(written.bytes, bytes as u64);
                assert!(cloud.get(name).unwrap() == vec![7; bytes], "{what}: {name}");
            }
            // An existing object of another writer stays.
            let taken = b.object(&cloud.url("small.npy"), 1000, false).unwrap_err();
            assert_eq!(taken.code(), "already_exists", "{what}");
            let folder = Folder::open(&cloud.url(""), &Options::default(), &b.host.stores).unwrap();
            b.host.io.block_on(folder.remove_all("")).unwrap();
            assert!(cloud.get("small.npy").is_none() && cloud.get("out.zarr/x/c/0/0").is_none());
        }
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
    let want = contents(&plain, None, &expected.display().to_string());
    for cloud in Cloud::servers() {
        {
            let trouble = Trouble::Lost;
            cloud.server().unwrap().trouble_once(trouble);
            let [own, other] = [bench_of(&cloud), bench_of(&cloud)];
            let url = cloud.url(&format!("{trouble:?}.zarr"));
            let written = write(&own, &other, &own.target(&url), how, &|_| Who::Other);
            written.unwrap_or_else(|e| panic!("{trouble:?}: {e}"));
            for (name, bytes) in &want {
                let there = cloud.get(&format!("{trouble:?}.zarr/{name}"));
                assert!(there.as_ref() == Some(bytes), "{url} {name} {trouble:?}");
            }
        }
    }
}

/// A result of four numbers along `t`, from `first` on.
fn item(layout: &Layout) -> Item {
    let grid = Grid::regular(&[4], &[3]);
    Item {
        name: "x".into(),
        dtype: DType::Int64,
        nullable: false,
        dims: vec![DimLabel { name: Some("t".into()), coord: None }],
        shape: [4].as_slice().into(),
        attrs: Attrs::new(),
        is_coordinate: false,
        chunks: layout.fit("x", &[4], DType::Int64, &grid).unwrap(),
        texts: None,
    }
}

#[test]
fn a_store_is_appended_to_once_whatever_happens_to_the_answers() {
    for cloud in Cloud::all() {
        let (b, url, layout) = (bench_of(&cloud), cloud.url("t.zarr"), Layout::default());
        let io = &b.host.io;
        let bytes =
            |numbers: std::ops::Range<i64>| numbers.flat_map(i64::to_ne_bytes).collect::<Vec<u8>>();
        let how = (false, false, false);
        let items = || vec![item(&layout)];
        let target = b.target(&url);
        let create =
            ZarrWriter::create(&target, items(), Attrs::new(), layout.clone(), how, &b.host);
        let writer = io.block_on(create).unwrap();
        let grid = Grid::regular(&[4], &[3]);
        for n in 0..grid.count() {
            let (index, region) = (grid.unravel(n), grid.region(&grid.unravel(n)));
            let cells = bytes(region.start[0] as i64..region.end[0] as i64);
            let encoded = writer.encode(0, &index, &region, &region.shape(), &[&cells]).unwrap();
            writer.put(encoded.unwrap()).unwrap();
        }
        io.block_on(writer.finish()).unwrap();
        if let Some(server) = cloud.server() {
            server.trouble_once(Trouble::Lost);
        }
        let (options, stores) = (Options::default(), &b.host.stores);
        let try_open = || io.block_on(Append::open(&url, "t", &items(), &options, stores));
        let append = try_open().unwrap();
        for region in append.boxes("x") {
            let cells = bytes(region.start[0] as i64 + 4..region.end[0] as i64 + 4);
            io.block_on(append.put("x", &region, &cells, None)).unwrap();
        }
        // Another append while this one runs.
        let e = try_open().unwrap_err();
        assert_eq!((e.code(), e.class()), ("busy", Class::Retry), "{url}: {e}");
        assert_eq!(io.block_on(append.finish("first")).unwrap(), 8);
        // An append that is killed leaves the lock: the next one waits until the lock was not renewed for long enough.
        drop(try_open().unwrap());
        let late = try_open().unwrap();
        assert_eq!((late.before(), late.after()), (8, 12));
        for (mark, before, found) in [
            ("first", Some(4), Earlier::Committed),
            ("second", Some(4), Earlier::Absent),
            ("second", Some(8), Earlier::Absent),
            ("second", Some(5), Earlier::Unknown),
            ("second", None, Earlier::Absent),
        ] {
            assert_eq!(late.earlier(mark, before), found, "{url}: {mark} {before:?}");
        }
        // An append that loses its lock commits nothing, and its chunks are behind the end.
        for region in late.boxes("x") {
            let cells = bytes(region.start[0] as i64 + 80..region.end[0] as i64 + 80);
            io.block_on(late.put("x", &region, &cells, None)).unwrap();
        }
        let folder = Folder::open(&url, &options, stores).unwrap();
        assert!(io.block_on(folder.remove(".tessera-append.json")).unwrap());
        let next = try_open().unwrap();
        for region in next.boxes("x") {
            let cells = bytes(region.start[0] as i64 + 8..region.end[0] as i64 + 8);
            io.block_on(next.put("x", &region, &cells, None)).unwrap();
        }
        assert_eq!(io.block_on(next.finish("next")).unwrap(), 12);
        let e = io.block_on(late.finish("late")).unwrap_err();
        assert_eq!((e.code(), e.class()), ("document_changed", Class::Retry), "{url}: {e}");
        let is_committed =
            |mark: &str| io.block_on(Append::is_committed(&url, mark, &options, stores)).unwrap();
        assert!(is_committed("first") && is_committed("next") && !is_committed("late"), "{url}");
        let lock = format!("{url}/.tessera-append.json");
        let e = io.block_on(crate::source::open(&lock, &options, stores)).unwrap_err();
        assert_eq!(e.code(), "not_found", "{url}: {e}");
        let opened = io.block_on(crate::source::open(&url, &options, stores)).unwrap();
        let cells = io.block_on(opened.readers[0].read(&Region::whole(&[12]))).unwrap();
        assert_eq!(cells, bytes(0..12), "{url}");
    }
}

#[test]
fn memory_is_not_shared_with_other_processes() {
    let b = bench(None);
    let target = b.target("memory://not-shared/out.zarr");
    let layout = Layout::default();
    let (items, how) = (vec![item(&layout)], (false, false, false));
    let create = ZarrWriter::create(&target, items, Attrs::new(), layout, how, &b.host);
    let writer = b.host.io.block_on(create).unwrap();
    assert!(b.host.io.block_on(writer.share()).unwrap().is_none());
    b.host.io.block_on(writer.abort()).unwrap();
}

#[test]
fn failed_writes_are_reported() {
    let b = bench(None);
    for (url, code) in [
        ("gs://bkt", "bad_url"),
        ("az://bkt/", "bad_url"),
        ("memory://", "bad_url"),
        ("https://host/x", "unsupported"),
        ("gs://bkt/x#g", "bad_url"),
    ] {
        let options = Options::parse([("azure.account", "acct")]).unwrap();
        let e = Target::parse(url, &options, &b.host.stores).unwrap_err();
        assert_eq!(e.code(), code, "{url}: {e}");
    }
}
