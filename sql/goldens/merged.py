"""sql/cells/using: the one column of USING and NATURAL, every kind of join, expected from DuckDB over the same cells as rows."""

import duckdb
import numpy as np
import pyarrow as pa

from .core import EXTERNAL, Script, group, read

con = duckdb.connect()
con.execute("SET threads = 1")


def rows_of(path, dims):
    """The cells of a store as an Arrow table: NaN stay NaN, masked cells are NULL."""
    arrays = {name: (list(a.metadata.dimension_names), read(a)) for name, a in group(path).arrays()}
    shape = [len(arrays[d][1]) for d in dims]
    columns = {}
    for name in [*dims, *(n for n in arrays if n not in dims)]:
        own, values = arrays[name]
        if str(values.dtype) == "object" or values.dtype.kind in "UT":
            values = np.asarray(values, dtype=object)
        places = [own.index(d) if d in own else None for d in dims]
        wide = np.ma.transpose(values, [p for p in places if p is not None])
        wide = wide.reshape([n if p is not None else 1 for n, p in zip(shape, places)])
        mask = np.broadcast_to(np.ma.getmaskarray(wide), shape).ravel()
        columns[name] = pa.array(np.broadcast_to(np.ma.getdata(wide), shape).ravel(), mask=mask if mask.any() else None)
    return pa.table(columns)


for name, dims in (("gr", ["y", "x"]), ("xs", ["x", "e"]), ("st", ["lat", "z"]), ("one", ["i"])):
    data = rows_of(f"random/{name}.zarr", dims)
    con.execute(f"CREATE TABLE {name} AS SELECT * FROM data")
# wx without its times, which are no matter here.
wx = rows_of("random/wx.zarr", ["time", "lat", "lon"])
con.execute("CREATE TABLE wx AS SELECT * FROM wx")
con.execute("CREATE TABLE belts AS SELECT * FROM read_csv('tests/data/tables/belts.csv')")

f = Script(
    "cells/using",
    "USING and NATURAL: one column, whichever side has it. Expected values from DuckDB.",
    1e-12,
    setup=[EXTERNAL.format(n, "ZARR", f"random/{n}.zarr") for n in ("gr", "xs", "st", "one", "wx")]
    + ["CREATE EXTERNAL TABLE belts STORED AS CSV LOCATION 'tests/data/tables/belts.csv'"],
)


def same(sql, duck=None):
    """A query with an ORDER BY of all rows, over both."""
    result = con.execute(duck or sql)
    types = [str(d[1]) for d in result.description]
    rows = result.fetchall()
    assert rows, sql
    shown = lambda v, t: np.float32(v) if t == "FLOAT" and v is not None else v
    f.rows(sql, [[shown(v, t) for v, t in zip(row, types)] for row in rows])


KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
g, s = "(SELECT x, sum(m) AS g FROM gr GROUP BY x)", "(SELECT x, count(a) AS s FROM xs GROUP BY x)"
for kind in KINDS:
    f.note(f"{kind}: items, groups, sums, order, conditions, `*`.")
    on = f"gr l {kind} xs r USING (x)"
    same(f"SELECT x, count(*) AS n, sum(x) AS t, count(l.x) AS a, count(r.x) AS b FROM {on} GROUP BY x ORDER BY x")
    same(f"SELECT sum(x) AS t, min(x) AS a, max(x) AS b, count(x) AS n, count(DISTINCT x) AS d, count(*) AS c FROM {on}")
    same(f"SELECT x, l.x AS a, r.x AS b, y, e FROM {on} WHERE x > 3 AND (y = 10 OR y IS NULL) ORDER BY x, y, e")
    same(f"SELECT x + 1 AS k, count(*) AS n FROM {on} GROUP BY x + 1 HAVING min(x) < 20 ORDER BY k DESC")
    same(f"SELECT DISTINCT x FROM {on} ORDER BY x")
    same(f"SELECT x, max(y) AS y FROM {on} WHERE x IN (2, 9, 15, 100) GROUP BY x HAVING x <> 9 ORDER BY max(x) DESC")
    same(f"SELECT y, sum(x) OVER (PARTITION BY y ORDER BY x, e) AS t FROM {on} WHERE e = 0.5 OR e IS NULL ORDER BY y NULLS LAST, x")
    same(f"SELECT * FROM {g} l {kind} {s} r USING (x) ORDER BY x")
    same(f"SELECT * EXCLUDE (g) FROM {g} l {kind} {s} r USING (x) ORDER BY x")
    same(f"SELECT -x AS x FROM {g} l {kind} {s} r USING (x) ORDER BY x")
    same(f"SELECT * FROM {g} {kind} {s} USING (x) ORDER BY x")
    f.note(f"NATURAL {kind}.")
    same(f"SELECT * FROM {g} l NATURAL {kind} {s} r ORDER BY x")
    same(f"SELECT x, count(*) AS n, sum(x) AS t FROM {g} l NATURAL {kind} {s} r WHERE x < 50 GROUP BY x ORDER BY x")
    f.note("Labels of floats; a table of rows on either side.")
    same(f"SELECT lat, count(*) AS n, avg(lat) AS a FROM (SELECT DISTINCT lat, lon FROM wx) w {kind} st USING (lat) GROUP BY lat ORDER BY lat")
    same(f"SELECT lat, belt, z FROM st {kind} belts USING (lat) WHERE lat >= 0 ORDER BY lat, z, belt")
    same(f"SELECT lat, count(*) AS n FROM belts {kind} st USING (lat) GROUP BY lat ORDER BY lat")
    same(f"SELECT lat, belt, n FROM belts NATURAL {kind} (SELECT lat, count(*) AS n FROM st GROUP BY lat) q ORDER BY lat")
    f.note("Two columns.")
    two = "(SELECT y, x, m FROM gr WHERE y < 25) l {} (SELECT y, x + 1 AS x, w FROM gr WHERE y > 5 AND x < 9) r USING (y, x)".format(kind)
    same(f"SELECT y, x, m, w FROM {two} ORDER BY y, x")
    same(f"SELECT y, count(*) AS n, sum(x) AS t, sum(x * y) AS p FROM {two} GROUP BY y ORDER BY y")
    same(f"SELECT * FROM {two} WHERE x > 2 OR y = 30 ORDER BY y, x")
    for other in KINDS:
        f.note(f"Three relations: {kind}, {other}.")
        three = f"{g} a {kind} {s} b USING (x) {other} (SELECT i AS x, count(d) AS o FROM one GROUP BY i) c USING (x)"
        same(f"SELECT x, a.x AS a, b.x AS b, c.x AS c, g, s, o FROM {three} ORDER BY x")
        same(f"SELECT * FROM {three} WHERE x % 2 = 1 ORDER BY x")

f.note("In CTEs, subqueries and set operations; ORDER BY an expression of it; ON after USING.")
same(f"WITH q AS (SELECT x, g FROM {g} l FULL JOIN {s} r USING (x)) SELECT q.x, q.g, o.i FROM q FULL JOIN one o ON q.x = o.i ORDER BY q.x, o.i")
same(f"SELECT x FROM {g} l FULL JOIN {s} r USING (x) UNION ALL SELECT x FROM {g} l RIGHT JOIN {s} r USING (x) ORDER BY x")
same(f"SELECT g, s FROM {g} l FULL JOIN {s} r USING (x) ORDER BY x % 4, x")
same(f"SELECT x, i FROM {g} l FULL JOIN {s} r USING (x) LEFT JOIN one ON i = x + 1 ORDER BY x")
same(f"SELECT x, s FROM (SELECT * FROM {g} l FULL JOIN {s} r USING (x)) q WHERE x IN (SELECT x FROM {g} l RIGHT JOIN {s} r USING (x)) ORDER BY x")
same("SELECT x, count(*) AS n FROM gr JOIN xs USING (x) WHERE x > 1 AND e < 1 GROUP BY ROLLUP (x) ORDER BY x")
f.note("Semi and anti joins.")
same("SELECT x, y FROM gr SEMI JOIN xs USING (x) WHERE y = 0 ORDER BY x")
same("SELECT x, y FROM gr ANTI JOIN xs USING (x) WHERE x > 4 AND y = 0 ORDER BY x")
f.note("What there is not.")
f.error("SELECT y FROM gr JOIN xs USING (q)", "unknown_name")
f.error("SELECT x FROM gr a JOIN xs b USING (x) JOIN gr c ON a.y = c.y WHERE x > 3", "ambiguous_name")
