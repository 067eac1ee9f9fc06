//! LZW as TIFF writes it: codes of 9 to 12 bits, the highest first.
//!
//! A code refers to bytes that were written before, so a table of their places is enough.
//!
//! ```text
//!   out:  t o b e o r n o t t o b …      code 258 = the bytes of the code before and the one after them
//!         ├─┤ 258 ├─┤ 260
//! ```
//!
//! # Source
//! TIFF revision 6.0, section 13. The old form, with the lowest bit first, follows libtiff's `LZWDecodeCompat`.

const CLEAR: usize = 256;
const END: usize = 257;
const FIRST: usize = 258;
const CODES: usize = 4096;

/// Decodes the bytes of `out`, and nothing after them.
pub(super) fn decode(bytes: &[u8], out: &mut [u8]) -> Result<(), String> {
    // A stream begins with the 9 bits of `CLEAR`.
    let is_old = matches!(bytes, [0, second, ..] if second & 1 == 1);
    let mut bits = Bits { bytes: bytes.iter(), held: 0, count: 0, is_old };
    // Start and length of the bytes of each code.
    let mut table = [(0u32, 0u32); CODES];
    let (mut next, mut width, mut done) = (FIRST, 9, 0);
    while done < out.len() {
        let code = match bits.take(width) {
            Some(END) | None => {
                return Err(format!("lzw: it decodes to {done} bytes, expected {}", out.len()));
            }
            Some(CLEAR) => {
                (next, width) = (FIRST, 9);
                continue;
            }
            Some(code) if code >= next => {
                return Err(format!("lzw: code {code} of {next}, after {done} bytes"));
            }
            Some(code) => code,
        };
        let len = if code < CLEAR {
            out[done] = code as u8;
            1
        } else {
            let (start, len) = (table[code].0 as usize, table[code].1 as usize);
            let len = len.min(out.len() - done);
            // The newest code ends with the first byte that this iteration writes, so its bytes may overlap the output.
            match start + len <= done {
                true => out.copy_within(start..start + len, done),
                false => (0..len).for_each(|i| out[done + i] = out[start + i]),
            }
            len
        };
        if next < CODES {
            // The bytes of this code and the first of the code after it.
            table[next] = (done as u32, len as u32 + 1);
            next += 1;
        }
        done += len;
        // The old form changes to longer codes one code later.
        if next >= (1 << width) + usize::from(is_old) && width < 12 {
            width += 1;
        }
    }
    Ok(())
}

/// Codes of a stream.
struct Bits<'a> {
    bytes: std::slice::Iter<'a, u8>,
    held: u32,
    /// Number of bits in `held`.
    count: u32,
    is_old: bool,
}

impl Bits<'_> {
    /// The next `width` bits, `None` if there are fewer.
    fn take(&mut self, width: u32) -> Option<usize> {
        while self.count < width {
            let byte = u32::from(*self.bytes.next()?);
            match self.is_old {
                true => self.held |= byte << self.count,
                false => self.held = self.held << 8 | byte,
            }
            self.count += 8;
        }
        self.count -= width;
        let mask = (1 << width) - 1;
        let code = match self.is_old {
            true => {
                let code = self.held & mask;
                self.held >>= width;
                code
            }
            false => self.held >> self.count & mask,
        };
        Some(code as usize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// The example of the specification, section 13.
    #[test]
    fn the_example_of_the_specification() {
        let codes = [256, 7, 258, 8, 8, 258, 6, 6, 257];
        let bits: String = codes.iter().map(|c| format!("{c:09b}")).collect();
        let bytes: Vec<u8> = bits
            .as_bytes()
            .chunks(8)
            .map(|b| {
                let text = format!("{:0<8}", std::str::from_utf8(b).unwrap());
                u8::from_str_radix(&text, 2).unwrap()
            })
            .collect();
        let mut out = [0; 9];
        decode(&bytes, &mut out).unwrap();
        assert_eq!(out, [7, 7, 7, 8, 8, 7, 7, 6, 6]);
    }
}
