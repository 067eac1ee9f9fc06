//! The layout of an image: its cells, its segments (tiles or strips) and how they are encoded.

use super::ifd::{Ifd, Values};
use super::segment::{Codec, Predictor, Segment};
use super::{jpeg, tags};
use crate::formats::Why;
use crate::formats::view::{Fault, View};
use crate::source::cells::Raw;
use std::sync::Arc;
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;

/// Upper bound on the bands of an image: that of classic TIFF.
const BANDS_MAX: u64 = u16::MAX as u64;

/// Upper bound on the strips of which [`Image::start`] reads the offsets.
const STRIPS_MAX: u64 = 1 << 16;

/// Why an image cannot be read.
pub(super) enum Stop {
    /// The file is damaged, or the bytes are missing.
    Fault(Fault),
    /// This image cannot be read.
    Image(Why),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

fn unsupported(what: impl Into<String>) -> Stop {
    Stop::Image(Why::Unsupported(what.into()))
}

fn bad(reason: impl Into<String>) -> Stop {
    Stop::Image(Why::Bad(reason.into()))
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Image {
    pub(super) bands: u64,
    pub(super) height: u64,
    pub(super) width: u64,
    pub(super) raw: Raw,
    pub(super) offsets: Values,
    /// Their lengths; `None` if they follow from the layout.
    pub(super) lengths: Option<Values>,
    pub(super) layout: Layout,
}

/// The form of all segments of an image.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    pub(super) segment: Segment,
    /// Rows of the last segment of a column, if they are fewer.
    pub(super) last_rows: Option<u64>,
    /// True if each band has segments of its own.
    pub(super) is_planar: bool,
    /// Segments along the height and the width.
    pub(super) down: u64,
    pub(super) across: u64,
}

impl Image {
    /// The image of a directory.
    pub(super) fn read(file: &View<'_>, ifd: &Ifd<'_>) -> Result<Image, Stop> {
        let one = |tag| ifd.uint(file, tag);
        let length = |tag, name: &str| match one(tag)? {
            Some(n) if (1..=u64::from(u32::MAX)).contains(&n) => Ok(n),
            Some(n) => Err(bad(format!("{name} is {n}"))),
            None => Err(bad(format!("it has no {name}"))),
        };
        let (width, height) = (length(tags::WIDTH, "width")?, length(tags::HEIGHT, "height")?);
        if let Some(depth) = one(tags::IMAGE_DEPTH)?.filter(|n| *n > 1) {
            return Err(unsupported(format!("a volume of {depth} planes (ImageDepth)")));
        }
        if let Some(stack) = ifd.get(tags::METAMORPH)?.filter(|v| v.count > 1) {
            return Err(unsupported(format!("a MetaMorph stack of {} planes", stack.count)));
        }
        let bands = one(tags::SAMPLES)?.unwrap_or(1);
        if !(1..=BANDS_MAX).contains(&bands) {
            return Err(bad(format!("it has {bands} samples per pixel")));
        }
        let is_planar = match one(tags::PLANAR)? {
            None | Some(1) => false,
            Some(2) => bands > 1,
            Some(n) => return Err(bad(format!("its planar configuration is {n}"))),
        };
        let (raw, bits) = cells(file, ifd, bands)?;
        let is_tiled = ifd.get(tags::TILE_WIDTH)?.is_some();
        let (columns, rows) = match is_tiled {
            true => {
                (length(tags::TILE_WIDTH, "tile width")?, length(tags::TILE_HEIGHT, "tile height")?)
            }
            false => {
                let rows = one(tags::ROWS_PER_STRIP)?.unwrap_or(height).min(height);
                match rows {
                    0 => return Err(bad("its strips have no rows")),
                    rows => (width, rows),
                }
            }
        };
        let segment = Segment {
            codec: codec(file, ifd, bands, (bits, is_planar))?,
            predictor: predictor(file, ifd, &raw, bits)?,
            is_reversed: is_reversed(file, ifd)?,
            big_endian: ifd.header.big_endian,
            bits,
            size: raw.size() as usize,
            samples: if is_planar { 1 } else { bands as usize },
            width: columns as usize,
            rows: rows as usize,
            unit_rows: rows as usize,
        };
        let (down, across) = (height.div_ceil(rows), width.div_ceil(columns));
        let last_rows = Some(height - (down - 1) * rows).filter(|n| !is_tiled && *n < rows);
        let layout = Layout { segment, last_rows, is_planar, down, across };
        let find = |tag: u16, other: u16| match ifd.get(tag)? {
            None => ifd.get(other),
            found => Ok(found),
        };
        let (offsets, lengths) = match is_tiled {
            true => (
                find(tags::TILE_OFFSETS, tags::STRIP_OFFSETS)?,
                find(tags::TILE_BYTES, tags::STRIP_BYTES)?,
            ),
            false => (ifd.get(tags::STRIP_OFFSETS)?, ifd.get(tags::STRIP_BYTES)?),
        };
        let offsets = offsets.ok_or_else(|| bad("it has no offsets of its tiles or strips"))?;
        let image = Image { bands, height, width, raw, offsets, lengths, layout };
        image.check()?;
        Ok(image)
    }

    /// Checks that each segment has an offset and a length.
    fn check(&self) -> Result<(), Stop> {
        let Layout { down, across, is_planar, .. } = self.layout;
        let planes = if is_planar { self.bands } else { 1 };
        let count = across.checked_mul(down).and_then(|n| n.checked_mul(planes));
        let expected = count.map_or_else(|| "more than 2^64".into(), |n| n.to_string());
        let check = |values: &Values, what: &str| match count {
            Some(n) if values.count >= n => Ok(()),
            _ => Err(bad(format!("it has {} {what}, expected {expected}", values.count))),
        };
        check(&self.offsets, "offsets of tiles or strips")?;
        match &self.lengths {
            Some(lengths) => check(lengths, "lengths of tiles or strips"),
            None if self.layout.segment.codec == Codec::None => Ok(()),
            None => Err(bad("it has no lengths of its tiles or strips")),
        }
    }

    /// True if another image has the same cells and the same segments, at other places.
    pub(super) fn is_like(&self, other: &Image) -> bool {
        let Image { bands, height, width, raw, layout, .. } = self;
        (bands, height, width) == (&other.bands, &other.height, &other.width)
            && (raw, layout) == (&other.raw, &other.layout)
    }

    /// Offset of the cells, if they are stored one after another in their order and are all there.
    pub(super) fn flat(&self, file: &View<'_>) -> Result<Option<u64>, Fault> {
        let Layout { segment, down, across, .. } = &self.layout;
        let is_one = self.bands == 1 && *down == 1 && *across == 1;
        if !is_one || !segment.is_plain() || segment.width as u64 != self.width {
            return Ok(None);
        }
        let bytes = segment.bytes().map_or(u64::MAX, |n| n as u64);
        let stored = self.lengths.map_or(Ok(bytes), |l| l.first(file))?;
        let offset = self.offsets.first(file)?;
        Ok(Some(offset).filter(|offset| *offset > 0 && stored >= bytes))
    }

    /// Offset of the cells, if they are stored one after another in their order and are all there, in one strip or in
    /// several.
    pub(super) fn start(&self, file: &View<'_>, ifd: &Ifd<'_>) -> Result<Option<u64>, Fault> {
        let Layout { segment, down, across, .. } = &self.layout;
        let is_column = self.bands == 1 && *across == 1 && segment.width as u64 == self.width;
        if *down == 1 || !is_column || !segment.is_plain() {
            return self.flat(file);
        }
        let offsets = ifd.uints(file, tags::STRIP_OFFSETS, STRIPS_MAX)?;
        let bytes = segment.bytes().map(|n| n as u64);
        let is_next = |w: &[u64]| w[1].checked_sub(w[0]) == bytes;
        let is_run = offsets.len() as u64 == *down && offsets.windows(2).all(is_next);
        Ok(offsets.first().copied().filter(|first| is_run && *first > 0))
    }

    /// Lengths of the array.
    pub(super) fn shape(&self) -> Dims {
        Dims::from_slice(&[self.bands, self.height, self.width])
    }

    /// Cells of a segment along each axis.
    pub(super) fn unit(&self) -> Dims {
        let s = &self.layout.segment;
        Dims::from_slice(&[s.samples as u64, s.unit_rows as u64, s.width as u64])
    }
}

/// Type and bits of a cell.
fn cells(file: &View<'_>, ifd: &Ifd<'_>, bands: u64) -> Result<(Raw, u32), Stop> {
    let same = |tag, default: u64, what: &str| {
        let all = ifd.uints(file, tag, bands)?;
        let first = all.first().copied().unwrap_or(default);
        match all.iter().find(|v| **v != first) {
            Some(other) => {
                Err(unsupported(format!("bands of different {what}: {first} and {other}")))
            }
            None => Ok(first),
        }
    };
    let (bits, format) = (same(tags::BITS, 1, "bits")?, same(tags::SAMPLE_FORMAT, 1, "formats")?);
    use DType::*;
    let raw = match (format, bits) {
        (1 | 4, 1..=8) => Raw::Plain(UInt8),
        (1 | 4, 9..=16) => Raw::Plain(UInt16),
        (1 | 4, 17..=32) => Raw::Plain(UInt32),
        (1 | 4, 64) => Raw::Plain(UInt64),
        (2, 8) => Raw::Plain(Int8),
        (2, 16) => Raw::Plain(Int16),
        (2, 32) => Raw::Plain(Int32),
        (2, 64) => Raw::Plain(Int64),
        (3, 16) => Raw::Half,
        (3, 32) => Raw::Plain(Float32),
        (3, 64) => Raw::Plain(Float64),
        _ => {
            let name = match format {
                1 | 4 => "unsigned integer",
                2 => "signed integer",
                3 => "float",
                5 => "complex integer",
                6 => "complex float",
                _ => return Err(bad(format!("its sample format is {format}"))),
            };
            return Err(Stop::Image(Why::DType(format!("{name} of {bits} bits"))));
        }
    };
    Ok((raw, bits as u32))
}

fn is_reversed(file: &View<'_>, ifd: &Ifd<'_>) -> Result<bool, Stop> {
    match ifd.uint(file, tags::FILL_ORDER)? {
        None | Some(1) => Ok(false),
        Some(2) => Ok(true),
        Some(n) => Err(bad(format!("its fill order is {n}"))),
    }
}

/// # Source
/// TIFF revision 6.0, section 3; libtiff's `tiff.h`.
fn codec(
    file: &View<'_>,
    ifd: &Ifd<'_>,
    bands: u64,
    (bits, is_planar): (u32, bool),
) -> Result<Codec, Stop> {
    let is_ycc = ifd.uint(file, tags::PHOTOMETRIC)? == Some(6);
    let code = ifd.uint(file, tags::COMPRESSION)?.unwrap_or(1);
    if is_ycc && code != 7 {
        return Err(unsupported("YCbCr without JPEG"));
    }
    let name = match code {
        1 => return Ok(Codec::None),
        5 => return Ok(Codec::Lzw),
        8 | 32946 => return Ok(Codec::Deflate),
        32773 => return Ok(Codec::PackBits),
        50000 => return Ok(Codec::Zstd),
        7 => {
            let samples = if is_planar { 1 } else { bands };
            if bits != 8 {
                return Err(unsupported(format!("JPEG of {bits} bits")));
            }
            if samples > 4 || is_ycc && (bands != 3 || is_planar) {
                return Err(unsupported(format!("JPEG of {bands} bands")));
            }
            let tables = match ifd.get(tags::JPEG_TABLES)? {
                Some(tables) if tables.count > jpeg::TABLES_BYTES_MAX => {
                    return Err(bad(format!("its JPEG tables have {} bytes", tables.count)));
                }
                Some(tables) => tables.bytes(file)?.into_owned(),
                None => Vec::new(),
            };
            return Ok(Codec::Jpeg { tables: Arc::from(tables), is_ycc });
        }
        2 => "CCITT RLE",
        3 => "CCITT T.4",
        4 => "CCITT T.6",
        6 => "old-style JPEG",
        9 => "JBIG (T.85)",
        10 => "JBIG (T.43)",
        32766 => "NeXT",
        32771 => "CCITT RLE with words",
        32809 => "ThunderScan",
        33003 | 33004 | 33005 | 34712 => "JPEG 2000",
        34661 => "JBIG",
        34676 | 34677 => "SGI Log",
        34887 => "LERC",
        34892 => "lossy JPEG (DNG)",
        34925 => "LZMA",
        34926 | 50001 => "WebP",
        34933 => "PNG",
        34934 => "JPEG XR",
        50002 | 52546 => "JPEG XL",
        n => return Err(unsupported(format!("compression {n}"))),
    };
    Err(unsupported(format!("compression {name}")))
}

/// # Source
/// TIFF revision 6.0, section 14; Adobe's "TIFF Technical Note 3".
fn predictor(file: &View<'_>, ifd: &Ifd<'_>, raw: &Raw, bits: u32) -> Result<Predictor, Stop> {
    // Other compressions have no predictor: libtiff ignores the tag.
    if !matches!(ifd.uint(file, tags::COMPRESSION)?, Some(5 | 8 | 32946 | 50000)) {
        return Ok(Predictor::None);
    }
    let is_float = matches!(raw, Raw::Half | Raw::Plain(DType::Float32 | DType::Float64));
    match ifd.uint(file, tags::PREDICTOR)?.unwrap_or(1) {
        1 => Ok(Predictor::None),
        2 if u64::from(bits) == raw.size() * 8 => Ok(Predictor::Horizontal),
        3 if is_float => Ok(Predictor::Float),
        2 => Err(unsupported(format!("a horizontal predictor of {bits} bits"))),
        3 => Err(unsupported("a predictor for floats of integers")),
        n => Err(unsupported(format!("predictor {n}"))),
    }
}
