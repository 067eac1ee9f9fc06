//! Plans as text: the stages that will run, and the numbers that decide.

use crate::cost::{cost, peak_max, time};
use crate::durable::{Durability, picks};
use crate::factor::Factor;
use crate::ir::{AxisReduce, Contraction, Graph, MapOp, Node, NodeId, Op};
use crate::lookup::LookupKind;
use crate::optimize::Rooted;
use crate::place::Modelled;
use crate::plan::{Access, Fused, FusedInput, FusedOutput, Input, OutputRef, Plan, StageId, Task};
use crate::reduce::ReduceKind;
use crate::sort::{Quantiles, SortOrder, SortWhat};
use crate::tile::Tiling;
use crate::window::Frame;
use std::fmt::Write;

/// Formats the graph as one tree per root; a node that occurs twice is shown once and named after that.
///
/// ```text
/// root 0
/// map sub: float64 [3] /[3/3]
/// ├ load x.npy …
/// └ view [0] …
/// ```
pub fn graph(rooted: &Rooted) -> String {
    let mut out = String::new();
    let mut shown = vec![false; rooted.graph.len()];
    for (i, &root) in rooted.roots.iter().enumerate() {
        let _ = writeln!(out, "root {i}");
        tree(&rooted.graph, root, "", "", &mut shown, &mut out);
    }
    out
}

fn tree(
    graph: &Graph,
    id: NodeId,
    head: &str,
    rest: &str,
    shown: &mut Vec<bool>,
    out: &mut String,
) {
    let node = graph.node(id);
    let again = std::mem::replace(&mut shown[id.0 as usize], true) && !node.inputs.is_empty();
    let _ =
        writeln!(out, "{head}%{} {}{}", id.0, describe(node), if again { " (above)" } else { "" });
    if again {
        return;
    }
    for (i, &input) in node.inputs.iter().enumerate() {
        let last = i + 1 == node.inputs.len();
        let (h, r) = if last { ("└ ", "  ") } else { ("├ ", "│ ") };
        tree(graph, input, &format!("{rest}{h}"), &format!("{rest}{r}"), shown, out);
    }
}

fn describe(node: &Node) -> String {
    let what = match &node.op {
        Op::Load { source, region } => {
            format!("load {} {region}", source_name(&source.url, &source.path))
        }
        Op::Const(c) if c.len() == 1 => {
            format!("const {}", c.get(0).map_or("NULL".into(), |v| v.to_string()))
        }
        Op::Const(_) => "const".into(),
        Op::Iota => "iota".into(),
        Op::Map(MapOp::Scalar(op)) => format!("map {}", op.name()),
        Op::Map(op) => format!("map {}", format!("{op:?}").to_lowercase()),
        Op::View(v) => format!("view {v}"),
        Op::Reshape => "reshape".into(),
        Op::Concat { axis } => format!("concat axis={axis}"),
        Op::Take { axis, positions } => format!("take axis={axis} positions={}", positions.len()),
        Op::Reduce { kind, axes } => format!("reduce {}", reduction(*kind, axes)),
        Op::Scan { kind, axis } => {
            format!("scan {} axis={axis}", format!("{kind:?}").to_lowercase())
        }
        Op::Window { axis, frame, kind, min_count } => {
            format!("window {}", rolling(*axis, *frame, *kind, *min_count))
        }
        Op::Sort { axis, what, order, .. } => sorting(*axis, *what, *order),
        Op::Quantile { axis, quantiles } => order_statistics(*axis, quantiles),
        Op::Lookup { kind } => looking(*kind),
        Op::Bin { count, .. } => format!("bin count={count}"),
        Op::Contract(axes) => contraction("contract", *axes),
        Op::Factor { kind, part } => format!("factor {kind} .{}", kind.parts()[*part]),
        Op::Certain { operation } => format!("certain for {operation}"),
        Op::Rechunk => "rechunk".into(),
    };
    let mask = if node.nullable { " masked" } else { "" };
    format!("{what}: {}{mask} chunks {}", node.dtype, node.grid)
}

fn reduction(kind: ReduceKind, axes: &[AxisReduce]) -> String {
    let mut parts = Vec::new();
    for (a, r) in axes.iter().enumerate() {
        match r {
            AxisReduce::Keep => {}
            AxisReduce::All => parts.push(a.to_string()),
            AxisReduce::Group(g) => parts.push(format!("{a} in {} groups", g.count)),
        }
    }
    format!("{kind} over [{}]", parts.join(", "))
}

/// Name of a source in SQL, without credentials.
fn source_name(url: &str, path: &str) -> String {
    if path.is_empty() { url.into() } else { format!("{url}#{path}") }
}

/// Formats the stages of a plan, one line each with inputs and outputs, then the cost.
pub fn plan(tiling: &Tiling) -> String {
    let plan = tiling.plan();
    let mut out = String::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        let id = StageId(i as u32);
        let task = task_text(&stage.task);
        let _ = writeln!(
            out,
            "#{i} {task}: cells {}, {} operand{}, peak {}",
            stage.grid,
            stage.grid.count(),
            if stage.grid.count() == 1 { "" } else { "s" },
            bytes(peak_max(tiling, id))
        );
        for (k, input) in stage.inputs.iter().enumerate() {
            let how = access_text(plan, input);
            let _ = writeln!(out, "   reads {k}: {}{how}", output_name(input.from));
        }
        if let Task::Fused(f) = &stage.task {
            program(f, &mut out);
        }
    }
    let results: Vec<String> = plan.results.iter().map(|r| output_name(*r)).collect();
    let c = cost(tiling);
    let _ = writeln!(
        out,
        "results {}\n{} operands, {} loaded, {} of results, largest operand {}\nabout {} of work{}",
        results.join(", "),
        c.operands,
        bytes(c.bytes_loaded),
        bytes(c.result_bytes),
        bytes(c.operand_bytes_max),
        time(c.work_us),
        if c.here { ", by the thread that asks" } else { "" }
    );
    out
}

fn task_text(task: &Task) -> String {
    match task {
        Task::Load { source, .. } => format!("Load {}", source_name(&source.url, &source.path)),
        Task::Const(c) => format!("Const {}", c.dtype),
        Task::Fused(_) => "Fused".into(),
        Task::Combine { kind, finish: true, .. } => format!("Combine {kind}, finish"),
        Task::Combine { kind, .. } => format!("Combine {kind}"),
        Task::Scan { kind, axis } => {
            format!("Scan {} axis={axis}", format!("{kind:?}").to_lowercase())
        }
        Task::Window { axis, frame, kind, min_count } => {
            format!("Window {}", rolling(*axis, *frame, *kind, *min_count))
        }
        Task::Sort { axis, what, order } => capital(&sorting(*axis, *what, *order)),
        Task::Runs { runs, order, .. } => {
            let what = if runs.what == SortWhat::Positions { " with positions" } else { "" };
            format!("Sort runs{order}{what}")
        }
        Task::Merge { axis, runs, order, .. } => {
            format!("Merge runs, {}", sorting(*axis, runs.what, *order))
        }
        Task::Select { axis, quantiles, .. } => {
            format!("Select from runs, {}", order_statistics(*axis, quantiles))
        }
        Task::Quantile { axis, quantiles } => capital(&order_statistics(*axis, quantiles)),
        Task::Lookup { kind } => capital(&looking(*kind)),
        Task::Bin { .. } => "Bin".into(),
        Task::Contract { dtype, axes } => contraction(&format!("Contract {dtype}"), *axes),
        Task::Factor { kind, parts, dtype } => {
            format!("Factor {kind} {} {dtype}", part_names(*kind, parts))
        }
        Task::Copy => "Copy".into(),
    }
}

fn access_text(plan: &Plan, input: &Input) -> String {
    match &input.access {
        Access::View(v) if v.is_identity() => String::new(),
        Access::View(v) => format!(" at {v}"),
        Access::Fan(f) => format!(" fan {f:?}"),
        Access::Reshape(s) => format!(" reshaped from {s:?}"),
        Access::Part { part, view } => {
            let view = if view.is_identity() { String::new() } else { format!(" at {view}") };
            format!(" as part {part}{view}")
        }
        Access::Take { axis, positions } => {
            format!(" at {} positions of axis {axis}", positions.len())
        }
        Access::Window { axis, frame, view } => {
            let view = if view.is_identity() { String::new() } else { format!(" at {view}") };
            format!(" {} before to {} after along axis {axis}{view}", frame.before, frame.after)
        }
        Access::Runs { axis } => {
            let grid = &plan.output(input.from).grid;
            format!(" {} runs along axis {axis}", grid.axes[grid.rank() - 1].count())
        }
        Access::Previous { axis } => format!(" carry along axis {axis}"),
    }
}

/// Formats the inputs, instructions and outputs of a fused stage, one line each.
fn program(f: &Fused, out: &mut String) {
    if let Some(b) = &f.batch {
        let each: u64 = (0..b.grid.rank()).map(|a| b.along(a)).product();
        let _ = writeln!(out, "   chunks {}, {each} an operand", b.grid);
    }
    for (k, input) in f.inputs.iter().enumerate() {
        let dtype = f.program.inputs[k];
        let _ = match input {
            FusedInput::Field { input, field } => {
                writeln!(
                    out,
                    "   in{k}: {dtype} = read {input}{}",
                    if *field > 0 { " mask" } else { "" }
                )
            }
            FusedInput::Index { offset, strides } => {
                writeln!(out, "   in{k}: {dtype} = index {offset} + {:?} * i", strides.as_slice())
            }
        };
    }
    for (k, inst) in f.program.insts.iter().enumerate() {
        let _ = writeln!(out, "   %{k} = {inst}");
    }
    for (k, o) in f.outputs.iter().enumerate() {
        let masked = |valid: &Option<crate::program::Arg>| {
            valid.map_or(String::new(), |v| format!(" where {v}"))
        };
        let _ = match o {
            FusedOutput::Store { value, valid } => {
                writeln!(out, "   store .{k} {value}{}", masked(valid))
            }
            FusedOutput::Certain { value, valid, operation } => {
                writeln!(out, "   store .{k} {value}, all {valid} for {operation}")
            }
            FusedOutput::Reduce { kind, axes, value, valid } => {
                writeln!(
                    out,
                    "   reduce .{k} {} of {value}{}",
                    reduction(*kind, axes),
                    masked(valid)
                )
            }
        };
    }
}

/// Formats the stages whose chunks are stored for recovery, as a line below the plan; empty if there are none.
///
/// ```text
/// durable: #2, #5 (auto)
/// ```
pub fn durable(tiling: &Tiling, durability: Durability) -> String {
    let kept = picks(tiling, durability);
    let names: Vec<String> =
        (0..kept.len()).filter(|&i| kept[i]).map(|i| format!("#{i}")).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("durable: {} ({durability})\n", names.join(", ")),
    }
}

/// Formats the phases of a placed plan and the bytes moved between workers, as lines below the plan.
///
/// ```text
/// phase 0: #0, #1, #2; 1.2 s of 2 workers' work, 3.1 MiB moved, about 640.0 ms
///    #1.0 to #2: 3 chunks, 3.1 MiB
/// about 685.0 ms, 3.1 MiB moved between 2 workers
/// ```
pub fn placement(model: &Modelled) -> String {
    let mut out = String::new();
    for (p, phase) in (0u32..).zip(&model.phases) {
        let stages: Vec<String> = phase.stages.iter().map(|s| format!("#{}", s.0)).collect();
        let busy = phase.work_us.iter().filter(|us| **us > 0).count();
        let _ = writeln!(
            out,
            "phase {p}: {}; {} of {busy} worker{} work, {} moved, about {}",
            stages.join(", "),
            time(phase.work_us.iter().sum()),
            if busy == 1 { "'s" } else { "s'" },
            bytes(phase.bytes_in.iter().sum()),
            time(phase.time_us)
        );
        for e in model.edges.iter().filter(|e| model.phase[e.to.0 as usize] == p) {
            let chunks = if e.chunks == 1 { "chunk" } else { "chunks" };
            let (from, bytes) = (output_name(e.from), bytes(e.bytes));
            let _ = writeln!(out, "   {from} to #{}: {} {chunks}, {bytes}", e.to.0, e.chunks);
        }
    }
    let workers = model.phases.first().map_or(0, |p| p.work_us.len());
    let _ = write!(
        out,
        "about {}, {} moved between {workers} workers",
        time(model.time_us),
        bytes(model.bytes_moved)
    );
    if model.bytes_again > 0 {
        let _ = write!(out, ", {} read or made by several", bytes(model.bytes_again));
    }
    out.push('\n');
    out
}

/// The plan and its cost as JSON.
pub fn json(tiling: &Tiling) -> serde_json::Value {
    let stages: Vec<serde_json::Value> = tiling
        .plan()
        .stages
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let id = StageId(i as u32);
            let (task, detail) = match &s.task {
                Task::Load { source, .. } => {
                    ("load", serde_json::json!({"source": source_name(&source.url, &source.path)}))
                }
                Task::Const(c) => ("const", serde_json::json!({"dtype": c.dtype.name()})),
                Task::Fused(f) => (
                    "fused",
                    serde_json::json!({
                        "program": f.program.insts.iter().map(|i| i.to_string()).collect::<Vec<_>>(),
                        "outputs": f.outputs.iter().map(|o| match o {
                            FusedOutput::Store { .. } => "store".to_string(),
                            FusedOutput::Certain { operation, .. } => {
                                format!("store, none masked for {operation}")
                            }
                            FusedOutput::Reduce { kind, axes, .. } => reduction(*kind, axes),
                        }).collect::<Vec<_>>(),
                        "chunks_an_operand": f.batch.as_ref().map(|b| {
                            (0..b.grid.rank()).map(|a| b.along(a)).collect::<Vec<_>>()
                        }),
                    }),
                ),
                Task::Combine { kind, finish, spans, .. } => {
                    ("combine", serde_json::json!({"kind": kind.to_string(), "finish": finish, "spans": spans.is_some()}))
                }
                Task::Scan { kind, axis } => {
                    ("scan", serde_json::json!({"kind": format!("{kind:?}").to_lowercase(), "axis": axis}))
                }
                Task::Window { axis, frame, kind, min_count } => (
                    "window",
                    serde_json::json!({"kind": kind.to_string(), "axis": axis, "before": frame.before, "after": frame.after, "min_count": min_count}),
                ),
                Task::Sort { axis, what, order } => {
                    ("sort", serde_json::json!({"axis": axis, "what": format!("{what:?}").to_lowercase(), "descending": order.descending}))
                }
                Task::Runs { runs, order, .. } => {
                    ("sort_runs", serde_json::json!({"what": format!("{:?}", runs.what).to_lowercase(), "descending": order.descending}))
                }
                Task::Merge { axis, runs, order, .. } => {
                    ("merge_runs", serde_json::json!({"axis": axis, "what": format!("{:?}", runs.what).to_lowercase(), "descending": order.descending}))
                }
                Task::Select { axis, quantiles, .. } => (
                    "select_from_runs",
                    serde_json::json!({"axis": axis, "q": quantiles.probabilities().collect::<Vec<_>>(), "method": quantiles.method.name()}),
                ),
                Task::Quantile { axis, quantiles } => (
                    "quantile",
                    serde_json::json!({"axis": axis, "q": quantiles.probabilities().collect::<Vec<_>>(), "method": quantiles.method.name()}),
                ),
                Task::Lookup { kind } => {
                    ("lookup", serde_json::json!({"kind": format!("{kind:?}").to_lowercase()}))
                }
                Task::Bin { strict, edges } => {
                    ("bin", serde_json::json!({"strict": strict, "edges": edges}))
                }
                Task::Contract { dtype, axes } => {
                    ("contract", serde_json::json!({"dtype": dtype.name(), "axes": axes}))
                }
                Task::Factor { kind, parts, dtype } => (
                    "factor",
                    serde_json::json!({
                        "kind": kind.to_string(),
                        "parts": parts.iter().map(|&p| kind.parts()[p]).collect::<Vec<_>>(),
                        "dtype": dtype.name(),
                    }),
                ),
                Task::Copy => ("copy", serde_json::json!({})),
            };
            serde_json::json!({
                "stage": i,
                "task": task,
                "detail": detail,
                "reads": s.inputs.iter().map(|i| output_name(i.from)).collect::<Vec<_>>(),
                "shape": s.grid.shape().to_vec(),
                "chunks": s.grid.axes.iter().map(|a| a.chunk).collect::<Vec<_>>(),
                "operands": s.grid.count(),
                "peak_bytes": peak_max(tiling, id),
            })
        })
        .collect();
    serde_json::json!({
        "stages": stages,
        "results": tiling.plan().results.iter().map(|r| output_name(*r)).collect::<Vec<_>>(),
        "cost": cost(tiling),
    })
}

/// The stages as a Graphviz digraph.
pub fn dot(tiling: &Tiling) -> String {
    let mut out = String::from(
        "digraph plan {\n  rankdir=BT;\n  node [shape=box, fontname=\"monospace\"];\n",
    );
    for (i, s) in tiling.plan().stages.iter().enumerate() {
        let name = match &s.task {
            Task::Load { source, .. } => format!("load {}", source_name(&source.url, &source.path)),
            Task::Factor { kind, parts, .. } => format!("{kind} {}", part_names(*kind, parts)),
            task => task.name(),
        };
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(out, "  s{i} [label=\"#{i} {name}\\n{} × {}\"];", s.grid.count(), s.grid);
        for input in &s.inputs {
            let _ = writeln!(out, "  s{} -> s{i};", input.from.stage.0);
        }
    }
    for (k, r) in tiling.plan().results.iter().enumerate() {
        let _ = writeln!(
            out,
            "  r{k} [shape=ellipse, label=\"result {k}\"];\n  s{} -> r{k};",
            r.stage.0
        );
    }
    out.push_str("}\n");
    out
}

fn rolling(axis: usize, frame: Frame, kind: ReduceKind, min_count: u64) -> String {
    let Frame { before, after } = frame;
    format!("{kind} axis={axis} before={before} after={after} min_count={min_count}")
}

fn sorting(axis: usize, what: SortWhat, order: SortOrder) -> String {
    let what = if what == SortWhat::Positions { "argsort" } else { "sort" };
    format!("{what} axis={axis}{order}")
}

fn order_statistics(axis: usize, quantiles: &Quantiles) -> String {
    let q: Vec<String> = quantiles.probabilities().map(|q| q.to_string()).collect();
    format!("quantile axis={axis} q=[{}] {}", q.join(", "), quantiles.method)
}

fn looking(kind: LookupKind) -> String {
    format!("lookup {}", format!("{kind:?}").to_lowercase())
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |c| c.to_uppercase().chain(letters).collect())
}

/// `name`, and the number of axes in each role if they are not those of matrices.
fn contraction(name: &str, axes: Contraction) -> String {
    let Contraction { rows, columns, summed } = axes;
    match axes == Contraction::MATRICES {
        true => name.into(),
        false => format!("{name} axes m={rows} n={columns} k={summed}"),
    }
}

/// Names of the parts of a factorisation that a stage computes: `.u .s`.
fn part_names(kind: Factor, parts: &[usize]) -> String {
    let names: Vec<String> = parts.iter().map(|&p| format!(".{}", kind.parts()[p])).collect();
    names.join(" ")
}

fn output_name(r: OutputRef) -> String {
    format!("#{}.{}", r.stage.0, r.output)
}

/// Formats bytes in a suitable unit: `1.5 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut v = n as f64;
    let mut unit = 0;
    while v >= 1024.0 && unit + 1 < UNITS.len() {
        v /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{v:.1} {}", UNITS[unit]) }
}
