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
            if i.is_multiple_of(2) {
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
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A sequence of numbers.
    type Number = fn(i64) -> i64;

    /// An encoder, the numbers of a sequence and their code.
    type Case = (Aec, Number, &'static str);

    /// 90 numbers as libaec 1.1 encodes them.
    const CASES: [Case; 7] = [
        (
            Aec {
                bits: 8,
                block: 8,
                interval: 4,
                is_signed: false,
                is_predicted: true,
                is_restricted: false,
                is_padded: false,
            },
            |i| i * i / 9 % 251,
            "201b212d55520110d24924c011455558a49348e252492300028492492145249807fe9f6c5b18c6ffc6b1ae6b \
             9cd99c0779ee537e0655550000200882ca80d521093f90c88107fc000000",
        ),
        (
            Aec {
                bits: 12,
                block: 16,
                interval: 128,
                is_signed: true,
                is_predicted: true,
                is_restricted: false,
                is_padded: false,
            },
            |i| i * 37 % 300 - 150,
            "8f6aff0ff2a54a952a54a943654a952a54a887f87f943654a952a54a943654a952a54a887f87f943654a952a \
             54a943654a952a54a887f87f943654a952a54a943654a952a54a887f87f943654a952a54a943654a952a54a7 \
             500aaabf9451a514514514500000000000",
        ),
        (
            Aec {
                bits: 32,
                block: 32,
                interval: 3,
                is_signed: false,
                is_predicted: true,
                is_restricted: false,
                is_padded: false,
            },
            |i| i * i * i * 1000,
            "a800000007ffd554924444210841003e801f40069780fa001dc902c6f03e0305285069f5084530a19f0c1d90 \
             e50100b170341b0600d08eed0c0bb0f57702d21067b90a53f0e5b30291506f650b8a3004cf053e90a5f10fae \
             7052cb0c7eaaaaaaaa4924924dad9d0c16ba19b02c367d38736310f3f5200303c03db180eda502c5aa076bcc \
             12aff82d3f906a9c20f62dc22fbd84e92d0aeb9a18156c34beb872d410f8b3201837c07f8981a03504888a0b \
             ad0c1ca9784420909e3a216921c32d158655555549249249249fdc4af41f38f42232ac25381c2849442b6624 \
             2e8ebc31c30c350314384ed43ba64c3f097c02786405f30409795c0d0b6c10a9341452b41807ec1bc8dc1f95 \
             84236de42751fc2b41cc2f3d5433449400000000000000000000000000000000000000",
        ),
        (
            Aec {
                bits: 4,
                block: 8,
                interval: 4,
                is_signed: false,
                is_predicted: true,
                is_restricted: true,
                is_padded: false,
            },
            |i| i % 5,
            "82a8d8d28d5131aa8d63246a8d8e251aa621aa371a51aa263551ac64835478e546a8c43546e324fe",
        ),
        (
            Aec {
                bits: 16,
                block: 8,
                interval: 16,
                is_signed: false,
                is_predicted: false,
                is_restricted: false,
                is_padded: false,
            },
            |i| i * i * 13 % 60_000,
            "8f488400d69d6845a9f6eaa49d001d45225d40957d36ddd557403ab41d0955141996252b77b555ea07ef44a8 \
             5053e82ad5b690cde55249a005d37569e350e816152a8d3df5140555d59945de5625066d56b74702df750079 \
             ed7ef4841589508ea59414999df9f40a4fdaad4b0c5b6d0bcf5c334c98dfd000d68ddd34e3f5007007650e74 \
             159deaa9279c043d5da4d175e02b554a4a37d6a818b35ac51cdd5efc2121634d257f7e7b829f769f769f769f \
             769f769f769f74",
        ),
        (
            Aec {
                bits: 8,
                block: 8,
                interval: 16,
                is_signed: false,
                is_predicted: true,
                is_restricted: false,
                is_padded: false,
            },
            |i| i64::from(i == 70),
            "000008f081",
        ),
        (
            Aec {
                bits: 7,
                block: 64,
                interval: 1,
                is_signed: false,
                is_predicted: true,
                is_restricted: false,
                is_padded: false,
            },
            |i| i % 2,
            "20155555555555555555555555555555551004210842108421087ffff8",
        ),
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |b: &u8| (*b as char).to_digit(16).unwrap() as u8;
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks_exact(2).map(|two| digit(&two[0]) << 4 | digit(&two[1])).collect()
    }

    #[test]
    fn codes_of_libaec_are_decoded() {
        for (aec, number, code) in CASES {
            let want: Vec<u32> = (0..90).map(|i| number(i) as u32).collect();
            assert_eq!(aec.decode(&bytes(code), 90).unwrap(), want, "{aec:?}");
            let too_many = aec.decode(&bytes(code), 1 << 20);
            assert!(too_many.is_err(), "{aec:?}");
        }
    }

    /// 90 numbers with padded intervals, `AEC_PAD_RSI`, as libaec 1.1.6 encodes them: bits, blocks of an interval, true
    /// for differences.
    const PADDED: [(u32, usize, bool, Number, &str); 4] = [
        (
            8,
            4,
            true,
            |i| i * i / 9 % 251,
            "201b212d55520110d24924c011455558a493408e252492300028492492145249807fe9f6c5b18c6ffc6b1ae6 \
             b9c0d99c0779ee537e0655550000200882ca80d521093f90c88107fc000000",
        ),
        (
            8,
            3,
            true,
            |i| i * i / 9 % 251,
            "201b212d55520110d24924c01100880aaaa924d2252493860005092492428a4900a0b555f686888aaaab1515 \
             9599bc0779cf729bf000c94aaa800200882ca80d521093f90c88107fc00000",
        ),
        (
            16,
            2,
            false,
            |i| i * 37 % 1000,
            "7d4910812957a9cbc1caaa92509ae52f79c20c56a5555281d534bf724265d53a55fbc67785e712124dc9309d \
             556e374089d31c65aee524924f0029527ba4cdf718a55570896d4aef9ce0f98471aa4991b4937b80534b9552 \
             497095badf04294e73a55554c2f5c50796546ed9b0911ff0394891db246db6e555540094949494949494",
        ),
        (8, 2, true, |i| i64::from(i == 70), "0004000400040004100e10800004"),
    ];

    #[test]
    fn padded_intervals_of_libaec_are_decoded() {
        for (bits, interval, is_predicted, number, code) in PADDED {
            let (is_signed, is_restricted) = (false, false);
            let aec = Aec {
                bits,
                block: 8,
                interval,
                is_signed,
                is_predicted,
                is_restricted,
                is_padded: true,
            };
            let want: Vec<u32> = (0..90).map(|i| number(i) as u32).collect();
            assert_eq!(aec.decode(&bytes(code), 90).unwrap(), want, "{aec:?}");
            assert_ne!(Aec { is_padded: false, ..aec }.decode(&bytes(code), 90), Ok(want));
        }
    }

    #[test]
    fn damaged_codes_end() {
        for (aec, _, code) in CASES {
            let code = bytes(code);
            for cut in 0..code.len() {
                let _either = aec.decode(&code[..cut], 90);
                let mut flipped = code.clone();
                flipped[cut] ^= 0x5a;
                let _either = aec.decode(&flipped, 90);
                let _either = Aec { is_padded: true, ..aec }.decode(&flipped, 90);
            }
        }
    }
}
