//! Selection of the function that runs an operation on cells of a type.

use super::*;
use crate::elem::MachineType;
use tessera_planner::dtype::DType;

/// Runs `$e` with `$T` as the machine type of a kind, `None` for kinds that are not listed.
macro_rules! with {
    ($k:expr, $T:ident => $e:expr, $($kind:ident $t:ty),*) => {
        match Some($k) {
            $(Some(MachineType::$kind) => { type $T = $t; Some($e) })*
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
/// Integers without regard to the sign, and `bool`.
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
/// All kinds; a `bool` is ordered as a byte.
macro_rules! all {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, Bool u8, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
}
/// Kinds whose arithmetic wraps regardless of the sign, and floats.
macro_rules! rings {
    ($k:expr, $T:ident => $e:expr) => {
        with!($k, $T => $e, I8 u8, I16 u16, I32 u32, I64 u64, U8 u8, U16 u16, U32 u32, U64 u64, F32 f32, F64 f64)
    };
}

/// Returns the function for an operation on arguments of type `arg` with a result of type `to`, and its parameter;
/// `None` if the operation is not defined for them.
pub(crate) fn pick(op: TileOp, arg: DType, to: DType, level: Level) -> Option<(OpFn, u64)> {
    use ScalarOp as S;
    let k = MachineType::of(arg);
    let l = level;
    // Functions that do not vectorise gain nothing from a higher level.
    let low = Level::Baseline;
    let by_fma = arg.is_float() && l > low;
    let mut imm = 0;
    let f = match op {
        TileOp::MulAdd => floats!(k, T => op3::<MulAdd, T>(l)),
        TileOp::MulSub => floats!(k, T => op3::<MulSub, T>(l)),
        TileOp::NegMulAdd => floats!(k, T => op3::<NegMulAdd, T>(l)),
        TileOp::SubDiv => floats!(k, T => op3::<SubDiv, T>(l)),
        TileOp::SquareSum => floats!(k, T => op2::<SquareSum, T, T>(l)),
        TileOp::Norm => floats!(k, T => op2::<Norm, T, T>(l)),
        TileOp::ExpNeg => floats!(k, T => op1::<ExpNeg, T, T>(l)),
        TileOp::Poly(coefficients) => {
            imm = coefficients as u64;
            floats!(k, T => op_poly::<T>(l))
        }
        TileOp::Right(op, constant) => {
            imm = constant;
            right(op, k, l)
        }
        TileOp::Left(op, constant) => {
            imm = constant;
            match op {
                S::Sub => floats!(k, T => op_left::<Sub, T, T>(l)),
                S::Div => floats!(k, T => op_left::<Div, T, T>(l)),
                _ => None,
            }
        }
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
            S::Erf => floats!(k, T => op_fun::<math::Erf, T>(l_of::<math::Erf>(l))),
            S::Erfc => floats!(k, T => op_fun::<math::Erfc, T>(l_of::<math::Erfc>(l))),
            S::Floor => floats!(k, T => op1::<Floor, T, T>(l)),
            S::Ceil => floats!(k, T => op1::<Ceil, T, T>(l)),
            S::Trunc => floats!(k, T => op1::<Trunc, T, T>(l)),
            S::Rint => floats!(k, T => op1::<Rint, T, T>(l)),
            S::Not if k == MachineType::Bool => Some(op1::<NotBool, u8, u8>(l)),
            S::Not => words!(k, T => op1::<Not, T, T>(l)),
            S::IsNan => floats!(k, T => op1::<IsNan, T, u8>(l)),
            S::IsInf => floats!(k, T => op1::<IsInf, T, u8>(l)),
            S::IsFinite => floats!(k, T => op1::<IsFinite, T, u8>(l)),
            S::SignBit => nums!(k, T => op1::<SignBit, T, u8>(l)),
            S::Cast => cast(k, MachineType::of(to), l),
            S::DatePart(part) => {
                let DType::Datetime(c) = arg else { return None };
                let part = PARTS.iter().position(|p| *p == part)?;
                let calendar = CALENDARS.iter().position(|x| *x == c)?;
                imm = part as u64 | (calendar as u64) << 4;
                Some(date_part as OpFn)
            }
            S::RandomUniform { seed } => {
                imm = seed;
                (k == MachineType::I64).then(|| op_random::<Uniform>(l))
            }
            S::RandomNormal { seed } => {
                imm = seed;
                (k == MachineType::I64).then(|| op_random::<Normal>(l))
            }
            S::Add if k == MachineType::Bool => Some(op2::<Or, u8, u8>(l)),
            S::Add => rings!(k, T => op2::<Add, T, T>(l)),
            S::Sub => rings!(k, T => op2::<Sub, T, T>(l)),
            S::Mul if k == MachineType::Bool => Some(op2::<And, u8, u8>(l)),
            S::Mul => rings!(k, T => op2::<Mul, T, T>(l)),
            S::Div => floats!(k, T => op2::<Div, T, T>(l)),
            // Exact with one fused operation, which the baseline lacks.
            S::FloorDiv if by_fma => floats!(k, T => op_plain::<math::FloorDivide, T>(l)),
            S::Rem if by_fma => floats!(k, T => op_plain::<math::Rem, T>(l)),
            S::Fmod if by_fma => floats!(k, T => op_plain::<math::Fmod, T>(l)),
            S::FloorDiv => nums!(k, T => op2::<FloorDiv, T, T>(low)),
            S::Rem => nums!(k, T => op2::<Rem, T, T>(low)),
            S::Fmod => nums!(k, T => op2::<Fmod, T, T>(low)),
            S::TruncDiv => ints!(k, T => op2::<TruncDiv, T, T>(low)),
            S::TruncRem => ints!(k, T => op2::<Fmod, T, T>(low)),
            S::Pow if arg.is_float() => floats!(k, T => op_plain::<math::Pow, T>(l)),
            S::Pow => ints!(k, T => op2::<IntPow, T, T>(low)),
            S::Minimum => all!(k, T => op2::<Minimum, T, T>(l)),
            S::Maximum => all!(k, T => op2::<Maximum, T, T>(l)),
            S::Fmin => all!(k, T => op2::<Fmin, T, T>(l)),
            S::Fmax => all!(k, T => op2::<Fmax, T, T>(l)),
            S::Arctan2 => floats!(k, T => op2::<Fun2<math::Arctan2>, T, T>(l)),
            S::Hypot => floats!(k, T => op2::<Fun2<math::Hypot>, T, T>(l)),
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
            // The type of the branches selects the function.
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

/// Operations with a form for a constant second argument, for the kinds that are worth the code size.
fn right(op: ScalarOp, k: MachineType, l: Level) -> Option<OpFn> {
    use ScalarOp as S;
    macro_rules! common {
        ($T:ident => $e:expr) => {
            with!(k, $T => $e, I32 i32, I64 i64, F32 f32, F64 f64)
        };
    }
    match op {
        S::Add => floats!(k, T => op_right::<Add, T, T>(l)),
        S::Sub => floats!(k, T => op_right::<Sub, T, T>(l)),
        S::Mul => floats!(k, T => op_right::<Mul, T, T>(l)),
        S::Div => floats!(k, T => op_right::<Div, T, T>(l)),
        S::Eq => common!(T => op_right::<Eq, T, u8>(l)),
        S::Ne => common!(T => op_right::<Ne, T, u8>(l)),
        S::Lt => common!(T => op_right::<Lt, T, u8>(l)),
        S::Le => common!(T => op_right::<Le, T, u8>(l)),
        S::Gt => common!(T => op_right::<Gt, T, u8>(l)),
        S::Ge => common!(T => op_right::<Ge, T, u8>(l)),
        _ => None,
    }
}

/// Level of a function: one that does not vectorise gains nothing from a higher level.
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

fn cast(from: MachineType, to: MachineType, l: Level) -> Option<OpFn> {
    if from == to {
        return all!(from, T => copy(size_of::<T>(), l));
    }
    if to == MachineType::Bool {
        return all!(from, T => op1::<NonZero, T, u8>(l));
    }
    // A bool is a byte that is 0 or 1; among integers only the source's sign matters, as it fills the upper bits.
    let from = if from == MachineType::Bool { MachineType::U8 } else { from };
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
        MachineType::F32 => to!(f32),
        MachineType::F64 => to!(f64),
        MachineType::I8 => to_word!(i8),
        MachineType::I16 => to_word!(i16),
        MachineType::I32 => to_word!(i32),
        MachineType::I64 => to_word!(i64),
        MachineType::U16 => to_word!(u16),
        MachineType::U32 => to_word!(u32),
        MachineType::U64 => to_word!(u64),
        _ => to_word!(u8),
    }
}
