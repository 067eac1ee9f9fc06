//! Composes cell queries from relations, expressions and clauses.

use rng::Rng;

mod rng;

/// The contents of a column.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Double,
    Float,
    Int,
    Bool,
    Time,
    Text,
}

/// A column in sight.
#[derive(Clone, Debug)]
struct Column {
    text: String,
    name: String,
    kind: Kind,
    /// The label of a dimension: only these are grouped by and joined on without fear of many rows.
    is_label: bool,
}

/// A relation of FROM and its columns.
#[derive(Debug)]
struct Relation {
    from: String,
    columns: Vec<Column>,
}

/// Composes one query.
pub(super) struct Composer {
    rng: Rng,
    aliases: usize,
}

type Base = (&'static str, &'static [(&'static str, Kind, bool)]);

const BASES: [Base; 5] = [
    (
        "air",
        &[
            ("time", Kind::Time, true),
            ("lat", Kind::Double, true),
            ("lon", Kind::Float, true),
            ("v", Kind::Double, false),
            ("f", Kind::Float, false),
            ("n", Kind::Int, false),
            ("k", Kind::Int, false),
            ("b", Kind::Bool, false),
            ("s", Kind::Int, false),
            ("o", Kind::Double, false),
        ],
    ),
    (
        "grid",
        &[
            ("y", Kind::Int, true),
            ("x", Kind::Int, true),
            ("v", Kind::Double, false),
            ("w", Kind::Double, false),
            ("m", Kind::Int, false),
            ("h", Kind::Int, false),
            ("z", Kind::Float, false),
        ],
    ),
    (
        "line",
        &[
            ("x", Kind::Int, true),
            ("e", Kind::Double, true),
            ("c", Kind::Double, false),
            ("a", Kind::Int, false),
            ("ie", Kind::Int, false),
        ],
    ),
    (
        "belt",
        &[
            ("lat", Kind::Double, true),
            ("z", Kind::Text, true),
            ("q", Kind::Double, false),
            ("g", Kind::Int, false),
        ],
    ),
    ("few", &[("dim_0", Kind::Int, true), ("e", Kind::Double, false), ("d", Kind::Int, false)]),
];

impl Composer {
    pub(super) fn new(seed: u64, at: u64) -> Self {
        Composer { rng: Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at), aliases: 0 }
    }

    pub(super) fn query(&mut self) -> String {
        let depth = self.rng.below(3);
        let relation = self.relation(depth);
        if self.rng.chance(45) {
            let (text, _) = self.grouped(&relation, 3);
            return text;
        }
        let (mut text, columns) = self.plain(&relation);
        if self.rng.chance(60) {
            // All columns, so that ties are equal rows.
            let mut keys: Vec<String> = columns.iter().map(|c| c.name.clone()).collect();
            self.rng.shuffle(&mut keys);
            let keys: Vec<String> = keys
                .into_iter()
                .map(|key| {
                    let way = self.rng.pick(&["", " DESC"]);
                    let nulls = self.rng.pick(&["FIRST", "LAST"]);
                    format!("{key}{way} NULLS {nulls}")
                })
                .collect();
            text = format!("{text} ORDER BY {}", keys.join(", "));
            if self.rng.chance(60) {
                text = format!("{text} LIMIT {}", 1 + self.rng.below(9));
            }
        }
        text
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("r{}", self.aliases)
    }

    fn relation(&mut self, depth: u64) -> Relation {
        if depth == 0 {
            return self.base();
        }
        match self.rng.below(10) {
            0 => self.base(),
            1 | 2 => {
                let inner = self.relation(depth - 1);
                let (text, columns) = self.plain(&inner);
                self.derived(text, columns)
            }
            3 | 4 => {
                let inner = self.relation(depth - 1);
                let (text, columns) = self.grouped(&inner, 2);
                self.derived(text, columns)
            }
            5 | 6 => {
                let inner = self.relation(depth - 1);
                let (text, columns) = self.windowed(&inner);
                self.derived(text, columns)
            }
            7 => self.set_operation(),
            _ => self.join(depth),
        }
    }

    fn base(&mut self) -> Relation {
        let at = *self.rng.pick(&[0, 0, 0, 1, 1, 2, 3, 4]);
        self.table(at)
    }

    fn table(&mut self, at: usize) -> Relation {
        let (name, columns) = BASES[at];
        let alias = self.alias();
        let columns = columns
            .iter()
            .map(|(name, kind, is_label)| Column {
                text: format!("{alias}.{name}"),
                name: (*name).to_string(),
                kind: *kind,
                is_label: *is_label,
            })
            .collect();
        Relation { from: format!("{name} {alias}"), columns }
    }

    fn derived(&mut self, text: String, columns: Vec<Column>) -> Relation {
        let alias = self.alias();
        let columns = columns
            .into_iter()
            .map(|c| Column { text: format!("{alias}.{}", c.name), ..c })
            .collect();
        Relation { from: format!("({text}) {alias}"), columns }
    }

    /// A join on a label that both sides have, or on values of small sides.
    fn join(&mut self, depth: u64) -> Relation {
        let kind = *self.rng.pick(&["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]);
        let (left, right) = match self.rng.below(4) {
            0 => (self.table(1), self.table(2)),
            1 => (self.table(0), self.table(3)),
            2 => (self.table(4), self.table(4)),
            _ => {
                let inner = self.relation(depth - 1);
                let (text, columns) = self.grouped(&inner, 2);
                let left = self.derived(text, columns);
                let other = self.relation(depth - 1);
                let (text, columns) = self.grouped(&other, 2);
                (left, self.derived(text, columns))
            }
        };
        let mut pairs = Vec::new();
        for l in &left.columns {
            for r in &right.columns {
                let is_key = (l.is_label && r.is_label)
                    || (left.columns.len() < 5 && right.columns.len() < 5);
                if l.kind == r.kind && is_key {
                    pairs.push((l.clone(), r.clone()));
                }
            }
        }
        if pairs.is_empty() {
            return left;
        }
        let (l, r) = self.rng.pick(&pairs).clone();
        let Relation { from, mut columns } = left;
        let shared = l.name == r.name && self.rng.chance(50);
        let condition = match shared {
            true => format!("USING ({})", l.name),
            false => format!("ON {} = {}", l.text, r.text),
        };
        let from = format!("{from} {kind} {} {condition}", right.from);
        columns.extend(right.columns);
        if shared {
            // The merged column, which only one pair can be.
            let name = l.name.clone();
            columns.push(Column { text: name.clone(), name, kind: l.kind, is_label: true });
        }
        Relation { from, columns }
    }

    fn set_operation(&mut self) -> Relation {
        let (a, b) = (self.base(), self.base());
        let op = *self.rng.pick(&["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]);
        let label = |relation: &Relation, rng: &mut Rng| {
            let ints: Vec<Column> =
                relation.columns.iter().filter(|c| c.kind == Kind::Int).cloned().collect();
            if ints.is_empty() { "1".to_string() } else { rng.pick(&ints).text.clone() }
        };
        let (x, i) = (self.double(&a, 1), label(&a, &mut self.rng));
        let (y, j) = (self.double(&b, 1), label(&b, &mut self.rng));
        let (p, q) = (self.filter(&a), self.filter(&b));
        let text = format!(
            "SELECT {x} AS s0, {i} AS s1 FROM {}{p} {op} SELECT {y} AS s0, {j} AS s1 FROM {}{q}",
            a.from, b.from
        );
        // Rows of a set have no order of their own.
        let text = format!("SELECT s0, s1 FROM ({text}) u ORDER BY s0 NULLS LAST, s1 NULLS LAST");
        let columns = vec![column("s0", Kind::Double), column("s1", Kind::Int)];
        self.derived(text, columns)
    }

    fn filter(&mut self, relation: &Relation) -> String {
        // Without a clause about cells a block would be one of tensors.
        if self.rng.chance(40) {
            return (*self.rng.pick(&[" WHERE true", " WHERE 1 < 2"])).to_string();
        }
        format!(" WHERE {}", self.condition(relation, 2))
    }

    /// Labels and values.
    fn plain(&mut self, relation: &Relation) -> (String, Vec<Column>) {
        let mut items: Vec<(String, Kind, bool)> = Vec::new();
        for c in relation.columns.iter().filter(|c| c.is_label) {
            if self.rng.chance(80) {
                items.push((c.text.clone(), c.kind, true));
            }
        }
        for _ in 0..1 + self.rng.below(3) {
            items.push(match self.rng.below(4) {
                0 => (self.int(relation, 2), Kind::Int, false),
                1 => (self.condition(relation, 1), Kind::Bool, false),
                _ => (self.double(relation, 2), Kind::Double, false),
            });
        }
        let (items, columns) = named(items);
        (format!("SELECT {items} FROM {}{}", relation.from, self.filter(relation)), columns)
    }

    fn grouped(&mut self, relation: &Relation, calls: u64) -> (String, Vec<Column>) {
        let mut keys: Vec<(String, Kind, bool)> = Vec::new();
        for _ in 0..self.rng.below(3) {
            keys.push(match self.rng.below(8) {
                0 => (self.double(relation, 1), Kind::Double, false),
                1 => (self.condition(relation, 1), Kind::Bool, false),
                2 => (self.int(relation, 1), Kind::Int, false),
                _ => self.label(relation),
            });
        }
        keys.dedup_by(|a, b| a.0 == b.0);
        if keys.len() == 2 && keys[0].0 == keys[1].0 {
            keys.pop();
        }
        // A literal would be the number of an item.
        keys.retain(|(text, ..)| text.contains(|c: char| c.is_alphabetic()));
        let by: Vec<String> = keys.iter().map(|(text, ..)| text.clone()).collect();
        let mut items = keys;
        for _ in 0..1 + self.rng.below(calls) {
            items.push(self.aggregate(relation));
        }
        let (items, columns) = named(items);
        let mut text = format!("SELECT {items} FROM {}{}", relation.from, self.filter(relation));
        if !by.is_empty() {
            text = format!("{text} GROUP BY {}", by.join(", "));
            if self.rng.chance(30) {
                let x = self.double(relation, 1);
                let y = self.number();
                let (call, op) = (self.rng.pick(&["avg", "sum", "max", "min"]), self.comparison());
                text = format!("{text} HAVING {call}({x}) {op} {y}");
            }
        }
        (text, columns)
    }

    fn label(&mut self, relation: &Relation) -> (String, Kind, bool) {
        let labels: Vec<Column> = relation.columns.iter().filter(|c| c.is_label).cloned().collect();
        if labels.is_empty() {
            return (self.int(relation, 0), Kind::Int, false);
        }
        let c = self.rng.pick(&labels).clone();
        match (c.kind, self.rng.below(4)) {
            (Kind::Time, 0) => (format!("date_part('month', {})", c.text), Kind::Int, true),
            (Kind::Int, 0) => (format!("{} % 3", c.text), Kind::Int, true),
            (Kind::Double, 0) => (format!("floor({} / 20.0)", c.text), Kind::Double, true),
            _ => (c.text, c.kind, true),
        }
    }

    fn aggregate(&mut self, relation: &Relation) -> (String, Kind, bool) {
        let filter = match self.rng.chance(20) {
            true => format!(" FILTER (WHERE {})", self.condition(relation, 1)),
            false => String::new(),
        };
        let x = self.double(relation, 2);
        let (text, kind) = match self.rng.below(12) {
            0 => ("count(*)".to_string(), Kind::Int),
            1 => (format!("count({x})"), Kind::Int),
            2 => (format!("count(DISTINCT {x})"), Kind::Int),
            3 => (format!("sum({})", self.int(relation, 1)), Kind::Int),
            4 => (format!("avg({x})"), Kind::Double),
            5 => (format!("bool_and({})", self.condition(relation, 1)), Kind::Bool),
            6 => (format!("bool_or({})", self.condition(relation, 1)), Kind::Bool),
            7 => (format!("min({})", self.int(relation, 1)), Kind::Int),
            8 | 9 => (format!("{}({x})", self.rng.pick(&["min", "max"])), Kind::Double),
            _ => (format!("sum({x})"), Kind::Double),
        };
        (format!("{text}{filter}"), kind, false)
    }

    fn windowed(&mut self, relation: &Relation) -> (String, Vec<Column>) {
        let labels: Vec<Column> = relation.columns.iter().filter(|c| c.is_label).cloned().collect();
        let mut items: Vec<(String, Kind, bool)> =
            labels.iter().map(|c| (c.text.clone(), c.kind, true)).collect();
        // An order of all labels, so that no two rows are peers but where the relation repeats labels.
        let mut keys: Vec<String> = labels.iter().map(|c| c.text.clone()).collect();
        self.rng.shuffle(&mut keys);
        for _ in 0..1 + self.rng.below(2) {
            let parts = self.rng.below(keys.len() as u64 + 1) as usize;
            let mut part: Vec<String> = keys[..parts].to_vec();
            if self.rng.chance(20) {
                part = vec![self.double(relation, 1)];
            }
            let mut order: Vec<String> = keys.clone();
            if self.rng.chance(60) && part.len() == parts {
                order = keys[parts..].to_vec();
            }
            let is_by_value = self.rng.chance(30);
            if is_by_value {
                let x = self.double(relation, 1);
                order.insert(0, format!("{x} NULLS LAST"));
            }
            let mut over = String::new();
            if !part.is_empty() {
                over = format!("PARTITION BY {} ", part.join(", "));
            }
            let x = self.double(relation, 1);
            let frame = match self.rng.below(5) {
                0 => " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
                1 => " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
                2 => " ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING",
                3 => " ROWS UNBOUNDED PRECEDING",
                _ => " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
            };
            let order = if order.is_empty() {
                String::new()
            } else {
                format!("ORDER BY {}", order.join(", "))
            };
            let framed = if order.is_empty() { "" } else { frame };
            let (call, kind) = match self.rng.below(8) {
                0 if !order.is_empty() => {
                    let f = self.rng.pick(&["rank", "row_number", "dense_rank"]);
                    (format!("{f}() OVER ({over}{order})"), Kind::Int)
                }
                1 if !order.is_empty() => {
                    let f = self.rng.pick(&["lag", "lead"]);
                    (format!("{f}({x}) OVER ({over}{order})"), Kind::Double)
                }
                2 if !order.is_empty() => {
                    let f = self.rng.pick(&["first_value", "last_value"]);
                    (format!("{f}({x}) OVER ({over}{order}{framed})"), Kind::Double)
                }
                3 => (format!("count({x}) OVER ({over}{order}{framed})"), Kind::Int),
                4 => (format!("avg({x}) OVER ({over}{order}{framed})"), Kind::Double),
                5 => (format!("sum({x}) OVER ({over}{order}{framed})"), Kind::Double),
                n => {
                    let f = if n == 6 { "min" } else { "max" };
                    (format!("{f}({x}) OVER ({over}{order}{framed})"), Kind::Double)
                }
            };
            items.push((call, kind, false));
        }
        let (items, columns) = named(items);
        (format!("SELECT {items} FROM {}{}", relation.from, self.filter(relation)), columns)
    }

    fn comparison(&mut self) -> &'static str {
        self.rng.pick::<&str>(&["=", "<>", "<", "<=", ">", ">="])
    }

    fn of(&mut self, relation: &Relation, kind: Kind) -> Option<String> {
        let some: Vec<&Column> = relation.columns.iter().filter(|c| c.kind == kind).collect();
        if some.is_empty() { None } else { Some(self.rng.pick(&some).text.clone()) }
    }

    fn number(&mut self) -> String {
        let numbers = [
            "0.0",
            "-0.0",
            "1.5",
            "-2.25",
            "'NaN'::double",
            "'inf'::double",
            "'-inf'::double",
            "0.25",
        ];
        (*self.rng.pick(&numbers)).to_string()
    }

    fn double(&mut self, relation: &Relation, depth: u64) -> String {
        if depth == 0 || self.rng.chance(25) {
            if let Some(text) = self.of(relation, Kind::Double)
                && self.rng.chance(85)
            {
                return text;
            }
            return match self.of(relation, Kind::Float) {
                Some(text) => format!("{text}::double"),
                None => format!("({} + {}::double)", self.number(), self.int(relation, 0)),
            };
        }
        let mut x = || self.double(relation, depth - 1);
        let (a, b) = (x(), x());
        match self.rng.below(15) {
            0 | 1 => format!("({a} + {b})"),
            2 | 3 => format!("({a} - {b})"),
            4 => format!("({a} * {})", self.rng.pick(&["0", "-1", "0.5", "2.0"])),
            5 => format!("(-{a})"),
            6 => format!("abs({a})"),
            7 => format!("greatest({a}, {b})"),
            8 => format!("least({a}, {b})"),
            9 => format!("nullif({a}, {})", self.number()),
            10 => format!("coalesce({a}, {b})"),
            11 => {
                format!("CASE WHEN {} THEN {a} ELSE {b} END", self.condition(relation, depth - 1))
            }
            12 => format!("CASE {a} WHEN {} THEN {b} WHEN 'NaN' THEN 0.5 END", self.number()),
            13 => format!("CAST({} AS DOUBLE)", self.int(relation, depth - 1)),
            _ => format!("({a} / {})", self.rng.pick(&["2.0", "-0.5", "4.0"])),
        }
    }

    fn int(&mut self, relation: &Relation, depth: u64) -> String {
        if depth == 0 || self.rng.chance(35) {
            return match self.of(relation, Kind::Int) {
                Some(text) => text,
                None => (*self.rng.pick(&["1", "2", "7"])).to_string(),
            };
        }
        let mut x = || self.int(relation, depth - 1);
        let (a, b) = (x(), x());
        match self.rng.below(6) {
            0 => format!("({a} + {b})"),
            1 => format!("({a} - {b})"),
            2 => format!("({a} % 4)"),
            3 => format!("coalesce({a}, {b})"),
            4 => format!("CASE WHEN {} THEN {a} ELSE {b} END", self.condition(relation, depth - 1)),
            _ => format!("nullif({a}, {})", self.rng.pick(&["0", "1", "2"])),
        }
    }

    fn condition(&mut self, relation: &Relation, depth: u64) -> String {
        if depth > 1 && self.rng.chance(50) {
            let (a, b) = (self.condition(relation, depth - 1), self.condition(relation, depth - 1));
            return match self.rng.below(5) {
                0 => format!("NOT ({a})"),
                1 => format!("(({a}) OR ({b}))"),
                2 => format!("(({a}) IS NOT TRUE)"),
                _ => format!("(({a}) AND ({b}))"),
            };
        }
        let x = self.double(relation, depth.min(1));
        match self.rng.below(14) {
            0 => format!("{x} IS {}NULL", self.rng.pick(&["", "NOT "])),
            1 => format!("{x} BETWEEN {} AND {}", self.number(), self.number()),
            2 | 3 => {
                let not = *self.rng.pick(&["", "NOT "]);
                let list = [
                    self.number(),
                    self.number(),
                    (*self.rng.pick(&["NULL", "1.5", "0"])).to_string(),
                ];
                format!("{x} {not}IN ({})", list.join(", "))
            }
            4 => {
                let y = self.double(relation, 0);
                format!("{x} IS {}DISTINCT FROM {y}", self.rng.pick(&["", "NOT "]))
            }
            5 => {
                let i = self.int(relation, 1);
                format!(
                    "{i} {}IN (0, 2, {})",
                    self.rng.pick(&["", "NOT "]),
                    self.rng.pick(&["NULL", "3"])
                )
            }
            6 => {
                let other = self.base();
                let y = self.double(&other, 1);
                let call = self.rng.pick(&["avg", "max", "min", "sum"]);
                format!("{x} {} (SELECT {call}({y}) FROM {})", self.comparison(), other.from)
            }
            7 => self.of(relation, Kind::Bool).unwrap_or_else(|| "true".to_string()),
            8 => match self.of(relation, Kind::Time) {
                Some(text) => format!("{text} {} '2020-01-02'", self.comparison()),
                None => format!("{} {} 2", self.int(relation, 1), self.comparison()),
            },
            9 => match self.of(relation, Kind::Float) {
                Some(text) => format!(
                    "{text} {} {}",
                    self.comparison(),
                    self.rng.pick(&["10.5", "0.1", "-0.0", "'NaN'"])
                ),
                None => format!("{} {} 3", self.int(relation, 0), self.comparison()),
            },
            10 => {
                let labels: Vec<Column> = relation
                    .columns
                    .iter()
                    .filter(|c| {
                        c.is_label && matches!(c.kind, Kind::Int | Kind::Double | Kind::Float)
                    })
                    .cloned()
                    .collect();
                if labels.is_empty() {
                    return format!("{x} > 0");
                }
                let label = self.rng.pick(&labels).text.clone();
                format!(
                    "{label} {} {}",
                    self.comparison(),
                    self.rng.pick(&["3", "10", "0.5", "47.5", "30"])
                )
            }
            11 => format!("{x} {} {}", self.comparison(), self.number()),
            _ => format!("{x} {} {}", self.comparison(), self.double(relation, 0)),
        }
    }
}

fn column(name: &str, kind: Kind) -> Column {
    Column { text: name.to_string(), name: name.to_string(), kind, is_label: false }
}

/// `a AS c0, b AS c1, …`, and the resulting columns.
fn named(items: Vec<(String, Kind, bool)>) -> (String, Vec<Column>) {
    let mut texts = Vec::new();
    let mut columns = Vec::new();
    for (i, (text, kind, is_label)) in items.into_iter().enumerate() {
        let name = format!("c{i}");
        texts.push(format!("{text} AS {name}"));
        columns.push(Column { is_label, ..column(&name, kind) });
    }
    (texts.join(", "), columns)
}
