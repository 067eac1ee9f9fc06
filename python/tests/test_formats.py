"""Files of other formats beside the libraries that know them: NetCDF and HDF5 as xarray, netCDF4 and h5py read them."""

import warnings
from pathlib import Path

import iris_sample_data
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tessera_sql as ts


def real_files():
    """The NetCDF files of iris-sample-data, which are of the Met Office and others."""
    return sorted(Path(iris_sample_data.path).glob("**/*.nc"))


def cells(relation):
    found = relation.to_numpy()
    return np.ma.filled(found, np.nan) if np.ma.isMaskedArray(found) else found


def agree(path, **options):
    """All numeric variables of a file are as xarray reads them; returns their number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = xr.open_dataset(path, decode_timedelta=False, **options)
    compared = 0
    for name, variable in theirs.variables.items():
        if variable.dtype.kind not in "biufM" or name in theirs.dims:
            continue
        ours, wanted = cells(ts.sql(f"SELECT \"{name}\" FROM '{path}'")), variable.values
        assert ours.shape == wanted.shape, name
        if wanted.dtype.kind == "M":
            # Times that are stored as floats are rounded to microseconds; xarray cuts them to nanoseconds.
            apart = (wanted.astype("M8[us]") - ours.astype("M8[us]")).astype(int)
            assert np.all(np.abs(apart) <= 1), name
            compared += 1
            continue
        # Where xarray makes floats of masked integers, Tessera keeps the integers.
        np.testing.assert_array_equal(ours.astype(wanted.dtype), wanted, err_msg=name)
        if variable.ndim:
            box = tuple(slice(n // 3, n // 3 + 5) for n in variable.shape)
            text = ", ".join(f"{s.start}:{s.stop}" for s in box)
            part = cells(ts.sql(f"SELECT \"{name}\"[{text}] FROM '{path}'"))
            np.testing.assert_array_equal(part.astype(wanted.dtype), wanted[box], err_msg=name)
        compared += 1
    return compared


@pytest.mark.parametrize("path", real_files(), ids=lambda p: p.name)
def test_files_of_others(path):
    assert agree(path) > 0


def a_cube(rng):
    t2m = (280 + 10 * rng.standard_normal((12, 7, 9))).astype("f4")
    t2m[0, 0, 0] = np.nan
    dims = ("time", "lat", "lon")
    return xr.Dataset(
        {"t2m": (dims, t2m), "pr": (dims, rng.random((12, 7, 9))), "n": (dims[1:], rng.integers(0, 9, (7, 9)).astype("i2"))},
        coords={
            "time": pd.date_range("2020-01-01", periods=12, freq="MS"),
            "lat": np.linspace(60, 30, 7),
            "lon": np.linspace(0, 40, 9),
        },
    )


PACKED = {"dtype": "i2", "scale_factor": np.float32(0.01), "add_offset": np.float32(280), "_FillValue": np.int16(-32768)}


@pytest.mark.parametrize("format", ["NETCDF3_CLASSIC", "NETCDF3_64BIT", "NETCDF4", "NETCDF4_CLASSIC"])
@pytest.mark.parametrize("unlimited", [(), ("time",)])
def test_xarray_writes_and_tessera_reads(tmp_path, format, unlimited):
    path = tmp_path / "cube.nc"
    extra = {"zlib": True, "chunksizes": (5, 4, 4)} if format.startswith("NETCDF4") else {}
    a_cube(np.random.default_rng(0)).to_netcdf(
        path, format=format, unlimited_dims=unlimited, encoding={"t2m": PACKED | extra, "pr": extra}
    )
    assert agree(path) == 3


def test_many_files_are_one_dataset(tmp_path):
    rng = np.random.default_rng(1)
    whole = a_cube(rng)
    for i in range(4):
        part = whole.isel(time=slice(3 * i, 3 * i + 3))
        part.to_netcdf(tmp_path / f"part{i}.nc", encoding={"t2m": PACKED | {"scale_factor": 0.01 + 0.001 * i}})
    files = sorted(tmp_path.glob("part*.nc"))
    theirs = xr.open_mfdataset(files, data_vars="minimal", coords="minimal", compat="override")
    for relation in (f"'{tmp_path}/part*.nc'", f"[{', '.join(repr(str(f)) for f in reversed(files))}]"):
        ours = ts.sql(f"SELECT pr FROM {relation}").to_xarray()
        np.testing.assert_array_equal(ours.values, theirs.pr.values)
        np.testing.assert_array_equal(ours.time.values, theirs.time.values)
        t2m = cells(ts.sql(f"SELECT t2m FROM {relation}"))
        np.testing.assert_allclose(t2m, theirs.t2m.values, rtol=1e-6)
        ours = ts.sql(f"SELECT n FROM {relation}").to_numpy()
        np.testing.assert_array_equal(ours, theirs.n.values)


def test_appends_are_read_by_xarray(tmp_path):
    whole = a_cube(np.random.default_rng(2))[["t2m", "pr"]]
    store, new = tmp_path / "store.zarr", tmp_path / "new.zarr"
    chunks = {"t2m": PACKED | {"chunks": (5, 4, 9)}, "pr": {"chunks": (4, 7, 5)}}
    for version in (2, 3):
        whole.isel(time=slice(0, 7)).to_zarr(store, mode="w", zarr_format=version, encoding=chunks, consolidated=version == 2)
        whole.isel(time=slice(7, 12)).to_zarr(new, mode="w", consolidated=False)
        ts.sql(f"COPY (SELECT t2m, pr FROM '{new}') TO '{store}' STORED AS ZARR OPTIONS (append 'time')")
        for consolidated in (True, False):
            theirs = xr.open_zarr(store, consolidated=consolidated)
            np.testing.assert_array_equal(theirs.time.values, whole.time.values)
            np.testing.assert_array_equal(theirs.pr.values, whole.pr.values)
            np.testing.assert_allclose(theirs.t2m.values, whole.t2m.values, atol=0.00501)
