//! Plans on the workers of a cluster.
//!
//! Workers make the chunks of the results, and the server's own run of the plan loads them ([`tessera_cluster`]). Of a
//! plan whose results are streamed as rows they make what has to be complete before the first row. Small plans never
//! leave the server, and a server without workers runs all plans itself. A server that was started again waits for the
//! workers that the statement had.

use crate::error::Error;
use crate::session::run::{Execution, Results};
use crate::statement::Watched;
use std::str::FromStr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tessera_cluster::{Drive, Expected, Home};
use tessera_exec::order::Shelved;
use tessera_exec::run::Watch;
use tessera_exec::schedule::{StageStats, Stats};
use tessera_exec::task::{PlanRunner, Sources};
use tessera_planner::cost::work_us;
use tessera_planner::tile::Tiling;

/// Plans of less work stay on the server: to tell workers takes some milliseconds.
const WORTH_US: u64 = 200_000;

/// Which plans are spread over workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Spread {
    /// None.
    None,
    /// Those that take long.
    #[default]
    Auto,
    /// All that can be.
    All,
}

impl Spread {
    /// The name that it is set by.
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
        found.ok_or_else(|| format!("`{text}` is none of `none`, `auto` and `all`"))
    }
}

/// A plan that workers begin, if they do, and that this process ends.
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

    /// It runs in this process from now on.
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
    /// What workers would probably do for a plan, if any of it goes to them.
    pub(super) fn expected(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        results: Results,
    ) -> Result<Option<Expected>, Error> {
        let Some(part) = self.part_of_workers(tiling, results) else { return Ok(None) };
        let runner = Arc::new(PlanRunner::new(tiling.clone(), sources).map_err(Error::stage)?);
        let Some(drive) = self.drive(&part, sources, &runner)? else { return Ok(None) };
        drive.expected().map_err(Error::stage)
    }

    /// What of a plan goes to the workers of a cluster, if there is one and it is worth it: all of the plan, or what has
    /// to be computed before its results can be streamed.
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

    /// Waits for the workers that a statement had when it was begun before, and writes down those that it has now.
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

    /// What has a plan made by workers; `None` if there are none, or they cannot read what it reads.
    /// `runner` loads for them what is in this process' memory.
    pub(super) fn drive(
        &self,
        part: &Arc<Tiling>,
        sources: &Sources,
        runner: &Arc<PlanRunner>,
    ) -> Result<Option<Arc<Drive>>, Error> {
        let Some(cluster) = self.host.cluster() else { return Ok(None) };
        if cluster.registry().alive().is_empty() {
            return Ok(None);
        }
        let (host, plan, load) = (self.host.clone(), part.clone(), runner.clone());
        let home: Home =
            Arc::new(move |stage, number| host.runtime.load_here(&*plan, &*load, stage, number));
        Drive::new(cluster, part, sources, self.threads, home).map_err(Error::stage)
    }

    /// Has workers make their part, and says how the whole plan runs with it. They keep it as long as the [`Drive`] lives.
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
