//! `NaN`, `Infinity` and `-Infinity`, which JSON does not have, but Python's `json` writes.
//!
//! Arrow's reader of floats accepts them as texts, so they are quoted in the bytes that it reads.

use bytes::Bytes;
use datafusion::error::Result;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use memchr::{memchr, memchr2, memchr3, memmem, memrchr};
use std::future::ready;

/// Each word before those that it ends with.
const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// The bytes of objects, one per line, with the words as texts.
pub(super) fn quoted(
    bytes: BoxStream<'static, Result<Bytes>>,
) -> BoxStream<'static, Result<Bytes>> {
    let mut words = Words::default();
    let end = stream::once(ready(Ok(None)));
    let parts = bytes.map_ok(Some).chain(end).map_ok(move |part| match part {
        Some(part) => words.quoted(part),
        None => words.end(),
    });
    parts.try_filter(|part| ready(!part.is_empty())).boxed()
}

/// Whole objects, with floats of the same length in place of the words.
pub(super) fn as_numbers(lines: Vec<u8>) -> Vec<u8> {
    if !has_word(&lines) {
        return lines;
    }
    Words::default().replaced(&lines, |word, out| {
        let (sign, digits) = word.split_at(usize::from(word.starts_with(b"-")));
        out.extend_from_slice(sign);
        out.extend_from_slice(&b"0.500000"[..digits.len()]);
    })
}

fn has_word(bytes: &[u8]) -> bool {
    memmem::find(bytes, b"NaN").is_some() || memmem::find(bytes, b"Infinity").is_some()
}

/// A reader of bytes in parts.
#[derive(Default)]
struct Words {
    is_text: bool,
    is_escaped: bool,
    /// The end of the last part, if the next one may complete a word there.
    held: Vec<u8>,
}

impl Words {
    fn quoted(&mut self, part: Bytes) -> Bytes {
        let part = match self.held.is_empty() {
            true => part,
            false => [std::mem::take(&mut self.held).as_slice(), &part].concat().into(),
        };
        let begun = |word: &&[u8]| (1..word.len()).rev().find(|n| part.ends_with(&word[..*n]));
        // The last N of NaN begins no other word.
        let begun = match WORDS.iter().any(|word| part.ends_with(word)) {
            true => 0,
            false => WORDS.iter().filter_map(begun).max().unwrap_or(0),
        };
        let (part, held) = (part.slice(..part.len() - begun), &part[part.len() - begun..]);
        self.held.extend_from_slice(held);
        if !has_word(&part) {
            self.skip(&part);
            return part;
        }
        let quote = |word: &[u8], out: &mut Vec<u8>| {
            out.push(b'"');
            out.extend_from_slice(word);
            out.push(b'"');
        };
        self.replaced(&part, quote).into()
    }

    fn end(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// Reads bytes without words. A line begins outside texts, whose line breaks JSON escapes.
    fn skip(&mut self, bytes: &[u8]) {
        let line = memrchr(b'\n', bytes).map(|at| at + 1);
        if line.is_some() {
            (self.is_text, self.is_escaped) = (false, false);
        }
        self.walk(&bytes[line.unwrap_or(0)..], |_, _| ());
    }

    /// The bytes with what `write` appends for each word outside texts.
    fn replaced(&mut self, bytes: &[u8], write: impl Fn(&[u8], &mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 16);
        self.walk(bytes, |mut run, is_text| {
            while !is_text && let Some((at, word)) = first_word(run) {
                out.extend_from_slice(&run[..at]);
                write(word, &mut out);
                run = &run[at + word.len()..];
            }
            out.extend_from_slice(run);
        });
        out
    }

    /// Visits runs of bytes, each with true if it is within a text.
    fn walk(&mut self, bytes: &[u8], mut visit: impl FnMut(&[u8], bool)) {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if std::mem::take(&mut self.is_escaped) {
                visit(&rest[..1], true);
                at += 1;
                continue;
            }
            let mark = match self.is_text {
                true => memchr2(b'"', b'\\', rest),
                false => memchr(b'"', rest),
            };
            let end = mark.map_or(rest.len(), |mark| mark + 1);
            visit(&rest[..end], self.is_text);
            match mark.map(|mark| rest[mark]) {
                Some(b'"') => self.is_text = !self.is_text,
                Some(_) => self.is_escaped = true,
                None => {}
            }
            at += end;
        }
    }
}

fn first_word(bytes: &[u8]) -> Option<(usize, &'static [u8])> {
    let mut from = 0;
    loop {
        let at = from + memchr3(b'-', b'I', b'N', &bytes[from..])?;
        if let Some(word) = WORDS.into_iter().find(|word| bytes[at..].starts_with(word)) {
            return Some((at, word));
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text with quoted words, also if it arrives in two parts or byte by byte.
    fn quoted(text: &str) -> String {
        let of = |parts: &[&[u8]]| {
            let mut words = Words::default();
            let read = parts.iter().map(|part| words.quoted(Bytes::copy_from_slice(part)));
            let mut all: Vec<u8> = read.collect::<Vec<_>>().concat();
            all.extend_from_slice(&words.end());
            String::from_utf8_lossy(&all).into_owned()
        };
        let bytes = text.as_bytes();
        let whole = of(&[bytes]);
        for at in 0..=bytes.len() {
            assert_eq!(of(&[&bytes[..at], &bytes[at..]]), whole, "{text} at {at}");
        }
        assert_eq!(of(&bytes.chunks(1).collect::<Vec<_>>()), whole, "{text}");
        whole
    }

    #[test]
    fn words_outside_texts_are_quoted() {
        for (text, want) in [
            ("{\"a\": NaN}\n", "{\"a\": \"NaN\"}\n"),
            ("{\"a\":[Infinity,-Infinity]}", "{\"a\":[\"Infinity\",\"-Infinity\"]}"),
            ("{\"NaN\": -1, \"b\": \"NaN\"}", "{\"NaN\": -1, \"b\": \"NaN\"}"),
            ("{\"a\": \"\\\"NaN\", \"b\": NaN}", "{\"a\": \"\\\"NaN\", \"b\": \"NaN\"}"),
            ("{\"a\": \"\\\\\", \"b\": NaN}\nN", "{\"a\": \"\\\\\", \"b\": \"NaN\"}\nN"),
            ("{\"a\": Na}\n{\"b\": \"é: NaN, \"}-", "{\"a\": Na}\n{\"b\": \"é: NaN, \"}-"),
            (
                "{\"a\": \"x\"}\n{\"a\": -Inf, \"b\": NaN}",
                "{\"a\": \"x\"}\n{\"a\": -Inf, \"b\": \"NaN\"}",
            ),
            ("", ""),
        ] {
            assert_eq!(quoted(text), want);
        }
    }

    #[test]
    fn words_are_floats_of_their_length() {
        let lines = b"{\"a\": NaN, \"b\": -Infinity}\n{\"a\": \"NaN\", \"b\": Infinity}\n".to_vec();
        let want = b"{\"a\": 0.5, \"b\": -0.500000}\n{\"a\": \"NaN\", \"b\": 0.500000}\n";
        assert_eq!(as_numbers(lines), want);
    }
}
