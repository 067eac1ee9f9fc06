//! Verifies all files of a store against its manifest.

use super::{Manifest, ManifestRef, Seal};
use crate::sink::{Folder, SinkError};
use crate::source::{ArrayReader, Options, SourceError, Stores, open};
use futures::{StreamExt, stream};
use tessera_planner::region::Region;

/// Upper bound on concurrent reads of files.
const READS_MAX: usize = 8;

/// Upper bound on the bytes read of a file: more than the longest chunk.
const FILE_BYTES_MAX: u64 = 5 << 30;

/// A missing or changed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its path or URL.
    pub file: String,
    /// The expected and the found contents.
    pub reason: String,
}

/// Result of verifying a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Files that were read.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Damaged files.
    pub damaged: Vec<Damage>,
}

impl Checked {
    fn add(&mut self, file: String, found: Found) {
        self.files += 1;
        match found {
            Ok(bytes) => self.bytes += bytes,
            Err(reason) => self.damaged.push(Damage { file, reason }),
        }
    }
}

/// The length of a file, or the damage.
type Found = Result<u64, String>;

/// Verifies all files of the store `key` of a warehouse. Without a manifest its chunks are decoded, and missing chunks
/// are not detected.
///
/// # Errors
/// Errors of the storage, except for a damaged or missing file.
pub async fn check_store(
    folder: &Folder,
    key: &str,
    manifest: Option<&ManifestRef>,
    stores: &Stores,
) -> Result<Checked, SinkError> {
    let Some(reference) = manifest else {
        return decoded(&folder.url(key), stores).await;
    };
    let mut out = Checked::default();
    let at = |file: &str| format!("{key}/{file}");
    let list = at(reference.file());
    let manifest = match look(folder, &list, reference.seal(), false).await? {
        (Some(file), Ok(bytes)) => match Manifest::decode(&file) {
            Ok(manifest) => {
                out.add(folder.url(&list), Ok(bytes));
                manifest
            }
            Err(reason) => {
                out.add(folder.url(&list), Err(reason));
                return Ok(out);
            }
        },
        (_, found) => {
            out.add(folder.url(&list), found);
            return Ok(out);
        }
    };
    let mut looks = stream::iter(manifest.files().collect::<Vec<_>>())
        .map(|(file, seal, is_chunk)| {
            let key = at(&file);
            async move {
                let found = look(folder, &key, seal, is_chunk).await?.1;
                Ok::<_, SinkError>((folder.url(&key), found))
            }
        })
        .buffered(READS_MAX);
    while let Some(looked) = looks.next().await {
        let (file, found) = looked?;
        out.add(file, found);
    }
    Ok(out)
}

/// Reads a file and verifies its seal.
async fn look(
    folder: &Folder,
    key: &str,
    seal: Seal,
    is_chunk: bool,
) -> Result<(Option<bytes::Bytes>, Found), SinkError> {
    let found = match folder.get_up_to(key, FILE_BYTES_MAX).await {
        Ok(found) => found,
        // One unreadable file does not stop the check of the others.
        Err(SinkError::Storage { reason, .. }) => return Ok((None, Err(reason))),
        Err(e) => return Err(e),
    };
    let Some(file) = found else {
        return Ok((None, Err(format!("expected {seal}, found no such file"))));
    };
    let is = match is_chunk {
        true => seal.open(&file).map(|_| ()),
        false if Seal::of(&file) == seal => Ok(()),
        false => Err(Seal::of(&file).to_string()),
    };
    let bytes = file.len() as u64;
    Ok((Some(file), is.map(|()| bytes).map_err(|found| format!("expected {seal}, found {found}"))))
}

/// Decodes all chunks of a store that has no manifest.
async fn decoded(url: &str, stores: &Stores) -> Result<Checked, SinkError> {
    let mut out = Checked::default();
    let opened = match open(url, &Options::warehouse(None), stores).await {
        Ok(opened) => opened,
        Err(e) => {
            let (file, reason) = told(&e, url)?;
            out.add(file, Err(reason));
            return Ok(out);
        }
    };
    for (name, e) in &opened.unsupported {
        let (file, reason) = told(e, &format!("{url}/{name}"))?;
        out.add(file, Err(reason));
    }
    for reader in &opened.readers {
        let grid = reader.source().grid.clone();
        for number in 0..grid.count() {
            let region = grid.region(&grid.unravel(number));
            match read(reader, &region).await {
                Ok(bytes) => out.add(String::new(), Ok(bytes)),
                Err(e) => {
                    let (file, reason) = told(&e, url)?;
                    out.add(file, Err(reason));
                }
            }
        }
    }
    Ok(out)
}

async fn read(reader: &ArrayReader, region: &Region) -> Result<u64, SourceError> {
    let fetched = reader.fetch(region).await?;
    let mut cells = vec![0u8; region.cells() as usize * reader.source().dtype.size()];
    reader.decode(fetched, region, &mut cells)?;
    Ok(cells.len() as u64)
}

/// Returns the file that an error is about and the reason; other storage errors are errors of the check.
fn told(e: &SourceError, url: &str) -> Result<(String, String), SinkError> {
    match e {
        SourceError::Corrupt { path, expected, found } => {
            Ok((path.clone(), format!("expected {expected}, found {found}")))
        }
        SourceError::Chunk { path, reason, .. } | SourceError::Metadata { path, reason, .. } => {
            Ok((path.clone(), reason.clone()))
        }
        SourceError::NotFound { what }
        | SourceError::NotAnArray { what }
        | SourceError::ObjectTooLarge { what, .. }
        | SourceError::Storage { what, .. } => Ok((what.clone(), e.to_string())),
        SourceError::Unreachable { .. }
        | SourceError::Timeout { .. }
        | SourceError::PermissionDenied { .. }
        | SourceError::NoBucket { .. } => Err(e.clone().into()),
        _ => Ok((url.to_string(), e.to_string())),
    }
}
