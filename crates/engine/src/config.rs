//! The configuration: defaults < file < environment < flags, each value with where it came from.
//!
//! 1. Each layer is a list of keys and texts or numbers; keys may be written with `-` or `_`.
//! 2. figment merges the layers and remembers the origin of each value.
//! 3. `check` reads what was written by key and makes a [`Config`] of it, which can be used.
//!
//! A key stands in three places: `keys::KEYS` has its default, [`Config`] its field, `check` its range.

mod bytes;
mod check;
mod describe;
mod keys;
mod layer;
mod machine;

pub use bytes::{format_bytes, parse_bytes};
pub use check::MEMORY_LEAST;
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
use tessera_planner::durable::Durability;

/// A value of the configuration that must not be shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this value.
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
    /// Each key with its value as text and its origin, in the order of `keys::KEYS`.
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

    /// The same for a server, whose statements come from others: they touch what is said, and the warehouse.
    pub fn serving(mut self) -> Self {
        self.allow_read.get_or_insert_default();
        self.allow_write.get_or_insert_default();
        self
    }
}

#[cfg(test)]
mod tests;
