"""Writes expected.jsonl: what eccodes reads in each message of the files of this folder, `python make_expected.py`.

Values are float64 rounded to float32, in rows from the first to the last point whatever the scanning mode, NaN where
they are missing; of them there are the CRC-32 of their little-endian bytes and a few samples.
"""

import json
import sys
import zlib
from datetime import datetime, timezone
from pathlib import Path

import eccodes as ec
import numpy as np

HERE = Path(__file__).parent
FILES = [Path(f) for f in sys.argv[1:]] or sorted([*HERE.glob("*.grib*"), *HERE.glob("real/*.grib*")])
SECONDS = {0: 60, 1: 3600, 2: 86400, 10: 10800, 11: 21600, 12: 43200, 13: 1, 14: 900, 15: 1800}
TEXTS = ("cfVarName", "shortName", "units", "name", "typeOfLevel", "stepType", "gridType")


def get(h, key, kind=None):
    try:
        return ec.codes_get(h, key, kind)
    except ec.CodesInternalError:
        return None


def samples(a):
    at = np.linspace(0, a.size - 1, 3).astype(int)
    return [[int(i), None if np.isnan(a.flat[i]) else float(a.flat[i])] for i in at]


def crc(a):
    return zlib.crc32(np.ascontiguousarray(a).tobytes())


def points(h, grid, shape):
    """Latitudes and longitudes along the axes of a regular grid, or of some points."""
    if grid in ("regular_ll", "regular_gg"):
        ny, nx = shape
        lat, lon = (np.unique(ec.codes_get_double_array(h, f"distinct{k}")) for k in ("Latitudes", "Longitudes"))
        if not get(h, "jScansPositively"):
            lat = lat[::-1]
        if get(h, "iScansNegatively"):
            lon = lon[::-1]
        return {"axes": [lat.tolist(), lon.tolist()]} if max(lat.size, lon.size) < 40 else {
            "axes_crc": [crc(lat), crc(lon)], "ends": [lat[0], lat[-1], lon[0], lon[-1]], "n": [lat.size, lon.size]}
    try:
        lat, lon = (ec.codes_get_double_array(h, k) for k in ("latitudes", "longitudes"))
    except ec.CodesInternalError:
        return {}
    at = np.linspace(0, lat.size - 1, 7).astype(int)
    return {"points": [[int(i), lat[i], lon[i]] for i in at]}


def expected(h, before, seen):
    grid = get(h, "gridType")
    out = {k: get(h, k, str) for k in TEXTS}
    out |= {"edition": get(h, "edition"), "paramId": get(h, "paramId", int), "level": get(h, "level", float)}
    codes = ("discipline", "parameterCategory", "parameterNumber") if out["edition"] == 2 else ("table2Version", "indicatorOfParameter")
    out["codes"] = [get(h, k, int) for k in codes]
    if grid == "sh":
        return out, before
    date, clock = get(h, "dataDate"), get(h, "dataTime")
    second = get(h, "second") or 0
    moment = datetime(date // 10000, date // 100 % 100, date % 100, clock // 100, clock % 100, second, tzinfo=timezone.utc)
    out["time"] = int(moment.timestamp())
    out["step"] = ec.codes_get(h, "endStep", int) * SECONDS[ec.codes_get(h, "stepUnits", int)]
    out["number"] = get(h, "number", int)
    ec.codes_set(h, "missingValue", 3.0e38)
    try:
        v = ec.codes_get_values(h)
    except ec.CodesInternalError:
        v = before
    raw = v
    v = v.copy()
    v[v == 3.0e38] = np.nan
    shape = (v.size,)
    if get(h, "Nx") and get(h, "Ny") and not grid.startswith("reduced"):
        ny, nx = shape = (get(h, "Ny"), get(h, "Nx"))
        by_column = get(h, "jPointsAreConsecutive")
        v = v.reshape((nx, ny) if by_column else (ny, nx))
        if get(h, "alternativeRowScanning"):
            v[1::2] = v[1::2, ::-1]
        v = v.T if by_column else v
    v = v.astype("<f4")
    out |= {"shape": list(shape), "crc": crc(v), "samples": samples(v)}
    here = points(h, grid, shape)
    # Once for each grid.
    known = seen.setdefault(ec.codes_get(h, "md5GridSection", str), here)
    return out | (here if known is here else {}), raw


ec.codes_grib_multi_support_on()
with open(HERE / "expected.jsonl" if len(sys.argv) == 1 else "/dev/stdout", "w") as to:
    for path in FILES:
        before, seen = None, {}
        with open(path, "rb") as f:
            while (h := ec.codes_grib_new_from_file(f)) is not None:
                row, before = expected(h, before, seen)
                name = str(path.relative_to(HERE)) if path.is_relative_to(HERE) else str(path)
                to.write(json.dumps({"file": name} | row, separators=(",", ":")) + "\n")
                ec.codes_release(h)
