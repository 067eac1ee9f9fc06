//! The texts of CSV files that are NULL.

use regex::Regex;
use std::sync::Arc;

/// The texts that are NULL: the option's, or the empty text without the option.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nulls {
    texts: Arc<[String]>,
    /// Matches exactly these texts.
    regex: Option<Regex>,
}

impl Nulls {
    /// The texts of an option.
    pub(crate) fn new(texts: Vec<String>) -> Result<Self, String> {
        if texts.is_empty() {
            return Ok(Nulls::default());
        }
        let escaped: Vec<String> = texts.iter().map(|text| regex::escape(text)).collect();
        match Regex::new(&format!("^(?:{})$", escaped.join("|"))) {
            Ok(regex) => Ok(Nulls { texts: texts.into(), regex: Some(regex) }),
            Err(_) => Err("its texts are too long".to_string()),
        }
    }

    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Matches the texts; `None` without the option.
    pub(crate) fn regex(&self) -> Option<&Regex> {
        self.regex.as_ref()
    }
}

impl PartialEq for Nulls {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for Nulls {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_whole_texts_are_null() {
        let nulls = Nulls::new(vec!["NA".into(), "-".into(), "a.c".into()]).unwrap();
        let regex = nulls.regex().unwrap();
        for (text, is_null) in
            [("NA", true), ("-", true), ("a.c", true), ("abc", false), ("NA\n", false), ("", false)]
        {
            assert_eq!(regex.is_match(text), is_null, "{text:?}");
        }
        assert!(Nulls::new(vec![String::new()]).unwrap().regex().unwrap().is_match(""));
        assert!(Nulls::new(Vec::new()).unwrap().regex().is_none());
    }
}
