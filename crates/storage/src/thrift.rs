//! Thrift's compact protocol, as far as the metadata of Parquet need it to be checked before a reader trusts them.
//!
//! A reader allocates memory for as many elements as a list claims, and a list may claim two billion. A walk fails if a
//! number of elements or a length exceeds the remaining bytes.

/// Maximum nesting of structures: Parquet has about six levels.
const DEPTH_MAX: usize = 64;

/// Bytes in Thrift's compact protocol.
#[derive(Debug)]
pub struct Compact<'a> {
    rest: &'a [u8],
    /// The ids of the fields from the root to the current value.
    path: Vec<i16>,
    depth: usize,
}

/// A parsed value, or the reason why the bytes are invalid.
pub type Parsed<T> = Result<T, &'static str>;

const CUT: &str = "it is cut off";
const LONG: &str = "a list or text is longer than what is left of it";

impl<'a> Compact<'a> {
    /// Begins at a structure.
    pub fn new(rest: &'a [u8]) -> Self {
        Compact { rest, path: Vec::new(), depth: 0 }
    }

    /// The unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn byte(&mut self) -> Parsed<u8> {
        let (first, rest) = self.rest.split_first().ok_or(CUT)?;
        self.rest = rest;
        Ok(*first)
    }

    fn pass(&mut self, bytes: u64) -> Parsed<()> {
        let bytes = usize::try_from(bytes).map_err(|_| LONG)?;
        self.rest = self.rest.get(bytes..).ok_or(LONG)?;
        Ok(())
    }

    fn number(&mut self) -> Parsed<u64> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number does not end")
    }

    fn signed(&mut self) -> Parsed<i64> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Walks a structure. `visit` receives each integer in it, with the ids of the fields that lead to it.
    ///
    /// # Errors
    /// The reason why the bytes are invalid.
    pub fn structure(&mut self, visit: &mut dyn FnMut(&[i16], i64)) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("it nests too deeply");
        }
        let mut field = 0i16;
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                break;
            }
            field = match head >> 4 {
                0 => self.signed()? as i16,
                step => field.wrapping_add(i16::from(step)),
            };
            self.path.push(field);
            // A bool is encoded in its type.
            if kind > 2 {
                self.value(kind, visit)?;
            }
            self.path.pop();
        }
        self.depth -= 1;
        Ok(())
    }

    fn value(&mut self, kind: u8, visit: &mut dyn FnMut(&[i16], i64)) -> Parsed<()> {
        match kind {
            1..=3 => self.pass(1),
            4..=6 => {
                let value = self.signed()?;
                visit(&self.path, value);
                Ok(())
            }
            7 => self.pass(8),
            8 => {
                let length = self.number()?;
                self.pass(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let size = match head >> 4 {
                    15 => self.number()?,
                    size => u64::from(size),
                };
                self.elements(size, &[head & 0x0f], visit)
            }
            11 => {
                let size = self.number()?;
                let kinds = if size == 0 { 0 } else { self.byte()? };
                self.elements(size, &[kinds >> 4, kinds & 0x0f], visit)
            }
            12 => self.structure(visit),
            13 => self.pass(16),
            _ => Err("a value has a type that there is not"),
        }
    }

    /// Walks `n` elements, each of which has at least one byte.
    fn elements(
        &mut self,
        size: u64,
        kinds: &[u8],
        visit: &mut dyn FnMut(&[i16], i64),
    ) -> Parsed<()> {
        if size > self.rest.len() as u64 {
            return Err(LONG);
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("it nests too deeply");
        }
        for _ in 0..size {
            for &kind in kinds {
                self.value(kind, visit)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn walk(bytes: &[u8]) -> (Parsed<()>, Vec<(Vec<i16>, i64)>) {
        let mut seen = Vec::new();
        let told =
            Compact::new(bytes).structure(&mut |path, value| seen.push((path.to_vec(), value)));
        (told, seen)
    }

    #[test]
    fn structures_are_walked() {
        // 1: 3 as i32, 4: a list of one structure with 2: -1 as i64, 6: the text "ab".
        let bytes = [0x15, 6, 0x39, 0x1c, 0x26, 1, 0, 0x28, 2, b'a', b'b', 0];
        let (told, seen) = walk(&bytes);
        assert_eq!(told, Ok(()));
        assert_eq!(seen, [(vec![1], 3), (vec![4, 2], -1)]);
    }

    #[test]
    fn lengths_beyond_the_end_are_refused() {
        // A list of 2^31 - 1 structures.
        assert_eq!(walk(&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 7, 0, 0]).0, Err(LONG));
        // A text of 100 bytes.
        assert_eq!(walk(&[0x18, 100, b'a', 0]).0, Err(LONG));
        assert_eq!(walk(&[0x15]).0, Err(CUT));
        let deep = [0x1c; 100];
        assert_eq!(walk(&deep).0, Err("it nests too deeply"));
        let endless = [0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(walk(&endless).0, Err("a number does not end"));
    }
}
