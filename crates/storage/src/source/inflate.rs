//! Whole streams of deflate, decoded at once.
//!
//! libdeflate needs all of the input and memory for all of the output, and is 1.5 times as fast as a streaming decoder.
//! If it fails, flate2 decodes again: flate2 returns the reason, or accepts a stream that is nearly valid.

use libdeflater::Decompressor;
use std::cell::RefCell;

thread_local! {
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

/// Decodes a zlib stream; the number of its bytes, or `None` if it is invalid or has more than `out`.
pub(crate) fn zlib(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    DECOMPRESSOR.with_borrow_mut(|d| d.zlib_decompress(bytes, out)).ok()
}

/// Decodes the first member of a gzip stream, as [`zlib`].
pub(crate) fn gzip(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    DECOMPRESSOR.with_borrow_mut(|d| d.gzip_decompress(bytes, out)).ok()
}
