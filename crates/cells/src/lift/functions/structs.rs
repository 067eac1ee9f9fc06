//! `struct_insert(s, b := 2)`: a struct with more fields.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::compute::{is_null, nullif};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

use super::inner::{hashed_by, scalar};
use crate::lift::error::spoken;

/// The name of the function.
pub(in crate::lift) const STRUCT_INSERT: &str = "struct_insert";

/// The function, of a struct and then names and values in turn. Of NULL, the fields of the struct are NULL.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Insert {
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(Insert, _function => STRUCT_INSERT);

impl Default for Insert {
    fn default() -> Self {
        let about = "The struct with more fields, behind its own.";
        let documentation = super::documented("struct_insert(struct, name => x, …)", about);
        Self { signature: Signature::user_defined(Volatility::Immutable), documentation }
    }
}

impl ScalarUDFImpl for Insert {
    scalar!(name STRUCT_INSERT, documentation, signature, type_by_field);

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::Struct(_), rest @ ..] if !rest.is_empty() && rest.len() % 2 == 0 => {
                Ok(types.to_vec())
            }
            [DataType::Struct(_), ..] | [] => {
                plan_err!("`{STRUCT_INSERT}` takes a struct and named values: `name => x`")
            }
            [other, ..] => {
                let of = spoken(&other.to_string());
                plan_err!("`{STRUCT_INSERT}` takes a struct, not {of}")
            }
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let Some((of, rest)) = args.arg_fields.split_first() else {
            return internal_err!("{STRUCT_INSERT} without arguments");
        };
        let DataType::Struct(own) = of.data_type() else {
            return internal_err!("{STRUCT_INSERT} of {}", of.data_type());
        };
        let nullable = |field: &FieldRef| Field::clone(field).with_nullable(true);
        let mut fields: Vec<Field> = own.iter().map(nullable).collect();
        let names = args.scalar_arguments.iter().skip(1).step_by(2);
        for (name, value) in names.zip(rest.iter().skip(1).step_by(2)) {
            let Some(name) = name.and_then(ScalarValue::try_as_str).flatten() else {
                return plan_err!("`{STRUCT_INSERT}` takes names as constant texts");
            };
            fields.push(nullable(value).with_name(name));
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = fields.iter().find(|field| !seen.insert(field.name().as_str())) {
            return plan_err!("`{STRUCT_INSERT}`: two fields are called `{}`", twice.name());
        }
        let of = DataType::Struct(Fields::from(fields));
        Ok(Arc::new(Field::new(self.name(), of, false)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { args.number_rows };
        let (Some((of, rest)), DataType::Struct(fields)) =
            (args.args.split_first(), args.return_field.data_type())
        else {
            return internal_err!("{STRUCT_INSERT} as {}", args.return_field.data_type());
        };
        let of = of.to_array(rows)?;
        let Some(structs) = of.as_struct_opt() else {
            return internal_err!("{STRUCT_INSERT} of {}", of.data_type());
        };
        let is_none = is_null(structs)?;
        let own = structs.columns().iter().map(|column| Ok(nullif(column, &is_none)?));
        let mut columns: Vec<ArrayRef> = own.collect::<Result<_>>()?;
        for value in rest.iter().skip(1).step_by(2) {
            columns.push(value.to_array(rows)?);
        }
        let structs = StructArray::try_new(fields.clone(), columns, None)?;
        super::columnar(Arc::new(structs), is_scalar)
    }
}
