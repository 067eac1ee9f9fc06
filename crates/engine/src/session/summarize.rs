//! SUMMARIZE: the columns of a query and their aggregates.

use crate::Handle;
use crate::answer::Reply;
use crate::error::Error;
use crate::session::Session;
use arrow::datatypes::{DataType, Field};
use sqlparser::ast::Query;
use tessera_cells::column_type;
use tessera_frontend::summary::{self, Summarized, Values};

impl Session {
    /// Plans the query to learn its columns, and runs the query of their aggregates.
    pub(super) async fn summarize(
        &self,
        query: &Query,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let all = summary::all_of(query).map_err(Error::stage)?;
        let columns: Vec<Summarized> = {
            let mut binding = self.bind(&all, statement).await?;
            let decision = binding.decide(&all);
            let plan = self.plan_cells(&mut binding, &all, &decision, statement).await?;
            plan.schema().fields().iter().map(|field| summarized(field)).collect()
        };
        let summary = summary::summary(query, &columns).map_err(Error::stage)?;
        self.query(&summary, statement).await
    }
}

fn summarized(field: &Field) -> Summarized {
    let (name, dtype) = (field.name().clone(), column_type(field));
    let values = match field.data_type() {
        // Numbers of a calendar that Arrow does not know.
        _ if dtype.starts_with("datetime64") => Values::Ordered,
        number if number.is_numeric() => Values::Numbers,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..) => Values::Times,
        other if has_text(other) => Values::Ordered,
        _ => Values::Unordered,
    };
    Summarized { name, dtype, values }
}

/// True if values of a type can be cast to text.
fn has_text(of: &DataType) -> bool {
    match of {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::Struct(_)
        | DataType::Map(..) => false,
        DataType::List(element)
        | DataType::LargeList(element)
        | DataType::FixedSizeList(element, _)
        | DataType::ListView(element)
        | DataType::LargeListView(element) => has_text(element.data_type()),
        _ => true,
    }
}
