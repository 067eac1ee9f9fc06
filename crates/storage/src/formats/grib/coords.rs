//! Coordinates as arrays.

use super::fields::GridAt;
use super::grid::Grid;
use super::places::{Points, Section};
use super::points;
use crate::formats::filters::{Filter, Filters};
use crate::formats::{Cells, FileArray, FileChunks, Place, Unreadable, Why};
use crate::source::cells::Raw;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;

/// Upper bound on the numbers of all coordinates of a file.
const NUMBERS_MAX: u64 = 2 << 20;

pub(super) type Arrays = BTreeMap<String, Result<FileArray, Unreadable>>;

/// Upper bound on the coordinates that may still be computed when a file is opened.
pub(super) struct Budget(u64);

impl Budget {
    pub(super) fn new() -> Budget {
        Budget(NUMBERS_MAX)
    }

    /// True if `n` numbers are within it.
    pub(super) fn take(&mut self, n: u64) -> bool {
        self.0.checked_sub(n).map(|left| self.0 = left).is_some()
    }
}

/// Attributes of pairs of a name and a value.
pub(super) fn attrs<V: Into<Value>>(all: impl IntoIterator<Item = (&'static str, V)>) -> Attrs {
    all.into_iter().map(|(k, v)| (k.to_string(), v.into())).collect()
}

/// An array of `float64` or `int64` cells in memory.
pub(super) fn inline(
    dims: &[(&str, u64)],
    raw: Raw,
    cells: impl Iterator<Item = [u8; 8]>,
    attrs: Attrs,
) -> FileArray {
    FileArray::inline(dims, raw, cells.flatten().collect::<Vec<u8>>(), attrs)
}

/// Attributes of latitudes or longitudes.
fn horizontal(are_longitudes: bool) -> Attrs {
    let (name, units) = match are_longitudes {
        true => ("longitude", "degrees_east"),
        false => ("latitude", "degrees_north"),
    };
    attrs([("units", units), ("standard_name", name), ("long_name", name)])
}

/// Seconds since 1970.
pub(super) fn time(dims: &[(&str, u64)], seconds: &[f64], is_valid: bool) -> FileArray {
    let (standard, long) = match is_valid {
        true => ("time", "time"),
        false => ("forecast_reference_time", "initial time of forecast"),
    };
    let attrs = attrs([
        ("units", "seconds since 1970-01-01T00:00:00"),
        ("calendar", "proleptic_gregorian"),
        ("standard_name", standard),
        ("long_name", long),
    ]);
    let cells = seconds.iter().map(|v| (*v as i64).to_ne_bytes());
    inline(dims, Raw::Plain(DType::Int64), cells, attrs)
}

/// Steps of these seconds, in hours if all are whole ones.
pub(super) fn step(seconds: &[f64]) -> FileArray {
    let unit = span(seconds);
    let each = unit.1;
    let attrs = attrs([
        ("standard_name", "forecast_period"),
        ("long_name", "time since forecast_reference_time"),
    ]);
    let cells = seconds.iter().map(|v| ((*v as i64) / each).to_ne_bytes());
    let raw = Raw::Span { unit: unit.0, count: 1 };
    inline(&[("step", seconds.len() as u64)], raw, cells, attrs)
}

/// The largest unit of time of which all are whole numbers, and its seconds.
pub(super) fn span(seconds: &[f64]) -> (&'static str, i64) {
    let units = [("hours", 3600), ("minutes", 60)];
    let are_whole = |each: &i64| seconds.iter().all(|v| (*v as i64) % each == 0);
    units.into_iter().find(|(_, each)| are_whole(each)).unwrap_or(("seconds", 1))
}

/// Members of an ensemble.
pub(super) fn number(numbers: &[f64]) -> FileArray {
    let attrs = attrs([
        ("units", "1"),
        ("standard_name", "realization"),
        ("long_name", "ensemble member numerical id"),
    ]);
    let cells = numbers.iter().map(|v| (*v as i64).to_ne_bytes());
    let dims = [("number", numbers.len() as u64)];
    inline(&dims, Raw::Plain(DType::Int64), cells, attrs)
}

/// Grids with the same points, and the names of their dimensions.
pub(super) struct Geometry {
    pub(super) grid: Arc<Grid>,
    axes: Option<Result<[Vec<f64>; 2], String>>,
    /// With lengths.
    pub(super) dims: Vec<(String, u64)>,
}

/// Grids that are compared by their points.
const COMPARED_MAX: usize = 64;

/// The different grids of a file.
pub(super) struct Geometries {
    pub(super) list: Vec<Geometry>,
    /// The last number that was added to the names of dimensions, by their names.
    numbers: BTreeMap<&'static str, usize>,
    /// The index in `list` of each grid, or the reason why fields on it cannot be read.
    pub(super) of: Vec<Result<usize, String>>,
}

impl Geometries {
    /// Compares grids, and adds the coordinates of each to `arrays` and to the names in `companions`.
    pub(super) fn new(
        grids: &[GridAt],
        budget: &mut Budget,
        arrays: &mut Arrays,
        companions: &mut Vec<String>,
    ) -> Geometries {
        let mut out = Geometries { list: Vec::new(), numbers: BTreeMap::new(), of: Vec::new() };
        for at in grids {
            let of = match &at.grid {
                Err(why) => Err(why.clone()),
                Ok(grid) => Ok(match out.find(grid) {
                    Some(i) => i,
                    None => out.add(at, grid, budget, arrays, companions),
                }),
            };
            out.of.push(of);
        }
        out
    }

    fn find(&self, grid: &Grid) -> Option<usize> {
        let is = |g: &Geometry| g.grid.kind == grid.kind && g.grid.shape == grid.shape;
        self.list.iter().position(|g| is(g) && g.grid.count == grid.count)
    }

    fn add(
        &mut self,
        at: &GridAt,
        grid: &Grid,
        budget: &mut Budget,
        arrays: &mut Arrays,
        companions: &mut Vec<String>,
    ) -> usize {
        let axes = match budget.take(points::cost(grid)) {
            true => points::axes(grid),
            false => Some(Err(format!("more than {NUMBERS_MAX} coordinates in a file"))),
        };
        // Two editions may define the same points in different words.
        if let Some(Ok(_)) = axes
            && let Some(i) = self.list.iter().take(COMPARED_MAX).position(|g| g.axes == axes)
        {
            return i;
        }
        let names = grid.dims();
        let lens = match grid.shape {
            Some([nx, ny]) => vec![ny, nx],
            None => vec![grid.count],
        };
        // Names that neither another dimension nor another coordinate has.
        let number = self.numbers.entry(names[0]).or_insert(0);
        let suffix = loop {
            *number += 1;
            let suffix = if *number == 1 { String::new() } else { format!("_{number}") };
            let is_used = |name: &str| arrays.contains_key(&format!("{name}{suffix}"));
            if !is_used("latitude") && !is_used("longitude") {
                break suffix;
            }
        };
        let dims: Vec<_> = names.iter().map(|n| format!("{n}{suffix}")).zip(lens).collect();
        let grid = Arc::new(grid.clone());
        let geometry = Geometry { grid, axes, dims };
        geometry.coordinates(at, &suffix, arrays, companions);
        self.list.push(geometry);
        self.list.len() - 1
    }
}

impl Geometry {
    /// Adds latitudes and longitudes.
    fn coordinates(
        &self,
        at: &GridAt,
        suffix: &str,
        arrays: &mut Arrays,
        companions: &mut Vec<String>,
    ) {
        for (i, name) in ["latitude", "longitude"].into_iter().enumerate() {
            let mut attrs = horizontal(i == 1);
            let name = format!("{name}{suffix}");
            let made = match &self.axes {
                Some(Ok(axes)) => {
                    let is_falling = axes[i].first() > axes[i].last();
                    if is_falling {
                        attrs.insert("stored_direction".into(), "decreasing".into());
                    }
                    let cells = axes[i].iter().map(|v| v.to_ne_bytes());
                    let (dim, len) = &self.dims[i];
                    Ok(inline(&[(dim, *len)], Raw::Plain(DType::Float64), cells, attrs))
                }
                Some(Err(why)) => {
                    let (dim, len) = &self.dims[i];
                    let dims = vec![(Some(Arc::from(dim.as_str())), *len)];
                    Err(Unreadable { why: Why::Unsupported(why.clone()), dims, attrs })
                }
                None if points::are_known(&self.grid) => {
                    companions.push(name.clone());
                    Ok(self.computed(at, i == 1, attrs))
                }
                None => continue,
            };
            arrays.insert(name, made);
        }
    }

    /// Latitudes or longitudes of all points, computed when they are read.
    fn computed(&self, at: &GridAt, are_longitudes: bool, attrs: Attrs) -> FileArray {
        let place = Place { offset: at.offset, bytes: at.bytes, skipped: 0 };
        let filter: Arc<dyn Filter> = Arc::new(Points { grid: self.grid.clone(), are_longitudes });
        let shape: tessera_planner::region::Dims = self.dims.iter().map(|d| d.1).collect();
        let dims = self.dims.iter().map(|d| Some(Arc::from(d.0.as_str()))).collect();
        let chunks = FileChunks {
            unit: shape.clone(),
            filters: Filters::new(vec![filter], self.grid.count.saturating_mul(8), 0),
            fill: f64::NAN.to_ne_bytes().into(),
            index: Arc::new(Section(place)),
        };
        FileArray::new(dims, shape, Raw::Plain(DType::Float64), attrs, Cells::Chunks(chunks))
    }

    /// Attributes of arrays on the grid.
    pub(super) fn attrs(&self) -> Attrs {
        self.grid.attrs().into_iter().map(|(k, v)| (k.to_string(), v)).collect()
    }
}

/// A coordinate as an attribute: a whole number if it is one.
pub(super) fn scalar(v: f64) -> Value {
    if v.fract() == 0.0 && v.abs() < 1e15 { json!(v as i64) } else { json!(v) }
}
