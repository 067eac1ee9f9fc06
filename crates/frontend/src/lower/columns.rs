//! Lowers one expression over columns, without relations.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlparser::ast::{Expr, Query};
use tessera_planner::build::Builder;
use tessera_planner::catalog::Dataset;
use tessera_planner::ir::NodeId;

use super::names::{Relation, Variable};
use super::value::Tensor;
use super::{Lowerer, span_of};
use crate::bind::{Catalog, Context, RelationRef};
use crate::cells::{CellPlanner, Labelled};
use crate::columns;
use crate::error::Error;
use crate::island::Islands;
use crate::scope::Scope;

/// No relations and no cell blocks.
struct Nothing;

impl Catalog for Nothing {
    fn relation(&self, _: &RelationRef) -> Option<Arc<Dataset>> {
        None
    }
}

impl CellPlanner for Nothing {
    fn labelled(&self, _: &Query, _: u64, _: &mut Context<'_>, _: &str) -> Result<Labelled, Error> {
        Err(Error::unsupported("a subquery in the text of a call", None))
    }
}

/// The node of an expression whose names are those of the columns ([`columns::name`]).
///
/// # Errors
/// The errors of lowering; [`Error::Waiting`] if the value of a column has to be known.
pub(crate) fn over_columns(
    expr: &Expr,
    b: &mut Builder,
    columns: &[NodeId],
) -> Result<NodeId, Error> {
    let variables = columns.iter().enumerate().map(|(k, &node)| {
        let tensor = Tensor::unnamed(node, b.node(node).shape.len());
        (columns::name(k).into(), Variable::Lowered(tensor))
    });
    let relation = Relation { variables: variables.collect(), ..Relation::default() };
    let mut islands = Islands::default();
    let mut context = Context {
        catalog: &Nothing,
        config: b.config.clone(),
        now_us: 0,
        seed: 0,
        islands: &mut islands,
        cells: &Nothing,
    };
    let mut lowerer = Lowerer {
        context: &mut context,
        b: std::mem::take(b),
        relations: vec![relation],
        ctes: Vec::new(),
        locals: Vec::new(),
        scope: Scope::of(0),
        views: BTreeMap::new(),
    };
    let value = lowerer.expr(expr);
    let tensor = value.and_then(|value| lowerer.tensor(value, span_of(expr)));
    *b = lowerer.b;
    tensor.map(|tensor| tensor.node)
}
