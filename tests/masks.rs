//! Data that declare a missing value and have none. Their answers equal those of data that declare none, bit by bit,
//! and functions that take no masked cells accept them. Expected values of data with masked cells are in
//! sql/queries/masks.slt.

use crate::common::{Place, Random};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tessera_engine::answer::{Answer, Tensor};

/// The cells of a cube, in row-major order, in chunks, as xarray writes it: Zarr v2 without a codec.
struct Cube {
    shape: [usize; 3],
    chunks: [usize; 3],
}

impl Cube {
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// One array: `fill` is null where nothing is declared missing.
    fn write(
        &self,
        store: &Path,
        name: &str,
        dtype: &str,
        fill: Value,
        cells: &[u8],
        attrs: Value,
    ) {
        let size: usize = dtype[2..].parse().unwrap();
        let mut attrs = attrs;
        attrs["_ARRAY_DIMENSIONS"] = json!(["time", "lat", "lon"]);
        meta(&store.join(name), &self.shape, &self.chunks, dtype, fill, attrs);
        let counts: Vec<usize> =
            self.shape.iter().zip(self.chunks).map(|(n, c)| n.div_ceil(c)).collect();
        for i in 0..counts[0] * counts[1] * counts[2] {
            let at = [i / (counts[1] * counts[2]), i / counts[2] % counts[1], i % counts[2]];
            let mut bytes = Vec::new();
            for j in 0..self.chunks.iter().product() {
                let within = [
                    j / (self.chunks[1] * self.chunks[2]),
                    j / self.chunks[2] % self.chunks[1],
                    j % self.chunks[2],
                ];
                // Cells beyond the edge are anything.
                let p: Vec<usize> = (0..3)
                    .map(|a| (at[a] * self.chunks[a] + within[a]).min(self.shape[a] - 1))
                    .collect();
                let cell = (p[0] * self.shape[1] + p[1]) * self.shape[2] + p[2];
                bytes.extend_from_slice(&cells[cell * size..(cell + 1) * size]);
            }
            let key = format!("{}.{}.{}", at[0], at[1], at[2]);
            fs::write(store.join(name).join(key), bytes).unwrap();
        }
    }
}

fn meta(at: &Path, shape: &[usize], chunks: &[usize], dtype: &str, fill: Value, attrs: Value) {
    fs::create_dir_all(at).unwrap();
    let array = json!({
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": null,
        "fill_value": fill, "order": "C", "filters": null
    });
    fs::write(at.join(".zarray"), array.to_string()).unwrap();
    fs::write(at.join(".zattrs"), attrs.to_string()).unwrap();
}

/// A store with pairs of arrays of the same cells: `d…` declare a missing value, `p…` do not.
fn pairs(store: &Path) -> Cube {
    let cube = Cube { shape: [46, 9, 70], chunks: [20, 9, 32] };
    fs::create_dir_all(store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let days: Vec<u8> = (0..cube.shape[0] as i32).flat_map(|d| (d * 9).to_le_bytes()).collect();
    let attrs = json!({"units": "days since 2019-01-01", "_ARRAY_DIMENSIONS": ["time"]});
    meta(&store.join("time"), &cube.shape[..1], &cube.shape[..1], "<i4", Value::Null, attrs);
    fs::write(store.join("time/0"), days).unwrap();
    let mut random = Random(25);
    let values: Vec<f64> = (0..cube.len())
        .map(|i| match i {
            // A few that order and sums must treat alike with masks and without.
            77 => -0.0,
            78 => 0.0,
            _ => 280.0 + 40.0 * (random.unit() - 0.5),
        })
        .collect();
    let f4: Vec<u8> = values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    let f8: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let i2: Vec<u8> =
        values.iter().flat_map(|v| ((v * 50.0) as i16).wrapping_sub(9000).to_le_bytes()).collect();
    let i4: Vec<u8> = values.iter().flat_map(|v| ((v * 1e5) as i32).to_le_bytes()).collect();
    let packed = json!({"scale_factor": 0.02, "add_offset": 180.0});
    for (declared, name) in [(true, "d"), (false, "p")] {
        let fill = |v: Value| if declared { v } else { Value::Null };
        let write = |of: &str, dtype, v, cells: &[u8], attrs: Value| {
            cube.write(store, &format!("{name}{of}"), dtype, fill(v), cells, attrs);
        };
        write("4", "<f4", json!("NaN"), &f4, json!({}));
        write("8", "<f8", json!("NaN"), &f8, json!({}));
        write("h", "<f8", json!(-9999.0), &f8, json!({}));
        write("i", "<i4", json!(-2147483647), &i4, json!({}));
        let mut ranged = packed.clone();
        if declared {
            ranged["valid_min"] = json!(-32000);
            ranged["valid_max"] = json!(32000);
        }
        write("2", "<i2", json!(-32767), &i2, ranged);
    }
    cube
}

fn tensors(place: &Place, sql: &str) -> Vec<Tensor> {
    let reply = place.run(sql).pop().unwrap();
    match reply.whole().unwrap().answer {
        Answer::Tensors(t) => t,
        other => panic!("{sql}: {other:?}"),
    }
}

/// One statement for each way that cells are taken in; `$` is the tensor.
const QUESTIONS: [&str; 74] = [
    "sum($)",
    "sum($, 0)",
    "sum($, 1)",
    "sum($, 2)",
    "sum($, [1, 2])",
    "sum($, [0, 1])",
    "mean($)",
    "mean($, 0)",
    "mean($, 2)",
    "mean($, [0, 2])",
    "mean($ * $)",
    "prod($ / 300)",
    "prod($ / 300, 2)",
    "min($)",
    "min($, 0)",
    "min($, 2)",
    "max($, 0)",
    "max($, 1)",
    "max($, 2)",
    "var($)",
    "var($, 0)",
    "std($, 2)",
    "std($, 1, ddof => 1)",
    "argmin($, 0)",
    "argmax($, 2)",
    "argmax($)",
    "any($ > 300, 0)",
    "all($ > 0, 2)",
    "count($, 0)",
    "count($)",
    "sum($), mean($), std($), min($), max($)",
    "median($, 0)",
    "median($, 2)",
    "quantile($, [0.1, 0.5, 0.99], 2)",
    "quantile($, 0.3, 0)",
    "median($)",
    "cumsum($, 0)",
    "cumsum($, 2)",
    "cumprod($ / 300, 0)",
    "cummax($, 2)",
    "cummin($, 0)",
    "ffill($, 0)",
    "bfill($, 0)",
    "ewm($, axis => 0, alpha => 0.3)",
    "diff($, axis => 0)",
    "rolling($, 'mean', time => 5)",
    "rolling($, 'sum', lon => 7, min_periods => 1)",
    "rolling($, 'max', time => 30)",
    "rolling($, 'std', lat => 3, min_periods => 2)",
    "rolling($, 'min', time => 3, center => true)",
    "rolling($, 'median', time => 6, min_periods => 2)",
    "rolling($, 'quantile', lon => 5, q => 0.2)",
    "coarsen($, 'mean', lat => 3)",
    "sort($, 2)",
    "sort($, 0)",
    "argsort($, 0)",
    "topk($, 5, axis => 2)",
    "histogram($, 20, [200, 340]).counts",
    "histogram($, [0, 270, 280, 300]).counts",
    "digitize($, [270, 280, 300])",
    "groupby($, 'mean', by => month(time))",
    "groupby($, 'max', by => month(time))",
    "groupby($, 'std', by => month(time))",
    "$ - mean($, 0)",
    "($ - mean($, 0)) / std($, 0)",
    "where($ > 280, $, 0)",
    "coalesce($, 1)",
    "$[::2, ::-1, 3:50]",
    "reshape($, [46, 630])",
    "concat([$, $ + 1], axis => 2)",
    "take($, [5, 1, 40], axis => 0)",
    "$[:, 4] @ transpose($[:, 5])",
    "$[:, 4] @ $[0, 5]",
    "isnan($::float64)",
];

#[test]
fn data_that_declare_a_missing_value_and_have_none_answer_to_the_same_bits() {
    let place = Place::open(&[]);
    let store = place.directory.path().join("pairs.zarr");
    pairs(&store);
    for chunks in ["", "SET tessera.chunk_bytes_target = '64KiB';"] {
        for of in ["4", "8", "h", "i", "2"] {
            for question in QUESTIONS {
                let ask = |name: &str| {
                    let text = question.replace('$', &format!("{name}{of}"));
                    tensors(&place, &format!("{chunks} SELECT {text} FROM '{}'", store.display()))
                };
                for (d, p) in ask("d").into_iter().zip(ask("p")) {
                    let what = format!("{question} of {of} {chunks}");
                    assert_eq!((d.dtype(), d.shape()), (p.dtype(), p.shape()), "{what}");
                    for i in 0..p.len() {
                        assert_eq!(d.is_masked(i), p.is_masked(i), "{what}: cell {i}");
                    }
                    let size = p.dtype().size();
                    let cells = |t: &Tensor| -> Vec<Vec<u8>> {
                        let there = |i: &usize| !t.is_masked(*i);
                        let cell = |i| t.data()[i * size..(i + 1) * size].to_vec();
                        (0..t.len()).filter(there).map(cell).collect()
                    };
                    let differs = cells(&d).iter().zip(&cells(&p)).position(|(a, b)| a != b);
                    assert_eq!(differs, None, "{what}: another bit");
                }
            }
        }
    }
}

#[test]
fn functions_without_masks_take_data_that_only_declare_them() {
    let place = Place::open(&[]);
    let store = place.directory.path().join("pairs.zarr");
    pairs(&store);
    let questions = [
        "svd($[:, 1, 0:9]).s",
        "qr($[:, 1, 0:9]).r",
        "solve($[0:9, :, 1], $[0:9, 0, 2])",
        "corrcoef($[:, 3])",
        "cov($[:, 3])",
        "inv($[0:9, :, 1])",
        "det($[0:9, :, 1])",
        "lstsq($[:, :, 1], $[:, 0, 2]).x",
        "pinv($[:, 1, 0:9])",
        "lu($[0:9, :, 1]).u",
        "cholesky(cov($[:, 3, 0:8], rowvar => false))",
        "norm($[:, 1], 2)",
        "matrix_rank($[:, 1])",
        "eigh(cov($[:, 3, 0:8], rowvar => false)).eigenvalues",
        "matrix_power($[0:9, :, 1], 3)",
    ];
    for of in ["4", "8", "2"] {
        for question in questions {
            let ask = |name: &str| {
                let text = question.replace('$', &format!("{name}{of}"));
                tensors(&place, &format!("SELECT {text} FROM '{}'", store.display()))
            };
            let (d, p) = (ask("d"), ask("p"));
            assert_eq!(d[0].data().as_slice(), p[0].data().as_slice(), "{question} of {of}");
        }
    }
}

#[test]
fn functions_without_masks_say_how_many_cells_are_masked_and_where() {
    let place = Place::open(&[]);
    let store = place.directory.path().join("holes.zarr");
    let cube = Cube { shape: [4000, 1, 6], chunks: [2048, 1, 6] };
    let mut random = Random(7);
    let mut cells: Vec<f64> = (0..cube.len()).map(|_| random.unit()).collect();
    // Three cells of the second chunk.
    for i in [2100 * 6, 2100 * 6 + 1, 2900 * 6 + 5] {
        cells[i] = f64::NAN;
    }
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let bytes: Vec<u8> = cells.iter().flat_map(|v| v.to_le_bytes()).collect();
    cube.write(&store, "x", "<f8", json!("NaN"), &bytes, json!({}));
    let at = store.display();
    for (text, name) in [
        ("svd(x[:, 0]).s", "svd"),
        ("corrcoef(x[:, 0])", "corrcoef"),
        ("qr(x[:, 0]).r", "qr"),
        ("lstsq(x[:, 0], arange(4000) * 1.0).x", "lstsq"),
        ("norm(x[:, 0], 'nuc')", "norm"),
    ] {
        let sql = format!("SET tessera.chunk_bytes_target = '64KiB'; SELECT {text} FROM '{at}'");
        let replies = place.try_run(&sql);
        let e = replies.and_then(|mut r| r.pop().unwrap().whole()).unwrap_err();
        assert_eq!(e.code(), "masked_input", "{text}");
        let shown = e.render(&sql);
        let told =
            format!("`{name}` is not defined for masked cells: 3 of the 11712 cells in [2048:4000");
        assert!(shown.contains(&told), "{shown}");
        assert!(shown.contains("coalesce(x, 0.0)"), "{shown}");
    }
    // Rows without a masked cell, and cells that were given a value.
    for text in ["svd(x[0:2048, 0]).s", "svd(x[2901:, 0]).s", "svd(coalesce(x[:, 0], 0.0)).s"] {
        let sql = format!("SET tessera.chunk_bytes_target = '64KiB'; SELECT {text} FROM '{at}'");
        assert_eq!(tensors(&place, &sql)[0].len(), 6, "{text}");
    }
}

#[test]
fn tensors_without_masked_cells_are_stored_without_a_mask() {
    let place = Place::open(&[]);
    let store = place.directory.path().join("pairs.zarr");
    let cube = pairs(&store);
    let at = store.display();
    place.run(&format!(
        "CREATE TEMP TENSOR held AS SELECT d4 AS x, where(d4 > 300, d4, NULL) AS y FROM '{at}';
         CREATE TENSOR kept AS SELECT d4 AS x, where(d4 > 300, d4, NULL) AS y, d2 AS z FROM '{at}'"
    ));
    for (sql, expected) in [
        ("SELECT x, y FROM held", &[false, true][..]),
        ("SELECT x, y, z FROM kept", &[false, true, false]),
    ] {
        let kept = tensors(&place, sql);
        let can: Vec<bool> = kept.iter().map(|t| t.valid().is_some()).collect();
        assert_eq!(can, expected, "{sql}");
        let asked = tensors(&place, &format!("SELECT p4 FROM '{at}'"));
        assert_eq!(kept[0].data().as_slice(), asked[0].data().as_slice(), "{sql}");
        assert_eq!(kept[0].len(), cube.len());
    }
    // A part of a statement that runs before the rest.
    let island = tensors(&place, &format!("SELECT d4[d4 > 290] AS x FROM '{at}'"));
    let asked = tensors(&place, &format!("SELECT p4[p4 > 290] AS x FROM '{at}'"));
    assert!(island[0].valid().is_none() && asked[0].len() > 100);
    assert_eq!(island[0].data().as_slice(), asked[0].data().as_slice());
    place.clear();
}

#[test]
fn answers_are_the_same_where_chunks_wait_in_files() {
    let place = Place::open(&[("memory-limit", "24MiB")]);
    let store = place.directory.path().join("large.zarr");
    let cube = Cube { shape: [64, 40, 600], chunks: [16, 40, 600] };
    let mut random = Random(3);
    let mut cells: Vec<f32> = (0..cube.len()).map(|_| random.unit() as f32).collect();
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    let bytes = |cells: &[f32]| -> Vec<u8> { cells.iter().flat_map(|v| v.to_le_bytes()).collect() };
    cube.write(&store, "d", "<f4", json!("NaN"), &bytes(&cells), json!({}));
    cube.write(&store, "p", "<f4", Value::Null, &bytes(&cells), json!({}));
    // One chunk with masked cells among others without.
    for i in (0..16 * 40 * 600).step_by(97) {
        cells[i] = f32::NAN;
    }
    cube.write(&store, "some", "<f4", json!("NaN"), &bytes(&cells), json!({}));
    let at = store.display();
    let one = |sql: &str| tensors(&place, sql).remove(0);
    let sorted = |x: &str| one(&format!("SELECT mean(sort({x}, 0), [1, 2]) AS s FROM '{at}'"));
    assert_eq!(sorted("d").data().as_slice(), sorted("p").data().as_slice());
    let counted = one(&format!("SELECT count(sort(some, 0)) AS n FROM '{at}'"));
    let there = cells.iter().filter(|v| !v.is_nan()).count();
    assert_eq!(counted.scalar(0).to_string(), there.to_string());
    let total = one(&format!("SELECT sum(cumsum(some, 0)[-1] > 0) AS n FROM '{at}'"));
    assert_eq!(total.scalar(0).to_string(), (40 * 600).to_string());
}
