//! Hostile and damaged input: one typed error that names the thing, never a panic.

use super::*;

/// The first error of opening and then reading everything.
fn failure(path: &str) -> Option<SourceError> {
    let opened = match open_local(&data(path)) {
        Err(e) => return Some(e),
        Ok(o) => o,
    };
    if let Some(e) = opened.unsupported.values().next() {
        return Some(e.clone());
    }
    let whole = |r: &Arc<ArrayReader>| read(r, &Region::whole(&r.source().shape)).err();
    opened.readers.iter().find_map(whole)
}

#[test]
fn each_has_its_code() {
    let table = [
        ("a_file.zarr", "not_an_array"),
        ("chunk_0.zarr", "invalid_metadata"),
        ("chunk_huge.zarr", "too_large"),
        ("chunk_negative.zarr", "invalid_metadata"),
        ("codec_unknown.zarr", "unsupported"),
        ("deep_json.zarr", "invalid_metadata"),
        ("dims_disagree.zarr", "invalid_metadata"),
        ("dtype_unknown.zarr", "unsupported_dtype"),
        ("empty_json.zarr", "invalid_metadata"),
        ("fill_wrong.zarr", "invalid_metadata"),
        ("format_99.zarr", "invalid_metadata"),
        ("grid_unknown.zarr", "unsupported"),
        ("json_list.zarr", "invalid_metadata"),
        ("names_mismatch.zarr", "invalid_metadata"),
        ("no_codecs.zarr", "invalid_metadata"),
        ("no_metadata.zarr", "not_an_array"),
        ("node_unknown.zarr", "invalid_metadata"),
        ("not_json.zarr", "invalid_metadata"),
        ("not_utf8.zarr", "invalid_metadata"),
        ("npy_code.npy", "invalid_metadata"),
        ("npy_deep.npy", "invalid_metadata"),
        ("npy_dtype.npy", "unsupported_dtype"),
        ("npy_header_len.npy", "invalid_metadata"),
        ("npy_header_len_v2.npy", "invalid_metadata"),
        ("npy_huge.npy", "invalid_metadata"),
        ("npy_large.npy", "invalid_metadata"),
        ("npy_magic.npy", "invalid_metadata"),
        ("npy_negative.npy", "invalid_metadata"),
        ("npy_no_shape.npy", "invalid_metadata"),
        ("npy_not_utf8.npy", "invalid_metadata"),
        ("npy_nothing.npy", "invalid_metadata"),
        ("npy_object.npy", "unsupported_dtype"),
        ("npy_rank_1000.npy", "invalid_metadata"),
        ("npy_record.npy", "unsupported_dtype"),
        ("npy_short.npy", "invalid_metadata"),
        ("npy_string.npy", "unsupported_dtype"),
        ("npy_truncated.npy", "invalid_metadata"),
        ("npy_version.npy", "invalid_metadata"),
        ("rank_1000.zarr", "invalid_metadata"),
        ("rank_mismatch.zarr", "invalid_metadata"),
        ("shape_2_63.zarr", "invalid_metadata"),
        ("shape_float.zarr", "invalid_metadata"),
        ("shape_negative.zarr", "invalid_metadata"),
        ("shape_overflow.zarr", "invalid_metadata"),
        ("time_calendar.zarr", "invalid_metadata"),
        ("time_units.zarr", "invalid_metadata"),
        ("v2_chunk_0.zarr", "invalid_metadata"),
        ("v2_compressor_unknown.zarr", "unsupported"),
        ("v2_corrupt_blosc.zarr", "corrupt_chunk"),
        ("v2_dtype_object.zarr", "unsupported_dtype"),
        ("v2_dtype_unknown.zarr", "unsupported_dtype"),
        ("v2_filter_unknown.zarr", "unsupported"),
        ("v2_not_json.zarr", "invalid_metadata"),
        ("v2_order.zarr", "invalid_metadata"),
        ("v2_rank_mismatch.zarr", "invalid_metadata"),
        ("v2_shape_2_63.zarr", "invalid_metadata"),
        ("v2_truncated_blosc.zarr", "corrupt_chunk"),
        ("v2_truncated_raw.zarr", "corrupt_chunk"),
        ("v3_corrupt_blosc.zarr", "corrupt_chunk"),
        ("v3_crc32c.zarr", "corrupt_chunk"),
        ("v3_shard_index.zarr", "corrupt_chunk"),
        ("v3_truncated_blosc.zarr", "corrupt_chunk"),
        ("v3_truncated_raw.zarr", "corrupt_chunk"),
        ("nowhere.zarr", "not_found"),
        ("nowhere.npy", "not_found"),
    ];
    let mut wrong = Vec::new();
    for (path, code) in table {
        match failure(&format!("bad/{path}")) {
            None => wrong.push(format!("{path}: no error, expected {code}")),
            Some(e) if e.code() != code => wrong.push(format!("{path}: {}: {e}", e.code())),
            Some(e) => {
                let name = path.split('.').next().unwrap();
                assert!(
                    e.to_string().contains(name)
                        || e.to_string().contains("`v`")
                        || code == "invalid_metadata"
                        || path.starts_with("dims"),
                    "{path}: {e}"
                );
                assert!(e.to_string().len() < 700, "{path}: {e}");
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    // Every fixture is in the table, or is readable.
    for entry in std::fs::read_dir(data("bad")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let fine = ["names_duplicate.zarr", "npy_trailing.npy", "group_empty.zarr"];
        assert!(table.iter().any(|(p, _)| *p == name) || fine.contains(&&*name), "{name}");
    }
    for path in ["names_duplicate.zarr", "npy_trailing.npy", "group_empty.zarr"] {
        assert_eq!(failure(&format!("bad/{path}")), None, "{path}");
    }
    let d = open_local(&data("bad/names_duplicate.zarr")).unwrap().dataset;
    assert_eq!(d.variables[0].dims, [None, None]);
}

#[test]
fn a_damaged_chunk_is_named() {
    let e = failure("bad/v3_crc32c.zarr").unwrap();
    let SourceError::Chunk { array, chunk, path, .. } = &e else { panic!("{e}") };
    assert_eq!((array.as_str(), chunk.as_str()), ("v", "[1, 1]"));
    assert!(path.ends_with("v3_crc32c.zarr/v/c/1/1"), "{path}");
    // Regions that do not touch the chunk are read.
    let opened = open_local(&data("bad/v3_crc32c.zarr")).unwrap();
    assert!(read(&opened.readers[0], &Region::at(&[0, 0], &[2, 7])).is_ok());
}

#[test]
fn little_bombs_do_not_go_off() {
    // Chunks of 8 bytes whose encoded form decodes to 64 MiB.
    let zeros = vec![0u8; 64 << 20];
    let gzip = {
        let mut out = Vec::new();
        std::io::copy(
            &mut flate2::read::GzEncoder::new(&*zeros, flate2::Compression::best()),
            &mut out,
        )
        .unwrap();
        out
    };
    let zlib = {
        let mut out = Vec::new();
        std::io::copy(
            &mut flate2::read::ZlibEncoder::new(&*zeros, flate2::Compression::best()),
            &mut out,
        )
        .unwrap();
        out
    };
    let zstd = zstd::bulk::compress(&zeros, 3).unwrap();
    // A blosc header that claims 1 GiB.
    let mut blosc = vec![2, 1, 1, 8, 0, 0, 0, 0x40, 0, 0, 1, 0, 20, 0, 0, 0];
    blosc.extend([0; 4]);
    let dir = tempfile::tempdir().unwrap();
    for (id, extra, bytes) in [
        ("gzip", r#""level":1"#, gzip),
        ("zlib", r#""level":1"#, zlib),
        ("zstd", r#""level":1"#, zstd),
        ("blosc", r#""cname":"lz4","clevel":5,"shuffle":1,"blocksize":0"#, blosc),
    ] {
        let root = dir.path().join(format!("{id}.zarr"));
        std::fs::create_dir_all(&root).unwrap();
        let meta = format!(
            r#"{{"zarr_format":2,"shape":[1],"chunks":[1],"dtype":"<f8","compressor":{{"id":"{id}",{extra}}},
                "fill_value":null,"order":"C","filters":null}}"#
        );
        std::fs::write(root.join(".zarray"), meta).unwrap();
        std::fs::write(root.join("0"), bytes).unwrap();
        let opened = open_local(root.to_str().unwrap()).unwrap();
        let e = read(&opened.readers[0], &Region::at(&[0], &[1])).unwrap_err();
        assert_eq!(e.code(), "corrupt_chunk", "{id}: {e}");
        let text = e.to_string();
        assert!(text.contains("8 bytes") || text.ends_with("at most 8"), "{id}: {e}");
    }
}

#[test]
fn damaged_archives_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = std::fs::read(data("npy/two.npz")).unwrap();
    let path = dir.path().join("x.npz");
    let mut codes = std::collections::BTreeSet::new();
    // Every truncation and every flipped byte yields arrays or an error, never a panic.
    for cut in (0..good.len()).step_by(7) {
        std::fs::write(&path, &good[..cut]).unwrap();
        codes.extend(open_local(path.to_str().unwrap()).err().map(|e| e.code()));
        let mut flipped = good.clone();
        flipped[cut] ^= 0xFF;
        std::fs::write(&path, &flipped).unwrap();
        if let Ok(opened) = open_local(path.to_str().unwrap()) {
            for r in &opened.readers {
                let _ = read(r, &Region::whole(&r.source().shape));
            }
        }
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), ["invalid_metadata"]);
}
