"""Inputs of the recipes: synthetic weather in the form of ERA5."""

from pathlib import Path

import numpy as np
import xarray as xr


def inputs(directory, scale=0.1, dtype="float32") -> dict:
    """The relations of the recipes by name. Each call returns the same values.

    At scale 1 the grid has 1.5 degrees (`ds` has 32 million cells per variable), at scale 0.1 it has 15 degrees.
    `first` and `second` are Zarr stores in `directory`; the others are in memory.
    """
    ds = surface(scale, dtype)
    store(ds[["t2m"]].sel(time=slice(None, "2019-12-31")), directory / "first.zarr")
    store(ds[["t2m"]].sel(time=slice("2020-01-01", None)), directory / "second.zarr")
    return files(directory) | {
        "ds": ds,
        "levels": levels(scale, dtype),
        "nino": nino(ds),
        # The period before 2021 and the one after June 2020, which share half a year.
        "temperature": ds[["t2m"]].sel(time=slice(None, "2020-12-31")),
        "rain": ds[["precip"]].sel(time=slice("2020-07-01", None)),
    }


def store(ds, path: Path):
    if not path.exists():
        ds.to_zarr(path, zarr_format=2, consolidated=True)


def files(directory) -> dict:
    """The stores of `inputs`, opened and not read."""
    return {name: xr.open_zarr(directory / f"{name}.zarr", chunks=None) for name in ("first", "second")}


def surface(scale, dtype) -> xr.Dataset:
    """Three years of days: temperature, rain with missing days, sea temperature that is NaN on land."""
    rng = np.random.default_rng(7)
    time = np.arange("2019-01-01", "2022-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    lat, lon = grid(scale)
    shape = (len(time), len(lat), len(lon))
    day = np.arange(len(time))[:, None, None]
    south = np.sin(np.radians(lat))[:, None]

    warm = 288 + 26 * np.cos(np.radians(2 * lat))[:, None] + 3 * np.sin(np.radians(2 * lon))
    year = -12 * south * np.cos(2 * np.pi * (day - 20) / 365.25)
    pacific = np.exp(-((lat / 25) ** 2))[:, None] * np.exp(-(((lon - 215) / 40) ** 2))
    atlantic = np.sin(np.radians(3 * lat))[:, None] * np.exp(-(((lon - 320) / 30) ** 2))
    modes = 5 * waves(rng, len(time), 0.99) * pacific + 4 * waves(rng, len(time), 0.9) * atlantic
    t2m = warm + year + 8e-4 * day + modes + 2 * spells(rng, shape)
    precip = rng.gamma(0.4, 6.0, shape)
    precip[rng.random(shape) < 0.02] = np.nan
    land = np.sin(np.radians(3 * lon)) + 0.5 * np.cos(np.radians(4 * lat))[:, None] > 0.3
    sst = np.where(land, np.nan, warm + 0.4 * year + spells(rng, shape))

    cube = ("time", "lat", "lon")
    return xr.Dataset(
        {
            "t2m": (cube, t2m.astype(dtype), {"units": "K"}),
            "sst": (cube, sst.astype(dtype), {"units": "K"}),
            "precip": (cube, precip.astype(dtype), {"units": "mm"}),
            "land": (("lat", "lon"), land),
        },
        coords=places(lat, lon) | {"time": time},
    )


def levels(scale, dtype) -> xr.Dataset:
    """A month of specific humidity on eight levels of pressure in Pa."""
    rng = np.random.default_rng(8)
    time = np.arange("2020-06-01", "2020-07-01", dtype="datetime64[D]").astype("datetime64[ns]")
    lat, lon = grid(scale)
    level = np.array([20000.0, 30000.0, 40000.0, 50000.0, 70000.0, 85000.0, 92500.0, 100000.0])
    shape = (len(time), len(level), len(lat), len(lon))
    moist = np.cos(np.radians(lat))[:, None] * np.exp((level - 1e5) / 3e4)[:, None, None]
    q = 0.016 * moist * rng.uniform(0.6, 1.0, shape)
    return xr.Dataset(
        {"q": (("time", "level", "lat", "lon"), q.astype(dtype), {"units": "kg kg-1"})},
        coords=places(lat, lon) | {"time": time, "level": ("level", level, {"units": "Pa"})},
    )


def nino(ds) -> xr.DataArray:
    """One number per day: the mean temperature of a box in the Pacific."""
    return ds.t2m.sel(lat=slice(15, -15), lon=slice(190, 240)).mean(("lat", "lon")).rename("nino")


def grid(scale):
    """Latitudes from north to south and longitudes from 0 up to 360."""
    return np.linspace(90, -90, round(120 * scale) + 1), np.arange(round(240 * scale)) * 360.0 / round(240 * scale)


def places(lat, lon) -> dict:
    return {
        "lat": ("lat", lat, {"units": "degrees_north"}),
        "lon": ("lon", lon, {"units": "degrees_east"}),
    }


def waves(rng, days, memory) -> np.ndarray:
    """One number per day, for every place alike."""
    return spells(rng, (days, 1, 1), memory)


def spells(rng, shape, memory=0.8) -> np.ndarray:
    """Noise of variance one that lasts for some days: an autoregressive process along time."""
    noise = rng.standard_normal(shape)
    for i in range(1, len(noise)):
        noise[i] = memory * noise[i - 1] + (1 - memory**2) ** 0.5 * noise[i]
    return noise
