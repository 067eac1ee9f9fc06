//! Google Cloud Storage, as far as its XML API is used.
//!
//! # Source
//! <https://cloud.google.com/storage/docs/xml-api/reference-methods>; signed requests of service accounts:
//! <https://google.aip.dev/auth/4111>.

use super::objects::{self, Bucket, Object};
use super::{Asked, Server, empty, refusal, text};
use axum::body::{Body, Bytes};
use axum::http::{Method, Response, StatusCode};
use ring::signature::{KeyPair, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

/// A token that the server accepts.
pub(crate) const TOKEN: &str = "ya29.the-token-of-the-test";
/// The key of an account that the server knows.
pub(crate) const ACCOUNT: &str = include_str!("service_account.json");

/// A server with the empty bucket `bkt`.
pub(crate) struct Gcs {
    pub(crate) server: Server,
    buckets: Arc<Mutex<BTreeMap<String, Bucket>>>,
}

impl Gcs {
    pub(crate) fn start() -> Gcs {
        let buckets = BTreeMap::from([("bkt".to_string(), Bucket::default())]);
        let buckets = Arc::new(Mutex::new(buckets));
        let shared = buckets.clone();
        let server = Server::start(None, move |asked| answer(&mut shared.lock().unwrap(), asked));
        Gcs { server, buckets }
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address)
    }

    /// Variables for this server.
    pub(crate) fn environment(&self, token: Option<&str>) -> Vec<(String, String)> {
        let mut out = vec![
            ("GOOGLE_BASE_URL".to_string(), self.endpoint()),
            ("GOOGLE_ALLOW_HTTP".into(), "true".into()),
        ];
        out.extend(token.map(|token| ("CLOUDSDK_AUTH_ACCESS_TOKEN".into(), token.into())));
        out
    }

    pub(crate) fn buckets(&self) -> MutexGuard<'_, BTreeMap<String, Bucket>> {
        self.buckets.lock().unwrap()
    }

    /// Puts an object as another client.
    pub(crate) fn put(&self, key: &str, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.buckets().get_mut("bkt").unwrap().put(key, bytes, Vec::new(), tag);
    }
}

/// The etag of an object is a hash of its bytes: an object that is written again has the same.
fn tag(_: u64, bytes: &[u8]) -> String {
    format!("{:032x}", objects::digest(bytes))
}

fn answer(buckets: &mut BTreeMap<String, Bucket>, asked: &Asked) -> Response<Body> {
    let (bucket, key) = asked.path[1..].split_once('/').unwrap_or((&asked.path[1..], ""));
    let (name, key) = (text::percent(bucket), text::percent(key));
    let reads = [Method::GET, Method::HEAD].contains(&asked.method);
    let is_public = buckets.get(&name).is_some_and(|bucket| bucket.is_public);
    match asked.headers.get("authorization").map(|value| value.to_str().unwrap()) {
        None if reads && is_public => {}
        None => return refusal(asked, 403, "AccessDenied", "Anonymous caller"),
        Some(value) if is_known(value) => {}
        Some(value) => return refusal(asked, 401, "AuthenticationRequired", value),
    }
    let Some(bucket) = buckets.get_mut(&name) else {
        return refusal(asked, 404, "NoSuchBucket", &name);
    };
    let is = |name: &str| asked.parameter(name).is_some();
    match (&asked.method, key.as_str()) {
        (&Method::GET, "") if asked.parameter("list-type") == Some("2") => list(bucket, asked),
        (_, "") => refusal(asked, 400, "InvalidArgument", "no object"),
        (&Method::GET | &Method::HEAD, _) => match bucket.objects.get(&key) {
            None => refusal(asked, 404, "NoSuchKey", &key),
            Some(object) => {
                let read = objects::read(asked, object, true, |answer| {
                    answer.header("x-goog-generation", object.number)
                });
                read.unwrap_or_else(|(status, code)| match status {
                    412 => refusal(asked, 412, "PreconditionFailed", &key),
                    _ => refusal(asked, status, code, &key),
                })
            }
        },
        (&Method::POST, _) if is("uploads") => {
            let id = bucket.next().to_string();
            let metadata = objects::metadata(asked, "x-goog-meta-");
            bucket.uploads.insert(id.clone(), (BTreeMap::new(), metadata));
            xml(format!(
                "<InitiateMultipartUploadResult><Bucket>{name}</Bucket><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>"
            ))
        }
        (&Method::PUT | &Method::POST | &Method::DELETE, _) if is("uploadId") => {
            upload(bucket, &key, asked)
        }
        (&Method::PUT, _) => put(bucket, &name, &key, asked),
        (&Method::DELETE, _) => match bucket.objects.remove(&key) {
            Some(_) => empty(StatusCode::NO_CONTENT),
            None => refusal(asked, 404, "NoSuchKey", &key),
        },
        _ => refusal(asked, 405, "MethodNotAllowed", &key),
    }
}

fn xml(text: String) -> Response<Body> {
    let text = format!("<?xml version='1.0' encoding='UTF-8'?>{text}");
    Response::builder().header("content-type", "application/xml").body(text.into()).unwrap()
}

fn put(bucket: &mut Bucket, name: &str, key: &str, asked: &Asked) -> Response<Body> {
    let now = bucket.objects.get(key).map_or(0, |object| object.number);
    let wanted = asked.header("x-goog-if-generation-match");
    if !wanted.is_empty() && wanted != now.to_string() {
        return refusal(asked, 412, "PreconditionFailed", "generation");
    }
    let from = asked.header("x-goog-copy-source");
    if from.is_empty() {
        let metadata = objects::metadata(asked, "x-goog-meta-");
        return written(&bucket.put(key, asked.body.clone(), metadata, tag));
    }
    let from = text::percent(from);
    let from = from.trim_start_matches('/').strip_prefix(name).unwrap().trim_start_matches('/');
    let Some(Object { bytes, metadata, .. }) = bucket.objects.get(from).cloned() else {
        return refusal(asked, 404, "NoSuchKey", from);
    };
    let copy = bucket.put(key, bytes, metadata, tag);
    xml(format!("<CopyObjectResult><ETag>\"{}\"</ETag></CopyObjectResult>", copy.tag))
}

fn written(object: &Object) -> Response<Body> {
    Response::builder()
        .header("etag", format!("\"{}\"", object.tag))
        .header("x-goog-generation", object.number)
        .body(Body::empty())
        .unwrap()
}

fn upload(bucket: &mut Bucket, key: &str, asked: &Asked) -> Response<Body> {
    let id = asked.parameter("uploadId").unwrap().to_string();
    let Some((parts, metadata)) = bucket.uploads.get_mut(&id) else {
        return refusal(asked, 404, "NoSuchUpload", key);
    };
    if asked.method == Method::DELETE {
        bucket.uploads.remove(&id);
        return empty(StatusCode::NO_CONTENT);
    }
    if asked.method == Method::PUT {
        let number: u32 = asked.parameter("partNumber").unwrap().parse().unwrap();
        parts.insert(format!("{number:05}"), asked.body.clone());
        let tag = format!("\"{:032x}\"", objects::digest(&asked.body));
        return Response::builder().header("etag", tag).body(Body::empty()).unwrap();
    }
    let document = std::str::from_utf8(&asked.body).unwrap();
    let numbers = text::elements(document, "PartNumber");
    let tags = text::elements(document, "ETag");
    let mut bytes = Vec::new();
    let last = numbers.len().saturating_sub(1);
    for (n, (number, tag)) in numbers.iter().zip(&tags).enumerate() {
        let part = parts.get(&format!("{:05}", number.parse::<u32>().unwrap()));
        match part {
            Some(part) if *tag == format!("\"{:032x}\"", objects::digest(part)) => {
                if n < last && part.len() < 5 << 20 {
                    return refusal(asked, 400, "EntityTooSmall", number);
                }
                bytes.extend_from_slice(part);
            }
            _ => return refusal(asked, 400, "InvalidPart", number),
        }
    }
    let metadata = metadata.clone();
    bucket.uploads.remove(&id);
    let object =
        bucket.put(key, bytes.into(), metadata, |number, _| format!("{number}-{}", last + 1));
    let text = format!(
        "<CompleteMultipartUploadResult><ETag>&quot;{}&quot;</ETag></CompleteMultipartUploadResult>",
        object.tag
    );
    let mut answer = xml(text);
    answer.headers_mut().insert("x-goog-generation", object.number.into());
    answer
}

fn list(bucket: &Bucket, asked: &Asked) -> Response<Body> {
    let after = asked.parameter("continuation-token").or(asked.parameter("start-after"));
    let listing = bucket.list(asked, after.unwrap_or_default());
    let mut out = String::from("<ListBucketResult>");
    for (key, object) in listing.objects {
        out += &format!(
            "<Contents><Key>{}</Key><Size>{}</Size><LastModified>{}</LastModified>\
             <ETag>\"{}\"</ETag></Contents>",
            text::escaped(key),
            object.bytes.len(),
            text::iso_date(object.modified),
            object.tag
        );
    }
    for prefix in listing.prefixes {
        let prefix = text::escaped(prefix);
        out += &format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
    }
    if let Some(next) = listing.next {
        let next = text::escaped(&next);
        out += &format!("<NextContinuationToken>{next}</NextContinuationToken>");
    }
    xml(out + "</ListBucketResult>")
}

/// True for the token, and for a token that the account has signed itself.
fn is_known(authorization: &str) -> bool {
    let Some(bearer) = authorization.strip_prefix("Bearer ") else { return false };
    bearer == TOKEN || is_signed(bearer).unwrap_or(false)
}

fn is_signed(bearer: &str) -> Option<bool> {
    let (message, signature) = bearer.rsplit_once('.')?;
    let (header, claims) = message.split_once('.')?;
    let document =
        |part: &str| serde_json::from_slice::<serde_json::Value>(&text::of_base64(part)?).ok();
    let (header, claims) = (document(header)?, document(claims)?);
    let account: serde_json::Value = serde_json::from_str(ACCOUNT).unwrap();
    let key = PrivateKeyDer::from_pem_slice(account["private_key"].as_str()?.as_bytes()).unwrap();
    let pair = RsaKeyPair::from_pkcs8(key.secret_der()).unwrap();
    let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public_key().as_ref());
    let is_right = public.verify(message.as_bytes(), &text::of_base64(signature)?).is_ok();
    Some(
        is_right
            && header["alg"] == "RS256"
            && header["kid"] == account["private_key_id"]
            && claims["iss"] == account["client_email"]
            && claims["exp"].as_u64()? - claims["iat"].as_u64()? <= 3600,
    )
}
