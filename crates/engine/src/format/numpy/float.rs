//! Floats with a common width and precision, as NumPy's `FloatingFormat` (`floatmode='maxprec'`).

use super::special;
use crate::answer::Cell;
use crate::format::digits::{Float, fraction, signed_exponent};

/// Upper bound on the digits after the point.
const PRECISION: usize = 8;

/// Positional digits, at most `PRECISION` after the point, which is always written: `1.`, `0.33333333`.
fn positional(f: Float) -> String {
    let shortest = f.plain();
    let mut text =
        if fraction(&shortest) > PRECISION { format!("{:.PRECISION$}", f.value) } else { shortest };
    if !text.contains('.') {
        text.push('.');
    }
    text.truncate(text.trim_end_matches('0').len());
    text
}

/// Mantissa with its point, and exponent: `1.5`, `300`.
fn scientific(f: Float) -> (String, i32) {
    let (mut mantissa, mut exponent) = f.shortest();
    if fraction(&mantissa) > PRECISION {
        let text = format!("{:.PRECISION$e}", f.value);
        let (m, e) = text.split_once('e').unwrap_or((&text, "0"));
        mantissa = m.trim_end_matches('0').to_string();
        exponent = e.parse().unwrap_or_default();
    } else if !mantissa.contains('.') {
        mantissa.push('.');
    }
    (mantissa, exponent)
}

/// The texts of cells that are all floats.
pub(super) fn format(cells: &[Cell<'static>]) -> Vec<String> {
    let floats: Vec<Float> = cells
        .iter()
        .map(|c| match c {
            Cell::F32(v) => Float::from(*v),
            Cell::F64(v) => Float::from(*v),
            _ => Float::from(f64::NAN),
        })
        .collect();
    let finite: Vec<Float> = floats.iter().copied().filter(|f| f.value.is_finite()).collect();
    // The widths left and right of the point are those of the widest.
    let (mut left, right);
    let words: Vec<String>;
    if finite.is_empty() {
        (left, right) = (0, 0);
        words = Vec::new();
    } else if wants_exponent(&finite) {
        let parts: Vec<(String, i32)> = finite.iter().map(|f| scientific(*f)).collect();
        let digits = parts.iter().map(|(m, _)| fraction(m)).max().unwrap_or(0);
        let exponents: Vec<String> = parts.iter().map(|(_, e)| signed_exponent(*e)).collect();
        let exponent_digits = exponents.iter().map(|e| e.len() - 1).max().unwrap_or(2);
        left = parts.iter().map(|(m, _)| m.len() - 1 - fraction(m)).max().unwrap_or(0);
        right = exponent_digits + 2 + digits;
        // Beyond its shortest digits a float is padded with its exact digits, not with zeros.
        words = finite
            .iter()
            .map(|f| {
                let text = format!("{:.digits$e}", f.value);
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or_default();
                let point = if digits == 0 { "." } else { "" };
                let sign = if exponent < 0 { '-' } else { '+' };
                let size = exponent.unsigned_abs();
                format!("{mantissa}{point}e{sign}{size:0exponent_digits$}")
            })
            .collect();
    } else {
        let texts: Vec<String> = finite.iter().map(|f| positional(*f)).collect();
        left = texts.iter().map(|t| t.len() - 1 - fraction(t)).max().unwrap_or(0);
        right = texts.iter().map(|t| fraction(t)).max().unwrap_or(0);
        words = texts.iter().map(|t| format!("{t}{}", " ".repeat(right - fraction(t)))).collect();
    }
    if finite.len() < floats.len() {
        let negative = floats.iter().any(|f| f.value == f64::NEG_INFINITY);
        left = left
            .max((3 + usize::from(negative)).saturating_sub(right + 1))
            .max(3usize.saturating_sub(right + 1));
    }
    let width = left + right + 1;
    let mut words = words.into_iter();
    floats
        .iter()
        .map(|f| match special(f.value) {
            Some(word) => format!("{word:>width$}"),
            None => format!("{:>width$}", words.next().unwrap_or_default()),
        })
        .collect()
}

/// True if the values are too large, too small or too far apart for positional digits. Computed in the type of the
/// cells, as NumPy does.
fn wants_exponent(finite: &[Float]) -> bool {
    let single = finite.iter().any(|f| f.single);
    let sizes = || finite.iter().map(|f| f.value.abs()).filter(|v| *v != 0.0);
    let Some(max) = sizes().reduce(f64::max) else { return false };
    let Some(min) = sizes().reduce(f64::min) else { return false };
    if single {
        let (max, min) = (max as f32, min as f32);
        max >= 1e6 || min < 0.0001 || max / min > 1000.0
    } else {
        max >= 1e8 || min < 0.0001 || max / min > 1000.0
    }
}
