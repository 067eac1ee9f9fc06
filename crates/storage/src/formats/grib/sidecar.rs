//! Files beside a GRIB file that list where its messages begin. They are only hints which bytes to fetch together.
//!
//! ```text
//!   NCEP   1:0:d=2024010100:TMP:2 m above ground:anl:          number, offset, …; fields of one message: 1.1, 1.2
//!   ECMWF  {"param": "2t", "_offset": 0, "_length": 609046}    a line for each message
//! ```
//!
//! # Source
//! The inventories of NCEP's wgrib and wgrib2; ECMWF's open data, section "index files".

use serde_json::Value;

/// Upper bound on the lines that are read.
const LINES_MAX: usize = 1 << 18;

/// Names of files beside one called `name`.
pub(super) fn names(name: &str, extensions: &[&str]) -> Vec<String> {
    let mut out = vec![format!("{name}.idx"), format!("{name}.index")];
    if let Some((stem, extension)) = name.rsplit_once('.')
        && !stem.is_empty()
        && extensions.contains(&extension.to_ascii_lowercase().as_str())
    {
        out.push(format!("{stem}.index"));
    }
    out
}

/// Offsets below `len` that the lines of a file have, in rising order. Lines of another form are skipped.
pub(super) fn starts(text: &[u8], len: u64) -> Vec<u64> {
    let lines = text.split(|b| *b == b'\n').take(LINES_MAX);
    let mut out: Vec<u64> = lines.filter_map(offset).filter(|at| *at < len).collect();
    out.sort_unstable();
    out.dedup();
    out
}

fn offset(line: &[u8]) -> Option<u64> {
    let line = line.trim_ascii();
    if line.starts_with(b"{") {
        let line: Value = serde_json::from_slice(line).ok()?;
        return line.get("_offset")?.as_u64();
    }
    let mut parts = line.split(|b| *b == b':');
    let (number, offset) = (parts.next()?, parts.next()?);
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let mut numbers = number.split(|b| *b == b'.');
    (numbers.all(is_number) && is_number(offset))
        .then(|| std::str::from_utf8(offset).ok()?.parse().ok())
        .flatten()
}
