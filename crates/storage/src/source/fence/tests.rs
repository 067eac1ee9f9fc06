//! Allowed and denied locations.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::os::unix::fs::symlink;

fn rules(read: &[&str], write: &[&str]) -> Rules {
    let list = |l: &[&str]| Some(l.iter().map(|s| s.to_string()).collect());
    Rules { read: list(read), write: list(write) }
}

fn check(fence: &Arc<Fence>, url: &str, endpoint: Option<&str>, access: Access) -> bool {
    let endpoint = endpoint.map(String::from);
    let mut options = Options { endpoint: endpoint.clone(), ..Options::default() };
    (options.gcs.endpoint, options.azure.endpoint) = (endpoint.clone(), endpoint);
    allows(fence, url, &options, access)
}

fn allows(fence: &Arc<Fence>, url: &str, options: &Options, access: Access) -> bool {
    match fence.check(&Location::parse(url).unwrap(), options, access) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.code(), "not_allowed", "{url}");
            false
        }
    }
}

#[test]
fn links_and_dots_are_resolved_first() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    for name in ["open/in", "shut", "wh/data", "wh/files", "wh/statements"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    std::fs::write(at("shut/x.npy"), "x").unwrap();
    symlink(at("shut"), at("open/link")).unwrap();
    symlink("../shut/x.npy", at("open/x.npy")).unwrap();
    symlink("in", at("open/same")).unwrap();
    symlink("loop", at("open/loop")).unwrap();
    let root = at("open").display().to_string();
    let wh = at("wh").display().to_string();
    let fence = Arc::new(Fence::new(rules(&[&root], &[]), Some(&wh), &[], None).unwrap());
    let mut seen = Vec::new();
    for (path, reads, writes) in [
        ("open", true, false),
        ("open/in/new.npy", true, false),
        ("open/same/x.npy", true, false),
        ("open/../open/x.zarr", true, false),
        ("open/none/../in", true, false),
        ("opener", false, false),
        ("open/x.npy", false, false),
        ("open/link/x.npy", false, false),
        ("open/link/../open/in", true, false),
        ("open/../shut/x.npy", false, false),
        ("open/none/../../shut/x.npy", false, false),
        ("open/loop", false, false),
        ("wh", false, false),
        ("wh/catalog/t.json", false, false),
        ("wh/statements/1.json", false, false),
        ("wh/data/1.zarr", true, false),
        ("wh/data/../statements/1.json", false, false),
        ("wh/files/x.npy", true, true),
    ] {
        let url = at(path).display().to_string();
        let found =
            (check(&fence, &url, None, Access::Read), check(&fence, &url, None, Access::Write));
        assert_eq!(found, (reads, writes), "{path}");
        assert!(check(&fence, &url, None, Access::Own));
        seen.push(found.0);
    }
    assert!(seen.contains(&true) && seen.contains(&false));
    // A file opened through a link is checked by the link's target.
    let location = Location::parse(&root).unwrap();
    let (_, fenced) = fence.check(&location, &Options::default(), Access::Read).unwrap();
    let fenced = fenced.unwrap();
    let opened = |path: &str| {
        let file = File::open(at(path)).unwrap();
        fenced.opened(&file, &at(path), path).is_ok()
    };
    std::fs::write(at("open/in/y.npy"), "y").unwrap();
    assert!(opened("open/same/y.npy") && !opened("open/x.npy") && !opened("open/link/x.npy"));
}

#[test]
fn statements_may_read_all_but_the_servers_own_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let private = [directory.path().join("scratch-")];
    let fence =
        Arc::new(Fence::new(rules(&["*"], &["*"]), Some(&at("wh")), &private, None).unwrap());
    for (path, allowed) in
        [("x.npy", true), ("wh/catalog/x.json", false), ("scratch-1/a/data.npy", false)]
    {
        assert_eq!(check(&fence, &at(path), None, Access::Read), allowed, "{path}");
        assert_eq!(check(&fence, &at(path), None, Access::Write), allowed, "{path}");
    }
    let lent = fence.lend(Path::new(&at("scratch-1/a/data.npy")));
    assert!(check(&fence, &at("scratch-1/a/data.npy"), None, Access::Read));
    assert!(!check(&fence, &at("scratch-1/b/data.npy"), None, Access::Read));
    assert!(!check(&fence, &at("scratch-1/a/data.npy"), None, Access::Write));
    drop(lent);
    assert!(!check(&fence, &at("scratch-1/a/data.npy"), None, Access::Read));
}

#[test]
fn rules_are_sent_whole_to_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let fence =
        Fence::new(rules(&[&at("open")], &[&at("out")]), Some(&at("wh")), &[], None).unwrap();
    let there = Arc::new(Fence::new(fence.rules().clone(), None, &[], None).unwrap());
    for (path, reads, writes) in [
        ("open/x.npy", true, false),
        ("out/x.npy", true, true),
        ("wh/data/x.zarr", true, false),
        ("wh/files/x.npy", true, true),
        ("wh/catalog/x.json", false, false),
        ("shut/x.npy", false, false),
    ] {
        assert_eq!(check(&there, &at(path), None, Access::Read), reads, "{path}");
        assert_eq!(check(&there, &at(path), None, Access::Write), writes, "{path}");
    }
    // With one list only, the other access is unrestricted.
    let reading = Rules { read: Some(vec![at("open")]), write: None };
    let fence = Arc::new(Fence::new(reading, None, &[], None).unwrap());
    assert!(check(&fence, &at("x"), None, Access::Write));
    assert!(!check(&fence, &at("x"), None, Access::Read));
    assert!(Fence::new(Rules::default(), None, &[], None).unwrap().is_open());
}

#[test]
fn prefixes_end_where_names_end() {
    let read = ["s3://open/era5", "https://data.example/public/", "http://minio:9000/open"];
    let fence = Fence::new(rules(&read, &["s3://out"]), Some("s3://wh/w"), &[], None).unwrap();
    let fence = Arc::new(fence);
    for (url, endpoint, reads, writes) in [
        ("s3://open/era5/x.zarr", None, true, false),
        ("s3://open/era5x", None, false, false),
        ("s3://open", None, false, false),
        ("s3://out/x", None, true, true),
        ("s3://outer/x", None, false, false),
        ("s3://wh/w/catalog/x.json", None, false, false),
        ("s3://wh/w/files/x.npy", None, true, true),
        ("https://data.example/public/x.zarr", None, true, false),
        ("https://data.example/public/%2e%2e/x", None, false, false),
        ("https://data.example/publicx", None, false, false),
        ("https://data.example:444/public/x", None, false, false),
        ("https://data.example@evil.example/public/x", None, false, false),
        ("http://data.example/public/x", None, false, false),
        ("http://169.254.169.254/latest", None, false, false),
        // The bucket of another endpoint is another bucket.
        ("s3://open/era5/x.zarr", Some("http://169.254.169.254"), false, false),
        ("s3://open/x", Some("http://minio:9000"), true, false),
        ("s3://shut/x", Some("http://minio:9000/"), false, false),
        ("s3://../shut/x", Some("http://minio:9000/open"), false, false),
        ("s3://open/x", Some("minio"), false, false),
    ] {
        assert_eq!(check(&fence, url, endpoint, Access::Read), reads, "{url} {endpoint:?}");
        assert_eq!(check(&fence, url, endpoint, Access::Write), writes, "{url} {endpoint:?}");
    }
    let hop = |to: &str, home| fence.hop(&Url::parse(to).unwrap(), home).is_ok();
    assert!(hop("https://data.example/public/y?sig=1", None));
    assert!(!hop("https://data.example/private", Some("https://other.example")));
    assert!(!hop("http://127.0.0.1:6379/", None));
    assert!(hop("http://minio:9000/any", Some("http://minio:9000")));
    let all = Arc::new(Fence::new(rules(&["https://", "s3://"], &[]), None, &[], None).unwrap());
    assert!(check(&all, "https://any.example/x", None, Access::Read));
    assert!(!check(&all, "http://any.example/x", None, Access::Read));
    assert!(check(&all, "s3://any/x", None, Access::Read));
    assert!(!check(&all, "s3://any/x", Some("http://any.example"), Access::Read));
}

#[test]
fn rules_hold_for_every_store() {
    let read = [
        "gs://open/era5",
        "az://open/era5",
        "abfss://open@other.dfs.core.windows.net/era5",
        "memory://open",
        "http://emulator:4443/open",
    ];
    let write = ["gs://out", "az://out", "memory://out/x"];
    let account = Some("acct");
    let of = |account: Option<&str>, url: &str| {
        let location = Location::parse(url).unwrap();
        let StoragePath::Object { root, prefix } = location.path else { panic!("{url}") };
        let path = StoragePath::Object { root: root.of_account(account), prefix };
        Location { path, ..location }
    };
    let fence = Fence::new(rules(&read, &write), Some("az://wh/w"), &[], account).unwrap();
    let shown = fence.rules().clone();
    let fence = Arc::new(fence);
    // Another process, in an environment with another account, has the same rules.
    let there = Arc::new(Fence::new(shown, None, &[], Some("another")).unwrap());
    for (url, endpoint, reads, writes) in [
        ("gs://open/era5/x.zarr", None, true, false),
        ("gs://open/era5x", None, false, false),
        ("gs://open", None, false, false),
        ("gs://out/x", None, true, true),
        ("gs://outer/x", None, false, false),
        ("s3://open/era5/x.zarr", None, false, false),
        ("az://open/era5/x.zarr", None, true, false),
        ("abfs://open/era5", None, true, false),
        ("abfss://open@acct.dfs.core.windows.net/era5", None, true, false),
        ("abfss://open@acct.blob.core.windows.net/era5", None, true, false),
        ("abfss://open@other.dfs.core.windows.net/era5/x", None, true, false),
        ("abfss://open@third.dfs.core.windows.net/era5", None, false, false),
        ("az://out/x", None, true, true),
        ("abfss://out@other.dfs.core.windows.net/x", None, false, false),
        ("az://open/era", None, false, false),
        ("memory://open/x", None, true, false),
        ("memory:///open/x", None, true, false),
        ("memory://opener", None, false, false),
        ("memory://out/x/y", None, true, true),
        // A bucket of another endpoint is another bucket.
        ("gs://open/era5/x.zarr", Some("http://169.254.169.254"), false, false),
        ("az://open/era5/x.zarr", Some("http://169.254.169.254/"), false, false),
        ("gs://open/x", Some("http://emulator:4443"), true, false),
        ("az://open/x", Some("http://emulator:4443/"), true, false),
        ("gs://shut/x", Some("http://emulator:4443"), false, false),
        ("gs://x/y", Some("http://emulator:4443/open?"), false, false),
        ("az://x/y", Some("http://emulator:4443/open#"), false, false),
        ("az://x/y", Some("http://emulator:4443/open/../shut"), false, false),
        ("gs://open/x", Some("http://a@emulator:4443"), false, false),
    ] {
        let mut options = Options::default();
        options.gcs.endpoint = endpoint.map(String::from);
        options.azure.endpoint = endpoint.map(String::from);
        for fence in [&fence, &there] {
            let check = |access| fence.check(&of(account, url), &options, access).is_ok();
            assert_eq!(check(Access::Read), reads, "{url} {endpoint:?}");
            assert_eq!(check(Access::Write), writes, "{url} {endpoint:?}");
        }
    }
    for (key, reads, writes) in
        [("catalog/x.json", false, false), ("data/x.zarr", true, false), ("files/x", true, true)]
    {
        let location = of(account, &format!("az://wh/w/{key}"));
        let check = |access| fence.check(&location, &Options::default(), access).is_ok();
        assert_eq!((check(Access::Read), check(Access::Write)), (reads, writes), "{key}");
    }
    // The objects below a location are checked, too.
    let (_, fenced) =
        fence.check(&of(None, "gs://open/era5"), &Options::default(), Access::Read).unwrap();
    let fenced = fenced.unwrap();
    assert!(fenced.object("era5/x", "").is_ok() && fenced.object("other/x", "").is_err());
    let schemes = Fence::new(rules(&["gs://", "abfss://", "memory://"], &[]), None, &[], None);
    let schemes = Arc::new(schemes.unwrap());
    for url in ["gs://any/x", "az://any/x", "abfss://c@any.dfs.core.windows.net/x", "memory://x"] {
        assert!(check(&schemes, url, None, Access::Read), "{url}");
        assert!(!check(&schemes, url, None, Access::Write), "{url}");
    }
    assert!(!check(&schemes, "s3://any/x", None, Access::Read));
    assert!(!check(&schemes, "gs://any/x", Some("http://any.example"), Access::Read));
}

#[test]
fn credentials_in_files_are_used_by_who_may_read_them() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(at("open")).unwrap();
    symlink(at("shut.json"), at("open/link.json")).unwrap();
    let fence = Fence::new(rules(&["gs://", &at("open")], &[]), None, &[], None).unwrap();
    let fence = Arc::new(fence);
    for (file, allowed) in
        [("open/key.json", true), ("shut.json", false), ("open/link.json", false)]
    {
        let mut options = Options::default();
        options.gcs.service_account_path = Some(at(file));
        assert_eq!(allows(&fence, "gs://any/x", &options, Access::Read), allowed, "{file}");
    }
}
