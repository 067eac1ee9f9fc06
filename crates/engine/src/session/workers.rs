//! The rows of `SHOW WORKERS`.

use crate::config::format_bytes;
use tessera_cluster::registry::Member;

pub(super) const COLUMNS: [&str; 16] = [
    "worker",
    "name",
    "address",
    "state",
    "threads",
    "memory",
    "limit",
    "orders",
    "operands",
    "chunks",
    "row_tasks",
    "row_tasks_done",
    "rows_sent",
    "row_bytes",
    "heard",
    "why",
];

pub(super) fn row(m: &Member) -> [String; 16] {
    [
        m.number.to_string(),
        m.hello.name.clone(),
        m.hello.address.clone(),
        m.state.name().into(),
        m.hello.threads.to_string(),
        format_bytes(m.load.used_bytes),
        format_bytes(m.hello.memory_bytes),
        m.load.orders.to_string(),
        m.load.operands.to_string(),
        format!("{} ({})", m.load.chunks, format_bytes(m.load.chunk_bytes)),
        m.load.row_tasks.to_string(),
        m.load.row_tasks_done.to_string(),
        m.load.rows_sent.to_string(),
        format_bytes(m.load.row_bytes),
        format!("{:.1} s ago", m.heard_s()),
        m.lacks().unwrap_or_default(),
    ]
}
