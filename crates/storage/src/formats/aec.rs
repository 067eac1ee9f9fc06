//! The adaptive entropy coder of CCSDS, of GRIB and of HDF5's szip.
//!
//! ```text
//!   reference interval: block, block, ...   a block has J numbers, which are differences of neighbours, mapped to
//!   block: option, [first number], codes    unsigned ones; the option says how they are coded
//! ```
//!
//! # Source
//! CCSDS 121.0-B-3, "Lossless data compression", sections 3 to 5.

/// How numbers were coded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Params {
    /// Bits of a number, 1 to 32.
    pub(crate) bits: u8,
    /// Numbers of a block.
    pub(crate) block: u8,
    /// Blocks from one number that is stored whole to the next.
    pub(crate) interval: u16,
    pub(crate) is_signed: bool,
    /// True if the coded numbers are differences.
    pub(crate) has_differences: bool,
    /// True if numbers of up to 4 bits have the short set of options.
    pub(crate) is_restricted: bool,
    /// True if each interval begins with a byte.
    pub(crate) is_padded: bool,
}

/// Blocks of zeros that one code stands for: to the end of the segment.
const TO_END: u64 = 5;

/// Blocks of a segment.
const SEGMENT: usize = 64;

/// Decodes as many numbers as `out` has. Signed ones are in two's complement of 32 bits.
pub(crate) fn decode(data: &[u8], params: &Params, out: &mut [u32]) -> Result<(), String> {
    let Params { bits, block, interval, .. } = *params;
    if !(1..=32).contains(&bits) || block < 2 || !block.is_multiple_of(2) || interval == 0 {
        return Err(format!("AEC with {bits} bits, blocks of {block}, intervals of {interval}"));
    }
    let mut coder = Coder { bits: Bits { bytes: data, at: 0, held: 0, count: 0 }, params };
    let (block, interval) = (usize::from(block), usize::from(interval));
    for numbers in out.chunks_mut(block * interval) {
        coder.interval(numbers, block, interval)?;
        if params.has_differences {
            restore(numbers, params);
        } else if params.is_signed {
            numbers.iter_mut().for_each(|x| *x = extended(*x, bits) as u32);
        }
        if params.is_padded {
            coder.bits.align();
        }
    }
    Ok(())
}

struct Coder<'a> {
    bits: Bits<'a>,
    params: &'a Params,
}

impl Coder<'_> {
    /// Bits of an option.
    fn option_bits(&self) -> u32 {
        match self.params.bits {
            1..=2 if self.params.is_restricted => 1,
            1..=4 if self.params.is_restricted => 2,
            1..=8 => 3,
            9..=16 => 4,
            _ => 5,
        }
    }

    /// Decodes the blocks of an interval, of which the last may be wanted in part.
    fn interval(&mut self, out: &mut [u32], block: usize, interval: usize) -> Result<(), String> {
        let (option_bits, bits) = (self.option_bits(), u32::from(self.params.bits));
        let mut at = 0;
        let mut whole = vec![0; block];
        while at < out.len() {
            let done = at / block;
            let option = self.bits.read(option_bits)?;
            let is_low = option == 0;
            let is_pair = is_low && self.bits.read(1)? == 1;
            // The first number of an interval is stored whole, if the others are differences.
            let first = usize::from(self.params.has_differences && done == 0);
            let is_raw = option == (1 << option_bits) - 1;
            if first == 1 && !is_raw {
                whole[0] = self.bits.read(bits)?;
            }
            let rest = &mut whole[first..];
            match option {
                0 if !is_pair => {
                    rest.fill(0);
                    let mut blocks = u64::from(self.bits.unary()?) + 1;
                    if blocks == TO_END {
                        blocks = (interval - done).min(SEGMENT - done % SEGMENT) as u64;
                    } else if blocks > TO_END {
                        blocks -= 1;
                    }
                    if blocks > (interval - done) as u64 {
                        return Err(format!("AEC: {blocks} blocks of zeros"));
                    }
                    let end = (at + blocks as usize * block).min(out.len());
                    out[at..end].fill(0);
                    out[at] = whole[0];
                    at = end;
                    continue;
                }
                0 => self.pairs(&mut whole, first)?,
                _ if is_raw => {
                    for x in &mut whole {
                        *x = self.bits.read(bits)?;
                    }
                }
                _ => {
                    let low = option - 1;
                    for x in rest.iter_mut() {
                        let high = self.bits.unary()?;
                        *x = high.checked_shl(low).filter(|v| v >> low == high).unwrap_or(u32::MAX);
                    }
                    for x in rest {
                        *x |= self.bits.read(low)?;
                    }
                }
            }
            let wanted = block.min(out.len() - at);
            out[at..at + wanted].copy_from_slice(&whole[..wanted]);
            at += wanted;
        }
        Ok(())
    }

    /// Pairs of numbers in one code each: with their sum s and the second one d, `s (s + 1) / 2 + d`.
    fn pairs(&mut self, block: &mut [u32], first: usize) -> Result<(), String> {
        let mut i = first;
        while i < block.len() {
            let code = u64::from(self.bits.unary()?);
            let mut sum = 0;
            while (sum + 1) * (sum + 2) / 2 <= code {
                sum += 1;
            }
            let second = code - sum * (sum + 1) / 2;
            // The partner of the first number, which is stored whole, counts as 0.
            if i.is_multiple_of(2) {
                block[i] = (sum - second) as u32;
                i += 1;
            }
            if let Some(x) = block.get_mut(i) {
                *x = second as u32;
            }
            i += 1;
        }
        Ok(())
    }
}

/// A number of `bits` bits in two's complement.
fn extended(x: u32, bits: u8) -> i64 {
    let shift = 64 - u32::from(bits);
    (i64::from(x) << shift) >> shift
}

/// Adds mapped differences to the numbers before them: those of either sign alternate, as long as both lead to a
/// number that fits.
fn restore(numbers: &mut [u32], params: &Params) {
    let bits = params.bits;
    let (low, high) = match params.is_signed {
        true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        false => (0, (1i64 << bits) - 1),
    };
    let Some((first, rest)) = numbers.split_first_mut() else { return };
    let mut last = i64::from(*first);
    if params.is_signed {
        last = extended(*first, bits);
        *first = last as u32;
    }
    for x in rest {
        let mapped = i64::from(*x);
        let room = (last - low).min(high - last);
        let difference = match mapped <= 2 * room {
            true if mapped % 2 == 0 => mapped / 2,
            true => -(mapped + 1) / 2,
            false if last - low <= high - last => mapped - room,
            false => room - mapped,
        };
        last = (last + difference).clamp(low, high);
        *x = last as u32;
    }
}

/// Reads bits, highest first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The bits that follow, from the highest one on.
    held: u64,
    count: u32,
}

impl Bits<'_> {
    /// Takes bytes until at least 57 bits are held, or all that there are.
    fn fill(&mut self) {
        if self.count == 0 {
            self.held = 0;
        }
        while self.count <= 56 {
            let Some(byte) = self.bytes.get(self.at) else { return };
            self.held |= u64::from(*byte) << (56 - self.count);
            self.count += 8;
            self.at += 1;
        }
    }

    fn take(&mut self, n: u32) {
        self.held = self.held.checked_shl(n).unwrap_or(0);
        self.count -= n;
    }

    fn read(&mut self, n: u32) -> Result<u32, String> {
        if n == 0 {
            return Ok(0);
        }
        if self.count < n {
            self.fill();
        }
        if self.count < n {
            return Err("AEC: the data end too early".into());
        }
        let out = (self.held >> (64 - n)) as u32;
        self.take(n);
        Ok(out)
    }

    /// The number of zeros before the next one.
    fn unary(&mut self) -> Result<u32, String> {
        let mut out = 0u32;
        loop {
            self.fill();
            if self.count == 0 {
                return Err("AEC: the data end too early".into());
            }
            let zeros = self.held.leading_zeros();
            if zeros < self.count {
                self.take(zeros + 1);
                return Ok(out.saturating_add(zeros));
            }
            out = out.saturating_add(self.count);
            self.take(self.count);
        }
    }

    /// To the beginning of the next byte.
    fn align(&mut self) {
        self.take(self.count % 8);
    }
}
