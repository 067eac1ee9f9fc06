//! `COPY … OPTIONS (append 'dim')` and `INSERT INTO`: appends a result to a Zarr store, or to a tensor.

use crate::Handle;
use crate::answer::{Answer, Chunked, Reply};
use crate::error::Error;
use crate::session::ddl::item;
use crate::session::open::{Found, Opener, bare};
use crate::session::warehouse::Definition;
use crate::session::{Failure, Session};
use crate::statement::Intent;
use futures::stream::{self, StreamExt};
use sqlparser::ast::Query;
use std::collections::BTreeSet;
use std::sync::Arc;
use tessera_frontend::labels::Labels;
use tessera_frontend::statement::{CreateTensor, Insert, Statement};
use tessera_planner::catalog::{CoordValues, Dataset, DimLabel};
use tessera_planner::region::Region;
use tessera_storage::sink::{Append, Item, Shards, SinkError, check_labels};
use tessera_storage::source::Options;

/// Bytes that are held of a box for each byte of its cells: the cells, what is stored of them, an object.
const COPIES: u64 = 4;

/// Objects that are written at the same time, if the memory suffices.
const AT_ONCE: u64 = 8;

impl Session {
    /// Appends the result of a COPY along `dim`. The result is computed first; large ones go to the scratch directory.
    pub(super) async fn append(
        &self,
        query: &Query,
        url: &str,
        dim: &str,
        storage: &Options,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let noted = statement.entry().step(|s| match &s.intent {
            Some(Intent::Publish { target }) => {
                target.strip_prefix(&prefix(url, dim))?.parse().ok()
            }
            _ => None,
        });
        let mut reply = self.query_tensors(query, statement).await?;
        let Answer::Chunked(results) =
            std::mem::replace(&mut reply.answer, Answer::Done(String::new()))
        else {
            return Err(Error::Internal { what: "an append of no tensors".into() });
        };
        let items = items(&results);
        let stores = &self.host.stores;
        // It may wait for the lock of an append that was killed.
        let append = tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            append = Append::open(url, dim, &items, storage, stores) => append,
        };
        let append = append.map_err(Error::stage)?;
        let more = append.after() - append.before();
        // An earlier run of the statement may have ended before it could say so.
        if noted.is_some_and(|before: u64| append.before() >= before + more) {
            append.abandon().await;
            reply.answer = Answer::Done(format!("appended to {url}"));
            return Ok(reply);
        }
        let intent = format!("{}{}", prefix(url, dim), append.before());
        let written = match self.publishes_as(intent, statement).await {
            Ok(()) => self.append_cells(&append, results, &items, statement).await,
            Err(e) => Err(e),
        };
        let length = match written {
            Ok(()) => append.finish().await.map_err(Error::stage)?,
            Err(e) => {
                append.abandon().await;
                return Err(e);
            }
        };
        reply.answer = Answer::Done(format!("appended {more} to {url} along {dim} ({length} now)"));
        Ok(reply)
    }

    /// Writes all cells of the results, several objects at a time.
    async fn append_cells(
        &self,
        append: &Append,
        results: Vec<Chunked>,
        items: &[Item],
        statement: &Handle,
    ) -> Result<(), Error> {
        for (result, item) in results.into_iter().zip(items) {
            let result = Arc::new(result);
            let quota = self.sink_host(statement).quota;
            let largest = append.boxes(&item.name).map(|b| bytes_of(&b, item)).max().unwrap_or(1);
            let free = quota.limit().saturating_sub(quota.used());
            let at_once = (free / largest.max(1)).clamp(1, AT_ONCE) as usize;
            let boxes = stream::iter(append.boxes(&item.name));
            let put = boxes.map(|region| self.append_box(append, &result, item, region, statement));
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

    /// `INSERT INTO name query`: appends along the dimension whose labels, or length, the result does not share.
    ///
    /// A tensor of the warehouse never changes: it is replaced by the old cells and the new ones, in one step. An
    /// external Zarr store is appended to in place.
    pub(super) async fn insert(&self, insert: &Insert, statement: &Handle) -> Result<Reply, Error> {
        let name = insert.name.to_string();
        let key = bare(&name);
        let done = || Answer::Done(format!("inserted into {name}"));
        if self.was_defined(&key, statement).await? {
            return Ok(done().into());
        }
        let mut opener = Opener::new(self, Vec::new(), statement);
        let refused = |kind| Err(Error::stage(Failure::NotATensor { name: name.clone(), kind }));
        let dataset = match opener.find(&key).await? {
            Some(Found::Dataset(dataset)) => dataset,
            Some(Found::View(_)) => return refused("a view"),
            Some(Found::Table(_)) => {
                let is_of_files = self.host.warehouse.entry(&key).await?.is_some();
                return refused(if is_of_files { "a table of files" } else { "a table of rows" });
            }
            None => {
                let known = self.host.warehouse.names().await?;
                return Err(self.unknown(&key, known));
            }
        };
        let labels = self.plan(&insert.query, statement).await?.labels;
        let dim = grown(&dataset, &labels)
            .map_err(|reason| Error::stage(Failure::Insert { name: name.clone(), reason }))?;
        let entry = self.host.warehouse.entry(&key).await?;
        let mut reply = match entry.map(|e| e.definition) {
            Some(Definition::External { stored_as, location, options }) if stored_as == "zarr" => {
                let options = options.iter().map(|(k, v)| (k.as_str(), v.as_str()));
                let options = Options::parse(options).map_err(Error::stage)?;
                self.append(&insert.query, &location, &dim, &options, statement).await?
            }
            Some(Definition::Tensor { .. }) => {
                check_continued(&name, &dataset, &labels, &dim)?;
                let create = replacement(&name, insert, &dataset, &dim)?;
                self.create_tensor(&create, statement).await?
            }
            _ => {
                let reason = "it is neither a tensor nor a table STORED AS ZARR".into();
                return Err(Error::stage(Failure::Insert { name, reason }));
            }
        };
        reply.answer = done();
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

/// Bytes that are held while a box is written.
fn bytes_of(region: &Region, item: &Item) -> u64 {
    region.cells().saturating_mul(item.dtype.size() as u64).saturating_mul(COPIES)
}

/// The one dimension along which results differ from the dataset.
fn grown(dataset: &Dataset, results: &[Labels]) -> Result<String, String> {
    let mut dims = BTreeSet::new();
    for result in results {
        let known = dataset.variables.iter().find(|v| *v.name == *result.name);
        let Some(v) = known else { return Err(format!("it has no variable `{}`", result.name)) };
        for (dim, (was, is)) in result.dims.iter().zip(v.source.shape.iter().zip(&result.shape)) {
            let Some(name) = &dim.name else { continue };
            let old = dataset.index_coord(name).map(|c| &c.values);
            let new = dim.coord.as_ref().map(|c| &c.values);
            if was != is || (old.is_some() && old != new) {
                dims.insert(name.to_string());
            }
        }
    }
    let mut dims = dims.into_iter();
    match (dims.next(), dims.next()) {
        (Some(dim), None) => Ok(dim),
        (None, _) => Err("the result has the labels that are there already".into()),
        (Some(a), Some(b)) => Err(format!(
            "the result has other labels along `{a}` and along `{b}`; one dimension may grow"
        )),
    }
}

/// Checks that new labels along `dim` continue those of a tensor, as those of a store are checked. Labels of another
/// type are refused, too: `concat` drops labels of two types.
fn check_continued(
    name: &str,
    dataset: &Dataset,
    results: &[Labels],
    dim: &str,
) -> Result<(), Error> {
    let Some(old) = dataset.index_coord(dim) else { return Ok(()) };
    let of_dim = |d: &DimLabel| d.coord.clone().filter(|_| d.name.as_deref() == Some(dim));
    let new = results.iter().flat_map(|r| &r.dims).find_map(of_dim).map(|c| c.values.clone());
    if let Some(new) = &new
        && new.dtype() != old.values.dtype()
    {
        let shown = |v: &CoordValues| v.dtype().map_or("texts".into(), |dtype| dtype.to_string());
        let (is, was) = (shown(new), shown(&old.values));
        let reason = format!("the labels of `{dim}` are {is}, those that it has are {was}");
        return Err(Error::stage(Failure::Insert { name: name.into(), reason }));
    }
    check_labels(&format!("tensor `{name}`"), old, new).map(drop).map_err(Error::stage)
}

/// The statement that replaces a tensor by its cells and the new ones.
fn replacement(
    name: &str,
    insert: &Insert,
    dataset: &Dataset,
    dim: &str,
) -> Result<CreateTensor, Error> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let items = dataset.variables.iter().map(|v| {
        let own = quoted(&v.name);
        match v.dims.iter().any(|d| d.as_deref() == Some(dim)) {
            true => format!(
                "concat([__old.{own}, __new.{own}], axis => '{}') AS {own}",
                dim.replace('\'', "''")
            ),
            false => format!("__old.{own} AS {own}"),
        }
    });
    let text = format!(
        "CREATE OR REPLACE TENSOR {name} AS WITH __new AS ({}) SELECT {} FROM {name} AS __old, __new",
        insert.query_text,
        items.collect::<Vec<_>>().join(", ")
    );
    let mut parsed = tessera_frontend::parse(&text).map_err(Error::stage)?;
    match parsed.pop().map(|p| p.statement) {
        Some(Statement::CreateTensor(create)) => Ok(create),
        _ => Err(Error::Internal { what: "an INSERT that creates no tensor".into() }),
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
