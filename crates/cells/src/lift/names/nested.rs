//! Joins with an alias: `FROM (a JOIN b ON …) AS x` becomes `FROM (SELECT * FROM a JOIN b ON …) AS x`.
//!
//! The alias covers all columns of the join, a merged one once; `a` and `b` are names inside only. The relations of the
//! join have rows for the cells that the names of the surrounding block choose, as they have without the alias.

use sqlparser::ast::{TableAlias, TableFactor};
use tessera_frontend::derived::{all_of, derived};

use super::Relations;
use super::used::Used;

impl Relations<'_> {
    /// Replaces a join with an alias by a subquery; returns false for all other relations.
    pub(super) fn nested(&mut self, factor: &mut TableFactor) -> bool {
        let TableFactor::NestedJoin { table_with_joins, alias: Some(alias) } = &*factor else {
            return false;
        };
        let Some(select) = all_of((**table_with_joins).clone()) else { return false };
        let used = match self.blocks.last() {
            Some(block) => block.used.inside(table_with_joins, alias, &|inner| self.columns(inner)),
            None => Used::everything(),
        };
        let alias = alias.clone();
        self.names.insert(alias.name.value.clone());
        self.names.extend(column_names(&alias));
        self.joined = Some(used);
        *factor = derived(select, Some(alias));
        true
    }
}

pub(super) fn column_names(alias: &TableAlias) -> impl Iterator<Item = String> {
    alias.columns.iter().map(|column| column.name.value.clone())
}
