//! Errors of a server, decoded.

use serde_json::Value;
use std::fmt;
use tessera_engine::error::{Class, Error, Position, Report};
use tessera_frontend::Parsed;

/// An error that a server reported.
#[derive(Debug)]
pub struct Failure {
    code: String,
    class: Class,
    message: String,
    detail: Option<Detail>,
    hint: Option<String>,
    position: Option<Position>,
}

/// The causes that a server reported.
#[derive(Debug)]
struct Detail(String);

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Detail {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.detail.as_ref().map(|d| d as _)
    }
}

impl Report for Failure {
    fn code(&self) -> &str {
        &self.code
    }
    fn class(&self) -> Class {
        self.class
    }
    fn hint(&self) -> Option<String> {
        self.hint.clone()
    }
    fn position(&self) -> Option<Position> {
        self.position
    }
}

impl Failure {
    /// The error in the body of a response; an unknown body is reported by its status.
    pub(super) fn read(status: u16, body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) if value["error"].is_object() => Failure::of(&value),
            _ => Failure {
                code: "protocol".into(),
                class: Class::Internal,
                message: format!("the server answered with status {status}"),
                detail: None,
                hint: Some("is this a Tessera server?".into()),
                position: None,
            },
        }
    }

    /// The error in the `error` field of a document.
    pub(crate) fn of(value: &Value) -> Self {
        let e = &value["error"];
        let text = |name: &str| e[name].as_str().map(String::from);
        let place = &e["position"];
        let number = |name: &str| place[name].as_u64();
        Failure {
            code: text("code").unwrap_or_else(|| "unknown".into()),
            class: match e["class"].as_str() {
                Some("user") => Class::User,
                Some("limit") => Class::Limit,
                Some("retry") => Class::Retry,
                _ => Class::Internal,
            },
            message: text("message").unwrap_or_else(|| "the server gave no reason".into()),
            detail: text("detail").map(Detail),
            hint: text("hint"),
            position: number("line").zip(number("column")).map(|(line, column)| Position {
                line,
                column,
                length: number("length").unwrap_or(0),
            }),
        }
    }

    pub(super) fn is(&self, code: &str) -> bool {
        self.code == code
    }
}

/// The error of a statement, with its position counted from the start of the script.
pub(super) fn within(error: Error, statement: &Parsed) -> Error {
    let Error::Stage(stage) = &error else { return error };
    let Some(place) = stage.0.position() else { return error };
    let start = statement.span.start;
    let column =
        if place.line == 1 { place.column + start.column.saturating_sub(1) } else { place.column };
    let position = Position { line: place.line + start.line.saturating_sub(1), column, ..place };
    Error::stage(Failure {
        code: stage.0.code().into(),
        class: stage.0.class(),
        message: error.to_string(),
        detail: error.detail().map(Detail),
        hint: stage.0.hint(),
        position: Some(position),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_error_comes_back_as_it_was() {
        let e = Error::stage(Failure {
            code: "unknown_name".into(),
            class: Class::User,
            message: "unknown name `x`".into(),
            detail: Some(Detail("because".into())),
            hint: Some("try y".into()),
            position: Some(Position { line: 1, column: 8, length: 1 }),
        });
        let sent = e.to_json(Some("7")).to_string();
        let back = Error::stage(Failure::read(400, &sent));
        assert_eq!(back.render("SELECT x"), e.render("SELECT x"));
        assert_eq!((back.code(), back.class()), ("unknown_name", Class::User));
        let script = "SELECT 1;\n  SELECT x";
        let second = &tessera_frontend::parse(script).unwrap()[1];
        let moved = within(back, second);
        let place = moved.position().unwrap();
        assert_eq!((place.line, place.column, place.length), (2, 10, 1));
        assert!(
            moved.render(script).contains("2 |   SELECT x\n             ^\n"),
            "{}",
            moved.render(script)
        );
        let odd = Failure::read(502, "<html>");
        assert_eq!(
            (odd.code(), odd.to_string()),
            ("protocol", "the server answered with status 502".into())
        );
    }
}
