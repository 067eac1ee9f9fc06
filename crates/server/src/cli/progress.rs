//! The progress bar: a line on stderr.

use super::interrupt::until_cancelled;
use std::io::Write;
use std::time::{Duration, Instant};
use tessera_engine::Replies;
use tessera_engine::answer::Reply;
use tessera_engine::error::Error;
use tessera_engine::readable_bytes;
use tessera_engine::statement::{Handle, Progress};

/// Shorter statements have no bar.
const AFTER: Duration = Duration::from_secs(1);
/// Interval between updates.
const TICK: Duration = Duration::from_millis(100);
/// Width of the bar in characters.
const BAR: usize = 24;

/// Waits for the next answer, as [`until_cancelled`]. Meanwhile it draws the bar and prints the messages of `notice`.
pub async fn followed(
    replies: &mut Replies<'_>,
    statement: &Handle,
    bar: &mut Bar<'_>,
    notice: &mut dyn FnMut() -> Option<String>,
) -> Option<Result<Reply, Error>> {
    let next = until_cancelled(replies, statement);
    tokio::pin!(next);
    loop {
        tokio::select! {
            biased;
            reply = &mut next => {
                bar.clear();
                return reply;
            }
            () = tokio::time::sleep(TICK) => {}
        }
        if let Some(text) = notice() {
            bar.say(&text);
        }
        bar.tick(statement);
    }
}

/// A line that is redrawn, and removed at the end.
pub struct Bar<'a> {
    out: Option<&'a mut dyn Write>,
    started: Instant,
    shown: bool,
    unicode: bool,
    width: fn() -> usize,
}

impl<'a> Bar<'a> {
    /// A bar on `out`, a terminal with lines of `width` characters; `None` draws nothing.
    pub fn new(out: Option<&'a mut dyn Write>, width: fn() -> usize, unicode: bool) -> Self {
        Bar { out, started: Instant::now(), shown: false, unicode, width }
    }

    /// Draws the progress of the statement, unless it just began.
    pub fn tick(&mut self, statement: &Handle) {
        let elapsed = self.started.elapsed();
        if elapsed < AFTER || self.out.is_none() {
            return;
        }
        let width = (self.width)().saturating_sub(1);
        let cancelled = statement.is_cancelled();
        let text = line(&statement.progress(), elapsed, cancelled, width, self.unicode);
        self.write(&format!("\r{text}\x1b[K"));
        self.shown = true;
    }

    /// Prints a message above the bar.
    pub fn say(&mut self, text: &str) {
        self.clear();
        self.write(&format!("{text}\n"));
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write("\r\x1b[K");
        }
    }

    fn write(&mut self, text: &str) {
        if let Some(out) = &mut self.out {
            // A failure of stderr cannot be reported.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    }
}

impl Drop for Bar<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// `████▌       47 %  1203 of 2560 operands  3.0 GiB read  0:12 left`; parts that do not fit into `width` are left out.
fn line(p: &Progress, elapsed: Duration, cancelled: bool, width: usize, unicode: bool) -> String {
    let mut parts = Vec::new();
    match p.fraction() {
        _ if cancelled => parts.push("cancelling".to_string()),
        Some(f) => {
            parts.push(format!("{} {:3.0} %", bar(f, unicode), (f * 100.0).floor()));
            parts.push(format!("{} of {} operands", p.operands_done, p.operands_total));
        }
        None => parts.push("planning".to_string()),
    }
    if p.bytes_read > 0 {
        parts.push(format!("{} read", readable_bytes(p.bytes_read)));
    }
    match p.eta_s {
        Some(eta) if !cancelled => parts.push(format!("{} left", clock(eta))),
        _ => parts.push(clock(elapsed.as_secs_f64())),
    }
    if p.statements > 1 {
        parts.push(format!("statement {} of {}", p.statement, p.statements));
    }
    if p.bytes_spilled > 0 {
        parts.push(format!("{} spilled", readable_bytes(p.bytes_spilled)));
    }
    let mut out = String::new();
    for part in parts {
        let more = if out.is_empty() { part } else { format!("  {part}") };
        if out.chars().count() + more.chars().count() <= width {
            out.push_str(&more);
        }
    }
    out
}

/// A bar that is full at 1, in eighths of a character if the terminal shows Unicode.
fn bar(fraction: f64, unicode: bool) -> String {
    let eighths = (fraction.clamp(0.0, 1.0) * (BAR * 8) as f64) as usize;
    let (full, rest) = (eighths / 8, eighths % 8);
    if !unicode {
        return format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full));
    }
    let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][rest];
    let left = BAR - full - usize::from(rest > 0);
    format!("▕{}{part}{}▏", "█".repeat(full), " ".repeat(left))
}

/// `0:12`, `1:02:03`.
fn clock(seconds: f64) -> String {
    // Infinite and NaN are shown as very long.
    let s = if seconds.is_finite() { seconds.ceil().clamp(0.0, 3.6e6) as u64 } else { 3_600_000 };
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_engine::statement::StatementState;

    fn shown(
        done: u64,
        eta_s: Option<f64>,
        cancelled: bool,
        width: usize,
        unicode: bool,
    ) -> String {
        let p = Progress {
            state: StatementState::Running,
            statement: 2,
            statements: 3,
            operands_total: 2560,
            operands_done: done,
            operands: [0; 8],
            bytes_read: 3 << 30,
            bytes_spilled: 0,
            recomputed: 0,
            elapsed_s: 9.0,
            eta_s,
        };
        line(&p, Duration::from_secs(75), cancelled, width, unicode)
    }

    #[test]
    fn a_line_shows_progress_and_time() {
        insta::assert_snapshot!(shown(1203, Some(11.2), false, 120, true), @"▕███████████▎            ▏  46 %  1203 of 2560 operands  3.0 GiB read  0:12 left  statement 2 of 3");
        insta::assert_snapshot!(shown(2560, Some(0.0), false, 50, false), @"[########################] 100 %  3.0 GiB read");
        insta::assert_snapshot!(shown(1, None, true, 80, true), @"cancelling  3.0 GiB read  1:15  statement 2 of 3");
        for width in 0..120 {
            assert!(shown(7, Some(1e9), false, width, true).chars().count() <= width);
        }
        assert_eq!(
            (clock(0.0), clock(3723.0), clock(f64::INFINITY)),
            ("0:00".into(), "1:02:03".into(), "1000:00:00".into())
        );
    }

    #[test]
    fn a_short_statement_has_no_bar() {
        let mut out = Vec::new();
        let mut bar = Bar::new(Some(&mut out), || 80, true);
        bar.tick(&Handle::new());
        bar.started -= AFTER;
        bar.tick(&Handle::new());
        drop(bar);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "\rplanning  0:02\x1b[K\r\x1b[K");
    }
}
