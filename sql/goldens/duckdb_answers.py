"""sql/cells/duckdb_answers: answers over rows that differed from DuckDB's, expected from DuckDB."""

import re
from datetime import datetime

import duckdb
import numpy as np

from .core import Script

con = duckdb.connect()
con.execute("SET threads = 1")
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 10, 1), (2, 20, 2), (3, NULL, 1), (4, 40, NULL), (5, 50, 0)) v(i, x, n)",
    "CREATE VIEW d AS SELECT * FROM (VALUES (1, timestamp '2024-05-06 07:08:09'), (2, timestamp '2000-12-31 23:59:59'), (3, timestamp '2001-01-01 00:00:00'), (4, NULL), (5, timestamp '1969-07-20 20:17:40')) v(i, t)",
    "CREATE VIEW st AS SELECT * FROM (VALUES (1, {'a': 1, 'b': 'x'}), (2, {'a': 2, 'b': NULL}), (3, NULL)) v(i, s)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/duckdb_answers", "Answers over rows that users of DuckDB expect. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def shown(v):
    return np.datetime64(v, "us") if isinstance(v, datetime) else v


def same(sql, duck=None):
    duck = re.sub(r"\((\w+(?:, \w+)+)\) -> ", r"lambda \1: ", duck or sql)
    rows = con.execute(duck.replace(") IGNORE NULLS", " IGNORE NULLS)")).fetchall()
    assert rows, sql
    f.rows(sql, [tuple(shown(v) for v in row) for row in rows])


f.note("Frames without rows.")
same("SELECT count(*) OVER (ROWS BETWEEN 1 PRECEDING AND 3 PRECEDING) AS a, sum(x) OVER (ROWS BETWEEN 3 FOLLOWING AND 1 FOLLOWING) AS b, first_value(x) OVER (ROWS BETWEEN 1 PRECEDING AND 3 PRECEDING) AS c, count(x) OVER (PARTITION BY n ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING) AS e FROM t")
same("SELECT i, sum(x) OVER (ORDER BY date '2020-01-01' + i * INTERVAL '1 day' RANGE BETWEEN INTERVAL '1 day -1 hour' PRECEDING AND CURRENT ROW) AS s FROM t ORDER BY i")

f.note("Length is of texts and of lists.")
same("SELECT length('añb') AS a, len('añb') AS b, char_length('añb') AS c, length([1, NULL, 3]) AS d, len([]) AS e, length(NULL::text) AS g, list_max([1, 3, 2]) AS h FROM t WHERE i = 1")

f.note("Lists, structs and maps as texts.")
for value in (
    "[1, NULL, 3]", "[NULL]", "[]::int[]", "NULL::int[]", "[[1, NULL], NULL, []]", "[true, false, NULL]", "[1.5::double, 2.0::double, NULL]",
    "['a', 'b c', NULL, 'd,e', '', ' x', 'x ', 'NULL', 'nul', 'q''t', '[z]', '\"a\"', 'a\\b', 'a=b', '{x}', 'a:b', '(p)', 'a;b']",
    "[date '2020-01-01', NULL]", "[time '10:00:00']",
    "{'a': 1, 'b': NULL, 'c d': 'x y'}", "{'a': 'it''s, x', 'B': 'null'}", "{'l': ['x y', 'a,b'], 's': {'q': NULL}}", "[{'a': 1}, NULL]",
    "map(['a', 'b'], [1, NULL])", "map([1], [[1, NULL]])", "map(['k k', ''], ['v=v', ' '])",
):
    same(f"SELECT '<' || coalesce(({value})::varchar, 'none') || '>' AS c FROM t WHERE i = 1")
same("SELECT i, s::text AS a, [i, NULL]::text AS b, length([i, NULL]::text) AS n, TRY_CAST([i] AS varchar) AS c FROM st ORDER BY i")
same("SELECT [i, NULL]::text AS k, count(*) AS n FROM (SELECT i % 2 AS i FROM range(1000) r(i)) q GROUP BY k ORDER BY k")

f.note("Numbers of rows that differ from row to row.")
same("SELECT i, lag(x, n) OVER (ORDER BY i) AS a, lead(x, n) OVER (ORDER BY i) AS b, lag(x, n, -1) OVER (ORDER BY i) AS c, lead(x, n, i) OVER (ORDER BY i) AS d, lag(x, 1, i) OVER (ORDER BY i) AS e, lag(x, -n) OVER (ORDER BY i DESC) AS g FROM t ORDER BY i")
same("SELECT i, lag(x, n) IGNORE NULLS OVER (ORDER BY i) AS a, lead(x, n) IGNORE NULLS OVER (ORDER BY i) AS b, lag(x, -n) IGNORE NULLS OVER (ORDER BY i) AS c FROM t ORDER BY i")
same("SELECT i, ntile(i) OVER (ORDER BY i) AS a, ntile(CASE WHEN n > 0 THEN n END) OVER (ORDER BY i) AS b, ntile(2) OVER (ORDER BY i) AS c FROM t ORDER BY i")
same("SELECT i, nth_value(x, i) OVER (ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS a, nth_value(x, n - 1) OVER (ORDER BY i) AS b, nth_value(x, n) IGNORE NULLS OVER (ORDER BY i DESC) AS c, nth_value(x, n) OVER (ORDER BY i ROWS 1 PRECEDING) AS d FROM t ORDER BY i")
same("SELECT sum(a * (i % 100)) AS a, sum(b) AS b, sum(c) AS c FROM (SELECT i, lag(i, i % 13 - 6) OVER (PARTITION BY i % 7 ORDER BY i) AS a, ntile(i % 11 + 1) OVER (PARTITION BY i % 7 ORDER BY i DESC) AS b, nth_value(i, i % 5 + 1) OVER (PARTITION BY i % 7 ORDER BY i ROWS 3 PRECEDING) AS c FROM range(20000) r(i)) q")
same("SELECT i, nth_value(x, -1) OVER (ORDER BY i) AS a, nth_value(x, 0) OVER (ORDER BY i) AS b, nth_value(x, NULL) OVER (ORDER BY i) AS c, ntile(NULL) OVER (ORDER BY i) AS d, lag(x, NULL) OVER (ORDER BY i) AS e, lead(x, NULL, 7) OVER (ORDER BY i) AS g, nth_value(x, -1) OVER (ORDER BY i ROWS 2 PRECEDING EXCLUDE CURRENT ROW) AS h FROM t ORDER BY i")
same("SELECT i, lag(x, -1) OVER w AS a, lead(x, -1) OVER w AS b FROM t WINDOW w AS (ORDER BY i ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) ORDER BY i LIMIT 3")
f.error("SELECT ntile(n) OVER (ORDER BY i) FROM t", ".*argument 1 of `ntile` must be positive, and is 0")
f.error("SELECT lag(x, n::double) OVER (ORDER BY i) FROM t", ".*argument 2 of `lag` must be an integer, not")

f.note("Statistics of one pair, and of equal values.")
PAIRS = "(VALUES (1, 1.0::double, 2.0::double), (2, 1.0, 3.0), (2, 3.0, 4.0), (3, 1.0, 2.0), (3, 1.0, 3.0), (4, 1.0, 2.0), (4, 2.0, 2.0), (5, 1.0, NULL), (6, 'nan'::double, 1.0), (6, 1.0, 2.0), (7, 1.0, 'nan'::double), (7, 2.0, 1.0)) p(g, x, y)"
CALLS = ", ".join(f"{name}(y, x) AS {name}" for name in ("corr", "regr_slope", "regr_intercept", "regr_r2", "covar_pop", "covar_samp", "regr_count"))
same(f"SELECT g, {CALLS} FROM {PAIRS} GROUP BY g ORDER BY g")
for g in (1, 3, 4, 5, 8):
    same(f"SELECT {CALLS} FROM {PAIRS} WHERE g = {g}")
same(f"SELECT g, corr(y, x) OVER (ORDER BY g) AS a, regr_slope(y, x) OVER (ORDER BY g) AS b, regr_intercept(y, x) OVER (ORDER BY g) AS c, regr_r2(y, x) OVER (ORDER BY g) AS d FROM {PAIRS} WHERE g < 3 ORDER BY g")

for pair in ("(1.0::double, 'nan'::double)", "('inf'::double, 1.0::double)", "(1.0::double, 'nan'::double), (1.0, 2.0)"):
    same(f"SELECT corr(y, x) AS a, regr_slope(y, x) AS b, regr_intercept(y, x) AS c, regr_r2(y, x) AS d FROM (VALUES {pair}) p(y, x)")

f.note("NULL is in no list.")
same("SELECT i, list_value(x)::text AS l, list_contains(flatten([[x], [2, NULL]]), NULL) AS a, list_contains(flatten([[x], [20, NULL]]), x) AS b FROM t ORDER BY i")

f.note("Dates and differences of timestamps.")
same("SELECT date '2020-01-01' + (timestamp '2020-01-05 12:00:00' - timestamp '2020-01-01') AS a, date '2020-01-01' - (timestamp '2020-01-05 12:00:00' - timestamp '2020-01-01') AS b FROM t WHERE i = 1")
same("SELECT i, date '2020-01-01' + (t - timestamp '1999-12-31 12:00:00') AS a, (t - timestamp '1999-12-31 12:00:00') + date '2020-01-01' AS b FROM d ORDER BY i")

f.note("Decades, centuries and millennia.")
for part in ("decade", "century"):
    same(f"SELECT i, date_trunc('{part}', t) AS a, date_trunc('{part}', t::date) AS b FROM d ORDER BY i")
same("SELECT i, date_trunc('millennium', t) AS a FROM d WHERE i <> 2 AND i <> 5 ORDER BY i")
for part in ("decade", "century", "millennium"):
    same(f"SELECT i, extract({part} FROM t) AS a, {part}(t::date) AS b, date_part('{part}', t) AS c, date_part('{part}', INTERVAL '2510 years') AS e FROM d ORDER BY i")

f.note("Dates with slashes.")
same("SELECT '2020/01/02'::date AS a, '2020/1/2'::date AS b, '2020/01/02 03:04:05'::timestamp AS c, date '2020/01/02' AS d, '2020-01-05 10:30'::date AS e FROM t WHERE i = 1")
same("SELECT x, TRY_CAST(x AS date) AS a, TRY_CAST(x AS timestamp) AS b FROM (VALUES ('2020/01/02'), ('2020/01-02'), ('2020/13/02'), (NULL)) v(x) ORDER BY x")

f.note("Columns of structs.")
same("SELECT i, unnest(s) FROM st ORDER BY i")
same("SELECT q.b, q.a + 1 AS c FROM (SELECT unnest(s) FROM st) q ORDER BY q.a")
same("SELECT unnest({'a': 1, 'b': 'x'}) FROM t WHERE i = 1")

f.note("Lambdas of elements and their numbers.")
same("SELECT i, list_transform([x, n, i], (e, k) -> e * 10 + k)::text AS a, list_filter([x, n, i], (e, k) -> k > 1 AND e > 0)::text AS b, list_transform([x, n], (e, k) -> k + i)::text AS c FROM t ORDER BY i")
same("SELECT list_transform([[1, 2], [3]], (l, i) -> list_sum(l) + i)::text AS a, list_transform(NULL::int[], (x, i) -> x + i)::text AS b, list_filter(['a', 'b', 'c'], (s, i) -> i % 2 = 1)::text AS c, list_transform([]::int[], (x, i) -> i)::text AS d, list_transform([[1, 2], [3]], (x, i) -> list_transform(x, (x, j) -> x * i + j))::text AS e FROM t WHERE i = 1")
same("SELECT sum(list_sum(list_transform(range(i % 10), (x, k) -> x * k))) AS s FROM range(10000) r(i)")

f.note("Maps of entries, and of several maps.")
same("SELECT map_concat(map(['a', 'b'], [1, 2]), map(['b', 'c'], [3, 4]))::text AS a, map_concat(map(['a'], [1]), NULL)::text AS b, map_concat(map(['a'], [1]), map(['b'], [2]), map(['a'], [5]))::text AS c, map_concat(map(['a'], [1]), map(['a'], [CASE WHEN false THEN 1 END]))::text AS d FROM t WHERE i = 1")
same("SELECT i, map_concat(map([i], [x]), map([2, 7], [n, i]))::text AS a, map_concat(CASE WHEN i > 2 THEN map([i], [x]) END, CASE WHEN i < 4 THEN map([3], [i]) END)::text AS b FROM t ORDER BY i")
same("SELECT i, map_from_entries([{'k': i, 'v': x}, {'k': i + 1, 'v': n}])::text AS a, map_from_entries(CASE WHEN i > 2 THEN map_entries(map([i], [x])) END)::text AS b FROM t ORDER BY i")
f.error("SELECT map_from_entries([{'k': i, 'v': x}, {'k': 1, 'v': n}]) FROM t", ".*`map_from_entries`: a key occurs twice in a list")
f.error("SELECT map_from_entries([{'k': n, 'v': x}]) FROM t", ".*`map_from_entries`: the key of an entry is NULL")
f.error("SELECT map_from_entries([i]) FROM t", "type_error: `map_from_entries` takes a list of structs with two fields")
f.error("SELECT map_concat(map([i], [x])) FROM t", "type_error: `map_concat` takes two or more maps")

f.note("Structs with more fields.")
same("SELECT i, struct_insert(s, c := i + 1, d := 'y')::text AS a, struct_extract(struct_insert(s, c := i), 'c') AS b FROM st ORDER BY i")
f.error("SELECT struct_insert(s, a := 2) FROM st", ".*`struct_insert`: two fields are called `a`")
f.error("SELECT struct_insert(i, a := 2) FROM st", "type_error: `struct_insert` takes a struct")

f.note("Elements combined.")
same("SELECT i, list_reduce([i, x, n], (a, b) -> coalesce(a, 0) + coalesce(b, 0)) AS a, list_reduce([i, x, n], (a, b) -> a + b) AS b, list_reduce([i, 1], (a, b) -> a * 10 + b, 7) AS c, list_reduce([i, 2, 3], (a, b, k) -> a + b * k) AS d, list_reduce([i, n], (a, b) -> a + b + i, 1) AS e FROM t ORDER BY i")
same("SELECT list_reduce(['a', 'b', 'c'], (s, t) -> s || t) AS a, list_reduce([1, 2], (a, b) -> a + b, NULL) AS b, list_reduce(NULL::int[], (a, b) -> a + b) AS c, list_reduce([]::int[], (a, b) -> a + b, 5) AS d, list_reduce([4], (a, b) -> a - b) AS e, list_reduce([1, 2, 3], (a, b, k) -> a * 10 + k, 7) AS g, list_reduce([[1], [2, 3]], (a, b) -> list_concat(a, b))::text AS h FROM t WHERE i = 1")
same("SELECT sum(list_reduce(range(i % 7 + 1), (a, b) -> (a * 3 + b) % 1000)) AS s, sum(list_reduce(range(i % 5), (a, b) -> a + b, i)) AS r FROM range(20000) r(i)")
same("SELECT i, list_reduce([i::decimal(9,2), 2.25::decimal(9,2), x::decimal(9,2)], (a, b) -> a + b)::double AS a, list_reduce([i::decimal(9,2), 0.5::decimal(9,2)], (a, b) -> a + b, 0)::double AS b, list_reduce([i::decimal(9,2), 2.25::decimal(9,2)], (a, b) -> b)::double AS c, list_reduce([i::decimal(9,2), 2.25::decimal(9,2), 0.5::decimal(9,2)], (a, b) -> (a * b)::double) AS d FROM t ORDER BY i")
f.error("SELECT list_reduce(list_filter([i], e -> e > 3), (a, b) -> a + b) FROM t", ".*a list is empty; give a first value")
f.error("SELECT list_reduce([i::decimal(9,2), 2.25::decimal(9,2)], (a, b) -> a * b) FROM t", ".*`list_reduce` of decimals: the lambda takes .* and returns ")
f.error("SELECT list_reduce(i, (a, b) -> a + b) FROM t", ".*`list_reduce` takes a list, not int64")

f.note("Frames of RANGE that end before they begin.")
same("SELECT i, sum(x) OVER (ORDER BY i RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING) AS a, count(*) OVER (ORDER BY i RANGE BETWEEN 2 FOLLOWING AND 1 FOLLOWING) AS b, first_value(i) OVER (ORDER BY n RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING) AS c, count(*) FILTER (WHERE i > 2) OVER (ORDER BY n DESC RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING) AS d, row_number() OVER (ORDER BY i RANGE BETWEEN 1 PRECEDING AND 2 PRECEDING) AS e FROM t ORDER BY i")
same("SELECT i, count(*) OVER (ORDER BY t RANGE BETWEEN INTERVAL '1 day' PRECEDING AND INTERVAL '25 hours' PRECEDING) AS a, sum(i) OVER (ORDER BY t RANGE BETWEEN INTERVAL '1 month' FOLLOWING AND INTERVAL '27 days' FOLLOWING) AS b FROM d ORDER BY i")

f.note("An order and IGNORE NULLS inside of a call.")
same("SELECT i, first_value(x ORDER BY n, i IGNORE NULLS) OVER () AS a, first_value(x ORDER BY i DESC IGNORE NULLS) OVER (ORDER BY i) AS b, last_value(x ORDER BY i IGNORE NULLS) OVER (ORDER BY i) AS c, last_value(x IGNORE NULLS) OVER (ORDER BY i) AS d FROM t ORDER BY i")
same("SELECT sum(a * (i % 10)) AS s FROM (SELECT i, nth_value(CASE WHEN i % 3 > 0 THEN i END, i % 50 + 1) IGNORE NULLS OVER (PARTITION BY i % 2 ORDER BY i) AS a FROM range(20000) r(i)) q")

f.note("A map of no entries.")
same("SELECT map_from_entries([])::text AS a, map_from_entries(NULL) IS NULL AS b FROM t WHERE i = 1")
f.error("SELECT map_from_entries([NULL]) FROM t", ".*`map_from_entries`: the key of an entry is NULL")

f.note("Other names.")
same("SELECT count_if(x > 15) AS a, countif(n = 1) FILTER (WHERE i > 1) AS b FROM t")
same("SELECT i, count_if(x > 15) OVER (ORDER BY i) AS a, if(x > 15, 'y', 'n') AS b, prefix('abc', 'ab') AS c, suffix('abc', 'bc') AS d, unicode('é') AS e, ord('a') AS g FROM t ORDER BY i")

same("SELECT group_concat(i ORDER BY i) AS a, listagg(i, '-' ORDER BY i DESC) AS b, string_agg(i::text ORDER BY i) FILTER (WHERE i > 3) AS c, approx_count_distinct(n) AS d, approx_quantile(i * 0 + 7.0::double, 0.5) AS e FROM t")
same("SELECT regexp_full_match('abc', 'a|abc') AS a, regexp_full_match('abc', 'ab') AS b, lcase('A') AS c, ucase('a') AS d, dayofmonth(date '2024-03-03') AS g FROM t WHERE i = 1")
same("SELECT i, struct_pack(a := i, b := {'c': x}).b.c AS a, (s).b AS b FROM t JOIN st USING (i) ORDER BY i")
same("SELECT grouping_id(n) AS g, count(*) AS c FROM t GROUP BY CUBE (n) ORDER BY ALL")
same("SELECT repeat('ab', 2) AS a, upper('b') AS b, concat('a', 'b', 'c') AS c")
same("SELECT map(['a'], [1])['a'] AS a, map_from_entries([])::text AS b, cardinality(map(['a'], [1])) AS c")

f.note("Fields of elements of a LATERAL subquery.")
LISTS = "(SELECT i, [s, {'a': i, 'b': 'z'}] AS lst FROM st) n"
same(f"SELECT n.i, q.x.b AS b FROM {LISTS}, LATERAL (SELECT unnest(n.lst) AS x) q ORDER BY 1, 2 NULLS LAST")
same(f"SELECT n.i, q.y.b AS b FROM {LISTS}, LATERAL (SELECT x AS y FROM unnest(n.lst) u(x)) q WHERE q.y.a > 1 ORDER BY 1, 2 NULLS LAST")
same(f"SELECT n.i, q.x.a AS a FROM {LISTS} LEFT JOIN LATERAL (SELECT unnest(n.lst[3:]) AS x) q ON true ORDER BY n.i")
same("SELECT t.i, v.a, v.b FROM t, LATERAL (VALUES (t.x + 1, 'c')) v(a, b) ORDER BY t.i")
