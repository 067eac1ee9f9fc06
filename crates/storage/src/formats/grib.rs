//! GRIB, editions 1 and 2: messages are the chunks of cubes.
//!
//! ```text
//!   message, message, ... ─▶ [`walk`]: where they are ─▶ [`fields`]: headers ─▶ [`cubes`]: an array for each parameter
//!                                                              chunk of an array ─▶ [`decode`]: a field ◀─┘
//! ```
//!
//! Only headers are read when a file is opened: of each message those before its data. Names of arrays, dimensions and
//! attributes are those of the Python package cfgrib; where it refuses a file with several values of a key, there are
//! arrays for each, with a suffix.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, FM 92 GRIB; cfgrib 0.9.15 and ecCodes 2.50 for names.

mod complex;
mod coords;
mod cubes;
mod decode;
mod edition1;
mod edition2;
mod fields;
mod grid;
mod grid1;
mod grid2;
mod jpeg;
mod levels;
mod map;
mod names;
mod octets;
mod places;
mod png;
mod points;
mod second_order;
mod sidecar;
mod source;
#[cfg(test)]
mod tests;
mod unpack;
mod walk;

use crate::formats::view::{Fault, View};
use crate::formats::{Format, Group};

/// See the module.
pub(crate) struct Grib;

impl Format for Grib {
    fn name(&self) -> &'static str {
        "GRIB"
    }

    fn keys(&self) -> &'static [&'static str] {
        &["grib"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["grib", "grib1", "grib2", "grb", "grb1", "grb2", "gb2", "gr1", "gr2"]
    }

    fn is(&self, head: &[u8], len: u64) -> bool {
        walk::is_first(head, len)
    }

    fn sidecars(&self, name: &str) -> Vec<String> {
        sidecar::names(name, self.extensions())
    }

    fn starts(&self, sidecar: &[u8], len: u64) -> Vec<u64> {
        sidecar::starts(sidecar, len)
    }

    fn read(&self, file: &View<'_>, group: &str) -> Result<Option<Group>, Fault> {
        if !group.is_empty() {
            return Ok(None);
        }
        // All messages are found before the first header is parsed: the bytes that finding needs are cheap to fetch.
        let messages = walk::messages(file)?;
        let fields = fields::Fields::of(file, &messages)?;
        cubes::group(&fields).map(Some)
    }
}
