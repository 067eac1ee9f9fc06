//! The one error type of the frontend, with its place in the script and its way out.

mod bind;
mod place;
mod suggest;
mod syntax;

pub use bind::BindError;
pub use place::Position;
pub use suggest::nearest;
pub(crate) use syntax::from_parser;

pub use tessera_planner::error::Class;

/// What can go wrong between the text of a statement and the IR.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a statement of the dialect.
    #[error("{message}")]
    Syntax {
        /// A plain sentence such as ``expected `]`, found `,` ``.
        message: String,
        /// Where the offending token is.
        position: Option<Position>,
        /// How to write it instead, when that is known.
        hint: Option<String>,
    },
    /// A string, quoted name or comment has no end, or holds a malformed escape.
    #[error("{message}")]
    Token {
        /// What is wrong with the token.
        message: String,
        /// Where the tokenizer gave up, or where the token begins.
        position: Option<Position>,
    },
    /// The statement nests deeper, or chains more operators, than the parser accepts.
    #[error("the statement is nested too deeply: {what} (limit {limit})")]
    NestingTooDeep {
        /// What was counted, with the count where it is known.
        what: String,
        /// The limit that was passed.
        limit: usize,
        /// The first token beyond the limit.
        position: Option<Position>,
    },
    /// The statement or script has more parts than are planned.
    #[error("{what} (limit {limit})")]
    TooComplex {
        /// What was counted, with the count.
        what: String,
        /// The limit that was passed.
        limit: usize,
        /// The first part beyond the limit, where it is known.
        position: Option<Position>,
    },
    /// The construct is understood, and refused.
    #[error("{construct} is not supported")]
    Unsupported {
        /// The construct in the user's words, such as `INSERT` or ``a subscript on a relation``.
        construct: String,
        /// Where it is.
        position: Option<Position>,
        /// What to write instead.
        hint: Option<String>,
    },
    /// A name stands for nothing that is in scope.
    #[error("unknown {kind} `{name}`")]
    UnknownName {
        /// What was looked for: `relation`, `variable`, `dimension`, `function`, `argument`.
        kind: &'static str,
        /// The name as written.
        name: String,
        /// What could have been meant, best first.
        candidates: Vec<String>,
        /// Where the name is.
        position: Option<Position>,
    },
    /// Names, labels, types or shapes that do not fit what they are used for.
    #[error("{error}")]
    Bind {
        /// What does not fit.
        error: BindError,
        /// Where it was asked for.
        position: Option<Position>,
    },
    /// The planner refuses a node.
    #[error("{error}")]
    Plan {
        /// What the planner says.
        error: tessera_planner::error::Error,
        /// The construct that asked for the node.
        position: Option<Position>,
    },
    /// Not a fault: lowering stopped for the island that [`crate::Islands::wanted`] gives, and goes on when it has run.
    #[error("a part of the statement has to run first")]
    Waiting,
    /// Planning was stopped from outside: see [`tessera_planner::interrupt`].
    #[error("planning was stopped")]
    Stopped,
    /// More parts that have to run before the rest can be bound than a statement may have.
    #[error("the statement has more than {limit} parts that must run before the rest can be bound")]
    TooManyIslands {
        /// The limit.
        limit: usize,
        /// The part beyond it.
        position: Option<Position>,
    },
    /// More computed cells than binding can take in.
    #[error(
        "{what} of shape {shape:?} must be known before the rest can be bound, and at most {limit} cells can be"
    )]
    TooManyCells {
        /// What the cells are for.
        what: String,
        /// Lengths.
        shape: Vec<u64>,
        /// The limit.
        limit: u64,
        /// Where they are needed.
        position: Option<Position>,
    },
    /// A cell block that cannot be planned.
    #[error("{message}")]
    Cells {
        /// The error's code: `wrong_surface`, `ambiguous_name`, `ambiguous_dims`, `not_grouped`, `type_error`,
        /// `plan_error`, `unsupported`, or one of the planner's.
        code: &'static str,
        /// What is wrong.
        message: String,
        /// Where.
        position: Option<Position>,
        /// What to write instead.
        hint: Option<String>,
    },
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

    /// Who can do something about it.
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

    /// The way out, as a sentence without a final stop.
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
            Self::UnknownName { candidates, .. } if candidates.is_empty() => None,
            Self::UnknownName { candidates, .. } => {
                let names: Vec<String> = candidates.iter().map(|name| format!("`{name}`")).collect();
                Some(format!("did you mean {}?", names.join(" or ")))
            }
        }
    }

    /// The place in the script, if the error has one.
    pub fn position(&self) -> Option<Position> {
        match self {
            Self::Syntax { position, .. }
            | Self::Token { position, .. }
            | Self::NestingTooDeep { position, .. }
            | Self::TooComplex { position, .. }
            | Self::Unsupported { position, .. }
            | Self::UnknownName { position, .. }
            | Self::Bind { position, .. }
            | Self::Plan { position, .. }
            | Self::TooManyIslands { position, .. }
            | Self::TooManyCells { position, .. }
            | Self::Cells { position, .. } => *position,
            Self::Waiting | Self::Stopped => None,
        }
    }

    /// The same error at another place: that of a view in the statement, for faults in the view's own text.
    pub fn moved(mut self, to: Option<Position>) -> Self {
        match &mut self {
            Self::Syntax { position, .. }
            | Self::Token { position, .. }
            | Self::NestingTooDeep { position, .. }
            | Self::TooComplex { position, .. }
            | Self::Unsupported { position, .. }
            | Self::UnknownName { position, .. }
            | Self::Bind { position, .. }
            | Self::Plan { position, .. }
            | Self::TooManyIslands { position, .. }
            | Self::TooManyCells { position, .. }
            | Self::Cells { position, .. } => *position = to,
            Self::Waiting | Self::Stopped => {}
        }
        self
    }

    /// The error as a terminal shows it: `error[code]: message`, the line of `sql` with the place
    /// underlined, and the hint.
    ///
    /// `sql` is the whole script that was parsed, because positions count from its start.
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

    /// A syntax error without a hint.
    pub(crate) fn syntax(message: impl Into<String>, position: Option<Position>) -> Self {
        Self::Syntax { message: message.into(), position, hint: None }
    }
}
