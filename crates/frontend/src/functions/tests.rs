#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::{Open, functions, is_tensor_function, planned};

#[test]
fn rows_are_complete_and_unique() {
    let rows = functions();
    for pair in rows.windows(2) {
        assert!(pair[0].name < pair[1].name, "{} stands twice", pair[0].name);
    }
    for f in rows {
        assert!(f.parameters.required <= f.parameters.names.len(), "{}", f.name);
        assert!(!f.name.is_empty() && !f.doc.is_empty() && !f.dtypes.is_empty(), "{}", f.name);
        assert!(!f.missing.is_empty() && !f.numpy.is_empty(), "{}", f.name);
        assert!(f.example.starts_with("SELECT "), "{}", f.name);
        assert!(!planned::is_planned(f.name), "{} is built", f.name);
    }
}

#[test]
fn parameters_follow_from_the_signature() {
    let of = |name: &str| {
        let f = functions().iter().find(|f| f.name == name).unwrap();
        (f.parameters.names.join(" "), f.parameters.required, f.parameters.open)
    };
    for (name, names, required, open) in [
        ("now", "", 0, Open::No),
        ("clip", "x lo hi", 2, Open::No),
        ("histogram", "x bins range weights density", 1, Open::No),
        ("stack", "tensors axis dim", 1, Open::No),
        ("greatest", "x", 1, Open::Many),
        ("sel", "x method tolerance", 1, Open::Dims),
        ("nanmax", "x axis keepdims skipna", 1, Open::No),
    ] {
        assert_eq!(of(name), (names.to_string(), required, open), "{name}");
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
