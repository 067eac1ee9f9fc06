//! The centre that made a file.
//!
//! # Source
//! WMO Manual on Codes, volume I.2, common code table C-11.

use super::fields::Fields;
use serde_json::json;
use tessera_planner::catalog::Attrs;

/// Attributes of the file.
pub(super) fn attrs(fields: &Fields) -> Attrs {
    let mut out = Attrs::new();
    let mut all = fields.list.iter().map(|f| f.product.parameter);
    let Some(first) = all.next() else { return out };
    let (mut edition, mut centre, mut sub_centre) = (true, true, true);
    for other in all {
        edition &= other.edition == first.edition;
        centre &= other.centre == first.centre;
        sub_centre &= other.sub_centre == first.sub_centre;
    }
    out.insert("Conventions".into(), "CF-1.7".into());
    if edition {
        out.insert("GRIB_edition".into(), json!(first.edition));
    }
    if centre {
        let (short, long) = name(first.centre);
        let short = if short.is_empty() { first.centre.to_string() } else { short.into() };
        out.insert("GRIB_centre".into(), short.into());
        if !long.is_empty() {
            out.insert("GRIB_centreDescription".into(), long.into());
            out.insert("institution".into(), long.into());
        }
    }
    if sub_centre {
        out.insert("GRIB_subCentre".into(), json!(first.sub_centre));
    }
    out
}

/// The abbreviation that the reference implementation has for a centre, and its name.
fn name(centre: u16) -> (&'static str, &'static str) {
    match centre {
        1 | 2 => ("ammc", "Melbourne"),
        4 | 5 => ("rums", "Moscow"),
        7 => ("kwbc", "US National Weather Service - NCEP"),
        34 => ("rjtd", "Japanese Meteorological Agency - Tokyo"),
        38 => ("babj", "Beijing"),
        40 => ("rksl", "Seoul"),
        54 => ("cwao", "Canadian Meteorological Service - Montreal"),
        74 => ("egrr", "U.K. Met Office - Exeter"),
        78 => ("edzw", "Offenbach"),
        80 => ("cnmc", "Rome"),
        82 => ("eswi", "Norrkoping"),
        84 | 85 => ("lfpw", "French Weather Service - Toulouse"),
        86 => ("efkl", "Helsinki"),
        88 => ("enmi", "Oslo"),
        94 => ("ekmi", "Copenhagen"),
        98 => ("ecmf", "European Centre for Medium-Range Weather Forecasts"),
        99 => ("knmi", "De Bilt"),
        160 => ("160", "US NOAA Office of Oceanic and Atmospheric Research"),
        250 => ("cosmo", "COnsortium for Small scale MOdelling (COSMO)"),
        252 => ("mpim", "Max-Planck Institute for Meteorology"),
        254 => ("eums", "EUMETSAT Operation Centre"),
        _ => ("", ""),
    }
}
