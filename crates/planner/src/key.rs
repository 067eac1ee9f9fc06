//! Identity of a chunk as a hash of the plan below it and of the versions of the arrays that the plan reads.
//!
//! ```text
//!   stage key  = hash(KERNELS, task, grid, outputs, [(key of the stage read, its output, access)])
//!   chunk      = (stage key, number of the operand)
//! ```
//! Stage numbers are not hashed, so the same computation has the same key in every plan. Any other constant, grid,
//! seed, type, access or version changes the key. Chunks that outlive their statement's run are found again by these
//! keys ([`crate::recover`]).
//!
//! A stage has a key only if everything below it has one. A stored array has a key only with a
//! [version](crate::catalog::SourceRef::version). The name of an array in memory (`temp:…`) is meaningless to another
//! process, so only its version is hashed: the creator of such an array sets a version that identifies its cells.

use crate::catalog::SourceRef;
use crate::plan::{Access, OutputRef, Plan, Stage, StageId, Task};
use serde::{Deserialize, Serialize};
use std::fmt;

mod hash;

/// Version of all code that computes cells. Increment it with any change to the bits of a kernel: chunks stored under
/// the previous version are then no longer found, and a server does not accept workers that have another version.
pub const KERNELS: u32 = 6;

/// Identity of a stage's output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StageKey([u8; 16]);

impl StageKey {
    /// Returns the key of any value, a version for cells computed from it. `None` for a value without a serde form.
    pub fn of(value: &impl Serialize) -> Option<StageKey> {
        hash::of(value)
    }
}

impl fmt::Display for StageKey {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for StageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys of a plan's stages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    stages: Vec<Option<StageKey>>,
    results: Vec<OutputRef>,
}

impl Keys {
    /// Hashes a plan, each stage once. The cost grows with the plan and its constants, not with the chunks.
    pub fn of(plan: &Plan) -> Keys {
        let mut stages: Vec<Option<StageKey>> = Vec::with_capacity(plan.stages.len());
        for stage in &plan.stages {
            stages.push(stage_key(stage, &stages));
        }
        Keys { stages, results: plan.results.clone() }
    }

    /// Returns the key of a stage; `None` if something below it has no version.
    pub fn stage(&self, stage: StageId) -> Option<StageKey> {
        self.stages.get(stage.0 as usize).copied().flatten()
    }

    /// The stages that have a key, with their keys.
    pub fn keyed(&self) -> impl Iterator<Item = (StageId, StageKey)> + '_ {
        (0..).map(StageId).zip(&self.stages).filter_map(|(stage, key)| Some((stage, (*key)?)))
    }

    /// Returns the key of one output of a stage.
    pub fn output(&self, of: OutputRef) -> Option<StageKey> {
        hash::of(&("output", self.stage(of.stage)?.0, of.output))
    }

    /// Returns the key of a result: a version for the array computed from it.
    pub fn result(&self, number: usize) -> Option<StageKey> {
        self.output(*self.results.get(number)?)
    }
}

/// Origin of an input: another stage, or the stage itself for a carry.
#[derive(Serialize)]
enum From {
    Stage([u8; 16]),
    Itself,
}

/// An access; of positions, of which there may be millions, their hash.
#[derive(Serialize)]
enum Reads<'a> {
    By(&'a Access),
    Taken { axis: usize, count: usize, positions: [u8; 16] },
}

fn stage_key(stage: &Stage, below: &[Option<StageKey>]) -> Option<StageKey> {
    let mut inputs: Vec<(From, u32, Reads<'_>)> = Vec::with_capacity(stage.inputs.len());
    for input in &stage.inputs {
        let from = match below.get(input.from.stage.0 as usize) {
            Some(key) => From::Stage((*key)?.0),
            None => From::Itself,
        };
        let reads = match &input.access {
            Access::Take { axis, positions } => Reads::Taken {
                axis: *axis,
                count: positions.len(),
                positions: hash::of_numbers(positions),
            },
            access => Reads::By(access),
        };
        inputs.push((from, input.from.output, reads));
    }
    let rest = (&stage.grid, &stage.outputs, inputs);
    match &stage.task {
        Task::Load { source, origin } => {
            source.version.as_ref()?;
            match source.is_resident() {
                true => hash::of(&(KERNELS, "resident", resident(source), origin, rest)),
                false => hash::of(&(KERNELS, "load", source, origin, rest)),
            }
        }
        task => hash::of(&(KERNELS, "task", task, rest)),
    }
}

/// An array in memory without its name.
fn resident(source: &SourceRef) -> impl Serialize + '_ {
    let SourceRef { url: _, path: _, dtype, shape, grid, nullable, version, plain: _ } = source;
    (dtype, shape, grid, nullable, version)
}

#[cfg(test)]
mod tests;
