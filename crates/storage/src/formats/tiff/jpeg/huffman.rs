//! Huffman codes of a scan.
//!
//! # Source
//! ITU-T T.81, annex C and figures F.12 to F.18.

use std::sync::Arc;

/// Codes of up to this many bits are found in a table.
const SHORT: u32 = 9;

/// A table of codes.
#[derive(Clone)]
pub(super) struct Huffman(Arc<Table>);

struct Table {
    /// Symbol and length of the code that these bits begin with; length 0: it is longer.
    short: [(u8, u8); 1 << SHORT],
    /// By length: the first code that is longer, as 16 bits.
    ends: [u32; 17],
    /// By length: the number to add to a code to get the index of its symbol.
    shifts: [i32; 17],
    symbols: Vec<u8>,
}

impl Huffman {
    /// The codes of `symbols`, of which there are `counts[i]` of the length `i + 1`.
    pub(super) fn new(counts: &[u8], symbols: &[u8]) -> Result<Huffman, String> {
        let mut table = Table {
            short: [(0, 0); 1 << SHORT],
            ends: [0; 17],
            shifts: [0; 17],
            symbols: symbols.to_vec(),
        };
        let (mut code, mut index) = (0u32, 0usize);
        for (len, count) in (1..).zip(counts) {
            table.shifts[len as usize] = index as i32 - code as i32;
            for _ in 0..*count {
                if code >= 1 << len {
                    return Err(format!("jpeg: too many Huffman codes of {len} bits"));
                }
                if len <= SHORT {
                    let start = (code << (SHORT - len)) as usize;
                    let symbol = *symbols.get(index).ok_or("jpeg: a Huffman table is too short")?;
                    table.short[start..start + (1 << (SHORT - len))].fill((symbol, len as u8));
                }
                (code, index) = (code + 1, index + 1);
            }
            table.ends[len as usize] = code << (16 - len);
            code <<= 1;
        }
        Ok(Huffman(Arc::new(table)))
    }
}

/// Reads the bits of a scan.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    /// Number of bits in `held`.
    count: u32,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Bits<'a> {
        Bits { bytes, at: 0, held: 0, count: 0 }
    }

    /// Reads bytes up to the next marker, as many as there is room for.
    fn fill(&mut self) {
        while self.count <= 56 {
            let byte = match self.bytes.get(self.at..) {
                Some([0xff, 0, ..]) => {
                    self.at += 1;
                    0xff
                }
                Some([byte, ..]) if *byte != 0xff => *byte,
                _ => return,
            };
            self.at += 1;
            self.held = self.held << 8 | u64::from(byte);
            self.count += 8;
        }
    }

    /// The next `n` bits, at most 16, with zeros after the last one.
    fn peek(&mut self, n: u32) -> u32 {
        if self.count < n {
            self.fill();
        }
        let bits = match self.count < n {
            true => self.held << (n - self.count),
            false => self.held >> (self.count - n),
        };
        bits as u32 & ((1 << n) - 1)
    }

    fn skip(&mut self, n: u32) -> Result<(), String> {
        self.count = self.count.checked_sub(n).ok_or("jpeg: a scan ends too early")?;
        Ok(())
    }

    pub(super) fn symbol(&mut self, codes: &Huffman) -> Result<u8, String> {
        let table = &codes.0;
        let bits = self.peek(16);
        let (symbol, len) = table.short[(bits >> (16 - SHORT)) as usize];
        if len > 0 {
            self.skip(u32::from(len))?;
            return Ok(symbol);
        }
        for len in SHORT + 1..=16 {
            if bits < table.ends[len as usize] {
                let index = (bits >> (16 - len)) as i32 + table.shifts[len as usize];
                let symbol = table.symbols.get(index as usize).ok_or("jpeg: an unknown code")?;
                self.skip(len)?;
                return Ok(*symbol);
            }
        }
        Err("jpeg: an unknown code".into())
    }

    /// A number of `size` bits, at most 15, whose sign is the inverse of its first bit.
    pub(super) fn signed(&mut self, size: u32) -> Result<i32, String> {
        if size == 0 {
            return Ok(0);
        }
        let v = self.peek(size) as i32;
        self.skip(size)?;
        Ok(if v < 1 << (size - 1) { v - (1 << size) + 1 } else { v })
    }

    /// Goes on behind the next restart marker.
    pub(super) fn restart(&mut self) -> Result<(), String> {
        (self.held, self.count) = (0, 0);
        while let Some([0xff, 0xff, ..]) = self.bytes.get(self.at..) {
            self.at += 1;
        }
        match self.bytes.get(self.at..) {
            Some([0xff, 0xd0..=0xd7, ..]) => {
                self.at += 2;
                Ok(())
            }
            _ => Err("jpeg: a restart marker is expected".into()),
        }
    }

    /// Number of bytes before the next marker that ends a scan.
    pub(super) fn used(&self) -> usize {
        let rest = &self.bytes[self.at..];
        let is_end = |w: &[u8]| w[0] == 0xff && !matches!(w[1], 0 | 0xd0..=0xd7 | 0xff);
        self.at + rest.windows(2).position(is_end).unwrap_or(rest.len())
    }
}
