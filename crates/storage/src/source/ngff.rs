//! OME-Zarr: images in several resolutions, their axes and their coordinates.
//!
//! ```text
//!   image.zarr               the first level as `image` (t, c, z, y, x), with the labels of its axes
//!   image.zarr#1             the level at the path `1`; a path of two parts is an array in the level's group
//!   image.zarr#labels/cells  an image as well, of `labels`
//! ```
//! The label of an axis of space or time is `index * scale + translation`. A channel has a position only.
//!
//! # Source
//! OME-NGFF 0.5 (`attributes.ome` in Zarr v3) and 0.4 (Zarr v2); 0.1 to 0.3 have no transformations, so no labels.

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;

use crate::source::cells::Raw;
use crate::source::codecs::Codecs;
use crate::source::error::SourceError;
use crate::source::found::{Arrays, Found, Node, Place, Unread};
use crate::source::meta::{ArrayMeta, Who, dim_names};
use crate::source::store::Store;
use crate::source::time_units::is_time;
use crate::source::variables::LABELS_MAX;
use crate::source::zarr;
use serde_json::Value;
use std::sync::Arc;
use tessera_planner::catalog::Attrs;
use tessera_planner::dtype::DType;
use tessera_planner::region::Dims;

/// Names of the array of a level: an image, or its labels.
const IMAGE: &str = "image";
const LABELS: &str = "labels";

/// Axes of images of versions that do not name them.
const DEFAULT_AXES: [&str; 5] = ["t", "c", "z", "y", "x"];

/// Groups above an array that are looked at.
const ABOVE_MAX: usize = 3;

/// Finds the node `group` of the store, as [`zarr::find`]; levels of images have dimensions and labels.
pub(crate) async fn find(store: &Store, group: &str) -> Result<Option<Found>, SourceError> {
    match zarr::find(store, group).await? {
        Some(Found::Group { arrays, groups, attrs }) => match images(&attrs) {
            images if !images.is_empty() => {
                image_of(store, group, images, (arrays, groups, attrs)).await.map(Some)
            }
            _ => {
                let mut arrays = with_labels(store, group, arrays).await?;
                zarr::inherit(store, group, &mut arrays).await?;
                Ok(Some(Found::Group { arrays, groups, attrs }))
            }
        },
        Some(Found::Array(node)) => level_at(store, group, *node).await.map(Some),
        found => Ok(found),
    }
}

/// Names in a group, for stores that cannot be listed: those of the levels of an image and their groups, of labels, of
/// the images of a plate.
pub(crate) fn names(attrs: &Attrs) -> Vec<String> {
    let images = images(attrs);
    let levels = images.iter().flat_map(|i| &i.levels).map(|level| level.first().to_string());
    let mut names: Vec<String> = levels.collect();
    if !names.is_empty() {
        names.push(LABELS.into());
    }
    let get = |key: &str| attrs.get("ome").map_or_else(|| attrs.get(key), |ome| ome.get(key));
    let list = |of: Option<&Value>| of.and_then(Value::as_array).cloned().unwrap_or_default();
    let inside = |key: &str, list_key: &str| list(get(key).and_then(|of| of.get(list_key)));
    for node in [list(get("labels")), inside("plate", "wells"), inside("well", "images")].concat() {
        let path = node.get("path").unwrap_or(&node).as_str().unwrap_or_default();
        names.extend(path.split('/').next().filter(|name| zarr::is_name(name)).map(String::from));
    }
    names.sort();
    names.dedup();
    names
}

/// The group of an image: its first level, and the others as groups.
async fn image_of(
    store: &Store,
    group: &str,
    images: Vec<Image>,
    (mut arrays, mut groups, attrs): (Arrays, Vec<String>, Attrs),
) -> Result<Found, SourceError> {
    let mut own = None;
    for (i, level) in images.iter().flat_map(|image| &image.levels).enumerate() {
        let array = arrays.remove(&level.path);
        match i {
            0 => own = array,
            _ => groups.push(level.first().to_string()),
        }
    }
    groups.sort();
    groups.dedup();
    let found = images.first().and_then(|image| Some((image, image.levels.first()?)));
    let Some((image, level)) = found else {
        return Ok(Found::Group { arrays, groups, attrs });
    };
    let at = zarr::key(group, &level.path);
    let array = match own {
        Some(array) => array,
        None => match zarr::find(store, &at).await? {
            Some(Found::Array(node)) => Ok(*node),
            _ => Err(Unread::from(SourceError::NotFound { what: store.show(&at) })),
        },
    };
    image.add(level, array, &store.show(group), &mut arrays);
    Ok(Found::Group { arrays, groups, attrs })
}

/// The array at a path as a level, if an image above it says so.
async fn level_at(store: &Store, group: &str, node: Node) -> Result<Found, SourceError> {
    let is_level = |level: &Resolution, path: &str| level.path == path;
    match above(store, group, is_v3(&node), is_level).await? {
        Some((image, i, at)) => {
            let mut arrays = Arrays::new();
            if let Some(level) = image.levels.get(i) {
                image.add(level, Ok(node), &store.show(&at), &mut arrays);
            }
            Ok(Found::Group { arrays, groups: Vec::new(), attrs: Attrs::new() })
        }
        None => Ok(Found::Array(Box::new(node))),
    }
}

/// The arrays of a group, one of which is a level if an image above says so: `image` of `scale0/image`.
async fn with_labels(
    store: &Store,
    group: &str,
    mut arrays: Arrays,
) -> Result<Arrays, SourceError> {
    let Some(first) = arrays.values().flatten().next() else { return Ok(arrays) };
    let is_in = |level: &Resolution, path: &str| {
        let name = level.path.strip_prefix(path).and_then(|rest| rest.strip_prefix('/'));
        name.is_some_and(|name| arrays.contains_key(name))
    };
    let Some((image, i, at)) = above(store, group, is_v3(first), is_in).await? else {
        return Ok(arrays);
    };
    let found = image.levels.get(i).and_then(|level| {
        let name = level.path.rsplit('/').next()?;
        Some((level, name.to_string(), arrays.remove(name)?))
    });
    if let Some((level, name, array)) = found {
        let mut made = Arrays::new();
        image.add(level, array, &store.show(&at), &mut made);
        for (made, array) in made {
            let name = if made == image.name { name.clone() } else { made };
            // Stored labels take precedence.
            arrays.entry(name).or_insert(array);
        }
    }
    Ok(arrays)
}

/// The image above a node that has a level for which `is` holds, with the number of the level and the image's group.
async fn above(
    store: &Store,
    group: &str,
    is_v3: bool,
    is: impl Fn(&Resolution, &str) -> bool,
) -> Result<Option<(Image, usize, String)>, SourceError> {
    let splits = group.rmatch_indices('/').map(|(i, _)| (&group[..i], &group[i + 1..]));
    let root = (!group.is_empty()).then_some(("", group));
    for (at, path) in splits.chain(root).take(ABOVE_MAX) {
        let attrs = match zarr::attributes_of(store, at, is_v3).await {
            Ok(Some(attrs)) => attrs,
            // Groups above need not be valid for a node to be read.
            Ok(None) | Err(SourceError::Metadata { .. }) => continue,
            Err(e) => return Err(e),
        };
        for image in images(&attrs) {
            if let Some(i) = image.levels.iter().position(|level| is(level, path)) {
                return Ok(Some((image, i, at.to_string())));
            }
        }
    }
    Ok(None)
}

fn is_v3(node: &Node) -> bool {
    matches!(&node.place, Place::Zarr { document } if document.ends_with("zarr.json"))
}

/// One of `multiscales`.
#[derive(Debug)]
struct Image {
    /// Name of the array of a level.
    name: &'static str,
    axes: Vec<Axis>,
    /// From the finest on.
    levels: Vec<Resolution>,
}

#[derive(Debug)]
struct Axis {
    name: Arc<str>,
    /// True for space and time.
    is_labelled: bool,
    unit: Option<String>,
}

/// One resolution of an image.
#[derive(Debug)]
struct Resolution {
    path: String,
    /// Transformations of an index, in their order; the reason if they are faulty.
    steps: Result<Vec<Step>, String>,
}

#[derive(Debug, Clone)]
enum Step {
    Scale(Vec<f64>),
    Translation(Vec<f64>),
}

/// The images that the attributes of a group describe; those without levels are left out.
fn images(attrs: &Attrs) -> Vec<Image> {
    let get = |key: &str| attrs.get("ome").map_or_else(|| attrs.get(key), |ome| ome.get(key));
    let name = if get("image-label").is_some() { LABELS } else { IMAGE };
    let all = get("multiscales").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|one| Image::of(one, name)).collect()
}

impl Image {
    fn of(one: &Value, name: &'static str) -> Option<Image> {
        let axes: Vec<Axis> = match one.get("axes") {
            None => DEFAULT_AXES.iter().map(|name| Axis::named(name)).collect(),
            Some(axes) => axes.as_array()?.iter().map(Axis::of).collect::<Option<_>>()?,
        };
        let rank = axes.len();
        let last = steps(one.get("coordinateTransformations"), rank);
        let mut levels = Vec::new();
        for level in one.get("datasets")?.as_array()? {
            let path = level.get("path")?.as_str()?.trim_matches('/');
            if !zarr::is_name(path) {
                return None;
            }
            let own = steps(level.get("coordinateTransformations"), rank);
            let steps = own.and_then(|own| Ok([own, last.clone()?].concat()));
            levels.push(Resolution { path: path.to_string(), steps });
        }
        (!levels.is_empty()).then_some(Image { name, axes, levels })
    }

    /// Adds the array of a level and its labels.
    fn add(
        &self,
        level: &Resolution,
        array: Result<Node, Unread>,
        path: &str,
        arrays: &mut Arrays,
    ) {
        let who = Who { array: &level.path, path };
        let array = array.and_then(|mut node| {
            let names: Vec<_> = self.axes.iter().map(|axis| Some(axis.name.clone())).collect();
            if names.len() != node.meta.shape.len() {
                let (axes, rank) = (names.len(), node.meta.shape.len());
                let reason = format!("`multiscales` has {axes} axes, the array {rank}");
                return Err(who.bad(reason).into());
            }
            node.meta.dims = dim_names(who, &node.meta.shape, names)?;
            // Pixels with the fill value are pixels.
            node.meta.fill_v2 = None;
            Ok(node)
        });
        if let Ok(node) = &array {
            let lengths = node.meta.dims.iter().zip(&node.meta.shape).enumerate();
            for ((i, (dim, &n)), axis) in lengths.zip(&self.axes) {
                let (Some(dim), true) = (dim, axis.is_labelled) else { continue };
                if let Some(labels) = level.labels(who, axis, i, n, &node.version) {
                    arrays.insert(dim.to_string(), labels);
                }
            }
        }
        arrays.insert(self.name.into(), array);
    }
}

impl Axis {
    fn of(axis: &Value) -> Option<Axis> {
        let text = |key: &str| axis.get(key).and_then(Value::as_str);
        let of = Axis::named(text("name").or(axis.as_str())?);
        Some(Axis {
            is_labelled: match text("type") {
                Some(kind) => matches!(kind, "space" | "time"),
                None => of.is_labelled,
            },
            unit: text("unit").map(String::from),
            ..of
        })
    }

    /// An axis with the meaning that its name has.
    fn named(name: &str) -> Axis {
        let is_labelled = ["t", "z", "y", "x"].contains(&name.to_ascii_lowercase().as_str());
        Axis { name: name.into(), is_labelled, unit: None }
    }
}

impl Resolution {
    /// The first part of its path.
    fn first(&self) -> &str {
        self.path.split('/').next().unwrap_or(&self.path)
    }

    /// The labels of the axis `i`, which has `n`; `None` without transformations.
    fn labels(
        &self,
        who: Who<'_>,
        axis: &Axis,
        i: usize,
        n: u64,
        version: &Option<String>,
    ) -> Option<Result<Node, Unread>> {
        let mut attrs = Attrs::new();
        if let Some(unit) = &axis.unit {
            // CF would read it as that of dates.
            let key = if is_time(unit) { "unit" } else { "units" };
            attrs.insert(key.into(), unit.as_str().into());
        }
        let dims = vec![(Some(axis.name.clone()), n)];
        let steps = match &self.steps {
            Ok(steps) if steps.is_empty() => return None,
            Ok(_) if n > LABELS_MAX => {
                let reason = format!("it has {n} labels, and at most {LABELS_MAX} are made");
                let error = SourceError::NoLabels { array: axis.name.to_string(), reason };
                return Some(Err(Unread { error, attrs, dims }));
            }
            Ok(steps) => steps,
            Err(reason) => {
                return Some(Err(Unread { error: who.bad(reason.as_str()), attrs, dims }));
            }
        };
        let label = |k: u64| {
            steps.iter().fold(k as f64, |at, step| match step {
                Step::Scale(by) => at * by.get(i).copied().unwrap_or(1.0),
                Step::Translation(by) => at + by.get(i).copied().unwrap_or(0.0),
            })
        };
        let bytes = (0..n).flat_map(|k| label(k).to_ne_bytes()).collect();
        let meta = ArrayMeta::of_file(
            Dims::from_slice(&[n]),
            Dims::from_slice(&[n.max(1)]),
            Raw::Plain(DType::Float64),
            vec![Some(axis.name.clone())],
            (attrs, Vec::new()),
            (Codecs::default(), vec![0; size_of::<f64>()]),
        );
        let key = format!("{}/{}", self.path, axis.name);
        let place = Place::Inline { bytes, is_swapped: false };
        Some(Ok(Node { key, meta, version: version.clone(), place }))
    }
}

/// The transformations in a list; the reason if one is faulty.
fn steps(list: Option<&Value>, rank: usize) -> Result<Vec<Step>, String> {
    let what = "`coordinateTransformations`";
    let list = match list {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(format!("{what} is not a list")),
    };
    let mut out = Vec::new();
    for step in list {
        let kind = step.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "identity" {
            continue;
        }
        let numbers = step.get(kind).and_then(Value::as_array);
        let numbers = numbers.and_then(|n| n.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        match (kind, numbers) {
            ("scale", Some(by)) if by.len() == rank => out.push(Step::Scale(by)),
            ("translation", Some(by)) if by.len() == rank => out.push(Step::Translation(by)),
            ("scale" | "translation", Some(by)) => {
                return Err(format!("a {kind} of {what} has {} numbers for {rank} axes", by.len()));
            }
            ("scale" | "translation", None) => {
                return Err(format!("a {kind} of {what} has no list of numbers"));
            }
            _ => return Err(format!("{what} has a `{kind}`, expected a scale or a translation")),
        }
    }
    Ok(out)
}
