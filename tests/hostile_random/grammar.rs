//! Statements that no person would write: both surfaces of the dialect, with numbers, shapes and texts of any size.

use super::trial::Request;
use crate::common::Random;
use serde_json::{Value, json};

mod blow_ups;
mod cells;
mod spoilt;
mod tensors;

/// A function of `SHOW FUNCTIONS`.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    /// Its parameters, without defaults.
    pub(super) params: Vec<String>,
    /// A call that is right.
    pub(super) example: String,
}

impl Function {
    /// Of a row of `SHOW FUNCTIONS`: `arange(start, stop => NULL, …)`.
    pub(super) fn of(name: &str, signature: &str, example: &str) -> Function {
        let inner = signature.split_once('(').map_or("", |(_, rest)| rest);
        let params = inner.trim_end_matches(')').split(',').map(|p| {
            p.split("=>")
                .next()
                .unwrap_or_default()
                .trim()
                .trim_matches(['[', ']', '.'])
                .to_string()
        });
        let params = params.filter(|p| p.chars().all(|c| c.is_alphanumeric() || c == '_'));
        let params = params.filter(|p| !p.is_empty()).collect();
        Function { name: name.into(), params, example: example.into() }
    }
}

/// The words of statements that come from outside.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) functions: Vec<Function>,
    /// Statements that are right.
    pub(super) right: Vec<String>,
    /// A directory to write into.
    pub(super) out: String,
    /// How long lists and chains may be, in items.
    pub(super) long: u64,
    /// True if groups and sorts may hold tens of millions of rows. They are not stopped in time, and their memory is
    /// not all counted, so only a run that looks for this sets it.
    pub(super) heavy: bool,
}

/// Formats of answers.
const FORMATS: [&str; 12] = [
    "json", "json", "json", "json", "csv", "csv", "ndjson", "table", "arrow", "parquet", "npy",
    "npz",
];

/// Arrays of the fixtures, as `FROM` has them, with their variables and dimensions.
const STORES: [(&str, &[&str], &[&str]); 6] = [
    ("tests/data/cf/air.zarr", &["t2m", "precip", "rh", "orog", "flag"], &["time", "lat", "lon"]),
    ("tests/data/cf/noleap.zarr", &["v"], &["time", "x"]),
    ("tests/data/random/wx.zarr", &["t", "r", "n", "k", "b", "s", "o"], &["time", "lat", "lon"]),
    ("tests/data/random/gr.zarr", &["v", "w", "m", "h", "fs"], &["y", "x"]),
    ("tests/data/npy/f8.npy", &["f8"], &["dim_0", "dim_1"]),
    ("tests/data/zarr_zoo/v3.zarr", &["f4", "i2", "u8", "bool"], &["y", "x"]),
];

const TABLES: [&str; 5] = [
    "'tests/data/tables/regions.parquet'",
    "'tests/data/tables/stations.parquet'",
    "read_csv('tests/data/tables/regions.csv')",
    "'tests/data/tables/regions.ndjson'",
    "read_csv('tests/data/tables/belts.csv', header => false)",
];

const TYPES: [&str; 22] = [
    "int8",
    "int16",
    "int32",
    "bigint",
    "tinyint",
    "smallint",
    "int",
    "uint8",
    "uint64",
    "float16",
    "float32",
    "real",
    "double",
    "float64",
    "boolean",
    "text",
    "varchar",
    "date",
    "timestamp",
    "interval",
    "decimal(38, 10)",
    "complex128",
];

const TEXTS: [&str; 18] = [
    "''",
    "'x'",
    "'time'",
    "'mean'",
    "'2019-01-01'",
    "'2019-13-45'",
    "'-290000-01-01'",
    "'1 month'",
    "'nan'",
    "'%'",
    "'\u{1F600}\u{0301}'",
    "'a,b;c'",
    "'(((('",
    "'ij,jk->ik'",
    "'0x7fffffff'",
    "'9999999999999999999'",
    "'lat'",
    "'{\"a\": [1, 2'",
];

/// Names that earlier statements may have defined.
const NAMES: [&str; 8] = ["t0", "t1", "t2", "v0", "v1", "e0", "e1", "nobody"];

/// Makes the statement of a number.
pub(super) struct Grammar<'a> {
    random: Random,
    words: &'a Words,
    /// Columns or variables that expressions may name.
    names: Vec<String>,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(words: &'a Words, seed: u64, at: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(at));
        random.next();
        Grammar { random, words, names: Vec::new() }
    }

    /// The whole request, and the kind of the statement.
    pub(super) fn request(&mut self) -> (&'static str, Request) {
        let format = *self.pick(&FORMATS);
        let (kind, mut sql) = match self.draw(100) {
            0..25 => {
                let depth = 1 + self.draw(3);
                ("tensors", self.tensor_query(depth))
            }
            25..48 => {
                let depth = 1 + self.draw(3);
                ("cells", self.cell_query(depth))
            }
            48..62 => ("spoilt", self.spoilt()),
            62..78 => ("blow-up", self.blow_up()),
            78..86 => ("call", self.call_alone()),
            86..94 => return ("definition", Request::query(self.definition(), format)),
            94..97 => {
                let (sql, params) = self.with_params();
                return ("parameters", Request::statement(&sql, &params));
            }
            _ => return ("bytes", Request::query(self.bytes(), format)),
        };
        match self.draw(24) {
            0 => sql = format!("EXPLAIN {sql}"),
            1 => sql = format!("EXPLAIN ANALYZE {sql}"),
            2 => sql = format!("EXPLAIN (FORMAT json) {sql}"),
            3 => sql = format!("DESCRIBE {sql}"),
            4 => sql = format!("{}; {sql}", self.setting()),
            5 => sql = format!("CREATE OR REPLACE TENSOR {} AS {sql}", self.pick(&NAMES)),
            6 => {
                let t = self.pick(&NAMES);
                sql = format!("CREATE TEMP TENSOR {t} AS {sql}; SELECT * FROM {t}, {t} AS u");
            }
            _ => {}
        }
        (kind, Request::query(sql, format))
    }

    fn draw(&mut self, n: u64) -> u64 {
        self.random.next() % n
    }

    fn is_one_in(&mut self, n: u64) -> bool {
        self.draw(n) == 0
    }

    fn pick<'b, T>(&mut self, from: &'b [T]) -> &'b T {
        &from[self.draw(from.len() as u64) as usize]
    }

    /// A count of items: mostly a few, at times as many as there may be.
    fn long(&mut self) -> u64 {
        let most = self.words.long;
        match self.draw(4) {
            0 => 1 + self.draw(8),
            1 => 1 + self.draw(most.min(300)),
            _ => 1 + self.draw(most),
        }
    }

    /// A whole number that may be of any size.
    fn whole(&mut self) -> String {
        const ODD: [&str; 22] = [
            "-1",
            "-2",
            "4000000000",
            "1000000000",
            "2147483647",
            "2147483648",
            "-2147483649",
            "4294967296",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "99999999999999999999999999",
            "65536",
            "1000000",
            "100000000",
            "65535",
            "-1000000000000",
            "1099511627776",
            "1000",
            "10000",
            "300",
        ];
        match self.draw(6) {
            0 => (*self.pick(&ODD)).into(),
            _ => self.draw(12).to_string(),
        }
    }

    fn number(&mut self) -> String {
        const ODD: [&str; 12] = [
            "1e308",
            "-1e308",
            "1e400",
            "1e-400",
            "0.1",
            "-0.0",
            "nan()",
            "inf()",
            "-inf()",
            "NULL",
            "1.7976931348623157e308",
            "3.14159265358979323846264338327950288",
        ];
        match self.draw(8) {
            0 => (*self.pick(&ODD)).into(),
            1 => format!("{}.{}", self.draw(100), self.draw(1000)),
            _ => self.whole(),
        }
    }

    /// Lengths of axes.
    fn shape(&mut self) -> String {
        let rank = if self.is_one_in(20) { self.draw(70) } else { self.draw(4) };
        let axes: Vec<String> = (0..rank)
            .map(|_| if rank > 6 { (1 + self.draw(2)).to_string() } else { self.whole() })
            .collect();
        format!("[{}]", axes.join(", "))
    }

    fn text(&mut self) -> String {
        match self.draw(6) {
            0 => format!("'{}'", "x".repeat(self.long() as usize)),
            1 => format!("repeat({}, {})", self.pick(&TEXTS), self.whole()),
            _ => (*self.pick(&TEXTS)).into(),
        }
    }

    fn named(&mut self) -> String {
        match self.names.len() {
            0 => self.number(),
            n => {
                let at = self.draw(n as u64) as usize;
                self.names[at].clone()
            }
        }
    }

    fn setting(&mut self) -> String {
        let (name, value) = match self.draw(8) {
            0 => ("chunk_bytes_target", self.whole()),
            1 => ("batch_cells", self.whole()),
            2 => ("threads", self.whole()),
            3 => ("query_timeout", self.whole()),
            4 => {
                ("query_memory_limit", self.pick(&["'16MiB'", "16777216", "'0'", "-1"]).to_string())
            }
            5 => ("lift", "'off'".into()),
            6 => ("durability", "'all'".into()),
            _ => ("spread", "'all'".into()),
        };
        // A random time-out would cause time-outs that are no faults.
        match name {
            "query_timeout" => "SET tessera.query_timeout = 1".into(),
            _ => format!("SET tessera.{name} = {value}"),
        }
    }

    /// Makes, shows, writes and drops.
    fn definition(&mut self) -> String {
        let name = *self.pick(&NAMES);
        let out = self.words.out.clone();
        let number = self.draw(6);
        match self.draw(16) {
            0 => format!("CREATE OR REPLACE VIEW {name} AS {}", self.tensor_query(2)),
            1 => format!("CREATE OR REPLACE VIEW {name} AS {}", self.cell_query(2)),
            2 => {
                let other = self.pick(&NAMES);
                format!("CREATE OR REPLACE VIEW {name} AS SELECT * FROM {other} a, {other} b")
            }
            3 => format!("CREATE TENSOR IF NOT EXISTS {name} AS {}", self.tensor_query(2)),
            4 => {
                let at = self.pick(&STORES).0;
                let format = self.pick(&["ZARR", "NPY", "PARQUET", "CSV", "ARROW", "NDJSON"]);
                format!("CREATE EXTERNAL TABLE {name} STORED AS {format} LOCATION '{at}'")
            }
            5 => format!("DROP {} IF EXISTS {name}", self.pick(&["TENSOR", "VIEW", "TABLE"])),
            6 => format!("DESCRIBE {name}"),
            7 => format!("DESCRIBE '{}'", self.pick(&STORES).0),
            8 => {
                format!("SHOW {}", self.pick(&["TENSORS", "QUERIES", "WORKERS", "ALL", "NOTHING"]))
            }
            9 => format!("CANCEL QUERY '{}'", self.whole()),
            10 => format!(
                "SET {} = {}",
                self.pick(&["tessera.threads", "nothing", "tessera.x"]),
                self.text()
            ),
            11 => {
                let options = match self.draw(4) {
                    0 => format!("OPTIONS (codec 'zstd:{}')", self.whole()),
                    1 => format!("OPTIONS (shards '{}')", self.shape()),
                    2 => format!("OPTIONS (zarr_format {})", self.whole()),
                    _ => String::new(),
                };
                let query = self.tensor_query(2);
                format!("COPY ({query}) TO '{out}/{number}.zarr' STORED AS ZARR {options}")
            }
            12 => {
                let query = self.tensor_query(1);
                let format = self.pick(&["npy", "npz", "netcdf", "tiff", "safetensors"]);
                format!("COPY ({query}) TO '{out}/{number}.{format}' STORED AS {format}")
            }
            13 => {
                let query = self.cell_query(2);
                let format = self.pick(&["parquet", "csv", "ndjson", "arrow"]);
                format!("COPY ({query}) TO '{out}/{number}.{format}' STORED AS {format}")
            }
            14 => format!(
                "SELECT * FROM '{out}/{number}.{}'",
                self.pick(&["zarr", "npy", "csv", "parquet"])
            ),
            _ => format!(
                "COPY (SELECT 1) TO '{}' STORED AS CSV",
                self.pick(&["/etc/x", "../x.csv", "s3://b/x"])
            ),
        }
    }

    /// A statement with `?` or `$name` and values that may not fit.
    fn with_params(&mut self) -> (String, Value) {
        let value = |g: &mut Self| match g.draw(9) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(g.draw(10)),
            3 => json!(4_000_000_000_u64),
            4 => json!(-1e308),
            5 => json!(i64::MIN),
            6 => json!("x".repeat(g.long() as usize)),
            7 => json!([1, [2]]),
            _ => json!("'; DROP TABLE t0; --"),
        };
        let sql = *self.pick(&[
            "SELECT sum(arange(?))",
            "SELECT zeros([?, ?])",
            "SELECT repeat(?, ?) FROM (VALUES (1)) v(a)",
            "SELECT x FROM CELLS(arange(10)) AS t(i, x) WHERE i = ? OR x > ?",
            "SELECT arange(10)[?:?]",
            "SELECT * FROM ?",
            "SELECT $1 || $2 || $1 FROM (VALUES (1)) v(a)",
            "SELECT t2m[lat => ?, time => ?] FROM 'tests/data/cf/air.zarr'",
        ]);
        let n = self.draw(4);
        let list = (0..n).map(|_| value(self)).collect::<Vec<_>>();
        (sql.into(), list.into())
    }
}
