//! Processor time, memory and messages of a server that plans and drives statements on many workers.
//!
//! `cargo bench -p tessera-cluster -- [WORKERS] [OPERANDS] [MICROSECONDS]` (200, 10^6, 10000). All workers are
//! simulated in one other process. Each waits as long as four threads would take for its operands, at the given
//! microseconds for each operand, and computes nothing. Only the server's process is measured, from the plan to the
//! last order.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "simulated/fake.rs"]
mod fake;
#[path = "simulated/plans.rs"]
mod plans;

use fake::Fake;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tessera_cluster::Cluster;
use tessera_cluster::net::{Credentials, Security};
use tessera_cluster::registry::Limits;

/// The environment of the process of the workers: the server, the file of the secret, their number, and microseconds.
const WORKERS: &str = "SIMULATED_WORKERS";
const VERSION: &str = "simulated";
const THREADS: u32 = 4;

fn main() {
    let threads =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = threads.unwrap();
    if let Ok(told) = std::env::var(WORKERS) {
        let told: Vec<&str> = told.split('\n').collect();
        return runtime.block_on(workers(&told));
    }
    let numbers: Vec<u64> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let number = |at: usize, default: u64| numbers.get(at).copied().unwrap_or(default);
    runtime.block_on(server(number(0, 200) as usize, number(1, 1_000_000), number(2, 10_000)));
}

/// Runs the simulated workers until the server ends.
async fn workers(told: &[&str]) {
    let [scheduler, secret, count, micros] = told else { unreachable!("{told:?}") };
    let credentials = credentials(secret.into());
    let operand = Duration::from_micros(micros.parse().unwrap());
    let mut all = Vec::new();
    for _ in 0..count.parse::<usize>().unwrap() {
        let fake = Fake::new(THREADS, operand, 0);
        all.push(fake.join(scheduler, &credentials, VERSION).await.unwrap());
    }
    for (_server, beats) in all {
        // The task of heartbeats ends with the server.
        beats.await.unwrap();
    }
}

fn credentials(secret: std::path::PathBuf) -> Credentials {
    Credentials::load(&Security { secret, ..Security::default() }).unwrap()
}

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn server(count: usize, operands: u64, micros: u64) {
    let files = tempfile::tempdir().unwrap();
    let secret = files.path().join("secret");
    Credentials::make(&secret).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let credentials = credentials(secret.clone());
    let listen = "127.0.0.1:0".parse().unwrap();
    let cluster = Cluster::open(listen, Limits::default(), &credentials, VERSION).await.unwrap();
    let told = format!("{}\n{}\n{count}\n{micros}", cluster.address(), secret.to_str().unwrap());
    let child = Command::new(std::env::current_exe().unwrap()).env(WORKERS, told).spawn();
    let _child = Killed(child.unwrap());
    while cluster.registry().alive().len() < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{count} workers of {THREADS} threads, {} ms an operand", micros as f64 / 1e3);
    println!(
        "| plan | operands | steps | orders | orders KiB | CPU s | wall s | CPU / wall | peak MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for plan in plans::plans(operands).unwrap() {
        let expected = plan.drive(&cluster).unwrap().unwrap().expected();
        let steps = expected.unwrap().unwrap().steps;
        // The peak from here on.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let (cpu, begun) = (processor(), Instant::now());
        let drive = plan.drive(&cluster).unwrap().unwrap();
        let shelved = drive.prepare(&plan.tiling).await.unwrap();
        let (cpu, wall) = (processor() - cpu, begun.elapsed().as_secs_f64());
        let peak = peak_mib();
        println!(
            "| {} | {} | {steps} | {} | {:.0} | {cpu:.2} | {wall:.1} | {:.3} | {peak} |",
            plan.name,
            plan.operands(),
            drive.totals().orders,
            drive.order_bytes() as f64 / 1024.0,
            cpu / wall,
        );
        drop(shelved);
    }
}

/// Seconds of processor time of this process.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = stat.rsplit_once(") ").unwrap().1;
    let ticks: Vec<f64> = after.split(' ').skip(11).take(2).map(|n| n.parse().unwrap()).collect();
    // User and system time, in hundredths of a second on Linux.
    ticks.iter().sum::<f64>() / 100.0
}

/// Peak of resident memory since the last reset, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}
