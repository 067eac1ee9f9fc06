//! Decides if labels continue the labels of a dimension that grows.

use crate::sink::SinkError;
use std::cmp::Ordering;
use tessera_planner::catalog::{Coord, CoordValues};

/// Checks the new labels `new` of the dimension of `coord`, and returns them. `place` names the growing target: `the
/// store`.
///
/// Labels that rise must go on rising, labels that fall must go on falling, and a single label must not come again.
/// Texts, and labels in no order, may be any.
///
/// # Errors
/// [`SinkError::Names`] if there are no new labels, or if they do not continue the old ones.
pub fn check_labels(
    place: &str,
    coord: &Coord,
    new: Option<CoordValues>,
) -> Result<CoordValues, SinkError> {
    let (name, dim, old) = (&coord.name, &coord.dim, &coord.values);
    let Some(new) = new else {
        return Err(SinkError::Names {
            reason: format!("the results have no labels `{name}` along `{dim}`, {place} has"),
            hint: "select from a dataset that has them, or `assign_coords`".into(),
        });
    };
    if continues(old, &new) {
        return Ok(new);
    }
    Err(SinkError::Names {
        reason: format!(
            "{place} ends at {} along `{dim}`, and the results begin at {}",
            old.display(old.len() - 1),
            new.display(0)
        ),
        hint: "append what comes after: WHERE, or a slice from there on".into(),
    })
}

fn continues(old: &CoordValues, new: &CoordValues) -> bool {
    if old.is_empty() || new.is_empty() {
        return true;
    }
    let last = old.len() - 1;
    if last == 0 {
        return (0..new.len()).all(|i| compare((old, 0), (new, i)) != Some(Ordering::Equal));
    }
    let goes = |labels: &CoordValues, way: Ordering| {
        (1..labels.len()).all(|i| compare((labels, i - 1), (labels, i)) == Some(way))
    };
    [Ordering::Less, Ordering::Greater].into_iter().all(|way| {
        !goes(old, way) || (goes(new, way) && compare((old, last), (new, 0)) == Some(way))
    })
}

/// The order of two labels; `None` for texts, NaN and labels of kinds that have no common order.
fn compare((a, i): (&CoordValues, usize), (b, j): (&CoordValues, usize)) -> Option<Ordering> {
    use CoordValues::{Float, Int, Time};
    let integer = CoordValues::integer;
    match (a, b) {
        (Int(d, a), Int(e, b)) => Some(integer(*d, a[i]).cmp(&integer(*e, b[j]))),
        (Time(_, a), Time(_, b)) => Some(a[i].cmp(&b[j])),
        (Float(_, a), Float(_, b)) => a[i].partial_cmp(&b[j]),
        (Int(d, a), Float(_, b)) => (integer(*d, a[i]) as f64).partial_cmp(&b[j]),
        (Float(_, a), Int(e, b)) => a[i].partial_cmp(&(integer(*e, b[j]) as f64)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use tessera_planner::dtype::DType;

    fn ints(labels: &[i64]) -> CoordValues {
        CoordValues::Int(DType::Int64, labels.into())
    }

    fn wide(labels: &[u64]) -> CoordValues {
        CoordValues::Int(DType::UInt64, labels.iter().map(|label| label.cast_signed()).collect())
    }

    fn floats(labels: &[f64]) -> CoordValues {
        CoordValues::Float(DType::Float64, labels.into())
    }

    fn texts(labels: &[&str]) -> CoordValues {
        CoordValues::Text(labels.iter().map(|label| label.to_string()).collect())
    }

    fn check(old: &CoordValues, new: Option<CoordValues>) -> Result<CoordValues, SinkError> {
        let (name, values) = ("day".into(), old.clone());
        let coord = Coord { name, dim: "day".into(), values, attrs: Default::default() };
        check_labels("the store", &coord, new)
    }

    #[test]
    fn labels_go_on_as_they_began() {
        for (old, new, is_fit) in [
            (ints(&[1, 2]), ints(&[3]), true),
            (ints(&[1, 2]), ints(&[3, 7]), true),
            (ints(&[1, 2]), ints(&[2]), false),
            (ints(&[1, 2]), ints(&[1, 2]), false),
            (ints(&[1, 2]), ints(&[4, 3]), false),
            (ints(&[1, 2]), ints(&[3, 3]), false),
            (ints(&[2, 1]), ints(&[0, -1]), true),
            (ints(&[2, 1]), ints(&[1]), false),
            (ints(&[2, 1]), ints(&[3, 4]), false),
            (ints(&[5]), ints(&[4, 6, 1]), true),
            (ints(&[5]), ints(&[4, 5]), false),
            (ints(&[1, 3, 2]), ints(&[3, 1]), true),
            (ints(&[1, 2]), ints(&[]), true),
            (ints(&[]), ints(&[2, 1]), true),
            // Neighbours that are equal as floats.
            (ints(&[i64::MAX - 2, i64::MAX - 1]), ints(&[i64::MAX]), true),
            (ints(&[i64::MAX - 2, i64::MAX - 1]), ints(&[i64::MAX - 1]), false),
            (floats(&[0.5, 1.5]), ints(&[2, 3]), true),
            (ints(&[1, 2]), floats(&[1.5]), false),
            (ints(&[1, 2]), floats(&[2.5]), true),
            (floats(&[1.0, 2.0]), floats(&[f64::NAN]), false),
            (wide(&[1, 1 << 63]), wide(&[u64::MAX]), true),
            (wide(&[1, 1 << 63]), ints(&[i64::MAX]), false),
            (texts(&["a", "b"]), texts(&["a"]), true),
            (texts(&["a"]), texts(&["a"]), true),
            (ints(&[1, 2]), texts(&["a"]), false),
        ] {
            assert_eq!(check(&old, Some(new.clone())).is_ok(), is_fit, "{old:?} {new:?}");
        }
        let told = check(&ints(&[1, 2]), Some(ints(&[0, 1]))).unwrap_err().to_string();
        assert_eq!(told, "the store ends at 2 along `day`, and the results begin at 0");
        let told = check(&ints(&[1, 2]), None).unwrap_err().to_string();
        assert_eq!(told, "the results have no labels `day` along `day`, the store has");
    }
}
