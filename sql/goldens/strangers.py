"""sql/cells/strangers: statements of a generator that compares with DuckDB, which gives the expected values."""

import duckdb

from .core import DATA, Script

con = duckdb.connect()
con.execute("SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
con.execute("SET lambda_syntax = 'ENABLE_SINGLE_ARROW'")
FILE = "tests/data/tables/stations.parquet"
VIEWS = [
    "CREATE VIEW v AS SELECT * FROM (VALUES (1, 'a', 3, 2.5::double, timestamp '2020-01-01 10:00:00', [1, 2]), (2, 'b', NULL, 0.5::double, timestamp '2020-01-02 09:00:00', [2, NULL]), (3, NULL, 7, NULL, timestamp '2020-01-03 11:30:00', [3]), (4, 'a', 400, 2.0::double, NULL, NULL), (5, 'b', 2, -1.0::double, timestamp '2020-01-05 08:15:00', [2, 5])) q(i, s, k, x, ts, l)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/strangers", "Statements of a generator that compares with DuckDB. Expected values from DuckDB.", 1e-12, setup=VIEWS)


def same(sql):
    rows = con.execute(sql.replace(f"'{FILE}'", f"'{DATA / 'tables/stations.parquet'}'")).fetchall()
    assert rows, sql
    f.rows(sql, rows)


f.note("Casts whose values are not in the order of their operands, over the statistics of a file and over sorted rows.")
same(f"SELECT n FROM '{FILE}' WHERE plain::time > '10:00:00' ORDER BY n")
same(f"SELECT n FROM '{FILE}' WHERE plain::time < '10:00:00' ORDER BY n")
same(f"SELECT n FROM '{FILE}' WHERE (n - 3)::boolean IS FALSE")
same(f"SELECT count(*) AS c FROM '{FILE}' WHERE n::boolean < true OR n::boolean IS NOT DISTINCT FROM true")
same("SELECT i FROM (SELECT * FROM v ORDER BY ts LIMIT 4) q ORDER BY ts::time, i")
same("SELECT i FROM v WHERE try_cast(k AS tinyint) > 2 ORDER BY i")
same("SELECT i FROM v WHERE try_cast(k AS tinyint) IS NULL ORDER BY i")
same("SELECT i, try_cast(k AS tinyint) > 2 AS c FROM v ORDER BY i")

f.note("Keys of OVER.")
same("SELECT i, row_number() OVER (PARTITION BY s ORDER BY ln(i + 1), i) AS r FROM v ORDER BY i")
same("SELECT i, count(*) OVER (PARTITION BY abs(i % 2) ORDER BY sqrt(i)) AS c FROM v ORDER BY i")
same("SELECT i, sum(i) OVER (ORDER BY (i % 3) > 1, i) AS c, rank() OVER (PARTITION BY (i % 3) > 1 AND i > 2 ORDER BY i) AS r FROM v ORDER BY i")
same("SELECT i, row_number() OVER (ORDER BY ts::time, i) AS r, count(*) OVER (ORDER BY ts::time) AS c FROM v ORDER BY i")
same("SELECT i, string_agg(s, ',' ORDER BY i::text DESC) OVER (ORDER BY i ROWS 2 PRECEDING) AS a FROM v ORDER BY i")

f.note("IGNORE NULLS behind a call.")
same("SELECT i, first_value(coalesce(k, NULL) IGNORE NULLS) OVER (ORDER BY i ROWS 1 PRECEDING) AS a, last_value(nullif(k, 7) IGNORE NULLS) OVER (ORDER BY i) AS b FROM v ORDER BY i")
same("SELECT i, lag(-abs(k) IGNORE NULLS) OVER (ORDER BY i) AS a FROM v ORDER BY i")

f.note("Keys of GROUP BY.")
same("SELECT s, 7 AS n, count(*) AS c FROM v GROUP BY s, n ORDER BY s")
same("SELECT -1 AS n, sum(i) AS c FROM v GROUP BY n")
same("SELECT s, upper(s) AS u, count(*) AS c FROM v GROUP BY ROLLUP (s, u) ORDER BY s, u, c")
f.rows("SELECT s, s AS u, count(*) AS c FROM v WHERE s IS NOT NULL GROUP BY ROLLUP (s, u) ORDER BY s, c", [("a", "a", 2), ("a", "a", 2), ("b", "b", 2), ("b", "b", 2), (None, None, 4)])

f.note("Fields of values, and differences of times.")
same("SELECT ({'a': i, 'b': s}).a AS a, {'a': i}.a + 1 AS b, (q.t).b AS c FROM (SELECT i, s, {'b': s} AS t FROM v) q ORDER BY i")
same("SELECT i, extract(hour FROM ts - timestamp '2020-01-01') AS h, extract(day FROM ts - timestamp '2020-01-01') AS d FROM v ORDER BY i")
same("SELECT i FROM v WHERE (ts - timestamp '2020-01-01') * 2 > INTERVAL '3 days' AND (ts - timestamp '2020-01-01') / 2 < INTERVAL '2 days' ORDER BY i")

f.note("Lists with NULL.")
same("SELECT i, list_contains([1, NULL, 3], i) AS a, list_contains([k, 2], 2) AS b FROM v ORDER BY i")
same("SELECT i FROM v WHERE NOT list_contains([1, NULL, 3], i) ORDER BY i")

f.note("Lambdas of merged projections over a file.")
same(f"SELECT list_transform(c, x -> x * 2) AS a FROM (SELECT CASE WHEN lat > 2 THEN list_transform([n, 7], x -> x + 1) ELSE [n] END AS c FROM '{FILE}') q")

f.note("Keys of a join that differ by a cast to the same type.")
same("SELECT a.i, b.i AS j FROM v a JOIN v b ON a.x = b.x::double AND abs(a.x) = b.x ORDER BY a.i, b.i")

f.note("Names of types and functions.")
same("SELECT i::uinteger + 1 AS a, i::utinyint AS b, i::usmallint AS c, i::ubigint AS d FROM v ORDER BY i")
same("SELECT i, trim(s, 'a') AS a, if(i > 2, 'x', s) AS b, strlen('äö') AS c, unicode('a') AS d, ord('b') AS e, prefix('abc', 'ab') AS g, suffix('abc', 'bc') AS h FROM v ORDER BY i")
