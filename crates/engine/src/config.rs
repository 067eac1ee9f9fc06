//! The configuration: defaults < file < environment < flags, each value with its origin.
//!
//! 1. Each layer is a list of keys with texts or numbers; keys may be written with `-` or `_`.
//! 2. figment merges the layers and remembers the origin of each value.
//! 3. `check` reads the values by key and builds a valid [`Config`].
//!
//! A key appears in three places: `keys::KEYS` has its default, [`Config`] its field, `check` its range.

mod bytes;
mod check;
mod describe;
mod keys;
mod layer;
mod machine;

pub use bytes::{format_bytes, parse_bytes};
pub use check::MEMORY_LEAST;
pub use keys::names;
pub use machine::addresses_left;

use crate::error::Error;
use check::{Written, check};
use figment::Figment;
use layer::Layer;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use tessera_cells::lift::Density;
use tessera_cluster::net::Security;
use tessera_exec::chunk::ipc::Compression;
use tessera_planner::durable::Durability;

/// A value of the configuration that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(text: String) -> Self {
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

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Location of durable tensors, the catalog and the journal: a directory or a URL.
    pub warehouse: String,
    /// Memory limit of queries and tensors in memory together, in bytes.
    pub memory_limit_bytes: u64,
    /// Bytes of the machine's memory beyond that limit, for the page cache.
    pub cached_bytes: u64,
    /// Directory for spilled chunks, in which each process creates its own.
    pub spill_dir: std::path::PathBuf,
    /// Disk space for spilled chunks in bytes; with 0 all chunks stay in memory.
    pub spill_limit_bytes: u64,
    /// Threads that compute, at least 1.
    pub threads: usize,
    /// The log filter: `info`, `tessera_exec=debug`, ….
    pub log: String,
    /// Address of `tessera serve`.
    pub listen: SocketAddr,
    /// Token that HTTP clients must send.
    pub token: Option<Secret>,
    /// Does the server run without a token if none is configured, instead of creating one?
    pub no_token: bool,
    /// Allows plain HTTP from other machines, also without a token if `no_token` is set.
    pub insecure: bool,
    /// Certificates of the server, a PEM file. With certificate and key the server uses HTTPS.
    pub certificate: Option<std::path::PathBuf>,
    /// Key of the certificate, a PEM file.
    pub key: Option<std::path::PathBuf>,
    /// Roots and URL prefixes that statements may read; `None` allows everything.
    pub allow_read: Option<Vec<String>>,
    /// Roots and URL prefixes that statements may write and read; `None` allows everything.
    pub allow_write: Option<Vec<String>>,
    /// Upper bound on concurrently running queries.
    pub max_queries: usize,
    /// Upper bound on queued queries.
    pub max_queued: usize,
    /// Seconds after which the server cancels a query.
    pub query_timeout_s: u64,
    /// Seconds that the server retains a result without a request for it.
    pub result_ttl_s: u64,
    /// Seconds after which an idle session ends.
    pub session_timeout_s: u64,
    /// Upper bound on the size of a request body in bytes.
    pub max_request_bytes: usize,
    /// Do cell blocks of a new session stay dense?
    pub lift: Density,
    /// Selects the chunks of a new session's statements that are stored for a run after a failure.
    pub durability: Durability,
    /// Disk space for these chunks in bytes; 0 stores none.
    pub durable_limit_bytes: u64,
    /// Seconds after which chunks of unknown statements are removed.
    pub durable_ttl_s: u64,
    /// Does `tessera serve` wait for the end of a live server of its warehouse, instead of fencing it?
    pub standby: bool,
    /// Seconds without a sign of life after which a standby takes over from this server.
    pub lease_timeout_s: u64,
    /// URL at which clients reach `tessera serve`; `None` uses the address of `listen`.
    pub public_url: Option<String>,
    /// Does `tessera serve` accept workers?
    pub cluster: bool,
    /// Address on which the server accepts workers.
    pub cluster_listen: SocketAddr,
    /// Addresses of the servers of which a worker joins the live one, at least one.
    pub schedulers: Vec<String>,
    /// Threads of a worker that compute, at least 1; `threads` by default.
    pub slots: usize,
    /// The secret and certificates of a cluster.
    pub cluster_security: Security,
    /// Memory of a worker for chunks of finished statements in bytes; 0 retains none.
    pub retained_limit_bytes: u64,
    /// How chunks are compressed that a party of a cluster sends, or that a statement stores.
    pub compression: Compression,
    /// Seconds without a heartbeat after which a worker is lost.
    pub worker_timeout_s: u64,
    /// Seconds that a statement waits for workers after it lost the last one.
    pub worker_wait_s: u64,
    /// Each key with its value as text and its origin, in the order of `keys::KEYS`.
    pub sources: Vec<Setting>,
    /// Environment variables that look like settings but are unknown.
    pub ignored: Vec<String>,
}

/// One line of `tessera config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key, as the file spells it.
    pub key: &'static str,
    /// The effective value; secrets are hidden.
    pub value: String,
    /// The origin of the value.
    pub origin: String,
}

impl Config {
    /// Merges the layers.
    ///
    /// `flags` are the common flags by key. `environment` is the whole environment; only `TESSERA_*` is used. `file` is
    /// the `--config` flag, else `TESSERA_CONFIG`.
    ///
    /// # Errors
    /// An unknown key in the file or a flag, a variable that looks like a misspelled key, an invalid value. Other
    /// unknown variables are listed in [`Config::ignored`].
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
        let defaults = Layer::defaults();
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
        check(&Written(figment), ignored)
    }

    /// The configuration of a server. Its statements come from others, so they reach only allowed paths and the
    /// warehouse.
    pub fn serving(mut self) -> Self {
        self.allow_read.get_or_insert_default();
        self.allow_write.get_or_insert_default();
        self
    }
}

#[cfg(test)]
mod tests;
