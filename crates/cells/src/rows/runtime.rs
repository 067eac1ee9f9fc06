//! The runtime of rows: DataFusion's functions and rules, and the memory, files and threads of its tasks.
//!
//! DataFusion does not check whether it has to stop, neither while planning nor between two batches, so it works in
//! tasks of its own. A caller that no longer waits leaves its task behind, which ends with its next batch. Tasks are
//! counted, including those left behind: at most [`TASKS_MAX`] run at once.

use super::memory::RowsMemory;
use super::physical::in_order;
use super::scratch::RowsScratch;
use super::splits::RowsThreads;
use super::thrift::Checked;
use crate::error::Error;
use crate::lift::session_state;
use crate::tables::{KnownColumns, Places};
use datafusion::execution::object_store::DefaultObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::prelude::SessionConfig;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tessera_exec::error::Error as ExecError;
use tessera_exec::quota::Quota;
use tessera_exec::store::Store;
use tessera_frontend::limits::THREAD_STACK_BYTES;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Upper bound on concurrent DataFusion tasks.
const TASKS_MAX: usize = 64;

/// The resources that the rows of all statements of a process share.
pub struct RowsRuntime {
    pub(super) memory: Arc<RowsMemory>,
    quota: Arc<Quota>,
    store: Arc<Store>,
    /// Object stores of tables, registered with DataFusion.
    storages: Arc<DefaultObjectStoreRegistry>,
    /// How other processes reach the files of these stores.
    pub(super) places: Arc<Places>,
    checked: Checked,
    columns: KnownColumns,
    /// DataFusion's functions and rules. Each statement clones them.
    functions: OnceLock<SessionState>,
    permits: Arc<Semaphore>,
    threads: usize,
    /// The threads of DataFusion's tasks, started at their first use. The tasks compute between two awaits for as long
    /// as they like, so these threads serve nothing else.
    runtime: Mutex<Option<Runtime>>,
}

/// DataFusion's state for the cell blocks of one statement, made at its first use.
#[derive(Clone)]
pub struct RowsState {
    pub(super) runtime: Arc<RowsRuntime>,
    state: Arc<OnceLock<SessionState>>,
}

impl RowsRuntime {
    /// A runtime with that budget, scratch space and number of threads.
    pub fn new(quota: Arc<Quota>, store: Arc<Store>, threads: usize) -> Arc<Self> {
        Arc::new(RowsRuntime {
            memory: RowsMemory::new(quota.clone()),
            quota,
            store,
            storages: Arc::new(DefaultObjectStoreRegistry::new()),
            places: Arc::default(),
            checked: Checked::default(),
            columns: KnownColumns::default(),
            functions: OnceLock::new(),
            permits: Arc::new(Semaphore::new(TASKS_MAX)),
            threads,
            runtime: Mutex::default(),
        })
    }

    /// Upper bound on the memory of the rows of one statement.
    pub fn share(&self) -> u64 {
        self.memory.share()
    }

    /// The state of a statement.
    pub fn state(self: &Arc<Self>) -> RowsState {
        RowsState { runtime: self.clone(), state: Arc::default() }
    }

    fn first_state(&self) -> Result<SessionState, tessera_frontend::Error> {
        // Sorts spill to the same store as chunks, within the same limit.
        let environment = RuntimeEnvBuilder::new()
            .with_disk_manager_builder(RowsScratch::disk_manager(&self.store))
            .with_object_store_registry(self.storages.clone())
            // The cache would retain the first listing of a directory although the directory changes.
            .with_object_list_cache_limit(0)
            .build_arc()
            .map_err(|e| tessera_frontend::Error::cells("internal", e.strip_backtrace(), None))?;
        let state = session_state(self.quota.limit())?;
        let config = state.config().clone().with_extension(self.quota.clone());
        let config = config.with_extension(Arc::new(RowsThreads(self.threads)));
        let config = config.with_extension(self.places.clone());
        let state = SessionStateBuilder::new_from_existing(state).with_config(config);
        Ok(in_order(&state.with_runtime_env(environment).build()))
    }

    /// The task context of the cell blocks of one statement: rows in memory are bounded by a share of the limit.
    /// `config` is that of the state, possibly with additions for the plan. `peak` records the most memory that is
    /// reserved at once.
    pub(super) fn task_context(
        &self,
        state: &SessionState,
        config: SessionConfig,
        budget: Option<&Arc<Quota>>,
        batch_rows: usize,
        peak: Option<Arc<AtomicU64>>,
    ) -> TaskContext {
        let pool = self.memory.pool(budget, peak);
        let environment =
            RuntimeEnv { memory_pool: pool, ..RuntimeEnv::clone(state.runtime_env()) };
        // A sort reserves this much for merging what it spilled: a part of the statement's share.
        let reserved = (self.memory.share_within(budget) / 8).min(10 << 20) as usize;
        let config = config.with_sort_spill_reservation_bytes(reserved).with_batch_size(batch_rows);
        let id = state.session_id().to_string();
        // A plan contains its functions; the context looks up names only for plans from elsewhere.
        let none = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        TaskContext::new(None, id, config, none.0, none.1, none.2, none.3, Arc::new(environment))
    }

    pub(super) fn threads(&self) -> Result<Handle, Error> {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let made = Builder::new_multi_thread()
            .worker_threads(self.threads)
            .thread_name("rows")
            .thread_stack_size(THREAD_STACK_BYTES)
            .enable_all()
            .build()
            .map_err(Error::Threads)?;
        Ok(runtime.insert(made).handle().clone())
    }

    /// Waits until one more task may run.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = self.permits.clone().acquire_owned().await;
        permit.map_err(|_| Error::Inner(Box::new(ExecError::Cancelled)))
    }
}

impl Drop for RowsRuntime {
    /// A drop may happen in a task, which must not block on threads.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).take()
        {
            runtime.shutdown_background();
        }
    }
}

impl RowsState {
    pub(crate) fn get(&self) -> Result<&SessionState, tessera_frontend::Error> {
        if let Some(state) = self.state.get() {
            return Ok(state);
        }
        // DataFusion records the time of each step, and panics if the clock cannot be represented.
        if SystemTime::now() < UNIX_EPOCH {
            return Err(tessera_frontend::Error::Cells {
                code: "clock",
                message: "rows cannot be read: the clock of this machine is before 1970".into(),
                position: None,
                hint: Some("set the clock; whole tensors can be read until then".into()),
            });
        }
        let functions = &self.runtime.functions;
        let mut state = match functions.get() {
            Some(state) => state.clone(),
            None => {
                let state = self.runtime.first_state()?;
                functions.get_or_init(|| state).clone()
            }
        };
        // The copy has the clock of the first statement.
        state.mark_start_execution();
        Ok(self.state.get_or_init(|| state))
    }

    pub(crate) fn places(&self) -> &Arc<Places> {
        &self.runtime.places
    }

    /// The files of tables that were found valid.
    pub(crate) fn checked(&self) -> &Checked {
        &self.runtime.checked
    }

    /// The columns of files of tables that were read before.
    pub(crate) fn columns(&self) -> &KnownColumns {
        &self.runtime.columns
    }

    /// The memory limit of the process, in bytes.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.runtime.quota.limit()
    }
}
