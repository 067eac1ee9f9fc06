//! Simple compressions. They decode the bytes of a segment and ignore trailing bytes: writers may pad the last strip.

use crate::source::{inflate, unpack};

pub(super) fn copy(bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
    let part = bytes
        .get(..out.len())
        .ok_or_else(|| format!("{} bytes, expected {}", bytes.len(), out.len()))?;
    out.copy_from_slice(part);
    Ok(())
}

pub(super) fn inflate(bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
    match inflate::zlib_until_full(bytes, out)? {
        (n, _) if n == out.len() => Ok(()),
        (n, _) => Err(format!("deflate: it decodes to {n} bytes, expected {}", out.len())),
    }
}

/// A frame that is longer than the segment is an error: its window would need memory that the segment does not.
pub(super) fn zstd(bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
    match unpack::whole(bytes, out)? {
        n if n == out.len() => Ok(()),
        n => Err(format!("zstd: it decodes to {n} bytes, expected {}", out.len())),
    }
}

/// # Source
/// TIFF revision 6.0, section 9.
pub(super) fn packbits(bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
    let (mut at, mut done) = (0, 0);
    let all = out.len();
    let short = |done| format!("packbits: it decodes to {done} bytes, expected {all}");
    while done < out.len() {
        let n = *bytes.get(at).ok_or_else(|| short(done))? as i8;
        let count = usize::from(n.unsigned_abs()) + 1;
        at += 1;
        match n {
            // No operation.
            -128 => {}
            0.. => {
                let end = (done + count).min(out.len());
                let from = bytes.get(at..at + (end - done)).ok_or_else(|| short(done))?;
                out[done..end].copy_from_slice(from);
                (at, done) = (at + count, end);
            }
            _ => {
                let end = (done + count).min(out.len());
                let byte = *bytes.get(at).ok_or_else(|| short(done))?;
                out[done..end].fill(byte);
                (at, done) = (at + 1, end);
            }
        }
    }
    Ok(())
}
