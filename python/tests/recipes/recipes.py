"""Everyday work with labelled arrays, in SQL and in xarray side by side.

The parameters of each function are the relations of its SQL; `data.inputs` makes them. A second SQL text is the same
question asked with the clauses of plain SQL.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr

RECIPES: list["Recipe"] = []


@dataclass(frozen=True)
class Recipe:
    """One question: texts in SQL and the function with the same answer in xarray."""

    name: str
    texts: tuple[str, ...]
    xarray: Callable
    relations: tuple[str, ...]
    # The answer is written to a Zarr store.
    stored: bool = False


def recipe(*texts, stored=False):
    """Registers the function under its name."""

    def register(function):
        relations = tuple(inspect.signature(function).parameters)
        RECIPES.append(Recipe(function.__name__, texts, function, relations, stored))
        return function

    return register


@recipe(
    "SELECT groupby(t2m, 'mean', by => month(time)) AS t2m FROM ds",
    """
    SELECT [month], [lat], [lon], avg(t2m) AS t2m
    FROM (SELECT *, date_part('month', time) AS month FROM ds)
    GROUP BY month, lat, lon
    """,
)
def climatology(ds):
    return ds.t2m.groupby("time.month").mean("time")


@recipe("SELECT t2m - groupby(t2m, 'mean', by => month(time)) AS anomaly FROM ds")
def anomaly(ds):
    months = ds.t2m.groupby("time.month")
    return (months - months.mean("time")).drop_vars("month")


@recipe(
    """
    SELECT average(sst, axis => ['lat', 'lon'], weights => cos(radians(lat)), skipna => true) AS sst
    FROM ds
    """
)
def area_weighted_mean(ds):
    return ds.sst.weighted(np.cos(np.radians(ds.lat))).mean(("lat", "lon"))


@recipe("SELECT resample(precip, 'sum', time => '1 month', skipna => true) AS precip FROM ds")
def resample(ds):
    return ds.precip.resample(time="MS").sum()


@recipe(
    "SELECT rolling(t2m, 'mean', time => 7, center => true, min_periods => 1) AS t2m FROM ds",
    """
    SELECT [time], [lat], [lon],
           avg(t2m) OVER (PARTITION BY lat, lon ORDER BY time ROWS BETWEEN 3 PRECEDING AND 3 FOLLOWING) AS t2m
    FROM ds
    """,
)
def rolling(ds):
    return ds.t2m.rolling(time=7, center=True, min_periods=1).mean()


@recipe("SELECT interp(t2m, lat => linspace(60, 30, 31), lon => linspace(5, 50, 46)) AS t2m FROM ds")
def interp(ds):
    return ds.t2m.interp(lat=np.linspace(60, 30, 31), lon=np.linspace(5, 50, 46))


@recipe("SELECT t2m[lat => 60:30, lon => 330:30] AS t2m FROM ds")
def box_across_0(ds):
    europe = ds.t2m.sel(lat=slice(60, 30))
    return xr.concat([europe.sel(lon=slice(330, 360)), europe.sel(lon=slice(0, 30))], "lon")


@recipe("SELECT quantile(t2m, [0.05, 0.5, 0.95], axis => 'time') AS t2m FROM ds")
def quantile_map(ds):
    return ds.t2m.quantile([0.05, 0.5, 0.95], "time")


@recipe(
    """
    WITH x AS (SELECT t2m - mean(t2m, axis => 'time') AS t, nino - mean(nino) AS n FROM ds, nino)
    SELECT mean(t * n, axis => 'time') / (std(t, axis => 'time') * std(n)) AS r FROM x
    """,
    """
    SELECT [lat], [lon], corr(ds.t2m, nino.nino) AS r
    FROM ds JOIN nino USING (time)
    GROUP BY lat, lon
    """,
)
def correlation_map(ds, nino):
    return xr.corr(ds.t2m, nino, "time")


@recipe(
    """
    WITH x AS (SELECT (t2m - mean(t2m, axis => 'time')) * sqrt(cos(radians(lat))) AS t FROM ds),
         f AS (SELECT svd(reshape(t, [count(time), -1], dims => ['time', 'place']), k => 3) AS svd FROM x),
         modes AS (SELECT rename(svd.u, dim_1 => 'mode') AS u, rename(svd.s, dim_0 => 'mode') AS s FROM f)
    SELECT u, square(s) / sum(square(t)) AS explained, tensordot(u, t, axes => [['time'], ['time']]) AS pattern
    FROM x, modes
    """
)
def eof_by_svd(ds):
    t = (ds.t2m - ds.t2m.mean("time")) * np.sqrt(np.cos(np.radians(ds.lat)))
    places = t.stack(place=("lat", "lon"))
    u, s, vh = np.linalg.svd(places.values, full_matrices=False)
    u, s, vh = u[:, :3], s[:3], vh[:3]
    # Either sign is right: as in Tessera, the largest cell of a vector of the shorter side is positive.
    short = u if places.sizes["time"] < places.sizes["place"] else vh.T
    sign = np.sign(short[np.abs(short).argmax(0), range(3)])
    pattern = (sign * s)[:, None] * vh
    return xr.Dataset(
        {
            "u": (("time", "mode"), sign * u),
            "explained": ("mode", s**2 / (t.values**2).sum()),
            "pattern": (("mode", "lat", "lon"), pattern.reshape(3, *t.shape[1:])),
        },
        coords={"lat": t.lat, "lon": t.lon},
    )


@recipe(
    """
    WITH h AS (SELECT t2m > quantile(t2m, 0.9, axis => 'time', method => 'lower') AS hot FROM ds),
         d AS (SELECT hot, cumsum(hot, axis => 'time') AS days FROM h),
         r AS (SELECT days - cummax(where(hot, 0, days), axis => 'time') AS run FROM d)
    SELECT max(run, axis => 'time') AS longest, sum(run = 3, axis => 'time') AS waves FROM r
    """
)
def heat_wave_runs(ds):
    """The longest run of hot days, and the number of runs of at least three.

    The threshold is the temperature of a day ('lower'): one between two days is rounded to float32 by NumPy and
    Tessera, and not by xarray.
    """
    hot = ds.t2m > ds.t2m.quantile(0.9, "time", method="lower", skipna=False).drop_vars("quantile")
    days = hot.cumsum("time")
    run = days - days.where(~hot).ffill("time").fillna(0)
    return xr.Dataset({"longest": run.max("time"), "waves": (run == 3).sum("time")})


@recipe(
    """
    WITH x AS (SELECT t2m - mean(t2m, axis => 'time') AS t, epoch(time) - mean(epoch(time)) AS s FROM ds)
    SELECT t - s * sum(t * s, axis => 'time') / sum(s * s) AS t2m FROM x
    """
)
def detrend(ds):
    line = ds.t2m.polyfit("time", 1)
    return ds.t2m - xr.polyval(ds.time, line.polyfit_coefficients)


@recipe(
    "SELECT t2m - shift(t2m, time => 1) AS change FROM ds",
    """
    SELECT [time], [lat], [lon], t2m - lag(t2m) OVER (PARTITION BY lat, lon ORDER BY time) AS change
    FROM ds
    """,
)
def lag(ds):
    return ds.t2m - ds.t2m.shift(time=1)


@recipe("SELECT coarsen(t2m, 'mean', lat => 4, lon => 4, boundary => 'trim') AS t2m FROM ds")
def coarsen(ds):
    return ds.t2m.coarsen(lat=4, lon=4, boundary="trim").mean()


@recipe(
    """
    SELECT [season], [lat], [lon], avg(t2m) AS t2m
    FROM (
        SELECT *, CASE season(time) WHEN 0 THEN 'DJF' WHEN 1 THEN 'MAM' WHEN 2 THEN 'JJA' ELSE 'SON' END AS season
        FROM ds
    )
    GROUP BY season, lat, lon
    """
)
def groupby_season(ds):
    return ds.t2m.groupby("time.season").mean("time")


@recipe("SELECT where(t2m > 273.15 AND land, t2m, NULL) AS t2m FROM ds")
def where_mask(ds):
    return ds.t2m.where((ds.t2m > 273.15) & ds.land)


@recipe("SELECT concat([first.t2m, second.t2m], axis => 'time') AS t2m FROM first, second")
def concat_of_files(first, second):
    return xr.concat([first.t2m, second.t2m], "time")


@recipe(
    """
    SELECT [time], [lat], [lon], t2m, precip
    FROM temperature JOIN rain USING (time, lat, lon)
    """
)
def merge(temperature, rain):
    """The days of both."""
    return xr.merge([temperature, rain], join="inner")


@recipe("SELECT trapz(q, level, axis => 'level') / 9.80665 AS water FROM levels")
def vertical_integral(levels):
    return levels.q.integrate("level") / 9.80665


@recipe("SELECT t2m, sst, precip, land FROM ds", stored=True)
def to_zarr_round_trip(ds):
    return ds
