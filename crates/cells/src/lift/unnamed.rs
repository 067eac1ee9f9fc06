//! Functions of this crate that no session registers, as parts from which another process recreates them.

use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::ScalarUDF;

use super::faster::select;
use super::functions::{
    NestedText, TimeShift, TimeText, nullable, opaque, operand, texts_with_seconds,
};
use super::{all_of, always, decimals, guards, join_keys, like, local_time, nan, order};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// A function without state.
    Plain(String),
    /// A search for the parts of a pattern.
    Like {
        /// The start of a matching text.
        start: String,
        /// The parts between start and end, in order.
        middle: Vec<String>,
        /// The end of a matching text.
        end: String,
        /// True for `NOT LIKE`.
        negated: bool,
    },
    /// The positions of labels along their dimension.
    Rank {
        types: Vec<DataType>,
        /// Labels as rows of Arrow's row format, in their order, and the first position of each.
        places: Vec<(Vec<u8>, u64)>,
    },
}

impl Unnamed {
    /// The parts of a function; `None` if it is not one of these.
    pub(crate) fn of(function: &ScalarUDF) -> Option<Self> {
        let parts = like::parts_of(function).or_else(|| order::rank_of(function));
        parts.or_else(|| {
            let made = plain(function.name())?;
            (made == *function).then(|| Unnamed::Plain(made.name().to_string()))
        })
    }

    /// The function.
    ///
    /// # Errors
    /// An unknown name, or labels that have no order.
    pub(crate) fn function(self) -> Result<ScalarUDF> {
        match self {
            Unnamed::Plain(name) => match plain(&name) {
                Some(function) => Ok(function),
                None => internal_err!("no function has the name {name}"),
            },
            Unnamed::Like { start, middle, end, negated } => {
                Ok(like::of_parts(start, middle, end, negated))
            }
            Unnamed::Rank { types, places } => order::rank_of_parts(types, places),
        }
    }
}

fn plain(name: &str) -> Option<ScalarUDF> {
    let (all, always) = (all_of::function(), always::function());
    let ours = [
        all,
        always,
        TimeText::default().into(),
        texts_with_seconds(),
        NestedText::default().into(),
        opaque(),
        nullable(),
        operand(),
    ];
    let moved: [ScalarUDF; 2] = [false, true].map(|is_minus| TimeShift::new(is_minus).into());
    let ours = ours.into_iter().chain(moved).chain(local_time::function(local_time::NAME));
    let ours = ours.chain(nan::functions()).chain([guards::function()]);
    let ours = ours.chain(join_keys::functions()).chain(decimals::functions());
    let mut ours = ours.chain(select::functions());
    ours.find(|function| function.name() == name)
}

/// The function that ranks labels, one array for each argument.
#[cfg(test)]
pub(crate) fn ranked(labels: &[arrow::array::ArrayRef]) -> ScalarUDF {
    use datafusion::logical_expr::Expr;
    let columns = labels.iter().map(|_| datafusion::prelude::col("x")).collect();
    match order::rank_by(columns, labels).unwrap() {
        Expr::ScalarFunction(call) => ScalarUDF::clone(&call.func),
        other => panic!("{other} is not a function"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Float64Array, StringArray};
    use std::sync::Arc;

    #[test]
    fn functions_are_recreated_from_their_parts() {
        let labels: [ArrayRef; 2] = [
            Arc::new(Float64Array::from(vec![2.5, -0.0, f64::NAN, 2.5])),
            Arc::new(StringArray::from(vec![Some("a"), Some("b"), Some("c"), None])),
        ];
        let like = |negated| like::of_parts("a".into(), vec!["b".into()], String::new(), negated);
        let calls = [like(false), like(true), ranked(&labels)];
        let names = ["one_nan", "one_zero", "member", "tessera_each", "tessera_length"];
        let names = names.into_iter().chain([
            "tessera_all",
            "tessera_where",
            "tessera_join_key",
            "tessera_time_text",
            "tessera_with_seconds",
            "tessera_nested_text",
        ]);
        let decimals = ["add", "subtract", "multiply"].map(|op| format!("tessera_decimal_{op}"));
        let names = names
            .chain(["tessera_always", "tessera_opaque", "tessera_join_key_32", "tessera_maybe"])
            .chain(["tessera_time_plus", "tessera_time_minus", "tessera_at_time_zone"])
            .chain(["tessera_select", "tessera_select_valid", "tessera_operand"])
            .chain(decimals.iter().map(String::as_str));
        let plain = names.map(|name| plain(name).unwrap());
        for function in calls.into_iter().chain(plain) {
            let parts = Unnamed::of(&function).unwrap();
            assert_eq!(parts.clone().function().unwrap(), function, "{parts:?}");
        }
        assert_ne!(like(false), like(true));
    }

    #[test]
    fn other_functions_of_the_same_names_have_no_parts() {
        use datafusion::logical_expr::{ColumnarValue, Volatility, create_udf};
        for name in ["one_nan", "member", "tessera_like", "tessera_rank", "sqrt"] {
            let other = create_udf(
                name,
                vec![DataType::Float64],
                DataType::Float64,
                Volatility::Immutable,
                Arc::new(|args: &[ColumnarValue]| Ok(args[0].clone())),
            );
            assert_eq!(Unnamed::of(&other), None, "{name}");
        }
        assert!(Unnamed::Plain("sqrt".into()).function().is_err());
    }
}
