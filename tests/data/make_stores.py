"""Writes stores/: what real writers put into Zarr stores and a reader may stumble over.

    python tests/data/make_stores.py

Deterministic. The golden scripts `sql/stores/*.slt` (`sql/goldens/stores.py`) read what it wrote with xarray,
zarr-python, numcodecs and cftime.
"""

import shutil
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from zarr.codecs.numcodecs import LZ4, FixedScaleOffset

HERE = Path(__file__).parent / "stores"
warnings.simplefilter("ignore")


def open_new(name, fmt):
    return zarr.open_group(str(HERE / name), mode="w", zarr_format=fmt)


def put(group, name, data, dims, attrs=None, **how):
    """An array without compression, unless `how` says otherwise; one chunk."""
    data = np.asarray(data)
    fmt = group.metadata.zarr_format
    if fmt == 3:
        how["dimension_names"] = dims
    how.setdefault("compressors", None)
    if fmt == 2:
        how.setdefault("fill_value", None)
    a = group.create_array(name, shape=data.shape, chunks=[max(n, 1) for n in data.shape], dtype=data.dtype, **how)
    a[...] = data
    a.attrs.update(dict(attrs or {}, **({"_ARRAY_DIMENSIONS": list(dims)} if fmt == 2 else {})))


# Calendar, units, dtype, numbers (None is missing), the number that means missing.
AXES = {
    "standard": ("standard", "hours since 2000-02-28", "i4", [0, 30, None, 60], -1),
    "proleptic": ("proleptic_gregorian", "days since 2000-01-01", "f8", [0.5, None, 59.25, 60], None),
    "noleap": ("noleap", "days since 2000-02-27", "i8", [0, 1, None, 2], -9999),
    "all_leap": ("all_leap", "minutes since 2001-02-28", "i4", [0, 1440, None, 2880], 2**31 - 1),
    "day360": ("360_day", "months since 2000-01-16", "f8", [0, 0.5, None, 14], None),
    "julian": ("julian", "seconds since 1900-02-28", "i8", [0, 86400, None, 172800], -1),
    "old": ("standard", "days since 1582-10-01", "f8", [0, 3, None, 4.5], None),
    "older": ("gregorian", "hours since 0850-01-01", "i8", [0, 24 * 59, None, 24 * 60], -1),
    "nano": ("standard", "nanoseconds since 2000-01-01", "i8", [0, 1_500_000, None, 3_600_000_000_000], -1),
    "weeks": ("proleptic_gregorian", "weeks since 1969-12-31 12:00:00", "i2", [0, 1, None, -1], -9),
}


def times():
    """One group for each axis: `time` with a missing label, `when` the same numbers as data, `time_bnds`."""
    root = open_new("times.zarr", 3)
    for name, (calendar, units, dtype, numbers, fill) in AXES.items():
        g = root.create_group(name)
        missing = np.nan if dtype[0] == "f" else fill
        v = np.array([missing if n is None else n for n in numbers], dtype)
        attrs = {"units": units, "calendar": calendar}
        if fill is not None:
            attrs["_FillValue"] = fill
        put(g, "time", v, ["time"], dict(attrs, bounds="time_bnds"))
        # Data before 1582 are moments of coordinates and of their bounds alone.
        if not name.startswith("old"):
            put(g, "when", v[::-1], ["time"], attrs)
        base = np.where([n is None for n in numbers], 0, v)
        put(g, "time_bnds", np.stack([base, base + 1], 1).astype(dtype), ["time", "nv"])
        put(g, "v", np.arange(4) * 10.0, ["time"])


def native():
    """NumPy's own types of time, bytes and LZ4, in both formats."""
    for fmt in (2, 3):
        g = open_new(f"native{fmt}.zarr", fmt)
        put(g, "td", np.array([1, 2, "NaT", 4], "m8[ns]"), ["td"])
        put(g, "v_td", np.arange(4.0), ["td"])
        put(g, "span", np.array([0, 15, "NaT", -3], "m8[m]"), ["td"])
        put(g, "site", np.array([b"ab", b"c", b"de", b""], "S2"), ["site"])
        put(g, "v_site", np.arange(4.0) * 2, ["site"])
        put(g, "us", np.array([0, 1000, "NaT", 86_400_000_000_000], "M8[ns]"), ["us"])
        put(g, "v_us", np.arange(4.0) * 3, ["us"])
        put(g, "ns", np.array([0, 1, 2, 1000], "M8[ns]"), ["ns"])
        put(g, "v_ns", np.arange(4.0) * 4, ["ns"])
        lz4 = numcodecs.LZ4() if fmt == 2 else LZ4()
        put(g, "lat", np.arange(40.0) * 2, ["lat"], compressors=lz4)
        put(g, "v_lat", np.repeat(np.arange(4, dtype="i4"), 10), ["lat"], compressors=lz4)


STORED = ("i1", "i2", "u1", "u2", "i4", "f4")


def scaled():
    """numcodecs' FixedScaleOffset: each type in each stored type, and a chunk that is absent."""
    for fmt in (2, 3):
        g = open_new(f"scaled{fmt}.zarr", fmt)
        for of in ("f4", "f8"):
            for stored in STORED:
                low = 0 if stored[0] == "u" else -40
                numbers = np.array([low, -3 if low else 3, 0, 1, 7, 33, 111], "f8") / 10 + 273.15
                order = "|" if stored[1] == "1" else "<"
                how = dict(offset=273.15, scale=10, dtype=f"<{of}", astype=f"{order}{stored}")
                f = numcodecs.FixedScaleOffset(**how) if fmt == 2 else FixedScaleOffset(**how)
                put(g, f"{of}_{stored}", numbers.astype(of), ["x"], filters=[f], fill_value=2.5)
        how = dict(offset=0, scale=3, dtype="<f4", astype="<i2")
        f = numcodecs.FixedScaleOffset(**how) if fmt == 2 else FixedScaleOffset(**how)
        more = {"dimension_names": ["y"]} if fmt == 3 else {}
        a = g.create_array("part", shape=(6,), chunks=(3,), dtype="f4", filters=[f], fill_value=2.5, compressors=None, **more)
        a[:3] = [1, 2, 3]
        if fmt == 2:
            a.attrs["_ARRAY_DIMENSIONS"] = ["y"]


def cmip():
    """As a model writes its output: bounds of everything, a hybrid coordinate with terms, 360 days."""
    g = open_new("cmip.zarr", 2)
    t = np.array([15.0, 45, 75])
    cube = np.arange(3 * 2 * 2 * 2, dtype="f4").reshape(3, 2, 2, 2)
    put(g, "ta", cube, ["time", "lev", "lat", "lon"], {"coordinates": "height"}, fill_value=1e20)
    put(g, "ps", cube[:, 0] + 1000, ["time", "lat", "lon"], fill_value=1e20)
    put(g, "time", t, ["time"], {"units": "days since 2000-01-01", "calendar": "360_day", "bounds": "time_bnds"})
    put(g, "time_bnds", np.stack([t - 15, t + 15], 1), ["time", "bnds"])
    put(g, "lev", [0.9, 0.5], ["lev"], {"bounds": "lev_bnds", "formula_terms": "a: a b: b ps: ps"})
    put(g, "lev_bnds", [[1.0, 0.7], [0.7, 0.3]], ["lev", "bnds"], {"formula_terms": "a: a_bnds b: b_bnds ps: ps"})
    put(g, "a", [0.1, 0.2], ["lev"])
    put(g, "b", [0.8, 0.3], ["lev"])
    put(g, "a_bnds", [[0.0, 0.15], [0.15, 0.25]], ["lev", "bnds"])
    put(g, "b_bnds", [[1.0, 0.5], [0.5, 0.0]], ["lev", "bnds"])
    put(g, "lat", [5.0, 15.0], ["lat"], {"units": "degrees_north", "bounds": "lat_bnds"})
    put(g, "lat_bnds", [[0.0, 10], [10, 20]], ["lat", "bnds"])
    put(g, "lon", [0.5, 1.5], ["lon"], {"units": "degrees_east", "bounds": "lon_bnds"})
    put(g, "lon_bnds", [[0.0, 1], [1, 2]], ["lon", "bnds"])
    put(g, "height", np.array(2.0), [])
    zarr.consolidate_metadata(str(HERE / "cmip.zarr"), zarr_format=2)


def words():
    """Attributes that are NaN and infinities, as xarray writes `encoding={'missing_value': nan}`."""
    for fmt in (2, 3):
        for consolidated in (False, True):
            name = f"words{fmt}{'c' if consolidated else ''}.zarr"
            g = open_new(name, fmt)
            put(g, "lat", [2.0, 4, 6, 8], ["lat"], {"actual_range": [-np.inf, np.inf], "odd": np.nan})
            put(g, "v", [0.0, 10, np.nan, 30], ["lat"], {"missing_value": np.nan})
            put(g, "w", np.arange(4, dtype="i4"), ["lat"])
            if consolidated:
                zarr.consolidate_metadata(str(HERE / name), zarr_format=fmt)


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    times()
    native()
    scaled()
    cmip()
    words()
