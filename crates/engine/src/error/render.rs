//! Renders errors: as text for a terminal, as JSON for a client.

use super::{Error, Position};
use serde_json::{Value, json};

/// Upper bound on the part of a line that is shown, in characters.
const WIDTH_MAX: usize = 120;

impl Error {
    /// The error as a terminal shows it: `error[code]: message`, the causes, the line of `sql` with the place
    /// underlined, the hint. Each line ends with a newline.
    ///
    /// `sql` is the whole script, because positions count from its start.
    pub fn render(&self, sql: &str) -> String {
        let mut out = format!("error[{}]: {self}\n", self.code());
        if let Some(detail) = self.detail() {
            out.push_str(&format!("  because: {detail}\n"));
        }
        if let Some(position) = self.position() {
            underline(position, sql, &mut out);
        }
        if let Some(hint) = self.hint() {
            out.push_str(&format!("hint: {hint}\n"));
        }
        out
    }

    /// The error body of the HTTP interface; absent fields are `null`. `server` is set only if another server is to be
    /// asked.
    pub fn to_json(&self, statement_id: Option<&str>) -> Value {
        let mut body = json!({"error": {
            "code": self.code(),
            "class": self.class().name(),
            "message": self.to_string(),
            "detail": self.detail(),
            "hint": self.hint(),
            "position": self.position().map(|p| json!({"line": p.line, "column": p.column, "length": p.length})),
            "statement_id": statement_id,
        }});
        if let Error::Stage(stage) = self
            && let Some(url) = stage.0.server()
        {
            body["error"]["server"] = url.into();
        }
        body
    }
}

/// Writes the line of `sql` that contains the place, and `^` under it.
fn underline(place: Position, sql: &str, out: &mut String) {
    let index = usize::try_from(place.line.saturating_sub(1)).unwrap_or(usize::MAX);
    let Some(line) = sql.split('\n').nth(index) else { return };
    let line: Vec<char> = line.trim_end_matches('\r').chars().collect();
    let column =
        usize::try_from(place.column.saturating_sub(1)).unwrap_or(usize::MAX).min(line.len());
    // A long line is cut to a window around the place: a script may be one line of a megabyte.
    let first = if line.len() <= WIDTH_MAX { 0 } else { column.saturating_sub(WIDTH_MAX / 2) };
    let last = line.len().min(first + WIDTH_MAX);
    let room = last.saturating_sub(column);
    let length = match place.length {
        0 => room,
        n => usize::try_from(n).unwrap_or(usize::MAX).min(room),
    };
    let gutter = format!("{} | ", place.line);
    let left = if first > 0 { "…" } else { "" };
    let right = if last < line.len() { "…" } else { "" };
    // Control characters would move the underline, or the cursor.
    let shown: String =
        line[first..last].iter().map(|c| if c.is_control() { ' ' } else { *c }).collect();
    let indent = gutter.len() + left.chars().count() + (column - first);
    out.push_str(&format!("{gutter}{left}{shown}{right}\n"));
    out.push_str(&format!("{}{}\n", " ".repeat(indent), "^".repeat(length.max(1))));
}

#[cfg(test)]
mod tests {
    use super::super::{Class, Report};
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("unknown name `lta`")]
    struct Unknown(#[source] std::io::Error);

    impl Report for Unknown {
        fn code(&self) -> &str {
            "unknown_name"
        }
        fn class(&self) -> Class {
            Class::User
        }
        fn hint(&self) -> Option<String> {
            Some("did you mean `lat`?".into())
        }
        fn position(&self) -> Option<Position> {
            Some(Position { line: 2, column: 13, length: 3 })
        }
    }

    #[test]
    fn a_terminal_sees_place_cause_and_hint() {
        let e = Error::stage(Unknown(std::io::Error::other("disk on fire")));
        assert_eq!(
            e.render("SELECT 1;\r\nSELECT mean(lta, 0)\r\nFROM x"),
            "error[unknown_name]: unknown name `lta`\n  because: disk on fire\n\
             2 | SELECT mean(lta, 0)\n                ^^^\nhint: did you mean `lat`?\n"
        );
        assert_eq!((e.status(), e.exit_status()), (400, 1));
    }

    #[test]
    fn a_place_beyond_the_text_does_not_panic() {
        for (line, column) in [(1, 1), (1, 900), (2, 5), (0, 0), (u64::MAX, u64::MAX)] {
            let mut out = String::new();
            underline(Position { line, column, length: u64::MAX }, "abc", &mut out);
            underline(Position { line, column, length: 0 }, &"é".repeat(1000), &mut out);
        }
    }

    #[test]
    fn a_client_sees_every_field() {
        let e = Error::stage(Unknown(std::io::Error::other("disk on fire")));
        assert_eq!(
            e.to_json(Some("7")).to_string(),
            r#"{"error":{"code":"unknown_name","class":"user","message":"unknown name `lta`","detail":"disk on fire","hint":"did you mean `lat`?","position":{"line":2,"column":13,"length":3},"statement_id":"7"}}"#
        );
        let e = Error::Busy { running: 8, queued: 0 };
        assert_eq!(e.to_json(None)["error"]["position"], Value::Null);
        assert_eq!((e.status(), e.class().name()), (429, "limit"));
        assert_eq!(Error::Cancelled.exit_status(), 130);
    }
}
