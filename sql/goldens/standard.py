"""sql/cells/standard: clauses that users of other databases type, expected from DuckDB over the same rows."""

from collections import Counter
from datetime import datetime

import duckdb
import numpy as np

from .core import ERA5, Script
from .labels import air

cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
con = duckdb.connect()
con.execute("SET threads = 1")
con.execute("CREATE TABLE era5 AS SELECT * FROM cells")
TABLES = ("weights", "zones", "places", "seasons")
for name in TABLES:
    con.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('tests/data/tables/{name}.csv')")
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 2, 'b'), (4, 3, NULL), (5, 1, 'a'), (6, NULL, 'c'), (7, 9, 'z'), (8, 2, 'b')) v(i, k, s)",
    "CREATE VIEW u AS SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (2, 'b'), (3, NULL), (5, 'q'), (0, 'b')) v(k, s)",
]
for view in VIEWS:
    con.execute(view)

f = Script(
    "cells/standard",
    "Clauses of the standard and of DuckDB. Expected values from DuckDB.",
    1e-12,
    setup=[ERA5]
    + [f"CREATE EXTERNAL TABLE {n} STORED AS CSV LOCATION 'tests/data/tables/{n}.csv'" for n in TABLES]
    + VIEWS,
)


def rows_of(sql):
    result = con.execute(sql)
    types = [str(d[1]) for d in result.description]
    rows = result.fetchall()
    assert rows, sql

    def shown(v, t):
        if t == "FLOAT" and v is not None:
            return np.float32(v)
        return np.datetime64(v) if isinstance(v, datetime) else v

    return [tuple(shown(v, t) for v, t in zip(row, types)) for row in rows]


def same(sql, duck=None):
    """A query, and the same for DuckDB with an ORDER BY of all rows."""
    f.rows(sql, rows_of(duck or sql))


def counted(left, op, right, order):
    """INTERSECT ALL or EXCEPT ALL, in the order of the left side, which DuckDB sorts by `order`."""
    rest, out = Counter(rows_of(right)), []
    for row in rows_of(f"{left} ORDER BY {order}"):
        if (rest[row] > 0) == (op == "INTERSECT"):
            out.append(row)
        rest[row] -= 1
    f.rows(f"{left} {op} ALL {right}", out)


f.note("ORDER BY ALL, OFFSET … ROWS, FETCH.")
same("SELECT k, s, i FROM t ORDER BY ALL DESC NULLS LAST OFFSET 1 ROWS FETCH NEXT 3 ROWS ONLY", "SELECT k, s, i FROM t ORDER BY ALL DESC NULLS LAST LIMIT 3 OFFSET 1")
same("SELECT * FROM weights w JOIN seasons s ON s.month * 10 = w.lat ORDER BY ALL FETCH FIRST ROW ONLY", "SELECT * FROM weights w JOIN seasons s ON s.month * 10 = w.lat ORDER BY ALL LIMIT 1")
same("SELECT k FROM t UNION SELECT k FROM u ORDER BY ALL NULLS FIRST")
same("SELECT lat, avg(t2m) AS m FROM era5 GROUP BY ALL ORDER BY ALL DESC FETCH FIRST 2 ROWS ONLY", "SELECT lat, avg(t2m) AS m FROM era5 GROUP BY ALL ORDER BY ALL DESC LIMIT 2")

f.note("Rows count as often as they occur, in the order of the first input.")
counted("SELECT k, s FROM t", "INTERSECT", "SELECT k, s FROM u", "i")
counted("SELECT k, s FROM t", "EXCEPT", "SELECT k, s FROM u", "i")
for op in ("INTERSECT", "EXCEPT"):
    counted("SELECT DISTINCT avg(k::int) AS a, k::int AS j, count(DISTINCT i) AS n FROM t GROUP BY j", op, "SELECT 2.0::double, 2, 3 FROM range(2)", "j NULLS LAST")
counted("SELECT lat FROM era5 WHERE time = '2019-01-01' AND t2m > 270", "EXCEPT", "SELECT lat FROM weights", "time, lat DESC, lon")

f.note("Rows of values; IN, EXISTS and ANY as values.")
FOUND = "CASE WHEN EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.s = t.s) THEN true WHEN EXISTS (SELECT 1 FROM u WHERE (u.k = t.k AND u.s = t.s) IS NULL) THEN NULL ELSE false END"
same(
    "SELECT i, (k, s) < (2, 'c') AS lt, (s, k) >= ('b', 2) AS ge, (k, s) <> (2, 'b') AS ne, (k, s) IN ((1, 'a'), (3, 'x')) AS l, (k, s) IN (SELECT k, s FROM u) AS q, (k, s) NOT IN (SELECT k, s FROM u) AS n FROM t",
    f"SELECT i, k < 2 OR (k = 2 AND s < 'c') AS lt, s > 'b' OR (s = 'b' AND k >= 2) AS ge, k <> 2 OR s <> 'b' AS ne, (k = 1 AND s = 'a') OR (k = 3 AND s = 'x') AS l, {FOUND} AS q, NOT ({FOUND}) AS n FROM t ORDER BY i",
)
same(
    "SELECT i FROM t WHERE (k, s) IN (SELECT k, s FROM u) UNION ALL SELECT -i FROM t WHERE (k, s) NOT IN (SELECT k, s FROM u WHERE s IS NOT NULL) ORDER BY ALL",
    f"SELECT i FROM t WHERE {FOUND} UNION ALL SELECT -i FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.s IS NOT NULL AND (u.k = t.k AND u.s = t.s) IS NOT FALSE) ORDER BY ALL",
)
same("SELECT i, k IN (SELECT k FROM u) AS a, EXISTS (SELECT 1 FROM u WHERE u.k < t.k AND u.s = t.s) AS b, k > ALL (SELECT k FROM u WHERE k < 3) AS c FROM t ORDER BY i")
same(
    "SELECT lat, count(*) FILTER (WHERE (lat, lon) IN (SELECT lat, lon FROM zones)) AS n, lat IN (SELECT lat FROM weights) AS w, sum(CASE WHEN EXISTS (SELECT 1 FROM places p WHERE p.lat = era5.lat AND p.lon = era5.lon) THEN 1 ELSE 0 END) AS p FROM era5 GROUP BY lat ORDER BY lat",
    "SELECT lat, count(*) FILTER (WHERE z) AS n, bool_or(w) AS w, sum(p) AS p FROM (SELECT lat, (lat, lon) IN (SELECT (lat, lon) FROM zones) AS z, lat IN (SELECT lat FROM weights) AS w, CASE WHEN EXISTS (SELECT 1 FROM places p WHERE p.lat = era5.lat AND p.lon = era5.lon) THEN 1 ELSE 0 END AS p FROM era5) GROUP BY lat ORDER BY lat",
)
same("SELECT count(*) AS n, sum(t2m) AS s FROM era5 WHERE (lat, lon) NOT IN (SELECT lat, lon FROM zones)", "SELECT count(*) AS n, sum(t2m::double) AS s FROM era5 WHERE NOT EXISTS (SELECT 1 FROM zones z WHERE z.lat = era5.lat AND z.lon = era5.lon)")

f.note("Conditions on columns outside, over rows that need joins, groups and windows of their own.")
same("SELECT w.lat, w.belt FROM weights w WHERE EXISTS (SELECT 1 FROM era5 e JOIN places p ON e.lat = p.lat AND e.t2m > p.lat * 6.5 WHERE e.lat = w.lat) ORDER BY w.lat")
same("SELECT i, EXISTS (SELECT 1 FROM (SELECT round(t2m / 100) AS r, count(*) AS n FROM era5 WHERE lat > 40 GROUP BY r) q WHERE q.r = t.k) AS e FROM t ORDER BY i")
same("SELECT w.belt, w.lat FROM weights w WHERE w.lat IN (SELECT q.lat FROM (SELECT lat, max(height) AS h FROM places GROUP BY lat) q WHERE q.h > w.lat) ORDER BY w.lat")
same("SELECT w.lat, (SELECT count(*) FROM era5 e JOIN places p ON e.lat = p.lat AND e.t2m > p.lat * 5 WHERE e.lat = w.lat) AS n, (SELECT max(e.t2m) FROM era5 e JOIN places p ON e.lat = p.lat AND e.t2m > p.lat * 5 WHERE e.lat = w.lat) AS m FROM weights w ORDER BY w.lat")
same("SELECT w.lat FROM weights w WHERE NOT EXISTS (SELECT 1 FROM (SELECT lat, rank() OVER (PARTITION BY round(t2m) ORDER BY lon) AS r FROM era5) q WHERE q.lat = w.lat AND q.r > 20) ORDER BY w.lat")

f.note("Aliases in WHERE and in later items; a column of that name comes first.")
same("SELECT month(time) AS m, m * 10 AS d, count(*) AS n FROM era5 WHERE m > 8 AND lat > 40 GROUP BY m ORDER BY m", "SELECT month(time) AS m, m * 10 AS d, count(*) AS n FROM era5 WHERE month(time) > 8 AND lat > 40 GROUP BY month(time) ORDER BY m")
same("SELECT i * 2 AS k, k AS j FROM t WHERE k < 3 ORDER BY i")

f.note("ASOF JOIN, in the order of the left side.")
same("SELECT t.i, u.k FROM t ASOF LEFT JOIN u ON t.s = u.s AND t.k > u.k", "SELECT t.i, u.k FROM t ASOF LEFT JOIN u ON t.s = u.s AND t.k > u.k ORDER BY t.i")
same("SELECT t.i, t.k, u.k AS n, u.s FROM t ASOF JOIN (SELECT DISTINCT * FROM u) u ON u.k >= t.k", "SELECT t.i, t.k, u.k AS n, u.s FROM t ASOF JOIN (SELECT DISTINCT * FROM u) u ON u.k >= t.k ORDER BY t.i")
same("SELECT * FROM (SELECT i, s, k FROM t) l ASOF JOIN (SELECT s, k, k * 10 AS v FROM u) r USING (s, k)", "SELECT * FROM (SELECT i, s, k FROM t) l ASOF JOIN (SELECT s, k, k * 10 AS v FROM u) r USING (s, k) ORDER BY i")
same("SELECT t.i, u.k FROM t ASOF JOIN u MATCH_CONDITION (t.k >= u.k) ON t.s = u.s WHERE t.i > 3", "SELECT t.i, u.k FROM t ASOF LEFT JOIN u ON t.s = u.s AND t.k >= u.k WHERE t.i > 3 ORDER BY t.i")
same("SELECT p.name, e.time, e.t2m FROM (SELECT name, lat, lon, '2019-06-15'::timestamp AS ts FROM places) p ASOF JOIN era5 e ON e.lat = p.lat AND e.lon = p.lon AND e.time <= p.ts ORDER BY p.name")
same("SELECT e.lat, e.lon, w.lat AS l, w.belt FROM era5 e ASOF LEFT JOIN weights w ON w.lat < e.lat WHERE e.time = '2019-01-01' AND e.lon < 5", "SELECT e.lat, e.lon, w.lat AS l, w.belt FROM era5 e ASOF LEFT JOIN weights w ON w.lat < e.lat WHERE e.time = '2019-01-01' AND e.lon < 5 ORDER BY e.lat DESC, e.lon")

f.note("PIVOT and UNPIVOT.")
same("SELECT * FROM (SELECT lat, lon, t2m FROM era5 WHERE time = '2019-01-01') PIVOT (max(t2m) AS m, count(*) AS n FOR lon IN (0.5, 10.5 AS ten)) ORDER BY lat")
same("SELECT * FROM weights UNPIVOT (v FOR name IN (lat, w AS weight)) WHERE belt <> 'south' ORDER BY ALL")
