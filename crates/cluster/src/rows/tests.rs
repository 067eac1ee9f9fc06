//! Tasks of workers that compute nothing, over the network of this machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod parts;

use super::{RowsLost, RowsPlan};
use crate::net::Fault;
use crate::registry::Limits;
use crate::tests::{Bench, MEMORY, plans, runtime, stores};
use crate::wire::{Load, RowsAsk, RowsHolder, RowsOrder, to_postcard};
use crate::{Ended, Joining, RowsLoad, RowsRunner, Worker};
use bytes::Bytes;
use futures::future::join_all;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tessera_exec::error::{Error, ErrorReport};
use tessera_exec::rows::{ROWS_HOLDER_LOST, RowsDone, RowsRuns};
use tessera_exec::task::Sources;
use tessera_planner::error::Class;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

/// The batches of a task.
const BATCHES: u64 = 5;
/// The stage of all tasks.
const STAGE: u32 = 1;

/// The behaviour of a fake in an attempt at a task.
#[derive(Debug, Clone, Copy)]
enum What {
    /// All batches, and the end.
    All,
    /// So many batches and a piece of the next one, then the worker dies.
    Dies(usize),
    /// The same, then the stream ends.
    Cut(usize),
    /// The same, then nothing more.
    Hangs(usize),
    /// An error with this code.
    Fails(&'static str),
    /// One batch too few.
    Loses,
    /// Another worker does not return the rows that it keeps.
    LacksRows,
}

/// By the worker, the task and the number of the attempt, from 1.
type Script = Box<dyn Fn(usize, u32, u64) -> What + Send + Sync>;

/// The script and the record that all fakes of a test share.
struct Stage {
    script: Script,
    attempts: Mutex<BTreeMap<u32, u64>>,
    /// The orders that came, by worker.
    orders: Mutex<Vec<(usize, RowsOrder)>>,
}

impl Stage {
    fn new(script: impl Fn(usize, u32, u64) -> What + Send + Sync + 'static) -> Arc<Self> {
        let (attempts, orders) = Default::default();
        Arc::new(Stage { script: Box::new(script), attempts, orders })
    }

    /// The orders that came with a plan, by worker.
    fn with_plan(&self) -> Vec<usize> {
        let orders = self.orders.lock().unwrap();
        orders.iter().filter(|(_, order)| order.plan.is_some()).map(|(w, _)| *w).collect()
    }

    fn attempts(&self, task: u32) -> u64 {
        self.attempts.lock().unwrap().get(&task).copied().unwrap_or(0)
    }
}

/// A fake runner of rows on one worker.
struct Fake {
    worker: usize,
    stage: Arc<Stage>,
    known: Mutex<BTreeSet<[u8; 16]>>,
    forgotten: Mutex<Vec<[u8; 16]>>,
    running: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Ends the process.
    end: Arc<OnceLock<AbortHandle>>,
}

enum Step {
    Say(Bytes),
    Fail(Error),
    Kill,
    Hang,
}

struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The messages of a batch: every other one has two pieces.
fn batch(task: u32, number: u64) -> Vec<Bytes> {
    let (task, number) = (task as u8, number as u8);
    let piece = |kind| Bytes::from(vec![kind, task, number]);
    match number % 2 {
        0 => vec![piece(0), piece(1)],
        _ => vec![piece(1)],
    }
}

fn marked(kind: u8, message: &impl serde::Serialize) -> Bytes {
    postcard::to_extend(message, vec![kind]).unwrap().into()
}

fn end(batches: u64) -> Bytes {
    let done = RowsDone { rows: 10 * batches, batches, seconds: 0.25, peak_bytes: 1 << 20 };
    marked(3, &done)
}

/// All messages of a task for its reader.
fn whole(task: u32) -> Vec<Bytes> {
    (0..BATCHES).flat_map(|number| batch(task, number)).chain([end(BATCHES)]).collect()
}

fn reported(code: &str) -> Error {
    Error::Reported(Box::new(ErrorReport {
        code: code.into(),
        class: Class::Limit,
        message: "it went wrong".into(),
        hint: None,
        may_fit: false,
    }))
}

/// The error of a task that does not get the rows of the first other one of `holders`.
fn holder_lost(holders: &[RowsHolder]) -> Error {
    let hint = holders.iter().find_map(|holder| holder.address.clone());
    let (code, message) = (ROWS_HOLDER_LOST.into(), "its rows do not come".into());
    let class = Class::Retry;
    Error::Reported(Box::new(ErrorReport { code, class, message, hint, may_fit: false }))
}

fn steps(what: What, task: u32, holders: &[RowsHolder]) -> VecDeque<Step> {
    let batches = |count: usize| {
        let runs = marked(2, &RowsRuns { rows: 1, seconds: 0.1 });
        let batches = (0..count as u64).flat_map(move |number| {
            [runs.clone()].into_iter().chain(batch(task, number)).collect::<Vec<Bytes>>()
        });
        batches.map(Step::Say)
    };
    let torn = |count: usize, then: Option<Step>| -> VecDeque<Step> {
        let piece = Step::Say(Bytes::from(vec![0, task as u8, 99]));
        batches(count).chain([piece]).chain(then).collect()
    };
    match what {
        What::All => batches(BATCHES as usize).chain([Step::Say(end(BATCHES))]).collect(),
        What::Dies(count) => torn(count, Some(Step::Kill)),
        What::Cut(count) => torn(count, None),
        What::Hangs(count) => torn(count, Some(Step::Hang)),
        What::Fails(code) => batches(1).chain([Step::Fail(reported(code))]).collect(),
        What::LacksRows => batches(1).chain([Step::Fail(holder_lost(holders))]).collect(),
        What::Loses => batches(BATCHES as usize - 1).chain([Step::Say(end(BATCHES))]).collect(),
    }
}

impl RowsRunner for Fake {
    fn start(&self, order: RowsOrder) -> BoxStream<'static, Result<Bytes, Error>> {
        assert_eq!(order.header, Bytes::from(format!("task {}", order.task)));
        if let Some(plan) = &order.plan {
            assert_eq!(plan, &Bytes::from_static(b"the plan"));
            self.known.lock().unwrap().insert(order.query);
        }
        let attempt = {
            let mut attempts = self.stage.attempts.lock().unwrap();
            let attempt = attempts.entry(order.task).or_default();
            *attempt += 1;
            *attempt
        };
        let what = (self.stage.script)(self.worker, order.task, attempt);
        let steps = steps(what, order.task, &order.holders);
        self.stage.orders.lock().unwrap().push((self.worker, order));
        self.running.fetch_add(1, SeqCst);
        let counted = Counted(self.running.clone());
        let (end, done) = (self.end.clone(), self.done.clone());
        stream::unfold((steps, counted, end, done), |(mut steps, counted, end, done)| async move {
            let step = steps.pop_front()?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            match step {
                Step::Say(message) => {
                    done.fetch_add(u64::from(message[0] == 3), SeqCst);
                    Some((Ok(message), (steps, counted, end, done)))
                }
                Step::Fail(error) => Some((Err(error), (VecDeque::new(), counted, end, done))),
                Step::Kill => {
                    end.get().unwrap().abort();
                    std::future::pending().await
                }
                Step::Hang => std::future::pending().await,
            }
        })
        .boxed()
    }

    fn part(&self, _: RowsAsk) -> BoxStream<'static, Result<Bytes, Error>> {
        stream::empty().boxed()
    }

    fn forget(&self, query: [u8; 16]) {
        self.known.lock().unwrap().remove(&query);
        self.forgotten.lock().unwrap().push(query);
    }

    fn load(&self) -> RowsLoad {
        let done = self.done.load(SeqCst);
        let (running, bytes, kept) = (self.running.load(SeqCst), done, 0);
        RowsLoad { running, done, rows: done * 50, bytes, kept }
    }

    fn knows(&self, query: [u8; 16], stage: u32) -> bool {
        stage == STAGE && self.known.lock().unwrap().contains(&query)
    }
}

/// Adds a worker, which joins soon.
fn start(bench: &mut Bench, stage: &Arc<Stage>) -> Arc<Fake> {
    let fake = Arc::new(Fake {
        worker: bench.workers.len(),
        stage: stage.clone(),
        known: Mutex::default(),
        forgotten: Mutex::default(),
        running: Arc::default(),
        done: Arc::default(),
        end: Arc::default(),
    });
    let worker = Worker::new(runtime(MEMORY), stores(), &bench.credentials, MEMORY / 8);
    worker.runs_rows(fake.clone());
    let joining = Joining {
        schedulers: vec![bench.cluster.address().to_string()],
        listen: "127.0.0.1:0".parse().unwrap(),
        advertise: None,
        name: None,
        version: "1".into(),
        supervisor: None,
    };
    let (end, credentials) = (CancellationToken::new(), bench.credentials.clone());
    let ended = end.clone();
    let task = tokio::spawn(async move { worker.work(&joining, &credentials, &ended).await });
    fake.end.set(task.abort_handle()).unwrap();
    bench.workers.push((end, task));
    fake
}

/// A server with fakes.
async fn with_fakes(count: usize, stage: &Arc<Stage>) -> (Bench, Vec<Arc<Fake>>) {
    let mut bench = Bench::new(0).await;
    let fakes = (0..count).map(|_| start(&mut bench, stage)).collect();
    bench.wait_for(count).await;
    (bench, fakes)
}

fn task(
    plan: &Arc<RowsPlan>,
    task: u32,
    tasks: u32,
) -> BoxStream<'static, Result<Bytes, RowsLost>> {
    task_of_parts(plan, task, (tasks, 0))
}

/// A task that reads rows of this number of splits by parts.
fn task_of_parts(
    plan: &Arc<RowsPlan>,
    task: u32,
    tasks_and_kept: (u32, u32),
) -> BoxStream<'static, Result<Bytes, RowsLost>> {
    let header = Bytes::from(format!("task {task}"));
    plan.task(STAGE, task, tasks_and_kept, header, Bytes::from_static(b"the plan"))
}

/// All messages of a task.
async fn read(plan: &Arc<RowsPlan>, number: u32, tasks: u32) -> Result<Vec<Bytes>, RowsLost> {
    let all = task(plan, number, tasks).try_collect();
    tokio::time::timeout(Duration::from_secs(60), all).await.unwrap()
}

/// The code of the error of a task that ends the statement.
fn code(lost: RowsLost) -> String {
    match lost {
        RowsLost::Failed(error) => error.code().to_owned(),
        RowsLost::Here(reason) => panic!("the server runs it: {reason}"),
    }
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let asked = Instant::now();
    while !is() {
        assert!(asked.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn loads(bench: &Bench, of: fn(&Load) -> u64) -> u64 {
    bench.cluster.registry().alive().iter().map(|m| of(&m.load)).sum()
}

fn kinds(bench: &Bench, kind: &str) -> usize {
    bench.cluster.registry().events().iter().filter(|e| e.kind == kind).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_run_on_all_workers_and_bring_each_the_plan_once() {
    let stage = Stage::new(|_, _, _| What::All);
    let (bench, fakes) = with_fakes(2, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    // Two threads each.
    assert_eq!(plan.turns(), 8);
    let all = join_all((0..24).map(|number| read(&plan, number, 24))).await;
    for (number, messages) in (0..).zip(all) {
        assert_eq!(messages.unwrap(), whole(number));
    }
    let totals = plan.totals();
    assert_eq!((totals.tasks, totals.done, totals.here), (24, 24, 0), "{totals:?}");
    assert_eq!((totals.running, totals.waiting, totals.lost), (0, 0, 0), "{totals:?}");
    assert_eq!(totals.each.len(), 2, "{totals:?}");
    let sum = |of: fn(&super::RowsOfWorker) -> u64| totals.each.values().map(of).sum::<u64>();
    assert_eq!((sum(|w| w.tasks), sum(|w| w.rows)), (24, 24 * 10 * BATCHES));
    let bytes: usize = (0..BATCHES).flat_map(|b| batch(0, b)).map(|message| message.len()).sum();
    assert_eq!((sum(|w| w.bytes), sum(|w| w.retries)), (24 * bytes as u64, 0));
    assert!((totals.seconds - 6.0).abs() < 1e-9, "{totals:?}");
    assert_eq!(plan.left(), (0, 0.0));
    let mut with_plan = stage.with_plan();
    with_plan.sort_unstable();
    assert_eq!(with_plan, [0, 1]);
    until("the workers report their tasks", || loads(&bench, |l| l.row_tasks_done) == 24).await;
    assert_eq!(loads(&bench, |l| l.rows_sent), 24 * 50);
    // A worker that has dropped the stage is sent the plan again.
    fakes.iter().for_each(|fake| fake.known.lock().unwrap().clear());
    assert_eq!(read(&plan, 3, 24).await.unwrap(), whole(3));
    assert_eq!(stage.with_plan().len(), 3);
    // The workers forget the rows when the statement is over.
    let query = stage.orders.lock().unwrap()[0].1.query;
    drop(plan);
    let has_forgotten = |fake: &Arc<Fake>| *fake.forgotten.lock().unwrap() == [query];
    until("the rows are forgotten", || fakes.iter().all(has_forgotten)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_costs_time_only() {
    // The second one is cut within a batch that the first one had not sent.
    let stage = Stage::new(|_, task, attempt| match (task, attempt) {
        (0, 1) => What::Dies(2),
        (0, 2) => What::Cut(4),
        _ => What::All,
    });
    let (bench, _fakes) = with_fakes(3, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    let all = join_all((0..6).map(|number| read(&plan, number, 6))).await;
    for (number, messages) in (0..).zip(all) {
        assert_eq!(messages.unwrap(), whole(number), "task {number}");
    }
    assert_eq!(stage.attempts(0), 3);
    let totals = plan.totals();
    assert_eq!((totals.done, totals.lost, kinds(&bench, "recovering")), (6, 1, 1), "{totals:?}");
    assert_eq!(bench.cluster.registry().alive().len(), 2);
    assert_eq!(kinds(&bench, "poison"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_last_message_is_an_end() {
    let stage = Stage::new(|_, task, attempt| match task {
        0 if attempt < 3 => What::Cut(attempt as usize),
        1 => What::Cut(3),
        2 => What::Loses,
        _ => What::All,
    });
    let (bench, _fakes) = with_fakes(1, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    assert_eq!(read(&plan, 0, 3).await.unwrap(), whole(0));
    assert_eq!((stage.attempts(0), plan.totals().lost), (3, 0));
    // The task fails after a bounded number of attempts. No batch is yielded twice or torn.
    let mut messages = task(&plan, 1, 3);
    for want in (0..3).flat_map(|number| batch(1, number)) {
        assert_eq!(messages.next().await.unwrap().unwrap(), want);
    }
    assert_eq!(code(messages.next().await.unwrap().unwrap_err()), "worker_lost");
    assert!(messages.next().await.is_none());
    assert_eq!(stage.attempts(1), 4);
    // An end whose count differs from the batches that arrived is a fault.
    assert_eq!(code(read(&plan, 2, 3).await.unwrap_err()), "internal");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_kills_workers_is_poison_and_nothing_else_is() {
    let stage = Stage::new(|_, task, _| if task == 3 { What::Dies(1) } else { What::All });
    let (bench, _fakes) = with_fakes(6, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "the deadly one");
    let over = AtomicBool::new(false);
    let innocent = async {
        let mut ran = 0;
        while !over.load(SeqCst) || ran == 0 {
            bench.both(&plans()[0].1, &Sources::default()).await;
            ran += 1;
        }
    };
    let deadly = async {
        let all = join_all((0..6).map(|number| read(&plan, number, 6))).await;
        over.store(true, SeqCst);
        all
    };
    let (all, ()) = tokio::join!(deadly, innocent);
    for (number, end) in (0..).zip(all) {
        match end {
            Ok(messages) => assert!(number != 3 && messages == whole(number), "task {number}"),
            Err(lost) => assert_eq!(code(lost), "poison", "task {number}"),
        }
    }
    assert_eq!((plan.totals().lost, stage.attempts(3)), (3, 3));
    assert_eq!(bench.cluster.registry().alive().len(), 3);
    let events = bench.cluster.registry().events();
    let poison = events.iter().filter(|e| e.kind == "poison");
    let blamed: Vec<Option<&str>> = poison.map(|e| e.statement.as_deref()).collect();
    assert_eq!(blamed, [Some("the deadly one")]);
    // Later statements have their workers.
    let next = RowsPlan::new(&bench.cluster, "the next one");
    assert_eq!(read(&next, 0, 1).await.unwrap(), whole(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_tasks_leave_nothing() {
    let stage = Stage::new(|_, _, _| What::Hangs(1));
    let (bench, fakes) = with_fakes(2, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    // Nothing is sent before the first poll.
    let mut tasks: Vec<_> = (0..4).map(|number| task(&plan, number, 9)).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!((stage.orders.lock().unwrap().len(), plan.left().0), (0, 0));
    for (number, messages) in (0..).zip(&mut tasks) {
        assert_eq!(messages.next().await.unwrap().unwrap(), batch(number, 0)[0]);
    }
    assert_eq!((plan.totals().running, plan.left().0), (4, 9));
    until("all of them run", || loads(&bench, |l| l.row_tasks) == 4).await;
    assert!(bench.cluster.waiting().operands > 0);
    drop(tasks);
    until("none of them runs", || loads(&bench, |l| l.row_tasks) == 0).await;
    assert!(fakes.iter().all(|fake| fake.running.load(SeqCst) == 0));
    let numbers: Vec<u32> =
        bench.cluster.registry().alive().iter().map(|member| member.number).collect();
    let posts = bench.cluster.posts();
    until("no worker has a task", || numbers.iter().all(|worker| posts.orders(*worker) == 0)).await;
    until("nothing is left", || (plan.totals().running, plan.left().0) == (0, 0)).await;
    assert_eq!((plan.totals().waiting, bench.cluster.waiting().operands), (0, 0));
    drop(plan);
    until("they are forgotten", || {
        fakes.iter().all(|fake| fake.forgotten.lock().unwrap().len() == 1)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_worker_finishes_its_tasks_and_gets_no_more() {
    let stage = Stage::new(|_, _, _| What::Hangs(1));
    let (mut bench, _fakes) = with_fakes(1, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    let mut held = task(&plan, 0, 2);
    assert_eq!(held.next().await.unwrap().unwrap(), batch(0, 0)[0]);
    let address = bench.cluster.registry().alive()[0].hello.address.clone();
    bench.workers[0].0.cancel();
    bench.wait_for(0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(bench.cluster.registry().is_here(1), "it waits for its task");
    let order = RowsOrder {
        query: [1; 16],
        stage: STAGE,
        task: 1,
        header: Bytes::from_static(b"task 1"),
        plan: Some(Bytes::from_static(b"the plan")),
        holders: Vec::new(),
    };
    let body = to_postcard(&order).unwrap();
    let within = Duration::from_secs(5);
    let refused = bench.cluster.peers().action(&address, "rows", body, within).await;
    assert!(matches!(refused.err(), Some(Fault::Unreachable(_))));
    // Nobody died of the statement, so the server takes its other tasks.
    assert!(matches!(read(&plan, 1, 2).await, Err(RowsLost::Here(_))));
    assert_eq!(stage.attempts(1), 0);
    drop(held);
    let (_, ended) = bench.workers.remove(0);
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    assert_eq!(ended.unwrap().unwrap(), Ended::Left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_runs_tasks_that_workers_cannot_unless_suspect() {
    let none = Bench::new(0).await;
    let plan = RowsPlan::new(&none.cluster, "a statement");
    assert!(matches!(read(&plan, 0, 1).await, Err(RowsLost::Here(_))));
    assert_eq!((plan.turns(), plan.totals().here), (1, 1));

    let stage = Stage::new(|_, task, attempt| match (task, attempt) {
        (0, 1) => What::Fails("memory_exceeded"),
        (1, 1) => What::Fails("division_by_zero"),
        (2, 1) => What::Dies(1),
        (2, _) => What::Fails("memory_exceeded"),
        _ => What::All,
    });
    let (bench, _fakes) = with_fakes(2, &stage).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    // The batch that came before is not lost: the server skips it.
    let mut messages = task(&plan, 0, 4);
    for want in batch(0, 0) {
        assert_eq!(messages.next().await.unwrap().unwrap(), want);
    }
    let Some(Err(RowsLost::Here(reason))) = messages.next().await else { panic!("not here") };
    assert!(reason.starts_with("it went wrong (worker "), "{reason}");
    // The worker gets no more of this statement; the other one does.
    assert_eq!((plan.turns(), kinds(&bench, "no_rows")), (4, 1));
    for number in 3..9 {
        assert_eq!(read(&plan, number, 9).await.unwrap(), whole(number));
    }
    assert_eq!(plan.totals().each.values().filter(|of| of.tasks > 0).count(), 1);
    assert_eq!(code(read(&plan, 1, 4).await.unwrap_err()), "division_by_zero");
    // A worker died of this one. The last one cannot run it, and the server must not.
    let plan = RowsPlan::new(&bench.cluster, "another statement");
    assert_eq!(code(read(&plan, 2, 4).await.unwrap_err()), "worker_lost");
    assert_eq!(stage.attempts(2), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_nobody_reads_are_not_in_the_way() {
    let stage = Stage::new(|_, task, attempt| match (task, attempt) {
        (7, 1) => What::Dies(0),
        _ => What::All,
    });
    let mut bench = Bench::new(0).await;
    let _first = start(&mut bench, &stage);
    bench.wait_for(1).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    // More than the worker has threads for; each has sent something and waits for its reader.
    let mut unread: Vec<_> = (0..7).map(|number| task(&plan, number, 8)).collect();
    for (number, messages) in (0..).zip(&mut unread) {
        assert_eq!(messages.next().await.unwrap().unwrap(), batch(number, 0)[0]);
    }
    // Another worker dies of a task, which then needs the first one for itself.
    let _second = start(&mut bench, &stage);
    bench.wait_for(2).await;
    assert_eq!(read(&plan, 7, 8).await.unwrap(), whole(7));
    for (number, messages) in (0..).zip(unread) {
        let rest: Vec<Bytes> = messages.try_collect().await.unwrap();
        assert_eq!(rest, whole(number)[1..], "task {number}");
    }
    let totals = plan.totals();
    assert_eq!((totals.done, totals.lost), (8, 1), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_whose_workers_died_waits_for_others() {
    let stage = Stage::new(|_, _, attempt| if attempt == 1 { What::Dies(1) } else { What::All });
    let wait = Duration::from_secs(2);
    let limits = Limits { beat: Duration::from_millis(50), wait, ..Limits::default() };
    let mut bench = Bench::with_limits(0, limits).await;
    let _fake = start(&mut bench, &stage);
    bench.wait_for(1).await;
    let plan = RowsPlan::new(&bench.cluster, "a statement");
    let reading = tokio::spawn({
        let plan = plan.clone();
        async move { read(&plan, 0, 2).await }
    });
    bench.wait_for(0).await;
    until("it waits", || kinds(&bench, "waiting") == 1).await;
    let _fake = start(&mut bench, &stage);
    assert_eq!(reading.await.unwrap().unwrap(), whole(0));
    // No worker joins: the server does not run tasks that may have killed workers.
    assert_eq!(code(read(&plan, 1, 2).await.unwrap_err()), "worker_lost");
    assert_eq!(stage.attempts(1), 1);
}
