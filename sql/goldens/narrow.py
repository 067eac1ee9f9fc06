"""sql/cells/narrow, zones, moments, unions, lateral: labels in float32, times with zones, functions of times, ORDER BY over UNION ALL; expected from DuckDB."""

import duckdb
import numpy as np
import pyarrow.parquet as pq

from .core import DATA, EXTERNAL, Script
from .merged import rows_of

con = duckdb.connect()
con.execute("SET threads = 1")
con.execute("SET TimeZone = 'UTC'")
for name in ("tenth", "tenth64"):
    data = rows_of(f"{name}.zarr", ["time", "lat", "lon"])
    con.execute(f"CREATE TABLE {name} AS SELECT TIMESTAMP '2020-07-01' + INTERVAL (time) HOUR AS time, * EXCLUDE (time) FROM data")
data = pq.read_table(DATA / "tables/stations.parquet")
con.execute("CREATE TABLE stations AS SELECT * FROM data")
TABLES = [EXTERNAL.format("tenth", "ZARR", "tenth.zarr"), EXTERNAL.format("tenth64", "ZARR", "tenth64.zarr"), EXTERNAL.format("stations", "PARQUET", "tables/stations.parquet")]


def same(f, sql, *spelled, some=True):
    """`spelled` are pairs of ours and DuckDB's."""
    duck = sql
    for ours, theirs in spelled:
        duck = duck.replace(ours, theirs)
    result = con.execute(duck)
    types = [str(d[1]) for d in result.description]
    rows = result.fetchall()
    assert not some or any(v not in (None, 0) for row in rows for v in row), duck
    shown = lambda v, t: np.float32(v) if t == "FLOAT" and v is not None else np.datetime64(v, "us") if t == "TIMESTAMP" else v
    f.rows(sql, [[shown(v, t) for v, t in zip(row, types)] for row in rows])


def single(*numbers):
    return [(n, f"{n}::FLOAT") for n in numbers]


f = Script("cells/narrow", "Labels and cells in float32: numbers that are written down compare in float32. Expected values from DuckDB, with its literals cast.", 1e-6, setup=TABLES, chunks="256")
f.note("A label, a slice of labels, lists, as in t[lat => 52.3].")
same(f, "SELECT count(*) AS n, sum(t) AS s FROM tenth WHERE lat = 52.3", *single("52.3"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat BETWEEN 52.3 AND 52.5", *single("52.3", "52.5"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat NOT BETWEEN 52.3 AND 52.5", *single("52.3", "52.5"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat >= 52.3 AND lat < 52.7", *single("52.3", "52.7"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat IN (52.1, 52.3, 52.9)", *single("52.1", "52.3", "52.9"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat NOT IN (52.1, 52.3, 52.9) AND lon = -0.1", *single("52.1", "52.3", "52.9", "-0.1"))
same(f, "SELECT DISTINCT lat FROM tenth WHERE 52.4 < lat AND lat <> 52.6 ORDER BY lat", *single("52.4", "52.6"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat IS DISTINCT FROM 52.3", *single("52.3"))
f.note("Cells, aggregates, CASE, nullif.")
same(f, "SELECT count(*) AS n, min(lat) AS a FROM tenth WHERE t = 0.3 OR t = 1.1", *single("0.3", "1.1"))
same(f, "SELECT count(*) FILTER (WHERE t > 12.3) AS n, count(nullif(t, 0.7)) AS m, sum(CASE t WHEN 0.7 THEN 1 WHEN 0.9 THEN 10 ELSE 0 END) AS c FROM tenth", *single("12.3", "0.7", "0.9"))
same(f, "SELECT lat, max(lon) AS m FROM tenth GROUP BY lat HAVING max(t) < 23.3 AND max(lon) = 0.3 ORDER BY lat", *single("23.3", "0.3"))
same(f, "SELECT count(*) AS n FROM tenth WHERE lat = 52.3::double", ("52.3::double", "52.3::DOUBLE"), some=False)
same(f, "SELECT count(*) AS n FROM tenth WHERE lat + 0.0 = 52.3", ("lat + 0.0 = 52.3", "lat::DOUBLE = 52.3::DOUBLE"), some=False)
f.note("float64 stays what it is.")
same(f, "SELECT count(*) AS n FROM tenth64 WHERE lat IN (52.3, 52.4) AND lon BETWEEN -0.1 AND 0.1", *((x, f"{x}::DOUBLE") for x in ("52.3", "52.4", "-0.1", "0.1")))
f.note("Labels of one grid meet however they are stored.")
on = ("a.lat = b.lat AND a.lon = b.lon", "a.lat = b.lat::FLOAT AND a.lon = b.lon::FLOAT")
for kind in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"):
    same(f, f"SELECT count(*) AS n, count(a.lat) AS x, count(b.lat) AS y FROM tenth a {kind} tenth64 b ON a.time = b.time AND {on[0]}", on)
    same(f, f"SELECT count(*) AS n, count(a.lat) AS x, count(b.lat) AS y FROM (SELECT * FROM tenth WHERE lat < 52.6) a {kind} (SELECT * FROM tenth64 WHERE lat > 52.2) b ON a.time = b.time AND {on[0]}", on, *single("52.6"), ("52.2", "52.2::DOUBLE"))
same(f, "SELECT a.lat, count(*) AS n, sum(a.t - b.t) < 0.1 AS d FROM tenth a JOIN tenth64 b USING (time, lat, lon) GROUP BY a.lat ORDER BY a.lat", ("USING (time, lat, lon)", f"ON a.time = b.time AND {on[1]}"))
same(f, "SELECT count(*) AS n FROM tenth a, tenth64 b WHERE a.lat = b.lat AND a.lon = 0.1 AND b.lon = 0.1 AND a.time = b.time", ("a.lat = b.lat", "a.lat = b.lat::FLOAT"), ("a.lon = 0.1", "a.lon = 0.1::FLOAT"), ("b.lon = 0.1", "b.lon = 0.1::DOUBLE"))
f.note("Parquet.")
same(f, "SELECT n FROM stations WHERE lat = 52.3 ORDER BY n", *single("52.3"))
same(f, "SELECT n FROM stations WHERE lat IN (52.4, 53.0) OR lat > 52.97 ORDER BY n", *single("52.4", "53.0", "52.97"))
same(f, "SELECT n FROM stations WHERE lat BETWEEN 52.3 AND 52.45 ORDER BY n", *single("52.3", "52.45"))
same(f, "SELECT n FROM stations WHERE lat = wide ORDER BY n", ("lat = wide", "lat = wide::FLOAT"))
same(f, "SELECT s.n, count(*) AS k FROM stations s JOIN tenth t ON s.lat = t.lat GROUP BY s.n ORDER BY s.n")
same(f, "SELECT s.n, count(*) AS k FROM stations s JOIN tenth t ON s.wide = t.lat GROUP BY s.n ORDER BY s.n", ("s.wide", "s.wide::FLOAT"))
same(f, "SELECT s.n, count(*) AS k FROM stations s JOIN tenth64 t ON s.lat = t.lat GROUP BY s.n ORDER BY s.n", ("t.lat", "t.lat::FLOAT"))

f = Script("cells/zones", "Times with a zone meet labels as instants. Expected values from DuckDB.", setup=TABLES, chunks="256")
utc = ("s.at", "(s.at AT TIME ZONE 'UTC')"), ("s.utc", "(s.utc AT TIME ZONE 'UTC')")
for column in ("s.at", "s.utc", "s.plain"):
    f.note(f"{column}.")
    for kind in ("JOIN", "LEFT JOIN", "FULL JOIN"):
        same(f, f"SELECT count(*) AS n, sum(s.n) AS k, count(t.lat) AS m FROM stations s {kind} (SELECT time, lat FROM tenth64 WHERE lon > 0.25) t ON {column} = t.time", *utc)
    same(f, f"SELECT s.n, t.time FROM stations s JOIN (SELECT DISTINCT time FROM tenth64) t ON t.time = {column} ORDER BY s.n", *utc)
    same(f, f"SELECT s.n, count(*) AS k FROM stations s JOIN (SELECT DISTINCT time FROM tenth64) t ON {column} > t.time GROUP BY s.n ORDER BY s.n", *utc)
    same(f, f"SELECT s.n FROM stations s WHERE {column} IN (SELECT time FROM tenth64) ORDER BY s.n", *utc)
same(f, "SELECT count(*) AS n FROM tenth64 WHERE time IN (SELECT s.at FROM stations s)", *utc)
same(f, "SELECT count(*) AS n FROM tenth64 t WHERE EXISTS (SELECT 1 FROM stations s WHERE s.at = t.time) AND time NOT IN (SELECT s.utc FROM stations s WHERE s.n < 3)", *utc)
same(f, "SELECT a.n FROM stations a JOIN stations b ON a.at = b.utc ORDER BY a.n")
same(f, "SELECT count(*) AS n FROM stations a JOIN stations b ON a.at = b.plain AND a.n = b.n", ("a.at", "(a.at AT TIME ZONE 'UTC')"))
f.note("A text without an offset is in UTC, too.")
same(f, "SELECT s.n FROM stations s WHERE s.at >= '2020-07-01T06:00:00' ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE '2020-07-01 12:00:00' > s.at ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE s.at = '2020-07-01T06:00:00' OR s.at = '2020-07-01T14:00:00+02:00' ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE s.at IN ('2020-07-01T06:00:00', TIMESTAMP '2020-07-01 12:00:00', '2020-07-01T18:00:00Z') ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE s.at BETWEEN '2020-07-01T06:00:00' AND TIMESTAMP '2020-07-01 12:00:00' ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE s.at < '2020-07-01T01:00:00' ORDER BY s.n")
same(f, "SELECT s.n FROM stations s WHERE s.utc >= '2020-07-01T06:00:00' AND s.plain >= '2020-07-01T06:00:00' ORDER BY s.n")
same(f, "SELECT count(*) AS n FROM stations a JOIN (SELECT n, plain::text AS t FROM stations) b ON a.n = b.n WHERE a.at = b.t", ("a.at = b.t", "a.at = b.t::TIMESTAMPTZ"))
same(f, "SELECT s.n FROM stations s WHERE s.at - '2020-07-01' > INTERVAL '6 hours' ORDER BY s.n", ("'2020-07-01'", "TIMESTAMPTZ '2020-07-01'"))
same(f, "SELECT s.n FROM stations s WHERE greatest(s.at, '2020-07-01T06:00:00') = s.at AND nullif(s.at, '2020-07-01T06:00:00') IS NOT NULL ORDER BY s.n")
f.error("SELECT s.n FROM stations s WHERE s.at > 'soon'", "type_error: cannot convert 'soon' to timestamp")

f = Script("cells/moments", "Functions of times in conditions and items. Expected values from DuckDB.", setup=TABLES)
for part, theirs in (("season(time)", "(month(time) % 12) // 3"), ("dayofweek(time)", "(isodow(time) - 1)"), ("dayofyear(time)", "dayofyear(time)"), ("quarter(time)", "quarter(time)")):
    same(f, f"SELECT {part} AS p, count(*) AS n FROM tenth GROUP BY {part} ORDER BY p", (part, theirs))
    same(f, f"SELECT count(*) AS n FROM tenth WHERE {part} > 0", (part, theirs))
same(f, "SELECT time, date_part('epoch', time) AS e, extract(epoch FROM time) AS x FROM tenth WHERE lat > 52.95 AND lon > 0.25", *single("52.95", "0.25"))
same(f, "SELECT DISTINCT time, time::double AS d, time::bigint AS b FROM tenth ORDER BY time", ("time::double", "epoch_us(time)::DOUBLE"), ("time::bigint", "epoch_us(time)"))
same(f, "SELECT date_trunc('day', time) AS d, count(*) AS n, bool_and(t > -1) AS p, greatest(max(t), 30) AS g FROM tenth GROUP BY date_trunc('day', time)", ("greatest(max(t), 30)", "greatest(max(t), 30::FLOAT)"))
same(f, "SELECT count(*) AS n FROM tenth WHERE date_trunc('hour', time) = '2020-07-01T06:00' AND greatest(lat, lon) = lat")
same(f, "SELECT count(*) AS n FROM tenth WHERE time - '2020-07-01' > INTERVAL '6 hours'", ("'2020-07-01'", "TIMESTAMP '2020-07-01'"))
same(f, "SELECT count(*) AS n FROM tenth WHERE '2020-07-02' - time <= INTERVAL '12 hours'", ("'2020-07-02'", "TIMESTAMP '2020-07-02'"))
f.error("SELECT time - 'soon' AS d FROM tenth WHERE lat > 0", "type_error")

f = Script("cells/unions", "ORDER BY, groups and windows over UNION ALL. Expected values from DuckDB.", setup=TABLES, chunks="256")
u = "SELECT lat AS k, 1 AS side FROM tenth64 WHERE lon > 0.25 AND t > -1 {} SELECT wide, 2 FROM stations WHERE n < 5"
one = (" lon > 0.25", " lon > 0.25::DOUBLE")
for op in ("UNION ALL", "UNION"):
    same(f, f"{u.format(op)} ORDER BY k, side", one)
    same(f, f"{u.format(op)} ORDER BY k DESC, side LIMIT 5", one)
    same(f, f"SELECT k, count(*) AS n FROM ({u.format(op)}) q GROUP BY k ORDER BY k", one)
    same(f, f"SELECT k, side, rank() OVER (ORDER BY k, side) AS r FROM ({u.format(op)}) q WHERE k < 52.5 ORDER BY r DESC", one, ("k < 52.5", "k < 52.5::DOUBLE"))
    same(f, f"SELECT a.k, count(*) AS n FROM ({u.format(op)}) a JOIN ({u.format(op)}) b ON a.k = b.k GROUP BY a.k ORDER BY a.k", one)
same(f, "SELECT dim FROM (SELECT n AS dim FROM stations UNION ALL SELECT n + 3 FROM stations UNION ALL SELECT -n FROM stations WHERE n > 0) q ORDER BY dim DESC LIMIT 9")
f.note("Without ORDER BY the rows of the first come first.")
same(f, "SELECT n FROM stations WHERE n > 4 UNION ALL SELECT n FROM stations WHERE n < 2")
f.note("Values of subqueries for each row.")
same(f, "SELECT n, (SELECT count(*) FROM stations b WHERE b.n < a.n) AS k FROM stations a ORDER BY n")
same(f, "SELECT n FROM stations a WHERE n > (SELECT avg(n) FROM stations b WHERE b.n <= a.n) ORDER BY n")
same(f, "SELECT a.n, (SELECT count(*) FROM stations b WHERE b.n = a.n) AS k FROM stations a ORDER BY a.n")
f.note("A key and a cast of it.")
same(f, "SELECT n, n::double AS d, count(*) AS k FROM stations GROUP BY n, n::double ORDER BY n DESC")
same(f, "SELECT lat, lat::real AS r, count(*) AS k FROM tenth64 WHERE lat > 52.75 GROUP BY lat, lat::real", ("52.75", "52.75::DOUBLE"), ("GROUP BY lat, lat::real", "GROUP BY lat, lat::real ORDER BY lat"))
f.note("Never NULL over a left join; sets of groups over expressions.")
same(f, "SELECT DISTINCT (b.n IS TRUE) AS d FROM (SELECT n FROM stations) a LEFT JOIN (SELECT n AS m, n > 2 AS n FROM stations WHERE n < 4) b ON a.n = b.m ORDER BY d", some=False)
same(f, "SELECT (b.n IS NOT NULL) AS d, count(*) AS k FROM (SELECT n FROM stations) a LEFT JOIN (SELECT n AS m, n > 2 AS n FROM stations WHERE n < 4) b ON a.n = b.m GROUP BY b.n IS NOT NULL ORDER BY d", some=False)
for sets in ("ROLLUP (a.lat, a.t > 12.5)", "CUBE (a.lat + 1, a.t > 12.5)", "GROUPING SETS ((a.lat + 1, a.t > 12.5), (a.lat + 1), ())"):
    key = "a.lat + 1" if "+" in sets else "a.lat"
    more = ", grouping(a.t > 12.5) AS g" if sets.startswith("ROLLUP") else ""
    same(f, f"SELECT {key} AS k, a.t > 12.5 AS w, count(*) AS n{more} FROM (SELECT lat, t FROM tenth64 WHERE lat > 52.75) a GROUP BY {sets} ORDER BY k, w, n", ("12.5", "12.5::DOUBLE"), ("52.75", "52.75::DOUBLE"), some=False)

f = Script("cells/shared", "CTEs of a query that would read too many relations if they were written out. Expected values from DuckDB.", 1e-12, setup=TABLES)
f.note("Each step reads the one before twice: 4096 relations.")
steps = ", ".join(f"a{i} AS (SELECT l.n, l.lat FROM a{i - 1} l JOIN a{i - 1} r ON l.n = r.n)" for i in range(1, 13))
same(f, f"WITH a0 AS (SELECT n, lat FROM stations WHERE n < 6), {steps} SELECT n, lat FROM a12 ORDER BY n, lat LIMIT 5")
steps = ", ".join(f"a{i} AS (SELECT (SELECT x FROM a{i - 1}) + (SELECT x FROM a{i - 1}) AS x)" for i in range(1, 13))
same(f, f"WITH a0 AS (SELECT 1 AS x), {steps} SELECT x FROM a12")
steps = ", ".join(f"a{i} AS (SELECT l.lat, l.s + r.s AS s FROM a{i - 1} l JOIN a{i - 1} r USING (lat))" for i in range(1, 12))
same(f, f"WITH a0 AS (SELECT lat, sum(t) AS s FROM tenth64 WHERE lon > -0.2 GROUP BY lat), {steps} SELECT lat, s FROM a11 WHERE lat < 52.4 ORDER BY lat DESC", ("lon > -0.2", "lon > -0.2::DOUBLE"), ("lat < 52.4", "lat < 52.4::DOUBLE"))
steps = ", ".join(f"a{i} AS (SELECT l.n, r.lat FROM b{i - 1} l JOIN b{i - 1} r ON l.n = r.n), b{i} AS (SELECT n, max(lat) AS lat FROM a{i} GROUP BY n)" for i in range(2, 14))
same(f, f"WITH b1 AS (SELECT n, lat FROM stations), {steps} SELECT n, lat FROM b13 WHERE n IN (SELECT n + 1 FROM a13) ORDER BY n")
f.note("Under names of their own.")
steps = ", ".join(f"a{i}(u, v) AS (SELECT l.u, r.v FROM a{i - 1} l JOIN a{i - 1} r ON l.u = r.u)" for i in range(1, 12))
same(f, f"WITH a0(u, v) AS (SELECT n, lat FROM stations), {steps} SELECT u, v FROM a11 WHERE v > 52.4 ORDER BY u", ("v > 52.4", "v > 52.4::FLOAT"))
f.note("CTEs that are called as our own tables are.")
same(f, "WITH cells_0 AS (SELECT 7 AS x), CELLS_1 AS (SELECT 8 AS y) SELECT n, x, y FROM stations, cells_0, cells_1 WHERE n < 3 ORDER BY n")
steps = ", ".join(f"a{i} AS (SELECT l.n FROM a{i - 1} l JOIN a{i - 1} r ON l.n = r.n)" for i in range(1, 13))
same(f, f"WITH shared_0 AS (SELECT 100 AS x), a0 AS (SELECT n FROM stations), {steps} SELECT sum(n) AS s, max(x) AS m FROM a12, shared_0")

f = Script("cells/lateral", "LATERAL, and subqueries as values that use a column outside. Expected values from DuckDB.", setup=TABLES)
P = "'tests/data/tables/stations.parquet'"
here = (P, "stations")
same(f, f"SELECT a.n, q.m FROM {P} a, LATERAL (SELECT b.n AS m FROM {P} b WHERE b.n = a.n AND b.n > 4) q ORDER BY a.n", here)
same(f, f"SELECT a.n, q.k FROM stations a, LATERAL (SELECT count(*) AS k FROM {P} b) q WHERE a.n < 2 ORDER BY a.n", here)
same(f, "SELECT a.n, (SELECT first_value(b.n ORDER BY b.utc DESC) FROM stations b WHERE b.n = a.n) AS x FROM stations a WHERE a.n < 3 ORDER BY a.n", ("first_value(b.n ORDER BY b.utc DESC)", "arg_max(b.n, b.utc)"))
same(f, "SELECT a.n, q.m, q.k FROM stations a, LATERAL (SELECT a.n + 1 AS m, a.n * 2 AS k) q ORDER BY a.n")
same(f, "SELECT a.n, q.m FROM stations a, LATERAL (SELECT a.n + 1 AS m WHERE a.n > 3) q ORDER BY a.n")
same(f, "SELECT a.n, q.m, r.n AS k FROM stations a LEFT JOIN LATERAL (SELECT a.n + 1 AS m) q ON true, LATERAL (SELECT q.m * 10 AS n) r ORDER BY a.n")
same(f, "SELECT a.n, q.m FROM stations a, LATERAL (SELECT b.n AS m FROM stations b WHERE b.n >= a.n ORDER BY b.n DESC LIMIT 1) q ORDER BY a.n")
same(f, "SELECT a.n, (SELECT b.n FROM stations b WHERE b.n > a.n ORDER BY b.n LIMIT 1) AS x FROM stations a ORDER BY a.n")
f.error("SELECT a.n, (SELECT b.n FROM stations b WHERE b.n = a.n) AS x FROM stations a", "plan_error: .*must be an aggregate")
