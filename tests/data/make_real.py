"""Writes real/: stores as xarray writes them from NetCDF files of the common producers, with made up cells.

    pip install numpy xarray zarr numcodecs cftime && python tests/data/make_real.py

| store | as | what |
|---|---|---|
| era5.zarr (v2, consolidated) | ERA5 | float32 with a NaN fill and no missing cell, descending latitudes, longitudes 0 … 360 |
| eobs.zarr (v2) | E-OBS | labels of a 0.1° grid in float32, packed int16 with missing cells over the sea |
| cmip.zarr (v2) | CMIP6 | a 360_day calendar, bounds of time, latitude and longitude, a 0-d coordinate |
| cesm.zarr (v3) | CESM | a noleap calendar, bounds of time alone, weights by latitude, `_FillValue` 1e20 and no missing cell |
| gridded.zarr (v3) | reanalyses on disk | packed int16 with a `_FillValue` and no missing cell |

Each has a second store beside it, NAME_static.zarr, with a float32 `orog` on the same grid, for joins. Every value is a
multiple of a small power of two or of the packing's step, so sums do not depend on their order by more than the scripts'
tolerance. The output is the same bytes each time.
"""

import gzip
import shutil
import types
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import xarray as xr
import zarr

HERE = Path(__file__).parent
gzip.time = types.SimpleNamespace(time=lambda: 0)
warnings.simplefilter("ignore")


def wave(rng, time_of_year, lat, lon, base=285.0):
    """Kelvin: a yearly wave, colder to the north, noise; multiples of 1/64."""
    shape = (len(time_of_year), len(lat), len(lon))
    t = base - 10 * np.cos(2 * np.pi * time_of_year)[:, None, None] - 0.4 * (lat[None, :, None] - 45) + 2 * np.sin(np.radians(lon))
    return np.round((t + rng.normal(0, 2, shape)) * 64) / 64


def axis(name, values, **attrs):
    return xr.DataArray(values, dims=[name], name=name, attrs=attrs)


def edges(values):
    """Bounds of evenly spaced labels."""
    half = (values[1] - values[0]) / 2
    return np.stack([values - half, values + half], axis=-1)


def save(ds, name, fmt, encoding, consolidated=None):
    path = HERE / "real" / f"{name}.zarr"
    codec = {"compressors": None}
    encoding = {v: {**codec, **encoding.get(v, {})} for v in ds.variables}
    ds.to_zarr(path, mode="w", zarr_format=fmt, consolidated=bool(consolidated), encoding=encoding)


def static(rng, name, fmt, lat, lon):
    """Heights on a store's grid."""
    orog = np.round(rng.random((len(lat), len(lon))) * 1000).astype("f4")
    ds = xr.Dataset({"orog": ((lat.name, lon.name), orog, {"units": "m"})}, coords={lat.name: lat, lon.name: lon})
    save(ds, f"{name}_static", fmt, {"orog": {"_FillValue": np.float32(np.nan)}})


def era5(rng):
    time = np.datetime64("2019-01-01T00", "ns") + np.arange(146) * np.timedelta64(5 * 24, "h")
    lat, lon = np.arange(60.0, 34.0, -5), np.arange(0.0, 360.0, 45)
    t2m = wave(rng, np.arange(146) * 5 / 365.25, lat, lon).astype("f4")
    lat, lon = axis("latitude", lat, units="degrees_north"), axis("longitude", lon, units="degrees_east")
    ds = xr.Dataset({"t2m": (("time", "latitude", "longitude"), t2m, {"units": "K", "long_name": "2 metre temperature"})},
                    coords={"time": axis("time", time, standard_name="time"), "latitude": lat, "longitude": lon}, attrs={"Conventions": "CF-1.6"})
    save(ds, "era5", 2, {"t2m": {"chunks": (40, 4, 5), "_FillValue": np.float32(np.nan)}, "time": {"units": "hours since 1900-01-01", "calendar": "proleptic_gregorian", "dtype": "i4"}}, consolidated=True)
    static(rng, "era5", 2, lat, lon)


def eobs(rng):
    time = np.datetime64("2019-11-01", "ns") + np.arange(100) * np.timedelta64(1, "D")
    # As the files have them: each label is the float32 next to the decimal.
    lat, lon = (np.arange(522, 530) / 10).astype("f4"), (np.arange(42, 49) / 10).astype("f4")
    tg = np.round(wave(rng, 0.83 + np.arange(100) / 365.25, lat.astype("f8"), lon.astype("f8"), base=283.0) - 273.15, 2)
    tg[:, rng.random((len(lat), len(lon))) < 0.15] = np.nan  # the sea
    tg[3, 2, 1] = tg[50, 4, 4] = np.nan
    lat, lon = axis("latitude", lat, units="degrees_north"), axis("longitude", lon, units="degrees_east")
    ds = xr.Dataset({"tg": (("time", "latitude", "longitude"), tg, {"units": "Celsius"})}, coords={"time": axis("time", time), "latitude": lat, "longitude": lon})
    save(ds, "eobs", 2, {"tg": {"chunks": (30, 5, 4), "dtype": "i2", "scale_factor": 0.01, "add_offset": 0.0, "_FillValue": -9999},
                         "time": {"units": "days since 1950-01-01", "calendar": "proleptic_gregorian", "dtype": "i8"}})
    static(rng, "eobs", 2, lat, lon)


def with_calendar(calendar, start, n):
    return xr.date_range(start, periods=n, freq="MS", calendar=calendar, use_cftime=True)


def cmip(rng):
    first = with_calendar("360_day", "2000-01-01", 37)
    time = first[:-1] + (first[1:] - first[:-1]) / 2
    lat, lon = np.arange(-75.0, 76, 30), np.arange(22.5, 360, 45)
    tas = wave(rng, (np.arange(36) + 0.5) / 12, lat, lon).astype("f4")
    bounds = {"lat_bnds": (("lat", "bnds"), edges(lat)), "lon_bnds": (("lon", "bnds"), edges(lon)),
              "time_bnds": (("time", "bnds"), np.stack([first[:-1], first[1:]], axis=-1))}
    lat = axis("lat", lat, units="degrees_north", bounds="lat_bnds")
    lon = axis("lon", lon, units="degrees_east", bounds="lon_bnds")
    ds = xr.Dataset({"tas": (("time", "lat", "lon"), tas, {"units": "K", "cell_methods": "area: time: mean"}), **bounds},
                    coords={"time": axis("time", time, bounds="time_bnds"), "lat": lat, "lon": lon, "height": ((), 2.0, {"units": "m"})})
    when = {"units": "days since 1850-01-01", "calendar": "360_day", "dtype": "f8"}
    save(ds, "cmip", 2, {"tas": {"chunks": (12, 4, 5), "_FillValue": np.float32(1e20), "missing_value": np.float32(1e20)}, "time": when, "time_bnds": {"chunks": (36, 2)}})
    static(rng, "cmip", 2, lat.drop_attrs(), lon.drop_attrs())


def cesm(rng):
    first = with_calendar("noleap", "2003-01-01", 37)
    time = first[:-1] + (first[1:] - first[:-1]) / 2
    lat, lon = np.arange(-60.0, 61, 24), np.arange(0.0, 360, 72)
    ts = wave(rng, (np.arange(36) + 0.5) / 12, lat, lon)
    lat, lon = axis("lat", lat, units="degrees_north"), axis("lon", lon, units="degrees_east")
    ds = xr.Dataset({"TS": (("time", "lat", "lon"), ts, {"units": "K"}), "time_bnds": (("time", "nbnd"), np.stack([first[:-1], first[1:]], axis=-1)),
                     "gw": (("lat",), np.array([0.125, 0.5, 1.0, 1.0, 0.5, 0.125]), {"long_name": "gauss weights"})},
                    coords={"time": axis("time", time, bounds="time_bnds"), "lat": lat, "lon": lon})
    save(ds, "cesm", 3, {"TS": {"chunks": (12, 4, 3), "_FillValue": 1e20}, "time": {"units": "days since 2000-01-01", "calendar": "noleap", "dtype": "f8"}})
    static(rng, "cesm", 3, lat, lon)


def gridded(rng):
    time = np.datetime64("2020-01-01T03", "ns") + np.arange(120) * np.timedelta64(78, "h")
    lat, lon = np.arange(30.0, 61, 6), np.arange(-10.0, 21, 5)
    t = np.round(wave(rng, np.arange(120) * 3.25 / 366, lat, lon) * 50) / 50
    lat, lon = axis("lat", lat, units="degrees_north"), axis("lon", lon, units="degrees_east")
    ds = xr.Dataset({"t": (("time", "lat", "lon"), t, {"units": "K"})}, coords={"time": axis("time", time), "lat": lat, "lon": lon})
    save(ds, "gridded", 3, {"t": {"chunks": (50, 4, 4), "dtype": "i2", "scale_factor": 0.02, "add_offset": 280.0, "_FillValue": -32767},
                            "time": {"units": "hours since 1970-01-01", "calendar": "standard", "dtype": "i8"}})
    static(rng, "gridded", 3, lat, lon)


if __name__ == "__main__":
    shutil.rmtree(HERE / "real", ignore_errors=True)
    (HERE / "real").mkdir()
    with zarr.config.set({"array.write_empty_chunks": True}):
        for seed, make in enumerate((era5, eobs, cmip, cesm, gridded)):
            make(np.random.default_rng(2500 + seed))
