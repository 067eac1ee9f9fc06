//! Matrix factorisations, and the solvers that use them.
//!
//! All functions operate on the last two dimensions; leading dimensions are a stack of matrices. Integers are converted
//! to float64. A masked cell is an error at run time.

use sqlparser::tokenizer::Span;
use tessera_planner::build::broadcast_shapes;
use tessera_planner::dtype::DType;
use tessera_planner::factor::Factor;
use tessera_planner::ir::{AxisReduce, MapOp, NodeId};
use tessera_planner::program::ScalarOp;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

use super::row::Lower;
use super::{Bound, Row, row};
use crate::error::Error;
use crate::lower::value::{Dim, Record, Tensor, Value};
use crate::lower::{At, Lowerer, fail, misshapen, types, unique};

const TYPES: &str = "numeric and bool; float32 stays, all others are float64";
const MASKS: &str = "masked cells are an error; NaN propagates";
const FINITE: &str = "masked cells, NaN and infinities are errors";

/// A row of the functions that let NaN through.
const fn of_matrix(signature: &'static str, lower: Lower, doc: &'static str) -> Row {
    row(signature, lower, doc).dtypes(TYPES).missing(MASKS)
}

pub(super) const ROWS: &[Row] = &[
    of_matrix(
        "qr(a)",
        qr,
        "Record of `q` (orthonormal columns) and `r` (upper triangular, its diagonal not \
         negative) with a = q r, reduced. A tall matrix is factored in blocks of rows.",
    )
    .example("SELECT qr(a).q, qr(a).r FROM a")
    .numpy("numpy.linalg.qr"),
    row(
        "svd(a, k => NULL)",
        svd,
        "Record of `u`, `s` (descending) and `vh` with a = u diag(s) vh, thin; `k` keeps the k \
         largest. In each singular vector of the shorter side (rows of vh if a is square) the \
         cell of the largest magnitude is positive. `vt` and `v` are other names of `vh`.",
    )
    .dtypes(TYPES)
    .missing(FINITE)
    .example("SELECT svd(a, k => 20).u[:, 0:3] FROM a")
    .numpy("numpy.linalg.svd with full_matrices=False"),
    row(
        "eigh(a, uplo => 'L')",
        eigh,
        "Record of `eigenvalues` (ascending; also `w`) and `eigenvectors` (columns; also `v`) \
         of a symmetric matrix, of which one triangle is read. In each vector the cell of the \
         largest magnitude is positive.",
    )
    .dtypes(TYPES)
    .missing(FINITE)
    .example("SELECT eigh(cov(x)).eigenvalues FROM x")
    .numpy("numpy.linalg.eigh"),
    of_matrix(
        "cholesky(a)",
        cholesky,
        "The lower triangular l with a = l lᵀ; the lower triangle of a is read. An error if a \
         is not positive definite.",
    )
    .example("SELECT cholesky(cov(x)) FROM x")
    .numpy("numpy.linalg.cholesky"),
    of_matrix(
        "lu(a)",
        lu,
        "Record of `p` (a permutation), `l` (unit lower triangular) and `u` (upper triangular) \
         with a = p l u.",
    )
    .example("SELECT lu(a).l, lu(a).u FROM a")
    .numpy("scipy.linalg.lu"),
    of_matrix("det(a)", det, "Determinant.").numpy("numpy.linalg.det"),
    of_matrix(
        "slogdet(a)",
        slogdet,
        "Record of `sign` and `logabsdet`, the logarithm of the determinant's magnitude.",
    )
    .example("SELECT slogdet(a).logabsdet FROM a")
    .numpy("numpy.linalg.slogdet"),
    of_matrix("inv(a)", inv, "Inverse; an error if a is singular.").numpy("numpy.linalg.inv"),
    row(
        "pinv(a, rcond => NULL)",
        pinv,
        "Pseudo-inverse: singular values up to rcond times the largest count as 0 (the larger \
         length times the type's epsilon if not given).",
    )
    .dtypes(TYPES)
    .missing(FINITE)
    .numpy("scipy.linalg.pinv"),
    row(
        "matrix_rank(a, rcond => NULL)",
        matrix_rank,
        "Number of singular values above rcond times the largest (as for pinv if not given).",
    )
    .dtypes("numeric and bool give int64")
    .missing(FINITE)
    .numpy("numpy.linalg.matrix_rank"),
    of_matrix(
        "solve(a, b)",
        solve,
        "The x with a x = b for a vector or a matrix b; an error if a is singular.",
    )
    .example("SELECT solve(transpose(a) @ a, transpose(a) @ b) FROM a, b")
    .numpy("numpy.linalg.solve"),
    of_matrix(
        "solve_triangular(a, b, lower => false, unit_diagonal => false)",
        solve_triangular,
        "The x with a x = b, of which one triangle of a is read.",
    )
    .example("SELECT solve_triangular(cholesky(a), b, lower => true) FROM a, b")
    .numpy("scipy.linalg.solve_triangular"),
    row(
        "lstsq(a, b, rcond => NULL)",
        lstsq,
        "Record of the least-squares solution `x` of the least length, `residuals` (sums of \
         squares, NULL if a has not full rank or not more rows than columns), `rank` and the \
         singular values `s`.",
    )
    .dtypes(TYPES)
    .missing(FINITE)
    .example("SELECT lstsq(a, b).x FROM a, b")
    .numpy("numpy.linalg.lstsq"),
];

/// A matrix or stack of matrices of a float type.
fn matrix(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, param: &str) -> Result<Tensor, Error> {
    let t = a.tensor(l, param)?;
    let t = float(l, t, a.name, a.place(param))?;
    let shape = l.b.shape(t.node);
    if shape.len() < 2 {
        return misshapen(
            a.name,
            &[shape],
            "it takes a matrix, or a stack of matrices in the last two dimensions",
            a.place(param),
        );
    }
    Ok(t)
}

/// Converts cells to floats: float32 unchanged, other numbers to float64.
pub(super) fn float(
    l: &mut Lowerer<'_, '_>,
    mut t: Tensor,
    name: &str,
    span: Span,
) -> Result<Tensor, Error> {
    let dtype = l.b.dtype(t.node);
    if !dtype.is_float() {
        if dtype.is_datetime() {
            return fail(types(name, vec![dtype.name()]), span);
        }
        t.node = l.b.cast(t.node, DType::Float64).at(span)?;
    }
    t.node = l.b.certain(t.node, name).at(span)?;
    Ok(t)
}

/// A tensor with the stack's dimensions followed by `last`.
fn over(t: &Tensor, node: NodeId, last: impl IntoIterator<Item = Dim>) -> Tensor {
    let stack = t.dims.len() - 2;
    let dims = t.dims[..stack].iter().cloned().chain(last).collect();
    Tensor::new(node, unique(dims))
}

fn row_dim(t: &Tensor) -> Dim {
    t.dims[t.dims.len() - 2].clone()
}

fn column_dim(t: &Tensor) -> Dim {
    t.dims[t.dims.len() - 1].clone()
}

fn qr(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let (q, r) = l.b.qr(t.node).at(a.span)?;
    Ok(Value::Record(Record::new(
        a.name,
        [
            ("q", over(&t, q, [row_dim(&t), Dim::default()])),
            ("r", over(&t, r, [Dim::default(), column_dim(&t)])),
        ],
    )))
}

fn svd(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let k = match a.int(l, "k")? {
        None => None,
        Some(k) => match u64::try_from(k) {
            Ok(k) if k > 0 => Some(k),
            _ => return a.refuse("k", format!("is {k}; it must be at least 1")),
        },
    };
    let parts = l.b.svd(t.node, k).at(a.span)?;
    Ok(Value::Record(Record::new(
        a.name,
        [
            ("u", over(&t, parts.u, [row_dim(&t), Dim::default()])),
            ("s", over(&t, parts.s, [Dim::default()])),
            ("vh", over(&t, parts.vh, [Dim::default(), column_dim(&t)])),
        ],
    )))
}

fn eigh(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let lower = match a.text(l, "uplo")?.as_deref() {
        None | Some("L" | "l") => true,
        Some("U" | "u") => false,
        Some(other) => return a.refuse("uplo", format!("is '{other}'; it must be 'L' or 'U'")),
    };
    let kind = Factor::Eigh { lower };
    let w = l.b.factor(kind, 0, &[t.node]).at(a.span)?;
    let w = l.b.squeeze(w, &[t.dims.len() - 1]).at(a.span)?;
    let v = l.b.factor(kind, 1, &[t.node]).at(a.span)?;
    Ok(Value::Record(Record::new(
        a.name,
        [
            ("eigenvalues", over(&t, w, [Dim::default()])),
            ("eigenvectors", over(&t, v, [row_dim(&t), Dim::default()])),
        ],
    )))
}

fn cholesky(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let node = l.b.factor(Factor::Cholesky, 0, &[t.node]).at(a.span)?;
    Ok(Value::Tensor(over(&t, node, [row_dim(&t), Dim::default()])))
}

fn lu(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let mut part = |part| l.b.factor(Factor::Lu, part, &[t.node]).at(a.span);
    let (p, lower, upper) = (part(0)?, part(1)?, part(2)?);
    Ok(Value::Record(Record::new(
        a.name,
        [
            ("p", over(&t, p, [row_dim(&t), Dim::default()])),
            ("l", over(&t, lower, [Dim::default(), Dim::default()])),
            ("u", over(&t, upper, [Dim::default(), column_dim(&t)])),
        ],
    )))
}

/// One output of the determinant, over the stack's dimensions.
fn of_det(
    l: &mut Lowerer<'_, '_>,
    a: &Bound<'_>,
    t: &Tensor,
    part: usize,
) -> Result<Tensor, Error> {
    let node = l.b.factor(Factor::Det, part, &[t.node]).at(a.span)?;
    let rank = t.dims.len();
    let node = l.b.squeeze(node, &[rank - 2, rank - 1]).at(a.span)?;
    Ok(over(t, node, []))
}

fn det(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    of_det(l, a, &t, 0).map(Value::Tensor)
}

fn slogdet(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let fields = [("sign", of_det(l, a, &t, 1)?), ("logabsdet", of_det(l, a, &t, 2)?)];
    Ok(Value::Record(Record::new(a.name, fields)))
}

fn inv(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    inverse(l, &t, a.span).map(Value::Tensor)
}

/// The inverse, whose rows have the labels of the matrix's columns.
pub(super) fn inverse(l: &mut Lowerer<'_, '_>, t: &Tensor, span: Span) -> Result<Tensor, Error> {
    let node = l.b.factor(Factor::Inv, 0, &[t.node]).at(span)?;
    Ok(over(t, node, [column_dim(t), row_dim(t)]))
}

/// `rcond`; by default the larger length times the type's epsilon.
fn rcond(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, t: &Tensor) -> Result<f64, Error> {
    if let Some(given) = a.float(l, "rcond")? {
        if given.is_nan() || given < 0.0 {
            return a.refuse("rcond", format!("is {given}; it must be 0 or more"));
        }
        return Ok(given);
    }
    let shape = l.b.shape(t.node);
    let longest = shape[shape.len() - 2..].iter().copied().max().unwrap_or(0);
    let epsilon = match l.b.dtype(t.node) {
        DType::Float32 => f64::from(f32::EPSILON),
        _ => f64::EPSILON,
    };
    Ok(longest as f64 * epsilon)
}

fn pinv(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let rcond = rcond(l, a, &t)?;
    let parts = l.b.svd(t.node, None).at(a.span)?;
    let (inverse, _) = l.b.inverse_values(parts.s, rcond).at(a.span)?;
    // v diag(1/s) uᵀ
    let rank = t.dims.len();
    let column = l.b.expand_dims(inverse, rank - 1).at(a.span)?;
    let ut = l.b.matrix_transpose(parts.u).at(a.span)?;
    let ut = l.b.map(ScalarOp::Mul, &[column, ut]).at(a.span)?;
    let v = l.b.matrix_transpose(parts.vh).at(a.span)?;
    let node = l.b.contract(v, ut).at(a.span)?;
    Ok(Value::Tensor(over(&t, node, [column_dim(&t), row_dim(&t)])))
}

fn matrix_rank(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let t = matrix(l, a, "a")?;
    let rcond = rcond(l, a, &t)?;
    let parts = l.b.svd(t.node, None).at(a.span)?;
    let (_, count) = l.b.inverse_values(parts.s, rcond).at(a.span)?;
    let node = l.b.cast(count, DType::Int64).at(a.span)?;
    let node = l.b.squeeze(node, &[t.dims.len() - 2]).at(a.span)?;
    Ok(Value::Tensor(over(&t, node, [])))
}

/// Both sides of an equation: the matrix, and the right side as a matrix, with one stack.
struct Equation {
    a: Tensor,
    b: Tensor,
    /// True if the right side is one vector.
    vector: bool,
}

fn equation(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Equation, Error> {
    let mut left = matrix(l, a, "a")?;
    let right = a.tensor(l, "b")?;
    let mut right = float(l, right, a.name, a.place("b"))?;
    if l.b.dtype(left.node) != l.b.dtype(right.node) {
        left.node = l.b.cast(left.node, DType::Float64).at(a.span)?;
        right.node = l.b.cast(right.node, DType::Float64).at(a.span)?;
    }
    let vector = right.dims.len() == 1;
    if right.dims.is_empty() {
        return misshapen(
            a.name,
            &[&l.b.shape(left.node)[..], &[]],
            "the right side is a vector or a matrix",
            a.place("b"),
        );
    }
    if let (Some(x), Some(y)) =
        (&row_dim(&left).coord, &right.dims[if vector { 0 } else { right.dims.len() - 2 }].coord)
        && x.name == y.name
    {
        l.same_labels(x, y, a.span)?;
    }
    if vector {
        right.node = l.b.expand_dims(right.node, 1).at(a.span)?;
        right.dims.push(Dim::default());
    }
    let (shape_a, shape_b) = (l.b.shape(left.node), l.b.shape(right.node));
    let (lead_a, lead_b) = (shape_a.len() - 2, shape_b.len() - 2);
    let lead = broadcast_shapes(a.name, &[shape_a[..lead_a].into(), shape_b[..lead_b].into()])
        .at(a.span)?;
    let wide = |tail: &[u64]| -> Vec<u64> { lead.iter().chain(tail).copied().collect() };
    let dims = |t: &Tensor, own: usize, shape: &[u64]| -> Vec<Dim> {
        (0..lead.len())
            .map(|axis| match (axis + own).checked_sub(lead.len()) {
                Some(at) if shape[at] == lead[axis] => t.dims[at].clone(),
                _ => Dim::default(),
            })
            .collect()
    };
    let (dims_a, dims_b) = (dims(&left, lead_a, &shape_a), dims(&right, lead_b, &shape_b));
    let stack: Vec<Dim> =
        dims_a.into_iter().zip(dims_b).map(|(x, y)| if x.name.is_some() { x } else { y }).collect();
    let whole = |t: Tensor, own: usize, node: NodeId| {
        let dims = stack.iter().chain(&t.dims[own..]).cloned().collect();
        Tensor::new(node, dims)
    };
    let node = l.b.broadcast_to(left.node, &wide(&shape_a[lead_a..])).at(a.span)?;
    let left = whole(left, lead_a, node);
    let node = l.b.broadcast_to(right.node, &wide(&shape_b[lead_b..])).at(a.span)?;
    let right = whole(right, lead_b, node);
    Ok(Equation { a: left, b: right, vector })
}

impl Equation {
    /// The solution [b.., n, k] with its labels; a vector if the right side is one.
    fn solution(&self, l: &mut Lowerer<'_, '_>, node: NodeId, span: Span) -> Result<Tensor, Error> {
        if self.vector {
            let node = l.b.squeeze(node, &[self.a.dims.len() - 1]).at(span)?;
            return Ok(over(&self.a, node, [column_dim(&self.a)]));
        }
        Ok(over(&self.a, node, [column_dim(&self.a), column_dim(&self.b)]))
    }
}

fn solved(l: &mut Lowerer<'_, '_>, a: &Bound<'_>, kind: Factor) -> Result<Value, Error> {
    let e = equation(l, a)?;
    let node = l.b.factor(kind, 0, &[e.a.node, e.b.node]).at(a.span)?;
    let node = l.b.squeeze(node, &[e.a.dims.len() - 1]).at(a.span)?;
    e.solution(l, node, a.span).map(Value::Tensor)
}

fn solve(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    solved(l, a, Factor::Solve)
}

fn solve_triangular(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let (lower, unit) = (a.flag(l, "lower")?, a.flag(l, "unit_diagonal")?);
    solved(l, a, Factor::SolveTriangular { lower, unit })
}

fn lstsq(l: &mut Lowerer<'_, '_>, a: &Bound<'_>) -> Result<Value, Error> {
    let e = equation(l, a)?;
    let rcond = rcond(l, a, &e.a)?;
    let span = a.span;
    let rank = e.a.dims.len();
    let (shape, dtype) = (l.b.shape(e.a.node), l.b.dtype(e.a.node));
    let (m, n) = (shape[rank - 2], shape[rank - 1]);
    if l.b.shape(e.b.node)[rank - 2] != m {
        return misshapen(
            a.name,
            &[shape, l.b.shape(e.b.node)],
            "the right side needs as many rows as the matrix",
            span,
        );
    }
    let parts = l.b.svd(e.a.node, None).at(span)?;
    let (inverse, count) = l.b.inverse_values(parts.s, rcond).at(span)?;
    let ut = l.b.matrix_transpose(parts.u).at(span)?;
    let projected = l.b.contract(ut, e.b.node).at(span)?;
    let column = l.b.expand_dims(inverse, rank - 1).at(span)?;
    let scaled = l.b.map(ScalarOp::Mul, &[column, projected]).at(span)?;
    let v = l.b.matrix_transpose(parts.vh).at(span)?;
    let x = l.b.contract(v, scaled).at(span)?;
    // The residuals, where they are defined.
    let fitted = l.b.contract(e.a.node, x).at(span)?;
    let rest = l.b.map(ScalarOp::Sub, &[e.b.node, fitted]).at(span)?;
    let squares = l.b.map(ScalarOp::Mul, &[rest, rest]).at(span)?;
    let mut axes = vec![AxisReduce::Keep; rank];
    axes[rank - 2] = AxisReduce::All;
    let sums = l.b.reduce(squares, ReduceKind::Sum, &axes).at(span)?;
    let sums = l.b.squeeze(sums, &[rank - 2]).at(span)?;
    let needed = if m > n { n as f64 } else { f64::INFINITY };
    let needed = l.b.constant(Scalar::from_f64(dtype, needed)).at(span)?;
    let full = l.b.map(ScalarOp::Ge, &[count, needed]).at(span)?;
    let residuals = l.b.map_op(MapOp::Mask, &[sums, full]).at(span)?;
    let ranks = l.b.cast(count, DType::Int64).at(span)?;
    let ranks = l.b.squeeze(ranks, &[rank - 2]).at(span)?;
    // For a vector they are one number in a dimension of its own, as in NumPy.
    let column = if e.vector { Dim::default() } else { column_dim(&e.b) };
    let residuals = over(&e.a, residuals, [column]);
    let x = e.solution(l, x, span)?;
    Ok(Value::Record(Record::new(
        a.name,
        [
            ("x", x),
            ("residuals", residuals),
            ("rank", over(&e.a, ranks, [])),
            ("s", over(&e.a, parts.s, [Dim::default()])),
        ],
    )))
}
