//! Decimal digits of floats, as Python and NumPy write them.

/// A finite float that has the digits of its own type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Float {
    /// The value; of a `float32` it is exact.
    pub(super) value: f64,
    /// True for a `float32`.
    pub(super) single: bool,
}

impl From<f32> for Float {
    fn from(value: f32) -> Self {
        Float { value: value.into(), single: true }
    }
}

impl From<f64> for Float {
    fn from(value: f64) -> Self {
        Float { value, single: false }
    }
}

impl Float {
    /// The shortest mantissa that reads back as the same value, and the exponent: `-1.25`, `3`. Of two that are equally
    /// near the even one, as Python and NumPy choose (Rust takes the larger).
    pub(super) fn shortest(self) -> (String, i32) {
        let text = if self.single {
            format!("{:e}", self.value as f32)
        } else {
            format!("{:e}", self.value)
        };
        let (mantissa, _) = split(&text);
        let digits = fraction(&mantissa);
        let nearest = format!("{:.digits$e}", self.value);
        // Just above a power of two the nearest of that length may belong to the neighbour below.
        if self.reads_back(&nearest) { split(&nearest) } else { split(&text) }
    }

    fn reads_back(self, text: &str) -> bool {
        if self.single {
            text.parse::<f32>().is_ok_and(|v| f64::from(v) == self.value)
        } else {
            text.parse::<f64>().is_ok_and(|v| v == self.value)
        }
    }

    /// The shortest digits without an exponent: `120`, `0.00125`.
    pub(super) fn plain(self) -> String {
        let (mantissa, exponent) = self.shortest();
        let (sign, mantissa) = match mantissa.strip_prefix('-') {
            Some(m) => ("-", m),
            None => ("", mantissa.as_str()),
        };
        let digits = mantissa.replace('.', "");
        let before = exponent + 1;
        if before <= 0 {
            return format!("{sign}0.{}{digits}", "0".repeat(before.unsigned_abs() as usize));
        }
        let before = before as usize;
        if before >= digits.len() {
            return format!("{sign}{digits}{}", "0".repeat(before - digits.len()));
        }
        format!("{sign}{}.{}", &digits[..before], &digits[before..])
    }

    /// As Python's `repr`: an exponent from 1e16 on and below 1e-4.
    pub(super) fn repr(self) -> String {
        let (mantissa, exponent) = self.shortest();
        if self.value == 0.0 || (-4..16).contains(&exponent) {
            return self.pointed();
        }
        format!("{mantissa}e{}", signed_exponent(exponent))
    }

    /// As NumPy writes a lone number: a `float32` has an exponent from 1e6 on, where its digits end.
    pub(super) fn lone(self) -> String {
        let size = self.value.abs();
        // The float32 nearest to 1e-4 lies below it, so its value decides and not its digits.
        if !self.single || size == 0.0 {
            return self.repr();
        }
        if (1e-4..1e6).contains(&size) {
            return self.pointed();
        }
        let (mantissa, exponent) = self.shortest();
        format!("{mantissa}e{}", signed_exponent(exponent))
    }

    /// `plain`, with `.0` behind a whole number.
    fn pointed(self) -> String {
        let text = self.plain();
        if text.contains('.') { text } else { text + ".0" }
    }
}

/// Mantissa and exponent of Rust's `1.5e-7`.
fn split(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    (mantissa.to_string(), exponent.parse().unwrap_or_default())
}

/// Digits after the point.
pub(super) fn fraction(text: &str) -> usize {
    text.split_once('.').map_or(0, |(_, f)| f.len())
}

/// `+16`, `-05`, `+300`: a sign and at least two digits, as C prints an exponent.
pub(super) fn signed_exponent(exponent: i32) -> String {
    format!("{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        // repr(x) of CPython 3.11.
        for (x, want) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (-120.0, "-120.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (9999999999999998.0, "9999999999999998.0"),
            (9007199254740992.0, "9007199254740992.0"),
            (1e-4, "0.0001"),
            (-0.00125, "-0.00125"),
            (1.5e-5, "1.5e-05"),
            (5e-324, "5e-324"),
            (2f64.powi(-1022), "2.2250738585072014e-308"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ] {
            assert_eq!(Float::from(x).repr(), want);
        }
    }

    #[test]
    fn singles_are_numpys() {
        // str(np.float32(x)) of NumPy 2.4.6.
        for (x, want) in [
            (0.1f32, "0.1"),
            (999999.0, "999999.0"),
            (1e6, "1e+06"),
            (1234567.0, "1.234567e+06"),
            (1e-4, "1e-04"),
            (9.9e-5, "9.9e-05"),
            (123456.78, "123456.78"),
            (5.816_406_2, "5.8164062"),
        ] {
            assert_eq!(Float::from(x).lone(), want);
        }
        assert_eq!(Float::from(16777216.0f32).repr(), "16777216.0");
    }
}
