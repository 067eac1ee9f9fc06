//! The trait of everything that runs SQL.

use crate::answer::Reply;
use crate::answer::scratch::Scratch;
use crate::error::Error;
use crate::locals::Locals;
use crate::session::Upload;
use crate::statement::Handle;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::sync::Arc;

/// The replies of a script, one for each statement in order. The stream ends after an error.
pub type Replies<'a> = BoxStream<'a, Result<Reply, Error>>;

/// Runs SQL: the session in this process, a remote server, a fake in tests.
pub trait Engine: Send + Sync {
    /// Runs the statements of `sql` one after another. Each statement starts once the reply before it was taken from
    /// the stream.
    ///
    /// Positions in errors count from the start of `sql`. `handle` reports the progress; each run needs its own handle.
    /// [`Handle::cancel`] ends the stream with [`Error::Cancelled`] (or a stage's error of code `cancelled`); dropping
    /// the stream cancels the running statement.
    fn run<'a>(&'a self, sql: &'a str, handle: Handle) -> Replies<'a>;

    /// Keeps an upload as a temp relation of the session, in place of one of the same name, and returns its kind: `temp
    /// tensor` or `temp table`.
    ///
    /// Fails with `bad_request` if the upload cannot be read, with the errors of temp tensors if there is no room, and
    /// with `unsupported` unless the session runs in this process.
    fn keep<'a>(
        &'a self,
        _name: &'a str,
        _upload: Upload,
    ) -> BoxFuture<'a, Result<&'static str, Error>> {
        let construct = "an upload to an engine that keeps nothing in this process".into();
        Box::pin(std::future::ready(Err(Error::Unsupported { construct, hint: None })))
    }

    /// The temp relations of the session, for a statement of another session. They stay as they are while the statement
    /// has them.
    fn lend(&self) -> Locals {
        Locals::default()
    }

    /// The directory for data that do not fit into memory; `None` if the engine has none.
    fn scratch(&self) -> Option<Arc<Scratch>> {
        None
    }

    /// Ends the session. Does nothing unless the session runs on a server.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
