"""Makes the files of this directory that no other project made: `python make.py`.

Beside each file are the cells that xarray (or safetensors) reads, as `.npy`, and `cases.tsv` says which SQL gives them.
"""

import base64
import json
import shutil
from pathlib import Path

import fsspec
import kerchunk.df
import kerchunk.netCDF3
import ml_dtypes
import netCDF4
import numpy as np
import pandas as pd
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
rng = np.random.default_rng(30)


class Cases:
    """The cases of one format."""

    def __init__(self, name):
        self.directory, self.lines = HERE / name, []
        self.directory.mkdir(exist_ok=True)

    def path(self, name):
        return str(self.directory / name)

    def add(self, name, sql, expected):
        """`{}` in the SQL is the path of the file."""
        expected = np.asarray(expected)
        if expected.dtype.kind == "M":
            expected = expected.astype("M8[us]")
        file = f"{Path(name).name}.{len(self.lines)}.npy"
        np.save(self.directory / file, expected, allow_pickle=False)
        self.lines.append("\t".join([name, sql, file]))

    def close(self):
        (self.directory / "cases.tsv").write_text("\n".join(self.lines) + "\n")


def cube():
    times = pd.date_range("2020-01-01", periods=12, freq="MS")
    t2m = (280 + 10 * rng.standard_normal((12, 7, 9))).astype("f4")
    t2m[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), t2m, {"units": "K", "long_name": "2 metre temperature"}),
            "pr": (("time", "lat", "lon"), rng.random((12, 7, 9))),
            "mask": (("lat", "lon"), rng.integers(0, 2, (7, 9)).astype("i1")),
            "obs": (("station", "time"), rng.standard_normal((3, 12)).astype("f4")),
        },
        coords={
            "time": times,
            "lat": np.linspace(60, 30, 7),
            "lon": np.linspace(0, 40, 9),
            "station": ["Kiel", "Köln", "Ulm"],
        },
        attrs={"title": "a cube"},
    )


PACKED = {
    "dtype": "i2",
    "scale_factor": np.float32(0.01),
    "add_offset": np.float32(280),
    "_FillValue": np.int16(-32768),
}


def netcdf():
    cases, ds = Cases("netcdf"), cube()
    fixed, records = cases.path("fixed.nc"), cases.path("records.nc")
    ds.to_netcdf(fixed, format="NETCDF3_CLASSIC", encoding={"t2m": PACKED})
    ds.drop_vars("obs").to_netcdf(
        records, format="NETCDF3_64BIT", unlimited_dims=["time"], encoding={"t2m": PACKED}
    )
    for path in (fixed, records):
        name, read = Path(path).name, xr.open_dataset(path)
        for v in ("t2m", "pr", "mask"):
            cases.add(name, f"SELECT {v} FROM '{{}}'", read[v])
        cases.add(name, "SELECT t2m[3:9, 2, ::-2] FROM '{}'", read.t2m[3:9, 2, ::-2])
        box = read.pr.sel(time=slice("2020-03", "2020-08"), lat=slice(55, 40))
        cases.add(name, "SELECT pr[time => '2020-03':'2020-08', lat => 55:40] FROM '{}'", box)
        cases.add(name, "SELECT max(pr, axis => 'time') FROM '{}'", read.pr.max("time"))
    cases.add("fixed.nc", "SELECT obs[station => 'Köln'] FROM '{}'", read_station(fixed))
    with netCDF4.Dataset(cases.path("cdf5.nc"), "w", format="NETCDF3_64BIT_DATA") as d:
        d.createDimension("time", None)
        d.createDimension("x", 5)
        for i, dtype in enumerate(["u8", "i8", "u4", "i4", "u2", "i2", "u1", "i1", "f4", "f8"]):
            v = d.createVariable(f"v_{dtype}", dtype, ("time", "x") if i % 2 else ("x",))
            high = min(np.iinfo(dtype).max, 2**63 - 1) if dtype[0] in "ui" else 10
            v[:] = rng.integers(0, high, (4, 5) if i % 2 else 5).astype(dtype)
        v = d.createVariable("time", "i8", ("time",))
        v.units, v.calendar = "days since 2000-01-01", "noleap"
        v[:] = np.arange(57, 61)
    read = xr.open_dataset(cases.path("cdf5.nc"), decode_times=False, mask_and_scale=False)
    for v in read.data_vars:
        cases.add("cdf5.nc", f"SELECT {v} FROM '{{}}'", read[v])
    # One variable has all records for itself: they are not padded.
    with netCDF4.Dataset(cases.path("odd.nc"), "w", format="NETCDF3_CLASSIC") as d:
        d.createDimension("t", None)
        d.createDimension("x", 3)
        d.createVariable("v", "i1", ("t", "x"))[:] = rng.integers(-9, 9, (5, 3))
    read = xr.open_dataset(cases.path("odd.nc"), mask_and_scale=False)
    cases.add("odd.nc", "SELECT v FROM '{}'", read.v)
    for year in (2000, 2001, 2002):
        times = pd.date_range(f"{year}-01-01", f"{year}-12-31", freq="5D")
        v = (280 + rng.standard_normal((len(times), 3, 4))).astype("f4")
        v[0, 1, 1] = np.nan
        part = xr.Dataset(
            {"v": (("time", "lat", "lon"), v), "land": (("lat", "lon"), np.eye(3, 4))},
            coords={"time": times, "lat": [50.0, 40, 30], "lon": [0.0, 10, 20, 30]},
        )
        packed = dict(PACKED, scale_factor=0.01 + 0.001 * (year - 2000), add_offset=280.0)
        part.to_netcdf(
            cases.path(f"year{year}.nc"),
            format="NETCDF3_64BIT",
            unlimited_dims=["time"],
            encoding={"v": packed},
        )
    years = [cases.path(f"year{y}.nc") for y in (2000, 2001, 2002)]
    read = xr.open_mfdataset(years, data_vars="minimal", coords="minimal", compat="override")
    cases.add("year*.nc", "SELECT v FROM '{}'", read.v.astype("f8"))
    box = read.v.sel(time=slice("2000-12-20", "2001-01-20")).astype("f8")
    cases.add("year*.nc", "SELECT v[time => '2000-12-20':'2001-01-20'] FROM '{}'", box)
    cases.add("year*.nc", "SELECT land FROM '{}'", read.land)
    cases.add("year*.nc", "SELECT max(v, 0) FROM '{}'", read.v.astype("f8").max("time"))
    cases.close()


def read_station(path):
    ds = xr.open_dataset(path)
    return ds.obs.isel(station=[s for s in ds.station.values].index("Köln"))


def shuffled():
    """Years that do not end at a chunk, with shuffle and deflate, also of numbers with the highest byte first."""
    cases, own, start = Cases("shuffled"), np.random.default_rng(31), 0
    for year, n in enumerate((10, 9, 7)):
        with netCDF4.Dataset(cases.path(f"year{year}.nc"), "w") as d:
            for name, labels in (("time", start + np.arange(n)), ("lat", np.arange(5)), ("lon", np.arange(6))):
                d.createDimension(name, len(labels))
                d.createVariable(name, "i4", (name,))[:] = labels
            d["time"].units = "days since 2000-01-01"
            packed = {"zlib": True, "shuffle": True, "fill_value": False}
            v = d.createVariable("v", "f4", ("time", "lat", "lon"), chunksizes=(4, 5, 6), **packed)
            v[:] = own.standard_normal((n, 5, 6))
            big = d.createVariable("big", ">i4", ("time", "lat", "lon"), chunksizes=(4, 2, 4), endian="big", **packed)
            big[:] = own.integers(-(2**31), 2**31, (n, 5, 6))
        start += n
    read = xr.open_mfdataset(sorted(cases.directory.glob("*.nc")), combine="by_coords", engine="netcdf4")
    for v in ("v", "big"):
        cells = read[v].astype(read[v].dtype.newbyteorder("="))
        cases.add("year*.nc", f"SELECT {v} FROM '{{}}'", cells)
        cases.add("year*.nc", f"SELECT {v}[3:17, 1:4, 2:] FROM '{{}}'", cells[3:17, 1:4, 2:])
        cases.add("year*.nc", f"SELECT max({v}, 0) FROM '{{}}'", cells.max("time"))
        cases.add("year1.nc", f"SELECT {v} FROM '{{}}'", cells[10:19])
    cases.close()


def safetensors():
    cases = Cases("safetensors")
    wide = rng.standard_normal((6, 5)).astype("f4")
    tensors = {
        "layer.0.weight": wide,
        "half": wide.astype("f2"),
        "brain": wide.astype(ml_dtypes.bfloat16),
        "e4m3": wide.astype(ml_dtypes.float8_e4m3fn),
        "e5m2": wide.astype(ml_dtypes.float8_e5m2),
        "index": rng.integers(-9, 9, 7),
        "flags": rng.random(9) > 0.5,
        "scalar": np.float64(2.5),
        "empty": np.zeros((0, 3), "f4"),
    }
    # Each value of the 8-bit types.
    bits = np.arange(256, dtype="u1")
    tensors |= {
        "all_e4m3": bits.view(ml_dtypes.float8_e4m3fn),
        "all_e5m2": bits.view(ml_dtypes.float8_e5m2),
    }
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, cases.path("model.safetensors"), {"format": "np"})
    for name, cells in tensors.items():
        # The writer makes arrays of 0-d ones.
        cells = np.ascontiguousarray(cells)
        narrow = cells.dtype.itemsize <= 2 and cells.dtype != bool
        expected = cells.astype("f4") if narrow else cells
        cases.add("model.safetensors", f'SELECT "{name}" FROM \'{{}}\'', expected)
    cases.close()


def references():
    cases = Cases("references")
    source = HERE / "netcdf" / "records.nc"
    refs = kerchunk.netCDF3.NetCDF3ToZarr(str(source), inline_threshold=100).translate()
    text = json.dumps(refs).replace(str(source), "{{u}}/records.nc")
    document = json.loads(text)
    document["templates"] = {"u": "../netcdf"}
    (cases.directory / "records.json").write_text(json.dumps(document))
    read = xr.open_dataset(source)
    cases.add("records.json", "SELECT pr FROM read_references('{}')", read.pr)
    # The factors are numbers of JSON, so float64; kerchunk writes them with the digits of the float32.
    cells = xr.open_dataset(source, mask_and_scale=False).t2m[2:5, :, 3] * 0.01 + 280.0
    cases.add("records.json", "SELECT t2m[2:5, :, 3] FROM read_references('{}')", cells)
    tables(cases, refs)
    odd_tables(cases)
    cases.close()


def tables(cases, refs):
    """The same references in tables of five rows each, so that an array has three."""
    directory = cases.path("records.refs")
    text = json.dumps(refs).replace(str(HERE), "../..")
    kerchunk.df.refs_to_dataframe(json.loads(text), directory, record_size=5)
    read = xr.open_dataset(HERE / "netcdf" / "records.nc")
    cases.add("records.refs", "SELECT pr FROM '{}'", read.pr)
    cases.add("records.refs", "SELECT pr[7, 2:5, ::2] FROM read_references('{}')", read.pr[7, 2:5, ::2])
    box = read.pr.sel(time=slice("2020-03", "2020-08"), lat=slice(55, 40))
    cases.add("records.refs", "SELECT pr[time => '2020-03':'2020-08', lat => 55:40] FROM '{}'", box)


def odd_tables(cases):
    """Whole files, bytes in the table, chunks and tables that are absent, a point, a group, other codecs of Parquet."""
    directory = Path(cases.path("odd.refs"))
    shutil.rmtree(directory, ignore_errors=True)
    parts = Path(cases.path("parts.bin"))
    cells = np.arange(48, dtype="<i4").reshape(6, 8)
    parts.write_bytes(b"head" + cells.tobytes())
    Path(cases.path("whole.bin")).write_bytes(cells[:2, :4].tobytes())
    out = LazyReferenceMapper.create(str(directory), fs=fsspec.filesystem("file"), record_size=4)

    def array(path, shape, chunks, dims, dtype="<i4", **more):
        meta = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "order": "C"}
        meta |= {"compressor": None, "filters": None, "fill_value": -7} | more
        out[f"{path}/.zarray"] = json.dumps(meta)
        out[f"{path}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})

    for group in ("", "deep/"):
        out[f"{group}.zgroup"] = json.dumps({"zarr_format": 2})
    # Chunks of 2 by 4 cells: 3 by 2 of them, in two tables.
    array("v", [6, 8], [2, 4], ["y", "x"])
    out["v/0.0"] = ["../whole.bin"]
    out["v/1.0"] = (cells[2:4, :4] + 100).tobytes()
    out["v/2.1"] = "base64:" + base64.b64encode((cells[4:, 4:] + 200).tobytes()).decode()
    # Rows of 8 cells as they are in the file; of the fourth to the last table there is none.
    array("deep/rows", [16, 8], [1, 8], ["row", "x"])
    for i in (0, 3, 5):
        out[f"deep/rows/{i}.0"] = ["../parts.bin", 4 + 32 * i, 32]
    array("deep/point", [], [], [])
    out["deep/point/0"] = np.int32(42).tobytes()
    array("deep/nothing", [3], [3], ["none"])
    out.flush()
    # A table of bytes alone, and one without bytes, with another codec and narrow numbers.
    def file(array, i):
        return directory / array / f"refs.{i}.parq"

    table = pd.read_parquet(file("v", 1))
    table[["raw"]].to_parquet(file("v", 1), engine="pyarrow", compression="snappy", index=False)
    table = pd.read_parquet(file("deep/rows", 0))
    table = table[["path", "offset", "size"]].astype({"path": "category", "offset": "i4", "size": "i4"})
    table.to_parquet(file("deep/rows", 0), engine="pyarrow", compression="lz4", index=False)
    # No table of references: a column is missing.
    table[["path", "offset"]].to_parquet(cases.path("lacking.parq"), index=False)

    # Chunks by their row in the table, as fsspec's reader takes them.
    v = np.full((6, 8), -7, "<i4")
    v[:2, :4], v[2:4, :4], v[4:, 4:] = cells[:2, :4], cells[2:4, :4] + 100, cells[4:, 4:] + 200
    rows = np.full((16, 8), -7, "<i4")
    for i in (0, 3, 5):
        rows[i] = cells[i]
    fs = LazyReferenceMapper(str(directory), fsspec.filesystem("file"))
    assert fs["v/0.0"] == ["../whole.bin"] and fs["v/1.0"] == (cells[2:4, :4] + 100).tobytes()
    assert list(fs["deep/rows/5.0"]) == ["../parts.bin", 164, 32] and "v/2.1" in fs

    def is_absent(key):
        # With pandas 3 the reader has NaN for null.
        return key not in fs or fs[key][0] is None or fs[key][0] != fs[key][0]

    assert all(is_absent(key) for key in ("deep/rows/7.0", "deep/rows/15.0", "v/0.1"))
    raw = "read_references('{}', decode_cf => false)"
    cases.add("odd.refs", f"SELECT v FROM {raw}", v)
    raw = "read_references('{}#deep', decode_cf => false)"
    cases.add("odd.refs", f'SELECT "rows" FROM {raw}', rows)
    cases.add("odd.refs", f"SELECT point FROM {raw}", np.int32(42))
    cases.add("odd.refs", f"SELECT nothing FROM {raw}", np.full(3, -7, "<i4"))


if __name__ == "__main__":
    netcdf()
    shuffled()
    safetensors()
    references()
