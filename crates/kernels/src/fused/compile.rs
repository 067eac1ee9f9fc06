//! From a program to a list of tile operations.
//!
//! 1. [`Body::new`] turns the instructions into nodes, and drops redundant ones.
//! 2. [`Body::outputs`] adds the conversions that reductions need for their values.
//! 3. `guard` adds the checks of operations that reject arguments.
//! 4. `combine` merges several operations into one, or fuses them into the sums that read them.
//! 5. `allocate` assigns registers to values.

mod combine;
mod guard;
mod registers;

use crate::elem::MachineType;
use crate::ops::{IotaFn, OpFn, TileOp};
use crate::partial::{self, Fns, Tail, TailFns};
use crate::stream::StreamFn;
use crate::{KernelError, Level, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::ir::AxisReduce;
use tessera_planner::plan::{Fused, FusedInput, FusedOutput};
use tessera_planner::program::{Arg, ScalarOp};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;
use tessera_planner::scalar::Scalar;

/// Number of a tile buffer.
pub(super) type Slot = u16;

/// A program that is ready to run over any region of its stage. Plain data and function pointers; it can be shared
/// freely.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub(super) rank: usize,
    pub(super) slots: usize,
    pub(super) inputs: Vec<InputSlot>,
    /// Constants, which are written once and repeated.
    pub(super) consts: Vec<(Slot, Vec<Scalar>)>,
    pub(super) code: Vec<Ins>,
    pub(super) checks: Vec<Check>,
    pub(super) outputs: Vec<OutputSlot>,
    pub(super) fields: usize,
    /// Number of tiles per block.
    pub(super) block: usize,
    /// Writes tiles past the caches, if the machine can.
    pub(super) stream: Option<StreamFn>,
}

/// An input that the program reads.
#[derive(Debug, Clone)]
pub(super) struct InputSlot {
    pub(super) slot: Slot,
    pub(super) source: InputSource,
}

#[derive(Debug, Clone)]
pub(super) enum InputSource {
    /// The field with that index among the inputs of a run.
    Field(usize, DType),
    Index(Index),
}

/// A row-major number of the stage's positions.
#[derive(Debug, Clone)]
pub(super) struct Index {
    pub(super) offset: i64,
    pub(super) strides: Vec<i64>,
    /// True if the cells are the integers converted to `float64`.
    pub(super) floats: bool,
    /// Writes its tiles.
    pub(super) count: IotaFn,
}

impl Index {
    /// Returns the number of a region's first position.
    pub(super) fn first(&self, region: &Region) -> i64 {
        let at = self.strides.iter().zip(&region.start);
        at.fold(self.offset, |s, (x, p)| s.wrapping_add(x.wrapping_mul(*p as i64)))
    }
}

/// A tile operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ins {
    pub(super) f: OpFn,
    pub(super) d: Slot,
    pub(super) a: Slot,
    pub(super) b: Slot,
    pub(super) c: Slot,
    pub(super) imm: u64,
}

/// A `bool` that must be false everywhere.
#[derive(Debug, Clone)]
pub(super) struct Check {
    pub(super) slot: Slot,
    pub(super) error: KernelError,
}

#[derive(Debug, Clone)]
pub(super) enum OutputSlot {
    Store(Vec<(Slot, DType)>),
    Reduce(Box<ReduceSlot>),
}

#[derive(Debug, Clone)]
pub(super) struct ReduceSlot {
    pub(super) kind: ReduceKind,
    pub(super) axes: Vec<AxisReduce>,
    pub(super) state: Vec<DType>,
    pub(super) parts: Vec<PartSlot>,
    /// Field of a count that does not depend on the data.
    pub(super) static_count: Option<usize>,
    /// Fields that an earlier output computes too: field, that output, its field.
    pub(super) same: Vec<(usize, usize, usize)>,
}

/// One part of a state: a range of its fields and the functions that accumulate into it.
#[derive(Debug, Clone)]
pub(super) struct PartSlot {
    pub(super) fns: Fns,
    pub(super) first_field: usize,
    pub(super) value: Slot,
    pub(super) valid: Option<Slot>,
    /// Functions for kept and long runs with the last instructions before the value fused in.
    pub(super) tail: Option<TailSlot>,
}

/// The last operations before a value without other readers, fused into the sum.
#[derive(Debug, Clone)]
pub(super) struct TailSlot {
    pub(super) fns: TailFns,
    /// Instructions that need not run.
    pub(super) instead: Vec<usize>,
    pub(super) value: Slot,
    pub(super) beside: Slot,
    pub(super) parameter: u64,
}

/// Compiles a program for the best level of this machine. See [`compile_at`].
pub fn compile(fused: &Fused, stage_rank: usize) -> Result<Compiled, KernelError> {
    compile_at(fused, stage_rank, Level::detect())
}

/// Compiles a program for a level (or the machine's best, if that is lower).
///
/// # Errors
/// [`KernelError::Unsupported`] for an operation on types for which it is not defined, [`KernelError::Buffer`] for an
/// argument that refers to nothing.
pub fn compile_at(fused: &Fused, stage_rank: usize, level: Level) -> Result<Compiled, KernelError> {
    let mut b = Body::new(fused, stage_rank, level.supported())?;
    let mut outputs = b.outputs(fused)?;
    share(&mut outputs);
    b.guard(&outputs);
    b.combine(&mut outputs);
    b.allocate(fused, outputs)
}

/// A value before it has a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Val {
    Input(usize),
    /// The index that is the input with this number, as `float64`.
    Counted(usize),
    Const(usize),
    /// A list of constants.
    Table(usize),
    Node(usize),
}

#[derive(Debug, Clone, PartialEq)]
struct Node {
    op: TileOp,
    arg: DType,
    dtype: DType,
    args: Vec<Val>,
}

/// An output before it has registers.
enum Out {
    Store { value: Val, valid: Option<Val> },
    Reduce { slot: ReduceSlot, parts: Vec<StatePart> },
}

/// A part of a state before it has registers.
struct StatePart {
    fns: Fns,
    /// The accumulated reduction; that of a mean is a sum.
    kind: ReduceKind,
    /// First field, and number of fields.
    fields: (usize, usize),
    value: Val,
    valid: Option<Val>,
    tail: Option<TailOf>,
}

/// A tail before it has registers: the nodes that it replaces, its values and parameter.
struct TailOf {
    tail: Tail,
    instead: Vec<usize>,
    value: Val,
    beside: Val,
    parameter: u64,
}

/// Drops the parts that an earlier output computes too, such as the sum of a mean.
fn share(outs: &mut [Out]) {
    for i in 1..outs.len() {
        let (before, rest) = outs.split_at_mut(i);
        let Out::Reduce { slot, parts } = &mut rest[0] else { continue };
        parts.retain(|p| {
            let made = before.iter().enumerate().find_map(|(j, o)| match o {
                Out::Reduce { slot: s, parts } if s.axes == slot.axes => parts
                    .iter()
                    .find(|q| (q.kind, q.value, q.valid) == (p.kind, p.value, p.valid))
                    .map(|q| (j, q.fields.0)),
                _ => None,
            });
            if let Some((j, first)) = made {
                slot.same.extend((0..p.fields.1).map(|f| (p.fields.0 + f, j, first + f)));
            }
            made.is_none()
        });
    }
}

struct Body {
    rank: usize,
    level: Level,
    inputs: Vec<DType>,
    /// Values of the program's instructions.
    insts: Vec<Val>,
    consts: Vec<Scalar>,
    tables: Vec<Vec<Scalar>>,
    nodes: Vec<Node>,
    /// Nodes that must be false, each with the error if they are not.
    checks: Vec<(Val, KernelError)>,
}

impl Body {
    fn new(fused: &Fused, rank: usize, level: Level) -> Result<Body, KernelError> {
        let program = &fused.program;
        let mut b = Body {
            rank,
            level,
            inputs: program.inputs.clone(),
            insts: Vec::new(),
            consts: Vec::new(),
            tables: Vec::new(),
            nodes: Vec::new(),
            checks: Vec::new(),
        };
        if fused.inputs.len() != program.inputs.len() {
            return Err(KernelError::Buffer {
                what: "inputs of a program",
                got: fused.inputs.len() as u64,
                expected: program.inputs.len() as u64,
            });
        }
        for inst in &program.insts {
            if inst.args.len() != inst.op.arity() {
                return Err(KernelError::Buffer {
                    what: "arguments of an instruction",
                    got: inst.args.len() as u64,
                    expected: inst.op.arity() as u64,
                });
            }
            let mut args = Vec::new();
            for a in &inst.args {
                args.push(b.val(*a)?);
            }
            let counted = match args[0] {
                Val::Input(i) if inst.op == ScalarOp::Cast && inst.dtype == DType::Float64 => {
                    matches!(fused.inputs[i], FusedInput::Index { .. }).then_some(Val::Counted(i))
                }
                _ => None,
            };
            let made = counted.unwrap_or_else(|| b.scalar(inst.op, inst.dtype, args));
            b.insts.push(made);
        }
        Ok(b)
    }

    fn val(&mut self, arg: Arg) -> Result<Val, KernelError> {
        let missing = |n: usize, of: usize| KernelError::Buffer {
            what: "values that an argument can name",
            got: of as u64,
            expected: n as u64 + 1,
        };
        match arg {
            Arg::Input(i) if (i as usize) < self.inputs.len() => Ok(Val::Input(i as usize)),
            Arg::Input(i) => Err(missing(i as usize, self.inputs.len())),
            Arg::Inst(i) => {
                let made = self.insts.get(i as usize).copied();
                made.ok_or_else(|| missing(i as usize, self.insts.len()))
            }
            Arg::Const(c) => Ok(self.constant(c)),
        }
    }

    fn constant(&mut self, c: Scalar) -> Val {
        let found = self.consts.iter().position(|x| *x == c);
        Val::Const(found.unwrap_or_else(|| {
            self.consts.push(c);
            self.consts.len() - 1
        }))
    }

    fn dtype(&self, v: Val) -> DType {
        match v {
            Val::Input(i) => self.inputs[i],
            Val::Counted(_) => DType::Float64,
            Val::Const(c) => self.consts[c].dtype(),
            Val::Table(t) => self.tables[t].first().map_or(DType::Float64, |c| c.dtype()),
            Val::Node(n) => self.nodes[n].dtype,
        }
    }

    /// The value as a constant, if it is one.
    fn known(&self, v: Val) -> Option<Scalar> {
        match v {
            Val::Const(c) => Some(self.consts[c]),
            _ => None,
        }
    }

    /// Simplifies an operation to an existing value, if possible.
    fn simpler(&self, op: ScalarOp, dtype: DType, args: &[Val]) -> Option<Val> {
        match op {
            ScalarOp::Where if args[1] == args[2] => Some(args[1]),
            // The validity of `where(c, x, NULL)`.
            ScalarOp::Where if dtype == DType::Bool => {
                let is = |v: Val, b: bool| self.known(v) == Some(Scalar::bool(b));
                (is(args[1], true) && is(args[2], false)).then_some(args[0])
            }
            ScalarOp::And | ScalarOp::Or if args[0] == args[1] => Some(args[0]),
            _ => None,
        }
    }

    fn push(&mut self, op: TileOp, dtype: DType, mut args: Vec<Val>) -> Val {
        let at = if op == TileOp::Scalar(ScalarOp::Where) { args[1] } else { args[0] };
        match op {
            // `x ^ 2` is `x * x`, as in NumPy.
            TileOp::Scalar(ScalarOp::Pow)
                if dtype.is_float() && self.known(args[1]).is_some_and(|c| c.as_f64() == 2.0) =>
            {
                return self.scalar(ScalarOp::Mul, dtype, vec![at, at]);
            }
            // An inner `where` already applied this mask.
            TileOp::Scalar(ScalarOp::Where) => {
                if let Val::Node(i) = args[1]
                    && self.nodes[i].op == op
                    && self.nodes[i].args[0] == args[0]
                {
                    args[1] = self.nodes[i].args[1];
                }
            }
            _ => {}
        }
        if let TileOp::Scalar(scalar) = op
            && let Some(v) = self.simpler(scalar, dtype, &args)
        {
            return v;
        }
        let node = Node { op, arg: self.dtype(at), dtype, args };
        let found = self.nodes.iter().position(|n| *n == node);
        Val::Node(found.unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        }))
    }

    fn scalar(&mut self, op: ScalarOp, dtype: DType, args: Vec<Val>) -> Val {
        self.push(TileOp::Scalar(op), dtype, args)
    }

    /// Returns the outputs, with the values that reductions need (converted, masked cells replaced by the identity) as
    /// nodes.
    fn outputs(&mut self, fused: &Fused) -> Result<Vec<Out>, KernelError> {
        let mut outs = Vec::new();
        for o in &fused.outputs {
            outs.push(match o {
                FusedOutput::Store { value, valid } => Out::Store {
                    value: self.val(*value)?,
                    valid: valid.map(|v| self.val(v)).transpose()?,
                },
                FusedOutput::Certain { value, valid, operation } => {
                    let (value, valid) = (self.val(*value)?, self.val(*valid)?);
                    if self.known(valid) != Some(Scalar::bool(true)) {
                        let bad = self.scalar(ScalarOp::Not, DType::Bool, vec![valid]);
                        self.checks.push((bad, KernelError::masked(operation)));
                    }
                    Out::Store { value, valid: None }
                }
                FusedOutput::Reduce { kind, axes, value, valid } => {
                    let (value, valid) =
                        (self.val(*value)?, valid.map(|v| self.val(v)).transpose()?);
                    self.reduce(*kind, axes, value, valid)?
                }
            });
        }
        Ok(outs)
    }

    fn reduce(
        &mut self,
        kind: ReduceKind,
        axes: &[AxisReduce],
        value: Val,
        valid: Option<Val>,
    ) -> Result<Out, KernelError> {
        if axes.len() != self.rank {
            return Err(KernelError::Buffer {
                what: "axes of a reduction",
                got: axes.len() as u64,
                expected: self.rank as u64,
            });
        }
        let dtype = self.dtype(value);
        let nullable = valid.is_some();
        let state = kind.state(dtype, nullable).to_vec();
        // Without masked cells the state is the same, and its count does not depend on the data.
        let valid = valid.filter(|v| self.known(*v) != Some(Scalar::bool(true)));
        let (fns, want) = partial::pick(kind, dtype, self.level)
            .ok_or_else(|| unsupported(kind.name(), dtype))?;
        let mut parts = Vec::new();
        let mut static_count = None;
        if kind == ReduceKind::Count {
            match valid {
                Some(value) => {
                    let fields = (0, 1);
                    parts.push(StatePart { fns, kind, fields, value, valid: None, tail: None });
                }
                None => static_count = Some(0),
            }
        } else {
            let mut v = value;
            // A variance handles the validity itself.
            if let Some(valid) = valid.filter(|_| !matches!(kind, ReduceKind::Var { .. })) {
                let id = self.constant(identity(kind, dtype));
                v = self.scalar(ScalarOp::Where, dtype, vec![valid, v, id]);
            }
            if MachineType::of(want) != MachineType::of(dtype) {
                v = self.scalar(ScalarOp::Cast, want, vec![v]);
            }
            let own =
                matches!(kind, ReduceKind::Var { .. } | ReduceKind::ArgMin | ReduceKind::ArgMax);
            // A separate field of the state shows if it has accumulated a cell, or how many.
            let met = match kind {
                ReduceKind::Mean => Some(DType::Int64),
                _ if nullable && !own => state.get(1).and(state.last()).copied(),
                _ => None,
            };
            let fields = (0, state.len() - usize::from(met.is_some()));
            let taken = match kind {
                ReduceKind::Mean | ReduceKind::MeanOf(_) => ReduceKind::Sum,
                ReduceKind::Var { .. } => ReduceKind::Var { ddof: 0 },
                kind => kind,
            };
            let seen = valid.filter(|_| own);
            parts.push(StatePart { fns, kind: taken, fields, value: v, valid: seen, tail: None });
            if let Some(met) = met {
                let field = state.len() - 1;
                let (fns, kind) = match met {
                    DType::Bool => (partial::met(self.level), ReduceKind::Max),
                    _ => (partial::count(self.level), ReduceKind::Count),
                };
                match valid {
                    Some(value) => {
                        let fields = (field, 1);
                        parts.push(StatePart { fns, kind, fields, value, valid: None, tail: None });
                    }
                    None => static_count = Some(field),
                }
            }
        }
        let slot = ReduceSlot {
            kind,
            axes: axes.to_vec(),
            state,
            parts: Vec::new(),
            static_count,
            same: Vec::new(),
        };
        Ok(Out::Reduce { slot, parts })
    }
}

fn name(op: TileOp) -> String {
    match op {
        TileOp::Scalar(op) => op.name(),
        op => format!("{op:?}").to_lowercase(),
    }
}

/// The identity of a reduction.
pub(super) fn identity(kind: ReduceKind, dtype: DType) -> Scalar {
    use ReduceKind::*;
    let extreme = |top: bool| {
        let (float, int) = match (top, dtype) {
            (true, DType::Bool) => (0.0, 1),
            (false, DType::Bool) => (0.0, 0),
            (true, DType::UInt64) => (0.0, i128::from(u64::MAX)),
            (true, d) if d.is_unsigned() => (0.0, (1 << (8 * d.size())) - 1),
            (false, d) if d.is_unsigned() => (0.0, 0),
            (true, d) => (f64::INFINITY, (1 << (8 * d.size() - 1)) - 1),
            (false, d) => (f64::NEG_INFINITY, -(1 << (8 * d.size() - 1))),
        };
        if dtype.is_float() {
            Scalar::from_f64(dtype, float)
        } else {
            Scalar::from_i128(dtype, int).unwrap_or(Scalar::zero(dtype))
        }
    };
    match kind {
        Prod | All => Scalar::from_i128(dtype, 1).unwrap_or(Scalar::zero(dtype)),
        MinTotal if dtype.is_float() => Scalar::from_f64(dtype, f64::NAN),
        Min | MinTotal | ArgMin => extreme(true),
        Max | MaxTotal | ArgMax => extreme(false),
        _ => Scalar::zero(dtype),
    }
}
