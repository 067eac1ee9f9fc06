//! Results that are returned in the response to their statement.

use super::Server;
use serde_json::json;

#[test]
fn few_rows_of_a_wide_table_come_at_once() {
    let s = Server::start(&[], &[]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wide.parquet").display().to_string();
    let columns: Vec<String> = (0..40).map(|i| format!("arange(65536) + {i} AS c{i:02}")).collect();
    let copy = format!("COPY (SELECT {}) TO '{file}' STORED AS PARQUET", columns.join(", "));
    assert_eq!(s.submit(&json!({"sql": copy})).status, 200);
    for (count, most) in [(1, 40_000), (7, 60_000)] {
        let sql = format!("SELECT * FROM '{file}' LIMIT {count}");
        let reply = s.submit(&json!({"sql": sql}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answer = reply.json();
        let rows = answer["result"]["rows"].as_array().unwrap();
        assert_eq!(rows.len(), count);
        // The first column is the dimension.
        assert!(rows.iter().all(|row| row[40].as_i64() == row[1].as_i64().map(|c| c + 39)));
        let bytes = answer["result_bytes"].as_u64().unwrap();
        assert!(bytes < most, "{bytes}");
    }
    // Many rows do not.
    let all = s.submit(&json!({"sql": format!("SELECT * FROM '{file}'")}));
    assert_eq!(all.status, 202);
}
