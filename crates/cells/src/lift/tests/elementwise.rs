//! Elementwise functions of tensors in cell blocks.
use tessera_frontend::functions::elementwise;
use tessera_planner::config::Config;

use super::super::functions::is_elementwise;
use super::super::{plan, session_state};
use super::{FORM, data, query};

/// The required arguments of a call over one column.
fn arguments(signature: &str, column: &str) -> String {
    let (_, rest) = signature.split_once('(').unwrap();
    let names = rest.trim_end_matches(')').split(", ");
    let required = names.filter(|name| !name.is_empty() && !name.contains("=>") && *name != "…");
    let argument = |name: &str| match name {
        "condition" => "t2m > 280".to_string(),
        "dtype" => "'float32'".to_string(),
        _ => column.to_string(),
    };
    required.map(argument).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_elementwise_function_is_planned_and_stays_dense() {
    let state = session_state(1 << 30).unwrap();
    let mut ours = 0;
    for function in elementwise() {
        // Floats, integers or conditions.
        let plans = ["t2m", "flag", "t2m > 280"].map(|column| {
            let call = format!("{}({})", function.name, arguments(function.signature, column));
            let sql = format!("SELECT count({call}) FROM era5 WHERE lat > 45");
            plan(&query(&sql), 0, &data::Tables, &state, &Config::default(), "WHERE", FORM)
        });
        let planned = plans.iter().flatten();
        assert!(planned.clone().count() > 0, "{}: {:?}", function.name, plans[0]);
        if is_elementwise(function.name) {
            ours += 1;
            for plan in planned {
                let is_dense = plan.scans.iter().all(|scan| !scan.exploded);
                assert!(is_dense, "{}: {:?}", function.name, plan.notes);
            }
        }
    }
    assert!(ours > 50, "{ours} functions that SQL lacks");
}
