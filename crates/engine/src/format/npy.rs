//! NumPy's `.npy`.
//!
//! # Source
//! NEP 1 and `numpy.lib.format`, version 1.0.

use super::fill::{self, WINDOW_CELLS};
use super::writer::output;
use crate::answer::{Windows, windows};
use crate::error::Error;
use std::borrow::Cow;
use std::io::Write;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::scalar::Scalar;
use tessera_storage::sink::cf;

const FORMAT: &str = "npy";

/// NumPy leaves room for the first axis to grow to this many digits.
const GROWTH_DIGITS: usize = 21;
/// Data begins at a multiple of this.
const ALIGN: usize = 64;

/// The bytes before the cells of an array.
///
/// # Errors
/// NumPy has no type for datetimes of other calendars than the standard one.
pub(super) fn header(dtype: DType, shape: &[u64]) -> Result<Vec<u8>, Error> {
    let descr = match dtype {
        DType::Bool => "|b1",
        DType::Int8 => "|i1",
        DType::Int16 => "<i2",
        DType::Int32 => "<i4",
        DType::Int64 => "<i8",
        DType::UInt8 => "|u1",
        DType::UInt16 => "<u2",
        DType::UInt32 => "<u4",
        DType::UInt64 => "<u8",
        DType::Float32 => "<f4",
        DType::Float64 => "<f8",
        DType::Datetime(Calendar::Standard) => "<M8[us]",
        DType::Datetime(c) => {
            let reason = format!("NumPy has no datetimes of the calendar `{}`", c.name());
            return Err(Error::format("npy", reason, "cast to int64, or use json, csv or arrow"));
        }
    };
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (");
    for (i, n) in shape.iter().enumerate() {
        dict.push_str(&format!("{}{n}", if i > 0 { ", " } else { "" }));
    }
    dict.push_str(if shape.len() == 1 { ",), }" } else { "), }" });
    if let Some(n) = shape.first() {
        dict.push_str(&" ".repeat(GROWTH_DIGITS - n.to_string().len()));
    }
    // Magic, version and the length of the rest take ten bytes; the newline is the last.
    let used = 10 + dict.len() + 1;
    dict.push_str(&" ".repeat(ALIGN - used % ALIGN));
    dict.push('\n');
    let length = u16::try_from(dict.len())
        .map_err(|_| Error::Internal { what: format!("an npy header of {} bytes", dict.len()) })?;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&length.to_le_bytes());
    header.extend_from_slice(dict.as_bytes());
    Ok(header)
}

/// The cells of a format without masks: masked floats are NaN, masked datetimes NaT.
pub(super) fn filled<'a>(
    format: &'static str,
    dtype: DType,
    data: &'a [u8],
    valid: Option<&[u8]>,
) -> Result<Cow<'a, [u8]>, Error> {
    let Some(valid) = valid.filter(|v| v.contains(&0)) else { return Ok(data.into()) };
    let Some(missing) = missing(dtype) else {
        let masked = valid.iter().filter(|v| **v == 0).count();
        let who = if format == FORMAT { "NumPy" } else { "it" };
        let reason = format!("{who} cannot store masked {dtype}, and {masked} cells are masked");
        let hint = "cast to float64, or fill with `coalesce(x, 0)`";
        return Err(Error::format(format, reason, hint));
    };
    let mut out = data.to_vec();
    fill::put(&mut out, dtype.size(), valid, missing);
    Ok(out.into())
}

/// NaN or NaT; `None` for types without such a value.
fn missing(dtype: DType) -> Option<Scalar> {
    cf::fill_value(dtype).filter(|_| dtype.is_float() || dtype.is_datetime())
}

/// Writes a whole tensor, window by window.
pub fn write(t: &dyn Windows, out: &mut dyn Write) -> Result<(), Error> {
    let head = t.head();
    let (dtype, shape) = (head.dtype, head.shape());
    let header = header(dtype, &shape)?;
    check_masks(FORMAT, t, out)?;
    out.write_all(&header).map_err(output)?;
    for window in windows(&shape, WINDOW_CELLS) {
        let cells = t.window(&window)?;
        let bytes = filled(FORMAT, dtype, &cells.data, cells.valid.as_deref())?;
        out.write_all(&bytes).map_err(output)?;
    }
    Ok(())
}

/// Checks that a tensor can be written, before the first byte is.
pub(super) fn check(t: &dyn Windows, out: &mut dyn Write) -> Result<(), Error> {
    header(t.head().dtype, &t.head().shape())?;
    check_masks(FORMAT, t, out)
}

/// Checks that no cells are masked but floats and datetimes. `out` is only flushed: an output that was cancelled fails.
pub(super) fn check_masks(
    format: &'static str,
    t: &dyn Windows,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let head = t.head();
    if head.nullable && missing(head.dtype).is_none() {
        for window in windows(&head.shape(), WINDOW_CELLS) {
            let cells = t.window(&window)?;
            filled(format, head.dtype, &cells.data, cells.valid.as_deref())?;
            out.flush().map_err(output)?;
        }
    }
    Ok(())
}
