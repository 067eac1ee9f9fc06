//! The keys of the configuration: the name, the default and the effective value of each.

use super::{Config, format_bytes, machine};
use std::path::PathBuf;

#[derive(Debug)]
pub(super) struct ConfigKey {
    /// The spelling in files.
    pub(super) name: &'static str,
    default: Default,
    /// The effective value as text; a secret is hidden.
    pub(super) value: fn(&Config) -> String,
}

#[derive(Debug)]
enum Default {
    None,
    Text(&'static str),
    /// Computed from the machine.
    Of(fn() -> String),
}

impl ConfigKey {
    pub(super) fn default(&self) -> Option<String> {
        match self.default {
            Default::None => None,
            Default::Text(text) => Some(text.into()),
            Default::Of(make) => Some(make()),
        }
    }
}

const fn key(name: &'static str, default: &'static str, value: fn(&Config) -> String) -> ConfigKey {
    ConfigKey { name, default: Default::Text(default), value }
}

const fn computed(
    name: &'static str,
    default: fn() -> String,
    value: fn(&Config) -> String,
) -> ConfigKey {
    ConfigKey { name, default: Default::Of(default), value }
}

const fn unset(name: &'static str, value: fn(&Config) -> String) -> ConfigKey {
    ConfigKey { name, default: Default::None, value }
}

/// All keys, in the order of `tessera config`.
pub(super) const KEYS: [ConfigKey; 39] = [
    key("warehouse", "./tessera-data", |c| c.warehouse.clone()),
    computed("memory-limit", memory, |c| format_bytes(c.memory_limit_bytes)),
    computed("spill-dir", scratch, |c| c.spill_dir.display().to_string()),
    key("spill-limit", "80%", |c| format_bytes(c.spill_limit_bytes)),
    computed("threads", threads, |c| c.threads.to_string()),
    key("log", "warn", |c| c.log.clone()),
    key("listen", "127.0.0.1:8080", |c| c.listen.to_string()),
    unset("token", |c| if c.token.is_some() { "(hidden)" } else { "(none)" }.into()),
    key("no-token", "false", |c| c.no_token.to_string()),
    key("insecure", "false", |c| c.insecure.to_string()),
    key("certificate", "", |c| shown(&c.certificate)),
    key("key", "", |c| shown(&c.key)),
    unset("allow-read", |c| listed(&c.allow_read)),
    unset("allow-write", |c| listed(&c.allow_write)),
    key("max-queries", "16", |c| c.max_queries.to_string()),
    key("max-queued", "64", |c| c.max_queued.to_string()),
    key("query-timeout", "3600", |c| c.query_timeout_s.to_string()),
    key("result-ttl", "600", |c| c.result_ttl_s.to_string()),
    key("session-timeout", "1800", |c| c.session_timeout_s.to_string()),
    key("max-request", "4MiB", |c| format_bytes(c.max_request_bytes as u64)),
    key("lift", "auto", |c| c.lift.to_string()),
    key("durability", "auto", |c| c.durability.to_string()),
    key("durable-limit", "50%", |c| format_bytes(c.durable_limit_bytes)),
    key("durable-ttl", "86400", |c| c.durable_ttl_s.to_string()),
    key("standby", "false", |c| c.standby.to_string()),
    key("lease-timeout", "3", |c| c.lease_timeout_s.to_string()),
    // The default is `listen`.
    key("public-url", "", |c| c.public_url.clone().unwrap_or_default()),
    key("cluster", "false", |c| c.cluster.to_string()),
    key("cluster-listen", "127.0.0.1:50050", |c| c.cluster_listen.to_string()),
    key("scheduler", "127.0.0.1:50050", |c| c.schedulers.join(",")),
    // The default is `threads`.
    key("slots", "", |c| c.slots.to_string()),
    computed("cluster-secret-file", machine::secret_file, |c| {
        c.cluster_security.secret.display().to_string()
    }),
    key("cluster-certificate", "", |c| shown(&c.cluster_security.certificate)),
    key("cluster-key", "", |c| shown(&c.cluster_security.key)),
    key("cluster-authority", "", |c| shown(&c.cluster_security.authority)),
    key("retained-limit", "12%", |c| format_bytes(c.retained_limit_bytes)),
    key("chunk-compression", "none", |c| c.compression.name().to_string()),
    key("worker-timeout", "5", |c| c.worker_timeout_s.to_string()),
    key("worker-wait", "120", |c| c.worker_wait_s.to_string()),
];

/// Keys of later versions, which are reported as such instead of as unknown.
pub(super) const LATER: [&str; 1] = ["flight"];

/// Names of all keys.
pub fn names() -> impl Iterator<Item = &'static str> {
    KEYS.iter().map(|key| key.name)
}

/// 75 % of the memory; empty, which is refused with a hint, if the system does not report it.
fn memory() -> String {
    machine::memory_bytes().map(|n| (n / 4 * 3).to_string()).unwrap_or_default()
}

fn scratch() -> String {
    std::env::temp_dir().display().to_string()
}

fn threads() -> String {
    std::thread::available_parallelism().map_or(1, usize::from).to_string()
}

fn listed(list: &Option<Vec<String>>) -> String {
    match list {
        None => "(everything; of a server, the warehouse)".into(),
        Some(list) => list.join(","),
    }
}

fn shown(file: &Option<PathBuf>) -> String {
    file.as_ref().map(|f| f.display().to_string()).unwrap_or_default()
}
