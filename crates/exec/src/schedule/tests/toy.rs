//! Plans of integers, and their runner.

use crate::schedule::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

pub(super) type Reads = Box<dyn Fn(u64) -> Vec<(u32, u64)> + Send + Sync>;

/// A stage of a toy plan: chunks in a row, each of `cells` `int64`.
pub(super) struct ToyStage {
    pub(super) count: u64,
    pub(super) cells: u64,
    pub(super) outputs: u32,
    pub(super) scratch: u64,
    pub(super) load: bool,
    /// True if operands read parts of spilled chunks.
    pub(super) parts: bool,
    pub(super) depth: u32,
    /// Stage and number of the chunks that an operand reads (of output `number % outputs`).
    pub(super) reads: Reads,
    pub(super) readers: Box<dyn Fn(u32, u64) -> u64 + Send + Sync>,
    pub(super) grid: Grid,
}

#[derive(Default)]
pub(super) struct Toy {
    pub(super) stages: Vec<ToyStage>,
    pub(super) results: Vec<OutputRef>,
    /// Number of times the plan panics when a stage's name is requested.
    pub(super) nameless: AtomicU64,
}

pub(super) fn out(stage: u32, output: u32) -> OutputRef {
    OutputRef { stage: StageId(stage), output }
}

impl Toy {
    pub(super) fn stage(&mut self, count: u64, cells: u64, reads: Reads) -> u32 {
        self.stages.push(ToyStage {
            count,
            cells,
            outputs: 1,
            scratch: 0,
            load: false,
            parts: false,
            depth: 0,
            reads,
            readers: Box::new(|_, _| 1),
            grid: Grid::regular(&[count * cells], &[cells]),
        });
        (self.stages.len() - 1) as u32
    }

    pub(super) fn load(&mut self, count: u64, cells: u64) -> u32 {
        let s = self.stage(count, cells, Box::new(|_| vec![]));
        self.stages[s as usize].load = true;
        s
    }

    /// Counts readers one by one and computes depths: for small plans.
    pub(super) fn count(mut self) -> Arc<Self> {
        for s in 0..self.stages.len() {
            let mut readers: BTreeMap<(u32, u64), u64> = BTreeMap::new();
            for (i, t) in self.stages.iter().enumerate() {
                for n in 0..t.count {
                    for r in self.all_reads(i as u32, n) {
                        if r.0.stage.0 as usize == s {
                            *readers.entry((r.0.output, r.1)).or_default() += 1;
                        }
                    }
                }
            }
            let mut depth = 0;
            for n in 0..self.stages[s].count {
                for r in self.all_reads(s as u32, n) {
                    let below = r.0.stage.0 as usize;
                    depth = depth.max(1 + if below == s { 0 } else { self.stages[below].depth });
                }
            }
            self.stages[s].depth = depth;
            self.stages[s].readers =
                Box::new(move |o, n| readers.get(&(o, n)).copied().unwrap_or(0));
        }
        Arc::new(self)
    }

    pub(super) fn all_reads(&self, stage: u32, n: u64) -> Vec<(OutputRef, u64)> {
        let with = |(s, n): (u32, u64)| {
            (out(s, (n % u64::from(self.stages[s as usize].outputs)) as u32), n)
        };
        (self.stages[stage as usize].reads)(n).into_iter().map(with).collect()
    }

    /// Evaluates a chunk's first cell, without the scheduler.
    pub(super) fn value(&self, of: OutputRef, n: u64, memo: &mut BTreeMap<(u32, u64), i64>) -> i64 {
        let s = of.stage.0;
        let sum = match memo.get(&(s, n)) {
            Some(&v) => v,
            None => {
                let mut v = seed(s, n);
                for (i, (r, m)) in self.all_reads(s, n).into_iter().enumerate() {
                    v = mix(v, i, self.value(r, m, memo));
                }
                memo.insert((s, n), v);
                v
            }
        };
        sum.wrapping_add(i64::from(of.output))
    }
}

fn seed(stage: u32, n: u64) -> i64 {
    i64::from(stage) * 1_000_003 + n as i64
}

fn mix(v: i64, i: usize, input: i64) -> i64 {
    v.wrapping_mul(31).wrapping_add(input.wrapping_mul(i as i64 + 7))
}

impl Tiling for Toy {
    fn stages(&self) -> usize {
        self.stages.len()
    }
    fn results(&self) -> &[OutputRef] {
        &self.results
    }
    fn grid(&self, stage: StageId) -> &Grid {
        &self.stages[stage.0 as usize].grid
    }
    fn outputs(&self, stage: StageId) -> usize {
        self.stages[stage.0 as usize].outputs as usize
    }
    fn output_grid(&self, of: OutputRef) -> &Grid {
        self.grid(of.stage)
    }
    fn name(&self, stage: StageId) -> String {
        let fault = self.nameless.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
        assert!(fault.is_err(), "no name");
        let kind = if self.stages[stage.0 as usize].load { "load" } else { "sum" };
        format!("{kind} {}", stage.0)
    }
    fn reads(&self, stage: StageId, index: &[u64], f: &mut dyn FnMut(OutputRef, ChunkIndex)) {
        for (r, n) in self.all_reads(stage.0, index[0]) {
            f(r, SmallVec::from_slice(&[n]));
        }
    }
    fn read_count(&self, stage: StageId, index: &[u64]) -> u64 {
        self.all_reads(stage.0, index[0]).len() as u64
    }
    fn readers(&self, of: OutputRef, index: &[u64]) -> u64 {
        (self.stages[of.stage.0 as usize].readers)(of.output, index[0])
    }
    fn peak(&self, stage: StageId, index: &[u64]) -> u64 {
        self.output_bytes(stage, index) + self.stages[stage.0 as usize].scratch
    }
    fn output_bytes(&self, stage: StageId, _: &[u64]) -> u64 {
        let s = &self.stages[stage.0 as usize];
        s.cells * 8 * u64::from(s.outputs)
    }
    fn depth(&self, stage: StageId) -> u32 {
        self.stages[stage.0 as usize].depth
    }
    fn is_rereadable(&self, stage: StageId) -> bool {
        self.stages[stage.0 as usize].load
    }
    fn parts(&self, stage: StageId, _: &[u64], _: OutputRef) -> Option<u64> {
        self.stages[stage.0 as usize].parts.then_some(0)
    }
    fn is_read_in_parts(&self, _: StageId) -> bool {
        self.stages.iter().any(|s| s.parts)
    }
}

pub(super) type Hook = Box<dyn Fn(StageId, u64, &CancelToken) -> Result<(), Error> + Send + Sync>;

pub(super) type Fetch = dyn Fn(u64) -> Result<(), Error> + Send + Sync;

pub(super) type OnChunk = dyn Fn(usize, u64) -> Result<(), Error> + Send + Sync;

pub(super) struct ToyRunner {
    pub(super) plan: Arc<Toy>,
    pub(super) before: Hook,
    /// Called when a load fetches; without it loads do no I/O.
    pub(super) fetch: Option<Arc<Fetch>>,
    pub(super) ran: AtomicU64,
}

impl ToyRunner {
    pub(super) fn new(plan: &Arc<Toy>) -> Self {
        ToyRunner {
            plan: plan.clone(),
            before: Box::new(|_, _, _| Ok(())),
            fetch: None,
            ran: AtomicU64::new(0),
        }
    }

    pub(super) fn hooked(
        plan: &Arc<Toy>,
        before: impl Fn(StageId, u64, &CancelToken) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(ToyRunner { before: Box::new(before), ..ToyRunner::new(plan) })
    }
}

impl TaskRunner for ToyRunner {
    fn prepare(
        &self,
        _: StageId,
        index: &[u64],
    ) -> Option<BoxFuture<'static, Result<Prepared, Error>>> {
        let (fetch, n) = (self.fetch.clone()?, index[0]);
        Some(Box::pin(async move {
            tokio::time::sleep(Duration::from_micros(50)).await;
            fetch(n)?;
            Ok(Box::new(n) as Prepared)
        }))
    }

    fn fetches(&self, _: StageId) -> bool {
        self.fetch.is_some()
    }

    fn run(
        &self,
        stage: StageId,
        index: &[u64],
        inputs: &Inputs,
        prepared: Option<Prepared>,
        cx: &TaskContext<'_>,
    ) -> Result<Vec<Chunk>, Error> {
        (self.before)(stage, index[0], cx.cancel)?;
        self.ran.fetch_add(1, SeqCst);
        let info = &self.plan.stages[stage.0 as usize];
        if info.load && self.fetch.is_some() {
            assert_eq!(prepared.unwrap().downcast_ref::<u64>(), Some(&index[0]));
        }
        let mut v = seed(stage.0, index[0]);
        for (i, (r, n)) in self.plan.all_reads(stage.0, index[0]).into_iter().enumerate() {
            let cell = match inputs.held(r, &[n])? {
                FinishedChunk::Memory(chunk) => chunk.field(0)?.values::<i64>()?[0],
                FinishedChunk::File(file) => {
                    assert!(info.parts, "brought back, as the stage reads it whole");
                    let mut cell = [0u8; 8];
                    let reader = file.reader(cx.read_back);
                    reader?.copy(0, &[1], (0, &[1]), &mut cell, (0, &[1]))?;
                    i64::from_ne_bytes(cell)
                }
            };
            v = mix(v, i, cell);
        }
        (0..info.outputs)
            .map(|o| {
                let mut buffer = cx.buffer(info.cells as usize * 8);
                buffer.typed_mut::<i64>().fill(v.wrapping_add(i64::from(o)));
                let dtype = tessera_planner::dtype::DType::Int64;
                Chunk::new(&[info.cells], [crate::chunk::Field::from_pooled(dtype, buffer)?])
            })
            .collect()
    }
}

/// Collects first cells, and the chunks themselves if asked to.
#[derive(Default)]
pub(super) struct Collect {
    pub(super) values: Mutex<BTreeMap<(usize, u64), i64>>,
    pub(super) keep: Option<Mutex<Vec<Arc<Chunk>>>>,
    pub(super) drains: bool,
    pub(super) on_chunk: Option<Box<OnChunk>>,
}

impl Sink for Collect {
    fn chunk(
        &self,
        result: usize,
        index: ChunkIndex,
        region: Region,
        chunk: Arc<Chunk>,
    ) -> Result<(), Error> {
        assert_eq!(region.shape().as_slice(), chunk.shape());
        if let Some(f) = &self.on_chunk {
            f(result, index[0])?;
        }
        let value = chunk.field(0)?.values::<i64>()?[0];
        let before = self.values.lock().unwrap().insert((result, index[0]), value);
        assert_eq!(before, None, "each chunk comes once");
        if let Some(keep) = &self.keep {
            keep.lock().unwrap().push(chunk);
        }
        Ok(())
    }

    fn drains(&self) -> bool {
        self.drains
    }
}
