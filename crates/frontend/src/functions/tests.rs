#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::{all, functions, is_tensor_function, planned};

#[test]
fn rows_are_complete_and_unique() {
    let rows = functions();
    for pair in rows.windows(2) {
        assert!(pair[0].name < pair[1].name, "{} stands twice", pair[0].name);
    }
    for f in all() {
        let row = f.row;
        assert!(row.signature.starts_with(row.name), "{}", row.name);
        assert!(f.required <= f.params.len(), "{}", row.name);
        assert!(!row.doc.is_empty() && !row.dtypes.is_empty() && !row.missing.is_empty());
        assert!(row.example.starts_with("SELECT ") && !row.numpy.is_empty(), "{}", row.name);
        assert!(!planned::is_planned(row.name), "{} is built", row.name);
    }
}

#[test]
fn only_tensor_functions_make_a_block_without_from_one_of_tensors() {
    for name in ["arange", "Random_Normal", "where", "cumsum", "svd"] {
        assert!(is_tensor_function(name), "{name}");
    }
    for name in ["sqrt", "sum", "now", "no_such"] {
        assert!(!is_tensor_function(name), "{name}");
    }
}
