"""Writes the fixtures beside this file: zarr_zoo/, cf/, npy/, cases.zarr, bad/.

    pip install numpy zarr numcodecs && python tests/data/make_fixtures.py

It is deterministic; the golden scripts (sql/make_goldens.py) read what it wrote with zarr-python and
NumPy. To add an array, add a line to `V2` or `V3` below. The colpex cubes are not made here (COLPEX.md).
"""

import base64
import gzip
import json
import shutil
import struct
import types
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

HERE = Path(__file__).parent
gzip.time = types.SimpleNamespace(time=lambda: 0)  # gzip stamps its header with the hour otherwise
NAN64 = base64.b64encode(struct.pack("<d", float("nan"))).decode()  # xarray's _FillValue in v3


# ---------------------------------------------------------------- values
def ramp(dtype, shape=(5, 7)):
    """Small signed values with the dtype's extremes in the corners (NaN, infinities and -0.0 for floats)."""
    dtype = np.dtype(dtype)
    n = int(np.prod(shape))
    if dtype == bool:
        return (np.arange(n) % 3 == 0).reshape(shape)
    base = np.arange(n)
    if dtype.kind == "u":
        flat = base.astype(dtype)
    elif dtype.kind == "i":
        flat = (base - n // 2).astype(dtype)
    elif dtype.kind == "c":
        flat = ((base - n // 2) / 4 + 1j * base).astype(dtype)
    else:
        flat = ((base - n // 2) / 4).astype(dtype)
    if n >= 12:
        if dtype.kind in "iu":
            flat[0], flat[-1] = np.iinfo(dtype).min, np.iinfo(dtype).max
        elif dtype.kind == "f":
            flat[0], flat[1], flat[2], flat[3] = np.nan, np.inf, -np.inf, -0.0
            flat[-1] = np.finfo(dtype).max
            flat[-2] = np.finfo(dtype).tiny
    return flat.reshape(shape)


INTS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
F8 = np.round(np.sin(np.arange(35)).reshape(5, 7) * 100, 2)
I4 = np.arange(-17, 18, dtype="i4").reshape(5, 7) * 1000
F4 = F8.astype("f4")
BIG = np.arange(3 * 4 * 5, dtype="i4").reshape(3, 4, 5)
BLOSC = numcodecs.Blosc


def part(a, chunks):
    """Writes only the first chunk along every axis: the others stay absent."""
    def write(array):
        where = tuple(slice(0, c) for c in chunks)
        array[where] = a[where]
    return write


# name, data, chunks, keywords of Group.create_array (and write=, attrs=)
V2 = [
    ("bool", ramp(bool), (2, 3), {}),
    *[(t, ramp(t), (2, 3), {}) for t in INTS + FLOATS],
    *[(f"be_{t}", ramp(t).astype(f">{t}"), (2, 3), {}) for t in ["i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"]],
    ("c16", ramp("c16"), (2, 3), {}),
    ("dt64", np.array(["2020-01-01", "2020-02-29T12:00", "1969-12-31T23:59:59"], "M8[ns]"), (2,), {}),
    ("none", F8, (2, 3), dict(compressors=None)),
    ("blosc_lz4", F8, (2, 3), dict(compressors=BLOSC("lz4", 5, BLOSC.SHUFFLE))),
    ("blosc_lz4hc", F8, (2, 3), dict(compressors=BLOSC("lz4hc", 5, BLOSC.SHUFFLE))),
    ("blosc_zstd_bit", F8, (2, 3), dict(compressors=BLOSC("zstd", 3, BLOSC.BITSHUFFLE))),
    ("blosc_zstd_no", I4, (2, 3), dict(compressors=BLOSC("zstd", 3, BLOSC.NOSHUFFLE))),
    ("blosc_zlib", I4, (2, 3), dict(compressors=BLOSC("zlib", 3, BLOSC.SHUFFLE))),
    ("blosc_blosclz", I4, (2, 3), dict(compressors=BLOSC("blosclz", 3, BLOSC.SHUFFLE))),
    ("zstd", F8, (2, 3), dict(compressors=numcodecs.Zstd(5))),
    ("gzip", F8, (2, 3), dict(compressors=numcodecs.GZip(5))),
    ("zlib", F8, (2, 3), dict(compressors=numcodecs.Zlib(5))),
    ("bz2", F8, (2, 3), dict(compressors=numcodecs.BZ2(5))),
    ("shuffle", F8, (2, 3), dict(filters=[numcodecs.Shuffle(8)], compressors=numcodecs.Zlib(1))),
    ("delta", I4, (2, 3), dict(filters=[numcodecs.Delta("<i4")], compressors=numcodecs.Zlib(1))),
    ("fixedscale", F8, (2, 3), dict(filters=[numcodecs.FixedScaleOffset(offset=0, scale=100, dtype="<f8", astype="<i4")],
                                    compressors=numcodecs.Zlib(1))),
    ("f_order", BIG, (2, 3, 4), dict(order="F")),
    ("f_order_be", BIG.astype(">i4"), (2, 3, 4), dict(order="F", compressors=None)),
    ("slash", BIG, (2, 3, 4), dict(chunk_key_encoding={"name": "v2", "separator": "/"})),
    ("one_chunk", BIG, (3, 4, 5), {}),
    ("chunk_beyond", BIG, (10, 10, 10), {}),
    ("scalar", np.array(42.5), (), {}),
    ("scalar_i2", np.array(-7, "i2"), (), {}),
    ("empty", np.zeros((0, 3)), (1, 3), {}),
    ("empty_inner", np.zeros((3, 0), "i4"), (2, 1), {}),
    # absent chunks and Zarr v2's fill_value: a mask, as in xarray
    ("fill_0", I4, (2, 3), dict(fill_value=0, write=part(I4, (2, 3)))),
    ("fill_9999", F4, (2, 3), dict(fill_value=-9999.0, write=part(F4, (2, 3)))),
    ("fill_nan", F8, (2, 3), dict(fill_value=float("nan"), write=part(F8, (2, 3)))),
    ("fill_inf", F8, (2, 3), dict(fill_value=float("inf"), write=part(F8, (2, 3)))),
    ("fill_neg_inf", F4, (2, 3), dict(fill_value=float("-inf"), write=part(F4, (2, 3)))),
    ("fill_all", F8, (2, 3), dict(fill_value=7.5, write=lambda a: None)),
    ("named", F8, (2, 3), dict(attributes={"_ARRAY_DIMENSIONS": ["y", "x"]})),
]

V3 = [
    ("bool", ramp(bool), (2, 3), {}),
    *[(t, ramp(t), (2, 3), {}) for t in INTS + FLOATS],
    *[(f"be_{t}", ramp(t), (2, 3), dict(serializer=BytesCodec(endian="big"))) for t in ["i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"]],
    ("c16", ramp("c16"), (2, 3), {}),
    ("none", F8, (2, 3), dict(compressors=None)),
    ("blosc_lz4", F8, (2, 3), dict(compressors=BloscCodec(cname="lz4", shuffle="shuffle"))),
    ("blosc_zstd_bit", F8, (2, 3), dict(compressors=BloscCodec(cname="zstd", shuffle="bitshuffle"))),
    ("blosc_zstd_no", I4, (2, 3), dict(compressors=BloscCodec(cname="zstd", shuffle="noshuffle"))),
    ("zstd", F8, (2, 3), dict(compressors=ZstdCodec(level=5))),
    ("zstd_checksum", F8, (2, 3), dict(compressors=ZstdCodec(level=5, checksum=True))),
    ("gzip", F8, (2, 3), dict(compressors=GzipCodec(level=5))),
    ("crc32c", F8, (2, 3), dict(compressors=[Crc32cCodec()])),
    ("gzip_crc32c", F8, (2, 3), dict(compressors=[GzipCodec(level=1), Crc32cCodec()])),
    ("transpose", BIG, (2, 3, 4), dict(filters=[TransposeCodec(order=(2, 0, 1))], compressors=None)),
    ("transpose_be_zstd", BIG, (2, 3, 4), dict(filters=[TransposeCodec(order=(2, 1, 0))], serializer=BytesCodec(endian="big"), compressors=ZstdCodec())),
    ("dot", BIG, (2, 3, 4), dict(chunk_key_encoding={"name": "default", "separator": "."})),
    ("v2_keys", BIG, (2, 3, 4), dict(chunk_key_encoding={"name": "v2", "separator": "."})),
    ("sharded", np.arange(90, dtype="i4").reshape(9, 10), (2, 2), dict(shards=(4, 6))),
    ("sharded_start", np.arange(90, dtype="f8").reshape(9, 10), (4, 6), dict(
        compressors=None, serializer=ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec(), ZstdCodec()], index_location="start"))),
    ("sharded_missing", np.arange(90, dtype="f8").reshape(9, 10) + 1, (2, 2), dict(
        shards=(4, 6), fill_value=-1.0, write=part(np.arange(90, dtype="f8").reshape(9, 10) + 1, (6, 4)))),
    ("chunk_beyond", BIG, (10, 10, 10), {}),
    ("scalar", np.array(42.5), (), {}),
    ("scalar_i2", np.array(-7, "i2"), (), {}),
    ("empty", np.zeros((0, 3)), (1, 3), {}),
    ("empty_inner", np.zeros((3, 0), "i4"), (2, 1), {}),
    # absent chunks read as the fill value, which is no mask in v3
    ("fill_0", I4, (2, 3), dict(fill_value=0, write=part(I4, (2, 3)))),
    ("fill_9999", F4, (2, 3), dict(fill_value=-9999.0, write=part(F4, (2, 3)))),
    ("fill_nan", F8, (2, 3), dict(fill_value=float("nan"), write=part(F8, (2, 3)))),
    ("fill_inf", F8, (2, 3), dict(fill_value=float("inf"), write=part(F8, (2, 3)))),
    ("fill_neg_inf", F4, (2, 3), dict(fill_value=float("-inf"), write=part(F4, (2, 3)))),
    ("fill_true", ramp(bool), (2, 3), dict(fill_value=True, write=part(ramp(bool), (2, 3)))),
    ("fill_all", F8, (2, 3), dict(fill_value=7.5, write=lambda a: None)),
    # attributes that mask: the cells equal to _FillValue are NULL
    ("masked_attr", F8, (2, 3), dict(attributes={"_FillValue": float(F8[1, 1])})),
    ("masked_nan_attr", np.where(np.arange(35).reshape(5, 7) % 4 == 1, np.nan, F8), (2, 3),
     dict(attributes={"_FillValue": NAN64}, fill_value=float("nan"))),
    ("named", F8, (2, 3), dict(dimension_names=["y", "x"])),
    ("half_named", F8, (2, 3), dict(dimension_names=["y", None])),
]


def put(group, name, data, chunks, kw):
    kw = dict(kw)
    write = kw.pop("write", None)
    if group.metadata.zarr_format == 2:
        kw.setdefault("fill_value", None)
    array = group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=chunks, **kw)
    if write:
        write(array)
    elif data.size:
        array[...] = data
    return array


def open_new(path, fmt):
    return zarr.open_group(str(path), mode="w", zarr_format=fmt)


def zoo():
    root = fresh("zarr_zoo")
    with zarr.config.set({"array.write_empty_chunks": True}):
        for fmt, table in ((2, V2), (3, V3)):
            group = open_new(root / f"v{fmt}.zarr", fmt)
            for name, data, chunks, kw in table:
                put(group, name, data, chunks, kw)
            for kind in ("consolidated", "nested"):
                path = root / f"v{fmt}_{kind}.zarr"
                group = open_new(path, fmt)
                inner = group.create_group("outer").create_group("inner") if kind == "nested" else group
                dims = {"dimension_names": ["y", "x"]} if fmt == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
                axis = lambda d: {"dimension_names": [d]} if fmt == 3 else {"attributes": {"_ARRAY_DIMENSIONS": [d]}}
                put(inner, "v", F8, (2, 3), dims)
                put(inner, "y", np.arange(5, dtype="i4") * 10, (5,), axis("y"))
                put(inner, "x", np.arange(7)[::-1] / 2, (7,), axis("x"))
                if kind == "consolidated":
                    zarr.consolidate_metadata(str(path), zarr_format=fmt)


# ---------------------------------------------------------------- CF
def air_values():
    """Every 126 hours from 2019-01-01 on; a yearly wave, a gradient over latitude, small reproducible noise."""
    rng = np.random.default_rng(20190101)
    nt, lat, lon = 140, np.array([65.0, 60.0, 45.0, 30.0, 25.0]), np.array([-9.5, 0.5, 10.5, 20.5])
    hours = 1043136 + 126 * np.arange(nt)  # hours since 1900-01-01; 1043136 is 2019-01-01
    shape = (nt, len(lat), len(lon))
    wave = np.cos(2 * np.pi * (hours - hours[0]) / 8766.0)[:, None, None]
    t2m = 285 - 12 * wave - 0.4 * (lat[None, :, None] - 45) + 0.05 * lon + rng.normal(0, 2, shape)
    packed = np.round((t2m - 280.0) / 0.01).astype("i2")
    packed[rng.random(shape) < 0.03] = -32767
    precip = np.where(rng.random(shape) < 0.5, 0, rng.gamma(1.5, 2, shape)).astype("f4")
    rh = np.round(rng.normal(80, 15, shape), 1).astype("f4")  # some above 100: outside valid_range
    sst = np.round(t2m + 3, 1).astype("f4")
    sst[:, 0, :] = -999.0
    gust = np.round(rng.gamma(3, 3, shape), 1).astype("f4")
    gust[rng.random(shape) < 0.1] = np.nan
    orog = np.round(rng.random(shape[1:]) * 1000).astype("f4")
    flag = rng.integers(-1, 4, shape[:1]).astype("i2")
    return hours, lat, lon, packed, precip, rh, sst, gust, orog, flag


def labelled(group, name, data, dims, chunks, attrs=None, fill=None):
    """One array with dimension names the way the format has them; `fill` is v2's fill_value or v3's attribute."""
    kw, attrs = {}, dict(attrs or {})
    if group.metadata.zarr_format == 2:
        attrs["_ARRAY_DIMENSIONS"] = list(dims)
        kw["fill_value"] = fill
    else:
        kw["dimension_names"] = list(dims)
        if fill is not None:
            attrs["_FillValue"] = NAN64 if fill != fill else fill
    put(group, name, data, chunks, dict(attributes=attrs, **kw))


def cf():
    root = fresh("cf")
    hours, lat, lon, packed, precip, rh, sst, gust, orog, flag = air_values()
    cube, chunks = ("time", "lat", "lon"), (50, 3, 3)
    for fmt, name, calendar in ((2, "air.zarr", "standard"), (3, "air3.zarr", "proleptic_gregorian")):
        g = open_new(root / name, fmt)
        g.attrs.update({"Conventions": "CF-1.8", "title": "made up weather"})
        labelled(g, "time", hours, ("time",), (140,), {"units": "hours since 1900-01-01", "calendar": calendar, "standard_name": "time"})
        labelled(g, "lat", lat, ("lat",), (5,), {"units": "degrees_north"})
        labelled(g, "lon", lon, ("lon",), (4,), {"units": "degrees_east"})
        labelled(g, "t2m", packed, cube, chunks, {"units": "K", "scale_factor": 0.01, "add_offset": 280.0}, -32767)
        labelled(g, "precip", precip, cube, chunks, {"units": "mm"})
        labelled(g, "rh", rh, cube, chunks, {"units": "%", "valid_range": [0.0, 100.0]})
        labelled(g, "sst", sst, cube, chunks, {"units": "K", "missing_value": -999.0})
        labelled(g, "gust", gust, cube, chunks, {"units": "m s-1"}, float("nan"))
        labelled(g, "orog", orog, cube[1:], chunks[1:], {"units": "m"})
        labelled(g, "flag", flag, cube[:1], chunks[:1], {"long_name": "an integer with a mask"}, -1)
        if fmt == 2:
            zarr.consolidate_metadata(str(root / name), zarr_format=2)
    rng = np.random.default_rng(360)
    for fmt, name, calendar, step in ((2, "noleap.zarr", "noleap", 10), (3, "day360.zarr", "360_day", 10)):
        g = open_new(root / name, fmt)
        days = 1 + step * np.arange(74)  # 2000-01-02, ...; 360_day meets 2000-02-30 where step and offset allow
        if calendar == "360_day":
            days = days + 8  # 2000-01-10, -20, -30, 2000-02-10, -20, -30
        v = np.round(rng.normal(10, 5, (74, 3)), 2)
        v[5, 1] = np.nan
        labelled(g, "time", days, ("time",), (74,), {"units": "days since 2000-01-01", "calendar": calendar})
        labelled(g, "x", np.array([1.0, 2.0, 4.0]), ("x",), (3,))
        labelled(g, "v", v, ("time", "x"), (20, 2), None, float("nan"))
    g = open_new(root / "units.zarr", 3)
    for dim, values, units in (
        ("ts", np.array([0, 90, 86400], "i4"), "seconds since 2000-01-01 12:30:00"),
        ("tm", np.array([-1, 0, 1440], "i8"), "minutes since 1970-01-01T00:00:00Z"),
        ("td", np.array([0.5, 59.25, 60.0]), "days since 2020-01-01"),
        ("tms", np.array([1, 1500, 3], "i8"), "milliseconds since 2020-01-01"),
    ):
        labelled(g, dim, values, (dim,), (3,), {"units": units, "calendar": "standard"})
        labelled(g, f"v_{dim}", np.arange(3, dtype="i4"), (dim,), (2,))


# ---------------------------------------------------------------- npy
def npy():
    root = fresh("npy")
    for t in ["bool", *INTS, *FLOATS, "c16"]:
        np.save(root / f"{t}.npy", ramp(t))
    for t in ["i2", "i4", "i8", "u2", "u4", "u8", "f4", "f8"]:
        np.save(root / f"be_{t}.npy", ramp(t).astype(f">{t}"))
    np.save(root / "fortran.npy", np.asfortranarray(BIG))
    np.save(root / "fortran_be.npy", np.asfortranarray(BIG.astype(">i4")))
    np.save(root / "scalar.npy", np.array(42.5))
    np.save(root / "empty.npy", np.zeros((0, 3)))
    np.save(root / "empty_inner.npy", np.zeros((3, 0), "i4"))
    np.save(root / "one_d.npy", np.arange(10.0) / 4)
    np.save(root / "datetime.npy", np.array(["2020-01-01", "2020-02-29"], "M8[ns]"))
    for v in (1, 2, 3):
        with open(root / f"version{v}.npy", "wb") as f:
            np.lib.format.write_array(f, BIG, version=(v, 0))
    np.savez(root / "two.npz", a=BIG, b=F8)


# ---------------------------------------------------------------- inputs of sql/queries
def cases():
    """One Zarr v3 group of unnamed arrays, in small chunks with partial edges. `make_goldens.py` reads it by name."""
    path = HERE / "cases.zarr"
    shutil.rmtree(path, ignore_errors=True)
    g = open_new(path, 3)
    rng = np.random.default_rng(57)
    x, y = (np.round(rng.normal(0, 3, (5, 7)), 3) for _ in range(2))
    n = x.copy()
    n[0, 1] = n[2, 2] = n[4, 6] = np.nan
    w = x.copy()
    w[1, 0], w[1, 3], w[3, 3], w[4, 4] = np.nan, np.inf, -np.inf, -0.0
    i = rng.integers(-9, 10, (5, 7))
    j = rng.integers(1, 6, (5, 7)) * np.where(rng.random((5, 7)) < 0.4, -1, 1)
    m, mi = x.copy(), i.astype("i4")
    m[0, 0] = m[1, 3] = m[2, 3] = m[4, 6] = -999.0
    mi[0, 0] = mi[1, 3] = mi[3, 6] = 99
    mn = m.copy()
    mn[0, 1] = mn[3, 3] = np.nan  # NaN that is a value beside NULL
    column = m.copy()
    column[:, 2] = -999.0  # a column without any value
    masked = {"_FillValue": -999.0}
    table = [
        ("x", x, (2, 3), {}), ("y", y, (2, 3), {}), ("pos", np.abs(x) + 0.5, (2, 3), {}), ("unit", np.round(np.sin(x), 3), (2, 3), {}),
        ("x32", x.astype("f4"), (2, 3), {}), ("n", n, (2, 3), {}), ("w", w, (2, 3), {}), ("n32", n.astype("f4"), (2, 3), {}),
        ("i", i, (2, 3), {}), ("j", j, (2, 3), {}), ("b", i > 0, (2, 3), {}), ("c", j > 0, (2, 3), {}),
        ("m", m, (2, 3), masked), ("mn", mn, (2, 3), masked), ("mi", mi, (2, 3), {"_FillValue": 99}), ("mcol", column, (2, 3), masked),
        ("allnull", np.full(3, -999.0), (2,), masked), ("allnan", np.full(3, np.nan), (2,), {}),
        ("v", np.round(rng.normal(0, 3, 7), 3), (3,), {}), ("r", np.round(rng.normal(0, 3, 5), 3), (2,), {}),
        ("iv", rng.integers(-9, 10, 7), (3,), {}), ("k", np.array([4, 0, -1, 2, 2]), (2,), {}),
        ("cube", np.round(rng.normal(0, 3, (3, 4, 5)), 3), (2, 3, 2), {}), ("icube", rng.integers(-9, 10, (3, 4, 5)).astype("i4"), (2, 3, 2), {}),
        ("one", np.round(rng.normal(0, 3, (1, 4, 1)), 3), (1, 3, 1), {}),
        ("z", np.zeros((0, 3)), (1, 2), {}), ("zi", np.zeros((3, 0), "i4"), (2, 1), {}), ("z1", np.zeros(0), (1,), {}),
        ("s", np.array(2.5), (), {}), ("si", np.array(-3), (), {}), ("sb", np.array(True), (), {}),
        ("p", np.round(rng.normal(0, 2, (4, 6)), 2), (3, 4), {}), ("q", np.round(rng.normal(0, 2, (6, 3)), 2), (4, 2), {}),
        ("bp", np.round(rng.normal(0, 2, (2, 3, 4)), 2), (1, 2, 3), {}), ("bq", np.round(rng.normal(0, 2, (2, 4, 5)), 2), (1, 3, 2), {}),
        ("ip", rng.integers(-9, 10, (4, 6)), (3, 4), {}), ("iq", rng.integers(-9, 10, (6, 3)), (4, 2), {}),
        ("edge", np.array([np.iinfo("i8").max, 1, 5]), (2,), {}), ("uedge", np.array([np.iinfo("u8").max, 1], "u8"), (1,), {}),
        ("line", np.arange(-2.5, 3.0, 0.5), (4,), {}), ("ones3", np.ones((3, 1)), (2, 1), {}), ("perm", np.array([3.0, -1.0, 2.0, -1.0, 3.0]), (2,), {}),
    ]
    for t in ["bool", *INTS, "f4", "f8"]:
        table.append((f"t_{t}", np.arange(1, 7).reshape(2, 3).astype(t) if t != "bool" else np.array([[1, 0, 1], [0, 0, 1]], "?"), (2, 2), {}))
    for name, data, chunks, attrs in table:
        put(g, name, data, chunks, dict(attributes=attrs))


# ---------------------------------------------------------------- bad input
def bad():
    root = fresh("bad")

    def v3(name, text=None, **change):
        meta = {"zarr_format": 3, "node_type": "array", "shape": [5, 7], "data_type": "float64",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                "fill_value": 0.0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {}}
        for key, value in change.items():
            if key == "chunks":
                meta["chunk_grid"]["configuration"]["chunk_shape"] = value
            else:
                meta[key] = value
        d = root / f"{name}.zarr"
        d.mkdir()
        (d / "zarr.json").write_text(text if text is not None else json.dumps(meta))

    def v2(name, text=None, **change):
        meta = {"zarr_format": 2, "shape": [5, 7], "chunks": [2, 3], "dtype": "<f8", "compressor": None,
                "fill_value": 0.0, "order": "C", "filters": None, **change}
        d = root / f"{name}.zarr"
        d.mkdir()
        (d / ".zarray").write_text(text if text is not None else json.dumps(meta))

    # chunks that are damaged
    for fmt, kw in ((2, dict(compressors=BLOSC("zstd", 3))), (3, dict(compressors=BloscCodec(cname="zstd", typesize=8)))):
        for damage in ("truncated", "corrupt"):
            for label, codec in (("raw", dict(compressors=None)), ("blosc", kw)):
                if (damage, label) == ("corrupt", "raw"):
                    continue  # damaged raw bytes are other numbers, not an error
                path = root / f"v{fmt}_{damage}_{label}.zarr"
                group = open_new(path, fmt)
                put(group, "v", F8, (2, 3), codec)
                chunk = path / "v" / ("1.1" if fmt == 2 else "c/1/1")
                raw = bytearray(chunk.read_bytes())
                if damage == "truncated":
                    raw = raw[: len(raw) // 2]
                else:
                    raw[:16] = b"\xff" * 16  # the blosc header
                chunk.write_bytes(bytes(raw))
    path = root / "v3_crc32c.zarr"
    put(open_new(path, 3), "v", F8, (2, 3), dict(compressors=[Crc32cCodec()]))
    chunk = path / "v" / "c/1/1"
    raw = bytearray(chunk.read_bytes())
    raw[3] ^= 0x40
    chunk.write_bytes(bytes(raw))
    path = root / "v3_shard_index.zarr"
    put(open_new(path, 3), "v", F8, (2, 3), dict(shards=(4, 6)))
    chunk = path / "v" / "c/0/0"
    raw = bytearray(chunk.read_bytes())
    raw[-20:-4] = b"\x7f" * 16  # offset and length of an inner chunk far past the end
    chunk.write_bytes(bytes(raw))

    # metadata that is hostile or wrong
    v3("not_json", text="{ this is not json")
    v3("empty_json", text="")
    v3("json_list", text="[1, 2, 3]")
    v3("deep_json", text='{"zarr_format": 3, "node_type": "array", "attributes": ' + "[" * 5000 + "]" * 5000 + "}")
    v3("shape_2_63", shape=[2**63, 2**63])
    v3("shape_overflow", shape=[2**40, 2**40])
    v3("shape_negative", shape=[-5, 7])
    v3("shape_float", shape=[5.5, 7])
    v3("chunk_0", chunks=[0, 3])
    v3("chunk_negative", chunks=[-2, 3])
    v3("chunk_huge", chunks=[2**40, 2**40])
    v3("rank_1000", shape=[1] * 1000, chunks=[1] * 1000)
    v3("rank_mismatch", chunks=[2, 3, 4])
    v3("names_mismatch", dimension_names=["only_one"])
    v3("names_duplicate", dimension_names=["d", "d"])
    v3("codec_unknown", codecs=[{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "lzma_9000", "configuration": {}}])
    v3("dtype_unknown", data_type="float80")
    v3("grid_unknown", chunk_grid={"name": "hexagonal", "configuration": {}})
    v3("no_codecs", codecs=[])
    v3("fill_wrong", fill_value="seven")
    v3("node_unknown", node_type="dataset")
    v3("format_99", zarr_format=99)
    v2("v2_shape_2_63", shape=[2**63, 2**63])
    v2("v2_chunk_0", chunks=[0, 3])
    v2("v2_rank_mismatch", chunks=[2])
    v2("v2_dtype_unknown", dtype="<q9")
    v2("v2_dtype_object", dtype="|O", filters=[{"id": "pickle"}])
    v2("v2_compressor_unknown", compressor={"id": "lzma_9000"})
    v2("v2_filter_unknown", filters=[{"id": "rot13"}])
    v2("v2_order", order="Z")
    v2("v2_not_json", text="\x00\x01\x02")
    (root / "not_utf8.zarr").mkdir()
    (root / "not_utf8.zarr" / "zarr.json").write_bytes(b"\xff\xfe\x00{")
    open_new(root / "group_empty.zarr", 3)
    (root / "no_metadata.zarr" / "c" / "0").mkdir(parents=True)
    (root / "no_metadata.zarr" / "c" / "0" / "0").write_bytes(b"\0" * 48)
    (root / "a_file.zarr").write_text("not a directory\n")
    g = open_new(root / "time_units.zarr", 3)
    labelled(g, "time", np.arange(3), ("time",), (3,), {"units": "fortnights since the flood", "calendar": "standard"})
    labelled(g, "v", np.arange(3.0), ("time",), (3,))
    g = open_new(root / "time_calendar.zarr", 3)
    labelled(g, "time", np.arange(3), ("time",), (3,), {"units": "days since 2000-01-01", "calendar": "discordian"})
    labelled(g, "v", np.arange(3.0), ("time",), (3,))
    g = open_new(root / "dims_disagree.zarr", 3)
    labelled(g, "a", np.arange(3.0), ("x",), (3,))
    labelled(g, "b", np.arange(4.0), ("x",), (4,))

    # npy
    def header(name, text, data=b"", length=None, version=1, magic=b"\x93NUMPY"):
        raw = text if isinstance(text, bytes) else text.encode("latin1")
        size = struct.pack("<H" if version == 1 else "<I", len(raw) if length is None else length)
        (root / f"{name}.npy").write_bytes(magic + bytes([version, 0]) + size + raw + data)

    ok = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n"
    header("npy_huge", ok.replace("(2, 3)", f"({2**62}, {2**62})"), b"\0" * 48)
    header("npy_large", ok.replace("(2, 3)", f"({2**40},)"), b"\0" * 48)
    header("npy_negative", ok.replace("(2, 3)", "(-2, 3)"), b"\0" * 48)
    header("npy_object", ok.replace("<f8", "|O"), b"\x80\x04N.")
    header("npy_record", "{'descr': [('a', '<f8'), ('b', '<i4')], 'fortran_order': False, 'shape': (2,), }\n", b"\0" * 24)
    header("npy_string", ok.replace("<f8", "<U3"), b"\0" * 72)
    header("npy_dtype", ok.replace("<f8", "<z7"), b"\0" * 48)
    header("npy_truncated", ok, b"\0" * 20)
    header("npy_trailing", ok, b"\0" * 100)
    header("npy_header_len", ok, b"", length=65535)
    header("npy_header_len_v2", ok, b"", length=2**32 - 1, version=2)
    header("npy_not_utf8", b"{'descr': '<f8', '\xff\xfe': 1, 'shape': (2, 3), }\n", b"\0" * 48, version=3)
    header("npy_version", ok, b"\0" * 48, version=9)
    header("npy_magic", ok, b"\0" * 48, magic=b"\x93NUMPI")
    header("npy_no_shape", "{'descr': '<f8', 'fortran_order': False, }\n", b"\0" * 48)
    header("npy_code", ok.replace("(2, 3)", "__import__('os').getcwd()"), b"\0" * 48)
    header("npy_deep", ok.replace("(2, 3)", "(" * 5000 + ")" * 5000), b"\0" * 48)
    header("npy_rank_1000", ok.replace("(2, 3)", "(" + "1, " * 1000 + ")"), b"\0" * 8)
    (root / "npy_nothing.npy").write_bytes(b"")
    (root / "npy_short.npy").write_bytes(b"\x93NUM")


def masks():
    """masks.zarr: cubes as xarray writes them, which declare a missing value. Some chunks have masked cells, others not."""
    rng = np.random.default_rng(25)
    shape, chunks = (12, 4, 15), (4, 4, 8)
    group = open_new(fresh("masks.zarr"), 2)
    quarter = lambda: rng.integers(-400, 400, shape) / 4
    some, whole, packed, none = quarter().astype("f4"), quarter(), rng.integers(-900, 900, shape).astype("i2"), quarter().astype("f4")
    some[5, 1, 2], some[6, :, 3], some[7, 3, 7] = np.nan, np.nan, np.nan  # in one chunk
    some[8:, :, 8:] = np.nan  # one chunk has no other
    whole[0, 0, :], whole[:4, 2, 14] = -9999.0, -9999.0
    packed[packed % 11 == 0] = -32767
    packed[4:8] = np.abs(packed[4:8] % 500)  # chunks without a masked cell
    put(group, "time", np.arange(12, dtype="i4") * 20, (12,), dict(attributes={"units": "days since 2019-01-01", "_ARRAY_DIMENSIONS": ["time"]}))
    for name, cells, fill, attrs in (
        ("some", some, float("nan"), {}), ("whole", whole, -9999.0, {}), ("none", none, float("nan"), {}),
        ("packed", packed, -32767, {"scale_factor": 0.25, "add_offset": 10.0}),
    ):
        put(group, name, cells, chunks, dict(fill_value=fill, attributes={"_ARRAY_DIMENSIONS": ["time", "lat", "lon"], **attrs}))


def narrow():
    """Labels of 0.1 degrees in float32 (`tenth.zarr`) and float64 (`tenth64.zarr`), times with zones in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lat = np.round(np.arange(52.0, 53.05, 0.1), 1)
    lon = np.round(np.arange(-0.2, 0.35, 0.1), 1)
    hours = np.arange(0, 24, 6)
    t = (np.arange(4 * 11 * 6).reshape(4, 11, 6) * 0.1).astype("f4")
    for name, dtype in (("tenth.zarr", "f4"), ("tenth64.zarr", "f8")):
        g = zarr.open_group(str(fresh(name)), mode="w", zarr_format=3)
        labelled(g, "time", hours, ["time"], (4,), {"units": "hours since 2020-07-01", "calendar": "standard"})
        labelled(g, "lat", lat.astype(dtype), ["lat"], (11,))
        labelled(g, "lon", lon.astype(dtype), ["lon"], (6,))
        labelled(g, "t", t.astype(dtype), ["time", "lat", "lon"], (2, 6, 6))
    paris = [1593554400000000 + h * 3600000000 for h in (0, 2, 4, 8, 14, 20, 26)]  # 2020-07-01T00:00 in Paris, ...
    pq.write_table(
        pa.table({
            "at": pa.array(paris, pa.timestamp("us", tz="Europe/Paris")),
            "utc": pa.array(paris, pa.timestamp("us", tz="UTC")),
            "plain": pa.array([p // 1000 for p in paris], pa.timestamp("ms")),
            "lat": pa.array([52.3, 52.3, 52.4, 52.45, 53.0, float("nan"), None], pa.float32()),
            "wide": pa.array([52.3, 52.3, 52.4, 52.45, 53.0, float("nan"), None], pa.float64()),
            "n": pa.array(range(7), pa.int64()),
        }),
        str(HERE / "tables" / "stations.parquet"),
    )
    ids = [None if i == 2 else bytes((i * 37 + k * 11) % 256 for k in range(16)) for i in range(4)]
    pq.write_table(
        pa.table({
            "id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array(ids, pa.binary(16))),
            "raw": pa.array(ids, pa.binary(16)),
            "n": pa.array(range(4), pa.int64()),
        }),
        str(HERE / "tables" / "uuids.parquet"),
    )


def readings():
    """Rows in batches of 20 as an Arrow file: workers of the smallest splits read some of them each."""
    import pyarrow as pa

    rng = np.random.default_rng(22)
    n = 60
    value = [None if i % 17 == 5 else float(v) for i, v in enumerate(np.round(rng.normal(size=n), 3))]
    table = pa.table({
        "n": pa.array(range(n), pa.int32()),
        "station": pa.array([f"s{k}" for k in rng.integers(0, 5, n)], pa.string()),
        "value": pa.array(value, pa.float64()),
        "k": pa.array([int(k) if k else None for k in rng.integers(0, 9, n)], pa.int64()),
        "time": pa.array([1593554400000000 + i * 450_000_000 for i in range(n)], pa.timestamp("us")),
    })
    with pa.ipc.new_file(str(HERE / "tables" / "readings.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=20)


KINDS = ["", "a", "A1", "\u00e9a b", "\u00c6r\u00f8", "2020-01-05", "2019-12-31", " padded ", "b,c,d", "a text of more than twelve bytes, one",
         "a text of more than twelve bytes, two", None]


def kinds():
    """Texts, days and codes that repeat, and a text that does not, in row groups with their own dictionaries."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = range(3000)
    table = pa.table({
        "n": pa.array(rows, pa.int32()),
        "s": pa.array([KINDS[(i * i + i // 7) % len(KINDS)] for i in rows], pa.string()),
        "code": pa.array([None if i % 17 == 3 else f"{i * i % 31:04}" for i in rows], pa.string()),
        "day": pa.array([None if i % 13 == 5 else 18262 + i * i % 40 for i in rows], pa.int32()).cast(pa.date32()),
        "own": pa.array([f"own {i * 7919 % 3001}" for i in rows], pa.string()),
    })
    pq.write_table(table, str(HERE / "tables" / "kinds.parquet"), row_group_size=1100, compression="zstd")


def fresh(name):
    path = HERE / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


if __name__ == "__main__":
    zoo()
    cf()
    npy()
    cases()
    bad()
    masks()
    narrow()
    readings()
    kinds()
