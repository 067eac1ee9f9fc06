//! Keys of Parquet files that are read as indices of dictionaries.
//!
//! ```text
//! GroupsExec: keys s             GroupsExec: keys s            few groups: CodedExec numbers the values of dictionaries
//!   FilterExec: x > 5        ⇒     ProjectionExec: CAST(s), x  otherwise the rows have their texts again
//!     DataSourceExec: s, x           FilterExec: x > 5
//!                                      DataSourceExec: s as a dictionary, x
//! ```
//! A file has the values of a column once per row group, and an index for each row. A reader that returns texts looks up
//! each index, and a table of groups looks up each text. Indices alone are read faster and are numbers already.
//!
//! A column is read in this way if the ends of all files are known and have dictionaries for all row groups, and if no
//! operator below the groups computes with it. Columns of conditions are read in this way, too ([`filters`]). A condition
//! that the first rows of a sort above the groups fill is left out: groups are complete before it is filled.

mod filters;

use super::coded::has_partial_groups;
use super::grace::GraceJoinExec;
use super::groups::{GroupsExec, keys};
use super::replaced;
use crate::rows::guard::{with_reader, within};
use crate::rows::stop::unchecked;
use crate::walk::Walk;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::datasource::listing::PartitionedFile;
// `parquet` itself has a second type of this name, which the cache does not hold.
use datafusion::datasource::physical_plan::parquet::metadata::CachedParquetMetaData;
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, DynamicFilterPhysicalExpr};
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use object_store::path::Path;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::{ConvertedType, Encoding, Type};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Upper bound on the files of a scan whose ends are examined.
const FILES_MAX: usize = 32;

/// Upper bound on the stored bytes of a dictionary: the longest value is searched for each batch.
const DICTIONARY_BYTES_MAX: i64 = 1 << 16;

/// The plan, whose scans return columns as dictionaries. `ends` has the metadata of files that were read.
pub(in crate::rows) fn with_dictionaries(
    plan: Arc<dyn ExecutionPlan>,
    ends: &FileMetadataCache,
) -> Result<Arc<dyn ExecutionPlan>> {
    let has_join = plan.any(|node| Ok(node.is::<HashJoinExec>() || node.is::<GraceJoinExec>()))?;
    let below_groups = Scans { ends, fills_conditions: has_join };
    plan.replace_up(|node| {
        if let Some(filter) = node.downcast_ref::<FilterExec>() {
            return filters::over_dictionaries(filter, Scans { ends, fills_conditions: true });
        }
        let groups = node.downcast_ref::<GroupsExec>().and_then(GroupsExec::merged_here);
        let partial = node.downcast_ref::<AggregateExec>().filter(|node| has_partial_groups(node));
        let Some(aggregate) = groups.or(partial) else { return Ok(None) };
        let input = aggregate.input();
        let read = read_below(input, &keys_alone(aggregate), below_groups)?;
        let Some(read) = read else { return Ok(None) };
        let mut inputs: Vec<_> = node.children().into_iter().cloned().collect();
        let texts = as_texts(read, &input.schema())?;
        inputs[0] = texts;
        replaced(node, inputs).map(Some)
    })
}

/// What is known of the scans below an operator.
#[derive(Clone, Copy)]
struct Scans<'a> {
    ends: &'a FileMetadataCache,
    /// True if other operators may fill conditions while rows are read.
    fills_conditions: bool,
}

/// The type of dictionaries: that of Arrow's readers and writers.
fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The columns of the input that are keys and that the aggregate reads in no other way.
fn keys_alone(aggregate: &AggregateExec) -> BTreeSet<usize> {
    let (mut alone, mut read) = (BTreeSet::new(), BTreeSet::new());
    for key in keys(aggregate) {
        match key.downcast_ref::<Column>() {
            Some(column) => {
                alone.insert(column.index());
            }
            None => read.extend(columns_of(&key)),
        }
    }
    for call in aggregate.aggr_expr() {
        let all = call.all_expressions();
        read.extend(all.args.iter().chain(&all.order_by_exprs).flat_map(columns_of));
    }
    read.extend(aggregate.filter_expr().iter().flatten().flat_map(columns_of));
    &alone - &read
}

fn columns_of(expr: &Arc<dyn PhysicalExpr>) -> Vec<usize> {
    collect_columns(expr).iter().map(Column::index).collect()
}

/// A plan that returns the columns `texts` as dictionaries.
struct Read {
    plan: Arc<dyn ExecutionPlan>,
    texts: BTreeSet<usize>,
}

/// Where the columns of an operator come from.
struct Origins {
    /// The column of the input that each column is; `None` for those that are computed.
    places: Vec<Option<usize>>,
    /// The columns of the input that it computes with.
    computed: BTreeSet<usize>,
}

impl Origins {
    fn same(columns: usize) -> Self {
        Origins { places: (0..columns).map(Some).collect(), computed: BTreeSet::new() }
    }

    fn items<'a>(items: impl Iterator<Item = &'a ProjectionExpr>) -> Self {
        let mut origins = Origins { places: Vec::new(), computed: BTreeSet::new() };
        for item in items {
            let column = item.expr.downcast_ref::<Column>().map(Column::index);
            if column.is_none() {
                origins.computed.extend(columns_of(&item.expr));
            }
            origins.places.push(column);
        }
        origins
    }

    /// The columns of the input that are nothing but wanted columns.
    fn wanted(&self, wanted: &BTreeSet<usize>) -> BTreeSet<usize> {
        let (mut inputs, mut others) = (BTreeSet::new(), self.computed.clone());
        for (at, place) in self.places.iter().enumerate() {
            if let Some(place) = place {
                let set = if wanted.contains(&at) { &mut inputs } else { &mut others };
                set.insert(*place);
            }
        }
        &inputs - &others
    }

    /// The columns that come from these of the input.
    fn of(&self, inputs: &BTreeSet<usize>) -> BTreeSet<usize> {
        let places = self.places.iter().enumerate();
        let of = places.filter(|(_, place)| place.is_some_and(|place| inputs.contains(&place)));
        of.map(|(at, _)| at).collect()
    }
}

/// The plan with some of the wanted columns as dictionaries; `None` if there are none.
fn read_below(
    plan: &Arc<dyn ExecutionPlan>,
    wanted: &BTreeSet<usize>,
    scans: Scans<'_>,
) -> Result<Option<Read>> {
    if wanted.is_empty() {
        return Ok(None);
    }
    if let Some(scan) = plan.downcast_ref::<DataSourceExec>() {
        return scanned(scan, wanted, scans);
    }
    let columns = plan.schema().fields().len();
    let projection = plan.downcast_ref::<ProjectionExec>();
    let origins = if let Some(projection) = projection {
        Origins::items(projection.expr().iter())
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let computed = columns_of(filter.predicate()).into_iter().collect();
        let same = Origins::same(columns).places;
        let places = filter.projection().as_ref().map(|p| p.iter().copied().map(Some).collect());
        Origins { places: places.unwrap_or(same), computed }
    } else if plan.is::<CooperativeExec>() {
        Origins::same(columns)
    } else {
        return Ok(None);
    };
    let [input] = plan.children()[..] else { return Ok(None) };
    let Some(below) = read_below(input, &origins.wanted(wanted), scans)? else { return Ok(None) };
    let texts = origins.of(&below.texts);
    let plan: Arc<dyn ExecutionPlan> = match projection {
        Some(items) => Arc::new(ProjectionExec::try_new(items.expr().to_vec(), below.plan)?),
        None => replaced(plan, vec![below.plan])?,
    };
    Ok(Some(Read { plan, texts }))
}

/// As [`read_below`], of a scan.
fn scanned(
    node: &DataSourceExec,
    wanted: &BTreeSet<usize>,
    Scans { ends, fills_conditions }: Scans<'_>,
) -> Result<Option<Read>> {
    let Some(scan) = node.data_source().downcast_ref::<FileScanConfig>() else { return Ok(None) };
    let inner = within(&scan.file_source).map(|(inner, _)| inner);
    let source = inner.and_then(|inner| inner.downcast_ref::<ParquetSource>());
    let Some(source) = source else { return Ok(None) };
    let (table, Some(projection)) = (source.table_schema(), source.projection()) else {
        return Ok(None);
    };
    let is_usual = scan.output_ordering.is_empty()
        && scan.expr_adapter_factory.is_none()
        && !source.table_parquet_options().global.pushdown_filters
        && table.virtual_columns().is_empty();
    let Some(files) = Files::of(scan, ends).filter(|_| is_usual) else { return Ok(None) };
    let origins = Origins::items(projection.iter());
    let mut chosen = origins.wanted(wanted);
    let mut conditions = conditions_of(source);
    conditions.retain(|part| fills_conditions || !part.is::<DynamicFilterPhysicalExpr>());
    chosen.retain(|at| {
        table.file_schema().fields().get(*at).is_some_and(|field| {
            let name = field.name();
            let mut compared = conditions.iter().filter(|part| filters::is_compared(part));
            field.data_type().is_string()
                && !compared.any(|part| reads(part, name))
                && files.have_dictionaries(name)
        })
    });
    if chosen.is_empty() {
        return Ok(None);
    }
    let Some(groups) = files.with_dictionaries(scan, table, &chosen) else { return Ok(None) };
    let inner = with_columns(source, table, &chosen)?;
    let inner = inner.and_then(|inner| with_reader(&scan.file_source, inner));
    let Some(inner) = inner else { return Ok(None) };
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_source(inner)
        .with_file_groups(groups)
        .with_statistics(without_bounds(scan.statistics(), &chosen))
        .build();
    let texts = origins.of(&chosen);
    Ok(Some(Read { plan: DataSourceExec::from_data_source(scan), texts }))
}

/// The parts of the condition that a reader compares with statistics.
fn conditions_of(source: &ParquetSource) -> Vec<Arc<dyn PhysicalExpr>> {
    let condition = source.filter();
    condition.map_or_else(Vec::new, |all| split_conjunction(&all).into_iter().cloned().collect())
}

fn reads(condition: &Arc<dyn PhysicalExpr>, name: &str) -> bool {
    collect_columns(condition).iter().any(|column| column.name() == name)
}

/// The reader of files, with the chosen columns as dictionaries. Conditions on these leave out nothing.
fn with_columns(
    source: &ParquetSource,
    table: &TableSchema,
    chosen: &BTreeSet<usize>,
) -> Result<Option<Arc<dyn FileSource>>> {
    let schema = table.file_schema();
    let fields = schema.fields().iter().enumerate().map(|(at, field)| match chosen.contains(&at) {
        true => as_dictionary(field),
        false => field.clone(),
    });
    let fields: Vec<FieldRef> = fields.collect();
    let names: Vec<&str> = chosen.iter().map(|at| schema.field(*at).name().as_str()).collect();
    let mut conditions = conditions_of(source);
    conditions.retain(|part| !names.iter().any(|name| reads(part, name)));
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let columns = table.table_partition_cols().clone();
    let table = TableSchema::builder(schema).with_table_partition_cols(columns).build();
    let options = source.table_parquet_options().clone();
    let hint = options.global.metadata_size_hint;
    let mut new = ParquetSource::new(table).with_table_parquet_options(options);
    if let Some(hint) = hint {
        new = new.with_metadata_size_hint(hint);
    }
    if let Some(readers) = source.parquet_file_reader_factory() {
        new = new.with_parquet_file_reader_factory(readers.clone());
    }
    if !conditions.is_empty() {
        new = new.with_predicate(conjunction(conditions));
    }
    source.projection().map_or(Ok(None), |projection| new.try_pushdown_projection(projection))
}

fn as_dictionary(field: &FieldRef) -> FieldRef {
    Arc::new(Field::clone(field).with_data_type(dictionary()))
}

/// Bounds have the type of the texts.
fn without_bounds(mut known: Statistics, chosen: &BTreeSet<usize>) -> Statistics {
    for at in chosen {
        if let Some(column) = known.column_statistics.get_mut(*at) {
            *column = ColumnStatistics::new_unknown();
        }
    }
    known
}

/// The files of a scan and their metadata.
struct Files<'a>(HashMap<&'a Path, Arc<ParquetMetaData>>);

impl<'a> Files<'a> {
    /// `None` if the metadata of a file is not known, or files are many.
    fn of(scan: &'a FileScanConfig, ends: &FileMetadataCache) -> Option<Self> {
        let mut files = HashMap::new();
        for file in scan.file_groups.iter().flat_map(FileGroup::iter) {
            let meta = &file.object_meta;
            if files.contains_key(&meta.location) {
                continue;
            }
            let end = ends.get(&meta.location).filter(|end| end.is_valid_for(meta))?;
            let end = end.file_metadata.as_any().downcast_ref::<CachedParquetMetaData>()?;
            if files.len() == FILES_MAX {
                return None;
            }
            files.insert(&meta.location, end.parquet_metadata().clone());
        }
        Some(Files(files))
    }

    fn have_dictionaries(&self, name: &str) -> bool {
        self.0.values().all(|end| has_dictionaries(end, name))
    }

    /// The files, with the types that their readers return; `None` if a reader cannot return them.
    fn with_dictionaries(
        &self,
        scan: &FileScanConfig,
        table: &TableSchema,
        chosen: &BTreeSet<usize>,
    ) -> Option<Vec<FileGroup>> {
        let fields = table.file_schema().fields().iter().enumerate();
        // Also those of an earlier choice.
        let fields =
            fields.filter(|(at, field)| chosen.contains(at) || *field.data_type() == dictionary());
        let names: Vec<&str> = fields.map(|(_, field)| field.name().as_str()).collect();
        let schemas = self.0.iter().map(|(path, end)| Some((*path, schema_of(end, &names)?)));
        let schemas: HashMap<&Path, SchemaRef> = schemas.collect::<Option<_>>()?;
        let of_file = |file: &PartitionedFile| {
            let mut file = file.clone();
            file.arrow_schema = schemas.get(&file.object_meta.location).cloned();
            let known = file.statistics.as_deref().cloned();
            file.statistics = known.map(|known| Arc::new(without_bounds(known, chosen)));
            file
        };
        let groups = scan.file_groups.iter();
        Some(groups.map(|group| FileGroup::new(group.iter().map(&of_file).collect())).collect())
    }
}

/// The columns of a file, those with these names as dictionaries.
fn schema_of(end: &ParquetMetaData, names: &[&str]) -> Option<SchemaRef> {
    let file = end.file_metadata();
    let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata()).ok()?;
    let fields = schema.fields().iter().map(|field| match names.contains(&field.name().as_str()) {
        true if *field.data_type() == dictionary() => Some(field.clone()),
        true => field.data_type().is_string().then(|| as_dictionary(field)),
        false => Some(field.clone()),
    });
    let fields = fields.collect::<Option<Vec<FieldRef>>>()?;
    Some(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}

/// True if a file has one column of texts with this name, with a dictionary in each row group.
fn has_dictionaries(end: &ParquetMetaData, name: &str) -> bool {
    let leaves = end.file_metadata().schema_descr().columns().iter().enumerate();
    let mut found = leaves.filter(|(_, leaf)| *leaf.path().parts() == [name]);
    let (Some((at, leaf)), None) = (found.next(), found.next()) else { return false };
    // Of other types, the dictionaries of the reader are no texts.
    leaf.physical_type() == Type::BYTE_ARRAY
        && leaf.converted_type() == ConvertedType::UTF8
        && leaf.max_rep_level() == 0
        && end.row_groups().iter().all(|group| is_dictionary(group.column(at)))
}

/// True if a column has a small dictionary and, as far as is known, all of its pages have indices.
fn is_dictionary(column: &ColumnChunkMetaData) -> bool {
    let start = column.dictionary_page_offset();
    let bytes = start.and_then(|start| column.data_page_offset().checked_sub(start));
    let is_index =
        |of: Encoding| matches!(of, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
    let pages = column.page_encoding_stats_mask();
    bytes.is_some_and(|bytes| (1..=DICTIONARY_BYTES_MAX).contains(&bytes))
        && pages.is_none_or(|pages| pages.encodings().all(is_index))
}

/// The plan, with dictionaries as the texts of this schema.
fn as_texts(read: Read, schema: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    let items = schema.fields().iter().enumerate().map(|(at, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), at));
        let item: Arc<dyn PhysicalExpr> = match read.texts.contains(&at) {
            true => Arc::new(CastExpr::new(column, field.data_type().clone(), None)),
            false => column,
        };
        ProjectionExpr::new(item, field.name())
    });
    let items: Vec<ProjectionExpr> = items.collect();
    Ok(Arc::new(ProjectionExec::try_new(items, read.plan)?))
}

/// The column that an item casts from a dictionary to a text.
fn cast_column<'a>(item: &'a ProjectionExpr, schema: &Schema) -> Option<&'a Column> {
    let cast = item.expr.downcast_ref::<CastExpr>().filter(|cast| cast.cast_type().is_string())?;
    let column = cast.expr().downcast_ref::<Column>()?;
    let field = schema.fields().get(column.index())?;
    (*field.data_type() == dictionary()).then_some(column)
}

/// The projection of an input, if it does nothing but cast dictionaries to texts.
pub(super) fn texts_of(input: &Arc<dyn ExecutionPlan>) -> Option<&ProjectionExec> {
    let projection = unchecked(input).downcast_ref::<ProjectionExec>()?;
    let schema = projection.input().schema();
    let casts = projection.expr().iter().filter(|item| cast_column(item, &schema).is_some());
    let columns = projection.expr().iter().filter(|item| item.expr.is::<Column>());
    let (casts, columns) = (casts.count(), columns.count());
    (casts > 0 && casts + columns == projection.expr().len()).then_some(projection)
}

/// An input with [`texts_of`], over other rows.
pub(super) fn texts_over(
    input: &Arc<dyn ExecutionPlan>,
    items: Vec<ProjectionExpr>,
    rows: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let projection: Arc<dyn ExecutionPlan> = Arc::new(ProjectionExec::try_new(items, rows)?);
    match Arc::ptr_eq(unchecked(input), input) {
        true => Ok(projection),
        false => replaced(input, vec![projection]),
    }
}

/// The input of an aggregate, with the dictionaries that are keys alone as they are read.
pub(super) fn with_keys_as_read(aggregate: &AggregateExec) -> Result<Arc<dyn ExecutionPlan>> {
    let input = aggregate.input();
    let Some(texts) = texts_of(input) else { return Ok(input.clone()) };
    let (alone, schema) = (keys_alone(aggregate), texts.input().schema());
    let items = texts.expr().iter().enumerate().map(|(at, item)| {
        match cast_column(item, &schema).filter(|_| alone.contains(&at)) {
            Some(column) => ProjectionExpr::new(Arc::new(column.clone()), item.alias.clone()),
            None => item.clone(),
        }
    });
    texts_over(input, items.collect(), texts.input().clone())
}

#[cfg(test)]
mod tests;
