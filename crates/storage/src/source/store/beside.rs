//! Objects beside an object.

use super::{Store, StoreRoot};

impl Store {
    /// The last part of the key of a store that is one object; `None` if it is a local file.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.kind {
            StoreRoot::Local(_) => None,
            StoreRoot::Object { prefix, .. } => prefix.rsplit('/').next(),
        }
    }

    /// The object with another last part of its key. What is read of it is not noted: it does not belong to a dataset.
    pub(crate) fn beside(&self, name: &str) -> Option<Store> {
        let StoreRoot::Object { client, prefix } = &self.kind else { return None };
        let other = |path: &str| match path.rsplit_once('/') {
            Some((directory, _)) => format!("{directory}/{name}"),
            None => name.to_string(),
        };
        let kind = StoreRoot::Object { client: client.clone(), prefix: other(prefix) };
        let display = other(&self.display).into();
        Some(Store { kind, display, seen: None, versions: None, manifest: None, ..self.clone() })
    }
}
