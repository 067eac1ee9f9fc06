//! Stores of which another process writes a part: they are those of one writer.

use super::*;
use object_store::ObjectStoreExt;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tessera_planner::region::Region;

/// Cells, and one byte a cell if some are masked.
type Fields = Vec<Vec<u8>>;

const SHAPE: [u64; 2] = [30, 40];
const CHUNK: [u64; 2] = [10, 10];

/// A tensor of numbers, and one whose masked cells have no value of their own in some chunks.
fn items(layout: &Layout) -> Vec<Item> {
    let grid = Grid::regular(&SHAPE, &CHUNK);
    let item = |name: &str, dtype, nullable| Item {
        name: name.into(),
        dtype,
        nullable,
        dims: vec![DimLabel { name: None, coord: None }; 2],
        shape: SHAPE.as_slice().into(),
        attrs: Attrs::from([("units".to_string(), "m".into())]),
        is_coordinate: false,
        chunks: layout.fit(name, &SHAPE, dtype, &grid).unwrap(),
        texts: None,
    };
    vec![item("x", DType::Int64, false), item("y", DType::Int16, true)]
}

/// The cells of a chunk: the first chunk of `x` is the fill value alone.
fn fields(result: usize, number: u64, cells: u64, collides: bool) -> Fields {
    let cells = 0..cells as i64;
    if result == 0 {
        return vec![cells.flat_map(|i| (number as i64 * (i + 1)).to_ne_bytes()).collect()];
    }
    let value = |i: i64| if collides && i == 3 { -32_767i16 } else { i as i16 };
    let valid = cells.clone().map(|i| u8::from(number % 3 == 1 || i % 7 != 0));
    vec![cells.clone().flat_map(|i| value(i).to_ne_bytes()).collect(), valid.collect()]
}

/// Takes a chunk: its result, its index, its cells.
type Take<'a> = dyn FnMut(usize, &[u64], &Region, &[&[u8]]) -> Result<(), SinkError> + 'a;

/// Calls `f` with each chunk of both results.
fn each(layout: &Layout, collides: bool, f: &mut Take<'_>) -> Result<(), SinkError> {
    for (result, item) in items(layout).iter().enumerate() {
        let grid = item.chunks.grid(&SHAPE);
        for number in 0..grid.count() {
            let (index, region) = (grid.unravel(number), grid.region(&grid.unravel(number)));
            let cells = region.shape().iter().product();
            let fields = fields(result, number, cells, collides && number == 5);
            let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
            f(result, &index, &region, &fields)?;
        }
    }
    Ok(())
}

/// The process that writes a chunk.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Who {
    Owner,
    Other,
    /// Another process, twice: its first order was lost.
    Twice,
}

/// Writes a store; `who` decides by the number of the call. The other process has a host of its own.
pub(super) fn write(
    own: &Bench,
    other: &Bench,
    target: &Target,
    (layout, how, collides): (&Layout, (bool, bool, bool), bool),
    who: &dyn Fn(u64) -> Who,
) -> Result<Written, SinkError> {
    let io = &own.host.io;
    let items = items(layout);
    let writer = ZarrWriter::create(target, items, Attrs::new(), layout.clone(), how, &own.host);
    let writer = io.block_on(writer)?;
    let written = || {
        let shared = io.block_on(writer.share())?.unwrap();
        // The form in which it is sent.
        let shared = serde_json::to_string(&shared).unwrap();
        let shared = serde_json::from_str(&shared).unwrap();
        let (stores, quota) = (&other.host.stores, &other.host.quota);
        let part = PartWriter::open(&shared, stores, quota, &other.host.io, 1);
        let part = other.host.io.block_on(part)?;
        let batches = [part.batch(), part.batch()];
        let mut n = 0;
        each(layout, collides, &mut |result, index, region, fields| {
            n += 1;
            let who = who(n);
            if who == Who::Owner {
                let encoded = writer.encode(result, index, region, &region.shape(), fields)?;
                return writer.put(encoded.unwrap());
            }
            for batch in &batches[..if who == Who::Twice { 2 } else { 1 }] {
                let encoded = batch.encode(result, index, region, &region.shape(), fields)?;
                batch.put(encoded.unwrap())?;
            }
            Ok(())
        })?;
        for batch in &batches {
            let entries = other.host.io.block_on(batch.finish())?;
            let entries = serde_json::to_string(&entries).unwrap();
            writer.add(&serde_json::from_str::<Vec<PartEntry>>(&entries).unwrap())?;
        }
        io.block_on(writer.finish())
    };
    let written = written();
    if written.is_err() {
        io.block_on(writer.abort()).unwrap();
    }
    written
}

/// The files below a directory, or the objects of a bucket below a key.
pub(super) fn contents(b: &Bench, bucket: Option<&Faulty>, at: &str) -> BTreeMap<String, Vec<u8>> {
    let Some(bucket) = bucket else {
        let mut all = BTreeMap::new();
        let mut open = vec![std::path::PathBuf::from(at)];
        while let Some(next) = open.pop() {
            for entry in fs::read_dir(&next).unwrap().map(|e| e.unwrap().path()) {
                if entry.is_dir() {
                    open.push(entry);
                } else {
                    let name = entry.strip_prefix(at).unwrap().display().to_string();
                    all.insert(name, fs::read(entry).unwrap());
                }
            }
        }
        return all;
    };
    let get = |key: &str| {
        let got = b.host.io.block_on(async {
            bucket.get(&object_store::path::Path::from(key)).await?.bytes().await
        });
        got.unwrap().to_vec()
    };
    let keys = b.host.io.block_on(bucket.keys());
    let below = keys.iter().filter_map(|k| Some((k.strip_prefix(at)?.strip_prefix('/')?, k)));
    below.map(|(name, key)| (name.to_owned(), get(key))).collect()
}

#[test]
fn a_store_that_two_processes_write_is_that_of_one() {
    let sharded = Layout { shards: Some(vec![20, 20]), ..Layout::default() };
    let codec = Codec::Blosc("lz4", 5);
    let layouts = [
        (Layout::default(), false),
        (Layout { format: 2, codec, ..Layout::default() }, false),
        (sharded, false),
        (Layout::warehouse(), true),
    ];
    let one = |_| Who::Owner;
    for remote in [false, true] {
        for (layout, in_place) in &layouts {
            for collides in [false, true] {
                let bucket = remote.then(|| Faulty::new(Fault::NoSpace, u64::MAX));
                let (own, other) = (bench(bucket.clone()), bench(bucket.clone()));
                let url = |name: &str| match remote {
                    true => format!("s3://bkt/{name}"),
                    false => own.directory.path().join(name).display().to_string(),
                };
                let how = (layout, (false, *in_place, *in_place), collides);
                let at = |name: &str| match in_place {
                    true => {
                        let folder = Folder::open(&url(""), &Options::default(), &own.host.stores);
                        folder.unwrap().target(name)
                    }
                    false => own.target(&url(name)),
                };
                let want = write(&own, &other, &at("one"), how, &one).unwrap();
                let all = |name: &str| match remote {
                    true => contents(&own, bucket.as_deref(), name),
                    false => contents(&own, None, &url(name)),
                };
                let expected = all("one");
                assert!(expected.contains_key("zarr.json") || layout.format == 2);
                assert!(!expected.contains_key("x/c/0/0"), "the fill value alone");
                let ways: [&dyn Fn(u64) -> Who; 3] = [
                    &|n| if n % 2 == 0 { Who::Owner } else { Who::Other },
                    &|_| Who::Other,
                    &|n| if n % 3 == 0 { Who::Twice } else { Who::Other },
                ];
                for (way, who) in ways.into_iter().enumerate() {
                    let name = format!("two{way}");
                    let written = write(&own, &other, &at(&name), how, who).unwrap();
                    let what = format!("{layout:?} {remote} {collides} {way}");
                    assert_eq!(written, want, "{what}");
                    let found = all(&name);
                    let keys = |all: &BTreeMap<String, Vec<u8>>| {
                        all.keys().cloned().collect::<Vec<String>>()
                    };
                    assert_eq!(keys(&found), keys(&expected), "{what}");
                    assert!(found == expected, "{what}: other bytes");
                }
                assert_eq!((own.host.quota.used(), other.host.quota.used()), (0, 0));
            }
        }
    }
}

#[test]
fn a_bucket_that_fails_while_another_process_writes_is_left_empty() {
    let layout = Layout::default();
    let run = |bucket: &Arc<Faulty>| {
        let (own, other) = (bench(Some(bucket.clone())), bench(Some(bucket.clone())));
        let target = own.target("s3://bkt/out.zarr");
        let how = (&layout, (false, false, false), true);
        let written = write(&own, &other, &target, how, &|_| Who::Other);
        (own, written)
    };
    let sound = Faulty::new(Fault::NoSpace, u64::MAX);
    run(&sound).1.unwrap();
    let writes = sound.writes();
    // The mark, a probe, chunks and validity, their copies, metadata.
    assert!(writes > 60, "{writes}");
    for fault in [Fault::NoSpace, Fault::Unavailable, Fault::LostAnswer] {
        for at in (0..writes).step_by(7) {
            let bucket = Faulty::new(fault, at);
            let (own, written) = run(&bucket);
            is_told(&written.unwrap_err(), fault);
            own.is_quiet(Some(&bucket));
        }
    }
}

#[test]
fn chunks_that_a_store_does_not_have_are_refused() {
    let b = bench(None);
    let layout = Layout::default();
    let target = b.target(&b.directory.path().join("x.zarr").display().to_string());
    let how = (false, false, false);
    let items = items(&layout);
    let create = ZarrWriter::create(&target, items, Attrs::new(), layout, how, &b.host);
    let writer = b.host.io.block_on(create).unwrap();
    let add = |entry: &str| {
        let mut all = json!({"cells": null, "valid": null, "masked": false, "collides": false});
        let given: Map<String, Value> = serde_json::from_str(entry).unwrap();
        all.as_object_mut().unwrap().extend(given);
        let entry: PartEntry = serde_json::from_value(all).unwrap();
        writer.add(&[entry])
    };
    add(r#"{"result":0,"number":11,"cells":{"bytes":7,"crc32c":1}}"#).unwrap();
    for entry in [
        r#"{"result":0,"number":12,"cells":{"bytes":7,"crc32c":1}}"#,
        r#"{"result":2,"number":0,"cells":{"bytes":7,"crc32c":1}}"#,
        r#"{"result":0,"number":0,"valid":{"bytes":7,"crc32c":1}}"#,
        r#"{"result":0,"number":0,"cells":{"bytes":5000000000,"crc32c":1}}"#,
    ] {
        assert_eq!(add(entry).unwrap_err().code(), "internal", "{entry}");
    }
}
