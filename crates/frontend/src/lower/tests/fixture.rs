//! A catalog of two datasets, and the format of results in snapshots.

use std::fmt::Write;
use std::sync::Arc;

use sqlparser::ast::Query;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, Dataset, Decode, SourceRef, Variable};
use tessera_planner::config::Config;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::grid::Grid;
use tessera_planner::ir::{AxisReduce, Graph, MapOp, NodeId, Op};
use tessera_planner::scalar::Scalar;
use tessera_planner::time::parse_period;

use crate::cells::{CellPlanner, Labelled};
use crate::{Catalog, Context, Error, Lowered, RelationRef, Statement, lower_tensor, parse};

/// A planner that is never called: no test here has cell blocks, whose planner depends on this crate.
struct NoCells;

impl CellPlanner for NoCells {
    fn labelled(
        &self,
        query: &Query,
        _: u64,
        _: &mut Context<'_>,
        _: &str,
    ) -> Result<Labelled, Error> {
        panic!("a block of cells: {query}")
    }
}

pub(super) struct Fixture;

impl Catalog for Fixture {
    fn relation(&self, relation: &RelationRef) -> Option<Arc<Dataset>> {
        match relation.text() {
            "era5" | "s3://b/era5.zarr" => Some(Arc::new(era5())),
            "cases" => Some(Arc::new(cases())),
            "a" => Some(Arc::new(single("a", "v", &[4, 3]))),
            "b" => Some(Arc::new(single("b", "v", &[3, 5]))),
            "curved" => Some(Arc::new(curved())),
            _ => None,
        }
    }
}

fn variable(
    dataset: &str,
    name: &str,
    dtype: DType,
    shape: &[u64],
    dims: &[Option<&str>],
) -> Variable {
    let mut attrs = Attrs::new();
    attrs.insert("units".into(), "K".into());
    Variable {
        name: name.into(),
        dims: dims.iter().map(|d| d.map(Into::into)).collect(),
        source: SourceRef {
            url: dataset.into(),
            path: name.into(),
            dtype,
            shape: shape.into(),
            grid: Grid::regular(shape, shape),
            nullable: false,
            version: None,
            plain: false,
        },
        decode: Decode::default(),
        attrs,
    }
}

fn coord(name: &str, dim: &str, values: CoordValues) -> Arc<Coord> {
    Arc::new(Coord { name: name.into(), dim: dim.into(), values, attrs: Attrs::new() })
}

fn era5() -> Dataset {
    // Daily at noon from 2019-12-30 on, in three months.
    let (first, _) = parse_period("2019-12-30T12", Calendar::Standard).unwrap();
    let times: Vec<i64> = (0..40).map(|i| first + i * 86_400_000_000).collect();
    let dims = [Some("time"), Some("lat"), Some("lon")];
    let mut masked = variable("era5", "sst", DType::Float32, &[40, 5, 4], &dims);
    masked.decode.missing = vec![Scalar::from_f64(DType::Float32, -999.0)];
    Dataset {
        name: "era5".into(),
        variables: vec![
            variable("era5", "orog", DType::Float32, &[5, 4], &dims[1..]),
            masked,
            variable("era5", "t2m", DType::Float64, &[40, 5, 4], &dims),
        ],
        coords: vec![
            coord(
                "lat",
                "lat",
                CoordValues::Float(DType::Float64, [65.0, 60.0, 45.0, 30.0, 25.0].into()),
            ),
            coord("lon", "lon", CoordValues::Float(DType::Float64, [-9.5, 0.5, 10.5, 20.5].into())),
            coord("time", "time", CoordValues::Time(Calendar::Standard, times.into())),
        ],
        auxiliary: vec![variable(
            "era5",
            "time_bnds",
            DType::Float64,
            &[40, 2],
            &[Some("time"), Some("nv")],
        )],
        ..Dataset::default()
    }
}

/// A grid without labels of its own: `lat` and `height` are coordinates, `crs` is a grid mapping, `station` labels `x`
/// beside its positions.
fn curved() -> Dataset {
    let plane = [Some("y"), Some("x")];
    let aux = |name, shape: &[u64], dims: &[Option<&str>]| {
        variable("curved", name, DType::Float64, shape, dims)
    };
    let mut attrs = Attrs::new();
    attrs.insert("title".into(), "on a curved grid".into());
    Dataset {
        name: "curved".into(),
        variables: vec![aux("v", &[2, 3], &plane)],
        coords: vec![coord("station", "x", CoordValues::Int(DType::Int64, [7, 8, 9].into()))],
        auxiliary: vec![aux("crs", &[], &[]), aux("height", &[], &[]), aux("lat", &[2, 3], &plane)],
        coordinates: ["height", "lat"].into_iter().map(Arc::from).collect(),
        attrs,
        ..Dataset::default()
    }
}

fn cases() -> Dataset {
    let v = |name, dtype, shape: &[u64]| {
        variable("cases", name, dtype, shape, &vec![None; shape.len()])
    };
    let mut m = v("m", DType::Float64, &[5, 7]);
    m.decode.missing = vec![Scalar::f64(-1.0)];
    Dataset {
        name: "cases".into(),
        variables: vec![
            v("b", DType::Bool, &[5, 7]),
            v("cube", DType::Float64, &[3, 4, 5]),
            v("f", DType::Float32, &[5, 7]),
            v("i", DType::Int64, &[5, 7]),
            v("i8", DType::Int8, &[5, 7]),
            m,
            v("r", DType::Float64, &[5]),
            v("s", DType::Float64, &[]),
            v("u8", DType::UInt64, &[5, 7]),
            v("v", DType::Float64, &[7]),
            v("x", DType::Float64, &[5, 7]),
        ],
        coords: Vec::new(),
        auxiliary: Vec::new(),
        ..Dataset::default()
    }
}

fn single(name: &str, variable_name: &str, shape: &[u64]) -> Dataset {
    let dims = vec![None; shape.len()];
    Dataset {
        name: name.into(),
        variables: vec![variable(name, variable_name, DType::Float64, shape, &dims)],
        ..Dataset::default()
    }
}

pub(super) fn lower(sql: &str) -> Result<Lowered, Error> {
    let parsed = parse(sql)?;
    let Statement::Query(query) = &parsed[0].statement else { panic!("no query: {sql}") };
    let mut islands = crate::Islands::new();
    let mut context = Context {
        catalog: &Fixture,
        config: Config::default(),
        now_us: 1_600_000_000_000_000,
        seed: 100,
        islands: &mut islands,
        cells: &NoCells,
    };
    lower_tensor(query, &mut context)
}

/// The graph of a query, one line per node and without unused nodes; then the labels.
pub(super) fn show(sql: &str) -> String {
    let lowered = match lower(sql) {
        Ok(lowered) => lowered,
        Err(error) => return error.render(sql),
    };
    let graph = &lowered.rooted.graph;
    tessera_planner::verify::verify(graph, "lower").unwrap();
    let mut out = String::new();
    let mut needed = vec![false; graph.len()];
    for root in &lowered.rooted.roots {
        needed[root.0 as usize] = true;
    }
    for (id, node) in graph.nodes().rev() {
        if needed[id.0 as usize] {
            node.inputs.iter().for_each(|i| needed[i.0 as usize] = true);
        }
    }
    for (id, _) in graph.nodes().filter(|(id, _)| needed[id.0 as usize]) {
        writeln!(out, "{}", node_line(graph, id)).unwrap();
    }
    out.push_str(&labels_of(&lowered));
    out
}

/// Only the labels.
pub(super) fn labels(sql: &str) -> String {
    match lower(sql) {
        Ok(lowered) => labels_of(&lowered),
        Err(error) => error.render(sql),
    }
}

fn labels_of(lowered: &Lowered) -> String {
    let mut out = String::new();
    for (at, (root, item)) in lowered.rooted.roots.iter().zip(&lowered.outputs).enumerate() {
        let dims: Vec<String> = (0..item.dims.len())
            .map(|axis| {
                let labels = item.dims[axis].coord.as_ref().map(|coord| {
                    let n = coord.values.len();
                    assert_eq!(n as u64, item.shape[axis], "labels have the dimension's length");
                    match n {
                        0 => ": none".to_string(),
                        1 => format!(": {}", coord.values.display(0)),
                        _ => format!(
                            ": {}..{}",
                            coord.values.display(0),
                            coord.values.display(n - 1)
                        ),
                    }
                });
                format!(
                    "{}={}{}",
                    item.dim_name(axis),
                    item.shape[axis],
                    labels.unwrap_or_default()
                )
            })
            .collect();
        let masked = if item.nullable { " masked" } else { "" };
        let attrs = if item.attrs.is_empty() { "" } else { " +attrs" };
        writeln!(
            out,
            "{} = %{} {}{masked} [{}]{attrs}",
            // Texts of items would distract from the subject of the snapshots.
            if item.named { item.name.clone() } else { format!("v{at}?") },
            root.0,
            item.dtype,
            dims.join(", ")
        )
        .unwrap();
    }
    out
}

fn node_line(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let inputs: Vec<String> = node.inputs.iter().map(|i| format!("%{}", i.0)).collect();
    let what = match &node.op {
        Op::Load { source, region } => format!("load {}/{} {region}", source.url, source.path),
        Op::Const(c) => {
            let show = |i| c.get(i).map_or("NULL".to_string(), |s| s.to_string());
            let cells: Vec<String> = (0..c.len().min(4)).map(show).collect();
            format!("const {}{}", cells.join(" "), if c.len() > 4 { " …" } else { "" })
        }
        Op::Iota => "iota".into(),
        Op::Map(MapOp::Scalar(op)) => op.name(),
        Op::Map(op) => format!("{op:?}").to_lowercase(),
        Op::View(view) => format!("view {view}"),
        Op::Certain { operation } => format!("certain {operation}"),
        Op::Reshape => "reshape".into(),
        Op::Concat { axis } => format!("concat {axis}"),
        Op::Take { axis, positions } => {
            let first: Vec<String> = positions.iter().take(6).map(u64::to_string).collect();
            let more = if positions.len() > 6 { " …" } else { "" };
            format!("take {axis} at {}{more}", first.join(" "))
        }
        Op::Reduce { kind, axes } => {
            let axes: Vec<String> = axes
                .iter()
                .map(|a| match a {
                    AxisReduce::Keep => "keep".into(),
                    AxisReduce::All => "all".into(),
                    AxisReduce::Group(g) => format!("{} groups", g.count),
                })
                .collect();
            format!("{kind} [{}]", axes.join(", "))
        }
        Op::Scan { kind, axis } => format!("scan {kind:?} {axis}").to_lowercase(),
        Op::Window { axis, frame, kind, min_count } => {
            format!("window {kind} {axis} -{} +{} min {min_count}", frame.before, frame.after)
        }
        Op::Sort { axis, what, order, limit } => {
            format!("sort {what:?}{order} {axis} {limit:?}").to_lowercase()
        }
        Op::Quantile { axis, quantiles } => {
            let q: Vec<String> = quantiles.probabilities().map(|q| q.to_string()).collect();
            format!("quantile {} {axis} {}", q.join(" "), quantiles.method)
        }
        Op::Lookup { kind } => format!("lookup {kind:?}").to_lowercase(),
        Op::Bin { count, strict } => format!("bin {count}{}", if *strict { " strict" } else { "" }),
        Op::Contract(_) => "contract".into(),
        Op::Factor { kind, part } => format!("factor {kind} {}", kind.parts()[*part]),
        Op::Rechunk => "rechunk".into(),
    };
    let shape: Vec<String> = node.shape.iter().map(u64::to_string).collect();
    let inputs = if inputs.is_empty() { String::new() } else { format!("({})", inputs.join(", ")) };
    let masked = if node.nullable { "?" } else { "" };
    format!("%{} = {what}{inputs}: {}{masked} [{}]", id.0, node.dtype, shape.join(", "))
}
