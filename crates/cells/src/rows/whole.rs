//! Whole numbers in text files that need `uint64`.

/// The numbers of a column.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    /// One of them is above the greatest `int64`.
    is_large: bool,
    /// One of the values is not a `uint64`.
    has_other: bool,
}

impl Whole {
    /// Adds a value that is not NULL; `None` is one that is not a `uint64`.
    pub(crate) fn add(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.is_large |= i64::try_from(value).is_err(),
            None => self.has_other = true,
        }
    }

    /// True if all values are `uint64`, and one of them is not an `int64`.
    pub(crate) fn is_unsigned(&self) -> bool {
        self.is_large && !self.has_other
    }
}

/// True if the text has as many digits in a row as the smallest number beyond `int64`.
pub(crate) fn has_long_number(text: &[u8]) -> bool {
    let mut digits = 0;
    text.iter().any(|byte| {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        digits == 19
    })
}
