#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use std::io::Write;

fn load(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &str)],
) -> Result<Config, Error> {
    let mut f = tempfile::NamedTempFile::new().unwrap();
    f.write_all(file.as_bytes()).unwrap();
    let environment = environment.iter().map(|(k, v)| (k.to_string(), v.to_string()));
    let flags = flags.iter().map(|(k, v)| (*k, v.to_string())).collect();
    Config::load(&flags, environment, Some(f.path()))
}

fn origin(c: &Config, key: &str) -> String {
    let text = &c.sources.iter().find(|s| s.key == key).unwrap().origin;
    text.split(' ').next().unwrap().to_string()
}

#[test]
fn flags_beat_environment_beats_file_beats_defaults() {
    let c = load(
        "warehouse = 'w'\nmemory_limit = '1GiB'\nthreads = 3\nlog = 'info'",
        &[("TESSERA_MEMORY_LIMIT", "2GiB"), ("TESSERA_THREADS", "5"), ("PATH", "x")],
        &[("threads", "7")],
    )
    .unwrap();
    assert_eq!((&*c.warehouse, c.memory_limit_bytes, c.threads), ("w", 2 << 30, 7));
    assert_eq!(
        ["warehouse", "memory-limit", "threads", "listen"].map(|k| origin(&c, k)),
        ["file", "environment", "flag", "default"]
    );
    let text = c.describe();
    assert!(text.contains("threads = \"7\""), "{text}");
    assert!(text.contains("# environment TESSERA_MEMORY_LIMIT\n"), "{text}");
}

#[test]
fn access_rules_are_lists() {
    let list = |l: &[&str]| Some(l.iter().map(|s| s.to_string()).collect::<Vec<_>>());
    let c = load("", &[], &[]).unwrap();
    assert_eq!((&c.allow_read, &c.allow_write), (&None, &None));
    assert!(c.describe().contains("# allow-read (everything"), "{}", c.describe());
    // By default a server allows only the warehouse.
    let s = c.serving();
    assert_eq!((s.allow_read, s.allow_write), (list(&[]), list(&[])));
    for file in [
        "[allowed-paths]\nread = ['/a,b', 's3://c']\nwrite = ['/d']",
        "allow-read = ['/a,b', 's3://c']\nallow_write = '/d'",
    ] {
        let c = load(file, &[], &[]).unwrap();
        assert_eq!(c.allow_read, list(&["/a,b", "s3://c"]), "{file}");
        assert_eq!(c.allow_write, list(&["/d"]));
        let again = load(&c.describe(), &[], &[]).unwrap();
        assert_eq!((again.allow_read, again.allow_write), (c.allow_read, c.allow_write));
    }
    let c = load("", &[("TESSERA_ALLOW_READ", "/a, s3://c")], &[("allow-write", "/d,/e")]).unwrap();
    assert_eq!((c.allow_read, c.allow_write), (list(&["/a", "s3://c"]), list(&["/d", "/e"])));
    let e = load("[allowed-paths]\nexecute = ['/a']", &[], &[]).unwrap_err();
    assert!(e.to_string().contains("unknown setting"), "{e}");
    let e = load("certificate = 'c.pem'", &[], &[]).unwrap_err();
    assert!(e.to_string().contains("setting `key`"), "{e}");
}

#[test]
fn the_file_may_be_named_by_the_environment() {
    let mut f = tempfile::NamedTempFile::new().unwrap();
    f.write_all(b"threads = 2").unwrap();
    let variable = ("TESSERA_CONFIG".to_string(), f.path().display().to_string());
    let c = Config::load(&BTreeMap::new(), [variable], None).unwrap();
    assert_eq!(c.threads, 2);
}

#[test]
fn stored_data_are_bounded_by_bytes_or_a_share_of_free_space() {
    let c = load("durable-limit = '3GiB'\ndurable-ttl = 60", &[], &[]).unwrap();
    assert_eq!((c.durable_limit_bytes, c.durable_ttl_s), (3 << 30, 60));
    // A warehouse that does not exist yet lies on the file system of the existing part of its path.
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("not/yet").display().to_string();
    let free = machine::free_bytes(directory.path()).unwrap();
    let c = load(&format!("warehouse = '{at}'"), &[], &[]).unwrap();
    assert_eq!((c.durable_ttl_s, origin(&c, "durable-limit")), (86_400, "default".into()));
    assert!(c.durable_limit_bytes > 0 && c.durable_limit_bytes < free, "{free}");
    let c = load("warehouse = 's3://b/w'", &[], &[]).unwrap();
    assert_eq!(c.durable_limit_bytes, 1 << 40);
    for (file, reason) in [
        (
            "warehouse = 's3://b/w'\ndurable-limit = '10%'",
            "a bucket does not report its free space",
        ),
        ("durable-limit = '101%'", "is not a percentage from 0% to 100%"),
        ("durable-ttl = 0", "is not a whole number from 1 on"),
    ] {
        let e = load(file, &[], &[]).unwrap_err();
        assert!(e.to_string().contains(reason), "{e}");
    }
}

#[test]
fn memory_may_be_a_share_of_the_machine() {
    let all = machine::memory_bytes().unwrap();
    let c = load("memory-limit = '50%'", &[], &[]).unwrap();
    // The limit may follow the address space that the system lets the process map.
    assert!(
        c.memory_limit_bytes.abs_diff(all / 2) < all / 100,
        "{} of {all}",
        c.memory_limit_bytes
    );
    let (some, less) = (load("", &[("TESSERA_MEMORY_LIMIT", "18%")], &[]).unwrap(), all / 100 * 18);
    assert!(some.memory_limit_bytes.abs_diff(less) < all / 100, "{}", some.memory_limit_bytes);
    let e = load("", &[], &[("memory-limit", "101%")]).unwrap_err();
    assert!(e.to_string().contains("`101%` is not a percentage from 0% to 100%"), "{e}");
    let e = load("memory-limit = '0%'", &[], &[]).unwrap_err();
    assert!(e.to_string().contains("minimum is 16MiB"), "{e}");
}

#[test]
fn mistakes_in_settings_are_reported() {
    let error = |r: Result<Config, Error>| {
        let e = r.unwrap_err();
        assert_eq!(e.exit_status(), 2);
        (e.to_string(), e.hint().unwrap_or_default())
    };
    let (text, hint) = error(load("memory-limt = '1GiB'", &[], &[]));
    assert!(text.starts_with("setting `memory-limt`: unknown setting (set by file "), "{text}");
    assert_eq!(hint, "did you mean `memory-limit`?");
    let (text, hint) = error(load("", &[("TESSERA_THREDS", "2")], &[]));
    assert_eq!(text, "setting `threds`: unknown setting (set by environment TESSERA_THREDS)");
    assert_eq!(hint, "did you mean `threads`?");
    let (text, _) = error(load("", &[], &[("memory-limit", "2 giga")]));
    assert_eq!(
        text,
        "setting `memory-limit`: `giga` is not a unit of memory (set by flag --memory-limit)"
    );
    let (text, _) = error(load("", &[("TESSERA_THREADS", "0")], &[]));
    assert!(text.contains("`0` is not a whole number from 1 on"), "{text}");
    let (text, _) = error(load("threads = [1]", &[], &[]));
    assert!(text.starts_with("setting `threads`: "), "{text}");
    let (text, _) = error(load("threads = 1\nthreads = 2", &[], &[]));
    assert!(text.contains("is not TOML"), "{text}");
    let (text, _) = error(load("memory-limit = 1000000000\nmemory_limit = 5", &[], &[]));
    assert!(text.contains("set twice"), "{text}");
    let (text, hint) = error(load("", &[], &[("log", "bogus")]));
    assert_eq!(text, "setting `log`: `bogus` is not a level (set by flag --log)");
    assert!(hint.contains("tessera_exec=debug"), "{hint}");
    for fine in ["off", "DEBUG", "tessera_exec=debug, warn", "tessera_exec[span]=trace"] {
        assert_eq!(load("", &[], &[("log", fine)]).unwrap().log, fine);
    }
    let (text, _) = error(load("listen = 'here'", &[], &[]));
    assert!(text.contains("`here` is not an address and a port"), "{text}");
    let (text, _) = error(load("[server]\nlisten = 'here'", &[], &[]));
    assert!(text.contains("setting `server`: unknown setting"), "{text}");
}

#[test]
fn variables_of_others_are_no_errors() {
    let c = load("", &[("TESSERA_HOME", "/x"), ("TESSERA_FLIGHT", "y")], &[]).unwrap();
    assert_eq!(c.ignored, ["TESSERA_FLIGHT", "TESSERA_HOME"]);
}

#[test]
fn secrets_stay_hidden() {
    let c = load("token = 'hunter2'", &[], &[]).unwrap();
    assert_eq!(c.token.as_ref().unwrap().reveal(), "hunter2");
    assert!(!format!("{c:?}{}", c.describe()).contains("hunter2"));
    // The placeholder is not read as a token.
    assert_eq!(load(&c.describe(), &[], &[]).unwrap().token, None);
}

#[test]
fn a_described_configuration_parses_to_the_same_one() {
    let c = load(
        "warehouse = 'a \"quoted\" C:\\dir # é'\nlog = 'tessera_exec=debug,warn'",
        &[("TESSERA_LISTEN", "127.0.0.1:9"), ("TESSERA_RESULT_TTL", "7")],
        &[("memory-limit", "1000000001"), ("threads", "3"), ("warehouse", "tab\tnew\nline\u{7f}")],
    )
    .unwrap();
    let again = load(&c.describe(), &[], &[]).unwrap();
    let values =
        |c: &Config| -> Vec<String> { c.sources.iter().map(|s| s.value.clone()).collect() };
    assert_eq!(values(&again), values(&c), "{}", c.describe());
    assert_eq!(again.warehouse, "tab\tnew\nline\u{7f}");
    assert_eq!(again.token, None);
    assert_eq!(origin(&again, "threads"), "file");
}

#[test]
fn a_scratch_directory_has_a_limit() {
    let c = load("", &[], &[]).unwrap();
    assert_eq!(c.spill_dir, std::env::temp_dir());
    let free = machine::free_bytes(&c.spill_dir).unwrap();
    assert!(c.spill_limit_bytes > free / 2 && c.spill_limit_bytes < free, "80 % of {free}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let c = load("spill_limit = '10GiB'", &[("TESSERA_SPILL_DIR", path)], &[]).unwrap();
    assert_eq!((c.spill_dir.as_path(), c.spill_limit_bytes), (dir.path(), 10 << 30));
    assert_eq!(["spill-dir", "spill-limit"].map(|k| origin(&c, k)), ["environment", "file"]);
    assert!(c.describe().contains("spill-limit = \"10.0 GiB\"") || c.describe().contains("10GiB"));
    assert_eq!(load("", &[], &[("spill-limit", "0")]).unwrap().spill_limit_bytes, 0);
    let error = |flags: &[(&'static str, &str)]| load("", &[], flags).unwrap_err().to_string();
    assert!(error(&[("spill-limit", "120%")]).contains("`120%` is not a percentage"));
    assert!(error(&[("spill-limit", "much")]).contains("spill-limit"));
    let text = error(&[("spill-dir", "/no/such/place")]);
    assert!(text.contains("`/no/such/place` cannot be used"), "{text}");
}

#[test]
fn the_default_limit_is_three_quarters_of_the_memory() {
    let c = load("", &[], &[]).unwrap();
    assert_eq!(c.memory_limit_bytes, machine::memory_bytes().unwrap() / 4 * 3);
}

#[test]
fn a_cluster_is_configured() {
    let c = load("", &[], &[]).unwrap();
    assert!(!c.cluster);
    assert_eq!(c.cluster_listen.to_string(), "127.0.0.1:50050");
    assert_eq!(c.schedulers, ["127.0.0.1:50050"]);
    assert_eq!((c.worker_timeout_s, c.standby, c.lease_timeout_s), (5, false, 3));
    assert!(c.cluster_security.secret.ends_with("tessera/cluster.secret"));
    assert_eq!(c.cluster_security.certificate, None);
    let c = load(
        "cluster = true\ncluster-certificate = 'c.pem'\ncluster_key = 'k.pem'\nworker-timeout = 9",
        &[("TESSERA_CLUSTER_SECRET_FILE", "/x/secret"), ("TESSERA_SCHEDULER", "far:1")],
        &[("cluster-listen", "[::1]:7"), ("scheduler", "[::1]:50050")],
    )
    .unwrap();
    assert!(c.cluster);
    assert_eq!(c.cluster_listen.to_string(), "[::1]:7");
    assert_eq!(c.schedulers, ["[::1]:50050"]);
    let two = "scheduler = ['a:1', 'b:2']\nstandby = true\npublic-url = 'https://a:8080/'";
    let two = load(two, &[], &[]).unwrap();
    assert_eq!((two.schedulers, two.standby), (vec!["a:1".into(), "b:2".into()], true));
    assert_eq!(two.public_url.as_deref(), Some("https://a:8080"));
    assert_eq!(load("", &[], &[("scheduler", "a:1, b:2")]).unwrap().schedulers, ["a:1", "b:2"]);
    assert_eq!((c.worker_timeout_s, origin(&c, "scheduler")), (9, "flag".into()));
    assert_eq!(c.retained_limit_bytes, c.memory_limit_bytes / 100 * 12);
    assert_eq!(load("retained-limit = 0", &[], &[]).unwrap().retained_limit_bytes, 0);
    assert_eq!(load("retained-limit = '1MiB'", &[], &[]).unwrap().retained_limit_bytes, 1 << 20);
    assert_eq!(load("chunk-compression = 'zstd'", &[], &[]).unwrap().compression.name(), "zstd");
    assert!(load("chunk-compression = 'gzip'", &[], &[]).is_err());
    assert_eq!(c.worker_wait_s, 120);
    assert_eq!(load("worker-wait = 0", &[], &[]).unwrap().worker_wait_s, 0);
    let at = |path: &str| Some(std::path::PathBuf::from(path));
    let security = &c.cluster_security;
    assert_eq!(Some(&security.secret), at("/x/secret").as_ref());
    assert_eq!((&security.certificate, &security.key), (&at("c.pem"), &at("k.pem")));
    assert_eq!(security.authority, None);
    assert!(load("", &[("TESSERA_CLUSTER", "true")], &[]).unwrap().cluster);
    for (file, reason) in [
        ("cluster = 'maybe'", "`maybe` is neither `true` nor `false`"),
        ("cluster-listen = 'here'", "`here` is not an address and a port"),
        ("scheduler = 'here'", "`here` is not a host and a port"),
        ("scheduler = 'here:99999'", "`here:99999` is not a host and a port"),
        ("scheduler = 'a:1,here'", "`here` is not a host and a port"),
        ("scheduler = ','", "it is empty"),
        ("lease-timeout = 0", "`0` is not a whole number from 1 on"),
        ("public-url = 'here'", "`here` is not a URL of a server"),
        ("cluster-secret-file = ''", "it is empty"),
        ("worker-timeout = 0", "`0` is not a whole number from 1 on"),
        ("worker-wait = 'long'", "`long` is not a whole number from 0 on"),
        ("slots = 0", "`0` is not a whole number from 1 on"),
    ] {
        let e = load(file, &[], &[]).unwrap_err();
        assert!(e.to_string().contains(reason) && e.exit_status() == 2, "{e}");
    }
}

#[test]
fn a_worker_has_as_many_slots_as_threads_by_default() {
    let slots = |file: &str| {
        let c = load(file, &[], &[]).unwrap();
        (c.threads, c.slots)
    };
    assert_eq!(slots("threads = 3"), (3, 3));
    assert_eq!(slots("threads = 3\nslots = 2"), (3, 2));
    let c = load("slots = 2", &[("TESSERA_SLOTS", "4")], &[("slots", "5")]).unwrap();
    assert_eq!((c.slots, origin(&c, "slots")), (5, "flag".into()));
}
