//! Several files as one dataset: a list of locations, a pattern, or a directory of files.
//!
//! ```text
//!   'era5/*.nc' ─▶ era5/2019.nc, era5/2020.nc, …  ─▶ opened concurrently ─▶ sorted by their labels ─▶ one dataset
//! ```
//! Metadata and labels of all files are read; of their cells a statement reads those of the files that it touches.

mod combine;
mod grid;
mod index;
mod kind;
mod labels;

use crate::formats;
use crate::source::error::SourceError;
use crate::source::fence::Access;
use crate::source::location::{Location, Options, Root, StoragePath};
use crate::source::store::Stores;
use crate::source::{Opened, cache_key, location, open_noted};
use futures::{StreamExt, TryStreamExt, stream};
use glob::{MatchOptions, Pattern};

/// Upper bound on the files of a dataset.
pub(super) const FILES_MAX: usize = 100_000;

/// Upper bound on the files that are opened concurrently.
const CONCURRENT_MAX: usize = 64;

/// Names of files are matched as a shell does: `*` stops at a slash.
const MATCH: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Characters of a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// Several locations as one text, which [`super::open`] takes: a JSON list.
pub fn list_of(urls: &[String]) -> String {
    serde_json::Value::from(urls.to_vec()).to_string()
}

/// The locations of a list; `None` if the text is one location.
pub fn listed(url: &str) -> Option<Vec<String>> {
    url.starts_with("[\"").then(|| serde_json::from_str(url).ok()).flatten()
}

/// True for the URL of something in the memory of a process, which another process does not see, or for several of which
/// one is.
pub fn is_in_memory(url: &str) -> bool {
    match listed(url) {
        Some(all) => all.iter().any(|one| location::is_in_memory(one)),
        None => location::is_in_memory(url),
    }
}

/// True if the text is several locations, or may be.
pub(super) fn is_several(url: &str) -> bool {
    listed(url).is_some() || is_pattern(url)
}

/// True for a pattern. A local file of that very name is no pattern.
pub(super) fn is_pattern(url: &str) -> bool {
    is_wild(parted(url).0) && !std::path::Path::new(url).exists()
}

fn is_wild(path: &str) -> bool {
    path.contains(WILD)
}

/// The files of a location and the group after them. A directory before a pattern may have `#` in its name.
fn parted(url: &str) -> (&str, &str) {
    let (files, group) = location::place_and_group(url);
    let is_file = || {
        let is_store = [".zarr", ".zip"].iter().any(|ending| files.ends_with(ending));
        is_store || formats::is_named(files) || std::path::Path::new(files).exists()
    };
    match is_wild(group) && !is_wild(files) && !location::has_escapes(url) && !is_file() {
        true => (url, ""),
        false => (files, group),
    }
}

/// Opens a list or a pattern.
pub(super) async fn open(
    url: &str,
    options: &Options,
    stores: &Stores,
) -> Result<Opened, SourceError> {
    let mut files = Vec::new();
    for one in listed(url).unwrap_or_else(|| vec![url.to_string()]) {
        match is_pattern(&one) {
            true => files.extend(matching(&one, options, stores, true).await?),
            false => files.push(one),
        }
    }
    open_all(url, files, options, stores).await
}

/// Opens the files of a format directly in a directory as one dataset; `None` if the directory has no such file.
pub(super) async fn open_directory(
    location: &Location,
    url: &str,
    options: &Options,
    stores: &Stores,
) -> Result<Option<Opened>, SourceError> {
    if is_web(location) || !location.group.is_empty() {
        return Ok(None);
    }
    if matches!(&location.path, StoragePath::Local(path) if !path.is_dir()) {
        return Ok(None);
    }
    let store = stores.at(location, options, Access::Read)?;
    let names = store.files("", 1, FILES_MAX).await?;
    let root = location::trimmed(location::place_and_group(url).0);
    let url_of = |name: String| location::without_group(location::below(root, &name));
    let files: Vec<String> =
        names.into_iter().filter(|n| formats::is_named(n)).map(url_of).collect();
    if files.is_empty() { Ok(None) } else { open_all(url, files, options, stores).await.map(Some) }
}

fn is_web(location: &Location) -> bool {
    matches!(&location.path, StoragePath::Object { root: Root::Http { .. }, .. })
}

async fn open_all(
    url: &str,
    files: Vec<String>,
    options: &Options,
    stores: &Stores,
) -> Result<Opened, SourceError> {
    if files.len() > FILES_MAX {
        return Err(SourceError::TooManyFiles { what: url.into(), limit: FILES_MAX });
    }
    let how = (&options.concat, options.combine, options.tolerance, options.masks_missing);
    let key = cache_key(&format!("{files:?} {how:?}"), "", options, stores);
    if let Some(opened) = stores.kept().get(&key).await {
        return Ok(opened);
    }
    let parts: Vec<_> = stream::iter(files)
        .map(|file| async move {
            let location = Location::parse(&file)?;
            let (opened, noticed) = open_noted(&location, options, stores).await?;
            Ok::<_, SourceError>((combine::Part { name: location.display, opened }, noticed))
        })
        .buffered(CONCURRENT_MAX)
        .try_collect()
        .await?;
    let (parts, noticed): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let noticed: Option<Vec<_>> = noticed.into_iter().collect();
    let opened = combine::combine(url, parts, options)?;
    stores.kept().put(key, &opened, noticed.map(|all| all.into_iter().flatten().collect()));
    Ok(opened)
}

/// The files that match a pattern, sorted by name; with `directories` also directories.
pub(super) async fn matching(
    url: &str,
    options: &Options,
    stores: &Stores,
    directories: bool,
) -> Result<Vec<String>, SourceError> {
    let (url_of_files, group) = parted(url);
    let first = url_of_files.find(WILD).unwrap_or(url_of_files.len());
    let (root, pattern) = match url_of_files[..first].rfind('/') {
        // All of the memory of the process.
        Some(slash) if url_of_files[..slash].ends_with(":/") => url_of_files.split_at(slash + 1),
        Some(slash) => (&url_of_files[..slash], &url_of_files[slash + 1..]),
        None => (".", url_of_files),
    };
    let directory = if root.is_empty() { "/" } else { root };
    let location = Location::parse(&location::without_group(directory.into()))?;
    let bad = |reason: String| SourceError::BadUrl { url: url.into(), reason };
    if is_web(&location) {
        let reason = "a server of files has no listing, and gets no query: write the list of its files without `?…`";
        return Err(bad(reason.into()));
    }
    let matcher = Pattern::new(pattern).map_err(|e| bad(e.to_string()))?;
    let depth = if pattern.contains("**") { usize::MAX } else { pattern.split('/').count() };
    let store = stores.at(&location, options, Access::Read)?;
    let names = match directories {
        true => store.files("", depth, FILES_MAX).await?,
        false => store.objects("", depth, FILES_MAX).await?,
    };
    let names = names.into_iter().filter(|name| matcher.matches_with(name, MATCH));
    let url_of = |name: String| {
        let file = if url_of_files.starts_with(root) { location::below(root, &name) } else { name };
        if group.is_empty() { location::without_group(file) } else { format!("{file}#{group}") }
    };
    let files: Vec<String> = names.map(url_of).collect();
    if files.is_empty() { Err(SourceError::NotFound { what: url.into() }) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::{is_pattern, parted};

    #[test]
    fn patterns_are_of_files_and_not_of_groups() {
        for (url, files, group) in [
            ("d/*.nc", "d/*.nc", ""),
            ("d/*.nc#a/b", "d/*.nc", "a/b"),
            ("run#1/*.nc", "run#1/*.nc", ""),
            ("run#1/*.nc#a?", "run#1/*.nc", "a?"),
            ("x.h5#what? [1]*", "x.h5", "what? [1]*"),
            ("x.zarr#a*", "x.zarr", "a*"),
            ("s3://b/run#1/*.nc", "s3://b/run#1/*.nc", ""),
            ("s3://b/x.nc#what?", "s3://b/x.nc", "what?"),
            ("file:///d/*.nc#a#b", "file:///d/*.nc", "a#b"),
            ("file:///d/run#1/?", "file:///d/run", "1/?"),
        ] {
            assert_eq!(parted(url), (files, group), "{url}");
            assert_eq!(is_pattern(url), files.contains('*'), "{url}");
        }
    }
}
