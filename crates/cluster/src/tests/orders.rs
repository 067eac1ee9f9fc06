//! Messages of plans and orders, and workers that miss some of them.

use super::{Bench, loads, plans};
use crate::net::{Fault, PROTOCOL, Peers};
use crate::registry::Limits;
use crate::wire::{
    Done, Load, News, OrderMessage, OrderProgress, PlanMessage, Reuse, RowsAsk, RowsHolder,
    RowsOrder, Said, THE_SERVER, There, from_postcard, to_postcard,
};
use bytes::Bytes;
use futures::StreamExt;
use serde_json::json;
use serde_reflection::{Samples, Tracer, TracerConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tessera_exec::durable::Did;
use tessera_exec::error::ErrorReport;
use tessera_exec::rows::{RowsDone, RowsPart, RowsRuns};
use tessera_exec::task::Sources;
use tessera_planner::error::Class;
use tessera_planner::plan::StageId;
use tessera_planner::recover::Bitmap;
use tessera_planner::tile::Tiling;

fn message(tiling: &Tiling) -> PlanMessage {
    PlanMessage {
        id: "p".into(),
        plan: tiling.plan().clone(),
        sources: Vec::new(),
        durable: None,
        reuse: Reuse::default(),
        output: None,
    }
}

#[test]
fn messages_decode_to_their_originals() {
    for (name, t) in plans() {
        let message = message(&t);
        let written = to_postcard(&message).unwrap();
        let json = serde_json::to_vec(&message).unwrap();
        assert!(written.len() * 2 < json.len(), "{name}: {} and {}", written.len(), json.len());
        let read: PlanMessage = from_postcard(&written).unwrap();
        assert_eq!(read.plan, *t.plan(), "{name}");
        // A message that is cut off is refused, wherever.
        for cut in (0..written.len()).step_by(7) {
            assert!(from_postcard::<PlanMessage>(&written[..cut]).is_err(), "{name} at {cut}");
        }
    }
    let report = ErrorReport {
        code: "poison".into(),
        class: Class::Retry,
        message: "m".into(),
        hint: None,
        may_fit: true,
    };
    let durable = Did { seconds_reused: f64::INFINITY, corrupt: 7, ..Did::default() };
    let done = Done {
        error: Some(report.clone()),
        progress: OrderProgress { stages: vec![(3, 0.25), (0, f64::NAN)], ..Default::default() },
        durable,
        ..Done::default()
    };
    let written = to_postcard(&Said::Done(Box::new(done))).unwrap();
    let Said::Done(done) = from_postcard(&written).unwrap() else { panic!("another message") };
    assert_eq!((done.error, done.durable), (Some(report), durable));
    let stages = &done.progress.stages;
    assert!(stages[0] == (3, 0.25) && stages[1].1.is_nan());
    for plan in [None, Some(Bytes::from(vec![7; 300]))] {
        let order = rows_order(plan);
        let written = to_postcard(&order).unwrap();
        // Bytes are not written as numbers.
        let bytes = order.header.len() + order.plan.as_ref().map_or(0, Bytes::len);
        assert!(written.len() < 16 + bytes + 10, "{}", written.len());
        assert_eq!(from_postcard::<RowsOrder>(&written).unwrap(), order);
        for cut in 0..written.len() {
            assert!(from_postcard::<RowsOrder>(&written[..cut]).is_err(), "{cut}");
        }
    }
}

fn rows_order(plan: Option<Bytes>) -> RowsOrder {
    let (header, holders) = (Bytes::from_static(b"\xff\0h"), Vec::new());
    RowsOrder { query: [9; 16], stage: 1, task: 2, header, plan, holders }
}

/// The types of the messages that do not describe themselves, with their fields in order.
///
/// If this snapshot changes, parties of the former version misread messages: increment [`PROTOCOL`], by which the
/// snapshot is named, and delete the former one.
#[test]
fn messages_are_those_of_the_protocol() {
    let mut tracer = Tracer::new(TracerConfig::default());
    let mut samples = Samples::new();
    for (_, t) in plans() {
        tracer.trace_value(&mut samples, &message(&t)).unwrap();
    }
    let array = json!({"name": "x", "dtype": "Float64", "shape": [4], "chunks": [2], "shards": [4],
        "valid": "x_valid"});
    let output = json!({"id": "o", "place": {"Local": {"root": "/o.zarr", "private": false}},
        "display": "o.zarr", "format": 3, "codec": "zstd", "listed": true, "arrays": [array]});
    let output = Some(serde_json::from_value(output).unwrap());
    tracer.trace_value(&mut samples, &PlanMessage { output, ..message(&plans()[0].1) }).unwrap();
    let part = json!({"result": 0, "number": 1, "cells": {"bytes": 8, "crc32c": 7},
        "valid": {"bytes": 8, "crc32c": 7}, "masked": true, "collides": false});
    let wrote = Said::Wrote(vec![serde_json::from_value(part).unwrap()]);
    let some: Bitmap = (0..3).collect();
    let order = OrderMessage {
        plan: "p".into(),
        run: vec![(StageId(0), some.clone())],
        hold: vec![(StageId(0), some.clone())],
        news: News { log: 1, first: 0, entries: vec![[0u8].into()] },
        begun: true,
        threads: Some(1),
        writes: true,
    };
    let there = There { address: "a".into(), operands: vec![(StageId(0), some)] };
    let report = ErrorReport {
        code: "poison".into(),
        class: Class::Retry,
        message: "m".into(),
        hint: Some("h".into()),
        may_fit: true,
    };
    let stages = vec![(1, 0.5)];
    let progress = OrderProgress { stages, ..OrderProgress::default() };
    let done = Done { error: Some(report), progress: progress.clone(), ..Done::default() };
    tracer.trace_value(&mut samples, &order).unwrap();
    tracer.trace_value(&mut samples, &there).unwrap();
    for said in [Said::Behind, Said::Runs(progress), wrote, Said::Done(Box::new(done))] {
        tracer.trace_value(&mut samples, &said).unwrap();
    }
    let order = rows_order(Some(Bytes::new()));
    let RowsOrder { query, stage, header, plan, .. } = order.clone();
    let holders = vec![RowsHolder { from: 0, to: 3, address: Some("a".into()) }];
    tracer.trace_value(&mut samples, &RowsOrder { holders, ..order }).unwrap();
    let (part, bounds) = (Some(7), plan.clone());
    let ask = RowsAsk { query, stage, from: 0, to: 3, part, header, plan, bounds };
    tracer.trace_value(&mut samples, &ask).unwrap();
    tracer.trace_value(&mut samples, &RowsPart::default()).unwrap();
    tracer.trace_value(&mut samples, &RowsRuns::default()).unwrap();
    tracer.trace_value(&mut samples, &RowsDone::default()).unwrap();
    let types = tracer.registry_unchecked();
    let types: String = types.iter().map(|(name, of)| format!("{name}: {of:?}\n")).collect();
    insta::assert_snapshot!(format!("messages_of_protocol_{PROTOCOL}"), types);
}

/// Sends an order and returns the last message of the worker.
async fn sent(peers: &Peers, address: &str, order: &OrderMessage) -> Said {
    let within = Duration::from_secs(10);
    let body = to_postcard(order).unwrap();
    let mut said = peers.action(address, "order", body, within).await.unwrap();
    let mut last = Bytes::new();
    while let Some(message) = said.next().await {
        last = message.unwrap();
    }
    from_postcard(&last).unwrap()
}

fn address_of_one(bench: &Bench) -> String {
    bench.cluster.registry().alive()[0].hello.address.clone()
}

/// Sends a plan.
async fn tell(peers: &Peers, address: &str, t: &Tiling) {
    let plan = to_postcard(&message(t)).unwrap();
    let known = peers.action(address, "plan", plan, Duration::from_secs(10)).await.unwrap();
    assert_eq!(known.count().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_lacks_news_asks_for_all_of_them() {
    // The worker does not ask about the plan, which the server does not run.
    let limits = Limits { beat: Duration::from_secs(10), ..Limits::default() };
    let limits = Limits { dead_after: Duration::from_secs(60), ..limits };
    let bench = Bench::with_limits(1, limits).await;
    let (_, t) = &plans()[0];
    let (peers, address) = (bench.cluster.peers(), &address_of_one(&bench));
    tell(peers, address, t).await;
    let entry = |numbers: std::ops::Range<u64>| -> Arc<[u8]> {
        let operands = vec![(StageId(0), numbers.collect::<Bitmap>())];
        let there = There { address: THE_SERVER.into(), operands };
        to_postcard(&there).unwrap().to_vec().into()
    };
    let result = t.plan().results[0].stage;
    let order = |log, first, entries| OrderMessage {
        plan: "p".into(),
        run: vec![(result, (0..1).collect())],
        hold: Vec::new(),
        news: News { log, first, entries },
        begun: false,
        threads: None,
        writes: false,
    };
    let is_behind = |said| matches!(said, Said::Behind);
    assert!(is_behind(sent(peers, address, &order(1, 1, vec![])).await));
    // Nothing was run; with all entries it is.
    let said = sent(peers, address, &order(1, 0, vec![])).await;
    let Said::Done(done) = said else { panic!("{said:?}") };
    assert!(done.error.is_none() && done.progress.stages[result.0 as usize].0 == 1, "{done:?}");
    assert!(is_behind(sent(peers, address, &order(1, 2, vec![entry(0..1)])).await));
    // Another log begins with its first entry. What the worker has itself is not run again.
    assert!(is_behind(sent(peers, address, &order(2, 1, vec![entry(0..1)])).await));
    let said = sent(peers, address, &order(2, 0, vec![entry(0..1), entry(1..2)])).await;
    assert!(matches!(said, Said::Done(_)), "{said:?}");
    assert!(!is_behind(sent(peers, address, &order(2, 2, vec![])).await));
    // A message that was overtaken changes nothing.
    assert!(!is_behind(sent(peers, address, &order(1, 7, vec![])).await));
    assert!(!is_behind(sent(peers, address, &order(2, 2, vec![entry(2..3)])).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_the_server_does_not_run_is_forgotten() {
    let bench = Bench::new(1).await;
    let (_, t) = &plans()[4];
    let drive = bench.drive(t, &Sources::default());
    let _shelved = drive.prepare(t).await.unwrap();
    let chunks = |loads: &[Load]| loads.iter().map(|l| l.chunks).sum::<u64>();
    let is_swept =
        |loads: &[Load]| chunks(loads) == t.plan().output(t.plan().results[0]).grid.count();
    let before = chunks(&loads(&bench, "the results", is_swept).await);
    // The plan of a server that was fenced, or died, while its message was on the way.
    let (peers, address) = (bench.cluster.peers(), &address_of_one(&bench));
    tell(peers, address, t).await;
    let within = Duration::from_secs(10);
    let order = OrderMessage {
        plan: "p".into(),
        run: vec![(t.plan().results[0].stage, (0..1).collect())],
        hold: Vec::new(),
        news: News { log: 1, first: 0, entries: Vec::new() },
        begun: false,
        threads: None,
        writes: false,
    };
    let said = sent(peers, address, &order).await;
    assert!(matches!(&said, Said::Done(done) if done.error.is_none()), "{said:?}");
    let (asked, body) = (Instant::now(), to_postcard(&order).unwrap());
    let refused = loop {
        if let Err(refused) = peers.action(address, "order", body.clone(), within).await {
            break refused;
        }
        assert!(asked.elapsed() < Duration::from_secs(60), "the plan is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(matches!(refused, Fault::NotFound(_)), "{refused:?}");
    loads(&bench, "no chunk of it", |loads| chunks(loads) == before).await;
    // Plans that run stay, however long.
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(chunks(&loads(&bench, "any", |_| true).await), before);
    }
}
