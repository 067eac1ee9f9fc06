//! From a program to a list of tile operations.

use crate::kernels::elem::Kind;
use crate::kernels::ops::{self, IotaFn, N, OpFn, TILES, TileOp};
use crate::kernels::partial::{self, Fns};
use crate::kernels::stream::{self, StreamFn};
use crate::kernels::{KernelError, Level, unsupported};
use tessera_planner::dtype::DType;
use tessera_planner::ir::AxisReduce;
use tessera_planner::plan::{Fused, FusedInput, FusedOutput};
use tessera_planner::program::{Arg, ScalarOp};
use tessera_planner::reduce::ReduceKind;
use tessera_planner::scalar::Scalar;

/// Number of a tile buffer.
pub(super) type Slot = u16;

/// A program, ready to run over any region of its stage. Plain data but for function pointers; share it freely.
#[derive(Debug, Clone)]
pub struct Compiled {
    pub(super) rank: usize,
    pub(super) slots: usize,
    pub(super) inputs: Vec<InputSlot>,
    pub(super) consts: Vec<(Slot, Scalar)>,
    pub(super) code: Vec<Ins>,
    pub(super) checks: Vec<Check>,
    pub(super) outputs: Vec<OutputSlot>,
    pub(super) fields: usize,
    /// Tiles of a block.
    pub(super) block: usize,
    /// Writes tiles of an index.
    pub(super) count: IotaFn,
    /// Writes tiles past the caches, where the machine can.
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
    /// The field with that number among the inputs of a run.
    Field(usize, DType),
    /// Offset and strides of an index.
    Index(i64, Vec<i64>),
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
    /// A count that does not depend on the data: its field.
    pub(super) static_count: Option<usize>,
    /// Fields that an earlier output makes too: field, that output, its field.
    pub(super) same: Vec<(usize, usize, usize)>,
}

/// One part of a state: a range of its fields and what fills them.
#[derive(Debug, Clone)]
pub(super) struct PartSlot {
    pub(super) fns: Fns,
    pub(super) first_field: usize,
    pub(super) value: Slot,
    pub(super) valid: Option<Slot>,
    /// The value is the product of these two, made by the instruction with that number and read by nobody else.
    pub(super) product: Option<(usize, Slot, Slot)>,
}

/// Compiles a program for the best level of this machine. See [`compile_at`].
pub fn compile(fused: &Fused, stage_rank: usize) -> Result<Compiled, KernelError> {
    compile_at(fused, stage_rank, Level::detect())
}

/// Compiles a program for a level (or the machine's best, if that is less).
///
/// # Errors
/// [`KernelError::Unsupported`] for an operation on types that it is not defined for, [`KernelError::Buffer`] for an
/// argument that names nothing.
pub fn compile_at(fused: &Fused, stage_rank: usize, level: Level) -> Result<Compiled, KernelError> {
    let mut b = Body::new(fused, stage_rank, level.supported())?;
    let mut outputs = b.outputs(fused)?;
    share(&mut outputs);
    b.guard(&outputs);
    b.combine(&outputs);
    b.allocate(fused, outputs)
}

/// A value in the making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Val {
    Input(usize),
    Const(usize),
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
    Reduce { slot: ReduceSlot, parts: Vec<Part> },
}

/// A part of a state before it has registers.
struct Part {
    fns: Fns,
    /// What it takes in; that of a mean is a sum.
    kind: ReduceKind,
    /// Its first field, and how many it has.
    fields: (usize, usize),
    value: Val,
    valid: Option<Val>,
}

/// Leaves out the parts that an earlier output makes too, as a mean does a sum.
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
    consts: Vec<Scalar>,
    nodes: Vec<Node>,
    /// Nodes that must be false, and what it means if they are not.
    checks: Vec<(Val, KernelError)>,
}

impl Body {
    fn new(fused: &Fused, rank: usize, level: Level) -> Result<Body, KernelError> {
        let program = &fused.program;
        let mut b = Body {
            rank,
            level,
            inputs: program.inputs.clone(),
            consts: Vec::new(),
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
            // The type that decides: that of the branches for `where`, else that of the first argument.
            let arg = b.dtype(args[if inst.op == ScalarOp::Where { 1 } else { 0 }]);
            if matches!(inst.op, ScalarOp::Pow) && arg.is_float() && b.square(&args, inst.dtype) {
                continue;
            }
            b.nodes.push(Node { op: TileOp::Scalar(inst.op), arg, dtype: inst.dtype, args });
        }
        Ok(b)
    }

    /// `x ^ 2` is `x * x`, as in NumPy.
    fn square(&mut self, args: &[Val], dtype: DType) -> bool {
        let Val::Const(c) = args[1] else { return false };
        if self.consts[c].as_f64() != 2.0 {
            return false;
        }
        let op = TileOp::Scalar(ScalarOp::Mul);
        self.nodes.push(Node { op, arg: dtype, dtype, args: vec![args[0], args[0]] });
        true
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
            Arg::Inst(i) if (i as usize) < self.nodes.len() => Ok(Val::Node(i as usize)),
            Arg::Inst(i) => Err(missing(i as usize, self.nodes.len())),
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
            Val::Const(c) => self.consts[c].dtype(),
            Val::Node(n) => self.nodes[n].dtype,
        }
    }

    fn push(&mut self, op: TileOp, dtype: DType, args: Vec<Val>) -> Val {
        let at = if op == TileOp::Scalar(ScalarOp::Where) { args[1] } else { args[0] };
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

    /// The outputs, with what a reduction wants of its values (type, masked cells as its identity) as nodes.
    fn outputs(&mut self, fused: &Fused) -> Result<Vec<Out>, KernelError> {
        let mut outs = Vec::new();
        for o in &fused.outputs {
            outs.push(match o {
                FusedOutput::Store { value, valid } => Out::Store {
                    value: self.val(*value)?,
                    valid: valid.map(|v| self.val(v)).transpose()?,
                },
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
        let state = kind.state(dtype, valid.is_some()).to_vec();
        let (fns, want) = partial::pick(kind, dtype, self.level)
            .ok_or_else(|| unsupported(kind.name(), dtype))?;
        let mut parts = Vec::new();
        let mut static_count = None;
        if kind == ReduceKind::Count {
            match valid {
                Some(value) => {
                    parts.push(Part { fns, kind, fields: (0, 1), value, valid: None });
                }
                None => static_count = Some(0),
            }
        } else {
            let mut v = value;
            // A variance looks at the validity itself.
            if let Some(valid) = valid.filter(|_| !matches!(kind, ReduceKind::Var { .. })) {
                let id = self.constant(identity(kind, dtype));
                v = self.scalar(ScalarOp::Where, dtype, vec![valid, v, id]);
            }
            if Kind::of(want) != Kind::of(dtype) {
                v = self.scalar(ScalarOp::Cast, want, vec![v]);
            }
            let own =
                matches!(kind, ReduceKind::Var { .. } | ReduceKind::ArgMin | ReduceKind::ArgMax);
            let counted = match kind {
                ReduceKind::Mean => true,
                ReduceKind::Var { .. } | ReduceKind::Any | ReduceKind::All => false,
                _ => valid.is_some(),
            };
            let fields = (0, state.len() - usize::from(counted));
            let taken = match kind {
                ReduceKind::Mean => ReduceKind::Sum,
                ReduceKind::Var { .. } => ReduceKind::Var { ddof: 0 },
                kind => kind,
            };
            parts.push(Part { fns, kind: taken, fields, value: v, valid: valid.filter(|_| own) });
            if counted {
                let field = state.len() - 1;
                match valid {
                    Some(value) => parts.push(Part {
                        fns: partial::count(self.level),
                        kind: ReduceKind::Count,
                        fields: (field, 1),
                        value,
                        valid: None,
                    }),
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

    /// Adds the checks of operations that refuse arguments, each limited to the cells whose value is needed.
    fn guard(&mut self, outs: &[Out]) {
        let risky = |n: &Node| match n.op {
            TileOp::Scalar(ScalarOp::TruncDiv | ScalarOp::TruncRem) => true,
            TileOp::Scalar(ScalarOp::Pow) => n.arg.is_signed(),
            _ => false,
        };
        // Whether a node or one below it can refuse.
        let mut reaches = vec![false; self.nodes.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            reaches[i] =
                risky(n) || n.args.iter().any(|a| matches!(a, Val::Node(j) if reaches[*j]));
        }
        if !reaches.contains(&true) {
            return;
        }
        let count = self.nodes.len();
        let mut need = vec![Need::Never; count];
        for o in outs {
            let (values, valid): (Vec<Val>, Option<Val>) = match o {
                Out::Store { value, valid } => (vec![*value], *valid),
                // A masked value of other reductions was already exchanged for the identity by a `where`, which limits
                // the need by itself.
                Out::Reduce { parts, .. } => {
                    for p in parts {
                        let needed = p.valid.map_or(Need::Always, Need::Where);
                        self.require(&mut need, &reaches, p.value, needed);
                        if let Some(v) = p.valid {
                            self.require(&mut need, &reaches, v, Need::Always);
                        }
                    }
                    continue;
                }
            };
            for v in values {
                self.require(&mut need, &reaches, v, valid.map_or(Need::Always, Need::Where));
            }
            if let Some(v) = valid {
                self.require(&mut need, &reaches, v, Need::Always);
            }
        }
        for i in (0..count).rev() {
            if need[i] == Need::Never || !reaches[i] {
                continue;
            }
            let node = self.nodes[i].clone();
            for (j, a) in node.args.iter().enumerate() {
                let mut n = need[i];
                if node.op == TileOp::Scalar(ScalarOp::Where) && j > 0 {
                    let taken = if j == 1 {
                        node.args[0]
                    } else {
                        self.scalar(ScalarOp::Not, DType::Bool, vec![node.args[0]])
                    };
                    n = match n {
                        Need::Where(v) => {
                            Need::Where(self.scalar(ScalarOp::And, DType::Bool, vec![v, taken]))
                        }
                        _ => Need::Where(taken),
                    };
                }
                self.require(&mut need, &reaches, *a, n);
            }
            if !risky(&node) {
                continue;
            }
            let TileOp::Scalar(op) = node.op else { continue };
            let (test, reason) = match op {
                ScalarOp::Pow => (TileOp::IsNegative, "a negative exponent"),
                _ => (TileOp::IsZero, "division by zero"),
            };
            if let Val::Const(c) = node.args[1] {
                let x = self.consts[c].as_i128();
                if (op == ScalarOp::Pow && x >= 0) || (op != ScalarOp::Pow && x != 0) {
                    continue;
                }
            }
            let mut bad = self.push(test, DType::Bool, vec![node.args[1]]);
            if let Need::Where(v) = need[i] {
                bad = self.scalar(ScalarOp::And, DType::Bool, vec![bad, v]);
            }
            let error = KernelError::Domain { operation: op.name(), dtype: node.arg, reason };
            self.checks.push((bad, error));
        }
    }

    fn require(&mut self, need: &mut [Need], reaches: &[bool], v: Val, n: Need) {
        let Val::Node(i) = v else { return };
        if i >= need.len() || !reaches[i] {
            return;
        }
        need[i] = match (need[i], n) {
            (Need::Never, n) | (n, Need::Never) => n,
            (Need::Where(a), Need::Where(b)) if a == b => n,
            (Need::Where(a), Need::Where(b)) => {
                Need::Where(self.scalar(ScalarOp::Or, DType::Bool, vec![a, b]))
            }
            _ => Need::Always,
        };
    }

    fn roots(&self, outs: &[Out]) -> Vec<Val> {
        let mut roots: Vec<Val> = self.checks.iter().map(|c| c.0).collect();
        for o in outs {
            match o {
                Out::Store { value, valid } => roots.extend([*value].into_iter().chain(*valid)),
                Out::Reduce { parts, .. } => {
                    for p in parts {
                        roots.extend([p.value].into_iter().chain(p.valid));
                    }
                }
            }
        }
        roots
    }

    /// How often each node is read by live nodes and roots; 0 is dead.
    fn uses(&self, outs: &[Out]) -> Vec<u32> {
        let mut uses = vec![0u32; self.nodes.len()];
        for r in self.roots(outs) {
            if let Val::Node(i) = r {
                uses[i] += 1;
            }
        }
        for i in (0..self.nodes.len()).rev() {
            if uses[i] > 0 {
                for a in &self.nodes[i].args {
                    if let Val::Node(j) = a {
                        uses[*j] += 1;
                    }
                }
            }
        }
        uses
    }

    /// Makes one operation of several where the results are read by nobody else; roundings stay as they were.
    fn combine(&mut self, outs: &[Out]) {
        use ScalarOp as S;
        let uses = self.uses(outs);
        for i in 0..self.nodes.len() {
            let n = &self.nodes[i];
            if !n.dtype.is_float() || uses[i] == 0 {
                continue;
            }
            // The node behind an argument, if only this node reads it.
            let own = |v: Val| match v {
                Val::Node(j) if uses[j] == 1 => Some(&self.nodes[j]),
                _ => None,
            };
            let product = |v: Val| own(v).filter(|m| m.op == TileOp::Scalar(S::Mul));
            let (op, args) = match n.op {
                TileOp::Scalar(S::Add) => match (product(n.args[0]), product(n.args[1])) {
                    (Some(x), Some(y)) if x.args[0] == x.args[1] && y.args[0] == y.args[1] => {
                        (TileOp::SquareSum, vec![x.args[0], y.args[0]])
                    }
                    (Some(x), _) => (TileOp::MulAdd, vec![x.args[0], x.args[1], n.args[1]]),
                    (_, Some(y)) => (TileOp::MulAdd, vec![y.args[0], y.args[1], n.args[0]]),
                    _ => continue,
                },
                TileOp::Scalar(S::Sub) => match (product(n.args[0]), product(n.args[1])) {
                    (Some(x), _) => (TileOp::MulSub, vec![x.args[0], x.args[1], n.args[1]]),
                    (_, Some(y)) => (TileOp::NegMulAdd, vec![y.args[0], y.args[1], n.args[0]]),
                    _ => continue,
                },
                TileOp::Scalar(S::Sqrt) => match own(n.args[0]) {
                    Some(x) if x.op == TileOp::SquareSum => (TileOp::Norm, x.args.clone()),
                    _ => continue,
                },
                TileOp::Scalar(S::Exp) => match own(n.args[0]) {
                    Some(x) if x.op == TileOp::Scalar(S::Neg) => (TileOp::ExpNeg, x.args.clone()),
                    _ => continue,
                },
                _ => continue,
            };
            let dtype = n.dtype;
            self.nodes[i] = Node { op, arg: dtype, dtype, args };
        }
    }

    /// Gives every live value a register: first come, first served, and reused when its last reader has run.
    fn allocate(self, fused: &Fused, outs: Vec<Out>) -> Result<Compiled, KernelError> {
        let mut uses = self.uses(&outs);
        let all_uses = uses.clone();
        let mut regs = Registers { next: 0, free: Vec::new() };
        let mut out = Compiled {
            rank: self.rank,
            slots: 0,
            inputs: Vec::new(),
            consts: Vec::new(),
            code: Vec::new(),
            checks: Vec::new(),
            outputs: Vec::new(),
            block: 1,
            count: ops::iota(self.level),
            stream: stream::copy(self.level),
            fields: fused.inputs.iter().filter(|i| matches!(i, FusedInput::Field { .. })).count(),
        };
        // What is looked at after the tile has run must not be overwritten within it.
        let mut keep = vec![false; self.nodes.len()];
        for r in self.roots(&outs) {
            if let Val::Node(i) = r {
                keep[i] = true;
            }
        }
        // A product that only a sum reads may become part of it.
        let mut products = Vec::new();
        for o in &outs {
            let Out::Reduce { parts, .. } = o else { continue };
            for p in parts {
                let Val::Node(i) = p.value else { continue };
                let n = &self.nodes[i];
                if p.fns.lanes_mul.is_some()
                    && all_uses[i] == 1
                    && n.op == TileOp::Scalar(ScalarOp::Mul)
                {
                    products.push(i);
                    for a in &n.args {
                        if let Val::Node(j) = a {
                            keep[*j] = true;
                        }
                    }
                }
            }
        }
        let mut input_slots: Vec<Option<Slot>> = vec![None; self.inputs.len()];
        let mut const_slots: Vec<Option<Slot>> = vec![None; self.consts.len()];
        let mut node_slots: Vec<Option<Slot>> = vec![None; self.nodes.len()];
        // Stores write to slots of their own, which point into the output.
        let mut store_slots: Vec<(Val, Slot)> = Vec::new();
        for o in &outs {
            if let Out::Store { value, valid } = o {
                for v in [Some(*value), *valid].into_iter().flatten() {
                    let slot = regs.fresh()?;
                    store_slots.push((v, slot));
                    if let Val::Node(i) = v
                        && node_slots[i].is_none()
                    {
                        node_slots[i] = Some(slot);
                    }
                }
            }
        }
        let mut field = 0;
        let mut fields: Vec<Option<usize>> = Vec::new();
        for f in &fused.inputs {
            fields.push(match f {
                FusedInput::Field { .. } => {
                    field += 1;
                    Some(field - 1)
                }
                FusedInput::Index { .. } => None,
            });
        }
        let mut slot_of = |v: Val,
                           regs: &mut Registers,
                           out: &mut Compiled,
                           node_slots: &[Option<Slot>]|
         -> Result<Slot, KernelError> {
            Ok(match v {
                Val::Node(i) => node_slots[i].unwrap_or(0),
                Val::Const(c) => match const_slots[c] {
                    Some(s) => s,
                    None => {
                        let s = regs.fresh()?;
                        const_slots[c] = Some(s);
                        out.consts.push((s, self.consts[c]));
                        s
                    }
                },
                Val::Input(i) => match input_slots[i] {
                    Some(s) => s,
                    None => {
                        let s = regs.fresh()?;
                        input_slots[i] = Some(s);
                        let source = match (&fused.inputs[i], fields[i]) {
                            (FusedInput::Index { offset, strides }, _) => {
                                InputSource::Index(*offset, strides.to_vec())
                            }
                            (_, f) => InputSource::Field(f.unwrap_or(0), self.inputs[i]),
                        };
                        out.inputs.push(InputSlot { slot: s, source });
                        s
                    }
                },
            })
        };
        let mut index_of = vec![0usize; self.nodes.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            if uses[i] == 0 {
                continue;
            }
            let (f, imm) = ops::pick(n.op, n.arg, n.dtype, self.level)
                .ok_or_else(|| unsupported(name(n.op), n.arg))?;
            let mut s = [0; 3];
            for (k, a) in n.args.iter().enumerate() {
                s[k] = slot_of(*a, &mut regs, &mut out, &node_slots)?;
            }
            // Pointers that an operation does not read must still point somewhere.
            for k in n.args.len()..3 {
                s[k] = s[0];
            }
            // The destination is taken before the sources are given back, so it is none of them.
            let d = match node_slots[i] {
                Some(d) => d,
                None => regs.take()?,
            };
            node_slots[i] = Some(d);
            for a in &n.args {
                if let Val::Node(j) = a {
                    uses[*j] -= 1;
                    if uses[*j] == 0
                        && !keep[*j]
                        && let Some(s) = node_slots[*j]
                    {
                        regs.free.push(s);
                    }
                }
            }
            index_of[i] = out.code.len();
            out.code.push(Ins { f, d, a: s[0], b: s[1], c: s[2], imm });
        }
        for (v, error) in self.checks.clone() {
            let slot = slot_of(v, &mut regs, &mut out, &node_slots)?;
            out.checks.push(Check { slot, error });
        }
        let mut stores = store_slots.into_iter();
        for o in outs {
            match o {
                Out::Store { value, valid } => {
                    let mut slots = Vec::new();
                    for v in [Some(value), valid].into_iter().flatten() {
                        let Some((_, d)) = stores.next() else { continue };
                        let dtype = self.dtype(v);
                        let from = slot_of(v, &mut regs, &mut out, &node_slots)?;
                        if from != d {
                            // An input, a constant, or a value that is stored elsewhere too.
                            let (f, imm) = ops::pick(TileOp::Copy, dtype, dtype, self.level)
                                .ok_or_else(|| unsupported("copy", dtype))?;
                            out.code.push(Ins { f, d, a: from, b: from, c: from, imm });
                        }
                        slots.push((d, dtype));
                    }
                    out.outputs.push(OutputSlot::Store(slots));
                }
                Out::Reduce { mut slot, parts } => {
                    for p in parts {
                        let product = match p.value {
                            Val::Node(i) if products.contains(&i) => {
                                let args = &self.nodes[i].args;
                                let a = slot_of(args[0], &mut regs, &mut out, &node_slots)?;
                                let b = slot_of(args[1], &mut regs, &mut out, &node_slots)?;
                                Some((index_of[i], a, b))
                            }
                            _ => None,
                        };
                        let value = slot_of(p.value, &mut regs, &mut out, &node_slots)?;
                        let valid = p
                            .valid
                            .map(|v| slot_of(v, &mut regs, &mut out, &node_slots))
                            .transpose()?;
                        let (fns, first_field) = (p.fns, p.fields.0);
                        slot.parts.push(PartSlot { fns, first_field, value, valid, product });
                    }
                    out.outputs.push(OutputSlot::Reduce(Box::new(slot)));
                }
            }
        }
        out.slots = regs.next as usize;
        out.block = block(out.slots);
        Ok(out)
    }
}

/// Tiles of a block: as many as leave a program's registers half of the first-level cache.
fn block(slots: usize) -> usize {
    let fit = BLOCK_BYTES / (slots.max(1) * N * 8);
    [8, 4, 2].into_iter().find(|k| *k <= fit.min(TILES)).unwrap_or(1)
}

/// Bytes of all registers of a block.
const BLOCK_BYTES: usize = 16 << 10;

/// In which cells a value is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Never,
    Where(Val),
    Always,
}

struct Registers {
    next: Slot,
    free: Vec<Slot>,
}

impl Registers {
    fn fresh(&mut self) -> Result<Slot, KernelError> {
        if self.next == Slot::MAX {
            return Err(KernelError::Buffer {
                what: "registers of a program",
                got: u64::from(Slot::MAX),
                expected: u64::from(Slot::MAX) + 1,
            });
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    fn take(&mut self) -> Result<Slot, KernelError> {
        match self.free.pop() {
            Some(s) => Ok(s),
            None => self.fresh(),
        }
    }
}

fn name(op: TileOp) -> String {
    match op {
        TileOp::Scalar(op) => op.name(),
        op => format!("{op:?}").to_lowercase(),
    }
}

/// The value that changes nothing in a reduction.
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
