"""Arrays in files of other formats, and many files as one dataset."""

import json
import struct
import subprocess

import numpy as np

from .. import files
from ..workload import Limit, Workload

YEARS = 30
DAYS = 365


def workloads(context):
    lat, lon = context.side(128), context.side(360)
    size = 4.0 * YEARS * DAYS * lat * lon
    for name, how in STORED.items():
        at = context.data / f"years-{name.replace(', ', '-').replace(' ', '-')}-{lat}-{lon}"
        yield Workload(
            f"time mean of 30 yearly NetCDF-4 files of 2 GB, {name}",
            f"SELECT mean(t, axis => 'time') AS r FROM '{at}/*.nc'",
            prepare=lambda at=at, how=how: files.once(at, lambda part: years(part, lat, lon, how)),
            limit=Limit("memory", size) if name == "contiguous" else None, rtol=1e-4,
            peers={
                "xarray + dask": lambda at=at: lambda: mean_of(opened(at)),
                "xarray + dask, files opened before": lambda at=at: opened_before(at),
            },
        )
    many = max(int(10_000 * context.scale), 20)
    folder = context.data / f"small-{many}"
    yield Workload(
        "mean of one of 10,000 NetCDF files as one dataset, a new process", "",
        prepare=lambda: files.once(folder, lambda part: small(part, many)), rtol=1e-6,
        ours=lambda: new_process(context, f"SELECT mean(t[{many // 2}:{many // 2 + 1}]) AS r FROM '{folder}/*.nc'"),
        # In the order of the names, which saves xarray the comparison of labels.
        peers={"xarray + dask": lambda: lambda: float(opened(folder, combine="nested", concat_dim="time").t[many // 2].mean().compute())},
    )
    side = context.side(20_000)
    cog = context.data / f"cog-{side}.tif"
    yield Workload(
        "window of 1000 x 1000 of a COG of 0.8 GB", f"SELECT mean(band_data[0, 3000:4000, 5000:6000]) AS r FROM '{cog}'"
        if side > 6000 else f"SELECT mean(band_data[0, 100:300, 50:250]) AS r FROM '{cog}'",
        prepare=lambda: files.once(cog, lambda part: tiled(part, side)), rtol=1e-6,
        peers={"rasterio": lambda: lambda: window(cog, side)},
    )
    tensors = 100
    rows = max(int(6400 * context.scale), 16)
    model = context.data / f"model-{rows}.safetensors"
    yield Workload(
        "mean of one of 100 tensors in 10 GB of safetensors", f"SELECT mean(w42) AS r FROM '{model}'",
        prepare=lambda: files.once(model, lambda part: weights(part, tensors, rows)), rtol=1e-4,
        limit=Limit("memory", 4.0 * rows * 4096),
        peers={"safetensors": lambda: lambda: float(tensor(model, "w42").mean(dtype=np.float64))},
    )


STORED = {
    "contiguous": {},
    "deflate": {"zlib": True, "complevel": 1, "shuffle": True},
    "packed, deflate": {
        "zlib": True, "complevel": 1, "shuffle": True, "dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0,
        "_FillValue": np.int16(-32768),
    },
}


def years(directory, lat, lon, how):
    """One file a year, as xarray writes it; compressed ones in chunks of months."""
    import xarray as xr

    directory.mkdir(parents=True)
    chunks = {"chunksizes": (31, lat, lon)} if how else {}
    for year in range(YEARS):
        cube = xr.Dataset(
            {"t": (("time", "lat", "lon"), files.cube_block(year * DAYS, (DAYS, lat, lon)))},
            coords={
                "time": ("time", np.arange(DAYS) + DAYS * year, {"units": "days since 1990-01-01", "calendar": "noleap"}),
                "lat": np.linspace(-90, 90, lat),
                "lon": np.linspace(0, 360, lon, endpoint=False),
            },
        )
        cube.to_netcdf(directory / f"{1990 + year}.nc", encoding={"t": {**how, **chunks}})


def opened(directory, **options):
    import xarray as xr

    options = options or {"combine": "by_coords"}
    # `chunks` of the files: the whole year of a contiguous variable, months of the others.
    return xr.open_mfdataset(sorted(directory.glob("*.nc")), chunks={}, **options)


def mean_of(dataset):
    return dataset.t.mean("time").compute().values


def opened_before(directory):
    dataset = opened(directory)
    return lambda: mean_of(dataset)


def small(directory, many):
    """Files of one time and 2600 bytes of cells."""
    from scipy.io import netcdf_file

    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(many):
        with netcdf_file(directory / f"f{i:05d}.nc", "w") as f:
            for name, n in (("time", 1), ("lat", 18), ("lon", 36)):
                f.createDimension(name, n)
            for name, kind, labels in (("time", "i4", [i]), ("lat", "f4", np.linspace(85, -85, 18)), ("lon", "f4", np.arange(36) * 10)):
                v = f.createVariable(name, kind, (name,))
                v[:] = labels
            f.variables["time"].units = "hours since 2000-01-01"
            f.createVariable("t", "f4", ("time", "lat", "lon"))[:] = rng.random((1, 18, 36)) + i


def new_process(context, sql):
    """A statement from the start of a process to its end."""
    def work():
        out = subprocess.run([context.binary, "query", "--format", "json", sql], capture_output=True, text=True, check=True)
        return next(iter(json.loads(out.stdout.splitlines()[0]).values()))

    return work


def tiled(path, side):
    """A COG of uint16 in tiles of 512, deflate with the predictor."""
    import tifffile

    y, x = np.mgrid[0:side, 0:side].astype(np.uint16)
    cells = (x * 3 + y * 2 + np.random.default_rng(0).integers(0, 64, (side, side), dtype=np.uint16)).astype(np.uint16)
    tifffile.imwrite(path, cells, tile=(512, 512), compression="deflate", predictor=2, bigtiff=False)


def window(path, side):
    import rasterio

    rows, columns = ((3000, 4000), (5000, 6000)) if side > 6000 else ((100, 300), (50, 250))
    with rasterio.open(path) as f:
        return float(f.read(1, window=(rows, columns)).mean())


def weights(path, tensors, rows):
    """float32 tensors of [rows, 4096], written one by one."""
    n = rows * 4096 * 4
    header = {f"w{i}": {"dtype": "F32", "shape": [rows, 4096], "data_offsets": [i * n, (i + 1) * n]} for i in range(tensors)}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        one = np.random.default_rng(0).standard_normal((rows, 4096), dtype=np.float32)
        start = f.tell()
        # The other tensors are a hole in the file.
        f.seek(start + 42 * n)
        f.write(one.tobytes())
        f.truncate(start + tensors * n)


def tensor(path, name):
    from safetensors.numpy import safe_open

    with safe_open(path, framework="numpy") as f:
        return f.get_tensor(name)
