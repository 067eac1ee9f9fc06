//! `LIKE '%special%requests%'`: the parts of the pattern are searched one after the other.
//!
//! Arrow has searches for a pattern with one part and matches others as regular expressions, which take 30 times as
//! long for each text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, StringArrayType};
use arrow::compute::{cast, not};
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::Like;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use memchr::memmem::Finder;

use super::unnamed::Unnamed;

/// Rewrites the conditions of an optimised plan; the schema stays the same.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match node {
        // The filters of a scan select parts of files, which they do as they are.
        node @ LogicalPlan::TableScan(_) => Ok(Transformed::no(node)),
        node => {
            let names = datafusion::logical_expr::expr_rewriter::NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                let new = expr.transform_up(of_like)?;
                Ok(new.update_data(|expr| name.restore(expr)))
            })
        }
    })
    .map(|t| t.data)
}

fn of_like(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Like(like) = &expr else { return Ok(Transformed::no(expr)) };
    let Some(parts) = Parts::of(like) else { return Ok(Transformed::no(expr)) };
    let text = like.expr.as_ref().clone();
    Ok(Transformed::yes(search(parts, like.negated).call(vec![text])))
}

fn search(parts: Parts, negated: bool) -> ScalarUDF {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::new_from_impl(Search { parts, negated, signature })
}

/// The parts of a `tessera_like`; `None` for other functions.
pub(super) fn parts_of(function: &ScalarUDF) -> Option<Unnamed> {
    let search = function.inner().downcast_ref::<Search>()?;
    let Parts { start, middle, end } = search.parts.clone();
    Some(Unnamed::Like { start, middle, end, negated: search.negated })
}

/// The `tessera_like` of these parts.
pub(super) fn of_parts(
    start: String,
    middle: Vec<String>,
    end: String,
    negated: bool,
) -> ScalarUDF {
    search(Parts { start, middle, end }, negated)
}

/// The parts of a pattern between `%`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parts {
    /// What a text begins with; may be empty.
    start: String,
    /// What follows, in this order.
    middle: Vec<String>,
    /// What a text ends with; may be empty.
    end: String,
}

impl Parts {
    /// The parts of a pattern that Arrow would match as a regular expression.
    fn of(like: &Like) -> Option<Parts> {
        let Expr::Literal(pattern, _) = &*like.pattern else { return None };
        let (ScalarValue::Utf8(Some(pattern))
        | ScalarValue::LargeUtf8(Some(pattern))
        | ScalarValue::Utf8View(Some(pattern))) = pattern
        else {
            return None;
        };
        if like.case_insensitive || like.escape_char.is_some() || pattern.contains(['_', '\\']) {
            return None;
        }
        let mut parts = pattern.split('%');
        let (start, end) = (parts.next()?, parts.next_back()?);
        let middle: Vec<String> = parts.filter(|p| !p.is_empty()).map(String::from).collect();
        let ends = usize::from(!start.is_empty()) + usize::from(!end.is_empty());
        (middle.len() + ends > 1).then(|| Parts { start: start.into(), middle, end: end.into() })
    }
}

/// `tessera_like(text)`: true for texts that match the parts, NULL for NULL.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Search {
    parts: Parts,
    negated: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Search {
    fn name(&self) -> &str {
        "tessera_like"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

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

impl Parts {
    fn matches(&self, texts: &ArrayRef) -> Result<BooleanArray> {
        match texts.data_type() {
            DataType::Utf8 => Ok(self.of_texts(texts.as_string::<i32>())),
            DataType::LargeUtf8 => Ok(self.of_texts(texts.as_string::<i64>())),
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

    fn of_texts<'a>(&self, texts: impl StringArrayType<'a>) -> BooleanArray {
        let (start, end) = (self.start.as_bytes(), self.end.as_bytes());
        let finders: Vec<Finder<'_>> = self.middle.iter().map(Finder::new).collect();
        let is_match = |text: &str| {
            let mut rest = text.as_bytes().strip_prefix(start)?.strip_suffix(end)?;
            for finder in &finders {
                rest = &rest[finder.find(rest)? + finder.needle().len()..];
            }
            Some(())
        };
        let mut found = BooleanBufferBuilder::new(texts.len());
        for i in 0..texts.len() {
            found.append(texts.is_valid(i) && is_match(texts.value(i)).is_some());
        }
        BooleanArray::new(found.finish(), texts.nulls().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{DictionaryArray, LargeStringArray, StringArray, StringViewArray};
    use arrow::compute::like;
    use arrow::datatypes::Int32Type;

    fn parts(pattern: &str) -> Option<Parts> {
        let literal = Expr::Literal(ScalarValue::Utf8(Some(pattern.into())), None);
        let text = Box::new(datafusion::prelude::col("t"));
        Parts::of(&Like::new(false, text, Box::new(literal), None, false))
    }

    #[test]
    fn patterns_match_what_arrow_matches() {
        let texts =
            ["", "a", "ab", "ba", "aXb", "aab", "abab", "abcabc", "xaybz", "äaüb", "a\nb", "%a%b"];
        let texts: Vec<Option<&str>> = texts.into_iter().map(Some).chain([None]).collect();
        let plain = StringArray::from(texts.clone());
        let forms: [ArrayRef; 4] = [
            Arc::new(plain.clone()),
            Arc::new(LargeStringArray::from(texts.clone())),
            Arc::new(StringViewArray::from(texts.clone())),
            Arc::new(texts.iter().copied().collect::<DictionaryArray<Int32Type>>()),
        ];
        for pattern in
            ["%a%b%", "a%b", "%a%b", "a%b%", "ab%ab", "%b%a%", "a%%b", "%ü%b", "a%b%c%c", "%a%a%a%"]
        {
            let parts = parts(pattern).unwrap();
            let want = like(&plain, &StringArray::new_scalar(pattern)).unwrap();
            for texts in &forms {
                assert_eq!(
                    parts.matches(texts).unwrap(),
                    want,
                    "{pattern} over {}",
                    texts.data_type()
                );
            }
        }
    }

    #[test]
    fn other_patterns_stay() {
        for pattern in ["", "a", "a%", "%a", "%a%", "%", "%%", "a_b%c", "a\\%b%c"] {
            assert_eq!(parts(pattern), None, "{pattern}");
        }
    }
}
