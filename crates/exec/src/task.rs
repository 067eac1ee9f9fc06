//! Runs one operand: from its input chunks to the kernel and back.
//!
//! A [`PlanRunner`] knows a plan's tiling, the compiled program of each fused stage and the reader of each source.
//! For an operand it
//! 1. finds the chunks that hold each input's cells: if one chunk holds all, the kernel reads it in place through
//!    strides; if several do, the cells are first copied together into scratch that the peak accounts for,
//! 2. takes buffers for the outputs from the pool,
//! 3. calls the kernel.

mod batch;
mod copy;
mod factor;
mod fused;
mod gather;
mod lines;
mod load;
mod masks;
mod pieces;
mod product;
mod requests;
mod runs;
mod tables;
mod take;
mod tiling;

pub use crate::store::{Lent, Resident};
pub(crate) use gather::copy_common;
pub use requests::{is_remote, requests};

use crate::chunk::{Chunk, Field, all_valid, fill_masked};
use crate::error::Error;
use crate::pool::PooledBuf;
use crate::schedule::{self, Inputs, Prepared, TaskContext, TaskRunner};
use futures::future::BoxFuture;
use masks::Programs;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tessera_kernels::copy::Stores;
use tessera_planner::catalog::{Reads, SourceRef};
use tessera_planner::dtype::DType;
use tessera_planner::plan::{OutputRef, Plan, Stage, StageId, Task};
use tessera_planner::tile::Tiling;
use tessera_storage::fail;
use tessera_storage::source::{ArrayReader, Counters, Options, Rules};

/// Smallest chunk, in bytes, that is stored past the caches.
const STREAM_MIN: u64 = 1 << 20;

/// The source of an array's cells.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A stored array.
    Stored(Arc<ArrayReader>),
    /// An array outside of the plan.
    Resident(Arc<Resident>),
    /// An array of the program that embeds the engine, in any layout.
    Lent(Arc<Lent>),
}

/// The location of a stored array, so that another process can open it too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    /// The path or URL, as [`tessera_storage::source::open`] takes it.
    pub url: String,
    /// The options of opening.
    pub options: Options,
    /// The access rules of the statement; `None` for no restrictions.
    pub rules: Option<Rules>,
}

/// The sources that a statement's plans may name.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    origins: HashMap<SourceRef, Origin>,
    locations: HashMap<SourceRef, Arc<SourceLocation>>,
}

impl Sources {
    /// Adds a source.
    pub fn add(&mut self, source: SourceRef, origin: Origin) {
        self.origins.insert(source, origin);
    }

    /// Records where a source was opened.
    pub fn opened_at(&mut self, source: SourceRef, location: Arc<SourceLocation>) {
        self.locations.insert(source, location);
    }

    /// Location of a source; `None` for arrays in memory.
    pub fn location(&self, source: &SourceRef) -> Option<&Arc<SourceLocation>> {
        self.locations.get(source)
    }

    fn get(&self, source: &SourceRef) -> Result<Origin, Error> {
        self.origins.get(source).cloned().ok_or_else(|| Error::Broken {
            what: format!("source {}#{} was not opened", source.url, source.path),
        })
    }
}

/// Runs the operands of a plan.
pub struct PlanRunner {
    tiling: Arc<Tiling>,
    stages: Vec<Ready>,
    /// For each load of chunks that are decoded, the bytes of the largest one; 0 if that is scratch.
    units: Vec<u64>,
    /// Counters of its reads from storage.
    read: Arc<Counters>,
}

/// Prepared state of a stage.
enum Ready {
    Nothing,
    Load(Origin),
    Const(Vec<Field>),
    Fused(Programs),
}

impl PlanRunner {
    /// Compiles the programs of a plan and finds its sources.
    ///
    /// # Errors
    /// A source that is not among `sources`, or a program that no kernel runs: both are internal errors.
    pub fn new(tiling: Arc<Tiling>, sources: &Sources) -> Result<Self, Error> {
        let stages = tiling
            .plan()
            .stages
            .iter()
            .map(|s| {
                Ok(match &s.task {
                    Task::Load { source, .. } => Ready::Load(sources.get(source)?),
                    Task::Fused(f) => Ready::Fused(Programs::new(f, s.grid.rank())?),
                    Task::Const(c) => {
                        let mut fields = vec![load::constant(c.dtype, &c.bytes)?];
                        if let Some(valid) = &c.valid {
                            fields.push(load::constant(DType::Bool, valid)?);
                        }
                        Ready::Const(fields)
                    }
                    _ => Ready::Nothing,
                })
            })
            .collect::<Result<Vec<Ready>, Error>>()?;
        let unit = |stage: &Ready| match stage {
            Ready::Load(Origin::Stored(reader)) => reader.unit_bytes(),
            _ => 0,
        };
        let is_large = |bytes: u64| bytes > Reads::SCRATCH_BYTES / 2;
        let units = stages.iter().map(unit).map(|n| if is_large(n) { n } else { 0 }).collect();
        Ok(PlanRunner { tiling, stages, units, read: Arc::default() })
    }

    /// The tiling of its plan.
    pub fn tiling(&self) -> &Arc<Tiling> {
        &self.tiling
    }

    fn plan(&self) -> &Plan {
        self.tiling.plan()
    }
}

impl TaskRunner for PlanRunner {
    fn prepare(
        &self,
        stage: StageId,
        index: &[u64],
    ) -> Option<BoxFuture<'static, Result<Prepared, Error>>> {
        match &self.stages[stage.0 as usize] {
            Ready::Load(Origin::Stored(reader)) if !reader.is_local() => {
                let region = self.tiling.load_region(stage, index);
                Some(load::fetch(reader.clone(), region, self.read.clone()))
            }
            _ => None,
        }
    }

    fn pins(&self, stage: StageId) -> bool {
        let stage = stage.0 as usize;
        matches!(&self.stages[stage], Ready::Load(Origin::Resident(_))) || self.units[stage] > 0
    }

    fn pin(&self, stage: StageId, index: &[u64]) -> (u64, Option<Prepared>) {
        let Task::Load { source, .. } = &self.plan().stage(stage).task else { return (0, None) };
        let region = self.tiling.load_region(stage, index);
        match &self.stages[stage.0 as usize] {
            Ready::Load(Origin::Resident(array)) => {
                let (bytes, pinned) = load::pin(source, array, &region);
                (bytes, Some(Box::new(pinned) as Prepared))
            }
            Ready::Load(Origin::Stored(_)) => {
                (load::beyond(source, self.units[stage.0 as usize], &region), None)
            }
            _ => (0, None),
        }
    }

    fn check_read(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let mut asked: HashSet<&SourceRef> = HashSet::new();
            for (stage, ready) in self.plan().stages.iter().zip(&self.stages) {
                let (Task::Load { source, .. }, Ready::Load(Origin::Stored(reader))) =
                    (&stage.task, ready)
                else {
                    continue;
                };
                // An array that several stages read is checked once.
                if reader.has_absent() && asked.insert(source) {
                    reader.check_absent().await?;
                }
            }
            Ok(())
        })
    }

    fn requests(&self) -> (u64, u64) {
        let (requests, bytes, _) = self.read.snapshot();
        (requests, bytes)
    }

    fn fetches(&self, stage: StageId) -> bool {
        matches!(&self.stages[stage.0 as usize], Ready::Load(Origin::Stored(r)) if !r.is_local())
    }

    fn run(
        &self,
        stage: StageId,
        index: &[u64],
        inputs: &Inputs,
        prepared: Option<Prepared>,
        cx: &TaskContext<'_>,
    ) -> Result<Vec<Chunk>, Error> {
        let s = self.plan().stage(stage);
        fail::operand(|| schedule::Tiling::name(&*self.tiling, stage))
            .map_err(|e| Error::Broken { what: e.to_string() })?;
        let op = Operand { tiling: &self.tiling, id: stage, stage: s, index, inputs, cx };
        match (&s.task, &self.stages[stage.0 as usize]) {
            (Task::Load { .. }, Ready::Load(origin)) => {
                self.read.of_now(|| load::run(&op, origin, prepared))
            }
            (Task::Const(c), Ready::Const(fields)) => {
                Ok(vec![Chunk::new(&c.shape, fields.iter().cloned())?])
            }
            (Task::Fused(_), Ready::Fused(programs)) => fused::run(&op, programs),
            (Task::Combine { kind, dtype, nullable, finish, spans }, _) => {
                fused::combine(&op, (*kind, *dtype, *nullable), *finish, spans.as_ref())
            }
            (Task::Scan { kind, axis }, _) => copy::scan(&op, *kind, *axis),
            (Task::Window { axis, frame, kind, min_count }, _) => {
                lines::rolling(&op, *axis, *frame, *kind, *min_count)
            }
            (Task::Sort { .. } | Task::Quantile { .. }, _) => lines::ordered(&op),
            (Task::Runs { runs, order, .. }, _) => runs::sort(&op, *runs, *order),
            (Task::Merge { axis, runs, order, dtype }, _) => {
                runs::merge(&op, *axis, *runs, *order, *dtype)
            }
            (Task::Select { axis, runs, quantiles }, _) => {
                runs::select(&op, *axis, *runs, quantiles)
            }
            (Task::Lookup { kind }, _) => tables::lookup(&op, *kind),
            (Task::Bin { edges: true, .. }, _) => tables::histogram(&op),
            (Task::Bin { strict, .. }, _) => tables::bin(&op, *strict),
            (Task::Contract { dtype, axes }, _) => product::run(&op, *dtype, *axes),
            (Task::Factor { kind, parts, dtype }, _) => factor::run(&op, *kind, parts, *dtype),
            (Task::Copy, _) => copy::run(&op),
            (task, _) => Err(Error::Broken { what: format!("{task:?} was not prepared") }),
        }
    }
}

/// A running operand and its resources.
struct Operand<'a> {
    tiling: &'a Tiling,
    id: StageId,
    stage: &'a Stage,
    index: &'a [u64],
    inputs: &'a Inputs,
    cx: &'a TaskContext<'a>,
}

impl Operand<'_> {
    fn plan(&self) -> &Plan {
        self.tiling.plan()
    }

    /// Returns buffers for the fields of an output's chunk, with unspecified contents.
    fn buffers(&self, output: usize) -> Vec<PooledBuf> {
        let o = &self.stage.outputs[output];
        let cells = o.grid.region(self.index).cells() as usize;
        let buffer = |(i, d): (usize, &DType)| match i {
            0 => self.cx.cells(output as u32, cells * d.size()),
            _ => self.cx.buffer(cells * d.size()),
        };
        o.fields.iter().enumerate().map(buffer).collect()
    }

    /// Like [`Operand::buffers`], but without a mask buffer if no cell of the output is masked. Then [`Operand::chunk`]
    /// uses a shared mask.
    fn buffers_if(&self, output: usize, masks: bool) -> Vec<PooledBuf> {
        let o = &self.stage.outputs[output];
        let cells = o.grid.region(self.index).cells() as usize;
        match masks || o.fields.len() < 2 {
            true => self.buffers(output),
            false => vec![self.cx.cells(output as u32, cells * o.fields[0].size())],
        }
    }

    /// How an output's chunk is stored: past the caches if it is large and no operand reads it.
    fn stores(&self, output: usize) -> Stores {
        let o = &self.stage.outputs[output];
        let bytes = o.grid.region(self.index).cells() * o.fields[0].size() as u64;
        let of = OutputRef { stage: self.id, output: output as u32 };
        let past = bytes >= STREAM_MIN && self.tiling.readers(of, self.index) == 0;
        if past { Stores::Past } else { Stores::Plain }
    }

    /// Makes the chunk of an output from its written buffers. If the mask buffer of a maskable value is missing, no cell is
    /// masked. Masked cells that lie in the result's memory become NaN or NaT.
    fn chunk(&self, output: usize, mut buffers: Vec<PooledBuf>) -> Result<Chunk, Error> {
        let o = &self.stage.outputs[output];
        if let ([cells, valid], [dtype, DType::Bool]) = (&mut buffers[..], &o.fields[..])
            && cells.is_lent()
        {
            fill_masked(*dtype, cells.as_mut_slice(), valid.as_slice());
        }
        let fields = o.fields.iter().zip(buffers).map(|(d, b)| Field::from_pooled(*d, b));
        self.chunk_of(output, fields.collect::<Result<Vec<_>, _>>()?)
    }

    /// Makes the chunk of an output from its fields; see [`Operand::chunk`].
    fn chunk_of(&self, output: usize, mut fields: Vec<Field>) -> Result<Chunk, Error> {
        let o = &self.stage.outputs[output];
        let region = o.grid.region(self.index);
        let unmasked = fields.len() == 1 && o.fields[..] == [o.fields[0], DType::Bool];
        if unmasked {
            let cells = region.cells() as usize;
            fields.push(match all_valid(cells) {
                Some(shared) => shared,
                None => {
                    let mut own = self.cx.buffer(cells);
                    own.as_mut_slice().fill(1);
                    Field::from_pooled(DType::Bool, own)?
                }
            });
        }
        let chunk = Chunk::new(&region.shape(), fields)?;
        Ok(if unmasked { chunk.unmasked() } else { chunk })
    }

    fn cancelled(&self) -> impl Fn() -> bool {
        || self.cx.cancel.is_cancelled()
    }
}
