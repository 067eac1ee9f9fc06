//! Rejects, before parsing, statements that nest too deeply or make the parser backtrack without end.
//!
//! sqlparser builds a tree by recursion, and a tree is dropped, cloned and lowered by recursion, so
//! the depth of the tree must be bounded. [`check`] reads the tokens once and maintains an
//! upper bound of the depth of the resulting expression:
//!
//! ```text
//! f(a + b + c, [x, (y)])      brackets open a level      depth of a level =
//!  └─── level 1 ──┬──┘        operators chain in it        chained operators
//!                 └ level 2   a comma begins anew          + the deepest level inside
//! ```

use std::cell::Cell;

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use crate::error::{Error, Position};

/// Maximum brackets, `CASE`s and subqueries open at one position.
pub const NESTING_MAX: usize = 128;

/// Maximum depth of a statement's tree: open brackets plus chained operators.
pub const DEPTH_MAX: usize = 500;

/// Maximum times that sqlparser may read the same tokens.
///
/// After `((SELECT` in `FROM` it cannot know whether a subquery or a join follows, tries one and
/// then the other, and the attempts multiply with the nesting.
const RETRIES_MAX: usize = 1024;

/// Bytes of the stack that [`with_stack`] provides: generous, because sqlparser's and DataFusion's frames take
/// tens of kilobytes each in debug builds. Only touched pages become memory.
const STACK_BYTES: usize = 64 << 20;

/// Address space for the stack of a thread that parses and plans statements: enough for
/// [`with_stack`], also for a statement inside another. Only touched pages become memory.
pub const THREAD_STACK_BYTES: usize = 3 * STACK_BYTES;

/// Runs `work` on a stack that fits any recursion over a parsed statement.
///
/// A statement may be [`DEPTH_MAX`] levels deep. Dropping and printing one fits 2 MiB in any
/// build; cloning, binding and lowering one does not, so they run in here.
///
/// Mapping a stack for each statement costs more than a small statement does: a thread created with
/// [`THREAD_STACK_BYTES`] has enough room.
pub fn with_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK_BYTES, STACK_BYTES, work)
}

/// As [`with_stack`], on the current stack if it has room.
pub(crate) fn with_room<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(STACK_BYTES / 4, STACK_BYTES, work)
}

thread_local! {
    static BLOCKS: Cell<usize> = const { Cell::new(0) };
}

/// Plans a nested block. Brackets bound the nesting of written blocks; views, and a CTE that names itself, nest
/// deeper.
///
/// # Errors
/// [`Error::NestingTooDeep`] beyond [`NESTING_MAX`] blocks.
pub fn nested<T>(plan: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            BLOCKS.set(BLOCKS.get() - 1);
        }
    }
    BLOCKS.set(BLOCKS.get() + 1);
    let _leave = Leave;
    if BLOCKS.get() > NESTING_MAX {
        return Err(Error::NestingTooDeep {
            what: "blocks refer to one another in a cycle, as in a CTE that names itself".into(),
            limit: NESTING_MAX,
            position: None,
        });
    }
    plan()
}

/// Maximum keys of one `ORDER BY`. DataFusion's time grows with the cube of their number.
const KEYS_MAX: usize = 250;

/// Checks the number of keys of an `ORDER BY`; `first` is the span of the first one.
///
/// # Errors
/// [`Error::TooComplex`] beyond 250 keys.
pub fn check_keys(keys: usize, first: Option<Span>) -> Result<(), Error> {
    if keys <= KEYS_MAX {
        return Ok(());
    }
    Err(Error::TooComplex {
        what: format!("ORDER BY has {keys} keys"),
        limit: KEYS_MAX,
        position: first.and_then(Position::of_span),
    })
}

/// Checks the tokens of one statement.
///
/// # Errors
/// [`Error::NestingTooDeep`] at the first token beyond a limit.
pub(crate) fn check(tokens: &[TokenWithSpan]) -> Result<(), Error> {
    let mut levels = vec![OpenBracket::default()];
    for (at, token) in tokens.iter().enumerate() {
        step(&mut levels, tokens, at);
        let refuse = |what: String, limit| {
            Err(Error::NestingTooDeep { what, limit, position: Position::of_span(token.span) })
        };
        if levels.len() > NESTING_MAX + 1 {
            return refuse(format!("{} brackets are open here", levels.len() - 1), NESTING_MAX);
        }
        let top = levels.last().copied().unwrap_or_default();
        if top.above + top.depth() > DEPTH_MAX {
            return refuse("too many operators are chained here".to_string(), DEPTH_MAX);
        }
        if top.retries > RETRIES_MAX {
            return refuse("subqueries in doubled parentheses are nested".to_string(), RETRIES_MAX);
        }
    }
    Ok(())
}

/// A bracket or `CASE` that is open.
#[derive(Debug, Default, Clone, Copy)]
struct OpenBracket {
    /// True if a `CASE` opened it, so that `END` closes it.
    is_case: bool,
    /// The depth of the tree above.
    above: usize,
    /// Set operations and joins, which chain across clauses.
    sets: usize,
    /// Depth of the deepest item before the last comma or clause.
    done: usize,
    /// Chained `OR`s of this item.
    ors: usize,
    /// Chained `AND`s since the last `OR`, and their maximum.
    ands: usize,
    ands_max: usize,
    /// Other chained operators since the last `AND` or `OR`, and their maximum.
    others: usize,
    others_max: usize,
    /// Depth of the deepest level that was closed in this item.
    inner: usize,
    /// Number of ways in which the parser may reach this level.
    retries: usize,
}

impl OpenBracket {
    fn item(&self) -> usize {
        self.ors + self.ands_max + self.others_max + self.inner
    }

    fn depth(&self) -> usize {
        self.sets + self.done.max(self.item())
    }

    fn next_item(&mut self) {
        self.done = self.done.max(self.item());
        (self.ors, self.ands, self.ands_max) = (0, 0, 0);
        (self.others, self.others_max, self.inner) = (0, 0, 0);
    }

    fn operator(&mut self) {
        self.others += 1;
        self.others_max = self.others_max.max(self.others);
    }
}

fn step(levels: &mut Vec<OpenBracket>, tokens: &[TokenWithSpan], at: usize) {
    let depth = levels.len();
    let Some(top) = levels.last_mut() else { return };
    match &tokens[at].token {
        Token::LParen | Token::LBracket | Token::LBrace => {
            // A bracket after an operand is a subscript or a call, one more level of the tree.
            top.operator();
            let retries = top.retries.max(1).saturating_mul(openings(tokens, at));
            let above = top.above + top.depth() + 1;
            levels.push(OpenBracket { above, retries, ..OpenBracket::default() });
        }
        Token::RParen | Token::RBracket | Token::RBrace => close(levels, false),
        Token::Comma => top.next_item(),
        Token::Word(word) if word.quote_style.is_none() => match word.keyword {
            Keyword::CASE => {
                top.operator();
                let above = top.above + top.depth() + 1;
                let retries = top.retries;
                levels.push(OpenBracket {
                    is_case: true,
                    above,
                    retries,
                    ..OpenBracket::default()
                });
            }
            Keyword::END if top.is_case && depth > 1 => close(levels, true),
            Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::JOIN => {
                top.sets += 1;
                top.next_item();
            }
            Keyword::SELECT
            | Keyword::FROM
            | Keyword::WHERE
            | Keyword::HAVING
            | Keyword::GROUP
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::WHEN
            | Keyword::THEN
            | Keyword::ELSE => top.next_item(),
            Keyword::OR | Keyword::XOR => {
                top.ors += 1;
                (top.ands, top.others) = (0, 0);
            }
            Keyword::AND => {
                top.ands += 1;
                top.ands_max = top.ands_max.max(top.ands);
                top.others = 0;
            }
            // Words that are prefix, infix or postfix operators, or that nest types.
            Keyword::NOT
            | Keyword::IS
            | Keyword::IN
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::SIMILAR
            | Keyword::RLIKE
            | Keyword::REGEXP
            | Keyword::BETWEEN
            | Keyword::COLLATE
            | Keyword::AT
            | Keyword::DIV
            | Keyword::OPERATOR
            | Keyword::OVERLAPS
            | Keyword::INTERVAL
            | Keyword::LAMBDA
            | Keyword::ARRAY => top.operator(),
            _ => {}
        },
        Token::Word(_)
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::SemiColon
        | Token::EOF => {}
        // Everything else is an operator, or counts as one.
        _ => top.operator(),
    }
}

/// Closes the innermost level; the parser reports a stray closing bracket.
fn close(levels: &mut Vec<OpenBracket>, is_case: bool) {
    // A bracket also closes the CASEs that were left open in it.
    while !is_case && levels.len() > 1 && levels.last().is_some_and(|level| level.is_case) {
        close(levels, true);
    }
    if levels.len() > 1
        && let Some(level) = levels.pop()
        && let Some(top) = levels.last_mut()
    {
        top.inner = top.inner.max(level.depth() + 1);
    }
}

/// Number of consecutive open parentheses, up to this one, that lead to a subquery; 1 if none does.
fn openings(tokens: &[TokenWithSpan], at: usize) -> usize {
    let begins_query = |token: &Token| {
        matches!(token, Token::Word(word) if word.quote_style.is_none()
            && matches!(word.keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES))
    };
    let is_open = |at: usize| tokens.get(at).is_some_and(|t| t.token == Token::LParen);
    let leads = tokens.get(at + 1).is_some_and(|next| begins_query(&next.token));
    if !leads || !is_open(at) {
        return 1;
    }
    (0..=at).rev().take_while(|at| is_open(*at)).count()
}
