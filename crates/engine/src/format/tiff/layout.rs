//! The beginning of a file: the bytes before the tiles, which include the places of the tiles.
//!
//! ```text
//!   II 42 │ ghost area │ IFD: entries, next │ values that are longer than an entry │ IFD … │ tiles: size, bytes, last 4
//! ```
//! Offsets have four bytes, or eight in a BigTIFF, which a file is from 4 GiB on.

use super::Raster;
use super::pyramid::{Level, tile_shape};
use super::tile::predictor;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;

/// Bytes around a tile: its size before, its last four bytes again behind.
const AROUND: u64 = 8;

/// Types of values.
const ASCII: u16 = 2;
const SHORT: u16 = 3;
const LONG: u16 = 4;
const DOUBLE: u16 = 12;
const LONG8: u16 = 16;

/// An entry of an IFD.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    tag: u16,
    kind: u16,
    count: u64,
    /// Little-endian.
    bytes: Vec<u8>,
}

impl Entry {
    pub(super) fn shorts(tag: u16, v: &[u16]) -> Entry {
        let bytes = v.iter().flat_map(|n| n.to_le_bytes()).collect();
        Entry { tag, kind: SHORT, count: v.len() as u64, bytes }
    }

    pub(super) fn doubles(tag: u16, v: &[f64]) -> Entry {
        let bytes = v.iter().flat_map(|n| n.to_le_bytes()).collect();
        Entry { tag, kind: DOUBLE, count: v.len() as u64, bytes }
    }

    fn longs(tag: u16, v: impl Iterator<Item = u32>) -> Entry {
        let bytes: Vec<u8> = v.flat_map(u32::to_le_bytes).collect();
        Entry { tag, kind: LONG, count: bytes.len() as u64 / 4, bytes }
    }

    fn text(tag: u16, text: &str) -> Entry {
        let bytes = [text.as_bytes(), &[0]].concat();
        Entry { tag, kind: ASCII, count: bytes.len() as u64, bytes }
    }
}

/// The sizes of a classic TIFF, or of a BigTIFF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TiffForm {
    is_big: bool,
}

impl TiffForm {
    /// Bytes of an offset, and of the value in an entry.
    fn offset(self) -> usize {
        if self.is_big { 8 } else { 4 }
    }

    /// Bytes of the number of entries.
    fn count(self) -> usize {
        if self.is_big { 8 } else { 2 }
    }

    fn put(self, v: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&v.to_le_bytes()[..self.offset()]);
    }

    /// Bytes of an IFD with its values.
    fn size(self, entries: &[Entry]) -> usize {
        let entry = 4 + 2 * self.offset();
        let values = entries.iter().map(|e| e.bytes.len()).filter(|n| *n > self.offset());
        let values: usize = values.map(|n| n.next_multiple_of(2)).sum();
        self.count() + entry * entries.len() + self.offset() + values
    }
}

/// The file up to its first tile. Tiles of the last level follow, then those of the level before, …, each with its
/// framing bytes.
pub(super) fn encode(raster: &Raster<'_>, levels: &[Level], nodata: Option<Scalar>) -> Vec<u8> {
    let tiles = levels.iter().flat_map(|level| &level.tiles);
    let bytes: u64 = tiles.map(|tile| u64::from(tile.bytes) + AROUND).sum();
    let classic = written(TiffForm { is_big: false }, raster, levels, nodata);
    match classic.len() as u64 + bytes <= u64::from(u32::MAX) {
        true => classic,
        false => written(TiffForm { is_big: true }, raster, levels, nodata),
    }
}

fn written(
    form: TiffForm,
    raster: &Raster<'_>,
    levels: &[Level],
    nodata: Option<Scalar>,
) -> Vec<u8> {
    let ghost = ghost(raster.bands.len());
    let start = if form.is_big { 16 } else { 8 } + ghost.len();
    let first = start.next_multiple_of(2);
    let mut ifds: Vec<Vec<Entry>> =
        (0..levels.len()).map(|n| entries(form, raster, levels, n, nodata)).collect();
    let sizes: usize = ifds.iter().map(|entries| form.size(entries)).sum();
    place(form, levels, (first + sizes) as u64, &mut ifds);
    let mut out = b"II".to_vec();
    match form.is_big {
        true => out.extend_from_slice(&[43, 0, 8, 0, 0, 0]),
        false => out.extend_from_slice(&[42, 0]),
    }
    form.put(first as u64, &mut out);
    out.extend_from_slice(&ghost);
    out.resize(first, 0);
    let last = ifds.len() - 1;
    for (n, entries) in ifds.iter().enumerate() {
        directory(form, entries, n == last, &mut out);
    }
    out
}

/// The layout of the file, as GDAL reads it.
fn ghost(bands: usize) -> Vec<u8> {
    let mut text = String::from(
        "LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n\
         BLOCK_TRAILER=LAST_4_BYTES_REPEATED\n",
    );
    if bands > 1 {
        text.push_str("INTERLEAVE=BAND\n");
    }
    // The space is for a program that changes the file: it writes YES.
    text.push_str("KNOWN_INCOMPATIBLE_EDITION=NO\n ");
    format!("GDAL_STRUCTURAL_METADATA_SIZE={:06} bytes\n{text}", text.len()).into_bytes()
}

/// The entries of level `n` in ascending order, with room for the offsets of its tiles.
fn entries(
    form: TiffForm,
    raster: &Raster<'_>,
    levels: &[Level],
    n: usize,
    nodata: Option<Scalar>,
) -> Vec<Entry> {
    let (level, bands) = (&levels[n], raster.bands.len());
    let (tile_height, tile_width) = tile_shape(raster.height, raster.width);
    let long = |tag: u16, v: u64| Entry::longs(tag, std::iter::once(v as u32));
    let short = |tag: u16, v: u16| Entry::shorts(tag, &[v]);
    let each = |tag: u16, v: u16| Entry::shorts(tag, &vec![v; bands]);
    let sample = match raster.dtype {
        d if d.is_float() => 3,
        d if d.is_signed() => 2,
        _ => 1,
    };
    let mut out = vec![
        long(254, u64::from(n > 0)),
        long(256, level.width),
        long(257, level.height),
        each(258, 8 * raster.dtype.size() as u16),
        // Deflate, black is zero.
        short(259, 8),
        short(262, 1),
        short(277, bands as u16),
        // One plane after another.
        short(284, if bands > 1 { 2 } else { 1 }),
        short(317, predictor(raster.dtype)),
        long(322, tile_width),
        long(323, tile_height),
        Entry {
            tag: 324,
            kind: if form.is_big { LONG8 } else { LONG },
            count: level.tiles.len() as u64,
            bytes: vec![0; form.offset() * level.tiles.len()],
        },
        Entry::longs(325, level.tiles.iter().map(|tile| tile.bytes)),
    ];
    if bands > 1 {
        out.push(Entry::shorts(338, &vec![0; bands - 1]));
    }
    out.push(each(339, sample));
    if n == 0 {
        out.extend(raster.geo.entries());
        out.push(Entry::text(42112, &raster.metadata));
    }
    out.extend(nodata.map(|v| Entry::text(42113, &shown(v))));
    out
}

fn shown(v: Scalar) -> String {
    match v.dtype() {
        DType::Float32 | DType::Float64 if v.as_f64().is_nan() => "nan".into(),
        DType::Float32 | DType::Float64 => format!("{:e}", v.as_f64()),
        _ => v.as_i128().to_string(),
    }
}

/// Sets the offsets of tiles; the first one begins at `at`.
fn place(form: TiffForm, levels: &[Level], mut at: u64, ifds: &mut [Vec<Entry>]) {
    for (level, entries) in levels.iter().zip(ifds).rev() {
        let Some(offsets) = entries.iter_mut().find(|e| e.tag == 324) else { continue };
        offsets.bytes.clear();
        for tile in &level.tiles {
            form.put(at + 4, &mut offsets.bytes);
            at += u64::from(tile.bytes) + AROUND;
        }
    }
}

fn directory(form: TiffForm, entries: &[Entry], is_last: bool, out: &mut Vec<u8>) {
    let start = out.len();
    let end = start + form.size(entries);
    let mut value = start + form.count() + (4 + 2 * form.offset()) * entries.len() + form.offset();
    let count = (entries.len() as u64).to_le_bytes();
    out.extend_from_slice(&count[..form.count()]);
    let mut values = Vec::new();
    for e in entries {
        out.extend_from_slice(&e.tag.to_le_bytes());
        out.extend_from_slice(&e.kind.to_le_bytes());
        form.put(e.count, out);
        if e.bytes.len() <= form.offset() {
            out.extend_from_slice(&e.bytes);
            out.resize(out.len() + form.offset() - e.bytes.len(), 0);
            continue;
        }
        form.put(value as u64, out);
        values.extend_from_slice(&e.bytes);
        values.resize(values.len().next_multiple_of(2), 0);
        value += e.bytes.len().next_multiple_of(2);
    }
    form.put(if is_last { 0 } else { end as u64 }, out);
    out.extend_from_slice(&values);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ghost_area_is_gdals() {
        let text = String::from_utf8_lossy(&ghost(1)).into_owned();
        // Of a file that GDAL 3.10 wrote: gdal_translate -of COG.
        let want = "GDAL_STRUCTURAL_METADATA_SIZE=000140 bytes\nLAYOUT=IFDS_BEFORE_DATA\n\
                    BLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n\
                    BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n ";
        assert_eq!(text, want);
    }

    #[test]
    fn values_are_in_entries_or_behind_them() {
        for is_big in [false, true] {
            let form = TiffForm { is_big };
            let entries = [Entry::shorts(258, &[8]), Entry::doubles(33550, &[1.0, 2.0, 0.0])];
            let mut out = vec![0; 10];
            directory(form, &entries, false, &mut out);
            assert_eq!(out.len() - 10, form.size(&entries));
            let at = 10 + form.count() + (4 + 2 * form.offset()) * 2;
            // The next IFD begins where this one ends, and the doubles behind the offset of it.
            assert_eq!(out[at..at + 4], (out.len() as u32).to_le_bytes());
            let values = at + form.offset();
            assert_eq!(out[at - form.offset()..][..4], (values as u32).to_le_bytes());
            assert_eq!(out[values..][..8], 1f64.to_le_bytes());
        }
    }
}
