//! The queries that the dialect promises, and what they are parsed into.

use tessera_frontend::parse;

use crate::sexpr::statement;

#[test]
fn the_promised_queries() {
    let script = include_str!("queries.sql");
    let parsed = parse(script).unwrap_or_else(|error| panic!("{}", error.render(script)));
    assert_eq!(parsed.len(), 26);
    let text: Vec<String> = parsed
        .iter()
        .enumerate()
        .map(|(n, parsed)| {
            format!("{}. {}\n{}\n", n + 1, parsed.text, statement(&parsed.statement))
        })
        .collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn texts_and_places_are_those_of_the_script() {
    let script = include_str!("queries.sql");
    for parsed in parse(script).unwrap() {
        assert_eq!(&script[parsed.bytes.clone()], parsed.text);
        let line = usize::try_from(parsed.span.start.line).unwrap();
        assert_eq!(script.lines().nth(line - 1), Some(format!("{};", parsed.text).as_str()));
        assert_eq!(parsed.span.start.column, 1);
    }
}
