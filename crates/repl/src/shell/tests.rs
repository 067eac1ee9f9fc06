#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::input::Piped;
use arrow::array::{ArrayRef, StringArray};
use futures::StreamExt;
use std::sync::{Arc, Mutex};
use tessera_server::engine::{CancelToken, Replies};

/// Remembers what it was asked; `wait` hangs until it is cancelled.
struct Fake {
    asked: Mutex<Vec<String>>,
    interrupt: Interrupt,
}

impl Engine for Fake {
    fn run<'a>(&'a self, sql: &'a str, cancel: CancelToken) -> Replies<'a> {
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
    let batch = RecordBatch::try_from_iter([("name", names), ("usage", help)]).unwrap();
    Answer::Rows { schema: batch.schema(), batches: vec![batch] }
}

/// Output, errors, what the engine was asked, whether anything failed.
fn shell(text: &str) -> (String, String, Vec<String>, bool) {
    let interrupt = Interrupt::default();
    let fake = Fake { asked: Mutex::default(), interrupt: interrupt.clone() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let options = Options { width: 75, greet: false };
    let mut shell = Shell::new(&fake, &runtime, &interrupt, options, &mut out, &mut err);
    let mut input = Piped::new(text.as_bytes(), |t| t.ends_with(';'));
    let failed = shell.run(&mut input).unwrap();
    assert!(!interrupt.fire(), "a query is still marked as running");
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (text(out), text(err), fake.asked.into_inner().unwrap(), failed)
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
        "error[not_found]: there is nothing at `x`\nerror[cancelled]: the query was cancelled\n"
    );
    assert!(failed);
}

#[test]
fn commands_ask_the_engine() {
    let (out, err, asked, _) =
        shell("\\d\n\\d era5\n\\d a/b.zarr\n\\h SUM\n\\h nope\n\\nope\n\\q\nSELECT 1;");
    assert_eq!(
        asked,
        [
            "SHOW TENSORS",
            "DESCRIBE era5",
            "DESCRIBE 'a/b.zarr'",
            "SHOW FUNCTIONS",
            "SHOW FUNCTIONS"
        ]
    );
    assert!(out.contains("│ sum  │ sum(x) │\n") && !out.contains("mean"), "{out}");
    assert_eq!(
        err,
        "error[usage]: there is no function `nope`\nhint: `\\h` lists them\n\
         error[usage]: there is no command `\\nope`\nhint: `\\?` lists them\n"
    );
}

#[test]
fn timing_is_told_when_asked_for() {
    let (out, _, _, _) = shell("a;\n\\timing\nb;\n\\timing\nc;");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 6, "{out}");
    assert!(
        lines[3].starts_with("time: 0.") && lines[3].ends_with(" s (planning 0.000 s, 0B read)")
    );
    assert_eq!((lines[1], lines[4], lines[5]), ("timing is on", "timing is off", "did c"));
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
    let fake = Fake { asked: Mutex::default(), interrupt: interrupt.clone() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut err = Vec::new();
    let options = Options { width: 75, greet: false };
    let mut closed = Closed;
    let mut shell = Shell::new(&fake, &runtime, &interrupt, options, &mut closed, &mut err);
    let mut input = Piped::new(&b"a;\nb;\n"[..], |t| t.ends_with(';'));
    assert!(shell.run(&mut input).unwrap_err().is_broken_pipe());
    assert_eq!(fake.asked.into_inner().unwrap(), ["a;"]);
}
