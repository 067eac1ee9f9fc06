//! Tools of tests of whole statements: a host of its own with its directories, and checks of the resources that must be
//! free when nothing runs.

use futures::StreamExt;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_engine::answer::Reply;
use tessera_engine::config::Config;
use tessera_engine::error::Error;
use tessera_engine::session::{Host, Session};
use tessera_engine::{Engine, Handle};

/// How long threads may take to let go before a test calls it a leak.
const PATIENCE: Duration = Duration::from_secs(60);

/// The flags of a test's server: it may access the files that the test writes, wherever they are.
pub(crate) const SERVE: [&str; 6] =
    ["serve", "--no-token", "--allow-read", "*", "--allow-write", "*"];

/// A certificate with its key, and the authority that signed it, as PEM.
pub(crate) struct Certified {
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(crate) authority: String,
}

/// A certificate of an authority of its own.
pub(crate) fn certified() -> Certified {
    certified_for(&["127.0.0.1", "localhost"])
}

/// The same, for these names.
pub(crate) fn certified_for(names: &[&str]) -> Certified {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let own = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&own, &issuer).unwrap();
    Certified { certificate: certificate.pem(), key: own.serialize_pem(), authority: root }
}

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The program that long tests are about: `TESSERA_TEST_BINARY`, a release build, or the one of these tests.
pub(crate) fn binary() -> PathBuf {
    match std::env::var_os("TESSERA_TEST_BINARY") {
        Some(path) => std::path::absolute(path).unwrap(),
        None => env!("CARGO_BIN_EXE_tessera").into(),
    }
}

/// The program, with nothing to read from stdin; paths are those of the repository.
pub(crate) fn tessera() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command
}

/// Random numbers that are reproducible from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A host with a warehouse, a spill directory and a directory for output, all in one temporary directory.
pub(crate) struct Place {
    pub(crate) session: Session,
    pub(crate) host: Arc<Host>,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) directory: tempfile::TempDir,
}

impl Place {
    /// A place with two threads, and the settings in `flags`.
    pub(crate) fn open(flags: &[(&'static str, &str)]) -> Place {
        let directory = tempfile::tempdir().unwrap();
        for name in ["spill", "output"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let at = |name: &str| directory.path().join(name).display().to_string();
        let own = [
            ("warehouse", at("warehouse")),
            ("spill-dir", at("spill")),
            ("threads", "2".to_string()),
        ];
        let flags = own.into_iter().chain(flags.iter().map(|(k, v)| (*k, v.to_string())));
        let config = Config::load(&flags.collect(), [], None).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let host = Host::open(config, runtime.handle().clone()).unwrap();
        let session = Session::of(host.clone());
        Place { runtime, session, host, directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A name in the directory for output, as SQL has it.
    pub(crate) fn shown(&self, name: &str) -> String {
        self.path("output").join(name).display().to_string()
    }

    pub(crate) fn try_run(&self, sql: &str) -> Result<Vec<Reply>, Error> {
        let replies: Vec<_> =
            self.runtime.block_on(async { self.session.run(sql, Handle::new()).collect().await });
        replies.into_iter().collect()
    }

    pub(crate) fn run(&self, sql: &str) -> Vec<Reply> {
        self.try_run(sql).unwrap_or_else(|e| panic!("{sql}: {}", e.render(sql)))
    }

    /// The answers as golden scripts write them; an error is its code and message.
    pub(crate) fn lines(&self, sql: &str) -> Result<Vec<String>, String> {
        let shown = |e: Error| format!("{}: {e}", e.code());
        let mut lines = Vec::new();
        for reply in self.try_run(sql).map_err(shown)? {
            lines.extend(crate::slt::answer_lines(reply.whole().map_err(shown)?.answer));
        }
        Ok(lines)
    }

    /// Drops the relations and outputs of a test's statements.
    pub(crate) fn clear(&self) {
        self.run("DROP TENSOR IF EXISTS kept; DROP TENSOR IF EXISTS held");
        let out = self.path("output/out");
        match fs::symlink_metadata(&out) {
            Ok(m) if m.is_dir() => fs::remove_dir_all(&out).unwrap(),
            Ok(_) => fs::remove_file(&out).unwrap(),
            Err(_) => {}
        }
    }

    /// Resources that are held although nothing runs: empty if all are free.
    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let runtime = self.host.runtime();
        let spilled = runtime.store().figures();
        for (what, n) in [
            ("bytes of the quota", runtime.quota().used()),
            ("plans", runtime.plans() as u64),
            ("statements", self.host.queries().list().len() as u64),
            ("spilled files", spilled.files),
            ("bytes of spill", spilled.bytes),
            ("bytes of results on disk", self.host.scratch().used()),
        ] {
            if n > 0 {
                left.push(format!("{n} {what}"));
            }
        }
        // A lock and empty directories say that the process lives.
        for file in files(&self.path("spill")) {
            if file.file_name().is_some_and(|n| n != "lock") {
                left.push(format!("file {}", file.display()));
            }
        }
        // Of the warehouse, the catalog's entries and the stores that they name stay.
        let catalog = names(&self.path("warehouse/catalog"));
        let stores = names(&self.path("warehouse/data"));
        if stores.len() != catalog.len() || catalog.iter().any(|n| n.starts_with('.')) {
            left.push(format!("entries {catalog:?} and stores {stores:?}"));
        }
        let output = names(&self.path("output"));
        if !output.is_empty() {
            left.push(format!("output {output:?}"));
        }
        // Files without a name are open as long as a holder exists.
        for fd in fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
            if let Ok(to) = fs::read_link(fd.path())
                && to.starts_with(self.directory.path())
                && !to.ends_with("lock")
            {
                left.push(format!("open {}", to.display()));
            }
        }
        left
    }

    /// Waits until nothing is held; how long that took.
    pub(crate) fn is_quiet(&self, what: &str) -> Duration {
        let start = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return start.elapsed();
            }
            assert!(start.elapsed() < PATIENCE, "{what}: {left:#?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Names in a directory, sorted; none if there is no such directory.
pub(crate) fn names(at: &Path) -> Vec<String> {
    let entries = fs::read_dir(at).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The bytes of a file, or of all files below a directory, by their path below it.
pub(crate) fn contents(at: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = if at.is_dir() { files(at) } else { vec![at.to_path_buf()] };
    let of = |f: PathBuf| {
        let bytes = std::fs::read(&f).unwrap_or_else(|e| panic!("{}: {e}", f.display()));
        (f.strip_prefix(at).unwrap().to_path_buf(), bytes)
    };
    all.into_iter().map(of).collect()
}

/// All files below a directory.
pub(crate) fn files(at: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(t) if t.is_dir() => out.extend(files(&entry.path())),
            _ => out.push(entry.path()),
        }
    }
    out
}

/// Waits until something is so.
pub(crate) fn until(what: &str, most: Duration, is_so: impl Fn() -> bool) {
    until_or_told(what, most, is_so, String::new);
}

/// Like [`until`]; a failure also prints the text of `told`.
pub(crate) fn until_or_told(
    what: &str,
    most: Duration,
    is_so: impl Fn() -> bool,
    told: impl Fn() -> String,
) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < most, "not in time: {what} {}", told());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Operands of debug builds that wait until a test lets go of them: however fast the machine is, and however late other
/// processes have their turn, nothing that needs one of these is over before.
pub(crate) struct Hold(PathBuf);

impl Hold {
    /// Of processes that end before `directory` does.
    pub(crate) fn new(directory: &Path) -> Hold {
        Hold(directory.join("let-go"))
    }

    /// The value of `TESSERA_FAIL` for processes that wait at a fail-point.
    pub(crate) fn at(&self, point: &str) -> String {
        format!("{point}=wait:{}", self.0.display())
    }

    /// Nobody waits any more.
    pub(crate) fn let_go(&self) {
        fs::write(&self.0, b"").unwrap();
    }

    /// Processes that arrive from now on wait again.
    pub(crate) fn close(&self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// The treatment of a connection's bytes: they pass, they wait, or the connection ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    On,
    Wait,
    End,
}

/// Carries bytes one way until an end is closed, or `flow` ends it.
pub(crate) fn carry(mut from: TcpStream, mut to: TcpStream, flow: impl Fn() -> Flow) {
    from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match flow() {
            Flow::On => {}
            Flow::Wait => {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            Flow::End => break,
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) if to.write_all(&buffer[..n]).is_ok() => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            _ => break,
        }
    }
    // An end that is closed already stays so.
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
