//! `.tables`, `.functions`, `.shape`, `.chunks`, `.plot`: commands that query the engine and format the answer.

use super::{Shell, Step};
use crate::commands::describable;
use crate::knowledge::{Column, Function, columns, functions};
use crate::plot;
use crate::rows::Rows;
use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use tessera_engine::answer::{Answer, Reply, Tensor};
use tessera_engine::error::Error;
use tessera_engine::readable_bytes;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

impl Shell<'_> {
    /// `.tables PATTERN`
    pub(super) fn tables(&mut self, pattern: &str) -> Result<Step, Error> {
        let mut reply = self.ask("SHOW TENSORS")?;
        if !pattern.is_empty() {
            keep(&mut reply, pattern)?;
        }
        self.write(reply).map(|()| Step::Done)
    }

    /// `.functions PATTERN`: the full description of a function of that name, else a line for each name with the
    /// pattern.
    pub(super) fn functions(&mut self, pattern: &str) -> Result<(), Error> {
        let reply = self.ask("SHOW FUNCTIONS")?;
        let all = Rows::of(&reply.answer).map(|rows| functions(&rows)).unwrap_or_default();
        let pattern = pattern.trim_end_matches("()").to_lowercase();
        let text = match all.iter().find(|f| f.name.to_lowercase() == pattern) {
            Some(f) => card(f),
            None => {
                let found: Vec<&Function> = all
                    .iter()
                    .filter(|f| f.name.to_lowercase().contains(pattern.trim_matches('*')))
                    .collect();
                if found.is_empty() {
                    return Err(no_function(&pattern, &all));
                }
                let fit = self.parts.screen.terminal.then(|| self.parts.screen.width());
                list(&found, fit)
            }
        };
        self.show(&text)
    }

    /// `.shape WHAT`
    pub(super) fn shape(&mut self, what: &str) -> Result<(), Error> {
        let text: String = self.described(what)?.iter().map(shape_line).collect();
        self.show(&text)
    }

    /// `.chunks WHAT`
    pub(super) fn chunks(&mut self, what: &str) -> Result<(), Error> {
        let text: String = self.described(what)?.iter().map(chunks_line).collect();
        self.show(&text)
    }

    /// `.plot WHAT`
    pub(super) fn plot(&mut self, what: &str) -> Result<(), Error> {
        let query = match plot::query(what) {
            Some(query) => query,
            // The single variable of a name or path that can be drawn.
            None => {
                let relation = describable(what);
                let name = plot::Subject::of(&self.columns_of(&relation)?, what)?.name;
                format!("SELECT \"{}\" FROM {relation}", name.replace('"', "\"\""))
            }
        };
        let subject = plot::Subject::of(&self.columns_of(&format!("({query})"))?, what)?;
        let (width, lines) = (self.parts.screen.size)();
        let canvas = plot::Canvas::new(width, lines, self.parts.screen.style);
        let blocks = subject.blocks(&canvas);
        let reply = self.ask(&blocks.sql(&query, &subject))?;
        let Answer::Tensors(tensors) = reply.whole()?.answer else {
            return Err(Error::Internal { what: "blocks of a tensor are not tensors".into() });
        };
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let text = plot::render(&subject, &blocks, &tensors, &canvas)?;
        self.print(&text)
    }

    /// The answer of DESCRIBE.
    fn columns_of(&mut self, relation: &str) -> Result<Vec<Column>, Error> {
        let reply = self.ask(&format!("DESCRIBE {relation}"))?;
        Ok(Rows::of(&reply.answer).map(|rows| columns(&rows)).unwrap_or_default())
    }

    /// The variables and results in the answer of DESCRIBE.
    fn described(&mut self, what: &str) -> Result<Vec<Column>, Error> {
        let mut all = self.columns_of(&describable(what))?;
        if all.iter().any(|c| c.kind == "column") {
            return Err(Error::Usage {
                reason: format!("`{what}` gives rows, which have neither shape nor chunks"),
                hint: Some(format!("`.describe {what}` lists its columns")),
            });
        }
        all.retain(|c| c.kind != "coordinate");
        Ok(all)
    }
}

/// Retains the rows whose first column contains `pattern`.
fn keep(reply: &mut Reply, pattern: &str) -> Result<(), Error> {
    let Answer::Rows { batches, .. } = &mut reply.answer else { return Ok(()) };
    let refused = |source| Error::Rows { source };
    let pattern = pattern.trim_matches(['*', '%']).to_lowercase();
    let mut kept: Vec<RecordBatch> = Vec::new();
    for batch in batches.iter().filter(|b| b.num_columns() > 0) {
        let names = batch.column(0);
        let format = FormatOptions::new();
        let texts = ArrayFormatter::try_new(names, &format).map_err(refused)?;
        let same: BooleanArray = (0..names.len())
            .map(|i| Some(texts.value(i).to_string().to_lowercase().contains(&pattern)))
            .collect();
        kept.push(filter_record_batch(batch, &same).map_err(refused)?);
    }
    *batches = kept;
    Ok(())
}

fn no_function(name: &str, all: &[Function]) -> Error {
    let names: Vec<&str> = all.iter().map(|f| f.name.as_str()).collect();
    let hint = match tessera_engine::nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`.functions` lists them".into(),
    };
    Error::Usage { reason: format!("unknown function `{name}`"), hint: Some(hint) }
}

/// The full description of a function.
fn card(f: &Function) -> String {
    let mut text = format!("{}\n  {}\n\n", f.signature, f.doc);
    for (name, value) in [
        ("types", &f.dtypes),
        ("masks, NaN", &f.missing),
        ("example", &f.example),
        ("NumPy", &f.numpy),
    ] {
        if !value.is_empty() {
            text.push_str(&format!("  {name:10}  {value}\n"));
        }
    }
    text
}

/// A line for each function, cut to `width`.
fn list(found: &[&Function], width: Option<usize>) -> String {
    let names = found.iter().map(|f| f.name.width()).max().unwrap_or(0);
    let mut text = String::new();
    for f in found {
        let line = format!("{:names$}  {}", f.name, f.doc);
        text.push_str(&width.map_or(line.clone(), |w| cut(&line, w)));
        text.push('\n');
    }
    text
}

/// Cuts to `width` characters, with `…` for the rest.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.into();
    }
    let mut used = 0;
    let kept: String = text
        .chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used < width
        })
        .collect();
    kept + "…"
}

/// `t2m  float64 masked [time: 140, lat: 5]  700 cells, 5.5KiB`
fn shape_line(c: &Column) -> String {
    let dims: Vec<String> = c.dims.iter().map(|(d, n)| format!("{d}: {n}")).collect();
    let head = format!("{}  {} [{}]", c.name, c.dtype, dims.join(", "));
    let cells = c.dims.iter().try_fold(1u64, |n, (_, len)| n.checked_mul(*len));
    match cells.and_then(|n| Some((n, n.checked_mul(cell_bytes(&c.dtype))?))) {
        Some((n, bytes)) => {
            let plural = if n == 1 { "" } else { "s" };
            format!("{head}  {} cell{plural}, {}\n", thousands(n), readable_bytes(bytes))
        }
        None => format!("{head}  more cells than there are numbers for\n"),
    }
}

/// `t2m  50 × 3 × 3, 3 × 2 × 2 = 12 chunks of 3.5KiB`
fn chunks_line(c: &Column) -> String {
    let chunks: Vec<u64> = c.chunks.split(", ").filter_map(|n| n.parse().ok()).collect();
    if chunks.len() != c.dims.len() || chunks.is_empty() {
        return format!("{}  one chunk\n", c.name);
    }
    let counts: Vec<u64> =
        c.dims.iter().zip(&chunks).map(|((_, n), chunk)| n.div_ceil((*chunk).max(1))).collect();
    let by = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(" × ");
    let product = |v: &[u64]| v.iter().fold(1u64, |a, b| a.saturating_mul(*b));
    let (total, bytes) = (product(&counts), product(&chunks).saturating_mul(cell_bytes(&c.dtype)));
    let counted = if counts.len() > 1 {
        format!("{} = {}", by(&counts), thousands(total))
    } else {
        thousands(total)
    };
    let plural = if total == 1 { "" } else { "s" };
    format!("{}  {}: {counted} chunk{plural} of {}\n", c.name, by(&chunks), readable_bytes(bytes))
}

/// Bytes of a cell; a mask adds one byte.
fn cell_bytes(dtype: &str) -> u64 {
    let (name, mask) = match dtype.strip_suffix(" masked") {
        Some(name) => (name, 1),
        None => (dtype, 0),
    };
    let size = match name {
        "bool" | "int8" | "uint8" => 1,
        "int16" | "uint16" => 2,
        "int32" | "uint32" | "float32" => 4,
        _ => 8,
    };
    size + mask
}

/// `1,234,567`
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(dims: &[(&str, u64)], chunks: &str) -> Column {
        Column {
            name: "t2m".into(),
            kind: "variable".into(),
            dtype: "float64 masked".into(),
            dims: dims.iter().map(|(d, n)| ((*d).into(), *n)).collect(),
            chunks: chunks.into(),
            attributes: String::new(),
        }
    }

    #[test]
    fn shapes_and_chunks_are_counted() {
        let c = column(&[("time", 140), ("lat", 5)], "50, 3");
        assert_eq!(shape_line(&c), "t2m  float64 masked [time: 140, lat: 5]  700 cells, 6.2 KiB\n");
        assert_eq!(chunks_line(&c), "t2m  50 × 3: 3 × 2 = 6 chunks of 1.3 KiB\n");
        assert_eq!(shape_line(&column(&[], "")), "t2m  float64 masked []  1 cell, 9 B\n");
        assert_eq!(chunks_line(&column(&[], "")), "t2m  one chunk\n");
        let huge = column(&[("a", u64::MAX), ("b", 3)], "1, 1");
        assert!(shape_line(&huge).contains("more cells"));
        assert!(chunks_line(&column(&[("a", 0)], "0")).contains("0 chunks"));
        assert_eq!(thousands(1_234_567), "1,234,567");
    }
}
