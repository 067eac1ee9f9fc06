//! The parts of EXPLAIN that programs rely on: query 24 of the dialect, islands, COPY of rows.

use crate::common::Place;
use serde_json::Value;
use tessera_engine::answer::{Answer, Reply};

struct Db(Place);

impl Db {
    fn open() -> Db {
        let db = Db(Place::open(&[("memory-limit", "1GiB")]));
        for (name, path) in [("cases", "cases.zarr"), ("era5", "cf/air.zarr")] {
            db.run(&format!(
                "CREATE EXTERNAL TABLE {name} STORED AS ZARR LOCATION 'tests/data/{path}'"
            ));
        }
        db
    }

    fn answer(&self, sql: &str) -> Result<Answer, tessera_engine::error::Error> {
        Ok(self.0.try_run(sql)?.pop().unwrap().answer)
    }

    fn run(&self, sql: &str) -> Answer {
        self.answer(sql).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    fn text(&self, sql: &str) -> String {
        match self.run(sql) {
            Answer::Text(text) => text,
            _ => panic!("{sql}: no text"),
        }
    }

    fn json(&self, sql: &str) -> Value {
        match self.run(sql) {
            Answer::Json(json) => json,
            _ => panic!("{sql}: no JSON"),
        }
    }
}

/// Checks that a plan is complete: stages in order, the inputs of each, and estimates of its resources.
fn check_plan(plan: &Value) {
    let stages = plan["stages"].as_array().unwrap();
    let mut operands = 0;
    let mut largest = 0;
    for (number, stage) in stages.iter().enumerate() {
        assert_eq!(stage["stage"], number, "{plan}");
        assert!(stage["task"].is_string(), "{stage}");
        let lengths = |key: &str| -> Vec<u64> {
            stage[key].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
        };
        let (shape, chunks) = (lengths("shape"), lengths("chunks"));
        assert_eq!(shape.len(), chunks.len(), "{stage}");
        let chunked: u64 =
            shape.iter().zip(&chunks).map(|(n, c)| n.div_ceil((*c).max(1))).product();
        assert_eq!(stage["operands"].as_u64().unwrap(), chunked, "{stage}");
        for read in stage["reads"].as_array().unwrap() {
            let text = read.as_str().unwrap().trim_start_matches('#');
            let of: usize = text.split('.').next().unwrap().parse().unwrap();
            assert!(of < number, "a stage reads those before it: {stage}");
        }
        operands += stage["operands"].as_u64().unwrap();
        largest = largest.max(stage["peak_bytes"].as_u64().unwrap());
    }
    for result in plan["results"].as_array().unwrap() {
        let text = result.as_str().unwrap().trim_start_matches('#');
        let of: usize = text.split('.').next().unwrap().parse().unwrap();
        assert!(of < stages.len(), "{plan}");
    }
    let cost = &plan["cost"];
    assert_eq!(cost["operands"], operands, "{plan}");
    assert_eq!(cost["operand_bytes_max"], largest, "{plan}");
    assert!(cost["bytes_loaded"].is_u64() && cost["result_bytes"].is_u64(), "{plan}");
}

#[test]
fn query_24_shows_the_plan_and_its_cost() {
    let db = Db::open();
    db.run("CREATE TEMP TENSOR a AS SELECT rename(p, dim_0 => 'i', dim_1 => 'j') AS v FROM cases");
    db.run("CREATE TEMP TENSOR b AS SELECT rename(q, dim_0 => 'j', dim_1 => 'k') AS v FROM cases");
    let json = db.json("EXPLAIN (FORMAT json) SELECT matmul(a, b) FROM a, b");
    check_plan(&json);
    assert_eq!(json["surface"], "tensor");
    assert_eq!(json["reason"], "no clause that refers to cells");
    let tasks: Vec<&str> =
        json["stages"].as_array().unwrap().iter().map(|s| s["task"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["load", "load", "contract"]);
    assert_eq!(json["stages"][2]["reads"], serde_json::json!(["#0.0", "#1.0"]));
    // [4, 6] and [6, 3] of float64 are read, [4, 3] is the result.
    assert_eq!(json["cost"]["bytes_loaded"], (4 * 6 + 6 * 3) * 8);
    assert_eq!(json["cost"]["result_bytes"], 4 * 3 * 8);
    assert!(json.get("measured").is_none(), "nothing ran");
    // Both are in memory: nothing is asked of storage.
    let expected = &json["expected"];
    assert_eq!(expected["bytes_read"], json["cost"]["bytes_loaded"]);
    assert_eq!((&expected["requests"], &expected["bytes_spilled"]), (&0.into(), &0.into()));
    assert!(expected["peak_bytes"].as_u64() >= json["cost"]["operand_bytes_max"].as_u64());

    // Measurements equal estimates: the operands ran, and no more bytes were read.
    let json = db.json("EXPLAIN ANALYZE (FORMAT json) SELECT matmul(a, b) FROM a, b");
    check_plan(&json);
    let measured = &json["measured"];
    assert_eq!(measured["bytes_read"], json["cost"]["bytes_loaded"]);
    assert_eq!((&measured["requests"], &measured["bytes_fetched"]), (&0.into(), &0.into()));
    assert_eq!(measured["durable"]["written"], 0);
    assert!(measured["peak_bytes"].as_u64().unwrap() >= 96, "{measured}");
    let ran: u64 = measured["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["operands"].as_u64().unwrap())
        .sum();
    assert_eq!(ran, json["cost"]["operands"].as_u64().unwrap());

    // The same contraction as cells: the surface, the clause, the dense part, the tensor plan below it.
    let json = db.json(
        "EXPLAIN (FORMAT json) SELECT a.i, b.k, sum(a.v * b.v) FROM a JOIN b USING (j) GROUP BY a.i, b.k",
    );
    assert_eq!((&json["surface"], &json["reason"]), (&"cell".into(), &"JOIN".into()));
    let note = json["notes"][0].as_str().unwrap();
    assert!(note.starts_with("dense: Aggregate"), "{note}");
    assert!(json["logical"].as_str().unwrap().contains("TableScan: groups_0"));
    let plan = &json["tensor_plans"]["groups_0"];
    check_plan(plan);
    assert_eq!(plan["rows_of_cells"], false);
    let is_product = |s: &Value| s["task"] == "contract";
    assert!(plan["stages"].as_array().unwrap().iter().any(is_product), "{plan}");
}

#[test]
fn all_islands_are_shown_and_nothing_runs() {
    let db = Db::open();
    let sql = "SELECT unique(t2m[t2m > 300]) AS u, t2m[t2m > 290] - 1 AS w FROM era5";
    let text = db.text(&format!("EXPLAIN {sql}"));
    for line in [
        "island 1 (tensor) at 1:",
        "the cells of t2m that a mask keeps, waits for nothing",
        "waits for island 1\n   its shapes are known when island 1 has run",
        "island 3 (tensor) at 1:",
        "result: waits for islands 2 and 3; its shapes are known when they have run",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("measured"), "{text}");
    let json = db.json(&format!("EXPLAIN (FORMAT json) {sql}"));
    let islands = json["islands"].as_array().unwrap();
    assert_eq!(islands.len(), 3, "{json}");
    check_plan(&islands[0]["plan"][0]);
    assert!(islands[1]["plan"].is_null() && islands[1]["unknown"].is_string(), "{json}");
    assert_eq!(islands[1]["waits_for"], serde_json::json!([1]));
    check_plan(&islands[2]["plan"][0]);
    assert_eq!(json["waits_for"], serde_json::json!([2, 3]));
    let dot = db.text(&format!("EXPLAIN (FORMAT dot) {sql}"));
    for line in ["digraph islands", "i1 -> i2;", "i2 -> result;", "i3 -> result;"] {
        assert!(dot.contains(line), "{dot}");
    }
    // ANALYZE runs the same islands in the same order.
    let analyzed = db.json(&format!("EXPLAIN ANALYZE (FORMAT json) {sql}"));
    let ran = analyzed["islands"].as_array().unwrap();
    let what = |all: &[Value]| -> Vec<Value> {
        all.iter().map(|i| serde_json::json!([i["what"], i["waits_for"]])).collect()
    };
    assert_eq!(what(ran), what(islands));
    assert!(ran[1]["plan"].is_object(), "{analyzed}");

    // Rows that become a tensor have the labels of their keys, so the plan after them is known.
    let sql = "SELECT t2m - tensor(SELECT lat, median(t2m) FROM era5 GROUP BY lat) AS d FROM era5";
    let text = db.text(&format!("EXPLAIN {sql}"));
    assert!(text.contains("island 1 (cell) at 1:"), "{text}");
    assert!(text.contains("median"), "the clause that forced rows is told: {text}");
    assert!(
        text.contains("result: waits for island 1; its shapes are known when it has run"),
        "{text}"
    );
    assert!(!text.contains("what else runs first"), "{text}");
    // A block of cells waits for islands too.
    let sql = "SELECT count(*) FROM CELLS(t2m[t2m > 300]) AS c, era5";
    assert!(db.answer(&format!("EXPLAIN {sql}")).is_ok() || db.answer(sql).is_err());
}

#[test]
fn rows_are_copied_as_tensors() {
    let db = Db::open();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().to_string();
    // Keys of GROUP BY, then labels as they are, then rows of which some are missing.
    let zarr = path("lat.zarr");
    db.run(&format!(
        "COPY (SELECT lat, avg(t2m) AS m FROM era5 GROUP BY lat) TO '{zarr}' STORED AS ZARR"
    ));
    let text = db.text(&format!("EXPLAIN SELECT sum(m) FROM '{zarr}'"));
    assert!(text.contains("[5/5]"), "{text}");
    let npy = path("box.npy");
    db.run(&format!(
        "COPY (SELECT time, lat, lon, t2m FROM era5 WHERE lat > 40) TO '{npy}' STORED AS NPY"
    ));
    let text = db.text(&format!("EXPLAIN SELECT sum(box) FROM '{npy}' AS box"));
    assert!(text.contains("[140/140, 3/3, 4/4]"), "{text}");
    let npz = path("hot.npz");
    db.run(&format!(
        "COPY (SELECT time, lat, t2m, t2m - 273.15 AS c FROM era5 WHERE lon = 0.5 AND t2m > 295) TO '{npz}' STORED AS NPZ"
    ));
    // A stored tensor has the same rows as the query that made it.
    db.run("CREATE TEMP TENSOR hot AS SELECT time, lat, lon, t2m FROM era5 WHERE t2m > 295");
    let (a, b) = (
        "SELECT count(t2m), sum(t2m) FROM hot",
        "SELECT count(t2m), sum(t2m), count(*) FROM era5 WHERE t2m > 295",
    );
    let line = |sql: &str| crate::slt::answer_lines(whole(db.run(sql))).join(" ");
    let (a, b) = (line(a), line(b));
    assert!(
        b.starts_with(
            a.split_whitespace().filter(|w| w.parse::<f64>().is_ok()).collect::<Vec<_>>()[0]
        ),
        "{a} | {b}"
    );
    // Rows whose columns are no labels, and the hint.
    let e = db
        .answer(&format!(
            "COPY (SELECT t2m, precip FROM era5 WHERE lat > 40) TO '{}' STORED AS ZARR",
            path("no.zarr")
        ))
        .unwrap_err();
    assert_eq!(e.code(), "ambiguous_dims");
    assert!(e.hint().unwrap().contains("in brackets"), "{e}");
    assert!(!std::path::Path::new(&path("no.zarr")).exists());
}

#[test]
fn estimates_are_shown_next_to_measurements() {
    let db = Db::open();
    // 140 times of [5, 4] in stored chunks are read once. Then they are read twice, as the mean needs all of them
    // first.
    let files = |name: &str| -> (u64, u64) {
        let chunks = std::fs::read_dir(format!("tests/data/cf/air.zarr/{name}")).unwrap();
        let chunks = chunks.flatten().filter(|e| e.file_name() != "zarr.json");
        let mut sum = (0, 0);
        let mut stack: Vec<_> = chunks.map(|e| e.path()).collect();
        while let Some(path) = stack.pop() {
            match path.is_dir() {
                true => stack.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path())),
                false if path.file_name().unwrap().to_string_lossy().starts_with('.') => {}
                false => sum = (sum.0 + 1, sum.1 + path.metadata().unwrap().len()),
            }
        }
        sum
    };
    let (chunks, bytes) = files("t2m");
    assert!(chunks > 1, "{chunks}");
    for sql in ["SELECT sum(t2m) AS s FROM era5", "SELECT t2m - mean(t2m) AS d FROM era5"] {
        let json = db.json(&format!("EXPLAIN ANALYZE (FORMAT json) {sql}"));
        let (expected, measured) = (&json["expected"], &json["measured"]);
        for key in ["bytes_read", "bytes_spilled"] {
            assert_eq!(expected[key], measured[key], "{key}: {json}");
        }
        assert_eq!(expected["requests"], chunks, "{json}");
        assert_eq!(
            (&measured["requests"], &measured["bytes_fetched"]),
            (&chunks.into(), &bytes.into())
        );
        let peaks = [expected, measured].map(|v| v["peak_bytes"].as_f64().unwrap());
        assert!((0.9..4.0).contains(&(peaks[0] / peaks[1])), "{peaks:?}");
        let text = db.text(&format!("EXPLAIN ANALYZE {sql}"));
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|l| l.starts_with("expected: peak ")).unwrap();
        assert!(lines[at].ends_with(&format!(" in {chunks} requests, nothing spilled")), "{text}");
        assert!(lines[at + 1].starts_with("measured: peak "), "{text}");
        let plain = db.text(&format!("EXPLAIN {sql}"));
        assert!(plain.ends_with(&format!("{}\n", lines[at])), "{plain}");
    }
    // Blocks of cells have tensor plans too, and islands each their own.
    let cells = "SELECT lat, avg(t2m) FROM era5 GROUP BY lat";
    let json = db.json(&format!("EXPLAIN ANALYZE (FORMAT json) {cells}"));
    let plan = &json["tensor_plans"]["groups_0"];
    assert_eq!(plan["measured"].as_array().map(Vec::len), Some(1), "{json}");
    assert_eq!(plan["measured"][0]["requests"], chunks, "{json}");
    assert_eq!(plan["measured"][0]["bytes_fetched"], bytes, "{json}");
    let text = db.text(&format!("EXPLAIN ANALYZE {cells}"));
    assert_eq!(text.matches("\nmeasured: peak ").count(), 1, "{text}");
    assert!(text.ends_with("\nmeasured: 0 rows of cells were built\n"), "{text}");
    let json = db.json("EXPLAIN (FORMAT json) SELECT lat, avg(t2m) FROM era5 GROUP BY lat");
    assert_eq!(json["tensor_plans"]["groups_0"]["expected"]["requests"], chunks, "{json}");
    let json = db.json("EXPLAIN ANALYZE (FORMAT json) SELECT sum(t2m[t2m > 290]) AS s FROM era5");
    let island = &json["islands"][0];
    assert_eq!(island["plan"]["expected"]["requests"], chunks, "{json}");
    assert_eq!(island["measured"]["requests"], chunks, "{json}");
    assert_eq!(json["measured"]["requests"], 0, "{json}");
}

#[test]
fn estimates_expect_spilling_beyond_memory() {
    let p = crate::common::Place::open(&[("memory-limit", "16MiB"), ("spill-limit", "1GiB")]);
    p.run("SET tessera.chunk_bytes_target = 800000");
    p.run("CREATE TENSOR x AS SELECT random_normal([1000, 8000], seed => 2, chunks => [12, 8000], dims => ['r', 'c']) AS x");
    let sql =
        "EXPLAIN ANALYZE (FORMAT json) SELECT rechunk(x + 1, r => 1000, c => 100) AS y FROM x";
    let Answer::Json(json) = p.run(sql).pop().unwrap().answer else { panic!("no JSON") };
    let of = |what: &str| json[what]["bytes_spilled"].as_f64().unwrap();
    // 64 MB become columns in 16 MiB: the excess has to wait in files.
    for spilled in [of("expected"), of("measured")] {
        assert!((40e6..=64e6).contains(&spilled), "{json}");
    }
    assert!((of("expected") / of("measured") - 1.0).abs() < 0.25, "{json}");
    let peak = json["expected"]["peak_bytes"].as_u64().unwrap();
    assert!(peak <= 16 << 20 && json["measured"]["peak_bytes"].as_u64().unwrap() <= 16 << 20);
    p.is_quiet("a plan that spilled");
}

fn whole(answer: Answer) -> Answer {
    Reply::from(answer).whole().unwrap().answer
}

#[test]
fn threads_and_time_of_a_statement_are_the_sessions() {
    let db = Db::open();
    let threads = |n: &str| {
        db.run(&format!("SET tessera.threads = {n}"));
        let plan =
            db.json("EXPLAIN (FORMAT json) SELECT sum(random_normal([1000, 1000], seed => 1))");
        plan["expected"]["threads"].as_u64().unwrap()
    };
    // A session that goes on in a process with fewer threads has all of them.
    assert_eq!([threads("1"), threads("2"), threads("64")], [1, 2, 2]);
    // By the cost of the plan, if nothing is set: a million normals keep both busy, a sum of ten does not.
    assert_eq!(threads("auto"), 2);
    let small = db.json("EXPLAIN (FORMAT json) SELECT sum(arange(10))");
    assert_eq!(small["expected"]["threads"], 1);
    let refused = |sql: &str| db.answer(sql).err().map(|e| (e.code().to_string(), e.to_string()));
    for (sql, says) in [
        ("SET tessera.threads = 0", "`0` is neither 'auto' nor a number of threads from 1"),
        ("SET tessera.query_timeout = 'soon'", "`soon` is not a whole number of seconds from 1"),
    ] {
        let (_, text) = refused(sql).unwrap();
        assert!(text.contains(says), "{text}");
    }
    db.run("SET tessera.threads = 1");
    let sum = "SELECT sum(reshape(arange(2000000), [20, 100000])) AS s";
    let line = |sql: &str| crate::slt::answer_lines(whole(db.run(sql))).join(" ");
    let one = line(sum);
    db.run("SET tessera.threads = 2; SET tessera.query_timeout = 3600");
    assert_eq!(one, line(sum));
    db.run("SET tessera.query_timeout = 1");
    let (code, text) = refused("SELECT sum(sin(arange(300000000000)))").unwrap();
    assert_eq!((&*code, &*text), ("timeout", "the query took longer than 1 s and was cancelled"));
    // The next one has its own second.
    assert_eq!(one, line(sum));
}
