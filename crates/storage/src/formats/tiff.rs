//! TIFF, BigTIFF, GeoTIFF and cloud-optimized GeoTIFF.
//!
//! ```text
//!   file         pages ─▶ image ─▶ `band_data` (band, y, x), labels `band`, `y`, `x`
//!   #overview_1    ├─ overviews, from the largest on
//!   #page_2        ├─ the second page, with overviews of its own
//!   #sub_1         └─ other images that the first page refers to
//! ```
//! A segment (tile or strip) is a chunk. If pixels hold the cells of all bands next to each other, so does a chunk:
//! its codec puts the bands apart. Names of variables and attributes are those of rioxarray.
//!
//! # Source
//! TIFF revision 6.0 (Adobe, 1992); OGC GeoTIFF 1.1 (19-008r4).

mod codecs;
mod geo;
mod ifd;
mod image;
mod index;
mod jpeg;
mod lzw;
mod metadata;
mod pages;
mod segment;
mod tags;
#[cfg(test)]
mod tests;

use crate::formats::view::{Fault, View};
use crate::formats::{Cells, FileArray, FileChunks, Format, Group, Unreadable, Why};
use crate::sink::VALID_KEY;
use crate::source::cells::Raw;
use geo::Geo;
use ifd::{Header, Ifd};
use image::{Image, Layout, Stop};
use index::Segments;
use pages::{Page, Picture};
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;

/// Names of the arrays.
const DATA: &str = "band_data";
const MASK: &str = "band_data_mask";
const PAGES: &str = "pages";

/// See the module.
pub(crate) struct Tiff;

impl Format for Tiff {
    fn name(&self) -> &'static str {
        "TIFF"
    }

    fn keys(&self) -> &'static [&'static str] {
        &["tiff"]
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["tif", "tiff", "gtiff", "geotiff", "cog", "btf", "tf8"]
    }

    fn is(&self, head: &[u8], _: u64) -> bool {
        Header::is(head)
    }

    fn read(&self, file: &View<'_>, group: &str) -> Result<Option<Group>, Fault> {
        let pages = pages::read(file)?;
        let Some((page, picture)) = find(&pages, group) else { return Ok(None) };
        let mut out = Group::default();
        let base = (!std::ptr::eq(picture, &page.image)).then_some(&page.image.ifd);
        let is_sub = page.subs.iter().any(|s| std::ptr::eq(s, picture));
        add(file, picture, base.filter(|_| !is_sub), &mut out)?;
        let names = |n: usize, name: &'static str| (1..=n).map(move |i| format!("{name}_{i}"));
        if base.is_none() {
            out.groups.extend(names(page.overviews.len(), "overview"));
            out.groups.extend(names(page.subs.len(), "sub"));
        }
        if group.is_empty() {
            out.groups.extend(names(pages.len(), "page").skip(1));
            add_pages(file, &pages, &mut out)?;
        }
        Ok(Some(out))
    }
}

fn find<'p, 'a>(pages: &'p [Page<'a>], group: &str) -> Option<(&'p Page<'a>, &'p Picture<'a>)> {
    // `name_i`, with `i` from `first` on.
    let number = |part: &str, name: &str, first: usize| -> Option<usize> {
        let digits = part.strip_prefix(name)?.strip_prefix('_')?;
        let i: usize = digits.parse().ok().filter(|i| *i >= first)?;
        (digits == i.to_string()).then_some(i - 1)
    };
    let (of, rest) = match group.split_once('/').unwrap_or((group, "")) {
        (first, rest) if first.starts_with("page") => (number(first, "page", 2)?, rest),
        _ => (0, group),
    };
    let page = pages.get(of)?;
    if rest.is_empty() {
        return Some((page, &page.image));
    }
    let picture = match number(rest, "overview", 1) {
        Some(i) => page.overviews.get(i),
        None => page.subs.get(number(rest, "sub", 1)?),
    };
    Some((page, picture?))
}

/// Adds an image, its mask and its labels to a group. `base` is the image of which it is an overview.
fn add(
    file: &View<'_>,
    picture: &Picture<'_>,
    base: Option<&Ifd<'_>>,
    out: &mut Group,
) -> Result<(), Fault> {
    let ifd = &picture.ifd;
    let image = match Image::read(file, ifd) {
        Ok(image) => image,
        Err(Stop::Fault(fault)) => return Err(fault),
        Err(Stop::Image(why)) => {
            let lengths = [(tags::SAMPLES, "band"), (tags::HEIGHT, "y"), (tags::WIDTH, "x")];
            let dim = |(tag, name)| Ok((Some(Arc::from(name)), ifd.uint(file, tag)?.unwrap_or(1)));
            let dims = lengths.map(dim).into_iter().collect::<Result<_, Fault>>()?;
            let bad = Unreadable { why, dims, attrs: Attrs::new() };
            out.arrays.insert(DATA.into(), Err(bad));
            return Ok(());
        }
    };
    let mut geo = Geo::read(file, base.unwrap_or(ifd))?;
    if let Some(base) = base {
        let times = |tag, n: u64| -> Result<f64, Fault> {
            Ok(base.uint(file, tag)?.unwrap_or(n) as f64 / n as f64)
        };
        geo = geo.overview(times(tags::WIDTH, image.width)?, times(tags::HEIGHT, image.height)?);
    }
    let mut attrs = Attrs::new();
    metadata::describe(file, base.unwrap_or(ifd), image.bands, &mut attrs)?;
    geo.describe(&mut attrs);
    if let Some(mask) = &picture.mask
        && let Some(mask) = mask_of(file, mask, &image)?
    {
        attrs.insert(VALID_KEY.into(), MASK.into());
        out.arrays.insert(MASK.into(), Ok(mask));
    }
    let dims = [("band", image.bands), ("y", image.height), ("x", image.width)];
    add_labels(dims, &geo, file.len(), out);
    out.arrays.insert(DATA.into(), Ok(array(file, image, attrs)?));
    Ok(())
}

fn names(all: &[&str]) -> Vec<Option<Arc<str>>> {
    all.iter().map(|name| Some(Arc::from(*name))).collect()
}

fn array(file: &View<'_>, image: Image, attrs: Attrs) -> Result<FileArray, Fault> {
    let fill = metadata::fill(&attrs, &image.raw);
    let (shape, unit) = (image.shape(), image.unit());
    let (raw, layout) = (image.raw.clone(), image.layout.clone());
    // Chunks are decoded to the byte order of this machine, and the fill value has it.
    let (cells, big_endian) = match image.flat(file)? {
        Some(offset) => (Cells::Flat(offset), layout.segment.big_endian),
        None => (chunks(&[image], (unit, layout), fill), false),
    };
    let dims = names(&["band", "y", "x"]);
    Ok(FileArray { big_endian, ..FileArray::new(dims, shape, raw, attrs, cells) })
}

fn chunks(images: &[Image], (unit, layout): (Dims, Layout), fill: Vec<u8>) -> Cells {
    let filters = layout.filters();
    Cells::Chunks(FileChunks {
        unit,
        filters,
        fill,
        index: Arc::new(Segments::new(images, layout)),
    })
}

/// The validity of the cells of an image, if its mask can be read: that of a pixel is that of all its bands.
fn mask_of(file: &View<'_>, ifd: &Ifd<'_>, image: &Image) -> Result<Option<FileArray>, Fault> {
    let mask = match Image::read(file, ifd) {
        Ok(mask) => mask,
        Err(Stop::Fault(fault)) => return Err(fault),
        Err(Stop::Image(_)) => return Ok(None),
    };
    let is_flags = mask.bands == 1 && mask.raw == Raw::Plain(DType::UInt8);
    if !is_flags || (mask.width, mask.height) != (image.width, image.height) {
        return Ok(None);
    }
    let (unit, layout) = (mask.unit(), mask.layout.clone());
    // An absent segment has no valid pixels.
    let cells = chunks(&[mask], (unit, layout), vec![0]);
    let (dims, raw) = (names(&["band", "y", "x"]), Raw::Plain(DType::Bool));
    Ok(Some(FileArray::new(dims, image.shape(), raw, Attrs::new(), cells)))
}

fn add_labels(dims: [(&str, u64); 3], geo: &Geo, file_bytes: u64, out: &mut Group) {
    for (name, count) in dims {
        let is_x = name == "x";
        let (bytes, dtype, attrs) = match name {
            "band" => (Some(numbers(count)), DType::Int64, Attrs::new()),
            _ => (geo.labels(is_x, count, file_bytes), DType::Float64, geo.axis(is_x)),
        };
        if let Some(bytes) = bytes {
            let labels = FileArray::inline(&[(name, count)], Raw::Plain(dtype), bytes, attrs);
            out.arrays.insert(name.into(), Ok(labels));
        }
    }
}

/// The labels 1 to `count`.
fn numbers(count: u64) -> bytes::Bytes {
    (1..=count as i64).flat_map(i64::to_ne_bytes).collect()
}

/// Adds all pages as one array, if they have one shape, one type and one layout.
fn add_pages(file: &View<'_>, pages: &[Page<'_>], out: &mut Group) -> Result<(), Fault> {
    let mut images = Vec::new();
    for page in pages {
        match Image::read(file, &page.image.ifd) {
            Ok(image) => images.push(image),
            Err(Stop::Fault(fault)) => return Err(fault),
            Err(Stop::Image(_)) => return Ok(()),
        }
    }
    let [first, rest @ ..] = &images[..] else { return Ok(()) };
    if rest.is_empty() {
        return add_stack(file, &pages[0].image.ifd, first, out);
    }
    if rest.iter().any(|i| !i.is_like(first)) {
        return Ok(());
    }
    let unit = std::iter::once(1).chain(first.unit()).collect();
    let fill = match out.arrays.get(DATA) {
        Some(Ok(data)) => metadata::fill(&data.attrs, &first.raw),
        _ => return Ok(()),
    };
    let cells = chunks(&images, (unit, first.layout.clone()), fill);
    insert_pages(pages.len() as u64, first, (cells, false), out);
    Ok(())
}

/// Adds the images of an ImageJ stack that has one directory: they follow the first one.
///
/// # Source
/// ImageJ's `ij/io/TiffDecoder.java`; tifffile 2025, `series_imagej`.
fn add_stack(file: &View<'_>, ifd: &Ifd<'_>, first: &Image, out: &mut Group) -> Result<(), Fault> {
    let text = ifd.text(file, tags::DESCRIPTION)?.unwrap_or_default();
    let Some(count) = metadata::images_of_imagej(&text).filter(|n| *n > 1) else { return Ok(()) };
    let dims = [("band", first.bands), ("y", first.height), ("x", first.width)];
    let dims: Vec<(Option<Arc<str>>, u64)> =
        dims.iter().map(|(name, n)| (Some(Arc::from(*name)), *n)).collect();
    let unreadable = |why, dims| Err(Unreadable { why, dims, attrs: Attrs::new() });
    let Some(start) = first.start(file, ifd)? else {
        let what = format!(
            "an ImageJ stack of {count} images in one directory that are not one after another"
        );
        out.arrays.insert(DATA.into(), unreadable(Why::Unsupported(what), dims));
        return Ok(());
    };
    let bytes = first.raw.size().saturating_mul(first.shape().iter().product());
    let end = count.checked_mul(bytes).and_then(|n| n.checked_add(start));
    if end.is_none_or(|end| end > file.len()) {
        let reason = format!(
            "its description has {count} images of {bytes} bytes from byte {start} on, the file has {} bytes",
            file.len()
        );
        let pages = std::iter::once((Some(Arc::from("page")), count)).chain(dims).collect();
        out.arrays.insert(PAGES.into(), unreadable(Why::Bad(reason), pages));
        return Ok(());
    }
    let big_endian = first.layout.segment.big_endian;
    insert_pages(count, first, (Cells::Flat(start), big_endian), out);
    Ok(())
}

/// Adds `count` images like the first one as one array, with its labels.
fn insert_pages(count: u64, first: &Image, (cells, big_endian): (Cells, bool), out: &mut Group) {
    let Some(Ok(FileArray { attrs, .. })) = out.arrays.get(DATA) else { return };
    let mut attrs = attrs.clone();
    attrs.remove(VALID_KEY);
    let dims = names(&["page", "band", "y", "x"]);
    let shape = std::iter::once(count).chain(first.shape()).collect();
    let array = FileArray::new(dims, shape, first.raw.clone(), attrs, cells);
    out.arrays.insert(PAGES.into(), Ok(FileArray { big_endian, ..array }));
    let (raw, pages) = (Raw::Plain(DType::Int64), numbers(count));
    let labels = FileArray::inline(&[("page", count)], raw, pages, Attrs::new());
    out.arrays.insert("page".into(), Ok(labels));
}
