//! Whole rows accumulated into variances: one state per cell of a row.

use crate::elem::Float;
use crate::partial::{HELD, Piece};

#[inline(always)]
pub(super) unsafe fn var_row<T: Float>(p: &Piece) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; the tile has N cells; fields do not overlap.
    let (count, point, away, m2, v) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[2].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[3].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts(p.values.cast::<T>().add(p.from), n),
        )
    };
    if n == 0 {
        return;
    }
    if p.valid.is_null() {
        // Every cell of a row has accumulated the same number of cells.
        let (before, c) = (count[0] as f64, count[0] + 1);
        let w = 1.0 / c as f64;
        let grown = before * w;
        if count[0] == 0 {
            point.iter_mut().zip(v).for_each(|(point, v)| *point = v.to_f64());
        }
        count.fill(c);
        for (((away, m2), point), v) in away.iter_mut().zip(m2).zip(point).zip(v) {
            let d = (v.to_f64() - *point) - *away;
            *away += d * w;
            *m2 += d * d * grown;
        }
        return;
    }
    // SAFETY: validity has N cells.
    let valid = unsafe { std::slice::from_raw_parts(p.valid.add(p.from), n) };
    for i in 0..n {
        // One more cell: Chan's merge with a part of one.
        let c = count[i] + 1;
        let x = v[i].to_f64();
        let from = if count[i] == 0 { x } else { point[i] };
        let d = (x - from) - away[i];
        let w = 1.0 / c as f64;
        let new_away = away[i] + d * w;
        let new_m2 = m2[i] + d * d * (count[i] as f64 * w);
        let take = valid[i] != 0;
        count[i] = if take { c } else { count[i] };
        point[i] = if take { from } else { point[i] };
        away[i] = if take { new_away } else { away[i] };
        m2[i] = if take { new_m2 } else { m2[i] };
    }
}

#[inline(always)]
pub(super) unsafe fn var_rows<T: Float>(p: &Piece, values: &[*const u8]) {
    let n = p.to - p.from;
    // SAFETY: a kept run's cells are cells of the state from `out` on; fields do not overlap.
    let (count, point, away, m2) = unsafe {
        (
            std::slice::from_raw_parts_mut(p.fields[0].cast::<i64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[1].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[2].cast::<f64>().add(p.out), n),
            std::slice::from_raw_parts_mut(p.fields[3].cast::<f64>().add(p.out), n),
        )
    };
    let Some(before) = count.first().copied() else { return };
    count.fill(before + values.len() as i64);
    if let Some(first) = values.first().filter(|_| before == 0) {
        // SAFETY: every row has n values.
        let first = unsafe { std::slice::from_raw_parts(first.cast::<T>(), n) };
        point.iter_mut().zip(first).for_each(|(point, v)| *point = v.to_f64());
    }
    // SAFETY: every row has n values.
    unsafe { var_all_held::<T>(before, point, away, m2, values) };
}

/// Accumulates rows into as many states as a row has cells; each state has accumulated `before` rows.
///
/// # Safety
/// Every row has as many cells as the slices.
#[inline(always)]
unsafe fn var_all_held<T: Float>(
    before: i64,
    point: &[f64],
    away: &mut [f64],
    m2: &mut [f64],
    rows: &[*const u8],
) {
    let (points, last_points) = point.as_chunks::<HELD>();
    let (aways, last_aways) = away.as_chunks_mut::<HELD>();
    let (squares, last_squares) = m2.as_chunks_mut::<HELD>();
    let done = points.len() * HELD;
    for (part, ((point, away), m2)) in points.iter().zip(aways).zip(squares).enumerate() {
        // SAFETY: the parts are adjacent in the state, and every row has a cell for each of the state's.
        unsafe { var_held::<T, HELD>(before, point, away, m2, rows, part * HELD) };
    }
    for (k, ((point, away), m2)) in last_points.iter().zip(last_aways).zip(last_squares).enumerate()
    {
        let (away, m2) = (std::array::from_mut(away), std::array::from_mut(m2));
        // SAFETY: as above.
        unsafe { var_held::<T, 1>(before, std::array::from_ref(point), away, m2, rows, done + k) };
    }
}

/// Accumulates cells `from..from + L` of some rows into as many states, which have accumulated `before` rows.
///
/// # Safety
/// Every row has `from + L` cells.
#[inline(always)]
unsafe fn var_held<T: Float, const L: usize>(
    before: i64,
    point: &[f64; L],
    away: &mut [f64; L],
    m2: &mut [f64; L],
    rows: &[*const u8],
    from: usize,
) {
    let (points, mut aways, mut squares) = (*point, *away, *m2);
    for (n, v) in (before..).zip(rows) {
        // SAFETY: every row has `from + L` cells.
        let v = unsafe { &*v.cast::<T>().add(from).cast::<[T; L]>() };
        let w = 1.0 / (n + 1) as f64;
        let grown = n as f64 * w;
        for i in 0..L {
            let d = (v[i].to_f64() - points[i]) - aways[i];
            aways[i] += d * w;
            squares[i] += d * d * grown;
        }
    }
    (*away, *m2) = (aways, squares);
}
