#![expect(unsafe_code, reason = "tiles are passed by pointer; each block says why it is sound")]
//! The main loop of the interpreter.

use super::compile::{Compiled, InputSlot, InputSource, Ins, OutputSlot, ReduceSlot};
use super::feed::Feed;
use super::plain::Plain;
use super::rows::{self, Rows};
use super::steady::{Loop, check};
use super::walk::{self, Run, Walk};
use super::{OutputFields, StridedInput};
use crate::KernelError;
use crate::ops::{N, TILES};
use crate::partial::{Fns, LANES_BYTES, Piece, PieceFn};
use crate::stream::{self, StreamFn};
use tessera_planner::dtype::DType;
use tessera_planner::reduce::ReduceKind;
use tessera_planner::region::Region;

/// Bytes between the buffers of consecutive slots: a block of tiles of 8-byte cells with padding, so that buffers do
/// not compete for the same cache sets.
const SLOT_BYTES: usize = TILES * TILE_BYTES;
/// Bytes between consecutive tile buffers.
pub(super) const TILE_BYTES: usize = N * 8 + 128;
/// Bytes of a cache line, to which tile buffers are aligned.
const LINE_BYTES: usize = 64;
/// Tiles between two polls for cancellation: 65,536 cells, some ten milliseconds if cells are expensive.
const CANCEL_TILES: usize = 1 << 10;

/// Tile buffers that are reused from run to run; a few kilobytes.
#[derive(Debug, Default)]
pub struct Scratch {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "only its room is used")] [u8; 64]);

impl Scratch {
    /// Returns a scratch without buffers; they grow on demand.
    pub fn new() -> Self {
        Scratch::default()
    }

    fn room(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.lines.as_mut_ptr().cast()
    }
}

/// A store during a run.
pub(super) struct Store {
    pub(super) slot: usize,
    pub(super) base: *mut u8,
    pub(super) size: usize,
    /// The slot's own tile.
    pub(super) buffer: *mut u8,
    /// Stores tiles past the caches, if set.
    pub(super) stream: Option<StreamFn>,
}

/// One part of a reduction during a run.
pub(super) struct Part {
    pub(super) fns: Fns,
    pub(super) value: usize,
    pub(super) valid: Option<usize>,
    pub(super) piece: Piece,
    /// The function that accumulates the tail instead of the value, and the slots of its two values.
    pub(super) tail: Option<(PieceFn, usize, usize)>,
}

impl Part {
    /// Returns the function for whole tiles of a kept run, or of one in lanes, with its registers: values, and validity
    /// or companions.
    pub(super) fn enters(&self, kept: bool) -> (PieceFn, usize, Option<usize>) {
        match self.tail {
            Some((f, a, b)) => (f, a, Some(b)),
            None => (if kept { self.fns.row } else { self.fns.lanes }, self.value, self.valid),
        }
    }
}

pub(super) struct Reduction {
    pub(super) walk: Walk,
    pub(super) parts: Vec<Part>,
    /// Place of the current run in its tile.
    turn: usize,
    /// Fields that an earlier reduction computes too.
    copies: Vec<Copied>,
}

impl Compiled {
    /// Runs the program over the cells of `region` (positions of the whole stage, whose shape is `stage_shape`).
    ///
    /// `inputs` are the program's field inputs in order, as views relative to the region; `outputs` has one entry per
    /// output of the program. `cancel` is polled. An empty region stores nothing and leaves states of no cells.
    ///
    /// # Errors
    /// [`KernelError::Domain`] as described at [`super`], [`KernelError::Cancelled`], [`KernelError::Buffer`] for
    /// inputs and outputs that do not fit the region. After an error the contents of the outputs are unspecified.
    pub fn run(
        &self,
        region: &Region,
        stage_shape: &[u64],
        inputs: &[StridedInput<'_>],
        outputs: &mut [OutputFields<'_>],
        scratch: &mut Scratch,
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let shape = region.shape();
        expect("axes of the region", region.rank(), self.rank)?;
        expect("axes of the stage", stage_shape.len(), self.rank)?;
        expect("inputs", inputs.len(), self.fields)?;
        expect("outputs", outputs.len(), self.outputs.len())?;
        let cells = tessera_planner::region::cells(&shape).ok_or(KernelError::Buffer {
            what: "cells of the region",
            got: u64::MAX,
            expected: i64::MAX as u64,
        })? as usize;
        let lanes = self.lanes();
        let spare = if lanes > 0 { rows::spare_bytes(self) } else { 0 };
        let base = scratch.room(self.slots * SLOT_BYTES + lanes * LANES_BYTES + spare);
        let buffer = |slot: usize| base.wrapping_add(slot * SLOT_BYTES);
        let mut lane_room = base.wrapping_add(self.slots * SLOT_BYTES);
        let ptr: Vec<*mut u8> = (0..self.slots).map(buffer).collect();
        for (slot, list) in &self.consts {
            let filled = cells.next_multiple_of(N).min(self.block * N).max(N);
            for (i, c) in list.iter().cycle().take(filled).enumerate() {
                let size = c.dtype().size();
                // SAFETY: a slot's buffer has TILES tiles of N cells of up to 8 bytes.
                unsafe {
                    let to = buffer(*slot as usize).add(i * size);
                    std::ptr::copy_nonoverlapping(native(*c).as_ptr(), to, size);
                }
            }
        }

        self.check_inputs(&shape, inputs)?;
        let mut stores: Vec<Store> = Vec::new();
        let mut states: Vec<Vec<*mut u8>> = Vec::new();
        let mut reductions: Vec<Reduction> = Vec::new();
        let mut skipped: Vec<usize> = Vec::new();
        for (slot, out) in self.outputs.iter().zip(outputs.iter_mut()) {
            match slot {
                OutputSlot::Store(fields) => {
                    states.push(Vec::new());
                    expect("fields of a stored output", out.fields.len(), fields.len())?;
                    for ((slot, dtype), bytes) in fields.iter().zip(out.fields.iter_mut()) {
                        room(bytes, *dtype, cells)?;
                        let base = bytes.as_mut_ptr();
                        let aligned = base.align_offset(LINE_BYTES) == 0;
                        stores.push(Store {
                            slot: *slot as usize,
                            base,
                            size: dtype.size(),
                            buffer: buffer(*slot as usize),
                            stream: self.stream.filter(|_| out.stream && aligned),
                        });
                    }
                }
                OutputSlot::Reduce(r) => {
                    let (fields, reduction) =
                        begin(r, region, stage_shape, out, &states, &mut lane_room, &mut skipped)?;
                    states.push(fields);
                    reductions.push(reduction);
                }
            }
        }

        let code: Vec<Ins> =
            (0..self.code.len()).filter(|i| !skipped.contains(i)).map(|i| self.code[i]).collect();
        if stores.is_empty()
            && let Some(plain) = Plain::find(self, &code, region, inputs, &reductions)
        {
            plain.run(&mut reductions, cancel)?;
            reductions.iter().for_each(|r| r.copies.iter().for_each(Copied::run));
            return Ok(());
        }
        let mut inner = Loop::new(code, ptr, self.block);
        // The rest of the scratch after the lanes.
        let of_rows = stores
            .is_empty()
            .then(|| Rows::find(self, region, inputs, &reductions, lane_room))
            .flatten();
        if let Some(rows) = of_rows {
            rows.run(&inner, &mut reductions, cancel)?;
            reductions.iter().for_each(|r| r.copies.iter().for_each(Copied::run));
            return Ok(());
        }
        let mut feeds = self.feeds(region, inputs, &buffer);
        self.tiles(cells, &mut inner, &mut feeds, &stores, &mut reductions, cancel)?;
        if stores.iter().any(|s| s.stream.is_some()) {
            stream::fence();
        }
        for r in &reductions {
            r.copies.iter().for_each(Copied::run);
        }
        Ok(())
    }

    /// Number of parts of reductions with lanes.
    fn lanes(&self) -> usize {
        self.outputs
            .iter()
            .map(|o| if let OutputSlot::Reduce(r) = o { r.parts.len() } else { 0 })
            .sum()
    }

    /// Checks that inputs hold the region's cells.
    fn check_inputs(&self, shape: &[u64], inputs: &[StridedInput<'_>]) -> Result<(), KernelError> {
        for i in &self.inputs {
            match &i.source {
                InputSource::Field(f, dtype) => {
                    inputs[*f].check(shape)?;
                    expect("bytes of an input's cells", inputs[*f].dtype.size(), dtype.size())?;
                }
                InputSource::Index(index) => {
                    expect("axes of an index", index.strides.len(), self.rank)?;
                }
            }
        }
        Ok(())
    }

    /// Creates the feeds of checked inputs.
    fn feeds(
        &self,
        region: &Region,
        inputs: &[StridedInput<'_>],
        buffer: &dyn Fn(usize) -> *mut u8,
    ) -> Vec<(usize, Feed)> {
        let shape = region.shape();
        let feed = |i: &InputSlot| {
            let slot = i.slot as usize;
            let feed = match &i.source {
                InputSource::Field(f, _) => Feed::memory(&inputs[*f], &shape, buffer(slot)),
                InputSource::Index(index) => {
                    Feed::index(index, index.first(region), &shape, buffer(slot))
                }
            };
            (slot, feed)
        };
        self.inputs.iter().map(feed).collect()
    }

    /// Runs all tiles of the region.
    fn tiles(
        &self,
        cells: usize,
        inner: &mut Loop,
        feeds: &mut [(usize, Feed)],
        stores: &[Store],
        reductions: &mut [Reduction],
        cancel: &dyn Fn() -> bool,
    ) -> Result<(), KernelError> {
        let tiles = cells.div_ceil(N);
        let (mut t, mut asked) = (0, 0);
        while t < tiles {
            if t >= asked {
                if cancel() {
                    return Err(KernelError::Cancelled);
                }
                asked = t + CANCEL_TILES;
            }
            let p = t * N;
            let most = ((cells - p) / N).min(asked - t);
            let steady = inner.steady(most, feeds, stores, p, reductions, &self.checks)?;
            if steady > 0 {
                t += steady;
                continue;
            }
            t += 1;
            let n = (cells - p).min(N);
            let ptr = &mut inner.ptr;
            for (slot, feed) in &mut *feeds {
                ptr[*slot] = feed.next(n).cast_mut();
            }
            for s in stores {
                ptr[s.slot] = if n == N { s.base.wrapping_add(p * s.size) } else { s.buffer };
            }
            inner.tile();
            check(&self.checks, &inner.ptr, n)?;
            for r in &mut *reductions {
                r.tile(&inner.ptr, n);
            }
            if n < N {
                for s in stores {
                    // SAFETY: the output has `cells` cells, of which n are left.
                    unsafe {
                        let to = s.base.add(p * s.size);
                        std::ptr::copy_nonoverlapping(inner.ptr[s.slot], to, n * s.size);
                    }
                }
            }
        }
        Ok(())
    }
}

/// A field of a state that another reduction has computed.
pub(super) struct Copied {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

impl Copied {
    fn run(&self) {
        // SAFETY: both fields were checked to hold these bytes, and are different slices.
        unsafe { std::ptr::copy_nonoverlapping(self.from, self.to, self.bytes) };
    }
}

impl Reduction {
    /// Ends a run: folds its lanes into the state.
    pub(super) fn ended(&mut self) {
        if self.walk.run() == (Run::Reduced { lanes: true }) {
            let out = self.walk.out();
            for part in self.parts.iter_mut().filter(|p| p.fns.uses_lanes) {
                (part.piece.out, part.piece.from) = (out, self.turn);
                // SAFETY: fields and lanes are those that were checked for this state, and the walk stays within it.
                unsafe { (part.fns.fold)(&part.piece) };
            }
        }
        self.turn = (self.turn + self.walk.run_len() as usize) % N;
        self.walk.next_run();
    }

    #[inline]
    fn tile(&mut self, ptr: &[*mut u8], n: usize) {
        let mut k = 0;
        while k < n {
            let m = self.walk.left().min((n - k) as u64) as usize;
            let run = self.walk.run();
            let out = self.walk.out();
            let (position, step) = self.walk.position();
            let codes = self.walk.codes().as_ptr();
            let ended = self.walk.advance(m as u64);
            for part in &mut self.parts {
                let piece = &mut part.piece;
                piece.out = out;
                piece.from = k;
                piece.to = k + m;
                piece.position = position;
                piece.step = step;
                piece.codes = codes;
                piece.values = ptr[part.value];
                piece.valid = part.valid.map_or(std::ptr::null(), |v| ptr[v].cast_const());
                let f = match (part.tail, run) {
                    (Some((f, a, b)), _) => {
                        (piece.values, piece.valid) = (ptr[a], ptr[b]);
                        f
                    }
                    (None, Run::Kept) => part.fns.row,
                    (None, Run::Grouped) => part.fns.group,
                    (None, Run::Reduced { lanes: false }) => part.fns.seq,
                    (None, Run::Reduced { lanes: true }) => part.fns.lanes,
                };
                // SAFETY: fields and lanes are those that were checked for this state, the walk stays within it, and
                // the tiles are valid.
                unsafe { f(piece) };
            }
            if ended {
                self.ended();
            }
            k += m;
        }
    }
}

/// Checks the buffers of a reduction, sets its state to that of no cells, and returns its fields. `states` are the
/// fields of the previous outputs.
fn begin(
    r: &ReduceSlot,
    region: &Region,
    stage_shape: &[u64],
    out: &mut OutputFields<'_>,
    states: &[Vec<*mut u8>],
    lane_room: &mut *mut u8,
    skipped: &mut Vec<usize>,
) -> Result<(Vec<*mut u8>, Reduction), KernelError> {
    let positions = matches!(r.kind, ReduceKind::ArgMin | ReduceKind::ArgMax);
    let walk = Walk::new(&r.axes, region, stage_shape, positions)?;
    expect("fields of a state", out.fields.len(), r.state.len())?;
    let mut fields = Vec::new();
    for (bytes, dtype) in out.fields.iter_mut().zip(&r.state) {
        room(bytes, *dtype, walk.cells)?;
        fields.push(bytes.as_mut_ptr());
    }
    if let Some(f) = r.static_count.filter(|_| walk.cells > 0) {
        let cells = fields[f];
        // SAFETY: the field was checked to have an aligned cell of its type for each of the state.
        unsafe {
            if r.state[f] == DType::Bool {
                let to = std::slice::from_raw_parts_mut(cells, walk.cells);
                walk::counts(&r.axes, region, to, |n| u8::from(n > 0));
            } else {
                let to = std::slice::from_raw_parts_mut(cells.cast::<i64>(), walk.cells);
                walk::counts(&r.axes, region, to, |n| n);
            }
        }
    }
    let mut parts = Vec::new();
    for p in &r.parts {
        let mut piece = Piece {
            fields: [std::ptr::null_mut(); 4],
            out: 0,
            values: std::ptr::null(),
            valid: std::ptr::null(),
            parameter: p.tail.as_ref().map_or(0, |t| t.parameter),
            from: 0,
            to: walk.cells,
            lanes: *lane_room,
            codes: std::ptr::null(),
            position: 0,
            step: 0,
        };
        *lane_room = lane_room.wrapping_add(LANES_BYTES);
        for (to, from) in piece.fields.iter_mut().zip(&fields[p.first_field..]) {
            *to = *from;
        }
        // SAFETY: the fields have `cells` cells, and there is memory for the lanes.
        unsafe {
            (p.fns.init)(&piece);
            (p.fns.reset)(&piece);
        }
        // If all runs are rows, or in lanes, the last operations need not store their results.
        let tail = p.tail.as_ref().and_then(|t| match walk.run() {
            Run::Kept => Some((t, t.fns.row)),
            Run::Reduced { lanes: true } => Some((t, t.fns.lanes)),
            _ => None,
        });
        if let Some((t, _)) = tail {
            skipped.extend(&t.instead);
        }
        parts.push(Part {
            fns: p.fns,
            value: p.value as usize,
            valid: p.valid.map(usize::from),
            piece,
            tail: tail.map(|(t, f)| (f, t.value as usize, t.beside as usize)),
        });
    }
    let mut copies = Vec::new();
    for &(field, output, of) in &r.same {
        // The state of that output has the same shape and type, so its fields have been checked, too.
        let from = states[output][of];
        copies.push(Copied { from, to: fields[field], bytes: walk.cells * r.state[field].size() });
    }
    Ok((fields, Reduction { walk, parts, turn: 0, copies }))
}

/// A constant's bytes in native order, in the first places.
fn native(c: tessera_planner::scalar::Scalar) -> [u8; 8] {
    let mut b = c.to_le_bytes();
    if cfg!(target_endian = "big") {
        b[..c.dtype().size()].reverse();
    }
    b
}

fn expect(what: &'static str, got: usize, expected: usize) -> Result<(), KernelError> {
    if got == expected {
        return Ok(());
    }
    Err(KernelError::Buffer { what, got: got as u64, expected: expected as u64 })
}

/// Rejects a buffer that is too short or not aligned for its cells.
fn room(bytes: &[u8], dtype: DType, cells: usize) -> Result<(), KernelError> {
    let need = cells.saturating_mul(dtype.size());
    if bytes.len() < need {
        return Err(KernelError::Buffer {
            what: "bytes of an output",
            got: bytes.len() as u64,
            expected: need as u64,
        });
    }
    if need > 0 && bytes.as_ptr().align_offset(dtype.size()) != 0 {
        return Err(KernelError::Buffer {
            what: "alignment of an output",
            got: 1 << (bytes.as_ptr() as usize).trailing_zeros().min(3),
            expected: dtype.size() as u64,
        });
    }
    Ok(())
}
