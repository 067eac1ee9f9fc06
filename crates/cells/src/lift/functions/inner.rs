//! Methods that many functions have in common.

use arrow::array::{Array, BooleanArray};

/// True for a row whose condition is true, not NULL; for all rows without conditions.
#[inline]
pub(crate) fn holds(conditions: Option<&BooleanArray>, row: usize) -> bool {
    conditions.is_none_or(|holds| holds.is_valid(row) && holds.value(row))
}

/// Delegates methods of `AggregateUDFImpl`, or of `ScalarUDFImpl`, to `self.inner`.
macro_rules! of_inner {
    ($($method:ident),+ $(,)?) => { $(of_inner!(@ $method);)+ };
    (@ name) => {
        fn name(&self) -> &str {
            self.inner.name()
        }
    };
    (@ documentation) => {
        fn documentation(&self) -> Option<&::datafusion::logical_expr::Documentation> {
            self.inner.documentation()
        }
    };
    (@ aliases) => {
        fn aliases(&self) -> &[String] {
            self.inner.aliases()
        }
    };
    (@ signature) => {
        fn signature(&self) -> &::datafusion::logical_expr::Signature {
            self.inner.signature()
        }
    };
    (@ coerce_types) => {
        fn coerce_types(
            &self,
            types: &[::arrow::datatypes::DataType],
        ) -> ::datafusion::common::Result<Vec<::arrow::datatypes::DataType>> {
            self.inner.coerce_types(types)
        }
    };
    (@ return_type) => {
        fn return_type(
            &self,
            types: &[::arrow::datatypes::DataType],
        ) -> ::datafusion::common::Result<::arrow::datatypes::DataType> {
            self.inner.return_type(types)
        }
    };
    (@ state_fields) => {
        fn state_fields(
            &self,
            args: ::datafusion::logical_expr::function::StateFieldsArgs,
        ) -> ::datafusion::common::Result<Vec<::arrow::datatypes::FieldRef>> {
            self.inner.state_fields(args)
        }
    };
    (@ accumulator) => {
        fn accumulator(
            &self,
            args: ::datafusion::logical_expr::function::AccumulatorArgs,
        ) -> ::datafusion::common::Result<Box<dyn ::datafusion::logical_expr::Accumulator>> {
            self.inner.accumulator(args)
        }
    };
    (@ order_sensitivity) => {
        fn order_sensitivity(
            &self,
        ) -> ::datafusion::logical_expr::utils::AggregateOrderSensitivity {
            self.inner.order_sensitivity()
        }
    };
    (@ groups_accumulator_supported) => {
        fn groups_accumulator_supported(
            &self,
            args: ::datafusion::logical_expr::function::AccumulatorArgs,
        ) -> bool {
            self.inner.groups_accumulator_supported(args)
        }
    };
    (@ create_groups_accumulator) => {
        fn create_groups_accumulator(
            &self,
            args: ::datafusion::logical_expr::function::AccumulatorArgs,
        ) -> ::datafusion::common::Result<Box<dyn ::datafusion::logical_expr::GroupsAccumulator>>
        {
            self.inner.create_groups_accumulator(args)
        }
    };
}

pub(super) use of_inner;

/// Methods of an `Accumulator` for sliding frames: it removes values, and has no partial states.
macro_rules! of_frame {
    () => {
        fn supports_retract_batch(&self) -> bool {
            true
        }

        fn state(
            &mut self,
        ) -> ::datafusion::common::Result<Vec<::datafusion::common::ScalarValue>> {
            ::datafusion::common::internal_err!("a frame is not put together from parts")
        }

        fn merge_batch(
            &mut self,
            _: &[::arrow::array::ArrayRef],
        ) -> ::datafusion::common::Result<()> {
            ::datafusion::common::internal_err!("a frame is not put together from parts")
        }
    };
}

pub(super) use of_frame;

/// Hashes a function by a key that determines the rest. Plans hash each call of each expression many times, and the
/// types that a function takes are a long list.
macro_rules! hashed_by {
    ($of:ty, $function:ident => $key:expr) => {
        impl ::std::hash::Hash for $of {
            fn hash<H: ::std::hash::Hasher>(&self, state: &mut H) {
                let $function = self;
                ::std::hash::Hash::hash(&$key, state);
            }
        }
    };
}

pub(in crate::lift) use hashed_by;

/// Methods of `ScalarUDFImpl`, or of `AggregateUDFImpl`.
///
/// | word | the function |
/// |---|---|
/// | `name n` | is named `n` |
/// | `name`, `aliases`, `signature`, `documentation` | has it in its field of that name |
/// | `returns t` | returns values of the type `t` |
/// | `type_of_first` | has the type of its first argument |
/// | `type_by_field` | has a type that follows from the fields of its arguments |
macro_rules! scalar {
    ($($what:ident $($value:expr)?),+ $(,)?) => { $(scalar!(@ $what $($value)?);)+ };
    (@ name) => {
        fn name(&self) -> &str {
            self.name
        }
    };
    (@ name $name:expr) => {
        fn name(&self) -> &str {
            $name
        }
    };
    (@ aliases) => {
        fn aliases(&self) -> &[String] {
            &self.aliases
        }
    };
    (@ signature) => {
        fn signature(&self) -> &::datafusion::logical_expr::Signature {
            &self.signature
        }
    };
    (@ documentation) => {
        fn documentation(&self) -> Option<&::datafusion::logical_expr::Documentation> {
            Some(&self.documentation)
        }
    };
    (@ type_of_first) => {
        fn return_type(
            &self,
            types: &[::arrow::datatypes::DataType],
        ) -> ::datafusion::common::Result<::arrow::datatypes::DataType> {
            Ok(types.first().cloned().unwrap_or(::arrow::datatypes::DataType::Null))
        }
    };
    (@ returns $kind:expr) => {
        fn return_type(
            &self,
            _: &[::arrow::datatypes::DataType],
        ) -> ::datafusion::common::Result<::arrow::datatypes::DataType> {
            Ok($kind)
        }

        // By default the bounds have no type, so that DataFusion cannot order `time + interval` by them.
        fn evaluate_bounds(
            &self,
            _: &[&::datafusion::logical_expr::interval_arithmetic::Interval],
        ) -> ::datafusion::common::Result<::datafusion::logical_expr::interval_arithmetic::Interval>
        {
            ::datafusion::logical_expr::interval_arithmetic::Interval::make_unbounded(&$kind)
        }
    };
    (@ type_by_field) => {
        fn return_type(
            &self,
            _: &[::arrow::datatypes::DataType],
        ) -> ::datafusion::common::Result<::arrow::datatypes::DataType> {
            ::datafusion::common::internal_err!("{} has a type by its fields", self.name())
        }
    };
}

pub(in crate::lift) use scalar;
