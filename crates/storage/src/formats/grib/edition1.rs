//! Headers of edition 1: sections 1 and 2, and the first octets of section 4.
//!
//! # Source
//! WMO Manual on Codes, annex II to the Technical Regulations, FM 92 GRIB edition 1; local uses of section 1: ECMWF's
//! definitions 1 to 50, NCEP Office Note 388.

use super::fields::{Field, Fields, Kind, Moment, Parameter, Product};
use super::grid1;
use super::levels::Level;
use super::octets::Octets;
use super::walk::{Blocks, Message};
use crate::formats::view::Fault;

/// Octets of section 1 that are read: the octets behind them are local.
const PRODUCT: u64 = 128;

const ECMWF: u16 = 98;
const NCEP: u16 = 7;

/// Reads the headers of a message.
pub(super) fn read(
    blocks: &mut Blocks<'_, '_>,
    message: Message,
    out: &mut Fields,
) -> Result<(), Fault> {
    let first = message.start + 8;
    let len = length(blocks, first, message.end, 1, 28)?;
    let section = Octets(blocks.get(first, len.min(PRODUCT))?);
    let bad = |why| Fault::bad(first, why);
    let (product, mut refused) = product(section).map_err(bad)?;
    let (predefined, flags) = (section.u8(7).map_err(bad)?, section.u8(8).map_err(bad)?);
    let mut at = first + len;
    let grid = match flags & 0x80 {
        0 => {
            let why = format!("grid {predefined} that the centre predefines (no section 2)");
            out.grid(1, &[predefined], at, |_| Err(why.clone()))
        }
        _ => {
            let len = length(blocks, at, message.end, 2, 32)?;
            let grid = out.grid(1, blocks.get(at, len)?, at, grid1::parse);
            at += len;
            grid
        }
    };
    if flags & 0x40 == 0 && refused.is_none() {
        // Behind a bitmap they are not looked at, which could cost another request.
        let n = message.end.saturating_sub(at).min(14);
        refused = packing(Octets(blocks.get(at, n)?)).map_err(|why| Fault::bad(at, why))?;
    }
    let bytes = message.end - first;
    out.list.push(Field { offset: first, bytes, grid, product, refused });
    Ok(())
}

/// The length of the section at `at`, which has at least `least` bytes, of a message that ends at `end`.
fn length(
    blocks: &mut Blocks<'_, '_>,
    at: u64,
    end: u64,
    number: u8,
    least: u64,
) -> Result<u64, Fault> {
    let left = end.saturating_sub(at);
    let len = match left < least {
        true => left,
        false => Octets(blocks.get(at, 3)?).uint(1, 3).map_err(|why| Fault::bad(at, why))?,
    };
    if len < least || len > left {
        let reason = format!(
            "section {number} of {len} bytes, expected {least} or more; {left} are left of the message"
        );
        return Err(Fault::bad(at, reason));
    }
    Ok(len)
}

/// The reason why the data of section 4 cannot be read.
fn packing(section: Octets<'_>) -> Result<Option<String>, String> {
    let flags = section.u8(4)?;
    if flags & 0x80 != 0 {
        return Ok(Some("spherical harmonics".into()));
    }
    if flags & 0x40 != 0 {
        // The general extended form alone.
        let extended = section.u8(14)?;
        return Ok((extended & 0x78 != 0x18).then(|| "second-order packing of this form".into()));
    }
    Ok((flags & 0x10 != 0).then(|| "a matrix of values at each point".into()))
}

/// The product, and why its data are refused.
fn product(section: Octets<'_>) -> Result<(Product, Option<String>), String> {
    let n = |at| section.u8(at).map(u64::from);
    let (centre, sub_centre) = (u16::from(section.u8(5)?), u16::from(section.u8(26)?));
    let kind = section.u8(10)?;
    let time = Moment {
        year: (n(25)?.max(1) - 1) * 100 + n(13)?,
        month: n(14)?,
        day: n(15)?,
        clock: [n(16)?, n(17)?, 0],
    };
    let range = section.u8(21)?;
    let (p1, p2) = (section.u8(19)?, section.u8(20)?);
    let (step_type, statistic, step) = match range {
        10 => ("instant", 255, i64::from(u16::from_be_bytes([p1, p2]))),
        2 if centre == ECMWF => ("max", 2, p2.into()),
        2 | 4 => ("accum", 1, p2.into()),
        3 | 7 => ("avg", 0, p2.into()),
        5 => ("diff", 4, p2.into()),
        6 => ("avg", 0, -i64::from(p2)),
        113 => ("avgfc", 0, p1.into()),
        114 | 116 => ("accumfc", 1, p1.into()),
        115 | 117 => ("avgfc", 0, p1.into()),
        118 => ("max", 2, p2.into()),
        119 => ("min", 3, p2.into()),
        120 => ("rms", 5, p2.into()),
        121 => ("sd", 6, p2.into()),
        122 => ("cov", 7, p2.into()),
        123 => ("avgua", 0, p1.into()),
        124 => ("avgia", 0, p1.into()),
        128 => ("avgas", 0, p2.into()),
        130 => ("avgad", 0, p2.into()),
        133 => ("avgid", 0, p2.into()),
        _ => ("instant", 255, p1.into()),
    };
    // Code table 4 of edition 1 differs from that of edition 2 in the last ones.
    let step = match section.u8(18)? {
        13 => time.span(step * 15, 0),
        14 => time.span(step * 30, 0),
        15 | 254 => time.span(step, 13),
        unit => time.span(step, unit),
    };
    let mut out = Product {
        parameter: Parameter {
            edition: 1,
            centre,
            sub_centre,
            codes: [section.u8(4)?, 0, section.u8(9)?],
            constituent: None,
        },
        level: Level::one(kind, [section.u8(11)?, section.u8(12)?], centre),
        statistic,
        step_type,
        kind: Kind::Plain,
        number: None,
        members: 0,
        time: time.seconds()?,
        step: 0,
        data_type: if step == Ok(0) { "an" } else { "fc" },
    };
    let mut refused = None;
    if centre == ECMWF || sub_centre == ECMWF {
        refused = local_ecmwf(section, &mut out)?;
    } else if centre == NCEP && section.0.len() >= 44 && section.u8(41)? == 1 {
        let id = i64::from(section.u8(43)?);
        // Pairs of perturbed forecasts: negative before positive; the control has number 0.
        out.number = match section.u8(42)? {
            2 => Some(2 * id),
            3 => Some(2 * id - 1),
            1 => Some(0),
            _ => None,
        };
    }
    match step {
        Ok(step) => out.step = step,
        Err(why) => refused = Some(why),
    }
    Ok((out, refused))
}

/// Reads ECMWF's local use of section 1; returns why the data are refused.
fn local_ecmwf(section: Octets<'_>, out: &mut Product) -> Result<Option<String>, String> {
    if section.0.len() < 50 {
        return Ok(None);
    }
    let definition = section.u8(41)?;
    out.data_type = match section.u8(43)? {
        1 => "fg",
        2 => "an",
        3 => "ia",
        4 => "oi",
        5 => "3v",
        6 => "4v",
        9 => "fc",
        10 => "cf",
        11 => "pf",
        12 => "ef",
        13 => "ea",
        14 => "cm",
        15 => "cs",
        16 => "fp",
        17 => "em",
        18 => "es",
        19 => "fa",
        20 => "cl",
        21 => "si",
        30 => "ep",
        33 => "4i",
        _ => "",
    };
    match out.data_type {
        "em" => out.kind = Kind::Derived(0),
        "es" => out.kind = Kind::Derived(4),
        _ => {}
    }
    match definition {
        1 | 18 | 26 | 30 | 36 | 40 | 14 => {
            out.number = Some(section.u8(50)?.into());
            out.members = section.uint(51, 1).unwrap_or(0);
        }
        15 | 16 => out.number = Some(section.uint(50, 2)? as i64),
        5 => {
            let limit = |at| -> Result<Option<String>, String> {
                let v = section.present(at, 2)?;
                v.map(|_| section.int(at, 2).map(|v| v.to_string())).transpose()
            };
            out.kind = Kind::Probability(section.u8(53)?, [limit(54)?, limit(56)?]);
        }
        13 => return Ok(Some("wave spectra by direction and frequency".into())),
        _ => {}
    }
    Ok(None)
}
