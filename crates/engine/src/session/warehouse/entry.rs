//! The entries of the catalog: a name and what it stands for.

use serde::{Deserialize, Serialize};
use tessera_storage::manifest::ManifestRef;

/// A name of the catalog and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Version of this file's format.
    pub(super) format_version: u32,
    /// The name as it was written.
    pub(crate) name: String,
    /// What it stands for.
    #[serde(flatten)]
    pub(crate) definition: Definition,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Definition {
    /// Of `CREATE EXTERNAL TABLE`.
    External {
        /// `zarr`, `npy`, ….
        stored_as: String,
        /// The URL or path as it was written.
        location: String,
        /// Options as they were written.
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
    /// In messages and `SHOW TENSORS`.
    pub(in crate::session) fn kind(&self) -> &'static str {
        match self {
            Definition::External { .. } => "table",
            Definition::Tensor { .. } => "tensor",
            Definition::View { .. } => "view",
        }
    }

    /// Its cells in the warehouse, from the root, if it has some there.
    pub(crate) fn data(&self) -> Option<&str> {
        match self {
            Definition::Tensor { data, .. } => Some(data),
            Definition::External { .. } | Definition::View { .. } => None,
        }
    }
}
