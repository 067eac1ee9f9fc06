//! `CREATE …`.

use sqlparser::ast::{Ident, ObjectName, Query};
use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::{Span, Token};

use super::read::{Reader, Result};
use super::{CreateExternal, CreateTensor, CreateView, ExternalKind, Literal, Setting, Statement};
use crate::error::{Error, nearest};
use crate::tokens::is_keyword;

impl Reader<'_> {
    pub(super) fn create(&mut self) -> Result<Statement> {
        self.keyword(Keyword::CREATE)?;
        let or_replace = self.accept(Keyword::OR);
        if or_replace {
            self.keyword(Keyword::REPLACE)?;
        }
        if self.accept(Keyword::EXTERNAL) {
            return self.create_external(or_replace);
        }
        let temp = self.accept(Keyword::TEMP) || self.accept(Keyword::TEMPORARY);
        if self.accept_word("TENSOR") {
            let (name, if_not_exists) = self.created(or_replace)?;
            let (query, _) = self.as_query()?;
            let create = CreateTensor { name, or_replace, if_not_exists, temp, query };
            return Ok(Statement::CreateTensor(create));
        }
        if temp {
            return self.expected("`TENSOR`");
        }
        if self.accept(Keyword::VIEW) {
            let (name, if_not_exists) = self.created(or_replace)?;
            let (query, query_span) = self.as_query()?;
            let create = CreateView {
                name,
                or_replace,
                if_not_exists,
                query,
                query_span,
                // The reader sees tokens only; the caller, which has the script, fills in the text.
                query_text: String::new(),
            };
            return Ok(Statement::CreateView(create));
        }
        if is_keyword(&self.peek().token, Keyword::TABLE) {
            let hint = "use CREATE TENSOR … AS, CREATE VIEW … AS or CREATE EXTERNAL TABLE";
            return self.unsupported("CREATE TABLE", Some(hint));
        }
        let hint = match &self.peek().token {
            Token::Word(word) => nearest(&word.value, &["TENSOR", "TEMP", "EXTERNAL", "VIEW"])
                .map(|known| format!("did you mean `{known}`?")),
            _ => None,
        };
        self.expected_with("`TENSOR`, `TEMP TENSOR`, `EXTERNAL TABLE` or `VIEW`", hint)
    }

    /// `[IF NOT EXISTS] name`; `OR REPLACE` excludes `IF NOT EXISTS`.
    fn created(&mut self, or_replace: bool) -> Result<(ObjectName, bool)> {
        let place = self.here();
        let if_not_exists = self.if_exists(true)?;
        if or_replace && if_not_exists {
            let message = "OR REPLACE and IF NOT EXISTS exclude each other";
            return Err(Error::syntax(message, Some(place)));
        }
        Ok((self.name()?, if_not_exists))
    }

    /// `AS query` at the end of the statement, with the span of the query.
    fn as_query(&mut self) -> Result<(Box<Query>, Span)> {
        if self.peek().token == Token::LParen {
            let hint = "name the columns in the query: `AS SELECT 1 AS a, 2 AS b`";
            return self.expected_with("`AS`", Some(hint.to_string()));
        }
        self.keyword(Keyword::AS)?;
        let first = self.peek().span;
        let query = self.query()?;
        Ok((query, self.until_end(first)))
    }

    fn create_external(&mut self, or_replace: bool) -> Result<Statement> {
        let kind = match self.accept(Keyword::TABLE) {
            true => ExternalKind::Table,
            false if self.accept_word("TENSOR") => ExternalKind::Tensor,
            false => return self.expected("`TABLE` or `TENSOR`"),
        };
        let (name, if_not_exists) = self.created(or_replace)?;
        if self.peek().token == Token::LParen {
            let hint = "the columns are those of the file";
            return self.unsupported("a list of columns in CREATE EXTERNAL", Some(hint));
        }
        let clauses = self.storage()?;
        let create = CreateExternal {
            kind,
            name,
            or_replace,
            if_not_exists,
            format: clauses.format,
            location: clauses.location,
            options: clauses.options,
        };
        Ok(Statement::CreateExternal(create))
    }

    /// `STORED AS fmt`, `LOCATION 'url'` and `OPTIONS (…)` in any order, each at most once.
    fn storage(&mut self) -> Result<Storage> {
        let (mut format, mut location, mut options) = (None, None, None);
        loop {
            if format.is_none() && self.accept(Keyword::STORED) {
                format = Some(self.format()?);
            } else if location.is_none() && self.accept(Keyword::LOCATION) {
                location = Some(self.string("a path or URL in single quotes")?);
            } else if options.is_none() && self.accept(Keyword::OPTIONS) {
                options = Some(self.options()?);
            } else {
                break;
            }
        }
        match (format, location) {
            (Some(format), Some(location)) => {
                Ok(Storage { format, location, options: options.unwrap_or_default() })
            }
            (None, _) => self.expected("`STORED AS`"),
            (_, None) => self.expected("`LOCATION`"),
        }
    }

    /// `AS fmt` after `STORED`.
    pub(super) fn format(&mut self) -> Result<Ident> {
        self.keyword(Keyword::AS)?;
        match self.peek().token.clone() {
            Token::Word(word) => Ok(word.into_ident(self.parser.next_token().span)),
            _ => self.expected("a format such as ZARR, NPY or PARQUET"),
        }
    }
}

struct Storage {
    format: Ident,
    location: Literal,
    options: Vec<Setting>,
}
