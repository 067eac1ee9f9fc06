"""Prints expected.txt: digests of every readable array of tests/data as zarr-python, NumPy and xarray read it.

    python crates/storage/src/source/tests/make_expected.py > crates/storage/src/source/tests/expected.txt

One line each: path, array, dtype, shape, 64-bit FNV-1a of the cells (row-major, little-endian, NaN canonical).
`raw` lines are cells as stored (float16 as float32, datetime64 in microseconds); `cf` lines are decoded values as
float64 with NaN where missing; `time` lines are labels in microseconds since 1970-01-01 of their calendar.
"""

import warnings
from pathlib import Path

import cftime
import numpy as np
import xarray as xr
import zarr

warnings.simplefilter("ignore")
DATA = Path(__file__).resolve().parents[5] / "tests" / "data"


def digest(a):
    a = np.ascontiguousarray(a, dtype=a.dtype.newbyteorder("<"))
    if a.dtype.kind == "f":
        a = np.where(np.isnan(a), np.array(np.nan, a.dtype), a)
    h = 0xCBF29CE484222325
    for b in np.ascontiguousarray(a).tobytes():
        h = ((h ^ b) * 0x100000001B3) & (2**64 - 1)
    return f"{h:016x}"


def show(kind, path, name, a):
    if a.dtype == "f2":
        a = a.astype("f4")
    if a.dtype.kind == "M":
        a = a.astype("M8[us]").astype("i8")
    if a.dtype.kind in "biuf":
        print(kind, path, name or "-", a.dtype.newbyteorder("=").name, "x".join(map(str, a.shape)) or "-", digest(a))


for path in ["zarr_zoo/v2.zarr", "zarr_zoo/v3.zarr", "colpex.v2.zarr", "colpex.v3.zarr"]:
    for name, array in sorted(zarr.open_group(str(DATA / path), mode="r").arrays()):
        show("raw", path, name, np.asarray(array[...]))
for path in sorted((DATA / "npy").glob("*.npy")):
    show("raw", f"npy/{path.name}", "", np.load(path))
with np.load(DATA / "npy" / "two.npz") as members:
    for name in sorted(members.files):
        show("raw", "npy/two.npz", name, members[name])

for path in ["air.zarr", "air3.zarr", "noleap.zarr", "day360.zarr", "units.zarr"]:
    data = xr.open_zarr(str(DATA / "cf" / path), consolidated=False)
    for name in sorted(map(str, data.variables)):
        v = data[name]
        if v.dtype.kind == "M":
            show("time", f"cf/{path}", name, v.values)
        elif v.dtype.kind == "O":
            us = cftime.date2num(v.values, "microseconds since 1970-01-01", v.values[0].calendar)
            show("time", f"cf/{path}", name, np.asarray(us, "i8"))
        else:
            # xarray leaves valid_range alone; CF says that cells outside are missing.
            low, high = v.attrs.get("valid_range", (-np.inf, np.inf))
            show("cf", f"cf/{path}", name, v.where((v >= low) & (v <= high)).values.astype("f8"))
