"""sql/geoscience: means by level, climatologies and anomalies, other calendars, from xarray."""

import datetime

import numpy as np
import xarray as xr

from .core import DATA, ERA5, EXTERNAL, Script, T, da, group, read
from .labels import air, dataset, t2m

NAME = "air_potential_temperature"
cube = xr.open_zarr(DATA / "colpex.v3.zarr").load()
theta = cube[NAME]
theta8 = theta.astype("f8")
f4 = lambda a: da(a.astype("f4"))

f = Script("geoscience/colpex", "The real cube, Zarr v3 and v2: float32 accumulated in float64.", 1e-12,
           setup=(EXTERNAL.format("colpex", "ZARR", "colpex.v3.zarr"), EXTERNAL.format("colpex2", "ZARR", "colpex.v2.zarr")))
f.source = "colpex"
for source in ("colpex", "colpex2"):
    f.q(f"SELECT mean({NAME}), min({NAME}), max({NAME}), std({NAME}), count({NAME}) FROM {source}", np.float32(theta8.mean()), theta.values.min(), theta.values.max(),
        np.float32(theta8.std()), np.int64(theta.size))
    f.q(f"SELECT mean({NAME}, dtype => 'float64') FROM {source}", theta8.mean())
    f.q(f"SELECT mean({NAME}, axis => ['time', 'grid_latitude', 'grid_longitude']) AS by_level FROM {source}", by_level=f4(theta8.mean(["time", "grid_latitude", "grid_longitude"])))
    f.q(f"SELECT mean({NAME}::DOUBLE, axis => [1, 2, 3]) AS by_time FROM {source}", by_time=da(theta8.mean(["model_level_number", "grid_latitude", "grid_longitude"])))
    f.q(f"SELECT {NAME}[-1, -1, ::41, 80:] FROM {source}", da(theta[-1, -1, ::41, 80:]))
    f.rows(f"SELECT model_level_number, avg({NAME}) FROM {source} GROUP BY model_level_number",
           zip(cube.model_level_number.values, theta8.mean(["time", "grid_latitude", "grid_longitude"]).values))
    f.rows(f"SELECT time, min({NAME}), max({NAME}), count(*) FROM {source} GROUP BY time",
           [(t, theta[k].values.min(), theta[k].values.max(), theta[k].size) for k, t in enumerate(cube.time.values)])
f.q("time, model_level_number, level_height, sigma", time=da(cube.time), model_level_number=da(cube.model_level_number), level_height=da(cube.level_height), sigma=da(cube.sigma))
f.q(f"{NAME}[model_level_number => {cube.model_level_number.values[2]}][0, 0:2, 0:3]", da(theta[0, 2, 0:2, 0:3]))
f.q(f"max(abs({NAME} - mean({NAME}, axis => 'time', keepdims => true)))", np.float32(np.abs(theta8 - theta8.mean("time").astype("f4").astype("f8")).max()))
f.q(f"argmax({NAME}, axis => 'model_level_number')[0, 0, ::20], argmin({NAME})", da(theta.argmax("model_level_number")[0, 0, ::20]), np.int64(theta.values.argmin()))
f.q(f"sum({NAME} > 284), any({NAME} > 290), all({NAME} > 277)", (theta.values > 284).sum(), (theta.values > 290).any(), (theta.values > 277).all())
warm = theta8.where(theta > 284)
f.q(f"mean(where({NAME} > 284, {NAME}, NULL), axis => ['time', 'grid_latitude', 'grid_longitude'])", f4(warm.mean(["time", "grid_latitude", "grid_longitude"])))
f.q(f"std({NAME}, axis => ['grid_latitude', 'grid_longitude'])[:, 0:3]", f4(theta8.std(["grid_latitude", "grid_longitude"])[:, :3]))
f.q(f"mean({NAME}[0:4:3, 5:, 10:73, ::-7], axis => ['grid_latitude', 'grid_longitude'])",
    f4(theta8[0:4:3, 5:, 10:73, ::-7].mean(["grid_latitude", "grid_longitude"])))

f = Script("geoscience/era5_like", "A CF dataset: packing, masks, valid ranges, both Zarr formats give the same.", 1e-12,
           setup=(ERA5, EXTERNAL.format("era5_v3", "ZARR", "cf/air3.zarr")))
air3 = dataset("cf/air3.zarr")
for source, ds in (("era5", air), ("era5_v3", air3)):
    ds8 = ds.astype("f8")
    f.q(f"SELECT mean(t2m), count(t2m), min(t2m), max(t2m), std(t2m) FROM {source}", ds.t2m.mean(), np.int64(ds.t2m.count()), ds.t2m.min(), ds.t2m.max(), ds.t2m.std())
    f.q(f"SELECT mean(t2m, axis => ['time', 'lon']), count(t2m, axis => 'time') FROM {source}", da(ds.t2m.mean(["time", "lon"])), da(ds.t2m.count("time")))
    f.q(f"SELECT mean(precip), sum(precip, axis => ['lat', 'lon'])[0:5] FROM {source}", np.float32(ds8.precip.mean()), f4(ds8.precip.sum(["lat", "lon"])[:5]))
    f.q(f"SELECT rh[0], count(rh), max(rh), mean(rh, axis => 'time') FROM {source}", da(ds.rh[0]), np.int64(ds.rh.count()), ds.rh.max().values, f4(ds8.rh.mean("time")))
    f.q(f"SELECT sst[0], count(sst), mean(sst, axis => 'time') FROM {source}", da(ds.sst[0]), np.int64(ds.sst.count()), f4(ds8.sst.mean("time")))
    f.q(f"SELECT gust[1], count(gust), mean(gust), max(gust, axis => 'time') FROM {source}", da(ds.gust[1]), np.int64(ds.gust.count()), np.float32(ds8.gust.mean()), da(ds.gust.max("time")))
    f.q(f"SELECT orog, flag[0:12], count(flag), sum(flag), max(flag) FROM {source}", orog=da(ds.orog),
        **{"v1": T(read(group("cf/air.zarr")["flag"])[:12], ["time"]), "v2": np.int64(ds.flag.count()), "v3": np.int64(ds.flag.sum()), "v4": np.int16(ds.flag.max())})
    f.q(f"SELECT t2m[0] - orog * 0.0065 AS reduced FROM {source}", reduced=da(ds.t2m[0] - ds.orog * np.float32(0.0065)))
    f.q(f"SELECT t2m[3] - 273.15 AS celsius, (t2m > 300)[3], sum(t2m > 290) FROM {source}", celsius=da(ds.t2m[3] - 273.15),
        **{"v1": T(np.ma.array(ds.t2m[3].values > 300, mask=np.isnan(ds.t2m[3].values)), ["lat", "lon"]), "v2": np.int64((ds.t2m > 290).sum())})
    f.q(f"SELECT time[0:3], time[-1], lat, lon FROM {source}", da(ds.time[:3]), da(ds.time[-1]), lat=da(ds.lat), lon=da(ds.lon))
f.note("decode_cf off: the integers as stored.")
f.ok("CREATE EXTERNAL TABLE packed STORED AS ZARR LOCATION 'tests/data/cf/air3.zarr' OPTIONS ('decode_cf' 'false')")
stored = np.asarray(group("cf/air3.zarr")["t2m"][...])
f.q("SELECT t2m[0], max(t2m), time[0:2] FROM packed", T(stored[0], ["lat", "lon"]), stored.max(), T(np.asarray(group("cf/air3.zarr")["time"][:2]), ["time"]))
f.error("SELECT mean(era5) FROM era5", "ambiguous_name")
f.error("SELECT mean(humidity) FROM era5", "unknown_name")

f = Script("geoscience/climatology", "Climatologies and anomalies by month and year; a group dimension meets its source (rule 5).", 1e-12, setup=(ERA5,))
f.source = "era5"
monthly = t2m.groupby("time.month")
clim = monthly.mean()
f.q("groupby(t2m, 'mean', by => month(time)) AS clim", clim=da(clim))
f.q("groupby(t2m, 'std', by => month(time))[0], groupby(t2m, 'count', by => month(time))[:, 0, 0]", da(monthly.std()[0]), da(monthly.count()[:, 0, 0]))
anomaly = (monthly - clim).transpose("time", "lat", "lon")
f.q("(t2m - groupby(t2m, 'mean', by => month(time)))[0:6] AS anomaly", anomaly=da(anomaly[:6]))
f.q("max(abs(t2m - groupby(t2m, 'mean', by => month(time)))), std(t2m - groupby(t2m, 'mean', by => month(time)), axis => 'time')", np.abs(anomaly).max(), da(anomaly.std("time")))
f.q("groupby(t2m - groupby(t2m, 'mean', by => month(time)), 'mean', by => year(time))[:, 2]", da(anomaly.groupby("time.year").mean()[:, 2]))
standard = ((monthly - clim).groupby("time.month") / monthly.std()).transpose("time", "lat", "lon")
f.q("((t2m - groupby(t2m, 'mean', by => month(time))) / groupby(t2m, 'std', by => month(time)))[100:102] AS standardised", standardised=da(standard[100:102]))
f.q("groupby(precip, 'sum', by => year(time))[:, 1], mean(groupby(precip, 'max', by => month(time)), axis => 'month')[0]",
    f4(air.precip.astype("f8").groupby("time.year").sum()[:, 1]), f4(air.precip.astype("f8").groupby("time.month").max().mean("month")[0]))
f.q("groupby(sst, 'mean', by => month(time))[0:2]", f4(air.sst.astype("f8").groupby("time.month").mean()[:2]))
f.q("max(groupby(t2m, 'mean', by => month(time)), axis => 'month') - min(groupby(t2m, 'mean', by => month(time)), axis => 'month') AS seasonal_range", seasonal_range=da(clim.max("month") - clim.min("month")))
f.rows("SELECT date_part('month', time) AS month, avg(t2m), count(t2m) FROM era5 GROUP BY date_part('month', time)",
       zip(range(1, 13), monthly.mean(...).values, monthly.count(...).values))
f.note("A climatology of subset periods keeps only the months that occur.")
sub = t2m.sel(time=slice("2019-11-10", "2020-01-20"))
f.q("groupby(t2m[time => '2019-11-10':'2020-01-20'], 'mean', by => month(time))[:, 2]", da(sub.groupby("time.month").mean()[:, 2]))

f = Script("geoscience/calendars", "Calendars other than the standard one: noleap and 360_day (rule 14); and time units.", 1e-12,
           setup=(EXTERNAL.format("noleap", "ZARR", "cf/noleap.zarr"), EXTERNAL.format("day360", "ZARR", "cf/day360.zarr"), EXTERNAL.format("units", "ZARR", "cf/units.zarr")))
for name, path in (("noleap", "cf/noleap.zarr"), ("day360", "cf/day360.zarr")):
    ds = xr.open_zarr(DATA / path, consolidated=False).load()
    v, tm = ds.v, ds.time
    f.q(f"SELECT time[0:8], time[-1] FROM {name}", da(tm[:8]), da(tm[-1]))
    f.q(f"SELECT v[0:7], count(v), mean(v, axis => 'time') FROM {name}", da(v[:7]), np.int64(v.count()), da(v.mean("time")))
    f.q(f"SELECT groupby(v, 'mean', by => month(time)), groupby(v, 'count', by => year(time)) FROM {name}", da(v.groupby("time.month").mean()), da(v.groupby("time.year").count()))
    f.q(f"SELECT (v - groupby(v, 'mean', by => month(time)))[0:3] AS anomaly FROM {name}", anomaly=da((v.groupby("time.month") - v.groupby("time.month").mean()).transpose("time", "x")[:3]))
    f.q(f"SELECT v[time => '2000-02'], v[time => '2001-01-01':'2001-02-10', x => 2.0] FROM {name}", da(v.sel(time="2000-02")), da(v.sel(time=slice("2001-01-01", "2001-02-10"), x=2.0)))
    f.q(f"SELECT month(time[0:8]), day(time[0:8]), year(time[35:40]) FROM {name}", da(tm[:8].dt.month), da(tm[:8].dt.day), da(tm[35:40].dt.year))
    f.rows(f"SELECT time, x, v FROM {name} WHERE time >= '2000-02-01' AND time <= '2000-03-01'",
           [(t, x, None if v.sel(time=t, x=x).isnull() else v.sel(time=t, x=x).values[()]) for t in tm.sel(time=slice("2000-02-01", None)).values
            if (t.year, t.month, t.day) <= (2000, 3, 1) for x in ds.x.values])
    f.rows(f"SELECT date_part('month', time) AS m, count(v), min(time) FROM {name} GROUP BY date_part('month', time)",
           [(k, int(g.count()), min(g.time.values)) for k, g in v.groupby("time.month")])
f.note("30 February is a day of 360_day and of no other calendar; 29 February is none of noleap.")
v360 = xr.open_zarr(DATA / "cf/day360.zarr", consolidated=False).load().v
f.q("SELECT v[time => '2000-02-30', x => 1.0] FROM day360", da(v360.sel(time="2000-02-30", x=1.0)))
f.q("SELECT (time + INTERVAL '40 days')[0:3] FROM day360", da(v360.time[:3] + datetime.timedelta(days=40), masked=False))
f.error("SELECT noleap.v + day360.v FROM noleap, day360", "not_aligned: .*of the calendar noleap and .*of the calendar 360_day")
f.error("SELECT v[time => '2000-02-29':'2000-03-05'] FROM noleap", "invalid_label")
f.error("SELECT v[time => '2000-02-31'] FROM day360", "invalid_label")
u = xr.open_zarr(DATA / "cf/units.zarr", consolidated=False).load()
f.q("SELECT ts, tm, td, tms FROM units", ts=da(u.ts), tm=da(u.tm), td=da(u.td), tms=da(u.tms))
f.q("SELECT v_td[td => '2020-03'], v_tm[tm => '1969-12-31'], v_ts[ts => '2000-01-01'] FROM units", da(u.v_td.sel(td="2020-03")), da(u.v_tm.sel(tm="1969-12-31")), da(u.v_ts.sel(ts="2000-01-01")))
