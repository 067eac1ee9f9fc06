//! One order on a worker: from the message to its end.

use super::{Counted, Worker, output, to_fault};
use crate::net::{Answers, Fault};
use crate::shelf::OrderShelf;
use crate::wire::{Done, OrderMessage, OrderProgress, Said, to_postcard};
use futures::{FutureExt, StreamExt, stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;
use tessera_exec::cancel::CancelToken;
use tessera_exec::error::{Error, ErrorReport};
use tessera_exec::order::{Order, Shelved, only_results};
use tessera_exec::run::How;
use tessera_exec::schedule::{Outcome, Stats};
use tessera_planner::recover::{Bitmap, Recovery};

/// Interval of an order's progress messages.
const TELL: Duration = Duration::from_millis(250);

impl Worker {
    /// Starts an order; its end is the last message of the stream.
    pub(super) async fn order(self: &Arc<Self>, message: OrderMessage) -> Result<Answers, Fault> {
        let known = self.known(&message.plan)?;
        let server = self.server();
        let Some(view) = known.hear(&message.news, server.as_deref().unwrap_or_default())? else {
            return Ok(stream::once(std::future::ready(to_postcard(&Said::Behind))).boxed());
        };
        if message.begun {
            // The order does not wait for storage.
            let known = known.clone();
            tokio::spawn(async move { known.begin().await });
        }
        let stages = known.tiling.plan().stages.len();
        let mut there = vec![Bitmap::default(); stages];
        for (stage, operands) in known.kept.operands() {
            there[stage.0 as usize].extend(&operands);
        }
        view.add_to(&mut there);
        let output = output::begin(&known, message.writes);
        let (fetched, relayed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let shelf = Arc::new(OrderShelf {
            plan: message.plan,
            kept: known.kept.clone(),
            reach: self.reach.clone(),
            stored: known.stored.clone(),
            view,
            run: message.run.iter().cloned().collect(),
            hold: message.hold.into_iter().collect(),
            written: output.as_ref().map(|_| only_results(&known.tiling)).unwrap_or_default(),
            server,
            fetched: fetched.clone(),
            relayed: relayed.clone(),
            fetched_by_all: self.fetched.clone(),
        });
        let tiling = known.tiling.clone();
        let listed = tokio::task::spawn_blocking(move || {
            let order = Order::new(tiling, message.run, &there)?;
            Ok::<_, Error>((order, there))
        });
        let (order, there) = match listed.await {
            Ok(listed) => listed.map_err(|e| to_fault(&e))?,
            Err(e) => {
                return Err(to_fault(&Error::Broken { what: format!("an order was lost: {e}") }));
            }
        };
        let how = How {
            stored: known.stored.as_ref().map(|stored| stored.again()),
            shelved: Some(Shelved { shelf, recovery: Recovery::loading(there) }),
            threads: message.threads,
            ..How::default()
        };
        self.orders.fetch_add(1, Relaxed);
        let counted = Counted(self.clone());
        let token = CancelToken::new();
        let running = self
            .runtime
            .start_as(Arc::new(order), known.runner.clone(), output::sink(&output), &token, how)
            .map_err(|e| to_fault(&e))?;
        let watch = running.watch();
        let mut tick = tokio::time::interval(TELL);
        let by_all = self.written.clone();
        let mut end = Some(Box::pin(async move {
            let mut outcome = running.outcome().await;
            let mut last = output::finish(output.as_deref(), &mut outcome, &by_all).await;
            drop(counted);
            let moved = (fetched.load(Relaxed), relayed.load(Relaxed));
            let wrote = output.is_some();
            let done = Done { durable: known.did(), wrote, ..done(&outcome, moved) };
            last.push_back(Said::Done(Box::new(done)));
            last
        }));
        let mut last = VecDeque::new();
        // Dropping the stream drops `running`, which cancels the order.
        let said = stream::poll_fn(move |cx| {
            if let Some(running) = &mut end
                && let Poll::Ready(said) = running.poll_unpin(cx)
            {
                (end, last) = (None, said);
            }
            if end.is_none() {
                return Poll::Ready(last.pop_front().map(|said| to_postcard(&said)));
            }
            while tick.poll_tick(cx).is_ready() {
                if let Some(stats) = watch.stats() {
                    return Poll::Ready(Some(to_postcard(&Said::Runs(progress(&stats)))));
                }
            }
            Poll::Pending
        });
        Ok(said.boxed())
    }
}

fn progress(stats: &Stats) -> OrderProgress {
    let stages = stats.stages.iter().map(|s| (s.operands, s.seconds)).collect();
    OrderProgress { stages, states: stats.states.clone() }
}

fn done(outcome: &Outcome, (bytes_moved, bytes_relayed): (u64, u64)) -> Done {
    let stats = &outcome.stats;
    Done {
        error: outcome.result.as_ref().err().map(ErrorReport::from),
        progress: progress(stats),
        requests: stats.requests,
        bytes_read: stats.bytes_fetched,
        bytes_moved,
        bytes_relayed,
        peak_bytes: stats.peak_bytes,
        spills: stats.spills,
        bytes_spilled: stats.bytes_spilled,
        ..Done::default()
    }
}
