//! Runs the examples of the documentation: statements of README.md and docs/*.md, calls of docs/sql.md, and the example
//! of each function. Two lists follow: files of these tests that replace the names of other machines, and phrases that
//! are no statements.

use crate::common::Place;
use std::collections::BTreeSet;
use std::fs;

/// Names in examples, and the files that replace them here; `OUT` is a directory of the test.
const NAMES: [(&str, &str); 18] = [
    ("'s3://bucket/era5.zarr'", "'tests/data/cf/air.zarr'"),
    ("'s3://bucket/out.zarr'", "'OUT/out.zarr'"),
    ("'regions.parquet'", "'tests/data/tables/regions.parquet'"),
    ("'e.zarr'", "'tests/data/cf/air.zarr'"),
    ("'stations.nc'", "'tests/data/texts/classic.nc'"),
    ("'stations.zarr'", "'OUT/stations.zarr'"),
    ("'air.zarr'", "'tests/data/cf/air.zarr'"),
    ("'x.npy'", "'OUT/x.npy'"),
    ("'20*.nc'", "'OUT/20*.nc'"),
    ("'2019.nc'", "'OUT/2019.nc'"),
    ("'2020.nc'", "'OUT/2020.nc'"),
    ("'image.zarr'", "'tests/data/formats/ome_zarr/v05.zarr'"),
    ("'run1.nc'", "'OUT/run1.nc'"),
    ("'run2.nc'", "'OUT/run2.nc'"),
    // Labels of the store here.
    ("lat => 50, lon => 10]", "lat => 45, lon => 10.5]"),
    ("lat => [51.5]", "lat => [51.5], lon => [0.5]"),
    ("arange(?)", "arange(5)"),
    ("arange(100000000)", "arange(1000)"),
];

/// Incomplete statements, and words of the language: they cannot run.
const PHRASES: [&str; 21] = [
    "COPY (…) TO",
    "COPY … TO",
    "COPY … TO 's3://…' STORED AS ZARR",
    "CANCEL QUERY 'id'",
    "CREATE EXTERNAL TABLE",
    "CREATE EXTERNAL TABLE … STORED AS PARQUET | CSV | NDJSON | ARROW",
    "CREATE EXTERNAL TABLE … STORED AS NETCDF",
    "CREATE EXTERNAL TABLE … STORED AS ZARR | NETCDF | … LOCATION '…'",
    "CREATE FUNCTION",
    "CREATE OR REPLACE",
    "CREATE TENSOR",
    "CREATE VIEW … AS",
    "CREATE [TEMP] TENSOR … AS",
    "DESCRIBE 'url'",
    "DESCRIBE name | 'url' | query",
    "EXPLAIN (FORMAT dot)",
    "EXPLAIN (FORMAT json)",
    "EXPLAIN ANALYZE",
    "EXPLAIN VERBOSE",
    "EXPLAIN [ANALYZE] [VERBOSE] [(FORMAT text|json|dot)]",
    // Of a server with workers; tests/cluster.rs asks for them.
    "SELECT time, kind, worker, detail FROM system.events WHERE kind <> 'joined' ORDER BY number",
];

/// Relations that examples read, made new for each document.
const SETUP: [&str; 13] = [
    "CREATE EXTERNAL TABLE era5 STORED AS ZARR LOCATION 'tests/data/cf/air.zarr'",
    "COPY (SELECT t2m[0:2] AS t2m FROM era5) TO 'OUT/2019.nc' STORED AS NETCDF",
    "COPY (SELECT t2m[2:4] AS t2m FROM era5) TO 'OUT/2020.nc' STORED AS NETCDF",
    "COPY (SELECT t2m FROM era5) TO 'OUT/run1.nc' STORED AS NETCDF",
    "COPY (SELECT t2m FROM era5) TO 'OUT/run2.nc' STORED AS NETCDF",
    "COPY (SELECT random_normal([6, 4], seed => 1) AS x) TO 'OUT/x.npy' STORED AS NPY",
    "CREATE TEMP TENSOR x AS SELECT random_normal([5, 7], seed => 1, chunks => [2, 3]) AS x, arange(5) % 3 AS k",
    "CREATE TEMP TENSOR y AS SELECT random_normal([5, 7], seed => 2, chunks => [2, 3]) AS y",
    "CREATE TEMP TENSOR r AS SELECT random_normal([5], seed => 5) AS r",
    "CREATE TEMP TENSOR v AS SELECT random_normal([7], seed => 3) AS v",
    "CREATE TEMP TENSOR w AS SELECT random_normal([7], seed => 4) AS w",
    // Symmetric, with positive eigenvalues.
    "CREATE TEMP TENSOR a AS SELECT cov(random_normal([4, 30], seed => 6)) AS a",
    "CREATE TEMP TENSOR b AS SELECT random_normal([4, 4], seed => 7) AS b",
];

/// Relations that only examples of functions read.
const OF_FUNCTIONS: [&str; 3] = [
    "CREATE TEMP TENSOR p AS SELECT random_normal([2, 3, 4], seed => 8) AS p",
    "CREATE TEMP TENSOR q AS SELECT random_normal([2, 4, 5], seed => 9) AS q",
    "CREATE TEMP TENSOR wind AS SELECT random_normal([50], seed => 1) AS u, random_normal([50], seed => 2) AS v",
];

/// Functions whose example is about other tensors of the same names.
const OTHERS: [(&str, &str); 4] = [
    (
        "concat",
        "CREATE OR REPLACE TEMP TENSOR a AS SELECT ones([2, 3], dims => ['time', 'x']) AS a; \
         CREATE OR REPLACE TEMP TENSOR b AS SELECT zeros([4, 3], dims => ['time', 'x']) AS b",
    ),
    (
        "rename",
        "CREATE OR REPLACE TEMP TENSOR x AS SELECT ones([2, 3], dims => ['lat', 'column']) AS x",
    ),
    ("tensordot", "CREATE OR REPLACE TEMP TENSOR y AS SELECT ones([7, 5]) AS y"),
    ("transpose", "CREATE OR REPLACE TEMP TENSOR x AS SELECT ones([2, 3, 4]) AS x"),
];

/// Functions of integers, whose examples take them.
const INTEGERS: &str = "CREATE OR REPLACE TEMP TENSOR x AS SELECT arange(7) - 3 AS x, arange(7) % 3 AS k; \
                        CREATE OR REPLACE TEMP TENSOR y AS SELECT arange(7) % 4 AS y";

/// A session with the sources of the examples.
struct Reader {
    place: Place,
    wrong: Vec<String>,
    ran: usize,
}

impl Reader {
    fn new(setup: &[&str]) -> Reader {
        let reader = Reader { place: Place::open(&[]), wrong: Vec::new(), ran: 0 };
        for sql in SETUP.iter().chain(setup) {
            reader.place.run(&reader.here(sql));
        }
        reader
    }

    fn here(&self, sql: &str) -> String {
        let named =
            NAMES.iter().fold(sql.to_string(), |sql, (there, here)| sql.replace(there, here));
        named.replace("OUT/", &format!("{}/", self.place.path("output").display()))
    }

    fn run(&mut self, from: &str, sql: &str) {
        self.ran += 1;
        let here = self.here(sql);
        if let Err(e) = self.place.try_run(&here) {
            self.wrong.push(format!("{from}: {sql}\n{}", e.render(&here)));
        }
    }

    fn end(self, what: &str, least: usize) {
        let some = self.wrong.len();
        assert!(some == 0, "{some} examples of {what} fail\n\n{}", self.wrong.join("\n"));
        assert!(self.ran >= least, "{} examples of {what}", self.ran);
    }
}

/// A document in its parts: text, and blocks with the word behind their fence.
struct Document {
    name: String,
    text: String,
    blocks: Vec<(String, String)>,
}

fn documents() -> Vec<Document> {
    let docs = fs::read_dir("docs").unwrap().map(|e| e.unwrap().path());
    let mut paths: Vec<_> = docs.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    // Statements of the guide to Python name variables of Python: python/tests/test_docs.py runs them.
    paths.retain(|p| !p.ends_with("python.md"));
    paths.push("README.md".into());
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let (mut text, mut blocks) = (String::new(), Vec::new());
        for (i, part) in fs::read_to_string(path).unwrap().split("```").enumerate() {
            match i % 2 {
                0 => text.push_str(part),
                _ => {
                    let (word, body) = part.split_once('\n').unwrap();
                    blocks.push((word.into(), body.into()));
                }
            }
        }
        Document { name: path.display().to_string(), text, blocks }
    };
    paths.iter().map(read).collect()
}

/// The texts between backticks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

const VERBS: [&str; 10] =
    ["SELECT", "WITH", "CREATE", "COPY", "EXPLAIN", "SHOW", "SET", "DESCRIBE", "DROP", "CANCEL"];

/// Statements of several words, as they are written in the text.
fn statements(text: &str) -> impl Iterator<Item = &str> {
    spans(text).filter(|span| {
        span.split_once(' ').is_some_and(|(verb, rest)| VERBS.contains(&verb) && !rest.is_empty())
    })
}

/// `SET a = 'x' | 'y'` and `SHOW A | B` are one statement for each word; a setting without a value is shown.
fn alternatives(sql: &str) -> Vec<String> {
    if let Some(rest) = sql.strip_prefix("SHOW ") {
        return rest.split(" | ").map(|what| format!("SHOW {what}")).collect();
    }
    let Some(rest) = sql.strip_prefix("SET ") else { return vec![sql.into()] };
    match rest.split_once(" = ") {
        None => vec![format!("SHOW {rest}")],
        Some((key, values)) => {
            values.split(" | ").map(|value| format!("SET {key} = {value}")).collect()
        }
    }
}

/// The SQL in a block: queries of a command line, bodies of `curl` (text or JSON), input behind the prompt, plotted
/// queries.
fn of_block(body: &str) -> Vec<String> {
    let mut out = Vec::new();
    for line in body.lines() {
        if let Some((_, rest)) = line.split_once("--data-binary ") {
            let quote = rest.chars().next().unwrap();
            out.extend(rest[1..].split(quote).next().map(String::from));
        }
        if let Some((_, rest)) = line.split_once("\"sql\": \"") {
            out.extend(rest.split('"').next().map(String::from));
        }
        if line.starts_with("SELECT ") {
            out.push(line.into());
        }
        if let Some(rest) = line.strip_prefix(".plot ") {
            out.push(format!("SELECT {rest}"));
        }
    }
    let prompts = body.split("tessera> ").skip(1).filter(|p| !p.starts_with('.'));
    out.extend(prompts.filter_map(|p| p.split_once(';')).map(|(sql, _)| sql.to_string()));
    out
}

#[test]
fn statements_of_the_documents_run() {
    let mut phrases: BTreeSet<&str> = BTreeSet::new();
    let (mut wrong, mut ran) = (Vec::new(), 0);
    for document in documents() {
        let mut reader = Reader::new(&[]);
        for (word, body) in &document.blocks {
            let all = match word.as_str() {
                "sql" => body.split_inclusive(";\n").map(String::from).collect(),
                "sh" | "" => of_block(body),
                _ => Vec::new(),
            };
            for sql in all.iter().filter(|sql| !sql.trim().is_empty()) {
                reader.run(&document.name, sql);
            }
        }
        for sql in statements(&document.text) {
            if let Some(phrase) = PHRASES.iter().find(|phrase| **phrase == sql) {
                phrases.insert(phrase);
                continue;
            }
            for sql in alternatives(sql) {
                reader.run(&document.name, &sql);
            }
        }
        ran += reader.ran;
        wrong.extend(reader.wrong);
    }
    let some = wrong.len();
    assert!(some == 0, "{some} examples of the documents fail\n\n{}", wrong.join("\n"));
    assert!(ran > 50, "{ran} examples");
    let gone: Vec<&&str> = PHRASES.iter().filter(|phrase| !phrases.contains(*phrase)).collect();
    assert!(gone.is_empty(), "no document has {gone:?} any more");
}

/// Calls of docs/sql.md that consist of a name only, or that are about columns, with the call that runs instead.
const CALLS: [(&str, &str); 27] = [
    (
        "avg(v) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING EXCLUDE CURRENT ROW)",
        "avg(v) OVER (ORDER BY i ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING EXCLUDE CURRENT ROW) \
         FROM (VALUES (1, 2.0), (2, 3.0)) t(i, v)",
    ),
    ("s[1]", "s[1] FROM (VALUES ('text')) t(s)"),
    ("s[2:4]", "s[2:4] FROM (VALUES ('text')) t(s)"),
    ("s[-3:]", "s[-3:] FROM (VALUES ('text')) t(s)"),
    ("m[k]", "m[k] FROM (SELECT map(['a'], [1]) AS m, 'a' AS k FROM range(1)) t"),
    (
        "date_part(['year', 'month'], t)",
        "date_part(['year', 'month'], t) FROM (VALUES (date '2020-02-29')) v(t)",
    ),
    ("avg(t2m)", ""),
    ("count(*)", ""),
    ("count(DISTINCT label)", ""),
    ("count(DISTINCT value)", ""),
    ("sum(a * b)", "sum(a * b) FROM a, b"),
    ("sum(a::double * b::double)", "sum(a::double * b::double) FROM a, b"),
    ("sum(a::bigint * b::bigint)", "sum(a::bigint * b::bigint) FROM a, b"),
    ("sum(a.v * b.v)", ""),
    ("sel(…, method => 'nearest')", "sel(t2m, lat => 51, method => 'nearest') FROM era5"),
    ("a[..., NEWAXIS]", "a[..., NEWAXIS] FROM a"),
    ("sortby(x, 'lon')", "sortby(t2m, 'lon') FROM era5"),
    ("rename(x, lat => 'y')", "rename(t2m, lat => 'y') FROM era5"),
    ("swap_dims(x, 'time', 'step')", "swap_dims(t2m, 'time', 'step') FROM era5"),
    ("swap_dims(x, 'a', 'b')", "swap_dims(t2m, 'lat', 'b') FROM era5"),
    ("drop_coords(x, 'time')", "drop_coords(t2m, 'time') FROM era5"),
    ("x[mask]", "x[x > 0] FROM x"),
    ("count(orog)", "count(orog) FROM era5"),
    ("sum(orog)", "sum(orog) FROM era5"),
    ("t[latitude => 52.3]", "t2m[lat => 45] FROM era5"),
    // The name of an item.
    ("mean(t2m, 0) (2)", ""),
    ("x[dim => mask]", "t2m[lat => lat > 30] FROM era5"),
];

#[test]
fn calls_of_the_guide_run() {
    let document = documents().into_iter().find(|d| d.name.ends_with("docs/sql.md")).unwrap();
    let functions: BTreeSet<&str> =
        tessera_frontend::functions().iter().map(|row| row.name).collect();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut reader = Reader::new(&[]);
    let mut special: BTreeSet<&str> = BTreeSet::new();
    for span in spans(&document.text) {
        let name = &span[..span.find(|c| !is_name(c)).unwrap_or(span.len())];
        let rest = &span[name.len()..];
        let is_call = rest.starts_with('(') && functions.contains(name) && !rest.starts_with("()");
        let is_subscript = rest.starts_with('[') && !name.is_empty();
        if !is_call && !is_subscript {
            continue;
        }
        let sql = match CALLS.iter().find(|(call, _)| *call == span) {
            Some((call, instead)) => {
                special.insert(call);
                (!instead.is_empty()).then(|| format!("SELECT {instead}"))
            }
            None => Some(format!("SELECT {span} FROM {}", relations(span))),
        };
        if let Some(sql) = sql {
            reader.run("docs/sql.md", &sql);
        }
    }
    let gone: Vec<_> = CALLS.iter().filter(|(call, _)| !special.contains(call)).collect();
    assert!(gone.is_empty(), "docs/sql.md has {gone:?} no more");
    reader.end("docs/sql.md", 20);
}

/// The relations whose names an expression has.
fn relations(expression: &str) -> String {
    let words: BTreeSet<&str> =
        expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
    let mut all: Vec<&str> = ["a", "b", "x"].into_iter().filter(|r| words.contains(r)).collect();
    if ["t2m", "time", "lat"].iter().any(|name| words.contains(name)) {
        all.push("era5");
    }
    all.join(", ")
}

#[test]
fn examples_of_functions_run() {
    let mut reader = Reader::new(&OF_FUNCTIONS);
    let rows = tessera_frontend::functions();
    for row in rows {
        let other = OTHERS.iter().find(|(name, _)| *name == row.name).map(|(_, setup)| *setup);
        let setup = match row.dtypes.starts_with("integers") {
            true => Some(INTEGERS),
            false => other,
        };
        if let Some(setup) = setup {
            reader.place.run(setup);
        }
        reader.run(&format!("SHOW FUNCTIONS, {}", row.name), &row.example);
        if setup.is_some() {
            let again = SETUP.iter().filter(|sql| sql.starts_with("CREATE TEMP"));
            again.for_each(|sql| {
                drop(reader.place.run(&sql.replace("CREATE", "CREATE OR REPLACE")))
            });
        }
    }
    reader.end("SHOW FUNCTIONS", rows.len());
}
