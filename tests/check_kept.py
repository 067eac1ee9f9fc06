"""Reads what Tessera keeps with xarray and zarr-python, and compares with what they make of the sources.

    pip install numpy xarray zarr cftime && cargo build && python tests/check_kept.py [target/debug/tessera]
"""

import itertools
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
import zarr

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
BINARY = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/tessera").resolve()
warnings.simplefilter("ignore")


def tessera(directory, sql):
    command = [BINARY, "--warehouse", f"{directory}/warehouse", "query", sql]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)


def copy(directory, query, **options):
    to = f"{directory}/{len(list(Path(directory).iterdir()))}.zarr"
    words = ", ".join(f"{k} '{v}'" for k, v in options.items())
    tessera(directory, f"COPY ({query}) TO '{to}' STORED AS ZARR" + (f" OPTIONS ({words})" if words else ""))
    return to


def check(directory):
    n = 0
    air = xr.open_zarr(DATA / "cf/air.zarr", consolidated=False).load()
    for zarr_format, codec in itertools.product((2, 3), ("none", "zstd:5", "gzip:1", "blosc:zstd:5", "lz4")):
        to = copy(directory, "SELECT t2m, precip FROM 'tests/data/cf/air.zarr'", zarr_format=zarr_format, codec=codec)
        got = xr.open_zarr(to, consolidated=True).load()
        for name in ("t2m", "precip"):
            np.testing.assert_array_equal(got[name].values, air[name].values)
            assert got[name].dims == air[name].dims
            for dim in got[name].dims:
                np.testing.assert_array_equal(got[dim].values, air[dim].values)
                assert got[dim].dtype.kind == air[dim].dtype.kind
        assert {k: v for k, v in got.t2m.attrs.items()} == {k: v for k, v in air.t2m.attrs.items()}, got.t2m.attrs
        zarr.open_group(to, mode="r")
        n += 1
    to = copy(directory, "SELECT rechunk(t2m, time => 5, lat => 2, lon => 3) AS t2m FROM 'tests/data/cf/air.zarr'",
              codec="zstd:5", shards="[10, 4, 6]")
    array = zarr.open_group(to, mode="r")["t2m"]
    assert array.chunks == (5, 2, 3) and array.shards == (10, 4, 6), (array.chunks, array.shards)
    np.testing.assert_array_equal(xr.open_zarr(to).t2m.values, air.t2m.values)
    for name in ("noleap", "day360"):
        source = xr.open_zarr(DATA / f"cf/{name}.zarr", consolidated=False).load()
        variable = next(iter(source.data_vars))
        for zarr_format in (2, 3):
            to = copy(directory, f"SELECT {variable} FROM 'tests/data/cf/{name}.zarr'", zarr_format=zarr_format)
            got = xr.open_zarr(to).load()
            np.testing.assert_array_equal(got[variable].values, source[variable].values)
            assert list(got.time.values) == list(source.time.values), name
            n += 1
    cases = zarr.open_group(DATA / "cases.zarr", mode="r")
    kinds = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
    columns = ", ".join(f"t_{k}" for k in kinds)
    for zarr_format in (2, 3):
        to = copy(directory, f"SELECT {columns} FROM 'tests/data/cases.zarr'", zarr_format=zarr_format)
        group, ds = zarr.open_group(to, mode="r"), xr.open_zarr(to).load()
        for k in kinds:
            want = cases[f"t_{k}"][...]
            assert group[f"t_{k}"].dtype == want.dtype.newbyteorder("="), (k, group[f"t_{k}"].dtype)
            np.testing.assert_array_equal(group[f"t_{k}"][...], want)
            np.testing.assert_array_equal(ds[f"t_{k}"].values, want)
            n += 1
        # Masks: NaN for floats, a value of its own for integers, a second array where none is free.
        to = copy(directory, "SELECT [1.5, NULL, 3] AS f, [1, NULL, 3] AS i, [true, NULL, false] AS b, "
                  "where(arange(300) = 7, NULL, arange(300) % 256)::uint8 AS every", zarr_format=zarr_format)
        ds = xr.open_zarr(to).load()
        np.testing.assert_array_equal(ds.f.values, [1.5, np.nan, 3])
        np.testing.assert_array_equal(ds.i.values, [1, np.nan, 3])
        np.testing.assert_array_equal(ds.b.values[[0, 2]], [True, False])
        np.testing.assert_array_equal(ds.b_valid.values, [True, False, True])
        assert ds.every.dtype == np.uint8 and ds.every_valid.values.sum() == 299 and not ds.every_valid.values[7]
        assert ds.b.attrs["tessera_valid"] == "b_valid" and "f_valid" not in ds and "i_valid" not in ds
        n += 4
    tessera(directory, "CREATE TENSOR kept AS SELECT t2m - mean(t2m, axis => 'time') AS a FROM 'tests/data/cf/air.zarr'")
    (kept,) = (Path(directory) / "warehouse/data").iterdir()
    want = (air.t2m - air.t2m.mean("time")).values
    np.testing.assert_allclose(xr.open_zarr(kept).a.values, want, rtol=1e-5, atol=1e-4)
    # Readers of Zarr read the checksums of a warehouse and see nothing of its list of files.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(kept, mode="r", use_consolidated=False)
        assert sorted(dict(group.arrays())) == ["a", "lat", "lon", "time"], sorted(group)
    assert all(type(array.metadata.codecs[-1]).__name__ == "Crc32cCodec" for _, array in group.arrays())
    tessera(directory, "CREATE TENSOR whole AS SELECT t2m FROM 'tests/data/cf/air.zarr'")
    (whole,) = set((Path(directory) / "warehouse/data").iterdir()) - {kept}
    got = xr.open_zarr(whole).load()
    np.testing.assert_array_equal(got.t2m.values, air.t2m.values)
    for dim in got.t2m.dims:
        np.testing.assert_array_equal(got[dim].values, air[dim].values)
    chunk = next(f for f in sorted((whole / "t2m/c").rglob("*")) if f.is_file())
    damaged = bytearray(chunk.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    chunk.write_bytes(damaged)
    try:
        zarr.open_group(whole, mode="r")["t2m"][...]
        raise AssertionError("zarr-python did not see the damage")
    except ValueError as e:
        assert "checksum" in str(e), e
    n += 2
    text = f"{directory}/text.zarr"
    xr.Dataset({"v": ("city", [1.0, 2.0, 3.0])}, {"city": ["Oslo", "", "Zürich"]}).to_zarr(text)
    for zarr_format in (2, 3):
        got = xr.open_zarr(copy(directory, f"SELECT v * 2 AS v FROM '{text}'", zarr_format=zarr_format))
        assert list(got.city.values) == ["Oslo", "", "Zürich"] and list(got.v.values) == [2, 4, 6]
        n += 1
    return n


with tempfile.TemporaryDirectory() as directory:
    print(f"{check(directory)} stores and arrays agree")
