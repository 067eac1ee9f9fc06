//! Times of calendars that Arrow does not know, in Parquet: integers whose calendar is in the Arrow schema that the file
//! has in its metadata.
//!
//! DataFusion leaves out all metadata of columns, because files of one table may differ in them.

use crate::lift::{calendar, field};
use crate::rows::Guarded;
use crate::type_name;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::catalog::Session;
use datafusion::common::plan_err;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::error::Result;
use futures::TryStreamExt;
use object_store::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::dtype::{Calendar, DType};

/// The calendars of the columns of a file.
fn known(schema: &Schema) -> BTreeMap<String, Calendar> {
    let times = schema.fields().iter().filter_map(|field| Some((field, calendar(field)?)));
    let others = times.filter(|(_, calendar)| *calendar != Calendar::Standard);
    others.map(|(field, calendar)| (field.name().clone(), calendar)).collect()
}

/// The columns of some files, with the calendars of those that have them in the first file.
///
/// # Errors
/// An error that names two files in which such a column has another calendar, or none. `root` is the prefix of their URLs.
pub(super) async fn of_files(
    schema: SchemaRef,
    state: &dyn Session,
    place: &ListingTableUrl,
    root: &str,
) -> Result<SchemaRef> {
    if !schema.fields().iter().any(|field| *field.data_type() == DataType::Int64) {
        return Ok(schema);
    }
    let store = state.runtime_env().object_store(place)?;
    let files = place.list_all_files(state, &store, "").await?;
    let mut files: Vec<ObjectMeta> = files.try_collect().await?;
    files.retain(|file| file.size > 0);
    files.sort_by(|a, b| a.location.cmp(&b.location));
    let format = ParquetFormat::default().with_force_view_types(false).with_skip_metadata(false);
    let format = Guarded::new(Arc::new(format), root.to_string());
    let Some((first, rest)) = files.split_first() else { return Ok(schema) };
    let own = format.infer_schema(state, &store, std::slice::from_ref(first)).await?;
    let calendars = known(&own);
    if calendars.is_empty() {
        return Ok(schema);
    }
    for file in rest {
        let own = format.infer_schema(state, &store, std::slice::from_ref(file)).await?;
        for (name, calendar) in &calendars {
            let Ok(column) = own.field_with_name(name) else { continue };
            let other = crate::lift::calendar(column);
            if other != Some(*calendar) {
                let told = other.map_or_else(
                    || format!("values of {}", type_name(column.data_type())),
                    |other| format!("times of the calendar {}", other.name()),
                );
                return plan_err!(
                    "its column `{name}` has times of the calendar {} in `{root}/{}`, and {told} in `{root}/{}`",
                    calendar.name(),
                    first.location,
                    file.location
                );
            }
        }
    }
    let fields = schema.fields().iter().map(|column| match calendars.get(column.name()) {
        Some(calendar) if *column.data_type() == DataType::Int64 => {
            Arc::new(field(column.name(), DType::Datetime(*calendar), column.is_nullable()))
        }
        _ => column.clone(),
    });
    let fields: Vec<_> = fields.collect();
    Ok(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())))
}
