//! HTTPS: certificates that are reloaded when their files change.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use tessera_engine::error::Error;
use tessera_storage::lock;

/// Interval between checks of the files, while clients connect.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Identifies versions of the two files.
type Stamps = [Option<(SystemTime, u64)>; 2];

pub(super) struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    now: Mutex<Now>,
}

struct Now {
    config: Arc<ServerConfig>,
    /// The versions that were read last, even if they were unusable.
    stamps: Stamps,
    looked: Instant,
}

impl Certificates {
    /// Reads both files.
    ///
    /// # Errors
    /// A file is missing or not PEM, or the key does not match the certificate.
    pub(super) fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let stamps = stamps(certificate, key);
        let config = read(certificate, key).map_err(|reason| Error::Config {
            key: "certificate".into(),
            origin: "the configuration".into(),
            reason,
            hint: Some(
                "`certificate` is a PEM file of the server's chain, `key` one of its key".into(),
            ),
        })?;
        let now = Mutex::new(Now { config, stamps, looked: Instant::now() });
        Ok(Certificates { certificate: certificate.into(), key: key.into(), now })
    }

    /// The configuration for a new connection. Changed files that are unusable leave the old one in place.
    pub(super) fn current(&self) -> Arc<ServerConfig> {
        let mut now = lock(&self.now);
        if now.looked.elapsed() < LOOK_EVERY {
            return now.config.clone();
        }
        now.looked = Instant::now();
        let stamps = stamps(&self.certificate, &self.key);
        if stamps != now.stamps {
            match read(&self.certificate, &self.key) {
                Ok(config) => {
                    tracing::info!("the certificates were read again");
                    now.config = config;
                }
                // Perhaps only one of the files was replaced yet: the other one will trigger a reload.
                Err(e) => tracing::warn!("the changed certificates cannot be used: {e}"),
            }
            now.stamps = stamps;
        }
        now.config.clone()
    }
}

fn stamps(certificate: &Path, key: &Path) -> Stamps {
    [certificate, key].map(|path| {
        let meta = std::fs::metadata(path).ok()?;
        Some((meta.modified().ok()?, meta.len()))
    })
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let cannot =
        |path: &Path, e: &dyn std::fmt::Display| format!("cannot read `{}`: {e}", path.display());
    let text = |path: &Path| std::fs::read(path).map_err(|e: io::Error| cannot(path, &e));
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text(certificate)?)
        .collect::<Result<_, _>>()
        .map_err(|e| cannot(certificate, &e))?;
    if chain.is_empty() {
        return Err(format!("no certificate found in `{}`", certificate.display()));
    }
    let secret = PrivateKeyDer::from_pem_slice(&text(key)?).map_err(|e| cannot(key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| format!("the certificate and the key do not go together: {e}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
