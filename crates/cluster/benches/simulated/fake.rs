//! Workers that know what each order runs, and compute nothing.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tessera_cluster::net::{Credentials, Fault, Object, Peers, Server, Service};
use tessera_cluster::wire::{
    Advice, Beat, Done, Hello, Learned, Load, OrderMessage, OrderProgress, PlanMessage, PlanName,
    Said, There, Version, Welcome,
};
use tessera_planner::recover::{Bitmap, reached};
use tessera_planner::tile::Tiling;

/// Interval of progress messages, as of a real worker.
const TELL: Duration = Duration::from_millis(250);
/// Timeout of a call to the server.
const CALL: Duration = Duration::from_secs(10);

/// A worker that ends its orders after the time that they would take.
pub(crate) struct Fake {
    pub(crate) threads: u32,
    /// Time that a thread takes for an operand.
    pub(crate) operand: Duration,
    /// The worker forgets the chunks of other parties before every `forgets`-th order; never if 0.
    pub(crate) forgets: u64,
    plans: Mutex<BTreeMap<String, Known>>,
    pub(crate) orders: AtomicU64,
    /// Orders that it did not begin because it lacked news.
    pub(crate) behind: AtomicU64,
}

/// A plan, and which chunks are where.
struct Known {
    tiling: Arc<Tiling>,
    own: Vec<Bitmap>,
    log: u64,
    entries: u64,
    there: Vec<Bitmap>,
}

impl Fake {
    pub(crate) fn new(threads: u32, operand: Duration, forgets: u64) -> Arc<Self> {
        Arc::new(Fake {
            threads,
            operand,
            forgets,
            plans: Mutex::default(),
            orders: AtomicU64::new(0),
            behind: AtomicU64::new(0),
        })
    }

    fn plans(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens, joins, and returns what keeps it in the cluster.
    pub(crate) async fn join(
        self: &Arc<Self>,
        scheduler: &str,
        credentials: &Credentials,
        version: &str,
    ) -> Result<(Server, tokio::task::JoinHandle<()>), Fault> {
        let listen = ([127, 0, 0, 1], 0).into();
        let server = Server::bind(listen, Arc::new(Calls(self.clone())), credentials).await?;
        let address = server.address().to_string();
        let hello = Hello {
            name: address.clone(),
            address,
            threads: self.threads,
            memory_bytes: 16 << 30,
            pid: std::process::id(),
            incarnation: u64::from(server.address().port()),
            version: Version::of(version),
            supervisor: None,
        };
        let peers = Peers::new(credentials);
        let welcome: Welcome = peers.call(scheduler, "join", &hello, CALL).await?;
        let (worker, incarnation) = (welcome.worker, hello.incarnation);
        let (fake, scheduler) = (self.clone(), scheduler.to_owned());
        let beats = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(welcome.beat_ms)).await;
                let load = Load { orders: fake.orders.load(Relaxed), ..Load::default() };
                let beat = Beat { worker, incarnation, draining: false, load };
                match peers.call(&scheduler, "beat", &beat, CALL).await {
                    Ok(Advice::Go) => {}
                    _ => return,
                }
            }
        });
        Ok((server, beats))
    }

    /// Number of operands that an order runs for each stage; `None` if news are missing.
    fn run(&self, message: &OrderMessage) -> Result<Option<Vec<u64>>, Fault> {
        let mut plans = self.plans();
        let known = plans.get_mut(&message.plan);
        let known = known.ok_or_else(|| Fault::NotFound(format!("plan `{}`", message.plan)))?;
        let order = self.orders.fetch_add(1, Relaxed) + 1;
        if self.forgets > 0 && order.is_multiple_of(self.forgets) && message.news.first > 0 {
            (known.log, known.entries) = (0, 0);
        }
        if message.news.log != known.log && message.news.first == 0 {
            known.there.iter_mut().for_each(|there| *there = Bitmap::default());
            (known.log, known.entries) = (message.news.log, 0);
        }
        if message.news.log > known.log || message.news.first > known.entries {
            self.behind.fetch_add(1, Relaxed);
            return Ok(None);
        }
        let known_before = (known.entries - message.news.first) as usize;
        for entry in message.news.entries.iter().skip(known_before) {
            let there: There = read(entry)?;
            for (stage, operands) in &there.operands {
                known.there[stage.0 as usize].extend(operands);
            }
            known.entries += 1;
        }
        let found = reached(&known.tiling, &message.run, &[&known.there, &known.own]);
        for (stage, operands) in &message.run {
            known.own[stage.0 as usize].extend(operands);
        }
        for (stage, operands) in &message.hold {
            let s = stage.0 as usize;
            known.own[s].extend(&operands.and(&found.runs[s]));
        }
        Ok(Some(found.runs.iter().map(Bitmap::len).collect()))
    }

    fn order(&self, body: &[u8]) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        let Some(ran) = self.run(&read(body)?)? else {
            return Ok(stream::once(std::future::ready(write(&Said::Behind))).boxed());
        };
        let all: u64 = ran.iter().sum();
        let takes = self.operand * all.min(u64::from(u32::MAX)) as u32 / self.threads.max(1);
        let said = stream::unfold(Some(takes), move |left| {
            let ran = ran.clone();
            async move {
                let left = left?;
                tokio::time::sleep(left.min(TELL)).await;
                if left > TELL {
                    let stages = ran.iter().map(|_| (0, 0.0)).collect();
                    let none = OrderProgress { stages, ..OrderProgress::default() };
                    return Some((write(&Said::Runs(none)), Some(left - TELL)));
                }
                let stages = ran.iter().map(|n| (*n, 0.0)).collect();
                let progress = OrderProgress { stages, ..OrderProgress::default() };
                let done = Done { progress, ..Done::default() };
                Some((write(&Said::Done(Box::new(done))), None))
            }
        });
        Ok(said.boxed())
    }
}

struct Calls(Arc<Fake>);

#[async_trait]
impl Service for Calls {
    async fn action(
        &self,
        kind: &str,
        body: Bytes,
    ) -> Result<BoxStream<'static, Result<Bytes, Fault>>, Fault> {
        match kind {
            "ping" | "begin" | "free" => {}
            "plan" => {
                let PlanMessage { id, plan, .. } = read(&body)?;
                let none = vec![Bitmap::default(); plan.stages.len()];
                let (own, there) = (none.clone(), none);
                let tiling = Arc::new(Tiling::new(plan));
                let known = Known { tiling, own, there, log: 0, entries: 0 };
                self.0.plans().insert(id, known);
                let learned = serde_json::to_vec(&Learned::default());
                let learned = learned.map(Bytes::from).map_err(|e| Fault::Broken(e.to_string()));
                return Ok(stream::once(std::future::ready(learned)).boxed());
            }
            "forget" => {
                let name: Result<PlanName, _> = serde_json::from_slice(&body);
                let PlanName { plan } = name.map_err(|e| Fault::Broken(e.to_string()))?;
                self.0.plans().remove(&plan);
            }
            "order" => return self.0.order(&body),
            kind => return Err(Fault::Broken(kind.into())),
        }
        Ok(stream::once(std::future::ready(Ok(Bytes::from_static(b"null")))).boxed())
    }

    async fn object(&self, _: Bytes) -> Result<Object, Fault> {
        Err(Fault::NotFound("a chunk: nothing was computed".into()))
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Fault> {
    postcard::from_bytes(body).map_err(|e| Fault::Broken(e.to_string()))
}

fn write(said: &Said) -> Result<Bytes, Fault> {
    let written = postcard::to_extend(said, Vec::new());
    written.map(Bytes::from).map_err(|e| Fault::Broken(e.to_string()))
}
