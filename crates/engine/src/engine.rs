//! What every way in talks to: something that runs SQL.

use crate::answer::Reply;
use crate::error::Error;
use crate::statement::Handle;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// The answers of a script, one for each statement in order. After an error nothing follows.
pub type Replies<'a> = BoxStream<'a, Result<Reply, Error>>;

/// Runs SQL: the session in this process, a server elsewhere, a fake in tests.
pub trait Engine: Send + Sync {
    /// Runs the statements of `sql` one after another, each when the one before has been taken from the stream.
    ///
    /// Positions in errors count from the start of `sql`. While it runs, `handle` tells how far it is; one handle is for
    /// one run. [`Handle::cancel`] ends the stream with [`Error::Cancelled`] (or a stage's error of code `cancelled`);
    /// dropping the stream cancels what runs.
    fn run<'a>(&'a self, sql: &'a str, handle: Handle) -> Replies<'a>;

    /// Says goodbye, as far as that is to be said: a session elsewhere ends.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
