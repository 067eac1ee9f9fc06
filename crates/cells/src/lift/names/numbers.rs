//! Blocks without `FROM`: purely numeric items follow NumPy, as tensors do.
//!
//! `SELECT log(100), 7 / 2, upper('a')` becomes
//! `SELECT n.v0, n.v1, upper('a') FROM (SELECT log(100) AS v0, 7 / 2 AS v1) n`, whose inner block is a tensor block.
//! Items with the same meaning in SQL, such as `1 + 1`, are unchanged.

use sqlparser::ast::{
    BinaryOperator, DataType, Expr, GroupByExpr, Ident, Select, SelectItem, TableAlias,
    TableWithJoins, UnaryOperator, Value,
};
use tessera_planner::dtype::DType;

use tessera_frontend::ast;
use tessera_frontend::derived::derived;
use tessera_frontend::functions::{functions, is_aggregate};

/// The relation of the items. No text can produce this name.
const RELATION: &str = "[numbers]";

/// Moves numeric items into a tensor block of their own, if the block has no clauses besides its items.
pub(super) fn apart(select: &mut Select) {
    // A column cannot be combined with an aggregate of SQL.
    if !is_bare(select) || select.projection.iter().any(aggregates) {
        return;
    }
    let mut inner = Vec::new();
    for item in &mut select.projection {
        let (expr, alias) = match item {
            SelectItem::UnnamedExpr(expr) => {
                let name = expr_name(expr);
                (expr, Ident::with_quote('"', name))
            }
            SelectItem::ExprWithAlias { expr, alias } => (expr, alias.clone()),
            _ => continue,
        };
        if !is_numeric(expr) || !differs(expr) {
            continue;
        }
        let name = Ident::with_quote('"', format!("v{}", inner.len()));
        let column = vec![Ident::with_quote('"', RELATION), name.clone()];
        let own = std::mem::replace(expr, Expr::CompoundIdentifier(column.clone()));
        inner.push(SelectItem::ExprWithAlias { expr: ast::numbers_of(own), alias: name });
        *item = SelectItem::ExprWithAlias { expr: Expr::CompoundIdentifier(column), alias };
    }
    if inner.is_empty() {
        return;
    }
    let block = Select { projection: inner, ..select.clone() };
    let alias = TableAlias {
        explicit: true,
        name: Ident::with_quote('"', RELATION),
        columns: vec![],
        at: None,
    };
    let relation = derived(block, Some(alias));
    select.from = vec![TableWithJoins { relation, joins: vec![] }];
}

fn expr_name(expr: &Expr) -> String {
    expr.to_string().chars().take(200).collect()
}

fn is_bare(select: &Select) -> bool {
    let no_groups = matches!(&select.group_by, GroupByExpr::Expressions(keys, more) if keys.is_empty() && more.is_empty());
    select.from.is_empty()
        && no_groups
        && select.distinct.is_none()
        && select.selection.is_none()
        && select.having.is_none()
        && select.qualify.is_none()
}

/// True if an item has an aggregate or a window that is not a reduction of numbers.
fn aggregates(item: &SelectItem) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return true;
    };
    let is_one = |e: &Expr| match e {
        Expr::Function(f) => {
            let name = f.name.to_string();
            (f.over.is_some() || f.filter.is_some() || is_aggregate(&name)).then_some(())
        }
        _ => None,
    };
    !is_numeric(expr) && tessera_frontend::surface::walk::find(expr, &is_one).is_some()
}

/// True if an expression consists of numbers, bools and functions that tensors have.
fn is_numeric(expr: &Expr) -> bool {
    use BinaryOperator as B;
    match expr {
        Expr::Value(value) => {
            matches!(value.value, Value::Number(..) | Value::Boolean(_) | Value::Null)
        }
        Expr::Nested(inner)
        | Expr::IsNull(inner)
        | Expr::IsNotNull(inner)
        | Expr::IsTrue(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsNotFalse(inner) => is_numeric(inner),
        Expr::UnaryOp { op, expr } => {
            matches!(op, UnaryOperator::Minus | UnaryOperator::Plus | UnaryOperator::Not)
                && is_numeric(expr)
        }
        Expr::BinaryOp { left, op, right } => {
            let is_known = matches!(
                op,
                B::Plus
                    | B::Minus
                    | B::Multiply
                    | B::Divide
                    | B::DuckIntegerDivide
                    | B::Modulo
                    | B::Eq
                    | B::NotEq
                    | B::Lt
                    | B::LtEq
                    | B::Gt
                    | B::GtEq
                    | B::And
                    | B::Or
            );
            is_known && is_numeric(left) && is_numeric(right)
        }
        Expr::Between { expr, low, high, .. } => {
            [expr, low, high].into_iter().all(|e| is_numeric(e))
        }
        Expr::InList { expr, list, .. } => is_numeric(expr) && list.iter().all(is_numeric),
        Expr::Case { operand, conditions, else_result, .. } => {
            operand.iter().chain(else_result).all(|e| is_numeric(e))
                && conditions.iter().all(|w| is_numeric(&w.condition) && is_numeric(&w.result))
        }
        Expr::Cast { expr, data_type, .. } => is_number_type(data_type) && is_numeric(expr),
        Expr::Function(_) => ast::call(expr).is_some_and(|call| {
            let is_known =
                functions().iter().any(|row| row.name.eq_ignore_ascii_case(&call.name.value));
            let args = call.positional.iter().copied().chain(call.named.iter().map(|(_, e)| *e));
            // `now()` has the same value on either surface, and SQL supports more operations on it.
            is_known
                && !call.name.value.eq_ignore_ascii_case("now")
                && args.into_iter().all(is_numeric)
        }),
        _ => false,
    }
}

fn is_number_type(data_type: &DataType) -> bool {
    let name = data_type.to_string().to_ascii_lowercase();
    let name = if name == "double precision" { "double" } else { &name };
    DType::parse(name).is_some_and(|dtype| !dtype.is_datetime())
}

/// True if the meaning may differ: sums, products and comparisons are the same on both surfaces.
fn differs(expr: &Expr) -> bool {
    let found = tessera_frontend::surface::walk::find(expr, &|e| match e {
        Expr::Function(_) => Some(()),
        Expr::BinaryOp { op, .. } => matches!(
            op,
            BinaryOperator::Divide | BinaryOperator::Modulo | BinaryOperator::DuckIntegerDivide
        )
        .then_some(()),
        _ => None,
    });
    found.is_some()
}
