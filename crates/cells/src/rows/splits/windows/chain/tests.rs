#![allow(clippy::unwrap_used, reason = "tests")]
//! Which windows are computed here, and which of them together.

use super::super::super::{SplitSize, with_splits};
use crate::rows::physical::in_order;
use datafusion::physical_plan::displayable;
use datafusion::prelude::{SessionConfig, SessionContext};

/// Number of window operators of this crate, and of DataFusion.
async fn operators(sql: &str) -> (usize, usize) {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let context = SessionContext::new_with_state(in_order(&context.state()));
    let table = "(VALUES (1, 1, 2.0), (1, 2, 3.0), (2, 2, 1.0), (2, 5, NULL)) v(g, i, x)";
    let sql = sql.replace("FROM v", &format!("FROM {table}"));
    let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
    let plan = with_splits(plan, SplitSize::of(16 << 10)).unwrap();
    let shown = displayable(plan.as_ref()).indent(false).to_string();
    let named = |names: &[&str]| {
        let is_named = |line: &&str| names.iter().any(|name| line.trim_start().starts_with(name));
        shown.lines().filter(is_named).count()
    };
    (named(&["WindowsExec"]), named(&["BoundedWindowAggExec", "WindowAggExec"]))
}

#[tokio::test]
async fn windows_above_one_order_are_computed_together() {
    for (sql, expected) in [
        // Columns with other names.
        ("SELECT j, sum(y) OVER (ORDER BY j) FROM (SELECT i AS j, x AS y FROM v) q", (1, 0)),
        // Other functions beside.
        ("SELECT sum(x) OVER (ORDER BY i), lag(x) OVER (ORDER BY i) FROM v", (1, 0)),
        // A part of the order.
        (
            "SELECT sum(x) OVER (PARTITION BY g ORDER BY i), count(x) OVER (PARTITION BY g) FROM v",
            (1, 0),
        ),
        // The result of another window.
        (
            "SELECT sum(r * x) OVER (PARTITION BY g ORDER BY i ROWS 1 PRECEDING) FROM (SELECT g, i, x, rank() OVER (PARTITION BY g ORDER BY i) AS r FROM v) q",
            (1, 0),
        ),
        // The opposite order: DataFusion turns the frame around.
        ("SELECT sum(x) OVER (ORDER BY i), sum(x) OVER (ORDER BY i DESC) FROM v", (1, 0)),
        // Partitions of which some are computed at the same time, below all rows.
        (
            "SELECT sum(s) OVER (ORDER BY g, i) FROM (SELECT g, i, sum(x) OVER (PARTITION BY g ORDER BY i) AS s FROM v) q",
            (2, 0),
        ),
        ("SELECT lag(x) OVER (ORDER BY i) FROM v", (0, 1)),
        // Lists, which are not held for whole partitions.
        ("SELECT sum(x) OVER (ORDER BY i), array_agg(x) OVER (ORDER BY i) FROM v", (0, 1)),
        (
            "SELECT sum(x) OVER (PARTITION BY g ORDER BY i), array_agg(x) OVER (PARTITION BY g) FROM v",
            (1, 1),
        ),
        // Texts that a projection makes on the way to numbers.
        (
            "SELECT sum(n) OVER (PARTITION BY g ORDER BY i) FROM (SELECT g, i, length(repeat('ab', CAST(r AS BIGINT))) AS n FROM (SELECT g, i, rank() OVER (PARTITION BY g ORDER BY i) AS r FROM v) q) s",
            (1, 1),
        ),
    ] {
        assert_eq!(operators(sql).await, expected, "{sql}");
    }
}
