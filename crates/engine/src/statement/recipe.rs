//! What a statement was bound to: with it the statement can be run again, after whatever failure, and gives the same
//! cells.
//!
//! ```text
//!   script ─▶ steps, one for each statement of it:
//!     clock      the moment and the seed that it was bound with
//!     names      what each name of the catalog stood for
//!     versions   of the files that it opened
//!     read       what it read of them, object by object, and in which versions
//!     workers    how many its plans had: a server that starts again has none at first
//!     intent     what it is about to change for good, written down before it does
//!     done       what it answered, once it has changed something for good: it is not run twice
//! ```
//! A statement notes these while it is bound the first time. Bound again with what was noted, it finds the same.

use crate::error::Error;
use crate::session::{CatalogEntry, Definition};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_storage::source::Read;

/// Everything that a script was bound to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Recipe {
    /// What was SET in its session.
    pub(crate) settings: BTreeMap<String, String>,
    /// The temp tensors of its session that it reads, and those that they were made of, in the order of their making.
    pub(crate) temps: Vec<Arc<Made>>,
    /// One for each statement that began.
    pub(crate) steps: Vec<Step>,
}

/// What one statement of a script was bound to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Microseconds since 1970, and the seed.
    pub(crate) clock: Option<(i64, u64)>,
    /// Names that were looked up, and what they stood for.
    pub(crate) names: BTreeMap<String, Option<CatalogEntry>>,
    /// Arrays and tables outside of the warehouse, and their versions.
    pub(crate) versions: BTreeMap<String, String>,
    /// What it had read of them when it was over.
    #[serde(default)]
    pub(crate) read: Option<Read>,
    /// Workers that its plans had.
    #[serde(default)]
    pub(crate) workers: usize,
    /// What it is about to do.
    pub(crate) intent: Option<Intent>,
    /// What it answered.
    pub(crate) done: Option<String>,
}

/// A change that lasts, just before it is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Intent {
    /// A name is to stand for this; the cells that it stood for before go.
    Define {
        /// The new meaning.
        definition: Definition,
        /// The cells of the old one.
        before: Option<String>,
        /// What it was to stand for when the statement ran before: a server that was killed may have asked for that.
        #[serde(default)]
        tried: Vec<Definition>,
    },
    /// A name is to stand for nothing; it stood for this.
    Drop {
        /// The meaning that goes.
        definition: Definition,
    },
    /// A file or store appears.
    Publish {
        /// Its URL.
        target: String,
    },
}

impl Intent {
    /// Cells that were made for it.
    fn made(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            Intent::Define { definition, tried, .. } => Some((definition, tried)),
            Intent::Drop { .. } | Intent::Publish { .. } => None,
        };
        all.into_iter()
            .flat_map(|(last, tried)| tried.iter().chain([last]))
            .filter_map(|d| d.data())
    }
}

/// How a temp tensor was made.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    /// Its number among all of the process.
    pub(crate) number: u64,
    /// The statement.
    pub(crate) sql: String,
    /// What was SET then.
    pub(crate) settings: BTreeMap<String, String>,
    /// What it was bound to.
    pub(crate) step: Step,
    /// Those that it read. A list of all that are needed has them by themselves.
    #[serde(skip)]
    pub(crate) from: Vec<Arc<Made>>,
}

/// Who writes a recipe down.
pub trait Keeper: Send + Sync {
    /// Writes down what is known now, if the statement is one that is to survive; it is on the device when this is
    /// over.
    fn keep(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Writes down that somebody stopped the statement, unless its end is written already: no later server runs it
    /// again.
    fn stopped(&self) -> BoxFuture<'_, Result<(), Error>>;
}

impl Recipe {
    /// The step with that number, from 0, made if it is new.
    pub(super) fn step(&mut self, at: usize) -> &mut Step {
        while self.steps.len() <= at {
            self.steps.push(Step::default());
        }
        &mut self.steps[at]
    }

    /// Adds a temp tensor that is read, and all that it was made of.
    pub(super) fn uses(&mut self, made: &Arc<Made>) {
        match self.temps.binary_search_by_key(&made.number, |m| m.number) {
            Ok(_) => {}
            Err(at) => {
                self.temps.insert(at, made.clone());
                made.from.iter().for_each(|m| self.uses(m));
            }
        }
    }

    /// Cells that it made in the warehouse, for names that it is about to give.
    pub(crate) fn made(&self) -> impl Iterator<Item = &str> {
        let intents = self.steps.iter().filter_map(|s| s.intent.as_ref());
        intents.flat_map(Intent::made)
    }

    /// Cells in the warehouse that it names.
    pub fn data(&self) -> impl Iterator<Item = &str> {
        let steps = self.steps.iter().chain(self.temps.iter().map(|m| &m.step));
        steps.flat_map(|s| s.names.values()).flatten().filter_map(|e| e.definition.data())
    }
}
