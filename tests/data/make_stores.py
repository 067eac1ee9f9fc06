"""Writes stores/: what real writers put into Zarr stores and a reader may stumble over.

    python tests/data/make_stores.py

Deterministic. The golden scripts `sql/stores/*.slt` (`sql/goldens/stores.py`) read what it wrote with xarray,
zarr-python, numcodecs and cftime.
"""

import json
import shutil
import tempfile
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.codecs import numcodecs as v3
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


# Codecs of numcodecs by the names of their arrays: those of arrays (filters), and those of bytes.
NUMBERS = np.array([0.25, 1.75, -3.5, 0, 8, 8.25, 1e3, -0.75])
FILTERS = {
    "delta": [("Delta", dict(dtype="<f8"))],
    "delta_as": [("Delta", dict(dtype="<f8", astype="<f4"))],
    "delta_i2": [("Delta", dict(dtype="<i4", astype="<i2"))],
    "quantize": [("Quantize", dict(digits=1, dtype="<f8"))],
    "bitround": [("BitRound", dict(keepbits=12))],
    "bitround_delta": [("BitRound", dict(keepbits=12)), ("Delta", dict(dtype="<f8"))],
    "astype": [("AsType", dict(encode_dtype="<f4", decode_dtype="<f8"))],
    "astype_i2": [("AsType", dict(encode_dtype="<i2", decode_dtype="<f8"))],
    "scaled_delta": [("FixedScaleOffset", dict(offset=0, scale=4, dtype="<f8", astype="<i4")), ("Delta", dict(dtype="<i4"))],
    "packbits": [("PackBits", {})],
}
BYTES = {
    "blosc": [("Blosc", dict(cname="zstd", shuffle=2))],
    "zstd": [("Zstd", dict(level=3))],
    "zlib": [("Zlib", {})],
    "gzip": [("GZip", {})],
    "bz2": [("BZ2", {})],
    "lzma": [("LZMA", dict(preset=1))],
    "shuffle_zlib": [("Shuffle", dict(elementsize=8)), ("Zlib", dict(level=9))],
    "lz4_zstd": [("LZ4", {}), ("Zstd", {})],
    "crc32": [("CRC32", {})],
    "crc32_end": [("CRC32", dict(location="end"))],
    "crc32c": [("CRC32C", {})],
    "crc32c_start": [("CRC32C", dict(location="start"))],
    "adler32": [("Adler32", {})],
    "fletcher32": [("Fletcher32", {})],
    "jenkins": [("JenkinsLookup3", {})],
    "mixed": [("Shuffle", {}), ("CRC32", {}), ("Blosc", {}), ("Fletcher32", {}), ("BZ2", {}), ("GZip", {}), ("Zlib", {}), ("Shuffle", dict(elementsize=1))],
}


def numbers(name):
    """The cells of the array of that name."""
    if name == "packbits":
        return NUMBERS > 0.5
    return NUMBERS.astype("i4") if name == "delta_i2" else NUMBERS


def codecs(root, fmt):
    """Each codec in an array of two chunks, the last one of three absent."""
    g = zarr.open_group(root, mode="w", zarr_format=fmt)
    # gzip writes the time.
    no_time = mock.patch("gzip.time", SimpleNamespace(time=lambda: 0))
    made = lambda of: [getattr(v3 if fmt == 3 else numcodecs, name)(**how) for name, how in of]
    for name in {**FILTERS, **BYTES}:
        v = numbers(name)
        # The filters of Zarr v2 are those of bytes, too.
        how = dict(filters=made(FILTERS.get(name, BYTES.get(name) if fmt == 2 else [])), compressors=None)
        if fmt == 3:
            how = dict(how, compressors=made(BYTES.get(name, [])), dimension_names=["x"])
        fill = True if name == "packbits" else 7
        a = g.create_array(name, shape=(12,), chunks=(4,), dtype=v.dtype, fill_value=fill, **how)
        with no_time:
            a[:8] = v
    if fmt == 2:
        cube = np.arange(24).reshape(4, 6)
        for name, v, of in (("columns", cube, [numcodecs.Delta("<i8", "<i4")]), ("column_bits", cube % 3 == 0, [numcodecs.PackBits()])):
            a = g.create_array(name, shape=v.shape, chunks=(3, 4), dtype=v.dtype, order="F", filters=of, compressors=None)
            a[...] = v
    if fmt == 3:
        inner = [v3.Delta(dtype="<f8"), BytesCodec(), v3.Shuffle(elementsize=8), v3.Zstd(), v3.CRC32()]
        shards = ShardingCodec(chunk_shape=(2,), codecs=inner)
        a = g.create_array("shards", shape=(12,), chunks=(4,), dtype="f8", fill_value=7, serializer=shards, compressors=None, dimension_names=["x"])
        a[:8] = NUMBERS


# Fill values in the forms of other writers, with the dtype.
FILLS = {"i_float": ("i4", -3.0), "i_text": ("i4", "3"), "f_text": ("f4", "3.5"), "f_whole": ("f8", 3), "f_inf": ("f4", "-Infinity"), "b_number": ("bool", 0)}
FILLS3 = {"f_bits": ("f4", "0xbf800000"), "f2_bits": ("f2", "0x3e00"), "u8_max": ("u8", 2**64 - 1)}
FILLS2 = {"f_nan": ("f4", "nan"), "f_null": ("f8", None), "dt_null": ("M8[s]", None), "td_null": ("m8[s]", None)}


def fills(root, fmt):
    """Arrays of which nothing is stored."""
    g = zarr.open_group(root, mode="w", zarr_format=fmt)
    for name, (dtype, fill) in {**FILLS, **(FILLS3 if fmt == 3 else FILLS2)}.items():
        g.create_array(name, shape=(3,), chunks=(2,), dtype=dtype)
        path = Path(root) / name / ("zarr.json" if fmt == 3 else ".zarray")
        path.write_text(json.dumps({**json.loads(path.read_text()), "fill_value": fill}))


TYPES = {
    "ten": np.array([1, "NaT", 3], "M8[10s]"),
    "days": np.array(["2020-01-01", "NaT", "1969-07-20"], "M8[D]"),
    "nanos": np.array(["2020-01-01", "NaT", "2021-05-05T01:02:03.000004"], "M8[ns]"),
    "five": np.array([1, "NaT", 3], "m8[5m]"),
    "half": np.array([1.5, np.nan, -np.inf], "f2"),
    "truth": np.array([True, False, True]),
    "texts": np.array(["ab", "xyz", "\u00e9"], "<U5"),
    "letters": np.array([b"ab", b"c", b""], "S4"),
    "months": np.array(["2020-01", "NaT", "2020-02"], "M8[M]"),
    "years": np.array([1, 2, 3], "m8[Y]"),
    "complex": np.array([1 + 2j, 0, 3]),
    "records": np.array([(1, 2.5)] * 3, [("a", "i4"), ("b", "f8")]),
    "raw": np.array([b"ab", b"cd", b"ef"], "V2"),
}


def types(root):
    g = zarr.open_group(root, mode="w", zarr_format=3)
    for name, v in TYPES.items():
        # Texts label a dimension of their own.
        put(g, name, v, [name if name in ("texts", "letters") else "n"])
    put(g, "v_texts", np.arange(3.0), ["texts"])
    put(g, "v_letters", np.arange(3.0), ["letters"])


def packed(root, target, method=zipfile.ZIP_STORED, first=()):
    """Packs a store, as `zarr.storage.ZipStore` writes it; `first`: members before those of the store."""
    with zipfile.ZipFile(HERE / target, "w", method) as z:
        for name, content in first:
            z.writestr(zipfile.ZipInfo(name), content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for path in sorted(p for p in Path(root).rglob("*") if p.is_file()):
                z.writestr(zipfile.ZipInfo(path.relative_to(root).as_posix()), path.read_bytes(), method)


def archives():
    """Stores in archives: codecs; groups with shards, stored, compressed, and below a directory; members written twice."""
    for fmt in (2, 3):
        with tempfile.TemporaryDirectory() as root:
            codecs(root, fmt)
            packed(root, f"codecs{fmt}.zarr.zip")
        with tempfile.TemporaryDirectory() as root:
            fills(root, fmt)
            packed(root, f"fills{fmt}.zarr.zip")
    with tempfile.TemporaryDirectory() as root:
        types(root)
        packed(root, "types3.zarr.zip")
    with tempfile.TemporaryDirectory() as root:
        top = Path(root) / "inner"
        g = zarr.open_group(str(top), mode="w", zarr_format=3, attributes={"title": "packed"})
        put(g, "x", np.array([10.0, 20, 30, 40]), ["x"])
        a = g.create_group("deep").create_array("v", shape=(8, 4), chunks=(2, 2), shards=(4, 4), dtype="f4", dimension_names=["y", "x"])
        a[:4] = np.arange(16).reshape(4, 4)
        put(g["deep"], "x", np.array([1.0, 2, 3, 4]), ["x"])
        put(g, "w", np.arange(4, dtype="i2"), ["x"])
        # What a writer replaced is still in the archive, before it.
        old = [("w/c/0", bytes(8)), ("zarr.json", b"{}"), ("x/zarr.json", b"damaged"), ("deep/", b"")]
        packed(top, "groups.zarr.zip", first=old)
        packed(top, "deflated.zarr.zip", zipfile.ZIP_DEFLATED)
        packed(top, "bzip2.zarr.zip", zipfile.ZIP_BZIP2)
        packed(top, "lzma.zarr.zip", zipfile.ZIP_LZMA)
        packed(root, "below.zarr.zip")


if __name__ == "__main__":
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    times()
    native()
    scaled()
    cmip()
    words()
    archives()
