//! Labels of a query's result tensors: names, dimensions, coordinates, attributes.

use std::sync::Arc;

use tessera_planner::catalog::{Attrs, Coord, CoordValues, DimLabel, TextColumn};
use tessera_planner::dtype::DType;

/// The labels of one result.
#[derive(Debug, Clone, PartialEq)]
pub struct Labels {
    /// The item's name: its alias, else the variable's own name, else its text, else `v0`, `v1`, … by position.
    pub name: String,
    /// False if the name is derived from the item's text; `CREATE TENSOR` then uses its own name.
    pub named: bool,
    /// One label per dimension.
    pub dims: Vec<DimLabel>,
    /// Lengths.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: DType,
    /// True if cells can be masked.
    pub nullable: bool,
    /// Attributes. Names and subscripts preserve them, arithmetic drops them, as in xarray.
    pub attrs: Attrs,
    /// True if it is a coordinate of other results without being the labels of a dimension, such as `lat(y, x)`. Names
    /// and subscripts preserve this as they preserve attributes.
    pub is_coordinate: bool,
    /// The parts that all results of the block share.
    pub dataset: Arc<DatasetLabels>,
}

/// The parts that the results of a block share, as a dataset.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DatasetLabels {
    /// Attributes: those of the first relation that the block reads.
    pub attrs: Arc<Attrs>,
    /// Variables of texts, of a block that is all of a dataset.
    pub texts: Vec<TextColumn>,
}

impl DatasetLabels {
    /// A dataset of tensors alone.
    pub fn of_tensors(attrs: Attrs) -> Arc<Self> {
        Arc::new(DatasetLabels { attrs: Arc::new(attrs), texts: Vec::new() })
    }
}

impl Labels {
    /// The name of a dimension; `dim_0`, … for unnamed ones.
    pub fn dim_name(&self, axis: usize) -> String {
        match self.dims.get(axis).and_then(|dim| dim.name.as_ref()) {
            Some(name) => name.to_string(),
            None => format!("dim_{axis}"),
        }
    }
}

/// Unique names of results for files and arrays of a store. The name of an item without its own is made of
/// the letters and digits of its text.
pub fn identifiers(outputs: &[Labels]) -> Vec<String> {
    let mut out: Vec<String> = Vec::with_capacity(outputs.len());
    for (at, labels) in outputs.iter().enumerate() {
        if labels.named {
            out.push(labels.name.clone());
            continue;
        }
        let mut words = Vec::new();
        for word in labels.name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            words.extend((!word.is_empty()).then_some(word));
        }
        let text: String = words.join("_").chars().take(IDENTIFIER_MAX).collect();
        let text = text.trim_matches('_');
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let base = if starts_well { text.to_string() } else { format!("v{at}") };
        let mut name = base.clone();
        let mut number = 1;
        let is_taken = |name: &String, out: &[String]| {
            out.contains(name) || outputs.iter().any(|l| l.named && l.name == *name)
        };
        while is_taken(&name, &out) {
            number += 1;
            name = format!("{base}_{number}");
        }
        out.push(name);
    }
    out
}

/// Maximum characters of a name that is derived from a text.
const IDENTIFIER_MAX: usize = 60;

/// For each result of a block, true if another one has it as labels: see [`are_coordinates`].
pub fn coordinates(outputs: &[Labels]) -> Vec<bool> {
    are_coordinates(
        &outputs.iter().map(|l| (l.name.as_str(), l.dims.as_slice())).collect::<Vec<_>>(),
    )
}

/// For each item of a dataset, given by its name and dimensions, true if another item has it as labels: it lies along
/// the one dimension of its own name, and an item that is no coordinate has that dimension with the same labels.
/// Its labels are a column of tables and a coordinate of stores in any case, without the item.
pub fn are_coordinates(items: &[(&str, &[DimLabel])]) -> Vec<bool> {
    let own = |(name, dims): &(&str, &[DimLabel])| match dims {
        [dim] if dim.name.as_deref() == Some(*name) => {
            dim.coord.clone().filter(|coord| &*coord.name == *name)
        }
        _ => None,
    };
    let coords: Vec<_> = items.iter().map(own).collect();
    let is_carried = |coord: &Coord| {
        items.iter().zip(&coords).filter(|(_, own)| own.is_none()).any(|((_, dims), _)| {
            dims.iter().filter_map(|dim| dim.coord.as_deref()).any(|other| other == coord)
        })
    };
    coords.iter().map(|own| own.as_deref().is_some_and(is_carried)).collect()
}

/// The first position at which two coordinates differ, or `None` if they are equal. Numbers
/// compare by value and NaN equals NaN; texts, times and numbers differ from one another.
pub(crate) fn first_difference(a: &CoordValues, b: &CoordValues) -> Option<usize> {
    fn scan<T, U>(a: &[T], b: &[U], same: impl Fn(&T, &U) -> bool) -> Option<usize> {
        match a.iter().zip(b).position(|(x, y)| !same(x, y)) {
            None if a.len() != b.len() => Some(a.len().min(b.len())),
            found => found,
        }
    }
    let float = |x: &f64, y: &f64| x == y || (x.is_nan() && y.is_nan());
    match (a, b) {
        (CoordValues::Int(d, a), CoordValues::Int(e, b)) => {
            scan(a, b, |x, y| CoordValues::integer(*d, *x) == CoordValues::integer(*e, *y))
        }
        (CoordValues::Float(_, a), CoordValues::Float(_, b)) => scan(a, b, float),
        (CoordValues::Int(d, a), CoordValues::Float(_, b)) => {
            scan(a, b, |x, y| CoordValues::integer(*d, *x) as f64 == *y)
        }
        (CoordValues::Float(_, a), CoordValues::Int(d, b)) => {
            scan(a, b, |x, y| *x == CoordValues::integer(*d, *y) as f64)
        }
        (CoordValues::Time(c, a), CoordValues::Time(d, b)) if c == d => scan(a, b, |x, y| x == y),
        (CoordValues::Text(a), CoordValues::Text(b)) => a.first_difference(b),
        (CoordValues::Unreadable(a), CoordValues::Unreadable(b)) if a == b => None,
        _ => Some(0),
    }
}
