"""sql/cells/repeated: items and columns of one name, expected from DuckDB over the same rows."""

import duckdb

from .core import Script

con = duckdb.connect()
con.execute("SET threads = 1")
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 2, 'b'), (4, 3, NULL), (5, 1, 'a'), (6, 9, 'c')) v(i, k, s)",
    "CREATE VIEW u AS SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, NULL), (5, 'q'), (0, 'b')) v(k, s)",
    "CREATE VIEW w AS SELECT * FROM (VALUES (1, 10), (2, 20), (9, 90)) v(k, n)",
    "CREATE VIEW r AS SELECT * FROM (VALUES (1, 30, 7), (2, 20, 7), (3, 10, 8)) v(i, i_1, k)",
]
for view in VIEWS:
    con.execute(view)

f = Script(
    "cells/repeated",
    "Items and columns of one name: the second one called `i` is `i_1`. Expected values from DuckDB.",
    setup=VIEWS,
)


def same(sql):
    rows = con.execute(sql).fetchall()
    assert rows, sql
    f.rows(sql, rows)


f.note("The outermost block.")
for sql in [
    "SELECT i, i FROM t ORDER BY i",
    "SELECT t.i, i FROM t ORDER BY t.i",
    "SELECT k AS i, t.i FROM t ORDER BY t.i",
    "SELECT *, i FROM t ORDER BY t.i",
    "SELECT *, k * 10 AS i FROM t ORDER BY t.i",
    "SELECT k + 1 AS i, * FROM t ORDER BY t.i",
    "SELECT *, * FROM w ORDER BY w.k",
    "SELECT * EXCLUDE (i), k FROM t ORDER BY t.i",
    "SELECT k, k, count(*) AS n FROM t GROUP BY k ORDER BY k",
    "SELECT k, count(*) AS k FROM t GROUP BY t.k ORDER BY t.k",
    "SELECT DISTINCT k, k FROM t ORDER BY k",
    "SELECT i AS x, k AS x FROM t WHERE t.k > 1 ORDER BY t.i",
    "SELECT i AS x, i AS x FROM t ORDER BY x",
    "SELECT *, i FROM t ORDER BY i DESC",
    "SELECT k AS x, i AS x FROM t ORDER BY 2 DESC",
]:
    same(sql)

f.note("Joins.")
for sql in [
    "SELECT * FROM t JOIN u ON t.k = u.k ORDER BY t.i",
    "SELECT *, u.s FROM t JOIN u ON t.k = u.k ORDER BY t.i",
    "SELECT t.*, u.* FROM t JOIN u ON t.k = u.k ORDER BY t.i",
    "SELECT t.s, u.s, w.n FROM t JOIN u ON t.k = u.k JOIN w ON w.k = t.k ORDER BY t.i",
    "SELECT *, n AS i FROM t JOIN w USING (k) ORDER BY t.i",
]:
    same(sql)

f.note("Subqueries and CTEs, whose names other blocks use.")
for sql in [
    "SELECT i, i_1 FROM (SELECT i, i FROM t) q ORDER BY i",
    "SELECT i, i_1 FROM (SELECT k AS i, * FROM t) q ORDER BY i_1",
    "SELECT i, i_1 FROM (SELECT *, k AS i FROM t) q ORDER BY i",
    "SELECT q.i_1, q.i_1_1 FROM (SELECT i, k AS i, s AS i_1 FROM t) q ORDER BY q.i",
    "SELECT a, a_1, a_2 FROM (SELECT i AS a, k AS a, i + k AS a FROM t) q ORDER BY a",
    "WITH d AS (SELECT i, k AS i FROM t) SELECT i_1, count(*) AS n, min(i) AS m FROM d GROUP BY i_1 ORDER BY i_1",
    "WITH d AS (SELECT * FROM t JOIN u ON t.k = u.k) SELECT i, k, k_1, s, s_1 FROM d ORDER BY i",
    "SELECT i, s_1 FROM (SELECT * FROM t LEFT JOIN u ON t.k = u.k) q WHERE s_1 IS NULL ORDER BY i",
    "SELECT k_1 + k_2 AS x FROM (SELECT * FROM t JOIN u ON t.k = u.k JOIN w ON t.k = w.k) q ORDER BY i",
    "SELECT i, k_1 FROM (SELECT t.*, w.* FROM t, w WHERE t.k = w.k) q ORDER BY i",
    "SELECT x, y, z FROM (SELECT i, i, k FROM t) q(x, y, z) ORDER BY x",
    "SELECT count(*) AS n FROM (SELECT s, s FROM t) q WHERE s_1 = 'b'",
    "SELECT i, i FROM t UNION ALL SELECT k, n FROM w ORDER BY ALL",
]:
    same(sql)

f.note("A relation has a column `i_1` of its own, which other clauses name.")
for sql in [
    "SELECT i, k AS i FROM r ORDER BY i_1",
    "SELECT i, k AS i, i_1 FROM r ORDER BY i_1",
    "SELECT i, k AS i FROM r ORDER BY r.i_1",
    "SELECT i, k AS i FROM r QUALIFY row_number() OVER (ORDER BY i_1) < 3 ORDER BY r.i",
]:
    same(sql)

f.note("An alias differs from a column in case alone.")
for sql in [
    'SELECT k AS "K", i FROM (VALUES (1, 2)) v(i, k)',
    'WITH d(x) AS (SELECT k FROM w) SELECT x AS "X" FROM d ORDER BY x',
    'SELECT i AS "I" FROM (t JOIN w USING (k)) q(x, i, s, n) ORDER BY x',
]:
    same(sql)
