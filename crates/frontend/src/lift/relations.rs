//! The relations of a cell block: opened datasets, and tensor blocks lowered to cubes.

use std::cell::RefCell;
use std::sync::Arc;

use sqlparser::ast::Query;

use super::{CellPlan, CellRelation, CellTables, Cells, Cube, CubeVariable};
use crate::ast::Relation;
use crate::bind::{self, CatalogNames, Context};
use crate::error::Error;
use crate::lower::{Lowered, lower_tensor};
use crate::surface::{self, RelationKind};

/// Plans a cell block over what a statement is bound to. `because` is the clause that made it one.
///
/// # Errors
/// Those of [`super::plan`], and [`Error::Waiting`] if a part of it has to run first.
pub fn plan_cells(
    query: &Query,
    context: &mut Context<'_>,
    because: &str,
) -> Result<CellPlan, Error> {
    let (config, density) = (context.config.clone(), context.density);
    let cell = context.state;
    let state = match cell.get() {
        Some(state) => state,
        None => {
            let state = super::session_state()?;
            cell.get_or_init(|| state)
        }
    };
    let tables = Relations { context: RefCell::new(context) };
    super::plan(query, &tables, state, &config, because, density)
}

struct Relations<'c, 'a> {
    context: RefCell<&'c mut Context<'a>>,
}

impl CellTables for Relations<'_, '_> {
    fn relation(&self, relation: &Relation<'_>) -> Result<CellRelation, Error> {
        let mut context = self.context.borrow_mut();
        if let Relation::Subquery { query, alias } = relation {
            if surface::kind(query, &CatalogNames(context.catalog)) != RelationKind::Tensor {
                return Ok(CellRelation::Sql);
            }
            let lowered = lower_tensor(query, &mut context)?;
            let name = alias.map_or_else(String::new, |a| a.value.clone());
            return Ok(CellRelation::Cube(Arc::new(cube(name, lowered))));
        }
        let Some(name) = bind::relation_ref(relation)? else { return Ok(CellRelation::Sql) };
        let Some(dataset) = context.catalog.relation(&name) else {
            return Err(bind::unknown_relation(relation, &context.catalog.names()));
        };
        if dataset.variables.is_empty() && dataset.coords.is_empty() {
            return Err(Error::Cells {
                code: "empty_dataset",
                message: format!("`{}` has no variables, so it has no rows", dataset.name),
                position: None,
                hint: Some("DESCRIBE shows what is there; `url#group` names a group inside".into()),
            });
        }
        let alias = match relation {
            Relation::Url { alias, .. } | Relation::Function { alias, .. } => *alias,
            _ => None,
        };
        let dataset = bind::under_alias(dataset, alias.map(|a| a.value.as_str()));
        Ok(CellRelation::Cube(Arc::new(Cube::from(&*dataset))))
    }
}

/// What a tensor block gives, as a relation of cells.
fn cube(name: String, lowered: Lowered) -> Cube {
    let graph = Arc::new(lowered.rooted.graph);
    let mut cube = Cube { name, variables: Vec::new(), coords: Vec::new(), auxiliary: Vec::new() };
    for (labels, node) in lowered.outputs.into_iter().zip(lowered.rooted.roots) {
        for coord in labels.dims.iter().filter_map(|d| d.coord.as_ref()) {
            if !cube.coords.iter().any(|c| c.name == coord.name) {
                cube.coords.push(coord.clone());
            }
        }
        cube.variables.push(CubeVariable {
            name: labels.name.into(),
            dims: labels.dims.into_iter().map(|d| d.name).collect(),
            cells: Cells::Planned { graph: graph.clone(), node },
        });
    }
    cube
}
