"""sql/cells/newcomers: what users of DuckDB, PostgreSQL and pandas type first, expected from DuckDB."""

import duckdb
import xarray as xr

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 'a', 2.5::double, 3), (2, 'b', 0.5::double, 2), (3, NULL, 2.5::double, 1), (4, 'a', NULL, 4)) v(i, s, x, k)",
    "CREATE VIEW u AS SELECT * FROM (VALUES (1, 'a', 0.5::double), (3, 'b', 2.5::double), (5, NULL, 4.5::double), (NULL, 'a', NULL)) v(i, s, x)",
    "CREATE VIEW f AS FROM t SELECT i, k AS j WHERE i < 3",
    "CREATE VIEW g AS FROM t",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/newcomers", "What users of DuckDB, PostgreSQL and pandas type first. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def same(sql, duck=None):
    rows = con.execute(duck or sql).fetchall()
    assert rows, sql
    f.rows(sql, rows)


f.note("Queries that begin with FROM.")
same("FROM t")
same("FROM t WHERE i > 2")
same("FROM t SELECT s, i WHERE x > 1 ORDER BY i DESC LIMIT 1")
same("FROM t SELECT DISTINCT s ORDER BY s NULLS LAST")
same("FROM t SELECT s, sum(x) AS x GROUP BY s HAVING count(*) > 1")
same("FROM t a JOIN t b ON a.i = b.k SELECT a.i, b.i AS j ORDER BY a.i")
same("FROM t, range(2) r(n) SELECT i, n WHERE i IS DISTINCT FROM 2 ORDER BY i, n")
same("FROM f ORDER BY i")
same("FROM g SELECT count(*) AS n")
same("SELECT max(i) AS m FROM (FROM t WHERE x > 1)")
same("SELECT i FROM t WHERE k IN (FROM t SELECT k WHERE i < 3) ORDER BY i")
same("SELECT i, (FROM t SELECT max(x)) AS m FROM t ORDER BY i")
same("WITH c AS (FROM t SELECT i, k WHERE i < 3) FROM c SELECT k ORDER BY k")
same("FROM t SELECT i UNION ALL FROM t SELECT k ORDER BY i")
same("SELECT substring(lower(s) FROM 1 FOR 1) AS a, extract(year FROM '2020-01-01'::date) AS y FROM t WHERE i = 1")
air = xr.open_zarr("tests/data/cf/air.zarr")
AIR = "'tests/data/cf/air.zarr'"
f.rows(f"FROM {AIR} SELECT count(*) AS n WHERE lat > 30", [(int((air["lat"] > 30).sum()) * air["time"].size * air["lon"].size,)])
f.error("FROM t WHERE i > 1 SELECT i", "syntax: expected the end of the statement, found `SELECT`")
f.error("FROM t SELECT nothing", "unknown_name")

f.note("Powers.")
same("SELECT i, (i ** 2)::double AS a, (2 * i ** 2)::double AS b, 2.0::double ** -1 AS c, abs(x) ** 0.5 AS d FROM t ORDER BY i")
same("SELECT i FROM t WHERE 2 * i ** 2 = 18")

f.note("Samples of what FROM has.")
same("SELECT count(*) AS n FROM t USING SAMPLE 2")
same("SELECT count(*) AS n FROM t USING SAMPLE 3 ROWS")
same("SELECT count(*) AS n FROM t WHERE i > 1 USING SAMPLE 100%")
same("SELECT s, count(*) AS n FROM t WHERE s IS NOT NULL GROUP BY s USING SAMPLE 100 PERCENT (bernoulli) ORDER BY s")
same("SELECT count(*) AS n FROM t USING SAMPLE reservoir(2 ROWS) REPEATABLE (5)")
same("FROM t SELECT count(*) AS n USING SAMPLE 0 PERCENT (bernoulli, 5)")
f.error("SELECT count(*) FROM t, u USING SAMPLE 2", "syntax: expected the end of the statement, found `USING`")
f.error("SELECT count(*) FROM t USING SAMPLE 101%", "invalid_argument")

f.note("PIVOT and UNPIVOT as statements.")
same("PIVOT t ON s IN ('a', 'b') USING sum(x) GROUP BY k ORDER BY k")
same("PIVOT t ON s IN ('a', 'b') USING sum(x) AS m, max(i) GROUP BY k ORDER BY k")
same("PIVOT t ON s IN ('a', 'b') GROUP BY k ORDER BY k")
same("PIVOT t ON s IN ('a', 'b') USING count(*) ORDER BY i")
same("PIVOT (FROM t SELECT s, x, k % 2 AS g) ON s IN ('a', 'b') USING sum(x) ORDER BY g")
same("FROM (PIVOT t ON s IN ('a', 'b') USING sum(x) GROUP BY k) SELECT k, a + 1 AS a ORDER BY k")
same("WITH c AS (PIVOT t ON s IN ('a') USING max(x) GROUP BY k) SELECT k FROM c WHERE a > 1")
same("PIVOT (SELECT s, sum(x) AS x FROM t GROUP BY s) ON s IN ('a', 'b') USING max(x)")
same("SELECT * FROM t PIVOT (sum(x) FOR s IN ('a', 'b') GROUP BY k) ORDER BY k")
f.error("PIVOT t ON s USING sum(x)", "unsupported: PIVOT without a list of values")
same("UNPIVOT t ON i, k ORDER BY ALL")
same("UNPIVOT (SELECT i, x, k::double AS k FROM t) ON x, k INTO NAME n VALUE v ORDER BY i, n")
same("SELECT n, sum(v) AS v FROM (UNPIVOT (SELECT i, x, k::double AS k FROM t) ON x, k INTO NAME n VALUE v) GROUP BY n ORDER BY n")

f.note("Elements of a list without FROM.")
same("SELECT unnest([1, 2, 3]) AS a")
same("SELECT unnest([1, 2, 3]) AS a, 5 AS b, 'x' AS c")
same("SELECT sum(a) AS s FROM (SELECT unnest([1, 2, 3]) AS a)")
same("SELECT i, unnest([i, 7]) AS l FROM t ORDER BY i, l")

f.note("SUMMARIZE: quantiles and numbers of distinct values are exact, those of DuckDB are estimates.")
TYPES = {"i": "int64", "s": "text", "x": "float64"}


def summary(name, numeric, where):
    part = f"{name}::double" if numeric else name
    means = ", ".join(f"{call}::text" for call in (f"avg({part})", f"stddev({part})", *(f"quantile_cont({part}, {q})" for q in (0.25, 0.5, 0.75)))) if numeric else "NULL, NULL, NULL, NULL, NULL"
    sql = f"SELECT '{name}', '{TYPES[name]}', min({name})::text, max({name})::text, count(DISTINCT {name}), {means}, count(*), (100.0 * (count(*) - count({name})) / nullif(count(*), 0))::decimal(9, 2) FROM u WHERE {where}"
    return con.execute(sql).fetchone()


for sql, columns, where in (
    ("SUMMARIZE u", "isx", "true"),
    ("SUMMARIZE SELECT x, i FROM u WHERE i < 9", "xi", "i < 9"),
    ("SUMMARIZE FROM u SELECT s WHERE i > 9", "s", "i > 9"),
    ("SUMMARIZE (WITH c AS (FROM u) FROM c SELECT x)", "x", "true"),
):
    f.rows(sql, [summary(name, name != "s", where) for name in columns])
f.error("SUMMARIZE nothing", "unknown_name")
f.error("SUMMARIZE", "syntax")

f.note("SHOW TABLES is SHOW TENSORS.")
f.rows("SHOW TABLES", sorted((view.split()[2], "view", view.split(" AS ", 1)[1]) for view in VIEWS))
