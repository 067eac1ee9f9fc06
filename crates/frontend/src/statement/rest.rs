//! `COPY`, `DROP`, `EXPLAIN`, `CANCEL`, `SET`, `SHOW` and `DESCRIBE`.

use sqlparser::ast::{Ident, ObjectName, Query, Spanned};
use sqlparser::keywords::Keyword;
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::read::{Reader, Result};
use super::{Copy, Described, Drop, DropKind, Explain, ExplainFormat, Setting, Show, Statement};
use crate::dialect::TesseraDialect;
use crate::error::{Error, Position};
use crate::tokens::{is_keyword, is_word};

impl Reader<'_> {
    pub(super) fn copy(&mut self) -> Result<Statement> {
        self.keyword(Keyword::COPY)?;
        let query = self.copied()?;
        self.keyword(Keyword::TO)?;
        let url = self.string("a path or URL in single quotes")?;
        let mut format = if self.accept(Keyword::STORED) { Some(self.format()?) } else { None };
        // `WITH (…)` as in PostgreSQL, `(…)` as in DuckDB.
        let is_named = self.accept(Keyword::OPTIONS) || self.accept(Keyword::WITH);
        let mut options = match is_named || self.peek().token == Token::LParen {
            true => self.options_and_flags(true)?,
            false => Vec::new(),
        };
        let is_format = |s: &Setting| s.key.text.eq_ignore_ascii_case("format");
        if let Some(at) = options.iter().position(is_format) {
            let Setting { key, value } = options.remove(at);
            if format.is_some() {
                let place = Position::of_span(key.span);
                return Err(Error::syntax("the format is given twice", place));
            }
            format = Some(Ident::with_span(value.span, value.text));
        }
        Ok(Statement::Copy(Copy { query, url, format, options }))
    }

    /// The query that COPY writes: one in parentheses, or all of a named relation.
    fn copied(&mut self) -> Result<Box<Query>> {
        match &self.peek().token {
            Token::LParen => {
                self.token(&Token::LParen)?;
                let query = self.query()?;
                self.token(&Token::RParen)?;
                return Ok(query);
            }
            Token::Word(word)
                if !matches!(word.keyword, Keyword::SELECT | Keyword::WITH | Keyword::VALUES) => {}
            _ => {
                let hint = "write COPY (SELECT …) TO …, or COPY name TO …".to_string();
                return self.expected_with("a query in parentheses or a name", Some(hint));
            }
        }
        let name = self.name()?;
        if self.peek().token == Token::LParen {
            let hint = "write COPY (SELECT a, b FROM name) TO …";
            return self.unsupported("a list of columns in COPY", Some(hint));
        }
        if is_keyword(&self.peek().token, Keyword::FROM) {
            let hint = "CREATE TENSOR … AS SELECT … FROM 'file' reads a file, INSERT INTO appends";
            return self.unsupported("COPY … FROM", Some(hint));
        }
        self.all_of(&name)
    }

    /// `SELECT * FROM name`, whose words all have the position of the name.
    fn all_of(&self, name: &ObjectName) -> Result<Box<Query>> {
        let words = [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")];
        let mut tokens: Vec<_> =
            words.into_iter().map(|token| TokenWithSpan::new(token, name.span())).collect();
        for (i, part) in name.0.iter().filter_map(|part| part.as_ident()).enumerate() {
            if i > 0 {
                tokens.push(TokenWithSpan::new(Token::Period, part.span));
            }
            let word = Token::make_word(&part.value, part.quote_style);
            tokens.push(TokenWithSpan::new(word, part.span));
        }
        let dialect = TesseraDialect::for_tokens(tokens.len());
        let mut parser = Parser::new(&dialect).with_tokens_with_locations(tokens);
        parser.parse_query().map_err(|error| self.sql_error(error))
    }

    pub(super) fn drop(&mut self) -> Result<Statement> {
        self.keyword(Keyword::DROP)?;
        let kind = if self.accept_word("TENSOR") {
            DropKind::Tensor
        } else if self.accept(Keyword::VIEW) {
            DropKind::View
        } else if self.accept(Keyword::TABLE) {
            DropKind::Table
        } else {
            return self.expected("`TENSOR`, `VIEW` or `TABLE`");
        };
        let if_exists = self.if_exists(false)?;
        Ok(Statement::Drop(Drop { kind, name: self.name()?, if_exists }))
    }

    pub(super) fn explain(&mut self) -> Result<Statement> {
        self.keyword(Keyword::EXPLAIN)?;
        let analyze = self.accept(Keyword::ANALYZE);
        let verbose = self.accept(Keyword::VERBOSE);
        let format = self.explain_format()?;
        let word = self.peek().token.clone();
        let explainable = word == Token::LParen
            || [Keyword::SELECT, Keyword::WITH, Keyword::VALUES, Keyword::CREATE, Keyword::COPY]
                .iter()
                .any(|keyword| is_keyword(&word, *keyword));
        if !explainable {
            return self.expected("a query, `CREATE TENSOR` or `COPY`");
        }
        let place = self.here();
        let statement = self.statement()?;
        if matches!(statement, Statement::CreateExternal(_)) {
            return Err(crate::Error::unsupported("EXPLAIN of CREATE EXTERNAL", Some(place))
                .with_hint("it has no plan; EXPLAIN a query of it"));
        }
        let statement = Box::new(statement);
        Ok(Statement::Explain(Explain { analyze, verbose, format, statement }))
    }

    /// `'(' FORMAT name ')'`; any other parenthesis begins the query.
    fn explain_format(&mut self) -> Result<ExplainFormat> {
        let is_format = self.peek().token == Token::LParen
            && is_keyword(&self.parser.peek_nth_token_ref(1).token, Keyword::FORMAT);
        if !is_format {
            return Ok(ExplainFormat::default());
        }
        self.token(&Token::LParen)?;
        self.keyword(Keyword::FORMAT)?;
        let format = if self.accept_word("text") {
            ExplainFormat::Text
        } else if self.accept_word("json") {
            ExplainFormat::Json
        } else if self.accept_word("dot") {
            ExplainFormat::Dot
        } else {
            return self.expected("`text`, `json` or `dot`");
        };
        self.token(&Token::RParen)?;
        Ok(format)
    }

    pub(super) fn cancel(&mut self) -> Result<Statement> {
        self.accept_word("CANCEL");
        if !self.accept_word("QUERY") {
            return self.expected("`QUERY`");
        }
        Ok(Statement::Cancel { id: self.string("the statement's id in single quotes")? })
    }

    pub(super) fn set(&mut self) -> Result<Statement> {
        self.keyword(Keyword::SET)?;
        let name = self.key("the name of a setting")?;
        if !self.parser.consume_token(&Token::Eq) && !self.accept(Keyword::TO) {
            return self.expected("`=`");
        }
        Ok(Statement::Set { name, value: self.value()? })
    }

    pub(super) fn show(&mut self) -> Result<Statement> {
        self.keyword(Keyword::SHOW)?;
        let place = self.here();
        let show = match self
            .key("`TENSORS`, `QUERIES`, `WORKERS`, `FUNCTIONS`, `ALL` or a setting")?
        {
            name if name.quoted => Show::Variable(name),
            name => match name.text.to_ascii_uppercase().as_str() {
                "TENSORS" | "TABLES" => Show::Tensors,
                "QUERIES" => Show::Queries,
                "WORKERS" => Show::Workers,
                "FUNCTIONS" => Show::Functions,
                "ALL" => Show::All,
                word @ ("VIEWS" | "DATABASES" | "SCHEMAS" | "COLUMNS") => {
                    return Err(crate::Error::unsupported(format!("SHOW {word}"), Some(place))
                        .with_hint("SHOW TENSORS lists tensors, tables and views, DESCRIBE name their columns"));
                }
                _ => Show::Variable(name),
            },
        };
        Ok(Statement::Show(show))
    }

    pub(super) fn describe(&mut self) -> Result<Statement> {
        self.parser.advance_token();
        let next = self.peek().token.clone();
        let described = match next {
            Token::SingleQuotedString(_) => Described::Url(self.string("a path or URL")?),
            Token::LParen => Described::Query(self.query()?),
            _ if ["SELECT", "WITH", "VALUES"].iter().any(|word| is_word(&next, word)) => {
                Described::Query(self.query()?)
            }
            _ => Described::Name(self.name()?),
        };
        Ok(Statement::Describe(described))
    }
}
