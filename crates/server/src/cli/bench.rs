//! `tessera bench`: runs the same statements repeatedly, in one session.

use super::interrupt::{ctrl_c, until_cancelled};
use super::output::quoted;
use super::query::{ScriptArgs, read_script};
use super::{fail, memory};
use clap::Args;
use std::fs::File;
use std::io::{BufRead, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tessera_engine::answer::{Answer, Reply, Tensor};
use tessera_engine::config::format_bytes;
use tessera_engine::error::Error;
use tessera_engine::format::npy;
use tessera_engine::{Engine, Handle};

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    script: ScriptArgs,
    /// Number of measured runs, after the warm-up
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    n: u32,
    /// File of statements to run first, not measured
    #[arg(long, value_name = "FILE")]
    setup: Option<PathBuf>,
    /// Statement to run last, not measured; `--keep` saves its result
    #[arg(long, value_name = "SQL")]
    check: Option<String>,
    /// Directory where each tensor (or column) of the last result is saved as NAME.npy
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Read a number of runs from each line of stdin, measure that many, and print one line of results, until stdin ends
    ///
    /// The first line is printed after the warm-up, so that another program can be measured in turns.
    #[arg(long, conflicts_with = "n")]
    turns: bool,
}

/// A valid command line.
pub(super) struct Bench<'a> {
    args: &'a BenchArgs,
    sql: String,
    setup: Option<String>,
}

impl BenchArgs {
    pub(super) fn check(&self) -> Result<Bench<'_>, Error> {
        Ok(Bench {
            args: self,
            setup: self.setup.as_deref().map(read_script).transpose()?,
            sql: self.script.read()?,
        })
    }
}

#[derive(Debug, serde::Serialize)]
struct Figures {
    times: Vec<f64>,
    median: f64,
    min: f64,
    rss_peak_bytes: u64,
    bytes_read: u64,
    plan_s: f64,
    /// Memory of the largest operand in the statement's plans; `None` for scripts of several statements.
    operand_bytes: Option<u64>,
}

impl Bench<'_> {
    /// Runs the benchmark and returns the exit status.
    pub(super) async fn run(&self, engine: &dyn Engine) -> u8 {
        let cancel = ctrl_c();
        // The failed text, for the error message.
        let mut shown = "";
        match self.steps(engine, &cancel, &mut shown).await {
            Ok(()) => 0,
            Err(e) => fail(&e, shown),
        }
    }

    async fn steps<'a>(
        &'a self,
        engine: &dyn Engine,
        cancel: &Handle,
        shown: &mut &'a str,
    ) -> Result<(), Error> {
        if let Some(setup) = &self.setup {
            *shown = setup;
            answers(engine, setup, cancel).await?;
        }
        *shown = &self.sql;
        if answers(engine, &self.sql, cancel).await?.is_empty() {
            return Err(Error::Usage { reason: "no statement given".into(), hint: None });
        }
        let operand_bytes = largest_operand(engine, &self.sql, cancel).await;
        let mut last = Vec::new();
        if self.args.turns {
            self.ready()?;
            while let Some(n) = next_turn().await? {
                let figures = self.measure(engine, cancel, n, &mut last).await?;
                self.print(&Figures { operand_bytes, ..figures })?;
            }
        } else {
            let figures = self.measure(engine, cancel, self.args.n, &mut last).await?;
            self.print(&Figures { operand_bytes, ..figures })?;
        }
        if let Some(check) = &self.args.check {
            *shown = check;
            last = answers(engine, check, cancel).await?;
        }
        if let Some(dir) = &self.args.keep {
            keep(last, dir)?;
        }
        Ok(())
    }

    /// Runs the statements `n` times; `last` gets the replies of the last run.
    async fn measure(
        &self,
        engine: &dyn Engine,
        cancel: &Handle,
        n: u32,
        last: &mut Vec<Reply>,
    ) -> Result<Figures, Error> {
        let mut times = Vec::new();
        for _ in 0..n {
            // The last result is dropped first: it must not count into the memory of the next run.
            last.clear();
            let start = Instant::now();
            *last = answers(engine, &self.sql, cancel).await?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(Figures {
            median: median(&times),
            min: times.iter().copied().fold(f64::INFINITY, f64::min),
            times,
            rss_peak_bytes: memory::peak_resident_bytes()?,
            bytes_read: last.iter().map(|r| r.stats.bytes_read).sum(),
            plan_s: last.iter().map(|r| r.stats.plan_s).sum(),
            operand_bytes: None,
        })
    }

    fn ready(&self) -> Result<(), Error> {
        writeln!(std::io::stdout().lock(), "ready").map_err(|e| Error::io("write", "the output", e))
    }

    fn print(&self, f: &Figures) -> Result<(), Error> {
        let text = if self.args.json {
            serde_json::to_string(f)
                .map_err(|e| Error::Internal { what: format!("figures are not JSON: {e}") })?
        } else {
            let operand = f.operand_bytes.map(|b| format!(", largest operand {}", format_bytes(b)));
            format!(
                "{} runs: median {:.6} s, min {:.6} s; planning {:.6} s; {} read; peak memory {}{}",
                f.times.len(),
                f.median,
                f.min,
                f.plan_s,
                format_bytes(f.bytes_read),
                format_bytes(f.rss_peak_bytes),
                operand.unwrap_or_default()
            )
        };
        writeln!(std::io::stdout().lock(), "{text}")
            .map_err(|e| Error::io("write", "the output", e))
    }
}

async fn answers(engine: &dyn Engine, sql: &str, cancel: &Handle) -> Result<Vec<Reply>, Error> {
    let mut stream = engine.run(sql, cancel.another());
    let mut replies = Vec::new();
    while let Some(reply) = until_cancelled(&mut stream, cancel).await {
        replies.push(reply?);
    }
    Ok(replies)
}

/// Memory of the largest operand of a statement, from EXPLAIN; `None` for scripts of several statements, and without a
/// plan.
async fn largest_operand(engine: &dyn Engine, sql: &str, cancel: &Handle) -> Option<u64> {
    let [one] = &tessera_frontend::parse(sql).ok()?[..] else { return None };
    let explain = format!("EXPLAIN (FORMAT json) {}", one.text);
    let replies = answers(engine, &explain, cancel).await.ok()?;
    let plans = replies.iter().map(|r| match &r.answer {
        Answer::Json(json) => operand_bytes(json),
        _ => None,
    });
    plans.flatten().max()
}

/// The maximum `operand_bytes_max` in a document: cell blocks and islands have plans of their own.
fn operand_bytes(json: &serde_json::Value) -> Option<u64> {
    match json {
        serde_json::Value::Object(fields) => {
            let here = fields.get("operand_bytes_max").and_then(serde_json::Value::as_u64);
            fields.values().filter_map(operand_bytes).chain(here).max()
        }
        serde_json::Value::Array(items) => items.iter().filter_map(operand_bytes).max(),
        _ => None,
    }
}

/// The number of runs on the next line of the input; `None` at its end.
async fn next_turn() -> Result<Option<u32>, Error> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = line
        .await
        .map_err(|e| Error::Internal { what: format!("the reader of the input ended: {e}") })?
        .map_err(|e| Error::io("read", "the input", e))?;
    turn(&line)
}

/// A number of runs from 1 to 1,000,000; `None` for the empty text that ends the input.
fn turn(line: &str) -> Result<Option<u32>, Error> {
    if line.is_empty() {
        return Ok(None);
    }
    match line.trim().parse() {
        Ok(n @ 1..=1_000_000) => Ok(Some(n)),
        _ => Err(Error::Usage {
            reason: format!("`{}` is not a number of runs from 1 to 1000000", line.trim()),
            hint: None,
        }),
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (lo, hi) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    (sorted[lo] + sorted[hi]) / 2.0
}

/// Saves the tensors, or the columns, of the last statement that returned any.
fn keep(replies: Vec<Reply>, dir: &Path) -> Result<(), Error> {
    let columns;
    let has = |r: &Reply| r.answer.tensors().is_some() || r.answer.rows().is_some();
    let last = replies.into_iter().rev().find(has).map(Reply::whole).transpose()?;
    let tensors = match last.as_ref().map(|r| &r.answer) {
        Some(Answer::Tensors(t)) => t,
        Some(Answer::Rows { schema, batches, .. }) => {
            columns = Tensor::from_rows(schema, batches)?;
            &columns
        }
        _ => {
            return Err(Error::Format {
                format: "npy",
                reason: "the last result has neither tensors nor rows".into(),
                hint: Some("name a statement that has some with `--check`".into()),
            });
        }
    };
    let names = file_names(tensors.iter().map(Tensor::name))?;
    std::fs::create_dir_all(dir).map_err(|e| Error::io("create", quoted(dir), e))?;
    tensors.iter().zip(&names).try_for_each(|(t, name)| save(t, &dir.join(name)))
}

/// A unique file for each name.
///
/// # Errors
/// Two names have the same file: one would be lost.
fn file_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<Vec<String>, Error> {
    let mut files: Vec<String> = Vec::new();
    for name in names {
        let file = file_name(name);
        if files.contains(&file) {
            return Err(Error::Format {
                format: "npy",
                reason: format!("two results would be saved as `{file}`"),
                hint: Some("give each a name of its own with AS".into()),
            });
        }
        files.push(file);
    }
    Ok(files)
}

/// `NAME.npy`; characters that would leave the directory become `_`.
fn file_name(name: &str) -> String {
    let safe: String = name
        .chars()
        .map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c })
        .collect();
    format!("{safe}.npy")
}

fn save(t: &Tensor, path: &Path) -> Result<(), Error> {
    let failed = |e| Error::io("write", quoted(path), e);
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    npy::write(t, &mut out)?;
    out.into_inner().map_err(|e| failed(e.into_error())).map(|_| ())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Answers `make N` with the tensor `x = [N, …]` and counts its runs.
    struct Fake(std::sync::Mutex<Vec<String>>);

    impl Engine for Fake {
        fn run<'a>(&'a self, sql: &'a str, _: Handle) -> tessera_engine::Replies<'a> {
            let runs = {
                let mut asked = self.0.lock().unwrap();
                asked.push(sql.to_string());
                asked.len() as f64
            };
            let t = Tensor::new(
                "x",
                tessera_planner::dtype::DType::Float64,
                vec![],
                tessera_planner::grid::Grid::single(&[]),
                arrow::buffer::Buffer::from_vec(vec![runs]),
                None,
                Default::default(),
            );
            let stats = tessera_engine::answer::Stats { plan_s: 0.5, total_s: 1.0, bytes_read: 7 };
            let reply = Reply { stats, ..Answer::Tensors(vec![t.unwrap()]).into() };
            Box::pin(futures::stream::iter([Ok(reply)]))
        }
    }

    #[tokio::test]
    async fn a_warm_up_runs_first_and_the_check_last() {
        let dir = tempfile::tempdir().unwrap();
        let setup = dir.path().join("setup.sql");
        std::fs::write(&setup, "make it").unwrap();
        let keep = dir.path().join("kept");
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: BenchArgs,
        }
        let words = ["bench", "run", "-n", "2", "--check", "look", "--setup"];
        let words = words.iter().map(std::ffi::OsString::from);
        let line = <Line as clap::Parser>::parse_from(words.chain([
            setup.into_os_string(),
            "--keep".into(),
            keep.clone().into_os_string(),
        ]));
        let fake = Fake(std::sync::Mutex::default());
        assert_eq!(line.args.check().unwrap().run(&fake).await, 0);
        assert_eq!(fake.0.into_inner().unwrap(), ["make it", "run", "run", "run", "look"]);
        let bytes = std::fs::read(keep.join("x.npy")).unwrap();
        assert_eq!(bytes[128..], 5.0f64.to_le_bytes());
    }

    #[test]
    fn turns() {
        assert_eq!(turn("3\n").unwrap(), Some(3));
        assert_eq!(turn("").unwrap(), None);
        for bad in ["\n", "0", "-1", "1000001", "x"] {
            assert!(turn(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_largest_operand_is_that_of_all_plans() {
        let plan =
            |bytes: u64| serde_json::json!({"stages": [], "cost": {"operand_bytes_max": bytes}});
        assert_eq!(operand_bytes(&plan(7)), Some(7));
        let islands = serde_json::json!({"islands": [plan(3), {"plan": plan(9)}], "rest": "rows"});
        assert_eq!(operand_bytes(&islands), Some(9));
        assert_eq!(operand_bytes(&serde_json::json!({"rows": 1})), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
    }

    #[test]
    fn names_stay_in_the_directory() {
        assert_eq!(file_name("../a/b"), ".._a_b.npy");
        assert_eq!(file_name("mean(x)"), "mean(x).npy");
        assert_eq!(file_names(["a", "b"].into_iter()).unwrap(), ["a.npy", "b.npy"]);
        let e = file_names(["a/b", "x", "a_b"].into_iter()).unwrap_err();
        assert!(e.to_string().contains("`a_b.npy`") && e.hint().is_some(), "{e}");
    }

    #[test]
    fn a_missing_script_is_an_error_of_the_command_line() {
        let e = super::super::query::read_script(Path::new("no/such.sql")).unwrap_err();
        assert_eq!((e.exit_status(), e.code()), (2, "usage"));
        assert!(e.to_string().starts_with("cannot read `no/such.sql`: "), "{e}");
    }
}
