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

#[test]
fn flags_of_a_worker_and_its_server_become_settings() {
    let Some(Command::Worker(args)) =
        parse(&["worker", "--scheduler", "far:50050", "--slots", "2", "--memory-limit=1GiB"])
            .unwrap()
            .command
    else {
        unreachable!("it is the command that was typed")
    };
    let mut flags = BTreeMap::new();
    args.flags(&mut flags);
    let told: Vec<(&str, &str)> = flags.iter().map(|(k, v)| (*k, v.as_str())).collect();
    assert_eq!(told, [("scheduler", "far:50050"), ("slots", "2")]);
    assert!(args.check().is_ok());
    // A wildcard address cannot be called.
    let check = |words: &[&str]| match parse(words).unwrap().command {
        Some(Command::Worker(args)) => args.check().map_err(|e| e.exit_status()),
        _ => Ok(()),
    };
    assert_eq!(check(&["worker", "--listen", "0.0.0.0:1"]), Err(2));
    assert_eq!(check(&["worker", "--listen", "[::]:1"]), Err(2));
    assert_eq!(check(&["worker", "--listen", "0.0.0.0:1", "--advertise", "here:1"]), Ok(()));
    assert_eq!(parse(&["worker", "--listen", "here"]).unwrap_err(), ErrorKind::ValueValidation);
    let Some(Command::Serve(args)) =
        parse(&["serve", "--cluster", "--cluster-listen", "127.0.0.1:7"]).unwrap().command
    else {
        unreachable!("it is the command that was typed")
    };
    let mut flags = BTreeMap::new();
    args.flags(&mut flags);
    assert_eq!(flags["cluster"], "true");
    assert_eq!(flags["cluster-listen"], "127.0.0.1:7");
}
