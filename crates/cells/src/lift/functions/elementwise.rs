//! Elementwise functions of the tensor surface as functions of rows: one adapter for the frontend's table.
//!
//! ```text
//!   clip(t2m, 0, 1.5)  ⇒  clip('clip(x0, 0, 1.5)', t2m)      the text of the call, then its columns
//! ```
//! The text is lowered over the columns ([`tessera_frontend::columns`]): for a dense plan to nodes of its graph, for
//! rows to a program of the kernels ([`tessera_exec::columns`]). Both have the same types, NULLs and bits.
//!
//! Names that SQL has keep SQL's function.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef, TimeUnit};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err};
use datafusion::functions::all_default_functions;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use tessera_exec::columns::Elementwise as Program;
use tessera_frontend::error::{BindError, Error};
use tessera_frontend::{columns, functions::elementwise};
use tessera_planner::build::Builder;
use tessera_planner::catalog::SourceRef;
use tessera_planner::config::Config;
use tessera_planner::dtype::DType;
use tessera_planner::error::Error as PlanError;
use tessera_planner::grid::Grid;

use super::super::error::{InCall, planner, spoken};
use super::super::table::{dtype_of, field};
use super::inner::{hashed_by, scalar};

/// Functions that the rewrite of the syntax tree writes in SQL.
const IN_SQL: [&str; 8] = ["arctan2", "e", "inf", "isnull", "nan", "notnull", "sign", "where"];

/// `x0`, and NULL for NaN.
pub(in crate::lift) const WITHOUT_NAN: &str = "tessera_without_nan";

/// Upper bound on the edges of `digitize` and `searchsorted`, each of which is an operation.
pub(in crate::lift) const EDGES_MAX: usize = 256;

/// Functions whose text is more than a call.
const OF_TEXTS: [&str; 3] = ["digitize", "searchsorted", WITHOUT_NAN];

/// Programs by the text of the call and the types of its columns.
type Programs = BTreeMap<(String, Vec<DType>), Arc<Program>>;

/// The programs of all statements, at most [`PROGRAMS_MAX`].
static PROGRAMS: Mutex<Programs> = Mutex::new(BTreeMap::new());

/// Upper bound on the programs that are retained: some kilobytes each.
const PROGRAMS_MAX: usize = 256;

fn names() -> &'static BTreeSet<&'static str> {
    static NAMES: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
        let sql = all_default_functions();
        let is_sql = |name: &str| {
            sql.iter().any(|f| f.name() == name || f.aliases().iter().any(|alias| alias == name))
        };
        let names = elementwise().map(|f| f.name);
        names.filter(|name| !IN_SQL.contains(name) && !is_sql(name)).collect()
    });
    &NAMES
}

/// True if a cell block has the function from the tensor surface; `name` is in lower case.
pub(in crate::lift) fn is_elementwise(name: &str) -> bool {
    names().contains(name)
}

pub(super) fn functions() -> impl Iterator<Item = ScalarUDF> {
    names().iter().copied().chain(OF_TEXTS).map(|name| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(Elementwise { name, signature })
    })
}

/// The text and the columns of a call of one of the functions.
pub(in crate::lift) fn parts(call: &ScalarFunction) -> Option<(&str, &[Expr])> {
    if !call.func.inner().is::<Elementwise>() {
        return None;
    }
    match call.args.as_slice() {
        [Expr::Literal(ScalarValue::Utf8(Some(text)), _), columns @ ..] => {
            Some((text.as_str(), columns))
        }
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Elementwise {
    name: &'static str,
    signature: Signature,
}

hashed_by!(Elementwise, function => function.name);

impl ScalarUDFImpl for Elementwise {
    scalar!(name, signature, type_by_field);

    /// Types that tensors lack become the nearest that they have.
    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        use DataType::{Date32, Date64, Float16, Float32, Float64, Null, Timestamp};
        let near = |one: &DataType| match one {
            Float16 => Float32,
            Null => Float64,
            Date32 | Date64 | Timestamp(_, None) => Timestamp(TimeUnit::Microsecond, None),
            decimal if decimal.is_decimal() => Float64,
            other => other.clone(),
        };
        Ok(types.iter().map(near).collect())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let text = args.scalar_arguments.first().copied().flatten();
        let columns = args.arg_fields.iter().skip(1);
        let types: Vec<&DataType> = columns.map(|column| column.data_type()).collect();
        let program = self.program(text, &types).map_err(|error| self.external(error))?;
        Ok(Arc::new(field(self.name, program.dtype(), program.nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((ColumnarValue::Scalar(text), columns)) = args.args.split_first() else {
            return internal_err!("{} is called without its text", self.name);
        };
        let types: Vec<DataType> = columns.iter().map(ColumnarValue::data_type).collect();
        let types: Vec<&DataType> = types.iter().collect();
        let program = self.program(Some(text), &types);
        let program = program.map_err(|error| DataFusionError::External(Box::new(error)))?;
        let is_scalar = columns.iter().all(|column| matches!(column, ColumnarValue::Scalar(_)));
        let arrays = columns.iter().map(|column| match column {
            ColumnarValue::Array(array) => Ok(array.clone()),
            ColumnarValue::Scalar(value) => value.to_array(),
        });
        let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
        let rows = if is_scalar { 1 } else { args.number_rows };
        let out = program.run(&arrays, rows);
        let out = out.map_err(|error| DataFusionError::External(Box::new(error)))?;
        super::columnar(out, is_scalar)
    }
}

impl Elementwise {
    /// The error of a call, which has the position of the call.
    fn external(&self, error: Error) -> DataFusionError {
        DataFusionError::External(Box::new(InCall { function: self.name.to_string(), error }))
    }

    /// The program of a call over columns of these types.
    fn program(
        &self,
        text: Option<&ScalarValue>,
        types: &[&DataType],
    ) -> std::result::Result<Arc<Program>, Error> {
        let Some(ScalarValue::Utf8(Some(text))) = text else { return Err(self.without_text()) };
        let mut dtypes = Vec::with_capacity(types.len());
        for one in types {
            dtypes.push(dtype_of(one).ok_or_else(|| self.not_defined(types))?);
        }
        let key = (text.clone(), dtypes);
        let known = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = Arc::new(compiled(text, &key.1)?);
        let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if programs.len() >= PROGRAMS_MAX {
            programs.clear();
        }
        programs.insert(key, made.clone());
        Ok(made)
    }

    /// The error of a call that the rewrite of the syntax tree left as it was.
    fn without_text(&self) -> Error {
        if OF_TEXTS.contains(&self.name) {
            return Error::Cells {
                code: "invalid_argument",
                message: format!(
                    "`{}` in a cell block takes a list of at most {EDGES_MAX} literal numbers in ascending or descending order",
                    self.name
                ),
                position: None,
                hint: Some(
                    "put other calls into a subquery: `FROM (SELECT … AS name FROM x)`".to_string(),
                ),
            };
        }
        Error::unsupported(format!("`{}` with DISTINCT, FILTER or the like", self.name), None)
            .with_hint("remove that clause: the function takes arguments only")
    }

    fn not_defined(&self, types: &[&DataType]) -> Error {
        let types: Vec<String> = types.iter().map(|one| spoken(&one.to_string())).collect();
        let hint = types.iter().any(|one| one == "text");
        let hint = hint.then(|| "convert texts with `x::double`, `x::int`, `x::timestamp`".into());
        let operation = if self.name == WITHOUT_NAN { "isnan" } else { self.name };
        let error = BindError::Types { operation: operation.to_string(), types, hint };
        Error::Bind { error, position: None }
    }
}

/// The text of a call over columns as a program.
fn compiled(text: &str, dtypes: &[DType]) -> std::result::Result<Program, Error> {
    let mut b = Builder::new(Config::default());
    let load = |(k, &dtype): (usize, &DType)| {
        b.load(Arc::new(SourceRef {
            url: "temp:columns".into(),
            path: k.to_string(),
            dtype,
            shape: [1].as_slice().into(),
            grid: Grid::single(&[1]),
            nullable: true,
            version: None,
            plain: false,
        }))
    };
    let loaded: std::result::Result<Vec<_>, PlanError> =
        dtypes.iter().enumerate().map(load).collect();
    let loaded = loaded.map_err(planner)?;
    let root = columns::lower(text, &mut b, &loaded)?;
    let root = b.broadcast_to(root, &[1]).map_err(planner)?;
    Program::new(&b.graph, root, &loaded).map_err(|error| Error::Cells {
        code: "internal",
        message: format!("`{text}` cannot be computed over rows: {error}"),
        position: None,
        hint: None,
    })
}
