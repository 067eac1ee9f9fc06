//! Filter pipelines.
//!
//! # Source
//! HDF5 File Format Specification 3.0, IV.A.2.l; "Registered Filter Plugins" of The HDF Group for names and numbers.

use crate::formats::filters::{Checksum, Deflate, Filter, Filters, Shuffle, Stream, Zstd};
use crate::formats::hdf5::bits::{NBit, ScaleOffset};
use crate::formats::hdf5::codecs::{BitShuffle, Blosc, Lz4, Lzf};
use crate::formats::hdf5::szip::Szip;
use crate::formats::numbers::Reader;
use crate::formats::view::Fault;
use std::sync::Arc;

/// Upper bound on the filters of a dataset: chunks have a mask of 32 bits.
const FILTERS_MAX: u8 = 32;

/// The filters of a dataset, in the order in which they are applied.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    list: Vec<FilterEntry>,
}

#[derive(Debug)]
struct FilterEntry {
    id: u16,
    name: String,
    values: Vec<u32>,
}

/// Parses the message.
pub(super) fn list(r: &mut Reader<'_>) -> Result<Pipeline, Fault> {
    let at = r.offset();
    let (version, count) = (r.u8()?, r.u8()?);
    if !matches!(version, 1 | 2) || count > FILTERS_MAX {
        return Err(Fault::bad(at, format!("{count} filters in a list of version {version}")));
    }
    r.skip(if version == 1 { 6 } else { 0 })?;
    let mut out = Pipeline::default();
    for _ in 0..count {
        let id = r.u16()?;
        let name_bytes = if version == 1 || id >= 256 { r.u16()? } else { 0 };
        r.skip(2)?;
        let count = r.u16()?;
        let pad = if version == 1 {
            usize::from(name_bytes).next_multiple_of(8)
        } else {
            name_bytes.into()
        };
        let name = String::from_utf8_lossy(r.bytes(pad)?).trim_end_matches('\0').to_string();
        let values = (0..count).map(|_| r.u32()).collect::<Result<_, _>>()?;
        r.skip(if version == 1 && count % 2 == 1 { 4 } else { 0 })?;
        out.list.push(FilterEntry { id, name, values });
    }
    Ok(out)
}

impl Pipeline {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The codecs of chunks of `bytes` bytes with numbers of `swapped` bytes. The error names a filter that is not
    /// known.
    pub(super) fn filters(&self, bytes: u64, swapped: usize) -> Result<Filters, String> {
        let list = self.list.iter().map(FilterEntry::filter).collect::<Result<_, _>>()?;
        Ok(Filters::new(list, bytes, swapped))
    }
}

impl FilterEntry {
    fn value(&self, i: usize) -> Result<usize, String> {
        let v = self.values.get(i).map(|v| *v as usize);
        v.ok_or_else(|| format!("HDF5 filter {} with {} parameters", self.id, self.values.len()))
    }

    fn filter(&self) -> Result<Arc<dyn Filter>, String> {
        Ok(match self.id {
            1 => Arc::new(Deflate),
            2 => Arc::new(Shuffle { size: self.value(0)? }),
            3 => Arc::new(Checksum::fletcher32()),
            4 => Arc::new(Szip::new(&self.values)?),
            5 => Arc::new(NBit::new(&self.values)?),
            6 => Arc::new(ScaleOffset::new(&self.values)?),
            307 => Arc::new(Stream::Bzip2),
            32000 => Arc::new(Lzf),
            32001 => Arc::new(Blosc),
            32004 => Arc::new(Lz4),
            32008 => Arc::new(BitShuffle::new(&self.values)?),
            32015 => Arc::new(Zstd),
            id => {
                let known = match id {
                    305 => "LZO",
                    32013 => "ZFP",
                    32017 => "SZ",
                    32019 => "FCIDECOMP",
                    32024 => "SZ3",
                    32026 => "Blosc2",
                    32012 => "Granular BitRound",
                    32018 => "FPZIP",
                    32023 => "B3D",
                    _ => &self.name,
                };
                return Err(match known {
                    "" => format!("HDF5 filter {id}"),
                    name => format!("HDF5 filter `{name}` ({id})"),
                });
            }
        })
    }
}
