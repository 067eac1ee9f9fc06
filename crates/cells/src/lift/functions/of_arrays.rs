//! Functions without state, which compute an array from arrays.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, not_impl_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::inner::{hashed_by, scalar};

/// The types that the arguments of a function of that name are converted to.
type Takes = fn(&str, &[DataType]) -> Result<Vec<DataType>>;

/// Rejects arguments whose types fit, by their constants.
type Check = fn(&ReturnFieldArgs<'_>) -> Result<()>;

/// A function of arrays. Functions of one name are equal.
#[derive(Debug)]
pub(in crate::lift) struct OfArrays {
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
    documentation: Option<Documentation>,
    takes: Option<Takes>,
    check: Option<Check>,
    returns: DataType,
    compute: fn(&[ArrayRef]) -> Result<ArrayRef>,
}

impl OfArrays {
    /// A function of the arguments of a signature.
    pub(in crate::lift) fn new(
        name: &'static str,
        signature: Signature,
        returns: DataType,
        compute: fn(&[ArrayRef]) -> Result<ArrayRef>,
    ) -> Self {
        let (aliases, documentation, takes, check) = (Vec::new(), None, None, None);
        OfArrays { name, aliases, signature, documentation, takes, check, returns, compute }
    }

    /// A function of arguments that are converted to these types.
    pub(super) fn taking(
        name: &'static str,
        takes: Takes,
        returns: DataType,
        compute: fn(&[ArrayRef]) -> Result<ArrayRef>,
    ) -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        OfArrays { takes: Some(takes), ..OfArrays::new(name, signature, returns, compute) }
    }

    pub(super) fn documented(self, syntax: &str, about: &str) -> Self {
        OfArrays { documentation: Some(super::documented(syntax, about)), ..self }
    }

    /// Adds a check of the arguments, which planning makes once their types are converted.
    pub(super) fn checked(self, check: Check) -> Self {
        OfArrays { check: Some(check), ..self }
    }

    /// Adds another name.
    pub(super) fn alias(mut self, alias: &str) -> Self {
        self.aliases.push(alias.to_string());
        self
    }

    pub(in crate::lift) fn udf(self) -> ScalarUDF {
        self.into()
    }
}

hashed_by!(OfArrays, function => function.name);

impl PartialEq for OfArrays {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for OfArrays {}

impl ScalarUDFImpl for OfArrays {
    scalar!(name, aliases, signature);

    fn documentation(&self) -> Option<&Documentation> {
        self.documentation.as_ref()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match self.takes {
            Some(takes) => takes(self.name, types),
            None => not_impl_err!("`{}` takes the arguments of its signature", self.name),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        if let Some(check) = self.check {
            check(&args)?;
        }
        Ok(Arc::new(Field::new(self.name, self.returns.clone(), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args, self.compute)
    }
}

/// The result of `compute` over the arguments as arrays of one length. It is a scalar if all arguments are scalars.
pub(in crate::lift) fn over_arrays(
    args: &ScalarFunctionArgs,
    compute: impl FnOnce(&[ArrayRef]) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
    super::columnar(compute(&ColumnarValue::values_to_arrays(&args.args)?)?, is_scalar)
}
