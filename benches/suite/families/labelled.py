"""Plain SQL over labelled cells, against engines of rows and of labelled arrays."""

import numpy as np

from .. import files
from ..workload import Limit, Workload

FROM, TO = "2000-06-01", "2000-08-31"


def workloads(context):
    days, lat, lon = 800, context.side(144), context.side(182)
    shape = (days, lat, lon)
    store = context.data / f"labelled-{lat}-{lon}.zarr"
    parquet = context.data / f"labelled-{lat}-{lon}.parquet"
    size = 4.0 * np.prod(shape)

    def prepare():
        files.cube(store, shape, (50, lat, lon), "zstd")
        files.once(parquet, lambda part: to_parquet(store, part))

    def duckdb(text):
        def make():
            import duckdb

            db = duckdb.connect()
            return lambda: db.execute(text).fetchnumpy()["r"]

        return make

    def xarray(f):
        def make():
            import xarray as xr

            return lambda: f(xr.open_zarr(str(store), chunks=None)["v"]).values.reshape(-1)

        return make

    def polars(f):
        def make():
            import polars as pl

            return lambda: f(pl, pl.scan_parquet(str(parquet))).collect()["r"].to_numpy()

        return make

    part = 92 / days
    between = f"time BETWEEN TIMESTAMP '{FROM}' AND TIMESTAMP '{TO}'"
    yield Workload(
        "avg(v) by lat, lon in three months", f"SELECT lat, lon, avg(v) AS r FROM '{store}' WHERE {between} GROUP BY lat, lon",
        prepare=prepare, limit=Limit("decode zstd", size * part), rtol=1e-5,
        peers={
            "xarray": xarray(lambda v: v.sel(time=slice(FROM, TO)).mean("time")),
            "duckdb, Parquet": duckdb(f"SELECT lat, lon, avg(v) AS r FROM '{parquet}' WHERE {between} GROUP BY lat, lon ORDER BY lat, lon"),
            "polars, Parquet": polars(lambda pl, t: t.filter(pl.col("time").is_between(pl.lit(FROM).str.to_datetime(), pl.lit(TO).str.to_datetime()))
                                      .group_by("lat", "lon").agg(pl.col("v").mean().alias("r")).sort("lat", "lon")),
        },
    )
    yield Workload(
        "avg(v) by lat", f"SELECT lat, avg(v) AS r FROM '{store}' GROUP BY lat",
        prepare=prepare, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={
            "xarray": xarray(lambda v: v.mean(("time", "lon"))),
            "duckdb, Parquet": duckdb(f"SELECT lat, avg(v) AS r FROM '{parquet}' GROUP BY lat ORDER BY lat"),
            "polars, Parquet": polars(lambda pl, t: t.group_by("lat").agg(pl.col("v").mean().alias("r")).sort("lat")),
        },
    )
    weights, zones = context.data / f"weights-{lat}.parquet", context.data / f"zones-{lat}-{lon}.parquet"
    regions = context.data / "regions.parquet"

    def tables():
        prepare()
        files.once(weights, lambda part: weights_of(lat, part))
        files.once(zones, lambda part: zones_of(lat, lon, part))
        files.once(regions, regions_of)

    def with_table(path, keys, f):
        """A DataArray of each column over the keys, as one makes it of a table."""
        def make():
            import pandas as pd
            import xarray as xr

            return lambda: f(xr.open_zarr(str(store), chunks=None)["v"], pd.read_parquet(path).set_index(keys).to_xarray()).values.reshape(-1)

        return make

    join = f"FROM '{{}}' t JOIN '{weights}' w ON t.lat = w.lat"
    yield Workload(
        "sum(t.v * w.w), a table with a row for each lat", f"SELECT sum(t.v * w.w) AS r {join.format(store)}",
        prepare=tables, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={
            "xarray": with_table(weights, "lat", lambda v, w: (v * w.w).sum()),
            "duckdb, Parquet": duckdb(f"SELECT sum(t.v::DOUBLE * w.w) AS r {join.format(parquet)}"),
        },
    )
    join = f"FROM '{{}}' t JOIN '{zones}' z ON t.lat = z.lat AND t.lon = z.lon GROUP BY z.zone ORDER BY z.zone"
    yield Workload(
        "avg(t.v) by zone, a table with a row for each lat and lon", f"SELECT z.zone, avg(t.v) AS r {join.format(store)}",
        prepare=tables, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={
            "xarray": with_table(zones, ["lat", "lon"], lambda v, z: v.groupby(z.zone).mean(...)),
            "duckdb, Parquet": duckdb(f"SELECT z.zone, avg(t.v) AS r {join.format(parquet)}"),
        },
    )

    def slices():
        """A slice for each region, in the order of names."""
        import pandas as pd
        import xarray as xr

        def run():
            v, table = xr.open_zarr(str(store), chunks=None)["v"], pd.read_parquet(regions).sort_values("name")
            return np.array([v.sel(lat=slice(r.lat0, r.lat1), lon=slice(r.lon0, r.lon1)).mean(dtype="f8").values for r in table.itertuples()])

        return run

    join = f"FROM '{{}}' t JOIN '{regions}' r ON t.lat BETWEEN r.lat0 AND r.lat1 AND t.lon BETWEEN r.lon0 AND r.lon1 GROUP BY r.name ORDER BY r.name"
    yield Workload(
        "avg(t.v) of 20 regions, a table of boxes", f"SELECT r.name, avg(t.v) AS r {join.format(store)}",
        prepare=tables, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={"xarray, slices": slices, "duckdb, Parquet": duckdb(f"SELECT r.name, avg(t.v) AS r {join.format(parquet)}")},
    )
    yield Workload(
        "avg(v) by month", f"SELECT date_part('month', time) AS m, avg(v) AS r FROM '{store}' GROUP BY m ORDER BY m",
        prepare=prepare, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={
            "xarray": xarray(lambda v: v.groupby("time.month").mean(("time", "lat", "lon"))),
            "duckdb, Parquet": duckdb(f"SELECT date_part('month', time) AS m, avg(v) AS r FROM '{parquet}' GROUP BY m ORDER BY m"),
            "polars, Parquet": polars(lambda pl, t: t.group_by(pl.col("time").dt.month().alias("m")).agg(pl.col("v").mean().alias("r")).sort("m")),
        },
    )
    yield Workload(
        "count and max of v > 290 by lat", f"SELECT lat, count(*) AS n, max(v) AS r FROM '{store}' WHERE v > 290 GROUP BY lat",
        prepare=prepare, limit=Limit("decode zstd", size), rtol=1e-6,
        peers={
            "duckdb, Parquet": duckdb(f"SELECT lat, count(*) AS n, max(v) AS r FROM '{parquet}' WHERE v > 290 GROUP BY lat ORDER BY lat"),
            "polars, Parquet": polars(lambda pl, t: t.filter(pl.col("v") > 290).group_by("lat").agg(pl.len().alias("n"), pl.col("v").max().alias("r")).sort("lat")),
        },
    )
    window = "avg(v) OVER (PARTITION BY lat, lon ORDER BY time ROWS BETWEEN 6 PRECEDING AND CURRENT ROW)"
    yield Workload(
        "max of a 7-day window by lat", f"SELECT lat, max(w) AS r FROM (SELECT lat, {window} AS w FROM '{store}') AS q GROUP BY lat",
        prepare=prepare, limit=Limit("decode zstd", size), rtol=1e-5,
        peers={
            "duckdb, Parquet": duckdb(f"SELECT lat, max(w) AS r FROM (SELECT lat, {window} AS w FROM '{parquet}') GROUP BY lat ORDER BY lat"),
            "xarray": xarray(lambda v: v.rolling(time=7, min_periods=1).mean().max(("time", "lon"))),
        },
    )


def to_parquet(store, part):
    """The same cells as rows, in dimension order."""
    import polars
    import xarray as xr

    v = xr.open_zarr(str(store), chunks=None)["v"]
    t, y, x = v.shape
    days = v["time"].values.astype("datetime64[us]")
    frame = polars.DataFrame(
        {
            "time": np.repeat(days, y * x),
            "lat": np.tile(np.repeat(v["lat"].values, x), t),
            "lon": np.tile(v["lon"].values, t * y),
            "v": v.values.reshape(-1),
        }
    )
    frame.write_parquet(part, compression="zstd")


def weights_of(lat, path):
    import pandas as pd

    degrees = np.linspace(-90, 90, lat)
    pd.DataFrame({"lat": degrees, "w": np.cos(np.deg2rad(degrees))}).to_parquet(path)


def zones_of(lat, lon, path):
    import pandas as pd

    y, x = np.meshgrid(np.linspace(-90, 90, lat), np.linspace(0, 360, lon, endpoint=False), indexing="ij")
    zone = (np.arange(lat)[:, None] // 12 * 7 + np.arange(lon) // 20) % 40
    pd.DataFrame({"lat": y.ravel(), "lon": x.ravel(), "zone": zone.ravel().astype(np.int32)}).to_parquet(path)


def regions_of(path):
    """20 boxes of 24 by 40 degrees, some of which overlap."""
    import pandas as pd

    n = np.arange(20)
    south, west = -80.0 + n * 37 % 130, n * 61.0 % 310
    pd.DataFrame({"name": [f"region {k:02}" for k in n], "lat0": south, "lat1": south + 24, "lon0": west, "lon1": west + 40}).to_parquet(path)
