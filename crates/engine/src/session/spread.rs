//! Plans on the workers of a cluster.
//!
//! Workers make the chunks of the results, and the server's own run of the plan loads them ([`tessera_cluster`]). If
//! the results are streamed as rows, workers only make what has to be complete before the first row. Small plans never
//! leave the server, and a server without workers runs all plans itself. A restarted server waits for the workers that
//! the statement had.

use crate::error::Error;
use crate::session::run::{Execution, Results};
use crate::statement::Watched;
use std::str::FromStr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tessera_cluster::{Drive, Expected, Home, Identity};
use tessera_exec::durable::Stored;
use tessera_exec::order::Shelved;
use tessera_exec::run::Watch;
use tessera_exec::schedule::{StageStats, Stats};
use tessera_exec::task::{PlanRunner, Sources};
use tessera_planner::cost::work_us;
use tessera_planner::tile::Tiling;

/// Plans of less work stay on the server: assigning orders takes some milliseconds.
const WORTH_US: u64 = 200_000;

/// Which plans run on workers.
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
        let Some(drive) = self.drive(&part, sources, &runner, None)? else { return Ok(None) };
        drive.expected().map_err(Error::stage)
    }

    /// The part of a plan that runs on workers, if there are workers and it is worth it: the whole plan, or the stages
    /// that must complete before its results can be streamed.
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
            Results::Whole => tiling.clone(),
            Results::Streamed => Arc::new(Tiling::new(Arc::new(tiling.plan().before_rows()?))),
        };
        let is_worth = self.spread == Spread::All || work_us(&part) >= WORTH_US;
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
                "{here} of the {had} workers that the statement had are here; it waits up to {} s for the others",
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

    /// Starts the workers' part of a plan; `None` if there are no workers, or they cannot read its sources. `runner`
    /// loads for them what is in the memory of this process.
    pub(super) fn drive(
        &self,
        part: &Arc<Tiling>,
        sources: &Sources,
        runner: &Arc<PlanRunner>,
        stored: Option<Stored>,
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
        Drive::new(cluster, part, sources, self.threads, stored, identity, home)
            .map_err(Error::stage)
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
