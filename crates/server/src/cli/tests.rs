#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use clap::CommandFactory;
use clap::error::ErrorKind;

fn parse(words: &[&str]) -> Result<Cli, ErrorKind> {
    Cli::try_parse_from([&["tessera"], words].concat()).map_err(|e| e.kind())
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn common_flags_go_before_and_after() {
    for words in [
        &["--memory-limit", "1GiB", "query", "SELECT 1"][..],
        &["query", "--memory-limit", "1GiB", "SELECT 1"],
        &["query", "SELECT 1", "--memory-limit=1GiB"],
        &["bench", "SELECT 1", "-n", "3", "--memory-limit=1GiB"],
        &["--memory-limit=1GiB"],
    ] {
        assert_eq!(parse(words).unwrap().common.flags()["memory-limit"], "1GiB", "{words:?}");
    }
}

#[test]
fn usage_errors() {
    assert_eq!(parse(&["query"]).unwrap_err(), ErrorKind::MissingRequiredArgument);
    assert_eq!(parse(&["query", "SELECT 1", "-f", "x"]).unwrap_err(), ErrorKind::ArgumentConflict);
    assert_eq!(parse(&["bench", "SELECT 1", "-n", "0"]).unwrap_err(), ErrorKind::ValueValidation);
    assert_eq!(parse(&["quary"]).unwrap_err(), ErrorKind::InvalidSubcommand);
    assert!(parse(&["query", "-"]).is_ok() && parse(&["query", "-f", "x.sql"]).is_ok());
}
