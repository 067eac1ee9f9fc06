//! Fields in JPEG 2000 images.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, data representation template 5.40 and data template 7.40; ITU-T T.800, annex A.

use super::decode::Cell;
use super::octets::Octets;
use super::unpack::Scale;
use hayro_jpeg2000::{DecodeSettings, DecoderContext, Image};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Most bits of a number: `float32` holds them.
const BITS_MAX: u8 = 24;

/// Least logarithm of the lengths of a precinct, each of which takes memory; writers have 15, which is one.
const PRECINCT_MIN: u8 = 5;

/// Most tiles, each of which takes memory; writers have one.
const TILES_MAX: u64 = 4096;

const SIZE: u16 = 0xff51;
const CODING: u16 = 0xff52;
const CODING_OF_COMPONENT: u16 = 0xff53;
const TILE: u16 = 0xff90;
const DATA: u16 = 0xff93;
const END: u16 = 0xffd9;

pub(super) fn unpack(data: &[u8], scale: Scale, cells: &mut [Cell]) -> Result<(), String> {
    let bits = check(data, cells.len()).map_err(|why| format!("JPEG 2000: {why}"))?;
    if !(1..=BITS_MAX).contains(&bits) {
        return Err(format!("JPEG 2000 with {bits} bits"));
    }
    // The decoder has no unsafe code; a panic means damaged data.
    let done = catch_unwind(AssertUnwindSafe(|| decode(data, scale, cells)));
    done.unwrap_or_else(|_| Err("JPEG 2000: its parts contradict each other".into()))
}

fn decode(data: &[u8], scale: Scale, cells: &mut [Cell]) -> Result<(), String> {
    let settings = DecodeSettings { strict: true, ..DecodeSettings::default() };
    let failed = |e| format!("JPEG 2000: {e}");
    let image = Image::new(data, &settings).map_err(failed)?;
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(failed)?;
    let samples = decoded.components().first().map(|c| c.samples()).unwrap_or_default();
    if samples.len() != cells.len() {
        return Err(format!("an image of {} pixels for {} values", samples.len(), cells.len()));
    }
    for (cell, x) in cells.iter_mut().zip(samples) {
        *cell = scale.cell(f64::from(*x));
    }
    Ok(())
}

/// Checks that an image has `count` numbers, and parts that take no more memory than they. Returns their bits.
fn check(data: &[u8], count: usize) -> Result<u8, String> {
    let o = Octets(data);
    if o.uint(1, 4)? != 0xff4f_ff51 {
        return Err("no code stream".into());
    }
    let n = |first| o.uint(first, 4);
    let (width, height) = (n(9)?.saturating_sub(n(17)?), n(13)?.saturating_sub(n(21)?));
    if width * height != count as u64 {
        return Err(format!("an image of {width} by {height} pixels for {count} values"));
    }
    let tiles = n(9)?.div_ceil(n(25)?.max(1)) * n(13)?.div_ceil(n(29)?.max(1));
    if tiles > TILES_MAX {
        return Err(format!("{tiles} tiles"));
    }
    if o.u16(41)? != 1 {
        return Err(format!("{} components", o.u16(41)?));
    }
    let bits = o.u8(43)?;
    if bits & 0x80 != 0 || o.u16(44)? != 0x0101 {
        return Err("signed or sampled numbers".into());
    }
    // Octet of a marker; the tile that it is in, and its length.
    let (mut at, mut tile, mut part) = (3, 0, 0);
    loop {
        let marker = o.u16(at)?;
        match marker {
            // The data end with the part of the tile, or the image.
            DATA => {
                let next = tile + part;
                match o.u16(next) {
                    Ok(TILE) if part > 0 => (tile, at) = (next, next),
                    Ok(END) | Err(_) => return Ok(bits + 1),
                    Ok(_) if part == 0 => return Ok(bits + 1),
                    Ok(_) => return Err("no tile follows another".into()),
                }
                part = o.uint(at + 6, 4)? as usize;
            }
            END => return Ok(bits + 1),
            TILE => (tile, part) = (at, o.uint(at + 6, 4)? as usize),
            CODING if o.u8(at + 4)? & 1 != 0 => {
                let levels = usize::from(o.u8(at + 9)?).min(32);
                for level in 0..=levels {
                    let lengths = o.u8(at + 14 + level)?;
                    if lengths & 0x0f < PRECINCT_MIN || lengths >> 4 < PRECINCT_MIN {
                        return Err("small precincts".into());
                    }
                }
            }
            CODING_OF_COMPONENT => return Err("a coding style of a component".into()),
            SIZE if at > 3 => return Err("two sizes".into()),
            _ => {}
        }
        at += 2 + usize::from(o.u16(at + 2)?).max(2);
    }
}
