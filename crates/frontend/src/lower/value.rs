//! Intermediate values of expressions during lowering.

use std::sync::Arc;

use tessera_planner::catalog::{Attrs, Coord, CoordValues, DimLabel};
use tessera_planner::dtype::DType;
use tessera_planner::ir::NodeId;
use tessera_planner::scalar::Scalar;
use tessera_planner::time::DatePart;

use crate::labels::DatasetLabels;

/// One dimension of a tensor under construction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dim {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) coord: Option<Arc<Coord>>,
    /// The grouping that produced it, if it is a dimension of `groupby`.
    pub(crate) group: Option<Arc<Grouped>>,
}

impl Dim {
    /// A dimension with a name and no coordinate.
    pub(crate) fn named(name: impl Into<Arc<str>>) -> Self {
        Dim { name: Some(name.into()), ..Dim::default() }
    }

    /// The same dimension without labels, for changed positions.
    pub(crate) fn bare(&self) -> Self {
        Dim { name: self.name.clone(), ..Dim::default() }
    }

    /// The same dimension at the given positions of its coordinate.
    pub(crate) fn take(&self, positions: &[u64]) -> Self {
        self.of_labels(|values| values.take(positions))
    }

    /// The same dimension at the positions `start`, `start + step`, … of its coordinate.
    pub(crate) fn slice(&self, start: i64, step: i64, len: u64) -> Self {
        self.of_labels(|values| values.slice(start, step, len))
    }

    fn of_labels(&self, of: impl Fn(&CoordValues) -> CoordValues) -> Self {
        let coord = self.coord.as_ref().map(|coord| {
            Arc::new(Coord {
                name: coord.name.clone(),
                dim: coord.dim.clone(),
                values: of(&coord.values),
                attrs: coord.attrs.clone(),
            })
        });
        Dim { name: self.name.clone(), coord, group: None }
    }

    /// The dimension as results store it.
    pub(crate) fn label(&self) -> DimLabel {
        DimLabel { name: self.name.clone(), coord: self.coord.clone() }
    }
}

/// The origin of the positions of a group dimension: the way back for `x - groupby(x, …)`.
#[derive(Debug)]
pub(crate) struct Grouped {
    /// The dimension that was grouped.
    pub(crate) dim: Arc<str>,
    pub(crate) coord: Option<Arc<Coord>>,
    /// The group of each of its positions.
    pub(crate) codes: Arc<[u32]>,
    /// The part of the date that was the key, if the key was just that: it finds the groups of other
    /// dates too.
    pub(crate) part: Option<DatePart>,
}

/// A node with its labels.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) node: NodeId,
    /// One dimension for each axis of the node.
    pub(crate) dims: Vec<Dim>,
    /// The name, if it is that of a variable or coordinate.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) attrs: Attrs,
    /// True for a coordinate that is not the labels of a dimension; see [`Labels`](crate::Labels::is_coordinate).
    pub(crate) is_coordinate: bool,
}

impl Tensor {
    pub(crate) fn new(node: NodeId, dims: Vec<Dim>) -> Self {
        Tensor { node, dims, name: None, attrs: Attrs::new(), is_coordinate: false }
    }

    /// A tensor of `rank` dimensions without names.
    pub(crate) fn unnamed(node: NodeId, rank: usize) -> Self {
        Tensor::new(node, vec![Dim::default(); rank])
    }

    /// The axis called `name`; `dim_0`, … refer to unnamed ones. An exact match wins, else a match that ignores
    /// case, if it is unique.
    pub(crate) fn axis(&self, name: &str) -> Option<usize> {
        let names = self.dim_names();
        let exact = names.iter().position(|n| n == name);
        exact.or_else(|| {
            let mut found = (0..names.len()).filter(|&axis| names[axis].eq_ignore_ascii_case(name));
            match (found.next(), found.next()) {
                (Some(axis), None) => Some(axis),
                _ => None,
            }
        })
    }

    /// Names of all dimensions, `dim_0`, … for unnamed ones.
    pub(crate) fn dim_names(&self) -> Vec<String> {
        (0..self.dims.len()).map(|axis| self.dim_name(axis)).collect()
    }

    pub(crate) fn dim_name(&self, axis: usize) -> String {
        match &self.dims[axis].name {
            Some(name) => name.to_string(),
            None => format!("dim_{axis}"),
        }
    }
}

/// An item of a block.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// The value, with its name if it has one.
    pub(crate) tensor: Tensor,
    /// Its source text.
    pub(crate) text: Option<Arc<str>>,
    /// The parts that it shares with the other items of its block.
    pub(crate) dataset: Arc<DatasetLabels>,
}

/// Unique names of the items of a block: their own names, else their source texts.
pub(crate) fn names(items: &[Item]) -> Vec<Arc<str>> {
    let mut out: Vec<Arc<str>> = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let own = item.tensor.name.clone();
        out.push(own.unwrap_or_else(|| {
            let text = item.text.clone().unwrap_or_else(|| format!("v{at}").into());
            let is_taken = |name: &str| {
                let is_own = |other: &Item| other.tensor.name.as_deref() == Some(name);
                items.iter().any(is_own) || out.iter().any(|known| **known == *name)
            };
            let mut name = text.clone();
            let mut number = 1;
            while is_taken(&name) {
                number += 1;
                name = format!("{text} ({number})").into();
            }
            name
        }));
    }
    out
}

/// A value of an expression. A literal has no type until an operation determines one, like
/// Python's numbers in NumPy 2.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// An integer literal, or integer arithmetic of literals.
    Int(i128),
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// `NULL`.
    Null,
    /// A text.
    Str(String),
    /// `[…]`, not yet converted to an array.
    List(Vec<Value>),
    /// `slice(lo, hi, step)`.
    Slice(Box<[Value; 3]>),
    Tensor(Tensor),
    /// The tensors that one function returns: `qr(a)`, with its fields `q` and `r`.
    Record(Record),
}

/// The result of a function with several outputs. In a dataset its fields are variables called `record.field`.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// The function, or the name of the record in its dataset.
    pub(crate) of: Arc<str>,
    /// True if `of` is such a name.
    pub(crate) named: bool,
    /// The fields, in their declared order.
    pub(crate) fields: Vec<(Arc<str>, Tensor)>,
}

/// Names of fields in other libraries: the name, and the field's name here.
const SYNONYMS: [(&str, &str); 4] =
    [("vt", "vh"), ("v", "vh"), ("w", "eigenvalues"), ("v", "eigenvectors")];

impl Record {
    /// A record of a function with the fields `names`, in their order.
    pub(crate) fn new(of: &str, fields: impl IntoIterator<Item = (&'static str, Tensor)>) -> Self {
        let fields = fields.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect();
        Record { of: of.into(), named: false, fields }
    }

    /// Looks up a field by its name or a synonym, exactly, else ignoring case. The result has the field's own name.
    pub(crate) fn field(&self, name: &str) -> Option<Tensor> {
        let find = |fits: &dyn Fn(&str) -> bool| {
            let own = self.fields.iter().find(|(field, _)| fits(field));
            own.or_else(|| {
                let mut known = SYNONYMS.iter().filter(|(synonym, _)| fits(synonym));
                known.find_map(|(_, name)| self.fields.iter().find(|(field, _)| **field == **name))
            })
        };
        let found = find(&|field| field == name);
        let (name, tensor) = found.or_else(|| find(&|field| field.eq_ignore_ascii_case(name)))?;
        Some(Tensor { name: Some(name.clone()), ..tensor.clone() })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.fields.iter().map(|(name, _)| name.to_string()).collect()
    }

    /// The record as tensors of a dataset: `name.field` with its alias or its name as the prefix, or the fields under
    /// their own names if it has neither.
    pub(crate) fn spread(self, alias: Option<&str>) -> Vec<Tensor> {
        let alias = alias.or(self.named.then_some(&*self.of));
        let fields = self.fields.into_iter();
        fields
            .map(|(field, tensor)| {
                let name = match alias {
                    Some(alias) => format!("{alias}.{field}").into(),
                    None => field,
                };
                Tensor { name: Some(name), ..tensor }
            })
            .collect()
    }
}

impl Value {
    /// The value's kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::Null => "NULL",
            Value::Str(_) => "a text",
            Value::List(_) => "a list",
            Value::Slice(_) => "a slice",
            Value::Tensor(_) => "a tensor",
            Value::Record(_) => "a record",
        }
    }

    /// The value as messages show a label or argument.
    pub(crate) fn show(&self) -> String {
        match self {
            Value::Int(v) => v.to_string(),
            Value::Float(v) => format!("{v:?}"),
            Value::Bool(v) => v.to_string(),
            Value::Null => "NULL".into(),
            Value::Str(v) => format!("'{v}'"),
            other => other.kind().into(),
        }
    }

    /// A typed constant as a literal.
    pub(crate) fn of_scalar(scalar: Option<Scalar>) -> Option<Value> {
        let Some(scalar) = scalar else { return Some(Value::Null) };
        Some(match scalar.dtype() {
            DType::Bool => Value::Bool(scalar.as_i128() != 0),
            d if d.is_integer() => Value::Int(scalar.as_i128()),
            d if d.is_float() => Value::Float(scalar.as_f64()),
            _ => return None,
        })
    }
}
