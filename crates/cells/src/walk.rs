//! Traversal of expressions and plans.
//!
//! DataFusion monomorphizes its traversals for each closure, with the code that takes apart every kind of node: that
//! was about 3 of the 10 megabytes of this crate. Here one closure type forwards to all others by dynamic dispatch: use
//! [`Walk`] and [`WalkPlan`] instead of DataFusion's methods (`clippy.toml` lists them).

#![expect(clippy::disallowed_methods, reason = "compiles each of them once")]

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

type Walked = Result<TreeNodeRecursion>;
type Mapped<N> = Result<Transformed<N>>;

/// Walks of expressions, logical plans and physical plans; they skip the plans of subqueries.
pub(crate) trait Walk: TreeNode {
    /// Calls `f` for each node, from the top down: `apply`.
    fn each<'n>(&'n self, mut f: impl FnMut(&'n Self) -> Walked) -> Walked {
        each(self, &mut f)
    }

    /// Calls `f` for the nodes directly below this one: `apply_children`.
    fn each_below<'n>(&'n self, mut f: impl FnMut(&'n Self) -> Walked) -> Walked {
        each_below(self, &mut f)
    }

    /// True if `f` is true for a node: `exists`.
    fn any(&self, mut f: impl FnMut(&Self) -> Result<bool>) -> Result<bool> {
        any(self, &mut f)
    }

    /// Replaces each node after those below it: `transform_up`.
    fn map_up(self, mut f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self> {
        map_up(self, &mut f)
    }

    /// Replaces each node before those below it: `transform_down`.
    fn map_down(self, mut f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self> {
        map_down(self, &mut f)
    }

    /// Replaces each node for which `f` returns another one, after those below it.
    fn replace_up(self, mut f: impl FnMut(&Self) -> Result<Option<Self>>) -> Result<Self> {
        map_up(self, &mut |node| replaced(node, &mut f)).map(|t| t.data)
    }

    /// Replaces the nodes directly below this one: `map_children`.
    fn map_below(self, mut f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self> {
        map_below(self, &mut f)
    }
}

impl<N: TreeNode> Walk for N {}

/// Walks of logical plans: `all` includes the plans of subqueries, and expressions are those of one node.
pub(crate) trait WalkPlan: Sized {
    /// [`Walk::each`] for all nodes: `apply_with_subqueries`.
    fn each_of_all(&self, f: impl FnMut(&Self) -> Walked) -> Walked;

    /// [`Walk::map_up`] for all nodes: `transform_up_with_subqueries`.
    fn map_all_up(self, f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self>;

    /// [`Walk::replace_up`] for all nodes.
    fn replace_all_up(self, f: impl FnMut(&Self) -> Result<Option<Self>>) -> Result<Self>;

    /// [`Walk::map_down`] for all nodes: `transform_down_with_subqueries`.
    fn map_all_down(self, f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self>;

    /// [`Walk::any`] for all nodes.
    fn any_of_all(&self, f: impl FnMut(&Self) -> Result<bool>) -> Result<bool>;

    /// Calls `f` for each expression: `apply_expressions`.
    fn each_expr(&self, f: impl FnMut(&Expr) -> Walked) -> Walked;

    /// True if `f` is true for an expression.
    fn any_expr(&self, f: impl FnMut(&Expr) -> Result<bool>) -> Result<bool>;

    /// Replaces each expression: `map_expressions`.
    fn map_exprs(self, f: impl FnMut(Expr) -> Mapped<Expr>) -> Mapped<Self>;
}

impl WalkPlan for LogicalPlan {
    fn each_of_all(&self, mut f: impl FnMut(&Self) -> Walked) -> Walked {
        each_of_all(self, &mut f)
    }

    fn map_all_up(self, mut f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self> {
        map_all_up(self, &mut f)
    }

    fn replace_all_up(self, mut f: impl FnMut(&Self) -> Result<Option<Self>>) -> Result<Self> {
        map_all_up(self, &mut |node| replaced(node, &mut f)).map(|t| t.data)
    }

    fn map_all_down(self, mut f: impl FnMut(Self) -> Mapped<Self>) -> Mapped<Self> {
        map_all_down(self, &mut f)
    }

    fn any_of_all(&self, mut f: impl FnMut(&Self) -> Result<bool>) -> Result<bool> {
        let mut found = false;
        each_of_all(self, &mut |node| stop_if(&mut found, f(node)?))?;
        Ok(found)
    }

    fn each_expr(&self, mut f: impl FnMut(&Expr) -> Walked) -> Walked {
        each_expr(self, &mut f)
    }

    fn any_expr(&self, mut f: impl FnMut(&Expr) -> Result<bool>) -> Result<bool> {
        let mut found = false;
        each_expr(self, &mut |expr| stop_if(&mut found, f(expr)?))?;
        Ok(found)
    }

    fn map_exprs(self, mut f: impl FnMut(Expr) -> Mapped<Expr>) -> Mapped<Self> {
        map_exprs(self, &mut f)
    }
}

// These are compiled once for each type of tree.

fn each<'n, N: TreeNode>(node: &'n N, f: &mut dyn FnMut(&'n N) -> Walked) -> Walked {
    node.apply(f)
}

fn each_below<'n, N: TreeNode>(node: &'n N, f: &mut dyn FnMut(&'n N) -> Walked) -> Walked {
    node.apply_children(f)
}

fn any<N: TreeNode>(node: &N, f: &mut dyn FnMut(&N) -> Result<bool>) -> Result<bool> {
    let mut found = false;
    each(node, &mut |node| stop_if(&mut found, f(node)?))?;
    Ok(found)
}

fn stop_if(found: &mut bool, is_one: bool) -> Walked {
    *found = is_one;
    Ok(if is_one { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
}

fn replaced<N>(node: N, f: &mut dyn FnMut(&N) -> Result<Option<N>>) -> Mapped<N> {
    Ok(match f(&node)? {
        Some(new) => Transformed::yes(new),
        None => Transformed::no(node),
    })
}

fn map_up<N: TreeNode>(node: N, f: &mut dyn FnMut(N) -> Mapped<N>) -> Mapped<N> {
    node.transform_up(f)
}

fn map_down<N: TreeNode>(node: N, f: &mut dyn FnMut(N) -> Mapped<N>) -> Mapped<N> {
    node.transform_down(f)
}

fn map_below<N: TreeNode>(node: N, f: &mut dyn FnMut(N) -> Mapped<N>) -> Mapped<N> {
    node.map_children(f)
}

fn each_of_all(plan: &LogicalPlan, f: &mut dyn FnMut(&LogicalPlan) -> Walked) -> Walked {
    plan.apply_with_subqueries(f)
}

fn map_all_up(
    plan: LogicalPlan,
    f: &mut dyn FnMut(LogicalPlan) -> Mapped<LogicalPlan>,
) -> Mapped<LogicalPlan> {
    plan.transform_up_with_subqueries(f)
}

fn map_all_down(
    plan: LogicalPlan,
    f: &mut dyn FnMut(LogicalPlan) -> Mapped<LogicalPlan>,
) -> Mapped<LogicalPlan> {
    plan.transform_down_with_subqueries(f)
}

fn each_expr(plan: &LogicalPlan, f: &mut dyn FnMut(&Expr) -> Walked) -> Walked {
    plan.apply_expressions(f)
}

fn map_exprs(plan: LogicalPlan, f: &mut dyn FnMut(Expr) -> Mapped<Expr>) -> Mapped<LogicalPlan> {
    plan.map_expressions(f)
}

/// Counts the open queries of a `VisitorMut` in one of its fields.
macro_rules! counts_queries {
    ($field:ident) => {
        fn pre_visit_query(
            &mut self,
            _: &mut ::sqlparser::ast::Query,
        ) -> ::std::ops::ControlFlow<Self::Break> {
            self.$field += 1;
            ::std::ops::ControlFlow::Continue(())
        }

        fn post_visit_query(
            &mut self,
            _: &mut ::sqlparser::ast::Query,
        ) -> ::std::ops::ControlFlow<Self::Break> {
            self.$field -= 1;
            ::std::ops::ControlFlow::Continue(())
        }
    };
}

pub(crate) use counts_queries;
