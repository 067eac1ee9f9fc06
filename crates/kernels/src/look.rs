#![expect(
    unsafe_code,
    reason = "loops are compiled for each level of instructions, and the machine's is called"
)]
//! Looking for a value among cells.

use super::level::{Level, leveled};

/// Cells that are looked at before it is asked whether one was found: some vectors of any type.
const BLOCK: usize = 512;

/// Does `met` hold of any value? No further than the block of the first.
pub fn is_any<T: Copy, F: Fn(T) -> bool>(values: &[T], met: F) -> bool {
    let look = pick_look::<T, F>(Level::detect());
    let mut is_met = false;
    // SAFETY: the level is the machine's.
    unsafe { look(values, &met, &mut is_met) };
    is_met
}

type LookFn<T, F> = unsafe fn(&[T], &F, &mut bool);

leveled!(pick_look, look<T: Copy, F: Fn(T) -> bool>(values: &[T], met: &F, is_met: &mut bool) as LookFn<T, F>);

/// Without a branch within a block, so that it becomes vectors.
///
/// # Safety
/// The machine has the instructions that it is compiled for.
#[inline(always)]
unsafe fn look<T: Copy, F: Fn(T) -> bool>(values: &[T], met: &F, is_met: &mut bool) {
    *is_met = values.chunks(BLOCK).any(|b| b.iter().fold(false, |any, &v| any | met(v)));
}
