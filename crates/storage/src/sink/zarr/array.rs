//! One array of a group being written: its cells and its validity.

use super::document::{ArrayDocument, Cells};
use super::encode::Encoder;
use super::labels::{UNNAMED_KEY, VALID_KEY};
use super::layout::Layout;
use super::{Item, LABELS_OBJECT, labels};
use crate::manifest::{Seal, number_of};
use crate::sink::SinkError;
use crate::sink::budget::Budget;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of the padded texts in one object, unless a single one has more.
const PADDED_BYTES: u64 = 64 << 20;

/// A tensor that is being written.
#[derive(Debug)]
pub(super) struct Array {
    /// Type of the cells, of which datetimes are stored as `int64`.
    pub(super) dtype: DType,
    pub(super) document: ArrayDocument,
    pub(super) encoder: Encoder,
    /// Value of masked cells and of cells beyond the edge.
    pub(super) fill: Scalar,
    /// The value stored for masked cells, if the type has one.
    pub(super) stands: Option<Scalar>,
    pub(super) valid: Option<Valid>,
}

/// The validity array, until it is known whether it is needed.
#[derive(Debug)]
pub(super) struct Valid {
    pub(super) document: ArrayDocument,
    pub(super) encoder: Encoder,
    /// True once an object of it is written.
    pub(super) written: AtomicBool,
    pub(super) masked: AtomicBool,
    pub(super) collides: AtomicBool,
}

/// An encoded object of an array.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) key: String,
    /// Its number in the array's grid of objects, row-major.
    pub(super) number: u64,
    pub(super) seal: Seal,
    pub(super) bytes: Vec<u8>,
}

/// Facts that a writer collects about a chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// True if a cell is masked.
    pub(super) masked: bool,
    /// True if a valid cell has the value stored for masked cells.
    pub(super) collides: bool,
    /// True if the chunk has an object of the validity array.
    pub(super) valid: bool,
}

/// The objects of one chunk.
#[derive(Debug)]
pub(super) struct Objects {
    /// The cells, if they are not all the fill value.
    pub(super) cells: Option<Object>,
    /// The cells of the validity array, if the chunk has any.
    pub(super) valid: Option<Object>,
    pub(super) facts: Facts,
}

impl Objects {
    /// Bytes of both.
    fn bytes(&self) -> usize {
        [&self.cells, &self.valid].into_iter().flatten().map(|o| o.bytes.len()).sum()
    }

    /// Stores both with `store`, which gets each with the permits for its bytes. The rest of `permit` is released.
    pub(super) fn store(
        self,
        mut permit: OwnedSemaphorePermit,
        store: impl Fn(Object, Option<OwnedSemaphorePermit>) -> Result<(), SinkError>,
    ) -> Result<(), SinkError> {
        Budget::shrink(&mut permit, self.bytes());
        if let Some(valid) = self.valid {
            let part = Budget::part(&mut permit, valid.bytes.len());
            store(valid, part)?;
        }
        match self.cells {
            Some(cells) => store(cells, Some(permit)),
            None => Ok(()),
        }
    }
}

/// The array of a result; `what` is the output, for messages.
pub(super) fn array_of<'a>(
    arrays: &'a [Array],
    result: usize,
    what: &str,
) -> Result<&'a Array, SinkError> {
    arrays.get(result).ok_or_else(|| SinkError::Internal {
        what: what.into(),
        reason: format!("it has no result {result}"),
    })
}

impl ArrayDocument {
    fn object(&self, index: &[u64], bytes: Vec<u8>) -> Object {
        let number = number_of(&self.grid(), index);
        Object { key: self.key(index), number, seal: Seal::of_chunk(&bytes), bytes }
    }
}

impl Array {
    pub(super) fn new(
        item: Item,
        axes: labels::Axes,
        layout: &Layout,
        taken: &mut BTreeSet<String>,
    ) -> Result<Array, SinkError> {
        let stands = labels::fill_value(item.dtype).filter(|_| item.nullable);
        let fill = stands.unwrap_or(Scalar::zero(item.dtype));
        let none = BTreeSet::new();
        let written = if layout.listed { &none } else { &*taken };
        let mut attrs = labels::kept(&item.attrs, Some(item.dtype), written);
        if let DType::Datetime(calendar) = item.dtype {
            attrs.extend(labels::time_attrs(calendar, "microseconds"));
        }
        if !axes.unnamed.is_empty() {
            attrs.insert(UNNAMED_KEY.into(), json!(axes.unnamed));
        }
        let inner = item.chunks.shards.is_some().then(|| item.chunks.chunks.clone());
        let document = ArrayDocument {
            name: item.name.clone(),
            format: layout.format,
            shape: item.shape.clone(),
            object: item.chunks.object().clone(),
            inner,
            cells: Cells::Number(item.dtype),
            // In Zarr v2 a fill value is a mask, so it is only set where it is meant as one.
            fill: match (layout.format, stands) {
                (2, _) => Value::Null,
                _ => labels::fill_json(fill),
            },
            codec: layout.codec,
            checked: layout.listed,
            dims: axes.dims,
            attrs,
        };
        let valid = match item.nullable {
            false => None,
            true => {
                let mut name = format!("{}_valid", item.name);
                while taken.contains(&name) {
                    name.push('_');
                }
                taken.insert(name.clone());
                let long_name = format!("true where {} is not masked", item.name);
                let document = ArrayDocument {
                    name,
                    cells: Cells::Number(DType::Bool),
                    fill: if layout.format == 2 { Value::Null } else { true.into() },
                    attrs: Attrs::from([("long_name".to_string(), long_name.into())]),
                    ..document.clone()
                };
                let encoder = Encoder::new(&document)?;
                let (written, masked) = (AtomicBool::new(false), AtomicBool::new(false));
                let collides = AtomicBool::new(stands.is_none());
                Some(Valid { document, encoder, written, masked, collides })
            }
        };
        let encoder = Encoder::new(&document)?;
        Ok(Array { dtype: item.dtype, document, encoder, fill, stands, valid })
    }

    /// Encodes the chunk `index`, of lengths `shape`. `fields` are the bytes of its cells and, if cells can be masked,
    /// one byte a cell that is 0 where the cell is masked.
    ///
    /// # Errors
    /// A chunk that does not have the form of the array.
    pub(super) fn encode(
        &self,
        index: &[u64],
        shape: &[u64],
        fields: &[&[u8]],
    ) -> Result<Objects, SinkError> {
        let broken = |reason: &str| SinkError::Internal {
            what: self.document.name.clone(),
            reason: reason.into(),
        };
        let rank = self.document.shape.len();
        let (Some(index), Some(shape)) = (index.get(..rank), shape.get(..rank)) else {
            return Err(broken("a chunk of fewer axes"));
        };
        let cells = fields.first().ok_or_else(|| broken("field 0 of a chunk with 0 fields"))?;
        let valid = fields.get(1).copied();
        let cut = self.encoder.cut(cells, valid, shape, self.fill, self.stands)?;
        let mut facts = Facts { masked: cut.masked, collides: cut.collides, valid: false };
        let mut encoded_valid = None;
        // In v3 an absent object means that nothing is masked; v2 has no such value.
        if let (Some(v), Some(of)) = (valid, &self.valid)
            && (cut.masked || self.document.format == 2)
        {
            facts.valid = true;
            let cut = of.encoder.cut(v, None, shape, Scalar::bool(true), None)?;
            encoded_valid = Some(of.document.object(index, of.encoder.encode(cut.bytes)?));
        }
        // Zarr v2 has no value for absent chunks unless it means "missing".
        let absent = self.document.format == 3 && self.encoder.is_fill(&cut.bytes);
        let cells = match absent {
            true => None,
            false => Some(self.document.object(index, self.encoder.encode(cut.bytes)?)),
        };
        Ok(Objects { cells, valid: encoded_valid, facts })
    }

    /// Notes the facts of a chunk.
    pub(super) fn note(&self, facts: Facts) {
        let Some(of) = &self.valid else { return };
        for (is_so, flag) in
            [(facts.collides, &of.collides), (facts.masked, &of.masked), (facts.valid, &of.written)]
        {
            if is_so {
                flag.store(true, Relaxed);
            }
        }
    }

    /// True if the validity array is needed to know which cells are masked.
    pub(super) fn keeps_valid(&self) -> bool {
        self.valid.as_ref().is_some_and(|v| v.masked.load(Relaxed) && v.collides.load(Relaxed))
    }

    /// Returns the document, once all chunks were encoded.
    pub(super) fn described(&self) -> ArrayDocument {
        let mut document = self.document.clone();
        let Some(valid) = &self.valid else { return document };
        if self.keeps_valid() {
            document.attrs.insert(VALID_KEY.into(), valid.document.name.clone().into());
        } else if let Some(value) = self.stands.filter(|_| valid.masked.load(Relaxed)) {
            // If no cell is masked, no fill value is declared: the tensor is read back without a mask.
            match document.format {
                2 => document.fill = labels::fill_json(value),
                _ => {
                    document.attrs.insert("_FillValue".into(), labels::fill_attribute(value));
                }
            }
        }
        document
    }
}

/// Labels in one object of a coordinate. Zarr v2 pads texts to the longest one: of long texts an object has fewer.
fn of_object(cells: Cells, format: u8) -> u64 {
    match cells {
        Cells::Text(chars) if format == 2 => {
            let width = 4 * chars.max(1) as u64;
            (PADDED_BYTES / width).clamp(1, LABELS_OBJECT)
        }
        _ => LABELS_OBJECT,
    }
}

/// The array of a coordinate, or of texts.
pub(super) fn coordinate(labels: &labels::Labels, layout: &Layout) -> ArrayDocument {
    // Along a dimension, or without one.
    let object = labels.len.clamp(1, of_object(labels.cells, layout.format));
    ArrayDocument {
        name: labels.name.clone(),
        format: layout.format,
        shape: labels.dims.iter().map(|_| labels.len).collect(),
        object: labels.dims.iter().map(|_| object).collect(),
        inner: None,
        cells: labels.cells,
        fill: match (layout.format, labels.cells) {
            (2, _) => Value::Null,
            (_, Cells::Text(_)) => "".into(),
            (_, Cells::Number(d)) => labels::fill_json(Scalar::zero(d)),
        },
        codec: layout.codec,
        checked: layout.listed,
        dims: labels.dims.clone(),
        attrs: labels.attrs.clone(),
    }
}
