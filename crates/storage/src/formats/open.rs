//! Opens a file: finds its format, parses its metadata, makes nodes of its arrays.

use crate::formats::view::{Pages, View};
use crate::formats::{Cells, FORMATS, FileArray, FileChunks, Format, Group, Unreadable, Why};
use crate::source::Opened;
use crate::source::chunked::InFile;
use crate::source::codecs::Codecs;
use crate::source::error::SourceError;
use crate::source::found::{Arrays, Found, Node, Place, Unread};
use crate::source::location::{Location, Options};
use crate::source::meta::{ArrayMeta, Who, check_lengths, check_unit, dim_names};
use crate::source::scope::{self, Scope};
use crate::source::store::Store;
use crate::source::variables;
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tessera_planner::region::Dims;

/// Arrays of a group of a file, by name.
type FileArrays = BTreeMap<String, Result<FileArray, Unreadable>>;

/// Files from these bytes on are worth a look for one beside them.
const SIDECAR_OF: u64 = 4 << 20;

/// Upper bound on the bytes of a file beside another.
const SIDECAR_MAX: u64 = 16 << 20;

/// Upper bound on the time for the files beside another.
const SIDECAR_WAIT: Duration = Duration::from_secs(10);

/// Opens the location if its name, or a look at a local file, says that it is a file of a format.
pub(crate) async fn by_name(
    store: &Store,
    location: &Location,
    options: &Options,
) -> Result<Option<Opened>, SourceError> {
    let path = location.display.to_ascii_lowercase();
    let extension = path.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    let is_of = |f: &&dyn Format| extension.is_some_and(|(_, e)| f.extensions().contains(&e));
    match store.is_local() || wanted(options).any(|f| options.format.is_some() || is_of(f)) {
        true => by_content(store, location, options).await,
        false => Ok(None),
    }
}

/// Opens the location if it is a file of a format.
pub(crate) async fn by_content(
    store: &Store,
    location: &Location,
    options: &Options,
) -> Result<Option<Opened>, SourceError> {
    // Cells are read from the version of the file whose metadata are read here.
    let opening = store.opening();
    let Some((head, len, version)) = opening.start("").await? else { return Ok(None) };
    let Some(format) = wanted(options).find(|f| f.is(&head, len)) else { return Ok(None) };
    let found = find(&opening, *format, (head, len, version), &location.group).await?;
    variables::assemble(store, location, options, found).await.map(Some)
}

/// True if the name of a file has the extension of a format.
pub(crate) fn is_named(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let extension = name.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    extension.is_some_and(|(_, e)| FORMATS.iter().any(|f| f.extensions().contains(&e)))
}

fn wanted(options: &Options) -> impl Iterator<Item = &'static &'static dyn Format> {
    let format = options.format.as_deref();
    FORMATS.iter().filter(move |f| format.is_none_or(|wanted| f.keys().contains(&wanted)))
}

/// The arrays of a group of a file.
async fn find(
    store: &Store,
    format: &dyn Format,
    (head, len, version): (Bytes, u64, Option<String>),
    group: &str,
) -> Result<Found, SourceError> {
    let starts = starts(store, format, len).await;
    let file = Pages::new("", format.name(), len, &head, starts);
    let read = |view: &View<'_>| format.read(view, group);
    let Some(Group { arrays, mut groups, attrs }) = file.run(store, read).await? else {
        let root = file.run(store, |view: &View<'_>| format.read(view, "")).await?;
        return Err(SourceError::NoGroup {
            what: store.root().to_string(),
            group: group.to_string(),
            groups: root.map(|mut root| {
                root.groups.sort();
                root.groups
            }),
        });
    };
    groups.sort();
    let nodes = |group: &str, arrays: FileArrays| -> Arrays {
        let path = store.root().to_string();
        let made = arrays.into_iter().map(|(name, array)| {
            let who = Who { array: &name, path: &path };
            let made = match array {
                Ok(array) => node(who, array, group, &file, version.clone()),
                Err(Unreadable { why, dims, attrs }) => {
                    Err(Unread { error: error(who, why), dims, attrs })
                }
            };
            (name, made)
        });
        made.collect()
    };
    let mut arrays = nodes(group, arrays);
    if format.is_scoped() {
        let mut scope = Scope::of(&arrays);
        for above in scope::above(group) {
            if scope.is_complete() {
                break;
            }
            let read = |view: &View<'_>| format.read(view, above);
            if let Some(found) = file.run(store, read).await? {
                scope.take(nodes(above, found.arrays), &mut arrays);
            }
        }
    }
    Ok(Found::Group { arrays, groups, attrs })
}

/// Offsets at which parts of a remote file may begin, from a file beside it; empty if no such file can be read.
async fn starts(store: &Store, format: &dyn Format, len: u64) -> Vec<u64> {
    let names = store.name().filter(|_| len >= SIDECAR_OF).map(|name| format.sidecars(name));
    let sidecars = names.unwrap_or_default().into_iter().filter_map(|name| store.beside(&name));
    let read = sidecars.map(|beside| async move {
        match beside.get("", SIDECAR_MAX).await {
            Ok(Some(text)) => format.starts(&text, len),
            // Whatever the reason is, the file can be read without it.
            _ => Vec::new(),
        }
    });
    let read = tokio::time::timeout(SIDECAR_WAIT, futures::future::join_all(read)).await;
    read.unwrap_or_default().into_iter().max_by_key(Vec::len).unwrap_or_default()
}

fn error(who: Who<'_>, why: Why) -> SourceError {
    match why {
        Why::DType(dtype) => SourceError::UnsupportedDType { array: who.array.into(), dtype },
        Why::Unsupported(what) => who.unsupported(what),
        Why::Bad(reason) => who.bad(reason),
    }
}

fn node(
    who: Who<'_>,
    array: FileArray,
    group: &str,
    file: &Arc<Pages>,
    version: Option<String>,
) -> Result<Node, Unread> {
    let dims: Vec<_> = array.dims.iter().cloned().zip(array.shape.iter().copied()).collect();
    let attrs = array.attrs.clone();
    let key = if group.is_empty() { who.array.into() } else { format!("{group}/{}", who.array) };
    checked(who, array, file)
        .map(|(meta, place)| Node { key, meta, version, place })
        .map_err(|error| Unread { error, attrs, dims })
}

/// Checks the numbers of an array.
fn checked(
    who: Who<'_>,
    array: FileArray,
    file: &Arc<Pages>,
) -> Result<(ArrayMeta, Place), SourceError> {
    let FileArray { shape, dims, raw, big_endian, attrs, narrow, cells } = array;
    let is_swapped = big_endian && raw.size() > 1 && raw.dtype().is_some();
    let bytes = shape.iter().try_fold(raw.size(), |n, &d| n.checked_mul(d));
    let no_chunks = || (shape.iter().map(|&n| n.max(1)).collect::<Dims>(), Codecs::default());
    let mut fill = vec![0; raw.size() as usize];
    let ((unit, codecs), place) = match cells {
        Cells::Flat(offset) => {
            let end = bytes.and_then(|b| b.checked_add(offset));
            if end.is_none_or(|end| end > file.len()) {
                return Err(who.bad(format!(
                    "its cells have {} bytes from byte {offset} on, the file has {}",
                    bytes.map_or_else(|| "more than 2^64".into(), |b| b.to_string()),
                    file.len()
                )));
            }
            (no_chunks(), Place::Flat { file: file.clone(), offset, is_swapped })
        }
        Cells::Inline(all) => {
            if bytes != Some(all.len() as u64) {
                let (is, want) = (all.len(), bytes.unwrap_or(u64::MAX));
                return Err(who.bad(format!("its cells have {is} bytes, expected {want}")));
            }
            (no_chunks(), Place::Inline { bytes: all, is_swapped })
        }
        Cells::Texts(texts) => (no_chunks(), Place::Texts(texts)),
        Cells::Chunks(FileChunks { unit, filters, fill: stored, index }) => {
            if stored.len() != fill.len() {
                return Err(who.bad(format!(
                    "the fill value has {} bytes, a cell {}",
                    stored.len(),
                    fill.len()
                )));
            }
            fill = stored;
            if is_swapped && cfg!(target_endian = "little") {
                fill.reverse();
            }
            check_unit(who, &unit, &raw)?;
            let place = Place::Chunks(InFile { pages: file.clone(), index });
            ((unit, Codecs::File(filters)), place)
        }
    };
    check_lengths(who, &shape, &unit)?;
    let fill = raw.convert(Cow::Owned(fill)).into_owned();
    let dims = dim_names(who, &shape, dims)?;
    let meta = ArrayMeta::of_file(shape, unit, raw, dims, (attrs, narrow), (codecs, fill));
    Ok((meta, place))
}
