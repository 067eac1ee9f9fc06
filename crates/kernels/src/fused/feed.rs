#![expect(unsafe_code, reason = "cells are read by pointer; each block says why it is sound")]
//! Inputs of tiles: contiguous cells in place, others packed. Cells that are contiguous along another axis are copied
//! in panels.

use super::StridedInput;
use super::compile::Index;
use crate::copy::{Strided, copy_box};
use crate::ops::{IotaFn, N, TILES};
use tessera_planner::region::strides;

/// Reads a view in row-major order, one tile at a time.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Source,
    /// Axes with lengths and steps (in bytes, or in units of an index), inner last; contiguous axes are merged.
    axes: Vec<(u64, i64)>,
    /// Position on each axis.
    at: Vec<u64>,
    /// Byte offset (or index) of the current cell.
    here: i64,
    buffer: *mut u8,
    /// True if the buffer holds the value of the current repeated run, or the panel its cells.
    filled: bool,
    panel: Option<Panel>,
}

/// Location of tiles during a run.
#[derive(Debug, Clone, Copy)]
pub(super) enum Steady {
    /// The same cells for every tile.
    Still(*const u8),
    /// The first tile, and bytes from tile to tile.
    Moves(*const u8, usize),
    /// A buffer for an index, the function that writes it, the first value and the increment.
    Counts(*const u8, IotaFn, i64, i64),
}

#[derive(Debug, Clone, Copy)]
enum Source {
    /// First byte of the memory, and the size of a cell.
    Memory { base: *const u8, size: usize, aligned: bool },
    /// The function that writes tiles of the index, and whether they are floats.
    Index(IotaFn, bool),
    /// A panel with contiguous cells, and the size of a cell.
    Panel { base: *const u8, size: usize },
}

/// Cells that are contiguous along an outer axis of the walk, as in a transpose, are copied in panels: some positions
/// of that axis with everything inside.
///
/// ```text
///   memory      a d g j      walk  a b c | d e f | …     every cell of a row is in another cache line
///               b e h k      panel a b c   d e f          each line is read once for the rows in it
///               c f i l
/// ```
#[derive(Debug)]
struct Panel {
    /// The whole input.
    bytes: *const u8,
    len: usize,
    /// Lengths of the panel's axes, outer one first, and their strides in cells.
    shape: Vec<u64>,
    steps: Vec<i64>,
    /// Length of the outer axis in the region.
    rows: u64,
    room: Vec<u64>,
}

/// Bytes of a panel if it can be that small: it stays in the second-level cache.
const PANEL_BYTES: u64 = 256 << 10;
/// Upper bound on the bytes of a panel with the cells of a cache line.
const PANEL_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

impl Panel {
    /// Returns the number of the axis along which panels pay off, and the panels, for a view with these axes (in
    /// bytes).
    fn of(input: &StridedInput<'_>, axes: &[(u64, i64)]) -> Option<(usize, Panel)> {
        let size = input.dtype.size() as u64;
        let (inner, outer) = axes.split_last()?;
        if inner.1 == 0 || inner.1.unsigned_abs() == size {
            return None;
        }
        let at = outer.iter().rposition(|(n, step)| *step == size as i64 && *n > 1)?;
        let row: u64 = axes[at + 1..].iter().map(|a| a.0).product::<u64>() * size;
        let line = (LINE_BYTES / size).min(axes[at].0);
        if row * line > PANEL_BYTES_MAX {
            return None;
        }
        let rows = (PANEL_BYTES / row / line * line).clamp(line, axes[at].0);
        let mut shape: Vec<u64> = axes[at..].iter().map(|a| a.0).collect();
        shape[0] = rows;
        let panel = Panel {
            bytes: input.bytes.as_ptr(),
            len: input.bytes.len(),
            steps: axes[at..].iter().map(|a| a.1 / size as i64).collect(),
            room: vec![0; (rows * row).div_ceil(8) as usize],
            rows: axes[at].0,
            shape,
        };
        Some((at, panel))
    }

    /// Copies the cells from element `first` on into the panel, for `rows` positions of the outer axis.
    fn fill(&mut self, first: i64, rows: u64, size: usize) {
        self.shape[0] = rows;
        // SAFETY: the bytes of an input outlive its feed.
        let bytes = unsafe { std::slice::from_raw_parts(self.bytes, self.len) };
        let from = Strided { bytes, offset: first, strides: &self.steps };
        let dense = strides(&self.shape);
        // SAFETY: integers are viewed as their bytes.
        let to = unsafe {
            std::slice::from_raw_parts_mut(self.room.as_mut_ptr().cast(), self.room.len() * 8)
        };
        // The view was checked against its memory, and `room` was allocated for the panel.
        let copied = copy_box(size, &self.shape, from, to, 0, &dense);
        debug_assert!(copied.is_ok());
    }
}

impl Source {
    /// Bytes of a cell.
    fn size(self) -> usize {
        match self {
            Source::Memory { size, .. } | Source::Panel { size, .. } => size,
            Source::Index(..) => 8,
        }
    }
}

impl Feed {
    /// Creates a feed of a checked view. `buffer` has room for a tile.
    pub(super) fn memory(input: &StridedInput<'_>, shape: &[u64], buffer: *mut u8) -> Feed {
        let size = input.dtype.size();
        let base = input.bytes.as_ptr();
        let mut axes =
            merge(shape, &input.strides.iter().map(|s| s * size as i64).collect::<Vec<_>>());
        let mut kind = Source::Memory { base, size, aligned: base.align_offset(size) == 0 };
        let mut panel = None;
        if !shape.contains(&0)
            && let Some((outer, p)) = Panel::of(input, &axes)
        {
            // The walk goes from panel to panel, and treats each as one run.
            kind = Source::Panel { base: p.room.as_ptr().cast(), size };
            let (rows, cells) = (p.shape[0], p.shape.iter().product());
            axes.truncate(outer + 1);
            axes[outer] = (p.rows.div_ceil(rows), (rows * size as u64) as i64);
            axes.push((cells, 0));
            panel = Some(p);
        }
        Feed {
            kind,
            at: vec![0; axes.len()],
            axes,
            here: input.offset * size as i64,
            buffer,
            filled: false,
            panel,
        }
    }

    /// Creates a feed of an index that starts at `first`.
    pub(super) fn index(index: &Index, first: i64, shape: &[u64], buffer: *mut u8) -> Feed {
        let axes = merge(shape, &index.strides);
        Feed {
            kind: Source::Index(index.count, index.floats),
            at: vec![0; axes.len()],
            axes,
            here: first,
            buffer,
            filled: false,
            panel: None,
        }
    }

    /// Length and step of the current run; the last panel may be shorter than the others.
    #[inline]
    fn inner(&self) -> (u64, i64) {
        let (len, step) = self.axes.last().copied().unwrap_or((1, 0));
        match &self.panel {
            None => (len, step),
            Some(p) => (p.shape[1..].iter().product::<u64>() * self.panel_rows(p), step),
        }
    }

    fn panel_rows(&self, p: &Panel) -> u64 {
        let blocks = self.axes.len() - 2;
        let rows = (self.axes[blocks].1 / self.kind.size() as i64) as u64;
        rows.min(p.rows - self.at[blocks] * rows)
    }

    /// Address of the current cell of the panel; fills the panel first if necessary.
    fn in_panel(&mut self, base: *const u8, size: usize) -> *const u8 {
        if !self.filled
            && let Some(p) = &self.panel
        {
            let (first, rows) = (self.here / size as i64, self.panel_rows(p));
            if let Some(p) = &mut self.panel {
                p.fill(first, rows, size);
            }
            self.filled = true;
        }
        base.wrapping_add(self.at[self.axes.len() - 1] as usize * size)
    }

    /// Returns the number of whole tiles from here on that are in one run and need no packing, and their location. The
    /// feed does not move; [`Feed::skip`] advances it.
    pub(super) fn steady(&mut self) -> (u64, Steady) {
        let (len, step) = self.inner();
        let tiles = (len - self.at[self.axes.len() - 1]) / N as u64;
        if tiles == 0 {
            return (0, Steady::Still(self.buffer));
        }
        match self.kind {
            Source::Memory { .. } if step == 0 => {
                self.repeat(len);
                (tiles, Steady::Still(self.buffer))
            }
            Source::Memory { base, size, aligned: true } if step == size as i64 => {
                // In bounds: the view was checked against its memory.
                (tiles, Steady::Moves(base.wrapping_offset(self.here as isize), size * N))
            }
            Source::Memory { .. } => (0, Steady::Still(self.buffer)),
            Source::Panel { base, size } => {
                (tiles, Steady::Moves(self.in_panel(base, size), size * N))
            }
            Source::Index(f, _) => (tiles, Steady::Counts(self.buffer, f, self.here, step)),
        }
    }

    /// Fills the buffer with the cell of a run of `len` that repeats it, up to the cells of one block.
    fn repeat(&mut self, len: u64) {
        if !self.filled {
            self.pack(0, len.min((TILES * N) as u64) as usize);
            self.filled = true;
        }
    }

    /// Advances by `tiles` whole tiles, at most those left in the run.
    pub(super) fn skip(&mut self, tiles: u64) {
        self.advance(self.axes.len() - 1, tiles * N as u64);
    }

    /// Returns the next `n` cells as a tile of 64 (the cells beyond `n` are undefined).
    #[inline]
    pub(super) fn next(&mut self, n: usize) -> *const u8 {
        let (len, step) = self.inner();
        let last = self.axes.len() - 1;
        let left = len - self.at[last];
        if let Source::Memory { base, size, aligned: true } = self.kind
            && step == size as i64
            && n == N
            && left >= N as u64
        {
            // In bounds: the view was checked against its memory.
            let p = base.wrapping_offset(self.here as isize);
            self.advance(last, N as u64);
            return p;
        }
        if let Source::Panel { base, size } = self.kind {
            if left >= N as u64 && n == N {
                let p = self.in_panel(base, size);
                self.advance(last, N as u64);
                return p;
            }
        } else if step == 0 && left >= n as u64 {
            self.repeat(len);
            self.advance(last, n as u64);
            return self.buffer;
        }
        let mut k = 0;
        while k < n {
            let m = (self.inner().0 - self.at[last]).min((n - k) as u64);
            self.pack(k, m as usize);
            self.advance(last, m);
            k += m as usize;
        }
        if self.panel.is_none() {
            self.filled = false;
        }
        self.buffer
    }

    fn advance(&mut self, last: usize, m: u64) {
        self.at[last] += m;
        self.here = self.here.wrapping_add(self.axes[last].1.wrapping_mul(m as i64));
        if self.at[last] == self.inner().0 {
            self.next_run(last);
        }
    }

    fn next_run(&mut self, last: usize) {
        self.filled = false;
        let mut a = last;
        loop {
            self.here = self.here.wrapping_sub(self.axes[a].1.wrapping_mul(self.at[a] as i64));
            self.at[a] = 0;
            if a == 0 {
                return;
            }
            a -= 1;
            self.at[a] += 1;
            self.here = self.here.wrapping_add(self.axes[a].1);
            if self.at[a] < self.axes[a].0 {
                return;
            }
        }
    }

    /// Writes `m` cells of the current run to the buffer, starting at cell `k`. `m` exceeds the rest of the run only if
    /// the run repeats one cell.
    fn pack(&mut self, k: usize, m: usize) {
        let step = self.inner().1;
        match self.kind {
            Source::Index(_, floats) => {
                for i in 0..m {
                    let v = self.here.wrapping_add(step.wrapping_mul(i as i64));
                    let bits = if floats { (v as f64).to_bits() } else { v as u64 };
                    // SAFETY: the buffer has N cells of 8 aligned bytes, and k + m <= N.
                    unsafe { self.buffer.cast::<u64>().add(k + i).write(bits) };
                }
            }
            Source::Panel { base, size } => {
                let p = self.in_panel(base, size);
                // SAFETY: a run's cells are in the panel, m of them are left, the buffer has N cells, k + m <= N.
                unsafe {
                    std::ptr::copy_nonoverlapping(p, self.buffer.add(k * size), m * size);
                }
            }
            Source::Memory { base, size, .. } => {
                // SAFETY: the view was checked to stay within its memory, the buffer has N cells, k + m <= N; reads are
                // unaligned.
                unsafe {
                    let p = base.offset(self.here as isize);
                    match size {
                        1 => gather::<u8>(p, step, self.buffer, k, m),
                        2 => gather::<u16>(p, step, self.buffer, k, m),
                        4 => gather::<u32>(p, step, self.buffer, k, m),
                        _ => gather::<u64>(p, step, self.buffer, k, m),
                    }
                }
            }
        }
    }
}

/// # Safety
/// `p + i * step` is readable for `i < m`; `to` is aligned and has `k + m` cells.
unsafe fn gather<T: Copy>(p: *const u8, step: i64, to: *mut u8, k: usize, m: usize) {
    // SAFETY: `m` cells `step` bytes apart are readable, and `to` has room for `k + m`.
    unsafe {
        let to = to.cast::<T>().add(k);
        if step == size_of::<T>() as i64 {
            std::ptr::copy_nonoverlapping(p, to.cast::<u8>(), m * size_of::<T>());
        } else if step == 0 {
            std::slice::from_raw_parts_mut(to, m).fill(p.cast::<T>().read_unaligned());
        } else if step == 2 * size_of::<T>() as i64 {
            // A constant step vectorises.
            strided::<T, 2>(p.cast(), to, m);
        } else if step == -(size_of::<T>() as i64) {
            strided::<T, -1>(p.cast(), to, m);
        } else {
            for i in 0..m {
                *to.add(i) = p.offset(step as isize * i as isize).cast::<T>().read_unaligned();
            }
        }
    }
}

/// # Safety
/// `p.offset(i * S)` is readable for `i < m`; `to` is aligned and has `m` cells.
unsafe fn strided<T: Copy, const S: isize>(p: *const T, to: *mut T, m: usize) {
    for i in 0..m {
        // SAFETY: `m` cells `S` apart are readable, and `to` has room for `m`.
        unsafe { *to.add(i) = p.offset(S * i as isize).read_unaligned() };
    }
}

/// Returns the axes without those of length 1, with evenly stepping neighbours merged; at least one axis.
fn merge(shape: &[u64], steps: &[i64]) -> Vec<(u64, i64)> {
    let mut out: Vec<(u64, i64)> = Vec::new();
    for (&n, &s) in shape.iter().zip(steps) {
        if n == 1 {
            continue;
        }
        match out.last_mut() {
            Some(l) if s.checked_mul(n as i64) == Some(l.1) => *l = (l.0 * n, s),
            _ => out.push((n, s)),
        }
    }
    if out.is_empty() {
        out.push((1, 0));
    }
    out
}
