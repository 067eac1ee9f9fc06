//! Web servers: with ranges and without, with certificates of authorities that are not known.

use super::*;
use crate::clouds::Trouble;
use crate::clouds::web::{Manners, Web};
use std::time::Instant;
use tessera_planner::error::Class;

fn web(manners: Manners) -> Web {
    let web = Web::start(manners);
    for name in ["npy/i4.npy", "npy/two.npz", "zarr_zoo/v3.zarr/sharded/zarr.json"] {
        web.put(name, &std::fs::read(data(name)).unwrap());
    }
    let chunks = data("zarr_zoo/v3.zarr/sharded/c");
    for row in std::fs::read_dir(&chunks).unwrap().map(|entry| entry.unwrap().path()) {
        for file in std::fs::read_dir(&row).unwrap().map(|entry| entry.unwrap().path()) {
            let key = file.strip_prefix(data("")).unwrap().to_str().unwrap();
            web.put(key, &std::fs::read(&file).unwrap());
        }
    }
    web
}

fn at(web: &Web, name: &str, stores: &Stores) -> Result<Opened, SourceError> {
    run(open(&web.url(name), &Options::default(), stores))
}

#[test]
fn files_are_read_by_range() {
    for manners in [Manners::default(), Manners { no_versions: true, ..Manners::default() }] {
        let (web, stores) = (web(manners), stores());
        for name in ["npy/i4.npy", "npy/two.npz", "zarr_zoo/v3.zarr/sharded"] {
            let (remote, local) = (at(&web, name, &stores), open_local(&data(name)).unwrap());
            for (r, l) in remote.unwrap().readers.iter().zip(&local.readers) {
                assert_eq!(whole(r), whole(l), "{name}");
            }
        }
        for trouble in Trouble::PASSING {
            // A response without an etag is not resumed: it is asked for again.
            web.server.trouble_once(trouble);
            let stores = Stores::with_environment(Duration::from_secs(30), []);
            assert!(at(&web, "npy/i4.npy", &stores).is_ok(), "{trouble:?}");
        }
        let none = at(&web, "npy/none.npy", &stores).unwrap_err();
        assert_eq!(none.code(), "not_found", "{none}");
    }
}

#[test]
fn a_server_without_ranges_is_reported() {
    let (web, stores) = (web(Manners { no_ranges: true, ..Manners::default() }), stores());
    for name in ["npy/i4.npy", "npy/two.npz"] {
        let e = at(&web, name, &stores).unwrap_err();
        assert_eq!((e.code(), e.class()), ("unsupported", Class::User), "{e}");
        assert!(e.to_string().contains("ignores range requests"), "{e}");
        assert!(e.to_string().contains(&web.url(name)) && e.hint().is_some(), "{e}");
    }
    // Metadata and chunks are whole files; the index of a shard is not.
    let opened = at(&web, "zarr_zoo/v3.zarr/sharded", &stores).unwrap();
    web.server.take_seen();
    let e = read(&opened.readers[0], &Region::at(&[4, 6], &[2, 2])).unwrap_err();
    assert!(e.code() == "unsupported" && e.to_string().contains("ignores range requests"), "{e}");
    assert_eq!(web.server.take_seen().len(), 1, "it is asked once");
}

#[test]
fn a_server_without_lengths_is_reported() {
    let (web, stores) = (web(Manners { no_lengths: true, ..Manners::default() }), stores());
    let e = at(&web, "zarr_zoo/v3.zarr/sharded", &stores).unwrap_err();
    assert!(e.to_string().contains("reports no length"), "{e}");
}

#[test]
fn a_file_is_of_one_version_within_a_statement() {
    let (web, stores) = (web(Manners::default()), stores());
    let (url, versions) = (web.url("npy/i4.npy"), Versions::new(false));
    let opened = run(open_for(&versions, &url, &Options::default(), &stores)).unwrap();
    let bytes = std::fs::read(data("npy/i4.npy")).unwrap();
    web.put("npy/i4.npy", &bytes);
    let e = read(&opened.readers[0], &Region::whole(&opened.readers[0].source().shape));
    let e = e.unwrap_err();
    assert_eq!((e.code(), e.class()), ("source_changed", Class::Retry), "{e}");
}

#[test]
fn a_server_that_does_not_respond_is_reported_within_the_time_out() {
    let web = web(Manners::default());
    web.server.plan(|_, _| Some(Trouble::Silent));
    let stores = Stores::with_environment(Duration::from_secs(2), []);
    let begin = Instant::now();
    let e = at(&web, "npy/i4.npy", &stores).unwrap_err();
    assert!(["storage_timeout", "unreachable"].contains(&e.code()), "{e}");
    assert_eq!(e.class(), Class::Retry);
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
}

/// Variables of the process that the next test starts.
const URL: &str = "TESSERA_TEST_WEB_URL";

#[test]
fn a_certificate_is_trusted_if_its_authority_is_in_ssl_cert_file() {
    let web = Web::start_tls(Manners::default());
    web.put("i4.npy", &std::fs::read(data("npy/i4.npy")).unwrap());
    let e = at(&web, "i4.npy", &stores()).unwrap_err();
    assert_eq!(e.code(), "unreachable", "{e}");
    assert!(e.to_string().contains("certificate is not trusted"), "{e}");
    assert!(e.hint().unwrap().contains("SSL_CERT_FILE"), "{e}");
    // Another process has the variable from its start.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("authority.pem");
    std::fs::write(&file, web.authority.as_ref().unwrap()).unwrap();
    let name = "source::tests::web::a_file_of_another_process_with_the_authority";
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("SSL_CERT_FILE", &file)
        .env(URL, web.url("i4.npy"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
    assert!(web.server.take_seen().len() >= 2);
}

#[test]
fn a_file_of_another_process_with_the_authority() {
    let Ok(url) = std::env::var(URL) else { return };
    let local = open_local(&data("npy/i4.npy")).unwrap();
    let stores = Stores::new(Duration::from_secs(10));
    let read =
        |options: &Options, url: &str| whole(&run(open(url, options, &stores)).unwrap().readers[0]);
    assert_eq!(read(&Options::default(), &url), whole(&local.readers[0]));
    // Buckets at an endpoint with the same certificate: here the first part of the path would be the bucket.
    let at = url.strip_suffix("/i4.npy").unwrap();
    for (family, bucket) in [("aws", "s3"), ("gcs", "gs"), ("azure", "az")] {
        let endpoint = format!("{family}.endpoint");
        let account = ("azure.account", "acct");
        let options = Options::parse([(endpoint.as_str(), at), account]).unwrap();
        let e = run(open(&format!("{bucket}://bkt/i4.npy"), &options, &stores)).unwrap_err();
        // The server was reached: it has no such file.
        assert_eq!(e.code(), "not_found", "{family}: {e}");
    }
}
