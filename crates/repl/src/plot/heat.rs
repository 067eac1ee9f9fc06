//! Heat maps.

use super::axis::{Axis, cut, number};
use super::colours::{NAN, code, colour, shade};
use super::{Block, Canvas, MARGIN_MAX};
use unicode_width::UnicodeWidthStr;

/// Upper bound on the width of a cell in characters.
const WIDEST: usize = 8;
/// Width of the legend's colours in characters.
const LEGEND: usize = 24;

/// The picture of `cells`, in rows of `x`.
pub(super) fn draw(cells: &[Block], y: &Axis, x: &Axis, units: &str, canvas: &Canvas) -> String {
    let (rows, columns) = (y.labels.len().max(1), x.labels.len().max(1));
    let (width, height) = canvas.pixels();
    // Small tensors are enlarged, equally in both directions as far as there is room: a character of half blocks is two
    // cells high, a letter is about twice as high as it is wide.
    let tall = if canvas.halves() { 1 } else { 2 };
    let scale = (width / columns).min(height * tall / rows).clamp(1, WIDEST);
    // Few columns beside many rows are widened.
    let (wide, high) = (scale.max((width / columns).min(4)), (scale / tall).max(1));
    let picture =
        Picture { cells, rows, columns, wide, high, up: y.grows, scale: Scale::of(cells), canvas };
    let margin = y.labels.iter().map(|l| l.width()).max().unwrap_or(0).min(MARGIN_MAX - 2);
    let lines = picture.lines();
    let ticks = lines.len().div_ceil(4).clamp(2, 8).min(rows);
    let mut out = format!("{}\n", cut(&y.name, margin + columns * wide));
    let mut labelled = vec![None; lines.len()];
    for k in 0..ticks {
        let row = if ticks == 1 { 0 } else { k * (rows - 1) / (ticks - 1) };
        let shown = if y.grows { rows - 1 - row } else { row };
        let line = (shown * high + high / 2) / if canvas.halves() { 2 } else { 1 };
        if let Some(place) = labelled.get_mut(line) {
            place.get_or_insert(row);
        }
    }
    let (side, corner, floor) =
        if canvas.style.unicode { ("┤", "└", "─") } else { ("|", "+", "-") };
    let plain = if canvas.style.unicode { "│" } else { "|" };
    for (line, row) in lines.iter().zip(labelled) {
        let label = row.map(|r| cut(&y.labels[r], margin)).unwrap_or_default();
        let pad = " ".repeat(margin - label.width().min(margin));
        let edge = if row.is_some() { side } else { plain };
        out.push_str(&format!("{pad}{label} {edge}{line}\n"));
    }
    let across = columns * wide;
    let indent = " ".repeat(margin + 1);
    out.push_str(&format!("{indent}{corner}{}\n", floor.repeat(across)));
    out.push_str(&format!("{indent} {}  {}\n", x.below(across), x.name));
    out.push_str(&format!("{indent} {}\n", picture.legend(units)));
    out
}

/// The range of the finite values.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    fn of(cells: &[Block]) -> Option<Scale> {
        let values = cells.iter().filter_map(|c| match c {
            Block::Value(v) if v.is_finite() => Some(*v),
            _ => None,
        });
        values.fold(None, |s: Option<Scale>, v| {
            Some(s.map_or(Scale { low: v, high: v }, |s| Scale {
                low: s.low.min(v),
                high: s.high.max(v),
            }))
        })
    }

    /// Maps to 0 to 1; to the middle if all values are equal.
    fn part(self, v: f64) -> f64 {
        if self.high > self.low {
            ((v - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        } else {
            0.5
        }
    }
}

struct Picture<'a> {
    cells: &'a [Block],
    rows: usize,
    columns: usize,
    /// Width of a cell in characters, and height in rows.
    wide: usize,
    high: usize,
    /// True if the last row is drawn first.
    up: bool,
    scale: Option<Scale>,
    canvas: &'a Canvas,
}

impl Picture<'_> {
    fn lines(&self) -> Vec<String> {
        let rows: Vec<usize> = (0..self.rows * self.high)
            .map(|p| p / self.high)
            .map(|r| if self.up { self.rows - 1 - r } else { r })
            .collect();
        if self.canvas.halves() {
            rows.chunks(2).map(|two| self.halves(two[0], two.get(1).copied())).collect()
        } else {
            rows.iter().map(|r| self.letters(*r)).collect()
        }
    }

    fn cell(&self, row: usize, column: usize) -> Block {
        self.cells.get(row * self.columns + column).copied().unwrap_or(Block::Masked)
    }

    fn part(&self, v: f64) -> f64 {
        self.scale.map_or(0.5, |s| s.part(v))
    }

    fn colour(&self, cell: Block) -> Option<(u8, u8, u8)> {
        match cell {
            Block::Value(v) => Some(colour(self.part(v))),
            Block::Nan => Some(NAN),
            Block::Masked => None,
        }
    }

    /// Two rows in one line: the upper is the foreground colour, the lower the background.
    fn halves(&self, top: usize, bottom: Option<usize>) -> String {
        let style = self.canvas.style;
        let mut out = String::new();
        let mut last = String::new();
        for c in 0..self.columns {
            let above = self.colour(self.cell(top, c));
            let below = bottom.and_then(|b| self.colour(self.cell(b, c)));
            let (set, glyph) = match (above, below) {
                (None, None) => ("0".to_string(), ' '),
                (Some(a), None) => (format!("0;{}", code(38, a, style)), '▀'),
                (None, Some(b)) => (format!("0;{}", code(38, b, style)), '▄'),
                (Some(a), Some(b)) => {
                    (format!("{};{}", code(38, a, style), code(48, b, style)), '▀')
                }
            };
            if set != last {
                out.push_str(&format!("\x1b[{set}m"));
                last = set;
            }
            out.extend(std::iter::repeat_n(glyph, self.wide));
        }
        out + "\x1b[0m"
    }

    fn letters(&self, row: usize) -> String {
        let letter = |cell| match cell {
            Block::Value(v) => shade(self.part(v)),
            Block::Nan => '?',
            Block::Masked => ' ',
        };
        (0..self.columns)
            .flat_map(|c| std::iter::repeat_n(letter(self.cell(row, c)), self.wide))
            .collect()
    }

    fn legend(&self, units: &str) -> String {
        let style = self.canvas.style;
        let coloured = self.canvas.halves();
        let mut out = String::new();
        if let Some(s) = self.scale {
            let range = s.high - s.low;
            let steps = (0..LEGEND).map(|i| i as f64 / (LEGEND - 1) as f64);
            let ramp: String = if coloured {
                steps.map(|t| format!("\x1b[{}m█", code(38, colour(t), style))).collect::<String>()
                    + "\x1b[0m"
            } else {
                steps.map(shade).collect()
            };
            out = match range > 0.0 {
                true => format!("{} {ramp} {}", number(s.low, range), number(s.high, range)),
                false => format!("all {}", number(s.low, 0.0)),
            };
            if !units.is_empty() {
                out.push_str(&format!(" {units}"));
            }
        }
        if self.cells.contains(&Block::Masked) {
            out.push_str("   blank: masked");
        }
        if self.cells.contains(&Block::Nan) {
            let mark = if coloured {
                format!("\x1b[{}m█\x1b[0m", code(38, NAN, style))
            } else {
                "?".into()
            };
            out.push_str(&format!("   {mark}: NaN"));
        }
        out.trim_start().to_string()
    }
}
