//! Looks for NaN in cells while they are in the cache.

use tessera_kernels::is_any;
use tessera_planner::dtype::DType;

/// Bytes of cells that are written and then looked at. They fit the second-level cache, with those they are made of.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// True if the cells, whole and native-endian, are floats and none of them is NaN.
pub(crate) fn is_without_nan(cells: &[u8], dtype: DType) -> bool {
    match dtype {
        DType::Float32 => !is_any(cells.as_chunks::<4>().0, |c| f32::from_ne_bytes(c).is_nan()),
        DType::Float64 => !is_any(cells.as_chunks::<8>().0, |c| f64::from_ne_bytes(c).is_nan()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nan_is_found_anywhere() {
        for n in [1usize, 3, 511, 2_000] {
            let mut cells: Vec<f32> = (0..n).map(|i| i as f32 - 7.0).collect();
            let bytes =
                |cells: &[f32]| -> Vec<u8> { cells.iter().flat_map(|c| c.to_ne_bytes()).collect() };
            let wide = |cells: &[f32]| -> Vec<u8> {
                cells.iter().flat_map(|c| f64::from(*c).to_ne_bytes()).collect()
            };
            cells[0] = f32::INFINITY;
            assert!(is_without_nan(&bytes(&cells), DType::Float32), "{n}");
            assert!(is_without_nan(&wide(&cells), DType::Float64), "{n}");
            assert!(!is_without_nan(&bytes(&cells), DType::Int32), "integers are not looked at");
            cells[n - 1] = -f32::NAN;
            assert!(!is_without_nan(&bytes(&cells), DType::Float32), "{n}");
            assert!(!is_without_nan(&wide(&cells), DType::Float64), "{n}");
        }
    }
}
