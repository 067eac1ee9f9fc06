//! Decimal digits of floats, as Python and NumPy write them.

/// A finite float, with the precision of its own type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Float {
    /// The value; exact for a `float32`.
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

/// The shortest digits that read back as the same value. Ties go to the even digit, as in Python and NumPy.
struct Decimal {
    negative: bool,
    digits: [u8; DIGITS],
    len: usize,
    /// The exponent of the first digit: 2 for `120`.
    exponent: i32,
}

/// Upper bound on the digits of a `float64`.
const DIGITS: usize = 17;

impl Decimal {
    fn of(v: Float) -> Self {
        let mut buffer = zmij::Buffer::new();
        let text = v.shortest_text(&mut buffer);
        let mut out = Decimal { negative: false, digits: [b'0'; DIGITS], len: 0, exponent: -1 };
        let (mut pointed, mut scientific) = (false, None);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            match byte {
                b'-' => out.negative = true,
                b'.' => pointed = true,
                b'e' => {
                    scientific = text.get(at + 1..);
                    break;
                }
                digit => {
                    let is_leading = out.len == 0 && digit == b'0';
                    // Before the point each digit raises the exponent; behind it only leading zeros lower it.
                    match (pointed, is_leading) {
                        (false, false) => out.exponent += 1,
                        (true, true) => out.exponent -= 1,
                        _ => {}
                    }
                    if !is_leading && out.len < DIGITS {
                        out.digits[out.len] = digit;
                        out.len += 1;
                    }
                }
            }
        }
        out.exponent += scientific.and_then(|e| e.parse::<i32>().ok()).unwrap_or_default();
        while out.len > 1 && out.digits[out.len - 1] == b'0' {
            out.len -= 1;
        }
        if out.len == 0 {
            (out.len, out.exponent) = (1, 0);
        }
        out
    }

    fn sign(&self, out: &mut Vec<u8>) {
        if self.negative {
            out.push(b'-');
        }
    }

    /// `1.25`: one digit before the point, and no point after a single digit.
    fn mantissa(&self, out: &mut Vec<u8>) {
        self.sign(out);
        out.push(self.digits[0]);
        if self.len > 1 {
            out.push(b'.');
            out.extend_from_slice(&self.digits[1..self.len]);
        }
    }

    /// `120`, `0.00125`.
    fn plain(&self, out: &mut Vec<u8>) {
        self.sign(out);
        let digits = &self.digits[..self.len];
        let before = self.exponent + 1;
        if before <= 0 {
            out.extend_from_slice(b"0.");
            out.resize(out.len() + before.unsigned_abs() as usize, b'0');
            out.extend_from_slice(digits);
            return;
        }
        let before = before as usize;
        if before >= digits.len() {
            out.extend_from_slice(digits);
            out.resize(out.len() + before - digits.len(), b'0');
            return;
        }
        out.extend_from_slice(&digits[..before]);
        out.push(b'.');
        out.extend_from_slice(&digits[before..]);
    }

    /// `plain`, with `.0` behind a whole number.
    fn pointed(&self, out: &mut Vec<u8>) {
        self.plain(out);
        if self.exponent >= 0 && self.exponent as usize + 1 >= self.len {
            out.extend_from_slice(b".0");
        }
    }

    /// `1.25e-07`.
    fn scientific(&self, out: &mut Vec<u8>) {
        self.mantissa(out);
        out.push(b'e');
        out.extend_from_slice(signed_exponent(self.exponent).as_bytes());
    }
}

/// The digits as a string; they are ASCII.
fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::with_capacity(24);
    write(&mut out);
    String::from_utf8(out).unwrap_or_default()
}

impl Float {
    /// The shortest mantissa that reads back as the same value, and the exponent: `-1.25`, `3`. Ties go to the even
    /// digit, as in Python and NumPy (Rust takes the larger).
    pub(super) fn shortest(self) -> (String, i32) {
        let decimal = Decimal::of(self);
        (text(|out| decimal.mantissa(out)), decimal.exponent)
    }

    /// The shortest digits without an exponent: `120`, `0.00125`.
    pub(super) fn plain(self) -> String {
        text(|out| Decimal::of(self).plain(out))
    }

    /// Like Python's `repr`: an exponent from 1e16 on and below 1e-4.
    pub(super) fn repr(self) -> String {
        text(|out| self.write(out))
    }

    /// Appends [`Float::repr`] to a buffer.
    pub(super) fn write(self, out: &mut Vec<u8>) {
        if !self.write_usual(out) {
            self.write_any(out);
        }
    }

    /// Appends a number of JSON: as [`Float::repr`], with an exponent like `e300`, `e-5`.
    pub(super) fn write_json(self, out: &mut Vec<u8>) {
        if self.write_usual(out) {
            return;
        }
        let decimal = Decimal::of(self);
        if (-4..16).contains(&decimal.exponent) {
            return decimal.pointed(out);
        }
        decimal.mantissa(out);
        out.push(b'e');
        out.extend_from_slice(itoa::Buffer::new().format(decimal.exponent).as_bytes());
    }

    /// Appends a value that everybody writes in the same way, without an exponent; false if it is not one.
    fn write_usual(self, out: &mut Vec<u8>) -> bool {
        let size = self.value.abs();
        let usual = size == 0.0 || (1e-4..if self.single { 1e6 } else { 1e15 }).contains(&size);
        if usual {
            out.extend_from_slice(self.shortest_text(&mut zmij::Buffer::new()).as_bytes());
        }
        usual
    }

    fn shortest_text(self, buffer: &mut zmij::Buffer) -> &str {
        match self.single {
            true => buffer.format_finite(self.value as f32),
            false => buffer.format_finite(self.value),
        }
    }

    fn write_any(self, out: &mut Vec<u8>) {
        let decimal = Decimal::of(self);
        match self.value == 0.0 || (-4..16).contains(&decimal.exponent) {
            true => decimal.pointed(out),
            false => decimal.scientific(out),
        }
    }

    /// Like NumPy's `str` of a scalar: a `float32` has an exponent from 1e6 on, where its digits end.
    pub(super) fn lone(self) -> String {
        let size = self.value.abs();
        // The float32 nearest to 1e-4 is below it, so the value decides and not the digits.
        if !self.single || size == 0.0 {
            return self.repr();
        }
        let decimal = Decimal::of(self);
        text(|out| match (1e-4..1e6).contains(&size) {
            true => decimal.pointed(out),
            false => decimal.scientific(out),
        })
    }
}

/// Number of digits after the point.
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

    #[test]
    fn usual_floats_are_written_like_any() {
        let differs = |float: Float| {
            let (usual, any) = (text(|out| float.write(out)), text(|out| float.write_any(out)));
            (usual != any).then_some((usual, any))
        };
        let mut bits = 1u64;
        for exponent in -20..20 {
            for _ in 0..200 {
                bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let value = (bits >> 11) as f64 * 10f64.powi(exponent - 15);
                for value in [value, -value.round(), (value * 100.0).round() / 100.0] {
                    assert_eq!(differs(value.into()), None);
                    assert_eq!(differs((value as f32).into()), None);
                }
            }
        }
        for edge in [0.0, -0.0, 1e-4, 1e6, 1e15, 999_999.0, 0.1] {
            assert_eq!(differs(edge.into()), None);
            assert_eq!(differs((edge as f32).into()), None);
        }
    }
}
