"""sql/cells/chained: chains of blocks with conditions and computed columns, and of OR, expected from DuckDB."""

import duckdb

from .core import Script

con = duckdb.connect()
f = Script("cells/chained", "Chains of blocks with conditions and computed columns, and of OR. Expected values from DuckDB.", 1e-12, chunks="4KiB")


def same(sql):
    f.rows(sql, con.execute(sql).fetchall())


def chain(first, then, blocks):
    steps = [f"c0 AS ({first})"] + [f"c{k} AS ({then.format(k=k, before=k - 1)})" for k in range(1, blocks + 1)]
    return f"WITH {', '.join(steps)} SELECT count(*) AS n, min(i) AS i, max(i) AS j, sum(v) AS s FROM c{blocks}"


f.note("Conditions that go below a few of the blocks, and no further.")
same(chain("SELECT i, i * 0.5::double AS v FROM range(2000) r(i)", "SELECT i, v + {k} AS v FROM c{before} WHERE v > {k}", 40))
same(chain("SELECT i, i % 17 AS v FROM range(200) r(i)", "SELECT i, CASE WHEN v > {k} THEN v - 1 ELSE v + {k} END AS v FROM c{before} WHERE v <> {k}", 7))
same(chain("SELECT i, i % 1000 AS v FROM range(3000) r(i)", "SELECT i, (v * 7 + {k}) % 1009 AS v FROM c{before} WHERE v % {k} < 900 AND i > {k}", 30))
same(chain("SELECT i, i AS v FROM range(500) r(i)", "SELECT i, sum(v) OVER (ORDER BY i ROWS 1 PRECEDING) % 101 AS v FROM (SELECT i, v + {k} AS v FROM c{before} WHERE v + i > {k}) q WHERE v % 10 <> 3", 4))

f.note("Conditions upon each other above an aggregate that returns a row for no rows.")
same("SELECT count(*) AS n FROM (SELECT sum(i) AS s FROM range(5) r(i) HAVING count(*) >= 0) t WHERE (SELECT 1) > 2")
same("SELECT count(*) AS n FROM (SELECT sum(i) AS s FROM range(5) r(i) HAVING count(*) >= 0) t WHERE (SELECT min(i) FROM range(5) r(i)) > 2")
same("SELECT count(*) AS n FROM (SELECT sum(i) AS s FROM range(5) r(i) HAVING count(*) >= 0) t WHERE (SELECT 3) > 2")

f.note("Random conditions upon each other are two, where DuckDB keeps one: a quarter of the rows, within 8 standard deviations.")
f.rows("SELECT CASE WHEN count(*) BETWEEN 4500 AND 5500 THEN 1 ELSE 0 END AS is_quarter FROM (SELECT i FROM range(20000) r(i) WHERE random() < 0.5) t WHERE random() < 0.5", [(1,)])

f.note("Chains of OR.")
same("SELECT count(*) AS n, sum(i) AS s FROM range(1000) r(i) WHERE " + " OR ".join(f"i % 7 = {k % 7} AND i > {k * 25}" for k in range(40)))
same("SELECT count(*) AS n, sum(i) AS s FROM range(1000) r(i) WHERE " + " OR ".join(f"i = {k * 37 % 1100}" for k in range(300)))
same("SELECT count(*) AS n, count(b) AS m, count(*) FILTER (WHERE b) AS k FROM (SELECT " + " OR ".join(f"nullif(i, {k}) > {900 + k}" for k in range(35)) + " AS b FROM range(1000) r(i)) t")
same("SELECT count(*) AS n FROM range(1000) r(i) WHERE NOT (" + " OR ".join(f"i % {k} = 1" for k in range(2, 40)) + ")")
