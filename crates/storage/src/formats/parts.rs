//! Fetched parts of a file.

use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

/// Parts of a file, which do not overlap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    /// By their offsets.
    list: BTreeMap<u64, Bytes>,
    bytes: u64,
}

impl Parts {
    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rest of the part with the byte at `offset`; empty if no part has it.
    pub(crate) fn rest(&self, offset: u64) -> &[u8] {
        let part = self.list.range(..=offset).next_back();
        part.and_then(|(start, part)| part.get((offset - start) as usize..)).unwrap_or_default()
    }

    /// The first byte of a range that is in no part.
    pub(crate) fn missing(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            match self.rest(at).len() as u64 {
                0 => return Some(at),
                n => at += n,
            }
        }
        None
    }

    /// The bytes of a range, or the first that is missing.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>, u64> {
        let n = (range.end - range.start) as usize;
        if let Some(all) = self.rest(range.start).get(..n) {
            return Ok(Cow::Borrowed(all));
        }
        if let Some(at) = self.missing(range.clone()) {
            return Err(at);
        }
        let mut out = Vec::with_capacity(n);
        while out.len() < n {
            let rest = self.rest(range.start + out.len() as u64);
            out.extend_from_slice(&rest[..rest.len().min(n - out.len())]);
        }
        Ok(Cow::Owned(out))
    }

    /// Adds bytes from `start` on; bytes that are stored already do not change.
    pub(crate) fn add(&mut self, start: u64, bytes: &Bytes) {
        let (mut at, end) = (start, start + bytes.len() as u64);
        while at < end {
            let held = self.rest(at).len() as u64;
            if held > 0 {
                at += held;
                continue;
            }
            let next = self.list.range(at..end).next().map_or(end, |(next, _)| *next);
            let part = bytes.slice((at - start) as usize..(next - start) as usize);
            self.bytes += part.len() as u64;
            self.list.insert(at, part);
            at = next;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn parts_fit_together() {
        let file = Bytes::from_iter(0..100u8);
        let mut parts = Parts::default();
        for (start, end) in [(10, 20), (30, 40), (15, 32), (0, 5), (38, 39), (90, 100), (5, 10)] {
            parts.add(start as u64, &file.slice(start..end));
        }
        assert_eq!(parts.bytes(), 50);
        assert_eq!(parts.read(0..40).unwrap()[..], file[..40]);
        assert!(matches!(parts.read(16..19), Ok(Cow::Borrowed([16, 17, 18]))));
        assert_eq!((parts.read(35..50), parts.missing(50..51)), (Err(40), Some(50)));
        assert_eq!((parts.rest(40), parts.missing(90..100)), (&[][..], None));
        assert_eq!(parts.rest(99), [99]);
    }
}
