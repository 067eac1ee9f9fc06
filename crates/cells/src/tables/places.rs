//! The locations of tables' files: stores that are registered with DataFusion, each for one table.

use super::counted::CountedStore;
use super::{TableFormat, first_line, shown};
use crate::error::Error;
use crate::rows::Nulls;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::DataFusionError;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::runtime_env::RuntimeEnv;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tessera_exec::task::SourceLocation;
use tessera_storage::source::{
    Listing, Noted, Options, SourceError, Stores, TableStore, Versions, is_in_memory, table_files,
};
use url::Url;

static STORES: AtomicU64 = AtomicU64::new(0);

/// The location of the files of a table.
pub(super) struct Place {
    /// The file or the directory, in a store that is registered for this table.
    pub(super) url: ListingTableUrl,
    pub(super) files: TableStore,
    /// Prefix of the URLs of the files; empty for local files.
    pub(super) root: String,
    pub(super) store: Registered,
    /// The names of the files below a directory; `None` for one file.
    pub(super) names: Option<Vec<String>>,
}

/// Finds the files, and registers their store.
pub(super) async fn place(
    format: TableFormat,
    url: &str,
    options: &Options,
    nulls: Nulls,
    (environment, places): (&Arc<RuntimeEnv>, &Arc<Places>),
    stores: &Stores,
    versions: &Arc<Versions>,
) -> Result<Place, Error> {
    let bad = |reason: String| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
    let failed = |e: DataFusionError| bad(first_line(&e.strip_backtrace()));
    let several = table_files(url, options, stores, |name| format.has(name)).await;
    let several = several.map_err(Error::Storage)?;
    let base = several.as_ref().map_or(url, |several| several.root.as_str());
    let reaching = reaching(base, options, environment, stores, versions)?;
    let mut name = reaching.name(base)?;
    let root_url = name.clone();
    // A prefix of objects is a directory.
    let slash = if several.is_some() && !reaching.path.ends_with('/') { "/" } else { "" };
    name.set_path(&format!("{}{slash}", reaching.path));
    let url = ListingTableUrl::try_new(name, None).map_err(failed)?;
    let files = match &several {
        None => reaching.files,
        Some(several) => {
            let path = |name: &String| Path::parse(format!("{}/{name}", url.prefix()));
            let paths = several.names.iter().map(path).collect::<Result<BTreeSet<_>, _>>();
            let paths = Arc::new(paths.map_err(|e| bad(e.to_string()))?);
            reaching.files.with_files(match several.is_found {
                true => Listing::Only(paths),
                false => Listing::Each(paths),
            })
        }
    };
    let location = SourceLocation {
        url: reaching.location,
        options: options.clone(),
        rules: stores.rules_for(base, options),
    };
    let placed = Placed { recipe: StoreRecipe { location }, files: files.clone(), nulls };
    let store = registered(&root_url, placed, environment, places);
    let names = several.map(|several| several.names);
    Ok(Place { url, files, root: reaching.root, store, names })
}

/// The access to the files of a URL.
struct Reaching {
    files: TableStore,
    /// Bucket or host.
    authority: String,
    /// The path below it.
    path: String,
    /// Prefix of the URLs of the files; empty for local files.
    root: String,
    /// The URL; the absolute path of local files.
    location: String,
}

fn reaching(
    url: &str,
    options: &Options,
    environment: &Arc<RuntimeEnv>,
    stores: &Stores,
    versions: &Arc<Versions>,
) -> Result<Reaching, Error> {
    let bad = |reason: String| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
    let failed = |e: DataFusionError| bad(first_line(&e.strip_backtrace()));
    let reached = stores.reach(url, options).map_err(Error::Storage)?;
    Ok(match &reached.place {
        Err(path) => {
            let path = path.to_str().ok_or_else(|| bad("its path is not UTF-8".into()))?;
            let parsed = ListingTableUrl::parse(path).map_err(failed)?;
            let local = environment.object_store(&parsed).map_err(failed)?;
            let absolute = std::path::absolute(path).map_err(|e| bad(e.to_string()))?;
            let location = absolute.to_str().ok_or_else(|| bad("its path is not UTF-8".into()))?;
            Reaching {
                files: TableStore::local(&reached, local, versions),
                authority: String::new(),
                path: AsRef::<Url>::as_ref(&parsed).path().to_string(),
                root: String::new(),
                location: location.to_string(),
            }
        }
        Ok(client) => {
            let root = client.root.clone();
            let authority = root.split_once("://").map_or("", |(_, authority)| authority);
            Reaching {
                files: TableStore::remote(&reached, client, &root, options, versions),
                authority: authority.to_string(),
                path: format!("/{}", client.key.trim_end_matches('/')),
                root,
                location: url.to_string(),
            }
        }
    })
}

impl Reaching {
    /// A unique name for the store, so that it is not confused with a store of another statement or with other options.
    fn name(&self, url: &str) -> Result<Url, Error> {
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        // The part after the plus is the scheme that errors show.
        let scheme = self.root.split_once(":/").map_or(String::new(), |(s, _)| format!("+{s}"));
        let name = format!("table-{number:x}{scheme}://{}/", self.authority);
        let bad = |reason| Error::Storage(SourceError::BadUrl { url: shown(url), reason });
        Url::parse(&name).map_err(|e| bad(e.to_string()))
    }
}

/// Registers the store of a table with DataFusion.
fn registered(
    root: &Url,
    placed: Placed,
    environment: &Arc<RuntimeEnv>,
    places: &Arc<Places>,
) -> Registered {
    environment.register_object_store(root, Arc::new(CountedStore(placed.files.clone())));
    places.lock().insert(root.to_string(), Arc::new(placed));
    Registered { root: root.clone(), environment: environment.clone(), places: places.clone() }
}

/// The location of a table's files, for another process that has to read them too. Its serialized form has the secrets
/// of its options: it is for processes of the same cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreRecipe {
    location: SourceLocation,
}

impl StoreRecipe {
    /// True for files that no other process has.
    pub(crate) fn is_in_memory(&self) -> bool {
        is_in_memory(&self.location.url)
    }

    /// Registers the store of the files under a new name. Its readers find the versions that `versions` expect, or fail.
    ///
    /// # Errors
    /// The errors of the storage; `not_allowed` if the statement's rules do not allow it.
    pub(crate) fn register(
        &self,
        environment: &Arc<RuntimeEnv>,
        places: &Arc<Places>,
        stores: &Stores,
        versions: &Arc<Versions>,
    ) -> Result<(ObjectStoreUrl, Registered), Error> {
        let SourceLocation { url, options, rules } = &self.location;
        let fenced = rules.clone().map(|rules| stores.fenced(rules, None, &[]));
        let fenced = fenced.transpose().map_err(Error::Storage)?;
        let stores = fenced.as_ref().unwrap_or(stores);
        let reaching = reaching(url, options, environment, stores, versions)?;
        let name = reaching.name(url)?;
        let root = ObjectStoreUrl::parse(name.as_str())?;
        // A scan of another process has the texts with it.
        let nulls = Nulls::default();
        let placed = Placed { recipe: self.clone(), files: reaching.files, nulls };
        Ok((root, registered(&name, placed, environment, places)))
    }
}

#[derive(Debug)]
pub(crate) struct Placed {
    /// The recipe by which another process opens the files.
    pub(crate) recipe: StoreRecipe,
    files: TableStore,
    /// The texts of CSV files that are NULL.
    pub(crate) nulls: Nulls,
}

impl Placed {
    /// The versions of these files; `None` if one of them is not known yet.
    pub(crate) fn noted<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Option<Vec<Noted>> {
        self.files.noted(files)
    }
}

/// The registered stores of a process, by the names that DataFusion has for them.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<BTreeMap<String, Arc<Placed>>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Placed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn get(&self, name: &ObjectStoreUrl) -> Option<Arc<Placed>> {
        self.lock().get(name.as_str()).cloned()
    }
}

/// The store of a table that DataFusion knows, until this is dropped.
pub struct Registered {
    root: Url,
    environment: Arc<RuntimeEnv>,
    places: Arc<Places>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.places.lock().remove(self.root.as_str());
        if let Err(e) = self.environment.deregister_object_store(&self.root) {
            tracing::warn!(error = %e, "the store of a table was not known");
        }
    }
}
