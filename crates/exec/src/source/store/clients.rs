//! Connections to storages, and the stores of locations.

use super::{Counters, Kind, Store};
use crate::source::error::SourceError;
use crate::source::location::{Location, Options, Place};
use crate::source::patient::Patient;
use crate::source::seen::Kept;
use crate::source::versions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Requests in flight over all statements, each on a connection that is kept for the next one.
const REQUESTS_MAX: usize = 128;

/// Attempts of a request after the first; together they wait some two seconds.
const RETRIES_MAX: usize = 8;

/// What [`Stores::exists`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// True for a directory, or a prefix of objects.
    pub is_directory: bool,
}

/// A place in an object store.
#[derive(Debug, Clone)]
pub struct Client {
    /// The store, rooted at its bucket or host.
    pub store: Arc<dyn ObjectStore>,
    /// The key below the root.
    pub key: String,
}

/// Connections to storages, kept between statements.
pub struct Stores {
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
        f.debug_struct("Stores").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Stores {
    /// Stores with the process's `AWS_*` variables. `timeout` bounds each read, retries included.
    pub fn new(timeout: Duration) -> Self {
        Stores::with_environment(timeout, std::env::vars())
    }

    /// The same with other variables.
    pub fn with_environment(
        timeout: Duration,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        Stores {
            clients: Mutex::default(),
            environment: environment.into_iter().filter(|(k, _)| k.starts_with("AWS_")).collect(),
            timeout,
            counters: Arc::default(),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            kept: Kept::default(),
        }
    }

    /// Datasets that were opened before.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// What all reads through these stores have cost.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Whether something is there: a file or object, or a directory of some.
    ///
    /// # Errors
    /// [`SourceError::NotFound`] if nothing is; those of the storage.
    pub async fn exists(&self, url: &str, options: &Options) -> Result<Found, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options)?;
        let not_found = || SourceError::NotFound { what: location.display.clone() };
        match &store.kind {
            Kind::Local(path) => match std::fs::metadata(path) {
                Ok(meta) => Ok(Found { is_directory: meta.is_dir() }),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Err(not_found()),
                Err(e) => {
                    Err(SourceError::Storage { what: location.display, reason: e.to_string() })
                }
            },
            Kind::Object { .. } => match store.head("").await? {
                Some(_) => Ok(Found { is_directory: false }),
                None if store.is_empty().await => Err(not_found()),
                None => Ok(Found { is_directory: true }),
            },
        }
    }

    /// The client for a URL of an object store and the key below its root; `None` for a local path. Equal options give
    /// the same client, so connections are kept.
    ///
    /// # Errors
    /// A URL that cannot be read, options from which no client can be made.
    pub fn client_of(&self, url: &str, options: &Options) -> Result<Option<Client>, SourceError> {
        let location = Location::parse(url)?;
        let store = self.at(&location, options)?;
        Ok(match store.kind {
            Kind::Local(_) => None,
            Kind::Object { client, prefix } => Some(Client { store: client, key: prefix }),
        })
    }

    /// The store of a location, rooted at it.
    pub(crate) fn at(&self, location: &Location, options: &Options) -> Result<Store, SourceError> {
        let kind = match &location.place {
            Place::Local(path) => Kind::Local(path.clone()),
            Place::S3 { bucket, prefix } => Kind::Object {
                client: self.client(format!("s3://{bucket} {}", key_of(options)), || {
                    self.s3(bucket, options).map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
            Place::Http { origin, prefix } => Kind::Object {
                client: self.client(origin.clone(), || {
                    let built = HttpBuilder::new()
                        .with_url(origin.as_str())
                        .with_client_options(
                            self.client_options().with_allow_http(origin.starts_with("http://")),
                        )
                        .with_retry(self.retry())
                        .build();
                    built
                        .map(|s| Arc::new(s) as Arc<dyn ObjectStore>)
                        .map_err(|e| config_error(&location.display, &e))
                })?,
                prefix: prefix.clone(),
            },
        };
        Ok(Store {
            kind,
            display: location.display.as_str().into(),
            timeout: self.timeout,
            counters: self.counters.clone(),
            requests: self.requests.clone(),
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
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(c) = clients.get(&key) {
            return Ok(c.clone());
        }
        let client: Arc<dyn ObjectStore> = Arc::new(Patient::new(make()?, self.timeout / 2));
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Requests to a bucket go to that client.
    #[cfg(test)]
    pub(crate) fn serve(&self, bucket: &str, client: Arc<dyn ObjectStore>) {
        let key = format!("s3://{bucket} {}", key_of(&Options::default()));
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(key, client);
    }

    fn s3(&self, bucket: &str, o: &Options) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut b = AmazonS3Builder::new();
        for (name, value) in &self.environment {
            // Variables that object_store does not know are for other programs.
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                b = b.with_config(key, value);
            }
        }
        let env = |name: &str| self.environment.get(name).filter(|v| !v.is_empty());
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
            // The token of other credentials would make these wrong.
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
        // Without any credentials a request is anonymous: asking the metadata service of a cloud would only wait.
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
            // One attempt does not take all the time that there is.
            .with_timeout(self.timeout / 2)
            .with_connect_timeout(self.timeout.min(Duration::from_secs(5)))
    }

    fn retry(&self) -> RetryConfig {
        RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: self.timeout / 2,
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: (self.timeout / 10).min(Duration::from_secs(2)),
                base: 2.0,
            },
        }
    }
}

/// What tells two sets of options, and their credentials, apart. In memory only, never shown.
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

/// What tells stores apart in which the same URL means something else.
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
