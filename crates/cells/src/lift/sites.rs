//! The positions of expressions that can fail while rows are computed: DataFusion's operators have none.

use std::ops::ControlFlow;

use crate::walk::{Walk, WalkPlan};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Cast, Expr as PlanExpr, ExprSchemable, LogicalPlan};
use sqlparser::ast::{BinaryOperator, Expr, Query, Value, Visitor};
use tessera_frontend::error::Position;
use tessera_frontend::walk::walk;
use tessera_frontend::{ast, span_of};

use super::calendars::is_text;
use super::error::position_of;
use super::names::FLOOR_DIVIDE;
use crate::RowsErrorKind;
use crate::error::spoken_in_casts;

/// Functions that divide integers.
pub(super) const DIVIDE: [&str; 6] =
    [FLOOR_DIVIDE, "floor_divide", "fmod", "mod", "remainder", "trunc_divide"];

/// The expressions of a cell block that can fail while rows are computed, in the order of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sites {
    /// The divisions; `None` for one in the text of a view.
    divisions: Vec<Option<Position>>,
    /// The scalar subqueries.
    values: Vec<Option<Position>>,
    /// The casts, including implicit ones: of `s` in `s = 5`.
    casts: Vec<CastSite>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct CastSite {
    is_of_text: bool,
    to: String,
    /// Its operand.
    of: String,
    /// The first column in its operand.
    place: Option<Position>,
}

impl Sites {
    pub(super) fn of(query: &Query) -> Self {
        let mut sites = Sites::default();
        let _ = walk(query, &mut sites);
        sites
    }

    /// Adds the casts of a plan whose types are coerced. An optimised plan has columns without positions.
    pub(super) fn add_casts(&mut self, plan: &LogicalPlan) {
        let _ = plan.each_of_all(|node| {
            let schema = merge_schema(&node.inputs());
            node.each_expr(|expr| {
                expr.each(|e| {
                    if let PlanExpr::Cast(Cast { expr, field }) = e
                        && !matches!(**expr, PlanExpr::Literal(..))
                    {
                        self.casts.push(CastSite {
                            is_of_text: expr.get_type(&schema).is_ok_and(|of| is_text(&of)),
                            to: spoken_in_casts(&field.data_type().to_string()),
                            of: expr.to_string(),
                            place: position_of(expr),
                        });
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
            })
        });
    }

    /// The position of the only expression that can have the error with that message; of several casts of one value, that
    /// of the first.
    pub fn position(&self, message: &str) -> Option<Position> {
        let casts = |is_meant: &dyn Fn(&CastSite) -> bool| -> Vec<Option<Position>> {
            let casts: Vec<_> = self.casts.iter().filter(|cast| is_meant(cast)).collect();
            let places = casts.iter().map(|cast| cast.place);
            match casts.windows(2).all(|two| two[0].of == two[1].of) {
                true => vec![places.flatten().min_by_key(|place| (place.line, place.column))],
                false => places.collect(),
            }
        };
        let all: Vec<Option<Position>> = match RowsErrorKind::of(message, false) {
            RowsErrorKind::ZeroDivision => self.divisions.clone(),
            RowsErrorKind::SeveralRows => self.values.clone(),
            RowsErrorKind::Conversion => {
                let (_, to) = message.rsplit_once("' to ")?;
                casts(&|cast| cast.is_of_text && cast.to == to)
            }
            RowsErrorKind::Range => {
                let (_, to) = message.rsplit_once(" is out of range of ")?;
                let is_decimal = to.starts_with("a decimal ");
                casts(&|cast| cast.to == to || is_decimal && cast.to.starts_with("decimal"))
            }
            _ => return None,
        };
        // A named expression occurs wherever its name does.
        let first = all.first()?;
        if all.iter().all(|place| place == first) { *first } else { None }
    }
}

impl Visitor for Sites {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::BinaryOp { op, right, .. } if divides(op) && !is_other_than_zero(right) => {
                self.divisions.push(Position::of_span(span_of(expr)));
            }
            Expr::Function(function) => {
                let Some(call) = ast::call(expr) else { return ControlFlow::Continue(()) };
                let name = call.name.value.to_ascii_lowercase();
                let divisor = call.positional.last();
                if DIVIDE.contains(&name.as_str()) && divisor.is_none_or(|e| !is_other_than_zero(e))
                {
                    // `//` has no name in the text.
                    let place = Position::of(&function.name);
                    self.divisions.push(place.or_else(|| Position::of_span(span_of(expr))));
                }
            }
            Expr::Subquery(_) => self.values.push(Position::of_span(span_of(expr))),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn divides(op: &BinaryOperator) -> bool {
    matches!(
        op,
        BinaryOperator::Divide | BinaryOperator::Modulo | BinaryOperator::DuckIntegerDivide
    )
}

/// True for a number that is written out and is not zero.
fn is_other_than_zero(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_other_than_zero(inner),
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => number.bytes().any(|b| b.is_ascii_digit() && b != b'0'),
            _ => false,
        },
        _ => false,
    }
}
