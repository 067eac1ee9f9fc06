//! A remote server as an [`Engine`], for `tessera query --connect URL` and the shell.
//!
//! The life of a script:
//! 1. It is parsed here, so that it runs from its start or not at all, as in this process.
//! 2. The first statement creates a session, which holds temp tensors and settings of all scripts of this client.
//! 3. Each statement is submitted by itself; while it runs, its progress is polled and passed to the [`Handle`].
//! 4. Its answer is downloaded in the engine's own form to a file, and read from there like a result of this process:
//!    formats write the same.
//!    Arrays and tables of this process that it names are sent before it ([`uploads`]).
//! 5. Cancelling, or dropping the answers, sends `DELETE`. [`Engine::close`] ends the session.
//!
//! Of several servers of one warehouse, only one is live. Each statement then has a `request_id`, and a request that no
//! live server answered is sent again: to the others in turn, until one has taken over ([`servers`]).

mod failure;
mod servers;
mod uploads;

pub use failure::Failure;

use futures::future::BoxFuture;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use servers::{Server, Servers};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_engine::answer::scratch::{Scratch, ScratchFile};
use tessera_engine::answer::{Answer, Reply};
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::format::native;
use tessera_engine::statement::{Progress, StatementState};
use tessera_engine::{Engine, Handle, Replies};
use tessera_exec::pool::Pool;
use tessera_exec::quota::Quota;
use tessera_exec::store::Store;
use tessera_frontend::{Parsed, Statement};
use tessera_storage::lock;
use uploads::Uploads;

/// Timeout for a connection: to the only server, and to one of several.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT_SEVERAL: Duration = Duration::from_secs(3);
/// Timeout for a response of one of several servers, unless it is a result.
const ANSWER_TIMEOUT_SEVERAL: Duration = Duration::from_secs(10);
/// Timeout between two pieces of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(90);
/// How long the server waits for the end of a statement before it reports the progress.
const POLL_MS: u64 = 250;
/// Attempts to call a busy server, and the pause between them.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_secs(1);
/// Pause between attempts to find the live one of several servers.
const PAUSE_SEVERAL: Duration = Duration::from_millis(200);
/// The end of the path of a statement's result.
const RESULT: &str = "/result";
/// How long a killed server may take to restart, or another one to take over.
const RESTART: Duration = Duration::from_secs(30);
/// Rows of fewer bytes are loaded to memory at once.
const ROWS_IN_MEMORY: u64 = 4 << 20;

/// A server, and this client's session on it.
pub struct Remote {
    shared: Arc<Connection>,
}

struct Connection {
    http: reqwest::Client,
    /// Sends uploads, which may take longer than any response.
    sends: reqwest::Client,
    servers: Servers,
    session: Mutex<Option<String>>,
    scratch: Arc<Scratch>,
    pool: Arc<Pool>,
}

impl Remote {
    /// The server at `url`, or the live one of several URLs separated by commas; nothing is sent yet. Without a token,
    /// the token of a server of this user on this machine is used, if it exists.
    ///
    /// # Errors
    /// The text is not a URL of a server.
    pub fn new(url: &str, token: Option<&str>, config: &Config) -> Result<Self, Error> {
        let servers = Servers::parse(url, token)?;
        let connect = if servers.are_several() { CONNECT_TIMEOUT_SEVERAL } else { CONNECT_TIMEOUT };
        let client = |read: Option<Duration>| {
            let mut builder = reqwest::Client::builder()
                .connect_timeout(connect)
                .user_agent(concat!("tessera/", env!("CARGO_PKG_VERSION")));
            if let Some(read) = read {
                builder = builder.read_timeout(read);
            }
            if servers.are_local() {
                // A proxy would resolve loopback to another machine.
                builder = builder.no_proxy();
            }
            builder.build().map_err(|e| Error::Internal { what: format!("no HTTP client: {e}") })
        };
        let (http, sends) = (client(Some(READ_TIMEOUT))?, client(None)?);
        let limit = config.memory_limit_bytes;
        Ok(Remote {
            shared: Arc::new(Connection {
                http,
                sends,
                servers,
                session: Mutex::default(),
                scratch: Scratch::new(Store::open(&config.spill_dir, config.spill_limit_bytes)),
                pool: Pool::new(Quota::new(limit), limit / 4),
            }),
        })
    }

    /// Checks that a server accepts statements from this client.
    ///
    /// # Errors
    /// `connect` if the server does not respond, or the server's error.
    pub async fn check(&self) -> Result<(), Error> {
        self.shared.ask(Method::GET, "/readyz", None).await
    }
}

/// The body of a successful response.
trait Received: Sized {
    fn read(
        response: Response,
        server: &Server,
        connection: &Connection,
    ) -> impl Future<Output = Result<Self, Error>> + Send;
}

impl Received for () {
    async fn read(_: Response, _: &Server, _: &Connection) -> Result<Self, Error> {
        Ok(())
    }
}

impl Received for String {
    async fn read(response: Response, server: &Server, _: &Connection) -> Result<Self, Error> {
        response.text().await.map_err(|e| server.unreachable(&e))
    }
}

impl Received for Arc<ScratchFile> {
    async fn read(
        mut response: Response,
        server: &Server,
        connection: &Connection,
    ) -> Result<Self, Error> {
        let file = Arc::new(connection.scratch.file()?);
        while let Some(piece) = response.chunk().await.map_err(|e| server.unreachable(&e))? {
            file.append(&[&piece])?;
        }
        Ok(file)
    }
}

impl Connection {
    /// Sends a request and reads a successful response. Of several servers, the live one is asked: all requests may be
    /// repeated, as a statement has a `request_id` then.
    async fn ask<T: Received>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Error> {
        let (started, mut attempts) = (Instant::now(), 0);
        loop {
            attempts += 1;
            let server = self.servers.current();
            let error = match self.send(server, method.clone(), path, body).await {
                // Only a request that surely had no effect is repeated.
                Ok(r) if r.status() == StatusCode::TOO_MANY_REQUESTS && attempts < ATTEMPTS => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Ok(response) if response.status().is_success() => {
                    match T::read(response, server, self).await {
                        Ok(received) => return Ok(received),
                        Err(error) => error,
                    }
                }
                Ok(response) => self.failure(response).await,
                Err(error) => error,
            };
            if !self.servers.may_go_on(server, &error) || started.elapsed() > RESTART {
                return Err(error);
            }
            tracing::debug!(%error, "the servers are asked again");
            tokio::time::sleep(PAUSE_SEVERAL).await;
        }
    }

    async fn failure(&self, response: Response) -> Error {
        let status = response.status().as_u16();
        let text = response.text().await.unwrap_or_default();
        let failure = Failure::read(status, &text);
        if failure.is("unknown_session") {
            // The next statement creates a new session.
            *lock(&self.session) = None;
        }
        Error::stage(failure)
    }

    async fn send(
        &self,
        server: &Server,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response, Error> {
        let mut request = self.http.request(method, server.url(path));
        if let Some(token) = server.token() {
            request = request.bearer_auth(token);
        }
        if let Some(id) = lock(&self.session).clone() {
            request = request.header("Tessera-Session", id);
        }
        if self.servers.are_several() && !path.contains(RESULT) {
            // A server that is stopped accepts connections and never responds.
            request = request.timeout(ANSWER_TIMEOUT_SEVERAL);
        }
        if let Some(body) = body {
            request = request
                .header(reqwest::header::CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }
        request.send().await.map_err(|e| server.unreachable(&e))
    }

    async fn json(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Error> {
        let text: String = self.ask(method, path, body).await?;
        serde_json::from_str(&text).map_err(|e| Error::Protocol {
            reason: format!("the response of {path} is not JSON ({e}); is this a Tessera server?"),
        })
    }

    /// Creates a session if none exists. A session ends with its server, so with several servers statements have a
    /// session only once it has state.
    async fn session(&self, parsed: &Parsed) -> Result<(), Error> {
        let fills = match &parsed.statement {
            Statement::Set { .. } => true,
            Statement::CreateTensor(create) => create.temp,
            _ => false,
        };
        if lock(&self.session).is_some() || (self.servers.are_several() && !fills) {
            return Ok(());
        }
        let id = self.new_session().await?;
        *lock(&self.session) = Some(id);
        Ok(())
    }

    /// Creates a session.
    async fn new_session(&self) -> Result<String, Error> {
        id_of(&self.json(Method::POST, "/v1/sessions", None).await?, "a session")
    }

    /// Sends the locals that a statement names, and runs it.
    async fn statement(
        self: &Arc<Self>,
        parsed: &Parsed,
        handle: &Handle,
        uploads: &mut Uploads,
    ) -> Result<Reply, Error> {
        let mut runs = 0;
        loop {
            runs += 1;
            self.session(parsed).await?;
            let locals = uploads.send(parsed, handle).await?;
            let done = self.run_at_server(parsed, handle, locals).await;
            match done {
                Err(e) if e.code() == uploads::GONE => {
                    uploads.forget();
                    if runs > uploads::REPEATS || !uploads::only_reads(&parsed.statement) {
                        return Err(e);
                    }
                }
                done => return done,
            }
        }
    }

    async fn run_at_server(
        self: &Arc<Self>,
        parsed: &Parsed,
        handle: &Handle,
        locals: Option<String>,
    ) -> Result<Reply, Error> {
        let mut body = json!({
            "sql": parsed.text,
            "wait_ms": POLL_MS,
            "format": native::NAME,
        });
        if let Some(session) = locals {
            body["locals"] = session.into();
        }
        if self.servers.are_several() {
            body["request_id"] = uuid::Uuid::new_v4().simple().to_string().into();
        }
        let mut status = self.json(Method::POST, "/v1/statements", Some(&body)).await?;
        let path = format!("/v1/statements/{}", id_of(&status, "a statement")?);
        let submitted = Submitted { connection: self.clone(), path: path.clone() };
        let started = Instant::now();
        loop {
            let state = status["state"].as_str().and_then(StatementState::parse);
            match state {
                Some(StatementState::Finished) => break,
                // The server ended it, and the next one runs it.
                Some(StatementState::Failed)
                    if started.elapsed() < RESTART
                        && self.servers.may_go_on(
                            self.servers.current(),
                            &Error::stage(Failure::of(&status)),
                        ) =>
                {
                    tokio::time::sleep(PAUSE_SEVERAL).await;
                }
                Some(StatementState::Failed | StatementState::Cancelled) => {
                    return Err(Error::stage(Failure::of(&status)));
                }
                Some(state) => handle.track().tell(Progress::from_json(state, &status["progress"])),
                None => {
                    let reason = format!("a statement has the state {}", status["state"]);
                    return Err(Error::Protocol { reason });
                }
            }
            let next = format!("{path}?wait_ms={POLL_MS}");
            tokio::select! {
                biased;
                () = handle.cancelled() => {
                    submitted.delete().await?;
                    return Err(Error::Cancelled);
                }
                next = self.poll(&next) => status = next?,
            }
        }
        handle.track().tell(Progress::from_json(StatementState::Running, &status["progress"]));
        let result = format!("{path}{RESULT}?format={}", native::NAME);
        let file: Arc<ScratchFile> = tokio::select! {
            biased;
            () = handle.cancelled() => {
                submitted.delete().await?;
                return Err(Error::Cancelled);
            }
            file = self.ask(Method::GET, &result, None) => file?,
        };
        submitted.delete().await?;
        let mut reply = native::read(&file, &self.pool)?;
        if matches!(&reply.answer, Answer::Stored(rows) if rows.bytes() <= ROWS_IN_MEMORY) {
            reply = reply.whole()?;
        }
        Ok(reply)
    }

    /// Polls a statement. A killed server may be restarted and recover it.
    async fn poll(&self, path: &str) -> Result<Value, Error> {
        let started = Instant::now();
        loop {
            let error = match self.json(Method::GET, path, None).await {
                Err(e) if matches!(e.code(), "connect" | "starting") => e,
                other => return other,
            };
            if started.elapsed() > RESTART {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The id in a document of a server.
fn id_of(document: &Value, what: &str) -> Result<String, Error> {
    match document["id"].as_str() {
        Some(id) if id.bytes().all(|b| b.is_ascii_alphanumeric()) => Ok(id.into()),
        _ => {
            let reason = format!("{what} has no id; is this a Tessera server?");
            Err(Error::Protocol { reason })
        }
    }
}

/// A statement at the server, which is deleted when this drops.
struct Submitted {
    connection: Arc<Connection>,
    path: String,
}

impl Submitted {
    /// Cancels the statement, or deletes its result.
    async fn delete(mut self) -> Result<(), Error> {
        let path = std::mem::take(&mut self.path);
        self.connection.ask(Method::DELETE, &path, None).await
    }
}

impl Drop for Submitted {
    fn drop(&mut self) {
        if self.path.is_empty() {
            return;
        }
        let (connection, path) = (self.connection.clone(), std::mem::take(&mut self.path));
        // Without a runtime no request can be sent; the server forgets the statement by itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let server = connection.servers.current();
                connection.send(server, Method::DELETE, &path, None).await
            });
        }
    }
}

/// The remaining statements of a script.
struct Script {
    rest: std::iter::Enumerate<std::vec::IntoIter<Parsed>>,
    count: usize,
    handle: Handle,
    uploads: Uploads,
}

impl Drop for Script {
    fn drop(&mut self) {
        // After a regular end this does nothing.
        self.handle.move_to(StatementState::Cancelled);
    }
}

impl Remote {
    async fn next(&self, script: &mut Script) -> Option<Result<Reply, Error>> {
        let handle = script.handle.clone();
        let Some((i, next)) = script.rest.next() else {
            script.uploads.end().await;
            handle.move_to(StatementState::Planning);
            handle.move_to(StatementState::Finished);
            return None;
        };
        handle.begin(&next.text, i + 1, script.count);
        let result = match handle.is_cancelled() {
            true => Err(Error::Cancelled),
            false => self.shared.statement(&next, &handle, &mut script.uploads).await,
        };
        let result = result.map_err(|e| failure::within(e, &next));
        if let Err(e) = &result {
            script.uploads.end().await;
            handle.move_to(StatementState::of_error(e));
        }
        Some(result)
    }
}

impl Engine for Remote {
    fn run<'a>(&'a self, sql: &'a str, handle: Handle) -> Replies<'a> {
        let parsed = match tessera_frontend::parse(sql) {
            Ok(parsed) => parsed,
            Err(e) => {
                handle.move_to(StatementState::Failed);
                return Box::pin(futures::stream::once(async move { Err(Error::stage(e)) }));
            }
        };
        let uploads = Uploads::new(self.shared.clone());
        let (count, rest) = (parsed.len(), parsed.into_iter().enumerate());
        let script = Script { count, rest, handle, uploads };
        Box::pin(futures::stream::unfold(Some(script), move |script| async move {
            let mut script = script?;
            let result = self.next(&mut script).await?;
            // The stream ends after an error.
            let rest = result.is_ok().then_some(script);
            Some((result, rest))
        }))
    }

    fn scratch(&self) -> Option<Arc<Scratch>> {
        Some(self.shared.scratch.clone())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let id = lock(&self.shared.session).take();
            if let Some(id) = id {
                // Without this request the server ends the session by itself after its timeout.
                let sent = self.shared.clone().end_session(id);
                if tokio::time::timeout(Duration::from_secs(2), sent).await.is_err() {
                    tracing::debug!("the session was not ended");
                }
            }
        })
    }
}
