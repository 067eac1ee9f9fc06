//! The tensor IR: a graph of few primitives over whole tensors.
//!
//! A [`Graph`] is a plain list of nodes; a node's inputs stand before it. Nodes know nothing of names: dimensions are
//! positions here, labels live beside the outputs. Shape, type, mask and logical grid of every node are inferred by
//! the checked constructors in [`crate::build`] and re-derived by [`crate::verify`].

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

/// Number of a node in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// A small array held in the plan itself: literals, coordinates, positions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConstArray {
    /// Element type.
    pub dtype: DType,
    /// Lengths.
    pub shape: Dims,
    /// Row-major little-endian cells.
    pub bytes: Arc<[u8]>,
    /// One byte for each cell, 0 where it is masked.
    pub valid: Option<Arc<[u8]>>,
}

impl ConstArray {
    /// From values of one type; `values` has as many entries as `shape` has cells, `None` for masked ones.
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

    /// A 1-d array of `int64`.
    pub fn from_i64(values: &[i64]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ConstArray {
            dtype: DType::Int64,
            shape: Dims::from_elem(values.len() as u64, 1),
            bytes: bytes.into(),
            valid: None,
        }
    }

    /// The cell with that row-major number, `None` if it is masked.
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

    /// True if there is no cell.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// What a reduction does with one axis of its input.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisReduce {
    /// The axis stays.
    Keep,
    /// All cells along it become one; the axis stays with length 1.
    All,
    /// Cells with the same code become one; the axis gets one position for each code.
    Group(Groups),
}

/// The group of each position along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Groups {
    /// For each position its group, below `count`.
    pub codes: Arc<[u32]>,
    /// Number of groups.
    pub count: u32,
}

/// What a scan computes along its axis; masked cells are skipped and stay masked.
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
    /// The last cell so far that is not masked; here masked cells take it.
    Last,
    /// Running sum in which all that is there is multiplied by a factor with each cell: `y = y * factor + x`; floats.
    Decay {
        /// The bits of the factor, a `float64`.
        factor: u64,
    },
}

/// What an elementwise node computes. All inputs have the node's shape (broadcasting is an explicit view).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MapOp {
    /// An operation on values. The result is masked where an argument is; for `Where` where the condition or the
    /// chosen branch is.
    Scalar(ScalarOp),
    /// `mask(x, keep)`: x, masked where the `bool` is false or masked.
    Mask,
    /// `bool`: is the cell not masked. Never masked itself.
    IsValid,
    /// `coalesce(x, y)`: x where it is not masked, else y.
    Coalesce,
    /// SQL's three-valued and: false wins over masked.
    KleeneAnd,
    /// SQL's three-valued or: true wins over masked.
    KleeneOr,
}

/// The primitives.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Op {
    /// The raw cells of a box of a stored array.
    Load {
        /// The array.
        source: Arc<SourceRef>,
        /// The box, in the array's own positions.
        region: Region,
    },
    /// An array that the plan holds; `None` as a value is a masked 0-d.
    Const(ConstArray),
    /// Each cell's row-major number, as `int64`. All generators are elementwise functions of it.
    Iota,
    /// An elementwise operation.
    Map(MapOp),
    /// Other positions of the one input.
    View(View),
    /// The one input's cells in row-major order under another shape.
    Reshape,
    /// The inputs one after the other along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Positions of the one input along an axis, in any order, by a list in the plan.
    Take {
        /// The axis.
        axis: usize,
        /// Positions, each within the input.
        positions: Arc<[u64]>,
    },
    /// A reduction; reduced axes stay with length 1 (or one position a group).
    Reduce {
        /// What is computed.
        kind: ReduceKind,
        /// One for each axis of the input.
        axes: SmallVec<[AxisReduce; 6]>,
    },
    /// A running reduction along an axis.
    Scan {
        /// What is computed.
        kind: ScanKind,
        /// The axis.
        axis: usize,
    },
    /// A reduction of the cells around each cell, along an axis. Masked cells are skipped; a cell whose window has fewer
    /// than `min_count` others is masked, as is a mean, variance or extreme of none. Without masks the window is cut
    /// off at the ends of the axis, and NaN stays within the windows that see it. A side as long as the axis is
    /// unbounded; then lines lie in one chunk, and a [`Op::Scan`] from the first cell on is cheaper.
    Window {
        /// The axis.
        axis: usize,
        /// Which positions a cell sees.
        frame: Frame,
        /// What is computed (no argmin, argmax, add).
        kind: ReduceKind,
        /// Fewest cells of a window that give a value.
        min_count: u64,
    },
    /// The cells of each line along an axis in order, or their positions; lines that lie in several chunks of the input
    /// come out in several chunks.
    Sort {
        /// The axis.
        axis: usize,
        /// What is given.
        what: SortWhat,
        /// The order.
        order: SortOrder,
        /// Only so many cells from the first on; the axis gets that length.
        limit: Option<u64>,
    },
    /// Order statistics of each line along an axis, which gets one position for each probability. Masked cells are
    /// skipped; a line with NaN gives NaN; one without cells is masked (NaN if the input cannot be masked).
    Quantile {
        /// The axis.
        axis: usize,
        /// Which ones.
        quantiles: Quantiles,
    },
    /// Places of the first input's cells in sorted 1-d tables, which are the other inputs and lie in one chunk each.
    Lookup {
        /// What is looked up.
        kind: LookupKind,
    },
    /// How many cells have each of the `int64` codes from 0 on, or the sums of their weights (a second input,
    /// `float64`): `[1, .., 1, count]`. Masked cells are skipped.
    Bin {
        /// Number of codes.
        count: u64,
        /// Is a code beyond an error? Else it is skipped.
        strict: bool,
    },
    /// `[b.., m.., k..] @ [b.., k.., n..] → [b.., m.., n..]` of one float type (or of integers, which wrap). Inputs have
    /// no masks.
    Contract(Contraction),
    /// A part of a factorisation of whole matrices of one float type, without masks.
    Factor {
        /// What is computed.
        kind: Factor,
        /// Which of [`Factor::parts`].
        part: usize,
    },
    /// The input's cells, for an operation that has no answer for masked ones: meeting one is an error of that
    /// operation. The result cannot be masked.
    Certain {
        /// The function, as users know it.
        operation: Arc<str>,
    },
    /// The same cells on another logical grid.
    Rechunk,
}

/// How many axes of a product are rows (`m..`), columns (`n..`) and summed (`k..`): what is before them is a stack of
/// products. Along several axes, cells are multiplied as if they were joined into one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contraction {
    /// Axes of the left side alone.
    pub rows: usize,
    /// Axes of the right side alone.
    pub columns: usize,
    /// Axes of both that are summed.
    pub summed: usize,
}

impl Contraction {
    /// Of matrices: `[b.., m, k] @ [b.., k, n]`.
    pub const MATRICES: Contraction = Contraction { rows: 1, columns: 1, summed: 1 };

    /// The axes of the cells of products `[b.., m.., n.., k..]`, of a rank: those of rows, of columns, and summed ones.
    /// What is before them is the stack.
    pub fn ranges(&self, rank: usize) -> [std::ops::Range<usize>; 3] {
        let k = rank - self.summed;
        let n = k - self.columns;
        [n - self.rows..n, n..k, k..rank]
    }
}

/// A node: a tensor, and how it comes about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// The primitive.
    pub op: Op,
    /// Its inputs; all have lower numbers.
    pub inputs: SmallVec<[NodeId; 3]>,
    /// Lengths.
    pub shape: Dims,
    /// Element type.
    pub dtype: DType,
    /// Can cells be masked?
    pub nullable: bool,
    /// The logical grid: part of the contract on bits.
    pub grid: Grid,
}

/// Nodes in topological order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    /// A graph without nodes.
    pub fn new() -> Self {
        Graph::default()
    }

    /// The node with that number.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// All nodes, inputs before their users.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node as it is; the checked constructors in `build` are the way in for everybody but passes.
    pub(crate) fn push(&mut self, node: Node) -> NodeId {
        debug_assert!(
            node.inputs.iter().all(|i| (i.0 as usize) < self.nodes.len()),
            "inputs stand before users"
        );
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// The node behind a view, and the view: the node itself and one that moves nothing if it is no view.
    pub fn behind_view(&self, id: NodeId) -> (NodeId, View) {
        let node = self.node(id);
        match &node.op {
            Op::View(view) => (node.inputs[0], view.clone()),
            _ => (id, View::identity(node.shape.len())),
        }
    }

    /// The value of a node that is the same for every cell: a 0-d constant, or a view that only repeats one.
    /// `Some(None)` is a masked one.
    pub fn scalar(&self, id: NodeId) -> Option<Option<Scalar>> {
        let node = self.node(id);
        match &node.op {
            Op::Const(c) if c.len() == 1 => Some(c.get(0)),
            Op::View(_) | Op::Reshape | Op::Rechunk => self.scalar(node.inputs[0]),
            _ => None,
        }
    }
}
