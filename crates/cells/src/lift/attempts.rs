//! The attempts to plan a query: more than one where the first one fails.

use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use sqlparser::ast::Query;

use super::blame::Outcome;
use super::names::Prepared;
use super::using::Stars;
use super::{Form, Lift, Planned, Sites, blame, error};
use tessera_frontend::error::Error;
use tessera_planner::config::Config;

impl<'a> Lift<'a> {
    pub(super) fn new(state: &'a SessionState, config: &'a Config, form: Form) -> Self {
        let (scans, notes, sites) = (Vec::new(), Vec::new(), Sites::default());
        Lift { state, config, form, scans, notes, sites }
    }
}

impl Lift<'_> {
    /// The plan of a prepared query. `as_tensors`: see [`Form`].
    pub(super) fn planned(
        &mut self,
        query: Query,
        prepared: &Prepared,
        because: &str,
        as_tensors: bool,
    ) -> Result<Planned, Error> {
        let written = query.clone();
        let (scans, notes) = (self.scans.len(), self.notes.len());
        let mut stars = Stars::Kept;
        let error = match self.attempt(query, prepared, because, as_tensors, stars) {
            Ok(planned) => return Ok(planned),
            Err(error) => error,
        };
        // An item may have the name of a column of `*`.
        let error = match error.code() {
            "ambiguous_name" | "duplicate_name" => {
                self.scans.truncate(scans);
                self.notes.truncate(notes);
                let listed = Stars::Listed;
                match self.attempt(written.clone(), prepared, because, as_tensors, listed) {
                    Ok(planned) => return Ok(planned),
                    // Relations that refer to columns of others cannot be listed by themselves.
                    Err(other) if other.code() == "unknown_name" => error,
                    Err(other) => {
                        stars = listed;
                        other
                    }
                }
            }
            _ => error,
        };
        if !error::wants_position(&error) {
            return Err(error);
        }
        let text = error.to_string();
        let mut plan = |query: Query| {
            let mut lift = Lift::new(self.state, self.config, self.form);
            match lift.attempt(query, prepared, because, as_tensors, stars) {
                Ok(_) => Outcome::Planned,
                Err(e) if e.code() == error.code() && e.to_string() == text => Outcome::SameError,
                Err(_) => Outcome::OtherError,
            }
        };
        match blame::position(&written, &mut plan) {
            Some(position) => Err(error.moved(Some(position))),
            None => Err(error),
        }
    }
}

/// Converts an error of DataFusion for a prepared query, and adds its position.
pub(super) fn told(e: DataFusionError, prepared: &Prepared, state: &SessionState) -> Error {
    let call = error::name_in(&e);
    let error = error::of_text(error::plan(e), &prepared.texts);
    error::placed(error, call.as_deref(), &prepared.calls, state)
}
