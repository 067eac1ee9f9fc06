//! Collects the manifest of a store: each object is listed when it is encoded.

use super::document::ArrayDocument;
use crate::lock;
use crate::manifest::{Chunks, Manifest, ManifestRef, Seal, Stored};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The objects of each array, by its name.
#[derive(Debug, Default)]
pub(super) struct Listed(Mutex<BTreeMap<String, Vec<Stored>>>);

impl Listed {
    /// Adds objects of an array.
    pub(super) fn add(&self, array: &str, stored: impl IntoIterator<Item = Stored>) {
        lock(&self.0).entry(array.into()).or_default().extend(stored);
    }

    /// Returns the manifest of a store of these arrays and documents: the reference and the file. Objects of other
    /// arrays, which were removed, are not listed.
    ///
    /// # Errors
    /// A store without arrays.
    pub(super) fn manifest(
        &self,
        arrays: &[&ArrayDocument],
        documents: &[(String, Vec<u8>)],
    ) -> Result<(ManifestRef, Vec<u8>), String> {
        let mut listed = std::mem::take(&mut *lock(&self.0));
        let chunks = arrays.iter().map(|array| {
            let stored = listed.remove(&array.name).unwrap_or_default();
            (array.name.clone(), Arc::new(Chunks::new(array.grid(), stored)))
        });
        let manifest = Manifest {
            arrays: chunks.collect(),
            documents: documents.iter().map(|(key, text)| (key.clone(), Seal::of(text))).collect(),
        };
        let contents = manifest.encode()?;
        let first = arrays.first().ok_or("it has no array")?;
        Ok((ManifestRef::new(&first.name, &contents), contents))
    }
}
