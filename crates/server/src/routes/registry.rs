//! The registry of a server's statements: a bounded queue, running statements, and results until they are read.
//!
//! ```text
//!   submit ─▶ planned ─▶ queue (max-queued) ─▶ run (max-queries, query-timeout) ─▶ stored (result-ttl, part of memory)
//!                 └─ a light statement runs at once
//! ```
//! A statement that is acknowledged before it ends, or that has a `request_id`, is first written to the [`Journal`]
//! ([`Entry::accept`]). A server recovers these at its start ([`Statements::restore`]): an unfinished statement runs
//! again under its id, bound by its recipe; the answers of a finished one are computed again when a client requests
//! them.
//!
//! Invariants: queued and running statements and results are bounded; a statement is forgotten only after its end; a
//! waiting client never blocks a statement.

mod detach;
mod entry;
mod restore;

pub(super) use self::entry::{Entry, Outcome};

use self::detach::{Detach, Ended};
use super::lead::Role;
use super::light::{LIGHT_MAX, is_light};
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_engine::answer::Reply;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::journal::{End, Journal, now_ms};
use tessera_engine::session::Host;
use tessera_engine::statement::{Entered, StatementState};
use tessera_engine::{Engine, Handle};
use tessera_storage::lock;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// Upper bound on known statements, including finished ones.
const ENTRIES_MAX: usize = 4096;
/// Interval between checks for a later server, and the timeout of a check.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long a DELETE waits for the end of the cancelled statement.
const END_SOON: Duration = Duration::from_secs(1);

pub(super) struct Statements {
    known: Mutex<BTreeMap<String, Arc<Entry>>>,
    next: AtomicU64,
    places: Arc<Semaphore>,
    /// Queued and running statements.
    live: AtomicUsize,
    live_max: usize,
    /// Light statements that run beside a full queue.
    light: AtomicUsize,
    running_max: usize,
    limit_s: u64,
    detach: Detach,
    ttl: Duration,
    /// Limits of the bytes of results in memory, and on disk.
    keep_max: (u64, u64),
    stop: CancellationToken,
    host: Option<Arc<Host>>,
    role: Arc<Role>,
    journal: Option<Arc<Journal>>,
    /// True once the statements that earlier servers accepted are known.
    is_restored: watch::Sender<bool>,
    /// The last check that found no later server.
    looked: tokio::sync::Mutex<Option<Instant>>,
    /// Number of statements by end: finished, failed, cancelled.
    pub(super) ends: [AtomicU64; 3],
}

async fn answers(entry: Arc<Entry>, engine: Arc<dyn Engine>) -> Result<Vec<Reply>, Error> {
    let mut replies = Vec::new();
    let mut stream = engine.run(&entry.sql, entry.handle.clone());
    while let Some(reply) = stream.next().await {
        replies.push(reply?);
    }
    match replies.is_empty() {
        true => Err(Error::Request { reason: "it contains no statement".into() }),
        false => Ok(replies),
    }
}

/// True if the shutdown ended a statement, or another server that has taken over: the next server runs it.
pub(super) fn is_left_to_next(error: &Error) -> bool {
    matches!(error.code(), "shutting_down" | "fenced")
}

/// The limit that a statement counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The limit of queued and running statements.
    Queue,
    /// The limit of light statements beside a full queue.
    Light,
}

/// A queued or running statement, until it is dropped.
struct Live {
    statements: Arc<Statements>,
    turn: Turn,
    /// Lists it among the queries of the process for the same time.
    _entered: Option<Entered>,
}

impl Drop for Live {
    fn drop(&mut self) {
        match self.turn {
            Turn::Queue => self.statements.live.fetch_sub(1, Relaxed),
            Turn::Light => self.statements.light.fetch_sub(1, Relaxed),
        };
    }
}

impl Statements {
    pub(super) fn new(
        config: &Config,
        stop: CancellationToken,
        host: Option<Arc<Host>>,
        role: Arc<Role>,
    ) -> Self {
        let disk = host.as_ref().map_or(u64::MAX, |h| h.scratch().limit() / 2);
        Statements {
            known: Mutex::default(),
            next: AtomicU64::new(0),
            places: Arc::new(Semaphore::new(config.max_queries)),
            live: AtomicUsize::new(0),
            live_max: config.max_queries.saturating_add(config.max_queued),
            light: AtomicUsize::new(0),
            running_max: config.max_queries,
            limit_s: config.query_timeout_s,
            detach: Detach::new(),
            ttl: Duration::from_secs(config.result_ttl_s),
            keep_max: (config.memory_limit_bytes / 4, disk),
            stop,
            journal: host.as_ref().map(|h| Arc::new(h.journal())),
            is_restored: watch::Sender::new(host.is_none()),
            looked: tokio::sync::Mutex::default(),
            host,
            role,
            ends: Default::default(),
        }
    }

    /// Submits a script, which runs as `handle` after admission. A known `request_id` returns the earlier statement.
    ///
    /// # Errors
    /// The queue is full; the `request_id` was used for another statement, or may have been before the server started.
    pub(super) fn submit(
        self: &Arc<Self>,
        engine: Arc<dyn Engine>,
        sql: String,
        session: Option<String>,
        request: Option<(String, String)>,
        handle: Handle,
    ) -> Result<Arc<Entry>, Error> {
        if request.is_some() && !self.is_restored() {
            return Err(Error::Starting);
        }
        let mut known = lock(&self.known);
        if let Some((name, mark)) = &request
            && let Some(entry) = known.values().find(|e| e.is_of(session.as_deref(), name))
        {
            return match entry.request.as_ref().is_some_and(|(_, m)| m == mark) {
                true => Ok(entry.clone()),
                false => Err(Error::RequestIdReused { request_id: name.clone() }),
            };
        }
        let turn = self.turn(&sql)?;
        let entry = Arc::new(self.entry(handle, sql, session, request, now_ms()));
        forget_oldest(&mut known);
        known.insert(entry.id().to_string(), entry.clone());
        drop(known);
        self.start(&entry, engine, turn);
        Ok(entry)
    }

    /// True if this request was sent before, maybe in a session that has ended.
    ///
    /// # Errors
    /// The statements that earlier servers accepted are not known yet.
    pub(super) fn knows(&self, session: Option<&str>, name: &str) -> Result<bool, Error> {
        if self.is_restored() {
            Ok(lock(&self.known).values().any(|e| e.is_of(session, name)))
        } else {
            Err(Error::Starting)
        }
    }

    fn entry(
        &self,
        handle: Handle,
        sql: String,
        session: Option<String>,
        request: Option<(String, String)>,
        accepted_ms: u64,
    ) -> Entry {
        handle.track().name(&sql);
        if let Some(host) = &self.host {
            handle.chunks().stored_in(host.durable().clone());
        }
        Entry {
            number: self.next.fetch_add(1, Relaxed),
            handle,
            shown: tessera_frontend::secrets::hidden(&sql),
            sql,
            session,
            request,
            outcome: watch::Sender::new(None),
            touched: Mutex::new(Instant::now()),
            told: AtomicBool::new(false),
            accepted_ms,
            starts: 1,
            journal: self.journal.clone(),
            kept: Arc::default(),
            asleep: AtomicBool::new(false),
            finished: false,
            deleted: AtomicBool::new(false),
        }
    }

    /// Starts a task that runs a statement after admission.
    fn start(self: &Arc<Self>, entry: &Arc<Entry>, engine: Arc<dyn Engine>, turn: Turn) {
        let entered = self.host.as_ref().map(|h| h.queries().enter(&entry.handle));
        let live = Live { statements: self.clone(), turn, _entered: entered };
        tokio::spawn(self.clone().drive(entry.clone(), engine, live));
    }

    async fn drive(self: Arc<Self>, entry: Arc<Entry>, engine: Arc<dyn Engine>, live: Live) {
        entry.handle.turn().needs_one_of(self.places.clone());
        let result = match entry.handle.is_cancelled() {
            false => self.run(&entry, engine).await,
            true => {
                drop(engine);
                Err(Error::Cancelled)
            }
        };
        entry.handle.turn().free().await;
        entry.handle.release();
        let outcome = match result {
            // The statement finished before it noticed the cancel.
            Ok(_) if entry.deleted.load(Relaxed) => Outcome::Gone,
            Ok(replies) => Outcome::Finished(replies),
            Err(e) => {
                let e = self.cut_off(e);
                entry.handle.move_to(StatementState::of_error(&e));
                Outcome::Failed(e)
            }
        };
        let end = match &outcome {
            Outcome::Failed(e) if StatementState::of_error(e) == StatementState::Cancelled => 2,
            Outcome::Failed(_) => 1,
            _ => 0,
        };
        self.ends[end].fetch_add(1, Relaxed);
        match &outcome {
            // Before the outcome is available: from then on the server refuses requests.
            Outcome::Failed(e) if is_left_to_next(e) => self.role.note(e),
            // A recovered finished statement keeps its recorded end.
            Outcome::Failed(_) if entry.finished => {}
            Outcome::Failed(e) if StatementState::of_error(e) == StatementState::Cancelled => {
                entry.conclude(End::Cancelled).await;
            }
            Outcome::Failed(e) => entry.conclude(End::Failed(e.to_json(None))).await,
            Outcome::Finished(_) => entry.conclude(End::Finished).await,
            Outcome::Gone => entry.conclude(End::Gone).await,
        }
        entry.touch();
        entry.outcome.send_replace(Some(Arc::new(outcome)));
        drop(live);
        self.make_room(&entry);
    }

    /// The error of a statement: its own, or why the server ended it without the request of a client.
    fn cut_off(&self, error: Error) -> Error {
        match self.role.check() {
            Err(fenced) if error.code() == "cancelled" => fenced,
            Ok(()) if error.code() == "cancelled" && self.stop.is_cancelled() => {
                Error::ShuttingDown
            }
            _ => error,
        }
    }

    /// Ends the statements of the journal that run: another server has taken over, and runs them.
    pub(super) fn leave_to_next(&self) {
        for entry in self.list().iter().filter(|entry| !entry.is_over()) {
            // A record that is being written is refused.
            if entry.kept.try_lock().map_or(true, |kept| kept.is_there) {
                entry.handle.cancel();
            }
        }
    }

    async fn run(&self, entry: &Arc<Entry>, engine: Arc<dyn Engine>) -> Result<Vec<Reply>, Error> {
        let limit_s = self.limit_s;
        let limit = Duration::from_secs(limit_s);
        entry.handle.clock().limit_script(limit);
        let work = answers(entry.clone(), engine);
        match self.detach.run(work, &entry.handle, entry.handle.clock().has_taken(limit)).await {
            // The panic's own text went to the log; it may contain details that a client should not see.
            Ended::Itself(Err(_)) => Err(Error::Internal { what: "the query panicked".into() }),
            // Code that notices the timeout by itself reports "cancelled".
            Ended::Itself(Ok(Err(e)))
                if e.code() == "cancelled" && !entry.handle.is_cancelled() =>
            {
                Err(if entry.handle.clock().is_late() { Error::Timeout { limit_s } } else { e })
            }
            Ended::Itself(Ok(result)) => result,
            Ended::TooLong => Err(Error::Timeout { limit_s }),
            Ended::Overdue(limit) => Err(Error::Timeout { limit_s: limit.as_secs() }),
            Ended::Cancelled => Err(Error::Cancelled),
        }
    }

    /// True once the statements that earlier servers accepted are known.
    pub(super) fn is_restored(&self) -> bool {
        *self.is_restored.borrow()
    }

    /// Waits until the statements that earlier servers accepted are known, at most for `time`.
    pub(super) async fn restored(&self, time: Duration) {
        let mut changes = self.is_restored.subscribe();
        // The sender lives as long as this server, so the wait cannot fail. After a timeout, the caller's next step
        // refuses the request.
        let _ = tokio::time::timeout(time, changes.wait_for(|is_restored| *is_restored)).await;
    }

    /// Fails if a later server has fenced this one, which then must not accept durable statements. Results are cached
    /// for a while; a warehouse that does not respond counts as no later server.
    ///
    /// # Errors
    /// A later server.
    pub(super) async fn may_write(&self) -> Result<(), Error> {
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(());
        }
        self.look().await?;
        *looked = Some(Instant::now());
        Ok(())
    }

    /// Like [`Statements::may_write`], without a cached result.
    async fn look(&self) -> Result<(), Error> {
        let Some(journal) = &self.journal else { return Ok(()) };
        match tokio::time::timeout(LOOK_MAX, journal.check()).await {
            Ok(Err(e)) if e.code() == "fenced" => {
                self.role.note(&e);
                return Err(e);
            }
            Ok(Err(e)) => {
                tracing::warn!(error = %e, "whether another server took over is not known")
            }
            Err(_) => tracing::warn!("the warehouse does not respond in time"),
            Ok(Ok(())) => {}
        }
        Ok(())
    }

    /// Computes the answers of a recovered finished statement, unless that has begun.
    ///
    /// # Errors
    /// The queue is full.
    pub(super) fn wake(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        session: impl FnOnce() -> Arc<dyn Engine>,
    ) -> Result<(), Error> {
        if !entry.asleep.load(Relaxed) {
            return Ok(());
        }
        self.take_place()?;
        match entry.asleep.swap(false, Relaxed) {
            true => self.start(entry, session(), Turn::Queue),
            false => {
                self.live.fetch_sub(1, Relaxed);
            }
        }
        Ok(())
    }

    /// Counts a statement: against the light limit if the queue is full and the statement is light.
    fn turn(&self, sql: &str) -> Result<Turn, Error> {
        let Err(busy) = self.take_place() else { return Ok(Turn::Queue) };
        if !is_light(sql) {
            return Err(busy);
        }
        if self.light.fetch_add(1, Relaxed) >= LIGHT_MAX {
            self.light.fetch_sub(1, Relaxed);
            return Err(busy);
        }
        Ok(Turn::Light)
    }

    /// Counts a queued or running statement.
    fn take_place(&self) -> Result<(), Error> {
        if self.live.fetch_add(1, Relaxed) >= self.live_max {
            self.live.fetch_sub(1, Relaxed);
            return Err(Error::Busy {
                running: self.running_max,
                queued: self.live_max - self.running_max,
            });
        }
        Ok(())
    }

    /// A statement by its id.
    ///
    /// # Errors
    /// The id is unknown or forgotten; it may not be recovered yet.
    pub(super) fn get(&self, id: &str) -> Result<Arc<Entry>, Error> {
        let entry = lock(&self.known).get(id).cloned();
        entry.ok_or_else(|| match self.is_restored() {
            true => Error::UnknownStatement { id: id.into() },
            false => Error::Starting,
        })
    }

    /// Like [`Statements::get`]. An unknown id may be the id of a statement that a later server accepted.
    ///
    /// # Errors
    /// The errors of [`Statements::get`]; a later server.
    pub(super) async fn find(&self, id: &str) -> Result<Arc<Entry>, Error> {
        let found = self.get(id);
        if let Err(Error::UnknownStatement { .. }) = &found {
            self.look().await?;
        }
        found
    }

    /// All known statements, the oldest first.
    pub(super) fn list(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<Arc<Entry>> = lock(&self.known).values().cloned().collect();
        all.sort_by_key(|e| e.number);
        all
    }

    /// Cancels a statement and drops its result. When this returns, no later server runs it again, nor returns its
    /// result.
    ///
    /// # Errors
    /// Errors of the warehouse: the statement is cancelled, and a later server may run it again.
    pub(super) async fn delete(&self, entry: &Arc<Entry>) -> Result<(), Error> {
        entry.deleted.store(true, Relaxed);
        entry.handle.cancel();
        entry.tell();
        if !self.let_go(entry) {
            // The statement ends at once, unless it is in blocking work.
            entry.wait(END_SOON).await;
            self.let_go(entry);
        }
        let is_gone = matches!(entry.outcome.borrow().as_deref(), Some(Outcome::Gone));
        match is_gone || entry.finished {
            true => entry.ends(End::Gone).await?,
            false => entry.stopped().await?,
        }
        if entry.is_over() && entry.kept.lock().await.is_there {
            entry.handle.remove_chunks().await;
        }
        Ok(())
    }

    /// Drops the result of a finished statement.
    fn drop_result(&self, entry: &Arc<Entry>) {
        if self.let_go(entry) {
            let entry = entry.clone();
            tokio::spawn(async move { entry.conclude(End::Gone).await });
        }
    }

    /// Drops the result; true if there was one.
    fn let_go(&self, entry: &Entry) -> bool {
        let asleep = entry.asleep.swap(false, Relaxed);
        entry.outcome.send_if_modified(|o| match o.as_deref() {
            Some(Outcome::Finished(_)) => {
                *o = Some(Arc::new(Outcome::Gone));
                true
            }
            None if asleep => {
                *o = Some(Arc::new(Outcome::Gone));
                true
            }
            _ => false,
        })
    }

    pub(super) fn forget(&self, entry: &Arc<Entry>) {
        entry.handle.cancel();
        lock(&self.known).remove(entry.id());
        entry.unkeep();
    }

    /// Cancels the unfinished statements of a session durably.
    ///
    /// # Errors
    /// Errors of the warehouse: they are cancelled, and a later server may run them again.
    pub(super) async fn cancel_session(&self, id: &str) -> Result<(), Error> {
        let mut all = self.list();
        all.retain(|e| e.session.as_deref() == Some(id) && !e.is_over());
        all.iter().for_each(|e| e.handle.cancel());
        futures::future::try_join_all(all.iter().map(|e| e.stopped())).await?;
        Ok(())
    }

    /// Forgets finished statements that were not requested recently.
    pub(super) fn sweep(&self) {
        let ttl = self.ttl;
        lock(&self.known).retain(|_, e| {
            let is_over = e.outcome.borrow().is_some() || e.asleep.load(Relaxed);
            let keep = !is_over || e.idle() < ttl;
            if !keep {
                e.unkeep();
            }
            keep
        });
    }

    /// Removes durable chunks of statements that neither wait nor run: those older than `age`, and others if storage is
    /// full. Nothing is removed before recovery is complete.
    ///
    /// # Errors
    /// Errors of the warehouse; a later server.
    pub(super) async fn collect_chunks(&self, age: Duration) -> Result<(), Error> {
        let (Some(host), Some(journal)) = (&self.host, &self.journal) else { return Ok(()) };
        if !self.is_restored() {
            return Ok(());
        }
        journal.check().await?;
        let is_live = |id: &str| {
            let entry = lock(&self.known).get(id).cloned();
            entry.is_some_and(|e| e.outcome.borrow().is_none() && !e.asleep.load(Relaxed))
        };
        host.durable().collect(&is_live, age).await.map(drop).map_err(Error::stage)
    }

    /// True while a statement waits or runs, or its client may still request its end: the end is no older than `time`
    /// and was not reported yet. A fenced server reports no ends any more.
    pub(super) fn is_awaited(&self, time: Duration) -> bool {
        let news = |e: &Arc<Entry>| !e.told.load(Relaxed) && e.idle() < time;
        let is_news = || !self.role.is_fenced() && lock(&self.known).values().any(news);
        self.live.load(Relaxed) > 0 || is_news()
    }

    /// Number of queued and running statements, and of these the queued ones.
    pub(super) fn live(&self) -> (usize, usize) {
        let live = self.live.load(Relaxed);
        (live, live.saturating_sub(self.running_max - self.places.available_permits()))
    }

    /// Bytes of results in memory and on disk.
    pub(super) fn kept_bytes(&self) -> (u64, u64) {
        lock(&self.known).values().map(|e| e.bytes()).fold((0, 0), |(m, d), (n, e)| (m + n, d + e))
    }

    /// Drops the oldest results until the rest fits the limits, but never the result of `newest`.
    fn make_room(&self, newest: &Entry) {
        let (mut memory, mut disk) = self.kept_bytes();
        if memory <= self.keep_max.0 && disk <= self.keep_max.1 {
            return;
        }
        let entries = self.list();
        for e in entries.iter().filter(|e| e.number != newest.number) {
            if memory <= self.keep_max.0 && disk <= self.keep_max.1 {
                return;
            }
            let (m, d) = e.bytes();
            if m > 0 || d > 0 {
                tracing::debug!(id = e.id(), memory = m, disk = d, "result gives way");
                self.drop_result(e);
                (memory, disk) = (memory.saturating_sub(m), disk.saturating_sub(d));
            }
        }
    }
}

/// Forgets the oldest finished statement if the limit is reached.
fn forget_oldest(known: &mut BTreeMap<String, Arc<Entry>>) {
    if known.len() < ENTRIES_MAX {
        return;
    }
    let over = known.values().filter(|e| e.outcome.borrow().is_some());
    if let Some(entry) = over.min_by_key(|e| e.number).cloned() {
        known.remove(entry.id());
        entry.unkeep();
    }
}
