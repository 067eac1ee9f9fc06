//! One budget of memory for all: results of islands, answers that wait, rows in DataFusion's hands.

use crate::common::{Place, until};
use crate::http::Server;
use serde_json::json;
use std::time::Duration;
use tessera_engine::answer::{Answer, Cell};

/// A tensor of 24 MB under a limit of 16 MiB.
fn place() -> Place {
    let p = Place::open(&[("memory-limit", "16MiB"), ("spill-limit", "1GiB")]);
    p.run("SET tessera.chunk_bytes_target = '256KiB'; CREATE TENSOR wide AS SELECT random_normal([60, 250, 200], seed => 1, dims => ['t', 'y', 'x'], chunks => [10, 50, 100]) AS v");
    p
}

fn cells(p: &Place, sql: &str) -> Vec<Cell<'static>> {
    match p.run(sql).pop().unwrap().whole().unwrap().answer {
        Answer::Tensors(t) => t.iter().map(|t| t.cell(0)).collect(),
        other => panic!("{sql}: {other:?}"),
    }
}

#[test]
fn results_of_islands_may_be_larger_than_memory() {
    let p = place();
    let wanted =
        cells(&p, "SELECT min(v) AS a, max(v) AS b, max(argmax(v, axis => 't')) AS c FROM wide");
    let spilled = || p.host.runtime().store().figures().spilled_bytes;
    // Rows put together to a tensor; all the cells that a condition keeps.
    let before = spilled();
    let rows = cells(
        &p,
        "SET tessera.lift = 'off'; WITH w AS (SELECT tensor(SELECT [t], [y], [x], v FROM wide) AS v) \
         SELECT min(v) AS a, max(v) AS b, max(argmax(v, axis => 't')) AS c FROM w",
    );
    assert_eq!(rows, wanted);
    assert!(spilled() > before + (24 << 20), "{} bytes", spilled() - before);
    let before = spilled();
    let kept = cells(
        &p,
        "SET tessera.lift = 'auto'; SELECT min(p) AS a, max(p) AS b FROM (SELECT v[v > -100] AS p FROM wide)",
    );
    assert_eq!(kept, wanted[..2]);
    assert!(spilled() > before + (8 << 20), "{} bytes", spilled() - before);
    assert_eq!(p.host.runtime().quota().overrun(), 0);
    p.is_quiet("islands of more than memory");
}

#[test]
fn waiting_answers_release_memory_that_others_need() {
    let p = Place::open(&[("memory-limit", "16MiB"), ("spill-limit", "1GiB")]);
    p.run("SET tessera.chunk_bytes_target = 800000");
    p.run("CREATE TENSOR x AS SELECT random_normal([1000, 2000], seed => 2, chunks => [50, 2000], dims => ['r', 'c']) AS x");
    // Half of the memory, held by an answer that has not been read.
    let answer = p.run("SELECT arange(1000000) AS x").pop().unwrap();
    assert_eq!(answer.answer.bytes(), (8_000_000, 0));
    let rechunk = "CREATE TENSOR y AS SELECT rechunk(x + 1, r => 1000, c => 50) AS y FROM x";
    drop(p.run(rechunk));
    let (memory, files) = answer.answer.bytes();
    assert_eq!(memory + files, 8_000_000);
    assert!(files > 0, "nothing of it was put aside");
    match answer.whole().unwrap().answer {
        Answer::Tensors(t) => {
            assert!((0..t[0].len()).step_by(977).all(|i| t[0].cell(i) == Cell::Int(i as i64)));
        }
        other => panic!("{other:?}"),
    }
    p.is_quiet("an answer that waited");
}

#[test]
fn unreferenced_parts_do_not_run() {
    let p = Place::open(&[]);
    p.run("CREATE TENSOR cube AS SELECT random_normal([8, 6, 5], seed => 1, dims => ['t', 'y', 'x']) AS v");
    let plan = |sql: &str| match p.run(&format!("EXPLAIN ANALYZE {sql}")).pop().unwrap().answer {
        Answer::Text(text) => text,
        other => panic!("{other:?}"),
    };
    let unused =
        "WITH unused AS (SELECT v[v > 0] AS p FROM cube), used AS (SELECT v[v > 1] AS q FROM cube)";
    for rest in [
        "SELECT sum(v) AS s FROM cube",
        "SELECT y, avg(v) AS m FROM cube GROUP BY y",
        "SELECT tensor(SELECT [y], avg(v) AS m FROM cube GROUP BY y) AS m",
    ] {
        let plan = plan(&format!("{unused} {rest}"));
        assert!(!plan.contains("unused") && !plan.contains("v[v >"), "{plan}");
        assert!(!plan.contains("island 1 (tensor)"), "{plan}");
    }
    for (rest, islands) in [
        ("SELECT sum(q) AS s FROM used", 1),
        ("SELECT count(*) AS n FROM used", 1),
        ("SELECT sum(q) AS s, sum(p) AS r FROM used, unused", 2),
    ] {
        let plan = plan(&format!("{unused} {rest}"));
        assert!(plan.contains(&format!("island {islands} (tensor)")), "{plan}");
        assert!(!plan.contains(&format!("island {} (tensor)", islands + 1)), "{plan}");
    }
    // Errors in a part are reported, named or not.
    let wrong = p.try_run(
        "WITH unused AS (SELECT nothing[nothing > 0] AS p FROM cube) SELECT sum(v) AS s FROM cube",
    );
    assert_eq!(wrong.unwrap_err().code(), "unknown_name");
    let answer = p.run(&format!("{unused} SELECT sum(q) > sum(v) AS more FROM used, cube"));
    assert_eq!(answer.len(), 1);
}

#[test]
fn groups_of_rows_and_spilled_chunks_stay_within_the_limit_together() {
    let s = Server::start(&["--memory-limit", "96MiB", "--threads", "2"], &[]);
    let start = |sql: &str| {
        let reply = s.ask(
            "POST",
            "/v1/statements",
            "",
            json!({"sql": sql, "wait_ms": 0}).to_string().as_bytes(),
        );
        reply.json()["id"].as_str().unwrap().to_string()
    };
    // Three million groups, and 96 MB in chunks that all have to be there at once.
    let groups = start(
        "SET tessera.lift = 'off'; SELECT count(*) AS n, max(m) AS top FROM (SELECT round(v * 1e9) AS k, max(v) AS m FROM \
         (SELECT random_normal([3000000], seed => 1, dims => ['i']) AS v) GROUP BY round(v * 1e9))",
    );
    let rechunk = start(
        "SELECT rechunk(random_normal([4000, 3000], seed => 2, chunks => [100, 3000], dims => ['r', 'c']), r => 4000, c => 50) AS m",
    );
    let limit = 96u64 << 20;
    let bound = limit + limit / 4 + (200 << 20);
    let mut most = 0;
    let over = |id: &str| {
        let status = s.ask("GET", &format!("/v1/statements/{id}?wait_ms=20"), "", b"").json();
        match status["state"].as_str().unwrap() {
            "FINISHED" => true,
            "QUEUED" | "PLANNING" | "RUNNING" => false,
            _ => panic!("{status}"),
        }
    };
    let (mut first, mut second) = (false, false);
    while !(first && second) {
        first = first || over(&groups);
        second = second || over(&rechunk);
        most = most.max(s.resident());
        assert!(most <= bound, "{most} bytes are resident, {bound} may be");
    }
    assert!(s.metric("tessera_spilled_bytes_total") > 0.0);
    let peak = s.metric("tessera_quota_peak_bytes");
    assert!(peak <= (limit + limit / 4) as f64, "{peak} bytes were in use");
    let result =
        s.ask("GET", &format!("/v1/statements/{groups}/result?format=json"), "", b"").text();
    assert!(result.contains("2998"), "{result}");
    for id in [groups, rechunk] {
        s.ask("DELETE", &format!("/v1/statements/{id}"), "", b"");
    }
    until("all is free", Duration::from_secs(60), || {
        s.metric("tessera_quota_used_bytes") == 0.0 && s.metric("tessera_spill_used_bytes") == 0.0
    });
}

/// Of narrow rows the keys and numbers of a sort take more memory than the values.
#[test]
fn sorts_of_narrow_rows_and_windows_above_them_use_files() {
    let p = Place::open(&[("memory-limit", "32MiB"), ("spill-limit", "1GiB")]);
    let file = p.shown("narrow.parquet");
    p.run(&format!(
        "CREATE TEMP TENSOR t AS SELECT random_normal([1000000], seed => 3) AS v; \
         COPY (SELECT v FROM t WHERE dim_0 >= 0) TO '{file}'; DROP TENSOR t"
    ));
    let is = |sql: &str, want: &str| {
        let sql = sql.replace('?', &format!("'{file}'"));
        let got = p.lines(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(got, [want], "{sql}");
    };
    is(
        "SELECT max(r) AS m, sum(r) AS s FROM (SELECT row_number() OVER (ORDER BY v) AS r FROM ?) AS q",
        "1000000 500000500000",
    );
    is(
        "SELECT count(*) AS n FROM (SELECT v, lag(v) OVER (ORDER BY v DESC) AS w FROM ?) AS q WHERE v > w",
        "0",
    );
    is(
        "SELECT count(*) AS n, count(DISTINCT s) AS m FROM (SELECT v * 0 AS s FROM ? ORDER BY v LIMIT 500000) AS q",
        "500000 1",
    );
}

/// This number of different values: 16 bytes each while they are found, and the same again at the end. A statement may
/// have less memory than the process: it spills chunks and rows as if its budget were all memory.
#[test]
fn a_statement_stays_within_the_memory_of_its_session() {
    let p = Place::open(&[("memory-limit", "1GiB"), ("spill-limit", "1GiB")]);
    p.run("SET tessera.chunk_bytes_target = '256KiB'; CREATE TENSOR wide AS SELECT random_normal([60, 250, 200], seed => 1, dims => ['t', 'y', 'x'], chunks => [10, 50, 100]) AS v");
    let spilled = || p.host.runtime().store().figures().spilled_bytes;
    let fold = "SELECT sum(s * arange(3000000)) AS a, min(s) AS b FROM (SELECT sort(reshape(v, [3000000])) AS s FROM wide)";
    let rows = "SET tessera.lift = 'off'; WITH w AS (SELECT tensor(SELECT [t], [y], [x], v FROM wide) AS v) SELECT min(v) AS a, max(v) AS b FROM w";
    let groups = "SELECT count(*) AS n, sum(c) AS s FROM (SELECT CAST(v * 100000 AS BIGINT) AS k, count(*) AS c FROM wide GROUP BY k)";
    let table = |sql: &str| match p.run(sql).pop().unwrap().whole().unwrap().answer {
        Answer::Rows { batches, .. } => batches,
        other => panic!("{sql}: {other:?}"),
    };
    // The table of the smaller side has 300,000 rows.
    let join = "SELECT count(*) AS n, count(b.k) AS m, sum(a.y * b.x) AS s, sum(a.k + b.k) AS k FROM (SELECT CAST(v * 100000 AS BIGINT) AS k, v, y FROM wide WHERE t < 6) a LEFT JOIN (SELECT CAST(v * 100000 AS BIGINT) AS k, v, x FROM wide WHERE t >= 54) b ON a.k = b.k";
    let all = [cells(&p, fold), cells(&p, rows)];
    let (grouped, joined) = (table(groups), table(join));
    assert_eq!(spilled(), 0, "there is room for all of it");
    p.run("SET tessera.query_memory_limit = '16MiB'; SET tessera.lift = 'auto'");
    assert_eq!(cells(&p, fold), all[0]);
    let first = spilled();
    assert!(first > 4 << 20, "{first} bytes were put aside");
    assert_eq!(cells(&p, rows), all[1]);
    assert!(spilled() > first + (8 << 20), "{} bytes were put aside", spilled() - first);
    assert_eq!(table(groups), grouped);
    let before = spilled();
    assert_eq!(table(join), joined);
    assert!(spilled() > before + (8 << 20), "{} bytes were put aside", spilled() - before);
    match p.run(&format!("EXPLAIN ANALYZE {fold}")).pop().unwrap().answer {
        Answer::Text(text) => {
            let peak = text.split("measured: peak ").nth(1).unwrap().split(' ').next().unwrap();
            assert!(peak.parse::<f64>().unwrap() <= 16.0, "{text}");
        }
        other => panic!("{other:?}"),
    }
    // A statement that can never fit is refused by its own limit.
    let e = p.try_run("SET tessera.chunk_bytes_target = '64MiB'; SELECT sort(random_normal([4000000], seed => 1))");
    let e = e.unwrap_err();
    assert_eq!(e.code(), "memory_exceeded", "{e}");
    assert!(e.to_string().contains("16777216") || e.to_string().contains("16.0 MiB"), "{e}");
    assert!(e.hint().unwrap().contains("query_memory_limit"), "{:?}", e.hint());
    for (value, says) in [("1MiB", "minimum is 16MiB"), ("much", "much")] {
        let e = p.try_run(&format!("SET tessera.query_memory_limit = '{value}'")).unwrap_err();
        assert!(e.to_string().contains(says), "{e}");
    }
    p.is_quiet("statements with a limit of their own");
}

fn different(cells: u64) -> String {
    format!("SELECT sum(unique((arange({cells}) * 7) % {cells})) AS s")
}

#[test]
fn two_large_statements_both_finish_and_an_impossible_one_is_refused() {
    // Without files nothing can give way: each has 48 MB at its end, of 64 MiB.
    let p = Place::open(&[("memory-limit", "64MiB"), ("spill-limit", "0")]);
    p.run("SET tessera.chunk_bytes_target = '1MiB'");
    const CELLS: u64 = 1_500_000;
    let want = Cell::Int((CELLS * (CELLS - 1) / 2) as i64);
    assert_eq!(cells(&p, &different(CELLS)), std::slice::from_ref(&want));
    assert_eq!(p.host.ran_alone(), 0);
    let mut rounds = 0;
    while p.host.ran_alone() == 0 {
        rounds += 1;
        assert!(rounds <= 20, "in {rounds} rounds none was refused memory");
        std::thread::scope(|s| {
            let run = || {
                let sql = different(CELLS);
                s.spawn(|| cells(&p, &{ sql }))
            };
            for answer in [run(), run(), run()] {
                assert_eq!(answer.join().unwrap(), std::slice::from_ref(&want));
            }
        });
    }
    p.is_quiet("statements that did not fit together");

    // A statement that is larger than all memory is refused at once, with the numbers, even if others run.
    let before = p.host.ran_alone();
    std::thread::scope(|s| {
        let beside = s.spawn(|| cells(&p, &different(200_000)));
        let error = p.try_run(&different(6_000_000)).unwrap_err();
        assert_eq!(error.code(), "memory_exceeded", "{error}");
        assert!(error.to_string().contains("67108864"), "{error}");
        assert!(error.hint().is_some());
        beside.join().unwrap();
    });
    assert_eq!(p.host.ran_alone(), before);
    p.is_quiet("a statement that never fits");
}
