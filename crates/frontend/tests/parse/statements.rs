//! Statements other than queries, and when input is complete.

use tessera_frontend::{is_complete, parse};

use crate::sexpr::statement_of;

#[test]
fn statements() {
    let script = "
create temp tensor x as select 1;
CREATE OR REPLACE TENSOR s.x AS SELECT arange(3);
CREATE TENSOR IF NOT EXISTS \"my x\" AS WITH a AS (SELECT 1) SELECT * FROM a;
CREATE OR REPLACE EXTERNAL TENSOR e LOCATION 'x.npy' STORED AS NPY;
CREATE EXTERNAL TABLE IF NOT EXISTS e STORED AS ZARR OPTIONS (aws.endpoint 'http://h', 'a' = -1, n 2GiB, b true) LOCATION 'x';
CREATE VIEW v AS (SELECT x FROM y);
COPY (SELECT x FROM y) TO 'o.npy' STORED AS NPY;
COPY (SELECT x FROM y) TO 'o.csv';
COPY (SELECT x FROM y) TO 'o' (FORMAT parquet, compression 'zstd');
COPY s.\"my x\" TO 'o.csv' WITH (FORMAT 'CSV', HEADER, DELIMITER ';', null = '-');
COPY x TO 'o' STORED AS CSV OPTIONS (header false, overwrite);
DROP TENSOR x;
DROP TABLE IF EXISTS x;
DROP VIEW v;
EXPLAIN SELECT 1;
EXPLAIN ANALYZE VERBOSE (FORMAT dot) SELECT 1;
EXPLAIN (SELECT 1);
EXPLAIN (FORMAT text) CREATE TEMP TENSOR x AS SELECT 1;
EXPLAIN COPY (SELECT x FROM y) TO 'o' STORED AS ZARR;
CANCEL QUERY '0190-ab';
SET tessera.memory_limit = '2GiB';
SET threads TO 4;
SET a = -1.5;
SHOW TENSORS; SHOW queries; SHOW WORKERS; SHOW FUNCTIONS; SHOW ALL; SHOW tessera.threads;
DESCRIBE x; DESC s.x; DESCRIBE 's3://b/x.zarr'; DESCRIBE SELECT mean(x, 0) FROM y;
VALUES (1), (2);
(SELECT 1) UNION ALL (SELECT 2);
SELECT v FROM read_zarr('u', \"group\" => 'x') z, CELLS(x[0:3]) c, 'a.zarr' AS a;
";
    insta::assert_snapshot!(statement_of(script));
}

#[test]
fn nothing_is_no_statement() {
    for script in ["", " \n", ";", ";;", "-- only a comment", "/* ; */ ;"] {
        assert!(parse(script).unwrap().is_empty(), "{script:?}");
    }
}

#[test]
fn input_is_complete_when_a_prompt_may_run_it() {
    let complete = [
        "",
        "-- x",
        "SELECT 1;",
        "SELECT 1; SELECT 2; ",
        "SELECT ';' ; -- more",
        "SELECT );",
        "SELECT '\u{1}';",
        "select 'a''b';",
    ];
    for input in complete {
        assert!(is_complete(input), "{input:?}");
    }
    let open = [
        "SELECT 1",
        "SELECT 1; SELECT 2",
        "SELECT ';",
        "SELECT \"a;",
        "SELECT (1;",
        "SELECT a[;",
        "/* ; ",
        "/* /* */ ;",
        "SELECT 1 -- ;",
        "SELECT 'it''s;",
        "SELECT E'a\\';",
        "SELECT `a;",
    ];
    for input in open {
        assert!(!is_complete(input), "{input:?}");
    }
}
