//! The operators of rows, and their measurements.
//!
//! ```text
//! rows in splits, on all threads:
//!   AggregateExec                       1 row  0.000025 s
//!     GatherExec                       8 rows  0.000875 s
//!       HashJoinExec: 8 splits      3934 rows  0.001068 s, table of 40 rows
//! …
//! measured: 0.128126 s, 1 row, reserved 513.0 MiB, 24.8 MiB read, nothing spilled
//! ```

use serde_json::{Value, json};
use std::fmt::Write as _;
use tessera_cells::rows::{LeftOut, Operator, OperatorRan, RowsMeasured};
use tessera_planner::explain;

/// Measurements of the operators of rows.
pub(in crate::session) struct OperatorsRan {
    /// The operators of all plans; the last one is the root of the plan of the answer.
    operators: Vec<Operator>,
    /// From the start of the rows to their end.
    seconds: f64,
    /// The most that operators had reserved at one time.
    reserved_bytes: u64,
}

impl OperatorsRan {
    pub(in crate::session) fn of(measured: &RowsMeasured, seconds: f64) -> Self {
        let (operators, reserved_bytes) = (measured.operators(), measured.reserved_bytes());
        OperatorsRan { operators, seconds, reserved_bytes }
    }

    pub(in crate::session) fn operators(&self) -> &[Operator] {
        &self.operators
    }

    fn rows(&self) -> u64 {
        self.operators.last().and_then(|last| last.ran).map_or(0, |ran| ran.rows)
    }

    fn sum(&self, of: impl Fn(&OperatorRan) -> u64) -> u64 {
        let (mut sum, mut next): (u64, Vec<&Operator>) = (0, self.operators.iter().collect());
        while let Some(operator) = next.pop() {
            sum += operator.ran.as_ref().map_or(0, &of);
            next.extend(&operator.inputs);
        }
        sum
    }

    fn bytes_read(&self) -> u64 {
        self.sum(|ran| ran.bytes_read)
    }

    fn bytes_spilled(&self) -> u64 {
        self.sum(|ran| ran.bytes_spilled)
    }

    /// The line below the operators.
    pub(in crate::session) fn line(&self) -> String {
        let (rows, reserved) = (rows(self.rows()), explain::bytes(self.reserved_bytes));
        let read = explain::bytes(self.bytes_read());
        let spilled = match self.bytes_spilled() {
            0 => "nothing".into(),
            n => explain::bytes(n),
        };
        let seconds = self.seconds;
        format!(
            "measured: {seconds:.6} s, {rows}, reserved {reserved}, {read} read, {spilled} spilled\n"
        )
    }

    /// Adds the same to a JSON object.
    pub(in crate::session) fn add_to(&self, json: &mut Value) {
        json["seconds"] = self.seconds.into();
        json["rows"] = self.rows().into();
        json["reserved_bytes"] = self.reserved_bytes.into();
        json["bytes_read"] = self.bytes_read().into();
        json["bytes_spilled"] = self.bytes_spilled().into();
    }
}

/// The operators as JSON, each with its measurements if it was measured.
pub(in crate::session) fn operators_json(operators: &[Operator]) -> Value {
    operators.iter().map(operator_json).collect()
}

fn operator_json(operator: &Operator) -> Value {
    let Operator { name, splits, inputs, ran } = operator;
    let mut json = json!({"name": name, "splits": splits, "inputs": operators_json(inputs)});
    if let Some(ran) = ran {
        json["measured"] = ran_json(ran);
    }
    json
}

fn ran_json(ran: &OperatorRan) -> Value {
    let mut json = json!({
        "rows": ran.rows,
        "batches": ran.batches,
        "seconds": ran.busy.as_secs_f64(),
        "bytes_read": ran.bytes_read,
        "bytes_spilled": ran.bytes_spilled,
    });
    if let Some(rows) = ran.table_rows {
        json["table_rows"] = rows.into();
    }
    for (name, parts) in [("row_groups", ran.row_groups), ("files", ran.files)] {
        if let Some(LeftOut { left_out, of }) = parts {
            json[name] = json!({"left_out": left_out, "of": of});
        }
    }
    json
}

/// The operators as text, each below its reader; empty if the plan has no operator.
pub(in crate::session) fn operators_text(operators: &[Operator]) -> String {
    if operators.is_empty() {
        return String::new();
    }
    let mut text = match operators.iter().any(Operator::is_split) {
        true => "rows in splits, on all threads:\n".to_string(),
        false => "operators of rows:\n".to_string(),
    };
    let mut lines = Vec::new();
    operators.iter().for_each(|operator| add_lines(operator, 1, &mut lines));
    let width = |of: fn(&Line) -> &str| {
        let measured = lines.iter().filter(|line| !line.rows.is_empty());
        measured.map(|line| of(line).chars().count()).max().unwrap_or(0)
    };
    let (names, counts) = (width(|line| line.name.as_str()), width(|line| line.rows.as_str()));
    let times = width(|line| line.seconds.as_str());
    for Line { name, rows, seconds, more } in &lines {
        let _ = match rows.is_empty() {
            true => writeln!(text, "{name}"),
            false => writeln!(text, "{name:names$}  {rows:>counts$}  {seconds:>times$}{more}"),
        };
    }
    text
}

/// A line of an operator.
struct Line {
    name: String,
    /// Empty if the operator is not measured.
    rows: String,
    seconds: String,
    /// Other measurements, each behind a comma.
    more: String,
}

fn add_lines(operator: &Operator, depth: usize, lines: &mut Vec<Line>) {
    let mut name = format!("{:1$}{name}", "", 2 * depth, name = operator.name);
    if operator.splits != 1 {
        let _ = write!(name, ": {} splits", operator.splits);
    }
    lines.push(match &operator.ran {
        Some(ran) => Line {
            name,
            rows: rows(ran.rows),
            seconds: format!("{:.6} s", ran.busy.as_secs_f64()),
            more: more(ran),
        },
        None => Line { name, rows: String::new(), seconds: String::new(), more: String::new() },
    });
    operator.inputs.iter().for_each(|input| add_lines(input, depth + 1, lines));
}

/// `1 row`, `2 rows`.
fn rows(n: u64) -> String {
    format!("{n} row{}", if n == 1 { "" } else { "s" })
}

fn more(ran: &OperatorRan) -> String {
    let mut more = String::new();
    if let Some(n) = ran.table_rows {
        let _ = write!(more, ", table of {}", rows(n));
    }
    if ran.bytes_read > 0 {
        let _ = write!(more, ", {} read", explain::bytes(ran.bytes_read));
    }
    for (what, parts) in [("row groups", ran.row_groups), ("parts of files", ran.files)] {
        if let Some(LeftOut { left_out: left_out @ 1.., of }) = parts {
            let _ = write!(more, ", {left_out} of {of} {what} left out");
        }
    }
    if ran.bytes_spilled > 0 {
        let _ = write!(more, ", {} spilled", explain::bytes(ran.bytes_spilled));
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn operator(name: &str, splits: usize, ran: Option<OperatorRan>) -> Operator {
        Operator { name: name.into(), splits, inputs: Vec::new(), ran }
    }

    fn scanned() -> Operator {
        let ran = OperatorRan {
            rows: 8100,
            batches: 28,
            busy: Duration::from_micros(31_122),
            bytes_read: 3 << 20,
            row_groups: Some(LeftOut { left_out: 3, of: 28 }),
            files: Some(LeftOut { left_out: 0, of: 2 }),
            ..OperatorRan::default()
        };
        operator("DataSourceExec", 28, Some(ran))
    }

    #[test]
    fn operators_stand_in_columns() {
        let remote = Operator {
            inputs: vec![operator("FilterExec", 4, None)],
            ..operator("rows on workers, 2.0 MiB", 4, Some(OperatorRan::default()))
        };
        let joined = OperatorRan {
            rows: 1,
            table_rows: Some(1),
            bytes_spilled: 7,
            ..OperatorRan::default()
        };
        let join = Operator {
            inputs: vec![remote, scanned()],
            ..operator("HashJoinExec", 1, Some(joined))
        };
        let want = "\
rows in splits, on all threads:
  HashJoinExec                              1 row  0.000000 s, table of 1 row, 7 B spilled
    rows on workers, 2.0 MiB: 4 splits     0 rows  0.000000 s
      FilterExec: 4 splits
    DataSourceExec: 28 splits           8100 rows  0.031122 s, 3.0 MiB read, 3 of 28 row groups left out
";
        assert_eq!(operators_text(&[join]), want);
        assert_eq!(operators_text(&[]), "");
        // Of EXPLAIN alone.
        let plain = Operator { inputs: vec![operator("B", 2, None)], ..operator("A", 1, None) };
        let want = "rows in splits, on all threads:\n  A\n    B: 2 splits\n";
        assert_eq!(operators_text(&[plain]), want);
    }

    #[test]
    fn json_has_the_same_numbers() {
        let ran = &operator_json(&scanned())["measured"];
        assert_eq!((&ran["rows"], &ran["batches"]), (&json!(8100), &json!(28)));
        assert_eq!(ran["row_groups"], json!({"left_out": 3, "of": 28}));
        assert_eq!(ran["files"], json!({"left_out": 0, "of": 2}));
        assert_eq!(ran["seconds"], json!(0.031122));
        assert!(ran["table_rows"].is_null());
        assert!(operator_json(&operator("A", 1, None))["measured"].is_null());
    }
}
