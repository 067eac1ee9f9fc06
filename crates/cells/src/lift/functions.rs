//! Functions with Tessera's own definition, which the dense and the row path share: `//`, `^`, parts of dates in
//! other calendars, roots without errors, sums of integers and decimals that do not wrap, and the elementwise functions
//! of tensors; and functions of DuckDB over rows.

mod booleans;
mod bounded;
mod by_row;
mod correlation;
mod date_part;
mod date_trunc;
mod dates;
mod decimal_sum;
mod digits;
mod discrete;
mod draw;
mod elementwise;
pub(super) mod excluding;
mod extract;
mod extreme;
mod formatted;
mod framed;
mod hashes;
mod histogram;
mod in_calendar;
mod inner;
mod joined;
mod lengths;
mod lists;
mod maps;
mod matches;
mod mode;
mod moments;
mod nested_text;
mod numbered;
mod occurrences;
mod of_arrays;
mod opaque;
mod percentile;
mod recomputed;
mod reduce;
mod root;
mod scaled;
mod select;
mod shape;
mod shifted;
mod slice;
mod sliding;
mod split;
mod structs;
mod sum;
mod temporal;
mod time_shift;
mod time_text;
mod top;
mod type_names;
mod uuid_text;
mod value_at;

pub(crate) use inner::holds;
pub(super) use inner::{hashed_by, scalar};

use std::sync::Arc;

use super::error;
use super::names::{FLOOR_DIVIDE, POWER};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use bounded::Bounded;
pub(super) use bounded::check_size;
use by_row::ByRow;
use correlation::{Correlation, STATISTICS};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, DocSection, Documentation, HigherOrderUDF, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility, WindowUDF,
};
use datafusion::prelude::SessionConfig;
use date_part::DatePartOf;
use date_trunc::DateTruncOf;
pub(super) use dates::span_of;
pub(crate) use decimal_sum::{WideTotal, checked as checked_decimal};
use discrete::Discrete;
pub(super) use elementwise::{EDGES_MAX, WITHOUT_NAN, is_elementwise, parts};
use extreme::Extreme;
use framed::Framed;
use histogram::Histogram;
pub(super) use in_calendar::{IN_CALENDAR, InCalendar};
use joined::Joined;
use mode::Mode;
pub(super) use nested_text::NestedText;
use numbered::Numbered;
pub(super) use numbered::{NUMBERED, PAIR};
pub(super) use of_arrays::{OfArrays, over_arrays};
pub(crate) use opaque::OPAQUE;
pub(super) use opaque::{nullable, opaque, operand};
use percentile::Percentile;
pub(crate) use percentile::between;
use reduce::Reduce;
use root::Ieee;
pub(super) use scaled::Scales;
use shifted::Shifted;
use sliding::{Mean, Spread};
pub(crate) use sliding::{MovingSpread, MovingSum};
use structs::Insert;
pub(super) use structs::STRUCT_INSERT;
use sum::CheckedSum;
pub(crate) use sum::too_large as too_large_total;
use tessera_frontend::error::Error;
pub(super) use time_shift::TimeShift;
pub(super) use time_text::{TimeText, readable, texts_with_seconds};
use top::Top;
pub(super) use top::{COUNT_MAX as TOP_COUNT_MAX, top_call};
pub(crate) use uuid_text::uuid_text;
use value_at::ValueAt;

/// Memory limit from which on joins may use more memory to run faster.
const PLACES_MIN: u64 = 1 << 30;

/// A session for cell blocks, with DataFusion's functions and Tessera's.
///
/// One partition, so that rows keep the order of the dimensions and floats are summed in one order. Names are resolved
/// before planning, so DataFusion does not convert them to lower case.
///
/// For dimensions without labels, planning materializes positions of at most a quarter of `memory` bytes.
pub(crate) fn session_state(memory: u64) -> std::result::Result<SessionState, Error> {
    let config = SessionConfig::new().with_target_partitions(1);
    let mut config = super::along::bounded(config, memory);
    let options = config.options_mut();
    options.sql_parser.enable_ident_normalization = false;
    options.sql_parser.collect_spans = true;
    options.sql_parser.map_string_types_to_utf8view = false;
    // Row groups are read in the order of their file, which rows with equal keys keep. Splits read them once each anyway.
    options.optimizer.enable_sort_pushdown = false;
    // Only our splits divide files. DataFusion would give a file of a mebibyte a range, even if it is compressed and
    // indivisible.
    options.optimizer.repartition_file_scans = false;
    // A table in a directory has the files of all directories below it.
    options.execution.listing_table_ignore_subdirectory = false;
    // The physical plan may declare a non-null column nullable (`b IS TRUE` over a left join): this check rejects it.
    options.execution.skip_physical_aggregate_schema_check = true;
    // Else a split with many groups would pass on its later rows ungrouped. Where that begins depends on the ends of
    // batches, and would change the bits of float sums.
    options.execution.skip_partial_aggregation_probe_ratio_threshold = 1.0;
    // The reader skips row groups by their statistics, and operators above it drop rows: a reader that skips single
    // rows takes two to three times as long for those that it returns.
    options.execution.parquet.pushdown_filters = false;
    // A table with a slot for each possible key, most of them empty, is faster than a hash table and needs more memory.
    if memory >= PLACES_MIN {
        options.execution.perfect_hash_join_min_key_density = 0.05;
    }
    let mut state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_optimizer_rules(super::optimizer::rules())
        .with_analyzer_rules(super::optimizer::analyzer_rules())
        .build();
    let mut ours: Vec<ScalarUDF> =
        [Operation::FloorDivide, Operation::Power].map(|op| Arithmetic::new(op).into()).into();
    let mut over = |names: &[&str], make: &dyn Fn(Arc<ScalarUDF>) -> ScalarUDF| {
        let inner = names.iter().filter_map(|name| state.scalar_functions().get(*name).cloned());
        ours.extend(inner.map(make));
    };
    over(&["date_part"], &|inner| DatePartOf::new(inner).into());
    over(&["date_trunc"], &|inner| DateTruncOf::new(inner).into());
    over(&["sqrt", "power"], &|inner| Ieee::new(inner).into());
    over(&bounded::NAMES, &|inner| Bounded::new(inner, memory / 4).into());
    ours.extend(lengths::functions(&state));
    ours.push(Bounded::new(Arc::new(split::function()), memory / 4).into());
    ours.extend(slice::functions(&state, memory / 4));
    ours.extend(select::functions(memory / 4));
    ours.extend(super::operators::functions(memory / 4));
    ours.push(super::escape::function());
    ours.extend(elementwise::functions());
    ours.extend(hashes::functions());
    ours.extend(digits::functions());
    let wide = matches::functions().into_iter().chain(formatted::functions());
    ours.extend(wide.map(|udf| ScalarUDF::from(Bounded::new(Arc::new(udf), memory / 4))));
    ours.push(type_names::function());
    ours.extend(dates::functions());
    ours.extend(scaled::functions());
    ours.extend([extract::function(), uuid_text(), draw::function()]);
    ours.extend(super::nested::functions());
    ours.extend([ScalarUDF::from(Numbered::default()), ScalarUDF::from(Insert::default())]);
    ours.extend(maps::functions());
    for udf in ours {
        register(&mut state, udf)?;
    }
    aggregates(&mut state)?;
    for udf in lists::functions(&state, memory / 4) {
        register(&mut state, udf)?;
    }
    let reduce = HigherOrderUDF::from(Reduce::default());
    state.register_higher_order_function(Arc::new(reduce)).map_err(error::plan)?;
    let mut over =
        |names: &[&str], make: fn(Arc<WindowUDF>) -> WindowUDF| -> std::result::Result<(), Error> {
            for name in names {
                if let Some(inner) = state.window_functions().get(*name).cloned() {
                    state.register_udwf(Arc::new(make(inner))).map_err(error::plan)?;
                }
            }
            Ok(())
        };
    over(&["lag", "lead"], |inner| Shifted::new(inner).into())?;
    over(&by_row::NAMES, |inner| ByRow::new(inner).into())?;
    Ok(state)
}

/// Registers a function, which then has its name and its aliases alone: functions with one of them are removed.
///
/// A session that is built from another one registers the functions again, in the order of a hash map. Of two functions
/// with one name, either could be the last.
fn register(state: &mut SessionState, function: ScalarUDF) -> std::result::Result<(), Error> {
    let aliases = function.aliases().iter().map(String::as_str);
    for name in std::iter::once(function.name()).chain(aliases) {
        if let Some(other) = state.scalar_functions().get(name).cloned() {
            state.deregister_udf(other.name()).map_err(error::plan)?;
        }
    }
    state.register_udf(Arc::new(function)).map_err(error::plan)?;
    Ok(())
}

fn aggregates(state: &mut SessionState) -> std::result::Result<(), Error> {
    let mut ours: Vec<AggregateUDF> = vec![Discrete::new().into(), Mode::new().into()];
    ours.extend([true, false].map(|is_max| AggregateUDF::from(ValueAt::new(is_max))));
    ours.extend([true, false].map(|is_max| AggregateUDF::from(Top::new(is_max))));
    ours.push(Histogram::new().into());
    ours.extend(shape::functions());
    let mut over = |names: &[&str], make: fn(Arc<AggregateUDF>) -> AggregateUDF| {
        let inner = names.iter().filter_map(|name| state.aggregate_functions().get(*name).cloned());
        ours.extend(inner.map(make));
    };
    over(&["string_agg"], |inner| Joined::new(inner).into());
    over(&["sum"], |inner| CheckedSum::new(inner).into());
    over(&["avg"], |inner| Mean::new(inner).into());
    over(&["var", "var_pop", "stddev", "stddev_pop"], |inner| Spread::new(inner).into());
    over(&STATISTICS.map(|(name, _)| name), |inner| Correlation::new(inner).into());
    over(&["percentile_cont", "median"], |inner| Percentile::new(inner).into());
    over(&framed::NAMES, |inner| Framed::new(inner).into());
    over(&["min", "max"], |inner| Extreme::new(inner).into());
    for udaf in ours {
        // As in `register`.
        let aliases = udaf.aliases().iter().map(String::as_str);
        for name in std::iter::once(udaf.name()).chain(aliases) {
            if let Some(other) = state.aggregate_functions().get(name).cloned() {
                state.deregister_udaf(other.name()).map_err(error::plan)?;
            }
        }
        state.register_udaf(Arc::new(udaf)).map_err(error::plan)?;
    }
    Ok(())
}

/// The documentation that SHOW FUNCTIONS reports.
fn documented(syntax: &str, about: &str) -> Documentation {
    Documentation::builder(DocSection::default(), about, syntax).build()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    FloorDivide,
    Power,
}

/// `//` and `^`: `int64` for integers, `float64` otherwise.
///
/// `//` rounds toward negative infinity; an integer divided by 0 is an error, as with SQL's `/`. `^` of integers wraps
/// and rejects negative exponents, as in NumPy.
#[derive(Debug, PartialEq, Eq)]
struct Arithmetic {
    op: Operation,
    signature: Signature,
}

hashed_by!(Arithmetic, function => function.op);

impl Arithmetic {
    fn new(op: Operation) -> Self {
        let exact = |t: DataType| TypeSignature::Exact(vec![t.clone(), t]);
        let signature = Signature::one_of(
            vec![exact(DataType::Int64), exact(DataType::Float64)],
            Volatility::Immutable,
        );
        Self { op, signature }
    }
}

impl ScalarUDFImpl for Arithmetic {
    scalar!(signature);

    fn name(&self) -> &str {
        match self.op {
            Operation::FloorDivide => FLOOR_DIVIDE,
            Operation::Power => POWER,
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Float64))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args, |arrays| {
            let [x, y] = arrays else {
                return exec_err!("{} takes two arguments", self.name());
            };
            if let (DataType::Int64, DataType::Int64) = (x.data_type(), y.data_type()) {
                let (x, y) = (x.as_primitive::<Int64Type>(), y.as_primitive::<Int64Type>());
                let pairs = x.iter().zip(y.iter()).map(|(x, y)| x.zip(y));
                let cells = pairs.map(|pair| pair.map(|(x, y)| self.int(x, y)).transpose());
                return Ok(Arc::new(cells.collect::<Result<Int64Array>>()?));
            }
            let (x, y) = (cast(x, &DataType::Float64)?, cast(y, &DataType::Float64)?);
            let (x, y) = (x.as_primitive::<Float64Type>(), y.as_primitive::<Float64Type>());
            let float = |x: f64, y: f64| match self.op {
                Operation::FloorDivide => (x / y).floor(),
                Operation::Power => x.powf(y),
            };
            let cells = x.iter().zip(y.iter()).map(|(x, y)| Some(float(x?, y?)));
            Ok(Arc::new(cells.collect::<Float64Array>()))
        })
    }
}

/// The result of a function: one value if all of its arguments are scalars, else an array.
pub(super) fn columnar(out: ArrayRef, is_scalar: bool) -> Result<ColumnarValue> {
    Ok(match is_scalar {
        true => ColumnarValue::Scalar(ScalarValue::try_from_array(&out, 0)?),
        false => ColumnarValue::Array(out),
    })
}

impl Arithmetic {
    fn int(&self, x: i64, y: i64) -> Result<i64> {
        match self.op {
            Operation::FloorDivide if y == 0 => Err(arrow::error::ArrowError::DivideByZero.into()),
            Operation::FloorDivide => {
                let q = x.wrapping_div(y);
                let is_inexact = x.wrapping_rem(y) != 0;
                Ok(if is_inexact && (x < 0) != (y < 0) { q - 1 } else { q })
            }
            Operation::Power if y < 0 => {
                exec_err!("`^` of integers: the exponent {y} is negative; convert with `x::double`")
            }
            Operation::Power => {
                let (mut base, mut left, mut out) = (x, y, 1i64);
                while left > 0 {
                    if left & 1 == 1 {
                        out = out.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    left >>= 1;
                }
                Ok(out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_name_is_of_one_function_and_none_of_datafusion_is_lost() {
        let plain = SessionStateBuilder::new().with_default_features().build();
        let ours = session_state(1 << 30).unwrap();
        let scalars: BTreeMap<_, _> = ours.scalar_functions().iter().collect();
        for (name, function) in &scalars {
            for own in std::iter::once(function.name())
                .chain(function.aliases().iter().map(String::as_str))
            {
                assert!(Arc::ptr_eq(&ours.scalar_functions()[own], function), "{name}, {own}");
            }
        }
        let aggregates: BTreeMap<_, _> = ours.aggregate_functions().iter().collect();
        for (name, function) in &aggregates {
            for own in std::iter::once(function.name())
                .chain(function.aliases().iter().map(String::as_str))
            {
                assert!(Arc::ptr_eq(&ours.aggregate_functions()[own], function), "{name}, {own}");
            }
        }
        let lost = |name: &&String| !ours.scalar_functions().contains_key(*name);
        assert_eq!(plain.scalar_functions().keys().find(lost), None);
        let lost = |name: &&String| !ours.aggregate_functions().contains_key(*name);
        assert_eq!(plain.aggregate_functions().keys().find(lost), None);
    }
}
