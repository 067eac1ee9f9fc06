//! A web server with files in memory.

use super::objects::{self, Object};
use super::{Asked, Server, refusal, text};
use axum::body::{Body, Bytes};
use axum::http::{Method, Response};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How a server behaves.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manners {
    /// The server sends whole files only.
    pub(crate) no_ranges: bool,
    /// The server sends neither etags nor times.
    pub(crate) no_versions: bool,
    /// The server does not send the length of files.
    pub(crate) no_lengths: bool,
}

/// A read-only server.
pub(crate) struct Web {
    pub(crate) server: Server,
    files: Arc<Mutex<BTreeMap<String, Object>>>,
    /// The certificate of the authority that signed the server's, as PEM.
    pub(crate) authority: Option<String>,
}

impl Web {
    pub(crate) fn start(manners: Manners) -> Web {
        Web::serve(manners, None, None)
    }

    /// Starts a server with HTTPS, and a certificate of an unknown authority.
    pub(crate) fn start_tls(manners: Manners) -> Web {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = authority.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(authority, key);
        let own = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_string(), "localhost".to_string()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&own, &issuer).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(own.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Web::serve(manners, Some(TlsAcceptor::from(Arc::new(config))), Some(root))
    }

    fn serve(manners: Manners, tls: Option<TlsAcceptor>, authority: Option<String>) -> Web {
        let files = Arc::new(Mutex::new(BTreeMap::new()));
        let shared: Arc<Mutex<BTreeMap<String, Object>>> = files.clone();
        let server =
            Server::start(tls, move |asked| answer(&shared.lock().unwrap(), asked, manners));
        Web { server, files, authority }
    }

    pub(crate) fn url(&self, key: &str) -> String {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/{key}", self.server.address)
    }

    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let mut files = self.files.lock().unwrap();
        let number = files.get(key).map_or(1, |file| file.number + 1);
        let bytes = Bytes::copy_from_slice(bytes);
        let tag = format!("{:x}-{number}", objects::digest(&bytes));
        let modified = SystemTime::now() - objects::LONG;
        let object = Object { bytes, tag, number, modified, metadata: Vec::new() };
        files.insert(key.to_string(), object);
    }
}

fn answer(files: &BTreeMap<String, Object>, asked: &Asked, how: Manners) -> Response<Body> {
    if ![Method::GET, Method::HEAD].contains(&asked.method) {
        return refusal(asked, 405, "", "");
    }
    let Some(file) = files.get(&text::percent(&asked.path[1..])) else {
        return refusal(asked, 404, "", "");
    };
    let whole = Asked {
        method: asked.method.clone(),
        path: asked.path.clone(),
        query: Vec::new(),
        headers: {
            let mut headers = asked.headers.clone();
            if how.no_ranges {
                headers.remove("range");
            }
            headers
        },
        body: Bytes::new(),
    };
    let read = objects::read(&whole, file, true, |answer| answer);
    let mut read = read.unwrap_or_else(|(status, _)| refusal(asked, status, "", ""));
    if how.no_versions {
        read.headers_mut().remove("etag");
        read.headers_mut().remove("last-modified");
    }
    if how.no_lengths {
        read.headers_mut().remove("content-length");
        let body = std::mem::take(read.body_mut());
        *read.body_mut() = Body::from_stream(body.into_data_stream());
    }
    read
}
