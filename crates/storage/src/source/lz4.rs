//! numcodecs' LZ4: the decoded length, then one LZ4 block.
//!
//! ```text
//!   u32 length, little-endian │ sequences: token │ more of the literals' length │ literals │ u16 offset │ more length
//! ```
//!
//! # Source
//! numcodecs 0.16, `lz4.pyx`; LZ4 block format description (lz4.org), end-of-block rules not enforced.

/// Decodes `bytes` to `out`, which is large enough, and returns the number of bytes written.
pub(crate) fn unpack(bytes: &[u8], out: &mut [u8]) -> Result<usize, String> {
    let (header, block) = bytes.split_first_chunk::<4>().ok_or("lz4: it has no header")?;
    let len = u32::from_le_bytes(*header) as usize;
    let room = out.len();
    let Some(out) = out.get_mut(..len) else {
        return Err(format!("lz4: it decodes to {len} bytes, expected at most {room}"));
    };
    match block_of(block, out) {
        Some(n) if n == len => Ok(n),
        _ => Err("lz4: the block is damaged".into()),
    }
}

/// The decoded length in the header of a packed buffer.
pub(crate) fn length(bytes: &[u8]) -> Result<u64, String> {
    let header = bytes.first_chunk::<4>().ok_or("lz4: it has no header")?;
    Ok(u32::from_le_bytes(*header).into())
}

/// Decodes a block; `None` if it is damaged or does not fit.
pub(crate) fn block_of(mut from: &[u8], out: &mut [u8]) -> Option<usize> {
    fn more(from: &mut &[u8], mut n: usize) -> Option<usize> {
        if n == 15 {
            loop {
                let (&b, rest) = from.split_first()?;
                *from = rest;
                n = n.checked_add(b.into())?;
                if b != 255 {
                    break;
                }
            }
        }
        Some(n)
    }
    let mut at = 0usize;
    loop {
        let (&token, rest) = from.split_first()?;
        from = rest;
        let literals = more(&mut from, usize::from(token >> 4))?;
        let (copied, rest) = from.split_at_checked(literals)?;
        out.get_mut(at..at.checked_add(literals)?)?.copy_from_slice(copied);
        (from, at) = (rest, at + literals);
        // The last sequence has literals only.
        if from.is_empty() {
            return Some(at);
        }
        let (offset, rest) = from.split_first_chunk::<2>()?;
        from = rest;
        let offset = usize::from(u16::from_le_bytes(*offset));
        let len = more(&mut from, usize::from(token & 15))?.checked_add(4)?;
        let start = at.checked_sub(offset).filter(|_| offset > 0)?;
        if out.len() - at < len {
            return None;
        }
        // A match may overlap the bytes that it writes.
        for i in 0..len {
            out[at + i] = out[start + i];
        }
        at += len;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// `numcodecs.LZ4().encode(bytes(range(20)) * 30 + b"end")`.
    const PACKED: &[u8] = &[
        91, 2, 0, 0, 255, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
        20, 0, 255, 255, 49, 80, 18, 19, 101, 110, 100,
    ];

    #[test]
    fn blocks_of_numcodecs_are_unpacked() {
        let mut want: Vec<u8> = (0..20).collect::<Vec<u8>>().repeat(30);
        want.extend(b"end");
        assert_eq!(length(PACKED).unwrap(), 603);
        let mut out = vec![0; 603];
        assert_eq!(unpack(PACKED, &mut out).unwrap(), 603);
        assert_eq!(out, want);
        assert!(unpack(PACKED, &mut out[..602]).unwrap_err().contains("at most 602"));
        // Every truncation and every flipped bit yields bytes or an error, never a panic.
        for cut in 0..PACKED.len() {
            assert!(unpack(&PACKED[..cut], &mut out).is_err(), "{cut}");
            for bit in 0..8 {
                let mut flipped = PACKED.to_vec();
                flipped[cut] ^= 1 << bit;
                let _ = unpack(&flipped, &mut out);
            }
        }
    }
}
