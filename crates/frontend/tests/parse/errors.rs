//! How errors read.

use tessera_frontend::{Class, parse};

#[test]
fn renderings() {
    let scripts = [
        "SELCT 1",
        "foo",
        "42",
        "SELECT a b c FROM x",
        "SELECT a FORM x",
        "SELECT a FROM x WEHRE b",
        "SELECT a FROM x GRUOP BY b",
        "SELECT a,, b FROM x",
        "SELECT FROM x",
        "SELECT (a FROM x",
        "SELECT a[] FROM x",
        "SELECT a[0, FROM x",
        "SELECT a[1:2:3:4] FROM x",
        "SELECT a[1 2] FROM x",
        "SELECT a[lat => ...] FROM x",
        "SELECT a[..] FROM x",
        "SELECT a := 1 FROM x",
        "SELECT a +",
        "SELECT 1;\nSELECT 'é', x y z;\nSELECT 2",
        "SELECT *\nFROM (\n  SELECT a b c\n  FROM x\n) y",
        "SELECT * FROM (SELECT * FROM (SELECT a FROM x WHERE) y) z",
        "SELECT 'abc",
        "SELECT 1;\n  /* never",
        "SELECT \"abc",
        "SELECT U&'\\zzzz'",
        "SELECT \u{0} FROM x",
        "SELECT a FROM x[0]",
        "SELECT a FROM x AS y AT z",
        "SELECT a INTO y FROM x",
        "SELECT a FROM x FOR UPDATE",
        "UPDATE x SET a = 1",
        "FROM x SELECT a WEHRE b",
        "FROM x, y USING SAMPLE 10%",
        "CREATE TABLE x (a int)",
        "CREATE TENSR x AS SELECT 1",
        "CREATE TENSOR x SELECT 1",
        "CREATE OR REPLACE TENSOR IF NOT EXISTS x AS SELECT 1",
        "CREATE EXTERNAL TABLE x STORED AS ZARR",
        "CREATE EXTERNAL TABLE x LOCATION 'x'",
        "CREATE EXTERNAL TABLE x STORED AS ZARR LOCATION 'x' OPTIONS (a 1, A 2)",
        "COPY SELECT 1 TO 'y' STORED AS NPY",
        "COPY x (a, b) TO 'y'",
        "COPY x FROM 'y'",
        "COPY x TO 'y' STORED AS NPY (FORMAT csv)",
        "COPY x TO 'y' (HEADER =)",
        "COPY (SELECT 1) TO y STORED AS NPY",
        "EXPLAIN (FORMAT xml) SELECT 1",
        "EXPLAIN SHOW ALL",
        "EXPLAIN EXPLAIN SELECT 1",
        "CANCEL QUERY 7",
        "SET a 1",
        "DESCRIBE SELECT",
        "SHOW",
    ];
    let text: Vec<String> = scripts
        .iter()
        .map(|script| {
            let error = match parse(script) {
                Ok(parsed) => panic!("{script:?} was parsed into {parsed:?}"),
                Err(error) => error,
            };
            assert_eq!(error.class(), Class::User);
            format!("{}\n{}", script.escape_debug(), error.render(script))
        })
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn a_long_line_is_shown_in_part() {
    let script = format!("SELECT {} FROM x y z", vec!["a"; 300].join(", "));
    let rendered = parse(&script).unwrap_err().render(&script);
    let lines: Vec<&str> = rendered.lines().collect();
    assert!(lines[1].chars().count() < 140, "{rendered}");
    let under = lines[2].chars().position(|c| c == '^').unwrap();
    assert_eq!(lines[1].chars().nth(under), Some('z'), "{rendered}");
}
