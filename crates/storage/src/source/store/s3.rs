//! Clients of S3, and of stores with its protocol.

use super::clients::Stores;
use crate::source::clouds::first;
use crate::source::location::Options;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::sync::Arc;

impl Stores {
    pub(super) fn s3(
        &self,
        bucket: &str,
        o: &Options,
        is_fenced: bool,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut b = AmazonS3Builder::new();
        let own = self.shared.environment.iter().filter(|(name, _)| name.starts_with("AWS_"));
        for (name, value) in own {
            // Variables unknown to object_store are for other programs.
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                b = b.with_config(key, value);
            }
        }
        let env = |name: &str| first(&self.shared.environment, &[name]);
        if let Some(v) = &o.region {
            b = b.with_region(v);
        } else if env("AWS_REGION").is_none() && env("AWS_DEFAULT_REGION").is_none() {
            b = b.with_region("us-east-1");
        }
        let endpoint = o.endpoint.as_ref().or_else(|| {
            let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
            first(&self.shared.environment, &names)
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
        let credentials = [
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        let known =
            o.access_key_id.is_some() || first(&self.shared.environment, &credentials).is_some();
        let skip = o.skip_signature.or_else(|| {
            env("AWS_SKIP_SIGNATURE").map(|v| v.eq_ignore_ascii_case("true") || v == "1")
        });
        b = b.with_skip_signature(skip.unwrap_or(!known));
        b = b.with_http_connector(self.hops(is_fenced, true).of_s3());
        let store = b
            .with_bucket_name(bucket)
            .with_client_options(self.client_options().with_allow_http(allow_http))
            .with_allow_http(allow_http)
            .with_retry(self.retry())
            .build()?;
        Ok(Arc::new(store))
    }
}
