//! What a statement was bound to: its recipe. With its recipe a statement can run again after any failure and return
//! the same cells.
//!
//! ```text
//!   script ─▶ steps, one for each statement of it:
//!     clock      the time and the seed that it was bound with
//!     names      the entry of each name of the catalog
//!     versions   of the files that it opened
//!     read       the objects that it read of them, and their versions
//!     workers    number of workers of its plans: a restarted server has none at first
//!     intent     the durable change that it is about to make, written before the change
//!     done       its answer, once it has made a durable change: it does not run twice
//! ```
//! A statement notes these values while it is bound for the first time. When it is bound again, it uses its notes and
//! finds the same.

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
    /// The values that were SET in its session.
    pub(crate) settings: BTreeMap<String, String>,
    /// The temp tensors of its session that the script reads, and the temp tensors that these were made from, in the
    /// order of their creation.
    pub(crate) temps: Vec<Arc<Made>>,
    /// One for each statement that began.
    pub(crate) steps: Vec<Step>,
    /// True if the script may read uploads of its client, which end with the server.
    #[serde(default)]
    pub(crate) uploads: bool,
}

/// Everything that one statement of a script was bound to.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Microseconds since 1970, and the seed.
    pub(crate) clock: Option<(i64, u64)>,
    /// Names that were looked up, and their entries.
    pub(crate) names: BTreeMap<String, Option<CatalogEntry>>,
    /// Arrays and tables outside of the warehouse, and their versions.
    pub(crate) versions: BTreeMap<String, String>,
    /// The versions that it had read by its end.
    #[serde(default)]
    pub(crate) read: Option<Read>,
    #[serde(default)]
    pub(crate) workers: usize,
    /// The change that it is about to make.
    pub(crate) intent: Option<Intent>,
    /// Its answer.
    pub(crate) done: Option<String>,
}

/// A durable change, just before it is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Intent {
    /// A name gets a definition; the cells of its old definition are removed.
    Define {
        definition: Definition,
        /// The cells of the old one.
        before: Option<String>,
        /// Definitions that earlier runs of the statement tried: a killed server may have sent the put.
        #[serde(default)]
        tried: Vec<Definition>,
    },
    /// The entry of a name is removed.
    Drop { definition: Definition },
    /// A file or store appears.
    Publish {
        /// The URL of the output.
        target: String,
    },
    /// A store grows.
    Append {
        /// The mark of the append in the list of the store.
        mark: String,
        /// Cells along the dimension before.
        before: u64,
    },
}

impl Intent {
    /// The new cells.
    fn made(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            Intent::Define { definition, tried, .. } => Some((definition, tried)),
            Intent::Drop { .. } | Intent::Publish { .. } | Intent::Append { .. } => None,
        };
        all.into_iter()
            .flat_map(|(last, tried)| tried.iter().chain([last]))
            .filter_map(|d| d.data())
    }
}

/// How a temp tensor was created.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    /// Its number, unique in the process.
    pub(crate) number: u64,
    pub(crate) sql: String,
    /// The values that were SET at that time.
    pub(crate) settings: BTreeMap<String, String>,
    /// Everything that the statement was bound to.
    pub(crate) step: Step,
    /// True if it is an upload, or was made from one.
    #[serde(default)]
    pub(crate) uploaded: bool,
    /// The temp tensors that it read. Not stored, because a recipe lists all of them.
    #[serde(skip)]
    pub(crate) from: Vec<Arc<Made>>,
}

impl Made {
    /// An upload, which no statement created.
    pub(crate) fn uploaded(number: u64) -> Self {
        Made {
            number,
            sql: String::new(),
            settings: BTreeMap::new(),
            step: Step::default(),
            uploaded: true,
            from: Vec::new(),
        }
    }
}

/// Writes recipes to the journal.
pub trait Keeper: Send + Sync {
    /// Writes the current recipe, if the statement is one that survives the server. The recipe is on the device when
    /// this returns.
    fn keep(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Records that a client stopped the statement, unless its end is already recorded: no later server runs it again.
    fn stopped(&self) -> BoxFuture<'_, Result<(), Error>>;
}

impl Recipe {
    /// The step with that index, created if it is new.
    pub(super) fn step(&mut self, at: usize) -> &mut Step {
        while self.steps.len() <= at {
            self.steps.push(Step::default());
        }
        &mut self.steps[at]
    }

    /// Adds a temp tensor that is read, and all that it was made from.
    pub(super) fn uses(&mut self, made: &Arc<Made>) {
        match self.temps.binary_search_by_key(&made.number, |m| m.number) {
            Ok(_) => {}
            Err(at) => {
                self.temps.insert(at, made.clone());
                made.from.iter().for_each(|m| self.uses(m));
            }
        }
    }

    /// True if it cannot run without uploads, which end with the server.
    pub(crate) fn reads_uploads(&self) -> bool {
        self.uploads || self.temps.iter().any(|made| made.uploaded)
    }

    /// Cells that it made in the warehouse, for names that it is about to define.
    pub(crate) fn made(&self) -> impl Iterator<Item = &str> {
        let intents = self.steps.iter().filter_map(|s| s.intent.as_ref());
        intents.flat_map(Intent::made)
    }

    /// Cells in the warehouse that its names refer to.
    pub fn data(&self) -> impl Iterator<Item = &str> {
        let steps = self.steps.iter().chain(self.temps.iter().map(|m| &m.step));
        steps.flat_map(|s| s.names.values()).flatten().filter_map(|e| e.definition.data())
    }
}
