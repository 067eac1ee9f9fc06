//! What people read: a header and NumPy's look for a tensor, a box for rows.

use super::columns::{Column, is_number};
use super::numpy::array_to_string;
use super::writer::{Options, output};
use crate::answer::{Cell, Tensor};
use crate::error::Error;
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use std::io::{self, Write};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The widest that a column is drawn, in characters.
const COLUMN_MAX: usize = 60;

/// ```text
/// t2m  float32 [time: 2920, lat: 25]  units: K
///   time    2013-01-01T00:00:00 … 2014-12-31T18:00:00
///   lat     75.0 … 15.0
///   chunks  730 × 25 (4 × 1)
/// [[241.2 …
/// ```
pub(super) fn write_tensor(t: &Tensor, o: &Options, out: &mut dyn Write) -> io::Result<()> {
    let names = t.dim_names();
    let shape = t.shape();
    let dims: Vec<String> =
        names.iter().zip(&shape).map(|(d, n)| format!("{}: {n}", clean(d))).collect();
    write!(out, "{}  {} [{}]", clean(t.name()), t.dtype(), dims.join(", "))?;
    if let Some(units) = t.attrs().get("units").and_then(|u| u.as_str()) {
        write!(out, "  units: {}", clean(units))?;
    }
    out.write_all(b"\n")?;
    let width = names.iter().map(|n| n.width()).max().unwrap_or(0).max("chunks".len());
    let mut line = |name: &str, text: &str| {
        let pad = " ".repeat(width - name.width().min(width));
        writeln!(out, "  {name}{pad}  {text}")
    };
    for (a, name) in names.iter().enumerate() {
        let n = shape[a] as usize;
        if t.dims()[a].coord.is_none() || n == 0 {
            continue;
        }
        let label = |i| clean(&t.label(a, i).text());
        match n {
            1 => line(&clean(name), &label(0))?,
            _ => line(&clean(name), &format!("{} … {}", label(0), label(n - 1)))?,
        }
    }
    if !names.is_empty() {
        let join = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
        let grid = t.grid();
        line("chunks", &format!("{} ({})", join(&grid.longest()), join(&grid.counts())))?;
    }
    writeln!(out, "{}", array_to_string(t, o.width))
}

/// Rows in a box; beyond `max_rows` only the first and the last ones; then a line with their number.
pub(super) fn write_rows(
    schema: &Schema,
    batches: &[RecordBatch],
    o: &Options,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let total: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let cut = total > o.max_rows;
    let head = if cut { o.max_rows.div_ceil(2) } else { total };
    let tail = if cut { o.max_rows / 2 } else { 0 };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut first = 0;
    for batch in batches {
        let columns = batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(a, f)| Column::new(a, f))
            .collect::<Result<Vec<_>, _>>()?;
        let n = batch.num_rows();
        // Only shown rows are looked at: a result may have very many.
        let shown = (0..n.min(head.saturating_sub(first)))
            .chain((total - tail).max(head).saturating_sub(first).min(n)..n);
        for r in shown {
            let row = columns
                .iter()
                .map(|c| {
                    Ok(match c.cell(r)? {
                        Cell::Null => "NULL".to_string(),
                        cell => shorten(&clean(&cell.text())),
                    })
                })
                .collect::<Result<Vec<_>, Error>>()?;
            rows.push(row);
        }
        first += n;
    }
    if cut {
        rows.insert(head, vec!["…".to_string(); schema.fields().len()]);
    }
    draw(schema, &rows, out).map_err(output)?;
    let plural = if total == 1 { "" } else { "s" };
    if cut {
        writeln!(out, "({total} row{plural}, {} shown)", head + tail).map_err(output)
    } else {
        writeln!(out, "({total} row{plural})").map_err(output)
    }
}

fn draw(schema: &Schema, rows: &[Vec<String>], out: &mut dyn Write) -> io::Result<()> {
    if schema.fields().is_empty() {
        return Ok(());
    }
    let names: Vec<String> = schema.fields().iter().map(|f| shorten(&clean(f.name()))).collect();
    let widths: Vec<usize> = (0..names.len())
        .map(|c| rows.iter().map(|r| r[c].width()).max().unwrap_or(0).max(names[c].width()))
        .collect();
    let rule = |l: &str, m: &str, r: &str| {
        let parts: Vec<String> = widths.iter().map(|w| "─".repeat(w + 2)).collect();
        format!("{l}{}{r}\n", parts.join(m))
    };
    let line = |cells: &[String]| {
        let mut text = String::from("│");
        for (c, cell) in cells.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.width());
            if is_number(schema.field(c)) {
                text.push_str(&format!(" {pad}{cell} │"));
            } else {
                text.push_str(&format!(" {cell}{pad} │"));
            }
        }
        text.push('\n');
        text
    };
    out.write_all(rule("┌", "┬", "┐").as_bytes())?;
    out.write_all(line(&names).as_bytes())?;
    out.write_all(rule("├", "┼", "┤").as_bytes())?;
    for r in rows {
        out.write_all(line(r).as_bytes())?;
    }
    out.write_all(rule("└", "┴", "┘").as_bytes())
}

/// Text that cannot move the cursor or colour the terminal: data are not to be trusted with that.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// At most `COLUMN_MAX` characters wide, with `…` for what is left out.
fn shorten(text: &str) -> String {
    if text.width() <= COLUMN_MAX {
        return text.to_string();
    }
    let mut out = String::new();
    let mut width = 0;
    for c in text.chars() {
        width += c.width().unwrap_or(0);
        if width >= COLUMN_MAX {
            break;
        }
        out.push(c);
    }
    out + "…"
}
