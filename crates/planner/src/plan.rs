//! The plan: the input of exec.
//!
//! A [`Plan`] is a list of [`Stage`]s, each a grid of operands that all run the same [`Task`]. Operand `i` of a stage
//! computes chunk `i` of each of the stage's outputs, so (stage, output, index) identifies a chunk. A plan holds no
//! list of chunks: the chunks that an operand reads, the number of a chunk's readers and the bytes that an operand
//! needs are functions ([`crate::tile`]), so a plan over 10^9 chunks is as small as one over ten.

use crate::catalog::SourceRef;
use crate::dtype::DType;
use crate::factor::Factor;
use crate::grid::Grid;
use crate::ir::{AxisReduce, ConstArray, Contraction, ScanKind};
use crate::lookup::LookupKind;
use crate::program::{Arg, Program};
use crate::reduce::ReduceKind;
use crate::region::{Dims, Region};
use crate::runs::Runs;
use crate::sort::{Quantiles, SortOrder, SortWhat};
use crate::view::View;
use crate::window::Frame;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::Arc;

/// Index of a stage in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageId(pub u32);

/// A plan: stages in topological order and the outputs that are the results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The stages; inputs of a stage precede it.
    pub stages: Vec<Stage>,
    /// Outputs that the query returns, in the order of its items.
    pub results: Vec<OutputRef>,
}

/// An output of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OutputRef {
    /// The stage.
    pub stage: StageId,
    /// Index of the output in its stage.
    pub output: u32,
}

/// A grid of operands that run one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Computation of each operand.
    pub task: Task,
    /// Tensors that the operands read.
    pub inputs: SmallVec<[Input; 3]>,
    /// The cells that the operands divide: one operand per chunk.
    pub grid: Grid,
    /// Tensors that the operands compute. Every output's grid has as many chunks along each axis as `grid`.
    pub outputs: SmallVec<[Output; 1]>,
}

/// A tensor that a stage computes chunk by chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Types of the fields. A value has one field, or two if it can be masked: the second is `bool`, false where the
    /// cell is masked. A state of a reduction has the fields of [`ReduceKind::state`].
    pub fields: SmallVec<[DType; 4]>,
    /// Shape and chunks. For a state: one cell (or one per group) in each chunk along reduced axes.
    pub grid: Grid,
}

/// An input of a stage: an output of another stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The output that is read.
    pub from: OutputRef,
    /// Part of the output that an operand reads.
    pub access: Access,
}

/// The part of an input that an operand reads, as a function of the operand's place in its stage's grid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum Access {
    /// The cells that a view maps the operand's cells to.
    View(View),
    /// The box of chunks `[i * factor, (i + 1) * factor)` along each axis: the fan-in of a combining tree.
    Fan(Dims),
    /// The operand's cells in row-major order, from an input with the given, different shape.
    Reshape(Dims),
    /// The part of the operand's cells that lies in a box, moved to 0 and mapped through a view.
    Part {
        part: Region,
        /// View of the moved cells.
        view: View,
    },
    /// The operand's cells, with positions along an axis replaced by those of a list.
    Take {
        axis: usize,
        /// Position in the input for each position along the axis.
        positions: Arc<[u64]>,
    },
    /// The cells in a frame around the operand's cells along an axis, mapped through a view.
    Window {
        axis: usize,
        frame: Frame,
        /// View of cells of the stage's shape.
        view: View,
    },
    /// All runs of the lines along an axis that contain the operand's cells. The input's axes are the stage's other
    /// axes in their order, then this one.
    Runs { axis: usize },
    /// The last position along an axis of the stage's own previous chunk: a scan's carry. Nothing for the first chunk.
    Previous { axis: usize },
}

/// Computation of an operand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum Task {
    /// Reads the cells of a stored array; the stage's cells begin at `origin` in it.
    Load {
        source: Arc<SourceRef>,
        /// Position of the stage's first cell in the array.
        origin: Dims,
    },
    /// Returns an array stored in the plan.
    Const(ConstArray),
    /// Runs an elementwise program over its cells and stores or reduces the values.
    Fused(Fused),
    /// Combines states (in row-major order of the fan) and finishes them at the root of the tree.
    Combine {
        kind: ReduceKind,
        /// Type of the reduced cells.
        dtype: DType,
        /// True if the reduced cells can be masked.
        nullable: bool,
        /// True at the root: the outputs are values, not states.
        finish: bool,
        /// Groups that each state holds, if it does not hold all of them.
        spans: Option<Spans>,
    },
    /// A running reduction along an axis. Inputs: the cells, and the carry ([`Access::Previous`]).
    Scan { kind: ScanKind, axis: usize },
    /// A reduction over a window around each cell. Input: [`Access::Window`].
    Window {
        axis: usize,
        /// Extent of the window.
        frame: Frame,
        kind: ReduceKind,
        /// Smallest number of unmasked cells in a window whose result is not masked.
        min_count: u64,
    },
    /// Sorts whole lines along an axis, or returns their positions. The stage's cells are the input's; the output has
    /// as many along the axis as are retained.
    Sort { axis: usize, what: SortWhat, order: SortOrder },
    /// Order statistics of whole lines along an axis. The stage's cells are the input's.
    Quantile {
        axis: usize,
        /// Probabilities and method.
        quantiles: Quantiles,
    },
    /// Sorts each chunk of lines along the last axis, where lines are longer than a chunk. The stage's cells are the
    /// input's, transposed so that lines lie along the last axis. Outputs: the runs ([`Runs::fields`]), in which each
    /// chunk has as many cells as are needed of a line, masked ones last; and for each run an index (`uint64`): the
    /// number of its unmasked cells, the number of these that are not NaN, then the key of every [`Runs::every`]-th
    /// cell.
    Runs {
        runs: Runs,
        order: SortOrder,
        /// Number of cells that are needed of each line.
        kept: u64,
    },
    /// Merges the runs of lines along an axis into sorted cells, or their positions. Inputs: the runs and the index, by
    /// [`Access::Runs`].
    Merge {
        axis: usize,
        runs: Runs,
        order: SortOrder,
        /// Type of the sorted cells.
        dtype: DType,
    },
    /// Order statistics of lines along an axis, from their runs in ascending order. Inputs as those of [`Task::Merge`].
    Select {
        axis: usize,
        runs: Runs,
        /// Probabilities and method.
        quantiles: Quantiles,
    },
    /// Positions of cells in sorted tables. Inputs: the cells, then the tables, each by a view of its first cell.
    Lookup { kind: LookupKind },
    /// Counts of codes, or sums of weights: one partial state per chunk, `[1, .., 1, count]`. Inputs: the codes, and
    /// the weights if any. Or, instead of the codes, cells and the edges of their bins, by a view of the first edge.
    Bin {
        /// True if a code out of range is an error.
        strict: bool,
        /// True if the inputs are cells and edges.
        edges: bool,
    },
    /// A product over a block of k. Stage cells are `[b.., m.., n.., k..]`, cut along k into blocks. The output has the
    /// element type and, along the axes of k, one cell per block. Inputs: left and right, by views.
    Contract {
        /// Element type.
        dtype: DType,
        /// Numbers of row, column and summed axes.
        axes: Contraction,
    },
    /// Factors the matrices of its chunk. Stage cells are [`Factor::space`]. Inputs are read by views, the second of
    /// [`Factor::QrApply`] by a fan of one chunk. One output per part.
    Factor {
        kind: Factor,
        /// Indices of the requested parts, ascending.
        parts: SmallVec<[usize; 3]>,
        /// Element type.
        dtype: DType,
    },
    /// Copies its inputs into one chunk (inputs in order, each filling its part).
    Copy,
}

/// Groups that each state holds along an axis: the same number in each state, from a first group that depends on the
/// chunk. If the codes increase along the axis, as months do along time, a chunk meets few groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spans {
    /// Axis of the groups.
    pub axis: usize,
    /// First group of each input chunk of states.
    pub below: Arc<[u64]>,
    /// First group of each output chunk.
    pub here: Arc<[u64]>,
}

/// An elementwise program over the stage's cells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fused {
    /// The instructions.
    pub program: Program,
    /// Origin of each input of the program.
    pub inputs: Vec<FusedInput>,
    /// Destination of the program's values, one for each output of the stage.
    pub outputs: Vec<FusedOutput>,
    /// Several small chunks per operand, if set; all outputs are then reductions along the same axes.
    pub batch: Option<Box<Batch>>,
}

/// Chunks of the logical grid that one operand processes in sequence, and the levels of the combining tree that it
/// computes over their states. The stage's own grid has one chunk for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The logical grid: the program runs over each chunk separately and leaves one state per chunk.
    pub grid: Grid,
    /// Fan-in of each level along each axis, leaves first.
    pub fans: SmallVec<[Dims; 2]>,
    /// For each output, the type of the reduced cells and whether they can be masked.
    pub reduced: SmallVec<[(DType, bool); 2]>,
}

/// Origin of an input of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum FusedInput {
    /// A field of an input of the stage (whose access is a view).
    Field {
        /// Index of the input in the stage.
        input: u32,
        field: u32,
    },
    /// `offset + Σ strides[a] * position[a]` over the stage's axes, as `int64`. Positions are in the whole stage, not
    /// in the chunk.
    Index {
        /// Value at the first cell.
        offset: i64,
        /// Increment along each axis.
        strides: SmallVec<[i64; 6]>,
    },
}

/// Destination of a value of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "names and types explain most fields")]
pub enum FusedOutput {
    /// Stored: the value, then its validity if it can be masked.
    Store {
        value: Arg,
        /// Its validity (`bool`), if it can be masked.
        valid: Option<Arg>,
    },
    /// Stored, where a masked cell is an error.
    Certain {
        value: Arg,
        valid: Arg,
        /// Name in SQL of the function that requires unmasked cells.
        operation: Arc<str>,
    },
    /// Reduced to a state for each chunk. Positions of argmin and argmax count over the reduced axes of the whole
    /// stage, row-major.
    Reduce {
        kind: ReduceKind,
        /// Effect on each axis of the stage.
        axes: SmallVec<[AxisReduce; 6]>,
        value: Arg,
        /// Its validity, if it can be masked.
        valid: Option<Arg>,
    },
}

impl Plan {
    /// Returns the stage `id`.
    pub fn stage(&self, id: StageId) -> &Stage {
        &self.stages[id.0 as usize]
    }

    /// Returns the output that `r` refers to.
    pub fn output(&self, r: OutputRef) -> &Output {
        &self.stage(r.stage).outputs[r.output as usize]
    }

    /// Returns the part of the plan that is computed before chunks of its results can be computed one by one. Its
    /// results are the outputs below this plan's results that take more than one pass over their inputs. Stages keep
    /// their numbers. `None` if each chunk of a result needs few chunks of sources.
    pub fn before_rows(&self) -> Option<Plan> {
        let mut results: Vec<OutputRef> = Vec::new();
        let mut seen = vec![false; self.stages.len()];
        let mut open: Vec<OutputRef> = self.results.clone();
        while let Some(of) = open.pop() {
            let stage = self.stage(of.stage);
            if !stage.task.is_streamed() {
                results.push(of);
            } else if !std::mem::replace(&mut seen[of.stage.0 as usize], true) {
                open.extend(stage.inputs.iter().map(|input| input.from));
            }
        }
        results.sort_unstable();
        results.dedup();
        let last = results.last()?.stage.0 as usize;
        Some(Plan { stages: self.stages[..=last].to_vec(), results })
    }
}

impl Task {
    /// The name of the task, without its parameters.
    pub fn name(&self) -> String {
        match self {
            Task::Load { .. } => "load".into(),
            Task::Const(_) => "const".into(),
            Task::Fused(_) => "fused".into(),
            Task::Combine { kind, .. } => format!("combine {kind}"),
            Task::Scan { .. } => "scan".into(),
            Task::Window { kind, .. } => format!("window {kind}"),
            Task::Sort { .. } => "sort".into(),
            Task::Quantile { .. } => "quantile".into(),
            Task::Runs { .. } => "sort runs".into(),
            Task::Merge { .. } => "merge runs".into(),
            Task::Select { .. } => "select from runs".into(),
            Task::Lookup { .. } => "lookup".into(),
            Task::Bin { .. } => "bin".into(),
            Task::Contract { .. } => "contract".into(),
            Task::Factor { kind, .. } => kind.name().into(),
            Task::Copy => "copy".into(),
        }
    }

    /// True if an operand reads few cells per output cell and does little work for each.
    fn is_streamed(&self) -> bool {
        match self {
            Task::Fused(fused) => {
                fused.outputs.iter().all(|o| !matches!(o, FusedOutput::Reduce { .. }))
            }
            Task::Load { .. }
            | Task::Const(_)
            | Task::Copy
            | Task::Lookup { .. }
            | Task::Scan { .. }
            | Task::Window { .. } => true,
            Task::Combine { .. }
            | Task::Sort { .. }
            | Task::Quantile { .. }
            | Task::Runs { .. }
            | Task::Merge { .. }
            | Task::Select { .. }
            | Task::Bin { .. }
            | Task::Contract { .. }
            | Task::Factor { .. } => false,
        }
    }
}

impl Batch {
    /// Number of chunks along an axis that an operand covers, except the last one.
    pub fn along(&self, axis: usize) -> u64 {
        self.fans.iter().map(|f| f[axis]).product()
    }
}

impl Output {
    /// Bytes of one cell over all fields.
    pub fn cell_bytes(&self) -> usize {
        self.fields.iter().map(|d| d.size()).sum()
    }
}
