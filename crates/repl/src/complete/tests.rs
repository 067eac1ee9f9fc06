//! Completions over a fixed catalog; `|` is the cursor.

use super::*;
use crate::knowledge::Function;

struct Fixed;

fn function(name: &str, signature: &str, doc: &str) -> Function {
    Function {
        name: name.into(),
        signature: signature.into(),
        doc: doc.into(),
        ..Function::default()
    }
}

impl Source for Fixed {
    fn functions(&self) -> Arc<Vec<Function>> {
        Arc::new(vec![
            function(
                "groupby",
                "groupby(x, op, by => f(coordinate), skipna => false)",
                "A reduction ('sum', 'mean').",
            ),
            function("max", "max(x, axis => NULL)", "Greatest."),
            function("mean", "mean(x, axis => NULL, dtype => NULL, skipna => false)", "Mean."),
            function("now", "now()", "Time."),
            function(
                "resample",
                "resample(x, op, time => '1 day', skipna => false)",
                "A reduction ('sum', 'median') of each period: '6 hours', '1 day', or 'h', 'QS-DEC'.",
            ),
        ])
    }
    fn relations(&self) -> Vec<String> {
        ["era5", "Odd name"].map(String::from).to_vec()
    }
    fn settings(&self) -> Vec<String> {
        vec!["tessera.chunk_bytes_target".into()]
    }
    fn columns(&self, source: &str) -> Vec<Column> {
        let column = |name: &str, kind: &str, dims: &[(&str, u64)]| Column {
            name: name.into(),
            kind: kind.into(),
            dtype: "float64".into(),
            dims: dims.iter().map(|(d, n)| ((*d).into(), *n)).collect(),
            chunks: String::new(),
            attributes: String::new(),
        };
        match source {
            "era5" | "'air.zarr'" => vec![
                column("mslp", "variable", &[("time", 3), ("lat", 2)]),
                column("t2m", "variable", &[("time", 3), ("lat", 2)]),
                column("lat", "coordinate", &[("lat", 2)]),
                column("time", "coordinate", &[("time", 3)]),
            ],
            _ => Vec::new(),
        }
    }
    fn files(&self, start: &str) -> Vec<String> {
        let all = ["data/", "data/air.zarr", "out.csv"];
        all.iter().filter(|f| f.starts_with(start)).map(|f| (*f).to_string()).collect()
    }
}

fn at(marked: &str) -> String {
    let at = marked.find('|').unwrap();
    let text = marked.replacen('|', "", 1);
    let (start, found) = complete(&text, at, &Fixed);
    let texts: Vec<&str> = found.iter().map(|c| c.text.as_str()).collect();
    format!("{} {}", &text[start..at], texts.join(" ")).trim_start().to_string() + "¶"
}

#[test]
fn keywords_follow_the_case_that_is_typed() {
    insta::assert_snapshot!(at("se|"), @"se select  set ¶");
    insta::assert_snapshot!(at("SE|"), @"SE SELECT  SET ¶");
    insta::assert_snapshot!(at("SELECT t2m FROM era5 gr|"), @"gr group by ¶");
    insta::assert_snapshot!(at("show f|"), @"f functions ¶");
}

#[test]
fn names_come_before_functions() {
    insta::assert_snapshot!(at("SELECT m| FROM era5"), @"m mslp max( mean(¶");
    insta::assert_snapshot!(at("SELECT | FROM era5"), @"mslp t2m lat time¶");
    insta::assert_snapshot!(at("SELECT e.t| FROM era5 e"), @"t t2m time¶");
    insta::assert_snapshot!(at("SELECT no| FROM 'air.zarr'"), @"no now() not ¶");
}

#[test]
fn relations_are_quoted_where_they_must() {
    insta::assert_snapshot!(at("SELECT * FROM |"), @r#"era5 "Odd name" '¶"#);
    insta::assert_snapshot!(at("SELECT * FROM od|"), @r#"od "Odd name"¶"#);
    insta::assert_snapshot!(at("SELECT * FROM 'da|"), @"da data/ data/air.zarr'¶");
    insta::assert_snapshot!(at("SELECT * FROM 'data/a|'"), @"data/a data/air.zarr¶");
    insta::assert_snapshot!(at("SET te|"), @"te tessera.chunk_bytes_target¶");
}

#[test]
fn arguments_of_the_function() {
    insta::assert_snapshot!(at("SELECT mean(t2m, | FROM era5"), @"mslp t2m lat time axis =>  dtype =>  skipna => ¶");
    insta::assert_snapshot!(at("SELECT mean(t2m, sk| FROM era5"), @"sk skipna => ¶");
    insta::assert_snapshot!(at("SELECT mean(t2m, axis => '| FROM era5"), @"lat' time'¶");
    insta::assert_snapshot!(at("SELECT mean(t2m, 'ti|') FROM era5"), @"ti time¶");
    insta::assert_snapshot!(at("SELECT mean(t2m, dtype => 'float|') FROM era5"), @"float float32 float64¶");
    insta::assert_snapshot!(at("SELECT mean(t2m, skipna => t|) FROM era5"), @"t t2m time true true ¶");
    insta::assert_snapshot!(at("SELECT groupby(t2m, '|') FROM era5"), @"sum mean¶");
    insta::assert_snapshot!(at("SELECT resample(t2m, '|') FROM era5"), @"sum median¶");
    insta::assert_snapshot!(at("SELECT resample(t2m, 'sum', time => '|') FROM era5"), @"h QS-DEC¶");
    insta::assert_snapshot!(at("SELECT t2m[la|] FROM era5"), @"la lat lat => ¶");
}

#[test]
fn commands_have_arguments() {
    insta::assert_snapshot!(at(".ti|"), @".ti .timer ¶");
    insta::assert_snapshot!(at(".timer o|"), @"o on off¶");
    insta::assert_snapshot!(at(".mode nd|"), @"nd ndjson¶");
    insta::assert_snapshot!(at(".shape e|"), @"e era5¶");
    insta::assert_snapshot!(at(".read o|"), @"o out.csv¶");
    insta::assert_snapshot!(at(".plot mean(t2m, axis => 'ti|') FROM era5"), @"ti time¶");
    insta::assert_snapshot!(at(".plot m| FROM era5"), @"m mslp max( mean(¶");
}
