//! The admission of a statement: its place among those that run.

use super::{Handle, StatementState};
use crate::error::Error;
use crate::session::{Admission, RunPermit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where a statement waits before it runs what takes more than a moment, and the places that it has.
#[derive(Default)]
pub struct Turn {
    /// One of the server's places for statements that run. Of several plans that begin together one waits for it.
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
    /// The statement needs one of these places while it does what takes more than a moment.
    pub fn needs_one_of(&self, places: Arc<Semaphore>) {
        self.lock().places = Some(places);
    }

    /// The statement runs beside the others that `admission` lets in, or alone.
    pub(crate) fn joins(&self, admission: &Arc<Admission>) {
        self.lock().admission = Some(admission.clone());
    }

    /// The statement was let in.
    pub(crate) fn is_placed(&self, place: RunPermit) {
        self.lock().place = Some(place);
    }

    /// The statement no longer runs beside others.
    pub(crate) fn leave(&self) {
        let place = self.lock().place.take();
        drop(place);
    }

    /// Gives the server's place to another statement.
    pub async fn free(&self) {
        *self.permit.lock().await = None;
    }

    fn lock(&self) -> MutexGuard<'_, TurnState> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Waits until the statement may run what takes more than a moment. It keeps its places until its end.
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

    /// Waits for a turn, as a statement that is QUEUED.
    async fn queued<T>(&self, turn: impl Future<Output = T>) -> Result<T, Error> {
        // A plan of it may have run already.
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
