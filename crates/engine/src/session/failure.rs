//! Errors that the session itself detects, and the report of a cluster's faults.

use crate::error::{Class, Error, Position, Report};
use tessera_cells::{NOT_A_TABLE, RowsErrorKind, table_hint};
use tessera_frontend::ast::TENSOR_FORMATS;
use tessera_planner::catalog::Coord;
use thiserror::Error as ThisError;

/// Errors that only the session can detect.
#[derive(Debug, ThisError)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Failure {
    #[error("unknown tensor, table or view `{name}`")]
    UnknownName { name: String, near: Option<String>, position: Option<Position> },
    #[error("`{name}` already exists")]
    Exists { name: String },
    /// An unknown option, or a value that it does not take.
    #[error("`{name}`: {reason}")]
    Option { name: String, reason: String, hint: String, position: Option<Position> },
    #[error("no queued or running query `{id}`")]
    UnknownQuery { id: String, position: Option<Position> },
    /// An unknown setting, or a value that it does not take.
    #[error("setting `{name}`: {reason}")]
    Setting { name: String, reason: String },
    /// `DROP VIEW` of a tensor, or the reverse.
    #[error("`{name}` is a {kind}")]
    WrongKind { name: String, kind: &'static str },
    #[error("the definition `{path}` in the warehouse cannot be used: {reason}")]
    Definition { path: String, reason: String },
    /// An error of DataFusion while it ran the relational rest of a query.
    #[error("{message}")]
    Rows {
        message: String,
        /// True if it ran out of memory.
        memory: bool,
    },
    #[error("`{url}` cannot be read as {format}: {reason}")]
    Table { url: String, format: &'static str, reason: String },
    /// A file that changed after the statement first read it.
    #[error("`{url}` changed while the statement ran")]
    SourceChanged { url: String },
    #[error(
        "arrays or tables uploaded for the statement were lost when their server or session ended"
    )]
    UploadsGone,
    #[error("view `{name}` refers to itself: {path}")]
    CyclicView { name: String, path: String },
    #[error("view `{name}` is nested more than {limit} views deep")]
    DeepView { name: String, limit: usize },
    /// A view that names a relation of the program that runs the statement.
    #[error(
        "view `{view}` reads `{name}`, which is an object of this program and not in the catalog"
    )]
    LocalInView { view: String, name: String },
    /// A name that the catalog cannot list: files that begin with a dot are not its entries.
    #[error("`{name}` cannot be the name of a tensor, table or view: it begins with a dot")]
    HiddenName { name: String },
    #[error("cannot insert into `{name}`: {reason}")]
    Insert { name: String, reason: String, hint: String },
    /// A statement that a killed server ran: whether it appended is not known.
    #[error(
        "cannot determine whether an earlier run of the statement appended to `{what}`: another program has changed it since"
    )]
    OutcomeUnknown { what: String },
    /// A view or a table of rows after `INSERT INTO`.
    #[error("cannot insert into `{name}`: it is {kind}")]
    NotATensor {
        name: String,
        /// The kind of the relation, in words.
        kind: &'static str,
    },
    #[error("the labels of dimension `{dim}` cannot be read: {reason}")]
    NoLabels {
        dim: String,
        code: &'static str,
        /// The reason, which names the array.
        reason: String,
    },
    #[error("`{format}` is not a tensor format")]
    StoredAs { format: String, position: Option<Position> },
}

impl Failure {
    pub(super) fn definition(path: &str, reason: String) -> Error {
        Error::stage(Failure::Definition { path: path.into(), reason })
    }
}

impl Report for Failure {
    fn code(&self) -> &str {
        match self {
            Failure::UnknownName { .. } => "unknown_name",
            Failure::Exists { .. } => "already_exists",
            Failure::UnknownQuery { .. } => "unknown_query",
            Failure::Setting { .. } => "invalid_setting",
            Failure::Table { .. } => NOT_A_TABLE,
            Failure::SourceChanged { .. } => "source_changed",
            Failure::UploadsGone => "uploads_gone",
            Failure::CyclicView { .. } => "cyclic_view",
            Failure::DeepView { .. } => "nesting_too_deep",
            Failure::WrongKind { .. } => "wrong_kind",
            Failure::Option { .. } => "invalid_option",
            Failure::Definition { .. } => "invalid_definition",
            Failure::StoredAs { .. } | Failure::LocalInView { .. } => "unsupported",
            Failure::Insert { .. } | Failure::NotATensor { .. } => "cannot_insert",
            Failure::OutcomeUnknown { .. } => "outcome_unknown",
            Failure::NoLabels { code, .. } => code,
            Failure::HiddenName { .. } => "invalid_name",
            Failure::Rows { message, memory } => RowsErrorKind::of(message, *memory).code(),
        }
    }

    fn class(&self) -> Class {
        match self {
            Failure::Rows { message, memory } => RowsErrorKind::of(message, *memory).class(),
            Failure::DeepView { .. } => Class::Limit,
            Failure::SourceChanged { .. } | Failure::UploadsGone => Class::Retry,
            _ => Class::User,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Failure::UnknownName { near: Some(near), .. } => {
                Some(format!("did you mean `{near}`?"))
            }
            Failure::UnknownName { .. } => Some(
                "name a file with FROM 'path-or-url', or define it with CREATE EXTERNAL TABLE"
                    .into(),
            ),
            Failure::Exists { name } => {
                Some(format!("write CREATE OR REPLACE …, or DROP TENSOR {name} first"))
            }
            Failure::UnknownQuery { .. } => Some("SHOW QUERIES lists queued and running queries".into()),
            Failure::WrongKind { name, kind } => {
                Some(format!("write DROP {} {name}", kind.to_uppercase()))
            }
            Failure::Option { hint, .. } | Failure::Insert { hint, .. } => Some(hint.clone()),
            Failure::Setting { .. } => Some("SHOW ALL lists the settings".into()),
            Failure::Table { format, .. } => Some(table_hint(format).into()),
            Failure::SourceChanged { .. } => Some("run the statement again".into()),
            Failure::UploadsGone => Some(
                "upload them again and rerun the statement; changes that it made before its server ended are permanent"
                    .into(),
            ),
            Failure::CyclicView { .. } => Some("create one of them again without the other".into()),
            Failure::DeepView { .. } => {
                Some("store an intermediate result with CREATE TENSOR or CREATE TEMP TENSOR".into())
            }
            Failure::OutcomeUnknown { .. } => {
                Some("check whether the cells were appended, and rerun the statement if they are missing".into())
            }
            Failure::NotATensor { .. } => {
                Some("INSERT appends to tensors and to tables STORED AS ZARR; COPY writes files".into())
            }
            Failure::LocalInView { name, .. } => Some(format!(
                "a view stores only the text of its query: store the result with CREATE TENSOR or CREATE TEMP TENSOR … AS, or store `{name}` first, under another name"
            )),
            Failure::HiddenName { .. } => Some("give it another name".into()),
            Failure::NoLabels { dim, .. } => Some(format!(
                "rows and stored tensors carry the labels of `{dim}`; `drop_coords(x, '{dim}')` removes them"
            )),
            Failure::Definition { .. } => Some("DROP TABLE removes it".into()),
            Failure::StoredAs { .. } => {
                let formats = TENSOR_FORMATS.join(", ").to_uppercase();
                Some(format!("{formats}, PARQUET, CSV, NDJSON and ARROW are supported"))
            }
            Failure::Rows { message, memory } => {
                RowsErrorKind::of(message, *memory).hint().map(Into::into)
            }
        }
    }

    fn position(&self) -> Option<Position> {
        match self {
            Failure::Option { position, .. }
            | Failure::UnknownName { position, .. }
            | Failure::UnknownQuery { position, .. }
            | Failure::StoredAs { position, .. } => *position,
            _ => None,
        }
    }
    fn may_fit(&self) -> bool {
        match self {
            Failure::Rows { message, memory } => RowsErrorKind::of(message, *memory).may_fit(),
            _ => false,
        }
    }
}

impl Report for tessera_cluster::net::Fault {
    fn code(&self) -> &str {
        use tessera_cluster::net::Fault;
        match self {
            Fault::Unreachable(_) => "unreachable",
            Fault::Denied(_) => "cluster_denied",
            Fault::NotFound(_) => "not_found",
            Fault::Failed(_) => "cluster_failed",
            Fault::Broken(_) => "cluster_protocol",
        }
    }
    fn class(&self) -> Class {
        match self {
            tessera_cluster::net::Fault::Unreachable(_) => Class::Retry,
            _ => Class::User,
        }
    }
}

/// Refuses unreadable labels that a result needs.
pub(crate) fn readable(coord: &Coord) -> Result<(), crate::error::Error> {
    match coord.values.unreadable() {
        None => Ok(()),
        Some(of) => Err(crate::error::Error::stage(Failure::NoLabels {
            dim: coord.dim.to_string(),
            code: of.code,
            reason: of.reason.clone(),
        })),
    }
}
