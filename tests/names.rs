//! Names of results, the cells of a table, and everyday use of the command line and the server.

use crate::common::SERVE;
use crate::http::Server;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Never ends by itself.
const ENDLESS: &str = "SELECT sum(sin(arange(1000000000000)::float64))";
const AIR: &str = "tests/data/cf/air.zarr";

fn tessera(directory: &Path, warehouse: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.current_dir(directory).stdin(Stdio::null()).arg("--warehouse").arg(warehouse);
    command
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(sql: &str, flags: &[&str]) -> Output {
    let warehouse = tempfile::tempdir().unwrap();
    let mut command = tessera(root(), warehouse.path());
    command.arg("query").args(flags).arg(sql).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a query in a format.
fn answer(sql: &str, format: &str) -> String {
    let out = run(sql, &["--format", format]);
    assert!(out.status.success(), "{sql}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn error(sql: &str) -> String {
    let out = run(sql, &[]);
    assert_eq!(out.status.code(), Some(1), "{sql}: {}", text(&out.stdout));
    text(&out.stderr)
}

fn names(sql: &str) -> Vec<String> {
    let document: Value =
        serde_json::from_str(answer(sql, "json").lines().last().unwrap()).unwrap();
    let of = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap().into()).collect()
    };
    of(document.get("tensors").or(document.get("columns")).unwrap())
}

#[test]
fn items_are_called_as_they_are_written() {
    let from = format!("FROM '{AIR}'");
    for (items, expected) in [
        ("mean(t2m, axis => 'time'), t2m * 2", vec!["mean(t2m, axis => 'time')", "t2m * 2"]),
        ("t2m[0:2, ::-1, lon => 0.5]", vec!["t2m[0:2, ::-1, lon => 0.5]"]),
        ("orog[..., NEWAXIS], orog.T @ orog", vec!["orog[..., NEWAXIS]", "orog.T @ orog"]),
        ("orog, orog, orog AS o", vec!["orog", "orog (2)", "o"]),
        (
            "max(orog), max(orog), 1 + orog AS \"max(orog)\"",
            vec!["max(orog) (2)", "max(orog) (3)", "max(orog)"],
        ),
        ("[lat], max(t2m) - 1", vec!["max(t2m) - 1"]),
    ] {
        let group = if items.starts_with('[') { " GROUP BY lat" } else { "" };
        assert_eq!(names(&format!("SELECT {items} {from}{group}")), expected, "{items}");
    }
    // By that name, and by its number, it is found.
    let inner = format!("(SELECT max(t2m, axis => 'time') {from})");
    for name in ["\"max(t2m, axis => 'time')\"", "v0"] {
        let sql = format!("SELECT max({name}) AS m FROM {inner} WHERE lat > 60");
        // ds.t2m.sel(lat=65).max() of xarray.
        assert_eq!(answer(&sql, "csv"), "m\n294.85\n", "{sql}");
        let sql = format!("SELECT max({name}[0]) AS m FROM {inner}");
        assert_eq!(answer(&sql, "csv"), "m\n294.85\n", "{sql}");
    }
}

#[test]
fn names_of_stored_arrays_are_words() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("out.zarr");
    let sql = format!(
        "COPY (SELECT orog / 2, orog // 2, mean(t2m, axis => 'time'), 1 - orog, orog AS \"a b\" FROM '{AIR}') TO '{}' STORED AS ZARR",
        store.display()
    );
    answer(&sql, "csv");
    let mut found: Vec<String> = std::fs::read_dir(&store)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n != "zarr.json")
        .collect();
    found.sort();
    let expected = ["a b", "lat", "lon", "mean_t2m_axis_time", "orog_2", "orog_2_2", "v3"];
    assert_eq!(found, expected);
    // orog.sum() is 10336.
    let sql =
        format!("SELECT sum(orog_2) AS half, sum(\"a b\") AS whole FROM '{}'", store.display());
    assert_eq!(answer(&sql, "ndjson"), "{\"half\":5168.0,\"whole\":10336.0}\n");
    let sql = format!(
        "CREATE TEMP TENSOR t AS SELECT orog / 2, orog * 2 FROM '{AIR}'; SELECT sum(orog_2) AS half, sum(orog_2_2) AS twice FROM t"
    );
    assert!(answer(&sql, "json").ends_with("\"data\":5168.0},{\"name\":\"twice\",\"dtype\":\"float32\",\"dims\":[],\"shape\":[],\"coords\":{},\"data\":20672.0}],\"surface\":\"tensor\"}\n"), "{}", answer(&sql, "json"));
}

#[test]
fn coordinates_and_variables_are_one_table() {
    // The first cells of xarray's `ds[["t2m"]].to_dataframe()`.
    let table = "2019-01-01T00:00:00,65.0,-9.5,261.91\n2019-01-01T00:00:00,65.0,0.5,267.27\n";
    let sql = format!("SELECT time, lat, lon, t2m FROM '{AIR}'");
    let csv = answer(&sql, "csv");
    assert!(csv.starts_with(&format!("time,lat,lon,t2m\n{table}")), "{}", &csv[..200]);
    assert_eq!(csv.lines().count(), 1 + 140 * 5 * 4);
    // A variable of fewer dimensions repeats in many rows, as in a table of cells.
    let sql = format!("SELECT lat, orog, t2m FROM '{AIR}'");
    let lines = answer(&sql, "ndjson");
    let expected = "{\"time\":\"2019-01-01T00:00:00\",\"lat\":65.0,\"lon\":-9.5,\"orog\":316.0,\"t2m\":261.91}";
    assert_eq!(lines.lines().next(), Some(expected));
    // The second time step begins with the same orography.
    assert!(lines.lines().nth(20).unwrap().contains("\"orog\":316.0"), "{lines}");
    assert!(lines.lines().nth(21).unwrap().contains("\"orog\":297.0"), "{lines}");
    assert_eq!(lines.lines().count(), 140 * 5 * 4);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t.parquet").display().to_string();
    let copy = format!(
        "COPY (SELECT time, lat, lon, t2m, orog FROM '{AIR}') TO '{file}' STORED AS PARQUET"
    );
    let sql = format!("{copy}; SELECT count(*) AS n, sum(orog) AS o FROM '{file}' WHERE lat = 65");
    assert_eq!(answer(&sql, "csv"), "n,o\n560,104440.0\n");
    // Tensors that lie across each other stay two tables.
    let csv = answer(&format!("SELECT orog[:, 0] AS a, orog[0] AS b FROM '{AIR}'"), "csv");
    assert!(csv.contains("\n\nlon,b\n"), "{csv}");
}

#[test]
fn csv_has_rows_alone() {
    let sql = "SET tessera.lift = 'off'; SELECT 1 AS x; SET tessera.lift = 'auto'";
    assert_eq!(answer(sql, "csv"), "x\n1\n");
    let done = answer("SET tessera.lift = 'off'", "csv");
    assert_eq!(done, "set tessera.lift\n");
}

#[test]
fn parameters_of_the_command_line() {
    let param = |sql: &str, flags: &[&str]| {
        let flags: Vec<&str> = flags.iter().flat_map(|f| ["--param", f]).collect();
        let out = run(sql, &[&["--format", "csv"], flags.as_slice()].concat());
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let air = format!("FROM '{AIR}'");
    let sql = format!("SELECT count(*) AS n {air} WHERE lat > $lat AND time < $until");
    // int((ds.time < "2019-01-02").sum()) * ds.lon.size of xarray.
    let (code, out, err) = param(&sql, &["lat=60.5", "until=2019-01-02"]);
    assert_eq!((code, out.as_str()), (Some(0), "n\n4\n"), "{err}");
    let sql = format!("SELECT orog[lat => $lats, lon => 0.5] AS o {air}");
    assert_eq!(param(&sql, &["lats=[65, 25]"]).1, "lat,o\n65.0,297.0\n25.0,701.0\n");
    assert_eq!(param("SELECT ? AS a, ? AS b", &["2=x", "1=7"]).1, "a,b\n7,x\n");
    let (code, _, err) = param("SELECT $k", &["k"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("has no name"), "{err}");
    assert_eq!(param("SELECT 1", &["k=1"]).0, Some(1));
}

#[test]
fn views_mean_the_same_to_every_reader() {
    let (warehouse, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let query = |directory: &Path, sql: &str| {
        let out =
            tessera(directory, warehouse.path()).args(["query", "--format", "csv", sql]).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{sql}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    for sql in [
        "CREATE VIEW cells AS SELECT lat, max(t2m) AS m FROM 'cf/air.zarr' WHERE lat > 60 GROUP BY lat",
        "CREATE VIEW tensors AS SELECT max(t2m) AS m FROM read_zarr('cf/air.zarr')",
        "CREATE EXTERNAL TABLE outside STORED AS ZARR LOCATION 'cf/air.zarr'",
    ] {
        query(&root().join("tests/data"), sql);
    }
    // ds.t2m.sel(lat=65).max() and ds.t2m.max() of xarray.
    assert_eq!(query(elsewhere.path(), "SELECT m FROM cells"), "m\n294.85\n");
    assert_eq!(query(elsewhere.path(), "SELECT m FROM tensors"), "m\n310.46\n");
    assert_eq!(query(elsewhere.path(), "SELECT count(t2m) > 0 AS x FROM outside"), "x\ntrue\n");
}

#[test]
fn views_are_bound_when_they_are_made() {
    for (query, code) in [
        (format!("SELECT nope FROM '{AIR}'"), "unknown_name"),
        (format!("SELECT nope FROM '{AIR}' WHERE lat > 3"), "unknown_name"),
        ("SELECT x FROM nowhere".to_string(), "unknown_name"),
        (format!("SELECT t2m[lat => 1] FROM '{AIR}'"), "label_not_found"),
        (format!("SELECT lat, t2m FROM '{AIR}' GROUP BY lat"), "not_grouped"),
    ] {
        let told = error(&format!("CREATE VIEW v AS {query}"));
        assert!(told.contains(&format!("error[{code}]")), "{query}: {told}");
    }
}

#[test]
fn errors_while_rows_are_computed_underline_the_only_expression_that_can_have_them() {
    let table = "FROM (VALUES (1, 10), (2, 20)) AS t(k, n)";
    let underlined = |sql: &str| {
        let told = error(sql);
        let line = told.lines().find(|line| line.trim_start().starts_with('^'))?.to_string();
        let start = line.find('^')? - "1 | ".len();
        Some(sql[start..start + line.trim_start().len()].to_string())
    };
    for (item, place) in [
        ("n / (k - 1)", Some("n / (k - 1")),
        ("n / 2 + n % (k - 1)", Some("n % (k - 1")),
        ("n // (k - 1)", Some("n // (k - 1")),
        ("n / (k - 1) + n / (k - 2)", None),
    ] {
        let sql = format!("SELECT n, {item} AS x {table}");
        assert!(error(&sql).contains("error[division_by_zero]: an integer was"), "{}", error(&sql));
        assert_eq!(underlined(&sql).as_deref(), place, "{sql}");
    }
    let texts = "FROM (VALUES ('1', 7, 'x'), ('y', 300, '2')) AS t(s, n, u)";
    for (query, told, place) in [
        ("s::int AS x", "cannot convert 'y' to int", Some("s")),
        ("n, CAST(s AS int) + 1 AS x", "cannot convert 'y' to int", Some("s")),
        ("s::double AS x, try_cast(u AS double) AS y", "cannot convert 'y' to double", Some("s")),
        ("n::tinyint AS x, n::bigint AS y", "300 is out of range of tinyint", Some("n")),
        ("s::int AS x, s::int + 1 AS y", "cannot convert 'y' to int", Some("s")),
        ("s::int AS x, u::int AS y", "to int", None),
    ] {
        let sql = format!("SELECT {query} {texts}");
        assert!(error(&sql).contains(told), "{sql}: {}", error(&sql));
        assert_eq!(underlined(&sql).as_deref(), place, "{sql}");
    }
    let sql = format!("SELECT k, (SELECT n {table}) AS x {table}");
    assert!(error(&sql).contains("returned more than one row"), "{}", error(&sql));
    assert!(underlined(&sql).is_some_and(|place| place.starts_with("SELECT n FROM")), "{sql}");
}

#[test]
fn groups_of_rows_fit_the_least_memory_of_a_statement() {
    let least = "SET tessera.query_memory_limit = '16MiB'";
    // ds.t2m.groupby("lat").median(...) and the like of xarray and pandas.
    let sql = format!("{least}; SELECT median(t2m) AS m FROM '{AIR}' WHERE lat = 65");
    assert_eq!(answer(&sql, "csv"), "m\n277.195\n");
    // [np.median(x[x % 3 == k]) for k in range(3)] of NumPy.
    let from = "FROM (SELECT arange(100)::float64 AS x) GROUP BY x % 3 ORDER BY k";
    let sql = format!("{least}; SELECT x % 3 AS k, median(x) AS m {from}");
    assert_eq!(answer(&sql, "csv"), "k,m\n0.0,49.5\n1.0,49.0\n2.0,50.0\n");
}

#[test]
fn a_result_without_space_reports_its_size_and_the_limit() {
    let s = Server::start(&["--memory-limit", "40MiB", "--spill-limit", "1MiB"], &[]);
    let r = s.submit(&json!({"sql": "SELECT arange(200000) AS x"}));
    let told = r.json()["error"]["message"].as_str().unwrap_or_default().to_string();
    assert!(
        told.contains("1.5 MiB (1600000 bytes)")
            && told.contains("1.0 MiB (1048576 bytes) of scratch space"),
        "{}",
        r.text()
    );
}

#[test]
fn a_full_server_answers_what_takes_a_moment() {
    let s = Server::start(&[], &[("TESSERA_MAX_QUERIES", "1"), ("TESSERA_MAX_QUEUED", "1")]);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let told = s.submit(&json!({"sql": ENDLESS, "wait_ms": 0})).json();
        ids.push(told["id"].as_str().unwrap().to_string());
    }
    let busy = s.submit(&json!({"sql": format!("SELECT max(t2m) FROM '{AIR}'")}));
    assert_eq!(busy.status, 429, "{}", busy.text());
    for sql in ["SELECT 1+1 AS x", "SET tessera.lift = 'off'; SELECT 2 AS x", "SHOW QUERIES"] {
        let r = s.submit(&json!({"sql": sql}));
        assert_eq!(r.status, 200, "{sql}: {}", r.text());
    }
    let r = s.ask("POST", "/v1/query?format=csv", "", b"SELECT 1+1 AS x");
    assert_eq!((r.status, r.text().as_str()), (200, "x\n2\n"));
    // Statements that make room are answered, too.
    for id in &ids {
        let r = s.ask("POST", "/v1/query", "", format!("CANCEL QUERY '{id}'").as_bytes());
        assert_eq!(r.status, 200, "{}", r.text());
    }
}

#[test]
fn waiting_for_a_finished_statement_returns_at_once() {
    let warehouse = tempfile::tempdir().unwrap();
    let serve = || {
        let mut command = tessera(root(), warehouse.path());
        command.args(SERVE).args(["--listen", "127.0.0.1:0"]);
        Server::spawn(command)
    };
    let s = serve();
    let id = crate::restart::submit(&s, "SELECT arange(3) AS x");
    assert_eq!(crate::restart::end(&s, &id)["state"], "FINISHED");
    drop(s);
    let s = serve();
    let path = format!("/v1/statements/{id}");
    crate::restart::until("it is known again", || s.get(&path).status == 200);
    let start = Instant::now();
    let told = s.get(&format!("{path}?wait_ms=50000")).json();
    assert_eq!(told["state"], "FINISHED", "{told}");
    let events = s.get(&format!("{path}/events")).text();
    assert!(events.starts_with("event: end\ndata: {"), "{events}");
    assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
    assert_eq!(s.get(&format!("{path}/result?format=csv")).text(), "dim_0,x\n0,0\n1,1\n2,2\n");
}

#[test]
fn dimensions_of_a_tensor_are_a_list() {
    let s = Server::start(&[], &[]);
    let sql = format!("CREATE TENSOR a AS SELECT t2m FROM '{AIR}'");
    assert_eq!(s.submit(&json!({"sql": sql})).status, 200);
    let told = s.get("/v1/tensors/a").json();
    let fields = told["fields"].as_array().unwrap();
    let field = |name: &str| fields.iter().find(|f| f["name"] == name).unwrap();
    assert_eq!(field("t2m")["dims"], json!(["time", "lat", "lon"]), "{told}");
    assert_eq!(field("t2m")["shape"], json!([140, 5, 4]), "{told}");
    assert!(field("t2m")["chunks"].as_array().unwrap().iter().all(Value::is_u64), "{told}");
    assert_eq!(field("lat")["dims"], json!(["lat"]), "{told}");
    assert_eq!(field("lat")["range"], "65 to 25", "{told}");
}

#[test]
fn the_server_accepts_what_its_schema_states() {
    let s = Server::start(&[], &[]);
    let document = s.get("/openapi.json").json();
    let body = &document["paths"]["/v1/statements"]["post"]["requestBody"]["content"]["application/json"]
        ["schema"]["properties"];
    let events = &document["paths"]["/v1/statements/{id}/events"]["get"]["responses"]["200"]["content"]
        ["text/event-stream"]["schema"]["properties"]["data"];
    assert_eq!(events, &json!({"$ref": "#/components/schemas/Statement"}));
    // Requests within the schema are accepted: lengths are in characters. Unknown parameters are reported.
    let longest = "é".repeat(body["request_id"]["maxLength"].as_u64().unwrap() as usize);
    let r = s.submit(&json!({"sql": "SELECT 1 AS x", "request_id": longest}));
    assert_eq!(r.status, 200, "{}", r.text());
    let parameter = &document["components"]["schemas"]["Parameter"]["type"];
    assert_eq!(parameter, &json!(["string", "number", "boolean", "null"]));
    for value in [json!("a"), json!(1.5), json!(true), Value::Null] {
        let r = s.submit(&json!({"sql": "SELECT $l AS x", "params": {"l": value}}));
        assert_eq!(r.status, 200, "{}", r.text());
    }
    let most = body["wait_ms"]["maximum"].as_u64().unwrap();
    let r = s.submit(&json!({"sql": "SELECT 1 AS x", "wait_ms": most}));
    assert_eq!(r.status, 200, "{}", r.text());
    let name = &document["paths"]["/v1/tensors/{name}"]["parameters"][0]["schema"];
    let longest = "x".repeat(name["maxLength"].as_u64().unwrap() as usize);
    assert_eq!(s.get(&format!("/v1/tensors/{longest}")).status, 404);
}
