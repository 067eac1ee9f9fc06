//! Joins of cells with a table of rows in memory, whose keys are labels.
//!
//! ```text
//! t [time, lat] JOIN w (lat, w)             a row for each label at most: w is a label of lat
//! t [time, lat, lon] JOIN z (lat, lon, z)   a row for each pair of labels at most: z is cells [1, lat, lon], and rows of
//!                                           pairs that the table lacks are not kept
//! ```
//! A table whose rows match many labels, or with several rows for a label, is joined as boxes: see [`super::boxes`].
//! A table has no order of its own, so rows are in the order of the cells on whichever side these are.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Array, ArrayRef};
use arrow::row::{Row, RowConverter, SortField};
use datafusion::common::{Column as Name, JoinType};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join};
use tessera_planner::dtype::DType;
use tessera_planner::ir::ConstArray;
use tessera_planner::program::ScalarOp;
use tessera_planner::scalar::Scalar;

use super::align::spread;
use super::{AxisKeys, Matches, NOT_ON_LABELS, Pairs, matches};
use crate::lift::dense::{Dense, gathered};
use crate::lift::labels::{Kept, canonical, constant};
use crate::lift::lower::{Reason, refused};
use crate::lift::order::of_left;
use crate::lift::relation::{Column, Relation};
use crate::type_name;

/// Upper bound on the cells of the table's columns over the dimensions of its keys.
const CELLS_MAX: u64 = 1 << 22;

impl Dense<'_> {
    /// A join of cells and a table, on either side.
    pub(super) fn join_with_table(
        &mut self,
        join: &Join,
        conditions: Vec<Expr>,
        left: Relation,
        right: Relation,
    ) -> Result<Relation, Reason> {
        if left.is_table && right.is_table {
            return Err("both sides of the join are tables of rows".to_string());
        }
        if [&left, &right].into_iter().any(|side| side.is_table && side.keep.is_some()) {
            return Err("a condition on the table is not on its rows".to_string());
        }
        let is_first = left.is_table;
        let keeps_cells = match (join.join_type, is_first) {
            (JoinType::Inner, _) => false,
            (JoinType::Left, false) | (JoinType::Right, true) => true,
            (other, _) => return Err(format!("a {other} join keeps rows of the table alone")),
        };
        let by_value = keys_by_value(join, &conditions, &left, &right);
        let (cells, table) = if is_first { (right, left) } else { (left, right) };
        let on = join.on.iter().cloned().map(|(l, r)| if is_first { (r, l) } else { (l, r) });
        let all = join.filter.iter().chain(&conditions);
        let (pairs, rest) = self.pairs(on.collect(), all, &cells, &table)?;
        if keeps_cells && !rest.is_empty() {
            return Err("the condition of the outer join is not on labels alone".to_string());
        }
        let count = cells.columns.len();
        let sides = (cells.clone(), table.clone());
        let mut joined = match self.along_keys(join, cells, table, &pairs, keeps_cells) {
            Ok(joined) => joined,
            Err(reason) if keeps_cells => return Err(reason),
            Err(reason) => {
                let joined = self.join_boxes(join, &conditions, sides, is_first, &by_value);
                return joined.map_err(|own| if pairs.is_empty() { own } else { reason });
            }
        };
        if is_first {
            joined.columns.rotate_left(count);
        }
        joined.schema = join.schema.clone();
        for (column, own) in joined.columns.iter_mut().zip(by_value) {
            if let Column::Label { by_value, partial, .. } = column {
                *by_value = own;
                // The order of values does not depend on positions.
                *partial &= !own;
            }
        }
        for condition in rest {
            joined = self.filter(joined, &condition)?;
        }
        Ok(joined)
    }

    /// The cells, each with the columns of the row of the table that has its keys.
    fn along_keys(
        &mut self,
        join: &Join,
        cells: Relation,
        table: Relation,
        pairs: &Pairs,
        keeps_cells: bool,
    ) -> Result<Relation, Reason> {
        match pairs.len() {
            0 => Err(NOT_ON_LABELS.to_string()),
            1 => {
                let matched = matches(pairs, keeps_cells)?;
                self.align(cells, table, &matched, (keeps_cells, false), join.schema.clone())
            }
            _ => self.place(cells, table, pairs, keeps_cells),
        }
    }

    /// The cells with the columns of a table that has several of their axes as keys.
    fn place(
        &mut self,
        mut cells: Relation,
        table: Relation,
        pairs: &Pairs,
        keeps_cells: bool,
    ) -> Result<Relation, Reason> {
        let found = TableRows::of(pairs, keeps_cells)?;
        let columns = table.columns.len() as u64 + 1;
        if found.rows.len() as u64 * columns > CELLS_MAX {
            return Err(format!(
                "{columns} columns of the table have {} cells each over the dimensions of the join",
                found.rows.len()
            ));
        }
        let mut shape = vec![1; cells.kept.len()];
        let mut before = BTreeMap::new();
        for (&axis, along) in &found.along {
            before.insert(axis, cells.kept[axis].clone());
            cells.narrow(&mut self.b, axis, &along.left)?;
            shape[axis] = along.left.len();
        }
        let is_whole = found.rows.iter().all(Option::is_some);
        for column in &table.columns {
            let Column::Label { values, .. } = column else {
                return Err("an expression of the table is not a column".to_string());
            };
            let kept = values.kept(&table.kept[0]).and_then(|kept| kept.array(self.state));
            let values = kept.map_err(|e| e.strip_backtrace())?;
            let key = pairs.iter().find(|(_, keys)| keys.right.iter().any(|k| is_same(k, &values)));
            cells.columns.push(match key {
                Some((&(axis, _), _)) if !keeps_cells => {
                    let along = &found.along[&axis];
                    let labels = spread(&values, along, &before[&axis], cells.whole[axis])?;
                    Column::Label {
                        axis,
                        values: labels.into(),
                        partial: false,
                        by_value: false,
                        origin: None,
                    }
                }
                _ => {
                    let placed = gathered(&values, &found.rows)?;
                    match constant(&placed, &shape) {
                        Some(array) => Column::Cells(self.b.array(array).map_err(refused)?),
                        None => Column::Refused(format!(
                            "a column of the table is {}, which tensors cannot contain",
                            type_name(values.data_type())
                        )),
                    }
                }
            });
        }
        if !is_whole && !keeps_cells {
            let there: Vec<_> =
                found.rows.iter().map(|row| Some(Scalar::bool(row.is_some()))).collect();
            let array = ConstArray::new(DType::Bool, &shape, &there);
            let there = self.b.array(array).map_err(refused)?;
            cells.keep = Some(match cells.keep {
                Some(keep) => self.b.map(ScalarOp::And, &[keep, there]).map_err(refused)?,
                None => there,
            });
        }
        Ok(cells)
    }
}

/// The rows of a table over the dimensions of its keys.
struct TableRows {
    /// For each axis the positions that are kept, and for each of them a row with its label.
    along: BTreeMap<usize, Matches>,
    /// The row at each of the kept positions, row-major.
    rows: Vec<Option<u64>>,
}

/// The labels of one axis as numbers.
struct Codes {
    /// Number of different labels in the table.
    count: usize,
    /// For each position of the cells; `None` for labels that the table lacks.
    cells: Vec<Option<u32>>,
    /// For each row of the table; `None` for NULL.
    table: Vec<Option<u32>>,
}

impl TableRows {
    fn of(pairs: &Pairs, keeps_cells: bool) -> Result<TableRows, Reason> {
        let codes: Vec<Codes> = pairs.values().map(Codes::of).collect::<Result<_, Reason>>()?;
        let rows = rows_of_codes(&codes)?;
        let mut along = BTreeMap::new();
        let mut kept: Vec<Vec<Option<u32>>> = Vec::new();
        for (&(axis, _), codes) in pairs.keys().zip(&codes) {
            let mut first = vec![None; codes.count];
            for (row, code) in codes.table.iter().enumerate() {
                if let Some(code) = code {
                    first[*code as usize].get_or_insert(row as u64);
                }
            }
            let positions: Vec<u64> = (0..codes.cells.len())
                .filter(|&p| keeps_cells || codes.cells[p].is_some())
                .map(|p| p as u64)
                .collect();
            if positions.is_empty() {
                return Err("no label occurs on both sides".to_string());
            }
            let own: Vec<_> = positions.iter().map(|&p| codes.cells[p as usize]).collect();
            let right = own.iter().map(|code| first[(*code)? as usize]).collect();
            kept.push(own);
            along.insert(axis, Matches { left: Kept::of(&positions), right });
        }
        check_cells(kept.iter().map(Vec::len))?;
        // The place of each combination of labels in `rows`, axis by axis.
        let mut places: Vec<Option<usize>> = vec![Some(0)];
        for (own, codes) in kept.iter().zip(&codes) {
            let next = |place: &Option<usize>, code: &Option<u32>| {
                Some((*place)? * codes.count + (*code)? as usize)
            };
            let all = places.iter().flat_map(|place| own.iter().map(move |code| next(place, code)));
            places = all.collect();
        }
        let rows = places.iter().map(|place| rows[(*place)?]).collect();
        Ok(TableRows { along, rows })
    }
}

/// The row of each combination of the codes, row-major.
fn rows_of_codes(codes: &[Codes]) -> Result<Vec<Option<u64>>, Reason> {
    let size = check_cells(codes.iter().map(|c| c.count))?;
    let mut rows = vec![None; size];
    for row in 0..codes.first().map_or(0, |c| c.table.len()) {
        let place = codes.iter().try_fold(0, |n, c| Some(n * c.count + c.table[row]? as usize));
        if let Some(place) = place
            && rows[place].replace(row as u64).is_some()
        {
            return Err("two rows of the table have the same labels".to_string());
        }
    }
    Ok(rows)
}

/// The product of lengths, if it is not too large.
fn check_cells(lengths: impl Iterator<Item = usize>) -> Result<usize, Reason> {
    let size = lengths.fold(1usize, |n, len| n.saturating_mul(len));
    match size as u64 > CELLS_MAX {
        true => Err(format!("the dimensions of the join have {size} cells")),
        false => Ok(size),
    }
}

impl Codes {
    fn of(keys: &AxisKeys) -> Result<Codes, Reason> {
        let told = |e: arrow::error::ArrowError| e.to_string();
        if keys.left.iter().zip(&keys.right).any(|(a, b)| a.data_type() != b.data_type()) {
            return Err("the labels of the join differ in type".to_string());
        }
        let fields = keys.left.iter().map(|c| SortField::new(c.data_type().clone())).collect();
        let converter = RowConverter::new(fields).map_err(told)?;
        let has_null = |columns: &[ArrayRef], i| columns.iter().any(|c| c.is_null(i));
        let of_table = converter.convert_columns(&keys.right).map_err(told)?;
        let of_cells = converter.convert_columns(&keys.left).map_err(told)?;
        let mut known: HashMap<Row<'_>, u32> = HashMap::new();
        let table = of_table.iter().enumerate().map(|(i, row)| {
            let next = known.len() as u32;
            (!has_null(&keys.right, i)).then(|| *known.entry(row).or_insert(next))
        });
        let table = table.collect();
        let cells = of_cells
            .iter()
            .enumerate()
            .map(|(i, row)| (!has_null(&keys.left, i)).then(|| known.get(&row).copied()).flatten());
        Ok(Codes { cells: cells.collect(), table, count: known.len() })
    }
}

/// True if a column has exactly the values of a key.
fn is_same(key: &ArrayRef, values: &ArrayRef) -> bool {
    key.data_type() == values.data_type() && **key == **values && *canonical(values) == **values
}

/// For each column of a join, true if its groups are in the order of values: in `order`, the key of the right side is the
/// left's where the two are equal.
fn keys_by_value(join: &Join, conditions: &[Expr], left: &Relation, right: &Relation) -> Vec<bool> {
    let filter = conjunction(join.filter.iter().chain(conditions).cloned());
    let join = Join { filter, ..join.clone() };
    let columns = join.schema.columns().into_iter().enumerate();
    let is_of = |side: &Relation, name: &Name| side.is_by_value(&Expr::Column(name.clone()));
    columns
        .map(|(i, name)| {
            if i < left.columns.len() {
                return is_of(left, &name);
            }
            let equal = matches!(join.join_type, JoinType::Inner | JoinType::Left)
                .then(|| of_left(&join, &Expr::Column(name.clone())))
                .flatten();
            match equal {
                Some(own) => left.is_by_value(&own),
                None => is_of(right, &name),
            }
        })
        .collect()
}
