//! Elementwise programs: the computation of a fused operand for each cell.
//!
//! A program is a list of instructions in single-assignment form. Exec runs it tile by tile. Masks need no special
//! handling: validity is an ordinary `bool` value that the program computes next to the data.

use crate::dtype::DType;
use crate::scalar::Scalar;
use crate::time::DatePart;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;

/// One operation on the elements of a cell. Unless stated otherwise, all arguments have the type of the result,
/// integers wrap, and floats follow IEEE 754 and propagate NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ScalarOp {
    /// `-x`; numeric.
    Neg,
    /// `|x|`; numeric; wraps at the least integer as NumPy does.
    Abs,
    /// -1, 0 or 1; NaN stays; numeric.
    Sign,
    /// Square root; float.
    Sqrt,
    /// Cube root; float.
    Cbrt,
    /// e^x; float.
    Exp,
    /// 2^x; float.
    Exp2,
    /// e^x - 1; float.
    Expm1,
    /// Natural logarithm; float.
    Log,
    /// Logarithm to base 2; float.
    Log2,
    /// Logarithm to base 10; float.
    Log10,
    /// log(1 + x); float.
    Log1p,
    /// Sine of radians; float.
    Sin,
    /// Cosine of radians; float.
    Cos,
    /// Tangent of radians; float.
    Tan,
    /// Arc sine in radians; float.
    Arcsin,
    /// Arc cosine in radians; float.
    Arccos,
    /// Arc tangent in radians; float.
    Arctan,
    /// Hyperbolic sine; float.
    Sinh,
    /// Hyperbolic cosine; float.
    Cosh,
    /// Hyperbolic tangent; float.
    Tanh,
    /// Error function; float.
    Erf,
    /// 1 - erf(x); float.
    Erfc,
    /// Inverse hyperbolic sine; float.
    Arcsinh,
    /// Inverse hyperbolic cosine; float.
    Arccosh,
    /// Inverse hyperbolic tangent; float.
    Arctanh,
    /// Largest integer that is not greater; float.
    Floor,
    /// Smallest integer that is not less; float.
    Ceil,
    /// Integer part, rounded toward zero; float.
    Trunc,
    /// Nearest integer, ties to even; float.
    Rint,
    /// Logical not of `bool`, bitwise not of integers.
    Not,
    /// `bool` of a float: true for NaN.
    IsNan,
    /// `bool` of a float: true for an infinity.
    IsInf,
    /// `bool` of a float: true if neither NaN nor infinite.
    IsFinite,
    /// `bool` of a float or signed integer: true if the sign bit is set.
    SignBit,
    /// Converts any type to the result's type as NumPy's `astype`: floats truncate toward zero and, where NumPy leaves
    /// the result undefined, saturate, with NaN as 0; integers wrap; any nonzero value is `true`.
    Cast,
    /// `int64` component of a datetime.
    DatePart(DatePart),
    /// `float64` in [0, 1) from an `int64` counter.
    RandomUniform {
        /// Seed of the stream.
        seed: u64,
    },
    /// Standard normal `float64` from an `int64` counter.
    RandomNormal {
        /// Seed of the stream.
        seed: u64,
    },
    /// Sum; numeric; of `bool`s it is `or`.
    Add,
    /// Difference; numeric.
    Sub,
    /// Product; numeric; of `bool`s it is `and`.
    Mul,
    /// True division; float.
    Div,
    /// Quotient rounded down; numeric; integers by 0 give 0, as NumPy.
    FloorDiv,
    /// Remainder with the sign of the divisor (Python's `%`); numeric; integers by 0 give 0.
    Rem,
    /// Remainder with the sign of the dividend (C's `fmod`); numeric; integers by 0 give 0.
    Fmod,
    /// Quotient rounded toward zero (SQL's integer `/`); integers; division by 0 is an error.
    TruncDiv,
    /// Remainder with the sign of the dividend (SQL's `%`); integers; division by 0 is an error.
    TruncRem,
    /// x to the power y; numeric; integers multiply (wrapping), a negative integer exponent is an error.
    Pow,
    /// The smaller of two values of one type; NaN if either is.
    Minimum,
    /// The larger; NaN if either is.
    Maximum,
    /// The smaller; the other one if one is NaN; float.
    Fmin,
    /// The larger; the other one if one is NaN; float.
    Fmax,
    /// Angle of the point (x = second, y = first); float.
    Arctan2,
    /// sqrt(x² + y²) without overflow; float.
    Hypot,
    /// Magnitude of the first with the sign of the second; float.
    Copysign,
    /// Next representable float after the first toward the second; float.
    Nextafter,
    /// log(e^x + e^y); float.
    Logaddexp,
    /// Logical and of `bool`, bitwise of integers.
    And,
    /// Logical or of `bool`, bitwise of integers.
    Or,
    /// Logical exclusive or of `bool`, bitwise of integers.
    Xor,
    /// Left shift of integers; 0 from the width on.
    ShiftLeft,
    /// Arithmetic right shift of integers; sign from the width on.
    ShiftRight,
    /// `bool` of two values of one type: equal; false for NaN.
    Eq,
    /// `bool`: not equal; true for NaN.
    Ne,
    /// `bool`: less; false for NaN.
    Lt,
    /// `bool`: less or equal; false for NaN.
    Le,
    /// `bool`: greater; false for NaN.
    Gt,
    /// `bool`: greater or equal; false for NaN.
    Ge,
    /// `where(bool, x, y)`: x where true, else y.
    Where,
}

impl ScalarOp {
    /// Number of arguments.
    pub fn arity(self) -> usize {
        use ScalarOp::*;
        match self {
            Where => 3,
            Neg
            | Abs
            | Sign
            | Sqrt
            | Cbrt
            | Exp
            | Exp2
            | Expm1
            | Log
            | Log2
            | Log10
            | Log1p
            | Sin
            | Cos
            | Tan
            | Arcsin
            | Arccos
            | Arctan
            | Sinh
            | Cosh
            | Tanh
            | Erf
            | Erfc
            | Arcsinh
            | Arccosh
            | Arctanh
            | Floor
            | Ceil
            | Trunc
            | Rint
            | Not
            | IsNan
            | IsInf
            | IsFinite
            | SignBit
            | Cast
            | DatePart(_)
            | RandomUniform { .. }
            | RandomNormal { .. } => 1,
            _ => 2,
        }
    }

    /// True if the result is `bool` whatever the arguments are.
    pub fn is_predicate(self) -> bool {
        use ScalarOp::*;
        matches!(self, IsNan | IsInf | IsFinite | SignBit | Eq | Ne | Lt | Le | Gt | Ge)
    }

    /// Name of the operation in plans: `add`, `sqrt`, …
    pub fn name(self) -> String {
        match self {
            ScalarOp::DatePart(p) => p.name().into(),
            ScalarOp::RandomUniform { seed } => format!("random_uniform[seed={seed}]"),
            ScalarOp::RandomNormal { seed } => format!("random_normal[seed={seed}]"),
            op => format!("{op:?}").to_lowercase(),
        }
    }
}

/// An argument of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Arg {
    /// Input of the program with that number.
    Input(u32),
    /// A constant, the same for every cell.
    Const(Scalar),
    /// Result of an earlier instruction.
    Inst(u32),
}

/// One instruction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Inst {
    /// The operation.
    pub op: ScalarOp,
    /// Type of its result.
    pub dtype: DType,
    /// Its arguments, as many as the operation takes.
    pub args: SmallVec<[Arg; 3]>,
}

/// A program: typed inputs and instructions that refer only to inputs, constants and earlier instructions. Instructions
/// are unique.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Program {
    /// Types of the inputs.
    pub inputs: Vec<DType>,
    /// The instructions, in the order in which they run.
    pub insts: Vec<Inst>,
}

impl Program {
    /// Type of an argument.
    pub fn dtype(&self, arg: Arg) -> DType {
        match arg {
            Arg::Input(i) => self.inputs[i as usize],
            Arg::Const(c) => c.dtype(),
            Arg::Inst(i) => self.insts[i as usize].dtype,
        }
    }

    /// Adds an instruction or finds an equal one; returns the argument for its result.
    pub fn push(&mut self, op: ScalarOp, dtype: DType, args: &[Arg]) -> Arg {
        let inst = Inst { op, dtype, args: args.into() };
        if let Some(i) = self.insts.iter().position(|x| *x == inst) {
            return Arg::Inst(i as u32);
        }
        self.insts.push(inst);
        Arg::Inst(self.insts.len() as u32 - 1)
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arg::Input(i) => write!(f, "in{i}"),
            Arg::Const(c) => write!(f, "{c}"),
            Arg::Inst(i) => write!(f, "%{i}"),
        }
    }
}

impl fmt::Display for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}(", self.op.name(), self.dtype)?;
        for (i, a) in self.args.iter().enumerate() {
            write!(f, "{}{a}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}
