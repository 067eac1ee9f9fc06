//! The manifest of a warehouse store: a file of the store that lists all its files, with their lengths and checksums.
//!
//! ```text
//!   catalog/<name>.json ──seal──▶ data/<uuid>.zarr/x/manifest ──seals──▶ zarr.json, x/zarr.json, x/c/0/0, …
//!
//!   "tessera manifest 1\n" │ length of the header, u32 LE │ header, JSON │ for each chunk: number, u64; length, u32;
//!                                                                           CRC-32C, u32; little-endian
//! ```
//! The header has the seals of the documents and, for each array, its grid and the number of its chunks that follow. A
//! chunk's number is row-major in the grid. A chunk that is not listed was never written, and its cells are the fill
//! value. So a missing, truncated, changed or misplaced file is detected as damaged, whatever its contents.
//!
//! Chunks end with the CRC-32C of the preceding bytes (four bytes, the Zarr codec `crc32c`), and the manifest lists the
//! same checksum: one pass over a chunk verifies both. Documents are sealed as a whole. The manifest's own seal is in
//! the catalog. The manifest lies beside the chunks of the first array, where Zarr readers list nothing: readers that
//! list the members of a group would warn of it in the group.

mod check;

pub use check::{Checked, Damage, check_store};

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use tessera_planner::region::Dims;

/// Name of the file, below that of an array.
const NAME: &str = "manifest";

/// Bytes of the checksum at the end of a chunk.
pub(crate) const TRAILER: usize = 4;

/// The first line, with the version of the format.
const MAGIC: &[u8; 19] = b"tessera manifest 1\n";

/// Bytes of a chunk's entry.
const ENTRY: usize = 16;

/// Identifies the contents of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Length of the file.
    pub bytes: u64,
    /// CRC-32C of its contents; of a chunk, of the bytes before the checksum at its end.
    pub crc32c: u32,
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes with CRC-32C {:08x}", self.bytes, self.crc32c)
    }
}

impl Seal {
    /// The seal of a file.
    pub fn of(contents: &[u8]) -> Seal {
        Seal { bytes: contents.len() as u64, crc32c: crc32c::crc32c(contents) }
    }

    /// The seal of a chunk that ends with its checksum.
    pub(crate) fn of_chunk(encoded: &[u8]) -> Seal {
        Seal { bytes: encoded.len() as u64, crc32c: trailer(encoded).unwrap_or_default() }
    }

    /// Returns the payload of a chunk if it matches this seal, else a description of the mismatch.
    pub(crate) fn open(self, encoded: &[u8]) -> Result<&[u8], String> {
        let found = |crc: u32| Seal { bytes: encoded.len() as u64, crc32c: crc }.to_string();
        let Some((payload, end)) = encoded.split_last_chunk::<TRAILER>() else {
            return Err(format!("{} bytes", encoded.len()));
        };
        if encoded.len() as u64 != self.bytes {
            return Err(format!("{} bytes", encoded.len()));
        }
        let (told, is) = (u32::from_le_bytes(*end), crc32c::crc32c(payload));
        match (told == self.crc32c, is == self.crc32c) {
            (true, true) => Ok(payload),
            (false, true) => Err(format!("{} that says {told:08x}", found(is))),
            _ => Err(found(is)),
        }
    }
}

/// The manifest file of a store, and its seal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestRef {
    file: String,
    // Not a `Seal`: the fields of one in another would have no binary form.
    bytes: u64,
    crc32c: u32,
}

impl ManifestRef {
    /// The reference to a manifest beside the chunks of `array`.
    pub(crate) fn new(array: &str, contents: &[u8]) -> Self {
        let Seal { bytes, crc32c } = Seal::of(contents);
        ManifestRef { file: format!("{array}/{NAME}"), bytes, crc32c }
    }

    /// Its key in the store.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn seal(&self) -> Seal {
        Seal { bytes: self.bytes, crc32c: self.crc32c }
    }
}

fn trailer(encoded: &[u8]) -> Option<u32> {
    encoded.last_chunk::<TRAILER>().map(|end| u32::from_le_bytes(*end))
}

/// A chunk of an array that has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    /// Its number in the grid, row-major.
    pub(crate) number: u64,
    bytes: u32,
    crc32c: u32,
}

impl Stored {
    /// Returns `None` for a chunk beyond 4 GiB, which nothing writes.
    pub(crate) fn new(number: u64, seal: Seal) -> Option<Stored> {
        Some(Stored { number, bytes: u32::try_from(seal.bytes).ok()?, crc32c: seal.crc32c })
    }

    pub(crate) fn seal(self) -> Seal {
        Seal { bytes: self.bytes.into(), crc32c: self.crc32c }
    }
}

/// The chunks of an array that have files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Number of chunks along each axis.
    grid: Dims,
    /// Sorted by number.
    stored: Vec<Stored>,
}

impl Chunks {
    pub(crate) fn new(grid: Dims, mut stored: Vec<Stored>) -> Chunks {
        stored.sort_unstable();
        Chunks { grid, stored }
    }

    /// The seal of a chunk; `None` if it was never written.
    pub(crate) fn get(&self, index: &[u64]) -> Option<Seal> {
        let number = number_of(&self.grid, index);
        let at = self.stored.binary_search_by_key(&number, |s| s.number).ok()?;
        Some(self.stored[at].seal())
    }

    /// Iterates over the index and seal of each chunk.
    fn iter(&self) -> impl Iterator<Item = (Dims, Seal)> {
        self.stored.iter().map(|s| (index_of(&self.grid, s.number), s.seal()))
    }
}

/// The index of a chunk in its grid by its row-major number.
pub(crate) fn index_of(grid: &Dims, number: u64) -> Dims {
    let (mut rest, mut index) = (number, grid.clone());
    for (at, n) in index.iter_mut().zip(grid).rev() {
        *at = rest % n;
        rest /= n;
    }
    index
}

/// The row-major number of a chunk in its grid.
pub(crate) fn number_of(grid: &[u64], index: &[u64]) -> u64 {
    let axes = grid.iter().zip(index);
    axes.fold(0u64, |number, (n, i)| number.saturating_mul(*n).saturating_add(*i))
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) documents: BTreeMap<String, Seal>,
    pub(crate) arrays: BTreeMap<String, Arc<Chunks>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    documents: BTreeMap<String, Seal>,
    arrays: BTreeMap<String, Array>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Array {
    grid: Dims,
    chunks: u64,
}

impl Manifest {
    /// Approximate bytes in memory.
    pub(crate) fn bytes(&self) -> u64 {
        let chunks: usize = self.arrays.values().map(|a| a.stored.len()).sum();
        (chunks * ENTRY + 64 * self.documents.len()) as u64
    }

    /// Encodes the file.
    ///
    /// # Errors
    /// A header of 4 GiB, which no store has.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let array = |c: &Arc<Chunks>| Array { grid: c.grid.clone(), chunks: c.stored.len() as u64 };
        let header = Header {
            documents: self.documents.clone(),
            arrays: self.arrays.iter().map(|(name, c)| (name.clone(), array(c))).collect(),
        };
        let header = serde_json::to_vec(&header).map_err(|e| e.to_string())?;
        let length = u32::try_from(header.len()).map_err(|e| e.to_string())?;
        let mut out = Vec::with_capacity(MAGIC.len() + 4 + header.len() + self.bytes() as usize);
        out.extend(MAGIC);
        out.extend(length.to_le_bytes());
        out.extend(header);
        for s in self.arrays.values().flat_map(|a| &a.stored) {
            out.extend(s.number.to_le_bytes());
            out.extend(s.bytes.to_le_bytes());
            out.extend(s.crc32c.to_le_bytes());
        }
        Ok(out)
    }

    /// Decodes a manifest file.
    ///
    /// # Errors
    /// The reason why the file is invalid.
    pub(crate) fn decode(file: &[u8]) -> Result<Manifest, String> {
        let rest = file.strip_prefix(MAGIC).ok_or("it does not begin as a manifest does")?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or("it has no header")?;
        let length = u32::from_le_bytes(*length) as usize;
        let (header, rest) = rest.split_at_checked(length).ok_or("its header is cut off")?;
        let header: Header = serde_json::from_slice(header).map_err(|e| e.to_string())?;
        let (entries, left) = rest.as_chunks::<ENTRY>();
        let listed = header.arrays.values().fold(0u64, |n, array| n.saturating_add(array.chunks));
        if !left.is_empty() || listed != entries.len() as u64 {
            return Err(format!("it has {} bytes of chunks for {listed}", rest.len()));
        }
        let mut entries = entries.iter().map(|entry| {
            let word = |at: usize| {
                u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
            };
            let number = u64::from(word(0)) | u64::from(word(4)) << 32;
            Stored { number, bytes: word(8), crc32c: word(12) }
        });
        let arrays = header.arrays.into_iter().map(|(name, array)| {
            let stored: Vec<Stored> = entries.by_ref().take(array.chunks as usize).collect();
            let in_order = stored.windows(2).all(|w| w[0].number < w[1].number);
            let count = array.grid.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            let fits = stored.last().is_none_or(|s| count.is_some_and(|n| s.number < n));
            match in_order && fits {
                true => Ok((name, Arc::new(Chunks { grid: array.grid, stored }))),
                false => Err(format!("the chunks of `{name}` do not fit its grid")),
            }
        });
        let arrays = arrays.collect::<Result<_, String>>()?;
        Ok(Manifest { documents: header.documents, arrays })
    }

    /// Iterates over the key of each file with its seal; chunks have Zarr v3's default key encoding. True for a
    /// chunk.
    fn files(&self) -> impl Iterator<Item = (String, Seal, bool)> {
        let documents = self.documents.iter().map(|(key, seal)| (key.clone(), *seal, false));
        let chunks = self.arrays.iter().flat_map(|(name, chunks)| {
            chunks.iter().map(move |(index, seal)| {
                let at: String = index.iter().map(|i| format!("/{i}")).collect();
                (format!("{name}/c{at}"), seal, true)
            })
        });
        documents.chain(chunks)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The check value of CRC-32C (RFC 3720, and every catalogue of CRCs): of "123456789".
    const CHECK: u32 = 0xe306_9283;

    fn chunk(payload: &[u8]) -> Vec<u8> {
        [payload, &crc32c::crc32c(payload).to_le_bytes()].concat()
    }

    fn manifest() -> Manifest {
        let stored =
            |n: u64, payload: &[u8]| Stored::new(n, Seal::of_chunk(&chunk(payload))).unwrap();
        let of_x = Chunks::new(Dims::from_slice(&[2, 3]), vec![stored(5, b"b"), stored(1, b"a")]);
        let of_s = Chunks::new(Dims::new(), vec![stored(0, b"123456789")]);
        Manifest {
            documents: BTreeMap::from([("zarr.json".into(), Seal::of(b"{}"))]),
            arrays: BTreeMap::from([("x".into(), of_x.into()), ("s".into(), of_s.into())]),
        }
    }

    #[test]
    fn files_are_found_by_what_they_are() {
        let m = manifest();
        let x = &m.arrays["x"];
        assert_eq!(x.get(&[0, 1]), Some(Seal::of_chunk(&chunk(b"a"))));
        assert_eq!((x.get(&[0, 0]), x.get(&[1, 1])), (None, None));
        assert_eq!(m.arrays["s"].get(&[]), Some(Seal { bytes: 13, crc32c: CHECK }));
        let keys: Vec<String> = m.files().map(|(key, _, _)| key).collect();
        assert_eq!(keys, ["zarr.json", "s/c", "x/c/0/1", "x/c/1/2"]);
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_no_part_of_it_is() {
        let m = manifest();
        let file = m.encode().unwrap();
        assert_eq!(Manifest::decode(&file).unwrap(), m);
        for cut in 0..file.len() {
            assert!(Manifest::decode(&file[..cut]).is_err(), "{cut}");
        }
        assert!(Manifest::decode(&[&file[..], &[0; ENTRY]].concat()).is_err());
        // A number beyond the grid, and a duplicate number.
        let at = file.len() - ENTRY;
        for number in [6u64, 1] {
            let mut other = file.clone();
            other[at..at + 8].copy_from_slice(&number.to_le_bytes());
            assert!(Manifest::decode(&other).is_err(), "{number}");
        }
    }

    #[test]
    fn every_change_of_a_chunk_is_found() {
        let good = chunk(b"some cells");
        let seal = Seal::of_chunk(&good);
        assert_eq!(seal.open(&good).unwrap(), b"some cells");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open(&bad).is_err(), "{bit}");
        }
        for cut in 0..good.len() {
            assert!(seal.open(&good[..cut]).is_err(), "{cut}");
        }
        // Another chunk is valid in itself, but has not this seal.
        assert!(seal.open(&chunk(b"more cells")).is_err());
    }
}
