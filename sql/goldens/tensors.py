"""sql/queries/{dims_order, partly_named, coords, longitudes, times, extremes, periods, nan_or_null, no_from, empty}: what
operands of other dimensions, labels, times and missing cells give, from NumPy, xarray, pandas and DuckDB."""

import duckdb
import numpy as np
import pandas as pd
import xarray as xr

from .core import CASES, DATA, ERA5, Cases, Script, T, da
from .labels import air, era5, lat, precip, t2m, time

orog = air.orog

d = Cases()
ma, nan = np.ma, np.nan
raw = lambda a: da(a, masked=False)


def bare(a):
    """The cells of an xarray result; NaN are values."""
    return T(a.values, a.dims)


# ---------------------------------------------------------------- order of dimensions
f = Script("queries/dims_order", "Dimensions come in the order in which the arguments bring them, as xarray's.", 1e-15, source=None)


def full(dims, value, dtype="f8"):
    lengths = {"a": 2, "b": 3, "c": 2}
    return xr.DataArray(np.full([lengths[n] for n in dims], value, dtype), dims=list(dims))


def sql(array):
    names = ", ".join(f"'{n}'" for n in array.dims)
    value = str(array.values.flat[0]).lower()
    return f"full({list(array.shape)}, {value}, dims => [{names}], dtype => '{array.dtype}')"


def order(call, np_call, *arrays):
    texts = [sql(a) for a in arrays]
    f.q(call.format(*texts), raw(xr.apply_ufunc(np_call, *arrays)))


TWO = {"i8": ["add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "fmod", "maximum", "minimum", "fmax", "fmin",
              "arctan2", "hypot", "copysign", "nextafter", "logaddexp", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
              "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "isclose"]}
for name in TWO["i8"]:
    order(f"{name}({{0}}, {{1}})", getattr(np, name), full("a", 5, "i8"), full("b", 2, "i8"))
    order(f"{name}({{0}}, {{1}})", getattr(np, name), full("ba", 5, "i8"), full("ac", 2, "i8"))
for symbol, name in {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "//": "floor_divide", "%": "remainder", "^": "power", "<": "less",
                     "=": "equal", "<>": "not_equal", ">=": "greater_equal", "&": "bitwise_and", "|": "bitwise_or", "<<": "left_shift"}.items():
    order(f"{{0}} {symbol} {{1}}", getattr(np, name), full("b", 5, "i8"), full("ca", 2, "i8"))
f.note("Integers with and without a sign compare by value.")
for symbol, name in {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal", "=": "equal", "<>": "not_equal"}.items():
    for value in (3, -1):
        order(f"{{0}} {symbol} {{1}}", getattr(np, name), full("a", 3, "u8"), full("b", value, "i8"))
        order(f"{{0}} {symbol} {{1}}", getattr(np, name), full("b", value, "i8"), full("a", 3, "u8"))
yes, x, y = full("c", True, "bool"), full("a", 1.5), full("b", 2.5)
order("where({0}, {1}, {2})", np.where, yes, x, y)
order("where({0}, {1}, {2})", np.where, full("ab", False, "bool"), full("ca", 1.5), full("b", 2.5))
order("CASE WHEN {0} THEN {1} ELSE {2} END", np.where, yes, y, x)
f.note("NULL as a branch changes no order.")
order("where({0}, {1}, NULL)", lambda c, v: np.where(c, v, nan), yes, x)
order("where({0}, NULL, {1})", lambda c, v: np.where(c, v, v), full("ba", False, "bool"), full("ac", 1.5))
order("CASE WHEN {0} THEN {1} END", lambda c, v: np.where(c, v, nan), full("b", True, "bool"), full("ab", 1.5))
order("clip({0}, {1}, {2})", np.clip, full("c", 9.0), x, y)
order("clip({0}, NULL, {1})", np.minimum, full("c", 9.0), full("ac", 2.0))
for call, np_call in {"coalesce": lambda v, w: np.where(True, v, w), "ifnull": lambda v, w: np.where(True, v, w), "nullif": lambda v, w: np.where(v != w, v, w),
                      "greatest": np.fmax, "least": np.fmin}.items():
    order(f"{call}({{0}}, {{1}})", np_call, full("b", 9.0), full("ab", 2.0))
order("coalesce({0}, {1}, {2})", lambda u, v, w: np.where(True, u, v + w), full("c", 9.0), x, y)
order("{0} IN ({1}, {2})", lambda v, p, q: (v == p) | (v == q), full("c", 9.0), full("b", 9.0), full("a", 1.0))
order("{0} BETWEEN {1} AND {2}", lambda v, p, q: (v >= p) & (v <= q), full("c", 9.0), full("b", 9.0), full("a", 10.0))
order("{0} AND {1}", np.logical_and, full("b", True, "bool"), full("a", False, "bool"))
order("{0} OR {1}", np.logical_or, full("b", True, "bool"), full("ab", False, "bool"))

# ---------------------------------------------------------------- partly named
f = Script("queries/partly_named", "A reduction of a tensor that names some of its dimensions meets the tensor again.", 1e-15, source="x",
           setup=("CREATE TEMP TENSOR x AS SELECT reshape(arange(12), [3, 4], dims => [NULL, 'b']) * 1.0 AS x",
                  "CREATE TEMP TENSOR y AS SELECT reshape(arange(24), [2, 3, 4], dims => ['a', NULL, 'c']) * 1.0 AS y"))
x, y = np.arange(12.0).reshape(3, 4), np.arange(24.0).reshape(2, 3, 4)
X, Y = ["dim_0", "b"], ["a", "dim_1", "c"]
f.q("x - mean(x, 0), mean(x, 0) - x, x - max(x)", T(x - x.mean(0), X), T(x.mean(0) - x, X), T(x - x.max(), X))
f.q("SELECT y - mean(y, 0), y - mean(y, 1), y - mean(y, 2), y - mean(y, 'c') FROM y",
    T(y - y.mean(0), Y), T(y - y.mean(1, keepdims=True), Y), *[T(y - y.mean(2, keepdims=True), Y)] * 2)
f.q("SELECT y - mean(y, axis => ['a', 1]), where(y > mean(y, 1), y, NULL) FROM y", T(y - y.mean((0, 1)), Y),
    T(ma.masked_where(y <= y.mean(1, keepdims=True), y), Y))
f.q("(x - mean(x, 0)) / std(x, 0)", T((x - x.mean(0)) / x.std(0), X))
f.note("Which dimension is left is not known from its place: it would be that of `b` by position.")
f.error("x - mean(x, 'b')", "shape_mismatch")
f.error("SELECT y * sum(y, axis => ['a', 'c']) FROM y", "shape_mismatch")
f.q("x - mean(x, 'b', keepdims => true)", T(x - x.mean(1, keepdims=True), X))
f.error("x + ones([2], dims => ['c'])", "shape_mismatch")

# ---------------------------------------------------------------- labels
f = era5("coords", "values, drop_coords, assign_coords, swap_dims, sortby, rename: labels given, taken and exchanged.", 1e-12)
relabelled = orog.assign_coords(lon=(orog.lon + 180) % 360 - 180)
f.q("values(orog), drop_coords(orog), drop_coords(orog, 'lon')[lat => 45], values(lat)", orog=da(orog), v1=da(orog), v2=da(orog.sel(lat=45)), lat=raw(lat))
f.error("values(orog)[lat => 45]", "label_not_found")
f.error("drop_coords(orog, 'level')", "unknown_dimension")
f.note("Stencils by slices: labels would not align.")
line = t2m[:12, 0, 0]
f.q("values(t2m[:10, 0, 0]) + values(t2m[2:12, 0, 0]), values(t2m[1:12, 0, 0]) - values(t2m[:11, 0, 0])", T(da(line).values[:-2] + da(line).values[2:], ["time"]),
    T(da(line).values[1:] - da(line).values[:-1], ["time"]))
f.error("t2m[:-2] + t2m[2:]", "not_aligned")
f.note("A difference from the year before, under the labels of the later one.")
year = lambda y: t2m[:, 0, 0].sel(time=str(y))
n = min(year(2019).sizes["time"], year(2020).sizes["time"])
change = year(2020)[:n] - year(2019)[:n].assign_coords(time=year(2020).time[:n])
f.q(f"SELECT t2m[time => '2020', lat => 65, lon => -9.5][0:{n}] - values(t2m[:, 0, 0][time => '2019'][0:{n}]) AS change FROM era5", change=da(change))
f.q(f"SELECT t2m[:, 0, 0][time => '2020'][0:{n}] - assign_coords(t2m[:, 0, 0][time => '2019'][0:{n}], time => era5.time[{year(2019).sizes['time']}:][0:{n}]) AS change FROM era5", change=da(change))
f.note("Computed labels are labels: of slices, of single labels, of arithmetic.")
shifted = orog.assign_coords(lon=orog.lon * 2 + 1)
f.q("assign_coords(orog, lon => lon * 2 + 1)[lon => 2.0, lat => 60:30]", da(shifted.sel(lon=2.0, lat=slice(60, 30))))
f.q("assign_coords(orog, lon => lon * 2 + 1)[lon => 0:30]", da(shifted.sel(lon=slice(0, 30))))
f.q("SELECT v.lon FROM (SELECT assign_coords(orog, lon => lon * 2 + 1) AS o FROM era5) v", lon=raw(shifted.lon))
f.q("assign_coords(orog, lon => [1, 2, 3, 4], lat => lat + 1)[lon => 3, lat => 46]", da(orog.assign_coords(lon=[1, 2, 3, 4], lat=orog.lat + 1).sel(lon=3, lat=46)))
f.q("assign_coords(orog, lon => ['w', 'x', 'y', 'z'])[lon => 'y']", da(orog.assign_coords(lon=["w", "x", "y", "z"]).sel(lon="y")))
f.q("assign_coords(orog, lon => ['2020-01-01', '2020-01-02', '2020-02-01', '2020-02-02'])[lon => '2020-02']",
    da(orog.assign_coords(lon=pd.to_datetime(["2020-01-01", "2020-01-02", "2020-02-01", "2020-02-02"])).sel(lon="2020-02")))
f.q("SELECT g FROM (SELECT assign_coords(values(t2m[0:3, 0, 0]), time => date_trunc('month', era5.time[9:12])) AS g FROM era5)", g=da(t2m[:3, 0, 0]))
f.q("SELECT v.time FROM (SELECT assign_coords(t2m, time => date_trunc('month', time))[8:11] AS g FROM era5) v",
    time=T(time.values[8:11].astype("M8[M]").astype("M8[ns]"), ["time"]))
f.q("assign_coords(orog, lon => orog[0])[lat => 45]", da(orog.sel(lat=45)))
f.error("assign_coords(orog, lon => [1, 2, 3])", "shape_mismatch")
f.error("assign_coords(orog, lon => orog)", "invalid_argument")
f.error("assign_coords(orog, lon => 5)", "invalid_argument")
f.error("assign_coords(orog, lon => lon > 5)", "invalid_argument")
f.error("assign_coords(orog, level => lon)", "unknown_dimension")
f.error("assign_coords(orog)", "invalid_argument")
f.error("SELECT assign_coords(ones([2]), dim_0 => [1, 2])", "invalid_argument")
f.note("Labels that are not in order: exact ones are found, a range needs two that are there, the first one first.")
mixed = orog.assign_coords(lon=[20.0, -10.0, 30.0, 0.0])
MIXED = "assign_coords(orog, lon => [20.0, -10.0, 30.0, 0.0])"
f.q(f"{MIXED}[lon => 30], {MIXED}[lon => 20:30], {MIXED}[lon => -10:]", da(mixed.sel(lon=30)), da(mixed.sel(lon=slice(20, 30))), da(mixed.sel(lon=slice(-10, None))))
f.error(f"{MIXED}[lon => -10:10]", "label_not_found")
f.error(f"{MIXED}[lon => 0:20]", "invalid_argument")
f.q(f"sortby({MIXED}, 'lon')[lon => -10:10], sortby({MIXED}, 'lon', descending => true), sortby(orog, 'lat')[0:2]",
    v0=da(mixed.sortby("lon").sel(lon=slice(-10, 10))), orog=da(mixed.sortby("lon", ascending=False)), v2=da(orog.sortby("lat")[:2]))
f.error("sortby(values(orog), 'lat')", "invalid_argument")
f.note("rename takes the labels along; swap_dims takes those of another coordinate.")
f.q("rename(orog, lat => 'y')[y => 45], rename(orog, lat => 'y', lon => 'x')[x => 0.5, y => 60:30]", da(orog.rename(lat="y").sel(y=45)),
    da(orog.rename(lat="y", lon="x").sel(x=0.5, y=slice(60, 30))))
f.q("swap_dims(orog, 'lat', 'row')[1:3]", T(orog.values[1:3], ["row", "lon"]))
f.error("swap_dims(orog, 'lat', 'lon')", "invalid_argument")
f.error("swap_dims(orog, 'level', 'row')", "unknown_dimension")
steps = "(SELECT o, lat * 10 AS tens FROM (SELECT orog AS o FROM era5))"
f.q(f"SELECT swap_dims(o, 'lat', 'tens')[tens => 450] FROM {steps}", da(orog.sel(lat=45)))
f.q(f"SELECT swap_dims(o[lat => 60:30], 'lat', 'tens')[tens => 450] FROM {steps}", da(orog.sel(lat=45)))
f.note("Coordinates of the file that are no dimension's own.")
colpex = xr.open_zarr(DATA / "colpex.v2.zarr").air_potential_temperature[0, :, 0, :3].load()
heights = colpex.swap_dims(model_level_number="level_height")
COLPEX = "SELECT {} FROM (SELECT air_potential_temperature[0, :, 0, 0:3] AS air, level_height, sigma FROM 'tests/data/colpex.v2.zarr')"
DIRECT = "SELECT {} FROM 'tests/data/colpex.v2.zarr'"
f.q(DIRECT.format("swap_dims(air_potential_temperature, 'model_level_number', 'level_height')[0, level_height => 100:250][:, 0, 0:3]"), da(heights.sel(level_height=slice(100, 250))))
f.q(DIRECT.format("swap_dims(air_potential_temperature[:, 2:6], 'model_level_number', 'level_height')[0, level_height => 100:][:, 0, 0:3]"),
    da(heights[2:6].sel(level_height=slice(100, None))))
f.q(COLPEX.format("swap_dims(air, 'model_level_number', 'level_height')[level_height => 100:250]"), da(heights.sel(level_height=slice(100, 250))))
f.note("Cells read what was relabelled.")
frame = lambda a, name: a.rename(name).to_dataframe().reset_index()[[*a.dims, name]]
west = relabelled.sel(lon=relabelled.lon < 0)
f.cells("SELECT lat, lon, o FROM (SELECT assign_coords(orog, lon => (lon + 180) % 360 - 180) AS o FROM era5) WHERE lon < 0", frame(west, "o"))
f.cells("WITH r AS (SELECT assign_coords(orog, lon => lon * 2 + 1) AS o FROM era5) SELECT lon, sum(o) FROM r WHERE lon > 1 GROUP BY lon ORDER BY lon",
        shifted.sel(lon=shifted.lon > 1).astype("f8").sum("lat").rename("s").to_dataframe().reset_index()[["lon", "s"]])
f.ok("CREATE TENSOR relabelled AS SELECT assign_coords(orog, lon => lon * 2 + 1) AS o FROM era5")
f.q("SELECT o[lon => 22:42] FROM relabelled", da(shifted.sel(lon=slice(22, 42))))
f.cells("SELECT lon, o FROM relabelled WHERE lat = 45 AND lon < 10", shifted.sel(lat=45, lon=shifted.lon < 10).rename("o").to_dataframe().reset_index()[["lon", "o"]])
f.cells("SELECT s.step, avg(s.o) FROM (SELECT swap_dims(values(orog), 'lat', 'step') AS o FROM era5) s GROUP BY s.step",
        pd.DataFrame({"step": range(5), "m": orog.values.astype("f8").mean(1)}))
f.q("shift(t2m[0:4, 0, 0], time => 1), values(t2m[0:2, 0, 0]) * 2", da(t2m[:4, 0, 0].shift(time=1)), da(t2m[:2, 0, 0] * 2))

# ---------------------------------------------------------------- the globe
f = Script("queries/longitudes", "A slice over the seam of a full circle of longitudes goes around it.", source="globe",
           setup=("CREATE TEMP TENSOR globe AS SELECT assign_coords(reshape(arange(24), [24], dims => ['lon']), lon => arange(24) * 15.0) AS globe",
                  "CREATE TEMP TENSOR half AS SELECT assign_coords(reshape(arange(12), [12], dims => ['lon']), lon => arange(12) * 15.0) AS half",
                  "CREATE TEMP TENSOR other AS SELECT assign_coords(reshape(arange(24), [24], dims => ['angle']), angle => arange(24) * 15.0) AS other"))
globe = xr.DataArray(np.arange(24), dims="lon", coords={"lon": np.arange(24) * 15.0})
around = lambda a, lo, hi: xr.concat([a.sel(lon=slice(lo, None)), a.sel(lon=slice(None, hi))], "lon")
f.q("globe[lon => 345:15], globe[lon => 320:40], globe[lon => 30:0:2]", raw(around(globe, 345, 15)), raw(around(globe, 320, 40)), raw(around(globe, 30, 0)[::2]))
f.q("SELECT v.lon FROM (SELECT globe[lon => 330:15] AS g FROM globe) v", lon=raw(around(globe, 330, 15).lon))
east = globe.assign_coords(lon=globe.lon - 180)
f.q("assign_coords(globe, lon => lon - 180)[lon => 170:-165]", raw(around(east, 170, -165)))
f.q("globe[lon => 15:345], sel(globe, lon => slice(345, 15))", raw(globe.sel(lon=slice(15, 345))), raw(around(globe, 345, 15)))
f.note("Of half a circle, and of what is no longitude, nothing lies between (as xarray).")
f.q("SELECT half[lon => 150:15], other[angle => 345:15] FROM half, other", T(np.zeros(0, "i8"), ["lon"]), T(np.zeros(0, "i8"), ["angle"]))

# ---------------------------------------------------------------- times
f = era5("times", "Differences of times are seconds; epoch, date_trunc, casts, diff.", 1e-15)
start = np.datetime64("2019-01-01", "ns")
seconds = lambda v: np.asarray(v, "m8[ns]").astype("f8") / 1e9
at = time.values
f.q("time - '2019-01-01', '2020-01-01' - time[0:2], time[1:3] - time[1], epoch(time[0:3]), date_part('epoch', time[5])",
    T(seconds(at - start), ["time"]), T(seconds(np.datetime64("2020-01-01") - at[:2]), ["time"]), T(seconds(at[1:3] - at[1]), ["time"]),
    T(seconds(at[:3] - np.datetime64(0, "ns")), ["time"]), seconds(at[5] - np.datetime64(0, "ns")))
f.q("(time - '2019-01-01') / 86400", T(seconds(at - start) / 86400, ["time"]))
f.q("time[0:3]::double, time[0:3]::bigint", T(at[:3].astype("M8[us]").astype("i8").astype("f8"), ["time"]), T(at[:3].astype("M8[us]").astype("i8"), ["time"]))
f.q("diff(time)[0:3], diff(time, 2)[0:2]", T(seconds(np.diff(at)[:3]), ["time"]), T(np.diff(seconds(np.diff(at)))[:2], ["time"]))
stamps = pd.DatetimeIndex(at)
for part, freq in {"year": "Y", "quarter": "Q", "month": "M", "week": "W", "day": "D"}.items():
    f.q(f"date_trunc('{part}', time)", T(stamps.to_period(freq).start_time.values, ["time"]))
for part, freq in {"hour": "h", "minute": "min", "second": "s"}.items():
    f.q(f"date_trunc('{part}', time[0:5])", T(stamps[:5].floor(freq).values, ["time"]))
f.q("SELECT date_trunc('week', ['2024-12-29', '2024-12-30', '1969-12-28T23:59:59', '1700-02-28']), date_trunc('quarter', ['1969-12-31', '2024-02-29', '1900-08-01'])",
    np.array(["2024-12-23", "2024-12-30", "1969-12-22", "1700-02-22"], "M8[ns]"), np.array(["1969-10-01", "2024-01-01", "1900-07-01"], "M8[ns]"))
f.q("SELECT date_trunc('decade', ['2024-12-29', '1969-12-28T23:59:59', '1700-02-28', '1801-03-01']), date_trunc('century', ['2024-12-29', '1969-12-28T23:59:59', '1800-01-01']), date_trunc('millennium', ['2024-12-29', '2000-02-29']), date_trunc('millisecond', ['2024-12-29T00:00:00.123456'])",
    np.array(["2020-01-01", "1960-01-01", "1700-01-01", "1800-01-01"], "M8[ns]"), np.array(["2000-01-01", "1900-01-01", "1800-01-01"], "M8[ns]"), np.array(["2000-01-01", "2000-01-01"], "M8[ns]"), np.array(["2024-12-29T00:00:00.123"], "M8[ns]"))
for name in ("day360", "noleap"):
    f.q(f"SELECT sum(year(date_trunc('decade', time)) - year(time) + year(time) % 10), max(dayofyear(date_trunc('century', time))), sum(year(date_trunc('millennium', time))) / sum(year(time) - year(time) % 1000) FROM 'tests/data/cf/{name}.zarr'",
        np.int64(0), np.int64(1), 1.0)
day360 = xr.open_zarr(DATA / "cf/day360.zarr", consolidated=False).time.values[:9]
f.q("SELECT epoch(time[0:9]) - epoch(date_trunc('week', time[0:9])) FROM 'tests/data/cf/day360.zarr'",
    T(np.array([86400.0 * t.dayofwk + 3600 * t.hour + 60 * t.minute + t.second for t in day360]), ["time"]))
f.q("groupby(t2m[:, 0, 0], 'mean', by => date_trunc('quarter', time))", T(ma.masked_invalid(t2m[:, 0, 0].to_series().groupby(stamps.to_period("Q").start_time).mean().values), ["date_trunc"]))
f.q("season(time)[0:12], where(season(time) = 2, t2m[:, 0, 0], NULL)[0:40]", T((at.astype("M8[M]").astype(int) % 12 + 1)[:12] % 12 // 3, ["time"]),
    T(ma.masked_where(((at.astype("M8[M]").astype(int) % 12 + 1) % 12 // 3 != 2) | ma.getmaskarray(da(t2m[:, 0, 0]).values), t2m[:, 0, 0].values)[:40], ["time"]))
names = np.array(["DJF", "MAM", "JJA", "SON"])[(at.astype("M8[M]").astype(int) % 12 + 1) % 12 // 3]
counts = lambda keep: int(np.isin(names, keep).sum()) * t2m.shape[1] * t2m.shape[2]
f.q("sum(where(season(time) = 'JJA', 1, 0)), sum(where(season(time) IN ('djf', 'SON'), 1, 0))", np.int64((names == "JJA").sum()), np.int64(np.isin(names, ["DJF", "SON"]).sum()))
f.rows("SELECT count(*) FROM era5 WHERE season(time) = 'JJA'", [[counts(["JJA"])]])
f.rows("SELECT count(*) FROM era5 WHERE season(time) NOT IN ('JJA', 'SON') AND 'MAM' <> season(time)", [[counts(["DJF"])]])
f.rows("SELECT CASE season(time) WHEN 'JJA' THEN 1 WHEN 'DJF' THEN 2 ELSE 0 END AS k, count(*) FROM era5 GROUP BY k ORDER BY k", [[0, counts(["MAM", "SON"])], [1, counts(["JJA"])], [2, counts(["DJF"])]])
f.error("season(time) = 'summer'", "invalid_argument")
f.error("SELECT count(*) FROM era5 WHERE season(time) = 'summer'", "invalid_argument")
f.error("date_trunc('fortnight', time)", "invalid_argument")
f.error("date_trunc('month', lat)", "dtype_mismatch")
f.error("epoch(lat)", "dtype_mismatch")
f.error("time + time", "dtype_mismatch")

# ---------------------------------------------------------------- SQL's extremes
f = Script("queries/extremes", "greatest, least, bool_and, bool_or: SQL's meaning, from DuckDB.", source=None)
values = [1.0, nan, None, 3.0, -2.0, np.inf, -np.inf]


def literal(v):
    return "NULL" if v is None else "nan()" if v != v else "inf()" if v == np.inf else "-inf()" if v == -np.inf else str(v)


def duck(name, *columns):
    """The function of DuckDB over columns, masked where it gives NULL."""
    text = lambda v: "NULL" if v is None else f"'{v}'::DOUBLE"
    rows = [duckdb.sql(f"SELECT {name}({', '.join(text(v) for v in row)})").fetchall()[0][0] for row in zip(*columns)]
    return ma.masked_array([0.0 if v is None else v for v in rows], [v is None for v in rows])


left, right = [v for v in values for _ in values], [v for _ in values for v in values]
lists = [f"[{', '.join(map(literal, column))}]" for column in (left, right)]
for name in ("greatest", "least"):
    f.q(f"{name}({lists[0]}, {lists[1]})", duck(name, left, right))
    f.q(f"{name}({lists[0]}, {lists[1]}, 0.5)", duck(name, left, right, [0.5] * len(left)))
f.q("greatest([1, 5], 3), least([1, 5], [2, 2], 4), greatest([true, false], false), least([1, NULL], 7)", np.array([3, 5]), np.array([1, 2]), np.array([True, False]), np.array([1, 7]))
f.q("greatest(['2020-01-01', '2021-01-01'], '2020-06-01')", np.array(["2020-06-01", "2021-01-01"], "M8[ns]"))
three = [[True, True, None], [True, False, None], [None, None, None], [False, False, True], [True, True, True]]
there, true = [f"[[{'], ['.join(', '.join(str(f(v)).lower() for v in row) for row in three)}]]" for f in (lambda v: v is not None, bool)]
for name in ("bool_and", "bool_or"):
    rows = [", ".join(f"({'NULL' if v is None else v}::BOOL)" for v in row) for row in three]
    want = [duckdb.sql(f"SELECT {name}(v) FROM (VALUES {row}) t(v)").fetchall()[0][0] for row in rows]
    f.q(f"{name}(where({there}, {true}, NULL), axis => 1)", ma.masked_array([bool(v) for v in want], [v is None for v in want]))
f.error("bool_and([1, 2])", "dtype_mismatch")

# ---------------------------------------------------------------- periods
f = era5("periods", "Calendar weeks, anchored quarters, medians and quantiles of periods and groups, windows that last.", 1e-12)
one = t2m.sel(lat=45, lon=0.5)
for freq in ("W", "W-WED", "2W", "QS", "QS-DEC", "QS-FEB", "YS-JUL", "2QS", "6MS", "2YS"):
    for op in ("mean", "count"):
        f.q(f"resample(t2m[lat => 45, lon => 0.5], '{op}', time => '{freq}')", da(getattr(one.resample(time=freq), op)()))
    f.q(f"SELECT v.time FROM (SELECT resample(t2m[lat => 45, lon => 0.5], 'mean', time => '{freq}') AS r FROM era5) v", time=raw(one.resample(time=freq).mean().time))
f.note("Times move by intervals; their means and medians are times, their ranges seconds.")
f.q("(time + INTERVAL '1 day 6 hours')[0:3], INTERVAL 90 MINUTE + time[0], DATE '2020-02-28' + INTERVAL '2 days'",
    raw(time[:3] + np.timedelta64(30, "h")), raw(time[0] + np.timedelta64(90, "m")), np.datetime64("2020-03-01", "us"))
f.q("SELECT v.time[0:3] AS t FROM (SELECT assign_coords(t2m, time => time - INTERVAL '6 hours') AS r FROM era5) v", t=raw(time[:3] - np.timedelta64(6, "h")))
f.q("mean(time), mean(time[0:6]), median(time), ptp(time[0:3]), groupby(time, 'mean', by => year(time)), isnan(time[0:2])",
    raw(time.mean()), raw(time[:6].mean()), raw(time[69:71].mean()), np.float64(np.ptp(time.values[:3]) / np.timedelta64(1, "s")), raw(time.groupby("time.year").mean()), T(np.isnat(time.values[:2]), ["time"]))
f.error("time + 3", "dtype_mismatch: `.` is not defined for datetime64.us. and an integer")
f.error("sum(t2m, time)", "invalid_argument: .*not the tensor `time`")
f.error("time + INTERVAL '1 month'", "invalid_argument")
f.q("time[argmax(t2m, 'time')][lat => 45], take(t2m[:, 0, 0], argmax(t2m, 'time'), axis => 0)[lat => 45]", raw(time[t2m.argmax("time")].sel(lat=45)), da(t2m[:, 0, 0].drop_vars(["lat", "lon"])[t2m.argmax("time")].sel(lat=45)))
ends = one.resample(time="2ME"), one.resample(time="QE-NOV"), one.resample(time="YE")
f.q("resample(t2m[lat => 45, lon => 0.5], 'mean', time => '2ME'), resample(t2m[lat => 45, lon => 0.5], 'first', time => 'QE-NOV'), resample(t2m[lat => 45, lon => 0.5], 'last', time => 'YE')",
    da(ends[0].mean()), da(ends[1].first()), da(ends[2].last()))
f.q("SELECT v.time FROM (SELECT resample(t2m, 'mean', time => '2ME') AS r FROM era5) v", time=raw(ends[0].mean().time))
f.q("groupby(t2m, 'first', by => month(time))[:, 2], groupby(precip, 'last', by => season(time), skipna => true)[:, 0]",
    da(t2m.groupby("time.month").first()[:, 2]), da(precip.groupby(time.dt.month % 12 // 3).last().rename(month="season")[:, 0]))
f.note("A calendar week begins on Monday; seven days are counted from the first one.")
weeks = one.resample(time="W-MON", label="left", closed="left").mean()
f.q("resample(t2m[lat => 45, lon => 0.5], 'mean', time => '1 week'), resample(t2m[lat => 45, lon => 0.5], 'mean', time => '7 days')", da(weeks), da(one.resample(time="7D").mean()))
f.q("SELECT v.time FROM (SELECT resample(t2m[lat => 45, lon => 0.5], 'mean', time => '1 week') AS r FROM era5) v", time=raw(weeks.time))
for freq in ("MS", "QS-DEC", "5D"):
    r = lambda: one.resample(time=freq)
    f.q(f"resample(t2m[lat => 45, lon => 0.5], 'median', time => '{freq}'), resample(t2m[lat => 45, lon => 0.5], 'quantile', time => '{freq}', q => 0.9)",
        da(r().median()), da(r().quantile(0.9)))
of_season = time.dt.month.values % 12 // 3
seasons = np.array([t2m.values[of_season == k] for k in range(4)], dtype=object)
seasons = np.stack([np.nanquantile(v.astype("f8"), 0.25, axis=0) for v in seasons])
f.q("resample(t2m, 'median', time => 'YS'), groupby(t2m, 'median', by => month(time)), groupby(t2m, 'quantile', by => season(time), q => 0.25)",
    da(t2m.resample(time="YS").median().transpose("time", ...)), da(t2m.groupby("time.month").median()),
    T(ma.masked_invalid(seasons), ["season", "lat", "lon"]))
f.q("t2m[:, 0, 0] - groupby(t2m[:, 0, 0], 'median', by => month(time))", da(t2m[:, 0, 0].groupby("time.month") - t2m[:, 0, 0].groupby("time.month").median()))
f.error("groupby(t2m, 'quantile', by => month(time))", "invalid_argument")
f.error("groupby(t2m, 'mean', by => month(time), q => 0.5)", "invalid_argument")
f.error("resample(t2m, 'quantile', time => 'MS', q => 1.5)", "invalid_argument")
for bad in ("QS-XYZ", "MS-DEC", "W-MONDAY", "month-2"):
    f.error(f"resample(t2m, 'mean', time => '{bad}')", "invalid_argument")
low = t2m[:60, 0, 0].to_series()
f.q("rolling(t2m[:60, 0, 0], 'quantile', time => 5, q => 0.9, min_periods => 3), coarsen(t2m[:60, 0, 0], 'quantile', time => 6, q => 0.25)",
    T(ma.masked_invalid(low.rolling(5, min_periods=3).quantile(0.9).values), ["time"]), T(ma.masked_invalid(np.nanquantile(low.values.reshape(10, 6), 0.25, axis=1)), ["time"]))
f.error("rolling(t2m, 'first', time => 5)", "invalid_argument")
f.note("A window that lasts as long is one of so many cells: pandas' count of them.")
step = (one.time[1] - one.time[0]).item() / 3.6e12  # hours
for text, width in {"30 days": int(np.ceil(30 * 24 / step)), "20 days": int(np.ceil(20 * 24 / step)), "2 weeks": int(np.ceil(14 * 24 / step))}.items():
    f.q(f"rolling(t2m[lat => 45, lon => 0.5], 'mean', time => '{text}', min_periods => 1)", da(one.rolling(time=width, min_periods=1).mean()))
    ours, pandas_ = one.rolling(time=width, min_periods=1).mean().values, one.to_series().rolling(pd.Timedelta(text.replace("weeks", "W").replace(" ", "")), min_periods=1).mean().values
    assert np.allclose(ours, pandas_, equal_nan=True), text  # pandas' windows of a duration are these
f.error("rolling(t2m[[0, 1, 5, 6]], 'mean', time => '30 days')", "invalid_argument")
f.error("rolling(t2m, 'mean', time => '1 month')", "invalid_argument")
f.error("rolling(t2m, 'mean', lat => '30 days')", "invalid_argument")
f.error("rolling(t2m, 'mean', time => 'a while')", "invalid_argument")

# ---------------------------------------------------------------- NaN or NULL
f = Script("queries/nan_or_null", "What is left of cells that are all NaN, or all masked: NaN of NaN, NULL of nothing.", 1e-15, source=None)
NONE = "where([false, false], [1.0, 2.0], NULL)"
SOME = "where([true, false], [nan(), 2.0], NULL)"
for name in ("nanmean", "nanmin", "nanmax", "nanvar", "nanstd", "nanmedian"):
    f.q(f"{name}([nan(), nan()]), {name}({SOME}), {name}({NONE})", getattr(np, name)([nan, nan]), np.float64(nan), ma.masked_all(()))
for name in ("mean", "min", "max", "std", "ptp", "median"):
    f.q(f"{name}([nan(), nan()], skipna => true), {name}({SOME}, skipna => true), {name}({NONE}, skipna => true)", np.float64(nan), np.float64(nan), ma.masked_all(()))
f.q(f"nanquantile({SOME}, [0.2, 0.8]), average({SOME}, weights => [1.0, 2.0], skipna => true)", T(np.array([nan, nan]), ["quantile"]), np.float64(nan))
f.q(f"nansum([nan(), nan()]), nansum({SOME}), nansum({NONE}), nanprod([nan()])", np.float64(0), np.float64(0), ma.masked_all(()), np.float64(1))
f.note("Line by line, and of groups.")
rows = "where([[true, true], [true, false], [false, false], [true, true]], [[1.0, nan()], [nan(), 5.0], [5.0, 5.0], [nan(), nan()]], NULL)"
f.q(f"nanmax({rows}, axis => 1), nanmean({rows}, axis => 1), nanmedian({rows}, axis => 1)", *[ma.masked_array([1.0, nan, 0, nan], [0, 0, 1, 0])] * 3)
f.note("ffill and bfill fill masked cells and NaN alike; what has nothing to take stays as it was.")
gaps = "where([true, true, false, true, true, false, true], [nan(), 1.0, 2.0, nan(), 4.0, 5.0, nan()], NULL)"
f.q(f"ffill({gaps}), bfill({gaps}), ffill({gaps}, limit => 1)", np.array([nan, 1, 1, 1, 4, 4, 4.0]), ma.masked_array([1, 1, 4, 4, 4, 0, nan], [0, 0, 0, 0, 0, 1, 0]),
    ma.masked_array([nan, 1, 1, nan, 4, 4, nan], [0, 0, 0, 0, 0, 0, 0]))
series = xr.DataArray([1.0, nan, nan, 3.0, nan], dims="t")
f.q("bfill([1.0, nan(), nan(), 3.0, nan()]), ffill([1.0, nan(), nan(), 3.0, nan()]), bfill([1.0, nan(), nan(), 3.0, nan()], limit => 1)",
    *[T(a.values, ["dim_0"]) for a in (series.bfill("t"), series.ffill("t"), series.bfill("t", limit=1))])

# ---------------------------------------------------------------- no FROM
f = Script("queries/no_from", "A block without FROM has NumPy's meaning.", 1e-15, source=None)
f.rows("SELECT log(100), 7 / 2, log(pi()), -7 % 3, round(2.5)", [[np.log(100), 3.5, np.log(np.pi), 2, 2.0]])
f.rows("SELECT 7 // 2, -7 // 2, 7.5 // 2, 7 / 0.5, 1 / 3 * 3", [[3, -4, 3.0, 14.0, 1.0]])
f.rows("SELECT std(3.0), var(2), sum(5), max(2.0), round(3.5), round(-0.5)", [[0.0, 0.0, 5, 2.0, 4.0, -0.0]])
f.rows("SELECT log(100) AS a, upper('b') AS b, 7 / 2 AS c", [[np.log(100), "B", 3.5]])
f.rows("SELECT a, c FROM (SELECT log(100) AS a, 7 / 2 AS c)", [[np.log(100), 3.5]])
f.rows("SELECT (SELECT 7 / 2) + 1 AS v", [[4.5]])
f.rows("SELECT CASE WHEN 7 / 2 > 3 THEN 1 ELSE 0 END, 7 / 2 BETWEEN 3.4 AND 3.6, 7 / 2 IN (3, 3.5)", [[1, True, True]])
f.rows("SELECT 1 + 1, 'a', true, 1.5", [[2, "a", True, 1.5]])
f.rows("SELECT 7 / 2 WHERE true", [[3]])
f.rows("SELECT 7 / 2, count(*), max('a')", [[3, 1, "a"]])
f.note("A cast to float is one to float32 on both surfaces, as DuckDB's.")
f.q("SELECT [0.1, 16777217.0]::float, [0.1]::double, 0.1 + [0]::real", np.array([0.1, 16777217.0], "f4"), np.array([0.1]), np.array([0.1], "f4"))
tenth = duckdb.sql("SELECT 0.1::FLOAT::DOUBLE").fetchall()[0][0]
f.rows("SELECT 0.1::float::double", [[tenth]])
f.ok(CASES)
f.rows("SELECT (x * 0 + 0.1)::float::double FROM cases LIMIT 1", [[tenth]])
f.q("SELECT (s * 0 + 0.1)::float::double, astype(s * 0 + 0.1, 'float') FROM cases", np.float64(tenth), np.float64(0.1))
f.note("NumPy's names of types are types of rows, too.")
f.rows("SELECT 0.1::float32::float64 + 0", [[tenth]])
f.rows("SELECT 5::int8, 5::int16 * 2, 250::uint8, -5::int32, 9::int64, 7::uint16, 7::uint32, 7::uint64", [[5, 10, 250, -5, 9, 7, 7, 7]])
f.rows("SELECT max((x * 0 + 3)::float64) + 1, count((x * 0 + 1)::int32) > 0 FROM cases WHERE x = x AND abs(x) < 1e300", [[4.0, True]])
f.error("SELECT 7 // 0", "division_by_zero")
f.error("SELECT 7 % 0", "division_by_zero")
f.error("SELECT i // 0 FROM cases LIMIT 1", "division_by_zero")

# ---------------------------------------------------------------- nothing
f = Script("queries/empty", "Norms and sums of products of no cells; all and any beside operators.", 1e-15, source=None)
for shape in ([0, 3], [3, 0], [0, 0], [2, 0, 3]):
    z = np.zeros(shape)
    axis = "" if len(shape) == 2 else ", axis => [1, 2]"
    for name, order_ in {"NULL": None, "'fro'": "fro", "'nuc'": "nuc", "1": 1, "2": 2, "'inf'": np.inf}.items():
        f.q(f"norm(zeros({shape}), {name}{axis})", np.linalg.norm(z, order_, None if len(shape) == 2 else (1, 2)))
f.q("norm(zeros([0])), norm(zeros([0]), 1), norm(zeros([0, 3]), 'inf', axis => 0), norm(zeros([0, 3]), 'inf', axis => 1)",
    np.float64(0), np.float64(0), np.zeros(3), np.zeros(0))
f.error("norm(zeros([0, 3]), -2)", "empty_reduction")
f.q("einsum('ij,ij->ij', zeros([0, 3]), ones([1, 3])), einsum('ij,ij', ones([1, 3]), zeros([0, 3])), einsum('...i,...i->...', ones([1, 3]), zeros([0, 3])), einsum('ij,jk,ik->k', ones([1, 2]), ones([2, 4]), zeros([0, 4]))",
    np.zeros((0, 3)), np.float64(0), np.zeros(0), np.zeros(4))
f.q("where(all([true, true]), [1, 2], [3, 4]), where(any([false]), 1, [2])", np.array([1, 2]), np.array([2]))
f.q("[true, false] = all([true, false]), arange(3) > 1 AND any([false, true]), arange(2) + any([0, 3]), 2 * all([[1, 0], [1, 1]], axis => 0), arange(2) < any([0, 1]) OR all([0])",
    np.array([False, True]), np.array([False, False, True]), np.array([1, 2]), np.array([2, 0]), np.array([True, False]))
f.q("coalesce(all([true, NULL]), false), maximum(all([1]), any([0])), logical_not(all(ones([2, 2]) > 0, axis => 1))", np.bool_(True), np.bool_(True), np.array([False, False]))
