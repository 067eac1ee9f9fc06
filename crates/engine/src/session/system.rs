//! System tables in `FROM`: `system.workers` and `system.events`, as they are when the statement is bound.

use crate::session::Host;
use arrow::array::{
    ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt32Array,
    UInt64Array,
};
use arrow::error::ArrowError;
use std::sync::Arc;
use tessera_cluster::registry::{Event, Member};

/// The rows of the system table of that name; `None` if the name is unknown. Without a cluster the tables are empty.
pub(super) fn rows(name: &str, host: &Host) -> Option<Result<RecordBatch, ArrowError>> {
    let registry = host.cluster().map(|c| c.registry());
    match name.to_ascii_lowercase().as_str() {
        "system.workers" => Some(workers(&registry.map(|r| r.all()).unwrap_or_default())),
        "system.events" => Some(events(&registry.map(|r| r.events()).unwrap_or_default())),
        _ => None,
    }
}

/// Connected workers and workers that left recently: the fields of `GET /v1/cluster`.
fn workers(all: &[Member]) -> Result<RecordBatch, ArrowError> {
    let text = |f: fn(&Member) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(all.iter().map(f)))
    };
    let number = |f: fn(&Member) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(all.iter().map(f)))
    };
    RecordBatch::try_from_iter_with_nullable([
        ("worker", ids(all.iter().map(|m| Some(m.number))), false),
        ("name", text(|m| &m.hello.name), false),
        ("address", text(|m| &m.hello.address), false),
        ("version", text(|m| &m.hello.version.program), false),
        ("state", text(|m| m.state.name()), false),
        ("since", moments(all.iter().map(|m| m.since_ms)), false),
        ("threads", number(|m| u64::from(m.hello.threads)), false),
        ("pid", number(|m| u64::from(m.hello.pid)), false),
        ("memory_limit_bytes", number(|m| m.hello.memory_bytes), false),
        ("memory_used_bytes", number(|m| m.load.used_bytes), false),
        ("orders", number(|m| m.load.orders), false),
        ("operands", number(|m| m.load.operands), false),
        ("chunks", number(|m| m.load.chunks), false),
        ("chunk_bytes", number(|m| m.load.chunk_bytes), false),
        ("spilled_bytes", number(|m| m.load.spilled_bytes), false),
        ("retained_bytes", number(|m| m.load.retained_bytes), false),
        ("reused", number(|m| m.load.reused), false),
        ("fetched_bytes", number(|m| m.load.fetched_bytes), false),
        ("served_bytes", number(|m| m.load.served_bytes), false),
        ("written_bytes", number(|m| m.load.written_bytes), false),
        ("row_tasks", number(|m| m.load.row_tasks), false),
        ("row_tasks_done", number(|m| m.load.row_tasks_done), false),
        ("rows_sent", number(|m| m.load.rows_sent), false),
        ("row_bytes", number(|m| m.load.row_bytes), false),
        (
            "heard_s",
            Arc::new(Float64Array::from_iter_values(all.iter().map(Member::heard_s))),
            false,
        ),
        ("why", Arc::new(all.iter().map(Member::lacks).collect::<StringArray>()), true),
    ])
}

/// Recent events, the oldest first.
fn events(all: &[Event]) -> Result<RecordBatch, ArrowError> {
    let text = |f: fn(&Event) -> Option<&str>| -> ArrayRef {
        Arc::new(all.iter().map(f).collect::<StringArray>())
    };
    RecordBatch::try_from_iter_with_nullable([
        (
            "number",
            Arc::new(UInt64Array::from_iter_values(all.iter().map(|e| e.number))) as ArrayRef,
            false,
        ),
        ("time", moments(all.iter().map(|e| e.time_ms)), false),
        ("kind", text(|e| Some(e.kind)), false),
        ("worker", ids(all.iter().map(|e| e.worker)), true),
        ("statement", text(|e| e.statement.as_deref()), true),
        ("detail", text(|e| Some(&e.detail)), false),
    ])
}

fn ids(numbers: impl Iterator<Item = Option<u32>>) -> ArrayRef {
    Arc::new(numbers.collect::<UInt32Array>())
}

fn moments(ms: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(TimestampMillisecondArray::from_iter_values(ms.map(|ms| ms as i64)))
}
