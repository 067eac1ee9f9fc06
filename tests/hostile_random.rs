//! Hostile statements and hostile files, drawn at random, against a server with little memory.
//!
//! A server with `--memory-limit 64MiB` and two seconds for a statement runs in a control group of 400 MiB if one can
//! be made. Otherwise, and in an ordinary run, its `VmHWM` is checked. For every request, the server must survive,
//! answer `SELECT 1` within a second, and end each statement within its time and one second more. No answer may be 5xx,
//! except the time-out.
//!
//! `TESSERA_HOSTILE_RANDOM=20000` runs that many statements, `TESSERA_HOSTILE_FILES=10000` that many files of each
//! format, `TESSERA_HOSTILE_SEED=7` draws others, `TESSERA_HOSTILE_ONLY=123` runs one.
//! `TESSERA_HOSTILE_PATIENCE_MS=1000` is the second; an ordinary run, which shares the machine with other tests, waits
//! longer. `TESSERA_HOSTILE_LONG=100000` sets the length of lists and chains. `TESSERA_HOSTILE_FOUND` names a file for
//! the findings, `TESSERA_HOSTILE_KEEP` a directory for harmful files, `TESSERA_HOSTILE_FORMAT=arrow` runs that format
//! alone.

use crate::common::{files, number};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

mod damaged;
mod grammar;
mod mutate;
mod trial;

use grammar::{Function, Grammar, Words};
use serde_json::Value;
use trial::{End, Request, Trial};

/// Statements of an ordinary run.
const STATEMENTS: u64 = 200;
/// Damaged files of each format of an ordinary run.
const DAMAGED: u64 = 25;
/// Items of lists and chains of an ordinary run.
const LONG: u64 = 1000;

fn seed() -> u64 {
    number("TESSERA_HOSTILE_SEED").unwrap_or(26)
}

/// The numbers of the statements or files to run.
fn numbers(name: &str, usual: u64) -> std::ops::Range<u64> {
    match number("TESSERA_HOSTILE_ONLY") {
        Some(only) => only..only + 1,
        None => number("TESSERA_HOSTILE_FROM").unwrap_or(0)..number(name).unwrap_or(usual),
    }
}

/// Observations, for the summary at the end of a run.
#[derive(Default)]
struct Seen {
    asked: u64,
    kinds: BTreeMap<String, u64>,
    faults: Vec<String>,
    slowest: Duration,
    longest_wait: Duration,
    most: u64,
}

impl Seen {
    fn add(&mut self, what: &str, kind: &str, request: &Request, end: &End, patience: Duration) {
        self.asked += 1;
        let code = if end.status == 200 { "ok" } else { end.code.as_str() };
        *self.kinds.entry(code.to_string()).or_default() += 1;
        self.slowest = self.slowest.max(end.took);
        self.longest_wait = self.longest_wait.max(end.others);
        self.most = self.most.max(end.most);
        if number("TESSERA_HOSTILE_ONLY").is_some() || number("TESSERA_HOSTILE_TRACE").is_some() {
            println!("{what} ({kind}): {}\n{}: {}\n", request.shown(), end.shown(), end.message);
        }
        let faults = end.faults(patience);
        if faults.is_empty() {
            return;
        }
        let fault = format!(
            "{what} ({kind}): {}\n  {}\n{}",
            faults.join("; "),
            end.shown(),
            request.shown()
        );
        println!("{fault}");
        if let Ok(path) = std::env::var("TESSERA_HOSTILE_FOUND") {
            let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
            writeln!(file, "{fault}\n").unwrap();
        }
        self.faults.push(fault);
    }

    /// Prints the observations, and fails if one is a fault.
    fn close(&self, trial: &Trial, what: &str) {
        println!(
            "{what}: {} of seed {}, {} with faults; the slowest took {:.2} s, SELECT 1 at most {:.2} s, at most {} MiB \
             were resident, bounded by {}",
            self.asked,
            seed(),
            self.faults.len(),
            self.slowest.as_secs_f64(),
            self.longest_wait.as_secs_f64(),
            self.most >> 20,
            trial.bound(),
        );
        for (code, times) in &self.kinds {
            println!("{times} times {code}");
        }
        assert!(self.asked > 0);
        let wrong = self.faults.len();
        assert!(wrong == 0, "{wrong} of {} are wrong\n\n{}", self.asked, self.faults.join("\n\n"));
    }
}

/// The statements of the golden scripts.
fn right() -> Vec<String> {
    let mut scripts = files(Path::new("sql"));
    scripts.retain(|f| f.extension().is_some_and(|e| e == "slt"));
    scripts.sort();
    let mut all = Vec::new();
    for script in scripts {
        let Ok(text) = fs::read_to_string(script) else { continue };
        for record in text.split("\n\n") {
            let mut lines = record.lines().skip_while(|l| l.starts_with('#') || l.is_empty());
            if lines.next().is_some_and(|l| l.starts_with("query") || l.starts_with("statement")) {
                let sql: Vec<&str> = lines.take_while(|l| !l.starts_with("----")).collect();
                all.push(sql.join("\n"));
            }
        }
    }
    all.retain(|sql| sql.len() < 2000 && !sql.is_empty());
    all.sort();
    all.dedup();
    all
}

/// The words that statements are composed of.
fn words(trial: &mut Trial) -> Words {
    let shown: Value = serde_json::from_slice(&trial.whole("SHOW FUNCTIONS", "json")).unwrap();
    // Functions of rows alone have no example.
    let functions = rows(&shown)
        .iter()
        .filter(|row| row[5] != "")
        .map(|row| {
            let [name, signature, example] = [0, 1, 5].map(|i| row[i].as_str().unwrap());
            Function::of(name, signature, example)
        })
        .collect();
    let right = right();
    // Names that scripts use; several scripts use one name for different stores.
    let external = right.iter().filter(|sql| sql.starts_with("CREATE EXTERNAL"));
    trial.begin(external.map(|sql| sql.replacen("CREATE", "CREATE OR REPLACE", 1)).collect());
    Words {
        functions,
        right,
        out: trial.scratch.path().join("out").display().to_string(),
        long: number("TESSERA_HOSTILE_LONG").unwrap_or(LONG),
        heavy: number("TESSERA_HOSTILE_RANDOM").is_some(),
    }
}

/// The rows of an answer in JSON.
fn rows(answer: &Value) -> Vec<Vec<Value>> {
    let rows = answer["rows"].as_array().unwrap_or_else(|| panic!("{answer:.300}"));
    rows.iter().map(|row| row.as_array().unwrap().clone()).collect()
}

#[test]
fn statements() {
    let mut trial = Trial::new();
    let words = words(&mut trial);
    assert!(words.functions.len() > 100 && words.right.len() > 1000);
    let mut seen = Seen::default();
    let numbers = numbers("TESSERA_HOSTILE_RANDOM", STATEMENTS);
    for at in numbers.clone() {
        let (kind, request) = Grammar::new(&words, seed(), at).request();
        let end = trial.ask(&request);
        seen.add(&format!("statement {at}"), kind, &request, &end, trial.patience);
        // The plans of views and tensors grow, too.
        if at % 50 == 49 {
            for name in ["t0", "v0", "v1", "e0"] {
                let status = trial.get(&format!("/v1/tensors/{name}"));
                assert!((200..500).contains(&status) || status == 503, "{at}: {name}: {status}");
            }
        }
        if numbers.end >= 1000 && (at + 1) % 500 == 0 {
            println!("{} statements, {} with faults", at + 1, seen.faults.len());
        }
    }
    seen.close(&trial, "statements");
}

#[test]
fn damaged_files() {
    let mut trial = Trial::new();
    let formats = damaged::formats(&trial);
    let only = std::env::var("TESSERA_HOSTILE_FORMAT").ok();
    let mut seen = Seen::default();
    let below = trial.scratch.path().join("files");
    for format in formats.iter().filter(|f| only.as_deref().is_none_or(|o| o == f.name)) {
        let faults = seen.faults.len();
        let numbers = numbers("TESSERA_HOSTILE_FILES", DAMAGED);
        for at in numbers.clone() {
            let (asked, written) = format.damaged(seed(), at, &below);
            for request in &asked {
                let end = trial.ask(request);
                let what = format!("file {at}");
                let fault = seen.faults.len();
                seen.add(&what, format.name, request, &end, trial.patience);
                // The input that did it.
                if let (Ok(to), true) =
                    (std::env::var("TESSERA_HOSTILE_KEEP"), seen.faults.len() > fault)
                {
                    written.keep(Path::new(&to));
                }
            }
        }
        if numbers.end >= 1000 {
            let faults = seen.faults.len() - faults;
            println!("{}: {} files, {faults} with faults", format.name, numbers.end);
        }
    }
    seen.close(&trial, "questions to damaged files");
}
