//! Locations of datasets: URLs, paths and the options of a table, parsed once.

mod marks;

pub use marks::inside;
pub(crate) use marks::{below, escaped, has_escapes, place_and_group, without_group};

use crate::manifest::ManifestRef;
use crate::source::clouds::{AzureOptions, GcsOptions};
use crate::source::error::SourceError;
pub(crate) use crate::source::root::Root;
use marks::{parted, unescaped};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use url::Url;

/// How to open a table: `OPTIONS (…)` of `CREATE EXTERNAL TABLE`, checked.
///
/// Their serde form includes the secrets: it is for other processes of the same cluster.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// CF decoding of masks, scale, offset and time; on by default.
    pub decode_cf: bool,
    /// The format that the location must have: `zarr`, `npy`, or a key of a file format; any if it is not set.
    pub(crate) format: Option<String>,
    /// The dimension along which several files are joined; found by their labels if it is not set.
    pub(crate) concat: Option<String>,
    /// How several files are put in order.
    pub(crate) combine: Combine,
    /// Greatest difference of floats that are the same label.
    pub(crate) tolerance: Option<f64>,
    /// True if the cells of a variable that a file does not have are masked; otherwise that is an error.
    pub(crate) masks_missing: bool,
    /// See [`Options::warehouse`].
    pub(crate) warehouse: bool,
    /// The store's manifest, if it has one.
    pub(crate) manifest: Option<ManifestRef>,
    /// `aws.endpoint`.
    pub(crate) endpoint: Option<String>,
    /// `aws.region`.
    pub(crate) region: Option<String>,
    /// `aws.access_key_id`.
    pub(crate) access_key_id: Option<String>,
    /// `aws.secret_access_key`.
    pub(crate) secret_access_key: Option<String>,
    /// `aws.session_token`.
    pub(crate) session_token: Option<String>,
    /// `aws.skip_signature`, also called `aws.anonymous`.
    pub(crate) skip_signature: Option<bool>,
    /// `aws.allow_http`.
    pub(crate) allow_http: Option<bool>,
    /// `gcs.…`.
    pub(crate) gcs: GcsOptions,
    /// `azure.…`.
    pub(crate) azure: AzureOptions,
}

/// The tolerance is finite.
impl Eq for Options {}

/// How several files are put in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Combine {
    /// By their labels.
    #[default]
    ByCoords,
    /// In the order in which they are listed.
    Nested,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            decode_cf: true,
            format: None,
            concat: None,
            combine: Combine::default(),
            tolerance: None,
            masks_missing: false,
            warehouse: false,
            manifest: None,
            endpoint: None,
            region: None,
            access_key_id: None,
            secret_access_key: None,
            session_token: None,
            skip_signature: None,
            allow_http: None,
            gcs: GcsOptions::default(),
            azure: AzureOptions::default(),
        }
    }
}

impl fmt::Debug for Options {
    /// Shows only whether secrets are set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("decode_cf", &self.decode_cf)
            .field("format", &self.format)
            .field("concat", &self.concat)
            .field("combine", &self.combine)
            .field("tolerance", &self.tolerance)
            .field("masks_missing", &self.masks_missing)
            .field("warehouse", &self.warehouse)
            .field("manifest", &self.manifest)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("access_key_id", &self.access_key_id.is_some())
            .field("secret_access_key", &self.secret_access_key.is_some())
            .field("session_token", &self.session_token.is_some())
            .field("skip_signature", &self.skip_signature)
            .field("allow_http", &self.allow_http)
            .field("gcs", &self.gcs)
            .field("azure", &self.azure)
            .finish()
    }
}

impl Options {
    /// Options of a store of a warehouse: it is removed whole and never changes otherwise, so an absent chunk of a
    /// store removed in the meantime is an error, not fill values. `manifest` lists its files with their checksums;
    /// stores of earlier versions have none.
    pub fn warehouse(manifest: Option<ManifestRef>) -> Self {
        Options { warehouse: true, manifest, ..Options::default() }
    }

    /// True for a store of a warehouse, whose cells never change.
    pub fn is_warehouse(&self) -> bool {
        self.warehouse
    }

    /// Parses the options in `pairs`, keys in any case; an unknown key or an invalid truth value is
    /// [`SourceError::BadOption`].
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SourceError> {
        let mut o = Options::default();
        for (key, value) in pairs {
            let bad = |reason| SourceError::BadOption { key: key.to_string(), reason };
            let truth = || truth(value).map_err(bad);
            match key.to_ascii_lowercase().as_str() {
                "decode_cf" => o.decode_cf = truth()?,
                "format" => o.format = Some(value.to_ascii_lowercase()),
                "concat" => o.concat = Some(value.to_string()),
                "combine" => {
                    o.combine = match value.to_ascii_lowercase().as_str() {
                        "by_coords" => Combine::ByCoords,
                        "nested" => Combine::Nested,
                        _ => {
                            return Err(bad(format!("`{value}` is neither by_coords nor nested")));
                        }
                    }
                }
                "tolerance" => {
                    let number = value.parse().ok().filter(|v: &f64| *v >= 0.0 && v.is_finite());
                    let number =
                        number.ok_or_else(|| bad(format!("`{value}` is not a number from 0")))?;
                    o.tolerance = Some(number);
                }
                "missing" => {
                    o.masks_missing = match value.to_ascii_lowercase().as_str() {
                        "error" => false,
                        "mask" => true,
                        _ => return Err(bad(format!("`{value}` is neither error nor mask"))),
                    }
                }
                "aws.endpoint" | "aws.endpoint_url" => o.endpoint = Some(value.to_string()),
                // The region becomes a part of a host name.
                "aws.region" if !value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') => {
                    return Err(bad("a region has letters, digits and `-` only".into()));
                }
                "aws.region" => o.region = Some(value.to_string()),
                "aws.access_key_id" => o.access_key_id = Some(value.to_string()),
                "aws.secret_access_key" => o.secret_access_key = Some(value.to_string()),
                "aws.session_token" => o.session_token = Some(value.to_string()),
                "aws.skip_signature" | "aws.anonymous" => o.skip_signature = Some(truth()?),
                "aws.allow_http" => o.allow_http = Some(truth()?),
                name => {
                    let known = match name.split_once('.') {
                        Some(("gcs", name)) => o.gcs.set(name, value).map_err(bad)?,
                        Some(("azure", name)) => o.azure.set(name, value).map_err(bad)?,
                        _ => false,
                    };
                    if !known {
                        return Err(bad(format!("unknown option; known are {}", known_of(name))));
                    }
                }
            }
        }
        Ok(o)
    }

    /// True for the name of an option of a store: where it is, and as whom it is accessed.
    pub fn is_of_store(key: &str) -> bool {
        let family = key.split_once('.').map(|(family, _)| family.to_ascii_lowercase());
        family.is_some_and(|family| ["aws", "gcs", "azure"].contains(&family.as_str()))
    }

    /// The endpoint that the options give for a bucket.
    pub(crate) fn endpoint_of(&self, root: &Root) -> Option<&str> {
        match root {
            Root::S3 { .. } => self.endpoint.as_deref(),
            Root::Gcs { .. } => self.gcs.endpoint.as_deref(),
            Root::Azure { .. } => self.azure.endpoint.as_deref(),
            Root::Http { .. } | Root::Memory => None,
        }
    }
}

/// Parses a truth value.
///
/// # Errors
/// The reason why the text is no truth value.
pub(crate) fn truth(value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("`{value}` is neither true nor false")),
    }
}

/// The known options of the family that an unknown one belongs to; all, if it belongs to none.
fn known_of(name: &str) -> String {
    let of = |family: &str, names: &[&str]| {
        names.iter().map(|name| format!("{family}.{name}")).collect::<Vec<_>>().join(", ")
    };
    match name.split_once('.') {
        Some(("aws", _)) => of("aws", &AWS),
        Some(("gcs", _)) => of("gcs", &GcsOptions::NAMES),
        Some(("azure", _)) => of("azure", &AzureOptions::NAMES),
        _ => "decode_cf, concat, combine, tolerance, missing, aws.…, gcs.… and azure.…".into(),
    }
}

/// Options of S3, without `aws.`.
const AWS: [&str; 7] = [
    "endpoint",
    "region",
    "access_key_id",
    "secret_access_key",
    "session_token",
    "skip_signature",
    "allow_http",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) path: StoragePath,
    /// The group after `#`, without leading and trailing slashes.
    pub(crate) group: String,
    /// The URL without credentials, query and group.
    pub(crate) display: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoragePath {
    Local(PathBuf),
    /// Objects below a prefix, which has no leading and trailing slashes.
    Object {
        root: Root,
        prefix: String,
    },
}

impl StoragePath {
    /// The object or the path below it.
    pub(crate) fn display(&self) -> String {
        match self {
            StoragePath::Local(path) => path.display().to_string(),
            StoragePath::Object { root: root @ Root::Http { .. }, prefix } => {
                format!("{}/{prefix}", root.url())
            }
            StoragePath::Object { root: Root::Memory, prefix } => format!("memory://{prefix}"),
            StoragePath::Object { root, prefix } => {
                format!("{}/{prefix}", root.url()).trim_end_matches('/').to_string()
            }
        }
    }
}

/// A path or URL without slashes at its end, which belong to a URL of a scheme alone.
pub(crate) fn trimmed(url: &str) -> &str {
    let bare = url.trim_end_matches('/');
    if bare.ends_with(':') { url } else { bare }
}

/// True for a URL of the memory of a process.
pub(crate) fn is_in_memory(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("memory"))
}

impl Location {
    /// Parses a path, or a URL of one of the storages.
    pub(crate) fn parse(text: &str) -> Result<Location, SourceError> {
        let bad = |reason: &str| {
            // The text may hold a password: only the parts before and after the user part are repeated.
            let shown = match (text.find("://"), text.rfind('@')) {
                (Some(s), Some(at)) if at > s => format!("{}://…{}", &text[..s], &text[at..]),
                _ => text.to_string(),
            };
            SourceError::BadUrl { url: shown, reason: reason.to_string() }
        };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if text.contains('\0') {
            return Err(bad("it contains a NUL character"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            let (path, group) = parted(text);
            return Ok(local(PathBuf::from(path), path, &unescaped(group)));
        };
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "file" | "http" | "https" => {
                let url = Url::parse(text).map_err(|e| bad(&e.to_string()))?;
                // The parsed fragment has escapes where the text has none.
                let group = text.split_once('#').map_or("", |(_, group)| group);
                let group = decode_percent(group).unwrap_or_else(|| group.into());
                if scheme == "file" {
                    let path = url
                        .to_file_path()
                        .map_err(|()| bad("a file URL needs an absolute path"))?;
                    let shown = path.display().to_string();
                    return Ok(local(path, &shown, &group));
                }
                let host = url.host_str().ok_or_else(|| bad("it names no host"))?;
                let origin = match url.port() {
                    Some(p) => format!("{scheme}://{host}:{p}"),
                    None => format!("{scheme}://{host}"),
                };
                let prefix = decode_percent(url.path().trim_matches('/'))
                    .ok_or_else(|| bad("its path is not UTF-8"))?;
                Ok(Location::of(Root::Http { origin }, &prefix, &group))
            }
            // Keys are taken literally: a URL of a bucket has no escapes, queries or passwords.
            "s3" | "s3a" | "gs" | "az" | "abfs" | "abfss" | "memory" => {
                let (rest, group) = rest.rsplit_once('#').unwrap_or((rest, ""));
                let (authority, prefix) = match scheme.as_str() {
                    "memory" => ("", rest),
                    _ => rest.split_once('/').unwrap_or((rest, "")),
                };
                let root = Root::parse(&scheme, authority).map_err(|e| bad(&e))?;
                Ok(Location::of(root, prefix, &unescaped(group)))
            }
            _ => Err(SourceError::Scheme { scheme }),
        }
    }

    fn of(root: Root, prefix: &str, group: &str) -> Location {
        let path = StoragePath::Object { root, prefix: prefix.trim_matches('/').to_string() };
        Location { display: path.display(), path, group: group.trim_matches('/').to_string() }
    }

    /// The file name without its last extension: the default name of the dataset in a query.
    pub(crate) fn stem(&self) -> String {
        let path = if self.group.is_empty() { self.display.as_str() } else { self.group.as_str() };
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
        // An archive of a store is named after the store.
        let name = name.strip_suffix(".zip").filter(|n| n.ends_with(".zarr")).unwrap_or(name);
        match name.rsplit_once('.') {
            Some((stem, _)) if !stem.is_empty() => stem.to_string(),
            _ => name.to_string(),
        }
    }
}

fn local(path: PathBuf, shown: &str, group: &str) -> Location {
    Location {
        path: StoragePath::Local(path),
        group: group.trim_matches('/').to_string(),
        display: if shown.len() > 1 { shown.trim_end_matches('/') } else { shown }.to_string(),
    }
}

fn decode_percent(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let hex = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16));
        out.push((hex(bytes.next())? * 16 + hex(bytes.next())?) as u8);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn urls_fall_into_path_and_group() {
        let p = |s: &str| Location::parse(s).unwrap();
        assert_eq!(p("/a/b.zarr/").display, "/a/b.zarr");
        assert_eq!(p("/a/b.zarr#x/y").group, "x/y");
        assert_eq!(p("/a/b.zarr").stem(), "b");
        assert_eq!((p("/a/b.zarr.zip").stem(), p("/a/c.zip").stem()), ("b".into(), "c".into()));
        assert_eq!(p("file:///a/b%20c.npy").path, StoragePath::Local("/a/b c.npy".into()));
        let group = |s: &str| p(s).group;
        assert_eq!(group("https://h/a.nc#my group/é%23%3f100%25"), "my group/é#?100%");
        assert_eq!(group("https://h/a.nc#100% b#c"), "100% b#c");
        assert_eq!(group("/no/a.nc#my group/é?%20%2523%25"), "my group/é?%20%23%");
        assert_eq!(group("s3://b/a#1.nc#Run %231"), "Run #1");
        let s3 = p("s3://bkt/p/q.zarr#g");
        let object = |root, prefix: &str| StoragePath::Object { root, prefix: prefix.into() };
        assert_eq!(s3.path, object(Root::S3 { bucket: "bkt".into() }, "p/q.zarr"));
        assert_eq!((s3.group.as_str(), s3.stem()), ("g", "g".to_string()));
        let http = p("https://me:pw@host:81/a%20b/c.zarr?sig=1#g");
        assert_eq!(
            http.path,
            object(Root::Http { origin: "https://host:81".into() }, "a b/c.zarr")
        );
        assert!(!http.display.contains("pw") && !http.display.contains("sig"));
        let gs = p("gs://b.kt/p%20/q.zarr/#g/");
        assert_eq!(gs.path, object(Root::Gcs { bucket: "b.kt".into() }, "p%20/q.zarr"));
        assert_eq!((gs.group.as_str(), gs.display.as_str()), ("g", "gs://b.kt/p%20/q.zarr"));
        let azure = |account: Option<&str>| Root::Azure {
            account: account.map(String::from),
            container: "c-1".into(),
        };
        for url in ["az://c-1/p/q", "abfs://c-1/p/q/", "ABFSS://c-1/p/q"] {
            assert_eq!(
                (p(url).path, p(url).display),
                (object(azure(None), "p/q"), "az://c-1/p/q".into())
            );
        }
        let named = "abfss://c-1@acct.dfs.core.windows.net/p/q";
        for url in [
            named,
            "abfs://c-1@acct.blob.core.windows.net/p/q#",
            "az://c-1@acct.DFS.core.windows.net/p/q",
        ] {
            assert_eq!(
                (p(url).path, p(url).display.as_str()),
                (object(azure(Some("acct")), "p/q"), named)
            );
        }
        assert_eq!(azure(None).of_account(Some("acct")), azure(Some("acct")));
        assert_eq!(azure(Some("a")).of_account(Some("acct")), azure(Some("a")));
        let memory = p("memory://a/b.zarr/#g");
        assert_eq!(memory.path, object(Root::Memory, "a/b.zarr"));
        assert_eq!((memory.display.as_str(), memory.stem()), ("memory://a/b.zarr", "g".into()));
        assert_eq!(p("memory:///a").path, object(Root::Memory, "a"));
        assert_eq!(
            (p("memory://").path, p("memory://").display.as_str()),
            (object(Root::Memory, ""), "memory://")
        );
        assert_eq!(p("https://host").display, "https://host/");
        assert_eq!(
            (trimmed("s3://b/a//"), trimmed("/a/"), trimmed("memory://")),
            ("s3://b/a", "/a", "memory://")
        );
        assert!(is_in_memory("Memory://a") && !is_in_memory("memory.zarr"));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let code = |s: &str| Location::parse(s).unwrap_err();
        for s in ["ftp://h/x", "hdfs://h/x", "adl://h/x"] {
            assert_eq!(code(s).code(), "unsupported", "{s}");
        }
        for s in ["", "s3://", "s3:///k", "http://", "a\0b", "gs://", "gs:///k", "az://"] {
            assert_eq!(code(s).code(), "bad_url", "{s:?}");
        }
        for s in [
            "gs://../x",
            "gs://a?b/x",
            "gs://user@b/x",
            "az://../x",
            "az://a.b/x",
            "az://c@acct/x",
            "az://c@.dfs.core.windows.net/x",
            "az://c@a.evil.example/x",
            "az://c@a/b.dfs.core.windows.net/x",
            "az://c@a.dfs.core.windows.net.evil.example/x",
            "az://c@a.dfs.core.windows.net:81/x",
            "az://c:pw@a.dfs.core.windows.net/x",
        ] {
            assert_eq!(code(s).code(), "bad_url", "{s:?}");
        }
        for scheme in ["s3", "gs", "az"] {
            let e = code(&format!("{scheme}://AKIA:sekret@bucket/x")).to_string();
            assert!(!e.contains("sekret") && !e.contains("AKIA"), "{e}");
        }
    }

    #[test]
    fn options_are_checked_and_keep_their_secrets() {
        let o =
            Options::parse([("DECODE_CF", "false"), ("aws.secret_access_key", "s3kret")]).unwrap();
        assert!(!o.decode_cf);
        assert!(!format!("{o:?}").contains("s3kret"));
        assert_eq!(Options::parse([("colour", "red")]).unwrap_err().code(), "unknown_option");
        assert_eq!(Options::parse([("decode_cf", "maybe")]).unwrap_err().code(), "unknown_option");
        let region = Options::parse([("aws.region", "x.evil.example/")]);
        assert_eq!(region.unwrap_err().code(), "unknown_option");
        for (name, family) in
            [("aws.x", "aws.endpoint"), ("gcs.x", "gcs.token"), ("azure.x", "azure.account")]
        {
            let e = Options::parse([(name, "v")]).unwrap_err();
            assert!(e.code() == "unknown_option" && e.to_string().contains(family), "{e}");
            assert!(Options::is_of_store(name), "{name}");
        }
        assert!(!Options::is_of_store("decode_cf") && !Options::is_of_store("codec.x"));
    }
}
