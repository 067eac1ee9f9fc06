//! The external relations of a query, and the resolution of its names.
//!
//! Binding does no I/O: the session asks [`relations`] what to open, opens it, and passes the
//! datasets in as a [`Catalog`].

use crate::walk::walk;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::OnceLock;

use sqlparser::ast::{
    BinaryOperator, Expr, FunctionArg, FunctionArgExpr, ObjectName, Query, Select, SetExpr,
    TableFactor, TableWithJoins, UnaryOperator, Value, Visit, Visitor,
};
use tessera_planner::catalog::{Dataset, Variable};
use tessera_planner::config::Config;

use crate::ast::{self, Relation};
use crate::cells::CellPlanner;
use crate::error::{Error, Position};
use crate::island::Islands;
use crate::surface::{Names, RelationKind};
use crate::tokens;

/// A relation as `FROM` names it, which the session opens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum RelationRef {
    /// A tensor, table or view of the catalog; the parts of a qualified name are joined by dots.
    Name(String),
    /// A URL or path.
    Url {
        /// As written.
        url: String,
        /// Arguments of `read_zarr(…)` and its variants as written. The first option is the function's
        /// `format`: `zarr`, `npy`, …. A bare URL has no options.
        options: Vec<(String, String)>,
    },
}

impl RelationRef {
    /// The name or the URL.
    pub fn text(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Url { url, .. } => url,
        }
    }
}

/// Opened relations.
pub trait Catalog {
    /// Returns the dataset, or `None` if no dataset has that name.
    fn relation(&self, relation: &RelationRef) -> Option<Arc<Dataset>>;

    /// True if the relation is rows.
    fn is_rows(&self, _relation: &RelationRef) -> bool {
        false
    }

    /// Returns the view, if the relation is one.
    fn view(&self, _relation: &RelationRef) -> Option<Arc<View>> {
        None
    }

    /// Known names, for suggestions.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A named query. It sees the catalog, but nothing of the query that references it.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// The name.
    pub name: String,
    /// A number that identifies its text within the statement; 0 is the statement's own text.
    pub text: u64,
    /// The query.
    pub query: Query,
    /// Tensors or rows. Computed once: views of views may reference one another many times.
    kind: OnceLock<RelationKind>,
}

impl View {
    /// Parses the text of a view, which must be one query.
    ///
    /// # Errors
    /// The errors of the parser; [`Error::Unsupported`] if the text is another statement.
    pub fn parse(name: &str, text: u64, sql: &str) -> Result<Self, Error> {
        let parsed = crate::parse(sql)?;
        match parsed.into_iter().map(|p| p.statement).collect::<Vec<_>>().as_slice() {
            [crate::Statement::Query(query)] => Ok(View {
                name: name.to_string(),
                text,
                query: Query::clone(query),
                kind: OnceLock::new(),
            }),
            _ => Err(Error::Unsupported {
                construct: format!("the view `{name}`, as its text is not a query: it"),
                position: None,
                hint: Some("create it again with CREATE OR REPLACE VIEW".to_string()),
            }),
        }
    }
}

/// Answers the surface rule's questions from a catalog.
#[derive(Clone, Copy)]
pub struct CatalogNames<'a>(
    /// The catalog.
    pub &'a dyn Catalog,
);

impl Names for CatalogNames<'_> {
    fn relation(&self, name: &ObjectName) -> RelationKind {
        let reference = RelationRef::Name(dotted(name));
        if self.0.is_rows(&reference) {
            return RelationKind::Rows;
        }
        match self.0.view(&reference) {
            Some(view) => *view.kind.get_or_init(|| crate::surface::kind(&view.query, self)),
            None => RelationKind::Tensor,
        }
    }

    fn is_tensor_function(&self, name: &str) -> bool {
        crate::functions::is_tensor_function(name)
    }
}

/// The inputs of binding besides the text.
pub struct Context<'a> {
    /// The opened relations.
    pub catalog: &'a dyn Catalog,
    /// The configuration of plans.
    pub config: Config,
    /// `now()`: microseconds since 1970-01-01.
    pub now_us: i64,
    /// The statement's seed, for random functions without `seed =>`. A call's own seed is a function of it and of the
    /// position of the call, so that lowering again yields the same numbers.
    pub seed: u64,
    /// The islands of the statement.
    pub islands: &'a mut Islands,
    /// The planner for the statement's cell blocks.
    pub cells: &'a dyn CellPlanner,
}

/// The relations that a query reads, without duplicates, in the order in which they are written.
///
/// CTEs are not included. All blocks of the query are searched, cell blocks too.
///
/// # Errors
/// [`Error::Syntax`] if an argument of `read_…` is not a literal.
pub fn relations(query: &Query) -> Result<Vec<RelationRef>, Error> {
    let mut search = Search { ctes: Vec::new(), found: Vec::new(), fault: None };
    search.query(query);
    match search.fault {
        Some(fault) => Err(fault),
        None => Ok(search.found),
    }
}

struct Search {
    ctes: Vec<String>,
    found: Vec<RelationRef>,
    fault: Option<Error>,
}

impl Search {
    fn query(&mut self, query: &Query) {
        let outer = self.ctes.len();
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.query(&cte.query);
            self.ctes.push(cte.alias.name.value.clone());
        }
        self.body(&query.body);
        if let Some(order_by) = &query.order_by {
            self.expressions(order_by);
        }
        self.ctes.truncate(outer);
    }

    fn body(&mut self, body: &SetExpr) {
        match body {
            SetExpr::Select(select) => self.select(select),
            SetExpr::Query(query) => self.query(query),
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left);
                self.body(right);
            }
            _ => {}
        }
    }

    fn select(&mut self, select: &Select) {
        for from in &select.from {
            self.joined(from);
            for join in &from.joins {
                self.expressions(&join.join_operator);
            }
        }
        self.expressions(&select.projection);
        self.expressions(&select.selection);
        self.expressions(&select.having);
        self.expressions(&select.group_by);
    }

    /// Searches subqueries inside expressions.
    fn expressions(&mut self, part: &impl Visit) {
        let _: ControlFlow<()> = walk(part, &mut Subqueries { search: self, depth: 0 });
    }

    fn joined(&mut self, from: &TableWithJoins) {
        self.factor(&from.relation);
        for join in &from.joins {
            self.factor(&join.relation);
        }
    }

    fn factor(&mut self, factor: &TableFactor) {
        // Also behind LATERAL.
        if let TableFactor::Derived { subquery, .. } = factor {
            return self.query(subquery);
        }
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor {
            return self.joined(table_with_joins);
        }
        if let TableFactor::Pivot { table, .. } = factor {
            return self.factor(table);
        }
        if let Relation::Cells { expr, .. } = ast::relation(factor) {
            if let Some(url) = ast::url_of(expr) {
                let found = RelationRef::Url { url: url.to_string(), options: Vec::new() };
                if !self.found.contains(&found) {
                    self.found.push(found);
                }
                return;
            }
            self.expressions(expr);
            for name in names_in(expr) {
                let found = RelationRef::Name(name);
                if !self.ctes.iter().any(|cte| cte.eq_ignore_ascii_case(found.text()))
                    && !self.found.contains(&found)
                {
                    self.found.push(found);
                }
            }
            return;
        }
        // Subqueries in the arguments of functions.
        match factor {
            TableFactor::UNNEST { array_exprs, .. } => self.expressions(array_exprs),
            TableFactor::Function { args, .. } => self.expressions(args),
            TableFactor::Table { args: Some(args), .. } => self.expressions(&args.args),
            _ => {}
        }
        match reference(factor) {
            Ok(Some(RelationRef::Name(name)))
                if self.ctes.iter().any(|cte| cte.eq_ignore_ascii_case(&name)) => {}
            Ok(Some(found)) => {
                if !self.found.contains(&found) {
                    self.found.push(found);
                }
            }
            Ok(None) => {}
            Err(fault) => {
                self.fault.get_or_insert(fault);
            }
        }
    }
}

/// Names in the expression of `CELLS(…)` that may be relations: whole names, and the part before the first dot.
pub fn names_in(expr: &Expr) -> Vec<String> {
    struct Names {
        found: Vec<String>,
        depth: usize,
    }
    impl Visitor for Names {
        type Break = ();

        fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
            self.depth += 1;
            ControlFlow::Continue(())
        }

        fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let name = match expr {
                Expr::Identifier(ident) => &ident.value,
                Expr::CompoundIdentifier(parts) if !parts.is_empty() => &parts[0].value,
                _ => return ControlFlow::Continue(()),
            };
            if self.depth == 0 && !self.found.contains(name) {
                self.found.push(name.clone());
            }
            ControlFlow::Continue(())
        }
    }
    let mut names = Names { found: Vec::new(), depth: 0 };
    let _: ControlFlow<()> = walk(expr, &mut names);
    names.found
}

struct Subqueries<'a> {
    search: &'a mut Search,
    depth: usize,
}

impl Visitor for Subqueries<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if self.depth == 0 {
            self.search.query(query);
        }
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
}

/// The relation that an entry of `FROM` requests from the catalog; `None` for subqueries, `CELLS` and table
/// functions that read no tensors.
pub(crate) fn reference(factor: &TableFactor) -> Result<Option<RelationRef>, Error> {
    relation_ref(&ast::relation(factor))
}

/// The relation to request from the catalog; `None` for subqueries, `CELLS` and table functions that read nothing.
///
/// # Errors
/// [`Error::Syntax`] if an argument of `read_…` is not a literal.
pub fn relation_ref(relation: &Relation<'_>) -> Result<Option<RelationRef>, Error> {
    Ok(match relation {
        Relation::Name { name, .. } => Some(RelationRef::Name(dotted(name))),
        Relation::Url { url, .. } => {
            Some(RelationRef::Url { url: url.value.clone(), options: Vec::new() })
        }
        Relation::Function { name, args, .. } => {
            let function = name.to_string().to_ascii_lowercase();
            match function.strip_prefix("read_") {
                Some(format @ ("parquet" | "csv" | "json" | "ndjson" | "arrow")) => {
                    Some(read(name, format, args)?)
                }
                Some(format) if ast::TENSOR_FORMATS.contains(&format) => {
                    Some(read(name, format, args)?)
                }
                _ if function == tokens::READ_FILES => Some(read(name, "", args)?),
                _ => None,
            }
        }
        _ => None,
    })
}

/// The error for a function in `FROM` that reads nothing.
pub fn unknown_reader(name: &ObjectName) -> Error {
    let arrays = ast::TENSOR_FORMATS.iter().map(|format| format!("read_{format}"));
    let tables = ["read_csv", "read_parquet", "read_json", "read_arrow"].map(String::from);
    let readers: Vec<String> = tables.into_iter().chain(arrays).collect();
    let words: Vec<&str> = readers.iter().map(String::as_str).collect();
    let written = name.to_string();
    Error::Cells {
        code: "unknown_name",
        message: format!("unknown function `{written}` in FROM"),
        position: Position::of(name),
        hint: Some(match crate::error::nearest(&written, &words) {
            Some(near) => format!("did you mean `{near}`?"),
            None if written.to_ascii_lowercase().starts_with("read") => {
                format!("files are read by {}, and `FROM 'path'` finds the format", words.join(", "))
            }
            None => "integers and times in a row are `FROM range(10)`, elements of lists `FROM t, unnest(t.list)`; files are read by `FROM 'path'`".to_string(),
        }),
    }
}

/// The dataset of a relation under its alias, and a second name of its only variable. An `.npy` file stores no name, so
/// the variable of a URL has the alias as its name, and the second name is derived from the file. An array of the caller
/// has the name of its relation, and the alias as its second name; so has the file of a table its own name.
pub fn under_alias(
    dataset: Arc<Dataset>,
    relation: &RelationRef,
    alias: Option<&str>,
) -> (Arc<Dataset>, Option<Arc<str>>) {
    match (alias, dataset.variables.as_slice()) {
        (Some(alias), [only]) if *only.name != *alias && !has_name(&dataset, alias) => {
            let (url, path) = (&only.source.url, &only.source.path);
            let is_file = path.is_empty() && url.ends_with(".npy");
            let is_table = is_file && matches!(relation, RelationRef::Name(_));
            if is_table || is_array(&dataset, only) {
                return (dataset, Some(alias.into()));
            }
            if !is_file {
                return (dataset, None);
            }
            let own = only.name.clone();
            let mut renamed = Dataset::clone(&dataset);
            renamed.variables[0].name = alias.into();
            (Arc::new(renamed), Some(own))
        }
        _ => (dataset, None),
    }
}

/// True for an array of the caller, and for a temp tensor whose one variable has its name.
fn is_array(dataset: &Dataset, only: &Variable) -> bool {
    let url = &only.source.url;
    (url.starts_with("temp:") || url.starts_with("local:")) && *only.name == *dataset.name
}

/// True if a dimension or a coordinate has that name.
fn has_name(dataset: &Dataset, name: &str) -> bool {
    let variables = dataset.variables.iter().chain(&dataset.auxiliary);
    let dims = variables.flat_map(|v| v.dims.iter().flatten());
    let coords = dataset.coords.iter().chain(&dataset.scalars).map(|c| &c.name);
    let others = dataset.auxiliary.iter().map(|v| &v.name);
    dims.chain(coords).chain(others).any(|known| known.eq_ignore_ascii_case(name))
}

/// The error for an unknown relation; `known` are the names to suggest from.
pub fn unknown_relation(relation: &Relation<'_>, known: &[String]) -> Error {
    let (name, position) = match relation {
        Relation::Name { name, .. } | Relation::Function { name, .. } => {
            (dotted(name), Position::of(*name))
        }
        Relation::Url { url, .. } => (url.value.clone(), Position::of_span(url.span)),
        _ => ("this relation".to_string(), None),
    };
    let words: Vec<&str> = known.iter().map(String::as_str).collect();
    let candidates = crate::error::nearest(&name, &words).map(String::from).into_iter().collect();
    Error::UnknownName { kind: "relation", name, candidates, position }
}

/// A qualified name in the form of [`RelationRef::Name`]: its parts joined by dots.
pub fn dotted(name: &ObjectName) -> String {
    let parts: Vec<String> = name
        .0
        .iter()
        .map(|part| part.as_ident().map_or_else(|| part.to_string(), |ident| ident.value.clone()))
        .collect();
    parts.join(".")
}

/// The option of CSV files that may be a list of texts. Each is an option of that name.
const NULL_TEXTS: &str = "nullstr";

/// `read_zarr('url', key => value, …)`.
fn read(name: &ObjectName, format: &str, args: &[FunctionArg]) -> Result<RelationRef, Error> {
    let fault = |message: String| Error::Syntax {
        message,
        position: Position::of(name),
        hint: Some(format!("write `{name}('url', key => value)`")),
    };
    let mut url = None;
    let format = Some(format).filter(|f| !f.is_empty());
    let mut options: Vec<(String, String)> =
        format.map(|f| ("format".to_string(), f.to_string())).into_iter().collect();
    for arg in args {
        let literal = |arg: &FunctionArgExpr| match arg {
            FunctionArgExpr::Expr(expr) => literal(expr),
            _ => None,
        };
        match arg {
            FunctionArg::Unnamed(arg) if url.is_none() => {
                url = match arg {
                    FunctionArgExpr::Expr(expr) => urls(expr),
                    _ => None,
                };
                if url.is_none() {
                    return Err(fault(format!(
                        "the first argument of `{name}` must be a string, or a list of strings"
                    )));
                }
            }
            FunctionArg::Named {
                name: key, arg: FunctionArgExpr::Expr(Expr::Array(list)), ..
            } if key.value.eq_ignore_ascii_case(NULL_TEXTS) => {
                for item in &list.elem {
                    match text(item) {
                        Some(value) => options.push((key.value.clone(), value)),
                        None => return Err(fault(format!("`{key}` takes texts"))),
                    }
                }
            }
            FunctionArg::Named { name: key, arg, .. } => match literal(arg) {
                Some(value) => options.push((key.value.clone(), value)),
                None => return Err(fault(format!("`{key}` of `{name}` must be a literal"))),
            },
            FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp {
                left,
                op: BinaryOperator::Eq,
                right,
            })) => {
                return Err(Error::Syntax {
                    message: format!("`{name}` takes one URL and named options"),
                    position: Position::of(&**left),
                    hint: Some(format!("named arguments are written `{left} => {right}`")),
                });
            }
            _ => return Err(fault(format!("`{name}` takes one URL and named options"))),
        }
    }
    match url {
        Some(url) => Ok(RelationRef::Url { url, options }),
        None => Err(fault(format!("`{name}` needs a URL"))),
    }
}

fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// A URL, or a list of them as JSON.
fn urls(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Array(list) if !list.elem.is_empty() => {
            let all: Vec<String> = list.elem.iter().map(text).collect::<Option<_>>()?;
            Some(serde_json::Value::from(all).to_string())
        }
        Expr::Nested(inner) => urls(inner),
        other => text(other),
    }
}

fn literal(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => Some(text.clone()),
            Value::Boolean(value) => Some(value.to_string()),
            _ => None,
        },
        Expr::Nested(inner) => literal(inner),
        Expr::UnaryOp { op, expr } => {
            let Expr::Value(value) = &**expr else { return None };
            match (op, &value.value) {
                (UnaryOperator::Minus, Value::Number(digits, _)) => Some(format!("-{digits}")),
                (UnaryOperator::Plus, Value::Number(digits, _)) => Some(digits.clone()),
                _ => None,
            }
        }
        _ => None,
    }
}
