//! Buckets, containers and servers, as URLs name them.

use crate::source::clouds::is_account;

/// The holder of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Root {
    S3 {
        bucket: String,
    },
    Gcs {
        bucket: String,
    },
    Azure {
        /// The storage account; `None` for the one of the options or the environment.
        account: Option<String>,
        container: String,
    },
    /// `origin` is scheme, host and port; the query of the URL is dropped.
    Http {
        origin: String,
    },
    Memory,
}

/// Hosts of Azure's storage accounts, after the account.
const AZURE_HOSTS: [&str; 2] = ["dfs.core.windows.net", "blob.core.windows.net"];

impl Root {
    /// The scheme of its URLs.
    pub(crate) fn scheme(&self) -> &str {
        match self {
            Root::S3 { .. } => "s3",
            Root::Gcs { .. } => "gs",
            Root::Azure { .. } => "az",
            Root::Http { origin } => origin.split_once("://").map_or("http", |(scheme, _)| scheme),
            Root::Memory => "memory",
        }
    }

    /// The URL of an object is this, a slash, and its key.
    pub(crate) fn url(&self) -> String {
        match self {
            Root::S3 { bucket } => format!("s3://{bucket}"),
            Root::Gcs { bucket } => format!("gs://{bucket}"),
            Root::Azure { account: None, container } => format!("az://{container}"),
            Root::Azure { account: Some(account), container } => {
                format!("abfss://{container}@{account}.{}", AZURE_HOSTS[0])
            }
            Root::Http { origin } => origin.clone(),
            Root::Memory => "memory:/".into(),
        }
    }

    /// The name of the bucket or container.
    pub(crate) fn name(&self) -> &str {
        match self {
            Root::S3 { bucket } | Root::Gcs { bucket } => bucket,
            Root::Azure { container, .. } => container,
            Root::Http { .. } | Root::Memory => "",
        }
    }

    /// The same container, of `account` unless it names another one.
    pub(crate) fn of_account(&self, of: Option<&str>) -> Root {
        match self {
            Root::Azure { account: None, container } => {
                Root::Azure { account: of.map(String::from), container: container.clone() }
            }
            other => other.clone(),
        }
    }

    /// Parses the part of a URL between its scheme and its path.
    pub(super) fn parse(scheme: &str, authority: &str) -> Result<Root, String> {
        let name = authority.to_string();
        if name.is_empty() && scheme != "memory" {
            return Err("it names no bucket".into());
        }
        match scheme {
            "memory" => Ok(Root::Memory),
            "az" | "abfs" | "abfss" => azure(authority),
            _ if name.contains('@') => Err("credentials do not belong into the URL".into()),
            // The bucket becomes a part of a path, so that `..` would lead out of it.
            "gs" if !is_name(&name, "-_.") || name.starts_with('.') => {
                Err("a bucket's name has letters, digits, `-`, `_` and `.` only".into())
            }
            "gs" => Ok(Root::Gcs { bucket: name }),
            _ => Ok(Root::S3 { bucket: name }),
        }
    }
}

/// Parses `container` or `container@account.dfs.core.windows.net`.
fn azure(authority: &str) -> Result<Root, String> {
    let (container, host) = match authority.split_once('@') {
        Some((container, host)) => (container, Some(host)),
        None => (authority, None),
    };
    if !is_name(container.strip_prefix('$').unwrap_or(container), "-") {
        return Err("a container's name has letters, digits and `-` only; the URL is \
                    az://container/path or abfss://container@account.dfs.core.windows.net/path"
            .into());
    }
    let account = host.map(|host| {
        let (account, rest) = host.split_once('.').unwrap_or((host, ""));
        match is_account(account) && AZURE_HOSTS.contains(&rest.to_ascii_lowercase().as_str()) {
            true => Ok(account.to_string()),
            false => {
                Err("the host of a container is account.dfs.core.windows.net; another one is \
                          the option azure.endpoint"
                    .to_string())
            }
        }
    });
    Ok(Root::Azure { account: account.transpose()?, container: container.to_string() })
}

fn is_name(name: &str, besides: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || besides.contains(c))
}
