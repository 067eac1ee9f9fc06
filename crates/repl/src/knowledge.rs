//! The shell's cache of names, functions and settings of its engine.
//!
//! It queries the engine with SQL (`SHOW`, `DESCRIBE`), so that any engine can answer, including a remote one. Nothing
//! here blocks for longer than the caller's patience: a later answer is used the next time, and the old answer is used
//! until then.

use crate::rows::Rows;
use futures::StreamExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessera_engine::{Engine, Handle as Statement};
use tokio::runtime::Handle;

/// How long completion may delay a key.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Timeout of a query.
const FETCH_MAX: Duration = Duration::from_secs(20);
/// Upper bound on concurrent queries.
const FETCHES_MAX: usize = 4;
/// Upper bound on cached answers.
const ENTRIES_MAX: usize = 64;

/// A row of SHOW FUNCTIONS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// `mean(x, axis => NULL, …)`
    pub signature: String,
    /// The description.
    pub doc: String,
    /// The types of its parameters and result.
    pub dtypes: String,
    /// The treatment of masked cells and NaN.
    pub missing: String,
    /// An example call.
    pub example: String,
    /// The equivalent in NumPy or xarray.
    pub numpy: String,
}

/// A row of DESCRIBE.
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
    /// Incremented when statements may have changed names.
    generation: u64,
    fetching: usize,
}

#[derive(Default)]
struct Entry {
    rows: Option<Arc<Rows>>,
    /// The generation of the rows.
    generation: Option<u64>,
    fetching: bool,
}

/// The cache; see the [module](self).
pub struct Knowledge {
    engine: Arc<dyn Engine>,
    runtime: Handle,
    shared: Arc<(Mutex<KnowledgeState>, Condvar)>,
}

impl Knowledge {
    /// An empty cache.
    pub fn new(engine: Arc<dyn Engine>, runtime: Handle) -> Self {
        Knowledge { engine, runtime, shared: Arc::default() }
    }

    /// Queries functions and names in advance.
    pub fn prefetch(&self) {
        self.ask(FUNCTIONS, Duration::ZERO);
        self.ask(TENSORS, Duration::ZERO);
    }

    /// Invalidates names if `sql` may have changed them.
    pub fn changed_by(&self, sql: &str) {
        let reads = [
            "SELECT",
            "WITH",
            "VALUES",
            "EXPLAIN",
            "SHOW",
            "DESCRIBE",
            "DESC",
            "FROM",
            "PIVOT",
            "UNPIVOT",
            "SUMMARIZE",
        ];
        let mut first = true;
        let changes = crate::lex::tokens(sql).iter().filter(|t| !t.is_blank()).any(|t| {
            let begins = std::mem::replace(&mut first, t.text == ";");
            begins && t.text != ";" && t.text != "(" && !reads.iter().any(|w| t.is(w))
        });
        if changes {
            self.lock().generation += 1;
        }
    }

    /// The functions that are known now, without waiting.
    pub fn functions(&self) -> Arc<Vec<Function>> {
        let known = self.lock().functions.clone();
        if known.is_empty() {
            self.ask(FUNCTIONS, Duration::ZERO);
        }
        known
    }

    /// The functions, waiting up to [`PATIENCE`].
    pub fn functions_soon(&self) -> Arc<Vec<Function>> {
        self.ask(FUNCTIONS, PATIENCE);
        self.lock().functions.clone()
    }

    /// Names of tensors, views and tables.
    pub fn relations(&self) -> Vec<String> {
        self.names(TENSORS)
    }

    /// Names of settings.
    pub fn settings(&self) -> Vec<String> {
        self.names("SHOW ALL")
    }

    fn names(&self, sql: &str) -> Vec<String> {
        let rows = self.ask(sql, PATIENCE);
        rows.map(|r| r.column("name").map(str::to_string).collect()).unwrap_or_default()
    }

    /// The columns in the answer of `DESCRIBE source`.
    pub fn columns(&self, source: &str) -> Vec<Column> {
        let rows = self.ask(&format!("DESCRIBE {source}"), PATIENCE);
        rows.map(|r| columns(&r)).unwrap_or_default()
    }

    /// The rows of a statement: the cached ones, or new ones that arrive within `patience`.
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
                // Dropping the stream at the timeout cancels the statement.
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
            // A failed query is not repeated until something changed.
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
        // Each change is complete before the lock is released.
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
