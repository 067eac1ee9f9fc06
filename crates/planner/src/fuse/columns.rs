//! Elementwise values over columns of rows: a program outside of any plan.

use super::Fuser;
use super::lower::Lowering;
use crate::config::Config;
use crate::error::Error;
use crate::ir::{Graph, NodeId};
use crate::plan::{Fused, FusedInput, FusedOutput, OutputRef, Plan, StageId};
use crate::view::View;
use std::collections::BTreeMap;

/// Returns the program that stores an elementwise node of columns. Input `k` of the program is `columns[k]`: field 0
/// has its values, field 1 their validity if it can be masked. Inputs that the node does not read are absent.
///
/// The node and the columns have the shape `[1]`; the program runs over any number of rows.
///
/// # Errors
/// [`Error::Broken`] if the node is not an elementwise function of the columns.
pub fn program(graph: &Graph, root: NodeId, columns: &[NodeId]) -> Result<Fused, Error> {
    let (config, uses) = (Config::default(), vec![0u32; graph.len()]);
    let (plan, made) = (Plan::default(), BTreeMap::new());
    let mut fuser = Fuser { graph, config: &config, uses: &uses, plan, made };
    for (k, &column) in columns.iter().enumerate() {
        let from = OutputRef { stage: StageId(k as u32), output: 0 };
        let view = View::identity(graph.node(column).shape.len());
        fuser.made.insert(column, (from, view));
    }
    let shape = graph.node(root).shape.clone();
    let identity = View::identity(shape.len());
    let mut lowering = Lowering::new(&fuser, shape);
    let stored = lowering.stored(root, &identity)?;
    let (program, inputs, read) = lowering.finish();
    let numbered = inputs.into_iter().map(|input| match input {
        FusedInput::Field { input, field } => {
            FusedInput::Field { input: read[input as usize].from.stage.0, field }
        }
        index @ FusedInput::Index { .. } => index,
    });
    let outputs = vec![FusedOutput::Store { value: stored.value, valid: stored.valid }];
    Ok(Fused { program, inputs: numbered.collect(), outputs, batch: None })
}
