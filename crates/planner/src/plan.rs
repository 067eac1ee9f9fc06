//! The plan: what exec runs.
//!
//! A [`Plan`] is a list of [`Stage`]s, each a grid of operands that all run the same [`Task`]. Operand `i` of a stage
//! makes chunk `i` of each of the stage's outputs, so a chunk is named by (stage, output, index). Nothing here is a
//! list of chunks: which chunks an operand reads, how many operands read a chunk and how many bytes an operand needs
//! are functions ([`crate::tile`]), so a plan over 10^9 chunks is as small as one over ten.

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

/// Number of a stage in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageId(pub u32);

/// A plan: stages in topological order and the outputs that are the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The stages; inputs of a stage stand before it.
    pub stages: Vec<Stage>,
    /// What the query asked for, in the order of its items.
    pub results: Vec<OutputRef>,
}

/// An output of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OutputRef {
    /// The stage.
    pub stage: StageId,
    /// Which of its outputs.
    pub output: u32,
}

/// A grid of operands that run one task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// What each operand does.
    pub task: Task,
    /// What it reads.
    pub inputs: SmallVec<[Input; 3]>,
    /// The cells that the operands divide among them: one operand for each chunk.
    pub grid: Grid,
    /// What it makes. Every output's grid has as many chunks along each axis as `grid`.
    pub outputs: SmallVec<[Output; 1]>,
}

/// A tensor that a stage makes, chunk by chunk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Types of the fields. A value is one field, or two if it can be masked: the second is `bool`, false where the
    /// cell is masked. A state of a reduction has the fields of [`ReduceKind::state`].
    pub fields: SmallVec<[DType; 4]>,
    /// Its cells and chunks. For a state: one cell (one for each group) a chunk along reduced axes.
    pub grid: Grid,
}

/// What a stage reads from another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The output that is read.
    pub from: OutputRef,
    /// Which part of it an operand reads.
    pub access: Access,
}

/// Which part of an input an operand reads, as a function of the operand's place in its stage's grid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// The cells that the operand's cells see through a view.
    View(View),
    /// The box of chunks `[i * factor, (i + 1) * factor)` along each axis: the fan-in of a combining tree.
    Fan(Dims),
    /// The operand's cells in row-major order, of an input with another shape (the given one).
    Reshape(Dims),
    /// The part of the operand's cells that lies in a box, moved to 0 and seen through a view.
    Part {
        /// The box.
        part: Region,
        /// The view, of the moved cells.
        view: View,
    },
    /// The cells of the operand with positions along an axis looked up in a list.
    Take {
        /// The axis.
        axis: usize,
        /// The list.
        positions: Arc<[u64]>,
    },
    /// The cells that the operand's cells see through a frame along an axis, then through a view.
    Window {
        /// The axis.
        axis: usize,
        /// The frame.
        frame: Frame,
        /// The view, of cells of the stage's shape.
        view: View,
    },
    /// All runs of the lines along an axis that the operand's cells lie on. The input's axes are the stage's others in
    /// their order, then this one.
    Runs {
        /// The axis.
        axis: usize,
    },
    /// The last position along an axis of the chunk before, of the stage itself: a scan's carry. Nothing for the first
    /// chunk.
    Previous {
        /// The axis.
        axis: usize,
    },
}

/// What an operand does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Reads the cells of a stored array; the operand's cells are `origin` further on in it.
    Load {
        /// The array.
        source: Arc<SourceRef>,
        /// Position of the stage's first cell in the array.
        origin: Dims,
    },
    /// Gives an array that the plan holds.
    Const(ConstArray),
    /// Runs an elementwise program over its cells and stores or reduces what comes out.
    Fused(Fused),
    /// Combines states (in row-major order of the fan) and, at the root of the tree, finishes them.
    Combine {
        /// The reduction.
        kind: ReduceKind,
        /// Type of the reduced cells.
        dtype: DType,
        /// Could the reduced cells be masked?
        nullable: bool,
        /// True at the root: the outputs are values, not states.
        finish: bool,
        /// Where the groups of a state are, if it does not hold all of them.
        spans: Option<Spans>,
    },
    /// A running reduction along an axis. Inputs: the cells, and the carry ([`Access::Previous`]).
    Scan {
        /// What is computed.
        kind: ScanKind,
        /// The axis.
        axis: usize,
    },
    /// A reduction of the cells around each cell. Input: [`Access::Window`].
    Window {
        /// The axis.
        axis: usize,
        /// Which positions a cell sees.
        frame: Frame,
        /// What is computed.
        kind: ReduceKind,
        /// Fewest cells of a window that give a value.
        min_count: u64,
    },
    /// Whole lines along an axis in order, or their positions. The stage's cells are the input's; the output has as
    /// many along the axis as are kept.
    Sort {
        /// The axis.
        axis: usize,
        /// What is given.
        what: SortWhat,
        /// The order.
        order: SortOrder,
    },
    /// Order statistics of whole lines along an axis. The stage's cells are the input's.
    Quantile {
        /// The axis.
        axis: usize,
        /// Which ones.
        quantiles: Quantiles,
    },
    /// Each chunk of lines along the last axis in order, where lines are longer than a chunk. The stage's cells are the
    /// input's, seen so that the lines lie along the last axis. Outputs: the runs ([`Runs::fields`]), of which each
    /// chunk has as many cells as are wanted of a line, the masked ones last; and for each run an index (`uint64`): the
    /// number of its cells that are not masked, how many of these are not NaN, then the key of every
    /// [`Runs::every`]-th cell.
    Runs {
        /// What the runs hold.
        runs: Runs,
        /// The order.
        order: SortOrder,
        /// Cells that are wanted of each line.
        kept: u64,
    },
    /// The cells of lines along an axis in order, or their positions, from their runs. Inputs: the runs and the index,
    /// by [`Access::Runs`].
    Merge {
        /// The axis.
        axis: usize,
        /// What the runs hold.
        runs: Runs,
        /// The order.
        order: SortOrder,
        /// Type of the cells that were sorted.
        dtype: DType,
    },
    /// Order statistics of lines along an axis, from their runs in ascending order. Inputs as those of
    /// [`Task::Merge`].
    Select {
        /// The axis.
        axis: usize,
        /// What the runs hold.
        runs: Runs,
        /// Which ones.
        quantiles: Quantiles,
    },
    /// Places of cells in sorted tables. Inputs: the cells, then the tables, each by a view of its first cell.
    Lookup {
        /// What is looked up.
        kind: LookupKind,
    },
    /// Counts of codes, or sums of weights: one partial state a chunk, `[1, .., 1, count]`. Inputs: the codes, and the
    /// weights if there are any; or, in place of the codes, cells and the edges of their bins, by a view of the first.
    Bin {
        /// Is a code beyond an error?
        strict: bool,
        /// Are there cells and edges?
        edges: bool,
    },
    /// A product over a block of k: stage cells are `[b.., m.., n.., k..]`, cut along k into blocks; the output has the
    /// element type and, along the axes of k, one cell for each block. Inputs: left and right, by views.
    Contract {
        /// Element type.
        dtype: DType,
        /// Which axes are rows, columns, and summed.
        axes: Contraction,
    },
    /// Factors the matrices of its chunk. Stage cells are [`Factor::space`]; the inputs are read by views, the second
    /// of [`Factor::QrApply`] by a fan of one chunk. One output for each part.
    Factor {
        /// What is computed.
        kind: Factor,
        /// The parts that are wanted, ascending.
        parts: SmallVec<[usize; 3]>,
        /// Element type.
        dtype: DType,
    },
    /// Copies what it reads into one chunk (inputs in order, each filling its part).
    Copy,
}

/// The groups that states hold along an axis: as many in each, from one on that differs from chunk to chunk. Where the
/// codes rise along the axis, as months do along time, a chunk meets few of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spans {
    /// The axis.
    pub axis: usize,
    /// The first group of each chunk of states that are combined.
    pub below: Arc<[u64]>,
    /// The first group of each chunk that comes out.
    pub here: Arc<[u64]>,
}

/// An elementwise program over the stage's cells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fused {
    /// The program.
    pub program: Program,
    /// Where each input of the program comes from.
    pub inputs: Vec<FusedInput>,
    /// What becomes of its values, one for each output of the stage.
    pub outputs: Vec<FusedOutput>,
    /// Several small chunks an operand, if that is set; all outputs are then reductions along the same axes.
    pub batch: Option<Box<Batch>>,
}

/// Chunks of the logical grid that one operand goes through, one after the other, and the levels of the combining tree
/// that it climbs over their states. The stage's own grid has one chunk for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The logical grid: the program runs over each of its chunks by itself, and each leaves a state.
    pub grid: Grid,
    /// The fan of each level along each axis, that of the leaves first.
    pub fans: SmallVec<[Dims; 2]>,
    /// For each output, the type of the reduced cells and whether they could be masked.
    pub reduced: SmallVec<[(DType, bool); 2]>,
}

/// Where an input of a program comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FusedInput {
    /// A field of an input of the stage (whose access is a view).
    Field {
        /// Number of the input in the stage.
        input: u32,
        /// Number of the field.
        field: u32,
    },
    /// `offset + Σ strides[a] * position[a]` over the stage's axes, as `int64` (positions are those of the whole
    /// stage, not of the chunk).
    Index {
        /// Value at the first cell.
        offset: i64,
        /// Step for each axis.
        strides: SmallVec<[i64; 6]>,
    },
}

/// What becomes of a value of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FusedOutput {
    /// Stored: the value, then its validity if it can be masked.
    Store {
        /// Where the value is.
        value: Arg,
        /// Where its validity (`bool`) is, if it can be masked.
        valid: Option<Arg>,
    },
    /// Stored, where no cell may be masked: one that is is an error.
    Certain {
        /// Where the value is.
        value: Arg,
        /// Where its validity is.
        valid: Arg,
        /// The function that needs the cells, as users know it.
        operation: Arc<str>,
    },
    /// Reduced to a state for each chunk. Positions of argmin and argmax count over the reduced axes of the whole
    /// stage, row-major.
    Reduce {
        /// What is computed.
        kind: ReduceKind,
        /// One for each axis of the stage.
        axes: SmallVec<[AxisReduce; 6]>,
        /// Where the value is.
        value: Arg,
        /// Where its validity is, if it can be masked.
        valid: Option<Arg>,
    },
}

impl Plan {
    /// The stage with that number.
    pub fn stage(&self, id: StageId) -> &Stage {
        &self.stages[id.0 as usize]
    }

    /// The output that a reference names.
    pub fn output(&self, r: OutputRef) -> &Output {
        &self.stage(r.stage).outputs[r.output as usize]
    }

    /// The part of the plan that is computed before chunks of its results can be made one by one: its results are the
    /// outputs below those of the plan that take more than a pass over their inputs. Its stages have the numbers that
    /// they have here. `None` if each chunk of a result is made of few chunks of sources.
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
    /// True if an operand reads few cells for each that it makes, and does little for each of them.
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
    /// Chunks along an axis that an operand takes, but for the last.
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
