//! The configuration as text: the file that `tessera config` prints.

use super::{Config, Setting};

impl Config {
    /// The text that `tessera config` prints: a TOML file of this configuration, with the origin of each value behind
    /// it. A token is not shown, so its line is a comment.
    pub fn describe(&self) -> String {
        let lines = |key: &str, list: &Option<Vec<String>>, shown: &str| match list {
            Some(list) => {
                let list: Vec<String> = list.iter().map(|t| toml_text(t)).collect();
                format!("{key} = [{}]", list.join(", "))
            }
            None => format!("# {key} {shown}"),
        };
        let line = |s: &Setting| match s.key {
            "token" => format!("# token {}", s.value),
            "allow-read" => lines("allow-read", &self.allow_read, &s.value),
            "allow-write" => lines("allow-write", &self.allow_write, &s.value),
            key => format!("{key} = {}", toml_text(&s.value)),
        };
        let left: Vec<String> = self.sources.iter().map(line).collect();
        let width = left.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for (l, s) in left.iter().zip(&self.sources) {
            out.push_str(&format!("{l:width$}  # {}\n", one_line(&s.origin)));
        }
        for name in &self.ignored {
            let name = one_line(name);
            out.push_str(&format!("# ignored: environment variable {name} is not a setting\n"));
        }
        out
    }
}

/// A text in TOML syntax.
fn toml_text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

/// A text that does not end its comment: TOML allows no control characters in comments.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
