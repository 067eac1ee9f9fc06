#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::input::Piped;
use crate::screen::Screen;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use std::sync::{Arc, Mutex};
use tessera_engine::answer::{Answer, RowsHeld};
use tessera_engine::{Handle, Replies};

/// Records the statements it gets; `wait` hangs until it is cancelled.
struct Fake {
    asked: Mutex<Vec<String>>,
    interrupt: Interrupt,
}

impl Engine for Fake {
    fn run<'a>(&'a self, sql: &'a str, cancel: Handle) -> Replies<'a> {
        self.asked.lock().unwrap().push(sql.trim().to_string());
        let statements = sql.split(';').map(str::trim).filter(|s| !s.is_empty());
        futures::stream::iter(statements)
            .then(move |s| {
                let cancel = cancel.clone();
                async move {
                    match s {
                        "SHOW FUNCTIONS" => Ok(functions().into()),
                        "wait" => {
                            // The signal arrives while the query runs.
                            assert!(self.interrupt.fire());
                            cancel.cancelled().await;
                            Err(Error::Cancelled)
                        }
                        "bad" => Err(Error::NotFound { path: "x".into() }),
                        other => Ok(Answer::Done(format!("did {other}")).into()),
                    }
                }
            })
            .boxed()
    }
}

fn functions() -> Answer {
    let names: ArrayRef = Arc::new(StringArray::from(vec!["mean", "sum"]));
    let help: ArrayRef = Arc::new(StringArray::from(vec!["mean(x)", "sum(x)"]));
    let docs: ArrayRef = Arc::new(StringArray::from(vec!["The mean.", "The sum."]));
    let columns = [("name", names), ("signature", help), ("description", docs)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    Answer::Rows { schema: batch.schema(), batches: vec![batch], held: RowsHeld::default() }
}

/// Output, errors, statements sent to the engine, and whether any failed.
fn shell(text: &str) -> (String, String, Vec<String>, bool) {
    let interrupt = Interrupt::default();
    let fake = Arc::new(Fake { asked: Mutex::default(), interrupt: interrupt.clone() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let knowledge = Arc::new(Knowledge::new(fake.clone(), runtime.handle().clone()));
    let mut shell = Shell::new(Parts {
        engine: fake.clone(),
        runtime: &runtime,
        interrupt: &interrupt,
        knowledge,
        screen: Screen::PIPE,
        complete: |t| t.ends_with(';'),
        out: &mut out,
        err: &mut err,
    });
    let mut input = Piped::new(text.as_bytes(), "text", |t| t.ends_with(';'));
    let failed = shell.run(&mut input).unwrap();
    drop(shell);
    assert!(!interrupt.fire(), "a query is still marked as running");
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    let asked = fake.asked.lock().unwrap().clone();
    (text(out), text(err), asked, failed)
}

#[test]
fn statements_may_take_several_lines() {
    let (out, err, asked, failed) = shell("SELECT\n1;\n\nSELECT 2; SELECT 3;\nSELECT 4");
    assert_eq!(asked, ["SELECT\n1;", "SELECT 2; SELECT 3;", "SELECT 4"]);
    assert_eq!(out, "did SELECT\n1\ndid SELECT 2\ndid SELECT 3\ndid SELECT 4\n");
    assert_eq!((err.as_str(), failed), ("", false));
}

#[test]
fn a_failure_or_a_cancelled_query_leaves_the_shell() {
    let (out, err, _, failed) = shell("a; bad; b;\nwait;\nc;\n");
    assert_eq!(out, "did a\ndid c\n");
    assert_eq!(
        err,
        "error[not_found]: no such path: `x`\nerror[cancelled]: the query was cancelled\n"
    );
    assert!(failed);
}

#[test]
fn commands_ask_the_engine() {
    let (out, err, asked, _) = shell(
        "\\d\n\\d era5\n.describe a/b.zarr\n\\h SUM\n.functions nope\n.functions m\n.nope\n\\q\nSELECT 1;",
    );
    assert_eq!(
        asked,
        [
            "SHOW TENSORS",
            "DESCRIBE era5",
            "DESCRIBE 'a/b.zarr'",
            "SHOW FUNCTIONS",
            "SHOW FUNCTIONS",
            "SHOW FUNCTIONS"
        ]
    );
    assert!(out.contains("sum(x)\n  The sum.\n"), "{out}");
    assert!(out.contains("mean  The mean.\nsum   The sum.\n"), "{out}");
    assert_eq!(
        err,
        "error[usage]: unknown function `nope`\nhint: `.functions` lists them\n\
         error[usage]: unknown command `.nope`\nhint: `.help` lists them\n"
    );
}

#[test]
fn timing_is_shown_on_request() {
    let (out, _, _, _) = shell("a;\n\\timing\nb;\n.timer off\nc;");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 6, "{out}");
    assert!(
        lines[3].starts_with("time: 0.") && lines[3].ends_with(" s (planning 0.000 s, 0 B read)"),
        "{out}"
    );
    assert_eq!((lines[1], lines[4], lines[5]), ("timer is on", "timer is off", "did c"));
}

#[test]
fn answers_are_written_to_the_chosen_output() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (all, one) = (path("all.txt"), path("one.json"));
    let (out, err, _, _) = shell(&format!(
        ".output {all}\na;\nb;\n.once {one}\nSHOW FUNCTIONS;\n.output\n.mode json\nc;\n\
         .mode npy\n.mode nonsense\n.maxrows 0\n.once {}/no/x.csv\nSHOW FUNCTIONS;\n.show\n",
        dir.path().display()
    ));
    assert_eq!(std::fs::read_to_string(&all).unwrap(), "did a\ndid b\n");
    let json = std::fs::read_to_string(&one).unwrap();
    assert!(json.starts_with('{') && json.contains("mean(x)"), "{json}");
    assert!(out.contains(&format!("wrote {one}\n{{\"ok\":\"did c\"}}\n")), "{out}");
    assert!(out.contains("mode      json\n"), "{out}");
    let told: Vec<&str> = err.lines().filter(|l| l.starts_with("error")).collect();
    assert_eq!(told.len(), 4, "{err}");
    // An unknown extension, or that of a store, is refused at once.
    let (plain, store, odd) = (path("plain"), path("x.zarr"), path("o.foo"));
    let (_, told_odd, asked, failed) =
        shell(&format!(".once {store}\n.once {odd}\n.mode csv\n.once {plain}\nSHOW FUNCTIONS;\n"));
    assert!(failed && !Path::new(&store).exists() && !Path::new(&odd).exists());
    assert!(told_odd.contains("a Zarr store cannot be streamed"), "{told_odd}");
    assert!(told_odd.contains("cannot infer a format"), "{told_odd}");
    assert_eq!(asked, ["SHOW FUNCTIONS;"]);
    assert!(std::fs::read_to_string(&plain).unwrap().contains("mean(x)"));
    assert!(
        told[0].contains("npy is not for a screen") && told[3].starts_with("error[io]"),
        "{err}"
    );
}

#[test]
fn files_are_read_until_one_statement_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.sql");
    let circle = dir.path().join("b.sql");
    std::fs::write(&path, "one;\n.timer on\n\nbad;\nnever;\n").unwrap();
    std::fs::write(&circle, format!(".read {}\n", circle.display())).unwrap();
    let (out, err, asked, failed) = shell(&format!(
        ".read {}\n.read {}\n.read {}\n.read nowhere.sql\nlast;",
        path.display(),
        circle.display(),
        dir.path().display(),
    ));
    assert_eq!(asked, ["one;", "bad;", "last;"]);
    assert!(failed && out.contains("did last"), "{out}");
    assert!(err.contains(&format!("stopped in `{}`, line 4\n", path.display())), "{err}");
    assert!(err.contains("is read by a file that it reads"), "{err}");
    assert!(err.contains("error[io]: cannot read `nowhere.sql`"), "{err}");
}

#[test]
fn a_closed_output_ends_the_shell() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let interrupt = Interrupt::default();
    let fake = Arc::new(Fake { asked: Mutex::default(), interrupt: interrupt.clone() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (mut closed, mut err) = (Closed, Vec::new());
    let mut shell = Shell::new(Parts {
        engine: fake.clone(),
        runtime: &runtime,
        interrupt: &interrupt,
        knowledge: Arc::new(Knowledge::new(fake.clone(), runtime.handle().clone())),
        screen: Screen::PIPE,
        complete: |t| t.ends_with(';'),
        out: &mut closed,
        err: &mut err,
    });
    let mut input = Piped::new(&b"bad;\na;\nb;\n"[..], "text", |t| t.ends_with(';'));
    assert!(shell.run(&mut input).unwrap_err().is_broken_pipe());
    // Earlier failures are remembered.
    assert!(shell.has_failed());
    assert_eq!(*fake.asked.lock().unwrap(), ["bad;", "a;"]);
}
