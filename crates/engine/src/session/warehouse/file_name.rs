//! The file names of catalog entries.

use super::CATALOG;

/// The key of a name. It preserves the spelling, because names match without case only where that is unique. Characters
/// that a file name cannot have are escaped, as `%2F`.
pub(super) fn key(name: &str) -> String {
    let mut out = format!("{CATALOG}/");
    for c in name.chars() {
        match c {
            '/' | '\\' | '%' | '#' | '?' | '*' | '"' | '<' | '>' | '|' | '{' | '}' | '[' | ']'
            | '^' | '`' | '~' => out.push_str(&format!("%{:02X}", c as u32)),
            c if c.is_control() => {
                for b in c.to_string().bytes() {
                    out.push_str(&format!("%{b:02X}"));
                }
            }
            c => out.push(c),
        }
    }
    out + ".json"
}

/// The name of a file without its extension; `None` if the file name is not a valid escape.
pub(super) fn unescaped(file: &str) -> Option<String> {
    let mut out = Vec::with_capacity(file.len());
    let mut bytes = file.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut hex = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        out.push((hex()? * 16 + hex()?) as u8);
    }
    String::from_utf8(out).ok().filter(|n| !n.is_empty() && !n.starts_with('.'))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_become_files_and_come_back() {
        for name in ["x", "My Tensor", "a/b", "50%", "ünï", "a.b", "tab\tq\"q"] {
            let file = key(name);
            let file = file.strip_prefix("catalog/").unwrap();
            assert!(!file.contains('/'), "{file}");
            assert_eq!(unescaped(file.strip_suffix(".json").unwrap()).as_deref(), Some(name));
        }
        assert_eq!(unescaped(".x.0f.part"), None);
    }
}
