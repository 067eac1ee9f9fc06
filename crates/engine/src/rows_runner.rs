//! Rows on a worker: `cells` computes the tasks that `cluster` receives.

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use std::sync::Arc;
use tessera_cells::rows::{
    HolderFault, RowsHolder, RowsHolders, RowsPartStart, RowsRuntime, RowsStart, RowsTasks,
};
use tessera_cluster::net::{Credentials, Fault, Peers};
use tessera_cluster::wire::{self, RowsAsk, RowsOrder};
use tessera_cluster::{RowsLoad, RowsRunner, ask_rows};
use tessera_exec::error::{Error, ErrorReport};
use tessera_exec::rows::ROWS_BATCH;
use tessera_exec::run::Runtime;
use tessera_storage::fail;
use tessera_storage::source::Stores;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Returns the runner of tasks of rows on a worker. Tasks share the memory quota and the spill store of `runtime`, have
/// as many threads, and open files through `stores`. They call other workers with `credentials`.
pub fn rows_runner(
    runtime: &Runtime,
    stores: Stores,
    credentials: &Credentials,
) -> Arc<dyn RowsRunner> {
    let (quota, store) = (runtime.quota().clone(), runtime.store().clone());
    let rows = RowsRuntime::new(quota, store, runtime.config().threads);
    let others = Others { peers: Peers::new(credentials), io: runtime.io().clone() };
    Arc::new(Runner(RowsTasks::new(rows, stores, Arc::new(others))))
}

/// The tasks of a worker.
struct Runner(Arc<RowsTasks>);

impl RowsRunner for Runner {
    fn start(&self, order: RowsOrder) -> BoxStream<'static, Result<Bytes, Error>> {
        let RowsOrder { query, stage, task, header, plan, holders } = order;
        let holder = |wire::RowsHolder { from, to, address }| RowsHolder { from, to, address };
        let holders = holders.into_iter().map(holder).collect();
        let answer = self.0.start(RowsStart { query, stage, task, header, plan, holders });
        answer.map(|message| message.and_then(|message| sent(message, "rows.batch"))).boxed()
    }

    fn part(&self, ask: RowsAsk) -> BoxStream<'static, Result<Bytes, Error>> {
        let RowsAsk { query, stage, from, to, part, header, plan, bounds } = ask;
        let start = RowsPartStart { query, stage, from, to, part, header, plan, bounds };
        let answer = self.0.part(start);
        answer.map(|message| message.and_then(|message| sent(message, "rows.part"))).boxed()
    }

    fn forget(&self, query: [u8; 16]) {
        self.0.forget(query);
    }

    fn load(&self) -> RowsLoad {
        let load = self.0.load();
        let (running, done, kept) = (load.running, load.done, load.kept);
        RowsLoad { running, done, rows: load.rows, bytes: load.bytes, kept }
    }

    fn knows(&self, query: [u8; 16], stage: u32) -> bool {
        self.0.knows(query, stage)
    }
}

/// The other workers.
struct Others {
    peers: Peers,
    /// The runtime of connections. The threads that compute rows may run for long between two awaits.
    io: Handle,
}

impl RowsHolders for Others {
    fn part(
        &self,
        address: &str,
        part: RowsPartStart,
    ) -> BoxStream<'static, Result<Bytes, HolderFault>> {
        let RowsPartStart { query, stage, from, to, part, header, plan, bounds } = part;
        let ask = RowsAsk { query, stage, from, to, part, header, plan, bounds };
        let (peers, address) = (self.peers.clone(), address.to_owned());
        let mut call = JoinSet::new();
        let called = async move {
            let answers = ask_rows(&peers, &address, &ask).await;
            if matches!(answers, Err(Fault::Unreachable(_))) {
                // The old connection may still wait before its next attempt although the worker is reachable again.
                peers.forget(&address);
            }
            answers
        };
        call.spawn_on(called, &self.io);
        let answers = async move {
            match call.join_next().await {
                Some(Ok(Ok(answers))) => answers.map(|message| message.map_err(lost)).boxed(),
                Some(Ok(Err(fault))) => refused(lost(fault)),
                Some(Err(e)) => refused(HolderFault::Lost(e.to_string())),
                None => refused(HolderFault::Lost("the call has ended".into())),
            }
        };
        stream::once(answers).flatten().boxed()
    }
}

fn refused(fault: HolderFault) -> BoxStream<'static, Result<Bytes, HolderFault>> {
    stream::iter([Err(fault)]).boxed()
}

/// Classifies the fault of a call: the rows failed, or the worker has lost them. A call that was cancelled belongs to a
/// statement that the worker has forgotten.
fn lost(fault: Fault) -> HolderFault {
    let report = match &fault {
        Fault::Failed(words) => serde_json::from_str::<ErrorReport>(words).ok(),
        _ => None,
    };
    match report {
        Some(report) if report.code != "cancelled" => {
            HolderFault::Failed(Error::Reported(Box::new(report)))
        }
        _ => HolderFault::Lost(fault.to_string()),
    }
}

/// Passes a message on. A batch is a fail-point.
fn sent(message: Bytes, point: &'static str) -> Result<Bytes, Error> {
    if message.first() == Some(&ROWS_BATCH) {
        fail::point(point).map_err(|e| Error::Broken { what: e.to_string() })?;
    }
    Ok(message)
}
