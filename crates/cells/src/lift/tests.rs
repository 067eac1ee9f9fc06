#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
//! Plans of cell queries over a small dataset: the relational plan, the IR of each scan, and the notes.

mod calendars;
mod data;
mod elementwise;
mod errors;
mod inside;
mod queries;
mod texts;

use std::fmt::Write;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::LogicalPlan;
use sqlparser::ast::Query;
use tessera_planner::config::Config;

use super::{CellPlan, Density, Form, ScanColumn, plan, session_state};
use tessera_frontend::error::Error;

fn query(sql: &str) -> Query {
    *tessera_frontend::query_of(sql).unwrap().unwrap()
}

const FORM: Form = Form { density: Density::Auto, as_tensors: false };

fn planned(sql: &str) -> Result<CellPlan, Error> {
    let state = session_state(1 << 30)?;
    plan(&query(sql), 0, &data::Tables, &state, &Config::default(), "the clause", FORM)
}

fn show(sql: &str) -> String {
    let plan = planned(sql).unwrap();
    let mut out = format!("{}\n", plan.logical.display_indent());
    for scan in &plan.scans {
        let kind = if scan.exploded { "rows" } else { "dense" };
        writeln!(out, "{} {kind} {:?} presence {:?}", scan.name, scan.shape, scan.presence)
            .unwrap();
        for (field, column) in scan.schema.fields().iter().zip(&scan.columns) {
            let nullable = if field.is_nullable() { "?" } else { "" };
            write!(out, "  {}: {}{nullable} = ", field.name(), field.data_type()).unwrap();
            match column {
                ScanColumn::Label { axis, values } => {
                    let text: Vec<String> = (0..values.len())
                        .map(|i| arrow::util::display::array_value_to_string(values, i).unwrap())
                        .collect();
                    writeln!(out, "axis {axis} [{}]", text.join(", ")).unwrap();
                }
                ScanColumn::Position { axis, start } => {
                    writeln!(out, "position along axis {axis} from {start}").unwrap();
                }
                ScanColumn::Row => writeln!(out, "row").unwrap(),
                ScanColumn::Cells(root) => {
                    writeln!(out, "%{}", scan.rooted.roots[*root].0).unwrap();
                }
            }
        }
        for (id, node) in scan.rooted.graph.nodes() {
            let inputs: Vec<String> = node.inputs.iter().map(|i| format!("%{}", i.0)).collect();
            let mask = if node.nullable { "?" } else { "" };
            writeln!(
                out,
                "  %{} = {} ({}) {}{mask} {:?}",
                id.0,
                op(&node.op),
                inputs.join(", "),
                node.dtype,
                &node.shape[..]
            )
            .unwrap();
        }
    }
    for note in &plan.notes {
        writeln!(out, "-- {note}").unwrap();
    }
    out
}

fn op(op: &tessera_planner::ir::Op) -> String {
    use tessera_planner::ir::{AxisReduce, Op};
    match op {
        Op::Load { source, region } => format!("load {} {region}", source.path),
        Op::Const(c) => {
            let cells: Vec<String> = (0..c.len().min(6))
                .map(|i| c.get(i).map_or("NULL".into(), |v| v.to_string()))
                .collect();
            format!("const [{}]", cells.join(", "))
        }
        Op::Map(op) => format!("{op:?}"),
        Op::View(v) => format!(
            "view {:?}",
            v.axes.iter().map(|a| (a.axis, a.start, a.step)).collect::<Vec<_>>()
        ),
        Op::Reduce { kind, axes } => {
            let axes: Vec<String> = axes
                .iter()
                .map(|a| match a {
                    AxisReduce::Keep => "keep".to_string(),
                    AxisReduce::All => "all".to_string(),
                    AxisReduce::Group(g) => format!("{:?}", g.codes),
                })
                .collect();
            format!("reduce {kind} [{}]", axes.join(", "))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn the_optimiser_is_stopped() {
    let plan = |is_stopped| {
        tessera_planner::interrupt::interruptible(
            move || is_stopped,
            || planned("SELECT x FROM t WHERE x > 0"),
        )
    };
    assert!(matches!(plan(true), Err(Error::Stopped)));
}

/// The nodes of all expressions of a chain of blocks, each with a condition and a computed column.
fn parts_of_chain(blocks: usize) -> usize {
    let mut sql = "WITH c0 AS (SELECT time, t2m AS v FROM era5)".to_string();
    for i in 1..=blocks {
        let before = i - 1;
        write!(sql, ", c{i} AS (SELECT time, v + {i} AS v FROM c{before} WHERE v > {i})").unwrap();
    }
    write!(sql, " SELECT time, v FROM c{blocks}").unwrap();
    let mut parts = 0;
    let count = |node: &LogicalPlan| {
        node.each_expr(|expr| {
            expr.each(|_| {
                parts += 1;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    };
    tessera_frontend::limits::with_stack(|| planned(&sql).unwrap().logical.each_of_all(count))
        .unwrap();
    parts
}

#[test]
fn the_plan_of_a_chain_of_blocks_grows_with_its_length() {
    let (few, many) = (parts_of_chain(50), parts_of_chain(100));
    // With the square of the length it would be 3.6 times as large.
    assert!(many < few * 5 / 2, "{few} and {many} nodes of expressions");
}
