//! The variables of a file by name, and their readers: files have thousands. The order of their dimensions.

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

/// The axis of `own` for each of `dims`, if these are the same dimensions in another order. All have names, and no two
/// the same one.
pub(super) fn order_of(own: &[Option<Arc<str>>], dims: &[Option<Arc<str>>]) -> Option<Vec<usize>> {
    if own == dims || own.len() != dims.len() {
        return None;
    }
    let axis = |dim: &Option<Arc<str>>| own.iter().position(|d| d.is_some() && d == dim);
    let order = dims.iter().map(axis).collect::<Option<Vec<_>>>()?;
    // Between (x, x, y) and (x, y, x) the two axes called x cannot be matched.
    (0..own.len()).all(|axis| order.contains(&axis)).then_some(order)
}

/// Describes a variable with its dimensions in the order of `dims`, if it has the same ones.
pub(super) fn turn(v: &mut Variable, dims: &[Option<Arc<str>>]) {
    let Some(order) = order_of(&v.dims, dims) else { return };
    v.source.shape = order.iter().map(|&axis| v.source.shape[axis]).collect();
    v.source.grid.axes = order.iter().map(|&axis| v.source.grid.axes[axis]).collect();
    v.dims = dims.to_vec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_same_names() {
        let order = |own: &[&str], dims: &[&str]| {
            // An empty name means that the dimension has no name.
            let named = |all: &[&str]| -> Vec<Option<Arc<str>>> {
                all.iter().map(|name| (!name.is_empty()).then(|| Arc::from(*name))).collect()
            };
            order_of(&named(own), &named(dims))
        };
        assert_eq!(order(&["z", "x", "y"], &["x", "y", "z"]), Some(vec![1, 2, 0]));
        for (own, dims) in [
            (["x", "y", "z"], ["x", "y", "z"]),
            (["x", "x", "y"], ["x", "y", "x"]),
            (["x", "y", "z"], ["y", "x", "x"]),
            (["x", "y", "z"], ["y", "x", "w"]),
            (["x", "y", ""], ["y", "x", ""]),
        ] {
            assert_eq!(order(&own, &dims), None, "{own:?} {dims:?}");
        }
        assert_eq!(order(&["x"], &["x", "y"]), None);
    }
}
