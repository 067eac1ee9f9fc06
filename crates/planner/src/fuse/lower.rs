//! Elementwise values as instructions: nodes are inlined through views, masks become `bool` values.

use super::Fuser;
use super::needs::is_repeated_work;
use crate::dtype::DType;
use crate::error::Error;
use crate::ir::{MapOp, NodeId, Op};
use crate::plan::{Access, FusedInput, Input};
use crate::program::{Arg, Program, ScalarOp};
use crate::region::{Dims, strides};
use crate::scalar::Scalar;
use crate::view::View;
use smallvec::{SmallVec, smallvec};

/// The location of a program's value, and of its validity if it can be masked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Value {
    pub(super) value: Arg,
    pub(super) valid: Option<Arg>,
}

/// Builds the program of one stage.
pub(super) struct Lowering<'a, 'b> {
    fuser: &'a Fuser<'b>,
    shape: Dims,
    program: Program,
    fused_inputs: Vec<FusedInput>,
    inputs: SmallVec<[Input; 3]>,
    /// Lowered values by node and view.
    memo: Vec<(NodeId, View, Value)>,
}

type Result<T> = std::result::Result<T, Error>;

impl<'a, 'b> Lowering<'a, 'b> {
    pub(super) fn new(fuser: &'a Fuser<'b>, shape: Dims) -> Self {
        Lowering {
            fuser,
            shape,
            program: Program::default(),
            fused_inputs: Vec::new(),
            inputs: SmallVec::new(),
            memo: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> (Program, Vec<FusedInput>, SmallVec<[Input; 3]>) {
        (self.program, self.fused_inputs, self.inputs)
    }

    /// The value of a node, with cell `view(i)` at cell `i` of the stage.
    pub(super) fn value(&mut self, id: NodeId, view: &View) -> Result<Value> {
        if let Some((.., v)) = self.memo.iter().find(|(n, w, _)| *n == id && w == view) {
            return Ok(*v);
        }
        let v = self.inline(id, view)?;
        self.memo.push((id, view.clone(), v));
        Ok(v)
    }

    /// The value of a node that this stage stores: computed here even if the node is only a view. A node that can be
    /// masked always has a validity.
    pub(super) fn stored(&mut self, id: NodeId, view: &View) -> Result<Value> {
        let mut v = self.inline(id, view)?;
        if self.fuser.graph.node(id).nullable {
            v.valid.get_or_insert(Arg::Const(Scalar::bool(true)));
        } else {
            v.valid = None;
        }
        Ok(v)
    }

    fn inline(&mut self, id: NodeId, view: &View) -> Result<Value> {
        let node = self.fuser.graph.node(id);
        match &node.op {
            Op::Rechunk => self.value(node.inputs[0], view),
            Op::View(inner)
                if is_repeated_work(self.fuser.graph, inner, &node.shape, node.inputs[0]) =>
            {
                self.read(node.inputs[0], &view.then(inner))
            }
            Op::View(inner) => self.value(node.inputs[0], &view.then(inner)),
            Op::Const(c) if c.len() == 1 => Ok(match c.get(0) {
                Some(v) => Value { value: Arg::Const(v), valid: None },
                None => Value {
                    value: Arg::Const(Scalar::zero(c.dtype)),
                    valid: Some(Arg::Const(Scalar::bool(false))),
                },
            }),
            Op::Iota => Ok(self.index(&node.shape, view)),
            Op::Map(op) => {
                let args: SmallVec<[Value; 3]> =
                    node.inputs.iter().map(|&i| self.value(i, view)).collect::<Result<_>>()?;
                Ok(self.map(*op, node.dtype, &args))
            }
            _ => self.read(id, view),
        }
    }

    /// Row-major numbers of `shape` behind a view are affine in the stage's positions.
    fn index(&mut self, shape: &[u64], view: &View) -> Value {
        let mut offset = 0;
        let mut steps: SmallVec<[i64; 6]> = smallvec![0; self.shape.len()];
        for (a, s) in view.axes.iter().zip(strides(shape)) {
            offset += a.start * s;
            if let Some(o) = a.axis {
                steps[o] += a.step * s;
            }
        }
        let input = FusedInput::Index { offset, strides: steps };
        Value { value: self.program_input(input, DType::Int64), valid: None }
    }

    /// The value of a materialised node. Other elementwise nodes are recomputed even if some stage stores them: an
    /// output that a later stage reads would have to be retained until then.
    fn read(&mut self, id: NodeId, view: &View) -> Result<Value> {
        let (from, outer) = self.fuser.find(id)?;
        let access = Access::View(view.then(&outer));
        let known = self.inputs.iter().position(|i| i.from == from && i.access == access);
        let input = known.unwrap_or_else(|| {
            self.inputs.push(Input { from, access });
            self.inputs.len() - 1
        }) as u32;
        let node = self.fuser.graph.node(id);
        let value = self.program_input(FusedInput::Field { input, field: 0 }, node.dtype);
        let valid = node
            .nullable
            .then(|| self.program_input(FusedInput::Field { input, field: 1 }, DType::Bool));
        Ok(Value { value, valid })
    }

    fn program_input(&mut self, input: FusedInput, dtype: DType) -> Arg {
        let i = self.fused_inputs.iter().position(|x| *x == input).unwrap_or_else(|| {
            self.fused_inputs.push(input);
            self.program.inputs.push(dtype);
            self.fused_inputs.len() - 1
        });
        Arg::Input(i as u32)
    }

    fn map(&mut self, op: MapOp, dtype: DType, args: &[Value]) -> Value {
        let v: SmallVec<[Arg; 3]> = args.iter().map(|a| a.value).collect();
        match op {
            MapOp::Scalar(ScalarOp::Where) => {
                let value = self.program.push(ScalarOp::Where, dtype, &v);
                let branch = match (args[1].valid, args[2].valid) {
                    (None, None) => None,
                    (a, b) => {
                        let yes = Arg::Const(Scalar::bool(true));
                        let args = [v[0], a.unwrap_or(yes), b.unwrap_or(yes)];
                        Some(self.program.push(ScalarOp::Where, DType::Bool, &args))
                    }
                };
                Value { value, valid: self.both(args[0].valid, branch) }
            }
            MapOp::Scalar(op) => {
                let valid = args.iter().fold(None, |acc, a| self.both(acc, a.valid));
                let mut v = v;
                if let (Some(ok), ScalarOp::TruncDiv | ScalarOp::TruncRem) = (valid, op) {
                    // A masked divisor must not raise: replace it by 1.
                    let one = Arg::Const(Scalar::from_f64(dtype, 1.0));
                    v[1] = self.program.push(ScalarOp::Where, dtype, &[ok, v[1], one]);
                }
                Value { value: self.program.push(op, dtype, &v), valid }
            }
            MapOp::Mask => {
                let keep = self.both(Some(v[1]), args[1].valid);
                Value { value: v[0], valid: self.both(args[0].valid, keep) }
            }
            MapOp::IsValid => Value {
                value: args[0].valid.unwrap_or(Arg::Const(Scalar::bool(true))),
                valid: None,
            },
            MapOp::Coalesce => match args[0].valid {
                None => args[0],
                Some(ok) => Value {
                    value: self.program.push(ScalarOp::Where, dtype, &[ok, v[0], v[1]]),
                    valid: args[1]
                        .valid
                        .map(|other| self.program.push(ScalarOp::Or, DType::Bool, &[ok, other])),
                },
            },
            MapOp::KleeneAnd | MapOp::KleeneOr => self.kleene(op == MapOp::KleeneAnd, args),
        }
    }

    /// Three-valued logic: a valid `false` (`true` for or) decides by itself.
    fn kleene(&mut self, and: bool, args: &[Value]) -> Value {
        let (a, b) = (args[0], args[1]);
        let op = if and { ScalarOp::And } else { ScalarOp::Or };
        if a.valid.is_none() && b.valid.is_none() {
            return Value {
                value: self.program.push(op, DType::Bool, &[a.value, b.value]),
                valid: None,
            };
        }
        let yes = Arg::Const(Scalar::bool(true));
        let mut known: SmallVec<[Arg; 2]> = SmallVec::new();
        let mut deciders: SmallVec<[Arg; 2]> = SmallVec::new();
        for x in [a, b] {
            let ok = x.valid.unwrap_or(yes);
            let not_ok = self.program.push(ScalarOp::Not, DType::Bool, &[ok]);
            if and {
                let not_x = self.program.push(ScalarOp::Not, DType::Bool, &[x.value]);
                deciders.push(self.program.push(ScalarOp::And, DType::Bool, &[ok, not_x]));
                known.push(self.program.push(ScalarOp::Or, DType::Bool, &[x.value, not_ok]));
            } else {
                deciders.push(self.program.push(ScalarOp::And, DType::Bool, &[ok, x.value]));
                known.push(self.program.push(ScalarOp::And, DType::Bool, &[x.value, ok]));
            }
        }
        let value = self.program.push(op, DType::Bool, &known);
        let both = self.both(a.valid, b.valid).unwrap_or(yes);
        let either = self.program.push(ScalarOp::Or, DType::Bool, &deciders);
        let valid = self.program.push(ScalarOp::Or, DType::Bool, &[both, either]);
        Value { value, valid: Some(valid) }
    }

    /// `and` of two validities, where absence means valid.
    fn both(&mut self, a: Option<Arg>, b: Option<Arg>) -> Option<Arg> {
        match (a, b) {
            (None, x) | (x, None) => x,
            (Some(x), Some(y)) if x == y => Some(x),
            (Some(x), Some(y)) => Some(self.program.push(ScalarOp::And, DType::Bool, &[x, y])),
        }
    }
}
