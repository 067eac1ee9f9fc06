//! The versions of sources that a statement has read, in this run and in earlier runs.
//!
//! 1. Code that opens sources for a statement gets its [`Handle::versions`]; each read is compared with them.
//! 2. The versions that chunks depend on are written before the chunks ([`tessera_exec::durable`]). At the end of a
//!    statement all versions it read are noted in its step ([`Handle::note_read`]): as a list if it is short, else as a
//!    hash.
//! 3. A recovered statement begins with the listed versions: a read of another version fails. With only a hash, it
//!    fails at its end.

use super::Handle;
use crate::error::Error;
use crate::session::{Failure, Temp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_cells::tables::Registered;
use tessera_cluster::Identity;
use tessera_storage::source::{Noted, Versions};

#[derive(Default)]
pub(super) struct Reads {
    /// Versions that its statements read in earlier runs, as far as they are stored with their chunks.
    before: BTreeMap<usize, Vec<Noted>>,
    /// Index and versions of the running statement.
    now: Option<(usize, Arc<Versions>)>,
    /// True if the earlier reads of the running statement are known object by object.
    is_listed: bool,
    /// The registered stores of its tables.
    tables: Vec<Registered>,
    /// The temp relations that it reads, whose files are removed with them.
    temps: Vec<Arc<Temp>>,
}

impl Reads {
    /// The running statement, and the versions that it has read.
    pub(super) fn now(&self) -> Option<&(usize, Arc<Versions>)> {
        self.now.as_ref()
    }
}

impl Handle {
    /// The versions that the running statement of the script has read, and has to read again.
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
        reads.temps.clear();
        if let Some(durable) = &self.chunks().lock().durable {
            durable.begin_part(at, &versions);
        }
        versions
    }

    /// The running statement, as workers know it.
    pub(crate) fn identity(&self) -> Identity {
        let at = self.entry().at();
        Identity {
            statement: self.chunks().may_survive().then(|| (self.id().to_owned(), at)),
            is_again: self.entry().is_again(),
            shares: true,
            versions: self.versions(),
        }
    }

    /// False if the earlier run of the statement opened another version.
    pub(crate) fn is_version(&self, of: &str, version: &str) -> bool {
        self.entry()
            .step(|s| s.versions.entry(of.into()).or_insert_with(|| version.into()) == version)
    }

    /// Retains the registered store of a table.
    pub(crate) fn reads_table(&self, table: Registered) {
        self.reads().tables.push(table);
    }

    /// Retains a temp relation: the session may drop it while the statement reads it.
    pub(crate) fn reads_temp(&self, temp: &Arc<Temp>) {
        self.versions();
        self.reads().temps.push(temp.clone());
    }

    /// Releases the temp relations that it has read.
    pub(super) fn release_temps(&self) {
        let temps = std::mem::take(&mut self.reads().temps);
        // Files are removed without the lock.
        drop(temps);
    }

    /// Begins a recovered script with the versions that its statements read before.
    ///
    /// # Errors
    /// Errors of storage, if stored versions can neither be read nor removed.
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

    /// Notes the versions that the ending statement of the script has read.
    ///
    /// # Errors
    /// [`Failure::SourceChanged`] if its earlier run read something else.
    pub(crate) async fn note_read(&self) -> Result<(), Error> {
        let Some(read) = self.versions().read() else { return Ok(()) };
        let is_long = read.is_long();
        let before = self.entry().step(|s| s.read.replace(read.clone()));
        // Versions in a list, of the recipe or stored with its chunks, were compared at each read.
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
            // The answer is complete; only a later run would need the note.
            tracing::warn!(id = self.id(), %error, "what a statement has read could not be noted");
        }
        Ok(())
    }
}

/// The URL of an array that was opened.
fn place(of: &str) -> &str {
    of.rsplit_once('#').map_or(of, |(url, _)| url)
}
