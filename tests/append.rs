//! Appends to Zarr stores: `COPY … OPTIONS (append …)` and `INSERT INTO`, with readers and other appends beside them.

use crate::common::{Place, until};
use crate::restart::{self, result, submit};
use crate::web;
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The numbers in the answers.
fn numbers(place: &Place, sql: &str) -> Vec<f64> {
    let text = place.lines(sql).unwrap_or_else(|e| panic!("{sql}: {e}")).join(" ");
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// A store of days 0 to 49, and one of days 50 to 82, with cells that tell their day.
fn stores(place: &Place, format: u8) -> (String, String) {
    let (old, new) = (place.shown(&format!("old{format}.zarr")), place.shown("new.zarr"));
    let days = |first: u64, last: u64, to: &str| {
        format!(
            "COPY (SELECT assign_coords(rename(broadcast_to(reshape(arange({first}, {last})::float32, [{n}, 1, 1]), \
             [{n}, 3, 4]), dim_0 => 'day', dim_1 => 'y', dim_2 => 'x'), day => arange({first}, {last})) AS v) \
             TO '{to}' STORED AS ZARR OPTIONS (overwrite true, zarr_format {format}, chunks '[20, 3, 2]')",
            n = last - first
        )
    };
    place.run(&days(0, 50, &old));
    place.run(&days(50, 83, &new));
    (old, new)
}

fn append(new: &str, old: &str) -> String {
    format!("COPY (SELECT v FROM '{new}') TO '{old}' STORED AS ZARR OPTIONS (append 'day')")
}

#[test]
fn appended_cells_are_read_behind_the_old_ones() {
    for format in [2, 3] {
        let place = Place::open(&[]);
        let (old, new) = stores(&place, format);
        place.run(&append(&new, &old));
        let sums = place.lines(&format!("SELECT sum(v, axis => ['y', 'x']) AS s FROM '{old}'"));
        let cells = sums.unwrap().join(" ");
        let found: Vec<f64> = cells.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        let wanted: Vec<f64> = (0..83).map(|d| f64::from(d) * 12.0).collect();
        assert_eq!(found, wanted, "{format}");
        let rows = place.lines(&format!("SELECT max(day), count(*) FROM '{old}' WHERE day >= 48"));
        assert!(rows.unwrap().concat().contains("82"), "{format}");
        // Once more the labels would fall.
        let again = place.lines(&append(&new, &old)).unwrap_err();
        assert!(again.starts_with("name_conflict: ") && again.contains("ends at 82"), "{again}");
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let place = Place::open(&[]);
    let (old, new) = stores(&place, 3);
    let to = |query: &str, dim: &str| {
        let sql = format!("COPY ({query}) TO '{old}' STORED AS ZARR OPTIONS (append '{dim}')");
        place.lines(&sql).unwrap_err()
    };
    for (query, dim, part) in [
        (format!("SELECT v AS u FROM '{new}'"), "day", "no array `u`"),
        (format!("SELECT v::float64 AS v FROM '{new}'"), "day", "float64"),
        (format!("SELECT v FROM '{new}'"), "time", "has the dimension `time`"),
        (format!("SELECT v[:, 0:2] AS v FROM '{new}'"), "day", "`y` has length 2"),
        (format!("SELECT transpose(v) AS v FROM '{new}'"), "day", "the dimensions"),
        (format!("SELECT values(v) AS v FROM '{new}'"), "day", "no labels `day`"),
    ] {
        let told = to(&query, dim);
        assert!(told.contains(part), "{query}: {told}");
    }
    let missing = place.lines(&append(&new, &place.shown("none.zarr"))).unwrap_err();
    assert!(missing.starts_with("not_found: "), "{missing}");
    let length = place.lines(&format!("SELECT count(v) AS n FROM '{old}'")).unwrap().concat();
    assert!(length.contains("600"), "{length}");
}

#[test]
fn readers_see_the_old_or_the_new_length() {
    let place = std::sync::Arc::new(Place::open(&[]));
    let (old, new) = stores(&place, 3);
    let query = format!("SELECT count(v) AS n, sum(v) AS s FROM '{old}'");
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = Vec::new();
            for _ in 0..60 {
                match place.lines(&query) {
                    Ok(lines) => seen.push(lines.join(" ")),
                    // Between two reads of a statement the store has changed: it says so.
                    Err(e) => assert!(e.starts_with("source_changed: "), "{e}"),
                }
            }
            seen
        });
        std::thread::sleep(std::time::Duration::from_millis(30));
        place.run(&append(&new, &old));
        reader.join().unwrap()
    });
    let last = place.lines(&query).unwrap().join(" ");
    let (before, after) = (12.0 * 1225.0, 12.0 * 3403.0);
    for text in seen.iter().chain([&last]) {
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
        assert!(numbers == [600.0, before] || numbers == [996.0, after], "{text}");
    }
    assert!(last.contains("996"), "{last}");
}

#[test]
fn a_killed_append_leaves_the_old_cells() {
    let place = Place::open(&[]);
    let (old, new) = stores(&place, 3);
    // The state that an append leaves before it commits.
    let copy = place.shown("copy.zarr");
    let whole = |from: &str, to: &str| {
        fn all(from: &std::path::Path, to: &std::path::Path) {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                let target = to.join(entry.file_name());
                match entry.file_type().unwrap().is_dir() {
                    true => all(&entry.path(), &target),
                    false => drop(fs::copy(entry.path(), target).unwrap()),
                }
            }
        }
        all(std::path::Path::new(from), std::path::Path::new(to));
    };
    whole(&old, &copy);
    place.run(&append(&new, &copy));
    fs::copy(format!("{old}/zarr.json"), format!("{copy}/zarr.json")).unwrap();
    let sum =
        |store: &str| place.lines(&format!("SELECT sum(v) AS s, count(v) AS n FROM '{store}'"));
    assert_eq!(sum(&copy).unwrap(), sum(&old).unwrap());
    // And the next append takes its place.
    place.run(&append(&new, &copy));
    assert!(sum(&copy).unwrap().join(" ").contains("996"));
}

#[test]
fn a_tensor_and_an_external_store_take_inserts() {
    let place = Place::open(&[]);
    let (old, new) = stores(&place, 3);
    place.run(&format!("CREATE TENSOR t AS SELECT v FROM '{old}'"));
    place.run(&format!("CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION '{old}'"));
    for name in ["t", "e"] {
        place.run(&format!("INSERT INTO {name} SELECT v FROM '{new}'"));
        let sql = format!("SELECT count(v) AS n, sum(v) AS s FROM {name}");
        assert_eq!(numbers(&place, &sql), [996.0, 12.0 * 3403.0], "{name}");
        let again =
            place.lines(&format!("INSERT INTO {name} SELECT u FROM (SELECT v AS u FROM '{new}')"));
        assert!(again.unwrap_err().starts_with("cannot_insert: "));
        // `float32` has all values of `int16`, and not those of `float64` and `int32`.
        let insert = |dtype: &str| {
            let cells = format!("assign_coords(v::{dtype}, day => arange(83, 116)) AS v");
            place.lines(&format!("INSERT INTO {name} SELECT {cells} FROM '{new}'"))
        };
        for dtype in ["float64", "int32"] {
            let told = insert(dtype).unwrap_err();
            assert!(told.contains(&format!("`v` is {dtype}, ")), "{name}: {told}");
        }
        insert("int16").unwrap();
        let sql = format!("SELECT v[114:116, 0, 0] AS v FROM {name}");
        assert_eq!(numbers(&place, &sql), [81.0, 82.0], "{name}");
        assert!(place.lines(&sql).unwrap().concat().contains("float32"), "{name}");
    }
    let none = place.lines("INSERT INTO nobody SELECT arange(3)").unwrap_err();
    assert!(none.starts_with("unknown_name: "), "{none}");
}

#[test]
fn all_of_a_dataset_and_rows_are_inserted_as_copy_appends_them() {
    for query in [
        "SELECT * FROM 'new'",
        "SELECT * FROM (SELECT * FROM 'new') q",
        "SELECT * FROM 'new' WHERE day >= 50",
    ] {
        let place = Place::open(&[]);
        let (old, new) = stores(&place, 3);
        place.run(&format!("CREATE TENSOR t AS SELECT v FROM '{old}'"));
        place.run(&format!("CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION '{old}'"));
        for name in ["t", "e"] {
            place.run(&format!("INSERT INTO {name} {}", query.replace("new", &new)));
            let sql = format!("SELECT count(v) AS n, sum(v) AS s FROM {name}");
            assert_eq!(numbers(&place, &sql), [996.0, 12.0 * 3403.0], "{name}: {query}");
        }
    }
    let place = Place::open(&[]);
    let (old, new) = stores(&place, 3);
    place.run(&format!("CREATE TENSOR d AS SELECT max(v, axis => ['y', 'x']) AS m FROM '{old}'"));
    place.run(&format!("INSERT INTO d SELECT day, max(v) AS m FROM '{new}' GROUP BY day"));
    assert_eq!(numbers(&place, "SELECT count(m) AS n, sum(m) AS s FROM d"), [83.0, 3403.0]);
}

#[test]
fn results_without_names_or_labels_are_refused_with_the_reason() {
    let place = Place::open(&[]);
    place.run("CREATE TENSOR bare AS SELECT arange(3) AS v");
    place.run("CREATE TENSOR named AS SELECT rename(arange(3), dim_0 => 'd') AS v");
    let told = |sql: &str| place.lines(sql).unwrap_err();
    assert_eq!(
        told("INSERT INTO bare SELECT arange(3) AS v"),
        "cannot_insert: cannot insert into `bare`: only a dimension with a name can grow"
    );
    assert_eq!(
        told("INSERT INTO named SELECT rename(arange(3), dim_0 => 'd') AS v"),
        "cannot_insert: cannot insert into `named`: no dimension has labels, which distinguish new cells from stored ones"
    );
}

#[test]
fn labels_that_do_not_go_on_are_refused_by_tensors_as_by_stores() {
    let place = Place::open(&[]);
    let (old, new) = stores(&place, 3);
    place.run(&format!("CREATE TENSOR t AS SELECT v FROM '{old}'"));
    place.run(&format!("CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION '{old}'"));
    for (name, shown) in [("t", "tensor `t`"), ("e", "the store")] {
        let insert = |query: &str| place.lines(&format!("INSERT INTO {name} {query}"));
        insert(&format!("SELECT v FROM '{new}'")).unwrap();
        for (query, part) in [
            (
                format!("SELECT v FROM '{new}'"),
                "ends at 82 along `day`, and the results begin at 50",
            ),
            (
                format!("SELECT v[30:33] AS v FROM '{new}'"),
                "ends at 82 along `day`, and the results begin at 80",
            ),
            (
                format!("SELECT assign_coords(v, day => 115 - arange(33)) AS v FROM '{new}'"),
                "ends at 82 along `day`, and the results begin at 115",
            ),
        ] {
            let told = insert(&query).unwrap_err();
            assert_eq!(told, format!("name_conflict: {shown} {part}"), "{name}: {query}");
        }
        let told = insert(&format!("SELECT values(v) AS v FROM '{new}'")).unwrap_err();
        let none = format!("the results have no labels `day` along `day`, {shown} has");
        assert_eq!(told, format!("name_conflict: {none}"));
        let sql = format!(
            "SELECT count(v) AS n, sum(v) AS s FROM {name}; SELECT max(day), count(*) FROM {name}"
        );
        assert_eq!(numbers(&place, &sql), [996.0, 12.0 * 3403.0, 82.0, 996.0], "{name}");
    }
    // Labels of two types would be dropped.
    let floats = format!(
        "INSERT INTO t SELECT assign_coords(v, day => arange(83, 116)::float64) AS v FROM '{new}'"
    );
    let told = place.lines(&floats).unwrap_err();
    let reason = "the labels of `day` are float64, the existing ones are int64";
    assert_eq!(told, format!("cannot_insert: cannot insert into `t`: {reason}"));
    place.run(&format!(
        "INSERT INTO t SELECT assign_coords(v, day => arange(83, 116)) AS v FROM '{new}'"
    ));
    let lines = place.lines("SELECT max(day), count(*) FROM t").unwrap().join(" ");
    assert!(lines.contains("115") && lines.contains("1392"), "{lines}");
}

#[test]
fn results_of_many_chunks_are_appended_to_other_chunks() {
    let place = Place::open(&[]);
    let (old, new) = (place.shown("grid.zarr"), place.shown("part.zarr"));
    let days = |first: u64, last: u64| {
        format!(
            "SELECT assign_coords(rename(reshape(arange({}, {}), [{}, 10, 14]), dim_0 => 'day', \
             dim_1 => 'y', dim_2 => 'x'), day => arange({first}, {last})) AS v",
            first * 140,
            last * 140,
            last - first
        )
    };
    let copy = |query: &str, to: &str, options: &str| {
        place.run(&format!("COPY ({query}) TO '{to}' STORED AS ZARR OPTIONS ({options})"));
    };
    copy(&days(0, 7), &old, "chunks '[4, 3, 5]'");
    copy(&days(7, 18), &new, "chunks '[3, 4, 6]'");
    for query in [format!("SELECT v FROM '{new}'"), days(18, 25)] {
        copy(&query, &old, "append 'day'");
    }
    let sql = format!(
        "SELECT count(v) AS n, sum(abs(v - reshape(arange(3500), [25, 10, 14]))) AS s FROM '{old}'"
    );
    assert_eq!(numbers(&place, &sql), [3500.0, 0.0]);
}

#[test]
fn appends_at_the_same_time_go_one_behind_the_other() {
    let place = Place::open(&[]);
    // Another process on the same warehouse.
    let warehouse = place.path("warehouse").display().to_string();
    let other = Place::open(&[("warehouse", warehouse.as_str())]);
    let store = place.shown("s.zarr");
    let cells = |first: u64, last: u64| {
        format!("SELECT rename(arange({first}, {last}), dim_0 => 'd') AS v")
    };
    let copy = |query: &str, options: &str| {
        format!("COPY ({query}) TO '{store}' STORED AS ZARR OPTIONS ({options})")
    };
    place.run(&format!("CREATE TENSOR t AS {}", cells(0, 4)));
    place.run(&copy(&cells(0, 4), "overwrite false"));
    place.run(&format!("CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION '{store}'"));
    place.run(&format!("COPY (SELECT arange(10, 13) AS x) TO '{}'", place.shown("new.npy")));
    let (address, served) = web::serve(place.path("output"));
    let held = |name: &str| {
        format!(
            "INSERT INTO {name} SELECT rename(new, dim_0 => 'd') AS v FROM 'http://{address}/new.npy'"
        )
    };
    let wait = Duration::from_secs(60);
    // The tensor is replaced after the first INSERT has read it.
    served.is_held.store(true, Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| place.lines(&held("t")));
        until("it reads", wait, || served.requests.load(Relaxed) > 0);
        other.run(&format!("INSERT INTO t {}", cells(20, 22)));
        served.is_held.store(false, Relaxed);
        first.join().unwrap().unwrap();
    });
    let expected = [0.0, 1.0, 2.0, 3.0, 20.0, 21.0, 10.0, 11.0, 12.0];
    assert_eq!(numbers(&place, "SELECT v FROM t"), expected);
    // In one process the second append waits for the first.
    served.take();
    served.is_held.store(true, Relaxed);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| place.lines(&held("e")));
        until("it reads", wait, || served.requests.load(Relaxed) > 0);
        let second = scope.spawn(|| place.lines(&copy(&cells(20, 22), "append 'd'")));
        until("the second one waits", wait, || {
            place.lines("SHOW QUERIES").unwrap().join(" ").contains("QUEUED")
        });
        served.is_held.store(false, Relaxed);
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
    let expected = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 20.0, 21.0];
    assert_eq!(numbers(&place, "SELECT v FROM e"), expected);
}

#[test]
fn an_append_that_was_committed_is_done_when_its_server_dies() {
    let p = restart::Place::new();
    let output = p.directory.path().join("output");
    fs::create_dir(&output).unwrap();
    let store = output.join("s.zarr").display().to_string();
    let days = |first: u64, last: u64| {
        let cells = format!("rename(arange({first}, {last}), dim_0 => 'day')");
        format!("SELECT assign_coords({cells}, day => arange({first}, {last})) AS v")
    };
    let copy = |query: &str, options: &str| {
        format!("COPY ({query}) TO '{store}' STORED AS ZARR OPTIONS ({options})")
    };
    p.query(&format!("CREATE TENSOR t AS {}", days(0, 4)));
    p.query(&copy(&days(0, 4), "overwrite false"));
    p.query(&format!("CREATE EXTERNAL TABLE e STORED AS ZARR LOCATION '{store}'"));
    p.query(&format!("COPY (SELECT arange(2) AS x) TO '{}'", output.join("new.npy").display()));
    // Statements read it, and so do not end before they are acknowledged.
    let (address, served) = web::serve(output);
    let held = |first: u64| {
        let cells = format!("rename(new + {first}, dim_0 => 'day')");
        let coords = format!("day => arange({first}, {})", first + 2);
        format!("SELECT assign_coords({cells}, {coords}) AS v FROM 'http://{address}/new.npy'")
    };
    let died = |fail: &str, sql: Option<&str>| {
        served.is_held.store(true, Relaxed);
        let s = p.serve_with(&[("TESSERA_FAIL", fail)]);
        let id = sql.map(|sql| submit(&s, sql));
        served.is_held.store(false, Relaxed);
        until("the server dies", Duration::from_secs(60), || !s.is_alive());
        id
    };
    // The server dies between the commit and its note. Then others append, too.
    let insert = format!("INSERT INTO t {}", held(4));
    let inserted = died("catalog.named=abort@1", Some(insert.as_str()));
    p.query(&format!("INSERT INTO t {}", days(6, 8)));
    let script = format!("{}; INSERT INTO e {}", copy(&held(4), "append 'day'"), held(8));
    let copied = died("append.committed=abort@1", Some(script.as_str()));
    p.query(&copy(&days(6, 8), "append 'day'"));
    // The next server knows that the first statement of the script is done, and dies of the second one.
    died("append.committed=abort@1", None);
    p.query(&format!("INSERT INTO e {}", days(10, 12)));
    let s = p.serve();
    for id in [inserted, copied].into_iter().flatten() {
        result(&s, &id);
    }
    for (name, length) in [("t", 8), ("e", 12)] {
        let answer = p.query(&format!("SELECT sum(v) AS s, count(v) AS n FROM {name}"));
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let (sum, count) = (&answer["tensors"][0]["data"], &answer["tensors"][1]["data"]);
        assert_eq!((sum.as_i64(), count.as_i64()), (Some(length * (length - 1) / 2), Some(length)));
    }
}
