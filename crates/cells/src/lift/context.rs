//! SqlToRel's context provider for a prepared query.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{TableReference, plan_datafusion_err};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, TypePlanner};
use datafusion::logical_expr::{AggregateUDF, HigherOrderUDF, ScalarUDF, TableSource, WindowUDF};

use super::casts::{Casts, NumpyTypes};
use super::functions::Scales;
use super::shifts::Shifts;
use super::time::Since;
use super::{local_time, markers};
use tessera_frontend::error::Position;

/// The tables of one query and the functions of a session.
pub(crate) struct Context<'a> {
    pub(crate) state: &'a SessionState,
    pub(crate) tables: &'a BTreeMap<String, Arc<dyn TableSource>>,
    planners: Vec<Arc<dyn ExprPlanner>>,
}

impl<'a> Context<'a> {
    /// `texts` has the position of each text of the query.
    pub(crate) fn new(
        state: &'a SessionState,
        tables: &'a BTreeMap<String, Arc<dyn TableSource>>,
        texts: &BTreeMap<String, Position>,
    ) -> Self {
        let ours: [Arc<dyn ExprPlanner>; 4] = [
            Arc::new(Casts),
            Arc::new(Since { texts: texts.clone() }),
            Arc::new(Shifts),
            Arc::new(Scales),
        ];
        let planners = ours.into_iter().chain(state.expr_planners().iter().cloned()).collect();
        Self { state, tables, planners }
    }
}

impl ContextProvider for Context<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        super::go_on()?;
        self.tables
            .get(name.table())
            .cloned()
            .ok_or_else(|| plan_datafusion_err!("unknown relation `{name}`"))
    }

    fn create_cte_work_table(&self, name: &str, schema: SchemaRef) -> Result<Arc<dyn TableSource>> {
        Ok(provider_as_source(Arc::new(CteWorkTable::new(name, schema))))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(NumpyTypes))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let known = self.state.scalar_functions().get(name).cloned();
        let ours = || markers::function(name).or_else(|| local_time::function(name));
        known.or_else(|| ours().map(Arc::new))
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.state.aggregate_functions().get(name).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    // Sorted, so that "did you mean" does not depend on a hash.
    fn udf_names(&self) -> Vec<String> {
        sorted(self.state.scalar_functions().keys())
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        sorted(self.state.higher_order_functions().keys())
    }

    fn udaf_names(&self) -> Vec<String> {
        sorted(self.state.aggregate_functions().keys())
    }

    fn udwf_names(&self) -> Vec<String> {
        sorted(self.state.window_functions().keys())
    }
}

fn sorted<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<String> = names.filter(|n| !n.starts_with("tessera_")).cloned().collect();
    names.sort();
    names
}
