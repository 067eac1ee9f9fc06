//! `INSERT INTO name query`: appends along the dimension whose labels, or length, the result does not share.
//!
//! A tensor of the warehouse never changes: it is replaced by the old cells and the new ones, in one step, if it is
//! still the one that was read. An external Zarr store is appended to in place.

use super::{ATTEMPTS_MAX, Store};
use crate::Handle;
use crate::answer::{Answer, Reply};
use crate::error::Error;
use crate::locals::Local;
use crate::session::ddl::Replaces;
use crate::session::open::{Found, Opener, bare, pick, with_format};
use crate::session::warehouse::{Definition, Entry};
use crate::session::{Failure, Session};
use crate::statement::Intent;
use sqlparser::ast::{ObjectName, Query};
use std::collections::BTreeSet;
use tessera_frontend::labels::Labels;
use tessera_frontend::statement::{Insert, Statement};
use tessera_frontend::surface::INSERTED;
use tessera_planner::catalog::{CoordValues, Dataset, DimLabel, TextColumn};
use tessera_storage::sink::check_labels;
use tessera_storage::source::{self, Options};

/// The requirement on the result of the query, for messages.
const FITTING: &str =
    "the result must have the variables of the target, and its labels along all dimensions but one";

/// The way out where names or labels are missing.
const NAMED: &str = "give names and labels to both, as in `assign_coords(rename(x, dim_0 => 'time'), time => arange(9, \
                     12))`; a Zarr store grows without labels by `COPY … STORED AS ZARR OPTIONS (append 'time')`";

impl Session {
    /// `INSERT INTO name query`.
    pub(in crate::session) async fn insert(
        &self,
        insert: &Insert,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = insert.name.to_string();
        let key = bare(&name);
        self.check_stored(&name, &key, statement)?;
        let target = format!("name {}", key.to_ascii_lowercase());
        let _turn = self.host.appends.turn(&target, statement).await?;
        let done = |reply: Reply| {
            let answer = Answer::Done(format!("inserted into {name}"));
            Reply { answer, ..reply }
        };
        let mut attempts = 0..ATTEMPTS_MAX;
        loop {
            attempts.next();
            let mut opener = Opener::new(self, Vec::new(), statement);
            let Some(entry) = opener.entry(&key).await? else {
                return Err(self.not_stored(&insert.name, opener).await?);
            };
            let refused =
                |kind| Err(Error::stage(Failure::NotATensor { name: name.clone(), kind }));
            match &entry.definition {
                Definition::View { .. } => return refused("a view"),
                Definition::External { stored_as, location, options } if stored_as == "zarr" => {
                    let store = (location.as_str(), options.as_slice());
                    return self.insert_into_store(insert, &name, store, statement).await.map(done);
                }
                Definition::External { .. } => return refused("a table of files"),
                Definition::Tensor { .. } => {}
            }
            if self.was_inserted(&entry.name, statement).await? {
                return Ok(done(Answer::Done(String::new()).into()));
            }
            let e = match self.insert_into_tensor(insert, &name, &entry, statement).await {
                Ok(reply) => return Ok(done(reply)),
                Err(e) => e,
            };
            let may_try = !attempts.is_empty() && !statement.is_cancelled() && !e.may_fit();
            if !may_try || self.is_entry(&entry).await? {
                return Err(e);
            }
            // Another process has replaced the version that was read, and nothing was changed.
            tracing::info!(id = statement.id(), "inserts again: {e}");
            let old = Some(entry);
            statement.entry().step(|s| {
                s.names.retain(|_, noted| *noted != old);
                s.intent = None;
            });
        }
    }

    /// Refuses relations outside of the warehouse that hide relations of the same name in it.
    fn check_stored(&self, name: &str, key: &str, statement: &Handle) -> Result<(), Error> {
        let is_temp = pick(key, self.temps().keys().map(String::as_str)).is_some();
        let is_local = statement.locals().get(key).is_some_and(Local::goes_first);
        let kind = match (is_temp, is_local) {
            (false, false) => return Ok(()),
            (true, _) => "temporary",
            (false, true) => "of the program, not of the warehouse",
        };
        Err(Error::stage(Failure::NotATensor { name: name.into(), kind }))
    }

    /// The error for a name that the catalog does not have.
    async fn not_stored(
        &self,
        written: &ObjectName,
        mut opener: Opener<'_>,
    ) -> Result<Error, Error> {
        let name = written.to_string();
        let key = bare(&name);
        let refused = |kind| Error::stage(Failure::NotATensor { name: name.clone(), kind });
        Ok(match opener.find(&key).await? {
            Some(Found::Table(_)) => refused("a table of rows"),
            Some(_) => refused("of the program, not of the warehouse"),
            None => self.unknown(written, self.host.warehouse.names().await?),
        })
    }

    /// True if the entry is the current one of its name.
    async fn is_entry(&self, entry: &Entry) -> Result<bool, Error> {
        Ok(self.host.warehouse.entry(&entry.name).await?.as_ref() == Some(entry))
    }

    /// True if an earlier run of the statement inserted its result into the tensor, and could not say so.
    async fn was_inserted(&self, name: &str, statement: &Handle) -> Result<bool, Error> {
        if self.was_defined(name, statement).await? {
            return Ok(true);
        }
        let intent = statement.entry().step(|s| s.intent.clone());
        let Some(Intent::Define { definition, before: Some(before), tried }) = intent else {
            return Ok(false);
        };
        let Some(now) = self.host.warehouse.entry(name).await? else { return Ok(false) };
        let now = now.definition;
        let mut runs = tried.iter().chain([&definition]).filter_map(Definition::data);
        if runs.any(|data| now.continues(data)) {
            return Ok(true);
        }
        // The tensor is the version that the earlier run had read, or another INSERT replaced that version.
        match now.data() == Some(before.as_str()) || now.continues(&before) {
            true => Ok(false),
            false => Err(Error::stage(Failure::OutcomeUnknown { what: name.into() })),
        }
    }

    async fn insert_into_store(
        &self,
        insert: &Insert,
        name: &str,
        (url, options): (&str, &[(String, String)]),
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let parse = |options: &[(String, String)]| {
            let pairs = options.iter().map(|(k, v)| (k.as_str(), v.as_str()));
            Options::parse(pairs).map_err(Error::stage)
        };
        let (own, reading) = (parse(options)?, parse(&with_format(options, "zarr"))?);
        let _turn = self.host.appends.turn(url, statement).await?;
        let store = Store { url, options: &own };
        if self.has_appended(&store, statement).await? {
            return Ok(Answer::Done(String::new()).into());
        }
        // The current version is read, also if the statement ran before: cells are appended behind those that were
        // appended since.
        let opened = tokio::select! {
            biased;
            () = statement.cancelled() => return Err(Error::Cancelled),
            opened = source::open(url, &reading, &self.host.stores) => opened.map_err(Error::stage)?,
        };
        let labels = self.plan(&insert.query, statement).await?.labels;
        let dim = grown(name, &opened.dataset, &labels)?;
        self.append_in_turn(&insert.query, &store, &dim, statement).await
    }

    /// Replaces the tensor of `entry` by its cells and the new ones.
    ///
    /// # Errors
    /// `document_changed` if its entry is another one now.
    async fn insert_into_tensor(
        &self,
        insert: &Insert,
        name: &str,
        entry: &Entry,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let replaces = Replaces::Only(&entry.definition);
        // The statement may have been bound to a tensor that was replaced before it ran again.
        let now = self.host.warehouse.entry(&entry.name).await?.map(|e| e.definition);
        replaces.check(&entry.name, now.as_ref(), entry.definition.kind())?;
        let Some(Found::Dataset(dataset)) =
            Opener::new(self, Vec::new(), statement).find(name).await?
        else {
            return Err(Error::Internal { what: format!("`{name}` is not a tensor") });
        };
        let labels = self.plan(&insert.query, statement).await?.labels;
        let dim = grown(name, &dataset, &labels)?;
        check_types(name, &dataset, &labels)?;
        check_continued(name, &dataset, &labels, &dim)?;
        let texts = dataset.texts();
        check_texts(name, &texts, &labels, &dim)?;
        let query = replacement(name, insert, &dataset, &dim)?;
        let written = self.write_tensor(&entry.name, (&query, &texts), replaces, statement).await;
        written.map(|(_, reply)| reply)
    }
}

fn cannot(name: &str, reason: String, hint: String) -> Error {
    Error::stage(Failure::Insert { name: name.into(), reason, hint })
}

/// The one dimension along which results differ from the dataset.
fn grown(name: &str, dataset: &Dataset, results: &[Labels]) -> Result<String, Error> {
    let fault = |reason: String| Err(cannot(name, reason, FITTING.into()));
    let mut dims = BTreeSet::new();
    for result in results {
        let mut all = dataset.variables.iter().chain(&dataset.auxiliary);
        let known = all.find(|v| *v.name == *result.name);
        // A coordinate that is not the labels of a dimension.
        if dataset.coords.iter().any(|c| *c.name == *result.name && c.name != c.dim) {
            continue;
        }
        let Some(v) = known else { return fault(format!("it has no variable `{}`", result.name)) };
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
        (None, _) if results.iter().flat_map(|r| &r.dims).any(|dim| dim.name.is_none()) => {
            Err(cannot(name, "only a dimension with a name can grow".into(), NAMED.into()))
        }
        (None, _) if !results.iter().flat_map(|r| &r.dims).any(|dim| dim.coord.is_some()) => {
            let reason = "no dimension has labels, which distinguish new cells from stored ones";
            Err(cannot(name, reason.into(), NAMED.into()))
        }
        (None, _) => fault("all labels of the result are stored already".into()),
        (Some(a), Some(b)) => fault(format!(
            "the result has other labels along `{a}` and along `{b}`; one dimension may grow"
        )),
    }
}

/// Checks that a tensor can keep its types and has all values of the results.
fn check_types(name: &str, dataset: &Dataset, results: &[Labels]) -> Result<(), Error> {
    for result in results {
        let known = dataset.variables.iter().find(|v| *v.name == *result.name);
        let Some(was) = known.map(|v| v.dtype()) else { continue };
        if !result.dtype.fits(was) {
            let reason = format!("`{}` is {}, the tensor has {was}", result.name, result.dtype);
            let hint = format!("a cast may round or fail: CAST({} AS {was})", result.name);
            return Err(cannot(name, reason, hint));
        }
    }
    Ok(())
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
        let reason = format!("the labels of `{dim}` are {is}, the existing ones are {was}");
        return Err(cannot(name, reason, FITTING.into()));
    }
    check_labels(&format!("tensor `{name}`"), old, new).map(drop).map_err(Error::stage)
}

/// Checks that the texts of a tensor do not grow, and that those of the results are the same.
fn check_texts(
    name: &str,
    texts: &[TextColumn],
    results: &[Labels],
    dim: &str,
) -> Result<(), Error> {
    let fault = |reason: String| Err(cannot(name, reason, FITTING.into()));
    if let Some(text) = texts.iter().find(|text| text.dim().is_some_and(|of| **of == *dim)) {
        return fault(format!("its texts `{}` lie along `{dim}`, which grows", text.coord.name));
    }
    for new in results.iter().take(1).flat_map(|result| &result.dataset.texts) {
        let old = texts.iter().find(|old| old.coord.name == new.coord.name);
        if old.is_none_or(|old| old.coord.values != new.coord.values) {
            return fault(format!("the result has other texts `{}`", new.coord.name));
        }
    }
    Ok(())
}

/// The query of a tensor's cells and the new ones.
fn replacement(
    name: &str,
    insert: &Insert,
    dataset: &Dataset,
    dim: &str,
) -> Result<Box<Query>, Error> {
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let items = dataset.variables.iter().map(|v| {
        let own = quoted(&v.name);
        match v.dims.iter().any(|d| d.as_deref() == Some(dim)) {
            true => format!(
                "concat([__old.{own}, {INSERTED}.{own}], axis => '{}') AS {own}",
                dim.replace('\'', "''")
            ),
            false => format!("__old.{own} AS {own}"),
        }
    });
    let text = format!(
        "WITH {INSERTED} AS ({}) SELECT {} FROM {name} AS __old, {INSERTED}",
        insert.query_text,
        items.collect::<Vec<_>>().join(", ")
    );
    let mut parsed = tessera_frontend::parse(&text).map_err(Error::stage)?;
    match parsed.pop().map(|p| p.statement) {
        Some(Statement::Query(query)) => Ok(query),
        _ => Err(Error::Internal { what: "an INSERT that is not a query".into() }),
    }
}
