//! The error type of the frontend: a message, a position in the script and a hint.

mod bind;
mod place;
mod suggest;
mod syntax;

pub use bind::BindError;
pub use place::Position;
pub use suggest::nearest;
pub(crate) use syntax::from_parser;

pub use tessera_planner::error::Class;

/// A fault between the text of a statement and the IR.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "messages document variants and fields")]
pub enum Error {
    /// The text is not a statement of the dialect.
    #[error("{message}")]
    Syntax {
        /// A plain sentence such as ``expected `]`, found `,` ``.
        message: String,
        position: Option<Position>,
        hint: Option<String>,
    },
    /// A string, quoted name or comment has no end, or holds a malformed escape.
    #[error("{message}")]
    Token { message: String, position: Option<Position> },
    /// The statement nests deeper, or chains more operators, than the parser accepts.
    #[error("the statement is nested too deeply: {what} (limit {limit})")]
    NestingTooDeep {
        what: String,
        limit: usize,
        /// The first token beyond the limit.
        position: Option<Position>,
    },
    /// The statement or script has too many parts.
    #[error("{what} (limit {limit})")]
    TooComplex {
        what: String,
        limit: usize,
        /// The first part beyond the limit, where it is known.
        position: Option<Position>,
    },
    /// The construct is recognized but not supported.
    #[error("{construct} is not supported")]
    Unsupported {
        /// The construct in the user's words, such as `INSERT` or ``a subscript on a relation``.
        construct: String,
        position: Option<Position>,
        hint: Option<String>,
    },
    /// A name that does not resolve in its scope.
    #[error("unknown {kind} `{name}`")]
    UnknownName {
        /// The kind of object: `relation`, `variable`, `dimension`, `function`, `argument`.
        kind: &'static str,
        name: String,
        candidates: Vec<String>,
        position: Option<Position>,
    },
    /// Names, labels, types or shapes that do not fit their use.
    #[error("{error}")]
    Bind { error: BindError, position: Option<Position> },
    /// The planner rejects a node.
    #[error("{error}")]
    Plan { error: tessera_planner::error::Error, position: Option<Position> },
    /// Not a fault: lowering stopped for [`crate::Islands::wanted`], and continues when that island has run.
    #[error("a part of the statement has to run first")]
    Waiting,
    /// Planning was stopped from outside: see [`tessera_planner::interrupt`].
    #[error("planning was stopped")]
    Stopped,
    #[error("the statement has more than {limit} parts that must run before the rest can be bound")]
    TooManyIslands { limit: usize, position: Option<Position> },
    /// More computed cells than binding may read.
    #[error(
        "{what} of shape {shape:?} must be known before the rest can be bound, and at most {limit} cells can be"
    )]
    TooManyCells { what: String, shape: Vec<u64>, limit: u64, position: Option<Position> },
    /// A cell block that cannot be planned.
    #[error("{message}")]
    Cells {
        /// The error's code: `wrong_surface`, `ambiguous_name`, `ambiguous_dims`, `not_grouped`, `type_error`,
        /// `plan_error`, `unsupported`, or one of the planner's.
        code: &'static str,
        message: String,
        position: Option<Position>,
        hint: Option<String>,
    },
}

/// The field of an error that has its position, as a reference; `None` for errors without a position.
macro_rules! position_of {
    ($error:expr) => {
        match $error {
            Error::Syntax { position, .. }
            | Error::Token { position, .. }
            | Error::NestingTooDeep { position, .. }
            | Error::TooComplex { position, .. }
            | Error::Unsupported { position, .. }
            | Error::UnknownName { position, .. }
            | Error::Bind { position, .. }
            | Error::Plan { position, .. }
            | Error::TooManyIslands { position, .. }
            | Error::TooManyCells { position, .. }
            | Error::Cells { position, .. } => Some(position),
            Error::Waiting | Error::Stopped => None,
        }
    };
}

impl Error {
    /// A short, stable, machine-readable name of the kind of error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax { .. } => "syntax",
            Self::Token { .. } => "token",
            Self::NestingTooDeep { .. } => "nesting_too_deep",
            Self::TooComplex { .. } => "too_complex",
            Self::Unsupported { .. } => "unsupported",
            Self::UnknownName { .. } => "unknown_name",
            Self::Bind { error, .. } => error.code(),
            Self::Plan { error, .. } => error.code(),
            Self::Cells { code, .. } => code,
            Self::Waiting => "internal",
            Self::Stopped => "cancelled",
            Self::TooManyIslands { .. } => "too_many_islands",
            Self::TooManyCells { .. } => "too_many_cells",
        }
    }

    /// The class of the error: who can resolve it.
    pub fn class(&self) -> Class {
        match self {
            Self::Syntax { .. }
            | Self::Token { .. }
            | Self::Unsupported { .. }
            | Self::UnknownName { .. }
            | Self::Bind { .. } => Class::User,
            Self::Plan { error, .. } => error.class(),
            Self::Cells { code: "too_large" | "memory_exceeded", .. } => Class::Limit,
            Self::Cells { code: "internal", .. } => Class::Internal,
            Self::Cells { .. } => Class::User,
            Self::NestingTooDeep { .. }
            | Self::TooComplex { .. }
            | Self::TooManyIslands { .. }
            | Self::TooManyCells { .. } => Class::Limit,
            Self::Waiting => Class::Internal,
            Self::Stopped => Class::User,
        }
    }

    /// The hint, as a sentence without a full stop.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Syntax { hint, .. } | Self::Unsupported { hint, .. } | Self::Cells { hint, .. } => {
                hint.clone()
            }
            Self::Token { .. } | Self::Waiting | Self::Stopped => None,
            Self::TooManyIslands { .. } => Some(
                "keep intermediate results with `CREATE TEMP TENSOR` and use them in several statements".to_string(),
            ),
            Self::TooManyCells { .. } => Some(
                "select with a mask of the tensor's own shape, as in `x[x > 0]`, which has no such limit".to_string(),
            ),
            Self::TooComplex { .. } => Some(
                "store a part of it with CREATE TEMP TENSOR name AS SELECT …, and use the name"
                    .to_string(),
            ),
            Self::NestingTooDeep { .. } => Some(
                "give a part of the expression a name with `WITH part AS (SELECT …)` and use the name"
                    .to_string(),
            ),
            Self::Bind { error, .. } => error.hint(),
            Self::Plan { error, .. } => error.hint(),
            Self::UnknownName { kind, name, candidates, .. } => suggest::hint(kind, name, candidates),
        }
    }

    /// The position in the script, if the error has one.
    pub fn position(&self) -> Option<Position> {
        position_of!(self).copied().flatten()
    }

    /// The same error at another position: for faults in the text of a view, that of the view in the statement.
    pub fn moved(mut self, to: Option<Position>) -> Self {
        if let Some(position) = position_of!(&mut self) {
            *position = to;
        }
        self
    }

    /// A fault in the text of a view, at the position of the view in the statement. The message of an unknown name, or
    /// of a name that does not fit its use, names the view; of views that read one another the innermost one.
    pub fn in_view(self, view: &str, to: Option<Position>) -> Self {
        match self {
            Self::UnknownName { .. } | Self::Bind { .. } => Self::Cells {
                code: self.code(),
                message: format!("view `{view}`: {self}"),
                position: to,
                hint: self.hint(),
            },
            other => other.moved(to),
        }
    }

    /// Renders the error for a terminal: `error[code]: message`, the line of `sql` with the position
    /// underlined, and the hint.
    ///
    /// `sql` must be the whole script that was parsed, because positions count from its start.
    pub fn render(&self, sql: &str) -> String {
        let mut out = format!("error[{}]: {self}\n", self.code());
        if let Some(position) = self.position() {
            position.underline(sql, &mut out);
        }
        if let Some(hint) = self.hint() {
            out.push_str("hint: ");
            out.push_str(&hint);
            out.push('\n');
        }
        out
    }

    /// A cell block that cannot be planned, without a hint.
    pub fn cells(
        code: &'static str,
        message: impl Into<String>,
        position: Option<Position>,
    ) -> Self {
        Self::Cells { code, message: message.into(), position, hint: None }
    }

    /// A construct that is not supported, without a hint.
    pub fn unsupported(construct: impl Into<String>, position: Option<Position>) -> Self {
        Self::Unsupported { construct: construct.into(), position, hint: None }
    }

    /// The same error with a hint of its own; errors whose kind decides the hint keep that one.
    pub fn with_hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Syntax { hint, .. }
        | Self::Unsupported { hint, .. }
        | Self::Cells { hint, .. } = &mut self
        {
            *hint = Some(text.into());
        }
        self
    }

    /// A syntax error without a hint.
    pub(crate) fn syntax(message: impl Into<String>, position: Option<Position>) -> Self {
        Self::Syntax { message: message.into(), position, hint: None }
    }
}
