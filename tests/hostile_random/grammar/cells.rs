//! Plain SQL over cells and tables.

use super::{Grammar, NAMES, STORES, TABLES, TYPES};

const BINARY: &str = "+ - * / + - * / = < = < % // ^ <> >= AND OR || LIKE << &";
/// Functions of rows, of groups and of windows.
const SCALARS: &str = "abs ceil round power exp ln log sqrt factorial gcd lcm trunc greatest coalesce nullif lpad rpad \
    repeat replace overlay substr split_part concat concat_ws chr ascii initcap reverse left right strpos translate \
    to_hex md5 sha256 encode decode regexp_replace regexp_like regexp_match string_to_array make_array array_repeat \
    array_resize array_append array_concat array_length array_element array_slice array_sort array_distinct list_sum \
    list_median list_unique list_string_agg list_last list_has_all string_split len \
    array_position array_to_string flatten range generate_series date_trunc date_bin date_part to_timestamp make_date \
    from_unixtime now struct arrow_cast levenshtein";
const GROUPED: &str = "count sum avg min max stddev var_pop median array_agg string_agg bool_and corr covar_samp \
    approx_distinct approx_percentile_cont bit_xor first_value last_value nth_value regr_slope grouping any";
const WINDOWED: &str =
    "row_number rank dense_rank ntile lag lead first_value nth_value sum avg max cume_dist";

impl Grammar<'_> {
    pub(super) fn one_of(&mut self, names: &'static str) -> &'static str {
        let names: Vec<&str> = names.split_whitespace().collect();
        self.pick::<&str>(&names)
    }

    /// A query of cells or rows.
    pub(super) fn cell_query(&mut self, depth: u64) -> String {
        let before = std::mem::take(&mut self.names);
        let mut sql = String::new();
        if depth > 1 && self.is_one_in(5) {
            let inner = self.cell_query(depth - 1);
            sql = format!("WITH w AS ({inner}), u AS (SELECT * FROM w) ");
        }
        let mut from = self.relation(depth, "a");
        while self.is_one_in(3) {
            let other = self.relation(depth, "b");
            from = match self.draw(7) {
                0 => format!("{from}, {other}"),
                1 => format!("{from} CROSS JOIN {other}"),
                2 => format!("{from} NATURAL JOIN {other}"),
                3 => format!("{from} JOIN {other} USING ({})", self.named()),
                _ => {
                    let kinds = ["", "LEFT ", "FULL ", "RIGHT ", "LEFT SEMI ", "LEFT ANTI "];
                    let kind = *self.pick(&kinds);
                    format!("{from} {kind}JOIN {other} ON {}", self.cell(1))
                }
            };
        }
        let is_grouped = self.is_one_in(3);
        let items: Vec<String> = (0..1 + self.draw(3))
            .map(|_| match (is_grouped, self.draw(5)) {
                (true, 0..4) => self.aggregate(),
                (_, 0) => "*".into(),
                (_, 1) => self.window(),
                _ => self.cell(depth),
            })
            .collect();
        let distinct = if self.is_one_in(8) { "DISTINCT " } else { "" };
        sql += &format!("SELECT {distinct}{} FROM {from}", items.join(", "));
        if self.is_one_in(2) {
            sql += &format!(" WHERE {}", self.cell(depth));
        }
        if is_grouped {
            let key = match self.draw(5) {
                0 => format!("ROLLUP ({}, {})", self.named(), self.named()),
                1 => format!("CUBE ({}, {}, {})", self.named(), self.named(), self.named()),
                2 => self.cell(1),
                _ => self.named(),
            };
            sql += &format!(" GROUP BY {key}");
            if self.is_one_in(3) {
                sql += &format!(" HAVING {} > {}", self.aggregate(), self.number());
            }
        }
        if depth > 1 && self.is_one_in(8) {
            let set = *self.pick(&["UNION ALL", "UNION", "EXCEPT", "INTERSECT ALL"]);
            sql += &format!(" {set} {}", self.cell_query(depth - 1));
        }
        if self.is_one_in(3) {
            sql += &format!(" ORDER BY {} DESC NULLS LAST", self.cell(1));
        }
        if self.is_one_in(2) {
            sql += &format!(" LIMIT {}", self.whole());
        }
        self.names = before;
        sql
    }

    /// Something in `FROM`, whose columns are known from then on.
    fn relation(&mut self, depth: u64, alias: &str) -> String {
        let named = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let (text, columns) = match self.draw(12) {
            0 | 1 => {
                let (at, variables, dims) = self.pick(&STORES);
                (format!("'{at}' {alias}"), named(&[*variables, *dims].concat()))
            }
            2 => (format!("{} {alias}", self.pick(&TABLES)), named(&["name", "lat0", "lon1"])),
            3 | 4 => (format!("CELLS({}) AS {alias}(i, x)", self.tensor(1)), named(&["i", "x"])),
            5 | 6 => {
                let inner = format!("arange({})", self.whole());
                (format!("(SELECT {inner} AS x) {alias}"), named(&["dim_0", "x"]))
            }
            7 => {
                let rows: Vec<String> = (0..1 + self.draw(4))
                    .map(|_| format!("({}, {})", self.number(), self.text()))
                    .collect();
                (format!("(VALUES {}) AS {alias}(n, s)", rows.join(", ")), named(&["n", "s"]))
            }
            8 if depth > 1 => {
                (format!("({}) AS {alias}", self.cell_query(depth - 1)), named(&["x", "i"]))
            }
            9 => {
                let (from, to, by) = (self.whole(), self.whole(), self.whole());
                let range = format!("generate_series({from}, {to}, {by})");
                let text = match self.draw(2) {
                    0 => format!("{range} AS {alias}(g)"),
                    _ => format!("(SELECT unnest({range}) AS g) {alias}"),
                };
                (text, named(&["g"]))
            }
            10 => ((*self.pick(&NAMES)).into(), named(&["x"])),
            _ => (format!("({}) AS {alias}", self.tensor_query(1)), named(&["i0", "dim_0"])),
        };
        for column in columns {
            let shown = if self.is_one_in(5) { format!("{alias}.{column}") } else { column };
            self.names.push(shown);
        }
        text
    }

    /// An expression of one row.
    pub(super) fn cell(&mut self, depth: u64) -> String {
        if depth == 0 {
            return match self.draw(6) {
                0 => self.number(),
                1 => self.text(),
                2 => "NULL".into(),
                _ => self.named(),
            };
        }
        let below = depth - 1;
        match self.draw(16) {
            0..4 => {
                let (a, b) = (self.cell(below), self.cell(below));
                format!("({a} {} {b})", self.one_of(BINARY))
            }
            4 => format!("CAST({} AS {})", self.cell(below), self.pick(&TYPES)),
            5 => format!("({})::{}", self.cell(below), self.pick(&TYPES)),
            6 => {
                let (c, a, b) = (self.cell(below), self.cell(below), self.cell(below));
                format!("CASE WHEN {c} THEN {a} ELSE {b} END")
            }
            7 => {
                let n = if self.is_one_in(8) { self.long() } else { 3 };
                let list: Vec<String> = (0..n).map(|_| self.number()).collect();
                format!("{} IN ({})", self.cell(below), list.join(", "))
            }
            8 => format!("{} BETWEEN {} AND {}", self.cell(below), self.number(), self.number()),
            9 if depth > 1 => {
                format!("(SELECT max({}) FROM (VALUES (1), (2)) AS v(n))", self.cell(below))
            }
            10 if depth > 1 => {
                let inner = self.cell_query(1);
                match self.draw(3) {
                    0 => format!("EXISTS ({inner})"),
                    1 => format!("{} IN ({inner})", self.named()),
                    _ => format!("({inner})"),
                }
            }
            11 => format!("{} IS NOT NULL", self.cell(below)),
            12 => {
                let part = *self.pick(&["year", "epoch", "doy", "nothing"]);
                format!("extract({part} FROM {})", self.cell(below))
            }
            13 => self.named(),
            _ => self.cell_call(below),
        }
    }

    /// A call of a function of SQL.
    pub(super) fn cell_call(&mut self, depth: u64) -> String {
        let name = self.one_of(SCALARS);
        let count = match self.draw(8) {
            0 => self.draw(6),
            _ => 1 + self.draw(3),
        };
        let args: Vec<String> = (0..count)
            .map(|_| match self.draw(5) {
                0 => self.whole(),
                1 => self.text(),
                _ => self.cell(depth.min(2)),
            })
            .collect();
        format!("{name}({})", args.join(", "))
    }

    fn aggregate(&mut self) -> String {
        let name = self.one_of(GROUPED);
        let inner = match self.draw(8) {
            0 => "*".into(),
            1 => format!("DISTINCT {}", self.cell(1)),
            2 => format!("{}, {}", self.cell(1), self.number()),
            3 => format!("{} ORDER BY {}", self.cell(1), self.named()),
            _ => self.cell(1),
        };
        match self.draw(8) {
            0 => format!("{name}({inner}) FILTER (WHERE {})", self.cell(1)),
            _ => format!("{name}({inner})"),
        }
    }

    fn window(&mut self) -> String {
        let name = self.one_of(WINDOWED);
        let args = match self.draw(3) {
            0 => String::new(),
            1 => format!("{}, {}", self.named(), self.whole()),
            _ => self.named(),
        };
        let frame = match self.draw(4) {
            0 => {
                let (a, b) = (self.whole(), self.whole());
                format!(" ROWS BETWEEN {a} PRECEDING AND {b} FOLLOWING")
            }
            1 => format!(" RANGE BETWEEN {} PRECEDING AND CURRENT ROW", self.number()),
            2 => " GROUPS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING".into(),
            _ => String::new(),
        };
        let (partition, order) = (self.named(), self.cell(1));
        format!("{name}({args}) OVER (PARTITION BY {partition} ORDER BY {order}{frame})")
    }
}
