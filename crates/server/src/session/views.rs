//! CREATE VIEW: the text of a query is kept, and bound when it is used.

use crate::answer::{Answer, Reply};
use crate::engine::CancelToken;
use crate::error::Error;
use crate::session::keep::Free;
use crate::session::open::{Opener, bare};
use crate::session::warehouse::Definition;
use crate::session::{Failure, Session};
use tessera_frontend::RelationRef;
use tessera_frontend::statement::CreateView;

impl Session {
    /// `CREATE [OR REPLACE] VIEW`. What it is made of is opened: a file that is not there, or a view made of itself, is
    /// refused now and not at the first query. A name that nothing has may come later.
    pub(super) async fn create_view(
        &self,
        create: &CreateView,
        cancel: &CancelToken,
    ) -> Result<Reply, Error> {
        let name = create.name.to_string();
        let key = bare(&name);
        if self.was_defined(&key, cancel).await? {
            return Ok(Answer::Done(format!("created view {name}")).into());
        }
        if let Free::Keep(kind) =
            self.free(&key, "view", create.or_replace, create.if_not_exists).await?
        {
            return Ok(Answer::Done(format!("{kind} {name} exists already")).into());
        }
        let relations = tessera_frontend::relations(&create.query).map_err(Error::stage)?;
        let itself = |r: &RelationRef| matches!(r, RelationRef::Name(n) if bare(n).eq_ignore_ascii_case(&key));
        if relations.iter().any(itself) {
            let path = format!("{key} → {key}");
            return Err(Error::stage(Failure::CyclicView { name: key, path }));
        }
        Opener::new(self, relations, cancel).open_below(&key).await?;
        let definition = Definition::View { query: create.query_text.clone() };
        self.define(&key, definition, create.or_replace, cancel).await?;
        Ok(Answer::Done(format!("created view {name}")).into())
    }
}
