//! EXPLAIN ANALYZE of the operators of rows. The numbers of rows are DuckDB's for the same queries.

use crate::common::Place;
use serde_json::Value;
use std::time::Instant;
use tessera_engine::answer::Answer;

/// Rows of the file, in row groups of a thousand.
const ROWS: u64 = 20_000;

struct Table {
    place: Place,
    threads: u64,
    file: String,
}

impl Table {
    fn with(threads: &str) -> Table {
        let place = Place::open(&[("threads", threads), ("memory-limit", "1GiB")]);
        let file = place.shown("t.parquet");
        place.run(&format!(
            "COPY (SELECT i, i % 10 AS g, i % 100 AS k FROM range({ROWS}) r(i)) TO '{file}' \
             (FORMAT parquet, ROW_GROUP_SIZE 1000); SET tessera.chunk_bytes_target = '16KiB'"
        ));
        Table { place, threads: threads.parse().unwrap(), file }
    }

    fn answer(&self, sql: &str) -> Answer {
        self.place.run(&sql.replace('T', &format!("'{}'", self.file))).pop().unwrap().answer
    }

    fn text(&self, sql: &str) -> String {
        match self.answer(sql) {
            Answer::Text(text) => text,
            _ => panic!("{sql}: no text"),
        }
    }

    /// Checks that hold for the measurements of every statement.
    fn analyzed(&self, select: &str) -> Analyzed {
        let started = Instant::now();
        let Answer::Json(json) = self.answer(&explained(select)) else { panic!("no JSON") };
        let elapsed = started.elapsed().as_secs_f64();
        let analyzed = Analyzed(json);
        let (all, measured) = (analyzed.all(), &analyzed.0["measured"]);
        assert!(!all.is_empty(), "{select}: {}", analyzed.0);
        let of = |operator: &Value, name: &str| operator["measured"][name].as_f64().unwrap();
        let sum = |name: &str| all.iter().map(|operator| of(operator, name)).sum::<f64>();
        // The thread that reads the answer computes too, besides the threads of rows.
        let (busy, seconds) = (sum("seconds"), measured["seconds"].as_f64().unwrap());
        let most = elapsed * (self.threads + 1) as f64;
        assert!(busy > 0.0 && busy <= most, "{busy} of {most}: {}", analyzed.0);
        assert!(seconds > 0.0 && seconds <= elapsed, "{elapsed}: {}", analyzed.0);
        for name in ["bytes_read", "bytes_spilled"] {
            assert_eq!(measured[name].as_f64().unwrap(), sum(name), "{name}: {}", analyzed.0);
        }
        for operator in all {
            let (rows, batches) = (of(operator, "rows"), of(operator, "batches"));
            assert!(rows == 0.0 || batches > 0.0, "{operator}");
        }
        analyzed
    }
}

/// The statement is in lower case, because `T` is replaced by the file.
fn explained(select: &str) -> String {
    format!("explain analyze (format json) {select}")
}

struct Analyzed(Value);

impl Analyzed {
    /// The operators of all plans, from above.
    fn all(&self) -> Vec<&Value> {
        let (mut all, mut next) = (Vec::new(), vec![&self.0["operators"]]);
        while let Some(some) = next.pop() {
            for operator in some.as_array().unwrap() {
                all.push(operator);
                next.push(&operator["inputs"]);
            }
        }
        all
    }

    /// The measurements of the operators with this name.
    fn each(&self, name: &str) -> Vec<&Value> {
        let named = |operator: &&Value| operator["name"] == name;
        self.all().into_iter().filter(named).map(|operator| &operator["measured"]).collect()
    }

    /// The measurements of the only operator with this name.
    fn one(&self, name: &str) -> &Value {
        match self.each(name)[..] {
            [one] => one,
            _ => panic!("{name}: {}", self.0),
        }
    }

    fn rows(&self, name: &str) -> u64 {
        self.one(name)["rows"].as_u64().unwrap()
    }

    /// Rows of the answer.
    fn answer(&self) -> u64 {
        self.0["measured"]["rows"].as_u64().unwrap()
    }
}

#[test]
fn each_operator_has_its_rows() {
    for threads in ["1", "2"] {
        let table = Table::with(threads);
        let filter = table.analyzed("select i from T where i % 7 = 0");
        assert_eq!((filter.answer(), filter.rows("FilterExec")), (2858, 2858), "{}", filter.0);
        assert_eq!((filter.rows("GatherExec"), filter.rows("DataSourceExec")), (2858, ROWS));
        // One column of three.
        let read = |of: &Analyzed| of.one("DataSourceExec")["bytes_read"].as_u64().unwrap();
        let all = table.analyzed("select sum(i) as a, sum(g) as b, sum(k) as c from T");
        assert!((1..read(&all)).contains(&read(&filter)), "{} {}", filter.0, all.0);

        let groups = table.analyzed("select g, count(*) as n from T group by g");
        assert_eq!((groups.answer(), groups.rows("GroupsExec")), (10, 10), "{}", groups.0);
        assert_eq!(groups.rows("DataSourceExec"), ROWS);
        // 100 pairs, 10 groups and the total.
        let sets = table.analyzed("select g, k, sum(i) as s from T group by rollup (g, k)");
        assert_eq!(sets.answer(), 111, "{}", sets.0);
        // The groups of splits are merged, and not their rows.
        assert!(sets.rows("GatherExec") < ROWS, "{}", sets.0);

        let join = table.analyzed(
            "select count(*) as n from T a join (select i as j from T where i < 40) b on a.k = b.j",
        );
        assert_eq!((join.answer(), join.rows("HashJoinExec")), (1, 8000), "{}", join.0);
        assert_eq!(join.one("HashJoinExec")["table_rows"], 40, "{}", join.0);
        assert_eq!(join.rows("KeysExec"), 40);

        let sort = table.analyzed("select i from T order by k, i");
        assert_eq!((sort.answer(), sort.rows("SortSplitsExec")), (ROWS, ROWS), "{}", sort.0);

        let window = "select i, row_number() over (partition by g order by i) as n from T";
        let window = table.analyzed(window);
        assert_eq!((window.answer(), window.rows("WindowsExec")), (ROWS, ROWS), "{}", window.0);

        let top = table.analyzed("select i from T order by i desc limit 5");
        assert_eq!(top.answer(), 5, "{}", top.0);
        let first = top.all().into_iter().find(|operator| operator["name"] == "FirstExec").unwrap();
        let most = first["splits"].as_u64().unwrap() * 5;
        assert!((5..=most).contains(&top.rows("FirstExec")), "{}", top.0);
    }
}

#[test]
fn a_limit_ends_operators_early() {
    for threads in ["1", "2"] {
        let table = Table::with(threads);
        let limit = table.analyzed("select i from T where i % 7 = 0 limit 3");
        assert_eq!((limit.answer(), limit.rows("FilterExec")), (3, 3), "{}", limit.0);
        assert!((3..=ROWS).contains(&limit.rows("DataSourceExec")), "{}", limit.0);
        let scan = table.analyzed("select i from T limit 3");
        assert_eq!((scan.answer(), scan.rows("DataSourceExec")), (3, 3), "{}", scan.0);
    }
}

#[test]
fn row_groups_that_are_left_out_are_counted() {
    let table = Table::with("2");
    let some = table.analyzed("select count(*) as n from T where i < 1500");
    let scan = some.one("DataSourceExec");
    assert_eq!(scan["row_groups"], serde_json::json!({"left_out": 18, "of": 20}), "{}", some.0);
    assert!((1500..=2000).contains(&some.rows("DataSourceExec")), "{}", some.0);
    assert_eq!(some.rows("FilterExec"), 1500);
    let text = table.text("explain analyze select count(*) as n from T where i < 1500");
    assert!(text.contains("18 of 20 row groups left out"), "{text}");
    let all = table.analyzed("select sum(i) as s from T");
    assert_eq!(all.one("DataSourceExec")["row_groups"]["left_out"], 0, "{}", all.0);
}

#[test]
fn the_text_has_a_line_for_each_operator() {
    let table = Table::with("2");
    let select = "select g, count(*) as n from T where i % 7 = 0 group by g";
    let text = table.text(&format!("explain analyze {select}"));
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| *line == "rows in splits, on all threads:").unwrap();
    let line = |name: &str| lines[at..].iter().find(|line| line.trim_start().starts_with(name));
    assert!(line("GroupsExec").unwrap().contains(" 10 rows  "), "{text}");
    assert!(line("FilterExec: ").unwrap().contains(" 2858 rows  "), "{text}");
    assert!(line("DataSourceExec: ").unwrap().ends_with(" read"), "{text}");
    let measured = lines.last().unwrap();
    assert!(
        measured.starts_with("measured: ") && measured.contains(" s, 10 rows, reserved "),
        "{text}"
    );
    assert!(measured.ends_with(" read, nothing spilled"), "{text}");
    assert!(!text.contains("rows of cells"), "{text}");
    // A plan that runs in one split, and a plan that does not run.
    let text = table.text("explain analyze select * from range(3) r(i)");
    assert!(text.contains("\noperators of rows:\n") && text.contains(" 3 rows  "), "{text}");
    let text = table.text(&format!("explain {select}"));
    assert!(text.contains("FilterExec: ") && !text.contains(" rows  "), "{text}");
    assert!(!text.contains("measured"), "{text}");
}

#[test]
fn rows_that_are_named_twice_are_measured_once() {
    let table = Table::with("2");
    let twice = table.analyzed(
        "with c as (select g, count(*) as n from T group by g) \
         select a.n from c a join c b on a.g = b.g",
    );
    assert_eq!((twice.answer(), twice.rows("GroupsExec")), (10, 10), "{}", twice.0);
    assert_eq!(twice.rows("DataSourceExec"), ROWS, "{}", twice.0);
    assert_eq!(twice.each("SharedExec").len(), 2, "{}", twice.0);
}

#[test]
fn spilled_bytes_count_for_their_operator() {
    let place = Place::open(&[("memory-limit", "16MiB"), ("spill-limit", "1GiB")]);
    let sql = "EXPLAIN ANALYZE (FORMAT json) SELECT max(n) AS m, sum(n * i) AS s FROM \
               (SELECT i, row_number() OVER (ORDER BY i % 1000, i) AS n FROM range(1000000) r(i)) q";
    let Answer::Json(json) = place.run(sql).pop().unwrap().answer else { panic!("no JSON") };
    let all = Analyzed(json);
    let window = all.one("WindowsExec");
    assert_eq!(window["rows"], 1_000_000, "{}", all.0);
    let spilled = window["bytes_spilled"].as_u64().unwrap();
    // A number of 8 bytes each, at least once.
    assert!(spilled >= 7_000_000, "{}", all.0);
    assert_eq!(all.0["measured"]["bytes_spilled"], spilled, "{}", all.0);
    assert!(all.0["measured"]["reserved_bytes"].as_u64().unwrap() > 1 << 20, "{}", all.0);
    place.is_quiet("rows that spilled");
}

#[test]
fn rows_of_an_island_are_measured() {
    let table = Table::with("2");
    let sql = "select tensor(select count(*) as n from T where i % 7 = 0) + 1 as n";
    let Answer::Json(json) = table.answer(&explained(sql)) else { panic!("no JSON") };
    let island = Analyzed(json["islands"][0]["plan"].clone());
    assert_eq!(island.rows("FilterExec"), 2858, "{json}");
    assert_eq!(island.0["rows"], 1, "{json}");
}
