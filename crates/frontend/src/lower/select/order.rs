//! Order and distances of labels.

use tessera_planner::catalog::{CoordValues, NAT};
use tessera_planner::dtype::DType;

use super::Label;

/// The label at `i` as a number, for distances and order.
pub(super) fn place(values: &CoordValues, i: usize) -> Option<f64> {
    match values {
        CoordValues::Time(_, v) if v[i] == NAT => Some(f64::NAN),
        CoordValues::Int(d, v) => Some(CoordValues::integer(*d, v[i]) as f64),
        CoordValues::Time(_, v) => Some(v[i] as f64),
        CoordValues::Float(_, v) => Some(v[i]),
        CoordValues::Text(_) | CoordValues::Unreadable(_) => None,
    }
}

/// The distances of all labels from `label`; exact for integers and times.
pub(super) fn distances(values: &CoordValues, label: &Label) -> Option<Vec<f64>> {
    let exact = |x: i128, y: i128| y.saturating_sub(x).unsigned_abs() as f64;
    match (values, label) {
        (CoordValues::Int(d, v), Label::Integer(x)) => {
            Some(v.iter().map(|y| exact(*x, CoordValues::integer(*d, *y))).collect())
        }
        (CoordValues::Time(_, v), Label::Period(start, ..)) => {
            // A missing label is never nearest.
            let far = |t: &i64| match *t {
                NAT => f64::NAN,
                t => exact(i128::from(*start), i128::from(t)),
            };
            Some(v.iter().map(far).collect())
        }
        (CoordValues::Text(_) | CoordValues::Unreadable(_), _) => None,
        (_, Label::Number(x)) => {
            (0..values.len()).map(|i| place(values, i).map(|y| (y - x).abs())).collect()
        }
        _ => None,
    }
}

/// True if the label at `i` is greater than the one at `j`.
pub(super) fn is_greater(values: &CoordValues, i: usize, j: usize) -> bool {
    match values {
        CoordValues::Int(d, v) => CoordValues::integer(*d, v[i]) > CoordValues::integer(*d, v[j]),
        CoordValues::Time(_, v) => v[i] > v[j],
        values => place(values, i) > place(values, j),
    }
}

/// The order of a coordinate's labels.
pub(super) enum Direction {
    Up,
    Down,
    Neither,
}

pub(super) fn direction(values: &CoordValues) -> Direction {
    fn of<T: PartialOrd>(v: &[T]) -> Direction {
        if v.windows(2).all(|w| w[0] <= w[1]) {
            Direction::Up
        } else if v.windows(2).all(|w| w[0] >= w[1]) {
            Direction::Down
        } else {
            Direction::Neither
        }
    }
    match values {
        // A missing time, like NaN, has no order.
        CoordValues::Time(_, v) if v.contains(&NAT) => Direction::Neither,
        CoordValues::Int(DType::UInt64, v) => {
            of(&v.iter().map(|label| *label as u64).collect::<Vec<_>>())
        }
        CoordValues::Int(_, v) | CoordValues::Time(_, v) => of(v),
        CoordValues::Float(_, v) => of(v),
        CoordValues::Text(v) => of(v),
        CoordValues::Unreadable(_) => Direction::Neither,
    }
}

/// True if the label at `i` is less than (all of) `label`.
pub(super) fn before(values: &CoordValues, i: usize, label: &Label) -> bool {
    match (values, label) {
        (CoordValues::Int(d, v), Label::Integer(x)) => CoordValues::integer(*d, v[i]) < *x,
        (CoordValues::Int(d, v), Label::Number(x)) => (CoordValues::integer(*d, v[i]) as f64) < *x,
        (CoordValues::Float(_, v), Label::Number(x)) => v[i] < *x,
        (CoordValues::Time(_, v), Label::Period(start, ..)) => v[i] < *start,
        (CoordValues::Text(v), Label::Text(x)) => v[i] < *x,
        _ => false,
    }
}

/// True if the label at `i` is greater than (all of) `label`.
pub(super) fn after(values: &CoordValues, i: usize, label: &Label) -> bool {
    match (values, label) {
        (CoordValues::Int(d, v), Label::Integer(x)) => CoordValues::integer(*d, v[i]) > *x,
        (CoordValues::Int(d, v), Label::Number(x)) => (CoordValues::integer(*d, v[i]) as f64) > *x,
        (CoordValues::Float(_, v), Label::Number(x)) => v[i] > *x,
        (CoordValues::Time(_, v), Label::Period(_, end, _)) => v[i] >= *end,
        (CoordValues::Text(v), Label::Text(x)) => v[i] > *x,
        _ => false,
    }
}
