//! Google's and Azure's stores, and the memory of the process: they return the same cells as files.

use super::cloud::Cloud;
use super::*;
use crate::clouds::Trouble;
use crate::clouds::azure::{self, Azure};
use crate::clouds::gcs::{self, Gcs};
use crate::sink::{Folder, Mode, Version};
use crate::source::{TableStore, passing};
use futures::TryStreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use std::time::Instant;
use tessera_planner::error::Class;

fn open_at(url: &str, options: &[(&str, &str)], stores: &Stores) -> Result<Opened, SourceError> {
    let options = Options::parse(options.iter().copied()).unwrap();
    run(open(url, &options, stores))
}

fn with(environment: Vec<(String, String)>) -> Stores {
    Stores::with_environment(Duration::from_secs(30), environment)
}

#[test]
fn arrays_in_clouds_equal_arrays_in_files() {
    let local = open_local(&data("colpex.v2.zarr")).unwrap();
    let region = Region::at(&[1, 3, 35, 0], &[3, 4, 20, 83]);
    for cloud in Cloud::filled() {
        let stores = cloud.stores();
        let at = |key: &str| open_at(&cloud.url(key), &[], &stores).unwrap();
        let remote = at("colpex.v2.zarr");
        assert_eq!(remote.dataset.coords, local.dataset.coords);
        assert_eq!(remote.readers[0].source().url, cloud.url("colpex.v2.zarr"));
        assert_eq!(
            read(&remote.readers[0], &region).unwrap(),
            read(&local.readers[0], &region).unwrap()
        );
        // The prefix is listed, in several pages.
        assert!(at("zarr_zoo/v3.zarr").dataset.variables.len() > 40);
        let names = ["npy/i4.npy", "npy/be_f8.npy", "npy/fortran.npy", "npy/two.npz"];
        for name in ["zarr_zoo/v3.zarr#sharded", "zarr_zoo/v3.zarr#crc32c"].iter().chain(&names) {
            let (remote, local) = (at(name), open_local(&data(name)).unwrap());
            assert_eq!(remote.readers.len(), local.readers.len());
            for (r, l) in remote.readers.iter().zip(&local.readers) {
                assert_eq!(whole(r), whole(l), "{}", cloud.url(name));
            }
        }
        // A dataset that was opened before is not read again.
        let bytes = stores.counters().snapshot().1;
        assert_eq!(at("colpex.v2.zarr").dataset.coords, local.dataset.coords);
        assert_eq!(stores.counters().snapshot().1, bytes);
    }
}

#[test]
fn shards_are_read_by_range_and_requests_are_known_before() {
    for cloud in Cloud::filled() {
        let stores = cloud.stores();
        let opened = open_at(&cloud.url("zarr_zoo/v3.zarr#sharded"), &[], &stores).unwrap();
        if let Some(server) = cloud.server() {
            server.take_seen();
        }
        let (r0, b0, _) = stores.counters().snapshot();
        let cells = read(&opened.readers[0], &Region::at(&[4, 6], &[2, 2])).unwrap();
        let got: Vec<i32> = cells.as_chunks().0.iter().map(|c| i32::from_le_bytes(*c)).collect();
        assert_eq!(got, [46, 47, 56, 57]);
        let (r1, b1, _) = stores.counters().snapshot();
        // The index and an inner chunk; Azure is asked for the size of the shard before.
        let requests = if matches!(cloud, Cloud::Azure(_)) { 3 } else { 2 };
        assert_eq!(r1 - r0, requests);
        assert!(b1 - b0 > 100 && b1 - b0 < 200, "{}", b1 - b0);
        if let Some(server) = cloud.server() {
            assert_eq!(server.take_seen().len() as u64, requests);
        }
        let reader = opened.readers[0].fresh();
        let grid = reader.source().grid.clone();
        let estimated = reader.requests(&grid, &[0, 0]);
        let (before, _, _) = stores.counters().snapshot();
        for number in 0..grid.count() {
            read(&reader, &grid.region(&grid.unravel(number))).unwrap();
        }
        assert_eq!(stores.counters().snapshot().0 - before, estimated);
    }
}

#[test]
fn refusals_name_what_is_missing_and_hide_secrets() {
    let secrets =
        ["not-the-secret", gcs::TOKEN, azure::KEY, "bm90LXRoZS1rZXk=", "the%2Fsig", "the/sig"];
    for cloud in Cloud::servers() {
        for name in ["colpex.v2.zarr", "npy", "bad"] {
            cloud.copy(name);
        }
        let (none, wrong) = match &cloud {
            Cloud::Gcs(gcs) => (gcs.environment(None), gcs.environment(Some("not-the-secret"))),
            Cloud::Azure(azure) => {
                (azure.environment(None), azure.environment(Some("bm90LXRoZS1rZXk=")))
            }
            Cloud::Memory(_) => continue,
        };
        let (good, none, wrong) = (cloud.stores(), with(none), with(wrong));
        let elsewhere = cloud.url("colpex.v2.zarr").replace("bkt", "elsewhere");
        let cases = [
            (cloud.url("colpex.v2.zarr"), &wrong, "permission_denied"),
            (cloud.url("colpex.v2.zarr"), &none, "permission_denied"),
            (elsewhere, &good, "not_found"),
            (cloud.url("nothing.zarr"), &good, "not_found"),
            (cloud.url("nothing.npy"), &good, "not_found"),
            (cloud.url("colpex.v2.zarr#inner"), &good, "not_found"),
            (cloud.url("npy"), &good, "not_an_array"),
            (cloud.url("bad/a_file.zarr"), &good, "not_an_array"),
            (cloud.url("bad/npy_nothing.npy"), &good, "invalid_metadata"),
        ];
        for (url, stores, code) in cases {
            let begin = Instant::now();
            let e = open_at(&url, &[], stores).unwrap_err();
            assert_eq!(e.code(), code, "{url}: {e}");
            let text = format!("{e} {e:?} {:?}", e.hint());
            assert!(text.contains(url.split('#').next().unwrap()), "{text}");
            assert!(!secrets.iter().any(|secret| text.contains(secret)), "{text}");
            assert!(begin.elapsed() < Duration::from_secs(5));
            if code == "permission_denied" {
                let hint = e.hint().unwrap();
                assert!(
                    hint.contains("GOOGLE_APP") || hint.contains("AZURE_STORAGE_ACC"),
                    "{hint}"
                );
            }
        }
        assert!(!secrets.iter().any(|secret| format!("{good:?} {wrong:?}").contains(secret)));
        let folder =
            Folder::open(&cloud.url("wh").replace("bkt", "elsewhere"), &Options::default(), &good);
        let e = run(folder.unwrap().put("a.json", b"1".to_vec(), Mode::Create)).unwrap_err();
        assert!(e.code() == "not_found" && e.to_string().contains("bucket"), "{e}");
        let folder = Folder::open(&cloud.url("wh"), &Options::default(), &none).unwrap();
        for mode in [Mode::Create, Mode::Replace] {
            let e = run(folder.put("a.json", b"1".to_vec(), mode)).unwrap_err();
            assert_eq!(e.code(), "permission_denied", "{e}");
            let e = run(folder.names("")).unwrap_err();
            assert_eq!(e.code(), "permission_denied", "{e}");
        }
    }
    let memory = open_at("memory://nothing/at.zarr", &[], &stores()).unwrap_err();
    assert!(memory.code() == "not_found" && memory.hint().unwrap().contains("one process"));
    let e = open_at("az://bkt/x.zarr", &[], &stores()).unwrap_err();
    assert!(e.to_string().contains("storage account is not known"), "{e}");
}

#[test]
fn public_objects_need_no_credentials() {
    for cloud in Cloud::servers() {
        cloud.copy("npy");
        let environment = match &cloud {
            Cloud::Gcs(gcs) => {
                gcs.buckets().get_mut("bkt").unwrap().is_public = true;
                gcs.environment(None)
            }
            Cloud::Azure(azure) => {
                azure.containers().get_mut("bkt").unwrap().is_public = true;
                azure.environment(None)
            }
            Cloud::Memory(_) => continue,
        };
        // No metadata service is waited for.
        let begin = Instant::now();
        let stores = with(environment);
        assert!(open_at(&cloud.url("npy/i4.npy"), &[], &stores).is_ok());
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        // Credentials that are wrong are not sent if nothing is to be signed.
        let (options, wrong) = match &cloud {
            Cloud::Gcs(gcs) => (("gcs.anonymous", "true"), gcs.environment(Some("wrong"))),
            Cloud::Azure(azure) => {
                (("azure.anonymous", "true"), azure.environment(Some("d3Jvbmc=")))
            }
            Cloud::Memory(_) => continue,
        };
        let wrong = with(wrong);
        assert!(open_at(&cloud.url("npy/i4.npy"), &[options], &wrong).is_ok());
        assert!(open_at(&cloud.url("npy/i4.npy"), &[], &wrong).is_err());
    }
}

#[test]
fn every_kind_of_credentials_is_used() {
    let gcs = Gcs::start();
    gcs.put("i4.npy", &std::fs::read(data("npy/i4.npy")).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key.json");
    std::fs::write(&file, gcs::ACCOUNT).unwrap();
    let file = file.display().to_string();
    let of_account = |pairs: &[(&str, &str)]| {
        let mut environment = gcs.environment(None);
        environment.extend(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())));
        with(environment)
    };
    let none = of_account(&[]);
    let endpoint = gcs.endpoint();
    for (options, stores) in [
        (vec![("gcs.token", gcs::TOKEN)], &none),
        (vec![("gcs.service_account_key", gcs::ACCOUNT)], &none),
        (vec![("gcs.service_account_path", &file)], &none),
        (vec![], &of_account(&[("GOOGLE_APPLICATION_CREDENTIALS", &file)])),
        (vec![], &of_account(&[("GOOGLE_SERVICE_ACCOUNT", &file)])),
        (vec![], &of_account(&[("GOOGLE_SERVICE_ACCOUNT_KEY", gcs::ACCOUNT)])),
        (
            vec![
                ("gcs.endpoint", &endpoint),
                ("gcs.allow_http", "true"),
                ("gcs.service_account_key", gcs::ACCOUNT),
            ],
            &stores(),
        ),
    ] {
        let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
        let opened = open_at("gs://bkt/i4.npy", &options, stores);
        assert!(opened.is_ok(), "{names:?}: {opened:?}");
    }
    // The key of another account; a text that is no key; an unknown kind.
    let other = gcs::ACCOUNT.replace("test@", "other@");
    let e = open_at("gs://bkt/i4.npy", &[("gcs.service_account_key", &other)], &none).unwrap_err();
    assert_eq!(e.code(), "permission_denied", "{e}");
    let kind = directory.path().join("kind.json");
    std::fs::write(&kind, r#"{"type": "external_account", "audience": "S3KRET"}"#).unwrap();
    let (kind, absent) = (kind.display().to_string(), format!("{file}.none"));
    for (option, value, told) in [
        ("gcs.service_account_key", "{\"private_key\": \"S3KRET\"}", "credentials cannot be read"),
        ("gcs.service_account_key", "S3KRET", "credentials cannot be read"),
        ("gcs.service_account_path", &absent, "credentials cannot be read"),
        ("gcs.service_account_path", &kind, "of a kind that is not read"),
    ] {
        let e = open_at("gs://bkt/i4.npy", &[(option, value)], &none).unwrap_err();
        assert!(e.to_string().contains(told) && !format!("{e:?}").contains("S3KRET"), "{e}");
    }

    let azure = Azure::start();
    azure.put("i4.npy", &std::fs::read(data("npy/i4.npy")).unwrap());
    let none = with(azure.environment(None));
    let connection = format!(
        "BlobEndpoint={};AccountName={};AccountKey={}",
        azure.endpoint(),
        azure::ACCOUNT,
        azure::KEY
    );
    let of_connection = [("AZURE_STORAGE_CONNECTION_STRING".to_string(), connection.clone())];
    let of_tools = [
        ("AZURE_STORAGE_ACCOUNT", azure::ACCOUNT),
        ("AZURE_STORAGE_KEY", azure::KEY),
        ("AZURE_STORAGE_ENDPOINT", &azure.endpoint()),
        ("AZURE_ALLOW_HTTP", "true"),
    ];
    let of_tools = of_tools.map(|(name, value)| (name.to_string(), value.to_string()));
    let named = format!("abfss://bkt@{}.dfs.core.windows.net/i4.npy", azure::ACCOUNT);
    for (url, options, stores) in [
        ("az://bkt/i4.npy", vec![("azure.account_key", azure::KEY)], &none),
        ("abfs://bkt/i4.npy", vec![("azure.sas_token", azure::SAS)], &none),
        ("az://bkt/i4.npy", vec![("azure.token", azure::TOKEN)], &none),
        ("az://bkt/i4.npy", vec![("azure.connection_string", &connection)], &stores()),
        ("az://bkt/i4.npy", vec![], &with(of_connection.to_vec())),
        (&named, vec![], &with(of_tools.to_vec())),
    ] {
        let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
        let opened = open_at(url, &options, stores);
        assert!(opened.is_ok(), "{url} {names:?}: {opened:?}");
    }
    for (name, value) in [
        ("azure.sas_token", "sv=1&sig=S3KRET"),
        ("azure.account_key", "S3KRETS3KRET"),
        ("azure.token", "S3KRET"),
    ] {
        let e = open_at("az://bkt/i4.npy", &[(name, value)], &none).unwrap_err();
        assert_eq!(e.code(), "permission_denied", "{name}: {e}");
        assert!(!format!("{e:?} {e}").contains("S3KRET"), "{e:?}");
    }
    let e = open_at("az://bkt/i4.npy", &[("azure.account_key", "S3KRET!")], &none).unwrap_err();
    assert!(e.to_string().contains("not valid") && !format!("{e:?}").contains("S3KRET"), "{e}");
}

#[test]
fn credentials_of_the_environment_go_to_its_endpoint_only() {
    let (own, other) = (Gcs::start(), Gcs::start());
    let stores = with(own.environment(Some(gcs::TOKEN)));
    let bytes = std::fs::read(data("npy/i4.npy")).unwrap();
    own.put("i4.npy", &bytes);
    other.put("i4.npy", &bytes);
    assert!(open_at("gs://bkt/i4.npy", &[], &stores).is_ok());
    let endpoint = other.endpoint();
    let e = open_at("gs://bkt/i4.npy", &[("gcs.endpoint", &endpoint)], &stores).unwrap_err();
    assert_eq!(e.code(), "permission_denied", "{e}");
    // Signing that is asked for needs credentials in the options, too.
    let signed = [("gcs.endpoint", endpoint.as_str()), ("gcs.anonymous", "false")];
    let e = open_at("gs://bkt/i4.npy", &signed, &stores).unwrap_err();
    assert_eq!(e.code(), "permission_denied", "{e}");
    other.server.take_seen();
    // A key that names a server, as emulators want it, does not lead there.
    let key = gcs::ACCOUNT.replacen('{', &format!("{{\"gcs_base_url\": \"{endpoint}\","), 1);
    assert!(open_at("gs://bkt/i4.npy", &[("gcs.service_account_key", &key)], &stores).is_ok());
    assert!(other.server.take_seen().is_empty());

    let (own, other) = (Azure::start(), Azure::start());
    let mut environment = own.environment(None);
    environment.push(("AZURE_STORAGE_SAS_TOKEN".into(), azure::SAS.into()));
    let stores = with(environment);
    own.put("i4.npy", &bytes);
    other.put("i4.npy", &bytes);
    assert!(open_at("az://bkt/i4.npy", &[], &stores).is_ok());
    let endpoint = other.endpoint();
    let e = open_at("az://bkt/i4.npy", &[("azure.endpoint", &endpoint)], &stores).unwrap_err();
    assert_eq!(e.code(), "permission_denied", "{e}");
    let more = [("azure.client_secret", "x"), ("azure.anonymous", "false")];
    let begin = Instant::now();
    let options: Vec<_> = more.into_iter().chain([("azure.endpoint", endpoint.as_str())]).collect();
    let e = open_at("az://bkt/i4.npy", &options, &stores).unwrap_err();
    assert_eq!(e.code(), "permission_denied", "{e}");
    assert!(begin.elapsed() < Duration::from_secs(2), "no metadata service is asked");
    assert!(other.server.take_seen().iter().all(|line| !line.contains("sig")));
}

#[test]
fn an_unreachable_endpoint_is_reported_within_the_time_out() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap();
    for (url, family) in [("gs://bkt/x.zarr", "gcs"), ("az://bkt/x.zarr", "azure")] {
        for (address, codes) in [
            (free, ["unreachable", "unreachable"]),
            (silent_at, ["storage_timeout", "unreachable"]),
        ] {
            let stores = Stores::with_environment(
                Duration::from_secs(3),
                [("AZURE_STORAGE_ACCOUNT".to_string(), "acct".to_string())],
            );
            let (endpoint, allow) = (format!("{family}.endpoint"), format!("{family}.allow_http"));
            let at = format!("http://{address}");
            let options = [(endpoint.as_str(), at.as_str()), (allow.as_str(), "true")];
            let begin = Instant::now();
            let e = open_at(url, &options, &stores).unwrap_err();
            assert!(codes.contains(&e.code()), "{} {e}", e.code());
            assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
            // Plain http must be allowed.
            let e = open_at(url, &options[..1], &stores).unwrap_err();
            assert_eq!(e.code(), "unreachable", "{e}");
            assert!(e.hint().unwrap().contains("ALLOW_HTTP=true"), "{e}");
        }
    }
}

#[test]
fn reads_that_fail_by_chance_are_made_again() {
    let local = open_local(&data("colpex.v2.zarr")).unwrap();
    let region = Region::at(&[1, 3, 35, 0], &[3, 4, 20, 83]);
    let cells = read(&local.readers[0], &region).unwrap();
    let sharded = whole(&open_local(&data("zarr_zoo/v3.zarr#sharded")).unwrap().readers[0]);
    for cloud in Cloud::filled() {
        let Some(server) = cloud.server() else { continue };
        for trouble in [Trouble::Busy, Trouble::Truncated] {
            server.trouble_once(trouble);
            let before = server.troubles();
            let stores = cloud.stores();
            let remote = open_at(&cloud.url("colpex.v2.zarr"), &[], &stores).unwrap();
            assert_eq!(read(&remote.readers[0], &region).unwrap(), cells, "{trouble:?}");
            let one = open_at(&cloud.url("zarr_zoo/v3.zarr#sharded"), &[], &stores).unwrap();
            assert_eq!(whole(&one.readers[0]), sharded, "{trouble:?}");
            let none = open_at(&cloud.url("nothing.zarr"), &[], &stores).unwrap_err();
            assert_eq!(none.code(), "not_found", "{trouble:?}: {none}");
            assert!(server.troubles() - before > 20, "{trouble:?}");
        }
    }
}

#[test]
fn a_version_is_replaced_once_whatever_happens_to_the_answer() {
    for cloud in Cloud::all() {
        for trouble in Trouble::PASSING {
            if let Some(server) = cloud.server() {
                // Of the attempts of a request, every second one is answered.
                server.plan(move |n, _| (n % 2 == 0).then_some(trouble));
            }
            let stores = cloud.stores();
            let folder = Folder::open(&cloud.url("wh"), &Options::default(), &stores).unwrap();
            let put = |text: &str, mode| run(folder.put("a.json", text.as_bytes().to_vec(), mode));
            let there = || run(folder.get_version("a.json")).unwrap();
            let what = format!("{} {trouble:?}", cloud.url(""));
            assert_eq!(there(), None, "{what}");
            let first = put("1", Mode::Create).unwrap_or_else(|e| panic!("{what}: {e}"));
            // The same document by another writer is not ours.
            assert_eq!(put("1", Mode::Create).unwrap_err().code(), "already_exists", "{what}");
            assert_eq!(there(), Some(("1".into(), first.clone())), "{what}");
            let update = |text: &str, from: &Version| put(text, Mode::Update(from.clone()));
            let second = update("2", &first).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(there(), Some(("2".into(), second.clone())), "{what}");
            for text in ["3", "2"] {
                let late = update(text, &first).unwrap_err();
                assert_eq!(
                    (late.code(), late.class()),
                    ("document_changed", Class::Retry),
                    "{what}"
                );
            }
            assert_eq!(there(), Some(("2".into(), second.clone())), "{what}");
            assert_eq!(run(folder.names("")).unwrap(), ["a.json"], "{what}");
            assert!(run(folder.remove("a.json")).unwrap(), "{what}");
            assert_eq!(update("4", &second).unwrap_err().code(), "document_changed", "{what}");
            assert_eq!(there(), None, "{what}");
            put("5", Mode::Replace).unwrap_or_else(|e| panic!("{what}: {e}"));
            run(folder.remove_all("")).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(run(folder.names("")).unwrap().is_empty(), "{what}");
            assert!(!run(folder.remove("a.json")).unwrap(), "{what}");
        }
    }
}

/// Two chunks of two `uint8` cells; absent cells are 9.
const ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"uint8",
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},
    "chunk_key_encoding":{"name":"default"},"fill_value":9,"codecs":[{"name":"bytes"}]}"#;

#[test]
fn an_object_is_of_one_version_within_a_statement() {
    for cloud in Cloud::all() {
        cloud.put("a.zarr/zarr.json", ARRAY.as_bytes());
        cloud.put("a.zarr/c/0", &[1, 2]);
        let (stores, versions) = (cloud.stores(), Versions::new(false));
        let open = |versions: &Arc<Versions>| {
            run(open_for(versions, &cloud.url("a.zarr"), &Options::default(), &stores)).unwrap()
        };
        let opened = open(&versions);
        for _ in 0..2 {
            assert_eq!(whole(&opened.readers[0]), [1, 2, 9, 9]);
        }
        let is_changed = |cells: Result<Vec<u8>, SourceError>, what: &str| {
            let e = cells.unwrap_err();
            assert_eq!((e.code(), e.class()), ("source_changed", Class::Retry), "{e}");
            assert!(e.to_string().contains(&cloud.url(what)), "{e}");
        };
        cloud.put("a.zarr/c/0", &[7, 7]);
        if let Some(server) = cloud.server() {
            server.take_seen();
        }
        is_changed(read(&opened.readers[0], &Region::at(&[0], &[2])), "a.zarr/c/0");
        if let Some(server) = cloud.server() {
            assert_eq!(server.take_seen().len(), 1, "it was asked for once, and not again");
        }
        assert_eq!(whole(&open(&Versions::new(false)).readers[0]), [7, 7, 9, 9]);
        cloud.put("a.zarr/c/1", &[3, 4]);
        is_changed(read(&opened.readers[0], &Region::at(&[2], &[2])), "a.zarr/c/1");
        cloud.remove("a.zarr/c/0");
        is_changed(read(&opened.readers[0], &Region::at(&[0], &[2])), "a.zarr/c/0");
    }
}

#[test]
fn files_of_tables_are_listed_and_read_in_one_version() {
    for cloud in Cloud::all() {
        for n in 0..12 {
            cloud.put(&format!("t/a{n:02}.csv"), format!("number {n}").as_bytes());
        }
        cloud.put("t/b.txt", b"another");
        cloud.put("tt.csv", b"not below it");
        let (stores, versions) = (cloud.stores(), Versions::new(false));
        assert!(run(stores.exists(&cloud.url("t"), &Options::default())).unwrap().is_directory);
        let file = cloud.url("t/a00.csv");
        assert!(!run(stores.exists(&file, &Options::default())).unwrap().is_directory);
        let reached = stores.reach(&cloud.url("t"), &Options::default()).unwrap();
        let client = reached.place.clone().unwrap();
        let seen =
            TableStore::remote(&reached, &client, &client.root, &Options::default(), &versions);
        let all: Vec<_> =
            run(seen.list(Some(&Key::parse(&client.key).unwrap())).try_collect()).unwrap();
        assert_eq!(all.len(), 13);
        for meta in all.iter().filter(|meta| meta.location.as_ref().ends_with(".csv")) {
            let bytes = run(async { seen.get(&meta.location).await?.bytes().await }).unwrap();
            assert_eq!(bytes.len() as u64, meta.size);
        }
        let key = Key::parse(format!("{}/a03.csv", client.key)).unwrap();
        let parts = run(seen.get_ranges(&key, &[0..1, 7..8])).unwrap();
        assert_eq!(parts, ["n", "3"]);
        let tail = GetOptions { range: Some(GetRange::Suffix(2)), ..GetOptions::default() };
        assert_eq!(run(async { seen.get_opts(&key, tail).await?.bytes().await }).unwrap(), " 3");
        cloud.put("t/a03.csv", b"NUMBER 3");
        let e = run(seen.get_range(&key, 0..1)).unwrap_err();
        let told = passing(&e).unwrap();
        assert_eq!(told.code(), "source_changed");
        assert!(told.to_string().contains(&cloud.url("t/a03.csv")), "{told}");
    }
}
