//! Fields in JPEG 2000 images.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, data representation template 5.40 and data template 7.40.

use super::decode::Cell;
use super::unpack::Scale;
use hayro_jpeg2000::{DecodeSettings, DecoderContext, Image};

/// Most bits of a number: `float32` holds them.
const BITS_MAX: u8 = 24;

pub(super) fn unpack(data: &[u8], scale: Scale, cells: &mut [Cell]) -> Result<(), String> {
    let settings = DecodeSettings { strict: true, ..DecodeSettings::default() };
    let failed = |e| format!("JPEG 2000: {e}");
    let image = Image::new(data, &settings).map_err(failed)?;
    let (width, height) = (image.width(), image.height());
    if u64::from(width) * u64::from(height) != cells.len() as u64 {
        return Err(format!("an image of {width} by {height} pixels for {} values", cells.len()));
    }
    if image.original_bit_depth() > BITS_MAX {
        return Err(format!("JPEG 2000 with {} bits", image.original_bit_depth()));
    }
    let mut context = DecoderContext::default();
    let decoded = image.decode(&mut context).map_err(failed)?;
    let [component] = decoded.components() else {
        return Err(format!("JPEG 2000 with {} components", decoded.components().len()));
    };
    let samples = component.samples();
    if samples.len() != cells.len() {
        return Err(format!("an image of {} pixels for {} values", samples.len(), cells.len()));
    }
    for (cell, x) in cells.iter_mut().zip(samples) {
        *cell = scale.cell(f64::from(*x));
    }
    Ok(())
}
