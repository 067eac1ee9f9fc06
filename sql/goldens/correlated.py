"""sql/cells/correlated: subqueries that use columns of a row outside, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW o AS SELECT * FROM (VALUES (1, 10), (2, 20), (0, 7), (NULL, 5), (1, NULL)) v(i, j)",
    "CREATE VIEW q AS SELECT * FROM (VALUES (1, 10), (2, 5), (2, 6), (NULL, 5), (3, NULL)) v(i, j)",
    "CREATE VIEW wide AS SELECT i::bigint AS i, j::int AS j FROM (VALUES (1, 10), (2, 2), (NULL, 5)) v(i, j)",
    "CREATE VIEW narrow AS SELECT i::int AS i, j::int AS j FROM q",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/correlated", "Subqueries that use columns of a row outside. Expected values from DuckDB.", setup=VIEWS)


def same(sql, duck=None):
    rows = con.execute(duck or sql).fetchall()
    f.rows(sql, rows)


f.note("Two levels deep, with a column of the outermost relation.")
same("SELECT i FROM o WHERE EXISTS (SELECT 1 FROM q WHERE q.i = o.i AND EXISTS (SELECT 1 FROM q r WHERE r.i = q.i AND r.j = o.j))")
same("SELECT DISTINCT a.i FROM q a WHERE NOT EXISTS (SELECT 1 FROM q b WHERE b.i <= a.i AND NOT EXISTS (SELECT 1 FROM q c WHERE c.i = a.i AND c.j >= b.j)) ORDER BY a.i")
same("SELECT i, j FROM o WHERE o.j IN (SELECT r.j FROM q r WHERE r.i IN (SELECT s.i FROM q s WHERE s.i = o.i AND s.j = r.j)) ORDER BY ALL")
same("SELECT i, j, (SELECT count(*) FROM q WHERE q.i = o.i AND q.j < (SELECT max(r.j) FROM q r WHERE r.i = q.i AND r.j <= o.j)) AS n FROM o ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT 1 FROM q WHERE EXISTS (SELECT 1 FROM q r WHERE r.i = o.i AND r.j > 5)) ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT 1 FROM q WHERE q.i = o.i AND EXISTS (SELECT 1 FROM q r WHERE r.i = q.i AND EXISTS (SELECT 1 FROM q s WHERE s.j = r.j AND s.i = q.i AND s.j <= o.j))) ORDER BY ALL")

f.note("Rows of values. DuckDB has no such IN with columns outside: it is written out there.")


def written_out(rows):
    found, unknown = (f"EXISTS (SELECT 1 FROM q WHERE {rows} AND {test})" for test in ("(q.i = o.i AND q.j = o.j)", "(q.i = o.i AND q.j = o.j) IS NULL"))
    return f"CASE WHEN {found} THEN true WHEN {unknown} THEN NULL ELSE false END"


for rows in ("q.i = o.i", "(q.j <= 10 AND q.i >= o.i)", "(q.i = o.i OR q.i IS NULL)"):
    for test in ("IN", "NOT IN"):
        ours = f"(i, j) {test} (SELECT q.i, q.j FROM q WHERE {rows})"
        theirs = written_out(rows) if test == "IN" else f"NOT {written_out(rows)}"
        same(f"SELECT i, j, {ours} AS f FROM o ORDER BY ALL", f"SELECT i, j, {theirs} AS f FROM o ORDER BY ALL")
        same(f"SELECT i, j FROM o WHERE {ours} ORDER BY ALL", f"SELECT i, j FROM o WHERE {theirs} ORDER BY ALL")

f.note("An aggregate without GROUP BY has a row for each row outside.")
for aggregate in ("max(q.j)", "count(*)", "sum(q.j)"):
    same(f"SELECT i, j, EXISTS (SELECT {aggregate} FROM q WHERE q.i = o.i) AS f, NOT EXISTS (SELECT {aggregate} FROM q WHERE q.i = o.i) AS g FROM o ORDER BY ALL")
    for condition in (f"EXISTS (SELECT {aggregate} FROM q WHERE q.i = o.i)", f"i IN (SELECT {aggregate} FROM q WHERE q.i = o.i)", f"i NOT IN (SELECT {aggregate} FROM q WHERE q.i = o.i)", f"i = ANY (SELECT {aggregate} FROM q WHERE q.i = o.i)", f"i < ALL (SELECT {aggregate} FROM q WHERE q.i = o.i)"):
        same(f"SELECT i, j FROM o WHERE {condition} ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT count(*) FROM q WHERE q.i = o.i HAVING count(*) = 0) ORDER BY ALL")
same("SELECT i, j, i IN (SELECT count(*) FROM q WHERE q.i = o.i HAVING count(*) <> 1) AS f FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT DISTINCT count(*) FROM q WHERE q.i = o.i) AS n FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT max(c) FROM (SELECT count(*) AS c FROM q WHERE q.i = o.i) s) AS n FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT count(*) FROM q WHERE q.i > o.i) AS n, (SELECT sum(q.j * o.j) FROM q WHERE q.j < o.j) AS s FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT count(*) + o.i FROM q WHERE q.i = o.i AND o.j > 9) AS n FROM o ORDER BY ALL")
same("SELECT i, j FROM o WHERE (SELECT count(*) FROM q WHERE q.i = o.i OR q.j = o.j) > 1 ORDER BY ALL")

f.note("LIMIT and OFFSET.")
same("SELECT i, j FROM o WHERE EXISTS (SELECT q.j FROM q WHERE q.i = o.i LIMIT 1 OFFSET 1) ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT 1 FROM q WHERE q.i = o.i ORDER BY q.j LIMIT 0) AS f FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT q.j FROM q WHERE q.i >= o.i ORDER BY q.j DESC NULLS LAST LIMIT 1) AS m FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT q.j + 1 FROM q WHERE q.i = o.i ORDER BY q.j LIMIT 1 OFFSET 1) AS m FROM o ORDER BY ALL")
same("SELECT i, j, j IN (SELECT q.j FROM q WHERE q.i >= o.i ORDER BY q.j LIMIT 2) AS f FROM o ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT 1 FROM (SELECT q.j FROM q WHERE q.i = o.i ORDER BY q.j DESC LIMIT 1) s WHERE s.j < 10) ORDER BY ALL")

f.note("Windows, sets, derived tables.")
same("SELECT i, j FROM o WHERE EXISTS (SELECT 1 FROM (SELECT row_number() OVER (ORDER BY q.j) AS n FROM q WHERE q.i = o.i) s WHERE s.n = 2) ORDER BY ALL")
same("SELECT i, j, 1 IN (SELECT row_number() OVER (ORDER BY q.j) FROM q WHERE q.i = o.i) AS f FROM o ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT q.j FROM q WHERE q.i = o.i UNION ALL SELECT 1 FROM q WHERE q.j = o.j) AS f FROM o ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT q.j FROM q WHERE q.i = o.i EXCEPT SELECT 5) AS f FROM o ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT q.j FROM q WHERE q.i = o.i INTERSECT SELECT r.j FROM q r WHERE r.j < o.j) AS f FROM o ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT q.j AS i FROM q WHERE q.i = o.i) ORDER BY ALL")
same("SELECT i, j FROM o WHERE EXISTS (SELECT 1 FROM (SELECT q.j AS i FROM q WHERE q.i = o.i) s WHERE s.i = 10) ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT 1 FROM q WHERE q.i = o.i ORDER BY 1) AS f FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT count(*) FROM q LEFT JOIN (SELECT r.j FROM q r WHERE r.i = o.i) s ON s.j = q.j) AS n FROM o ORDER BY ALL", "SELECT i, j, (SELECT count(*) FROM q LEFT JOIN LATERAL (SELECT r.j FROM q r WHERE r.i = o.i) s ON s.j = q.j) AS n FROM o ORDER BY ALL")
same("SELECT i, sum(j) AS s, EXISTS (SELECT max(q.j) FROM q WHERE q.i = o.i HAVING max(q.j) > 5) AS f FROM o GROUP BY i ORDER BY ALL")
same("SELECT i IN (SELECT count(*) FROM q WHERE q.i = o.i) AS f, count(*) AS n FROM o GROUP BY 1 ORDER BY ALL")

f.note("LATERAL.")
same("SELECT o.i, o.j, x FROM o, LATERAL (SELECT count(*) AS x FROM q WHERE q.i = o.i HAVING count(*) > 1) l ORDER BY ALL")
same("SELECT o.i, o.j, x FROM o LEFT JOIN LATERAL (SELECT count(*) AS x FROM q WHERE q.i = o.i HAVING count(*) <> 1) l ON true ORDER BY ALL")
same("SELECT o.i, o.j, l.m FROM o, LATERAL (SELECT q.j AS m FROM q WHERE q.i >= o.i ORDER BY q.j DESC NULLS LAST LIMIT 1) l ORDER BY ALL")
same("SELECT o.i, o.j, l.m FROM o LEFT JOIN LATERAL (SELECT q.j + o.j AS m FROM q WHERE q.i = o.i) l ON l.m > 15 ORDER BY ALL")
same("SELECT o.i, o.j, a.n, b.n AS k FROM o, LATERAL (SELECT count(*) AS n FROM q WHERE q.i > o.i) a, LATERAL (SELECT count(*) AS n FROM q WHERE q.i < a.n AND q.j <= o.j) b ORDER BY ALL")
same("SELECT o.i, l.i AS i_1, l.n FROM o LEFT JOIN LATERAL (SELECT q.i, count(*) AS n FROM q WHERE q.j <= o.j GROUP BY q.i) l ON true ORDER BY ALL")

same("SELECT o.i, o.j, x FROM o, LATERAL (VALUES (o.i), (o.j)) v(x) ORDER BY ALL")
same("SELECT o.i, o.j, (SELECT sum(x) FROM (VALUES (o.i), (o.j), (1)) v(x)) AS s FROM o ORDER BY ALL")

f.note("Integers of another width.")
same("SELECT w.i FROM wide w WHERE w.i IN (SELECT q.i FROM narrow q WHERE q.i = w.j) ORDER BY ALL")
same("SELECT w.i, w.i IN (SELECT q.i FROM narrow q WHERE q.j = w.j) AS f, w.i NOT IN (SELECT q.i FROM narrow q WHERE q.i = w.j) AS g FROM wide w ORDER BY ALL")
same("SELECT w.i FROM wide w WHERE w.i = ANY (SELECT q.i FROM narrow q WHERE q.i = w.j) ORDER BY ALL")
same("SELECT w.i FROM wide w WHERE w.i NOT IN (SELECT q.j FROM narrow q WHERE q.j = w.j) ORDER BY ALL")

f.note("Sets of columns of one name; aggregates of columns outside, with FILTER and DISTINCT; groups.")
same("SELECT i, j, EXISTS (SELECT q.j FROM q WHERE q.i = o.i INTERSECT SELECT q.j FROM q WHERE q.j < o.j) AS f, EXISTS (SELECT q.j FROM q WHERE q.i = o.i EXCEPT SELECT q.j FROM q WHERE q.j < o.j) AS g FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT count(DISTINCT q.j % o.j) FILTER (WHERE q.i <> o.i) FROM q WHERE q.j > o.i) AS n FROM o ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT q.i, count(*) FROM q WHERE q.j <= o.j GROUP BY q.i HAVING count(*) >= o.i) AS f FROM o ORDER BY ALL")
same("SELECT i, j, 2 IN (SELECT count(*) FROM q WHERE q.j <= o.j GROUP BY q.i) AS f, j > ALL (SELECT sum(q.j) FROM q WHERE q.i >= o.i GROUP BY q.i) AS g FROM o ORDER BY ALL")
same("SELECT i, j, (SELECT count(*) FROM q a JOIN q b ON a.i = b.i AND a.j + o.i >= b.j) AS n FROM o ORDER BY ALL")
same("SELECT g.i, g.n, EXISTS (SELECT 1 FROM q WHERE q.i > g.n ORDER BY q.j LIMIT 1 OFFSET 1) AS f FROM (SELECT i, count(*) AS n FROM o GROUP BY i) g ORDER BY ALL")

f.note("Equality after a cast that makes values equal; groups behind LATERAL; groups by columns outside.")
same("SELECT o.i, (SELECT count(*) FROM (VALUES (1.25::double), (0.75), (2.5), (NULL)) r(x) WHERE floor(r.x)::int = o.i) AS n FROM o ORDER BY ALL")
same("SELECT o.d, (SELECT count(*) FROM (VALUES (timestamp '2020-01-01 01:00:00'), (timestamp '2020-01-01 02:00:00')) r(t) WHERE r.t::date = o.d) AS n FROM (VALUES (date '2020-01-01'), (date '2020-01-02')) o(d) ORDER BY ALL")
same("SELECT o.d, l.n FROM (VALUES (date '2020-01-01'), (date '2020-01-02')) o(d), LATERAL (SELECT count(*) AS n FROM (VALUES (timestamp '2020-01-01 01:00:00'), (timestamp '2020-01-01 02:00:00')) r(t) WHERE r.t::date = o.d) l ORDER BY ALL")
for test in ("=", ">="):
    same(f"SELECT o.i, o.j, l.k FROM o, LATERAL (SELECT DISTINCT q.i > 0 AS k FROM q WHERE q.i {test} o.i) l ORDER BY ALL")
    same(f"SELECT o.i, o.j, l.k FROM o, LATERAL (SELECT q.j % 5 AS k FROM q WHERE q.i {test} o.i GROUP BY q.j % 5) l ORDER BY ALL")
    same(f"SELECT o.i, o.j, l.k, l.n FROM o LEFT JOIN LATERAL (SELECT q.j AS k, count(*) AS n FROM q WHERE q.i {test} o.i GROUP BY q.j) l ON true ORDER BY ALL")
same("SELECT o.i, o.j, l.k, l.n FROM o, LATERAL (SELECT o.i AS k, count(*) AS n FROM q WHERE q.i >= o.i GROUP BY o.i) l ORDER BY ALL")
same("SELECT i, j, EXISTS (SELECT 1 FROM q WHERE q.i >= o.i GROUP BY o.j, q.j HAVING count(*) = 1) AS f FROM o ORDER BY ALL")

f.note("EXISTS of all columns of a join: those of one name are no reason to compute the rows outside twice.")
same("SELECT count(*) AS n FROM (SELECT i FROM o ORDER BY i LIMIT 2) p WHERE EXISTS (SELECT * FROM q a JOIN q b ON a.j = b.j WHERE a.i = p.i)")
same("SELECT i, j FROM o WHERE EXISTS (SELECT * FROM q a JOIN q b ON a.j = b.j WHERE a.i = o.i AND b.i IS NULL) ORDER BY ALL")
same("SELECT i, j, NOT EXISTS (SELECT * FROM q a, q b WHERE a.i = o.i AND b.i = o.i AND a.j < b.j) AS f FROM o ORDER BY ALL")

f.note("Subqueries of one row are values, which do not need the rows outside twice.")
FIRST = "(SELECT i FROM o WHERE i > 0 ORDER BY i LIMIT 3) p"
for condition in [
    "EXISTS (SELECT 1 FROM q WHERE q.i = p.i OFFSET 1)",
    "EXISTS (SELECT max(q.j) FROM q WHERE q.i = p.i HAVING count(*) > 1)",
    "i NOT IN (SELECT min(q.j) FROM q WHERE q.i = p.i)",
    "i < ALL (SELECT count(*) FROM q WHERE q.i = p.i HAVING count(*) > 1)",
    "(SELECT DISTINCT count(*) FROM q WHERE q.i = p.i) = 1",
]:
    same(f"SELECT i FROM {FIRST} WHERE {condition} ORDER BY ALL")
same(f"SELECT i, x FROM {FIRST}, LATERAL (SELECT count(*) AS x FROM q WHERE q.i = p.i HAVING count(*) > 1) l ORDER BY ALL")

f.note("Keys outside that are NaN, -0.0 or NULL; one subquery twice; rows outside that are equal.")
FLOATS = "(VALUES (1, '-0.0'::double), (2, 0.0::double), (3, 'nan'::double), (4, NULL), (5, 'nan'::double), (6, -1.5::double))"
same(f"SELECT o.id, (SELECT count(*) FROM {FLOATS} r(id, x) WHERE r.x >= o.x) AS n, EXISTS (SELECT 1 FROM {FLOATS} r(id, x) WHERE r.x = o.x ORDER BY r.id LIMIT 1 OFFSET 1) AS f FROM {FLOATS} o(id, x) ORDER BY ALL")
same(f"SELECT o.id, l.n FROM {FLOATS} o(id, x), LATERAL (SELECT r.id % 2 AS k, count(*) AS n FROM {FLOATS} r(id, x) WHERE r.x = o.x GROUP BY r.id % 2) l ORDER BY ALL")
same("SELECT p.i, (SELECT count(*) FROM q WHERE q.i > p.i) AS n, (SELECT count(*) FROM q WHERE q.i > p.i) + 1 AS m FROM (SELECT o.i FROM o, q) p WHERE (SELECT count(*) FROM q WHERE q.i > p.i) < 3 ORDER BY ALL")

f.note("The rows outside are computed twice.")
f.error("SELECT i, (SELECT count(*) FROM q WHERE q.i > p.i) AS n FROM (SELECT * FROM o LIMIT 3) p", "unsupported: .*rows that may differ when they are computed again")
f.error("SELECT i, (SELECT count(*) FROM q WHERE q.i > p.i) AS n FROM (SELECT * FROM o WHERE i IN (SELECT q.i FROM q LIMIT 1)) p", "unsupported: .*rows that may differ when they are computed again")
f.error("SELECT i, EXISTS (SELECT count(*) FROM q WHERE q.i = o.i GROUP BY ROLLUP (q.j)) AS f FROM o", "unsupported: GROUPING SETS, ROLLUP or CUBE in a correlated subquery")

f.note("Keys of ORDER BY, PARTITION BY and GROUP BY.")
same("SELECT i, j FROM o ORDER BY (SELECT max(q.j) FROM q WHERE q.i = o.i) DESC NULLS LAST, j NULLS LAST")
same("SELECT j FROM o ORDER BY (SELECT count(*) FROM q WHERE q.i = o.i) DESC, j NULLS FIRST LIMIT 3")
same("SELECT j AS v FROM o ORDER BY (SELECT count(*) FROM q WHERE q.i = o.i) + 1 DESC, v NULLS FIRST")
same("SELECT i, count(*) AS n FROM o GROUP BY i ORDER BY (SELECT sum(q.j) FROM q WHERE q.i = o.i) NULLS LAST, i NULLS LAST")
same("SELECT i, j FROM o ORDER BY EXISTS (SELECT 1 FROM q WHERE q.i = o.i AND q.j = o.j) DESC, i NULLS LAST, j NULLS LAST")
same("SELECT * FROM (SELECT i, j FROM o ORDER BY (SELECT max(q.j) FROM q WHERE q.i < o.i) NULLS LAST, j LIMIT 2) p ORDER BY ALL")
same("SELECT i, j, count(*) OVER (PARTITION BY (SELECT count(*) FROM q WHERE q.i = o.i)) AS n FROM o ORDER BY ALL")
same("SELECT i, j, row_number() OVER (ORDER BY (SELECT max(q.j) FROM q WHERE q.i = o.i) NULLS LAST, j NULLS LAST, i) AS n FROM o ORDER BY n")
same("SELECT (SELECT count(*) FROM q WHERE q.i = o.i) AS c, count(*) AS n, sum(j) AS s FROM o GROUP BY (SELECT count(*) FROM q WHERE q.i = o.i) ORDER BY c")
same("SELECT (SELECT max(q.j) FROM q WHERE q.i = o.i) AS c, count(*) AS n FROM o GROUP BY 1 ORDER BY 1 NULLS LAST")
same("SELECT count(*) AS n FROM o GROUP BY (SELECT count(*) FROM q WHERE q.i = o.i) ORDER BY n")
