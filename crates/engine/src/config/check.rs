//! What was written as settings, and its checks.

use super::{Config, KEYS, Secret, Setting, layer, machine, parse_bytes};
use crate::error::Error;
use figment::Figment;
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tessera_cluster::net::Security;

/// What was written, before it is checked.
#[derive(Debug, Deserialize)]
pub(super) struct RawConfig {
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

/// Tells where values came from.
pub(super) struct Origins<'a>(pub(super) &'a Figment);

impl Origins<'_> {
    pub(super) fn of(&self, key: &str) -> String {
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

    /// A number of threads or queries: 1 to 65536.
    fn small(&self, key: &str, text: &Text) -> Result<usize, Error> {
        let n = self.whole(key, text, 1)?;
        match usize::try_from(n) {
            Ok(n) if n <= 65_536 => Ok(n),
            _ => Err(self.error(key, format!("{n} is too many"), Some("the most is 65536"))),
        }
    }

    fn truth(&self, key: &str, value: &Truth) -> Result<bool, Error> {
        match value {
            Truth::Bool(is) => Ok(*is),
            Truth::Text(text) => text.trim().parse().map_err(|_| {
                let reason = format!("`{text}` is neither `true` nor `false`");
                self.error(key, reason, None)
            }),
        }
    }

    fn address(&self, key: &str, text: &str, hint: &str) -> Result<SocketAddr, Error> {
        text.trim().parse().map_err(|_| {
            let reason = format!("`{text}` is not an address and a port");
            self.error(key, reason, Some(hint))
        })
    }
}

/// Bytes of memory: fewer cannot hold a chunk of each operand of a small query.
pub const MEMORY_LEAST: u64 = 16 << 20;

pub(super) fn check(
    raw: RawConfig,
    at: &Origins<'_>,
    ignored: Vec<String>,
) -> Result<Config, Error> {
    let memory_limit_bytes = at.bytes("memory-limit", &raw.memory_limit)?;
    if memory_limit_bytes < MEMORY_LEAST {
        return Err(at.error("memory-limit", "less than 16MiB is not enough to work with", None));
    }
    let (spill_dir, spill_limit_bytes) = spill(&raw, at)?;
    let durable_limit_bytes = durable_limit(&raw, at)?;
    let max_request = at.bytes("max-request", &raw.max_request)?;
    let listen = at.address("listen", &raw.listen, "write `127.0.0.1:8080`")?;
    if raw.warehouse.trim().is_empty() {
        return Err(at.error("warehouse", "it is empty", Some("write a directory or a URL")));
    }
    check_log(&raw.log).map_err(|reason| {
        let hint = "write `error`, `warn`, `info`, `debug` or `trace`, or `tessera_exec=debug`";
        at.error("log", reason, Some(hint))
    })?;
    let token = match raw.token.as_ref().map(Text::to_string) {
        Some(t) if t.trim().is_empty() => return Err(at.error("token", "it is empty", None)),
        t => t.map(Secret),
    };
    let cluster = at.truth("cluster", &raw.cluster)?;
    let no_token = at.truth("no-token", &raw.no_token)?;
    let cluster_listen =
        at.address("cluster-listen", &raw.cluster_listen, "write `127.0.0.1:50050`")?;
    if raw.scheduler.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        let reason = format!("`{}` is not a host and a port", raw.scheduler);
        return Err(at.error("scheduler", reason, Some("write `127.0.0.1:50050`")));
    }
    let cluster_security = cluster_security(&raw, at)?;
    let (certificate, key) = https(&raw, at)?;
    let threads = at.small("threads", &raw.threads)?;
    let slots = match raw.slots.to_string().trim() {
        "" => threads,
        _ => at.small("slots", &raw.slots)?,
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
        max_queries: at.small("max-queries", &raw.max_queries)?,
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
        insecure: at.truth("insecure", &raw.insecure)?,
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

/// The file that a text names; an empty text names none.
fn file(text: &str) -> Option<PathBuf> {
    (!text.trim().is_empty()).then(|| text.trim().into())
}

/// What all parties of a cluster share.
fn cluster_security(raw: &RawConfig, at: &Origins<'_>) -> Result<Security, Error> {
    if raw.cluster_secret_file.trim().is_empty() {
        return Err(at.error("cluster-secret-file", "it is empty", Some("write a file")));
    }
    Ok(Security {
        secret: raw.cluster_secret_file.trim().into(),
        certificate: file(&raw.cluster_certificate),
        key: file(&raw.cluster_key),
        authority: file(&raw.cluster_authority),
    })
}

/// The certificates of the server and their key: both or none.
fn https(raw: &RawConfig, at: &Origins<'_>) -> Result<(Option<PathBuf>, Option<PathBuf>), Error> {
    let (certificate, key) = (file(&raw.certificate), file(&raw.key));
    if certificate.is_some() != key.is_some() {
        let which = if certificate.is_some() { "key" } else { "certificate" };
        let hint = Some("HTTPS wants both: `certificate` and `key`, PEM files");
        return Err(at.error(which, "it is not set, but the other one is", hint));
    }
    Ok((certificate, key))
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
fn spill(raw: &RawConfig, at: &Origins<'_>) -> Result<(PathBuf, u64), Error> {
    let dir = raw.spill_dir.trim();
    if dir.is_empty() {
        return Err(at.error("spill-dir", "it is empty", Some("write a directory")));
    }
    let dir = PathBuf::from(dir);
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
