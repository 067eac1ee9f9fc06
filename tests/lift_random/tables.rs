//! Joins with tables of rows: the queries of `sql/cells/tables.slt` and `boxes.slt` without their ORDER BY, dense and as
//! rows.

use super::World;
use std::path::Path;

const TABLES: [&str; 5] = ["weights", "zones", "places", "seasons", "boxes"];

fn world(lift: &str) -> World {
    let world = World::new(lift);
    let cells = "CREATE EXTERNAL TABLE era5 STORED AS ZARR LOCATION 'tests/data/cf/air.zarr'";
    world.answer(cells).unwrap();
    for name in TABLES {
        let location = format!("tests/data/tables/{name}.csv");
        let table = format!("CREATE EXTERNAL TABLE {name} STORED AS CSV LOCATION '{location}'");
        world.answer(&table).unwrap();
    }
    world
}

fn queries() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/cells");
    let text =
        ["tables.slt", "boxes.slt"].map(|s| std::fs::read_to_string(folder.join(s)).unwrap());
    let text = text.concat();
    let queries = text.lines().filter(|line| line.starts_with("SELECT"));
    queries.map(|q| q.split(" ORDER BY ").next().unwrap_or(q).to_string()).collect()
}

#[test]
fn joins_with_tables_keep_their_order() {
    let (dense, rows) = (world("auto"), world("off"));
    let queries = queries();
    assert!(queries.len() > 30);
    for sql in queries {
        let (a, b) = (dense.answer(&sql).unwrap(), rows.answer(&sql).unwrap());
        assert_eq!(a.len(), b.len(), "{sql}");
        for (a, b) in a.iter().zip(&b) {
            assert!(is_near(a, b), "{sql}\n  dense {a}\n  rows  {b}");
        }
    }
}

/// Equal, but for the last digits of sums in another order.
fn is_near(a: &str, b: &str) -> bool {
    let (a, b): (Vec<&str>, Vec<&str>) = (a.split(' ').collect(), b.split(' ').collect());
    a.len() == b.len()
        && a.iter().zip(&b).all(|(a, b)| match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(a), Ok(b)) => a == b || (a - b).abs() <= 1e-12 * b.abs(),
            _ => a == b,
        })
}

#[test]
fn explain_names_dense_parts() {
    let world = world("auto");
    let notes = |sql: &str| world.answer(&format!("EXPLAIN {sql}")).unwrap().join("\n");
    for sql in [
        "SELECT sum(t.t2m * w.w) FROM era5 t JOIN weights w ON t.lat = w.lat",
        "SELECT w.belt, avg(t.t2m) FROM weights w JOIN era5 t USING (lat) GROUP BY w.belt",
        "SELECT w.belt, count(*) FROM era5 t LEFT JOIN weights w USING (lat) GROUP BY w.belt",
        "SELECT sum(t.t2m * z.zone) FROM era5 t JOIN zones z USING (lat, lon)",
        "SELECT sum(t.t2m * p.height) FROM era5 t JOIN places p ON t.lat = p.lat AND t.lon = p.lon",
        "SELECT p.name, avg(t.t2m) FROM era5 t JOIN places p ON t.lat = p.lat GROUP BY p.name",
        "SELECT b.name, avg(t.t2m) FROM era5 t JOIN boxes b ON t.lat BETWEEN b.lat0 AND b.lat1 AND t.time >= b.start GROUP BY b.name",
    ] {
        let text = notes(sql);
        assert!(text.contains("dense: Aggregate"), "{text}");
        assert!(!text.contains("rows: "), "{text}");
    }
    let twice = notes("SELECT t.t2m * p.height FROM era5 t JOIN places p ON t.lat = p.lat");
    assert!(twice.contains("because its cells match several rows of the table"), "{twice}");
}
