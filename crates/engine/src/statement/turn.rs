//! The admission of a statement.

use super::{Handle, StatementState};
use crate::error::Error;
use crate::session::{Admission, RunPermit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The queue in which a statement waits before work that takes more than a moment, and its permits.
#[derive(Default)]
pub struct Turn {
    /// A permit of the server to run. Of several plans that begin together one waits for it.
    permit: tokio::sync::Mutex<Option<OwnedSemaphorePermit>>,
    state: Mutex<TurnState>,
}

#[derive(Default)]
struct TurnState {
    places: Option<Arc<Semaphore>>,
    admission: Option<Arc<Admission>>,
    place: Option<RunPermit>,
}

impl Turn {
    /// Requires one of these permits for work that takes more than a moment.
    pub fn needs_one_of(&self, places: Arc<Semaphore>) {
        self.lock().places = Some(places);
    }

    /// Lets `admission` admit the statement: to run among others, or alone.
    pub(crate) fn joins(&self, admission: &Arc<Admission>) {
        self.lock().admission = Some(admission.clone());
    }

    /// Stores the permit of a statement that was admitted.
    pub(crate) fn is_placed(&self, place: RunPermit) {
        self.lock().place = Some(place);
    }

    /// Releases the permit to run among others.
    pub(crate) fn leave(&self) {
        let place = self.lock().place.take();
        drop(place);
    }

    /// Releases the server's permit to another statement.
    pub async fn free(&self) {
        *self.permit.lock().await = None;
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Waits until the statement may run work that takes more than a moment. It holds its permits until its end.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub(crate) async fn take_place(&self) -> Result<(), Error> {
        let turn = self.turn();
        let mut permit = turn.permit.lock().await;
        let (places, admission) = {
            let state = turn.lock();
            (
                state.places.clone().filter(|_| permit.is_none()),
                state.admission.clone().filter(|_| state.place.is_none()),
            )
        };
        if let Some(places) = places {
            *permit = match places.clone().try_acquire_owned() {
                Ok(free) => Some(free),
                Err(_) => self.queued(places.acquire_owned()).await?.ok(),
            };
        }
        if let Some(admission) = admission {
            let place = match admission.try_join() {
                Some(place) => place,
                None => self.queued(admission.join()).await?,
            };
            turn.is_placed(place);
        }
        Ok(())
    }

    /// Waits for `turn` as a QUEUED statement.
    pub(crate) async fn queued<T>(&self, turn: impl Future<Output = T>) -> Result<T, Error> {
        // One of its plans may have run already.
        self.move_to(StatementState::Planning);
        self.move_to(StatementState::Queued);
        let turn = self.clock().waits_for(async {
            tokio::select! {
                biased;
                () = self.cancelled() => Err(Error::Cancelled),
                turn = turn => Ok(turn),
            }
        });
        let turn = turn.await;
        self.move_to(StatementState::Planning);
        turn
    }
}
