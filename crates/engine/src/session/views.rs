//! CREATE VIEW: stores the text of a query, which is bound at each use.

use crate::Handle;
use crate::answer::{Answer, Reply};
use crate::error::Error;
use crate::session::bind::Binding;
use crate::session::ddl::Replaces;
use crate::session::open::{Opener, absolute, bare};
use crate::session::warehouse::Definition;
use crate::session::{Failure, Session};
use sqlparser::ast::Query;
use tessera_frontend::statement::CreateView;
use tessera_frontend::{RelationRef, paths};

impl Session {
    /// `CREATE [OR REPLACE] VIEW`. The query is bound once, so that an invalid or self-referential view is refused now
    /// and not at the first query. Paths are stored as absolute, so that they are valid for every reader.
    pub(super) async fn create_view(
        &self,
        create: &CreateView,
        statement: &Handle,
    ) -> Result<Reply, Error> {
        let name = create.name.to_string();
        let key = bare(&name);
        if self.was_defined(&key, statement).await? {
            return Ok(Answer::Done(format!("created view {name}")).into());
        }
        if let Some(kept) =
            self.free(&name, "view", create.or_replace, create.if_not_exists).await?
        {
            return Ok(kept);
        }
        let relations = tessera_frontend::relations(&create.query).map_err(Error::stage)?;
        let itself = |r: &RelationRef| matches!(r, RelationRef::Name(n) if bare(n).eq_ignore_ascii_case(&key));
        if relations.iter().any(itself) {
            let path = format!("{key} → {key}");
            return Err(Error::stage(Failure::CyclicView { name: key, path }));
        }
        let opener = Opener::new(self, relations, statement).below(&key);
        let binding = self.bind_with(opener, statement).await?;
        can_be_bound(binding, &create.query)?;
        let query = paths::replaced(&create.query_text, &|url| {
            let absolute = absolute(url);
            (absolute != url).then_some(absolute)
        });
        let definition = Definition::View { query: query.map_err(Error::stage)? };
        self.define(&key, definition, Replaces::of(create.or_replace), statement).await?;
        Ok(Answer::Done(format!("created view {name}")).into())
    }
}

/// Binds a query as far as possible without running a part of it.
fn can_be_bound(mut binding: Binding<'_>, query: &Query) -> Result<(), Error> {
    let because = binding.decide(query).reason.to_string();
    let is_tensor = binding.is_tensor(query);
    binding
        .lower(|context, cells| match is_tensor {
            true => tessera_frontend::lower_tensor(query, context).map(drop),
            false => cells.plan(query, context, &because).map(drop),
        })
        .map(drop)
}
