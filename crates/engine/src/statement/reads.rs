//! Which versions of its sources a statement has read, in this run and in runs before.
//!
//! 1. What opens sources for a statement asks for its [`Handle::versions`]; each read compares itself with them.
//! 2. What its chunks rest on is written before them ([`tessera_exec::durable`]), and at its end all that it read is
//!    noted in its step ([`Handle::note_read`]): as a list if it is short, else as a hash.
//! 3. Run again, it begins with what is listed: what it reads again is what it read before, or it fails. Where there
//!    is but a hash, it fails at its end.

use super::Handle;
use crate::error::Error;
use crate::session::{Failure, Registered};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_storage::source::{Noted, Versions};

/// The versions that a script reads.
#[derive(Default)]
pub(super) struct Reads {
    /// What its statements had read in runs before, as far as that is written beside their chunks.
    before: BTreeMap<usize, Vec<Noted>>,
    /// Those of the statement that runs, and its number.
    now: Option<(usize, Arc<Versions>)>,
    /// True if what that one had read before is known object by object.
    is_listed: bool,
    /// What its tables are read through.
    tables: Vec<Registered>,
}

impl Reads {
    /// The statement that runs, and what it has read.
    pub(super) fn now(&self) -> Option<&(usize, Arc<Versions>)> {
        self.now.as_ref()
    }
}

impl Handle {
    /// The versions that the statement of the script that runs has read, and has to read again.
    pub(crate) fn versions(&self) -> Arc<Versions> {
        let at = self.entry().at();
        let reads = &mut *self.reads();
        if let Some((_, now)) = reads.now.as_ref().filter(|(of, _)| *of == at) {
            return now.clone();
        }
        let versions = Versions::new(self.chunks().may_survive());
        if let Some(read) = self.entry().step(|step| step.read.clone()) {
            versions.expect(&read.list());
        }
        let before = reads.before.remove(&at);
        reads.is_listed = before.is_some();
        versions.expect(&before.unwrap_or_default());
        reads.now = Some((at, versions.clone()));
        reads.tables.clear();
        if let Some(durable) = &self.chunks().lock().durable {
            durable.begin_part(at, &versions);
        }
        versions
    }

    /// False if what was opened had another version when the statement opened it before.
    pub(crate) fn is_version(&self, of: &str, version: &str) -> bool {
        self.entry()
            .step(|s| s.versions.entry(of.into()).or_insert_with(|| version.into()) == version)
    }

    /// It reads a table through that.
    pub(crate) fn reads_table(&self, table: Registered) {
        self.reads().tables.push(table);
    }

    /// A script that ran before begins again: with what its statements had read then.
    ///
    /// # Errors
    /// Whatever storage says, if what was kept can neither be read nor be removed.
    pub(crate) async fn recall_reads(&self) -> Result<(), Error> {
        let Some(store) = self.chunks().lock().store.clone() else { return Ok(()) };
        match store.reads(self.id()).await {
            Ok(before) => self.reads().before = before,
            Err(error) => {
                let id = self.id();
                tracing::warn!(id, %error, "what a statement had read is not known: its chunks are computed again");
                store.remove(id).await.map_err(Error::stage)?;
            }
        }
        Ok(())
    }

    /// Notes what the statement of the script that ends has read.
    ///
    /// # Errors
    /// [`Failure::SourceChanged`] if it ran before and read something else then.
    pub(crate) async fn note_read(&self) -> Result<(), Error> {
        let Some(read) = self.versions().read() else { return Ok(()) };
        let is_long = read.is_long();
        let before = self.entry().step(|s| s.read.replace(read.clone()));
        // What is listed, here or beside its chunks, was compared read by read.
        let is_compared = !is_long || self.reads().is_listed;
        if before.is_some_and(|before| !is_compared && before != read) {
            let opened = self.entry().step(|s| s.versions.keys().cloned().collect::<Vec<_>>());
            let urls: BTreeSet<&str> = opened.iter().map(|of| place(of)).collect();
            let url = urls.into_iter().collect::<Vec<_>>().join("` or `");
            return Err(Error::stage(Failure::SourceChanged { url }));
        }
        let durable = {
            let chunks = self.chunks().lock();
            chunks.durable.clone().filter(|_| is_long && chunks.survives)
        };
        if let Some(durable) = durable
            && let Err(error) = durable.keep_reads().await
        {
            // The answer is there; only a run after this one would need to know.
            tracing::warn!(id = self.id(), %error, "what a statement has read could not be noted");
        }
        Ok(())
    }
}

/// The URL of an array that was opened.
fn place(of: &str) -> &str {
    of.rsplit_once('#').map_or(of, |(url, _)| url)
}
