//! The operands that run for others, found with boxes and not one by one.
//!
//! ```text
//!   stage 2   ■ ■ ■ ■     assigned                    from the last stage to the first: what the operands of a stage
//!   stage 1   ■ ■ ▫ ▫     ▫ are available: loaded     read runs too, unless it is available
//!   stage 0   ■ ■ . .     . are not needed
//! ```
//! Time grows with the boxes of the sets, except for reshapes.

use super::Bitmap;
use crate::plan::StageId;
use crate::tile::Tiling;

/// The operands that run, and those whose chunks are loaded for them, by stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reached {
    /// Operands that run.
    pub runs: Vec<Bitmap>,
    /// Available operands that are assigned, or that those read.
    pub loads: Vec<Bitmap>,
}

/// Computes the operands that run if some operands are assigned: these, and their inputs, except operands in one of the
/// lists of available operands (by stage).
pub fn reached(
    tiling: &Tiling,
    assigned: &[(StageId, Bitmap)],
    available: &[&[Bitmap]],
) -> Reached {
    let plan = tiling.plan();
    let none = vec![Bitmap::default(); plan.stages.len()];
    let mut found = Reached { runs: none.clone(), loads: none };
    for (stage, operands) in assigned {
        let (s, mut operands) = (stage.0 as usize, operands.clone());
        found.load(s, &mut operands, available);
        found.runs[s].extend(&operands);
    }
    for (s, stage) in plan.stages.iter().enumerate().rev() {
        let id = StageId(s as u32);
        // Inputs precede a stage, except for its own chunks.
        let (own, others): (Vec<usize>, Vec<usize>) =
            (0..stage.inputs.len()).partition(|k| stage.inputs[*k].from.stage == id);
        let mut new = if own.is_empty() { Bitmap::default() } else { found.runs[s].clone() };
        while !new.is_empty() {
            let mut more = Bitmap::default();
            own.iter().for_each(|k| more.extend(&tiling.read_by(id, *k, &new)));
            found.load(s, &mut more, available);
            more.remove_all(&found.runs[s]);
            found.runs[s].extend(&more);
            new = more;
        }
        if found.runs[s].is_empty() {
            continue;
        }
        for k in others {
            let from = stage.inputs[k].from.stage.0 as usize;
            let mut read = tiling.read_by(id, k, &found.runs[s]);
            found.load(from, &mut read, available);
            found.runs[from].extend(&read);
        }
    }
    found
}

impl Reached {
    /// Moves the available operands of `read` to the operands that are loaded.
    fn load(&mut self, stage: usize, read: &mut Bitmap, available: &[&[Bitmap]]) {
        for has in available.iter().filter_map(|all| all.get(stage)) {
            let found = read.and(has);
            read.remove_all(&found);
            self.loads[stage].extend(&found);
        }
    }
}
