//! The secret that all parties of a cluster share, and their certificates.

use super::{Fault, PROTOCOL, PROTOCOL_HEADER};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};
use tonic::{Request, Status};

/// Lower bound on the length of the secret.
const SECRET_BYTES_MIN: usize = 16;
/// Upper bound on the size of the file of the secret.
const SECRET_BYTES_MAX: u64 = 4096;

/// Paths of the secret and the certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// File of the secret.
    pub secret: PathBuf,
    /// PEM file of this party's certificate.
    pub certificate: Option<PathBuf>,
    /// PEM file of its key.
    pub key: Option<PathBuf>,
    /// PEM file of the authority that signed the certificates of all parties.
    pub authority: Option<PathBuf>,
}

/// Credentials that a party sends, and requires from others.
#[derive(Clone)]
pub struct Credentials {
    /// `Bearer …`: a hash of the secret, so that the secret itself is not sent.
    bearer: Arc<str>,
    tls: Option<Arc<Tls>>,
}

struct Tls {
    identity: Identity,
    authority: Certificate,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads secret and certificates.
    ///
    /// # Errors
    /// [`Fault::Denied`]: an unreadable file; a secret of fewer than 16 bytes, or readable by others than its owner and
    /// its group; some of the three files of TLS without the others.
    pub fn load(security: &Security) -> Result<Self, Fault> {
        let secret = read_secret(&security.secret)?;
        let pem = |path: &Path| {
            std::fs::read(path)
                .map_err(|e| Fault::Denied(format!("cannot read `{}`: {e}", path.display())))
        };
        let tls = match (&security.certificate, &security.key, &security.authority) {
            (None, None, None) => None,
            (Some(certificate), Some(key), Some(authority)) => Some(Arc::new(Tls {
                identity: Identity::from_pem(pem(certificate)?, pem(key)?),
                authority: Certificate::from_pem(pem(authority)?),
            })),
            _ => {
                return Err(Fault::Denied(
                    "TLS takes three files: `cluster-certificate`, `cluster-key` and \
                     `cluster-authority`"
                        .into(),
                ));
            }
        };
        Ok(Credentials { bearer: bearer(&secret), tls })
    }

    /// Creates a file with a secret if it does not exist. Two parties that try concurrently end with the same secret.
    ///
    /// # Errors
    /// [`Fault::Denied`] if the file cannot be created.
    pub fn make(path: &Path) -> Result<(), Fault> {
        let failed = |e: std::io::Error| {
            Fault::Denied(format!("cannot make the secret `{}`: {e}", path.display()))
        };
        if path.exists() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        let (a, b) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        // The file appears atomically: another process reads it as soon as it has its name.
        let made = path.with_extension(format!("{}", uuid::Uuid::new_v4().simple()));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let written =
            options.open(&made).and_then(|mut file| writeln!(file, "{}{}", a.simple(), b.simple()));
        let linked = written.and_then(|()| match std::fs::hard_link(&made, path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        });
        let removed = std::fs::remove_file(&made);
        linked.and(removed).map_err(failed)
    }

    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn server(&self) -> Option<ServerTlsConfig> {
        let tls = self.tls.as_ref()?;
        let config = ServerTlsConfig::new().identity(tls.identity.clone());
        Some(config.client_ca_root(tls.authority.clone()))
    }

    pub(super) fn client(&self) -> Option<ClientTlsConfig> {
        let tls = self.tls.as_ref()?;
        let config = ClientTlsConfig::new().identity(tls.identity.clone());
        Some(config.ca_certificate(tls.authority.clone()))
    }

    /// Adds the credentials to a request.
    pub(super) fn show<T>(&self, request: &mut Request<T>) -> Result<(), Fault> {
        let value = MetadataValue::try_from(&*self.bearer)
            .map_err(|e| Fault::Broken(format!("the secret is not a header: {e}")))?;
        request.metadata_mut().insert("authorization", value);
        request.metadata_mut().insert(PROTOCOL_HEADER, MetadataValue::from(PROTOCOL));
        Ok(())
    }

    /// Checks the credentials of a request.
    pub(super) fn check(&self, request: Request<()>) -> Result<Request<()>, Status> {
        let shown = request.metadata().get("authorization").map(MetadataValue::as_bytes);
        if !shown.is_some_and(|s| is_same(s, self.bearer.as_bytes())) {
            let what = "the secret is not that of this cluster (`cluster-secret-file`)";
            return Err(Fault::Denied(what.into()).into());
        }
        match request.metadata().contains_key(PROTOCOL_HEADER) {
            // Any client of Flight that has the secret may read.
            false => Ok(request),
            true => Credentials::requires_protocol(&request).map(|()| request),
        }
    }

    /// Checks that a request is of this version of the protocol.
    pub(super) fn requires_protocol<T>(request: &Request<T>) -> Result<(), Status> {
        let version = request.metadata().get(PROTOCOL_HEADER).and_then(|v| v.to_str().ok());
        if version.and_then(|v| v.parse().ok()) == Some(PROTOCOL) {
            return Ok(());
        }
        let version = version.unwrap_or("none");
        let what = format!(
            "versions do not go together: this party has cluster protocol {PROTOCOL}, the other one {version}; {}",
            crate::wire::GO_TOGETHER
        );
        Err(Fault::Broken(what).into())
    }
}

fn bearer(secret: &str) -> Arc<str> {
    let digest = Sha256::digest(format!("tessera cluster {secret}"));
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("Bearer {hex}").into()
}

/// Constant-time comparison.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y)) == 0
}

fn read_secret(path: &Path) -> Result<String, Fault> {
    let failed = |reason: String| {
        Fault::Denied(format!("the cluster's secret `{}` {reason}", path.display()))
    };
    let file = File::open(path).map_err(|e| failed(format!("cannot be read: {e}")))?;
    #[cfg(unix)]
    {
        let meta = file.metadata().map_err(|e| failed(format!("cannot be read: {e}")))?;
        let mode = std::os::unix::fs::MetadataExt::mode(&meta);
        if mode & 0o027 != 0 {
            return Err(failed(format!(
                "can be read by others (mode {:o}): `chmod 600` it",
                mode & 0o777
            )));
        }
    }
    let mut text = String::new();
    file.take(SECRET_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|e| failed(format!("cannot be read: {e}")))?;
    let secret = text.trim();
    if secret.len() < SECRET_BYTES_MIN {
        let n = secret.len();
        return Err(failed(format!("has {n} bytes, and at least {SECRET_BYTES_MIN} are wanted")));
    }
    Ok(secret.into())
}
