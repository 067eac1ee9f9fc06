//! EXPLAIN of statements with islands: which parts run first, on which surface, and their dependencies.
//!
//! EXPLAIN alone runs nothing. Islands that wait for no other are shown with their plans. After that a stand-in takes
//! the place of each result ([`stand_in`]), so that lowering can continue and name the rest.

use super::{measured_json, measurements};
use crate::Handle;
use crate::answer::{Answer, Reply, Stats, Surface};
use crate::error::Error;
use crate::session::Session;
use crate::session::bind::{Binding, Ran, Settled};
use crate::session::cells::{Measured, PlannedCells};
use crate::session::run::Results;
use std::fmt::Write as _;
use std::sync::Arc;
use tessera_cells::lift::{CellPlan, Planner};
use tessera_cells::stand_in;
use tessera_frontend::Context;
use tessera_frontend::island::{Island, Work};
use tessera_frontend::statement::{Explain, ExplainFormat};
use tessera_frontend::surface::Decision;
use tessera_planner::optimize::Rooted;

pub(in crate::session) struct Shown {
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

/// Numbers counted from 1.
fn counted(numbers: &[usize]) -> Vec<usize> {
    numbers.iter().map(|n| n + 1).collect()
}

/// The islands that ran, with their measurements.
pub(super) fn shown(
    session: &Session,
    binding: &Binding<'_>,
    statement: &Handle,
) -> Result<Vec<Shown>, Error> {
    let islands = binding.islands.finished().zip(&binding.ran).enumerate();
    let shown = islands.map(|(number, (island, ran))| match ran {
        Ran::Plan { tiling, stats } => {
            let sources = &binding.opener.sources;
            let plan = session.explained(tiling, sources, None, Results::Whole, statement)?;
            let mut shown = show(number, island, Some((&plan.to_string(), &plan.json())));
            shown.text.push_str(&measurements(stats));
            shown.json["measured"] = measured_json(stats);
            Ok(shown)
        }
        Ran::Rows { text, json } => Ok(show(number, island, Some((text, json)))),
    });
    shown.collect()
}

/// The known facts of an island. An island without a plan depends on the results of the islands before it.
fn show(number: usize, island: &Island, plan: Option<(&str, &serde_json::Value)>) -> Shown {
    let place =
        island.position.map_or_else(String::new, |p| format!(" at {}:{}", p.line, p.column));
    let waits = names(island.waits_for.iter().copied());
    let mut text = format!(
        "\nisland {} ({}){place}: {}, waits for {waits}\n",
        number + 1,
        island.surface(),
        island.title
    );
    let mut json = serde_json::json!({
        "island": number + 1,
        "surface": island.surface().to_string(),
        "what": island.title,
        "waits_for": counted(&island.waits_for),
    });
    if !island.may_wait_for.is_empty() {
        let of = names(island.may_wait_for.iter().copied());
        let _ = writeln!(text, "   its plan may follow from the values of {of}");
        json["may_wait_for"] = counted(&island.may_wait_for).into();
    }
    match plan {
        Some((plan, known)) => {
            text.push_str(plan);
            json["plan"] = known.clone();
        }
        None => {
            let before = before(island);
            let note = format!("its shapes are known when {before} has run");
            let _ = writeln!(text, "   {note}");
            json["plan"] = serde_json::Value::Null;
            json["unknown"] = note.into();
        }
    }
    Shown { text, json }
}

/// The islands that decide the plan of another.
fn before(island: &Island) -> String {
    let mut all: Vec<usize> =
        island.waits_for.iter().chain(&island.may_wait_for).copied().collect();
    all.sort_unstable();
    names(all.into_iter())
}

/// The islands of a statement, as far as they are known without running any.
struct Outline {
    islands: Vec<Shown>,
    /// The islands that each of them waits for.
    edges: Vec<Vec<usize>>,
    /// Why there may be more islands, if lowering could not continue.
    cut: Option<String>,
}

/// EXPLAIN of a statement whose first island has not run: all islands that are known, and their dependencies.
pub(super) async fn explain_waiting<T>(
    session: &Session,
    mut binding: Binding<'_>,
    first: Box<Island>,
    decision: &Decision,
    what: &Explain,
    mut lower: impl FnMut(&mut Context<'_>, &Planner<'_>) -> Result<T, tessera_frontend::Error>,
    statement: &Handle,
) -> Result<Reply, Error> {
    let mut outline = Outline { islands: Vec::new(), edges: Vec::new(), cut: None };
    let mut next = first;
    loop {
        let number = outline.islands.len();
        let plan = match next.waits_for.is_empty() && next.may_wait_for.is_empty() {
            true => Some(plan_of(session, &mut binding, &next, statement).await?),
            false => None,
        };
        let plan = plan.as_ref().map(|(text, json)| (text.as_str(), json));
        outline.islands.push(show(number, &next, plan));
        outline.edges.push(next.waits_for.clone());
        let Some(done) = stand_in(&next, number, &binding.opener.rows) else {
            outline.cut = Some(format!("island {}", number + 1));
            break;
        };
        binding.islands.finish(*next, done);
        match binding.lower(&mut lower) {
            Ok(Settled::Ready(_)) => break,
            Ok(Settled::Waiting(island)) => next = island,
            // The statement will not see the stand-in: errors about it are not the user's.
            Err(_) => {
                outline.cut = Some(names(0..=number));
                break;
            }
        }
    }
    let answer = outline.answer(decision, what.format);
    let surface = match decision.surface {
        tessera_frontend::surface::Surface::Tensor => Surface::Tensor,
        tessera_frontend::surface::Surface::Cell => Surface::Cell,
    };
    let plan_s = binding.stop.started().elapsed().as_secs_f64();
    Ok(Reply { answer, surface: Some(surface), stats: Stats { plan_s, ..Stats::default() } })
}

impl Outline {
    /// The islands that no other waits for.
    fn last(&self) -> Vec<usize> {
        let is_read = |n: &usize| self.edges.iter().any(|edges| edges.contains(n));
        (0..self.islands.len()).filter(|n| !is_read(n)).collect()
    }

    fn answer(&self, decision: &Decision, format: ExplainFormat) -> Answer {
        let last = self.last();
        let waits = names(last.iter().copied());
        let have = if last.len() == 1 { "it has" } else { "they have" };
        let them = if self.islands.len() == 1 { "it" } else { "them" };
        let mut note = format!(
            "waits for {waits}; its shapes are known when {have} run: EXPLAIN ANALYZE runs {them} and shows all plans"
        );
        if let Some(cut) = &self.cut {
            let _ = write!(note, "; what else runs first is known when {cut} has run");
        }
        match format {
            ExplainFormat::Text => {
                let mut text = format!("surface: {} ({})\n", decision.surface, decision.reason);
                self.islands.iter().for_each(|island| text.push_str(&island.text));
                let _ = write!(text, "\nresult: {note}\n");
                Answer::Text(text)
            }
            ExplainFormat::Json => Answer::Json(serde_json::json!({
                "surface": decision.surface.to_string(),
                "reason": decision.reason.to_string(),
                "islands": self.islands.iter().map(|i| i.json.clone()).collect::<Vec<_>>(),
                "waits_for": counted(&last),
                "result": note,
            })),
            ExplainFormat::Dot => {
                let mut text = "digraph islands {\n  rankdir=LR;\n".to_string();
                for (number, shown) in self.islands.iter().enumerate() {
                    let what = shown.json["what"].as_str().unwrap_or_default();
                    let label = format!("island {}: {what}", number + 1);
                    let _ = writeln!(text, "  i{} [shape=box, label={label:?}];", number + 1);
                    for edge in &self.edges[number] {
                        let _ = writeln!(text, "  i{} -> i{};", edge + 1, number + 1);
                    }
                }
                text.push_str("  result;\n");
                last.iter().for_each(|n| {
                    let _ = writeln!(text, "  i{} -> result;", n + 1);
                });
                text.push_str("}\n");
                Answer::Text(text)
            }
        }
    }
}

/// The plan of an island that waits for nothing.
async fn plan_of(
    session: &Session,
    binding: &mut Binding<'_>,
    island: &Island,
    statement: &Handle,
) -> Result<(String, serde_json::Value), Error> {
    let (mut text, mut results) = (String::new(), Results::Whole);
    let rooted: Vec<Rooted> = match &island.work {
        Work::Values(rooted) | Work::Compress(rooted) | Work::Distinct(rooted) => {
            vec![rooted.clone()]
        }
        Work::Rows(rows) => {
            let plan = CellPlan::of(rows).map_err(Error::stage)?;
            for note in &plan.notes {
                let _ = writeln!(text, "{note}");
            }
            let _ = writeln!(text, "{}", plan.logical_text());
            let planned = PlannedCells::of_island(binding, plan.clone());
            let cells = session.physical_cells(planned, &Measured::default(), statement).await?;
            let _ = write!(text, "{}", cells.rows.on_workers());
            let scans = cells.rows.scans();
            results = Results::of_rows(scans.iter().any(|scan| scan.exploded));
            scans.iter().map(|scan| scan.rooted.clone()).collect()
        }
    };
    let mut json = Vec::new();
    for rooted in rooted {
        let tiling = binding.stop.compile(rooted, &binding.config, &mut |_, _| {})?;
        let sources = &binding.opener.sources;
        let plan = session.explained(&Arc::new(tiling), sources, None, results, statement)?;
        let _ = write!(text, "{plan}");
        json.push(plan.json());
    }
    Ok((text, json.into()))
}
