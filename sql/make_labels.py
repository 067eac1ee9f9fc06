"""Writes sql/random/labels.txt: random selections by label, with xarray's answers; and tests/data/labels.zarr, which they read.

    pip install numpy xarray zarr pandas cftime && python sql/make_labels.py [SEED [CASES [FILE]]]

Each line is an expression, a tab and the answer: `dims|positions`, the cells of `v_DIM` being their positions, or `!` for an
error. Left out is what xarray refuses and Tessera has an answer for: lists and nearest labels of coordinates in which labels
stand several times or in no order, slices of texts over descending times. So are instants of other calendars that are not
there, slices whose second label stands first where labels are in no order (no cells for xarray, errors here), and the nearest of `uint8` labels, whose distances wrap in pandas.
tests/labels.rs runs them.
"""

import shutil
import sys
import warnings
from pathlib import Path

import cftime
import numpy as np
import pandas as pd
import xarray as xr
import zarr

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "tests/data/labels.zarr"
warnings.simplefilter("ignore")
rng = np.random.default_rng(20261125)


def days(calendar, start, n, freq="D"):
    return xr.date_range(start, periods=n, freq=freq, calendar=calendar, use_cftime=True).values


# name: labels; the names say what they are.
LABELS = {
    "up4": ((np.arange(12) - 3) / 10).astype("f4"),
    "down4": (np.arange(9) / 10 + 52).astype("f4")[::-1],
    "down8": np.arange(90.0, -91, -15),
    "uneven": np.sort(np.round(rng.normal(0, 20, 11), 1)),
    "wrap": np.arange(0.0, 360, 22.5),
    "int": np.array([-7, -3, 0, 1, 2, 5, 8, 13, 21]),
    "down": np.array([40, 30, 20, 10, 0, -10], "i4"),
    "byte": np.array([0, 1, 4, 9, 200], "u1"),
    "mixed": np.array([3, 9, 1, 7, 5, 2], "i8"),
    "twice": np.array([1.0, 2.0, 2.0, 2.0, 3.5, 4.0, 4.0]),
    "one": np.array([2.5]),
    "day": np.arange("2019-12-20", "2020-03-05", dtype="M8[D]").astype("M8[ns]"),
    "hour": np.datetime64("2020-02-27T18", "ns") + np.arange(20) * np.timedelta64(6, "h"),
    "back": np.arange("2021-01-25", "2021-02-10", dtype="M8[D]").astype("M8[ns]")[::-1],
    "month": np.arange("2018-01", "2020-04", dtype="M8[M]").astype("M8[ns]"),
    "minute": np.datetime64("1969-12-31T23:00", "ns") + np.arange(9) * np.timedelta64(15, "m"),
    "noleap": days("noleap", "2000-02-20", 25),
    "d360": days("360_day", "2000-02-20", 30),
}
COORDS = {name: (name, values) for name, values in LABELS.items()}
POSITIONS = {name: xr.DataArray(np.arange(len(values), dtype="i4"), dims=[name], coords={name: values}) for name, values in LABELS.items()}
TABLE = xr.DataArray(np.arange(12 * 13, dtype="i4").reshape(12, 13), dims=["up4", "down8"], coords={"up4": LABELS["up4"], "down8": LABELS["down8"]})
TIMES = {"day", "hour", "back", "month", "minute"}
CALENDARS = {"noleap", "d360"}
FLOATS = {"up4", "down4", "down8", "uneven", "wrap", "twice", "one"}


def write():
    shutil.rmtree(STORE, ignore_errors=True)
    ds = xr.Dataset({f"v_{name}": v for name, v in POSITIONS.items()} | {"w": TABLE})
    encoding = {name: {"compressors": None, "chunks": (4, 5) if name == "w" else ds[name].shape} for name in ds.data_vars}
    encoding |= {name: {"compressors": None, "_FillValue": None} for name in ds.coords}
    encoding["hour"]["units"], encoding["minute"]["units"] = "hours since 2020-01-01", "minutes since 1970-01-01"
    with zarr.config.set({"array.write_empty_chunks": True}):
        ds.to_zarr(STORE, mode="w", zarr_format=2, consolidated=True, encoding=encoding)


# ---------------------------------------------------------------- labels as text and as xarray takes them
def iso(t):
    """A time as SQL has it."""
    if isinstance(t, cftime.datetime):
        return t.strftime("%Y-%m-%dT%H:%M:%S")
    return str(np.datetime64(t, "s"))


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def number(rng, name, slices):
    """A number beside the labels or one of them: text, and the label in the coordinate's type."""
    labels = LABELS[name]
    low, high = float(labels.min()), float(labels.max())
    kind = rng.random()
    if kind < 0.55:
        v = pick(rng, labels)
    elif kind < 0.85:
        v = labels.dtype.type(np.round(rng.uniform(low - (high - low) / 4 - 1, high + (high - low) / 4 + 1), 2)) if name in FLOATS else int(rng.integers(int(low) - 5, int(high) + 6))
    else:
        v = pick(rng, [low - 1000, high + 1000, (low + high) / 2])
        v = labels.dtype.type(v) if name in FLOATS else int(v)
    if name in FLOATS:
        if float(v) == int(v) and rng.random() < 0.3:
            return str(int(v)), float(v)  # an integer as a label of floats
        text = np.format_float_positional(v, trim="0")  # its shortest digits
        return text, labels.dtype.type(text)
    if rng.random() < 0.15:
        half = float(v) + pick(rng, [0.0, 0.5])
        return repr(half), half
    return str(int(v)), int(v)


def time(rng, name, exact):
    """A time: one of the labels, near them or far away, as an instant or a partial date."""
    labels = LABELS[name]
    kind = rng.random()
    if name in CALENDARS:
        t = pick(rng, labels)
        if kind > 0.7:
            t = t + __import__("datetime").timedelta(days=int(rng.integers(-60, 60)), hours=int(rng.integers(0, 24)))
        cuts = ["%Y", "%Y-%m", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]
        text = t.strftime(pick(rng, cuts[3:] if exact else cuts))
        return text, (t if exact else text)
    t = pick(rng, labels)
    if kind > 0.7:
        t = t + np.timedelta64(int(rng.integers(-100, 100)), "D") + np.timedelta64(int(rng.integers(0, 24)) * 60 + 15 * int(rng.integers(0, 4)), "m")
    if exact:
        return iso(t), np.datetime64(iso(t), "ns")
    cut = pick(rng, [4, 7, 10, 10, 13, 16, 19])
    if cut == 13:
        cut = 16
    text = iso(t)[:cut]
    return text, text


def label(rng, name, exact=False, slices=False):
    if name in TIMES or name in CALENDARS:
        text, value = time(rng, name, exact or (slices and name == "back"))
        return f"'{text}'", value
    return number(rng, name, slices)


def wrong(rng, name):
    """A label of another kind, or a date that there is not."""
    if name in TIMES:
        text = pick(rng, ["soon", "2020-13", "2021-02-30", "12"])
        return f"'{text}'", text
    if name in CALENDARS:
        text = {"noleap": "2000-02-29", "d360": "2000-02-31"}[name]
        return f"'{text}'", None
    return "'north'", "north"


# ---------------------------------------------------------------- cases
def one(rng, name):
    """A selection along one dimension: how it is written after `name =>`, of `v` or `sel`, and xarray's arguments."""
    kind = rng.random()
    in_order, is_unique = name != "mixed", name != "twice"
    if kind < 0.04:
        text, value = wrong(rng, name)
        return "plain", text, value, {}
    if kind < 0.34:
        text, value = label(rng, name)
        return pick(rng, ["plain", "sel"]), text, value, {}
    if kind < 0.68:
        (lo, a), (hi, b) = label(rng, name, slices=True), label(rng, name, slices=True)
        side = rng.random()
        if side < 0.12:
            lo, a = None, None
        elif side < 0.24:
            hi, b = None, None
        step = int(rng.integers(2, 4)) if rng.random() < 0.15 else None
        if rng.random() < 0.6:
            text = f"{lo or ''}:{hi or ''}" + (f":{step}" if step else "")
            return "plain", text, slice(a, b, step), {}
        return "sel", f"slice({lo or 'NULL'}, {hi or 'NULL'}" + (f", {step})" if step else ")"), slice(a, b, step), {}
    if kind < 0.84 and in_order and is_unique and name != "byte":  # of these pandas' distances wrap
        text, value = label(rng, name, exact=True)
        if rng.random() < 0.3 and name not in TIMES | CALENDARS:
            tolerance = float(np.round(rng.random() * 10, 1))
            return "nearest", f"{text}, tolerance => {tolerance}", value, {"method": "nearest", "tolerance": tolerance}
        return "nearest", text, value, {"method": "nearest"}
    if not is_unique:
        text, value = label(rng, name)
        return "sel", text, value, {}
    labels = [label(rng, name, exact=True) for _ in range(int(rng.integers(1, 5)))]
    if rng.random() < 0.7:  # all of them are there
        labels = []
        for _ in range(int(rng.integers(1, 5))):
            v = pick(rng, LABELS[name])
            labels.append((f"'{iso(v)}'" if name in TIMES | CALENDARS else np.format_float_positional(v, trim="0") if name in FLOATS else str(v), v))
    if rng.random() < 0.2 and in_order and name != "byte":
        return "nearest", f"[{', '.join(t for t, _ in labels)}]", [v for _, v in labels], {"method": "nearest"}
    return pick(rng, ["plain", "sel"]), f"[{', '.join(t for t, _ in labels)}]", [v for _, v in labels], {}


def of_lists(name, value):
    if isinstance(value, list):
        return np.array(value, dtype=object) if name in CALENDARS else np.array(value, dtype=LABELS[name].dtype if name in FLOATS | TIMES else None)
    return value


def answer(select):
    try:
        got = select()
    except (KeyError, ValueError, TypeError, OverflowError, IndexError):
        return "!"
    dims = ", ".join(f"{d}={n}" for d, n in zip(got.dims, got.shape))
    return f"{dims}|{' '.join(str(p) for p in np.asarray(got.values).ravel())}"


def case(rng):
    if rng.random() < 0.12:
        parts = [one(rng, "up4"), one(rng, "down8")]
        if any(p[0] == "nearest" for p in parts):
            return None
        text = ", ".join(f"{n} => {p[1]}" for n, p in zip(("up4", "down8"), parts))
        if any("slice(" in p[1] for p in parts) and any(":" in p[1] for p in parts):
            return None
        if any(isinstance(p[2], list) for p in parts):
            return None
        how = "sel" if any("slice(" in p[1] for p in parts) else "plain"
        if how == "sel" and any(":" in p[1] for p in parts):
            return None
        expression = f"w[{text}]" if how == "plain" else f"sel(w, {text})"
        return expression, answer(lambda: TABLE.sel(up4=parts[0][2], down8=parts[1][2]))
    name = pick(rng, list(LABELS))
    how, text, value, extra = one(rng, name)
    v = POSITIONS[name]
    value = of_lists(name, value)
    if how == "nearest":
        if name in CALENDARS and isinstance(value, np.ndarray):
            return None
        return f"sel(v_{name}, {name} => {text}, method => 'nearest')", answer(lambda: v.sel({name: value}, **extra))
    expression = f"v_{name}[{name} => {text}]" if how == "plain" else f"sel(v_{name}, {name} => {text})"
    if value is None:
        return expression, "!"
    got = answer(lambda: v.sel({name: value}))
    if name in CALENDARS and not isinstance(value, slice) and got == f"{name}=0|":
        return None  # an instant that is not there: no cells for xarray, an error here
    if name == "mixed" and isinstance(value, slice) and got == "mixed=0|":
        return None  # of labels in no order the second stands first: no cells for xarray, an error here
    return expression, got


def main():
    seed, cases, file = (sys.argv[1:] + [None] * 3)[:3]
    write()
    rng = np.random.default_rng(int(seed or 25))
    lines, seen = [], set()
    while len(lines) < int(cases or 2000):
        made = case(rng)
        if made and made[0] not in seen:
            seen.add(made[0])
            lines.append("\t".join(made))
    file = Path(file) if file else ROOT / "sql/random/labels.txt"
    file.write_text("# Made by sql/make_labels.py from xarray: do not edit.\n" + "\n".join(lines) + "\n")
    errors = sum(line.endswith("\t!") for line in lines)
    print(f"{len(lines)} cases, {errors} of them errors, {file.stat().st_size} bytes")


main()
