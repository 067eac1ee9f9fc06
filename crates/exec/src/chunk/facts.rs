//! Conditions that hold for all cells of a chunk: no cell is masked, no value is the fill value, and others.
//!
//! Real data declare a fill value and hold none, so programs with masks mostly mask nothing. A chunk is scanned when
//! the first operand asks, and the answer is cached. Where no cell is masked, operands run the program that has no
//! masks.

use super::{Chunk, Field};
use arrow::buffer::Buffer;
use smallvec::SmallVec;
use std::sync::Mutex;
use tessera_kernels::is_any;
use tessera_planner::dtype::DType;
use tessera_planner::scalar::Scalar;
use tessera_storage::lock;

/// A condition of the cells of a chunk, as decoding rules use it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Condition {
    /// No cell is masked.
    Unmasked,
    /// No value is NaN.
    NoNan,
    /// No value equals this one.
    Without(Scalar),
    /// No value is below this one; NaN is not.
    NotBelow(Scalar),
    /// No value is above this one; NaN is not.
    NotAbove(Scalar),
    /// Every value equals this one. Recorded for chunks that are made so; never scanned for.
    Only(Scalar),
}

/// Evaluated conditions, and whether they hold.
#[derive(Debug, Default)]
pub(super) struct Facts(Mutex<SmallVec<[(Condition, bool); 2]>>);

impl Chunk {
    /// True if a condition holds for all cells. The first call scans the cells.
    pub(crate) fn holds(&self, condition: Condition) -> bool {
        if let Some(owner) = &self.owner {
            return owner.holds(condition);
        }
        let known = lock(&self.facts.0);
        if let Some((_, holds)) = known.iter().find(|(c, _)| *c == condition) {
            return *holds;
        }
        drop(known);
        let holds = match condition {
            // A second field that is not a mask belongs to a state and decides nothing.
            Condition::Unmasked => {
                self.fields.get(1).is_none_or(|f| f.dtype == DType::Bool && is_unmasked(f))
            }
            Condition::Only(_) => return false,
            _ => self.fields.first().is_some_and(|f| is_true(f, condition)),
        };
        self.know(condition, holds);
        holds
    }

    /// Records that every value is this one.
    pub(crate) fn only(self, value: Scalar) -> Self {
        self.know(Condition::Only(value), true);
        self
    }

    fn know(&self, condition: Condition, holds: bool) {
        let mut known = lock(&self.facts.0);
        if !known.iter().any(|(c, _)| *c == condition) {
            known.push((condition, holds));
        }
    }

    /// True if no cell is masked.
    pub fn is_unmasked(&self) -> bool {
        self.holds(Condition::Unmasked)
    }

    /// Records that no value is NaN.
    pub(crate) fn without_nan(self) -> Self {
        self.know(Condition::NoNan, true);
        self
    }

    pub(crate) fn unmasked(self) -> Self {
        self.know(Condition::Unmasked, true);
        self
    }
}

fn is_unmasked(valid: &Field) -> bool {
    !is_any(valid.data.as_slice(), |v: u8| v == 0)
}

#[allow(clippy::eq_op, reason = "NaN alone differs from itself")]
fn is_true(field: &Field, condition: Condition) -> bool {
    macro_rules! by {
        ($t:ty, $of:expr) => {{
            let Ok(values) = field.values::<$t>() else { return false };
            let of = $of;
            match condition {
                Condition::Unmasked | Condition::Only(_) => false,
                Condition::NoNan => !is_any(values, |v: $t| v != v),
                Condition::Without(s) => {
                    let s: $t = of(s);
                    !is_any(values, move |v| v == s)
                }
                Condition::NotBelow(s) => {
                    let s: $t = of(s);
                    !is_any(values, move |v| v < s)
                }
                Condition::NotAbove(s) => {
                    let s: $t = of(s);
                    !is_any(values, move |v| v > s)
                }
            }
        }};
    }
    match field.dtype {
        DType::Bool | DType::UInt8 => by!(u8, |s: Scalar| s.as_i128() as u8),
        DType::Int8 => by!(i8, |s: Scalar| s.as_i128() as i8),
        DType::Int16 => by!(i16, |s: Scalar| s.as_i128() as i16),
        DType::Int32 => by!(i32, |s: Scalar| s.as_i128() as i32),
        DType::Int64 | DType::Datetime(_) => by!(i64, |s: Scalar| s.as_i128() as i64),
        DType::UInt16 => by!(u16, |s: Scalar| s.as_i128() as u16),
        DType::UInt32 => by!(u32, |s: Scalar| s.as_i128() as u32),
        DType::UInt64 => by!(u64, |s: Scalar| s.as_i128() as u64),
        DType::Float32 => by!(f32, |s: Scalar| s.as_f64() as f32),
        DType::Float64 => by!(f64, |s: Scalar| s.as_f64()),
    }
}

/// Upper bound on the bytes of the shared mask.
const SHARED_MAX: usize = 8 << 20;

/// The all-true mask that chunks without masked cells share. Charged to no account.
static SHARED: Mutex<Option<Buffer>> = Mutex::new(None);

/// Returns the all-true mask of `cells` cells; `None` above [`SHARED_MAX`].
pub(crate) fn all_valid(cells: usize) -> Option<Field> {
    if cells > SHARED_MAX {
        return None;
    }
    let mut shared = lock(&SHARED);
    let long = match &*shared {
        Some(bytes) if bytes.len() >= cells => bytes.clone(),
        _ => {
            let len = cells.next_power_of_two().max(64 << 10);
            shared.insert(Buffer::from_vec(vec![1u8; len])).clone()
        }
    };
    Some(Field { dtype: DType::Bool, data: long.slice_with_length(0, cells) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn conditions_are_those_of_decoding() {
        use Condition::*;
        let mut v: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let chunk = Chunk::from_vec(&[5000], v.clone()).unwrap();
        let s = |x: f64| Scalar::from_f64(DType::Float32, x);
        let of = |c: &Chunk| {
            [NoNan, Without(s(4999.0)), Without(s(-1.0)), NotBelow(s(0.0)), NotBelow(s(1.0))]
                .map(|x| c.holds(x))
        };
        assert_eq!(of(&chunk), [true, false, true, true, false]);
        assert_eq!(
            [NotAbove(s(4999.0)), NotAbove(s(4998.0))].map(|x| chunk.holds(x)),
            [true, false]
        );
        // NaN violates no bound.
        v[4999] = f32::NAN;
        let chunk = Chunk::from_vec(&[5000], v).unwrap();
        assert_eq!(of(&chunk), [false, true, true, true, false]);
        assert!(chunk.holds(NotAbove(s(4998.0))) && chunk.is_unmasked());
        let packed = Chunk::from_vec(&[3], vec![i16::MIN, 0, 7]).unwrap();
        let i = |x: i64| Scalar::from_i128(DType::Int16, x.into()).unwrap();
        assert!(!packed.holds(Without(i(-32768))) && packed.holds(Without(i(-32767))));
        assert!(packed.holds(NoNan));
        let exact = Chunk::from_vec(&[1], vec![u64::MAX]).unwrap();
        let u = |x: i128| Scalar::from_i128(DType::UInt64, x).unwrap();
        assert!(exact.holds(Without(u((1 << 64) - 2))) && !exact.holds(Without(u((1 << 64) - 1))));
    }

    #[test]
    fn a_mask_that_masks_nothing_is_shared() {
        let value = || Field::from_vec(DType::Int8, vec![1i8; 1000]).unwrap();
        let shared = all_valid(1000).unwrap();
        assert_eq!(shared.len(), 1000);
        let chunk = Chunk::new(&[1000], [value(), shared.clone()]).unwrap();
        assert!(chunk.is_unmasked());
        let again = all_valid(500).unwrap();
        assert_eq!(again.data.as_ptr(), all_valid(999).unwrap().data.as_ptr());
        assert!(all_valid(SHARED_MAX + 1).is_none());
        let mut bytes = vec![1u8; 1000];
        bytes[999] = 0;
        let valid = Field::from_vec(DType::Bool, bytes).unwrap();
        assert!(!Chunk::new(&[1000], [value(), valid]).unwrap().is_unmasked());
    }
}
