//! Rows drawn as a box of lines, fitted to a terminal.

use super::columns::is_number;
use arrow::datatypes::Schema;
use std::io::{self, Write};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Upper bound on the width of a column in characters, if no width is given.
const COLUMN_MAX: usize = 60;
/// Lower bound on the width of a narrowed column in characters; below it columns are left out.
const COLUMN_MIN: usize = 8;

/// Cells as texts, by rows, under the names of their columns.
pub(super) struct Boxed {
    names: Vec<String>,
    /// Columns of numbers are right-aligned.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Boxed {
    /// `rows` have one text for each field of `schema`.
    pub(super) fn new(schema: &Schema, rows: Vec<Vec<String>>) -> Self {
        Boxed {
            names: schema.fields().iter().map(|f| clean(f.name())).collect(),
            right: schema.fields().iter().map(|f| is_number(f)).collect(),
            rows,
        }
    }

    /// Draws the box and returns the number of columns it shows.
    ///
    /// With a width, columns are narrowed to fit into it, the widest first. If that is not enough, columns in the
    /// middle are replaced by one column of `…`.
    pub(super) fn draw(mut self, width: Option<usize>, out: &mut dyn Write) -> io::Result<usize> {
        if self.names.is_empty() {
            return Ok(0);
        }
        let natural: Vec<usize> = (0..self.names.len())
            .map(|c| self.rows.iter().map(|r| r[c].width()).fold(self.names[c].width(), usize::max))
            .collect();
        let Some(width) = width else {
            let widths: Vec<usize> = natural.iter().map(|w| (*w).min(COLUMN_MAX)).collect();
            self.lines(&widths, out)?;
            return Ok(widths.len());
        };
        let (mut kept, gap) = keep(&natural, width);
        let mut widths: Vec<usize> = kept.iter().map(|&c| natural[c]).collect();
        let room = room(width, widths.len() + usize::from(gap.is_some()), gap.is_some());
        narrow(&mut widths, room);
        let shown = kept.len();
        if let Some(at) = gap {
            // The column of dots is one more text column.
            let dots = self.names.len();
            self.names.push("…".into());
            self.right.push(false);
            self.rows.iter_mut().for_each(|r| r.push("…".into()));
            kept.insert(at, dots);
            widths.insert(at, 1);
        }
        self.names = kept.iter().map(|&c| std::mem::take(&mut self.names[c])).collect();
        self.right = kept.iter().map(|&c| self.right[c]).collect();
        for row in &mut self.rows {
            *row = kept.iter().map(|&c| std::mem::take(&mut row[c])).collect();
        }
        self.lines(&widths, out)?;
        Ok(shown)
    }

    fn lines(&self, widths: &[usize], out: &mut dyn Write) -> io::Result<()> {
        let rule = |l: &str, m: &str, r: &str| {
            let parts: Vec<String> = widths.iter().map(|w| "─".repeat(w + 2)).collect();
            format!("{l}{}{r}\n", parts.join(m))
        };
        let line = |cells: &[String]| {
            let mut text = String::from("│");
            for (c, cell) in cells.iter().enumerate() {
                let cell = shorten(cell, widths[c]);
                let pad = " ".repeat(widths[c].saturating_sub(cell.width()));
                if self.right[c] {
                    text.push_str(&format!(" {pad}{cell} │"));
                } else {
                    text.push_str(&format!(" {cell}{pad} │"));
                }
            }
            text.push('\n');
            text
        };
        out.write_all(rule("┌", "┬", "┐").as_bytes())?;
        out.write_all(line(&self.names).as_bytes())?;
        out.write_all(rule("├", "┼", "┤").as_bytes())?;
        for r in &self.rows {
            out.write_all(line(r).as_bytes())?;
        }
        out.write_all(rule("└", "┴", "┘").as_bytes())
    }
}

/// Characters left for cells: each column has a line and two spaces, the box one more line, the dots are one wide.
fn room(width: usize, columns: usize, dots: bool) -> usize {
    width.saturating_sub(3 * columns + 1 + usize::from(dots))
}

/// Chooses the columns to show, and the position of the dots for the others: as many as fit at their minimal width,
/// from both ends; at least the first.
fn keep(natural: &[usize], width: usize) -> (Vec<usize>, Option<usize>) {
    let n = natural.len();
    let least = |c: usize| natural[c].min(COLUMN_MIN);
    if (0..n).map(least).sum::<usize>() <= room(width, n, false) {
        return ((0..n).collect(), None);
    }
    let (mut head, mut tail, mut used) = (vec![0], Vec::new(), least(0));
    loop {
        let from_head = head.len() <= tail.len();
        let next = if from_head { head.len() } else { n - 1 - tail.len() };
        let columns = head.len() + tail.len();
        if columns + 1 >= n || used + least(next) > room(width, columns + 2, true) {
            break;
        }
        used += least(next);
        if from_head { head.push(next) } else { tail.push(next) }
    }
    let gap = head.len();
    (head.into_iter().chain(tail.into_iter().rev()).collect(), (n > 1).then_some(gap))
}

/// Narrows the widest columns to one width so that all columns fit into `room`, but none below `COLUMN_MIN`.
fn narrow(widths: &mut [usize], room: usize) {
    let fits = |level: usize| widths.iter().map(|w| (*w).min(level)).sum::<usize>() <= room;
    let (mut low, mut high) = (COLUMN_MIN, room.max(COLUMN_MIN));
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    widths.iter_mut().for_each(|w| *w = (*w).min(low));
}

/// Replaces control characters: data must not move the cursor or colour the terminal.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Cuts to `most` characters of width, with `…` for the rest.
fn shorten(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.to_string();
    }
    let mut out = String::new();
    let mut width = 0;
    for c in text.chars() {
        width += c.width().unwrap_or(0);
        if width >= most {
            break;
        }
        out.push(c);
    }
    out + "…"
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field};

    fn drawn(columns: usize, cell: &str, width: Option<usize>) -> (String, usize) {
        let fields: Vec<Field> =
            (0..columns).map(|c| Field::new(format!("c{c}"), DataType::Utf8, false)).collect();
        let rows = vec![vec![cell.to_string(); columns]];
        let mut out = Vec::new();
        let shown = Boxed::new(&Schema::new(fields), rows).draw(width, &mut out).unwrap();
        (String::from_utf8(out).unwrap(), shown)
    }

    #[test]
    fn a_box_fits_its_width() {
        for columns in 1..30 {
            for cell in ["1", "温度温度温度温度", &"long text ".repeat(20)] {
                for width in [20, 21, 33, 80, 200] {
                    let (text, shown) = drawn(columns, cell, Some(width));
                    assert!(shown >= 1 && shown <= columns);
                    let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
                    assert!(widest <= width, "{columns} {width}\n{text}");
                    let widths: Vec<usize> = text.lines().map(UnicodeWidthStr::width).collect();
                    assert!(widths.iter().all(|w| *w == widest), "ragged\n{text}");
                }
            }
        }
    }

    #[test]
    fn omitted_cells_are_in_the_middle() {
        let (text, shown) = drawn(6, "0123456789", Some(40));
        insta::assert_snapshot!(text, @"
        ┌──────────┬──────────┬───┬──────────┐
        │ c0       │ c1       │ … │ c5       │
        ├──────────┼──────────┼───┼──────────┤
        │ 0123456… │ 0123456… │ … │ 0123456… │
        └──────────┴──────────┴───┴──────────┘
        ");
        assert_eq!(shown, 3);
        // Without a width nothing is cut.
        assert_eq!(drawn(30, "0123456789", None).1, 30);
    }
}
