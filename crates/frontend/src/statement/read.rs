//! Dispatches on the first words of a statement.

use sqlparser::ast::{ObjectName, Query};
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Span, Token, TokenWithSpan};

use super::{Insert, Literal, Setting, Statement};
use crate::error::{Error, Position, from_parser, nearest};
use crate::tokens::{Piece, is_keyword, is_word};

/// The words that can begin a statement.
const STATEMENTS: [&str; 16] = [
    "SELECT",
    "FROM",
    "WITH",
    "VALUES",
    "PIVOT",
    "UNPIVOT",
    "SUMMARIZE",
    "CREATE",
    "COPY",
    "INSERT",
    "DROP",
    "EXPLAIN",
    "CANCEL",
    "SET",
    "SHOW",
    "DESCRIBE",
];

/// A parser over the tokens of one statement that reports this crate's errors.
pub(super) struct Reader<'a> {
    pub(super) parser: Parser<'a>,
    piece: &'a Piece,
}

pub(super) type Result<T> = std::result::Result<T, Error>;

/// Parses a whole statement.
pub(crate) fn read(parser: Parser<'_>, piece: &Piece) -> Result<Statement> {
    let mut reader = Reader { parser, piece };
    let statement = reader.statement()?;
    match reader.peek().token {
        Token::EOF => Ok(statement),
        _ => reader.expected("the end of the statement"),
    }
}

impl<'a> Reader<'a> {
    /// Parses a statement up to its last word.
    pub(super) fn statement(&mut self) -> Result<Statement> {
        let first = self.peek().clone();
        let Token::Word(word) = &first.token else {
            return match first.token {
                Token::LParen => Ok(Statement::Query(self.query()?)),
                _ => self.expected("a statement"),
            };
        };
        match word.keyword {
            _ if word.quote_style.is_some() => self.expected("a statement"),
            Keyword::SELECT | Keyword::WITH | Keyword::VALUES => {
                Ok(Statement::Query(self.query()?))
            }
            Keyword::CREATE => self.create(),
            Keyword::COPY => self.copy(),
            Keyword::DROP => self.drop(),
            Keyword::EXPLAIN => self.explain(),
            Keyword::SET => self.set(),
            Keyword::SHOW => self.show(),
            Keyword::DESCRIBE | Keyword::DESC => self.describe(),
            _ if is_word(&first.token, "CANCEL") => self.cancel(),
            _ if is_word(&first.token, "SUMMARIZE") => {
                self.parser.advance_token();
                Ok(Statement::Summarize(self.query()?))
            }
            Keyword::INSERT => self.insert(),
            Keyword::UPDATE | Keyword::DELETE | Keyword::MERGE => {
                let hint = "tensors do not change in place: use CREATE OR REPLACE TENSOR … AS";
                self.unsupported(word.value.to_uppercase(), Some(hint))
            }
            Keyword::ALTER
            | Keyword::TRUNCATE
            | Keyword::GRANT
            | Keyword::REVOKE
            | Keyword::BEGIN
            | Keyword::START
            | Keyword::COMMIT
            | Keyword::ROLLBACK
            | Keyword::PREPARE
            | Keyword::EXECUTE
            | Keyword::DECLARE
            | Keyword::CALL
            | Keyword::USE
            | Keyword::VACUUM
            | Keyword::ANALYZE => self.unsupported(word.value.to_uppercase(), None),
            _ => {
                let hint = nearest(&word.value, &STATEMENTS)
                    .map(|known| format!("did you mean `{known}`?"))
                    .unwrap_or_else(|| {
                        format!("a statement begins with {}", STATEMENTS.join(", "))
                    });
                self.expected_with("a statement", Some(hint))
            }
        }
    }

    /// `INSERT INTO name query`.
    fn insert(&mut self) -> Result<Statement> {
        self.keyword(Keyword::INSERT)?;
        self.keyword(Keyword::INTO)?;
        let name = self.name()?;
        if self.peek().token == Token::LParen && !self.is_query_in_parentheses() {
            return self.unsupported(
                "a list of columns in INSERT",
                Some("name the results of the query as the variables: SELECT … AS t2m"),
            );
        }
        let first = self.peek().span;
        let query = self.query()?;
        let query_span = self.until_end(first);
        Ok(Statement::Insert(Insert { name, query, query_span, query_text: String::new() }))
    }

    /// From a token to the end of the statement.
    pub(super) fn until_end(&self, first: Span) -> Span {
        Span::new(first.start, self.piece.span().end)
    }

    /// True if a query follows the parenthesis that is next.
    fn is_query_in_parentheses(&self) -> bool {
        let next = self.parser.peek_nth_token(1).token;
        [Keyword::SELECT, Keyword::WITH, Keyword::VALUES].iter().any(|k| is_keyword(&next, *k))
    }

    /// Parses a query and reports a fault inside a subquery at its own position.
    pub(super) fn query(&mut self) -> Result<Box<Query>> {
        self.parser.parse_query().map_err(|error| self.sql_error(error))
    }

    /// Parses a name such as `x` or `schema.x`.
    pub(super) fn name(&mut self) -> Result<ObjectName> {
        match &self.peek().token {
            Token::Word(_) => {
                self.parser.parse_object_name(false).map_err(|error| self.sql_error(error))
            }
            _ => self.expected("a name"),
        }
    }

    /// Parses a string in single quotes.
    pub(super) fn string(&mut self, what: &str) -> Result<Literal> {
        match self.peek().token.clone() {
            Token::SingleQuotedString(text) => Ok(self.take(text, true)),
            _ => self.expected(what),
        }
    }

    /// Parses a dotted name or a quoted one, as one text.
    pub(super) fn key(&mut self, what: &str) -> Result<Literal> {
        if let Token::SingleQuotedString(text) = self.peek().token.clone() {
            return Ok(self.take(text, true));
        }
        let mut key = match self.peek().token.clone() {
            Token::Word(word) => self.take(word.value, word.quote_style.is_some()),
            _ => return self.expected(what),
        };
        while self.parser.consume_token(&Token::Period) {
            let Token::Word(word) = self.peek().token.clone() else { return self.expected(what) };
            let part = self.take(word.value, true);
            key.text = format!("{}.{}", key.text, part.text);
            key.span = key.span.union(&part.span);
        }
        Ok(key)
    }

    /// Parses a string, a word, or a number with an optional sign and unit (`2GiB`).
    pub(super) fn value(&mut self) -> Result<Literal> {
        let sign = match self.peek().token {
            Token::Minus => Some(self.take("-".to_string(), false)),
            _ => None,
        };
        let mut value = match (self.peek().token.clone(), &sign) {
            (Token::SingleQuotedString(text), None) => return Ok(self.take(text, true)),
            (Token::Word(word), None) => {
                return Ok(self.take(word.value, word.quote_style.is_some()));
            }
            (Token::Number(text, _), _) => self.take(text, false),
            _ => return self.expected("a value"),
        };
        let unit = self.peek().clone();
        if let Token::Word(word) = unit.token
            && unit.span.start == value.span.end
        {
            let unit = self.take(word.value, false);
            value.text.push_str(&unit.text);
            value.span = value.span.union(&unit.span);
        }
        if let Some(sign) = sign {
            value.text.insert(0, '-');
            value.span = value.span.union(&sign.span);
        }
        Ok(value)
    }

    /// Parses `(key value, …)`; `key = value` is accepted too.
    pub(super) fn options(&mut self) -> Result<Vec<Setting>> {
        self.options_and_flags(false)
    }

    /// As [`Reader::options`]. With `flags`, a key without a value is true, as in `(HEADER)`.
    pub(super) fn options_and_flags(&mut self, flags: bool) -> Result<Vec<Setting>> {
        let mut options: Vec<Setting> = Vec::new();
        self.token(&Token::LParen)?;
        loop {
            let key = self.key("the name of an option")?;
            let has_sign = self.parser.consume_token(&Token::Eq);
            let is_flag = flags && !has_sign;
            let value = match self.peek().token {
                Token::Comma | Token::RParen if is_flag => {
                    Literal { text: "true".to_string(), quoted: false, span: key.span }
                }
                _ => self.value()?,
            };
            if options.iter().any(|known| known.key.text.eq_ignore_ascii_case(&key.text)) {
                let message = format!("the option `{}` is given twice", key.text);
                return Err(Error::syntax(message, Position::of_span(key.span)));
            }
            options.push(Setting { key, value });
            if self.parser.consume_token(&Token::RParen) {
                return Ok(options);
            }
            if !self.parser.consume_token(&Token::Comma) {
                return self.expected("`,` or `)`");
            }
        }
    }

    pub(super) fn peek(&self) -> &TokenWithSpan {
        self.parser.peek_token_ref()
    }

    /// Consumes the next token as a literal.
    fn take(&mut self, text: String, quoted: bool) -> Literal {
        Literal { text, quoted, span: self.parser.next_token().span }
    }

    /// Consumes this keyword if it comes next.
    pub(super) fn accept(&mut self, keyword: Keyword) -> bool {
        let found = is_keyword(&self.peek().token, keyword);
        if found {
            self.parser.advance_token();
        }
        found
    }

    /// Consumes this word if it comes next; for words that sqlparser has no keyword for.
    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = is_word(&self.peek().token, word);
        if found {
            self.parser.advance_token();
        }
        found
    }

    /// Consumes this keyword or fails.
    pub(super) fn keyword(&mut self, keyword: Keyword) -> Result<()> {
        match self.accept(keyword) {
            true => Ok(()),
            false => {
                let word = format!("{keyword:?}");
                let hint = match &self.peek().token {
                    Token::Word(found) => nearest(&found.value, &[word.as_str()])
                        .map(|word| format!("did you mean `{word}`?")),
                    _ => None,
                };
                self.expected_with(&format!("`{word}`"), hint)
            }
        }
    }

    /// Consumes this token or fails.
    pub(super) fn token(&mut self, token: &Token) -> Result<Span> {
        match self.peek().token == *token {
            true => Ok(self.parser.next_token().span),
            false => self.expected(&format!("`{token}`")),
        }
    }

    /// Consumes `IF [NOT] EXISTS` if it comes next.
    pub(super) fn if_exists(&mut self, negated: bool) -> Result<bool> {
        if !self.accept(Keyword::IF) {
            return Ok(false);
        }
        if negated {
            self.keyword(Keyword::NOT)?;
        }
        self.keyword(Keyword::EXISTS)?;
        Ok(true)
    }

    /// The position of the next token, or the end of the statement.
    pub(super) fn here(&self) -> Position {
        Position::of_span(self.peek().span).unwrap_or_else(|| self.piece.end())
    }

    /// Fails at the next token, naming the expected construct.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T> {
        self.expected_with(what, None)
    }

    pub(super) fn expected_with<T>(&self, what: &str, hint: Option<String>) -> Result<T> {
        let found = self.peek();
        let text = match found.token {
            Token::EOF => "EOF".to_string(),
            ref token => token.to_string(),
        };
        let place = found.span.start;
        let text = format!("Expected: {what}, found: {text}{place}");
        match (self.sql_error(ParserError::ParserError(text)), hint) {
            (Error::Syntax { message, position, .. }, Some(hint)) => {
                Err(Error::Syntax { message, position, hint: Some(hint) })
            }
            (error, _) => Err(error),
        }
    }

    /// Fails at the next token because the construct is not supported.
    pub(super) fn unsupported<T>(
        &self,
        construct: impl Into<String>,
        hint: Option<&str>,
    ) -> Result<T> {
        Err(Error::Unsupported {
            construct: construct.into(),
            position: Some(self.here()),
            hint: hint.map(str::to_string),
        })
    }

    pub(super) fn sql_error(&self, error: ParserError) -> Error {
        from_parser(error, &self.piece.tokens, self.piece.end())
    }
}
