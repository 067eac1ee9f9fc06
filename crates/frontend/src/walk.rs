//! Traversal of syntax trees.
//!
//! sqlparser monomorphizes its traversal of all SQL nodes for each type of visitor, half a megabyte of code each.
//! Here one visitor type forwards to all others by dynamic dispatch: use [`walk`] and [`walk_mut`] instead
//! of the methods `visit`.

use sqlparser::ast::{
    Expr, ObjectName, Query, Select, Statement, TableFactor, ValueWithSpan, Visit, VisitMut,
    Visitor, VisitorMut,
};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::ControlFlow;

/// Calls `visitor` for `tree` and every node below it, until it breaks.
pub fn walk<V: Visitor>(tree: &impl Visit, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = BreakStore { visitor, broke: None };
    let _: ControlFlow<()> = tree.visit(&mut DynVisitor(&mut kept));
    kept.broke.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// As [`walk`], for visitors that change the nodes.
pub fn walk_mut<V: VisitorMut>(tree: &mut impl VisitMut, visitor: &mut V) -> ControlFlow<V::Break> {
    let mut kept = BreakStore { visitor, broke: None };
    let _: ControlFlow<()> = tree.visit(&mut DynVisitorMut(&mut kept));
    kept.broke.map_or(ControlFlow::Continue(()), ControlFlow::Break)
}

/// The names of the columns in a part of a query, without the relations before them.
pub fn column_names(tree: &impl Visit) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl Visitor for Names {
        type Break = Infallible;

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Infallible> {
            let name = match expr {
                Expr::Identifier(name) => Some(name),
                Expr::CompoundIdentifier(parts) => parts.last(),
                _ => None,
            };
            self.0.extend(name.map(|name| name.value.clone()));
            ControlFlow::Continue(())
        }
    }
    let mut names = Names(BTreeSet::new());
    let ControlFlow::Continue(()) = walk(tree, &mut names);
    names.0
}

/// The visitor type of every [`walk`].
struct DynVisitor<'a>(&'a mut dyn Visitor<Break = ()>);

/// The visitor type of every [`walk_mut`].
struct DynVisitorMut<'a>(&'a mut dyn VisitorMut<Break = ()>);

/// A visitor with storage for its break value.
struct BreakStore<'a, V, B> {
    visitor: &'a mut V,
    broke: Option<B>,
}

impl<V, B> BreakStore<'_, V, B> {
    fn keep(&mut self, flow: ControlFlow<B>) -> ControlFlow<()> {
        flow.map_break(|reason| self.broke = Some(reason))
    }
}

/// Forwards the hooks of a trait of visitors.
macro_rules! forward {
    ($visitor:ident, $shared:ident: $($hook:ident($node:ty)),+ $(,)?) => {
        impl $visitor for $shared<'_> {
            type Break = ();
            $(fn $hook(&mut self, node: $node) -> ControlFlow<()> {
                self.0.$hook(node)
            })+
        }

        impl<V: $visitor> $visitor for BreakStore<'_, V, V::Break> {
            type Break = ();
            $(fn $hook(&mut self, node: $node) -> ControlFlow<()> {
                let flow = self.visitor.$hook(node);
                self.keep(flow)
            })+
        }
    };
}

forward!(Visitor, DynVisitor:
    pre_visit_query(&Query), post_visit_query(&Query),
    pre_visit_select(&Select), post_visit_select(&Select),
    pre_visit_relation(&ObjectName), post_visit_relation(&ObjectName),
    pre_visit_table_factor(&TableFactor), post_visit_table_factor(&TableFactor),
    pre_visit_expr(&Expr), post_visit_expr(&Expr),
    pre_visit_statement(&Statement), post_visit_statement(&Statement),
    pre_visit_value(&ValueWithSpan), post_visit_value(&ValueWithSpan),
);

forward!(VisitorMut, DynVisitorMut:
    pre_visit_query(&mut Query), post_visit_query(&mut Query),
    pre_visit_select(&mut Select), post_visit_select(&mut Select),
    pre_visit_relation(&mut ObjectName), post_visit_relation(&mut ObjectName),
    pre_visit_table_factor(&mut TableFactor), post_visit_table_factor(&mut TableFactor),
    pre_visit_expr(&mut Expr), post_visit_expr(&mut Expr),
    pre_visit_statement(&mut Statement), post_visit_statement(&mut Statement),
    pre_visit_value(&mut ValueWithSpan), post_visit_value(&mut ValueWithSpan),
);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use sqlparser::dialect::GenericDialect;
    use sqlparser::parser::Parser;

    /// Records the visited nodes, and stops at an expression.
    struct Notes {
        seen: Vec<String>,
        stop: &'static str,
    }

    impl Visitor for Notes {
        type Break = String;

        fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<String> {
            self.seen.push(format!("relation {name}"));
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<String> {
            self.seen.push(expr.to_string());
            match expr.to_string() == self.stop {
                true => ControlFlow::Break(format!("at {expr}")),
                false => ControlFlow::Continue(()),
            }
        }
    }

    struct Renamed;

    impl VisitorMut for Renamed {
        type Break = ();

        fn post_visit_relation(&mut self, name: &mut ObjectName) -> ControlFlow<()> {
            *name = ObjectName::from(vec!["y".into()]);
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn visitors_see_every_node_and_may_stop() {
        let sql = "SELECT a + b FROM x WHERE (SELECT c FROM z) > 1";
        let mut tree = Parser::parse_sql(&GenericDialect {}, sql).unwrap();
        let mut notes = Notes { seen: Vec::new(), stop: "never" };
        assert_eq!(walk(&tree, &mut notes), ControlFlow::Continue(()));
        let all = ["a", "b", "a + b", "relation x", "c", "relation z", "(SELECT c FROM z)", "1"];
        assert_eq!(notes.seen[..8], all);
        let mut notes = Notes { seen: Vec::new(), stop: "a + b" };
        assert_eq!(walk(&tree, &mut notes), ControlFlow::Break("at a + b".to_string()));
        assert_eq!(notes.seen, ["a", "b", "a + b"]);
        assert_eq!(walk_mut(&mut tree, &mut Renamed), ControlFlow::Continue(()));
        assert_eq!(tree[0].to_string(), "SELECT a + b FROM y WHERE (SELECT c FROM y) > 1");
    }
}
