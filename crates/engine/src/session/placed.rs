//! Errors of rows with the position of the expression that has them: operators know no positions.

use crate::error::{Class, Error, Position, Report};
use std::error::Error as StdError;
use std::fmt;
use tessera_cells::lift::Sites;

/// The error with the position of the only expression of its query that can have it.
pub(super) fn placed(error: Error, sites: &Sites) -> Error {
    if error.position().is_some() || !matches!(error.code(), "division_by_zero" | "execution") {
        return error;
    }
    match sites.position(&error.to_string()) {
        Some(position) => Error::stage(Placed { error, position }),
        None => error,
    }
}

#[derive(Debug)]
struct Placed {
    error: Error,
    position: Position,
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl StdError for Placed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

impl Report for Placed {
    fn code(&self) -> &str {
        self.error.code()
    }

    fn class(&self) -> Class {
        self.error.class()
    }

    fn hint(&self) -> Option<String> {
        self.error.hint()
    }

    fn position(&self) -> Option<Position> {
        Some(self.position)
    }

    fn may_fit(&self) -> bool {
        self.error.may_fit()
    }
}
