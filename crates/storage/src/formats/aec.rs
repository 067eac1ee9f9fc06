//! Adaptive entropy coding (Rice codes), as in szip and in GRIB.
//!
//! ```text
//!   interval: reference sample │ block │ block │ …      block: id of a method │ its samples
//! ```
//!
//! # Source
//! CCSDS 121.0-B-3, "Lossless Data Compression", sections 3 to 5.

/// Upper bound on the blocks of an interval that padding is counted to.
const SEGMENT: usize = 64;

/// Parameters of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Aec {
    /// Bits of a sample, at most 32.
    pub(crate) bits: u32,
    /// Samples of a block.
    pub(crate) block: usize,
    /// Blocks between two reference samples.
    pub(crate) interval: usize,
    /// True if samples have a sign.
    pub(crate) is_signed: bool,
    /// True if samples are differences, but for the first of an interval.
    pub(crate) is_predicted: bool,
    /// True if samples of at most 4 bits have shorter ids of methods.
    pub(crate) is_restricted: bool,
    /// True if an interval begins at a byte.
    pub(crate) is_padded: bool,
}

/// Bits, the highest of a byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    fn fill(&mut self) {
        while self.count <= 56 {
            let Some(b) = self.bytes.get(self.at) else { return };
            self.held |= u64::from(*b) << (56 - self.count);
            self.count += 8;
            self.at += 1;
        }
    }

    /// The next `n` bits, at most 32.
    fn take(&mut self, n: u32) -> Option<u32> {
        if n == 0 {
            return Some(0);
        }
        self.fill();
        self.count = self.count.checked_sub(n)?;
        let out = (self.held >> (64 - n)) as u32;
        self.held <<= n;
        Some(out)
    }

    /// The number of zeros before the next one.
    fn unary(&mut self) -> Option<u32> {
        let mut n = 0u32;
        loop {
            self.fill();
            let zeros = self.held.leading_zeros();
            if zeros < self.count {
                self.held <<= zeros;
                self.held <<= 1;
                self.count -= zeros + 1;
                return n.checked_add(zeros);
            }
            if self.count == 0 {
                return None;
            }
            n = n.checked_add(self.count)?;
            (self.held, self.count) = (0, 0);
        }
    }

    /// Skips to the next byte.
    fn align(&mut self) {
        let rest = self.count % 8;
        self.held <<= rest;
        self.count -= rest;
    }
}

impl Aec {
    fn check(&self) -> Result<(), String> {
        match (1..=32).contains(&self.bits)
            && (1..=1 << 16).contains(&self.block)
            && (1..=1 << 20).contains(&self.interval)
        {
            true => Ok(()),
            false => Err(format!(
                "aec: {} bits, {} samples a block, {} blocks",
                self.bits, self.block, self.interval
            )),
        }
    }

    /// Decodes `count` samples. Those with a sign are sign-extended.
    pub(crate) fn decode(&self, bytes: &[u8], count: usize) -> Result<Vec<u32>, String> {
        self.check()?;
        // A block of zeros takes at least a bit.
        let most = bytes.len().saturating_mul(8 * SEGMENT).saturating_mul(self.block);
        if count > most {
            return Err(format!("aec: {} bytes do not hold {count} samples", bytes.len()));
        }
        let mut bits = Bits { bytes, at: 0, held: 0, count: 0 };
        let mut out = Vec::with_capacity(count + self.block);
        while out.len() < count {
            let start = out.len();
            self.interval(&mut bits, &mut out, count)
                .ok_or_else(|| format!("aec: damaged after {} of {count} samples", out.len()))?;
            self.undo(&mut out[start..]);
            if self.is_padded {
                bits.align();
            }
        }
        out.truncate(count);
        Ok(out)
    }

    /// Bits of the id of a method.
    fn id_bits(&self) -> u32 {
        match self.bits {
            1..=2 if self.is_restricted => 1,
            3..=4 if self.is_restricted => 2,
            0..=8 => 3,
            9..=16 => 4,
            _ => 5,
        }
    }

    /// Appends the samples of an interval, or of its part up to `count` samples.
    fn interval(&self, bits: &mut Bits<'_>, out: &mut Vec<u32>, count: usize) -> Option<()> {
        let id_bits = self.id_bits();
        let mut done = 0;
        while done < self.interval && out.len() < count {
            let first = usize::from(done == 0 && self.is_predicted);
            let id = bits.take(id_bits)?;
            if id == 0 {
                let is_pairs = bits.take(1)? == 1;
                if first == 1 {
                    out.push(bits.take(self.bits)?);
                }
                if is_pairs {
                    self.pairs(bits, out, first)?;
                    done += 1;
                    continue;
                }
                let zeros = match bits.unary()? as usize + 1 {
                    // The rest of a segment.
                    5 => (self.interval - done).min(SEGMENT - done % SEGMENT),
                    n @ 6.. => n - 1,
                    n => n,
                };
                if zeros > self.interval - done {
                    return None;
                }
                let end = out.len() + zeros.saturating_mul(self.block) - first;
                out.resize(end.min(count + self.block), 0);
                done += zeros;
                continue;
            }
            let samples = self.block - first;
            if first == 1 {
                out.push(bits.take(self.bits)?);
            }
            if id == (1 << id_bits) - 1 {
                for _ in 0..samples {
                    out.push(bits.take(self.bits)?);
                }
            } else {
                let k = id - 1;
                let start = out.len();
                for _ in 0..samples {
                    out.push(bits.unary()?.checked_shl(k)?);
                }
                for v in &mut out[start..] {
                    *v = v.wrapping_add(bits.take(k)?);
                }
            }
            done += 1;
        }
        Some(())
    }

    /// Appends samples of a block of pairs: the sum of a pair and its second sample make one number.
    fn pairs(&self, bits: &mut Bits<'_>, out: &mut Vec<u32>, first: usize) -> Option<()> {
        let mut i = first;
        while i < self.block {
            let m = bits.unary()?;
            // Sums of samples are small where this method is chosen.
            let sum = (0..=12u32).find(|s| m < (s + 1) * (s + 2) / 2)?;
            let second = m - sum * (sum + 1) / 2;
            if i % 2 == 0 {
                out.push(sum - second);
                i += 1;
            }
            if i < self.block {
                out.push(second);
                i += 1;
            }
        }
        Some(())
    }

    /// Adds up differences.
    fn undo(&self, samples: &mut [u32]) {
        let extend = |v: u32| match self.is_signed {
            true => i64::from((v << (32 - self.bits)) as i32 >> (32 - self.bits)),
            false => i64::from(v),
        };
        if !self.is_predicted {
            samples.iter_mut().for_each(|v| *v = extend(*v) as u32);
            return;
        }
        let (least, most) = match self.is_signed {
            true => (-(1i64 << (self.bits - 1)), (1i64 << (self.bits - 1)) - 1),
            false => (0, (1i64 << self.bits) - 1),
        };
        let Some((first, rest)) = samples.split_first_mut() else { return };
        let mut last = extend(*first);
        *first = last as u32;
        for v in rest {
            let d = i64::from(*v);
            let (below, above) = (last - least, most - last);
            last = if d > 2 * below.min(above) {
                if below < above { least + d } else { most - d }
            } else if d % 2 == 0 {
                last + d / 2
            } else {
                last - (d + 1) / 2
            };
            // Damaged differences may leave the range.
            last = last.clamp(least, most);
            *v = last as u32;
        }
    }
}

#[cfg(test)]
mod vectors {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    #[test]
    #[ignore = "a tool"]
    fn vectors() {
        let text = std::fs::read_to_string(std::env::var("AEC").unwrap()).unwrap();
        let mut bad = 0;
        for line in text.lines() {
            let w: Vec<&str> = line.split(' ').collect();
            let n = |i: usize| w[i].parse::<usize>().unwrap();
            let aec = Aec {
                bits: n(0) as u32,
                block: n(1),
                interval: n(2),
                is_signed: n(3) == 1,
                is_predicted: n(4) == 1,
                is_restricted: n(5) == 1,
                is_padded: n(6) == 1,
            };
            let bytes: Vec<u8> = (0..w[7].len() / 2)
                .map(|i| u8::from_str_radix(&w[7][2 * i..2 * i + 2], 16).unwrap())
                .collect();
            let want: Vec<u32> = w[8].split(',').map(|v| v.parse().unwrap()).collect();
            let got = aec.decode(&bytes, want.len());
            if got.as_ref() != Ok(&want) {
                bad += 1;
                println!(
                    "{aec:?} {:?}",
                    got.map(|g| g.iter().zip(&want).position(|(a, b)| a != b))
                );
            }
        }
        println!("{} lines, {bad} bad", text.lines().count());
    }
}
