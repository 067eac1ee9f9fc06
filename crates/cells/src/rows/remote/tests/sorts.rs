//! Sorts and windows on workers.

use super::*;
use crate::rows::splits::tests::{SORTED, are_even};

async fn batches(
    server: &Arc<RowsRuntime>,
    sql: &str,
    file: &Path,
    spread: Option<RowsSpread>,
) -> (Vec<RecordBatch>, RowsOnWorkers) {
    let (planned, _store) = planned(&server.state(), sql, file, spread).await;
    let found = planned.on_workers();
    let rows = planned.stream(None, never()).await.unwrap().rows;
    let batches: Vec<RecordBatch> =
        rows.try_collect().await.unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    (batches, found)
}

fn parts(found: &RowsOnWorkers) -> usize {
    let [stage] = found.stages.as_slice() else { panic!("{found:?}") };
    let parts = stage.parts.unwrap_or_else(|| panic!("{stage:?}"));
    assert!(parts >= 16 && stage.text.contains("sorted by"), "{stage:?}");
    assert!(found.to_string().contains(" parts of "), "{found}");
    parts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_of_sorts_come_from_workers_in_the_batches_of_the_server() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let mut uneven = 0;
    for sql in SORTED {
        let alone = batches(&server, sql, &file, None).await.0;
        uneven += usize::from(!are_even(&alone, alone[0].num_rows()));
        for (way, workers) in
            [(Way::Nothing, 2), (Way::Late, 3), (Way::Lost(0), 3), (Way::Lost(1), 2)]
        {
            let peers = Loopback::new(&world.workers(workers, 1 << 30), way);
            let started = peers.started.clone();
            let peers = Arc::new(peers);
            let spread = RowsSpread { peers, least_bytes: 1, build_bytes: 1 << 30, all: false };
            let (spread, found) = batches(&server, sql, &file, Some(spread)).await;
            assert!(spread == alone, "{sql}: {way:?} on {workers}");
            // Behind a limit, parts are not read.
            let (parts, started) = (parts(&found), started.load(SeqCst));
            let is_limited = sql.contains("LIMIT");
            assert!(started == parts || (is_limited && started < parts), "{sql}: {started}");
        }
        // With one worker, the worker sends the rows that remain, and the server sorts.
        let peers = Arc::new(Loopback::new(&world.workers(1, 1 << 30), Way::Nothing));
        let spread = RowsSpread { peers, least_bytes: 1, build_bytes: 1 << 30, all: false };
        let (spread, found) = batches(&server, sql, &file, Some(spread)).await;
        assert!(spread == alone, "{sql} on one worker");
        assert_eq!(found.stages.len(), usize::from(sql.contains("WHERE")), "{sql}: {found:?}");
        assert!(found.stages.iter().all(|stage| stage.parts.is_none()), "{sql}: {found:?}");
    }
    assert!(uneven <= 1, "{uneven} statements");
}

/// Windows are computed for whole partitions, so their parts end where these do. Others are computed on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parts_of_windows_end_with_partitions() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let workers = world.workers(2, 1 << 30);
    for (sql, is_cut) in
        [(SORTED[5], true), (SORTED[8], true), (SORTED[1], false), (SORTED[7], false)]
    {
        let peers = Loopback::new(&workers, Way::Nothing);
        let (planned, _store) = planned(&server.state(), sql, &file, all(peers)).await;
        let found = planned.on_workers();
        assert!(parts(&found) >= 16);
        let text = &found.stages[0].text;
        assert_eq!(text.contains("cut by the first 1"), is_cut, "{sql}: {text}");
        assert_eq!(text.contains("WindowsExec"), is_cut, "{sql}: {text}");
    }
}

/// Numbers and ranks of rows, earlier rows, frames, several orders of one partition, and windows of the results of others.
/// The columns of the second one are renamed, and those of the last one are computed in between.
const WINDOWS: [&str; 4] = [
    "SELECT id, row_number() OVER w, rank() OVER w, lag(v, 2) OVER w, sum(v) OVER w, max(s) OVER (PARTITION BY k ORDER BY v, id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) FROM t WINDOW w AS (PARTITION BY k ORDER BY v, id)",
    "SELECT j, avg(w) OVER (PARTITION BY h ORDER BY j RANGE BETWEEN 900 PRECEDING AND CURRENT ROW), stddev(w) OVER (PARTITION BY h) FROM (SELECT s AS h, id AS j, v AS w FROM t WHERE g > 2) q",
    "SELECT id, sum(v) OVER (PARTITION BY g ORDER BY id DESC), count(*) OVER (PARTITION BY g, s) FROM t",
    "SELECT id, sum(v / r) OVER (PARTITION BY s ORDER BY v, id ROWS 5 PRECEDING) FROM (SELECT s, id, v, rank() OVER (PARTITION BY s ORDER BY v, id) AS r FROM t) q",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_compute_the_windows_of_parts() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    for sql in WINDOWS {
        let alone = batches(&server, sql, &file, None).await.0;
        for (way, workers) in
            [(Way::Nothing, 2), (Way::Late, 3), (Way::Lost(0), 3), (Way::Lost(1), 2)]
        {
            let peers = Loopback::new(&world.workers(workers, 1 << 30), way);
            let (spread, found) = batches(&server, sql, &file, all(peers)).await;
            assert!(spread == alone, "{sql}: {way:?} on {workers}");
            assert!(found.to_string().contains("WindowsExec"), "{sql}: {found}");
            assert!(found.stay.is_empty(), "{sql}: {found}");
        }
        for after in [0, 1, 3] {
            let workers = world.neighbours(3, 1 << 30, Way::Cut(after));
            let peers = Loopback::new(&workers, Way::Nothing);
            let (spread, _) = batches(&server, sql, &file, all(peers)).await;
            assert!(spread == alone, "{sql}: rows are lost after {after} messages");
        }
    }
}

/// Workers sort what they cannot compute windows of, and the reason is that of the windows.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn windows_that_stay_are_computed_over_sorted_parts() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let workers = world.workers(2, 1 << 30);
    let sql = "SELECT id, sum(v) FILTER (WHERE g > 3) OVER (PARTITION BY k ORDER BY id) FROM t";
    let alone = batches(&server, sql, &file, None).await.0;
    let peers = Loopback::new(&workers, Way::Nothing);
    let (spread, found) = batches(&server, sql, &file, all(peers)).await;
    assert!(spread == alone);
    assert!(parts(&found) >= 16 && !found.stages[0].text.contains("WindowsExec"), "{found}");
    let [stay] = found.stay.as_slice() else { panic!("{found:?}") };
    assert!(stay.reason.starts_with("the FILTER of the window function"), "{stay:?}");
}

/// The server sorts parts of which another worker stores rows or samples but does not send them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_of_sorts_stored_on_other_workers_may_be_lost() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    for sql in [SORTED[1], SORTED[2], SORTED[5]] {
        let alone = batches(&server, sql, &file, None).await.0;
        // Samples have three messages.
        for after in [0, 1, 2, 3] {
            for way in [Way::Lost(after), Way::Cut(after)] {
                let workers = world.neighbours(3, 1 << 30, way);
                let peers = Loopback::new(&workers, Way::Nothing);
                let (spread, found) = batches(&server, sql, &file, all(peers)).await;
                assert!(spread == alone, "{sql}: {way:?}");
                let done: u64 = workers.iter().map(|worker| worker.load().done).sum();
                let parts = parts(&found) as u64;
                assert!(done <= parts && (done == 0 || after == 3), "{sql}: {way:?}: {done}");
            }
        }
    }
}

/// A worker stores rows that do not fit into its memory in files, before and after they are distributed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_with_little_memory_store_rows_of_sorts_in_files() {
    let (_directory, file) = file();
    let world = World::new();
    let server = world.runtime(1 << 30);
    let wide = "SELECT id, r FROM (SELECT id, v, repeat(s, 40) AS r FROM t) q ORDER BY v, id";
    for sql in [SORTED[1], SORTED[3], SORTED[5], wide] {
        let alone = batches(&server, sql, &file, None).await.0;
        for workers in [1, 2] {
            let workers = world.workers(workers, 8 << 20);
            let peers = Loopback::new(&workers, Way::Nothing);
            let (spread, found) = batches(&server, sql, &file, all(peers)).await;
            assert!(spread == alone, "{sql} on {}", workers.len());
            let done: u64 = workers.iter().map(|worker| worker.load().done).sum();
            assert_eq!(done, parts(&found) as u64, "{sql} on {}", workers.len());
        }
        // Each worker has one turn, and there is room for few messages between them.
        let workers = world.neighbours(3, 8 << 20, Way::Narrow);
        let peers = Loopback::new(&workers, Way::Nothing);
        let rows = batches(&server, sql, &file, all(peers));
        let rows = tokio::time::timeout(Duration::from_secs(120), rows).await.unwrap().0;
        assert!(rows == alone, "{sql}");
    }
}
