//! Processes that the commands of `deploy/` start meet.

use super::{at, compose, defaulted, expanded, get, objects, pods, shipped, words};
use crate::cluster::{Party, free_port, never_fails};
use crate::common::{Certified, binary, certified_for, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long processes may take to meet.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process, and its lines on stderr so far.
struct Logged {
    party: Party,
    log: Arc<Mutex<String>>,
}

impl Logged {
    fn start(name: &str, mut command: Command) -> Logged {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let written = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                *written.lock().unwrap() += &format!("{line}\n");
            }
        });
        Logged { party: Party { child, name: name.into() }, log }
    }

    fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }
}

const TOKEN: &str = "a token of a test";

/// A server and workers that the commands of `deploy/` start, on ports of this machine.
struct Fleet {
    directory: tempfile::TempDir,
    environment: Vec<(String, String)>,
    /// Ports of this machine for those in the manifests.
    ports: BTreeMap<&'static str, u16>,
    server: Option<Logged>,
    workers: Vec<Logged>,
}

impl Fleet {
    fn new() -> Fleet {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill", "tls", "cluster", "data", "data/input"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let ports = ["8080", "50050"].map(|port| (port, free_port()));
        let environment = [("TESSERA_THREADS", "1"), ("TESSERA_TOKEN", TOKEN)];
        let environment = environment.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        Fleet { directory, environment, ports: ports.into(), server: None, workers: Vec::new() }
    }

    /// The fleet of the manifests of Kubernetes, with these files of certificates.
    fn of_pods(certified: &Certified) -> Fleet {
        let mut fleet = Fleet::new();
        fleet.write("cluster/secret", "a secret of many bytes\n");
        fleet.write("tls/tls.crt", &certified.certificate);
        fleet.write("tls/tls.key", &certified.key);
        fleet.write("tls/ca.crt", &certified.authority);
        let configuration = objects()["ConfigMap/tessera"]["data"].clone();
        for (name, value) in configuration.as_object().unwrap() {
            let value = match name.as_str() {
                "TESSERA_WAREHOUSE" => fleet.path("warehouse"),
                "TESSERA_SPILL_LIMIT" => "1GiB".into(),
                _ => fleet.here(value.as_str().unwrap()),
            };
            fleet.environment.push((name.clone(), value));
        }
        fleet.environment.push(("TESSERA_MEMORY_LIMIT".into(), "128MiB".into()));
        fleet
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o440)).unwrap();
    }

    /// Paths and ports of the manifests as they are on this machine.
    fn here(&self, arg: &str) -> String {
        let mut arg = arg.replace("0.0.0.0", "127.0.0.1");
        for (path, own) in [("/etc/tessera", ""), ("/spill", "spill"), ("/data", "data")] {
            if let Some((before, after)) = arg.split_once(path)
                && (before.is_empty() || before.ends_with('='))
            {
                arg = format!("{before}{}{after}", self.path(own).trim_end_matches('/'));
                break;
            }
        }
        for (port, own) in &self.ports {
            if let Some(host) = arg.strip_suffix(&format!(":{port}")) {
                return format!("{host}:{own}");
            }
        }
        arg
    }

    fn command(&self, args: &[String], more: &[(String, String)]) -> Command {
        let mut command = Command::new(binary());
        command
            .args(args.iter().map(|arg| self.here(arg)))
            .envs(self.environment.iter().chain(more).cloned())
            .current_dir(self.directory.path())
            .stdout(Stdio::null());
        command
    }

    fn start_server(&mut self, args: &[String], more: &[(String, String)]) {
        self.server = Some(Logged::start("server", self.command(args, more)));
        until("the server answers", PATIENCE, || self.ask("/readyz", "").is_some());
    }

    /// Starts a worker. Each name that it is called by resolves to an address on this machine.
    fn start_worker(&mut self, number: usize, args: &[String], more: &[(String, String)]) {
        let worker = Logged::start(&format!("worker-{number}"), self.command(args, more));
        self.workers.push(worker);
    }

    /// The response of the server; `None` without a connection.
    fn ask(&self, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports["8080"])).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (method, n) = (if body.is_empty() { "GET" } else { "POST" }, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\
             Content-Length: {n}\r\n\r\n{body}",
            self.ports["8080"]
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    fn cluster(&self) -> Value {
        let answer = self.ask("/v1/cluster", "").unwrap();
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    fn alive(&self) -> Vec<String> {
        let cluster = self.cluster();
        let workers = cluster["workers"].as_array().unwrap();
        let alive = workers.iter().filter(|w| w["state"] == "alive");
        alive.map(|w| w["address"].as_str().unwrap().to_owned()).collect()
    }

    fn logs(&self) -> String {
        let all = self.server.iter().chain(&self.workers);
        all.map(|l| format!("{}:\n{}", l.party.name, l.log())).collect()
    }

    fn wait_for(&self, workers: usize) {
        let begun = std::time::Instant::now();
        while self.alive().len() != workers {
            assert!(begun.elapsed() < PATIENCE, "{}\n{}", self.cluster(), self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs a statement over two workers, which fetch chunks from each other.
    fn works(&self) {
        let sql = "SET tessera.spread = 'all'; EXPLAIN ANALYZE SELECT sum(abs(x + transpose(x))) AS s FROM \
                   (SELECT cumsum(random_normal([400, 400], seed => 4, chunks => [100, 100]), 1) AS x) t";
        let answer = self.ask("/v1/query?format=csv", sql);
        let answer = answer.unwrap_or_else(|| panic!("{}", self.logs()));
        assert!(answer.contains("workers: 2"), "{answer}");
        let served = || {
            let cluster = self.cluster();
            let mut alive = cluster["workers"].as_array().unwrap().iter();
            alive.all(|w| w["state"] != "alive" || w["served_bytes"].as_u64().unwrap() > 0)
        };
        until("both workers served chunks", PATIENCE, served);
    }
}

/// The command of worker `number` as its pod runs it, on a port of this machine, and its address.
fn worker_args(number: u64, advertise: Option<&str>) -> (Vec<String>, String) {
    let [_, (.., args)] = pods();
    let port = free_port();
    let mut address = String::new();
    let args = args.iter().map(|arg| {
        let mut arg = expanded(arg, number);
        if let (Some(_), Some(to)) = (arg.strip_prefix("--advertise="), advertise) {
            arg = format!("--advertise={to}:50051");
        }
        let Some(rest) = arg.strip_suffix(":50051") else { return arg };
        let own = format!("{rest}:{port}");
        if let Some(advertised) = own.strip_prefix("--advertise=") {
            address = advertised.to_owned();
        }
        own
    });
    let args = args.collect();
    (args, address)
}

/// Each name leads to this machine, and to no other, whatever the system would answer.
fn resolved(names: &[&str]) -> (String, String) {
    let all: Vec<String> = names.iter().map(|name| format!("{name}=127.0.0.1")).collect();
    ("TESSERA_RESOLVE".into(), all.join(","))
}

fn host(address: &str) -> &str {
    address.rsplit_once(':').unwrap().0
}

/// Starts the server and two workers of the manifests with a certificate.
fn meet(certified: &Certified) {
    let mut fleet = Fleet::of_pods(certified);
    let [(_, _, serve), _] = pods();
    let workers: Vec<(Vec<String>, String)> = (0..2).map(|n| worker_args(n, None)).collect();
    let mut names = vec!["tessera"];
    names.extend(workers.iter().map(|(_, address)| host(address)));
    let names = [resolved(&names)];
    fleet.start_server(&serve, &names);
    for (number, (args, _)) in workers.iter().enumerate() {
        fleet.start_worker(number, args, &names);
    }
    fleet.wait_for(2);
    let (mut alive, mut want) =
        (fleet.alive(), workers.iter().map(|w| w.1.clone()).collect::<Vec<_>>());
    alive.sort();
    want.sort();
    assert_eq!(alive, want);
    fleet.works();
}

#[test]
fn server_and_workers_meet_under_the_shipped_names() {
    if never_fails() {
        return;
    }
    let names = shipped();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    meet(&certified_for(&names));
    // The same with the certificate that the script makes.
    if Command::new("openssl").arg("version").stdout(Stdio::null()).status().is_err() {
        println!("the script is not run: no openssl");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("tls");
    let script = |names: &[&str]| {
        let mut command = Command::new("bash");
        command.arg(at("certificates.sh")).arg(&made).args(names).output().unwrap()
    };
    let refused = script(&["tessera", "*.tessera-worker"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("`*.tessera-worker` matches no host"),
        "{told}"
    );
    let out = script(&names);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let file = |name: &str| fs::read_to_string(made.join(name)).unwrap();
    let certified = Certified {
        certificate: file("certificate.pem"),
        key: file("key.pem"),
        authority: file("authority.pem"),
    };
    assert!(file("cluster.secret").trim().len() >= 32);
    meet(&certified);
}

#[test]
fn a_worker_whose_certificate_has_other_names_is_reported_on_both_sides() {
    if never_fails() {
        return;
    }
    // The names that were shipped once: the second one matches no host.
    let mut fleet = Fleet::of_pods(&certified_for(&["tessera", "*.tessera-worker"]));
    let [(_, _, serve), _] = pods();
    let wrong = "tessera-worker-0.tessera-worker";
    let names = [resolved(&["tessera", wrong])];
    fleet.start_server(&serve, &names);
    let (args, address) = worker_args(0, Some(wrong));
    fleet.start_worker(0, &args, &names);
    assert_eq!(host(&address), wrong);
    let worker = &mut fleet.workers[0];
    let status = worker.party.child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let events = || {
        let cluster = fleet.cluster();
        let events = cluster["events"].as_array().unwrap().iter();
        let refused = events.filter(|e| e["kind"] == "refused");
        refused.map(|e| e["detail"].as_str().unwrap().to_owned()).collect::<Vec<String>>()
    };
    let told_server = events();
    assert_eq!(told_server.len(), 1, "{told_server:?}");
    until("the worker's words are read", PATIENCE, || fleet.workers[0].log().contains("error"));
    let log = || fleet.server.as_ref().unwrap().log();
    until("the server's words are read", PATIENCE, || log().contains("cannot join"));
    for told in [fleet.workers[0].log(), log(), told_server[0].clone()] {
        for part in [
            &*address,
            "`tessera-worker-0.tessera-worker`",
            "for `tessera`, `*.tessera-worker`",
            "--advertise",
            "subjectAltName",
            "at least two labels follow",
        ] {
            assert!(told.contains(part), "no {part} in {told}");
        }
    }
    // The way out works: a name that the certificate has.
    let (args, address) = worker_args(0, Some("tessera"));
    fleet.start_worker(1, &args, &names);
    fleet.wait_for(1);
    assert_eq!(fleet.alive(), [address]);
    // A worker that calls the server by another name says so, and goes on trying.
    let (mut args, _) = worker_args(1, Some("tessera"));
    for arg in &mut args {
        *arg = arg.replace("--scheduler=tessera:", &format!("--scheduler={wrong}:"));
    }
    fleet.start_worker(2, &args, &names);
    let log = || fleet.workers[2].log();
    until("the worker says why", PATIENCE, || log().contains("cannot join"));
    assert!(
        log().contains("`tessera-worker-0.tessera-worker`, by which it is called"),
        "{}",
        log()
    );
    assert!(
        log().contains("--scheduler") && log().contains("for `tessera`, `*.tessera-worker`"),
        "{}",
        log()
    );
}

#[test]
fn the_commands_of_compose_make_a_cluster() {
    let compose = compose();
    let mut fleet = Fleet::new();
    for service in ["server", "worker"] {
        let args = words(get(&compose, &format!("services.{service}.command")));
        let environment = get(&compose, &format!("services.{service}.environment"));
        let environment = environment.as_object().unwrap().iter();
        let mine = environment.filter(|(name, _)| *name != "TESSERA_TOKEN");
        let mine = mine.map(|(name, v)| (name.clone(), fleet.here(defaulted(v.as_str().unwrap()))));
        // The workers reach the server at its default port. One test must not use that port, so it sets another one.
        let join = ("TESSERA_CLUSTER_LISTEN".to_owned(), fleet.here("127.0.0.1:50050"));
        let mine: Vec<(String, String)> = mine.chain([join]).collect();
        match service {
            "server" => fleet.start_server(&args, &mine),
            _ => (0..2).for_each(|n| fleet.start_worker(n, &args, &mine)),
        }
    }
    fleet.wait_for(2);
    fleet.works();
    assert_eq!(
        fs::metadata(fleet.path("data/cluster.secret")).unwrap().permissions().mode() & 0o777,
        0o600
    );
}
