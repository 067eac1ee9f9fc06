//! The plans of a worker: their sources, their chunks on the worker, and their durable chunks.

use super::reuse::{Parked, Sharing};
use super::view::View;
use super::{CALL, Worker, to_fault};
use crate::net::Fault;
use crate::shelf::Kept;
use crate::wire::{Learned, News, PlanMessage, PlanNames};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tessera_exec::durable::{Did, Durable, DurableStore, Shared, Stored};
use tessera_exec::error::Error;
use tessera_exec::store::Resident;
use tessera_exec::task::{Origin, PlanRunner, Sources};
use tessera_planner::catalog::SourceRef;
use tessera_planner::plan::Task;
use tessera_planner::tile::Tiling;
use tessera_storage::lock;
use tessera_storage::sink::{Folder, PartWriter};
use tessera_storage::source::{self, ArrayReader, Options, Versions};

/// Upper bound on the plans of a worker.
const PLANS_MAX: usize = 1024;

/// A plan, and its chunks on this worker.
pub(super) struct Known {
    pub(super) tiling: Arc<Tiling>,
    pub(super) runner: Arc<PlanRunner>,
    pub(super) kept: Arc<Kept>,
    /// Chunks that outlive this process.
    pub(super) stored: Option<Arc<Stored>>,
    /// The counters of `stored` that were reported last.
    did: Mutex<Did>,
    pub(super) sharing: Sharing,
    /// The chunks of other parties.
    view: Mutex<Arc<View>>,
    /// Writes chunks of its results.
    output: Mutex<Option<Arc<PartWriter>>>,
    /// The response to the plan.
    learned: Learned,
}

impl Known {
    /// Stops storing chunks of the plan, and waits until none is written.
    async fn store_no_more(&self) {
        if let Some(stored) = &self.stored {
            stored.durable().close().await;
        }
    }

    /// The writer of the plan's output, if this worker writes it.
    pub(super) fn output(&self) -> Option<Arc<PartWriter>> {
        lock(&self.output).clone()
    }

    /// Stops writing to the output of the plan, and releases the memory for it.
    pub(super) fn close(&self) {
        let output = lock(&self.output).take();
        if let Some(output) = output {
            output.close();
        }
    }

    /// Adds the news of an order, and returns the view with them; `None` if the server has to send the whole log.
    pub(super) fn hear(&self, news: &News, server: &str) -> Result<Option<Arc<View>>, Fault> {
        let mut view = lock(&self.view);
        let stages = self.tiling.plan().stages.len();
        let is_whole = Arc::make_mut(&mut view).hear(news, stages, server)?;
        Ok(is_whole.then(|| view.clone()))
    }

    /// The work for durable chunks since the last call.
    pub(super) fn did(&self) -> Did {
        let Some(stored) = &self.stored else { return Did::default() };
        let now = stored.durable().did();
        let mut before = lock(&self.did);
        let did = now.since(&before);
        *before = now;
        did
    }

    /// Writes durable chunks from now on, if this process sees the storage of the server.
    pub(super) async fn begin(&self) {
        let Some(stored) = &self.stored else { return };
        let durable = stored.durable();
        if durable.is_open() {
            return;
        }
        match durable.has_record().await {
            true => durable.begin(),
            false => {
                tracing::warn!("the warehouse is not that of the server: no chunks are stored")
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Plans {
    pub(super) known: BTreeMap<String, Arc<Known>>,
    /// Recently forgotten plans: a message about one of them may arrive late.
    forgotten: VecDeque<String>,
    /// Plans whose server disconnected.
    pub(super) parked: Vec<Parked>,
    /// How often plans were parked: a plan that was being opened at that moment belongs to the lost server.
    pub(super) parks: u64,
}

impl Plans {
    fn forget(&mut self, plan: String) -> Option<Arc<Known>> {
        let known = self.known.remove(&plan);
        known.iter().for_each(|known| known.close());
        self.forgotten.push_back(plan);
        if self.forgotten.len() > PLANS_MAX {
            self.forgotten.pop_front();
        }
        known
    }
}

/// The plans of a worker when it last asked the server which of them are over.
#[derive(Default)]
pub(super) struct Asked {
    at: Option<Instant>,
    plans: BTreeSet<String>,
}

impl Worker {
    /// Removes a plan that is over, with its chunks, and waits until no more of it is written.
    pub(super) async fn forget(&self, plan: String) {
        if let Some(known) = self.remove(plan) {
            // The server removes stored chunks afterwards.
            known.store_no_more().await;
        }
    }

    fn remove(&self, plan: String) -> Option<Arc<Known>> {
        let known = lock(&self.plans).forget(plan)?;
        self.retire(&known);
        Some(known)
    }

    /// Forgets plans that the server does not run. Normally the server says that a plan is over. It does not if the
    /// plan of an earlier server arrived late, or if it had lost sight of this worker at the end of the plan. Asks once
    /// per `every`, for plans that were known here the time before.
    pub(super) async fn forget_over(&self, server: &str, asked: &mut Asked, every: Duration) {
        if asked.at.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        let now: BTreeSet<String> = lock(&self.plans).known.keys().cloned().collect();
        let plans: Vec<String> = now.intersection(&asked.plans).cloned().collect();
        *asked = Asked { at: Some(Instant::now()), plans: now };
        if plans.is_empty() {
            return;
        }
        let over = self.peers.call(server, "over", &PlanNames { plans }, CALL).await;
        let PlanNames { plans } = match over {
            Ok(over) => over,
            Err(fault) => {
                tracing::warn!(server, %fault, "the server does not say which plans are over");
                return;
            }
        };
        for plan in plans {
            tracing::info!(plan, "the server does not run this plan: it is forgotten");
            if let Some(known) = self.remove(plan) {
                // Heartbeats do not wait for storage.
                tokio::spawn(async move { known.store_no_more().await });
            }
        }
    }

    /// Adds a plan and opens its sources; a known plan stays as it is.
    pub(super) async fn learn(&self, message: PlanMessage) -> Result<Learned, Fault> {
        let parks = {
            let plans = lock(&self.plans);
            if let Some(known) = plans.known.get(&message.id) {
                return Ok(known.learned.clone());
            }
            if plans.known.len() >= PLANS_MAX {
                return Err(to_fault(&Error::Broken {
                    what: format!("a worker knows {PLANS_MAX} plans already"),
                }));
            }
            plans.parks
        };
        // All reads of this worker for the plan are of one version.
        let versions = Versions::new(message.durable.is_some());
        versions.expect(&message.reuse.versions);
        if let Some(shared) = &message.durable {
            versions.expect(&shared.versions);
        }
        let sources = self.open(&message, &versions).await.map_err(|e| to_fault(&e))?;
        let tiling = Arc::new(Tiling::new(message.plan.clone()));
        let runner = PlanRunner::new(tiling.clone(), &sources).map_err(|e| to_fault(&e))?;
        let kept = Arc::new(Kept::new(tiling.clone(), self.runtime.store().clone()));
        let stored = match &message.durable {
            Some(shared) => self.stored(shared, &versions, &tiling).await,
            None => None,
        };
        let (output, learned) = self.output(message.output.as_ref()).await;
        let known = Arc::new(Known {
            tiling,
            runner: Arc::new(runner),
            kept,
            stored: stored.map(Arc::new),
            did: Mutex::default(),
            sharing: Sharing::new(&message, versions),
            view: Mutex::default(),
            output: Mutex::new(output),
            learned,
        });
        {
            let mut plans = lock(&self.plans);
            if plans.forgotten.contains(&message.id) || plans.parks != parks {
                return Err(Fault::NotFound(format!("plan `{}`, which is over", message.id)));
            }
            if let Some(known) = plans.known.get(&message.id) {
                return Ok(known.learned.clone());
            }
            plans.known.insert(message.id, known.clone());
        }
        self.claim(&known, &message.reuse);
        Ok(known.learned.clone())
    }

    /// The stages of a plan whose chunks are stored; none without access to the storage.
    async fn stored(
        &self,
        shared: &Shared,
        versions: &Arc<Versions>,
        tiling: &Arc<Tiling>,
    ) -> Option<Stored> {
        let folder = Folder::open(&shared.folder, &Options::default(), &self.stores);
        let folder = folder.inspect_err(|error| {
            tracing::warn!(%error, "no chunks are stored");
        });
        let store = DurableStore::new(folder.ok()?, shared.limit_bytes);
        let durable = Durable::new(&store, &shared.statement, shared.policy, false);
        durable.begin_part(shared.part, versions);
        durable.plan(tiling).await
    }

    async fn open(
        &self,
        message: &PlanMessage,
        versions: &Arc<Versions>,
    ) -> Result<Sources, Error> {
        let mut sources = Sources::default();
        for (source, place) in &message.sources {
            let fenced = place.rules.clone().map(|rules| self.stores.fenced(rules, None, &[]));
            let fenced = fenced.transpose()?;
            let stores = fenced.as_ref().unwrap_or(&self.stores);
            let opened = source::open_for(versions, &place.url, &place.options, stores).await?;
            // The same array, except for how its path is written.
            let is_it = |r: &&Arc<ArrayReader>| {
                let found = r.source();
                SourceRef { url: source.url.clone(), ..found.clone() } == *source
            };
            let reader = opened.readers.iter().find(is_it).ok_or_else(|| {
                Error::Source(source::SourceError::Changed { what: source.url.clone() })
            })?;
            sources.add(source.clone(), Origin::Stored(reader.clone()));
        }
        for stage in &message.plan.stages {
            // The server has the array, and serves its chunks.
            if let Task::Load { source, .. } = &stage.task
                && source.is_resident()
            {
                let empty = Resident::empty(source.grid.clone());
                sources.add(SourceRef::clone(source), Origin::Resident(empty));
            }
        }
        Ok(sources)
    }
}
