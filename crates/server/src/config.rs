//! The configuration: defaults < file < environment < flags, each value with where it came from.
//!
//! 1. Each layer is a list of keys and texts or numbers; keys may be written with `-` or `_`.
//! 2. figment merges the layers and remembers the origin of each value.
//! 3. `RawConfig` (what was written) is checked into [`Config`] (what can be used).

mod bytes;
mod layer;
mod machine;

pub use bytes::{format_bytes, parse_bytes};
pub(crate) use machine::addresses_left;

use crate::error::Error;
use figment::Figment;
use layer::Layer;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use tessera_cluster::net::Security;
use tessera_frontend::lift::Density;
use tessera_planner::durable::Durability;

/// A value of the configuration that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Secret(text)
    }

    /// The value, for comparing.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A configuration that can be used.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where durable tensors, the catalog and the journal live: a directory or a URL.
    pub warehouse: String,
    /// Bytes that queries and tensors in memory may take together.
    pub memory_limit_bytes: u64,
    /// Bytes of the machine's memory beyond that limit, in which the system keeps files.
    pub cached_bytes: u64,
    /// Where chunks that do not fit into memory wait: a directory, in which each process makes one of its own.
    pub spill_dir: std::path::PathBuf,
    /// Bytes that they may take there; 0 keeps everything in memory.
    pub spill_limit_bytes: u64,
    /// Threads that compute, at least 1.
    pub threads: usize,
    /// What is logged: `info`, `tessera_exec=debug`, ….
    pub log: String,
    /// Where `tessera serve` listens.
    pub listen: SocketAddr,
    /// Token that HTTP clients must send.
    pub token: Option<Secret>,
    /// If there is no token, does the server make none either?
    pub no_token: bool,
    /// May others than this machine ask over plain HTTP, and without a token if that is said too?
    pub insecure: bool,
    /// Certificates of the server, and their key: PEM files. With both HTTP is HTTPS.
    pub certificate: Option<std::path::PathBuf>,
    /// See `certificate`.
    pub key: Option<std::path::PathBuf>,
    /// Roots and URL prefixes that statements may read; `None` is everything.
    pub allow_read: Option<Vec<String>>,
    /// The same for writing; what may be written may be read.
    pub allow_write: Option<Vec<String>>,
    /// Queries that the server runs at a time.
    pub max_queries: usize,
    /// Queries that may wait for one of those places.
    pub max_queued: usize,
    /// Seconds after which the server cancels a query.
    pub query_timeout_s: u64,
    /// Seconds that the server keeps a result which nobody asks for.
    pub result_ttl_s: u64,
    /// Seconds after which an idle session ends.
    pub session_timeout_s: u64,
    /// Bytes of the largest request body.
    pub max_request_bytes: usize,
    /// Do cell blocks of a new session stay dense?
    pub lift: Density,
    /// Which chunks of a new session's statements are kept for a run after a failure.
    pub durability: Durability,
    /// Bytes that these chunks may have; 0 keeps none.
    pub durable_limit_bytes: u64,
    /// Seconds after which chunks go whose statement is not known any more.
    pub durable_ttl_s: u64,
    /// Does `tessera serve` accept workers?
    pub cluster: bool,
    /// Where it accepts them.
    pub cluster_listen: SocketAddr,
    /// Where a worker joins.
    pub scheduler: String,
    /// Threads of a worker that compute, at least 1: as many as `threads` if nothing else is said.
    pub slots: usize,
    /// What all parties of a cluster share.
    pub cluster_security: Security,
    /// Seconds after which a worker that is not heard is lost.
    pub worker_timeout_s: u64,
    /// Seconds that a statement waits for workers that it had, if none is left.
    pub worker_wait_s: u64,
    /// Each key with its value as text and its origin, in the order of [`KEYS`].
    pub sources: Vec<Setting>,
    /// Variables of the environment that look like settings and are none.
    pub ignored: Vec<String>,
}

/// One line of `tessera config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as the file spells it.
    pub key: &'static str,
    /// The effective value; secrets are hidden.
    pub value: String,
    /// Where it came from.
    pub origin: String,
}

/// All keys, as files spell them.
pub const KEYS: [&str; 34] = [
    "warehouse",
    "memory-limit",
    "spill-dir",
    "spill-limit",
    "threads",
    "log",
    "listen",
    "token",
    "no-token",
    "insecure",
    "certificate",
    "key",
    "allow-read",
    "allow-write",
    "max-queries",
    "max-queued",
    "query-timeout",
    "result-ttl",
    "session-timeout",
    "max-request",
    "lift",
    "durability",
    "durable-limit",
    "durable-ttl",
    "cluster",
    "cluster-listen",
    "scheduler",
    "slots",
    "cluster-secret-file",
    "cluster-certificate",
    "cluster-key",
    "cluster-authority",
    "worker-timeout",
    "worker-wait",
];

/// Keys of later versions: known, so that the error is not "unknown".
const LATER: [&str; 1] = ["flight"];

/// What was written, before it is checked.
#[derive(Debug, Deserialize)]
struct RawConfig {
    warehouse: String,
    memory_limit: Text,
    spill_dir: String,
    spill_limit: Text,
    threads: Text,
    log: String,
    listen: String,
    token: Option<Text>,
    no_token: Truth,
    insecure: Truth,
    certificate: String,
    key: String,
    allow_read: Option<Texts>,
    allow_write: Option<Texts>,
    max_queries: Text,
    max_queued: Text,
    query_timeout: Text,
    result_ttl: Text,
    session_timeout: Text,
    max_request: Text,
    lift: String,
    durability: String,
    durable_limit: Text,
    durable_ttl: Text,
    cluster: Truth,
    cluster_listen: String,
    scheduler: String,
    slots: Text,
    cluster_secret_file: String,
    cluster_certificate: String,
    cluster_key: String,
    cluster_authority: String,
    worker_timeout: Text,
    worker_wait: Text,
}

/// `true` or `false`: TOML has them, the environment and flags write them.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Truth {
    Bool(bool),
    Text(String),
}

/// A list, or a text with commas between: TOML has lists, the environment and flags write texts.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Texts {
    List(Vec<String>),
    Text(String),
}

impl Texts {
    fn list(self) -> Vec<String> {
        match self {
            Texts::List(list) => list,
            Texts::Text(text) => {
                let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
                parts.map(String::from).collect()
            }
        }
    }
}

/// A number or a text: TOML tells them apart, the environment and flags do not.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Number(i64),
    Text(String),
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Text::Number(n) => n.fmt(f),
            Text::Text(t) => f.write_str(t),
        }
    }
}

impl Config {
    /// Joins the layers.
    ///
    /// `flags` are the common flags by key; `environment` is all of it (only `TESSERA_*` is looked at); `file` is the
    /// `--config` flag, else `TESSERA_CONFIG`.
    ///
    /// # Errors
    /// An unknown key in the file or a flag, a variable that is a key with a slip of the pen, a value that cannot be
    /// used. Other unknown variables are told in [`Config::ignored`].
    pub fn load(
        flags: &BTreeMap<&'static str, String>,
        environment: impl IntoIterator<Item = (String, String)>,
        file: Option<&Path>,
    ) -> Result<Self, Error> {
        let environment: BTreeMap<String, String> = environment
            .into_iter()
            .filter_map(|(k, v)| Some((k.strip_prefix("TESSERA_")?.to_string(), v)))
            .collect();
        let from_environment = environment.get("CONFIG").map(Path::new);
        let defaults = Layer::defaults()?;
        let file = match file.or(from_environment) {
            Some(path) => Layer::file(path)?,
            None => Layer::empty(),
        };
        let (environment, ignored) = Layer::environment(&environment)?;
        let figment = Figment::new()
            .merge(defaults)
            .merge(file)
            .merge(environment)
            .merge(Layer::flags(flags)?);
        let raw: RawConfig = figment.extract().map_err(|e| extraction(&figment, e))?;
        check(raw, &Origins(&figment), ignored)
    }
}

/// Tells where values came from.
struct Origins<'a>(&'a Figment);

impl Origins<'_> {
    fn of(&self, key: &str) -> String {
        let name = key.replace('-', "_");
        self.0.find_metadata(&name).map_or_else(|| "default".into(), |m| layer::origin(m, key))
    }

    fn error(&self, key: &str, reason: impl Into<String>, hint: Option<&str>) -> Error {
        Error::Config {
            key: key.into(),
            origin: self.of(key),
            reason: reason.into(),
            hint: hint.map(Into::into),
        }
    }

    fn whole(&self, key: &str, text: &Text, least: u64) -> Result<u64, Error> {
        match text.to_string().trim().parse::<u64>() {
            Ok(n) if n >= least => Ok(n),
            _ => Err(self.error(
                key,
                format!("`{text}` is not a whole number from {least} on"),
                None,
            )),
        }
    }

    fn bytes(&self, key: &str, text: &Text) -> Result<u64, Error> {
        parse_bytes(&text.to_string()).map_err(|reason| {
            self.error(key, reason, Some("write `2GiB`, `500MB` or a number of bytes"))
        })
    }
}

/// Less than this cannot hold a chunk of each operand of a small query.
pub(crate) const MEMORY_LEAST: u64 = 16 << 20;

fn check(raw: RawConfig, at: &Origins<'_>, ignored: Vec<String>) -> Result<Config, Error> {
    let memory_limit_bytes = at.bytes("memory-limit", &raw.memory_limit)?;
    if memory_limit_bytes < MEMORY_LEAST {
        return Err(at.error("memory-limit", "less than 16MiB is not enough to work with", None));
    }
    let (spill_dir, spill_limit_bytes) = spill(&raw, at)?;
    let durable_limit_bytes = durable_limit(&raw, at)?;
    let max_request = at.bytes("max-request", &raw.max_request)?;
    let listen: SocketAddr = raw.listen.trim().parse().map_err(|_| {
        at.error(
            "listen",
            format!("`{}` is not an address and a port", raw.listen),
            Some("write `127.0.0.1:8080`"),
        )
    })?;
    if raw.warehouse.trim().is_empty() {
        return Err(at.error("warehouse", "it is empty", Some("write a directory or a URL")));
    }
    check_log(&raw.log).map_err(|reason| {
        let hint = "write `error`, `warn`, `info`, `debug` or `trace`, or `tessera_exec=debug`";
        at.error("log", reason, Some(hint))
    })?;
    let token = match raw.token.map(|t| t.to_string()) {
        Some(t) if t.trim().is_empty() => return Err(at.error("token", "it is empty", None)),
        t => t.map(Secret),
    };
    let small = |key: &str, text: &Text| -> Result<usize, Error> {
        let n = at.whole(key, text, 1)?;
        match usize::try_from(n) {
            Ok(n) if n <= 65_536 => Ok(n),
            _ => Err(at.error(key, format!("{n} is too many"), Some("the most is 65536"))),
        }
    };
    let truth = |key: &str, value: &Truth| match value {
        Truth::Bool(is) => Ok(*is),
        Truth::Text(text) => text.trim().parse().map_err(|_| {
            let reason = format!("`{text}` is neither `true` nor `false`");
            at.error(key, reason, None)
        }),
    };
    let cluster = truth("cluster", &raw.cluster)?;
    let no_token = truth("no-token", &raw.no_token)?;
    let cluster_listen: SocketAddr = raw.cluster_listen.trim().parse().map_err(|_| {
        let reason = format!("`{}` is not an address and a port", raw.cluster_listen);
        at.error("cluster-listen", reason, Some("write `127.0.0.1:50050`"))
    })?;
    if raw.scheduler.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        let reason = format!("`{}` is not a host and a port", raw.scheduler);
        return Err(at.error("scheduler", reason, Some("write `127.0.0.1:50050`")));
    }
    if raw.cluster_secret_file.trim().is_empty() {
        return Err(at.error("cluster-secret-file", "it is empty", Some("write a file")));
    }
    let file = |text: &str| (!text.trim().is_empty()).then(|| text.trim().into());
    let cluster_security = Security {
        secret: raw.cluster_secret_file.trim().into(),
        certificate: file(&raw.cluster_certificate),
        key: file(&raw.cluster_key),
        authority: file(&raw.cluster_authority),
    };
    let (certificate, key) = (file(&raw.certificate), file(&raw.key));
    if certificate.is_some() != key.is_some() {
        let which = if certificate.is_some() { "key" } else { "certificate" };
        let hint = Some("HTTPS wants both: `certificate` and `key`, PEM files");
        return Err(at.error(which, "it is not set, but the other one is", hint));
    }
    let threads = small("threads", &raw.threads)?;
    let slots = match raw.slots.to_string().trim() {
        "" => threads,
        _ => small("slots", &raw.slots)?,
    };
    let mut config = Config {
        cluster,
        cluster_listen,
        scheduler: raw.scheduler.trim().into(),
        slots,
        cluster_security,
        worker_timeout_s: at.whole("worker-timeout", &raw.worker_timeout, 1)?,
        worker_wait_s: at.whole("worker-wait", &raw.worker_wait, 0)?,
        memory_limit_bytes,
        cached_bytes: machine::memory_bytes().map_or(0, |n| n.saturating_sub(memory_limit_bytes)),
        spill_dir,
        spill_limit_bytes,
        threads,
        max_queries: small("max-queries", &raw.max_queries)?,
        max_queued: match at.whole("max-queued", &raw.max_queued, 0)? {
            n @ 0..=65_536 => n as usize,
            n => {
                let reason = format!("{n} is too many");
                return Err(at.error("max-queued", reason, Some("the most is 65536")));
            }
        },
        query_timeout_s: at.whole("query-timeout", &raw.query_timeout, 1)?,
        result_ttl_s: at.whole("result-ttl", &raw.result_ttl, 1)?,
        session_timeout_s: at.whole("session-timeout", &raw.session_timeout, 1)?,
        max_request_bytes: usize::try_from(max_request)
            .map_err(|_| at.error("max-request", "it is larger than the address space", None))?,
        lift: raw.lift.parse().map_err(|e: String| at.error("lift", e, None))?,
        durability: raw.durability.parse().map_err(|e: String| at.error("durability", e, None))?,
        durable_limit_bytes,
        durable_ttl_s: at.whole("durable-ttl", &raw.durable_ttl, 1)?,
        warehouse: raw.warehouse,
        log: raw.log,
        listen,
        token,
        no_token,
        insecure: truth("insecure", &raw.insecure)?,
        certificate,
        key,
        allow_read: raw.allow_read.map(Texts::list),
        allow_write: raw.allow_write.map(Texts::list),
        sources: Vec::new(),
        ignored,
    };
    config.sources = KEYS
        .iter()
        .map(|&key| Setting { key, value: config.value(key), origin: at.of(key) })
        .collect();
    Ok(config)
}

/// Levels, also of a part of the program. A lone word that is no level would be a part of that name, all of it: that is
/// a slip of the pen more often than a wish.
fn check_log(text: &str) -> Result<(), String> {
    tracing_subscriber::EnvFilter::try_new(text).map_err(|e| e.to_string())?;
    let is_lone = |part: &&str| !part.is_empty() && !part.contains(['=', '[']);
    let lone = text.split(',').map(str::trim).filter(is_lone);
    match lone.into_iter().find(|p| p.parse::<tracing_subscriber::filter::LevelFilter>().is_err()) {
        Some(word) => Err(format!("`{word}` is no level")),
        None => Ok(()),
    }
}

/// Where and how much may be spilled. A limit in per cent is a part of what is free there now.
fn spill(raw: &RawConfig, at: &Origins<'_>) -> Result<(std::path::PathBuf, u64), Error> {
    let dir = raw.spill_dir.trim();
    if dir.is_empty() {
        return Err(at.error("spill-dir", "it is empty", Some("write a directory")));
    }
    let dir = std::path::PathBuf::from(dir);
    let text = raw.spill_limit.to_string();
    let Some(percent) = text.trim().strip_suffix('%') else {
        return Ok((dir, at.bytes("spill-limit", &raw.spill_limit)?));
    };
    let part = percent.trim().parse::<u64>().ok().filter(|p| *p <= 100).ok_or_else(|| {
        let hint = "write `80%`, `100GiB`, or 0 to keep everything in memory";
        at.error("spill-limit", format!("`{text}` is not a part of what is free"), Some(hint))
    })?;
    match machine::free_bytes(&dir) {
        Ok(free) => Ok((dir, free / 100 * part)),
        // A directory that somebody named must be there; the system's own may be missing where nothing spills.
        Err(_) if at.of("spill-dir") == "default" => Ok((dir, 0)),
        Err(e) => Err(at.error(
            "spill-dir",
            format!("`{}` cannot be used: {e}", dir.display()),
            Some("give a directory that is there"),
        )),
    }
}

/// How much may be kept for runs after a failure. A limit in per cent is a part of what is free beside the warehouse; a
/// bucket does not tell.
fn durable_limit(raw: &RawConfig, at: &Origins<'_>) -> Result<u64, Error> {
    const OF_A_BUCKET: u64 = 1 << 40;
    let text = raw.durable_limit.to_string();
    let Some(percent) = text.trim().strip_suffix('%') else {
        return at.bytes("durable-limit", &raw.durable_limit);
    };
    let part = percent.trim().parse::<u64>().ok().filter(|p| *p <= 100).ok_or_else(|| {
        let hint = "write `50%`, `100GiB`, or 0 to keep nothing";
        at.error("durable-limit", format!("`{text}` is not a part of what is free"), Some(hint))
    })?;
    let warehouse = raw.warehouse.trim();
    let directory = match warehouse.strip_prefix("file://") {
        None if warehouse.contains("://") => {
            return match at.of("durable-limit") == "default" {
                true => Ok(OF_A_BUCKET),
                false => Err(at.error(
                    "durable-limit",
                    "a bucket does not tell what is free",
                    Some("write a number of bytes: `100GiB`"),
                )),
            };
        }
        path => Path::new(path.unwrap_or(warehouse)),
    };
    // It is made when it is needed: its file system is that of what is there of its path.
    let there = directory.ancestors().map(|p| match p.as_os_str().is_empty() {
        true => Path::new("."),
        false => p,
    });
    let free = there.into_iter().find_map(|p| machine::free_bytes(p).ok()).unwrap_or(0);
    Ok(free / 100 * part)
}

impl Config {
    /// The same for a server, whose statements come from others: they touch what is said, and the warehouse.
    pub fn serving(mut self) -> Self {
        self.allow_read.get_or_insert_default();
        self.allow_write.get_or_insert_default();
        self
    }

    /// The effective value of a key as text; a secret is hidden.
    fn value(&self, key: &str) -> String {
        match key {
            "warehouse" => self.warehouse.clone(),
            "memory-limit" => format_bytes(self.memory_limit_bytes),
            "spill-dir" => self.spill_dir.display().to_string(),
            "spill-limit" => format_bytes(self.spill_limit_bytes),
            "threads" => self.threads.to_string(),
            "log" => self.log.clone(),
            "listen" => self.listen.to_string(),
            "token" => if self.token.is_some() { "(hidden)" } else { "(none)" }.into(),
            "no-token" => self.no_token.to_string(),
            "insecure" => self.insecure.to_string(),
            "certificate" => shown(&self.certificate),
            "key" => shown(&self.key),
            "allow-read" => listed(&self.allow_read),
            "allow-write" => listed(&self.allow_write),
            "max-queries" => self.max_queries.to_string(),
            "max-queued" => self.max_queued.to_string(),
            "query-timeout" => self.query_timeout_s.to_string(),
            "result-ttl" => self.result_ttl_s.to_string(),
            "session-timeout" => self.session_timeout_s.to_string(),
            "max-request" => format_bytes(self.max_request_bytes as u64),
            "lift" => self.lift.to_string(),
            "durability" => self.durability.to_string(),
            "durable-limit" => format_bytes(self.durable_limit_bytes),
            "durable-ttl" => self.durable_ttl_s.to_string(),
            "cluster" => self.cluster.to_string(),
            "cluster-listen" => self.cluster_listen.to_string(),
            "scheduler" => self.scheduler.clone(),
            "slots" => self.slots.to_string(),
            "cluster-secret-file" => self.cluster_security.secret.display().to_string(),
            "cluster-certificate" => shown(&self.cluster_security.certificate),
            "cluster-key" => shown(&self.cluster_security.key),
            "cluster-authority" => shown(&self.cluster_security.authority),
            "worker-timeout" => self.worker_timeout_s.to_string(),
            "worker-wait" => self.worker_wait_s.to_string(),
            _ => String::new(),
        }
    }

    /// The text that `tessera config` prints: a TOML file of this configuration, the origin of each value behind it. A
    /// token is not shown, so it stands there as a comment.
    pub fn describe(&self) -> String {
        let lines = |key: &str, list: &Option<Vec<String>>, shown: &str| match list {
            Some(list) => {
                let list: Vec<String> = list.iter().map(|t| toml_text(t)).collect();
                format!("{key} = [{}]", list.join(", "))
            }
            None => format!("# {key} {shown}"),
        };
        let line = |s: &Setting| match s.key {
            "token" => format!("# token {}", s.value),
            "allow-read" => lines("allow-read", &self.allow_read, &s.value),
            "allow-write" => lines("allow-write", &self.allow_write, &s.value),
            key => format!("{key} = {}", toml_text(&s.value)),
        };
        let left: Vec<String> = self.sources.iter().map(line).collect();
        let width = left.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (l, s) in left.iter().zip(&self.sources) {
            out.push_str(&format!("{l:width$}  # {}\n", one_line(&s.origin)));
        }
        for name in &self.ignored {
            let name = one_line(name);
            out.push_str(&format!("# ignored: environment variable {name} is no setting\n"));
        }
        out
    }
}

fn listed(list: &Option<Vec<String>>) -> String {
    match list {
        None => "(everything; of a server, the warehouse)".into(),
        Some(list) => list.join(","),
    }
}

fn shown(file: &Option<std::path::PathBuf>) -> String {
    file.as_ref().map(|f| f.display().to_string()).unwrap_or_default()
}

/// A text as TOML writes it.
fn toml_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

/// A text that does not end its comment: TOML has no control characters in them.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// figment's error as ours: it knows the key and the layer.
fn extraction(figment: &Figment, e: figment::Error) -> Error {
    let key = e.path.first().map(|k| k.replace('_', "-")).unwrap_or_default();
    let origin = Origins(figment).of(&key);
    Error::Config { key, origin, reason: e.kind.to_string(), hint: None }
}

#[cfg(test)]
mod tests;
