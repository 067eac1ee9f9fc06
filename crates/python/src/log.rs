//! Events of the engine for Python's `logging`. Threads of the engine put them into a bounded queue, from which Python
//! takes them: they never call Python.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// Events that wait for Python; the oldest are dropped.
const EVENTS_MAX: usize = 1000;

/// An event: level, target, text.
type Entry = (String, String, String);

static EVENTS: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());
static FILTER: OnceLock<Option<reload::Handle<EnvFilter, Registry>>> = OnceLock::new();

fn events() -> MutexGuard<'static, VecDeque<Entry>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ToPython;

impl<S: Subscriber> Layer<S> for ToPython {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let meta = event.metadata();
        let mut events = events();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back((meta.level().to_string(), meta.target().into(), text.0));
    }
}

/// The message and the fields of an event, as `message key=value`.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let space = if self.0.is_empty() { "" } else { " " };
        // Writing to a text does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{space}{value:?}"),
            name => write!(self.0, "{space}{name}={value:?}"),
        };
    }
}

/// Collects events of this level and above: `warn`, `info`, `tessera_exec=debug`, …, for all connections.
#[pyfunction]
pub(crate) fn log_level(level: &str) -> PyResult<()> {
    let refuse = |e: String| PyValueError::new_err(format!("log `{level}`: {e}"));
    let filter = EnvFilter::try_new(level).map_err(|e| refuse(e.to_string()))?;
    let mut first = Some(filter);
    let handle = FILTER.get_or_init(|| {
        let (filter, handle) = reload::Layer::new(first.take().unwrap_or_default());
        // Another part of the process may log by itself.
        let is_ours = tracing_subscriber::registry().with(filter).with(ToPython).try_init();
        is_ours.is_ok().then_some(handle)
    });
    match (handle, first) {
        (Some(handle), Some(filter)) => handle.reload(filter).map_err(|e| refuse(e.to_string())),
        _ => Ok(()),
    }
}

/// Takes the events that wait.
#[pyfunction]
pub(crate) fn take_log() -> Vec<Entry> {
    events().drain(..).collect()
}
