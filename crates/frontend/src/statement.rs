//! The statements of the dialect.
//!
//! Queries inside them are sqlparser's [`Query`]. The statements around them are defined here, because
//! sqlparser's own statement type is closed.

mod create;
mod read;
mod rest;

use sqlparser::ast::{Ident, ObjectName, Query};
use sqlparser::tokenizer::Span;

pub(crate) use read::read;

/// A parsed statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `SELECT …`, `WITH …`, `VALUES …`.
    Query(Box<Query>),
    /// `CREATE [OR REPLACE] [TEMP] TENSOR [IF NOT EXISTS] name AS query`.
    CreateTensor(CreateTensor),
    /// `CREATE [OR REPLACE] EXTERNAL TABLE|TENSOR [IF NOT EXISTS] name STORED AS … LOCATION …`.
    CreateExternal(CreateExternal),
    /// `CREATE [OR REPLACE] VIEW [IF NOT EXISTS] name AS query`.
    CreateView(CreateView),
    /// `COPY (query) | name TO 'url' [STORED AS format] [[OPTIONS | WITH] (…)]`.
    Copy(Copy),
    /// `INSERT INTO name query`.
    Insert(Insert),
    /// `DROP TENSOR|TABLE|VIEW [IF EXISTS] name`.
    Drop(Drop),
    /// `EXPLAIN [ANALYZE] [VERBOSE] [(FORMAT text|json|dot)] statement`.
    Explain(Explain),
    /// `CANCEL QUERY 'id'`.
    Cancel {
        /// The identifier of the statement to cancel.
        id: Literal,
    },
    /// `SET name = value` or `SET name TO value`.
    Set {
        /// The dotted name, such as `tessera.threads`.
        name: Literal,
        /// The value.
        value: Literal,
    },
    /// `SHOW …`.
    Show(Show),
    /// `DESCRIBE name`, `DESCRIBE 'url'` or `DESCRIBE query`.
    Describe(Described),
    /// `SUMMARIZE name`, `SUMMARIZE 'url'` or `SUMMARIZE query`: a row for each column.
    Summarize(Box<Query>),
}

impl Statement {
    /// The query inside the statement or inside the statement that it explains, if any.
    pub fn query(&self) -> Option<&Query> {
        match self {
            Self::Query(query) => Some(query),
            Self::CreateTensor(create) => Some(&create.query),
            Self::CreateView(create) => Some(&create.query),
            Self::Copy(copy) => Some(&copy.query),
            Self::Insert(insert) => Some(&insert.query),
            Self::Explain(explain) => explain.statement.query(),
            Self::Describe(Described::Query(query)) | Self::Summarize(query) => Some(query),
            _ => None,
        }
    }

    /// Mutable form of [`Statement::query`].
    pub fn query_mut(&mut self) -> Option<&mut Query> {
        match self {
            Self::Query(query) => Some(query),
            Self::CreateTensor(create) => Some(&mut create.query),
            Self::CreateView(create) => Some(&mut create.query),
            Self::Copy(copy) => Some(&mut copy.query),
            Self::Insert(insert) => Some(&mut insert.query),
            Self::Explain(explain) => explain.statement.query_mut(),
            Self::Describe(Described::Query(query)) | Self::Summarize(query) => Some(query),
            _ => None,
        }
    }
}

/// See [`Statement::CreateTensor`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateTensor {
    /// The tensor's name.
    pub name: ObjectName,
    /// Replace an existing tensor; never together with `if_not_exists`.
    pub or_replace: bool,
    /// Do nothing if the name exists.
    pub if_not_exists: bool,
    /// Store it in memory for the session only.
    pub temp: bool,
    /// The defining query.
    pub query: Box<Query>,
}

/// See [`Statement::CreateExternal`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateExternal {
    /// `TABLE` or `TENSOR` as written. Both are synonyms: the format decides whether the source
    /// yields tensors or rows.
    pub kind: ExternalKind,
    /// Name of the table.
    pub name: ObjectName,
    /// Replace an existing table; never together with `if_not_exists`.
    pub or_replace: bool,
    /// Do nothing if the name exists.
    pub if_not_exists: bool,
    /// The word after `STORED AS`, as written, such as `ZARR`.
    pub format: Ident,
    /// The string after `LOCATION`.
    pub location: Literal,
    /// The options in the order written, without duplicates.
    pub options: Vec<Setting>,
}

/// The word after `CREATE EXTERNAL`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalKind {
    /// `TABLE`
    Table,
    /// `TENSOR`
    Tensor,
}

/// See [`Statement::Insert`].
#[derive(Debug, Clone, PartialEq)]
pub struct Insert {
    /// The tensor, or the table of a Zarr store.
    pub name: ObjectName,
    /// The query whose result is appended.
    pub query: Box<Query>,
    /// The span of the query's text.
    pub query_span: Span,
    /// The query as written.
    pub query_text: String,
}

/// See [`Statement::CreateView`].
#[derive(Debug, Clone, PartialEq)]
pub struct CreateView {
    /// The view's name.
    pub name: ObjectName,
    /// Replace an existing view; never together with `if_not_exists`.
    pub or_replace: bool,
    /// Do nothing if the name exists.
    pub if_not_exists: bool,
    /// The defining query.
    pub query: Box<Query>,
    /// The span of the query's text.
    pub query_span: Span,
    /// The query's text, which the catalog stores.
    pub query_text: String,
}

/// See [`Statement::Copy`].
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// The query whose result is written; `SELECT * FROM name` for a name.
    pub query: Box<Query>,
    /// The target.
    pub url: Literal,
    /// The word after `STORED AS`, or the value of the option `FORMAT`, as written; `None` to infer it from the ending
    /// of the target.
    pub format: Option<Ident>,
    /// The options in the order written, without duplicates.
    pub options: Vec<Setting>,
}

/// See [`Statement::Drop`].
#[derive(Debug, Clone, PartialEq)]
pub struct Drop {
    /// The kind of object.
    pub kind: DropKind,
    /// Name of the object.
    pub name: ObjectName,
    /// Do nothing if the name does not exist.
    pub if_exists: bool,
}

/// The word after `DROP`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropKind {
    /// `TENSOR`
    Tensor,
    /// `TABLE`: an external table
    Table,
    /// `VIEW`
    View,
}

/// See [`Statement::Explain`].
#[derive(Debug, Clone, PartialEq)]
pub struct Explain {
    /// Run the statement and report measurements.
    pub analyze: bool,
    /// Show the plan after each pass.
    pub verbose: bool,
    /// The output format.
    pub format: ExplainFormat,
    /// The explained statement: a query, `CREATE TENSOR`, `CREATE VIEW` or `COPY`.
    pub statement: Box<Statement>,
}

/// Output format of `EXPLAIN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExplainFormat {
    /// An indented tree.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// A graph for Graphviz.
    Dot,
}

/// See [`Statement::Show`].
#[derive(Debug, Clone, PartialEq)]
pub enum Show {
    /// `SHOW TENSORS`
    Tensors,
    /// `SHOW QUERIES`
    Queries,
    /// `SHOW WORKERS`
    Workers,
    /// `SHOW FUNCTIONS`
    Functions,
    /// `SHOW ALL`: all settings
    All,
    /// `SHOW name`: one setting, by its dotted name
    Variable(Literal),
}

/// See [`Statement::Describe`].
#[derive(Debug, Clone, PartialEq)]
pub enum Described {
    /// A tensor, view or external table.
    Name(ObjectName),
    /// A path or URL.
    Url(Literal),
    /// The result of a query, which is planned but not run.
    Query(Box<Query>),
}

/// `key value` in `OPTIONS (…)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// The key, quoted or not: `zarr_format`, `'aws.endpoint'`, `aws.endpoint`.
    pub key: Literal,
    /// The value.
    pub value: Literal,
}

/// A name or value stored as text: `3`, `-1`, `true`, `2GiB`, `'zstd:5'`.
#[derive(Debug, Clone, PartialEq)]
pub struct Literal {
    /// The text, without quotes and with escapes resolved.
    pub text: String,
    /// True if it was a quoted string or name.
    pub quoted: bool,
    /// Its span in the script.
    pub span: Span,
}
