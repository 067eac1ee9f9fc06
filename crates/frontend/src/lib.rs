//! Tessera's frontend: from SQL text to the tensor IR.
//!
//! The life of `SELECT mean(sst[0:10], 0) FROM sst;` in this crate:
//!
//! 1. [`parse()`] splits the script into statements and reads each one into a [`Statement`]: `tokens` splits the
//!    script, `rearranged` puts words in SQL's order (`FROM t SELECT a`), `limits` rejects statements that nest too
//!    deeply, [`TesseraDialect`] adds the tensor syntax to sqlparser, `statement` parses the statements that sqlparser
//!    does not know (`CREATE TENSOR`, `CANCEL QUERY`, `EXPLAIN (FORMAT json)`), `clauses` rewrites `FETCH`, `PIVOT`,
//!    `UNPIVOT` and `TABLESAMPLE` to other clauses. A first query finds the values of a `PIVOT` that does not list
//!    them ([`pivots`]).
//! 2. [`surface::decide`] classifies a query block as a tensor block or a cell block, and reports the
//!    clause that decided it.
//! 3. [`ast`] gives typed views of the tensor syntax: [`ast::subscript`], [`ast::call`],
//!    [`ast::relation`], [`ast::bracket_dim`], [`ast::field`].
//! 4. [`relations`] lists the relations that the query reads. The session opens them and passes them in as a
//!    [`Catalog`]; this crate does no I/O.
//! 5. [`lower_tensor`] resolves names and labels and builds the graph: [`Lowered`] holds its roots and the
//!    [`Labels`] of each item.
//! 6. Parts that decide a shape, and rows that become tensors, must run first: lowering stops for an [`island`] and
//!    is called again when the island has run.
//! 7. The crate `tessera-cells` plans cell blocks; [`cells`] is the interface through which lowering calls it. It calls
//!    [`columns`] for elementwise functions, which cell blocks have in common with tensor blocks.
//!
//! Every position in an [`Error`] is a line and a column of the script as the user typed it.
//!
//! # Recursion
//! A parsed statement is at most [`limits::DEPTH_MAX`] levels deep. Dropping and printing one fits a
//! 2 MiB stack in any build; code that clones, binds or lowers one runs inside
//! [`limits::with_stack`], because frames over sqlparser's types are large in debug builds.

pub mod asof;
pub mod ast;
pub mod bind;
pub mod cells;
mod check;
mod clauses;
pub mod columns;
pub mod derived;
mod dialect;
pub mod error;
mod exclude;
pub mod functions;
pub mod interrupt;
pub mod island;
pub mod labels;
pub mod limits;
mod lower;
pub mod parameters;
mod parse;
pub mod paths;
mod patterns;
pub mod pivots;
mod rearranged;
mod refused;
pub mod scope;
pub mod seasons;
pub mod secrets;
pub mod statement;
mod structs;
pub mod summary;
pub mod surface;
mod tokens;
pub mod walk;

pub use bind::{Catalog, CatalogNames, Context, RelationRef, View, relations};
pub use clauses::DRAW;
pub use dialect::TesseraDialect;
pub use error::{Class, Error, Position};
pub use functions::{Function, functions};
pub use island::Islands;
pub use labels::Labels;
pub use lower::{
    Lowered, excluded, flatten, is_star, lower_any, lower_inside, lower_tensor, only_excludes,
    span_of,
};
pub use parse::{Parsed, is_complete, parse, parse_at_most, query_of};
pub use statement::Statement;
