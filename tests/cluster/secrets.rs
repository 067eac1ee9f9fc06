//! Admission of workers: the secret, and certificates.

use super::{Cluster, STATEMENTS, environment_of};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn a_party_without_the_secret_is_refused() {
    let mut cluster = Cluster::start(0);
    let other = cluster.path("other.secret");
    std::fs::write(&other, "another secret of many bytes").unwrap();
    let set = |mode| {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&other, permissions).unwrap();
    };
    let worker = |secret: &std::path::Path| {
        let out = cluster
            .command()
            .env("TESSERA_CLUSTER_SECRET_FILE", secret)
            .args(["worker", "--scheduler", &cluster.join])
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    set(0o644);
    let (status, error) = worker(&other);
    assert!(status == Some(2) && error.contains("chmod 600"), "{status:?} {error}");
    let (status, error) = worker(&cluster.path("none.secret"));
    assert!(status == Some(2) && error.contains("--cluster"), "{status:?} {error}");
    set(0o600);
    let out = cluster
        .command()
        .env("TESSERA_CLUSTER_SECRET_FILE", &other)
        .args(["worker", "--no-supervisor", "--scheduler", &cluster.join])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("secret is not that"), "{error}");
    assert!(cluster.alive().is_empty());
    cluster.start_worker(&[]);
    cluster.wait_for(1);
}

/// An authority, and where a certificate of it for this machine lies.
fn certified(directory: &std::path::Path, name: &str) -> Vec<(String, String)> {
    environment_of(crate::common::certified(), directory, name)
}

#[test]
fn a_party_without_a_certificate_of_the_authority_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_in(certified(directory.path(), "ours"), 2);
    let want = cluster.alone(STATEMENTS[1]);
    assert_eq!(cluster.query(STATEMENTS[1]).body, want);
    // Neither a worker with another authority's certificate nor a worker without a certificate may join. Both get the
    // reason, or ask again.
    for environment in [certified(directory.path(), "theirs"), Vec::new()] {
        let ours = std::mem::replace(&mut cluster.environment, environment);
        cluster.start_worker(&[]);
        cluster.environment = ours;
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(cluster.alive().len(), 2);
        drop(cluster.workers.pop());
    }
    assert_eq!(cluster.query(STATEMENTS[1]).body, want);
    cluster.is_quiet("what is left on workers");
}
