"""sql/cells/series: series and the elements of lists as relations, expected from DuckDB."""

from datetime import datetime

import duckdb
import numpy as np

from .core import ERA5, Script
from .labels import air

cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
con = duckdb.connect()
con.execute("CREATE TABLE era5 AS SELECT * FROM cells")
VIEWS = [
    "CREATE VIEW counts AS SELECT * FROM (VALUES (1, 2, 'a'), (2, 0, 'b'), (3, NULL, 'c'), (4, 1, 'a')) v(id, n, k)",
    "CREATE VIEW lists AS SELECT id, range(n) AS a, string_to_array('x,y', ',') AS s FROM counts",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/series", "Series and the elements of lists in FROM. Expected values from DuckDB.", setup=[ERA5, *VIEWS])
many = Script("cells/series_many", "Series of many rows. Expected values from DuckDB.", chunks="16KiB")


def same(sql, script=f):
    rows = con.execute(sql).fetchall()
    assert rows, sql
    script.rows(sql, [tuple(np.datetime64(v) if isinstance(v, datetime) else v for v in row) for row in rows])


f.note("Integers: `range` ends before its stop, `generate_series` at it.")
same("SELECT * FROM generate_series(1, 3)")
same("SELECT * FROM generate_series(3)")
same("SELECT range.range AS a, range AS b FROM range(3)")
same("SELECT * FROM range(5, 1, -2)")
same("SELECT * FROM generate_series(5, 1, -2) ORDER BY 1")
same("SELECT * FROM range(1 + 1, abs(-4))")
same("SELECT i FROM generate_series(1, 10, 3) t(i) WHERE i > 2")
same("SELECT i, i.i + i.generate_series AS k FROM generate_series(1, 2) i")
same("SELECT count(*) AS n FROM generate_series(5, 1)")
same("SELECT count(*) AS n FROM range(1, NULL)")
same("SELECT * FROM range(9223372036854775805, 9223372036854775807)")
same("SELECT * FROM generate_series(9223372036854775805, 9223372036854775807)")
same("SELECT count(*) AS n, sum(i) AS s, min(i) AS a, max(i) AS b FROM range(3, 1000000, 7) t(i)", script=many)
same("SELECT i % 3 AS k, count(*) AS n, sum(i) AS s FROM range(200000) t(i) GROUP BY k ORDER BY k", script=many)
same("SELECT i FROM range(200000) t(i) ORDER BY i DESC LIMIT 2", script=many)
same("SELECT i FROM range(1000000000000000) t(i) LIMIT 2 OFFSET 5")
same("SELECT a.i, b.j FROM range(3) a(i), range(2) b(j) ORDER BY ALL")
same("SELECT i FROM range(4) t(i) WHERE i NOT IN (SELECT generate_series FROM generate_series(1, 2)) ORDER BY i")

f.note("Dates and times. A month is added to the row before.")
same("SELECT * FROM generate_series(date '2020-01-31', date '2020-06-01', INTERVAL '1 month')")
same("SELECT * FROM range(timestamp '2020-01-01', timestamp '2020-01-02', INTERVAL '6 hours')")
same("SELECT t FROM generate_series(timestamp '2020-01-02', timestamp '2020-01-01', INTERVAL '-12 hours') s(t)")
same("SELECT t FROM range(date '2020-01-02', timestamp '2020-01-05', INTERVAL '1 day') s(t)")
same("SELECT * FROM generate_series(timestamp '2020-01-01', timestamp '2020-03-01', INTERVAL '15 days 12 hours')")
same("SELECT * FROM generate_series(timestamp '2020-01-01', timestamp '2020-02-15 12:00:00', INTERVAL '1 month 1 day')")
same("SELECT count(*) AS n FROM range(timestamp '2020-01-01', timestamp '2020-01-02', INTERVAL '-6 hours')")
same("SELECT count(*) AS n, min(t) AS a, max(t) AS b FROM range(timestamp '2019-10-01', timestamp '2020-01-01', INTERVAL '1 minute') s(t)", script=many)
same(
    "SELECT d.t, count(e.t2m) AS n FROM generate_series(timestamp '2018-12-01', timestamp '2019-03-01', INTERVAL '1 month') d(t) LEFT JOIN era5 e ON date_trunc('month', e.time) = d.t GROUP BY d.t ORDER BY d.t"
)

f.note("Elements of lists.")
same("SELECT * FROM unnest([1, 2, 3])")
same("SELECT unnest.unnest AS a FROM unnest(['x', 'y'])")
same("SELECT u, u.unnest + 1 AS b FROM unnest([1, 2]) u")
same("SELECT x FROM unnest([3, 1, 2]) u(x) WHERE x > 1 ORDER BY x")
same("SELECT a.x, b.y FROM unnest([1, 2]) a(x) JOIN unnest([2, 3]) b(y) ON a.x = b.y")

f.note("Elements of lists of the relations before, and series of their columns.")
same("SELECT id, x FROM lists, unnest(lists.a) u(x) ORDER BY ALL")
same("SELECT id, x FROM lists, unnest(a) u(x) ORDER BY ALL")
same("SELECT id, unnest FROM lists CROSS JOIN unnest(lists.a) ORDER BY ALL")
same("SELECT l.id, u FROM lists l, LATERAL unnest(l.a) u ORDER BY ALL")
same("SELECT * FROM unnest(['x', 'y', 'x']) WITH ORDINALITY ORDER BY ordinality DESC")
same("SELECT u.x, u.i + 1 AS j FROM unnest([10, 20, 30]) WITH ORDINALITY AS u(x, i) WHERE i > 1 ORDER BY j")
same("SELECT u.u, u.ordinality, ordinality * 2 AS d FROM unnest([10, NULL]) WITH ORDINALITY AS u ORDER BY 2")
same("SELECT x, ordinality FROM range(5, 8) WITH ORDINALITY t(x) ORDER BY x")
same("SELECT id, x, i FROM lists, unnest(lists.s) WITH ORDINALITY u(x, i) ORDER BY ALL")
same("SELECT id, x, i FROM lists, LATERAL unnest(a) WITH ORDINALITY u(x, i) WHERE i = x + 1 ORDER BY ALL")
same("SELECT id, x, i FROM lists LEFT JOIN unnest(lists.a) WITH ORDINALITY u(x, i) ON true ORDER BY ALL")
same("SELECT c.id, j, i FROM counts c, generate_series(c.id, c.id + c.n) WITH ORDINALITY g(j, i) ORDER BY ALL")
same("SELECT i, count(*) AS n, max(x) AS m FROM lists, unnest(lists.s) WITH ORDINALITY u(x, i) GROUP BY i ORDER BY i")
same("SELECT id, x FROM lists LEFT JOIN unnest(lists.a) u(x) ON true ORDER BY ALL")
same("SELECT id, x FROM lists JOIN unnest(lists.a) u(x) ON x > 0 ORDER BY ALL")
same("SELECT id, x, y FROM lists, unnest(a) u(x), unnest(s) v(y) WHERE y <> 'x' ORDER BY ALL")
same("SELECT l.id, u.id AS x FROM lists l, unnest(l.a) u(id) ORDER BY ALL")
same("SELECT id, x FROM lists, LATERAL (SELECT unnest(lists.a) AS x) ORDER BY ALL")
same("SELECT id, x, c FROM lists, LATERAL (SELECT unnest(lists.a) + 1 AS x, 5 AS c) ORDER BY ALL")
same("SELECT id, x FROM lists LEFT JOIN LATERAL (SELECT unnest(lists.a) AS x) ON true ORDER BY ALL")
# A row without elements has no value there.
for item in ("unnest(lists.a) AS x, 5 AS c", "coalesce(unnest(lists.a), 0) AS x"):
    same(f"SELECT id, x FROM lists LEFT JOIN LATERAL (SELECT {item}) q ON true ORDER BY ALL")
same("SELECT * EXCLUDE (a, s), x + 1 AS y FROM lists JOIN counts USING (id), unnest(lists.a) u(x) ORDER BY id, x")
same("SELECT l.id, q.m, n FROM lists l JOIN counts USING (id), LATERAL (SELECT l.id * 2 AS m) q ORDER BY l.id")
same("SELECT id, id_1 FROM (SELECT * FROM lists l, unnest(l.a) u(id)) q ORDER BY ALL")
same("SELECT id, id_1 FROM (SELECT l.id, q.* FROM lists l, LATERAL (SELECT l.id * 2 AS id) q) z ORDER BY ALL")
same("SELECT i, j FROM generate_series(1, 3) g(i), range(i) r(j) ORDER BY ALL")
same("SELECT id, j, j * 2 AS d FROM counts c, generate_series(c.id, c.id + c.n) g(j) ORDER BY ALL")
same("SELECT * FROM range((SELECT max(id) FROM counts)) ORDER BY ALL")
same("SELECT w, count(*) AS n FROM (VALUES ('a b a'), ('b')) v(s), unnest(string_to_array(s, ' ')) u(w) GROUP BY w ORDER BY w")
same("SELECT k, count(*) AS n FROM (SELECT k, array_agg(id) AS l FROM counts GROUP BY k) q, unnest(q.l) u(x) GROUP BY k, x ORDER BY ALL")
same("SELECT DISTINCT k, x > 1 AS b FROM (SELECT k, array_agg(id) AS l FROM counts GROUP BY k) q, unnest(q.l) u(x) ORDER BY ALL")

f.note("Subqueries as values and EXISTS over the elements of lists of the relations outside.")
same("SELECT id, (SELECT sum(x) FROM unnest(lists.a) u(x)) AS s, (SELECT count(*) FROM unnest(lists.a) u(x)) AS c FROM lists ORDER BY id")
same("SELECT id, (SELECT max(x) FROM unnest(lists.a) u(x) WHERE x < lists.id) AS m FROM lists ORDER BY id")
same("SELECT id, 1 + (SELECT count(DISTINCT x) * 10 FROM unnest(lists.s) u(x)) AS n FROM lists ORDER BY id")
same("SELECT id, (SELECT count(*) FILTER (WHERE x <> 'y') FROM unnest(lists.s) u(x)) AS n FROM lists ORDER BY id")
same("SELECT id, (SELECT count(DISTINCT (x - 1) * 0.0::double) FROM unnest(lists.a) u(x)) AS n FROM lists ORDER BY id")
same("SELECT id, (SELECT count(*) FILTER (WHERE NULL) FROM unnest(lists.s) u(x)) AS n FROM lists ORDER BY id")
same("SELECT id, (SELECT sum(x) FROM unnest(q.l) u(x) WHERE x > q.id) AS s FROM (SELECT id, range(id * 4000) AS l FROM counts) q ORDER BY id")
same("SELECT id, (SELECT sum(i * x) FROM unnest(lists.a) WITH ORDINALITY u(x, i)) AS s FROM lists ORDER BY id")
same("SELECT id, (SELECT count(*) FROM range(counts.n) r(i) WHERE i <> 1) AS c FROM counts ORDER BY id")
same("SELECT id FROM lists WHERE EXISTS (SELECT 1 FROM unnest(lists.a) u(x) WHERE x > 0) ORDER BY id")
same("SELECT id FROM lists WHERE NOT EXISTS (SELECT 1 FROM unnest(a) u(x)) ORDER BY id")
same("SELECT id FROM lists WHERE (SELECT min(x) FROM unnest(lists.a) u(x)) = 0 ORDER BY id")
same("SELECT id, (SELECT count(*) FROM unnest(lists.a) u(x) HAVING sum(x) > 0) AS c, coalesce((SELECT count(*) FROM unnest(lists.a) u(x) HAVING count(*) > 1), -1) AS d FROM lists ORDER BY id")
same("SELECT id FROM lists WHERE (SELECT count(*) FROM unnest(lists.a) u(x) HAVING count(*) > 1) IS NULL ORDER BY id")
same("SELECT id FROM lists WHERE (SELECT count(*) FROM unnest(lists.a) u(x) HAVING count(*) > 1) IS NULL UNION ALL SELECT n FROM counts WHERE n = 2 ORDER BY id")
f.error("SELECT id, (SELECT sum(x) FROM unnest(lists.a) u(x) GROUP BY x) AS s FROM lists", "(unsupported|plan_error)")

f.note("IN, ANY and ALL over the elements of lists of the relations outside; NULL counts.")
same("SELECT id, 1 IN (SELECT x FROM unnest(lists.a) u(x)) AS f, id - 1 NOT IN (SELECT u.x FROM unnest(lists.a) u(x)) AS g FROM lists ORDER BY id")
same("SELECT id FROM lists WHERE id - 1 IN (SELECT x FROM unnest(lists.a) u(x)) ORDER BY id")
same("SELECT id FROM lists WHERE id - 1 NOT IN (SELECT x FROM unnest(lists.a) u(x)) ORDER BY id")
NULLS = "(SELECT c.id, c.n, q.l FROM counts c, (SELECT array_agg(n) AS l FROM counts) q) t"
same(f"SELECT id, id IN (SELECT x FROM unnest(t.l) u(x)) AS f, id NOT IN (SELECT x FROM unnest(t.l) u(x)) AS g, n IN (SELECT x FROM unnest(t.l) u(x)) AS h FROM {NULLS} ORDER BY id")
same(f"SELECT id FROM {NULLS} WHERE id NOT IN (SELECT x FROM unnest(t.l) u(x) WHERE x < 2) ORDER BY id")
same(f"SELECT id, id IN (SELECT x FROM unnest(t.l) u(x) WHERE x <> t.id) AS f, id < ANY (SELECT x FROM unnest(t.l) u(x)) AS g, id > ALL (SELECT x FROM unnest(t.l) u(x)) AS h FROM {NULLS} ORDER BY id")
same("SELECT id, counts.n IN (SELECT x FROM unnest(lists.a) u(x)) AS f FROM lists JOIN counts USING (id) ORDER BY id")
same("SELECT id, id = ANY (SELECT x + 1 FROM unnest(lists.a) u(x)) AS f, id <= ALL (SELECT x FROM unnest(lists.a) u(x)) AS g FROM lists ORDER BY id")
same("SELECT id, 'y' IN (SELECT DISTINCT x FROM unnest(lists.s) u(x)) AS f FROM lists ORDER BY id")
same("SELECT count(*) FILTER (WHERE 0 IN (SELECT x FROM unnest(lists.a) u(x))) AS n FROM lists")
same("SELECT id, (SELECT max(x) FROM unnest(lists.a) u(x)) IN (SELECT x FROM unnest(lists.a) u(x)) AS f FROM lists ORDER BY id")
same("SELECT id, 0.0::double / 0 IN (SELECT x * 0.0::double / 0 FROM unnest(lists.a) u(x)) AS f FROM lists ORDER BY id")
same("SELECT id, id - 1 IN (SELECT x FROM unnest(lists.a) u(x)) AND id NOT IN (SELECT x + 2 FROM unnest(lists.a) u(x)) AS f FROM lists ORDER BY id")
same("SELECT id, NULL::int IN (SELECT x FROM unnest(lists.a) u(x)) AS f, NULL::int > ALL (SELECT x FROM unnest(lists.a) u(x)) AS g FROM lists ORDER BY id")
same("SELECT id, (id - 0.5)::double < ANY (SELECT x FROM unnest(lists.a) u(x)) AS f FROM lists ORDER BY id")
same("SELECT lists.id, counts.id AS c FROM lists JOIN counts ON counts.id IN (SELECT x FROM unnest(lists.a) u(x)) ORDER BY ALL")
same("SELECT lists.id FROM lists GROUP BY lists.id, lists.a HAVING max(lists.id) NOT IN (SELECT x + 1 FROM unnest(lists.a) u(x)) ORDER BY id")
f.note("Lists of series: those of dates have timestamps.")
same("SELECT l[1] AS a, l[3] AS b, array_length(l) AS n, m[2] AS c, array_length(m) AS k FROM (SELECT generate_series(date '2020-01-31', date '2020-05-01', INTERVAL '1 month') AS l, range(date '2020-01-01', date '2020-01-02', INTERVAL '6 hours') AS m FROM counts WHERE id = 1) q")
same("SELECT id, t FROM (SELECT id, date '2020-01-01' AS d FROM counts) c, range(c.d, date '2020-01-03', INTERVAL '1 day') s(t) WHERE id < 3 ORDER BY ALL")
same("SELECT l[4] AS a, m[3] AS b, array_length(k) AS c FROM (SELECT generate_series(3) AS l, generate_series(1, 5, 2) AS m, range(2, 9, 3) AS k FROM counts WHERE id = 1) q")
f.note("Rows of values; DuckDB refuses these, and has the same values with EXISTS.")
pairs = con.execute("SELECT id, EXISTS (SELECT 1 FROM unnest(lists.a) WITH ORDINALITY u(x, i) WHERE (x, i) = (lists.id - 1, lists.id)) AS f FROM lists ORDER BY id").fetchall()
f.rows("SELECT id, (id - 1, id) IN (SELECT x, i FROM unnest(lists.a) WITH ORDINALITY u(x, i)) AS f FROM lists ORDER BY id", pairs)
f.rows("SELECT id, (id - 1, id) NOT IN (SELECT x, i FROM unnest(lists.a) WITH ORDINALITY u(x, i)) AS f FROM lists ORDER BY id", [(id, not found) for id, found in pairs])

f.note("Arguments that the functions do not take.")
for sql in (
    "SELECT * FROM range(1, 5, 0)",
    "SELECT * FROM range(2.5)",
    "SELECT * FROM range('a')",
    "SELECT * FROM range(stop => 3)",
    "SELECT * FROM range(1, 2, 3, 4)",
    "SELECT * FROM range(timestamp '2020-01-01', timestamp '2020-05-01')",
    "SELECT * FROM range(timestamp '2020-01-01', timestamp '2020-05-01', INTERVAL '0 hours')",
    "SELECT * FROM range(timestamp '2020-01-01', timestamp '2020-05-01', INTERVAL '1 month -1 day')",
):
    f.error(sql, "type_error: `range` in FROM")
