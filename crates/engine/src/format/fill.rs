//! The fill value of masked cells, in formats that have one for each variable.

use super::writer::output;
use crate::answer::{Head, Windows, windows};
use crate::error::Error;
use std::io::Write;
use tessera_frontend::labels::are_coordinates;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;
use tessera_storage::sink::cf;

/// Upper bound on the cells of a window.
pub(super) const WINDOW_CELLS: u64 = 1 << 17;

/// Chooses the fill value for the masked cells of tensors that all have the type `dtype`; `None` if no cell is masked.
/// `out` is only flushed: flushing fails once the output is cancelled.
///
/// The usual fill value (NaN, netCDF's default for integers) is used unless an unmasked cell has that value.
///
/// # Errors
/// Every candidate is the value of an unmasked cell, or cells cannot be read.
pub(super) fn choose(
    format: &'static str,
    dtype: DType,
    tensors: &[&dyn Windows],
    out: &mut dyn Write,
) -> Result<Option<Scalar>, Error> {
    if tensors.iter().all(|t| !t.head().nullable) {
        return Ok(None);
    }
    let usual = cf::fill_value(dtype);
    let (mut is_masked, mut is_taken) = (false, usual.is_none());
    each(tensors, out, &mut |cells, valid| {
        is_masked |= valid.contains(&0);
        is_taken = is_taken || usual.is_some_and(|v| cf::meets(cells, valid, dtype.size(), v));
    })?;
    if !is_masked || !is_taken {
        return Ok(usual.filter(|_| is_masked));
    }
    let free = match dtype.size() {
        size @ (1 | 2) => unused(dtype, size, tensors, out)?,
        size => {
            let mut free = candidates(dtype);
            each(tensors, out, &mut |cells, valid| {
                free.retain(|v| !cf::meets(cells, valid, size, *v));
            })?;
            free.first().copied()
        }
    };
    free.map(Some).ok_or_else(|| Error::Format {
        format,
        reason: format!(
            "`{}` has masked cells, and no {dtype} was found that no other cell has",
            tensors.first().map_or("", |t| t.head().name)
        ),
        hint: Some("cast to a wider type, fill with `coalesce(x, 0)`, or write ZARR".into()),
    })
}

/// Calls `see` with the cells of all tensors, and a byte for each that is 0 where it is masked.
fn each(
    tensors: &[&dyn Windows],
    out: &mut dyn Write,
    see: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), Error> {
    let all = vec![1; WINDOW_CELLS as usize];
    for t in tensors {
        for window in windows(&t.head().shape(), WINDOW_CELLS) {
            let cells = t.window(&window)?;
            see(&cells.data, cells.valid.as_deref().unwrap_or(&all[..cells.len()]));
            out.flush().map_err(output)?;
        }
    }
    Ok(())
}

/// The first value of a type of one or two bytes that no unmasked cell has.
fn unused(
    dtype: DType,
    size: usize,
    tensors: &[&dyn Windows],
    out: &mut dyn Write,
) -> Result<Option<Scalar>, Error> {
    let mut used = vec![false; 1 << (8 * size)];
    let bits = |cell: &[u8]| cell.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b));
    each(tensors, out, &mut |cells, valid| {
        for (cell, _) in cells.chunks_exact(size).zip(valid).filter(|(_, v)| **v != 0) {
            used[bits(cell)] = true;
        }
    })?;
    let free = used.iter().position(|used| !used);
    Ok(free.map(|n| Scalar::from_le_bytes(dtype, &n.to_le_bytes()[..size])))
}

/// Values of four or eight bytes to try.
fn candidates(dtype: DType) -> Vec<Scalar> {
    if dtype.is_float() {
        // netCDF's default, CF's older custom, the greatest numbers, and some that are seldom results.
        let largest = if dtype == DType::Float32 { f64::from(f32::MAX) } else { f64::MAX };
        let floats = [9.969_209_968_386_869e36, 1e20, -largest, largest, -9999.0, -1e30, 1e30];
        return floats.map(|v| Scalar::from_f64(dtype, v)).to_vec();
    }
    let bits = 8 * dtype.size() as u32;
    let (least, most) = match dtype.is_unsigned() {
        true => (0, (1i128 << bits) - 1),
        false => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
    };
    let ends = (0..8).flat_map(|n| [least + n, most - n]);
    ends.chain([-9999, -999, -1]).filter_map(|v| Scalar::from_i128(dtype, v)).collect()
}

/// Writes `fill` to the masked cells.
pub(super) fn put(cells: &mut [u8], size: usize, valid: &[u8], fill: Scalar) {
    let fill = &fill.to_le_bytes()[..size];
    for (cell, _) in cells.chunks_exact_mut(size).zip(valid).filter(|(_, v)| **v == 0) {
        cell.copy_from_slice(fill);
    }
}

/// Floats as `float64`.
pub(super) fn floats(dtype: DType, cells: &[u8]) -> Box<dyn Iterator<Item = f64> + '_> {
    match dtype {
        DType::Float32 => {
            Box::new(cells.as_chunks().0.iter().map(|c| f32::from_le_bytes(*c).into()))
        }
        _ => Box::new(cells.as_chunks().0.iter().map(|c| f64::from_le_bytes(*c))),
    }
}

/// The tensors that are not labels of another tensor: formats with coordinates write labels anyway.
pub(super) fn variables<'a>(tensors: &[&'a dyn Windows]) -> Vec<&'a dyn Windows> {
    let heads: Vec<Head<'_>> = tensors.iter().map(|t| t.head()).collect();
    let labels = are_coordinates(&heads.iter().map(|h| (h.name, h.dims)).collect::<Vec<_>>());
    tensors.iter().zip(labels).filter(|(_, is_labels)| !is_labels).map(|(t, _)| *t).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::answer::Tensor;
    use arrow::buffer::Buffer;
    use tessera_planner::catalog::DimLabel;
    use tessera_planner::grid::Grid;

    fn chosen(dtype: DType, cells: Buffer, valid: Option<Vec<u8>>) -> Result<Option<f64>, Error> {
        let n = (cells.len() / dtype.size()) as u64;
        let (dims, valid) = (vec![DimLabel::default()], valid.map(Buffer::from_vec));
        let grid = Grid::regular(&[n], &[n]);
        let t = Tensor::new("x", dtype, dims, grid, cells, valid, Default::default()).unwrap();
        Ok(choose("netcdf", dtype, &[&t], &mut Vec::new())?.map(Scalar::as_f64))
    }

    #[test]
    fn the_usual_fill_value_is_used_unless_a_cell_has_it() {
        use DType::*;
        let bytes = |v: &[u8]| Buffer::from_vec(v.to_vec());
        assert_eq!(chosen(UInt8, bytes(&[1, 2]), None).unwrap(), None);
        assert_eq!(chosen(UInt8, bytes(&[1, 2]), Some(vec![1, 1])).unwrap(), None);
        assert_eq!(chosen(UInt8, bytes(&[1, 2]), Some(vec![1, 0])).unwrap(), Some(255.0));
        // The values of masked cells do not count.
        assert_eq!(chosen(UInt8, bytes(&[255, 255]), Some(vec![0, 0])).unwrap(), Some(255.0));
        assert_eq!(chosen(UInt8, bytes(&[255, 0, 7]), Some(vec![1, 1, 0])).unwrap(), Some(1.0));
        let mut all: Vec<u8> = (0..=255).chain([0]).collect();
        let mut valid = vec![1; 256];
        valid.push(0);
        let e = chosen(UInt8, bytes(&all), Some(valid.clone())).unwrap_err();
        assert!(e.to_string().contains("no uint8 was found"), "{e}");
        all[77] = 78;
        assert_eq!(chosen(UInt8, bytes(&all), Some(valid)).unwrap(), Some(77.0));
        let floats = |v: &[f32]| Buffer::from_vec(v.to_vec());
        let nan = chosen(Float32, floats(&[1.0, 2.0]), Some(vec![1, 0])).unwrap().unwrap();
        assert!(nan.is_nan());
        let other = chosen(Float32, floats(&[f32::NAN, 2.0]), Some(vec![1, 0])).unwrap();
        assert_eq!(other, Some(f64::from(9.969_21e36f32)));
        let wide = Buffer::from_vec(vec![i64::MIN + 2, 2]);
        assert_eq!(chosen(Int64, wide, Some(vec![1, 0])).unwrap(), Some(i64::MIN as f64));
    }
}
