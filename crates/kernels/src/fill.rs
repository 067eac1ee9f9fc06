//! Forward fill: the last unmasked cell before each masked one, along an axis.

use super::KernelError;

/// Cells between two checks for cancellation.
const CANCEL_CELLS: usize = 1 << 16;

/// Fills masked cells in place along `axis` with the nearest unmasked cell before them. `value` are dense row-major
/// cells (of `size` bytes) of shape `shape`. Cells without one stay masked and are zero. `carry` is the last slice of
/// the previous chunk after its own fill: values and validity.
///
/// # Errors
/// [`KernelError::Cancelled`], [`KernelError::Buffer`] for buffers that do not fit.
pub fn fill(
    size: usize,
    shape: &[u64],
    axis: usize,
    value: &mut [u8],
    valid: &mut [u8],
    carry: Option<(&[u8], &[u8])>,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let outer: usize = shape[..axis].iter().product::<u64>() as usize;
    let len = shape[axis] as usize;
    let inner: usize = shape[axis + 1..].iter().product::<u64>() as usize;
    let cells = outer * len * inner;
    let expect = |what, got: usize, expected: usize| match got < expected {
        true => Err(KernelError::Buffer { what, got: got as u64, expected: expected as u64 }),
        false => Ok(()),
    };
    expect("cells to fill", value.len() / size, cells)?;
    expect("bytes of validity", valid.len(), cells)?;
    if let Some((v, ok)) = carry {
        expect("cells of the carry", v.len() / size, outer * inner)?;
        expect("validity of the carry", ok.len(), outer * inner)?;
    }
    if inner == 1 {
        return match size {
            1 => lines::<1>(len, value, valid, carry, cells, cancelled),
            2 => lines::<2>(len, value, valid, carry, cells, cancelled),
            4 => lines::<4>(len, value, valid, carry, cells, cancelled),
            8 => lines::<8>(len, value, valid, carry, cells, cancelled),
            got => {
                Err(KernelError::Buffer { what: "bytes of a cell", got: got as u64, expected: 8 })
            }
        };
    }
    let mut unchecked = CANCEL_CELLS;
    for o in 0..outer {
        for l in 0..len {
            if unchecked >= CANCEL_CELLS {
                unchecked = 0;
                if cancelled() {
                    return Err(KernelError::Cancelled);
                }
            }
            unchecked += inner;
            let row = (o * len + l) * inner;
            for i in 0..inner {
                let at = row + i;
                if valid[at] != 0 {
                    continue;
                }
                let to = at * size;
                match (l, carry) {
                    (0, Some((v, ok))) if ok[o * inner + i] != 0 => {
                        let from = (o * inner + i) * size;
                        value[to..to + size].copy_from_slice(&v[from..from + size]);
                        valid[at] = 1;
                    }
                    (1.., _) if valid[at - inner] != 0 => {
                        let from = (at - inner) * size;
                        value.copy_within(from..from + size, to);
                        valid[at] = 1;
                    }
                    _ => value[to..to + size].fill(0),
                }
            }
        }
    }
    Ok(())
}

/// Like [`fill`], along the last axis: the last cell of a line stays in a register.
fn lines<const N: usize>(
    len: usize,
    value: &mut [u8],
    valid: &mut [u8],
    carry: Option<(&[u8], &[u8])>,
    cells: usize,
    cancelled: &dyn Fn() -> bool,
) -> Result<(), KernelError> {
    let (values, _) = value.as_chunks_mut::<N>();
    let values = values[..cells].chunks_exact_mut(len.max(1));
    let lines = values.zip(valid[..cells].chunks_exact_mut(len.max(1)));
    let mut unchecked = CANCEL_CELLS;
    for (line, (values, valid)) in lines.enumerate() {
        if unchecked >= CANCEL_CELLS {
            unchecked = 0;
            if cancelled() {
                return Err(KernelError::Cancelled);
            }
        }
        unchecked += len;
        let (mut last, mut is_known) = ([0; N], 0);
        if let Some((v, ok)) = carry
            && ok[line] != 0
        {
            (last, is_known) = (v.as_chunks::<N>().0[line], 1);
        }
        for (cell, ok) in values.iter_mut().zip(valid) {
            // Without a branch: masked cells come at random.
            last = if *ok != 0 { *cell } else { last };
            is_known |= u8::from(*ok != 0);
            *cell = last;
            *ok = is_known;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn cells_take_the_last_one_before() {
        let mut value = [7, 1, 7, 7, 2, 7];
        let mut valid = [0, 1, 0, 0, 1, 0];
        fill(1, &[3, 2], 0, &mut value, &mut valid, None, &|| false).unwrap();
        // Columns [., ., 2] and [1, ., .].
        assert_eq!((value, valid), ([0, 1, 0, 1, 2, 1], [0, 1, 0, 1, 1, 1]));
        let mut valid = [0, 1, 0, 0, 1, 0];
        let mut value = [7, 1, 7, 7, 2, 7];
        let carry = Some((&[5u8, 6][..], &[1u8, 0][..]));
        fill(1, &[3, 2], 0, &mut value, &mut valid, carry, &|| false).unwrap();
        assert_eq!((value, valid), ([5, 1, 5, 1, 2, 1], [1, 1, 1, 1, 1, 1]));
    }

    #[test]
    fn cells_of_the_last_axis_take_the_last_one_before() {
        // Lines [., 1, .] and [., ., 2], without a carry and with 5 before the second one.
        for (carry, first, ok) in [(None, 0, 0), (Some((&[6u8, 5][..], &[0u8, 1][..])), 5, 1)] {
            let mut value = [7, 1, 7, 7, 7, 2];
            let mut valid = [0, 1, 0, 0, 0, 9];
            fill(1, &[2, 3], 1, &mut value, &mut valid, carry, &|| false).unwrap();
            assert_eq!((value, valid), ([0, 1, 1, first, first, 2], [0, 1, 1, ok, ok, 1]));
        }
        let mut value = [1u16, 9, 9, 2].map(u16::to_ne_bytes).concat();
        let mut valid = [1, 0, 0, 1];
        fill(2, &[4], 0, &mut value, &mut valid, None, &|| false).unwrap();
        assert_eq!(value, [1u16, 1, 1, 2].map(u16::to_ne_bytes).concat());
        let stopped = fill(2, &[4], 0, &mut value, &mut valid, None, &|| true);
        assert!(matches!(stopped, Err(KernelError::Cancelled)));
    }
}
