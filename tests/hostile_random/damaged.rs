//! Valid files of each format, which are then damaged.

use super::mutate::Mutant;
use super::trial::{Request, Trial};
use crate::common::{Random, files};
use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, ListArray, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::Int32Type;
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow::record_batch::RecordBatch;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The input of a damage: the files of one table or store, by their path below it (empty for a single file).
#[derive(Debug)]
struct Original {
    name: String,
    parts: Vec<(PathBuf, Vec<u8>)>,
}

/// A format, and files of it.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) name: &'static str,
    /// How its files end.
    ending: &'static str,
    /// The text of `FROM`, with `$` for the path.
    from: &'static str,
    originals: Vec<Original>,
}

impl Format {
    fn new(
        name: &'static str,
        ending: &'static str,
        from: &'static str,
        originals: Vec<Original>,
    ) -> Format {
        assert!(!originals.is_empty(), "{name}");
        Format { name, ending, from, originals }
    }

    /// Writes a damaged copy into a directory, and returns the requests for it. The copy is removed when the second
    /// value is dropped.
    pub(super) fn damaged(&self, seed: u64, at: u64, below: &Path) -> (Vec<Request>, Written) {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(at));
        random.next();
        let mut draw = |n: usize| (random.next() % n as u64) as usize;
        let original = &self.originals[draw(self.originals.len())];
        let damaged = draw(original.parts.len());
        let path = below.join(format!("{at}{}", self.ending));
        for (i, (part, bytes)) in original.parts.iter().enumerate() {
            let to = match part.as_os_str().is_empty() {
                true => path.clone(),
                false => path.join(part),
            };
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            match i == damaged {
                true => fs::write(to, Mutant::new(&mut random).of(bytes)).unwrap(),
                false => fs::write(to, bytes).unwrap(),
            }
        }
        let from = self.from.replace('$', &path.display().to_string());
        let name = &original.name;
        let mut asked = vec![format!("SELECT * FROM {from}")];
        match random.next() % 6 {
            0 => asked.push(format!("SELECT count(*) FROM {from}")),
            1 => asked.push(format!("DESCRIBE SELECT * FROM {from}")),
            2 => asked.push(format!("SELECT sum({name}) AS s FROM {from}")),
            3 => asked.push(format!("SELECT max({name}), count(*) FROM {from} WHERE {name} > 1")),
            _ => {}
        }
        (asked.into_iter().map(|sql| Request::query(sql, "json")).collect(), Written(path))
    }
}

/// A file or directory that goes with it.
pub(super) struct Written(PathBuf);

impl Written {
    /// Copies it into a directory.
    pub(super) fn keep(&self, below: &Path) {
        let to = below.join(self.0.file_name().unwrap());
        for file in files(&self.0).into_iter().chain([self.0.clone()]).filter(|f| f.is_file()) {
            let to = match file.strip_prefix(&self.0) {
                Ok(part) if !part.as_os_str().is_empty() => to.join(part),
                _ => to.clone(),
            };
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(file, to).unwrap();
        }
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let _ = match self.0.is_dir() {
            true => fs::remove_dir_all(&self.0),
            false => fs::remove_file(&self.0),
        };
    }
}

/// A file alone.
fn one(name: &str, bytes: Vec<u8>) -> Original {
    Original { name: name.into(), parts: vec![(PathBuf::new(), bytes)] }
}

fn fixture(path: &str, name: &str) -> Original {
    one(name, fs::read(path).unwrap())
}

/// A store with all its files.
fn store(at: &Path, name: &str) -> Original {
    let mut all = files(at);
    all.sort();
    let parts = all.into_iter().map(|f| {
        let bytes = fs::read(&f).unwrap();
        (f.strip_prefix(at).unwrap().to_path_buf(), bytes)
    });
    Original { name: name.into(), parts: parts.collect() }
}

/// The arrays of a group, each a store of its own.
fn arrays(group: &str) -> Vec<Original> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(group).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    all.sort();
    all.iter().map(|at| store(at, &at.file_name().unwrap().to_string_lossy())).collect()
}

/// Columns of many types, with NULL.
fn batches() -> Vec<RecordBatch> {
    let batch = |from: i32| {
        let n = from..from + 20;
        let lists = n.clone().map(|i| (i % 5 > 0).then(|| vec![Some(i), None]));
        let words: DictionaryArray<Int32Type> =
            n.clone().map(|i| ["a", "b"][i as usize % 2]).collect();
        let columns: [(&str, ArrayRef); 7] = [
            ("n", Arc::new(Int32Array::from_iter_values(n.clone()))),
            (
                "x",
                Arc::new(
                    n.clone()
                        .map(|i| (i % 3 > 0).then_some(f64::from(i) / 4.0))
                        .collect::<Float64Array>(),
                ),
            ),
            (
                "s",
                Arc::new(
                    n.clone()
                        .map(|i| (i % 4 > 0).then(|| format!("text {i}")))
                        .collect::<StringArray>(),
                ),
            ),
            ("b", Arc::new(n.clone().map(|i| Some(i % 2 == 0)).collect::<BooleanArray>())),
            ("t", Arc::new(TimestampMicrosecondArray::from_iter_values(n.clone().map(i64::from)))),
            ("l", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
            ("w", Arc::new(words)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap()
    };
    vec![batch(0), batch(20)]
}

/// All formats. Some files are made by the server itself.
pub(super) fn formats(trial: &Trial) -> Vec<Format> {
    let all = batches();
    let mut listed = FileWriter::try_new(Vec::new(), &all[0].schema()).unwrap();
    all.iter().for_each(|b| listed.write(b).unwrap());
    let mut streamed = StreamWriter::try_new(Vec::new(), &all[0].schema()).unwrap();
    all.iter().for_each(|b| streamed.write(b).unwrap());
    let rows = "SELECT i, x, sin(x) AS s, 'text ' || (i % 7) AS t, i % 3 = 0 AS b, make_array(i, i + 1) AS l \
                FROM CELLS(arange(60)) AS c(i, x)";
    let csv =
        "SELECT i, x, sin(x) AS s, 'text, \"' || (i % 7) AS t FROM CELLS(arange(60)) AS c(i, x)";
    let zarr = |at: &str, name: &str| store(Path::new(at), name);
    let mut v2 = arrays("tests/data/zarr_zoo/v2.zarr");
    v2.push(zarr("tests/data/zarr_zoo/v2_consolidated.zarr", "v"));
    v2.push(zarr("tests/data/cf/noleap.zarr", "v"));
    v2.push(zarr("tests/data/stores/words2.zarr", "v"));
    let mut v3 = arrays("tests/data/zarr_zoo/v3.zarr");
    v3.push(zarr("tests/data/zarr_zoo/v3_consolidated.zarr", "v"));
    v3.push(zarr("tests/data/cf/day360.zarr", "v"));
    v3.push(zarr("tests/data/stores/words3.zarr", "v"));
    let npy = files(Path::new("tests/data/npy")).into_iter();
    let mut npy: Vec<PathBuf> = npy.filter(|f| f.extension().is_some_and(|e| e == "npy")).collect();
    npy.sort();
    let npy = npy.iter().map(|f| fixture(&f.display().to_string(), "x")).collect();
    vec![
        Format::new("zarr v2", ".zarr", "'$'", v2),
        Format::new("zarr v3", ".zarr", "'$'", v3),
        Format::new("npy", ".npy", "'$'", npy),
        Format::new("npz", ".npz", "'$'", vec![fixture("tests/data/npy/two.npz", "a")]),
        Format::new(
            "parquet",
            ".parquet",
            "read_parquet('$')",
            vec![
                fixture("tests/data/tables/regions.parquet", "lat0"),
                fixture("tests/data/tables/stations.parquet", "lat"),
                one("x", trial.whole(rows, "parquet")),
            ],
        ),
        Format::new(
            "csv",
            ".csv",
            "read_csv('$')",
            vec![
                fixture("tests/data/tables/regions.csv", "lat0"),
                one("x", trial.whole(csv, "csv")),
            ],
        ),
        Format::new(
            "ndjson",
            ".json",
            "read_json('$')",
            vec![
                fixture("tests/data/tables/regions.ndjson", "lat0"),
                one("x", trial.whole(rows, "ndjson")),
            ],
        ),
        Format::new(
            "arrow",
            ".arrow",
            "read_arrow('$')",
            vec![
                one("x", listed.into_inner().unwrap()),
                one("x", streamed.into_inner().unwrap()),
                one("x", trial.whole(rows, "arrow")),
            ],
        ),
    ]
}
