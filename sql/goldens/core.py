"""How a case becomes a record of a sqllogictest script, and how the inputs are read without Tessera.

    f = Script("queries/math", tolerance=1e-12)
    f.q("sqrt(x)", np.sqrt(x))                       # SELECT sqrt(x) FROM cases
    f.q("SELECT x + 1 AS y FROM cases", y=x + 1)     # named results
    f.cells("SELECT lat, avg(t2m) FROM era5 GROUP BY lat", frame)
    f.error("x[9]", "index_out_of_range")

A tensor prints as `name dtype [dim=len, ...]` and one line per innermost row; see README.md beside the scripts.
"""

import datetime
import re
from pathlib import Path

import cftime
import numpy as np
import pandas as pd
import zarr

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
SCRIPTS = []


class T:
    """A labelled array of a result: values (masked cells are NULL) and dimension names."""

    def __init__(self, values, dims=None, dtype=None):
        self.values = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
        self.dims = list(dims) if dims is not None else [f"dim_{k}" for k in range(self.values.ndim)]
        self.dtype = dtype

    def __getattr__(self, name):  # numpy's methods, for the lambdas
        return getattr(self.values, name)


def da(array, masked=True):
    """An xarray result; its NaN are masked cells unless said otherwise."""
    values = array.values
    if masked and values.dtype.kind == "f":
        values = np.ma.masked_invalid(values)
    return T(values, array.dims)


# ---------------------------------------------------------------- printing
def number(v):
    """Rust's `{:?}` of a float: NumPy's shortest digits, exponents as e-5 and e16."""
    if np.isnan(v):
        return "NaN"
    if np.isinf(v):
        return "inf" if v > 0 else "-inf"
    text = re.sub(r"e([+-])0*(\d)", lambda h: "e" + h[1].replace("+", "") + h[2], str(v))
    return text if "e" in text or "." in text else text + ".0"


def moment(v):
    """ISO time to the second, with a fraction only if there is one."""
    text = str(np.datetime64(v, "ns"))
    return text[:19] + (text[19:].rstrip("0").rstrip(".") if "." in text else "")


def cell(v):
    if v is None or v is np.ma.masked or v is pd.NaT or v is pd.NA:
        return "NULL"
    if isinstance(v, (bool, np.bool_)):
        return "true" if v else "false"
    if isinstance(v, (float, np.floating)):
        return number(v if isinstance(v, np.floating) else np.float64(v))
    if isinstance(v, (np.datetime64, pd.Timestamp)):
        return moment(v)
    if isinstance(v, datetime.date):
        return moment(np.datetime64(v, "us"))
    if isinstance(v, cftime.datetime):
        return v.isoformat().split(".")[0]
    return str(v)


def dtype_name(values):
    if values.dtype.kind == "M":
        return "datetime64[us]"
    if values.dtype == object:
        return f"datetime64[us, {values.ravel()[0].calendar}]"
    return str(values.dtype.newbyteorder("="))


def tensor_lines(name, value):
    t = value if isinstance(value, T) else T(value)
    values = t.values
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("="))
    dims = ", ".join(f"{d}={n}" for d, n in zip(t.dims, values.shape, strict=True))
    lines = [f"{name} {t.dtype or dtype_name(values)} [{dims}]"]
    if values.size:
        rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
        flat, mask = np.ma.getdata(rows), np.ma.getmaskarray(rows)
        for row, hidden in zip(flat, mask):
            lines.append(" ".join("NULL" if h else cell(v) for v, h in zip(row, hidden)))
    return lines


# ---------------------------------------------------------------- scripts
# Cases say what is wrong; several of these share a code (a regular expression of the runner).
CODES = {
    "unknown_function": "unknown_name", "unknown_dimension": "unknown_name", "unknown_argument": "unknown_name",
    "index_out_of_range": "out_of_range", "invalid_argument": "(invalid_argument|out_of_range|shape_mismatch)",
    "too_many_subscripts": "(too_many_subscripts|out_of_range|shape_mismatch)", "overflow": "overflow",
}


class Script:
    def __init__(self, path, about, tolerance=None, source="cases", setup=(), chunks=None):
        self.path, self.source, self.records = path, source, []
        self.head = [f"# {about}", "# Made by sql/make_goldens.py from NumPy and xarray: do not edit."]
        if tolerance:
            self.head.append(f"# tolerance {tolerance}")
        if chunks:
            self.head.append(f"# chunks {chunks}")
        for sql in setup:
            self.ok(sql)
        SCRIPTS.append(self)

    def sql(self, text):
        if text.split(None, 1)[0].upper() in ("SELECT", "WITH", "FROM", "PIVOT", "UNPIVOT", "SUMMARIZE", "EXPLAIN", "CREATE", "DROP", "SET", "SHOW", "DESCRIBE"):
            return text
        return f"SELECT {text}" + (f" FROM {self.source}" if self.source else "")

    def note(self, text):
        self.records.append([f"# {text}"])

    def ok(self, sql):
        self.records.append(["statement ok", sql])

    def q(self, sql, *unnamed, **named):
        """A tensor block: positional results are v0, v1, .. in their place; named ones keep their name."""
        lines = []
        for k, value in enumerate(unnamed):
            lines += tensor_lines(*value) if isinstance(value, tuple) else tensor_lines(f"v{k}", value)
        for name, value in named.items():
            lines += tensor_lines(name, value)
        self.records.append(["query ?", self.sql(sql), "----", *lines])

    def rows(self, sql, rows):
        """A cell block: a line per row, columns separated by one space."""
        lines = [" ".join(cell(v) for v in row) for row in rows]
        self.records.append(["query ?", sql, "----", *lines])

    def cells(self, sql, frame):
        """A cell block whose NaN are NULL, from a pandas frame."""
        columns = [list(frame[name].values) for name in frame]
        self.rows(sql, [[None if isinstance(v, (float, np.floating)) and v != v else v for v in row] for row in zip(*columns)])

    def error(self, sql, code):
        self.records.append([f"statement error {CODES.get(code, code)}", self.sql(sql)])

    def text(self):
        lines, after_note = list(self.head), False
        for record in self.records:
            lines += ([] if after_note else [""]) + record
            after_note = record[0].startswith("#")
        return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- inputs
def read(array):
    """An array with its masks: the fill_value of xarray's v2, _FillValue, missing_value, valid_range; NaN of a NaN fill too."""
    attrs, data = dict(array.attrs), np.asarray(array[...]).reshape(array.shape)
    hidden = np.zeros(data.shape, bool)
    marks = [attrs[k] for k in ("_FillValue", "missing_value") if k in attrs]
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attrs and array.metadata.fill_value is not None:
        marks.append(array.metadata.fill_value)
    for mark in marks:
        if isinstance(mark, str):
            mark = np.frombuffer(__import__("base64").b64decode(mark), "f8")[0]
        hidden |= np.isnan(data) if mark != mark else data == data.dtype.type(mark)
    if "valid_range" in attrs:
        low, high = attrs["valid_range"]
        hidden |= (data < low) | (data > high)
    if "scale_factor" in attrs or "add_offset" in attrs:
        data = data.astype("f8") * attrs.get("scale_factor", 1.0) + attrs.get("add_offset", 0.0)
    return np.ma.MaskedArray(data, hidden) if hidden.any() else data


def group(path):
    return zarr.open_group(str(DATA / path), mode="r")


class Cases:
    """The arrays of tests/data/cases.zarr as attributes."""

    def __init__(self):
        for name, array in group("cases.zarr").arrays():
            setattr(self, name, read(array))


EXTERNAL = "CREATE EXTERNAL TABLE {} STORED AS {} LOCATION 'tests/data/{}'"
CASES = EXTERNAL.format("cases", "ZARR", "cases.zarr")
ERA5 = EXTERNAL.format("era5", "ZARR", "cf/air.zarr")
