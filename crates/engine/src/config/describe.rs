//! The configuration as text: each value, and the file that `tessera config` prints.

use super::{Config, Setting, format_bytes};
use std::path::PathBuf;

impl Config {
    /// The effective value of a key as text; a secret is hidden.
    pub(super) fn value(&self, key: &str) -> String {
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

fn shown(file: &Option<PathBuf>) -> String {
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
