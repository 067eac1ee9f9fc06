//! Programs without masks, for operands that read no masked cell.
//!
//! Data that declare a missing value and have none lead to programs that compute a mask for every cell, and the mask is
//! always true. The parts of a program that compute such masks are known from its text. Whether they are true for an
//! operand's cells is known from its input chunks ([`Chunk::holds`](crate::chunk::Chunk::holds)). If so, they become
//! constants, and the values that they masked are computed as if they could not be masked: with the same lanes, and so
//! to the same bits.
//!
//! ```text
//!   %0 = isnan(in0)  %1 = not(%0)     reduce mean of in0 where %1
//!   no chunk of in0 has NaN           reduce mean of in0 where true
//! ```

use super::Operand;
use super::gather::holds;
use crate::chunk::Condition;
use crate::error::Error;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex};
use tessera_kernels::fused::{Compiled, compile};
use tessera_planner::dtype::DType;
use tessera_planner::plan::{Fused, FusedInput, FusedOutput};
use tessera_planner::program::{Arg, Inst, Program, ScalarOp};
use tessera_planner::scalar::Scalar;
use tessera_storage::lock;

/// Upper bound on the parts of a program that are considered.
const ASSUMED_MAX: usize = 16;

/// Upper bound on the programs of one stage: operands differ in which of their inputs have masked cells.
const VARIANTS_MAX: usize = 8;

/// Programs by the set of parts assumed true.
type Made = SmallVec<[(u32, Arc<Variant>); 1]>;

/// The programs of one fused stage.
pub(super) struct Programs {
    rank: usize,
    general: Arc<Variant>,
    source: Fused,
    assumed: Vec<Assumed>,
    /// Variants compiled so far.
    others: Mutex<Made>,
}

/// A program and its outputs.
pub(super) struct Variant {
    pub(super) fused: Fused,
    pub(super) compiled: Compiled,
    /// For each output, true if it is stored and no cell of it can be masked: it has one field.
    pub(super) unmasked: Vec<bool>,
}

/// A part of a program that is true wherever a condition holds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Assumed {
    part: Arg,
    /// The stage input whose chunks must satisfy the condition.
    input: u32,
    condition: Condition,
}

impl Programs {
    pub(super) fn new(fused: &Fused, rank: usize) -> Result<Self, Error> {
        Ok(Programs {
            rank,
            general: Arc::new(Variant::new(fused, rank, &[])?),
            source: fused.clone(),
            assumed: assumed(fused),
            others: Mutex::default(),
        })
    }

    /// Returns the program for an operand, depending on its input chunks.
    pub(super) fn of(&self, op: &Operand<'_>) -> Result<Arc<Variant>, Error> {
        let mut set: u32 = (1 << self.assumed.len()) - 1;
        for (k, input) in op.stage.inputs.iter().enumerate() {
            let asked = || self.assumed.iter().enumerate().filter(|(_, a)| a.input as usize == k);
            if asked().next().is_none() {
                continue;
            }
            for piece in op.tiling.pieces(op.id, op.index, k) {
                let held = op.inputs.held(input.from, &piece)?;
                for (i, a) in asked() {
                    if set & (1 << i) != 0 && !holds(held, a.condition) {
                        set &= !(1 << i);
                    }
                }
            }
        }
        if set == 0 {
            return Ok(self.general.clone());
        }
        let mut others = lock(&self.others);
        if let Some((_, known)) = others.iter().find(|(s, _)| *s == set) {
            return Ok(known.clone());
        }
        if others.len() == VARIANTS_MAX {
            return Ok(self.general.clone());
        }
        let parts = self.assumed.iter().enumerate().filter(|(i, _)| set & (1 << i) != 0);
        let parts: Vec<Arg> = parts.map(|(_, a)| a.part).collect();
        let made = Arc::new(Variant::new(&self.source, self.rank, &parts)?);
        others.push((set, made.clone()));
        Ok(made)
    }
}

impl Variant {
    fn new(fused: &Fused, rank: usize, parts: &[Arg]) -> Result<Self, Error> {
        let mut fused = assume(fused, parts);
        let unmasked = fused.outputs.iter_mut().map(|o| match o {
            FusedOutput::Store { valid, .. } if *valid == Some(yes()) => {
                *valid = None;
                true
            }
            _ => false,
        });
        let unmasked = unmasked.collect();
        let compiled = compile(&fused, rank)?;
        Ok(Variant { fused, compiled, unmasked })
    }
}

fn yes() -> Arg {
    Arg::Const(Scalar::bool(true))
}

/// The mask-computing parts of a program, as generated for reading and decoding.
fn assumed(fused: &Fused) -> Vec<Assumed> {
    let field = |arg: &Arg| match arg {
        Arg::Input(i) => match fused.inputs.get(*i as usize) {
            Some(FusedInput::Field { input, field: 0 }) => Some(*input),
            _ => None,
        },
        _ => None,
    };
    let masks = fused.inputs.iter().enumerate().filter_map(|(i, input)| match input {
        FusedInput::Field { input, field: 1 } => {
            let part = Arg::Input(i as u32);
            Some(Assumed { part, input: *input, condition: Condition::Unmasked })
        }
        _ => None,
    });
    let insts = &fused.program.insts;
    let rules = insts.iter().enumerate().filter_map(|(i, inst)| {
        let (of, condition) = match (inst.op, &inst.args[..]) {
            (ScalarOp::Ne, [x, Arg::Const(c)]) => (field(x)?, Condition::Without(*c)),
            (ScalarOp::Not, [Arg::Inst(j)]) => match inner(insts.get(*j as usize)?) {
                (ScalarOp::IsNan, [x]) => (field(x)?, Condition::NoNan),
                (ScalarOp::Lt, [x, Arg::Const(c)]) => (field(x)?, Condition::NotBelow(*c)),
                (ScalarOp::Gt, [x, Arg::Const(c)]) => (field(x)?, Condition::NotAbove(*c)),
                _ => return None,
            },
            _ => return None,
        };
        Some(Assumed { part: Arg::Inst(i as u32), input: of, condition })
    });
    masks.chain(rules).take(ASSUMED_MAX).collect()
}

fn inner(inst: &Inst) -> (ScalarOp, &[Arg]) {
    (inst.op, &inst.args)
}

/// The program where the parts are true of every cell. The compiler removes unused instructions.
fn assume(fused: &Fused, parts: &[Arg]) -> Fused {
    let mut program = Program { inputs: fused.program.inputs.clone(), insts: Vec::new() };
    let mut made: Vec<Arg> = Vec::with_capacity(fused.program.insts.len());
    let now = |made: &[Arg], arg: Arg| match arg {
        part if parts.contains(&part) => yes(),
        Arg::Inst(i) => made.get(i as usize).copied().unwrap_or(arg),
        arg => arg,
    };
    for inst in &fused.program.insts {
        let args: SmallVec<[Arg; 3]> = inst.args.iter().map(|&a| now(&made, a)).collect();
        let done = match simpler(inst.op, inst.dtype, &args) {
            Some(arg) => arg,
            None => program.push(inst.op, inst.dtype, &args),
        };
        made.push(done);
    }
    let outputs = fused.outputs.iter().map(|o| {
        let mut o = o.clone();
        let (value, valid) = match &mut o {
            FusedOutput::Store { value, valid } | FusedOutput::Reduce { value, valid, .. } => {
                (value, valid.as_mut())
            }
            FusedOutput::Certain { value, valid, .. } => (value, Some(valid)),
        };
        *value = now(&made, *value);
        if let Some(valid) = valid {
            *valid = now(&made, *valid);
        }
        o
    });
    let outputs = outputs.collect();
    Fused { program, inputs: fused.inputs.clone(), outputs, batch: fused.batch.clone() }
}

/// Simplifies an operation on known truth values.
fn simpler(op: ScalarOp, dtype: DType, args: &[Arg]) -> Option<Arg> {
    let known = |arg: &Arg| match arg {
        Arg::Const(c) if c.dtype() == DType::Bool => Some(c.as_i128() != 0),
        _ => None,
    };
    match (op, args) {
        (ScalarOp::Not, [x]) if dtype == DType::Bool => {
            known(x).map(|x| Arg::Const(Scalar::bool(!x)))
        }
        (ScalarOp::And | ScalarOp::Or, [x, y]) if dtype == DType::Bool => {
            // True is neutral for `and`, false for `or`: the other operand decides.
            let neutral = op == ScalarOp::And;
            match (known(x), known(y)) {
                (Some(a), _) if a == neutral => Some(*y),
                (_, Some(b)) if b == neutral => Some(*x),
                (Some(_), _) => Some(*x),
                (_, Some(_)) => Some(*y),
                _ => None,
            }
        }
        (ScalarOp::Where, [c, x, y]) => known(c).map(|c| if c { *x } else { *y }),
        (ScalarOp::Cast, [Arg::Const(c)]) if c.dtype() == DType::Bool => {
            Some(Arg::Const(c.cast(dtype)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// `where(x == fill or isnan(x) masked)`, `y` with a mask of its own: sum of x + y.
    fn program() -> Fused {
        let mut p = Program {
            inputs: vec![DType::Float32, DType::Float32, DType::Bool],
            insts: Vec::new(),
        };
        let fill = Scalar::from_f64(DType::Float32, 9.0);
        let (x, y, ok) = (Arg::Input(0), Arg::Input(1), Arg::Input(2));
        let nan = p.push(ScalarOp::IsNan, DType::Bool, &[x]);
        let number = p.push(ScalarOp::Not, DType::Bool, &[nan]);
        let other = p.push(ScalarOp::Ne, DType::Bool, &[x, Arg::Const(fill)]);
        let there = p.push(ScalarOp::And, DType::Bool, &[number, other]);
        let both = p.push(ScalarOp::And, DType::Bool, &[there, ok]);
        let sum = p.push(ScalarOp::Add, DType::Float32, &[x, y]);
        let field = |input, field| FusedInput::Field { input, field };
        Fused {
            program: p,
            inputs: vec![field(0, 0), field(1, 0), field(1, 1)],
            outputs: vec![FusedOutput::Store { value: sum, valid: Some(both) }],
            batch: None,
        }
    }

    #[test]
    fn masks_are_found_and_become_constants() {
        let fused = program();
        let found = assumed(&fused);
        let fill = Scalar::from_f64(DType::Float32, 9.0);
        let conditions: Vec<_> = found.iter().map(|a| (a.input, a.condition)).collect();
        let expected =
            [(1, Condition::Unmasked), (0, Condition::NoNan), (0, Condition::Without(fill))];
        assert_eq!(conditions, expected);
        let parts: Vec<Arg> = found.iter().map(|a| a.part).collect();
        let all = Variant::new(&fused, 1, &parts).unwrap();
        assert_eq!(all.unmasked, [true]);
        assert!(matches!(all.fused.outputs[..], [FusedOutput::Store { valid: None, .. }]));
        // A part that is not assumed stays, alone.
        let some = Variant::new(&fused, 1, &parts[1..]).unwrap();
        assert_eq!(some.unmasked, [false]);
        let FusedOutput::Store { valid, .. } = some.fused.outputs[0] else { unreachable!() };
        assert_eq!(valid, Some(Arg::Input(2)));
        let none = Variant::new(&fused, 1, &[]).unwrap();
        assert_eq!((none.fused, &none.unmasked[..]), (fused, &[false][..]));
    }

    #[test]
    fn known_masks_are_folded() {
        let (x, t, f) = (Arg::Input(0), yes(), Arg::Const(Scalar::bool(false)));
        let bools = |op, args: &[Arg]| simpler(op, DType::Bool, args);
        assert_eq!(bools(ScalarOp::Not, &[t]), Some(f));
        assert_eq!(bools(ScalarOp::And, &[t, x]), Some(x));
        assert_eq!(bools(ScalarOp::And, &[x, f]), Some(f));
        assert_eq!(bools(ScalarOp::Or, &[x, t]), Some(t));
        assert_eq!(bools(ScalarOp::Or, &[f, x]), Some(x));
        assert_eq!(simpler(ScalarOp::Where, DType::Int8, &[t, x, f]), Some(x));
        let one = Scalar::from_f64(DType::Float32, 1.0);
        assert_eq!(simpler(ScalarOp::Cast, DType::Float32, &[t]), Some(Arg::Const(one)));
        assert_eq!(bools(ScalarOp::And, &[x, x]), None);
    }
}
