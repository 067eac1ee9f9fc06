//! The fallible expressions in the parts of a condition, with the guards of the first part that has each.
//!
//! ```text
//! s ~ '^[0-9]+$' AND s::int > 5 AND s::int < 9
//! ```
//! Where the guards of the first cast hold, the cast does not fail, so the second one does not either, and `s::int > 5`
//! need not guard it. Otherwise each part of a chain would contain all parts before it.

use std::collections::{BTreeSet, HashMap};

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::Expr;

use super::fallible::may_fail;
use super::is_guard;
use crate::walk::Walk;

#[derive(Default)]
pub(super) struct Seen {
    stages: Vec<Stage>,
    /// The stage at which an expression was evaluated first.
    first: HashMap<Expr, usize>,
}

struct Stage {
    guards: Vec<Expr>,
    /// False if guards of other relations were left out. A stage with all guards is stronger than those before it.
    has_all: bool,
}

impl Seen {
    /// Guards that suffice for these expressions, because parts before were evaluated with them.
    pub(super) fn guards(&self, risks: &[Expr]) -> Option<Vec<Expr>> {
        let mut stages = BTreeSet::new();
        for risk in risks {
            stages.insert(*self.first.get(risk)?);
        }
        let stages: Vec<&Stage> = stages.iter().filter_map(|at| self.stages.get(*at)).collect();
        let strongest = stages.iter().rposition(|stage| stage.has_all).unwrap_or(0);
        let mut guards: Vec<Expr> = Vec::new();
        for guard in stages.get(strongest..)?.iter().flat_map(|stage| &stage.guards) {
            if !guards.contains(guard) {
                guards.push(guard.clone());
            }
        }
        (!stages.is_empty()).then_some(guards)
    }

    pub(super) fn add(&mut self, risks: Vec<Expr>, guards: Vec<Expr>, has_all: bool) {
        if risks.is_empty() {
            return;
        }
        let stage = self.stages.len();
        self.stages.push(Stage { guards, has_all });
        for risk in risks {
            self.first.entry(risk).or_insert(stage);
        }
    }
}

/// Expressions of a part that may fail; empty if the part evaluates something only for some of its rows.
pub(super) fn risks(part: &Expr, schema: &DFSchema) -> Result<Vec<Expr>> {
    let mut risks = Vec::new();
    let mut is_whole = true;
    part.each(|e| {
        is_whole = match e {
            Expr::Case(_) | Expr::Lambda(_) => false,
            Expr::ScalarFunction(call) => call.func.conditional_arguments(&call.args).is_none(),
            e => !is_guard(e),
        };
        if is_whole && may_fail(e, schema) {
            risks.push(e.clone());
        }
        Ok(if is_whole { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    if !is_whole {
        risks.clear();
    }
    Ok(risks)
}
