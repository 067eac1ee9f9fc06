use super::*;
use datafusion::arrow::array::Int64Array;
use datafusion::arrow::datatypes::{DataType, Field, Schema};

#[test]
fn consecutive_rows_are_found() {
    assert_eq!(straight(&[]), 0);
    assert_eq!(straight(&[(3, 7)]), 1);
    assert_eq!(straight(&[(3, 7), (3, 8), (3, 9), (4, 10)]), 3);
    assert_eq!(straight(&[(3, 7), (3, 7), (3, 8)]), 1);
}

#[test]
fn a_small_slice_shares_most_of_its_memory() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1; 1000]));
    let field = Field::new("k", DataType::Int64, false);
    let schema = Arc::new(Schema::new(vec![field]));
    let Ok(rows) = RecordBatch::try_new(schema, vec![column]) else { panic!("a batch") };
    assert!(is_mostly_own(&rows));
    assert!(is_mostly_own(&rows.slice(0, 600)));
    assert!(!is_mostly_own(&rows.slice(0, 400)));
}
