//! `/v1/statements`: submit, watch, read, cancel.

use super::registry::{Entry, Outcome, is_left_to_next};
use super::reply::{Failure, json};
use super::stream::{self, Out};
use super::{Name, Parameters, Shared, body, sessions};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::Format;
use tessera_engine::locals::Locals;
use tessera_engine::statement::StatementState;
use tessera_engine::{Engine, Handle};

/// The default wait of a request.
const WAIT_MS: u64 = 10_000;
/// Upper bound on the wait of a request: a proxy would time out.
const WAIT_MS_MAX: u64 = 60_000;
/// Upper bound on the size of an inline result in bytes.
const INLINE_BYTES: u64 = 1 << 20;
/// Upper bound on the characters of a `request_id`.
const REQUEST_ID_MAX: usize = 200;
/// How long a request with a `request_id` waits for a server that has just started to know its statements.
const STARTING_MAX: Duration = Duration::from_secs(2);
/// Interval between progress events.
const EVENT_EVERY: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submit {
    sql: String,
    params: Option<Value>,
    wait_ms: Option<u64>,
    on_timeout: Option<String>,
    format: Option<String>,
    request_id: Option<String>,
    /// A session whose temp relations the statement may name, after the names of the catalog.
    locals: Option<String>,
}

/// `POST /v1/statements`
pub(super) async fn submit(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Failure> {
    let headers = request.headers().clone();
    let text = body::text(&shared, request).await?;
    if !text.trim_start().starts_with('{') {
        let reason = "the body is not a statement: send a JSON object with `sql`";
        return Err(Error::Request { reason: reason.into() }.into());
    }
    let asked: Submit = serde_json::from_str(&text)
        .map_err(|e| Error::Request { reason: format!("the body is not a statement: {e}") })?;
    let out = Out::parse(asked.format.as_deref().unwrap_or("json"))?;
    let cancels = match asked.on_timeout.as_deref() {
        None | Some("continue") => false,
        Some("cancel") => true,
        Some(other) => {
            let reason = format!("`on_timeout` is `continue` or `cancel`, not `{other}`");
            return Err(Error::Request { reason }.into());
        }
    };
    let request_id = match asked.request_id {
        Some(id) if id.is_empty() || id.chars().count() > REQUEST_ID_MAX => {
            let reason = format!("`request_id` has 1 to {REQUEST_ID_MAX} characters");
            return Err(Error::Request { reason }.into());
        }
        id => id,
    };
    let sql = tessera_engine::parameters::bind(&asked.sql, asked.params.as_ref())?;
    if request_id.is_some() {
        shared.statements.restored(STARTING_MAX).await;
    }
    let (session, engine) = session_of(&shared, &headers, request_id.as_deref())?;
    let sent = (session.as_deref(), request_id.as_deref());
    let uploads = uploads_of(&shared, asked.locals.as_deref(), sent)?;
    let handle = Handle::lent(&shared.stop, uploads);
    shared.is_staying()?;
    let request = request_id.map(|id| (id, sql.clone()));
    let is_named = request.is_some();
    let entry = shared.statements.submit(engine, sql, session, request, handle)?;
    if is_named {
        // A repeated request must find it, even on a server that starts later.
        accepted(&shared, &entry).await?;
        wake(&shared, &entry)?;
    }
    let wait = Duration::from_millis(asked.wait_ms.unwrap_or(WAIT_MS).min(WAIT_MS_MAX));
    let over = entry.wait(wait).await;
    if !over && cancels {
        entry.handle.stop().await.map_err(|e| Failure::of(&e, Some(entry.id())))?;
        let error = Error::WaitTimeout { wait_ms: wait.as_millis() as u64 };
        return Err(Failure::of(&error, Some(entry.id())));
    }
    match entry.outcome().as_deref() {
        Some(Outcome::Failed(e)) => {
            entry.tell();
            Err(Failure::of(e, Some(entry.id())))
        }
        Some(Outcome::Finished(replies)) if is_inline(out, replies) => {
            let result = inline(replies.clone(), out)
                .await
                .map_err(|e| Failure::of(&e, Some(entry.id())))?;
            entry.tell();
            if !is_named {
                // The failure is reported with this response: there is nothing left to read.
                entry.handle.entry().unpin().await;
            }
            let mut status = status(&entry);
            status["result"] = Value::Null;
            Ok(with_result(&status, &result))
        }
        _ => {
            accepted(&shared, &entry).await?;
            Ok(json(StatusCode::ACCEPTED, &status(&entry)))
        }
    }
}

/// The session of a request. A session ends with its server, but its statements that the server had accepted do not: a
/// request that is repeated finds them.
fn session_of(
    shared: &Shared,
    headers: &HeaderMap,
    request_id: Option<&str>,
) -> Result<(Option<String>, Arc<dyn Engine>), Error> {
    match (sessions::of(shared, headers), request_id) {
        (Err(Error::UnknownSession { id }), Some(request_id)) => {
            match shared.statements.knows(Some(&id), request_id)? {
                true => Ok((Some(id), shared.backend.session())),
                false => Err(Error::UnknownSession { id }),
            }
        }
        (found, _) => found,
    }
}

/// The temp relations of the session `locals`. A request that was sent before, as the session and the request's own id
/// show, finds its statement without them.
///
/// # Errors
/// `uploads_gone` if that session has ended.
fn uploads_of(
    shared: &Shared,
    locals: Option<&str>,
    (session, request_id): (Option<&str>, Option<&str>),
) -> Result<Locals, Error> {
    let Some(id) = locals else { return Ok(Locals::default()) };
    if let Some(engine) = shared.sessions.find(id) {
        return Ok(engine.lend());
    }
    match request_id {
        Some(name) if shared.statements.knows(session, name)? => Ok(Locals::default()),
        _ => Err(Error::stage(tessera_engine::session::Failure::UploadsGone)),
    }
}

/// Writes a statement to the journal before it is acknowledged. If that fails, it does not run.
async fn accepted(shared: &Shared, entry: &Arc<Entry>) -> Result<(), Failure> {
    entry.accept().await.map_err(|e| {
        shared.statements.forget(entry);
        Failure::of(&e, Some(entry.id()))
    })
}

/// Computes the answers of a statement that finished before the server started.
fn wake(shared: &Arc<Shared>, entry: &Arc<Entry>) -> Result<(), Failure> {
    let session = || shared.backend.session();
    shared.statements.wake(entry, session).map_err(|e| Failure::of(&e, Some(entry.id())))
}

/// True if the answers are small and in a text format.
fn is_inline(out: Out, replies: &[Reply]) -> bool {
    let (memory, disk) = stream::bytes(replies);
    // A small answer may be in a file because memory was short.
    matches!(out, Out::Format(f) if f.is_text())
        && memory + disk <= INLINE_BYTES
        && stream::words(replies) <= INLINE_BYTES
}

/// The `result` of an inline response: for JSON the document, or a list of them if the script has several statements;
/// for other formats their text.
async fn inline(replies: Vec<Reply>, out: Out) -> Result<String, Error> {
    let several = replies.len() != 1;
    let text = match stream::is_small(&replies) {
        true => out.write(replies, None, Vec::new())?,
        false => tokio::task::spawn_blocking(move || out.write(replies, None, Vec::new()))
            .await
            .map_err(|_| Error::Internal { what: "writing the result panicked".into() })??,
    };
    let text = String::from_utf8(text)
        .map_err(|_| Error::Internal { what: "a text format is not UTF-8".into() })?;
    Ok(match (out, several) {
        (Out::Format(Format::Json), false) => text.trim_end().to_string(),
        (Out::Format(Format::Json), true) => {
            format!("[{}]", text.lines().collect::<Vec<_>>().join(","))
        }
        _ => Value::String(text).to_string(),
    })
}

/// The status with a result in it, whose text is not parsed again.
fn with_result(status: &Value, result: &str) -> Response {
    let mut fields = String::from("{");
    for (name, value) in status.as_object().into_iter().flatten() {
        let value = if name == "result" { result.to_string() } else { value.to_string() };
        if fields.len() > 1 {
            fields.push(',');
        }
        fields.push_str(&format!("{}:{value}", Value::String(name.clone())));
    }
    super::reply::text(StatusCode::OK, "application/json", fields + "}\n")
}

/// The status document of a statement.
fn status(entry: &Entry) -> Value {
    described(entry, entry.outcome())
}

fn described(entry: &Entry, outcome: Option<Arc<Outcome>>) -> Value {
    let state = entry.state();
    let path = format!("/v1/statements/{}", entry.id());
    let mut out = json!({
        "id": entry.id(),
        "state": state.name(),
        "sql": entry.shown,
        "session": entry.session,
        "progress": entry.handle.progress().to_json(),
        "error": null,
    });
    if let Some(did) = entry.handle.did() {
        out["durable"] = tessera_engine::session::durable_json(&did);
    }
    match outcome.as_deref() {
        None if entry.is_known_to_finish() => out["next"] = format!("{path}/result").into(),
        None => out["next"] = path.into(),
        Some(Outcome::Finished(replies)) => {
            out["next"] = format!("{path}/result").into();
            let (memory, disk) = stream::bytes(replies);
            out["result_bytes"] = (memory + disk).into();
        }
        Some(Outcome::Failed(e)) => out["error"] = e.to_json(Some(entry.id()))["error"].take(),
        Some(Outcome::Gone) => {}
    }
    out
}

/// The status for the statement's client: marks a failure as reported.
///
/// # Errors
/// This server ended the statement, which the next server runs: it has not failed.
fn told(entry: &Entry) -> Result<Value, Failure> {
    if let Some(Outcome::Failed(e)) = entry.outcome().as_deref() {
        entry.tell();
        if is_left_to_next(e) {
            return Err(Failure::of(e, Some(entry.id())));
        }
    }
    Ok(status(entry))
}

/// `GET /v1/statements`
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Response {
    let all: Vec<Value> = shared.statements.list().iter().map(|e| described(e, e.peek())).collect();
    json(StatusCode::OK, &json!({"statements": all}))
}

/// `GET /v1/statements/{id}?wait_ms=`
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
    parameters: Parameters,
) -> Result<Response, Failure> {
    let entry = shared.statements.find(&id).await?;
    let wait_ms = parameters.number("wait_ms")?.unwrap_or(0).min(WAIT_MS_MAX);
    parameters.only(&["wait_ms"])?;
    if wait_ms > 0 && !entry.is_over() {
        entry.wait(Duration::from_millis(wait_ms)).await;
    }
    Ok(json(StatusCode::OK, &told(&entry)?))
}

/// `DELETE /v1/statements/{id}`: cancels it and drops its result, also for the next server.
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
) -> Result<Response, Failure> {
    let entry = shared.statements.find(&id).await?;
    let deleted = shared.statements.delete(&entry).await;
    deleted.map_err(|e| Failure::of(&e, Some(&id)))?;
    Ok(json(StatusCode::OK, &status(&entry)))
}

/// `GET /v1/statements/{id}/result?format=`
pub(super) async fn result(
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
    parameters: Parameters,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let entry = shared.statements.find(&id).await?;
    parameters.only(&["format", "layout"])?;
    let out = Out::choose(&parameters, &headers)?;
    let fail = |e: &Error| Failure::of(e, Some(&id));
    if entry.is_known_to_finish() {
        wake(&shared, &entry)?;
        entry.wait(Duration::from_millis(WAIT_MS_MAX)).await;
    }
    match entry.outcome().as_deref() {
        None if entry.is_known_to_finish() => Err(fail(&Error::Starting)),
        None => Err(fail(&Error::NotFinished { id: id.clone(), state: entry.state().name() })),
        Some(Outcome::Failed(e)) => Err(fail(e)),
        Some(Outcome::Gone) => Err(fail(&Error::ResultGone { id: id.clone() })),
        Some(Outcome::Finished(replies)) => {
            let response = stream::respond(&shared, replies.clone(), out).await;
            // After an error the client may request another format.
            if response.is_ok() {
                entry.tell();
            }
            response.map_err(|e| fail(&e))
        }
    }
}

/// `GET /v1/statements/{id}/plan`: the plan of its last query, and its measurements.
pub(super) async fn plan(
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
) -> Result<Response, Failure> {
    let entry = shared.statements.find(&id).await?;
    let fail = |e: Error| Failure::of(&e, Some(&id));
    let parsed = tessera_frontend::parse(&entry.sql).map_err(|e| fail(Error::stage(e)))?;
    let last = parsed.last().map_or("", |p| p.text.as_str());
    let engine = match &entry.session {
        Some(session) => shared.sessions.get(session).map_err(fail)?,
        None => shared.backend.session(),
    };
    let sql = format!("EXPLAIN (FORMAT json) {last}");
    let reply = super::tensors::run(&shared, &*engine, &sql).await.map_err(fail)?;
    let mut plan = match reply.answer {
        Answer::Json(plan) => plan,
        _ => Value::Null,
    };
    plan["state"] = entry.state().name().into();
    plan["measured"] = entry.handle.track().measured();
    Ok(json(StatusCode::OK, &plan))
}

/// `GET /v1/statements/{id}/events`: server-sent events, `progress` while it runs and `end`.
pub(super) async fn events(
    State(shared): State<Arc<Shared>>,
    Name(id): Name,
) -> Result<Response, Failure> {
    let entry = shared.statements.find(&id).await?;
    let permit = shared
        .events
        .clone()
        .try_acquire_owned()
        .map_err(|_| Error::TooManyStreams { limit: super::EVENTS_MAX })?;
    let stream = futures::stream::unfold(Some((entry, permit, true)), |state| async move {
        let (entry, permit, first) = state?;
        if !first {
            entry.wait(EVENT_EVERY).await;
        }
        let over = entry.is_over();
        let name = if over { "end" } else { "progress" };
        // A stream without `end` is requested again, from the next server.
        let event = format!("event: {name}\ndata: {}\n\n", told(&entry).ok()?);
        let next = (!over).then_some((entry, permit, false));
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(event)), next))
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::OK, head, Body::from_stream(stream)).into_response())
}

/// `POST /v1/query?format=`: the body is SQL, the response is the result. Disconnecting cancels it.
pub(super) async fn query(
    State(shared): State<Arc<Shared>>,
    parameters: Parameters,
    request: Request,
) -> Result<Response, Failure> {
    parameters.only(&["format", "layout"])?;
    let headers = request.headers().clone();
    let out = Out::choose(&parameters, &headers)?;
    let sql = body::text(&shared, request).await?;
    let (session, engine) = sessions::of(&shared, &headers)?;
    shared.is_staying()?;
    let entry = shared.statements.submit(engine, sql, session, None, shared.handle())?;
    let id = entry.id().to_string();
    let fail = |e: &Error| Failure::of(e, Some(&id));
    // From here on only the stream holds the result.
    let replies = match end_of(&shared, entry).await.as_deref() {
        Some(Outcome::Finished(replies)) => replies.clone(),
        Some(Outcome::Failed(e)) => return Err(fail(e)),
        Some(Outcome::Gone) | None => return Err(fail(&Error::ResultGone { id: id.clone() })),
    };
    stream::respond(&shared, replies, out).await.map_err(|e| fail(&e))
}

/// Waits for the end of a statement that lives as long as its request, and forgets it. Disconnecting cancels it.
pub(super) async fn end_of(shared: &Arc<Shared>, entry: Arc<Entry>) -> Option<Arc<Outcome>> {
    let asked = Asked { shared: shared.clone(), entry };
    while !asked.entry.wait(Duration::from_secs(60)).await {}
    asked.entry.outcome()
}

/// A statement that lives as long as its request.
struct Asked {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.shared.statements.forget(&self.entry);
    }
}

/// End states, for metrics.
pub(super) const ENDS: [StatementState; 3] =
    [StatementState::Finished, StatementState::Failed, StatementState::Cancelled];
