"""Work along time: windows, groups by the calendar, differences, running sums. The cube is in memory, float32."""

import numpy as np

from .. import files
from ..cells import array, empty, sql, temp
from ..peers import bound, everywhere, jit, loops
from ..workload import Limit, Workload


def workloads(context):
    shape = (context.side(3652, 3), context.side(120, 3), context.side(240, 3))
    path = context.data / f"days-{shape[0]}-{shape[1]}-{shape[2]}.zarr"
    cells = float(np.prod(shape))
    held = {}

    def prepare():
        files.cube(path, shape, (max(shape[0] // 10, 1), shape[1], shape[2]), "zstd")

    def cube():
        if "cube" not in held:
            import zarr

            held["cube"] = empty(shape, "float32")
            held["cube"][:] = zarr.open_group(str(path), mode="r")["v"][:]
        return held["cube"]

    def flat():
        return cube().reshape(shape[0], -1)

    def months():
        days = np.datetime64("2000-01-01") + np.arange(shape[0])
        return days.astype("datetime64[M]").astype(int) % 12

    def labelled():
        import xarray as xr

        days = np.datetime64("2000-01-01", "ns") + np.arange(shape[0]) * np.timedelta64(86400 * 10**9, "ns")
        return xr.DataArray(cube(), dims=("time", "lat", "lon"), coords={"time": days})

    groups = min(12, len(set(months())))
    setup = f"CREATE TEMP TENSOR c AS SELECT v FROM '{path}';\n"
    common = dict(setup=setup, prepare=prepare, rtol=1e-4)
    through = Limit("memory", 4 * cells, 4 * cells)

    def windows(width):
        def numpy():
            return bound(rolled, flat(), width)

        def jax_mean(jnp, x):
            s = x[: x.shape[0] - width + 1]
            for k in range(1, width):
                s = s + x[k : x.shape[0] - width + 1 + k]
            return jnp.concatenate([jnp.full((width - 1, x.shape[1]), jnp.nan, "float32"), s / width])

        def dask():
            import dask.array as da

            x = da.from_array(flat(), chunks=(shape[0], max(flat().shape[1] // 8, 1)))
            return lambda: x.map_blocks(rolled, width, dtype=np.float32).compute()

        return {
            "numpy": numpy,
            "jax": lambda: jit(jax_mean, flat()),
            "numba, out=": lambda: bound(loops().rolling_mean, flat(), width, empty(flat().shape, "float32")),
            "dask": dask,
        }

    for width in (7, 30):
        yield Workload(
            f"rolling mean of {width} along time", f"SELECT coalesce(rolling(c, 'mean', time => {width}), nan()) AS r FROM c",
            **common, held=8 * cells, limit=through, peers=windows(width),
        )

    def jax_max(jnp, x):
        s = x[: x.shape[0] - 6]
        for k in range(1, 7):
            s = jnp.maximum(s, x[k : x.shape[0] - 6 + k])
        return jnp.concatenate([jnp.full((6, x.shape[1]), jnp.nan, "float32"), s])

    def rolling_max():
        from numpy.lib.stride_tricks import sliding_window_view

        x = flat()

        def work():
            out = np.full(x.shape, np.nan, np.float32)
            out[6:] = sliding_window_view(x, 7, axis=0).max(-1)
            return out

        return work

    yield Workload(
        "rolling max of 7 along time", "SELECT coalesce(rolling(c, 'max', time => 7), nan()) AS r FROM c",
        **common, held=8 * cells, limit=through, peers={"numpy": rolling_max, "jax": lambda: jit(jax_max, flat())},
    )

    def monthly(jnp, x, m):
        import jax

        return jax.ops.segment_sum(x, m, groups) / jnp.bincount(m, length=groups)[:, None].astype("float32")

    def by_slices(jnp, x):
        m = months()
        return jnp.stack([x[np.flatnonzero(m == g)].mean(0) for g in range(groups)])

    def dask_month():
        import dask.array as da

        x, m = da.from_array(flat(), chunks=(shape[0], max(flat().shape[1] // 8, 1)), name=False), months()
        return lambda: da.stack([x[m == g].mean(0) for g in range(groups)]).compute()

    yield Workload(
        "mean by calendar month", "SELECT groupby(c, 'mean', by => month(time)) AS r FROM c",
        **common, held=4 * cells, limit=Limit("memory", 4 * cells),
        peers={
            "numpy": lambda: bound(lambda x: np.stack([x[months() == g].mean(0) for g in range(groups)]), flat()),
            "numba": lambda: bound(loops().group_mean, flat(), months(), groups),
            "jax": lambda: jit(by_slices, flat()),
            "jax, segment_sum": lambda: jit(monthly, flat(), months()),
            "xarray": lambda: bound(lambda d: d.groupby("time.month").mean(), labelled()),
            "dask": dask_month,
        },
    )

    def numpy_anomaly():
        x, m = flat(), months()
        return lambda: x - np.stack([x[m == g].mean(0) for g in range(groups)])[m]

    def numba_anomaly():
        x, m, out = flat(), months(), empty(flat().shape, "float32")
        return lambda: loops().anomalies(x, m, loops().group_mean(x, m, groups), out)

    yield Workload(
        "anomalies by calendar month", "SELECT c - groupby(c, 'mean', by => month(time)) AS r FROM c",
        **(common | dict(rtol=1e-3)), held=8 * cells, limit=Limit("memory", 8 * cells, 4 * cells),
        peers={
            "numpy": numpy_anomaly, "numba, out=": numba_anomaly,
            "jax": lambda: jit(lambda jnp, x: x - by_slices(jnp, x)[months()], flat()),
        },
    )
    yield Workload(
        "anomalies of the whole time", "SELECT c - mean(c, axis => 'time', keepdims => true) AS r FROM c",
        **(common | dict(rtol=1e-3)), held=8 * cells, limit=Limit("memory", 8 * cells, 4 * cells),
        peers=everywhere(lambda xp, x: x - x.mean(0), flat),
    )
    yield Workload(
        "diff along time", "SELECT diff(c, axis => 'time') AS r FROM c", **common, held=8 * cells, limit=through,
        peers=everywhere(lambda xp, x: xp.diff(x, axis=0), flat) | {
            "numba, out=": lambda: bound(loops().difference, flat(), empty((shape[0] - 1, flat().shape[1]), "float32")),
        },
    )
    yield Workload(
        "cumsum along time", "SELECT cumsum(c, axis => 'time') AS r FROM c", **(common | dict(rtol=1e-2)), held=8 * cells, limit=through,
        peers=everywhere(lambda xp, x: xp.cumsum(x, axis=0), flat) | {
            "numba, out=": lambda: bound(loops().cumsum_rows, flat(), empty(flat().shape, "float32")),
        },
    )

    def blocks(xp, x):
        lat, lon = shape[1] // 4 * 4, shape[2] // 4 * 4
        return x[:, :lat, :lon].reshape(shape[0], lat // 4, 4, lon // 4, 4).mean((2, 4))

    yield Workload(
        "coarsen 4 × 4", "SELECT coarsen(c, 'mean', lat => 4, lon => 4, boundary => 'trim') AS r FROM c",
        **common, held=4.25 * cells, limit=Limit("memory", 4 * cells), peers=everywhere(blocks, cube),
    )
    yield Workload(
        "resample to months", "SELECT resample(c, 'mean', time => '1 month') AS r FROM c",
        **common, held=4 * cells, limit=Limit("memory", 4 * cells),
        peers={"xarray": lambda: bound(lambda d: d.resample(time="1MS").mean(), labelled())},
    )
    n = context.cells(3e7)
    y = lambda: array((n,), 7)  # noqa: E731
    kernel = [0.1, 0.2, 0.4, 0.2, 0.1]
    yield Workload(
        "convolve with 5 weights", f"SELECT convolve(y, {kernel}, mode => 'same') AS r FROM y",
        setup=temp("y", sql((n,))), held=16.0 * n, limit=Limit("memory", 8.0 * n, 8.0 * n),
        peers={
            "numpy": lambda: bound(lambda y: np.convolve(y, kernel, "same"), y()),
            "jax": lambda: jit(lambda jnp, y: sum(w * jnp.pad(y, (4 - i, i))[2:-2] for i, w in enumerate(kernel)), y()),
        },
    )
    yield Workload(
        "cumsum of a line", "SELECT cumsum(y) AS r FROM y",
        setup=temp("y", sql((n,))), held=16.0 * n, limit=Limit("memory", 8.0 * n, 8.0 * n),
        peers=everywhere(lambda xp, y: xp.cumsum(y), y),
    )


def rolled(x, width):
    """The moving mean of a block that holds whole lines."""
    s = np.cumsum(x, axis=0, dtype=np.float64)
    out = np.full(x.shape, np.nan, np.float32)
    out[width - 1] = s[width - 1] / width
    out[width:] = (s[width:] - s[:-width]) / width
    return out
