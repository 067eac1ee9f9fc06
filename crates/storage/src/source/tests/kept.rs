//! The cache of opened datasets.

use super::*;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

fn put(bucket: &dyn ObjectStore, key: &str, text: String) {
    run(bucket.put(&Path::from(key), text.into_bytes().into())).unwrap();
}

fn array(len: u64) -> String {
    format!(
        r#"{{"zarr_format":3,"node_type":"array","shape":[{len}],"data_type":"int8","chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{len}]}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":0,"codecs":[{{"name":"bytes"}}],"dimension_names":["x"]}}"#
    )
}

#[test]
fn unchanged_metadata_are_not_read_again() {
    let bucket = Arc::new(InMemory::new());
    let group = r#"{"zarr_format":3,"node_type":"group","attributes":{"title":"a"}}"#;
    put(&*bucket, "g/zarr.json", group.into());
    put(&*bucket, "g/v/zarr.json", array(3));
    put(&*bucket, "g/x/zarr.json", array(3));
    put(&*bucket, "g/x/c/0", "\u{1}\u{2}\u{3}".into());
    let stores = stores();
    stores.serve("b", bucket.clone());
    let opened = |options: &Options| run(open("s3://b/g", options, &stores)).unwrap();
    let plain = Options::default();
    let labels = |o: &Opened| format!("{:?}", o.dataset.coords[0].values);
    let first = opened(&plain);
    assert_eq!(first.dataset.variables.len(), 1);
    let (_, before, _) = stores.counters().snapshot();
    let again = opened(&plain);
    assert_eq!(again.dataset, first.dataset);
    assert_eq!(again.readers.len(), 1);
    assert_eq!(stores.counters().snapshot().1, before, "nothing but versions was asked for");
    // Other options make another entry.
    let bare = Options { decode_cf: false, ..Options::default() };
    opened(&bare);
    assert!(stores.counters().snapshot().1 > before);
    // Changed labels, metadata, attributes, a new array, a removed one: each is visible at once.
    put(&*bucket, "g/x/c/0", "\u{1}\u{2}\u{7}".into());
    assert_ne!(labels(&opened(&plain)), labels(&first));
    put(&*bucket, "g/v/zarr.json", array(3).replace("int8", "int16"));
    assert_ne!(opened(&plain).dataset.variables, first.dataset.variables);
    put(&*bucket, "g/zarr.json", group.replace("\"a\"", "\"b\""));
    assert_ne!(opened(&plain).dataset.attrs, first.dataset.attrs);
    put(&*bucket, "g/w/zarr.json", array(3));
    assert_eq!(opened(&plain).dataset.variables.len(), 2);
    run(bucket.delete(&Path::from("g/v/zarr.json"))).unwrap();
    assert_eq!(opened(&plain).dataset.variables.len(), 1);
    run(bucket.delete(&Path::from("g/zarr.json"))).unwrap();
    assert_eq!(run(open("s3://b/g", &plain, &stores)).unwrap_err().code(), "not_an_array");
}

#[test]
fn shards_are_looked_up_again() {
    let stores = stores();
    let url = data("zarr_zoo/v3.zarr");
    let one = run(open(&url, &Options::default(), &stores)).unwrap();
    let two = run(open(&url, &Options::default(), &stores)).unwrap();
    assert_eq!(one.dataset, two.dataset);
    for (a, b) in one.readers.iter().zip(&two.readers) {
        assert!(!Arc::ptr_eq(a, b));
        assert_eq!(whole(a), whole(b));
    }
}

#[test]
fn local_changes_show_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("a.zarr");
    std::fs::create_dir(&at).unwrap();
    let stores = stores();
    let url = at.to_str().unwrap();
    for len in 1..20 {
        std::fs::write(at.join("zarr.json"), array(len)).unwrap();
        let opened = run(open(url, &Options::default(), &stores)).unwrap();
        assert_eq!(opened.dataset.variables[0].source.shape[0], len);
    }
    std::fs::remove_file(at.join("zarr.json")).unwrap();
    assert!(run(open(url, &Options::default(), &stores)).is_err());
}
