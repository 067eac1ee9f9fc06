//! Files of other formats, beside the cells that their own libraries read: `tests/data/formats`.
//!
//! Each `cases.tsv` has the name of a file, a query and the `.npy` that has its cells. The queries run on the local
//! file and over HTTP.

use crate::common::Place;
use crate::web;
use std::path::{Path, PathBuf};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/formats")
}

/// The dtype and shape in the header of an `.npy`, and its cells.
fn npy(bytes: &[u8]) -> (String, &[u8]) {
    let n = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    let header = std::str::from_utf8(&bytes[10..10 + n]).unwrap().trim().to_string();
    (header, &bytes[10 + n..])
}

/// True if cells are the same bits, or both NaN.
fn are_same(header: &str, a: &[u8], b: &[u8]) -> bool {
    let nan = |x: f64, y: f64| x.is_nan() && y.is_nan();
    let same = |n: usize, of: &dyn Fn(&[u8]) -> f64| {
        let pairs = a.chunks(n).zip(b.chunks(n));
        a.len() == b.len() && pairs.into_iter().all(|(x, y)| x == y || nan(of(x), of(y)))
    };
    if header.contains("'<f4'") {
        same(4, &|c| f64::from(f32::from_le_bytes(c.try_into().unwrap())))
    } else if header.contains("'<f8'") {
        same(8, &|c| f64::from_le_bytes(c.try_into().unwrap()))
    } else {
        a == b
    }
}

/// Runs the cases of a format, its files at `root`.
fn check(place: &Place, format: &str, root: &str) {
    let directory = data().join(format);
    let cases = std::fs::read_to_string(directory.join("cases.tsv")).unwrap();
    let mut failures = Vec::new();
    for (i, line) in cases.lines().enumerate() {
        let [name, sql, expected] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let sql = sql.replace("{}", &format!("{root}/{format}/{name}"));
        let out = place.shown(&format!("{format}{i}.npy"));
        let copy = format!("COPY ({sql}) TO '{out}' STORED AS NPY OPTIONS (overwrite true)");
        if let Err(e) = place.try_run(&copy) {
            failures.push(format!("{sql}: {}", e.render(&copy)));
            continue;
        }
        let (found, expected) =
            (std::fs::read(&out).unwrap(), std::fs::read(directory.join(expected)).unwrap());
        let ((head, cells), (wanted, want)) = (npy(&found), npy(&expected));
        if head != wanted || !are_same(&head, cells, want) {
            failures.push(format!("{sql}: {head}, expected {wanted}"));
        }
    }
    assert!(failures.is_empty(), "{} fail\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn cells_are_those_that_other_libraries_read() {
    let place = Place::open(&[]);
    let root = data().display().to_string();
    for format in ["netcdf", "shuffled", "safetensors", "references"] {
        check(&place, format, &root);
    }
}

#[test]
fn cells_are_the_same_over_http() {
    let place = Place::open(&[]);
    let (address, _) = web::serve(data());
    check(&place, "safetensors", &format!("http://{address}"));
    check(&place, "references", &format!("http://{address}"));
}

#[test]
fn only_needed_parts_are_fetched() {
    let place = Place::open(&[]);
    let directory = tempfile::tempdir().unwrap();
    // 64 tensors of 1 MiB; NumPy is not needed to write them.
    let mut header = String::from("{");
    for i in 0..64u64 {
        let (start, end) = (i << 20, (i + 1) << 20);
        let comma = if i == 0 { "" } else { "," };
        header.push_str(&format!(
            r#"{comma}"w{i}":{{"dtype":"F32","shape":[512,512],"data_offsets":[{start},{end}]}}"#
        ));
    }
    header.push('}');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..64u32 << 18).flat_map(|i| ((i >> 18) as f32).to_le_bytes()));
    std::fs::write(directory.path().join("m.safetensors"), file).unwrap();
    let (address, answered) = web::serve(directory.path().to_path_buf());
    let url = format!("http://{address}/m.safetensors");
    let lines = place.lines(&format!("SELECT mean(w40) AS m FROM '{url}'")).unwrap();
    assert!(lines.concat().contains("40"), "{lines:?}");
    let (requests, bytes) = answered.take();
    // The first 256 KiB, which have the header, and one tensor.
    assert!(
        requests <= 4 && bytes <= (1 << 20) + (256 << 10),
        "{requests} requests, {bytes} bytes"
    );
    let lines = place.lines(&format!("SELECT w7[100:104, 5] AS m FROM '{url}'")).unwrap();
    assert!(lines.concat().contains('7'), "{lines:?}");
    let (requests, bytes) = answered.take();
    assert!(requests <= 4 && bytes <= 512 << 10, "{requests} requests, {bytes} bytes");
}

#[test]
fn files_that_are_no_dataset_are_reported() {
    let place = Place::open(&[]);
    let at = |name: &str| data().join("netcdf").join(name).display().to_string();
    let fault = |sql: &str| place.lines(sql).unwrap_err();
    let (a, b) = (at("year2000.nc"), at("year2001.nc"));
    let twice = fault(&format!("SELECT v FROM ['{a}', '{a}']"));
    assert!(twice.starts_with("not_one_dataset: ") && twice.contains("year2000.nc"), "{twice}");
    let other = at("records.nc");
    let mixed = fault(&format!("SELECT v FROM ['{a}', '{other}']"));
    assert!(mixed.starts_with("not_one_dataset: ") && mixed.contains("records.nc"), "{mixed}");
    let nested = fault(&format!("SELECT v FROM read_netcdf(['{a}', '{b}'], combine => 'nested')"));
    assert!(nested.contains("concat => 'dim'"), "{nested}");
    let none = fault(&format!("SELECT v FROM '{}'", at("nothing*.nc")));
    assert!(none.starts_with("not_found: "), "{none}");
    let kind = fault(&format!("SELECT v FROM read_safetensors('{a}')"));
    assert!(kind.starts_with("not_an_array: ") && kind.contains("not safetensors"), "{kind}");
    // By a fuzzer: its text would have as many letters as there are records.
    let twice = fault(&format!("SELECT v FROM '{}'", at("two_records.nc")));
    assert!(twice.contains("the record dimension is not the first one"), "{twice}");
    // A file that is cut off.
    let whole = std::fs::read(&a).unwrap();
    for n in [3, 4, 40, 400, 900, whole.len() / 2] {
        let cut = place.shown("cut.nc");
        std::fs::write(&cut, &whole[..n]).unwrap();
        let told = fault(&format!("SELECT v FROM '{cut}'"));
        assert!(told.contains("cut.nc"), "{n}: {told}");
    }
    // HDF5 whose root group is beyond the end of the file.
    let mut short = b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08".to_vec();
    short.resize(64, 0);
    short.extend(4000u64.to_le_bytes());
    short.resize(96, 0);
    let cut = place.shown("cut.h5");
    std::fs::write(&cut, short).unwrap();
    let told = fault(&format!("SELECT v FROM '{cut}'"));
    assert!(told.contains("at byte 4000, data begin beyond its end (96 bytes)"), "{told}");
}

#[test]
fn damaged_files_are_errors() {
    let mut seen = 0;
    for format in ["netcdf", "safetensors"] {
        for entry in std::fs::read_dir(data().join(format)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".npy") || name.ends_with(".tsv") || name.ends_with(".md") {
                continue;
            }
            let whole = std::fs::read(&path).unwrap();
            tessera_storage::formats::probe(&whole).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let mut random = crate::common::Random(30);
            for _ in 0..1000 {
                let mut bytes = whole.clone();
                bytes.truncate(random.next() as usize % (whole.len() + 1));
                for _ in 0..random.next() % 4 {
                    if !bytes.is_empty() {
                        // Most metadata are at the beginning.
                        let at = random.next() as usize % bytes.len().min(2048);
                        bytes[at] = random.next() as u8;
                    }
                }
                // The file may still be valid; the call only has to return.
                let _ended = tessera_storage::formats::probe(&bytes);
                seen += 1;
            }
        }
    }
    assert!(seen >= 8000, "{seen}");
}
