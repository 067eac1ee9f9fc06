"""Arrays, labels and attributes in the forms that the engine reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _spans

#: Calendars of CF, and the names of the engine's dtypes for them.
_CALENDARS = {
    "standard": "gregorian",
    "gregorian": "gregorian",
    "proleptic_gregorian": None,
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "360_day": "360_day",
    "julian": "julian",
}

#: dtypes that the engine reads where they are, and its names of them.
_DTYPES = {
    np.dtype(name): name
    for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"
    )
}

_MICROSECONDS = np.dtype("datetime64[us]")
#: Units of datetimes whose moments all are microseconds that fit 64 bits.
_FINE = frozenset(["us", "ns", "ps", "fs", "as"])


#: Labels for the engine: name, dimension, dtype, values, attributes, and whether they are a coordinate.
Labels = tuple[str, str | None, str, Any, str | None, bool]


class Unsupported(Exception):
    """An array that the engine does not read: the reason, and a hint."""

    def __init__(self, reason: str, hint: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def cells(array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any], Any | None]:
    """The dtype, memory that the buffer protocol can describe, and the validity of an array."""
    valid = None
    mask = np.ma.getmask(array)
    array = np.asarray(np.ma.getdata(array))
    kind = array.dtype.kind
    if array.dtype.names:
        # Such an array has a mask of several fields.
        raise Unsupported(*_other_dtype(array))
    if kind == "M":
        # A time that is missing is masked, as in files.
        mask = mask | np.isnat(array)
    if mask is not np.ma.nomask and mask.any():
        # A mask is read in row-major order.
        array = np.ascontiguousarray(array)
        valid = np.ascontiguousarray(~mask).view(np.uint8)
    dates = _dates(array) if kind == "O" and valid is None else None
    if dates is not None:
        dtype, array = dates
    elif kind == "M":
        dtype, array = "datetime64[us]", _moments(array)
    else:
        if array.dtype == np.float16:
            array = array.astype(np.float32)
        elif not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype not in _DTYPES:
            raise Unsupported(*_other_dtype(array))
        dtype = _DTYPES[array.dtype]
        if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
            # Truth values of other memory; the engine counts on 0 and 1.
            array = array.view(np.uint8) != 0
    flags = array.flags
    if array.ndim == 0:
        array = array.reshape(1)
    elif not flags.aligned or not flags.c_contiguous and any(s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array)
    return dtype, array, valid


def _moments(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Datetimes as microseconds; those of finer units are rounded down."""
    unit = np.datetime_data(array.dtype)[0]
    if unit == "generic":
        raise Unsupported("datetimes without a unit", "use `x.astype('datetime64[us]')`")
    moments = array.astype(_MICROSECONDS, copy=False)
    # NumPy wraps around where microseconds do not reach.
    if unit not in _FINE and np.any((moments.astype(array.dtype) != array) & ~np.isnat(array)):
        raise Unsupported(
            f"{array.dtype} more than 292277 years from 1970",
            "the engine counts microseconds in 64 bits: use whole numbers, `x.astype('int64')`",
        )
    return moments.view(np.int64)


def _other_dtype(array: np.ndarray[Any, Any]) -> tuple[str, str]:
    """Why the engine does not read an array, and the way out."""
    dtype = array.dtype
    if _has_zone(array):
        return _ZONE
    if dtype.kind == "c":
        return "complex numbers", "use `x.real` and `x.imag`"
    if dtype.names:
        way_out = f"take one field, `x[{dtype.names[0]!r}]`, or make a table: `pandas.DataFrame(x)`"
    elif dtype.kind in "USTO":
        way_out = "texts and objects are columns of tables: `pandas.DataFrame({'x': x})`"
    elif dtype.kind == "V":
        way_out = "give it a dtype of numbers: `x.view('uint8')`"
    else:
        way_out = "convert it with `x.astype('float64')`"
    return f"dtype {dtype}", way_out


_ZONE = ("datetimes with a time zone", "use UTC without one: `x.tz_convert(None)`")


def _has_zone(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind == "O" and array.size > 0 and getattr(array.flat[0], "tzinfo", None) is not None


def of_pandas(values: Any) -> np.ndarray[Any, Any]:
    """An array of pandas as one of NumPy, with a mask where values are missing; others as they are."""
    if isinstance(values, np.ndarray):
        return values
    if getattr(values.dtype, "tz", None) is not None:
        raise Unsupported(*_ZONE)
    dtype = getattr(values.dtype, "numpy_dtype", None)
    if dtype is None or dtype.kind not in "iufb":
        return np.asanyarray(values)
    return np.ma.MaskedArray(values.to_numpy(dtype=dtype, na_value=dtype.type(0)), mask=values.isna())


def _plain(value: Any) -> Any:
    """A value of an attribute as JSON has it; raises TypeError if it has no form there."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value)


_encode = json.JSONEncoder(default=str).encode


def json_of(attrs: Mapping[Any, Any]) -> str | None:
    """Attributes as JSON, with Python's words for NaN and infinities."""
    return _encode({str(k): _plain(v) for k, v in attrs.items()}) if attrs else None


def counted(
    array: np.ndarray[Any, Any], attrs: Mapping[Any, Any]
) -> tuple[np.ndarray[Any, Any], Mapping[Any, Any]]:
    """Spans of time (`timedelta64`) as numbers, with the attributes that say of what; other arrays as they are."""
    try:
        return _spans.encoded(array, attrs)
    except _spans.Inexact as e:
        raise Unsupported(e.reason, e.hint) from None


def labels(
    name: str, dim: str | None, values: Any, attrs: Mapping[Any, Any], is_coordinate: bool = True
) -> Labels:
    """Labels for the engine: numbers of 8 bytes, or texts. Only a text may be without a dimension."""
    if np.ma.is_masked(values):
        values = _unmasked(values)
    array, attrs = counted(np.asarray(values), attrs)
    try:
        array = _spans.as_labels(array)
    except _spans.Inexact as e:
        raise Unsupported(e.reason, e.hint) from None
    dtype, values = _label_values(name, array)
    return name, dim, dtype, values, json_of(attrs), is_coordinate


def _unmasked(labels: np.ma.MaskedArray[Any, Any]) -> np.ndarray[Any, Any]:
    """Labels with their own missing values in place of a mask."""
    missing: dict[str, Any] = {"f": np.nan, "M": np.datetime64("NaT"), "m": np.timedelta64("NaT"), "O": None}
    if labels.dtype.kind not in missing:
        raise Unsupported(f"masked labels of {labels.dtype}", "drop them, or use floats: `x.astype(float)`")
    out = np.array(labels.data)
    out[np.ma.getmaskarray(labels)] = missing[labels.dtype.kind]
    return out


def _label_values(name: str, array: np.ndarray[Any, Any]) -> tuple[str, Any]:
    kind = array.dtype.kind
    if kind in "biu":
        # Those of uint64 as the int64 of the same bits.
        return array.dtype.name, array.astype(np.int64)
    if kind == "f" and array.itemsize <= 8:
        return "float32" if array.itemsize <= 4 else "float64", array.astype(np.float64)
    if kind == "M":
        return "datetime64[us]", _moments(array).astype(np.int64)
    if is_text(array):
        return "str", _texts(array)
    dated = _dates(array)
    if dated is not None:
        return dated
    if _has_zone(array):
        raise Unsupported(*_ZONE)
    raise Unsupported(
        f"labels of dtype {array.dtype}", f"leave them out, of a Dataset by `x.drop_vars('{name}')`"
    )


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """Is it an array of texts, of which some may be missing (None or NaN), or of their bytes?"""
    kind = array.dtype.kind
    if kind != "O":
        return kind in "UTS"
    is_missing = [v is None or (isinstance(v, float) and v != v) for v in array.flat]
    known = [v for v, missing in zip(array.flat, is_missing, strict=True) if not missing]
    return bool(known or not array.size) and all(isinstance(v, str) for v in known)


def _texts(array: np.ndarray[Any, Any]) -> list[str | None]:
    if array.dtype.kind == "S":
        try:
            array = np.char.decode(array, "utf-8")
        except UnicodeDecodeError as e:
            raise Unsupported(f"bytes that are no UTF-8 ({e.reason})", "decode them: `x.str.decode('latin-1')`") from None
    return [v if isinstance(v, str) else None for v in array.tolist()]


def _dates(array: np.ndarray[Any, Any]) -> tuple[str, np.ndarray[Any, Any]] | None:
    """cftime's dates as a dtype and microseconds; None if they are something else."""
    cftime = sys.modules.get("cftime")
    if cftime is None or array.dtype.kind != "O" or not array.size:
        return None
    first = array.flat[0]
    if not all(isinstance(v, cftime.datetime) and v.calendar == first.calendar for v in array.flat):
        return None
    calendar = _CALENDARS.get(first.calendar)
    dtype = "datetime64[us]" if calendar is None else f"datetime64[us, {calendar}]"
    moments = cftime.date2num(
        array, "microseconds since 1970-01-01", calendar=first.calendar, has_year_zero=first.has_year_zero
    )
    return dtype, np.ascontiguousarray(moments, dtype=np.int64)
