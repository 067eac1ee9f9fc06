//! A position in the script and its rendering.

use sqlparser::ast::Spanned;
use sqlparser::tokenizer::Span;

/// Maximum characters of a line that an error shows.
const WIDTH_MAX: usize = 120;

/// A range in the script. Lines and columns count from 1; columns and length are in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line, from 1.
    pub line: u64,
    /// The column of the first character, from 1.
    pub column: u64,
    /// Characters of this line in the range; 0 extends to the end of the line.
    pub length: u64,
}

impl Position {
    /// The position of `span`, or `None` for the empty span of synthesised nodes.
    pub fn of_span(span: Span) -> Option<Self> {
        if span.start.line == 0 {
            return None;
        }
        let length = if span.end.line == span.start.line {
            span.end.column.saturating_sub(span.start.column).max(1)
        } else {
            0
        };
        Some(Self { line: span.start.line, column: span.start.column, length })
    }

    /// The position of a node of the AST, such as an `Expr`, an `Ident` or an `ObjectName`.
    pub fn of(node: &impl Spanned) -> Option<Self> {
        Self::of_span(node.span())
    }

    /// Writes the line of `sql` at this position, with `^` under it.
    pub(super) fn underline(self, sql: &str, out: &mut String) {
        let index = usize::try_from(self.line.saturating_sub(1)).unwrap_or(usize::MAX);
        let Some(line) = sql.split('\n').nth(index) else { return };
        let line: Vec<char> = line.trim_end_matches('\r').chars().collect();
        let column = usize::try_from(self.column.saturating_sub(1)).unwrap_or(usize::MAX);
        let column = column.min(line.len());
        // Of a long line only the window around the position is shown: a line may be a megabyte.
        let first = if line.len() <= WIDTH_MAX { 0 } else { column.saturating_sub(WIDTH_MAX / 2) };
        let last = line.len().min(first + WIDTH_MAX);
        let rest = last - column.min(last);
        let length = match usize::try_from(self.length).unwrap_or(usize::MAX) {
            0 => rest,
            length => length.min(rest),
        };
        let gutter = format!("{} | ", self.line);
        out.push_str(&gutter);
        if first > 0 {
            out.push('…');
        }
        // Control characters would move the underline or the terminal's cursor.
        out.extend(line[first..last].iter().map(|c| if c.is_control() { ' ' } else { *c }));
        if last < line.len() {
            out.push('…');
        }
        out.push('\n');
        let indent = gutter.chars().count() + usize::from(first > 0) + (column - first);
        out.push_str(&" ".repeat(indent));
        out.push_str(&"^".repeat(length.max(1)));
        out.push('\n');
    }
}
