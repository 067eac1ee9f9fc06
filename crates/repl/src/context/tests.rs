//! Contexts of half-typed statements; `|` is the cursor.

use super::*;

fn at(marked: &str) -> String {
    let at = marked.find('|').unwrap();
    let text = marked.replacen('|', "", 1);
    let c = context(&text, at);
    assert_eq!(&text[c.start..at], c.word);
    let names = |relations: &[Relation]| {
        relations
            .iter()
            .map(|r| match &r.alias {
                Some(a) if *a != r.source => format!("{} as {a}", r.source),
                _ => r.source.clone(),
            })
            .collect::<Vec<_>>()
            .join(", ")
    };
    let call = |c: &Call| {
        let named = c.named.as_ref().map_or(String::new(), |n| format!(" {n}=>"));
        let fresh = if c.fresh { " fresh" } else { "" };
        let given =
            if c.given.is_empty() { String::new() } else { format!(" given {:?}", c.given) };
        format!("{}#{}{named}{fresh}{given}", c.function, c.position)
    };
    let what = match &c.what {
        What::Words(w) => format!("words {} …", w[0]),
        What::TextArgument(k, r) => format!("text of {} from {}", call(k), names(r)),
        What::Operand { relations, call: k, of } => format!(
            "operand{}{} from [{}]",
            k.as_ref().map_or(String::new(), |k| format!(" of {}", call(k))),
            of.as_ref().map_or(String::new(), |o| format!(" after {o}.")),
            names(relations)
        ),
        other => format!("{other:?}"),
    };
    format!("`{}` {what}", c.word)
}

#[test]
fn statements_begin_with_their_words() {
    insta::assert_snapshot!(at("|"), @"`` words SELECT …");
    insta::assert_snapshot!(at("SELECT 1; sel|"), @"`sel` words SELECT …");
    insta::assert_snapshot!(at("create |"), @"`` words TENSOR …");
    insta::assert_snapshot!(at("SHOW te|"), @"`te` words TENSORS …");
    insta::assert_snapshot!(at("SET tess|"), @"`tess` Setting");
    insta::assert_snapshot!(at("DROP TENSOR |"), @"`` Relation");
    insta::assert_snapshot!(at("DROP TENSOR x |"), @"`` Nothing");
    insta::assert_snapshot!(at("CREATE TENSOR a AS |"), @"`` words SELECT …");
    insta::assert_snapshot!(at("CREATE EXTERNAL TABLE a STORED AS z|"), @"`z` words ZARR …");
}

#[test]
fn relations_and_files() {
    insta::assert_snapshot!(at("SELECT a FROM e|"), @"`e` Relation");
    insta::assert_snapshot!(at("SELECT a FROM e, |"), @"`` Relation");
    insta::assert_snapshot!(at("SELECT a FROM e JOIN |"), @"`` Relation");
    insta::assert_snapshot!(at("SELECT a FROM 'tests/da|"), @"`tests/da` File");
    insta::assert_snapshot!(at("DESCRIBE 'x|"), @"`x` File");
    insta::assert_snapshot!(at("SELECT * FROM read_zarr('x|"), @"`x` File");
    insta::assert_snapshot!(at("CREATE EXTERNAL TABLE a STORED AS ZARR LOCATION '|"), @"`` File");
}

#[test]
fn operands_know_their_relations() {
    insta::assert_snapshot!(at("SELECT t| FROM era5 e WHERE x"), @"`t` operand from [era5 as e]");
    insta::assert_snapshot!(at("SELECT e.| FROM era5 e"), @"`` operand after e. from [era5 as e]");
    insta::assert_snapshot!(
        at("SELECT a FROM 'd/air.zarr', b AS c WHERE |"),
        @"`` operand from ['d/air.zarr' as air, b as c]"
    );
    insta::assert_snapshot!(
        at("SELECT v FROM (SELECT x + | FROM inner1) JOIN outer1"),
        @"`` operand from [inner1]"
    );
    insta::assert_snapshot!(
        at("SELECT | FROM (SELECT x FROM inner1) q, w"),
        @"`` operand from [(SELECT x FROM inner1) as q, w]"
    );
    insta::assert_snapshot!(
        at("WITH m AS (SELECT mean(x) AS y FROM a) SELECT | FROM m"),
        @"`` operand from [(SELECT mean(x) AS y FROM a) as m]"
    );
    insta::assert_snapshot!(at("SELECT 2 * |"), @"`` operand from []");
    insta::assert_snapshot!(at("SELECT a FROM b; SELECT c| FROM d"), @"`c` operand from [d]");
}

#[test]
fn calls_and_their_arguments() {
    insta::assert_snapshot!(at("SELECT mean(| FROM x"), @"`` operand of mean#0 fresh from [x]");
    insta::assert_snapshot!(at("SELECT mean(a, ax|"), @"`ax` operand of mean#1 fresh from []");
    insta::assert_snapshot!(
        at("SELECT mean(a, axis => ['time', 'la|'], skipna => true) FROM x"),
        @r#"`la` text of mean#1 axis=> given ["axis"] from x"#
    );
    insta::assert_snapshot!(at("SELECT mean(a, 'ti| FROM x"), @"`ti` text of mean#1 fresh from x");
    insta::assert_snapshot!(
        at("SELECT mean(a, axis => 'time', | FROM x"),
        @r#"`` operand of mean#2 fresh given ["axis"] from [x]"#
    );
    insta::assert_snapshot!(
        at("SELECT mean(a, 'ti| FROM 'x.zarr'"),
        @"`ti` text of mean#1 fresh from 'x.zarr' as x"
    );
    insta::assert_snapshot!(at("SELECT groupby(a, '|'"), @"`` text of groupby#1 fresh from ");
    insta::assert_snapshot!(at("SELECT t2m[la| FROM x"), @"`la` operand of #0 fresh from [x]");
    insta::assert_snapshot!(at("SELECT (a + |) FROM x"), @"`` operand from [x]");
    insta::assert_snapshot!(at("SELECT x::fl|"), @"`fl` words bool …");
}

#[test]
fn after_an_operand_comes_a_clause() {
    insta::assert_snapshot!(at("SELECT a |"), @"`` Clause");
    insta::assert_snapshot!(at("SELECT a FROM x wh|"), @"`wh` Clause");
    insta::assert_snapshot!(at("SELECT * |"), @"`` Clause");
    insta::assert_snapshot!(at("SELECT f(a) |"), @"`` Clause");
    insta::assert_snapshot!(at("SELECT a AS |"), @"`` Nothing");
    insta::assert_snapshot!(at("SELECT 12|"), @"`12` Nothing");
    insta::assert_snapshot!(at("-- no|"), @"`` Nothing");
    insta::assert_snapshot!(at("SELECT 'a'| "), @"`` Nothing");
}
