//! Rows on the workers of a cluster: workers compute splits of tables, with the bits of one machine.

use crate::cluster::{Cluster, failing};
use crate::common::until;
use crate::s3::{KEY, S3, SECRET};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// Parquet files of one row group each. They have more rows than the sample that decides if groups are few.
const FILES: u64 = 12;
const ROWS: u64 = 7000;

/// Splits of a part of a file.
const SPLITS: &str = "SET tessera.chunk_bytes_target = '64KiB';";

/// More splits, at most 256: a worker that takes long for each batch takes some seconds for all of them.
const SMALL_SPLITS: &str = "SET tessera.chunk_bytes_target = '16KiB';";

/// Statements over a table `T`. The first three have nothing but tasks of rows to run.
const STATEMENTS: [&str; 13] = [
    "SELECT count(*) AS n, sum(v) AS s, avg(v * v) AS m FROM T WHERE k % 7 > 0",
    // Few groups.
    "SELECT g, count(*) AS n, sum(v) AS s, max(i) AS most FROM T GROUP BY g ORDER BY g",
    // The first rows of an order.
    "SELECT i, v FROM T WHERE v > 0.5 ORDER BY v DESC, i LIMIT 9",
    // Many groups: workers group the rows of each other.
    "SELECT k, sum(v) AS s FROM T GROUP BY k ORDER BY s DESC, k LIMIT 5",
    // Rows as they are, in the order of the files.
    "SELECT i, k, v FROM T WHERE v < -2.5",
    // The keys of a filtered side filter the other one.
    "SELECT count(*) AS n, sum(a.v * b.w) AS s FROM T AS a JOIN (SELECT k, v AS w FROM T WHERE v > 3) AS b ON a.k = b.k",
    "SELECT i, sum(v) OVER (PARTITION BY g ORDER BY i) AS s FROM T WHERE k < 9000 ORDER BY i LIMIT 11",
    // Few groups that cannot be merged.
    "SELECT g, count(DISTINCT k) AS n, median(v) AS m FROM T WHERE k > 5 GROUP BY g ORDER BY g",
    // Sorts: workers sort the rows of each other. Keys of the second one are few.
    "SELECT i, v FROM T WHERE k < 30000 ORDER BY v DESC, i",
    "SELECT g, i FROM T WHERE k < 20000 ORDER BY g DESC",
    // Windows: workers compute whole partitions of the rows of each other.
    "SELECT i, k, sum(v) OVER (PARTITION BY k) AS s, count(v) OVER (PARTITION BY k) AS n FROM T WHERE k < 30000",
    "SELECT i, row_number() OVER w AS n, lag(v) OVER w AS l, sum(v) OVER (PARTITION BY k % 101 ORDER BY i ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS s FROM T WHERE k < 30000 WINDOW w AS (PARTITION BY k % 101 ORDER BY i)",
    "SELECT i, sum(v * n) OVER (PARTITION BY g, k % 11 ORDER BY i) AS s FROM (SELECT g, i, k, v, rank() OVER (PARTITION BY g, k % 11 ORDER BY i) AS n FROM T WHERE k < 30000) AS q",
];

/// The statements of which workers compute the groups, the sorted rows and the windows of parts.
const GROUPED: [usize; 2] = [3, 7];
const SORTED: [usize; 2] = [8, 9];
const WINDOWED: [usize; 3] = [10, 11, 12];

/// Writes the files into a directory of the cluster, and returns the table over them.
pub(crate) fn files(cluster: &Cluster) -> String {
    let directory = cluster.path("rows");
    fs::create_dir_all(&directory).unwrap();
    let file = |n: u64| {
        let (first, to) = (n * ROWS, directory.join(format!("{n:02}.parquet")));
        format!(
            "CREATE OR REPLACE TEMP TENSOR t AS SELECT random_normal([{ROWS}], seed => {n}) AS v; \
             COPY (SELECT dim_0 + {first} AS i, dim_0 % 13 AS g, (dim_0 * 7919 + {n}) % 100003 AS k, v FROM t \
             WHERE dim_0 >= 0) TO '{}' STORED AS PARQUET",
            to.display()
        )
    };
    cluster.alone(&(0..FILES).map(file).collect::<Vec<_>>().join("; "));
    table(&directory.display().to_string())
}

fn table(directory: &str) -> String {
    format!("read_parquet('{directory}/')")
}

/// The statements over a table, in splits.
pub(crate) fn statements(table: &str) -> Vec<String> {
    STATEMENTS.iter().map(|sql| over(table, SPLITS, sql)).collect()
}

fn over(table: &str, splits: &str, sql: &str) -> String {
    let words = sql.split(' ').map(|word| if word == "T" { table } else { word });
    format!("{splits} {}", words.collect::<Vec<_>>().join(" "))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))
}

/// A counter of all workers, from their last heartbeats.
fn counted(cluster: &Cluster, name: &str) -> u64 {
    cluster.alive().iter().map(|w| number(w, name)).sum()
}

/// Begins a statement over the workers; returns a function that reads its status.
fn begun(cluster: &Cluster, sql: &str) -> impl Fn() -> Value {
    let body = json!({"sql": format!("SET tessera.spread = 'all'; {sql}"), "wait_ms": 0});
    let begun = cluster.ask("POST", "/v1/statements", &body.to_string()).unwrap().json();
    let path = format!("/v1/statements/{}", begun["id"].as_str().unwrap());
    move || cluster.ask("GET", &path, "").unwrap().json()
}

/// True if some of a statement's tasks have ended, and not all.
fn has_begun(status: &Value) -> bool {
    let operands = &status["progress"]["operands"];
    let (done, total) = (operands["done"].as_u64(), operands["total"].as_u64());
    done > Some(0) && done < total
}

/// The statement has the answer that it has without workers.
fn is_same(cluster: &Cluster, sql: &str) {
    let got = cluster.query(sql);
    assert_eq!((got.status, got.body), (200, cluster.alone(sql)), "{sql}");
}

/// The JSON document of EXPLAIN with these options.
fn explained(cluster: &Cluster, options: &str, spread: &str, sql: &str) -> Value {
    let (settings, query) = sql.split_once(';').unwrap();
    let sql = format!(
        "SET tessera.spread = '{spread}'; {settings}; EXPLAIN {options} (FORMAT json) {query}"
    );
    let reply = cluster.ask("POST", "/v1/query?format=json", &sql).unwrap();
    assert_eq!(reply.status, 200, "{sql}: {}", reply.body);
    // A line for each statement of the script.
    serde_json::from_str(reply.body.lines().last().unwrap()).unwrap()
}

/// The text of EXPLAIN.
fn text(cluster: &Cluster, sql: &str) -> String {
    let (settings, query) = sql.split_once(';').unwrap();
    let reply = cluster.query(&format!("{settings}; EXPLAIN {query}"));
    assert_eq!(reply.status, 200, "{sql}: {}", reply.body);
    reply.body
}

#[test]
fn rows_have_the_bits_of_one_machine_on_any_number_of_workers() {
    let mut cluster = Cluster::start(1);
    let all = statements(&files(&cluster));
    let want: Vec<String> = all.iter().map(|sql| cluster.alone(sql)).collect();
    for workers in 1..=3 {
        if workers > 1 {
            cluster.start_worker(&[]);
            cluster.wait_for(workers);
        }
        for (sql, want) in all.iter().zip(&want) {
            let got = cluster.query(sql);
            assert_eq!((got.status, &got.body), (200, want), "{sql} on {workers} workers");
        }
    }
    until("each worker has run tasks", PATIENCE, || {
        cluster.alive().iter().all(|w| number(w, "row_tasks_done") > 0)
    });
    cluster.is_quiet("rows that are over");
    // The counters of SHOW WORKERS are those of the workers.
    let shown = cluster.query("SHOW WORKERS").body;
    let mut lines = shown.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let at = |name: &str| head.iter().position(|column| *column == name).unwrap();
    for line in lines {
        assert_eq!(line[at("row_tasks")], "0", "{shown}");
        for column in ["row_tasks_done", "rows_sent"] {
            assert!(line[at(column)].parse::<u64>().unwrap() > 0, "{column}: {shown}");
        }
    }
    assert!(counted(&cluster, "row_bytes") > 0, "{shown}");
}

#[test]
fn explain_shows_the_tasks_of_workers_and_their_work() {
    let cluster = Cluster::start(2);
    let table = files(&cluster);
    let all = statements(&table);
    for sql in &all {
        let shown = text(&cluster, sql);
        assert!(shown.contains("rows on workers: "), "{sql}: {shown}");
    }
    for sql in &all[..3] {
        let told = explained(&cluster, "ANALYZE", "all", sql);
        let stage = &told["rows_on_workers"]["stages"][0];
        assert!(number(stage, "splits") > FILES && number(stage, "bytes") > 0, "{told}");
        assert!(stage["text"].as_str().unwrap().contains("DataSourceExec"), "{told}");
        let ran = &told["measured"]["rows_on_workers"];
        assert_eq!(number(ran, "tasks"), number(stage, "splits"), "{told}");
        assert_eq!(number(ran, "done"), number(ran, "tasks"), "{told}");
        assert_eq!((number(ran, "here"), number(ran, "lost")), (0, 0), "{told}");
        let each = ran["each"].as_array().unwrap();
        let sum = |name: &str| each.iter().map(|w| number(w, name)).sum::<u64>();
        assert_eq!((each.len(), sum("tasks")), (2, number(ran, "done")), "{told}");
        assert!(sum("rows") > 0 && sum("bytes") > 0 && sum("retries") == 0, "{told}");
    }
    // By cost these files stay on the server, and without workers nothing is said of them.
    for spread in ["auto", "none"] {
        let told = explained(&cluster, "", spread, &all[0]);
        let nothing = json!({"stages": [], "stay": []});
        assert_eq!(told["rows_on_workers"], nothing, "{told}");
    }
    let analyzed = cluster.query(&all[0].replace("; SELECT", "; EXPLAIN ANALYZE SELECT")).body;
    for line in ["tasks of rows ran on workers, 0 on the server", "worker 1: ", "worker 2: "] {
        assert!(analyzed.contains(line), "{line}: {analyzed}");
    }
    // The reason why a part stays.
    let sql = over(&table, "SET tessera.chunk_bytes_target = '1KiB';", STATEMENTS[0]);
    let shown = text(&cluster, &sql);
    assert!(shown.contains("rows on the server: "), "{shown}");
    assert!(shown.contains("because it has more than 256 splits"), "{shown}");
    is_same(&cluster, &sql);
    cluster.is_quiet("rows that are over");
}

/// The statement has the answer that it has without workers, which compute its parts; the texts describe these.
fn has_parts(cluster: &Cluster, sql: &str, texts: &[&str]) {
    is_same(cluster, sql);
    let told = explained(cluster, "ANALYZE", "all", sql);
    let stages = told["rows_on_workers"]["stages"].as_array().unwrap();
    let stage = stages.iter().find(|stage| stage["parts"].is_u64());
    let stage = stage.unwrap_or_else(|| panic!("{sql}: {told}"));
    assert!(number(stage, "parts") >= 16 && number(stage, "splits") > FILES, "{told}");
    for text in texts {
        assert!(stage["text"].as_str().unwrap().contains(text), "{text}: {told}");
    }
    let ran = &told["measured"]["rows_on_workers"];
    assert_eq!(number(ran, "tasks"), number(stage, "parts"), "{told}");
    assert_eq!(number(ran, "done"), number(ran, "tasks"), "{told}");
    assert_eq!((number(ran, "here"), number(ran, "lost")), (0, 0), "{told}");
    let shown = text(cluster, sql);
    assert!(shown.contains(" parts of "), "{sql}: {shown}");
}

#[test]
fn workers_group_the_rows_of_each_other() {
    let cluster = Cluster::start(3);
    let all = statements(&files(&cluster));
    for sql in GROUPED {
        has_parts(&cluster, &all[sql], &["PartsExec"]);
    }
    cluster.is_quiet("rows that are over");
}

#[test]
fn workers_sort_the_rows_of_each_other() {
    let cluster = Cluster::start(3);
    let all = statements(&files(&cluster));
    for sql in SORTED {
        has_parts(&cluster, &all[sql], &["sorted by"]);
    }
    // An Arrow file has the batches of the sort, wherever it ran.
    let file = |name: &str| cluster.path(name);
    let copy = |name: &str| {
        let (settings, query) = all[SORTED[0]].split_once(';').unwrap();
        format!("{settings}; COPY ({}) TO '{}'", query.trim(), file(name).display())
    };
    assert_eq!(cluster.query(&copy("there.arrow")).status, 200);
    cluster.alone(&copy("here.arrow"));
    assert!(fs::read(file("there.arrow")).unwrap() == fs::read(file("here.arrow")).unwrap());
    cluster.is_quiet("rows that are over");
}

#[test]
fn workers_compute_windows_of_the_rows_of_each_other() {
    let cluster = Cluster::start(3);
    let all = statements(&files(&cluster));
    for sql in WINDOWED {
        has_parts(&cluster, &all[sql], &["cut by the first", "WindowsExec"]);
    }
    cluster.is_quiet("rows that are over");
}

/// The statements have their answers while one of three workers dies: with its samples (the first answer of `rows.part`),
/// with rows that it retains, or with those of a task (`rows.batch`).
fn outlives(point: &str, of: &[usize]) {
    let Some(cluster) = failing(2, 1, point) else { return };
    let all = statements(&files(&cluster));
    for &sql in of {
        is_same(&cluster, &all[sql]);
    }
    assert!(cluster.events().contains(&"lost".to_owned()), "{:?}", cluster.events());
    assert_eq!(cluster.alive().len(), 2, "{point}");
    cluster.is_quiet("rows that are over");
}

#[test]
fn a_worker_that_dies_while_rows_are_sorted_costs_time_only() {
    for point in ["rows.part=abort@1", "rows.part=abort@9", "rows.batch=abort@3"] {
        outlives(point, &SORTED);
    }
}

#[test]
fn a_worker_that_dies_while_windows_are_computed_costs_time_only() {
    for point in ["rows.part=abort@1", "rows.part=abort@9", "rows.batch=abort@3"] {
        outlives(point, &WINDOWED);
    }
}

#[test]
fn a_worker_that_dies_with_the_rows_that_it_keeps_costs_time_only() {
    for point in ["rows.part=abort@1", "rows.part=abort@9"] {
        outlives(point, &GROUPED);
    }
}

#[test]
fn files_of_other_formats_have_the_bits_of_one_machine() {
    let cluster = Cluster::start(2);
    let table = files(&cluster);
    for format in ["arrow", "csv"] {
        let directory = cluster.path(format);
        fs::create_dir(&directory).unwrap();
        let parts = (0..4).map(|part| {
            let to = directory.join(format!("{part}.{format}"));
            format!("COPY (SELECT * FROM {table} WHERE i % 4 = {part}) TO '{}'", to.display())
        });
        cluster.alone(&parts.collect::<Vec<_>>().join("; "));
        for sql in &statements(&format!("read_{format}('{}/')", directory.display())) {
            let shown = text(&cluster, sql);
            assert!(shown.contains("rows on workers: "), "{sql}: {shown}");
            is_same(&cluster, sql);
        }
    }
    cluster.is_quiet("rows that are over");
}

#[test]
fn a_worker_that_dies_costs_time_only() {
    let Some(cluster) = failing(2, 1, "rows.batch=abort@3") else { return };
    let all = statements(&files(&cluster));
    for sql in &all[..3] {
        is_same(&cluster, sql);
    }
    assert!(cluster.events().contains(&"lost".to_owned()), "{:?}", cluster.events());
    assert_eq!(cluster.alive().len(), 2);
    cluster.is_quiet("rows that are over");
}

#[test]
fn rows_that_every_worker_dies_of_are_poison() {
    let Some(mut cluster) = failing(0, 0, "") else { return };
    (0..3).for_each(|_| cluster.start_supervised("rows.batch=abort"));
    cluster.wait_for(3);
    let all = statements(&files(&cluster));
    let got = cluster.query(&all[0]);
    assert_eq!(got.code(), "poison", "{}", got.body);
    assert!(got.body.contains(" workers died"), "{}", got.body);
    assert!(cluster.events().contains(&"poison".to_owned()), "{:?}", cluster.events());
    // The server runs the tasks that workers cannot.
    cluster.alone(&all[0]);
    cluster.wait_for(3);
    cluster.is_quiet("a poisonous statement");
}

#[test]
fn a_file_that_changes_during_the_statement_ends_it() {
    let Some(cluster) = failing(0, 1, "rows.batch=sleep") else { return };
    let sql = over(&files(&cluster), SMALL_SPLITS, STATEMENTS[0]);
    let file = |n: u64| cluster.path("rows").join(format!("{n:02}.parquet"));
    let status = begun(&cluster, &sql);
    until("a task has ended", PATIENCE, || has_begun(&status()));
    // The splits of the last file are the last ones.
    fs::copy(file(0), file(FILES - 1)).unwrap();
    until("it ends", PATIENCE, || status()["state"] != "RUNNING");
    assert_eq!(status()["error"]["code"], "source_changed", "{}", status());
    cluster.is_quiet("a statement that failed");
    is_same(&cluster, &sql);
}

/// Copies the files of a directory.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn the_server_runs_tasks_whose_files_a_worker_cannot_read() {
    // Workers that see the files, and one that does not.
    for able in [1, 0] {
        let (s3, other) = (S3::start(), S3::start());
        let mut cluster = Cluster::start_over(None, s3.environment(Some((KEY, SECRET))), able);
        cluster.start_worker_in(&other.environment(Some((KEY, SECRET))));
        cluster.wait_for(able + 1);
        files(&cluster);
        copy(&cluster.path("rows"), &s3.path("rows"));
        // The store of the tests has no answer for the name of a directory.
        let all = statements("read_parquet('s3://bkt/rows/00.parquet')");
        for sql in &all[..3] {
            is_same(&cluster, sql);
        }
        let ran = &explained(&cluster, "ANALYZE", "all", &all[0])["measured"]["rows_on_workers"];
        assert!(number(ran, "here") > 0, "{able} workers: {ran}");
        assert_eq!(number(ran, "done") > 0, able > 0, "{able} workers: {ran}");
        assert_eq!(number(ran, "done") + number(ran, "here"), number(ran, "tasks"), "{ran}");
        assert!(cluster.events().contains(&"no_rows".to_owned()), "{:?}", cluster.events());
        cluster.is_quiet("rows that are over");
    }
}

#[test]
fn cancelled_rows_leave_nothing_on_workers() {
    let Some(cluster) = failing(0, 2, "rows.batch=sleep") else { return };
    let sql = over(&files(&cluster), SMALL_SPLITS, STATEMENTS[0]);
    let status = begun(&cluster, &sql);
    // The progress counts tasks, and so does SHOW QUERIES.
    until("a task has ended", PATIENCE, || has_begun(&status()));
    let total = number(&status()["progress"]["operands"], "total");
    assert!(total > FILES, "{}", status());
    let shown = cluster.ask("POST", "/v1/query?format=csv", "SHOW QUERIES").unwrap().body;
    assert!(shown.contains(&format!(" of {total}")), "{total}: {shown}");
    until("workers tell of tasks", PATIENCE, || {
        counted(&cluster, "row_tasks") + counted(&cluster, "row_tasks_done") > 0
    });
    let path = format!("/v1/statements/{}", status()["id"].as_str().unwrap());
    assert_eq!(cluster.ask("DELETE", &path, "").unwrap().status, 200);
    until("it is cancelled", PATIENCE, || status()["state"] == "CANCELLED");
    cluster.is_quiet("a cancelled statement");
    is_same(&cluster, &sql);
}
