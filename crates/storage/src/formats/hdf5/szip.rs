//! HDF5's filter szip.
//!
//! # Source
//! HDF5's `H5Zszip.c`; libaec's `sz_compat.c` for lines and for numbers of 32 and 64 bits.

use crate::formats::aec::Aec;
use crate::formats::filters::Filter;
use std::borrow::Cow;

/// Options of the filter: the highest byte of a sample comes first, samples are differences.
const MSB: u32 = 16;
const PREDICTED: u32 = 32;

/// Numbers of `bits` bits in lines of `line` numbers.
#[derive(Debug)]
pub(super) struct Szip {
    aec: Aec,
    is_msb: bool,
    /// Numbers of a line, each of which begins a new interval.
    line: usize,
    /// Bytes of a number whose bytes are stored apart; 1 if they are not.
    planes: usize,
}

impl Szip {
    pub(super) fn new(values: &[u32]) -> Result<Szip, String> {
        let &[options, block, bits, line, ..] = values else {
            return Err(format!("HDF5 filter szip with {} parameters", values.len()));
        };
        let (block, line) = (block as usize, line as usize);
        let is_known = (1..=32).contains(&bits) || bits == 64;
        if !is_known || !(1..=1024).contains(&block) || !(block..=1 << 20).contains(&line) {
            let what =
                format!("HDF5 filter szip with {bits} bits, blocks of {block}, lines of {line}");
            return Err(what);
        }
        let planes = if matches!(bits, 32 | 64) { bits as usize / 8 } else { 1 };
        let aec = Aec {
            bits: if planes > 1 { 8 } else { bits },
            block,
            interval: line.div_ceil(block),
            is_signed: false,
            is_predicted: options & PREDICTED != 0,
            is_restricted: false,
            is_padded: false,
        };
        Ok(Szip { aec, is_msb: options & MSB != 0, line, planes })
    }
}

impl Filter for Szip {
    fn undo<'a>(&self, bytes: Cow<'a, [u8]>, limit: usize) -> Result<Cow<'a, [u8]>, String> {
        let (head, stream) = bytes.split_first_chunk::<4>().ok_or("szip: it has no header")?;
        let len = u32::from_le_bytes(*head) as usize;
        if len > limit {
            return Err(format!("szip: it decodes to {len} bytes, expected at most {limit}"));
        }
        let width = match self.aec.bits {
            0..=8 => 1,
            9..=16 => 2,
            _ => 4,
        };
        let count = len / width;
        // Lines are filled up to whole blocks.
        let padded = self.line.next_multiple_of(self.aec.block);
        let lines = count.div_ceil(self.line);
        let samples = self.aec.decode(stream, lines.saturating_mul(padded))?;
        let kept = samples.chunks(padded).flat_map(|line| &line[..self.line.min(line.len())]);
        let mut out = Vec::with_capacity(len);
        for v in kept.take(count) {
            match self.is_msb {
                true => out.extend_from_slice(&v.to_be_bytes()[4 - width..]),
                false => out.extend_from_slice(&v.to_le_bytes()[..width]),
            }
        }
        if self.planes > 1 {
            let apart = out;
            let count = apart.len() / self.planes;
            out = vec![0; apart.len()];
            for (b, plane) in apart.chunks_exact(count.max(1)).take(self.planes).enumerate() {
                for (i, v) in plane.iter().enumerate() {
                    out[i * self.planes + b] = *v;
                }
            }
        }
        Ok(Cow::Owned(out))
    }
}
