//! Texts that are no labels of their dimension, and texts without a dimension.
use arrow::array::AsArray;
use arrow::datatypes::DataType;

use super::{ScanColumn, planned};

fn columns(sql: &str) -> Vec<String> {
    let plan = planned(sql).unwrap();
    plan.logical.schema().fields().iter().map(|field| field.name().clone()).collect()
}

#[test]
fn all_columns_have_the_texts() {
    assert_eq!(
        columns("SELECT * FROM stations"),
        ["time", "station", "centre", "name", "height", "t"]
    );
    // Without variables, the rows are those of the dimensions that texts have.
    assert_eq!(columns("SELECT * FROM names"), ["station", "centre", "name"]);
    let plan = planned("SELECT * FROM names").unwrap();
    assert_eq!(plan.scans[0].shape, [3, 1]);
}

#[test]
fn a_text_has_the_rows_of_its_dimension() {
    let shape = |sql: &str| planned(sql).unwrap().scans[0].shape.clone();
    assert_eq!(shape("SELECT name FROM stations WHERE height > 0"), [3]);
    assert_eq!(shape("SELECT name FROM stations LIMIT 9"), [3]);
    assert_eq!(shape("SELECT centre FROM stations LIMIT 9"), [1]);
    assert_eq!(shape("SELECT centre, height FROM stations WHERE height > 0"), [3, 1]);
    assert_eq!(shape("SELECT centre, t FROM stations WHERE height > 0"), [2, 3, 1]);
}

#[test]
fn conditions_on_texts_select_positions() {
    for (condition, want) in [
        ("name = 'b'", vec![2, 1]),
        ("name IN ('a', 'b')", vec![2, 2]),
        ("name IS NULL", vec![2, 1]),
        ("name <> 'a'", vec![2, 1]),
        ("upper(name) LIKE 'B%' AND time = 1", vec![1, 1]),
    ] {
        let plan = planned(&format!("SELECT t FROM stations WHERE {condition}")).unwrap();
        assert_eq!(plan.scans[0].shape, want, "{condition}");
    }
}

#[test]
fn a_missing_text_is_null() {
    let plan = planned("SELECT name, t FROM stations LIMIT 6").unwrap();
    let scan = &plan.scans[0];
    let at = scan.schema.index_of("name").unwrap();
    let field = scan.schema.field(at);
    assert_eq!((field.data_type(), field.is_nullable()), (&DataType::Utf8, true));
    let ScanColumn::Label { values, .. } = &scan.columns[at] else { panic!() };
    let texts: Vec<_> = values.as_string::<i32>().iter().collect();
    assert_eq!(texts, [Some("a"), Some("b"), None]);
}
