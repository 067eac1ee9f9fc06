//! Tables for people: a header and NumPy's print for a tensor, a box for rows.

use super::boxes::{Boxed, clean};
use super::columns::Column;
use super::numpy::array_to_string;
use super::writer::{Options, output};
use crate::answer::{Batches, Cell, Head, Windows};
use crate::error::Error;
use arrow::datatypes::Schema;
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

/// ```text
/// t2m  float32 [time: 2920, lat: 25]  units: K
///   time    2013-01-01T00:00:00 … 2014-12-31T18:00:00
///   lat     75.0 … 15.0
///   chunks  730 × 25 (4 × 1)
/// [[241.2 …
/// ```
pub(super) fn write_tensor(t: &dyn Windows, o: &Options, out: &mut dyn Write) -> Result<(), Error> {
    let values = array_to_string(t, o.width)?;
    write_head(t.head(), out).and_then(|()| writeln!(out, "{values}")).map_err(output)
}

fn write_head(t: Head<'_>, out: &mut dyn Write) -> io::Result<()> {
    let names = t.dim_names();
    let shape = t.shape();
    let dims: Vec<String> =
        names.iter().zip(&shape).map(|(d, n)| format!("{}: {n}", clean(d))).collect();
    write!(out, "{}  {} [{}]", clean(t.name), t.dtype, dims.join(", "))?;
    if let Some(units) = t.attrs.get("units").and_then(|u| u.as_str()) {
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
        let Some(coord) = t.dims[a].coord.as_ref().filter(|_| n > 0) else { continue };
        if let Some(of) = coord.values.unreadable() {
            line(&clean(name), &clean(&format!("labels cannot be read: {}", of.reason)))?;
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
        line("chunks", &format!("{} ({})", join(&t.grid.longest()), join(&t.grid.counts())))?;
    }
    Ok(())
}

/// `total` rows in a box, then a line with their number. Beyond `max_rows` only the first and the last ones are shown.
pub(super) fn write_rows(
    schema: &Schema,
    total: usize,
    batches: Batches<'_>,
    o: &Options,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let cut = total > o.max_rows;
    let head = if cut { o.max_rows.div_ceil(2) } else { total };
    let tail = if cut { o.max_rows / 2 } else { 0 };
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut first = 0;
    for batch in batches {
        let batch = batch?;
        let columns = batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(a, f)| Column::new(a, f))
            .collect::<Result<Vec<_>, _>>()?;
        let n = batch.num_rows();
        // Only shown rows are formatted: a result may have very many.
        let shown = (0..n.min(head.saturating_sub(first)))
            .chain((total - tail).max(head).saturating_sub(first).min(n)..n);
        for r in shown {
            let row = columns
                .iter()
                .map(|c| {
                    Ok(match c.cell(r)? {
                        Cell::Null => "NULL".to_string(),
                        cell => clean(&cell.text()),
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
    let columns = schema.fields().len();
    let width = o.fit.then_some(o.width);
    let drawn = Boxed::new(schema, rows).draw(width, out).map_err(output)?;
    let plural = if total == 1 { "" } else { "s" };
    let mut line = format!("{total} row{plural}");
    if cut {
        line.push_str(&format!(", {} shown", head + tail));
    }
    if drawn < columns {
        line.push_str(&format!("; {columns} columns, {drawn} shown"));
    }
    writeln!(out, "({line})").map_err(output)
}
