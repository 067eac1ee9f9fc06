//! The journal entry of an unfinished statement: its recipe, its keeper, and its pins.

use super::recipe::{Keeper, Made, Recipe, Step};
use crate::error::Error;
use crate::session::Pin;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The journal entry of a statement, which allows to run it again.
#[derive(Default)]
pub struct JournalEntry {
    /// True if the statement is recovered; the recipe is that of its earlier run.
    again: bool,
    state: Mutex<EntryState>,
}

#[derive(Default)]
struct EntryState {
    /// Index of the running statement of the script.
    at: usize,
    recipe: Recipe,
    keeper: Option<Arc<dyn Keeper>>,
    pins: Vec<Pin>,
}

impl JournalEntry {
    pub(super) fn new(recipe: Recipe, again: bool) -> Self {
        JournalEntry { again, state: Mutex::new(EntryState { recipe, ..EntryState::default() }) }
    }

    pub(super) fn is_again(&self) -> bool {
        self.again
    }

    /// Begins the statement of the script with index `at`.
    pub(super) fn begin(&self, at: usize) {
        self.lock().at = at;
    }

    /// Index of the running statement of the script.
    pub(super) fn at(&self) -> usize {
        self.lock().at
    }

    /// Reads or changes the step of the running statement of the script.
    pub(crate) fn step<T>(&self, f: impl FnOnce(&mut Step) -> T) -> T {
        let state = &mut *self.lock();
        f(state.recipe.step(state.at))
    }

    /// The recipe of the script so far.
    pub fn recipe(&self) -> Recipe {
        self.lock().recipe.clone()
    }

    /// The recipe of the earlier run.
    pub(crate) fn before(&self) -> Option<Recipe> {
        self.again.then(|| self.recipe())
    }

    /// Notes the settings of the session at the begin of the script.
    pub(crate) fn set(&self, settings: BTreeMap<String, String>) {
        self.lock().recipe.settings = settings;
    }

    /// Notes that a temp tensor is read.
    pub(crate) fn uses(&self, made: &Arc<Made>) {
        self.lock().recipe.uses(made);
    }

    /// Notes that the script may read uploads.
    pub fn reads_uploads(&self) {
        self.lock().recipe.uploads = true;
    }

    /// Sets the keeper, which writes the entry before each durable change.
    pub fn kept_by(&self, keeper: Arc<dyn Keeper>) {
        self.lock().keeper = Some(keeper);
    }

    /// Writes the entry, if the statement survives its server.
    ///
    /// # Errors
    /// Errors of storage: then nothing may be changed.
    pub(crate) async fn keep(&self) -> Result<(), Error> {
        let keeper = self.lock().keeper.clone();
        match keeper {
            Some(keeper) => keeper.keep().await,
            None => Ok(()),
        }
    }

    /// Records that the statement was stopped, so that no later server runs it again.
    pub(super) async fn stopped(&self) -> Result<(), Error> {
        let keeper = self.lock().keeper.clone();
        match keeper {
            Some(keeper) => keeper.stopped().await,
            None => Ok(()),
        }
    }

    /// Retains cells of the warehouse while the statement may read them.
    pub fn pin(&self, pin: Pin) {
        self.lock().pins.push(pin);
    }

    /// Releases all pins.
    pub async fn unpin(&self) {
        let pins = std::mem::take(&mut self.lock().pins);
        for pin in pins {
            pin.release().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, EntryState> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
