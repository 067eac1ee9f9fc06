//! Cells counted in bins as they come: no number of a bin is stored.

use super::{Cells, Edges, Table, held, rows};
use crate::kernels::KernelError;
use crate::kernels::combine::Cell;
use crate::kernels::elem::{Elem, Kind};
use crate::kernels::level::at_best;
use tessera_planner::dtype::DType;

/// Counts the cells of each bin into `out` (`int64`), or adds up their weights (`float64`); `out` is overwritten. The
/// bins are those of [`LookupKind::Bins`](tessera_planner::lookup::LookupKind::Bins); cells that are masked, NaN or in no
/// bin are skipped, as are those whose weight is masked. The order of additions is row-major.
///
/// # Errors
/// [`KernelError::Domain`] for edges that are not finite or that fall, [`KernelError::Cancelled`],
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
    match Kind::of(dtype) {
        Kind::Bool | Kind::U8 => run!(int u8),
        Kind::I8 => run!(int i8),
        Kind::I16 => run!(int i16),
        Kind::I32 => run!(int i32),
        Kind::I64 => run!(int i64),
        Kind::U16 => run!(int u16),
        Kind::U32 => run!(int u32),
        Kind::U64 => run!(int u64),
        Kind::F32 => run!(f32, |v| Some(v.next_up())),
        Kind::F64 => run!(f64, |v| Some(v.next_up())),
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

/// Most bins that are counted in several places at once.
const BINS_MAX: usize = 4096;
/// How many places: neighbours count in different ones, so that one need not wait for the other where they are equal.
const PLACES: usize = 4;
/// Cells whose places are guessed together, by vectors.
const BLOCK: usize = 256;

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
            rows(self.shape, &[value], self.cancelled, |_, at, steps, len| {
                let cell = |i: usize| T::read(value.bytes, (at[0] + i as i64 * steps[0]) as usize);
                if steps[0] == 1 {
                    let from = at[0] as usize * size_of::<T>();
                    let cells = &value.bytes[from..from + len * size_of::<T>()];
                    let cells = cells.chunks_exact(size_of::<T>()).map(|c| T::read(c, 0));
                    at_best(|| even.count(cells, &mut counts));
                } else {
                    even.count((0..len).map(cell), &mut counts);
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

/// Evenly spaced edges: the nearest one to a cell tells its bin.
///
/// The place `p` of a cell, as it is rounded, rises with the cell. Each edge's own place is less than a quarter from its
/// number. So a cell in bin `b` has a place between `b - 1/4` and `b + 5/4`; the number nearest to that is `b` or `b + 1`,
/// and one comparison with that edge says which. This gives the bin exactly, however places are rounded.
struct Even<'e, T, W> {
    edges: &'e Edges<T, W>,
    /// The edges, the last one moved on by one cell: it belongs to the last bin.
    bounds: Vec<T>,
}

/// Added to a small number, leaves the nearest whole one in the lowest bits.
const WHOLE: f64 = 1.5 / f64::EPSILON;

impl<'e, T: Elem, W: Fn(T) -> f64> Even<'e, T, W> {
    /// `None` where edges are not even, or too many.
    fn new(edges: &'e Edges<T, W>, next: impl Fn(T) -> Option<T>) -> Option<Self> {
        let mut bounds = edges.edges.clone();
        let near = |(i, e): (usize, &T)| (edges.place(*e) - i as f64).abs() < 0.25;
        if bounds.len() > BINS_MAX + 1 || !bounds.iter().enumerate().all(near) {
            return None;
        }
        let last = bounds.last_mut()?;
        *last = next(*last)?;
        Some(Even { edges, bounds })
    }

    /// The number of the edge nearest to a cell; 0 for NaN.
    #[inline(always)]
    fn nearest(&self, x: T) -> u32 {
        let last = (self.bounds.len() - 1) as f64;
        let p = self.edges.place(x);
        let p = if p > 0.0 { p } else { 0.0 };
        let p = if p < last { p } else { last };
        (p + WHOLE).to_bits() as u32
    }

    /// Counts a run of cells.
    #[inline(always)]
    fn count(&self, mut cells: impl ExactSizeIterator<Item = T>, counts: &mut Counts) {
        let (mut some, mut near) = ([T::default(); BLOCK], [0u32; BLOCK]);
        while cells.len() > 0 {
            let n = cells.len().min(BLOCK);
            some[..n].iter_mut().zip(&mut cells).for_each(|(to, x)| *to = x);
            near.iter_mut().zip(&some).for_each(|(n, x)| *n = self.nearest(*x));
            let (some, last) = some[..n].as_chunks::<PLACES>();
            let (near, last_near) = near[..n].as_chunks::<PLACES>();
            for (some, near) in some.iter().zip(near) {
                for k in 0..PLACES {
                    counts.places[self.after(some[k], near[k])][k] += 1;
                }
            }
            for (x, near) in last.iter().zip(last_near) {
                counts.places[self.after(*x, *near)][0] += 1;
            }
        }
    }

    /// How many edges are not greater than a cell whose nearest edge is `n`: 0 for NaN.
    #[inline(always)]
    fn after(&self, x: T, n: u32) -> usize {
        n as usize + usize::from(x >= self.bounds[n as usize])
    }
}

/// Cells by how many edges are not greater.
struct Counts {
    places: Vec<[u64; PLACES]>,
}

impl Counts {
    fn new(edges: usize) -> Self {
        Counts { places: vec![[0; PLACES]; edges + 1] }
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
    use crate::kernels::copy::Strided;

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
        // Even edges with rounded steps, cells on all of them, next to them, beyond them, and NaN.
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
        // Uneven edges, empty bins at the end, whole numbers up to the last one of their type.
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
