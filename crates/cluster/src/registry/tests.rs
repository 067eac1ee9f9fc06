#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn hello(port: u16, incarnation: u64) -> Hello {
    Hello {
        name: format!("w{port}"),
        address: format!("127.0.0.1:{port}"),
        threads: 2,
        memory_bytes: 1 << 30,
        pid: 1,
        incarnation,
        version: version(),
        supervisor: None,
    }
}

fn version() -> Version {
    Version::of("1")
}

fn beat(worker: u32, incarnation: u64) -> Beat {
    Beat { worker, incarnation, ..Beat::default() }
}

fn state(registry: &Registry, worker: u32) -> WorkerState {
    registry.member(worker).unwrap().state
}

fn kinds(registry: &Registry) -> Vec<&'static str> {
    registry.events().iter().map(|e| e.kind).collect()
}

fn alive(registry: &Registry) -> Vec<u32> {
    registry.alive().iter().map(|m| m.number).collect()
}

#[test]
fn who_is_lost_stays_lost() {
    let registry = Registry::new(Limits::default());
    let start = Instant::now();
    let at = |s: u64| start + Duration::from_secs(s);
    let one = registry.join(&hello(1, 10), &version(), at(0)).unwrap().worker;
    let two = registry.join(&hello(2, 20), &version(), at(0)).unwrap().worker;
    // Joining again does not make a second worker.
    assert_eq!(registry.join(&hello(2, 20), &version(), at(1)).unwrap().worker, two);
    assert_eq!(registry.beat(&beat(one, 10), at(4)), Advice::Go);
    assert_eq!(registry.expire(at(7)), [two]);
    assert_eq!(registry.beat(&beat(two, 20), at(7)), Advice::Join);
    // Its process comes back, and is another worker.
    let three = registry.join(&hello(2, 20), &version(), at(8)).unwrap().worker;
    assert!(three > two);
    assert_eq!(registry.beat(&beat(two, 20), at(8)), Advice::Join);
    assert_eq!(registry.beat(&beat(three, 20), at(8)), Advice::Go);
    // A new process in its place.
    let four = registry.join(&hello(2, 21), &version(), at(9)).unwrap().worker;
    assert_eq!(state(&registry, three), WorkerState::Lost);
    assert_eq!(registry.beat(&beat(three, 20), at(9)), Advice::Join);
    assert_eq!(alive(&registry), [one, four]);
    assert_eq!(kinds(&registry), ["joined", "joined", "lost", "joined", "lost", "joined"]);
}

#[test]
fn silence_is_counted_from_the_last_word() {
    let registry = Registry::new(Limits::default());
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let one = registry.join(&hello(1, 10), &version(), at(0)).unwrap().worker;
    let changes = registry.changes();
    // A worker may use the whole time.
    assert!(registry.expire(at(5_000)).is_empty());
    // A repeated join counts as a heartbeat.
    registry.join(&hello(1, 10), &version(), at(4_000)).unwrap();
    assert!(registry.expire(at(9_000)).is_empty());
    assert_eq!(registry.beat(&beat(one, 10), at(9_000)), Advice::Go);
    // A clock that goes back expires no worker.
    assert!(registry.expire(at(0)).is_empty());
    assert!(!changes.has_changed().unwrap(), "nothing happened to it");
    assert_eq!(registry.expire(at(14_001)), [one]);
    assert!(changes.has_changed().unwrap());
    assert_eq!(registry.member(one).unwrap().why.unwrap(), "it was not heard for 5.0 s");
    assert!(registry.expire(at(99_000)).is_empty(), "it is lost once");
}

#[test]
fn a_beat_of_another_process_counts_for_nobody() {
    let registry = Registry::new(Limits::default());
    let now = Instant::now();
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    let later = now + Duration::from_secs(6);
    assert_eq!(registry.beat(&beat(one, 11), later), Advice::Join);
    assert_eq!(registry.beat(&beat(one + 1, 10), later), Advice::Join);
    assert_eq!(registry.expire(later), [one]);
}

#[test]
fn the_registry_stores_reports_of_workers() {
    let registry = Registry::new(Limits::default());
    let now = Instant::now();
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    let load = Load { orders: 2, chunks: 7, used_bytes: 99, ..Load::default() };
    let later = now + Duration::from_secs(1);
    registry.beat(&Beat { load: load.clone(), ..beat(one, 10) }, later);
    let member = registry.member(one).unwrap();
    assert_eq!((member.load, member.heard, member.state), (load, later, WorkerState::Alive));
    assert!(member.since_ms > 0 && member.why.is_none());
}

#[test]
fn draining_workers_get_nothing_and_leave() {
    let registry = Registry::new(Limits::default());
    let mut changes = registry.changes();
    let now = Instant::now();
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    let draining = Beat { draining: true, ..beat(one, 10) };
    assert_eq!(registry.beat(&draining, now), Advice::Go);
    assert!(changes.has_changed().unwrap());
    assert!(registry.alive().is_empty() && registry.is_here(one));
    registry.leave(&beat(one, 11));
    assert!(registry.is_here(one), "another incarnation cannot leave for it");
    registry.leave(&beat(one, 10));
    assert!(!registry.is_here(one));
    assert!(!registry.lost(one, "late"));
    assert_eq!(state(&registry, one), WorkerState::Left);
    assert_eq!(kinds(&registry), ["joined", "draining", "left"]);
}

#[test]
fn the_first_party_that_sees_a_loss_reports_it() {
    let registry = Registry::new(Limits::default());
    let one = registry.join(&hello(1, 10), &version(), Instant::now()).unwrap().worker;
    assert!(registry.lost(one, "its connection broke"));
    assert!(!registry.lost(one, "it was not heard"));
    assert!(!registry.lost(77, "there is no such worker"));
    assert_eq!(registry.member(one).unwrap().why.unwrap(), "its connection broke");
    assert_eq!(kinds(&registry), ["joined", "lost"]);
}

#[test]
fn each_worker_is_asked_once_to_restart() {
    let registry = Registry::new(Limits::default());
    let now = Instant::now();
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    let two = registry.join(&hello(2, 20), &version(), now).unwrap().worker;
    let gone = registry.join(&hello(3, 30), &version(), now).unwrap().worker;
    registry.lost(gone, "it is dead");
    let draining = Beat { draining: true, ..beat(two, 20) };
    registry.beat(&draining, now);
    assert_eq!(registry.restart(now), 1, "neither who leaves nor who is gone");
    let mut changes = registry.changes();
    changes.mark_unchanged();
    assert!(registry.is_here(one), "it is not told yet");
    assert_eq!(registry.beat(&beat(one, 10), now), Advice::Restart);
    // The worker ends: it gets no more orders, and it does not count as lost.
    assert_eq!(state(&registry, one), WorkerState::Left);
    assert!(changes.has_changed().unwrap() && alive(&registry).is_empty());
    assert_eq!(registry.beat(&beat(one, 10), now), Advice::Join);
    assert_eq!(registry.beat(&draining, now), Advice::Go);
    // The next process is another worker, and is not asked to restart.
    let next = registry.join(&hello(1, 11), &version(), now).unwrap().worker;
    assert_eq!(registry.beat(&beat(next, 11), now), Advice::Go);
    // A worker that drains first is not asked to restart.
    assert_eq!(registry.restart(now), 1);
    assert_eq!(registry.beat(&Beat { draining: true, ..beat(next, 11) }, now), Advice::Go);
    assert_eq!(state(&registry, next), WorkerState::Draining);
}

#[test]
fn who_does_not_answer_is_ended_by_its_supervisor() {
    let registry = Registry::new(Limits::default());
    let start = Instant::now();
    let at = |s: u64| start + Duration::from_secs(s);
    let watched = |port: u16, supervisor| Hello { supervisor: Some(supervisor), ..hello(port, 10) };
    let watch = |supervisor, s| registry.watch(Watch { supervisor }, at(s));
    let one = registry.join(&watched(1, 100), &version(), at(0)).unwrap().worker;
    let two = registry.join(&watched(2, 200), &version(), at(0)).unwrap().worker;
    let three = registry.join(&watched(3, 300), &version(), at(0)).unwrap().worker;
    assert_eq!((watch(100, 1), watch(200, 1)), (Advice::Go, Advice::Go));
    // The first worker falls silent earlier, the second misses the request, and the third has no supervisor.
    registry.lost(one, "it is silent");
    registry.lost(three, "it is dead");
    assert_eq!(registry.restart(at(2)), 2);
    assert_eq!(watch(100, 3), Advice::Restart);
    assert_eq!(watch(100, 3), Advice::Go, "once");
    assert_eq!(watch(200, 3), Advice::Go, "it may hear it yet");
    assert_eq!(registry.expire(at(8)), [two]);
    assert_eq!((watch(200, 8), watch(200, 9)), (Advice::Restart, Advice::Go));
    assert_eq!(watch(300, 9), Advice::Go);
    // A worker that gets the request and does not end.
    let four = registry.join(&watched(4, 400), &version(), at(20)).unwrap().worker;
    assert_eq!((watch(400, 20), registry.restart(at(20))), (Advice::Go, 1));
    assert_eq!(registry.beat(&beat(four, 10), at(21)), Advice::Restart);
    assert_eq!(watch(400, 5), Advice::Go);
    assert_eq!(watch(400, 60), Advice::Restart);
    // The next one of the same machine was not asked.
    registry.join(&watched(4, 500), &version(), at(60)).unwrap();
    assert_eq!(watch(500, 60), Advice::Go);
}

#[test]
fn an_unreachable_pair_of_workers_is_reported_once() {
    let registry = Registry::new(Limits::default());
    let now = Instant::now();
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    let two = registry.join(&hello(2, 20), &version(), now).unwrap().worker;
    let load = Load { apart: vec![hello(2, 20).address, "nobody:1".into()], ..Load::default() };
    let apart = Beat { load, ..beat(one, 10) };
    registry.beat(&apart, now);
    registry.beat(&apart, now);
    let lacks = |worker| registry.member(worker).unwrap().lacks();
    assert_eq!(lacks(one).unwrap(), format!("it does not reach worker {two}"));
    assert_eq!(lacks(two), None);
    registry.beat(&beat(one, 10), now);
    assert_eq!(lacks(one), None);
    registry.beat(&apart, now);
    registry.lost(two, "it is dead");
    registry.beat(&apart, now);
    assert_eq!(lacks(one), None);
    assert_eq!(kinds(&registry), ["joined", "joined", "apart", "reached", "apart", "lost"]);
}

#[test]
fn others_are_refused() {
    let registry = Registry::new(Limits { workers_max: 1, ..Limits::default() });
    let now = Instant::now();
    let server = Version { program: "2".into(), protocol: 7, kernels: 9 };
    for (protocol, kernels) in [(6, 9), (8, 9), (7, 8), (7, 10)] {
        let version = Version { program: "2".into(), protocol, kernels };
        let other = Hello { version, ..hello(1, 10) };
        let told = registry.join(&other, &server, now).unwrap_err().to_string();
        assert_eq!(
            told,
            format!(
                "versions do not go together: the worker is 2 (cluster protocol {protocol}, kernels {kernels}), the \
                 server 2 (cluster protocol 7, kernels 9); server and workers need the same cluster protocol and the \
                 same kernels (`tessera --version` reports both), the version of the program may differ"
            )
        );
    }
    // Refusals are events; a worker that tries again and again does not drive out the others.
    let fault = Fault::Failed("other versions".into());
    (0..9).for_each(|_| registry.refused(&hello(1, 10), &fault));
    registry.refused(&hello(2, 20), &fault);
    let refused = registry.events();
    let details: Vec<&str> = refused.iter().map(|e| e.detail.as_str()).collect();
    assert_eq!(details, ["worker `w1`: other versions", "worker `w2`: other versions"]);
    // Another version of the program is welcome.
    let newer = Version { program: "3".into(), ..server.clone() };
    let newer = registry.join(&Hello { version: newer, ..hello(1, 9) }, &server, now).unwrap();
    registry.leave(&beat(newer.worker, 9));
    let one = registry.join(&hello(1, 10), &version(), now).unwrap().worker;
    assert_eq!(registry.join(&hello(2, 20), &version(), now), Err(Refused::Full { limit: 1 }));
    // A place becomes free when its worker ends, and for the process that replaces it.
    let instead = registry.join(&hello(1, 11), &version(), now).unwrap().worker;
    assert_eq!(state(&registry, one), WorkerState::Lost);
    registry.leave(&beat(instead, 11));
    registry.join(&hello(2, 20), &version(), now).unwrap();
}

#[test]
fn old_workers_and_events_are_forgotten() {
    let limits = Limits { gone_kept: 3, events_max: 5, ..Limits::default() };
    let registry = Registry::new(limits);
    let now = Instant::now();
    for i in 0..20 {
        registry.join(&hello(1, i), &version(), now).unwrap();
    }
    let numbers: Vec<u32> = registry.all().iter().map(|m| m.number).collect();
    assert_eq!(numbers, [17, 18, 19, 20]);
    // 20 joined and 19 was lost.
    let events: Vec<u64> = registry.events().iter().map(|e| e.number).collect();
    assert_eq!(events, [35, 36, 37, 38, 39]);
    // A forgotten worker is unknown, and joins again.
    assert_eq!(registry.beat(&beat(1, 0), now), Advice::Join);
    let nothing = Registry::new(Limits { gone_kept: 0, events_max: 0, ..limits });
    let one = nothing.join(&hello(1, 10), &version(), now).unwrap().worker;
    nothing.lost(one, "it is dead");
    assert!(nothing.all().is_empty() && nothing.events().is_empty());
}

#[test]
fn events_of_statements_are_stored() {
    let registry = Registry::new(Limits::default());
    registry.note("recovering", Some(4), Some("q1"), "12 operands again".into());
    let event = registry.events().pop().unwrap();
    assert_eq!(
        (event.number, event.kind, event.worker, event.statement.as_deref()),
        (1, "recovering", Some(4), Some("q1"))
    );
    assert!(event.time_ms > 0);
}

#[test]
fn many_at_a_time_have_numbers_of_their_own() {
    let registry = Registry::new(Limits::default());
    let now = Instant::now();
    let joined: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u16)
            .map(|t| {
                let registry = &registry;
                scope.spawn(move || -> Vec<u32> {
                    let join =
                        |i| registry.join(&hello(t * 100 + i, 1), &version(), now).unwrap().worker;
                    (0..50).map(join).collect()
                })
            })
            .collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(joined.iter().collect::<BTreeSet<_>>().len(), 400);
    assert_eq!(registry.alive().len(), 400);
}

/// Possible events. A worker is identified by its index among all workers that ever joined.
#[derive(Debug, Clone)]
enum Happens {
    Join { port: u16, incarnation: u64 },
    Beat { which: usize, draining: bool },
    StrangeBeat { which: usize },
    Leave { which: usize },
    Lost { which: usize },
    Pass { ms: u64 },
    Expire,
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    let which = 0..40usize;
    prop_oneof![
        4 => (0..4u16, 0..3u64).prop_map(|(port, incarnation)| Happens::Join { port, incarnation }),
        4 => (which.clone(), any::<bool>())
            .prop_map(|(which, draining)| Happens::Beat { which, draining }),
        1 => which.clone().prop_map(|which| Happens::StrangeBeat { which }),
        1 => which.clone().prop_map(|which| Happens::Leave { which }),
        1 => which.prop_map(|which| Happens::Lost { which }),
        2 => (0..4_000u64).prop_map(|ms| Happens::Pass { ms }),
        2 => Just(Happens::Expire),
        1 => Just(Happens::Restart),
    ]
}

proptest! {
    /// In any order of events: a lost or left number never becomes present again, and the limits hold.
    #[test]
    fn workers_that_left_or_were_lost_never_return(all in prop::collection::vec(happens(), 1..120)) {
        let limits = Limits { workers_max: 3, gone_kept: 4, events_max: 10, ..Limits::default() };
        let registry = Registry::new(limits);
        let mut now = Instant::now();
        // Each worker that joined, with its process.
        let mut joined: Vec<(u32, Hello)> = Vec::new();
        let mut gone: BTreeSet<u32> = BTreeSet::new();
        for what in all {
            let worker = |which: usize| joined.get(which % joined.len().max(1)).cloned();
            match what {
                Happens::Join { port, incarnation } => {
                    let hello = hello(port, incarnation);
                    match registry.join(&hello, &version(), now) {
                        Ok(welcome) => {
                            prop_assert!(!gone.contains(&welcome.worker));
                            match joined.iter().find(|(number, _)| *number == welcome.worker) {
                                // The same number is the same process.
                                Some((_, before)) => prop_assert_eq!(before, &hello),
                                None => {
                                    let last = joined.last().map_or(0, |(number, _)| *number);
                                    prop_assert!(welcome.worker > last);
                                    joined.push((welcome.worker, hello));
                                }
                            }
                            prop_assert!(registry.is_here(welcome.worker));
                        }
                        Err(refused) => prop_assert_eq!(refused, Refused::Full { limit: 3 }),
                    }
                }
                Happens::Beat { which, draining } => {
                    if let Some((number, hello)) = worker(which) {
                        let beat = Beat { draining, ..beat(number, hello.incarnation) };
                        let advice = registry.beat(&beat, now);
                        prop_assert_eq!(advice == Advice::Join, gone.contains(&number));
                    }
                }
                Happens::StrangeBeat { which } => {
                    if let Some((number, _)) = worker(which) {
                        prop_assert_eq!(registry.beat(&beat(number, 99), now), Advice::Join);
                    }
                }
                Happens::Leave { which } => {
                    if let Some((number, hello)) = worker(which) {
                        registry.leave(&beat(number, hello.incarnation));
                        prop_assert!(!registry.is_here(number));
                    }
                }
                Happens::Lost { which } => {
                    if let Some((number, _)) = worker(which) {
                        prop_assert_eq!(registry.lost(number, "seen"), !gone.contains(&number));
                    }
                }
                Happens::Pass { ms } => now += Duration::from_millis(ms),
                Happens::Expire => {
                    for number in registry.expire(now) {
                        prop_assert!(!gone.contains(&number), "it was gone before");
                    }
                    for member in registry.all().iter().filter(|m| m.state.is_here()) {
                        prop_assert!(now - member.heard <= limits.dead_after);
                    }
                }
                Happens::Restart => {
                    prop_assert_eq!(registry.restart(now), registry.alive().len());
                }
            }
            for (number, hello) in &joined {
                match registry.member(*number) {
                    Some(member) => {
                        prop_assert_eq!(&member.hello, hello);
                        prop_assert_eq!(member.why.is_some(), !member.state.is_here());
                        prop_assert!(!(member.state.is_here() && gone.contains(number)));
                        if !member.state.is_here() {
                            gone.insert(*number);
                        }
                    }
                    // Only ended workers are forgotten.
                    None => {
                        gone.insert(*number);
                    }
                }
            }
            let all = registry.all();
            let here: Vec<&Member> = all.iter().filter(|m| m.state.is_here()).collect();
            prop_assert!(here.len() <= 3 && all.len() - here.len() <= 4);
            let addresses: BTreeSet<&String> = here.iter().map(|m| &m.hello.address).collect();
            prop_assert_eq!(addresses.len(), here.len(), "one worker of an address");
            let events = registry.events();
            prop_assert!(events.len() <= 10);
            prop_assert!(events.windows(2).all(|two| two[1].number == two[0].number + 1));
        }
    }
}
