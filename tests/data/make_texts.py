"""Writes texts/: stations whose names are texts along a dimension that something else labels, or nothing.

    pip install numpy netCDF4 zarr && python tests/data/make_texts.py

The golden script `sql/cells/station_names.slt` (`sql/goldens/texts.py`) reads what it wrote with xarray. Files of netCDF-4
differ from run to run in bytes that do not matter; values do not.
"""

import shutil
from pathlib import Path

import netCDF4
import numpy as np
import zarr

HERE = Path(__file__).parent / "texts"
# `NA` marks a name that is missing; an empty name is one.
NAMES = ["Oslo", "Köln", "NA", "Oslo", ""]
NETWORKS = ["A", "B", "A", "A", "B"]
HEIGHTS = np.array([94, 53, 12, 80, 7], "i2")
CELLS = np.array([[1.5, 2.5, 3.5, 4.5, 5.5], [6.5, np.nan, 8.5, 9.5, 10.5], [11.5, 12.5, 13.5, 14.5, 15.5]], "f4")
HOURS = "hours since 2000-01-01"
CENTRE = "Zürich"


def letters(texts, width):
    """Texts as letters: an axis more, padded with zeros."""
    encoded = np.array([text.encode() for text in texts], f"S{width}")
    return encoded.view("S1").reshape(len(texts), width)


def netcdf(name, fmt, hours=(0, 6, 12), cells=CELLS, names=NAMES):
    with netCDF4.Dataset(HERE / name, "w", format=fmt) as d:
        d.featureType = "timeSeries"
        d.createDimension("time", len(hours))
        d.createDimension("station", 5)
        d.createDimension("letters", 8)
        is_new = fmt == "NETCDF4"
        time = d.createVariable("time", "i4", ("time",))
        time.units, time[:] = HOURS, hours
        if is_new:
            v = d.createVariable("station_name", str, ("station",), fill_value="NA")
            v[:] = np.array(names, object)
            d.createVariable("centre", str, ())[...] = CENTRE
        else:
            v = d.createVariable("station_name", "S1", ("station", "letters"))
            v._Encoding, v.missing_value = "utf-8", "NA"
            v[:] = letters(names, 8)
            v = d.createVariable("centre", "S1", ("letters",))
            v._Encoding = "utf-8"
            v[:] = letters([CENTRE], 8)[0]
        packed = {"zlib": True, "chunksizes": (2, 8)} if is_new else {}
        v = d.createVariable("network", "S1", ("station", "letters"), **packed)
        v._Encoding = "utf-8"
        v[:] = letters(NETWORKS, 8)
        # A container of attributes, as CF has it: a letter that nobody wrote.
        d.createVariable("crs", "S1", ()).grid_mapping_name = "latitude_longitude"
        d.createVariable("height", "i2", ("station",))[:] = HEIGHTS
        v = d.createVariable("t", "f4", ("time", "station"))
        v.grid_mapping, v[:] = "crs", cells


def single(name, station, row):
    """The file of one station, whose name has no dimension."""
    with netCDF4.Dataset(HERE / name, "w", format="NETCDF3_CLASSIC") as d:
        d.createDimension("time", 3)
        d.createDimension("letters", 8)
        time = d.createVariable("time", "i4", ("time",))
        time.units, time[:] = HOURS, (0, 6, 12)
        v = d.createVariable("station_name", "S1", ("letters",))
        v._Encoding, v[:] = "utf-8", letters([station], 8)[0]
        d.createVariable("t", "f4", ("time",))[:] = row


def store(fmt):
    group = zarr.open_group(str(HERE / f"zarr{fmt}.zarr"), mode="w", zarr_format=fmt)

    def put(name, data, dims, attrs=None, chunks=None, **how):
        data = np.asarray(data)
        if fmt == 3:
            how["dimension_names"] = dims
        else:
            how.setdefault("fill_value", None)
        how.setdefault("dtype", data.dtype)
        chunks = chunks or [max(n, 1) for n in data.shape]
        a = group.create_array(name, shape=data.shape, chunks=chunks, compressors=None, **how)
        a[...] = data
        a.attrs.update(dict(attrs or {}, **({"_ARRAY_DIMENSIONS": list(dims)} if fmt == 2 else {})))

    put("time", np.array([0, 6, 12], "i4"), ["time"], {"units": HOURS})
    # The fill value of Zarr v2 marks what is missing, also in a chunk that is not stored.
    marks = {"fill_value": "NA"} if fmt == 2 else {}
    attrs = {} if fmt == 2 else {"missing_value": "NA"}
    put("station_name", np.array(NAMES, object), ["station"], attrs, [2], dtype=str, **marks)
    put("network", np.array(NETWORKS, "U3"), ["station"])
    put("code", np.array([b"o1", b"k", b"x9", b"o2", b""]), ["station"])
    put("centre", np.array(CENTRE), [])
    put("height", HEIGHTS, ["station"])
    put("t", CELLS, ["time", "station"])
    if fmt == 2:
        put("alias", np.array(["a", "b", "c", "d", "NA"], object), ["station"], chunks=[2], dtype=str, fill_value="NA")
    else:
        # A shard whose empty texts are not stored.
        put("alias", np.array(["a", "", "c", "", "e"], "U2"), ["station"], chunks=[1], shards=[5])
    # Texts of two dimensions have no form.
    put("pairs", np.array([["a", "b"]] * 5), ["station", "pair"])


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    netcdf("classic.nc", "NETCDF3_CLASSIC")
    netcdf("netcdf4.nc", "NETCDF4")
    for day in (0, 1):
        hours = [24 * day, 24 * day + 12]
        netcdf(f"day{day}.nc", "NETCDF3_CLASSIC", hours, CELLS[:2] + 100 * day)
        netcdf(f"moved{day}.nc", "NETCDF3_CLASSIC", hours, CELLS[:2] + 100 * day, NAMES[day:] + NAMES[:day])
    for i, station in ((0, "Oslo"), (1, "Köln")):
        single(f"site{i}.nc", station, CELLS[:, i + 3])
    store(2)
    store(3)
