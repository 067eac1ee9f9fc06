//! Cubes of fields: one array for each parameter, type of level, statistic and grid.
//!
//! ```text
//!   fields of one key ─▶ values along number, time, step, level ─▶ axes of more than one value ─▶ a place for each
//! ```

use super::coords::{self, Arrays, Budget, Geometries};
use super::decode::Decoder;
use super::fields::{Field, Fields, Kind, Parameter};
use super::levels::Level;
use super::names::{self, Name};
use super::places::Places;
use super::source;
use crate::formats::filters::{Filter, Filters};
use crate::formats::view::Fault;
use crate::formats::{Cells, FileArray, FileChunks, Group, Place, Unreadable, Why};
use crate::source::cells::Raw;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_planner::catalog::{Attrs, float};
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::region::Dims;
use tessera_planner::time::format_micros;

/// Upper bound on the arrays of a file.
const ARRAYS_MAX: usize = 4096;

/// Upper bound on the different grids with the points of one array.
const GRIDS_MAX: usize = 32;

/// Fields of one array with the same coordinates that become arrays of their own.
const COPIES_MAX: usize = 8;

/// Fields with the same key form one array.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    variable: String,
    level: (&'static str, [u8; 2]),
    step_type: &'static str,
    kind: Kind,
    is_member: bool,
    /// Of a geometry; the reason why fields cannot be read.
    grid: Result<usize, String>,
}

/// Fields that are one array.
struct Cube<'a> {
    key: Key,
    name: String,
    names: &'a Name,
    fields: Vec<&'a Field>,
}

/// An axis of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Axis {
    Number,
    Time,
    Step,
    Level,
}

const AXES: [Axis; 4] = [Axis::Number, Axis::Time, Axis::Step, Axis::Level];

impl Axis {
    fn of(self, field: &Field) -> f64 {
        match self {
            Axis::Number => field.product.number.unwrap_or(0) as f64,
            Axis::Time => field.product.time as f64,
            Axis::Step => field.product.step as f64,
            Axis::Level => field.product.level.value,
        }
    }
}

/// The values of dimensions by their names.
type Values = BTreeMap<String, Labels>;

/// The values of a dimension, as they are labelled.
#[derive(Default)]
struct Labels {
    sorted: Vec<f64>,
    /// Positions by the bits of values.
    at: BTreeMap<u64, u64>,
}

impl Labels {
    fn sort(&mut self, is_falling: bool) {
        let all = &mut self.sorted;
        all.sort_by(|a, b| if is_falling { b.total_cmp(a) } else { a.total_cmp(b) });
        all.dedup();
        self.at = (0..).zip(all).map(|(i, v)| (v.to_bits(), i)).collect();
    }
}

/// The arrays of a file.
pub(super) fn group(fields: &Fields) -> Result<Group, Fault> {
    if fields.grids.len() > ARRAYS_MAX {
        return Err(Fault::unsupported(format!("GRIB of more than {ARRAYS_MAX} grids")));
    }
    let mut out = Group { attrs: source::attrs(fields), ..Group::default() };
    let (mut budget, mut companions) = (Budget::new(), Vec::new());
    let geometries = Geometries::new(&fields.grids, &mut budget, &mut out.arrays, &mut companions);
    let named = Named::of(fields);
    let mut cubes = cubes(fields, &geometries, &named);
    split_copies(&mut cubes);
    if cubes.len() + out.arrays.len() > ARRAYS_MAX {
        return Err(Fault::unsupported(format!("GRIB of more than {ARRAYS_MAX} arrays")));
    }
    let mut values = Values::new();
    for cube in cubes.iter().filter(|c| c.key.grid.is_ok()) {
        for (dim, some) in cube.axes() {
            values.entry(dim).or_default().sorted.extend(some);
        }
    }
    for (dim, labels) in &mut values {
        labels.sort(matches!(dim.as_str(), "isobaricInhPa" | "isobaricInPa"));
    }
    let reserved = reserved(&values, &out.arrays);
    give_names(&mut cubes, &reserved);
    labels(&cubes, &values, &mut budget, &mut out.arrays, &mut companions);
    for cube in &cubes {
        let made = match &cube.key.grid {
            Ok(i) => cube.array(&geometries, *i, &values, fields),
            Err(why) => Err(cube.unreadable(Why::Unsupported(why.clone()))),
        };
        out.arrays.insert(cube.name.clone(), made);
    }
    if !companions.is_empty() {
        out.attrs.insert("coordinates".into(), companions.join(" ").into());
    }
    Ok(out)
}

/// The names of the parameters of a file.
struct Named {
    list: Vec<Name>,
    /// The index in `list` of each field.
    of: Vec<usize>,
}

impl Named {
    fn of(fields: &Fields) -> Named {
        type Codes = (Parameter, [u8; 2], [Option<u64>; 2], u8);
        let mut known: BTreeMap<Codes, usize> = BTreeMap::new();
        let mut out = Named { list: Vec::new(), of: Vec::new() };
        for field in &fields.list {
            let product = &field.product;
            let surfaces = product.level.surfaces.map(|v| v.map(f64::to_bits));
            let codes = (product.parameter, product.level.types, surfaces, product.statistic);
            let i = *known.entry(codes).or_insert_with(|| {
                out.list.push(names::name(product));
                out.list.len() - 1
            });
            out.of.push(i);
        }
        out
    }
}

fn cubes<'a>(fields: &'a Fields, geometries: &Geometries, named: &'a Named) -> Vec<Cube<'a>> {
    let mut out: BTreeMap<Key, Cube<'a>> = BTreeMap::new();
    for (field, name) in fields.list.iter().zip(&named.of) {
        let names = &named.list[*name];
        let product = &field.product;
        let grid = match &field.refused {
            Some(why) => Err(why.clone()),
            None => geometries.of[field.grid].clone(),
        };
        let key = Key {
            variable: names.variable.clone(),
            level: product.level.kind(),
            step_type: product.step_type,
            kind: product.kind.clone(),
            is_member: product.number.is_some(),
            grid,
        };
        out.entry(key)
            .or_insert_with_key(|key| Cube {
                key: key.clone(),
                name: String::new(),
                names,
                fields: Vec::new(),
            })
            .fields
            .push(field);
    }
    out.into_values().collect()
}

/// Moves fields with the same coordinates as one before them to cubes of their own.
fn split_copies(cubes: &mut Vec<Cube<'_>>) {
    let mut more = Vec::new();
    for cube in cubes.iter_mut().filter(|c| c.key.grid.is_ok()) {
        let mut seen: BTreeMap<[u64; 4], usize> = BTreeMap::new();
        let mut copies: Vec<Vec<&Field>> = Vec::new();
        cube.fields.retain(|field| {
            let at = AXES.map(|axis| axis.of(field).to_bits());
            let copy = *seen.entry(at).and_modify(|n| *n += 1).or_insert(0);
            let Some(i) = copy.checked_sub(1) else { return true };
            let i = i.min(COPIES_MAX - 1);
            if copies.len() <= i {
                copies.resize_with(i + 1, Vec::new);
            }
            copies[i].push(field);
            false
        });
        for (i, fields) in copies.into_iter().enumerate().filter(|(_, f)| !f.is_empty()) {
            let mut key = cube.key.clone();
            if i + 1 >= COPIES_MAX {
                let n = fields.len();
                key.grid = Err(format!("{n} more messages with the same time, step and level"));
            }
            more.push(Cube { key, name: String::new(), names: cube.names, fields });
        }
    }
    cubes.extend(more);
}

/// Names that no array of fields may have.
fn reserved(values: &Values, arrays: &Arrays) -> BTreeSet<String> {
    let own = ["number", "time", "step", "valid_time", "x", "y", "values"];
    let all = own.iter().map(|n| n.to_string());
    all.chain(values.keys().cloned()).chain(arrays.keys().cloned()).collect()
}

/// Names arrays by their parameters, and by more where these are the same.
fn give_names(cubes: &mut [Cube<'_>], reserved: &BTreeSet<String>) {
    for cube in cubes.iter_mut() {
        cube.name = cube.key.variable.clone();
    }
    let suffixes: [fn(&Cube<'_>) -> String; 4] = [
        |cube| cube.level().title(),
        |cube| cube.key.step_type.into(),
        |cube| kind(&cube.key.kind),
        |cube| if cube.key.is_member { "members".into() } else { String::new() },
    ];
    for suffix in suffixes {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, cube) in cubes.iter().enumerate() {
            groups.entry(cube.name.clone()).or_default().push(i);
        }
        for members in groups.into_values() {
            let of: Vec<String> = members.iter().map(|i| suffix(&cubes[*i])).collect();
            if of.iter().all(|s| *s == of[0]) {
                continue;
            }
            for (i, suffix) in members.iter().zip(of).filter(|(_, s)| !s.is_empty()) {
                cubes[*i].name = format!("{}_{suffix}", cubes[*i].name);
            }
        }
    }
    let mut used = reserved.clone();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for cube in cubes {
        let base = cube.name.clone();
        while used.contains(&cube.name) {
            let count = counts.entry(base.clone()).or_insert(1);
            *count += 1;
            cube.name = format!("{base}_{count}");
        }
        used.insert(cube.name.clone());
    }
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Plain => String::new(),
        Kind::Derived(code) => match code {
            0 => "mean".into(),
            2 => "std".into(),
            4 => "spread".into(),
            8 => "min".into(),
            9 => "max".into(),
            n => format!("derived{n}"),
        },
        Kind::Percentile(n) => format!("p{n}"),
        Kind::Spatial(n) => format!("spatial{n}"),
        Kind::Probability(code, limits) => {
            let limits = limits.iter().flatten().map(|l| l.replace('-', "m").replace('.', "p"));
            std::iter::once(format!("prob{code}")).chain(limits).collect::<Vec<_>>().join("_")
        }
    }
}

/// Adds the labels of dimensions.
fn labels(
    cubes: &[Cube<'_>],
    values: &Values,
    budget: &mut Budget,
    arrays: &mut Arrays,
    companions: &mut Vec<String>,
) {
    let levels = cubes.iter().map(Cube::level).map(|l| (l.title(), l));
    let levels: BTreeMap<String, Level> = levels.collect();
    for (dim, Labels { sorted: values, .. }) in values {
        let array = match dim.as_str() {
            "number" => coords::number(values),
            "time" => coords::time(&[("time", values.len() as u64)], values, false),
            "step" => coords::step(values),
            _ => {
                let attrs = levels.get(dim).map(Level::attrs).unwrap_or_default();
                let cells = values.iter().map(|v| v.to_ne_bytes());
                let dims = [(dim.as_str(), values.len() as u64)];
                coords::inline(&dims, Raw::Plain(DType::Float64), cells, attrs)
            }
        };
        arrays.insert(dim.clone(), Ok(array));
    }
    let single = |axis: Axis| {
        let mut all = cubes.iter().flat_map(|c| &c.fields).map(|f| axis.of(f));
        let first = all.next()?;
        all.all(|v| v == first).then_some(first)
    };
    let axis = |dim: &'static str, axis: Axis| match values.get(dim) {
        Some(values) => Some((Some(dim), values.sorted.clone())),
        None => single(axis).map(|v| (None, vec![v])),
    };
    let (time, step) = (axis("time", Axis::Time), axis("step", Axis::Step));
    let (Some((time, times)), Some((step, steps))) = (time, step) else { return };
    let both = [(time, times.len() as u64), (step, steps.len() as u64)];
    let dims: Vec<(&str, u64)> = both.iter().filter_map(|(d, n)| Some(((*d)?, *n))).collect();
    if dims.is_empty() || !budget.take(both[0].1.saturating_mul(both[1].1)) {
        return;
    }
    let valid: Vec<f64> = times.iter().flat_map(|t| steps.iter().map(move |s| t + s)).collect();
    arrays.insert("valid_time".into(), Ok(coords::time(&dims, &valid, true)));
    companions.push("valid_time".into());
}

impl Cube<'_> {
    fn level(&self) -> Level {
        self.fields.first().map_or(Level::NONE, |f| f.product.level)
    }

    fn dim(&self, axis: Axis) -> String {
        match axis {
            Axis::Number => "number".into(),
            Axis::Time => "time".into(),
            Axis::Step => "step".into(),
            Axis::Level => self.level().title(),
        }
    }

    /// The axes with more than one value, and the values.
    fn axes(&self) -> Vec<(String, Vec<f64>)> {
        let all = AXES.into_iter().map(|axis| {
            let mut values: Vec<f64> = self.fields.iter().map(|f| axis.of(f)).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            (self.dim(axis), values)
        });
        all.filter(|(_, values)| values.len() > 1).collect()
    }

    fn unreadable(&self, why: Why) -> Unreadable {
        Unreadable { why, dims: Vec::new(), attrs: self.attrs() }
    }

    fn array(
        &self,
        geometries: &Geometries,
        geometry: usize,
        values: &Values,
        fields: &Fields,
    ) -> Result<FileArray, Unreadable> {
        let geometry = &geometries.list[geometry];
        let dims: Vec<Axis> = {
            let own: Vec<String> = self.axes().into_iter().map(|(dim, _)| dim).collect();
            AXES.into_iter().filter(|a| own.contains(&self.dim(*a))).collect()
        };
        let along: Vec<&Labels> = dims.iter().filter_map(|a| values.get(&self.dim(*a))).collect();
        let lens: Dims = along.iter().map(|l| l.sorted.len() as u64).collect();
        let mut grids: Vec<usize> = self.fields.iter().map(|f| f.grid).collect();
        grids.sort_unstable();
        grids.dedup();
        if grids.len() > GRIDS_MAX {
            let why = format!("more than {GRIDS_MAX} definitions of one grid");
            return Err(self.unreadable(Why::Unsupported(why)));
        }
        let mut list = Vec::with_capacity(self.fields.len());
        for field in &self.fields {
            let position = |(axis, labels): (&Axis, &&Labels)| {
                labels.at.get(&axis.of(field).to_bits()).copied().unwrap_or(0)
            };
            let at: Dims = dims.iter().zip(&along).map(position).collect();
            let index = Places::index(&lens, &at)
                .ok_or_else(|| self.unreadable(Why::Bad("more than 2^64 fields".into())))?;
            let of = grids.binary_search(&field.grid).unwrap_or(0);
            // All codecs but that of its grid were not applied.
            let skipped = if grids.len() > 1 { !(1 << of) } else { 0 };
            list.push((index, Place { offset: field.offset, bytes: field.bytes, skipped }));
        }
        list.sort_by_key(|(index, _)| *index);
        let filters = grids.iter().filter_map(|i| {
            let at = fields.grids.get(*i)?;
            let decoder = Decoder::new(at.edition, at.grid.as_ref().ok()?);
            Some(Arc::new(decoder) as Arc<dyn Filter>)
        });
        let bytes = geometry.grid.count.saturating_mul(4);
        let filters = Filters::new(filters.collect(), bytes, 0);
        let (mut shape, mut unit) = (lens.clone(), lens.iter().map(|_| 1).collect::<Dims>());
        let mut names: Vec<Option<Arc<str>>> =
            dims.iter().map(|a| Some(Arc::from(self.dim(*a)))).collect();
        for (name, len) in &geometry.dims {
            shape.push(*len);
            unit.push(*len);
            names.push(Some(Arc::from(name.as_str())));
        }
        let mut attrs = self.attrs();
        attrs.extend(geometry.attrs());
        self.scalars(&dims, &mut attrs);
        // The mark of missing points.
        attrs.insert("_FillValue".into(), float(f64::NAN));
        let index = Arc::new(Places { lens, list });
        let fill = f32::NAN.to_ne_bytes().into();
        let cells = Cells::Chunks(FileChunks { unit, filters, fill, index });
        Ok(FileArray::new(names, shape, Raw::Plain(DType::Float32), attrs, cells))
    }

    /// Coordinates that are no dimensions.
    fn scalars(&self, dims: &[Axis], attrs: &mut Attrs) {
        let Some(field) = self.fields.first() else { return };
        let moment = |seconds: i64| {
            json!(format_micros(seconds.saturating_mul(1_000_000), Calendar::Standard))
        };
        let product = &field.product;
        let mut put = |name: &str, v: Value| attrs.insert(name.into(), v);
        let is_single = |axis| !dims.contains(&axis);
        if let Some(number) = product.number.filter(|_| is_single(Axis::Number)) {
            put("number", json!(number));
        }
        if is_single(Axis::Time) {
            put("time", moment(product.time));
        }
        if is_single(Axis::Step) {
            let (unit, each) = coords::span(&[product.step as f64]);
            put("step", json!(format!("{} {unit}", product.step / each)));
        }
        if is_single(Axis::Time) && is_single(Axis::Step) {
            put("valid_time", moment(product.time.saturating_add(product.step)));
        }
        if is_single(Axis::Level) && product.level.types != [255; 2] {
            put(&product.level.title(), coords::scalar(product.level.value));
        }
    }

    /// Attributes of the parameter.
    fn attrs(&self) -> Attrs {
        let names = self.names;
        let mut out = Attrs::new();
        let mut put = |name: &str, v: Value| out.insert(name.into(), v);
        put("units", names.units.into());
        put("long_name", names.long.clone().into());
        if !names.standard.is_empty() {
            put("standard_name", names.standard.into());
            put("GRIB_cfName", names.standard.into());
        }
        if let Some(id) = names.id {
            put("GRIB_paramId", id.into());
        }
        put("GRIB_shortName", names.short.clone().into());
        put("GRIB_cfVarName", names.variable.clone().into());
        put("GRIB_name", names.long.clone().into());
        put("GRIB_units", names.units.into());
        put("GRIB_stepType", self.key.step_type.into());
        let Some(product) = self.fields.first().map(|f| &f.product) else { return out };
        if product.level.types != [255; 2] {
            put("GRIB_typeOfLevel", product.level.title().into());
        }
        let data_type = product.data_type;
        let is_same = self.fields.iter().all(|f| f.product.data_type == data_type);
        if is_same && !data_type.is_empty() {
            put("GRIB_dataType", data_type.into());
        }
        if product.members > 0 {
            put("GRIB_totalNumber", product.members.into());
        }
        let Parameter { edition, codes: [a, b, c], .. } = product.parameter;
        match edition {
            1 => {
                put("GRIB_table2Version", a.into());
                put("GRIB_indicatorOfParameter", c.into());
            }
            _ => {
                put("GRIB_discipline", a.into());
                put("GRIB_parameterCategory", b.into());
                put("GRIB_parameterNumber", c.into());
            }
        }
        match &product.kind {
            Kind::Plain => {}
            Kind::Derived(code) => drop(put("GRIB_derivedForecast", (*code).into())),
            Kind::Percentile(n) => drop(put("GRIB_percentileValue", (*n).into())),
            Kind::Spatial(code) => drop(put("GRIB_statisticalProcess", (*code).into())),
            Kind::Probability(code, [lower, upper]) => {
                put("GRIB_probabilityType", (*code).into());
                for (name, limit) in [("GRIB_lowerLimit", lower), ("GRIB_upperLimit", upper)] {
                    if let Some(limit) = limit {
                        put(name, limit.clone().into());
                    }
                }
            }
        }
        out
    }
}
