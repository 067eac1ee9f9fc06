//! Keys of objects that a table does not have.
//!
//! Arrow's reader checks keys if it reads all columns. If a query reads some of them, this module scans the text: a key
//! that is not read may be one of the table's, or a new one.

use super::super::csv::at_row;
use arrow::datatypes::{DataType, Fields, Schema};
use arrow::error::ArrowError;
use memchr::memchr2;

/// The keys that a value may have; nested shapes are positions among all shapes.
#[derive(Debug)]
enum Shape {
    /// Any value: the reader of the value reports its errors.
    Value,
    Object(Vec<(String, usize)>),
    List(usize),
}

#[derive(Debug)]
struct Open {
    shape: usize,
    /// The shape of the next value.
    value: usize,
    is_object: bool,
    /// True before a key.
    is_key: bool,
    /// The position of the next key, if keys are in the order of the columns.
    next: usize,
}

/// Looks through objects, one after the other.
#[derive(Debug)]
pub(super) struct Keys {
    /// The first is the shape of any value, the second the shape of a row.
    shapes: Vec<Shape>,
    open: Vec<Open>,
    /// Number of objects so far, including the open one.
    rows: u64,
    is_text: bool,
    is_escaped: bool,
    key: Vec<u8>,
}

const ANY: usize = 0;
const ROW: usize = 1;

impl Keys {
    pub(super) fn new(schema: &Schema) -> Self {
        let mut shapes = vec![Shape::Value, Shape::Value];
        let row = Shape::Object(of_fields(schema.fields(), &mut shapes));
        shapes[ROW] = row;
        let (open, key) = (Vec::new(), Vec::new());
        Keys { shapes, open, rows: 0, is_text: false, is_escaped: false, key }
    }

    /// The next bytes.
    ///
    /// # Errors
    /// The row and the key that the table does not have.
    pub(super) fn check(&mut self, bytes: &[u8]) -> Result<(), ArrowError> {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.is_text {
                at += self.text(&bytes[at..])?;
                continue;
            }
            at += 1;
            match byte {
                b'"' => self.is_text = true,
                b'{' | b'[' => self.begin(byte == b'{'),
                b'}' | b']' => {
                    self.open.pop();
                }
                b',' => {
                    if let Some(open) = self.open.last_mut() {
                        open.is_key = open.is_object;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn begin(&mut self, is_object: bool) {
        let shape = match self.open.last() {
            Some(open) => open.value,
            None => {
                self.rows += 1;
                ROW
            }
        };
        let (shape, value) = match (&self.shapes[shape], is_object) {
            (Shape::Object(_), true) => (shape, ANY),
            (Shape::List(value), false) => (shape, *value),
            _ => (ANY, ANY),
        };
        self.open.push(Open { shape, value, is_object, is_key: is_object, next: 0 });
    }

    /// Consumes the next bytes of a text, and returns their number.
    fn text(&mut self, bytes: &[u8]) -> Result<usize, ArrowError> {
        if std::mem::take(&mut self.is_escaped) {
            self.add(&bytes[..1]);
            return Ok(1);
        }
        let Some(end) = memchr2(b'"', b'\\', bytes) else {
            self.add(bytes);
            return Ok(bytes.len());
        };
        self.is_escaped = bytes[end] == b'\\';
        if self.is_escaped {
            self.add(&bytes[..=end]);
        } else {
            self.add(&bytes[..end]);
            self.is_text = false;
            self.found()?;
        }
        Ok(end + 1)
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.open.last().is_some_and(|open| open.is_key) {
            self.key.extend_from_slice(bytes);
        }
    }

    /// A text has ended; it may be a key.
    fn found(&mut self) -> Result<(), ArrowError> {
        let Some(open) = self.open.last_mut().filter(|open| open.is_key) else { return Ok(()) };
        open.is_key = false;
        open.value = ANY;
        let Shape::Object(keys) = &self.shapes[open.shape] else {
            self.key.clear();
            return Ok(());
        };
        // Most rows have the columns in their order.
        if let Some((next, value)) = keys.get(open.next)
            && next.as_bytes() == self.key
        {
            (open.value, open.next) = (*value, open.next + 1);
            self.key.clear();
            return Ok(());
        }
        let key = std::mem::take(&mut self.key);
        let text = match key.contains(&b'\\') {
            true => serde_json::from_slice(&[b"\"".as_slice(), &key, b"\""].concat()).ok(),
            false => None,
        };
        let text = text.unwrap_or_else(|| String::from_utf8_lossy(&key).into_owned());
        let Some(position) = keys.iter().position(|(known, _)| *known == text) else {
            return Err(ArrowError::JsonError(at_row(
                self.rows,
                &format!("column '{text}' missing from schema"),
            )));
        };
        open.value = keys[position].1;
        open.next = position + 1;
        Ok(())
    }
}

fn of_fields(fields: &Fields, shapes: &mut Vec<Shape>) -> Vec<(String, usize)> {
    let of_field = |(name, dtype): (&String, &DataType)| (name.clone(), of(dtype, shapes));
    fields.iter().map(|field| (field.name(), field.data_type())).map(of_field).collect()
}

fn of(dtype: &DataType, shapes: &mut Vec<Shape>) -> usize {
    let shape = match dtype {
        DataType::Struct(fields) => Shape::Object(of_fields(fields, shapes)),
        DataType::List(item) | DataType::LargeList(item) => {
            Shape::List(of(item.data_type(), shapes))
        }
        _ => return ANY,
    };
    shapes.push(shape);
    shapes.len() - 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::datatypes::Field;
    use std::sync::Arc;

    /// The error for a text, also if it arrives byte by byte.
    fn wrong(text: &str) -> Option<String> {
        let inner = Fields::from(vec![
            Field::new("x", DataType::Int64, true),
            Field::new("y\"", DataType::Utf8, true),
        ]);
        let object = DataType::Struct(inner);
        let list = DataType::List(Arc::new(Field::new("item", object.clone(), true)));
        let schema = Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("o", object, true),
            Field::new("l", list, true),
            Field::new("é", DataType::Utf8, true),
        ]);
        let mut keys = Keys::new(&schema);
        let whole = keys.check(text.as_bytes()).err().map(|e| e.to_string());
        let mut keys = Keys::new(&schema);
        let cut = text.bytes().find_map(|byte| keys.check(&[byte]).err()).map(|e| e.to_string());
        assert_eq!(whole, cut, "{text}");
        whole
    }

    #[test]
    fn known_keys_are_accepted() {
        for text in [
            "",
            "{\"a\": 1}\n{\"o\": {\"x\": 2}, \"a\": null}\n",
            "{\"l\": [{\"x\": 1}, {\"y\\\"\": \"b: {\\\"c\\\": 1}\"}, null], \"a\": 3}",
            "{\"\\u00e9\": \"b\", \"é\": \"\\\\\"}{\"a\": 1}",
            // The reader reports errors of the value.
            "{\"a\": {\"b\": [{\"c\": 1}]}, \"o\": [{\"b\": 1}], \"l\": {\"z\": 1}}",
            "]}}{",
        ] {
            assert_eq!(wrong(text), None, "{text}");
        }
    }

    #[test]
    fn unknown_keys_are_errors_with_their_row() {
        for (text, row, key) in [
            ("{\"b\": 1}", 1, "b"),
            ("{\"a\": 1}\n{\"a\": 1, \"x\": 2}", 2, "x"),
            ("{\"a\": 1}\n\n{\"a\": 1}\n{\"o\": {\"x\": 1, \"a\": 2}}", 3, "a"),
            ("{\"l\": [{\"x\": 1}, {\"z\": [1]}]}", 1, "z"),
            ("{\"q\\n\": 1}", 1, "q\n"),
        ] {
            let error = wrong(text).unwrap();
            let want = format!("at row {row}: column '{key}' missing from schema");
            assert!(error.contains(&want), "{text}: {error}");
        }
    }
}
