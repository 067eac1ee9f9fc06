//! The registry of workers.
//!
//! ```text
//!   join ─▶ Alive ─▶ Draining ─▶ Left          by the worker
//!             └─────────┴──────▶ Lost          no heartbeat for a while, or its connection broke
//! ```
//! The number of a worker is never reused. A lost worker stays lost: if its process comes back after all, it
//! discards everything and joins under another number, so that nothing it made before counts.

use crate::net::Fault;
use crate::wire::{Advice, Beat, GO_TOGETHER, Hello, Load, Version, Watch, Welcome};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tessera_storage::lock;
use thiserror::Error;
use tokio::sync::watch;

/// How long the process of a restarting worker may take to end.
const ENDS: Duration = Duration::from_secs(10);
/// A refusal for the same reason is recorded again after this time: a refused worker tries again every few seconds.
const REFUSED_MS: u64 = 60_000;

/// Limits of a registry.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Interval between heartbeats.
    pub beat: Duration,
    /// A worker without a heartbeat for this long is lost.
    pub dead_after: Duration,
    /// How long a statement waits for workers if none is left.
    pub wait: Duration,
    /// Upper bound on present workers.
    pub workers_max: usize,
    /// Upper bound on remembered workers that left or were lost.
    pub gone_kept: usize,
    /// Upper bound on remembered events.
    pub events_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            beat: Duration::from_millis(1000),
            dead_after: Duration::from_secs(5),
            wait: Duration::from_secs(120),
            workers_max: 1024,
            gone_kept: 64,
            events_max: 1024,
        }
    }
}

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// Gets orders.
    Alive,
    /// Finishes its orders before it leaves.
    Draining,
    /// Has left.
    Left,
    /// Is lost, and its chunks with it.
    Lost,
}

impl WorkerState {
    /// The name in answers.
    pub fn name(self) -> &'static str {
        match self {
            WorkerState::Alive => "alive",
            WorkerState::Draining => "draining",
            WorkerState::Left => "left",
            WorkerState::Lost => "lost",
        }
    }

    /// True if the worker is present.
    pub fn is_here(self) -> bool {
        matches!(self, WorkerState::Alive | WorkerState::Draining)
    }
}

/// A worker in the registry.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number.
    pub number: u32,
    /// Its introduction when it joined.
    pub hello: Hello,
    /// Its current state.
    pub state: WorkerState,
    /// When it entered the state, in milliseconds since 1970.
    pub since_ms: u64,
    /// When it joined.
    pub joined: Instant,
    /// When it left or was lost.
    pub ended: Option<Instant>,
    /// When its last heartbeat arrived.
    pub heard: Instant,
    /// The load in its last heartbeat.
    pub load: Load,
    /// Workers that it cannot reach, by number; the server relays their chunks.
    pub apart: Vec<u32>,
    /// Why it left or was lost.
    pub why: Option<String>,
    /// The worker should restart, and has not been asked to yet.
    restart: bool,
}

impl Member {
    /// Why it left or was lost, or which workers it cannot reach.
    pub fn lacks(&self) -> Option<String> {
        if self.why.is_some() || self.apart.is_empty() {
            return self.why.clone();
        }
        let numbers: Vec<String> = self.apart.iter().map(u32::to_string).collect();
        Some(format!("it does not reach worker {}", numbers.join(", ")))
    }

    /// Seconds since its last heartbeat.
    pub fn heard_s(&self) -> f64 {
        Instant::now().saturating_duration_since(self.heard).as_secs_f64()
    }
}

/// An event of a worker, or of a statement on the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Number of the event, from 1.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// `joined`, `refused`, `left`, `lost`, `draining`, `handed_over`, `restarted`, `killed`, `recovering`, `waiting`,
    /// `apart`, `reached`, `no_rows`, `poison`, …
    pub kind: &'static str,
    /// The worker.
    pub worker: Option<u32>,
    /// The statement.
    pub statement: Option<String>,
    /// The event in words, with its numbers.
    pub detail: String,
}

/// Why a worker cannot join.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Refused {
    /// The worker has another protocol, or computes other bits.
    #[error(
        "versions do not go together: the worker is {worker}, the server {server}; {GO_TOGETHER}"
    )]
    Version { worker: Box<Version>, server: Box<Version> },
    #[error("too many workers in the cluster (limit {limit})")]
    Full { limit: usize },
}

/// Checks that a worker goes with a server.
///
/// # Errors
/// [`Refused::Version`].
pub(crate) fn check_version(hello: &Hello, server: &Version) -> Result<(), Refused> {
    if hello.version.goes_with(server) {
        return Ok(());
    }
    let (worker, server) = (hello.version.clone().into(), server.clone().into());
    Err(Refused::Version { worker, server })
}

#[derive(Default)]
struct Inner {
    members: BTreeMap<u32, Member>,
    next: u32,
    /// When each supervisor asked last.
    watched: BTreeMap<u64, Instant>,
    events: VecDeque<Event>,
    event: u64,
}

/// The registry of workers.
pub struct Registry {
    limits: Limits,
    /// See [`Welcome::server`].
    server: u64,
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("members", &self.all().len()).finish_non_exhaustive()
    }
}

impl Registry {
    /// An empty registry.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (changes, _) = watch::channel(0);
        let server = uuid::Uuid::new_v4().as_u64_pair().0;
        Arc::new(Registry { limits, server, inner: Mutex::default(), changes })
    }

    /// The limits of this registry.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// Registers a worker. A worker that joins again keeps its number unless it was lost. Another process at the same
    /// address is another worker, and the one before is lost.
    ///
    /// # Errors
    /// Versions that do not go together, or too many workers.
    pub fn join(&self, hello: &Hello, version: &Version, now: Instant) -> Result<Welcome, Refused> {
        check_version(hello, version)?;
        let (server, beat_ms) = (self.server, self.limits.beat.as_millis() as u64);
        let mut inner = lock(&self.inner);
        let same = |m: &&mut Member| m.state.is_here() && m.hello.address == hello.address;
        let known = inner.members.values_mut().find(same);
        if let Some(member) = known {
            if member.hello.incarnation == hello.incarnation {
                member.heard = now;
                return Ok(Welcome { worker: member.number, server, beat_ms });
            }
            let number = member.number;
            inner.end(&self.limits, number, WorkerState::Lost, "another process came in its place");
        }
        let here = inner.members.values().filter(|m| m.state.is_here()).count();
        if here >= self.limits.workers_max {
            return Err(Refused::Full { limit: self.limits.workers_max });
        }
        inner.next += 1;
        let number = inner.next;
        let member = Member {
            number,
            hello: hello.clone(),
            state: WorkerState::Alive,
            since_ms: unix_ms(),
            // Not `now`: the worker that it replaces has ended since.
            joined: Instant::now(),
            ended: None,
            heard: now,
            load: Load::default(),
            apart: Vec::new(),
            why: None,
            restart: false,
        };
        inner.members.insert(number, member);
        let detail = format!("{} at {}, {} threads", hello.name, hello.address, hello.threads);
        inner.note(&self.limits, "joined", Some(number), None, detail);
        inner.forget(&self.limits);
        drop(inner);
        self.changed();
        Ok(Welcome { worker: number, server, beat_ms })
    }

    /// Records that a worker could not join.
    pub(crate) fn refused(&self, hello: &Hello, fault: &Fault) {
        let detail = format!("worker `{}`: {}", hello.name, fault.reason());
        let mut inner = lock(&self.inner);
        let since = unix_ms().saturating_sub(REFUSED_MS);
        let is_it = |e: &Event| e.kind == "refused" && e.time_ms > since && e.detail == detail;
        if !inner.events.iter().any(is_it) {
            tracing::warn!("a worker cannot join: {detail}");
            inner.note(&self.limits, "refused", None, None, detail);
        }
    }

    /// Handles a heartbeat.
    pub fn beat(&self, beat: &Beat, now: Instant) -> Advice {
        let mut inner = lock(&self.inner);
        let Some(member) = inner.members.get_mut(&beat.worker) else { return Advice::Join };
        if !member.state.is_here() || member.hello.incarnation != beat.incarnation {
            return Advice::Join;
        }
        member.heard = now;
        member.load = beat.load.clone();
        inner.meet(&self.limits, beat);
        let Some(member) = inner.members.get_mut(&beat.worker) else { return Advice::Join };
        if beat.draining {
            // A draining worker does not restart.
            member.restart = false;
            if member.state == WorkerState::Alive {
                (member.state, member.since_ms) = (WorkerState::Draining, unix_ms());
                let detail = "it finishes what it has".into();
                inner.note(&self.limits, "draining", Some(beat.worker), None, detail);
                drop(inner);
                self.changed();
            }
            return Advice::Go;
        }
        if member.restart {
            // Its process ends with all of its chunks: it gets no more orders in the meantime.
            inner.end(&self.limits, beat.worker, WorkerState::Left, "it starts again");
            drop(inner);
            self.changed();
            return Advice::Restart;
        }
        Advice::Go
    }

    /// Marks a worker as left.
    pub fn leave(&self, beat: &Beat) {
        let mut inner = lock(&self.inner);
        let is_it = |m: &&mut Member| m.hello.incarnation == beat.incarnation && m.state.is_here();
        if let Some(member) = inner.members.get_mut(&beat.worker).filter(is_it) {
            member.load = beat.load.clone();
            inner.end(&self.limits, beat.worker, WorkerState::Left, "it left");
            drop(inner);
            self.changed();
        }
    }

    /// Marks a worker as lost; false if it was not present any more.
    pub fn lost(&self, worker: u32, why: &str) -> bool {
        let mut inner = lock(&self.inner);
        let was_here = inner.members.get(&worker).is_some_and(|m| m.state.is_here());
        if was_here {
            inner.end(&self.limits, worker, WorkerState::Lost, why);
            drop(inner);
            self.changed();
        }
        was_here
    }

    /// Marks workers without a recent heartbeat as lost, and returns them.
    pub fn expire(&self, now: Instant) -> Vec<u32> {
        // Under one lock: a heartbeat that arrives now keeps its worker.
        let mut inner = lock(&self.inner);
        let here = inner.members.values().filter(|m| m.state.is_here());
        let silent: Vec<(u32, Duration)> = here
            .map(|m| (m.number, now.saturating_duration_since(m.heard)))
            .filter(|(_, silence)| *silence > self.limits.dead_after)
            .collect();
        for (number, silence) in &silent {
            let why = format!("it was not heard for {:.1} s", silence.as_secs_f64());
            inner.end(&self.limits, *number, WorkerState::Lost, &why);
        }
        drop(inner);
        if !silent.is_empty() {
            self.changed();
        }
        silent.into_iter().map(|(number, _)| number).collect()
    }

    /// Requests a restart of each worker that gets orders, with the response to its next heartbeat, and returns their
    /// number. A worker that is silent, now or then, is ended by its supervisor.
    pub fn restart(&self, now: Instant) -> usize {
        let mut inner = lock(&self.inner);
        let recent = self.limits.dead_after;
        inner.watched.retain(|_, asked| now.saturating_duration_since(*asked) <= recent);
        let looked_after = inner.watched.clone();
        let mut restarted = Vec::new();
        for member in inner.members.values_mut() {
            let is_watched =
                || member.hello.supervisor.is_some_and(|s| looked_after.contains_key(&s));
            let what = match member.state {
                WorkerState::Alive => "it was asked to start again",
                // Its process exists, because its supervisor waits for its end.
                WorkerState::Lost if is_watched() => "it does not respond: its supervisor ends it",
                _ => continue,
            };
            member.restart = true;
            restarted.push((member.number, what));
        }
        for (number, what) in &restarted {
            inner.note(&self.limits, "restarted", Some(*number), None, (*what).into());
        }
        restarted.len()
    }

    /// The advice for a supervisor: restart the worker if it should have restarted by itself and did not.
    pub fn watch(&self, watch: Watch, now: Instant) -> Advice {
        let mut inner = lock(&self.inner);
        inner.watched.insert(watch.supervisor, now);
        let is_its = |m: &&Member| m.hello.supervisor == Some(watch.supervisor);
        let Some(member) = inner.members.values().rfind(is_its).filter(|m| m.restart) else {
            return Advice::Go;
        };
        let gone = member.ended.map(|ended| now.saturating_duration_since(ended));
        let (number, is_silent) = (member.number, member.state == WorkerState::Lost);
        match gone {
            Some(gone) if is_silent || gone > ENDS => {
                let detail = "it does not end: its supervisor ends it".into();
                if let Some(member) = inner.members.get_mut(&number) {
                    member.restart = false;
                }
                inner.note(&self.limits, "killed", Some(number), None, detail);
                Advice::Restart
            }
            _ => Advice::Go,
        }
    }

    /// The workers that get orders, by number.
    pub fn alive(&self) -> Vec<Member> {
        let inner = lock(&self.inner);
        inner.members.values().filter(|m| m.state == WorkerState::Alive).cloned().collect()
    }

    /// Threads of the workers that get orders.
    pub(crate) fn threads(&self) -> u64 {
        let inner = lock(&self.inner);
        let alive = inner.members.values().filter(|m| m.state == WorkerState::Alive);
        alive.map(|m| u64::from(m.hello.threads)).sum()
    }

    /// Looks up a worker by its number.
    pub fn member(&self, worker: u32) -> Option<Member> {
        lock(&self.inner).members.get(&worker).cloned()
    }

    /// The address of a worker that is present, as far as is known.
    pub(crate) fn address(&self, worker: u32) -> Option<String> {
        self.member(worker).filter(|m| m.state.is_here()).map(|m| m.hello.address)
    }

    /// True if the worker is present, as far as is known.
    pub fn is_here(&self, worker: u32) -> bool {
        lock(&self.inner).members.get(&worker).is_some_and(|m| m.state.is_here())
    }

    /// True if a present worker had joined by `then`, as far as is known.
    pub fn has_since(&self, then: Instant) -> bool {
        lock(&self.inner).members.values().any(|m| m.state.is_here() && m.joined <= then)
    }

    /// True if a present worker listens at the address, as far as is known.
    pub fn is_address(&self, address: &str) -> bool {
        lock(&self.inner).members.values().any(|m| m.state.is_here() && m.hello.address == address)
    }

    /// All present workers and the last ones that ended, by number.
    pub fn all(&self) -> Vec<Member> {
        lock(&self.inner).members.values().cloned().collect()
    }

    /// A counter of changes to workers.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Records an event.
    pub fn note(
        &self,
        kind: &'static str,
        worker: Option<u32>,
        statement: Option<&str>,
        detail: String,
    ) {
        lock(&self.inner).note(&self.limits, kind, worker, statement, detail);
    }

    /// Recent events, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        lock(&self.inner).events.iter().cloned().collect()
    }
}

impl Inner {
    fn end(&mut self, limits: &Limits, worker: u32, state: WorkerState, why: &str) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        (member.state, member.since_ms) = (state, unix_ms());
        (member.why, member.ended) = (Some(why.to_owned()), Some(Instant::now()));
        self.note(limits, state.name(), Some(worker), None, why.to_owned());
        self.forget(limits);
    }

    /// Updates the workers that the sender cannot reach.
    fn meet(&mut self, limits: &Limits, beat: &Beat) {
        let here = self.members.values().filter(|m| m.state.is_here() && m.number != beat.worker);
        let is_apart = |m: &&Member| beat.load.apart.contains(&m.hello.address);
        let now: Vec<u32> = here.filter(is_apart).map(|m| m.number).collect();
        let Some(member) = self.members.get_mut(&beat.worker) else { return };
        let before = std::mem::replace(&mut member.apart, now.clone());
        for other in now.iter().filter(|other| !before.contains(other)) {
            let detail =
                format!("it does not reach worker {other}, whose chunks the server passes on");
            self.note(limits, "apart", Some(beat.worker), None, detail);
        }
        for other in before.iter().filter(|other| !now.contains(other)) {
            if self.members.get(other).is_some_and(|m| m.state.is_here()) {
                let detail = format!("it can reach worker {other} again");
                self.note(limits, "reached", Some(beat.worker), None, detail);
            }
        }
    }

    /// Forgets workers that ended, those with the lowest numbers first.
    fn forget(&mut self, limits: &Limits) {
        let gone: Vec<u32> =
            self.members.values().filter(|m| !m.state.is_here()).map(|m| m.number).collect();
        for number in gone.iter().take(gone.len().saturating_sub(limits.gone_kept)) {
            self.members.remove(number);
        }
    }

    fn note(
        &mut self,
        limits: &Limits,
        kind: &'static str,
        worker: Option<u32>,
        statement: Option<&str>,
        detail: String,
    ) {
        self.event += 1;
        tracing::info!(kind, worker, statement, detail, "cluster");
        self.events.push_back(Event {
            number: self.event,
            time_ms: unix_ms(),
            kind,
            worker,
            statement: statement.map(str::to_owned),
            detail,
        });
        while self.events.len() > limits.events_max {
            self.events.pop_front();
        }
    }
}

/// The current time in milliseconds since 1970.
fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests;
