//! Labels of an axis, and numbers short enough for them.

use super::{Dim, MARGIN_MAX};
use tessera_engine::answer::{Cell, Tensor};
use unicode_width::UnicodeWidthStr;

/// The labels of an axis, one for each block: the label of its first cell.
pub(super) struct Axis {
    pub(super) name: String,
    pub(super) labels: Vec<String>,
    /// True if the labels are ascending numbers: then a vertical axis points up.
    pub(super) grows: bool,
}

impl Axis {
    /// An axis with fetched labels, or with positions if `labels` is `None`.
    pub(super) fn new(dim: &Dim, factor: u64, labels: Option<&Tensor>) -> Axis {
        let name = dim.name.clone();
        let Some(t) = labels else {
            let count = dim.length.div_ceil(factor);
            let labels = (0..count).map(|i| (i * factor).to_string()).collect();
            return Axis { name, labels, grows: false };
        };
        let number = |i: usize| match t.cell(i) {
            Cell::Int(v) => Some(v as f64),
            Cell::UInt(v) => Some(v as f64),
            Cell::F32(v) => Some(v.into()),
            Cell::F64(v) => Some(v),
            _ => None,
        };
        let ends = (t.len() > 1).then(|| Some((number(0)?, number(t.len() - 1)?))).flatten();
        let grows = ends.is_some_and(|(a, b)| a < b);
        Axis { name, labels: shorten((0..t.len()).map(|i| t.cell(i).text()).collect()), grows }
    }

    /// A line of labels below `width` characters of picture.
    pub(super) fn below(&self, width: usize) -> String {
        let n = self.labels.len();
        let ticks = (width / 18).clamp(2, 8).min(n);
        let mut line = String::new();
        let mut used = 0;
        for k in 0..ticks {
            let i = if ticks == 1 { 0 } else { k * (n - 1) / (ticks - 1) };
            let label = &self.labels[i];
            let w = label.width();
            let middle = if n == 1 { width / 2 } else { i * (width - 1) / (n - 1) };
            // The last label ends with the axis.
            let start = middle.saturating_sub(w / 2).min(width.saturating_sub(w));
            if k > 0 && start < used + 2 {
                continue;
            }
            line.push_str(&" ".repeat(start - used.min(start)));
            line.push_str(label);
            used = start.max(used) + w;
        }
        line
    }
}

/// Timestamps without a suffix common to all: seconds, or the time of day.
fn shorten(labels: Vec<String>) -> Vec<String> {
    for end in ["T00:00:00", ":00"] {
        if !labels.is_empty() && labels.iter().all(|l| l.len() >= 16 && l.ends_with(end)) {
            return labels.iter().map(|l| l[..l.len() - end.len()].to_string()).collect();
        }
    }
    labels.into_iter().map(|l| cut(&l, MARGIN_MAX - 2)).collect()
}

pub(super) fn cut(text: &str, most: usize) -> String {
    if text.width() <= most {
        return text.into();
    }
    let kept: String = text.chars().take(most.saturating_sub(1)).collect();
    kept + "…"
}

/// `v` with enough digits to distinguish values that are `range` apart.
pub(super) fn number(v: f64, range: f64) -> String {
    let largest = v.abs().max(range.abs());
    if largest != 0.0 && !(1e-4..1e7).contains(&largest) {
        return format!("{v:.3e}");
    }
    let decimals =
        if range > 0.0 { (2.0 - range.log10().floor()).clamp(0.0, 8.0) as usize } else { 4 };
    let text = format!("{v:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".into() } else { text.into() }
}
