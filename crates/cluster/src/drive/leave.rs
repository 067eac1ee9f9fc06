//! Workers that leave hand over their chunks, so that no chunk is recomputed.
//!
//! ```text
//!   a worker drains ─▶ its chunks that are still needed and that no other party has
//!                        └─▶ orders for the others, who load them ─▶ it forgets the plan ─▶ it leaves
//! ```
//! An order that began earlier may still expect a chunk at its old place. It gets the chunk from the server, which
//! knows the new place and relays the chunk.

use super::holders::is_permanent;
use super::round::Stop;
use super::{CALL, Drive, Has};
use crate::net::Fault;
use crate::registry::{Member, WorkerState};
use crate::wire::{News, OrderMessage, PlanName};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use tessera_exec::error::Error;
use tessera_planner::place::Worker;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_storage::lock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Interval between looks at a worker that leaves.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes that one order hands over to a worker: chunks count as handed over when the order is done.
const BATCH_BYTES: u64 = 64 << 20;

/// Orders in flight by worker, until their chunks are known.
#[derive(Default)]
pub(super) struct Flights(Mutex<BTreeMap<u32, usize>>);

/// An order in flight, until it is dropped.
pub(super) struct Flight<'a> {
    flights: &'a Flights,
    pub(super) worker: u32,
}

impl Flights {
    pub(super) fn begin(&self, worker: u32) -> Flight<'_> {
        *lock(&self.0).entry(worker).or_default() += 1;
        Flight { flights: self, worker }
    }

    fn has(&self, worker: u32) -> bool {
        lock(&self.0).contains_key(&worker)
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flights = lock(&self.flights.0);
        if let Some(n) = flights.get_mut(&self.worker) {
            *n -= 1;
            if *n == 0 {
                flights.remove(&self.worker);
            }
        }
    }
}

/// Hands over the chunks of a plan whenever a worker leaves, until the plan is dropped.
pub(super) async fn watch(
    drive: Weak<Drive>,
    mut changes: watch::Receiver<u64>,
    over: CancellationToken,
) {
    loop {
        changes.mark_unchanged();
        let Some(drive) = drive.upgrade() else { return };
        let begun = Instant::now();
        let leaving = tokio::select! {
            leaving = drive.hand_over() => leaving,
            () = is_unused(&drive) => return,
        };
        drop(drive);
        // A look at a large plan takes time: most of it is left to others.
        let pause = LOOK.max(begun.elapsed() * 4);
        tokio::select! {
            _ = changes.changed() => {}
            () = tokio::time::sleep(pause), if leaving => {}
            () = over.cancelled() => return,
        }
    }
}

/// Returns once no other owner needs the plan.
async fn is_unused(drive: &Arc<Drive>) {
    while Arc::strong_count(drive) > 1 {
        tokio::time::sleep(LOOK).await;
    }
}

impl Drive {
    /// Hands over the chunks of workers that leave; false if none of them has anything to do with the plan.
    async fn hand_over(&self) -> bool {
        let registry = self.cluster.registry();
        let leaves = |m: &Member| {
            m.state == WorkerState::Draining && lock(&self.notified).contains(&m.number)
        };
        let leaving: Vec<Member> = registry.all().into_iter().filter(leaves).collect();
        for member in &leaving {
            // A worker that joins may take them.
            let others = self.here();
            if let Err(error) = self.hand_over_of(member, &others).await {
                tracing::warn!(worker = member.number, %error, "its chunks are not handed over yet");
            }
        }
        !leaving.is_empty()
    }

    async fn hand_over_of(
        &self,
        member: &Member,
        others: &BTreeMap<u32, Worker>,
    ) -> Result<(), Error> {
        let needed = self.only_of(member.number).await?;
        if !needed.iter().all(Bitmap::is_empty) {
            return match others.is_empty() {
                true => Ok(()),
                false => self.give(member, others, &needed).await,
            };
        }
        // An order that runs there may make more.
        if self.flights.has(member.number) {
            return Ok(());
        }
        lock(&self.holders).clear(member.number);
        let plan = PlanName { plan: self.id.clone() };
        let address = &member.hello.address;
        let forgotten: Result<(), Fault> =
            self.cluster.peers().call(address, "forget", &plan, CALL).await;
        forgotten.map_err(|fault| Error::PartyLost {
            party: address.clone(),
            reason: fault.to_string(),
        })?;
        lock(&self.notified).remove(&member.number);
        Ok(())
    }

    /// The operands whose chunks are still needed and that only this worker has.
    async fn only_of(&self, worker: u32) -> Result<Has, Error> {
        let none = || vec![Bitmap::default(); self.tiling.plan().stages.len()];
        let registry = self.cluster.registry();
        let (own, others) = {
            let holders = lock(&self.holders);
            let Some(own) = holders.of(worker).cloned() else { return Ok(none()) };
            let is_alive = |m: Member| m.state == WorkerState::Alive;
            let mut others = none();
            for (_, has) in holders.parties().filter(|(party, _)| {
                is_permanent(*party)
                    || *party != worker && registry.member(*party).is_some_and(is_alive)
            }) {
                others.iter_mut().zip(has).for_each(|(all, has)| all.extend(has));
            }
            (own, others)
        };
        let mut needed = self.rest(self.available()).await?.loads;
        for ((needed, own), others) in needed.iter_mut().zip(&own).zip(&others) {
            *needed = needed.and(own);
            needed.remove_all(others);
        }
        Ok(needed)
    }

    /// Has other workers load chunks of a worker, and retain them.
    async fn give(
        &self,
        from: &Member,
        others: &BTreeMap<u32, Worker>,
        needed: &Has,
    ) -> Result<(), Error> {
        let mut batches = self.batches(needed);
        let mut given = 0;
        while !batches.is_empty() {
            let orders = others.iter().map_while(|(worker, place)| {
                let run = batches.pop_front()?;
                Some(async move {
                    let end = self.adopt(*worker, &place.name, &run).await;
                    end.map(|()| run.iter().map(|(_, numbers)| numbers.len()).sum::<u64>())
                })
            });
            let orders: Vec<_> = orders.collect();
            for end in futures::future::join_all(orders).await {
                given += end?;
            }
        }
        self.count(|t| t.handed_over += given);
        let what = format!("it handed the chunks of {given} operands over to other workers");
        self.cluster.registry().note("handed_over", Some(from.number), Some(&self.id), what);
        Ok(())
    }

    /// Operands in orders of a bounded number of bytes.
    fn batches(&self, needed: &Has) -> VecDeque<Vec<(StageId, Bitmap)>> {
        let mut batches: VecDeque<Vec<(StageId, Bitmap)>> = VecDeque::new();
        let mut room = 0;
        for (stage, numbers) in (0..).map(StageId).zip(needed) {
            let grid = &self.tiling.plan().stage(stage).grid;
            for number in numbers.iter() {
                let bytes = self.tiling.output_bytes(stage, &grid.unravel(number));
                if bytes > room || batches.is_empty() {
                    batches.push_back(Vec::new());
                    room = BATCH_BYTES;
                }
                room = room.saturating_sub(bytes);
                let Some(batch) = batches.back_mut() else { continue };
                match batch.last_mut() {
                    Some((last, of)) if *last == stage => {
                        of.insert(number);
                    }
                    _ => batch.push((stage, [number].into_iter().collect())),
                }
            }
        }
        batches
    }

    /// Has a worker load chunks of another one, and retain them.
    async fn adopt(
        &self,
        worker: u32,
        address: &str,
        run: &[(StageId, Bitmap)],
    ) -> Result<(), Error> {
        let _flight = self.flights.begin(worker);
        lock(&self.notified).insert(worker);
        let failed = |stop| match stop {
            Stop::Died(_) => self.lost_error(worker, address),
            Stop::Failed(error) | Stop::Over(error) => error,
        };
        let plan = lock(&self.encoded).clone();
        // The worker that leaves has got it.
        let unsent = || Error::Broken { what: "a plan with chunks was not sent".into() };
        let plan = plan.ok_or_else(unsent)?;
        let learned = self.ask(worker, address, "plan", plan, &|_| ()).await.map_err(failed)?;
        self.learned(worker, address, &learned).map_err(failed)?;
        let message = OrderMessage {
            plan: self.id.clone(),
            run: run.to_vec(),
            hold: Vec::new(),
            news: News::default(),
            begun: self.stored.as_ref().is_some_and(|stored| stored.durable().is_open()),
            threads: self.threads,
            writes: self.writes(),
        };
        let done = self.order(worker, address, message.clone(), false).await;
        let (done, _) = done.map_err(failed)?;
        self.finished(worker, address, &message, &done).map_err(failed)
    }
}
