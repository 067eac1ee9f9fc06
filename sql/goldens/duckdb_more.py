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
same("SELECT i, format('{:d}', NULL) AS a, printf('%s', s) AS b FROM t ORDER BY i")
f.error("SELECT format('{} {}', s) FROM t WHERE i = 1", "invalid_argument: .*has no value 2")
f.error("SELECT printf('%d', x) FROM t WHERE i = 1", "invalid_argument: `printf`: the format 'd' does not take a float")
f.error("SELECT format('{:d}', s) FROM t", "invalid_argument: `format`: the format 'd' does not take a text")
f.error("SELECT format('{', s) FROM t", "invalid_argument: `format`: the format '.' cannot be read")
f.error("SELECT printf('%d', [1]) FROM t", "type_error: argument 2 of `printf` must be a number or a text")

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
f.error("SELECT max(x, 0) FROM t", "plan_error: `max.x, n.` takes an n from 1 to 999999")
f.error("SELECT max(x, k) FROM t", "plan_error: `max.x, n.` takes a constant n")
f.error("SELECT max(k, x) FROM t", "type_error: `max.x, n.` takes an integer n, not")
f.error("SELECT s, arg_min(i, x, k) OVER (ORDER BY i) AS a FROM t", "plan_error: `arg_min.x, y, n.` takes a constant n")

f.note("The first and the last percentile: NaN is the greatest value.")
same("SELECT k % 2 AS g, quantile_cont(y, 0) AS a, CASE WHEN isnan(quantile_cont(y, 1)) THEN 1 ELSE 0 END AS b, quantile_cont(y, 0.5) AS c, quantile_cont(k, 1) AS d FROM (SELECT k, CASE WHEN k = 3 THEN 'nan'::double ELSE x END AS y FROM t) GROUP BY g ORDER BY g")
same("SELECT quantile_cont(y, 0) AS a, CASE WHEN isnan(quantile_cont(y, 1)) THEN 1 ELSE 0 END AS b, quantile_cont(k, 0) AS c FROM (SELECT k, CASE WHEN k = 3 THEN 'nan'::double ELSE x END AS y FROM t)")

f.note("Bits, prefixes of texts, types of structs, filters without WHERE.")
same("SELECT i, xor(i, k) AS a, xor(i, -3) AS b, bit_count(i) AS c, bit_count(255::utinyint) AS d, bit_count((i - 6)::smallint) AS e FROM t ORDER BY i")
same("SELECT i, s ^@ 'a' AS a, 'a1' ^@ s AS b, s || 'x' ^@ 'a1x' AS c FROM t WHERE NOT s ^@ 'b' OR s IS NULL ORDER BY i")
same("SELECT i, ({'a': i, 'b': k}::struct(a double, b text)).b || 'x' AS a, ({'b': i}::struct(a int, b bigint)).a AS b, (CAST({'a': k + 1} AS struct(a double))).a AS c FROM t ORDER BY i")
same("SELECT i, ({'a': [i, k], 'b': s}::struct(b text, a double[])).a[2] / 2 AS a, ({'a': [{'b': [[i]]}]}::struct(a struct(b bigint[][])[])).a[1].b[1][1] AS b FROM t ORDER BY i")
same("SELECT s, count(*) FILTER (k > 1) AS a, sum(i) FILTER (WHERE x > 0) AS b, max(k) FILTER (s = 'a1' OR x IS NULL) AS c FROM t GROUP BY s ORDER BY s NULLS LAST")
same("SELECT i, count(*) FILTER (k > 2) OVER (ORDER BY i) AS a FROM t ORDER BY i")
same("SELECT a, count(*) FILTER (a > 0) AS n FROM range(2) filter (a) GROUP BY a ORDER BY a")
same("SELECT filter.a, q.b FROM range(2) r JOIN range(2) filter(a) ON true, range(1) q(b) WHERE filter.a > 0")
same("SELECT max(filter) FILTER (filter < 5) AS a FROM (SELECT i AS filter FROM t) filter (filter)")
same("SELECT i, (CASE WHEN i > 4 THEN {'a': k} END::struct(a int, b text)).a AS a FROM t ORDER BY i")
f.error("SELECT {'a': i}::struct(b int) FROM t", "type_error: the struct has no field of the type: it has `a`, and the type `b`")
f.error("SELECT i::struct(b int) FROM t", "type_error: cannot convert int64 to struct")
f.error("SELECT {'a': i, 'b': k}::struct(a int, B int) FROM t", "type_error: the struct has the field `b`, and the type `B`")
f.error("SELECT {'a': {'c': i}}::struct(a struct(d int)) FROM t", "type_error: the struct has no field of the type: it has `c`, and the type `d`")
f.error("SELECT xor(s, 1) FROM t", "type_error: `xor` is not defined for text and int64")
f.error("SELECT bit_count(x) FROM t", "type_error: `bit_count` takes an integer, not")

f.note("Aliases of aggregates in HAVING that are names of columns.")
same("SELECT s, sum(k) AS k FROM t GROUP BY s HAVING k > 3 ORDER BY s NULLS LAST")
same("SELECT s, max(k) AS k, min(k) AS m FROM t GROUP BY s HAVING k > m OR sum(k) = 2 ORDER BY s")
same("SELECT s, -k AS k, count(*) AS i FROM t GROUP BY s, k HAVING k > 3 AND i = 1 ORDER BY s")
same("SELECT sum(x) AS x FROM t HAVING x > 1")
f.note("Keys keep their names, also in parentheses, by an alias, and with GROUP BY ALL.")
for keys, item in [("k", "k"), ("(s), (k)", "k"), ("j", "k AS j"), ("1", "k AS j"), ("ALL", "k"), ("ROLLUP (j)", "k AS j")]:
    same(f"SELECT {item}, count(*) AS k FROM t GROUP BY {keys} HAVING k > 3 ORDER BY ALL")
same("SELECT k % 2 AS j, count(*) AS k FROM t GROUP BY j HAVING k > 2")
same("SELECT k + 1 AS j, count(*) AS k FROM t GROUP BY ALL HAVING k = 1 ORDER BY ALL")

f.note("Samples.")
same("SELECT count(*) AS n FROM t TABLESAMPLE 100%")
same("SELECT count(*) AS n FROM t TABLESAMPLE reservoir(2)")
same("SELECT count(*) AS n FROM t TABLESAMPLE reservoir(2 ROWS) REPEATABLE (3)")
