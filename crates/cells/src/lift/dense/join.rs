//! Equi-joins on labels as alignment.
//!
//! ```text
//! a [i, j] JOIN b [j, k] USING (j)      j of a: 3 1 4 9      b taken at the position of 3, 1, 9;
//!                                       j of b: 1 9 3        a at 0, 1, 3: cells [i, 3, k]
//! ```
//! Every position of the left side must match at most one of the right side, so rows keep the order of the left. A left
//! join keeps unmatched positions, with NULLs for the right side. A right or a full join is one of these if every label
//! of the right side matches one of the left. A right label is NULL wherever the whole row is unmatched; if
//! another dimension decides too, it becomes cells under a condition. Labels are equal as in a hash join: NULL equals
//! nothing, NaN equals NaN, and -0.0 equals 0.0. [`table`] joins tables of rows, [`boxes`] those whose rows match many labels.

mod align;
mod boxes;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, ArrayRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{JoinType, NullEquality};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator};

use super::super::labels::{Kept, canonical};
use super::super::lower::Reason;
use super::super::relation::Relation;
use super::Dense;

const NOT_ON_LABELS: &str = "the join is not on labels of dimensions";

#[derive(Default)]
struct AxisKeys {
    left: Vec<ArrayRef>,
    right: Vec<ArrayRef>,
}

impl AxisKeys {
    /// True if `these` has a label that `those` lacks. Labels that cannot be compared are reported later.
    fn alone(&self, these: &[ArrayRef], those: &[ArrayRef]) -> bool {
        let sorts = these.iter().map(|c| SortField::new(c.data_type().clone())).collect();
        let Ok(converter) = RowConverter::new(sorts) else { return true };
        let (Ok(these_rows), Ok(those_rows)) =
            (converter.convert_columns(these), converter.convert_columns(those))
        else {
            return true;
        };
        let has_null = |i| these.iter().any(|c| c.is_null(i));
        let known: BTreeSet<_> = those_rows.iter().collect();
        these_rows.iter().enumerate().any(|(i, row)| has_null(i) || !known.contains(&row))
    }
}

/// Label keys by pairs of an axis of the left and an axis of the right.
type Pairs = BTreeMap<(usize, usize), AxisKeys>;

impl Dense<'_> {
    /// A join, with conditions of WHERE that an inner join can use.
    pub(super) fn join(
        &mut self,
        join: &Join,
        mut conditions: Vec<Expr>,
    ) -> Result<Relation, Reason> {
        let (all_left, all_right) = match join.join_type {
            JoinType::Inner => (false, false),
            JoinType::Left => (true, false),
            JoinType::Right => (false, true),
            JoinType::Full => (true, true),
            other => return Err(format!("a {other} join has no dense form")),
        };
        let is_outer = all_left || all_right;
        if join.null_equality != NullEquality::NullEqualsNothing {
            return Err("a join in which NULL equals NULL has no dense form".to_string());
        }
        let left = match &*join.left {
            LogicalPlan::Join(inner) if inner.join_type == JoinType::Inner => {
                let schema = inner.schema.clone();
                let (own, rest) = conditions.into_iter().partition(|c: &Expr| {
                    let mut columns = c.column_refs().into_iter();
                    columns.all(|c| schema.maybe_index_of_column(c).is_some())
                });
                conditions = rest;
                self.join(inner, own)?
            }
            plan => self.relation(plan)?,
        };
        let right = self.relation(&join.right)?;
        if right.boxes.is_some() {
            return Err("the right side is a join on ranges".to_string());
        }
        if left.is_table || right.is_table {
            return self.join_with_table(join, conditions, left, right);
        }
        if right.keep.is_some() && is_outer {
            return Err("rows of the right side of the join may be missing".to_string());
        }
        if (left.keep.is_some() || left.boxes.is_some()) && all_right {
            return Err("rows of the left side of the join may be missing".to_string());
        }
        let conditions = join.filter.iter().chain(&conditions);
        let (pairs, rest) = self.pairs(join.on.clone(), conditions, &left, &right)?;
        if pairs.is_empty() {
            return Err(NOT_ON_LABELS.to_string());
        }
        let mut seen = (Vec::new(), Vec::new());
        for &(i, j) in pairs.keys() {
            if seen.0.contains(&i) || seen.1.contains(&j) {
                return Err("one dimension is joined with two of the other side".to_string());
            }
            seen.0.push(i);
            seen.1.push(j);
        }
        if is_outer && !rest.is_empty() {
            return Err("the condition of the outer join is not on labels alone".to_string());
        }
        if all_right && pairs.values().any(|keys| keys.alone(&keys.right, &keys.left)) {
            return Err("labels of the right side of the join have no match".to_string());
        }
        let is_left = all_left && pairs.values().any(|keys| keys.alone(&keys.left, &keys.right));
        if is_left && all_right {
            return Err("labels of the left side of the full join have no match".to_string());
        }
        let matched = matches(&pairs, is_left)?;
        let schema = join.schema.clone();
        let mut joined = self.align(left, right, &matched, (is_left, all_right), schema)?;
        for condition in rest {
            joined = self.filter(joined, &condition)?;
        }
        Ok(joined)
    }

    /// The label keys of each pair of axes, from `equal` and from equalities among the conditions, and the remaining
    /// conditions.
    fn pairs<'c>(
        &mut self,
        mut equal: Vec<(Expr, Expr)>,
        conditions: impl Iterator<Item = &'c Expr>,
        left: &Relation,
        right: &Relation,
    ) -> Result<(Pairs, Vec<Expr>), Reason> {
        let mut rest = Vec::new();
        for condition in conditions.flat_map(|f| split_conjunction(f)) {
            if let Expr::BinaryExpr(BinaryExpr { left: a, op: Operator::Eq, right: b }) = condition
            {
                let sides = [(a, b), (b, a)];
                let found =
                    sides.iter().find(|(a, b)| left.axis(a).is_some() && right.axis(b).is_some());
                if let Some((a, b)) = found {
                    equal.push(((***a).clone(), (***b).clone()));
                    continue;
                }
            }
            rest.push(condition.clone());
        }
        let mut pairs = Pairs::new();
        for (a, b) in &equal {
            let (Some(i), Some(j)) = (left.axis(a), right.axis(b)) else {
                return Err(format!("the join key `{a} = {b}` is not of labels"));
            };
            let keys = pairs.entry((i, j)).or_default();
            let evaluated = |r: &Relation, e, axis| {
                let labels = r.evaluate(e, Some(axis), self.state);
                labels.map(|labels| canonical(&labels)).map_err(|e| e.strip_backtrace())
            };
            keys.left.push(evaluated(left, a, i)?);
            keys.right.push(evaluated(right, b, j)?);
        }
        Ok((pairs, rest))
    }
}

/// The matching positions of a pair of axes.
struct Matches {
    /// The positions of the left that the join keeps, as indices into its kept positions.
    left: Kept,
    /// For each position in `left`, the matching position of the right, as an index into its kept positions.
    right: Vec<Option<u64>>,
}

fn matches(pairs: &Pairs, is_left: bool) -> Result<BTreeMap<(usize, usize), Matches>, Reason> {
    let mut out = BTreeMap::new();
    for (&axes, keys) in pairs {
        let sorts = keys.left.iter().map(|c| SortField::new(c.data_type().clone())).collect();
        let converter = RowConverter::new(sorts).map_err(|e| e.to_string())?;
        if keys.left.iter().zip(&keys.right).any(|(a, b)| a.data_type() != b.data_type()) {
            return Err("the labels of the join differ in type".to_string());
        }
        let left = converter.convert_columns(&keys.left).map_err(|e| e.to_string())?;
        let right = converter.convert_columns(&keys.right).map_err(|e| e.to_string())?;
        let has_null = |columns: &[ArrayRef], i| columns.iter().any(|c| c.is_null(i));
        let mut places = BTreeMap::new();
        for (q, row) in right.iter().enumerate().filter(|(q, _)| !has_null(&keys.right, *q)) {
            if places.insert(row.owned(), q as u64).is_some() {
                return Err("a label occurs twice on the right side of the join".to_string());
            }
        }
        let (mut positions, mut partners) = (Vec::new(), Vec::new());
        for (p, row) in left.iter().enumerate() {
            let partner = match has_null(&keys.left, p) {
                true => None,
                false => places.get(&row.owned()).copied(),
            };
            if is_left || partner.is_some() {
                positions.push(p as u64);
                partners.push(partner);
            }
        }
        if positions.is_empty() {
            return Err("no label occurs on both sides".to_string());
        }
        out.insert(axes, Matches { left: Kept::of(&positions), right: partners });
    }
    Ok(out)
}
