"""sql/cells/frames: aggregates over frames, shifts, and the order of nested values, expected from DuckDB."""

from datetime import datetime

import duckdb
import numpy as np

from .core import Script

con = duckdb.connect()
# One thread adds floats in one order.
con.execute("SET threads = 1")
VIEWS = [
    "CREATE VIEW t AS SELECT * FROM (VALUES (1, 5.0::double, 10, 'a', true), (2, 3.0::double, NULL, 'b', true), (3, 1.0::double, 30, NULL, NULL), (4, 9.0::double, 40, 'a', false), (5, NULL, NULL, 'c', true), (6, 1.0::double, 60, 'b', true), (7, 7.0::double, 60, 'b', true)) v(i, x, v, s, b)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/frames", "Aggregates over frames, shifts, the order of nested values. Expected values from DuckDB.", 1e-12, setup=VIEWS)
many = Script("cells/frames_many", "Frames over thousands of rows. Expected values from DuckDB.", 1e-12, chunks="4KiB")


def shown(v):
    if isinstance(v, datetime):
        return np.datetime64(v, "us")
    if isinstance(v, list):
        return "[" + ", ".join("" if x is None else str(x) for x in v) + "]"
    return v


def same(sql, duck=None, script=f):
    rows = con.execute((duck or sql).replace(") IGNORE NULLS", " IGNORE NULLS)")).fetchall()
    assert rows, sql
    script.rows(sql, [tuple(shown(v) for v in row) for row in rows])


FRAMES = [
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING",
]

f.note("Percentiles of frames, which are evaluated for each row.")
for frame in FRAMES:
    same(f"SELECT i, quantile_cont(x, 0.5) OVER w AS a, quantile_cont(x, 0.3) OVER w AS b, median(x) OVER w AS c FROM t WINDOW w AS (ORDER BY i {frame}) ORDER BY i")
same("SELECT x, quantile_cont(x, 0.5) OVER (ORDER BY x) AS a FROM t ORDER BY x")
same("SELECT i, quantile_cont(x, 0.5) OVER (PARTITION BY i % 2 ORDER BY i) AS a, quantile_cont(x, 0.9) FILTER (WHERE i <> 4) OVER (ORDER BY i DESC) AS b FROM t ORDER BY i")
for ours in ("percentile(x, 25)", "quantile(x, 0.25)", "nanquantile(x, 0.25)"):
    same(f"SELECT i, {ours} OVER (ORDER BY i) AS a FROM t ORDER BY i", "SELECT i, quantile_cont(x, 0.25) OVER (ORDER BY i) AS a FROM t ORDER BY i")
same("SELECT i, quantile_cont((i * 7919) % 1000, 0.123456789) OVER (ORDER BY i) AS a FROM range(60) r(i) ORDER BY i", "SELECT i, quantile_cont(((i * 7919) % 1000)::double, 0.123456789) OVER (ORDER BY i) AS a FROM range(60) r(i) ORDER BY i")
same("SELECT sum(a) AS a, sum(b) AS b FROM (SELECT quantile_cont((i * 7919 % 10007)::double, 0.3) OVER (ORDER BY i) AS a, quantile_cont((i * 7919 % 10007)::double, 0.3) OVER (ORDER BY i ROWS 99 PRECEDING) AS b FROM range(3000) r(i)) s", script=many)

f.note("Shifts that leave out NULL.")
for n in (1, 2, 3, -2):
    same(f"SELECT i, lead(v, {n}) IGNORE NULLS OVER (ORDER BY i) AS a, lag(v, {n}) IGNORE NULLS OVER (ORDER BY i) AS b, lead(s, {n}) IGNORE NULLS OVER (ORDER BY i DESC) AS c, lead(v, {n}, -1) IGNORE NULLS OVER (PARTITION BY i % 2 ORDER BY i) AS d, lead(v, {n}) OVER (ORDER BY i) AS e FROM t ORDER BY i")
same("SELECT i, lead(v, 2) IGNORE NULLS OVER (ORDER BY i) AS a, sum(v) OVER (ORDER BY i) AS b, lag(v, 2) IGNORE NULLS OVER (ORDER BY i DESC) AS c FROM t ORDER BY i LIMIT 2")
same("SELECT sum(a * (i % 100)) AS a, sum(b) AS b FROM (SELECT i, lead(CASE WHEN i % 7 < 5 THEN NULL ELSE i END, 3) IGNORE NULLS OVER (ORDER BY i) AS a, lag(CASE WHEN i % 7 < 5 THEN NULL ELSE i END, 3) IGNORE NULLS OVER (ORDER BY i) AS b FROM range(10000) r(i)) s", script=many)

f.note("Windows ordered by nested values. NULL inside of a value is the greatest there.")
LISTS = "(VALUES (1, [1, NULL]), (2, [1, 2]), (3, NULL), (4, [1]), (5, [NULL]), (6, [1]), (7, [2])) n(i, l)"
STRUCTS = "(VALUES (1, {'a': 1, 'b': NULL}), (2, {'a': 0, 'b': 'x'}), (3, {'a': 1, 'b': 'y'}), (4, NULL), (5, {'a': NULL, 'b': 'x'}), (6, {'a': 0, 'b': 'x'})) n(i, l)"
MAPS = "(SELECT i, map(['a'], [v]) AS l FROM (VALUES (1, 2), (2, 1), (3, NULL), (4, 1)) m(i, v)) n"
ORDERS = ("", "NULLS FIRST", "DESC NULLS FIRST", "DESC NULLS LAST")
for rows in (LISTS, STRUCTS, MAPS):
    same(f"SELECT i, rank() OVER (ORDER BY l) AS a, count(*) OVER (ORDER BY l) AS b, sum(i) OVER (ORDER BY l RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS c FROM {rows} ORDER BY i")
    same(f"SELECT i, lag(i) OVER (ORDER BY l, i) AS a, first_value(i) OVER (ORDER BY l, i) AS b, dense_rank() OVER (PARTITION BY i % 2 ORDER BY l DESC NULLS LAST) AS c FROM {rows} ORDER BY i")
    for order in ORDERS:
        same(f"SELECT i FROM {rows} ORDER BY l {order}, i")
    ranks = ", ".join(f"rank() OVER (ORDER BY l {order}) AS r{k}" for k, order in enumerate(ORDERS))
    same(f"SELECT i, {ranks} FROM {rows} ORDER BY i")
same("SELECT i, rank() OVER (ORDER BY b) AS a, max(i) OVER (ORDER BY b) AS m FROM (SELECT i, s::bytea AS b FROM t) q ORDER BY i")
same("SELECT i, rank() OVER (ORDER BY d) AS a, sum(i) OVER (ORDER BY d) AS b FROM (SELECT i, (i % 3) * INTERVAL '1 day' AS d FROM range(7) r(i)) q ORDER BY i")

for order in ORDERS:
    same(f"SELECT array_to_string(array_agg(i ORDER BY l {order}, i), ',') AS a, first_value(i ORDER BY l {order}, i) AS b FROM (VALUES (1, [1, NULL]), (2, [1, 2]), (3, NULL), (4, [0, NULL])) v(i, l)", f"SELECT array_to_string(array_agg(i ORDER BY l {order or 'NULLS LAST'}, i), ',') AS a, first(i ORDER BY l {order or 'NULLS LAST'}, i) AS b FROM (VALUES (1, [1, NULL]), (2, [1, 2]), (3, NULL), (4, [0, NULL])) v(i, l)")

f.note("Extremes of nested values.")
TAGGED = "(VALUES ({'k': [1, NULL], 'i': 1}, 0), ({'k': [1, 2], 'i': 2}, 0), (NULL, 0), ({'k': [1], 'i': 4}, 1), ({'k': [NULL], 'i': 5}, 1), ({'k': [1], 'i': 0}, 1), (NULL, 2)) n(l, g)"
same(f"SELECT (min(l))['i'] AS a, (max(l))['i'] AS b FROM {TAGGED}")
same(f"SELECT g, (min(l))['i'] AS a, (max(l))['i'] AS b, count(*) AS n FROM {TAGGED} GROUP BY g ORDER BY g")
same(f"SELECT g, n, (a)['i'] AS a, (b)['i'] AS b, (c)['i'] AS c FROM (SELECT g, row_number() OVER w AS n, min(l) OVER w AS a, max(l) OVER (ORDER BY g ROWS 1 PRECEDING) AS b, max(l) OVER (PARTITION BY g) AS c FROM {TAGGED} WINDOW w AS (ORDER BY g)) q ORDER BY g, n".replace("row_number() OVER w", "count(*) OVER w"))
same(f"SELECT min(l) = [1] AS a, max(l) = [NULL] AS b FROM {LISTS}")
same(f"SELECT (min(l))['b'] AS a, (max(l))['b'] AS b FROM {STRUCTS}")
same("SELECT (min(l))[1] = [0] AS a, (max(l))[1] = [1, NULL] AS b FROM (VALUES ([[1, 2]]), ([[1, NULL]]), ([[0]])) n(l)")
same("SELECT ((min(l))[1])['a'] AS a, ((max(l))[1])['a'] AS b FROM (VALUES ([{'a': 1}]), ([{'a': NULL}])) n(l)")

f.note("Comparisons of nested values.")
for rows in (LISTS, STRUCTS, MAPS):
    same(f"SELECT a.i, b.i AS j, a.l < b.l AS lt, a.l <= b.l AS le, a.l > b.l AS gt, a.l >= b.l AS ge FROM {rows.replace(') n', ') a')} JOIN {rows.replace(') n', ') b')} ON true ORDER BY a.i, j".replace(" a(i, l)", " a(i, l)"))
same(f"SELECT a.i, b.i AS j FROM {LISTS.replace(') n', ') a')} JOIN {LISTS.replace(') n', ') b')} ON a.l < b.l ORDER BY a.i, j")
same(f"SELECT i, l BETWEEN [1] AND [1, NULL] AS a, l NOT BETWEEN [1, 1] AND [2] AS b FROM {LISTS} ORDER BY i")
same(f"SELECT i FROM {LISTS} WHERE l > [1, 2] ORDER BY i")

f.note("Aggregates over frames that slide.")
SLIDING = [
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING",
    "RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING",
    "GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW",
]
for frame in SLIDING:
    same(f"SELECT i, bool_and(b) OVER w AS a, bool_or(b) OVER w AS b, bit_and(i + 8) OVER w AS c, bit_or(i) OVER w AS d, bit_xor(i) OVER w AS e, string_agg(s, '-') OVER w AS f, any_value(v) OVER w AS g, quantile_disc(x, 0.5) OVER w AS h, median(x) OVER w AS j FROM t WINDOW w AS (ORDER BY i {frame}) ORDER BY i")
    same(f"SELECT i, avg(DISTINCT v) OVER w AS a, median(DISTINCT v::double) OVER w AS b, count(DISTINCT s) OVER w AS c, sum(DISTINCT v) OVER w AS d, sum(DISTINCT v::decimal(6, 2)) OVER w AS e FROM t WINDOW w AS (ORDER BY i {frame}) ORDER BY i")
same("SELECT i, mode(i // 3) OVER (ORDER BY i ROWS 2 PRECEDING) AS a, mode(i // 3) OVER (ORDER BY i) AS b, mode((i // 3)::text) OVER (ORDER BY i ROWS BETWEEN 4 PRECEDING AND 2 PRECEDING) AS c FROM range(12) r(i) ORDER BY i".replace("mode(i // 3) OVER (ORDER BY i) AS b, ", ""))
same("SELECT i, bit_xor(v) OVER (ORDER BY i ROWS 1 PRECEDING) AS a, bit_xor(v) FILTER (WHERE i < 3) OVER (ORDER BY i ROWS 1 PRECEDING) AS b, bit_xor(DISTINCT v) FILTER (WHERE i < 3) OVER (ORDER BY i ROWS 1 PRECEDING) AS c FROM t ORDER BY i")
same("SELECT i, bool_and(b) FILTER (WHERE i <> 4) OVER (ORDER BY i ROWS 1 PRECEDING) AS a, string_agg(s, ',') FILTER (WHERE s <> 'b') OVER (PARTITION BY i % 2 ORDER BY i ROWS 1 PRECEDING) AS b FROM t ORDER BY i")
same("SELECT sum(a) AS a, sum(b::int) AS b, sum(length(c)) AS c FROM (SELECT bit_or(i % 512) OVER w AS a, bool_and(i % 50 < 49) OVER w AS b, string_agg((i % 7)::text, '') OVER w AS c FROM range(5000) r(i) WINDOW w AS (ORDER BY i ROWS 40 PRECEDING)) q", script=many)

f.note("Lists with NULL: three values of ANY and ALL.")
ANY = "(VALUES (1, [1, NULL]), (2, [3, NULL]), (3, []), (4, [4, 5]), (NULL, [1]), (NULL, []), (3, [NULL])) n(i, l)"
for op in ("=", "<>", "<", "<=", ">", ">="):
    same(f"SELECT 3 {op} ANY(l) AS a, NOT (i {op} ANY(l)) AS b, i {op} ANY([1, 2]) AS c, i {op} ANY([2, NULL]) AS d, 3 {op} ALL(l) AS e, i {op} ALL(l) AS f FROM {ANY}")
same(f"SELECT i FROM {ANY} WHERE NOT (3 = ANY(l)) ORDER BY i")

f.note("Sets of groups beside an aggregate that is ordered by one of the keys.")
KEYS = "(VALUES (1, 1), (NULL, 2), (2, 2), (1, NULL)) n(k, j)"
same(f"SELECT DISTINCT k, array_agg(k ORDER BY k) IS NULL AS a FROM {KEYS} GROUP BY ROLLUP (k) ORDER BY k")
same(f"SELECT DISTINCT k, j, count(*) AS n, string_agg(j::text, ',' ORDER BY k DESC, j) IS NULL AS a FROM {KEYS} GROUP BY CUBE (k, j) ORDER BY k, j, n, a")
same(f"SELECT k, count(*) AS n FROM (SELECT k, string_agg(j::text, ',' ORDER BY k, j) AS a FROM {KEYS} GROUP BY ROLLUP (k)) q GROUP BY k ORDER BY k")
same(f"SELECT k, count(*) OVER (PARTITION BY k) AS n, a IS NULL AS a FROM (SELECT k, j, array_agg(j ORDER BY k, j) AS a FROM {KEYS} GROUP BY ROLLUP (k, j)) q ORDER BY k")

f.note("Subqueries of one row that use columns outside, in EXISTS, IN, ANY and ALL.")
O = "(VALUES (1, 10), (2, 20), (0, 7)) o(i, j)"
Q = "(VALUES (1, 10), (2, 5), (2, 6)) q(i, j)"
for value in ("max(q.j)", "count(*)", "min(q.j) - 4"):
    one = f"SELECT {value} FROM {Q} WHERE q.i = o.i"
    conditions = (f"EXISTS ({one})", f"NOT EXISTS ({one})", f"i IN ({one})", f"i NOT IN ({one})", f"j NOT IN ({one})", f"i = ANY ({one})", f"i < ALL ({one})", f"NOT (i < ALL ({one}))")
    for condition in conditions:
        same(f"SELECT i FROM {O} WHERE i >= 0 AND {condition} UNION ALL SELECT -1 ORDER BY i")
    for some in (conditions[:4], conditions[4:]):
        items = ", ".join(f"{condition} AS c{k}" for k, condition in enumerate(some))
        same(f"SELECT i, {items} FROM {O} ORDER BY i")
for having in ("count(*) = 0", "count(*) > 1", "max(q.j) > 6"):
    one = f"SELECT max(q.j) FROM {Q} WHERE q.i = o.i HAVING {having}"
    same(f"SELECT i, EXISTS ({one}) AS a, NOT EXISTS ({one}) AS b, 6 IN ({one}) AS c, 6 NOT IN ({one}) AS d, i < ANY ({one}) AS e, i > ALL ({one}) AS f FROM {O} ORDER BY i")
    same(f"SELECT i FROM {O} WHERE EXISTS ({one}) OR i NOT IN ({one}) ORDER BY i")
same(f"SELECT i, (SELECT DISTINCT count(*) FROM {Q} WHERE q.i = o.i) AS a, (SELECT DISTINCT max(q.j) FROM {Q} WHERE q.i = o.i) AS b FROM {O} ORDER BY i")
same(f"SELECT i FROM {O} WHERE EXISTS (SELECT q.j FROM {Q} WHERE q.i = o.i LIMIT 1 OFFSET 1) ORDER BY i")
same(f"SELECT i, EXISTS (SELECT q.j FROM {Q} WHERE q.i = o.i OFFSET 1) AS a, NOT EXISTS (SELECT q.j FROM {Q} WHERE q.i = o.i ORDER BY q.j LIMIT 2 OFFSET 1) AS b FROM {O} ORDER BY i")

f.error("SELECT grouping(i) OVER () FROM t", "plan_error: `grouping` cannot have OVER")

f.note("HAVING in LATERAL.")
for having in ("count(*) > 1", "count(*) = 0", "max(q.j) > 6"):
    one = f"LATERAL (SELECT count(*) AS x, max(q.j) AS m FROM {Q} WHERE q.i = o.i HAVING {having}) l"
    same(f"SELECT o.i, x, m FROM {O}, {one} ORDER BY o.i")
    same(f"SELECT o.i, x, m FROM {O} LEFT JOIN {one} ON true ORDER BY o.i")
    same(f"SELECT o.i, x, m FROM {O} LEFT JOIN {one} ON o.i < 2 ORDER BY o.i")

f.note("Groups by a cast of a key of a subquery.")
TIMES = "(VALUES (timestamp '2020-01-01 00:00:00', 1.5::double), (timestamp '2020-01-01 12:00:00', 2.0), (timestamp '2020-01-02 06:00:00', 1.25)) b(t, x)"
INNER = f"(SELECT t, sum(x) AS x FROM {TIMES} GROUP BY t) q"
for block, rest in (
    (f"SELECT t::date AS d, count(*) AS n FROM {INNER} GROUP BY t::date", "n"),
    (f"SELECT t::date AS d, count(*) AS n, sum(x) AS s FROM {INNER} GROUP BY d", "n, s"),
    (f"SELECT CAST(t AS date) AS d, count(*) AS n FROM {INNER} GROUP BY 1 HAVING count(*) > 0", "n"),
    (f"SELECT t::date AS d, (x * 4)::int AS i, count(*) AS n FROM {INNER} GROUP BY t::date, (x * 4)::int", "i, n"),
    (f"SELECT t::date AS d, x > 1.3 AS b, count(*) AS n, rank() OVER (ORDER BY count(*), t::date, x > 1.3) AS r FROM {INNER} GROUP BY t::date, x > 1.3", "b, n, r"),
    (f"SELECT try_cast(t AS date) AS d, x, count(*) AS n FROM {INNER} GROUP BY try_cast(t AS date), x", "x, n"),
    (f"SELECT s::date AS d, count(*) AS n FROM (SELECT DISTINCT t AS s FROM {TIMES}) q GROUP BY 1", "n"),
    (f"SELECT t, t::date AS d, x, count(*) AS n FROM {INNER} GROUP BY t, t::date, x", "t, x, n"),
):
    same(f"SELECT d::text AS d, {rest} FROM ({block}) z ORDER BY ALL")
same(f"WITH q AS (SELECT t, sum(x) AS x FROM {TIMES} GROUP BY t) SELECT count(*) AS n, sum(x) AS s FROM q GROUP BY t::date ORDER BY t::date")

f.note("arg_max and arg_min with OVER.")
for frame in FRAMES:
    same(f"SELECT i, arg_max(s, x + i * 0.01::double) OVER w AS a, arg_min(i, x + i * 0.01::double) OVER w AS b, max_by(x, i) OVER w AS c, min_by(v, -i) OVER w AS d FROM t WINDOW w AS (ORDER BY i {frame}) ORDER BY i")
same("SELECT i, arg_max(i, v) FILTER (WHERE i < 6) OVER (PARTITION BY i % 2) AS a FROM t ORDER BY i")
same("SELECT i, arg_max(i, z) OVER w AS a, arg_min(i, -z) OVER w AS b FROM (VALUES (1, '-0.0'::double), (2, 0.0::double), (3, '-0.0'::double)) u(i, z) WINDOW w AS (ORDER BY i ROWS 1 PRECEDING) ORDER BY i")

f.note("Casts beside their columns, in subqueries.")
B = "(VALUES (1, 7), (2, 8)) b(id, k)"
same(f"SELECT * FROM (SELECT id, id::varchar FROM {B}) p(i, s) ORDER BY i")
same(f"SELECT i, s || 'x' AS s, t FROM (SELECT b.id, b.id::varchar, b.id::double FROM {B}) p(i, s, t) ORDER BY i")
same(f"WITH RECURSIVE p(id, path) AS (SELECT id, id::varchar FROM {B} UNION ALL SELECT id + 1, path || '/' || (id + 1)::varchar FROM p WHERE id < 3) SELECT id, path FROM p ORDER BY id, path")
same(f"SELECT count(*) AS n, sum(id) AS s FROM (SELECT *, id::varchar FROM {B} ORDER BY id::varchar DESC LIMIT 1) q")

f.note("greatest and least of nested values.")
for rows in (LISTS, STRUCTS):
    same(f"SELECT a.i, b.i AS j, greatest(a.l, b.l) = a.l AS g, least(a.l, b.l) = a.l AS h FROM {rows.replace(') n', ') a')} JOIN {rows.replace(') n', ') b')} ON true ORDER BY a.i, j")
same("SELECT greatest(l, [1, NULL], [0]) = [1, NULL] AS g, least([2], l) = [2] AS h FROM (VALUES ([1, 2]), ([3]), (NULL)) n(l) ORDER BY l")

f.note("EXCLUDE.")
PEERS = "(VALUES (1, 1, 5, 2.5::double, 'a'), (2, 1, NULL, 1.0, 'b'), (3, 2, 7, NULL, 'a'), (4, 2, 1, 4.0, NULL), (5, 2, 7, 0.5, 'c'), (6, 4, 9, 1.0, 'd'), (7, NULL, 2, 8.0, 'e'), (8, NULL, 3, 1.5, 'a')) p(i, k, v, x, s)"
BOUNDS = [
    ("k, i", "ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING"),
    ("k, i", "ROWS UNBOUNDED PRECEDING"),
    ("i DESC", "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING"),
    ("k", "RANGE BETWEEN 1 PRECEDING AND CURRENT ROW"),
    ("k DESC NULLS FIRST", "RANGE BETWEEN CURRENT ROW AND 2 FOLLOWING"),
    ("k NULLS FIRST", "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING"),
    ("k DESC NULLS LAST", "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"),
]
for excluded in ("CURRENT ROW", "GROUP", "TIES", "NO OTHERS"):
    for order, frame in BOUNDS:
        window = f"WINDOW w AS (ORDER BY {order} {frame} EXCLUDE {excluded}) ORDER BY i"
        same(f"SELECT i, sum(v) OVER w AS a, avg(x) OVER w AS b, count(*) OVER w AS c, count(s) OVER w AS d, min(x) OVER w AS e, max(v) OVER w AS f, sum(v) FILTER (WHERE i <> 5) OVER w AS g, count(DISTINCT s) OVER w AS h, median(x) OVER w AS j, quantile_cont(x, 0.3) OVER w AS l, arg_max(i, v * 10 + i) OVER w AS m, bool_or(v > 6) OVER w AS n FROM {PEERS} {window}")
for excluded in ("CURRENT ROW", "GROUP", "TIES", "NO OTHERS"):
    for order, frame in BOUNDS[:3]:
        window = f"WINDOW w AS (ORDER BY {order} {frame} EXCLUDE {excluded}) ORDER BY i"
        same(f"SELECT i, string_agg(s, '') OVER w AS a, first_value(v) OVER w AS b, last_value(x) OVER w AS c, nth_value(v, 2) OVER w AS d, first_value(v) IGNORE NULLS OVER w AS e, last_value(s) IGNORE NULLS OVER w AS f FROM {PEERS} {window}", f"SELECT i, string_agg(s, '') OVER w AS a, first_value(v) OVER w AS b, last_value(x) OVER w AS c, nth_value(v, 2) OVER w AS d, first_value(v IGNORE NULLS) OVER w AS e, last_value(s IGNORE NULLS) OVER w AS f FROM {PEERS} {window}")
same(f"SELECT i, sum(v) OVER (PARTITION BY i % 2 ORDER BY i ROWS 2 PRECEDING EXCLUDE CURRENT ROW) AS a, count(*) OVER (PARTITION BY s ORDER BY k ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING exclude group) AS b, sum(v) OVER (ORDER BY i ROWS 1 PRECEDING) AS c FROM {PEERS} ORDER BY i".replace("ORDER BY k ROWS", "ORDER BY k, i ROWS"))
same(f"SELECT i, sum(v) OVER (w ROWS 2 PRECEDING EXCLUDE CURRENT ROW) AS a, sum(v) OVER (w) AS b FROM {PEERS} WINDOW w AS (PARTITION BY i % 2 ORDER BY i) ORDER BY i")
same(f"SELECT k, n, sum(n) OVER (ORDER BY k ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW) AS a FROM (SELECT k, count(*) AS n FROM {PEERS} GROUP BY k) g ORDER BY k")
same(f"SELECT i, row_number() OVER w AS a, lag(v) OVER w AS b FROM {PEERS} WINDOW w AS (ORDER BY i ROWS 2 PRECEDING EXCLUDE CURRENT ROW) ORDER BY i", f"SELECT i, row_number() OVER w AS a, lag(v) OVER w AS b FROM {PEERS} WINDOW w AS (ORDER BY i) ORDER BY i")
same("SELECT sum(a) AS a, sum(b) AS b, sum(c) AS c FROM (SELECT avg(i % 7) OVER (PARTITION BY i % 10 ORDER BY i ROWS BETWEEN 5 PRECEDING AND 5 FOLLOWING EXCLUDE CURRENT ROW) AS a, sum(i) OVER (ORDER BY i // 3 RANGE BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS b, max(i % 11) OVER (ORDER BY i // 5 GROUPS 1 PRECEDING EXCLUDE GROUP) AS c FROM range(3000) r(i)) q", script=many)
same("SELECT sum(a % 1000) AS a, sum(b) AS b, sum(c) AS c, max(d) AS d FROM (SELECT sum(i * 7919 % 1000) OVER w AS a, max(i * 7919 % 1009) OVER w AS b, count(*) OVER w AS c, avg((i % 97)::double) OVER w AS d FROM range(9000) r(i) WINDOW w AS (ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND 100 FOLLOWING EXCLUDE CURRENT ROW)) q", script=many)
same("SELECT count(*) AS n FROM (SELECT * EXCLUDE (b) FROM (VALUES (1, 2)) t(a, b)) q")

f.note("Aggregates over frames with an order of their arguments.")
for order, frame in BOUNDS[:3] + BOUNDS[5:]:
    window = f"WINDOW w AS (ORDER BY {order} {frame}) ORDER BY i"
    same(f"SELECT i, list(v ORDER BY x DESC NULLS LAST, i) OVER w AS a, string_agg(s, ',' ORDER BY i DESC) OVER w AS b, array_agg(i ORDER BY v NULLS FIRST, i) OVER w AS c, first_value(i ORDER BY x NULLS LAST, i) OVER w AS d, last_value(i ORDER BY x NULLS LAST, i) OVER w AS e FROM {PEERS} {window}")
    same(f"SELECT i, string_agg(DISTINCT s, ',' ORDER BY s DESC) OVER w AS a, list(DISTINCT v ORDER BY v NULLS LAST) FILTER (WHERE v IS NOT NULL) OVER w AS b, sum(v ORDER BY i) OVER w AS c, arg_max(i, v * 10 + i ORDER BY i) OVER w AS d FROM {PEERS} {window}")
same(f"SELECT i, list(i ORDER BY v DESC NULLS LAST, i) OVER (PARTITION BY i % 2) AS a, string_agg(s, '-' ORDER BY s NULLS LAST, i) OVER () AS b, list(i ORDER BY i DESC) FILTER (WHERE i > 3) OVER (ORDER BY i) AS c, list(i ORDER BY i DESC) OVER (ORDER BY i ROWS 2 PRECEDING EXCLUDE CURRENT ROW) AS d FROM {PEERS} ORDER BY i")
same("SELECT sum(length(a)) AS a, max(a) AS b FROM (SELECT string_agg((i % 5)::text, '' ORDER BY i % 5 DESC, i) OVER (ORDER BY i ROWS 20 PRECEDING) AS a FROM range(2000) r(i)) q", script=many)

f.note("Typed aggregates over frames of all kinds.")
TYPED = f"(SELECT i, k, v::bigint AS b, v::smallint AS h, v::decimal(9, 2) AS d, x, timestamp '2024-02-27 00:00:00' + k * INTERVAL '1 day' AS t, (timestamp '2024-01-31 00:00:00' + k * INTERVAL '1 day')::date AS dt, x + 0.25 AS y FROM {PEERS}) q"
KEYED = [
    "ORDER BY i ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING",
    "ORDER BY i ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ORDER BY i ROWS BETWEEN 2 FOLLOWING AND 4 FOLLOWING",
    "ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
    "ORDER BY i ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
    "ORDER BY i DESC ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW",
    "ORDER BY k NULLS FIRST RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING",
    "ORDER BY k DESC NULLS FIRST RANGE BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
    "ORDER BY k DESC NULLS LAST RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ORDER BY x NULLS LAST RANGE BETWEEN 0.5 PRECEDING AND 1.5 FOLLOWING",
    "ORDER BY t RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW",
    "ORDER BY t DESC NULLS LAST RANGE BETWEEN INTERVAL '36 hours' PRECEDING AND INTERVAL '1 day' FOLLOWING",
    "ORDER BY t RANGE BETWEEN INTERVAL '1 month' PRECEDING AND INTERVAL '1 day' PRECEDING",
    "ORDER BY k GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW",
    "ORDER BY k DESC NULLS LAST GROUPS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
    "PARTITION BY i % 2 ORDER BY k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "PARTITION BY i % 3 ORDER BY i ROWS 1 PRECEDING",
]
for keyed in KEYED:
    window = f"WINDOW w AS ({keyed}) ORDER BY i"
    same(f"SELECT i, sum(b) OVER w AS a, sum(d) OVER w AS b, sum(x) OVER w AS c, avg(x) OVER w AS d, avg(b) OVER w AS e, count(x) OVER w AS f, min(h) OVER w AS g, max(b) OVER w AS j, min(x) OVER w AS l, max(d) OVER w AS m, min(t) OVER w AS n, (max(dt) OVER w)::text AS o FROM {TYPED} {window}")
    same(f"SELECT i, median(x) OVER w AS a, quantile_cont(y, 0.25) OVER w AS b, quantile_cont(x, 1.0) OVER w AS c, quantile_cont(x, 0.0) OVER w AS d, var_samp(x) OVER w AS e, var_pop(x) OVER w AS f, stddev(y) OVER w AS g, stddev_pop(x) OVER w AS j FROM {TYPED} {window}")
same(f"SELECT i, sum(b) OVER (ORDER BY dt RANGE BETWEEN INTERVAL '1 day' PRECEDING AND CURRENT ROW) AS a, sum(b) OVER (ORDER BY k, i ROWS 1 PRECEDING) AS b, max(x) OVER (ORDER BY k RANGE BETWEEN 3 PRECEDING AND 1 FOLLOWING) AS c FROM {TYPED} ORDER BY i")
for frame in ("ROWS 7 PRECEDING", "ROWS UNBOUNDED PRECEDING", "RANGE BETWEEN 30 PRECEDING AND 10 FOLLOWING", "GROUPS BETWEEN 5 PRECEDING AND 5 FOLLOWING"):
    same(f"SELECT sum(a) AS a, sum(b) AS b, sum(c) AS c, sum(d) AS d, sum(e) AS e FROM (SELECT sum(i * 7919 % 1000) OVER w AS a, max(i * 7919 % 1000) OVER w AS b, median((i * 7919 % 1000)::double) OVER w AS c, quantile_cont((i * 7919 % 1000)::double, 0.9) OVER w AS d, sum((i % 100)::decimal(7, 2)) OVER w AS e FROM range(4000) r(i) WINDOW w AS (PARTITION BY i % 3 ORDER BY i {frame})) q", script=many)
same("SELECT i, min(x) OVER w AS a, max(x) OVER w AS b, median(x) OVER w AS c, sum(x) OVER w AS d FROM (VALUES (1, 1.0::double), (2, 'nan'::double), (3, 2.0), (4, 'inf'::double), (5, NULL), (6, 3.0)) n(i, x) WINDOW w AS (ORDER BY i ROWS 1 PRECEDING) ORDER BY i")
same("SELECT i, count(*) OVER (ORDER BY u RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) AS a, count(*) OVER (ORDER BY u DESC RANGE BETWEEN CURRENT ROW AND 3 FOLLOWING) AS b FROM (SELECT i, i::uint16 AS u FROM range(6) r(i)) q ORDER BY i", "SELECT i, count(*) OVER (ORDER BY i RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) AS a, count(*) OVER (ORDER BY i DESC RANGE BETWEEN CURRENT ROW AND 3 FOLLOWING) AS b FROM range(6) r(i) ORDER BY i")

f.note("Months that end on different days, unsigned keys, and zeros.")
ENDS = "(VALUES (1, TIMESTAMP '2023-02-28 02:00:00'), (2, TIMESTAMP '2023-02-28 04:00:00'), (3, TIMESTAMP '2023-03-29 05:00:00'), (4, TIMESTAMP '2023-03-30 03:00:00'), (5, TIMESTAMP '2023-03-31 01:00:00'), (6, TIMESTAMP '2023-03-31 06:00:00')) m(i, t)"
for frame in ("INTERVAL '1 month' PRECEDING AND CURRENT ROW", "UNBOUNDED PRECEDING AND INTERVAL '1 month' PRECEDING", "INTERVAL '1 month' PRECEDING AND INTERVAL '50 hours' PRECEDING"):
    window = f"WINDOW w AS (ORDER BY t RANGE BETWEEN {frame}) ORDER BY i"
    same(f"SELECT i, count(*) OVER w AS a, sum(i) OVER w AS b, sum(x) OVER w AS c, min(i) OVER w AS d, max(x) OVER w AS e, median(x) OVER w AS f FROM (SELECT *, i::double AS x FROM {ENDS}) q {window}")
for keyed in ("u RANGE BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING", "u RANGE BETWEEN 3 PRECEDING AND 1 PRECEDING", "u DESC RANGE BETWEEN 2 FOLLOWING AND 3 FOLLOWING"):
    sql = f"SELECT i, count(*) OVER w AS a, sum(i) OVER w AS b FROM (SELECT i, i::uint16 AS u FROM range(6) r(i)) q WINDOW w AS (ORDER BY {keyed}) ORDER BY i"
    same(sql, sql.replace("uint16", "bigint"))
# An extreme value has no sign if it is zero, whatever the frame.
f.rows("SELECT i, (max(x) OVER w)::text AS a, (min(x) OVER w)::text AS b FROM (VALUES (1, -0.0::double), (2, -0.0::double), (3, 0.0::double)) z(i, x) WINDOW w AS (ORDER BY i ROWS 1 PRECEDING EXCLUDE CURRENT ROW) ORDER BY i", [(1, None, None), (2, "0.0", "0.0"), (3, "0.0", "0.0")])

f.note("Where frames with EXCLUDE and orders of arguments may stand.")
same(f"SELECT i, nth_value(v, NULL) OVER (ORDER BY i ROWS 2 PRECEDING EXCLUDE CURRENT ROW) AS a, nth_value(v, 0) OVER (ORDER BY i ROWS 2 PRECEDING EXCLUDE TIES) AS b FROM {PEERS} ORDER BY i")
same(f"SELECT i FROM {PEERS} QUALIFY sum(v) OVER (ORDER BY i ROWS 1 PRECEDING EXCLUDE CURRENT ROW) > 5 ORDER BY i")
same(f"SELECT i FROM {PEERS} ORDER BY sum(v) OVER (ORDER BY i ROWS 1 PRECEDING EXCLUDE CURRENT ROW) DESC NULLS LAST, i")
same(f"SELECT k, sum(sum(v)) OVER (ORDER BY k ROWS 1 PRECEDING EXCLUDE CURRENT ROW) AS a, string_agg(k::text, ',' ORDER BY sum(v) DESC, k) OVER () AS b FROM {PEERS} WHERE k > 0 GROUP BY k ORDER BY k")
same(f"SELECT i, count(DISTINCT y) OVER w AS a, stddev(y) OVER w AS b, var_pop(y) OVER w AS c FROM (SELECT i, x - 1 AS y FROM {PEERS}) q WINDOW w AS (ORDER BY i ROWS 3 PRECEDING EXCLUDE CURRENT ROW) ORDER BY i")

f.note("Windows that are computed together, with projections between them and other functions beside.")
W = "(VALUES (1, 'a', 1.5::double, 5.25::decimal(6, 2)), (2, 'b', NULL, 1.10::decimal(6, 2)), (3, 'a', 2.0, NULL), (4, NULL, 4.25, 7.00::decimal(6, 2)), (5, 'b', 8.5, 0.35::decimal(6, 2)), (6, 'a', -3.0, 2.20::decimal(6, 2))) w(i, g, x, d)"
same(f"SELECT j, sum(y) OVER (ORDER BY j) AS a, sum(y) OVER (ORDER BY j ROWS 1 PRECEDING) AS b, lag(y) OVER (ORDER BY j) AS c FROM (SELECT i AS j, x AS y FROM {W}) q ORDER BY j")
same(f"SELECT i, sum(x) OVER (PARTITION BY g ORDER BY i) AS a, count(x) OVER (PARTITION BY g) AS b, max(g) OVER (PARTITION BY g ORDER BY i ROWS 1 PRECEDING) AS c, sum(x) OVER (ORDER BY g, i ROWS 2 PRECEDING) AS d, sum(x) OVER (ORDER BY i DESC) AS e FROM {W} ORDER BY i")
same(f"SELECT i, sum(x) FILTER (WHERE i <> 3) OVER w AS a, count(DISTINCT g) OVER w AS b, avg(x) OVER w AS c, min(g) OVER w AS d, first_value(x) OVER w AS e, median(x) OVER w AS f FROM {W} WINDOW w AS (ORDER BY i ROWS 2 PRECEDING) ORDER BY i")
same(f"SELECT i, n, sum(n * x) OVER (PARTITION BY g ORDER BY i ROWS 1 PRECEDING) AS a FROM (SELECT i, g, x, row_number() OVER (PARTITION BY g ORDER BY i) + 1 AS n FROM {W}) q ORDER BY i")
same(f"SELECT i, a, sum(a) OVER (ORDER BY g NULLS LAST, i) AS b, a > 2 AS c FROM (SELECT i, g, sum(x) OVER (PARTITION BY g ORDER BY i) AS a FROM {W}) q ORDER BY i")
same(f"SELECT i, r, sum(x) OVER (PARTITION BY r ORDER BY i) AS a FROM (SELECT i, x, ntile(2) OVER (ORDER BY i) AS r FROM {W}) q ORDER BY i")
same(f"SELECT i, m, count(*) OVER (PARTITION BY h, m) AS a, sum(i) OVER (PARTITION BY h ORDER BY m, i) AS b FROM (SELECT i, coalesce(g, 'z') AS h, i % 2 AS m FROM {W}) q ORDER BY i")
same("SELECT sum(a % 1000) AS a, sum(b) AS b, sum(c) AS c, max(d) AS d FROM (SELECT sum(j) OVER (PARTITION BY h ORDER BY j ROWS 50 PRECEDING) AS a, max(j % 77) OVER (PARTITION BY h ORDER BY j ROWS 5 PRECEDING) AS b, lag(j, 3) OVER (PARTITION BY h ORDER BY j) AS c, count(*) OVER (PARTITION BY h) AS d FROM (SELECT i AS j, i * 7919 % 13 AS h FROM range(10000) r(i)) q) s", script=many)

same(f"SELECT i, sum(x) OVER w AS a, list(i) OVER w AS b, len(list(x) OVER (PARTITION BY g)) AS c, sum(i) OVER (PARTITION BY g) AS d FROM {W} WINDOW w AS (PARTITION BY g ORDER BY i) ORDER BY i")
same(f"SELECT i, sum(n) OVER (PARTITION BY g ORDER BY i) AS a FROM (SELECT i, g, length(repeat('ab', r)) AS n FROM (SELECT i, g, rank() OVER (PARTITION BY g ORDER BY i) AS r FROM {W}) p) q ORDER BY i")

f.note("Means and totals of decimals.")
# Of means, all digits but those after the sixth are DuckDB's.
for keyed in ("ORDER BY i ROWS 2 PRECEDING", "ORDER BY i", "ORDER BY i ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING", "ORDER BY i ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING", "PARTITION BY g ORDER BY i RANGE 2 PRECEDING"):
    same(f"SELECT i, round((avg(d) OVER w)::double, 5) AS a, sum(d) OVER w AS b, count(d) OVER w AS c FROM {W} WINDOW w AS ({keyed}) ORDER BY i", f"SELECT i, round(avg(d) OVER w, 5) AS a, sum(d) OVER w AS b, count(d) OVER w AS c FROM {W} WINDOW w AS ({keyed}) ORDER BY i")
# DuckDB adds the value that comes before it subtracts the one that goes.
f.rows(f"SELECT i, (sum(d) OVER (ORDER BY i ROWS BETWEEN CURRENT ROW AND CURRENT ROW))::text AS a FROM (VALUES (1, {'9' + '0' * 37}::decimal(38, 0)), (2, {'9' + '0' * 37}::decimal(38, 0)), (3, -{'8' + '0' * 37}::decimal(38, 0))) n(i, d) ORDER BY i", [(1, "9" + "0" * 37), (2, "9" + "0" * 37), (3, "-8" + "0" * 37)])
f.error(f"SELECT sum(d) OVER (ORDER BY i ROWS 1 PRECEDING) FROM (VALUES (1, {'9' + '0' * 37}::decimal(38, 0)), (2, {'9' + '0' * 37}::decimal(38, 0))) n(i, d)", "decimal_overflow")

f.note("Frames that end before they begin, and fractions beside integers.")
for frame in ("ROWS BETWEEN 1 PRECEDING AND 2 PRECEDING", "ROWS BETWEEN 2 FOLLOWING AND 1 FOLLOWING", "GROUPS BETWEEN 1 PRECEDING AND 3 PRECEDING"):
    same(f"SELECT i, sum(x) OVER w AS a, count(*) OVER w AS b, max(g) OVER w AS c, first_value(i) OVER w AS d, sum(i) OVER w AS e, row_number() OVER w AS f FROM {W} WINDOW w AS (PARTITION BY i % 2 ORDER BY i {frame}) ORDER BY i")
for frame in ("1.5 PRECEDING", "BETWEEN 2.5 PRECEDING AND 0.5 PRECEDING", "BETWEEN 0.5 FOLLOWING AND 2.5 FOLLOWING", "BETWEEN 1.0 PRECEDING AND 1.9 FOLLOWING"):
    same(f"SELECT i, sum(x) OVER w AS a, count(*) OVER w AS b, first_value(i) OVER w AS c FROM {W} WINDOW w AS (ORDER BY i RANGE {frame}) ORDER BY i")
    same(f"SELECT i, sum(x) OVER w AS a, count(*) OVER w AS b FROM {W} WINDOW w AS (PARTITION BY g ORDER BY i DESC RANGE {frame}) ORDER BY i")
KEY = "CASE WHEN i > 1 THEN i ELSE i + 0.5 END"
same(f"SELECT i, count(*) OVER (ORDER BY {KEY} RANGE 0.5 PRECEDING) AS a FROM (VALUES (1), (2), (3)) v(i) ORDER BY i")
same(f"SELECT i, count(*) OVER (ORDER BY k RANGE BETWEEN CURRENT ROW AND 0.5 FOLLOWING) AS a, count(*) OVER (ORDER BY k DESC RANGE 1.5 PRECEDING) AS b FROM (SELECT i, {KEY} AS k FROM (VALUES (1), (2), (3)) v(i)) q ORDER BY i")
