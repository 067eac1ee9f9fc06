//! The findings of a reader of metadata at a location: the input of [`crate::source::variables::assemble`].

use crate::formats::view::Pages;
use crate::source::chunked::{Chunked, InFile};
use crate::source::error::SourceError;
use crate::source::flat::{self, Flat};
use crate::source::meta::ArrayMeta;
use crate::source::reader::Layout;
use crate::source::rests::Rests;
use crate::source::store::Store;
use bytes::Bytes;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::grid::Grid;

/// Arrays of a group, by name.
pub(crate) type Arrays = BTreeMap<String, Result<Node, Unread>>;

/// The node at a location.
pub(crate) enum Found {
    Array(Box<Node>),
    /// A group with the arrays directly in it.
    Group {
        arrays: Arrays,
        /// Names of the groups directly in it.
        groups: Vec<String>,
        attrs: Attrs,
    },
    /// A directory of references in tables, by its document.
    References(Map<String, Value>),
}

/// An array and the key it has in the store.
pub(crate) struct Node {
    pub(crate) key: String,
    pub(crate) meta: ArrayMeta,
    /// Digest of its metadata, or the version of its file.
    pub(crate) version: Option<String>,
    pub(crate) place: Place,
}

/// The place of the cells of an array.
pub(crate) enum Place {
    /// In chunks that are objects or in shards.
    Zarr {
        /// The object that the metadata were read from.
        document: String,
    },
    /// In chunks of a file.
    Chunks(InFile),
    /// Contiguous in a file.
    Flat { file: Arc<Pages>, offset: u64, is_swapped: bool },
    /// In the metadata.
    Inline { bytes: Bytes, is_swapped: bool },
    /// In the metadata, as texts.
    Texts(Arc<[String]>),
}

/// An array whose metadata are invalid, with the parts that are known.
pub(crate) struct Unread {
    pub(crate) error: SourceError,
    pub(crate) attrs: Attrs,
    /// Names of its dimensions and lengths; empty if these are not known.
    pub(crate) dims: Vec<(Option<Arc<str>>, u64)>,
}

impl From<SourceError> for Unread {
    fn from(error: SourceError) -> Self {
        Unread { error, attrs: Attrs::new(), dims: Vec::new() }
    }
}

impl Node {
    /// The logical grid of the array.
    pub(crate) fn grid(&self) -> Grid {
        match self.place {
            Place::Zarr { .. } | Place::Chunks(_) => {
                Grid::regular(&self.meta.shape, &self.meta.unit)
            }
            _ => flat::slabs(&self.meta.shape, self.meta.raw.size(), false),
        }
    }

    /// True if cells of a stored line are read as they are in memory.
    pub(crate) fn is_plain(&self) -> bool {
        match &self.place {
            Place::Zarr { .. } | Place::Chunks(_) => self.meta.is_plain(),
            Place::Flat { is_swapped, .. } => self.meta.raw.is_verbatim() && !is_swapped,
            Place::Inline { .. } | Place::Texts(_) => false,
        }
    }

    /// The layout of its reader, and the document that absent chunks depend on.
    pub(crate) fn layout(self, store: &Store) -> (Layout, Rests) {
        let flat = |key: &str, offset, swapped, memory| {
            let (key, raw) = (key.to_string(), self.meta.raw.clone());
            Layout::Flat(Flat { key, raw, swapped, fortran: false, offset, memory, sum: None })
        };
        match self.place {
            Place::Zarr { document } => {
                let chunked = Chunked::new(self.meta, self.key, store);
                (Layout::Chunked(Box::new(chunked)), Rests::on(store, document))
            }
            Place::Chunks(file) => {
                let chunked = Chunked::in_file(self.meta, file);
                (Layout::Chunked(Box::new(chunked)), Rests::default())
            }
            Place::Flat { file, offset, is_swapped } => {
                (flat(file.key(), offset, is_swapped, None), Rests::default())
            }
            Place::Inline { bytes, is_swapped } => {
                (flat("", 0, is_swapped, Some(bytes)), Rests::default())
            }
            Place::Texts(texts) => (Layout::Texts(texts), Rests::default()),
        }
    }
}
