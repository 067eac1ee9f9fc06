"""Arrays in files and behind HTTP: read, decoded and reduced."""

import os

import numpy as np

from .. import files, s3
from ..workload import Limit, Workload


def workloads(context):
    shape = (context.side(1000, 3), context.side(500, 3), context.side(1000, 3))
    chunks = (max(shape[0] // 100, 1), max(shape[1] // 2, 1), max(shape[2] // 2, 1))
    size = 4.0 * np.prod(shape)

    def path(codec):
        return context.data / f"scan-{codec}-{shape[0]}-{shape[1]}-{shape[2]}.zarr"

    def time_mean(codec, limit):
        at = path(codec)
        return Workload(
            f"time mean of a 2 GB Zarr, {codec}", f"SELECT mean(v, 0) AS r FROM '{at}'",
            prepare=lambda: files.cube(at, shape, chunks, codec), limit=limit, rtol=1e-4,
            peers={
                "zarr-python": lambda: by_bands(at, chunks[0]),
                "dask": lambda: dask_mean(at),
                "tensorstore": lambda: tensorstore_mean({"driver": "file", "path": str(at / "v")}, chunks[0]),
                "xarray": lambda: xarray_mean(at),
            },
        )

    for codec in ("blosc-zstd", "zstd"):
        yield time_mean(codec, Limit(f"decode {codec}", size))
    yield time_mean("none", Limit("memory", size))
    yield Workload(
        "time mean of a 2 GB Zarr, blosc-zstd, S3 on loopback", "SELECT mean(v, 0) AS r FROM 's3://bench/scan.zarr'",
        prepare=lambda: files.cube(path("blosc-zstd"), shape, chunks, "blosc-zstd"), rtol=1e-4,
        env=lambda: s3.start(context, {"scan.zarr": path("blosc-zstd")}),
        limit=Limit("decode blosc-zstd", size),
        peers={"tensorstore": lambda: s3_mean(context, path("blosc-zstd"), chunks[0])},
    )
    yield Workload(
        "one cell's time line of a 2 GB Zarr, zstd", f"SELECT v[:, 7, 11] AS r FROM '{path('zstd')}'",
        prepare=lambda: files.cube(path("zstd"), shape, chunks, "zstd"),
        limit=Limit("decode zstd", size / 4),
        peers={
            "zarr-python": lambda: zarr_line(path("zstd")),
            "tensorstore": lambda: tensorstore_line(path("zstd")),
        },
    )
    square = context.side(10_000)
    npy = context.data / f"square-{square}.npy"

    def save():
        from ..cells import array

        files.once(npy, lambda part: np.save(open(part, "wb"), array((square, square))))

    yield Workload(
        "mean over axis 0 of a .npy of 0.8 GB", f"SELECT mean(x, 0) AS r FROM '{npy}' AS x",
        prepare=save, limit=Limit("memory", 8.0 * square**2),
        peers={
            "numpy, mapped": lambda: lambda: np.load(npy, mmap_mode="r").mean(0),
            "numpy": lambda: lambda: np.load(npy).mean(0),
        },
    )


def by_bands(at, band):
    """zarr-python, a few chunks at a time."""
    import zarr

    def work():
        v = zarr.open_array(str(at / "v"), mode="r")
        s, step = np.zeros(v.shape[1:]), band * 4
        for t in range(0, v.shape[0], step):
            s += v[t : t + step].sum(0, dtype=np.float64)
        return (s / v.shape[0]).astype("float32")

    return work


def dask_mean(at):
    import dask.array as da

    return lambda: da.from_zarr(str(at / "v")).mean(0).compute()


def xarray_mean(at):
    import xarray as xr

    return lambda: xr.open_zarr(str(at), chunks={})["v"].mean("time").compute().values


def tensorstore_mean(kvstore, band, **context):
    """TensorStore reads and decodes on its threads while NumPy adds what came before."""
    import tensorstore as ts

    def work():
        v = ts.open({"driver": "zarr3", "kvstore": kvstore, **context}).result()
        step = band * 8
        parts = [slice(t, min(t + step, v.shape[0])) for t in range(0, v.shape[0], step)]
        coming = [v[p].read() for p in parts[:2]]
        s = np.zeros(v.shape[1:])
        for i in range(len(parts)):
            got = coming.pop(0).result()
            if i + 2 < len(parts):
                coming.append(v[parts[i + 2]].read())
            s += got.sum(0, dtype=np.float64)
        return (s / v.shape[0]).astype("float32")

    return work


def s3_mean(context, at, band):
    variables = s3.start(context, {"scan.zarr": at})
    os.environ.update(variables)
    store = {"driver": "s3", "bucket": "bench", "endpoint": variables["AWS_ENDPOINT_URL"], "aws_region": "us-east-1", "path": "scan.zarr/v/"}
    return tensorstore_mean(store, band)


def zarr_line(at):
    import zarr

    return lambda: zarr.open_array(str(at / "v"), mode="r")[:, 7, 11]


def tensorstore_line(at):
    import tensorstore as ts

    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(at / "v")}}
    return lambda: ts.open(spec).result()[:, 7, 11].read().result()
