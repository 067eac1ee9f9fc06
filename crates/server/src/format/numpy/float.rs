//! Floats with a common width and precision, as NumPy's `FloatingFormat` (`floatmode='maxprec'`).

use super::special;
use crate::answer::Cell;
use crate::format::cell::signed_exponent;

/// The most digits after the point.
const PRECISION: usize = 8;

/// A float with the digits of its own type.
#[derive(Clone, Copy)]
struct Float {
    value: f64,
    single: bool,
}

impl Float {
    /// Shortest digits that read back as the same value, in the form `d.ddde-d`.
    fn shortest(self) -> String {
        if self.single { format!("{:e}", self.value as f32) } else { format!("{:e}", self.value) }
    }

    /// Positional digits, at most `PRECISION` after the point, which is always there: `1.`, `0.33333333`.
    fn positional(self) -> String {
        let shortest =
            if self.single { (self.value as f32).to_string() } else { self.value.to_string() };
        let fraction = shortest.split_once('.').map_or(0, |(_, f)| f.len());
        let mut text =
            if fraction > PRECISION { format!("{:.PRECISION$}", self.value) } else { shortest };
        if !text.contains('.') {
            text.push('.');
        }
        text.truncate(text.trim_end_matches('0').len());
        text
    }

    /// Mantissa with its point, and exponent: `1.5`, `300`.
    fn scientific(self) -> (String, i32) {
        let shortest = self.shortest();
        let digits = shortest.split_once('e').map_or("", |(m, _)| m);
        let fraction = digits.split_once('.').map_or(0, |(_, f)| f.len());
        let text =
            if fraction > PRECISION { format!("{:.PRECISION$e}", self.value) } else { shortest };
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let mut mantissa = mantissa.to_string();
        if mantissa.contains('.') {
            mantissa.truncate(mantissa.trim_end_matches('0').len());
        } else {
            mantissa.push('.');
        }
        (mantissa, exponent.parse().unwrap_or_default())
    }
}

/// The texts of cells that are all floats.
pub(super) fn format(cells: &[Cell<'static>]) -> Vec<String> {
    let floats: Vec<Float> = cells
        .iter()
        .map(|c| match c {
            Cell::F32(v) => Float { value: f64::from(*v), single: true },
            Cell::F64(v) => Float { value: *v, single: false },
            _ => Float { value: f64::NAN, single: false },
        })
        .collect();
    let finite: Vec<Float> = floats.iter().copied().filter(|f| f.value.is_finite()).collect();
    // Left and right of the point, as wide as the widest.
    let (mut left, right);
    let words: Vec<String>;
    if finite.is_empty() {
        (left, right) = (0, 0);
        words = Vec::new();
    } else if wants_exponent(&finite) {
        let parts: Vec<(String, i32)> = finite.iter().map(|f| f.scientific()).collect();
        let digits = parts.iter().map(|(m, _)| fraction(m)).max().unwrap_or(0);
        let exponents: Vec<String> = parts.iter().map(|(_, e)| signed_exponent(*e)).collect();
        let exponent_digits = exponents.iter().map(|e| e.len() - 1).max().unwrap_or(2);
        left = parts.iter().map(|(m, _)| m.len() - 1 - fraction(m)).max().unwrap_or(0);
        right = exponent_digits + 2 + digits;
        words = parts
            .iter()
            .map(|(m, e)| {
                let zeros = "0".repeat(digits - fraction(m));
                let sign = if *e < 0 { '-' } else { '+' };
                format!("{m}{zeros}e{sign}{:0exponent_digits$}", e.unsigned_abs())
            })
            .collect();
    } else {
        let texts: Vec<String> = finite.iter().map(|f| f.positional()).collect();
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

/// Digits after the point.
fn fraction(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, f)| f.len())
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
