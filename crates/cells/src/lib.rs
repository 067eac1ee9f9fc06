//! Tessera's cells: SQL over the cells of labelled arrays. All that plans rows, and all that makes and reads them, is
//! here.
//!
//! The life of `SELECT lat, avg(t2m) FROM era5 WHERE time >= '2020' GROUP BY lat ORDER BY lat LIMIT 5`:
//!
//! 1. [`tessera_frontend::surface::decide`] said that this is a block of cells, because of `WHERE`. Its relations are
//!    open: a [`Context`](tessera_frontend::Context) has the datasets, [`lift::RowTables`] the tables of files.
//! 2. [`lift::Planner::plan`] resolves the relations: a dataset, or a tensor block that the frontend lowers
//!    ([`tessera_frontend::lower_inside`]), becomes a cube, a table of labels and cells. Blocks of cells inside tensor
//!    expressions come the same way: lowering asks the planner for them ([`tessera_frontend::cells`]).
//! 3. DataFusion plans the SQL over that table. [`lift`] finds the `Aggregate`, which has a dense form, and replaces it
//!    by a scan of `groups_0`: a tensor plan with a cell for each `lat`. What is left, the sort and the limit, stays
//!    relational. The [`lift::CellPlan`] has both.
//! 4. [`rows::attach`] puts a [`rows::TensorTable`] in the place of each scan, and DataFusion's physical plan is made
//!    ([`rows::physical`]), its columns pruned. [`rows::tensor_scans`] are the tensor plans that are left: EXPLAIN
//!    shows them, and workers are asked for them.
//! 5. The plan runs ([`rows::await_in_place`]). The first row that DataFusion asks of a table starts its tensor plan:
//!    [`rows::RunTensor`], which the session implements with the one function that runs plans. Its chunks are
//!    [`rows::Piece`]s, which `rows::stream` puts in order, labels beside them, as record batches.
//! 6. Sorts and groups over rows are charged to the budget of the process ([`rows::RowsMemory`]) and put rows aside in
//!    its directory ([`rows::RowsScratch`]). A statement that is cancelled stops at its next batch
//!    ([`rows::stoppable`]).
//! 7. The batches are the answer; or, of a block inside a tensor expression, [`rows::assemble`] puts them together to
//!    labelled tensors in memory, and the frontend lowers the rest.
//!
//! Invariants: planning reads no data, as labels are known at bind; no session, statement or HTTP is known here, and
//! what a scan reads is decided by whoever implements [`rows::RunTensor`].

pub mod lift;
pub mod rows;
mod stack;
mod stand_in;

pub use stand_in::stand_in;
