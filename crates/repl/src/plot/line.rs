//! Line plots.

use super::axis::{Axis, number};
use super::{Block, Canvas, MARGIN_MAX};
use crate::style::code;
use unicode_width::UnicodeWidthStr;

/// The picture of a line through `cells`. If given, `low` and `high` of a block are joined as well.
pub(super) fn draw(
    cells: &[Block],
    low: &[Option<f64>],
    high: &[Option<f64>],
    x: &Axis,
    canvas: &Canvas,
) -> String {
    let n = cells.len().max(1);
    let mut dots = Dots::new(canvas);
    let value = |i: usize| match cells[i] {
        Block::Value(v) if v.is_finite() => Some(v),
        _ => None,
    };
    let ends = |i: usize| {
        let v = value(i)?;
        let finite = |o: Option<&Option<f64>>| o.copied().flatten().filter(|v| v.is_finite());
        Some((finite(low.get(i)).unwrap_or(v), finite(high.get(i)).unwrap_or(v), v))
    };
    let all: Vec<Option<(f64, f64, f64)>> = (0..cells.len()).map(ends).collect();
    let bottom = all.iter().flatten().map(|e| e.0).fold(f64::INFINITY, f64::min);
    let top = all.iter().flatten().map(|e| e.1).fold(f64::NEG_INFINITY, f64::max);
    let range = if top > bottom { top - bottom } else { 0.0 };
    let (across, down) = dots.size();
    let column = |i: usize| if n == 1 { across / 2 } else { i * (across - 1) / (n - 1) };
    let row = |v: f64| {
        let part = if range > 0.0 { (v - bottom) / range } else { 0.5 };
        ((1.0 - part) * (down - 1) as f64).round() as usize
    };
    let mut last: Option<(usize, usize)> = None;
    for (i, ends) in all.iter().enumerate() {
        let Some((l, h, v)) = ends else {
            last = None;
            continue;
        };
        let at = (column(i), row(*v));
        if let Some(from) = last {
            dots.line(from, at);
        }
        dots.line((at.0, row(*h)), (at.0, row(*l)));
        last = Some(at);
    }
    let lines = dots.lines();
    let told: Vec<String> = match all.iter().flatten().next() {
        None => vec!["no values".into()],
        Some(_) if range == 0.0 => vec![number(bottom, 0.0)],
        Some(_) => {
            vec![number(top, range), number((top + bottom) / 2.0, range), number(bottom, range)]
        }
    };
    let margin = told.iter().map(|t| t.width()).max().unwrap_or(0).min(MARGIN_MAX - 2);
    let (side, plain, corner, floor) =
        if canvas.style.unicode { ("┤", "│", "└", "─") } else { ("|", "|", "+", "-") };
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let middle = lines.len() / 2;
        let label = match (i, told.len()) {
            (_, 1) if i == middle => told.first(),
            (0, 3) => told.first(),
            (_, 3) if i == middle => told.get(1),
            (_, 3) if i + 1 == lines.len() => told.get(2),
            _ => None,
        };
        let edge = if label.is_some() { side } else { plain };
        let label = label.map(String::as_str).unwrap_or_default();
        let line = canvas.style.paint(code::FUNCTION, line.trim_end());
        out.push_str(&format!("{label:>margin$} {edge}{line}\n"));
    }
    let indent = " ".repeat(margin + 1);
    out.push_str(&format!("{indent}{corner}{}\n", floor.repeat(canvas.width)));
    let gaps = gaps(cells, canvas.width, &|i| column(i) * canvas.width / across);
    if !gaps.is_empty() {
        out.push_str(&format!("{indent} {gaps}\n"));
    }
    out.push_str(&format!("{indent} {}  {}\n", x.below(canvas.width), x.name));
    out
}

/// Marks under the axis for missing values, `x` for NaN, `.` for masked, and their legend.
fn gaps(cells: &[Block], width: usize, column: &dyn Fn(usize) -> usize) -> String {
    let mut marks = vec![' '; width];
    for (i, cell) in cells.iter().enumerate() {
        let mark = match cell {
            Block::Nan => 'x',
            Block::Masked => '.',
            Block::Value(v) if v.is_infinite() => '^',
            Block::Value(_) => continue,
        };
        if let Some(place) = marks.get_mut(column(i))
            && *place != 'x'
        {
            *place = mark;
        }
    }
    let mut text: String = marks.iter().collect::<String>().trim_end().to_string();
    for (mark, name) in [('x', "NaN"), ('.', "masked"), ('^', "infinite")] {
        if marks.contains(&mark) {
            text.push_str(&format!("  {mark}: {name}"));
        }
    }
    text
}

/// A grid of dots: 2 × 4 in a braille character, or one for each `*`.
struct Dots {
    unicode: bool,
    width: usize,
    height: usize,
    set: Vec<bool>,
}

impl Dots {
    fn new(canvas: &Canvas) -> Dots {
        let unicode = canvas.style.unicode;
        let (w, h) = if unicode { (2, 4) } else { (1, 1) };
        // A line plot needs less height than a heat map.
        let height = canvas.height.min(16);
        let mut dots =
            Dots { unicode, width: canvas.width * w, height: height * h, set: Vec::new() };
        dots.set = vec![false; dots.width * dots.height];
        dots
    }

    fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    fn line(&mut self, from: (usize, usize), to: (usize, usize)) {
        let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)).max(1);
        let between = |a: usize, b: usize, k: usize| {
            let part = k as f64 / steps as f64;
            (a as f64 + (b as f64 - a as f64) * part).round() as usize
        };
        for k in 0..=steps {
            let (x, y) = (between(from.0, to.0, k), between(from.1, to.1, k));
            if x < self.width && y < self.height {
                self.set[y * self.width + x] = true;
            }
        }
    }

    fn lines(&self) -> Vec<String> {
        let is = |x: usize, y: usize| self.set[y * self.width + x];
        if !self.unicode {
            return (0..self.height)
                .map(|y| (0..self.width).map(|x| if is(x, y) { '*' } else { ' ' }).collect())
                .collect();
        }
        // Unicode numbers braille dots down the left column, then the right; the lowest two come last.
        const BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        (0..self.height / 4)
            .map(|r| {
                (0..self.width / 2)
                    .map(|c| {
                        let mut bits = 0;
                        for (dy, row) in BITS.iter().enumerate() {
                            for (dx, bit) in row.iter().enumerate() {
                                if is(2 * c + dx, 4 * r + dy) {
                                    bits |= bit;
                                }
                            }
                        }
                        if bits == 0 { ' ' } else { char::from_u32(0x2800 + bits).unwrap_or(' ') }
                    })
                    .collect()
            })
            .collect()
    }
}
