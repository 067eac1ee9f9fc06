//! Datasets with thousands of variables: `*` is the same as the list of its columns, and keeps the order of cells.

use crate::common::Place;
use std::fs;
use std::ops::Range;

const VARIABLES: usize = 300;

/// `v0`, `v1`, … over `[y, x]`, of which each is its number plus the number of the cell.
fn place() -> Place {
    let place = Place::open(&[]);
    let cells = "reshape(arange(6), [2, 3], dims => ['y', 'x'])";
    let items = (0..VARIABLES).map(|i| format!("{cells} + {i} AS v{i}"));
    let items = items.collect::<Vec<_>>().join(", ");
    place.run(&format!("CREATE TEMP TENSOR wide AS SELECT {items}"));
    place
}

/// The lines of CSV for some variables and some cells.
fn table(of: &[usize], cells: Range<usize>) -> String {
    let names: Vec<String> = of.iter().map(|i| format!("v{i}")).collect();
    let head = format!("y,x,{}\n", names.join(","));
    let rows = cells.map(|cell| {
        let values: Vec<String> = of.iter().map(|i| (i + cell).to_string()).collect();
        format!("{},{},{}\n", cell / 3, cell % 3, values.join(","))
    });
    head + &rows.collect::<String>()
}

#[test]
fn all_columns_of_a_wide_table_are_those_in_its_order() {
    let place = place();
    let names: Vec<usize> = (0..VARIABLES).collect();
    let but: Vec<usize> = names.iter().copied().filter(|i| ![7, 123].contains(i)).collect();
    let out = place.shown("wide.csv");
    for (query, want) in [
        ("SELECT * FROM wide", table(&names, 0..6)),
        ("SELECT * FROM wide w LIMIT 4", table(&names, 0..4)),
        ("SELECT * EXCLUDE (v7, V123) FROM wide", table(&but, 0..6)),
        ("SELECT * EXCLUDE (v7, v123) FROM wide LIMIT 2", table(&but, 0..2)),
        ("SELECT * FROM wide LIMIT 0", table(&names, 0..0)),
        ("SELECT * FROM wide LIMIT 100", table(&names, 0..6)),
        ("SELECT * FROM wide LIMIT 2 OFFSET 3", table(&names, 3..5)),
        ("SELECT * FROM wide WHERE y > 0", table(&names, 3..6)),
        ("SELECT * FROM wide w WHERE w.y > 0 AND x < 2 LIMIT 1", table(&names, 3..4)),
        ("SELECT * FROM wide WHERE y > 7", table(&names, 0..0)),
        // These clauses need all columns in DataFusion's plan.
        ("SELECT * FROM wide WHERE v0 < 5", table(&names, 0..5)),
        ("SELECT * FROM (SELECT * FROM wide) ORDER BY y, x", table(&names, 0..6)),
        ("WITH w AS (SELECT * FROM wide) SELECT * FROM w LIMIT 3", table(&names, 0..3)),
    ] {
        place.run(&format!("COPY ({query}) TO '{out}' (OVERWRITE)"));
        let text = fs::read_to_string(&out).unwrap();
        assert!(text == want, "{query}: {} bytes, not {}", text.len(), want.len());
    }
    let refused = |sql: &str| place.try_run(sql).unwrap_err().to_string();
    assert!(refused("SELECT * EXCLUDE (nothing) FROM wide").contains("nothing"));
    assert!(place.try_run("SELECT * EXCLUDE (v7, v7) FROM wide").is_err());
    let plan = place.lines("EXPLAIN SELECT * FROM wide LIMIT 4").unwrap().join("\n");
    assert!(plan.contains("rows_0") && plan.contains("fetch=4"), "{plan}");
}

#[test]
fn a_wide_dataset_is_copied_as_it_is() {
    let place = place();
    let (store, file) = (place.shown("wide.zarr"), place.shown("wide.nc"));
    for (query, out) in [("wide", &store), ("(SELECT * EXCLUDE (v7) FROM wide)", &file)] {
        place.run(&format!("COPY {query} TO '{out}'"));
    }
    let sums = place.lines(&format!("SELECT sum(v299) AS a, sum(v8) AS b FROM '{store}'")).unwrap();
    assert_eq!(sums, place.lines("SELECT sum(v299) AS a, sum(v8) AS b FROM wide").unwrap());
    let of_file = place.lines(&format!("SELECT sum(v299) AS a, sum(v8) AS b FROM '{file}'"));
    assert_eq!(sums, of_file.unwrap());
    assert!(place.try_run(&format!("SELECT sum(v7) FROM '{file}'")).is_err());
}
