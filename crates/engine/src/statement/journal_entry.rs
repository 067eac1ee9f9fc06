//! The journal entry of a statement in the making: its recipe, who writes it down, and what it pins.

use super::recipe::{Keeper, Made, Recipe, Step};
use crate::error::Error;
use crate::session::Pin;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is written down of a statement, so that it can be run again.
#[derive(Default)]
pub struct JournalEntry {
    /// True if the statement ran before, and the recipe is of then.
    again: bool,
    state: Mutex<EntryState>,
}

#[derive(Default)]
struct EntryState {
    /// Number of the statement of the script that runs, from 0.
    at: usize,
    recipe: Recipe,
    keeper: Option<Arc<dyn Keeper>>,
    pins: Vec<Pin>,
}

impl JournalEntry {
    pub(super) fn new(recipe: Recipe, again: bool) -> Self {
        JournalEntry { again, state: Mutex::new(EntryState { recipe, ..EntryState::default() }) }
    }

    /// True if the statement ran before.
    pub(super) fn is_again(&self) -> bool {
        self.again
    }

    /// The statement of the script with that number, from 0, begins.
    pub(super) fn begin(&self, at: usize) {
        self.lock().at = at;
    }

    /// Number of the statement of the script that runs, from 0.
    pub(super) fn at(&self) -> usize {
        self.lock().at
    }

    /// What the statement of the script that runs was bound to, to be read or added to.
    pub(crate) fn step<T>(&self, f: impl FnOnce(&mut Step) -> T) -> T {
        let state = &mut *self.lock();
        f(state.recipe.step(state.at))
    }

    /// What the script was bound to until now.
    pub fn recipe(&self) -> Recipe {
        self.lock().recipe.clone()
    }

    /// What it was bound to when it ran before.
    pub(crate) fn before(&self) -> Option<Recipe> {
        self.again.then(|| self.recipe())
    }

    /// Notes the settings of the session, as the script begins.
    pub(crate) fn set(&self, settings: BTreeMap<String, String>) {
        self.lock().recipe.settings = settings;
    }

    /// Notes that a temp tensor is read.
    pub(crate) fn uses(&self, made: &Arc<Made>) {
        self.lock().recipe.uses(made);
    }

    /// From now on `keeper` writes the entry down before anything is changed for good.
    pub fn kept_by(&self, keeper: Arc<dyn Keeper>) {
        self.lock().keeper = Some(keeper);
    }

    /// Writes down what is known now, if the statement is one that survives its server.
    ///
    /// # Errors
    /// Whatever storage says: then nothing may be changed.
    pub(crate) async fn keep(&self) -> Result<(), Error> {
        let keeper = self.lock().keeper.clone();
        match keeper {
            Some(keeper) => keeper.keep().await,
            None => Ok(()),
        }
    }

    /// Writes down that the statement was stopped, so that no later server runs it again.
    pub(super) async fn stopped(&self) -> Result<(), Error> {
        let keeper = self.lock().keeper.clone();
        match keeper {
            Some(keeper) => keeper.stopped().await,
            None => Ok(()),
        }
    }

    /// Cells of the warehouse are retained as long as the statement may read them.
    pub fn pin(&self, pin: Pin) {
        self.lock().pins.push(pin);
    }

    /// Releases what was pinned until now.
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
