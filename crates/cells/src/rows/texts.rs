//! Numbers of texts, in the order in which they are seen.
//!
//! ```text
//! at most 12 bytes    a view has the text itself       ──▶ number
//! longer              the same view in a batch ────────▶ number        another one ──▶ text ──▶ number
//! a dictionary        the index of a value ────────────▶ number        a new one ──▶ the value's view, as above
//! ```

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, DictionaryArray, StringViewArray, make_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use datafusion::common::hash_utils::RandomState;
use datafusion::error::Result;
use std::collections::HashMap;

/// The view of a text of at most this many bytes has the text itself, and its length in the lowest bits.
const INLINE: u32 = 12;

/// A view that no short text has: its length is greater.
const EMPTY: u128 = u128::MAX;

/// Slots of a new table of short texts.
const SLOTS: usize = 64;

/// Of fewer slots an eighth is used, so that almost each text is in the first slot of its hash; of more, half.
const SPARSE: usize = 1 << 13;

/// Views of long texts that were seen in a batch, found by some bits of their hash.
const SEEN: usize = 512;

/// A number that no value has.
pub(in crate::rows) const NONE: u32 = u32::MAX;

/// Values that are seen for the first time in a batch.
#[derive(Debug, Default)]
pub(in crate::rows) struct New {
    /// The first row of each.
    pub(in crate::rows) rows: Vec<u32>,
    /// The number of the next one.
    pub(in crate::rows) next: u32,
    /// The number of NULL, if it has been seen.
    pub(in crate::rows) null: Option<u32>,
    /// The first of the rows that are numbered.
    pub(in crate::rows) start: usize,
}

impl New {
    /// The number of a new value, which this row has.
    pub(in crate::rows) fn add(&mut self, row: usize) -> u32 {
        let number = self.next;
        self.rows.push((self.start + row) as u32);
        self.next += 1;
        number
    }

    /// The number of NULL, which this row has.
    pub(in crate::rows) fn null(&mut self, row: usize) -> u32 {
        match self.null {
            Some(number) => number,
            None => {
                let number = self.add(row);
                self.null = Some(number);
                number
            }
        }
    }
}

/// Texts and their numbers.
#[derive(Default)]
pub(in crate::rows) struct Texts {
    short: Short,
    long: Long,
    /// The dictionary of the last batch.
    dictionary: Option<Dictionary>,
}

impl Texts {
    /// Adds the number of the text of each row, which may be the index of a value in a dictionary.
    pub(in crate::rows) fn number(
        &mut self,
        keys: &ArrayRef,
        new: &mut New,
        numbers: &mut Vec<u32>,
    ) -> Result<()> {
        // Its views are those of another batch.
        self.long.seen.clear();
        if let Some(keys) = keys.as_dictionary_opt::<Int32Type>() {
            return self.of_dictionary(keys, new, numbers);
        }
        let keys = cast(keys, &DataType::Utf8View)?;
        let texts = keys.as_string_view();
        let views = texts.views().iter().enumerate();
        match with_nulls(texts.nulls()) {
            None => numbers.extend(views.map(|(row, view)| self.of_view(texts, *view, row, new))),
            Some(nulls) => numbers.extend(views.map(|(row, view)| match nulls.is_valid(row) {
                true => self.of_view(texts, *view, row, new),
                false => new.null(row),
            })),
        }
        Ok(())
    }

    fn of_dictionary(
        &mut self,
        keys: &DictionaryArray<Int32Type>,
        new: &mut New,
        numbers: &mut Vec<u32>,
    ) -> Result<()> {
        let values = keys.values().to_data();
        let mut dictionary = match self.dictionary.take() {
            Some(last) if last.values.ptr_eq(&values) => last,
            _ => Dictionary::of(values)?,
        };
        let of = &mut dictionary;
        let rows = keys.keys().values().iter().enumerate();
        match with_nulls(keys.keys().nulls()) {
            None => numbers.extend(rows.map(|(row, at)| self.of_index(of, *at, row, new))),
            Some(nulls) => numbers.extend(rows.map(|(row, at)| match nulls.is_valid(row) {
                true => self.of_index(of, *at, row, new),
                false => new.null(row),
            })),
        }
        self.dictionary = Some(dictionary);
        Ok(())
    }

    #[inline]
    fn of_index(&mut self, of: &mut Dictionary, at: i32, row: usize, new: &mut New) -> u32 {
        match of.numbers.get(at as usize) {
            Some(number) if *number != NONE => *number,
            _ => self.first_of_index(of, at, row, new),
        }
    }

    /// The number of a value that did not occur with this dictionary.
    #[inline(never)]
    fn first_of_index(&mut self, of: &mut Dictionary, at: i32, row: usize, new: &mut New) -> u32 {
        let at = at as usize;
        let Some(number) = of.numbers.get_mut(at).filter(|_| of.texts.is_valid(at)) else {
            return new.null(row);
        };
        // The row has the number of a text that is new.
        let view = of.texts.views()[at];
        *number = match is_short(view) {
            true => self.short.number_of(view, row, new),
            false => self.long.number_of_text(of.texts.value(at), row, new),
        };
        *number
    }

    #[inline]
    fn of_view(&mut self, texts: &StringViewArray, view: u128, row: usize, new: &mut New) -> u32 {
        match is_short(view) {
            true => self.short.number_of(view, row, new),
            false => self.long.number_of(texts, view, row, new),
        }
    }

    pub(in crate::rows) fn size(&self) -> usize {
        let dictionary = self.dictionary.as_ref().map_or(0, Dictionary::size);
        size_of::<Self>() + self.short.size() + self.long.size() + dictionary
    }
}

fn with_nulls(nulls: Option<&NullBuffer>) -> Option<&NullBuffer> {
    nulls.filter(|nulls| nulls.null_count() > 0)
}

fn is_short(view: u128) -> bool {
    view as u32 <= INLINE
}

#[inline]
fn hash(view: u128) -> usize {
    let (low, high) = (view as u64, (view >> 64) as u64);
    let low = low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((low ^ high.wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 32) as usize
}

/// Texts of at most 12 bytes: a table with open addressing.
struct Short {
    views: Vec<u128>,
    numbers: Vec<u32>,
    len: usize,
}

impl Default for Short {
    fn default() -> Self {
        Short::with_slots(SLOTS)
    }
}

impl Short {
    /// `slots` is a power of two.
    fn with_slots(slots: usize) -> Self {
        Short { views: vec![EMPTY; slots], numbers: vec![NONE; slots], len: 0 }
    }

    #[inline]
    fn number_of(&mut self, view: u128, row: usize, new: &mut New) -> u32 {
        let at = hash(view) & (self.views.len() - 1);
        if self.views[at] == view { self.numbers[at] } else { self.other(view, row, new) }
    }

    /// The number of a view that is not in the first slot of its hash.
    #[inline(never)]
    fn other(&mut self, view: u128, row: usize, new: &mut New) -> u32 {
        let at = self.slot(view);
        if self.views[at] == view {
            return self.numbers[at];
        }
        let number = new.add(row);
        let slots = self.views.len();
        let most = if slots < SPARSE { slots / 8 } else { slots / 2 };
        if self.len >= most {
            let Short { views, numbers, .. } =
                std::mem::replace(self, Short::with_slots(2 * slots));
            let used = views.into_iter().zip(numbers).filter(|(view, _)| *view != EMPTY);
            used.for_each(|(view, number)| self.put(view, number));
        }
        self.put(view, number);
        number
    }

    /// The slot of a view, or the free one where it belongs.
    fn slot(&self, view: u128) -> usize {
        let last = self.views.len() - 1;
        let mut at = hash(view) & last;
        while self.views[at] != view && self.views[at] != EMPTY {
            at = (at + 1) & last;
        }
        at
    }

    /// Adds a view that is not in the table.
    fn put(&mut self, view: u128, number: u32) {
        let at = self.slot(view);
        (self.views[at], self.numbers[at]) = (view, number);
        self.len += 1;
    }

    fn size(&self) -> usize {
        self.views.capacity() * size_of::<u128>() + self.numbers.capacity() * size_of::<u32>()
    }
}

/// Longer texts. The texts of equal views of one batch are the same.
#[derive(Default)]
struct Long {
    known: HashMap<Box<str>, u32, RandomState>,
    bytes: usize,
    /// Views of the batch and their numbers; empty before the first one.
    seen: Vec<(u128, u32)>,
}

impl Long {
    fn number_of(&mut self, texts: &StringViewArray, view: u128, row: usize, new: &mut New) -> u32 {
        if self.seen.is_empty() {
            // No long text has this view: its length is 0.
            self.seen.resize(SEEN, (0, NONE));
        }
        let at = hash(view) % SEEN;
        if self.seen[at].0 != view {
            self.seen[at] = (view, self.number_of_text(texts.value(row), row, new));
        }
        self.seen[at].1
    }

    fn number_of_text(&mut self, text: &str, row: usize, new: &mut New) -> u32 {
        if let Some(number) = self.known.get(text) {
            return *number;
        }
        let number = new.add(row);
        self.bytes += text.len();
        self.known.insert(text.into(), number);
        number
    }

    fn size(&self) -> usize {
        self.bytes
            + self.known.capacity() * size_of::<(Box<str>, u32)>()
            + self.seen.capacity() * size_of::<(u128, u32)>()
    }
}

/// The values of a dictionary, which the batches of a row group share.
struct Dictionary {
    values: ArrayData,
    texts: StringViewArray,
    /// The number of each value that has occurred.
    numbers: Vec<u32>,
}

impl Dictionary {
    fn of(values: ArrayData) -> Result<Self> {
        let texts = cast(&make_array(values.clone()), &DataType::Utf8View)?;
        let numbers = vec![NONE; values.len()];
        Ok(Dictionary { values, texts: texts.as_string_view().clone(), numbers })
    }

    fn size(&self) -> usize {
        self.values.get_array_memory_size()
            + self.texts.views().len() * size_of::<u128>()
            + self.numbers.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use arrow::array::{Int32Array, LargeStringArray, StringArray};
    use std::sync::Arc;

    const TEXTS: [Option<&str>; 8] = [
        Some(""),
        Some("a"),
        None,
        Some("a\0"),
        Some("twelve bytes"),
        Some("thirteen byte"),
        Some("thirteen bytf"),
        Some("thirteen bytes and more"),
    ];

    fn some(rows: usize) -> impl Iterator<Item = Option<&'static str>> {
        (0..rows).map(|row| TEXTS[(row * row + row / 7) % 23 % TEXTS.len()])
    }

    /// The numbers of all rows, and the texts in the order of their numbers.
    fn numbered(batches: &[ArrayRef]) -> (Vec<u32>, Vec<Option<String>>) {
        let (mut texts, mut numbers, mut all) = (Texts::default(), Vec::new(), Vec::new());
        let mut null = None;
        for batch in batches {
            let mut new = New { next: all.len() as u32, null, ..New::default() };
            texts.number(batch, &mut new, &mut numbers).unwrap();
            let plain = plain(batch);
            all.extend(new.rows.iter().map(|row| plain[*row as usize].clone()));
            null = new.null;
        }
        (numbers, all)
    }

    fn plain(batch: &ArrayRef) -> Vec<Option<String>> {
        let texts = cast(batch, &DataType::Utf8).unwrap();
        texts.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    fn compare(batches: &[ArrayRef]) {
        let (mut known, mut numbers, mut all) = (HashMap::new(), Vec::new(), Vec::new());
        for text in batches.iter().flat_map(plain) {
            let next = all.len() as u32;
            let number = *known.entry(text.clone()).or_insert(next);
            if number == next {
                all.push(text);
            }
            numbers.push(number);
        }
        assert_eq!(numbered(batches), (numbers, all));
    }

    #[test]
    fn each_text_has_one_number() {
        let views: ArrayRef = Arc::new(some(500).collect::<StringViewArray>());
        let texts: ArrayRef = Arc::new(some(300).collect::<StringArray>());
        let large: ArrayRef = Arc::new(some(200).collect::<LargeStringArray>());
        let part = views.slice(3, 77);
        compare(&[part.slice(0, 0), part, views.clone(), texts.slice(1, 100), large, views]);
        // So many that tables grow and the views of a batch share places.
        let many = (0..6000).map(|row| match row % 3 {
            0 => Some(format!("{}", row % 4001)),
            1 => Some(format!("a long text, the number {}", row % 1500)),
            _ => (row % 5 > 0).then(|| format!("text {}", row * row % 3001)),
        });
        let many: ArrayRef = Arc::new(many.collect::<StringViewArray>());
        compare(&[many.slice(0, 2500), many.slice(2500, 3500), many]);
    }

    #[test]
    fn values_of_dictionaries_are_texts() {
        let values = vec![Some("a"), None, Some("a"), Some("thirteen bytes and more"), Some("")];
        let other = vec![Some("thirteen bytes and more"), Some("b"), Some("never seen")];
        let of = |values: Vec<Option<&str>>, keys: Vec<Option<i32>>| -> ArrayRef {
            let values = Arc::new(StringArray::from(values));
            Arc::new(DictionaryArray::new(Int32Array::from(keys), values))
        };
        let keys = (0..100).map(|row| (row % 7 > 0).then_some(row * row % 5));
        let first = of(values.clone(), keys.collect());
        let second = of(other, vec![Some(1), None, Some(0), Some(1)]);
        let nulls = of(vec![], vec![None, None]);
        let views: ArrayRef = Arc::new(some(50).collect::<StringViewArray>());
        // Parts share the values of their dictionary.
        compare(&[first.slice(5, 20), first.slice(25, 30), second.clone(), first.clone()]);
        compare(&[nulls.clone(), first, views, second, nulls]);
    }
}
