//! Commands of the shell: a dot or a backslash and a word.

use crate::lex::{TokenKind, tokens};
use tessera_engine::error::Error;

/// The kind of argument a command takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    /// No argument.
    None,
    /// A number.
    Number,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A path.
    File,
    /// A tensor, view or table, or a path in quotes.
    Relation,
    /// A relation, a list of SELECT items, or a whole query.
    Query,
    /// A function, or a part of its name.
    Function,
    /// A command.
    Command,
}

/// A command, as `.help` lists it.
#[derive(Debug, Clone, Copy)]
pub struct CommandRow {
    /// Its name, without the dot.
    pub name: &'static str,
    /// The syntax of its arguments.
    pub usage: &'static str,
    /// The description in `.help`.
    pub help: &'static str,
    /// The kind of its argument.
    pub argument: Argument,
    /// Names after a backslash, as in psql.
    pub aliases: &'static [&'static str],
    /// True if the argument is required.
    required: bool,
    make: fn(String) -> Command,
}

/// Formats of `.mode`.
const MODES: &[&str] = &["table", "json", "ndjson", "csv", "arrow", "npy", "npz"];
const SWITCH: &[&str] = &["on", "off"];

macro_rules! command {
    ($name:literal $(($($alias:literal),*))?, $usage:literal, $argument:expr, $required:literal, $help:literal, $make:expr) => {
        CommandRow {
            name: $name,
            usage: $usage,
            help: $help,
            argument: $argument,
            aliases: &[$($($alias),*)?],
            required: $required,
            make: $make,
        }
    };
}

/// All commands, in the order of `.help`.
pub const COMMANDS: &[CommandRow] = &[
    command!(
        "tables"("d", "dt"),
        "[PATTERN]",
        Argument::Relation,
        false,
        "tensors, views and tables whose name has PATTERN",
        Command::Tables
    ),
    command!(
        "describe"("d+"),
        "NAME|'FILE'|QUERY",
        Argument::Query,
        true,
        "variables and coordinates: types, dimensions, chunks",
        Command::Describe
    ),
    command!(
        "shape",
        "NAME|'FILE'|QUERY",
        Argument::Query,
        true,
        "lengths of the dimensions, cells and bytes",
        Command::Shape
    ),
    command!(
        "chunks",
        "NAME|'FILE'|QUERY",
        Argument::Query,
        true,
        "how the cells are cut into chunks",
        Command::Chunks
    ),
    command!(
        "plot",
        "EXPRESSION|NAME|QUERY",
        Argument::Query,
        true,
        "a line of a 1-d tensor, a heat map of a 2-d one",
        Command::Plot
    ),
    command!(
        "functions"("h", "df"),
        "[PATTERN]",
        Argument::Function,
        false,
        "functions, or all about one",
        Command::Functions
    ),
    command!(
        "mode",
        "[FORMAT]",
        Argument::Words(MODES),
        false,
        "how answers look: table, json, ndjson, csv; arrow, npy, npz into a file",
        Command::Mode
    ),
    command!(
        "maxrows",
        "[N]",
        Argument::Number,
        false,
        "rows of a table that are shown",
        Command::MaxRows
    ),
    command!(
        "timer"("timing"),
        "[on|off]",
        Argument::Words(SWITCH),
        false,
        "prints the time of each statement",
        Command::Timer
    ),
    command!(
        "progress",
        "[on|off]",
        Argument::Words(SWITCH),
        false,
        "a bar for statements of more than a second",
        Command::Progress
    ),
    command!(
        "pager",
        "[on|off]",
        Argument::Words(SWITCH),
        false,
        "shows what is longer than the screen in $PAGER",
        Command::Pager
    ),
    command!(
        "read"("i"),
        "FILE",
        Argument::File,
        true,
        "runs the statements and commands of FILE",
        Command::Read
    ),
    command!(
        "output"("o"),
        "[FILE]",
        Argument::File,
        false,
        "writes what follows into FILE; without FILE to the screen",
        Command::Output
    ),
    command!(
        "once",
        "FILE",
        Argument::File,
        true,
        "writes the next answer into FILE, in the format of its name",
        Command::Once
    ),
    command!("show", "", Argument::None, false, "the shell's settings", |_| Command::Show),
    command!(
        "help"("?", "help"),
        "[COMMAND]",
        Argument::Command,
        false,
        "this list",
        Command::Help
    ),
    command!("quit"("q", "quit", "exit"), "", Argument::None, false, "leaves (Ctrl-D too)", |_| {
        Command::Quit
    }),
    command!("exit", "", Argument::None, false, "leaves", |_| Command::Quit),
];

/// A command with its argument as typed, which may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the row of its name")]
pub enum Command {
    Tables(String),
    Describe(String),
    Shape(String),
    Chunks(String),
    Plot(String),
    Functions(String),
    Mode(String),
    MaxRows(String),
    Timer(String),
    Progress(String),
    Pager(String),
    Read(String),
    Output(String),
    Once(String),
    Show,
    Help(String),
    Quit,
}

impl Command {
    /// The command in `text`; `None` if it is SQL.
    ///
    /// # Errors
    /// `usage`: the command is unknown, or its argument is missing.
    pub fn parse(text: &str) -> Option<Result<Command, Error>> {
        // Users end everything with `;`.
        let text = text.trim().trim_end_matches(';').trim_end();
        if leaves(text) {
            return Some(Ok(Command::Quit));
        }
        if !text.starts_with(['.', '\\']) {
            return None;
        }
        let (word, argument) = match text.split_once(char::is_whitespace) {
            Some((w, a)) => (w, a.trim()),
            None => (text, ""),
        };
        let Some(row) = find(word) else { return Some(Err(unknown(word))) };
        // psql's `\d NAME` describes.
        if word == "\\d" && !argument.is_empty() {
            return Some(Ok(Command::Describe(argument.into())));
        }
        if row.required && argument.is_empty() {
            return Some(Err(Error::Usage {
                reason: format!("`{word}` needs {}", row.usage),
                hint: Some(format!(".{} {}: {}", row.name, row.usage, row.help)),
            }));
        }
        if row.argument == Argument::None && !argument.is_empty() {
            return Some(Err(Error::Usage {
                reason: format!("`{word}` takes nothing, and `{argument}` was given"),
                hint: None,
            }));
        }
        Some(Ok((row.make)(argument.into())))
    }
}

/// True for the words that leave other shells, which have no meaning in SQL.
pub fn leaves(text: &str) -> bool {
    let text = text.trim().trim_end_matches(';').trim_end();
    ["exit", "quit"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Finds the command of `.name` or `\name`.
pub fn find(word: &str) -> Option<&'static CommandRow> {
    let name = word.get(1..)?;
    COMMANDS.iter().find(|c| match word.as_bytes().first() {
        Some(b'.') => c.name == name,
        _ => c.aliases.contains(&name) || c.name == name,
    })
}

fn unknown(word: &str) -> Error {
    let names: Vec<&str> = COMMANDS.iter().map(|c| c.name).collect();
    let name = word.get(1..).unwrap_or_default();
    // A prefix of a command, else a similar name.
    let near = names
        .iter()
        .copied()
        .find(|n| !name.is_empty() && n.starts_with(name))
        .or_else(|| tessera_engine::nearest(name, &names));
    Error::Usage {
        reason: format!("unknown command `{word}`"),
        hint: Some(match near {
            Some(near) => format!("did you mean `.{near}`? `.help` lists them"),
            None => "`.help` lists them".into(),
        }),
    }
}

/// `on` or `off`; an empty argument toggles `now`.
///
/// # Errors
/// `usage`: any other word.
pub fn switch(command: &str, argument: &str, now: bool) -> Result<bool, Error> {
    match argument.to_ascii_lowercase().as_str() {
        "" => Ok(!now),
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err(Error::Usage {
            reason: format!("`.{command}` is on or off, not `{argument}`"),
            hint: None,
        }),
    }
}

/// The text of `.help`: all commands, or one.
///
/// # Errors
/// `usage`: the command is unknown.
pub fn help(argument: &str) -> Result<String, Error> {
    let name = argument.trim_start_matches(['.', '\\']);
    if !name.is_empty() {
        let row = find(&format!(".{name}")).or_else(|| find(&format!("\\{name}")));
        let row = row.ok_or_else(|| unknown(&format!(".{name}")))?;
        let mut text = format!(".{} {}\n  {}\n", row.name, row.usage, row.help);
        for a in row.aliases {
            text.push_str(&format!("  \\{a} is the same\n"));
        }
        return Ok(text);
    }
    let mut text = String::from("SQL ends with `;` and may take several lines.\n\n");
    let head = |c: &CommandRow| format!(".{} {}", c.name, c.usage);
    let shown = || COMMANDS.iter().filter(|c| c.name != "exit");
    let width = shown().map(|c| head(c).len()).max().unwrap_or(0);
    for c in shown() {
        text.push_str(&format!("  {:width$}  {}\n", head(c), c.help));
    }
    text.push_str(
        "\nTab completes, Ctrl-R searches the history, arrows find what begins as the line does.\n\
         Ctrl-C clears the line, or cancels the query that runs.\n\
         \\d, \\d NAME, \\h, \\timing, \\i, \\o, \\? and \\q do what psql's do.\n",
    );
    Ok(text)
}

/// Converts user input to an operand of `DESCRIBE`: a name, a text or a query stays as it is, a path gets quotes, and
/// anything else becomes an item of a SELECT.
pub fn describable(argument: &str) -> String {
    let all: Vec<_> = tokens(argument).into_iter().filter(|t| !t.is_blank()).collect();
    let is_query =
        ["SELECT", "WITH", "VALUES"].iter().any(|w| all.first().is_some_and(|t| t.is(w)));
    let is_text = all.len() == 1 && all[0].kind == TokenKind::Text;
    // Words and dots in turn.
    let is_name = all.iter().enumerate().all(|(i, t)| match i % 2 {
        0 => matches!(t.kind, TokenKind::Word | TokenKind::Quoted),
        _ => t.text == ".",
    });
    if is_query {
        format!("({argument})")
    } else if is_text || is_name || argument.starts_with('(') {
        argument.to_string()
    } else if argument.contains(['/', '\\', ':']) && !argument.contains(['(', '[', ' ']) {
        format!("'{}'", argument.replace('\'', "''"))
    } else {
        format!("(SELECT {argument})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_differ_from_sql() {
        use Command::*;
        for (text, want) in [
            ("\\d", Some(Tables(String::new()))),
            (" \\d  era5 ; ", Some(Describe("era5".into()))),
            ("\\h mean()", Some(Functions("mean()".into()))),
            (".functions", Some(Functions(String::new()))),
            ("\\timing", Some(Timer(String::new()))),
            (".timer on", Some(Timer("on".into()))),
            ("\\q", Some(Quit)),
            (".exit;", Some(Quit)),
            ("\\?", Some(Help(String::new()))),
            (".plot SELECT 1", Some(Plot("SELECT 1".into()))),
            ("SELECT '\\d';", None),
            ("", None),
        ] {
            assert_eq!(Command::parse(text).map(Result::unwrap), want, "{text}");
        }
    }

    #[test]
    fn errors_are_reported_with_a_hint() {
        let told = |text: &str| Command::parse(text).unwrap().unwrap_err().render("");
        insta::assert_snapshot!(told(".tmier on"), @"
        error[usage]: unknown command `.tmier`
        hint: did you mean `.timer`? `.help` lists them
        ");
        insta::assert_snapshot!(told(".func"), @"
        error[usage]: unknown command `.func`
        hint: did you mean `.functions`? `.help` lists them
        ");
        insta::assert_snapshot!(told("\\xyzzy"), @"
        error[usage]: unknown command `\\xyzzy`
        hint: `.help` lists them
        ");
        insta::assert_snapshot!(told(".read"), @"
        error[usage]: `.read` needs FILE
        hint: .read FILE: runs the statements and commands of FILE
        ");
        insta::assert_snapshot!(told(".quit now"), @"error[usage]: `.quit` takes nothing, and `now` was given");
        assert!(switch("timer", "maybe", true).is_err() && !switch("timer", "", true).unwrap());
    }

    #[test]
    fn paths_are_texts() {
        assert_eq!(describable("era5"), "era5");
        assert_eq!(describable("\"my x\""), "\"my x\"");
        assert_eq!(describable("data/it's.zarr"), "'data/it''s.zarr'");
        assert_eq!(describable("'s3://b/x'"), "'s3://b/x'");
        assert_eq!(describable("select 1/2"), "(select 1/2)");
        assert_eq!(describable("a FROM 'x/y'"), "(SELECT a FROM 'x/y')");
        assert_eq!(describable("zeros([2, 3])"), "(SELECT zeros([2, 3]))");
        assert_eq!(describable("data/x.zarr"), "'data/x.zarr'");
    }

    #[test]
    fn every_command_has_its_own_name() {
        let mut names: Vec<&str> = COMMANDS.iter().map(|c| c.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMMANDS.len());
        for c in COMMANDS {
            assert!(help(c.name).unwrap().contains(c.help));
        }
    }
}
