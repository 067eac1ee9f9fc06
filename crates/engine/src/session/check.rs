//! `tessera check`: reads everything in a warehouse and reports damage.
//!
//! It changes nothing: leftovers of killed processes stay, and no epoch begins.

use crate::config::Config;
use crate::error::Error;
use crate::journal::Journal;
use crate::session::warehouse::{Definition, MARK, Warehouse};
use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;
use tessera_planner::explain::bytes;
use tessera_storage::manifest::{Checked, check_store};
use tessera_storage::source::{SourceError, Stores};

/// Timeout of storage requests.
const STORAGE: Duration = Duration::from_secs(30);

/// Reports to `out` the data that were read, and for each damaged file the expected and the found bytes. Returns the
/// number of damaged files. Must be called inside of a tokio runtime.
///
/// # Errors
/// The warehouse does not exist, or storage fails.
pub async fn check(config: &Config, out: &mut (dyn Write + Send)) -> Result<u64, Error> {
    let stores = Stores::new(STORAGE);
    let warehouse = Warehouse::open(&config.warehouse, &stores, tokio::runtime::Handle::current())?;
    let names = warehouse.names().await?;
    let (records, unreadable) = Journal::read_through(warehouse.folder()).await?;
    let is_empty = names.is_empty() && records == 0 && unreadable.is_empty();
    if is_empty && !warehouse.is_marked().await? {
        // A wrong path must not pass as an undamaged warehouse.
        let what = warehouse.url(MARK);
        return Err(Error::stage(SourceError::NotFound { what }));
    }
    let mut lines = Lines { out, files: 0, bytes: 0, damaged: 0 };
    lines.mark(&warehouse).await?;
    let (mut named, mut tensors, mut all_known) = (BTreeSet::new(), 0, true);
    for name in names {
        let entry = match warehouse.entry(&name).await {
            // The entry was dropped after it was listed.
            Ok(None) => continue,
            Ok(Some(entry)) => entry,
            Err(e) if is_damage(&e) => {
                all_known = false;
                lines.damage(&e.to_string())?;
                continue;
            }
            Err(e) => return Err(e),
        };
        lines.files += 1;
        let Definition::Tensor { data, manifest, .. } = &entry.definition else { continue };
        named.insert(data.clone());
        let found = check_store(warehouse.folder(), data, manifest.as_ref(), &stores).await;
        let found = found.map_err(Error::stage)?;
        if !found.damaged.is_empty() && warehouse.entry(&name).await?.as_ref() != Some(&entry) {
            lines.say(&format!("tensor {name}: dropped or replaced while it was checked"))?;
            continue;
        }
        tensors += 1;
        lines.tensor(&name, &found, manifest.is_some())?;
    }
    lines.files += records;
    for e in unreadable {
        lines.damage(&e.to_string())?;
    }
    for data in warehouse.stores().await?.iter().filter(|data| !named.contains(*data)) {
        let why = match all_known {
            true => "no definition names it: the definition was dropped or is lost",
            false => "no readable definition names it",
        };
        lines.say(&format!("{}: {why}", warehouse.url(data)))?;
    }
    let (files, size, damaged) = (lines.files, bytes(lines.bytes), lines.damaged);
    lines.say(&format!("{tensors} tensors, {files} files ({size}): {damaged} damaged"))?;
    Ok(damaged)
}

/// True if the error is about the contents of a file.
fn is_damage(e: &Error) -> bool {
    matches!(e.code(), "corrupt" | "invalid_definition" | "too_large")
}

/// The lines of the report, and its totals.
struct Lines<'a> {
    out: &'a mut (dyn Write + Send),
    files: u64,
    bytes: u64,
    damaged: u64,
}

impl Lines<'_> {
    fn say(&mut self, line: &str) -> Result<(), Error> {
        writeln!(self.out, "{line}").map_err(|e| Error::io("write", "the output", e))
    }

    fn damage(&mut self, line: &str) -> Result<(), Error> {
        self.damaged += 1;
        self.say(line)
    }

    async fn mark(&mut self, warehouse: &Warehouse) -> Result<(), Error> {
        match warehouse.check().await {
            // The rest of the warehouse is checked all the same.
            Err(e) if is_damage(&e) => {
                warehouse.is_ours();
                self.damage(&e.to_string())
            }
            other => other,
        }
    }

    fn tensor(&mut self, name: &str, found: &Checked, is_listed: bool) -> Result<(), Error> {
        self.files += found.files;
        self.bytes += found.bytes;
        let (files, size, bad) = (found.files, bytes(found.bytes), found.damaged.len());
        let verdict = match (bad, is_listed) {
            (0, true) => String::new(),
            (0, false) => {
                " (decoded: written by an earlier version, without checksums and a list of chunks)"
                    .into()
            }
            _ => format!(", {bad} damaged"),
        };
        self.say(&format!("tensor {name}: {files} files, {size}{verdict}"))?;
        for damage in &found.damaged {
            self.damage(&format!("  `{}` is damaged: {}", damage.file, damage.reason))?;
        }
        Ok(())
    }
}
