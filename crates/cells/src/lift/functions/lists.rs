//! Aggregates of the elements of lists: `list_sum(l)` is `sum` with a group for each list.
//!
//! NULL and empty lists have no group: an aggregate takes each group for one that has had a row.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, UInt32Array, new_empty_array,
};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Documentation, EmitTo, GroupsAccumulator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::{GroupsAccumulatorAdapter, PhysicalExpr};

use super::bounded::too_large;
use super::inner::{hashed_by, scalar};
use super::recomputed::Kept;
use crate::lift::error::spoken;

/// The functions, and the aggregates of the session.
const FUNCTIONS: [(&str, &str); 25] = [
    ("list_avg", "avg"),
    ("list_bit_and", "bit_and"),
    ("list_bit_or", "bit_or"),
    ("list_bit_xor", "bit_xor"),
    ("list_bool_and", "bool_and"),
    ("list_bool_or", "bool_or"),
    ("list_count", "count"),
    ("list_histogram", "histogram"),
    ("list_kurtosis", "kurtosis"),
    ("list_kurtosis_pop", "kurtosis_pop"),
    ("list_max", "max"),
    ("list_median", "percentile_cont"),
    ("list_min", "min"),
    ("list_mode", "mode"),
    ("list_product", "product"),
    ("list_quantile_cont", "percentile_cont"),
    ("list_quantile_disc", "percentile_disc"),
    ("list_skewness", "skewness"),
    ("list_stddev_pop", "stddev_pop"),
    ("list_stddev_samp", "stddev"),
    ("list_string_agg", "string_agg"),
    ("list_sum", "sum"),
    (UNIQUE, "count"),
    ("list_var_pop", "var_pop"),
    ("list_var_samp", "var"),
];

/// The function that counts different elements.
const UNIQUE: &str = "list_unique";

/// Upper bound on the elements that an aggregate takes at a time.
const CHUNK: usize = 8192;

/// The functions over the aggregates of a session; the texts that they join have at most `limit` bytes for a batch.
pub(super) fn functions(state: &SessionState, limit: u64) -> Vec<ScalarUDF> {
    let function = |(name, aggregate): (&'static str, &str)| {
        let aggregate = Arc::clone(state.aggregate_functions().get(aggregate)?);
        Some(ScalarUDF::from(OfElements::new(name, aggregate, limit)))
    };
    FUNCTIONS.into_iter().filter_map(function).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct OfElements {
    name: &'static str,
    aggregate: Arc<AggregateUDF>,
    limit: u64,
    /// `array_sum` for `list_sum`.
    alias: [String; 1],
    signature: Signature,
    documentation: Documentation,
}

hashed_by!(OfElements, function => function.name);

impl OfElements {
    fn new(name: &'static str, aggregate: Arc<AggregateUDF>, limit: u64) -> Self {
        let arguments = match name {
            "list_quantile_cont" | "list_quantile_disc" => "list, part",
            "list_string_agg" => "list[, separator]",
            _ => "list",
        };
        let about = match name {
            UNIQUE => "The number of different elements of a list that are not NULL.".to_string(),
            "list_median" => "The median of the elements of a list.".to_string(),
            _ => format!("`{}` of the elements of a list.", aggregate.name()),
        };
        let documentation = super::documented(&format!("{name}({arguments})"), &about);
        let signature = Signature::user_defined(Volatility::Immutable);
        let alias = [name.replacen("list_", "array_", 1)];
        Self { name, aggregate, limit, alias, signature, documentation }
    }

    /// The second argument of the aggregate, if the call has none.
    fn implied(&self) -> Option<ScalarValue> {
        match self.name {
            "list_median" => Some(ScalarValue::Float64(Some(0.5))),
            "list_string_agg" => Some(ScalarValue::Utf8(Some(",".to_string()))),
            _ => None,
        }
    }

    /// The fields of the aggregate's arguments, of an element and those of the other arguments of the call.
    fn arguments(&self, element: FieldRef, rest: &[FieldRef]) -> Vec<FieldRef> {
        let mut fields = vec![element];
        fields.extend(rest.iter().cloned());
        if rest.is_empty()
            && let Some(value) = self.implied()
        {
            fields.push(Arc::new(Field::new("implied", value.data_type(), false)));
        }
        fields
    }

    /// As [`Self::arguments`], of the arguments of a call.
    fn fields(&self, arguments: &[FieldRef]) -> Result<Vec<FieldRef>> {
        match arguments.split_first().map(|(list, rest)| (list.data_type(), rest)) {
            Some((DataType::List(element), rest)) => Ok(self.arguments(Arc::clone(element), rest)),
            _ => internal_err!("`{}` is called without a list", self.name),
        }
    }

    fn groups(
        &self,
        result: &FieldRef,
        fields: &[FieldRef],
        constants: &[ScalarValue],
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let schema = Schema::new(fields.to_vec());
        let element = fields.first().map_or("", |field| field.name().as_str());
        let mut exprs: Vec<Arc<dyn PhysicalExpr>> = vec![Arc::new(Column::new(element, 0))];
        for value in constants {
            exprs.push(Arc::new(Literal::new(value.clone())));
        }
        let args = AccumulatorArgs {
            return_field: Arc::clone(result),
            schema: &schema,
            ignore_nulls: false,
            order_bys: &[],
            is_reversed: false,
            name: self.name,
            is_distinct: self.name == UNIQUE,
            exprs: &exprs,
            expr_fields: fields,
        };
        if self.aggregate.groups_accumulator_supported(args.clone()) {
            return self.aggregate.create_groups_accumulator(args);
        }
        let (aggregate, kept) = (Arc::clone(&self.aggregate), Kept::new(&args));
        let each = move || aggregate.accumulator(kept.args());
        Ok(Box::new(GroupsAccumulatorAdapter::new(each)))
    }

    /// Refuses a separator that is too long for the number of elements.
    fn check(&self, lists: &ListArray, constants: &[ScalarValue]) -> Result<()> {
        let offsets = lists.offsets();
        let elements = f64::from(offsets[lists.len()]) - f64::from(offsets[0]);
        let separator = constants.first().and_then(ScalarValue::try_as_str).flatten();
        let bytes = elements * separator.map_or(0, str::len) as f64;
        if bytes <= self.limit as f64 {
            return Ok(());
        }
        let error = too_large(self.name, bytes, lists.len(), self.limit);
        Err(DataFusionError::External(Box::new(error)))
    }

    fn of_lists(
        &self,
        lists: &ListArray,
        fields: &[FieldRef],
        constants: &[ScalarValue],
    ) -> Result<ArrayRef> {
        let result = self.aggregate.return_field(fields)?;
        let mut groups = self.groups(&result, fields, constants)?;
        let offsets = lists.offsets();
        let filled = offsets.windows(2).enumerate().filter(|(_, ends)| ends[0] < ends[1]);
        let mut elements = filled
            .clone()
            .enumerate()
            .flat_map(|(group, (row, ends))| (ends[0]..ends[1]).map(move |_| (group, row)));
        let last = offsets[lists.len()] as usize;
        let mut start = offsets[0] as usize;
        while start < last {
            let size = CHUNK.min(last - start);
            let (of, rows): (Vec<usize>, Vec<usize>) = elements.by_ref().take(size).unzip();
            let mut values = vec![lists.values().slice(start, size)];
            for value in constants {
                values.push(value.to_array_of_size(size)?);
            }
            // A list that is NULL may have elements.
            let seen = lists.nulls().map(|nulls| {
                rows.iter().map(|&row| Some(nulls.is_valid(row))).collect::<BooleanArray>()
            });
            let count = of.last().map_or(0, |last| last + 1);
            groups.update_batch(&values, &of, seen.as_ref(), count)?;
            start += size;
        }
        let count = filled.count();
        let results = match count {
            0 => new_empty_array(result.data_type()),
            _ => groups.evaluate(EmitTo::All)?,
        };
        let of_empty = self.aggregate.default_value(result.data_type())?.to_array()?;
        let all = concat(&[results.as_ref(), of_empty.as_ref()])?;
        let mut next = 0;
        let places: UInt32Array = (0..lists.len())
            .map(|row| {
                let is_empty = lists.value_length(row) == 0;
                let place = if is_empty { count } else { next };
                next += usize::from(!is_empty);
                lists.is_valid(row).then_some(place as u32)
            })
            .collect();
        Ok(take(&all, &places, None)?)
    }
}

impl ScalarUDFImpl for OfElements {
    scalar!(name, documentation, signature, type_by_field);

    fn aliases(&self) -> &[String] {
        &self.alias
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let (element, rest) = match types.split_first() {
            Some((
                DataType::List(of)
                | DataType::LargeList(of)
                | DataType::FixedSizeList(of, _)
                | DataType::ListView(of)
                | DataType::LargeListView(of),
                rest,
            )) => (of.data_type().clone(), rest),
            Some((DataType::Null, rest)) => (DataType::Null, rest),
            Some((other, _)) => {
                let of = spoken(&other.to_string());
                return plan_err!("`{}` takes a list, not {of}", self.name);
            }
            None => return plan_err!("`{}` takes a list", self.name),
        };
        let field = |of: &DataType| Arc::new(Field::new("x", of.clone(), true));
        let others: Vec<FieldRef> = rest.iter().map(field).collect();
        // An element without a type may be of any.
        let elements = match element {
            DataType::Null => vec![DataType::Int64, DataType::Boolean],
            ref known => vec![known.clone()],
        };
        let taken = elements.iter().find_map(|of| {
            fields_with_udf(&self.arguments(field(of), &others), &*self.aggregate).ok()
        });
        let Some(taken) = taken else {
            let (of, aggregate) = (spoken(&element.to_string()), self.aggregate.name());
            return plan_err!(
                "`{}` applies `{aggregate}`, which does not take elements of type {of} ({} arguments given)",
                self.name,
                types.len()
            );
        };
        let taken = taken.iter().take(types.len()).map(|field| field.data_type().clone());
        let mut taken: Vec<DataType> = taken.collect();
        if let Some(first) = taken.first_mut() {
            *first = DataType::new_list(first.clone(), true);
        }
        Ok(taken)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = self.aggregate.return_field(&self.fields(args.arg_fields)?)?;
        Ok(Arc::new(Field::clone(&field).with_name(self.name).with_nullable(true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_scalar = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let fields = self.fields(&args.arg_fields)?;
        let Some((list, rest)) = args.args.split_first() else {
            return internal_err!("`{}` is called without arguments", self.name);
        };
        let list = list.to_array(if is_scalar { 1 } else { args.number_rows })?;
        let Some(lists) = list.as_list_opt::<i32>() else {
            return internal_err!("`{}` is called with {}", self.name, list.data_type());
        };
        let mut constants = Vec::with_capacity(1);
        for argument in rest {
            match argument {
                ColumnarValue::Scalar(value) => constants.push(value.clone()),
                ColumnarValue::Array(_) => {
                    return exec_err!(
                        "`{}` needs a constant after its list, not a column",
                        self.name
                    );
                }
            }
        }
        if rest.is_empty() {
            constants.extend(self.implied());
        }
        self.check(lists, &constants)?;
        super::columnar(self.of_lists(lists, &fields, &constants)?, is_scalar)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::lift::session_state;
    use arrow::array::Int64Array;
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Int64Type;
    use datafusion::common::config::ConfigOptions;

    #[test]
    fn lists_without_elements_have_no_group() {
        let values: Int64Array = (0..20_000).collect::<Vec<i64>>().into();
        // The third list is NULL and has elements, the fifth one is longer than a chunk.
        let offsets = OffsetBuffer::from_lengths([3, 0, 2, 1, 9_000, 0, 10_994]);
        let nulls = NullBuffer::from(vec![true, true, false, true, true, true, true]);
        let of = Arc::new(Field::new_list_field(DataType::Int64, true));
        let lists = ListArray::new(of, offsets, Arc::new(values), Some(nulls));
        let sum = |from: i64, to: i64| Some((from..to).sum::<i64>());
        let sums = [Some(3), None, None, Some(5), sum(6, 9_006), None, sum(9_006, 20_000)];
        let counts = [Some(3), Some(0), None, Some(1), Some(9_000), Some(0), Some(10_994)];
        let least = [Some(0), None, None, Some(5), Some(6), None, Some(9_006)];
        let state = session_state(1 << 30).unwrap();
        let expected = [("list_sum", sums), ("list_count", counts), ("list_min", least)];
        for (name, want) in expected.into_iter().chain([(UNIQUE, counts)]) {
            let function = &state.scalar_functions()[name];
            let field = Arc::new(Field::new("l", lists.data_type().clone(), true));
            let fields = [Arc::clone(&field)];
            let types = ReturnFieldArgs { arg_fields: &fields, scalar_arguments: &[None] };
            let result = function.return_field_from_args(types).unwrap();
            for start in 0..lists.len() {
                let rest = lists.slice(start, lists.len() - start);
                let args = ScalarFunctionArgs {
                    number_rows: rest.len(),
                    args: vec![ColumnarValue::Array(Arc::new(rest))],
                    arg_fields: fields.to_vec(),
                    return_field: Arc::clone(&result),
                    config_options: Arc::new(ConfigOptions::default()),
                };
                let got = function.invoke_with_args(args).unwrap().to_array(1).unwrap();
                let got: Vec<Option<i64>> = got.as_primitive::<Int64Type>().iter().collect();
                assert_eq!(got, want[start..], "{name} from list {start}");
            }
        }
    }
}
