//! The entries of the catalog.

use serde::{Deserialize, Serialize};
use tessera_storage::manifest::ManifestRef;

/// Upper bound on the stores that a tensor is known to follow; the oldest are dropped.
const FOLLOWS_MAX: usize = 64;

/// A name of the catalog and its definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Version of this file's format.
    pub(super) format_version: u32,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) definition: Definition,
}

/// The definition of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Definition {
    /// Of `CREATE EXTERNAL TABLE`.
    External {
        /// `zarr`, `npy`, ….
        stored_as: String,
        /// The URL or path as written.
        location: String,
        options: Vec<(String, String)>,
    },
    /// Of `CREATE TENSOR`.
    Tensor {
        /// Its store, from the warehouse's root.
        data: String,
        /// The list of its files; stores of earlier versions have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        manifest: Option<ManifestRef>,
        /// The stores that INSERTs replaced since it was created, the last one at the end: it has their cells.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        follows: Vec<String>,
    },
    /// Of `CREATE VIEW`.
    View { query: String },
}

impl Definition {
    /// The kind in messages and `SHOW TENSORS`.
    pub(in crate::session) fn kind(&self) -> &'static str {
        match self {
            Definition::External { .. } => "table",
            Definition::Tensor { .. } => "tensor",
            Definition::View { .. } => "view",
        }
    }

    /// The key of its cells from the warehouse's root, if the warehouse stores them.
    pub(crate) fn data(&self) -> Option<&str> {
        match self {
            Definition::Tensor { data, .. } => Some(data),
            Definition::External { .. } | Definition::View { .. } => None,
        }
    }

    /// True if INSERTs into the tensor of the store `data` made it.
    pub(in crate::session) fn continues(&self, data: &str) -> bool {
        matches!(self, Definition::Tensor { follows, .. } if follows.iter().any(|one| one == data))
    }

    /// The stores that a tensor follows which an INSERT makes of this one.
    pub(in crate::session) fn followed(&self) -> Vec<String> {
        let Definition::Tensor { data, follows, .. } = self else { return Vec::new() };
        let old = (follows.len() + 1).saturating_sub(FOLLOWS_MAX);
        follows.iter().skip(old).chain([data]).cloned().collect()
    }
}
