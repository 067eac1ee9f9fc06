//! Access rules of statements: roots and URL prefixes that the server's operator allows.
//!
//! ```text
//!   FROM, read_*, tables, views, COPY ─▶ Stores::at ─▶ Fence::check ─▶ the location, links and `..` resolved
//!   each file that is opened there     ─────────────▶ Fenced::opened   its real path
//!   each redirect of a server          ─────────────▶ Fence::hop       its target
//! ```
//! Without rules (the command line, the shell) nothing is checked. The engine opens the warehouse for itself.
//! Statements can access only `data/` and `files/` of the warehouse's directory by path: the rest (the catalog,
//! records of statements, keys) holds data of other users.

use crate::disk::is_nothing;
use crate::lock;
use crate::source::error::SourceError;
use crate::source::location::{Location, Options, Root, StoragePath, trimmed};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};
use url::Url;

/// The rule that allows everything.
const ALL: &str = "*";
/// Upper bound on the links on the way to a file, as many as systems follow.
const LINKS_MAX: usize = 40;
/// The directories of a warehouse that statements may read by path; they may write only the second.
const DATA: &str = "data";
const FILES: &str = "files";

/// The kind of an access to a location, and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// The engine accesses its own data.
    Own,
}

/// Roots and URL prefixes, as configured; `None` allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Locations that may be read.
    pub read: Option<Vec<String>>,
    /// Locations that may be written, and read too.
    pub write: Option<Vec<String>>,
}

/// Parsed rules.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    rules: Rules,
    read: Option<Vec<Rule>>,
    write: Option<Vec<Rule>>,
    /// The warehouse's location, if there are rules.
    warehouse: Option<Rule>,
    /// The process's own files: all paths with one of these prefixes.
    private: Vec<PathBuf>,
    /// Files that an internal statement may read, one entry for each loan.
    lent: Mutex<Vec<PathBuf>>,
}

/// A location that a statement may access, to check the objects below it.
#[derive(Debug)]
pub(crate) struct Fenced {
    fence: Arc<Fence>,
    /// The bucket, the container or the server.
    root: StoragePath,
}

/// One root or prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    All,
    /// Every location of a scheme: `s3://`.
    Scheme(String),
    Place(StoragePath),
}

/// A loan of a file, until this is dropped.
#[derive(Debug)]
pub struct Lent {
    fence: Arc<Fence>,
    path: PathBuf,
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut lent = lock(&self.fence.lent);
        if let Some(at) = lent.iter().position(|p| *p == self.path) {
            lent.swap_remove(at);
        }
    }
}

impl Rule {
    /// Parses a rule. `account` is the storage account of `az://container`.
    fn parse(text: &str, account: Option<&str>) -> Result<Rule, SourceError> {
        if text == ALL {
            return Ok(Rule::All);
        }
        match text.strip_suffix("://") {
            Some("abfs" | "abfss") => return Ok(Rule::Scheme("az".into())),
            Some(scheme @ ("s3" | "gs" | "az" | "http" | "https" | "memory")) => {
                return Ok(Rule::Scheme(scheme.into()));
            }
            _ => {}
        }
        let location = Location::parse(text)?;
        Ok(Rule::Place(match location.path {
            StoragePath::Local(path) => {
                let resolved = resolve(&path).map_err(|e| SourceError::Storage {
                    what: location.display,
                    reason: e.to_string(),
                })?;
                StoragePath::Local(resolved)
            }
            StoragePath::Object { root, prefix } => {
                StoragePath::Object { root: root.of_account(account), prefix }
            }
        }))
    }

    fn child(&self, name: &str) -> Rule {
        match self {
            Rule::Place(StoragePath::Local(root)) => {
                Rule::Place(StoragePath::Local(root.join(name)))
            }
            Rule::Place(place) => Rule::Place(below(place, name)),
            other => other.clone(),
        }
    }

    /// True if a resolved location is this one or below it.
    fn has(&self, place: &StoragePath) -> bool {
        match (self, place) {
            (Rule::All, _) => true,
            (Rule::Scheme(scheme), StoragePath::Object { root, .. }) => scheme == root.scheme(),
            (Rule::Scheme(_), StoragePath::Local(_)) => false,
            (Rule::Place(StoragePath::Local(root)), StoragePath::Local(path)) => {
                path.starts_with(root)
            }
            (
                Rule::Place(StoragePath::Object { root, prefix }),
                StoragePath::Object { root: of, prefix: key },
            ) => root == of && is_below(prefix, key),
            (Rule::Place(_), _) => false,
        }
    }

    fn show(&self) -> String {
        match self {
            Rule::All => ALL.into(),
            Rule::Scheme(scheme) => format!("{scheme}://"),
            Rule::Place(place) => place.display(),
        }
    }
}

/// True if a key equals a prefix or is below it, by whole names.
fn is_below(prefix: &str, key: &str) -> bool {
    match key.strip_prefix(prefix) {
        Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

impl Rules {
    /// True if everything is allowed.
    pub fn is_open(&self) -> bool {
        self.read.is_none() && self.write.is_none()
    }
}

impl Fence {
    /// Creates the fence of a process with that warehouse, if it has one; `private` are prefixes of its own paths,
    /// `account` is its storage account.
    ///
    /// # Errors
    /// A rule that is neither a path nor a valid URL.
    pub(crate) fn new(
        rules: Rules,
        warehouse: Option<&str>,
        private: &[PathBuf],
        account: Option<&str>,
    ) -> Result<Fence, SourceError> {
        if rules.is_open() {
            return Ok(Fence::default());
        }
        let parse = |list: &Option<Vec<String>>| -> Result<Option<Vec<Rule>>, SourceError> {
            let Some(list) = list else { return Ok(None) };
            let rules = list.iter().map(|text| Rule::parse(text, account));
            rules.collect::<Result<_, _>>().map(Some)
        };
        let (read, write) = (parse(&rules.read)?, parse(&rules.write)?);
        let warehouse = warehouse.map(|url| Rule::parse(trimmed(url), account)).transpose()?;
        let shown = |list: &Option<Vec<Rule>>, own: &[&str]| {
            let own = own.iter().flat_map(|name| warehouse.iter().map(|w| w.child(name).show()));
            list.as_ref().map(|list| list.iter().map(Rule::show).chain(own).collect())
        };
        let rules = Rules { read: shown(&read, &[FILES, DATA]), write: shown(&write, &[FILES]) };
        let at = |path: &PathBuf| resolve(path).unwrap_or_else(|_| path.clone());
        let private = private.iter().map(at).collect();
        Ok(Fence { rules, read, write, warehouse, private, lent: Mutex::default() })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.rules.is_open()
    }

    /// The rules, in the form that a process in another directory, which reads on behalf of this one, needs.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Resolves a location, with links and `..`, if a statement may access it. All access checks go through it.
    ///
    /// # Errors
    /// [`SourceError::NotAllowed`], which does not reveal whether the location exists.
    pub(crate) fn check(
        self: &Arc<Self>,
        location: &Location,
        options: &Options,
        access: Access,
    ) -> Result<(StoragePath, Option<Arc<Fenced>>), SourceError> {
        if self.is_open() || access == Access::Own {
            return Ok((location.path.clone(), None));
        }
        let refused = || self.refusal(&location.display, access);
        if let Some(path) = &options.gcs.service_account_path {
            // Whoever cannot read the credentials of others cannot use them either.
            let at = resolve(Path::new(path)).map(StoragePath::Local);
            if !at.is_ok_and(|at| self.allows(&at, Access::Read)) {
                return Err(self.refusal(path, Access::Read));
            }
        }
        let place = match &location.path {
            StoragePath::Local(path) => StoragePath::Local(resolve(path).map_err(|_| refused())?),
            other => other.clone(),
        };
        let (root, key) = match &place {
            StoragePath::Local(_) => (place.clone(), ""),
            StoragePath::Object { root, prefix } => {
                let root = match options.endpoint_of(root) {
                    None => StoragePath::Object { root: root.clone(), prefix: String::new() },
                    // A bucket of another endpoint is another bucket: the check is of a URL there.
                    Some(endpoint) => {
                        // Other readers of such a URL may take another part of it for the host or the path.
                        if endpoint.contains(['?', '#', '@', '\\']) {
                            return Err(refused());
                        }
                        let (at, name) = (endpoint.trim_end_matches('/'), root.name());
                        match Location::parse(&format!("{at}/{name}")).map(|l| l.path) {
                            Ok(at @ StoragePath::Object { root: Root::Http { .. }, .. })
                                if name != ".." =>
                            {
                                at
                            }
                            _ => return Err(refused()),
                        }
                    }
                };
                (root, prefix.as_str())
            }
        };
        match self.allows(&below(&root, key), access) {
            true => Ok((place, Some(Arc::new(Fenced { fence: self.clone(), root })))),
            false => Err(refused()),
        }
    }

    /// Checks that a request may be redirected to a URL. A redirect to the server of the first request is allowed if
    /// that is a bucket's: `home` is its origin.
    ///
    /// # Errors
    /// [`SourceError::NotAllowed`] with the server of the URL.
    pub(crate) fn hop(&self, to: &Url, home: Option<&str>) -> Result<(), SourceError> {
        let origin = to.origin().ascii_serialization();
        if home == Some(origin.as_str()) {
            return Ok(());
        }
        let place = Location::parse(to.as_str()).map(|l| l.path);
        match place.is_ok_and(|p| self.allows(&p, Access::Read)) {
            true => Ok(()),
            false => Err(self.refusal(&format!("{origin}{}", to.path()), Access::Read)),
        }
    }

    /// Allows reading a file while the returned loan lives.
    pub(crate) fn lend(self: &Arc<Self>, path: &Path) -> Lent {
        let path = resolve(path).unwrap_or_else(|_| path.to_path_buf());
        lock(&self.lent).push(path.clone());
        Lent { fence: self.clone(), path }
    }

    pub(crate) fn is_lent(&self, location: &Location) -> bool {
        match &location.path {
            StoragePath::Local(path) => resolve(path).is_ok_and(|p| self.lends(&p)),
            _ => false,
        }
    }

    fn lends(&self, path: &Path) -> bool {
        lock(&self.lent).iter().any(|lent| path.starts_with(lent))
    }

    fn allows(&self, place: &StoragePath, access: Access) -> bool {
        if let Some(warehouse) = &self.warehouse
            && warehouse.has(place)
        {
            return warehouse.child(FILES).has(place)
                || access == Access::Read && warehouse.child(DATA).has(place);
        }
        if let StoragePath::Local(path) = place {
            if access == Access::Read && self.lends(path) {
                return true;
            }
            if self.private.iter().any(|own| begins(path, own)) {
                return false;
            }
        }
        let any = |rules: &Vec<Rule>| rules.iter().any(|rule| rule.has(place));
        match access {
            Access::Write => self.write.as_ref().is_none_or(any),
            // Writable locations may also be read.
            Access::Read | Access::Own => {
                self.read.as_ref().is_none_or(any) || self.write.as_ref().is_some_and(any)
            }
        }
    }

    fn refusal(&self, what: &str, access: Access) -> SourceError {
        let lists = match access {
            Access::Write => vec![&self.write],
            Access::Read | Access::Own => vec![&self.read, &self.write],
        };
        let mut allowed: Vec<String> =
            self.warehouse.iter().map(|w| w.child(FILES).show()).collect();
        for rule in lists.into_iter().flatten().flatten() {
            let shown = rule.show();
            if !allowed.contains(&shown) {
                allowed.push(shown);
            }
        }
        SourceError::NotAllowed { what: what.into(), writes: access == Access::Write, allowed }
    }
}

impl Fenced {
    fn asked(&self, is_allowed: bool, shown: &str) -> Result<(), SourceError> {
        if is_allowed { Ok(()) } else { Err(self.fence.refusal(shown, Access::Read)) }
    }

    /// Checks the real path of a file opened below the location: a link in it may lead elsewhere.
    ///
    /// # Errors
    /// [`SourceError::NotAllowed`] if it may not be read.
    pub(crate) fn opened(&self, file: &File, path: &Path, shown: &str) -> Result<(), SourceError> {
        let allows = |at| self.fence.allows(&StoragePath::Local(at), Access::Read);
        self.asked(where_is(file, path).is_ok_and(allows), shown)
    }

    /// Like [`Fenced::opened`], for a directory, by its path.
    pub(crate) fn listed(&self, path: &Path, shown: &str) -> Result<(), SourceError> {
        let allows = |at| self.fence.allows(&StoragePath::Local(at), Access::Read);
        self.asked(resolve(path).is_ok_and(allows), shown)
    }

    /// Like [`Fenced::opened`], for an object, by its key in the bucket or at the server.
    pub(crate) fn object(&self, key: &str, shown: &str) -> Result<(), SourceError> {
        self.asked(self.fence.allows(&below(&self.root, key), Access::Read), shown)
    }
}

/// True if a path is below the parent directory of `with`, and its next name begins with the last name of `with`.
fn begins(path: &Path, with: &Path) -> bool {
    let (Some(parent), Some(name)) = (with.parent(), with.file_name()) else { return false };
    let Ok(rest) = path.strip_prefix(parent) else { return false };
    let first = rest.components().next().map(|c| c.as_os_str().as_encoded_bytes());
    first.is_some_and(|first| first.starts_with(name.as_encoded_bytes()))
}

/// The location of a key in a bucket or at a server.
fn below(root: &StoragePath, key: &str) -> StoragePath {
    let join = |prefix: &str| match (prefix.is_empty(), key.is_empty()) {
        (true, _) => key.to_string(),
        (_, true) => prefix.to_string(),
        _ => format!("{prefix}/{key}"),
    };
    match root {
        StoragePath::Local(_) => root.clone(),
        StoragePath::Object { root, prefix } => {
            StoragePath::Object { root: root.clone(), prefix: join(prefix) }
        }
    }
}

/// The path of an open file.
fn where_is(file: &File, path: &Path) -> io::Result<PathBuf> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let _ = path;
        std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        resolve(path)
    }
}

/// An absolute path without `.`, `..` and links. Parts that do not exist yet are taken literally.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut rest: VecDeque<OsString> = parts(&absolute).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        match std::fs::symlink_metadata(&next) {
            Ok(meta) if meta.is_symlink() => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(io::Error::other("too many links"));
                }
                let to = std::fs::read_link(&next)?;
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                for part in parts(&to).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(part);
                }
            }
            Ok(_) => at = next,
            Err(e) if is_nothing(&e) => at = next,
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
