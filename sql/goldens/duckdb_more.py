"""sql/cells/duckdb_more: further functions over rows that users of DuckDB type, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 'a1', 2.5::double, 3), (2, 'b22', 0.5::double, 2), (3, NULL, 2.5::double, 1), (4, 'A1', NULL, 4), (5, 'a1', -1.0::double, 5)) v(i, s, x, k)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/duckdb_more", "Further functions of DuckDB over rows. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def shown(v):
    if isinstance(v, list):
        return "[" + ", ".join("" if x is None else str(x) for x in v) + "]"
    return v


def same(sql):
    rows = con.execute(sql).fetchall()
    assert rows, sql
    f.rows(sql, [tuple(shown(v) for v in row) for row in rows])


f.note("Texts with values.")
same("SELECT i, format('{}: {:.2f}|{:05d}', s, x, k) AS a, printf('%-4s|%05d|%.1f', s, k, x) AS b, format('{1} {0:>4}', k, '2020-01-01'::date) AS c FROM t ORDER BY i")
f.error("SELECT format('{} {}', s) FROM t WHERE i = 1", ".*has no value 2")
f.error("SELECT printf('%d', x) FROM t WHERE i = 1", ".*does not take a float")

f.note("Matches of regular expressions, patterns with *.")
same("SELECT i, regexp_extract_all(s, '([a-z])([0-9])?', 1) AS a, regexp_split_to_array(s, '[0-9]') AS b, string_split_regex(s, 'A', 'i') AS c, regexp_extract_all(s, '2') AS d FROM t ORDER BY i")
f.error("SELECT regexp_extract_all(s, 'a', 1) FROM t WHERE i = 1", ".*the pattern has 0 groups")
same("SELECT i FROM t WHERE s GLOB 'a*' ORDER BY i")
same("SELECT i, s GLOB '[a-b][!1]?' AS a, s NOT GLOB '?1' AS b FROM t ORDER BY i")

f.note("Digits, types, days, texts of several values.")
same("SELECT i, hex(s) AS a, hex(k) AS b, to_hex(-i) AS c, bin(k) AS d, bin(s) AS e FROM t ORDER BY i")
same("SELECT typeof(x) AS a, typeof(s) AS b, typeof([x]) AS c, typeof(k::smallint) AS d, typeof('2020-01-01'::date) AS e, typeof(1.5::decimal(4, 2)) AS g FROM t WHERE i = 1")
same("SELECT i, weekday('2020-01-05'::date + i::int) AS w FROM t ORDER BY i")
same("SELECT concat(1, 'a') AS a, concat('a', NULL, 'b') AS b")
f.rows("SELECT 0x1F + i AS n FROM t WHERE i = 0x1", [(32,)])

f.note("Aggregates.")
same("SELECT product(k) AS a, skewness(i * i) AS b, kurtosis(i * i) AS c, kurtosis_pop(x) AS d FROM t")
same("SELECT s, product(x) AS a, max(i, 2) AS b, arg_min(k, x, 2) AS c, first(i ORDER BY k DESC) AS d, last(i ORDER BY k DESC) AS e FROM t GROUP BY s ORDER BY s NULLS LAST")
same("SELECT min(s, 2) AS a, max(x, 9) AS b, arg_max(s, k, 2) AS c, min_by(i, x, 2) FILTER (WHERE k > 1) AS d FROM t")
same("SELECT map_keys(histogram(s)) AS a, map_values(histogram(s)) AS b, map_values(histogram(x)) AS c FROM t")
same("SELECT product(k) AS a, skewness(k) AS b, max(k, 2) AS c, histogram(k) IS NULL AS d FROM t WHERE i > 9")
same("SELECT i, max(x, 2) OVER (ORDER BY i ROWS 1 PRECEDING) AS a, product(k) OVER (ORDER BY i) AS b, map_keys(histogram(k) OVER (ORDER BY i ROWS 1 PRECEDING)) AS c, arg_max(i, k, 2) OVER () AS d, skewness(k) OVER (ORDER BY i ROWS 2 PRECEDING) AS e FROM t ORDER BY i")
same("SELECT list_product([2, k]) AS a, list_skewness([1, 2, k * k * k]) AS b FROM t WHERE i = 1")
f.error("SELECT max(x, 0) FROM t", ".*n from 1 to 999999")
f.error("SELECT max(x, k) FROM t", ".*a constant n")

f.note("Samples.")
same("SELECT count(*) AS n FROM t TABLESAMPLE 100%")
same("SELECT count(*) AS n FROM t TABLESAMPLE reservoir(2)")
same("SELECT count(*) AS n FROM t TABLESAMPLE reservoir(2 ROWS) REPEATABLE (3)")
