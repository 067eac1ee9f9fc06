//! Keys: unsigned integers in the order of their cells.

use super::Cell;
use super::order::Wanted;
use super::zeros::Zeros;
use crate::KernelError;
#[cfg(target_arch = "x86_64")]
use crate::Level;
use crate::plain::Plain;
use std::ops::Not;
use tessera_planner::dtype::DType;
use tessera_planner::sort::SortOrder;

/// An unsigned integer that represents a cell.
pub trait Key: Plain + Ord + Default + Not<Output = Self> {
    /// The key as 64 bits, in the same order.
    fn wide(self) -> u64;
    /// The inverse of [`Key::wide`].
    fn narrow(wide: u64) -> Self;
    /// Sorts keys with vectors as far as `wanted`; returns false, and does nothing, if there are no vectors for them.
    fn place(keys: &mut [Self], wanted: Wanted<'_>) -> bool;
}

macro_rules! keys {
    ($($t:ident $(by $vectors:ident)?;)*) => { $(
        impl Key for $t {
            #[inline(always)]
            fn wide(self) -> u64 {
                self.into()
            }
            #[inline(always)]
            fn narrow(wide: u64) -> $t {
                wide as $t
            }
            fn place(keys: &mut [$t], wanted: Wanted<'_>) -> bool {
                $(
                    #[cfg(target_arch = "x86_64")]
                    if Level::detect() >= Level::Avx2 {
                        #[expect(unsafe_code, reason = "calls what is compiled for these instructions")]
                        // SAFETY: the machine has the vector instructions.
                        unsafe {
                            super::vector::$vectors(keys, wanted);
                        }
                        return true;
                    }
                )?
                let _ = (keys, wanted);
                false
            }
        }
    )* };
}
keys! { u8; u16; u32 by place_u32; u64 by place_u64; }

/// Calls `$run!` with the type of a dtype's cells, and the variant for its key size in enums of keys.
macro_rules! by_cell {
    ($dtype:expr, $run:ident) => {{
        use $crate::elem::MachineType;
        match MachineType::of($dtype) {
            MachineType::Bool | MachineType::U8 => $run!(u8, U8),
            MachineType::I8 => $run!(i8, U8),
            MachineType::I16 => $run!(i16, U16),
            MachineType::U16 => $run!(u16, U16),
            MachineType::I32 => $run!(i32, U32),
            MachineType::U32 => $run!(u32, U32),
            MachineType::F32 => $run!(f32, U32),
            MachineType::I64 => $run!(i64, U64),
            MachineType::U64 => $run!(u64, U64),
            MachineType::F64 => $run!(f64, U64),
        }
    }};
}
pub(super) use by_cell;

/// The error for keys of another size than a dtype's.
pub(super) fn other_size(dtype: DType) -> KernelError {
    KernelError::Buffer { what: "size of keys", got: 0, expected: dtype.size() as u64 }
}

/// A cell type with keys.
pub(crate) trait Keyed: Cell + Default {
    /// An integer of the cell's size.
    type Key: Key + Cell;
    /// True if the type has NaN.
    const HAS_NAN: bool;
    /// Keys of the zeros, if the type has two of them.
    const ZEROS: Option<Zeros<Self::Key>>;
    /// Key of the cell; `None` for NaN. -0.0 precedes 0.0.
    fn key(self) -> Option<Self::Key>;
    /// Cell of the key.
    fn of(key: Self::Key) -> Self;
    /// A key that is equal for cells that compare equal.
    #[inline(always)]
    fn equal_key(self) -> Option<Self::Key> {
        self.key()
    }
    /// NaN; the least value for types without NaN.
    fn nan() -> Self;
    /// Linear interpolation: the point at the fraction `t` from `a` to `b`.
    fn between(a: Self, b: Self, t: f64) -> Self;
}

/// The key of NaN in an order. No number has it, in either direction: keys of infinities are further inside.
#[inline(always)]
pub(super) fn nan_key<K: Key>(order: SortOrder) -> K {
    if order.nan_first { K::default() } else { !K::default() }
}

/// The key for a cell's place in an order, including NaN.
#[inline(always)]
pub(super) fn ordered<K: Key>(key: Option<K>, order: SortOrder) -> K {
    match key {
        Some(key) if order.descending => !key,
        Some(key) => key,
        None => nan_key(order),
    }
}

/// The cell of a key from [`ordered`].
#[inline(always)]
pub(super) fn cell<T: Keyed>(key: T::Key, order: SortOrder) -> T {
    if T::HAS_NAN && key == nan_key(order) {
        return T::nan();
    }
    T::of(if order.descending { !key } else { key })
}

macro_rules! keyed_ints {
    ($($t:ident $u:ident;)*) => { $(
        impl Keyed for $t {
            type Key = $u;
            const HAS_NAN: bool = false;
            const ZEROS: Option<Zeros<$u>> = None;
            #[inline(always)]
            fn key(self) -> Option<$u> {
                // Counted from the least value.
                Some((self as $u).wrapping_sub($t::MIN as $u))
            }
            #[inline(always)]
            fn of(key: $u) -> $t {
                key.wrapping_add($t::MIN as $u) as $t
            }
            fn nan() -> $t {
                $t::MIN
            }
            fn between(a: $t, _: $t, _: f64) -> $t {
                // Only discrete methods accept integers.
                a
            }
        }
    )* };
}
keyed_ints! { u8 u8; i8 u8; u16 u16; i16 u16; u32 u32; i32 u32; u64 u64; i64 u64; }

macro_rules! keyed_floats {
    ($($t:ident $u:ident;)*) => { $(
        impl Keyed for $t {
            type Key = $u;
            const HAS_NAN: bool = true;
            const ZEROS: Option<Zeros<$u>> =
                Some(Zeros { less: $u::MAX >> 1, more: ($u::MAX >> 1) + 1 });
            #[inline(always)]
            fn key(self) -> Option<$u> {
                const SIGN: $u = 1 << ($u::BITS - 1);
                let bits = self.to_bits();
                // The bits of negative numbers count backward.
                (!self.is_nan()).then_some(if bits & SIGN == 0 { bits | SIGN } else { !bits })
            }
            #[inline(always)]
            fn of(key: $u) -> $t {
                const SIGN: $u = 1 << ($u::BITS - 1);
                $t::from_bits(if key & SIGN == 0 { !key } else { key & !SIGN })
            }
            #[inline(always)]
            fn equal_key(self) -> Option<$u> {
                (if self == 0.0 { 0.0 } else { self }).key()
            }
            fn nan() -> $t {
                $t::NAN
            }
            fn between(a: $t, b: $t, t: f64) -> $t {
                let (x, y) = (f64::from(a), f64::from(b));
                if t == 0.0 {
                    return a;
                }
                if x == y {
                    // Of -0.0 and 0.0 it is 0.0, as in NumPy.
                    return if x == 0.0 { a + b } else { a };
                }
                if t == 0.5 {
                    // The mean of two: of a number and an infinity it is the infinity.
                    return (x * 0.5 + y * 0.5) as $t;
                }
                let step = y - x;
                (if t < 0.5 { x + step * t } else { y - step * (1.0 - t) }) as $t
            }
        }
    )* };
}
keyed_floats! { f32 u32; f64 u64; }
