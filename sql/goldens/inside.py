"""sql/cells/inside: fields and elements of nested values, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
VIEWS = [
    "CREATE VIEW n AS SELECT * FROM (VALUES (1, [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}], {'r': {'w': [5, 6]}}, [1, 2]), (2, [{'a': 7, 'b': 'z'}], {'r': {'w': [8]}}, [3])) v(id, lst, st, l)",
]
for view in VIEWS:
    con.execute(view)

f = Script("cells/inside", "Fields and elements of nested values. Expected values from DuckDB.", setup=VIEWS)


def same(sql, duck=None):
    rows = con.execute(duck or sql).fetchall()
    assert rows, sql
    f.rows(sql, rows)


f.note("Fields of the elements of lists of structs.")
same("SELECT n.id, v.a FROM n, unnest(n.lst) t(v) ORDER BY ALL")
same("SELECT n.id, v.a + 1 AS s, t.v.b AS b, v['a'] AS c FROM n, unnest(n.lst) t(v) WHERE v.a > 1 ORDER BY s")
same("SELECT sum(v.a) AS s, min(v.b) AS b FROM n JOIN unnest(n.lst) t(v) ON v.a < 7")
same("SELECT v.b, count(*) AS c FROM n, unnest(n.lst) t(v) GROUP BY v.b ORDER BY v.b")
same("SELECT q.v.a FROM (SELECT n.id, v FROM n, unnest(n.lst) t(v)) q ORDER BY 1")
same("SELECT n.id, v.a, i FROM n, unnest(n.lst) t(v), unnest(n.l) u(i) WHERE v.a = i ORDER BY ALL")

f.note("Lists of columns of the relations before them, and fields of these.")
same("SELECT n.id, x FROM n, unnest([n.id, 30]) t(x) ORDER BY ALL")
same("SELECT id, (SELECT sum(x) FROM unnest([n.id, 30]) u(x)) AS s FROM n ORDER BY id")
same("SELECT n.id, x FROM n, unnest(n.st.r.w) t(x) ORDER BY ALL")
same("SELECT id, (SELECT sum(x) FROM unnest(n.st.r.w) u(x)) AS s FROM n ORDER BY id")
same("SELECT id FROM n WHERE 8 IN (SELECT x FROM unnest(n.st.r.w) u(x))")
same("SELECT m.id, x FROM n m, LATERAL (SELECT unnest(m.st.r.w) AS x) q ORDER BY ALL")

f.note("Fields of a lambda's parameter.")
V = "(VALUES (1, [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]), (2, [{'a': 7, 'b': 'z'}])) v(id, lst)"
same(
    f"SELECT id, array_to_string(list_transform(lst, x -> x.b), ',') AS s FROM {V} ORDER BY id",
    f"SELECT id, array_to_string(list_transform(lst, lambda x: x.b), ',') AS s FROM {V} ORDER BY id",
)
same(
    f"SELECT id, array_to_string(list_transform(lst, x -> x.a + id), ',') AS s FROM {V} ORDER BY id",
    f"SELECT id, array_to_string(list_transform(lst, lambda x: x.a + id), ',') AS s FROM {V} ORDER BY id",
)
for text in ("SELECT array_to_string(list_transform(l, x -> x + 1), ',') AS s FROM n ORDER BY s", "SELECT array_to_string(list_transform(lst, x -> x.a + id), ',') AS s FROM (SELECT id, lst FROM n ORDER BY id DESC LIMIT 1) q"):
    same(text, text.replace("x -> ", "lambda x: "))

f.note("Zeros and NaN inside of lists and structs are equal, whatever their sign.")
ok = "CREATE VIEW z AS SELECT * FROM (VALUES (1, 0.0::double), (2, '-0.0'::double), (3, 'nan'::double), (4, '-nan'::double), (5, NULL)) v(id, x)"
con.execute(ok)
f.ok(ok)
same("SELECT id, [x] = [0.0::double] AS a, {'a': x} = {'a': 0.0::double} AS b, [x] <> ['nan'::double] AS c FROM z WHERE id < 5 ORDER BY id")
same("SELECT id FROM z WHERE [x] = ['nan'::double] ORDER BY id")
same("SELECT id FROM z WHERE [{'a': [x]}] IS NOT DISTINCT FROM [{'a': ['-0.0'::double]}] ORDER BY id")
same("SELECT a.id, b.id AS j FROM z a, z b WHERE [a.x] < [b.x] AND a.id < 5 AND b.id < 5 ORDER BY a.id, j")
same("SELECT id FROM z WHERE [x] BETWEEN ['-0.0'::double] AND [0.0::double] ORDER BY id")
same("SELECT count(*) AS n FROM z WHERE {'a': x} >= {'a': 'nan'::double} AND id < 5")
same("SELECT min(l) = [0.0::double] AS a, max(l) = ['nan'::double] AS b FROM (SELECT make_array(x) AS l FROM z WHERE id < 5) q",
     "SELECT min(l) = [0.0::double] AS a, max(l) = ['nan'::double] AS b FROM (SELECT [x] AS l FROM z WHERE id < 5) q")
same("SELECT id, min([x]) OVER (ORDER BY id) = [0.0::double] AS a FROM z WHERE id < 5 ORDER BY id")
same("SELECT id FROM z WHERE [x] IN ([1.0::double], [0.0::double]) ORDER BY id")
same("SELECT count(DISTINCT [x]) AS a, count(DISTINCT {'a': x}) AS b FROM z")
same("SELECT count(*) AS n FROM (SELECT DISTINCT list_value(x) AS l FROM z) q")
same("SELECT count(*) AS n FROM (SELECT DISTINCT {'a': x, 'b': [x]} AS s FROM z) q")
same("SELECT min(id) AS i, count(*) AS n FROM z GROUP BY [x] ORDER BY i")
same("SELECT min(id) AS i, count(*) AS n FROM (SELECT id, {'a': x} AS s FROM z) q GROUP BY s ORDER BY i")
same("SELECT a.id, b.id AS j FROM z a JOIN z b ON [a.x] = [b.x] WHERE a.id < 5 AND b.id < 5 ORDER BY a.id, j")
same("SELECT a.id, b.id AS j FROM (SELECT id, {'a': x} AS s FROM z WHERE id < 5) a JOIN (SELECT id, {'a': x} AS s FROM z WHERE id < 5) b USING (s) ORDER BY a.id, j")
same("SELECT count(*) AS n FROM (SELECT list_value(x) AS l FROM z WHERE id = 1 UNION SELECT list_value(x) AS l FROM z WHERE id = 2) q")
same("SELECT count(*) AS n FROM (SELECT list_value(x) AS l FROM z WHERE id = 1 INTERSECT SELECT list_value(x) AS l FROM z WHERE id = 2) q")
same("SELECT id, count(*) OVER (PARTITION BY [x]) AS n FROM z ORDER BY id")
same("SELECT id, row_number() OVER (ORDER BY [x], id DESC) AS n FROM z WHERE id < 3 ORDER BY id")
same("SELECT id, list_position([x], 0.0::double) AS p FROM z WHERE id < 3 ORDER BY id")

f.note("Intervals compare by their length: a month is 30 days, and a day 24 hours.")
ok = "CREATE VIEW iv AS SELECT * FROM (VALUES (1, INTERVAL '24 hours'), (2, INTERVAL '1 day'), (3, INTERVAL '30 days'), (4, INTERVAL '1 month'), (5, INTERVAL '25 hours'), (6, NULL)) v(id, x)"
con.execute(ok)
f.ok(ok)
same("SELECT a.id, b.id AS j FROM iv a JOIN iv b ON a.x = b.x WHERE a.id < b.id ORDER BY ALL")
same("SELECT a.id, b.id AS j FROM iv a, iv b WHERE a.x < b.x ORDER BY ALL")
same("SELECT id FROM iv ORDER BY x, id")
same("SELECT id FROM iv WHERE id < 6 ORDER BY x DESC, id")
same("SELECT id FROM iv WHERE x IN (INTERVAL '24 hours', INTERVAL '1 month') ORDER BY id")
same("SELECT id FROM iv WHERE x BETWEEN INTERVAL '1 day' AND INTERVAL '25 hours' ORDER BY id")
same("SELECT id FROM iv WHERE x IS DISTINCT FROM INTERVAL '1 day' ORDER BY id")
same("SELECT count(DISTINCT x) AS n FROM iv")
same("SELECT min(x) = INTERVAL '1 day' AS a, max(x) = INTERVAL '25 hours' AS b FROM iv WHERE id IN (2, 5, 6)")
same("SELECT id % 2 AS k, max(x) = INTERVAL '30 days' AS a FROM iv GROUP BY k ORDER BY k")
same("SELECT id, count(*) OVER (PARTITION BY x) AS n FROM iv ORDER BY id")
same("SELECT INTERVAL '24 hours' = INTERVAL '1 day' AS a, INTERVAL '1 month' > INTERVAL '29 days' AS b, INTERVAL '365 days' = INTERVAL '1 year' AS c FROM iv WHERE id = 1")

f.note("Groups, orders and limits of subqueries over the elements of lists.")
LISTS = "(VALUES (1, [3, 1, 2, 1], 1), (2, [5, 5, 4], 2), (3, NULL, 1), (4, [NULL, 7, 7], 0), (5, [9], 4)) t(id, l, k)"
for query in ("SELECT max(x) FROM (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 2)",
              "SELECT x FROM unnest(t.l) u(x) GROUP BY x ORDER BY count(*) DESC, x LIMIT 1",
              "SELECT x FROM unnest(t.l) u(x) ORDER BY x DESC NULLS LAST LIMIT 1",
              "SELECT x FROM unnest(t.l) u(x) ORDER BY x NULLS FIRST LIMIT 1 OFFSET 1",
              "SELECT sum(x) FROM (SELECT DISTINCT x FROM unnest(t.l) u(x))",
              "SELECT max(n) FROM (SELECT x, count(*) AS n FROM unnest(t.l) u(x) GROUP BY x HAVING x > t.k)",
              "SELECT sum(x) FROM (SELECT x FROM unnest(t.l) u(x) WHERE x > t.k ORDER BY abs(x - t.k) DESC, x LIMIT 2)",
              "SELECT count(*) FROM (SELECT x % 2 AS p, sum(x) AS s FROM unnest(t.l) u(x) GROUP BY x % 2)"):
    same(f"SELECT id, ({query}) AS a FROM {LISTS} ORDER BY id")
same(f"SELECT id, array_to_string((SELECT list(x) FROM (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 2)), ',') AS a FROM {LISTS} ORDER BY id")
same(f"SELECT id, EXISTS (SELECT x FROM unnest(t.l) u(x) GROUP BY x HAVING count(*) > 1) AS a FROM {LISTS} ORDER BY id")
same(f"SELECT id, t.k IN (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 1) AS a FROM {LISTS} ORDER BY id")
same(f"SELECT id FROM {LISTS} WHERE (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 1) >= t.k ORDER BY id")
same(f"SELECT sum((SELECT max(x) FROM (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 2))) AS a FROM {LISTS}")
f.error(f"SELECT id, (SELECT x FROM unnest(t.l) u(x) ORDER BY x LIMIT 2) AS a FROM {LISTS}", "(plan_error|execution_error|cardinality|unsupported|more than one row)")
