//! The number that decides whether a row is in a sample: see `clauses::sample` of the frontend.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::ScalarUDF;
use tessera_frontend::DRAW;

use super::OfArrays;

/// A number in [0, 1) from a row's number and a seed.
pub(super) fn function() -> ScalarUDF {
    OfArrays::taking(DRAW, taken, DataType::Float64, draw).udf()
}

/// # Source
/// The output function of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn drawn(row: u64, seed: i64) -> f64 {
    let bits = mixed(mixed(seed as u64).wrapping_add(row));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn taken(_: &str, types: &[DataType]) -> Result<Vec<DataType>> {
    match types {
        [row, seed] if row.is_integer() && seed.is_integer() => {
            Ok(vec![DataType::UInt64, DataType::Int64])
        }
        _ => plan_err!("a row is drawn by its number and a seed"),
    }
}

fn draw(arrays: &[ArrayRef]) -> Result<ArrayRef> {
    let [rows, seeds] = arrays else {
        return exec_err!("a row is drawn by its number and a seed");
    };
    let (rows, seeds) = (rows.as_primitive::<UInt64Type>(), seeds.as_primitive::<Int64Type>());
    let drawn = rows.iter().zip(seeds).map(|pair| match pair {
        (Some(row), Some(seed)) => Some(drawn(row, seed)),
        _ => None,
    });
    Ok(Arc::new(drawn.collect::<Float64Array>()))
}

#[cfg(test)]
mod tests {
    use super::drawn;

    #[test]
    fn numbers_are_spread_evenly() {
        for seed in [0, 5, -1, i64::MAX] {
            let mut tenths = [0u32; 10];
            for row in 1..=10_000 {
                let number = drawn(row, seed);
                assert!((0.0..1.0).contains(&number));
                tenths[(number * 10.0) as usize] += 1;
            }
            // Four standard deviations of 30.
            assert!(tenths.iter().all(|n| (880..1120).contains(n)), "{tenths:?}");
        }
    }
}
