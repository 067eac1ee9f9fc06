//! Aliases of items as names in WHERE and in later items, if no column has the name.
//!
//! ```text
//! SELECT t2m - 273.15 AS c, c * 1.8 + 32 AS f FROM era5 WHERE c > 20
//!   ⇒  SELECT t2m - 273.15 AS c, (t2m - 273.15) * 1.8 + 32 AS f FROM era5 WHERE (t2m - 273.15) > 20
//! ```
//! DataFusion knows aliases in GROUP BY, HAVING, QUALIFY and ORDER BY. An alias of an expression that has another value
//! each time (`random()`) is no name here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use sqlparser::ast::{Expr, Select, SelectItem};
use tessera_frontend::ast::function_name;
use tessera_frontend::error::Error;
use tessera_frontend::surface::walk::find;

use super::super::parts::{Parts, Written};
use super::super::using::replace_in;
use super::columns::Columns;

/// Functions that have another value at each call.
const VOLATILE: [&str; 2] = ["random", "uuid"];

/// Replaces aliases in a block; `columns` has the names of its relations' columns.
///
/// # Errors
/// `too_complex` if an expression becomes too large.
pub(super) fn replace(
    select: &mut Select,
    columns: impl Fn(&Select) -> Columns,
    written: &mut Written,
) -> Result<(), Error> {
    let names = mentioned(select);
    if names.is_empty() {
        return Ok(());
    }
    let Some(columns) = columns(select) else { return Ok(()) };
    let mut known = Known { exprs: BTreeMap::new(), sizes: BTreeMap::new(), written };
    for item in &mut select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => known.replace(expr)?,
            SelectItem::ExprWithAlias { expr, alias } => {
                known.replace(expr)?;
                let is_column = columns.contains(&alias.value.to_lowercase());
                if !is_column && !is_volatile(expr) {
                    known.add(&alias.value, expr, &names);
                }
            }
            _ => {}
        }
    }
    match &mut select.selection {
        Some(condition) => known.replace(condition),
        None => Ok(()),
    }
}

/// Aliases, in all spellings that occur, with their expressions and the sizes of these.
struct Known<'a> {
    exprs: BTreeMap<String, Expr>,
    sizes: BTreeMap<String, Parts>,
    written: &'a mut Written,
}

impl Known<'_> {
    fn add(&mut self, alias: &str, expr: &Expr, names: &BTreeSet<String>) {
        let expr = Expr::Nested(Box::new(expr.clone()));
        let size = Parts::of(&expr, &BTreeMap::new());
        for name in names.iter().filter(|name| name.eq_ignore_ascii_case(alias)) {
            self.exprs.insert(name.clone(), expr.clone());
            self.sizes.insert(name.clone(), size);
        }
    }

    fn replace(&mut self, expr: &mut Expr) -> Result<(), Error> {
        if self.exprs.is_empty() {
            return Ok(());
        }
        self.written.add(Parts::of(expr, &self.sizes), expr)?;
        replace_in(expr, &self.exprs);
        Ok(())
    }
}

/// The names in WHERE, and in items behind one with such an alias, that are aliases of items.
fn mentioned(select: &Select) -> BTreeSet<String> {
    let mut aliases: BTreeSet<String> = BTreeSet::new();
    let mut found = BTreeSet::new();
    for item in &select.projection {
        match item {
            SelectItem::UnnamedExpr(expr) => found.extend(names_of(expr, &aliases)),
            SelectItem::ExprWithAlias { expr, alias } => {
                found.extend(names_of(expr, &aliases));
                aliases.insert(alias.value.to_lowercase());
            }
            _ => {}
        }
    }
    found.extend(select.selection.iter().flat_map(|condition| names_of(condition, &aliases)));
    found
}

/// The names in an expression that are aliases.
fn names_of(expr: &Expr, aliases: &BTreeSet<String>) -> BTreeSet<String> {
    let found = RefCell::new(BTreeSet::new());
    if !aliases.is_empty() {
        let _: Option<()> = find(expr, &|expr| {
            if let Expr::Identifier(name) = expr
                && aliases.contains(&name.value.to_lowercase())
            {
                found.borrow_mut().insert(name.value.clone());
            }
            None
        });
    }
    found.into_inner()
}

fn is_volatile(expr: &Expr) -> bool {
    let is_call = |expr: &Expr| {
        let name = function_name(expr)?.value.to_lowercase();
        VOLATILE.contains(&name.as_str()).then_some(())
    };
    find(expr, &is_call).is_some()
}
