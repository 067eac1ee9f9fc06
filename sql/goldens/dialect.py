"""sql/dialect: the queries of the dialect that this version runs, word for word, on cf/air.zarr."""

import numpy as np
import pandas as pd

from .cells import average, by, cells, year2020
from .core import ERA5, EXTERNAL, Cases, Script, T, da
from .labels import precip, t2m

d = Cases()
CASES = EXTERNAL.format("cases", "ZARR", "cases.zarr")
A = "CREATE TEMP TENSOR a AS SELECT x FROM cases"


def query(number, about, *setup, tolerance=1e-12):
    return Script(f"dialect/q{number:02}", about, tolerance, setup=setup)


f = query(1, "A seeded random tensor kept for the session: its shape, bounds and determinism (the values are ours).")
f.ok("CREATE TEMP TENSOR x AS SELECT random_normal([10000, 1000], seed => 42, chunks => [1000, 1000], dims => ['row', 'col'])")
f.q("SELECT count(x), abs(mean(x)) < 0.002, abs(std(x) - 1) < 0.002, all(isfinite(x)) FROM x", np.int64(10_000_000), True, True, True)
f.q("SELECT max(abs(mean(x, axis => 'row'))) < 0.06, max(abs(std(x, axis => 'row') - 1)) < 0.05, count(x, axis => 'col')[0:3] FROM x",
    True, True, T(np.full(3, 1000), ["row"]))
f.q("SELECT all(x[5000:5010] = random_normal([10000, 1000], seed => 42, chunks => [1000, 1000], dims => ['row', 'col'])[5000:5010]) FROM x", True)
f.ok("DROP TENSOR x")

f = query(2, "Subscripts.", CASES, A)
f.q("SELECT a[0:10, :], a[-1, ::2], a[..., NEWAXIS], a[::-1] FROM a", d.x[0:10, :], d.x[-1, ::2], d.x[..., None], d.x[::-1])

f = query(3, "Labels: a month, a descending range, one longitude.", ERA5)
f.q("SELECT t2m[time => '2020-01-01':'2020-01-31', lat => 60:30, lon => 10.5] FROM era5", da(t2m.sel(time=slice("2020-01-01", "2020-01-31"), lat=slice(60, 30), lon=10.5)))

f = query(4, "isel and the lenient sel.", ERA5)
f.q("SELECT isel(t2m, time => slice(0, 24)), sel(t2m, lat => 51.5, lon => -0.1, method => 'nearest') FROM era5",
    da(t2m.isel(time=slice(0, 24))), da(t2m.sel(lat=51.5, lon=-0.1, method="nearest")))

f = query(5, "Standardise the columns.", CASES, "CREATE TEMP TENSOR x AS SELECT x FROM cases")
f.q("SELECT (x - mean(x, 0)) / std(x, 0) FROM x", (d.x - d.x.mean(0)) / d.x.std(0))

f = query(6, "Anomaly from the mean over time.", ERA5)
f.q("SELECT t2m - mean(t2m, axis => 'time', keepdims => true) AS anomaly FROM era5", anomaly=da(t2m - t2m.mean("time")))

f = query(7, "Minimum over time, and when.", ERA5)
f.q("SELECT min(t2m, axis => 'time') AS lo, argmin(t2m, axis => 'time') AS when_lo FROM era5", lo=da(t2m.min("time")), when_lo=da(t2m.argmin("time")))

f = query(8, "Scans along time; shifted-in cells are NULL.", ERA5)
f.q("SELECT cumsum(precip, axis => 'time'), diff(t2m, axis => 'time'), shift(t2m, time => 1) FROM era5",
    da(precip.astype("f8").cumsum("time").astype("f4")), da(t2m.diff("time")), da(t2m.shift(time=1)))

f = query(10, "A dense cell query.", ERA5)
f.cells("SELECT lat, lon, avg(t2m) FROM era5 WHERE time >= '2020-01-01' GROUP BY lat, lon", by(year2020, ["lat", "lon"], a=average("t2m")))

f = query(12, "Anomaly from a climatology by month.", ERA5)
monthly = t2m.groupby("time.month")
f.q("SELECT t2m - groupby(t2m, 'mean', by => month(time)) AS anomaly FROM era5", anomaly=da((monthly - monthly.mean()).transpose("time", "lat", "lon")))

f = query(17, "concat along time, stack along a new dimension.", ERA5, "CREATE TEMP TENSOR a AS SELECT t2m[time => '2019-01'] AS v FROM era5",
          "CREATE TEMP TENSOR b AS SELECT t2m[time => '2019-02'] AS v FROM era5", "CREATE TEMP TENSOR c AS SELECT precip[0:6]::DOUBLE AS v FROM era5")
one, two, three = t2m.sel(time="2019-01"), t2m.sel(time="2019-02"), precip[:6].astype("f8")
ma = lambda a: np.ma.masked_invalid(a.values)
f.q("SELECT concat([a, b], axis => 'time') FROM a, b", T(np.ma.concatenate([ma(one), ma(two)]), ["time", "lat", "lon"]))
f.q("SELECT stack([a, c], dim => 'member') FROM a, c", T(np.ma.stack([ma(one), ma(three)]), ["member", "time", "lat", "lon"]))
f.note("Coordinates align exactly (rule 6): January and February do not stack.")
f.error("SELECT stack([a, b], dim => 'member') FROM a, b", "not_aligned")

f = query(18, "Cells that a condition keeps: masked ones in place, and as one dimension.", ERA5)
f.q("SELECT where(t2m > 273.15, t2m, NULL), t2m[t2m > 300] FROM era5", da(t2m.where(t2m > 273.15)), t2m.values[t2m.values > 300])

f = query(21, "A running week along time, two latitudes of it.", ERA5)
f.note("`cells` is in the order of time, lat, lon; pandas' rolling mean skips missing values as SQL's avg does.")
week = cells[["time", "lat", "lon", "t2m"]].copy()
week["week"] = week.groupby(["lat", "lon"], sort=False)["t2m"].transform(lambda v: v.rolling(168, min_periods=1).mean())
f.cells(
    "SELECT time, lat, lon, avg(t2m) OVER (PARTITION BY lat, lon ORDER BY time ROWS BETWEEN 167 PRECEDING AND CURRENT ROW) AS week FROM era5 WHERE lat BETWEEN 58 AND 62",
    week[week.lat == 60][["time", "lat", "lon", "week"]],
)

f = query(25, "A contraction written as a join.", CASES, "CREATE TEMP TENSOR a AS SELECT rename(p, dim_0 => 'i', dim_1 => 'j') AS v FROM cases", "CREATE TEMP TENSOR b AS SELECT rename(q, dim_0 => 'j', dim_1 => 'k') AS v FROM cases")
product = d.p @ d.q
f.cells(
    "SELECT a.i, b.k, sum(a.v * b.v) FROM a JOIN b USING (j) GROUP BY a.i, b.k",
    pd.DataFrame([(i, k, product[i, k]) for i in range(product.shape[0]) for k in range(product.shape[1])], columns=["i", "k", "s"]),
)

f = query(23, "CREATE EXTERNAL TABLE with the CF option, here on a local path.")
f.ok("CREATE EXTERNAL TABLE era5 STORED AS ZARR LOCATION 'tests/data/cf/air.zarr' OPTIONS ('decode_cf' 'true')")
f.q("SELECT mean(t2m), t2m[0, 0] FROM era5", t2m.mean(), da(t2m[0, 0]))

f = query(24, "EXPLAIN as JSON: the runner checks that the answer is one JSON document.", CASES, "CREATE TEMP TENSOR a AS SELECT p FROM cases", "CREATE TEMP TENSOR b AS SELECT q FROM cases")
f.ok("EXPLAIN (FORMAT json) SELECT matmul(a, b) FROM a, b")
f.q("SELECT matmul(a, b) FROM a, b", d.p @ d.q)

f = query(26, "No set-up at all.")
lats = by(cells, ["lat"], a=average("t2m")).sort_values("lat", ascending=False)
f.cells("SELECT lat, avg(t2m) FROM 'tests/data/cf/air.zarr' GROUP BY lat ORDER BY lat DESC LIMIT 5", lats)
