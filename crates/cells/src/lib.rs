//! Tessera's cells: SQL over the cells of labelled arrays. This crate plans, produces and reads rows.
//!
//! The life of `SELECT lat, avg(t2m) FROM era5 WHERE time >= '2020' GROUP BY lat ORDER BY lat LIMIT 5`:
//!
//! 1. [`tessera_frontend::surface::decide`] classified this as a cell block, because of `WHERE`. Its relations are
//!    open: a [`Context`](tessera_frontend::Context) has the datasets, [`tables::Tables`] the tables of files.
//! 2. [`lift::Planner::plan`] resolves the relations: a dataset, or a tensor block that the frontend lowers
//!    ([`tessera_frontend::lower_inside`]), becomes a cube, a table of labels and cells. Cell blocks inside tensor
//!    expressions take the same path: lowering calls the planner for them ([`tessera_frontend::cells`]).
//! 3. DataFusion plans the SQL over that table. [`lift`] finds the `Aggregate`, which has a dense form, and replaces it
//!    by a scan of `groups_0`: a tensor plan with a cell for each `lat`. The remaining sort and limit stay
//!    relational. The [`lift::CellPlan`] has both.
//! 4. [`rows::RowsState::physical`] replaces each scan's placeholder by a table over its tensor plan, and DataFusion
//!    creates the physical plan with unused columns pruned. [`rows::PhysicalRows::scans`] lists the remaining tensor
//!    plans for EXPLAIN and for the assignment of workers.
//! 5. The plan runs ([`rows::PhysicalRows::stream`]) on the threads of a [`rows::RowsRuntime`]. DataFusion's first poll
//!    of a table starts its tensor plan through [`rows::RunTensor`], which the session implements with the one function
//!    that runs plans. Its chunks are [`rows::Piece`]s, which `rows::stream` orders and converts, with labels, to record
//!    batches.
//! 6. Sorts and groups over rows are charged to the budget of the process (`rows::memory`) and spill to its directory
//!    (`rows::scratch`). A cancelled statement stops at its next batch (`rows::stop`).
//! 7. The batches are the result. For a block inside a tensor expression, [`rows::assemble`] converts them to
//!    labelled tensors in memory, and the frontend lowers the rest.
//!
//! Invariants: planning reads no data, as labels and small tables are known at bind; this crate does not depend on
//! sessions, statements or HTTP; the implementation of [`rows::RunTensor`] decides how a scan reads; DataFusion occurs
//! in no public item.

mod clock;
mod error;
mod grown;
pub mod lift;
pub mod rows;
pub mod spans;
mod stack;
mod stand_in;
pub mod tables;
mod walk;

pub use error::{
    Error, NOT_A_TABLE, RowsErrorKind, column_type, table_hint, table_reason, type_name,
};
pub use stand_in::stand_in;
