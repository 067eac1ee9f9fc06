//! The workers that a server knows.
//!
//! ```text
//!   join ─▶ Alive ─▶ Draining ─▶ Left          by the worker
//!             └─────────┴──────▶ Lost          no beat for a while, or its connection is gone
//! ```
//! A worker has a number that is never used twice. One that was lost stays lost: if its process comes back after all, it
//! is told to forget everything and joins under another number, so that nothing it made before counts.

use crate::wire::{Advice, Beat, Hello, Load, Welcome};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::watch;

/// Events that are remembered.
const EVENTS_MAX: usize = 1024;
/// Workers that are remembered when they are gone.
const GONE_MAX: usize = 64;

/// What a registry keeps to.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From one beat to the next.
    pub beat: Duration,
    /// A worker without a beat for so long is lost.
    pub dead_after: Duration,
    /// Workers at a time.
    pub workers_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            beat: Duration::from_millis(1000),
            dead_after: Duration::from_secs(5),
            workers_max: 1024,
        }
    }
}

/// What a worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It gets work.
    Alive,
    /// It finishes what it has, to leave.
    Draining,
    /// It left.
    Left,
    /// It is gone, and what it had with it.
    Lost,
}

impl State {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            State::Alive => "alive",
            State::Draining => "draining",
            State::Left => "left",
            State::Lost => "lost",
        }
    }

    /// True if it answers.
    pub fn is_here(self) -> bool {
        matches!(self, State::Alive | State::Draining)
    }
}

/// A worker.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its number.
    pub number: u32,
    /// What it said when it joined.
    pub hello: Hello,
    /// What it is.
    pub state: State,
    /// When it was heard last.
    pub heard: Instant,
    /// What it said of itself last.
    pub load: Load,
    /// Why it is gone.
    pub why: Option<String>,
    restart: bool,
}

/// Something that happened to a worker, or to a statement's work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Counted from 1.
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// `joined`, `left`, `lost`, `draining`, `restarted`, `recovered`, `poison`, …
    pub kind: &'static str,
    /// The worker.
    pub worker: Option<u32>,
    /// The statement.
    pub statement: Option<String>,
    /// What happened, with its numbers.
    pub detail: String,
}

/// Why a worker cannot join.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refused {
    /// It is another program.
    #[error("the worker is version {worker}, this server {server}: both have to be the same")]
    Version {
        /// The worker's.
        worker: String,
        /// The server's.
        server: String,
    },
    /// There are as many as may be.
    #[error("the cluster already has {limit} workers")]
    Full {
        /// The limit.
        limit: usize,
    },
}

#[derive(Default)]
struct Inner {
    members: BTreeMap<u32, Member>,
    next: u32,
    events: VecDeque<Event>,
    event: u64,
}

/// The workers.
pub struct Registry {
    limits: Limits,
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("members", &self.all().len()).finish_non_exhaustive()
    }
}

impl Registry {
    /// Nobody yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (changes, _) = watch::channel(0);
        Arc::new(Registry { limits, inner: Mutex::default(), changes })
    }

    /// What it keeps to.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|n| *n += 1);
    }

    /// A worker joins. One that joins again has its number as long as it was not lost; another process of the same
    /// address is another worker, and the one before is lost.
    ///
    /// # Errors
    /// Another version, or too many workers.
    pub fn join(&self, hello: &Hello, version: &str, now: Instant) -> Result<Welcome, Refused> {
        if hello.version != version {
            let (worker, server) = (hello.version.clone(), version.to_owned());
            return Err(Refused::Version { worker, server });
        }
        let beat_ms = self.limits.beat.as_millis() as u64;
        let mut inner = self.inner();
        let same = |m: &&mut Member| m.state.is_here() && m.hello.address == hello.address;
        let known = inner.members.values_mut().find(same);
        if let Some(member) = known {
            if member.hello.incarnation == hello.incarnation {
                member.heard = now;
                return Ok(Welcome { worker: member.number, beat_ms });
            }
            let number = member.number;
            inner.end(number, State::Lost, "another process came in its place");
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
            state: State::Alive,
            heard: now,
            load: Load::default(),
            why: None,
            restart: false,
        };
        inner.members.insert(number, member);
        let detail = format!("{} at {}, {} threads", hello.name, hello.address, hello.threads);
        inner.note("joined", Some(number), None, detail);
        inner.forget();
        drop(inner);
        self.changed();
        Ok(Welcome { worker: number, beat_ms })
    }

    /// A worker is heard.
    pub fn beat(&self, beat: &Beat, now: Instant) -> Advice {
        let mut inner = self.inner();
        let Some(member) = inner.members.get_mut(&beat.worker) else { return Advice::Join };
        if !member.state.is_here() || member.hello.incarnation != beat.incarnation {
            return Advice::Join;
        }
        member.heard = now;
        member.load = beat.load.clone();
        if std::mem::take(&mut member.restart) {
            return Advice::Restart;
        }
        if beat.draining && member.state == State::Alive {
            member.state = State::Draining;
            inner.note("draining", Some(beat.worker), None, "it finishes what it has".into());
            drop(inner);
            self.changed();
        }
        Advice::Go
    }

    /// A worker leaves.
    pub fn leave(&self, beat: &Beat) {
        let mut inner = self.inner();
        let is_it = |m: &&mut Member| m.hello.incarnation == beat.incarnation && m.state.is_here();
        if let Some(member) = inner.members.get_mut(&beat.worker).filter(is_it) {
            member.load = beat.load.clone();
            inner.end(beat.worker, State::Left, "it left");
            drop(inner);
            self.changed();
        }
    }

    /// Somebody saw that a worker is gone; false if that was known.
    pub fn lost(&self, worker: u32, why: &str) -> bool {
        let mut inner = self.inner();
        let was_here = inner.members.get(&worker).is_some_and(|m| m.state.is_here());
        if was_here {
            inner.end(worker, State::Lost, why);
            drop(inner);
            self.changed();
        }
        was_here
    }

    /// Workers that were not heard for too long are lost.
    pub fn expire(&self, now: Instant) -> Vec<u32> {
        let silent: Vec<(u32, Duration)> = {
            let inner = self.inner();
            let here = inner.members.values().filter(|m| m.state.is_here());
            here.map(|m| (m.number, now.saturating_duration_since(m.heard)))
                .filter(|(_, silence)| *silence > self.limits.dead_after)
                .collect()
        };
        let gone = silent.into_iter().filter(|(number, silence)| {
            self.lost(*number, &format!("it was not heard for {:.1} s", silence.as_secs_f64()))
        });
        gone.map(|(number, _)| number).collect()
    }

    /// Each worker is told once to start again; how many there are.
    pub fn restart(&self) -> usize {
        let mut inner = self.inner();
        let mut told = Vec::new();
        for member in inner.members.values_mut().filter(|m| m.state.is_here()) {
            member.restart = true;
            told.push(member.number);
        }
        for number in &told {
            inner.note("restarted", Some(*number), None, "it is told to start again".into());
        }
        told.len()
    }

    /// The workers that get work, by number.
    pub fn alive(&self) -> Vec<Member> {
        let inner = self.inner();
        inner.members.values().filter(|m| m.state == State::Alive).cloned().collect()
    }

    /// A worker.
    pub fn member(&self, worker: u32) -> Option<Member> {
        self.inner().members.get(&worker).cloned()
    }

    /// True if a worker answers, as far as is known.
    pub fn is_here(&self, worker: u32) -> bool {
        self.inner().members.get(&worker).is_some_and(|m| m.state.is_here())
    }

    /// All workers, with the last ones that are gone, by number.
    pub fn all(&self) -> Vec<Member> {
        self.inner().members.values().cloned().collect()
    }

    /// Counts what happens to workers.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Remembers something that happened.
    pub fn note(
        &self,
        kind: &'static str,
        worker: Option<u32>,
        statement: Option<&str>,
        detail: String,
    ) {
        self.inner().note(kind, worker, statement, detail);
    }

    /// What happened last, the oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.inner().events.iter().cloned().collect()
    }
}

impl Inner {
    fn end(&mut self, worker: u32, state: State, why: &str) {
        let Some(member) = self.members.get_mut(&worker) else { return };
        member.state = state;
        member.why = Some(why.to_owned());
        self.note(state.name(), Some(worker), None, why.to_owned());
        self.forget();
    }

    /// Forgets the workers that have been gone longest.
    fn forget(&mut self) {
        let gone: Vec<u32> =
            self.members.values().filter(|m| !m.state.is_here()).map(|m| m.number).collect();
        for number in gone.iter().take(gone.len().saturating_sub(GONE_MAX)) {
            self.members.remove(number);
        }
    }

    fn note(
        &mut self,
        kind: &'static str,
        worker: Option<u32>,
        statement: Option<&str>,
        detail: String,
    ) {
        self.event += 1;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        tracing::info!(kind, worker, statement, detail, "cluster");
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            number: self.event,
            time_ms: time.as_millis() as u64,
            kind,
            worker,
            statement: statement.map(str::to_owned),
            detail,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn hello(port: u16, incarnation: u64) -> Hello {
        Hello {
            name: format!("w{port}"),
            address: format!("127.0.0.1:{port}"),
            threads: 2,
            memory_bytes: 1 << 30,
            pid: 1,
            incarnation,
            version: "1".into(),
        }
    }

    fn beat(worker: u32, incarnation: u64) -> Beat {
        Beat { worker, incarnation, ..Beat::default() }
    }

    #[test]
    fn who_is_lost_stays_lost() {
        let registry = Registry::new(Limits::default());
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let one = registry.join(&hello(1, 10), "1", at(0)).unwrap().worker;
        let two = registry.join(&hello(2, 20), "1", at(0)).unwrap().worker;
        // Joining again is no second worker.
        assert_eq!(registry.join(&hello(2, 20), "1", at(1)).unwrap().worker, two);
        assert_eq!(registry.beat(&beat(one, 10), at(4)), Advice::Go);
        assert_eq!(registry.expire(at(7)), [two]);
        assert_eq!(registry.beat(&beat(two, 20), at(7)), Advice::Join);
        // Its process comes back, and is another worker.
        let three = registry.join(&hello(2, 20), "1", at(8)).unwrap().worker;
        assert!(three > two);
        assert_eq!(registry.beat(&beat(two, 20), at(8)), Advice::Join);
        assert_eq!(registry.beat(&beat(three, 20), at(8)), Advice::Go);
        // A new process in its place.
        let four = registry.join(&hello(2, 21), "1", at(9)).unwrap().worker;
        assert_eq!(registry.member(three).unwrap().state, State::Lost);
        let alive: Vec<u32> = registry.alive().iter().map(|m| m.number).collect();
        assert_eq!(alive, [one, four]);
        let kinds: Vec<&str> = registry.events().iter().map(|e| e.kind).collect();
        assert_eq!(kinds, ["joined", "joined", "lost", "joined", "lost", "joined"]);
    }

    #[test]
    fn draining_workers_get_nothing_and_leave() {
        let registry = Registry::new(Limits::default());
        let mut changes = registry.changes();
        let now = Instant::now();
        let one = registry.join(&hello(1, 10), "1", now).unwrap().worker;
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let draining = Beat { draining: true, ..beat(one, 10) };
        assert_eq!(registry.beat(&draining, now), Advice::Go);
        assert!(changes.has_changed().unwrap());
        assert!(registry.alive().is_empty() && registry.is_here(one));
        registry.leave(&beat(one, 11));
        assert!(registry.is_here(one), "another incarnation cannot leave for it");
        registry.leave(&beat(one, 10));
        assert!(!registry.is_here(one));
        assert!(!registry.lost(one, "late"));
        assert_eq!(registry.member(one).unwrap().state, State::Left);
    }

    #[test]
    fn each_is_told_once_to_start_again() {
        let registry = Registry::new(Limits::default());
        let now = Instant::now();
        let one = registry.join(&hello(1, 10), "1", now).unwrap().worker;
        assert_eq!(registry.restart(), 1);
        assert_eq!(registry.beat(&beat(one, 10), now), Advice::Restart);
        assert_eq!(registry.beat(&beat(one, 10), now), Advice::Go);
    }

    #[test]
    fn others_are_refused() {
        let registry = Registry::new(Limits { workers_max: 1, ..Limits::default() });
        let now = Instant::now();
        let other = registry.join(&hello(1, 10), "2", now).unwrap_err();
        assert!(matches!(other, Refused::Version { .. }));
        registry.join(&hello(1, 10), "1", now).unwrap();
        assert_eq!(registry.join(&hello(2, 20), "1", now), Err(Refused::Full { limit: 1 }));
    }

    #[test]
    fn the_gone_are_forgotten_in_time() {
        let registry = Registry::new(Limits::default());
        let now = Instant::now();
        for i in 0..200 {
            registry.join(&hello(1, i), "1", now).unwrap();
        }
        assert_eq!(registry.all().len(), GONE_MAX + 1);
        assert!(registry.events().len() <= EVENTS_MAX);
    }
}
