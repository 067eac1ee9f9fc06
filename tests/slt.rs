//! Golden scripts in several worlds.
//!
//! Every script of `sql/` runs as it is, with tiny chunks, on one thread, with the cells of cell blocks as rows, with
//! tiny chunks in so little memory that chunks wait on disk, and with tiny chunks on three workers of a cluster. With
//! `TESSERA_SLT_ALL`, scripts also run on one, two and five workers, on eight threads, in little memory, with rows in
//! small splits on one and eight threads, with the chunks that a first run stored in a directory, and with chunks
//! stored in a bucket that fails one request in ten. Expected values come from NumPy, xarray and pandas; floats agree
//! within the tolerance that the script states. On the same grid the answers of two worlds are equal texts. Floats are
//! written with the shortest digits that identify them, so equal texts mean equal bits.

mod world;

pub(crate) use world::copy;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, TimeUnit};
use futures::StreamExt;
use sqllogictest::{DB, DBOutput, DefaultColumnType};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tessera_engine::answer::{Answer, Reply, Tensor};
use tessera_engine::error::Error;
use tessera_engine::session::Session;
use tessera_engine::{Engine, Handle};
use tessera_planner::dtype::{Calendar, DType};
use world::{Run, World};

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
    prologue: Option<String>,
    /// True if scripts run a second time with the chunks that the first run stored; its answers count.
    runs_twice: bool,
    /// Operands whose chunks the second runs found.
    reused: Arc<Mutex<u64>>,
}

impl Db {
    fn replies(&self, session: &Session, sql: &str, handle: Handle) -> Vec<Result<Reply, Error>> {
        self.runtime.block_on(session.run(sql, handle).collect())
    }

    /// Runs a statement, and once more in a session of its own if it changes nothing.
    fn twice(&self, sql: &str) -> Vec<Result<Reply, Error>> {
        let host = self.session.host();
        let handle = Handle::lasting(host);
        let replies = self.replies(&self.session, sql, handle.clone());
        let answers = |r: &Result<Reply, Error>| {
            r.as_ref().is_ok_and(|r| !matches!(r.answer, Answer::Done(_)))
        };
        if !replies.iter().all(answers) {
            self.runtime.block_on(handle.remove_chunks());
            return replies;
        }
        drop(replies);
        let handle = self.runtime.block_on(handle.once_more(host));
        let replies = self.replies(&Session::of(host.clone()), sql, handle.clone());
        *self.reused.lock().unwrap() += handle.did().map_or(0, |did| did.reused);
        self.runtime.block_on(handle.remove_chunks());
        replies
    }
}

impl DB for Db {
    type Error = Failed;
    type ColumnType = DefaultColumnType;

    fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failed> {
        if let Some(set) = self.prologue.take() {
            self.run(&set)?;
            // The answer belongs to the world's setup, not to the script.
            self.answers.lock().unwrap().pop();
        }
        let replies = match self.runs_twice {
            true => self.twice(sql),
            false => self.replies(&self.session, sql, Handle::new()),
        };
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
        Answer::Tensors(tensors) => {
            tensors.iter().enumerate().flat_map(|(at, t)| tensor_lines(at, t)).collect()
        }
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

/// In scripts, items that are named by their texts are called `v0`, `v1`, … by position.
fn script_name(at: usize, name: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || "_.".contains(c);
    let is_name = name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit());
    if is_name { name.to_string() } else { format!("v{at}") }
}

fn tensor_lines(at: usize, t: &Tensor) -> Vec<String> {
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
    let name = script_name(at, t.name());
    let mut lines = vec![format!("{name} {} [{}]", t.dtype().name(), dims.join(", "))];
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
    if let Some(calendar) = tessera_cells::lift::calendar(field)
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
        DataType::Decimal128(..) => column.as_primitive::<t::Decimal128Type>().value_as_string(row),
        DataType::Utf8 => column.as_string::<i32>().value(row).into(),
        DataType::Utf8View => column.as_string_view().value(row).into(),
        DataType::LargeUtf8 => column.as_string::<i64>().value(row).into(),
        DataType::Date32 => {
            let days = i64::from(column.as_primitive::<t::Date32Type>().value(row));
            time_text(days * 86_400_000_000)
        }
        DataType::Timestamp(unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond), _) => {
            let us = match unit {
                TimeUnit::Nanosecond => {
                    let ns = column.as_primitive::<t::TimestampNanosecondType>().value(row);
                    assert_eq!(ns % 1000, 0, "{ns} ns are no microseconds");
                    ns / 1000
                }
                _ => column.as_primitive::<t::TimestampMicrosecondType>().value(row),
            };
            time_text(us)
        }
        DataType::List(of) => {
            let elements = column.as_list::<i32>().value(row);
            let text = |i| if elements.is_null(i) { "".into() } else { cell(&elements, of, i) };
            format!("[{}]", (0..elements.len()).map(text).collect::<Vec<String>>().join(", "))
        }
        other => format!("<{other}>"),
    }
}

fn time_text(us: i64) -> String {
    let text = tessera_planner::time::format_micros(us, Calendar::Standard);
    number(&text, DType::parse("datetime").unwrap())
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
    let s3 = world::bucket();
    let mut failures = vec![];
    let mut all: Vec<Run> = vec![];
    for path in scripts(folder) {
        let runs: Vec<Run> =
            World::all().into_iter().map(|w| world::run(&path, w, s3.as_ref())).collect();
        for run in &runs {
            let (world, shown) = (run.world, path.display());
            failures.extend(run.failures.iter().map(|f| format!("{shown} in {world:?}: {f}")));
            let twin = world.twin().and_then(|twin| runs.iter().find(|r| r.world == twin));
            if twin.is_some_and(|t| comparable(&run.answers) != comparable(&t.answers)) {
                failures.push(format!("{shown}: {world:?} has other bits than its twin"));
            }
        }
        all.extend(runs);
    }
    for world in World::EACH.iter().chain(&World::SOME) {
        let runs: Vec<&Run> = all.iter().filter(|r| r.world == *world).collect();
        let of = |f: fn(&Run) -> u64| runs.iter().map(|r| f(r)).sum::<u64>();
        println!(
            "slt: {folder}, {world:?}: {} scripts, {} operands, {} of them on workers, {} bytes spilled, {} operands found; {:.1} s",
            runs.len(),
            of(|r| r.operands),
            of(|r| r.on_workers),
            of(|r| r.spilled),
            of(|r| r.reused),
            runs.iter().map(|r| r.seconds).sum::<f64>(),
        );
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
    if std::env::var("SLT").is_ok() {
        return;
    }
    // Each world has its effect: tiny chunks are more operands. Arrays of `stores` have a handful of cells.
    let sum = |world: World, of: fn(&Run) -> u64| -> u64 {
        all.iter().filter(|r| r.world == world).map(of).sum()
    };
    let (source, tiny) = (sum(World::Source, |r| r.operands), sum(World::Tiny, |r| r.operands));
    if source > 200 && folder != "stores" {
        assert!(tiny > source * 2, "tiny chunks ran {tiny} operands, the sources' {source}");
    }
    // Most plans that can run on workers do, also those below cell queries.
    if ["cells", "dialect", "geoscience", "queries"].contains(&folder) {
        let world = World::Cluster(3);
        let (all, there) = (sum(world, |r| r.operands), sum(world, |r| r.on_workers));
        assert!(there * 2 > all, "workers ran {there} of {all} operands");
    }
    // Arrays of these folders are larger than the memory.
    if ["dialect", "geoscience", "queries"].contains(&folder) {
        let spilled = sum(World::Spilling, |r| r.spilled);
        assert!(spilled > 100_000, "{spilled} bytes were spilled");
    }
    if world::all_worlds() && (folder == "queries" || folder == "dialect") {
        for world in [World::Kept, World::Faults] {
            assert!(sum(world, |r| r.reused) > 0, "{world:?}: second runs found nothing");
        }
        assert!(s3.is_some_and(|s3| s3.faults() > 0));
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
fn coverage() {
    worlds("coverage");
}

#[test]
fn real() {
    worlds("real");
}

#[test]
fn stores() {
    worlds("stores");
}

#[test]
fn errors() {
    worlds("errors");
}

#[test]
fn names() {
    worlds("names");
}
