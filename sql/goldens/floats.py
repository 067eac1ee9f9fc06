"""sql/cells/floats: NaN, both zeros, infinities and NULL through everything that compares, expected from DuckDB."""

import duckdb

from .core import Script

N, INF = None, float("inf")
V = [
    [1.0, float("nan"), -0.0, 2.0, N, -INF],
    [INF, -INF, 0.0, -0.0, 3.0, N],
    [N, N, N, N, N, N],
    [-0.0, 0.0, -0.0, -1.0, 1.0, 0.5],
    [float("nan"), float("nan"), 1.0, INF, INF, -2.0],
]
W = [[row[(j + 2) % 6] for j in range(6)] for row in V[1:] + V[:1]]


def literal(v):
    if v is None:
        return "NULL"
    return {"nan": "nan()", "inf": "inf()", "-inf": "-inf()"}.get(str(v), repr(v))


def text(rows):
    return "[" + ", ".join("[" + ", ".join(map(literal, row)) + "]" for row in rows) + "]"


con = duckdb.connect()
con.execute("SET threads = 1")
con.execute("CREATE TABLE t (i BIGINT, j BIGINT, v DOUBLE, w DOUBLE)")
con.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(i, j, V[i][j], W[i][j]) for i in range(5) for j in range(6)])
SETUP = [f"CREATE TEMP TENSOR t AS SELECT rename({text(V)}, dim_0 => 'i', dim_1 => 'j') AS v, rename({text(W)}, dim_0 => 'i', dim_1 => 'j') AS w"]

MADE = ("v", "v - v", "v * 0", "-v", "v + w", "v * w", "abs(v) - abs(w)", "greatest(v, w)", "least(v, v - v)", "greatest(v, v * 0)", "nullif(v, 0)", "nullif(v * 0, 'NaN')", "coalesce(v - v, w)", "CASE v WHEN 0 THEN -v ELSE v - w END", "CASE WHEN v > w THEN v - v ELSE w END")


# Where the expression itself is not the point.
SOME = ("v", "v - v", "-v", "greatest(v, v * 0)", "nullif(v, 0)")


def script(name, about):
    return Script(f"cells/{name}", f"{about}: NaN, both zeros, infinities, NULL. Expected values from DuckDB.", 1e-12, setup=SETUP)


def same(sql, duck=None):
    rows = con.execute(duck or sql).fetchall()
    # A group of both zeros shows the positive one.
    f.rows(sql, [[v + 0.0 if isinstance(v, float) else v for v in row] for row in rows])


def made(of=MADE):
    """Each expression; + 0.0 takes the sign of zero, of which DuckDB keeps either."""
    return [(e, f"{e} + 0.0" if e in ("v", "-v") else f"({e}) + 0.0") for e in of]


f = script("floats_where", "Conditions")
for e, shown in made():
    f.note(e.replace("\n", " "))
    same(f"SELECT i, j, {shown} AS e FROM t WHERE i > -1 ORDER BY i, j")
    for condition in ("{} > 0.5", "{} >= 0", "{} < 0", "{} <= -0.0", "{} = 0", "{} <> 0", "{} = 'NaN'", "{} > w", "{} = w", "{} IS DISTINCT FROM w", "{} BETWEEN 0 AND 1", "{} IN (0, 1, 'NaN')", "{} NOT IN (-0.0, 2)",
                      "{} > (SELECT avg(w) FROM t)", "{} <= (SELECT max(v - v) FROM t)", "{} IN (SELECT w FROM t WHERE i = 3)", "NOT ({} > 1 OR {} = 0)"):
        same(f"SELECT count(*) AS n, sum(i * 10 + j) AS k FROM t WHERE {condition.replace('{}', f'({e})')}")

f = script("floats_lists", "Lists of IN put together: three-valued, items compared as values")
for a, b in (("v IN (-2, 1)", "v NOT IN (-2, 3, NULL)"), ("v NOT IN (1)", "v NOT IN (2)"), ("v IN (1, 2)", "v IN (2, NULL)"), ("v IN (w)", "v IN (v)"), ("i IN (1, 2)", "i NOT IN (2, NULL)"), ("i IN (j)", "i IN (i)"),
             ("v = 1 OR v = 2", "v = 2 OR v = 0.5"), ("v = 0 OR v = 2 OR v = 3 OR v = 1", "v IN (0, 0.5)"), ("i = 1 OR i = 3", "i NOT IN (3, 4)"), ("v NOT IN (0, 1)", "v IN (2, 3, 0)"), ("v IN (-0.0, 'NaN')", "v NOT IN (w, 1)")):
    for way in ("({}) AND ({})", "({}) OR ({})", "NOT (({}) AND ({}))", "NOT (({}) OR ({}))", "(({}) AND ({})) IS NULL"):
        same(f"SELECT count(*) AS n, sum(i * 10 + j) AS k FROM t WHERE {way.format(a, b)}")
    same(f"SELECT i, j, ({a}) AND ({b}) AS c, ({a}) OR ({b}) AS d FROM t WHERE i <> 2 ORDER BY i, j")
    same(f"SELECT count(*) AS n FROM (SELECT * FROM t WHERE {a}) q WHERE {b}")

f = script("floats_groups", "Aggregates and groups")
for e, shown in made():
    f.note(e)
    calls = f"min({e}) + 0.0 AS a, max({e}) + 0.0 AS b, sum({e}) + 0.0 AS s, avg({e}) + 0.0 AS m, count({e}) AS n, count(DISTINCT {e}) AS d, sum(DISTINCT {e}) + 0.0 AS sd, bool_and({e} > 0) AS p, bool_or({e} = 'NaN') AS q"
    same(f"SELECT {calls} FROM t WHERE i > -1")
    same(f"SELECT i, {calls} FROM t GROUP BY i ORDER BY i")
    same(f"SELECT {shown} AS k, count(*) AS n, sum(i) AS s FROM t GROUP BY {e} ORDER BY k NULLS FIRST")
    same(f"SELECT i, avg({e}) + 0.0 AS m FROM t GROUP BY i HAVING avg({e}) > 5 ORDER BY i")
    same(f"SELECT i, sum({e}) + 0.0 AS m FROM t GROUP BY i HAVING sum({e}) = 'NaN' OR max({e}) < 4 ORDER BY i")
    same(f"SELECT max(s) + 0.0 AS a, min(s) + 0.0 AS b, count(DISTINCT s) AS d, greatest(max(s), min(s)) + 0.0 AS g FROM (SELECT i, sum({e}) AS s FROM t GROUP BY i) q")
    same(f"SELECT s + 0.0 AS s, count(*) AS n FROM (SELECT j, sum({e}) AS s FROM t GROUP BY j) q GROUP BY s ORDER BY s NULLS LAST")
    same(f"SELECT sum(CASE {e} WHEN 0 THEN 1 WHEN 'NaN' THEN 100 ELSE 0 END) AS n, count(nullif({e}, 0)) AS c FROM t WHERE i > -1")

f = script("floats_order", "Order, windows, DISTINCT, set operations")
for e, shown in made(SOME):
    f.note(e)
    same(f"SELECT {shown} AS k, i, j FROM t ORDER BY {e} NULLS LAST, i DESC, j LIMIT 12")
    same(f"SELECT i, j FROM t WHERE ({e}) IS NOT NULL ORDER BY {e} DESC NULLS LAST, i, j LIMIT 7")
    same(f"SELECT DISTINCT {shown} AS k FROM (SELECT {e} AS e, * FROM t) q ORDER BY k NULLS LAST".replace(shown, "e + 0.0"))
    over = f"OVER (ORDER BY {e} NULLS LAST)"
    same(f"SELECT i, j, rank() {over} AS r, dense_rank() {over} AS d, count(*) {over} AS n, percent_rank() {over} AS p FROM t ORDER BY i, j")
    over = f"OVER (PARTITION BY {e} ORDER BY i, j)"
    same(f"SELECT i, j, row_number() {over} AS r, sum(i) {over} AS s, lag(j) {over} AS l FROM t ORDER BY i, j")
    over = "OVER (PARTITION BY i ORDER BY j ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)"
    same(f"SELECT i, j, min({e}) {over} + 0.0 AS a, max({e}) {over} + 0.0 AS b, sum({e}) {over} + 0.0 AS s, count({e}) {over} AS n FROM t ORDER BY i, j")
    same(f"SELECT count(*) AS n, sum(i) AS s FROM (SELECT i, j, max({e}) {over} AS b, sum({e}) {over} AS s FROM t) q WHERE b > 1 OR s > 2 OR s = 'NaN'")
    for op in ("UNION", "INTERSECT", "EXCEPT", "UNION ALL"):
        same(f"SELECT k + 0.0 AS k FROM (SELECT {e} AS k FROM t {op} SELECT w AS k FROM t WHERE i IN (1, 3)) q ORDER BY k NULLS LAST")
    same(f"SELECT count(*) AS n FROM (SELECT {e} AS k, i FROM t INTERSECT SELECT w AS k, i FROM t) q")

f = script("floats_joins", "Joins on values")
for e, shown in made(SOME):
    f.note(e)
    a, b = f"(SELECT i, j, {e} AS k FROM t WHERE i > -1) a", "(SELECT i, j, w AS k FROM t WHERE i IN (0, 1, 3)) b"
    for kind in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"):
        same(f"SELECT count(*) AS n, count(a.k) AS a, count(b.k) AS b, sum(a.i * 10 + b.j) AS s FROM {a} {kind} {b} ON a.k = b.k")
        same(f"SELECT k + 0.0 AS k, count(*) AS n FROM {a} {kind} {b} USING (k) GROUP BY k ORDER BY k NULLS LAST")
    same(f"SELECT count(*) AS n, sum(a.i) AS s FROM {a} JOIN {b} ON a.k < b.k")
    same(f"SELECT count(*) AS n, sum(a.i) AS s FROM {a} JOIN {b} ON a.k IS NOT DISTINCT FROM b.k")
    same(f"SELECT count(*) AS n, sum(a.i) AS s FROM {a} WHERE EXISTS (SELECT 1 FROM {b} WHERE b.k = a.k)")
    same(f"SELECT count(*) AS n, sum(a.i) AS s FROM {a} WHERE NOT EXISTS (SELECT 1 FROM {b} WHERE b.k >= a.k)")
    same(f"SELECT count(*) AS n, sum(a.i) AS s FROM {a} WHERE a.k IN (SELECT k FROM {b})")
    same(f"SELECT a.i, a.j, (SELECT count(*) FROM {b} WHERE b.k = a.k) AS n FROM {a} WHERE a.j < 4 ORDER BY a.i, a.j")
