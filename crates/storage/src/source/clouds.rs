//! Options of Google Cloud Storage (`gcs.…`) and of Azure Blob Storage (`azure.…`): of a statement, or of the
//! process's environment.

use crate::source::location::truth;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Variables of a process, by name.
pub(crate) type Environment = BTreeMap<String, String>;

/// Returns the first of the variables that is set.
pub(crate) fn first<'e>(environment: &'e Environment, names: &[&str]) -> Option<&'e String> {
    names.iter().find_map(|name| environment.get(*name).filter(|value| !value.is_empty()))
}

fn first_truth(environment: &Environment, name: &str) -> Option<bool> {
    first(environment, &[name]).map(|value| truth(value).unwrap_or(false))
}

/// `gcs.…`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GcsOptions {
    pub(crate) endpoint: Option<String>,
    /// The file of a service account, or of application default credentials.
    pub(crate) service_account_path: Option<String>,
    /// The contents of the file of a service account.
    pub(crate) service_account_key: Option<String>,
    pub(crate) token: Option<String>,
    pub(crate) skip_signature: Option<bool>,
    pub(crate) allow_http: Option<bool>,
}

impl GcsOptions {
    /// The names of the options, without `gcs.`.
    pub(crate) const NAMES: [&str; 6] = [
        "endpoint",
        "service_account_path",
        "service_account_key",
        "token",
        "skip_signature",
        "allow_http",
    ];

    /// Sets an option; false if its name is unknown.
    ///
    /// # Errors
    /// The reason why the value is invalid.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let text = || Some(value.to_string());
        match name {
            "endpoint" | "endpoint_url" => self.endpoint = text(),
            "service_account_path" => self.service_account_path = text(),
            "service_account_key" => self.service_account_key = text(),
            "token" => self.token = text(),
            "skip_signature" | "anonymous" => self.skip_signature = Some(truth(value)?),
            "allow_http" => self.allow_http = Some(truth(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// True if requests are signed with these options.
    pub(crate) fn is_signed(&self) -> bool {
        [&self.service_account_path, &self.service_account_key, &self.token]
            .iter()
            .any(|secret| secret.is_some())
    }

    /// Reads the variables that Google's tools and libraries take from the environment.
    ///
    /// # Source
    /// Application default credentials: <https://google.aip.dev/auth/4110>.
    pub(crate) fn of_environment(of: &Environment) -> Self {
        let text = |names: &[&str]| first(of, names).cloned();
        let emulator = text(&["STORAGE_EMULATOR_HOST"]).map(|host| match host.contains("://") {
            true => host,
            false => format!("http://{host}"),
        });
        let own = text(&["GOOGLE_BASE_URL"]);
        let allow_http = first_truth(of, "GOOGLE_ALLOW_HTTP");
        let mut found = GcsOptions {
            allow_http: allow_http
                .or_else(|| (own.is_none() && emulator.is_some()).then_some(true)),
            endpoint: own.or(emulator),
            service_account_path: text(&["GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH"]),
            service_account_key: text(&["GOOGLE_SERVICE_ACCOUNT_KEY"]),
            token: text(&["CLOUDSDK_AUTH_ACCESS_TOKEN", "GOOGLE_OAUTH_ACCESS_TOKEN"]),
            skip_signature: first_truth(of, "GOOGLE_SKIP_SIGNATURE"),
        };
        if !found.is_signed() {
            found.service_account_path =
                text(&["GOOGLE_APPLICATION_CREDENTIALS"]).or_else(|| well_known(of));
        }
        found
    }
}

/// The file to which `gcloud auth application-default login` writes, if it exists.
fn well_known(of: &Environment) -> Option<String> {
    let directory = match first(of, &["CLOUDSDK_CONFIG"]) {
        Some(directory) => directory.clone(),
        None => format!("{}/.config/gcloud", first(of, &["HOME"])?),
    };
    let path = format!("{directory}/application_default_credentials.json");
    std::path::Path::new(&path).is_file().then_some(path)
}

impl fmt::Debug for GcsOptions {
    /// Shows only whether secrets are set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcsOptions")
            .field("endpoint", &self.endpoint)
            .field("service_account_path", &self.service_account_path)
            .field("service_account_key", &self.service_account_key.is_some())
            .field("token", &self.token.is_some())
            .field("skip_signature", &self.skip_signature)
            .field("allow_http", &self.allow_http)
            .finish()
    }
}

/// `azure.…`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AzureOptions {
    pub(crate) account: Option<String>,
    pub(crate) account_key: Option<String>,
    /// A shared access signature.
    pub(crate) sas_token: Option<String>,
    pub(crate) token: Option<String>,
    /// A service principal.
    pub(crate) client_id: Option<String>,
    pub(crate) client_secret: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) endpoint: Option<String>,
    pub(crate) skip_signature: Option<bool>,
    pub(crate) allow_http: Option<bool>,
}

/// The storage emulator: its address, its account and the account's key.
///
/// # Source
/// <https://learn.microsoft.com/azure/storage/common/storage-connect-azurite>
const EMULATOR: [&str; 3] = [
    "http://127.0.0.1:10000",
    "devstoreaccount1",
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
];

/// True for a name that can be a part of a host name.
pub(crate) fn is_account(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

impl AzureOptions {
    /// The names of the options, without `azure.`.
    pub(crate) const NAMES: [&str; 11] = [
        "account",
        "account_key",
        "sas_token",
        "token",
        "client_id",
        "client_secret",
        "tenant_id",
        "connection_string",
        "endpoint",
        "skip_signature",
        "allow_http",
    ];

    /// Sets an option; false if its name is unknown.
    ///
    /// # Errors
    /// The reason why the value is invalid.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let text = || Some(value.to_string());
        match name {
            "account" | "account_name" if !is_account(value) => {
                return Err("an account has letters and digits only".into());
            }
            "account" | "account_name" => self.account = text(),
            "account_key" => self.account_key = text(),
            "sas_token" | "sas_key" => self.sas_token = text(),
            "token" => self.token = text(),
            "client_id" => self.client_id = text(),
            "client_secret" => self.client_secret = text(),
            // The tenant becomes a part of the URL of a token.
            "tenant_id" if !is_account(&value.replace('.', "-")) => {
                return Err("a tenant has letters, digits, `-` and `.` only".into());
            }
            "tenant_id" => self.tenant_id = text(),
            "connection_string" => self.connect(value)?,
            "endpoint" | "endpoint_url" => self.endpoint = text(),
            "skip_signature" | "anonymous" => self.skip_signature = Some(truth(value)?),
            "allow_http" => self.allow_http = Some(truth(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes the parts of a connection string that are not set yet.
    ///
    /// # Source
    /// <https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string>
    fn connect(&mut self, text: &str) -> Result<(), String> {
        let mut parts = BTreeMap::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            // A part may be a secret, so it is not repeated.
            let (name, value) =
                part.split_once('=').ok_or("a connection string is `Name=value;Name=value`")?;
            parts.insert(name.to_ascii_lowercase(), value.to_string());
        }
        let mut take = |name: &str| parts.remove(name).filter(|value| !value.is_empty());
        if take("usedevelopmentstorage").is_some_and(|v| v == "true") {
            self.emulate(EMULATOR[0]);
        }
        let account = take("accountname");
        if account.as_deref().is_some_and(|name| !is_account(name)) {
            return Err("an account has letters and digits only".into());
        }
        if account.is_some() && self.account.is_some() && account != self.account {
            return Err("the connection string is of another account".into());
        }
        let is_http = take("defaultendpointsprotocol").is_some_and(|p| p == "http");
        let scheme = if is_http { "http" } else { "https" };
        let suffix = take("endpointsuffix").filter(|s| is_http || s != "core.windows.net");
        let endpoint = take("blobendpoint")
            .or_else(|| Some(format!("{scheme}://{}.blob.{}", account.as_ref()?, suffix?)));
        if endpoint.as_ref().is_some_and(|url| url.starts_with("http://")) {
            self.allow_http = self.allow_http.or(Some(true));
        }
        for (own, new) in [
            (&mut self.account, account),
            (&mut self.account_key, take("accountkey")),
            (&mut self.sas_token, take("sharedaccesssignature")),
            (&mut self.endpoint, endpoint),
        ] {
            *own = own.take().or(new);
        }
        Ok(())
    }

    /// Takes values that are not set yet from the storage emulator.
    fn emulate(&mut self, at: &str) {
        let account = self.account.get_or_insert_with(|| EMULATOR[1].into());
        let endpoint = format!("{}/{account}", at.trim_end_matches('/'));
        self.endpoint.get_or_insert(endpoint);
        if account == EMULATOR[1] {
            self.account_key.get_or_insert_with(|| EMULATOR[2].into());
        }
        self.allow_http.get_or_insert(true);
    }

    /// True if requests are signed with these options.
    pub(crate) fn is_signed(&self) -> bool {
        let principal = [&self.client_id, &self.client_secret, &self.tenant_id];
        [&self.account_key, &self.sas_token, &self.token].iter().any(|secret| secret.is_some())
            || principal.iter().all(|part| part.is_some())
    }

    /// Reads the variables that Azure's tools and libraries take from the environment.
    ///
    /// # Source
    /// Names of <https://learn.microsoft.com/cli/azure/azure-cli-configuration> and of
    /// <https://learn.microsoft.com/python/api/overview/azure/identity-readme>.
    pub(crate) fn of_environment(of: &Environment) -> Self {
        let text = |names: &[&str]| first(of, names).cloned();
        let mut found = AzureOptions {
            account: text(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"]),
            account_key: text(&[
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_KEY",
            ]),
            sas_token: text(&["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"]),
            token: text(&["AZURE_STORAGE_TOKEN"]),
            client_id: text(&["AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID"]),
            client_secret: text(&["AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"]),
            tenant_id: text(&["AZURE_STORAGE_TENANT_ID", "AZURE_TENANT_ID"]),
            endpoint: text(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]),
            skip_signature: first_truth(of, "AZURE_SKIP_SIGNATURE"),
            allow_http: first_truth(of, "AZURE_ALLOW_HTTP"),
        };
        if first_truth(of, "AZURE_STORAGE_USE_EMULATOR") == Some(true) {
            found.emulate(first(of, &["AZURITE_BLOB_STORAGE_URL"]).map_or(EMULATOR[0], |url| url));
        }
        if let Some(connection) = text(&["AZURE_STORAGE_CONNECTION_STRING"])
            && let Err(reason) = found.connect(&connection)
        {
            tracing::warn!(reason, "AZURE_STORAGE_CONNECTION_STRING is not used");
        }
        found
    }
}

impl fmt::Debug for AzureOptions {
    /// Shows only whether secrets are set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AzureOptions")
            .field("account", &self.account)
            .field("account_key", &self.account_key.is_some())
            .field("sas_token", &self.sas_token.is_some())
            .field("token", &self.token.is_some())
            .field("client_id", &self.client_id)
            .field("client_secret", &self.client_secret.is_some())
            .field("tenant_id", &self.tenant_id)
            .field("endpoint", &self.endpoint)
            .field("skip_signature", &self.skip_signature)
            .field("allow_http", &self.allow_http)
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::source::Options;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    #[test]
    fn secrets_are_not_shown() {
        let secrets = [
            ("gcs.service_account_key", "S1"),
            ("gcs.token", "S2"),
            ("azure.account_key", "S3"),
            ("azure.sas_token", "S4"),
            ("azure.token", "S5"),
            ("azure.client_secret", "S6"),
        ];
        let shown = format!("{:?}", Options::parse(secrets).unwrap());
        assert!((1..=6).all(|n| !shown.contains(&format!("S{n}"))), "{shown}");
        let text = "AccountName=acct;AccountKey=S7;SharedAccessSignature=S8";
        let options = Options::parse([("azure.connection_string", text)]).unwrap();
        assert!(!format!("{options:?}").contains("S7") && !format!("{options:?}").contains("S8"));
        let e = Options::parse([("azure.connection_string", "S9")]).unwrap_err();
        assert!(e.code() == "unknown_option" && !e.to_string().contains("S9"), "{e}");
    }

    #[test]
    fn a_connection_string_has_parts() {
        let options = |text: &str| {
            let mut options = AzureOptions::default();
            options.connect(text).map(|()| options)
        };
        let usual = "DefaultEndpointsProtocol=https;AccountName=acct;AccountKey=a+b/c==;EndpointSuffix=core.windows.net";
        let of_account = AzureOptions {
            account: Some("acct".into()),
            account_key: Some("a+b/c==".into()),
            ..AzureOptions::default()
        };
        assert_eq!(options(usual).unwrap(), of_account);
        let elsewhere = options("AccountName=acct;EndpointSuffix=core.example").unwrap();
        assert_eq!(elsewhere.endpoint.as_deref(), Some("https://acct.blob.core.example"));
        let azurite = options("AccountName=a;BlobEndpoint=http://127.0.0.1:10000/a;").unwrap();
        assert_eq!(azurite.endpoint.as_deref(), Some("http://127.0.0.1:10000/a"));
        assert_eq!(azurite.allow_http, Some(true));
        let sas = options("BlobEndpoint=https://a.example/;SharedAccessSignature=sv=1&sig=x%3D");
        assert_eq!(sas.unwrap().sas_token.as_deref(), Some("sv=1&sig=x%3D"));
        let emulator = options("UseDevelopmentStorage=true").unwrap();
        assert_eq!(emulator.endpoint.unwrap(), "http://127.0.0.1:10000/devstoreaccount1");
        assert!(emulator.account.as_deref() == Some(EMULATOR[1]) && emulator.account_key.is_some());
        assert!(options("AccountName=a.evil.example/;AccountKey=x").is_err());
    }

    #[test]
    fn an_account_is_a_part_of_a_host_name() {
        for name in ["a.evil.example/", "a@b", "", "a:1", "a/b"] {
            assert!(Options::parse([("azure.account", name)]).is_err(), "{name}");
            assert!(Options::parse([("azure.tenant_id", name)]).is_err() || name.is_empty());
        }
        assert!(Options::parse([("azure.tenant_id", "contoso.onmicrosoft.com")]).is_ok());
    }

    #[test]
    fn the_environment_is_that_of_the_tools() {
        let emulator = GcsOptions::of_environment(&environment(&[(
            "STORAGE_EMULATOR_HOST",
            "localhost:4443",
        )]));
        assert_eq!(emulator.endpoint.as_deref(), Some("http://localhost:4443"));
        assert_eq!(emulator.allow_http, Some(true));
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().display().to_string();
        let of_home = [("HOME", home.as_str())];
        assert!(!GcsOptions::of_environment(&environment(&of_home)).is_signed());
        let gcloud = directory.path().join(".config/gcloud");
        std::fs::create_dir_all(&gcloud).unwrap();
        let file = gcloud.join("application_default_credentials.json");
        std::fs::write(&file, "{}").unwrap();
        let found = GcsOptions::of_environment(&environment(&of_home));
        assert_eq!(found.service_account_path, Some(file.display().to_string()));
        let azure = |account: &str| {
            AzureOptions::of_environment(&environment(&[
                ("AZURE_STORAGE_ACCOUNT", account),
                ("AZURE_STORAGE_CONNECTION_STRING", "AccountName=two;AccountKey=k"),
            ]))
        };
        assert_eq!(azure("").account.as_deref(), Some("two"));
        assert_eq!(azure("two").account_key.as_deref(), Some("k"));
        assert_eq!(
            (azure("one").account.as_deref(), azure("one").account_key),
            (Some("one"), None)
        );
    }
}
