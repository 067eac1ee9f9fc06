//! `LIKE '%special%requests%'`: the parts of the pattern are searched one after the other.
//!
//! Arrow searches a pattern with one part in each text by itself, and matches others as regular expressions, which take
//! 30 times as long.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, GenericStringArray,
    OffsetSizeTrait, StringArrayType,
};
use arrow::compute::{cast, not};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::Like;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use memchr::memmem::Finder;

use super::functions::scalar;
use super::unnamed::Unnamed;

/// The search for a pattern that Arrow would match in another way.
pub(super) fn of_like(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Like(like) = &expr else { return Ok(Transformed::no(expr)) };
    let Some(parts) = PatternParts::of(like) else { return Ok(Transformed::no(expr)) };
    let text = like.expr.as_ref().clone();
    Ok(Transformed::yes(search(parts, like.negated).call(vec![text])))
}

fn search(parts: PatternParts, negated: bool) -> ScalarUDF {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::new_from_impl(Search { parts, negated, signature })
}

/// The parts of a `tessera_like`; `None` for other functions.
pub(super) fn parts_of(function: &ScalarUDF) -> Option<Unnamed> {
    let search = function.inner().downcast_ref::<Search>()?;
    let PatternParts { start, middle, end } = search.parts.clone();
    Some(Unnamed::Like { start, middle, end, negated: search.negated })
}

/// The `tessera_like` of these parts.
pub(super) fn of_parts(
    start: String,
    middle: Vec<String>,
    end: String,
    negated: bool,
) -> ScalarUDF {
    search(PatternParts { start, middle, end }, negated)
}

/// The parts of a pattern between `%`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PatternParts {
    /// The start of a matching text; may be empty.
    start: String,
    /// The parts between start and end, in order.
    middle: Vec<String>,
    /// The end of a matching text; may be empty.
    end: String,
}

impl PatternParts {
    /// The parts of a pattern that Arrow would match as a regular expression, or search in each text by itself.
    fn of(like: &Like) -> Option<PatternParts> {
        let Expr::Literal(pattern, _) = &*like.pattern else { return None };
        let (ScalarValue::Utf8(Some(pattern))
        | ScalarValue::LargeUtf8(Some(pattern))
        | ScalarValue::Utf8View(Some(pattern))) = pattern
        else {
            return None;
        };
        if like.case_insensitive || like.escape_char.is_some() {
            return None;
        }
        let parts = between_wildcards(pattern)?;
        let [start, middle @ .., end] = parts.as_slice() else { return None };
        let middle: Vec<String> = middle.iter().filter(|p| !p.is_empty()).cloned().collect();
        let ends = usize::from(!start.is_empty()) + usize::from(!end.is_empty());
        (!middle.is_empty() || ends > 1).then(|| PatternParts {
            start: start.clone(),
            middle,
            end: end.clone(),
        })
    }
}

/// The texts between the `%` of a pattern without `_`. A character after a backslash is a text, as Arrow has it.
fn between_wildcards(pattern: &str) -> Option<Vec<String>> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '_' => return None,
            '%' => parts.push(std::mem::take(&mut part)),
            '\\' => part.push(chars.next().unwrap_or(c)),
            c => part.push(c),
        }
    }
    parts.push(part);
    Some(parts)
}

/// `tessera_like(text)`: true for texts that match the parts, NULL for NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Search {
    parts: PatternParts,
    negated: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Search {
    scalar!(name "tessera_like", signature, returns DataType::Boolean);

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return exec_err!("tessera_like takes one argument");
        };
        let texts = value.to_array(args.number_rows)?;
        let found = self.parts.matches(&texts)?;
        let found = if self.negated { not(&found)? } else { found };
        Ok(ColumnarValue::Array(Arc::new(found)))
    }
}

impl PatternParts {
    fn matches(&self, texts: &ArrayRef) -> Result<BooleanArray> {
        match texts.data_type() {
            DataType::Utf8 => Ok(self.of_bytes(texts.as_string::<i32>())),
            DataType::LargeUtf8 => Ok(self.of_bytes(texts.as_string::<i64>())),
            DataType::Utf8View => Ok(self.of_texts(texts.as_string_view())),
            DataType::Dictionary(..) => {
                let dictionary = texts.as_any_dictionary();
                let values = self.matches(dictionary.values())?;
                let taken = arrow::compute::take(&values, dictionary.keys(), None)?;
                Ok(taken.as_boolean().clone())
            }
            _ => self.matches(&cast(texts, &DataType::Utf8)?),
        }
    }

    /// A part that may be anywhere is searched in the bytes of all texts at once: starting a search for each text takes
    /// longer than the search.
    fn of_bytes<O: OffsetSizeTrait>(&self, texts: &GenericStringArray<O>) -> BooleanArray {
        let Some(first) = self.middle.first() else { return self.of_texts(texts) };
        let (first, finders) = (Finder::new(first), self.finders());
        let (offsets, bytes) = (texts.value_offsets(), texts.value_data());
        let mut found = BooleanBufferBuilder::new(texts.len());
        found.append_n(texts.len(), false);
        let (mut row, mut at) = (0, offsets[0].as_usize());
        let end = offsets[texts.len()].as_usize();
        while let Some(hit) = first.find(&bytes[at..end]) {
            while offsets[row + 1].as_usize() <= at + hit {
                row += 1;
            }
            // The hit may end in the next text.
            found.set_bit(row, self.is_match(texts.value(row), &finders));
            row += 1;
            at = offsets[row].as_usize();
        }
        BooleanArray::new(found.finish(), texts.nulls().cloned())
    }

    fn of_texts<'a>(&self, texts: impl StringArrayType<'a>) -> BooleanArray {
        let finders = self.finders();
        let mut found = BooleanBufferBuilder::new(texts.len());
        for i in 0..texts.len() {
            found.append(texts.is_valid(i) && self.is_match(texts.value(i), &finders));
        }
        BooleanArray::new(found.finish(), texts.nulls().cloned())
    }

    fn finders(&self) -> Vec<Finder<'_>> {
        self.middle.iter().map(Finder::new).collect()
    }

    fn is_match(&self, text: &str, finders: &[Finder<'_>]) -> bool {
        let mut rest = text.as_bytes();
        // An empty text has no valid address. On some processors a comparison of zero bytes there takes 50 ns.
        if !self.start.is_empty() {
            let Some(inner) = rest.strip_prefix(self.start.as_bytes()) else { return false };
            rest = inner;
        }
        if !self.end.is_empty() {
            let Some(inner) = rest.strip_suffix(self.end.as_bytes()) else { return false };
            rest = inner;
        }
        for finder in finders {
            let Some(at) = finder.find(rest) else { return false };
            rest = &rest[at + finder.needle().len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{DictionaryArray, LargeStringArray, StringArray, StringViewArray};
    use arrow::compute::like;
    use arrow::datatypes::Int32Type;

    fn parts(pattern: &str) -> Option<PatternParts> {
        let literal = Expr::Literal(ScalarValue::Utf8(Some(pattern.into())), None);
        let text = Box::new(datafusion::prelude::col("t"));
        PatternParts::of(&Like::new(false, text, Box::new(literal), None, false))
    }

    #[test]
    fn patterns_match_what_arrow_matches() {
        let texts = [
            "", "a", "ab", "ba", "a%Xb", "aab", "abab", "abcabc", "xaybz", "äaüb", "a\nb", "%a\\b",
        ];
        let texts: Vec<Option<&str>> = texts.into_iter().map(Some).chain([None]).collect();
        let plain = StringArray::from(texts.clone());
        let forms: [ArrayRef; 4] = [
            Arc::new(plain.clone()),
            Arc::new(LargeStringArray::from(texts.clone())),
            Arc::new(StringViewArray::from(texts.clone())),
            Arc::new(texts.iter().copied().collect::<DictionaryArray<Int32Type>>()),
        ];
        for pattern in [
            "%a%", "%ab%", "%ba%", "%a%b%", "a%b", "%a%b", "a%b%", "ab%ab", "%b%a%", "a%%b",
            "%ü%b", "a%b%c%c", "%a%a%a%", r"a\%%b", r"%\%%\\%", r"%\a%b", r"%a%\",
        ] {
            let parts = parts(pattern).unwrap();
            let want = like(&plain, &StringArray::new_scalar(pattern)).unwrap();
            for texts in &forms {
                assert_eq!(
                    parts.matches(texts).unwrap(),
                    want,
                    "{pattern} over {}",
                    texts.data_type()
                );
                // The bytes of other texts are before and behind those of a slice.
                let slice = texts.slice(3, 7);
                assert_eq!(parts.matches(&slice).unwrap(), want.slice(3, 7), "{pattern}");
            }
        }
    }

    #[test]
    fn other_patterns_stay() {
        for pattern in ["", "a", "a%", "%a", "%", "%%", "a_b%c", "a\\%b"] {
            assert_eq!(parts(pattern), None, "{pattern}");
        }
    }
}
