"""sql/cells/ties: rows whose order or number nothing but the documented order decides, dense and as rows, expected from
DuckDB over the same cells with the order spelled out."""

from .core import EXTERNAL, Script
from .merged import con

f = Script(
    "cells/ties",
    "Ties of windows, the order of groups and joins, conditions above an aggregate without groups. Expected values from DuckDB.",
    1e-12,
    setup=[EXTERNAL.format(n, "ZARR", f"random/{n}.zarr") for n in ("gr", "xs")],
)


def same(sql, duck=None):
    """Rows in the order in which they come; DuckDB is told that order."""
    rows = con.execute(duck or sql).fetchall()
    f.rows(sql, [list(row) for row in rows])


# The place of each label along its dimension.
for name, dim in (("gr", "y"), ("gr", "x"), ("xs", "x"), ("xs", "e")):
    first = f"SELECT {dim} AS label, min(rowid) AS first FROM {name} GROUP BY {dim}"
    con.execute(f"CREATE TABLE {name}_{dim} AS SELECT label, row_number() OVER (ORDER BY first) AS place FROM ({first})")


def at(table, dim, label=None):
    return f"(SELECT p.place FROM {table}_{dim} p WHERE p.label = {label or dim})"


for lift in ("auto", "off"):
    f.ok(f"SET tessera.lift = '{lift}'")

    f.note("A condition without columns above an aggregate without groups leaves no row, or the one.")
    for condition, rows in (("1 > 2", 0), ("(SELECT max(x) FROM xs) < 0", 0), ("(SELECT max(x) FROM xs) > 0", 1), ("q.two = q.two + 0.5", 0), ("q.two = q.two", 1)):
        same(f"SELECT q.two AS n FROM (SELECT sum(m) AS s, 2 AS two FROM gr) q WHERE {condition}")
        same(f"SELECT count(*) AS n FROM (SELECT sum(m) AS s, 2 AS two FROM gr WHERE y > 0) q WHERE {condition}")
        same(f"SELECT n FROM (SELECT count(*) AS n FROM gr) c JOIN (SELECT 2 AS two FROM (SELECT sum(a) AS s FROM xs) i) q ON true WHERE {condition}")
    same("SELECT count(*) AS n FROM gr HAVING (SELECT max(x) FROM xs) < 0")
    same("SELECT count(*) AS n FROM (SELECT y, sum(m) AS s FROM gr GROUP BY ROLLUP (y)) q WHERE (SELECT max(x) FROM xs) < 0")

    f.note("Rows that a window's ORDER BY leaves equal are in dimension order.")
    rank = f"{at('gr', 'y')}, {at('gr', 'x')}"
    for call, order in (("row_number()", "y"), ("row_number()", "-x"), ("lead(x)", "y % 20"), ("lag(y, 2)", "x % 3"), ("ntile(7)", "x % 2"), ("first_value(y)", "x % 3"),
                        ("sum(x) {}", "y % 20"), ("count(m) {}", "x % 4"), ("last_value(x) {}", "x % 3"), ("nth_value(x, 2) {}", "y")):
        for part in ("", "PARTITION BY x % 2 "):
            frame = " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW" if call.endswith("{}") else ""
            name = call.replace(" {}", "")
            same(f"SELECT y, x, {name} OVER ({part}ORDER BY {order}{frame}) AS w FROM gr WHERE y > 0 AND x < 9",
                 f"SELECT y, x, {name} OVER ({part}ORDER BY {order}, {rank}{frame}) AS w FROM gr WHERE y > 0 AND x < 9 ORDER BY {rank}")
    both = f"{at('gr', 'y', 'g.y')}, {at('gr', 'x', 'g.x')}, {at('xs', 'e', 's.e')}"
    same("SELECT g.y, g.x, s.e, row_number() OVER (ORDER BY g.x % 2) AS w FROM gr g JOIN xs s ON g.x = s.x WHERE g.y < 25",
         f"SELECT g.y, g.x, s.e, row_number() OVER (ORDER BY g.x % 2, {both}) AS w FROM gr g JOIN xs s ON g.x = s.x WHERE g.y < 25 ORDER BY {both}")
    f.note("What asks which rows are equal does not change.")
    for call in ("rank()", "dense_rank()", "sum(x)", "last_value(x % 3)", "cume_dist()"):
        same(f"SELECT y, x, {call} OVER (ORDER BY x % 3) AS w FROM gr WHERE y = 10", f"SELECT y, x, {call} OVER (ORDER BY x % 3) AS w FROM gr WHERE y = 10 ORDER BY {rank}")

    both = "row_number() OVER (ORDER BY x % 3{0}) AS a, rank() OVER (ORDER BY x % 3) AS b, sum(x) OVER (ORDER BY x % 3{0} ROWS 2 PRECEDING) AS c, cume_dist() OVER (ORDER BY x % 3) AS d"
    same(f"SELECT y, x, {both.format('')} FROM gr WHERE y < 25", f"SELECT y, x, {both.format(', ' + rank)} FROM gr WHERE y < 25 ORDER BY {rank}")

    f.note("Keys of windows with a scalar subquery.")
    key = "CASE WHEN x < (SELECT avg(x) FROM xs) THEN x % 2 ELSE -1 END"
    same(f"SELECT y, x, count(*) OVER (PARTITION BY {key}) AS w FROM gr WHERE y > 10", f"SELECT y, x, count(*) OVER (PARTITION BY {key}) AS w FROM gr WHERE y > 10 ORDER BY {rank}")
    same(f"SELECT y, x, sum(x) OVER (PARTITION BY y ORDER BY {key}, x ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS w FROM gr",
         f"SELECT y, x, sum(x) OVER (PARTITION BY y ORDER BY {key}, x ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS w FROM gr ORDER BY {rank}")
    same(f"SELECT y, w - 1 AS w FROM (SELECT y, x, rank() OVER (PARTITION BY y ORDER BY {key}) AS w, max(x) OVER (PARTITION BY {key}) AS m FROM gr) q WHERE m > 3 AND x = 2",
         f"SELECT y, w - 1 AS w FROM (SELECT y, x, rank() OVER (PARTITION BY y ORDER BY {key}) AS w, max(x) OVER (PARTITION BY {key}) AS m FROM gr) q WHERE m > 3 AND x = 2 ORDER BY {rank}")

    f.note("A condition that compares a column with an expression of itself, and an order by the column.")
    same("SELECT x, e, row_number() OVER (PARTITION BY x ORDER BY e) AS w FROM xs WHERE e * e / 0.5 = e", f"SELECT x, e, row_number() OVER (PARTITION BY x ORDER BY e) AS w FROM xs WHERE e * e / 0.5 = e ORDER BY {at('xs', 'x')}")
    same("SELECT x, e FROM xs WHERE abs(e) = e AND x > 2 ORDER BY e DESC, x", "SELECT x, e FROM xs WHERE abs(e) = e AND x > 2 ORDER BY e DESC, x")

    f.note("Groups come by the first positions of their labels, also of a label that a join makes equal; NULL last.")
    place = at("gr", "x", "k")
    for sql, order in (
        ("SELECT s.x % 3 AS k, count(*) AS n FROM gr g JOIN xs s ON g.x = s.x GROUP BY s.x % 3", "(SELECT min(place) FROM gr_x WHERE label % 3 = k)"),
        ("SELECT coalesce(s.x, g.x) AS k, g.y AS j, count(*) AS n FROM gr g JOIN xs s ON g.x = s.x GROUP BY coalesce(s.x, g.x), g.y", f"{at('gr', 'y', 'j')}, {place}"),
        ("SELECT s.x AS k, count(*) AS n FROM gr g LEFT JOIN xs s ON g.x = s.x GROUP BY s.x", place),
        ("SELECT g.y % 20 AS j, s.x AS k, count(*) AS n FROM gr g LEFT JOIN xs s ON g.x = s.x GROUP BY g.y % 20, s.x", f"(SELECT min(place) FROM gr_y WHERE label % 20 = j), {place}"),
        ("SELECT nullif(x, 4) AS k, count(*) AS n FROM gr WHERE x < 10 GROUP BY nullif(x, 4)", place),
        ("SELECT nullif(x, 4) AS k, x % 2 AS j, count(*) AS n FROM gr GROUP BY nullif(x, 4), x % 2", place),
        # Groups of groups too: the order is the dimension's, not that of the inner groups, nor of what WHERE leaves.
        ("SELECT coalesce(k, -1) AS k, count(*) AS n FROM (SELECT nullif(x, 1) AS k, sum(m) AS s FROM gr GROUP BY nullif(x, 1)) q GROUP BY coalesce(k, -1)",
         "(SELECT min(place) FROM gr_x WHERE coalesce(nullif(label, 1), -1) = k)"),
        ("SELECT abs(k) AS k, count(*) AS n, max(s) AS s FROM (SELECT y - 20 AS k, sum(m) AS s FROM gr WHERE y > 10 GROUP BY y - 20) q GROUP BY abs(k)", "(SELECT min(place) FROM gr_y WHERE abs(label - 20) = k)"),
        ("SELECT abs(k) AS k, j, count(*) AS n FROM (SELECT y - 20 AS k, nullif(x, 3) AS j, sum(m) AS s FROM gr WHERE y > 10 GROUP BY y - 20, nullif(x, 3)) q WHERE j < 9 GROUP BY abs(k), j",
         f"(SELECT min(place) FROM gr_y WHERE abs(label - 20) = k), {at('gr', 'x', 'j')}"),
    ):
        same(sql, f"SELECT * FROM ({sql}) q ORDER BY {order} NULLS LAST")

    f.note("Rows of one side that meet none: the left side's in their place, the right side's last.")
    for kind in ("FULL", "RIGHT"):
        sql = f"SELECT q.s IS NULL AS b, q.x AS a, g.x AS k FROM (SELECT 100 AS x, sum(a) AS s FROM xs) q {kind} JOIN (SELECT x, count(*) AS n FROM gr GROUP BY x) g ON q.x = g.x"
        same(sql, f"SELECT * FROM ({sql}) q ORDER BY a NULLS LAST, {place}")

    f.note("What is constant in a side of an outer join is NULL where that side is missing, and ORDER BY sees it.")
    for kind in ("LEFT", "RIGHT", "FULL"):
        for a, b in (("(SELECT x, 1 AS k FROM gr WHERE y = 10 AND x > 2)", "(SELECT x, 2 AS j FROM xs WHERE x < 9 AND e = 0.5)"), ("(SELECT x, m AS k FROM gr WHERE y = 10 AND x > 2 AND m = (SELECT max(m) FROM gr WHERE y = 10 AND x > 2))", "(SELECT x, e AS j FROM xs WHERE e = 0.5)"),
                     ("(SELECT count(m) AS x, 1 AS k FROM gr)", "(SELECT x, count(e) AS j FROM xs GROUP BY x)")):
            same(f"SELECT l.x AS a, r.x AS b, l.k AS k, r.j AS j FROM {a} l {kind} JOIN {b} r ON l.x = r.x ORDER BY l.k NULLS FIRST, r.j DESC NULLS FIRST, l.x, r.x")
            same(f"SELECT l.x AS a, r.x AS b FROM {a} l {kind} JOIN {b} r ON l.x = r.x ORDER BY r.j + l.k NULLS FIRST, l.x NULLS FIRST, r.x")
            same(f"SELECT l.x AS a, r.x AS b FROM {a} l {kind} JOIN {b} r ON l.x < r.x ORDER BY l.k NULLS FIRST, r.j NULLS FIRST, l.x, r.x")
