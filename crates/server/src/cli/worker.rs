//! `tessera worker`: a worker process, and its supervisor.
//!
//! ```text
//!   tessera worker ─ starts ─▶ tessera worker --supervised      restarted when it ends, except for a regular end
//!                  ─ a pipe ─▶ which ends when the pipe closes: the supervisor was asked to end, or is dead
//!                  ─ asks ──▶ the server, which names a worker that should restart and does not respond: it is killed
//! ```

use clap::Args;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tessera_cluster::net::{Credentials, Fault};
use tessera_cluster::{Ended, Joining, Worker};
use tessera_engine::config::{Config, MEMORY_LEAST, addresses_left, format_bytes};
use tessera_engine::error::Error;
use tessera_exec::run::Runtime;
use tessera_storage::source::Stores;
use tokio_util::sync::CancellationToken;

/// Exit status of a worker that requests its restart.
const AGAIN: i32 = 75;
/// How long a worker that was asked to end may take.
const PATIENCE: Duration = Duration::from_secs(40);
/// Interval between checks of the worker.
const LOOK: Duration = Duration::from_millis(50);
/// Backoff from a worker's death to the next start: initial and maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A worker that lived this long resets the backoff.
const LIVED: Duration = Duration::from_secs(30);
/// Timeout of storage requests.
const STORAGE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(super) struct WorkerArgs {
    /// Address where the server accepts workers, and those of its standbys, separated by commas [default:
    /// 127.0.0.1:50050]
    #[arg(long, value_name = "HOST:PORT,…")]
    scheduler: Option<String>,
    /// Address to listen on [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: SocketAddr,
    /// Address that the others connect to, if it differs from --listen
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Compute threads of this worker [default: --threads]
    #[arg(long, value_name = "N")]
    slots: Option<String>,
    /// Name in SHOW WORKERS [default: its address]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Do not restart the worker process when it ends
    #[arg(long)]
    no_supervisor: bool,
    /// This is what a supervisor started, by the number that it drew for it
    #[arg(long, hide = true, value_name = "N")]
    supervised: Option<u64>,
}

impl WorkerArgs {
    pub(super) fn flags(&self, flags: &mut BTreeMap<&'static str, String>) {
        if let Some(s) = &self.scheduler {
            flags.insert("scheduler", s.clone());
        }
        if let Some(n) = &self.slots {
            flags.insert("slots", n.clone());
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.listen.ip().is_unspecified() && self.advertise.is_none() {
            return Err(Error::Usage {
                reason: format!("nobody can call a worker at {}", self.listen),
                hint: Some("say where others find it: `--advertise HOST:PORT`".into()),
            });
        }
        Ok(())
    }

    /// Runs a worker, and returns the exit status.
    pub(super) async fn run(&self, config: Config) -> Result<u8, Error> {
        if self.supervised.is_some() || self.no_supervisor {
            let ended = self.work(&config).await?;
            return Ok(if ended == Ended::Restart { AGAIN as u8 } else { 0 });
        }
        // Errors in the files are reported once.
        supervise(&credentials(&config)?, &config.schedulers).await
    }

    async fn work(&self, config: &Config) -> Result<Ended, Error> {
        let memory_bytes = memory_bytes(config.memory_limit_bytes, addresses_left())?;
        let exec = tessera_exec::config::Config {
            threads: config.slots,
            quota_bytes_max: memory_bytes,
            // A worker uses its memory for nothing else.
            pool_bytes_max: memory_bytes / 2,
            spill_dir: Some(config.spill_dir.clone()),
            spill_bytes_max: config.spill_limit_bytes,
            compression: config.compression,
            ..Default::default()
        };
        let credentials = credentials(config)?;
        let runtime =
            Runtime::new(exec, tokio::runtime::Handle::current()).map_err(Error::stage)?;
        let stores = Stores::new(STORAGE);
        let rows = tessera_engine::rows_runner(&runtime, stores.clone(), &credentials);
        let worker = Worker::new(
            runtime,
            stores,
            &credentials,
            // Half of it, whatever is configured: an operand that needs the whole limit waits until chunks are dropped.
            config.retained_limit_bytes.min(memory_bytes / 2),
        );
        worker.runs_rows(rows);
        let joining = Joining {
            schedulers: config.schedulers.clone(),
            listen: self.listen,
            advertise: self.advertise.clone(),
            name: self.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            supervisor: self.supervised,
        };
        let end = CancellationToken::new();
        let (fire, terminated) = (end.clone(), super::serve::terminated()?);
        tokio::spawn(async move {
            terminated.await;
            fire.cancel();
        });
        if self.supervised.is_some() {
            let fire = end.clone();
            // The pipe carries no data, only its end.
            std::thread::spawn(move || {
                let read = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                tracing::debug!(?read, "the supervisor ended, or asked the worker to end");
                fire.cancel();
            });
        }
        worker.work(&joining, &credentials, &end).await.map_err(refused)
    }
}

/// Memory for chunks: the memory limit, and no more than half of the address space that the process may still map,
/// because threads, connections and the allocator need the rest.
fn memory_bytes(limit: u64, addresses: Option<u64>) -> Result<u64, Error> {
    let Some(addresses) = addresses.filter(|left| left / 2 < limit) else { return Ok(limit) };
    let has = format_bytes(addresses);
    if addresses / 2 < MEMORY_LEAST {
        return Err(Error::Usage {
            reason: format!(
                "the process may map {has} more (`ulimit -v`): that is not enough to work with"
            ),
            hint: Some(
                "let it have more addresses, or none too few (`ulimit -v unlimited`)".into(),
            ),
        });
    }
    let (limit, memory) = (format_bytes(limit), format_bytes(addresses / 2));
    tracing::warn!(
        "the process may map {has} more (`ulimit -v`): chunks have {memory}, not {limit}"
    );
    Ok(addresses / 2)
}

/// The error of a worker that ended. An error that a restart cannot fix has its own status.
fn refused(fault: Fault) -> Error {
    match fault {
        Fault::Denied(reason) => Error::Usage { reason, hint: None },
        fault => Error::stage(fault),
    }
}

fn credentials(config: &Config) -> Result<Credentials, Error> {
    let security = &config.cluster_security;
    Credentials::load(security).map_err(|fault| Error::Config {
        key: "cluster-secret-file".into(),
        origin: "worker".into(),
        reason: match fault {
            Fault::Denied(reason) => reason,
            fault => fault.to_string(),
        },
        hint: Some(
            "a server of the same user makes the file when it starts with `--cluster`; on another \
             machine, copy it there"
                .into(),
        ),
    })
}

/// Runs this command as a worker repeatedly, until it ends by itself or is asked to end.
async fn supervise(credentials: &Credentials, schedulers: &[String]) -> Result<u8, Error> {
    let terminated = super::serve::terminated()?;
    tokio::pin!(terminated);
    let mut pause = PAUSE.0;
    loop {
        let number = uuid::Uuid::new_v4().as_u64_pair().0;
        let mut worker = start(number)?;
        let started = Instant::now();
        let is_to_be_ended = tessera_cluster::is_to_be_ended(credentials, schedulers, number);
        tokio::pin!(is_to_be_ended);
        let mut killed = false;
        let status = loop {
            if let Some(status) = look(&mut worker)? {
                break status;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut is_to_be_ended, if !killed => {
                    tracing::warn!("the worker does not respond; it is killed, as the server requested");
                    kill(&mut worker)?;
                    killed = true;
                }
                () = &mut terminated => return stop(worker).await,
            }
        };
        if killed {
            continue;
        }
        match status.code() {
            Some(0) => return Ok(0),
            // The configuration is unusable: the next start would fail too.
            Some(code @ 2) => return Ok(code as u8),
            Some(AGAIN) => {
                tracing::info!("the worker restarts, as the server requested");
                continue;
            }
            _ => tracing::warn!(%status, "the worker is dead; another one is started"),
        }
        if started.elapsed() > LIVED {
            pause = PAUSE.0;
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(pause)) => {}
            () = &mut terminated => return Ok(0),
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// A random duration from half of `time` to all of it: workers that died together do not restart together.
fn jittered(time: Duration) -> Duration {
    let drawn = uuid::Uuid::new_v4().as_u128() as u32;
    time.mul_f64(0.5 + 0.5 * f64::from(drawn) / f64::from(u32::MAX))
}

fn start(number: u64) -> Result<Child, Error> {
    let cannot = |e| Error::io("start", "a worker", e);
    let program = std::env::current_exe().map_err(cannot)?;
    Command::new(program)
        .args(std::env::args_os().skip(1))
        .args(["--supervised", &number.to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(cannot)
}

fn look(worker: &mut Child) -> Result<Option<ExitStatus>, Error> {
    worker.try_wait().map_err(|e| Error::io("wait for", "a worker", e))
}

fn kill(worker: &mut Child) -> Result<(), Error> {
    worker.kill().map_err(|e| Error::io("end", "a worker", e))
}

/// Asks a worker to end, and kills it if it does not.
async fn stop(mut worker: Child) -> Result<u8, Error> {
    drop(worker.stdin.take());
    let asked = Instant::now();
    loop {
        if let Some(status) = look(&mut worker)? {
            // A worker that requested a restart in the meantime ended as it should.
            return Ok(u8::from(!status.success() && status.code() != Some(AGAIN)));
        }
        if asked.elapsed() > PATIENCE {
            tracing::warn!("the worker does not end; it is killed");
            kill(&mut worker)?;
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_drawn_from_half_to_all() {
        let drawn: Vec<Duration> = (0..200).map(|_| jittered(PAUSE.1)).collect();
        assert!(drawn.iter().all(|d| (PAUSE.1 / 2..=PAUSE.1).contains(d)), "{drawn:?}");
        assert!(drawn.iter().any(|d| *d != drawn[0]));
    }

    #[test]
    fn a_limit_of_addresses_is_a_limit_of_memory() {
        assert_eq!(memory_bytes(1 << 30, None).unwrap(), 1 << 30);
        assert_eq!(memory_bytes(1 << 30, Some(2 << 30)).unwrap(), 1 << 30);
        assert_eq!(memory_bytes(1 << 30, Some(1 << 30)).unwrap(), 1 << 29);
        let refused = memory_bytes(1 << 30, Some(20 << 20)).unwrap_err();
        assert!(refused.to_string().contains("20MiB") && refused.exit_status() == 2, "{refused}");
    }

    #[test]
    fn a_fault_that_a_restart_does_not_mend_ends_the_supervisor() {
        assert_eq!(refused(Fault::Denied("the secret".into())).exit_status(), 2);
        assert_eq!(refused(Fault::Failed("too many".into())).exit_status(), 1);
        assert_eq!(refused(Fault::Unreachable("dead".into())).exit_status(), 1);
    }
}
