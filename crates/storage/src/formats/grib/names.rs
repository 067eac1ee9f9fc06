//! Names of parameters.
//!
//! # Source
//! `parameters.txt`; its first lines describe its columns and how it was made.

use super::fields::{Parameter, Product};
use super::levels::Level;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static TABLE: &str = include_str!("parameters.txt");

/// A statistical process that prefixes the names of a parameter: its code, the prefixes of the short and long name.
const STATISTICS: [(u8, &str, &str); 4] = [
    (0, "avg_", "Time-mean "),
    (2, "max_", "Time-maximum "),
    (3, "min_", "Time-minimum "),
    (6, "std_", "Time-standard-deviation "),
];

/// Names of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    /// Of the array.
    pub(super) variable: String,
    pub(super) short: String,
    pub(super) long: String,
    pub(super) units: &'static str,
    /// The name in CF; empty if CF has no name.
    pub(super) standard: &'static str,
    /// In the parameter database of ECMWF.
    pub(super) id: Option<u32>,
}

/// A row of the table.
#[derive(Debug)]
struct Row {
    centre: Option<u16>,
    /// Types and values of the surfaces.
    surfaces: [Option<(u8, Option<f64>)>; 2],
    statistic: Option<u8>,
    fields: [&'static str; 6],
    /// Codes of the statistics that prefix the names.
    prefixed: &'static str,
}

/// An edition and the codes of a parameter.
type Key = (u8, [u8; 3]);

static ROWS: LazyLock<BTreeMap<Key, Vec<Row>>> = LazyLock::new(|| {
    let mut out: BTreeMap<_, Vec<Row>> = BTreeMap::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        if let Some((key, row)) = parse(line) {
            out.entry(key).or_default().push(row);
        }
    }
    out
});

fn parse(line: &'static str) -> Option<(Key, Row)> {
    let mut columns = line.split('|');
    let (key, conditions) = (columns.next()?, columns.next()?);
    let mut numbers = key.trim_start_matches('t').split('.').map(str::parse::<u8>);
    let key = match key.starts_with('t') {
        true => (1, [numbers.next()?.ok()?, 0, numbers.next()?.ok()?]),
        false => (2, [numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?]),
    };
    let mut row =
        Row { centre: None, surfaces: [None; 2], statistic: None, fields: [""; 6], prefixed: "" };
    for condition in conditions.split_whitespace() {
        let (kind, value) = condition.split_at_checked(1)?;
        let surface = || -> Option<(u8, Option<f64>)> {
            Some(match value.split_once(':') {
                Some((code, value)) => (code.parse().ok()?, Some(value.parse().ok()?)),
                None => (value.parse().ok()?, None),
            })
        };
        match kind {
            "c" => row.centre = Some(value.parse().ok()?),
            "f" => row.surfaces[0] = Some(surface()?),
            "s" => row.surfaces[1] = Some(surface()?),
            _ => row.statistic = Some(value.parse().ok()?),
        }
    }
    for field in &mut row.fields {
        *field = columns.next()?;
    }
    row.prefixed = columns.next()?;
    Some((key, row))
}

impl Row {
    /// The number of conditions, if all hold; a row of the centre is before all others.
    fn score(&self, parameter: &Parameter, level: &Level, statistic: u8) -> Option<u32> {
        let mut score = 0;
        if let Some(centre) = self.centre {
            let is_of =
                centre == parameter.centre || centre == parameter.sub_centre && centre == 98;
            score += is_of.then_some(100)?;
        }
        for (i, surface) in self.surfaces.iter().enumerate() {
            let Some((code, value)) = surface else { continue };
            score += (*code == level.types[i]).then_some(1)?;
            if let Some(value) = value {
                let is = |v: f64| (v - value).abs() <= 1e-6 * value.abs();
                score += level.surfaces[i].is_some_and(is).then_some(1)?;
            }
        }
        if let Some(code) = self.statistic {
            score += (code == statistic).then_some(1)?;
        }
        Some(score)
    }
}

/// The names of a product; `None` if its parameter is not in the table.
fn find(product: &Product) -> Option<Name> {
    let Product { parameter, level, statistic, .. } = product;
    if parameter.constituent.is_some() {
        return None;
    }
    let mut codes = parameter.codes;
    // The tables 1 to 3 of edition 1 are one.
    if parameter.edition == 1 && matches!(codes[0], 1 | 3) {
        codes[0] = 2;
    }
    let rows = ROWS.get(&(parameter.edition, codes))?;
    // Statistics of edition 1 have parameters of their own.
    let statistic = if parameter.edition == 1 { 255 } else { *statistic };
    let scored = |row: &'static Row| Some((row.score(parameter, level, statistic)?, row));
    let (_, row) = rows.iter().filter_map(scored).reduce(|a, b| if b.0 > a.0 { b } else { a })?;
    let [id, short, variable, units, long, standard] = row.fields;
    let variable = if variable.is_empty() { short } else { variable };
    let prefix = STATISTICS.iter().find(|(code, ..)| {
        *code == statistic
            && row.statistic.is_none()
            && row.prefixed.contains(char::from(b'0' + code))
    });
    if let Some((_, short_prefix, long_prefix)) = prefix {
        let mut letters = long.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_lowercase).collect();
        let short = format!("{short_prefix}{short}");
        let long = format!("{long_prefix}{first}{}", letters.as_str());
        return Some(Name { variable: short.clone(), short, long, units, standard, id: None });
    }
    let (short, variable, long) = (short.to_string(), variable.to_string(), long.to_string());
    Some(Name { variable, short, long, units, standard, id: id.parse().ok() })
}

/// The names of a product; those of a parameter that is not in the table are its codes.
pub(super) fn name(product: &Product) -> Name {
    find(product).unwrap_or_else(|| {
        let Parameter { edition, codes: [a, b, c], constituent, .. } = product.parameter;
        let mut variable = match edition {
            1 => format!("param_{a}_{c}"),
            _ => format!("param_{a}_{b}_{c}"),
        };
        if let Some(constituent) = constituent {
            variable = format!("{variable}_{constituent}");
        }
        let codes = match edition {
            1 => format!("parameter {c} of table {a}"),
            _ => format!("discipline {a}, category {b}, number {c}"),
        };
        Name { short: "unknown".into(), variable, long: codes, units: "1", standard: "", id: None }
    })
}
