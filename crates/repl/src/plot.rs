//! Plots of tensors in the terminal: a line for 1-d, a heat map for 2-d.
//!
//! 1. [`query`] turns user input into a query, or DESCRIBE finds the variable of a name; DESCRIBE of the query returns
//!    the dimensions ([`Subject`]).
//! 2. [`Blocks`] cuts each axis into as many blocks as the [`Canvas`] has places, and queries their means: the fetched
//!    data is as large as the picture, however large the tensor is.
//! 3. [`render`] draws: colours if the terminal has them, else characters from light to dark.
//!
//! A block's mean is over its cells that are neither masked nor NaN. A block of only masked cells stays blank; one
//! whose other cells are all NaN is marked as NaN.

mod axis;
mod colours;
mod heat;
mod line;

use crate::commands::describable;
use crate::knowledge::Column;
use crate::style::{Colours, Style};
use tessera_engine::answer::{Cell, Tensor};
use tessera_engine::error::Error;

/// Upper bound on the width of labels of the vertical axis in characters.
const MARGIN_MAX: usize = 20;

/// The query for the argument of `.plot`: a query as it is, else an item of a SELECT; `None` for a name or path.
pub fn query(what: &str) -> Option<String> {
    let described = describable(what);
    described.strip_prefix('(').and_then(|d| d.strip_suffix(')')).map(String::from)
}

/// The tensor to draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The title above the picture.
    pub title: String,
    /// Its name in the query.
    pub name: String,
    /// Its dimensions, one or two.
    pub dims: Vec<Dim>,
    /// Its unit, or empty.
    pub units: String,
}

/// A dimension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dim {
    /// Its name.
    pub name: String,
    /// Its length.
    pub length: u64,
    /// True if it has a coordinate.
    pub labelled: bool,
}

impl Subject {
    /// From DESCRIBE's columns for the query of `what`.
    ///
    /// # Errors
    /// `usage`: rows, several tensors, one without cells, of another rank or of a type that is not a number.
    pub fn of(all: &[Column], what: &str) -> Result<Subject, Error> {
        let usage =
            |reason: String, hint: &str| Err(Error::Usage { reason, hint: Some(hint.into()) });
        if all.iter().any(|c| c.kind == "column") {
            return usage(
                "`.plot` draws tensors, and this query gives rows".into(),
                "ask for a tensor: `.plot mean(x, axis => 'time') FROM …`",
            );
        }
        let results: Vec<&Column> = all.iter().filter(|c| c.kind != "coordinate").collect();
        let drawable: Vec<&&Column> =
            results.iter().filter(|c| (1..=2).contains(&c.dims.len())).collect();
        let one = match (&results[..], &drawable[..]) {
            ([one], _) => one,
            (_, [one]) => **one,
            ([], _) => {
                return usage(
                    format!("`{what}` has nothing to draw"),
                    "`.describe` lists what it has",
                );
            }
            _ => {
                let names: Vec<&str> = results.iter().map(|c| c.name.as_str()).collect();
                return usage(
                    format!(
                        "`.plot` draws one tensor, and here are {}: {}",
                        results.len(),
                        names.join(", ")
                    ),
                    "name one: `.plot NAME FROM …`",
                );
            }
        };
        let dims: Vec<String> = one.dims.iter().map(|(d, n)| format!("{d}: {n}")).collect();
        match one.dims.len() {
            0 => {
                return usage(
                    format!("`{}` is one value", one.name),
                    "`.plot` draws what has one or two dimensions",
                );
            }
            1 | 2 => {}
            n => {
                return usage(
                    format!(
                        "`{}` has {n} dimensions [{}], and `.plot` draws one or two",
                        one.name,
                        dims.join(", ")
                    ),
                    &format!(
                        "take a slice or a mean: `.plot {}[{} => …] FROM …`, `.plot mean({}, axis => '{}') FROM …`",
                        one.name, one.dims[0].0, one.name, one.dims[0].0
                    ),
                );
            }
        }
        if one.dims.iter().any(|(_, n)| *n == 0) {
            return usage(
                format!("`{}` [{}] has no cells", one.name, dims.join(", ")),
                "there is nothing to draw",
            );
        }
        let dtype = one.dtype.trim_end_matches(" masked");
        if !["bool", "int", "uint", "float"].iter().any(|t| dtype.starts_with(t)) {
            return usage(
                format!("`{}` is of {dtype}", one.name),
                "`.plot` draws numbers and truth values",
            );
        }
        let labelled = |d: &str| {
            all.iter().any(|c| {
                c.kind == "coordinate" && c.name == d && c.dims.len() == 1 && c.dims[0].0 == d
            })
        };
        let units =
            one.attributes.split("; ").find_map(|a| a.strip_prefix("units: ")).unwrap_or_default();
        // An unnamed result has its text as title.
        let unnamed = one.name.strip_prefix('v').is_some_and(|n| n.parse::<usize>().is_ok());
        let typed = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let item = typed.to_ascii_uppercase().find(" FROM ").map_or(&typed[..], |at| &typed[..at]);
        let title = if unnamed && what != one.name { item.to_string() } else { one.name.clone() };
        Ok(Subject {
            title,
            name: one.name.clone(),
            dims: one
                .dims
                .iter()
                .map(|(d, n)| Dim { name: d.clone(), length: *n, labelled: labelled(d) })
                .collect(),
            units: units.into(),
        })
    }

    /// The blocks for the places of a canvas.
    pub fn blocks(&self, canvas: &Canvas) -> Blocks {
        let places: Vec<usize> = match self.dims.len() {
            1 => vec![canvas.points()],
            _ => vec![canvas.pixels().1, canvas.pixels().0],
        };
        let factor = |(d, n): (&Dim, usize)| d.length.div_ceil(n.max(1) as u64).max(1);
        Blocks { factors: self.dims.iter().zip(places).map(factor).collect() }
    }
}

/// The partition of each axis into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// Cells of a block along each axis; the last block may have fewer.
    pub factors: Vec<u64>,
}

impl Blocks {
    /// The query for the blocks of `subject`, the result of `query`: `value`, the mean; `n`, the cells that are not
    /// masked; for a line also `low` and `high`; and the first label of each block.
    pub fn sql(&self, query: &str, subject: &Subject) -> String {
        let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let lengths: Vec<u64> = subject.dims.iter().map(|d| d.length).collect();
        let counts: Vec<u64> =
            lengths.iter().zip(&self.factors).map(|(n, f)| n.div_ceil(*f)).collect();
        let list = |v: &[u64]| v.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let x = format!("{}::float64", quoted(&subject.name));
        let mut items = Vec::new();
        if self.factors.iter().all(|f| *f == 1) {
            items.push(format!("{x} AS value"));
        } else {
            // The last block is padded with masked cells, which reductions skip.
            let mut whole = format!("reshape({x}, [{}])", list(&lengths));
            let mut shape = lengths.clone();
            for axis in 0..lengths.len() {
                let missing = counts[axis] * self.factors[axis] - lengths[axis];
                if missing > 0 {
                    let mut hole = shape.clone();
                    hole[axis] = missing;
                    whole = format!(
                        "concat([{whole}, where(zeros([{}]) > 0, 0.0, NULL)], axis => {axis})",
                        list(&hole)
                    );
                    shape[axis] += missing;
                }
            }
            let cut: Vec<u64> =
                counts.iter().zip(&self.factors).flat_map(|(n, f)| [*n, *f]).collect();
            let whole = format!("reshape({whole}, [{}])", list(&cut));
            let axes = if lengths.len() == 1 { "1" } else { "[1, 3]" };
            items.push(format!("mean({whole}, axis => {axes}, skipna => true) AS value"));
            items.push(format!("count({whole}, axis => {axes}) AS n"));
            if lengths.len() == 1 {
                items.push(format!("nanmin({whole}, axis => 1) AS low"));
                items.push(format!("nanmax({whole}, axis => 1) AS high"));
            }
        }
        for (i, (d, f)) in subject.dims.iter().zip(&self.factors).enumerate() {
            if d.labelled {
                items.push(format!("{}[::{f}] AS l{i}", quoted(&d.name)));
            }
        }
        format!("SELECT {} FROM ({query})", items.join(", "))
    }
}

/// The space for a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canvas {
    /// Width for cells in characters, without labels.
    pub width: usize,
    /// Lines for cells.
    pub height: usize,
    /// The capabilities of the terminal.
    pub style: Style,
}

impl Canvas {
    /// For a screen of `width` characters and `lines` lines.
    pub fn new(width: usize, lines: usize, style: Style) -> Canvas {
        Canvas {
            width: width.saturating_sub(MARGIN_MAX).clamp(10, 160),
            // Reserves lines for title, axis, labels, colours, prompt.
            height: lines.saturating_sub(6).clamp(5, 40),
            style,
        }
    }

    /// Cells of a heat map: with colours a character holds two, one above the other.
    fn pixels(&self) -> (usize, usize) {
        let two = self.halves();
        (self.width, if two { 2 * self.height } else { self.height })
    }

    fn halves(&self) -> bool {
        self.style.colours != Colours::None && self.style.unicode
    }

    /// Points of a line: a braille character holds two side by side.
    fn points(&self) -> usize {
        if self.style.unicode { 2 * self.width } else { self.width }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Block {
    Value(f64),
    Nan,
    Masked,
}

/// Draws the picture.
///
/// # Errors
/// `internal`: the answer is not that of [`Blocks::sql`].
pub fn render(
    subject: &Subject,
    blocks: &Blocks,
    tensors: &[&Tensor],
    canvas: &Canvas,
) -> Result<String, Error> {
    let of = |name: &str| tensors.iter().find(|t| t.name() == name);
    let value =
        of("value").ok_or_else(|| Error::Internal { what: "a plot has no values".into() })?;
    let number = |t: &Tensor, i: usize| match t.cell(i) {
        Cell::F64(v) => Some(v),
        Cell::F32(v) => Some(v.into()),
        Cell::Int(v) => Some(v as f64),
        _ => None,
    };
    let counted = of("n");
    let cells: Vec<Block> = (0..value.len())
        .map(|i| match number(value, i) {
            Some(v) if !v.is_nan() => Block::Value(v),
            Some(_) => Block::Nan,
            // No mean: all cells that are not masked were NaN.
            None => match counted.and_then(|n| number(n, i)) {
                Some(n) if n > 0.0 => Block::Nan,
                _ => Block::Masked,
            },
        })
        .collect();
    let axes: Vec<axis::Axis> = subject
        .dims
        .iter()
        .enumerate()
        .map(|(i, d)| axis::Axis::new(d, blocks.factors[i], of(&format!("l{i}")).copied()))
        .collect();
    let title = title(subject, blocks, canvas);
    let body = match &axes[..] {
        [x] => {
            let range = |name: &str| -> Vec<Option<f64>> {
                of(name).map(|t| (0..t.len()).map(|i| number(t, i)).collect()).unwrap_or_default()
            };
            line::draw(&cells, &range("low"), &range("high"), x, canvas)
        }
        [y, x] => heat::draw(&cells, y, x, &subject.units, canvas),
        _ => return Err(Error::Internal { what: "a plot has one or two axes".into() }),
    };
    Ok(format!("{title}\n{body}"))
}

/// `t2m [K]  time × lat, means of 4 × 2 cells`
fn title(subject: &Subject, blocks: &Blocks, canvas: &Canvas) -> String {
    let name = canvas.style.paint("1", &axis::cut(&subject.title, canvas.width / 2));
    let units =
        if subject.units.is_empty() { String::new() } else { format!(" [{}]", subject.units) };
    let dims: Vec<String> =
        subject.dims.iter().map(|d| format!("{}: {}", d.name, d.length)).collect();
    let mut text = format!("{name}{units}  {}", dims.join(" × "));
    if blocks.factors.iter().any(|f| *f > 1) {
        let by: Vec<String> = blocks.factors.iter().map(u64::to_string).collect();
        text.push_str(&format!(", means of {} cells", by.join(" × ")));
        if subject.dims.len() == 1 {
            text.push_str(" between least and greatest");
        }
    }
    text
}

#[cfg(test)]
mod tests;
