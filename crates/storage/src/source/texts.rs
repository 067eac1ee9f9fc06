//! Arrays of texts: their cells, within a bound, and the texts that mark missing ones.

use crate::source::cells::Raw;
use crate::source::coords::scalars;
use crate::source::error::SourceError;
use crate::source::meta::ArrayMeta;
use crate::source::references;
use serde_json::Value;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tessera_planner::catalog::Variable;
use tessera_planner::dtype::DType;
use zarrs::array::ArrayBytes;

/// Upper bound on the bytes in memory of the texts of a dataset, which are all read at bind.
const BYTES_MAX: u64 = 512 << 20;

/// Bytes of a text in memory beside its letters.
const EACH: u64 = size_of::<String>() as u64;

/// The type, in messages, of texts that have no form here.
pub(crate) const REFUSED: &str = "string (but along one dimension with a name, or none)";

/// The error for an array of texts that is not along one dimension with a name.
pub(crate) fn refused(array: &str) -> SourceError {
    SourceError::UnsupportedDType { array: array.into(), dtype: REFUSED.into() }
}

/// Checks an array that is opened alone.
///
/// # Errors
/// [`refused`].
pub(crate) fn check_alone(variable: &Variable, is_text: bool) -> Result<(), SourceError> {
    match is_text && (variable.dims.len() > 1 || variable.dims.contains(&None)) {
        true => Err(refused(&variable.name)),
        false => Ok(()),
    }
}

/// Checks the bytes in memory of the texts of an array.
///
/// # Errors
/// [`SourceError::NoLabels`] for more than are read.
pub(crate) fn check(array: &str, bytes: u64) -> Result<(), SourceError> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    let reason = format!(
        "with its texts, those of the dataset take {bytes} bytes or more, and at most {BYTES_MAX} are read"
    );
    Err(SourceError::NoLabels { array: array.into(), reason })
}

/// Memory for the texts of a dataset.
#[derive(Debug, Default)]
pub(crate) struct Room(AtomicU64);

impl Room {
    /// Takes the memory of `count` texts of an array, without their letters.
    ///
    /// # Errors
    /// [`SourceError::NoLabels`] if the arrays before it leave too little.
    pub(crate) fn take(&self, array: &str, count: u64) -> Result<(), SourceError> {
        self.more(array, bytes_of(count, 0))
    }

    /// Takes the memory of the letters of texts.
    ///
    /// # Errors
    /// [`SourceError::NoLabels`] if the arrays before it leave too little.
    pub(crate) fn letters(&self, array: &str, texts: &[String]) -> Result<(), SourceError> {
        self.more(array, bytes(texts) - bytes_of(texts.len() as u64, 0))
    }

    fn more(&self, array: &str, bytes: u64) -> Result<(), SourceError> {
        let taken = self.0.fetch_add(bytes, Relaxed);
        check(array, taken.saturating_add(bytes)).inspect_err(|_| {
            self.0.fetch_sub(bytes, Relaxed);
        })
    }
}

/// The texts that mark missing cells, as in CF and xarray: `_FillValue`, `missing_value`, and the `fill_value` of a
/// Zarr v2 array that is xarray's.
pub(crate) fn markers(meta: &ArrayMeta) -> Vec<String> {
    let is_of_letters = matches!(meta.raw, Raw::Bytes { .. });
    let mut out = Vec::new();
    for key in ["_FillValue", "missing_value"] {
        let values = match meta.attrs.get(key) {
            Some(Value::Array(list)) => list.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        // The fill value of letters is often the zero that ends a text: it marks no text as missing.
        let texts = values.iter().filter_map(Value::as_str);
        out.extend(texts.filter(|t| !(is_of_letters && t.is_empty())).map(String::from));
    }
    if meta.fill_v2.as_ref().is_some_and(Value::is_string) {
        out.extend(fill(meta).ok());
    }
    out
}

/// The text of the cells of absent chunks.
pub(crate) fn fill(meta: &ArrayMeta) -> Result<String, String> {
    match (&meta.raw, &meta.fill_v2) {
        (Raw::Bytes { .. }, Some(Value::String(encoded))) => {
            let cell = references::base64(encoded.as_bytes());
            padded(&cell.ok_or("the fill value is not base64")?)
        }
        (Raw::Utf32 { .. }, _) => utf32(&meta.fill),
        _ => padded(&meta.fill),
    }
}

/// The texts of a decoded chunk.
pub(crate) fn of_chunk(raw: &Raw, cells: ArrayBytes<'_>) -> Result<Vec<String>, String> {
    if let (Raw::Codes { code, labels }, ArrayBytes::Fixed(cells)) = (raw, &cells) {
        return labelled(cells, *code, labels);
    }
    match cells {
        ArrayBytes::Variable(v) => {
            let (data, offsets) = v.into_parts();
            offsets
                .windows(2)
                .map(|w| {
                    let cell = data.get(w[0]..w[1]).ok_or("a text lies beyond the chunk")?;
                    String::from_utf8(cell.to_vec()).map_err(|_| "a text is not UTF-8".into())
                })
                .collect()
        }
        ArrayBytes::Fixed(cells) if matches!(raw, Raw::Bytes { .. }) => raw.texts(&cells),
        ArrayBytes::Fixed(cells) => {
            cells.chunks_exact(raw.size().max(4) as usize).map(utf32).collect()
        }
        ArrayBytes::Optional(_) => Err("texts that may be null are not supported".into()),
    }
}

/// The texts of numbers: 1 is the first label, and a number without a label is an empty text.
fn labelled(cells: &[u8], code: DType, labels: &[String]) -> Result<Vec<String>, String> {
    let texts = || {
        scalars(cells, code).map(move |cell| {
            let i = usize::try_from(cell.as_i128()).ok().and_then(|i| i.checked_sub(1));
            i.and_then(|i| labels.get(i)).map_or("", String::as_str)
        })
    };
    // A label may be long.
    let bytes: u64 = texts().map(|text| EACH + text.len() as u64).sum();
    if bytes > BYTES_MAX {
        return Err(format!("its texts take {bytes} bytes, and at most {BYTES_MAX} are read"));
    }
    Ok(texts().map(str::to_string).collect())
}

/// The bytes of texts in memory.
pub(crate) fn bytes(texts: &[String]) -> u64 {
    texts.iter().map(|text| EACH + text.len() as u64).sum()
}

/// The bytes in memory of `count` texts of `letters` bytes each.
pub(crate) fn bytes_of(count: u64, letters: u64) -> u64 {
    count.saturating_mul(letters.saturating_add(EACH))
}

/// A text of bytes that is padded with zeros.
pub(crate) fn padded(cell: &[u8]) -> Result<String, String> {
    let end = cell.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1);
    String::from_utf8(cell[..end].to_vec()).map_err(|_| "a text is not UTF-8".to_string())
}

/// A text of characters of 4 bytes that ends with a zero, or with the cell.
fn utf32(cell: &[u8]) -> Result<String, String> {
    let characters = cell.as_chunks::<4>().0.iter().map(|c| u32::from_ne_bytes(*c));
    let characters = characters.take_while(|&c| c != 0);
    characters
        .map(|c| char::from_u32(c).ok_or_else(|| "a text is not Unicode".to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn numbers_are_labels() {
        // numcodecs.Categorize(["a", "bc"], "<U2", "<i2").decode([2, 0, 1, 3, -1]).
        let labels = ["a".to_string(), "bc".to_string()];
        let cells: Vec<u8> = [2i16, 0, 1, 3, -1].into_iter().flat_map(i16::to_ne_bytes).collect();
        assert_eq!(labelled(&cells, DType::Int16, &labels).unwrap(), ["bc", "", "a", "", ""]);
        let long = ["x".repeat(1 << 20)];
        assert!(labelled(&[1; 600], DType::UInt8, &long).unwrap_err().contains("at most"));
    }

    #[test]
    fn the_texts_of_a_dataset_are_bounded() {
        let (room, all) = (Room::default(), BYTES_MAX / EACH);
        room.take("a", all - 2).unwrap();
        let why = room.take("b", 3).unwrap_err().to_string();
        assert!(why.contains("`b`") && why.contains("536870912"), "{why}");
        // A refused request takes no room.
        room.take("c", 1).unwrap();
        room.letters("c", &["x".repeat(EACH as usize)]).unwrap();
        let why = room.letters("d", &["y".repeat(EACH as usize)]).unwrap_err();
        assert_eq!(why.code(), "no_labels");
    }
}
