//! The object versions that a statement has read, written to storage before the chunks that depend on them.
//!
//! ```text
//!   folder/<statement>/reads/<part>-<any>     "tessera reads 1\n" │ object, version: u64 LE each … │ CRC-32, u32 LE
//! ```
//! A rerun statement starts with all of these versions: an object that it reads again is read in that version, or the
//! statement fails. So reused chunks and recomputed chunks are of the same objects.
//!
//! A part is one statement of a script. A later part may read what an earlier one wrote, so each has its own chunks.

use super::{Durable, DurableStore};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tessera_storage::lock;
use tessera_storage::sink::SinkError;
use tessera_storage::source::{Noted, SourceError, Versions};

/// The first line, with the version of the format.
const MAGIC: &[u8; 16] = b"tessera reads 1\n";
/// Upper bound on the bytes of an object; more than any object has.
const BYTES_MAX: u64 = 32 << 20;

/// The versions that each part of a statement reads, with those already written down.
#[derive(Debug, Default)]
pub(super) struct Reads {
    parts: Mutex<Vec<(usize, Arc<Versions>)>>,
    /// Held during a write: once acquired, earlier reads are written down.
    writing: tokio::sync::Mutex<()>,
}

impl Reads {
    /// Number of the running part.
    pub(super) fn part(&self) -> usize {
        lock(&self.parts).last().map_or(0, |(part, _)| *part)
    }

    /// Number of the running part, and the versions that it has read.
    pub(super) fn now(&self) -> (usize, Vec<Noted>) {
        lock(&self.parts).last().map_or((0, Vec::new()), |(part, versions)| (*part, versions.all()))
    }

    /// False if reads were not recorded: no chunk may depend on them.
    pub(super) fn are_known(&self) -> bool {
        lock(&self.parts).iter().all(|(_, versions)| versions.is_whole())
    }
}

impl Durable {
    /// Makes `part` the running part of the statement, which reads in `versions`.
    pub fn begin_part(&self, part: usize, versions: &Arc<Versions>) {
        lock(&self.reads.parts).push((part, versions.clone()));
    }

    /// Writes down the reads so far, so that a later run reads the same versions.
    ///
    /// # Errors
    /// Errors of the storage.
    pub async fn keep_reads(&self) -> Result<(), SinkError> {
        let _one = self.reads.writing.lock().await;
        let parts = lock(&self.reads.parts).clone();
        for (part, versions) in parts {
            let new = versions.take();
            if new.is_empty() {
                continue;
            }
            let name = uuid::Uuid::new_v4().simple();
            let object = format!("{}/{part}-{name}", reads_of(&self.statement));
            if let Err(e) = self.store.folder.put_parts(&object, vec![encode(&new)]).await {
                versions.give_back(new);
                return Err(e);
            }
        }
        Ok(())
    }
}

impl DurableStore {
    /// Returns the reads of each part of a statement in its earlier runs.
    ///
    /// # Errors
    /// Errors of the storage; a corrupt object: then no chunk of the statement may be used.
    pub async fn reads(&self, statement: &str) -> Result<BTreeMap<usize, Vec<Noted>>, SinkError> {
        let mut all: BTreeMap<usize, Vec<Noted>> = BTreeMap::new();
        let below = reads_of(statement);
        for (name, _) in self.folder.list_below(&below).await? {
            let key = format!("{below}/{name}");
            let bad = |reason: &str| {
                let what = self.folder.url(&key);
                SinkError::Source(SourceError::Storage { what, reason: reason.into() })
            };
            let part = name.split_once('-').and_then(|(part, _)| part.parse().ok());
            let part = part.ok_or_else(|| bad("its name is not that of a list of versions"))?;
            let bytes = self.folder.get_up_to(&key, BYTES_MAX).await?;
            let noted = decode(&bytes.ok_or_else(|| bad("it is not there any more"))?);
            all.entry(part).or_default().extend(noted.map_err(bad)?);
        }
        Ok(all)
    }
}

fn reads_of(statement: &str) -> String {
    format!("{statement}/reads")
}

fn encode(noted: &[Noted]) -> Bytes {
    let mut out = Vec::with_capacity(MAGIC.len() + 16 * noted.len() + 4);
    out.extend(MAGIC);
    for (object, version) in noted {
        out.extend(object.to_le_bytes());
        out.extend(version.to_le_bytes());
    }
    out.extend(crc32fast::hash(&out).to_le_bytes());
    out.into()
}

fn decode(bytes: &[u8]) -> Result<Vec<Noted>, &'static str> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it is cut off")?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err("its checksum does not hold");
    }
    let numbers = body.strip_prefix(MAGIC).ok_or("it is of another version")?;
    let (pairs, rest) = numbers.as_chunks::<16>();
    let number = |half: &[u8]| half.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    match rest {
        [] => Ok(pairs.iter().map(|p| (number(&p[..8]), number(&p[8..]))).collect()),
        _ => Err("it has half an entry"),
    }
}
