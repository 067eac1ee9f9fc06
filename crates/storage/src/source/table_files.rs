//! The files of a table of several: a list of locations, a pattern, or a directory with all directories below it.

use super::error::SourceError;
use super::fence::Access;
use super::location::{Location, Options, Root, StoragePath};
use super::many::{FILES_MAX, is_pattern, listed, matching};
use super::store::Stores;
use std::path::{Component, PathBuf};

/// Files below one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFiles {
    /// The URL of the directory, or its absolute path.
    pub root: String,
    /// The names of the files below it.
    pub names: Vec<String>,
    /// False for files that the user has listed: their directory may have many others.
    pub is_found: bool,
}

/// Finds the files of a table; `None` for one file. In a directory those are taken for which `is_named` is true, but for
/// names with a leading `.` or `_`, which other programs keep for themselves.
///
/// # Errors
/// `not_found` if no file matches a pattern, `too_large` for more than 100,000 files, `bad_url` for files of several
/// storages, those of the storage.
pub async fn table_files(
    url: &str,
    options: &Options,
    stores: &Stores,
    is_named: impl Fn(&str) -> bool,
) -> Result<Option<TableFiles>, SourceError> {
    let mut files = Vec::new();
    let is_found = match listed(url) {
        Some(urls) => {
            for one in urls {
                match is_pattern(&one) {
                    true => files.extend(matching(&one, options, stores, false).await?),
                    false => files.push(one),
                }
            }
            false
        }
        None if is_pattern(url) => {
            files = matching(url, options, stores, false).await?;
            true
        }
        None => return in_directory(url, options, stores, is_named).await,
    };
    if files.len() > FILES_MAX {
        return Err(SourceError::TooManyFiles { what: url.into(), limit: FILES_MAX });
    }
    let found = below_one_directory(&files).ok_or_else(|| SourceError::BadUrl {
        url: url.into(),
        reason: "the files of one table are in one bucket, on one server or on local disks".into(),
    })?;
    Ok(Some(with_keys_in_names(TableFiles { is_found, ..found })))
}

async fn in_directory(
    url: &str,
    options: &Options,
    stores: &Stores,
    is_named: impl Fn(&str) -> bool,
) -> Result<Option<TableFiles>, SourceError> {
    if !stores.exists(url, options).await?.is_directory {
        return Ok(None);
    }
    let location = Location::parse(url)?;
    let store = stores.at(&location, options, Access::Read)?;
    let mut names = store.objects("", usize::MAX, FILES_MAX).await?;
    if names.len() > FILES_MAX {
        return Err(SourceError::TooManyFiles { what: location.display, limit: FILES_MAX });
    }
    let is_hidden = |name: &str| name.split('/').any(|part| part.starts_with(['.', '_']));
    names.retain(|name| is_named(name) && !is_hidden(name));
    let root = match &location.path {
        StoragePath::Local(path) => absolute(path.clone())?.display().to_string(),
        StoragePath::Object { .. } => location.display,
    };
    Ok(Some(with_keys_in_names(TableFiles { root, names, is_found: true })))
}

fn absolute(path: PathBuf) -> Result<PathBuf, SourceError> {
    let what = path.display().to_string();
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|e| SourceError::Storage { what, reason: e.to_string() })?;
    // `a/../b` is `b`: keys have no such parts.
    let mut plain = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Ok(plain)
}

/// The directory that all files are below; `None` if they are in several storages.
fn below_one_directory(files: &[String]) -> Option<TableFiles> {
    let mut root: Option<Option<Root>> = None;
    let mut paths = Vec::with_capacity(files.len());
    for file in files {
        let (of, path) = match Location::parse(file).ok()?.path {
            StoragePath::Local(path) => (None, absolute(path).ok()?.to_str()?.to_string()),
            StoragePath::Object { root, prefix } => (Some(root), format!("/{prefix}")),
        };
        if root.get_or_insert_with(|| of.clone()) != &of {
            return None;
        }
        paths.push(path);
    }
    let first = paths.first()?;
    let mut common = first.rfind('/')?;
    for path in &paths {
        while !(path.get(..common) == first.get(..common)
            && path.as_bytes().get(common) == Some(&b'/'))
        {
            common = first[..common].rfind('/')?;
        }
    }
    let directory = &first[..common];
    let names = paths.iter().map(|path| path[common + 1..].to_string()).collect();
    let root = match root? {
        None if directory.is_empty() => "/".to_string(),
        None => directory.to_string(),
        Some(root) => {
            let prefix = directory.trim_start_matches('/').to_string();
            StoragePath::Object { root, prefix }.display()
        }
    };
    Some(TableFiles { root, names, is_found: true })
}

/// With `key=value` directories at the end of the root in the names: columns are made of them.
fn with_keys_in_names(mut files: TableFiles) -> TableFiles {
    while let Some((rest, last)) = files.root.trim_end_matches('/').rsplit_once('/')
        && last.contains('=')
        && !rest.is_empty()
        && !rest.ends_with(['/', ':'])
    {
        let (rest, last) = (rest.to_string(), last.to_string());
        files.names.iter_mut().for_each(|name| *name = format!("{last}/{name}"));
        files.root = rest;
    }
    files
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn below(files: &[&str]) -> Option<(String, Vec<String>)> {
        let files: Vec<String> = files.iter().map(ToString::to_string).collect();
        let found = with_keys_in_names(below_one_directory(&files)?);
        Some((found.root, found.names))
    }

    #[test]
    fn files_are_below_the_directory_that_they_share() {
        let of = |root: &str, names: &[&str]| {
            Some((root.to_string(), names.iter().map(ToString::to_string).collect()))
        };
        assert_eq!(below(&["/a/b/x.csv"]), of("/a/b", &["x.csv"]));
        assert_eq!(below(&["/a/b/x.csv", "/a/c/y.csv"]), of("/a", &["b/x.csv", "c/y.csv"]));
        assert_eq!(below(&["/a/bc/x.csv", "/a/b/y.csv"]), of("/a", &["bc/x.csv", "b/y.csv"]));
        assert_eq!(below(&["/a/x.csv", "/a/b/../y.csv"]), of("/a", &["x.csv", "y.csv"]));
        assert_eq!(below(&["/x.csv", "/a/y.csv"]), of("/", &["x.csv", "a/y.csv"]));
        assert_eq!(below(&["s3://b/p/x.csv", "s3://b/q.csv"]), of("s3://b", &["p/x.csv", "q.csv"]));
        assert_eq!(below(&["s3://b/x.csv", "s3://c/x.csv"]), None);
        assert_eq!(below(&["s3://b/x.csv", "/x.csv"]), None);
        let hive = of("/a", &["year=2020/month=1/x.csv"]);
        assert_eq!(below(&["/a/year=2020/month=1/x.csv"]), hive);
    }
}
