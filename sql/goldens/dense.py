"""sql/cells: joins on labels, windows and DISTINCT over dimensions, expected from pandas over xarray's frames."""

import numpy as np
import pandas as pd

from .cells import at, average, by, cells, grid, script

lines = cells.groupby(["lat", "lon"], sort=False)
point = cells[(cells.lat == 45) & (cells.lon == 0.5)]


def here(frame, *columns):
    """The rows of one point until 2019-02, in the order of time."""
    return frame[(frame.lat == 45) & (frame.lon == 0.5) & (frame.time < at("2019-02-01"))][["time", *columns]]


f = script("windows", "OVER (PARTITION BY dims ORDER BY dim): shifts, running values and windows; rows stay in dimension order.", 1e-10)
end = "FROM era5) AS s WHERE lat = 45 AND lon = 0.5 AND time < '2019-02-01'"
over = "OVER (PARTITION BY lat, lon ORDER BY time"
roll = lambda n, how: lines.t2m.transform(lambda s: getattr(s.rolling(n, min_periods=1), how)())
f.cells(f"SELECT time, a FROM (SELECT time, lat, lon, avg(t2m) {over} ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS a {end}", here(cells.assign(a=roll(4, "mean")), "a"))
f.cells(f"SELECT time, a, b, n FROM (SELECT time, lat, lon, min(t2m) {over} ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS a, max(t2m) {over} ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS b, count(t2m) {over} ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS n {end}",
        here(cells.assign(a=roll(7, "min"), b=roll(7, "max"), n=lines.t2m.transform(lambda s: s.notna().rolling(7, min_periods=1).sum()).astype(int)), "a", "b", "n"))
f.cells(f"SELECT time, a FROM (SELECT time, lat, lon, sum(t2m) {over} ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS a {end}",
        here(cells.assign(a=lines.t2m.transform(lambda s: s.rolling(4, min_periods=1).sum().shift(-1).where(np.arange(len(s)) < len(s) - 1))), "a"))
f.cells(f"SELECT time, s FROM (SELECT time, lat, lon, sum(t2m) {over}) AS s {end}", here(cells.assign(s=lines.t2m.transform(lambda s: s.fillna(0).cumsum().where(s.notna().cumsum() > 0))), "s"))
f.cells(f"SELECT time, a, b, d FROM (SELECT time, lat, lon, lag(t2m) {over}) AS a, lead(t2m, 2) {over}) AS b, t2m - lag(t2m) {over}) AS d {end}",
        here(cells.assign(a=lines.t2m.shift(1), b=lines.t2m.shift(-2), d=cells.t2m - lines.t2m.shift(1)), "a", "b", "d"))
f.cells(f"SELECT time, k, r FROM (SELECT time, lat, lon, row_number() {over}) AS k, rank() {over} DESC) AS r {end}",
        here(cells.assign(k=lines.cumcount() + 1, r=140 - lines.cumcount()), "k", "r"))
f.cells(f"SELECT time, a FROM (SELECT time, lat, lon, t2m - avg(t2m) OVER (PARTITION BY lat, lon) AS a {end}", here(cells.assign(a=cells.t2m - lines.t2m.transform("mean")), "a"))
f.note("A window over groups, and groups over a window.")
daily = by(cells[cells.time < at("2019-03-01")], ["time"], a=average("t2m"))
f.cells("SELECT time, a - lag(a) OVER (ORDER BY time) AS d FROM (SELECT time, avg(t2m) AS a FROM era5 WHERE time < '2019-03-01' GROUP BY time) AS s", daily.assign(d=daily.a.astype(float).diff())[["time", "d"]])
f.cells("SELECT lat, max(d) FROM (SELECT lat, t2m - lag(t2m) OVER (PARTITION BY lat, lon ORDER BY time) AS d FROM era5) AS s GROUP BY lat", by(cells.assign(d=cells.t2m - lines.t2m.shift(1)), ["lat"], m=("d", "max")))
f.note("In the order of the query's rows, not of the window.")
f.cells("SELECT y, x, sum(v) OVER (PARTITION BY y ORDER BY x DESC) AS s FROM grid WHERE y < 20", grid[grid.y < 20].assign(s=grid.sort_values("x", ascending=False).groupby("y").v.cumsum())[["y", "x", "s"]])

f = script("joins", "Joins of tensors on labels: alignment; sums of products over them: contractions.", 1e-10)
clim = by(cells, ["lat", "lon"], m=average("t2m"))
small = cells[cells.time < at("2019-01-10")]
with_clim = small.merge(clim.astype({"lat": float, "lon": cells.lon.dtype, "m": float}), on=["lat", "lon"], how="left")
f.cells("SELECT e.time, e.lat, e.lon, e.t2m - c.m AS a FROM era5 e JOIN (SELECT lat, lon, avg(t2m) AS m FROM era5 GROUP BY lat, lon) c USING (lat, lon) WHERE e.time < '2019-01-10'",
        with_clim.assign(a=with_clim.t2m - with_clim.m)[["time", "lat", "lon", "a"]])
f.cells("SELECT e.lat, avg(abs(e.t2m - c.m)) AS a FROM era5 e JOIN (SELECT lat, lon, avg(t2m) AS m FROM era5 GROUP BY lat, lon) c ON e.lat = c.lat AND e.lon = c.lon GROUP BY e.lat",
        by(cells.assign(a=(cells.t2m - lines.t2m.transform("mean")).abs()), ["lat"], a=("a", "mean")))
month = cells.assign(month=cells.time.dt.month)
mean_month = month.groupby(["month", "lat"]).t2m.transform("mean")
f.cells("SELECT e.lat, min(e.t2m - c.m) AS a, max(e.t2m - c.m) AS b FROM era5 e JOIN (SELECT date_part('month', time) AS month, lat, avg(t2m) AS m FROM era5 GROUP BY date_part('month', time), lat) c ON date_part('month', e.time) = c.month AND e.lat = c.lat GROUP BY e.lat",
        by(cells.assign(a=cells.t2m - mean_month), ["lat"], a=("a", "min"), b=("a", "max")))
f.note("sum of products: a matrix product of grid with itself.")
box = grid.pivot(index="y", columns="x", values="v")
gram = pd.DataFrame([(y, z, float((box.loc[y] * box.loc[z]).sum())) for y in pd.unique(grid.y) for z in pd.unique(grid.y)], columns=["y", "z", "s"], dtype=object)
f.cells("SELECT a.y, b.y AS z, sum(a.v * b.v) AS s FROM grid a JOIN grid b USING (x) GROUP BY a.y, b.y", gram)
f.cells("SELECT a.y, b.y AS z, sum(a.v * b.v) AS s FROM grid a, grid b WHERE a.x = b.x AND b.y < 15 GROUP BY a.y, b.y", gram[gram.z < 15])
f.cells("SELECT a.y, sum(a.v * b.v) AS s FROM grid a JOIN grid b ON a.x = b.x AND a.y = b.y GROUP BY a.y", gram[gram.y == gram.z][["y", "s"]])
f.note("Labels that meet nothing: gone from an inner join, NULL in a left join.")
warm = clim[clim.lat.astype(float) > 40]
left = clim.merge(warm.rename(columns={"m": "w"}), on=["lat", "lon"], how="left")
f.cells("SELECT a.lat, a.lon, b.m FROM (SELECT lat, lon, avg(t2m) AS m FROM era5 GROUP BY lat, lon) a LEFT JOIN (SELECT lat, lon, avg(t2m) AS m FROM era5 WHERE lat > 40 GROUP BY lat, lon) b ON a.lat = b.lat AND a.lon = b.lon", left[["lat", "lon", "w"]])
f.cells("SELECT a.lat, count(*) AS n FROM era5 a JOIN (SELECT lat, avg(t2m) AS m FROM era5 WHERE lat > 40 GROUP BY lat) b ON a.lat = b.lat GROUP BY a.lat", by(cells[cells.lat > 40], ["lat"], n=("t2m", "size")))

f = script("distinct", "DISTINCT over dimensions and labels, in dimension order.")
f.cells("SELECT DISTINCT lat, lon FROM era5 WHERE lat > 40", cells[cells.lat > 40][["lat", "lon"]].drop_duplicates())
f.cells("SELECT DISTINCT date_part('month', time) AS m, lat FROM era5 WHERE lat IN (65, 25)", month[month.lat.isin([65, 25])][["month", "lat"]].drop_duplicates().sort_values(["month", "lat"], ascending=[True, False]))
f.rows("SELECT count(DISTINCT lat), count(DISTINCT time), count(DISTINCT date_part('month', time)), count(*) FROM era5", [(5, 140, 12, 2800)])
f.cells("SELECT DISTINCT y FROM grid WHERE v > 20 AND y <> 30", grid[(grid.v > 20) & (grid.y != 30)][["y"]].drop_duplicates())
f.cells("SELECT DISTINCT flag FROM era5 WHERE time < '2019-01-08' ORDER BY flag NULLS LAST", pd.DataFrame({"flag": [*sorted(cells[cells.time < at("2019-01-08")].flag.dropna().astype(int).unique()), *([None] if cells[cells.time < at("2019-01-08")].flag.isna().any() else [])]}, dtype=object))
f.note("Top k over a tensor; equal values in dimension order.")
f.cells("SELECT time, lat, lon, t2m FROM era5 ORDER BY t2m DESC NULLS LAST LIMIT 5", cells.sort_values("t2m", ascending=False, kind="stable")[["time", "lat", "lon", "t2m"]][:5])
f.cells("SELECT time, lat, flag FROM era5 WHERE lon = 0.5 ORDER BY flag NULLS LAST LIMIT 4", cells[cells.lon == 0.5].sort_values("flag", kind="stable")[["time", "lat", "flag"]][:4].assign(flag=lambda g: g.flag.astype(int).astype(object)))

f = script("first_rows", "ORDER BY … LIMIT: the first rows by a value or a label; WHERE on values without groups.", 1e-12)
cols = ["time", "lat", "lon", "t2m"]
f.cells("SELECT time, lat, lon, t2m FROM era5 ORDER BY t2m NULLS LAST LIMIT 4 OFFSET 3", cells.sort_values("t2m", kind="stable")[cols][3:7])
f.cells("SELECT time, lat, lon, t2m FROM era5 ORDER BY t2m NULLS FIRST LIMIT 3", cells[cells.t2m.isna()][cols][:3])
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE lat > 40 AND t2m < 285 ORDER BY t2m DESC, time, lat LIMIT 6",
        cells[(cells.lat > 40) & (cells.t2m < 285)].sort_values(["t2m", "time", "lat"], ascending=[False, True, True], kind="stable")[cols][:6])
f.cells("SELECT time, lat, lon, t2m FROM era5 ORDER BY time DESC LIMIT 5", cells[cells.time == cells.time.max()][cols][:5])
f.cells("SELECT time, lat, lon, t2m FROM era5 ORDER BY lat, lon DESC LIMIT 5", cells[(cells.lat == 25) & (cells.lon == 20.5)][cols][:5])
f.cells("SELECT time, lat, lon, abs(t2m - 280) AS d FROM era5 ORDER BY d LIMIT 5", cells.assign(d=(cells.t2m - 280).abs()).sort_values("d", kind="stable")[["time", "lat", "lon", "d"]][:5])
f.cells("SELECT lat, lon, avg(t2m) AS m FROM era5 GROUP BY lat, lon ORDER BY m DESC LIMIT 3", by(cells, ["lat", "lon"], m=average("t2m")).sort_values("m", ascending=False)[:3])
f.cells("SELECT time, flag FROM era5 ORDER BY flag DESC NULLS LAST, lon DESC LIMIT 6", cells[cells.lat == 65].sort_values(["flag", "lon"], ascending=False, kind="stable")[["time", "flag"]][:6].assign(flag=lambda g: g.flag.astype(int).astype(object)))
f.cells("SELECT time, lat, lon, t2m FROM era5 WHERE t2m > 305", cells[cells.t2m > 305][cols])
f.cells("SELECT lon, t2m FROM era5 WHERE t2m > 305 LIMIT 3", cells[cells.t2m > 305][["lon", "t2m"]][:3])
f.rows("SELECT count(*) FROM era5 WHERE time < now() AND time <= current_date", [(2800,)])
f.rows("SELECT count(*) FROM era5 WHERE where(t2m IS NULL, true, t2m > 300)", [(int((cells.t2m.isna() | (cells.t2m > 300)).sum()),)])

f = script("windows_kept", "Windows after WHERE on values, and over partitions by expressions of one dimension.", 1e-10)
some = cells[cells.t2m > 285]
groups = some.groupby(["lat", "lon"], sort=False)
part = "OVER (PARTITION BY lat, lon ORDER BY time)"
f.cells(f"SELECT time, lat, lon, row_number() {part} AS k, sum(t2m) {part} AS s, lag(t2m) {part} AS b, lead(t2m, 2) {part} AS a FROM era5 WHERE t2m > 285",
        some.assign(k=groups.cumcount() + 1, s=groups.t2m.cumsum(), b=groups.t2m.shift(1), a=groups.t2m.shift(-2))[["time", "lat", "lon", "k", "s", "b", "a"]])
f.cells("SELECT time, t2m - avg(t2m) OVER (PARTITION BY lat, lon) AS a, count(*) OVER (PARTITION BY lat) AS n FROM era5 WHERE t2m > 285",
        some.assign(a=some.t2m - groups.t2m.transform("mean"), n=some.groupby("lat").t2m.transform("size"))[["time", "a", "n"]])
f.cells(f"SELECT time, first_value(t2m) {part} AS f, min(t2m) {part} AS m FROM era5 WHERE t2m > 285", some.assign(f=groups.t2m.transform("first"), m=groups.t2m.cummin())[["time", "f", "m"]])
of_month = month.groupby(["month", "lat", "lon"], sort=False)
f.cells("SELECT time, lat, sum(precip) OVER (PARTITION BY date_part('month', time), lat, lon ORDER BY time) AS s, row_number() OVER (PARTITION BY date_part('month', time), lat, lon ORDER BY time DESC) AS k FROM era5",
        month.assign(s=month.assign(p=month.precip.astype("f8")).groupby(["month", "lat", "lon"], sort=False).p.cumsum(), k=of_month.cumcount(ascending=False) + 1)[["time", "lat", "s", "k"]])
north = cells.assign(north=cells.lat > 40)
f.cells("SELECT time, lat, stddev(t2m) OVER (PARTITION BY lat > 40) AS s FROM era5 WHERE time < '2019-02'",
        north[north.time < at("2019-02-01")].assign(s=lambda g: g.groupby("north").t2m.transform("std"))[["time", "lat", "s"]])
