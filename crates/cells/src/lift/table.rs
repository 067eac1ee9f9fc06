//! A cube as a table: one row for each cell of a set of dimensions.
//!
//! ```text
//! t2m [time, lat, lon]  orog [lat, lon]      time | lat | lon | t2m | orog
//!                                            one row per cell of [time, lat, lon], row-major;
//!                                            orog repeats over time
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int64Array, NullArray, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableSource};
use tessera_exec::chunk::arrow_type;
use tessera_planner::catalog::{Attrs, Coord, CoordValues, NAT};
use tessera_planner::dtype::{Calendar, DType};

use super::along::Along;
use super::cube::{Cube, CubeVariable};
use super::scan::row_field;
use super::{Density, error, guards};
use tessera_frontend::error::{BindError, Error};

/// Key of a field's metadata under which Arrow names an extension type.
const EXTENSION_NAME: &str = "ARROW:extension:name";
/// Key of the extension type's parameters.
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";
/// The extension type of datetimes in non-standard calendars: `int64` microseconds.
const CALENDAR_TYPE: &str = "tessera.datetime";

/// Metadata key of columns that cannot be read; the value is the array's name.
pub(crate) const UNREADABLE: &str = "tessera.unreadable";

/// A cube as a table.
#[derive(Debug)]
pub(crate) struct CellTable {
    /// The dimensions, outermost first.
    pub(crate) axes: Vec<Axis>,
    /// The contents of each field of the schema.
    pub(crate) columns: Vec<Column>,
    pub(crate) schema: SchemaRef,
    /// The attributes of labels and of variables, by their column.
    pub(crate) attrs: BTreeMap<Arc<str>, Attrs>,
    /// The error of the first unreadable column whose name the block uses.
    pub(crate) unreadable: Option<BindError>,
}

/// A dimension: its name and its length (unnamed dimensions of one position may differ).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Axis {
    pub(crate) name: Arc<str>,
    pub(crate) len: u64,
}

/// The origin of a column.
#[derive(Debug, Clone)]
pub struct ColumnOrigin {
    /// The labels of its dimension, in their order; `None` for cells.
    pub labels: Option<ArrayRef>,
    /// The attributes.
    pub attrs: Attrs,
}

impl ColumnOrigin {
    /// The attributes that labels keep as labels of another tensor.
    pub fn label_attrs(&self) -> Attrs {
        self.labels.as_ref().map(|_| self.attrs.clone()).unwrap_or_default()
    }
}

/// The names that a block uses of a cube.
pub(crate) trait Named {
    /// True if all variables are used, as by `*` and `count(*)`, or if the used names are unknown.
    fn all(&self) -> bool;

    /// True if the block uses this column, ignoring case.
    fn is_named(&self, column: &str) -> bool;
}

/// The contents of a column.
#[derive(Debug)]
pub(crate) enum Column {
    /// Labels along one axis, known at bind.
    Label { axis: usize, values: Along },
    /// Cells of a variable; `axes` names the table's axis of each of its dimensions.
    Cells { variable: CubeVariable, axes: Vec<usize> },
    /// An array that cannot be read; [`super::unreadable`] reports its use.
    Unreadable(BindError),
}

impl CellTable {
    /// The table over the dimensions that the block's names choose.
    ///
    /// # Errors
    /// `ambiguous_dims` if several sets of dimensions remain; the message lists them.
    pub(crate) fn new(cube: &Cube, named: &dyn Named) -> Result<Self, Error> {
        let mut axes = choose(cube, named)?;
        let dims = axes.len();
        // Texts without a dimension share one of one position, which multiplies no row.
        let is_used = |text: &&Arc<Coord>| named.all() || named.is_named(&text.name);
        let texts: Vec<&Arc<Coord>> = cube.scalars.iter().filter(is_used).collect();
        axes.extend(texts.first().map(|text| axis_of(text)));
        let mut table =
            Build { axes: &axes, columns: Vec::new(), fields: Vec::new(), names: BTreeSet::new() };
        for (a, axis) in axes.iter().enumerate().take(dims) {
            match cube.coords.iter().find(|c| c.dim == axis.name && c.name == c.dim) {
                Some(c) if c.values.len() as u64 == axis.len => match BindError::no_labels(c) {
                    None => table.label(&axis.name, a, &c.values)?,
                    // The array itself may be readable, although it labels nothing: then its cells are the column.
                    Some(_) if cube.has_variable(&c.name) => {}
                    Some(error) => table.unreadable(&c.name, error),
                },
                // A variable with the dimension's name is a column of cells, whose values are known only at run time.
                _ if cube.variables.iter().any(|v| is_own(v, axis)) => {}
                _ => table.positions(axis, a),
            }
        }
        for text in texts {
            table.label(&text.name, dims, &text.values)?;
        }
        for c in &cube.coords {
            if let Some(a) = axes.iter().position(|x| x.name == c.dim)
                && c.name != c.dim
                && c.values.len() as u64 == axes[a].len
            {
                table.label(&c.name, a, &c.values)?;
            }
        }
        for variable in cube.variables.iter().chain(&cube.auxiliary) {
            table.cells(variable)?;
        }
        for of in &cube.unreadable {
            table.unreadable(&of.name, BindError::unreadable(of));
        }
        let Build { columns, fields, .. } = table;
        let unreadable = columns.iter().zip(&fields).find_map(|(column, field)| match column {
            Column::Unreadable(error) if named.is_named(field.name()) => Some(error.clone()),
            _ => None,
        });
        let variables = cube.variables.iter().chain(&cube.auxiliary);
        let attrs = variables.map(|v| (v.name.clone(), v.attrs.clone()));
        let labels = cube.coords.iter().map(|c| (c.name.clone(), c.attrs.clone()));
        let attrs = attrs.chain(labels).collect();
        Ok(Self { columns, schema: Arc::new(Schema::new(fields)), axes, attrs, unreadable })
    }
}

/// True if a variable has the name of its one dimension.
fn is_own(variable: &CubeVariable, axis: &Axis) -> bool {
    variable.name == axis.name && axes_of(variable).as_slice() == std::slice::from_ref(axis)
}

struct Build<'a> {
    axes: &'a [Axis],
    columns: Vec<Column>,
    fields: Vec<Field>,
    names: BTreeSet<String>,
}

impl Build<'_> {
    fn is_taken(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn push(&mut self, field: Field, column: Column) {
        self.names.insert(field.name().clone());
        self.fields.push(field);
        self.columns.push(column);
    }

    /// Adds the positions of a dimension without a coordinate as its labels.
    fn positions(&mut self, axis: &Axis, at: usize) {
        if self.is_taken(&axis.name) {
            return;
        }
        let values = Along::Positions { start: 0, len: axis.len };
        let column = Column::Label { axis: at, values };
        self.push(field(&axis.name, DType::Int64, false), column);
    }

    fn label(&mut self, name: &str, axis: usize, values: &CoordValues) -> Result<(), Error> {
        if self.is_taken(name) {
            return Ok(());
        }
        let has_missing = (0..values.len()).any(|i| values.is_missing(i));
        let field = match values.dtype() {
            Some(dtype) => field(name, dtype, has_missing),
            None => Field::new(name, DataType::Utf8, has_missing),
        };
        self.push(field, Column::Label { axis, values: label_array(values)?.into() });
        Ok(())
    }

    /// Adds an unreadable column. Its type is compatible with all others, so that its use is reported, not its type.
    fn unreadable(&mut self, name: &str, error: BindError) {
        if self.is_taken(name) {
            return;
        }
        let mark = HashMap::from([(UNREADABLE.to_string(), name.to_string())]);
        let field = Field::new(name, DataType::Null, true).with_metadata(mark);
        self.push(field, Column::Unreadable(error));
    }

    /// Adds a variable if its dimensions are among the table's. A variable takes precedence over a coordinate of its
    /// name, but the two are the same labels, so the one that is known at bind is used.
    fn cells(&mut self, variable: &CubeVariable) -> Result<(), Error> {
        let axes: Option<Vec<usize>> = axes_of(variable)
            .iter()
            .map(|axis| self.axes.iter().position(|known| known == axis))
            .collect();
        let Some(axes) = axes else { return Ok(()) };
        if self.is_taken(&variable.name) {
            return Ok(());
        }
        let (dtype, nullable) = variable.dtype().map_err(error::planner)?;
        let column = Column::Cells { variable: variable.clone(), axes };
        self.push(field(&variable.name, dtype, nullable), column);
        Ok(())
    }
}

/// The dimensions of a variable. The position names unnamed ones, and the second of two with one name.
fn axes_of(variable: &CubeVariable) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for (a, (name, &len)) in variable.dims.iter().zip(variable.shape()).enumerate() {
        let name = match name {
            Some(name) if !out.iter().any(|axis| axis.name == *name) => name.clone(),
            _ => format!("dim_{a}").into(),
        };
        out.push(Axis { name, len });
    }
    out
}

/// The maximal sets among those of `variables`, in the order of the first variable of each.
fn maximal<'a>(variables: impl Iterator<Item = &'a CubeVariable>) -> Vec<Vec<Axis>> {
    // However many variables there are, few of their sets differ.
    let mut seen = BTreeSet::new();
    let sets: Vec<Vec<Axis>> =
        variables.map(axes_of).filter(|set| seen.insert(set.clone())).collect();
    let within = |a: &[Axis], b: &[Axis]| a.iter().all(|x| b.contains(x));
    let mut out: Vec<Vec<Axis>> = Vec::new();
    for set in &sets {
        let is_smaller = sets.iter().any(|other| within(set, other) && !within(other, set));
        if !is_smaller && !out.iter().any(|known| within(set, known)) {
            out.push(set.clone());
        }
    }
    out
}

/// Chooses the dimensions whose cells are the rows.
///
/// These are the dimensions of the variables that the block uses, and the dimensions that it uses itself. With `*` or
/// `count(*)`, and if it uses no names, they are the dimensions common to all variables.
fn choose(cube: &Cube, named: &dyn Named) -> Result<Vec<Axis>, Error> {
    let variables = || cube.variables.iter().chain(&cube.auxiliary);
    let is_named = |v: &&CubeVariable| {
        let mut others = cube.also.iter().filter(|(_, own)| *own == v.name);
        named.is_named(&v.name) || others.any(|(other, _)| named.is_named(other))
    };
    let used: Vec<&CubeVariable> = variables().filter(is_named).collect();
    let dims = if named.all() { Vec::new() } else { named_dims(cube, named) };
    let names_text = cube.scalars.iter().any(|c| named.is_named(&c.name));
    let names_some = !used.is_empty() || !dims.is_empty() || names_text;
    if !named.all() && names_some {
        let mut wanted: Vec<Axis> = Vec::new();
        for axis in used.iter().flat_map(|v| axes_of(v)) {
            if !wanted.contains(&axis) {
                wanted.push(axis);
            }
        }
        for dim in dims {
            if wanted.iter().any(|axis| axis.name == dim) {
                continue;
            }
            match lengths(cube, &dim).as_slice() {
                [one] => wanted.push(one.clone()),
                _ => return Err(ambiguous(cube, &maximal(cube.variables.iter()))),
            }
        }
        // In the axis order of a variable.
        let is_within = |of: &[Axis]| wanted.iter().all(|axis| of.contains(axis));
        let own = used.iter().map(|v| axes_of(v)).chain(variables().map(axes_of));
        if let Some(order) = own.into_iter().find(|of| is_within(of)) {
            return Ok(order.into_iter().filter(|axis| wanted.contains(axis)).collect());
        }
        let sets = maximal(used.into_iter());
        return if sets.len() <= 1 { Ok(wanted) } else { Err(ambiguous(cube, &sets)) };
    }
    let mut all = maximal(cube.variables.iter());
    if all.len() > 1 {
        let used = maximal(used.into_iter());
        if used.len() == 1 {
            all = used;
        }
    }
    match all.len() {
        1 => Ok(all.remove(0)),
        0 => Ok(labelled(cube)),
        _ => Err(ambiguous(cube, &all)),
    }
}

/// The dimensions of the coordinates of a cube without variables; those with labels of their own come first.
fn labelled(cube: &Cube) -> Vec<Axis> {
    let (own, beside): (Vec<_>, Vec<_>) = cube.coords.iter().partition(|c| c.name == c.dim);
    let mut out: Vec<Axis> = Vec::new();
    for axis in own.into_iter().chain(beside).map(axis_of) {
        if !out.iter().any(|known| known.name == axis.name) {
            out.push(axis);
        }
    }
    out
}

fn axis_of(coord: &Arc<Coord>) -> Axis {
    Axis { name: coord.dim.clone(), len: coord.values.len() as u64 }
}

/// The dimensions that the block uses, by their own name or by a coordinate along them.
fn named_dims(cube: &Cube, named: &dyn Named) -> Vec<Arc<str>> {
    let variables = cube.variables.iter().chain(&cube.auxiliary);
    let axes = variables.flat_map(axes_of).map(|axis| axis.name);
    let axes = axes.filter(|name| named.is_named(name));
    let coords = cube.coords.iter().filter(|c| named.is_named(&c.name)).map(|c| c.dim.clone());
    let mut out: Vec<Arc<str>> = Vec::new();
    for name in axes.chain(coords) {
        if !out.contains(&name) {
            out.push(name);
        }
    }
    out
}

/// The dimensions of that name: usually one.
fn lengths(cube: &Cube, dim: &str) -> Vec<Axis> {
    let variables = cube.variables.iter().chain(&cube.auxiliary);
    let axes = variables.flat_map(axes_of).filter(|axis| &*axis.name == dim);
    let coords = cube.coords.iter().filter(|c| &*c.dim == dim);
    let coords = coords.map(axis_of);
    let mut out: Vec<Axis> = Vec::new();
    for axis in axes {
        if !out.contains(&axis) {
            out.push(axis);
        }
    }
    if out.is_empty() { coords.take(1).collect() } else { out }
}

fn ambiguous(cube: &Cube, all: &[Vec<Axis>]) -> Error {
    let sets: Vec<String> = all
        .iter()
        .map(|set| {
            let dims: Vec<String> = set.iter().map(|a| format!("{}={}", a.name, a.len)).collect();
            let names: Vec<&str> = cube
                .variables
                .iter()
                .filter(|v| axes_of(v).iter().all(|a| set.contains(a)))
                .map(|v| &*v.name)
                .collect();
            format!("[{}] of {}", dims.join(", "), names.join(", "))
        })
        .collect();
    Error::Cells {
        code: "ambiguous_dims",
        message: format!(
            "the variables of `{}` have no common dimensions: {}",
            cube.name,
            sets.join("; ")
        ),
        position: None,
        hint: Some(
            "a cell block is one table: name only variables of one of these sets in it".to_string(),
        ),
    }
}

/// The field of a column of that type; non-standard calendars are `int64` with the calendar in the metadata.
pub fn field(name: &str, dtype: DType, nullable: bool) -> Field {
    let field = Field::new(name, arrow_type(dtype), nullable);
    match dtype {
        DType::Datetime(calendar) if calendar != Calendar::Standard => {
            let parameters = serde_json::json!({
                "units": "microseconds since 1970-01-01",
                "calendar": calendar.name(),
            });
            field.with_metadata(HashMap::from([
                (EXTENSION_NAME.to_string(), CALENDAR_TYPE.to_string()),
                (EXTENSION_METADATA.to_string(), parameters.to_string()),
            ]))
        }
        _ => field,
    }
}

/// The calendar in which a field counts microseconds, if it is a datetime.
pub fn calendar(field: &Field) -> Option<Calendar> {
    match field.data_type() {
        DataType::Timestamp(TimeUnit::Microsecond, None) => Some(Calendar::Standard),
        DataType::Int64 if field.metadata().get(EXTENSION_NAME)? == CALENDAR_TYPE => {
            let text = field.metadata().get(EXTENSION_METADATA)?;
            let json: serde_json::Value = serde_json::from_str(text).ok()?;
            let name = json.get("calendar")?.as_str()?.to_string();
            Calendar::ALL.into_iter().find(|c| *c != Calendar::Standard && c.name() == name)
        }
        _ => None,
    }
}

/// The element type of a tensor of a column's values.
pub(crate) fn dtype_of_field(field: &Field) -> Option<DType> {
    calendar(field).map(DType::Datetime).or_else(|| dtype_of(field.data_type()))
}

/// The IR's element type for an Arrow type, if it exists.
pub fn dtype_of(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::Int8,
        DataType::Int16 => DType::Int16,
        DataType::Int32 => DType::Int32,
        DataType::Int64 => DType::Int64,
        DataType::UInt8 => DType::UInt8,
        DataType::UInt16 => DType::UInt16,
        DataType::UInt32 => DType::UInt32,
        DataType::UInt64 => DType::UInt64,
        DataType::Float32 => DType::Float32,
        DataType::Float64 => DType::Float64,
        DataType::Timestamp(TimeUnit::Microsecond, None) => DType::Datetime(Calendar::Standard),
        _ => return None,
    })
}

/// Labels as an Arrow array, with a positive NaN, which Arrow orders above all numbers.
fn label_array(values: &CoordValues) -> Result<ArrayRef, Error> {
    let one_nan = |x: f64| if x.is_nan() { f64::NAN } else { x };
    let wide: ArrayRef = match values {
        CoordValues::Int(_, v) => Arc::new(Int64Array::from(v.to_vec())),
        CoordValues::Float(DType::Float32, v) => {
            Arc::new(v.iter().map(|&x| Some(one_nan(x) as f32)).collect::<Float32Array>())
        }
        CoordValues::Float(_, v) => {
            Arc::new(v.iter().map(|&x| Some(one_nan(x))).collect::<Float64Array>())
        }
        CoordValues::Time(Calendar::Standard, v) => Arc::new(
            v.iter().map(|&t| (t != NAT).then_some(t)).collect::<TimestampMicrosecondArray>(),
        ),
        CoordValues::Time(_, v) => {
            Arc::new(v.iter().map(|&t| (t != NAT).then_some(t)).collect::<Int64Array>())
        }
        CoordValues::Unreadable(_) => Arc::new(NullArray::new(values.len())),
        CoordValues::Text(v) => Arc::new(v.options().collect::<StringArray>()),
    };
    match values {
        // The bits of an unsigned 64-bit label are stored in an `i64`.
        CoordValues::Int(DType::UInt64, v) => {
            Ok(Arc::new(v.iter().map(|&x| Some(x as u64)).collect::<arrow::array::UInt64Array>()))
        }
        CoordValues::Int(dtype, _) => {
            cast(&wide, &arrow_type(*dtype)).map_err(|e| error::plan(e.into()))
        }
        _ => Ok(wide),
    }
}

/// The table as DataFusion sees it during planning: a name, a schema, and the filters that it accepts.
#[derive(Debug)]
pub(crate) struct CellSource {
    pub(crate) table: Arc<CellTable>,
    /// If `Off`, a filter on a dimension is not a slice either.
    pub(crate) density: Density,
    /// The schema, with the hidden row number if there is one.
    schema: SchemaRef,
}

impl CellSource {
    pub(crate) fn new(table: Arc<CellTable>, density: Density) -> Self {
        Self { schema: table.schema.clone(), table, density }
    }

    /// Adds a last column of that name with the row numbers.
    pub(crate) fn numbered(&self, name: &str) -> Self {
        let mut fields: Vec<FieldRef> = self.table.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(row_field(name)));
        let schema = Arc::new(Schema::new(fields));
        Self { table: self.table.clone(), density: self.density, schema }
    }
}

impl TableSource for CellSource {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> datafusion::error::Result<Vec<TableProviderFilterPushDown>> {
        use TableProviderFilterPushDown::{Exact, Inexact, Unsupported};
        let is_slice =
            |of: &Expr| self.density == Density::Auto && self.table.label_axis(of).is_some();
        let support = |filter: &Expr| -> datafusion::error::Result<_> {
            Ok(match is_slice(filter) {
                true => Exact,
                // Guards refer to other columns; the filter above evaluates them too.
                false if is_slice(&guards::unguarded(filter.clone())?) => Inexact,
                false => Unsupported,
            })
        };
        filters.iter().copied().map(support).collect()
    }
}

/// The dependences of an expression over the columns of one table.
#[derive(Debug, Default)]
pub(crate) struct Dependence {
    /// The axes of the labels that it references.
    pub(crate) labels: BTreeSet<usize>,
    /// True if it references cells of variables.
    pub(crate) cells: bool,
}

impl Dependence {
    /// The dependences of an expression, to which `column` adds those of a column; `None` if they are known only at run
    /// time: subqueries, volatile functions, columns that `column` does not know.
    pub(super) fn of(
        expr: &Expr,
        mut column: impl FnMut(&datafusion::common::Column, &mut Dependence) -> Option<()>,
    ) -> Option<Dependence> {
        use crate::walk::Walk;
        use datafusion::common::tree_node::TreeNodeRecursion;
        let mut out = Dependence::default();
        let mut is_known = !expr.is_volatile();
        let walk = expr.each(|e| {
            match e {
                Expr::Column(c) => is_known &= column(c, &mut out).is_some(),
                Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
                | Expr::ScalarSubquery(_)
                | Expr::OuterReferenceColumn(..)
                | Expr::Placeholder(_)
                | Expr::ScalarVariable(..)
                | Expr::AggregateFunction(_)
                | Expr::WindowFunction(_)
                | Expr::Unnest(_)
                | Expr::HigherOrderFunction(_)
                | Expr::Lambda(_)
                | Expr::LambdaVariable(_)
                | Expr::GroupingSet(_) => is_known = false,
                _ => {}
            }
            Ok(if is_known { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
        });
        (walk.is_ok() && is_known).then_some(out)
    }
}

impl CellTable {
    /// The origin of a column; `None` for positions, which are ordered anyway.
    pub(crate) fn origin(&self, column: usize) -> Option<ColumnOrigin> {
        let labels = match self.columns.get(column)? {
            Column::Label { values: Along::Values(labels), .. } => Some(labels.clone()),
            Column::Cells { .. } => None,
            Column::Label { values: Along::Positions { .. }, .. } | Column::Unreadable(_) => {
                return None;
            }
        };
        let attrs = self.attrs.get(self.schema.field(column).name().as_str());
        Some(ColumnOrigin { labels, attrs: attrs.cloned().unwrap_or_default() })
    }

    /// The table's column, if the expression is one.
    pub(crate) fn column(&self, expr: &Expr) -> Option<&Column> {
        let Expr::Column(column) = expr else { return None };
        self.columns.get(self.schema.index_of(&column.name).ok()?)
    }

    /// [`Dependence::of`], where columns are those of this table.
    pub(crate) fn dependence(&self, expr: &Expr) -> Option<Dependence> {
        Dependence::of(expr, |column, out| {
            match self.columns.get(self.schema.index_of(&column.name).ok()?)? {
                Column::Label { axis, .. } => {
                    out.labels.insert(*axis);
                }
                Column::Cells { .. } => out.cells = true,
                Column::Unreadable(_) => return None,
            }
            Some(())
        })
    }
}
