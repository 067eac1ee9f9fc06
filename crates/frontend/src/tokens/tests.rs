#![allow(clippy::unwrap_used, reason = "tests")]

use super::split;

/// The tokens of a statement, in SQL's order, with spaces between them.
pub(crate) fn tokens(text: &str) -> String {
    let tokens = split(text).unwrap().remove(0).tokens;
    tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" ")
}

fn texts(script: &str) -> Vec<&str> {
    split(script).unwrap().into_iter().map(|piece| &script[piece.bytes]).collect()
}

#[test]
fn statements_are_byte_ranges_of_the_script() {
    assert_eq!(
        texts("SELECT 1; SELECT 'ä;b' -- c;\n ; ;;\r\nSHOW\nALL"),
        ["SELECT 1", "SELECT 'ä;b'", "SHOW\nALL"]
    );
    assert_eq!(
        texts("\u{feff}SELECT 'é' , \"ñ;\";/* ; /* ; */ ; */x"),
        ["SELECT 'é' , \"ñ;\"", "x"]
    );
    assert!(texts(" ;; -- nothing\n /* at all */").is_empty());
}

#[test]
fn a_semicolon_terminates() {
    let ends: Vec<bool> = split("a; b").unwrap().iter().map(|piece| piece.terminated).collect();
    assert_eq!(ends, [true, false]);
}

#[test]
fn double_colons_in_brackets_are_two_colons() {
    assert_eq!(tokens("a[b::n]"), "a [ b : : n ]");
    assert_eq!(tokens("a[b::int]"), "a [ b :: int ]");
    assert_eq!(tokens("a[(b::n)]"), "a [ ( b :: n ) ]");
    assert_eq!(tokens("a::n"), "a :: n");
}
