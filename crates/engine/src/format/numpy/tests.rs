#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::answer::Tensor;
use arrow::buffer::Buffer;
use serde::Deserialize;
use tessera_planner::catalog::DimLabel;
use tessera_planner::dtype::DType;
use tessera_planner::grid::Grid;

/// One line of `cases.json`, which `cases.py` wrote with NumPy 2.4.6.
#[derive(Deserialize)]
struct Case {
    dtype: String,
    shape: Vec<u64>,
    /// Little-endian bytes of the cells, in hex.
    data: String,
    /// One byte for each cell, 1 where masked, in hex.
    mask: Option<String>,
    width: usize,
    want: String,
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

#[test]
fn values_look_as_numpy_prints_them() {
    let text = match std::env::var("TESSERA_NUMPY_CASES") {
        // `cases.py N` writes any number of cases.
        Ok(path) => std::fs::read_to_string(path).unwrap(),
        Err(_) => include_str!("cases.json").to_string(),
    };
    let mut count = 0;
    for line in text.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let dtype = DType::parse(&case.dtype).unwrap();
        let valid = case
            .mask
            .as_deref()
            .map(|m| Buffer::from_vec(bytes(m).into_iter().map(|b| 1 - b).collect::<Vec<u8>>()));
        let t = Tensor::new(
            "x",
            dtype,
            vec![DimLabel::default(); case.shape.len()],
            Grid::single(&case.shape),
            Buffer::from_vec(bytes(&case.data)),
            valid,
            Default::default(),
        )
        .unwrap();
        assert_eq!(
            array_to_string(&t, case.width).unwrap(),
            case.want,
            "{dtype} {:?} width {} data {}",
            case.shape,
            case.width,
            case.data
        );
        count += 1;
    }
    assert!(count >= 280, "only {count} cases");
}
