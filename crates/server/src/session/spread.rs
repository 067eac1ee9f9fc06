//! Plans on the workers of a cluster.
//!
//! The workers make the chunks of the results, the server's own run of the plan loads them ([`tessera_cluster`]). Small
//! plans never leave the server, and a server without workers runs all of them itself.

use crate::engine::CancelToken;
use crate::error::Error;
use crate::session::Session;
use std::str::FromStr;
use std::sync::Arc;
use tessera_cluster::{Drive, Expected, Home};
use tessera_exec::order::Shelved;
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

impl Session {
    /// Has the chunks of a plan's results made by workers, if there are some and it is worth it. The workers keep them
    /// as long as the [`Drive`] lives.
    pub(super) async fn spread(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        runner: &Arc<PlanRunner>,
        cancel: &CancelToken,
    ) -> Result<Option<(Arc<Drive>, Shelved)>, Error> {
        let Some(drive) = self.drive(tiling, sources, runner)? else { return Ok(None) };
        let shelved = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Cancelled),
            shelved = drive.prepare() => shelved.map_err(Error::stage)?,
        };
        Ok(Some((drive, shelved)))
    }

    /// What workers would probably do for a plan, if any of it goes to them.
    pub(super) fn spread_expected(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
    ) -> Result<Option<Expected>, Error> {
        if self.host.cluster().is_none() {
            return Ok(None);
        }
        let runner = Arc::new(PlanRunner::new(tiling.clone(), sources).map_err(Error::stage)?);
        let Some(drive) = self.drive(tiling, sources, &runner)? else { return Ok(None) };
        drive.expected().map_err(Error::stage)
    }

    /// A plan that is to go to workers; `None` if it stays here.
    fn drive(
        &self,
        tiling: &Arc<Tiling>,
        sources: &Sources,
        runner: &Arc<PlanRunner>,
    ) -> Result<Option<Arc<Drive>>, Error> {
        let Some(cluster) = self.host.cluster() else { return Ok(None) };
        let (spread, threads) = {
            let settings = self.settings();
            (settings.spread, settings.threads)
        };
        let is_worth = match spread {
            Spread::None => false,
            Spread::Auto => work_us(tiling) >= WORTH_US,
            Spread::All => true,
        };
        if !is_worth || cluster.registry().alive().is_empty() {
            return Ok(None);
        }
        let (host, plan, load) = (self.host.clone(), tiling.clone(), runner.clone());
        let home: Home =
            Arc::new(move |stage, number| host.runtime.load_here(&*plan, &*load, stage, number));
        Drive::new(cluster, tiling, sources, threads, home).map_err(Error::stage)
    }
}
