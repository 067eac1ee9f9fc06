//! A real S3 server over HTTP: signatures, refusals, ranges, time-outs.

use super::*;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

const KEY: &str = "AKIATESSERATEST";
const SECRET: &str = "the-secret-of-the-test";

/// A server with the bucket `bkt`, which holds the colpex cube and the Zarr v3 zoo; it ends with its runtime.
struct Server {
    address: SocketAddr,
    _runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn server() -> Server {
    let directory = tempfile::tempdir().unwrap();
    for name in ["colpex.v2.zarr", "zarr_zoo/v3.zarr", "npy"] {
        copy(Path::new(&data(name)), &directory.path().join("bkt").join(name));
    }
    let service = {
        let mut b = S3ServiceBuilder::new(s3s_fs::FileSystem::new(directory.path()).unwrap());
        b.set_auth(SimpleAuth::from_single(KEY, SECRET));
        b.build()
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let http = Builder::new(TokioExecutor::new());
                // A client that goes away is no fault of the server.
                let _ = http.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    Server { address, _runtime: runtime, _directory: directory }
}

impl Server {
    /// `AWS_*` variables for this server.
    fn environment(&self, key: Option<(&str, &str)>) -> Vec<(String, String)> {
        let mut out = vec![
            ("AWS_ENDPOINT_URL".to_string(), format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP".into(), "true".into()),
            ("AWS_REGION".into(), "us-east-1".into()),
        ];
        if let Some((id, secret)) = key {
            out.push(("AWS_ACCESS_KEY_ID".into(), id.into()));
            out.push(("AWS_SECRET_ACCESS_KEY".into(), secret.into()));
        }
        out
    }

    fn stores(&self, key: Option<(&str, &str)>) -> Stores {
        Stores::with_environment(Duration::from_secs(30), self.environment(key))
    }
}

fn open_at(url: &str, options: &[(&str, &str)], stores: &Stores) -> Result<Opened, SourceError> {
    let options = Options::parse(options.iter().copied()).unwrap();
    run(open(url, &options, stores))
}

#[test]
fn signed_reads_give_the_local_cells() {
    let server = server();
    let stores = server.stores(Some((KEY, SECRET)));
    let remote = open_at("s3://bkt/colpex.v2.zarr", &[], &stores).unwrap();
    let local = open_local(&data("colpex.v2.zarr")).unwrap();
    assert_eq!(remote.dataset.coords, local.dataset.coords);
    assert!(remote.readers[0].source().url.starts_with("s3://bkt/colpex"));
    let region = Region::at(&[1, 3, 35, 0], &[3, 4, 20, 83]);
    assert_eq!(
        read(&remote.readers[0], &region).unwrap(),
        read(&local.readers[0], &region).unwrap()
    );
    // Credentials of the table win over those of the environment.
    let wrong = server.stores(Some((KEY, "wrong")));
    let options = [("aws.access_key_id", KEY), ("aws.secret_access_key", SECRET)];
    assert!(open_at("s3://bkt/colpex.v2.zarr", &options, &wrong).is_ok());
    // Without consolidated metadata the prefix is listed; keys may lie in a group.
    let zoo = open_at("s3://bkt/zarr_zoo/v3.zarr", &[], &stores).unwrap();
    assert!(zoo.dataset.variables.len() > 40);
    let one = open_at("s3://bkt/zarr_zoo/v3.zarr#crc32c", &[], &stores).unwrap();
    let here = open_local(&data("zarr_zoo/v3.zarr#crc32c")).unwrap();
    assert_eq!(whole(&one.readers[0]), whole(&here.readers[0]));
    for name in ["i4.npy", "be_f8.npy", "fortran.npy", "two.npz"] {
        let remote = open_at(&format!("s3://bkt/npy/{name}"), &[], &stores).unwrap();
        let local = open_local(&data(&format!("npy/{name}"))).unwrap();
        for (r, l) in remote.readers.iter().zip(&local.readers) {
            assert_eq!(whole(r), whole(l), "{name}");
        }
    }
}

#[test]
fn shards_are_read_by_range() {
    let server = server();
    let stores = server.stores(Some((KEY, SECRET)));
    let opened = open_at("s3://bkt/zarr_zoo/v3.zarr#sharded", &[], &stores).unwrap();
    let (r0, b0, _) = stores.counters().snapshot();
    // np.arange(90).reshape(9, 10)[4:6, 6:8]
    let cells = read(&opened.readers[0], &Region::at(&[4, 6], &[2, 2])).unwrap();
    let got: Vec<i32> = cells.as_chunks().0.iter().map(|c| i32::from_le_bytes(*c)).collect();
    assert_eq!(got, [46, 47, 56, 57]);
    let (r1, b1, _) = stores.counters().snapshot();
    // The index of 100 bytes, then one inner chunk of 16 cells' bytes in zstd.
    assert_eq!(r1 - r0, 2);
    assert!(b1 - b0 > 100 && b1 - b0 < 200, "{}", b1 - b0);
}

#[test]
fn refusals_say_what_is_missing_and_keep_secrets() {
    let server = server();
    let good = Some((KEY, SECRET));
    let cases = [
        ("s3://bkt/colpex.v2.zarr", Some((KEY, "not-the-secret")), "permission_denied"),
        ("s3://bkt/colpex.v2.zarr", Some(("AKIANOBODY", SECRET)), "permission_denied"),
        ("s3://bkt/colpex.v2.zarr", None, "permission_denied"),
        ("s3://elsewhere/colpex.v2.zarr", good, "not_found"),
        ("s3://bkt/nothing.zarr", good, "not_found"),
        ("s3://bkt/nothing.npy", good, "not_found"),
        ("s3://bkt/colpex.v2.zarr#inner", good, "not_found"),
        ("s3://bkt/npy", good, "not_an_array"),
    ];
    for (url, key, code) in cases {
        let begin = Instant::now();
        let e = open_at(url, &[], &server.stores(key)).unwrap_err();
        assert_eq!(e.code(), code, "{url}: {e}");
        let text = format!("{e} {e:?} {:?}", e.hint());
        let place = url.split('#').next().unwrap();
        assert!(text.contains(place), "{text}");
        for secret in [SECRET, "not-the-secret", KEY, "AKIANOBODY"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
    let stores = server.stores(Some((KEY, SECRET)));
    assert!(!format!("{stores:?}").contains(SECRET));
}

#[test]
fn an_unreachable_endpoint_is_told_within_the_time_out() {
    // A port that was free a moment ago; and one that accepts and never answers.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap();
    for (address, codes) in
        [(free, ["unreachable", "unreachable"]), (silent_at, ["storage_timeout", "unreachable"])]
    {
        let stores = Stores::with_environment(Duration::from_secs(3), []);
        let endpoint = format!("http://{address}");
        let options = [
            ("aws.endpoint", endpoint.as_str()),
            ("aws.allow_http", "true"),
            ("aws.anonymous", "true"),
        ];
        let begin = Instant::now();
        let e = open_at("s3://bkt/x.zarr", &options, &stores).unwrap_err();
        assert!(codes.contains(&e.code()), "{} {e}", e.code());
        assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    }
    // Plain http must be allowed.
    let endpoint = format!("http://{free}");
    let e = open_at("s3://bkt/x.zarr", &[("aws.endpoint", &endpoint)], &stores()).unwrap_err();
    assert_eq!(e.code(), "unreachable", "{e}");
}
