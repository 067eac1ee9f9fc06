//! `COPY` as people type it: formats by the ending of the target, options of PostgreSQL and DuckDB, names of relations.

use crate::common::Place;
use std::fs;

const ROWS: &str =
    "SELECT n, s FROM (VALUES (1, 'a;b'), (2, NULL), (3, 'NA'), (4, 'x')) t(n, s) ORDER BY n";

/// The error of a refused statement: code and message, then the hint.
fn refused(place: &Place, sql: &str) -> (String, String) {
    let e = place.try_run(sql).unwrap_err();
    (format!("{}: {e}", e.code()), e.hint().unwrap_or_default())
}

#[test]
fn the_ending_of_the_target_chooses_the_format() {
    let place = Place::open(&[]);
    place.run("CREATE TENSOR t AS SELECT reshape(arange(6), [2, 3], dims => ['y', 'x']) AS v");
    for ending in
        ["csv", "CSV", "parquet", "ndjson", "jsonl", "arrow", "feather", "nc", "npz", "npy", "zarr"]
    {
        let out = place.shown(&format!("by.{ending}"));
        place.run(&format!("COPY (SELECT v FROM t) TO '{out}'"));
        // The array of a file of NumPy has no name.
        let name = if ending == "npy" { "*" } else { "v" };
        let lines = place.lines(&format!("SELECT {name} FROM '{out}'")).unwrap();
        assert!(lines.iter().any(|line| line.contains('5')), "{ending}: {lines:?}");
    }
    let text = fs::read_to_string(place.shown("by.csv")).unwrap();
    assert_eq!(text, "y,x,v\n0,0,0\n0,1,1\n0,2,2\n1,0,3\n1,1,4\n1,2,5\n");
    assert_eq!(fs::read_to_string(place.shown("by.CSV")).unwrap(), text);
    let stated = place.shown("stated.txt");
    place.run(&format!("COPY (SELECT v FROM t) TO '{stated}' STORED AS CSV"));
    assert_eq!(fs::read_to_string(stated).unwrap(), text);
    for name in ["by.foo", "by", "by.json", "by.txt", "by.parquet.gz"] {
        let out = place.shown(name);
        let (told, hint) = refused(&place, &format!("COPY (SELECT v FROM t) TO '{out}'"));
        let reason = format!("cannot infer an output format from the name `{out}`");
        assert_eq!(told, format!("invalid_option: `STORED AS`: {reason}"));
        assert!(hint.contains("ZARR, NPY, NPZ, NETCDF") && hint.contains("ARROW"), "{hint}");
        assert!(!fs::exists(out).unwrap(), "{name}");
    }
}

#[test]
fn names_of_relations_are_all_of_them() {
    let place = Place::open(&[]);
    place.run(&format!(
        "CREATE TENSOR t AS SELECT reshape(arange(6), [2, 3], dims => ['y', 'x']) AS v; \
         CREATE VIEW \"the rows\" AS {ROWS}"
    ));
    let table = place.shown("table.csv");
    place.run(&format!("COPY (SELECT * FROM t) TO '{table}'"));
    place.run(&format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION '{table}'"));
    let all = fs::read_to_string(&table).unwrap();
    for (name, text) in
        [("t", all.as_str()), ("e", all.as_str()), ("\"the rows\"", "n,s\n1,a;b\n2,\n3,NA\n4,x\n")]
    {
        let out = place.shown("out.csv");
        place.run(&format!("COPY {name} TO '{out}' (OVERWRITE)"));
        assert_eq!(fs::read_to_string(out).unwrap(), text, "{name}");
    }
    let store = place.shown("out.zarr");
    place.run(&format!("COPY t TO '{store}' WITH (codec 'zstd:3', chunks '[1, 3]')"));
    let sum = place.lines(&format!("SELECT sum(v) AS s FROM '{store}'")).unwrap();
    assert!(sum.concat().contains("15"), "{sum:?}");
    let (told, _) = refused(&place, &format!("COPY nobody TO '{}'", place.shown("no.csv")));
    assert!(told.starts_with("unknown_name: "), "{told}");
    let plan = place.lines(&format!("EXPLAIN COPY t TO '{}'", place.shown("no.zarr")));
    assert!(!plan.unwrap().is_empty());
}

/// Dimensions and cells are those of netCDF4 for the source.
#[test]
fn all_of_a_dataset_keeps_the_dimensions_of_its_variables() {
    let place = Place::open(&[]);
    let all = "FROM 'tests/data/formats/hdf5/netcdf4.nc'";
    let (store, file) = (place.shown("all.zarr"), place.shown("all.nc"));
    let (told, hint) = refused(&place, &format!("COPY (SELECT * {all}) TO '{store}'"));
    assert!(told.contains("`pairs`") && hint.contains("* EXCLUDE (pairs)"), "{told} {hint}");
    let most = format!("SELECT * EXCLUDE (pairs, ragged, label) {all}");
    place.run(&format!("COPY ({most}) TO '{store}' (chunks '[1, 5, 7]')"));
    place.run(&format!("COPY ({most}) TO '{file}'"));
    for out in [store, file] {
        let shapes = place.lines(&format!("SELECT pair, scalar, sky, t2m FROM '{out}'")).unwrap();
        for shape in ["pair int8 [bare=3, x=4]", "scalar float64 []", "sky uint8 [lat=5]"] {
            assert!(shapes.iter().any(|line| line == shape), "{out}: {shape} in {shapes:?}");
        }
        let cell = "t2m[time => '2000-01-01', lat => -80, lon => 'c'] AS v";
        let cell = place.lines(&format!("SELECT {cell} FROM '{out}'")).unwrap();
        assert_eq!(cell.last().map(String::as_str), Some("2.5"), "{out}");
    }
}

/// The attributes of an array of a store, or of the store.
fn attributes(store: &str, array: &str) -> serde_json::Value {
    let text = fs::read_to_string(format!("{store}/{array}/zarr.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["attributes"].take()
}

/// The attributes are those of netCDF4 for the source; `coordinates` is where xarray writes it.
#[test]
fn all_of_a_dataset_keeps_its_attributes_and_coordinates() {
    let place = Place::open(&[]);
    let copy = |query: &str, out: &str| {
        let out = place.shown(out);
        place.run(&format!("COPY ({query}) TO '{out}'"));
        out
    };
    let cells = copy("SELECT t2m, sky FROM 'tests/data/formats/hdf5/netcdf4.nc'", "a.zarr");
    let cells = copy(&format!("SELECT * FROM '{cells}'"), "a.nc");
    let cells = copy(&format!("SELECT t2m * 2 AS v FROM '{cells}'"), "b.zarr");
    let of = attributes(&cells, ".");
    assert_eq!(of["title"], "t");
    assert_eq!(of["number"], 2.5);
    assert_eq!(of["list"], serde_json::json!([0, 1, 2]));
    assert_eq!(of["Conventions"], "CF-1.11");
    let height = copy("SELECT ta, height FROM 'tests/data/stores/cmip.zarr'", "c.zarr");
    let height = copy(&format!("SELECT * FROM '{height}'"), "c.nc");
    place.run(&format!("CREATE TENSOR c AS SELECT * FROM '{height}'"));
    let height = copy("SELECT * FROM c", "d.zarr");
    assert_eq!(attributes(&height, "ta")["coordinates"], "height");
    assert!(attributes(&height, "height").get("coordinates").is_none());
    assert!(attributes(&height, ".").get("coordinates").is_none());
    // A coordinate of nothing is data.
    let alone = copy("SELECT height FROM 'tests/data/stores/cmip.zarr'", "e.zarr");
    assert!(attributes(&alone, ".").get("coordinates").is_none());
}

/// The texts are those of DuckDB for the same options.
#[test]
fn csv_has_the_options_of_other_databases() {
    let place = Place::open(&[]);
    let out = place.shown("out.csv");
    for (options, text) in [
        ("(FORMAT csv, HEADER true, DELIMITER ';')", "n;s\n1;\"a;b\"\n2;\n3;NA\n4;x\n"),
        (
            "WITH (FORMAT csv, HEADER false, DELIMITER ';', NULLSTR 'NA')",
            "1;\"a;b\"\n2;NA\n3;\"NA\"\n4;x\n",
        ),
        ("(FORMAT 'csv', HEADER, DELIM '|', NULL '-')", "n|s\n1|a;b\n2|-\n3|NA\n4|x\n"),
        (
            "STORED AS CSV OPTIONS (delimiter '\\t', null 'x', header off)",
            "1\ta;b\n2\tx\n3\tNA\n4\t\"x\"\n",
        ),
    ] {
        place.run(&format!("COPY ({ROWS}) TO '{out}' {options}"));
        assert_eq!(fs::read_to_string(&out).unwrap(), text, "{options}");
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn parquet_has_its_options() {
    let place = Place::open(&[]);
    for (i, options) in [
        "(FORMAT parquet)",
        "(FORMAT PARQUET, COMPRESSION zstd)",
        "(FORMAT parquet, COMPRESSION 'zstd:7', ROW_GROUP_SIZE 1000)",
        "STORED AS PARQUET OPTIONS (compression 'lz4')",
        "WITH (FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE 2999, overwrite true)",
    ]
    .iter()
    .enumerate()
    {
        let out = place.shown(&format!("out{i}.parquet"));
        place.run(&format!("COPY (SELECT arange(3000) AS v) TO '{out}' {options}"));
        let lines = place.lines(&format!("SELECT sum(v), count(*), min(v) FROM '{out}'"));
        assert_eq!(lines.unwrap(), ["4498500 3000 0"], "{options}");
    }
}

#[test]
fn options_that_a_format_does_not_have_are_refused() {
    let place = Place::open(&[]);
    let out = place.shown("out");
    for (options, reason, part) in [
        ("(FORMAT csv, DELIMITER '.')", "`delimiter`: `.` cannot separate", "one character"),
        ("(FORMAT csv, DELIMITER 'ab')", "`delimiter`: `ab` cannot separate", "one character"),
        ("(FORMAT csv, NULL 'a,b')", "`null`: `a,b` cannot stand for NULL", "another text"),
        ("(FORMAT csv, HEADER maybe)", "`header`: `maybe` is neither", "true or false"),
        ("(FORMAT csv, QUOTE '''')", "`QUOTE`: unknown option", "header, delimiter, null"),
        ("(FORMAT csv, COMPRESSION zstd)", "unknown option", "STORED AS PARQUET"),
        ("(FORMAT parquet, HEADER)", "`HEADER`: unknown option", "STORED AS CSV"),
        ("(FORMAT parquet, COMPRESSION gzip)", "unknown compression `gzip`", "'snappy', 'zstd'"),
        ("(FORMAT parquet, ROW_GROUP_SIZE 0)", "`0` is not a row count", "1 or more"),
        ("(FORMAT parquet, ROW_GROUP_SIZE -1)", "`-1` is not a row count", "1 or more"),
        ("(FORMAT feather)", "`feather` cannot be written", "ARROW"),
    ] {
        let (told, hint) = refused(&place, &format!("COPY ({ROWS}) TO '{out}' {options}"));
        assert!(told.starts_with("invalid_option: ") && told.contains(reason), "{told}");
        assert!(hint.contains(part), "{options}: {hint}");
        assert!(!fs::exists(&out).unwrap(), "{options}");
    }
}

#[test]
fn texts_are_columns_of_tables_and_arrays() {
    let place = Place::open(&[]);
    let file = "tests/data/texts/classic.nc";
    let out = place.shown("stations.csv");
    place.run(&format!(
        "COPY (SELECT station_name, network, height FROM '{file}' WHERE height > 10) TO '{out}'"
    ));
    let text = fs::read_to_string(out).unwrap();
    assert_eq!(text, "station_name,network,height\nOslo,A,94\nKöln,B,53\n,A,12\nOslo,A,80\n");
    let all = place.shown("all.parquet");
    place.run(&format!("COPY (SELECT * FROM '{file}') TO '{all}'"));
    // 15 cells, of which those of one station have no name.
    let counted = place.lines(&format!(
        "SELECT count(*) AS n, count(station_name) AS named, max(centre) AS c FROM '{all}'"
    ));
    let counted = counted.unwrap().concat();
    assert!(counted.contains("15 12 Zürich"), "{counted}");
    let archive = place.shown("all.npz");
    let (told, hint) = refused(&place, &format!("COPY (SELECT * FROM '{file}') TO '{archive}'"));
    assert!(told.starts_with("format: ") && told.contains("consists of texts"), "{told}");
    assert!(hint.contains("* EXCLUDE (network)"), "{hint}");
    assert!(!fs::exists(archive).unwrap());
    let rest = "* EXCLUDE (network, station_name, centre, crs)";
    let numbers = place.shown("numbers.npz");
    place.run(&format!("COPY (SELECT {rest} FROM '{file}') TO '{numbers}'"));
}

#[test]
fn columns_are_left_out_and_renamed_without_rows() {
    let place = Place::open(&[]);
    let file = "tests/data/texts/classic.nc";
    let some = "* EXCLUDE (t, station_name, centre), t AS temperature, station_name AS name";
    let (store, copy) = (place.shown("some.zarr"), place.shown("some.nc"));
    for (query, out) in [
        (format!("SELECT {some} FROM '{file}'"), &store),
        (format!("SELECT * FROM (SELECT {some} FROM '{file}') s"), &copy),
    ] {
        place.run(&format!("COPY ({query}) TO '{out}'"));
        let shapes = place.lines(&format!("SELECT temperature, height FROM '{out}'")).unwrap();
        for shape in ["temperature float32 [time=3, station=5]", "height int16 [station=5]"] {
            assert!(shapes.iter().any(|line| line == shape), "{out}: {shape} in {shapes:?}");
        }
        let names =
            place.lines(&format!("SELECT count(*), count(name), count(network) FROM '{out}'"));
        assert_eq!(names.unwrap(), ["15 12 15"], "{out}");
        assert!(place.try_run(&format!("SELECT count(station_name) FROM '{out}'")).is_err());
    }
    let part = place.shown("part.zarr");
    place.run(&format!(
        "COPY (SELECT * FROM '{file}' WHERE station_name = 'Oslo' AND time > '2000-01-01') TO '{part}'"
    ));
    let shapes = place.lines(&format!("SELECT t, height FROM '{part}'")).unwrap();
    for shape in ["t float32 [time=2, station=2]", "height int16 [station=2]"] {
        assert!(shapes.iter().any(|line| line == shape), "{shape} in {shapes:?}");
    }
    let kept = place.lines(&format!("SELECT count(*), min(height), max(network) FROM '{part}'"));
    assert_eq!(kept.unwrap(), ["4 80 A"]);
    for (items, name) in [("*, t AS height", "height"), ("*, t AS x, height AS x", "x")] {
        let out = place.shown("twice.zarr");
        let (told, _) = refused(&place, &format!("COPY (SELECT {items} FROM '{file}') TO '{out}'"));
        assert!(told.starts_with("duplicate_name: ") && told.contains(name), "{told}");
    }
}

/// The texts are those of xarray for the source.
#[test]
fn texts_are_the_same_after_a_copy() {
    let place = Place::open(&[]);
    let mut at = "tests/data/texts/classic.nc".to_string();
    for (name, options) in [
        ("a.zarr", ""),
        ("b.nc", ""),
        ("c.zarr", "(zarr_format 2, codec 'none')"),
        ("d.zarr", "(codec 'blosc:lz4:5')"),
        ("e.nc", ""),
    ] {
        let out = place.shown(name);
        place.run(&format!("COPY (SELECT * FROM '{at}') TO '{out}' {options}"));
        at = out;
        let table = place.shown(&format!("{name}.csv"));
        place.run(&format!(
            "COPY (SELECT station_name || '!' AS s, network, height FROM '{at}' WHERE height > 0) TO '{table}'"
        ));
        let text = fs::read_to_string(table).unwrap();
        let want = "s,network,height\nOslo!,A,94\nKöln!,B,53\n,A,12\nOslo!,A,80\n!,B,7\n";
        assert_eq!(text, want, "{name}");
        let centre = place.lines(&format!("SELECT max(centre) AS c FROM CELLS('{at}')"));
        assert!(centre.unwrap().concat().contains("Zürich"), "{name}");
    }
    let store = place.shown("a.zarr");
    assert_eq!(attributes(&store, "station_name")["missing_value"], "NA");
    // Texts with one more row along their dimension would not be all of a dataset.
    let (told, _) = refused(
        &place,
        &format!(
            "COPY (SELECT * FROM '{at}') TO '{store}' STORED AS ZARR OPTIONS (append 'station')"
        ),
    );
    assert!(told.starts_with("unsupported: ") && told.contains("`network`"), "{told}");
}
