//! The variables of a file by name, and their readers: files have thousands.

use super::combine::Part;
use crate::source::reader::ArrayReader;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tessera_planner::catalog::{SourceRef, Variable};

/// A file with its variables by name.
pub(super) struct Index<'a> {
    pub(super) part: &'a Part,
    variables: BTreeMap<&'a str, &'a Variable>,
    readers: HashMap<&'a SourceRef, &'a Arc<ArrayReader>>,
}

impl<'a> Index<'a> {
    pub(super) fn of(part: &'a Part) -> Self {
        let dataset = &part.opened.dataset;
        let (mut variables, mut readers) = (BTreeMap::new(), HashMap::new());
        for v in dataset.variables.iter().chain(&dataset.auxiliary) {
            variables.entry(&*v.name).or_insert(v);
        }
        for reader in &part.opened.readers {
            readers.entry(reader.source()).or_insert(reader);
        }
        Index { part, variables, readers }
    }

    /// The variable of that name.
    pub(super) fn variable(&self, name: &str) -> Option<&'a Variable> {
        self.variables.get(name).copied()
    }

    /// The reader of an array.
    pub(super) fn reader(&self, source: &SourceRef) -> Option<&'a Arc<ArrayReader>> {
        self.readers.get(source).copied()
    }

    /// The readers of a variable and of its mask.
    pub(super) fn readers(&self, v: &Variable) -> Vec<Arc<ArrayReader>> {
        let sources = std::iter::once(&v.source).chain(v.decode.valid.as_deref());
        sources.filter_map(|source| self.reader(source).cloned()).collect()
    }
}
