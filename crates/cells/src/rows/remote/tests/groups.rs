//! Groups on workers: few of them, and many.

use super::*;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

type Given = BoxStream<'static, std::result::Result<Bytes, HolderFault>>;

/// The messages, each of which takes room of a window that all share until it is read.
pub(super) fn narrow(mut messages: Given, window: &Arc<Semaphore>) -> Given {
    let (send, arrived) = mpsc::unbounded_channel();
    let (mut call, window) = (JoinSet::new(), window.clone());
    call.spawn(async move {
        while let Some(message) = messages.next().await {
            let Ok(room) = window.clone().acquire_owned().await else { return };
            if send.send((message, room)).is_err() {
                return;
            }
        }
    });
    stream::unfold((arrived, call), |(mut arrived, call)| async move {
        let (message, _room) = arrived.recv().await?;
        Some((message, (arrived, call)))
    })
    .boxed()
}

/// Workers compute the groups of each split, the groups of each part, or the rows of each split: this depends on the
/// first rows, and on the number of workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn few_groups_and_many_come_from_workers() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    // The numbers of stages with one worker, and those of them that are read.
    let statements: [(&str, usize, &[usize]); 6] = [
        ("SELECT g, sum(v) FROM t WHERE k > 5 GROUP BY g", 2, &[0]),
        ("SELECT k, sum(v), avg(id) FROM t WHERE g > 2 GROUP BY k", 2, &[1]),
        // The first rows, which the server reads, need the small side: a stage of its own.
        (
            "SELECT a.k, sum(a.v) FROM t a JOIN t b ON a.k = b.id WHERE b.g = 5 GROUP BY a.k",
            3,
            &[1, 2],
        ),
        // These cannot be merged.
        ("SELECT g, median(v), count(DISTINCT k) FROM t WHERE k > 5 GROUP BY g", 1, &[0]),
        // Only the groups of splits are fewer than the rows of the file. Several workers group its rows.
        ("SELECT k, sum(v) FROM t GROUP BY k", 1, &[]),
        // Bits of a sketch depend on the ends of batches.
        (
            "SELECT g, approx_percentile_cont(0.5) WITHIN GROUP (ORDER BY v) FROM t WHERE k > 5 GROUP BY g",
            0,
            &[],
        ),
    ];
    for (sql, stages, read) in statements {
        let alone = answer(&server, sql, &file, None).await.0.unwrap();
        let ways = [Way::Nothing, Way::Late, Way::Lost(0), Way::Lost(1)];
        for (way, workers) in ways.into_iter().flat_map(|way| [(way, 1), (way, 3)]) {
            let several: &[usize] = &[1];
            let (stages, read) = match stages == 1 && read.is_empty() && workers > 1 {
                true => (2, several),
                false => (stages, read),
            };
            let peers = Loopback::new(&world.workers(workers, 1 << 30), way);
            let started = peers.started.clone();
            let peers = Arc::new(peers);
            let spread = RowsSpread { peers, least_bytes: 1, build_bytes: 1 << 30, all: false };
            let (rows, found) = answer(&server, sql, &file, Some(spread)).await;
            assert!(rows.unwrap() == alone, "{sql}: {way:?} on {workers}");
            assert_eq!(found.stages.len(), stages, "{sql}: {found:?}");
            assert!(found.stay.is_empty(), "{sql}: {found:?}");
            let has_parts = found.stages.iter().any(|stage| stage.parts.is_some());
            assert_eq!(has_parts, stages > 0 && workers > 1, "{sql}: {found:?}");
            let tasks = read.iter().map(|&stage| found.stages[stage].tasks()).sum::<usize>();
            assert_eq!(started.load(SeqCst), tasks, "{sql}: {way:?} on {workers}");
        }
    }
}

/// Statements with many groups, or with aggregates that cannot be merged.
const PARTED: [&str; 3] = [
    "SELECT k, sum(v), max(s) FROM t GROUP BY k",
    "SELECT g, count(DISTINCT k), median(v) FROM t WHERE k > 5 GROUP BY g",
    "SELECT k, count(DISTINCT r), max(r) FROM (SELECT k, repeat(s, 40) AS r FROM t) q GROUP BY k",
];

/// The server groups the rows of parts that another worker stores but does not send.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_stored_on_other_workers_may_be_lost() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    for sql in PARTED {
        let alone = answer(&server, sql, &file, None).await.0.unwrap();
        for after in [0, 1, 2] {
            for way in [Way::Lost(after), Way::Cut(after)] {
                let workers = world.neighbours(3, 1 << 30, way);
                let peers = Loopback::new(&workers, Way::Nothing);
                let (rows, found) = answer(&server, sql, &file, all(peers)).await;
                assert!(rows.unwrap() == alone, "{sql}: {way:?}");
                let parts = found.stages.iter().find_map(|stage| stage.parts).unwrap();
                assert!(parts >= 16, "{sql}: {found:?}");
                assert!(found.to_string().contains(" parts of "), "{found}");
                let done: u64 = workers.iter().map(|worker| worker.load().done).sum();
                // Parts without rows of others may be whole.
                assert!(done < parts as u64, "{sql}: {way:?}: {done} of {parts}");
            }
        }
    }
}

/// A worker stores rows that do not fit into its memory in files.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_with_little_memory_store_rows_in_files() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    for sql in PARTED {
        let alone = answer(&server, sql, &file, None).await.0.unwrap();
        for workers in [1, 2] {
            let workers = world.workers(workers, 8 << 20);
            let peers = Loopback::new(&workers, Way::Nothing);
            let (rows, found) = answer(&server, sql, &file, all(peers)).await;
            assert!(rows.unwrap() == alone, "{sql} on {}", workers.len());
            let parts = found.stages.iter().find_map(|stage| stage.parts).unwrap();
            let done: u64 = workers.iter().map(|worker| worker.load().done).sum();
            assert_eq!(done, parts as u64, "{sql} on {}", workers.len());
        }
    }
}

/// Tasks that wait for their turn leave the connections to tasks that have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_do_not_wait_unread() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    for sql in PARTED {
        let alone = answer(&server, sql, &file, None).await.0.unwrap();
        // Each worker has one turn.
        let workers = world.neighbours(3, 8 << 20, Way::Narrow);
        let peers = Loopback::new(&workers, Way::Nothing);
        let rows = answer(&server, sql, &file, all(peers));
        let rows = tokio::time::timeout(Duration::from_secs(120), rows).await.unwrap().0;
        assert!(rows.unwrap() == alone, "{sql}");
    }
}
