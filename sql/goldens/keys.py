"""sql/cells/keys: labels as keys of groups and joins, expected from DuckDB over the same labels as rows."""

from decimal import Decimal

import duckdb
import numpy as np

from .core import Script

f = Script("cells/keys", "Labels as keys: NULL beside a whole row of a left join, one zero, one NaN, casts, order by first positions.")
con = duckdb.connect()
con.execute("CREATE TABLE a AS SELECT y, x, 0.0::double AS v FROM range(2) t(y), range(3) s(x)")
con.execute("CREATE TABLE b AS SELECT y, x, 0.0::double AS v FROM range(2) t(y), range(2) s(x)")
con.execute("CREATE TABLE line AS SELECT i AS dim_0, i AS v FROM range(4) t(i)")
con.execute("CREATE TABLE hills AS SELECT * FROM (VALUES (0, 3.0::double), (1, 1.0), (2, 2.0)) t(dim_0, v)")
con.execute("CREATE TABLE few AS SELECT * FROM (VALUES (0, 1), (0, 2), (2, 3)) t(dim_0, k)")
OURS = {
    "{a}": "(SELECT zeros([2,3], dims=>['y','x']) AS v) a",
    "{b}": "(SELECT zeros([2,2], dims=>['y','x']) AS v) b",
    "{line}": "(SELECT arange(4) AS v) line",
    "{hills}": "(SELECT [3.0, 1.0, 2.0] AS v) hills",
    "{few}": "(VALUES (0, 1), (0, 2), (2, 3)) few(dim_0, k)",
}


def same(sql, order="", duck=None):
    """A query over both; `order` brings DuckDB's rows into dimension order."""
    ours, theirs = sql, duck or sql
    for name, text in OURS.items():
        ours, theirs = ours.replace(name, text), theirs.replace(name, name[1:-1])
    rows = con.execute(theirs + order).fetchall()
    # Decimals are floats here, and of the two zeros the positive one is shown.
    shown = lambda v: float(v) + 0.0 if isinstance(v, (float, Decimal)) else v
    f.rows(ours, [[shown(v) for v in row] for row in rows])


f.note("A label of the right side is NULL wherever its row meets nothing, whichever dimension says so.")
on = "{a} LEFT JOIN {b} ON a.y = b.y AND a.x = b.x"
same(f"SELECT b.y, count(*) AS n FROM {on} GROUP BY b.y", " ORDER BY b.y NULLS LAST")
same(f"SELECT a.y, b.x, count(*) AS n FROM {on} GROUP BY a.y, b.x", " ORDER BY a.y, b.x NULLS LAST")
same(f"SELECT a.y, a.x, b.y AS by, b.x AS bx FROM {on}", " ORDER BY a.y, a.x")
same(f"SELECT a.y, a.x FROM {on} WHERE b.y IS NULL", " ORDER BY a.y, a.x")
same(f"SELECT a.y, a.x, b.y + 1 AS z FROM {on} WHERE b.y IS NOT NULL", " ORDER BY a.y, a.x")
same(f"SELECT count(*) AS n, count(b.y) AS ny, count(b.x) AS nx FROM {on}")
same(f"SELECT a.x, sum(b.y) AS s, max(coalesce(b.y, -1)) AS m FROM {on} GROUP BY a.x", " ORDER BY a.x")
same(f"SELECT DISTINCT b.y FROM {on}", " ORDER BY b.y NULLS LAST")
same(f"SELECT a.y, a.x, count(*) OVER (PARTITION BY b.y) AS n FROM {on}", " ORDER BY a.y, a.x")
same(f"SELECT b.y, count(*) AS n FROM {on} WHERE a.y > 0 GROUP BY b.y", " ORDER BY b.y NULLS LAST")
same(f"SELECT a.y, b.y AS by, count(*) AS n FROM {on} GROUP BY a.y, b.y ORDER BY a.y, b.y NULLS LAST")

f.note("The two zeros are one key.")
same("SELECT round(dim_0*0.1 - 0.1) AS g, count(*) AS n FROM {line} WHERE dim_0 < 3 GROUP BY round(dim_0*0.1 - 0.1)")
same("SELECT DISTINCT round(dim_0*0.1 - 0.1) AS g FROM {line} WHERE dim_0 < 3")
same("SELECT -(dim_0 * 0.0) AS g, count(*) AS n FROM {line} GROUP BY -(dim_0 * 0.0)", duck="SELECT -(dim_0::double * 0) AS g, count(*) AS n FROM {line} GROUP BY g")
same("SELECT round(dim_0*0.1 - 0.1) AS g FROM {line} EXCEPT SELECT 1.0 AS g")

f.note("Calls that differ by a cast alone.")
same("SELECT sum(v::double) AS a, sum(v) AS b FROM {line} WHERE true")
same("SELECT max(v::double) AS a, max(v) AS b, min(v::double) AS c, min(v) AS d FROM {line} WHERE v > 0")
same("SELECT dim_0 < 2 AS g, sum(v::double) AS a, sum(v) AS b FROM {line} GROUP BY dim_0 < 2 HAVING sum(v::double) > 1 AND sum(v) > 1", duck="SELECT dim_0 < 2 AS g, sum(v::double) AS a, sum(v) AS b FROM {line} GROUP BY g HAVING sum(v::double) > 1 AND sum(v) > 1")
same("SELECT dim_0, sum(v::double) OVER (ORDER BY dim_0) AS a, sum(v) OVER (ORDER BY dim_0) AS b FROM {line}", " ORDER BY dim_0")
same("SELECT count(*) FILTER (WHERE v::double > 1) AS a, count(*) FILTER (WHERE v > 1) AS b, count(DISTINCT v::double) AS c, count(DISTINCT v) AS d FROM {line} WHERE true")

f.note("Groups come by their first positions, dense or not.")
same("SELECT dim_0 < 2 AS g, median(v) AS m FROM {line} WHERE v >= 0 GROUP BY dim_0 < 2", duck="SELECT dim_0 < 2 AS g, median(v) AS m FROM {line} GROUP BY g ORDER BY min(dim_0)")
same("SELECT -dim_0 AS g, median(v) AS m FROM {hills} WHERE v >= 0 GROUP BY -dim_0", duck="SELECT -dim_0 AS g, median(v) AS m FROM {hills} GROUP BY g ORDER BY min(dim_0)")
same("SELECT dim_0, (SELECT count(*) FROM {few} WHERE few.dim_0 = hills.dim_0) AS n FROM {hills} GROUP BY dim_0", " ORDER BY dim_0")

f.note("Constants that SQL has no function for.")
f.rows("SELECT count(*) AS n FROM (SELECT [1.0, 3.0, 2.0] AS v) WHERE v > e() AND v < inf()", [(1,)])

f.note("SEMI and ANTI JOIN are about the left side.")
same("SELECT dim_0 FROM {hills} SEMI JOIN {few} USING (dim_0)", " ORDER BY dim_0")
same("SELECT dim_0 FROM {hills} ANTI JOIN {few} USING (dim_0)", " ORDER BY dim_0")

f.note("Labels that are NaN are a coordinate like any other, also of several variables.")
f.q("SELECT unique(y) AS u FROM (SELECT [y], sum(v) AS a, max(v) AS b FROM (SELECT CASE WHEN dim_0 < 2 THEN 'NaN'::double ELSE dim_0 END AS y, v FROM (SELECT arange(4) AS v) WHERE true) GROUP BY y)", u=np.unique([np.nan, 2.0, 3.0]))
