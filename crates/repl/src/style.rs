//! The capabilities of the terminal.

use std::ffi::OsString;

/// Colours that the terminal supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Colours {
    /// None: not a terminal, a dumb one, or NO_COLOR.
    None,
    /// The 256 colours of xterm.
    Indexed,
    /// 24 bits.
    True,
}

/// The capabilities of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Its colours.
    pub colours: Colours,
    /// True if it shows characters beyond ASCII.
    pub unicode: bool,
}

impl Style {
    /// Plain text without colours.
    pub const PLAIN: Style = Style { colours: Colours::None, unicode: true };

    /// Detects the style from the environment; `terminal` is true if the output is a terminal.
    pub fn detect(terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> Style {
        let text =
            |name: &str| variable(name).and_then(|v| v.into_string().ok()).unwrap_or_default();
        let term = text("TERM");
        // https://no-color.org: present and not empty, whatever its value.
        let refused = variable("NO_COLOR").is_some_and(|v| !v.is_empty());
        let colours = if !terminal || refused || term == "dumb" || term.is_empty() {
            Colours::None
        } else if matches!(text("COLORTERM").as_str(), "truecolor" | "24bit")
            || term.ends_with("-direct")
        {
            Colours::True
        } else {
            Colours::Indexed
        };
        // The first of these that is set counts, as in setlocale(3).
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(text).into_iter().find(|v| !v.is_empty());
        let unicode = locale.is_none_or(|l| {
            let l = l.to_ascii_lowercase();
            l.contains("utf-8") || l.contains("utf8") || !matches!(l.as_str(), "c" | "posix")
        });
        Style { colours, unicode }
    }

    /// `text` in a colour, if colours are supported. `code` is the part of the escape sequence between `[` and `m`.
    pub fn paint(self, code: &str, text: &str) -> String {
        if self.colours == Colours::None || text.is_empty() {
            text.to_string()
        } else {
            format!("\x1b[{code}m{text}\x1b[0m")
        }
    }
}

/// Colours of the input; all are legible on dark and on light backgrounds.
pub mod code {
    /// Keywords.
    pub const KEYWORD: &str = "1;34";
    /// Functions.
    pub const FUNCTION: &str = "36";
    /// Texts.
    pub const TEXT: &str = "32";
    /// Numbers.
    pub const NUMBER: &str = "33";
    /// Comments, hints.
    pub const DIM: &str = "90";
    /// Brackets without a partner.
    pub const WRONG: &str = "1;31";
    /// The partner of the bracket at the cursor.
    pub const PARTNER: &str = "1;7";
    /// The prompt.
    pub const PROMPT: &str = "1;35";
    /// Errors.
    pub const ERROR: &str = "1;31";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_decides() {
        let style = |vars: &[(&str, &str)]| {
            Style::detect(true, |n| {
                vars.iter().find(|(k, _)| *k == n).map(|(_, v)| OsString::from(v))
            })
        };
        let xterm = ("TERM", "xterm-256color");
        assert_eq!(style(&[xterm]).colours, Colours::Indexed);
        assert_eq!(style(&[xterm, ("COLORTERM", "truecolor")]).colours, Colours::True);
        assert_eq!(style(&[xterm, ("NO_COLOR", "1")]).colours, Colours::None);
        assert_eq!(style(&[xterm, ("NO_COLOR", "")]).colours, Colours::Indexed);
        assert_eq!(style(&[("TERM", "dumb")]).colours, Colours::None);
        assert!(style(&[xterm, ("LANG", "de_DE.UTF-8")]).unicode && style(&[xterm]).unicode);
        assert!(!style(&[xterm, ("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]).unicode);
        assert_eq!(Style::detect(false, |_| None), Style::PLAIN);
    }
}
