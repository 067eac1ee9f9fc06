//! The entries of the catalog.

use serde::{Deserialize, Serialize};
use tessera_storage::manifest::ManifestRef;

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
    },
    /// Of `CREATE VIEW`.
    View {
        /// The text of its query.
        query: String,
    },
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
}
