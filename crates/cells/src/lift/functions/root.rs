//! `sqrt` and `power` as in IEEE 754: NaN for the root of a negative number, an infinity for `power(0, -1)`. An
//! error would end the statement for one cell of millions, and the dense path raises none.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::inner::of_inner;
use super::over_arrays;

/// DataFusion's function with the computation replaced.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Ieee {
    inner: Arc<ScalarUDF>,
}

impl Ieee {
    pub(super) fn new(inner: Arc<ScalarUDF>) -> Self {
        Self { inner }
    }
}

impl ScalarUDFImpl for Ieee {
    of_inner!(name, aliases, documentation, signature, return_type);

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args, |arrays| {
            Ok(match arrays {
                [x] if *x.data_type() == DataType::Float32 => {
                    Arc::new(x.as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::sqrt))
                }
                [x] if *x.data_type() == DataType::Float64 => {
                    Arc::new(x.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::sqrt))
                }
                [x, y] if [x, y].iter().all(|a| *a.data_type() == DataType::Float64) => {
                    let (x, y) = (x.as_primitive::<Float64Type>(), y.as_primitive::<Float64Type>());
                    Arc::new(arrow::compute::binary::<_, _, _, Float64Type>(x, y, f64::powf)?)
                }
                other => {
                    let types: Vec<_> = other.iter().map(|a| a.data_type().clone()).collect();
                    return internal_err!("{} of {types:?}", self.name());
                }
            })
        })
    }
}
