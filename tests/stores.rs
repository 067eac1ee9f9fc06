//! Arrays that cannot be read, of every cause: as a coordinate and as a variable, in both formats of Zarr, with
//! consolidated metadata and without. They are errors when they are used, and nowhere else.

use crate::common::Place;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tessera_engine::error::Error;
use tessera_engine::format::{Format, Options, Writer};

/// A fault of an array: changes of its metadata, its chunk, and the error that names it.
struct Cause {
    name: &'static str,
    /// Changes of `.zarray`, or `None` if Zarr v2 does not have it.
    v2: Option<Value>,
    /// Changes of `zarr.json`.
    v3: Option<Value>,
    attrs: Value,
    chunk: Vec<u8>,
    code: &'static str,
    says: &'static str,
}

/// Four numbers of float64.
fn cells() -> Vec<u8> {
    [2.0f64, 4.0, 6.0, 8.0].iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn causes() -> Vec<Cause> {
    let cause =
        |name, v2, v3, attrs, code, says| Cause { name, v2, v3, attrs, chunk: cells(), code, says };
    let codec = |name: &str| json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": name, "configuration": {}}]});
    let none = || json!({});
    let times = |units: &str, calendar: &str| json!({"units": units, "calendar": calendar});
    let mut all = vec![
        cause(
            "complex",
            Some(json!({"dtype": "<c16"})),
            Some(json!({"data_type": "complex128", "fill_value": [0.0, 0.0]})),
            none(),
            "unsupported_dtype",
            "dtype",
        ),
        cause(
            "object",
            Some(json!({"dtype": "|O"})),
            Some(json!({"data_type": "variable_length_bytes", "fill_value": ""})),
            none(),
            "unsupported_dtype",
            "dtype",
        ),
        cause(
            "codec",
            Some(json!({"compressor": {"id": "lzma"}})),
            Some(codec("numcodecs.lzma")),
            none(),
            "unsupported",
            "lzma",
        ),
        cause(
            "filter",
            Some(json!({"filters": [{"id": "categorize"}]})),
            None,
            none(),
            "unsupported",
            "categorize",
        ),
        cause(
            "extension",
            None,
            Some(json!({"sparse": {"must_understand": true}})),
            none(),
            "unsupported",
            "sparse",
        ),
        cause(
            "unmarked_extension",
            None,
            Some(json!({"sparse": {"name": "sparse"}})),
            none(),
            "unsupported",
            "sparse",
        ),
        cause(
            "transformer",
            None,
            Some(json!({"storage_transformers": [{"name": "shuffled"}]})),
            none(),
            "unsupported",
            "shuffled",
        ),
        cause(
            "shape",
            Some(json!({"shape": [-4]})),
            Some(json!({"shape": [-4]})),
            none(),
            "invalid_metadata",
            "-4",
        ),
        cause(
            "calendar_none",
            Some(none()),
            Some(none()),
            times("days since 2000-01-01", "none"),
            "invalid_metadata",
            "none",
        ),
        cause(
            "units",
            Some(none()),
            Some(none()),
            times("fortnights since 2000-01-01", "standard"),
            "invalid_metadata",
            "fortnights",
        ),
        cause(
            "attribute",
            Some(none()),
            Some(none()),
            json!({"scale_factor": "much"}),
            "invalid_metadata",
            "scale_factor",
        ),
    ];
    let chunked = |name, attrs, chunk, dtype: &str, v3: Value, code, says| Cause {
        name,
        v2: Some(json!({"dtype": dtype})),
        v3: Some(v3),
        attrs,
        chunk,
        code,
        says,
    };
    let float = || json!({"data_type": "float64"});
    let times = |values: [f64; 4]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let days = || json!({"units": "days since 2000-01-01"});
    all.push(chunked(
        "short_chunk",
        none(),
        vec![1, 2, 3],
        "<f8",
        float(),
        "corrupt_chunk",
        "3 bytes",
    ));
    all.push(chunked(
        "infinite_time",
        days(),
        times([0.0, f64::INFINITY, 2.0, 3.0]),
        "<f8",
        float(),
        "invalid_time",
        "inf",
    ));
    all.push(chunked(
        "far_time",
        days(),
        [0i64, 1, 1 << 40, 3].iter().flat_map(|v| v.to_le_bytes()).collect(),
        "<i8",
        json!({"data_type": "int64", "fill_value": 0}),
        "invalid_time",
        "1099511627776",
    ));
    all.push(chunked(
        "nanoseconds",
        none(),
        [0i64, 1, 2, 1000].iter().flat_map(|v| v.to_le_bytes()).collect(),
        "<M8[ns]",
        json!({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1}}, "fill_value": 0}),
        "invalid_time",
        "microsecond",
    ));
    all
}

/// One array's metadata and chunk.
struct Member {
    name: &'static str,
    document: Value,
    attrs: Value,
    chunk: Vec<u8>,
}

fn member(
    format: u8,
    name: &'static str,
    dim: &str,
    change: Value,
    attrs: Value,
    chunk: Vec<u8>,
) -> Member {
    let mut document = match format {
        2 => json!({
            "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f8", "compressor": null, "filters": null,
            "fill_value": null, "order": "C"
        }),
        _ => json!({
            "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "float64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0.0, "dimension_names": [dim],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]
        }),
    };
    let mut attrs = attrs;
    if format == 2 {
        attrs["_ARRAY_DIMENSIONS"] = json!([dim]);
    }
    for (key, value) in change.as_object().unwrap() {
        document[key] = value.clone();
    }
    Member { name, document, attrs, chunk }
}

fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
    let at = root.join(path);
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, content).unwrap();
}

fn store(root: &Path, format: u8, consolidated: bool, members: &[Member]) {
    let mut all = serde_json::Map::new();
    for m in members {
        let mut document = m.document.clone();
        if format == 2 {
            put(root, &format!("{}/.zarray", m.name), document.to_string());
            put(root, &format!("{}/.zattrs", m.name), m.attrs.to_string());
            put(root, &format!("{}/0", m.name), &m.chunk);
            all.insert(format!("{}/.zarray", m.name), document);
            all.insert(format!("{}/.zattrs", m.name), m.attrs.clone());
        } else {
            document["attributes"] = m.attrs.clone();
            put(root, &format!("{}/zarr.json", m.name), document.to_string());
            put(root, &format!("{}/c/0", m.name), &m.chunk);
            all.insert(m.name.to_string(), document);
        }
    }
    match (format, consolidated) {
        (2, true) => {
            all.insert(".zgroup".into(), json!({"zarr_format": 2}));
            let text = json!({"zarr_consolidated_format": 1, "metadata": all}).to_string();
            put(root, ".zmetadata", text);
        }
        (2, false) => put(root, ".zgroup", r#"{"zarr_format": 2}"#),
        (_, true) => {
            let inline = json!({"kind": "inline", "must_understand": false, "metadata": all});
            let group = json!({
                "zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": inline
            });
            put(root, "zarr.json", group.to_string());
        }
        (_, false) => put(root, "zarr.json", r#"{"zarr_format": 3, "node_type": "group"}"#),
    }
}

/// The answer of a statement, as CSV.
fn text(place: &Place, sql: &str) -> Result<String, Error> {
    let mut writer = Writer::new(Format::Csv, Options::default(), Vec::new())?;
    for reply in place.try_run(sql)? {
        writer.push(reply)?;
    }
    Ok(String::from_utf8(writer.finish()?).unwrap())
}

fn worlds() -> impl Iterator<Item = (u8, bool)> {
    [2, 3].into_iter().flat_map(|format| [false, true].map(|consolidated| (format, consolidated)))
}

/// Runs statements that must fail and statements that must succeed, and returns the exceptions.
fn faults(
    place: &Place,
    url: &str,
    cause: &Cause,
    refused: &[&str],
    answered: &[(&str, &str)],
) -> Vec<String> {
    let mut faults = Vec::new();
    for sql in refused {
        let sql = sql.replace("{}", &format!("'{url}'"));
        match text(place, &sql) {
            Ok(answer) => faults.push(format!("{}: {sql}: {answer}", cause.name)),
            Err(e) => {
                let message = e.render(&sql);
                let names_it = message.contains("`lat`") || message.contains("`bad`");
                if e.code() != cause.code || !names_it || !message.contains(cause.says) {
                    faults.push(format!("{}: {sql}: {message}", cause.name));
                }
            }
        }
    }
    for (sql, want) in answered {
        let sql = sql.replace("{}", &format!("'{url}'"));
        match text(place, &sql) {
            Ok(answer) if answer.contains(want) => {}
            Ok(answer) => faults.push(format!("{}: {sql}: {answer}, expected {want}", cause.name)),
            Err(e) => faults.push(format!("{}: {sql}: {}", cause.name, e.render(&sql))),
        }
    }
    faults
}

#[test]
fn a_coordinate_that_cannot_be_read_is_never_positions() {
    let place = Place::open(&[]);
    let mut wrong = Vec::new();
    for (format, consolidated) in worlds() {
        for cause in causes() {
            let Some(change) = (if format == 2 { &cause.v2 } else { &cause.v3 }) else { continue };
            let root = place.path(&format!("{}{format}{consolidated}.zarr", cause.name));
            let lat = member(
                format,
                "lat",
                "lat",
                change.clone(),
                cause.attrs.clone(),
                cause.chunk.clone(),
            );
            let v = member(format, "v", "lat", json!({}), json!({}), cells());
            store(&root, format, consolidated, &[lat, v]);
            let found = faults(
                &place,
                &root.display().to_string(),
                &cause,
                &[
                    "SELECT v[lat => 2] FROM {}",
                    "SELECT v[lat => 1:3] FROM {}",
                    "SELECT sel(v, lat => 2, method => 'nearest') FROM {}",
                    "SELECT (v * 2)[lat => 2] FROM {}",
                    "WITH w AS (SELECT v + 1 AS u FROM {}) SELECT u[lat => 2] FROM w",
                    "SELECT lat FROM {}",
                    "SELECT v * lat FROM {}",
                    "SELECT groupby(v, 'mean', by => lat) FROM {}",
                    "SELECT sortby(v, 'lat') FROM {}",
                    "SELECT v[0:2] + v[2:4] FROM {}",
                    "SELECT * FROM {}",
                    "SELECT v FROM {} WHERE lat > 2",
                    "SELECT lat, sum(v) FROM {} GROUP BY lat",
                    "SELECT avg(lat), count(*) FROM {}",
                    "SELECT v FROM {} ORDER BY lat LIMIT 1",
                    "SELECT a.v FROM {} a JOIN {} b ON a.lat = b.lat",
                    "SELECT count(*) FROM {} a JOIN {} b USING (lat)",
                    "SELECT count(*) FROM {} a NATURAL JOIN {} b",
                    "SELECT count(*) FROM (SELECT v, lat AS l FROM {} WHERE v > 2) WHERE l > 2",
                    "SELECT v FROM {}",
                    "CREATE TENSOR kept AS SELECT v FROM {}",
                ],
                &[
                    ("SELECT sum(v) FROM {}", "20"),
                    ("SELECT v[1] FROM {}", "4"),
                    ("SELECT sum(v[0:2] + v[0:2]) FROM {}", "12"),
                    ("SELECT count(*), sum(v) FROM {} WHERE v > 3", "3,18"),
                    ("SELECT max(v) FROM {}", "8"),
                    ("DESCRIBE {}", "lat,unreadable"),
                ],
            );
            wrong.extend(found.into_iter().map(|f| format!("v{format} {consolidated} {f}")));
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_variable_that_cannot_be_read_is_named_and_others_work() {
    let place = Place::open(&[]);
    let mut wrong = Vec::new();
    for (format, consolidated) in worlds() {
        for cause in causes() {
            let Some(change) = (if format == 2 { &cause.v2 } else { &cause.v3 }) else { continue };
            let root = place.path(&format!("{}{format}{consolidated}.zarr", cause.name));
            let bad = member(
                format,
                "bad",
                "lat",
                change.clone(),
                cause.attrs.clone(),
                cause.chunk.clone(),
            );
            let v = member(format, "v", "lat", json!({}), json!({}), cells());
            let lat = member(format, "lat", "lat", json!({}), json!({}), cells());
            store(&root, format, consolidated, &[bad, v, lat]);
            // Faults of a chunk are found when it is read.
            let late =
                ["short_chunk", "infinite_time", "far_time", "nanoseconds"].contains(&cause.name);
            let listed = if late { "bad,variable" } else { "bad,unreadable" };
            let found = faults(
                &place,
                &root.display().to_string(),
                &cause,
                &[
                    "SELECT bad FROM {}",
                    "SELECT * FROM {}",
                    "SELECT count(bad) FROM {} WHERE v > 2",
                    "SELECT max(x.bad) FROM {} x",
                ],
                &[
                    ("SELECT v[lat => 4] FROM {}", "4"),
                    ("SELECT lat, v FROM {} WHERE lat > 6", "8.0,8.0"),
                    ("SELECT count(*) FROM {}", "4"),
                    ("DESCRIBE {}", listed),
                ],
            );
            wrong.extend(found.into_iter().map(|f| format!("v{format} {consolidated} {f}")));
        }
    }
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn invalid_entries_of_consolidated_metadata_are_named() {
    let place = Place::open(&[]);
    for format in [2, 3] {
        let root = place.path(&format!("odd{format}.zarr"));
        let v = member(format, "v", "lat", json!({}), json!({}), cells());
        let odd = Member { name: "odd", document: json!({}), attrs: json!({}), chunk: vec![] };
        store(&root, format, true, &[v, odd]);
        let file = root.join(if format == 2 { ".zmetadata" } else { "zarr.json" });
        let mut text_of: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        match format {
            2 => text_of["metadata"]["odd/.zarray"] = json!(5),
            _ => text_of["consolidated_metadata"]["metadata"]["odd"] = json!(5),
        }
        fs::write(&file, text_of.to_string()).unwrap();
        let url = root.display();
        assert!(text(&place, &format!("SELECT sum(v) FROM '{url}'")).unwrap().contains("20"));
        let e = text(&place, &format!("SELECT odd FROM '{url}'")).unwrap_err();
        assert_eq!(e.code(), "invalid_metadata", "{e}");
        assert!(text(&place, &format!("DESCRIBE '{url}'")).unwrap().contains("odd,unreadable"));
    }
}

#[test]
fn extensions_that_may_be_ignored_are() {
    let place = Place::open(&[]);
    let root = place.path("optional.zarr");
    let change = json!({
        "notes": {"must_understand": false, "text": "x"},
        "storage_transformers": [{"name": "log", "must_understand": false}]
    });
    store(&root, 3, false, &[member(3, "v", "lat", change, json!({}), cells())]);
    let url = root.display();
    assert!(text(&place, &format!("SELECT sum(v) FROM '{url}'")).unwrap().contains("20"));
    // A group has them too.
    put(
        &root,
        "zarr.json",
        r#"{"zarr_format": 3, "node_type": "group", "sparse": {"must_understand": true}}"#,
    );
    let e = text(&place, &format!("SELECT sum(v) FROM '{url}'")).unwrap_err();
    assert_eq!(e.code(), "unsupported", "{e}");
    assert!(e.to_string().contains("sparse"), "{e}");
}

#[test]
fn groups_are_listed_with_their_places() {
    let place = Place::open(&[]);
    for format in [2, 3] {
        let url = format!("tests/data/zarr_zoo/v{format}_nested.zarr");
        let listed = text(&place, &format!("DESCRIBE '{url}'")).unwrap();
        assert!(listed.contains("outer,group"), "{listed}");
        assert!(listed.contains(&format!("{url}#outer")), "{listed}");
        let inner = text(&place, &format!("DESCRIBE '{url}#outer'")).unwrap();
        assert!(inner.contains(&format!("{url}#outer/inner")), "{inner}");
    }
}

#[test]
fn coordinates_that_label_nothing_are_read_and_are_no_labels() {
    let place = Place::open(&[]);
    for (format, consolidated) in worlds() {
        let change = match format {
            2 => json!({"dtype": "|b1"}),
            _ => json!({"data_type": "bool", "fill_value": false}),
        };
        let root = place.path(&format!("bool{format}{consolidated}.zarr"));
        let lat = member(format, "lat", "lat", change, json!({}), vec![1, 0, 1, 0]);
        let v = member(format, "v", "lat", json!({}), json!({}), cells());
        store(&root, format, consolidated, &[lat, v]);
        let url = root.display();
        for sql in ["SELECT v[lat => 1] FROM '{}'", "SELECT v[lat => 0:1] FROM '{}'"] {
            let sql = sql.replace("{}", &url.to_string());
            let e = text(&place, &sql).unwrap_err();
            assert_eq!(e.code(), "no_labels", "{e}");
            assert!(e.to_string().contains("bool"), "{e}");
        }
        // Its values are those of the column.
        let sums =
            text(&place, &format!("SELECT lat, sum(v) FROM '{url}' GROUP BY lat ORDER BY lat"))
                .unwrap();
        assert!(sums.contains("false,12.0") && sums.contains("true,8.0"), "{sums}");
        let v = text(&place, &format!("SELECT v FROM '{url}' WHERE lat")).unwrap();
        assert!(v.contains("2.0") && v.contains("6.0") && !v.contains("4.0"), "{v}");
    }
}

#[test]
fn a_coordinate_that_is_too_long_to_be_read_is_never_positions() {
    let place = Place::open(&[]);
    let root = place.path("long.zarr");
    let long = || json!({"shape": [20_000_000u64], "chunks": [1000], "fill_value": 1.5});
    let lat = member(2, "lat", "lat", long(), json!({}), vec![]);
    let v = member(2, "v", "lat", long(), json!({}), vec![]);
    store(&root, 2, false, &[lat, v]);
    for name in ["lat/0", "v/0"] {
        fs::remove_file(root.join(name)).unwrap();
    }
    let url = root.display();
    for sql in ["SELECT v[lat => 1.5]", "SELECT v[10:20][lat => 2]", "SELECT v[0:9] + v[1:10]"] {
        let e = text(&place, &format!("{sql} FROM '{url}'")).unwrap_err();
        assert_eq!(e.code(), "no_labels", "{sql}: {e}");
        assert!(e.to_string().contains("20000000 labels"), "{sql}: {e}");
    }
    for sql in
        ["SELECT v[5] IS NULL", "SELECT count(v[0:9] + v[0:9]) = 0", "SELECT lat[19999999] IS NULL"]
    {
        let answer = text(&place, &format!("{sql} FROM '{url}'")).unwrap();
        assert!(answer.contains("true"), "{sql}: {answer}");
    }
}
