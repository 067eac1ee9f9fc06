//! NumPy's files: `.npy`.
//!
//! # Source
//! NumPy enhancement proposal 1, "A simple file format for NumPy arrays", versions 1.0 to 3.0.

use crate::source::Opened;
use crate::source::cells::Raw;
use crate::source::cf;
use crate::source::error::SourceError;
use crate::source::flat::{self, Flat};
use crate::source::location::Location;
use crate::source::meta::{Who, show};
use crate::source::moments::Moments;
use crate::source::reader::{ArrayReader, Layout};
use crate::source::store::Store;
use std::sync::Arc;
use tessera_planner::catalog::{Dataset, Decode, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::region::{Dims, RANK_MAX, cells};
use tessera_planner::scalar::Scalar;

/// Upper bound on the bytes of a header; NumPy itself writes a few hundred bytes.
pub(crate) const HEADER_BYTES_MAX: u64 = 64 << 10;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Opens the location as an `.npy` if it is a file; `None` if it is something else.
pub(crate) async fn open(
    store: &Store,
    location: &Location,
) -> Result<Option<Opened>, SourceError> {
    if !location.group.is_empty() {
        return Ok(None);
    }
    let named = location.display.to_ascii_lowercase().ends_with(".npy");
    if !named && !store.is_local() {
        return Ok(None);
    }
    // Cells are read from the version of the file whose header is read here.
    let opening = store.opening();
    let Some((len, version)) = opening.head("").await? else { return Ok(None) };
    let parts =
        opening.get_ranges("", std::slice::from_ref(&(0..len.min(HEADER_BYTES_MAX + 12)))).await?;
    let Some(start) = parts.and_then(|mut p| p.pop()) else { return Ok(None) };
    if !named && !start.starts_with(MAGIC) {
        return Ok(None);
    }
    let name = location.stem();
    let who = Who { array: &name, path: &location.display };
    let header = Header::parse(who, &start)?;
    header.check_len(who, len)?;
    let flat = header.flat("", 0);
    let (variable, reader) = variable(store, &name, "", header, flat, version);
    Ok(Some(Opened {
        dataset: Dataset { name, variables: vec![variable], ..Dataset::default() },
        readers: vec![Arc::new(reader)],
        ..Opened::default()
    }))
}

/// The variable and the reader of one file.
pub(crate) fn variable(
    store: &Store,
    name: &str,
    path: &str,
    header: Header,
    flat: Flat,
    version: Option<String>,
) -> (Variable, ArrayReader) {
    // In a file in Fortran order lines run along the first axis.
    let in_order = !header.fortran || header.shape.len() < 2;
    let plain = store.is_local() && flat.memory.is_none() && in_order && flat.is_verbatim();
    let source = SourceRef {
        url: store.root().to_string(),
        path: path.to_string(),
        dtype: header.dtype,
        grid: flat::slabs(&header.shape, header.raw.size(), header.fortran),
        shape: header.shape,
        nullable: false,
        version,
        plain,
    };
    let mut decode = Decode::default();
    if matches!(flat.raw, Raw::Time { .. } | Raw::Months { .. } | Raw::Span { .. }) {
        decode.missing.push(Scalar::from_le_bytes(source.dtype, &i64::MIN.to_le_bytes()));
    }
    let variable = Variable {
        name: name.into(),
        dims: vec![None; source.shape.len()],
        source: source.clone(),
        decode,
        attrs: cf::span_units(&flat.raw).into_iter().collect(),
    };
    let moments = Moments::native(&flat.raw).map(Arc::new);
    let reader = ArrayReader::new(source, name, store.clone(), Layout::Flat(flat));
    (variable, ArrayReader { moments, ..reader })
}

/// A validated header.
#[derive(Debug)]
pub(crate) struct Header {
    raw: Raw,
    dtype: DType,
    big_endian: bool,
    fortran: bool,
    shape: Dims,
    /// Offset of the first cell.
    offset: u64,
}

impl Header {
    /// Parses the start of a file.
    pub(crate) fn parse(who: Who<'_>, bytes: &[u8]) -> Result<Header, SourceError> {
        if !bytes.starts_with(MAGIC) {
            return Err(who.bad("it does not begin as an .npy file does"));
        }
        let short = || who.bad("the file ends within its header");
        let (text_at, length) = match bytes.get(6..8).ok_or_else(short)? {
            [1, _] => {
                let b = bytes.get(8..10).ok_or_else(short)?;
                (10, u64::from(u16::from_le_bytes([b[0], b[1]])))
            }
            [2 | 3, _] => {
                let b = bytes.get(8..12).ok_or_else(short)?;
                (12, u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            }
            [major, minor] => {
                return Err(who.bad(format!("format version {major}.{minor} is not known")));
            }
            _ => return Err(short()),
        };
        if length > HEADER_BYTES_MAX {
            return Err(who.bad(format!(
                "its header has {length} bytes, at most {HEADER_BYTES_MAX} are read"
            )));
        }
        let text = bytes.get(text_at..text_at + length as usize).ok_or_else(short)?;
        // Versions 1 and 2 are Latin-1; every key and type that is read is ASCII in all of them.
        if !text.is_ascii() {
            return Err(who.bad("its header is not ASCII"));
        }
        let mut parser = Parser { text, at: 0 };
        let (descr, fortran, shape) = parser.header().map_err(|reason| who.bad(reason))?;
        let unsupported =
            || SourceError::UnsupportedDType { array: who.array.into(), dtype: descr.clone() };
        let (raw, big_endian) = Raw::parse_numpy(&descr).ok_or_else(unsupported)?;
        let dtype = raw.dtype().ok_or_else(unsupported)?;
        let bytes = cells(&shape)
            .and_then(|n| n.checked_mul(raw.size()))
            .filter(|&n| n <= i64::MAX as u64 / 2);
        if bytes.is_none() {
            return Err(who.bad(format!("the shape {} has too many cells", show(&shape))));
        }
        Ok(Header { raw, dtype, big_endian, fortran, shape, offset: text_at as u64 + length })
    }

    /// Checks that the file, of `len` bytes, is as long as the header says.
    pub(crate) fn check_len(&self, who: Who<'_>, len: u64) -> Result<(), SourceError> {
        let data = cells(&self.shape).unwrap_or(0).saturating_mul(self.raw.size());
        if self.offset.saturating_add(data) > len {
            return Err(who.bad(format!(
                "the shape {} needs {data} bytes, the file has {}",
                show(&self.shape),
                len.saturating_sub(self.offset)
            )));
        }
        Ok(())
    }

    /// Layout of the cells of a file that begins at `base` of the object `key`.
    pub(crate) fn flat(&self, key: &str, base: u64) -> Flat {
        Flat {
            key: key.to_string(),
            raw: self.raw.clone(),
            swapped: self.big_endian != cfg!(target_endian = "big") && self.raw.size() > 1,
            fortran: self.fortran,
            offset: base + self.offset,
            memory: None,
            sum: None,
        }
    }
}

/// A parser of the one Python literal that headers are: a dict of a text, a truth value and a tuple of numbers. It
/// never recurses.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn header(&mut self) -> Result<(String, bool, Dims), String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        loop {
            if self.take(b'}') {
                break;
            }
            let key = self.string()?;
            self.expect(b':')?;
            match key.as_str() {
                "descr" => descr = Some(self.descr()?),
                "fortran_order" => fortran = Some(self.truth()?),
                "shape" => shape = Some(self.tuple()?),
                _ => return Err(format!("its header has an unknown key `{key}`")),
            }
            if !self.take(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        let missing = |key: &str| format!("its header has no `{key}`");
        Ok((
            descr.ok_or_else(|| missing("descr"))?,
            fortran.ok_or_else(|| missing("fortran_order"))?,
            shape.ok_or_else(|| missing("shape"))?,
        ))
    }

    fn blanks(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, b: u8) -> bool {
        self.blanks();
        let found = self.text.get(self.at) == Some(&b);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, b: u8) -> Result<(), String> {
        match self.take(b) {
            true => Ok(()),
            false => Err(format!("its header has no `{}` at byte {}", char::from(b), self.at)),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.blanks();
        let quote = self.text.get(self.at).copied().filter(|b| matches!(b, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| format!("its header has no text at byte {}", self.at))?;
        let rest = &self.text[self.at + 1..];
        let end = rest.iter().position(|&b| b == quote);
        let end = end.ok_or("a text in its header does not end")?;
        self.at += end + 2;
        Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
    }

    /// Parses the type; a list is the type of a record and is returned as its text.
    fn descr(&mut self) -> Result<String, String> {
        self.blanks();
        if self.text.get(self.at) != Some(&b'[') {
            return self.string();
        }
        let rest = &self.text[self.at..];
        let mut depth = 0usize;
        for (i, b) in rest.iter().enumerate() {
            depth = match b {
                b'[' | b'(' => depth + 1,
                b']' | b')' => depth.saturating_sub(1),
                _ => depth,
            };
            if depth == 0 {
                self.at += i + 1;
                return Ok(String::from_utf8_lossy(&rest[..=i]).into_owned());
            }
        }
        Err("a list in its header does not end".into())
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.blanks();
        let rest = &self.text[self.at..];
        for (word, value) in [("True", true), ("False", false)] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("`fortran_order` is neither True nor False".into())
    }

    fn tuple(&mut self) -> Result<Dims, String> {
        let mut out = Dims::new();
        self.expect(b'(').map_err(|_| "`shape` is not a tuple")?;
        loop {
            if self.take(b')') {
                return Ok(out);
            }
            self.blanks();
            let digits = self.text[self.at..].iter().take_while(|b| b.is_ascii_digit()).count();
            let number = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or("");
            let n: u64 = number
                .parse()
                .map_err(|_| "`shape` has an item that is not a length".to_string())?;
            self.at += digits;
            // Python 2 wrote long integers with an L.
            self.take(b'L');
            out.push(n);
            if out.len() > RANK_MAX {
                return Err(format!("`shape` has more than {RANK_MAX} axes"));
            }
            if !self.take(b',') {
                self.expect(b')').map_err(|_| "`shape` is not a tuple of lengths")?;
                return Ok(out);
            }
        }
    }
}
