#![allow(clippy::unwrap_used, reason = "tests")]
//! Tables over a runner that returns prepared pieces in reverse order.

use super::shared::{SharedProvider, SharedTable};
use super::table::TensorTable;
use super::{Piece, RunTensor, attach};
use crate::lift::{ScanColumn, TensorScan};
use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::TableProvider;
use datafusion::error::DataFusionError;
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_exec::error::Error;
use tessera_planner::build::Builder;
use tessera_planner::config::Config;
use tessera_planner::optimize::Rooted;
use tessera_planner::scalar::Scalar;

/// Returns, for root `r` of the graph's order, the cells that were prepared for the node.
#[derive(Debug)]
struct Prepared {
    cells: Vec<(tessera_planner::ir::NodeId, ArrayRef)>,
    chunk: usize,
    fails: bool,
}

impl RunTensor for Prepared {
    fn run(&self, scan: &TensorScan) -> BoxStream<'static, Result<Piece, super::BoxError>> {
        if self.fails {
            let error = Error::Broken { what: "on purpose".into() };
            return stream::iter([Err(Box::new(error) as super::BoxError)]).boxed();
        }
        let mut pieces = Vec::new();
        for (root, node) in scan.rooted.roots.iter().enumerate() {
            let cells = &self.cells.iter().find(|(n, _)| n == node).unwrap().1;
            for start in (0..cells.len()).step_by(self.chunk) {
                let len = self.chunk.min(cells.len() - start);
                let cells = cells.slice(start, len);
                pieces.push(Ok(Piece { root, start: start as u64, cells }));
            }
        }
        // Last rows first: the order of pieces must not matter.
        pieces.reverse();
        stream::iter(pieces).boxed()
    }
}

/// `lat [2] x place [3]`: a value and its presence.
fn table(presence: bool, exploded: bool, fails: bool) -> Arc<TensorTable> {
    let mut b = Builder::new(Config::default());
    let node = |b: &mut Builder, v: f64| {
        let one = b.constant(Scalar::f64(v)).unwrap();
        b.broadcast_to(one, &[6]).unwrap()
    };
    let (v, p) = (node(&mut b, 1.0), node(&mut b, 2.0));
    let schema = Arc::new(Schema::new(vec![
        Field::new("lat", DataType::Int64, false),
        Field::new("place", DataType::Utf8, false),
        Field::new("v", DataType::Float64, true),
    ]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![
        Some(0.0),
        Some(1.0),
        None,
        Some(3.0),
        Some(4.0),
        Some(5.0),
    ]));
    let there: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true, true, false, true]));
    let mut roots = vec![v];
    roots.extend(presence.then_some(p));
    let scan = TensorScan {
        name: "t".into(),
        top: None,
        schema,
        shape: vec![2, 3],
        columns: vec![
            ScanColumn::Label { axis: 0, values: Arc::new(Int64Array::from(vec![50, 40])) },
            ScanColumn::Label { axis: 1, values: Arc::new(StringArray::from(vec!["a", "b", "c"])) },
            ScanColumn::Cells(0),
        ],
        origins: BTreeMap::new(),
        presence: presence.then_some(1),
        rooted: Rooted { graph: b.graph, roots },
        exploded,
    };
    let runner = Prepared { cells: vec![(v, values), (p, there)], chunk: 4, fails };
    Arc::new(TensorTable::new(scan, Arc::new(runner), Arc::new(AtomicU64::new(0))))
}

async fn query(table: Arc<TensorTable>, sql: &str) -> Result<String, DataFusionError> {
    let config = SessionConfig::new().with_target_partitions(1).with_batch_size(3);
    let context = SessionContext::new_with_config(config);
    context.register_table("t", table)?;
    let batches = context.sql(sql).await?.collect().await?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

#[tokio::test]
async fn rows_are_ordered_and_labelled() {
    let t = table(false, true, false);
    insta::assert_snapshot!(query(t.clone(), "SELECT * FROM t").await.unwrap(), @r"
    +-----+-------+-----+
    | lat | place | v   |
    +-----+-------+-----+
    | 50  | a     | 0.0 |
    | 50  | b     | 1.0 |
    | 50  | c     |     |
    | 40  | a     | 3.0 |
    | 40  | b     | 4.0 |
    | 40  | c     | 5.0 |
    +-----+-------+-----+
    ");
    assert_eq!(t.exploded.load(Relaxed), 6);
}

#[tokio::test]
async fn absent_rows_are_omitted_and_do_not_count_toward_a_limit() {
    let t = table(true, false, false);
    let all = query(t.clone(), "SELECT place, v FROM t LIMIT 3").await.unwrap();
    insta::assert_snapshot!(all, @r"
    +-------+-----+
    | place | v   |
    +-------+-----+
    | a     | 0.0 |
    | c     |     |
    | a     | 3.0 |
    +-------+-----+
    ");
    assert_eq!(t.exploded.load(Relaxed), 0, "groups are no rows of cells");
}

#[tokio::test]
async fn labels_alone_run_nothing() {
    // A runner that fails is never called.
    let t = table(false, true, true);
    let text = query(t.clone(), "SELECT count(*), min(lat), max(place) FROM t").await.unwrap();
    assert!(text.contains("| 6        | 40         | c            |"), "{text}");
    let text = query(table(false, true, false), "SELECT place FROM t LIMIT 2").await.unwrap();
    assert!(text.contains("| b     |") && !text.contains("| c     |"), "{text}");
}

#[tokio::test]
async fn an_error_of_a_run_keeps_its_type() {
    let error = query(table(false, true, true), "SELECT sum(v) FROM t").await.unwrap_err();
    let DataFusionError::External(inner) = error.find_root() else { panic!("{error:?}") };
    assert!(inner.downcast_ref::<Error>().is_some_and(|e| e.code() == "internal"), "{inner:?}");
}

#[tokio::test]
async fn a_placeholder_is_replaced_by_its_table() {
    let context = SessionContext::new();
    let t = table(false, false, false);
    let empty = datafusion::datasource::empty::EmptyTable::new(
        datafusion::catalog::TableProvider::schema(t.as_ref()),
    );
    context.register_table("groups_0", Arc::new(empty)).unwrap();
    let plan = context.state().create_logical_plan("SELECT sum(v) FROM groups_0").await.unwrap();
    let plan =
        attach(plan, &[("groups_0".to_string(), t as Arc<dyn TableProvider>)].into()).unwrap();
    let batches = context.execute_logical_plan(plan).await.unwrap().collect().await.unwrap();
    assert!(pretty_format_batches(&batches).unwrap().to_string().contains("13.0"));
}

/// The result of a query over shared rows, and the number of rows that were built.
async fn shared(fails: bool, sql: &str) -> (Result<String, DataFusionError>, u64) {
    let config = SessionConfig::new().with_target_partitions(1);
    let (context, table) = (SessionContext::new_with_config(config), table(false, true, fails));
    context.register_table("t", table.clone()).unwrap();
    let plan = context.sql("SELECT place, v, lat FROM t WHERE lat < 60").await.unwrap();
    let plan = plan.create_physical_plan().await.unwrap();
    let rows = Arc::new(SharedTable::new("s".into(), plan.schema()));
    context.register_table("s", Arc::new(SharedProvider(rows.clone()))).unwrap();
    rows.made_by(plan.clone()).unwrap();
    assert!(rows.made_by(plan).is_err());
    let batches = context.sql(sql).await.unwrap().collect().await;
    (
        batches.map(|batches| pretty_format_batches(&batches).unwrap().to_string()),
        table.exploded.load(Relaxed),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_rows_are_computed_once_for_all_readers() {
    let (rows, made) = shared(false, "SELECT v, place, lat FROM s LIMIT 2").await;
    assert_eq!(made, 6);
    let rows = rows.unwrap();
    assert!(
        rows.contains("| 0.0 | a     | 50  |") && rows.contains("| 1.0 | b     | 50  |"),
        "{rows}"
    );
    let three = "SELECT count(*), sum(a.v), max(b.place) FROM s a JOIN s b ON a.lat = b.lat, s c";
    let (rows, made) = shared(false, three).await;
    assert_eq!(made, 6);
    let rows = rows.unwrap();
    assert!(rows.contains("| 108      | 234.0    | c            |"), "{rows}");
    let (rows, made) =
        shared(false, "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM s WHERE false)").await;
    assert!(rows.is_ok() && made <= 6);
    let (rows, _) = shared(true, "SELECT count(*) FROM s a, s b").await;
    let error = rows.unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
}
