//! Cell blocks inside tensor expressions.
use std::sync::Arc;

use tessera_exec::quota::Quota;
use tessera_exec::store::Store;
use tessera_frontend::island::Work;
use tessera_frontend::{Catalog, Context, Error, Islands, Lowered, RelationRef, lower_tensor};
use tessera_planner::catalog::Dataset;
use tessera_planner::config::Config;
use tessera_planner::dtype::{Calendar, DType};

use super::super::{CellPlan, Density, Planner};
use super::{data, query};
use crate::rows::RowsRuntime;
use crate::tables::Tables;

struct Known;

impl Catalog for Known {
    fn relation(&self, relation: &RelationRef) -> Option<Arc<Dataset>> {
        (relation.text() == "era5").then(|| Arc::new(data::era5(Calendar::Standard)))
    }
}

fn lowered(sql: &str, islands: &mut Islands) -> Result<Lowered, Error> {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path(), 0);
    let rows = RowsRuntime::new(Quota::new(1 << 30), store, 1).state();
    let cells = Planner { tables: &Tables::new(), rows: &rows, density: Density::Auto };
    let mut context = Context {
        catalog: &Known,
        config: Config::default(),
        now_us: 0,
        seed: 100,
        islands,
        cells: &cells,
    };
    lower_tensor(&query(sql), &mut context)
}

#[test]
fn a_dense_block_is_part_of_the_graph() {
    let sql = "SELECT x FROM (SELECT [lat], avg(t2m) AS x FROM era5 GROUP BY lat) s";
    let lowered = lowered(sql, &mut Islands::new()).unwrap();
    let [x] = lowered.outputs.as_slice() else { panic!("{:?}", lowered.outputs) };
    assert_eq!((x.name.as_str(), x.dtype, &x.shape[..]), ("x", DType::Float64, &[3][..]));
    let labels = &x.dims[0].coord.as_ref().unwrap().values;
    assert_eq!((labels.display(0), labels.display(2)), ("60".into(), "40".into()));
}

#[test]
fn a_block_of_rows_is_an_island_with_its_plan() {
    let sql = "SELECT x FROM (SELECT [lat], string_agg(place, ',') AS x FROM era5 GROUP BY lat) s";
    let mut islands = Islands::new();
    assert!(matches!(lowered(sql, &mut islands), Err(Error::Waiting)));
    let island = islands.wanted().unwrap();
    let Work::Rows(rows) = &island.work else { panic!("{:?}", island.work) };
    let plan = CellPlan::of(rows).unwrap();
    assert_eq!((plan.scans.len(), rows.plan.graphs().len()), (1, 1));
}

#[test]
fn items_that_compute_with_a_dense_part_are_part_of_the_graph_too() {
    for (items, rest) in [
        ("t2m + 1", ""),
        ("t2m * 2", "WHERE lat > 45 AND time < '2020-02-01'"),
        ("t2m - lag(t2m) OVER (PARTITION BY lat, lon ORDER BY time)", "ORDER BY time"),
        ("t2m - avg(t2m) OVER (PARTITION BY lat, lon)", ""),
    ] {
        let block = format!("SELECT [time], [lat], [lon], {items} AS x FROM era5 {rest}");
        let sql = format!("SELECT x FROM ({block}) s");
        let lowered = lowered(&sql, &mut Islands::new()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(lowered.outputs[0].dims.len(), 3, "{sql}");
    }
    // A function that has no dense form: rows.
    let sql = "SELECT x FROM (SELECT [time], [lat], [lon], length(place) AS x FROM era5) s";
    assert!(matches!(lowered(sql, &mut Islands::new()), Err(Error::Waiting)));
}

#[test]
fn a_list_of_names_is_that_of_items_and_dimensions() {
    for block in [
        "SELECT [lat], avg(t2m) FROM era5 GROUP BY lat",
        "SELECT lat, mean(mean(t2m, 'time'), 'lon') FROM era5",
    ] {
        let sql = format!("WITH d(y, m) AS ({block}) SELECT m FROM d");
        let lowered = lowered(&sql, &mut Islands::new()).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let [m] = lowered.outputs.as_slice() else { panic!("{:?}", lowered.outputs) };
        assert_eq!((m.name.as_str(), m.dim_name(0).as_str()), ("m", "y"), "{sql}");
        let sql = format!("WITH d(m) AS ({block}) SELECT m FROM d");
        let error = self::lowered(&sql, &mut Islands::new()).unwrap_err();
        assert_eq!(error.code(), "invalid_argument", "{sql}: {error}");
    }
}
