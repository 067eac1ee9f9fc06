//! Sessions: temp tensors and settings that outlive a request.
//!
//! `POST /v1/sessions` makes one; the header `Tessera-Session` uses it; it ends after it was idle for
//! `session-timeout`, or with `DELETE`.

use super::Shared;
use super::reply::{Failure, json};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_engine::Engine;
use tessera_engine::error::Error;
use tessera_storage::lock;

/// Upper bound on open sessions.
const SESSIONS_MAX: usize = 1024;
/// The header with the session's id.
pub(super) const HEADER: &str = "tessera-session";

pub(super) struct Sessions {
    known: Mutex<BTreeMap<String, KnownSession>>,
    timeout: Duration,
}

struct KnownSession {
    engine: Arc<dyn Engine>,
    used: Instant,
}

impl Sessions {
    pub(super) fn new(timeout_s: u64) -> Self {
        Sessions { known: Mutex::default(), timeout: Duration::from_secs(timeout_s) }
    }

    fn make(&self, engine: Arc<dyn Engine>) -> Result<String, Error> {
        let mut known = lock(&self.known);
        if known.len() >= SESSIONS_MAX {
            return Err(Error::TooManySessions { limit: SESSIONS_MAX });
        }
        let id = uuid::Uuid::new_v4().simple().to_string();
        known.insert(id.clone(), KnownSession { engine, used: Instant::now() });
        Ok(id)
    }

    /// The engine of a session.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn get(&self, id: &str) -> Result<Arc<dyn Engine>, Error> {
        self.find(id).ok_or_else(|| Error::UnknownSession { id: id.into() })
    }

    /// The engine of a session that has not ended.
    pub(super) fn find(&self, id: &str) -> Option<Arc<dyn Engine>> {
        lock(&self.known).get_mut(id).map(|s| {
            s.used = Instant::now();
            s.engine.clone()
        })
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.known).len()
    }

    /// Ends idle sessions. A session with a queued or running statement is not idle.
    pub(super) fn sweep(&self) {
        let timeout = self.timeout;
        let mut gone = Vec::new();
        {
            let mut known = lock(&self.known);
            known.retain(|_, s| {
                // A queued or running statement holds the engine.
                if Arc::strong_count(&s.engine) > 1 {
                    s.used = Instant::now();
                }
                let keep = s.used.elapsed() < timeout;
                if !keep {
                    gone.push(s.engine.clone());
                }
                keep
            });
        }
        // Temp tensors are freed without the lock.
        drop(gone);
    }
}

/// The session of a request's header, and its engine; without the header a session for this request alone.
pub(super) fn of(
    shared: &Shared,
    headers: &HeaderMap,
) -> Result<(Option<String>, Arc<dyn Engine>), Error> {
    match headers.get(HEADER) {
        None => Ok((None, shared.backend.session())),
        Some(id) => {
            let id = id
                .to_str()
                .map_err(|_| Error::Request { reason: "`Tessera-Session` is not ASCII".into() })?;
            Ok((Some(id.to_string()), shared.sessions.get(id)?))
        }
    }
}

/// `POST /v1/sessions`
pub(super) async fn create(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    shared.is_staying()?;
    let id = shared.sessions.make(shared.backend.session())?;
    let timeout_s = shared.config.session_timeout_s;
    Ok(json(StatusCode::CREATED, &json!({"id": id, "idle_timeout_s": timeout_s})))
}

/// `DELETE /v1/sessions/{id}`: cancels its statements and drops its temp tensors.
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    super::Name(id): super::Name,
) -> Result<Response, Failure> {
    let gone = lock(&shared.sessions.known).remove(&id);
    if gone.is_none() {
        return Err(Error::UnknownSession { id }.into());
    }
    shared.statements.cancel_session(&id).await?;
    Ok(json(StatusCode::OK, &json!({"ok": format!("deleted session {id}")})))
}
