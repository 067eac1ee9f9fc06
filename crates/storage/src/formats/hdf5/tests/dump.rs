//! Prints all of a file, for comparison with other readers.
#![allow(clippy::print_stdout, reason = "it is a tool")]

use crate::formats::hdf5::Hdf5;
use crate::formats::view::View;
use crate::formats::{Format, Group};
use crate::source::{Opened, Options, Stores, open};
use serde_json::{Value, json};
use std::time::Duration;
use tessera_planner::catalog::CoordValues;
use tessera_planner::region::Region;

fn run<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f)
}

fn described(group: &Group) -> Value {
    let arrays = group.arrays.iter().map(|(name, array)| {
        let value = match array {
            Ok(a) => json!({
                "shape": a.shape.to_vec(), "attrs": a.attrs, "narrow": a.narrow,
                "dims": a.dims.iter().map(|d| d.as_deref().map(str::to_string)).collect::<Vec<_>>(),
                "raw": format!("{:?}", a.raw),
            }),
            Err(e) => json!({ "error": format!("{:?}", e.why) }),
        };
        (name.clone(), value)
    });
    json!({ "arrays": arrays.collect::<serde_json::Map<_, _>>(), "groups": group.groups, "attrs": group.attrs })
}

fn cells(opened: &Opened) -> serde_json::Map<String, Value> {
    let mut out = serde_json::Map::new();
    let variables = opened.dataset.variables.iter().chain(&opened.dataset.auxiliary);
    for v in variables {
        let reader = opened.reader(&v.source).unwrap();
        let region = Region::whole(&v.source.shape);
        let mut bytes = vec![0xA5; region.cells() as usize * v.source.dtype.size()];
        let done = run(reader.fetch(&region)).and_then(|f| reader.decode(f, &region, &mut bytes));
        let value = match done {
            Ok(()) => {
                json!({ "dtype": v.source.dtype.to_string(), "crc": crc32fast::hash(&bytes) })
            }
            Err(e) => json!({ "error": e.to_string() }),
        };
        out.insert(v.name.to_string(), value);
    }
    for c in &opened.dataset.coords {
        let value = match &c.values {
            CoordValues::Int(d, v) => json!({ "dtype": d.to_string(), "labels": &v[..] }),
            CoordValues::Float(d, v) => {
                let bytes: Vec<u8> = v.iter().flat_map(|v| v.to_le_bytes()).collect();
                json!({ "dtype": d.to_string(), "crc64": crc32fast::hash(&bytes) })
            }
            CoordValues::Text(v) => json!({ "labels": &v[..] }),
            other => json!({ "error": format!("{other:?}") }),
        };
        out.insert(c.name.to_string(), value);
    }
    for (name, e) in &opened.unsupported {
        out.entry(name.clone()).or_insert(json!({ "error": e.to_string() }));
    }
    out
}

/// `HDF5_FILES` has paths, one a line; a line of JSON is printed for each group.
#[test]
#[ignore = "a tool"]
fn dump() {
    let list = std::fs::read_to_string(std::env::var("HDF5_FILES").unwrap()).unwrap();
    let stores = Stores::with_environment(Duration::from_secs(30), []);
    for path in list.lines() {
        let bytes = std::fs::read(path).unwrap();
        let mut groups = vec![String::new()];
        while let Some(group) = groups.pop() {
            let view = View::whole(&bytes);
            let mut line = json!({ "path": path, "group": group });
            let all = bytes::Bytes::copy_from_slice(&bytes);
            let (_, turns, fetched) =
                crate::formats::view::in_turns(&all, |view| Hdf5.read(view, &group));
            println!("turns {turns} fetched {fetched} of {} {path}#{group}", bytes.len());
            match Hdf5.read(&view, &group) {
                Ok(Some(found)) => {
                    for (name, a) in &found.arrays {
                        let Ok(crate::formats::FileArray {
                            shape,
                            cells: crate::formats::Cells::Chunks(c),
                            ..
                        }) = a
                        else {
                            continue;
                        };
                        let counts: Vec<u64> =
                            shape.iter().zip(&c.unit).map(|(n, u)| n.div_ceil(*u)).collect();
                        let count: u64 = counts.iter().product();
                        let at = |mut i: u64| {
                            let mut at = counts.clone();
                            for (a, n) in counts.iter().enumerate().rev() {
                                at[a] = i % n;
                                i /= n;
                            }
                            at.into_iter().collect()
                        };
                        let units: Vec<tessera_planner::region::Dims> =
                            (0..count.min(100_000)).map(at).collect();
                        let (_, turns, fetched) =
                            crate::formats::view::in_turns(&all, |view| c.index.find(view, &units));
                        let (_, turns1, fetched1) = crate::formats::view::in_turns(&all, |view| {
                            c.index.find(view, &units[units.len() / 2..][..1])
                        });
                        if turns > 1 {
                            println!(
                                "find {} of {count}: {turns} turns, {fetched} bytes; one: {turns1}, {fetched1} {path} {name}",
                                units.len()
                            );
                        }
                    }
                    line["meta"] = described(&found);
                    if group.split('/').count() < 8 {
                        let child = |g: &String| {
                            if group.is_empty() { g.clone() } else { format!("{group}/{g}") }
                        };
                        groups.extend(found.groups.iter().map(child));
                    }
                    let options = Options { decode_cf: false, ..Options::default() };
                    match run(open(&format!("{path}#{group}"), &options, &stores)) {
                        Ok(opened) => line["cells"] = cells(&opened).into(),
                        Err(e) => line["error"] = e.to_string().into(),
                    }
                }
                other => line["error"] = format!("{other:?}").into(),
            }
            println!("@{line}");
        }
    }
}
