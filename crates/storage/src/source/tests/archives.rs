//! Zarr stores in ZIP archives, locally and on a web server.

use super::*;
use crate::clouds::web::{Manners, Web};
use std::fs;
use tessera_planner::error::Class;
use tessera_planner::grid::Grid;

/// The archive of the fixtures of that name.
fn archive(name: &str) -> Vec<u8> {
    fs::read(data(&format!("stores/{name}.zarr.zip"))).unwrap()
}

fn at<'a>(opened: &'a Opened, name: &str) -> &'a Arc<ArrayReader> {
    opened.readers.iter().find(|r| r.name == name).unwrap()
}

#[test]
fn archives_are_read_by_range() {
    for manners in [Manners::default(), Manners { no_versions: true, ..Manners::default() }] {
        let web = Web::start(manners);
        for name in ["groups", "deflated", "codecs3"] {
            web.put(&format!("{name}.zarr.zip"), &archive(name));
            for group in ["", "#deep"] {
                if name == "codecs3" && !group.is_empty() {
                    continue;
                }
                let url = web.url(&format!("{name}.zarr.zip{group}"));
                let remote = run(open(&url, &Options::default(), &stores())).unwrap();
                let local = data(&format!("stores/{name}.zarr.zip{group}"));
                let local = open_local(&local).unwrap();
                assert_eq!(remote.readers.len(), local.readers.len());
                assert_eq!(remote.dataset.name, if group.is_empty() { name } else { "deep" });
                for (r, l) in remote.readers.iter().zip(&local.readers) {
                    assert!(!l.is_local(), "parts of one file are read as those of an object");
                    assert_eq!(whole(r), whole(l), "{name} {group}: {}", r.name);
                }
            }
        }
    }
    let web = Web::start(Manners { no_ranges: true, ..Manners::default() });
    web.put("groups.zarr.zip", &archive("groups"));
    let e = run(open(&web.url("groups.zarr.zip"), &Options::default(), &stores())).unwrap_err();
    assert!(e.code() == "unsupported" && e.to_string().contains("ignores range requests"), "{e}");
}

#[test]
fn requests_are_counted_before_they_are_made() {
    let web = Web::start(Manners::default());
    web.put("groups.zarr.zip", &archive("groups"));
    // A chunk is one request, with its header; of a shard, the header and the index are one each.
    for (group, name, expected) in [("", "w", 1), ("#deep", "v", 2 * (2 + 1))] {
        let (url, stores) = (web.url(&format!("groups.zarr.zip{group}")), stores());
        let opened = run(open(&url, &Options::default(), &stores)).unwrap();
        let reader = at(&opened, name).fresh();
        let shape = reader.source().shape.clone();
        // A box for each shard.
        let grid = Grid::regular(&shape, &[4, 4][..shape.len()]);
        let estimated = reader.requests(&grid, &vec![0; shape.len()]);
        assert_eq!(estimated, expected, "{name}");
        let (before, _, _) = stores.counters().snapshot();
        for number in 0..grid.count() {
            read(&reader, &grid.region(&grid.unravel(number))).unwrap();
        }
        let counted = stores.counters().snapshot().0 - before;
        // The second shard is absent: the directory says so.
        assert!(counted <= expected && counted >= expected / 2, "{name}: {counted}");
    }
}

#[test]
fn an_archive_is_of_one_version() {
    let (web, stores) = (Web::start(Manners::default()), stores());
    let (url, bytes) = (web.url("groups.zarr.zip"), archive("groups"));
    web.put("groups.zarr.zip", &bytes);
    let opened = run(open(&url, &Options::default(), &stores)).unwrap();
    let reader = at(&opened, "w").fresh();
    assert_eq!(whole(&reader), [0, 0, 1, 0, 2, 0, 3, 0]);
    web.put("groups.zarr.zip", &bytes);
    let e = read(&reader, &Region::whole(&[4])).unwrap_err();
    assert_eq!((e.code(), e.class()), ("source_changed", Class::Retry), "{e}");
    assert!(e.to_string().contains("groups.zarr.zip"), "{e}");
    // The archive is opened again.
    let again = run(open(&url, &Options::default(), &stores)).unwrap();
    assert_eq!(whole(at(&again, "w")), [0, 0, 1, 0, 2, 0, 3, 0]);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.zarr.zip");
    fs::write(&path, &bytes).unwrap();
    let opened = open_local(path.to_str().unwrap()).unwrap();
    fs::write(&path, [&bytes[..], b"more"].concat()).unwrap();
    let e = read(at(&opened, "w"), &Region::whole(&[4])).unwrap_err();
    assert_eq!(e.code(), "source_changed", "{e}");
    fs::remove_file(&path).unwrap();
    let e = read(at(&opened, "w"), &Region::whole(&[4])).unwrap_err();
    assert_eq!(e.code(), "source_changed", "{e}");
}

#[test]
fn damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.zarr.zip");
    let path = path.to_str().unwrap();
    for name in ["groups", "deflated"] {
        let bytes = archive(name);
        // Cut anywhere it is no archive.
        for cut in (0..bytes.len()).step_by(97) {
            fs::write(path, &bytes[..cut]).unwrap();
            let e = open_local(path).unwrap_err();
            assert_eq!(e.code(), "corrupt_file", "{cut}: {e}");
        }
        // A byte of a member does not agree with its checksum; others are found elsewhere, or are of no use.
        let mut found = 0;
        for i in (0..bytes.len()).step_by(13) {
            let mut flipped = bytes.clone();
            flipped[i] ^= 0x10;
            fs::write(path, &flipped).unwrap();
            let read = open_local(path).and_then(|opened| {
                let readers = opened.readers.iter();
                let cells = |r: &Arc<ArrayReader>| read(r, &Region::whole(&r.source().shape));
                readers.map(cells).collect::<Result<Vec<_>, _>>()
            });
            found += usize::from(read.is_err());
        }
        assert!(found > 10, "{name}: {found}");
    }
    // The last of the chunk's eight bytes.
    let mut bytes = archive("groups");
    let header = b"w/c/0";
    let place =
        |of: &[u8]| of.windows(5).enumerate().filter(|(_, w)| **w == header[..]).nth(1).unwrap().0;
    let last = place(&bytes) + 5 + 7;
    bytes[last] ^= 1;
    fs::write(path, &bytes).unwrap();
    let e = read(at(&open_local(path).unwrap(), "w"), &Region::whole(&[4])).unwrap_err();
    assert!(e.code() == "corrupt_file" && e.to_string().contains("`w/c/0`: its CRC-32"), "{e}");
}

#[test]
fn members_that_are_not_read_are_named() {
    let e = open_local(&data("stores/below.zarr.zip")).unwrap_err();
    assert!(e.to_string().contains("no Zarr store at its root"), "{e}");
    assert!(e.hint().unwrap().contains("below.zarr.zip#inner"), "{:?}", e.hint());
    let e = open_local(&data("stores/lzma.zarr.zip")).unwrap_err();
    assert!(e.to_string().contains("ZIP compression method lzma is not supported"), "{e}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.zip");
    fs::write(&path, "no archive").unwrap();
    let e = open_local(path.to_str().unwrap()).unwrap_err();
    assert!(e.code() == "corrupt_file" && e.to_string().contains("not a ZIP archive"), "{e}");
    // A directory may have such a name.
    let directory = dir.path().join("store.zip");
    fs::create_dir(&directory).unwrap();
    let group = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;
    fs::write(directory.join("zarr.json"), group).unwrap();
    assert!(open_local(directory.to_str().unwrap()).unwrap().dataset.variables.is_empty());
}

#[test]
fn codecs_of_an_array_find_damage() {
    let opened = open_local(&data("stores/codecs3.zarr.zip")).unwrap();
    let named = |name: &str| opened.unsupported.get(name).map(ToString::to_string);
    assert!(named("lzma").unwrap().contains("codec numcodecs.lzma"), "{:?}", named("lzma"));
    assert_eq!(opened.unsupported.len(), 1, "{:?}", opened.unsupported);
    assert!(opened.unsupported["lzma"].hint().unwrap().contains("another codec"));
}
