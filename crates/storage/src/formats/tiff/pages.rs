//! The images of a file: pages, each with its mask and its overviews.
//!
//! ```text
//!   chain:  image ─▶ mask ─▶ overview ─▶ its mask ─▶ … ─▶ image (the next page) ─▶ …
//!             └─ SubIFDs: overviews or further images
//! ```

use super::ifd::{Ifd, Walk};
use super::tags;
use crate::formats::view::{Fault, View};
use std::collections::BTreeMap;

/// Upper bound on the SubIFDs of an image.
const SUB_IFDS_MAX: u64 = 4096;

/// Bits of `NewSubfileType`.
const REDUCED: u64 = 1;
const MASK: u64 = 4;

/// One image and its mask.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) ifd: Ifd<'a>,
    pub(super) mask: Option<Ifd<'a>>,
}

/// A full-size image.
#[derive(Debug)]
pub(super) struct Page<'a> {
    pub(super) image: Picture<'a>,
    /// The same image with fewer pixels.
    pub(super) overviews: Vec<Picture<'a>>,
    /// Other images that it refers to.
    pub(super) subs: Vec<Picture<'a>>,
}

/// All images of a file.
pub(super) fn read<'a>(file: &View<'a>) -> Result<Vec<Page<'a>>, Fault> {
    let mut walk = Walk::new(file)?;
    let mut pages: Vec<Page<'_>> = Vec::new();
    let mut masks = Vec::new();
    let mut next = walk.first();
    if next == 0 {
        return Err(Fault::bad(0, "the header has no offset of a directory"));
    }
    while next != 0 {
        let ifd = walk.ifd(file, next)?;
        next = ifd.next;
        let kind = kind(file, &ifd)?;
        match pages.last_mut() {
            Some(_) if kind & MASK != 0 => masks.push(ifd),
            Some(page) if kind & REDUCED != 0 => page.overviews.push(alone(ifd)),
            _ => {
                attach(file, &mut masks, pages.last_mut())?;
                pages.push(page(file, &mut walk, ifd)?);
            }
        }
    }
    attach(file, &mut masks, pages.last_mut())?;
    Ok(pages)
}

/// The bits of `NewSubfileType`.
fn kind(file: &View<'_>, ifd: &Ifd<'_>) -> Result<u64, Fault> {
    if let Some(bits) = ifd.uint(file, tags::NEW_SUBFILE_TYPE)? {
        return Ok(bits);
    }
    Ok(match ifd.uint(file, tags::SUBFILE_TYPE)? {
        Some(2) => REDUCED,
        _ => 0,
    })
}

fn alone(ifd: Ifd<'_>) -> Picture<'_> {
    Picture { ifd, mask: None }
}

fn page<'a>(file: &View<'a>, walk: &mut Walk, ifd: Ifd<'a>) -> Result<Page<'a>, Fault> {
    let links = ifd.uints(file, tags::SUB_IFDS, SUB_IFDS_MAX)?;
    let (mut overviews, mut subs) = (Vec::new(), Vec::new());
    for at in &links {
        file.will_read(*at, 1);
    }
    for at in links {
        let sub = walk.ifd(file, at)?;
        match kind(file, &sub)? & REDUCED {
            0 => subs.push(alone(sub)),
            _ => overviews.push(alone(sub)),
        }
    }
    Ok(Page { image: alone(ifd), overviews, subs })
}

/// Attaches masks to the images of their size.
fn attach<'a>(
    file: &View<'_>,
    masks: &mut Vec<Ifd<'a>>,
    page: Option<&mut Page<'a>>,
) -> Result<(), Fault> {
    let (Some(page), false) = (page, masks.is_empty()) else { return Ok(()) };
    let size = |ifd: &Ifd<'_>| -> Result<_, Fault> {
        Ok((ifd.uint(file, tags::WIDTH)?, ifd.uint(file, tags::HEIGHT)?))
    };
    let mut by_size = BTreeMap::new();
    for mask in masks.drain(..) {
        by_size.entry(size(&mask)?).or_insert(mask);
    }
    for picture in std::iter::once(&mut page.image).chain(&mut page.overviews) {
        picture.mask = by_size.remove(&size(&picture.ifd)?);
    }
    Ok(())
}
