//! Golden scripts in several worlds.
//!
//! Every script of `sql/` runs as it is, with tiny chunks, on one thread, with the cells of cell blocks as rows, and
//! with tiny chunks in so little memory that chunks wait on disk. Expected values come from NumPy, xarray and pandas;
//! floats agree within the tolerance that the script states. On the same grid the answers of two worlds are equal to
//! the letter, and as floats are written with the shortest digits that give them back, equal to the bit.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, TimeUnit};
use futures::StreamExt;
use sqllogictest::{DB, DBOutput, DefaultColumnType, Record, Runner};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tessera_planner::dtype::{Calendar, DType};
use tessera_server::answer::{Answer, Reply, Tensor};
use tessera_server::config::Config;
use tessera_server::engine::{CancelToken, Engine};
use tessera_server::session::{Host, Session};

/// One way to run all scripts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum World {
    /// Chunks of the sources, two threads.
    Source,
    /// Chunks of a few cells; a few hundred where the arrays are larger.
    Tiny,
    /// Chunks of the sources, one thread.
    OneThread,
    /// Nothing stays dense: the cells of cell blocks are rows.
    Rows,
    /// Tiny chunks in so little memory that they are spilled.
    Spilling,
}

/// Scripts that ask for operands of some megabytes, whatever the chunks: chunks of 8 MB, whole matrices.
const WIDE: [&str; 2] = ["dialect/q01.slt", "queries/linalg_solve.slt"];

/// A script's answers, and how many operands ran for them.
struct Run {
    answers: Vec<String>,
    failures: Vec<String>,
    operands: u64,
    /// Bytes that were spilled.
    spilled: u64,
}

#[derive(Debug)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

struct Db {
    session: Session,
    runtime: Arc<tokio::runtime::Runtime>,
    answers: Arc<Mutex<Vec<String>>>,
    prologue: Option<&'static str>,
}

impl DB for Db {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        if let Some(set) = self.prologue.take() {
            self.run(set)?;
        }
        let replies: Vec<_> = self
            .runtime
            .block_on(async { self.session.run(sql, CancelToken::new()).collect().await });
        let mut lines = Vec::new();
        for reply in replies {
            let reply =
                reply.and_then(Reply::whole).map_err(|e| Failed(format!("{}: {e}", e.code())))?;
            lines.extend(answer_lines(reply.answer));
        }
        self.answers.lock().unwrap().push(lines.join("\n"));
        if lines.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        let rows = lines.into_iter().map(|l| vec![l]).collect();
        Ok(DBOutput::Rows { types: vec![DefaultColumnType::Any], rows })
    }
}

pub(crate) fn answer_lines(answer: Answer) -> Vec<String> {
    match answer {
        Answer::Tensors(tensors) => tensors.iter().flat_map(tensor_lines).collect(),
        Answer::Rows { schema, batches, .. } => batches
            .iter()
            .flat_map(|b| {
                let fields = schema.fields();
                (0..b.num_rows()).map(move |row| {
                    let columns = b.columns().iter().zip(fields);
                    let cells: Vec<String> = columns.map(|(c, f)| cell(c, f, row)).collect();
                    cells.join(" ")
                })
            })
            .collect(),
        Answer::Text(text) => text.lines().map(String::from).collect(),
        Answer::Json(json) => vec![json.to_string()],
        Answer::Done(_) => vec![],
        Answer::Chunked(_) | Answer::Stored(_) => unreachable!("`whole` put them together"),
    }
}

fn tensor_lines(t: &Tensor) -> Vec<String> {
    let shape = t.shape();
    let dims: Vec<String> = t
        .dims()
        .iter()
        .zip(&shape)
        .enumerate()
        .map(|(i, (d, n))| match &d.name {
            Some(name) => format!("{name}={n}"),
            None => format!("dim_{i}={n}"),
        })
        .collect();
    let mut lines = vec![format!("{} {} [{}]", t.name(), t.dtype().name(), dims.join(", "))];
    let row = shape.last().copied().unwrap_or(1) as usize;
    if row == 0 {
        return lines;
    }
    let text = |i: usize| {
        if t.is_masked(i) { "NULL".into() } else { number(&t.scalar(i).to_string(), t.dtype()) }
    };
    for start in (0..t.len()).step_by(row) {
        lines.push((start..start + row).map(text).collect::<Vec<_>>().join(" "));
    }
    lines
}

/// Times drop the zeros at the end of their fraction; everything else is as it is.
fn number(text: &str, dtype: DType) -> String {
    if dtype.is_datetime() && text.contains('.') {
        return text.trim_end_matches('0').into();
    }
    text.into()
}

fn cell(column: &dyn Array, field: &Field, row: usize) -> String {
    use arrow::datatypes as t;
    if column.is_null(row) {
        return "NULL".into();
    }
    if let Some(calendar) = tessera_frontend::lift::calendar(field)
        && calendar != Calendar::Standard
    {
        let us = column.as_primitive::<t::Int64Type>().value(row);
        return number(
            &tessera_planner::time::format_micros(us, calendar),
            DType::Datetime(calendar),
        );
    }
    match column.data_type() {
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        DataType::Int8 => column.as_primitive::<t::Int8Type>().value(row).to_string(),
        DataType::Int16 => column.as_primitive::<t::Int16Type>().value(row).to_string(),
        DataType::Int32 => column.as_primitive::<t::Int32Type>().value(row).to_string(),
        DataType::Int64 => column.as_primitive::<t::Int64Type>().value(row).to_string(),
        DataType::UInt8 => column.as_primitive::<t::UInt8Type>().value(row).to_string(),
        DataType::UInt16 => column.as_primitive::<t::UInt16Type>().value(row).to_string(),
        DataType::UInt32 => column.as_primitive::<t::UInt32Type>().value(row).to_string(),
        DataType::UInt64 => column.as_primitive::<t::UInt64Type>().value(row).to_string(),
        DataType::Float32 => format!("{:?}", column.as_primitive::<t::Float32Type>().value(row)),
        DataType::Float64 => format!("{:?}", column.as_primitive::<t::Float64Type>().value(row)),
        DataType::Utf8 => column.as_string::<i32>().value(row).into(),
        DataType::Utf8View => column.as_string_view().value(row).into(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(row).into(),
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            let us = column.as_primitive::<t::TimestampMicrosecondType>().value(row);
            let text = tessera_planner::time::format_micros(us, Calendar::Standard);
            number(&text, DType::parse("datetime").unwrap())
        }
        other => format!("<{other}>"),
    }
}

thread_local! {
    /// The tolerance of the script that runs: validators are plain functions.
    static TOLERANCE: RefCell<Option<f64>> = const { RefCell::new(None) };
}

/// Compares an answer with the expected lines: words that are finite floats within the tolerance, all others to the
/// letter.
fn agrees(_: sqllogictest::Normalizer, actual: &[Vec<String>], expected: &[String]) -> bool {
    TOLERANCE.with(|t| same(*t.borrow(), actual, expected))
}

pub(crate) fn same(tolerance: Option<f64>, actual: &[Vec<String>], expected: &[String]) -> bool {
    let actual: Vec<String> = actual.iter().map(|r| r.join(" ")).collect();
    let words = |l: &String| l.split_whitespace().map(String::from).collect::<Vec<_>>();
    let (a, e): (Vec<_>, Vec<_>) =
        (actual.iter().map(words).collect(), expected.iter().map(words).collect());
    if a == e {
        return true;
    }
    let Some(tolerance) = tolerance else { return false };
    if a.len() != e.len() {
        return false;
    }
    // Magnitudes: of a tensor's lines together, of rows by column.
    let header = |l: &[String]| {
        l.len() >= 3 && l[2].starts_with('[') && l.last().is_some_and(|w| w.ends_with(']'))
    };
    let mut start = 0;
    while start < e.len() {
        let tensor = header(&e[start]);
        if tensor && a[start] != e[start] {
            return false;
        }
        let f32s = tensor && e[start][1] == "float32";
        let body = start + usize::from(tensor);
        let end = (body..e.len()).find(|&i| header(&e[i])).unwrap_or(e.len());
        let finite = |w: &String| w.parse::<f64>().ok().filter(|v| v.is_finite());
        let largest = |column: Option<usize>| {
            let cells = e[body..end].iter().flat_map(|l| l.iter().enumerate());
            cells
                .filter(|(c, _)| column.is_none_or(|k| k == *c))
                .filter_map(|(_, w)| finite(w))
                .fold(0.0, |m: f64, v| m.max(v.abs()))
        };
        for i in body..end {
            if a[i].len() != e[i].len() {
                return false;
            }
            for (c, (x, y)) in a[i].iter().zip(&e[i]).enumerate() {
                if x == y {
                    continue;
                }
                let (Some(p), Some(q)) = (finite(x), finite(y)) else { return false };
                // Integers and dates have no decimal point and agree to the letter.
                if !y.contains(['.', 'e']) {
                    return false;
                }
                let m = largest(if tensor { None } else { Some(c) });
                let t = if f32s { tolerance.max(1e-6) } else { tolerance };
                if (p - q).abs() > t * p.abs().max(q.abs()).max(m) {
                    return false;
                }
            }
        }
        start = end;
    }
    true
}

fn run(path: &Path, world: World) -> Run {
    let text = fs::read_to_string(path).unwrap();
    let tolerance = text
        .lines()
        .find_map(|l| l.strip_prefix("# tolerance "))
        .map(|t| t.trim().parse().unwrap());
    TOLERANCE.with(|t| *t.borrow_mut() = tolerance);
    let large = path.starts_with("sql/dialect") || path.starts_with("sql/geoscience");
    let warehouse = tempfile::tempdir().unwrap();
    let threads = if world == World::OneThread { "1" } else { "2" };
    let flags = [
        ("warehouse", warehouse.path().to_string_lossy().to_string()),
        ("threads", threads.to_string()),
        ("memory-limit", "1GiB".to_string()),
    ];
    let mut config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
    if world == World::Spilling {
        // Less than the command line allows.
        config.memory_limit_bytes =
            if WIDE.iter().any(|w| path.ends_with(w)) { 16 << 20 } else { 1 << 20 };
    }
    let runtime = Arc::new(tokio::runtime::Runtime::new().unwrap());
    let host = Host::open(config, runtime.handle().clone()).unwrap();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let before = host.runtime().operands();
    let failures = {
        let mut runner = Runner::new(|| {
            let db = Db {
                session: Session::of(host.clone()),
                runtime: runtime.clone(),
                answers: answers.clone(),
                prologue: match world {
                    World::Tiny if large => Some("SET tessera.chunk_bytes_target = '16KiB'"),
                    World::Tiny => Some("SET tessera.chunk_bytes_target = '32'"),
                    // Each chunk is an operand of its own: the same bits as where small ones go together.
                    World::Spilling if large => Some(
                        "SET tessera.batch_cells = 0; SET tessera.chunk_bytes_target = '16KiB'",
                    ),
                    World::Spilling => {
                        Some("SET tessera.batch_cells = 0; SET tessera.chunk_bytes_target = '32'")
                    }
                    World::Rows => Some("SET tessera.lift = 'off'"),
                    World::Source | World::OneThread => None,
                },
            };
            async move { Ok::<_, Failed>(db) }
        });
        runner.with_validator(agrees);
        let records: Vec<Record<DefaultColumnType>> = sqllogictest::parse_file(path).unwrap();
        records.into_iter().filter_map(|r| runner.run(r).err().map(|e| e.to_string())).collect()
    };
    let operands = host.runtime().operands() - before;
    let answers = std::mem::take(&mut *answers.lock().unwrap());
    let spilled = host.runtime().store().figures().spilled_bytes;
    Run { answers, failures, operands, spilled }
}

fn scripts(folder: &str) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(Path::new("sql").join(folder))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "slt"))
        .collect();
    all.sort();
    if let Ok(only) = std::env::var("SLT") {
        all.retain(|p| p.to_string_lossy().contains(&only));
    }
    all
}

/// Answers that say how a plan looks differ between worlds.
fn comparable(answers: &[String]) -> Vec<&String> {
    answers.iter().filter(|a| !a.starts_with("surface:") && !a.starts_with('{')).collect()
}

fn worlds(folder: &str) {
    let (mut failures, mut source, mut tiny, mut spilled) = (vec![], 0, 0, 0);
    for path in scripts(folder) {
        let all = [World::Source, World::Tiny, World::OneThread, World::Rows, World::Spilling];
        let runs = all.map(|w| (w, run(&path, w)));
        for (world, run) in &runs {
            failures.extend(
                run.failures.iter().map(|f| format!("{} in {world:?}: {f}", path.display())),
            );
        }
        let mut same = |a: usize, b: usize| {
            let ((one, first), (other, last)) = (&runs[a], &runs[b]);
            if comparable(&first.answers) != comparable(&last.answers) {
                failures.push(format!("{}: other bits in {one:?} and {other:?}", path.display()));
            }
        };
        same(0, 2);
        same(1, 4);
        source += runs[0].1.operands;
        tiny += runs[1].1.operands;
        spilled += runs[4].1.spilled;
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
    // Each world is what it says: tiny chunks are more operands.
    if std::env::var("SLT").is_err() && source > 200 {
        assert!(tiny > source * 2, "tiny chunks ran {tiny} operands, the sources' {source}");
    }
    // Arrays of these folders are larger than the memory.
    if std::env::var("SLT").is_err() && ["dialect", "geoscience", "queries"].contains(&folder) {
        assert!(spilled > 100_000, "{spilled} bytes were spilled");
    }
}

#[test]
fn queries() {
    worlds("queries");
}

#[test]
fn dialect() {
    worlds("dialect");
}

#[test]
fn geoscience() {
    worlds("geoscience");
}

#[test]
fn cells() {
    worlds("cells");
}

#[test]
fn formats() {
    worlds("formats");
}

#[test]
fn islands() {
    worlds("islands");
}

#[test]
fn errors() {
    worlds("errors");
}
