//! Clients of Google Cloud Storage.

use super::clients::Stores;
use crate::source::clouds::GcsOptions;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder};
use object_store::{ObjectStore, StaticCredentialProvider};
use std::sync::Arc;

/// The public service.
const GOOGLE: &str = "https://storage.googleapis.com";

impl Stores {
    /// The client of a bucket. Credentials of the environment are sent only to the endpoint of the environment, not to
    /// an endpoint of a statement's options: anyone who gets a token can use it. Without credentials requests are
    /// anonymous, unless `skip_signature` is false: then credentials are requested from the metadata service of the
    /// machine.
    pub(super) fn gcs(
        &self,
        bucket: &str,
        options: &GcsOptions,
        is_fenced: bool,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let environment = GcsOptions::of_environment(&self.shared.environment);
        let mut b = GoogleCloudStorageBuilder::new().with_bucket_name(bucket);
        let is_own = options.is_signed() || options.endpoint.is_some();
        let signing = if is_own { options } else { &environment };
        let skips = options.skip_signature.or(environment.skip_signature);
        // The library would look for credentials by itself.
        let has_none = is_own && !options.is_signed();
        let is_anonymous = has_none || skips.unwrap_or(!signing.is_signed());
        let bearer = match &signing.token {
            _ if is_anonymous => Some(String::new()),
            token => token.clone(),
        };
        let endpoint = options.endpoint.as_ref().or(environment.endpoint.as_ref());
        if let Some(url) = endpoint {
            b = b.with_base_url(url.trim_end_matches('/'));
        } else if is_own {
            // The key of a service account may name another server.
            b = b.with_base_url(GOOGLE);
        }
        if let Some(bearer) = bearer {
            let credential = StaticCredentialProvider::new(GcpCredential { bearer });
            b = b.with_credentials(Arc::new(credential)).with_skip_signature(is_anonymous);
        } else if let Some(key) = &signing.service_account_key {
            b = b.with_service_account_key(key);
        } else if let Some(path) = &signing.service_account_path {
            b = match is_service_account(path) {
                true => b.with_service_account_path(path),
                false => b.with_application_credentials(path),
            };
        }
        let allow_http = options.allow_http.or(environment.allow_http).unwrap_or(false);
        let store = b
            .with_http_connector(self.hops(is_fenced, true))
            .with_client_options(self.client_options().with_allow_http(allow_http))
            .with_retry(self.retry())
            .build()?;
        Ok(Arc::new(store))
    }
}

/// True for the file of a service account's key; false for other credentials, and for unreadable files.
fn is_service_account(path: &str) -> bool {
    let file = crate::disk::wait(|| std::fs::read(path)).unwrap_or_default();
    let document: serde_json::Value = serde_json::from_slice(&file).unwrap_or_default();
    let kind = document.get("type").and_then(|kind| kind.as_str());
    kind == Some("service_account") || kind.is_none() && document.get("client_email").is_some()
}
