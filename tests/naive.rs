//! A whole-array evaluator of the IR, as slow and as plain as can be. It shares no code with exec: each cell is a
//! number of its own, every node is computed in full, in the order of the graph.

use tessera_planner::dtype::DType;
use tessera_planner::ir::{AxisReduce, Contraction, Graph, MapOp, Node, NodeId, Op, ScanKind};
use tessera_planner::lookup::LookupKind;
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::sort::SortWhat;

/// A cell: `None` is masked. Integers and booleans are exact as `f64` here; tests keep them small.
pub(crate) type Cell = Option<f64>;

/// A tensor as a list of cells, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Whole {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) cells: Vec<Cell>,
}

fn positions(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &n in shape {
        all = all
            .into_iter()
            .flat_map(|p| (0..n).map(move |i| [p.clone(), vec![i]].concat()))
            .collect();
    }
    all
}

fn ravel(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |n, (&d, &p)| n * d + p)
}

/// Evaluates a graph; `sources` returns the cells of a stored array by its URL.
pub(crate) fn evaluate(
    graph: &Graph,
    roots: &[NodeId],
    sources: &dyn Fn(&str) -> Whole,
) -> Vec<Whole> {
    let mut done: Vec<Whole> = Vec::new();
    for (_, node) in graph.nodes() {
        let inputs: Vec<&Whole> = node.inputs.iter().map(|i| &done[i.0 as usize]).collect();
        let cells = cells_of(node, &inputs, sources);
        let shape = node.shape.iter().map(|&n| n as usize).collect();
        let round =
            |c: Cell| if node.dtype == DType::Float32 { c.map(|v| f64::from(v as f32)) } else { c };
        done.push(Whole {
            shape,
            dtype: node.dtype,
            cells: cells.into_iter().map(round).collect(),
        });
    }
    roots.iter().map(|r| done[r.0 as usize].clone()).collect()
}

fn cells_of(node: &Node, inputs: &[&Whole], sources: &dyn Fn(&str) -> Whole) -> Vec<Cell> {
    let shape: Vec<usize> = node.shape.iter().map(|&n| n as usize).collect();
    let all = positions(&shape);
    match &node.op {
        Op::Load { source, region } => {
            let whole = sources(&source.url);
            let shifted = |p: &Vec<usize>| -> Vec<usize> {
                p.iter().zip(&region.start).map(|(&i, &s)| i + s as usize).collect()
            };
            all.iter().map(|p| whole.cells[ravel(&whole.shape, &shifted(p))]).collect()
        }
        Op::Const(c) => (0..c.len()).map(|i| c.get(i).map(|v| v.as_f64())).collect(),
        Op::Iota => (0..all.len()).map(|i| Some(i as f64)).collect(),
        Op::Map(op) => (0..all.len())
            .map(|i| {
                let args: Vec<Cell> = inputs.iter().map(|t| t.cells[i]).collect();
                map(*op, node.dtype, &args)
            })
            .collect(),
        Op::View(v) => all
            .iter()
            .map(|p| {
                let at: Vec<usize> = v
                    .axes
                    .iter()
                    .map(|a| (a.start + a.axis.map_or(0, |o| a.step * p[o] as i64)) as usize)
                    .collect();
                inputs[0].cells[ravel(&inputs[0].shape, &at)]
            })
            .collect(),
        Op::Reshape | Op::Rechunk | Op::Certain { .. } => inputs[0].cells.clone(),
        Op::Concat { axis } => all
            .iter()
            .map(|p| {
                let mut at = p.clone();
                for t in inputs {
                    if at[*axis] < t.shape[*axis] {
                        return t.cells[ravel(&t.shape, &at)];
                    }
                    at[*axis] -= t.shape[*axis];
                }
                None
            })
            .collect(),
        Op::Take { axis, positions } => all
            .iter()
            .map(|p| {
                let mut at = p.clone();
                at[*axis] = positions[at[*axis]] as usize;
                inputs[0].cells[ravel(&inputs[0].shape, &at)]
            })
            .collect(),
        Op::Reduce { kind, axes } => reduce(*kind, axes, inputs[0], &shape),
        Op::Lookup { kind } => {
            let table: Vec<f64> = inputs[1].cells.iter().flatten().copied().collect();
            // NaN is the greatest, as in a sorted table.
            let above = |t: f64, x: f64| t > x || (t.is_nan() && !x.is_nan());
            let place = |x: f64| {
                Some(match kind {
                    LookupKind::Left => table.iter().filter(|t| above(x, **t)).count() as f64,
                    LookupKind::Right => table.iter().filter(|t| !above(**t, x)).count() as f64,
                    LookupKind::Contains => f64::from(u8::from(table.contains(&x))),
                    other => panic!("the evaluator does not know {other:?}"),
                })
            };
            inputs[0].cells.iter().map(|c| c.and_then(place)).collect()
        }
        Op::Bin { count, .. } => {
            let mut out = vec![0.0; *count as usize];
            for (i, code) in inputs[0].cells.iter().enumerate() {
                let weight = inputs.get(1).map_or(Some(1.0), |w| w.cells[i]);
                if let (Some(c), Some(w)) = (code, weight)
                    && *c >= 0.0
                    && *c < *count as f64
                {
                    out[*c as usize] += w;
                }
            }
            out.into_iter().map(Some).collect()
        }
        Op::Scan { kind, axis } => {
            let mut out = inputs[0].cells.clone();
            for p in &all {
                // The nearest cell before it that is not masked.
                let before = (0..p[*axis]).rev().find_map(|i| {
                    let mut q = p.clone();
                    q[*axis] = i;
                    out[ravel(&shape, &q)]
                });
                let i = ravel(&shape, p);
                if *kind == ScanKind::Last {
                    out[i] = out[i].or(before);
                } else if let (Some(b), Some(v)) = (before, out[i]) {
                    let joined = match *kind {
                        ScanKind::Sum => b + v,
                        ScanKind::Prod => b * v,
                        ScanKind::Min => least(b, v),
                        ScanKind::Max => -least(-b, -v),
                        ScanKind::Decay { factor } => b * f64::from_bits(factor) + v,
                        ScanKind::Last => v,
                    };
                    out[i] = Some(joined);
                }
            }
            out
        }
        Op::Window { axis, frame, kind, min_count } => all
            .iter()
            .map(|p| {
                let (i, n) = (p[*axis] as i64, shape[*axis] as i64);
                let seen = (i - frame.before).max(0)..(i + frame.after + 1).min(n);
                let cells: Vec<Cell> = seen
                    .map(|at| {
                        let mut q = p.clone();
                        q[*axis] = at as usize;
                        inputs[0].cells[ravel(&shape, &q)]
                    })
                    .collect();
                let valid = cells.iter().flatten().count() as u64;
                let line = Whole { shape: vec![cells.len()], dtype: node.dtype, cells };
                (valid >= *min_count)
                    .then(|| reduce(*kind, &[AxisReduce::All], &line, &[1])[0])
                    .flatten()
            })
            .collect(),
        Op::Sort { axis, what, order, .. } => all
            .iter()
            .map(|p| {
                let line = line_of(inputs[0], *axis, p);
                let mut at: Vec<usize> = (0..line.len()).collect();
                // Numbers, NaN, masked: in the order that the flags say.
                let rank = |c: &Cell| match c {
                    None => {
                        if order.masked_first {
                            0
                        } else {
                            9
                        }
                    }
                    Some(v) if v.is_nan() => {
                        if order.nan_first {
                            1
                        } else {
                            8
                        }
                    }
                    _ => 5,
                };
                let sign = if order.descending { -1.0 } else { 1.0 };
                at.sort_by(|&i, &j| {
                    let number = |c: Cell| sign * c.unwrap_or(0.0) + 0.0;
                    rank(&line[i]).cmp(&rank(&line[j])).then(
                        number(line[i])
                            .partial_cmp(&number(line[j]))
                            .unwrap_or(std::cmp::Ordering::Equal),
                    )
                });
                let first = at[p[*axis]];
                if *what == SortWhat::Positions { Some(first as f64) } else { line[first] }
            })
            .collect(),
        Op::Quantile { axis, quantiles } => all
            .iter()
            .map(|p| {
                let mut line: Vec<f64> =
                    line_of(inputs[0], *axis, p).into_iter().flatten().collect();
                if line.iter().any(|v| v.is_nan()) {
                    return Some(f64::NAN);
                }
                line.sort_by(f64::total_cmp);
                let q = quantiles.probabilities().nth(p[*axis]).unwrap();
                let at = q * (line.len() as f64 - 1.0);
                let low = *line.get(at.floor() as usize)?;
                Some(low + (line[at.ceil() as usize] - low) * at.fract())
            })
            .collect(),
        Op::Factor { kind, .. } => unreachable!("{kind}: no expression is made of factorisations"),
        Op::Contract(Contraction { rows, columns, summed }) => {
            let stack = shape.len() - rows - columns;
            let summed = positions(&inputs[0].shape[inputs[0].shape.len() - summed..]);
            all.iter()
                .map(|p| {
                    let (stack, own) = p.split_at(stack);
                    let (m, n) = own.split_at(*rows);
                    let product = |k: &Vec<usize>| {
                        let (l, q) = ([stack, m, k].concat(), [stack, k, n].concat());
                        let a = inputs[0].cells[ravel(&inputs[0].shape, &l)].unwrap_or(0.0);
                        let b = inputs[1].cells[ravel(&inputs[1].shape, &q)].unwrap_or(0.0);
                        a * b
                    };
                    Some(summed.iter().map(product).sum())
                })
                .collect()
        }
    }
}

/// The cells of the line through a position along an axis.
fn line_of(x: &Whole, axis: usize, at: &[usize]) -> Vec<Cell> {
    (0..x.shape[axis])
        .map(|i| {
            let mut q = at.to_vec();
            q[axis] = i;
            x.cells[ravel(&x.shape, &q)]
        })
        .collect()
}

fn least(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn map(op: MapOp, dtype: DType, a: &[Cell]) -> Cell {
    let truth = |c: bool| Some(f64::from(u8::from(c)));
    match op {
        MapOp::IsValid => return truth(a[0].is_some()),
        MapOp::Coalesce => return a[0].or(a[1]),
        MapOp::Mask => return a[0].filter(|_| a[1] == Some(1.0)),
        MapOp::KleeneAnd if a.contains(&Some(0.0)) => return Some(0.0),
        MapOp::KleeneOr if a.contains(&Some(1.0)) => return Some(1.0),
        MapOp::KleeneAnd | MapOp::KleeneOr => {
            return a[0].and(a[1]).map(|_| f64::from(op == MapOp::KleeneAnd));
        }
        MapOp::Scalar(ScalarOp::Where) => {
            return a[0].and_then(|c| if c != 0.0 { a[1] } else { a[2] });
        }
        MapOp::Scalar(_) => {}
    }
    let MapOp::Scalar(op) = op else { return None };
    let v: Vec<f64> = a.iter().copied().collect::<Option<_>>()?;
    let y = v.get(1).copied().unwrap_or(0.0);
    let x = v[0];
    Some(match op {
        ScalarOp::Neg => -x,
        ScalarOp::Abs => x.abs(),
        ScalarOp::Sqrt => x.sqrt(),
        ScalarOp::Exp => x.exp(),
        ScalarOp::Floor => x.floor(),
        ScalarOp::Add => x + y,
        ScalarOp::Sub => x - y,
        ScalarOp::Mul => x * y,
        ScalarOp::Div => x / y,
        ScalarOp::Minimum => least(x, y),
        ScalarOp::Maximum => -least(-x, -y),
        ScalarOp::Gt => return truth(x > y),
        ScalarOp::Lt => return truth(x < y),
        ScalarOp::Eq => return truth(x == y),
        ScalarOp::IsNan => return truth(x.is_nan()),
        ScalarOp::Not => return truth(x == 0.0),
        // The range is never left here; NaN is 0, as the engine documents.
        ScalarOp::Cast if dtype.is_integer() => {
            if x.is_nan() {
                0.0
            } else {
                x.trunc()
            }
        }
        ScalarOp::Cast if dtype == DType::Bool => return truth(x != 0.0),
        ScalarOp::Cast => x,
        other => panic!("the evaluator does not know {other:?}"),
    })
}

fn reduce(kind: ReduceKind, axes: &[AxisReduce], x: &Whole, shape: &[usize]) -> Vec<Cell> {
    let mut groups: Vec<Vec<(usize, Cell)>> = vec![vec![]; shape.iter().product()];
    for (i, p) in positions(&x.shape).iter().enumerate() {
        let to: Vec<usize> = p
            .iter()
            .zip(axes)
            .map(|(&i, a)| match a {
                AxisReduce::Keep => i,
                AxisReduce::All => 0,
                AxisReduce::Group(g) => g.codes[i] as usize,
            })
            .collect();
        // Position over the reduced axes alone.
        let (mut within, mut at) = (vec![], vec![]);
        for (a, r) in axes.iter().enumerate() {
            if *r != AxisReduce::Keep {
                within.push(x.shape[a]);
                at.push(p[a]);
            }
        }
        groups[ravel(shape, &to)].push((ravel(&within, &at), x.cells[i]));
    }
    groups
        .into_iter()
        .map(|cells| {
            let known: Vec<(usize, f64)> =
                cells.iter().filter_map(|(p, c)| c.map(|v| (*p, v))).collect();
            let v: Vec<f64> = known.iter().map(|(_, v)| *v).collect();
            let n = v.len() as f64;
            let masked = v.is_empty() && !cells.is_empty();
            let mean = v.iter().sum::<f64>() / n;
            match kind {
                ReduceKind::Count => Some(n),
                ReduceKind::Any => Some(f64::from(u8::from(v.contains(&1.0)))),
                ReduceKind::All => Some(f64::from(u8::from(!v.contains(&0.0)))),
                _ if masked => None,
                ReduceKind::Sum | ReduceKind::Add => Some(v.iter().sum()),
                ReduceKind::Prod => Some(v.iter().product()),
                ReduceKind::Mean | ReduceKind::MeanOf(_) => Some(mean),
                ReduceKind::Var { ddof } => Some(
                    v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - f64::from(ddof)),
                ),
                ReduceKind::Min => Some(v.iter().copied().fold(f64::INFINITY, least)),
                ReduceKind::Max => Some(-v.iter().map(|v| -v).fold(f64::INFINITY, least)),
                ReduceKind::Quantile(_) if v.iter().any(|v| v.is_nan()) => Some(f64::NAN),
                ReduceKind::Quantile(bits) => {
                    let mut sorted = v.clone();
                    sorted.sort_by(f64::total_cmp);
                    let at = f64::from_bits(bits) * (n - 1.0);
                    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
                    Some(below + (above - below) * at.fract())
                }
                ReduceKind::MinTotal => v.iter().copied().min_by(f64::total_cmp),
                ReduceKind::MaxTotal => v.iter().copied().max_by(f64::total_cmp),
                ReduceKind::ArgMin | ReduceKind::ArgMax => {
                    let sign = if kind == ReduceKind::ArgMin { 1.0 } else { -1.0 };
                    let mut best: Option<(usize, f64)> = None;
                    for &(p, v) in &known {
                        let better = best.is_none_or(|(_, b)| {
                            !b.is_nan() && (v.is_nan() || sign * v < sign * b)
                        });
                        if better {
                            best = Some((p, v));
                        }
                    }
                    best.map(|(p, _)| p as f64)
                }
            }
        })
        .collect()
}
