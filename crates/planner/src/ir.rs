//! The tensor IR: a graph of few primitives over whole tensors.
//!
//! A [`Graph`] is a list of nodes in which a node's inputs precede it. Nodes have no names: dimensions are positions,
//! and labels are stored with the outputs. The checked constructors in [`crate::build`] infer shape, type, mask and
//! logical grid of every node, and [`crate::verify`] derives them again.

use crate::catalog::SourceRef;
use crate::dtype::DType;
use crate::factor::Factor;
use crate::grid::Grid;
use crate::lookup::LookupKind;
use crate::program::ScalarOp;
use crate::reduce::ReduceKind;
use crate::region::{Dims, Region};
use crate::scalar::Scalar;
use crate::sort::{Quantiles, SortOrder, SortWhat};
use crate::view::View;
use crate::window::Frame;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Index of a node in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A small array stored in the plan: literals, coordinates, positions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConstArray {
    /// Element type.
    pub dtype: DType,
    /// Length of each axis.
    pub shape: Dims,
    /// Row-major little-endian cells.
    pub bytes: Arc<[u8]>,
    /// One byte per cell, 0 where the cell is masked.
    pub valid: Option<Arc<[u8]>>,
}

impl ConstArray {
    /// Builds an array from values of one type; `values` has one entry per cell of `shape`, `None` for masked cells.
    pub fn new(dtype: DType, shape: &[u64], values: &[Option<Scalar>]) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        for v in values {
            let v = v.map_or(Scalar::zero(dtype), |v| v.cast(dtype));
            bytes.extend_from_slice(&v.to_le_bytes()[..dtype.size()]);
        }
        let valid = values
            .iter()
            .any(Option::is_none)
            .then(|| values.iter().map(|v| u8::from(v.is_some())).collect());
        ConstArray { dtype, shape: shape.into(), bytes: bytes.into(), valid }
    }

    /// Builds a 1-d array of `int64`.
    pub fn from_i64(values: &[i64]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ConstArray {
            dtype: DType::Int64,
            shape: Dims::from_elem(values.len() as u64, 1),
            bytes: bytes.into(),
            valid: None,
        }
    }

    /// Returns the cell with row-major number `i`, `None` if it is masked.
    pub fn get(&self, i: usize) -> Option<Scalar> {
        if self.valid.as_ref().is_some_and(|v| v[i] == 0) {
            return None;
        }
        let n = self.dtype.size();
        Some(Scalar::from_le_bytes(self.dtype, &self.bytes[i * n..(i + 1) * n]))
    }

    /// Number of cells.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// True if there are no cells.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Effect of a reduction on one axis of its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisReduce {
    /// The axis is not reduced.
    Keep,
    /// All cells along the axis are reduced to one; the axis stays with length 1.
    All,
    /// Cells with the same code are reduced to one; the axis gets one position per code.
    Group(Groups),
}

/// Assignment of the positions along an axis to groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Groups {
    /// Group of each position, below `count`.
    pub codes: Arc<[u32]>,
    /// Number of groups.
    pub count: u32,
}

/// Kind of a scan along an axis. Masked cells are skipped and stay masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScanKind {
    /// Running sum, strictly from the first to the last cell, in the result's type; integer overflow is an error.
    Sum,
    /// Running product, as the sum; integers wrap.
    Prod,
    /// Running minimum; NaN stays.
    Min,
    /// Running maximum; NaN stays.
    Max,
    /// The last unmasked cell so far; here masked cells take that value.
    Last,
    /// Running sum that is multiplied by a factor at each cell: `y = y * factor + x`; floats.
    Decay {
        /// Bits of the factor, a `float64`.
        factor: u64,
    },
}

/// Operation of an elementwise node. All inputs have the node's shape (broadcasting is an explicit view).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MapOp {
    /// An operation on values. The result is masked where an argument is; for `Where` where the condition or the
    /// chosen branch is.
    Scalar(ScalarOp),
    /// `mask(x, keep)`: x, masked where the `bool` is false or masked.
    Mask,
    /// `bool`: true where the cell is not masked. Never masked itself.
    IsValid,
    /// `coalesce(x, y)`: x where it is not masked, else y.
    Coalesce,
    /// SQL's three-valued and: false wins over masked.
    KleeneAnd,
    /// SQL's three-valued or: true wins over masked.
    KleeneOr,
}

/// The primitive operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum Op {
    /// Raw cells of a region of a stored array.
    Load {
        /// Array to read.
        source: Arc<SourceRef>,
        /// Region, in positions of the stored array.
        region: Region,
    },
    /// An array stored in the plan; a `None` value is a masked 0-d array.
    Const(ConstArray),
    /// Row-major number of each cell, as `int64`. All generators are elementwise functions of it.
    Iota,
    /// An elementwise operation.
    Map(MapOp),
    /// An affine view of the input.
    View(View),
    /// The input's cells in row-major order, with another shape.
    Reshape,
    /// Concatenation of the inputs along an axis.
    Concat { axis: usize },
    /// Cells of the input at listed positions along an axis, in any order. The list is stored in the plan.
    Take {
        axis: usize,
        /// Positions, each within the input.
        positions: Arc<[u64]>,
    },
    /// A reduction; reduced axes stay with length 1 (or one position per group).
    Reduce {
        kind: ReduceKind,
        /// Effect on each axis of the input.
        axes: SmallVec<[AxisReduce; 6]>,
    },
    /// A running reduction along an axis.
    Scan { kind: ScanKind, axis: usize },
    /// A reduction over a window around each cell, along an axis. Masked cells are skipped; a cell whose window has
    /// fewer than `min_count` unmasked cells is masked, as is a mean, variance or extreme of none. Without masks the
    /// window is truncated at the ends of the axis, and NaN affects only the windows that contain it. A side as long as
    /// the axis is unbounded; then each line must lie in one chunk, and a [`Op::Scan`] from the first cell is cheaper.
    Window {
        axis: usize,
        /// Extent of the window.
        frame: Frame,
        /// The reduction (no argmin, argmax, add).
        kind: ReduceKind,
        /// Smallest number of unmasked cells in a window whose result is not masked.
        min_count: u64,
    },
    /// The cells of each line along an axis in sorted order, or their positions. Lines that span several chunks of the
    /// input also span several chunks of the output.
    Sort {
        /// Axis to sort along.
        axis: usize,
        what: SortWhat,
        order: SortOrder,
        /// Number of leading cells to return; the axis gets that length.
        limit: Option<u64>,
    },
    /// Order statistics of each line along an axis; the axis gets one position per probability. Masked cells are
    /// skipped. The statistics of a line with NaN are NaN. Those of an empty line are masked, or NaN if the input
    /// cannot be masked.
    Quantile {
        axis: usize,
        /// Probabilities and method.
        quantiles: Quantiles,
    },
    /// Positions of the first input's cells in sorted 1-d tables. The tables are the other inputs, each in one chunk.
    Lookup { kind: LookupKind },
    /// Number of cells with each of the `int64` codes from 0 on, or the sum of their weights (a second input,
    /// `float64`): `[1, .., 1, count]`. Masked cells are skipped.
    Bin {
        count: u64,
        /// True if a code out of range is an error, false to skip it.
        strict: bool,
    },
    /// `[b.., m.., k..] @ [b.., k.., n..] → [b.., m.., n..]` of one float type (or of integers, which wrap). Inputs are
    /// not masked.
    Contract(Contraction),
    /// A part of a factorisation of whole matrices of one float type, without masks.
    Factor {
        kind: Factor,
        /// Index into [`Factor::parts`].
        part: usize,
    },
    /// The input's cells, for an operation that is not defined for masked cells: a masked cell is an error of that
    /// operation. The result cannot be masked.
    Certain { operation: Arc<str> },
    /// The same cells on another logical grid.
    Rechunk,
}

/// Numbers of axes of a product: rows (`m..`), columns (`n..`) and summed (`k..`). The axes before them are a stack of
/// products. Several axes of one role act as one flattened axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contraction {
    /// Axes of the left side only.
    pub rows: usize,
    /// Axes of the right side only.
    pub columns: usize,
    /// Axes of both sides, which are summed.
    pub summed: usize,
}

impl Contraction {
    /// The product of matrices: `[b.., m, k] @ [b.., k, n]`.
    pub const MATRICES: Contraction = Contraction { rows: 1, columns: 1, summed: 1 };

    /// Ranges of the row, column and summed axes in the cells of products `[b.., m.., n.., k..]` of `rank` axes. The
    /// axes before them are the stack.
    pub fn ranges(&self, rank: usize) -> [std::ops::Range<usize>; 3] {
        let k = rank - self.summed;
        let n = k - self.columns;
        [n - self.rows..n, n..k, k..rank]
    }
}

/// A node: a tensor and the operation that computes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// The primitive.
    pub op: Op,
    /// Inputs; all have lower numbers.
    pub inputs: SmallVec<[NodeId; 3]>,
    /// Length of each axis.
    pub shape: Dims,
    /// Element type.
    pub dtype: DType,
    /// True if cells can be masked.
    pub nullable: bool,
    /// Logical grid: part of the contract on bits.
    pub grid: Grid,
}

/// Nodes in topological order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// Returns an empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    /// Returns the node `id`.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// All nodes; inputs precede their users.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node unchecked. Only passes call this; all others use the checked constructors in `build`.
    pub(crate) fn push(&mut self, node: Node) -> NodeId {
        debug_assert!(
            node.inputs.iter().all(|i| (i.0 as usize) < self.nodes.len()),
            "inputs stand before users"
        );
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Returns the node behind a view and the view. For any other node, returns the node itself and an identity view.
    pub fn behind_view(&self, id: NodeId) -> (NodeId, View) {
        let node = self.node(id);
        match &node.op {
            Op::View(view) => (node.inputs[0], view.clone()),
            _ => (id, View::identity(node.shape.len())),
        }
    }

    /// Value of a node whose cells are all equal: a 0-d constant, or a view that only repeats one. `Some(None)` if the
    /// value is masked.
    pub fn scalar(&self, id: NodeId) -> Option<Option<Scalar>> {
        let node = self.node(id);
        match &node.op {
            Op::Const(c) if c.len() == 1 => Some(c.get(0)),
            Op::View(_) | Op::Reshape | Op::Rechunk => self.scalar(node.inputs[0]),
            _ => None,
        }
    }
}
