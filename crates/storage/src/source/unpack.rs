//! zstd with the thread's own context: creating one costs more than decoding a small block.

use std::cell::RefCell;
use std::ops::Range;
use zstd::bulk::Decompressor;
use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer, get_error_name};

/// Upper bound on the scratch that a thread retains between chunks.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// Bytes that are skipped at a time: a block of zstd.
const SKIP_BYTES: usize = 128 << 10;

thread_local! {
    static WHOLE: RefCell<Decompressor<'static>> = RefCell::default();
    static STREAM: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static SKIPPED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Decodes all of `bytes` to `out`, which is large enough, and returns the number of bytes written.
pub(crate) fn whole(bytes: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let limit = out.len();
    WHOLE
        .with_borrow_mut(|z| z.decompress_to_buffer(bytes, out))
        .map_err(|e| format!("zstd: {e} (expected at most {limit} bytes)"))
}

/// Decodes the range `range` of `bytes`' content, and nothing after it; false if the content is shorter.
pub(crate) fn part(bytes: &[u8], range: Range<usize>, out: &mut [u8]) -> Result<bool, String> {
    let told = |code: usize| format!("zstd: {}", get_error_name(code));
    STREAM.with_borrow_mut(|kept| {
        let z = match kept {
            Some(z) => z,
            None => kept.insert(DCtx::try_create().ok_or("zstd: no memory for its context")?),
        };
        z.init().map_err(told)?;
        let mut from = InBuffer::around(bytes);
        let mut left = range.start;
        while left > 0 {
            let n = left.min(SKIP_BYTES);
            let some = SKIPPED.with_borrow_mut(|to| {
                fill(z, &mut from, at_least(to, SKIP_BYTES).split_at_mut(n).0)
            });
            if some.map_err(told)? < n {
                return Ok(false);
            }
            left -= n;
        }
        Ok(fill(z, &mut from, out).map_err(told)? == out.len())
    })
}

/// Decodes until `out` is full or the input ends.
fn fill(z: &mut DCtx<'_>, from: &mut InBuffer<'_>, out: &mut [u8]) -> Result<usize, usize> {
    let mut to = OutBuffer::around(out);
    loop {
        let (read, written) = (from.pos(), to.pos());
        if written == to.capacity() {
            return Ok(written);
        }
        z.decompress_stream(&mut to, from)?;
        if (from.pos(), to.pos()) == (read, written) {
            return Ok(written);
        }
    }
}

/// Frees a buffer that is too large to be retained.
pub(crate) fn forget_large(buffer: &mut Vec<u8>) {
    if buffer.len() > KEPT_BYTES_MAX {
        *buffer = Vec::new();
    }
}

/// Grows a buffer to at least that length.
pub(crate) fn at_least(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    &mut buffer[..bytes]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn parts_are_parts_of_the_whole() {
        let cells: Vec<u8> = (0..300_000u32).flat_map(|i| (i * 7 / 5).to_le_bytes()).collect();
        let packed = zstd::bulk::compress(&cells, 1).unwrap();
        for range in [0..4, 4..40_000, 131_072..262_144, 1_199_000..1_200_000, 0..1_200_000, 8..8] {
            let mut out = vec![0; range.len()];
            assert!(part(&packed, range.clone(), &mut out).unwrap(), "{range:?}");
            assert!(out == cells[range]);
        }
        let mut out = vec![0; 8];
        assert!(!part(&packed, 1_199_996..1_200_004, &mut out).unwrap());
        assert!(!part(&packed, 1_300_000..1_300_008, &mut out).unwrap());
        assert!(!part(&packed[..packed.len() / 2], 1_199_992..1_200_000, &mut out).unwrap());
        assert!(part(&cells[4..], 0..8, &mut out).is_err());
        // After an error the context works again.
        assert!(part(&packed, 0..8, &mut out).unwrap());
        assert_eq!(out, cells[..8]);
    }
}
