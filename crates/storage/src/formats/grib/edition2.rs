//! Headers of edition 2: sections 1, 3, 4, 5 and 6.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, FM 92 GRIB edition 2.

use super::fields::{Field, Fields, Kind, Moment, Parameter, Product};
use super::grid2;
use super::levels::Level;
use super::octets::{Octets, power};
use super::walk::{Blocks, Message};
use crate::formats::view::Fault;

/// Octets of a product definition that are read: vertical coordinates follow.
const PRODUCT: u64 = 512;

/// The properties that all fields of a message share.
struct Source {
    centre: u16,
    sub_centre: u16,
    /// Version of the code tables.
    tables: u8,
    time: Moment,
    data_type: &'static str,
}

/// Reads the headers of the fields of a message.
pub(super) fn read(
    blocks: &mut Blocks<'_, '_>,
    message: Message,
    out: &mut Fields,
) -> Result<(), Fault> {
    let mut at = message.start + 16;
    let (mut source, mut grid, mut product) = (None, None, None);
    // Offset of section 5; of the section 6 with the bitmap that a later one may refer to; why the data are refused.
    let (mut five, mut bitmap, mut refused): (Option<u64>, Option<u64>, Option<String>) =
        (None, None, None);
    let mut start = None;
    while at < message.end {
        let bad = |why: String| Fault::bad(at, why);
        let head = Octets(blocks.get(at, 5)?);
        let len = head.uint(1, 4).map_err(bad)?;
        let number = head.u8(5).map_err(bad)?;
        if len < 5 || len > message.end - at {
            let reason = format!(
                "section {number} of {len} bytes, {} are left of the message",
                message.end - at
            );
            return Err(Fault::bad(at, reason));
        }
        match number {
            1 => {
                source = Some(identification(Octets(blocks.get(at, len.min(32))?)).map_err(bad)?);
            }
            2 => {}
            3 => grid = Some(out.grid(2, blocks.get(at, len)?, at, grid2::parse)),
            4 => {
                let source = source.as_ref().ok_or_else(|| bad("no section 1 before".into()))?;
                let section = Octets(blocks.get(at, len.min(PRODUCT))?);
                product = Some(read_product(source, message.discipline, section).map_err(bad)?);
            }
            5 => {
                let section = Octets(blocks.get(at, len.min(64))?);
                refused = packing(section.u16(10).map_err(bad)?);
                five = Some(at);
                start = five;
            }
            6 => match Octets(blocks.get(at, 6.min(len))?).u8(6).map_err(bad)? {
                0 => bitmap = Some(at),
                254 => start = Some(bitmap.ok_or_else(|| bad("no bitmap before".into()))?),
                255 => {}
                n => refused = refused.or_else(|| Some(format!("predefined bitmap {n}"))),
            },
            7 => {
                let missing = |n: u8| bad(format!("section 7 without a section {n} before"));
                let (grid, product) = (grid.ok_or_else(|| missing(3))?, product.clone());
                let (product, why) = product.ok_or_else(|| missing(4))?;
                let five = five.take().ok_or_else(|| missing(5))?;
                let offset = start.unwrap_or(five).min(five);
                let refused = why.or(refused.take());
                let bytes = at + len - offset;
                out.list.push(Field { offset, bytes, grid, product, refused });
            }
            n => return Err(Fault::bad(at, format!("section {n}, expected one of 1 to 7"))),
        }
        at += len;
    }
    Ok(())
}

fn identification(section: Octets<'_>) -> Result<Source, String> {
    let n = |at| section.u8(at).map(u64::from);
    Ok(Source {
        centre: section.u16(6)?,
        sub_centre: section.u16(8)?,
        tables: section.u8(10)?,
        time: Moment {
            year: section.uint(13, 2)?,
            month: n(15)?,
            day: n(16)?,
            clock: [n(17)?, n(18)?, n(19)?],
        },
        data_type: match section.u8(21)? {
            0 => "an",
            1 => "fc",
            2 => "af",
            3 => "cf",
            4 => "pf",
            5 => "cp",
            6 => "sa",
            7 => "ra",
            8 => "ep",
            _ => "",
        },
    })
}

/// The reason why data of a representation template cannot be read.
fn packing(template: u16) -> Option<String> {
    let name = match template {
        0 | 2 | 3 | 4 | 40 | 41 | 42 | 61 | 200 | 40_000 | 40_010 => return None,
        1 => "matrix of values",
        50 | 51 => "spherical harmonics",
        53 => "bi-Fourier coefficients",
        _ => "of no known name",
    };
    Some(format!("data representation template 5.{template} ({name})"))
}

/// Parts of a product definition template.
struct Layout {
    /// Octets between the parameter and the generating process.
    skipped: usize,
    tail: Tail,
    /// True if a statistical process over time follows.
    is_statistic: bool,
}

enum Tail {
    None,
    Ensemble,
    /// With this number of octets after the derivation.
    Derived(usize),
    Probability,
    Percentile,
    Spatial,
    /// An ensemble, and octets that follow.
    Reforecast,
}

fn layout(template: u16) -> Option<Layout> {
    let (skipped, tail, is_statistic) = match template {
        0 | 7 | 51 => (0, Tail::None, false),
        1 => (0, Tail::Ensemble, false),
        2..=4 => (0, Tail::Derived(0), false),
        5 => (0, Tail::Probability, false),
        6 => (0, Tail::Percentile, false),
        8 => (0, Tail::None, true),
        9 => (0, Tail::Probability, true),
        10 => (0, Tail::Percentile, true),
        11 => (0, Tail::Ensemble, true),
        12 => (0, Tail::Derived(0), true),
        13 => (0, Tail::Derived(32), true),
        14 => (0, Tail::Derived(28), true),
        15 => (0, Tail::Spatial, false),
        40 => (2, Tail::None, false),
        41 => (2, Tail::Ensemble, false),
        42 => (2, Tail::None, true),
        43 => (2, Tail::Ensemble, true),
        45 => (13, Tail::Ensemble, false),
        46 => (13, Tail::None, true),
        47 => (13, Tail::Ensemble, true),
        48 => (24, Tail::None, false),
        49 => (24, Tail::Ensemble, false),
        60 => (0, Tail::Ensemble, false),
        61 => (0, Tail::Reforecast, true),
        70 => (5, Tail::None, false),
        71 => (5, Tail::Ensemble, false),
        72 => (5, Tail::None, true),
        73 => (5, Tail::Ensemble, true),
        _ => return None,
    };
    Some(Layout { skipped, tail, is_statistic })
}

/// The product, and why its data are refused.
fn read_product(
    source: &Source,
    discipline: u8,
    section: Octets<'_>,
) -> Result<(Product, Option<String>), String> {
    let template = section.u16(8)?;
    let mut product = Product {
        parameter: Parameter {
            edition: 2,
            centre: source.centre,
            sub_centre: source.sub_centre,
            codes: [discipline, section.u8(10)?, section.u8(11)?],
            constituent: None,
        },
        level: Level::NONE,
        statistic: 255,
        step_type: "instant",
        kind: Kind::Plain,
        number: None,
        members: 0,
        time: source.time.seconds()?,
        step: 0,
        data_type: source.data_type,
    };
    let Some(layout) = layout(template) else {
        return Ok((product, Some(format!("product definition template 4.{template}"))));
    };
    if (40..=49).contains(&template) {
        product.parameter.constituent = Some(section.u16(12)?);
    }
    let process = 12 + layout.skipped;
    let surface = process + 11;
    product.level = level(section, surface, source.centre)?;
    let unit = section.u8(process + 6)?;
    let step = source.time.span(section.int(process + 7, 4)?, unit);
    let tail = surface + 12;
    let tail = read_tail(section, tail, &layout.tail, &mut product)?;
    let step = match layout.is_statistic {
        true => statistic(source, section, tail, step, &mut product)?,
        false => step,
    };
    match step {
        Ok(step) => product.step = step,
        Err(why) => return Ok((product, Some(why))),
    }
    Ok((product, None))
}

fn level(section: Octets<'_>, at: usize, centre: u16) -> Result<Level, String> {
    let value = |at: usize| -> Result<Option<f64>, String> {
        let (factor, scaled) = (section.present(at, 1)?, section.present(at + 1, 4)?);
        let Some(scaled) = scaled else { return Ok(None) };
        let factor = factor.map_or(Ok(0), |_| section.int(at, 1))?;
        // Divided once for each decimal, as the reference implementation does.
        let each = |v: f64, _| if factor > 0 { v / 10.0 } else { v * 10.0 };
        Ok(Some((0..factor.unsigned_abs()).fold(scaled as f64, each)))
    };
    let types = [section.u8(at)?, section.u8(at + 6)?];
    Ok(Level::two(types, [value(at + 1)?, value(at + 7)?], centre))
}

/// Reads the octets behind the surfaces; returns the octet after them.
fn read_tail(
    section: Octets<'_>,
    at: usize,
    tail: &Tail,
    product: &mut Product,
) -> Result<usize, String> {
    Ok(match tail {
        Tail::None => at,
        Tail::Ensemble | Tail::Reforecast => {
            product.number = Some(section.uint(at + 1, 1)? as i64);
            product.members = section.uint(at + 2, 1)?;
            at + if matches!(tail, Tail::Reforecast) { 10 } else { 3 }
        }
        Tail::Derived(more) => {
            product.kind = Kind::Derived(section.u8(at)?);
            product.members = section.uint(at + 1, 1)?;
            at + 2 + more
        }
        Tail::Probability => {
            let limit = |at: usize| -> Result<Option<String>, String> {
                let (factor, scaled) = (section.present(at, 1)?, section.present(at + 1, 4)?);
                if factor.is_none() || scaled.is_none() {
                    return Ok(None);
                }
                let (factor, scaled) = (section.int(at, 1)?, section.int(at + 1, 4)?);
                Ok(Some(format!("{}", scaled as f64 / power(10.0, factor))))
            };
            let limits = [limit(at + 3)?, limit(at + 8)?];
            product.kind = Kind::Probability(section.u8(at + 2)?, limits);
            at + 13
        }
        Tail::Percentile => {
            product.kind = Kind::Percentile(section.u8(at)?);
            at + 1
        }
        Tail::Spatial => {
            product.kind = Kind::Spatial(section.u8(at)?);
            at + 3
        }
    })
}

/// Reads the statistical process over time; returns the step at its end.
fn statistic(
    source: &Source,
    section: Octets<'_>,
    at: usize,
    start: Result<i64, String>,
    product: &mut Product,
) -> Result<Result<i64, String>, String> {
    let ranges = usize::from(section.u8(at + 7)?);
    if ranges == 0 {
        return Ok(start);
    }
    product.statistic = section.u8(at + 12)?;
    product.step_type = step_type(product.statistic);
    let Ok(start) = start else { return Ok(start) };
    let length = |i: usize| -> Result<(u8, Result<i64, String>), String> {
        let at = at + 12 + 12 * i;
        let (unit, n) = (section.u8(at + 2)?, section.uint(at + 3, 4)?);
        Ok((section.u8(at + 1)?, source.time.span(n as i64, unit)))
    };
    if ranges == 1 {
        let (increment, length) = length(0)?;
        // In these messages the length is not a length of steps: fields have one step and several reference times.
        let is_of_times = increment == 1 && source.centre == 98 && source.tables <= 33;
        return Ok(if is_of_times { Ok(start) } else { length.map(|n| start.saturating_add(n)) });
    }
    for i in 0..ranges.min(16) {
        let (increment, length) = length(i)?;
        if increment == 2 {
            return Ok(length.map(|n| start.saturating_add(n)));
        }
    }
    let n = |i| section.u8(at + i).map(u64::from);
    let end = Moment {
        year: section.uint(at, 2)?,
        month: n(2)?,
        day: n(3)?,
        clock: [n(4)?, n(5)?, n(6)?],
    };
    Ok(end.seconds().map(|end| end - product.time))
}

/// Name of a statistical process, by code table 4.10.
fn step_type(code: u8) -> &'static str {
    match code {
        0 => "avg",
        1 => "accum",
        2 => "max",
        3 => "min",
        4 => "diff",
        5 => "rms",
        6 => "sd",
        7 => "cov",
        8 => "sdiff",
        9 => "ratio",
        10 => "stdanom",
        11 => "sum",
        100 => "severity",
        101 => "mode",
        102 => "index",
        255 => "instant",
        _ => "statistic",
    }
}
