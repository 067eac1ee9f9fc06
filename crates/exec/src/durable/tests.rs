//! Objects of operands, and real plans that run again. The scheduler's use of stored chunks is tested in
//! `schedule/tests/durable.rs`.
#![allow(clippy::unwrap_used, reason = "tests")]

mod reads;

use super::*;
use crate::cancel::CancelToken;
use crate::chunk::ipc::{self, Compression, Message};
use crate::chunk::{Chunk, Field};
use crate::config::Config;
use crate::error::Error;
use crate::faulty::{Fault, Faulty};
use crate::pool::Pool;
use crate::quota::Quota;
use crate::run::{How, Runtime};
use crate::schedule::Sink;
use crate::task::{PlanRunner, Sources};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tessera_planner::build::Builder;
use tessera_planner::compile;
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::durable::Durability;
use tessera_planner::grid::ChunkIndex;
use tessera_planner::key::StageKey;
use tessera_planner::optimize::Rooted;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::{Dims, Region};
use tessera_planner::tile::Tiling;
use tessera_storage::source::{Options, Stores};

fn pool() -> Arc<Pool> {
    Pool::new(Quota::new(1 << 30), 1 << 20)
}

fn key(of: &str) -> StageKey {
    StageKey::of(&of).unwrap()
}

/// Chunks of all kinds: masked, empty, of several fields.
fn chunks() -> Vec<Arc<Chunk>> {
    let field = |dtype, values| Field::from_vec(dtype, values).unwrap();
    let nan = f64::from_bits(0x7ff8_0000_0000_0123);
    let masked = [
        Field::from_vec(DType::Float64, vec![1.5, nan, -0.0]).unwrap(),
        Field::from_vec(DType::Bool, vec![1u8, 0, 1]).unwrap(),
    ];
    let times = field(DType::Datetime(Calendar::NoLeap), vec![7i64, -7]);
    vec![
        Arc::new(Chunk::new(&[3], masked).unwrap()),
        Arc::new(Chunk::new(&[2, 1], [times]).unwrap()),
        Arc::new(Chunk::from_vec::<f32>(&[0, 4], vec![]).unwrap()),
    ]
}

fn shapes() -> Vec<Dims> {
    chunks().iter().map(|c| c.shape().into()).collect()
}

fn object() -> Bytes {
    encoded(Compression::None)
}

fn encoded(compression: Compression) -> Bytes {
    let origins: Vec<Dims> =
        shapes().iter().map(|shape| shape.iter().map(|n| n * 5).collect()).collect();
    let chunks = chunks();
    let chunks = (0..).zip(chunks.iter().zip(&origins));
    let messages = ipc::encode(&key("k"), 7, 12_345, compression, chunks).unwrap();
    messages.into_iter().flat_map(Message::parts).collect::<Vec<_>>().concat().into()
}

#[test]
fn chunks_come_back_as_they_were() {
    for compression in Compression::ALL {
        let object = encoded(compression);
        let (back, nanos) = ipc::decode(&object, &key("k"), 7, &shapes(), &pool()).unwrap();
        assert_eq!((back.len(), nanos), (3, 12_345));
        for (a, b) in chunks().iter().zip(&back) {
            assert_eq!((a.shape(), a.fields().len()), (b.shape(), b.fields().len()));
            for (f, g) in a.fields().iter().zip(b.fields()) {
                assert_eq!((f.dtype(), f.buffer().as_slice()), (g.dtype(), g.buffer().as_slice()));
            }
        }
    }
}

#[test]
fn chunks_of_equal_cells_are_small_if_they_are_compressed() {
    let cells = 1 << 19;
    let chunk = Arc::new(Chunk::from_vec(&[cells], vec![0.0f64; cells as usize]).unwrap());
    let origin: Dims = [0].into_iter().collect();
    let bytes = |compression| {
        let chunks = [(0, (&chunk, &origin))];
        let messages = ipc::encode(&key("k"), 0, 0, compression, chunks).unwrap();
        messages.into_iter().flat_map(Message::parts).collect::<Vec<_>>().concat()
    };
    assert!(bytes(Compression::None).len() > 4 << 20);
    for compression in [Compression::Lz4, Compression::Zstd] {
        let object = bytes(compression);
        assert!(object.len() < 64 << 10, "{compression:?}: {}", object.len());
        let shapes: Vec<Dims> = vec![[cells].into_iter().collect()];
        let decode = |object: Vec<u8>| ipc::decode(&object.into(), &key("k"), 0, &shapes, &pool());
        let (back, _) = decode(object.clone()).unwrap();
        assert!(back[0].fields()[0].buffer().as_slice().iter().all(|byte| *byte == 0));
        // A buffer that claims to have a terabyte, with a checksum that holds.
        let claim = (2i64 << 20).to_le_bytes();
        let at = object.windows(8).position(|bytes| bytes == claim).unwrap();
        let mut bad = object;
        bad[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        let end = bad.len() - 8;
        let crc = crc32fast::hash(&bad[..end]);
        bad[end + 4..].copy_from_slice(&crc.to_le_bytes());
        let refused = decode(bad).unwrap_err();
        assert!(refused.contains("claims to have 1099511627776 bytes"), "{refused}");
    }
}

#[test]
fn whatever_is_changed_is_noticed() {
    let (good, pool) = (object(), pool());
    let decode = |bytes: &Bytes| ipc::decode(bytes, &key("k"), 7, &shapes(), &pool);
    for at in 0..good.len() {
        let mut bad = good.to_vec();
        bad[at] ^= 0x10;
        assert!(decode(&bad.into()).is_err(), "byte {at}");
        assert!(decode(&good.slice(..at)).is_err(), "cut off at {at}");
    }
    assert!(decode(&[&good[..], b"x"].concat().into()).is_err());
    assert!(ipc::decode(&good, &key("k"), 8, &shapes(), &pool).is_err());
    assert!(ipc::decode(&good, &key("l"), 7, &shapes(), &pool).is_err());
    assert!(ipc::decode(&good, &key("k"), 7, &shapes()[..2], &pool).is_err());
    assert!(decode(&good).is_ok());
}

fn io() -> tokio::runtime::Runtime {
    let mut io = tokio::runtime::Builder::new_multi_thread();
    io.worker_threads(1).enable_all().build().unwrap()
}

/// A folder in a directory, and one in a bucket.
fn folders(directory: &std::path::Path) -> [Folder; 2] {
    let stores = Stores::with_environment(Duration::from_secs(5), []);
    stores.serve("bucket", Faulty::new(Fault::NoSpace, u64::MAX));
    let at = |url: &str| Folder::open(url, &Options::default(), &stores).unwrap();
    [at(directory.to_str().unwrap()), at("s3://bucket/a/b")]
}

#[test]
fn objects_are_put_listed_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    for folder in folders(directory.path()) {
        io().block_on(async {
            assert_eq!(folder.list_below("x").await.unwrap(), []);
            assert_eq!(folder.get_up_to("x/1", 9).await.unwrap(), None);
            folder.remove_below("x").await.unwrap();
            let parts =
                |n: usize| vec![Bytes::from("ab"), Bytes::new(), Bytes::from(vec![b'c'; n])];
            folder.put_parts("x/k/1", parts(3)).await.unwrap();
            folder.put_parts("x/k/1", parts(4)).await.unwrap();
            folder.put_parts("x/l/2", parts(0)).await.unwrap();
            folder.put_parts("y/2", parts(0)).await.unwrap();
            let mut listed = folder.list_below("x").await.unwrap();
            listed.sort();
            assert_eq!(listed, [("k/1".to_string(), 6), ("l/2".to_string(), 2)]);
            assert_eq!(folder.get_up_to("x/k/1", 6).await.unwrap().unwrap(), "abcccc");
            assert!(folder.get_up_to("x/k/1", 5).await.is_err());
            folder.remove_below("x").await.unwrap();
            assert_eq!(folder.list_below("x").await.unwrap(), []);
            assert_eq!(folder.list_below("y").await.unwrap().len(), 1);
        });
    }
}

#[test]
fn a_file_that_is_not_whole_is_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let [folder, _] = folders(directory.path());
    io().block_on(async {
        folder.put_parts("x/1.chunk", vec![Bytes::from("a")]).await.unwrap();
        std::fs::write(directory.path().join("x/.2.chunk.0123.part"), b"half").unwrap();
        assert_eq!(folder.list_below("x").await.unwrap(), [("1.chunk".to_string(), 1)]);
        // A name that cannot be created leaves nothing.
        std::fs::write(directory.path().join("file"), b"").unwrap();
        assert!(folder.put_parts("file/1", vec![]).await.is_err());
        folder.remove_below("x").await.unwrap();
        assert!(!directory.path().join("x").exists());
    });
}

/// The bytes of each chunk of each result.
#[derive(Default)]
struct Bits(Mutex<BTreeMap<(usize, ChunkIndex), Fields>>);

type Fields = Vec<Vec<u8>>;

impl Sink for Bits {
    fn chunk(
        &self,
        r: usize,
        index: ChunkIndex,
        _: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        let bytes = chunk.fields().iter().map(|f| f.buffer().to_vec()).collect();
        assert!(self.0.lock().unwrap().insert((r, index), bytes).is_none());
        Ok(())
    }
}

/// Random numbers, standardised along one axis, with a running mean along the other, and its variance: reductions,
/// trees, windows, moves, and a product.
fn plan() -> Arc<Tiling> {
    let config =
        PlanConfig { chunk_bytes_target: 8 * 256, batch_cells: Some(0), ..Default::default() };
    let mut b = Builder::new(config.clone());
    let n = b.iota(&[128 * 128], Some(&[200])).unwrap();
    let x = b.map(ScalarOp::RandomNormal { seed: 5 }, &[n]).unwrap();
    let x = b.reshape(x, &[128, 128]).unwrap();
    let mean = b.reduce_axes(x, ReduceKind::Mean, &[0]).unwrap();
    let d = b.map(ScalarOp::Sub, &[x, mean]).unwrap();
    let frame = tessera_planner::window::Frame { before: 2, after: 2 };
    let w = b.window(d, 1, frame, ReduceKind::Mean, 1).unwrap();
    let t = b.transpose(w, &[1, 0]).unwrap();
    let product = b.contract(w, t).unwrap();
    let var = b.reduce_axes(product, ReduceKind::Var { ddof: 1 }, &[0, 1]).unwrap();
    let roots = vec![product, var];
    let rooted = Rooted { graph: b.graph, roots };
    Arc::new(compile(rooted, &config, &mut |_, _| {}).unwrap())
}

#[test]
fn a_real_plan_gives_the_same_bits_wherever_it_was_stopped() {
    let (tiling, io) = (plan(), io());
    let config = Config { threads: 2, quota_bytes_max: 64 << 20, ..Config::default() };
    let runtime = Runtime::new(config, io.handle().clone()).unwrap();
    let run = |durable: Option<&Arc<Durable>>, stop: bool| {
        let sink = Arc::new(Bits::default());
        let runner = Arc::new(PlanRunner::new(tiling.clone(), &Sources::default()).unwrap());
        let stored = durable.and_then(|d| io.block_on(d.plan(&tiling)));
        let token = CancelToken::new();
        let running = runtime
            .start_as(
                tiling.clone(),
                runner,
                sink.clone(),
                &token,
                How { stored, ..How::default() },
            )
            .unwrap();
        if let Some(durable) = durable {
            // Stops once a part of the chunks is stored.
            let goes_on = || running.progress().is_some() || durable.is_writing();
            while stop && durable.did().written < 60 && goes_on() {
                std::thread::sleep(Duration::from_micros(200));
            }
            if stop {
                running.cancel();
            }
        }
        let outcome = running.wait();
        if let Some(durable) = durable {
            io.block_on(durable.close());
        }
        (outcome, std::mem::take(&mut *sink.0.lock().unwrap()))
    };
    let (outcome, want) = run(None, false);
    outcome.result.unwrap();
    let operands: u64 = tiling.plan().stages.iter().map(|s| s.grid.count()).sum();
    assert!(operands > 200, "{operands}");
    let directory = tempfile::tempdir().unwrap();
    for folder in folders(directory.path()) {
        let store = DurableStore::new(folder, 1 << 30);
        let of = |ran_before| Durable::new(&store, "statement-1", Durability::All, ran_before);
        // Before `begin` nothing is written.
        let early = of(false);
        run(Some(&early), true);
        assert_eq!(early.did().written, 0);
        let first = of(false);
        first.begin();
        run(Some(&first), true);
        assert!(first.did().written >= 60, "{:?}", first.did());
        let second = of(true);
        let (outcome, got) = run(Some(&second), false);
        outcome.result.unwrap();
        assert_eq!(got, want);
        let did = second.did();
        assert!(did.reused > 0 && did.seconds_reused > 0.0 && did.corrupt == 0, "{did:?}");
        let ran: u64 = outcome.stats.stages.iter().map(|s| s.operands).sum();
        assert!(ran < operands, "{ran} of {operands}");
        io.block_on(store.remove("statement-1")).unwrap();
        assert_eq!(store.bytes(), 0);
    }
    for _ in 0..1000 {
        if runtime.quota().used() == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(runtime.quota().used(), 0);
}

#[test]
fn a_name_that_is_no_name_keeps_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let [folder, _] = folders(directory.path());
    let store = DurableStore::new(folder, 1 << 30);
    for name in ["", "..", "a/b", "a b"] {
        let durable = Durable::new(&store, name, Durability::All, true);
        assert!(io().block_on(durable.plan(&plan())).is_none(), "{name}");
    }
    let durable = Durable::new(&store, "a-1_B", Durability::All, true);
    assert!(io().block_on(durable.plan(&plan())).is_some());
}

#[test]
fn unused_chunks_are_removed_by_age_and_size_and_live_ones_stay() {
    let directory = tempfile::tempdir().unwrap();
    let io = io();
    for (place, folder) in folders(directory.path()).into_iter().enumerate() {
        // 100 bytes each, written one after another.
        let put = |id: &str| {
            let object = format!("{id}/chunks/key/1.chunk");
            io.block_on(folder.put_parts(&object, vec![vec![7u8; 100].into()])).unwrap();
        };
        let there = |id: &str| io.block_on(folder.usage_below(id)).unwrap().0 > 0;
        let store = DurableStore::new(folder.clone(), 1000);
        let collect = |live: &'static [&'static str], age: u64| {
            let is_live = move |id: &str| live.contains(&id);
            io.block_on(store.collect(&is_live, Duration::from_secs(age))).unwrap()
        };
        // Times of objects in a bucket have a resolution of a second.
        let pause =
            || std::thread::sleep(Duration::from_millis(if place == 0 { 20 } else { 1100 }));
        put("first");
        pause();
        put("second");
        pause();
        put("third");
        assert_eq!((collect(&["first"], 3600), store.bytes()), (0, 200));
        assert!(["first", "second", "third"].map(there).iter().all(|&t| t));
        // The reserved room exceeds the threshold: the oldest statement that is not live is removed, and no more than
        // necessary.
        assert!(!store.wants_room());
        assert!(store.take("fourth", 750) && !store.take("fourth", 100) && store.wants_room());
        assert_eq!((collect(&["first", "fourth"], 3600), store.bytes()), (1, 850));
        assert_eq!(["first", "second", "third"].map(there), [true, false, true]);
        assert!(store.take("fourth", 100) && !store.wants_room());
        // By age, regardless of room; never live statements.
        assert_eq!(collect(&["first", "fourth"], 0), 1);
        assert_eq!(["first", "second", "third"].map(there), [true, false, false]);
        assert_eq!((store.bytes(), store.did().removed), (850, 2));
        assert_eq!(collect(&[], 0), 1);
        assert!(!there("first"));
    }
}
