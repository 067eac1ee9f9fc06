//! Statements that were right before some of their words were changed, and bytes that never were statements.

use super::Grammar;

impl Grammar<'_> {
    /// A statement of the golden scripts with some of its words changed.
    pub(super) fn spoilt(&mut self) -> String {
        let all = self.words;
        let mut words = tokens(self.pick::<String>(&all.right));
        let changes = if self.is_one_in(2) { 1 } else { self.draw(5) };
        for _ in 0..changes {
            if words.is_empty() {
                break;
            }
            let n = words.len() as u64;
            let (at, other) = (self.draw(n) as usize, self.draw(n) as usize);
            match self.draw(14) {
                0 => words.swap(at, other),
                1 => drop(words.remove(at)),
                2 => words.insert(at, words[other].clone()),
                3 => words[at] = self.word(),
                4 => words[at] = self.number(),
                5 => words[at] = self.text(),
                6 => words[at] = self.tensor(1),
                7 => words[at] = self.pick::<super::Function>(&all.functions).name.clone(),
                // Replaces a number: sizes are numbers.
                _ => {
                    let is_number = |i: &usize| words[*i].starts_with(|c: char| c.is_ascii_digit());
                    let numbers: Vec<usize> = (0..words.len()).filter(is_number).collect();
                    if !numbers.is_empty() {
                        let at = *self.pick::<usize>(&numbers);
                        words[at] = self.number();
                    }
                }
            }
        }
        words.concat()
    }

    /// A word of a right statement.
    fn word(&mut self) -> String {
        let all = self.words;
        let words = tokens(self.pick::<String>(&all.right));
        self.pick::<String>(&words).clone()
    }

    /// Bytes that may be no text at all.
    pub(super) fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = match self.draw(7) {
            0 => (0..self.draw(400)).map(|_| self.random.next() as u8).collect(),
            1 => {
                let (open, closed) = (self.long() as usize, self.draw(300) as usize);
                format!("SELECT {} 1 {}", "/*".repeat(open), "*/".repeat(closed)).into_bytes()
            }
            2 => format!("SELECT '{}", "x".repeat(self.draw(300) as usize)).into_bytes(),
            3 => format!("SELECT $$ {} $", "$x$".repeat(self.draw(100) as usize)).into_bytes(),
            4 => {
                let all: Vec<String> = (0..self.draw(200)).map(|_| self.word()).collect();
                all.join(" ").into_bytes()
            }
            5 => "\u{202e}SELECT\u{a0}1\u{2028};\0;\u{feff}".as_bytes().to_vec(),
            _ => self.cell_query(2).into_bytes(),
        };
        for _ in 0..self.draw(4) {
            if !bytes.is_empty() {
                let at = self.draw(bytes.len() as u64) as usize;
                bytes[at] = *self.pick(b"\xff\xc0\x80\xed\0'\"(;\\");
            }
        }
        bytes
    }
}

/// Words, numbers, texts, spaces and signs, one after another.
pub(super) fn tokens(sql: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut chars = sql.chars().peekable();
    while let Some(first) = chars.next() {
        let mut word = String::from(first);
        let goes_on: fn(char) -> bool = match first {
            '\'' => |c| c != '\'',
            c if c.is_alphanumeric() || c == '_' => |c| c.is_alphanumeric() || c == '_',
            c if c.is_whitespace() => char::is_whitespace,
            _ => |_| false,
        };
        while let Some(next) = chars.next_if(|c| goes_on(*c)) {
            word.push(next);
        }
        if first == '\'' {
            word.extend(chars.next());
        }
        out.push(word);
    }
    out
}
