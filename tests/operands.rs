//! Errors of kernels name the operand that raised them: the stage, its chunk and the cells, for errors of every class.

use crate::cluster::{Cluster, patient};
use crate::common::Place;

/// A statement, its code, and the texts of its detail: the operand, the chunk of how many, the cells.
const FAILURES: [(&str, &str, [&str; 3]); 8] = [
    // 2^62 + 2^62 overflows, in the last of four chunks.
    (
        "SELECT cumsum(where(arange(12, chunks => [3]) < 8, 1, 4611686018427387904))",
        "integer_overflow",
        ["operand `scan`", "chunk [3] of [4]", "cells [9:12]"],
    ),
    (
        "SELECT sum(x, 1) FROM (SELECT where(reshape(arange(48), [6, 8]) < 40, 1, 4611686018427387904) AS x) t",
        "integer_overflow",
        ["operand `combine sum`", "chunk [0, 0] of [1, 1]", "cells [0:6, 0:1]"],
    ),
    (
        "SELECT inv(stack([eye(3), zeros([3, 3]), eye(3)]))",
        "singular_matrix",
        [
            "operand `inv of a whole matrix [3, 3]`",
            "chunk [0, 0, 0] of [1, 1, 1]",
            "cells [0:3, 0:3, 0:3]",
        ],
    ),
    (
        "SELECT cholesky(zeros([3, 3]))",
        "not_positive_definite",
        [
            "operand `cholesky of a whole matrix [3, 3]`",
            "chunk [0, 0] of [1, 1]",
            "cells [0:3, 0:3]",
        ],
    ),
    (
        "SELECT svd(n).s FROM 'tests/data/cases.zarr'",
        "not_finite",
        ["operand `svd of a whole matrix [5, 5]`", "chunk [0, 0] of [1, 1]", "cells [0:5, 0:5]"],
    ),
    (
        "SELECT bincount(i) FROM 'tests/data/cases.zarr'",
        "domain_error",
        ["operand `bin`", "chunk [0, 0] of [1, 1]", "cells [0:5, 0:7]"],
    ),
    (
        "SELECT rolling(edge, 'sum', dim_0 => 2) FROM 'tests/data/cases.zarr'",
        "integer_overflow",
        ["operand `window sum`", "chunk [0] of [1]", "cells [0:3]"],
    ),
    // Dense cells are operands too.
    (
        "SELECT dim_0 % 2 AS k, sum(i * 0 + 9223372036854775807) FROM CELLS((SELECT i FROM 'tests/data/cases.zarr')) GROUP BY 1",
        "integer_overflow",
        ["operand `combine sum`", "chunk [0, 0] of [1, 1]", "cells [0:2, 0:1]"],
    ),
];

#[test]
fn a_kernel_that_fails_names_its_operand_and_chunk() {
    let place = Place::open(&[]);
    for (sql, code, words) in &FAILURES {
        let error = place.try_run(sql).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), *code, "{sql}: {}", error.render(sql));
        let detail = error.detail().unwrap_or_default();
        for word in words {
            assert!(detail.contains(word), "{sql}: {word} is not in `{detail}`");
        }
    }
}

/// On a worker the message also names the worker.
#[test]
fn a_kernel_that_fails_on_a_worker_names_operand_chunk_and_worker() {
    let cluster = Cluster::start_in(patient(), 2);
    let workers = cluster.alive();
    let address = |w: &serde_json::Value| w["address"].as_str().unwrap().to_owned();
    let names: Vec<String> =
        workers.iter().map(|w| format!("(worker {}, {})", w["worker"], address(w))).collect();
    for (sql, code, words) in &FAILURES {
        let reply = cluster.query(sql);
        assert_eq!(reply.code(), *code, "{sql}: {}", reply.body);
        let error = reply.json()["error"].clone();
        let message = error["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{sql}: {word} is not in `{message}`");
        }
        assert!(names.iter().any(|name| message.ends_with(name)), "{sql}: {names:?}, `{message}`");
    }
}

/// With tiny chunks it is the chunk that has the cell.
#[test]
fn the_chunk_is_the_one_that_has_the_cell() {
    let place = Place::open(&[]);
    place.run("SET tessera.chunk_bytes_target = '64'");
    // One exponent is negative: that of cell 38, in chunks of five.
    let sql = "SELECT 2 ^ where(arange(40) = 38, -1, arange(40) % 3)";
    let error = place.try_run(sql).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), "domain_error", "{}", error.render(sql));
    let detail = error.detail().unwrap_or_default();
    assert!(detail.contains("operand `fused`, chunk [7] of [8], cells [35:40]"), "{detail}");
    // The body of an HTTP response has the same.
    let body = error.to_json(None);
    assert!(body["error"]["detail"].as_str().is_some_and(|d| d.contains("chunk [7]")), "{body}");
}
