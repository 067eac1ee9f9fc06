//! Processes that are killed while they write: the next process that starts removes their leftovers, and leaves those
//! of live processes alone.

use crate::common::{Hold, files, names, tessera};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Upper bound on any wait here. Processes that are killed while they write have computed everything before.
const PATIENCE: Duration = Duration::from_secs(180);

/// Takes far longer than a test.
const BIG: &str = "random_normal([40000, 10000], seed => 1, chunks => [250, 250])";

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap() };
        for name in ["spill", "output"] {
            fs::create_dir(place.path(name)).unwrap();
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn tessera(&self, arguments: &[&str]) -> Command {
        let mut command = tessera();
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .arg("--warehouse")
            .arg(self.path("warehouse"))
            .arg("--spill-dir")
            .arg(self.path("spill"))
            .args(["--threads", "1", "--memory-limit", "64MiB"])
            .args(arguments);
        command
    }

    /// Starts a statement and kills it once `is_so`.
    fn killed(&self, sql: &str, what: &str, is_so: impl Fn() -> bool) {
        let mut child = self.started(sql, what, is_so);
        // SIGKILL: nothing of the process runs any more.
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a statement, and returns once `is_so`.
    fn started(&self, sql: &str, what: &str, is_so: impl Fn() -> bool) -> Child {
        // The last bytes of a file are not written before the process is killed.
        let fail = Hold::new(&self.path("")).at("file.finish");
        let mut child = self.tessera(&["query", sql]).env("TESSERA_FAIL", fail).spawn().unwrap();
        until(what, || {
            assert!(child.try_wait().unwrap().is_none(), "{sql} is over");
            is_so()
        });
        child
    }

    /// Another process, from its start to its end.
    fn run(&self, sql: &str) {
        let out = self.tessera(&["query", sql]).stderr(Stdio::piped()).output().unwrap();
        assert!(out.status.success(), "{sql}: {}", String::from_utf8_lossy(&out.stderr));
    }

    fn count(&self, at: &str) -> usize {
        files(&self.path(at)).len()
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_empty(at: &Path) -> bool {
    names(at).is_empty()
}

#[test]
fn cells_that_no_entry_names_go_unless_somebody_writes_them() {
    let p = Place::new();
    p.run("CREATE TENSOR small AS SELECT arange(10)");
    let kept = names(&p.path("warehouse/data"));
    assert_eq!(kept.len(), 1);
    let create = |name: &str| format!("CREATE TENSOR {name} AS SELECT {BIG}");
    p.killed(&create("dead"), "chunks are written", || p.count("warehouse/data") > 10);
    let left = names(&p.path("warehouse/data"));
    assert_eq!(left.len(), 3, "a store and its lock beside the small one: {left:?}");
    // A live one, at the same time, in the same warehouse.
    let before = p.count("warehouse/data");
    let mut live = p.started(&create("live"), "the other writes", || {
        p.count("warehouse/data") > before + 10 || names(&p.path("warehouse/data")).len() == 3
    });
    // The live process collects leftovers, too: the process that gets the lock of the dead one's store removes the
    // store.
    until("the dead one's store is gone", || {
        p.run("SELECT sum(arange(5)) AS s");
        names(&p.path("warehouse/data")).len() == 3
    });
    let with_live = names(&p.path("warehouse/data"));
    assert!(with_live.iter().all(|n| kept.contains(n) || !left.contains(n)), "{with_live:?}");
    let written = p.count("warehouse/data");
    until("the living goes on", || p.count("warehouse/data") > written);
    live.kill().unwrap();
    live.wait().unwrap();
    p.run("SELECT sum(small) AS s FROM small");
    assert_eq!(names(&p.path("warehouse/data")), kept);
    assert_eq!(names(&p.path("warehouse/catalog")), ["small.json"]);
}

#[test]
fn an_entry_that_cannot_be_read_keeps_all_cells() {
    let p = Place::new();
    p.run("CREATE TENSOR small AS SELECT arange(10)");
    let create = format!("CREATE TENSOR dead AS SELECT {BIG}");
    p.killed(&create, "chunks are written", || p.count("warehouse/data") > 10);
    fs::write(p.path("warehouse/catalog/odd.json"), "{").unwrap();
    p.run("SELECT sum(arange(5)) AS s");
    assert_eq!(names(&p.path("warehouse/data")).len(), 3, "it may name them");
    fs::remove_file(p.path("warehouse/catalog/odd.json")).unwrap();
    p.run("SELECT sum(arange(5)) AS s");
    assert_eq!(names(&p.path("warehouse/data")).len(), 1);
}

#[test]
fn incomplete_outputs_are_removed_and_older_ones_stay() {
    let p = Place::new();
    let to = |name: &str| p.path("output").join(name).display().to_string();
    for (format, name) in [("ZARR", "x.zarr"), ("NPY", "x.npy"), ("CSV", "x.csv")] {
        p.run(&format!("COPY (SELECT arange(5) AS x) TO '{}' STORED AS {format}", to(name)));
        let before = names(&p.path("output"));
        // A stream is written once the result is available, so the result is large and slow to write.
        let query = match format {
            "ZARR" => format!("SELECT {BIG} AS x"),
            _ => "SELECT arange(30000000) AS x".to_string(),
        };
        let copy =
            format!("COPY ({query}) TO '{}' STORED AS {format} OPTIONS (overwrite true)", to(name));
        let is_part = |n: &String| n.starts_with('.') && n.ends_with(".part");
        p.killed(&copy, "a part is written", || {
            let parts = names(&p.path("output")).into_iter().filter(is_part);
            parts.map(|n| bytes(&p.path("output").join(n))).sum::<u64>() > 1 << 20
        });
        assert_eq!(names(&p.path("output")).len(), before.len() + 1, "{format}");
        p.run("SELECT sum(arange(5)) AS s");
        assert_eq!(names(&p.path("output")), before, "{format}");
        assert!(is_empty(&p.path("spill")), "{format}: {:?}", files(&p.path("spill")));
    }
    p.run(&format!("SELECT sum(x) AS s FROM '{}'", to("x.zarr")));
}

#[test]
fn spilled_chunks_and_rows_go() {
    let p = Place::new();
    p.run("CREATE TENSOR x AS SELECT random_normal([4000, 4000], seed => 2, chunks => [100, 4000], dims => ['r', 'c']) AS x");
    // Every chunk reads a part of all that are stored.
    let rechunk = "CREATE TENSOR y AS SELECT rechunk(x + 1, r => 4000, c => 50) AS y FROM x";
    p.killed(rechunk, "chunks are spilled", || p.count("spill") > 10);
    assert!(p.count("spill") > 10);
    p.run("SELECT sum(arange(5)) AS s");
    assert!(is_empty(&p.path("spill")), "{:?}", files(&p.path("spill")));
}

/// Bytes of a file, or of all files below a directory.
fn bytes(at: &Path) -> u64 {
    let all = if at.is_dir() { files(at) } else { vec![at.to_path_buf()] };
    all.iter().map(|f| fs::metadata(f).map_or(0, |m| m.len())).sum()
}

#[test]
fn an_append_that_is_killed_leaves_the_old_cells() {
    let p = Place::new();
    let store = p.path("store.zarr").display().to_string();
    let labelled = |rows: &str, first: u64, n: u64| {
        format!(
            "SELECT assign_coords(rename({rows}, dim_0 => 'day', dim_1 => 'x'), \
             day => arange({first}, {})) AS v",
            first + n
        )
    };
    let ones = |n: u64| format!("broadcast_to([1.0], [{n}, 10000])");
    let copy = |query: &str, options: &str| {
        format!("COPY ({query}) TO '{store}' STORED AS ZARR OPTIONS ({options})")
    };
    p.run(&copy(&labelled(&ones(300), 0, 300), "chunks '[250, 250]'"));
    let count = || files(&p.path("store.zarr")).len();
    let (old, sum) = (count(), format!("SELECT sum(v) AS s, count(v) AS n FROM '{store}'"));
    let answer = |sql: &str| {
        let out = p.tessera(&["query", "--format", "csv", sql]).stdout(Stdio::piped()).output();
        String::from_utf8(out.unwrap().stdout).unwrap()
    };
    let before = answer(&sum);
    assert!(before.contains("3000000"), "{before}");
    // All of it is computed before the first object is written.
    let big = "random_normal([4000, 10000], seed => 1, chunks => [250, 250])";
    let append = copy(&labelled(big, 300, 4000), "append 'day'");
    p.killed(&append, "chunks are written", || count() > old + 30);
    assert_eq!(answer(&sum), before);
    // The leftovers are behind the end of the next append, and in its last chunk.
    p.run(&copy(&labelled(&ones(30), 300, 30), "append 'day'"));
    let after = answer(&sum);
    assert_eq!(after.matches("3300000").count(), 2, "{after}");
    p.run(&copy(&labelled(&ones(1000), 330, 1000), "append 'day'"));
    assert_eq!(answer(&sum).matches("13300000").count(), 2, "{}", answer(&sum));
}
