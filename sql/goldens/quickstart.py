"""sql/quickstart.sql, its expected values to check by eye, and the same statements as a script."""

import numpy as np
import xarray as xr

from .core import DATA, ROOT, Script, da, tensor_lines

PATH = "tests/data/colpex.v3.zarr"
cube = xr.open_zarr(DATA / "colpex.v3.zarr").load()
theta = cube.air_potential_temperature.astype("f8")  # float32 is accumulated in float64
f4 = lambda a: da(a.astype("f4"))
AREA = ["grid_latitude", "grid_longitude"]
area_sql = "['grid_latitude', 'grid_longitude']"
profile = theta.mean(AREA).astype("f4")
profile8 = profile.astype("f8")
T0, FROM = "air_potential_temperature", f"FROM '{PATH}'"
weights = np.stack([cube.level_height.values, cube.sigma.values])

f = Script("geoscience/quickstart", "The statements of sql/quickstart.sql.", 1e-12, setup=())
text = ["-- Tessera in twelve statements, on a real cube: potential temperature over time, level, latitude and longitude.",
        "-- NumPy's values for every answer are in sql/quickstart.expected.md."]
page = ["# What `sql/quickstart.sql` prints", "", "Values by NumPy and xarray, made by `sql/make_goldens.py`; float32 may differ in the last digit.", ""]


def step(about, sql, **results):
    text.extend(["", f"-- {about}", sql + ";"])
    page.extend([f"## {about}", "", "```sql", sql, "```", ""])
    one_line = " ".join(sql.split())
    if results:
        f.q(one_line, **results)
        page.extend(["```", *sum((tensor_lines(n, v) for n, v in results.items()), []), "```", ""])
    else:
        f.ok(one_line)


def rows(about, sql, table):
    text.extend(["", f"-- {about}", sql + ";"])
    f.rows(" ".join(sql.split()), table)
    page.extend([f"## {about}", "", "```sql", sql, "```", "", "```", *f.records[-1][3:], "```", ""])


step("The whole cube in a few figures.", f"SELECT mean({T0}) AS mean, min({T0}) AS low, max({T0}) AS high, count({T0}) AS cells\n{FROM}",
     mean=np.float32(theta.mean()), low=np.float32(theta.min()), high=np.float32(theta.max()), cells=np.int64(theta.size))
step("Means by level: a reduction over the other three dimensions.", f"SELECT mean({T0}, axis => ['time', 'grid_latitude', 'grid_longitude']) AS by_level\n{FROM}",
     by_level=f4(theta.mean(["time", *AREA])))
step("A climatology by time: how the area's mean profile cools, kept for the session.", f"CREATE OR REPLACE TEMP TENSOR profile AS\nSELECT mean({T0}, axis => {area_sql}) AS theta\n{FROM}")
step("Its mean for each time step.", "SELECT mean(theta, axis => 'model_level_number') AS by_time FROM profile", by_time=f4(profile8.mean("model_level_number")))
step("An anomaly: each level's departure from its mean over time.", "SELECT theta - mean(theta, axis => 'time') AS anomaly FROM profile",
     anomaly=da(profile - profile8.mean("time").astype("f4")))
step("A matrix product: every profile weighted by the levels' height and sigma.",
     f"SELECT theta @ transpose(stack([level_height, sigma], dim => 'weight')) AS weighted\nFROM (SELECT mean({T0}, axis => {area_sql}) AS theta, level_height, sigma {FROM})",
     weighted=da(xr.DataArray((profile8.values @ weights.T.astype("f8")).astype("f4"), dims=["time", "weight"])))
step("A masked mean: only the cells warmer than 284 K, by level.",
     f"SELECT mean(where({T0} > 284.0, {T0}, NULL), axis => ['time', 'grid_latitude', 'grid_longitude']) AS warm\n{FROM}",
     warm=f4(theta.where(theta > 284).mean(["time", *AREA])))
step("A corner of the lowest level at the first time step, by position, and negative steps.", f"SELECT {T0}[0, 0, :3, :4] AS corner, {T0}[-1, 0, ::-41, ::41] AS sparse\n{FROM}",
     corner=da(cube.air_potential_temperature[0, 0, :3, :4]), sparse=da(cube.air_potential_temperature[-1, 0, ::-41, ::41]))
step("One level by its label, and where in time it is warmest.", f"SELECT argmax(mean({T0}[model_level_number => {cube.model_level_number.values[1]}], axis => {area_sql})) AS warmest\n{FROM}",
     warmest=np.int64(theta[:, 1].mean(AREA).values.argmax()))
rows("The cell surface: plain SQL over the same cells, which stays dense.", f"SELECT model_level_number, avg({T0}) AS mean, max({T0}) - min({T0}) AS spread\n{FROM}\nGROUP BY model_level_number\nHAVING avg({T0}) > 284.3\nORDER BY model_level_number DESC",
     [(lev, m, np.float32(hi) - np.float32(lo)) for lev, m, hi, lo in list(zip(cube.model_level_number.values, theta.mean(["time", *AREA]).values, theta.max(["time", *AREA]).values,
                                                                         theta.min(["time", *AREA]).values))[::-1] if m > 284.3])
rows("A slice of rows, warmest first.", f"SELECT grid_latitude, grid_longitude, {T0} AS theta\n{FROM}\nWHERE model_level_number = {cube.model_level_number.values[0]} AND time = '{str(cube.time.values[0])[:19]}'\nORDER BY theta DESC, grid_latitude, grid_longitude LIMIT 3",
     cube.air_potential_temperature[0, 0].to_series().reset_index(name="t").sort_values(["t", *AREA], ascending=[False, True, True])[:3]
     .assign(t=lambda g: g.t.astype("f4")).pipe(lambda g: [tuple(g[c].values[k] for c in [*AREA, "t"]) for k in range(3)]))
step("How a statement runs.", f"EXPLAIN SELECT {T0} - mean({T0}, axis => 'time') AS anomaly\n{FROM}")

(ROOT / "sql" / "quickstart.sql").write_text("\n".join(text) + "\n")
(ROOT / "sql" / "quickstart.expected.md").write_text("\n".join(page))
