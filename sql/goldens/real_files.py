"""sql/real: everyday questions to stores as xarray writes them (tests/data/make_real.py), from xarray and pandas.

Each store is asked the same questions, with labels of its own.
"""

import re
from types import SimpleNamespace

import cftime
import numpy as np
import pandas as pd
import xarray as xr

from .core import DATA, Script, T, group, read


def store(name, variable, y, x, small, tolerance, **own):
    """A store, decoded by xarray, but for the variable: `read` has packed cells in float64, as Tessera has them."""
    path = DATA / f"real/{name}.zarr"
    ds = xr.open_zarr(path, consolidated=False, decode_timedelta=False).load()
    cells = read(group(f"real/{name}.zarr")[variable])
    v = ds[variable].copy(data=np.ma.filled(cells.astype("f8"), np.nan))
    orog = xr.open_zarr(DATA / f"real/{name}_static.zarr", consolidated=False).load().orog
    np.testing.assert_allclose(v.values, ds[variable].values, rtol=1e-6)  # as xarray has them
    frame = v.to_dataframe(name="v", dim_order=["time", y, x]).reset_index()
    return SimpleNamespace(name=name, variable=variable, y=y, x=x, small=small, tolerance=tolerance, ds=ds, v=v, orog=orog, frame=frame, **own)


STORES = [
    # Latitudes descend: slices by label go with them.
    store("era5", "t2m", "latitude", "longitude", True, 1e-6, month="2019-07", box=(55, 40, 45, 180), near=(51.4, 91.0), point=(50, 90), instant="2019-07-05", span=("2020-01-01", "2020-02-29"), warm=295.0, edges=(250.01, 310.01), freq="MS"),
    store("eobs", "tg", "latitude", "longitude", False, 1e-12, month="2019-12", box=(52.3, 52.5, 4.3, 4.6), near=(52.43, 4.41), point=(52.3, 4.4), instant="2019-12-24", span=("2020-01-01", "2020-01-19T12"), warm=6.0, edges=(-20.005, 20.005), freq="MS"),
    store("cmip", "tas", "lat", "lon", True, 1e-6, month="2001-02", box=(-50, 20, 60, 250), near=(44.0, 93.0), point=(45, 112.5), instant="2001-02-16", span=("2001-01-01", "2001-06-30"), warm=300.0, edges=(240.01, 350.01), freq="QS"),
    store("cesm", "TS", "lat", "lon", False, 1e-12, month="2004-02", box=(-40, 40, 70, 220), near=(10.0, 100.0), point=(12, 72), instant="2004-02-15", span=("2004-01-01", "2004-06-30"), warm=300.0, edges=(230.01, 350.01), freq="QS"),
    store("gridded", "t", "lat", "lon", False, 1e-12, month="2020-07", box=(36, 48, -5, 10), near=(51.5, -0.1), point=(48, 0), instant="2020-07-01", span=("2020-02-01", "2020-03-31"), warm=295.0, edges=(240.005, 330.005), freq="MS"),
]


class Questions:
    """The script of a store: each question with a note of what is asked."""

    def __init__(self, s):
        self.s = s
        self.script = Script(f"real/{s.name}", f"Everyday questions to {s.name}.zarr.", s.tolerance)
        self.asked = 0

    def to(self, key):
        self.asked += 1
        self.script.note(key)
        return self.script

    def q(self, key, sql, *values, **named):
        self.to(key).q(self.text(sql), *values, **named)

    def rows(self, key, sql, rows):
        self.to(key).rows(self.text(sql), rows)

    def text(self, sql):
        s = self.s
        words = {"FILE": f"'tests/data/real/{s.name}.zarr'", "STATIC": f"'tests/data/real/{s.name}_static.zarr'", "V": s.variable, "LAT": s.y, "LON": s.x}
        return re.sub(r"\b(FILE|STATIC|V|LAT|LON)\b", lambda hit: words[hit[0]], sql)


def f_of(s):
    """A result of the variable's type; cells that are missing are masked."""
    def of(a, dtype=None):
        values = np.asarray(a.values, "f8")
        values = values.astype(dtype or ("f4" if s.small else "f8"))
        return T(np.ma.masked_invalid(values) if np.isnan(values).any() else values, a.dims)
    return of


def over_time(cells, v):
    """A result over time; where no step has a value it is missing."""
    hidden = v.isnull().all("time").values
    return T(np.ma.array(cells.values, mask=hidden) if hidden.any() else cells.values, cells.dims)


none = lambda v: None if v != v else v
for s in STORES:
    ask, of, v, frame, y, x = Questions(s), f_of(s), s.v, s.frame, s.y, s.x
    a, b, c, d = s.box
    when = slice(*s.span)
    wide = "::float64" if s.small else ""
    inside = v.sel({y: slice(a, b), x: slice(c, d)}) if s.name != "eobs" else v.sel({y: slice(np.float32(a), np.float32(b)), x: slice(np.float32(c), np.float32(d))})
    point = v.sel({y: s.point[0], x: s.point[1]}, method="nearest")

    # ------------------------------------------------------------ whole tensors
    ask.q("What is in a month, in a box?", f"SELECT V[time => '{s.month}', LAT => {a}:{b}, LON => {c}:{d}] FROM FILE", of(inside.sel(time=s.month)))
    ask.q("The last step, at the first longitude.", "SELECT isel(V, time => -1, LON => 0) FROM FILE", of(v.isel({"time": -1, x: 0})))
    ask.q("The nearest point's series.", f"SELECT sel(V, LAT => {s.near[0]}, LON => {s.near[1]}, method => 'nearest')[0:6] FROM FILE", of(v.sel({y: s.near[0], x: s.near[1]}, method="nearest")[:6]))
    ask.q("One point by its labels.", f"SELECT V[LAT => {s.point[0]}, LON => {s.point[1]}][0:6] FROM FILE", of(point[:6]))
    ask.q("A day by its date.", f"SELECT V[time => '{s.instant}', LAT => {s.point[0]}] FROM FILE", of(v.sel(time=s.instant).sel({y: s.point[0]}, method="nearest")))
    ask.q("The mean over time.", "SELECT mean(V, axis => 'time') FROM FILE", of(v.mean("time")))
    ask.q("The spread over time.", "SELECT std(V, axis => 'time') FROM FILE", of(v.std("time")))
    weights = np.cos(np.radians(v[y].astype("f8")))
    ask.q("The area's mean series, weighted.", f"SELECT average(V{wide}, axis => ['LAT', 'LON'], weights => cos(radians(LAT::float64)))[0:8] FROM FILE",
          of(v.weighted(weights).mean([y, x])[:8], "f8"))
    clim = v.groupby("time.month").mean()
    ask.q("The climatology by month.", "SELECT groupby(V, 'mean', by => month(time)) FROM FILE", of(clim))
    anomaly = (v.groupby("time.month") - clim).transpose("time", y, x)
    if s.small:
        clim4 = clim.astype("f4").astype("f8")
        anomaly = (v.groupby("time.month") - clim4).transpose("time", y, x)
    ask.q("Departures from it.", "SELECT (V - groupby(V, 'mean', by => month(time)))[0:2] FROM FILE", of(anomaly[:2]))
    ask.q("Means by month or quarter.", f"SELECT resample(V, 'mean', time => '{s.freq}')[:, 0] FROM FILE", of(v.resample(time=s.freq).mean()[:, 0]))
    seasons = v.time.dt.season.values
    present = [k for k, name in enumerate(("DJF", "MAM", "JJA", "SON")) if (seasons == name).any()]
    by_season = xr.concat([v.isel(time=seasons == ("DJF", "MAM", "JJA", "SON")[k]).mean("time") for k in present], "season")
    ask.q("Means by season.", "SELECT groupby(V, 'mean', by => season(time)) FROM FILE", of(by_season))
    ask.q("Running means of five steps.", "SELECT rolling(V, 'mean', time => 5, center => true, min_periods => 1)[0:4, 0] FROM FILE",
          of(v.rolling(time=5, center=True, min_periods=1).mean()[:4, 0]))
    ask.q("The highest value, and when it was.", "SELECT max(V, axis => 'time') AS most, argmax(V, axis => 'time') AS step FROM FILE",
          most=of(v.max("time")), step=over_time(v.fillna(-1e9).argmax("time"), v))
    ask.q("Quantiles over time.", "SELECT quantile(V, [0.1, 0.5, 0.9], axis => 'time')[:, 0] FROM FILE", of(v.quantile([0.1, 0.5, 0.9], "time")[:, 0]))
    low, high = s.edges
    ask.q("A histogram.", f"SELECT histogram(V, bins => 12, range => [{low}, {high}]).counts FROM FILE", counts=T(np.histogram(v.values[~np.isnan(v.values)], 12, (low, high))[0].astype("i8")))
    ask.q("How many cells are missing?", "SELECT sum(isnull(V)), count(V), count(V, axis => 'time') FROM FILE", np.int64(v.isnull().sum()), np.int64(v.count()), T(v.count("time").values, (y, x)))
    ask.q("How many steps are warmer?", f"SELECT sum(V > {s.warm}, axis => 'time') FROM FILE",
          over_time((v > s.warm).sum("time"), v))
    ask.q("Changes from step to step.", "SELECT diff(V, axis => 'time')[0:2] FROM FILE", of(v.diff("time")[:2]))
    if not v.isnull().any():
        ask.q("How do longitudes go together?", "SELECT corrcoef(V[:, 1]::float64, rowvar => false)[0] FROM FILE", np.corrcoef(v[:, 1].values, rowvar=False)[0])
        ask.q("The modes of variation.", "SELECT svd(V[:, 1]::float64 - mean(V[:, 1]::float64, axis => 'time')).s AS s FROM FILE",
              s=np.linalg.svd((v[:, 1] - v[:, 1].mean("time")).values, compute_uv=False))
    ask.q("The heights beside it.", "SELECT mean(V, axis => 'time') - orog * 0.0065 AS reduced FROM FILE, STATIC",
          reduced=of(v.mean("time").astype("f4" if s.small else "f8").astype("f8") - (s.orog.values.astype("f4") * np.float32(0.0065)).astype("f8")))

    # ------------------------------------------------------------ a kept tensor
    kept = ask.to("A tensor that is kept and read again.")
    kept.ok(ask.text("CREATE TENSOR clim AS SELECT groupby(V, 'mean', by => month(time)) AS m FROM FILE"))
    kept.q("SELECT m[0] FROM clim", of(clim[0]))
    number = int(s.month[-2:])
    kept.q(ask.text(f"SELECT V[time => '{s.month}'][0:1] - m[month => {number}] AS departure FROM FILE, clim"),
           departure=of(v.sel(time=s.month)[:1] - (clim.astype("f4").astype("f8") if s.small else clim).sel(month=number, drop=True)))
    kept.ok("DROP TENSOR clim")

    # ------------------------------------------------------------ cells
    frame = frame.assign(month=[t.month for t in frame.time], year=[t.year for t in frame.time])
    kind = np.float32 if s.small else np.float64
    value = lambda w: None if w != w else kind(w)
    times = pd.Index(v.time.sel(time=when).values)
    part = frame[frame.time.isin(list(times))]
    low_y, high_y = sorted((a, b))
    near = 1e-4 if s.name == "eobs" else 0.0  # float32 labels beside decimals
    in_box = lambda g: g[(g[y] >= low_y - near) & (g[y] <= high_y + near) & (g[x] >= c - near) & (g[x] <= d + near)]
    at = lambda g: g[(np.abs(g[y] - s.point[0]) <= 1e-4) & (np.abs(g[x] - s.point[1]) <= 1e-4)]
    first_times = list(v.time.sel(time=s.month).values)
    one = frame[frame.time == first_times[0]]
    moment = s.ds.time.sel(time=s.month).values[0]
    iso = moment.isoformat() if isinstance(moment, cftime.datetime) else str(moment)[:19]
    ask.rows("Rows of a box at a time.", f"SELECT LAT, LON, V FROM FILE WHERE time = '{iso}' AND LAT BETWEEN {low_y} AND {high_y} AND LON BETWEEN {c} AND {d}",
             [(p, q, value(w)) for p, q, w in zip(in_box(one)[y].values, in_box(one)[x].values, in_box(one).v.values)])
    ask.rows("A point by equal labels.", f"SELECT time, V FROM FILE WHERE LAT = {s.point[0]} AND LON = {s.point[1]} AND time >= '{s.span[0]}' AND time < '{s.span[1]}'",
             [(t, value(w)) for t, w in zip(at(part).time, at(part).v)])
    pair = sorted({float(np.round(v[y].values[k], 4)) for k in (0, 2)})
    ask.rows("Some of the latitudes.", f"SELECT LAT, count(V), avg(V) FROM FILE WHERE LAT IN ({', '.join(str(p) for p in pair)}) GROUP BY LAT",
             [(v[y].values[k], int(v.isel({y: k}).count()), none(float(v.isel({y: k}).mean()))) for k in (0, 2)])
    ask.rows("Averages by latitude.", "SELECT LAT, avg(V), min(V), max(V), count(V) FROM FILE GROUP BY LAT",
             [(p, float(v.isel({y: k}).mean()), value(float(v.isel({y: k}).min())), value(float(v.isel({y: k}).max())), int(v.isel({y: k}).count())) for k, p in enumerate(v[y].values)])
    ask.rows("Averages by month.", "SELECT date_part('month', time) AS month, avg(V), count(V) FROM FILE GROUP BY date_part('month', time) ORDER BY month",
             [(k, float(g.v.mean()), int(g.v.count())) for k, g in frame.groupby("month")])
    ask.rows("Averages by year and month.", "SELECT date_part('year', time) AS year, date_part('month', time) AS month, avg(V) FROM FILE GROUP BY date_part('year', time), date_part('month', time) ORDER BY year, month LIMIT 5",
             [(*k, float(g.v.mean())) for k, g in frame.groupby(["year", "month"])][:5])
    box = in_box(part)
    ask.rows("The mean of a box over some time.", f"SELECT avg(V), count(V), min(V), max(V) FROM FILE WHERE LAT BETWEEN {low_y} AND {high_y} AND LON BETWEEN {c} AND {d} AND time >= '{s.span[0]}' AND time < '{s.span[1]}' HAVING count(V) > 0",
             [(float(box.v.mean()), int(box.v.count()), value(box.v.min()), value(box.v.max()))])
    top = frame.dropna().sort_values(["v", "time", y, x], ascending=[False, True, True, True], kind="stable")[:3]
    ask.rows("The hottest cells.", "SELECT time, LAT, LON, V FROM FILE ORDER BY V DESC NULLS LAST, time, LAT, LON LIMIT 3",
             list(zip(top.time, top[y].values, top[x].values, [value(w) for w in top.v.values])))
    hot = frame[frame.v > s.warm]
    ask.rows("Steps with a warm cell, by month.", f"SELECT date_part('month', time) AS month, count(*), min(V) FROM FILE WHERE V > {s.warm} GROUP BY date_part('month', time) ORDER BY month",
             [(k, len(g), value(g.v.min())) for k, g in hot.groupby("month")])
    ask.rows("Cells, and cells that count.", "SELECT count(*), count(V), count(*) - count(V) FROM FILE", [(len(frame), int(frame.v.count()), int(frame.v.isna().sum()))])
    ask.rows("Cells without a value.", "SELECT count(*) FROM FILE WHERE V IS NULL", [(int(frame.v.isna().sum()),)])
    joined = frame.assign(o=np.tile(s.orog.values.ravel(), v.sizes["time"]).astype("f8"))
    ask.rows("Two files by their labels.", "SELECT e.LAT, avg(e.V), max(g.orog), sum(e.V * g.orog) / sum(g.orog) FROM FILE e JOIN STATIC g ON e.LAT = g.LAT AND e.LON = g.LON WHERE e.V IS NOT NULL GROUP BY e.LAT",
             [(k, float(r.v.mean()), np.float32(r.o.max()), float((r.v * r.o).sum() / r.o.sum())) for k, r in ((k, joined[joined[y] == k].dropna()) for k in v[y].values)])
    high_ground = joined[(joined.o > 500)].dropna()
    ask.rows("Only high ground, USING.", "SELECT avg(V), count(*) FROM FILE JOIN STATIC USING (LAT, LON) WHERE orog > 500 AND V IS NOT NULL", [(float(high_ground.v.mean()), len(high_ground))])
    series = at(frame).v.reset_index(drop=True)
    ask.rows("The step before, and a running mean.", f"SELECT time, V - lag(V) OVER (ORDER BY time), avg(V) OVER (ORDER BY time ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM FILE WHERE LAT = {s.point[0]} AND LON = {s.point[1]} ORDER BY time LIMIT 5",
             [(t, value(d_), float(m)) for t, d_, m in list(zip(at(frame).time, series.diff(), series.rolling(3, min_periods=1).mean()))[:5]])
    most = v.max("time")
    ask.q("Departures from rows by label.", "SELECT max(V, axis => 'time') - tensor(SELECT LAT, max(V) AS m FROM FILE GROUP BY LAT) AS below FROM FILE", below=of(most - most.max(x)))
    ask.q("Brackets keep the order of labels.", "SELECT [LAT], max(V) AS m FROM FILE GROUP BY LAT", m=of(most.max(x)))
    if "time_bnds" in s.ds:
        ask.q("When do months begin and end?", "SELECT time_bnds[0:2] FROM FILE", T(s.ds.time_bnds[:2].values, s.ds.time_bnds.dims))
    if "gw" in s.ds:
        ask.q("The mean weighted by latitude.", "SELECT average(V, axis => ['LAT', 'LON'], weights => gw)[0:8] FROM FILE", of(v.weighted(s.ds.gw).mean([y, x])[:8]))
        ask.rows("The weights of the latitudes.", "SELECT sum(gw) FROM FILE WHERE LAT > -50", [(float(s.ds.gw[s.ds.lat > -50].sum()),)])
        continue
    beside = [s.ds.height.values[()]] if "height" in s.ds.coords else []
    ask.rows("All there is, first rows.", "SELECT * FROM FILE LIMIT 2",
             [(frame.time.values[k], frame[y].values[k], frame[x].values[k], value(frame.v.values[k]), *beside) for k in range(2)])
