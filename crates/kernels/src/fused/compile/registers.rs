//! Register allocation.

use super::{
    Body, Check, Compiled, Index, InputSlot, InputSource, Ins, Out, OutputSlot, StatePart,
};
use super::{PartSlot, ReduceSlot, Slot, TailSlot, Val, name};
use crate::ops::{self, N, TILES, TileOp};
use crate::{KernelError, stream, unsupported};
use std::collections::BTreeMap;
use tessera_planner::dtype::DType;
use tessera_planner::plan::{Fused, FusedInput};
use tessera_planner::scalar::Scalar;

const BLOCK_BYTES: usize = 16 << 10;

impl Body {
    /// Assigns a register to every live value in order; registers are reused after their last reader.
    pub(super) fn allocate(self, fused: &Fused, outs: Vec<Out>) -> Result<Compiled, KernelError> {
        let keep = self.looked_at(&outs);
        let mut uses = self.uses(&outs);
        let mut slots = Slots::new(&self, fused);
        // Stores have slots of their own, which point into the output.
        let mut store_slots: Vec<Slot> = Vec::new();
        for o in &outs {
            if let Out::Store { value, valid } = o {
                for v in [Some(*value), *valid].into_iter().flatten() {
                    let slot = slots.fresh()?;
                    store_slots.push(slot);
                    if let Val::Node(_) = v {
                        slots.known.entry(v).or_insert(slot);
                    }
                }
            }
        }
        let mut code = Vec::new();
        let mut index_of = vec![0usize; self.nodes.len()];
        for (i, n) in self.nodes.iter().enumerate() {
            if uses[i] == 0 {
                continue;
            }
            let (f, imm) = ops::pick(n.op, n.arg, n.dtype, self.level)
                .ok_or_else(|| unsupported(name(n.op), n.arg))?;
            let mut s = [0; 3];
            for (k, a) in n.args.iter().enumerate() {
                s[k] = slots.of(*a)?;
            }
            // Pointers that an operation does not read must still point somewhere.
            for k in n.args.len()..3 {
                s[k] = s[0];
            }
            // The destination is assigned before the sources are released, so it differs from them.
            let d = match slots.known.get(&Val::Node(i)) {
                Some(d) => *d,
                None => slots.take()?,
            };
            slots.known.insert(Val::Node(i), d);
            for a in &n.args {
                if let Val::Node(j) = a {
                    uses[*j] -= 1;
                    if uses[*j] == 0 && !keep[*j] {
                        let free = slots.of(*a)?;
                        slots.free.push(free);
                    }
                }
            }
            index_of[i] = code.len();
            code.push(Ins { f, d, a: s[0], b: s[1], c: s[2], imm });
        }
        let mut checks = Vec::new();
        for (v, error) in &self.checks {
            checks.push(Check { slot: slots.of(*v)?, error: error.clone() });
        }
        let mut stores = store_slots.into_iter();
        let mut outputs = Vec::new();
        for o in outs {
            outputs.push(match o {
                Out::Store { value, valid } => {
                    let mut fields = Vec::new();
                    for v in [Some(value), valid].into_iter().flatten() {
                        let Some(d) = stores.next() else { continue };
                        let dtype = self.dtype(v);
                        let from = slots.of(v)?;
                        if from != d {
                            // An input, a constant, or a value that is stored elsewhere too.
                            let (f, imm) = ops::pick(TileOp::Copy, dtype, dtype, self.level)
                                .ok_or_else(|| unsupported("copy", dtype))?;
                            code.push(Ins { f, d, a: from, b: from, c: from, imm });
                        }
                        fields.push((d, dtype));
                    }
                    OutputSlot::Store(fields)
                }
                Out::Reduce { slot, parts } => {
                    let parts = parts.iter().map(|p| slots.part(p, &index_of));
                    let parts = parts.collect::<Result<_, _>>()?;
                    OutputSlot::Reduce(Box::new(ReduceSlot { parts, ..slot }))
                }
            });
        }
        Ok(Compiled {
            rank: self.rank,
            slots: slots.next as usize,
            inputs: slots.inputs,
            consts: slots.consts,
            code,
            checks,
            outputs,
            block: block(slots.next as usize),
            stream: stream::copy(self.level),
            fields: fused.inputs.iter().filter(|i| matches!(i, FusedInput::Field { .. })).count(),
        })
    }

    /// Marks nodes that are read after a tile has run, and so must not be overwritten within it.
    fn looked_at(&self, outs: &[Out]) -> Vec<bool> {
        let mut keep = vec![false; self.nodes.len()];
        let mut see = |v: Val| {
            if let Val::Node(i) = v {
                keep[i] = true;
            }
        };
        self.roots(outs).into_iter().for_each(&mut see);
        for o in outs {
            let Out::Reduce { parts, .. } = o else { continue };
            for t in parts.iter().filter_map(|p| p.tail.as_ref()) {
                [t.value, t.beside].into_iter().for_each(&mut see);
            }
        }
        keep
    }
}

/// Number of tiles of a block: as many as fit a program's registers into half of the first-level cache.
fn block(slots: usize) -> usize {
    let fit = BLOCK_BYTES / (slots.max(1) * N * 8);
    [8, 4, 2].into_iter().find(|k| *k <= fit.min(TILES)).unwrap_or(1)
}

/// Slots of the values.
struct Slots<'a> {
    body: &'a Body,
    fused: &'a Fused,
    next: Slot,
    free: Vec<Slot>,
    known: BTreeMap<Val, Slot>,
    inputs: Vec<InputSlot>,
    consts: Vec<(Slot, Vec<Scalar>)>,
}

impl<'a> Slots<'a> {
    fn new(body: &'a Body, fused: &'a Fused) -> Self {
        Slots {
            body,
            fused,
            next: 0,
            free: Vec::new(),
            known: BTreeMap::new(),
            inputs: Vec::new(),
            consts: Vec::new(),
        }
    }

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

    /// Returns the slot of a value: a node's was assigned before, others get one on first use.
    fn of(&mut self, v: Val) -> Result<Slot, KernelError> {
        if let Some(s) = self.known.get(&v) {
            return Ok(*s);
        }
        let slot = self.fresh()?;
        self.known.insert(v, slot);
        match v {
            Val::Node(_) => {}
            Val::Const(c) => self.consts.push((slot, vec![self.body.consts[c]])),
            Val::Table(t) => self.consts.push((slot, self.body.tables[t].clone())),
            Val::Input(i) => {
                let source = match &self.fused.inputs[i] {
                    FusedInput::Index { .. } => self.index(i, false),
                    FusedInput::Field { .. } => self.field(i, self.body.inputs[i]),
                };
                self.inputs.push(InputSlot { slot, source });
            }
            Val::Counted(i) => {
                let source = self.index(i, true);
                self.inputs.push(InputSlot { slot, source });
            }
        }
        Ok(slot)
    }

    /// Returns input `i` as a field among the inputs of a run.
    fn field(&self, i: usize, dtype: DType) -> InputSource {
        let before = &self.fused.inputs[..i];
        let fields = before.iter().filter(|f| matches!(f, FusedInput::Field { .. }));
        InputSource::Field(fields.count(), dtype)
    }

    fn index(&self, i: usize, floats: bool) -> InputSource {
        let (offset, strides) = match &self.fused.inputs[i] {
            FusedInput::Index { offset, strides } => (*offset, strides.to_vec()),
            FusedInput::Field { .. } => (0, Vec::new()),
        };
        let count = ops::iota(floats, self.body.level);
        InputSource::Index(Index { offset, strides, floats, count })
    }

    fn part(&mut self, p: &StatePart, index_of: &[usize]) -> Result<PartSlot, KernelError> {
        let tail = match (&p.tail, p.fns.tails) {
            (Some(t), Some(fns)) => Some(TailSlot {
                fns: fns(t.tail, self.body.level),
                instead: t.instead.iter().map(|i| index_of[*i]).collect(),
                value: self.of(t.value)?,
                beside: self.of(t.beside)?,
                parameter: t.parameter,
            }),
            _ => None,
        };
        Ok(PartSlot {
            fns: p.fns,
            first_field: p.fields.0,
            value: self.of(p.value)?,
            valid: p.valid.map(|v| self.of(v)).transpose()?,
            tail,
        })
    }
}
