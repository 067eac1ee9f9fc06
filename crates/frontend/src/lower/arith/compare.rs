//! Comparisons: integers of any two types compare by value.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use crate::error::Error;
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer};

impl Lowerer<'_, '_> {
    pub(super) fn compare(
        &mut self,
        op: ScalarOp,
        name: &str,
        values: Vec<Value>,
        span: Span,
    ) -> Result<Tensor, Error> {
        // Integers of any size compare by value, as in NumPy 2: where a literal or an operand
        // does not fit the other's type, its sign decides.
        match values.as_slice() {
            [Value::Tensor(t), Value::Int(v)] => {
                let dtype = self.b.dtype(t.node);
                if dtype.is_integer() && Scalar::from_i128(dtype, *v).is_none() {
                    return self.constant_compare(t.clone(), known(op, *v > 0), span);
                }
            }
            [Value::Int(v), Value::Tensor(t)] => {
                let dtype = self.b.dtype(t.node);
                if dtype.is_integer() && Scalar::from_i128(dtype, *v).is_none() {
                    return self.constant_compare(t.clone(), known(op, *v < 0), span);
                }
            }
            [Value::Tensor(l), Value::Tensor(r)] => {
                let (dl, dr) = (self.b.dtype(l.node), self.b.dtype(r.node));
                if dl.is_signed() && dr == DType::UInt64 || dl == DType::UInt64 && dr.is_signed() {
                    return self.compare_signs(op, l.clone(), r.clone(), span);
                }
            }
            _ => {}
        }
        self.map_values(op, name, values, |dtype| dtype, span)
    }

    /// The same result for every cell, masked where the tensor is.
    fn constant_compare(&mut self, t: Tensor, answer: bool, span: Span) -> Result<Tensor, Error> {
        let valid = self.b.map_op(MapOp::IsValid, &[t.node]).at(span)?;
        let shape = self.b.shape(t.node);
        let all = self.b.full(Some(Scalar::bool(answer)), DType::Bool, &shape, None).at(span)?;
        let node = match self.b.node(t.node).nullable {
            true => self.b.map_op(MapOp::Mask, &[all, valid]).at(span)?,
            false => all,
        };
        Ok(Tensor::new(node, t.dims))
    }

    /// A signed integer and a `uint64`: a negative one is less than all of them.
    fn compare_signs(
        &mut self,
        op: ScalarOp,
        left: Tensor,
        right: Tensor,
        span: Span,
    ) -> Result<Tensor, Error> {
        let is_left_signed = self.b.dtype(left.node).is_signed();
        let (nodes, dims) = self.align("comparison", vec![left, right], span)?;
        let (signed, unsigned) =
            if is_left_signed { (nodes[0], nodes[1]) } else { (nodes[1], nodes[0]) };
        let zero = self.b.constant(Scalar::zero(self.b.dtype(signed))).at(span)?;
        let negative = self.b.map(ScalarOp::Lt, &[signed, zero]).at(span)?;
        let wide = self.b.cast(signed, DType::UInt64).at(span)?;
        let pair = if is_left_signed { [wide, unsigned] } else { [unsigned, wide] };
        let compared = self.b.map(op, &pair).at(span)?;
        // `true` means that the right operand is the greater one.
        let answer = self.b.constant(Scalar::bool(known(op, is_left_signed))).at(span)?;
        let mut node = self.b.map(ScalarOp::Where, &[negative, answer, compared]).at(span)?;
        if self.b.node(unsigned).nullable {
            // A masked cell is unknown beside a negative number, too.
            let valid = self.b.map_op(MapOp::IsValid, &[unsigned]).at(span)?;
            node = self.b.map_op(MapOp::Mask, &[node, valid]).at(span)?;
        }
        Ok(Tensor::new(node, dims))
    }
}

/// A comparison whose right operand is known to be greater (or less) than the left one.
fn known(op: ScalarOp, right_is_greater: bool) -> bool {
    match op {
        ScalarOp::Eq => false,
        ScalarOp::Ne => true,
        ScalarOp::Lt | ScalarOp::Le => right_is_greater,
        _ => !right_is_greater,
    }
}
