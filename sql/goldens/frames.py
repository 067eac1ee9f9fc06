"""sql/cells/frames: aggregates over frames, shifts, and the order of nested values, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 5.0::double, 10, 'a', true), (2, 3.0::double, NULL, 'b', true), (3, 1.0::double, 30, NULL, NULL), (4, 9.0::double, 40, 'a', false), (5, NULL, NULL, 'c', true), (6, 1.0::double, 60, 'b', true), (7, 7.0::double, 60, 'b', true)) v(i, x, v, s, b)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/frames", "Aggregates over frames, shifts, the order of nested values. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def shown(v):
    if isinstance(v, list):
        return "[" + ", ".join("" if x is None else str(x) for x in v) + "]"
    return v


def same(sql, duck=None):
    rows = con.execute((duck or sql).replace(") IGNORE NULLS", " IGNORE NULLS)")).fetchall()
    assert rows, sql
    f.rows(sql, [tuple(shown(v) for v in row) for row in rows])


FRAMES = [
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING",
]

f.note("Percentiles of frames, which are evaluated for each row.")
for frame in FRAMES:
    same(f"SELECT i, quantile_cont(x, 0.5) OVER w AS a, quantile_cont(x, 0.3) OVER w AS b, median(x) OVER w AS c FROM t WINDOW w AS (ORDER BY i {frame}) ORDER BY i")
same("SELECT x, quantile_cont(x, 0.5) OVER (ORDER BY x) AS a FROM t ORDER BY x")
same("SELECT i, quantile_cont(x, 0.5) OVER (PARTITION BY i % 2 ORDER BY i) AS a, quantile_cont(x, 0.9) FILTER (WHERE i <> 4) OVER (ORDER BY i DESC) AS b FROM t ORDER BY i")
for ours in ("percentile(x, 25)", "quantile(x, 0.25)", "nanquantile(x, 0.25)"):
    same(f"SELECT i, {ours} OVER (ORDER BY i) AS a FROM t ORDER BY i", "SELECT i, quantile_cont(x, 0.25) OVER (ORDER BY i) AS a FROM t ORDER BY i")
same("SELECT i, quantile_cont((i * 7919) % 1000, 0.123456789) OVER (ORDER BY i) AS a FROM range(60) r(i) ORDER BY i", "SELECT i, quantile_cont(((i * 7919) % 1000)::double, 0.123456789) OVER (ORDER BY i) AS a FROM range(60) r(i) ORDER BY i")
same("SELECT sum(a) AS a, sum(b) AS b FROM (SELECT quantile_cont((i * 7919 % 10007)::double, 0.3) OVER (ORDER BY i) AS a, quantile_cont((i * 7919 % 10007)::double, 0.3) OVER (ORDER BY i ROWS 99 PRECEDING) AS b FROM range(3000) r(i)) s")

f.note("Shifts that leave out NULL.")
for n in (1, 2, 3, -2):
    same(f"SELECT i, lead(v, {n}) IGNORE NULLS OVER (ORDER BY i) AS a, lag(v, {n}) IGNORE NULLS OVER (ORDER BY i) AS b, lead(s, {n}) IGNORE NULLS OVER (ORDER BY i DESC) AS c, lead(v, {n}, -1) IGNORE NULLS OVER (PARTITION BY i % 2 ORDER BY i) AS d, lead(v, {n}) OVER (ORDER BY i) AS e FROM t ORDER BY i")
same("SELECT i, lead(v, 2) IGNORE NULLS OVER (ORDER BY i) AS a, sum(v) OVER (ORDER BY i) AS b, lag(v, 2) IGNORE NULLS OVER (ORDER BY i DESC) AS c FROM t ORDER BY i LIMIT 2")
same("SELECT sum(a * (i % 100)) AS a, sum(b) AS b FROM (SELECT i, lead(CASE WHEN i % 7 < 5 THEN NULL ELSE i END, 3) IGNORE NULLS OVER (ORDER BY i) AS a, lag(CASE WHEN i % 7 < 5 THEN NULL ELSE i END, 3) IGNORE NULLS OVER (ORDER BY i) AS b FROM range(20000) r(i)) s")
