//! Streams that run at the same time and are read one after the other.
//!
//! ```text
//! part 0  ████████ ──▶ read                a part runs when it has a turn, the first ones first
//! part 1  ██████ (held) ─────▶ read        what a part has computed ahead is held, up to a limit
//! part 2  ███ (held) ─────────────▶ read
//! part 3  waits for a turn
//! ```
//! The items are those of the parts one after the other, whatever the number of turns. A part that panics is an error,
//! never a shorter stream. Dropping the stream ends all parts.
//!
//! Where memory does not suffice for several parts, they run again, one at a time: a part that failed has to yield the
//! same items, of which those that were read are skipped.

use crate::rows::measured::of_operator;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Parts that are started for each turn, as a rule.
pub(super) const WINDOW: usize = 4;

/// Limits on parts that run at the same time.
pub(super) struct Bounds {
    /// Parts that compute at the same time.
    pub(super) turns: usize,
    /// Parts that are started for each turn. A part that waits for its reader gives its turn to another one, so this
    /// bounds the parts that retain computed items.
    pub(super) window: usize,
    /// Upper bound on the bytes that are held for the reader, beside one item of each part. They are reserved at the
    /// start, so that they are available later; if that is refused, nothing is held.
    pub(super) bytes: usize,
    pub(super) memory: MemoryReservation,
}

pub(super) type Begin<T> = Box<dyn Fn(usize) -> BoxStream<'static, Result<T>> + Send + Sync>;

/// Begins parts that share a state, with a new state.
pub(super) type Anew<T> = Box<dyn Fn() -> Result<Begin<T>> + Send + Sync>;

/// An item and its bytes.
type Sized<T> = (T, usize);

/// Runs `parts` parts at the same time and yields their items part by part; `size` is the memory of an item. With one
/// turn, a part begins when the one before it has ended, and nothing is computed ahead.
pub(super) fn in_order<T: Send + 'static>(
    parts: usize,
    begin: Begin<T>,
    size: fn(&T) -> usize,
    bounds: Bounds,
) -> BoxStream<'static, Result<T>> {
    all_in_order(parts, begin, None, size, bounds)
}

/// As [`in_order`], for parts that share a state. Where memory does not suffice, all of them run again.
pub(super) fn in_order_sharing<T: Send + 'static>(
    parts: usize,
    anew: Anew<T>,
    size: fn(&T) -> usize,
    bounds: Bounds,
) -> Result<BoxStream<'static, Result<T>>> {
    Ok(all_in_order(parts, anew()?, Some(anew), size, bounds))
}

fn all_in_order<T: Send + 'static>(
    parts: usize,
    begin: Begin<T>,
    anew: Option<Anew<T>>,
    size: fn(&T) -> usize,
    bounds: Bounds,
) -> BoxStream<'static, Result<T>> {
    let Bounds { turns, window, bytes, memory } = bounds;
    if turns <= 1 || parts <= 1 {
        return stream::iter(0..parts).flat_map(begin).boxed();
    }
    let window = (turns * window.max(1)).min(parts);
    let held = if memory.try_grow(bytes).is_ok() { bytes } else { 0 };
    let state = InOrder {
        begin,
        anew,
        parts,
        next: 0,
        running: VecDeque::with_capacity(window),
        window,
        size,
        turns: Arc::new(Semaphore::new(turns)),
        bytes: held / window,
        all_read: 0,
        read: 0,
        skipped: 0,
        _memory: memory,
    };
    stream::try_unfold(state, |mut state| async move {
        Ok(state.next().await?.map(|item| (item, state)))
    })
    .boxed()
}

struct InOrder<T> {
    begin: Begin<T>,
    /// `None` for parts that share nothing.
    anew: Option<Anew<T>>,
    parts: usize,
    next: usize,
    running: VecDeque<StartedPart<T>>,
    window: usize,
    size: fn(&T) -> usize,
    turns: Arc<Semaphore>,
    /// Bytes that a part may hold.
    bytes: usize,
    /// Items that were read.
    all_read: usize,
    /// Items of the first running part that were read.
    read: usize,
    /// The next items that are skipped: they were read before their parts ran again.
    skipped: usize,
    /// Counts the bytes that parts hold.
    _memory: MemoryReservation,
}

struct StartedPart<T> {
    items: mpsc::UnboundedReceiver<Sized<T>>,
    held: Arc<WaitingBytes>,
    /// The one task of the part.
    task: JoinSet<Result<()>>,
}

/// The bytes of a part that wait for the reader.
struct WaitingBytes {
    bytes: AtomicUsize,
    most: usize,
    room: Notify,
}

impl WaitingBytes {
    /// Waits until the part may compute more.
    async fn room(&self) {
        loop {
            // Registered before the check: the reader may make room in between.
            let room = self.room.notified();
            if self.bytes.load(SeqCst) <= self.most {
                return;
            }
            room.await;
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.load(SeqCst) > self.most
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, SeqCst);
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, SeqCst);
        self.room.notify_one();
    }
}

impl<T: Send + 'static> InOrder<T> {
    async fn next(&mut self) -> Result<Option<T>> {
        loop {
            while self.running.len() < self.window && self.next < self.parts {
                let running = self.start((self.begin)(self.next));
                self.running.push_back(running);
                self.next += 1;
            }
            let Some(first) = self.running.front_mut() else { return Ok(None) };
            if let Some((item, bytes)) = first.items.recv().await {
                first.held.remove(bytes);
                if self.skipped > 0 {
                    self.skipped -= 1;
                    continue;
                }
                self.read += 1;
                self.all_read += 1;
                return Ok(Some(item));
            }
            let Some(mut first) = self.running.pop_front() else { return Ok(None) };
            // The items end where the part ends, fails or panics.
            match first.task.join_next().await {
                Some(Ok(Ok(()))) | None => {
                    self.read = 0;
                    if self.anew.is_none() {
                        self.skipped = 0;
                    }
                }
                Some(Ok(Err(e))) => self.again_alone(e).await?,
                Some(Err(e)) => return Err(DataFusionError::ExecutionJoin(Box::new(e))),
            }
        }
    }

    /// Ends all parts and lets the first one run again, alone, if it ran out of memory. Those before it run again, too,
    /// if they share a state.
    async fn again_alone(&mut self, error: DataFusionError) -> Result<()> {
        if self.window == 1 || !is_out_of_memory(&error) {
            return Err(error);
        }
        let first = self.next - self.running.len() - 1;
        for mut ended in self.running.drain(..) {
            ended.task.shutdown().await;
        }
        self.window = 1;
        (self.next, self.skipped) = match &self.anew {
            Some(anew) => {
                self.begin = anew()?;
                (0, self.all_read)
            }
            None => (first, self.read),
        };
        self.read = 0;
        Ok(())
    }

    fn start(&self, mut part: BoxStream<'static, Result<T>>) -> StartedPart<T> {
        let (send, items) = mpsc::unbounded_channel();
        let (bytes, most, room) = (AtomicUsize::new(0), self.bytes, Notify::new());
        let held = Arc::new(WaitingBytes { bytes, most, room });
        let (turns, size, of) = (self.turns.clone(), self.size, held.clone());
        let mut task = JoinSet::new();
        task.spawn(of_operator(async move {
            let closed = |_| DataFusionError::Internal("the turns of parts have ended".into());
            let mut turn = turns.clone().acquire_owned().await.map_err(closed)?;
            while let Some(item) = part.next().await {
                let item = item?;
                let bytes = size(&item);
                of.add(bytes);
                if send.send((item, bytes)).is_err() {
                    break;
                }
                if of.is_full() {
                    drop(turn);
                    of.room().await;
                    turn = turns.clone().acquire_owned().await.map_err(closed)?;
                }
            }
            drop(turn);
            Ok::<(), DataFusionError>(())
        }));
        StartedPart { items, held, task }
    }
}

/// True if memory was refused.
pub(super) fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, UnboundedMemoryPool};
    use futures::TryStreamExt;
    use std::time::Duration;

    fn bounds(pool: &Arc<dyn MemoryPool>, turns: usize, bytes: usize) -> Bounds {
        let memory = MemoryConsumer::new("test").register(pool);
        Bounds { turns, window: WINDOW, bytes, memory }
    }

    /// Twenty parts of ten items; later parts are faster. Calls `at` before each item.
    fn parts(at: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Begin<usize> {
        let at = Arc::new(at);
        Box::new(move |part| {
            let at = at.clone();
            let item = move |i: usize| {
                let at = at.clone();
                async move {
                    tokio::time::sleep(Duration::from_micros(((20 - part) * 20) as u64)).await;
                    at(part * 10 + i).map(|()| part * 10 + i)
                }
            };
            stream::iter(0..10).then(item).boxed()
        })
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn items_come_part_by_part_whatever_the_turns_and_the_memory() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        for (turns, bytes) in [(1, 0), (1, 1 << 20), (3, 0), (3, 400), (8, 1 << 20)] {
            let all = in_order(20, parts(|_| Ok(())), |_| 10, bounds(&pool, turns, bytes));
            let all: Vec<usize> = all.try_collect().await.unwrap();
            assert_eq!(all, (0..200).collect::<Vec<_>>(), "{turns} turns, {bytes} bytes");
            assert_eq!(pool.reserved(), 0);
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_panic_is_an_error_and_never_fewer_items() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        for fails_at in [0, 55, 199] {
            let at = move |i| if i == fails_at { panic!("on purpose") } else { Ok(()) };
            let all = in_order(20, parts(at), |_| 10, bounds(&pool, 2, 1 << 20));
            let mut seen = 0;
            let ended = all
                .try_for_each(|_| {
                    seen += 1;
                    futures::future::ok(())
                })
                .await;
            assert!(matches!(ended, Err(DataFusionError::ExecutionJoin(_))), "{ended:?}");
            assert_eq!(seen, fails_at);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn parts_run_again_one_at_a_time_where_memory_is_short() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let tries = Arc::new(AtomicUsize::new(0));
        let seen = tries.clone();
        let short = move |i| match i == 57 && seen.fetch_add(1, SeqCst) == 0 {
            true => Err(DataFusionError::ResourcesExhausted("on purpose".into())),
            false => Ok(()),
        };
        let all = in_order(20, parts(short), |_| 10, bounds(&pool, 3, 1 << 20));
        let all: Vec<usize> = all.try_collect().await.unwrap();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert_eq!(tries.load(SeqCst), 2);
        let always = |i| match i == 57 {
            true => Err(DataFusionError::ResourcesExhausted("on purpose".into())),
            false => Ok(()),
        };
        let all = in_order(20, parts(always), |_| 10, bounds(&pool, 3, 1 << 20));
        let all: Vec<_> = all.collect().await;
        assert_eq!(all.len(), 58);
        assert!(matches!(all[57], Err(DataFusionError::ResourcesExhausted(_))), "{:?}", all[57]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn parts_that_share_a_state_run_again_with_a_new_one() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        for fails_at in [57, 0, 199, 200] {
            let states = Arc::new(AtomicUsize::new(0));
            let made = states.clone();
            let anew: Anew<usize> = Box::new(move || {
                let is_first = made.fetch_add(1, SeqCst) == 0;
                Ok(parts(move |i| match i == fails_at && is_first {
                    true => Err(DataFusionError::ResourcesExhausted("on purpose".into())),
                    false => Ok(()),
                }))
            });
            let all = in_order_sharing(20, anew, |_| 10, bounds(&pool, 3, 1 << 20)).unwrap();
            let all: Vec<usize> = all.try_collect().await.unwrap();
            assert_eq!(all, (0..200).collect::<Vec<_>>(), "{fails_at}");
            assert_eq!(states.load(SeqCst), if fails_at < 200 { 2 } else { 1 });
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dropping_the_stream_ends_the_parts_and_frees_their_memory() {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let endless: Begin<i32> = Box::new(|_| {
            let yielding = |item| async move {
                tokio::task::yield_now().await;
                item
            };
            stream::repeat_with(|| Ok(1)).then(yielding).boxed()
        });
        let mut all = in_order(5, endless, |_| 10, bounds(&pool, 2, 1000));
        assert_eq!(all.next().await.unwrap().unwrap(), 1);
        drop(all);
        for _ in 0..1000 {
            if pool.reserved() == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{} bytes are held", pool.reserved());
    }
}
