//! Sort keys as bytes that compare as they do.
//!
//! ```text
//! ORDER BY city, price      city: text                price: int32
//!                           01 'R' 'o' 'm' 'e' 00     00 80 00 00 07
//!                           ── NULL or not           ── NULL or not, and a number with its sign turned
//! ```
//! A text ends with a byte 0. The bytes 0 and 1 within it are two bytes, 1 and the byte plus one, so the end comes before
//! anything that follows. The bytes of a descending text are inverted. So no key begins with another one, and the keys
//! of a row may follow each other.
//!
//! Columns of other types (decimals, lists, …) are Arrow's row format, of which the same is true.

use super::numbers::{append, bits};
use datafusion::arrow::array::{Array, ArrayAccessor, ArrayRef, AsArray};
use datafusion::arrow::compute::SortOptions;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalSortExpr;

/// The byte that ends a text, and the first of the two bytes that stand for 0 or 1 within it.
const END: u8 = 0;
const ESCAPE: u8 = 1;

/// The keys of a batch's rows.
pub(in crate::rows) struct ByteKeys {
    data: Vec<u8>,
    /// The end of the key of each row.
    ends: Vec<usize>,
}

impl ByteKeys {
    pub(in crate::rows) fn row(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.data[start..self.ends[row]]
    }

    pub(in crate::rows) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn size(&self) -> usize {
        self.data.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|row| self.row(row))
    }
}

/// The form of keys as bytes.
pub(super) enum Encoding {
    Columns(Vec<Column>),
    Arrow(RowConverter),
}

/// A key that is a text or a number.
pub(super) struct Column {
    options: SortOptions,
    bits: Option<u32>,
}

impl Encoding {
    /// # Errors
    /// A key has a type that has no order.
    pub(super) fn new(keys: &[PhysicalSortExpr], schema: &Schema) -> Result<Self> {
        let mut columns = Vec::with_capacity(keys.len());
        let mut fields = Vec::with_capacity(keys.len());
        for key in keys {
            let (data_type, options) = (key.expr.data_type(schema)?, key.options);
            match bits(&data_type) {
                None if !is_text(&data_type) => {}
                bits => columns.push(Column { options, bits }),
            }
            fields.push(SortField::new_with_options(data_type, options));
        }
        if columns.len() == keys.len() {
            return Ok(Encoding::Columns(columns));
        }
        if !RowConverter::supports_fields(&fields) {
            return internal_err!("keys without an order");
        }
        Ok(Encoding::Arrow(RowConverter::new(fields)?))
    }

    /// The keys of rows with these columns, which may be the first ones only.
    pub(super) fn keys(&self, arrays: &[ArrayRef]) -> Result<ByteKeys> {
        let converter = match self {
            Encoding::Columns(columns) => return encoded(columns, arrays),
            Encoding::Arrow(converter) => converter,
        };
        let rows = converter.convert_columns(arrays)?;
        let mut ends = Vec::with_capacity(rows.num_rows());
        let mut data = Vec::with_capacity(rows.lengths().sum());
        for row in rows.iter() {
            data.extend_from_slice(row.data());
            ends.push(data.len());
        }
        Ok(ByteKeys { data, ends })
    }

    /// True if the bytes of the first keys can be separated from those behind them.
    pub(super) fn has_columns(&self) -> bool {
        matches!(self, Encoding::Columns(_))
    }

    /// The bytes of the first `count` keys.
    pub(super) fn first<'k>(&self, key: &'k [u8], count: usize) -> &'k [u8] {
        let Encoding::Columns(columns) = self else { return key };
        let mut at = 0;
        for column in columns.iter().take(count) {
            at += column.length(&key[at..]);
        }
        &key[..at]
    }

    /// The byte that ends a key and is nowhere within it, if there is one.
    pub(super) fn end(&self) -> Option<u8> {
        match self {
            Encoding::Columns(columns) => match columns.as_slice() {
                [Column { bits: None, options }] => Some(turned(END, options.descending)),
                _ => None,
            },
            Encoding::Arrow(_) => None,
        }
    }
}

impl Column {
    /// The first byte of a text.
    fn flag(&self, is_null: bool) -> u8 {
        1 + u8::from(is_null != self.options.nulls_first)
    }

    /// Bytes of a number with the bit for NULL.
    fn number_bytes(bits: u32) -> usize {
        (bits as usize + 1).div_ceil(8)
    }

    /// Bytes of the first key of some.
    fn length(&self, keys: &[u8]) -> usize {
        let length = match self.bits {
            Some(bits) => Self::number_bytes(bits),
            None if keys.first() == Some(&self.flag(true)) => 1,
            None => {
                let end = turned(END, self.options.descending);
                keys.iter().skip(1).position(|&byte| byte == end).map_or(keys.len(), |at| at + 2)
            }
        };
        length.min(keys.len())
    }

    /// Appends the bytes of a text where the key of a row ends so far.
    fn write(&self, data: &mut [u8], end: &mut usize, text: Option<&[u8]>) {
        data[*end] = self.flag(text.is_none());
        *end += 1;
        let Some(text) = text else { return };
        let start = *end;
        let length = text.len() + escapes(text);
        let to = &mut data[start..=start + length];
        if length == text.len() {
            to[..length].copy_from_slice(text);
        } else {
            let escaped = text.iter().flat_map(|&byte| {
                let is_escaped = byte <= ESCAPE;
                let first = is_escaped.then_some(ESCAPE);
                first.into_iter().chain([if is_escaped { byte + 1 } else { byte }])
            });
            to.iter_mut().zip(escaped).for_each(|(to, byte)| *to = byte);
        }
        to[length] = END;
        if self.options.descending {
            to.iter_mut().for_each(|byte| *byte = !*byte);
        }
        *end += length + 1;
    }
}

fn turned(byte: u8, descending: bool) -> u8 {
    if descending { !byte } else { byte }
}

/// The bytes of a text that are two in its key.
fn escapes(text: &[u8]) -> usize {
    text.iter().filter(|&&byte| byte <= ESCAPE).count()
}

fn is_text(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(data_type, Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView)
}

fn encoded(columns: &[Column], arrays: &[ArrayRef]) -> Result<ByteKeys> {
    let rows = arrays.first().map_or(0, |array| array.len());
    let mut ends = vec![0_usize; rows];
    for (column, array) in columns.iter().zip(arrays) {
        match column.bits {
            Some(bits) => {
                let more = Column::number_bytes(bits);
                ends.iter_mut().for_each(|length| *length += more);
            }
            None => each_text(array, |row, text| {
                ends[row] += 1 + text.map_or(0, |text| text.len() + escapes(text) + 1);
            })?,
        }
    }
    // The lengths become the places where the keys begin, and these move on with each column.
    let mut all = 0;
    for end in &mut ends {
        let length = std::mem::replace(end, all);
        all += length;
    }
    let mut data = vec![0_u8; all];
    for (column, array) in columns.iter().zip(arrays) {
        match column.bits {
            Some(bits) => {
                let mut numbers = vec![0_u128; rows];
                append(&mut numbers, array, column.options, bits, true)?;
                let count = Column::number_bytes(bits);
                for (number, end) in numbers.iter().zip(&mut ends) {
                    let bytes = &number.to_be_bytes()[size_of::<u128>() - count..];
                    data[*end..*end + count].copy_from_slice(bytes);
                    *end += count;
                }
            }
            None => {
                each_text(array, |row, text| column.write(&mut data, &mut ends[row], text))?;
            }
        }
    }
    Ok(ByteKeys { data, ends })
}

/// Calls `each` with the rows of a column of texts, and the bytes of those that are not NULL.
fn each_text(array: &ArrayRef, each: impl FnMut(usize, Option<&[u8]>)) -> Result<()> {
    match array.data_type() {
        DataType::Utf8 => all(array.as_string::<i32>(), each),
        DataType::LargeUtf8 => all(array.as_string::<i64>(), each),
        DataType::Utf8View => all(array.as_string_view(), each),
        DataType::Binary => all(array.as_binary::<i32>(), each),
        DataType::LargeBinary => all(array.as_binary::<i64>(), each),
        DataType::BinaryView => all(array.as_binary_view(), each),
        other => return internal_err!("{other} is not a text of a sort"),
    }
    Ok(())
}

fn all<A: ArrayAccessor>(array: A, mut each: impl FnMut(usize, Option<&[u8]>))
where
    A::Item: AsRef<[u8]>,
{
    for row in 0..array.len() {
        if array.is_null(row) {
            each(row, None);
        } else {
            each(row, Some(array.value(row).as_ref()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::arrow::array::{BinaryViewArray, Int16Array, LargeStringArray};
    use datafusion::arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::col;
    use std::sync::Arc;

    fn encoding(options: SortOptions, columns: &[(&str, &ArrayRef)]) -> Encoding {
        let field = |(name, column): &(&str, &ArrayRef)| {
            Field::new(*name, column.data_type().clone(), true)
        };
        let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
        let key = |(name, _): &(&str, &ArrayRef)| {
            PhysicalSortExpr::new(col(name, &schema).unwrap(), options)
        };
        Encoding::new(&columns.iter().map(key).collect::<Vec<_>>(), &schema).unwrap()
    }

    #[test]
    fn bytes_compare_as_texts_do_and_none_begins_with_another() {
        // In their order.
        let texts: [&[u8]; 12] = [
            b"",
            b"\0",
            b"\0\0",
            b"\0\x01",
            b"\0\xff",
            b"\x01",
            b"\x01\0",
            b"\x02",
            b"a",
            b"a\0",
            b"ab",
            b"\xff\xff",
        ];
        let values = texts.iter().copied().map(Some).chain([None]);
        let column: ArrayRef = Arc::new(values.collect::<BinaryViewArray>());
        for (descending, nulls_first) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let options = SortOptions { descending, nulls_first };
            let encoding = encoding(options, &[("s", &column)]);
            let keys = encoding.keys(std::slice::from_ref(&column)).unwrap();
            let mut all: Vec<&[u8]> = keys.iter().collect();
            let null = all.pop().unwrap();
            if descending {
                all.reverse();
            }
            all.insert(if nulls_first { 0 } else { all.len() }, null);
            for pair in all.windows(2) {
                assert!(pair[0] < pair[1] && !pair[1].starts_with(pair[0]), "{options:?} {pair:?}");
            }
            let end = encoding.end().unwrap();
            for key in all.iter().filter(|key| **key != null) {
                assert_eq!(key.iter().position(|&byte| byte == end), Some(key.len() - 1));
            }
        }
    }

    #[test]
    fn the_first_keys_are_found() {
        let texts = LargeStringArray::from(vec![Some("ab"), Some("\0"), Some(""), None]);
        let texts: ArrayRef = Arc::new(texts);
        let numbers: ArrayRef = Arc::new(Int16Array::from(vec![Some(-1), None, Some(0), Some(1)]));
        for (descending, nulls_first) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let options = SortOptions { descending, nulls_first };
            let columns = [("s", &texts), ("n", &numbers), ("u", &texts)];
            let encoding = encoding(options, &columns);
            assert_eq!(encoding.end(), None);
            let arrays = columns.map(|(_, column)| column.clone());
            let all = encoding.keys(&arrays).unwrap();
            for count in 1..=3 {
                let first = encoding.keys(&arrays[..count]).unwrap();
                for row in 0..4 {
                    assert_eq!(
                        encoding.first(all.row(row), count),
                        first.row(row),
                        "{count} {row}"
                    );
                }
            }
        }
    }
}
