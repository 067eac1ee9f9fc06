//! Short statements, or long ones of one kind, that ask for far more than their size.

use super::{Grammar, STORES};
use std::fmt::Write;

impl Grammar<'_> {
    pub(super) fn blow_up(&mut self) -> String {
        match self.draw(11) {
            0 | 1 => self.huge(),
            2 => self.doubling(),
            3 => self.nested(),
            4 => self.list(),
            5 => self.chain(),
            6 => self.many_parts(),
            7 => self.pairs(),
            8 => self.recursive(),
            9 => self.grown_text(),
            _ => self.held_rows(),
        }
    }

    /// Shapes that no machine holds.
    fn huge(&mut self) -> String {
        const OF: [&str; 20] = [
            "SELECT zeros([$, $])",
            "SELECT sum(zeros([$, $]))",
            "SELECT sort(random_normal([$], seed => 1))",
            "SELECT median(random_uniform([$, $], seed => 1), 0)",
            "SELECT arange($) @ arange($)",
            "SELECT random_normal([$, $], seed => 1) @ random_normal([$, $], seed => 2)",
            "SELECT eye($) @ ones([$])",
            "SELECT svd(random_normal([$, 300], seed => 1)).s",
            "SELECT inv(eye($))",
            "SELECT unique(arange($))",
            "SELECT x FROM (SELECT arange($) AS x) ORDER BY x % 7, x DESC",
            "SELECT DISTINCT x % $ FROM (SELECT arange($) AS x)",
            "SELECT x, count(*) FROM (SELECT arange($) AS x) GROUP BY x",
            "SELECT array_agg(x) FROM (SELECT arange($) AS x)",
            "SELECT * FROM (SELECT arange($) AS x) LIMIT 3 OFFSET $",
            "SELECT sum(x) OVER (ORDER BY x % 3) FROM (SELECT arange($) AS x)",
            "SELECT einsum('i,j,k->ijk', arange($), arange($), arange($))",
            "SELECT rolling(arange($)::double, 'mean', dim_0 => $)",
            "SELECT reshape(arange($), [$, $])",
            "SELECT tile(arange(10), $), repeat(arange(10), $), pad(arange(3), $), histogram(arange(9), bins => $)",
        ];
        let sizes = "4000000000 1000000000 100000000 10000000 1000000 100000 3000 1000 9223372036854775807 0 -1 7";
        let sizes: Vec<&str> = sizes.split(' ').collect();
        let parts: Vec<&str> = self.pick(&OF).split('$').collect();
        let mut sql = parts[0].to_string();
        for part in &parts[1..] {
            sql += *self.pick::<&str>(&sizes);
            sql += part;
        }
        sql
    }

    /// Each step uses the one before twice.
    fn doubling(&mut self) -> String {
        const OF: [[&str; 3]; 9] = [
            [
                "SELECT 1 AS x",
                "SELECT (SELECT x FROM $) + (SELECT x FROM $) AS x",
                "SELECT x FROM $",
            ],
            [
                "SELECT 1 AS x",
                "SELECT l.x FROM $ l JOIN $ r ON l.x = r.x",
                "SELECT count(*) FROM $",
            ],
            ["SELECT 'ab' AS x", "SELECT x || x AS x FROM $", "SELECT length(x) FROM $"],
            ["SELECT arange(10) AS x", "SELECT x + x AS x FROM $", "SELECT sum(x) FROM $"],
            ["SELECT arange(10) AS x", "SELECT concat([x, x]) AS x FROM $", "SELECT sum(x) FROM $"],
            ["SELECT 1 AS x", "SELECT * FROM $ UNION ALL SELECT * FROM $", "SELECT sum(x) FROM $"],
            [
                "SELECT 1 AS x",
                "SELECT l.x FROM $ l, $ r WHERE l.x < r.x + 1",
                "SELECT count(*) FROM $",
            ],
            [
                "SELECT make_array(1) AS x FROM (VALUES (1)) v(n)",
                "SELECT make_array(x, x) AS x FROM $",
                "SELECT x FROM $",
            ],
            [
                "SELECT arange(4) AS x",
                "SELECT x FROM $ WHERE x IN (SELECT x FROM $)",
                "SELECT count(*) FROM $",
            ],
        ];
        let depth = 2 + self.draw(28);
        let [first, step, last] = *self.pick(&OF);
        let mut sql = format!("WITH a0 AS ({first})");
        for i in 1..depth {
            let step = step.replace('$', &format!("a{}", i - 1));
            write!(sql, ", a{i} AS ({step})").unwrap();
        }
        format!("{sql} {}", last.replace('$', &format!("a{}", depth - 1)))
    }

    /// Brackets in brackets.
    fn nested(&mut self) -> String {
        let n = self.long().min(3000) as usize;
        let (open, inner, close) = *self.pick(&[
            ("(", "1", ")"),
            ("[", "1", "]"),
            ("abs(", "x", ")"),
            ("-", "1", ""),
            ("NOT ", "true", ""),
            ("CASE WHEN true THEN ", "1", " END"),
            ("(SELECT ", "1", ")"),
            ("make_array(", "1", ")"),
            ("{'a': ", "1", "}"),
            ("/*", "x", "*/"),
            ("1 + (", "1", ")"),
            ("concat([", "arange(3)", "])"),
            ("CAST(", "1", " AS bigint)"),
            ("x IN (", "1", ")"),
        ]);
        let nest = format!("{}{inner}{}", open.repeat(n), close.repeat(n));
        match self.draw(4) {
            0 => format!("SELECT {nest} FROM CELLS(arange(3)) AS t(i, x)"),
            1 => format!("SELECT * FROM {}SELECT 1{}", "(".repeat(n), ") AS a".repeat(n)),
            2 => format!("SELECT 1 FROM (VALUES (1)) v(x) WHERE {nest} = 1"),
            _ => format!("SELECT {nest}"),
        }
    }

    /// One long list.
    fn list(&mut self) -> String {
        const CELLS: &str = "FROM CELLS(arange(9)) AS t(i, x)";
        let n = self.long();
        let items = |text: &dyn Fn(u64) -> String| (0..n).map(text).collect::<Vec<_>>().join(", ");
        let modulo = |i: u64| format!("x % {}", i + 1);
        match self.draw(9) {
            0 => format!("SELECT sum([{}])", items(&|i| format!("{i}.5"))),
            1 => format!("SELECT x {CELLS} WHERE x IN ({})", items(&|i| i.to_string())),
            2 => format!("SELECT {}", items(&|i| format!("{i} AS c{i}"))),
            3 => format!("SELECT {} {CELLS}", items(&|i| format!("x + {i}"))),
            4 => {
                let rows = items(&|i| format!("({i}, 'x{i}')"));
                format!("SELECT count(*) FROM (VALUES {rows}) AS v(a, b)")
            }
            5 => {
                let nulls = items(&|_| "NULL".into());
                format!("SELECT coalesce({nulls}) FROM (VALUES (1)) v(a)")
            }
            6 => format!("SELECT x, count(*) {CELLS} GROUP BY {}", items(&modulo)),
            7 => format!("SELECT x {CELLS} ORDER BY {}", items(&modulo)),
            _ => format!("SELECT {} FROM '{}'", items(&|i| format!("sum(t2m) + {i}")), STORES[0].0),
        }
    }

    /// One long chain of operators, of joins or of set operations.
    fn chain(&mut self) -> String {
        const CELLS: &str = "SELECT x FROM CELLS(arange(9)) AS t(i, x) WHERE";
        let n = self.long();
        let chain =
            |text: &dyn Fn(u64) -> String, by: &str| (0..n).map(text).collect::<Vec<_>>().join(by);
        match self.draw(8) {
            0 => format!("SELECT {}", chain(&|i| i.to_string(), " + ")),
            1 => format!("{CELLS} {}", chain(&|i| format!("x = {i}"), " OR ")),
            2 => format!("{CELLS} {}", chain(&|i| format!("x <> {i}"), " AND ")),
            3 => chain(&|i| format!("SELECT {i}"), " UNION ALL "),
            4 => chain(&|i| format!("SELECT {i}"), " EXCEPT "),
            5 => {
                let all = chain(&|i| format!("(VALUES (1)) v{i}(a{i})"), ", ");
                format!("SELECT count(*) FROM {all}")
            }
            6 => format!("SELECT {} FROM (VALUES ('x')) v(t)", chain(&|_| "t".into(), " || ")),
            _ => format!("SELECT {}", chain(&|_| "arange(5)".into(), " @ ")),
        }
    }

    /// Many of something: statements, tables, blocks, names.
    fn many_parts(&mut self) -> String {
        let n = self.long();
        match self.draw(6) {
            0 => "SELECT 1;".repeat(n as usize),
            1 => {
                let mut sql = "WITH a0 AS (SELECT arange(3) AS x)".to_string();
                for i in 1..n {
                    write!(sql, ", a{i} AS (SELECT x + 1 AS x FROM a{})", i - 1).unwrap();
                }
                format!("{sql} SELECT x FROM a{}", n - 1)
            }
            2 => format!("SELECT \"{}\" FROM CELLS(arange(3)) AS t(i, x)", "n".repeat(n as usize)),
            3 => format!("SELECT '{}' AS t FROM (VALUES (1)) v(a)", "'' ".repeat(n as usize)),
            4 => {
                let all = vec!["einsum('ij,jk->ik', eye(3), eye(3))"; n as usize];
                format!("SELECT {}", all.join(" + "))
            }
            _ => format!("SELECT 1 {}", "-- a comment\n".repeat(n as usize)),
        }
    }

    /// All rows with all rows.
    fn pairs(&mut self) -> String {
        let n = *self.pick(&["1000", "100000", "10000000", "4000000000"]);
        let sides = 2 + self.draw(4);
        let from: Vec<String> =
            (0..sides).map(|i| format!("(SELECT arange({n}) AS x{i}) s{i}")).collect();
        let condition = match self.draw(4) {
            0 => " WHERE sin(x0) > 2 + cos(x1)",
            1 => " WHERE x0 < x1",
            2 => " WHERE x0 = x1 + 1",
            _ => "",
        };
        let items =
            *self.pick(&["count(*)", "*", "sum(x0 * x1)", "max(x0 + x1)", "DISTINCT x0 + x1"]);
        format!("SELECT {items} FROM {}{condition}", from.join(", "))
    }

    fn recursive(&mut self) -> String {
        let step = *self.pick(&[
            "SELECT n + 1 FROM r",
            "SELECT n + 1 FROM r WHERE n < 1000000000",
            "SELECT a.n + b.n FROM r a, r b",
            "SELECT n || n FROM r",
        ]);
        let first = if step.contains("||") { "'x'" } else { "1" };
        let all = *self.pick(&["ALL ", ""]);
        format!("WITH RECURSIVE r(n) AS (SELECT {first} UNION {all}{step}) SELECT count(*) FROM r")
    }

    /// Texts and lists that functions make.
    fn grown_text(&mut self) -> String {
        const OF: [&str; 14] = [
            "SELECT lpad(t, $, 'y') FROM (VALUES ('x')) AS v(t)",
            "SELECT max(repeat('x', $ + x)) FROM CELLS(arange(4)) AS t(i, x)",
            "SELECT length(repeat(repeat('x', $), $)) FROM (VALUES (1)) v(a)",
            "SELECT array_length(array_repeat(array_repeat(1, $), $)) FROM (VALUES (1)) v(a)",
            "SELECT replace(repeat('x', $), 'x', repeat('y', $)) FROM (VALUES (1)) v(a)",
            "SELECT string_agg(repeat('x', $), ',') FROM CELLS(arange(1000)) AS t(i, x)",
            "SELECT array_agg(range($)) FROM CELLS(arange(1000)) AS t(i, x)",
            "SELECT unnest(range($)), unnest(range($))",
            "SELECT count(*) FROM (SELECT unnest(generate_series(0, $, 1)) AS g) s GROUP BY g",
            "SELECT t || t || t || t FROM (SELECT repeat('x', $) AS t FROM (VALUES (1)) v(a))",
            "SELECT regexp_replace(repeat('a', $), '(a*)*b', 'x') FROM (VALUES (1)) v(a)",
            "SELECT max(repeat('x', $)) OVER (ORDER BY x) FROM CELLS(arange(1000)) AS t(i, x)",
            "SELECT DISTINCT repeat('x', $) || x FROM CELLS(arange(10000)) AS t(i, x)",
            "SELECT levenshtein(repeat('a', $), repeat('b', $)) FROM (VALUES (1)) v(a)",
        ];
        let n = *self.pick(&[
            "10",
            "1000",
            "20000",
            "1000000",
            "20000000",
            "2147483647",
            "9223372036854775807",
            "-1",
        ]);
        self.pick(&OF).replace('$', n)
    }

    /// Rows that groups, sorts and joins hold.
    fn held_rows(&mut self) -> String {
        const OF: [&str; 9] = [
            "SELECT count(*) FROM (SELECT DISTINCT x FROM (SELECT arange($) AS x))",
            "SELECT count(*) FROM (SELECT x % 1000000 AS k, max(x) FROM (SELECT arange($) AS x) GROUP BY k) s",
            "SELECT count(*) FROM (SELECT arange($) AS x) a JOIN (SELECT arange($) AS y) b ON a.x % 100000 = b.y % 100000",
            "SELECT x FROM (SELECT random_normal([$], seed => 1) AS x) ORDER BY x LIMIT 1000000",
            "SELECT median(x) FROM (SELECT random_normal([$], seed => 1) AS x) WHERE x > 0",
            "SELECT count(DISTINCT sin(x)) FROM (SELECT arange($) AS x)",
            "SELECT x, row_number() OVER (PARTITION BY x % 10 ORDER BY sin(x)) FROM (SELECT arange($) AS x) LIMIT 5",
            "SELECT x FROM (SELECT arange($) AS x) UNION SELECT y + 1 FROM (SELECT arange($) AS y)",
            "SELECT avg(x) FROM (SELECT arange($) AS x) WHERE x IN (SELECT y * 2 FROM (SELECT arange($) AS y))",
        ];
        let sizes = ["10000", "300000", "3000000", "20000000", "1000000000"];
        let sizes = if self.words.heavy { &sizes[..] } else { &sizes[..2] };
        let n = *self.pick::<&str>(sizes);
        self.pick(&OF).replace('$', n)
    }
}
