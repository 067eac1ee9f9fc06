"""sql/islands: cells and tensors in one statement, expected from xarray, pandas and DuckDB.

The tables are tests/data/tables/*, written by `python sql/goldens/bridges.py` with DuckDB.
"""

import numpy as np
import pandas as pd

from .core import CASES, DATA, ERA5, Cases, Script, T, da
from .labels import air

d = Cases()
t2m = air["t2m"]
cells = air[["t2m", "precip"]].to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
TABLES = DATA / "tables"


def ascending(array):
    """As rows come with ORDER BY."""
    return array.sortby([str(dim) for dim in array.dims])


def source(frame):
    """Labels of a dimension in the order in which the file has them; pandas gives them ascending."""
    for axis, name in enumerate([frame.index.name, getattr(frame, "columns", pd.Index([])).name]):
        if name is not None:
            known = [label for label in t2m[name].values if label in (frame.index if axis == 0 else frame.columns)]
            frame = frame.reindex(known, axis=axis)
    return frame


monthly = t2m.groupby("time.month").mean().transpose("month", "lat", "lon")

f = Script("islands/bracketed", "Query 11: dimensions in brackets make labelled tensors of cell blocks.", 1e-12, setup=(ERA5, CASES))
f.q("SELECT [month], [lat], [lon], avg(t2m) AS clim FROM (SELECT *, date_part('month', time) AS month FROM era5) GROUP BY month, lat, lon", clim=da(monthly))
f.q("SELECT [lat], avg(t2m) AS m, max(t2m) AS top FROM era5 GROUP BY lat", m=da(t2m.mean(["time", "lon"])), top=da(t2m.max(["time", "lon"])))
f.q("SELECT [lon], [lat] AS y, t2m FROM era5 WHERE time = '2019-11-12'", t2m=T(da(t2m.sel(time="2019-11-12").squeeze(drop=True).transpose("lon", "lat")).values, ["lon", "y"]))
warm = source(cells[cells.t2m > 300].groupby(["lat", "lon"]).t2m.count().unstack())
f.q("SELECT [lat], [lon], count(*) AS n FROM era5 WHERE t2m > 300 GROUP BY lat, lon",
    n=T(np.ma.masked_array(warm.fillna(0).to_numpy().astype("i8"), warm.isna().to_numpy()), ["lat", "lon"]))
f.note("Labels that no row has vanish; so do they with all cells as rows.")
hot = source(cells[cells.t2m > 308].groupby("lat").t2m.max())
f.q("SELECT [lat], max(t2m) AS top FROM era5 WHERE t2m > 308 GROUP BY lat", top=T(hot.to_numpy(), ["lat"]))
f.q("SELECT clim[month => 1] - clim[month => 7] AS swing FROM (SELECT [month], [lat], avg(t2m) AS clim FROM (SELECT *, month(time) AS month FROM era5) GROUP BY month, lat)",
    swing=da(((lambda m: m.sel(month=1, drop=True) - m.sel(month=7, drop=True))(t2m.groupby("time.month").mean(["time", "lon"])))))
f.q("SELECT [lat], avg(t2m) - 273.15 AS c FROM era5 GROUP BY lat ORDER BY c DESC", c=da(t2m.mean(["time", "lon"]) - 273.15))
f.q("SELECT count(m) AS n FROM (SELECT [lat], [lon], avg(t2m) AS m FROM era5 GROUP BY lat, lon)", n=np.int64(t2m.sizes["lat"] * t2m.sizes["lon"]))
f.note("Two rows at one place, and what cannot be a tensor.")
f.error("SELECT [lat], t2m FROM era5 WHERE lon < 10", "duplicate_key")
f.error("SELECT [lat], t2m FROM era5", "duplicate_key")
f.error("SELECT [lat], [lat], avg(t2m) FROM era5 GROUP BY lat", "duplicate_name")
f.error("SELECT [lat] FROM era5 GROUP BY lat", "ambiguous_dims")
f.error("SELECT [lat], * FROM era5", "ambiguous_dims")
f.error("SELECT [nope], avg(t2m) FROM era5 GROUP BY lat", "unknown_name")
f.error("SELECT [lat], CASE WHEN avg(t2m) > 280 THEN 'warm' ELSE 'cold' END AS how FROM era5 GROUP BY lat", "dtype_mismatch")

f = Script("islands/bridges", "tensor(SELECT …), CELLS(expr), scalar subqueries.", 1e-12, setup=(ERA5, CASES))
f.q("SELECT tensor(SELECT [lat], [lon], avg(t2m) AS m FROM era5 GROUP BY lat, lon) * 2 AS a", a=da(t2m.mean("time") * 2))
f.q("SELECT tensor(SELECT lat, lon, max(t2m) FROM era5 GROUP BY lat, lon) AS a", a=da(t2m.max("time")))
f.q("SELECT sum(tensor(SELECT t2m FROM era5 WHERE t2m > 300)) AS s", s=np.float64(cells[cells.t2m > 300].t2m.sum()))
f.q("SELECT tensor(SELECT t2m FROM era5 ORDER BY t2m DESC NULLS LAST LIMIT 3) AS top", top=np.sort(cells.t2m.dropna())[::-1][:3])
f.q("SELECT x - (SELECT avg(t2m) FROM era5 WHERE lat > 40) AS y FROM cases", y=d.x - cells[cells.lat > 40].t2m.mean())
f.q("SELECT (SELECT max(x) FROM cases) - x AS y FROM cases", y=d.x.max() - d.x)
f.q("SELECT (SELECT t2m FROM era5 WHERE t2m > 1000 LIMIT 1) IS NULL AS gone FROM cases", gone=np.bool_(True))
f.error("SELECT x - (SELECT t2m FROM era5 WHERE t2m > 300) FROM cases", "shape_mismatch")
f.error("SELECT tensor(SELECT lat, lon FROM era5 WHERE t2m > 300)", "ambiguous_dims")
f.note("CELLS gives rows of any expression.")
anomaly = (t2m - t2m.mean("time")).to_dataframe("a").reset_index()
f.rows("SELECT count(*), max(v0) FROM CELLS(era5.t2m - mean(era5.t2m, axis => 'time', keepdims => true))", [[len(anomaly), anomaly.a.max()]])
f.rows("SELECT count(*) FROM CELLS(era5) WHERE t2m > 300", [[int((cells.t2m > 300).sum())]])
f.rows("SELECT c.lat, avg(c.m) FROM CELLS((SELECT mean(t2m, axis => 'lon') AS m FROM era5)) c WHERE time < '2019-02-01' GROUP BY c.lat ORDER BY c.lat",
       [[lat, v] for lat, v in ascending(t2m.mean("lon").sel(time=slice(None, "2019-01-31")).mean("time")).to_series().items()])
big = d.x[d.x > 2]
f.rows("SELECT count(*), sum(v0) FROM CELLS(cases.x[cases.x > 2])", [[len(big), big.sum()]])
f.error("SELECT count(*) FROM CELLS(nope + 1)", "unknown_name")

f = Script("islands/nesting", "CTEs and subqueries of either surface in either surface.", 1e-12, setup=(ERA5, CASES))
f.rows("WITH a AS (SELECT t2m - 273.15 AS c FROM era5), b AS (SELECT lat, avg(c) AS m FROM a GROUP BY lat) SELECT lat, m FROM b ORDER BY lat",
       [[lat, v] for lat, v in ascending(t2m.mean(["time", "lon"]) - 273.15).to_series().items()])
f.q("WITH rows AS (SELECT lat, lon, t2m FROM era5 WHERE t2m > 290), grid AS (SELECT [lat], avg(t2m) AS m FROM rows GROUP BY lat) SELECT m - mean(m) AS z FROM grid",
    z=(lambda s: T((s - s.mean()).to_numpy(), ["lat"]))(source(cells[cells.t2m > 290].groupby("lat").t2m.mean())))
f.q("WITH rows AS (SELECT lat, t2m FROM era5 WHERE t2m > 290) SELECT tensor(SELECT [lat], avg(t2m) AS m FROM rows GROUP BY lat) AS z, max(x) AS x FROM cases",
    z=T(source(cells[cells.t2m > 290].groupby("lat").t2m.mean()).to_numpy(), ["lat"]), x=d.x.max())
f.note("A tensor CTE in a cell block in a tensor block, twice, under aliases.")
f.q("WITH c AS (SELECT t2m - 273.15 AS t FROM era5), m AS (SELECT [lat], avg(p.t) AS a FROM c p WHERE p.t > 0 GROUP BY lat), n AS (SELECT [lat], max(q.t) AS a FROM c AS q GROUP BY lat) SELECT n.a - m.a AS gap FROM m, n",
    gap=T((lambda u: source(u.groupby("lat").t2m.max() - u[u.t2m - 273.15 > 0].groupby("lat").t2m.mean()).to_numpy())(cells), ["lat"]))
f.rows("WITH c AS (SELECT t2m FROM era5) SELECT count(*) FROM (SELECT t2m - mean(t2m) AS a FROM c) WHERE a > 0", [[int((cells.t2m > cells.t2m.mean()).sum())]])
f.note("The inner name hides the outer one, and only inside.")
f.q("WITH v AS (SELECT x AS w FROM cases) SELECT sum(w) AS outer_sum, tensor(WITH v AS (SELECT y AS w FROM cases) SELECT sum(w) AS s FROM v) AS inner_sum FROM v",
    outer_sum=d.x.sum(), inner_sum=d.y.sum())
f.rows("WITH v AS (SELECT max(x) AS m FROM cases) SELECT (SELECT count(*) FROM era5 WHERE t2m > 300) + count(*) FROM v WHERE m > 0", [[int((cells.t2m > 300).sum()) + 1]])
f.q("WITH big AS (SELECT x[x > 2] AS w FROM cases) SELECT tensor(SELECT count(*) AS n FROM big WHERE w > 4) AS n", n=T(np.array([(d.x > 4).sum()])))

f = Script("islands/tables", "Parquet, CSV and NDJSON files in FROM, and joins of tensors with them.", 1e-12, setup=(ERA5,))
regions = [("north", 40.0, 70.0, 0.0, 360.0), ("south", -90.0, 39.9, 0.0, 360.0), ("empty", 80.0, 81.0, 0.0, 1.0)]
for source in ("'tests/data/tables/regions.parquet'", "'tests/data/tables/regions.csv'", "read_json('tests/data/tables/regions.ndjson')", "read_csv('tests/data/tables/regions.txt', delimiter => ';')"):
    f.rows(f"SELECT name, lat0 FROM {source} ORDER BY name", sorted((r[0], r[1]) for r in regions))
joined = pd.concat([cells[cells.lat.between(r[1], r[2]) & cells.lon.between(r[3], r[4])].assign(name=r[0]) for r in regions])
query20 = joined[joined.time < "2019-01-04"].groupby(["name", "time"]).t2m.mean().reset_index()
f.note("Query 20.")
f.rows("SELECT r.name, e.time, avg(e.t2m) FROM era5 e JOIN read_parquet('tests/data/tables/regions.parquet') r ON e.lat BETWEEN r.lat0 AND r.lat1 AND e.lon BETWEEN r.lon0 AND r.lon1 WHERE e.time < '2019-01-04' GROUP BY r.name, e.time ORDER BY r.name, e.time",
       query20.values.tolist())
f.ok("CREATE EXTERNAL TABLE regions STORED AS CSV LOCATION 'tests/data/tables/regions.csv'")
f.rows("SELECT count(*), max(lat1) FROM regions", [[3, 81.0]])
f.q("SELECT [name], avg(lat1 - lat0) AS width FROM regions GROUP BY name", width=T(np.array([1.0, 30.0, 129.9]), ["name"]))
f.q("SELECT count(t2m) - (SELECT count(*) FROM regions) AS n FROM era5", n=np.int64(cells.t2m.count() - 3))
f.error("SELECT * FROM 'tests/data/tables/nope.parquet'", "not_found")
f.error("SELECT * FROM read_parquet('tests/data/tables/regions.csv')", "not_a_table")
f.error("SELECT nope FROM 'tests/data/tables/regions.csv'", "unknown_name")
f.error("SELECT * FROM read_csv('tests/data/tables/regions.csv', wrong => 1)", "unknown_option")
f.error("SELECT * FROM read_csv('tests/data/tables/regions.csv', header => 'perhaps')", "unknown_option")
f.error("CREATE EXTERNAL TABLE bad STORED AS PARQUET LOCATION 'tests/data/tables/regions.csv'", "not_a_table")
f.error("SELECT lat0[0] FROM regions", "type_error")

ALL = "SELECT [month], [lat], [lon], avg(t2m) AS clim FROM (SELECT *, date_part('month', time) AS month FROM era5) GROUP BY month, lat, lon"
f = Script("dialect/q11", "A climatology as a labelled tensor.", 1e-12, setup=(ERA5,))
f.q(ALL, clim=da(monthly))
f.q(f"SELECT mean(clim, axis => ['lat', 'lon']) AS m FROM ({ALL})", m=da(monthly.mean(["lat", "lon"])))

f = Script("dialect/q20", "Regions of a table, means of a tensor.", 1e-12, setup=(ERA5,))
every = joined.groupby(["name", "time"]).t2m.mean().reset_index()
f.rows("SELECT r.name, e.time, avg(e.t2m) FROM era5 e JOIN read_parquet('tests/data/tables/regions.parquet') r ON e.lat BETWEEN r.lat0 AND r.lat1 AND e.lon BETWEEN r.lon0 AND r.lon1 GROUP BY r.name, e.time ORDER BY r.name, e.time",
       every.values.tolist())
