//! Azure Blob Storage, as far as it is used.
//!
//! # Source
//! <https://learn.microsoft.com/rest/api/storageservices/blob-service-rest-api>; signatures:
//! <https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key>.

use super::objects::{self, Bucket, Object};
use super::{Asked, Server, empty, refusal, text};
use axum::body::{Body, Bytes};
use axum::http::{Method, Response, StatusCode};
use ring::hmac;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// The account, its key, and a signature for it.
pub(crate) const ACCOUNT: &str = "tesseratest";
pub(crate) const KEY: &str = "dGhlIGtleSBvZiB0aGUgYWNjb3VudCBvZiB0aGUgdGVzdA==";
pub(crate) const SAS: &str =
    "?sv=2024-05-04&ss=b&sp=rwdlc&se=2999-01-01T00%3A00%3A00Z&sig=the%2Fsig%3D";
/// A token that the server accepts.
pub(crate) const TOKEN: &str = "eyJ0.the-token-of-the-test";

/// A server with the empty container `bkt`.
pub(crate) struct Azure {
    pub(crate) server: Server,
    containers: Arc<Mutex<BTreeMap<String, Bucket>>>,
}

impl Azure {
    pub(crate) fn start() -> Azure {
        let containers = BTreeMap::from([("bkt".to_string(), Bucket::default())]);
        let containers = Arc::new(Mutex::new(containers));
        let shared = containers.clone();
        let server = Server::start(None, move |asked| answer(&mut shared.lock().unwrap(), asked));
        Azure { server, containers }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// Variables for this server.
    pub(crate) fn environment(&self, key: Option<&str>) -> Vec<(String, String)> {
        let mut out = vec![
            ("AZURE_STORAGE_ENDPOINT".to_string(), self.endpoint()),
            ("AZURE_ALLOW_HTTP".into(), "true".into()),
            ("AZURE_STORAGE_ACCOUNT_NAME".into(), ACCOUNT.into()),
        ];
        out.extend(key.map(|key| ("AZURE_STORAGE_ACCOUNT_KEY".into(), key.into())));
        out
    }

    pub(crate) fn containers(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.containers.lock().unwrap()
    }

    /// Puts a blob as another client.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.containers().get_mut("bkt").unwrap().put(key, bytes, Vec::new(), tag);
    }
}

/// The etag of a blob is another one with each write.
fn tag(number: u64, _: &[u8]) -> String {
    format!("0x{number:X}")
}

fn answer(containers: &mut BTreeMap<String, Bucket>, asked: &Asked) -> Response<Body> {
    let (container, key) = asked.path[1..].split_once('/').unwrap_or((&asked.path[1..], ""));
    let (name, key) = (text::percent(container), text::percent(key));
    let reads = [Method::GET, Method::HEAD].contains(&asked.method);
    let is_public = containers.get(&name).is_some_and(|container| container.is_public);
    match authorized(asked) {
        Ok(true) => {}
        Ok(false) if reads && is_public => {}
        Ok(false) => return refusal(asked, 409, "PublicAccessNotPermitted", ""),
        Err(details) => return refusal(asked, 403, "AuthenticationFailed", &details),
    }
    if asked.header("x-ms-version") < "2019-12-12" || asked.header("date").is_empty() {
        return refusal(asked, 400, "MissingRequiredHeader", "x-ms-version");
    }
    let Some(container) = containers.get_mut(&name) else {
        return refusal(asked, 404, "ContainerNotFound", &name);
    };
    let action = (asked.parameter("restype"), asked.parameter("comp"));
    match (&asked.method, key.as_str(), action) {
        (&Method::GET, "", (Some("container"), Some("list"))) => list(container, asked),
        (&Method::POST, "", (Some("container"), Some("batch"))) => batch(container, &name, asked),
        (_, "", _) => refusal(asked, 400, "InvalidUri", "no blob"),
        (&Method::GET | &Method::HEAD, _, (None, None)) => match container.objects.get(&key) {
            None => refusal(asked, 404, "BlobNotFound", &key),
            Some(object) => {
                let read = objects::read(asked, object, false, |answer| {
                    answer.header("x-ms-blob-type", "BlockBlob")
                });
                read.unwrap_or_else(|(status, code)| refusal(asked, status, code, &key))
            }
        },
        (&Method::PUT, _, (None, Some("block"))) => {
            let id = asked.parameter("blockid").unwrap();
            if text::of_base64(id).is_none_or(|id| id.is_empty() || id.len() > 64) {
                return refusal(asked, 400, "InvalidQueryParameterValue", "blockid");
            }
            let blocks = &mut container.uploads.entry(key).or_default().0;
            blocks.insert(id.to_string(), asked.body.clone());
            empty(StatusCode::CREATED)
        }
        (&Method::PUT, _, (None, Some("blocklist"))) => {
            put(container, &key, asked, |container| blocks(container, &key, asked))
        }
        (&Method::PUT, _, (None, None)) => {
            put(container, &key, asked, |container| whole(container, &name, asked))
        }
        _ => refusal(asked, 405, "UnsupportedHttpVerb", &key),
    }
}

/// Writes a blob if the conditions of the request hold. `bytes` returns its bytes and its metadata.
fn put(
    container: &mut Bucket,
    key: &str,
    asked: &Asked,
    bytes: impl FnOnce(&mut Bucket) -> Result<(Bytes, Option<Vec<(String, String)>>), Response<Body>>,
) -> Response<Body> {
    let now = container.objects.get(key).map(|object| format!("\"{}\"", object.tag));
    if asked.header("if-none-match") == "*" && now.is_some() {
        return refusal(asked, 409, "BlobAlreadyExists", key);
    }
    let wanted = asked.header("if-match");
    if !wanted.is_empty() && now.as_deref() != Some(wanted) {
        return refusal(asked, 412, "ConditionNotMet", key);
    }
    let own = objects::metadata(asked, "x-ms-meta-");
    // A name is an identifier of C#.
    let is_name = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !own.iter().all(|(name, _)| is_name(&name["x-ms-meta-".len()..])) {
        return refusal(asked, 400, "InvalidMetadata", key);
    }
    let (bytes, metadata) = match bytes(container) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let is_copy = !asked.header("x-ms-copy-source").is_empty();
    let object = container.put(key, bytes, metadata.unwrap_or(own), tag);
    Response::builder()
        .status(if is_copy { 202 } else { 201 })
        .header("etag", format!("\"{}\"", object.tag))
        .header("last-modified", text::http_date(object.modified))
        .header("x-ms-copy-status", "success")
        .body(Body::empty())
        .unwrap()
}

type Contents = Result<(Bytes, Option<Vec<(String, String)>>), Response<Body>>;

/// The blob of a request, or a copy.
fn whole(container: &Bucket, name: &str, asked: &Asked) -> Contents {
    let from = asked.header("x-ms-copy-source");
    if from.is_empty() {
        return match asked.header("x-ms-blob-type") {
            "BlockBlob" => Ok((asked.body.clone(), None)),
            _ => Err(refusal(asked, 400, "MissingRequiredHeader", "x-ms-blob-type")),
        };
    }
    let path = from.split_once("://").unwrap().1.split_once('/').unwrap().1;
    let path = text::percent(path.split('?').next().unwrap());
    match container.objects.get(path.strip_prefix(name).unwrap().trim_start_matches('/')) {
        Some(Object { bytes, metadata, .. }) => Ok((bytes.clone(), Some(metadata.clone()))),
        None => Err(refusal(asked, 404, "CannotVerifyCopySource", &path)),
    }
}

/// The blocks of a list.
fn blocks(container: &mut Bucket, key: &str, asked: &Asked) -> Contents {
    let (blocks, _) = container.uploads.remove(key).unwrap_or_default();
    let mut bytes = Vec::new();
    for id in text::elements(std::str::from_utf8(&asked.body).unwrap(), "Uncommitted") {
        match blocks.get(&id) {
            Some(block) => bytes.extend_from_slice(block),
            None => {
                // The list is asked for again if its answer was lost: the blocks are committed then.
                return Err(refusal(asked, 400, "InvalidBlockList", &id));
            }
        }
    }
    Ok((bytes.into(), None))
}

/// Removes blobs: one request in each part of the body.
fn batch(container: &mut Bucket, name: &str, asked: &Asked) -> Response<Body> {
    let kind = asked.header("content-type");
    let boundary = kind.strip_prefix("multipart/mixed; boundary=").unwrap();
    let body = std::str::from_utf8(&asked.body).unwrap();
    let mut out = String::new();
    for part in body.split(&format!("--{boundary}")).filter(|part| part.contains("DELETE ")) {
        let id = part.lines().find_map(|line| line.strip_prefix("Content-ID: ")).unwrap();
        let line = part.lines().find(|line| line.starts_with("DELETE /")).unwrap();
        let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap();
        let key = text::percent(path[1..].strip_prefix(name).unwrap().trim_start_matches('/'));
        let status = match container.objects.remove(&key) {
            Some(_) => "202 Accepted\r\nx-ms-delete-type-permanent: true",
            None => "404 The specified blob does not exist.\r\nx-ms-error-code: BlobNotFound",
        };
        out += &format!(
            "--answers\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\n\
             HTTP/1.1 {status}\r\nx-ms-version: 2023-11-03\r\n\r\n"
        );
    }
    Response::builder()
        .status(202)
        .header("content-type", "multipart/mixed; boundary=answers")
        .body(Body::from(out + "--answers--\r\n"))
        .unwrap()
}

fn list(container: &Bucket, asked: &Asked) -> Response<Body> {
    let listing = container.list(asked, asked.parameter("marker").unwrap_or_default());
    let mut out = String::from(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>",
    );
    for (key, object) in listing.objects {
        out += &format!(
            "<Blob><Name>{}</Name><Properties><Last-Modified>{}</Last-Modified><Etag>{}</Etag>\
             <Content-Length>{}</Content-Length><Content-Type>application/octet-stream</Content-Type>\
             <Content-Encoding /><Content-Language /><BlobType>BlockBlob</BlobType></Properties></Blob>",
            text::escaped(key),
            text::http_date(object.modified),
            object.tag,
            object.bytes.len(),
        );
    }
    for prefix in listing.prefixes {
        out += &format!("<BlobPrefix><Name>{}</Name></BlobPrefix>", text::escaped(prefix));
    }
    let next = text::escaped(&listing.next.unwrap_or_default());
    out += &format!("</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>");
    Response::builder().header("content-type", "application/xml").body(out.into()).unwrap()
}

/// True if a request is signed, false if it is anonymous.
///
/// # Errors
/// Why its signature is wrong.
fn authorized(asked: &Asked) -> Result<bool, String> {
    if let Some(signature) = asked.parameter("sig") {
        let own = text::pairs(SAS.trim_start_matches('?'));
        return match own.iter().all(|(name, value)| asked.parameter(name) == Some(value)) {
            true => Ok(true),
            false => Err(format!("Signature did not match: {signature}")),
        };
    }
    let value = asked.header("authorization");
    if value.is_empty() {
        return Ok(false);
    }
    if let Some(token) = value.strip_prefix("Bearer ") {
        return if token == TOKEN { Ok(true) } else { Err(format!("the token {token}")) };
    }
    let signature = value.strip_prefix(&format!("SharedKey {ACCOUNT}:"));
    let signature = signature.ok_or("another account")?;
    let signed = to_sign(asked);
    let key = hmac::Key::new(hmac::HMAC_SHA256, &text::of_base64(KEY).unwrap());
    match text::base64(hmac::sign(&key, signed.as_bytes()).as_ref()) == signature {
        true => Ok(true),
        false => Err(format!("The MAC signature {signature} is not the one of {signed}")),
    }
}

/// The text that a client signs.
fn to_sign(asked: &Asked) -> String {
    let length = Some(asked.header("content-length")).filter(|n| *n != "0").unwrap_or_default();
    let mut out = format!("{}\n", asked.method);
    for name in ["content-encoding", "content-language", "", "content-md5", "content-type", "date"]
        .into_iter()
        .chain(["if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"])
    {
        out += if name.is_empty() { length } else { asked.header(name) };
        out.push('\n');
    }
    let mut own: Vec<_> =
        asked.headers.iter().filter(|(n, _)| n.as_str().starts_with("x-ms-")).collect();
    own.sort_by_key(|(name, _)| name.as_str());
    for (name, value) in own {
        out += &format!("{name}:{}\n", value.to_str().unwrap());
    }
    out += &format!("/{ACCOUNT}{}", asked.path);
    let mut query = asked.query.clone();
    query.sort();
    for (name, value) in query {
        out += &format!("\n{}:{value}", name.to_lowercase());
    }
    out
}
