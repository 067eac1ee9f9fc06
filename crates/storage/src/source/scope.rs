//! Coordinates that a group takes from the groups above it.
//!
//! A dimension that has no array of its name in a group has the labels of the nearest group above that has an array
//! of this name, if this array is along that dimension only and of the same length. An array of that name of another
//! shape hides those above it: it is of another dimension.
//!
//! # Source
//! CF conventions 1.8, 2.7 "Groups"; xarray, `DataTree`, "coordinate inheritance".

use crate::source::found::Arrays;
use crate::source::variables::dims_of;
use std::collections::BTreeMap;

/// The dimensions of a group whose labels are not found yet.
pub(crate) struct Scope {
    /// Lengths by name.
    dims: BTreeMap<String, u64>,
}

/// The groups above a group, the nearest one first. The last one is the root, unless the group is the root itself.
pub(crate) fn above(group: &str) -> impl Iterator<Item = &str> {
    let parent = |of: &str| of.rfind('/').unwrap_or(0);
    let first = (!group.is_empty()).then(|| &group[..parent(group)]);
    std::iter::successors(first, move |&at| (!at.is_empty()).then(|| &at[..parent(at)]))
}

impl Scope {
    /// The dimensions without an array of their name.
    pub(crate) fn of(arrays: &Arrays) -> Scope {
        let all = arrays.values().flat_map(dims_of);
        let named = all.filter_map(|(name, len)| Some((name?.to_string(), len)));
        Scope { dims: named.filter(|(name, _)| !arrays.contains_key(name)).collect() }
    }

    /// True if nothing is left to be found.
    pub(crate) fn is_complete(&self) -> bool {
        self.dims.is_empty()
    }

    /// Names of the dimensions that are left.
    pub(crate) fn names(&self) -> Vec<String> {
        self.dims.keys().cloned().collect()
    }

    /// Moves the coordinates that the arrays of a group above have for these dimensions to the arrays of the group.
    pub(crate) fn take(&mut self, mut above: Arrays, arrays: &mut Arrays) {
        self.dims.retain(|name, len| {
            let Some(node) = above.remove(name) else { return true };
            let is_label = match dims_of(&node).as_slice() {
                [(Some(dim), n)] => **dim == **name && *n == *len,
                // Labels whose shape is unknown are no positions: their error is reported where they are used.
                dims => dims.is_empty() && node.is_err(),
            };
            if is_label {
                arrays.insert(name.clone(), node);
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::above;

    #[test]
    fn groups_above_end_with_the_root() {
        let all = |group| above(group).collect::<Vec<_>>();
        assert_eq!(all("a/b/c"), ["a/b", "a", ""]);
        assert_eq!(all("a"), [""]);
        assert!(all("").is_empty());
    }
}
