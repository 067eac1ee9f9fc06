//! Expressions over columns with few distinct values, and how often they are evaluated.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use arrow::array::{
    Date32Array, DictionaryArray, Int64Array, LargeStringArray, StringArray, StringViewArray,
    UInt32Array,
};
use arrow::datatypes::{Field, Int32Type};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{Operator, ScalarFunctionImplementation, Volatility, create_udf};
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use std::sync::atomic::AtomicUsize;

const TEXTS: [Option<&str>; 7] = [
    Some(""),
    Some("a"),
    None,
    Some("ä€"),
    Some("twelve bytes and more, one"),
    Some("twelve bytes and more, two"),
    Some("twelve bytes"),
];

/// `column || '!'` as a text, `none` for NULL. It counts the values that it reads and fails at those with `bad`.
fn marked(column: Arc<dyn PhysicalExpr>, count: &Arc<AtomicUsize>) -> Arc<dyn PhysicalExpr> {
    let count = count.clone();
    let of_values = move |args: &[ColumnarValue]| -> Result<ColumnarValue> {
        let values = cast(&args[0].to_array(1)?, &DataType::Utf8)?;
        count.fetch_add(values.len(), Relaxed);
        let marked = values.as_string::<i32>().iter().map(|value| match value {
            Some(bad) if bad.contains("bad") => Err(DataFusionError::Execution(bad.into())),
            value => Ok(value.map_or("none".into(), |value| format!("{value}!"))),
        });
        let marked: StringArray = marked.collect::<Result<Vec<String>>>()?.into();
        Ok(ColumnarValue::Array(Arc::new(marked)))
    };
    call(column, DataType::Utf8, Volatility::Immutable, Arc::new(of_values))
}

fn call(
    column: Arc<dyn PhysicalExpr>,
    returns: DataType,
    volatility: Volatility,
    of_values: ScalarFunctionImplementation,
) -> Arc<dyn PhysicalExpr> {
    let field = Arc::new(Field::new("marked", returns.clone(), true));
    let function = create_udf("marked", vec![DataType::Utf8], returns, volatility, of_values);
    let (function, options) = (Arc::new(function), Arc::new(ConfigOptions::default()));
    Arc::new(ScalarFunctionExpr::new("marked", function, vec![column], field, options))
}

fn column(name: &str, at: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(name, at))
}

/// A batch of numbers, all different, and these values.
fn batch(values: ArrayRef) -> RecordBatch {
    let numbers: Int64Array = (0..values.len() as i64).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("n", Arc::new(numbers) as ArrayRef, false),
        ("s", values, true),
    ])
    .unwrap()
}

fn texts(rows: usize) -> impl Iterator<Item = Option<&'static str>> {
    (0..rows).map(|row| TEXTS[row * row % 11 % TEXTS.len()])
}

fn evaluated(expr: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> ArrayRef {
    expr.evaluate(batch).unwrap().into_array(batch.num_rows()).unwrap()
}

/// The number of values that an expression reads for a batch, whose results are compared with those of `marked` alone.
fn read(expr: &Arc<dyn PhysicalExpr>, count: &AtomicUsize, batch: &RecordBatch) -> usize {
    count.store(0, Relaxed);
    let got = evaluated(expr, batch);
    let read = count.load(Relaxed);
    let want = evaluated(&marked(column("s", 1), &Arc::default()), batch);
    assert_eq!(&got, &want);
    read
}

#[test]
fn each_value_of_each_type_is_evaluated_once() {
    let of = |rows| texts(rows).collect::<Vec<_>>();
    let dates = (0..2000_i32).map(|row| (row % 5 > 0).then_some(row % 5)).collect::<Date32Array>();
    let numbers = (0..2000_i64).map(|row| (row % 7 > 0).then_some(row % 7)).collect::<Int64Array>();
    let kinds = |values: &[Option<&str>]| {
        let mut kinds = values.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        kinds.len()
    };
    let (all, part) = (kinds(&of(2000)), kinds(&of(2000)[3..703]));
    assert!(all > 4 && of(2000).contains(&None));
    let forms: [(ArrayRef, usize, usize); 6] = [
        (Arc::new(StringArray::from(of(2000))), all, part),
        (Arc::new(LargeStringArray::from(of(2000))), all, part),
        (Arc::new(StringViewArray::from(of(2000))), all, part),
        (Arc::new(texts(2000).collect::<DictionaryArray<Int32Type>>()), all, part),
        (Arc::new(dates), 5, 5),
        (Arc::new(numbers), 7, 7),
    ];
    for (values, all, part) in forms {
        let of = values.data_type().clone();
        let count = Arc::default();
        let expr = per_value(marked(column("s", 1), &count)).unwrap();
        assert_eq!(expr.to_string(), "marked(s@1)");
        let batch = batch(values);
        assert_eq!(read(&expr, &count, &batch), all, "{of}");
        assert_eq!(read(&expr, &count, &batch.slice(3, 700)), part, "{of}");
        // Few rows are not searched.
        assert_eq!(read(&expr, &count, &batch.slice(5, 40)), 40, "{of}");
        assert_eq!(read(&expr, &count, &batch.slice(5, 0)), 0, "{of}");
    }
}

#[test]
fn all_rows_may_be_null() {
    let count = Arc::default();
    let expr = per_value(marked(column("s", 1), &count)).unwrap();
    let nulls: ArrayRef = Arc::new(StringViewArray::from(vec![None::<&str>; 500]));
    assert_eq!(read(&expr, &count, &batch(nulls)), 1);
}

#[test]
fn an_unsuccessful_search_is_retried_later() {
    let count = Arc::default();
    let expr = per_value(marked(column("s", 1), &count)).unwrap();
    let many = (0..4096).map(|row| format!("text {}", row * 7919)).map(Some);
    let many = batch(Arc::new(many.collect::<StringViewArray>()));
    let few = batch(Arc::new(texts(4096).collect::<StringViewArray>()));
    let kinds = read(&expr, &count, &few);
    assert!(kinds <= TEXTS.len());
    assert_eq!(read(&expr, &count, &many), 4096);
    // One batch goes without a search.
    assert_eq!(read(&expr, &count, &few), 4096);
    assert_eq!(read(&expr, &count, &few), kinds);
}

#[test]
fn unsuccessful_searches_become_rare() {
    let searches = Searches::default();
    let tried = (0..1000).filter(|_| {
        let is_due = searches.is_due();
        if is_due {
            searches.ended(false);
        }
        is_due
    });
    // 0, 2, 6, 14, 30, 62, 126, and then each 64th.
    assert_eq!(tried.count(), 20);
    searches.ended(true);
    assert!(searches.is_due());
    assert!(searches.is_due());
}

/// Values that become many behind the first rows.
#[test]
fn a_search_ends_within_a_batch() {
    let count = Arc::default();
    let expr = per_value(marked(column("s", 1), &count)).unwrap();
    let values = (0..4096).map(|row| if row < 1000 { "a".into() } else { format!("{row}") });
    let values: ArrayRef = Arc::new(StringArray::from_iter_values(values));
    assert_eq!(read(&expr, &count, &batch(values)), 4096);
    // A quarter of the rows is few.
    for (kinds, want) in [(1024, 1024), (1025, 4096)] {
        let expr = per_value(marked(column("s", 1), &count)).unwrap();
        let values = (0..4096).map(|row| format!("{}", row % kinds));
        let values: ArrayRef = Arc::new(StringArray::from_iter_values(values));
        assert_eq!(read(&expr, &count, &batch(values)), want);
    }
}

#[test]
fn the_error_is_that_of_the_first_row() {
    let count = Arc::default();
    let plain = marked(column("s", 1), &count);
    let expr = per_value(plain.clone()).unwrap();
    let values = (0..1000).map(|row| match row % 9 {
        4 => "bad, the first",
        1 if row > 500 => "bad, another",
        _ => "good",
    });
    let batch = batch(Arc::new(StringViewArray::from_iter_values(values)));
    let of = |expr: &Arc<dyn PhysicalExpr>| expr.evaluate(&batch).unwrap_err().to_string();
    assert_eq!(of(&expr), of(&plain));
    assert!(of(&expr).contains("bad, the first"));
}

#[test]
fn large_results_are_left_to_the_function() {
    let count = Arc::new(AtomicUsize::default());
    let counted = count.clone();
    let same = move |args: &[ColumnarValue]| -> Result<ColumnarValue> {
        counted.fetch_add(args[0].to_array(1)?.len(), Relaxed);
        Ok(args[0].clone())
    };
    let (of, how) = (DataType::Utf8View, Volatility::Immutable);
    let expr = per_value(call(column("s", 1), of, how, Arc::new(same))).unwrap();
    let repeated = |bytes: usize| {
        let text: ArrayRef = Arc::new(StringViewArray::from(vec!["x".repeat(bytes)]));
        batch(take(&text, &UInt32Array::from(vec![0; 128]), None).unwrap())
    };
    assert_eq!(evaluated(&expr, &repeated(1000)).len(), 128);
    assert_eq!(count.swap(0, Relaxed), 1);
    assert_eq!(evaluated(&expr, &repeated(1 << 20)).len(), 128);
    assert_eq!(count.swap(0, Relaxed), 129);
}

#[test]
fn columns_may_become_other_expressions() {
    let count = Arc::default();
    let expr = per_value(marked(column("s", 0), &count)).unwrap();
    let with = |part: Arc<dyn PhysicalExpr>| {
        let new = marked(part, &count);
        expr.clone().with_new_children(vec![new]).unwrap()
    };
    let values = |expr: &Arc<dyn PhysicalExpr>| {
        let mut nested = 0;
        expr.each(|part| {
            nested += usize::from(part.is::<PerValueExpr>());
            Ok(TreeNodeRecursion::Continue)
        })
        .unwrap();
        nested
    };
    assert_eq!(values(&with(column("t", 3))), 1);
    assert_eq!(values(&with(lit("a"))), 0);
    let two = BinaryExpr::new(column("s", 0), Operator::StringConcat, column("t", 3));
    assert_eq!(values(&with(Arc::new(two))), 0);
    let inner = with(column("s", 1));
    let nested = with(inner);
    assert_eq!((values(&nested), nested.to_string().as_str()), (1, "marked(marked(s@1))"));
    // Its one column is found in a batch.
    let batch = batch(Arc::new(texts(900).collect::<StringViewArray>()));
    count.store(0, Relaxed);
    let got = evaluated(&nested, &batch);
    assert!(count.load(Relaxed) <= 2 * TEXTS.len());
    let plain = marked(marked(column("s", 1), &count), &count);
    assert_eq!(&got, &evaluated(&plain, &batch));
    // Values that differ in each evaluation.
    let of_values = |args: &[ColumnarValue]| -> Result<ColumnarValue> { Ok(args[0].clone()) };
    let volatile = call(column("s", 0), DataType::Utf8, Volatility::Volatile, Arc::new(of_values));
    assert_eq!(values(&per_value(volatile.clone()).unwrap()), 0);
    assert_eq!(values(&with(volatile)), 0);
}

/// The parts of a plan's expressions that are evaluated for each value.
pub(in crate::rows) fn parts(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let mut parts = Vec::new();
    plan.each(|node| {
        node.apply_expressions(&mut |expr| {
            expr.each(|part| {
                if part.is::<PerValueExpr>() {
                    parts.push(part.to_string());
                    return Ok(TreeNodeRecursion::Jump);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    parts.sort();
    parts
}

#[tokio::test]
async fn the_largest_parts_over_one_column_are_found() {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let numbers: Int64Array = (0..2000_i64).map(|i| (i % 13 > 0).then_some(i)).collect();
    let other: StringArray = (0..2000).map(|i| TEXTS[i / 300]).collect();
    let days: Date32Array = (0..2000_i32).map(|i| Some(i % 40)).collect();
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("a", Arc::new(numbers), true),
        ("s", Arc::new(texts(2000).collect::<StringArray>()), true),
        ("t", Arc::new(other), true),
        ("d", Arc::new(days), true),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    context.register_batch("x", batch).unwrap();
    for (sql, want) in [
        ("SELECT upper(btrim(s)) AS v, a FROM x", vec!["upper(btrim(s"]),
        ("SELECT upper(s) || lower(t) AS v FROM x", vec!["lower(t", "upper(s"]),
        ("SELECT s || t AS v, a + 1 AS w, s = 'a' AS z, starts_with(s, 'a') AS y FROM x", vec![]),
        ("SELECT a FROM x WHERE s LIKE '%b_tes%' AND a > 5 AND t ILIKE 'TW%'", vec!["s@", "t@"]),
        ("SELECT a FROM x WHERE replace(s, 'a', 'b') = 'b' OR s IS NULL", vec!["replace(s"]),
        (
            "SELECT lower(s) AS k, count(*) AS n, sum(length(replace(t, 'e', 'b'))) AS v FROM x GROUP BY lower(s)",
            vec!["(replace(t", "lower(s"],
        ),
        (
            "SELECT count(*) FILTER (WHERE s ILIKE 'TW%') AS n, max(upper(t)) AS v FROM x",
            vec!["s@", "upper(t"],
        ),
        ("SELECT CASE WHEN s ILIKE 'TW%' THEN a ELSE 0 END AS v FROM x", vec!["s@"]),
        ("SELECT to_char(d, '%Y-%m') AS v, a % 7 AS w FROM x", vec!["to_char(d"]),
        ("SELECT upper(s) || (random() > 2)::text AS v FROM x", vec!["upper(s"]),
        (
            "SELECT a FROM x WHERE upper(s) = 'A' OR length(s) = 12 OR replace(s, 'b', '') = 'x'",
            vec!["upper(s", "replace(s"],
        ),
        ("SELECT a FROM x WHERE s LIKE '%twelve' OR s LIKE 'tw%' OR t = 'a'", vec![]),
    ] {
        let plan = context.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
        let new = PerValueRule.optimize(plan.clone(), &ConfigOptions::default()).unwrap();
        let found = parts(&new);
        assert_eq!(found.len(), want.len(), "{sql}: {found:?}");
        for want in want {
            assert!(found.iter().any(|part| part.contains(want)), "{sql}: {found:?}");
        }
        assert!(found.iter().all(|part| !part.starts_with("CASE")), "{sql}: {found:?}");
        assert_eq!(plan.schema(), new.schema(), "{sql}");
        let rows = |plan| datafusion::physical_plan::collect(plan, context.task_ctx());
        let (rows, want) = (rows(new).await.unwrap(), rows(plan).await.unwrap());
        assert!(rows == want && !want.is_empty(), "{sql}");
    }
}

/// A branch reads the rows of its own condition.
#[tokio::test]
async fn values_of_other_rows_do_not_fail() {
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
    let numbers: Int64Array = (0..2000_i64).map(Some).collect();
    let texts: StringArray = (0..2000).map(|i| Some(if i % 3 == 0 { "7" } else { "x" })).collect();
    let columns: [(&str, ArrayRef); 2] = [("a", Arc::new(numbers)), ("s", Arc::new(texts))];
    context.register_batch("x", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    for condition in ["a % 3 = 0", "s = '7'"] {
        let sql = format!("SELECT sum(CASE WHEN {condition} THEN s::bigint ELSE 0 END) FROM x");
        let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        let plan = PerValueRule.optimize(plan, &ConfigOptions::default()).unwrap();
        assert_eq!(parts(&plan).len(), 1, "{sql}");
        let rows = datafusion::physical_plan::collect(plan, context.task_ctx()).await.unwrap();
        assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().values(), &[7 * 667], "{sql}");
    }
}
