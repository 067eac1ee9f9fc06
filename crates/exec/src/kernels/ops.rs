//! Operations on tiles: for each operation and type the function that runs it, at a level.
#![expect(
    unsafe_code,
    reason = "cells are typed by pointer casts; each block says why it is sound"
)]

use super::elem::{self, CastTo, Elem, Float, Int, Kind};
use super::level::{Level, leveled};
use super::math;
use tessera_planner::dtype::{Calendar, DType};
use tessera_planner::program::ScalarOp;
use tessera_planner::time::DatePart;

/// Cells of a tile.
pub(crate) const N: usize = 64;

/// Most tiles that operations take at a time.
pub(crate) const TILES: usize = 8;

/// An operation on tiles that lie one after the other: destination, up to three sources, a parameter, and the number of
/// tiles.
///
/// # Safety
/// All pointers are aligned for their types and good for [`N`] cells a tile; the destination overlaps no source.
pub(crate) type OpFn = unsafe fn(*mut u8, *const u8, *const u8, *const u8, u64, usize);

/// Writes tiles of `int64`: the first value, the step, and the number of tiles.
///
/// # Safety
/// The pointer is aligned and good for [`N`] cells a tile.
pub(crate) type IotaFn = unsafe fn(*mut u8, i64, i64, usize);

/// An operation as tiles run it: a program's, or one that compilation makes of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileOp {
    /// As in the program.
    Scalar(ScalarOp),
    /// `a * b + c` with two roundings.
    MulAdd,
    /// `a * b - c` with two roundings.
    MulSub,
    /// `c - a * b` with two roundings.
    NegMulAdd,
    /// `a * a + b * b` with three roundings.
    SquareSum,
    /// `sqrt(a * a + b * b)` with four roundings.
    Norm,
    /// `exp(-a)`.
    ExpNeg,
    /// The cells themselves.
    Copy,
    /// `bool` of an integer: is it 0.
    IsZero,
    /// `bool` of an integer: is it below 0.
    IsNegative,
}

/// The cells of some tiles.
///
/// # Safety
/// As of [`OpFn`].
#[inline(always)]
unsafe fn cells<'a, A>(from: *const u8, tiles: usize) -> &'a [A] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from.cast(), N * tiles) }
}

/// The cells of some tiles, to write.
///
/// # Safety
/// As of [`OpFn`].
#[inline(always)]
unsafe fn cells_mut<'a, A>(to: *mut u8, tiles: usize) -> &'a mut [A] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(to.cast(), N * tiles) }
}

/// A function of one cell.
trait Op1<A, R> {
    fn f(a: A) -> R;
}
/// A function of two cells.
trait Op2<A, R> {
    fn f(a: A, b: A) -> R;
}
/// A function of three cells.
trait Op3<A> {
    fn f(a: A, b: A, c: A) -> A;
}

#[inline(always)]
unsafe fn body1<O: Op1<A, R>, A: Copy, R: Copy>(
    d: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    _: u64,
    tiles: usize,
) {
    // SAFETY: as the type of the function demands.
    let (d, a) = unsafe { (cells_mut::<R>(d, tiles), cells::<A>(a, tiles)) };
    for (d, a) in d.iter_mut().zip(a) {
        *d = O::f(*a);
    }
}
leveled!(op1, body1<O: Op1<A, R>, A: Copy, R: Copy>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

#[inline(always)]
unsafe fn body2<O: Op2<A, R>, A: Copy, R: Copy>(
    d: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    _: u64,
    tiles: usize,
) {
    // SAFETY: as the type of the function demands.
    let (d, a, b) =
        unsafe { (cells_mut::<R>(d, tiles), cells::<A>(a, tiles), cells::<A>(b, tiles)) };
    for ((d, a), b) in d.iter_mut().zip(a).zip(b) {
        *d = O::f(*a, *b);
    }
}
leveled!(op2, body2<O: Op2<A, R>, A: Copy, R: Copy>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

#[inline(always)]
unsafe fn body3<O: Op3<A>, A: Copy>(
    d: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    _: u64,
    tiles: usize,
) {
    // SAFETY: as the type of the function demands.
    let (d, a, b, c) = unsafe {
        (cells_mut::<A>(d, tiles), cells::<A>(a, tiles), cells::<A>(b, tiles), cells::<A>(c, tiles))
    };
    for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) {
        *d = O::f(*a, *b, *c);
    }
}
leveled!(op3, body3<O: Op3<A>, A: Copy>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

/// Lets [`body_iota`] go through `leveled!`.
trait Plain {}
impl Plain for i64 {}
#[inline(always)]
unsafe fn body_iota<M: Plain>(d: *mut u8, first: i64, step: i64, tiles: usize) {
    // SAFETY: as the type of the function demands.
    let d = unsafe { cells_mut::<i64>(d, tiles) };
    for (i, d) in d.iter_mut().enumerate() {
        *d = first.wrapping_add(step.wrapping_mul(i as i64));
    }
}
leveled!(pick_iota, body_iota<M: Plain>(d: *mut u8, first: i64, step: i64, tiles: usize) as IotaFn);

/// What writes indices at a level.
pub(crate) fn iota(level: Level) -> IotaFn {
    pick_iota::<i64>(level)
}

/// A function that has another form for large arguments: those cells are done again.
#[inline(always)]
unsafe fn body_fun<F: math::Fun, A: Float>(
    d: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    _: u64,
    tiles: usize,
) {
    // SAFETY: as the type of the function demands.
    let (d, a) = unsafe { (cells_mut::<A>(d, tiles), cells::<A>(a, tiles)) };
    for (d, a) in d.iter_mut().zip(a) {
        *d = a.fun::<F>();
    }
    if F::LIMIT.is_some() && a.iter().fold(false, |any, x| any | x.is_far::<F>()) {
        for (d, a) in d.iter_mut().zip(a) {
            if a.is_far::<F>() {
                *d = a.far::<F>();
            }
        }
    }
}
leveled!(op_fun, body_fun<F: math::Fun, A: Float>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

/// Cells as their bits.
trait Word: Int + From<bool> {}
impl<T: Int + From<bool>> Word for T {}

#[inline(always)]
unsafe fn body_where<A: Word>(
    d: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    _: u64,
    tiles: usize,
) {
    // SAFETY: as the type of the function demands.
    let (d, a, b, c) = unsafe {
        (
            cells_mut::<A>(d, tiles),
            cells::<u8>(a, tiles),
            cells::<A>(b, tiles),
            cells::<A>(c, tiles),
        )
    };
    for (((d, a), b), c) in d.iter_mut().zip(a).zip(b).zip(c) {
        // By bits, so that both are loaded: a choice of addresses becomes a gather.
        let mask = A::default().sub(A::from(*a != 0));
        *d = b.and(mask).or(c.and(mask.not()));
    }
}
leveled!(op_where, body_where<A: Word>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

#[inline(always)]
unsafe fn body_random<R: Stream>(
    d: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    seed: u64,
    tiles: usize,
) {
    for t in 0..tiles {
        // SAFETY: as the type of the function demands.
        let (d, a) = unsafe { (&mut *d.cast::<[f64; N]>().add(t), &*a.cast::<[i64; N]>().add(t)) };
        R::draw(d, a, seed);
    }
}
leveled!(op_random, body_random<R: Stream>(d: *mut u8, a: *const u8, b: *const u8, c: *const u8, imm: u64, tiles: usize) as OpFn);

trait Stream {
    fn draw(to: &mut [f64; N], cells: &[i64; N], seed: u64);
}
struct Uniform;
struct Normal;
impl Stream for Uniform {
    #[inline(always)]
    fn draw(to: &mut [f64; N], cells: &[i64; N], seed: u64) {
        for (d, cell) in to.iter_mut().zip(cells) {
            *d = super::random::uniform(*cell, seed);
        }
    }
}
impl Stream for Normal {
    #[inline(always)]
    fn draw(to: &mut [f64; N], cells: &[i64; N], seed: u64) {
        // One loop for each half of the work: one for all of it would not find registers enough.
        let mut turns = [0.0; N];
        for i in 0..N {
            (to[i], turns[i]) = super::random::pair(cells[i], seed);
        }
        for (d, turns) in to.iter_mut().zip(turns) {
            *d = super::random::normal_of(*d, turns);
        }
    }
}

const CALENDARS: [Calendar; 5] =
    [Calendar::Standard, Calendar::NoLeap, Calendar::AllLeap, Calendar::Day360, Calendar::Julian];
const PARTS: [DatePart; 11] = [
    DatePart::Year,
    DatePart::Quarter,
    DatePart::Month,
    DatePart::Week,
    DatePart::Day,
    DatePart::DayOfYear,
    DatePart::DayOfWeek,
    DatePart::Hour,
    DatePart::Minute,
    DatePart::Second,
    DatePart::Season,
];

unsafe fn date_part(d: *mut u8, a: *const u8, _: *const u8, _: *const u8, imm: u64, tiles: usize) {
    // SAFETY: as the type of the function demands.
    let (d, a) = unsafe { (cells_mut::<i64>(d, tiles), cells::<i64>(a, tiles)) };
    let part = PARTS[(imm & 15) as usize % PARTS.len()];
    let calendar = CALENDARS[(imm >> 4) as usize % CALENDARS.len()];
    for (d, a) in d.iter_mut().zip(a) {
        *d = part.of(*a, calendar);
    }
}

/// Names an operation as a type: `unary!(Neg: Elem => T, |a| a.neg())`.
macro_rules! unary {
    ($($name:ident: $bound:ident => $r:ty, |$a:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op1<T, $r> for $name {
            #[inline(always)]
            fn f($a: T) -> $r { $e }
        }
    )* };
}
macro_rules! binary {
    ($($name:ident: $bound:ident => $r:ty, |$a:ident, $b:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op2<T, $r> for $name {
            #[inline(always)]
            fn f($a: T, $b: T) -> $r { $e }
        }
    )* };
}
macro_rules! ternary {
    ($($name:ident: $bound:ident, |$a:ident, $b:ident, $c:ident| $e:expr;)*) => { $(
        struct $name;
        impl<T: $bound> Op3<T> for $name {
            #[inline(always)]
            fn f($a: T, $b: T, $c: T) -> T { $e }
        }
    )* };
}
unary! {
    Neg: Elem => T, |a| a.neg();
    Abs: Elem => T, |a| a.abs();
    Sign: Elem => T, |a| a.sign();
    Sqrt: Float => T, |a| a.sqrt();
    ExpNeg: Float => T, |a| a.neg().exp();
    Floor: Float => T, |a| a.floor();
    Ceil: Float => T, |a| a.ceil();
    Trunc: Float => T, |a| a.trunc();
    Rint: Float => T, |a| a.rint();
    Not: Int => T, |a| a.not();
    IsNan: Elem => u8, |a| u8::from(a.is_nan());
    IsInf: Float => u8, |a| u8::from(a.is_inf());
    IsFinite: Float => u8, |a| u8::from(!a.is_inf() && !a.is_nan());
    SignBit: Elem => u8, |a| u8::from(a.sign_bit());
    IsZero: Elem => u8, |a| u8::from(a == T::default());
    NonZero: Elem => u8, |a| u8::from(a != T::default());
    IsNegative: Int => u8, |a| u8::from(a.negative());
}
binary! {
    Add: Elem => T, |a, b| a.add(b);
    Sub: Elem => T, |a, b| a.sub(b);
    Mul: Elem => T, |a, b| a.mul(b);
    Div: Float => T, |a, b| a.div(b);
    FloorDiv: Elem => T, |a, b| a.floor_div(b);
    Rem: Elem => T, |a, b| a.rem(b);
    Fmod: Elem => T, |a, b| a.fmod(b);
    TruncDiv: Int => T, |a, b| a.trunc_div(b);
    IntPow: Int => T, |a, b| a.pow(b);
    Minimum: Elem => T, |a, b| elem::minimum(a, b);
    Maximum: Elem => T, |a, b| elem::maximum(a, b);
    Fmin: Elem => T, |a, b| elem::fmin(a, b);
    Fmax: Elem => T, |a, b| elem::fmax(a, b);
    Copysign: Float => T, |a, b| a.copysign(b);
    Nextafter: Float => T, |a, b| a.nextafter(b);
    And: Int => T, |a, b| a.and(b);
    Or: Int => T, |a, b| a.or(b);
    Xor: Int => T, |a, b| a.xor(b);
    Shl: Int => T, |a, b| a.shl(b);
    Shr: Int => T, |a, b| a.shr(b);
    Eq: Elem => u8, |a, b| u8::from(a == b);
    Ne: Elem => u8, |a, b| u8::from(a != b);
    Lt: Elem => u8, |a, b| u8::from(a < b);
    Le: Elem => u8, |a, b| u8::from(a <= b);
    Gt: Elem => u8, |a, b| u8::from(a > b);
    Ge: Elem => u8, |a, b| u8::from(a >= b);
    SquareSum: Float => T, |a, b| a.mul(a).add(b.mul(b));
    Norm: Float => T, |a, b| a.mul(a).add(b.mul(b)).sqrt();
}
ternary! {
    MulAdd: Float, |a, b, c| a.mul(b).add(c);
    MulSub: Float, |a, b, c| a.mul(b).sub(c);
    NegMulAdd: Float, |a, b, c| c.sub(a.mul(b));
}
struct Fun2<F>(F);
impl<T: Float, F: math::Fun2> Op2<T, T> for Fun2<F> {
    #[inline(always)]
    fn f(a: T, b: T) -> T {
        a.fun2::<F>(b)
    }
}
struct Same;
impl<T: Copy> Op1<T, T> for Same {
    #[inline(always)]
    fn f(a: T) -> T {
        a
    }
}
/// Logical not of a byte that is 0 or 1.
struct NotBool;
impl Op1<u8, u8> for NotBool {
    #[inline(always)]
    fn f(a: u8) -> u8 {
        a ^ 1
    }
}
struct Cast;
impl<A: CastTo<R>, R> Op1<A, R> for Cast {
    #[inline(always)]
    fn f(a: A) -> R {
        a.cast()
    }
}

/// Runs `$e` with `$T` as the machine type of a kind, `None` for kinds that are not listed.
macro_rules! with {
    ($k:expr, $T:ident => $e:expr, $($kind:ident $t:ty),*) => {
        match Some($k) {
            $(Some(Kind::$kind) => { type $T = $t; Some($e) })*
            _ => None,
        }
    };
}
macro_rules! floats {
    ($k:expr, $T:ident => $e:expr) => { with!($k, $T => $e, F32 f32, F64 f64) };
}
macro_rules! ints {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}
/// Integers where the sign does not matter, and `bool`.
macro_rules! words {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, Bool u8, I8 u8, I16 u16, I32 u32, I64 u64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}
macro_rules! nums {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
}
/// All kinds; a `bool` orders as a byte.
macro_rules! all {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, Bool u8, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
}
/// Kinds whose arithmetic wraps alike, and floats.
macro_rules! rings {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, I8 u8, I16 u16, I32 u32, I64 u64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
}

/// The function for an operation on arguments of type `arg` with a result of type `to`, and its parameter; `None` if
/// it is not defined for them.
pub(crate) fn pick(op: TileOp, arg: DType, to: DType, level: Level) -> Option<(OpFn, u64)> {
    use ScalarOp as S;
    let k = Kind::of(arg);
    let l = level;
    // Functions that do not vectorise gain nothing from a level.
    let low = Level::Baseline;
    let mut imm = 0;
    let f = match op {
        TileOp::MulAdd => floats!(k, T => op3::<MulAdd, T>(l)),
        TileOp::MulSub => floats!(k, T => op3::<MulSub, T>(l)),
        TileOp::NegMulAdd => floats!(k, T => op3::<NegMulAdd, T>(l)),
        TileOp::SquareSum => floats!(k, T => op2::<SquareSum, T, T>(l)),
        TileOp::Norm => floats!(k, T => op2::<Norm, T, T>(l)),
        TileOp::ExpNeg => floats!(k, T => op1::<ExpNeg, T, T>(l)),
        TileOp::Copy => Some(copy(arg.size(), l)),
        TileOp::IsZero => ints!(k, T => op1::<IsZero, T, u8>(low)),
        TileOp::IsNegative => ints!(k, T => op1::<IsNegative, T, u8>(low)),
        TileOp::Scalar(op) => match op {
            S::Neg => rings!(k, T => op1::<Neg, T, T>(l)),
            S::Abs => nums!(k, T => op1::<Abs, T, T>(l)),
            S::Sign => nums!(k, T => op1::<Sign, T, T>(l)),
            S::Sqrt => floats!(k, T => op1::<Sqrt, T, T>(l)),
            S::Exp => floats!(k, T => op_fun::<math::Exp, T>(l_of::<math::Exp>(l))),
            S::Log => floats!(k, T => op_fun::<math::Log, T>(l_of::<math::Log>(l))),
            S::Cbrt => floats!(k, T => op_fun::<math::Cbrt, T>(l_of::<math::Cbrt>(l))),
            S::Exp2 => floats!(k, T => op_fun::<math::Exp2, T>(l_of::<math::Exp2>(l))),
            S::Expm1 => floats!(k, T => op_fun::<math::Expm1, T>(l_of::<math::Expm1>(l))),
            S::Log2 => floats!(k, T => op_fun::<math::Log2, T>(l_of::<math::Log2>(l))),
            S::Log10 => floats!(k, T => op_fun::<math::Log10, T>(l_of::<math::Log10>(l))),
            S::Log1p => floats!(k, T => op_fun::<math::Log1p, T>(l_of::<math::Log1p>(l))),
            S::Sin => floats!(k, T => op_fun::<math::Sin, T>(l_of::<math::Sin>(l))),
            S::Cos => floats!(k, T => op_fun::<math::Cos, T>(l_of::<math::Cos>(l))),
            S::Tan => floats!(k, T => op_fun::<math::Tan, T>(l_of::<math::Tan>(l))),
            S::Arcsin => floats!(k, T => op_fun::<math::Arcsin, T>(l_of::<math::Arcsin>(l))),
            S::Arccos => floats!(k, T => op_fun::<math::Arccos, T>(l_of::<math::Arccos>(l))),
            S::Arctan => floats!(k, T => op_fun::<math::Arctan, T>(l_of::<math::Arctan>(l))),
            S::Sinh => floats!(k, T => op_fun::<math::Sinh, T>(l_of::<math::Sinh>(l))),
            S::Cosh => floats!(k, T => op_fun::<math::Cosh, T>(l_of::<math::Cosh>(l))),
            S::Tanh => floats!(k, T => op_fun::<math::Tanh, T>(l_of::<math::Tanh>(l))),
            S::Arcsinh => floats!(k, T => op_fun::<math::Arcsinh, T>(l_of::<math::Arcsinh>(l))),
            S::Arccosh => floats!(k, T => op_fun::<math::Arccosh, T>(l_of::<math::Arccosh>(l))),
            S::Arctanh => floats!(k, T => op_fun::<math::Arctanh, T>(l_of::<math::Arctanh>(l))),
            S::Floor => floats!(k, T => op1::<Floor, T, T>(l)),
            S::Ceil => floats!(k, T => op1::<Ceil, T, T>(l)),
            S::Trunc => floats!(k, T => op1::<Trunc, T, T>(l)),
            S::Rint => floats!(k, T => op1::<Rint, T, T>(l)),
            S::Not if k == Kind::Bool => Some(op1::<NotBool, u8, u8>(l)),
            S::Not => words!(k, T => op1::<Not, T, T>(l)),
            S::IsNan => floats!(k, T => op1::<IsNan, T, u8>(l)),
            S::IsInf => floats!(k, T => op1::<IsInf, T, u8>(l)),
            S::IsFinite => floats!(k, T => op1::<IsFinite, T, u8>(l)),
            S::SignBit => nums!(k, T => op1::<SignBit, T, u8>(l)),
            S::Cast => cast(k, Kind::of(to), l),
            S::DatePart(part) => {
                let DType::Datetime(c) = arg else { return None };
                let part = PARTS.iter().position(|p| *p == part)?;
                let calendar = CALENDARS.iter().position(|x| *x == c)?;
                imm = part as u64 | (calendar as u64) << 4;
                Some(date_part as OpFn)
            }
            S::RandomUniform { seed } => {
                imm = seed;
                (k == Kind::I64).then(|| op_random::<Uniform>(l))
            }
            S::RandomNormal { seed } => {
                imm = seed;
                (k == Kind::I64).then(|| op_random::<Normal>(l))
            }
            S::Add if k == Kind::Bool => Some(op2::<Or, u8, u8>(l)),
            S::Add => rings!(k, T => op2::<Add, T, T>(l)),
            S::Sub => rings!(k, T => op2::<Sub, T, T>(l)),
            S::Mul if k == Kind::Bool => Some(op2::<And, u8, u8>(l)),
            S::Mul => rings!(k, T => op2::<Mul, T, T>(l)),
            S::Div => floats!(k, T => op2::<Div, T, T>(l)),
            S::FloorDiv => nums!(k, T => op2::<FloorDiv, T, T>(low)),
            S::Rem => nums!(k, T => op2::<Rem, T, T>(low)),
            S::Fmod => nums!(k, T => op2::<Fmod, T, T>(low)),
            S::TruncDiv => ints!(k, T => op2::<TruncDiv, T, T>(low)),
            S::TruncRem => ints!(k, T => op2::<Fmod, T, T>(low)),
            S::Pow if arg.is_float() => floats!(k, T => op2::<Fun2<math::Pow>, T, T>(l)),
            S::Pow => ints!(k, T => op2::<IntPow, T, T>(low)),
            S::Minimum => all!(k, T => op2::<Minimum, T, T>(l)),
            S::Maximum => all!(k, T => op2::<Maximum, T, T>(l)),
            S::Fmin => all!(k, T => op2::<Fmin, T, T>(l)),
            S::Fmax => all!(k, T => op2::<Fmax, T, T>(l)),
            S::Arctan2 => floats!(k, T => op2::<Fun2<math::Arctan2>, T, T>(l)),
            S::Hypot => floats!(k, T => op2::<Fun2<math::Hypot>, T, T>(low)),
            S::Copysign => floats!(k, T => op2::<Copysign, T, T>(l)),
            S::Nextafter => floats!(k, T => op2::<Nextafter, T, T>(low)),
            S::Logaddexp => floats!(k, T => op2::<Fun2<math::Logaddexp>, T, T>(low)),
            S::And => words!(k, T => op2::<And, T, T>(l)),
            S::Or => words!(k, T => op2::<Or, T, T>(l)),
            S::Xor => words!(k, T => op2::<Xor, T, T>(l)),
            S::ShiftLeft => ints!(k, T => op2::<Shl, T, T>(l)),
            S::ShiftRight => ints!(k, T => op2::<Shr, T, T>(l)),
            S::Eq => all!(k, T => op2::<Eq, T, u8>(l)),
            S::Ne => all!(k, T => op2::<Ne, T, u8>(l)),
            S::Lt => all!(k, T => op2::<Lt, T, u8>(l)),
            S::Le => all!(k, T => op2::<Le, T, u8>(l)),
            S::Gt => all!(k, T => op2::<Gt, T, u8>(l)),
            S::Ge => all!(k, T => op2::<Ge, T, u8>(l)),
            // The type of the branches decides.
            S::Where => Some(match to.size() {
                1 => op_where::<u8>(l),
                2 => op_where::<u16>(l),
                4 => op_where::<u32>(l),
                _ => op_where::<u64>(l),
            }),
        },
    };
    f.map(|f| (f, imm))
}

/// The level for a function: one that does not vectorise gains nothing from a higher one.
fn l_of<F: math::Fun>(l: Level) -> Level {
    if F::FAST { l } else { Level::Baseline }
}

fn copy(size: usize, l: Level) -> OpFn {
    match size {
        1 => op1::<Same, u8, u8>(l),
        2 => op1::<Same, u16, u16>(l),
        4 => op1::<Same, u32, u32>(l),
        _ => op1::<Same, u64, u64>(l),
    }
}

fn cast(from: Kind, to: Kind, l: Level) -> Option<OpFn> {
    if from == to {
        return all!(from, T => copy(size_of::<T>(), l));
    }
    if to == Kind::Bool {
        return all!(from, T => op1::<NonZero, T, u8>(l));
    }
    // A bool is a byte that is 0 or 1; among integers only the source's sign matters, for it fills the upper bits.
    let from = if from == Kind::Bool { Kind::U8 } else { from };
    macro_rules! to {
        ($A:ident) => {
            nums!(to, R => op1::<Cast, $A, R>(l))
        };
    }
    macro_rules! to_word {
        ($A:ident) => {
            rings!(to, R => op1::<Cast, $A, R>(l))
        };
    }
    match from {
        Kind::F32 => to!(f32),
        Kind::F64 => to!(f64),
        Kind::I8 => to_word!(i8),
        Kind::I16 => to_word!(i16),
        Kind::I32 => to_word!(i32),
        Kind::I64 => to_word!(i64),
        Kind::U16 => to_word!(u16),
        Kind::U32 => to_word!(u32),
        Kind::U64 => to_word!(u64),
        _ => to_word!(u8),
    }
}

#[cfg(test)]
mod tests;
