//! Connections to storages, and the stores of locations.

use super::{Counters, Store, StoreRoot};
use crate::disk;
use crate::lock;
use crate::source::clouds::{AzureOptions, Environment};
use crate::source::dataset_cache::Kept;
use crate::source::error::SourceError;
use crate::source::fence::{Access, Fence, Fenced, Lent, Rules};
use crate::source::location::{Location, Options, Root, StoragePath};
use crate::source::retry::Patient;
use crate::source::versions;
use object_store::http::HttpBuilder;
use object_store::memory::InMemory;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Upper bound on concurrent requests over all statements, each on a connection that is reused.
const REQUESTS_MAX: usize = 128;

/// Upper bound on the client's retries of a request; together they wait some two seconds.
const RETRIES_MAX: usize = 8;

/// Result of [`Stores::exists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// True for a directory, or a prefix of objects.
    pub is_directory: bool,
}

/// A location in an object store.
#[derive(Debug, Clone)]
pub struct Client {
    /// The store, rooted at its bucket or host.
    pub store: Arc<dyn ObjectStore>,
    /// The key below the root.
    pub key: String,
    /// The URL of the root: the URL of an object is this, a slash, and its key.
    pub root: String,
}

/// Result of [`Stores::reach`].
#[derive(Debug, Clone)]
pub struct Reached {
    /// The key in an object store, or a path.
    pub place: Result<Client, PathBuf>,
    /// Checks each object of the location.
    pub(crate) fence: Option<Arc<Fenced>>,
}

/// Connections to storages, reused between statements.
#[derive(Clone)]
pub struct Stores {
    pub(super) shared: Arc<Shared>,
    pub(super) fence: Arc<Fence>,
}

/// The objects of `memory://`: one store for the process, however many [`Stores`] it has.
static MEMORY: LazyLock<Arc<InMemory>> = LazyLock::new(Arc::default);

/// Prefixes of the variables of storages.
const VARIABLES: [&str; 5] = ["AWS_", "GOOGLE_", "CLOUDSDK_", "AZURE_", "AZURITE_"];

/// Other variables of storages.
const MORE_VARIABLES: [&str; 4] =
    ["HOME", "IDENTITY_ENDPOINT", "MSI_ENDPOINT", "STORAGE_EMULATOR_HOST"];

pub(super) struct Shared {
    clients: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>,
    pub(super) environment: Environment,
    /// Azure's part of the environment.
    pub(super) azure: AzureOptions,
    pub(super) timeout: Duration,
    counters: Arc<Counters>,
    requests: Arc<Semaphore>,
    kept: Kept,
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither clients nor environment are shown: both hold credentials.
        f.debug_struct("Stores").field("timeout", &self.shared.timeout).finish_non_exhaustive()
    }
}

impl Stores {
    /// Creates stores with the credentials in the process's variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`). `timeout`
    /// bounds each read, retries included.
    pub fn new(timeout: Duration) -> Self {
        Stores::with_environment(timeout, std::env::vars())
    }

    /// Like [`Stores::new`], with other environment variables.
    pub fn with_environment(
        timeout: Duration,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let environment = environment.into_iter().filter(|(name, _)| is_of_storage(name));
        let environment: Environment = environment.collect();
        let shared = Shared {
            clients: Mutex::default(),
            azure: AzureOptions::of_environment(&environment),
            environment,
            timeout,
            counters: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            kept: Kept::default(),
        };
        Stores { shared: Arc::new(shared), fence: Arc::default() }
    }

    /// The same storages, restricted to the locations that `rules` allow statements to access. The `warehouse` and the
    /// directories in `private` belong to the engine.
    ///
    /// # Errors
    /// A rule that is neither a path nor a valid URL.
    pub fn fenced(
        &self,
        rules: Rules,
        warehouse: Option<&str>,
        private: &[PathBuf],
    ) -> Result<Stores, SourceError> {
        let account = self.shared.azure.account.as_deref();
        let fence = Fence::new(rules, warehouse, private, account)?;
        Ok(Stores { shared: self.shared.clone(), fence: Arc::new(fence) })
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// The rules to check by another process that opens a URL for a statement of this one; `None` for no check.
    pub fn rules_for(&self, url: &str, options: &Options) -> Option<Rules> {
        let is_lent = || Location::parse(url).is_ok_and(|l| self.fence.is_lent(&l));
        match self.fence.is_open() || options.warehouse || is_lent() {
            true => None,
            false => Some(self.fence.rules().clone()),
        }
    }

    /// Lets statements read a file of the process's own until the returned loan is dropped.
    pub fn lend(&self, path: &std::path::Path) -> Lent {
        self.fence.lend(path)
    }

    pub(crate) fn kept(&self) -> &Kept {
        &self.shared.kept
    }

    /// Counters of all reads through these stores.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.shared.counters
    }

    /// Checks that a file, an object, or a directory of objects exists.
    ///
    /// # Errors
    /// [`SourceError::NotFound`] if nothing exists; errors of the storage.
    pub async fn exists(&self, url: &str, options: &Options) -> Result<Found, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options, Access::Read)?;
        let not_found = || SourceError::NotFound { what: location.display.clone() };
        match &store.kind {
            StoreRoot::Local(path) => match disk::wait(|| path.metadata()) {
                Ok(meta) => Ok(Found { is_directory: meta.is_dir() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Err(not_found()),
                Err(e) => {
                    Err(SourceError::Storage { what: location.display, reason: e.to_string() })
                }
            },
            StoreRoot::Object { .. } => match store.head("").await? {
                Some(_) => Ok(Found { is_directory: false }),
                None if store.is_empty().await => Err(not_found()),
                None => Ok(Found { is_directory: true }),
            },
        }
    }

    /// Returns the client for a URL of an object store and the key below its root, or a local path. Equal options
    /// return the same client, so connections are reused.
    ///
    /// # Errors
    /// An invalid URL, a location that statements may not read, options from which no client can be made.
    pub fn reach(&self, url: &str, options: &Options) -> Result<Reached, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options, Access::Read)?;
        let place = match store.kind {
            StoreRoot::Local(path) => Err(path),
            StoreRoot::Object { client, prefix } => {
                let root = match location.path {
                    StoragePath::Object { root, .. } => root.url(),
                    StoragePath::Local(_) => String::new(),
                };
                Ok(Client { store: client, key: prefix, root })
            }
        };
        Ok(Reached { place, fence: store.fence })
    }

    /// Returns the store rooted at a location, if `access` to it is allowed.
    pub(crate) fn at(
        &self,
        location: &Location,
        options: &Options,
        access: Access,
    ) -> Result<Store, SourceError> {
        let path = self.resolved(&location.path, options);
        let resolved = Location { path, ..location.clone() };
        let (place, fence) = self.fence.check(&resolved, options, access)?;
        let has_suffixes = !matches!(&place, StoragePath::Object { root: Root::Azure { .. }, .. });
        let kind = match place {
            StoragePath::Local(path) => StoreRoot::Local(path),
            StoragePath::Object { root, prefix } => {
                // A fenced client checks redirects by the rules: it is another client.
                let rules = fence.as_ref().map(|_| self.fence.rules());
                let client = self.client(client_key(&root, options, rules), || {
                    self.make(&root, options, rules.is_some(), &location.display)
                })?;
                StoreRoot::Object { client, prefix }
            }
        };
        Ok(Store {
            kind,
            display: location.display.as_str().into(),
            timeout: self.shared.timeout,
            counters: self.shared.counters.clone(),
            requests: self.shared.requests.clone(),
            fence,
            origin: origin_of(options),
            seen: None,
            versions: None,
            warehouse: options.warehouse,
            manifest: None,
            has_suffixes,
            has_headers: false,
            references: None,
        })
    }

    /// The location with the storage account of the options or the environment, if it needs one.
    fn resolved(&self, path: &StoragePath, options: &Options) -> StoragePath {
        match path {
            StoragePath::Object { root: root @ Root::Azure { account: None, .. }, prefix } => {
                let account = options.azure.account.as_ref().or(self.shared.azure.account.as_ref());
                let root = root.of_account(account.map(String::as_str));
                StoragePath::Object { root, prefix: prefix.clone() }
            }
            other => other.clone(),
        }
    }

    /// Makes the client of a bucket, a container or a server.
    fn make(
        &self,
        root: &Root,
        options: &Options,
        is_fenced: bool,
        what: &str,
    ) -> Result<Patient, SourceError> {
        let made = |made: object_store::Result<Arc<dyn ObjectStore>>| {
            let made = made.map_err(|e| config_error(what, root, &e))?;
            Ok(Patient::new(made, self.shared.timeout / 2))
        };
        match root {
            Root::S3 { bucket } => made(self.s3(bucket, options, is_fenced)),
            Root::Gcs { bucket } => made(self.gcs(bucket, &options.gcs, is_fenced)),
            Root::Azure { account: Some(account), container } => {
                let azure = self.azure(account, container, &options.azure, is_fenced);
                made(azure).map(Patient::of_azure)
            }
            Root::Azure { account: None, .. } => Err(SourceError::BadUrl {
                url: what.to_string(),
                reason: "its storage account is not known: set AZURE_STORAGE_ACCOUNT_NAME or \
                         OPTIONS ('azure.account' '…'), or write \
                         abfss://container@account.dfs.core.windows.net/path"
                    .into(),
            }),
            Root::Http { origin } => {
                let allow_http = origin.starts_with("http://");
                let mut builder = HttpBuilder::new()
                    .with_url(origin.as_str())
                    .with_client_options(self.client_options().with_allow_http(allow_http))
                    .with_retry(self.retry());
                if is_fenced {
                    builder = builder.with_http_connector(self.hops(true, false));
                }
                made(builder.build().map(|s| Arc::new(s) as Arc<dyn ObjectStore>))
            }
            Root::Memory => made(Ok(MEMORY.clone())),
        }
    }

    fn client(
        &self,
        key: String,
        make: impl FnOnce() -> Result<Patient, SourceError>,
    ) -> Result<Arc<dyn ObjectStore>, SourceError> {
        let mut clients = lock(&self.shared.clients);
        if let Some(c) = clients.get(&key) {
            return Ok(c.clone());
        }
        let client: Arc<dyn ObjectStore> = Arc::new(make()?);
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Replaces the client of a bucket: for tests, whose buckets are in memory.
    pub fn serve(&self, bucket: &str, client: Arc<dyn ObjectStore>) {
        let root = Root::S3 { bucket: bucket.into() };
        let key = client_key(&root, &Options::default(), None);
        lock(&self.shared.clients).insert(key, client);
    }

    pub(super) fn client_options(&self) -> ClientOptions {
        ClientOptions::new()
            // One attempt does not use up the whole time-out.
            .with_timeout(self.shared.timeout / 2)
            .with_connect_timeout(self.connect_timeout())
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.shared.timeout.min(Duration::from_secs(5))
    }

    pub(super) fn retry(&self) -> RetryConfig {
        RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: self.shared.timeout / 2,
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: (self.shared.timeout / 10).min(Duration::from_secs(2)),
                base: 2.0,
            },
        }
    }
}

/// True for a variable that a storage may use.
fn is_of_storage(name: &str) -> bool {
    VARIABLES.iter().any(|prefix| name.starts_with(prefix)) || MORE_VARIABLES.contains(&name)
}

/// Key of the clients of buckets, containers and servers.
fn client_key(root: &Root, options: &Options, rules: Option<&Rules>) -> String {
    match root {
        Root::Http { .. } | Root::Memory => format!("{} {rules:?}", root.url()),
        _ => format!("{} {rules:?} {}", root.url(), key_of(options)),
    }
}

/// Key of a set of options and their credentials. In memory only, never shown.
pub(crate) fn key_of(o: &Options) -> String {
    let s3 = (&o.endpoint, &o.region, &o.access_key_id, &o.secret_access_key, &o.session_token);
    let gcs = (
        &o.gcs.endpoint,
        &o.gcs.service_account_path,
        &o.gcs.service_account_key,
        &o.gcs.token,
        (o.gcs.skip_signature, o.gcs.allow_http),
    );
    let azure = (
        (&o.azure.endpoint, &o.azure.account, &o.azure.account_key, &o.azure.sas_token),
        (&o.azure.token, &o.azure.client_id, &o.azure.client_secret, &o.azure.tenant_id),
        (o.azure.skip_signature, o.azure.allow_http),
    );
    format!("{s3:?} {:?} {gcs:?} {azure:?}", (o.skip_signature, o.allow_http))
}

/// Tells apart stores in which the same URL means different objects.
pub(crate) fn origin_of(o: &Options) -> u64 {
    let elsewhere = (&o.gcs.endpoint, &o.azure.endpoint, &o.azure.account);
    match ((&o.endpoint, &o.region), elsewhere) {
        ((None, None), (None, None, None)) => 0,
        (place, (None, None, None)) => versions::of_text(&format!("{place:?}")),
        place => versions::of_text(&format!("{place:?}")),
    }
}

/// The error of a client that cannot be made. The library's text may hold a secret.
fn config_error(what: &str, root: &Root, e: &object_store::Error) -> SourceError {
    let text = e.to_string();
    let reason = match root {
        Root::Gcs { .. } if text.contains("unknown variant") => {
            "its credentials are of a kind that is not read: keys of service accounts and the \
             credentials of `gcloud auth application-default login` are"
        }
        Root::Gcs { .. } if text.contains("credential") || text.contains("service account") => {
            "its credentials cannot be read: check GOOGLE_APPLICATION_CREDENTIALS, or the options \
             gcs.service_account_path and gcs.service_account_key"
        }
        Root::Azure { .. } if text.contains("Access Key") || text.contains("SAS") => {
            "its account key or SAS token is not valid"
        }
        Root::S3 { .. } => "no client can be made from its endpoint, region and options",
        _ => "no client can be made from its endpoint and options",
    };
    SourceError::BadUrl { url: what.to_string(), reason: reason.into() }
}
