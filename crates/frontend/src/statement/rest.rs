//! `COPY`, `DROP`, `EXPLAIN`, `CANCEL`, `SET`, `SHOW` and `DESCRIBE`.

use sqlparser::keywords::Keyword;
use sqlparser::tokenizer::Token;

use super::read::{Reader, Result};
use super::{Copy, Described, Drop, DropKind, Explain, ExplainFormat, Show, Statement};
use crate::tokens::{is_keyword, is_word};

impl Reader<'_> {
    pub(super) fn copy(&mut self) -> Result<Statement> {
        self.keyword(Keyword::COPY)?;
        if self.peek().token != Token::LParen {
            let hint = "write COPY (SELECT * FROM name) TO …".to_string();
            return self.expected_with("a query in parentheses", Some(hint));
        }
        self.token(&Token::LParen)?;
        let query = self.query()?;
        self.token(&Token::RParen)?;
        self.keyword(Keyword::TO)?;
        let url = self.string("a path or URL in single quotes")?;
        self.keyword(Keyword::STORED)?;
        let format = self.format()?;
        let options = match self.accept(Keyword::OPTIONS) {
            true => self.options()?,
            false => Vec::new(),
        };
        Ok(Statement::Copy(Copy { query, url, format, options }))
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
            return Err(crate::Error::Unsupported {
                construct: "EXPLAIN of CREATE EXTERNAL".to_string(),
                position: Some(place),
                hint: Some("it has no plan; EXPLAIN a query of it".to_string()),
            });
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
                "TENSORS" => Show::Tensors,
                "QUERIES" => Show::Queries,
                "WORKERS" => Show::Workers,
                "FUNCTIONS" => Show::Functions,
                "ALL" => Show::All,
                word @ ("TABLES" | "VIEWS" | "DATABASES" | "SCHEMAS" | "COLUMNS") => {
                    return Err(crate::Error::Unsupported {
                            construct: format!("SHOW {word}"),
                            position: Some(place),
                            hint: Some(
                                "SHOW TENSORS lists tensors, tables and views, DESCRIBE name their columns"
                                    .to_string(),
                            ),
                        });
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
