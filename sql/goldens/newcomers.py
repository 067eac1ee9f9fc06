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


def same(sql, duck=None, may_be_empty=False):
    rows = con.execute(duck or sql).fetchall()
    assert rows or may_be_empty, sql
    f.rows(sql, rows)


air = xr.open_zarr("tests/data/cf/air.zarr")
AIR = "'tests/data/cf/air.zarr'"


def pivoted():
    """The maxima over times for each longitude below 5, with a column for each latitude, in the order of their texts."""
    part = air["t2m"].sel(lon=air["lon"][air["lon"] < 5]).max("time").sortby("lon")
    lats = sorted(part["lat"].values, key=str)
    return [[float(lon), *(float(part.sel(lat=lat, lon=lon)) for lat in lats)] for lon in part["lon"].values]


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

f.note("PIVOT without a list: a first query finds the values.")
same("PIVOT t ON s USING sum(x) ORDER BY i")
same("PIVOT t ON i USING sum(x) GROUP BY s ORDER BY s NULLS LAST")
same("PIVOT t ON x USING sum(i) AS n, max(s) GROUP BY k ORDER BY k")
same("PIVOT t ON i % 2 USING sum(x) GROUP BY s ORDER BY s NULLS LAST")
same("PIVOT (FROM t SELECT s, x, k % 2 AS g WHERE x > 1) ON s USING sum(x) ORDER BY g")
same("WITH c AS (FROM t WHERE i < 3), d AS (PIVOT c ON s USING max(x) GROUP BY k) FROM d SELECT k, a, b ORDER BY k")
same("FROM (PIVOT t ON s) SELECT sum(a) AS a, sum(b) AS b")
same("PIVOT (FROM t WHERE i > 9) ON s USING sum(x) GROUP BY k", may_be_empty=True)
f.rows(f"PIVOT (FROM {AIR} SELECT lat, lon, t2m WHERE lon < 5) ON lat USING max(t2m) GROUP BY lon ORDER BY lon", pivoted())
QUOTED = "(VALUES ('o''b', 1, 1), ('x\"y', 2, 1), (NULL, 4, 2), ('o''b', 8, 2), ('g', 16, 2), ('v', 32, 2)) r(k, v, g)"
same(f"PIVOT (FROM {QUOTED}) ON k USING sum(v) GROUP BY g ORDER BY g")
same(f"""SELECT "o'b" + "x""y" AS s FROM (PIVOT (FROM {QUOTED}) ON k USING sum(v) GROUP BY g) ORDER BY g""")
same(f"PIVOT (FROM {QUOTED}) ON v > 4 USING count(*) GROUP BY g ORDER BY g")
same("PIVOT (PIVOT t ON s USING sum(x) GROUP BY i) ON i USING max(a) ORDER BY b NULLS LAST")
same("PIVOT t ON s USING sum(x) FILTER (WHERE i > 1 OR k > 2), max(i) GROUP BY k ORDER BY k")
same("PIVOT t ON (i) + 1 USING sum(x) GROUP BY s ORDER BY s NULLS LAST")
same("PIVOT t ON x IS NULL USING sum(i) GROUP BY s ORDER BY s NULLS LAST")
f.error("CREATE VIEW w AS PIVOT t ON s USING sum(x)", "unsupported: PIVOT without a list of values in a view")
f.error("SELECT * FROM t PIVOT (sum(x) FOR s IN (ANY ORDER BY s))", "unsupported: ORDER BY of the values of PIVOT")
f.error("PIVOT t ON (s, k) USING sum(x)", "unsupported: PIVOT … FOR .a, b.")
f.error("PIVOT (FROM range(2001) r(n)) ON n", "too_complex")
f.error("PIVOT (FROM range(1001) r(n)) ON n USING min(n), max(n)", "too_complex: .*more than 1000 values")

f.note("PIVOT on several columns has a column for each combination of values.")
same("PIVOT t ON s, k % 2 USING sum(x) GROUP BY i ORDER BY i")
same("PIVOT t ON s IN ('a', 'b'), i IN (1, 2) USING max(x), min(k) ORDER BY ALL")
same("FROM (PIVOT (FROM t SELECT s, k, x) ON s, k USING sum(x)) SELECT a_3, b_2, a_2")
same("PIVOT (FROM t WHERE i > 9) ON s, k USING sum(x) GROUP BY i", may_be_empty=True)
f.error("CREATE VIEW w AS PIVOT t ON s, k IN (1) USING sum(x)", "unsupported: PIVOT without a list of values in a view")
f.error("PIVOT (FROM range(50) r(n)) ON n, n + 1", "too_complex: .*more than 40 values, of which each makes 50 columns")

f.note("UNPIVOT as a statement.")
same("UNPIVOT t ON i, k ORDER BY ALL")
same("UNPIVOT (SELECT i, x, k::double AS k FROM t) ON x, k INTO NAME n VALUE v ORDER BY i, n")
same("SELECT n, sum(v) AS v FROM (UNPIVOT (SELECT i, x, k::double AS k FROM t) ON x, k INTO NAME n VALUE v) GROUP BY n ORDER BY n")
FOUR = "(SELECT i, x AS a, s AS b, k::double AS c, upper(s) AS d FROM t)"
same(f"UNPIVOT {FOUR} ON (a, b), (c, d) AS z INTO NAME n VALUE v, w ORDER BY i, n")
same(f"FROM {FOUR} UNPIVOT INCLUDE NULLS ((v, w) FOR n IN ((a, b) AS ab, (c, d))) ORDER BY i, n")
f.error(f"UNPIVOT {FOUR} ON (a, b), c INTO NAME n VALUE v, w", "syntax: UNPIVOT makes 2 columns of values")

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

f.note("Columns by conditions on their names.")
con.execute("CREATE VIEW w AS FROM t SELECT i AS id, s AS name, x AS t_min, x * 2 AS t_max, k AS K")
f.ok("CREATE VIEW w AS FROM t SELECT i AS id, s AS name, x AS t_min, x * 2 AS t_max, k AS K")
same("SELECT COLUMNS('^t_') FROM w ORDER BY id")
same("SELECT id, COLUMNS('m[ai]') FROM w ORDER BY id")
same("SELECT COLUMNS(['id', 'K']) FROM w ORDER BY id")
same("SELECT COLUMNS(lambda c: c LIKE 't%' OR c = 'K') FROM w ORDER BY id")
same("SELECT COLUMNS(c -> length(c) = 5) FROM w ORDER BY id", "SELECT COLUMNS(lambda c: length(c) = 5) FROM w ORDER BY id")
same("SELECT min(COLUMNS(*)) FROM w")
same("SELECT min(COLUMNS(*)), max(COLUMNS('^t_')) FROM w")
same("SELECT name, max(COLUMNS(* EXCLUDE (name))) FROM w GROUP BY ALL ORDER BY name NULLS LAST")
same("SELECT name, sum(COLUMNS('^t_')) FILTER (WHERE id > 1) FROM w GROUP BY name ORDER BY name NULLS LAST")
same("SELECT COLUMNS(* REPLACE (id * 10 AS id)) FROM w ORDER BY id")
same("SELECT COLUMNS(['id', 'K']) + COLUMNS(['id', 'K']) * 2 FROM w ORDER BY id")
same("SELECT COLUMNS(*)::text FROM w ORDER BY id")
same("SELECT round(coalesce(COLUMNS('^t_'), -1), 1) FROM w ORDER BY id")
same("SELECT id FROM w WHERE COLUMNS('^t_') > 0.75 ORDER BY id")
same("SELECT lead(COLUMNS('^t_')) OVER (ORDER BY id) FROM w ORDER BY id")
same("SELECT low, high - low AS d FROM (SELECT COLUMNS('t_(min|max)') AS 'x_\\1' FROM w ORDER BY id) q(low, high) ORDER BY low NULLS LAST")
same("SELECT x_min, x_max FROM (SELECT COLUMNS('t_(min|max)') AS 'x_\\1' FROM w) ORDER BY x_min NULLS LAST, x_max")
same("SELECT COLUMNS(a.*) FROM w a JOIN w b ON a.id = b.\"K\" ORDER BY a.id")
same("SELECT COLUMNS(*) FROM (SELECT id, t_min FROM w) a JOIN (SELECT id, name FROM w) b USING (id) ORDER BY id")
same("SELECT * LIKE 't%' FROM w ORDER BY id")
same("SELECT id, * NOT LIKE '%a%' FROM w ORDER BY id")
same("FROM w SELECT * ILIKE 'k' ORDER BY id")
same("SELECT a.* SIMILAR TO 't_m.*' FROM w a ORDER BY id")
same("WITH c AS (SELECT * LIKE 't%' FROM w) SELECT avg(t_min) AS a, avg(COLUMNS(lambda c: c <> 't_min')) FROM c")
same("SELECT * RENAME (id AS n) FROM w ORDER BY n")
same("SELECT * EXCLUDE (name) REPLACE (t_max + 1 AS t_max) RENAME (id AS n, t_min AS low) FROM w ORDER BY n")
same("SELECT a.* RENAME id AS n, b.name FROM w a JOIN w b ON a.id = b.\"K\" ORDER BY n")
same("SELECT n + 1 AS m, m * 2 AS d FROM (SELECT * RENAME (id AS n) FROM w) ORDER BY m")
same("SELECT * EXCLUDE (b.name, b.t_min, b.t_max, b.\"K\") FROM w a JOIN w b ON a.id = b.\"K\" ORDER BY a.id")
same("SELECT * EXCLUDE (name, \"K\") REPLACE (id % 2 AS id) FROM w WHERE t_min > 1 ORDER BY ALL")
f.rows(f"SELECT lat, max(COLUMNS('^t2m$')) FROM {AIR} GROUP BY lat ORDER BY lat", [[float(lat), float(air["t2m"].sel(lat=lat).max())] for lat in sorted(air["lat"].values)])
same("SELECT coalesce(*COLUMNS(['t_min', 'id'])) AS a FROM w ORDER BY id")
same("SELECT id, greatest(*COLUMNS('^t_'), 1) + 1 AS g FROM w WHERE coalesce(*COLUMNS('^t_'), 1) > 0.75 ORDER BY id")
same("UNPIVOT w ON COLUMNS('^t_') INTO NAME n VALUE v ORDER BY id, n")
same("UNPIVOT (FROM w SELECT id, t_min, t_max, k: K::double) ON COLUMNS(* EXCLUDE (id, t_min)), t_min INTO NAME n VALUE v ORDER BY id, n")
same("SELECT n, sum(v) AS v FROM (UNPIVOT (FROM w SELECT id, t_min, t_max) ON COLUMNS(lambda c: c <> 'id') INTO NAME n VALUE v) GROUP BY n ORDER BY n")
same("SELECT * LIKE 't!_m%' ESCAPE '!' FROM w ORDER BY id")
same("SELECT greatest(*COLUMNS(['id', 'K']), least(*COLUMNS(['id', 'K']), 2)) AS g FROM w ORDER BY id")
same("WITH RECURSIVE r AS (SELECT 1 AS n, 5 AS m UNION ALL SELECT * REPLACE (n + 1 AS n) FROM r WHERE n < 3) FROM r ORDER BY n")
same("SELECT a.* REPLACE (id + 1 AS id) FROM w a, unnest([5, 6]) u(c) WHERE t_min < 1")
WIDE = ", ".join(f"i AS c{n}" for n in range(600))
f.error(f"SELECT 1 AS a FROM (SELECT {WIDE} FROM t) WHERE COLUMNS(*) >= 0", "nesting_too_deep")
f.error("SELECT *COLUMNS(*) FROM w", "unsupported: .*outside of the arguments of a function")
f.error("SELECT * FROM w UNPIVOT (v FOR n IN (COLUMNS('^t_') AS x))", "unsupported: a name for COLUMNS in UNPIVOT")
f.error("SELECT COLUMNS('z') FROM w", "unknown_name: no column has a name that COLUMNS chooses")
f.error("SELECT * LIKE 'z%' FROM w", "unknown_name: no column has a name that COLUMNS chooses")
f.error("SELECT COLUMNS('(') FROM w", "invalid_argument: .*is not a regular expression")
f.error("SELECT COLUMNS(['id', 'nam']) FROM w", "unknown_name")
f.error("SELECT COLUMNS(id) FROM w", "invalid_argument: `COLUMNS`: the argument must be")
f.error("SELECT COLUMNS('id') + COLUMNS('K') FROM w", "unsupported: several different COLUMNS in one expression")
f.error("SELECT COLUMNS(*)", "plan_error: COLUMNS stands for columns of FROM")
f.error("SELECT count(*) FROM w GROUP BY COLUMNS(*)", "unsupported: COLUMNS in GROUP BY")
same("SELECT id FROM w ORDER BY COLUMNS('^t_') DESC NULLS LAST, COLUMNS(['K'])")
same("FROM w SELECT name, sum(id) AS n GROUP BY name ORDER BY COLUMNS(lambda c: c = 'name') NULLS LAST")
same("SELECT * FROM w a JOIN w b USING (id) ORDER BY -COLUMNS('id')")
f.error("SELECT id FROM w UNION ALL SELECT id FROM w ORDER BY COLUMNS('id')", "unsupported: COLUMNS in the ORDER BY of UNION")
f.error("SELECT id FROM w ORDER BY COLUMNS('z')", "unknown_name: no column has a name that COLUMNS chooses")
f.error("SELECT a.id FROM w a JOIN w b ON COLUMNS('id') > 1", "unsupported: COLUMNS in ON")
f.error("SELECT * RENAME (nam AS n) FROM w", "unknown_name")
f.error("SELECT * REPLACE (1 AS nam) FROM w", "unknown_name")
f.error("SELECT min(*) FROM w", "unsupported")

f.note("Other forms: names in front of items, a last comma, MATERIALIZED, DISTINCT ON, QUALIFY, VALUES, ALL, digits in groups.")
same("SELECT y: i + 1, s, FROM t ORDER BY i")
same("FROM t SELECT n: count(*), \"the sum\": sum(x)")
same("SELECT a FROM (SELECT a: i * 2, FROM t) WHERE a > 4 ORDER BY a")
same("WITH c AS MATERIALIZED (SELECT i, k, FROM t), d AS NOT MATERIALIZED (FROM c) FROM d SELECT sum(i) AS a, sum(k) AS b")
same("SELECT DISTINCT ON (s) s, i FROM t ORDER BY s NULLS LAST, i DESC")
same("SELECT i FROM t QUALIFY row_number() OVER (PARTITION BY s ORDER BY i) = 1 ORDER BY i")
same("VALUES (1, 'a'), (2, NULL)")
same("SELECT s, sum(x) AS x FROM t GROUP BY ALL ORDER BY ALL NULLS LAST")
same("SELECT i + 1_000_000 AS n FROM t ORDER BY i")
same("SELECT columns + 1 AS n, count(*) OVER () AS c FROM (SELECT 1 AS columns) columns")
same("SELECT rename, 2 * rename AS d FROM (SELECT 1 AS rename)")
same("SELECT p + q AS s FROM (SELECT 1, 2) AS materialized (p, q)")
same("""SELECT y: CASE WHEN i > 2 THEN 1::int ELSE 2 END, z: 'a:b'::text, "u:v": s[1:1] FROM t /* c: 1 */ ORDER BY i""")
same("SELECT i, x FROM t ORDER BY x NULLS LAST, i DESC LIMIT 60%")
same("SELECT s, count(*) AS n FROM t GROUP BY s ORDER BY n DESC, s NULLS LAST LIMIT 50 PERCENT OFFSET 1")
same("SELECT sum(i) AS n FROM (FROM t UNION ALL FROM t ORDER BY i LIMIT 50%)")
f.error("SELECT i FROM t ORDER BY i LIMIT 101%", "invalid_argument")
f.error("SELECT i FROM t ORDER BY t.i LIMIT 10%", "unsupported: LIMIT of a percentage with this ORDER BY")
f.rows(f"SELECT count(*) AS n FROM (SELECT t2m FROM {AIR} LIMIT 10%)", [(air["t2m"].size // 10,)])
f.error("SELECT * FROM t POSITIONAL JOIN u", "unsupported: POSITIONAL JOIN")
