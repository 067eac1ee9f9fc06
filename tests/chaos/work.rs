//! Random statements of chaos runs, and the answers of one process to them.

use crate::cluster::STATEMENTS;
use crate::common::{Random, binary, contents};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

/// Statements with many chunks of cells, which go into tensors and outputs.
const CELLS: [&str; 3] = [
    "SELECT random_normal([900, 300], seed => 11, chunks => [100, 100]) AS x",
    "SELECT x + transpose(x) AS x FROM (SELECT random_normal([400, 400], seed => 12, chunks => [100, 50]) AS x) t",
    "SELECT (x - mean(x, 0)) / std(x, 0) AS x FROM (SELECT random_normal([600, 300], seed => 13, chunks => [50, 100]) AS x) t",
];

/// A number of each of the first columns, which all cells of these columns go into.
fn read(from: &str) -> String {
    format!("SELECT sum(x, 0)[0:5] AS s FROM {from}")
}

/// The result of a statement, besides its answer.
pub(crate) enum Left {
    Nothing,
    /// A tensor of the catalog, and the query that made it.
    Tensor(String, &'static str),
    /// An output of that name, the query that made it, and its format.
    Output(String, &'static str, &'static str),
}

/// A statement of a run.
pub(crate) struct Work {
    pub(crate) sql: String,
    /// Documents of its answer that one process answers too; the others say what was done.
    answer: Vec<String>,
    pub(crate) left: Left,
}

impl Work {
    /// Draws a statement. Its tensors and outputs have its number in their names; `output` says where an output of a name
    /// is.
    pub(crate) fn draw(
        random: &mut Random,
        number: u64,
        long: &[&'static str],
        output: impl Fn(&str) -> String,
    ) -> Work {
        let cells = pick(random, &CELLS);
        let name = format!("t{number}");
        let (sql, answer, left) = match random.next() % 10 {
            kind @ 0..=3 => {
                let all = if kind < 2 && !long.is_empty() { long } else { &STATEMENTS };
                let sql = pick(random, all);
                (sql.to_string(), answer(sql), Left::Nothing)
            }
            4..=6 => {
                let sql = format!("CREATE TENSOR {name} AS {cells}");
                (sql, Vec::new(), Left::Tensor(name, cells))
            }
            7 => {
                let read = read(&name);
                let sql = format!("CREATE TENSOR {name} AS {cells}; {read}; DROP TENSOR {name}");
                (sql, sum_of(cells), Left::Nothing)
            }
            _ => {
                let format = pick(random, &["ZARR", "NPY"]);
                let name = format!("{name}.{}", format.to_lowercase());
                let sql = format!("COPY ({cells}) TO '{}' STORED AS {format}", output(&name));
                (sql, Vec::new(), Left::Output(name, cells, format))
            }
        };
        let durability = pick(random, &["auto", "all", "none"]);
        let settings = format!(
            "SET tessera.spread = 'all'; SET tessera.reuse = 'none'; \
             SET tessera.durability = '{durability}'"
        );
        Work { sql: format!("{settings}; {sql}"), answer, left }
    }

    /// Fails unless a result equals the answer of one process.
    pub(crate) fn is_right(&self, result: &str) {
        let rows: Vec<&str> = result.lines().filter(|l| !l.starts_with("{\"ok\":")).collect();
        assert_eq!(rows, self.answer, "{}: {result}", self.sql);
    }

    /// The statement that reads its tensor, with the answer.
    pub(crate) fn reads(&self) -> Option<(String, Vec<String>)> {
        match &self.left {
            Left::Tensor(name, cells) => Some((read(name), sum_of(cells))),
            _ => None,
        }
    }

    /// The name of its output.
    pub(crate) fn output(&self) -> Option<&str> {
        match &self.left {
            Left::Output(name, ..) => Some(name),
            _ => None,
        }
    }

    /// Fails unless its output below a directory has the bytes of the output of one process.
    pub(crate) fn output_is_right(&self, directory: &Path) {
        if let Left::Output(name, cells, format) = &self.left {
            let (got, want) = (contents(&directory.join(name)), copied(cells, format));
            let names = |of: &BTreeMap<PathBuf, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&got), names(&want), "{name}");
            for (file, bytes) in &want {
                assert!(got[file] == *bytes, "{name}: {} has other bytes", file.display());
            }
        }
    }
}

fn pick(random: &mut Random, all: &[&'static str]) -> &'static str {
    all[(random.next() % all.len() as u64) as usize]
}

/// The answer of one process; each statement runs once.
fn answer(sql: &str) -> Vec<String> {
    static KNOWN: OnceLock<Mutex<BTreeMap<String, Vec<String>>>> = OnceLock::new();
    let known = KNOWN.get_or_init(Mutex::default);
    if let Some(answer) = known.lock().unwrap().get(sql) {
        return answer.clone();
    }
    let directory = tempfile::tempdir().unwrap();
    let answer: Vec<String> = one_process(directory.path(), sql)
        .lines()
        .filter(|l| !l.starts_with("{\"ok\":"))
        .map(String::from)
        .collect();
    known.lock().unwrap().insert(sql.into(), answer.clone());
    answer
}

fn sum_of(cells: &str) -> Vec<String> {
    answer(&format!("CREATE TENSOR made AS {cells}; {}", read("made")))
}

/// The files that one process copies.
fn copied(cells: &str, format: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    // A file of one array is called as the file only where it is read.
    let to = directory.path().join(format!("out.{}", format.to_lowercase()));
    let sql = format!("COPY ({cells}) TO '{}' STORED AS {format}", to.display());
    one_process(directory.path(), &sql);
    contents(&to)
}

fn one_process(directory: &Path, sql: &str) -> String {
    let out = Command::new(binary())
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .arg("--warehouse")
        .arg(directory.join("warehouse"))
        .arg("--spill-dir")
        .arg(directory)
        .args(["query", "--format", "json", sql])
        .output()
        .unwrap();
    assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The last lines of the logs in a directory.
pub(crate) fn logs(directory: &Path) -> String {
    let mut all: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "log"))
        .collect();
    all.sort();
    let mut out = String::new();
    for file in all {
        let text = std::fs::read(&file).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let _ = writeln!(out, "--- {}", file.file_name().unwrap_or_default().to_string_lossy());
        for line in &lines[lines.len().saturating_sub(60)..] {
            let _ = writeln!(out, "{line}");
        }
    }
    out
}
