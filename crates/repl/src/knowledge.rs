//! What the shell knows of its engine: names, functions, settings.
//!
//! It asks as a user would (`SHOW`, `DESCRIBE`), so every engine can answer, also one elsewhere. Nothing here blocks:
//! an answer that takes longer than the caller's patience is there the next time, and until a new one comes the old one
//! stands.

use crate::rows::Rows;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_engine::{Engine, Handle as Statement};
use tokio::runtime::Handle;

/// What a person at the keyboard waits for.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// A question that takes longer is given up.
const FETCH_MAX: Duration = Duration::from_secs(20);
/// Questions under way at a time.
const FETCHES_MAX: usize = 4;
/// Answers that are remembered.
const ENTRIES_MAX: usize = 64;

/// A function, as SHOW FUNCTIONS tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// `mean(x, axis => NULL, …)`
    pub signature: String,
    /// What it gives.
    pub doc: String,
    /// The types that it takes and gives.
    pub dtypes: String,
    /// What masked cells and NaN do.
    pub missing: String,
    /// A call.
    pub example: String,
    /// The same in NumPy or xarray.
    pub numpy: String,
}

/// A name that DESCRIBE tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The name.
    pub name: String,
    /// `variable`, `coordinate`, `auxiliary`, `unreadable`, `group`, `result` or `column`.
    pub kind: String,
    /// Type of its cells.
    pub dtype: String,
    /// Names and lengths of its dimensions.
    pub dims: Vec<(String, u64)>,
    /// Lengths of its chunks; of a coordinate, its range as text.
    pub chunks: String,
    /// Attributes, as `key: value; …`.
    pub attributes: String,
}

#[derive(Default)]
struct KnowledgeState {
    entries: BTreeMap<String, Entry>,
    functions: Arc<Vec<Function>>,
    /// Grows when statements may have changed names.
    generation: u64,
    fetching: usize,
}

#[derive(Default)]
struct Entry {
    rows: Option<Arc<Rows>>,
    /// The generation that the rows are of.
    generation: Option<u64>,
    fetching: bool,
}

/// See the module.
pub struct Knowledge {
    engine: Arc<dyn Engine>,
    runtime: Handle,
    shared: Arc<(Mutex<KnowledgeState>, Condvar)>,
}

impl Knowledge {
    /// Knows nothing yet.
    pub fn new(engine: Arc<dyn Engine>, runtime: Handle) -> Self {
        Knowledge { engine, runtime, shared: Arc::default() }
    }

    /// Asks for the functions and names now, so that they are there when they are needed.
    pub fn prefetch(&self) {
        self.ask(FUNCTIONS, Duration::ZERO);
        self.ask(TENSORS, Duration::ZERO);
    }

    /// From now on names may be others: `sql` was run.
    pub fn changed_by(&self, sql: &str) {
        let reads = ["SELECT", "WITH", "VALUES", "EXPLAIN", "SHOW", "DESCRIBE", "DESC", "FROM"];
        let mut first = true;
        let changes = crate::lex::tokens(sql).iter().filter(|t| !t.is_blank()).any(|t| {
            let begins = std::mem::replace(&mut first, t.text == ";");
            begins && t.text != ";" && t.text != "(" && !reads.iter().any(|w| t.is(w))
        });
        if changes {
            self.lock().generation += 1;
        }
    }

    /// The functions, as far as they are known now.
    pub fn functions(&self) -> Arc<Vec<Function>> {
        let known = self.lock().functions.clone();
        if known.is_empty() {
            self.ask(FUNCTIONS, Duration::ZERO);
        }
        known
    }

    /// The functions, after a little patience.
    pub fn functions_soon(&self) -> Arc<Vec<Function>> {
        self.ask(FUNCTIONS, PATIENCE);
        self.lock().functions.clone()
    }

    /// Names of tensors, views and tables.
    pub fn relations(&self) -> Vec<String> {
        let rows = self.ask(TENSORS, PATIENCE);
        rows.map(|r| r.column("name").map(str::to_string).collect()).unwrap_or_default()
    }

    /// Names of settings.
    pub fn settings(&self) -> Vec<String> {
        let rows = self.ask("SHOW ALL", PATIENCE);
        rows.map(|r| r.column("name").map(str::to_string).collect()).unwrap_or_default()
    }

    /// What `DESCRIBE source` tells.
    pub fn columns(&self, source: &str) -> Vec<Column> {
        let rows = self.ask(&format!("DESCRIBE {source}"), PATIENCE);
        rows.map(|r| columns(&r)).unwrap_or_default()
    }

    /// The answer of a statement that gives rows of texts: as it is known, or when it comes within `patience`.
    fn ask(&self, sql: &str, patience: Duration) -> Option<Arc<Rows>> {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        let generation = state.generation;
        let fetching = state.fetching;
        let entry = state.entries.entry(sql.to_string()).or_default();
        if entry.generation == Some(generation) {
            return entry.rows.clone();
        }
        if !entry.fetching && fetching < FETCHES_MAX {
            entry.fetching = true;
            state.fetching += 1;
            self.fetch(sql.to_string(), generation);
        }
        loop {
            let entry = state.entries.get(sql)?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !entry.fetching || left.is_zero() {
                return entry.rows.clone();
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fetch(&self, sql: String, generation: u64) {
        let (engine, shared) = (self.engine.clone(), self.shared.clone());
        self.runtime.spawn(async move {
            let rows = tokio::time::timeout(FETCH_MAX, async {
                // Dropping the stream at the time-out cancels the statement.
                match engine.run(&sql, Statement::new()).next().await {
                    Some(Ok(reply)) => Rows::of(&reply.answer),
                    _ => None,
                }
            });
            let rows = rows.await.ok().flatten().map(Arc::new);
            let mut state = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.fetching -= 1;
            if sql == FUNCTIONS
                && let Some(rows) = &rows
            {
                state.functions = Arc::new(functions(rows));
            }
            let entry = state.entries.entry(sql).or_default();
            entry.fetching = false;
            // A question without an answer is not asked again until something changed.
            entry.generation = Some(generation);
            entry.rows = rows;
            if state.entries.len() > ENTRIES_MAX {
                let idle =
                    state.entries.iter().find(|(k, e)| !e.fetching && k.starts_with("DESCRIBE"));
                if let Some(key) = idle.map(|(k, _)| k.clone()) {
                    state.entries.remove(&key);
                }
            }
            shared.1.notify_all();
        });
    }

    fn lock(&self) -> MutexGuard<'_, KnowledgeState> {
        // Every change under the lock is complete when it is let go.
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FUNCTIONS: &str = "SHOW FUNCTIONS";
const TENSORS: &str = "SHOW TENSORS";

/// The functions of `SHOW FUNCTIONS`.
pub fn functions(rows: &Rows) -> Vec<Function> {
    (0..rows.len())
        .map(|i| {
            let of = |column| rows.text(i, column).to_string();
            Function {
                name: of("name"),
                signature: of("signature"),
                doc: of("description"),
                dtypes: of("dtypes"),
                missing: of("masks and NaN"),
                example: of("example"),
                numpy: of("numpy"),
            }
        })
        .collect()
}

/// The names of `DESCRIBE`.
pub fn columns(rows: &Rows) -> Vec<Column> {
    (0..rows.len())
        .map(|i| {
            let of = |column| rows.text(i, column).to_string();
            let dims = rows.text(i, "dims").split(", ").filter_map(|d| {
                let (name, n) = d.rsplit_once('=')?;
                Some((name.to_string(), n.parse().ok()?))
            });
            Column {
                dims: dims.collect(),
                name: of("name"),
                kind: of("kind"),
                dtype: of("dtype"),
                chunks: of("chunks"),
                attributes: of("attributes"),
            }
        })
        .collect()
}
