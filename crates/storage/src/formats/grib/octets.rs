//! Numbers in the octets of sections, counted from 1 as in the Manual on Codes.

/// A section, or the first part of it.
#[derive(Clone, Copy)]
pub(super) struct Octets<'a>(pub(super) &'a [u8]);

impl Octets<'_> {
    /// The unsigned number in `n` octets, at most 8, highest first.
    pub(super) fn uint(self, first: usize, n: usize) -> Result<u64, String> {
        let part = first.checked_sub(1).and_then(|at| self.0.get(at..at.checked_add(n)?));
        let part = part.ok_or_else(|| {
            format!("a section of {} octets, octet {} is expected", self.0.len(), first + n - 1)
        })?;
        Ok(part.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    /// A number whose highest bit is its sign.
    pub(super) fn int(self, first: usize, n: usize) -> Result<i64, String> {
        let v = self.uint(first, n)?;
        let sign = 1u64 << (8 * n - 1);
        Ok(if v & sign == 0 { v as i64 } else { -((v & !sign) as i64) })
    }

    pub(super) fn u8(self, at: usize) -> Result<u8, String> {
        self.uint(at, 1).map(|v| v as u8)
    }

    pub(super) fn u16(self, first: usize) -> Result<u16, String> {
        self.uint(first, 2).map(|v| v as u16)
    }

    /// A number of which all bits are set if it is missing.
    pub(super) fn present(self, first: usize, n: usize) -> Result<Option<u64>, String> {
        let v = self.uint(first, n)?;
        Ok((v != u64::MAX >> (64 - 8 * n)).then_some(v))
    }

    /// A float of IBM's System/360.
    pub(super) fn ibm(self, first: usize) -> Result<f64, String> {
        let v = self.uint(first, 4)? as u32;
        let size = f64::from(v & 0xff_ffff) * 2f64.powi(4 * ((v >> 24 & 0x7f) as i32 - 64) - 24);
        Ok(if v >> 31 == 0 { size } else { -size })
    }

    /// A float of IEEE 754.
    pub(super) fn ieee(self, first: usize) -> Result<f64, String> {
        self.uint(first, 4).map(|v| f64::from(f32::from_bits(v as u32)))
    }
}

/// `base` to an integer power, by the repeated multiplications or divisions of the reference implementation: the last
/// bits of cells depend on them.
pub(super) fn power(base: f64, exponent: i64) -> f64 {
    let mut out = 1.0;
    for _ in 0..exponent.unsigned_abs().min(1 << 16) {
        out = if exponent < 0 { out / base } else { out * base };
    }
    out
}
