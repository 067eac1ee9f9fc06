//! The warehouse, COPY, arrays and tables in Google's and Azure's stores and in memory.

use crate::clouds::azure::{self, Azure};
use crate::clouds::gcs::{self, Gcs};
use crate::common::Place;
use std::fs;
use std::time::Duration;
use tessera_engine::config::Config;
use tessera_engine::session::{Host, Session};
use tessera_storage::sink::Folder;
use tessera_storage::source::{Options, Stores};

/// A host with these variables, whose warehouse is at a URL.
fn place(warehouse: &str, environment: Vec<(String, String)>) -> Place {
    let directory = tempfile::tempdir().unwrap();
    for name in ["spill", "output"] {
        fs::create_dir(directory.path().join(name)).unwrap();
    }
    let flags = [
        ("warehouse", warehouse.to_string()),
        ("spill-dir", directory.path().join("spill").display().to_string()),
        ("threads", "2".into()),
    ];
    let config = Config::load(&flags.into_iter().collect(), [], None).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let stores = Stores::with_environment(Duration::from_secs(30), environment);
    let host = Host::open_with(config, runtime.handle().clone(), stores).unwrap();
    let session = Session::of(host.clone());
    Place { runtime, session, host, directory }
}

/// One host stores tensors and another one reads them, by whole statements on both surfaces.
fn check(root: &str, environment: &[(String, String)]) {
    let warehouse = format!("{root}/wh");
    let open = || place(&warehouse, environment.to_vec());
    let lines = |place: &Place, sql: &str| {
        place.lines(sql).unwrap_or_else(|e| panic!("{root}: {sql}: {e}"))
    };
    let first = open();
    let zarr = "STORED AS ZARR OPTIONS (chunks '[2, 3]')";
    lines(
        &first,
        "CREATE TENSOR x AS SELECT reshape(arange(24), [6, 4], dims => ['row', 'col']) AS x",
    );
    lines(&first, &format!("COPY (SELECT x FROM x) TO '{root}/x.zarr' {zarr}"));
    lines(&first, &format!("COPY (SELECT x FROM x) TO '{root}/x.npy' STORED AS NPY"));
    for format in ["PARQUET", "CSV", "ARROW"] {
        let to = format!("{root}/rows.{}", format.to_lowercase());
        lines(&first, &format!("COPY (SELECT x FROM x) TO '{to}' STORED AS {format}"));
    }
    let again = first.lines(&format!("COPY (SELECT x FROM x) TO '{root}/x.zarr' {zarr}"));
    assert!(again.unwrap_err().starts_with("already_exists"), "{root}");
    drop(first);
    let second = open();
    let sum = lines(&second, "SELECT sum(x) AS s FROM x");
    assert!(sum.iter().any(|line| line.contains("276")), "{root}: {sum:?}");
    for name in ["x.zarr", "x.npy"] {
        let read = lines(&second, &format!("SELECT sum(x) AS s FROM '{root}/{name}' AS x"));
        assert_eq!(read, sum, "{root}/{name}");
    }
    for name in ["rows.parquet", "rows.csv", "rows.arrow"] {
        let sql = format!("SELECT sum(x) AS s, count(*) AS n FROM '{root}/{name}'");
        let read = lines(&second, &sql);
        assert!(read.iter().any(|line| line.contains("276") && line.contains("24")), "{read:?}");
    }
    let append = "STORED AS ZARR OPTIONS (append 'row')";
    lines(&second, &format!("COPY (SELECT x FROM x) TO '{root}/x.zarr' {append}"));
    let twice = lines(&second, &format!("SELECT sum(x) AS s FROM '{root}/x.zarr'"));
    assert!(twice.iter().any(|line| line.contains("552")), "{root}: {twice:?}");
    lines(&second, "CREATE OR REPLACE TENSOR x AS SELECT x + 1 AS x FROM x; DROP TENSOR x");
    let none = second.lines(&format!("SELECT count(*) AS n FROM '{root}/none.parquet'"));
    assert!(none.unwrap_err().starts_with("not_found"), "{root}");
}

#[test]
fn everything_may_be_in_a_bucket_of_google() {
    let gcs = Gcs::start();
    check("gs://bkt", &gcs.environment(Some(gcs::TOKEN)));
}

#[test]
fn everything_may_be_in_a_container_of_azure() {
    let azure = Azure::start();
    check("az://bkt", &azure.environment(Some(azure::KEY)));
}

#[test]
fn everything_may_be_in_memory() {
    check("memory://everything", &[]);
}

#[test]
fn secrets_of_statements_are_not_shown() {
    let gcs = Gcs::start();
    let place = place("memory://secrets/wh", gcs.environment(None));
    let options = "OPTIONS ('gcs.service_account_key' 'S3KRET', 'gcs.anonymous' 'false')";
    let sql = format!("COPY (SELECT arange(3) AS x) TO 'gs://bkt/x.zarr' STORED AS ZARR {options}");
    let e = place.lines(&sql).unwrap_err();
    assert!(e.starts_with("bad_url") && !e.contains("S3KRET"), "{e}");
    let external =
        format!("CREATE EXTERNAL TABLE e STORED AS CSV LOCATION 'gs://bkt/x.csv' {options}");
    let _ = place.lines(&external);
    let stored = place.runtime.block_on(async {
        let stores = Stores::with_environment(Duration::from_secs(5), []);
        let folder = Folder::open("memory://secrets/wh", &Options::default(), &stores).unwrap();
        let mut all = String::new();
        for (key, _) in folder.list_below("").await.unwrap() {
            let bytes = folder.get(&key).await.unwrap().unwrap_or_default();
            all += &String::from_utf8_lossy(&bytes);
        }
        all
    });
    assert!(!stored.contains("S3KRET"), "{stored}");
}
