#![expect(unsafe_code, reason = "loops are compiled for each level of instructions")]
//! Searching cells for a value.

use super::level::{Level, leveled};

/// Cells between two checks for a match: several vectors of any type.
const BLOCK: usize = 512;

/// True if `met` holds for any value. Stops after the block of the first match.
pub fn is_any<T: Copy, F: Fn(T) -> bool>(values: &[T], met: F) -> bool {
    let look = pick_look::<T, F>(Level::detect());
    let mut is_met = false;
    // SAFETY: `Level::detect` returns a level that this machine has.
    unsafe { look(values, &met, &mut is_met) };
    is_met
}

type LookFn<T, F> = unsafe fn(&[T], &F, &mut bool);

leveled!(pick_look, look<T: Copy, F: Fn(T) -> bool>(values: &[T], met: &F, is_met: &mut bool) as LookFn<T, F>);

/// Branch-free within a block, so that it vectorises.
///
/// # Safety
/// The machine has the instructions that the body is compiled for.
#[inline(always)]
unsafe fn look<T: Copy, F: Fn(T) -> bool>(values: &[T], met: &F, is_met: &mut bool) {
    *is_met = values.chunks(BLOCK).any(|b| b.iter().fold(false, |any, &v| any | met(v)));
}
