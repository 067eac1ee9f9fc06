//! Datasets of several files become one: xarray's `combine_by_coords` and `combine_nested`.

use super::grid::grid;
use super::index::{Index, order_of, turn};
use super::kind::Kind;
use super::labels::{
    add_missing, are_same, check_spans, compare, first_difference, index_coords, is_in_order,
    join_texts, joined, label_by_scalar, lengths, names, shown,
};
use crate::source::Opened;
use crate::source::coords::native_bytes;
use crate::source::error::SourceError;
use crate::source::joined::{Joined, Part as JoinedPart, PartCells};
use crate::source::location::{Combine, Options};
use crate::source::reader::{ArrayReader, Layout};
use crate::source::versions::digest;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tessera_planner::catalog::{Coord, Dataset, SourceRef, Variable};
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;
use tessera_planner::scalar::Scalar;

/// One file.
pub(super) struct Part {
    /// Its URL, in messages.
    pub(super) name: String,
    pub(super) opened: Opened,
}

/// Combines the datasets of the files of `url`.
pub(super) fn combine(
    url: &str,
    mut parts: Vec<Part>,
    options: &Options,
) -> Result<Opened, SourceError> {
    check_spans(&parts)?;
    let has_scalars = parts.len() > 1 && parts.iter().all(|p| p.opened.label.is_some());
    if let (Some(dim), true) = (&options.concat, has_scalars) {
        parts.iter_mut().for_each(|p| label_by_scalar(&mut p.opened, dim));
    }
    let job = Job { url, options, tolerance: options.tolerance.unwrap_or(0.0), has_scalars };
    let out = match (&options.concat, options.combine) {
        _ if parts.len() == 1 => parts.remove(0).opened,
        (Some(dim), Combine::Nested) => job.join(parts, dim)?,
        (None, Combine::Nested) => {
            return Err(job.fault(
                "`combine => 'nested'` joins the files in their order, and needs `concat => 'dim'`",
            ));
        }
        (Some(dim), Combine::ByCoords) => {
            let parts = job.sorted(parts, dim)?;
            job.join(parts, dim)?
        }
        (None, Combine::ByCoords) => {
            let dims = job.differing(&parts)?;
            job.hypercube(parts, &dims)?
        }
    };
    Ok(out)
}

struct Job<'a> {
    url: &'a str,
    options: &'a Options,
    tolerance: f64,
    /// True if each file has a scalar as its label along the dimension, which no array has.
    has_scalars: bool,
}

impl Job<'_> {
    fn fault(&self, reason: impl Into<String>) -> SourceError {
        SourceError::Combine { reason: reason.into() }
    }

    /// The dimensions whose labels, or lengths, are not the same in all files.
    fn differing(&self, parts: &[Part]) -> Result<Vec<String>, SourceError> {
        let mut dims = BTreeSet::new();
        let first = &parts[0];
        for part in &parts[1..] {
            for coord in index_coords(&part.opened.dataset) {
                let known = first.opened.dataset.index_coord(&coord.dim);
                let is_same =
                    known.is_none_or(|k| are_same(&k.values, &coord.values, self.tolerance));
                if !is_same {
                    dims.insert(coord.dim.to_string());
                }
            }
        }
        let known = lengths(&first.opened.dataset);
        for part in &parts[1..] {
            for (dim, len) in lengths(&part.opened.dataset) {
                if known.get(&dim).is_some_and(|k| *k != len) && !dims.contains(&dim) {
                    return Err(self.fault(format!(
                        "dimension `{dim}`, which has no labels, has length {} in `{}` and {len} in `{}`; write \
                         `concat => '{dim}'` to join them in the order of their names",
                        known[&dim], first.name, part.name
                    )));
                }
            }
        }
        Ok(dims.into_iter().collect())
    }

    /// Joins files that form a box of blocks: each has its place along each of the dimensions.
    fn hypercube(&self, mut parts: Vec<Part>, dims: &[String]) -> Result<Opened, SourceError> {
        if dims.is_empty() {
            return self.merge(parts);
        }
        // The innermost dimension is joined first, in each group of files that have the same place along the others.
        for (i, dim) in dims.iter().enumerate().rev() {
            let others = &dims[..i];
            let mut groups: Vec<Vec<Part>> = Vec::new();
            for part in parts {
                let same = |group: &&mut Vec<Part>| {
                    others.iter().all(|d| self.is_same_along(&group[0], &part, d))
                };
                match groups.iter_mut().find(same) {
                    Some(group) => group.push(part),
                    None => groups.push(vec![part]),
                }
            }
            let sorted = groups.into_iter().map(|group| self.sorted(group, dim));
            let groups = sorted.collect::<Result<Vec<_>, _>>()?;
            self.check_groups(&groups, dim, others)?;
            parts = Vec::with_capacity(groups.len());
            for mut group in groups {
                let name = group[0].name.clone();
                let opened = match group.len() {
                    1 => group.remove(0).opened,
                    _ => self.join(group, dim)?,
                };
                parts.push(Part { name, opened });
            }
        }
        match parts.pop() {
            Some(only) if parts.is_empty() => Ok(only.opened),
            _ => Err(self.fault("no file found")),
        }
    }

    fn is_same_along(&self, a: &Part, b: &Part, dim: &str) -> bool {
        let coord = |p: &Part| p.opened.dataset.index_coord(dim).cloned();
        match (coord(a), coord(b)) {
            (Some(a), Some(b)) => are_same(&a.values, &b.values, self.tolerance),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Checks that all groups of files have the same blocks along `dim`, in the same order: a file that is missing
    /// would be a hole.
    fn check_groups(
        &self,
        groups: &[Vec<Part>],
        dim: &str,
        others: &[String],
    ) -> Result<(), SourceError> {
        let Some(largest) = groups.iter().max_by_key(|g| g.len()) else { return Ok(()) };
        for group in groups {
            let is_other = |(i, p): &(usize, &Part)| {
                group.get(*i).is_none_or(|other| !self.is_same_along(p, other, dim))
            };
            if let Some((_, p)) = largest.iter().enumerate().find(is_other) {
                return Err(self.fault(format!(
                    "the labels of `{}` and `{dim}` differ between files, and no file has those of `{}` that `{}` has \
                     with those of `{dim}` that `{}` has: the files leave a hole. If labels should be the same, \
                     `tolerance => 1e-6` takes close ones for equal",
                    others.join("`, `"),
                    others.join("`, `"),
                    group[0].name,
                    p.name
                )));
            }
        }
        Ok(())
    }

    /// Files with the same labels and different variables.
    fn merge(&self, parts: Vec<Part>) -> Result<Opened, SourceError> {
        let mut parts = parts.into_iter();
        let Some(Part { name, opened: mut out }) = parts.next() else {
            return Err(self.fault("no file found"));
        };
        let mut owners: BTreeMap<String, String> =
            names(&out.dataset).map(|v| (v.to_string(), name.clone())).collect();
        for part in parts {
            for v in part.opened.dataset.variables.iter() {
                if let Some(owner) = owners.insert(v.name.to_string(), part.name.clone()) {
                    return Err(self.fault(format!(
                        "`{}` is in `{owner}` and in `{}` with the same labels; write `concat => 'dim'` to join them \
                         along a new dimension",
                        v.name, part.name
                    )));
                }
            }
            let Opened { dataset, readers, unsupported, read, .. } = part.opened;
            out.readers.extend(readers);
            out.unsupported.extend(unsupported);
            out.read.extend(read);
            out.dataset.variables.extend(dataset.variables);
            for v in dataset.auxiliary {
                if !out.dataset.auxiliary.iter().any(|o| o.name == v.name) {
                    out.dataset.auxiliary.push(v);
                }
            }
            add_missing(&mut out.dataset.coords, dataset.coords);
            add_missing(&mut out.dataset.scalars, dataset.scalars);
            out.dataset.coordinates.extend(dataset.coordinates);
            out.dataset.unreadable.extend(dataset.unreadable);
        }
        out.dataset.variables.sort_by(|a, b| a.name.cmp(&b.name));
        out.dataset.coords.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(out)
    }

    /// The files in the order of their labels along `dim`.
    fn sorted(&self, parts: Vec<Part>, dim: &str) -> Result<Vec<Part>, SourceError> {
        let coord =
            |p: &Part| p.opened.dataset.index_coord(dim).filter(|c| !c.values.is_empty()).cloned();
        if parts.iter().all(|p| coord(p).is_none()) {
            // Without labels the order of their names is that of the files.
            return Ok(parts);
        }
        let (mut keyed, mut empty) = (Vec::new(), Vec::new());
        for part in parts {
            match coord(&part) {
                Some(c) => keyed.push((c, part)),
                None => empty.push(part),
            }
        }
        let without =
            empty.iter().find(|p| lengths(&p.opened.dataset).get(dim).is_some_and(|n| *n > 0));
        if let Some(p) = without {
            return Err(
                self.fault(format!("`{}` has no labels of `{dim}`, other files have", p.name))
            );
        }
        let is_falling = keyed.iter().any(|(c, _)| {
            compare(&c.values, 0, &c.values, c.values.len() - 1) == Some(Ordering::Greater)
        });
        let direct = |o: Ordering| if is_falling { o.reverse() } else { o };
        if let Some((_, p)) = keyed.iter().find(|(c, _)| !is_in_order(&c.values, is_falling)) {
            return Err(self.fault(format!(
                "the labels of `{dim}` in `{}` are not sorted; `combine => 'nested'` joins files in their order",
                p.name
            )));
        }
        for (c, p) in &keyed {
            if compare(&c.values, 0, &keyed[0].0.values, 0).is_none() {
                return Err(self.fault(format!(
                    "the labels of `{dim}` in `{}` and in `{}` have no order",
                    keyed[0].1.name, p.name
                )));
            }
        }
        keyed.sort_by(|(a, _), (b, _)| {
            direct(compare(&a.values, 0, &b.values, 0).unwrap_or(Ordering::Equal))
        });
        for pair in keyed.windows(2) {
            let ((a, before), (b, after)) = (&pair[0], &pair[1]);
            let last = a.values.len() - 1;
            if compare(&a.values, last, &b.values, 0).map(direct) != Some(Ordering::Less) {
                return Err(self.fault(format!(
                    "`{}` and `{}` overlap along `{dim}`: one ends at {}, the other begins at {}",
                    before.name,
                    after.name,
                    a.values.display(last),
                    b.values.display(0)
                )));
            }
        }
        Ok(keyed.into_iter().map(|(_, p)| p).chain(empty).collect())
    }

    /// Joins files along a dimension, in their order.
    fn join(&self, parts: Vec<Part>, dim: &str) -> Result<Opened, SourceError> {
        let is_new =
            self.has_scalars || !parts.iter().any(|p| lengths(&p.opened.dataset).contains_key(dim));
        let coords = self.coords(&parts, dim)?;
        let named = |p: &Part| p.opened.dataset.coordinates.clone();
        let first = &parts[0].opened;
        let mut out = Opened {
            dataset: Dataset {
                name: first.dataset.name.clone(),
                attrs: first.dataset.attrs.clone(),
                groups: first.groups.clone(),
                coordinates: parts.iter().flat_map(named).collect(),
                coords,
                ..Dataset::default()
            },
            groups: first.groups.clone(),
            read: parts.iter().flat_map(|p| p.opened.read.iter().copied()).collect(),
            ..Opened::default()
        };
        for part in &parts {
            for (name, error) in &part.opened.unsupported {
                out.unsupported.entry(name.clone()).or_insert_with(|| error.clone());
            }
            for u in &part.opened.dataset.unreadable {
                if !out.dataset.unreadable.iter().any(|o| o.name == u.name) {
                    out.dataset.unreadable.push(u.clone());
                }
            }
        }
        join_texts(&parts, (dim, is_new), &mut out.dataset);
        let files: Vec<Index<'_>> = parts.iter().map(Index::of).collect();
        let data: BTreeSet<Arc<str>> = parts
            .iter()
            .flat_map(|p| &p.opened.dataset.variables)
            .map(|v| v.name.clone())
            .collect();
        let aux: BTreeSet<Arc<str>> = parts
            .iter()
            .flat_map(|p| &p.opened.dataset.auxiliary)
            .map(|v| v.name.clone())
            .collect();
        let is_unread = |n: &Arc<str>| out.unsupported.contains_key(&**n);
        let (data, aux): (Vec<_>, Vec<_>) = (
            data.iter().filter(|n| !is_unread(n)).collect(),
            aux.iter().filter(|n| !is_unread(n) && !data.contains(*n)).collect(),
        );
        for (name, is_data) in
            data.into_iter().map(|n| (n, true)).chain(aux.into_iter().map(|n| (n, false)))
        {
            let (variable, readers) = self.variable(&files, name, (dim, is_new), is_data)?;
            out.readers.extend(readers);
            match is_data {
                true => out.dataset.variables.push(variable),
                false => out.dataset.auxiliary.push(variable),
            }
        }
        Ok(out)
    }

    /// The coordinates of the joined dataset.
    fn coords(&self, parts: &[Part], dim: &str) -> Result<Vec<Arc<Coord>>, SourceError> {
        let mut out = Vec::new();
        for coord in &parts[0].opened.dataset.coords {
            let of =
                |p: &Part| p.opened.dataset.coords.iter().find(|c| c.name == coord.name).cloned();
            let Some(all) = parts.iter().map(of).collect::<Option<Vec<_>>>() else { continue };
            if *coord.dim == *dim {
                let values: Vec<_> = all.iter().map(|c| &c.values).collect();
                let Some(values) = joined(&values) else {
                    return Err(self.fault(format!(
                        "the labels `{}` are not of one kind in all files, the first is `{}`",
                        coord.name, parts[0].name
                    )));
                };
                out.push(Arc::new(Coord { values, ..Coord::clone(coord) }));
                continue;
            }
            let differs =
                |c: &Arc<Coord>| first_difference(&coord.values, &c.values, self.tolerance);
            let other = all.iter().zip(parts).find_map(|(c, p)| differs(c).map(|at| (c, p, at)));
            if let Some((c, p, at)) = other {
                // Auxiliary labels of the dimension may change from file to file: then they are dropped.
                if coord.name != coord.dim {
                    continue;
                }
                let show = |c: &Coord| match at < c.values.len() {
                    true => format!("is {} at {at}", c.values.display(at)),
                    false => format!("has {} labels", c.values.len()),
                };
                return Err(SourceError::LabelsDiffer {
                    coord: coord.name.to_string(),
                    a: parts[0].name.clone(),
                    a_label: show(coord),
                    b: p.name.clone(),
                    b_label: show(c),
                });
            }
            out.push(coord.clone());
        }
        Ok(out)
    }

    /// A variable of the joined dataset and its readers.
    fn variable(
        &self,
        files: &[Index<'_>],
        name: &str,
        (dim, is_new): (&str, bool),
        is_data: bool,
    ) -> Result<(Variable, Vec<Arc<ArrayReader>>), SourceError> {
        let mut all: Vec<Option<Variable>> =
            files.iter().map(|file| file.variable(name).cloned()).collect();
        let Some((at, first)) = all.iter().enumerate().find_map(|(i, v)| Some((i, v.clone()?)))
        else {
            return Err(self.fault(format!("no file has `{name}`")));
        };
        // As in xarray, the order of the dimensions is that of the first file.
        all.iter_mut().flatten().for_each(|v| turn(v, &first.dims));
        let axis = match is_new && is_data {
            true => Some(0),
            false => first.dims.iter().position(|d| d.as_deref() == Some(dim)),
        };
        let Some(axis) = axis else {
            // The variable is the same in all files: the first one is used.
            let readers = files[at].readers(&first);
            return Ok((first, readers));
        };
        if let Some(i) =
            all.iter().position(Option::is_none).filter(|_| !self.options.masks_missing)
        {
            return Err(self.fault(format!(
                "`{name}` is in `{}` and not in `{}`; with `missing => 'mask'` its cells are masked there",
                files[at].part.name, files[i].part.name
            )));
        }
        self.check(files, &all, (at, &first), (axis, is_new))?;
        self.joined(files, &all, first, (dim, axis, is_new))
    }

    /// Checks that a variable has the same dimensions in all files.
    fn check(
        &self,
        files: &[Index<'_>],
        all: &[Option<Variable>],
        (at, first): (usize, &Variable),
        (axis, is_new): (usize, bool),
    ) -> Result<(), SourceError> {
        for (v, file) in all.iter().zip(files) {
            let Some(v) = v else { continue };
            let (a, b) = (&first.source.shape, &v.source.shape);
            let same = |i: usize| (!is_new && i == axis) || a[i] == b[i];
            if v.dims != first.dims || a.len() != b.len() || !(0..a.len()).all(same) {
                return Err(self.fault(format!(
                    "`{}` is {} in `{}` and {} in `{}`",
                    v.name,
                    shown(first),
                    files[at].part.name,
                    shown(v),
                    file.part.name
                )));
            }
            let time = |v: &Variable| Some(v.dtype()).filter(|d| d.is_datetime());
            if time(v) != time(first) {
                return Err(self.fault(format!(
                    "`{}` is of type {} in `{}` and {} in `{}`",
                    v.name,
                    first.dtype(),
                    files[at].part.name,
                    v.dtype(),
                    file.part.name
                )));
            }
        }
        Ok(())
    }

    fn joined(
        &self,
        files: &[Index<'_>],
        all: &[Option<Variable>],
        first: Variable,
        (dim, axis, is_new): (&str, usize, bool),
    ) -> Result<(Variable, Vec<Arc<ArrayReader>>), SourceError> {
        let there = || all.iter().flatten();
        let Kind { dtype, decode, is_same, absent } = Kind::of(all, &first);
        if there().any(|v| v.decode.valid.is_some()) {
            return Err(
                self.fault(format!("`{}` has a mask of its own, which is not joined", first.name))
            );
        }
        let mut cells = Vec::with_capacity(files.len());
        let mut start = 0;
        for (v, file) in all.iter().zip(files) {
            let p = file.part;
            let len = match (v, is_new) {
                (_, true) => 1,
                (Some(v), false) => v.source.shape[axis],
                (None, false) => lengths(&p.opened.dataset).get(dim).copied().unwrap_or(0),
            };
            let mut order = None;
            let source = match v {
                None => PartCells::Absent(bytes_of(absent, dtype)),
                Some(v) => {
                    let own = file.variable(&v.name).map(|own| (own, file.reader(&own.source)));
                    let Some((own, Some(reader))) = own else {
                        return Err(
                            self.fault(format!("`{}` has no reader in `{}`", v.name, p.name))
                        );
                    };
                    order = order_of(&own.dims, &first.dims);
                    let reader = reader.clone();
                    match is_same {
                        true => PartCells::Same(reader),
                        false => PartCells::Decoded(reader, Arc::new(v.decode.clone())),
                    }
                }
            };
            cells.push(JoinedPart { start, len, order, cells: source });
            start += len;
        }
        let grids: Vec<&Grid> = there().map(|v| &v.source.grid).collect();
        let (mut shape, mut dims) = (first.source.shape.clone(), first.dims.clone());
        if is_new {
            shape.insert(0, start);
            dims.insert(0, Some(dim.into()));
        } else {
            shape[axis] = start;
        }
        let is_flat = cells.iter().all(JoinedPart::is_flat);
        let source = SourceRef {
            url: self.url.to_string(),
            path: first.name.to_string(),
            dtype,
            grid: grid((&shape, dtype.size()), (axis, is_new), &grids, is_flat),
            shape,
            nullable: false,
            version: version(all),
            plain: false,
        };
        let store = files[0].part.opened.readers.first().map(|r| r.store.clone());
        let Some(store) = store else { return Err(self.fault("the first file has no arrays")) };
        let layout = Layout::Joined(Joined::new(axis, is_new, cells));
        let reader = ArrayReader::new(source.clone(), &first.name, store, layout);
        let variable = Variable { dims, source, decode, ..first };
        Ok((variable, vec![Arc::new(reader)]))
    }
}

fn bytes_of(value: Scalar, dtype: DType) -> Vec<u8> {
    native_bytes(value.cast(dtype))[..dtype.size()].to_vec()
}

/// A digest of the versions of all parts.
fn version(all: &[Option<Variable>]) -> Option<String> {
    let mut versions = Vec::new();
    for v in all {
        let version = match v {
            Some(v) => v.source.version.as_deref()?,
            None => "",
        };
        versions.extend(version.bytes().chain([0]));
    }
    Some(digest(&versions))
}
