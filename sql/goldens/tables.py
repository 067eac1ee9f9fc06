"""sql/cells/{tables, boxes}: joins of cells with tables of rows, expected from DuckDB over the same cells as rows."""

import duckdb
import numpy as np

from .core import ERA5, EXTERNAL, Script
from .labels import air

cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
con = duckdb.connect()
con.execute("SET threads = 1")
con.execute("CREATE TABLE era5 AS SELECT * FROM cells")
TABLES = ("weights", "zones", "places", "seasons")
BOXES = ("boxes", "places", "weights")
for name in sorted({*TABLES, *BOXES}):
    con.execute(f"CREATE TABLE {name} AS SELECT * FROM read_csv('tests/data/tables/{name}.csv')")

f = Script(
    "cells/tables",
    "Joins of cells with tables on labels. Expected values from DuckDB.",
    1e-12,
    setup=[ERA5] + [f"CREATE EXTERNAL TABLE {n} STORED AS CSV LOCATION 'tests/data/tables/{n}.csv'" for n in TABLES],
)


def same(sql):
    """A query over both, with an ORDER BY of all rows or with one row."""
    result = con.execute(sql)
    types = [str(d[1]) for d in result.description]
    rows = result.fetchall()
    assert rows, sql
    shown = lambda v, t: np.float32(v) if t == "FLOAT" and v is not None else v
    f.rows(sql, [[shown(v, t) for v, t in zip(row, types)] for row in rows])


f.note("A row for each label: the columns are labels of the dimension.")
same("SELECT sum(t.t2m * w.w), count(*), count(w.w) FROM era5 t JOIN weights w ON t.lat = w.lat")
same("SELECT sum(t.t2m * w.w), count(*), count(w.w) FROM weights w JOIN era5 t USING (lat)")
same("SELECT sum(t2m * w) / sum(w) AS m FROM era5, weights WHERE era5.lat = weights.lat AND time < '2019-06-01' AND belt <> 'north'")
same("SELECT w.belt, avg(t.t2m), max(t.lat) FROM era5 t JOIN weights w ON t.lat = w.lat GROUP BY w.belt ORDER BY w.belt")
same("SELECT w.belt, t.lon, sum(t.t2m) AS s FROM era5 t JOIN weights w ON t.lat = w.lat GROUP BY w.belt, t.lon ORDER BY t.lon, w.belt")
same("SELECT w.belt, count(*) AS n, sum(w.w) AS w FROM era5 t LEFT JOIN weights w ON t.lat = w.lat GROUP BY w.belt ORDER BY w.belt NULLS LAST")
same("SELECT w.belt, w.lat, count(t.t2m) AS n FROM weights w RIGHT JOIN era5 t ON t.lat = w.lat GROUP BY ALL ORDER BY w.lat NULLS LAST")
same("SELECT w.lat, count(t.t2m) AS n FROM era5 t FULL JOIN weights w ON t.lat = w.lat GROUP BY w.lat ORDER BY w.lat NULLS LAST")
same("SELECT t.lat, t.lon, t.t2m, w.w, upper(w.belt) AS b FROM era5 t JOIN weights w ON t.lat = w.lat WHERE t.time = '2019-01-01' AND w.w IS NOT NULL ORDER BY t.lat, t.lon")
same("SELECT DISTINCT w.belt FROM era5 t JOIN weights w ON t.lat = w.lat ORDER BY w.belt DESC")
f.note("A key that is an expression of labels; two tables.")
same("SELECT s.season, avg(t.t2m) AS m FROM era5 t JOIN seasons s ON date_part('month', t.time) = s.month GROUP BY s.season ORDER BY s.season")
same("SELECT s.season, w.belt, max(t.t2m) - min(t.t2m) AS d FROM era5 t JOIN seasons s ON month(t.time) = s.month JOIN weights w USING (lat) GROUP BY s.season, w.belt ORDER BY s.season, w.belt")
f.note("A row for each pair of labels.")
same("SELECT z.zone, avg(t.t2m) AS m, count(*) AS n FROM era5 t JOIN zones z ON t.lat = z.lat AND t.lon = z.lon GROUP BY z.zone ORDER BY z.zone")
same("SELECT sum(t.t2m * z.zone) AS s, count(*) AS n FROM era5 t JOIN zones z USING (lat, lon) WHERE z.land")
same("SELECT count(z.zone) AS z, count(z.land) AS l, count(*) AS n FROM era5 t LEFT JOIN zones z USING (lat, lon)")
same("SELECT z.lat, z.lon, min(t.t2m) AS m FROM zones z JOIN era5 t ON z.lon = t.lon AND z.lat = t.lat GROUP BY z.lat, z.lon ORDER BY z.lat, z.lon")
same("SELECT p.name, p.height, avg(t.t2m) AS m FROM era5 t JOIN places p ON t.lat = p.lat AND t.lon = p.lon GROUP BY p.name, p.height ORDER BY p.name")
same("SELECT avg(t.t2m - p.height) AS m, count(*) AS n FROM era5 t JOIN places p ON t.lat = p.lat AND t.lon = p.lon")
f.note("Labels that the table has twice, and a condition on values.")
same("SELECT sum(t.t2m * p.height) AS s, count(*) AS n FROM era5 t JOIN places p ON t.lat = p.lat")
same("SELECT w.belt, count(*) AS n FROM era5 t JOIN weights w ON t.lat = w.lat AND t.t2m > 280 * w.w GROUP BY w.belt ORDER BY w.belt")
same("SELECT count(*) AS n FROM era5 t JOIN weights w ON t.lat < w.lat AND w.w > 0.5")
f.note("No label stands on both sides.")
f.rows("SELECT count(*) AS n FROM era5 t JOIN weights w ON t.lat = w.lat + 1000", [[0]])

f = Script(
    "cells/boxes",
    "Joins of cells with tables whose rows are boxes: ranges of labels. Expected values from DuckDB.",
    1e-12,
    setup=[ERA5] + [f"CREATE EXTERNAL TABLE {n} STORED AS CSV LOCATION 'tests/data/tables/{n}.csv'" for n in BOXES],
)
BOX = "t.lat BETWEEN r.lat0 AND r.lat1 AND t.lon BETWEEN r.lon0 AND r.lon1"
f.note("Boxes that overlap, share a name, have no cells, or a bound that is NULL.")
same(f"SELECT r.name, avg(t.t2m) AS m, min(t.t2m) AS lo, max(t.precip) AS hi, sum(t.t2m) AS s, count(*) AS n, count(t.t2m) AS c FROM era5 t JOIN boxes r ON {BOX} GROUP BY r.name ORDER BY r.name")
same("SELECT r.name, stddev(t.t2m) AS s, var_pop(t.t2m) AS v, count(*) AS n FROM boxes r JOIN era5 t ON t.lat >= r.lat0 AND r.lat1 > t.lat AND t.time >= r.start AND t.time < r.stop WHERE t.lon > 0 GROUP BY r.name ORDER BY r.name")
same("SELECT r.name, date_part('month', t.time) AS mon, max(t.t2m) AS hi, count(*) AS n FROM era5 t, boxes r WHERE t.lat BETWEEN r.lat0 AND r.lat1 AND t.t2m > 280 AND t.time < '2019-04-01' GROUP BY r.name, mon ORDER BY mon, r.name")
same("SELECT r.name, t.lat, avg(t.t2m) AS m, stddev_pop(t.t2m) AS s, count(*) AS n FROM era5 t JOIN boxes r ON t.lat > r.lat0 AND t.lat <= r.lat1 AND t.lon < r.lon1 GROUP BY r.name, t.lat ORDER BY t.lat, r.name")
same("SELECT r.name, date_part('month', t.time) AS mon, avg(t.t2m) AS m, var_samp(t.t2m) AS v FROM era5 t JOIN boxes r ON t.time >= r.start AND t.time < r.stop AND t.lat >= r.lat0 WHERE r.shift > 0 GROUP BY r.name, mon ORDER BY mon, r.name")
f.note("Values that depend on the row of the table; conditions that are no ranges.")
same(f"SELECT sum(t.t2m + r.shift) AS s, avg(t.lat) AS lat, sum(t.lon) AS lon, min(r.shift) AS lo, count(r.shift) AS n FROM era5 t JOIN boxes r ON {BOX}")
same(f"SELECT r.name, count(*) AS n, var_pop(t.t2m - r.shift) AS v FROM era5 t JOIN boxes r ON {BOX} AND t.t2m > 283 + r.shift GROUP BY r.name ORDER BY r.name")
same("SELECT r.name, r.shift, count(*) FILTER (WHERE t.t2m > 290) AS n, bool_or(t.t2m > 300) AS b FROM era5 t JOIN boxes r ON abs(t.lat - r.lat0) < 8 AND (t.lon >= r.lon1 OR t.lon < r.lon0) GROUP BY r.name, r.shift ORDER BY r.name, r.shift")
f.note("Another table on labels; labels that a table has twice.")
same(f"SELECT r.name, sum(t.t2m * w.w) / sum(w.w) AS m, count(*) AS n FROM era5 t JOIN boxes r ON {BOX} JOIN weights w ON t.lat = w.lat GROUP BY r.name ORDER BY r.name")
same("SELECT p.name, avg(t.t2m) AS m, count(*) AS n FROM places p JOIN era5 t ON t.lat = p.lat WHERE p.height IS NOT NULL GROUP BY p.name ORDER BY p.name")
f.note("No cell is in a box.")
same(f"SELECT sum(t.t2m) AS s, count(*) AS n FROM era5 t JOIN boxes r ON {BOX} WHERE r.name = 'empty'")
