//! SHOW and DESCRIBE: the catalog as rows.

use crate::Handle;
use crate::answer::{Answer, Reply, RowsHeld};
use crate::error::Error;
use crate::session::Session;
use crate::session::open::{Found, Opener, bare};
use crate::session::warehouse::Definition;
use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use sqlparser::ast::Query;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_cells::column_type;
use tessera_cells::lift::RowsFunction;
use tessera_cells::tables::TableFormat;
use tessera_frontend::statement::{Described, Show};
use tessera_planner::catalog::{Coord, Dataset, PythonJson, Variable};
use tessera_planner::dtype::DType;
use tessera_storage::source::inside;

/// Upper bound on the characters of a label in DESCRIBE.
const LABEL_CHARS: usize = 64;

/// The columns of DESCRIBE. A coordinate has its first and last label in place of chunks.
const COLUMNS: [&str; 6] = ["name", "kind", "dtype", "dims", "chunks", "attributes"];

const FUNCTION_COLUMNS: [&str; 8] =
    ["name", "signature", "description", "dtypes", "masks and NaN", "example", "numpy", "kind"];

/// The rows of SHOW FUNCTIONS. A function of tensors that rows have too is one row, with the kinds of both.
fn functions(of_rows: Vec<RowsFunction>) -> Vec<[String; 8]> {
    let mut all: BTreeMap<String, [String; 8]> = BTreeMap::new();
    for RowsFunction { name, kinds, signature, about } in of_rows {
        let [dtypes, missing, example, numpy] = [const { String::new() }; 4];
        let kind = kinds.join(", ");
        let row = [name.clone(), signature, about, dtypes, missing, example, numpy, kind];
        all.insert(name, row);
    }
    for f in tessera_frontend::functions::functions() {
        let kind = match all.get(f.name) {
            Some([.., of_rows]) => format!("tensor, {of_rows}"),
            None => "tensor".to_string(),
        };
        let row = [f.name, f.signature, f.doc, f.dtypes, f.missing, &f.example, &f.numpy, &kind];
        all.insert(f.name.to_string(), row.map(String::from));
    }
    all.into_values().collect()
}

impl Session {
    pub(super) async fn show(&self, show: &Show) -> Result<Reply, Error> {
        match show {
            Show::Tensors => {
                let mut rows = Vec::new();
                for (name, temp) in self.temps().iter() {
                    let size = tessera_planner::explain::bytes(temp.bytes());
                    rows.push([name.clone(), temp.kind().into(), size]);
                }
                for e in self.host.warehouse.list().await? {
                    let (kind, place) = match e.definition {
                        Definition::External { stored_as, location, .. } => {
                            (format!("external {stored_as}"), location)
                        }
                        Definition::Tensor { data, .. } => {
                            ("tensor".into(), self.host.warehouse.url(&data))
                        }
                        Definition::View { query } => ("view".into(), query),
                    };
                    rows.push([e.name, kind, place]);
                }
                rows_of(["name", "kind", "where"], rows)
            }
            Show::Functions => {
                let of_rows = self.host.rows.state().functions().map_err(Error::stage)?;
                rows_of(FUNCTION_COLUMNS, functions(of_rows))
            }
            Show::All => {
                let settings = self.settings();
                let mut rows: Vec<[String; 3]> = settings
                    .list()
                    .into_iter()
                    .map(|(k, v)| [k.into(), v, "session".into()])
                    .collect();
                for s in &self.host.config.sources {
                    rows.push([format!("tessera.{}", s.key), s.value.clone(), s.origin.clone()]);
                }
                rows_of(["name", "value", "from"], rows)
            }
            Show::Variable(name) => {
                let settings = self.settings();
                let wanted =
                    name.text.strip_prefix("tessera.").unwrap_or(&name.text).replace('_', "-");
                let mut found: Vec<[String; 2]> = Vec::new();
                for (k, v) in settings.list() {
                    if k.trim_start_matches("tessera.").replace('_', "-") == wanted {
                        found.push([k.into(), v]);
                    }
                }
                for s in &self.host.config.sources {
                    if s.key == wanted {
                        found.push([format!("tessera.{}", s.key), s.value.clone()]);
                    }
                }
                if found.is_empty() {
                    return Err(Error::stage(super::Failure::Setting {
                        name: name.text.clone(),
                        reason: "unknown setting".into(),
                    }));
                }
                rows_of(["name", "value"], found)
            }
            Show::Queries => rows_of(crate::statement::COLUMNS, self.host.queries.rows()),
            Show::Workers => {
                let members = self.host.cluster().map(|c| c.registry().all()).unwrap_or_default();
                rows_of(super::workers::COLUMNS, members.iter().map(super::workers::row).collect())
            }
        }
    }

    pub(super) async fn describe(
        &self,
        what: &Described,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let mut opener = Opener::new(self, Vec::new(), statement);
        let (dataset, name) = match what {
            Described::Query(query) => return self.describe_query(query, statement).await,
            Described::Url(url) => match TableFormat::of_url(&url.text) {
                Some(format) => {
                    return columns(&opener.table(format, &url.text, &[]).await?.schema());
                }
                None => (opener.url(&url.text, &[]).await?, url.text.clone()),
            },
            Described::Name(name) => {
                let key = bare(&name.to_string());
                match opener.find(&key).await? {
                    Some(Found::Dataset(dataset)) => (dataset, String::new()),
                    Some(Found::Table(table)) => return columns(&table.schema()),
                    Some(Found::View(view)) => {
                        return Box::pin(self.describe_query(&view.query, statement)).await;
                    }
                    None => {
                        let known = self.host.warehouse.names().await?;
                        return Err(self.unknown(name, known));
                    }
                }
            }
        };
        describe(&dataset, &name)
    }
}

fn columns(schema: &Schema) -> Result<Reply, Error> {
    let rows = schema.fields().iter();
    let rows = rows.map(|f| [f.name(), "column", &column_type(f), "", "", ""].map(String::from));
    rows_of(COLUMNS, rows.collect())
}

impl Session {
    /// The results of a query. The query is planned and not run, except for the parts that decide its shape.
    async fn describe_query(&self, query: &Query, statement: &Handle) -> Result<Reply, Error> {
        let mut binding = self.bind(query, statement).await?;
        if !binding.is_tensor(query) {
            let decision = binding.decide(query);
            let plan = self.plan_cells(&mut binding, query, &decision, statement).await?;
            return columns(&plan.schema());
        }
        let planned = self.plan_bound(binding, query, statement).await?;
        let plan = planned.tiling.plan();
        let mut rows = Vec::new();
        let mut coords: Vec<&Arc<Coord>> = Vec::new();
        for (labels, out) in planned.labels.iter().zip(&plan.results) {
            let dims: Vec<String> = labels
                .shape
                .iter()
                .enumerate()
                .map(|(i, n)| format!("{}={n}", labels.dim_name(i)))
                .collect();
            let chunks: Vec<String> = plan
                .output(*out)
                .grid
                .axes
                .iter()
                .take(labels.shape.len())
                .map(|a| a.chunk.to_string())
                .collect();
            rows.push([
                labels.name.clone(),
                "result".into(),
                dtype_text(labels.dtype, labels.nullable),
                dims.join(", "),
                chunks.join(", "),
                attributes(&labels.attrs),
            ]);
            for coord in labels.dims.iter().filter_map(|d| d.coord.as_ref()) {
                if !coords.iter().any(|c| c.name == coord.name && c.values == coord.values) {
                    coords.push(coord);
                }
            }
        }
        rows.extend(coords.into_iter().map(|c| coordinate(c)));
        rows_of(COLUMNS, rows)
    }
}

fn dtype_text(dtype: DType, masked: bool) -> String {
    format!("{dtype}{}", if masked { " masked" } else { "" })
}

/// The contents of a dataset; `name` is its name in the statement.
fn describe(dataset: &Dataset, name: &str) -> Result<Reply, Error> {
    let mut rows = Vec::new();
    for v in &dataset.variables {
        rows.push(variable("variable", v)?);
    }
    let is_listed = |c: &&Arc<Coord>| !dataset.unreadable.iter().any(|u| u.name == c.name);
    for c in dataset.coords.iter().filter(is_listed) {
        rows.push(coordinate(c));
    }
    for text in &dataset.scalars {
        let [name, kind, dtype, _, value, attrs] = coordinate(text);
        rows.push([name, kind, dtype, String::new(), value, attrs]);
    }
    for v in &dataset.auxiliary {
        rows.push(variable("auxiliary", v)?);
    }
    for u in &dataset.unreadable {
        let dims = u.dims.iter().enumerate().map(|(i, (d, n))| dim(d.as_deref(), i, *n));
        let dims = dims.collect::<Vec<_>>().join(", ");
        rows.push([&*u.name, "unreadable", "", &*dims, "", &*u.reason].map(String::from));
    }
    for group in &dataset.groups {
        let place = format!("FROM '{}'", inside(name, group).replace('\'', "''"));
        rows.push([&**group, "group", "", "", "", &*place].map(String::from));
    }
    rows_of(COLUMNS, rows)
}

fn dim(name: Option<&str>, axis: usize, len: u64) -> String {
    format!("{}={len}", name.map_or_else(|| format!("dim_{axis}"), String::from))
}

fn variable(kind: &str, v: &Variable) -> Result<[String; 6], Error> {
    let mut b = tessera_planner::build::Builder::new(tessera_planner::config::Config::default());
    let raw = b.load(Arc::new(v.source.clone())).map_err(Error::stage)?;
    let value = b.decode(raw, &v.decode).map_err(Error::stage)?;
    let dims: Vec<String> = v
        .dims
        .iter()
        .zip(&v.source.shape)
        .enumerate()
        .map(|(i, (d, n))| dim(d.as_deref(), i, *n))
        .collect();
    let chunks: Vec<String> = v.source.grid.axes.iter().map(|a| a.chunk.to_string()).collect();
    Ok([
        v.name.to_string(),
        kind.into(),
        dtype_text(b.dtype(value), b.node(value).nullable),
        dims.join(", "),
        chunks.join(", "),
        attributes(&v.attrs),
    ])
}

fn coordinate(c: &Coord) -> [String; 6] {
    let n = c.values.len();
    if let Some(of) = c.values.unreadable() {
        let dims = format!("{}={n}", c.dim);
        return [&*c.name, "unreadable", "", &*dims, "", &*of.reason].map(String::from);
    }
    // A text may be a document.
    let shown = |i: usize| match c.values.display(i) {
        text if text.chars().nth(LABEL_CHARS).is_some() => {
            format!("{}…", text.chars().take(LABEL_CHARS).collect::<String>())
        }
        text => text,
    };
    let range = match n {
        0 => String::new(),
        1 => shown(0),
        _ => format!("{} to {}", shown(0), shown(n - 1)),
    };
    let dtype = c.values.dtype().map_or("text".into(), |d| d.name());
    [
        c.name.to_string(),
        "coordinate".into(),
        dtype,
        format!("{}={n}", c.dim),
        range,
        attributes(&c.attrs),
    ]
}

fn attributes(attrs: &tessera_planner::catalog::Attrs) -> String {
    let one = |(k, v): (&String, &serde_json::Value)| match v {
        serde_json::Value::String(s) => format!("{k}: {s}"),
        v => format!("{k}: {}", PythonJson(v)),
    };
    attrs.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn rows_of<const N: usize>(names: [&str; N], rows: Vec<[String; N]>) -> Result<Reply, Error> {
    let schema = Arc::new(Schema::new(
        names.iter().map(|n| Field::new(*n, DataType::Utf8, false)).collect::<Vec<_>>(),
    ));
    let columns = (0..N)
        .map(|c| {
            Arc::new(rows.iter().map(|r| Some(r[c].as_str())).collect::<StringArray>()) as ArrayRef
        })
        .collect();
    let batch =
        RecordBatch::try_new(schema.clone(), columns).map_err(|source| Error::Rows { source })?;
    Ok(Answer::Rows { schema, batches: vec![batch], held: RowsHeld::default() }.into())
}
