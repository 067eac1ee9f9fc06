//! The command line.
//!
//! 1. clap parses the words into [`Cli`]; an unknown word is its error, with status 2.
//! 2. [`run`] loads the configuration, starts logging, and calls the subcommand.
//! 3. An error is rendered to stderr and becomes the exit status.

mod bench;
mod interrupt;
mod memory;
mod output;
mod progress;
mod query;
mod serve;
mod worker;

pub use interrupt::asked_to_end;
pub use output::{Output, Target, stderr_width, terminal_width};
pub use progress::{Bar, followed};

use crate::client;
use clap::{Args, Parser, Subcommand};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tessera_engine::Engine;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_frontend::limits::THREAD_STACK_BYTES;
use tokio::runtime::Runtime;

/// A worker's threads for blocking work, and the size of their stacks.
const WORKER_BLOCKING_MAX: usize = 64;
const WORKER_STACK_BYTES: usize = 8 << 20;

/// SQL for tensors.
#[derive(Debug, Parser)]
#[command(name = "tessera", version, long_version = versions(), about, long_about = None)]
#[command(after_help = "Without a command, tessera starts an interactive shell.")]
pub struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    remote: Remote,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Args)]
struct Common {
    /// TOML configuration file (or set TESSERA_CONFIG)
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory or URL of durable tensors [default: ./tessera-data]
    #[arg(long, global = true, value_name = "URL")]
    warehouse: Option<String>,
    /// Memory limit for all queries together, such as 2GiB, or a share of RAM, such as 50% [default: 75%]
    #[arg(long, global = true, value_name = "BYTES")]
    memory_limit: Option<String>,
    /// Directory for chunks spilled from memory [default: the system's temporary directory]
    #[arg(long, global = true, value_name = "DIR")]
    spill_dir: Option<String>,
    /// Disk space for spilled chunks, in bytes or as a share of free space; 0 disables spilling [default: 80%]
    #[arg(long, global = true, value_name = "BYTES")]
    spill_limit: Option<String>,
    /// Compute threads [default: one per core]
    #[arg(long, global = true, value_name = "N")]
    threads: Option<String>,
    /// Log level on stderr: error, warn, info, debug or trace [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    log: Option<String>,
}

#[derive(Debug, Args)]
struct Remote {
    /// URL of a server that runs the statements, instead of this process; those of its standbys may follow, separated by
    /// commas
    #[arg(long, value_name = "URL,…")]
    connect: Option<String>,
    /// Authentication token for that server
    #[arg(long, value_name = "TOKEN", requires = "connect")]
    token: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run SQL statements and print the results
    Query(query::QueryArgs),
    /// Start the HTTP server
    Serve(serve::ServeArgs),
    /// Join a cluster as a worker
    Worker(worker::WorkerArgs),
    /// Print the effective configuration and where each value comes from
    Config,
    /// Verify every file of the warehouse and list damaged ones (exit status 1 if there are any)
    Check,
    /// Benchmark statements: one warm-up run, then N measured runs in one session
    Bench(bench::BenchArgs),
}

impl Remote {
    /// The engine: a remote server if one is given, else a session of this process.
    fn engine(
        &self,
        config: &Config,
        runtime: &Runtime,
        open: impl FnOnce() -> Result<Arc<dyn Engine>, Error>,
    ) -> Result<Arc<dyn Engine>, Error> {
        let Some(url) = &self.connect else { return open() };
        let token = self.token.as_deref().or(config.token.as_ref().map(|t| t.reveal()));
        let _inside = runtime.enter();
        let remote = client::Remote::new(url, token, config)?;
        runtime.block_on(remote.check())?;
        Ok(Arc::new(remote))
    }
}

fn later(construct: &str) -> Error {
    Error::Unsupported { construct: construct.into(), hint: None }
}

/// The text of `--version`. A server and workers can work together if their second lines are equal.
fn versions() -> &'static str {
    static VERSIONS: LazyLock<String> = LazyLock::new(|| {
        let (protocol, kernels) = (tessera_cluster::PROTOCOL, tessera_cluster::KERNELS);
        format!("{}\ncluster protocol {protocol}, kernels {kernels}", env!("CARGO_PKG_VERSION"))
    });
    &VERSIONS
}

/// A write beyond the limit on the size of files fails (`no_space`) instead of ending the process: its signal is caught
/// from now on.
#[cfg(unix)]
fn survive_file_limit(runtime: &Runtime) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    /// `SIGXFSZ`, on Linux, macOS and the BSDs.
    const FILE_SIZE: i32 = 25;
    let _inside = runtime.enter();
    // The handler stays when its receiver is dropped.
    signal(SignalKind::from_raw(FILE_SIZE)).map(drop).map_err(|e| Error::io("catch", "signals", e))
}

/// Opens the engine of a configuration. Called inside the runtime.
pub type Open<'a> = &'a (dyn Fn(&Config) -> Result<Arc<dyn Engine>, Error> + Sync);

/// Runs the interactive shell and returns its exit status.
pub type Shell<'a> = &'a (dyn Fn(Arc<dyn Engine>, &Runtime) -> Result<u8, Error> + Sync);

/// Dependencies of the command line on other crates.
pub struct Parts<'a> {
    /// Opens the engine.
    pub open: Open<'a>,
    /// The interactive shell.
    pub shell: Shell<'a>,
}

/// Runs the command line and returns the exit status: 0 done, 1 the query failed, 2 usage, 3 no connection, 130
/// cancelled.
pub fn run(cli: &Cli, parts: &Parts<'_>) -> u8 {
    // The system chooses the stack of the first thread; this one is as large as that of other threads that plan.
    let work = || match dispatch(cli, parts) {
        Ok(status) => status,
        Err(e) => fail(&e, ""),
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("main".into()).stack_size(THREAD_STACK_BYTES);
        match thread.spawn_scoped(scope, work).map(|thread| thread.join()) {
            Ok(Ok(status)) => status,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(e) => fail(&Error::io("start", "a thread", e), ""),
        }
    })
}

/// How long the exit waits for running work.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);

fn dispatch(cli: &Cli, parts: &Parts<'_>) -> Result<u8, Error> {
    let mut flags = cli.common.flags();
    match &cli.command {
        Some(Command::Serve(args)) => args.flags(&mut flags),
        Some(Command::Worker(args)) => args.flags(&mut flags),
        _ => {}
    }
    let variables = std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let config = Config::load(&flags, variables, cli.common.config.as_deref())?;
    start_log(&config);
    tessera_exec::heap::configure(config.threads, config.memory_limit_bytes);
    tessera_storage::fail::check().map_err(|reason| Error::Config {
        key: "fail".into(),
        origin: "TESSERA_FAIL".into(),
        reason,
        hint: None,
    })?;
    if matches!(cli.command, Some(Command::Config)) {
        let mut out = std::io::stdout().lock();
        return match out.write_all(config.describe().as_bytes()) {
            Ok(()) => Ok(0),
            Err(e) => Err(Error::io("write", "the output", e)),
        };
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.thread_stack_size(THREAD_STACK_BYTES).enable_all();
    if matches!(cli.command, Some(Command::Worker(_))) {
        // A worker parses no SQL. Existing threads take over work if no new thread can start.
        runtime.thread_stack_size(WORKER_STACK_BYTES);
        runtime.thread_keep_alive(Duration::MAX).max_blocking_threads(WORKER_BLOCKING_MAX);
    }
    let runtime = runtime.build().map_err(|e| Error::io("start", "the runtime", e))?;
    #[cfg(unix)]
    survive_file_limit(&runtime)?;
    let open = || {
        let _inside = runtime.enter();
        (parts.open)(&config)
    };
    let done = match &cli.command {
        None => {
            let engine = cli.remote.engine(&config, &runtime, open)?;
            let status = (parts.shell)(engine.clone(), &runtime);
            runtime.block_on(engine.close());
            status
        }
        Some(Command::Query(args)) => {
            // Errors of the command line are reported before the engine starts.
            let remote = if args.remote.connect.is_some() { &args.remote } else { &cli.remote };
            let query = args.check(remote.connect.is_some())?;
            let engine = remote.engine(&config, &runtime, open)?;
            Ok(runtime.block_on(async {
                let status = query.run(&*engine).await;
                engine.close().await;
                status
            }))
        }
        Some(Command::Bench(args)) => {
            let bench = args.check()?;
            let engine = open()?;
            Ok(runtime.block_on(bench.run(&*engine)))
        }
        Some(Command::Serve(args)) => {
            args.check()?;
            runtime.block_on(serve::run(config.clone())).map(|()| 0)
        }
        Some(Command::Worker(args)) => {
            args.check()?;
            runtime.block_on(args.run(config.clone()))
        }
        Some(Command::Check) => {
            let mut out = std::io::stdout();
            let damaged = runtime.block_on(tessera_engine::session::check(&config, &mut out))?;
            Ok(u8::from(damaged > 0))
        }
        Some(Command::Config) => Ok(0),
    };
    // Tasks that a stopped statement left behind end with the process.
    runtime.shutdown_timeout(SHUTDOWN_MAX);
    done
}

impl Common {
    fn flags(&self) -> BTreeMap<&'static str, String> {
        let pairs = [
            ("warehouse", &self.warehouse),
            ("memory-limit", &self.memory_limit),
            ("spill-dir", &self.spill_dir),
            ("spill-limit", &self.spill_limit),
            ("threads", &self.threads),
            ("log", &self.log),
        ];
        pairs.into_iter().filter_map(|(k, v)| Some((k, v.clone()?))).collect()
    }
}

/// Logs go to stderr; stdout is only for answers.
fn start_log(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::new(&config.log);
    // In a second call in one process (tests) the first log stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    for name in &config.ignored {
        tracing::debug!(name, "environment variable is not a setting");
    }
}

/// Reports the error on stderr and returns its exit status. A broken pipe is not reported.
pub fn fail(e: &Error, sql: &str) -> u8 {
    if e.is_broken_pipe() {
        return 0;
    }
    // If stderr fails, only the exit status reports the error.
    let _ = std::io::stderr().lock().write_all(e.render(sql).as_bytes());
    e.exit_status()
}

#[cfg(test)]
mod tests;
