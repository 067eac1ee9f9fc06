"""sql/queries/{labels, isel_sel, groupby_labels, rechunk, shift}: the CF datasets and coordinates, from xarray."""

import numpy as np
import xarray as xr

from .core import DATA, ERA5, EXTERNAL, Script, T, da, group, read


def dataset(path):
    """The CF dataset as xarray decodes it; valid_range and the integer mask are applied as `read` does."""
    ds = xr.open_zarr(DATA / path, consolidated=False).load()
    for name, array in group(path).arrays():
        if name in ds.data_vars:
            mine = read(array)
            if np.ma.is_masked(mine) and mine.dtype.kind == "f":
                ds[name] = ds[name].where(~np.ma.getmaskarray(mine))
            both = np.ma.filled(mine.astype("f8"), np.nan), ds[name].values.astype("f8")
            assert np.array_equal(*both, equal_nan=True), (path, name)  # xarray and the reader here agree
    return ds


air = dataset("cf/air.zarr")
t2m, precip, time, lat, lon = air.t2m, air.precip, air.time, air.lat, air.lon
box = xr.open_zarr(DATA / "zarr_zoo/v3_consolidated.zarr").load()
v = box.v
GRID = EXTERNAL.format("grid", "ZARR", "zarr_zoo/v3_consolidated.zarr")
raw = lambda a: da(a, masked=False)


def era5(name, about, tolerance=None):
    script = Script(f"queries/{name}", about, tolerance, setup=(ERA5, GRID))
    script.source = "era5"
    return script


f = era5("labels", "dim => label and dim => lo:hi: inclusive, along the coordinate's own direction (rule 2).", 1e-15)
f.note("A coordinate name is its 1-d tensor.")
f.q("lat, lon, time[0:3], time[-1]", lat=raw(lat), lon=raw(lon), v2=raw(time[:3]), v3=raw(time[-1]))
f.q("SELECT v, y, x FROM grid", v=raw(v), y=raw(box.y), x=raw(box.x))
f.note("y ascends 0..40, x descends 3.0..0.0.")
for sql, want in [("y => 20", v.sel(y=20)), ("x => 2.5", v.sel(x=2.5)), ("y => 10:30", v.sel(y=slice(10, 30))), ("x => 2.5:1.0", v.sel(x=slice(2.5, 1.0))),
                  ("y => 10:30, x => 2.5:1.0", v.sel(y=slice(10, 30), x=slice(2.5, 1))), ("y => 5:25", v.sel(y=slice(5, 25))), ("x => 2.7:1.2", v.sel(x=slice(2.7, 1.2))),
                  ("y => 30:", v.sel(y=slice(30, None))), ("y => :10", v.sel(y=slice(None, 10))), ("x => 1.0:", v.sel(x=slice(1, None))), ("x => :2.5", v.sel(x=slice(None, 2.5))),
                  ("y => :", v), ("y => 11:19", v.sel(y=slice(11, 19))), ("y => 100:200", v.sel(y=slice(100, 200))), ("y => -100:100", v),
                  ("y => 20, x => 0.0", v.sel(y=20, x=0.0)), ("x => 0.5, y => 0:40", v.sel(x=0.5))]:
    f.q(f"SELECT v[{sql}] FROM grid", raw(want))
f.note("Against the coordinate's own direction nothing lies between (as xarray).")
f.q("SELECT v[y => 30:10], v[x => 1.0:2.5] FROM grid", raw(v.sel(y=slice(30, 10))), raw(v.sel(x=slice(1.0, 2.5))))
f.note("Positions and labels mix; named axes take no place among the positions.")
f.q("SELECT v[0:2, x => 1.0], v[y => 20][::-1], v[y => 10:30][0] FROM grid", raw(v[0:2].sel(x=1.0)), raw(v.sel(y=20)[::-1]), raw(v.sel(y=slice(10, 30))[0]))
f.q("SELECT (v + 1)[y => 20], mean(v[y => 10:30], axis => 'y'), v[y => 10] - v[y => 20] FROM grid",
    raw((v + 1).sel(y=20)), raw(v.sel(y=slice(10, 30)).mean("y")), raw(v.sel(y=10, drop=True) - v.sel(y=20, drop=True)))
f.note("Dates: a partial one covers its period; a full one is that instant.")
cut = lambda **k: da(t2m.sel(**k))
f.q("t2m[time => '2020-01-01':'2020-01-31', lat => 60:30, lon => 10.5]", cut(time=slice("2020-01-01", "2020-01-31"), lat=slice(60, 30), lon=10.5))
f.q("t2m[time => '2020-02', lat => 45, lon => 0.5]", cut(time="2020-02", lat=45, lon=0.5))
f.q("t2m[time => '2019-11':'2020-01', lat => 45, lon => 0.5]", cut(time=slice("2019-11", "2020-01"), lat=45, lon=0.5))
f.q("mean(t2m[time => '2019', lat => 45, lon => 0.5]), count(t2m[time => '2020', lat => 45, lon => 0.5])", t2m.sel(time="2019", lat=45, lon=0.5).mean(), np.int64(t2m.sel(time="2020", lat=45, lon=0.5).count()))
f.q("t2m[time => '2019-01-06', lat => 45]", cut(time="2019-01-06", lat=45))
f.q("t2m[time => '2019-01-06T06:00:00', lat => 45], t2m[time => '2019-01-06 06:00:00', lat => 45, lon => 0.5]", cut(time="2019-01-06T06:00:00", lat=45), cut(time=np.datetime64("2019-01-06T06:00:00"), lat=45, lon=0.5))
f.q("t2m[time => '2020-12-20':, lat => 30:25, lon => 0.5:]", cut(time=slice("2020-12-20", None), lat=slice(30, 25), lon=slice(0.5, None)))
f.q("t2m[time => :'2019-01-11', lat => 65, lon => -9.5]", cut(time=slice(None, "2019-01-11"), lat=65, lon=-9.5))
f.q("t2m[time => '2020-01-01T00:00:00':'2020-01-10T00:00:00', lat => 45, lon => 0.5]", cut(time=slice("2020-01-01T00:00:00", "2020-01-10T00:00:00"), lat=45, lon=0.5))
f.q("t2m[time => '2030':'2031', lat => 45, lon => 0.5]", T(np.zeros(0), ["time"]))
f.note("Several variables; one with fewer dims.")
f.q("orog[lat => 45], flag[time => '2019-01'], sst[time => '2019-01-01', lat => 65:60]", da(air.orog.sel(lat=45)),
    T(read(group("cf/air.zarr")["flag"])[:6], ["time"]), da(air.sst.sel(time="2019-01-01", lat=slice(65, 60))))
f.error("t2m[lat => 50]", "label_not_found")
f.error("t2m[lon => 10.4999]", "label_not_found")
f.error("t2m[time => '2018-07']", "label_not_found")
f.error("t2m[time => '2019-01-06T07:00:00']", "label_not_found")
f.error("t2m[time => 'yesterday']", "invalid_label")
f.error("t2m[level => 3]", "unknown_dimension")
f.error("t2m[lat => 45, lat => 30]", "invalid_argument")
f.error("t2m[lat => 'north']", "invalid_label")
f.note("Without a coordinate labels are positions; then they are inclusive, too.")
cube = read(group("cases.zarr")["x"])
f.q("SELECT x[dim_0 => 2], x[dim_1 => 1:3, dim_0 => 0] FROM 'tests/data/cases.zarr'", cube[2], cube[0, 1:4])

f = era5("isel_sel", "isel by position, sel by label, exact or nearest.", 1e-15)
small = t2m.isel(time=slice(0, 2))
f.q("isel(t2m, time => slice(0, 2)), isel(t2m, time => 0, lat => -1), isel(t2m, time => -1, lon => slice(3, 0, -2))",
    da(small), da(t2m.isel(time=0, lat=-1)), da(t2m.isel(time=-1, lon=slice(3, 0, -2))))
f.q("isel(t2m, time => 3, lat => [0, 2, -1], lon => 1), isel(t2m, lat => slice(1, 5), time => 0, lon => 0)",
    da(t2m.isel(time=3, lat=[0, 2, -1], lon=1)), da(t2m.isel(lat=slice(1, None), time=0, lon=0)))
f.q("isel(t2m, time => slice(138, 500), lat => 0), isel(t2m, time => slice(5, 5))", da(t2m.isel(time=slice(138, 500), lat=0)), da(t2m.isel(time=slice(5, 5))))
f.q("sel(t2m, lat => 45, lon => 0.5, time => '2019-01'), sel(t2m, time => '2019-01-01', lat => slice(60, 30), lon => 10.5)",
    cut(lat=45, lon=0.5, time="2019-01"), cut(time="2019-01-01", lat=slice(60, 30), lon=10.5))
near = lambda **k: da(t2m.isel(time=slice(0, 3)).sel(**k, method="nearest"))
f.q("sel(t2m[0:3], lat => 51.5, lon => -0.1, method => 'nearest'), sel(t2m[0:3], lat => 90, lon => 100, method => 'nearest')", near(lat=51.5, lon=-0.1), near(lat=90, lon=100))
f.q("sel(t2m[:, 2, 1], time => '2019-06-01T00:00:00', method => 'nearest')", da(t2m[:, 2, 1].sel(time=np.datetime64("2019-06-01"), method="nearest")))
f.q("sel(t2m[0:1], lat => [65, 25], lon => [0.5])", da(t2m[0:1].sel(lat=[65, 25], lon=[0.5])))
f.q("SELECT sel(v, y => 19, method => 'nearest'), sel(v, x => 1.1, y => 40, method => 'nearest') FROM grid", raw(v.sel(y=19, method="nearest")), raw(v.sel(x=1.1, y=40, method="nearest")))
f.q("mean(isel(t2m, time => slice(0, 24)), axis => 'time')", da(t2m.isel(time=slice(0, 24)).mean("time")))
f.note("pad and backfill: the label, or the one before or behind it in the order of the positions.")
def fill(method, **k):
    return raw(v.sel(**k, method=method))
f.q("SELECT sel(v, y => 19, method => 'pad'), sel(v, y => 19, method => 'bfill'), sel(v, x => 2.7, method => 'ffill'), sel(v, x => 2.7, y => 40, method => 'backfill') FROM grid",
    fill("pad", y=19), fill("bfill", y=19), fill("ffill", x=2.7), fill("backfill", x=2.7, y=40))
f.q("SELECT sel(v, y => [-5, 11], method => 'bfill'), sel(v, y => 12, method => 'pad', tolerance => 2) FROM grid", fill("bfill", y=[-5, 11]), raw(v.sel(y=12, method="pad", tolerance=2)))
f.q("sel(t2m[:, 2, 1], time => '2019-06', method => 'pad'), sel(t2m[:, 2, 1], time => '2019-06', method => 'bfill')",
    da(t2m[:, 2, 1].sel(time=np.datetime64("2019-06-01"), method="pad")), da(t2m[:, 2, 1].sel(time=np.datetime64("2019-06-01"), method="bfill")))
f.error("SELECT sel(v, y => -1, method => 'pad') FROM grid", "label_not_found")
f.error("SELECT sel(v, y => 12, method => 'pad', tolerance => 1) FROM grid", "label_not_found")
f.error("SELECT sel(sortby(assign_coords(v, y => y % 20), 'x'), y => 3, method => 'pad') FROM grid", "invalid_argument")
f.error("isel(t2m, time => 140)", "index_out_of_range")
f.error("isel(t2m, level => 0)", "unknown_dimension")
f.error("sel(t2m, lat => 51.5)", "label_not_found")
f.error("sel(t2m, lat => 51.5, method => 'closest')", "invalid_argument")

f = era5("label_types", "Labels beyond 2^63, of narrow types, and zeros.", 1e-15)
wide = ("(SELECT [k], sum(w) AS s FROM (SELECT k::uint64 AS k, w FROM "
        "(VALUES (3, 1.0), (9223372036854775813, 2.0), (18446744073709551615, 4.0)) q(k, w)) r GROUP BY k)")
ids = np.array([3, 2**63 + 5, 2**64 - 1], "u8")
sums = xr.DataArray([1.0, 2.0, 4.0], {"k": ids}, ["k"])
f.note("uint64 labels are compared as such.")
f.q(f"SELECT s[k => 18446744073709551615], s[k => 4:18446744073709551615], s[k => [9223372036854775813, 3]] FROM {wide} q", raw(sums.sel(k=ids[2])), raw(sums[1:]), raw(sums[[1, 0]]))
f.q(f"SELECT sel(s, k => 18446744073709551614, method => 'nearest'), sel(s, k => 18446744073709551614, method => 'pad'), interp(s, k => 4611686018427387908) FROM {wide} q",
    np.float64(4.0), np.float64(2.0), np.float64(1.5))
f.error(f"SELECT q.s + assign_coords(v, k => [3, -9223372036854775803, -1]) FROM {wide} q, (SELECT rename(arange(3), dim_0 => 'k') AS v) r", "not_aligned")
f.note("They are stored and read.")
f.ok(f"CREATE TENSOR wide AS SELECT s FROM {wide} q")
f.q("SELECT k, s, s[k => 9223372036854775813] AS one FROM wide", k=T(ids, ["k"]), s=T(sums.values, ["k"]), one=raw(sums[1]))
f.rows("SELECT k, s FROM wide WHERE k > 3 ORDER BY k DESC", [[2**64 - 1, 4.0], [2**63 + 5, 2.0]])
f.note("New labels that the type of the old ones lacks.")
f.q("SELECT k, x FROM (SELECT interp(assign_coords(v, k => CAST(k AS int8)), k => [300, 1]) AS x FROM (SELECT assign_coords(rename(arange(3) * 0.5, dim_0 => 'k'), k => [0, 1, 2]) AS v) q) r",
    k=T(np.array([300, 1]), ["k"]), x=T(np.ma.array([0, 0.5], mask=[True, False]), ["k"]))
f.q("SELECT x[k => 0.1] FROM (SELECT interp(assign_coords(rename(arange(3) * 0.5, dim_0 => 'k'), k => arange(3, dtype => 'float32')), k => [0.1, 1]) AS x) r", np.float64(0.05))
f.note("Zeros are equal; in descending order equal labels come from the last one on.")
zero = xr.DataArray(np.arange(4.0), {"k": [0.0, -0.0, -1.0, 0.0]}, ["k"])
zeros = "assign_coords(rename(arange(4.0), dim_0 => 'k'), k => [0.0, -0.0, -1.0, 0.0])"
f.q(f"SELECT values(sortby({zeros}, 'k')), values(sortby({zeros}, 'k', descending => true))", T(zero.sortby("k").values, ["k"]), T(zero.sortby("k", ascending=False).values, ["k"]))
f.note("concat promotes labels as xarray does.")
parts = [xr.DataArray([0.0, 1], {"k": np.array(v, t)}, ["k"]) for v, t in [([1, 2], "i4"), ([3, 2**40], "i8"), ([0.5, 1.5], "f8"), ([0.1, 4], "f4")]]
sqls = [f"assign_coords(rename(arange(2.0), dim_0 => 'k'), k => {v})" for v in ["[1, 2]::int32", "[3, 1099511627776]", "[0.5, 1.5]", "[0.1, 4]::float32"]]
for i, j in [(0, 1), (0, 2), (3, 2), (0, 3)]:
    joined = xr.concat([parts[i], parts[j]], "k")
    f.q(f"SELECT k, x FROM (SELECT concat([{sqls[i]}, {sqls[j]}], axis => 'k') AS x) r", k=T(joined.k.values, ["k"]), x=T(joined.values, ["k"]))
f.error(f"SELECT concat([{sqls[0]}, assign_coords(rename(arange(2.0), dim_0 => 'k'), k => ['a', 'b'])], axis => 'k')", "dtype_mismatch")
f.error("SELECT concat([t2m[:, 0, 0], rename(t2m[0, 0], lon => 'time')], axis => 'time') FROM era5", "dtype_mismatch")
f = era5("shift_named", "shift, diff and cumsum by dimension name: shifted-in cells are NULL.", 1e-12)
w = t2m[0:4, 2]
f.q("shift(t2m[0:4, 2], time => 1), shift(t2m[0:4, 2], time => -2), shift(t2m[0:4, 2], lon => 1, time => 1)", da(w.shift(time=1)), da(w.shift(time=-2)), da(w.shift(lon=1, time=1)))
f.q("shift(t2m[0:3, 2], time => 5), shift(t2m[0:3, 2], time => 0)", da(w[:3].shift(time=5)), da(w[:3]))
f.q("shift(flag[0:5], time => 1)", T(np.ma.concatenate([np.ma.array([0], "i2", mask=True), read(group("cf/air.zarr")["flag"])[:4]]), ["time"]))
f.q("diff(t2m[0:4, 2], axis => 'time'), diff(t2m[0, 0:3], axis => 'lat')", da(w.diff("time")), da(t2m[0, :3].diff("lat")))
f.q("cumsum(precip[0:5, 2], axis => 'time')", da(precip[:5, 2].astype("f8").cumsum("time").astype("f4")))
f.q("t2m[1:4, 2, 1] - shift(t2m[:, 2, 1], time => 1)[1:4]", da((t2m[:, 2, 1] - t2m[:, 2, 1].shift(time=1))[1:4]))
f.q("diff(lat)", T(np.diff(lat.values), ["lat"]))
f.note("Differences of times are those of their microseconds.")
f.q("diff(concat([values(time[0:1]), values(time[0:1] + INTERVAL '1 microsecond'), values(time[0:1] + INTERVAL '3 microseconds')]))", T(np.array([1, 2]) / 1e6, ["time"]))
f.error("shift(t2m, level => 1)", "unknown_dimension")

f = era5("groupby_labels", "groupby over a coordinate: the group dimension takes the place of the grouped one.", 1e-12)
point, one = t2m[:, 2, 1], "t2m[lat => 45, lon => 0.5]"
for op in ["mean", "sum", "min", "max", "var", "std", "count"]:
    f.q(f"groupby({one}, '{op}', by => month(time))", da(getattr(point.groupby("time.month"), op)()))
f.q("groupby(t2m[:, 2:4, 0:2], 'mean', by => year(time))", da(t2m[:, 2:4, :2].groupby("time.year").mean()))
f.q(f"groupby({one}, 'mean', by => hour(time)), groupby({one}, 'count', by => year(time))", da(point.groupby("time.hour").mean()), da(point.groupby("time.year").count()))
f.q("groupby(precip[:, 2, 1], 'max', by => month(time)), groupby(sst[:, 0:2, 0], 'mean', by => year(time))",
    da(precip[:, 2, 1].groupby("time.month").max()), da(air.sst[:, 0:2, 0].groupby("time.year").mean()))
f.q(f"{one} - groupby({one}, 'mean', by => month(time)) AS anomaly", anomaly=T(da(point.groupby("time.month") - point.groupby("time.month").mean()).values, ["time"]))
f.q("mean(groupby(t2m, 'mean', by => month(time)), axis => ['lat', 'lon'])", da(t2m.groupby("time.month").mean().mean(["lat", "lon"])))
f.q("groupby(t2m[time => '2019-03':'2019-05', lat => 45, lon => 0.5], 'mean', by => month(time))", da(point.sel(time=slice("2019-03", "2019-05")).groupby("time.month").mean()))
f.note("Groups without rows vanish; the group dimension has its labels.")
f.q(f"SELECT month, clim FROM (SELECT groupby({one}, 'mean', by => month(time)) AS clim FROM era5)",
    month=T(np.arange(1, 13), ["month"]), clim=da(point.groupby("time.month").mean()))
f.q("month(time[0:8]), year(time[68:72]), hour(time[0:5]), day(time[0:5])", raw(time[:8].dt.month), raw(time[68:72].dt.year), raw(time[:5].dt.hour), raw(time[:5].dt.day))
f.error("groupby(t2m, 'mean', by => month(lat))", "dtype_mismatch")
f.error("groupby(t2m, 'no_such', by => month(time))", "invalid_argument")

f = era5("rechunk", "rechunk changes the grid and nothing else.", 1e-12)
f.q("rechunk(t2m, time => 1, lat => 5, lon => 4)[3:5], rechunk(t2m, time => 140)[::70, 2]", da(t2m[3:5]), da(t2m[::70, 2]))
f.q("mean(rechunk(t2m, time => 7, lat => 2, lon => 1)), sum(rechunk(precip, lon => 1), axis => ['time', 'lat'])", t2m.mean(), T(precip.astype("f8").sum(["time", "lat"]).astype("f4").values, ["lon"]))
f.q("max(rechunk(t2m, time => 1000)), count(rechunk(t2m, time => 3))", t2m.max(), np.int64(t2m.count()))
f.error("rechunk(t2m, time => 0)", "invalid_argument")
f.error("rechunk(t2m, level => 2)", "unknown_dimension")
