//! `COPY … OPTIONS (append 'dim')`: appends a result to a Zarr store.

use crate::Handle;
use crate::answer::{Answer, Chunked, Reply, Windows};
use crate::error::Error;
use crate::session::Session;
use crate::session::ddl::item;
use crate::statement::Intent;
use std::sync::Arc;
use tessera_frontend::statement::Copy;
use tessera_planner::region::Region;
use tessera_storage::sink::{Append, Item, Shards, SinkError};
use tessera_storage::source::Options;

/// Bytes that are held of a box for each byte of its cells: the cells, what is stored of them, an object.
const COPIES: u64 = 4;

impl Session {
    /// Appends the result of a COPY along `dim`. The result is computed first; large ones go to the scratch directory.
    pub(super) async fn append(
        &self,
        copy: &Copy,
        dim: &str,
        storage: &Options,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let url = &copy.url.text;
        let noted = statement.entry().step(|s| match &s.intent {
            Some(Intent::Publish { target }) => {
                target.strip_prefix(&prefix(url, dim))?.parse().ok()
            }
            _ => None,
        });
        let mut reply = self.query_tensors(&copy.query, statement).await?;
        let Answer::Chunked(results) =
            std::mem::replace(&mut reply.answer, Answer::Done(String::new()))
        else {
            return Err(Error::Internal { what: "an append of no tensors".into() });
        };
        let items = items(&results);
        let stores = &self.host.stores;
        let append = Append::open(url, dim, &items, storage, stores).await.map_err(Error::stage)?;
        let more = append.after() - append.before();
        // An earlier run of the statement may have ended before it could say so.
        if noted.is_some_and(|before: u64| append.before() >= before + more) {
            reply.answer = Answer::Done(format!("appended to {url}"));
            return Ok(reply);
        }
        self.publishes_as(format!("{}{}", prefix(url, dim), append.before()), statement).await?;
        for (result, item) in results.into_iter().zip(&items) {
            let result = Arc::new(result);
            for region in append.boxes(&item.name).unwrap_or_default() {
                if statement.is_cancelled() {
                    return Err(Error::Cancelled);
                }
                self.append_box(&append, &result, item, region, statement).await?;
            }
        }
        if statement.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let length = append.finish().await.map_err(Error::stage)?;
        reply.answer = Answer::Done(format!("appended {more} to {url} along {dim} ({length} now)"));
        Ok(reply)
    }

    async fn append_box(
        &self,
        append: &Append,
        result: &Arc<Chunked>,
        item: &Item,
        region: Region,
        statement: &Handle,
    ) -> Result<(), Error> {
        let bytes = region.cells().saturating_mul(item.dtype.size() as u64).saturating_mul(COPIES);
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
        let read = tokio::task::spawn_blocking(move || result.window(&at)).await;
        let cells = read.map_err(|e| Error::Internal { what: e.to_string() })??;
        let valid = cells.valid.as_deref();
        let put = append.put(&item.name, &region, &cells.data, valid).await;
        drop(reserved);
        put.map_err(Error::stage)
    }
}

/// The intent of an append, without the length before it.
fn prefix(url: &str, dim: &str) -> String {
    format!("{url} along {dim} after ")
}

fn items(results: &[Chunked]) -> Vec<Item> {
    let labels: Vec<_> = results.iter().map(|r| r.labels.clone()).collect();
    let names = tessera_frontend::labels::identifiers(&labels);
    let chunks = |r: &Chunked| Shards { chunks: r.grid.shape(), shards: None };
    results.iter().zip(&labels).zip(names).map(|((r, l), name)| item(l, name, chunks(r))).collect()
}
