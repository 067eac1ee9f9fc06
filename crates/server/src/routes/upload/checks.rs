//! Checks of an upload before a statement reads it: names, the end of an Arrow stream, and timestamps that Tessera's
//! microseconds would truncate.

use super::refuse;
use arrow::array::AsArray;
use arrow::datatypes::{DataType, TimeUnit, TimestampNanosecondType};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use tessera_engine::error::Error;

/// Nanoseconds in a microsecond.
const NANOS: i64 = 1000;
/// Bytes that are checked at once.
const PIECE: u64 = 1 << 16;
/// The end of an Arrow stream.
const ARROW_END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

fn failed(e: std::io::Error) -> Error {
    Error::io("read", "the file of an upload", e)
}

fn cut(what: &str, nanos: i64) -> Error {
    refuse(format!(
        "{what} has a moment of {nanos} ns since 1970, and moments are whole microseconds here: round it before, in NumPy with `.astype('datetime64[us]')`"
    ))
}

/// The names in `?dims=time,lat`.
///
/// # Errors
/// No name, an empty one, a repeated one.
pub(super) fn names(text: &str) -> Result<Vec<String>, Error> {
    let names: Vec<String> = text.split(',').map(String::from).collect();
    if text.is_empty() {
        let reason = "name the columns that are dimensions, and leave some: `?dims=time,lat`";
        return Err(refuse(reason.into()));
    }
    if names.iter().any(String::is_empty) {
        return Err(refuse(format!("`dims={text}` has an empty name")));
    }
    let mut seen = BTreeSet::new();
    match names.iter().find(|n| !seen.insert(n.as_str())) {
        Some(twice) => Err(refuse(format!("`dims={text}` names `{twice}` twice"))),
        None => Ok(names),
    }
}

/// Checks an Arrow stream that is stored as rows. Its batches are left to the statements that read them.
///
/// # Errors
/// An incomplete or unreadable stream.
pub(super) fn rows(path: &Path) -> Result<(), Error> {
    stream(path).map(drop)
}

/// A complete Arrow stream.
fn stream(path: &Path) -> Result<StreamReader<BufReader<File>>, Error> {
    let mut file = File::open(path).map_err(failed)?;
    // A complete stream has an end marker.
    let mut end = [0; 8];
    file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut end)).map_err(failed)?;
    if end != ARROW_END {
        return Err(refuse("the Arrow stream has no end: it was cut".into()));
    }
    file.rewind().map_err(failed)?;
    StreamReader::try_new(BufReader::new(file), None).map_err(unreadable)
}

fn unreadable(e: ArrowError) -> Error {
    refuse(format!("the Arrow stream cannot be read: {e}"))
}

/// The select items of an Arrow stream: its dimensions in brackets, then the other columns.
///
/// # Errors
/// An incomplete or unreadable stream, unknown or repeated columns, timestamps between microseconds.
pub(super) fn arrow(path: &Path, dims: &[String]) -> Result<Vec<String>, Error> {
    let stream = stream(path)?;
    let schema = stream.schema();
    let mut seen = BTreeSet::new();
    if let Some(twice) = schema.fields().iter().find(|f| !seen.insert(f.name().as_str())) {
        return Err(refuse(format!("the Arrow stream has two columns `{}`", twice.name())));
    }
    if let Some(d) = dims.iter().find(|d| schema.index_of(d).is_err()) {
        return Err(refuse(format!("the Arrow stream has no column `{d}`")));
    }
    let others = schema.fields().iter().map(|f| f.name()).filter(|n| !dims.contains(n));
    let others: Vec<String> = others.map(|n| quoted(n)).collect();
    if others.is_empty() {
        return Err(refuse("all columns of the Arrow stream are dimensions: leave some".into()));
    }
    let of_nanos = |t: &DataType| matches!(t, DataType::Timestamp(TimeUnit::Nanosecond, _));
    if schema.fields().iter().any(|f| of_nanos(f.data_type())) {
        for batch in stream {
            let batch = batch.map_err(unreadable)?;
            for (field, column) in schema.fields().iter().zip(batch.columns()) {
                if !of_nanos(field.data_type()) {
                    continue;
                }
                let moments = column.as_primitive::<TimestampNanosecondType>();
                if let Some(n) = moments.iter().flatten().find(|n| n % NANOS != 0) {
                    return Err(cut(&format!("the column `{}`", field.name()), n));
                }
            }
        }
    }
    Ok(dims.iter().map(|d| format!("[{}]", quoted(d))).chain(others).collect())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Looks for timestamps between microseconds in an `.npy` of `datetime64[ns]`. Other errors of the file are left to its
/// reader.
///
/// # Source
/// NumPy enhancement proposal 1; `NaT` is the least `int64`.
pub(super) fn npy(path: &Path) -> Result<(), Error> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path).map_err(failed)?);
    let mut start = Vec::new();
    file.by_ref().take(12).read_to_end(&mut start).map_err(failed)?;
    let (length, at) = match start[..] {
        [.., 1, _, a, b, _, _] => (u64::from(u16::from_le_bytes([a, b])), 10),
        [.., 2 | 3, _, a, b, c, d] => (u64::from(u32::from_le_bytes([a, b, c, d])), 12),
        _ => return Ok(()),
    };
    file.seek(SeekFrom::Start(at)).map_err(failed)?;
    let mut header = Vec::new();
    // The reader refuses longer headers.
    file.by_ref().take(length.min(64 << 10)).read_to_end(&mut header).map_err(failed)?;
    let Some((big_endian, count)) = nanos_of(&String::from_utf8_lossy(&header)) else {
        return Ok(());
    };
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        file.by_ref().take(PIECE).read_to_end(&mut bytes).map_err(failed)?;
        for cell in bytes.as_chunks::<8>().0 {
            let n = if big_endian { i64::from_be_bytes(*cell) } else { i64::from_le_bytes(*cell) };
            let nanos = i128::from(n) * i128::from(count);
            if n != i64::MIN && nanos % i128::from(NANOS) != 0 {
                return Err(cut("the array", i64::try_from(nanos).unwrap_or(n)));
            }
        }
        if (bytes.len() as u64) < PIECE {
            return Ok(());
        }
    }
}

/// For a header with `<M8[25ns]`: true if it is big-endian, and 25.
fn nanos_of(header: &str) -> Option<(bool, i64)> {
    let (before, rest) = header.split_once("M8[")?;
    let unit = rest.split_once(']')?.0.strip_suffix("ns")?;
    let count = if unit.is_empty() { 1 } else { unit.parse().ok()? };
    Some((before.ends_with('>'), count))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn names_of_dimensions_exist_and_differ() {
        assert_eq!(names("time,lat").unwrap(), ["time", "lat"]);
        for (text, reason) in [
            ("", "name the columns that are dimensions"),
            ("x,", "has an empty name"),
            (",x", "has an empty name"),
            ("x,y,x", "names `x` twice"),
        ] {
            let e = names(text).unwrap_err().to_string();
            assert!(e.contains(reason), "{text}: {e}");
        }
    }

    fn file(descr: &str, cells: &[[u8; 8]]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().unwrap();
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}\n");
        f.write_all(b"\x93NUMPY\x01\x00").unwrap();
        f.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
        f.write_all(header.as_bytes()).unwrap();
        f.write_all(cells.as_flattened()).unwrap();
        f
    }

    #[test]
    fn moments_between_microseconds_are_found() {
        let le = |v: [i64; 2]| v.map(i64::to_le_bytes);
        for (descr, cells, found) in [
            ("<M8[ns]", le([3000, 57]), Some("57 ns")),
            ("<M8[ns]", le([-2000, i64::MIN]), None),
            ("<M8[ns]", le([-1, 0]), Some("-1 ns")),
            ("<M8[25ns]", le([40, 41]), Some("1025 ns")),
            (">M8[ns]", [0i64, 1001].map(i64::to_be_bytes), Some("1001 ns")),
            ("<M8[us]", le([1, 2]), None),
            ("<i8", le([1, 2]), None),
        ] {
            let e = npy(file(descr, &cells).path()).err().map(|e| e.to_string());
            match found {
                Some(part) => assert!(e.unwrap().contains(part), "{descr}"),
                None => assert_eq!(e, None, "{descr}"),
            }
        }
        // The last cell of many.
        let mut many = vec![[0u8; 8]; 100_000];
        many[99_999] = 7i64.to_le_bytes();
        assert!(npy(file("<M8[ns]", &many).path()).is_err());
    }
}
