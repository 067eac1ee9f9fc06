//! Names of dimensions: HDF5's dimension scales, as netCDF-4 uses them.
//!
//! # Source
//! HDF5 Dimension Scale Specification 1.0; NetCDF Users Guide, appendix "NetCDF-4 format".

use crate::formats::hdf5::attributes::{self, Attribute};
use crate::formats::hdf5::file::File;
use crate::formats::hdf5::groups::{self, Link};
use crate::formats::hdf5::header::Header;
use crate::formats::hdf5::messages::{Space, UNLIMITED};
use crate::formats::hdf5::objects::{Object, reason};
use crate::formats::view::Fault;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Beginning of the `NAME` of a scale that is a dimension without labels.
const BARE: &str = "This is a netCDF dimension but not a netCDF variable";

/// Beginning of the name of a variable that is named like a dimension which it does not label.
const NOT_A_LABEL: &str = "_nc4_non_coord_";

/// The name of a variable whose link is `link`.
pub(super) fn name_of_variable(link: &str) -> &str {
    link.strip_prefix(NOT_A_LABEL).unwrap_or(link)
}

/// The dimensions that the arrays of a group may be along.
pub(super) struct Scales<'a, 'f> {
    file: &'a File<'f>,
    /// The root group and those down to the group.
    path: &'a [u64],
    /// Names of the objects of the group, by address.
    here: BTreeMap<u64, &'a str>,
    objects: &'a [(String, Object)],
    /// Names of dimensions by the numbers that netCDF assigns to them.
    numbers: OnceCell<BTreeMap<i128, String>>,
}

/// How an array takes part in dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The array lies along dimensions.
    Along,
    /// The array is a dimension, with its labels.
    Labels,
    /// The array only declares a dimension.
    Bare,
}

/// Lengths of dimensions by name.
pub(super) type Lengths = BTreeMap<Arc<str>, u64>;

/// The attribute of a name.
pub(super) fn attribute<'a>(all: &'a [Attribute], name: &str) -> Option<&'a Attribute> {
    all.iter().find(|a| a.name == name)
}

fn first_text(file: &File<'_>, all: &[Attribute], name: &str) -> Result<Option<String>, Fault> {
    let Some(a) = attribute(all, name) else { return Ok(None) };
    Ok(a.as_texts(file)?.into_iter().next())
}

pub(super) fn part(file: &File<'_>, attrs: &[Attribute]) -> Result<Part, Fault> {
    let class = first_text(file, attrs, "CLASS")?;
    if class.as_deref() != Some("DIMENSION_SCALE") {
        return Ok(Part::Along);
    }
    match first_text(file, attrs, "NAME")? {
        Some(name) if name.starts_with(BARE) => Ok(Part::Bare),
        _ => Ok(Part::Labels),
    }
}

impl<'a, 'f> Scales<'a, 'f> {
    pub(super) fn new(
        file: &'a File<'f>,
        path: &'a [u64],
        objects: &'a [(String, Object)],
    ) -> Scales<'a, 'f> {
        let mut here = BTreeMap::new();
        for (name, object) in objects {
            here.entry(object.address).or_insert(name.as_str());
        }
        Scales { file, path, here, objects, numbers: OnceCell::new() }
    }

    /// Names of the dimensions of an array with `rank` axes.
    pub(super) fn names(
        &self,
        name: &str,
        object: &Object,
        rank: usize,
    ) -> Result<Vec<Option<Arc<str>>>, Fault> {
        let (file, attrs) = (self.file, &object.attrs);
        if object.part != Part::Along && rank == 1 {
            return Ok(vec![Some(name.into())]);
        }
        let mut out = vec![None; rank];
        if let Some(numbers) = attribute(attrs, "_Netcdf4Coordinates").map(Attribute::as_integers)
            && object.part != Part::Along
            && numbers.len() == rank
        {
            let known = self.numbers()?;
            for (name, number) in out.iter_mut().zip(numbers) {
                *name = known.get(&number).map(|n| n.as_str().into());
            }
            return Ok(out);
        }
        if let Some(list) = attribute(attrs, "DIMENSION_LIST") {
            let scales = list.as_objects(file)?;
            let named = file.each(scales.iter().take(rank), |scale| match scale {
                Some(address) => self.name_of(*address),
                None => Ok(None),
            })?;
            out.iter_mut().zip(named).for_each(|(out, name)| *out = name.map(Into::into));
        }
        if let Some(labels) = attribute(attrs, "DIMENSION_LABELS").filter(|_| out.contains(&None)) {
            for (name, label) in out.iter_mut().zip(labels.as_texts(file)?) {
                if name.is_none() && !label.is_empty() {
                    *name = Some(label.into());
                }
            }
        }
        Ok(out)
    }

    /// Lengths of the dimensions without a bound. As netCDF-4 has them: arrays that were not written to the end are
    /// shorter in the file, and their other cells are the fill value.
    pub(super) fn lengths(&self) -> Result<Lengths, Fault> {
        // A damaged array is an error where it is read.
        let found = self.file.each(self.objects, |(name, o)| reason(self.growing(name, o)))?;
        let mut out = Lengths::new();
        for (name, len) in found.into_iter().flatten().flatten() {
            let known = out.entry(name).or_default();
            *known = len.max(*known);
        }
        Ok(out)
    }

    /// Names and stored lengths of the axes of an array that have no bound.
    fn growing(&self, name: &str, object: &Object) -> Result<Vec<(Arc<str>, u64)>, Fault> {
        if !object.is_scaled() {
            return Ok(Vec::new());
        }
        let Space { shape, max, .. } = object.space(self.file)?;
        if !max.contains(&UNLIMITED) {
            return Ok(Vec::new());
        }
        let axes = self.names(name, object, shape.len())?.into_iter().zip(shape).zip(max);
        let growing = axes.filter(|(_, max)| *max == UNLIMITED);
        Ok(growing.filter_map(|((name, len), _)| Some((name?, len))).collect())
    }

    /// The name of the scale at an address: of its link in the group or in a group above, or the name that its
    /// attribute states.
    fn name_of(&self, address: u64) -> Result<Option<String>, Fault> {
        if let Some(name) = self.here.get(&address) {
            return Ok(Some((*name).into()));
        }
        for group in self.path.iter().rev() {
            let links = groups::links(self.file, *group)?;
            let found = links.iter().find(|(_, link)| **link == Link::Hard(address));
            if let Some((name, _)) = found {
                return Ok(Some(name.clone()));
            }
        }
        let header = Header::read(self.file, address)?;
        let name = first_text(self.file, &attributes::read(self.file, &header)?, "NAME")?;
        let name = name.filter(|n| !n.starts_with(BARE) && !n.is_empty());
        Ok(name.map(|n| n.rsplit('/').next().unwrap_or(&n).into()))
    }

    fn numbers(&self) -> Result<&BTreeMap<i128, String>, Fault> {
        if let Some(known) = self.numbers.get() {
            return Ok(known);
        }
        let number = |attrs: &[Attribute]| {
            attribute(attrs, "_Netcdf4Dimid").and_then(|a| a.as_integers().first().copied())
        };
        let mut out = BTreeMap::new();
        let above = self.path.split_last().map_or(&[][..], |(_, above)| above);
        for group in above {
            let links = groups::links(self.file, *group)?;
            let found = self.file.each(links.iter(), |(name, link)| {
                let Link::Hard(address) = link else { return Ok(None) };
                let header = Header::read(self.file, *address)?;
                let number = number(&attributes::read(self.file, &header)?);
                Ok(number.map(|n| (n, name.clone())))
            })?;
            out.extend(found.into_iter().flatten());
        }
        let here = self.objects.iter().filter(|(_, o)| o.part != Part::Along);
        out.extend(here.filter_map(|(name, o)| Some((number(&o.attrs)?, name.clone()))));
        Ok(self.numbers.get_or_init(|| out))
    }
}
