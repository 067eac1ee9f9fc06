//! Fields in PNG images: gray of 1 to 16 bits, or the bytes of larger numbers as colours.
//!
//! # Source
//! W3C, Portable Network Graphics (third edition), sections 5, 9 and 11; WMO Manual on Codes, data template 7.41.

use super::decode::Cell;
use super::unpack::{Bits, Scale};
use std::io::Read;

/// The header of an image.
struct Header {
    width: usize,
    height: usize,
    /// Bits of a pixel.
    bits: u8,
}

pub(super) fn unpack(
    data: &[u8],
    bits: u8,
    scale: Scale,
    cells: &mut [Cell],
) -> Result<(), String> {
    let (header, packed) = chunks(data)?;
    let Header { width, height, bits: pixel } = header;
    if width.checked_mul(height) != Some(cells.len()) || width == 0 {
        return Err(format!("an image of {width} by {height} pixels for {} values", cells.len()));
    }
    if pixel < bits {
        return Err(format!("an image of {pixel} bits for numbers of {bits} bits"));
    }
    let line = (width * usize::from(pixel)).div_ceil(8);
    let step = usize::from(pixel.div_ceil(8));
    let mut image = flate2::read::ZlibDecoder::new(&*packed);
    let (mut row, mut above) = (vec![0; line], vec![0; line]);
    for cells in cells.chunks_exact_mut(width) {
        let mut filter = [0];
        let mut read = |part: &mut [u8]| image.read_exact(part).map_err(|e| format!("PNG: {e}"));
        read(&mut filter)?;
        read(&mut row)?;
        unfilter(filter[0], &mut row, &above, step)?;
        let mut numbers = Bits::new(&row);
        cells.iter_mut().for_each(|cell| *cell = scale.cell(numbers.next(pixel) as f64));
        std::mem::swap(&mut row, &mut above);
    }
    Ok(())
}

/// The header of an image and its compressed lines.
fn chunks(data: &[u8]) -> Result<(Header, Vec<u8>), String> {
    let mut rest = data.strip_prefix(b"\x89PNG\r\n\x1a\n").ok_or("no PNG image")?;
    let (mut header, mut packed) = (None, Vec::new());
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let [len, kind] = [&head[..4], &head[4..]];
        let len = len.iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
        let end = len.checked_add(4).filter(|n| *n <= after.len());
        let end =
            end.ok_or_else(|| format!("PNG: a chunk of {len} bytes, {} follow", after.len()))?;
        let body = &after[..len];
        match kind {
            b"IHDR" => header = Some(read_header(body)?),
            b"IDAT" => packed.extend_from_slice(body),
            b"IEND" => break,
            _ => {}
        }
        rest = &after[end..];
    }
    Ok((header.ok_or("PNG: no header found")?, packed))
}

fn read_header(body: &[u8]) -> Result<Header, String> {
    let body = body.first_chunk::<13>().ok_or("PNG: the header is too short")?;
    let number = |at: usize| body[at..at + 4].iter().fold(0usize, |n, b| n << 8 | usize::from(*b));
    let (depth, colour, interlace) = (body[8], body[9], body[12]);
    let channels = match colour {
        0 => 1,
        2 => 3,
        6 => 4,
        n => return Err(format!("PNG: an image of colour type {n}")),
    };
    if !matches!(depth, 1 | 2 | 4 | 8 | 16) || depth * channels > 32 {
        return Err(format!("PNG: {channels} channels of {depth} bits"));
    }
    if interlace != 0 {
        return Err("PNG: an interlaced image".into());
    }
    Ok(Header { width: number(0), height: number(4), bits: depth * channels })
}

/// Undoes the filter of a line; `step` are the bytes of a pixel.
fn unfilter(filter: u8, row: &mut [u8], above: &[u8], step: usize) -> Result<(), String> {
    for i in 0..row.len() {
        let left = if i < step { 0 } else { row[i - step] };
        let corner = if i < step { 0 } else { above[i - step] };
        let add = match filter {
            0 => return Ok(()),
            1 => left,
            2 => above[i],
            3 => ((u16::from(left) + u16::from(above[i])) / 2) as u8,
            4 => paeth(left, above[i], corner),
            n => return Err(format!("PNG: a line with filter {n}")),
        };
        row[i] = row[i].wrapping_add(add);
    }
    Ok(())
}

/// The neighbour that is next to their plane.
fn paeth(left: u8, above: u8, corner: u8) -> u8 {
    let (a, b, c) = (i16::from(left), i16::from(above), i16::from(corner));
    let p = a + b - c;
    let (da, db, dc) = ((p - a).abs(), (p - b).abs(), (p - c).abs());
    match () {
        () if da <= db && da <= dc => left,
        () if db <= dc => above,
        () => corner,
    }
}
