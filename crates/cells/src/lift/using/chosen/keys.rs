//! COLUMNS in keys of ORDER BY.
//!
//! | written | becomes, over `t(a, b, c)` |
//! |---|---|
//! | `ORDER BY COLUMNS('a\|b') DESC, c` | `ORDER BY t.a DESC, t.b DESC, c` |

use sqlparser::ast::{OrderBy, OrderByExpr, OrderByKind};
use tessera_frontend::error::Error;
use tessera_frontend::limits;

use super::super::Pass;
use super::super::columns::Column;
use super::{has_columns, refuse};

/// True if a key has COLUMNS.
pub(in super::super) fn are_ordered(order: Option<&OrderBy>) -> bool {
    match order.map(|order| &order.kind) {
        Some(OrderByKind::Expressions(keys)) => keys.iter().any(|key| has_columns(&key.expr)),
        _ => false,
    }
}

/// Refuses COLUMNS in the ORDER BY of a query that is not one block.
///
/// # Errors
/// `unsupported`.
pub(in super::super) fn check_order(order: &OrderBy) -> Result<(), Error> {
    let OrderByKind::Expressions(keys) = &order.kind else { return Ok(()) };
    let keys = keys.iter().map(|key| &key.expr);
    let clause = "the ORDER BY of UNION, INTERSECT and EXCEPT";
    refuse(keys, clause, "write `ORDER BY ALL`, or name the columns")
}

impl Pass<'_> {
    /// Writes a key for each column that COLUMNS stands for; `all` has the columns of the block's relations.
    ///
    /// # Errors
    /// The errors of [`Pass::expand`]; `too_complex` for more keys than an ORDER BY may have.
    pub(in super::super) fn keys(&self, order: &mut OrderBy, all: &[Column]) -> Result<(), Error> {
        let OrderByKind::Expressions(keys) = &mut order.kind else { return Ok(()) };
        for mut key in std::mem::take(keys) {
            if has_columns(&key.expr) {
                key.expr = self.unpacked(&key.expr, all)?;
            }
            let chosen = self.chosen_in(&key.expr, all)?;
            if chosen.is_empty() {
                keys.push(key);
                continue;
            }
            self.count(&key.expr, chosen.len())?;
            let of_each = |expr| OrderByExpr { expr, options: key.options, with_fill: None };
            keys.extend(chosen.iter().map(|of| of_each(of.put(&key.expr))));
        }
        limits::check_keys(keys.len(), None)
    }
}
