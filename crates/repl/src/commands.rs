//! Commands of the shell itself: a backslash and a word.

/// What `\?` prints.
pub const HELP: &str = "\
SQL ends with `;` and may take several lines.
  \\d              lists tensors and tables
  \\d NAME         describes one: its dimensions, coordinates, chunks
  \\h              lists functions
  \\h FUNCTION     explains one
  \\timing         tells the time of each statement, or stops telling
  \\?              this text
  \\q              leaves (Ctrl-D too)
Ctrl-C clears the line, or cancels the query that runs.
";

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// `\d`
    List,
    /// `\d NAME`
    Describe(String),
    /// `\h`
    Functions,
    /// `\h FUNCTION`
    Function(String),
    /// `\timing`
    Timing,
    /// `\?`
    Help,
    /// `\q`
    Quit,
    /// Anything else, as typed.
    Unknown(String),
}

impl Command {
    /// The command in `text`; `None` if it is SQL.
    pub fn parse(text: &str) -> Option<Command> {
        // People end everything with `;`.
        let text = text.trim().trim_end_matches(';').trim_end();
        let rest = text.strip_prefix('\\')?;
        let (word, argument) = match rest.split_once(char::is_whitespace) {
            Some((w, a)) => (w, a.trim()),
            None => (rest, ""),
        };
        Some(match (word, argument) {
            ("d", "") => Command::List,
            ("d", name) => Command::Describe(name.into()),
            ("h", "") => Command::Functions,
            ("h", name) => Command::Function(name.trim_end_matches("()").into()),
            ("timing", "") => Command::Timing,
            ("?" | "help", "") => Command::Help,
            ("q" | "quit" | "exit", "") => Command::Quit,
            _ => Command::Unknown(text.into()),
        })
    }
}

/// `DESCRIBE` of a name as typed: a name, or a path or URL, which is a text in SQL.
pub fn describe_sql(name: &str) -> String {
    let quoted = name.starts_with(['\'', '"']);
    if !quoted && name.contains(['/', '\\', ':']) {
        format!("DESCRIBE '{}'", name.replace('\'', "''"))
    } else {
        format!("DESCRIBE {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_sql() {
        use Command::*;
        for (text, want) in [
            ("\\d", Some(List)),
            (" \\d  era5 ; ", Some(Describe("era5".into()))),
            ("\\h mean()", Some(Function("mean".into()))),
            ("\\h", Some(Functions)),
            ("\\timing", Some(Timing)),
            ("\\q", Some(Quit)),
            ("\\?", Some(Help)),
            ("\\x y", Some(Unknown("\\x y".into()))),
            ("SELECT '\\d';", None),
        ] {
            assert_eq!(Command::parse(text), want, "{text}");
        }
    }

    #[test]
    fn paths_are_texts() {
        assert_eq!(describe_sql("era5"), "DESCRIBE era5");
        assert_eq!(describe_sql("\"my x\""), "DESCRIBE \"my x\"");
        assert_eq!(describe_sql("data/it's.zarr"), "DESCRIBE 'data/it''s.zarr'");
        assert_eq!(describe_sql("'s3://b/x'"), "DESCRIBE 's3://b/x'");
    }
}
