//! Workers of other versions.

use super::*;
use crate::net::Peers;
use crate::wire::{Hello, Version, Welcome};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_of_the_program_may_differ_within_a_protocol() {
    let mut bench = Bench::new(1).await;
    bench.start_version(MEMORY, "2");
    bench.wait_for(2).await;
    let (_, totals) = bench.both(&plans()[1].1, &Sources::default()).await;
    assert_eq!(totals.workers, 2, "{totals:?}");
    let alive = bench.cluster.registry().alive();
    let versions: Vec<&str> = alive.iter().map(|m| m.hello.version.program.as_str()).collect();
    assert_eq!(versions, ["1", "2"]);
    // Another protocol or other kernels: refused, whatever the version of the program is.
    let peers = Peers::new(&bench.credentials);
    let server = bench.cluster.address().to_string();
    let (ours, within) = (Version::of("1"), Duration::from_secs(5));
    for (protocol, kernels) in
        [(ours.protocol + 1, ours.kernels), (ours.protocol, ours.kernels - 1)]
    {
        let version = Version { program: "1".into(), protocol, kernels };
        let hello = Hello { version: version.clone(), incarnation: 7, ..alive[0].hello.clone() };
        let refused: Result<Welcome, Fault> = peers.call(&server, "join", &hello, within).await;
        let told = refused.unwrap_err().to_string();
        for part in [&version.to_string(), &ours.to_string(), "the same kernels"] {
            assert!(told.contains(part), "no `{part}` in `{told}`");
        }
    }
    assert_eq!(bench.cluster.registry().alive().len(), 2);
    let events = bench.cluster.registry().events();
    assert_eq!(events.iter().filter(|e| e.kind == "refused").count(), 2, "{events:?}");
}
