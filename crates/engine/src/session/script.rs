//! Scripts: their statements run one after another, each when the reply before was taken.

use crate::answer::Reply;
use crate::answer::scratch::Scratch;
use crate::error::Error;
use crate::locals::{Local, Locals};
use crate::session::{Host, Session, Upload};
use crate::statement::{Entered, StatementState};
use crate::{Engine, Handle, Replies};
use futures::future::BoxFuture;
use std::sync::Arc;
use tessera_frontend::Parsed;

/// Upper bound on the statements of a script.
const STATEMENTS_MAX: usize = 10_000;

/// Upper bound on the memory that parsing takes for each byte of a script, measured with lists of short numbers.
const PARSED_BYTES: u64 = 300;

impl Host {
    /// Parses a script, unless it is too large: its tokens and trees take some hundred times its length.
    fn parse(&self, script: &str) -> Result<Vec<Parsed>, tessera_frontend::Error> {
        let limit = (self.config.memory_limit_bytes / 4 + (100 << 20)) / PARSED_BYTES;
        if script.len() as u64 > limit {
            return Err(tessera_frontend::Error::TooComplex {
                what: format!("the script has {} bytes", script.len()),
                limit: limit as usize,
                position: None,
            });
        }
        tessera_frontend::parse_at_most(script, STATEMENTS_MAX)
    }
}

/// The remaining statements of a script, and its handle.
struct Script {
    rest: std::iter::Enumerate<std::vec::IntoIter<Parsed>>,
    count: usize,
    handle: Handle,
    _entered: Entered,
}

impl Drop for Script {
    fn drop(&mut self) {
        // After a regular end this does nothing; a script that is dropped before its end was cancelled.
        if self.handle.move_to(StatementState::Cancelled) {
            self.handle.cancel();
        }
    }
}

impl Session {
    /// Begins a script with the session's settings and temp tensors, or, if it is recovered, with those of its first
    /// run.
    async fn begins(&self, handle: &Handle) -> Result<(), Error> {
        match handle.entry().before() {
            Some(recipe) => {
                handle.recall_reads().await?;
                self.restore(&recipe, handle).await
            }
            None => {
                handle.entry().set(self.settings().given().clone());
                Ok(())
            }
        }
    }

    async fn next(&self, script: &mut Script) -> Option<Result<Reply, Error>> {
        let handle = script.handle.clone();
        let Some((i, next)) = script.rest.next() else {
            // An empty script never began.
            handle.move_to(StatementState::Planning);
            handle.move_to(StatementState::Finished);
            return None;
        };
        handle.begin(&next.text, i + 1, script.count);
        let result = if handle.is_cancelled() {
            Err(Error::Cancelled)
        } else if i == 0
            && let Err(e) = self.begins(&handle).await
        {
            Err(e)
        } else {
            self.statement(&next, &handle).await
        };
        if let Err(e) = &result {
            handle.move_to(StatementState::of_error(e));
        }
        Some(result)
    }
}

impl Engine for Session {
    fn run<'a>(&'a self, sql: &'a str, handle: Handle) -> Replies<'a> {
        let parsed = match self.host.parse(sql) {
            Ok(parsed) => parsed,
            Err(e) => {
                handle.move_to(StatementState::Failed);
                return Box::pin(futures::stream::once(async move { Err(Error::stage(e)) }));
            }
        };
        let script = Script {
            count: parsed.len(),
            rest: parsed.into_iter().enumerate(),
            _entered: self.host.queries.enter(&handle),
            handle,
        };
        let steps = futures::stream::unfold(Some(script), move |script| async move {
            let mut script = script?;
            let result = self.next(&mut script).await?;
            // The stream ends after an error.
            let rest = result.is_ok().then_some(script);
            Some((result, rest))
        });
        Box::pin(steps)
    }

    fn keep<'a>(
        &'a self,
        name: &'a str,
        upload: Upload,
    ) -> BoxFuture<'a, Result<&'static str, Error>> {
        Box::pin(self.keep_upload(name, upload))
    }

    fn lend(&self) -> Locals {
        self.temps().iter().map(|(name, temp)| (name.clone(), Local::kept(temp.clone()))).collect()
    }

    fn scratch(&self) -> Option<Arc<Scratch>> {
        Some(self.host.scratch().clone())
    }
}
