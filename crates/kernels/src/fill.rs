//! Forward fill: the last unmasked cell before each masked one, along an axis.

use super::KernelError;

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
    for o in 0..outer {
        for l in 0..len {
            if cancelled() {
                return Err(KernelError::Cancelled);
            }
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
}
