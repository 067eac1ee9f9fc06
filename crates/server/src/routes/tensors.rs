//! `/v1/tensors`: the names of the catalog.
//!
//! Listing and dropping only touch the catalog, and showing a plan only plans. They have permits of their own, so that
//! a server with a full queue still serves them. Describing a tensor may compute (the shape of a view can depend on
//! data), so it is a statement like all others.

use super::registry::Outcome;
use super::reply::{Failure, json};
use super::statements::end_of;
use super::{Name, Shared, sessions};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures::StreamExt;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer};
use tessera_engine::{Engine, Handle};
use tokio::sync::OwnedSemaphorePermit;

/// Upper bound on concurrent lookups.
pub(super) const LOOK_UPS_MAX: usize = 8;
/// How long a lookup waits for its permit.
const PATIENCE: Duration = Duration::from_secs(10);

/// `GET /v1/tensors`: the names of the catalog and, with a session, its temp tensors.
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (_, engine) = sessions::of(&shared, &headers)?;
    let reply = run(&shared, &*engine, "SHOW TENSORS").await?;
    Ok(json(StatusCode::OK, &json!({"tensors": objects(reply)?})))
}

/// `GET /v1/tensors/{name}`: its variables and coordinates.
pub(super) async fn get(
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (session, engine) = sessions::of(&shared, &headers)?;
    shared.is_staying()?;
    let sql = format!("DESCRIBE {}", quoted(&name)?);
    let entry = shared.statements.submit(engine, sql, session, None, shared.handle())?;
    let reply = match end_of(&shared, entry).await.as_deref() {
        Some(Outcome::Finished(replies)) => replies.last().cloned(),
        Some(Outcome::Failed(e)) if e.code() == "unknown_name" => {
            return Err(Error::NotFound { path: format!("/v1/tensors/{name}") }.into());
        }
        Some(Outcome::Failed(e)) => return Err(Failure::of(e, None)),
        _ => None,
    };
    let reply =
        reply.ok_or_else(|| Error::Internal { what: "a statement had no answer".into() })?;
    let fields: Vec<Value> = objects(reply)?.into_iter().map(field).collect();
    Ok(json(StatusCode::OK, &json!({"name": name, "fields": fields})))
}

/// A row of DESCRIBE with lists in place of texts such as `time=8, lat=5`.
fn field(row: Value) -> Value {
    let Value::Object(row) = row else { return row };
    let text = |key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
    let list = |text: String| -> Vec<String> {
        text.split(", ").filter(|part| !part.is_empty()).map(String::from).collect()
    };
    let number = |text: &str| text.parse::<u64>().map_or(Value::Null, Value::from);
    let (mut names, mut shape) = (Vec::new(), Vec::new());
    for dim in list(text("dims")) {
        let (name, length) = dim.rsplit_once('=').unwrap_or((&dim, ""));
        names.push(Value::from(name));
        shape.push(number(length));
    }
    let is_coordinate = text("kind") == "coordinate";
    let mut out = Map::new();
    for (key, value) in row.clone() {
        match key.as_str() {
            "dims" => {
                out.insert(key, std::mem::take(&mut names).into());
                out.insert("shape".into(), std::mem::take(&mut shape).into());
            }
            // A coordinate has its first and last label in place of chunks.
            "chunks" if is_coordinate => drop(out.insert("range".into(), value)),
            "chunks" => {
                let chunks: Vec<Value> = list(text("chunks")).iter().map(|n| number(n)).collect();
                out.insert(key, chunks.into());
            }
            _ => drop(out.insert(key, value)),
        }
    }
    Value::Object(out)
}

/// `DELETE /v1/tensors/{name}`
pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Name(name): Name,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let (_, engine) = sessions::of(&shared, &headers)?;
    shared.is_staying()?;
    let sql = format!("DROP TENSOR {}", quoted(&name)?);
    let reply = run(&shared, &*engine, &sql).await.map_err(|e| absent(e, &name))?;
    let done = match reply.answer {
        Answer::Done(text) => text,
        _ => String::new(),
    };
    Ok(json(StatusCode::OK, &json!({"ok": done})))
}

/// The name as an SQL identifier.
pub(super) fn quoted(name: &str) -> Result<String, Error> {
    if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
        return Err(Error::Request { reason: "a tensor's name has 1 to 200 bytes".into() });
    }
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

/// An unknown name becomes a 404.
fn absent(e: Error, name: &str) -> Error {
    match e.code() {
        "unknown_name" => Error::NotFound { path: format!("/v1/tensors/{name}") },
        _ => e,
    }
}

/// A permit for a lookup; waits if none is free.
///
/// # Errors
/// [`Error::TooManyLookUps`] after the timeout.
async fn look_up(shared: &Shared) -> Result<OwnedSemaphorePermit, Error> {
    let place = tokio::time::timeout(PATIENCE, shared.look_ups.clone().acquire_owned()).await;
    match place {
        Ok(Ok(place)) => Ok(place),
        _ => Err(Error::TooManyLookUps { limit: LOOK_UPS_MAX }),
    }
}

/// Runs one statement that takes no turn among the others: one of the catalog, or an EXPLAIN. Returns its only answer.
pub(super) async fn run(shared: &Shared, engine: &dyn Engine, sql: &str) -> Result<Reply, Error> {
    let _place = look_up(shared).await?;
    let mut replies = engine.run(sql, Handle::below(&shared.stop));
    let reply = replies.next().await;
    reply.unwrap_or_else(|| Err(Error::Internal { what: "a statement had no answer".into() }))
}

/// Rows as objects.
fn objects(reply: Reply) -> Result<Vec<Value>, Error> {
    let mut writer = Writer::new(Format::Ndjson, Options::default(), Vec::new())?;
    writer.push(reply)?;
    let text = writer.finish()?;
    let lines = text.split(|b| *b == b'\n').filter(|l| !l.is_empty());
    lines
        .map(|l| serde_json::from_slice::<Map<String, Value>>(l).map(Value::Object))
        .collect::<Result<_, _>>()
        .map_err(|e| Error::Internal { what: format!("rows are not JSON: {e}") })
}
