//! Attributes of an image: GDAL's tags and the descriptive tags of TIFF.
//!
//! # Source
//! GDAL's documentation of its GTiff driver, "Metadata" and "Nodata value"; names of attributes as rioxarray.

use super::ifd::Ifd;
use super::tags;
use crate::formats::view::{Fault, View};
use crate::sink::VALID_KEY;
use crate::sink::cf::UNNAMED_KEY;
use crate::source::cells::Raw;
use crate::source::coords::native_bytes;
use serde_json::Value;
use std::borrow::Cow;
use tessera_planner::catalog::{Attrs, as_float, float};
use tessera_planner::scalar::Scalar;

/// Upper bound on the bands whose metadata are read.
const BANDS_MAX: usize = 4096;

/// Upper bound on the length of a descriptive text: microscopes write megabytes of XML.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Names that have a meaning in CF and none in the metadata of GDAL.
const RESERVED: [&str; 13] = [
    "_FillValue",
    "missing_value",
    "fill_value",
    "nodata",
    "scale_factor",
    "add_offset",
    "valid_min",
    "valid_max",
    "valid_range",
    "coordinates",
    "bounds",
    VALID_KEY,
    UNNAMED_KEY,
];

/// Descriptive tags and their names in GDAL.
const TEXTS: [(u16, &str); 7] = [
    (tags::DOCUMENT_NAME, "TIFFTAG_DOCUMENTNAME"),
    (tags::DESCRIPTION, "TIFFTAG_IMAGEDESCRIPTION"),
    (tags::SOFTWARE, "TIFFTAG_SOFTWARE"),
    (tags::DATE_TIME, "TIFFTAG_DATETIME"),
    (tags::ARTIST, "TIFFTAG_ARTIST"),
    (tags::HOST_COMPUTER, "TIFFTAG_HOSTCOMPUTER"),
    (tags::COPYRIGHT, "TIFFTAG_COPYRIGHT"),
];

/// Adds the attributes of an image of `bands` bands.
pub(super) fn describe(
    file: &View<'_>,
    ifd: &Ifd<'_>,
    bands: u64,
    attrs: &mut Attrs,
) -> Result<(), Fault> {
    for (tag, name) in TEXTS {
        if let Some(text) = ifd.text(file, tag)?.filter(|t| t.len() <= TEXT_BYTES_MAX) {
            attrs.insert(name.into(), text.into());
        }
    }
    let xml = ifd.text(file, tags::GDAL_METADATA)?.unwrap_or_default();
    let bands = (bands as usize).min(BANDS_MAX);
    let mut scales = vec![1.0; bands];
    let mut offsets = vec![0.0; bands];
    let (mut names, mut units) = (vec![String::new(); bands], vec![String::new(); bands]);
    for item in Items(&xml) {
        let role = item.attribute("role").unwrap_or_default();
        let band = item.attribute("sample").map(|s| s.parse::<usize>());
        match (band, &*role) {
            (None, _) => {
                if let Some(name) = item.attribute("name")
                    && item.attribute("domain").is_none()
                    && !RESERVED.contains(&&*name)
                {
                    attrs.insert(name.into_owned(), guess(&item.text()));
                }
            }
            (Some(Ok(i)), _) if i < bands => {
                let text = item.text();
                let number = || text.trim().parse::<f64>().ok();
                match &*role {
                    "scale" => scales[i] = number().unwrap_or(1.0),
                    "offset" => offsets[i] = number().unwrap_or(0.0),
                    "description" => names[i] = text.into_owned(),
                    "unittype" => units[i] = text.into_owned(),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    if let Some(nodata) = nodata(file, ifd)? {
        attrs.insert("_FillValue".into(), nodata);
    }
    numbers(attrs, ("scale_factor", "scales"), &scales, 1.0);
    numbers(attrs, ("add_offset", "offsets"), &offsets, 0.0);
    texts(attrs, "long_name", &names);
    texts(attrs, "units", &units);
    Ok(())
}

/// The number of images that ImageJ says are in a file, by its description.
pub(super) fn images_of_imagej(description: &str) -> Option<u64> {
    let mut lines = description.lines();
    lines.next().filter(|line| line.starts_with("ImageJ="))?;
    lines.find_map(|line| line.strip_prefix("images="))?.trim().parse().ok()
}

/// Adds a number that all bands have under the first name, different ones under the second.
fn numbers(attrs: &mut Attrs, (one, many): (&str, &str), all: &[f64], default: f64) {
    if all.iter().any(|v| *v != all[0]) {
        let all = all.iter().map(|v| float(*v)).collect();
        attrs.insert(many.into(), Value::Array(all));
    } else if all.first().is_some_and(|v| *v != default) {
        attrs.insert(one.into(), float(all[0]));
    }
}

/// Adds a text that all bands have, or the list of different ones.
fn texts(attrs: &mut Attrs, name: &str, all: &[String]) {
    if all.iter().all(String::is_empty) {
        return;
    }
    let is_one = all.iter().all(|t| *t == all[0]);
    attrs.insert(name.into(), if is_one { all[0].as_str().into() } else { all.to_vec().into() });
}

/// The value of cells without data.
fn nodata(file: &View<'_>, ifd: &Ifd<'_>) -> Result<Option<Value>, Fault> {
    let Some(text) = ifd.text(file, tags::GDAL_NODATA)? else { return Ok(None) };
    let value = guess(text.trim());
    let is_number = as_float(&value).is_some();
    Ok(is_number.then_some(value))
}

/// A text that is a number, as that.
fn guess(text: &str) -> Value {
    if let Ok(v) = text.parse::<i64>() {
        return v.into();
    }
    if let Ok(v) = text.parse::<u64>() {
        return v.into();
    }
    match text.parse::<f64>() {
        Ok(v) => float(v),
        Err(_) => text.into(),
    }
}

/// The cell of absent segments: the nodata value if the type has it, or 0. Native-endian.
pub(super) fn fill(attrs: &Attrs, raw: &Raw) -> Vec<u8> {
    let zero = || vec![0; raw.size() as usize];
    let Some(value) = attrs.get("_FillValue") else { return zero() };
    let number = as_float(value);
    let whole = value
        .as_i64()
        .map(i128::from)
        .or(value.as_u64().map(i128::from))
        .or(number.filter(|v| v.fract() == 0.0 && v.abs() < 1e30).map(|v| v as i128));
    let cell = match raw {
        Raw::Half => {
            return number.map_or_else(zero, |v| half::f16::from_f64(v).to_ne_bytes().into());
        }
        Raw::Plain(d) if d.is_float() => number.map(|v| Scalar::from_f64(*d, v)),
        Raw::Plain(d) if d.is_integer() => whole.and_then(|v| Scalar::from_i128(*d, v)),
        _ => None,
    };
    cell.map_or_else(zero, |cell| native_bytes(cell)[..cell.dtype().size()].to_vec())
}

/// The items of GDAL's metadata: `<Item name="…" sample="0" role="scale">0.5</Item>`.
struct Items<'a>(&'a str);

struct Item<'a> {
    /// The text between `<Item` and `>`.
    head: &'a str,
    body: &'a str,
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let (_, rest) = self.0.split_once("<Item")?;
        let (head, rest) = rest.split_once('>')?;
        let (body, rest) = match head.ends_with('/') {
            true => ("", rest),
            false => rest.split_once("</Item>")?,
        };
        self.0 = rest;
        Some(Item { head, body })
    }
}

impl<'a> Item<'a> {
    fn attribute(&self, name: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.head;
        loop {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = after.split_once('"')?;
            if key.trim() == name {
                return Some(unescape(value));
            }
            rest = after;
        }
    }

    /// GDAL escapes texts, and again when it writes them as XML.
    fn text(&self) -> Cow<'a, str> {
        match unescape(self.body) {
            Cow::Borrowed(text) => Cow::Borrowed(text),
            Cow::Owned(text) => Cow::Owned(unescape(&text).into_owned()),
        }
    }
}

/// Replaces the entities of XML.
fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        // The longest is `&#x10ffff;`.
        let end = after.bytes().take(10).position(|b| b == b';');
        let entity = end.map(|n| (&after[..n], &after[n + 1..])).and_then(|(name, after)| {
            let code = |digits: &str, base| u32::from_str_radix(digits, base).ok();
            let c = match name {
                "amp" => '&',
                "lt" => '<',
                "gt" => '>',
                "quot" => '"',
                "apos" => '\'',
                _ => {
                    let name = name.strip_prefix('#')?;
                    let code = match name.strip_prefix('x') {
                        Some(hex) => code(hex, 16),
                        None => code(name, 10),
                    };
                    char::from_u32(code?)?
                }
            };
            Some((c, after))
        });
        let (c, after) = entity.unwrap_or(('&', after));
        out.push(c);
        rest = after;
    }
    out.push_str(rest);
    Cow::Owned(out)
}
