"""sql/cells/casts and sql/cells/guards: casts beside what they convert, and casts that conditions guard, expected from DuckDB."""

import re

import duckdb

from .core import ERA5, Script
from .labels import air

cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
con = duckdb.connect()
con.execute("CREATE TABLE era5 AS SELECT * FROM cells")
VIEWS = [
    "CREATE VIEW b AS SELECT * FROM (VALUES (1, timestamp '2020-01-01 00:00:00', 1.0::double, '7'), (2, timestamp '2020-01-01 12:00:00', 2.0::double, '07'), (3, timestamp '2020-01-02 06:00:00', 3.0::double, '8'), (4, timestamp '2020-01-02 06:00:00', 4.0::double, NULL)) v(id, t, x, s)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/casts", "Casts beside what they convert. Expected values from DuckDB.", 1e-12, setup=[ERA5, *VIEWS])


def same(sql):
    rows = con.execute(sql).fetchall()
    assert rows, sql
    f.rows(sql, rows)


Q = "(SELECT t, s, sum(x) AS x, count(*) AS m FROM b GROUP BY t, s) q"
f.note("A cast of a key of groups inside is a key of its own.")
same("SELECT t::date AS d, count(*) AS n FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY t::date ORDER BY d")
same("SELECT CAST(q.t AS date) AS d, sum(x) AS x FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY 1 ORDER BY 1")
same("SELECT t::date AS d, sum(x) AS x FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY d HAVING t::date > '2019-12-31' ORDER BY t::date DESC")
same("SELECT sum(x) AS x, (t)::date AS d FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY 2 ORDER BY 2")
same("WITH q AS (SELECT t, sum(x) AS x FROM b GROUP BY t) SELECT t::date AS d, max(x) AS x FROM q GROUP BY t::date ORDER BY d")
same("WITH q AS (SELECT t, sum(x) AS x FROM b GROUP BY t) SELECT (t::date)::text AS d, max(x) AS x FROM q GROUP BY (t::date)::text ORDER BY d")
same(f"SELECT t::date AS d, s::int AS i, count(*) AS n, sum(x) AS x FROM {Q} GROUP BY t::date, s::int ORDER BY d, i")
same(f"SELECT s::int AS i, count(*) AS n FROM {Q} GROUP BY s::int ORDER BY i")
same(f"SELECT try_cast(s AS int) AS i, m, count(*) AS n FROM {Q} GROUP BY try_cast(s AS int), m ORDER BY i")
same(f"SELECT m, s::int AS i, count(*) AS n FROM {Q} GROUP BY m, 2 ORDER BY i")
same(f"SELECT t, t::date AS d, count(*) AS n FROM {Q} GROUP BY t, t::date ORDER BY t")
same(f"SELECT t::date AS d, count(*) AS n FROM {Q} GROUP BY ALL ORDER BY d")
same("SELECT s::int AS i, count(*) AS n FROM (SELECT DISTINCT s FROM b) q GROUP BY 1 ORDER BY 1")
same("SELECT x::int AS i, count(*) AS n FROM (SELECT x, s FROM b GROUP BY x, s UNION ALL SELECT x, s FROM b) q GROUP BY x::int ORDER BY i")
same("SELECT count(*) AS n FROM (SELECT t::date, count(*) AS n FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY 1) r")
same("SELECT count(*) AS n FROM (SELECT t::date, count(*) AS n FROM (SELECT t, sum(x) AS x FROM b GROUP BY t) q GROUP BY ALL) r")
same("SELECT q.t::date AS d, count(*) AS n, sum(b.x) AS x FROM (SELECT t, count(*) AS m FROM b GROUP BY t) q JOIN b ON q.t = b.t GROUP BY q.t::date ORDER BY d")
same("SELECT time::date AS d, count(*) AS n, sum(x) AS x FROM (SELECT time, lat, avg(t2m) AS x FROM era5 GROUP BY time, lat) q GROUP BY time::date ORDER BY d LIMIT 5")
same("SELECT time::date AS d, count(*) AS n FROM (SELECT time, sum(precip) AS x FROM era5 WHERE precip > 0 GROUP BY time) q GROUP BY time::date ORDER BY d LIMIT 5")
same("SELECT x, count(*) AS n FROM (SELECT id, x FROM b) q GROUP BY GROUPING SETS ((x)) ORDER BY x")
same("SELECT count(*) AS n FROM b WHERE x > 9 GROUP BY GROUPING SETS (())")

f.note("Two casts of a column are two keys.")
same("SELECT t::date AS d, (t::time)::text AS c, count(*) AS n FROM b GROUP BY t::date, t::time ORDER BY t::date, t::time")
same("SELECT t::date AS d, date_part('hour', t::time) AS h, sum(x) AS x FROM b GROUP BY t::date, t::time HAVING t::time >= '06:00:00'::time ORDER BY t::time DESC, d")
same("SELECT id::varchar AS a, id::double AS y, id::smallint AS i, count(*) AS n FROM b GROUP BY 1, 2, 3 ORDER BY 3")
same("SELECT id::varchar AS a, id::double + 1 AS y, max(id::double) AS m FROM b GROUP BY id::varchar, id::double ORDER BY id::varchar DESC")
same("SELECT id::varchar AS a, id::double AS y, count(*) AS n FROM b GROUP BY ALL ORDER BY ALL")
same("SELECT t::date AS d, s::int AS i, s::double AS y, count(*) AS n FROM b GROUP BY d, i, y ORDER BY d, i NULLS LAST")
same(f"SELECT t::date AS d, s::int AS i, s::double AS y, sum(q.x) AS v FROM {Q} GROUP BY t::date, s::int, s::double ORDER BY d, i NULLS LAST")
same("SELECT * FROM (SELECT id::varchar AS a, id::double AS y, count(*) AS n FROM b GROUP BY id::varchar, id::double) q WHERE y > 1 ORDER BY a")
same("SELECT id::varchar AS a, id::double AS y, count(*) AS n FROM b GROUP BY ROLLUP (id::varchar, id::double) ORDER BY a NULLS LAST, y NULLS LAST")
same("SELECT id, id::double AS y, id::varchar AS a, count(*) AS n FROM b GROUP BY id, id::double, id::varchar ORDER BY id")
same("SELECT date_part('month', time::date) AS m, count(t2m) AS n FROM era5 GROUP BY time::date, time::time ORDER BY time::date, time::time LIMIT 3")

f.note("A column and its cast are two columns.")
same("SELECT * FROM (SELECT id, id::varchar FROM b) q ORDER BY 1")
same("SELECT * FROM (SELECT id, id::varchar, id + 1, id::double + 1 FROM b) p(i, s, j, x) ORDER BY i")
same("WITH p(i, s) AS (SELECT id, id::varchar FROM b) SELECT s || '!' AS t, i FROM p ORDER BY i")
same("SELECT * FROM (SELECT id, id::varchar FROM b UNION ALL SELECT id + 10, id::varchar FROM b) p(i, s) ORDER BY i")
same("SELECT count(*) AS n FROM (SELECT sum(x), sum(x::int), max(x::int) + 1, max(x) + 1 FROM b) q")
same("SELECT id FROM b WHERE EXISTS (SELECT c.id, c.id::varchar FROM b c WHERE c.id = b.id + 1) ORDER BY id")
same("WITH RECURSIVE p(id, path) AS (SELECT id, id::varchar FROM b WHERE id = 1 UNION ALL SELECT b.id, path || '/' || b.id::varchar FROM p JOIN b ON b.id = p.id + 1) SELECT * FROM p ORDER BY id")
same("WITH RECURSIVE p AS (SELECT id, id::varchar AS path FROM b WHERE id = 1 UNION ALL SELECT b.id, path || '/' || b.id::varchar FROM p JOIN b ON b.id = p.id + 1) SELECT * FROM p ORDER BY id")
same("SELECT id, sum(id) OVER (PARTITION BY t::date) AS a, sum(id) OVER (PARTITION BY t) AS b FROM b ORDER BY id")
same("SELECT id, row_number() OVER (ORDER BY s::int, id) AS a, row_number() OVER (ORDER BY s, id) AS b FROM b ORDER BY id")
same("SELECT id, sum(x) FILTER (WHERE s::int = 7) OVER (PARTITION BY t::date) AS a, sum(x) FILTER (WHERE s = '7') OVER (PARTITION BY t::date) AS b FROM b ORDER BY id")
same("SELECT t::date AS d, sum(count(*)) OVER (PARTITION BY t::date) AS n FROM b GROUP BY t::date ORDER BY d")

f.note("After DISTINCT, a key of ORDER BY may be an item.")
same("SELECT DISTINCT t::date FROM b ORDER BY t::date")
same("SELECT DISTINCT t::date AS d FROM b ORDER BY CAST(t AS date) DESC")
same("SELECT DISTINCT s::int AS i, t::date AS d FROM b ORDER BY t::date DESC, (s::int) NULLS FIRST")
same("SELECT DISTINCT id % 2 FROM b ORDER BY id % 2 DESC")
same("SELECT * FROM (SELECT DISTINCT t::date FROM b ORDER BY t::date LIMIT 1) q")

# Texts of several kinds in one column: `k` says which. The file has three groups of 20 rows.
NOTES = "'tests/data/tables/notes.parquet'"
GAPS = "'tests/data/tables/gaps.csv'"
MIXED = "CREATE VIEW m AS SELECT * FROM (VALUES (1, 'n', '10', 2), (2, 't', 'x', 0), (3, 'd', '2020-02-29', NULL), (4, NULL, NULL, 0), (5, 'n', '3', 5), (6, 'n', '7', 0)) v(id, k, s, z)"
con.execute(MIXED)
g = Script("cells/guards", "What a condition excludes does not fail. Expected values from DuckDB.", 1e-12, setup=[ERA5, MIXED])
N = "s ~ '^[0-9]+$'"


def guarded(sql, duck=None):
    """A query whose casts fail for rows that a condition excludes. DuckDB evaluates some of these, so its casts yield NULL there."""
    duck = re.sub(r"([\w.]+)::(int|date)\b", r"TRY_CAST(\1 AS \2)", duck or sql)
    duck = duck.replace("all_varchar => true", "all_varchar = true, nullstr = ''")
    rows = con.execute(duck).fetchall()
    assert rows, sql
    g.rows(sql, rows)


g.note("AND and OR.")
guarded(f"SELECT id, s FROM m WHERE {N} AND s::int > 5 ORDER BY id")
guarded("SELECT id FROM m WHERE k = 'n' AND s::int > 5 ORDER BY id")
guarded("SELECT id FROM m WHERE k = 'n' AND s::int > 5 AND s::int < 9 OR k = 'd' AND s::date > '2020-01-01'::date ORDER BY id")
guarded(f"SELECT id FROM m WHERE NOT ({N}) OR s IS NULL OR s::int > 5 ORDER BY id")
guarded("SELECT id FROM m WHERE NOT (k <> 'n' OR s::int < 5) ORDER BY id")
guarded("SELECT id FROM m WHERE z <> 0 AND 10 // z > 2 ORDER BY id")
guarded("SELECT id FROM m WHERE z = 0 OR 10 // z > 2 ORDER BY id", "SELECT id FROM m WHERE z = 0 OR 10 // nullif(z, 0) > 2 ORDER BY id")
guarded("SELECT id FROM m WHERE k = 'n' AND s::int <> 3 AND 12 // (s::int - 3) > 1 ORDER BY id")
guarded(f"SELECT id FROM m WHERE {N} AND s::int IN (3, 7) AND id BETWEEN 2 AND 9 ORDER BY id")
guarded(f"SELECT count(*) AS n FROM m WHERE {N} AND s::int > (SELECT min(z) + 5 FROM m)")

guarded(f"SELECT id FROM m WHERE {N} AND s::int > 2 AND s::int < 9 AND s::int <> 3 ORDER BY id")
guarded(f"SELECT id FROM m WHERE s IS NULL OR NOT {N} OR s::int = 3 OR s::int = 7 ORDER BY id")
guarded(f"SELECT id FROM m WHERE z IS NOT NULL AND coalesce(z, s::int) >= 0 AND {N} AND s::int > 5 ORDER BY id")
guarded("SELECT id FROM (VALUES (1, 2), (2, 0), (3, 1)) v(id, n) WHERE n <> 0 AND split_part('a,b', ',', n) = 'b'")
guarded("SELECT id FROM (VALUES (1, 'a%'), (2, 'a!')) v(id, p) WHERE id <> 2 AND 'a1' LIKE p ESCAPE '!'")
guarded("SELECT id FROM (VALUES (1, 'a.*'), (2, '(')) v(id, p) WHERE p <> '(' AND regexp_matches('abc', p)")

g.note("Values: a NULL before AND excludes nothing, because `NULL AND false` is false.")
guarded(f"SELECT id, {N} AND s::int > 5 AS a, NOT {N} OR s::int > 5 AS b FROM m ORDER BY id")
guarded("SELECT id, z <> 0 AND 10 // z > 2 AS a FROM m ORDER BY id", "SELECT id, z <> 0 AND 10 // nullif(z, 0) > 2 AS a FROM m ORDER BY id")
guarded(f"SELECT id, CASE WHEN {N} THEN s::int > 5 END AS a, CASE WHEN k = 'd' THEN s::date END AS b, CASE WHEN k = 'n' AND s::int > 5 THEN 'large' WHEN k = 'n' THEN 'small' ELSE k END AS c FROM m ORDER BY id")
guarded("SELECT id, CASE WHEN k <> 'n' OR k IS NULL THEN false ELSE s::int > 5 END AS a FROM m ORDER BY id")
guarded(f"SELECT {N} AND s::int > 5 AS a, count(*) AS n FROM m GROUP BY a ORDER BY a")

g.note("Conditions of subqueries come before those around them.")
guarded(f"WITH d AS (SELECT * FROM m WHERE {N}) SELECT s::int AS i FROM d WHERE s::int > 5 ORDER BY i")
guarded(f"WITH d AS (SELECT id, s::int AS n FROM m WHERE {N}) SELECT n FROM d WHERE n > 5 AND id > 1")
guarded("SELECT id FROM (SELECT * FROM (SELECT * FROM m WHERE k = 'n') a WHERE s::int <> 3) b WHERE 12 // (s::int - 3) > 1 ORDER BY id")
guarded("SELECT d.id, m.id AS j FROM (SELECT * FROM m WHERE k = 'n') d JOIN m ON d.s::int = m.id ORDER BY d.id")

g.note("HAVING, FILTER and ON.")
guarded(f"SELECT s, count(*) AS n FROM m GROUP BY s HAVING {N} AND s::int > 5 ORDER BY s")
guarded("SELECT z, min(s) AS a FROM m GROUP BY z HAVING z <> 0 AND 10 // z > 2")
guarded(f"SELECT count(*) FILTER (WHERE {N} AND s::int > 5) AS n, sum(s::int) FILTER (WHERE {N}) AS a, max(s::date) FILTER (WHERE k = 'd') AS b FROM m")
guarded("SELECT id % 2 AS g, sum(s::int) FILTER (WHERE k = 'n') AS a FROM m GROUP BY g ORDER BY g")
guarded("SELECT id, sum(s::int) FILTER (WHERE k = 'n') OVER (ORDER BY id) AS a FROM m ORDER BY id")
for join in ("JOIN", "LEFT JOIN", "FULL JOIN"):
    guarded(f"SELECT a.id, b.id AS j FROM m a {join} m b ON a.k = 'n' AND a.s::int = b.id ORDER BY a.id NULLS LAST, b.id")
guarded("SELECT a.id, b.id AS j FROM m a LEFT JOIN m b ON a.k = b.k AND b.k = 'n' AND a.s::int > b.s::int ORDER BY a.id, b.id")
guarded("SELECT a.id FROM m a, m b WHERE a.k = 'n' AND a.s::int = b.id ORDER BY a.id")

guarded("SELECT k = 'n' AND z % id = 0 AS a, grouping(k = 'n' AND z % id = 0) AS g, count(*) AS n FROM m GROUP BY ROLLUP (k = 'n' AND z % id = 0) ORDER BY g, a")

g.note("Files.")
guarded(f"SELECT id, s FROM {NOTES} WHERE k = 'n' AND s::int > 50 ORDER BY id")
guarded(f"SELECT id, s FROM {NOTES} WHERE id > 10 AND k = 'd' AND s::date < '2020-03-15'::date ORDER BY id")
guarded(f"SELECT k, count(*) AS n, sum(s::int) FILTER (WHERE k = 'n') AS a FROM {NOTES} GROUP BY k ORDER BY k")
guarded(f"SELECT count(*) AS n FROM (SELECT * FROM {NOTES} WHERE k = 'n') q WHERE s::int % 7 = 0")
guarded(f"SELECT p.id, q.id AS j FROM {NOTES} p JOIN {NOTES} q ON p.k = 'n' AND p.s::int = q.id WHERE q.k = 'd' ORDER BY p.id")
guarded(f"SELECT a FROM read_csv({GAPS}, all_varchar => true) WHERE a <> 'NA' AND a::int > 1")

g.note("Labels and values of cells.")
guarded("SELECT lat, count(*) AS n FROM era5 WHERE lat <> 60 AND 100 // (lat::bigint - 60) > 5 GROUP BY lat ORDER BY lat")
guarded("SELECT lat, count(*) AS n FROM era5 WHERE lon > 0 AND lat::int % 20 = 0 GROUP BY lat ORDER BY lat")
guarded("SELECT lat, lon, t2m > 280 AS a FROM era5 WHERE lon > 0 AND t2m > 275 AND lat::int % 20 = 0 ORDER BY time, lat, lon LIMIT 5")
guarded("SELECT lat, lon FROM era5 WHERE t2m > 305 AND 100 // (lat::bigint - 60) < 0 ORDER BY time, lat, lon LIMIT 5")
guarded("SELECT count(*) AS n FROM era5 WHERE t2m > 280 AND lat <> 60 AND 100 // (lat::bigint - 60) < 0")

g.note("What no condition excludes fails.")
g.error("SELECT id FROM m WHERE id > 1 AND s::int > 5", "execution: cannot convert '(x|2020-02-29)' to int")
g.error("SELECT id FROM m WHERE id > 5 OR s::int > 5", "execution: cannot convert '(x|2020-02-29)' to int")
g.error("SELECT id > 1 AND s::int > 5 FROM m", "execution: cannot convert '(x|2020-02-29)' to int")
g.error("SELECT id FROM m WHERE id > 1 AND 10 // z > 1", "division_by_zero")
