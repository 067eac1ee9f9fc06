//! Whole streams of deflate, decoded at once.
//!
//! libdeflate needs all of the input and memory for all of the output, and is 1.5 times as fast as a streaming decoder.
//! If it fails, flate2 decodes again: flate2 returns the reason, or accepts a stream that is nearly valid.

use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::Decompressor;
use std::cell::RefCell;

thread_local! {
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
}

/// Decodes a zlib stream; the number of its bytes, or `None` if it is invalid or has more than `out`.
pub(crate) fn zlib(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    DECOMPRESSOR.with_borrow_mut(|d| d.zlib_decompress(bytes, out)).ok()
}

/// Decodes the first member of a gzip stream, as [`zlib`].
pub(crate) fn gzip(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    DECOMPRESSOR.with_borrow_mut(|d| d.gzip_decompress(bytes, out)).ok()
}

/// Decodes a zlib stream that may be damaged until `out` is full: the number of its bytes, and true if it ends there.
pub(crate) fn zlib_until_full(bytes: &[u8], out: &mut [u8]) -> Result<(usize, bool), String> {
    if let Some(n) = zlib(bytes, out) {
        return Ok((n, true));
    }
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(true);
        let done = inflate.decompress(bytes, out, FlushDecompress::Finish);
        let n = inflate.total_out() as usize;
        match done {
            Ok(status) => Ok((n, status == Status::StreamEnd)),
            Err(e) => Err(format!("deflate: {e}, after {n} bytes")),
        }
    })
}
