//! Labels of several files: compared, sorted and joined.

use super::combine::Part;
use crate::source::coords::is_grib;
use crate::source::error::SourceError;
use crate::source::{Opened, variables};
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::{Coord, CoordValues, Dataset, Unreadable, Variable};
use tessera_planner::dtype::DType;

/// True if the labels are the same, floats within `tolerance`.
pub(super) fn are_same(a: &CoordValues, b: &CoordValues, tolerance: f64) -> bool {
    first_difference(a, b, tolerance).is_none()
}

/// The first position at which labels differ; the shorter length if one has more.
pub(super) fn first_difference(a: &CoordValues, b: &CoordValues, tolerance: f64) -> Option<usize> {
    use CoordValues::*;
    let n = a.len().min(b.len());
    let at = match (a, b) {
        (Float(_, a), Float(_, b)) => {
            let is_near =
                |a: f64, b: f64| a == b || (a - b).abs() <= tolerance || (a.is_nan() && b.is_nan());
            (0..n).find(|&i| !is_near(a[i], b[i]))
        }
        (Int(d, a), Int(e, b)) => {
            (0..n).find(|&i| CoordValues::integer(*d, a[i]) != CoordValues::integer(*e, b[i]))
        }
        (Time(c, a), Time(d, b)) if c == d => (0..n).find(|&i| a[i] != b[i]),
        (Text(a), Text(b)) => a.first_difference(b),
        (Int(..), Float(..)) | (Float(..), Int(..)) => {
            let (a, b) = (floats(a), floats(b));
            return first_difference(&a, &b, tolerance);
        }
        (Unreadable(a), Unreadable(b)) if a == b => None,
        _ => Some(0),
    };
    at.or_else(|| (a.len() != b.len()).then_some(n))
}

fn floats(values: &CoordValues) -> CoordValues {
    match values {
        CoordValues::Int(d, v) => {
            let number = |v: &i64| CoordValues::integer(*d, *v) as f64;
            CoordValues::Float(DType::Float64, v.iter().map(number).collect())
        }
        other => other.clone(),
    }
}

/// Compares label `i` of `a` with label `j` of `b`; `None` if they cannot be ordered.
pub(super) fn compare(a: &CoordValues, i: usize, b: &CoordValues, j: usize) -> Option<Ordering> {
    use CoordValues::*;
    let integer = CoordValues::integer;
    match (a, b) {
        (Float(_, a), Float(_, b)) => a[i].partial_cmp(&b[j]),
        (Int(d, a), Int(e, b)) => Some(integer(*d, a[i]).cmp(&integer(*e, b[j]))),
        (Int(d, a), Float(_, b)) => (integer(*d, a[i]) as f64).partial_cmp(&b[j]),
        (Float(_, a), Int(e, b)) => a[i].partial_cmp(&(integer(*e, b[j]) as f64)),
        (Time(c, a), Time(d, b)) if c == d => Some(a[i].cmp(&b[j])),
        (Text(a), Text(b)) => Some(a[i].cmp(&b[j])),
        _ => None,
    }
}

/// True if no label is after the next one.
pub(super) fn is_in_order(values: &CoordValues, is_falling: bool) -> bool {
    let wrong = if is_falling { Ordering::Less } else { Ordering::Greater };
    (1..values.len()).all(|i| compare(values, i - 1, values, i).is_some_and(|o| o != wrong))
}

/// Labels one after another, of their common type; `None` if they are of different kinds, or cannot be read.
pub(super) fn joined(parts: &[&CoordValues]) -> Option<CoordValues> {
    let is_read = !parts.is_empty() && parts.iter().all(|part| part.unreadable().is_none());
    is_read.then(|| CoordValues::joined(parts).ok()).flatten()
}

/// Makes the scalar `dim` of a file its label along a new dimension of that name, as xarray's `concat` does.
pub(super) fn label_by_scalar(opened: &mut Opened, dim: &str) {
    let Some(values) = opened.label.take() else { return };
    opened.unsupported.remove(dim);
    let dataset = &mut opened.dataset;
    dataset.unreadable.retain(|u| *u.name != *dim);
    dataset.scalars.retain(|text| *text.name != *dim);
    let is = |v: &Variable| *v.name == *dim;
    let attrs = dataset.variables.iter().chain(&dataset.auxiliary).find(|v| is(v));
    let attrs = attrs.map(|v| v.attrs.clone()).unwrap_or_default();
    dataset.variables.retain(|v| !is(v));
    dataset.auxiliary.retain(|v| !is(v));
    for v in dataset.variables.iter_mut().filter(|v| is_grib(&v.attrs)) {
        // These attributes hold the label of one file only.
        v.attrs.remove(dim);
        if dim == "time" {
            v.attrs.remove("valid_time");
        }
    }
    let name: Arc<str> = dim.into();
    dataset.coords.push(Arc::new(Coord { dim: name.clone(), name, values, attrs }));
    dataset.coords.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Adds the texts of several files to the dataset `out` that joins them along `dim`, which already has the coordinates
/// that it keeps. Texts without a dimension are a coordinate of a dimension that is new; else they must be the same.
///
/// Texts that are not in all files, or differ, cannot be read: those of one file are not those of the others.
pub(super) fn join_texts(parts: &[Part], (dim, is_new): (&str, bool), out: &mut Dataset) {
    for (i, part) in parts.iter().enumerate() {
        let dataset = &part.opened.dataset;
        let beside = dataset.coords.iter().filter(|c| c.name != c.dim);
        for text in beside.chain(&dataset.scalars) {
            let is_known = |other: &Arc<Coord>| other.name == text.name;
            let is_done = out.coords.iter().chain(&out.scalars).any(is_known)
                || out.unreadable.iter().any(|u| u.name == text.name);
            if is_done || !matches!(text.values, CoordValues::Text(_)) {
                continue;
            }
            let of = |p: &Part| p.opened.dataset.scalars.iter().find(|c| is_known(c)).cloned();
            let all: Vec<Arc<Coord>> = parts.iter().filter_map(of).collect();
            let values: Vec<&CoordValues> = all.iter().map(|text| &text.values).collect();
            let is_whole = all.len() == parts.len();
            let is_same = values.windows(2).all(|pair| pair[0] == pair[1]);
            match joined(&values) {
                Some(values) if is_whole && is_new => out.coords.push(Arc::new(Coord {
                    dim: dim.into(),
                    values,
                    ..Coord::clone(text)
                })),
                Some(_) if is_whole && is_same => out.scalars.push(text.clone()),
                _ => out.unreadable.push(Arc::new(differing(parts, i, text))),
            }
        }
    }
    out.coords.sort_by(|a, b| a.name.cmp(&b.name));
    out.scalars.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Adds the coordinates whose names are new.
pub(super) fn add_missing(known: &mut Vec<Arc<Coord>>, more: Vec<Arc<Coord>>) {
    let new = more.into_iter().filter(|c| !known.iter().any(|k| k.name == c.name));
    let new: Vec<_> = new.collect();
    known.extend(new);
}

/// The texts `text` of the file `i`, as those of no dataset.
fn differing(parts: &[Part], i: usize, text: &Coord) -> Unreadable {
    let of = |p: &Part| {
        let dataset = &p.opened.dataset;
        dataset.coords.iter().chain(&dataset.scalars).find(|c| c.name == text.name).cloned()
    };
    let is_other = |p: &&Part| of(p).is_none_or(|c| c.dim != text.dim || c.values != text.values);
    let (here, other) =
        (&parts[i].name, parts.iter().find(is_other).map_or("", |p| p.name.as_str()));
    let reason = format!("its texts in `{here}` are not those of `{other}`");
    let dims = match text.dim == text.name {
        true => Vec::new(),
        false => vec![(Some(text.dim.clone()), text.values.len() as u64)],
    };
    variables::unreadable(
        &text.name,
        &SourceError::NoLabels { array: text.name.to_string(), reason },
        Some(dims.as_slice()),
    )
}

/// Checks that durations (xarray's `timedelta64`) have the same units in all files: otherwise their numbers are not
/// comparable.
pub(super) fn check_spans(parts: &[Part]) -> Result<(), SourceError> {
    let mut known: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for part in parts {
        let d = &part.opened.dataset;
        let coords = d.coords.iter().chain(&d.scalars).map(|c| (&*c.name, &c.attrs));
        let variables = d.variables.iter().chain(&d.auxiliary).map(|v| (&*v.name, &v.attrs));
        for (name, attrs) in coords.chain(variables) {
            let text = |key: &str| attrs.get(key).and_then(Value::as_str);
            let is_span = text("dtype").is_some_and(|dtype| dtype.starts_with("timedelta64"));
            let Some(units) = text("units").filter(|_| is_span) else { continue };
            let (first, file) = *known.entry(name).or_insert((units, part.name.as_str()));
            if first != units {
                let reason = format!(
                    "`{name}` is in {first} in `{file}` and in {units} in `{}`; store it with the same units in all \
                     files, in xarray by `encoding={{'{name}': {{'units': '{first}'}}}}`",
                    part.name
                );
                return Err(SourceError::Combine { reason });
            }
        }
    }
    Ok(())
}

/// The coordinates that label their own dimensions.
pub(super) fn index_coords(d: &Dataset) -> impl Iterator<Item = &Arc<Coord>> {
    d.coords.iter().filter(|c| c.name == c.dim)
}

pub(super) fn names(d: &Dataset) -> impl Iterator<Item = &Arc<str>> {
    d.variables.iter().map(|v| &v.name)
}

/// Lengths of the dimensions of a dataset.
pub(super) fn lengths(d: &Dataset) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for v in d.variables.iter().chain(&d.auxiliary) {
        let dims = v.dims.iter().zip(&v.source.shape);
        out.extend(dims.filter_map(|(d, n)| Some((d.as_ref()?.to_string(), *n))));
    }
    for c in &d.coords {
        out.insert(c.dim.to_string(), c.values.len() as u64);
    }
    out
}

/// `[time: 3, lat: 4]`.
pub(super) fn shown(v: &Variable) -> String {
    let dims = v.dims.iter().zip(&v.source.shape);
    let dims: Vec<String> =
        dims.map(|(d, n)| format!("{}: {n}", d.as_deref().unwrap_or("?"))).collect();
    format!("[{}]", dims.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_sorted_in_one_direction() {
        let of = |v: &[i64]| CoordValues::Int(DType::Int64, v.into());
        assert!(is_in_order(&of(&[1, 2, 2]), false) && is_in_order(&of(&[7]), true));
        assert!(is_in_order(&of(&[3, 1]), true) && !is_in_order(&of(&[3, 1]), false));
        assert!(!is_in_order(&of(&[4, 2, 3]), false) && !is_in_order(&of(&[4, 2, 3]), true));
        let wide = CoordValues::Int(DType::UInt64, [1, i64::MAX, i64::MIN, -1].into());
        assert!(is_in_order(&wide, false) && !is_in_order(&wide, true));
        assert_eq!(first_difference(&wide, &of(&[1, i64::MAX, i64::MIN, -1]), 0.0), Some(2));
    }
}
