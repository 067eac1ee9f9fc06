//! Opens the relations of a query before it is bound.

use crate::Handle;
use crate::error::Error;
use crate::locals::{self, Local};
use crate::session::cells::rows_error;
use crate::session::failure::Failure;
use crate::session::settings::Settings;
use crate::session::upload::TableFile;
use crate::session::warehouse::{Definition, Entry};
use crate::session::{Session, later, system};
use crate::statement::Made;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tessera_cells::rows::RowsState;
use tessera_cells::tables::{Table, TableFormat, Tables};
use tessera_exec::quota::Charge;
use tessera_exec::task::{Origin, Resident, SourceLocation, Sources};
use tessera_frontend::labels::DatasetLabels;
use tessera_frontend::{Catalog, Labels, RelationRef, View};
use tessera_planner::catalog::{Attrs, Coord, Dataset, Decode, SourceRef, TextColumn, Variable};
use tessera_storage::source::{self, Opened, Options, many};

/// A temp relation of a session.
#[derive(Debug)]
pub(crate) struct Temp {
    kind: TempKind,
    /// The statement that created it.
    made: Arc<Made>,
}

#[derive(Debug)]
enum TempKind {
    /// A dataset whose variables are in memory, and the memory of its labels if they are charged.
    Tensor { dataset: Arc<Dataset>, origins: Vec<(SourceRef, Origin)>, _labels: Option<Charge> },
    /// Rows in a file.
    Table(TableFile),
}

/// One result with its chunks.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) labels: Labels,
    pub(super) array: Arc<Resident>,
    /// The version of its contents, if its inputs have versions.
    pub(super) version: Option<String>,
}

/// Numbers of arrays in memory. None is used twice: the key of a plan must not name another array.
static ARRAYS: AtomicU64 = AtomicU64::new(0);

/// The next number of arrays in memory.
pub(crate) fn array_number() -> u64 {
    ARRAYS.fetch_add(1, Ordering::Relaxed)
}

impl Temp {
    /// The results of the statement `sql`, which runs as `handle`.
    pub(super) fn new(
        name: &str,
        results: Vec<Kept>,
        sql: &str,
        settings: &Settings,
        handle: &Handle,
    ) -> Result<Self, Error> {
        let number = array_number();
        let made = Made {
            number,
            sql: sql.into(),
            settings: settings.given().clone(),
            step: handle.entry().step(|s| s.clone()),
            uploaded: handle.entry().recipe().uploads,
            from: handle.entry().recipe().temps,
        };
        let mut dataset = Dataset { name: name.into(), ..Dataset::default() };
        let (mut origins, mut whole) = (Vec::new(), Arc::<DatasetLabels>::default());
        let single = results.len() == 1;
        let labels: Vec<Labels> = results.iter().map(|kept| kept.labels.clone()).collect();
        let names = tessera_frontend::labels::identifiers(&labels);
        for (kept, own) in results.into_iter().zip(names) {
            let l = kept.labels;
            // An unnamed single variable takes the tensor's name.
            let own = if single && !l.named { name.to_string() } else { own };
            if l.is_coordinate {
                dataset.coordinates.insert(own.as_str().into());
            }
            whole = l.dataset.clone();
            let source = SourceRef {
                url: format!("temp:{name}@{number}"),
                path: own.clone(),
                dtype: l.dtype,
                shape: l.shape.iter().copied().collect(),
                grid: kept.array.grid.clone(),
                nullable: l.nullable,
                version: kept.version,
                plain: false,
            };
            for dim in &l.dims {
                if let (Some(dim_name), Some(coord)) = (&dim.name, &dim.coord) {
                    let coord = Coord {
                        name: dim_name.clone(),
                        dim: dim_name.clone(),
                        ..Coord::clone(coord)
                    };
                    match dataset.coords.iter().find(|c| c.dim == coord.dim) {
                        None => dataset.coords.push(Arc::new(coord)),
                        Some(known) if known.values == coord.values => {}
                        Some(_) => {
                            return Err(later(
                                &format!(
                                    "a temp tensor whose variables have different labels on `{dim_name}`"
                                ),
                                "keep them as two tensors",
                            ));
                        }
                    }
                }
            }
            dataset.variables.push(Variable {
                name: own.into(),
                dims: l.dims.iter().map(|d| d.name.clone()).collect(),
                source: source.clone(),
                decode: Decode::default(),
                attrs: l.attrs,
            });
            origins.push((source, Origin::Resident(kept.array)));
        }
        dataset.attrs = Attrs::clone(&whole.attrs);
        for TextColumn { coord, is_along, is_coordinate } in &whole.texts {
            let texts = if *is_along { &mut dataset.coords } else { &mut dataset.scalars };
            texts.push(coord.clone());
            if *is_coordinate {
                dataset.coordinates.insert(coord.name.clone());
            }
        }
        let kind = TempKind::Tensor { dataset: Arc::new(dataset), origins, _labels: None };
        Ok(Temp { kind, made: Arc::new(made) })
    }

    /// Arrays of an upload, in memory, as the variables of `dataset`. The dataset also names the variables that are
    /// coordinates.
    pub(super) fn uploaded(
        name: &str,
        mut dataset: Dataset,
        arrays: Vec<(Variable, Arc<Resident>)>,
        labels: Charge,
    ) -> Self {
        let made = Made::uploaded(array_number());
        let mut origins = Vec::new();
        for (mut variable, array) in arrays {
            variable.source.url = format!("temp:{name}@{}", made.number);
            origins.push((variable.source.clone(), Origin::Resident(array)));
            match dataset.coordinates.contains(&variable.name) {
                true => dataset.auxiliary.push(variable),
                false => dataset.variables.push(variable),
            }
        }
        let dataset = Arc::new(dataset);
        let kind = TempKind::Tensor { dataset, origins, _labels: Some(labels) };
        Temp { kind, made: Arc::new(made) }
    }

    /// Rows of an upload.
    pub(super) fn table(file: TableFile) -> Self {
        let made = Made::uploaded(array_number());
        Temp { kind: TempKind::Table(file), made: Arc::new(made) }
    }

    /// The kind of the relation, in messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.kind {
            TempKind::Tensor { .. } => "temp tensor",
            TempKind::Table(_) => "temp table",
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let of = |o: &Origin| match o {
            Origin::Resident(r) => r.bytes(),
            Origin::Stored(_) | Origin::Lent(_) => 0,
        };
        match &self.kind {
            TempKind::Tensor { origins, .. } => origins.iter().map(|(_, o)| of(o)).sum(),
            TempKind::Table(file) => file.bytes(),
        }
    }
}

/// The opened relations of one statement, for the binder, and the sources of their cells.
pub(super) struct Opener<'a> {
    session: &'a Session,
    /// The statement. Its journal entry notes which relations were found; a recovered statement uses the noted ones.
    handle: Handle,
    /// Relations to open. Names of CTEs are not opened.
    relations: Vec<RelationRef>,
    opened: BTreeMap<RelationRef, Arc<Dataset>>,
    /// Relations that are rows.
    pub(super) tables: Tables,
    views: BTreeMap<RelationRef, Arc<View>>,
    /// Views that are being opened, outermost first.
    path: Vec<String>,
    /// Names in the catalog, for suggestions.
    known: Vec<String>,
    pub(super) sources: Sources,
    /// Plans and runs its cell blocks.
    pub(super) rows: RowsState,
}

/// A name or URL that was found.
pub(crate) enum Found {
    Dataset(Arc<Dataset>),
    Table(Table),
    View(Arc<View>),
}

/// Adds the format of an external table to its options, as the option `format` of `read_…`.
pub(super) fn with_format(options: &[(String, String)], stored_as: &str) -> Vec<(String, String)> {
    let format = ("format".to_string(), stored_as.to_ascii_lowercase());
    options.iter().cloned().chain([format]).collect()
}

/// Lookups of a name that is replaced at the same time.
const LOOKS_MAX: u32 = 4;

/// Upper bound on the nesting of views.
const VIEWS_DEEP_MAX: usize = 64;

impl<'a> Opener<'a> {
    pub(super) fn new(session: &'a Session, relations: Vec<RelationRef>, handle: &Handle) -> Self {
        Opener {
            session,
            handle: handle.clone(),
            relations,
            opened: BTreeMap::new(),
            tables: Tables::new(),
            views: BTreeMap::new(),
            path: Vec::new(),
            known: Vec::new(),
            sources: Sources::default(),
            rows: session.host.rows.state(),
        }
    }

    /// Opens all relations, including those of views.
    pub(super) async fn open(&mut self) -> Result<(), Error> {
        let relations = std::mem::take(&mut self.relations);
        self.open_all(relations).await?;
        if !self.opened.is_empty() {
            self.read_small_tables().await;
        }
        Ok(())
    }

    /// Reads small tables that are used together with arrays: a join with them can stay dense.
    async fn read_small_tables(&mut self) {
        let mut limit = self.rows.in_memory_max();
        for table in self.tables.values_mut() {
            if let Some((read, bytes)) = self.rows.in_memory(table, limit).await {
                *table = read;
                limit = limit.saturating_sub(bytes);
            }
        }
    }

    /// Marks that `view` is being defined: its query must not refer to it.
    pub(super) fn below(mut self, view: &str) -> Self {
        self.path.push(view.into());
        self
    }

    fn open_all(
        &mut self,
        relations: Vec<RelationRef>,
    ) -> futures::future::BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for relation in relations {
                let is_open =
                    self.opened.contains_key(&relation) || self.tables.contains_key(&relation);
                if is_open {
                    continue;
                }
                let found = match (&relation, TableFormat::of(&relation)) {
                    (RelationRef::Url { url, options }, Some(format)) => {
                        Some(Found::Table(self.table(format, url, options).await?))
                    }
                    (RelationRef::Url { url, options }, None) => {
                        Some(Found::Dataset(self.url(url, options).await?))
                    }
                    (RelationRef::Name(name), _) => self.find(name).await?,
                };
                // An unknown name is left to the binder, which knows its position.
                match found {
                    None => {}
                    Some(Found::Dataset(dataset)) => {
                        self.opened.insert(relation, dataset);
                    }
                    Some(Found::Table(table)) => {
                        self.tables.insert(relation, table);
                    }
                    Some(Found::View(view)) => {
                        if let Some(at) = self.path.iter().position(|name| *name == view.name) {
                            let path =
                                [&self.path[at..], std::slice::from_ref(&view.name)].concat();
                            return Err(Error::stage(Failure::CyclicView {
                                name: view.name.clone(),
                                path: path.join(" → "),
                            }));
                        }
                        if self.path.len() >= VIEWS_DEEP_MAX {
                            return Err(Error::stage(Failure::DeepView {
                                name: view.name.clone(),
                                limit: VIEWS_DEEP_MAX,
                            }));
                        }
                        if self.views.insert(relation, view.clone()).is_some() {
                            continue;
                        }
                        let below =
                            tessera_frontend::relations(&view.query).map_err(Error::stage)?;
                        self.path.push(view.name.clone());
                        self.open_all(below).await?;
                        self.path.pop();
                    }
                }
            }
            Ok(())
        })
    }

    pub(super) async fn table(
        &mut self,
        format: TableFormat,
        url: &str,
        options: &[(String, String)],
    ) -> Result<Table, Error> {
        let (stores, versions) = (&self.session.host.stores, self.handle.versions());
        let opened = self.rows.open_table(format, url, options, stores, &versions).await;
        let opened = opened.map_err(rows_error)?;
        self.handle.reads_table(opened.store);
        let table = format!("{}#{}", opened.url, format.name());
        if !self.handle.is_version(&table, &opened.version) {
            return Err(Error::stage(Failure::SourceChanged { url: opened.url }));
        }
        Ok(opened.table)
    }

    pub(super) async fn url(
        &mut self,
        url: &str,
        options: &[(String, String)],
    ) -> Result<Arc<Dataset>, Error> {
        let options = options.iter().map(|(k, v)| (k.as_str(), v.as_str()));
        let options = Options::parse(options).map_err(Error::stage)?;
        self.store(url, &options).await
    }

    async fn store(&mut self, url: &str, options: &Options) -> Result<Arc<Dataset>, Error> {
        let (versions, stores) = (self.handle.versions(), &self.session.host.stores);
        let opened = source::open_for(&versions, url, options, stores).await;
        self.add(
            opened.map_err(Error::stage)?,
            &Arc::new(SourceLocation {
                url: absolute(url),
                options: options.clone(),
                rules: stores.rules_for(url, options),
            }),
        )
    }

    fn add(&mut self, opened: Opened, place: &Arc<SourceLocation>) -> Result<Arc<Dataset>, Error> {
        for reader in &opened.readers {
            let source = reader.source();
            if let Some(version) = &source.version {
                let array = format!("{}#{}", source.url, source.path);
                if !self.handle.is_version(&array, version) {
                    return Err(Error::stage(Failure::SourceChanged { url: source.url.clone() }));
                }
            }
            self.sources.add(reader.source().clone(), Origin::Stored(reader.clone()));
            self.sources.opened_at(reader.source().clone(), place.clone());
        }
        Ok(Arc::new(opened.dataset))
    }

    /// Opens a relation of the program that embeds the engine, or that is the client of a server.
    async fn local(&mut self, name: &str) -> Result<Option<Found>, Error> {
        let all = self.handle.locals();
        let Some(local) = all.get(name) else { return Ok(None) };
        if let Some(view) = self.path.last() {
            let (view, name) = (view.clone(), name.to_string());
            return Err(Error::stage(Failure::LocalInView { view, name }));
        }
        match local.open(&mut self.sources) {
            locals::Opened::Found(found) => Ok(Some(found)),
            locals::Opened::Kept(temp) => self.temp(temp).await.map(Some),
            locals::Opened::Stored(url) => Ok(Some(Found::Dataset(self.url(url, &[]).await?))),
        }
    }

    /// Opens a temp relation.
    async fn temp(&mut self, temp: &Arc<Temp>) -> Result<Found, Error> {
        self.handle.entry().uses(&temp.made);
        match &temp.kind {
            TempKind::Tensor { dataset, origins, .. } => {
                for (source, origin) in origins {
                    self.sources.add(source.clone(), origin.clone());
                }
                Ok(Found::Dataset(dataset.clone()))
            }
            TempKind::Table(file) => {
                self.handle.reads_temp(temp);
                self.table(TableFormat::Arrow, file.path(), &[]).await.map(Found::Table)
            }
        }
    }

    /// Opens a name of the catalog. An exact match wins; otherwise the name must match exactly one entry without regard
    /// to case.
    pub(super) async fn find(&mut self, name: &str) -> Result<Option<Found>, Error> {
        let key = bare(name);
        // Names in a view refer to the catalog, not to the arrays of the caller.
        let is_in_view = !self.path.is_empty();
        if !is_in_view && self.handle.locals().get(&key).is_some_and(Local::goes_first) {
            return self.local(&key).await;
        }
        let temp = {
            let temps = self.session.temps();
            let found = pick(&key, temps.keys().map(String::as_str));
            found.and_then(|n| temps.get(&n).cloned())
        };
        if let Some(temp) = temp {
            return self.temp(&temp).await.map(Some);
        }
        if let Some(rows) = system::rows(name, &self.session.host) {
            let table = Table::of_rows(rows.map_err(|source| Error::Rows { source })?);
            return Ok(Some(Found::Table(table.map_err(rows_error)?)));
        }
        let mut tries = 0..LOOKS_MAX;
        loop {
            tries.next();
            let is_noted = self.handle.entry().step(|s| s.names.contains_key(&key));
            let Some(entry) = self.entry(&key).await? else {
                return self.local(&key).await;
            };
            let found = match &entry.definition {
                Definition::View { query } => {
                    // Each text has a number of its own in the statement.
                    let text = self.views.len() as u64 + 1;
                    let view = View::parse(&entry.name, text, query);
                    return Ok(Some(Found::View(Arc::new(view.map_err(Error::stage)?))));
                }
                Definition::External { stored_as, location, options } => {
                    if let Some(format) = TableFormat::parse(stored_as) {
                        let table = self.table(format, location, options).await?;
                        return Ok(Some(Found::Table(table)));
                    }
                    self.url(location, &with_format(options, stored_as)).await
                }
                Definition::Tensor { data, manifest, .. } => {
                    let warehouse = &self.session.host.warehouse;
                    self.handle.entry().pin(warehouse.pin(data));
                    // Its contents never change, but another process may drop it while it is read.
                    let url = warehouse.url(data);
                    self.store(&url, &Options::warehouse(manifest.clone())).await
                }
            };
            match found {
                Ok(dataset) => {
                    let mut dataset = Dataset::clone(&dataset);
                    dataset.name = entry.name;
                    return Ok(Some(Found::Dataset(Arc::new(dataset))));
                }
                Err(e) => {
                    // The entry may have been replaced between reading it and opening its cells.
                    let now = self.look_up(&key).await?;
                    if now.as_ref() == Some(&entry) {
                        return Err(e);
                    }
                    if is_noted || tries.is_empty() {
                        // While cells are being removed, files are missing but not damaged.
                        let data = entry.definition.data().filter(|_| e.code() == "corrupt");
                        return Err(data.map_or(e, |data| {
                            let url = self.session.host.warehouse.url(data);
                            Error::stage(Failure::SourceChanged { url })
                        }));
                    }
                    self.handle.entry().step(|s| s.names.remove(&key));
                }
            }
        }
    }

    /// The entry that the name had when the statement was first bound, else the current one.
    pub(super) async fn entry(&mut self, key: &str) -> Result<Option<Entry>, Error> {
        if let Some(noted) = self.handle.entry().step(|s| s.names.get(key).cloned()) {
            return Ok(noted);
        }
        let found = self.look_up(key).await?;
        self.handle.entry().step(|s| s.names.insert(key.into(), found.clone()));
        Ok(found)
    }

    /// Finds the entry of the warehouse. An exact match wins; otherwise the key must match exactly one entry without
    /// regard to case.
    async fn look_up(&mut self, key: &str) -> Result<Option<Entry>, Error> {
        let warehouse = &self.session.host.warehouse;
        if let Some(entry) = warehouse.entry(key).await? {
            return Ok(Some(entry));
        }
        let names = warehouse.names().await?;
        self.known = names.clone();
        self.known.extend(self.session.temps().keys().cloned());
        self.known.extend(self.handle.locals().names().map(String::from));
        match pick(key, names.iter().map(String::as_str)) {
            Some(name) => warehouse.entry(&name).await,
            None => Ok(None),
        }
    }
}

impl Catalog for Opener<'_> {
    fn relation(&self, relation: &RelationRef) -> Option<Arc<Dataset>> {
        self.opened.get(relation).cloned()
    }

    fn is_rows(&self, relation: &RelationRef) -> bool {
        self.tables.contains_key(relation)
    }

    fn view(&self, relation: &RelationRef) -> Option<Arc<View>> {
        self.views.get(relation).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.known.clone()
    }
}

/// A name without its quotes.
pub(crate) fn bare(name: &str) -> String {
    name.strip_prefix('"')
        .and_then(|n| n.strip_suffix('"'))
        .map_or_else(|| name.into(), |n| n.replace("\"\"", "\""))
}

/// Picks the known name that matches exactly, or else the only one that matches without regard to case.
pub(crate) fn pick<'n>(name: &str, known: impl Iterator<Item = &'n str> + Clone) -> Option<String> {
    if let Some(exact) = known.clone().find(|k| *k == name) {
        return Some(exact.into());
    }
    let mut near = known.filter(|k| k.eq_ignore_ascii_case(name));
    match (near.next(), near.next()) {
        (Some(one), None) => Some(one.into()),
        _ => None,
    }
}

/// An absolute path, valid from other working directories; URLs stay as they are.
pub(super) fn absolute(url: &str) -> String {
    if let Some(all) = many::listed(url) {
        return many::list_of(&all.iter().map(|one| absolute(one)).collect::<Vec<_>>());
    }
    let path = (!url.contains("://")).then(|| std::path::absolute(url).ok()).flatten();
    path.and_then(|p| p.into_os_string().into_string().ok()).unwrap_or_else(|| url.into())
}
