"""sql/queries/{rolling, coarsen} and queries 9 and 13 of the dialect: xarray's windows, and plain loops over NumPy's."""

import warnings

import numpy as np
import xarray as xr

from .core import CASES, ERA5, Cases, Script, T, da
from .labels import precip, t2m

d = Cases()
ma, nan = np.ma, np.nan


def windows(x, op, n, axis, center=False, least=None, ddof=0):
    """The definition, cell by cell: masked cells are skipped, NaN is a value."""
    x, least = ma.asarray(x), n if least is None else least
    before = n // 2 if center else n - 1
    moved = ma.moveaxis(x, axis, 0) if hasattr(ma, "moveaxis") else np.moveaxis(x, axis, 0)
    out = ma.masked_all(moved.shape, {"count": "i8", "mean": "f8", "var": "f8", "std": "f8", "median": "f8"}.get(op, x.dtype) if x.dtype.kind != "i" or op not in ("sum", "prod") else "i8")
    if op in ("mean", "var", "std") and x.dtype == "f4":
        out = out.astype("f4")
    for at in np.ndindex(moved.shape):
        line = moved[(slice(max(at[0] - before, 0), max(at[0] - before + n, 0)), *at[1:])]
        valid = ma.compressed(line)
        if len(valid) < least or (len(valid) == 0 and op not in ("sum", "prod", "count")):
            continue
        wide = valid.astype("f8") if valid.dtype.kind == "f" else valid
        out[at] = {"count": len, "sum": np.sum, "prod": np.prod, "mean": np.mean, "min": np.min, "max": np.max, "median": np.median,
                   "var": lambda v: np.var(v, ddof=ddof), "std": lambda v: np.std(v, ddof=ddof)}[op](wide)
    back = np.moveaxis(out, 0, axis)
    return back if ma.is_masked(back) else ma.getdata(back)


warnings.simplefilter("ignore")
np.seterr(all="ignore")

f = Script("queries/rolling", "rolling: windows of every kind over both axes, at the edges, with masks and NaN.", 1e-12, setup=(CASES, ERA5))
for op in ("sum", "mean", "min", "max", "var", "std", "prod", "count"):
    f.q(f"rolling(x, '{op}', dim_0 => 3), rolling(x, '{op}', dim_1 => 3, min_periods => 1)",
        windows(d.x, op, 3, 0), windows(d.x, op, 3, 1, least=1))
    f.q(f"rolling(m, '{op}', dim_0 => 2), rolling(m, '{op}', dim_1 => 4, center => true, min_periods => 2)",
        windows(d.m, op, 2, 0), windows(d.m, op, 4, 1, True, 2))
    f.q(f"rolling(x[::-1, ::2], '{op}', dim_1 => 2)", windows(d.x[::-1, ::2], op, 2, 1))
f.q("rolling(cube, 'mean', dim_1 => 3, center => true, min_periods => 1)", windows(d.cube, "mean", 3, 1, True, 1))
f.q("rolling(icube, 'sum', dim_2 => 2), rolling(icube, 'max', dim_0 => 2, min_periods => 1)", windows(d.icube, "sum", 2, 2), windows(d.icube, "max", 2, 0, least=1))
f.q("rolling(x32, 'mean', dim_0 => 2, min_periods => 1), rolling(x32, 'sum', dim_1 => 3, min_periods => 1)",
    windows(d.x32, "mean", 2, 0, least=1), windows(d.x32, "sum", 3, 1, least=1))
f.q("rolling(v, 'var', dim_0 => 4, ddof => 1), rolling(v, 'std', dim_0 => 4, ddof => 1)", windows(d.v, "var", 4, 0, ddof=1), windows(d.v, "std", 4, 0, ddof=1))
f.q("rolling(i, 'mean', dim_1 => 2)", windows(d.i.astype("f8"), "mean", 2, 1))
f.note("NaN stays within the windows that see it; skipna takes it as masked.")
f.q("rolling(n, 'sum', dim_1 => 2, min_periods => 1), rolling(n, 'min', dim_0 => 2, min_periods => 1)", windows(d.n, "sum", 2, 1, least=1), windows(d.n, "min", 2, 0, least=1))
f.q("rolling(n, 'mean', dim_1 => 3, min_periods => 1, skipna => true)", windows(ma.masked_invalid(d.n), "mean", 3, 1, least=1))
f.q("rolling(mn, 'max', dim_0 => 3, min_periods => 1)", windows(d.mn, "max", 3, 0, least=1))
f.note("A window longer than the axis, one cell, none needed, no cells.")
f.q("rolling(v, 'mean', dim_0 => 100, min_periods => 1), rolling(v, 'sum', dim_0 => 1), rolling(v, 'sum', dim_0 => 100)",
    windows(d.v, "mean", 100, 0, least=1), d.v, ma.masked_all(7))
f.q("rolling(m, 'sum', dim_1 => 2, min_periods => 0), rolling(allnull, 'mean', dim_0 => 2, min_periods => 1)", windows(d.m, "sum", 2, 1, least=0), ma.masked_all(3))
f.q("rolling(z1, 'mean', dim_0 => 2), rolling(z, 'sum', dim_1 => 2, min_periods => 1)", d.z1, d.z)
f.note("Several dimensions are a box: xarray's mean over 3 by 3 cells.")
xa = xr.DataArray(d.x, dims=["dim_0", "dim_1"])
f.q("rolling(x, 'mean', dim_0 => 3, dim_1 => 3, center => true, min_periods => 1)", xa.rolling(dim_0=3, dim_1=3, center=True, min_periods=1).mean().values)
f.q("rolling(x, 'sum', dim_0 => 2, dim_1 => 3), rolling(x, 'max', dim_0 => 2, dim_1 => 3)",
    da(xa.rolling(dim_0=2, dim_1=3).sum()), da(xa.rolling(dim_0=2, dim_1=3).max()))
f.q("rolling(x, 'median', dim_1 => 3, min_periods => 1), rolling(m, 'median', dim_0 => 2), rolling(i, 'median', dim_0 => 3, center => true, min_periods => 2), rolling(z, 'median', dim_1 => 2)",
    windows(d.x, "median", 3, 1, least=1), windows(d.m, "median", 2, 0), windows(d.i.astype("f8"), "median", 3, 0, True, 2), d.z)
f.q("rolling(n, 'median', dim_1 => 4, center => true, min_periods => 1), rolling(mn, 'median', dim_0 => 3, min_periods => 1), rolling(n, 'median', dim_1 => 3, min_periods => 1, skipna => true)",
    windows(d.n, "median", 4, 1, True, 1), windows(d.mn, "median", 3, 0, least=1), windows(ma.masked_invalid(d.n), "median", 3, 1, least=1))
f.q("rolling(m, 'median', dim_1 => 100, center => true, min_periods => 1), rolling(v, 'median', dim_0 => 4096, min_periods => 7), rolling(v, 'median', dim_0 => 100), rolling(x32, 'median', dim_0 => 2, min_periods => 0)",
    windows(d.m, "median", 100, 1, True, 1), windows(d.v, "median", 4096, 0, least=7), ma.masked_all(7), windows(d.x32, "median", 2, 0, least=0).astype("f4"))
f.q("rolling(x, 'std', dim_0 => 2, dim_1 => 3, ddof => 1), rolling(x, 'var', dim_0 => 3, dim_1 => 2, center => true, min_periods => 1)",
    da(xa.rolling(dim_0=2, dim_1=3).std(ddof=1)), xa.rolling(dim_0=3, dim_1=2, center=True, min_periods=1).var().values)
f.error("rolling(x, 'median', dim_0 => 20, dim_1 => 20)", "invalid_argument")
f.q("SELECT rolling(t2m[lat => 45, lon => 0.5], 'mean', time => 7), rolling(precip[lat => 45, lon => 0.5], 'max', time => 4, center => true) FROM era5",
    da(t2m.sel(lat=45, lon=0.5).rolling(time=7).mean()), da(precip.sel(lat=45, lon=0.5).rolling(time=4, center=True).max()))
f.note("Long windows: pandas' median and quantile.")
line = t2m.sel(lat=45, lon=0.5)
f.q("SELECT rolling(t2m[lat => 45, lon => 0.5], 'median', time => 130, min_periods => 3)[::9], rolling(t2m[lat => 45, lon => 0.5], 'quantile', time => 131, q => 0.25, center => true, min_periods => 70)[::9] FROM era5",
    T(ma.masked_invalid(line.to_series().rolling(130, min_periods=3).median().values[::9]), ["time"]),
    T(ma.masked_invalid(line.to_series().rolling(131, center=True, min_periods=70).quantile(0.25).values[::9]), ["time"]))
f.error("SELECT rolling(t2m, 'median', time => 5000) FROM era5", "invalid_argument")
f.error("rolling(x, 'mean')", "invalid_argument")
f.error("rolling(x, 'mean', dim_0 => 0)", "invalid_argument")
f.error("rolling(x, 'nothing', dim_0 => 2)", "invalid_argument")
for call in ("rolling({}, 'mean', q => 2)", "rolling({}, 'mean', dim_1 => 2, q => 2)", "coarsen({}, 'sum', q => 2)"):
    f.error(call.format("rename(x, dim_0 => 'q')"), "invalid_argument: .*rename")
f.error("rolling(rename(x, dim_0 => 'center'), 'mean', center => true)", "invalid_argument: .*rename")
f.error("rolling(x, 'mean', depth => 2)", "unknown_dimension")
f.error("rolling(x, 'mean', dim_0 => 2, min_periods => 3)", "invalid_argument")
f.error("rolling(x, 'mean', dim_0 => 2.5)", "invalid_argument")
f.error("rolling(s, 'mean', dim_0 => 2)", "unknown_dimension")
f.error("rolling(edge, 'sum', dim_0 => 2)", "overflow")

f = Script("dialect/q09", "A centred week of hours at the ends too.", 1e-6, setup=(ERA5,))
f.q("SELECT rolling(t2m, 'mean', time => 7, center => true, min_periods => 1) FROM era5", da(t2m.rolling(time=7, center=True, min_periods=1).mean()))

f = Script("queries/coarsen", "coarsen: blocks of cells, with coordinates as xarray's.", 1e-12, setup=(CASES, ERA5))
cube = xr.DataArray(d.cube, dims=["dim_0", "dim_1", "dim_2"])
masked = xr.DataArray(ma.filled(d.m, nan), dims=["dim_0", "dim_1"])
for op in ("sum", "mean", "min", "max", "var", "std", "prod", "count", "median"):
    f.q(f"coarsen(cube, '{op}', dim_1 => 2)", T(getattr(cube.coarsen(dim_1=2), op)().values))
    f.q(f"coarsen(x, '{op}', dim_0 => 2, dim_1 => 3, boundary => 'trim')", T(getattr(xa.coarsen(dim_0=2, dim_1=3, boundary="trim"), op)().values))
    f.q(f"coarsen(x, '{op}', dim_1 => 3, boundary => 'pad')", T(getattr(xa.coarsen(dim_1=3, boundary="pad"), op)().values))
f.q("coarsen(m, 'mean', dim_1 => 2, boundary => 'trim'), coarsen(m, 'max', dim_0 => 2, boundary => 'pad')",
    da(masked.coarsen(dim_1=2, boundary="trim").mean()), da(masked.coarsen(dim_0=2, boundary="pad").max()))
f.q("coarsen(n, 'max', dim_1 => 7), coarsen(n, 'max', dim_1 => 7, skipna => true)", d.n.max(1, keepdims=True), np.nanmax(d.n, 1, keepdims=True))
f.q("coarsen(icube, 'sum', dim_2 => 5), coarsen(x[:, ::2], 'sum', dim_1 => 2)", d.icube.sum(2, keepdims=True), d.x[:, ::2].reshape(5, 2, 2).sum(2))
f.q("coarsen(arange(100000, chunks => [1000]), 'sum', dim_0 => 10)[9990:]", np.arange(100000).reshape(-1, 10).sum(1)[9990:])
f.q("coarsen(z, 'sum', dim_1 => 3), coarsen(z1, 'mean', dim_0 => 4)", np.zeros((0, 1)), d.z1)
block = t2m.isel(time=slice(0, 10))
f.q("SELECT coarsen(t2m[0:10], 'mean', time => 5) AS a, coarsen(t2m[0:10], 'max', time => 4, boundary => 'pad') AS b FROM era5",
    a=da(block.coarsen(time=5).mean()), b=da(block.coarsen(time=4, boundary="pad").max()))
f.note("Labels are the means of blocks.")
f.q("SELECT c.lat, c.lon, c.time FROM (SELECT coarsen(t2m, 'mean', lat => 2, lon => 2, time => 4, boundary => 'trim') AS v FROM era5) c",
    *[(name, da(t2m.coarsen(lat=2, lon=2, time=4, boundary="trim").mean()[name], masked=False)) for name in ("lat", "lon", "time")])
f.error("coarsen(x, 'mean', dim_0 => 2)", "invalid_argument")
f.error("coarsen(x, 'mean', dim_0 => 2, boundary => 'fill')", "invalid_argument")
f.error("coarsen(x, 'mean', dim_0 => -1)", "invalid_argument")
f.error("coarsen(x, 'argmax', dim_0 => 5)", "invalid_argument")

f = Script("dialect/q13", "Blocks of the grid; what is left over is trimmed.", 1e-6, setup=(ERA5,))
f.q("SELECT coarsen(t2m, 'mean', lat => 4, lon => 4, boundary => 'trim') FROM era5", da(t2m.coarsen(lat=4, lon=4, boundary="trim").mean()))
