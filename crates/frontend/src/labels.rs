//! Labels of a query's result tensors: names, dimensions, coordinates, attributes.

use std::sync::Arc;

use tessera_planner::catalog::{
    Attrs, Coord, CoordValues, DimLabel, NoLabels, TextColumn, Texts, Unreadable,
};
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

/// Concatenates coordinates. Numbers get their common type in NumPy, as in `xarray.concat`.
///
/// # Errors
/// The types of two parts that have no common one, such as texts and numbers, or times of two calendars.
pub(crate) fn concat(parts: &[&CoordValues]) -> Result<CoordValues, [String; 2]> {
    if let Some(of) = parts.iter().find_map(|part| part.unreadable()) {
        // A new `Arc` makes the labels differ from those of any other tensor, as their values are unknown.
        let of = Arc::new(Unreadable::clone(of));
        let len = parts.iter().map(|part| part.len()).sum();
        return Ok(CoordValues::Unreadable(NoLabels::new(of, len)));
    }
    let whole =
        || -> Arc<[i64]> { parts.iter().flat_map(|part| whole_numbers(part)).copied().collect() };
    Ok(match common_type(parts)? {
        None => {
            let texts = parts.iter().filter_map(|part| match part {
                CoordValues::Text(texts) => Some(texts),
                _ => None,
            });
            CoordValues::Text(Texts::joined(&texts.collect::<Vec<_>>()))
        }
        Some(DType::Datetime(calendar)) => CoordValues::Time(calendar, whole()),
        Some(dtype) if dtype.is_float() => {
            CoordValues::Float(dtype, parts.iter().flat_map(|part| floats(part)).collect())
        }
        Some(dtype) => CoordValues::Int(dtype, whole()),
    })
}

/// The common type of labels, as `numpy.result_type`; `None` for texts.
fn common_type(parts: &[&CoordValues]) -> Result<Option<DType>, [String; 2]> {
    let Some(first) = parts.first() else { return Ok(None) };
    let is_odd = |part: &&&CoordValues| match (first.dtype(), part.dtype()) {
        (Some(a), Some(b)) => a.promote(b).is_none(),
        (a, b) => a != b,
    };
    if let Some(odd) = parts.iter().find(is_odd) {
        let name = |of: &CoordValues| of.dtype().map_or_else(|| "text".into(), DType::name);
        return Err([name(first), name(odd)]);
    }
    // NumPy's order: int16, uint16 and float32 are float32, though int16 and uint16 are int32.
    let types = || parts.iter().filter_map(|part| part.dtype());
    let ordered = types().filter(|d| d.is_float()).chain(types().filter(|d| !d.is_float()));
    Ok(ordered.reduce(|a, b| a.promote(b).unwrap_or(a)))
}

/// Integers and times, as they are stored.
fn whole_numbers(labels: &CoordValues) -> &[i64] {
    match labels {
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => v,
        _ => &[],
    }
}

/// Numbers as floats.
fn floats(labels: &CoordValues) -> Vec<f64> {
    match labels {
        CoordValues::Int(d, v) => v.iter().map(|x| CoordValues::integer(*d, *x) as f64).collect(),
        CoordValues::Float(_, v) => v.to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_planner::dtype::Calendar;
    use tessera_planner::dtype::DType::*;

    /// The types and values of `xarray.concat`.
    #[test]
    fn concatenated_labels_have_the_common_type() {
        let int = |d, v: &[i64]| CoordValues::Int(d, v.into());
        let float = |d, v: &[f64]| CoordValues::Float(d, v.into());
        let wide = (2u64.pow(63) + 5) as i64;
        let tenth = f64::from(0.1f32);
        for (parts, want) in [
            (vec![int(Int32, &[1, 2]), int(Int64, &[1 << 40])], int(Int64, &[1, 2, 1 << 40])),
            (vec![int(UInt64, &[wide]), int(UInt32, &[1])], int(UInt64, &[wide, 1])),
            (
                vec![int(UInt64, &[wide]), int(Int64, &[-1])],
                float(Float64, &[9_223_372_036_854_775_808.0, -1.0]),
            ),
            (vec![float(Float32, &[tenth]), float(Float64, &[0.1])], float(Float64, &[tenth, 0.1])),
            (vec![int(Int32, &[1, 2]), float(Float64, &[0.5])], float(Float64, &[1.0, 2.0, 0.5])),
            (vec![int(Int16, &[1]), float(Float32, &[0.5])], float(Float32, &[1.0, 0.5])),
            (vec![int(Int32, &[1]), float(Float32, &[tenth])], float(Float64, &[1.0, tenth])),
            (
                vec![int(Int16, &[1]), int(UInt16, &[2]), float(Float32, &[0.5])],
                float(Float32, &[1.0, 2.0, 0.5]),
            ),
        ] {
            assert_eq!(concat(&parts.iter().collect::<Vec<_>>()), Ok(want), "{parts:?}");
        }
    }

    #[test]
    fn labels_without_a_common_type_are_named() {
        let texts = CoordValues::Text(["a".to_string()].into());
        let one = CoordValues::Int(Int32, [1].into());
        let time = CoordValues::Time(Calendar::Standard, [1].into());
        let other = CoordValues::Time(Calendar::NoLeap, [1].into());
        for (parts, want) in [
            ([&texts, &one], ["text", "int32"]),
            ([&one, &texts], ["int32", "text"]),
            ([&one, &time], ["int32", "datetime64[us]"]),
            ([&time, &other], ["datetime64[us]", "datetime64[us, noleap]"]),
        ] {
            assert_eq!(concat(&parts), Err(want.map(String::from)));
        }
        assert_eq!(concat(&[&texts, &texts]).map(|labels| labels.len()), Ok(2));
    }
}
