"""Writes cases.json: arrays and what NumPy prints for them. `python3 cases.py [scale] > cases.json` (NumPy 2.4.6)."""

import json
import sys

import numpy as np

scale = int(sys.argv[1]) if len(sys.argv) > 1 else 1
rng = np.random.default_rng(1)


def add(a, mask=None, width=75):
    a = np.asarray(a)
    if a.size == 0 and mask is not None:
        return
    if mask is not None:
        with np.printoptions(linewidth=width):
            want = str(np.ma.array(a, mask=mask))
    elif a.shape == ():
        want = str(a[()])
    else:
        want = np.array2string(a, max_line_width=width)
    name = a.dtype.name
    if a.dtype.kind == "M":
        name, a = "datetime64[us]", a.astype("M8[us]")
    case = {
        "dtype": name,
        "shape": list(a.shape),
        "data": a.astype(a.dtype.newbyteorder("<")).tobytes().hex(),
        "mask": None if mask is None else mask.astype("u1").tobytes().hex(),
        "width": width,
        "want": want,
    }
    print(json.dumps(case))


def shape(rank_end=4, length_end=6):
    return tuple(int(n) for n in rng.integers(1, length_end, size=rng.integers(0, rank_end)))


ODD = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.5, 2**-9, 2.0**-27, 1e8, 99999999.0, 1e6, 999999.0, 123456.789, 1e-4, 9.9e-5]


def floats(kind, dtype, sh):
    top = 300 if dtype == "f8" else 37
    return [
        lambda: rng.normal(size=sh),
        lambda: np.round(rng.normal(size=sh) * 100, int(rng.integers(0, 5))),
        lambda: 10.0 ** rng.uniform(-8, 9, size=sh),
        lambda: rng.integers(-1000, 1000, size=sh).astype("f8"),
        lambda: 10.0 ** rng.uniform(-top, top, size=sh),
        lambda: rng.choice(ODD, size=sh),
        lambda: rng.integers(0, 4000, size=sh) / 2.0 ** rng.integers(0, 20),
        lambda: rng.choice([np.nan, np.inf, 1.0, -12.25, 0.1], size=sh),
    ][kind]()


for dtype in ("f4", "f8"):
    for i in range(80 * scale):
        sh = (int(rng.integers(0, 80)),) if i % 10 == 0 else shape()
        add(np.asarray(floats(i % 8, dtype, sh)).astype(dtype), width=int(rng.choice([75, 75, 40, 20, 120])))
for dtype in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"):
    for i in range(8 * scale):
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, size=shape(), dtype=dtype)
        add(a % 50 if i % 2 else a)
for _ in range(8 * scale):
    add(rng.integers(0, 2, size=shape()).astype("?"))
for sh in [(1001,), (40, 50), (3, 400), (400, 3), (2, 3, 200), (11, 10, 10), (6, 200), (0,), (3, 0), (0, 5, 2)]:
    a = np.arange(np.prod(sh)).reshape(sh)
    add(a.astype("i2"))
    add((a / 7).astype("f4"))
for i in range(40 * scale):
    sh = shape()
    a = np.asarray(rng.normal(size=sh) if i % 2 else rng.integers(-99, 100, size=sh))
    mask = np.asarray(rng.random(size=sh) < 0.4)
    # NumPy prints an array that has a mask, but no masked cell, as if it had one; we do not.
    if mask.any():
        add(a, mask=mask)
t = np.datetime64("2020-01-01T06:00:00", "s") + np.arange(9) * np.timedelta64(86399, "s")
add(t)
add(t.reshape(3, 3))
