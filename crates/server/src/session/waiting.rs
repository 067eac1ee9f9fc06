//! EXPLAIN of statements with islands: which parts run first, on which surface, and what waits for them.

use crate::answer::{Answer, Reply, Stats, Surface};
use crate::error::Error;
use crate::session::islands::{Binding, Ran};
use crate::session::query::measurements;
use tessera_frontend::island::{Island, Work};
use tessera_frontend::statement::{Explain, ExplainFormat};
use tessera_frontend::surface::Decision;
use tessera_planner::optimize::Rooted;
use tessera_planner::{compile, explain};

/// An island as EXPLAIN shows it.
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) json: serde_json::Value,
}

/// `island 1`, `islands 1 and 2`, counted from 1.
pub(super) fn names(numbers: impl Iterator<Item = usize>) -> String {
    let numbers: Vec<String> = numbers.map(|n| (n + 1).to_string()).collect();
    match numbers.as_slice() {
        [] => "nothing".into(),
        [one] => format!("island {one}"),
        [rest @ .., last] => format!("islands {} and {last}", rest.join(", ")),
    }
}

/// The islands that ran, with what was measured.
pub(super) fn shown(binding: &Binding<'_>) -> Vec<Shown> {
    let islands = binding.islands.finished().zip(&binding.ran).enumerate();
    islands
        .map(|(number, (island, ran))| show(number, island, Some(ran), &ran.plan, &ran.json))
        .collect()
}

fn show(
    number: usize,
    island: &Island,
    ran: Option<&Ran>,
    plan: &str,
    json: &serde_json::Value,
) -> Shown {
    let place =
        island.position.map_or_else(String::new, |p| format!(" at {}:{}", p.line, p.column));
    let waits = names(island.waits_for.iter().copied());
    let mut text = format!(
        "\nisland {} ({}){place}: {}, waits for {waits}\n{plan}",
        number + 1,
        island.surface(),
        island.title
    );
    let mut json = serde_json::json!({
        "island": number + 1,
        "surface": island.surface().to_string(),
        "what": island.title,
        "waits_for": island.waits_for.iter().map(|n| n + 1).collect::<Vec<_>>(),
        "plan": json,
    });
    if let Some(stats) = ran.and_then(|ran| ran.stats.as_ref()) {
        text.push_str(&measurements(stats));
        json["measured"] = serde_json::json!({
            "peak_bytes": stats.peak_bytes,
            "bytes_read": stats.bytes_read,
        });
    }
    Shown { text, json }
}

/// EXPLAIN of a statement whose first island has not run: what is known, and what waits.
pub(super) fn explain_waiting(
    binding: &Binding<'_>,
    island: &Island,
    decision: &Decision,
    what: &Explain,
) -> Result<Reply, Error> {
    let rooted: Vec<&Rooted> = match &island.work {
        Work::Values(rooted) | Work::Compress(rooted) | Work::Distinct(rooted) => vec![rooted],
        Work::Rows(rows) => rows.plan.scans.iter().map(|scan| &scan.rooted).collect(),
    };
    let mut plan = String::new();
    let mut json = Vec::new();
    if let Work::Rows(rows) = &island.work {
        plan.push_str(&format!("{}\n", rows.plan.logical.display_indent()));
    }
    for rooted in rooted {
        let tiling =
            compile(rooted.clone(), &binding.config, &mut |_, _| {}).map_err(Error::stage)?;
        plan.push_str(&explain::plan(&tiling));
        json.push(explain::json(&tiling));
    }
    let shown = show(0, island, None, &plan, &json.into());
    let note = "the rest waits for island 1, as its shapes follow from it: EXPLAIN ANALYZE runs it and shows all";
    let surface = decision.surface;
    let answer = match what.format {
        ExplainFormat::Text => Answer::Text(format!(
            "surface: {surface} ({})\n{}\nresult: {note}\n",
            decision.reason, shown.text
        )),
        ExplainFormat::Json => Answer::Json(serde_json::json!({
            "surface": surface.to_string(),
            "reason": decision.reason.to_string(),
            "islands": [shown.json],
            "result": note,
        })),
        ExplainFormat::Dot => {
            return Err(crate::session::later(
                "EXPLAIN (FORMAT dot) of a statement that waits for an island",
                "use text or json",
            ));
        }
    };
    let surface = match surface {
        tessera_frontend::surface::Surface::Tensor => Surface::Tensor,
        tessera_frontend::surface::Surface::Cell => Surface::Cell,
    };
    let plan_s = binding.started.elapsed().as_secs_f64();
    Ok(Reply { answer, surface: Some(surface), stats: Stats { plan_s, ..Stats::default() } })
}
