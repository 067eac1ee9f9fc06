#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};

/// A context with the table `t(id, s)`: '10', 'x', NULL, '3', '7'.
fn context() -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(1);
    let state = SessionStateBuilder::new().with_config(config).with_default_features();
    let state = state.with_optimizer_rules(super::super::optimizer::rules()).build();
    let context = SessionContext::new_with_state(state);
    let texts = [Some("10"), Some("x"), None, Some("3"), Some("7")];
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]));
    let texts: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    let batch = RecordBatch::try_from_iter([("id", ids), ("s", texts)]).unwrap();
    context.register_batch("t", batch).unwrap();
    context
}

async fn analysed(context: &SessionContext, sql: &str) -> LogicalPlan {
    let state = context.state();
    let plan = state.create_logical_plan(sql).await.unwrap();
    state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).unwrap()
}

async fn physical(context: &SessionContext, plan: LogicalPlan) -> Arc<dyn ExecutionPlan> {
    let state = context.state();
    let plan = settled(state.optimize(&rewrite(plan).unwrap()).unwrap()).unwrap();
    state.query_planner().create_physical_plan(&plan, &state).await.unwrap()
}

/// The rows of a query, with values separated by spaces.
async fn rows(sql: &str) -> Vec<String> {
    let context = context();
    let plan = physical(&context, analysed(&context, sql).await).await;
    let batches = match collect(plan, context.task_ctx()).await {
        Ok(batches) => batches,
        Err(error) => return vec![error.to_string()],
    };
    let shown = pretty_format_batches(&batches).unwrap().to_string();
    let rows = shown.lines().filter(|line| line.starts_with('|')).skip(1);
    let values = |row: &str| row.split('|').map(str::trim).collect::<Vec<_>>().join(" ");
    rows.map(|row| values(row).trim().to_string()).collect()
}

const NUMBER: &str = "s ~ '^[0-9]+$'";

// The values are DuckDB's; it has those of SELECT and FILTER with `TRY_CAST`.
#[tokio::test]
async fn excluded_rows_do_not_fail() {
    let inner = format!("SELECT * FROM t WHERE {NUMBER}");
    for (sql, want) in [
        (format!("SELECT id FROM t WHERE {NUMBER} AND s::int > 5 ORDER BY id"), "1,5"),
        (format!("SELECT id FROM t WHERE {NUMBER} AND NOT s::int > 5 ORDER BY id"), "4"),
        (
            format!("SELECT id FROM t WHERE s IS NULL OR {NUMBER} AND s::int > 5 ORDER BY id"),
            "1,3,5",
        ),
        (format!("SELECT id FROM t WHERE (NOT {NUMBER} OR s::int > 5) ORDER BY id"), "1,2,5"),
        ("SELECT id FROM t WHERE id <> 3 AND 10 / (id - 3) > 1 ORDER BY id".into(), "4,5"),
        ("SELECT id FROM t WHERE id = 3 OR 10 / (id - 3) > 1 ORDER BY id".into(), "3,4,5"),
        (
            format!("SELECT {NUMBER} AND s::int > 5 AS v FROM t ORDER BY id"),
            "true,false,,false,true",
        ),
        (format!("SELECT NOT {NUMBER} OR s::int > 5 FROM t ORDER BY id"), "true,true,,false,true"),
        (
            format!("SELECT CASE WHEN {NUMBER} THEN s::int > 5 END FROM t ORDER BY id"),
            "true,,,false,true",
        ),
        (
            format!(
                "SELECT CASE WHEN {NUMBER} AND s::int > 5 THEN 1 ELSE 0 END FROM t ORDER BY id"
            ),
            "1,0,0,0,1",
        ),
        (format!("WITH d AS ({inner}) SELECT s::int FROM d WHERE s::int > 5 ORDER BY id"), "10,7"),
        (
            format!(
                "WITH d AS (SELECT s::int AS n FROM t WHERE {NUMBER}) \
                 SELECT n FROM d WHERE n > 5 ORDER BY n"
            ),
            "7,10",
        ),
        (
            format!(
                "WITH d AS ({inner} AND s::int <> 3) \
                 SELECT id FROM d WHERE 12 / (s::int - 3) > 1 ORDER BY id"
            ),
            "5",
        ),
        (format!("SELECT s FROM t GROUP BY s HAVING {NUMBER} AND s::int > 5 ORDER BY s"), "10,7"),
        (
            format!(
                "SELECT id % 2 AS k, sum(s::int) FILTER (WHERE {NUMBER}) FROM t \
                 GROUP BY id % 2 ORDER BY k"
            ),
            "0 3,1 17",
        ),
        (format!("SELECT count(*) FILTER (WHERE {NUMBER} AND s::int > 5) FROM t"), "2"),
        (
            format!(
                "SELECT t.id, u.id FROM t JOIN t u ON t.{NUMBER} AND t.s::int = u.id ORDER BY t.id"
            ),
            "4 3",
        ),
        (
            format!(
                "SELECT t.id, u.id FROM t LEFT JOIN t u ON t.{NUMBER} AND t.s::int = u.id \
                 ORDER BY t.id"
            ),
            "1,2,3,4 3,5",
        ),
    ] {
        assert_eq!(rows(&sql).await.join(","), want, "{sql}");
    }
}

#[tokio::test]
async fn rows_that_no_condition_excludes_fail() {
    for sql in [
        "SELECT id FROM t WHERE id > 1 AND s::int > 5",
        "SELECT id FROM t WHERE id > 4 OR s::int > 5",
        "SELECT id > 1 AND s::int > 5 FROM t",
        "SELECT sum(s::int) FILTER (WHERE id > 1) FROM t",
    ] {
        let told = rows(sql).await.join(",");
        assert!(told.contains("Cannot cast string 'x'"), "{sql}: {told}");
    }
}

#[tokio::test]
async fn plans_without_such_expressions_stay_as_they_are() {
    let context = context();
    for sql in [
        "SELECT id FROM t WHERE id > 1 AND s LIKE '%1%' AND id + 1 < 9 AND id % 3 = 1",
        "SELECT id > 1 OR s ~ 'x' FROM t",
        "SELECT id FROM t WHERE s::int > 5",
        "SELECT count(id * 2) FILTER (WHERE id > 1) FROM t",
        "SELECT t.id FROM t JOIN t u ON t.id = u.id AND t.s < u.s",
    ] {
        let plan = analysed(&context, sql).await;
        assert_eq!(rewrite(plan.clone()).unwrap(), plan, "{sql}");
        let plan = context.state().optimize(&plan).unwrap();
        assert_eq!(settled(plan.clone()).unwrap(), plan, "{sql}");
    }
}

#[tokio::test]
async fn a_plan_is_guarded_once() {
    let context = context();
    for sql in [
        format!("SELECT id FROM t WHERE {NUMBER} AND s::int <> 3 AND 12 / (s::int - 3) > 1"),
        format!("SELECT {NUMBER} AND s::int <> 3 AND 12 / (s::int - 3) > 1 FROM t"),
        format!("SELECT sum(s::int) FILTER (WHERE {NUMBER}) FROM t"),
    ] {
        let once = rewrite(analysed(&context, &sql).await).unwrap();
        assert_eq!(rewrite(once.clone()).unwrap(), once, "{sql}");
        assert!(once.to_string().contains(function::NAME), "{once}");
    }
}

#[tokio::test]
async fn keys_of_joins_stay_keys() {
    let context = context();
    let sql =
        format!("SELECT t.id FROM t, t u WHERE t.{NUMBER} AND t.id < u.id AND t.s::int = u.id");
    let plan = rewrite(analysed(&context, &sql).await).unwrap();
    let plan = context.state().optimize(&plan).unwrap();
    let keys = plan.any(|node| Ok(matches!(node, LogicalPlan::Join(join) if join.on.len() == 1)));
    assert!(keys.unwrap(), "{plan}");
}

#[tokio::test]
async fn conditions_on_one_cast_have_the_same_guards() {
    let context = context();
    let conditions = "s::int > 5 AND s::int < 9 AND s::int <> 8";
    for sql in [
        format!("SELECT id FROM t WHERE {NUMBER} AND {conditions}"),
        format!("SELECT {NUMBER} AND {conditions} AS v FROM t"),
    ] {
        let plan = rewrite(analysed(&context, &sql).await).unwrap().to_string();
        assert_eq!(plan.matches(function::NAME).count(), 3, "{plan}");
    }
    // Here the first cast is evaluated for some rows only, so it says nothing of the second one.
    let sql = format!(
        "SELECT id FROM t WHERE (id < 9 OR s::int > 5) AND {NUMBER} AND s::int > 5 ORDER BY id"
    );
    assert_eq!(rows(&sql).await, ["1", "5"]);
}

#[tokio::test]
async fn a_long_chain_does_not_grow_without_bounds() {
    let context = context();
    let parts: Vec<String> = (0..60).map(|k| format!("12 / (s::int - {k}) <> 99")).collect();
    let sql = format!("SELECT id FROM t WHERE {NUMBER} AND {}", parts.join(" AND "));
    let plan = rewrite(analysed(&context, &sql).await).unwrap();
    let mut total = 0;
    plan.each_of_all(|node| {
        node.each_expr(|expr| {
            total += size(expr)?;
            Ok(TreeNodeRecursion::Continue)
        })
    })
    .unwrap();
    assert!((60..60 * 2 * FALLIBLE_MAX).contains(&total), "{total}");
    let parts: Vec<String> = (0..12).map(|k| format!("s::int <> {k}")).collect();
    let sql = format!("SELECT id FROM t WHERE {NUMBER} AND {}", parts.join(" AND "));
    assert_eq!(rows(&sql).await, Vec::<String>::new());
}
