"""sql/cells/arrow_files: an Arrow file as a table, expected from DuckDB over the table that PyArrow reads."""

import duckdb
import numpy as np
import pyarrow as pa

from .core import DATA, Script

with pa.ipc.open_file(str(DATA / "tables/readings.arrow")) as file:
    readings = file.read_all()
con = duckdb.connect()
con.execute("SET threads = 1")
con.execute("CREATE TABLE readings AS SELECT * FROM readings")

f = Script(
    "cells/arrow_files",
    "An Arrow file of several batches. Expected values from DuckDB.",
    1e-12,
    setup=["CREATE EXTERNAL TABLE readings STORED AS ARROW LOCATION 'tests/data/tables/readings.arrow'"],
)


def same(sql):
    result = con.execute(sql)
    types = [str(d[1]) for d in result.description]
    rows = result.fetchall()
    assert rows, sql
    shown = lambda v, t: np.datetime64(v, "us") if t == "TIMESTAMP" else v
    f.rows(sql, [[shown(v, t) for v, t in zip(row, types)] for row in rows])


f.note("All rows, and those of a condition, in the order of the file.")
same("SELECT n, station, value, k, time FROM readings")
same("SELECT n, value FROM readings WHERE value > 1.25")
same("SELECT n, time FROM readings WHERE k IS NULL AND station <> 's3'")
f.note("Aggregates, few groups and many.")
same("SELECT count(*) AS a, count(value) AS b, sum(value) AS s, avg(k) AS m, min(time) AS t, max(station) AS w FROM readings WHERE n % 3 > 0")
same("SELECT station, count(*) AS a, sum(value) AS s, max(k) AS m FROM readings GROUP BY station ORDER BY station")
same("SELECT n - n % 2 AS pair, sum(value) AS s, min(station) AS a FROM readings WHERE n > 20 GROUP BY n - n % 2 ORDER BY pair")
same("SELECT station, count(DISTINCT k) AS a, median(value) AS m FROM readings WHERE value < 2 GROUP BY station ORDER BY station")
f.note("Orders and the first rows of one.")
same("SELECT station, n FROM readings WHERE n < 50 ORDER BY station, n")
same("SELECT k, n FROM readings WHERE value > 0 ORDER BY k DESC NULLS LAST, n LIMIT 15")
same("SELECT value, n FROM readings WHERE value < -0.5 ORDER BY value, n DESC")
f.note("Joins of the file with itself, and windows.")
same("SELECT a.n AS x, b.n AS y FROM readings a JOIN readings b ON a.n = b.n + 7 WHERE a.station = 's1' ORDER BY x")
same("SELECT n, sum(k) OVER (PARTITION BY station ORDER BY n) AS s, row_number() OVER (PARTITION BY station ORDER BY n) AS r FROM readings WHERE n % 4 = 1 ORDER BY n")
