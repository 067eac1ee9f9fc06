//! Reads and checks the values of settings.

use super::keys::{ConfigKey, KEYS};
use super::{Config, Secret, Setting, layer, machine, parse_bytes};
use crate::error::Error;
use figment::Figment;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tessera_cluster::net::Security;

/// `true` or `false`: a boolean in TOML, a text in the environment and flags.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Truth {
    Bool(bool),
    Text(String),
}

/// A list in TOML, a text separated by commas in the environment and flags.
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

/// A number or a text: only TOML distinguishes them.
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

/// The merged layers.
pub(super) struct Written(pub(super) Figment);

impl Written {
    /// The value of a key; `None` if no layer sets it.
    fn maybe<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        let name = key.replace('-', "_");
        if !self.0.contains(&name) {
            return Ok(None);
        }
        match self.0.extract_inner(&name) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(self.error(key, e.kind.to_string(), None)),
        }
    }

    fn string(&self, key: &str) -> Result<String, Error> {
        Ok(self.maybe(key)?.unwrap_or_default())
    }

    fn text(&self, key: &str) -> Result<String, Error> {
        Ok(self.maybe::<Text>(key)?.map(|text| text.to_string()).unwrap_or_default())
    }

    fn list(&self, key: &str) -> Result<Option<Vec<String>>, Error> {
        Ok(self.maybe(key)?.map(Texts::list))
    }

    /// A path; `None` if the text is empty.
    fn file(&self, key: &str) -> Result<Option<PathBuf>, Error> {
        let text = self.string(key)?;
        Ok((!text.trim().is_empty()).then(|| text.trim().into()))
    }

    /// A value that parses itself from text.
    fn parsed<T: FromStr<Err = String>>(&self, key: &str) -> Result<T, Error> {
        self.string(key)?.parse().map_err(|e: String| self.error(key, e, None))
    }

    /// The origin of a value.
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

    fn whole(&self, key: &str, least: u64) -> Result<u64, Error> {
        let text = self.text(key)?;
        match text.trim().parse::<u64>() {
            Ok(n) if n >= least => Ok(n),
            _ => Err(self.error(
                key,
                format!("`{text}` is not a whole number from {least} on"),
                None,
            )),
        }
    }

    fn bytes(&self, key: &str) -> Result<u64, Error> {
        parse_bytes(&self.text(key)?).map_err(|reason| {
            self.error(key, reason, Some("write `2GiB`, `500MB` or a number of bytes"))
        })
    }

    /// The number before `%`, 0 to 100; `None` for other texts.
    fn percent(&self, key: &str, hint: &str) -> Result<Option<u64>, Error> {
        let text = self.text(key)?;
        let Some(percent) = text.trim().strip_suffix('%') else { return Ok(None) };
        match percent.trim().parse() {
            Ok(part @ 0..=100) => Ok(Some(part)),
            _ => {
                let reason = format!("`{text}` is not a percentage from 0% to 100%");
                Err(self.error(key, reason, Some(hint)))
            }
        }
    }

    /// A number of threads or queries: at most 65536.
    fn small(&self, key: &str, least: u64) -> Result<usize, Error> {
        match self.whole(key, least)? {
            n @ 0..=65_536 => Ok(n as usize),
            n => Err(self.error(key, format!("{n} is too many"), Some("the most is 65536"))),
        }
    }

    fn truth(&self, key: &str) -> Result<bool, Error> {
        match self.maybe(key)?.unwrap_or(Truth::Bool(false)) {
            Truth::Bool(is) => Ok(is),
            Truth::Text(text) => text.trim().parse().map_err(|_| {
                let reason = format!("`{text}` is neither `true` nor `false`");
                self.error(key, reason, None)
            }),
        }
    }

    fn address(&self, key: &str, hint: &str) -> Result<SocketAddr, Error> {
        let text = self.string(key)?;
        text.trim().parse().map_err(|_| {
            let reason = format!("`{text}` is not an address and a port");
            self.error(key, reason, Some(hint))
        })
    }
}

/// Lower bound on the memory limit in bytes: less cannot hold a chunk of each operand of a small query.
pub const MEMORY_LEAST: u64 = 16 << 20;

pub(super) fn check(at: &Written, ignored: Vec<String>) -> Result<Config, Error> {
    let memory_limit_bytes = memory_limit(at)?;
    if memory_limit_bytes < MEMORY_LEAST {
        return Err(at.error("memory-limit", "the minimum is 16MiB", None));
    }
    let (spill_dir, spill_limit_bytes) = spill(at)?;
    let max_request = at.bytes("max-request")?;
    let warehouse = at.string("warehouse")?;
    let durable_limit_bytes = durable_limit(&warehouse, at)?;
    if warehouse.trim().is_empty() {
        return Err(at.error("warehouse", "it is empty", Some("write a directory or a URL")));
    }
    let token = match at.maybe::<Text>("token")?.map(|text| text.to_string()) {
        Some(t) if t.trim().is_empty() => return Err(at.error("token", "it is empty", None)),
        t => t.map(Secret),
    };
    let (certificate, key) = https(at)?;
    let threads = at.small("threads", 1)?;
    let mut config = Config {
        standby: at.truth("standby")?,
        lease_timeout_s: at.whole("lease-timeout", 1)?,
        public_url: public_url(at)?,
        cluster: at.truth("cluster")?,
        cluster_listen: at.address("cluster-listen", "write `127.0.0.1:50050`")?,
        schedulers: schedulers(at)?,
        slots: match at.text("slots")?.trim() {
            "" => threads,
            _ => at.small("slots", 1)?,
        },
        cluster_security: cluster_security(at)?,
        retained_limit_bytes: retained_limit(memory_limit_bytes, at)?,
        compression: at.parsed("chunk-compression")?,
        worker_timeout_s: at.whole("worker-timeout", 1)?,
        worker_wait_s: at.whole("worker-wait", 0)?,
        memory_limit_bytes,
        cached_bytes: machine::memory_bytes().map_or(0, |n| n.saturating_sub(memory_limit_bytes)),
        spill_dir,
        spill_limit_bytes,
        threads,
        max_queries: at.small("max-queries", 1)?,
        max_queued: at.small("max-queued", 0)?,
        query_timeout_s: at.whole("query-timeout", 1)?,
        result_ttl_s: at.whole("result-ttl", 1)?,
        session_timeout_s: at.whole("session-timeout", 1)?,
        max_request_bytes: usize::try_from(max_request)
            .map_err(|_| at.error("max-request", "it is larger than the address space", None))?,
        lift: at.parsed("lift")?,
        durability: at.parsed("durability")?,
        durable_limit_bytes,
        durable_ttl_s: at.whole("durable-ttl", 1)?,
        warehouse,
        log: log(at)?,
        listen: at.address("listen", "write `127.0.0.1:8080`")?,
        token,
        no_token: at.truth("no-token")?,
        insecure: at.truth("insecure")?,
        certificate,
        key,
        allow_read: at.list("allow-read")?,
        allow_write: at.list("allow-write")?,
        sources: Vec::new(),
        ignored,
    };
    let setting = |key: &ConfigKey| Setting {
        key: key.name,
        value: (key.value)(&config),
        origin: at.of(key.name),
    };
    config.sources = KEYS.iter().map(setting).collect();
    Ok(config)
}

/// The addresses of which a worker joins one: hosts and ports.
fn schedulers(at: &Written) -> Result<Vec<String>, Error> {
    let list = at.list("scheduler")?.unwrap_or_default();
    let hint = Some("write `127.0.0.1:50050`, or several of them separated by commas");
    let is_bad =
        |text: &&String| text.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err());
    match list.iter().find(is_bad) {
        Some(text) => {
            let reason = format!("`{text}` is not a host and a port");
            Err(at.error("scheduler", reason, hint))
        }
        None if list.is_empty() => Err(at.error("scheduler", "it is empty", hint)),
        None => Ok(list),
    }
}

/// The URL of this server that other servers return to their clients.
fn public_url(at: &Written) -> Result<Option<String>, Error> {
    let text = at.string("public-url")?;
    let text = text.trim().trim_end_matches('/');
    let is_url = |url: &url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    match url::Url::parse(text) {
        _ if text.is_empty() => Ok(None),
        Ok(url) if is_url(&url) => Ok(Some(text.into())),
        _ => {
            let reason = format!("`{text}` is not a URL of a server");
            Err(at.error("public-url", reason, Some("write `https://tessera.example:8080`")))
        }
    }
}

fn cluster_security(at: &Written) -> Result<Security, Error> {
    let Some(secret) = at.file("cluster-secret-file")? else {
        return Err(at.error("cluster-secret-file", "it is empty", Some("write a file")));
    };
    Ok(Security {
        secret,
        certificate: at.file("cluster-certificate")?,
        key: at.file("cluster-key")?,
        authority: at.file("cluster-authority")?,
    })
}

/// The certificates of the server and their key: both or none.
fn https(at: &Written) -> Result<(Option<PathBuf>, Option<PathBuf>), Error> {
    let (certificate, key) = (at.file("certificate")?, at.file("key")?);
    if certificate.is_some() != key.is_some() {
        let which = if certificate.is_some() { "key" } else { "certificate" };
        let hint = Some("HTTPS needs both `certificate` and `key` (PEM files)");
        return Err(at.error(which, "it is not set, but the other one is", hint));
    }
    Ok((certificate, key))
}

fn log(at: &Written) -> Result<String, Error> {
    let text = at.string("log")?;
    match check_log(&text) {
        Ok(()) => Ok(text),
        Err(reason) => {
            let hint = "write `error`, `warn`, `info`, `debug` or `trace`, or `tessera_exec=debug`";
            Err(at.error("log", reason, Some(hint)))
        }
    }
}

/// Checks levels, optionally for a part of the program. A single word that is not a level would be taken as such a part
/// with all of its levels; it is more often a typo.
fn check_log(text: &str) -> Result<(), String> {
    tracing_subscriber::EnvFilter::try_new(text).map_err(|e| e.to_string())?;
    let is_lone = |part: &&str| !part.is_empty() && !part.contains(['=', '[']);
    let lone = text.split(',').map(str::trim).filter(is_lone);
    match lone.into_iter().find(|p| p.parse::<tracing_subscriber::filter::LevelFilter>().is_err()) {
        Some(word) => Err(format!("`{word}` is not a level")),
        None => Ok(()),
    }
}

/// The memory limit. A percentage refers to the memory that this process may use.
fn memory_limit(at: &Written) -> Result<u64, Error> {
    let key = "memory-limit";
    let hint = "write `2GiB`, `50%` or a number of bytes";
    let Some(part) = at.percent(key, hint)? else { return at.bytes(key) };
    match machine::memory_bytes() {
        Some(bytes) => Ok(bytes / 100 * part),
        None => {
            let reason = "the system does not report its memory";
            Err(at.error(key, reason, Some("write a number of bytes")))
        }
    }
}

/// The directory and the limit of spilled data. A percentage refers to the space that is free there now.
fn spill(at: &Written) -> Result<(PathBuf, u64), Error> {
    let Some(dir) = at.file("spill-dir")? else {
        return Err(at.error("spill-dir", "it is empty", Some("write a directory")));
    };
    let hint = "write `80%`, `100GiB`, or 0 to keep everything in memory";
    let Some(part) = at.percent("spill-limit", hint)? else {
        return Ok((dir, at.bytes("spill-limit")?));
    };
    match machine::free_bytes(&dir) {
        Ok(free) => Ok((dir, free / 100 * part)),
        // A directory that is configured must exist; the system's own may be missing where nothing spills.
        Err(_) if at.of("spill-dir") == "default" => Ok((dir, 0)),
        Err(e) => Err(at.error(
            "spill-dir",
            format!("`{}` cannot be used: {e}", dir.display()),
            Some("give an existing directory"),
        )),
    }
}

/// The limit of chunks that a worker retains. A percentage refers to its memory limit.
fn retained_limit(memory_limit_bytes: u64, at: &Written) -> Result<u64, Error> {
    let hint = "write `12%`, `1GiB`, or 0 to retain nothing";
    match at.percent("retained-limit", hint)? {
        Some(part) => Ok(memory_limit_bytes / 100 * part),
        None => at.bytes("retained-limit"),
    }
}

/// The limit of durable chunks. A percentage refers to the free space of the warehouse's file system. A bucket does not
/// report its free space.
fn durable_limit(warehouse: &str, at: &Written) -> Result<u64, Error> {
    const OF_A_BUCKET: u64 = 1 << 40;
    let hint = "write `50%`, `100GiB`, or 0 to keep nothing";
    let Some(part) = at.percent("durable-limit", hint)? else {
        return at.bytes("durable-limit");
    };
    let warehouse = warehouse.trim();
    let directory = match warehouse.strip_prefix("file://") {
        None if warehouse.contains("://") => {
            return match at.of("durable-limit") == "default" {
                true => Ok(OF_A_BUCKET),
                false => Err(at.error(
                    "durable-limit",
                    "a bucket does not report its free space",
                    Some("write a number of bytes: `100GiB`"),
                )),
            };
        }
        path => Path::new(path.unwrap_or(warehouse)),
    };
    // The directory is created when it is needed: its file system is that of the existing part of its path.
    let there = directory.ancestors().map(|p| match p.as_os_str().is_empty() {
        true => Path::new("."),
        false => p,
    });
    let free = there.into_iter().find_map(|p| machine::free_bytes(p).ok()).unwrap_or(0);
    Ok(free / 100 * part)
}
