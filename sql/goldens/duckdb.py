"""sql/cells/duckdb: functions over rows that users of DuckDB type, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 'a1', 2.5::double, 3), (2, 'b22', 0.5::double, 2), (3, NULL, 2.5::double, 1), (4, 'A1', NULL, 4), (5, 'a1', -1.0::double, 5)) v(i, s, x, k)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/duckdb", "Functions of DuckDB over rows. Expected values from DuckDB.", 1e-12, setup=VIEWS)
many = Script("cells/duckdb_many", "Groups of many rows. Expected values from DuckDB.", 1e-12, chunks="16KiB")


def shown(v):
    if isinstance(v, list):
        return "[" + ", ".join("" if x is None else str(x) for x in v) + "]"
    return v


def same(sql, duck=None, script=f):
    rows = con.execute(duck or sql).fetchall()
    assert rows, sql
    script.rows(sql, [tuple(shown(v) for v in row) for row in rows])


f.note("Sets of groups with several columns as one item.")
for sets in ("ROLLUP ((k % 2, s), i > 2)", "CUBE ((k % 2, s), i > 2)", "ROLLUP (s, (k % 2, i > 2))", "k % 2, CUBE ((i > 2, s))", "CUBE ((s, k % 2), (k % 2, i > 2))"):
    same(f"SELECT k % 2 AS a, s, i > 2 AS b, count(*) AS n, sum(i) AS m FROM t GROUP BY {sets} ORDER BY ALL NULLS LAST")

f.note("Sets of groups whose expressions begin with a parenthesis.")
same("SELECT (k % 2)::text AS a, i > 2 AS b, count(*) AS n FROM t GROUP BY CUBE((k % 2)::text, i > 2) ORDER BY a, b")
same("SELECT (k % 2) + 1 AS a, i > 2 AS b, count(*) AS n FROM t GROUP BY ROLLUP((k % 2) + 1, (i > 2)) ORDER BY a, b")
same("SELECT (k % 2) + 1 AS a, i > 2 AS b, count(*) AS n FROM t GROUP BY GROUPING SETS (((k % 2) + 1, i > 2), (k % 2) + 1, ()) ORDER BY a, b, n")
same("SELECT k % 2 AS a, i > 2 AS b, count(*) AS n FROM t GROUP BY rollup(k % 2), i > 2 ORDER BY a, b")

many.note("Sets of groups over many rows.")
ROWS = "(SELECT i, i % 7 AS a, CASE WHEN i % 5 > 0 THEN 'b' || (i % 5) END AS b, i % 3 = 0 AS c, i * 0.5::DOUBLE AS v FROM range({}) r(i)) q"
# More rows than a sample of the groups has.
same(f"SELECT a, b, grouping(a) AS ga, grouping(b) AS gb, count(*) AS n, sum(v) AS s, max(i) AS m FROM {ROWS.format(100000)} GROUP BY ROLLUP (a, b) HAVING count(*) > 2900 ORDER BY ga, gb, a, b", script=many)
MANY = ROWS.format(20000)
same(f"SELECT a, b, grouping(a, b) AS g, count(*) FILTER (WHERE c) AS n, min(b) AS m FROM {MANY} WHERE a < 3 GROUP BY CUBE (a, b) ORDER BY grouping(a, b) DESC, a NULLS LAST, b NULLS FIRST LIMIT 12", script=many)
same(f"SELECT b, c, grouping(b) + grouping(c) AS g, count(*) AS n, avg(v) AS s FROM {MANY} GROUP BY GROUPING SETS ((b), (c), (b), ()) HAVING grouping(b) = 1 OR sum(v) > 2e7 ORDER BY g, b, c", script=many)
same(f"SELECT a, c, count(*) AS n FROM {MANY} GROUP BY GROUPING SETS ((a, c), (c, a), ()) HAVING a IS NULL OR a > 5 ORDER BY a, c, n", script=many)
same(f"SELECT a, b, count(*) AS n, sum(v) AS s FROM {MANY} WHERE i < 0 GROUP BY CUBE (a, b)", script=many)
same(f"SELECT a, count(*) AS n FROM {MANY} WHERE i < 0 GROUP BY GROUPING SETS ((a), (), ())", script=many)
same(f"SELECT g, sum(n) AS n, count(*) AS c FROM (SELECT grouping(a) * 2 + grouping(c) AS g, count(*) AS n FROM {MANY} GROUP BY ROLLUP (c, a)) x GROUP BY g ORDER BY g", script=many)

f.note("Hashes, as hexadecimal digits.")
same("SELECT i, md5(s) AS m, sha256(s) AS h FROM t ORDER BY i")
same("SELECT md5('é') AS m, sha256(NULL) AS h FROM t WHERE i = 1")
f.error("SELECT md5(i) FROM t", "type_error: `md5` takes a text or bytes")

f.note("Regular expressions.")
same("SELECT i, regexp_extract(s, '[0-9]+') AS a, '<' || regexp_extract(s, '([a-z])([0-9])?', 2) || '>' AS b, '<' || regexp_extract(s, 'a', 0, 'i') || '>' AS c, '<' || regexp_extract(s, '(z)?', 1) || '>' AS d FROM t ORDER BY i")
same("SELECT i, regexp_matches(s, '^a') AS a, regexp_matches(s, 'a', 'i') AS b FROM t ORDER BY i")
f.error("SELECT regexp_extract(s, '(a') FROM t", ".*the pattern '\\(a' cannot be read")
f.error("SELECT regexp_extract(s, 'a', -1) FROM t", ".*the group -1 is negative")
f.error("SELECT regexp_extract(s, 'a', 'b') FROM t", "type_error: argument 3 of `regexp_extract` must be an integer")

f.note("Aggregates.")
same("SELECT mode(x) AS a, mode(s) AS b, mode(i) FILTER (WHERE i = 3) AS c, mode(x) FILTER (WHERE i > 9) AS d FROM t")
same("SELECT k % 2 AS g, mode(x) AS m FROM t WHERE x > 0 GROUP BY g ORDER BY g")
same("SELECT mode() WITHIN GROUP (ORDER BY s) AS a FROM t")
same("SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY i) AS a, percentile_disc(0.5) WITHIN GROUP (ORDER BY i DESC) AS b, quantile_disc(k, 0.25) AS c, quantile_disc(k, 0.26) AS d, quantile_disc(x, 1) AS e, quantile_disc(x, 0) AS f FROM t")
same("SELECT quantile_disc(s, 0.5) AS a, quantile_disc(i, 0.5) FILTER (WHERE i > 2) AS b, quantile_disc(x, 0.5) FILTER (WHERE i > 9) AS c FROM t")
same("SELECT quantile_disc(i, 0.07) AS a, quantile_disc(i, 0.29) AS b, quantile_disc(i, 0.55) AS c FROM range(100) r(i)")
same("SELECT i % 3 AS g, quantile_disc(i, 0.9) AS q, mode(least(i // 1000, 20)) AS m FROM range(30000) r(i) GROUP BY g ORDER BY g", script=many)
same("SELECT string_agg(s, ',' ORDER BY i) AS a, string_agg(s, ',' ORDER BY k DESC) AS b, string_agg(s, '-' ORDER BY x NULLS FIRST, i) AS c FROM t")
same("SELECT k % 2 AS g, string_agg(s, ',' ORDER BY i) AS a, string_agg(s, ',' ORDER BY k) AS b FROM t GROUP BY g ORDER BY g")
same("SELECT array_to_string(list(i ORDER BY k), ',') AS a, array_to_string(list_value(1, 2), ',') AS b FROM t")
same("SELECT arg_max(s, k) AS a, arg_min(s, k) AS b, max_by(i, x) FILTER (WHERE i > 1) AS c, min_by(s, i + k) AS d, arg_max(s, x) FILTER (WHERE i > 9) AS e FROM t")
same("SELECT k % 2 AS g, arg_max(i, x) AS a, arg_min(i, s) AS b FROM t WHERE i < 5 GROUP BY g ORDER BY g")
f.error("SELECT quantile_disc(x, 1.5) FROM t", ".*`percentile_disc` takes a fraction from 0 to 1")
f.error("SELECT arg_max(DISTINCT i, k) FROM t", "unsupported: `arg_max` with DISTINCT")
for depth in (1, 24):
    nested = "arg_max(i, " * depth + "sum(k)" + ")" * depth
    f.error(f"SELECT {nested} FROM t", "plan_error: the argument of an aggregate cannot contain an aggregate")

f.note("Intervals and numbers; bits.")
same("SELECT i, timestamp '2020-01-31' + i * INTERVAL '1 month' AS a, timestamp '2020-01-01' + INTERVAL '1 day' * i AS b, timestamp '2020-01-01' + INTERVAL '1 hour' * x AS c FROM t ORDER BY i")
same("SELECT timestamp '2020-01-01' + INTERVAL '1 month 1 day' * 1.5 AS a, timestamp '2020-01-01' + INTERVAL '1 day' / 3 AS b, timestamp '2020-01-01' - 2 * INTERVAL '36 hours' AS c FROM t WHERE i = 1")
same("SELECT i, ~i AS a, ~(i + k) AS b FROM t ORDER BY i")
same("SELECT i FROM t WHERE ~i = -3")
same("SELECT i, timestamp '2020-01-01' + INTERVAL '1 microsecond' * (i - 0.5) AS a FROM t ORDER BY i")
f.error("SELECT -(i::uint64) FROM t", "type_error: the sign `-` is not defined")

f.note("Texts of CSV files that are NULL.")
GAPS = "'tests/data/tables/gaps.csv'"
for options in ("nullstr => ['', 'NA', '-']", "nullstr => 'NA'", "nullstr => ['NA', '-'], all_varchar => true"):
    sql = f"SELECT a, b = '' AS b0, b IS NULL AS b1, c, c IS NULL AS c1 FROM read_csv({GAPS}, {options}) WHERE coalesce(a, '') <> '' OR c IS NULL" if "''" not in options else f"SELECT a, b, c, a + c AS s FROM read_csv({GAPS}, {options})"
    same(sql.replace("c, c IS NULL", "nullif(c, '') AS c, c IS NULL"), sql.replace("c, c IS NULL", "nullif(c, '') AS c, c IS NULL").replace("=>", "="))
f.error(f"SELECT * FROM read_csv({GAPS}, nullstr => [1])", "syntax: `nullstr` takes texts")
f.error(f"SELECT * FROM read_csv({GAPS}, delimiter => [';'])", "syntax: `delimiter` of `read_csv` must be a literal")
f.ok(f"CREATE EXTERNAL TABLE gaps STORED AS CSV LOCATION {GAPS} OPTIONS (nullstr 'NA')")
same("SELECT count(a) AS a, count(b) AS b, count(c) AS c FROM gaps", f"SELECT count(a) AS a, count(b) AS b, count(c) AS c FROM read_csv({GAPS}, nullstr = 'NA')")

f.note("UUIDs of Parquet are texts.")
UUIDS = "'tests/data/tables/uuids.parquet'"
same(f"SELECT n, id FROM {UUIDS} ORDER BY n", f"SELECT n, id::text AS id FROM {UUIDS} ORDER BY n")
same(f"SELECT n FROM {UUIDS} WHERE id = '25303b46-515c-6772-7d88-939ea9b4bfca'")
same(f"SELECT count(DISTINCT id) AS a, max(id) AS b FROM {UUIDS} WHERE n < 3", f"SELECT count(DISTINCT id) AS a, max(id::text) AS b FROM {UUIDS} WHERE n < 3")
same(f"SELECT a.n, b.n AS m FROM {UUIDS} a LEFT JOIN {UUIDS} b ON a.id = b.id ORDER BY ALL")
