//! The planner for the cell blocks of a statement, also those inside tensor expressions.

use std::any::Any;

use sqlparser::ast::Query;
use tessera_frontend::bind::Context;
use tessera_frontend::cells::{CellPlanner, KeptPositions, Labelled, RowsPlan};
use tessera_frontend::error::Error;
use tessera_frontend::island::RowsToTensor;
use tessera_planner::error::Error as PlanError;
use tessera_planner::optimize::Rooted;

use super::{CellPlan, Density, labelled, relations};
use crate::rows::RowsState;
use crate::tables::Tables;

/// Plans cell blocks over the relations of a statement.
#[derive(Clone, Copy)]
pub struct Planner<'a> {
    /// The tables of rows: those for which [`Catalog::is_rows`](tessera_frontend::Catalog::is_rows) is true.
    pub tables: &'a Tables,
    /// DataFusion's state.
    pub rows: &'a RowsState,
    /// Controls whether the blocks stay dense.
    pub density: Density,
}

impl Planner<'_> {
    /// Plans a cell block. `because` is the clause that made it a cell block.
    ///
    /// # Errors
    /// `unknown_name`, `ambiguous_name`, `ambiguous_dims`, `not_grouped`, `type_error`, `wrong_surface`, `unsupported`
    /// and `plan_error`, with the position of the expression at fault, if it is found; [`Error::Waiting`] if a part of
    /// it must run first.
    pub fn plan(
        &self,
        query: &Query,
        context: &mut Context<'_>,
        because: &str,
    ) -> Result<CellPlan, Error> {
        relations::plan_cells_in(query, 0, context, self, because, false)
    }
}

impl CellPlanner for Planner<'_> {
    fn labelled(
        &self,
        query: &Query,
        text: u64,
        context: &mut Context<'_>,
        because: &str,
    ) -> Result<Labelled, Error> {
        labelled::labelled(query, text, context, self, because)
    }

    fn kept(
        &self,
        query: &Query,
        text: u64,
        context: &mut Context<'_>,
    ) -> Result<Option<Vec<KeptPositions>>, Error> {
        relations::kept_in(query, text, context, self)
    }
}

impl RowsPlan for CellPlan {
    fn graphs(&self) -> Vec<&Rooted> {
        self.scans.iter().map(|scan| &scan.rooted).collect()
    }
}

impl CellPlan {
    /// The plan of a block whose rows become tensors.
    ///
    /// # Errors
    /// [`PlanError::Broken`] if the plan is not from a [`Planner`].
    pub fn of(rows: &RowsToTensor) -> Result<&CellPlan, Error> {
        let plan: &dyn Any = &*rows.plan;
        plan.downcast_ref().ok_or_else(|| Error::Plan {
            error: PlanError::Broken { pass: "cells", reason: "rows have another plan".into() },
            position: None,
        })
    }
}
