//! numcodecs' codecs of arrays, undone on the decoded cells of a chunk: `delta`, `fixedscaleoffset`, `quantize`,
//! `bitround`, `astype`, `packbits`.
//!
//! ```text
//!   int64 ── delta, astype int16 ──▶ int16 ── the other codecs ──▶ bytes
//!         ◀─────── undone here ─────       ◀────── zarrs ───────
//! ```
//! zarrs has some of these codecs, but with other arithmetic or for one version of Zarr only. So the leading ones are
//! removed from the metadata, which then describe an array of the stored type.
//!
//! # Source
//! numcodecs 0.16: `numcodecs.delta`, `quantize`, `bitround`, `astype`, `packbits`; zarr-python 3.1,
//! `zarr.codecs.numcodecs`.

use crate::source::cells::Raw;
use crate::source::coords::{native_bytes, scalars};
use crate::source::scaled::Scaled;
use half::f16;
use serde_json::{Map, Value};
use std::borrow::Cow;
use tessera_planner::dtype::DType;

/// The codecs, without `numcodecs.`.
const NAMES: [&str; 6] =
    ["delta", "fixedscaleoffset", "quantize", "bitround", "astype", "packbits"];

/// A part of a codec, by what undoes it. Cells of `float16` are `float32` in between.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// Cells are stored in another type.
    Cast {
        from: DType,
        to: DType,
    },
    /// Cells of this type are rounded to `float16`.
    Round(DType),
    /// Each cell but the first is stored as its difference to the previous one.
    Sums(DType),
    /// The same, with each sum rounded to `float16`.
    HalfSums,
    Scaled(Scaled),
    /// Truth values are stored as bits.
    Bits,
}

/// Codecs that were removed from the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Steps {
    /// Undoes the codecs, in the order of encoding.
    list: Vec<Step>,
    /// The type of the stored cells.
    pub(crate) stored: Raw,
    /// NumPy's name of it, with the byte order.
    pub(crate) name: String,
    /// The type of the array.
    pub(crate) dtype: DType,
    /// True if stored cells have the first axis of a chunk fastest: they are put into the order of rows at the end.
    pub(crate) is_fortran: bool,
}

/// The name of a codec, without `numcodecs.`, if it is one of these. In Zarr v3 `packbits` alone is another codec.
fn name_of(codec: &Value) -> Option<&str> {
    if let Some(id) = codec.get("id").and_then(Value::as_str) {
        return NAMES.contains(&id).then_some(id);
    }
    let name = codec.get("name").unwrap_or(codec).as_str()?;
    let is_same = ["fixedscaleoffset", "bitround"].contains(&name);
    let name = if is_same { name } else { name.strip_prefix("numcodecs.")? };
    NAMES.contains(&name).then_some(name)
}

/// Number of the codecs at the begin of a list that are among these.
pub(crate) fn count(list: &[Value]) -> usize {
    list.iter().take_while(|codec| name_of(codec).is_some()).count()
}

/// The first codec of a list that is among these and has no standing in zarrs.
pub(crate) fn misplaced(list: &[Value]) -> Option<&str> {
    list.iter().filter_map(name_of).find(|name| *name != "bitround")
}

/// NumPy's type of a name, and the name with its byte order: `float64`, `f8` and `<f8` are the same.
pub(crate) fn numpy_type(name: &str) -> Option<(Raw, String)> {
    let full = match name {
        "bool" => "|b1".to_string(),
        _ if name.starts_with(['<', '>', '|', '=']) => name.to_string(),
        _ => {
            let (kind, bits) = [("float", "f"), ("uint", "u"), ("int", "i")]
                .iter()
                .find_map(|(long, short)| Some((*short, name.strip_prefix(*long)?)))
                .unwrap_or(("", name));
            let short = match kind.is_empty() {
                true => name.to_string(),
                false => format!("{kind}{}", bits.parse::<u32>().ok()? / 8),
            };
            let order = if short.ends_with('1') { '|' } else { '<' };
            format!("{order}{short}")
        }
    };
    Some((Raw::parse_numpy(&full)?.0, full))
}

impl Steps {
    /// Parses the codecs of an array of `raw`, whose NumPy name is `name`; `None` if they change nothing when they are
    /// undone. `is_fortran`: see [`Steps::is_fortran`].
    ///
    /// # Errors
    /// The codec that is not supported, and why.
    pub(crate) fn parse(
        list: &[Value],
        raw: &Raw,
        name: &str,
        is_fortran: bool,
    ) -> Result<Option<Steps>, String> {
        let dtype = raw.dtype().ok_or("codecs of numbers for an array of texts")?;
        let (stored, own) = (raw.clone(), name);
        let name = own.to_string();
        let mut out = Steps { list: Vec::new(), stored, name, dtype, is_fortran };
        for codec in list {
            let name = name_of(codec).unwrap_or_default();
            // In Zarr v2 the configuration is beside the name.
            let config = match codec.get("configuration") {
                Some(config) => config.as_object().cloned(),
                None => codec.as_object().cloned(),
            };
            out.add(name, &config.unwrap_or_default())
                .map_err(|reason| format!("codec `{name}`: {reason}; it"))?;
        }
        // The stored type counts without a step, too: `float16` is widened, `>f4` is another order of bytes.
        let is_stored = out.stored == *raw && out.name == own;
        Ok((!out.list.is_empty() || !is_stored).then_some(out))
    }

    fn add(&mut self, name: &str, config: &Map<String, Value>) -> Result<(), String> {
        let named = |key: &str| config.get(key).filter(|v| !v.is_null());
        let type_of = |key: &str| match named(key) {
            None => Ok(None),
            Some(v) => match v.as_str().and_then(numpy_type) {
                Some(found) => Ok(Some(found)),
                None => Err(format!("`{key}` is {v}")),
            },
        };
        let own = |found: &Option<(Raw, String)>, key: &str| match found {
            Some((raw, name)) if *raw != self.stored => {
                Err(format!("`{key}` is {name}, the cells before it are {}", self.name))
            }
            _ => Ok(()),
        };
        match name {
            "bitround" => Ok(()),
            "quantize" => {
                own(&type_of("dtype")?, "dtype")?;
                self.cast(type_of("astype")?)
            }
            "astype" => {
                own(&type_of("decode_dtype")?, "decode_dtype")?;
                self.cast(type_of("encode_dtype")?)
            }
            "delta" => {
                own(&type_of("dtype")?, "dtype")?;
                self.differences(type_of("astype")?)
            }
            "fixedscaleoffset" => {
                let dtype = self.stored.dtype().ok_or("cells of texts")?;
                let scaled = Scaled::parse(config, dtype)?;
                (self.stored, self.name) = (scaled.stored.clone(), scaled.name.clone());
                self.list.push(Step::Scaled(scaled));
                Ok(())
            }
            "packbits" => {
                if self.stored != Raw::Plain(DType::Bool) {
                    return Err(format!("cells of {}", self.name));
                }
                (self.stored, self.name) = (Raw::Plain(DType::UInt8), "|u1".into());
                self.list.push(Step::Bits);
                Ok(())
            }
            _ => Err("it is not known".into()),
        }
    }

    /// Cells are stored in the type `stored`, if it is another one.
    fn cast(&mut self, stored: Option<(Raw, String)>) -> Result<(), String> {
        let Some((raw, name)) = stored else { return Ok(()) };
        if raw != self.stored && !(is_number(&raw) && is_number(&self.stored)) {
            return Err(format!("cells of {} stored as {name}", self.name));
        }
        self.list.extend(converted(&raw, &self.stored));
        (self.stored, self.name) = (raw, name);
        Ok(())
    }

    /// Differences of cells are stored, in the type `stored`.
    fn differences(&mut self, stored: Option<(Raw, String)>) -> Result<(), String> {
        let own = self.stored.clone();
        let (raw, name) = stored.unwrap_or_else(|| (own.clone(), self.name.clone()));
        if !is_number(&own) || own == Raw::Plain(DType::Bool) {
            return Err(format!("cells of {}", self.name));
        }
        if !is_number(&raw) {
            return Err(format!("cells of {} stored as {name}", self.name));
        }
        let wide = of_sums(&own, &raw);
        self.list.extend(converted(&wide, &own));
        self.list.push(match &wide {
            Raw::Plain(dtype) => Step::Sums(*dtype),
            _ => Step::HalfSums,
        });
        self.list.extend(converted(&raw, &wide));
        (self.stored, self.name) = (raw, name);
        Ok(())
    }

    /// True if chunks are stored as bytes with the bits of their cells, without axes.
    pub(crate) fn is_packed(&self) -> bool {
        self.list.contains(&Step::Bits)
    }

    /// Number of stored cells of a chunk of `cells` cells.
    pub(crate) fn stored_cells(&self, cells: u64) -> u64 {
        if self.is_packed() { 1 + cells.div_ceil(8) } else { cells }
    }

    /// Decodes stored cells in native byte order to those of a chunk of the array, which has the shape `unit`.
    pub(crate) fn undo<'a>(
        &self,
        stored: Cow<'a, [u8]>,
        unit: &[u64],
    ) -> Result<Cow<'a, [u8]>, String> {
        let cells = unit.iter().product::<u64>() as usize;
        let mut now = self.stored.convert(stored);
        for step in self.list.iter().rev() {
            now = match step {
                Step::Cast { from, to } => Cow::Owned(cast(&now, *from, *to)),
                Step::Round(from) => Cow::Owned(rounded(&now, *from)),
                Step::Sums(dtype) => Raw::Plain(*dtype).sum_up(now),
                Step::HalfSums => Cow::Owned(half_sums(&now)),
                Step::Scaled(scaled) => scaled.undo(&now),
                Step::Bits => Cow::Owned(unpacked(&now, cells)?),
            };
        }
        match self.is_fortran {
            true => Ok(Cow::Owned(in_rows(&now, unit, self.dtype.size()))),
            false => Ok(now),
        }
    }
}

/// Cells of a chunk with its last axis fastest, of those with its first axis fastest.
fn in_rows(cells: &[u8], unit: &[u64], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(cells.len());
    let mut at = vec![0u64; unit.len()];
    for _ in 0..cells.len() / size.max(1) {
        let from = at.iter().zip(unit).rev().fold(0u64, |n, (i, len)| n * len + i) as usize * size;
        out.extend_from_slice(cells.get(from..from + size).unwrap_or_default());
        for (i, len) in at.iter_mut().zip(unit).rev() {
            *i += 1;
            if *i < *len {
                break;
            }
            *i = 0;
        }
    }
    out
}

fn is_number(raw: &Raw) -> bool {
    match raw {
        Raw::Plain(dtype) => dtype.is_numeric() || *dtype == DType::Bool,
        Raw::Half => true,
        _ => false,
    }
}

/// The step that converts numbers; `None` if they are the same in memory.
fn converted(from: &Raw, to: &Raw) -> Option<Step> {
    let (a, b) = (from.dtype()?, to.dtype()?);
    match to {
        Raw::Half => (*from != Raw::Half).then_some(Step::Round(a)),
        _ => (a != b).then_some(Step::Cast { from: a, to: b }),
    }
}

/// The type in which differences are summed up. For floats it is the one to which NumPy promotes both, as in numcodecs;
/// sums of integers go around in the type of the array, whatever stores them.
fn of_sums(own: &Raw, stored: &Raw) -> Raw {
    let is_float = |raw: &Raw| raw.dtype().is_some_and(DType::is_float);
    if !is_float(own) {
        return own.clone();
    }
    // `float16` has all integers of one byte, `float32` those of two, and of others NumPy makes `float64`.
    let least = |raw: &Raw| if is_float(raw) { raw.size() } else { 2 * raw.size() };
    match least(own).max(least(stored)) {
        2 => Raw::Half,
        4 => Raw::Plain(DType::Float32),
        _ => Raw::Plain(DType::Float64),
    }
}

/// Cells of `from` as `float32`, rounded to `float16`.
fn rounded(cells: &[u8], from: DType) -> Vec<u8> {
    let halves = scalars(cells, from).map(|cell| f16::from_f64(cell.as_f64()));
    halves.flat_map(|half| half.to_f32().to_ne_bytes()).collect()
}

/// The sums of differences of `float16`, both as `float32`.
fn half_sums(cells: &[u8]) -> Vec<u8> {
    let mut sum: Option<f32> = None;
    let mut out = Vec::with_capacity(cells.len());
    for cell in cells.as_chunks::<4>().0 {
        let cell = f32::from_ne_bytes(*cell);
        let now = sum.map_or(cell, |sum| f16::from_f32(sum + cell).to_f32());
        sum = Some(now);
        out.extend_from_slice(&now.to_ne_bytes());
    }
    out
}

/// Converts cells as NumPy's `astype`.
fn cast(cells: &[u8], from: DType, to: DType) -> Vec<u8> {
    let mut out = Vec::with_capacity(cells.len() / from.size().max(1) * to.size());
    for cell in scalars(cells, from) {
        out.extend_from_slice(&native_bytes(cell.cast(to))[..to.size()]);
    }
    out
}

/// The truth values in bytes: the number of unused bits at the end, then the bits, highest first.
fn unpacked(bytes: &[u8], cells: usize) -> Result<Vec<u8>, String> {
    let padding = (8 - cells % 8) % 8;
    match bytes.split_first() {
        Some((first, bits))
            if usize::from(*first) == padding && bits.len() == cells.div_ceil(8) =>
        {
            Ok((0..cells).map(|i| bits[i / 8] >> (7 - i % 8) & 1).collect())
        }
        Some((first, bits)) => Err(format!(
            "packbits: {} bytes without their last {first} bits, expected {cells} bits",
            bits.len()
        )),
        None => Err("packbits: no bytes".into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    fn steps(list: &Value, name: &str) -> Result<Option<Steps>, String> {
        let (raw, name) = numpy_type(name).unwrap();
        Steps::parse(list.as_array().unwrap(), &raw, &name, false)
    }

    #[test]
    fn types_have_several_names() {
        for names in [["float64", "f8", "<f8"], ["uint16", "u2", "<u2"], ["int8", "i1", "|i1"]] {
            let of = |name: &str| numpy_type(name).unwrap();
            assert!(of(names[0]) == of(names[2]) && of(names[1]) == of(names[2]), "{names:?}");
        }
        assert_eq!(numpy_type("bool").unwrap().0, Raw::Plain(DType::Bool));
        assert_eq!((numpy_type("float"), numpy_type("<q"), numpy_type("")), (None, None, None));
    }

    #[test]
    fn differences_are_summed_up_in_the_type_of_the_array() {
        // numcodecs.Delta("<i8", "<i2").encode([300, 301, -5]) is [300, 1, -306] of int16.
        let list = json!([{"name": "numcodecs.delta",
            "configuration": {"dtype": "<i8", "astype": "<i2"}}]);
        let steps = steps(&list, "<i8").unwrap().unwrap();
        assert_eq!((steps.name.as_str(), steps.dtype), ("<i2", DType::Int64));
        let stored: Vec<u8> = [300i16, 1, -306].into_iter().flat_map(i16::to_ne_bytes).collect();
        let want: Vec<u8> = [300i64, 301, -5].into_iter().flat_map(i64::to_ne_bytes).collect();
        assert_eq!(*steps.undo(Cow::Owned(stored), &[3]).unwrap(), want[..]);
    }

    #[test]
    fn halves_are_rounded_as_numcodecs_rounds_them() {
        let halves = |all: &[u16]| all.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let floats = |all: &[f32]| all.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
        let undone = |list: &Value, name: &str, stored: Vec<u8>, n: u64| -> Vec<f32> {
            let steps = steps(list, name).unwrap().unwrap();
            let cells = steps.undo(Cow::Owned(stored), &[n]).unwrap();
            cells.as_chunks::<4>().0.iter().map(|c| f32::from_ne_bytes(*c)).collect()
        };
        // numcodecs 0.16.6: Delta("<f2"), Delta("<f2", "<f4") and Delta("<f4", "<f2") of
        // [0.1, 1000.3, 3.7, -2048.5, 0.02].
        let plain = json!([{"id": "delta", "dtype": "<f2", "astype": null}]);
        let stored = halves(&[11878, 25553, 58314, 59394, 26624]);
        let want: [f32; 5] = [0.099_975_586, 1000.5, 3.5, -2048.0, 0.0];
        assert_eq!(undone(&plain, "<f2", stored, 5), want);
        let wide = json!([{"id": "delta", "dtype": "<f2", "astype": "<f4"}]);
        let stored = floats(&[0.099_975_586, 1000.5, -997.0, -2052.0, 2048.0]);
        let want: [f32; 5] = [0.099_975_586, 1000.5, 3.599_609_4, -2048.0, -0.399_902_34];
        assert_eq!(undone(&wide, "<f2", stored, 5), want);
        let narrow = json!([{"id": "delta", "dtype": "<f4", "astype": "<f2"}]);
        let stored = halves(&[11878, 25552, 58313]);
        let want: [f32; 3] = [0.099_975_586, 1000.1, 3.599_975_6];
        assert_eq!(undone(&narrow, "<f4", stored, 3), want);
        // FixedScaleOffset(3, 10, "<f2", "|i1") of [3.1, 4.7, 2.35], AsType("<f4", "<f2") of [0.1, 70000, 1e-8].
        let scaled = |stored: &str| json!([{"id": "fixedscaleoffset", "offset": 3, "scale": 10, "dtype": "<f2", "astype": stored}]);
        let want: [f32; 3] = [3.099_609_4, 4.699_218_8, 2.300_781_2];
        assert_eq!(undone(&scaled("|i1"), "<f2", vec![1, 17, 249], 3), want);
        assert_eq!(undone(&scaled("<f4"), "<f2", floats(&[1.0, 17.0, -7.0]), 3), want);
        assert_eq!(undone(&scaled("<f2"), "<f2", halves(&[15360, 19520, 50944]), 3), want);
        let cast = json!([{"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<f2"}]);
        let want: [f32; 3] = [0.099_975_586, f32::INFINITY, 0.0];
        assert_eq!(undone(&cast, "<f2", floats(&[0.1, 70000.0, 1e-8]), 3), want);
        // AsType("<f2", "<f4") and Quantize(2, "<f4", "<f2") of [0.1, 1000.3, 3.7].
        let cast = json!([{"id": "astype", "encode_dtype": "<f2", "decode_dtype": "<f4"}]);
        let want: [f32; 3] = [0.099_975_586, 1000.5, 3.699_218_8];
        assert_eq!(undone(&cast, "<f4", halves(&[11878, 25553, 17254]), 3), want);
        let quantized = json!([{"id": "quantize", "digits": 2, "dtype": "<f4", "astype": "<f2"}]);
        let want: [f32; 3] = [0.101_562_5, 1000.5, 3.703_125];
        assert_eq!(undone(&quantized, "<f4", halves(&[11904, 25553, 17256]), 3), want);
        // FixedScaleOffset(1.5, 4, "<f4", "<f2"), then Delta("<f2"), of [1.5, 2.1, 7.3].
        let both = json!([
            {"id": "fixedscaleoffset", "offset": 1.5, "scale": 4, "dtype": "<f4", "astype": "<f2"},
            {"id": "delta", "dtype": "<f2"},
        ]);
        assert_eq!(undone(&both, "<f4", halves(&[0, 16384, 19776]), 3), [1.5, 2.0, 7.25]);
    }

    #[test]
    fn truth_values_are_unpacked() {
        // numcodecs.PackBits().encode([1, 0, 0, 1, 1, 1, 0, 0, 1, 0]) is [6, 156, 128].
        let packed = steps(&json!([{"id": "packbits"}]), "|b1").unwrap().unwrap();
        assert_eq!((packed.stored_cells(10), packed.dtype), (3, DType::Bool));
        let cells = packed.undo(Cow::Borrowed(&[6, 156, 128]), &[10]).unwrap();
        assert_eq!(*cells, [1, 0, 0, 1, 1, 1, 0, 0, 1, 0]);
        assert!(packed.undo(Cow::Borrowed(&[5, 156, 128]), &[10]).is_err());
        assert!(packed.undo(Cow::Borrowed(&[]), &[10]).is_err());
    }

    #[test]
    fn columns_become_rows() {
        // np.arange(24, dtype="u2").reshape(2, 3, 4).tobytes("F") is the input.
        let at = |i: u16, j: u16, k: u16| 12 * i + 4 * j + k;
        let columns =
            (0..4).flat_map(|k| (0..3).flat_map(move |j| (0..2).map(move |i| at(i, j, k))));
        let bytes: Vec<u8> = columns.flat_map(u16::to_ne_bytes).collect();
        let want: Vec<u8> = (0..24u16).flat_map(u16::to_ne_bytes).collect();
        assert_eq!(in_rows(&bytes, &[2, 3, 4], 2), want);
        assert_eq!(in_rows(&[7, 8], &[], 2), [7, 8]);
    }

    #[test]
    fn steps_without_effect_are_omitted() {
        let list = json!([{"id": "bitround", "keepbits": 4},
            {"id": "quantize", "digits": 1, "dtype": "float32", "astype": null}]);
        assert_eq!(steps(&list, "<f4"), Ok(None));
        // Another order of bytes is no step of the list: it stays in the metadata.
        let list = json!([{"id": "astype", "encode_dtype": ">f4", "decode_dtype": "<f4"}]);
        assert_eq!(steps(&list, "<f4").unwrap().unwrap().name, ">f4");
        let list = json!([{"id": "quantize", "digits": 1, "dtype": "float32", "astype": null}]);
        let e = steps(&list, "<f8").unwrap_err();
        assert_eq!(e, "codec `quantize`: `dtype` is <f4, the cells before it are <f8; it");
        assert!(steps(&json!([{"id": "packbits"}]), "|u1").is_err());
        assert!(steps(&json!([{"id": "delta", "dtype": "|b1"}]), "|b1").is_err());
    }
}
