//! Whole tensors: `SELECT expr, …` with NumPy's meaning.

use super::{Grammar, NAMES, STORES, TYPES};

const BINARY: &str = "+ - * / + - * / + - * // % ^ @ @ = <> < >= AND OR & | << >> # ||";
const UNARY: [&str; 5] = ["-", "+", "NOT ", "~", "- -"];
const REDUCED: [&str; 12] = [
    "sum", "mean", "std", "max", "argmin", "prod", "median", "cumsum", "sort", "unique", "any",
    "norm",
];

impl Grammar<'_> {
    /// A query of whole tensors.
    pub(super) fn tensor_query(&mut self, depth: u64) -> String {
        let before = std::mem::take(&mut self.names);
        let from = match self.draw(4) {
            0 => {
                let (at, variables, dims) = self.pick(&STORES);
                self.names = variables.iter().chain(*dims).map(|n| n.to_string()).collect();
                format!(" FROM '{at}'")
            }
            1 => {
                let inner = self.tensor(depth.saturating_sub(1));
                self.names = vec!["q".into()];
                format!(" FROM (SELECT {inner} AS q) AS s")
            }
            2 if self.is_one_in(3) => {
                let name = *self.pick(&NAMES);
                self.names = vec![name.into()];
                format!(" FROM {name}")
            }
            _ => String::new(),
        };
        let items: Vec<String> = (0..1 + self.draw(3))
            .map(|i| match self.draw(3) {
                0 => self.tensor(depth),
                _ => format!("{} AS i{i}", self.tensor(depth)),
            })
            .collect();
        self.names = before;
        format!("SELECT {}{from}", items.join(", "))
    }

    /// An expression of whole tensors.
    pub(super) fn tensor(&mut self, depth: u64) -> String {
        if depth == 0 {
            return self.small_tensor();
        }
        let below = depth - 1;
        match self.draw(16) {
            0 | 1 => self.small_tensor(),
            2..5 => {
                let (a, b) = (self.tensor(below), self.tensor(below));
                format!("({a} {} {b})", self.one_of(BINARY))
            }
            5 => format!("{}{}", self.pick(&UNARY), self.tensor(below)),
            6 => format!("({})::{}", self.tensor(below), self.pick(&TYPES)),
            7 | 8 => {
                let inner = self.tensor(below);
                format!("({inner}){}", self.subscript())
            }
            9 => {
                let (c, a, b) = (self.tensor(below), self.tensor(below), self.tensor(below));
                format!("CASE WHEN {c} THEN {a} ELSE {b} END")
            }
            10 => {
                let inner = self.tensor(below);
                let rest = match self.draw(4) {
                    0 => format!(", {}", self.whole()),
                    1 => format!(", axis => {}", self.text()),
                    2 => ", keepdims => true".into(),
                    _ => String::new(),
                };
                format!("{}({inner}{rest})", self.pick(&REDUCED))
            }
            11 => format!("(SELECT {})", self.tensor(below)),
            _ => self.call(below),
        }
    }

    /// Something small or, by its numbers, huge.
    fn small_tensor(&mut self) -> String {
        match self.draw(14) {
            0 => format!("arange({})", self.whole()),
            1 => format!("arange({}, {}, {})", self.whole(), self.whole(), self.whole()),
            2 => format!("zeros({})", self.shape()),
            3 => format!("full({}, {})", self.shape(), self.number()),
            4 => format!(
                "random_normal({}, seed => {}, chunks => {})",
                self.shape(),
                self.whole(),
                self.shape()
            ),
            5 => format!("linspace({}, {}, {})", self.number(), self.number(), self.whole()),
            6 => format!("eye({})", self.whole()),
            7 => format!("[{}, {}, NULL]", self.number(), self.number()),
            8 => format!("[[1, {}], [2, {}]]", self.number(), self.whole()),
            9 => match self.draw(4) {
                0 => self.text(),
                _ => "reshape(arange(24), [2, 3, 4])".into(),
            },
            10..13 => self.named(),
            _ => self.number(),
        }
    }

    fn subscript(&mut self) -> String {
        let axis = |g: &mut Self| match g.draw(9) {
            0 => g.whole(),
            1 => format!("{}:{}", g.whole(), g.whole()),
            2 => format!("{}:{}:{}", g.whole(), g.whole(), g.whole()),
            3 => "...".into(),
            4 => "NEWAXIS".into(),
            5 => format!("lat => {}:{}", g.number(), g.number()),
            6 => format!("time => {}", g.text()),
            7 => format!("[{}, {}]", g.whole(), g.whole()),
            _ => "::-1".into(),
        };
        let n = if self.is_one_in(20) { self.draw(80) } else { 1 + self.draw(3) };
        let axes: Vec<String> = (0..n).map(|_| axis(self)).collect();
        format!("[{}]", axes.join(", "))
    }

    /// A call of a function of `SHOW FUNCTIONS`, with about as many arguments as it takes.
    pub(super) fn call(&mut self, depth: u64) -> String {
        let words = self.words;
        let function = self.pick::<super::Function>(&words.functions);
        let takes = function.params.len() as u64;
        let count = match self.draw(6) {
            0 => self.draw(takes + 3),
            1 => takes,
            2 => 1,
            _ => takes.min(1 + self.draw(2)),
        };
        let mut args: Vec<String> = (0..count).map(|_| self.argument(depth)).collect();
        if self.is_one_in(3) && takes > 1 {
            let named = self.pick::<String>(&function.params);
            args.push(format!("{named} => {}", self.argument(depth)));
        }
        format!("{}({})", function.name, args.join(", "))
    }

    fn argument(&mut self, depth: u64) -> String {
        match self.draw(9) {
            0 => self.shape(),
            1 => self.text(),
            2 => self.number(),
            3 => self.whole(),
            4 => "true".into(),
            5 => "NULL".into(),
            _ => self.tensor(depth.min(1)),
        }
    }

    /// The example of a function with other numbers.
    fn example(&mut self) -> String {
        let words = self.words;
        let example = &self.pick::<super::Function>(&words.functions).example;
        let mut words = super::spoilt::tokens(example);
        for word in &mut words {
            if word.starts_with(|c: char| c.is_ascii_digit()) && self.is_one_in(2) {
                *word = self.number();
            }
        }
        words.concat()
    }

    /// A function called for its own sake.
    pub(super) fn call_alone(&mut self) -> String {
        match self.draw(6) {
            0 => format!("SELECT {} FROM (VALUES (1), (2)) AS v(a)", self.cell_call(1)),
            1 => format!("SELECT {} AS r", self.cell_call(1)),
            2 => format!("SELECT {} AS r", self.call(1)),
            _ => format!("SELECT {} AS r", self.example()),
        }
    }
}
