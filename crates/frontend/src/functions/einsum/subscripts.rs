//! Parses the text of `einsum`: letters of operands and of the result become labels.

use super::Label;
use crate::lower::value::Tensor;

/// First label of the axes under `...`: it labels the last of them, the next labels those before it.
pub(super) const ELLIPSIS: Label = 1 << 16;

/// The labels of each operand and of the result, or the error in the text.
pub(super) fn read(
    text: &str,
    tensors: &[Tensor],
) -> Result<(Vec<Vec<Label>>, Vec<Label>), String> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let parts: Vec<&str> = left.split(',').collect();
    if parts.len() != tensors.len() {
        return Err(format!("has {} operands for {} tensors", parts.len(), tensors.len()));
    }
    let mut free = 0;
    let mut terms = Vec::with_capacity(parts.len());
    for (part, tensor) in parts.iter().zip(tensors) {
        let rank = tensor.dims.len();
        let (before, after) = letters(part)?;
        let named = before.len() + after.as_ref().map_or(0, Vec::len);
        let open = rank.checked_sub(named).filter(|&open| open == 0 || after.is_some());
        let Some(open) = open else {
            return Err(format!(
                "gives {named} letters to a tensor of {rank} dimensions: `{part}`"
            ));
        };
        free = free.max(open);
        let mut labels = before;
        labels.extend((0..open as Label).rev().map(|i| ELLIPSIS + i));
        labels.extend(after.unwrap_or_default());
        terms.push(labels);
    }
    let open = (0..free as Label).rev().map(|i| ELLIPSIS + i);
    let output: Vec<Label> = match right {
        None => {
            let mut all: Vec<Label> = terms.iter().flatten().copied().collect();
            all.sort_unstable();
            let once = |l: &Label| all.iter().filter(|other| *other == l).count() == 1;
            let single = all.iter().filter(|l| **l < ELLIPSIS && once(l)).copied();
            open.chain(single).collect()
        }
        Some(part) => {
            let (before, after) = letters(part)?;
            if after.is_none() && free > 0 {
                return Err("has `...` in an operand and not in the result".into());
            }
            match after {
                None => before,
                Some(after) => before.into_iter().chain(open).chain(after).collect(),
            }
        }
    };
    for (at, label) in output.iter().enumerate() {
        if output[..at].contains(label) {
            return Err(format!("names `{}` twice in the result", show(*label)));
        }
        if !terms.iter().any(|t| t.contains(label)) {
            return Err(format!("names `{}` in the result, which no operand has", show(*label)));
        }
    }
    Ok((terms, output))
}

/// The letters before `...`, and those after it if it occurs.
fn letters(part: &str) -> Result<(Vec<Label>, Option<Vec<Label>>), String> {
    let read = |text: &str| -> Result<Vec<Label>, String> {
        text.chars()
            .map(|c| match c.is_ascii_alphabetic() {
                true => Ok(c as Label),
                false => Err(format!("has `{c}`; axes are letters, and `...`")),
            })
            .collect()
    };
    match part.split_once("...") {
        None => Ok((read(part)?, None)),
        Some((before, after)) => Ok((read(before)?, Some(read(after)?))),
    }
}

pub(super) fn show(label: Label) -> String {
    if label >= ELLIPSIS {
        return "...".into();
    }
    char::from_u32(label).map_or_else(|| format!("axis {label}"), String::from)
}
