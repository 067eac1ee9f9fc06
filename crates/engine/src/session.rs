//! A session: where all stages meet.
//!
//! The life of one statement, in [`Session::statement`]:
//!
//! 1. `tessera_frontend::parse` has split the script; the statement is a plain value. [`pivots`] completes it with the
//!    values of `PIVOT`, if it does not list them.
//! 2. [`open`] opens the relations: names through the catalog, URLs as they are. This is the only I/O before the plan.
//! 3. `tessera_frontend` binds and lowers it to a graph and its labels.
//! 4. `tessera_planner::compile` turns the graph into a plan; EXPLAIN stops here.
//! 5. `tessera_exec` runs the plan; [`mod@collect`] retains the chunks of the results, charged to the quota.
//! 6. The chunks and the labels are the answer.

mod admission;
mod append;
mod bind;
mod cells;
mod check;
mod collect;
mod copy;
mod ddl;
mod describe;
mod explain;
mod failure;
mod lead;
mod open;
mod pivots;
mod placed;
mod query;
mod run;
mod script;
mod settings;
mod spread;
mod spread_rows;
mod stop;
mod summarize;
mod system;
mod upload;
mod views;
mod warehouse;
mod workers;

pub(crate) use admission::{Admission, RunPermit};
pub use check::check;
pub use explain::durable_json;
pub(crate) use explain::measured_json;
pub use failure::Failure;
pub(crate) use failure::readable;

use crate::Handle;
use crate::answer::RowsRoom;
use crate::answer::scratch::Scratch;
use crate::answer::{Answer, Reply};
use crate::config::Config;
use crate::error::{Error, Position};
use crate::journal::{Journal, NotLive};
use crate::statement::{Queries, Recipe};
pub(crate) use cells::rows_error;
pub(crate) use open::{Found, Temp, array_number, bare, pick};
use settings::Settings;
use sqlparser::ast::ObjectName;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tessera_cells::rows::RowsRuntime;
use tessera_cluster::Cluster;
use tessera_cluster::net::Credentials;
use tessera_cluster::registry::Limits;
use tessera_exec::durable::DurableStore;
use tessera_exec::quota::Quota;
use tessera_exec::run::Runtime;
use tessera_frontend::Parsed;
use tessera_frontend::statement::{CreateTensor, Statement};
use tessera_storage::source::{Counters, Lent, Rules, Stores};

pub use upload::{TableFile, Upload};
pub use warehouse::Pin;
use warehouse::Warehouse;
pub(crate) use warehouse::{Definition, Entry as CatalogEntry};

const STORAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// State shared by all sessions of a process: threads, memory, connections and the durable catalog.
pub struct Host {
    runtime: Runtime,
    stores: Arc<Stores>,
    warehouse: Arc<Warehouse>,
    /// Stores chunks of statements that run again after a failure.
    durable: Arc<DurableStore>,
    io: tokio::runtime::Handle,
    config: Config,
    seeds: AtomicU64,
    queries: Arc<Queries>,
    admission: Arc<Admission>,
    /// Statements that append to one target run one after the other.
    appends: append::AppendTurns,
    /// Stores results that are too large for memory.
    scratch: Arc<Scratch>,
    /// Memory for results that are rows.
    rows_room: Arc<RowsRoom>,
    /// Runs cell blocks.
    rows: Arc<RowsRuntime>,
    /// The workers, if this server accepts workers.
    cluster: OnceLock<Arc<Cluster>>,
}

/// Tensors in memory and settings of one user, over a shared [`Host`].
pub struct Session {
    host: Arc<Host>,
    temps: Mutex<BTreeMap<String, Arc<Temp>>>,
    settings: Mutex<Settings>,
    /// Results larger than this are stored in files.
    memory_result_bytes: u64,
}

impl Host {
    /// Returns the allocator's unused memory to the system, if it is much.
    fn give_back(&self) {
        let quota = self.runtime.quota();
        if tessera_exec::heap::is_large(quota.used(), quota.limit()) {
            self.io.spawn_blocking(tessera_exec::heap::give_back);
        }
    }
}

impl Host {
    /// Starts threads and opens the warehouse; I/O runs on the given tokio runtime.
    ///
    /// # Errors
    /// The warehouse cannot be opened.
    pub fn open(config: Config, io: tokio::runtime::Handle) -> Result<Arc<Self>, Error> {
        Host::open_with(config, io, Stores::new(STORAGE_TIMEOUT))
    }

    /// Like [`Host::open`], with the given storage: `Stores::with_environment` has other credentials than the process.
    ///
    /// # Errors
    /// Errors of [`Host::open`].
    pub fn open_with(
        config: Config,
        io: tokio::runtime::Handle,
        stores: Stores,
    ) -> Result<Arc<Self>, Error> {
        let exec = tessera_exec::config::Config {
            threads: config.threads,
            quota_bytes_max: config.memory_limit_bytes,
            pool_bytes_max: config.memory_limit_bytes / 4,
            spill_dir: Some(config.spill_dir.clone()),
            spill_bytes_max: config.spill_limit_bytes,
            compression: config.compression,
            ..Default::default()
        };
        // The first seed comes from the clock, once for each process: two runs draw different seeds.
        let start = SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = start.map_or(0, |d| d.as_nanos() as u64);
        let rules = Rules { read: config.allow_read.clone(), write: config.allow_write.clone() };
        let security = &config.cluster_security;
        let files = [&config.certificate, &config.key, &security.certificate, &security.key];
        let mut private: Vec<_> = files.into_iter().flatten().cloned().collect();
        private.push(security.secret.clone());
        private.push(config.spill_dir.join(tessera_exec::store::PREFIX));
        let fenced = stores.fenced(rules, Some(&config.warehouse), &private);
        let stores = Arc::new(fenced.map_err(|e| Error::Config {
            key: "allow-read".into(),
            origin: "the configuration".into(),
            reason: e.to_string(),
            hint: Some("write a directory, or the beginning of a URL".into()),
        })?);
        let runtime = Runtime::new(exec, io.clone()).map_err(Error::stage)?;
        let scratch = Scratch::new(runtime.store().clone());
        let quota = runtime.quota().clone();
        let rows = RowsRuntime::new(quota.clone(), runtime.store().clone(), config.threads);
        let warehouse = Arc::new(Warehouse::open(&config.warehouse, &stores, io.clone())?);
        if config.standby {
            warehouse.epoch().stands_by();
        }
        let folder = warehouse.statements(&stores)?;
        let durable = DurableStore::new(folder, config.durable_limit_bytes);
        if !warehouse.is_remote() {
            // In the background: statements do not wait for it.
            let (warehouse, handle) = (warehouse.clone(), io.clone());
            io.spawn_blocking(move || handle.block_on(collect(&warehouse)));
        }
        Ok(Arc::new(Host {
            runtime,
            warehouse,
            durable,
            stores,
            io,
            config,
            seeds: AtomicU64::new(seed),
            queries: Arc::default(),
            admission: Arc::default(),
            appends: append::AppendTurns::default(),
            scratch,
            rows_room: RowsRoom::new(&quota),
            rows,
            cluster: OnceLock::new(),
        }))
    }

    /// Removes leftovers of killed processes from the warehouse. In a directory this also happens at each start, but
    /// only a server can recognise the leftovers of earlier servers. Below a prefix of a bucket it lists all objects.
    pub async fn collect(&self) {
        collect(&self.warehouse).await;
    }

    /// The journal of the statements that a server accepted.
    pub fn journal(&self) -> Journal {
        self.warehouse.journal()
    }

    /// Prevents this process from removing cells of the warehouse.
    pub fn pin(&self, data: &str) -> Pin {
        self.warehouse.pin(data)
    }

    /// Leaves the removal of cells without readers to the next server of the warehouse. Called before statements of the
    /// journal drop that the next server may run again, or whose results it may compute again.
    pub fn leave_to_next(&self) {
        self.warehouse.leave_to_next();
    }

    /// Reports that all readers of cells are known: unnamed cells are removed once no statement reads them.
    ///
    /// # Errors
    /// Errors of the warehouse.
    pub async fn readers_are_known(&self) -> Result<(), Error> {
        self.warehouse.readers_are_known().await
    }

    /// Stores chunks that outlive their statement.
    pub fn durable(&self) -> &Arc<DurableStore> {
        &self.durable
    }

    /// Counts requests to storage and bytes read from it, since the start.
    pub fn counters(&self) -> &Arc<Counters> {
        self.stores.counters()
    }

    /// Makes the directory of a warehouse private to its owner, and creates the directory for statements' files in it.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn keep_private(&self) -> Result<(), Error> {
        self.warehouse.keep_private()
    }

    /// Lets statements read a file that belongs to this process, until the returned value is dropped.
    pub fn lend(&self, path: &std::path::Path) -> Lent {
        self.stores.lend(path)
    }

    /// The threads and the memory quota.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Number of statements that were refused memory and ran again, alone.
    pub fn ran_alone(&self) -> u64 {
        self.admission.again()
    }

    /// The configuration that the host was opened with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Accepts workers as configured.
    ///
    /// # Errors
    /// The secret or the certificates cannot be used, or the address cannot be listened on.
    pub async fn accept_workers(&self) -> Result<Arc<Cluster>, Error> {
        let security = &self.config.cluster_security;
        Credentials::make(&security.secret).map_err(Error::stage)?;
        let credentials = Credentials::load(security).map_err(Error::stage)?;
        let dead_after = Duration::from_secs(self.config.worker_timeout_s);
        let wait = Duration::from_secs(self.config.worker_wait_s);
        let limits = Limits { beat: dead_after / 5, dead_after, wait, ..Limits::default() };
        let listen = self.config.cluster_listen;
        let cluster = Cluster::open(listen, limits, &credentials, env!("CARGO_PKG_VERSION")).await;
        let cluster = cluster.map_err(Error::stage)?;
        if self.config.standby {
            cluster.refuse(Some(NotLive::Standby { live: None }.to_string()));
        }
        Ok(self.cluster.get_or_init(|| cluster).clone())
    }

    /// The workers, if this server accepts workers.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.get()
    }

    /// The queued and running statements.
    pub fn queries(&self) -> &Arc<Queries> {
        &self.queries
    }

    /// Stores results that are too large for memory.
    pub fn scratch(&self) -> &Arc<Scratch> {
        &self.scratch
    }

    /// The time, in microseconds since 1970, and a seed that no other statement had.
    fn clock(&self) -> (i64, u64) {
        let now = micros(SystemTime::now());
        // Any odd step visits all values; this one is the golden ratio's.
        (now, self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed))
    }
}

/// Microseconds since 1970; negative if the clock is before 1970.
fn micros(moment: SystemTime) -> i64 {
    match moment.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_micros() as i64,
        Err(e) => -(e.duration().as_micros() as i64),
    }
}

/// Leftovers and an unreadable warehouse do not prevent a start: statements that need the warehouse report the error.
async fn collect(warehouse: &Warehouse) {
    match warehouse.collect().await {
        Ok(0) => {}
        Ok(n) => tracing::info!("removed {n} unfinished tensors from the warehouse"),
        Err(e) => tracing::warn!(error = %e, "what killed processes left was not removed"),
    }
}

impl Session {
    /// Opens a session with a host of its own.
    ///
    /// # Errors
    /// Errors of [`Host::open`].
    pub fn open(config: Config, io: tokio::runtime::Handle) -> Result<Self, Error> {
        Ok(Session::of(Host::open(config, io)?))
    }

    /// Opens another session on `host`.
    pub fn of(host: Arc<Host>) -> Self {
        let settings = Settings::new(&host.config);
        Session {
            temps: Mutex::default(),
            settings: Mutex::new(settings),
            memory_result_bytes: host.config.memory_limit_bytes / 2,
            host,
        }
    }

    /// Limits results in memory to `bytes`: a server holds the results of many sessions.
    pub fn with_results_in_memory(self, bytes: u64) -> Self {
        Session { memory_result_bytes: bytes, ..self }
    }

    /// The host that this session shares with others.
    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    fn temps(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Temp>>> {
        self.temps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The quota that the statement's memory is charged to.
    fn quota(&self, statement: &Handle) -> Arc<Quota> {
        statement.budget().unwrap_or_else(|| self.host.runtime.quota().clone())
    }

    fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn statement(&self, parsed: &Parsed, statement: &Handle) -> Result<Reply, Error> {
        let started = Instant::now();
        let (_, bytes_before, _) = self.host.counters().snapshot();
        // A step that already changed durable state in an earlier run is not repeated.
        if let Some(done) = statement.entry().step(|s| s.done.clone()) {
            return Ok(Answer::Done(done).into());
        }
        let settings = self.settings();
        if let Some(bytes) = settings.query_memory_bytes {
            statement.limit_memory(Some(self.host.runtime.quota().within(bytes)));
        }
        statement.clock().limit_statement(settings.query_timeout_s.map(Duration::from_secs));
        let served = self.served(parsed, statement);
        let reply = match settings.query_timeout_s {
            Some(limit_s) => tokio::select! {
                // Code that notices the timeout by itself reports "cancelled".
                reply = served => reply.map_err(|e| match e.code() == "cancelled" {
                    true if !statement.is_cancelled() => Error::Timeout { limit_s },
                    _ => e,
                }),
                () = statement.clock().has_taken(Duration::from_secs(limit_s)) => Err(Error::Timeout { limit_s }),
            },
            None => served.await,
        };
        statement.clock().limit_statement(None);
        self.host.give_back();
        if !statement.chunks().may_survive() {
            statement.entry().unpin().await;
        }
        let mut reply = reply?;
        statement.note_read().await?;
        if let Answer::Done(text) = &reply.answer
            && statement
                .entry()
                .step(|s| s.intent.is_some() && s.done.replace(text.clone()).is_none())
            && let Err(e) = statement.entry().keep().await
        {
            // The statement is done. If it runs again, it detects that by its intent.
            tracing::warn!(id = statement.id(), error = %e, "what a statement did could not be noted");
        }
        reply.stats.total_s = started.elapsed().as_secs_f64();
        let (_, bytes, _) = self.host.counters().snapshot();
        reply.stats.bytes_read = bytes.saturating_sub(bytes_before);
        Ok(reply)
    }

    async fn dispatch(&self, parsed: &Parsed, statement: &Handle) -> Result<Reply, Error> {
        let listed = self.listed(&parsed.statement, statement).await?;
        match listed.as_ref().unwrap_or(&parsed.statement) {
            Statement::Query(query) => self.query(query, statement).await,
            Statement::Explain(explain) => self.explain(explain, statement).await,
            Statement::CreateTensor(create) if create.temp => {
                self.create_temp(create, &parsed.text, statement).await
            }
            Statement::CreateTensor(create) => self.create_tensor(create, statement).await,
            Statement::CreateExternal(create) => self.create_external(create, statement).await,
            Statement::CreateView(create) => self.create_view(create, statement).await,
            Statement::Copy(copy) => self.copy(copy, statement).await,
            Statement::Insert(insert) => self.insert(insert, statement).await,
            Statement::Drop(drop) => self.drop_named(drop, statement).await,
            Statement::Set { name, value } => {
                let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
                settings.set(&name.text, &value.text)?;
                Ok(Answer::Done(format!("set {}", name.text)).into())
            }
            Statement::Show(show) => self.show(show).await,
            Statement::Describe(what) => self.describe(what, statement).await,
            Statement::Summarize(query) => self.summarize(query, statement).await,
            Statement::Cancel { id } => {
                let Some(found) = self.host.queries.find(&id.text) else {
                    return Err(Error::stage(Failure::UnknownQuery {
                        id: id.text.clone(),
                        position: Position::of_span(id.span),
                    }));
                };
                found.stop().await?;
                Ok(Answer::Done(format!("cancelled query {}", id.text)).into())
            }
        }
    }

    async fn create_temp(
        &self,
        create: &CreateTensor,
        sql: &str,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = create.name.to_string();
        let key = open::bare(&name);
        if self.temps().contains_key(&key) {
            if create.if_not_exists {
                return Ok(Answer::Done(format!("temp tensor {name} already exists")).into());
            }
            if !create.or_replace {
                return Err(Error::stage(Failure::Exists { name }));
            }
        }
        let (kept, mut reply) = self.run_tensors(&create.query, statement).await?;
        statement.note_read().await?;
        let temp = Temp::new(&key, kept, sql, &self.settings(), statement)?;
        reply.answer = Answer::Done(format!("created temp tensor {name}"));
        self.temps().insert(key, Arc::new(temp));
        Ok(reply)
    }

    /// Recreates the temp tensors that a recovered script reads, in a session of its own.
    ///
    /// # Errors
    /// The script reads uploads, which ended with their server.
    async fn restore(&self, recipe: &Recipe, statement: &Handle) -> Result<(), Error> {
        if recipe.reads_uploads() {
            return Err(Error::stage(Failure::UploadsGone));
        }
        for made in &recipe.temps {
            self.assume(&made.settings)?;
            let step = Recipe { steps: vec![made.step.clone()], ..Recipe::default() };
            let handle = statement.part(step);
            for mut parsed in tessera_frontend::parse(&made.sql).map_err(Error::stage)? {
                if let Statement::CreateTensor(create) = &mut parsed.statement {
                    // A later temp tensor may have the same name.
                    create.or_replace = true;
                    self.create_temp(create, &parsed.text, &handle).await?;
                }
            }
        }
        self.assume(&recipe.settings)
    }

    /// Replaces the settings: those given, and the defaults of a new session otherwise.
    fn assume(&self, given: &BTreeMap<String, String>) -> Result<(), Error> {
        let mut settings = Settings::new(&self.host.config);
        given.iter().try_for_each(|(name, value)| settings.set(name, value))?;
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        Ok(())
    }

    fn unknown(&self, written: &ObjectName, mut known: Vec<String>) -> Error {
        known.extend(self.temps().keys().cloned());
        let candidates: Vec<&str> = known.iter().map(String::as_str).collect();
        let name = bare(&written.to_string());
        let near = tessera_frontend::error::nearest(&name, &candidates).map(String::from);
        Error::stage(Failure::UnknownName { name, near, position: Position::of(written) })
    }
}

fn later(construct: &str, hint: &str) -> Error {
    let hint = (!hint.is_empty()).then(|| hint.to_string());
    Error::Unsupported { construct: construct.into(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_1970_are_negative() {
        assert_eq!(micros(UNIX_EPOCH + Duration::from_micros(7)), 7);
        assert_eq!(micros(UNIX_EPOCH - Duration::from_secs(204_332_958)), -204_332_958_000_000);
    }
}
