//! Each message is a part of an array with its names and coordinates.

use super::*;
use serde_json::Value;
use std::collections::BTreeMap;
use tessera_planner::time::format_micros;

/// Messages by their files.
fn expected() -> BTreeMap<String, Vec<Value>> {
    let text = std::fs::read_to_string(path("expected.jsonl")).unwrap();
    let mut out: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        out.entry(row["file"].as_str().unwrap().into()).or_default().push(row);
    }
    out
}

/// The position of the message in an array; `None` if the array is of another parameter or has no such coordinates.
fn position(opened: &Opened, v: &Variable, row: &Value) -> Option<Vec<u64>> {
    let attr = |name: &str| v.attrs.get(name);
    let codes = match row["edition"].as_u64().unwrap() {
        1 => ["GRIB_table2Version", "GRIB_indicatorOfParameter"].as_slice(),
        _ => &["GRIB_discipline", "GRIB_parameterCategory", "GRIB_parameterNumber"],
    };
    let is_same = codes.iter().zip(row["codes"].as_array().unwrap());
    if !is_same.into_iter().all(|(name, code)| attr(name) == Some(code)) {
        return None;
    }
    let level_type = row["typeOfLevel"].as_str().unwrap();
    let level_name = attr("GRIB_typeOfLevel").and_then(Value::as_str).unwrap_or_default();
    if level_type != "unknown" && level_type != level_name
        || attr("GRIB_stepType") != Some(&row["stepType"])
        || attr("GRIB_gridType") != Some(&row["gridType"])
    {
        return None;
    }
    let moment = |s: i64| format_micros(s * 1_000_000, tessera_planner::dtype::Calendar::Standard);
    let (time, step) = (row["time"].as_i64().unwrap(), row["step"].as_i64().unwrap());
    let unit = |opened: &Opened| {
        let coord = opened.dataset.coords.iter().find(|c| &*c.name == "step").unwrap();
        match coord.attrs["units"].as_str().unwrap() {
            "hours" => 3600.0,
            "minutes" => 60.0,
            _ => 1.0,
        }
    };
    let shape: Vec<u64> =
        row["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let header = v.dims.len().checked_sub(shape.len())?;
    if v.source.shape[header..] != shape[..] {
        return None;
    }
    let mut out = Vec::new();
    for dim in &dims(v)[..header] {
        let want = match *dim {
            "number" => row["number"].as_f64()?,
            "time" => time as f64,
            "step" => step as f64 / unit(opened),
            _ => row["level"].as_f64()?,
        };
        let labels = labels(opened, dim).unwrap();
        out.push(labels.iter().position(|l| *l == want)? as u64);
    }
    let has = |dim: &str| dims(v).contains(&dim);
    let is_level = || {
        let level = attr(level_name).and_then(Value::as_f64);
        level.is_none_or(|l| Some(l) == row["level"].as_f64())
    };
    let is_step = || {
        let text = attr("step").and_then(Value::as_str).unwrap_or_default();
        let (n, unit) = text.split_once(' ').unwrap();
        let each = BTreeMap::from([("hours", 3600), ("minutes", 60), ("seconds", 1)])[unit];
        n.parse::<i64>().unwrap() * each == step
    };
    ((has("number") || attr("number").is_none_or(|n| *n == row["number"]))
        && (has("time") || attr("time").and_then(Value::as_str) == Some(&moment(time)))
        && (has("step") || is_step())
        && (has(level_name) || is_level()))
    .then_some(out)
}

/// The names and units of the table are those of the reference implementation.
fn check_names(v: &Variable, row: &Value) {
    let of = |key: &str| row[key].as_str().unwrap_or_default();
    if of("shortName") == "unknown" || !v.attrs.contains_key("GRIB_paramId") {
        return;
    }
    let what = format!("{} of {row}", v.name);
    assert_eq!(v.attrs["GRIB_paramId"], row["paramId"], "{what}");
    assert_eq!(v.attrs["GRIB_shortName"], of("shortName"), "{what}");
    assert_eq!(v.attrs["GRIB_cfVarName"], of("cfVarName"), "{what}");
    assert_eq!(v.attrs["units"], of("units"), "{what}");
    assert_eq!(v.attrs["long_name"], of("name"), "{what}");
    assert!(v.name.starts_with(of("cfVarName")), "{what}");
}

fn check_points(opened: &Opened, v: &Variable, row: &Value) {
    let dims = dims(v);
    let (lat, lon) = match dims[..] {
        [.., a, b] if a.starts_with("latitude") => (a, b),
        [.., a, _] if a.starts_with('y') => (a, a),
        [.., a] => (a, a),
        [] => return,
    };
    let numbers = |v: &Value| -> Vec<f64> {
        v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    };
    let crc = |v: &[f64]| {
        let bytes: Vec<u8> = v.iter().flat_map(|v| v.to_le_bytes()).collect();
        u64::from(crc32fast::hash(&bytes))
    };
    let is_gaussian = row["gridType"] == "regular_gg";
    let is_near = |a: &[f64], b: &[f64], most: f64| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= most)
    };
    if let Some(axes) = row.get("axes") {
        let most = if is_gaussian { 1e-10 } else { 0.0 };
        for (i, dim) in [lat, lon].into_iter().enumerate() {
            let (got, want) = (labels(opened, dim).unwrap(), numbers(&axes[i]));
            assert!(is_near(&got, &want, most), "{dim} of {row}: {got:?}");
        }
    } else if let Some(digests) = row.get("axes_crc") {
        let got = [labels(opened, lat).unwrap(), labels(opened, lon).unwrap()];
        let ends = numbers(&row["ends"]);
        for i in 0..2 {
            assert_eq!(got[i].len() as u64, row["n"][i].as_u64().unwrap(), "{row}");
            let (first, last) = (got[i][0], *got[i].last().unwrap());
            assert!(is_near(&[first, last], &ends[2 * i..2 * i + 2], 1e-10), "{row}: {:?}", got[i]);
            assert!(
                is_gaussian || crc(&got[i]) == digests[i].as_u64().unwrap(),
                "{row}: {:?}",
                got[i]
            );
        }
    } else if let Some(points) = row.get("points") {
        let suffix = lat.trim_start_matches(['y', 'x']).trim_start_matches("values");
        let coords: Vec<Vec<f64>> = ["latitude", "longitude"]
            .map(|name| {
                let name = format!("{name}{suffix}");
                let label = opened.dataset.coords.iter().find(|c| *c.name == *name);
                match label.map(|c| &c.values) {
                    Some(CoordValues::Float(_, v)) => v.to_vec(),
                    _ => doubles(&cells(opened, &name).unwrap()),
                }
            })
            .into();
        // On rotated spheres the reference implementation rounds in float32.
        let most = if row["gridType"] == "rotated_ll" { 1e-5 } else { 1e-9 };
        for point in points.as_array().unwrap() {
            let point = numbers(point);
            let i = point[0] as usize;
            let turn = (coords[1][i] - point[2]).rem_euclid(360.0);
            let is_near = (coords[0][i] - point[1]).abs() <= most && turn.min(360.0 - turn) <= most;
            assert!(is_near, "{row}: {point:?}, {} {}", coords[0][i], coords[1][i]);
        }
    }
}

#[test]
fn messages_are_eccodes() {
    let mut count = 0;
    let mut failures = Vec::new();
    for (file, rows) in expected() {
        let opened = match opened(&path(&file)) {
            Ok(opened) => opened,
            Err(e) => {
                failures.push(format!("{file}: {e}"));
                continue;
            }
        };
        for row in rows {
            if row["gridType"] == "sh" {
                assert!(opened.unsupported.values().any(|e| e.to_string().contains("spherical")));
                continue;
            }
            let found: Vec<_> = opened
                .dataset
                .variables
                .iter()
                .filter_map(|v| Some((v, position(&opened, v, &row)?)))
                .collect();
            if found.is_empty() {
                let all: Vec<_> =
                    opened.dataset.variables.iter().map(|v| (&v.name, dims(v))).collect();
                failures.push(format!("no array of {row}; {all:?} {:?}", opened.unsupported));
            }
            let mut wrong = Vec::new();
            let mut is_found = false;
            for (v, mut start) in found {
                let header = start.len();
                start.resize(v.source.shape.len(), 0);
                let mut len = v.source.shape.clone();
                len[..header].fill(1);
                let reader = opened.reader(&v.source).unwrap();
                let got = match read(reader, &at(&start, &len)) {
                    Ok(got) => got,
                    Err(e) => {
                        wrong.push(format!("{row}: {e}"));
                        continue;
                    }
                };
                if u64::from(crc32fast::hash(&got)) != row["crc"].as_u64().unwrap() {
                    let got = floats(&got);
                    let samples = row["samples"].as_array().unwrap().iter();
                    let at: Vec<f32> =
                        samples.map(|s| got[s[0].as_u64().unwrap() as usize]).collect();
                    wrong.push(format!("{row}: {at:?}"));
                    continue;
                }
                check_names(v, &row);
                check_points(&opened, v, &row);
                is_found = true;
            }
            if !is_found {
                failures.extend(wrong);
            }
            count += 1;
        }
    }
    assert!(failures.is_empty(), "{} of {count}:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 150, "{count}");
}
