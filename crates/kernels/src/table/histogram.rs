#![expect(unsafe_code, reason = "bytes are seen as numbers; counting runs at the machine's level")]
//! Counting cells in bins directly, without storing bin numbers.

use super::{Cells, Edges, Table, held, rows};
use crate::KernelError;
use crate::combine::Cell;
use crate::elem::{Elem, MachineType};
use crate::level::{Level, leveled};
use tessera_planner::dtype::DType;

/// Counts the cells of each bin into `out` (`int64`), or accumulates their weights (`float64`); `out` is overwritten.
/// The bins are those of [`LookupKind::Bins`](tessera_planner::lookup::LookupKind::Bins). Cells that are masked, NaN or
/// in no bin are skipped, as are those with a masked weight. The order of additions is row-major.
///
/// # Errors
/// [`KernelError::Domain`] for edges that are not finite or that decrease, [`KernelError::Cancelled`],
/// [`KernelError::Buffer`] for buffers that do not fit.
pub fn histogram(
    dtype: DType,
    shape: &[u64],
    cells: Cells<'_>,
    edges: Table<'_>,
    weights: Option<Cells<'_>>,
    out: &mut [u8],
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    held(shape, cells, dtype)?;
    if let Some(w) = weights {
        held(shape, w, DType::Float64)?;
    }
    let bins = (out.len() / 8) as u64;
    let known = (edges.value.len() / dtype.size()) as u64;
    if known != bins + 1 {
        return Err(KernelError::Buffer { what: "edges of bins", got: known, expected: bins + 1 });
    }
    let job = Job { dtype, shape, cells, edges, weights, cancelled };
    macro_rules! run {
        ($t:ident, $next:expr) => {
            job.run::<$t>(out, |v| v as f64, |v| (v as f64).is_finite(), $next)
        };
        (int $t:ident) => {
            run!($t, |v| v.checked_add(1))
        };
    }
    match MachineType::of(dtype) {
        MachineType::Bool | MachineType::U8 => run!(int u8),
        MachineType::I8 => run!(int i8),
        MachineType::I16 => run!(int i16),
        MachineType::I32 => run!(int i32),
        MachineType::I64 => run!(int i64),
        MachineType::U16 => run!(int u16),
        MachineType::U32 => run!(int u32),
        MachineType::U64 => run!(int u64),
        MachineType::F32 => run!(f32, |v| Some(v.next_up())),
        MachineType::F64 => run!(f64, |v| Some(v.next_up())),
    }
}

struct Job<'a> {
    dtype: DType,
    shape: &'a [u64],
    cells: Cells<'a>,
    edges: Table<'a>,
    weights: Option<Cells<'a>>,
    cancelled: &'a dyn Fn() -> bool,
}

/// Upper bound on the bins that are counted in several copies.
const BINS_MAX: usize = 4096;
/// Number of copies: adjacent cells count in different ones, so that equal ones do not wait for each other.
const PLACES: usize = 4;
/// Cells whose bins are computed together, with vectors.
const BLOCK: usize = 64;

impl Job<'_> {
    fn run<T: Cell + Elem>(
        &self,
        out: &mut [u8],
        wide: impl Fn(T) -> f64,
        finite: impl Fn(T) -> bool,
        next: impl Fn(T) -> Option<T>,
    ) -> Result<(), KernelError> {
        let known = self.edges.value.chunks_exact(size_of::<T>()).map(|c| T::read(c, 0));
        let edges = Edges::new(self.dtype, known.collect(), wide, finite)?;
        let (value, valid) = (self.cells.value, self.cells.valid);
        if let (None, None) = (self.weights, valid)
            && let Some(even) = Even::new(&edges, next)
        {
            let mut counts = Counts::new(edges.edges.len());
            let count = pick_count(Level::detect());
            rows(self.shape, &[value], self.cancelled, |_, at, steps, len| {
                if steps[0] == 1 {
                    let from = at[0] as usize * size_of::<T>();
                    let cells = &value.bytes[from..from + len * size_of::<T>()];
                    // SAFETY: `Level::detect` returns a level that this machine has.
                    unsafe { count(&even, cells, &mut counts) };
                } else {
                    let cell = |i| T::read(value.bytes, (at[0] + i as i64 * steps[0]) as usize);
                    let mut some = [T::default(); BLOCK];
                    for from in (0..len).step_by(BLOCK) {
                        let n = BLOCK.min(len - from);
                        some[..n].iter_mut().enumerate().for_each(|(i, x)| *x = cell(from + i));
                        even.block(&some, n, &mut counts);
                    }
                }
                Ok(())
            })?;
            counts.write(out);
            return Ok(());
        }
        out.fill(0);
        let mut inputs = vec![value];
        inputs.extend(self.weights.map(|w| w.value));
        rows(self.shape, &inputs, self.cancelled, |_, at, steps, len| {
            for i in 0..len as i64 {
                let place = |k: usize| (at[k] + i * steps[k]) as usize;
                let here = place(0);
                if valid.is_some_and(|v| v[here] == 0) {
                    continue;
                }
                let Ok(bin) = usize::try_from(edges.bin(T::read(value.bytes, here))) else {
                    continue;
                };
                match self.weights {
                    None => (i64::read(out, bin) + 1).write(out, bin),
                    Some(w) => {
                        let there = place(1);
                        if w.valid.is_none_or(|v| v[there] != 0) {
                            (f64::read(out, bin) + f64::read(w.value.bytes, there)).write(out, bin);
                        }
                    }
                }
            }
            Ok(())
        })
    }
}

/// Evenly spaced edges: the edge nearest to a cell determines its bin.
///
/// The rounded place `p` of a cell is monotonic in the cell. The place of each edge differs from its number by at most
/// `off`, which is less than a quarter. So a cell whose place is further than that from an integer lies on the same
/// side of that edge as its place. For the other cells one comparison with the edge decides. This gives the exact bin,
/// however places are rounded.
struct Even<'e, T, W> {
    edges: &'e Edges<T, W>,
    /// The edges, the last one replaced by the next greater cell: it belongs to the last bin.
    bounds: Vec<T>,
    off: f64,
}

/// Adding this to a small number leaves the nearest integer in the lowest bits.
const WHOLE: f64 = 1.5 / f64::EPSILON;
/// Place of cells beyond the edges: nearest to the first or the last edge, on its far side.
const BEYOND: f64 = 0.4375;

/// Counting of a run of cells.
trait Count {
    fn count(&self, cells: &[u8], counts: &mut Counts);
}
#[inline(always)]
unsafe fn count<C: Count>(by: &C, cells: &[u8], counts: &mut Counts) {
    by.count(cells, counts);
}
leveled!(pick_count, count<C: Count>(by: &C, cells: &[u8], counts: &mut Counts) as unsafe fn(&C, &[u8], &mut Counts));

impl<T: Elem + Cell, W: Fn(T) -> f64> Count for Even<'_, T, W> {
    #[inline(always)]
    fn count(&self, cells: &[u8], counts: &mut Counts) {
        // SAFETY: the cells are plain numbers, for which every bit pattern is valid.
        let (head, blocks, rest) = unsafe { cells.align_to::<[T; BLOCK]>() };
        // Misaligned bytes are copied into blocks, as are the last ones.
        let (blocks, rest) = if head.is_empty() { (blocks, rest) } else { (&[][..], cells) };
        for block in blocks {
            self.block(block, BLOCK, counts);
        }
        let mut some = [T::default(); BLOCK];
        for part in rest.chunks(BLOCK * size_of::<T>()) {
            let n = part.len() / size_of::<T>();
            some[..n].iter_mut().enumerate().for_each(|(i, x)| *x = T::read(part, i));
            self.block(&some, n, counts);
        }
    }
}

impl<'e, T: Elem + Cell, W: Fn(T) -> f64> Even<'e, T, W> {
    /// `None` if the edges are not even, or too many.
    fn new(edges: &'e Edges<T, W>, next: impl Fn(T) -> Option<T>) -> Option<Self> {
        let mut bounds = edges.edges.clone();
        let off = |(i, e): (usize, &T)| (edges.place(*e) - i as f64).abs();
        let offs = || bounds.iter().enumerate().map(off);
        // An edge whose place is NaN is not even either.
        if bounds.len() > BINS_MAX + 1 || !offs().all(|off| off < 0.25) {
            return None;
        }
        let off = offs().fold(0.0, f64::max);
        let last = bounds.last_mut()?;
        *last = next(*last)?;
        Some(Even { edges, bounds, off })
    }

    /// Counts the first `n` cells.
    #[inline(always)]
    fn block(&self, some: &[T; BLOCK], n: usize, counts: &mut Counts) {
        let end = (self.bounds.len() - 1) as f64 + BEYOND;
        // The edge nearest to each cell, and the number of edges that are not greater.
        let (mut near, mut after) = ([0u32; BLOCK], [0u32; BLOCK]);
        let mut unsure = false;
        for i in 0..BLOCK {
            let p = self.edges.place(some[i]);
            // NaN counts as near the first edge.
            let p = if p > end { end } else { p };
            let p = if p < -BEYOND { -BEYOND } else { p };
            let p = if p.is_nan() { 0.0 } else { p };
            let nearest = p + WHOLE;
            let beside = p - (nearest - WHOLE);
            near[i] = nearest.to_bits() as u32;
            after[i] = near[i].wrapping_add(u32::from(beside > 0.0));
            unsure |= beside.abs() <= self.off;
        }
        if unsure {
            for i in 0..BLOCK {
                let bound = self.bounds[near[i] as usize];
                after[i] = near[i] + u32::from(some[i] >= bound);
            }
        }
        let (groups, last) = after[..n].as_chunks::<PLACES>();
        for group in groups {
            counts.add(group);
        }
        counts.add(last);
    }
}

/// Counts of cells by the number of edges that are not greater.
struct Counts {
    places: Vec<[u64; PLACES]>,
}

impl Counts {
    fn new(edges: usize) -> Self {
        Counts { places: vec![[0; PLACES]; edges + 1] }
    }

    /// Counts up to [`PLACES`] adjacent cells by the number of edges that are not greater.
    #[inline(always)]
    fn add(&mut self, after: &[u32]) {
        for (place, after) in after.iter().enumerate() {
            self.places[*after as usize][place] += 1;
        }
    }

    /// Writes the counts of the bins.
    fn write(&self, out: &mut [u8]) {
        for (i, bin) in self.places[1..self.places.len() - 1].iter().enumerate() {
            (bin.iter().sum::<u64>() as i64).write(out, i);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::copy::Strided;

    fn count<T: Copy>(
        dtype: DType,
        x: &[T],
        edges: &[T],
        bytes: impl Fn(&T) -> Vec<u8>,
    ) -> Vec<i64> {
        let all = |v: &[T]| v.iter().flat_map(&bytes).collect::<Vec<u8>>();
        let (cells, table) = (all(x), all(edges));
        let mut out = vec![9; (edges.len() - 1) * 8];
        let value = Strided { bytes: &cells, offset: 0, strides: &[1] };
        let cells = Cells { value, valid: None };
        let table = Table { value: &table, valid: None };
        let shape = [x.len() as u64];
        histogram(dtype, &shape, cells, table, None, &mut out, &|| false).unwrap();
        (0..edges.len() - 1).map(|i| i64::read(&out, i)).collect()
    }

    /// By hand: each cell against each bin.
    fn by_hand<T: Copy + PartialOrd>(x: &[T], edges: &[T]) -> Vec<i64> {
        let n = edges.len() - 1;
        let inside =
            |x: T, i: usize| edges[i] <= x && (x < edges[i + 1] || (x == edges[n] && i == n - 1));
        (0..n).map(|i| x.iter().filter(|x| inside(**x, i)).count() as i64).collect()
    }

    #[test]
    fn bins_are_those_of_comparisons() {
        // Even edges with rounded steps; cells on all edges, next to them, beyond them, and NaN.
        for (lo, hi, n) in [(0.0, 1.0, 100), (-3.0, 7.1, 33), (1e9, 1e9 + 1e-5, 50), (0.1, 0.3, 1)]
        {
            let step = (hi - lo) / n as f64;
            let edge = |i: usize| if i == n { hi } else { i as f64 * step + lo };
            let edges: Vec<f64> = (0..=n).map(edge).collect();
            let mut x: Vec<f64> =
                edges.iter().flat_map(|e| [*e, e.next_up(), e.next_down()]).collect();
            x.extend((0..1000).map(|i| lo + (hi - lo) * (f64::from(i) / 900.0 - 0.05)));
            x.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]);
            let bytes = |x: &f64| x.to_ne_bytes().to_vec();
            assert_eq!(count(DType::Float64, &x, &edges, bytes), by_hand(&x, &edges), "{lo} {hi}");
            let single = |v: &[f64]| v.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let (x, edges) = (single(&x), single(&edges));
            let bytes = |x: &f32| x.to_ne_bytes().to_vec();
            assert_eq!(count(DType::Float32, &x, &edges, bytes), by_hand(&x, &edges), "{lo} {hi}");
        }
        // Uneven edges, empty bins at the end, integers up to the maximum of their type.
        let x: Vec<u8> = (0..=255).chain(100..200).collect();
        for edges in
            [&[0u8, 1, 9, 9, 200][..], &[3, 250, 250], &[0, 51, 102, 153, 204, 255], &[7, 9, 11]]
        {
            assert_eq!(
                count(DType::UInt8, &x, edges, |x| vec![*x]),
                by_hand(&x, edges),
                "{edges:?}"
            );
        }
    }
}
