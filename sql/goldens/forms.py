"""sql/dialect/q*_cells and q*_tensor: each query of the dialect on its other surface, where that can say the same."""

import numpy as np
import pandas as pd

from .cells import at, average, by, cells, year2020
from .core import CASES, ERA5, EXTERNAL, Cases, Script, T, da
from .dialect import week
from .labels import precip, t2m

d = Cases()
lines = cells.groupby(["lat", "lon"], sort=False)
X = "CREATE TEMP TENSOR {} AS SELECT {} FROM cases"


def cell_form(number, about, *setup, tolerance=1e-12):
    return Script(f"dialect/q{number:02}_cells", about, tolerance, setup=setup or (ERA5,))


def tensor_form(number, about, *setup, tolerance=1e-12):
    return Script(f"dialect/q{number:02}_tensor", about, tolerance, setup=setup or (ERA5,))


def frame(values, *names):
    """The cells of an array as rows: positions, then the value."""
    values = np.ma.filled(np.ma.asarray(values).astype(object), None)
    return pd.DataFrame([(*index, v) for index, v in np.ndenumerate(values)], columns=[*names, "v"], dtype=object)


f = cell_form(2, "Subscripts as conditions and orders on positions.", CASES, X.format("a", "x"))
a = frame(d.x, "i", "j")
f.cells("SELECT dim_0, dim_1, a FROM (SELECT x AS a FROM a) WHERE dim_0 >= 0 AND dim_0 < 10", a)
f.cells("SELECT x FROM a WHERE dim_0 = 4 AND dim_1 % 2 = 0", frame(d.x[-1, ::2], "j")[["v"]])
f.cells("SELECT dim_0, x FROM a ORDER BY dim_0 DESC", frame(d.x, "i", "j").sort_values("i", ascending=False, kind="stable")[["i", "v"]])

f = cell_form(3, "Labels as conditions.")
f.cells("SELECT time, lat, t2m FROM era5 WHERE time >= '2020-01' AND time < '2020-02' AND lat BETWEEN 30 AND 60 AND lon = 10.5",
        cells[(cells.time >= at("2020-01-01")) & (cells.time < at("2020-02-01")) & cells.lat.between(30, 60) & (cells.lon == 10.5)][["time", "lat", "t2m"]])

f = cell_form(4, "Positions by the order of labels; the nearest label by a subquery.")
first = pd.unique(cells.time)[:24]
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE time IN (SELECT time FROM (SELECT DISTINCT time FROM era5 ORDER BY time LIMIT 24))", cells[cells.time.isin(first)][["time", "lat", "lon", "t2m"]])
near = t2m.sel(lat=51.5, lon=-0.1, method="nearest")
f.cells("""SELECT time, t2m FROM era5 WHERE abs(lat - 51.5) = (SELECT min(abs(lat - 51.5)) FROM era5) AND abs(lon + 0.1) = (SELECT min(abs(lon + 0.1)) FROM era5)""",
        pd.DataFrame({"time": near.time.values, "v": near.values}))

f = cell_form(5, "Standardise the columns by windows over whole partitions.", CASES, X.format("x", "x"))
f.cells("SELECT (x - avg(x) OVER (PARTITION BY dim_1)) / stddev_pop(x) OVER (PARTITION BY dim_1) AS z FROM x", frame((d.x - d.x.mean(0)) / d.x.std(0), "i", "j")[["v"]])

f = cell_form(6, "Anomaly from the mean of each line along time.")
anomaly = cells.assign(a=cells.t2m - lines.t2m.transform("mean"))
f.cells("SELECT time, lat, lon, t2m - avg(t2m) OVER (PARTITION BY lat, lon) AS anomaly FROM era5", anomaly[["time", "lat", "lon", "a"]])
f.cells("SELECT e.time, e.t2m - c.m AS anomaly FROM era5 e JOIN (SELECT lat, lon, avg(t2m) AS m FROM era5 GROUP BY lat, lon) c ON e.lat = c.lat AND e.lon = c.lon", anomaly[["time", "a"]])

f = cell_form(7, "Minimum over time, and when.")
low = cells[cells.t2m.notna()].sort_values("t2m", kind="stable").groupby(["lat", "lon"], sort=False).first().reset_index()
when = by(low, ["lat", "lon"], lo=("t2m", lambda v: v.iloc[0]), when=("time", lambda v: v.iloc[0]))
f.cells("SELECT lat, lon, min(t2m) AS lo, first_value(time ORDER BY t2m NULLS LAST) AS when_lo FROM era5 GROUP BY lat, lon", when)
f.cells("SELECT lat, lon, t2m, time FROM (SELECT *, row_number() OVER (PARTITION BY lat, lon ORDER BY t2m NULLS LAST, time) AS k FROM era5) WHERE k = 1 ORDER BY lat DESC, lon", when)

f = cell_form(8, "Running sums, differences and shifts as windows; a sum of float32 is float64 in SQL.")
running = cells.assign(p=cells.precip.astype("f8")).groupby(["lat", "lon"], sort=False).p.cumsum()
over = "OVER (PARTITION BY lat, lon ORDER BY time)"
f.cells(f"SELECT time, lat, lon, sum(precip) {over} AS s, t2m - lag(t2m) {over} AS d, lag(t2m) {over} AS b FROM era5",
        cells.assign(s=running, d=cells.t2m - lines.t2m.shift(1), b=lines.t2m.shift(1))[["time", "lat", "lon", "s", "d", "b"]])

f = cell_form(9, "A centred week of hours as a frame of rows.", ERA5, tolerance=1e-10)
centred = lines.t2m.transform(lambda v: v.rolling(7, center=True, min_periods=1).mean())
f.cells("SELECT time, lat, lon, avg(t2m) OVER (PARTITION BY lat, lon ORDER BY time ROWS BETWEEN 3 PRECEDING AND 3 FOLLOWING) AS week FROM era5",
        cells.assign(w=centred)[["time", "lat", "lon", "w"]])

f = tensor_form(10, "A mean over labels.")
f.q("SELECT mean(t2m[time => '2020-01-01':], axis => 'time') AS m FROM era5", m=da(t2m.sel(time=slice("2020-01-01", None)).mean("time")))

f = tensor_form(11, "A climatology by groupby.")
monthly = t2m.groupby("time.month")
f.q("SELECT groupby(t2m, 'mean', by => month(time)) AS clim FROM era5", clim=da(monthly.mean().transpose("month", "lat", "lon")))
f = cell_form(11, "The same as rows.")
month = cells.assign(month=cells.time.dt.month)
f.cells("SELECT month, lat, lon, avg(t2m) AS clim FROM (SELECT *, date_part('month', time) AS month FROM era5) GROUP BY month, lat, lon", by(month, ["month", "lat", "lon"], a=average("t2m")))

f = cell_form(12, "Anomaly from a climatology by month: a partition by an expression of time, and a join.")
deviation = month.assign(a=month.t2m - month.groupby(["month", "lat", "lon"]).t2m.transform("mean"))
f.cells("SELECT time, lat, lon, t2m - avg(t2m) OVER (PARTITION BY date_part('month', time), lat, lon) AS anomaly FROM era5", deviation[["time", "lat", "lon", "a"]])
f.cells("""SELECT e.time, e.lat, e.t2m - c.m AS anomaly FROM era5 e JOIN (SELECT date_part('month', time) AS month, lat, lon, avg(t2m) AS m FROM era5 GROUP BY date_part('month', time), lat, lon) c ON date_part('month', e.time) = c.month AND e.lat = c.lat AND e.lon = c.lon""",
        deviation[["time", "lat", "a"]])

f = cell_form(13, "Blocks of the grid: positions of labels, numbered and divided.")
blocks = cells[cells.lat.isin(pd.unique(cells.lat)[:4])]
f.cells("""WITH p AS (SELECT lat, (row_number() OVER (ORDER BY lat DESC) - 1) / 4 AS i FROM (SELECT DISTINCT lat FROM era5)), q AS (SELECT lon, (row_number() OVER (ORDER BY lon) - 1) / 4 AS j FROM (SELECT DISTINCT lon FROM era5))
SELECT e.time, p.i, q.j, avg(e.t2m) AS m FROM era5 e JOIN p ON e.lat = p.lat JOIN q ON e.lon = q.lon WHERE p.i < 1 AND q.j < 1 GROUP BY e.time, p.i, q.j ORDER BY e.time""".replace("\n", " "),
        by(blocks.assign(i=0, j=0), ["time", "i", "j"], m=average("t2m")))

f = cell_form(14, "Products of matrices as joins.", CASES, *(X.format(n, f"{v} AS v") for n, v in (("a", "rename(p, dim_0 => 'i', dim_1 => 'j')"), ("b", "rename(q, dim_0 => 'j', dim_1 => 'k')"),
              ("p", "rename(bp, dim_0 => 'n', dim_1 => 'i', dim_2 => 'j')"), ("q", "rename(bq, dim_0 => 'n', dim_1 => 'j', dim_2 => 'k')"))))
f.cells("SELECT a.i, b.k, sum(a.v * b.v) AS c FROM a JOIN b ON a.j = b.j GROUP BY a.i, b.k", frame(d.p @ d.q, "i", "k"))
f.cells("SELECT p.n, p.i, q.k, sum(p.v * q.v) FROM p JOIN q ON p.n = q.n AND p.j = q.j GROUP BY p.n, p.i, q.k", frame(d.bp @ d.bq, "n", "i", "k"))

f = cell_form(17, "UNION ALL: one after the other, and with the number of the member.", ERA5)
jan, feb = cells[cells.time < at("2019-02-01")], cells[(cells.time >= at("2019-02-01")) & (cells.time < at("2019-03-01"))]
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE time < '2019-02' UNION ALL SELECT time, lat, lon, t2m FROM era5 WHERE time >= '2019-02' AND time < '2019-03'", pd.concat([jan, feb])[["time", "lat", "lon", "t2m"]])
f.cells("SELECT 0 AS member, time, lat, t2m AS v FROM era5 WHERE time < '2019-02' UNION ALL SELECT 1 AS member, time, lat, precip::DOUBLE AS v FROM era5 WHERE time < '2019-02'",
        pd.concat([jan.assign(m=0, v=jan.t2m), jan.assign(m=1, v=jan.precip.astype("f8"))])[["m", "time", "lat", "v"]])

f = cell_form(18, "Cells that a condition keeps: CASE and WHERE.")
f.cells("SELECT time, lat, lon, CASE WHEN t2m > 273.15 THEN t2m END AS v FROM era5 WHERE lat >= -90", cells.assign(v=cells.t2m.where(cells.t2m > 273.15))[["time", "lat", "lon", "v"]])
f.cells("SELECT t2m FROM era5 WHERE t2m > 300", cells[cells.t2m > 300][["t2m"]])

f = cell_form(19, "A histogram as groups of cells; quantiles as SQL has them.", EXTERNAL.format("xs", "ZARR", "cases.zarr"), ERA5, "CREATE TEMP TENSOR x AS SELECT x FROM xs")
bins = pd.Series(np.floor((d.x[(d.x >= -5) & (d.x < 5)] + 5.0) * 10.0)).value_counts().sort_index()
f.cells("SELECT floor((x + 5.0) * 10.0) AS bin, count(*) AS counts FROM x WHERE x >= -5.0 AND x < 5.0 GROUP BY floor((x + 5.0) * 10.0) ORDER BY bin", pd.DataFrame({"b": bins.index, "n": bins.values}, dtype=object))
f.cells("SELECT lat, lon, median(t2m) AS m FROM era5 GROUP BY lat, lon", by(cells, ["lat", "lon"], m=("t2m", "median")))
f.cells("SELECT lat, lon, percentile_cont(0.05) WITHIN GROUP (ORDER BY t2m) AS low, percentile_cont(0.95) WITHIN GROUP (ORDER BY t2m) AS high FROM era5 GROUP BY lat, lon",
        by(cells, ["lat", "lon"], low=("t2m", lambda v: v.quantile(0.05)), high=("t2m", lambda v: v.quantile(0.95))))

f = tensor_form(21, "A running week along time.", ERA5, tolerance=1e-10)
f.q("SELECT rolling(t2m[lat => 62:58], 'mean', time => 168, min_periods => 1) AS week FROM era5", week=da(t2m.sel(lat=slice(62, 58)).rolling(time=168, min_periods=1).mean()))

f = cell_form(23, "The same table as cells.")
f.rows("SELECT count(*), avg(t2m), max(precip) FROM era5", [(len(cells), cells.t2m.mean(), np.float32(cells.precip.max()))])

f = tensor_form(25, "The contraction as a matrix product.", CASES, X.format("a", "rename(p, dim_0 => 'i', dim_1 => 'j') AS v"), X.format("b", "rename(q, dim_0 => 'j', dim_1 => 'k') AS v"))
f.q("SELECT a @ b AS c FROM a, b", c=T(d.p @ d.q, ["i", "k"]))

f = tensor_form(26, "A mean of all dimensions but one.")
f.q("SELECT mean(t2m, axis => ['time', 'lon'])[0:5] AS m FROM 'tests/data/cf/air.zarr'", m=da(t2m.mean(["time", "lon"])))
