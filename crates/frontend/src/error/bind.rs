//! Faults in the meaning of a query: names, labels, types and shapes.

use tessera_planner::catalog::{Coord, Unreadable};

/// A fault found by binding or lowering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum BindError {
    #[error("{kind} `{name}` is ambiguous: it is {}", or(found))]
    AmbiguousName { kind: &'static str, name: String, found: Vec<String> },
    /// Two objects of one query have the same name.
    #[error("{kind} `{name}` is given twice")]
    DuplicateName { kind: &'static str, name: String },
    #[error("`{operation}` is not defined for {}", types.join(" and "))]
    Types { operation: String, types: Vec<String>, hint: Option<String> },
    /// A position beyond a dimension.
    #[error("index {index} is out of range for {dim}, which has length {length}")]
    Index {
        index: i128,
        /// The dimension, in words.
        dim: String,
        length: u64,
    },
    #[error("{given} subscripts for a tensor of {rank} dimensions")]
    TooManySubscripts { given: usize, rank: usize },
    #[error("dimension `{dim}` has no label {}{label}", within(tolerance.as_deref()))]
    LabelNotFound {
        dim: String,
        label: String,
        nearest: Vec<String>,
        /// True if the label bounds a range of labels that are not in order.
        is_unordered: bool,
        /// The largest accepted distance, with its unit, if the nearest label was asked for.
        tolerance: Option<String>,
    },
    /// A label that does not fit the coordinate's type.
    #[error("{label} cannot be a label of dimension `{dim}`: its labels are {kind}")]
    InvalidLabel {
        dim: String,
        label: String,
        /// The coordinate's type, in words.
        kind: String,
    },
    /// Coordinates of two operands differ.
    #[error("coordinates of dimension `{dim}` do not align: {left} and {right} at position {at}")]
    NotAligned {
        dim: String,
        /// The first position at which they differ.
        at: usize,
        left: String,
        right: String,
    },
    /// An array, or the labels of a dimension, that cannot be read.
    #[error("{what} cannot be read: {reason}")]
    Unreadable {
        /// The array, or the labels, in words.
        what: String,
        code: &'static str,
        /// The reason, which names the array.
        reason: String,
        hint: Option<String>,
    },
    /// Too few or too many arguments.
    #[error("`{function}` takes {expected}, {given} given")]
    ArgumentCount {
        function: String,
        /// The accepted number, in words.
        expected: String,
        given: usize,
    },
    #[error("`{function}`: {argument} {reason}")]
    InvalidArgument { function: String, argument: String, reason: String },
    /// A construct of the other surface.
    #[error(
        "{construct} belongs to the {belongs} surface, but {clause} puts this block on the other one"
    )]
    WrongSurface {
        construct: String,
        /// `tensor` or `cell`.
        belongs: &'static str,
        clause: String,
    },
}

impl BindError {
    /// A short, stable, machine-readable name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AmbiguousName { .. } => "ambiguous_name",
            Self::DuplicateName { .. } => "duplicate_name",
            Self::Types { .. } => "dtype_mismatch",
            Self::Index { .. } => "index_out_of_range",
            Self::TooManySubscripts { .. } => "too_many_subscripts",
            Self::LabelNotFound { .. } => "label_not_found",
            Self::InvalidLabel { .. } => "invalid_label",
            Self::NotAligned { .. } => "not_aligned",
            Self::Unreadable { code, .. } => code,
            Self::ArgumentCount { .. } => "argument_count",
            Self::InvalidArgument { .. } => "invalid_argument",
            Self::WrongSurface { .. } => "wrong_surface",
        }
    }

    /// The hint, as a sentence without a full stop.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::AmbiguousName { found, .. } => match found.first() {
                Some(first) => format!("write it in full, as in {first}"),
                None => return None,
            },
            Self::DuplicateName { .. } => "give one of them another name with `AS`".into(),
            Self::Types { hint, .. } => return hint.clone(),
            Self::Index { length: 0, .. } => "the dimension has no positions".into(),
            Self::Index { length, .. } => {
                format!("positions are 0 to {} or -{length} to -1", length - 1)
            }
            Self::TooManySubscripts { .. } => "`NEWAXIS` makes a new dimension".into(),
            Self::LabelNotFound { dim, is_unordered: true, .. } => format!(
                "the labels are not sorted, so a range must begin and end at existing labels; `sortby(x, '{dim}')` sorts them"
            ),
            Self::LabelNotFound { nearest, .. } if nearest.is_empty() => return None,
            Self::LabelNotFound { nearest, tolerance, .. } => format!(
                "the nearest {} {}; {}",
                if nearest.len() == 1 { "label is" } else { "labels are" },
                nearest.join(" and "),
                match tolerance {
                    Some(_) => "a larger `tolerance` takes the nearest",
                    None => "`sel(x, …, method => 'nearest')` takes the nearest",
                }
            ),
            Self::InvalidLabel { .. } => return None,
            Self::NotAligned { .. } => {
                "select the same labels on both sides, as in `x[dim => lo:hi]`; `values(x)` drops the labels, so that \
                 cells match by position, and `shift(x, dim => n)` moves cells under the labels"
                    .into()
            }
            Self::Unreadable { hint, .. } => return hint.clone(),
            Self::ArgumentCount { .. } | Self::InvalidArgument { .. } => return None,
            Self::WrongSurface { belongs: "tensor", .. } => {
                "make it a subquery in `FROM`, and use its result there".into()
            }
            Self::WrongSurface { .. } => "put the cells into a subquery of their own".into(),
        })
    }
}

impl BindError {
    /// The error for an array that cannot be read.
    pub fn unreadable(of: &Unreadable) -> Self {
        Self::Unreadable {
            what: format!("`{}`", of.name),
            code: of.code,
            reason: of.reason.clone(),
            hint: of.hint.clone().or_else(|| {
                Some("`DESCRIBE` names the arrays that cannot be read; others can be used".into())
            }),
        }
    }

    /// The error for labels of a dimension that cannot be read; `None` if they can.
    pub fn no_labels(coord: &Coord) -> Option<Self> {
        let of = coord.values.unreadable()?;
        Some(Self::Unreadable {
            what: format!("the labels of dimension `{}`", coord.dim),
            code: of.code,
            reason: of.reason.clone(),
            hint: of.hint.clone().or_else(|| {
                Some(format!("positions need no labels: `x[0:10]`, `isel(x, {} => 0)`", coord.dim))
            }),
        })
    }
}

fn within(tolerance: Option<&str>) -> String {
    tolerance.map(|tolerance| format!("within {tolerance} of ")).unwrap_or_default()
}

fn or(found: &[String]) -> String {
    match found {
        [] => "several things".into(),
        [one] => one.clone(),
        [rest @ .., last] => format!("{} or {last}", rest.join(", ")),
    }
}
