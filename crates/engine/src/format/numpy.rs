//! A tensor's values as NumPy 2 prints them: `str(array)`, and `str(masked_array)` where a shown cell is masked.
//!
//! 1. `Shown` picks the cells: all, or the corners if there are more than 1000.
//! 2. `words` formats them, with a common width and precision.
//! 3. `Lines` puts words between brackets and breaks lines.
//!
//! Two deliberate differences: masked `float32` cells have their own shortest digits (NumPy prints those of the float64
//! that holds them), and large masked arrays are cut to corners like all others.
//!
//! # Source
//! `numpy/_core/arrayprint.py`, NumPy 2.4 (`precision=8, threshold=1000, edgeitems=3`).

mod float;

use super::digits::Float;
use crate::answer::{Cell, Head, Windows};
use crate::error::Error;
use tessera_planner::region::Region;

/// Upper bound on the cells that are shown in full.
const THRESHOLD: u64 = 1000;
/// Cells at each end of a shortened axis.
const EDGE_ITEMS: usize = 3;

/// The values of a tensor as text without a newline at its end, in lines of `width` characters (NumPy's default is 75).
///
/// # Errors
/// Cells in a file that cannot be read.
pub fn array_to_string(t: &dyn Windows, width: usize) -> Result<String, Error> {
    let head = t.head();
    let shape = head.shape();
    if shape.contains(&0) {
        return Ok("[]".into());
    }
    let shown = Shown::new(&shape);
    let words = words(head, &shown.cells(t)?);
    Ok(match words.first() {
        Some(word) if shown.axes.is_empty() => word.clone(),
        _ => Lines { axes: &shown.axes, words: &words }.nested(0, 0, " ", width),
    })
}

/// The cells to show.
struct Shown {
    /// Number of positions shown of each axis, and whether the middle is left out.
    axes: Vec<(usize, bool)>,
    /// The shown parts of each axis, half-open.
    parts: Vec<Vec<(u64, u64)>>,
}

impl Shown {
    fn new(shape: &[u64]) -> Self {
        const EDGE: u64 = EDGE_ITEMS as u64;
        let shorten = tessera_planner::region::cells(shape).is_none_or(|n| n > THRESHOLD);
        let (mut axes, mut parts) = (Vec::new(), Vec::new());
        for &len in shape {
            if shorten && len > 2 * EDGE {
                axes.push((2 * EDGE_ITEMS, true));
                parts.push(vec![(0, EDGE), (len - EDGE, len)]);
            } else {
                axes.push((len as usize, false));
                parts.push(vec![(0, len)]);
            }
        }
        Shown { axes, parts }
    }

    /// The cells in row-major order. Only cells that are shown are read.
    fn cells(&self, t: &dyn Windows) -> Result<Vec<Cell<'static>>, Error> {
        let shape = t.head().shape();
        let mut out = Vec::new();
        let mut read = |window: &Region| -> Result<(), Error> {
            let cells = t.window(window)?;
            out.extend((0..cells.len()).map(|i| cells.cell(i)));
            Ok(())
        };
        let Some((last, outer)) = self.parts.split_last() else {
            read(&Region::whole(&shape))?;
            return Ok(out);
        };
        if self.axes.iter().all(|(_, cut)| !cut) {
            read(&Region::whole(&shape))?;
            return Ok(out);
        }
        // Single positions of the outer axes, runs of the last one.
        let positions: Vec<Vec<u64>> =
            outer.iter().map(|parts| parts.iter().flat_map(|(a, b)| *a..*b).collect()).collect();
        let count: usize = positions.iter().map(Vec::len).product();
        for n in 0..count {
            let mut rest = n;
            let mut window = Region::whole(&shape);
            for (a, own) in positions.iter().enumerate().rev() {
                let at = own[rest % own.len()];
                rest /= own.len();
                (window.start[a], window.end[a]) = (at, at + 1);
            }
            for &(start, end) in last {
                let a = shape.len() - 1;
                (window.start[a], window.end[a]) = (start, end);
                read(&window)?;
            }
        }
        Ok(out)
    }
}

fn words(t: Head<'_>, cells: &[Cell<'static>]) -> Vec<String> {
    let zero_d = t.dims.is_empty();
    let quote = |text: &str| if zero_d { text.to_string() } else { format!("'{text}'") };
    let float =
        |v: Float| special(v.value).unwrap_or_else(|| if zero_d { v.lone() } else { v.repr() });
    if zero_d || cells.contains(&Cell::Null) {
        return cells
            .iter()
            .map(|c| match c {
                Cell::Null => "--".into(),
                Cell::Bool(b) => if *b { "True" } else { "False" }.into(),
                Cell::F32(v) => float((*v).into()),
                Cell::F64(v) => float((*v).into()),
                Cell::Text(text) => quote(text),
                other => other.text(),
            })
            .collect();
    }
    if t.dtype.is_float() {
        return float::format(cells);
    }
    let words: Vec<String> = cells
        .iter()
        .map(|c| match c {
            Cell::Bool(b) => if *b { "True" } else { "False" }.into(),
            Cell::Text(text) => quote(text),
            other => other.text(),
        })
        .collect();
    // Booleans are aligned even if all are true.
    let least = if t.dtype == tessera_planner::dtype::DType::Bool { 5 } else { 0 };
    let width = words.iter().map(String::len).max().unwrap_or(0).max(least);
    words.into_iter().map(|w| format!("{w:>width$}")).collect()
}

/// NumPy's text for NaN and infinities.
fn special(v: f64) -> Option<String> {
    if v.is_nan() {
        Some("nan".into())
    } else if v.is_infinite() {
        Some(if v > 0.0 { "inf" } else { "-inf" }.into())
    } else {
        None
    }
}

/// Words between brackets.
struct Lines<'a> {
    axes: &'a [(usize, bool)],
    words: &'a [String],
}

impl Lines<'_> {
    /// The cells below `axis` from word `start` on; lines after the first begin with `indent`.
    fn nested(&self, axis: usize, start: usize, indent: &str, width: usize) -> String {
        let (count, cut) = self.axes[axis];
        let left = self.axes.len() - axis;
        let step: usize = self.axes[axis + 1..].iter().map(|a| a.0).product();
        let mut out = String::new();
        if left == 1 {
            let room = width.saturating_sub(1);
            let mut line = indent.to_string();
            for i in 0..count {
                if cut && i == EDGE_ITEMS {
                    extend(&mut out, &mut line, "...", room, indent);
                    line.push(' ');
                }
                extend(&mut out, &mut line, &self.words[start + i], room, indent);
                if i + 1 < count {
                    line.push(' ');
                }
            }
            out.push_str(&line);
        } else {
            let separator = "\n".repeat(left - 1);
            let inner = format!("{indent} ");
            for i in 0..count {
                if cut && i == EDGE_ITEMS {
                    out.push_str(&format!("{indent}...{separator}"));
                }
                out.push_str(indent);
                let part = self.nested(axis + 1, start + i * step, &inner, width.saturating_sub(1));
                out.push_str(&part);
                if i + 1 < count {
                    out.push_str(&separator);
                }
            }
        }
        format!("[{}]", &out[indent.len()..])
    }
}

/// Adds a word to the line, after a break if it would not fit (and a break would help).
fn extend(out: &mut String, line: &mut String, word: &str, room: usize, indent: &str) {
    if line.len() + word.len() > room && line.len() > indent.len() {
        out.push_str(line.trim_end());
        out.push('\n');
        indent.clone_into(line);
    }
    line.push_str(word);
}

#[cfg(test)]
#[path = "numpy/tests.rs"]
mod tests;
