//! Texts along a dimension, of which some may be missing.

use std::ops::Deref;
use std::sync::Arc;

/// Texts, one for each position. A missing one is NULL in SQL; as a slice it has the text that marks it as missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Texts {
    all: Arc<[String]>,
    /// True where the text is missing; `None` if none is missing.
    missing: Option<Arc<[bool]>>,
}

impl Texts {
    /// Texts of which those are missing that `is_missing` holds for.
    pub fn marked(texts: Vec<String>, is_missing: impl Fn(&str) -> bool) -> Self {
        let missing: Vec<bool> = texts.iter().map(|text| is_missing(text)).collect();
        Texts::of(texts, missing)
    }

    fn of(texts: Vec<String>, missing: Vec<bool>) -> Self {
        let missing = missing.contains(&true).then(|| missing.into());
        Texts { all: texts.into(), missing }
    }

    /// True if the text at `i` is missing.
    pub fn is_missing(&self, i: usize) -> bool {
        self.missing.as_ref().is_some_and(|missing| missing[i])
    }

    /// The text at `i`, unless it is missing.
    pub fn at(&self, i: usize) -> Option<&str> {
        (!self.is_missing(i)).then(|| self.all[i].as_str())
    }

    /// All texts, in order; `None` for missing ones.
    pub fn options(&self) -> impl ExactSizeIterator<Item = Option<&str>> {
        (0..self.all.len()).map(move |i| self.at(i))
    }

    /// The texts at `positions`, in that order; each position is below the length.
    pub fn take(&self, positions: &[u64]) -> Self {
        let texts = positions.iter().map(|&i| self.all[i as usize].clone()).collect();
        let missing = positions.iter().map(|&i| self.is_missing(i as usize)).collect();
        Texts::of(texts, missing)
    }

    /// Several lists of texts, one after the other.
    pub fn joined(parts: &[&Texts]) -> Self {
        let texts = parts.iter().flat_map(|part| part.iter().cloned()).collect();
        let missing = parts.iter().flat_map(|part| (0..part.len()).map(|i| part.is_missing(i)));
        Texts::of(texts, missing.collect())
    }

    /// The first position at which two lists differ; the shorter length if one has more.
    pub fn first_difference(&self, other: &Texts) -> Option<usize> {
        let shorter = self.len().min(other.len());
        let at = (0..shorter).find(|&i| self.at(i) != other.at(i));
        at.or_else(|| (self.len() != other.len()).then_some(shorter))
    }
}

impl Deref for Texts {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.all
    }
}

impl From<Vec<String>> for Texts {
    fn from(texts: Vec<String>) -> Self {
        Texts { all: texts.into(), missing: None }
    }
}

impl<const N: usize> From<[String; N]> for Texts {
    fn from(texts: [String; N]) -> Self {
        Vec::from(texts).into()
    }
}

impl FromIterator<String> for Texts {
    fn from_iter<I: IntoIterator<Item = String>>(texts: I) -> Self {
        texts.into_iter().collect::<Vec<String>>().into()
    }
}

impl FromIterator<Option<String>> for Texts {
    fn from_iter<I: IntoIterator<Item = Option<String>>>(texts: I) -> Self {
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for text in texts {
            missing.push(text.is_none());
            all.push(text.unwrap_or_default());
        }
        Texts::of(all, missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(all: &[Option<&str>]) -> Texts {
        all.iter().map(|text| text.map(String::from)).collect()
    }

    fn options(of: &Texts) -> Vec<Option<&str>> {
        of.options().collect()
    }

    #[test]
    fn missing_texts_stay_missing() {
        let marked = Texts::marked(vec!["a".into(), "NA".into(), String::new()], |t| t == "NA");
        assert_eq!(options(&marked), [Some("a"), None, Some("")]);
        assert_eq!(marked[1], "NA");
        assert_eq!(options(&marked.take(&[2, 1, 1])), [Some(""), None, None]);
        let joined = Texts::joined(&[&texts(&[Some("x")]), &marked]);
        assert_eq!(options(&joined), [Some("x"), Some("a"), None, Some("")]);
        // Texts taken from texts without missing ones equal texts that never had any.
        assert_eq!(marked.take(&[0]), Texts::from(["a".to_string()]));
    }

    #[test]
    fn a_missing_text_differs_from_all_others() {
        let (a, b) = (texts(&[Some("x"), None]), texts(&[Some("x"), Some("")]));
        assert_eq!(a.first_difference(&b), Some(1));
        assert_eq!(a.first_difference(&a), None);
        assert_eq!(a.first_difference(&a.take(&[0])), Some(1));
    }
}
