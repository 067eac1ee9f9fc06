//! `list_reduce(l, (a, b) -> a + b)`: the elements of a list combined from the first one on, as in DuckDB.
//!
//! Each evaluation of the lambda takes the elements at one position of all lists, so the longest list decides how many
//! evaluations there are.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, UInt32Array, new_null_array};
use arrow::compute::{CastOptions, cast_with_options, interleave, take, take_arrays};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, HigherOrderFunctionArgs, HigherOrderReturnFieldArgs,
    HigherOrderSignature, HigherOrderUDFImpl, LambdaArgument, LambdaParametersProgress,
    ValueOrLambda, Volatility,
};

use super::inner::hashed_by;
use crate::lift::error::spoken;
use crate::rows::go_on;

const NAME: &str = "list_reduce";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reduce {
    aliases: [String; 2],
    signature: HigherOrderSignature,
    documentation: Documentation,
}

hashed_by!(Reduce, _function => NAME);

impl Default for Reduce {
    fn default() -> Self {
        let about = "The elements of a list combined by a lambda, from the first value or the first element on.";
        Self {
            aliases: ["array_reduce", "reduce"].map(str::to_string),
            signature: HigherOrderSignature::user_defined(Volatility::Immutable),
            documentation: super::documented("list_reduce(list, (a, b) -> x[, first])", about),
        }
    }
}

/// The type of the elements of a list.
fn element(list: &DataType) -> Result<&FieldRef> {
    match list {
        DataType::List(element) => Ok(element),
        other => plan_err!("`{NAME}` takes a list, not {}", spoken(&other.to_string())),
    }
}

/// The type of the first parameter of the lambda, for values of a type. Decimals have all digits there: each sum has one
/// more than its sides, and the lambda must return the type that it takes.
fn taken_as(of: &DataType, element: &DataType) -> DataType {
    let decimal = |scale: i8| DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale);
    match (of, element) {
        (DataType::Decimal128(_, a), DataType::Decimal128(_, b)) => decimal(*a.max(b)),
        (DataType::Decimal128(_, scale), _) => decimal(*scale),
        (of, DataType::Decimal128(_, scale)) if of.is_integer() => decimal(*scale),
        _ => of.clone(),
    }
}

/// True for a decimal with more digits behind the point than another one, as products have them.
fn is_finer(a: &DataType, b: &DataType) -> bool {
    matches!((a, b), (DataType::Decimal128(_, a), DataType::Decimal128(_, b)) if a > b)
}

fn wrong<T>() -> Result<T> {
    plan_err!("`{NAME}` takes a list, a lambda and possibly a first value")
}

impl HigherOrderUDFImpl for Reduce {
    fn name(&self) -> &str {
        NAME
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &HigherOrderSignature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }

    fn coerce_value_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let Some((list, rest)) = types.split_first().filter(|(_, rest)| rest.len() < 2) else {
            return wrong();
        };
        let list = match list {
            DataType::LargeList(of)
            | DataType::FixedSizeList(of, _)
            | DataType::ListView(of)
            | DataType::LargeListView(of) => DataType::List(Arc::clone(of)),
            DataType::Null => DataType::new_list(DataType::Null, true),
            other => other.clone(),
        };
        element(&list)?;
        let mut coerced = vec![list];
        coerced.extend_from_slice(rest);
        Ok(coerced)
    }

    /// The first value has the type of what the lambda returns.
    fn coerce_values_for_lambdas(
        &self,
        fields: &[ValueOrLambda<DataType, DataType>],
    ) -> Result<Option<Vec<DataType>>> {
        use ValueOrLambda::{Lambda, Value};
        match fields {
            [Value(list), Lambda(of), Value(_)] => Ok(Some(vec![list.clone(), of.clone()])),
            _ => Ok(None),
        }
    }

    fn lambda_parameters(
        &self,
        step: usize,
        fields: &[ValueOrLambda<FieldRef, Option<FieldRef>>],
    ) -> Result<LambdaParametersProgress> {
        use ValueOrLambda::{Lambda, Value};
        let (list, returned, first) = match fields {
            [Value(list), Lambda(returned)] => (list, returned, None),
            [Value(list), Lambda(returned), Value(first)] => (list, returned, Some(first)),
            _ => return wrong(),
        };
        let element = element(list.data_type())?;
        let parameters = |of: &FieldRef, kind: DataType| {
            let nullable = |of: &FieldRef| Field::clone(of).with_nullable(true);
            let taken = nullable(of).with_data_type(kind);
            let number = Field::new("", DataType::Int64, false);
            [taken, nullable(element), number].map(Arc::new).to_vec()
        };
        let taken = |of: &FieldRef| taken_as(of.data_type(), element.data_type());
        let first = first.unwrap_or(element);
        Ok(match returned {
            None => LambdaParametersProgress::Partial(vec![Some(parameters(first, taken(first)))]),
            Some(returned) if step == 1 && is_finer(returned.data_type(), &taken(first)) => {
                let (of, returned) = (taken(first).to_string(), returned.data_type().to_string());
                return plan_err!(
                    "`{NAME}` of decimals: the lambda takes {} and returns {}; convert what it returns: `(a * b)::double`",
                    spoken(&of),
                    spoken(&returned)
                );
            }
            // What the lambda returns of a value that it has returned may be of another type.
            Some(returned) if step == 1 && *returned.data_type() != taken(first) => {
                let parameters = parameters(returned, taken(returned));
                LambdaParametersProgress::Partial(vec![Some(parameters)])
            }
            Some(returned) => {
                let parameters = parameters(returned, returned.data_type().clone());
                LambdaParametersProgress::Complete(vec![parameters])
            }
        })
    }

    fn return_field_from_args(&self, args: HigherOrderReturnFieldArgs) -> Result<FieldRef> {
        match args.arg_fields {
            [ValueOrLambda::Value(_), ValueOrLambda::Lambda(returned), ..] => {
                Ok(Arc::new(Field::clone(returned).with_name("").with_nullable(true)))
            }
            _ => wrong(),
        }
    }

    fn invoke_with_args(&self, args: HigherOrderFunctionArgs) -> Result<ColumnarValue> {
        use ValueOrLambda::{Lambda, Value};
        let (list, lambda, first) = match args.args.as_slice() {
            [Value(list), Lambda(lambda)] => (list, lambda, None),
            [Value(list), Lambda(lambda), Value(first)] => (list, lambda, Some(first)),
            _ => return wrong(),
        };
        let lists = list.to_array(args.number_rows)?;
        let Some(lists) = lists.as_list_opt::<i32>() else {
            return internal_err!("`{NAME}` of {}", lists.data_type());
        };
        let first = match first {
            Some(first) => Some(first.to_array(args.number_rows)?),
            None => None,
        };
        reduced(lists, lambda, first, args.return_type()).map(ColumnarValue::Array)
    }
}

fn reduced(
    lists: &ListArray,
    lambda: &LambdaArgument,
    first: Option<ArrayRef>,
    of: &DataType,
) -> Result<ArrayRef> {
    let offsets = lists.value_offsets();
    let mut rows: Vec<u32> = (0..lists.len() as u32).collect();
    rows.retain(|row| lists.is_valid(*row as usize));
    let length = |row: u32| offsets[row as usize + 1] - offsets[row as usize];
    let elements = |rows: &[u32], place: i32| -> Result<ArrayRef> {
        let at = rows.iter().map(|row| (offsets[*row as usize] + place) as u32);
        Ok(take(lists.values(), &at.collect::<UInt32Array>(), None)?)
    };
    let mut place = 0;
    let mut values = match first {
        Some(first) => take(&first, &UInt32Array::from(rows.clone()), None)?,
        None => {
            if rows.iter().any(|row| length(*row) == 0) {
                return exec_err!(
                    "`{NAME}`: a list is empty; give a first value: `{NAME}(l, (a, b) -> a + b, 0)`"
                );
            }
            place = 1;
            elements(&rows, 0)?
        }
    };
    values = converted(&values, of)?;
    // The values of the lists that end at one place, and where each row's is. The first one is NULL, of lists that are.
    let mut ended: Vec<ArrayRef> = vec![new_null_array(of, 1)];
    let mut places = vec![(0, 0); lists.len()];
    loop {
        let (longer, done): (Vec<usize>, Vec<usize>) =
            (0..rows.len()).partition(|at| length(rows[*at]) > place);
        if !done.is_empty() {
            for (nth, at) in done.iter().enumerate() {
                places[rows[*at] as usize] = (ended.len(), nth);
            }
            ended.push(taken(&values, &done)?);
            values = taken(&values, &longer)?;
            rows = longer.iter().map(|at| rows[*at]).collect();
        }
        if rows.is_empty() {
            break;
        }
        go_on()?;
        let next = elements(&rows, place)?;
        let number: ArrayRef = Arc::new(Int64Array::from(vec![i64::from(place) + 1; rows.len()]));
        let kept = UInt32Array::from(rows.clone());
        let parameters: [&dyn Fn() -> Result<ArrayRef>; 3] =
            [&|| Ok(Arc::clone(&values)), &|| Ok(Arc::clone(&next)), &|| Ok(Arc::clone(&number))];
        let new = lambda.evaluate(&parameters, |columns| Ok(take_arrays(columns, &kept, None)?))?;
        values = converted(&new.into_array(rows.len())?, of)?;
        place += 1;
    }
    let ended: Vec<&dyn Array> = ended.iter().map(|values| values.as_ref()).collect();
    Ok(interleave(&ended, &places)?)
}

fn converted(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(values, to, &options)?)
}

fn taken(values: &ArrayRef, rows: &[usize]) -> Result<ArrayRef> {
    let rows: UInt32Array = rows.iter().map(|row| *row as u32).collect();
    Ok(take(values, &rows, None)?)
}
