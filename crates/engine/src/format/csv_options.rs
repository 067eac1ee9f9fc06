//! How CSV is written: with or without a header, its delimiter, its text for NULL.

/// Options of CSV.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvOptions {
    /// Begins with a line of the names of the columns.
    pub header: bool,
    /// The byte between the fields of a line.
    pub delimiter: u8,
    /// The text for NULL. A text that is the same is in quotes.
    pub null: String,
}

impl Default for CsvOptions {
    fn default() -> Self {
        CsvOptions { header: true, delimiter: b',', null: String::new() }
    }
}

impl CsvOptions {
    /// Parses a delimiter: one ASCII character, or `\t` for a tab. Returns `None` for characters that occur in numbers,
    /// times and quotes.
    pub fn delimiter(text: &str) -> Option<u8> {
        match text.as_bytes() {
            b"\\t" => Some(b'\t'),
            [byte] if byte.is_ascii_alphanumeric() => None,
            [b'"' | b'.' | b'+' | b'-' | b':' | b'\n' | b'\r' | 0x80..] => None,
            [byte] => Some(*byte),
            _ => None,
        }
    }

    /// Checks that a reader finds the text for NULL again; the error is the reason.
    pub fn check_null(&self) -> Result<(), &'static str> {
        let is_cut = |byte: u8| byte == self.delimiter || matches!(byte, b'"' | b'\n' | b'\r');
        match self.null.bytes().any(is_cut) {
            true => Err("it contains the delimiter, a quote or the end of a line"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_in_no_number() {
        for (text, delimiter) in
            [(";", b';'), ("\t", b'\t'), ("\\t", b'\t'), ("|", b'|'), (" ", b' '), (",", b',')]
        {
            assert_eq!(CsvOptions::delimiter(text), Some(delimiter), "{text:?}");
        }
        for text in ["", "e", "7", ".", "-", "+", ":", "\"", "\n", "\r", ";;", "é", "\\n"] {
            assert_eq!(CsvOptions::delimiter(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_text_for_null_is_one_field() {
        let with = |null: &str, delimiter| CsvOptions {
            delimiter,
            null: null.into(),
            ..CsvOptions::default()
        };
        for null in ["", "NA", "-9999", "\\N", "a;b"] {
            assert!(with(null, b',').check_null().is_ok(), "{null:?}");
        }
        for null in ["a;b", "\"\"", "a\nb", "a\r"] {
            assert!(with(null, b';').check_null().is_err(), "{null:?}");
        }
    }
}
