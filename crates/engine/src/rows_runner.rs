//! Rows on a worker: `cells` computes the tasks that `cluster` receives.

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use std::sync::Arc;
use tessera_cells::rows::{RowsRuntime, RowsStart, RowsTasks};
use tessera_cluster::wire::RowsOrder;
use tessera_cluster::{RowsLoad, RowsRunner};
use tessera_exec::error::Error;
use tessera_exec::rows::ROWS_BATCH;
use tessera_exec::run::Runtime;
use tessera_storage::fail;
use tessera_storage::source::Stores;

/// Returns what runs tasks of rows on a worker. Tasks share the memory quota and the spill store of `runtime`, have as
/// many threads, and open files through `stores`.
pub fn rows_runner(runtime: &Runtime, stores: Stores) -> Arc<dyn RowsRunner> {
    let (quota, store) = (runtime.quota().clone(), runtime.store().clone());
    let rows = RowsRuntime::new(quota, store, runtime.config().threads);
    Arc::new(Runner(RowsTasks::new(rows, stores)))
}

/// The tasks of a worker.
struct Runner(Arc<RowsTasks>);

impl RowsRunner for Runner {
    fn start(&self, order: RowsOrder) -> BoxStream<'static, Result<Bytes, Error>> {
        let RowsOrder { query, stage, task, header, plan } = order;
        let answer = self.0.start(RowsStart { query, stage, task, header, plan });
        answer.map(|message| message.and_then(sent)).boxed()
    }

    fn forget(&self, query: [u8; 16]) {
        self.0.forget(query);
    }

    fn load(&self) -> RowsLoad {
        let load = self.0.load();
        RowsLoad { running: load.running, done: load.done, rows: load.rows, bytes: load.bytes }
    }

    fn knows(&self, query: [u8; 16], stage: u32) -> bool {
        self.0.knows(query, stage)
    }
}

/// Passes a message on. A batch is a fail-point.
fn sent(message: Bytes) -> Result<Bytes, Error> {
    if message.first() == Some(&ROWS_BATCH) {
        fail::point("rows.batch").map_err(|e| Error::Broken { what: e.to_string() })?;
    }
    Ok(message)
}
