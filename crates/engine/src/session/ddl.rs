//! Results that are stored in the warehouse: CREATE TENSOR, CREATE VIEW, DROP.

use crate::Handle;
use crate::answer::{Answer, Reply, Stats, Surface};
use crate::error::{Class, Error, Position};
use crate::session::open::{self, Opener, bare};
use crate::session::run::Results;
use crate::session::warehouse::{Definition, Entry};
use crate::session::{Failure, Session};
use crate::statement::Intent;
use sqlparser::ast::Query;
use tessera_cells::tables::TableFormat;
use tessera_frontend::statement::{CreateExternal, CreateTensor, Drop as DropStatement, DropKind};
use tessera_frontend::{Labels, Lowered};
use tessera_planner::build::Builder;
use tessera_planner::catalog::{Attrs, DimLabel, TextColumn};
use tessera_planner::config::Config as PlanConfig;
use tessera_planner::explain::bytes;
use tessera_storage::sink::{
    Host as SinkHost, Item, Layout, Shards, SinkError, Target, Written, ZarrWriter,
};

/// Attempts to define a name that other statements define at the same time.
const PUTS_MAX: u32 = 64;

/// The definitions that a new definition of a name may replace.
#[derive(Debug, Clone, Copy)]
pub(super) enum Replaces<'a> {
    Nothing,
    /// Any definition of its kind.
    Any,
    /// The definition of a tensor whose cells the new one has.
    Only(&'a Definition),
}

impl Replaces<'_> {
    pub(super) fn of(or_replace: bool) -> Self {
        if or_replace { Replaces::Any } else { Replaces::Nothing }
    }

    /// Checks that a definition of the kind `kind` may replace the one of the name.
    ///
    /// # Errors
    /// `already_exists`, `wrong_kind`, `document_changed`.
    pub(super) fn check(
        self,
        key: &str,
        now: Option<&Definition>,
        kind: &'static str,
    ) -> Result<(), Error> {
        match (self, now) {
            (Replaces::Only(expected), Some(now)) if now == expected => Ok(()),
            (Replaces::Only(_), _) => Err(Error::stage(SinkError::Changed { what: key.into() })),
            (Replaces::Nothing | Replaces::Any, None) => Ok(()),
            (Replaces::Any, Some(now)) if now.kind() == kind => Ok(()),
            (Replaces::Any, Some(now)) => {
                Err(Error::stage(Failure::WrongKind { name: key.into(), kind: now.kind() }))
            }
            (Replaces::Nothing, Some(_)) => Err(Error::stage(Failure::Exists { name: key.into() })),
        }
    }
}

/// Parameters of writing a store.
pub(super) struct ZarrWrite<'a> {
    pub(super) target: &'a Target,
    pub(super) layout: Layout,
    /// Name of an unnamed single result.
    pub(super) name: Option<&'a str>,
    /// Texts of the dataset that are not part of the result.
    pub(super) beside: &'a [TextColumn],
    pub(super) overwrite: bool,
    /// Writes to the warehouse: in place, and synced to the device at the end.
    pub(super) warehouse: bool,
}

impl Session {
    /// `CREATE [OR REPLACE] TENSOR`.
    pub(super) async fn create_tensor(
        &self,
        create: &CreateTensor,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = create.name.to_string();
        let key = bare(&name);
        if self.was_defined(&key, statement).await? {
            return Ok(Answer::Done(format!("created tensor {name}")).into());
        }
        if let Some(kept) =
            self.free(&name, "tensor", create.or_replace, create.if_not_exists).await?
        {
            return Ok(kept);
        }
        let replaces = Replaces::of(create.or_replace);
        let (written, mut reply) =
            self.write_tensor(&key, (&create.query, &[]), replaces, statement).await?;
        reply.answer = Answer::Done(format!("created tensor {name} ({})", amount(&written)));
        Ok(reply)
    }

    /// Writes the cells of a tensor under an unused name, with texts `beside` the texts of its query, then its entry.
    pub(super) async fn write_tensor(
        &self,
        key: &str,
        (query, beside): (&Query, &[TextColumn]),
        replaces: Replaces<'_>,
        statement: &Handle,
    ) -> Result<(Written, Reply), Error> {
        let warehouse = &self.host.warehouse;
        let (data, target, _claim) = warehouse.room().await?;
        let write = ZarrWrite {
            target: &target,
            layout: Layout::warehouse(),
            name: Some(key),
            beside,
            overwrite: false,
            warehouse: true,
        };
        let (written, reply) = self.write_zarr(query, write, statement).await?;
        let follows = match replaces {
            Replaces::Only(old) => old.followed(),
            Replaces::Nothing | Replaces::Any => Vec::new(),
        };
        let manifest = written.manifest.clone();
        let definition = Definition::Tensor { data: data.clone(), manifest, follows };
        if let Err(e) = self.define(key, definition.clone(), replaces, statement).await {
            // The put may have succeeded although it failed here. Cells that the entry names, or may name, stay.
            let is_refused = e.code() == "document_changed";
            match warehouse.entry(key).await {
                Ok(Some(Entry { definition: now, .. }))
                    if now == definition || now.continues(&data) => {}
                // A request without a response may still take effect.
                Ok(_) if warehouse.is_remote() && e.class() == Class::Retry && !is_refused => {
                    return Err(e);
                }
                Ok(_) => {
                    warehouse.remove_data(&data).await?;
                    return Err(e);
                }
                Err(unread) => {
                    tracing::warn!(data, error = %unread, "an entry cannot be read: its cells are left");
                    return Err(e);
                }
            }
        }
        Ok((written, reply))
    }

    /// Defines a name durably. The cells of the definition that it replaces are removed. The intent is noted before, so
    /// that a recovered statement can detect that it already defined the name ([`Session::was_defined`]).
    pub(super) async fn define(
        &self,
        key: &str,
        definition: Definition,
        replaces: Replaces<'_>,
        statement: &Handle,
    ) -> Result<(), Error> {
        let warehouse = &self.host.warehouse;
        // A put of an earlier run may still take effect in a bucket at any time: the server that sent it ended, the
        // request did not.
        let tried = match statement.entry().step(|s| s.intent.clone()) {
            Some(Intent::Define { definition: last, mut tried, .. }) => {
                tried.push(last);
                tried
            }
            _ => Vec::new(),
        };
        let mut there = match matches!(replaces, Replaces::Nothing) && tried.is_empty() {
            true => None,
            false => warehouse.entry_version(key).await?,
        };
        for _ in 0..PUTS_MAX {
            let now = there.as_ref().map(|(entry, _)| &entry.definition);
            // The put was refused after it had succeeded.
            if now == Some(&definition) {
                return Ok(());
            }
            if !now.is_some_and(|now| tried.contains(now)) {
                replaces.check(key, now, definition.kind())?;
            }
            let before = now.and_then(Definition::data).map(String::from);
            let intent = Intent::Define {
                definition: definition.clone(),
                before: before.clone(),
                tried: tried.clone(),
            };
            statement.entry().step(|s| s.intent = Some(intent));
            statement.entry().keep().await?;
            match warehouse.put(key, definition.clone(), there.as_ref()).await {
                Err(e) if e.code() == "already_exists" => {
                    there = warehouse.entry_version(key).await?;
                }
                Err(e) => return Err(e),
                Ok(()) => {
                    return match before {
                        Some(data) => warehouse.remove_data(&data).await,
                        None => Ok(()),
                    };
                }
            }
        }
        Err(Error::stage(Failure::Exists { name: key.into() }))
    }

    /// True if an earlier run of the statement already defined the name.
    pub(super) async fn was_defined(&self, key: &str, statement: &Handle) -> Result<bool, Error> {
        let intent = statement.entry().step(|s| s.intent.clone());
        let Some(Intent::Define { definition, before, tried }) = intent else { return Ok(false) };
        let warehouse = &self.host.warehouse;
        let Some(entry) = warehouse.entry(key).await? else { return Ok(false) };
        // Any of its runs may have put the entry: each had written all cells, and the cells of an unfinished statement
        // are not removed.
        let is_done = entry.definition == definition || tried.contains(&entry.definition);
        let there = entry.definition.data();
        if let Some(data) = before.filter(|data| is_done && there != Some(data.as_str())) {
            warehouse.remove_data(&data).await?;
        }
        Ok(is_done)
    }

    /// `DROP TENSOR|TABLE|VIEW`: the entry first, then the cells.
    pub(super) async fn drop_named(
        &self,
        drop: &DropStatement,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = drop.name.to_string();
        let key = bare(&name);
        let view = drop.kind == DropKind::View;
        let temp = if view { None } else { self.temps().remove(&key) };
        if let Some(temp) = temp {
            return Ok(Answer::Done(format!("dropped {} {name}", temp.kind())).into());
        }
        let warehouse = &self.host.warehouse;
        let entry = warehouse.entry(&key).await;
        if let Some(Intent::Drop { definition }) = statement.entry().step(|s| s.intent.clone())
            && !matches!(&entry, Ok(Some(e)) if e.definition == definition)
        {
            // An earlier run dropped the entry; the cells may be left.
            if let Some(data) = definition.data() {
                warehouse.remove_data(data).await?;
            }
            return Ok(Answer::Done(format!("dropped {} {name}", definition.kind())).into());
        }
        let Some(entry) = (match entry {
            // An unreadable entry can still be removed.
            Err(e) if matches!(e.code(), "invalid_definition" | "corrupt") => {
                warehouse.remove(&key).await?;
                return Ok(Answer::Done(format!("dropped {name}")).into());
            }
            other => other?,
        }) else {
            if drop.if_exists {
                return Ok(Answer::Done(format!("there is no {name}")).into());
            }
            return Err(self.unknown(&drop.name, warehouse.names().await?));
        };
        let kind = entry.definition.kind();
        if view != matches!(entry.definition, Definition::View { .. }) {
            return Err(Error::stage(Failure::WrongKind { name, kind }));
        }
        let definition = entry.definition;
        statement
            .entry()
            .step(|s| s.intent = Some(Intent::Drop { definition: definition.clone() }));
        statement.entry().keep().await?;
        warehouse.remove(&key).await?;
        if let Some(data) = definition.data() {
            warehouse.remove_data(data).await?;
        }
        Ok(Answer::Done(format!("dropped {kind} {name}")).into())
    }

    /// Checks if a `kind` may take the name; with `if_not_exists`, returns the reply if an entry has the name and stays.
    /// Only an entry of the same kind is replaced: a view must not replace a tensor and remove its cells.
    pub(super) async fn free(
        &self,
        name: &str,
        kind: &'static str,
        or_replace: bool,
        if_not_exists: bool,
    ) -> Result<Option<Reply>, Error> {
        let key = bare(name);
        let kept = |kind: &str| -> Option<Reply> {
            Some(Answer::Done(format!("{kind} {name} already exists")).into())
        };
        if key.starts_with('.') {
            return Err(Error::stage(Failure::HiddenName { name: key }));
        }
        if self.temps().contains_key(&key) {
            if if_not_exists {
                return Ok(kept("temp tensor"));
            }
            // The temp tensor would hide the new entry.
            return Err(Error::stage(Failure::Exists { name: key }));
        }
        let Some(entry) = self.host.warehouse.entry(&key).await? else { return Ok(None) };
        match (if_not_exists, or_replace) {
            (true, _) => Ok(kept(entry.definition.kind())),
            (_, true) if entry.definition.kind() == kind => Ok(None),
            (_, true) => {
                let kind = entry.definition.kind();
                Err(Error::stage(Failure::WrongKind { name: entry.name, kind }))
            }
            _ => Err(Error::stage(Failure::Exists { name: entry.name })),
        }
    }

    /// Runs a tensor query into a Zarr store. After an error or a cancel, no output is left.
    pub(super) async fn write_zarr(
        &self,
        query: &Query,
        write: ZarrWrite<'_>,
        statement: &Handle,
    ) -> Result<(Written, Reply), Error> {
        let ZarrWrite { target, layout, name, beside, overwrite, warehouse } = write;
        let config = self.settings().plan;
        let mut chunks = Vec::new();
        let planned = self
            .plan_with(query, statement, |lowered| {
                lowered.as_dataset();
                chunks = fit(lowered, &layout, &config)?;
                Ok(())
            })
            .await?;
        if warehouse {
            planned.labels.iter().flat_map(|l| &l.dims).try_for_each(check_labels)?;
        }
        let single = planned.labels.len() == 1;
        let names = tessera_frontend::labels::identifiers(&planned.labels);
        let of = planned.labels.first().map(|l| l.dataset.clone()).unwrap_or_default();
        let tensors = planned.labels.iter().zip(names).zip(chunks).map(|((l, own), chunks)| {
            item(l, name.filter(|_| single && !l.named).map_or(own, String::from), chunks)
        });
        let texts = of.texts.iter().chain(beside).filter_map(Item::of_texts);
        let items = tensors.chain(texts).collect();
        let host = self.sink_host(statement);
        let how = (overwrite, warehouse, warehouse);
        if !warehouse {
            self.publishes(target, statement).await?;
        }
        let attrs = Attrs::clone(&of.attrs);
        let writer = ZarrWriter::create(target, items, attrs, layout, how, &host)
            .await
            .map_err(Error::stage)?;
        let done = async {
            let (tiling, sources) = (&planned.tiling, &planned.sources);
            let execution = self.execution(statement);
            execution.run_plan(tiling, sources, writer.clone(), Results::Stored).await?;
            tokio::select! {
                biased;
                () = statement.cancelled() => Err(Error::Cancelled),
                written = writer.finish() => written.map_err(Error::stage),
            }
        }
        .await;
        match done {
            Ok(written) => {
                let stats = Stats { plan_s: planned.plan_s, ..Stats::default() };
                let answer = Answer::Done(String::new());
                Ok((written, Reply { answer, surface: Some(Surface::Tensor), stats }))
            }
            Err(e) => {
                if let Err(left) = writer.abort().await {
                    tracing::warn!(target = target.display(), error = %left, "an unfinished store could not be removed");
                }
                Err(e)
            }
        }
    }

    /// Notes the intent before an output appears.
    pub(super) async fn publishes(&self, target: &Target, statement: &Handle) -> Result<(), Error> {
        let target = target.display().to_string();
        statement.entry().step(|s| s.intent = Some(Intent::Publish { target }));
        statement.entry().keep().await
    }

    /// The resources of this process that writers use.
    pub(super) fn sink_host(&self, statement: &Handle) -> SinkHost {
        SinkHost {
            stores: self.host.stores.clone(),
            quota: self.quota(statement),
            io: self.host.io.clone(),
            threads: self.host.config.threads,
            store: self.host.runtime.store().clone(),
        }
    }
}

/// `3 objects, 1.2 MiB`.
pub(super) fn amount(written: &Written) -> String {
    let plural = if written.objects == 1 { "" } else { "s" };
    format!("{} in {} object{plural}", bytes(written.bytes), written.objects)
}

/// Moves the results to the grids of their objects.
fn fit(lowered: &mut Lowered, layout: &Layout, config: &PlanConfig) -> Result<Vec<Shards>, Error> {
    let graph = std::mem::take(&mut lowered.rooted.graph);
    let mut b = Builder::new(config.clone());
    b.graph = graph;
    let mut chunks = Vec::with_capacity(lowered.outputs.len());
    // Lengths apply to results with as many dimensions, if any exist; the other results keep their chunks.
    let rank = layout.chunks.as_ref().or(layout.shards.as_ref()).map(Vec::len);
    let is_of = |labels: &Labels| Some(labels.shape.len()) == rank;
    let has_some = lowered.outputs.iter().any(is_of);
    let computed = Layout { chunks: None, shards: None, ..layout.clone() };
    for (root, labels) in lowered.rooted.roots.iter_mut().zip(&lowered.outputs) {
        let node = b.node(*root);
        let layout = if is_of(labels) || !has_some { layout } else { &computed };
        let of =
            layout.fit(&labels.name, &node.shape, node.dtype, &node.grid).map_err(Error::stage)?;
        *root = b.rechunk(*root, of.object()).map_err(Error::stage)?;
        chunks.push(of);
    }
    lowered.rooted.graph = b.graph;
    Ok(chunks)
}

/// Refuses labels that cannot be read.
fn check_labels(dim: &DimLabel) -> Result<(), Error> {
    dim.coord.as_deref().map_or(Ok(()), super::readable)
}

pub(super) fn item(labels: &Labels, name: String, chunks: Shards) -> Item {
    Item {
        name,
        dtype: labels.dtype,
        nullable: labels.nullable,
        // A result that is only labels is the array of its dimension.
        dims: match labels.dims.as_slice() {
            [dim] if dim.name.as_deref() == Some(labels.name.as_str()) => {
                vec![DimLabel { name: dim.name.clone(), coord: None }]
            }
            dims => dims.to_vec(),
        },
        shape: labels.shape.iter().copied().collect(),
        attrs: labels.attrs.clone(),
        is_coordinate: labels.is_coordinate,
        chunks,
        texts: None,
    }
}

impl Session {
    /// `CREATE EXTERNAL TABLE`.
    pub(super) async fn create_external(
        &self,
        create: &CreateExternal,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = create.name.to_string();
        let key = open::bare(&name);
        if self.was_defined(&key, statement).await? {
            return Ok(Answer::Done(format!("created table {name}")).into());
        }
        let format = create.format.value.to_ascii_lowercase();
        let table = TableFormat::parse(&format);
        if table.is_none() && !tessera_frontend::ast::TENSOR_FORMATS.contains(&format.as_str()) {
            return Err(Error::stage(Failure::StoredAs {
                format: create.format.value.clone(),
                position: Position::of_span(create.format.span),
            }));
        }
        let extension = create.location.text.split('#').next().unwrap_or_default();
        let extension = extension.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
        let said = |f: &str| matches!(f, "npy" | "npz");
        if table.is_none() && extension != format && (said(&extension) || said(&format)) {
            return Err(Error::stage(Failure::Option {
                name: "STORED AS".into(),
                position: Position::of_span(create.format.span),
                reason: format!(
                    "the extension of `{}` is not that of {format} files",
                    create.location.text
                ),
                hint: match said(&extension) {
                    true => format!("write STORED AS {}", extension.to_uppercase()),
                    false => format!("files of that format end in .{format}"),
                },
            }));
        }
        if let Some(kept) =
            self.free(&name, "table", create.or_replace, create.if_not_exists).await?
        {
            return Ok(kept);
        }
        let options: Vec<(String, String)> =
            create.options.iter().map(|o| (o.key.text.clone(), o.value.text.clone())).collect();
        // A location that cannot be opened is refused now and not at the first query.
        let mut opener = Opener::new(self, Vec::new(), statement);
        match table {
            Some(table) => {
                opener.table(table, &create.location.text, &options).await?;
            }
            None => {
                let options = open::with_format(&options, &format);
                opener.url(&create.location.text, &options).await?;
            }
        }
        // Absolute, so that it is valid from every working directory.
        let location = open::absolute(&create.location.text);
        let definition = Definition::External { stored_as: format, location, options };
        self.define(&key, definition, Replaces::of(create.or_replace), statement).await?;
        Ok(Answer::Done(format!("created table {name}")).into())
    }
}
