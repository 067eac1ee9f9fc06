//! The object versions that chunks depend on.

use super::*;
use crate::task::Origin;
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;
use tessera_storage::source::{Versions, open_for};

/// Eight chunks of 512 cells without codecs.
const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4096],"data_type":"float64","chunk_grid":{"name":"regular","configuration":{"chunk_shape":[512]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}"#;

#[test]
fn the_next_run_finds_recorded_reads_or_reports_damage() {
    let directory = tempfile::tempdir().unwrap();
    let io = io();
    for folder in folders(directory.path()) {
        let store = DurableStore::new(folder.clone(), 1 << 30);
        let durable = Durable::new(&store, "one", Durability::All, false);
        let reads = || io.block_on(store.reads("one"));
        let keep = || io.block_on(durable.keep_reads()).unwrap();
        let (first, third) = (Versions::new(true), Versions::new(true));
        durable.begin_part(0, &first);
        keep();
        assert!(reads().unwrap().is_empty(), "of nothing there is no list");
        assert!(first.met_all(&[(1, 10), (2, 20)]));
        keep();
        keep();
        assert_eq!(reads().unwrap(), BTreeMap::from([(0, vec![(1, 10), (2, 20)])]));
        durable.begin_part(2, &third);
        assert!(third.met_all(&[(1, 11)]) && first.met_all(&[(u64::MAX, 30)]));
        keep();
        let mut all = reads().unwrap();
        all.values_mut().for_each(|noted| noted.sort());
        let want = [(0, vec![(1, 10), (2, 20), (u64::MAX, 30)]), (2, vec![(1, 11)])];
        assert_eq!(all, BTreeMap::from(want));
        let listed = io.block_on(folder.list_below("one/reads")).unwrap();
        assert_eq!(listed.len(), 3);
        let key = format!("one/reads/{}", listed[0].0);
        let good = io.block_on(folder.get_up_to(&key, 1 << 20)).unwrap().unwrap();
        let put = |key: &str, bytes: &[u8]| {
            io.block_on(folder.put_parts(key, vec![Bytes::copy_from_slice(bytes)])).unwrap();
        };
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x10;
            put(&key, &bad);
            assert!(reads().is_err(), "byte {at}");
            put(&key, &good[..at]);
            assert!(reads().is_err(), "cut off at {at}");
        }
        put(&key, &good);
        assert_eq!(reads().unwrap().len(), 2);
        put("one/reads/nothing", &good);
        assert!(reads().is_err());
        io.block_on(store.remove("one")).unwrap();
        assert!(reads().unwrap().is_empty());
    }
}

/// Writes a chunk of the array and sets its time to `second` seconds after 1970.
fn write(array: &Path, number: u64, value: f64, second: u64) {
    let path = array.join(format!("c/{number}"));
    let cells: Vec<u8> = (0..512).flat_map(|i| (value + f64::from(i)).to_le_bytes()).collect();
    fs::write(&path, cells).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).unwrap();
}

#[test]
fn stored_chunks_are_valid_only_with_the_versions_that_they_read() {
    let directory = tempfile::tempdir().unwrap();
    let array = directory.path().join("a.zarr");
    fs::create_dir_all(array.join("c")).unwrap();
    fs::write(array.join("zarr.json"), ARRAY).unwrap();
    (0..8).for_each(|n| write(&array, n, n as f64, 5));
    let io = io();
    let runtime = Runtime::new(Config { threads: 2, ..Config::default() }, io.handle().clone());
    let (runtime, stores) =
        (runtime.unwrap(), Stores::with_environment(Duration::from_secs(5), []));
    let [folder, _] = folders(&directory.path().join("kept"));
    let store = DurableStore::new(folder, 1 << 30);
    let run = |part: usize, ran_before: bool| {
        let versions = Versions::new(true);
        if let Some(noted) = io.block_on(store.reads("one")).unwrap().get(&part) {
            versions.expect(noted);
        }
        let url = array.to_str().unwrap();
        let opened = io.block_on(open_for(&versions, url, &Options::default(), &stores)).unwrap();
        let source = opened.dataset.variables[0].source.clone();
        let mut sources = Sources::default();
        sources.add(source.clone(), Origin::Stored(opened.readers[0].clone()));
        let config =
            PlanConfig { chunk_bytes_target: 4096, batch_cells: Some(0), ..Default::default() };
        let mut b = Builder::new(config.clone());
        let x = b.load(source.into()).unwrap();
        let x = b.map(ScalarOp::Sqrt, &[x]).unwrap();
        let sum = b.reduce_axes(x, ReduceKind::Sum, &[0]).unwrap();
        let rooted = Rooted { graph: b.graph, roots: vec![sum] };
        let tiling = Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap());
        let durable = Durable::new(&store, "one", Durability::All, ran_before);
        durable.begin_part(part, &versions);
        durable.begin();
        let stored = io.block_on(durable.plan(&tiling));
        let (sink, token) = (Arc::new(Bits::default()), CancelToken::new());
        let runner = Arc::new(PlanRunner::new(tiling.clone(), &sources).unwrap());
        let running = runtime
            .start_as(tiling, runner, sink.clone(), &token, How { stored, ..How::default() })
            .unwrap();
        let outcome = running.wait();
        while durable.is_writing() {
            std::thread::sleep(Duration::from_millis(1));
        }
        io.block_on(durable.close());
        let bits = std::mem::take(&mut *sink.0.lock().unwrap());
        (outcome.result.map(|()| bits), durable.did())
    };
    let (want, did) = run(0, false);
    let want = want.unwrap();
    assert!(did.written >= 9, "{did:?}");
    // Removes one chunk of eight, and the result.
    let lose = || {
        let chunks = directory.path().join("kept/one/chunks");
        let mut lost = 0;
        for stage in fs::read_dir(chunks).unwrap().map(|e| e.unwrap().path()) {
            match fs::read_dir(&stage).unwrap().count() {
                8 => {
                    fs::remove_file(stage.join("3.chunk")).unwrap();
                    lost += 1;
                }
                _ => fs::remove_dir_all(stage).unwrap(),
            }
        }
        assert_eq!(lost, 1);
    };
    lose();
    let (same, did) = run(0, true);
    assert_eq!((same.unwrap(), did.reused), (want.clone(), 7));
    // The source of a stored chunk is not read.
    write(&array, 5, 50.0, 6);
    lose();
    let (same, did) = run(0, true);
    assert_eq!((same.unwrap(), did.reused), (want.clone(), 7));
    // The source of a lost chunk must be unchanged.
    write(&array, 3, 30.0, 6);
    lose();
    assert_eq!(run(0, true).0.unwrap_err().code(), "source_changed");
    // A later statement of the script reads the current versions, and has its own chunks.
    let (other, did) = run(1, true);
    assert_eq!(did.reused, 0);
    assert_ne!(other.unwrap(), want);
    // Once the sources are restored, the first statement can continue.
    write(&array, 3, 3.0, 5);
    write(&array, 5, 5.0, 5);
    let (same, did) = run(0, true);
    assert!(same.unwrap() == want && did.reused == 7, "{did:?}");
}
