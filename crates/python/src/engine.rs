//! A session of this process, or a client of a server, as a Python object.

use crate::answer::Reply;
use crate::error::{exception, usage};
use crate::fork::Threads;
use crate::locals::Local;
use futures::StreamExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_engine::Handle;
use tessera_engine::answer;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::locals::Locals;
use tessera_engine::session::Session;
use tessera_engine::statement::Progress;
use tessera_frontend::limits::THREAD_STACK_BYTES;
use tessera_server::client::Remote;

/// Interval between looks for signals while a statement runs.
const TICK: Duration = Duration::from_millis(50);
/// How long a thread looks for an answer before it sleeps.
const AWAKE: Duration = Duration::from_micros(200);
/// How long a cancelled statement may take to return.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long closing waits for tasks that a stopped statement left behind.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
/// Threads for blocking work.
const BLOCKING_MAX: usize = 64;

/// The engine that runs SQL, and its threads.
#[pyclass(frozen, weakref)]
pub(crate) struct Engine {
    /// The process that opened it: threads do not survive a fork.
    process: u32,
    opened: Mutex<Option<Arc<Opened>>>,
}

struct Opened {
    engine: Arc<dyn tessera_engine::Engine>,
    /// The session of this process; `None` for a server.
    session: Option<Arc<Session>>,
    runtime: Option<tokio::runtime::Runtime>,
    threads: Arc<Threads>,
    running: Mutex<BTreeMap<u64, Handle>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The session ends before the runtime that it runs on.
        self.session = None;
        self.engine = Arc::new(Closed);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(SHUTDOWN_MAX);
        }
    }
}

/// An engine that runs nothing.
struct Closed;

impl tessera_engine::Engine for Closed {
    fn run<'a>(&'a self, _: &'a str, _: Handle) -> tessera_engine::Replies<'a> {
        Box::pin(futures::stream::once(async { Err(Error::ShuttingDown) }))
    }
}

/// The replies of a script, or its error.
type Outcome = Result<Vec<answer::Reply>, Error>;

impl Engine {
    fn of(opened: Opened) -> Self {
        Engine { process: std::process::id(), opened: Mutex::new(Some(Arc::new(opened))) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Opened>>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        if self.process != std::process::id() {
            let reason = "the connection was opened by the parent of this process";
            return Err(usage(py, reason, Some("open another one with `connect(…)` after a fork")));
        }
        let opened = self.lock().clone();
        opened.ok_or_else(|| usage(py, "the connection is closed", None))
    }

    /// The threads, if they run nothing; `Some(None)` if it has none in this process.
    pub(crate) fn idle(&self) -> Option<Option<(tokio::runtime::Handle, Arc<Threads>)>> {
        if self.process != std::process::id() {
            return Some(None);
        }
        let opened = self.opened.try_lock().ok()?.clone();
        let Some(opened) = opened else { return Some(None) };
        let runs_nothing = opened.running.try_lock().is_ok_and(|running| running.is_empty());
        let runtime = opened.runtime.as_ref().filter(|_| runs_nothing)?;
        Some(Some((runtime.handle().clone(), opened.threads.clone())))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Its threads, one of which may have held the lock, are in the other process.
            std::mem::forget(std::mem::take(&mut self.opened));
            return;
        }
        let Some(opened) = self.lock().take() else { return };
        opened.cancel();
        Python::attach(|py| py.detach(|| drop(opened)));
    }
}

impl Opened {
    fn running(&self) -> MutexGuard<'_, BTreeMap<u64, Handle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        self.running().values().for_each(Handle::cancel);
    }
}

/// A running statement, which is cancelled when this drops.
struct RunningStatement<'a> {
    opened: &'a Opened,
    number: u64,
    handle: Handle,
    outcome: Mutex<Receiver<Outcome>>,
}

impl Drop for RunningStatement<'_> {
    fn drop(&mut self) {
        self.handle.cancel();
        self.opened.running().remove(&self.number);
    }
}

impl<'a> RunningStatement<'a> {
    fn start(opened: &'a Opened, sql: String, handle: Handle) -> Result<Self, Error> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let runtime = opened.runtime.as_ref().ok_or(Error::ShuttingDown)?;
        let (send, outcome) = sync_channel(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        opened.running().insert(number, handle.clone());
        let outcome = Mutex::new(outcome);
        let running = RunningStatement { opened, number, handle: handle.clone(), outcome };
        let engine = opened.engine.clone();
        runtime.spawn(async move {
            let replies = engine.run(&sql, handle).collect::<Vec<_>>().await;
            // Nobody receives it after a Ctrl-C.
            let _ = send.send(replies.into_iter().collect());
        });
        Ok(running)
    }

    fn wait(&self, py: Python<'_>, timeout: Duration) -> Result<Outcome, RecvTimeoutError> {
        received(py, &self.outcome, timeout)
    }

    /// Waits for the end. Between two looks for signals it calls `watch` with the progress.
    fn follow(&self, py: Python<'_>, watch: Option<&Py<PyAny>>) -> PyResult<Outcome> {
        let started = Instant::now();
        loop {
            match self.wait(py, TICK) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(broken())),
            }
            let told = match watch {
                Some(watch) => {
                    let progress = progress(py, &self.handle.progress(), started.elapsed());
                    progress.and_then(|p| watch.call1(py, (p,)).map(drop))
                }
                None => Ok(()),
            };
            if let Err(interrupt) = py.check_signals().and(told) {
                self.handle.cancel();
                // The statement has ended when the caller continues. After a timeout it ends by itself.
                let _ = self.wait(py, PATIENCE);
                return Err(interrupt);
            }
        }
    }
}

/// Receives a value from another thread, with the interpreter released.
fn received<T: Send>(
    py: Python<'_>,
    channel: &Mutex<Receiver<T>>,
    timeout: Duration,
) -> Result<T, RecvTimeoutError> {
    py.detach(|| {
        let channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that sleeps wakes up tens of microseconds late, which is a large part of a short statement.
        let awake = Instant::now() + AWAKE;
        while Instant::now() < awake {
            match channel.try_recv() {
                Ok(sent) => return Ok(sent),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
        channel.recv_timeout(timeout)
    })
}

fn broken() -> Error {
    Error::Internal { what: "a statement ended without an outcome".into() }
}

fn progress<'py>(
    py: Python<'py>,
    progress: &Progress,
    elapsed: Duration,
) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("state", progress.state.name())?;
    told.set_item("fraction", progress.fraction())?;
    told.set_item("operands_done", progress.operands_done)?;
    told.set_item("operands_total", progress.operands_total)?;
    told.set_item("bytes_read", progress.bytes_read)?;
    told.set_item("bytes_spilled", progress.bytes_spilled)?;
    told.set_item("eta_s", progress.eta_s)?;
    told.set_item("elapsed_s", elapsed.as_secs_f64())?;
    told.set_item("statement", progress.statement)?;
    told.set_item("statements", progress.statements)?;
    Ok(told)
}

/// The configuration of settings over those of the environment and a file, and threads to run on.
fn prepared(
    settings: &BTreeMap<String, String>,
    file: Option<&str>,
) -> Result<(Config, tokio::runtime::Runtime, Arc<Threads>), Error> {
    let keys: Vec<&'static str> = tessera_engine::config::names().collect();
    let mut flags = BTreeMap::new();
    for (key, value) in settings {
        let key = key.replace('_', "-");
        let known = keys.iter().find(|known| **known == key).ok_or_else(|| Error::Config {
            key: key.clone(),
            origin: "connect".into(),
            reason: "unknown setting".into(),
            hint: tessera_engine::nearest(&key, &keys)
                .map(|name| format!("did you mean `{name}`?")),
        })?;
        flags.insert(*known, value.clone());
    }
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let config = Config::load(&flags, variables, file.map(Path::new))?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let threads = Threads::of(&mut runtime, config.threads.clamp(1, 4));
    runtime.max_blocking_threads(BLOCKING_MAX);
    runtime.thread_stack_size(THREAD_STACK_BYTES).thread_name("tessera").enable_all();
    let runtime = runtime.build().map_err(|e| Error::io("start", "the runtime", e))?;
    Ok((config, runtime, threads))
}

fn embedded(settings: &BTreeMap<String, String>, file: Option<&str>) -> Result<Opened, Error> {
    let (config, runtime, threads) = prepared(settings, file)?;
    let session = {
        let _inside = runtime.enter();
        Arc::new(Session::open(config, runtime.handle().clone())?)
    };
    let (engine, session) = (session.clone(), Some(session));
    let (runtime, running) = (Some(runtime), Mutex::default());
    Ok(Opened { engine, session, runtime, threads, running })
}

fn remote(
    url: &str,
    token: Option<&str>,
    settings: &BTreeMap<String, String>,
    file: Option<&str>,
) -> Result<(Opened, Receiver<Result<(), Error>>), Error> {
    let (config, runtime, threads) = prepared(settings, file)?;
    let token = token.or(config.token.as_ref().map(|t| t.reveal()));
    let remote = {
        let _inside = runtime.enter();
        Arc::new(Remote::new(url, token, &config)?)
    };
    let (send, checked) = sync_channel(1);
    let asked = remote.clone();
    runtime.spawn(async move {
        // Nobody receives it after a Ctrl-C.
        let _ = send.send(asked.check().await);
    });
    let (runtime, running) = (Some(runtime), Mutex::default());
    let opened = Opened { engine: remote, session: None, runtime, threads, running };
    Ok((opened, checked))
}

/// Waits until a server accepts statements. Handles signals in the meantime.
fn accepted(py: Python<'_>, checked: Receiver<Result<(), Error>>) -> PyResult<()> {
    let checked = Mutex::new(checked);
    loop {
        match received(py, &checked, TICK) {
            Ok(answer) => return answer.map_err(|e| exception(py, &e, "")),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => return Err(exception(py, &broken(), "")),
        }
    }
}

#[pymethods]
impl Engine {
    /// Opens a session of this process, with settings of the configuration by name and the path of a configuration file.
    #[staticmethod]
    #[pyo3(signature = (settings, file=None))]
    fn open(
        py: Python<'_>,
        settings: BTreeMap<String, String>,
        file: Option<&str>,
    ) -> PyResult<Self> {
        let opened = py.detach(|| embedded(&settings, file));
        opened.map(Engine::of).map_err(|e| exception(py, &e, ""))
    }

    /// Connects to a server, or to several of one warehouse, whose URLs are separated by commas.
    #[staticmethod]
    #[pyo3(signature = (url, token, settings, file=None))]
    fn connect(
        py: Python<'_>,
        url: &str,
        token: Option<&str>,
        settings: BTreeMap<String, String>,
        file: Option<&str>,
    ) -> PyResult<Self> {
        let made = py.detach(|| remote(url, token, &settings, file));
        let (opened, checked) = made.map_err(|e| exception(py, &e, ""))?;
        // If no server accepts it, or after a Ctrl-C, it ends here.
        let engine = Engine::of(opened);
        accepted(py, checked).map(|()| engine)
    }

    /// Runs a script. `locals` are relations of the caller by name, with True for those before the catalog's; `watch` is
    /// called with the progress, about 20 times a second. With `tensors_only` a session of this process answers rows of
    /// queries as tensors, whose dimensions are their keys and labels.
    #[pyo3(signature = (sql, locals, watch=None, tensors_only=false))]
    fn run(
        &self,
        py: Python<'_>,
        sql: &str,
        locals: Vec<(String, Bound<'_, Local>, bool)>,
        watch: Option<Py<PyAny>>,
        tensors_only: bool,
    ) -> PyResult<Vec<Reply>> {
        let opened = self.opened(py)?;
        let local = |(name, local, first): (_, Bound<'_, Local>, bool)| {
            let local = local.get().0.clone();
            (name, if first { local.first() } else { local })
        };
        let locals: Locals = locals.into_iter().map(local).collect();
        let handle = Handle::reading(locals).in_one_piece();
        let handle = if tensors_only { handle.tensors_only() } else { handle };
        let outcome = match RunningStatement::start(&opened, sql.into(), handle) {
            Ok(running) => running.follow(py, watch.as_ref()),
            Err(e) => Ok(Err(e)),
        };
        // This may be the last reference to a connection that was closed in the meantime.
        py.detach(|| drop(opened));
        let replies = outcome?.map_err(|e| exception(py, &e, sql))?;
        replies.into_iter().map(|reply| Reply::new(py, reply)).collect()
    }

    /// Requests to storage and bytes read from it by this session's process since it was opened; `None` for a server.
    fn counters(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        let opened = self.opened(py)?;
        Ok(opened.session.as_ref().map(|session| {
            let (requests, bytes, _) = session.host().counters().snapshot();
            (requests, bytes)
        }))
    }

    /// Bytes of the memory limit that are in use; `None` for a server.
    fn memory_used(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let opened = self.opened(py)?;
        Ok(opened.session.as_ref().map(|session| session.host().runtime().quota().used()))
    }

    /// True once it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    /// Cancels what runs, ends the session and its threads. Does nothing if it is closed, and in a child of the process
    /// that opened it.
    fn close(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        let Some(opened) = self.lock().take() else { return };
        py.detach(|| {
            opened.cancel();
            if let Some(runtime) = &opened.runtime {
                runtime.block_on(opened.engine.close());
            }
            drop(opened);
        });
    }
}
