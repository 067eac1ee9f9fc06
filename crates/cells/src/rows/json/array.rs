//! Files that are one JSON array of objects, as lines: `[{…}, {…}]` becomes an object per line.

use arrow::error::ArrowError;
use bytes::Bytes;
use datafusion::error::{DataFusionError, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::future::ready;
use std::sync::Arc;

/// The first non-blank character has to be among these bytes of a file.
const START_BYTES: u64 = 4096;

/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The bytes of a file, an object per line.
///
/// # Errors
/// The errors of the store; in the stream also [`ArrowError::JsonError`] if an array has other parts than objects and
/// commas.
pub(super) async fn objects(
    store: &Arc<dyn ObjectStore>,
    at: &Path,
) -> Result<BoxStream<'static, Result<Bytes>>> {
    let mut bytes = store.get(at).await?.into_stream().map_err(DataFusionError::from).boxed();
    let (mut start, mut read) = (Vec::new(), 0);
    let mut first = None;
    while first.is_none() && read < START_BYTES {
        let Some(part) = bytes.try_next().await? else { break };
        let part = if read == 0 { without_mark(part) } else { part };
        read += part.len() as u64;
        first = first_of(&part);
        start.push(Ok(part));
    }
    let bytes = stream::iter(start).chain(bytes);
    match first {
        Some(b'[') => Ok(lines(bytes.boxed())),
        _ => Ok(bytes.boxed()),
    }
}

/// True for a file of `size` bytes that is an array.
pub(super) async fn is_array(store: &Arc<dyn ObjectStore>, at: &Path, size: u64) -> Result<bool> {
    if size == 0 {
        return Ok(false);
    }
    let start = store.get_range(at, 0..size.min(START_BYTES)).await?;
    Ok(first_of(&without_mark(start)) == Some(b'['))
}

/// The bytes behind a byte order mark.
pub(super) fn without_mark(start: Bytes) -> Bytes {
    if start.starts_with(MARK) { start.slice(MARK.len()..) } else { start }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn first_of(part: &[u8]) -> Option<u8> {
    part.iter().copied().find(|byte| !is_blank(*byte))
}

fn lines(bytes: BoxStream<'static, Result<Bytes>>) -> BoxStream<'static, Result<Bytes>> {
    let mut array = Array::default();
    let end = stream::once(ready(Ok(None)));
    let lines = bytes.map_ok(Some).chain(end).map(move |part| match part? {
        Some(bytes) => array.lines(&bytes),
        None => array.end(),
    });
    lines.boxed()
}

/// The tokens that may come next outside of the array's elements.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Next {
    #[default]
    Bracket,
    ElementOrEnd,
    Element,
    CommaOrEnd,
    Nothing,
}

#[derive(Default)]
struct Array {
    next: Next,
    /// Brackets and braces that are open within an element.
    depth: u64,
    is_text: bool,
    is_escaped: bool,
    /// Bytes read before.
    read: u64,
}

impl Array {
    /// The next bytes: commas between elements become line breaks, and line breaks within elements become blanks.
    fn lines(&mut self, bytes: &[u8]) -> Result<Bytes> {
        let mut lines = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.read += 1;
            match self.depth {
                0 => lines.push(self.outside(*byte)?),
                _ => lines.push(self.inside(*byte)),
            }
        }
        Ok(lines.into())
    }

    fn inside(&mut self, byte: u8) -> u8 {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_text => self.is_escaped = true,
            b'"' => self.is_text = !self.is_text,
            _ if self.is_text => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            b'\n' | b'\r' => return b' ',
            _ => {}
        }
        byte
    }

    fn outside(&mut self, byte: u8) -> Result<u8> {
        let (next, line) = match (self.next, byte) {
            (next, byte) if is_blank(byte) => (next, b' '),
            (Next::Bracket, b'[') => (Next::ElementOrEnd, b' '),
            (Next::ElementOrEnd | Next::Element, b'{') => {
                self.depth = 1;
                (Next::CommaOrEnd, byte)
            }
            (Next::CommaOrEnd, b',') => (Next::Element, b'\n'),
            (Next::ElementOrEnd | Next::CommaOrEnd, b']') => (Next::Nothing, b'\n'),
            (next, byte) => {
                let wanted = match next {
                    Next::Bracket => "`[`",
                    Next::ElementOrEnd => "an object or `]`",
                    Next::Element => "an object",
                    Next::CommaOrEnd => "`,` or `]`",
                    Next::Nothing => "nothing behind the array",
                };
                let (byte, at) = (byte.escape_ascii(), self.read - 1);
                return Err(of_array(format!("it has `{byte}` at byte {at} instead of {wanted}")));
            }
        };
        self.next = next;
        Ok(line)
    }

    fn end(&self) -> Result<Bytes> {
        match self.next {
            Next::Nothing => Ok(Bytes::new()),
            _ => Err(of_array(format!("it ends at byte {} within the array", self.read))),
        }
    }
}

/// True for an error message with a position in the file.
pub(super) fn has_place(what: &str) -> bool {
    what.starts_with("it has ") || what.starts_with("it ends at byte ")
}

fn of_array(reason: String) -> DataFusionError {
    DataFusionError::ArrowError(Box::new(ArrowError::JsonError(reason)), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use object_store::memory::InMemory;

    /// The text as lines, also if it arrives byte by byte.
    fn lines_of(text: &str) -> Result<String, String> {
        let said = |e: DataFusionError| e.strip_backtrace();
        let all = |parts: Vec<Bytes>| {
            let bytes = stream::iter(parts.into_iter().map(Ok)).boxed();
            let parts: Vec<Bytes> = block_on(lines(bytes).try_collect()).map_err(said)?;
            Ok::<_, String>(String::from_utf8(parts.concat()).unwrap())
        };
        let whole = all(vec![Bytes::copy_from_slice(text.as_bytes())]);
        let cut = all(text.bytes().map(|byte| Bytes::from(vec![byte])).collect());
        assert_eq!(whole, cut);
        whole
    }

    #[test]
    fn elements_are_lines() {
        let text = "\n[ {\"a\": \"x,]}\\\"\",\n \"b\": [1, {\"c\": 2}]} , {\"a\": \"\\\\\"}]\n ";
        let lines = lines_of(text).unwrap();
        let lines: Vec<&str> = lines.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        assert_eq!(lines, ["{\"a\": \"x,]}\\\"\",  \"b\": [1, {\"c\": 2}]}", "{\"a\": \"\\\\\"}"]);
        assert_eq!(lines_of("[]").unwrap().trim(), "");
    }

    #[test]
    fn malformed_arrays_are_errors_with_the_byte() {
        for (text, reason) in [
            ("[{}", "it ends at byte 3 within the array"),
            ("[{\"a\": \"", "it ends at byte 8 within the array"),
            ("[{},]", "it has `]` at byte 4 instead of an object"),
            ("[{} {}]", "it has `{` at byte 4 instead of `,` or `]`"),
            ("[1, 2]", "it has `1` at byte 1 instead of an object or `]`"),
            ("[{}] {}", "it has `{` at byte 5 instead of nothing behind the array"),
        ] {
            let error = lines_of(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn files_of_lines_and_arrays_are_distinguished() {
        for (text, array) in [
            ("[{\"a\": 1}]", true),
            ("\u{feff} \r\n[{\"a\": 1}]", true),
            ("{\"a\": [1]}", false),
            ("", false),
            ("  ", false),
        ] {
            let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
            let at = Path::from("x.json");
            block_on(store.put(&at, text.to_string().into())).unwrap();
            let found = block_on(is_array(&store, &at, text.len() as u64)).unwrap();
            assert_eq!(found, array, "{text}");
            let bytes: Vec<Bytes> =
                block_on(async { objects(&store, &at).await?.try_collect().await }).unwrap();
            let got = String::from_utf8(bytes.concat()).unwrap();
            let want = if array { "{\"a\": 1}" } else { text.trim() };
            assert_eq!(got.trim(), want);
        }
    }
}
