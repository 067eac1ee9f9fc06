//! Conditions: `AND`, `OR`, `NOT`, and `where`.

use sqlparser::tokenizer::Span;
use tessera_planner::dtype::DType;
use tessera_planner::ir::MapOp;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use crate::error::{BindError, Error};
use crate::lower::value::{Tensor, Value};
use crate::lower::{At, Lowerer, fail};

impl Lowerer<'_, '_> {
    /// A `bool` tensor, or an error that names the operation.
    pub(crate) fn boolean(
        &mut self,
        value: Value,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let tensor = match value {
            Value::Null => {
                let node = self.b.null(DType::Bool).at(span)?;
                Tensor::unnamed(node, 0)
            }
            other => self.tensor(other, span)?,
        };
        match self.b.dtype(tensor.node) {
            DType::Bool => Ok(tensor),
            dtype => fail(
                BindError::Types {
                    operation: operation.into(),
                    types: vec![dtype.name()],
                    hint: Some("compare, as in `x <> 0`, or convert with `x::bool`".into()),
                },
                span,
            ),
        }
    }

    /// Three-valued `and` and `or`; two-valued where no cell can be masked.
    pub(crate) fn logic(
        &mut self,
        and: bool,
        left: Tensor,
        right: Tensor,
        span: Span,
    ) -> Result<Tensor, Error> {
        let masked = self.b.node(left.node).nullable || self.b.node(right.node).nullable;
        let op = match (and, masked) {
            (true, false) => MapOp::Scalar(ScalarOp::And),
            (false, false) => MapOp::Scalar(ScalarOp::Or),
            (true, true) => MapOp::KleeneAnd,
            (false, true) => MapOp::KleeneOr,
        };
        self.map(op, if and { "AND" } else { "OR" }, vec![left, right], span)
    }

    pub(crate) fn negate(&mut self, mut tensor: Tensor, span: Span) -> Result<Tensor, Error> {
        tensor.node = self.b.map(ScalarOp::Not, &[tensor.node]).at(span)?;
        Ok(Tensor::new(tensor.node, tensor.dims))
    }

    /// A condition in which a masked cell is false.
    pub(crate) fn certain(&mut self, mut tensor: Tensor, span: Span) -> Result<Tensor, Error> {
        if self.b.node(tensor.node).nullable {
            let no = self.b.constant(Scalar::bool(false)).at(span)?;
            tensor.node = self.b.map_op(MapOp::Coalesce, &[tensor.node, no]).at(span)?;
        }
        Ok(tensor)
    }

    /// The cells of `x` where the condition holds. The condition is the first operand, so its dimensions come first.
    fn kept(
        &mut self,
        x: Tensor,
        condition: Tensor,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let (nodes, dims) = self.align(operation, vec![condition, x], span)?;
        Ok(Tensor::new(self.b.map_op(MapOp::Mask, &[nodes[1], nodes[0]]).at(span)?, dims))
    }

    /// `where(condition, x, y)`, with a `NULL` branch as a mask.
    pub(crate) fn choose(
        &mut self,
        condition: Tensor,
        x: Value,
        y: Value,
        operation: &str,
        span: Span,
    ) -> Result<Tensor, Error> {
        let values = self.settle(vec![x, y], span)?;
        let dtype = self.meet(operation, &values, span)?;
        match values.as_slice() {
            [x, Value::Null] => {
                let x = self.typed(x.clone(), dtype, operation, span)?;
                self.kept(x, condition, operation, span)
            }
            [Value::Null, y] => {
                let condition = self.negate(condition, span)?;
                let y = self.typed(y.clone(), dtype, operation, span)?;
                self.kept(y, condition, operation, span)
            }
            _ => {
                let mut inputs = vec![condition];
                for value in values {
                    inputs.push(self.typed(value, dtype, operation, span)?);
                }
                self.map(MapOp::Scalar(ScalarOp::Where), operation, inputs, span)
            }
        }
    }
}
