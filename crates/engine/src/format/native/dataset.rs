//! A dataset in the engine's own form, as a client sends it to a server.
//!
//! ```text
//!   header: attributes, coordinates, arrays │ labels of each coordinate │ cells, and masks, of each array
//! ```
//! An answer that is tensors is read as a dataset, too. Nothing that the file states is believed before it was compared
//! with the size of the file, and labels are charged before they are read.

use super::{
    AnswerKind, DatasetHead, Header, Shape, UNREADABLE, Values, bad, begin, header, labelled,
    labels, shape, write_cells, write_labels,
};
use crate::answer::Windows;
use crate::answer::scratch::ScratchFile;
use crate::error::Error;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;
use tessera_exec::quota::{Account, Charge};
use tessera_planner::catalog::{Attrs, Coord, CoordValues, Dataset};
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;

/// Bytes of a label that is a text, beside its characters.
const TEXT_BYTES: u64 = 24;

/// A dataset to be written.
pub(crate) struct Sent<'a> {
    begin: Vec<u8>,
    dataset: &'a Dataset,
    arrays: &'a [&'a dyn Windows],
}

impl<'a> Sent<'a> {
    /// `arrays` are the variables of `dataset`, which has their labels; labels on their axes are not written.
    ///
    /// # Errors
    /// Labels that are texts, and attributes, of more than 4 GiB.
    pub(crate) fn new(dataset: &'a Dataset, arrays: &'a [&'a dyn Windows]) -> Result<Self, Error> {
        let head = DatasetHead {
            attrs: dataset.attrs.clone(),
            coords: dataset.coords.iter().map(|c| labelled(c)).collect(),
            arrays: arrays.iter().map(|a| shape(a.head())).collect(),
            scalars: dataset.scalars.iter().map(|c| labelled(c)).collect(),
            coordinates: dataset.coordinates.iter().map(|name| name.to_string()).collect(),
        };
        let header = Header {
            answer: AnswerKind::Dataset(head),
            dataset: Attrs::new(),
            surface: None,
            plan_s: 0.0,
            total_s: 0.0,
            bytes_read: 0,
        };
        Ok(Sent { begin: begin(&header)?, dataset, arrays })
    }

    /// All labels, in the order of the payload.
    fn labels(&self) -> impl Iterator<Item = &CoordValues> {
        self.dataset.coords.iter().chain(&self.dataset.scalars).map(|c| &c.values)
    }

    /// Number of bytes that [`Sent::write`] writes.
    pub(crate) fn bytes(&self) -> u64 {
        let labels = self.labels().map(|values| match values {
            CoordValues::Text(_) | CoordValues::Unreadable(_) => 0,
            numbers => 8 * numbers.len() as u64,
        });
        let cells = self.arrays.iter().map(|a| {
            let head = a.head();
            head.cells() * (head.dtype.size() as u64 + u64::from(head.nullable))
        });
        self.begin.len() as u64 + labels.chain(cells).sum::<u64>()
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Errors of `out`, and of cells that cannot be read.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<(), Error> {
        out.write_all(&self.begin).map_err(super::output)?;
        self.labels().try_for_each(|values| write_labels(values, out))?;
        self.arrays.iter().try_for_each(|a| write_cells(*a, out))
    }
}

impl Values {
    /// Bytes of the labels in the payload.
    fn payload_bytes(&self) -> u64 {
        match self {
            Values::Int(_, n) | Values::Float(_, n) | Values::Time(_, n) => n.saturating_mul(8),
            Values::Text(_) | Values::Unreadable { .. } => 0,
        }
    }

    /// Bytes of the labels in memory.
    fn memory_bytes(&self) -> u64 {
        match self {
            Values::Text(v) => {
                let letters = |text: &Option<String>| text.as_ref().map_or(0, String::len) as u64;
                v.iter().map(|text| letters(text) + TEXT_BYTES).sum()
            }
            other => other.payload_bytes(),
        }
    }
}

/// A dataset that was received. Its cells are in the file.
pub(crate) struct Received {
    pub(crate) attrs: Attrs,
    pub(crate) coords: Vec<Coord>,
    /// Texts without a dimension.
    pub(crate) scalars: Vec<Coord>,
    /// Names of arrays and texts that are coordinates of others.
    pub(crate) coordinates: BTreeSet<String>,
    pub(crate) arrays: Vec<ReceivedArray>,
    pub(crate) labels: Charge,
}

/// An array of a [`Received`] dataset.
pub(crate) struct ReceivedArray {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) nullable: bool,
    pub(crate) shape: Dims,
    pub(crate) dims: Vec<Option<String>>,
    pub(crate) attrs: Attrs,
    /// Offset of the first cell. A validity byte for each cell follows the last one if cells may be masked.
    pub(crate) start: u64,
}

/// Reads a dataset from a file that holds nothing else; labels are charged to `account`.
///
/// # Errors
/// `bad_request` if the file is not in this form, or ends too early or too late; errors of the account.
pub(crate) fn read(
    file: &Arc<ScratchFile>,
    header_max: u64,
    account: &Arc<Account>,
) -> Result<Received, Error> {
    received(file, header_max, account).map_err(|e| match e {
        Error::Protocol { reason } => {
            let reason = reason.strip_prefix(UNREADABLE).unwrap_or(&reason);
            Error::Request { reason: format!("the upload cannot be read: {reason}") }
        }
        other => other,
    })
}

fn received(
    file: &Arc<ScratchFile>,
    header_max: u64,
    account: &Arc<Account>,
) -> Result<Received, Error> {
    let (header, mut at) = header(file, header_max)?;
    let DatasetHead { attrs, coords: own, arrays: shapes, scalars, coordinates } =
        match header.answer {
            AnswerKind::Dataset(head) => head,
            AnswerKind::Tensors(arrays) => DatasetHead {
                attrs: header.dataset,
                coords: Vec::new(),
                arrays,
                scalars: Vec::new(),
                coordinates: BTreeSet::new(),
            },
            AnswerKind::Rows(_) => {
                return Err(bad("it is rows: send them as application/vnd.apache.arrow.stream"));
            }
            _ => return Err(bad("it is neither tensors nor a dataset")),
        };
    let lengths = lengths(&shapes)?;
    let on_axes = shapes.iter().flat_map(|s| &s.dims).filter_map(|d| d.coord.as_ref());
    let all = own.iter().chain(&scalars).chain(on_axes);
    // A file that lacks the labels reserves nothing.
    let (payload, memory) = all.fold((0u64, 0u64), |(p, m), c| {
        let (own, held) = (c.values.payload_bytes(), c.values.memory_bytes());
        (p.saturating_add(own), m.saturating_add(held))
    });
    if payload > file.len() {
        return Err(bad("labels are missing"));
    }
    let labels_held = account.reserve(memory).map_err(Error::stage)?;
    let mut coords = Coords::default();
    for c in own {
        let len = lengths.get(&c.dim).copied();
        coords.add(labels(c, len, file, &mut at)?)?;
    }
    let scalars = scalars.into_iter().map(|c| labels(c, Some(1), file, &mut at));
    let scalars = scalars.collect::<Result<Vec<_>, _>>()?;
    let mut arrays = Vec::with_capacity(shapes.len());
    for s in shapes {
        let (dtype, shape, bytes) = s.extent()?;
        let mut dims = Vec::with_capacity(shape.len());
        for (dim, len) in s.dims.into_iter().zip(&shape) {
            if let Some(c) = dim.coord {
                let c = labels(c, Some(*len), file, &mut at)?;
                if let Some(name) = &dim.name {
                    coords.add(Coord {
                        name: name.as_str().into(),
                        dim: name.as_str().into(),
                        ..c
                    })?;
                }
            }
            dims.push(dim.name);
        }
        let start = at;
        at = start
            .checked_add(bytes)
            .filter(|end| *end <= file.len())
            .ok_or_else(|| bad(&format!("cells of `{}` are missing", s.name)))?;
        arrays.push(ReceivedArray {
            name: s.name,
            dtype,
            nullable: s.nullable,
            shape,
            dims,
            attrs: s.attrs,
            start,
        });
    }
    if at != file.len() {
        return Err(bad(&format!("{} bytes follow its end", file.len().saturating_sub(at))));
    }
    Ok(Received { attrs, coords: coords.0, scalars, coordinates, arrays, labels: labels_held })
}

/// The length of each dimension. Names of arrays differ, and arrays that share a dimension agree on its length.
fn lengths(shapes: &[Shape]) -> Result<BTreeMap<String, u64>, Error> {
    if shapes.is_empty() {
        return Err(bad("it has no array"));
    }
    let mut names = BTreeSet::new();
    let mut lengths: BTreeMap<String, u64> = BTreeMap::new();
    for s in shapes {
        if s.name.is_empty() || !names.insert(&s.name) {
            return Err(bad(&format!("two arrays have the name `{}`, or one has none", s.name)));
        }
        let (_, shape, _) = s.extent()?;
        for (dim, len) in s.dims.iter().zip(&shape) {
            let Some(name) = &dim.name else { continue };
            let known = *lengths.entry(name.clone()).or_insert(*len);
            if known != *len {
                return Err(bad(&format!("`{name}` has lengths {known} and {len}")));
            }
        }
    }
    Ok(lengths)
}

/// The coordinates of a dataset.
#[derive(Default)]
struct Coords(Vec<Coord>);

impl Coords {
    /// Adds a coordinate, unless the same one was added for another array.
    fn add(&mut self, coord: Coord) -> Result<(), Error> {
        match self.0.iter().find(|c| c.name == coord.name && c.dim == coord.dim) {
            None => self.0.push(coord),
            Some(known) if known.values == coord.values => {}
            Some(_) => {
                let dim = &coord.dim;
                return Err(bad(&format!("arrays have different labels on `{dim}`")));
            }
        }
        Ok(())
    }
}
