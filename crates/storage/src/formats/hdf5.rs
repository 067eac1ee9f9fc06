//! HDF5 and netCDF-4.
//!
//! ```text
//!   superblock ─▶ root group ─▶ links ─▶ object headers ─▶ messages: shape, type, layout, filters, attributes
//!                                                            └─ layout ─▶ index of chunks, read when chunks are
//! ```
//! Not read: cells in other files (external files, virtual datasets, external links), and types that are no numbers,
//! truth values or texts. These are named in the errors of their arrays; the others of a file stay readable.
//!
//! # Source
//! "HDF5 File Format Specification Version 3.0" (The HDF Group), and the library's source where it is silent.

mod arrays;
mod attributes;
mod bits;
mod btree1;
mod btree2;
mod chunks;
mod codecs;
mod datatype;
mod dims;
mod file;
mod fractal;
mod groups;
mod header;
mod heap;
mod messages;
mod objects;
mod pipeline;
mod szip;
mod texts;

#[cfg(test)]
mod tests;

pub(crate) use codecs::Blosc;
pub(crate) use file::lookup3;

use crate::formats::hdf5::dims::{Lengths, Part, Scales};
use crate::formats::hdf5::file::File;
use crate::formats::hdf5::groups::Target;
use crate::formats::hdf5::header::{Header, kind};
use crate::formats::hdf5::objects::{Object, reason};
use crate::formats::view::{Fault, View};
use crate::formats::{Format, Group, Unreadable, Why};
use tessera_planner::catalog::Attrs;

/// Groups of the root in which MATLAB 7.3 stores what the cells of its arrays refer to, and objects of its classes. They
/// are no variables of the user's, so they are not listed.
const INTERNAL: [&str; 2] = ["#refs#", "#subsystem#"];

/// See the module.
pub(crate) struct Hdf5;

/// The object that a link of a group leads to.
enum Found {
    Group,
    Array(Box<Object>),
    Broken(Why),
    Other,
}

impl Format for Hdf5 {
    fn name(&self) -> &'static str {
        "HDF5"
    }

    fn keys(&self) -> &'static [&'static str] {
        &["hdf5", "netcdf"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["h5", "hdf5", "hdf", "he5", "nc", "nc4", "cdf", "netcdf", "h5py", "mat", "loom", "h5ad"]
    }

    fn is(&self, head: &[u8], _: u64) -> bool {
        file::has_signature(head)
    }

    fn is_scoped(&self) -> bool {
        true
    }

    fn read(&self, view: &View<'_>, group: &str) -> Result<Option<Group>, Fault> {
        let (file, root) = File::open(view)?;
        let mut path = vec![root];
        let mut here = root;
        for name in group.split('/').filter(|name| !name.is_empty()) {
            match groups::follow(&file, root, here, name)? {
                Target::Object(next) => here = next,
                Target::Nothing => return Ok(None),
                Target::Refused(what) => return Err(Fault::unsupported(what)),
            }
            path.push(here);
        }
        let header = Header::read(&file, here)?;
        match groups::is_group(&header) || here == root {
            true => arrays_of(&file, &path, &header).map(Some),
            false => Ok(None),
        }
    }
}

fn arrays_of(file: &File<'_>, path: &[u64], header: &Header) -> Result<Group, Fault> {
    let (&root, &here) = match path {
        [root, .., here] => (root, here),
        [root] => (root, root),
        [] => return Ok(Group::default()),
    };
    let links = groups::links(file, here)?;
    let is_shown = |name: &str| here != root || !INTERNAL.contains(&name);
    let links: Vec<_> = links.iter().filter(|(name, _)| is_shown(name)).collect();
    for (_, link) in &links {
        if let groups::Link::Hard(address) = link {
            file.will_read(*address, groups::HEADER_BYTES);
        }
    }
    let found = file.each(links, |(name, link)| {
        let found = reason(groups::target(file, root, here, link).and_then(|t| look(file, t)))?;
        Ok((name.clone(), found.unwrap_or_else(Found::Broken)))
    })?;
    let mut out = Group::default();
    let mut objects = Vec::new();
    for (name, found) in found {
        match found {
            // A path cannot name a group without a name.
            Found::Group if name.is_empty() => {}
            Found::Group => out.groups.push(name),
            Found::Array(object) => objects.push((name, *object)),
            Found::Broken(why) => {
                let broken = Unreadable { why, dims: Vec::new(), attrs: Attrs::new() };
                out.arrays.insert(name, Err(broken));
            }
            Found::Other => {}
        }
    }
    let scales = Scales::new(file, path, &objects);
    let attrs = attributes::read(file, header)?;
    // The bytes that the arrays need are fetched together with those that the lengths need.
    let (lengths, none) = (scales.lengths(), Lengths::new());
    let shown = objects.iter().filter(|(_, o)| o.part != Part::Bare);
    let made = file.each(shown, |(link, object)| {
        let name = dims::name_of_variable(link);
        let names = |rank| scales.names(link, object, rank);
        let array = object.array(file, names, lengths.as_ref().unwrap_or(&none))?;
        Ok((name.to_string(), array))
    })?;
    lengths?;
    out.arrays.extend(made);
    out.attrs = attributes::report(file, &attrs)?.0;
    Ok(out)
}

/// Reads the object at the end of a link.
fn look(file: &File<'_>, target: Target) -> Result<Found, Fault> {
    let address = match target {
        Target::Object(address) => address,
        Target::Nothing => {
            return Ok(Found::Broken(Why::Bad(
                "it is a link to a path that does not exist".into(),
            )));
        }
        Target::Refused(what) => return Ok(Found::Broken(Why::Unsupported(what))),
    };
    let header = Header::read(file, address)?;
    if groups::is_group(&header) {
        return Ok(Found::Group);
    }
    match header.get(kind::LAYOUT) {
        Some(_) => Object::read(file, address, header).map(|o| Found::Array(Box::new(o))),
        // A named type.
        None => Ok(Found::Other),
    }
}
