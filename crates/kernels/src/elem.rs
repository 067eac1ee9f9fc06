//! The machine types behind [`DType`]s and their operations in kernels.

use super::math;
use super::ops::N;
use tessera_planner::dtype::DType;

/// A machine type: the representation of a `DType`'s cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineType {
    /// One byte, 0 or 1.
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

impl MachineType {
    pub(crate) fn of(d: DType) -> MachineType {
        match d {
            DType::Bool => MachineType::Bool,
            DType::Int8 => MachineType::I8,
            DType::Int16 => MachineType::I16,
            DType::Int32 => MachineType::I32,
            DType::Int64 | DType::Datetime(_) => MachineType::I64,
            DType::UInt8 => MachineType::U8,
            DType::UInt16 => MachineType::U16,
            DType::UInt32 => MachineType::U32,
            DType::UInt64 => MachineType::U64,
            DType::Float32 => MachineType::F32,
            DType::Float64 => MachineType::F64,
        }
    }
}

/// A cell type with arithmetic. `bool` cells are `u8`s.
pub(crate) trait Elem: Copy + PartialOrd + PartialEq + Default + 'static {
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn sign_bit(self) -> bool;
    fn floor_div(self, o: Self) -> Self;
    /// Remainder with the sign of the divisor.
    fn rem(self, o: Self) -> Self;
    /// Remainder with the sign of the dividend.
    fn fmod(self, o: Self) -> Self;
    fn pow(self, o: Self) -> Self;
    fn is_nan(self) -> bool;
    /// The greatest value: infinity or the type's maximum.
    fn top() -> Self;
    fn bottom() -> Self;
    /// Converts a scalar's bits, in the format of [`Scalar`](tessera_planner::scalar::Scalar).
    fn from_word(word: u64) -> Self;
    /// An integer of the same size.
    type Bits: Copy + 'static;
    /// A tile of ones (all bits set), then a tile of zeros: from `N - n` on, the masks of a tile of n cells.
    fn masks() -> &'static [Self::Bits; 2 * N];
    /// `self` where the mask is all ones, else `other`.
    fn masked(self, mask: Self::Bits, other: Self) -> Self;
}

/// [`Elem::masks`] for an integer type.
macro_rules! masks {
    ($u:ident) => {{
        static MASKS: [$u; 2 * N] = {
            let mut masks = [0; 2 * N];
            let mut i = 0;
            while i < N {
                masks[i] = !0;
                i += 1;
            }
            masks
        };
        &MASKS
    }};
}

pub(crate) trait Float: Elem {
    fn div(self, o: Self) -> Self;
    fn nan() -> Self;
    fn one() -> Self;
    fn is_inf(self) -> bool;
    fn fun<F: math::Fun>(self) -> Self;
    /// Magnitude of the argument above which (and for NaN) [`Float::fun`] is not `F`, if there is one.
    fn limit<F: math::Fun>() -> Option<f64>;
    /// True if the magnitude exceeds `limit`, or for NaN.
    fn is_beyond(self, limit: f64) -> bool;
    /// The function computed in `f64`.
    fn fun_f64<F: math::Fun>(self) -> Self;
    fn far<F: math::Fun>(self) -> Self;
    fn fun2<F: math::Fun2>(self, o: Self) -> Self;
    /// True if [`Float::plain`] holds for these arguments.
    fn is_plain<F: math::PlainFun2>(self, o: Self) -> bool;
    /// A function of plain arguments.
    fn plain<F: math::PlainFun2>(self, o: Self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    fn rint(self) -> Self;
    fn sqrt(self) -> Self;
    fn exp(self) -> Self;
    fn copysign(self, o: Self) -> Self;
    fn nextafter(self, o: Self) -> Self;
    fn to_f64(self) -> f64;
    /// `self` if `keep`, else 0.
    fn kept(self, keep: bool) -> Self;
}

/// An integer.
pub(crate) trait Int: Elem {
    fn trunc_div(self, o: Self) -> Self;
    fn not(self) -> Self;
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
    fn shl(self, o: Self) -> Self;
    fn shr(self, o: Self) -> Self;
    fn negative(self) -> bool;
}

macro_rules! ints {
    ($($t:ident $signed:literal;)*) => { $(
        impl Elem for $t {
            #[inline(always)] fn add(self, o: Self) -> Self { self.wrapping_add(o) }
            #[inline(always)] fn sub(self, o: Self) -> Self { self.wrapping_sub(o) }
            #[inline(always)] fn mul(self, o: Self) -> Self { self.wrapping_mul(o) }
            #[inline(always)] fn neg(self) -> Self { self.wrapping_neg() }
            #[inline(always)] #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn abs(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
            #[inline(always)] #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn sign(self) -> Self { if self < 0 { (0 as $t).wrapping_sub(1) } else { $t::from(self > 0) } }
            #[inline(always)] #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn sign_bit(self) -> bool { self < 0 }
            #[inline(always)]
            fn floor_div(self, o: Self) -> Self {
                if o == 0 { return 0; }
                let (q, r) = (self.wrapping_div(o), self.wrapping_rem(o));
                // The quotient was rounded toward zero: one too high if the signs differ.
                if $signed && r != 0 && (Int::negative(r) != Int::negative(o)) { q.wrapping_sub(1) } else { q }
            }
            #[inline(always)]
            fn rem(self, o: Self) -> Self {
                if o == 0 { return 0; }
                let r = self.wrapping_rem(o);
                if $signed && r != 0 && (Int::negative(r) != Int::negative(o)) { r.wrapping_add(o) } else { r }
            }
            #[inline(always)]
            fn fmod(self, o: Self) -> Self { if o == 0 { 0 } else { self.wrapping_rem(o) } }
            #[inline(always)]
            fn pow(self, o: Self) -> Self {
                // A negative exponent is rejected beforehand, or its lane is not used.
                if Int::negative(o) { return 0; }
                let (mut base, mut e, mut out) = (self, o as u64, 1 as $t);
                while e > 0 {
                    if e & 1 == 1 { out = out.wrapping_mul(base); }
                    base = base.wrapping_mul(base);
                    e >>= 1;
                }
                out
            }
            #[inline(always)] fn is_nan(self) -> bool { false }
            #[inline(always)] fn top() -> Self { $t::MAX }
            #[inline(always)] fn bottom() -> Self { $t::MIN }
            #[inline(always)] fn from_word(word: u64) -> Self { word as $t }
            type Bits = $t;
            #[inline(always)] fn masks() -> &'static [$t; 2 * N] { masks!($t) }
            #[inline(always)] fn masked(self, mask: $t, other: Self) -> Self { (self & mask) | (other & !mask) }
        }
        impl Int for $t {
            #[inline(always)] fn trunc_div(self, o: Self) -> Self { if o == 0 { 0 } else { self.wrapping_div(o) } }
            #[inline(always)] fn not(self) -> Self { !self }
            #[inline(always)] fn and(self, o: Self) -> Self { self & o }
            #[inline(always)] fn or(self, o: Self) -> Self { self | o }
            #[inline(always)] fn xor(self, o: Self) -> Self { self ^ o }
            #[inline(always)]
            fn shl(self, o: Self) -> Self {
                let s = self.wrapping_shl(o as u32);
                if (o as u64) < <$t>::BITS as u64 { s } else { 0 }
            }
            #[inline(always)]
            fn shr(self, o: Self) -> Self {
                // Shifting by the last bit leaves only sign bits in a signed type, and 0 after one more bit in an
                // unsigned one.
                let last = <$t>::BITS - 1;
                if (o as u64) <= last as u64 { self.wrapping_shr(o as u32) }
                else if $signed { self.wrapping_shr(last) } else { 0 }
            }
            #[inline(always)] #[allow(unused_comparisons, reason = "one body for signed and unsigned")]
            fn negative(self) -> bool { self < 0 }
        }
    )* };
}
ints! { i8 true; i16 true; i32 true; i64 true; u8 false; u16 false; u32 false; u64 false; }

macro_rules! floats {
    ($($t:ident $u:ident $exp:ident $f1:ident $far:ident $is_plain:ident $plain:ident $width:ident;)*) => { $(
        impl Elem for $t {
            #[inline(always)] fn add(self, o: Self) -> Self { self + o }
            #[inline(always)] fn sub(self, o: Self) -> Self { self - o }
            #[inline(always)] fn mul(self, o: Self) -> Self { self * o }
            #[inline(always)] fn neg(self) -> Self { -self }
            #[inline(always)] fn abs(self) -> Self { $t::abs(self) }
            #[inline(always)]
            fn sign(self) -> Self {
                let s = if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { 0.0 };
                if self.is_nan() { self } else { s }
            }
            #[inline(always)] fn sign_bit(self) -> bool { self.is_sign_negative() }
            fn floor_div(self, o: Self) -> Self {
                if o == 0.0 { self / o } else { math::modulo::$width::quotient(self, o, self % o) }
            }
            fn rem(self, o: Self) -> Self {
                let m = self % o;
                if o == 0.0 { m } else { math::modulo::$width::floored(m, o) }
            }
            #[inline(always)] fn fmod(self, o: Self) -> Self { self % o }
            #[inline(always)] fn pow(self, o: Self) -> Self { self.fun2::<math::Pow>(o) }
            #[inline(always)] fn is_nan(self) -> bool { self != self }
            #[inline(always)] fn top() -> Self { $t::INFINITY }
            #[inline(always)] fn bottom() -> Self { $t::NEG_INFINITY }
            #[inline(always)] fn from_word(word: u64) -> Self { $t::from_bits(word as $u) }
            type Bits = $u;
            #[inline(always)] fn masks() -> &'static [$u; 2 * N] { masks!($u) }
            #[inline(always)]
            fn masked(self, mask: $u, other: Self) -> Self {
                $t::from_bits((self.to_bits() & mask) | (other.to_bits() & !mask))
            }
        }
        impl Float for $t {
            #[inline(always)] fn div(self, o: Self) -> Self { self / o }
            #[inline(always)] fn nan() -> Self { $t::NAN }
            #[inline(always)] fn one() -> Self { 1.0 }
            #[inline(always)] fn is_inf(self) -> bool { self.is_infinite() }
            #[inline(always)]
            fn limit<F: math::Fun>() -> Option<f64> {
                if size_of::<$t>() == 4 { F::LIMIT_F32 } else { F::LIMIT }
            }
            #[inline(always)] fn is_beyond(self, limit: f64) -> bool { self.is_nan() || self.abs() > limit as $t }
            #[inline(always)] fn fun_f64<F: math::Fun>(self) -> Self { F::f64(self as f64) as $t }
            fn far<F: math::Fun>(self) -> Self { F::$far(self) }
            #[inline(always)] fn fun<F: math::Fun>(self) -> Self { F::$f1(self) }
            #[inline(always)] fn fun2<F: math::Fun2>(self, o: Self) -> Self { F::$f1(self, o) }
            #[inline(always)] fn is_plain<F: math::PlainFun2>(self, o: Self) -> bool { F::$is_plain(self, o) }
            #[inline(always)] fn plain<F: math::PlainFun2>(self, o: Self) -> Self { F::$plain(self, o) }
            #[inline(always)] fn floor(self) -> Self { $t::floor(self) }
            #[inline(always)] fn ceil(self) -> Self { $t::ceil(self) }
            #[inline(always)] fn trunc(self) -> Self { $t::trunc(self) }
            #[inline(always)] fn rint(self) -> Self { self.round_ties_even() }
            #[inline(always)] fn sqrt(self) -> Self { $t::sqrt(self) }
            #[inline(always)] fn exp(self) -> Self { math::$exp(self) }
            #[inline(always)] fn copysign(self, o: Self) -> Self { $t::copysign(self, o) }
            fn nextafter(self, o: Self) -> Self {
                if self.is_nan() || o.is_nan() { return self + o; }
                if self == o { return o; }
                if self == 0.0 { return <$t>::from_bits(1).copysign(o); }
                // Away from zero the bit pattern increases.
                let up = (self < o) == (self > 0.0);
                let b = self.to_bits();
                <$t>::from_bits(if up { b + 1 } else { b - 1 })
            }
            #[inline(always)] fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn kept(self, keep: bool) -> Self {
                // By bits: the compiler turns a select into a load that waits for the condition.
                $t::from_bits(self.to_bits() & (0 as $u).wrapping_sub($u::from(keep)))
            }
        }
    )* };
}
floats! {
    f32 u32 exp_f32 f32 far_f32 is_plain_f32 plain_f32 single;
    f64 u64 exp_f64 f64 far_f64 is_plain_f64 plain_f64 double;
}

/// NumPy's `astype`.
pub(crate) trait CastTo<R> {
    fn cast(self) -> R;
}
macro_rules! casts {
    ($($a:ident)*) => { $( casts!(@to $a i8 i16 i32 i64 u8 u16 u32 u64 f32 f64); )* };
    (@to $a:ident $($r:ident)*) => { $(
        impl CastTo<$r> for $a {
            #[inline(always)]
            fn cast(self) -> $r { self as $r }
        }
    )* };
}
casts! { i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 }

/// The smaller; NaN if either is.
#[inline(always)]
pub(crate) fn minimum<T: Elem>(a: T, b: T) -> T {
    // The first select is one instruction.
    let least = if a < b { a } else { b };
    if a.is_nan() { a } else { least }
}

/// The larger; NaN if either is.
#[inline(always)]
pub(crate) fn maximum<T: Elem>(a: T, b: T) -> T {
    let greatest = if a > b { a } else { b };
    if a.is_nan() { a } else { greatest }
}

/// The smaller; the other one if one is NaN.
#[inline(always)]
pub(crate) fn fmin<T: Elem>(a: T, b: T) -> T {
    if a <= b || b.is_nan() { a } else { b }
}

/// The larger; the other one if one is NaN.
#[inline(always)]
pub(crate) fn fmax<T: Elem>(a: T, b: T) -> T {
    if a >= b || b.is_nan() { a } else { b }
}
