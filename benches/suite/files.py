"""Files that both sides read. They are made once and kept; a name says what is in it."""

import shutil
from pathlib import Path

import numpy as np


def once(path: Path, make):
    """Makes what is not there; what broke off is made again."""
    if path.exists():
        return
    part = path.with_name("." + path.name)
    shutil.rmtree(part, ignore_errors=True)
    part.unlink(missing_ok=True) if part.is_file() else None
    make(part)
    part.rename(path)


def rows(path: Path, side: int, block: int):
    """A square of float64 in chunks of whole rows, zstd."""
    def make(part):
        import zarr

        from .cells import array

        group = zarr.open_group(str(part), mode="w")
        x = group.create_array("x", shape=(side, side), chunks=(block, side), dtype="float64",
                               compressors=zarr.codecs.ZstdCodec(level=1), dimension_names=["row", "col"])
        x[:] = array((side, side))

    once(path, make)


def cube_block(time: int, shape) -> np.ndarray:
    """float32 as in a model's output: a smooth field, a season, and noise, in steps of 1/64."""
    t, y, x = shape
    noise = np.random.default_rng(time).standard_normal((1, y, x), dtype=np.float32)
    lat = np.cos(np.linspace(-1.5, 1.5, y, dtype=np.float32))[:, None]
    season = np.sin((time + np.arange(t, dtype=np.float32)) * (2 * np.pi / 365.25))[:, None, None].astype(np.float32)
    field = 270 + 30 * lat + 8 * season * (1 - lat) + np.roll(noise, time % x, 2) * (1 + 0.1 * season)
    return np.round(field * 64) / np.float32(64)


def cube(path: Path, shape, chunks, codec: str, declared: bool = False):
    """A Zarr v3 group with `v` [time, lat, lon], daily labels since 2000, and labels of degrees. With `declared` it has
    the same cells twice: `d` declares NaN missing, as xarray does of every float, and has none."""
    def make(part):
        import zarr
        from zarr.codecs import BloscCodec, ZstdCodec

        packed = {
            "blosc-zstd": [BloscCodec(cname="zstd", clevel=1, shuffle="shuffle", typesize=4)],
            "zstd": [ZstdCodec(level=1)],
            "none": [],
        }[codec]
        group = zarr.open_group(str(part), mode="w")
        names = ["time", "lat", "lon"]
        v = group.create_array("v", shape=shape, chunks=chunks, dtype="float32", compressors=packed, dimension_names=names)
        d = None
        if declared:
            d = group.create_array("d", shape=shape, chunks=chunks, dtype="float32", compressors=packed, dimension_names=names,
                                   fill_value=float("nan"), attributes={"_FillValue": "AAAAAAAA+H8="})
        for t in range(0, shape[0], chunks[0]):
            many = min(chunks[0], shape[0] - t)
            v[t : t + many] = cube_block(t, (many, *shape[1:]))
            if d is not None:
                d[t : t + many] = v[t : t + many]
        labels = [np.arange(shape[0]), np.linspace(-90, 90, shape[1]), np.linspace(0, 360, shape[2], endpoint=False)]
        for name, at in zip(names, labels, strict=True):
            a = group.create_array(name, shape=at.shape, dtype=at.dtype, dimension_names=[name])
            a[:] = at
        group["time"].attrs.update(units="days since 2000-01-01", calendar="proleptic_gregorian")
        zarr.consolidate_metadata(group.store)

    once(path, make)
