//! Redirects: a fenced client checks the rules before it follows one.

use super::clients::Stores;
use super::region::Regional;
use crate::source::fence::Fence;
use object_store::client::{HttpClient, HttpConnector};
use object_store::{ClientConfigKey, ClientOptions};
use reqwest::redirect::Policy;
use std::sync::Arc;
use std::time::Duration;

/// Upper bound on redirects, as many as browsers follow.
const HOPS_MAX: usize = 10;

/// Makes clients that check the rules before they follow a redirect.
#[derive(Debug)]
pub(super) struct Hops {
    /// `None` for no checks.
    fence: Option<Arc<Fence>>,
    is_s3: bool,
    /// True if the server of the first request may redirect to itself.
    home: bool,
    timeout: Duration,
    connect_timeout: Duration,
}

impl Hops {
    /// The same, for buckets of S3.
    pub(super) fn of_s3(self) -> Hops {
        Hops { is_s3: true, ..self }
    }
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
        Ok(if self.is_s3 { HttpClient::new(Regional(client)) } else { HttpClient::new(client) })
    }
}

impl Stores {
    /// The connector of a client; `home` allows redirects of a server to itself.
    pub(super) fn hops(&self, is_fenced: bool, home: bool) -> Hops {
        Hops {
            fence: is_fenced.then(|| self.fence.clone()),
            is_s3: false,
            home,
            timeout: self.shared.timeout / 2,
            connect_timeout: self.connect_timeout(),
        }
    }
}
