"""sql/cells/totals: frequent values, CASE in sums, statistics of pairs, many items; expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW n AS SELECT i, i % 7 AS k, CASE WHEN i % 11 <> 3 THEN (i * i % 97)::double / 8 + 1000 END AS x, CASE WHEN i % 13 <> 5 THEN (i * 31 % 101)::double - 50 END AS y, least(i % 9, 4) AS m, 'a_value_of_' || (least(i % 8, 3))::text || '_and_more' AS s, CASE WHEN i % 5 <> 1 THEN i % 4 END AS c FROM range(3000) r(i)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/totals", "Frequent values, CASE in sums, statistics of pairs, many items. Expected values from DuckDB.", 1e-10, setup=VIEWS, chunks="4KiB")


def same(sql, duck=None):
    rows = con.execute(duck or sql).fetchall()
    assert rows, sql
    f.rows(sql, rows)


f.note("The most frequent value.")
same("SELECT mode(m) AS a, mode(s) AS b, mode(m::double) AS c, mode(m::decimal(5, 1)) AS d, mode(m > 3) AS e, mode(x) FILTER (WHERE i < 0) AS f, mode(CASE WHEN m < 4 THEN 1 END) AS g FROM n")
same("SELECT k, mode(m) AS a, mode(s) AS b, mode(m::double) FILTER (WHERE i % 9 > 3) AS c, mode(TIMESTAMP '2020-01-01' + m * INTERVAL '1 day') AS d FROM n GROUP BY k ORDER BY k")
same("SELECT i, mode(m) AS a, mode(s) FILTER (WHERE k > 6) AS b FROM n WHERE i BETWEEN 4 AND 8 OR i = 13 GROUP BY i ORDER BY i")
same("SELECT i % 300 AS g, mode(s) AS a, mode(m) AS b FROM n WHERE i % 8 > 2 AND i % 9 > 3 GROUP BY g HAVING g < 5 ORDER BY g")
same("SELECT max(a) AS a, max(b) AS b FROM (SELECT mode(s) OVER (PARTITION BY k) AS a, mode(m) OVER (PARTITION BY k) AS b FROM n) q")

f.note("CASE of columns, in sums.")
same("SELECT sum(CASE WHEN k = 1 THEN x ELSE 0 END) AS a, sum(CASE WHEN c > 1 THEN i ELSE 0 END) AS b, sum(CASE k WHEN 2 THEN x ELSE y END) AS c, sum(CASE WHEN c > 1 THEN x * 2 - y ELSE -x END) AS d, sum(CASE WHEN y > 0 THEN 1.5 ELSE x END) AS e, count(CASE WHEN k = 1 THEN 1 END) AS f FROM n")
same("SELECT k, sum(CASE WHEN c = 2 THEN x ELSE 0 END) AS a, sum(CASE WHEN c = 2 THEN 0 ELSE m END) AS b, sum(CASE WHEN c IS NULL THEN 1.25::decimal(9, 2) ELSE i::decimal(9, 2) END) AS c FROM n GROUP BY k ORDER BY k")
same("SELECT i, CASE WHEN c > 1 THEN x ELSE y END AS a, CASE WHEN x IS NOT NULL THEN x ELSE 0 END AS b, CASE WHEN c > 1 THEN i ELSE -1 END AS c FROM n WHERE i < 20 ORDER BY i")

f.note("Statistics of pairs, of all rows and in groups.")
PAIRS = "corr(x, y) AS p0, covar_samp(x, y) AS p1, covar_pop(x, y) AS p2, regr_slope(x, y) AS p3, regr_intercept(x, y) AS p4, regr_r2(x, y) AS p5, regr_sxx(x, y) AS p6, regr_syy(x, y) AS p7, regr_sxy(x, y) AS p8, regr_avgx(x, y) AS p9, regr_avgy(x, y) AS p10, regr_count(x, y) AS p11"
SPREADS = "stddev(x) AS v0, stddev_pop(x) AS v1, var_samp(x) AS v2, var_pop(y) AS v3, var_pop(x + 1e4) AS v4"
same(f"SELECT {PAIRS} FROM n")
same(f"SELECT k, {PAIRS} FROM n GROUP BY k ORDER BY k")
same(f"SELECT {SPREADS} FROM n")
same(f"SELECT k, {SPREADS} FROM n GROUP BY k ORDER BY k")
same("SELECT corr(x, y) AS a, covar_samp(x, y) AS b, covar_pop(x, y) AS c, regr_slope(x, y) AS d, regr_sxy(x, y) AS e, stddev(x) AS f, var_pop(x) AS g FROM n WHERE i < 0")
same("SELECT covar_samp(x, y) AS b, covar_pop(x, y) AS c, regr_sxx(x, y) AS e, stddev(x) AS f, var_pop(x) AS g FROM n WHERE i = 1")
same("SELECT covar_pop(x, y) FILTER (WHERE k = 1) AS a, regr_slope(y, x) FILTER (WHERE c > 1) AS b FROM n")
same("SELECT i, covar_pop(CASE WHEN i = 1 THEN 'nan'::double ELSE x END, y) AS a FROM n WHERE i < 3 GROUP BY i ORDER BY i")
for call in ["corr(DISTINCT x, y)", "regr_count(DISTINCT x, y)", "1 + covar_pop(DISTINCT x, y)"]:
    f.error(f"SELECT {call} FROM n", "unsupported: DISTINCT in `corr`, `covar_…` and `regr_…` is not supported")
same("SELECT corr(m, k) AS a FROM (SELECT DISTINCT m, k FROM n WHERE i < 20) q")
f.note("Rows that are NaN or large leave a frame.")
NAMES = ["corr", "covar_pop", "covar_samp", "regr_slope", "regr_intercept", "regr_r2", "regr_sxx", "regr_syy", "regr_sxy"]
FRAMES = ", ".join(f"{name}(x, y) OVER w AS p{i}" for i, name in enumerate(NAMES))
same(f"SELECT i, {', '.join(f'p{i}' for i in range(len(NAMES)))} FROM (SELECT i, {FRAMES} FROM (VALUES (1, 'nan'::double, 1.0::double), (2, 1e9, 2.5), (3, -1e9, 3.0), (4, 4.0, 5.0), (5, NULL, 2.0), (6, 2.0, 4.0), (7, 3.0, 5.5), (8, 3.5, 7.0), (9, 5.0, 7.25)) t(i, x, y) WINDOW w AS (ORDER BY i ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)) q WHERE i > 5 ORDER BY i")
same("SELECT g, regr_r2(y, x) AS r FROM (VALUES (1, 2.0::double, 1.0::double), (1, 2.0, 3.0), (2, 1.0, 3.0), (2, 2.0, 3.0), (3, 1.0, 3.0), (4, 1.0, 2.0), (4, 2.0, 5.0), (4, 4.0, 6.0)) t(g, x, y) GROUP BY g ORDER BY g")
same("SELECT i, covar_pop(x, y) OVER (ORDER BY i) AS a, var_pop(x) OVER (ORDER BY i) AS b, corr(x, y) OVER (PARTITION BY k) AS c FROM n WHERE i % 100 = 0 ORDER BY i")

f.note("Expressions in `grouping`.")
same("SELECT m::text AS a, -k AS b, grouping(m::text) AS g, grouping(-k) AS h, grouping(m::text, -k) AS f, count(*) AS n, sum(i) AS t FROM n WHERE k < 2 GROUP BY CUBE (m::text, -k) ORDER BY f, a, b")
same("SELECT k IN (1, 2) AS a, s || '!' AS b, grouping(k IN (1, 2)) AS g, grouping(s || '!') AS h, count(x) AS n FROM n GROUP BY ROLLUP (k IN (1, 2), s || '!') HAVING grouping(s || '!') = 1 OR count(*) > 200 ORDER BY grouping(k IN (1, 2)), h, a, b")
same("SELECT c::double AS a, i % 3 = 1 AS b, grouping(c::double, i % 3 = 1) AS g, grouping(c::double) + 10 AS h, max(y) AS t FROM n GROUP BY GROUPING SETS ((c::double), (i % 3 = 1), (c::double)) ORDER BY g, a NULLS LAST, b")
same("SELECT c::text AS a, grouping(c::text) AS g, count(*) AS n FROM n GROUP BY c::text ORDER BY a NULLS LAST")
same("SELECT k, m::text AS a, grouping(k, m::text) AS g, count(*) AS n FROM n WHERE k < 2 GROUP BY GROUPING SETS ((k, m::text)) ORDER BY k, a")
same("SELECT length(s) AS a, grouping(length(s)) AS g, grouping(k, length(s)) AS h, count(*) AS n FROM n WHERE k < 2 GROUP BY ROLLUP (k, length(s)) ORDER BY h, n, a")
same("SELECT char_length(s) AS a, grouping(char_length(s)) AS g, count(*) AS n FROM n GROUP BY char_length(s)")
same("SELECT a, max(g) AS g FROM (SELECT m::text AS a, grouping(m::text) AS g, rank() OVER (PARTITION BY grouping(m::text) ORDER BY sum(i)) AS r FROM n GROUP BY ROLLUP (m::text)) q WHERE r < 3 GROUP BY a ORDER BY a NULLS LAST")

f.note("Grouping sets of literals and of equal columns: groups of smaller sets have NULL there.")
same("SELECT k, count(*) AS n FROM (SELECT 1 AS k, i FROM n) q GROUP BY ROLLUP (k) ORDER BY k NULLS FIRST")
same("SELECT k, m, count(*) AS n FROM (SELECT 'a' AS k, m, i FROM n) q GROUP BY CUBE (k, m) ORDER BY k NULLS FIRST, m NULLS FIRST")
same("SELECT a, b, count(*) AS n FROM (SELECT k AS a, k AS b FROM n) q GROUP BY ROLLUP (a, b) ORDER BY b NULLS FIRST, a NULLS FIRST")
same("SELECT a, b, n FROM (SELECT a, b, count(*) AS n FROM (SELECT k AS a, k AS b FROM n) q GROUP BY CUBE (a, b)) p WHERE a IS DISTINCT FROM b ORDER BY a NULLS LAST, b NULLS LAST")

f.note("Many items.")
SUMS = ", ".join(f"sum(i + {i}) AS s{i}" for i in range(70))
same(f"SELECT {SUMS} FROM n")
same(f"SELECT k, {SUMS} FROM n WHERE i < 100 GROUP BY k ORDER BY sum(i)")
same(f"SELECT max(s3) AS a FROM (SELECT {SUMS} FROM n) q")
f.error(f"SELECT k, {SUMS} FROM n", "not_grouped")
