//! PIVOT without a list of values: a query finds them before the statement is planned.

use crate::Handle;
use crate::answer::Answer;
use crate::error::Error;
use crate::session::Session;
use crate::statement::StatementState;
use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use tessera_frontend::limits::with_stack;
use tessera_frontend::pivots;
use tessera_frontend::statement::Statement;

impl Session {
    /// The statement with the values of each PIVOT that lists none; `None` if all list them.
    pub(super) async fn listed(
        &self,
        written: &Statement,
        statement: &Handle,
    ) -> Result<Option<Statement>, Error> {
        let mut listed: Option<Statement> = None;
        while let Some(query) =
            pivots::unlisted(listed.as_ref().unwrap_or(written)).map_err(Error::stage)?
        {
            let binding = self.bind(&query, statement).await?;
            let decision = binding.decide(&query);
            let reply = self.run_cells(binding, &query, &decision, statement).await?;
            let values = texts(reply.whole()?.answer)?;
            let new = listed.get_or_insert_with(|| with_stack(|| written.clone()));
            pivots::list(new, values).map_err(Error::stage)?;
            statement.move_to(StatementState::Planning);
        }
        Ok(listed)
    }
}

/// The texts of the first column.
fn texts(answer: Answer) -> Result<Vec<String>, Error> {
    let Answer::Rows { batches, .. } = answer else {
        return Err(Error::Internal { what: "the values of a PIVOT are no rows".into() });
    };
    let mut values = Vec::new();
    for column in batches.iter().filter_map(|batch| batch.columns().first()) {
        let column = cast(column, &DataType::Utf8).map_err(|source| Error::Rows { source })?;
        values.extend(column.as_string::<i32>().iter().flatten().map(String::from));
    }
    Ok(values)
}
