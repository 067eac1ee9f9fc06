//! Labels of a key column: their codes, and the resulting coordinate.

use super::{cell_type, converted, refused};
use crate::type_name;
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{self as types, DataType, Field as ArrowField};
use std::collections::BTreeMap;
use tessera_exec::chunk::arrow_type;
use tessera_exec::error::Error;
use tessera_planner::catalog::CoordValues;
use tessera_planner::dtype::{Calendar, DType};

#[derive(Debug)]
pub(super) struct KeyColumn {
    pub(super) name: String,
    pub(super) kind: KeyKind,
    pub(super) labels: BTreeMap<Label, u32>,
    /// An explicit order of labels, if there is one.
    pub(super) order: Vec<Label>,
    pub(super) codes: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum KeyKind {
    Int(DType),
    Float(DType),
    Time(Calendar),
    Text,
}

/// A label, ordered as labels of its kind are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Label {
    Int(i64),
    /// Unsigned integers beyond the signed range, and floats as bits with the same order.
    Bits(u64),
    Text(String),
}

pub(super) fn key_kind(field: &ArrowField, calendar: Option<Calendar>) -> Result<KeyKind, Error> {
    Ok(match (field.data_type(), calendar) {
        (DataType::Int64, Some(calendar)) => KeyKind::Time(calendar),
        (DataType::Timestamp(_, _) | DataType::Date32 | DataType::Date64, _) => {
            KeyKind::Time(Calendar::Standard)
        }
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View, _) => KeyKind::Text,
        (other, _) => match cell_type(other) {
            Some(d) if d.is_integer() => KeyKind::Int(d),
            Some(d) if d.is_float() => KeyKind::Float(d),
            _ => {
                return Err(Error::Rows {
                    code: "dtype_mismatch",
                    message: format!(
                        "the labels `{}` have the type {}",
                        field.name(),
                        type_name(other)
                    ),
                    hint: Some("labels are numbers, times or texts: cast the column".into()),
                });
            }
        },
    })
}

impl KeyColumn {
    pub(super) fn push(&mut self, array: &ArrayRef) -> Result<(), Error> {
        if array.null_count() > 0 {
            return Err(Error::Rows {
                code: "null_key",
                message: format!("a row has no label: `{}` is NULL", self.name),
                hint: Some(format!(
                    "leave such rows out: WHERE {0} IS NOT NULL; a list of the column is `list_value({0})`",
                    self.name
                )),
            });
        }
        let (next, codes) = (&mut self.labels, &mut self.codes);
        each(self.kind, array, &mut |label| {
            let code = next.len() as u32;
            codes.push(*next.entry(label).or_insert(code));
        })
    }

    pub(super) fn each(&self, array: &ArrayRef, f: &mut dyn FnMut(Label)) -> Result<(), Error> {
        let array = match array.null_count() {
            0 => array.clone(),
            _ => {
                let valid = arrow::compute::is_not_null(array).map_err(refused)?;
                arrow::compute::filter(array, &valid).map_err(refused)?
            }
        };
        each(self.kind, &array, f)
    }

    /// The labels in order, and the position of each code among them.
    pub(super) fn sorted(&self) -> (Vec<&Label>, Vec<u32>) {
        const NONE: u32 = u32::MAX;
        let mut rank = vec![NONE; self.labels.len()];
        let mut labels = Vec::with_capacity(rank.len());
        let known = self.order.iter().filter_map(|label| self.labels.get_key_value(label));
        for (label, &code) in known.chain(&self.labels) {
            let place = &mut rank[code as usize];
            if *place == NONE {
                *place = labels.len() as u32;
                labels.push(label);
            }
        }
        (labels, rank)
    }

    pub(super) fn coord(&self, labels: &[&Label]) -> CoordValues {
        let ints = || {
            let int = |l: &Label| match l {
                Label::Int(v) => *v,
                Label::Bits(v) => *v as i64,
                Label::Text(_) => 0,
            };
            labels.iter().map(|l| int(l)).collect()
        };
        match self.kind {
            KeyKind::Int(dtype) => CoordValues::Int(dtype, ints()),
            KeyKind::Time(calendar) => CoordValues::Time(calendar, ints()),
            KeyKind::Float(dtype) => {
                let float = |l: &Label| match l {
                    Label::Bits(v) => tessera_exec::distinct::unorder(*v),
                    _ => f64::NAN,
                };
                CoordValues::Float(dtype, labels.iter().map(|l| float(l)).collect())
            }
            KeyKind::Text => {
                let text = |l: &Label| match l {
                    Label::Text(text) => text.clone(),
                    _ => String::new(),
                };
                CoordValues::Text(labels.iter().map(|l| text(l)).collect())
            }
        }
    }
}

/// Calls `f` with each label of an array without NULLs.
fn each(kind: KeyKind, array: &ArrayRef, f: &mut dyn FnMut(Label)) -> Result<(), Error> {
    match kind {
        KeyKind::Text => {
            let texts = converted(array, &DataType::Utf8)?;
            texts.as_string::<i32>().iter().flatten().for_each(|v| f(Label::Text(v.to_string())));
        }
        KeyKind::Float(_) => {
            let wide = converted(array, &DataType::Float64)?;
            let values = wide.as_primitive::<types::Float64Type>().values();
            values.iter().for_each(|&v| f(Label::Bits(tessera_exec::distinct::order(v))));
        }
        KeyKind::Int(DType::UInt64) => {
            let wide = converted(array, &DataType::UInt64)?;
            let values = wide.as_primitive::<types::UInt64Type>().values();
            values.iter().for_each(|&v| f(Label::Bits(v)));
        }
        KeyKind::Time(Calendar::Standard) => {
            let micros = arrow_type(DType::Datetime(Calendar::Standard));
            let times = converted(array, &micros)?;
            let values = times.as_primitive::<types::TimestampMicrosecondType>().values();
            values.iter().for_each(|&v| f(Label::Int(v)));
        }
        KeyKind::Int(_) | KeyKind::Time(_) => {
            let wide = converted(array, &DataType::Int64)?;
            let values = wide.as_primitive::<types::Int64Type>().values();
            values.iter().for_each(|&v| f(Label::Int(v)));
        }
    }
    Ok(())
}
