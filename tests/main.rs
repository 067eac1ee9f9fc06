//! One binary for all tests of the whole system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod analyze;
mod append;
mod budget;
mod cancel;
mod changed;
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a long run tells its seeds")]
mod chaos;
#[expect(clippy::print_stdout, reason = "a long run tells its seeds")]
mod chaos_standby;
mod chunking;
#[allow(dead_code, reason = "the tests of storage use the rest")]
mod clouds;
#[expect(clippy::print_stdout, reason = "a long run tells its seeds")]
mod cluster;
mod cluster_cells;
mod cluster_durable;
mod cluster_outputs;
mod cluster_rows;
mod common;
mod copy;
mod coverage;
#[expect(clippy::print_stdout, reason = "a long run tells what it saw")]
mod damage;
mod dense;
#[cfg(unix)]
#[expect(clippy::print_stdout, reason = "a machine without openssl is told of")]
mod deploy;
mod docs_examples;
mod dtypes;
mod explain;
mod fences;
mod formats;
mod handover;
mod hostile;
#[expect(clippy::print_stdout, reason = "a long run tells what it saw")]
mod hostile_random;
mod hostile_tables;
mod http;
mod invariants;
mod islands;
mod keep;
mod keep_clouds;
mod keep_s3;
mod killed;
mod labels;
#[expect(clippy::print_stdout, reason = "a long run tells how far it is")]
mod lift_random;
mod locals;
mod locals_remote;
#[expect(clippy::print_stdout, reason = "a long run tells what it saw")]
mod many_statements;
mod masks;
mod naive;
mod names;
#[cfg(target_os = "linux")]
#[expect(clippy::print_stdout, reason = "a long run tells its seeds")]
mod namespaces;
mod operands;
#[cfg(target_os = "linux")]
mod rack;
mod random;
mod refusals;
mod restart;
mod room;
mod s3;
mod security;
#[cfg(unix)]
mod shell;
#[expect(clippy::print_stdout, reason = "a long run tells what each world did")]
mod slt;
#[expect(clippy::print_stdout, reason = "a long run tells how long a takeover takes")]
mod standby;
mod stores;
mod subscripts;
mod table_files;
mod table_values;
mod ways;
mod web;
mod wide;
