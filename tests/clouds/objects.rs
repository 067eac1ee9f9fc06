//! Objects of a bucket in memory, and the parts of requests that all stores have: ranges, conditions, listings.

use super::{Asked, text};
use axum::body::{Body, Bytes};
use axum::http::response::Builder;
use axum::http::{Method, Response};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Objects of one listing.
const PAGE: usize = 5;

#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    /// Without quotes.
    pub(crate) tag: String,
    /// Grows with each write.
    pub(crate) number: u64,
    pub(crate) modified: SystemTime,
    /// Metadata of the user, with the names of their headers.
    pub(crate) metadata: Vec<(String, String)>,
}

/// The parts of an upload by their names, and its metadata.
pub(crate) type Upload = (BTreeMap<String, Bytes>, Vec<(String, String)>);

/// A bucket.
#[derive(Debug, Default)]
pub(crate) struct Bucket {
    pub(crate) objects: BTreeMap<String, Object>,
    pub(crate) uploads: BTreeMap<String, Upload>,
    /// True if everybody may read.
    pub(crate) is_public: bool,
    count: u64,
}

impl Bucket {
    /// Another number each time.
    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        1_700_000_000_000_000 + self.count
    }

    pub(crate) fn put(
        &mut self,
        key: &str,
        bytes: Bytes,
        metadata: Vec<(String, String)>,
        tag: impl FnOnce(u64, &[u8]) -> String,
    ) -> Object {
        let number = self.next();
        let tag = tag(number, &bytes);
        let modified = SystemTime::now();
        let object = Object { bytes, tag, number, modified, metadata };
        self.objects.insert(key.to_string(), object.clone());
        object
    }

    /// A page of a listing: entries after `after`. An entry is a key, or a prefix that keys have in common.
    pub(crate) fn list<'b>(&'b self, asked: &Asked, after: &'b str) -> Listing<'b> {
        let prefix = asked.parameter("prefix").unwrap_or_default();
        let delimiter = asked.parameter("delimiter").filter(|d| !d.is_empty());
        let (mut listing, mut last, mut count) = (Listing::default(), after, 0);
        for (key, object) in &self.objects {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            let common = delimiter.and_then(|d| Some(prefix.len() + rest.find(d)? + d.len()));
            let entry = &key[..common.unwrap_or(key.len())];
            if entry <= last {
                continue;
            }
            if count == PAGE {
                listing.next = Some(last.to_string());
                break;
            }
            (last, count) = (entry, count + 1);
            match common {
                Some(_) => listing.prefixes.push(entry),
                None => listing.objects.push((key, object)),
            }
        }
        listing
    }
}

#[derive(Debug, Default)]
pub(crate) struct Listing<'b> {
    pub(crate) objects: Vec<(&'b String, &'b Object)>,
    pub(crate) prefixes: Vec<&'b str>,
    pub(crate) next: Option<String>,
}

/// The answer to a GET or a HEAD of an object, or the status and the code of its refusal. Stores without suffixes
/// refuse a range that is the last bytes.
pub(crate) fn read(
    asked: &Asked,
    object: &Object,
    has_suffixes: bool,
    more: impl FnOnce(Builder) -> Builder,
) -> Result<Response<Body>, (u16, &'static str)> {
    let tag = format!("\"{}\"", object.tag);
    let wanted = asked.header("if-match");
    if !wanted.is_empty() && wanted != tag && wanted != "*" {
        return Err((412, "ConditionNotMet"));
    }
    let size = object.bytes.len() as u64;
    let range = match asked.header("range") {
        "" => None,
        range => {
            let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            let (from, to) = match (from, to) {
                ("", _) if !has_suffixes => return Err((400, "InvalidHeaderValue")),
                ("", last) => (size - size.min(last.parse().unwrap()), size),
                (from, "") => (from.parse().unwrap(), size),
                (from, to) => (from.parse().unwrap(), size.min(to.parse::<u64>().unwrap() + 1)),
            };
            if from >= size {
                return Err((416, "InvalidRange"));
            }
            Some(from..to)
        }
    };
    let mut answer = Response::builder()
        .header("etag", tag)
        .header("last-modified", text::http_date(object.modified))
        .header("content-type", "application/octet-stream")
        .header("accept-ranges", "bytes");
    for (name, value) in &object.metadata {
        answer = answer.header(name, value);
    }
    let part = match &range {
        None => object.bytes.clone(),
        Some(range) => {
            let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            answer = answer.status(206).header("content-range", shown);
            object.bytes.slice(range.start as usize..range.end as usize)
        }
    };
    answer = more(answer.header("content-length", part.len()));
    let body = if asked.method == Method::HEAD { Body::empty() } else { Body::from(part) };
    Ok(answer.body(body).unwrap())
}

/// The metadata among the headers of a request.
pub(crate) fn metadata(asked: &Asked, prefix: &str) -> Vec<(String, String)> {
    let own = asked.headers.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
    own.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_string())).collect()
}

/// A number of the bytes that is the same for the same bytes.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// A time that no object has.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
