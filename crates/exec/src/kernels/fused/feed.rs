#![expect(unsafe_code, reason = "cells are read by pointer; each block says why it is sound")]
//! Inputs of tiles: in place where the cells lie in a row, packed where they do not.

use super::StridedInput;
use crate::kernels::ops::N;

/// Reads a view in row-major order, a tile at a time.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Source,
    /// Axes with lengths and steps (in bytes, or in units of an index), inner last; neighbours that make one run are one.
    axes: Vec<(u64, i64)>,
    /// Position on each axis.
    at: Vec<u64>,
    /// Byte (or index) of the current cell.
    here: i64,
    /// The tile buffer.
    buffer: *mut u8,
    /// The buffer holds the value of the current repeated run.
    filled: bool,
}

/// Where tiles lie as long as a run lasts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Steady {
    /// The same cells for every tile.
    Still(*const u8),
    /// The first tile, and bytes from tile to tile.
    Moves(*const u8, usize),
    /// A buffer that takes an index from that value on with that step.
    Counts(*const u8, i64, i64),
}

#[derive(Debug, Clone, Copy)]
enum Source {
    /// First byte of the memory, and the size of a cell.
    Memory {
        base: *const u8,
        size: usize,
        aligned: bool,
    },
    Index,
}

impl Feed {
    /// A feed of a checked view. `buffer` has room for a tile.
    pub(super) fn memory(input: &StridedInput<'_>, shape: &[u64], buffer: *mut u8) -> Feed {
        let size = input.dtype.size();
        let base = input.bytes.as_ptr();
        let axes = merge(shape, &input.strides.iter().map(|s| s * size as i64).collect::<Vec<_>>());
        Feed {
            kind: Source::Memory { base, size, aligned: base.align_offset(size) == 0 },
            at: vec![0; axes.len()],
            axes,
            here: input.offset * size as i64,
            buffer,
            filled: false,
        }
    }

    /// A feed of `first + Σ strides[a] * position[a]`.
    pub(super) fn index(first: i64, strides: &[i64], shape: &[u64], buffer: *mut u8) -> Feed {
        let axes = merge(shape, strides);
        Feed {
            kind: Source::Index,
            at: vec![0; axes.len()],
            axes,
            here: first,
            buffer,
            filled: false,
        }
    }

    /// True if tiles are read where they are; the cells' size.
    pub(super) fn in_place(&self) -> Option<usize> {
        match self.kind {
            Source::Memory { size, aligned: true, .. } if self.inner().1 == size as i64 => {
                Some(size)
            }
            _ => None,
        }
    }

    fn inner(&self) -> (u64, i64) {
        self.axes.last().copied().unwrap_or((1, 0))
    }

    /// How many whole tiles from here on lie in one run and need no packing, and where they lie. The feed stays where it
    /// is; [`Feed::skip`] moves it on.
    pub(super) fn steady(&mut self) -> (u64, Steady) {
        let (len, step) = self.inner();
        let tiles = (len - self.at[self.axes.len() - 1]) / N as u64;
        if tiles == 0 {
            return (0, Steady::Still(self.buffer));
        }
        match self.kind {
            Source::Memory { .. } if step == 0 => {
                if !self.filled {
                    self.pack(0, N);
                    self.filled = true;
                }
                (tiles, Steady::Still(self.buffer))
            }
            Source::Memory { base, size, aligned: true } if step == size as i64 => {
                // In bounds: the view was checked against its memory.
                (tiles, Steady::Moves(base.wrapping_offset(self.here as isize), size * N))
            }
            Source::Memory { .. } => (0, Steady::Still(self.buffer)),
            Source::Index => (tiles, Steady::Counts(self.buffer, self.here, step)),
        }
    }

    /// Moves `tiles` whole tiles on, no more than are left of the run.
    pub(super) fn skip(&mut self, tiles: u64) {
        self.advance(self.axes.len() - 1, tiles * N as u64);
    }

    /// The next `n` cells, as a tile of 64 (the cells beyond `n` are anything).
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
        if step == 0 && left >= n as u64 {
            if !self.filled {
                self.pack(0, N);
                self.filled = true;
            }
            self.advance(last, n as u64);
            return self.buffer;
        }
        let mut k = 0;
        while k < n {
            let m = (len - self.at[last]).min((n - k) as u64);
            self.pack(k, m as usize);
            self.advance(last, m);
            k += m as usize;
        }
        self.filled = false;
        self.buffer
    }

    fn advance(&mut self, last: usize, m: u64) {
        self.at[last] += m;
        self.here += self.axes[last].1.wrapping_mul(m as i64);
        if self.at[last] == self.axes[last].0 {
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

    /// Writes `m` cells of the current run to the buffer from cell `k` on. More than are left of it are asked for only
    /// where the run repeats one cell.
    fn pack(&mut self, k: usize, m: usize) {
        let step = self.inner().1;
        match self.kind {
            Source::Index => {
                for i in 0..m {
                    let v = self.here.wrapping_add(step.wrapping_mul(i as i64));
                    // SAFETY: the buffer has N cells of 8 aligned bytes, and k + m <= N.
                    unsafe { self.buffer.cast::<i64>().add(k + i).write(v) };
                }
            }
            Source::Memory { base, size, .. } => {
                // SAFETY: the view was checked to stay in its memory, the buffer has N cells, k + m <= N; reads are
                // unaligned ones.
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
    // SAFETY: the caller's promise.
    unsafe {
        let to = to.cast::<T>().add(k);
        if step == size_of::<T>() as i64 {
            std::ptr::copy_nonoverlapping(p, to.cast::<u8>(), m * size_of::<T>());
        } else if step == 0 {
            std::slice::from_raw_parts_mut(to, m).fill(p.cast::<T>().read_unaligned());
        } else {
            for i in 0..m {
                *to.add(i) = p.offset(step as isize * i as isize).cast::<T>().read_unaligned();
            }
        }
    }
}

/// Axes without those of length 1, neighbours that step evenly made one; at least one axis.
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
