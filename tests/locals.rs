//! Arrays and tables of the program that embeds the engine, which statements read where they are.

use crate::common::{Place, until};
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::buffer::Buffer;
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::answer::Reply;
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer};
use tessera_engine::locals::{Local, LocalArray, Locals};
use tessera_engine::{Engine, Handle};
use tessera_planner::catalog::{Attrs, Coord, CoordValues};
use tessera_planner::dtype::DType;

struct Embedded(Place);

impl Embedded {
    fn new() -> Embedded {
        Embedded(Place::open(&[("memory-limit", "64MiB")]))
    }

    fn run(&self, sql: &str, locals: &Locals) -> Result<Reply, Error> {
        let handle = Handle::reading(locals.clone());
        let replies = async { self.0.session.run(sql, handle).collect::<Vec<_>>().await };
        self.0.runtime.block_on(replies).pop().unwrap()
    }

    fn csv(&self, sql: &str, locals: &Locals) -> String {
        let reply = self.run(sql, locals).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut writer = Writer::new(Format::Csv, Options::default(), Vec::new()).unwrap();
        writer.push(reply).unwrap();
        String::from_utf8(writer.finish().unwrap()).unwrap()
    }
}

/// A 2-d array of `f64` over memory of the caller.
pub(crate) fn array(data: &Buffer, shape: [u64; 2], strides: [i64; 2], offset: i64) -> LocalArray {
    LocalArray {
        name: "x".into(),
        dims: vec![None, None],
        dtype: DType::Float64,
        shape: shape.into(),
        strides: strides.into(),
        data: data.clone(),
        offset,
        valid: None,
        attrs: Attrs::new(),
        is_auxiliary: false,
    }
}

pub(crate) fn named(name: &str, arrays: Vec<LocalArray>, coords: Vec<Coord>) -> Locals {
    let local = Local::dataset(name, arrays, coords, Attrs::new()).unwrap();
    [(name.to_owned(), local)].into_iter().collect()
}

pub(crate) fn numbers(n: usize) -> Buffer {
    Buffer::from_vec((0..n).map(|i| (i * i % 101) as f64).collect::<Vec<f64>>())
}

/// The column `s` of an answer.
pub(crate) fn column(csv: &str) -> Vec<String> {
    csv.lines().skip(1).filter_map(|l| l.split(',').next_back()).map(String::from).collect()
}

/// Layouts of the first twelve [`numbers`], with the sums of their rows by NumPy.
pub(crate) fn layouts(m: &Buffer) -> [(&'static str, LocalArray, &'static str); 6] {
    // m = (np.arange(12)**2 % 101).astype(float)
    [
        // m.reshape(3, 4).sum(1)
        ("rows", array(m, [3, 4], [4, 1], 0), "14.0 126.0 265.0"),
        // m.reshape(3, 4).T.sum(1)
        ("columns", array(m, [4, 3], [1, 4], 0), "80.0 107.0 140.0 78.0"),
        // m.reshape(3, 4)[::-1, ::2].sum(1)
        ("backward", array(m, [3, 2], [-4, 2], 8), "164.0 52.0 4.0"),
        // np.broadcast_to(m[3:5], (3, 2)).sum(1)
        ("repeated", array(m, [3, 2], [0, 1], 3), "25.0 25.0 25.0"),
        // m[2:8].reshape(2, 3).sum(1)
        ("within", array(m, [2, 3], [3, 1], 2), "29.0 110.0"),
        ("empty", array(m, [0, 4], [4, 1], 0), ""),
    ]
}

/// Rows with a NULL.
pub(crate) fn rows() -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("city", Arc::new(StringArray::from(vec!["Oslo", "Rome", "Oslo"]))),
        ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
        ("v", Arc::new(Float64Array::from(vec![Some(0.5), None, Some(2.0)]))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn arrays_are_read_in_any_layout() {
    let e = Embedded::new();
    let m = numbers(12);
    for (what, local, want) in layouts(&m) {
        let x = named("x", vec![local], Vec::new());
        assert_eq!(column(&e.csv("SELECT sum(x, 1) AS s FROM x", &x)).join(" "), want, "{what}");
    }
    // Memory that does not hold the cells.
    for (shape, strides, offset) in
        [([3, 4], [4, 1], 1), ([3, 4], [5, 1], 0), ([2, 2], [-1, 1], 0), ([3, 4], [4, 1], -1)]
    {
        let told =
            Local::dataset("x", vec![array(&m, shape, strides, offset)], Vec::new(), Attrs::new())
                .unwrap_err();
        assert!(told.to_string().contains("of a memory of 12 cells"), "{told}");
    }
}

#[test]
fn an_alias_is_a_second_name_of_an_array() {
    let e = Embedded::new();
    let m = numbers(12);
    // m.reshape(3, 4) and its transpose: m.sum(), m[m > 50].sum(); v, w = np.meshgrid(m, m), (v - w)[w < v - 50].sum()
    for (what, local, _) in layouts(&m).into_iter().take(2) {
        let x = named("x", vec![local], Vec::new());
        for (items, want) in [
            ("sum(w.w) AS s FROM x w", "405.0"),
            ("sum(w.x) AS s FROM x w", "405.0"),
            ("sum(w) AS s FROM x AS w", "405.0"),
            ("sum(w) AS s FROM x w WHERE w > 50", "245.0"),
            ("sum(w.x) AS s FROM x w WHERE x > 50", "245.0"),
            ("sum(v - w) AS s FROM x v, x w WHERE w < v - 50", "1474.0"),
        ] {
            assert_eq!(column(&e.csv(&format!("SELECT {items}"), &x)), [want], "{what}: {items}");
        }
    }
    // `*` has the array's own name.
    let (_, local, _) = layouts(&m).into_iter().next().unwrap();
    let x = named("x", vec![local], Vec::new());
    let [own, aliased] = ["x", "x w"].map(|from| e.csv(&format!("SELECT * FROM {from}"), &x));
    assert_eq!(own, aliased);
    assert!(own.lines().next().is_some_and(|header| header.ends_with(",x")), "{own}");
    // A dimension of that name keeps it.
    let mut local = array(&m, [3, 4], [4, 1], 0);
    local.dims[0] = Some("w".into());
    let sums = e.csv(
        "SELECT w, sum(x) AS s FROM x w GROUP BY w ORDER BY w",
        &named("x", vec![local], Vec::new()),
    );
    assert_eq!(column(&sums), ["14.0", "126.0", "265.0"]);
}

#[test]
fn large_arrays_are_read_in_place() {
    let e = Embedded::new();
    // Twice the memory limit: it is the memory of the caller.
    let (rows, columns) = (16_384u64, 1024u64);
    let m = Buffer::from_vec((0..rows * columns).map(|i| (i % 1009) as f64).collect::<Vec<f64>>());
    let by_rows = named("x", vec![array(&m, [rows, columns], [columns as i64, 1], 0)], Vec::new());
    let by_columns =
        named("x", vec![array(&m, [columns, rows], [1, columns as i64], 0)], Vec::new());
    // x = (np.arange(16384 * 1024) % 1009.0).reshape(16384, 1024)
    let sql = "SELECT sum(x) AS s, max(abs(x - mean(x, 0))) AS m FROM x";
    assert_eq!(e.csv(sql, &by_rows), "s,m\n8455591950.0,504.5335693359375\n");
    let want = ["8248941.0", "8249181.0", "8249421.0", "8249661.0", "8248892.0"];
    assert_eq!(column(&e.csv("SELECT sum(x, 0)[0:5] AS s FROM x", &by_rows)), want);
    // An axis of the one is the other axis of the other.
    assert_eq!(column(&e.csv("SELECT sum(x, 1)[0:5] AS s FROM x", &by_columns)), want);
    let quota = e.0.session.host().runtime().quota();
    until("nothing is charged", Duration::from_secs(60), || quota.used() == 0);
}

#[test]
fn labels_and_masks_are_those_of_the_caller() {
    let e = Embedded::new();
    let m = numbers(12);
    let coord = |name: &str, values| Coord {
        name: name.into(),
        dim: name.into(),
        values,
        attrs: Attrs::new(),
    };
    let coords = vec![
        coord("lat", CoordValues::Float(DType::Float64, [50.0, 60.0, 70.0].into())),
        coord("id", CoordValues::Int(DType::Int64, [1, 2, 3, 4].into())),
    ];
    let mut t = array(&m, [3, 4], [4, 1], 0);
    t.name = "t".into();
    t.dims = vec![Some("lat".into()), Some("id".into())];
    // np.ma.masked_where(m.reshape(3, 4) == 0, …): its first cell.
    t.valid = Some(Buffer::from_vec((0..12).map(|i| u8::from(i != 0)).collect::<Vec<u8>>()));
    let ds = named("Air", vec![t], coords);
    let got = e.csv("SELECT lat, avg(t) AS a FROM air WHERE id < 3 GROUP BY lat ORDER BY lat", &ds);
    // [1, 20.5, 72.5] of NumPy's masked array [:, :2].mean(1)
    assert_eq!(got, "lat,a\n50.0,1.0\n60.0,20.5\n70.0,72.5\n");
    let got = e.csv("SELECT t[lat => 60, id => 4] AS a FROM \"Air\"", &ds);
    assert_eq!(got, "a\n49.0\n");
    let told = e.run("SELECT t FROM airs", &ds).unwrap_err();
    assert_eq!((told.code(), told.to_string().contains("airs")), ("unknown_name", true));
}

#[test]
fn tables_are_rows_and_names_of_the_catalog_go_first() {
    let e = Embedded::new();
    let batch = rows();
    let both = Local::table(batch.schema(), vec![batch.clone(), batch]).unwrap();
    let x = Local::dataset("x", vec![array(&numbers(4), [2, 2], [2, 1], 0)], vec![], Attrs::new());
    let locals: Locals = [("t".into(), both), ("x".into(), x.unwrap())].into_iter().collect();
    let sql = "SELECT city, sum(n) AS n, sum(v) AS v FROM t GROUP BY city ORDER BY city";
    assert_eq!(e.csv(sql, &locals), "city,n,v\nOslo,8,5.0\nRome,4,\n");
    assert_eq!(e.csv("SELECT sum(x) AS s FROM x", &locals), "s\n14.0\n");
    e.run("CREATE TENSOR x AS SELECT arange(3) AS x", &Locals::default()).unwrap();
    assert_eq!(e.csv("SELECT sum(x) AS s FROM x", &locals), "s\n3\n");
    // Unless the caller says otherwise.
    let x = Local::dataset("x", vec![array(&numbers(4), [2, 2], [2, 1], 0)], vec![], Attrs::new());
    let first: Locals = [("x".into(), x.unwrap().first())].into_iter().collect();
    assert_eq!(e.csv("SELECT sum(x) AS s FROM x", &first), "s\n14.0\n");
    // A tensor that is created from an array is a copy.
    e.run("DROP TENSOR x; CREATE TENSOR y AS SELECT x * 2 AS y FROM x", &locals).unwrap();
    assert_eq!(e.csv("SELECT sum(y) AS s FROM y", &Locals::default()), "s\n28.0\n");
}

#[test]
fn views_read_no_locals() {
    let e = Embedded::new();
    let x = named("x", vec![array(&numbers(12), [3, 4], [4, 1], 0)], Vec::new());
    let told = e.run("CREATE VIEW v AS SELECT x * 2 AS y FROM x", &x).unwrap_err();
    let text = told.to_string();
    assert_eq!((told.code(), text.contains("`v` reads `x`")), ("unsupported", true), "{text}");
    e.csv("SELECT sum(x) AS s FROM x", &x);
    e.run("CREATE TENSOR x AS SELECT arange(3) AS x", &Locals::default()).unwrap();
    e.run("CREATE VIEW v AS SELECT x + 1 AS y FROM x", &x).unwrap();
    assert_eq!(e.csv("SELECT sum(y) AS s FROM v", &x), "s\n6\n");
}
