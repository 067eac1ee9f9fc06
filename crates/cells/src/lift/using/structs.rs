//! UNNEST of a struct as an item: a column for each field, with the name of the field, as in DuckDB.
//!
//! ```text
//! SELECT i, unnest(s) FROM t  ⇒  SELECT i, get_field(s, 'a') AS a, get_field(s, 'b') AS b FROM t
//! ```

use arrow::datatypes::DataType;
use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectItem, SetExpr,
    Value,
};

use super::super::names::call;
use super::Pass;

impl Pass<'_> {
    /// Replaces such items of a block.
    pub(super) fn structs(&self, select: &mut Select) {
        if select.projection.iter().all(|item| unnested(item).is_none()) {
            return;
        }
        for item in std::mem::take(&mut select.projection) {
            let value = unnested(&item);
            let fields = value.and_then(|value| Some((value, self.fields_of(value, select)?)));
            match fields {
                Some((value, names)) => {
                    let fields = names.into_iter().map(|name| field(value, name));
                    select.projection.extend(fields);
                }
                None => select.projection.push(item),
            }
        }
    }

    /// The fields of a struct in a block; `None` for other values, and for those without a plan of their own.
    fn fields_of(&self, value: &Expr, select: &Select) -> Option<Vec<String>> {
        let mut query = tessera_frontend::query_of("SELECT * FROM y").ok()??;
        let SetExpr::Select(block) = &mut *query.body else { return None };
        block.projection = vec![SelectItem::UnnamedExpr(value.clone())];
        block.from.clone_from(&select.from);
        // Planning of the block reports what is wrong with it.
        match self.schema(*query).ok()?.field(0).data_type() {
            DataType::Struct(fields) => Some(fields.iter().map(|f| f.name().clone()).collect()),
            _ => None,
        }
    }
}

/// The argument of an item that is a call of UNNEST.
fn unnested(item: &SelectItem) -> Option<&Expr> {
    let (SelectItem::UnnamedExpr(Expr::Function(function))
    | SelectItem::ExprWithAlias { expr: Expr::Function(function), .. }) = item
    else {
        return None;
    };
    let FunctionArguments::List(list) = &function.args else { return None };
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(value))]
            if function.name.to_string().eq_ignore_ascii_case("unnest") =>
        {
            Some(value)
        }
        _ => None,
    }
}

fn field(value: &Expr, name: String) -> SelectItem {
    let text = Expr::Value(Value::SingleQuotedString(name.clone()).into());
    SelectItem::ExprWithAlias {
        expr: call("get_field", vec![value.clone(), text]),
        alias: Ident::with_quote('"', name),
    }
}
