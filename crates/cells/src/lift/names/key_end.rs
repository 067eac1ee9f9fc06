//! Marks the end of the keys of `GROUP BY`, behind which DataFusion adds columns that depend on them: see
//! [`grouping`](super::super::grouping).

use sqlparser::ast::{Expr, GroupByExpr, Select, SelectItem, TableFactor, TableWithJoins, Value};

use super::super::grouping::END;
use super::{Cte, Relations};

impl Relations<'_> {
    /// Adds the mark to a block over subqueries, one of whose keys may be a cast.
    pub(super) fn mark_end_of_keys(&self, select: &mut Select) {
        if !select.from.iter().any(|from| self.has_subquery(from)) {
            return;
        }
        let item = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => is_cast(expr),
            _ => false,
        };
        let is_item = select.projection.iter().any(item);
        let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by else { return };
        let has_sets = keys
            .iter()
            .any(|key| matches!(key, Expr::Rollup(_) | Expr::Cube(_) | Expr::GroupingSets(_)));
        if keys.is_empty() || !modifiers.is_empty() || has_sets {
            return;
        }
        if is_item || keys.iter().any(is_cast) {
            keys.push(Expr::Value(Value::SingleQuotedString(END.to_string()).into()));
        }
    }

    fn has_subquery(&self, from: &TableWithJoins) -> bool {
        let mut factors =
            std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation));
        factors.any(|factor| match factor {
            TableFactor::Derived { .. } => true,
            TableFactor::NestedJoin { table_with_joins, .. } => self.has_subquery(table_with_joins),
            TableFactor::Table { name, .. } => {
                let ident = name.0.last().and_then(|part| part.as_ident());
                ident.is_some_and(|ident| matches!(self.cte(&ident.value), Some(Cte::Rows(_))))
            }
            _ => false,
        })
    }
}

fn is_cast(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_cast(inner),
        expr => matches!(expr, Expr::Cast { .. }),
    }
}
