//! `COPY … OPTIONS (append 'dim')` and `INSERT INTO`: appends a result to a Zarr store, or to a tensor.
//!
//! Appends of this process to one target [take turns](turns). Another process may change the target at any time. So a
//! commit replaces only the version that the append has read. If the target has changed, the append begins again at the
//! new end.
//!
//! A server may be killed between a commit and its note in the journal. So a commit lists its append: in the root's
//! document of a store, or in the entry of a tensor. The statement that runs again finds itself there.

mod insert;
mod turns;

pub(super) use turns::AppendTurns;

use crate::Handle;
use crate::answer::{Answer, Chunked, Reply};
use crate::error::Error;
use crate::session::ddl::item;
use crate::session::open::absolute;
use crate::session::{Failure, Session, later};
use crate::statement::Intent;
use futures::stream::{self, StreamExt};
use sqlparser::ast::Query;
use std::sync::Arc;
use tessera_planner::region::Region;
use tessera_storage::sink::{Append, Earlier, Item, Shards, SinkError};
use tessera_storage::source::Options;

/// Bytes that are held of a box for each byte of its cells: the cells, their stored version, an object.
const COPIES: u64 = 4;

/// Objects that are written at the same time, if the memory suffices.
const AT_ONCE: u64 = 8;

/// Attempts of an append whose target other processes change.
const ATTEMPTS_MAX: u32 = 8;

/// A Zarr store that is appended to.
struct Store<'a> {
    url: &'a str,
    options: &'a Options,
}

impl Session {
    /// Appends the result of a COPY along `dim`.
    pub(super) async fn append(
        &self,
        query: &Query,
        url: &str,
        dim: &str,
        options: &Options,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let _turn = self.host.appends.turn(&absolute(url), statement).await?;
        let store = Store { url, options };
        if self.has_appended(&store, statement).await? {
            return Ok(Answer::Done(format!("appended to {url}")).into());
        }
        self.append_in_turn(query, &store, dim, statement).await
    }

    /// True if an earlier run of the statement appended to the store, and could not say so.
    async fn has_appended(&self, store: &Store<'_>, statement: &Handle) -> Result<bool, Error> {
        let Some((mark, _)) = noted(statement) else { return Ok(false) };
        let committed = Append::is_committed(store.url, &mark, store.options, &self.host.stores);
        committed.await.map_err(Error::stage)
    }

    /// Appends a result, which is computed first; large ones go to the scratch directory.
    async fn append_in_turn(
        &self,
        query: &Query,
        store: &Store<'_>,
        dim: &str,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let mut reply = self.query_tensors(query, statement).await?;
        let Answer::Chunked(mut results) =
            std::mem::replace(&mut reply.answer, Answer::Done(String::new()))
        else {
            return Err(Error::Internal { what: "an append of no tensors".into() });
        };
        if tessera_frontend::is_star(query) {
            // The others stay as they are.
            let grows = |r: &Chunked| r.labels.dims.iter().any(|d| d.name.as_deref() == Some(dim));
            let texts = results.first().map(|r| r.labels.dataset.clone()).unwrap_or_default();
            if let Some(text) = texts.texts.iter().find(|t| t.dim().is_some_and(|d| **d == *dim)) {
                let what =
                    format!("an append along `{dim}`, a dimension of text `{}`,", text.coord.name);
                let hint = format!("`* EXCLUDE ({})` leaves them out", text.coord.name);
                return Err(later(&what, &hint));
            }
            results.retain(grows);
        }
        let items = items(&results);
        let results: Vec<Arc<Chunked>> = results.into_iter().map(Arc::new).collect();
        let (mark, mut earlier) = match noted(statement) {
            Some((mark, before)) => (mark, Some(before)),
            None => (uuid::Uuid::new_v4().simple().to_string(), None),
        };
        let mut attempts = 0..ATTEMPTS_MAX;
        loop {
            attempts.next();
            let attempt = (mark.as_str(), earlier.take());
            match self.append_once((&results, &items), store, dim, attempt, statement).await {
                Err(e) if e.code() == "document_changed" && !attempts.is_empty() => {
                    tracing::info!(id = statement.id(), "appends again: {e}");
                }
                done => {
                    reply.answer = Answer::Done(done?);
                    return Ok(reply);
                }
            }
        }
    }

    /// One attempt to append results. The store lists the append as `mark`. `earlier` is the length that an earlier run
    /// had found, if it may have committed.
    async fn append_once(
        &self,
        (results, items): (&[Arc<Chunked>], &[Item]),
        store: &Store<'_>,
        dim: &str,
        (mark, earlier): (&str, Option<u64>),
        statement: &Handle,
    ) -> Result<String, Error> {
        let done = || format!("appended to {}", store.url);
        // Opening may wait for the lock of an append that was killed.
        let opened = tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            opened = Append::open(store.url, dim, items, store.options, &self.host.stores) => opened,
        };
        let append = match opened {
            Ok(append) => append,
            // Labels that were appended do not continue themselves.
            Err(e) => {
                return match self.has_appended(store, statement).await? {
                    true => Ok(done()),
                    false => Err(Error::stage(e)),
                };
            }
        };
        let (before, more) = (append.before(), append.after() - append.before());
        match append.earlier(mark, earlier) {
            Earlier::Absent => {}
            Earlier::Committed => {
                append.abandon().await;
                return Ok(done());
            }
            Earlier::Unknown => {
                append.abandon().await;
                return Err(Error::stage(Failure::OutcomeUnknown { what: store.url.into() }));
            }
        }
        let intent = Intent::Append { mark: mark.into(), before };
        statement.entry().step(|s| s.intent = Some(intent));
        let written = match statement.entry().keep().await {
            Ok(()) => self.append_cells(&append, results, items, statement).await,
            Err(e) => Err(e),
        };
        if let Err(e) = written {
            append.abandon().await;
            // Nothing was committed.
            statement.entry().step(|s| s.intent = None);
            return Err(e);
        }
        if let Err(e) = append.finish(mark).await {
            // The commit may have succeeded although its answer was lost.
            match self.has_appended(store, statement).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return Err(Error::stage(e)),
            }
        }
        let after = before + more;
        Ok(format!("appended {more} to {} along {dim} ({after} now)", store.url))
    }

    /// Writes all cells of the results, several objects at a time.
    async fn append_cells(
        &self,
        append: &Append,
        results: &[Arc<Chunked>],
        items: &[Item],
        statement: &Handle,
    ) -> Result<(), Error> {
        for (result, item) in results.iter().zip(items) {
            let quota = self.sink_host(statement).quota;
            let largest = append.boxes(&item.name).map(|b| bytes_of(&b, item)).max().unwrap_or(1);
            let free = quota.limit().saturating_sub(quota.used());
            let at_once = (free / largest.max(1)).clamp(1, AT_ONCE) as usize;
            let boxes = stream::iter(append.boxes(&item.name));
            let put = boxes.map(|region| self.append_box(append, result, item, region, statement));
            let mut put = std::pin::pin!(put.buffer_unordered(at_once));
            while let Some(done) = tokio::select! {
                biased;
                () = statement.cancelled() => return Err(Error::Cancelled),
                done = put.next() => done,
            } {
                done?;
            }
        }
        Ok(())
    }

    async fn append_box(
        &self,
        append: &Append,
        result: &Arc<Chunked>,
        item: &Item,
        region: Region,
        statement: &Handle,
    ) -> Result<(), Error> {
        let bytes = bytes_of(&region, item);
        let quota = self.sink_host(statement).quota;
        let reserved = quota.clone().try_reserve(bytes).ok_or_else(|| {
            Error::stage(SinkError::Memory {
                chunk_bytes: bytes / COPIES,
                needed_bytes: bytes,
                free_bytes: quota.limit().saturating_sub(quota.used()),
                limit_bytes: quota.limit(),
            })
        })?;
        let (result, at) = (result.clone(), region.clone());
        let read = tokio::task::spawn_blocking(move || result.cells(&at)).await;
        let cells = read.map_err(|e| Error::Internal { what: e.to_string() })??;
        let valid = cells.valid.as_deref();
        let put = append.put(&item.name, &region, &cells.data, valid).await;
        drop(reserved);
        put.map_err(Error::stage)
    }
}

/// The mark of the append that the statement was about to commit, and the length that it had found.
fn noted(statement: &Handle) -> Option<(String, u64)> {
    statement.entry().step(|s| match &s.intent {
        Some(Intent::Append { mark, before }) => Some((mark.clone(), *before)),
        _ => None,
    })
}

/// Bytes that are held while a box is written.
fn bytes_of(region: &Region, item: &Item) -> u64 {
    region.cells().saturating_mul(item.dtype.size() as u64).saturating_mul(COPIES)
}

fn items(results: &[Chunked]) -> Vec<Item> {
    let labels: Vec<_> = results.iter().map(|r| r.labels.clone()).collect();
    let names = tessera_frontend::labels::identifiers(&labels);
    let chunks = |r: &Chunked| Shards { chunks: r.grid.shape(), shards: None };
    results.iter().zip(&labels).zip(names).map(|((r, l), name)| item(l, name, chunks(r))).collect()
}
