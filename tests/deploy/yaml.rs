//! The part of YAML that the manifests of `deploy/` use: block and flow mappings and lists, scalars in one line,
//! comments, documents. Anything else panics, so that no manifest is read as something that it is not.

use serde_json::{Map, Value};

/// The documents of a text.
pub(super) fn documents(text: &str) -> Vec<Value> {
    text.split("\n---").map(document).collect()
}

fn document(text: &str) -> Value {
    let lines = text.lines().map(without_comment).filter(|line| !line.trim().is_empty());
    let lines: Vec<Line> = lines.map(Line::of).collect();
    let mut at = 0;
    let value = block(&lines, &mut at, 0);
    assert_eq!(at, lines.len(), "not read from {:?} on", lines.get(at));
    value
}

#[derive(Debug, Clone)]
struct Line {
    indent: usize,
    text: String,
}

impl Line {
    fn of(line: &str) -> Line {
        let text = line.trim_start_matches(' ');
        assert!(!text.starts_with('\t') && !text.starts_with(['&', '|', '>', '%', '!']), "{line}");
        Line { indent: line.len() - text.len(), text: text.trim_end().to_owned() }
    }
}

/// A comment begins with `#` at the start of a line or after a space, outside of quotes.
fn without_comment(line: &str) -> &str {
    let mut quoted = false;
    let mut before = ' ';
    for (i, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '#' if !quoted && before == ' ' => return &line[..i],
            _ => {}
        }
        before = c;
    }
    line
}

/// The mapping or list whose lines have an indent, from a line on.
fn block(lines: &[Line], at: &mut usize, indent: usize) -> Value {
    match lines[*at].text.starts_with("- ") {
        true => list(lines, at, indent),
        false => mapping(lines, at, indent),
    }
}

fn list(lines: &[Line], at: &mut usize, indent: usize) -> Value {
    let mut items = Vec::new();
    while let Some(line) = lines.get(*at).filter(|l| l.indent == indent) {
        let Some(item) = line.text.strip_prefix("- ") else { break };
        if key(item).is_some() && !item.starts_with(['{', '[', '"']) {
            // The first line of a mapping, whose others are indented as its key is.
            let mut inner = lines[*at..].to_vec();
            inner[0] = Line { indent: indent + 2, text: item.to_owned() };
            let mut read = 0;
            items.push(mapping(&inner, &mut read, indent + 2));
            *at += read;
        } else {
            items.push(scalar(item));
            *at += 1;
        }
    }
    Value::Array(items)
}

fn mapping(lines: &[Line], at: &mut usize, indent: usize) -> Value {
    let mut map = Map::new();
    while let Some(line) = lines.get(*at).filter(|l| l.indent == indent) {
        let Some((name, rest)) = key(&line.text) else { break };
        *at += 1;
        let value = match rest {
            "" => match lines.get(*at) {
                Some(next) if next.indent > indent => block(lines, at, next.indent),
                _ => Value::Null,
            },
            rest => scalar(rest),
        };
        assert!(map.insert(name.to_owned(), value).is_none(), "`{name}` twice");
    }
    Value::Object(map)
}

/// `key: rest`, or `key:` with an empty rest.
fn key(text: &str) -> Option<(&str, &str)> {
    match text.strip_suffix(':') {
        Some(name) if !name.contains(": ") => Some((name, "")),
        _ => text.split_once(": ").map(|(name, rest)| (name, rest.trim())),
    }
}

/// A scalar, or a flow mapping or list.
fn scalar(text: &str) -> Value {
    let mut rest = text;
    let value = flow(&mut rest, false);
    assert!(rest.trim().is_empty(), "`{rest}` after a value in `{text}`");
    value
}

fn flow(rest: &mut &str, inner: bool) -> Value {
    *rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix('"') {
        let (text, after) = after.split_once('"').unwrap();
        assert!(!text.contains('\\'), "{text}");
        *rest = after;
        return Value::from(text);
    }
    if let Some(after) = rest.strip_prefix('[') {
        *rest = after;
        let mut items = Vec::new();
        while !is_end(rest, ']') {
            items.push(flow(rest, true));
        }
        return Value::Array(items);
    }
    if let Some(after) = rest.strip_prefix('{') {
        *rest = after;
        let mut map = Map::new();
        while !is_end(rest, '}') {
            // `selfSigned: {}` has no key.
            let (name, after) = rest.trim_start().split_once(':').unwrap();
            *rest = after;
            map.insert(name.to_owned(), flow(rest, true));
        }
        return Value::Object(map);
    }
    // `${NAME:-18%}` and `$(NAME)` are plain.
    let ends: &[char] = if inner { &[',', ']', '}'] } else { &[] };
    let end = rest.find(ends).unwrap_or(rest.len());
    let (text, after) = rest.split_at(end);
    *rest = after;
    plain(text.trim())
}

/// Skips a comma; true at the end of a flow.
fn is_end(rest: &mut &str, end: char) -> bool {
    *rest = rest.trim_start().trim_start_matches(',').trim_start();
    match rest.strip_prefix(end) {
        Some(after) => {
            *rest = after;
            true
        }
        None => {
            assert!(!rest.is_empty(), "a flow without `{end}`");
            false
        }
    }
}

fn plain(text: &str) -> Value {
    match text {
        "true" => true.into(),
        "false" => false.into(),
        "null" | "~" => Value::Null,
        // An octal number, as Kubernetes reads it.
        mode if mode.len() > 1
            && mode.starts_with('0')
            && mode.bytes().all(|b| b.is_ascii_digit()) =>
        {
            u64::from_str_radix(mode, 8).unwrap().into()
        }
        text => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
    }
}

#[test]
fn the_part_of_yaml_is_read() {
    let text = "# a comment\na: 1 # one\nb:\n  c: [x, \"y: #\", 3]\n  d: {e: f, g: {h: 0440}, i: {}}\nl:\n  - m: n\n    o:\n      \
                - p\n      - \"*.q\"\n  - r\n  - {s: true}\nt: ${U:-18%}\nv:\n---\nw: a:b\n";
    let want = serde_json::json!([
        {"a": 1, "b": {"c": ["x", "y: #", 3], "d": {"e": "f", "g": {"h": 288}, "i": {}}},
         "l": [{"m": "n", "o": ["p", "*.q"]}, "r", {"s": true}], "t": "${U:-18%}", "v": null},
        {"w": "a:b"}
    ]);
    assert_eq!(Value::Array(documents(text)), want);
}
