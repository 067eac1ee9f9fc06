//! Plans on the workers of a cluster.
//!
//! Workers make the chunks of the results, and the server's own run of the plan loads them ([`tessera_cluster`]). If
//! the results are streamed as rows, workers only make what has to be complete before the first row. Small plans never
//! leave the server, and a server without workers runs all plans itself. A restarted server waits for the workers that
//! the statement had. Rows go to workers part by part ([`spread_rows`](super::spread_rows)).

use crate::error::Error;
use crate::session::run::{Execution, Results};
use crate::statement::Watched;
use std::str::FromStr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tessera_cluster::{Drive, DriveOptions, Expected, Home, Identity, RowsPlan};
use tessera_exec::durable::Stored;
use tessera_exec::order::Shelved;
use tessera_exec::run::Watch;
use tessera_exec::schedule::{Sink, StageStats, Stats};
use tessera_exec::task::{PlanRunner, Sources};
use tessera_planner::cost::{cost, work_us};
use tessera_planner::tile::Tiling;
use tessera_storage::sink::{SharedOutput, ZarrWriter};

/// Plans of less work stay on the server: assigning orders takes some milliseconds.
const WORTH_US: u64 = 200_000;

/// A part of rows whose files have fewer bytes stays on the server: one thread takes about 0.25 s for this many.
pub(super) const ROWS_BYTES: u64 = 64 << 20;

/// Upper bound on the bytes that a build side of a join on workers reads: each worker reads them again.
pub(super) const BUILD_BYTES: u64 = 64 << 20;

/// Nanoseconds of one thread for each byte of a result that is encoded.
const ENCODE_NS: f64 = 2.0;

/// Results of fewer bytes are written by the server: workers have to open the output first.
const SHARED_BYTES: u64 = 1 << 20;

/// Selects the plans that run on workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Spread {
    /// No plans.
    None,
    /// Plans that take long.
    #[default]
    Auto,
    /// All plans that can.
    All,
}

impl Spread {
    /// The value of the setting.
    pub(super) fn name(self) -> &'static str {
        match self {
            Spread::None => "none",
            Spread::Auto => "auto",
            Spread::All => "all",
        }
    }
}

impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Spread::None, Spread::Auto, Spread::All];
        let found = all.into_iter().find(|s| s.name() == text.trim().to_ascii_lowercase());
        found.ok_or_else(|| format!("`{text}` is not one of `none`, `auto` and `all`"))
    }
}

/// The progress of a plan that workers may begin and this process completes.
#[derive(Debug)]
pub(super) struct Both {
    stages: usize,
    there: Option<Weak<Drive>>,
    here: OnceLock<Watch>,
}

impl Both {
    pub(super) fn new(tiling: &Tiling, drive: Option<&Arc<Drive>>) -> Self {
        let there = drive.map(Arc::downgrade);
        Both { stages: tiling.plan().stages.len(), there, here: OnceLock::new() }
    }

    /// Sets the local run to watch.
    pub(super) fn runs_here(&self, watch: Watch) {
        self.here.get_or_init(|| watch);
    }
}

impl Watched for Both {
    fn stats(&self) -> Option<Stats> {
        let mut stats = match self.here.get() {
            Some(watch) => watch.stats()?,
            None => Stats { stages: vec![StageStats::default(); self.stages], ..Stats::default() },
        };
        if let Some(drive) = self.there.as_ref().and_then(Weak::upgrade) {
            stats.add(drive.totals());
        }
        Some(stats)
    }
}

/// Rows on workers are one stage, whose operands are the tasks. Those that are left to the server count as done.
impl Watched for RowsPlan {
    fn stats(&self) -> Option<Stats> {
        let totals = self.totals();
        let operands = totals.done + totals.here;
        let stage = StageStats { name: "rows".into(), operands, seconds: totals.seconds };
        Some(Stats { stages: vec![stage], ..Stats::default() })
    }
}

impl Execution {
    /// The expected work of workers for a plan, if they get a part of it.
    pub(super) fn expected(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        results: Results,
    ) -> Result<Option<Expected>, Error> {
        let Some(part) = self.part_of_workers(tiling, results) else { return Ok(None) };
        let runner = Arc::new(PlanRunner::new(tiling.clone(), sources).map_err(Error::stage)?);
        let drive = self.drive(&part, sources, &runner, None, None)?;
        let Some(drive) = drive else { return Ok(None) };
        drive.expected().map_err(Error::stage)
    }

    /// The part of a plan that runs on workers, if workers exist and it pays off: the whole plan, or the stages that
    /// must complete before its results can be streamed.
    pub(super) fn part_of_workers(
        &self,
        tiling: &Arc<Tiling>,
        results: Results,
    ) -> Option<Arc<Tiling>> {
        self.host.cluster()?;
        if self.spread == Spread::None {
            return None;
        }
        let part = match results {
            Results::Whole | Results::Stored => tiling.clone(),
            Results::Streamed => Arc::new(Tiling::new(Arc::new(tiling.plan().before_rows()?))),
        };
        let encoding_us = match results {
            Results::Stored => (cost(&part).result_bytes as f64 * ENCODE_NS / 1000.0) as u64,
            Results::Whole | Results::Streamed => 0,
        };
        let work_us = work_us(&part).saturating_add(encoding_us);
        let is_worth = self.spread == Spread::All || work_us >= WORTH_US;
        is_worth.then_some(part)
    }

    /// Waits for the workers that the statement had when it ran before, and notes the current ones.
    pub(super) async fn gather_workers(&self) -> Result<(), Error> {
        let Some(cluster) = self.host.cluster() else { return Ok(()) };
        let (registry, statement) = (cluster.registry(), &self.statement);
        let had = statement.entry().step(|step| step.workers);
        let most = Duration::from_secs(self.host.config().worker_wait_s);
        let here = registry.alive().len();
        if here < had {
            let what = format!(
                "{here} of the {had} workers of the statement have joined; it waits up to {} s for the others",
                most.as_secs()
            );
            registry.note("waiting", None, Some(statement.id()), what);
        }
        tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            () = cluster.gather(had, most) => {}
        }
        let here = registry.alive().len();
        if here > had {
            statement.entry().step(|step| step.workers = here);
            statement.entry().keep().await?;
        }
        Ok(())
    }

    /// Starts the workers' part of a plan; `None` without workers, or if they cannot read its sources. `runner` loads
    /// for them the arrays in the memory of this process.
    pub(super) fn drive(
        &self,
        part: &Arc<Tiling>,
        sources: &Sources,
        runner: &Arc<PlanRunner>,
        stored: Option<Stored>,
        output: Option<(Arc<ZarrWriter>, SharedOutput)>,
    ) -> Result<Option<Arc<Drive>>, Error> {
        let Some(cluster) = self.host.cluster() else { return Ok(None) };
        if cluster.registry().alive().is_empty() {
            return Ok(None);
        }
        let (host, plan, load) = (self.host.clone(), part.clone(), runner.clone());
        let home: Home = Arc::new(move |stage, number, output| {
            let runtime = &host.runtime;
            let chunks = runtime.load_here(&*plan, &*load, stage, number)?;
            Some(chunks.and_then(|chunks| runtime.encode(&*plan, (stage, number), &chunks, output)))
        });
        let identity = Identity { shares: self.reuse, ..self.statement.identity() };
        let options = DriveOptions { threads: self.threads, stored, output, identity };
        Drive::new(cluster, part, sources, options, home).map_err(Error::stage)
    }

    /// True if workers write the results of a plan that is spread over them.
    pub(super) fn shares(&self, tiling: &Tiling, results: Results) -> bool {
        let is_worth = || self.spread == Spread::All || cost(tiling).result_bytes >= SHARED_BYTES;
        results == Results::Stored && is_worth()
    }

    /// Shares the store of a plan's results with workers, if workers exist and it pays off.
    pub(super) async fn share(
        &self,
        sink: &Arc<dyn Sink>,
        tiling: &Tiling,
        results: Results,
    ) -> Result<Option<(Arc<ZarrWriter>, SharedOutput)>, Error> {
        let has_workers = self.host.cluster().is_some_and(|c| !c.registry().alive().is_empty());
        if !has_workers || !self.shares(tiling, results) {
            return Ok(None);
        }
        let Some(store) = sink.clone().store() else { return Ok(None) };
        tokio::select! {
            biased;
            () = self.statement.cancelled() => Err(Error::Cancelled),
            shared = store.share() => {
                let shared = shared.map_err(Error::stage)?;
                Ok(shared.map(|shared| (store.clone(), shared)))
            }
        }
    }

    /// Lets workers make their part, and returns how the whole plan runs with it. Workers retain the part while the
    /// [`Drive`] lives.
    pub(super) async fn prepare(
        &self,
        drive: &Arc<Drive>,
        whole: &Arc<Tiling>,
    ) -> Result<Shelved, Error> {
        tokio::select! {
            biased;
            () = self.statement.cancelled() => Err(Error::Cancelled),
            shelved = drive.prepare(whole) => shelved.map_err(Error::stage),
        }
    }
}
