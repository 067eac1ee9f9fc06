//! The encoding of a tile: a predictor, then deflate.
//!
//! ```text
//!   integers    a b c d → a, b−a, c−b, d−c                        in each row, wrapping
//!   floats      the first bytes of all cells of a row, then the second ones, …; then differences of bytes
//! ```

use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::{self, Write};
use tessera_planner::dtype::DType;

/// Effort of deflate, 1 to 9.
const LEVEL: u32 = 6;

/// The value of the tag `Predictor`.
pub(super) fn predictor(dtype: DType) -> u16 {
    if dtype.is_float() { 3 } else { 2 }
}

/// Encodes the little-endian cells of a tile of rows of `width` cells.
pub(super) fn encode(dtype: DType, width: usize, mut cells: Vec<u8>) -> io::Result<Vec<u8>> {
    let size = dtype.size();
    let mut planes = vec![0; width * size];
    for row in cells.chunks_exact_mut(width * size) {
        match (dtype.is_float(), size) {
            (true, _) => {
                spread(row, size, &mut planes);
                differ::<1>(row);
            }
            (false, 2) => differ::<2>(row),
            (false, 4) => differ::<4>(row),
            (false, 8) => differ::<8>(row),
            (false, _) => differ::<1>(row),
        }
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(LEVEL));
    encoder.write_all(&cells)?;
    encoder.finish()
}

/// Replaces each cell by its difference to the one before.
fn differ<const N: usize>(row: &mut [u8]) {
    let number = |cell: &[u8; N]| {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(cell);
        u64::from_le_bytes(wide)
    };
    let mut before = 0u64;
    for cell in row.as_chunks_mut::<N>().0 {
        let own = number(cell);
        cell.copy_from_slice(&own.wrapping_sub(before).to_le_bytes()[..N]);
        before = own;
    }
}

/// Moves the bytes of cells to planes, that of the sign and the exponent first.
fn spread(row: &mut [u8], size: usize, planes: &mut [u8]) {
    let width = row.len() / size;
    for (i, cell) in row.chunks_exact(size).enumerate() {
        for (plane, byte) in cell.iter().rev().enumerate() {
            planes[plane * width + i] = *byte;
        }
    }
    row.copy_from_slice(planes);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::io::Read;

    fn inflated(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        flate2::read::ZlibDecoder::new(bytes).read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn predictors_work_in_each_row() {
        let cells: Vec<u8> =
            [1i16, 3, 2, -1, 300, 299].iter().flat_map(|v| v.to_le_bytes()).collect();
        let out = inflated(&encode(DType::Int16, 3, cells).unwrap());
        let (cells, _) = out.as_chunks::<2>();
        let got: Vec<i16> = cells.iter().map(|c| i16::from_le_bytes(*c)).collect();
        assert_eq!(got, [1, 2, -1, -1, 301, -1]);
        // 1.0 is 3f 80 00 00, 2.0 is 40 00 00 00: planes 3f 40 | 80 00 | 00 00 | 00 00.
        let cells: Vec<u8> = [1f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let out = inflated(&encode(DType::Float32, 2, cells).unwrap());
        assert_eq!(out, [0x3f, 0x01, 0x40, 0x80, 0x00, 0x00, 0x00, 0x00]);
    }
}
