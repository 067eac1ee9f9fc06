//! Clients of Azure Blob Storage.

use super::clients::Stores;
use crate::source::clouds::{AzureOptions, Environment, first};
use object_store::ObjectStore;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use std::sync::Arc;

/// Variables of ways to sign requests that no option has: identities of workloads and machines, and `az login`.
const IDENTITIES: [(&str, AzureConfigKey); 9] = [
    ("AZURE_AUTHORITY_HOST", AzureConfigKey::AuthorityHost),
    ("AZURE_FEDERATED_TOKEN_FILE", AzureConfigKey::FederatedTokenFile),
    ("AZURE_USE_AZURE_CLI", AzureConfigKey::UseAzureCli),
    ("AZURE_MSI_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ("AZURE_IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ("IDENTITY_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ("MSI_ENDPOINT", AzureConfigKey::MsiEndpoint),
    ("AZURE_OBJECT_ID", AzureConfigKey::ObjectId),
    ("AZURE_MSI_RESOURCE_ID", AzureConfigKey::MsiResourceId),
];

/// True if the environment has an identity to sign requests with.
fn has_identity(of: &Environment) -> bool {
    let ways = IDENTITIES.iter().skip(1).take(6).map(|(name, _)| *name);
    first(of, &ways.collect::<Vec<_>>()).is_some()
}

impl Stores {
    /// The client of a container. Credentials of the environment go only where the environment says, not to an endpoint
    /// of a statement's options, and those of an account to that account only. Without credentials requests are
    /// anonymous; the metadata service of a machine in the cloud is asked for some if `skip_signature` is false.
    pub(super) fn azure(
        &self,
        account: &str,
        container: &str,
        options: &AzureOptions,
        is_fenced: bool,
    ) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut environment = self.shared.azure.clone();
        if environment.account.as_deref().is_some_and(|known| known != account) {
            let (of_account, others) = (AzureOptions::default(), environment);
            environment = AzureOptions {
                token: others.token,
                client_id: others.client_id,
                client_secret: others.client_secret,
                tenant_id: others.tenant_id,
                skip_signature: others.skip_signature,
                allow_http: others.allow_http,
                ..of_account
            };
        }
        let is_own = options.is_signed() || options.endpoint.is_some();
        let signing = if is_own { options } else { &environment };
        let has_identity = !is_own && has_identity(&self.shared.environment);
        let skips = options.skip_signature.or(environment.skip_signature);
        // The library would look for an identity by itself.
        let has_none = is_own && !options.is_signed();
        let is_anonymous = has_none || skips.unwrap_or(!signing.is_signed() && !has_identity);
        let mut b = MicrosoftAzureBuilder::new()
            .with_account(account)
            .with_container_name(container)
            .with_skip_signature(is_anonymous);
        if let Some(url) = options.endpoint.as_ref().or(environment.endpoint.as_ref()) {
            b = b.with_endpoint(url.trim_end_matches('/').to_string());
        }
        if !is_anonymous {
            for (key, value) in [
                (AzureConfigKey::AccessKey, &signing.account_key),
                (AzureConfigKey::SasKey, &signing.sas_token),
                (AzureConfigKey::Token, &signing.token),
                (AzureConfigKey::ClientId, &signing.client_id),
                (AzureConfigKey::ClientSecret, &signing.client_secret),
                (AzureConfigKey::AuthorityId, &signing.tenant_id),
            ] {
                if let Some(value) = value {
                    b = b.with_config(key, value);
                }
            }
            for (name, key) in IDENTITIES.iter().filter(|_| !is_own) {
                if let Some(value) = first(&self.shared.environment, &[name]) {
                    b = b.with_config(*key, value);
                }
            }
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
