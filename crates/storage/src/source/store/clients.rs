//! Connections to storages, and the stores of locations.

use super::region::Regional;
use super::{Counters, Store, StoreRoot};
use crate::disk;
use crate::source::dataset_cache::Kept;
use crate::source::error::SourceError;
use crate::source::fence::{Access, Fence, Fenced, Lent, Rules};
use crate::source::location::{Location, Options, StoragePath};
use crate::source::retry::Patient;
use crate::source::versions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpClient, HttpConnector};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use reqwest::redirect::Policy;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
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
pub struct Stores {
    shared: Arc<Shared>,
    fence: Arc<Fence>,
}

struct Shared {
    clients: Mutex<BTreeMap<String, Arc<dyn ObjectStore>>>,
    environment: BTreeMap<String, String>,
    timeout: Duration,
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
    /// Creates stores with the process's `AWS_*` variables. `timeout` bounds each read, retries included.
    pub fn new(timeout: Duration) -> Self {
        Stores::with_environment(timeout, std::env::vars())
    }

    /// As [`Stores::new`], with other variables.
    pub fn with_environment(
        timeout: Duration,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let shared = Shared {
            clients: Mutex::default(),
            environment: environment.into_iter().filter(|(k, _)| k.starts_with("AWS_")).collect(),
            timeout,
            counters: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            kept: Kept::default(),
        };
        Stores { shared: Arc::new(shared), fence: Arc::default() }
    }

    /// The same storages, of which statements may access what `rules` allow. The `warehouse` and the directories in
    /// `private` belong to the engine.
    ///
    /// # Errors
    /// A rule that is neither a path nor a valid URL.
    pub fn fenced(
        &self,
        rules: Rules,
        warehouse: Option<&str>,
        private: &[PathBuf],
    ) -> Result<Stores, SourceError> {
        let fence = Fence::new(rules, warehouse, private)?;
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
            StoreRoot::Object { client, prefix } => Ok(Client { store: client, key: prefix }),
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
        let (place, fence) = self.fence.check(location, options, access)?;
        // A fenced client checks redirects by the rules: it is another client.
        let rules = fence.as_ref().map(|_| self.fence.rules());
        let kind = match &place {
            StoragePath::Local(path) => StoreRoot::Local(path.clone()),
            StoragePath::S3 { bucket, prefix } => StoreRoot::Object {
                client: self.client(client_key(bucket, options, rules), || {
                    let s3 = self.s3(bucket, options, rules.is_some());
                    s3.map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
            StoragePath::Http { origin, prefix } => StoreRoot::Object {
                client: self.client(format!("{origin} {rules:?}"), || {
                    let allow_http = origin.starts_with("http://");
                    let mut builder = HttpBuilder::new()
                        .with_url(origin.as_str())
                        .with_client_options(self.client_options().with_allow_http(allow_http))
                        .with_retry(self.retry());
                    if rules.is_some() {
                        builder = builder.with_http_connector(self.hops(true, false));
                    }
                    builder
                        .build()
                        .map(|s| Arc::new(s) as Arc<dyn ObjectStore>)
                        .map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
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
        })
    }

    fn client(
        &self,
        key: String,
        make: impl FnOnce() -> Result<Arc<dyn ObjectStore>, SourceError>,
    ) -> Result<Arc<dyn ObjectStore>, SourceError> {
        let mut clients = self.shared.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(c) = clients.get(&key) {
            return Ok(c.clone());
        }
        let client: Arc<dyn ObjectStore> = Arc::new(Patient::new(make()?, self.shared.timeout / 2));
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Replaces the client of a bucket: for tests, whose buckets are in memory.
    pub fn serve(&self, bucket: &str, client: Arc<dyn ObjectStore>) {
        let key = client_key(bucket, &Options::default(), None);
        self.shared.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(key, client);
    }

    fn s3(
        &self,
        bucket: &str,
        o: &Options,
        is_fenced: bool,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut b = AmazonS3Builder::new();
        for (name, value) in &self.shared.environment {
            // Variables unknown to object_store are for other programs.
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                b = b.with_config(key, value);
            }
        }
        let env = |name: &str| self.shared.environment.get(name).filter(|v| !v.is_empty());
        if let Some(v) = &o.region {
            b = b.with_region(v);
        } else if env("AWS_REGION").is_none() && env("AWS_DEFAULT_REGION").is_none() {
            b = b.with_region("us-east-1");
        }
        let endpoint = o.endpoint.as_ref().or_else(|| {
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"].iter().find_map(|n| env(n))
        });
        if let Some(v) = endpoint {
            b = b.with_endpoint(v.trim_end_matches('/'));
        }
        if let Some(v) = &o.access_key_id {
            b = b.with_access_key_id(v);
            // The token of other credentials would make these invalid.
            b = b.with_token(o.session_token.clone().unwrap_or_default());
        }
        if let Some(v) = &o.secret_access_key {
            b = b.with_secret_access_key(v);
        }
        if let Some(v) = &o.session_token {
            b = b.with_token(v);
        }
        let allow_http = o
            .allow_http
            .or_else(|| env("AWS_ALLOW_HTTP").map(|v| v.eq_ignore_ascii_case("true") || v == "1"))
            .unwrap_or(false);
        // Without any credentials a request is anonymous: a request to a cloud's metadata service would only wait.
        let known = o.access_key_id.is_some()
            || [
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ]
            .iter()
            .any(|n| env(n).is_some());
        let skip = o.skip_signature.or_else(|| {
            env("AWS_SKIP_SIGNATURE").map(|v| v.eq_ignore_ascii_case("true") || v == "1")
        });
        b = b.with_skip_signature(skip.unwrap_or(!known));
        b = b.with_http_connector(Hops { is_s3: true, ..self.hops(is_fenced, true) });
        let store = b
            .with_bucket_name(bucket)
            .with_client_options(self.client_options().with_allow_http(allow_http))
            .with_allow_http(allow_http)
            .with_retry(self.retry())
            .build()?;
        Ok(Arc::new(store))
    }

    fn client_options(&self) -> ClientOptions {
        ClientOptions::new()
            // One attempt does not use up the whole time-out.
            .with_timeout(self.shared.timeout / 2)
            .with_connect_timeout(self.connect_timeout())
    }

    fn connect_timeout(&self) -> Duration {
        self.shared.timeout.min(Duration::from_secs(5))
    }

    fn hops(&self, is_fenced: bool, home: bool) -> Hops {
        Hops {
            fence: is_fenced.then(|| self.fence.clone()),
            is_s3: false,
            home,
            timeout: self.shared.timeout / 2,
            connect_timeout: self.connect_timeout(),
        }
    }

    fn retry(&self) -> RetryConfig {
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

/// Upper bound on redirects, as many as browsers follow.
const HOPS_MAX: usize = 10;

/// Makes clients that check the rules before they follow a redirect.
#[derive(Debug)]
struct Hops {
    /// `None` for no checks.
    fence: Option<Arc<Fence>>,
    is_s3: bool,
    /// True if the server of the first request may redirect to itself.
    home: bool,
    timeout: Duration,
    connect_timeout: Duration,
}

impl HttpConnector for Hops {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // A machine's credentials service in a cloud is accessed over HTTP, whatever the bucket is.
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let allow_http = allow_http.is_some_and(|text| text == "true");
        let (fence, home) = (self.fence.clone(), self.home);
        let policy = Policy::custom(move |hop| {
            let first = hop.previous().first().map(|u| u.origin().ascii_serialization());
            let home = first.as_deref().filter(|_| home);
            match fence.as_ref().map_or(Ok(()), |fence| fence.hop(hop.url(), home)) {
                Err(refused) => hop.error(refused),
                Ok(()) if hop.previous().len() > HOPS_MAX => hop.error("too many redirects"),
                Ok(()) => hop.follow(),
            }
        });
        let client = reqwest::Client::builder()
            .user_agent(concat!("tessera/", env!("CARGO_PKG_VERSION")))
            .timeout(self.timeout)
            .connect_timeout(self.connect_timeout)
            .https_only(!allow_http)
            .http1_only()
            .redirect(policy)
            .build();
        let client = client.map_err(|e| object_store::Error::Generic {
            store: "HTTP client",
            source: Box::new(e),
        })?;
        Ok(match self.is_s3 {
            true => HttpClient::new(Regional(client)),
            false => HttpClient::new(client),
        })
    }
}

/// Key of the clients of buckets.
fn client_key(bucket: &str, options: &Options, rules: Option<&Rules>) -> String {
    format!("s3://{bucket} {rules:?} {}", key_of(options))
}

/// Key of a set of options and their credentials. In memory only, never shown.
pub(crate) fn key_of(o: &Options) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        o.endpoint,
        o.region,
        o.access_key_id,
        o.secret_access_key,
        o.session_token,
        o.skip_signature,
        o.allow_http
    )
}

/// Tells apart stores in which the same URL means different objects.
pub(crate) fn origin_of(o: &Options) -> u64 {
    match (&o.endpoint, &o.region) {
        (None, None) => 0,
        place => versions::of_text(&format!("{place:?}")),
    }
}

fn config_error(what: &str, _e: &object_store::Error) -> SourceError {
    SourceError::BadUrl {
        url: what.to_string(),
        reason: "no client can be made from its endpoint, region and options".into(),
    }
}
