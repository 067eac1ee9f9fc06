//! Headers of fields: the quantity, the time for which it holds, the grid, and the place of the data.

use super::edition1;
use super::edition2;
use super::grid::Grid;
use super::levels::Level;
use super::walk::{Blocks, Message};
use crate::formats::view::{Fault, SPOTS_MAX, View};
use std::collections::BTreeMap;
use tessera_planner::dtype::Calendar;
use tessera_planner::time::{DateTime, join};

/// A field, which becomes a chunk.
#[derive(Debug)]
pub(super) struct Field {
    /// The part of the file that its decoder needs. In edition 1, the message without its first and last section; in
    /// edition 2, sections 5 to 7, or more if a section before them has its bitmap.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Index in [`Fields::grids`].
    pub(super) grid: usize,
    pub(super) product: Product,
    /// Why its data cannot be read.
    pub(super) refused: Option<String>,
}

/// The quantity of a field, and the time for which it holds.
#[derive(Debug, Clone)]
pub(super) struct Product {
    pub(super) parameter: Parameter,
    pub(super) level: Level,
    /// Statistical process over time, by code table 4.10 of edition 2; 255 for none.
    pub(super) statistic: u8,
    /// The same as the reference implementation names it, `instant` for none.
    pub(super) step_type: &'static str,
    pub(super) kind: Kind,
    /// Member of an ensemble.
    pub(super) number: Option<i64>,
    /// Members of the ensemble.
    pub(super) members: u64,
    /// Reference time, seconds since 1970.
    pub(super) time: i64,
    /// From there to the time, or the end of the interval, for which it holds, in seconds.
    pub(super) step: i64,
    /// Analysis, forecast and others, as code table 1.4 of edition 2 abbreviates them.
    pub(super) data_type: &'static str,
}

/// Codes of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Parameter {
    pub(super) edition: u8,
    pub(super) centre: u16,
    pub(super) sub_centre: u16,
    /// Discipline, category and number of edition 2; table, 0 and number of edition 1.
    pub(super) codes: [u8; 3],
    /// Chemical constituent or type of aerosol.
    pub(super) constituent: Option<u16>,
}

/// The kind of a field, besides its parameter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Plain,
    /// Derived from the members of an ensemble, by code table 4.7.
    Derived(u8),
    Percentile(u8),
    /// Type by code table 4.9, and the limits.
    Probability(u8, [Option<String>; 2]),
    /// Statistical process over an area, by code table 4.10.
    Spatial(u8),
}

/// The fields of a file.
#[derive(Debug, Default)]
pub(super) struct Fields {
    pub(super) list: Vec<Field>,
    pub(super) grids: Vec<GridAt>,
    /// Grids by the bytes of their section, for each edition.
    known: [BTreeMap<Vec<u8>, usize>; 2],
}

/// A grid and the bytes of the file that define it.
#[derive(Debug)]
pub(super) struct GridAt {
    pub(super) edition: u8,
    pub(super) grid: Result<Grid, String>,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Fields {
    /// Reads the headers of messages. What is missing for one does not stop the others, so that it is fetched together.
    pub(super) fn of(file: &View<'_>, messages: &[Message]) -> Result<Fields, Fault> {
        let mut out = Fields::default();
        let mut blocks = Blocks::new(file);
        let (mut missing, mut count) = (None, 0);
        for message in messages {
            let read = match message.edition {
                1 => edition1::read(&mut blocks, *message, &mut out),
                _ => edition2::read(&mut blocks, *message, &mut out),
            };
            match (read, &missing) {
                (Ok(()), _) => {}
                (Err(Fault::Missing(range) | Fault::MissingAlone(range)), _) => {
                    file.will_read_alone(range.start, range.end - range.start);
                    missing.get_or_insert(range);
                    count += 1;
                    if count == SPOTS_MAX {
                        break;
                    }
                }
                // An earlier message may have another one.
                (Err(_), Some(_)) => break,
                (Err(fault), None) => return Err(fault),
            }
        }
        missing.map_or(Ok(out), |range| Err(Fault::MissingAlone(range)))
    }

    /// Index of the grid that the section `bytes` at `offset` defines.
    pub(super) fn grid(
        &mut self,
        edition: u8,
        bytes: &[u8],
        offset: u64,
        parse: impl Fn(&[u8]) -> Result<Grid, String>,
    ) -> usize {
        let known = &mut self.known[usize::from(edition != 1)];
        if let Some(i) = known.get(bytes) {
            return *i;
        }
        let i = self.grids.len();
        self.grids.push(GridAt { edition, grid: parse(bytes), offset, bytes: bytes.len() as u64 });
        known.insert(bytes.to_vec(), i);
        i
    }
}

/// Seconds since 1970 of a date. Months and days of 0, which climatologies have, are the first ones.
pub(super) fn seconds(year: u64, month: u64, day: u64, clock: [u64; 3]) -> Result<i64, String> {
    let [hour, minute, second] = clock.map(|v| v as i64);
    let date = DateTime {
        year: year as i64,
        month: month.max(1) as u32,
        day: day.max(1) as u32,
        micros: ((hour * 60 + minute) * 60 + second) * 1_000_000,
    };
    let us = (hour < 24 && minute < 60 && second < 60).then(|| join(date, Calendar::Standard));
    us.flatten().map(|us| us / 1_000_000).ok_or_else(|| {
        format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} is not a date")
    })
}

/// A reference time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) year: u64,
    pub(super) month: u64,
    pub(super) day: u64,
    /// Hour, minute, second.
    pub(super) clock: [u64; 3],
}

impl Moment {
    pub(super) fn seconds(self) -> Result<i64, String> {
        seconds(self.year, self.month, self.day, self.clock)
    }

    /// Seconds from here to `n` units of time later, by code table 4.4 of edition 2.
    pub(super) fn span(self, n: i64, unit: u8) -> Result<i64, String> {
        // Without a forecast there may be no unit.
        if n == 0 {
            return Ok(0);
        }
        let each = match unit {
            0 => 60,
            1 => 3600,
            2 => 86_400,
            10 => 3 * 3600,
            11 => 6 * 3600,
            12 => 12 * 3600,
            13 => 1,
            3 => return self.months(n),
            4 => return self.months(n.saturating_mul(12)),
            5 => return self.months(n.saturating_mul(120)),
            6 => return self.months(n.saturating_mul(360)),
            7 => return self.months(n.saturating_mul(1200)),
            _ => return Err(format!("unit {unit} of time (code table 4.4)")),
        };
        Ok(n.saturating_mul(each))
    }

    /// Seconds to the same day of another month, or the last day that the month has.
    fn months(self, n: i64) -> Result<i64, String> {
        let month = (self.year as i64 * 12 + self.month.max(1) as i64 - 1).saturating_add(n);
        let (year, month) = (month.div_euclid(12), month.rem_euclid(12) as u64 + 1);
        let year = u64::try_from(year).map_err(|_| format!("a forecast of {n} months"))?;
        let days = (self.day.saturating_sub(3)..=self.day).rev();
        let there = days.map(|day| seconds(year, month, day, self.clock)).find_map(Result::ok);
        let there = there.ok_or_else(|| format!("a forecast of {n} months"))?;
        Ok(there - self.seconds()?)
    }
}
